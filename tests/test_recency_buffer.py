"""A replay buffer that draws new transitions more often than old ones."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from small import small
from stable_baselines3 import SAC, TD3
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_cir import CIR
from sb3_cir.buffers import RecencyDictReplayBuffer, RecencyReplayBuffer, RecencyWeighted
from sb3_cir.callbacks import Checkpoint

BOX = spaces.Box(-np.inf, np.inf, (1,), np.float64)


def filled(n_added: int, size: int = 20, n_envs: int = 1, **kwargs: object) -> RecencyReplayBuffer:
    """Each transition's reward is its number, counted from 0."""
    buffer = RecencyReplayBuffer(size * n_envs, BOX, BOX, device="cpu", n_envs=n_envs, **kwargs)
    for number in range(n_added):
        row = np.full((n_envs, 1), float(number))
        buffer.add(row, row + 0.5, row, row[:, 0], np.zeros(n_envs), [{} for _ in range(n_envs)])
    return buffer


@pytest.mark.parametrize("n_added", [1, 5, 20, 33])
@pytest.mark.parametrize(("decay", "min_weight"), [(0.8, 0.1), (0.8, 0.0), (0.99, 0.1), (1.0, 0.0), (0.5, 1.0), (1.0, 0.1)])
def test_frequencies_are_the_weights(n_added: int, decay: float, min_weight: float) -> None:
    """While it fills, when it is just full, and after the oldest were overwritten."""
    np.random.seed(0)
    buffer = filled(n_added, decay=decay, min_weight=min_weight)
    n_draws = 200_000
    drawn = buffer.sample(n_draws).rewards.flatten().numpy().astype(int)
    ages = np.arange(min(n_added, 20))
    weights = np.maximum(min_weight, decay**ages)
    expected = weights / weights.sum()
    found = np.bincount(n_added - 1 - drawn, minlength=len(ages)) / n_draws
    assert len(found) == len(ages)
    # Five standard deviations of a binomial's share.
    assert np.all(np.abs(found - expected) <= 5 * np.sqrt(expected * (1 - expected) / n_draws))


def test_environments_are_drawn_alike() -> None:
    np.random.seed(0)
    buffer = filled(30, n_envs=2, decay=0.8)
    buffer.rewards[:, 1] += 100
    drawn = buffer.sample(100_000).rewards.flatten().numpy()
    assert (drawn >= 100).mean() == pytest.approx(0.5, abs=0.01)
    for of_one in (drawn[drawn < 100], drawn[drawn >= 100] - 100):
        assert (of_one == 29).mean() == pytest.approx(1 / np.maximum(0.1, 0.8 ** np.arange(20)).sum(), abs=0.01)


def test_what_is_drawn_is_a_whole_transition() -> None:
    batch = filled(33, decay=0.8).sample(1000)
    assert np.array_equal(batch.observations, batch.rewards)
    assert np.array_equal(batch.actions, batch.rewards)
    assert np.array_equal(batch.next_observations, batch.rewards + 0.5)


def test_never_the_row_whose_observation_is_overwritten() -> None:
    """With ``optimize_memory_usage`` the newest transition's next observation stands where the oldest transition's was."""
    buffer = filled(33, decay=0.8, optimize_memory_usage=True, handle_timeout_termination=False)
    drawn = set(buffer.sample(20_000).rewards.flatten().tolist())
    assert drawn == set(range(14, 33))


def test_weights_of_a_large_buffer() -> None:
    """At the sizes that it is for: the mean age over a million transitions, from the sum of all their weights."""
    np.random.seed(0)
    buffer = filled(0, size=1_000_000, decay=0.9999, min_weight=0.1)
    buffer.full, buffer.pos = True, 123_456
    ages = np.arange(1_000_000)
    weights = np.maximum(0.1, 0.9999**ages)
    drawn = buffer._draw_ages(1_000_000)
    assert drawn.min() >= 0
    assert drawn.max() < 1_000_000
    std = np.sqrt(np.average(ages**2, weights=weights) - np.average(ages, weights=weights) ** 2)
    assert drawn.mean() == pytest.approx(np.average(ages, weights=weights), abs=5 * std / 1000)
    assert (drawn < 1000).mean() == pytest.approx(weights[:1000].sum() / weights.sum(), abs=5e-4)


@pytest.mark.parametrize("model_class", [SAC, TD3, CIR])
def test_any_off_policy_algorithm_learns_with_it(model_class: type[OffPolicyAlgorithm]) -> None:
    kwargs = dict(replay_buffer_class=RecencyReplayBuffer, replay_buffer_kwargs=dict(decay=0.9, min_weight=0.2))
    model = small("Pendulum-v1", model_class=model_class, **kwargs).learn(60)
    assert isinstance(model.replay_buffer, RecencyReplayBuffer)
    assert (model.replay_buffer.decay, model.replay_buffer.min_weight) == (0.9, 0.2)
    assert model._n_updates > 0


def test_goes_back_to_a_checkpoint(tmp_path: Path) -> None:
    """The ages are the stored ring's, wherever it stood."""
    kwargs = dict(replay_buffer_class=RecencyReplayBuffer, replay_buffer_kwargs=dict(decay=0.9), buffer_size=30)
    model = small("Pendulum-v1", **kwargs).learn(40, callback=Checkpoint(40, tmp_path))
    np.random.seed(0)
    expected = model.replay_buffer.sample(50).rewards
    model.learn(15, reset_num_timesteps=False)
    model.restore(tmp_path)
    np.random.seed(0)
    assert np.array_equal(model.replay_buffer.sample(50).rewards, expected)


def test_rl_zoo_knows_its_name() -> None:
    from rl_zoo3 import exp_manager

    assert exp_manager.RecencyReplayBuffer is RecencyReplayBuffer
    assert exp_manager.RecencyDictReplayBuffer is RecencyDictReplayBuffer


class TwoEntries(gym.Env):
    """A Dict observation with a 0-d entry, as dm_control's are."""

    observation_space = spaces.Dict({"height": spaces.Box(-1, 1, ()), "vector": spaces.Box(-1, 1, (3,))})
    action_space = spaces.Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        return self.observation_space.sample(), 1.0, False, False, {}


def test_dict_observations() -> None:
    model = small(TwoEntries(), "MultiInputPolicy", replay_buffer_class=RecencyDictReplayBuffer).learn(40)
    batch = model.replay_buffer.sample(8)
    assert batch.observations["height"].shape == (8, 1)
    assert batch.observations["vector"].shape == (8, 3)


def test_dict_observations_need_the_other_class() -> None:
    with pytest.raises(ValueError, match=r"holds no Dict observations: RecencyDictReplayBuffer does\."):
        small(TwoEntries(), "MultiInputPolicy", replay_buffer_class=RecencyReplayBuffer)


class RecencyHer(RecencyWeighted, HerReplayBuffer):
    """Hindsight relabels as it draws: it would not, by age."""


def test_not_with_hindsight() -> None:
    with pytest.raises(ValueError, match="RecencyHer: HerReplayBuffer draws by itself"):
        small(BitFlippingEnv(n_bits=2, continuous=True), "MultiInputPolicy", replay_buffer_class=RecencyHer)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (dict(n_steps=3), r"n_steps=3: RecencyReplayBuffer has no n-step returns\."),
        (dict(decay=0.0), r"decay=0\.0: it must lie in \(0, 1\]"),
        (dict(decay=1.1), r"decay=1\.1: it must lie in \(0, 1\]"),
        (dict(min_weight=-0.1), r"min_weight=-0\.1: it must lie in \[0, 1\]"),
        (dict(min_weight=2.0), r"min_weight=2\.0: it must lie in \[0, 1\]"),
    ],
)
def test_bad_arguments(kwargs: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filled(0, **kwargs)
