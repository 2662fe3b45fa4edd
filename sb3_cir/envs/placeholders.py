"""Ids of packages that are slow to import, known to Gymnasium before the package is."""

import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec


class _Retreat:
    """
    A finder that finds nothing: it takes our ids back when the package that owns them is about to be imported, so that its
    own registration meets no earlier one (Gymnasium warns of those).
    """

    def __init__(self, package: str, specs: list[EnvSpec]):
        self.package = package
        self.specs = specs

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name == self.package:
            sys.meta_path.remove(self)
            for spec in self.specs:
                if gym.registry.get(spec.id) is spec:
                    del gym.registry[spec.id]
        return None


def register_placeholders(package: str, specs: Iterable[EnvSpec]) -> None:
    """
    Register ids until their package registers them itself.

    :param package: The package that registers these ids on import; if it is imported already, nothing is done.
    :param specs: What to register
    """
    if package in sys.modules:
        return
    specs = [spec for spec in specs if spec.id not in gym.registry]
    gym.registry.update({spec.id: spec for spec in specs})
    sys.meta_path.insert(0, _Retreat(package, specs))
