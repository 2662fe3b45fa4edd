"""Statistics of VecNormalize that are saved without a pickle."""

import pickle
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize
from test_archive import Makes
from test_save_load import TRAIN
from test_zoo import TINY, run

from sb3_cir.runs import files, normalization

OTHER_SETTINGS = dict(training=False, norm_obs=True, norm_reward=False, clip_obs=3.0, clip_reward=4.0, gamma=0.9, epsilon=1e-4)


def pendulum() -> VecEnv:
    return make_vec_env("Pendulum-v1", n_envs=2, seed=0)


def stepped(env: VecNormalize) -> VecNormalize:
    env.reset()
    for _ in range(30):
        env.step(np.ones((env.num_envs, *env.action_space.shape), np.float32))
    return env


class Named(gym.Env):
    """Observations by name, of unequal scales."""

    observation_space = spaces.Dict(
        position=spaces.Box(-9, 9, (3,)), speed=spaces.Box(-99, 99, (2,)), contact=spaces.Discrete(2)
    )
    action_space = spaces.Box(-1, 1, (1,))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}


def same(first: VecNormalize, second: VecNormalize) -> None:
    for name in normalization.NormalizerSettings.model_fields:
        assert getattr(first, name) == getattr(second, name), name
    ours, theirs = normalization._without_returns(first), normalization._without_returns(second)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], name)


NO_LIMITS = dict(clip_obs=np.inf, clip_reward=np.inf)


@pytest.mark.parametrize("settings", [{}, OTHER_SETTINGS, NO_LIMITS, dict(norm_obs=False)])
def test_round_trip(tmp_path: Path, settings: dict) -> None:
    env = stepped(VecNormalize(pendulum()))
    for name, value in settings.items():
        setattr(env, name, value)
    if not env.norm_obs:
        env = stepped(VecNormalize(pendulum(), **settings))
    normalization.save(env, tmp_path / "new" / "statistics")
    loaded = normalization.load(tmp_path / "new" / "statistics", pendulum())
    same(env, loaded)
    observation, reward = np.array([[0.3, -0.2, 4.0]]), np.array([-7.0])
    np.testing.assert_array_equal(loaded.normalize_obs(observation), env.normalize_obs(observation))
    np.testing.assert_array_equal(loaded.normalize_reward(reward), env.normalize_reward(reward))
    assert (loaded.returns == 0).all()


@pytest.mark.parametrize("pickled", [False, True])
def test_observations_that_are_left_alone_later_on(tmp_path: Path, pickled: bool) -> None:
    env = stepped(VecNormalize(pendulum()))
    env.norm_obs = False
    path = tmp_path / ("statistics.pkl" if pickled else "statistics.safetensors")
    env.save(str(path)) if pickled else normalization.save(env, path)
    same(env, normalization.load(path, pendulum(), trusted=pickled))


def test_some_of_the_named_observations(tmp_path: Path) -> None:
    env = stepped(VecNormalize(DummyVecEnv([Named]), norm_obs_keys=["position", "speed"]))
    normalization.save(env, tmp_path / "statistics.safetensors")
    same(env, normalization.load(tmp_path / "statistics.safetensors", DummyVecEnv([Named])))
    with pytest.raises(ValueError, match=r"norm_obs_keys=\['position', 'speed'\], and the observations here have \[\]"):
        normalization.load(tmp_path / "statistics.safetensors", pendulum())


def test_pickles_are_for_those_who_trust_them(tmp_path: Path) -> None:
    for settings in (OTHER_SETTINGS | dict(training=True), NO_LIMITS):
        env = stepped(VecNormalize(pendulum(), **settings))
        env.save(str(tmp_path / "sb3.pkl"))
        same(env, normalization.load(tmp_path / "sb3.pkl", pendulum(), trusted=True))

    with pytest.raises(ValueError, match=r"sb3\.pkl: it is of other observations than those here"):
        normalization.load(tmp_path / "sb3.pkl", make_vec_env("MountainCarContinuous-v0"), trusted=True)
    (tmp_path / "bad.pkl").write_bytes(pickle.dumps(Makes(tmp_path / "made")))
    with pytest.raises(ValueError, match=r"bad\.pkl is a pickle, which can run any code: pass trusted=True"):
        normalization.load(tmp_path / "bad.pkl", pendulum())
    assert not (tmp_path / "made").exists()


def test_what_does_not_fit_or_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "statistics.safetensors"
    normalization.save(stepped(VecNormalize(pendulum())), path)
    with pytest.raises(ValueError, match=r"observations//mean was \(3,\) in .*statistics\.safetensors and is \(2,\)"):
        normalization.load(path, make_vec_env("MountainCarContinuous-v0"))
    note, arrays = files.read_arrays(path, "")

    def written(note: str, **changed: np.ndarray) -> Path:
        path.write_bytes(files.pack(arrays | changed, note))
        return path

    wrong = {
        '"gamma":0.99': ('"gamma":1.5', r"settings\.gamma is 1\.5"),
        '"clip_obs":10.0': ('"clip_obs":-1.0', r"settings\.clip_obs is -1\.0"),
        '"clip_reward":10.0': ('"clip_reward":NaN', r"settings\.clip_reward is nan"),
        '"training":true': ('"training":"yes"', r"settings\.training is yes"),
        '"norm_obs_keys":null': ('"norm_obs_keys":null,"venv":1', r"settings\.venv is nothing that is known here"),
    }
    for right, (other, message) in wrong.items():
        assert right in note.decode()
        with pytest.raises(files.DamagedError, match=message):
            normalization.load(written(note.decode().replace(right, other)), pendulum())
    with pytest.raises(files.DamagedError, match="checksum differs"):
        normalization.load(written(note.decode(), **{"normalization/rewards/mean": np.array(3.0)}), pendulum())
    bad = {"normalization/rewards/var": np.array(-1.0)}
    said = normalization.Normalization.model_validate_json(note)
    note = said.model_copy(update=dict(checksum=files.checksum(arrays | bad))).model_dump_json().encode()
    with pytest.raises(ValueError, match=r"rewards/var cannot be array\(-1\.\)"):
        normalization.load(written(note.decode(), **bad), pendulum())
    path.write_bytes(b"nothing")
    with pytest.raises(files.DamagedError, match=r"statistics\.safetensors: these are no arrays"):
        normalization.load(path, pendulum())


ZOO = """
import pickle, sys
import sb3_cir.zoo; sb3_cir.zoo.register()
from rl_zoo3.train import train
from rl_zoo3.enjoy import enjoy

def refuse(*args, **kwargs):
    raise AssertionError("statistics were unpickled")

command = sys.argv[1:]
train()
pickle.load = refuse
sys.argv[1:] = ["--algo", "cir", "--env", "Pendulum-v1", "-f", "logs", "--device", "cpu", "--no-render", "-n", "210"]
enjoy()
sys.argv[1:] = [*command, "-i", "logs/cir/Pendulum-v1_1/Pendulum-v1.zip"]
train()
"""


def test_the_zoo_needs_no_pickle(tmp_path: Path) -> None:
    """Ours are played and trained further from what has the name of a pickle and is none; SB3's algorithms keep theirs."""
    options = ["-n", "60", "--eval-freq", "-1", *TINY, "normalize:'dict(norm_obs=True,norm_reward=False)'"]
    command = ["--algo", "cir", "--env", "Pendulum-v1", "-f", "logs", "--device", "cpu", *options]
    output = run("-c", ZOO, *command, cwd=tmp_path)
    assert "Mean reward" in output
    assert "Loading saved VecNormalize stats" in output
    saved = tmp_path / "logs/cir/Pendulum-v1_1/Pendulum-v1/vecnormalize.pkl"
    loaded = normalization.load(saved, pendulum())
    assert loaded.obs_rms.count == pytest.approx(61 + 1e-4)  # a reset, 60 steps
    goes_on = normalization.load(tmp_path / "logs/cir/Pendulum-v1_2/Pendulum-v1/vecnormalize.pkl", pendulum())
    assert goes_on.obs_rms.count > loaded.obs_rms.count

    run("-c", TRAIN, *["sac" if each == "cir" else each for each in command], cwd=tmp_path)
    assert isinstance(
        VecNormalize.load(tmp_path / "logs/sac/Pendulum-v1_1/Pendulum-v1/vecnormalize.pkl", pendulum()), VecNormalize
    )
