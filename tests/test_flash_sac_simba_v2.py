"""FlashSAC and SimbaV2: what belongs to each beyond its networks, by value. The networks are in the parity test."""

import copy
import math
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
import yaml
from gymnasium import spaces
from small import PowerCut, PowerError, small
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import ConstantSchedule, LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

from sb3_cir.baselines.categorical import CategoricalSAC
from sb3_cir.baselines.flash_sac import FlashReturnScale, FlashSAC, RepeatedNoise, UnitBatchNorm, UnitRMSNorm
from sb3_cir.baselines.parts import ReturnScale, UnitLinear, normalise_parameters, project
from sb3_cir.baselines.simba_v2 import LerpBlock, Scaler, SimbaV2, to_sphere
from sb3_cir.callbacks import Checkpoint, NonFiniteGuard
from sb3_cir.methods import METHODS
from sb3_cir.policies import CIRPolicy
from sb3_cir.tasks import of_group

ROOT = Path(__file__).parent.parent
BOTH = pytest.mark.parametrize("model_class", [FlashSAC, SimbaV2])


class Walk(gym.Env):
    """A walk with random starts; episodes end at random or, by the time limit, after 9 steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.state = self.np_random.normal(size=2).astype(np.float32)
        return self.state.copy(), {}

    def step(self, action):
        self.steps += 1
        self.state = np.array([0.9 * self.state[0] + 0.3 * action[0], self.steps], np.float32)
        reward = float(1 - abs(self.state[0]))
        return self.state.copy(), reward, bool(self.np_random.random() < 0.1), self.steps == 9, {}


def build(model_class: type[CategoricalSAC], env: Any = None, **kwargs: Any) -> Any:
    return small(Walk() if env is None else env, model_class=model_class, **kwargs)


class Steps(BaseCallback):
    """Keeps rewards, ends of episodes and actions of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.rewards: list[np.ndarray] = []
        self.dones: list[np.ndarray] = []
        self.noise: list[np.ndarray] = []

    def _on_step(self) -> bool:
        self.rewards.append(self.locals["rewards"].copy())
        self.dones.append(self.locals["dones"].copy())
        if hasattr(self.model, "noise"):
            self.noise.append(self.model.noise.noise.numpy().copy())
        return True


# The categorical critic


def test_projection() -> None:
    """Each probability goes to its two neighbours on the grid, in proportion; beyond the ends it goes to the end."""
    probabilities = th.tensor([[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]], dtype=th.float64)
    values = th.tensor([[-0.5, 0.0, 1.0, 2.5], [-9.0, 9.0, 3.0, 3.0]], dtype=th.float64)  # the grid is -3, -1, 1, 3
    expected = np.zeros((2, 4))
    grid = np.array([-3.0, -1.0, 1.0, 3.0])
    for row in range(2):
        for probability, value in zip(probabilities[row], np.clip(values[row], -3, 3), strict=True):
            expected[row] += probability.item() * np.clip(1 - np.abs(grid - value.item()) / 2, 0, None)
    projected = project(probabilities, values, 3.0)
    np.testing.assert_allclose(projected, expected, atol=1e-12)
    np.testing.assert_allclose(projected[1], [0.25, 0, 0, 0.75], atol=1e-12)


def test_projection_keeps_the_mean() -> None:
    probabilities = th.rand(5, 11, dtype=th.float64).softmax(dim=1)
    values = th.rand(5, 11, dtype=th.float64) * 8 - 4
    grid = th.linspace(-4, 4, 11, dtype=th.float64)
    mean = (project(probabilities, values, 4.0) * grid).sum(dim=1)
    np.testing.assert_allclose(mean, (probabilities * values).sum(dim=1), atol=1e-12)


@BOTH
def test_critic_is_like_sb3s(model_class: type[CategoricalSAC]) -> None:
    """One (batch, 1) tensor for each critic: the mean of its distribution."""
    model = build(model_class)
    observations, actions = th.randn(5, 2), th.rand(5, 1)
    model.critic.set_training_mode(False)
    log_probabilities = model.critic.log_probabilities(observations, actions)
    assert log_probabilities.shape == (2, 5, 101)
    np.testing.assert_allclose(log_probabilities.exp().sum(dim=2).detach(), 1, rtol=1e-5)
    mean = (log_probabilities.exp() * th.linspace(-5, 5, 101)).sum(dim=2)
    for index, q_values in enumerate(model.critic(observations, actions)):
        assert q_values.shape == (5, 1)
        th.testing.assert_close(q_values[:, 0], mean[index])


# Rewards


@pytest.mark.parametrize("scale_class", [ReturnScale, FlashReturnScale])
def test_return_scale(scale_class: type[ReturnScale]) -> None:
    """The variance is that of all running returns; a large one among them counts for more."""
    rng = np.random.default_rng(0)
    rewards, dones = rng.normal(1, 2, (400, 3)), rng.random((400, 3)) < 0.05
    scale, running, returns = scale_class(3, 0.9, 5.0), np.zeros(3), []
    for reward, done in zip(rewards, dones, strict=True):
        scale.update(th.as_tensor(reward), th.as_tensor(done, dtype=th.float64))
        running = 0.9 * running * (1 - done) + reward
        returns.append(running)
    assert scale.largest_return == pytest.approx(np.abs(returns).max())
    assert scale.mean.item() == pytest.approx(np.mean(returns), rel=1e-4)
    assert scale.var.item() == pytest.approx(np.var(returns), rel=1e-3)
    std = scale.var.sqrt().item()
    assert scale.largest_return / 5 < std
    np.testing.assert_allclose(scale(th.tensor([1.0, -2.0])), np.array([1, -2]) / std, rtol=1e-6)
    scale.update(th.tensor([100.0, 0, 0]), th.ones(3))
    np.testing.assert_allclose(scale(th.tensor([100.0])), 5.0, rtol=1e-6)


@BOTH
def test_return_statistics_in_learning(model_class: type[CategoricalSAC]) -> None:
    """Every step of every environment counts once, warm-up included; updates see rewards that are scaled by them."""
    model, steps = build(model_class, DummyVecEnv([Walk] * 3), train_freq=2), Steps()
    model.learn(60, callback=steps)
    expected = type(model.return_scale)(3, model.gamma, 5.0)
    for reward, done in zip(steps.rewards, steps.dones, strict=True):
        expected.update(th.as_tensor(reward, dtype=th.float64), th.as_tensor(done, dtype=th.float64))
    assert round(model.return_scale.count.item()) == 60
    for name, value in expected.state_dict().items():
        np.testing.assert_allclose(model.return_scale.state_dict()[name], value, rtol=1e-12, err_msg=name)
    seen = []
    model._update = lambda batch: seen.append(batch.rewards) or {}
    th.manual_seed(0), np.random.seed(0)
    model.train(1, 16)
    th.manual_seed(0), np.random.seed(0)
    th.testing.assert_close(seen[0], expected(model.replay_buffer.sample(16).rewards))


# Parameters of fixed norm


@BOTH
def test_weights_keep_their_norm(model_class: type[CategoricalSAC]) -> None:
    """After every step those of actor and critics; the target critics follow and have none of their own."""
    model = build(model_class, learning_rate=1e-2).learn(40)
    norms = []
    for module in (*model.actor.modules(), *model.critic.modules()):
        if isinstance(module, UnitLinear):
            norms.append(module.weight.norm(dim=1).flatten())
        elif isinstance(module, UnitBatchNorm):
            squares = module.weight.square() + module.bias.square()
            norms.append(squares.mean(dim=2).sqrt().flatten())
        elif isinstance(module, UnitRMSNorm):
            norms.append(module.weight.square().mean(dim=2).sqrt().flatten())
    np.testing.assert_allclose(th.cat(norms).detach(), 1, rtol=1e-5)
    target = th.cat([m.weight.norm(dim=1).flatten() for m in model.critic_target.modules() if isinstance(m, UnitLinear)])
    assert (target < 1 - 1e-6).any()


def test_norms_of_parameters() -> None:
    """A batch normalisation's scale and shift together, and a linear layer's weights but not its bias."""
    norm, linear = UnitBatchNorm(2, 3), UnitLinear(2, 3, 4, bias=True)
    with th.no_grad():
        norm.weight.copy_(th.tensor([3.0, 0, 0])), norm.bias.copy_(th.tensor([0, 4.0, 0]))
        linear.bias.fill_(7.0)
        linear.weight.mul_(3)
    normalise_parameters(th.nn.ModuleList([norm, linear]))
    np.testing.assert_allclose(norm.weight[0, 0].detach(), np.array([3, 0, 0]) * math.sqrt(3) / 5, rtol=1e-6)
    np.testing.assert_allclose(norm.bias[1, 0].detach(), np.array([0, 4, 0]) * math.sqrt(3) / 5, rtol=1e-6)
    np.testing.assert_allclose(linear.weight.norm(dim=1).detach(), 1, rtol=1e-6)
    assert (linear.bias == 7).all()


# FlashSAC


def test_noise_is_kept() -> None:
    """For as many actions as was drawn, with a probability of n to the power of minus 2."""
    th.manual_seed(0)
    noise = RepeatedNoise(2, 3, 2.0, 16)
    lengths = np.array([noise.draw_length().item() for _ in range(4000)])
    weights = np.arange(1.0, 17) ** -2
    np.testing.assert_allclose(np.bincount(lengths, minlength=17)[1:] / 4000, weights / weights.sum(), atol=0.02)
    noise.draw_length = lambda: th.tensor(3)
    drawn = [noise().clone() for _ in range(7)]
    assert th.equal(drawn[0], drawn[2])
    assert th.equal(drawn[3], drawn[5])
    assert not (drawn[2] == drawn[3]).any()
    assert not (drawn[5] == drawn[6]).any()


def test_noise_in_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is acted is tanh(mean + std noise) with the noise that is kept; predict() leaves it as it is."""
    model, steps = build(FlashSAC, DummyVecEnv([Walk] * 2)), Steps()
    monkeypatch.setattr(RepeatedNoise, "draw_length", lambda _: th.tensor(4))
    model.learn(20, callback=steps)
    assert not np.any(steps.noise)  # random actions
    model.learn(16, callback=steps, reset_num_timesteps=False)
    kept = steps.noise[10:]
    assert all((kept[i] == kept[0]).all() for i in range(4))
    assert not (kept[4] == kept[3]).any()
    before = copy.deepcopy(model.noise.state_dict())
    observations = model._last_obs
    model.predict(observations)
    assert all(th.equal(value, before[name]) for name, value in model.noise.state_dict().items())
    action, stored = model._sample_action(0, None, 2)
    mean, log_std, _ = model.actor.get_action_dist_params(th.as_tensor(observations))
    expected = th.tanh(mean + log_std.exp() * model.noise.noise).detach()
    np.testing.assert_allclose(stored, expected, atol=1e-6)
    np.testing.assert_allclose(action, 2 * expected, atol=1e-6)


def test_actor_every_other_update() -> None:
    model = build(FlashSAC).learn(24)
    actor_steps, critic_steps = (
        next(iter(each.optimizer.state.values()))["step"].item() for each in (model.actor, model.critic)
    )
    assert (actor_steps, critic_steps) == (2, 4)


def test_target_entropy() -> None:
    """That of a Gaussian with a standard deviation of 0.15 for each action; SimbaV2's is minus half their number."""
    assert build(FlashSAC).target_entropy == pytest.approx(th.distributions.Normal(0.0, 0.15).entropy().item(), rel=1e-5)
    assert build(SimbaV2).target_entropy == -0.5


def test_both_halves_are_normalised_together() -> None:
    """The critics' batch statistics are those of current and next observations and actions in one pass."""
    model = build(FlashSAC).learn(30)
    batch = model.replay_buffer.sample(16)
    norm = model.critic.q_network[0][0]
    model._set_modes(of_actor=False)
    before = norm.running_mean.clone()
    next_actions = th.rand(16, 1)
    model._log_probabilities(batch, next_actions)
    rows = th.cat([th.cat([batch.observations, batch.actions], 1), th.cat([batch.next_observations, next_actions], 1)])
    th.testing.assert_close(norm.running_mean[0, 0], before[0, 0].lerp(rows.mean(dim=0), 0.01))


# SimbaV2


def test_lerp() -> None:
    """It starts as ``to_sphere(x + (y - x) / 3)`` with two blocks; its parameter is kept at ``1 / sqrt(width)``."""
    th.manual_seed(0)
    block = LerpBlock(1, 4, init=1 / 3)
    np.testing.assert_allclose(block.lerp.weight.detach(), 0.5)
    x = to_sphere(th.randn(1, 5, 4))
    hidden = math.sqrt(2 / 4) / 2 * (x[0] @ block.linear1.weight[0])
    y = to_sphere(hidden.clamp(min=0) @ block.linear2.weight[0])
    th.testing.assert_close(block(x)[0], to_sphere(x[0] + (y - x[0]) / 3), atol=1e-6, rtol=0)
    np.testing.assert_allclose(block(x).norm(dim=2).detach(), 1, rtol=1e-6)


def test_scaler_learns_at_the_pace_of_its_scale() -> None:
    scaler = Scaler(1, 3, init=0.5, scale=0.1)
    x = th.randn(1, 2, 3)
    th.testing.assert_close(scaler(x), 0.5 * x)
    with th.no_grad():
        scaler.weight += 0.01
    th.testing.assert_close(scaler(x), 0.55 * x)


def test_shift_keeps_the_length() -> None:
    """Two observations of one direction are told apart."""
    embedding = build(SimbaV2).actor.latent_pi[0]
    x = th.randn(1, 1, 2)
    assert not th.allclose(embedding(x), embedding(2 * x), atol=1e-3)
    embedding.shift = 0.0
    th.testing.assert_close(embedding(x), embedding(2 * x))


def test_observations_are_normalised() -> None:
    """By the statistics of every observation that was acted on, which actor, critics and target critics share."""
    model = build(SimbaV2).learn(60)
    norm = model.actor.features_extractor
    assert norm is model.critic.features_extractor is model.critic_target.features_extractor
    assert norm.count == 60
    np.testing.assert_allclose(norm.mean, model.replay_buffer.observations[:60, 0].mean(axis=0), rtol=1e-5)


def test_number_of_critics_and_discount() -> None:
    assert build(SimbaV2).critic.n_critics == 2
    assert build(SimbaV2, episodic=False).critic.n_critics == 1
    assert build(SimbaV2).gamma == 0.99  # no time limit is known
    assert build(SimbaV2, "Pendulum-v1").gamma == 0.975


# The learning rate


def rates(model: Any, n_steps: int) -> list[float]:
    return [model._learning_rate(n) for n in (0, n_steps // 4, n_steps, 2 * n_steps)]


def test_learning_rate_falls() -> None:
    """SimbaV2's on a line, FlashSAC's along half a cosine, over the updates of so many steps."""
    line, cosine = build(SimbaV2, decay_timesteps=100), build(FlashSAC, decay_timesteps=200)
    np.testing.assert_allclose(rates(line, 200), [1e-4, 0.875e-4, 0.5e-4, 0.5e-4])  # two updates a step
    quarter = 1.5e-4 * (1 + (1 + math.cos(math.pi / 4)) / 2)
    np.testing.assert_allclose(rates(cosine, 200), [3e-4, quarter, 1.5e-4, 1.5e-4])
    several = build(SimbaV2, DummyVecEnv([Walk] * 4), decay_timesteps=100, train_freq=5, gradient_steps=10)
    assert several._planned_updates() == 50
    schedule = build(SimbaV2, decay_timesteps=100, learning_rate=LinearSchedule(1.0, 0.0, 1.0))
    np.testing.assert_allclose(rates(schedule, 200), [1, 0.75, 0, 0])


@BOTH
def test_another_learning_rate_falls_to_half_of_it(model_class: type[CategoricalSAC]) -> None:
    """RL Zoo makes a schedule of each number that it is given, which is no schedule of a user's."""
    for rate in (1e-5, ConstantSchedule(1e-5)):
        model = build(model_class, decay_timesteps=100, learning_rate=rate)
        assert [model._learning_rate(n) for n in (0, 1000)] == [1e-5, 0.5e-5]
    model = build(model_class, decay_timesteps=100, learning_rate=1e-5, learning_rate_end=1e-4)
    assert [model._learning_rate(n) for n in (0, 1000)] == [1e-5, 1e-5]


@BOTH
def test_loaded_as_rl_zoo_does_to_play(model_class: type[CategoricalSAC], tmp_path: Path) -> None:
    build(model_class, learning_rate_end=1e-5).save(tmp_path / "model")
    given = {"learning_rate": 0.0, "lr_schedule": lambda _: 0.0, "clip_range": lambda _: 0.0}
    model = model_class.load(tmp_path / "model", custom_objects=given, device="cpu")
    assert model._learning_rate(0) == 0


@BOTH
def test_a_schedule_that_was_put_in_the_place_of_its_own(model_class: type[CategoricalSAC]) -> None:
    """As with SAC: it counts, and does not fall by itself."""
    model = build(model_class, gradient_steps=1, learning_starts=10)
    model.lr_schedule = lambda remaining: 1e-5 if remaining > 0.5 else 2e-5
    model.learn(50)
    assert {group["lr"] for group in model.critic.optimizer.param_groups} == {2e-5}


@BOTH
def test_learning_rate_in_learning(model_class: type[CategoricalSAC]) -> None:
    """Without more said it falls over the run; each optimiser counts its own steps."""
    model = build(model_class, gradient_steps=1, learning_starts=10).learn(50)
    n_last = model._n_updates - 1
    assert n_last == 39
    optimizers = (model.critic.optimizer, model.actor.optimizer, model.ent_coef_optimizer)
    expected = [model._learning_rate(n) for n in (n_last, n_last // model.policy_delay, n_last // model.policy_delay)]
    assert [each.param_groups[0]["lr"] for each in optimizers] == expected
    assert model._planned_updates() == 50


@BOTH
def test_a_second_run_says_that_the_learning_rate_has_fallen(model_class: type[CategoricalSAC]) -> None:
    model = build(model_class, gradient_steps=1, learning_starts=10, learning_rate=1.0, learning_rate_end=0.0).learn(50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(20, reset_num_timesteps=False)
        build(model_class, decay_timesteps=100).learn(50).learn(50)
    with pytest.warns(UserWarning, match=r"a learning rate of \S+: it falls over 70 updates from .* of which 60 are made"):
        model.learn(70)


@BOTH
def test_nan_shows_in_the_loss(model_class: type[CategoricalSAC], tmp_path: Path) -> None:
    """The second of two updates of one call sees an actor that the first has broken; the guard then says so."""
    model = build(model_class, gradient_steps=2, train_freq=2)
    update = model._update

    def broken(batch: Any) -> dict[str, th.Tensor]:
        scalars = update(batch)
        if model.num_timesteps >= 30:
            next(model.actor.latent_pi.parameters()).data.fill_(math.nan)
        return scalars

    model._update = broken
    with pytest.raises(ValueError, match="nan in train/"):
        model.learn(60, callback=NonFiniteGuard(tmp_path))


@BOTH
def test_a_policy_of_another_algorithm(model_class: type[CategoricalSAC]) -> None:
    with pytest.raises(ValueError, match=f"policy=CIRPolicy: {model_class.__name__} needs a policy whose critic is"):
        build(model_class, policy=CIRPolicy)


# What is refused, saved, resumed


@BOTH
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (dict(use_sde=True), "has no gSDE"),
        (dict(train_freq=(1, "episode")), "over which the learning rate falls"),
        (dict(learning_rate_end=-1.0), "learning_rate_end=-1.0: it must not be negative"),
        (dict(decay_timesteps=0), "decay_timesteps=0: it must be 'auto' or a positive number"),
        (dict(policy_kwargs=dict(n_bins=1)), "n_bins=1: it must be a whole number of at least 2"),
        (dict(policy_kwargs=dict(largest_value=0)), "largest_value=0: it must be positive"),
        (dict(policy_kwargs=dict(largest_value=math.inf)), "largest_value=inf: it must be positive and finite"),
        (dict(policy_kwargs=dict(net_arch=[8, 16])), "one width for each residual block"),
        (dict(policy_kwargs=dict(net_arch=[])), "one width for each residual block"),
        (dict(policy_kwargs=dict(n_critics=0)), "n_critics=0: at least 1 critic"),
    ],
)
def test_refused(model_class: type[CategoricalSAC], arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build(model_class, **arguments)


@BOTH
def test_rounds_of_an_episode_with_a_rate_that_does_not_fall(model_class: type[CategoricalSAC]) -> None:
    rate = dict(learning_rate=1e-4, learning_rate_end=1e-4)
    model = build(model_class, train_freq=(1, "episode"), gradient_steps=2, **rate).learn(60)
    assert model._n_updates > 0
    assert model.critic.optimizer.param_groups[0]["lr"] == 1e-4


@pytest.mark.parametrize(
    "arguments", [dict(policy_delay=0), dict(noise_longest=1.5), dict(target_std=0.0)], ids=lambda each: next(iter(each))
)
def test_refused_by_flash_sac(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(arguments))}="):
        build(FlashSAC, **arguments)


@BOTH
@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (spaces.Dict(a=spaces.Box(-1, 1, (2,))), "a Dict"),
        (spaces.Box(0, 255, (36, 36, 3), np.uint8), "an image"),
        (spaces.Discrete(3), "a Discrete"),
    ],
)
def test_observations_that_are_refused(model_class: type[CategoricalSAC], space: spaces.Space, kind: str) -> None:
    class Other(Walk):
        observation_space = space

    with pytest.raises(ValueError, match=f"{model_class.__name__} takes flat observations, not {kind}"):
        build(model_class, Other())


@BOTH
def test_saved_and_loaded(model_class: type[CategoricalSAC], tmp_path: Path) -> None:
    """All of it without a pickle: networks, statistics, noise, arguments; what is loaded learns on."""
    model = build(model_class, decay_timesteps=500, policy_kwargs=dict(n_bins=11, largest_value=3.0)).learn(40)
    model.save(tmp_path / "model")
    loaded = model_class.load(tmp_path / "model", env=Walk(), device="cpu", trusted=False)
    ours, theirs = model.get_parameters(), loaded.get_parameters()
    assert ours.keys() == theirs.keys() >= {"policy", "return_scale"}
    for name in ("policy", "return_scale", *({"noise"} & ours.keys())):
        assert all(th.equal(value, theirs[name][key]) for key, value in ours[name].items())
    assert (loaded.decay_timesteps, loaded.gamma, loaded.target_entropy) == (500, model.gamma, model.target_entropy)
    observations = np.zeros((3, 2), np.float32)
    np.testing.assert_array_equal(*(each.predict(observations, deterministic=True)[0] for each in (model, loaded)))
    loaded.learn(40)
    model.policy.save(tmp_path / "policy")
    policy = type(model.policy).load(tmp_path / "policy", device="cpu")
    assert all(th.equal(value, policy.state_dict()[name]) for name, value in model.policy.state_dict().items())


@BOTH
@pytest.mark.parametrize("trusted", [True, False])
def test_loaded_with_other_environments(model_class: type[CategoricalSAC], trusted: bool, tmp_path: Path) -> None:
    """More or fewer of them: statistics stay, the running returns and the noise of each begin anew."""
    model = build(model_class, DummyVecEnv([Walk] * 3)).learn(60)
    model.save(tmp_path / "model")
    ours = model.get_parameters()
    for n_envs in (1, 5):
        env = DummyVecEnv([Walk] * n_envs)
        loaded = model_class.load(tmp_path / "model", env=env, device="cpu", trusted=trusted)
        theirs = loaded.get_parameters()
        assert all(th.equal(value, theirs["policy"][name]) for name, value in ours["policy"].items())
        for name, value in theirs["return_scale"].items():
            assert th.equal(value, th.zeros(n_envs) if name == "returns" else ours["return_scale"][name]), name
        if "noise" in theirs:
            assert theirs["noise"]["noise"].shape == (n_envs, 1)
            assert theirs["noise"]["left"] == 0
        loaded.learn(20, reset_num_timesteps=False)
        assert loaded._n_updates > model._n_updates

    other = build(model_class)
    other.set_parameters(str(tmp_path / "model.zip"))
    assert th.equal(other.return_scale.var, model.return_scale.var)
    assert other.return_scale.returns.tolist() == [0]


class Endless(Walk):
    def step(self, action):
        observation, reward, *_ = super().step(action)
        return observation, reward, False, False, {}


@BOTH
def test_no_return_goes_over_into_another_episode(model_class: type[CategoricalSAC], tmp_path: Path) -> None:
    """Where one is cut off: by a second run, by a checkpoint, and when a run is resumed."""

    def check(model: Any, alike: bool = True) -> None:
        newest = model.replay_buffer.rewards[model.replay_buffer.pos - 1]
        assert np.allclose(model.return_scale.returns, newest) == alike

    model = build(model_class, Endless(), learning_starts=1000).learn(10)
    check(model.learn(1, reset_num_timesteps=False), alike=False)
    check(model.learn(1))
    model = build(model_class, Endless(), learning_starts=1000)
    with pytest.raises(PowerError):
        model.learn(20, callback=[Checkpoint(10, tmp_path / "a", restart_episodes=True), PowerCut(12)])
    check(model)
    build(model_class, Endless(), learning_starts=1000).learn(10, callback=Checkpoint(10, tmp_path / "b"))
    check(model_class.resume(tmp_path / "b", Endless()).learn(11))


@BOTH
def test_resumed_to_the_bit(model_class: type[CategoricalSAC], tmp_path: Path) -> None:
    """In the midst of noise that is kept, between two updates of the actor, with two environments."""
    make = lambda: build(model_class, DummyVecEnv([Walk] * 2))  # noqa: E731
    whole = make().learn(120, callback=Checkpoint(30, tmp_path / "whole", restart_episodes=True))
    with pytest.raises(PowerError):
        make().learn(120, callback=[Checkpoint(30, tmp_path / "killed", restart_episodes=True), PowerCut(75)])
    th.manual_seed(1), np.random.seed(1)
    model = model_class.resume(tmp_path / "killed", DummyVecEnv([Walk] * 2), device="cpu")
    assert model.num_timesteps == 60
    model.learn(120, callback=Checkpoint(30, tmp_path / "killed", restart_episodes=True))
    ours, theirs = whole.get_parameters(), model.get_parameters()
    for name, state in ours.items():
        if "optimizer" not in name:
            assert all(th.equal(value, theirs[name][key]) for key, value in state.items()), name
    assert th.equal(whole.log_ent_coef, model.log_ent_coef)
    assert whole.critic.optimizer.param_groups[0]["lr"] == model.critic.optimizer.param_groups[0]["lr"]
    np.testing.assert_array_equal(whole.replay_buffer.actions, model.replay_buffer.actions)


# RL Zoo's files


@pytest.mark.parametrize(("algo", "model_class", "repeat"), [("flash_sac", FlashSAC, 1), ("simba_v2", SimbaV2, 2)])
def test_yaml(algo: str, model_class: type[CategoricalSAC], repeat: int) -> None:
    """All tasks, with the paper's budgets on DMC and the authors' on HumanoidBench; no argument is misspelt."""
    hyperparams = yaml.safe_load((ROOT / "hyperparams" / f"{algo}.yml").read_text())
    assert (METHODS[algo].action_repeat or 2) == repeat
    for task in of_group("dmc_easy_medium", "dmc_hard", "humanoid_bench"):
        entry = dict(hyperparams[task.env_id])
        steps = 1_000_000 if task.group == "humanoid_bench" else task.env_steps
        assert entry.pop("n_timesteps") * repeat == steps
        # The authors' runs have a million steps on all tasks. The learning rate falls over them, also in a grid's longer runs.
        assert entry["decay_timesteps"] * repeat == 1_000_000
        assert entry.pop("env_wrapper") == f"sb3_cir.envs.{'FlatFloat32' if repeat == 1 else 'paper_protocol'}"
        if algo == "simba_v2":
            assert entry.get("episodic", True) == (task.group == "humanoid_bench")
    model_class(env="Pendulum-v1", device="cpu", **entry | dict(buffer_size=10))


def test_steps_of_a_grid(tmp_path: Path) -> None:
    """FlashSAC's steps are those of the simulator."""
    pytest.importorskip("pandas", reason="needs the benchmarks extra")
    jobs = pytest.importorskip("benchmarks.jobs", reason="needs a checkout")
    (task,) = (each for each in of_group("dmc_hard") if each.name == "dog-run")
    found = {name: jobs.Job(jobs.method(name), task, 0, tmp_path) for name in ("flash_sac", "simba_v2")}
    assert {name: job.agent_steps for name, job in found.items()} == {"flash_sac": 1_000_000, "simba_v2": 500_000}
    assert {job.env_steps for job in found.values()} == {1_000_000}


class Normed(FlattenExtractor):
    """With batch normalisation."""

    def __init__(self, observation_space: spaces.Box):
        super().__init__(observation_space)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.norm(super().forward(observations))


def test_running_statistics_of_the_target() -> None:
    """Those of a features extractor are the critics', as in SAC."""
    extractor = dict(features_extractor_class=Normed, share_features_extractor=False)
    model = build(SimbaV2, policy_kwargs=extractor).learn(40)
    ours, target = model.critic.features_extractor.norm, model.critic_target.features_extractor.norm
    assert ours.running_mean.abs().max() > 0
    th.testing.assert_close(target.running_mean, ours.running_mean)
    th.testing.assert_close(target.running_var, ours.running_var)


def test_target_std_is_settled(tmp_path: Path) -> None:
    build(FlashSAC, target_std=0.2).save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"target_std: the model was made with 0.2, it cannot be changed\."):
        FlashSAC.load(tmp_path / "model", device="cpu", target_std=0.01)
