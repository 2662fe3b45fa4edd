"""
Make CIR known to RL Zoo in every Python of this environment, without ``--gym-packages`` or ``-conf``.

Installed beside the package as ``_sb3_cir_zoo_hook``, which a ``.pth`` file imports at start-up. It must stay light (no
import but ``sys``): it waits until RL Zoo's own modules are loaded and lets ``sb3_cir.zoo`` amend each of them then.
"""

# mypy: ignore-errors
import sys

MODULES = ("rl_zoo3.utils", "rl_zoo3.exp_manager", "rl_zoo3.hyperparams_opt", "rl_zoo3.callbacks")


class _AfterImport:
    """A finder that changes one thing: once RL Zoo's module has run, ``sb3_cir.zoo.amend`` gets it."""

    def find_spec(self, name, path=None, target=None):
        if name not in MODULES:
            return None
        later = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(name, path, target) for finder in later)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                _amend(module)

            spec.loader.exec_module = exec_module
        return spec


def _amend(module):
    try:
        from sb3_cir.zoo import amend
    except ImportError as error:
        # Other people's algorithms must go on working whatever state this package is in.
        print(f"sb3_cir is not available to RL Zoo: {error}", file=sys.stderr)
    else:
        amend(module)


sys.meta_path.insert(0, _AfterImport())
