"""Models that others made: what is loaded without a pickle, and what is refused."""

import base64
import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from small import changed, small, weights
from stable_baselines3.common.envs import FakeImageEnv, SimpleMultiObsEnv
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from sb3_cir import CIR
from sb3_cir.baselines import SACTanh, SimBa
from sb3_cir.policies import CIRPolicy
from sb3_cir.runs.plain import from_plain, to_plain


class Makes:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def alter(path: Path, change: Any = None, members: dict[str, bytes] | None = None) -> Path:
    """A copy in which ``change`` was made to the JSON data, and other entries are as given."""
    altered = path.with_name("altered.zip")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(altered, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "data" and change is not None:
                data = json.loads(content)
                change(data)
                content = json.dumps(data).encode()
            target.writestr(name, (members or {}).get(name, content))
    return altered


def poison(data: dict[str, Any], mark: Path, names: set[str] | None = None) -> None:
    """Replace what is pickled, or all of the attributes named, with what makes ``mark``."""
    for name, value in data.items():
        if name != "_plain" and (name in names if names else isinstance(value, dict) and ":serialized:" in value):
            # A directory can be made once: each in a place of its own.
            code = base64.b64encode(pickle.dumps(Makes(mark / name))).decode()
            data[name] = {":type:": "", ":serialized:": code}


def saved(tmp_path: Path, env: Any = "Pendulum-v1", policy: str = "MlpPolicy", **kwargs: Any) -> tuple[Any, Path]:
    model = small(env, policy, **kwargs)
    model.learn(30)
    model.save(tmp_path / "model")
    return model, tmp_path / "model.zip"


def same(model: Any, loaded: Any) -> None:
    """Weights, optimisers, temperature and actions."""
    assert not changed(weights(model), loaded)
    for name in ("actor", "critic"):
        ours, theirs = (getattr(each, name).optimizer.state_dict()["state"] for each in (model, loaded))
        assert all(th.equal(ours[key]["exp_avg"], theirs[key]["exp_avg"]) for key in ours)
    if model.log_ent_coef is not None:
        assert th.equal(model.log_ent_coef, loaded.log_ent_coef)
    model.observation_space.seed(0)
    for _ in range(3):
        observation = model.observation_space.sample()
        actions = [each.predict(observation, deterministic=True)[0] for each in (model, loaded)]
        np.testing.assert_array_equal(*actions)


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "lists": dict(policy_kwargs=dict(net_arch=dict(pi=[16], qf=[8, 8]), critic_network="NoTanh"), train_freq=(2, "step")),
    "classes": dict(policy_kwargs=dict(activation_fn=nn.Tanh, optimizer_class=th.optim.AdamW)),
    "schedule": dict(learning_rate=LinearSchedule(1e-3, 1e-4, 0.5)),
    "n_steps": dict(n_steps=3),
    "fixed": dict(ent_coef=0.2, use_sde=True),
    "dict": dict(env=SimpleMultiObsEnv(discrete_actions=False), policy="MultiInputPolicy"),
    "tanh": dict(model_class=SACTanh),
    "simba": dict(model_class=SimBa),
}


@pytest.mark.parametrize("case", CASES)
def test_no_pickle_is_needed(tmp_path: Path, case: str) -> None:
    """With and without an environment; and it learns on."""
    model, path = saved(tmp_path, **CASES[case])
    mark = tmp_path / "mark"
    mark.mkdir()
    altered = alter(path, lambda data: poison(data, mark))
    for env in (None, model.get_env()):
        loaded = type(model).load(altered, env=env, device="cpu", trusted=False)
        same(model, loaded)
    assert not list(mark.iterdir())
    for name in ("observation_space", "action_space", "policy_kwargs", "train_freq", "learning_rate", "replay_buffer_class"):
        ours, theirs = getattr(model, name), getattr(loaded, name)
        assert vars(ours) == vars(theirs) if name == "learning_rate" and case == "schedule" else ours == theirs
    assert loaded.policy_class is model.policy_class
    assert loaded.learn(12, reset_num_timesteps=False).num_timesteps == model.num_timesteps + 12


def test_every_attribute(tmp_path: Path) -> None:
    """Whatever is a pickle in the file, also where SB3 writes none, is not read; what is needed is asked for by name."""
    model, path = saved(tmp_path)
    with zipfile.ZipFile(path) as archive:
        names = set(json.loads(archive.read("data"))) - {"_plain"}
    mark = tmp_path / "mark"
    mark.mkdir()
    for name in sorted(names):
        altered = alter(path, lambda data, name=name: poison(data, mark, {name}))
        try:
            same(model, CIR.load(altered, device="cpu", trusted=False))
        except ValueError as error:
            assert f"altered.zip: {name}: there is a pickle alone" in str(error)  # noqa: PT017
            loaded = CIR.load(altered, device="cpu", trusted=False, custom_objects={name: getattr(model, name)})
            same(model, loaded)
    assert not list(mark.iterdir())
    # It is a pickle that works: trusted as it is by default, it does what it was made for.
    assert CIR.load(alter(path, lambda data: poison(data, mark, {"gamma"})), device="cpu").gamma is None
    assert [each.name for each in mark.iterdir()] == ["gamma"]


@pytest.mark.parametrize("member", ["policy.pth", "pytorch_variables.pth", "actor.optimizer.pth"])
def test_pickle_among_the_tensors(tmp_path: Path, member: str) -> None:
    _, path = saved(tmp_path)
    mark = tmp_path / "mark"
    bad = io.BytesIO()
    th.save({"log_ent_coef": Makes(mark)}, bad)
    for content in (bad.getvalue(), pickle.dumps(Makes(mark))):
        altered = alter(path, members={member: content})
        with pytest.raises(ValueError, match=r"altered\.zip: there is more than tensors in one of its \.pth files"):
            CIR.load(altered, device="cpu", trusted=False)
    assert not mark.exists()


def test_environment_named_in_a_file(tmp_path: Path) -> None:
    """SB3 makes it, and ``module:name`` has Gymnasium import a module."""
    _, path = saved(tmp_path)
    altered = alter(path, lambda data: data.update(env="antigravity:Pendulum-v1"))
    assert CIR.load(altered, device="cpu", trusted=False).get_env() is None


class MyPolicy(CIRPolicy):
    """Somebody's own."""


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (dict(policy=MyPolicy), dict(policy_class=MyPolicy)),
        (dict(learning_rate=lambda _: 1e-3), dict(learning_rate=1e-3)),
    ],
    ids=["policy", "schedule"],
)
def test_refused_by_name(tmp_path: Path, arguments: dict, given: dict) -> None:
    model, path = saved(tmp_path, **arguments)
    (name,) = given
    message = rf"model\.zip: {name}: there is a pickle alone, .* Pass custom_objects={{'{name}': \.\.\.}}, or trusted=True"
    with pytest.raises(ValueError, match=message):
        CIR.load(path, device="cpu", trusted=False)
    same(model, CIR.load(path, device="cpu", trusted=False, custom_objects=given))


def test_action_noise(tmp_path: Path) -> None:
    model, path = saved(tmp_path, action_noise=NormalActionNoise(np.zeros(1), 0.3 * np.ones(1)))
    loaded = CIR.load(path, device="cpu", trusted=False)
    same(model, loaded)
    assert repr(loaded.action_noise) == repr(model.action_noise)


def test_archive_without_plain_values(tmp_path: Path) -> None:
    """As SB3 writes it."""
    model, path = saved(tmp_path)
    old = alter(path, lambda data: data.pop("_plain"))
    given = dict(policy_class=CIRPolicy, replay_buffer_class=None, train_freq=1)
    with pytest.raises(
        ValueError, match="policy_class, observation_space, action_space, replay_buffer_class, train_freq: there"
    ):
        CIR.load(old, device="cpu", trusted=False)
    with pytest.raises(
        ValueError, match=r"observation_space, action_space: there is a pickle alone.* or env=\.\.\., or trusted"
    ):
        CIR.load(old, device="cpu", trusted=False, custom_objects=given)
    same(model, CIR.load(old, env=gym.make("Pendulum-v1"), device="cpu", trusted=False, custom_objects=given))


def test_trusted_is_as_before(tmp_path: Path) -> None:
    """By path without suffix, by file object; a pickled policy of one's own comes back."""
    model, path = saved(tmp_path, policy=MyPolicy)
    assert CIR.load(path.with_suffix(""), device="cpu").policy_class is MyPolicy
    given = dict(policy_class=MyPolicy)
    with path.open("rb") as file:
        same(model, CIR.load(file, device="cpu", trusted=False, custom_objects=given))
    same(model, CIR.load(path.with_suffix(""), device="cpu", trusted=False, custom_objects=given))
    assert CIR.load(path, device="cpu")._last_obs is not None


def test_no_archive(tmp_path: Path) -> None:
    (tmp_path / "model.zip").write_bytes(b"no zip")
    with pytest.raises(ValueError, match=r"model\.zip: this is no archive of a model"):
        CIR.load(tmp_path / "model.zip", trusted=False)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (3,), np.float32),
        spaces.Box(np.array([0.1, -0.2]), np.array([1, np.inf]), dtype=np.float64),
        spaces.Box(-1, 1, (), np.float32),
        FakeImageEnv(discrete=False).observation_space,
        spaces.Dict(
            [("b", spaces.Discrete(3, start=1)), ("a", spaces.MultiBinary([2, 2])), ("c", spaces.MultiDiscrete([2, 3]))]
        ),
    ],
    ids=str,
)
def test_spaces(space: spaces.Space) -> None:
    again = from_plain(json.loads(json.dumps(to_plain(space))))
    assert again == space
    assert again.dtype == space.dtype
    if isinstance(space, spaces.Dict):
        assert list(again.spaces) == list(space.spaces)


@pytest.mark.parametrize(
    "plain",
    [
        {":class:": "os.system"},
        {":class:": "torch.hub.load"},
        {":class:": "sb3_cir.cir.CIR"},
        {":class:": "stable_baselines3.common.save_util.cloudpickle.loads"},
        {":class:": "torch.nn.modules.module.Tensor"},
        {":object:": "Makes", "arguments": {}},
        {":space:": ["Text", 3]},
        {":train_freq:": [1, "year"]},
    ],
    ids=str,
)
def test_what_a_file_may_not_name(plain: Any) -> None:
    with pytest.raises(ValueError, match=r"no meaning here|that a file may name|there is no space|is not a valid"):
        from_plain(plain)
