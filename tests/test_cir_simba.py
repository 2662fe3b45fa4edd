"""CIR in SimBa's setting. That it is the arm that was measured is in the screen's test."""

import copy
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from small import PowerCut, PowerError, small
from stable_baselines3 import SAC
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

from sb3_cir import CIR
from sb3_cir.baselines import FlashSAC, SimBa
from sb3_cir.baselines.simba import RSNorm, SimbaActor
from sb3_cir.buffers import RecencyReplayBuffer, SymmetricReplayBuffer
from sb3_cir.callbacks import Checkpoint
from sb3_cir.cir_simba import CIRSimBa, CIRSimBaPolicy
from sb3_cir.policies import DictExtractor
from sb3_cir.runs import rows
from sb3_cir.smr import SMR
from sb3_cir.update import temperature


class Shifted(gym.Env):
    """Observations far from 0, in a Box, a Dict or an image; every episode has 8 steps."""

    action_space = spaces.Box(-1, 1, (2,))

    def __init__(self, space: spaces.Space | None = None):
        self.observation_space = spaces.Box(-100, 100, (3,)) if space is None else space

    def _observe(self) -> Any:
        if not isinstance(self.observation_space, spaces.Box) or self.observation_space.dtype == np.uint8:
            return self.observation_space.sample()
        return (50 + 3 * self.np_random.normal(size=3)).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        return self._observe(), float(action[0]), False, self.steps == 8, {}


def build(env: Any = None, **kwargs: Any) -> CIRSimBa:
    return small(Shifted() if env is None else env, model_class=CIRSimBa, **kwargs)


def test_differs_from_cir_as_it_says() -> None:
    """The actor, the learning rate, the temperature, what observations go through, and the steps of a return."""
    ours, cir, simba = build(), small(Shifted()), small(Shifted(), model_class=SimBa)
    assert (temperature(ours).item(), ours.target_entropy) == (pytest.approx(0.01), -1.0)
    assert (temperature(cir).item(), cir.target_entropy) == (1.0, -2.0)
    assert (ours.n_steps, ours.replay_buffer.n_steps, cir.n_steps) == (3, 3, 1)
    assert ours.learning_rate == simba.learning_rate == 1e-4
    for name in ("sample_reuse", "convex_coef", "gamma", "tau", "batch_size", "precision", "compile"):
        assert getattr(ours, name) == getattr(cir, name), name
    assert repr(ours.critic.q_network) == repr(cir.critic.q_network)
    assert repr(ours.actor) == repr(simba.actor)
    obs, actions = th.randn(4, 3), th.rand(4, 2)
    ours.critic.load_state_dict(cir.critic.state_dict(), strict=False)
    # Nothing was counted yet: the mean is 0 and the variance 1.
    th.testing.assert_close(ours.critic(obs, actions), cir.critic(obs, actions))


def test_sizes_are_simbas_actors_and_the_papers_critics() -> None:
    model = CIRSimBa("MlpPolicy", Shifted(), buffer_size=10, device="cpu")
    paper = CIR("MlpPolicy", Shifted(), buffer_size=10, device="cpu")
    simba = SimBa("MlpPolicy", Shifted(), buffer_size=10, device="cpu")
    assert repr(model.critic.q_network) == repr(paper.critic.q_network)
    assert repr(model.actor) == repr(simba.actor)


@pytest.mark.parametrize("given", [dict(actor_network="ActorLN"), dict(activation_fn=nn.Tanh)])
def test_the_actor_is_simbas(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"CIRSimBaPolicy takes none"):
        build(policy_kwargs=given)
    build().policy.save(tmp_path / "policy")
    assert isinstance(CIRSimBaPolicy.load(tmp_path / "policy", device="cpu").actor, SimbaActor)


def test_in_sac() -> None:
    """SimBa's actor gives the statistics the batches that it sees."""
    model = small(Shifted(), CIRSimBaPolicy, SAC).learn(30)
    assert model.actor.features_extractor.count == 2 * 10 * 16


def test_steps_of_a_return(tmp_path: Path) -> None:
    """Three where SB3 has n-step returns. A model keeps what it was made with."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build(Shifted(spaces.Dict(a=spaces.Box(-1, 1, (2,)))), policy="MultiInputPolicy").n_steps == 1
        recent = build(replay_buffer_class=RecencyReplayBuffer)
        assert (recent.n_steps, type(recent.replay_buffer)) == (1, RecencyReplayBuffer)
        kwargs: dict[str, Any] = dict(handle_timeout_termination=False)
        assert build(optimize_memory_usage=True, replay_buffer_kwargs=kwargs).n_steps == 1
        assert build(replay_buffer_kwargs=kwargs).n_steps == 3
        assert kwargs == dict(handle_timeout_termination=False)
        five = build(n_steps=5).learn(30)
        assert five.replay_buffer.sample(64).discounts.min().item() == pytest.approx(0.99**5)
    five.save(tmp_path / "model")
    for trusted in (True, False):
        loaded = CIRSimBa.load(tmp_path / "model", env=Shifted(), device="cpu", trusted=trusted)
        assert (loaded.n_steps, loaded.replay_buffer.n_steps) == (5, 5)
    with pytest.raises(ValueError, match=r"n_steps='three': it must be a number of at least 1 or 'auto'\."):
        build(n_steps="three")


def test_returns_become_shorter(tmp_path: Path) -> None:
    """After so many updates, also in a run that goes on; the rows that are stored serve both."""
    model = build(long_return_updates=20)
    model.learn(30)
    assert (model._n_updates, model.replay_buffer.n_steps) == (20, 3)
    model.learn(5, callback=Checkpoint(5, tmp_path / "run"), reset_num_timesteps=False)
    assert model.replay_buffer.n_steps == 1
    assert model.replay_buffer.sample(64).discounts.unique().tolist() == [pytest.approx(0.99)]
    model.save(tmp_path / "model")
    loaded = CIRSimBa.load(tmp_path / "model", env=Shifted(), device="cpu")
    for other in (loaded, CIRSimBa.resume(tmp_path / "run", Shifted())):
        assert (other.long_return_updates, other.n_steps) == (20, 3)
        other.learn(40)
        assert other.replay_buffer.n_steps == 1
    assert build(long_return_updates=None).learn(60).replay_buffer.n_steps == 3
    pair: dict[str, Any] = dict(replay_buffer_class=SymmetricReplayBuffer, replay_buffer_kwargs=dict(n_steps=3, gamma=0.99))
    of_both = build(long_return_updates=20, learning_starts=0, **pair)
    of_both.replay_buffer.offline = copy.deepcopy(model.replay_buffer)
    of_both.replay_buffer.offline.n_steps = 3
    of_both.learn(8)
    assert [each.n_steps for each in rows.parts_of(of_both).values()] == [3, 3]
    of_both.learn(20, reset_num_timesteps=False)
    assert [each.n_steps for each in rows.parts_of(of_both).values()] == [1, 1]
    with pytest.raises(ValueError, match="long_return_updates=-1: it must be a whole number of at least 0"):
        build(long_return_updates=-1)


@pytest.mark.parametrize("n_envs", [1, 3])
def test_observations_are_normalised(n_envs: int) -> None:
    """By the statistics of every observation that was acted on, which actor, critics and target critics share."""
    model = build(DummyVecEnv([Shifted] * n_envs)).learn(60)
    norm = model.actor.features_extractor
    assert norm is model.critic.features_extractor is model.critic_target.features_extractor
    assert norm.count == 60
    observations = model.replay_buffer.observations[: 60 // n_envs].reshape(-1, 3)
    np.testing.assert_allclose(norm.mean, observations.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(norm.var, observations.var(axis=0), rtol=1e-4)
    with th.no_grad():
        assert norm(th.as_tensor(observations)).abs().mean() < 1.5
    before = norm.count.clone()
    model.predict(observations)
    assert norm.count == before


@pytest.mark.parametrize(
    ("policy", "space"),
    [
        ("MultiInputPolicy", spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(3))),
        ("CnnPolicy", spaces.Box(0, 255, (36, 36, 3), np.uint8)),
    ],
)
def test_dicts_and_images(policy: str, space: spaces.Space) -> None:
    model = build(Shifted(space), policy=policy).learn(30)
    assert model._n_updates == 20
    if policy == "MultiInputPolicy":
        assert model.actor.features_extractor.mean.shape == (5,)
        assert model.actor.features_extractor.count == 30


@pytest.mark.parametrize("model_class", [CIRSimBa, SimBa])
def test_the_critics_have_a_network_for_images_of_their_own(model_class: type[SMR]) -> None:
    widths = [16, 16] if model_class is SimBa else [16]
    space = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    model = small(Shifted(space), "CnnPolicy", model_class, policy_kwargs=dict(net_arch=widths))
    own = {id(parameter) for parameter in model.critic.features_extractor.parameters()}
    assert own
    assert own <= {id(parameter) for group in model.critic.optimizer.param_groups for parameter in group["params"]}


def test_images_in_a_dict_need_a_network() -> None:
    space = spaces.Dict(a=spaces.Box(-1, 1, (2,)), image=spaces.Box(0, 255, (36, 36, 3), np.uint8))
    with pytest.raises(ValueError, match=r"no network for images \(image\)"):
        build(Shifted(space), policy="MultiInputPolicy")
    build(Shifted(space), policy="MultiInputPolicy", policy_kwargs=dict(features_extractor_class=DictExtractor)).learn(30)


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = build(gamma=0.9, policy_kwargs=dict(avg_r_norm_coef=0.4)).learn(40)
    model.save(tmp_path / "model")
    loaded = CIRSimBa.load(tmp_path / "model", env=Shifted(), device="cpu", trusted=False)
    ours, theirs = model.policy.state_dict(), loaded.policy.state_dict()
    assert all(th.equal(value, theirs[name]) for name, value in ours.items())
    assert loaded.actor.features_extractor is loaded.critic_target.features_extractor
    assert loaded.actor.features_extractor.count == 40
    assert (loaded.gamma, loaded.target_entropy, loaded.policy.avg_r_norm_coef) == (0.9, -1.0, 0.4)
    observations = np.full((3, 3), 50, np.float32)
    np.testing.assert_array_equal(*(each.predict(observations, deterministic=True)[0] for each in (model, loaded)))
    loaded.learn(30, reset_num_timesteps=False)
    assert loaded.actor.features_extractor.count == 70
    with pytest.raises(ValueError, match="CIRSimBa"):
        CIR.load(tmp_path / "model", env=Shifted(), device="cpu", trusted=False)


def test_resumed_to_the_bit(tmp_path: Path) -> None:
    def callback(name: str) -> Checkpoint:
        return Checkpoint(30, tmp_path / name, restart_episodes=True)

    whole = build().learn(120, callback=callback("whole"))
    with pytest.raises(PowerError):
        build().learn(120, callback=[callback("killed"), PowerCut(75)])
    model = CIRSimBa.resume(tmp_path / "killed", Shifted(), device="cpu")
    assert model.num_timesteps == 60
    model.learn(120, callback=callback("killed"))
    ours, theirs = whole.policy.state_dict(), model.policy.state_dict()
    assert all(th.equal(value, theirs[name]) for name, value in ours.items())
    assert th.equal(whole.log_ent_coef, model.log_ent_coef)


@pytest.mark.parametrize("model_class", [CIR, FlashSAC])
def test_statistics_that_nothing_would_fill(model_class: type) -> None:
    with pytest.raises(ValueError, match=rf"RSNorm: a {model_class.__name__} counts no observations"):
        small(Shifted(), model_class=model_class, policy_kwargs=dict(features_extractor_class=RSNorm))


def test_statistics_must_be_shared() -> None:
    with pytest.raises(ValueError, match="share_features_extractor=False: actor and critics must share the statistics"):
        build(policy_kwargs=dict(share_features_extractor=False))
