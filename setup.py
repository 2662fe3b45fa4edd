"""What setup.cfg cannot say: the RL Zoo hook goes beside the package, and ``hyperparams/`` into it."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).parent


def put_zoo_hook(folder):
    """Write the start-up hook and the ``.pth`` file that imports it into what becomes site-packages."""
    shutil.copy(ROOT / "sb3_cir" / "zoo_hook.py", Path(folder, "_sb3_cir_zoo_hook.py"))
    Path(folder, "sb3_cir_zoo.pth").write_text("import _sb3_cir_zoo_hook\n")


class BuildWithHook(build_py):
    """The files of a wheel."""

    def run(self):
        super().run()
        if not self.editable_mode:
            put_zoo_hook(self.build_lib)
            shutil.copytree(ROOT / "hyperparams", Path(self.build_lib, "sb3_cir", "hyperparams"), dirs_exist_ok=True)


class EditableWithHook(editable_wheel):
    """The files of ``pip install -e``, which takes the package from the checkout."""

    def _run_build_commands(self, dist_name, unpacked_wheel, build_lib, tmp_dir):
        put_zoo_hook(unpacked_wheel)
        return super()._run_build_commands(dist_name, unpacked_wheel, build_lib, tmp_dir)


setup(cmdclass={"build_py": BuildWithHook, "editable_wheel": EditableWithHook})
