"""Ids of packages that are slow to import, known to Gymnasium before the package is."""

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec


class _Retreat:
    """
    A finder that takes our ids back while the package that has the same ones is imported, so that its own registration meets
    no earlier one (Gymnasium warns of those). A mere look for the package leaves them in place.
    """

    def __init__(self, package: str, specs: list[EnvSpec], repair: Callable[[], object] | None):
        self.package = package
        self.specs = specs
        self.repair = repair

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.package:
            return None
        # Not all others: with two of us for one package each would ask the other for ever.
        later = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(name, path, target) for finder in later)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                for ours in self.specs:
                    if gym.registry.get(ours.id) is ours:
                        del gym.registry[ours.id]
                try:
                    execute(module)
                    if self.repair is not None:
                        self.repair()
                finally:
                    _put_in_force(self.specs)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _put_in_force(specs: Iterable[EnvSpec]) -> None:
    """Register without Gymnasium's warning about ids that are known already."""
    gym.registry.update({spec.id: spec for spec in specs})


def register_placeholders(package: str, specs: Iterable[EnvSpec], repair: Callable[[], object] | None = None) -> None:
    """
    Register ids without importing the package that registers the same ones, and overrule its own when it is imported.

    :param package: The package that registers these ids on import
    :param specs: What to register; ids that are known already are left out while the package is not imported.
    :param repair: Called once the package is imported (at once, if it is already), to repair it
    """
    specs = list(specs)
    if package not in sys.modules:
        specs = [spec for spec in specs if spec.id not in gym.registry]
        sys.meta_path.insert(0, _Retreat(package, specs, repair))
    elif repair is not None:
        repair()
    _put_in_force(specs)
