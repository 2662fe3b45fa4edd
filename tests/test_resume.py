"""A run that was interrupted and goes on: the same, bit by bit, as one that was not."""

import random
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from small import small
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from test_save_load import same_tensors
from torch import nn

from sb3_cir import CIR
from sb3_cir.callbacks import Checkpoint
from sb3_cir.checkpoint import checkpoints


class Walk(gym.Env):
    """
    A walk whose whole state is in its observation, so that an episode can be entered anywhere. Observations are (position,
    step); episodes are cut off after 23 steps, unless ``length`` says otherwise.

    :param start: The first observation of the first episode
    :param form: "flat", "dict", "scalar" (a Dict with a 0-d entry) or "goal"
    """

    def __init__(self, start=(0.0, 0.0), form: str = "flat", length: int = 23):
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.form, self.start, self.length = form, np.array(start, np.float32), length
        self.observation_space = {
            "flat": box,
            "dict": spaces.Dict(a=box, b=box),
            "scalar": spaces.Dict(a=box, height=spaces.Box(-np.inf, np.inf, (), np.float32)),
            "goal": spaces.Dict(observation=box, achieved_goal=box, desired_goal=box),
        }[form]
        self.action_space = spaces.Box(-2, 2, (1,), np.float32)

    def observe(self):
        state = self.state.copy()
        if self.form == "flat":
            return state
        if self.form == "dict":
            return {"a": state, "b": state + 1}
        if self.form == "scalar":
            return {"a": state, "height": np.array(state[0])}
        return {"observation": state, "achieved_goal": state, "desired_goal": np.ones(2, np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.start = self.start.copy(), np.zeros(2, np.float32)
        return self.observe(), {}

    def step(self, action):
        self.state = np.array([0.9 * self.state[0] + 0.3 * action[0], self.state[1] + 1], np.float32)
        return self.observe(), float(1 - abs(self.state[0])), False, bool(self.state[1] % self.length == 0), {}

    def compute_reward(self, achieved, desired, info):
        return -np.linalg.norm(achieved - desired, axis=-1)


FORMS: dict[str, dict[str, Any]] = {
    "flat": {},
    "wrapped ring": dict(buffer_size=30),
    "several envs": dict(n_envs=3, buffer_size=90),
    "dict": dict(form="dict"),
    "scalar entries": dict(form="scalar"),
    "n-step": dict(n_steps=3, buffer_size=50),
    "little memory": dict(
        optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False), buffer_size=45
    ),
    "her": dict(form="goal", replay_buffer_class=HerReplayBuffer, buffer_size=60, learning_starts=40),
    "normalised": dict(normalize=True, n_envs=3),
    "normalised dict": dict(normalize=True, form="dict"),
    "gsde": dict(use_sde=True, train_freq=5, sde_sample_freq=2),
    "noise": dict(action_noise=OrnsteinUhlenbeckActionNoise(np.zeros(1), np.ones(1)), n_envs=3),
    "fixed temperature": dict(ent_coef=0.1),
    "schedule": dict(learning_rate=LinearSchedule(1e-2, 0.0, 1.0)),
    "other layers": dict(policy_kwargs=dict(activation_fn=nn.Tanh, net_arch=dict(pi=[8], qf=[8, 8, 8]))),
    "several updates": dict(train_freq=5, gradient_steps=3, sample_reuse=3),
}


def make_env(starts: list, normalize: bool = False, **kwargs: Any):
    env = DummyVecEnv([lambda start=start: Walk(start, **kwargs) for start in starts])
    return VecNormalize(env) if normalize else env


def state_of(env) -> list:
    """What the environments' observations were last."""
    return [tuple(each.unwrapped.state) for each in env.unwrapped.envs]


class Stop(BaseCallback):
    """Notes where the environments are, and stops, at one step."""

    def __init__(self, step: int):
        super().__init__()
        self.step = step

    def _on_rollout_start(self) -> None:
        if self.num_timesteps == self.step:
            raise PowerError(state_of(self.training_env))

    def _on_step(self) -> bool:
        return True


class PowerError(Exception):
    """It fails, and takes the process with it."""


def everything(model: CIR) -> dict[str, Any]:
    """All that must be equal, as tensors."""
    buffer = model.replay_buffer
    arrays = {}
    for name, value in vars(buffer).items():
        if isinstance(value, np.ndarray) and value.dtype != object:
            arrays[name] = value
        elif name in ("observations", "next_observations"):
            arrays |= {f"{name} {key}": entry for key, entry in value.items()}
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        statistics = normalizer.obs_rms if isinstance(normalizer.obs_rms, dict) else {"": normalizer.obs_rms}
        for key, each in {**statistics, "r": normalizer.ret_rms}.items():
            arrays |= {f"mean {key}": each.mean, f"var {key}": each.var, f"count {key}": np.array(each.count)}
        arrays["returns"] = normalizer.returns
    return {
        "parameters": model.get_parameters(),
        "log_ent_coef": model.log_ent_coef,
        "buffer": {name: th.as_tensor(array) for name, array in arrays.items()},
        "pos": (buffer.pos, buffer.full),
        "counts": (model.num_timesteps, model._n_updates, model._episode_num, model._current_progress_remaining),
        "random": (random.random(), np.random.random(), th.rand(1).item(), model.action_space.sample().tolist()),
    }


@pytest.mark.parametrize("form", FORMS)
def test_bit_identical(form: str, tmp_path: Path) -> None:
    """Interrupted twice, so that what was resumed is saved again."""
    kwargs = dict(FORMS[form])
    n_envs = kwargs.pop("n_envs", 1)
    env_kwargs = dict(form=kwargs.pop("form", "flat"), normalize=kwargs.pop("normalize", False))
    policy = "MlpPolicy" if env_kwargs["form"] == "flat" else "MultiInputPolicy"
    starts: list = [(0.1 * i, 0.0) for i in range(n_envs)]
    whole = small(make_env(starts, **env_kwargs), policy, **kwargs).learn(120)
    expected = everything(whole)

    model = small(make_env(starts, **env_kwargs), policy, **kwargs)
    for step, every in ((60, 30), (90, 15)):
        with pytest.raises(PowerError) as power:
            model.learn(120, callback=CallbackList([Checkpoint(every, tmp_path), Stop(step)]))
        (starts,) = power.value.args
        assert [each for each, _ in checkpoints(tmp_path)] == [step, step - every]
        for seed in (random.seed, np.random.seed, th.manual_seed):
            seed(1)
        model = CIR.resume(tmp_path, make_env(starts, **env_kwargs))
        assert model.num_timesteps == step
    model.learn(120, callback=Checkpoint(15, tmp_path))
    found = everything(model)
    assert [name for name, value in expected.items() if not same_tensors(value, found[name])] == []
