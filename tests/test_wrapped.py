"""Files whose names of weights have what torch.compile or DataParallel puts there."""

import io
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from small import small
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from test_authors import actor
from torch import nn

from sb3_cir import CIR, authors
from sb3_cir.callbacks import Checkpoint
from sb3_cir.runs import files, parameters
from sb3_cir.runs.archive import ARRAYS

Rename = Callable[[str], str]


def same(first: CIR, second: CIR) -> None:
    ours, theirs = parameters.take(first), parameters.take(second)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], name)


def renamed(path: Path, rename: Rename) -> None:
    """Write a file's weights under other names."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    if ARRAYS in members:
        arrays = files.unpack(members[ARRAYS], "")
        members[ARRAYS] = files.pack({rename(name): array for name, array in arrays.items()})
    else:
        weights = th.load(io.BytesIO(members["policy.pth"]), weights_only=True)
        content = io.BytesIO()
        th.save({rename(f"policy/{name}").removeprefix("policy/"): value for name, value in weights.items()}, content)
        members["policy.pth"] = content.getvalue()
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)


WRAPPED: dict[str, Rename] = {
    "DataParallel": lambda name: name.replace("policy/", "policy/module."),
    "compiled": lambda name: name.replace("policy/actor.", "policy/actor._orig_mod."),
    "both": lambda name: name.replace("policy/", "policy/_orig_mod.module."),
}


@pytest.mark.parametrize("kind", WRAPPED)
@pytest.mark.parametrize("written", ["ours", "SB3's", "checkpoint"])
def test_one_word_on_wrapped_names(tmp_path: Path, kind: str, written: str) -> None:
    model = small("Pendulum-v1")
    model.sb3_archives = written == "SB3's"
    model.learn(30, callback=Checkpoint(30, tmp_path) if written == "checkpoint" else None)
    path = tmp_path / ("step_30.zip" if written == "checkpoint" else "model.zip")
    if written != "checkpoint":
        model.save(path)
    renamed(path, WRAPPED[kind])

    def load(trusted: bool) -> CIR:
        if written == "checkpoint":
            return CIR.resume(tmp_path, gym.make("Pendulum-v1"), device="cpu")
        return CIR.load(path, device="cpu", trusted=trusted)

    some = r"policy/\S*(module|_orig_mod)\.\S+ as policy/[a-z]\S+\.$"
    for trusted in (True, False) if written == "ours" else (True,):
        with pytest.warns(UserWarning, match=rf"{path.name}\)?: \d+ names of weights are read without .*, {some}") as said:
            loaded = load(trusted)
        assert len(said) == 1
        same(loaded, model)


class Nested(BaseFeaturesExtractor):
    """Has a part that is really called so."""

    def __init__(self, space: Any):
        super().__init__(space, 4)
        self.module = nn.Linear(3, 4)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.module(observations)


def test_a_part_that_is_called_module(tmp_path: Path) -> None:
    model = small("Pendulum-v1", policy_kwargs=dict(features_extractor_class=Nested))
    assert any(".features_extractor.module.weight" in name for name in parameters.take(model))
    model.save(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(CIR.load(tmp_path / "model", device="cpu"), model)
    renamed(tmp_path / "model.zip", WRAPPED["DataParallel"])
    with pytest.warns(UserWarning, match="names of weights are read without"):
        same(CIR.load(tmp_path / "model", device="cpu"), model)


def test_what_stands_there_under_both_names_is_refused(tmp_path: Path) -> None:
    model = small("Pendulum-v1")
    arrays = parameters.take(model)
    name = "policy/actor.mu.weight"
    for more in ({"policy/module.actor.mu.weight": arrays[name]}, {"policy/_orig_mod.actor.mu.weight": arrays[name]}):
        with pytest.raises(ValueError, match=re.escape(f"{next(iter(more))} was (1, 16) (float32) and is not there")):
            parameters.check(model, arrays | more, "it")
    both = {f"policy/{wrapper}.actor.mu.weight": arrays[name] for wrapper in ("module", "_orig_mod")}
    del arrays[name]
    with pytest.warns(UserWarning, match="1 names"), pytest.raises(ValueError, match="is not there"):
        parameters.check(model, arrays | both, "it")


def test_weights_of_the_authors(tmp_path: Path) -> None:
    theirs = actor()
    plain = theirs.state_dict()
    for index, prefix in enumerate(("module.", "_orig_mod.", "module._orig_mod.")):
        path = tmp_path / f"{index}.pt"
        th.save({prefix + name: value for name, value in plain.items()}, path)
        with pytest.warns(UserWarning, match=f"{index}.pt: 6 names of weights are read without .*, {prefix}network") as said:
            found = authors.read(path)
        assert len(said) == 1
        assert list(found) == authors.KEYS
        assert all(th.equal(found[name], value) for name, value in plain.items())
