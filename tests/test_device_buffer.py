"""A replay buffer whose transitions are on the model's device too."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from small import changed, small, weights
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_cir import CIR
from sb3_cir.buffers import DeviceReplayBuffer
from sb3_cir.callbacks import Checkpoint

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not th.cuda.is_available(), reason="needs a GPU"))]
SPACES = (spaces.Box(-1, 1, (3,), np.float64), spaces.Box(-1, 1, (2,)))
N_ENVS = 2


def add(buffer: ReplayBuffer, rng: np.random.Generator) -> None:
    """One random transition of each environment, some of them the last of an episode, and some of those cut off."""
    obs, next_obs = rng.normal(size=(2, N_ENVS, 3))
    done = rng.random(N_ENVS) < 0.5
    infos = [{"TimeLimit.truncated": bool(cut_off)} for cut_off in done & (rng.random(N_ENVS) < 0.5)]
    buffer.add(obs, next_obs, rng.uniform(-1, 1, (N_ENVS, 2)), rng.normal(size=N_ENVS), done, infos)


def draw_all(buffer: ReplayBuffer, monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """Every transition that can be drawn, each once, in the order of time and environment."""
    n = buffer.size() * N_ENVS
    rows, environments = np.divmod(np.arange(n), N_ENVS)
    if isinstance(buffer, DeviceReplayBuffer):
        monkeypatch.setattr(th, "randint", lambda high, size, device: th.arange(high, device=device))
        batch = buffer.sample(n)
    else:
        monkeypatch.setattr(np.random, "randint", lambda *args, high, size: environments)
        batch = buffer._get_samples(rows)
    monkeypatch.undo()
    assert batch.discounts is None
    return th.cat([each.float().cpu() for each in batch if each is not None], dim=1).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_holds_what_sb3s_holds(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many were added between two samples, around the ring and more than once around it too."""
    kinds = [ReplayBuffer, DeviceReplayBuffer]
    buffers = [kind(10, *SPACES, device=device, n_envs=N_ENVS) for kind in kinds]
    generators = [np.random.default_rng(0) for _ in kinds]
    for n in (3, 1, 1, 2, 4, 13, 5, 0):
        for buffer, rng in zip(buffers, generators, strict=True):
            for _ in range(n):
                add(buffer, rng)
        expected, found = (draw_all(buffer, monkeypatch) for buffer in buffers)
        assert found == expected
    for buffer in buffers:
        buffer.reset()
        add(buffer, np.random.default_rng(1))
    expected, found = (draw_all(buffer, monkeypatch) for buffer in buffers)
    assert found == expected


def test_draws_all_alike() -> None:
    buffer = DeviceReplayBuffer(20, *SPACES, device="cpu", n_envs=N_ENVS)
    rng = np.random.default_rng(0)
    for _ in range(7):
        add(buffer, rng)
    th.manual_seed(0)
    _, counts = np.unique(buffer.sample(14_000).rewards.numpy(), return_counts=True)
    assert len(counts) == 14
    assert 850 < counts.min() < counts.max() < 1150


@pytest.mark.parametrize("device", DEVICES)
def test_learns_saves_and_loads(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def model() -> Any:
        return small(make_vec_env("Pendulum-v1", N_ENVS), device=device, replay_buffer_class=DeviceReplayBuffer)

    learned = model()
    before = weights(learned)
    learned.learn(60)
    assert changed(before, learned) == set(before)
    buffer = learned.replay_buffer
    learned.save_replay_buffer(tmp_path / "buffer")
    assert (tmp_path / "buffer.safetensors").stat().st_size < 50_000  # its rows once
    learned.save(tmp_path / "model")
    loaded = CIR.load(tmp_path / "model", env=learned.get_env(), device=device)
    loaded.load_replay_buffer(tmp_path / "buffer")
    assert draw_all(loaded.replay_buffer, monkeypatch) == draw_all(buffer, monkeypatch)
    loaded.learn(20, reset_num_timesteps=False)


def test_goes_back_to_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been sent since must not stay."""
    model = small(make_vec_env("Pendulum-v1", N_ENVS), replay_buffer_class=DeviceReplayBuffer, buffer_size=50)
    model.learn(40, callback=Checkpoint(40, tmp_path))
    expected = draw_all(model.replay_buffer, monkeypatch)
    model.learn(80, reset_num_timesteps=False)
    assert draw_all(model.replay_buffer, monkeypatch) != expected
    model.restore(tmp_path)
    assert draw_all(model.replay_buffer, monkeypatch) == expected


def test_rows_that_are_changed_where_they_are() -> None:
    """The device has the new ones once it is told."""
    model = small("Pendulum-v1", replay_buffer_class=DeviceReplayBuffer, learning_starts=1000).learn(30)
    model.replay_buffer.sample(8)
    model.replay_buffer.rewards[:] = 7
    model.replay_buffer.rewritten()
    assert (model.replay_buffer.sample(64).rewards == 7).all()


def test_normalised_batches_are_sb3s() -> None:
    """Statistics move, so what was sent before would be out of date."""
    env = VecNormalize(make_vec_env("Pendulum-v1", N_ENVS))
    model = small(env, replay_buffer_class=DeviceReplayBuffer).learn(60)
    np.random.seed(0)
    found = model.replay_buffer.sample(16, env=env)
    np.random.seed(0)
    expected = ReplayBuffer.sample(model.replay_buffer, 16, env=env)
    assert all(th.equal(a, b) for a, b in zip(found[:5], expected[:5], strict=True))
    assert not th.isin(found.observations, th.as_tensor(model.replay_buffer.observations)).any()


@pytest.mark.parametrize(
    ("space", "kwargs", "message"),
    [
        (spaces.Box(0, 255, (36, 36, 3), np.uint8), {}, "vectors of floats, not Box"),
        (spaces.Discrete(4), {}, "vectors of floats, not Discrete"),
        (SPACES[0], dict(n_steps=3, gamma=0.9), r"n_steps=3: DeviceReplayBuffer has no n-step returns\."),
        (SPACES[0], dict(optimize_memory_usage=True, handle_timeout_termination=False), "keeps both observations"),
    ],
)
def test_refuses(space: spaces.Space, kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DeviceReplayBuffer(10, space, SPACES[1], **kwargs)
