"""SimBa: its network against the original's equations, its statistics, its update, and its policy in SAC and TQC."""

import copy
import math
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import ConstantSchedule
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper
from torch import nn
from torch.nn import functional as F

from sb3_cir.baselines import SimBa, SimbaPolicy, SimBaSMR, SimbaV2
from sb3_cir.baselines.simba import ResidualBlock, RSNorm, episode_steps, horizon_discount, simba_encoder
from sb3_cir.callbacks import Checkpoint
from sb3_cir.cir_simba import CIRSimBa

SMALL = dict(pi=[8], qf=[16, 16])


def build(model_class: type[BaseAlgorithm] = SimBa, policy: Any = "MlpPolicy", env: Any = "Pendulum-v1", **kwargs: Any) -> Any:
    policy_kwargs = dict(net_arch=SMALL) | kwargs.pop("policy_kwargs", {})
    defaults = dict(learning_starts=20, batch_size=16, buffer_size=500, seed=0, device="cpu")
    return model_class(policy, env, policy_kwargs=policy_kwargs, **defaults | kwargs)


def statistics(model: BaseAlgorithm) -> RSNorm:
    return model.policy.actor.features_extractor


class Record(BaseCallback):
    """Keep every observation that the model acts on."""

    def __init__(self) -> None:
        super().__init__()
        self.observations: list[np.ndarray] = []

    def _on_rollout_start(self) -> None:
        self.observations.append(self.model._last_obs.copy())

    def _on_step(self) -> bool:
        return True


def test_paper_size() -> None:
    """Actor: one block of 128; critic: two of 512; as many parameters as layers of these sizes have."""
    policy = SimbaPolicy(spaces.Box(-1, 1, (24,)), spaces.Box(-1, 1, (6,)), ConstantSchedule(1e-4), n_critics=1)

    def encoder(inputs: int, width: int, blocks: int) -> int:
        block = 2 * width + width * 4 * width + 4 * width + 4 * width * width + width
        return (inputs + 1) * width + blocks * block + 2 * width

    count = [sum(parameter.numel() for parameter in network.parameters()) for network in (policy.actor, policy.critic)]
    assert count == [encoder(24, 128, 1) + 2 * 129 * 6, encoder(30, 512, 2) + 513]


def test_encoder() -> None:
    """Linear, then ``x + W2 ReLU(W1 LN(x))`` for each block, then LN."""
    th.manual_seed(0)
    encoder = simba_encoder(3, [8, 8], "qf").double()
    with th.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.1 * th.randn_like(parameter))
    observations = th.randn(5, 3, dtype=th.float64, requires_grad=True)
    x = F.linear(observations, encoder[0].weight, encoder[0].bias)
    for block in encoder[1:3]:
        assert isinstance(block, ResidualBlock)
        norm, wide, _, narrow = block.branch
        assert wide.out_features == 32
        normalised = F.layer_norm(x, (8,), norm.weight, norm.bias, 1e-6)
        x = x + (normalised @ wide.weight.T + wide.bias).clamp(min=0) @ narrow.weight.T + narrow.bias
    expected = F.layer_norm(x, (8,), encoder[3].weight, encoder[3].bias, 1e-6)
    np.testing.assert_allclose(encoder(observations).detach(), expected.detach(), atol=1e-6)
    assert th.autograd.gradcheck(encoder, observations)


def test_initialisation() -> None:
    """Orthogonal of gain 1 at both ends, He's truncated normal in the blocks, zero biases."""
    th.manual_seed(0)
    policy = SimbaPolicy(spaces.Box(-1, 1, (24,)), spaces.Box(-1, 1, (6,)), ConstantSchedule(1e-4))
    q_network = policy.critic.q_networks[0]
    for layer in (q_network[0][0], q_network[1], policy.actor.latent_pi[0], policy.actor.mu, policy.actor.log_std):
        weight = layer.weight.detach() if layer.in_features > layer.out_features else layer.weight.detach().T
        np.testing.assert_allclose(weight @ weight.T, np.eye(len(weight)), atol=1e-5)
    for block in q_network[0][1:3]:
        for layer in (block.branch[1], block.branch[3]):
            std = math.sqrt(2 / layer.in_features)
            assert layer.weight.std().item() == pytest.approx(std, rel=0.01)
            assert layer.weight.abs().max() <= 2 * std / 0.8796 + 1e-6
    assert not any(layer.bias.any() for layer in policy.modules() if isinstance(layer, nn.Linear))


def test_actor() -> None:
    """log_std is squeezed into [-10, 2], not cut; the log-probability is exact."""
    actor = build().policy.actor
    observations = th.randn(4, 3)
    with th.no_grad():
        actor.log_std.bias.fill_(0.5)
        latent = actor.latent_pi(observations)
        mean, log_std, _ = actor.get_action_dist_params(observations)
        np.testing.assert_allclose(mean, actor.mu(latent))
        np.testing.assert_allclose(log_std, -10 + 6 * (1 + np.tanh(actor.log_std(latent))), rtol=1e-6)
        actor.mu.bias.fill_(30.0)
        _, log_prob = actor.action_log_prob(observations)
    assert (log_prob > 40).all()


def test_statistics_are_of_all_observations() -> None:
    """However they come in: one at a time, in batches, far from zero."""
    observations = 1e4 + th.randn(1000, 3, generator=th.Generator().manual_seed(0)) * th.tensor([1.0, 2.0, 3.0])
    norm = RSNorm(spaces.Box(-np.inf, np.inf, (3,)))
    assert th.equal(norm.eval()(observations), observations)
    for batch in (*observations[:300].split(1), observations[300:]):
        norm.update(batch)
    exact = observations.double()
    np.testing.assert_allclose(norm.mean, exact.mean(dim=0), rtol=1e-9)
    np.testing.assert_allclose(norm.var, exact.var(dim=0, correction=0), rtol=1e-6)
    assert norm.count == 1000
    normalised = norm(observations)
    assert normalised.dtype == th.float32
    np.testing.assert_allclose(normalised.std(dim=0, correction=0), 1, rtol=1e-3)


def test_statistics_in_learning() -> None:
    """Each observation acted on counts once, warm-up included, and no batch does."""
    model, record = build(), Record()
    model.learn(60, callback=record)
    observations = np.concatenate(record.observations).astype(np.float64)
    assert len(observations) == 60
    assert statistics(model).count == 60
    np.testing.assert_allclose(statistics(model).mean, observations.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(statistics(model).var, observations.var(axis=0), rtol=1e-5)
    before = copy.deepcopy(statistics(model).state_dict())
    model.train(gradient_steps=3, batch_size=16)
    assert all(th.equal(before[name], value) for name, value in statistics(model).state_dict().items())


def test_statistics_with_several_environments() -> None:
    model = build(env=make_vec_env("Pendulum-v1", 3), train_freq=2).learn(60)
    assert statistics(model).count == 60


@pytest.mark.parametrize("model_class", [SimBa, SAC])
def test_a_forward_pass_moves_no_statistics(model_class: type[BaseAlgorithm], tmp_path: Path) -> None:
    """Of a freshly loaded actor too, with gradients on; so that it can be traced."""
    model = build(model_class, "MlpPolicy" if model_class is SimBa else SimbaPolicy).learn(40)
    model.save(tmp_path / "model.zip")
    loaded = model_class.load(tmp_path / "model.zip", device="cpu")
    before = copy.deepcopy(statistics(loaded).state_dict())
    observations = 100 * th.randn(16, 3)
    loaded.actor(observations)
    loaded.actor.action_log_prob(observations)
    loaded.critic(observations, th.zeros(16, 1))
    assert all(th.equal(before[name], value) for name, value in statistics(loaded).state_dict().items())

    class Deterministic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor = loaded.actor

        def forward(self, observations: th.Tensor) -> th.Tensor:
            return self.actor(observations, deterministic=True)

    traced = th.jit.trace(Deterministic(), observations)
    assert th.equal(traced(observations), loaded.actor(observations, deterministic=True))


def test_a_monstrous_entry_spoils_no_statistics() -> None:
    norm = RSNorm(spaces.Box(-np.inf, np.inf, (3,)))
    observations = th.randn(100, 3)
    norm.update(observations)
    monstrous = th.randn(2, 3)
    monstrous[1, 2] = -3e38
    with pytest.warns(UserWarning, match=r"an observation has -3e\+38 in entry 2"):
        norm.update(monstrous)
    exact = th.cat([observations, monstrous[:1]]).double()
    np.testing.assert_allclose(norm.var, exact.var(dim=0, correction=0), rtol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        norm.update(monstrous[1:])
    assert norm.count == 101


def test_statistics_of_a_dict() -> None:
    norm = RSNorm(spaces.Dict(a=spaces.Box(-1, 1, ()), b=spaces.Box(-1, 1, (2, 2))))
    observations = dict(a=th.randn(50), b=th.randn(50, 2, 2))
    norm.update(observations)
    flat = th.cat([observations["a"][:, None], observations["b"].flatten(1)], dim=1)
    np.testing.assert_allclose(norm.mean, flat.double().mean(dim=0), atol=1e-7)
    assert norm(observations).shape == (50, 5)


class OtherOrder(gym.Env):
    """Its observations have their entries the other way round than its space."""

    observation_space = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Box(90, 110, (2,)))
    action_space = spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return dict(reversed(self.observation_space.sample().items())), {}

    def step(self, action):
        return self.reset()[0], 0.0, False, False, {}


class AsTheEnvironmentHasThem(VecEnvWrapper):
    """SB3's own vector environments put entries in the order of the space, those of others need not."""

    def reset(self) -> Any:
        return dict(reversed(self.venv.reset().items()))

    def step_wait(self) -> Any:
        observations, *rest = self.venv.step_wait()
        return dict(reversed(observations.items())), *rest


@pytest.mark.parametrize("model_class", [SimBa, CIRSimBa, SAC])
def test_order_of_a_dict(model_class: type[BaseAlgorithm]) -> None:
    """Statistics and actions go by the names of the entries: while it learns, and in ``predict()`` on a raw environment."""
    policy = SimbaPolicy if model_class is SAC else "MultiInputPolicy"
    model = build(model_class, policy, env=AsTheEnvironmentHasThem(make_vec_env(OtherOrder))).learn(40)
    np.testing.assert_allclose(statistics(model).mean, [0, 0, 100, 100], atol=5)
    observation, _ = OtherOrder().reset()
    assert list(observation) == ["b", "a"]
    in_order = {key: observation[key] for key in "ab"}
    np.testing.assert_array_equal(*(model.predict(each, deterministic=True)[0] for each in (observation, in_order)))


@pytest.mark.parametrize("model_class", [SimBa, SAC])
def test_statistics_are_frozen_in_evaluation(model_class: type[BaseAlgorithm]) -> None:
    model = build(model_class, "MlpPolicy" if model_class is SimBa else SimbaPolicy).learn(40)
    before = copy.deepcopy(statistics(model).state_dict())
    evaluate_policy(model, gym.make("Pendulum-v1"), n_eval_episodes=1, warn=False)
    assert all(th.equal(before[name], value) for name, value in statistics(model).state_dict().items())


def test_one_set_of_statistics() -> None:
    """Critics and target critics see observations as the actor does."""
    model = build().learn(40)
    for network in (model.critic, model.critic_target):
        assert network.features_extractor is statistics(model)
    with pytest.raises(ValueError, match="share_features_extractor=False: actor and critics must share"):
        build(policy_kwargs=dict(share_features_extractor=False))


@pytest.mark.parametrize("model_class", [SimBa, SimBaSMR])
def test_save_and_load(model_class: type[SimBa], tmp_path: Path) -> None:
    """Statistics and all; and the loaded model goes on learning with them."""
    model = build(model_class, episodic=False).learn(60)
    model.save(tmp_path / "model.zip")
    loaded = model_class.load(tmp_path / "model.zip", env=gym.make("Pendulum-v1"))
    for name, value in model.policy.state_dict().items():
        assert th.equal(value, loaded.policy.state_dict()[name]), name
    for name in ("gamma", "target_entropy", "gradient_steps", "sample_reuse"):
        assert getattr(model, name) == getattr(loaded, name)
    assert loaded.critic.n_critics == 1
    assert loaded.critic_target.features_extractor is statistics(loaded)
    observation = np.ones(3, np.float32)
    np.testing.assert_array_equal(*(each.predict(observation, deterministic=True)[0] for each in (model, loaded)))
    loaded.learn(30, reset_num_timesteps=False)
    assert statistics(loaded).count == 90


def test_policy_saves_and_loads_alone(tmp_path: Path) -> None:
    policy = build().learn(40).policy
    policy.save(tmp_path / "policy.pth")
    loaded = SimbaPolicy.load(tmp_path / "policy.pth")
    for name, value in policy.state_dict().items():
        assert th.equal(value, loaded.state_dict()[name]), name


@pytest.mark.parametrize("episodic", [True, False])
def test_update(episodic: bool) -> None:
    """Actor, temperature, critics, target critics, each with what the one before has become; by hand."""
    model = build(episodic=episodic, ent_coef="auto_0.3").learn(20)
    assert model.critic.n_critics == (2 if episodic else 1)
    hand = copy.deepcopy(model.policy)
    log_alpha = model.log_ent_coef.detach().clone().requires_grad_()
    alpha_optimizer = th.optim.Adam([log_alpha], lr=1e-4)
    for network in (hand.actor, hand.critic):
        network.optimizer = th.optim.AdamW(network.parameters(), lr=1e-4, weight_decay=1e-2)
    hand.set_training_mode(True)
    batch = model.replay_buffer._get_samples(np.arange(16))

    th.manual_seed(7)
    model.policy.set_training_mode(True)
    losses = model._update(batch)

    th.manual_seed(7)
    alpha = log_alpha.detach().exp()
    actions, log_prob = hand.actor.action_log_prob(batch.observations)
    actor_loss = (alpha * log_prob - th.cat(hand.critic(batch.observations, actions), dim=1).min(dim=1).values).mean()
    hand.actor.optimizer.zero_grad()
    actor_loss.backward()
    hand.actor.optimizer.step()
    # Original: temperature * (entropy - target entropy), with entropy as minus the log-probability.
    (log_alpha.exp() * (-log_prob.detach() + 0.5)).mean().backward()
    alpha_optimizer.step()
    with th.no_grad():
        next_actions, next_log_prob = hand.actor.action_log_prob(batch.next_observations)
        next_q = th.cat(hand.critic_target(batch.next_observations, next_actions), dim=1).min(dim=1, keepdim=True).values
        next_value = next_q - log_alpha.exp() * next_log_prob[:, None]
        target = batch.rewards + 0.975 * (1 - batch.dones) * next_value
    critic_loss = sum(((q_value - target) ** 2).mean() for q_value in hand.critic(batch.observations, batch.actions))
    hand.critic.optimizer.zero_grad()
    critic_loss.backward()
    hand.critic.optimizer.step()
    for ours, theirs in zip(hand.critic_target.parameters(), hand.critic.parameters(), strict=True):
        ours.data.mul_(0.995).add_(0.005 * theirs.data)

    assert losses["actor_loss"].item() == pytest.approx(actor_loss.item(), rel=1e-5)
    assert losses["critic_loss"].item() == pytest.approx(critic_loss.item(), rel=1e-5)
    assert model.log_ent_coef.item() == pytest.approx(log_alpha.item(), rel=1e-6)
    for name, value in model.policy.state_dict().items():
        np.testing.assert_allclose(value, hand.state_dict()[name], atol=1e-6, err_msg=name)


def test_defaults() -> None:
    model = SimBa("MlpPolicy", "Pendulum-v1", buffer_size=10, device="cpu")
    assert model.gamma == 1 - 5 / 200
    assert model.target_entropy == -0.5
    assert model.log_ent_coef.exp().item() == pytest.approx(0.01)
    assert (model.learning_rate, model.tau, model.batch_size, model.learning_starts) == (1e-4, 0.005, 256, 5000)
    assert (model.gradient_steps, model.sample_reuse) == (2, 1)
    for network in (model.actor, model.critic):
        assert type(network.optimizer) is th.optim.AdamW
        (group,) = network.optimizer.param_groups
        assert (group["lr"], group["weight_decay"]) == (1e-4, 0.01)
        assert len(group["params"]) == len(list(network.parameters()))
    # What another optimiser makes of a weight decay is its own affair.
    other = SimBa("MlpPolicy", "Pendulum-v1", buffer_size=10, device="cpu", policy_kwargs=dict(optimizer_class=th.optim.Adam))
    assert other.critic.optimizer.param_groups[0]["weight_decay"] == 0
    smr = SimBaSMR("MlpPolicy", "Pendulum-v1", buffer_size=10, device="cpu")
    assert (smr.gradient_steps, smr.sample_reuse) == (1, 2)


@pytest.mark.parametrize(("model_class", "batches"), [(SimBa, 2), (SimBaSMR, 1)])
def test_batches_for_each_step(model_class: type[SimBa], batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two updates either way: UTD on fresh batches, SMR on one."""
    model = build(model_class).learn(30)
    before, sampled, sample = model._n_updates, [], model.replay_buffer.sample
    monkeypatch.setattr(model.replay_buffer, "sample", lambda *args, **kwargs: sampled.append(1) or sample(*args, **kwargs))
    model.learn(1, reset_num_timesteps=False)
    assert len(sampled) == batches
    assert model._n_updates == before + 2


@pytest.mark.parametrize(("n_steps", "discount"), [(500, 0.99), (1000, 0.995), (100, 0.95), (10, 0.95), (1e5, 0.995)])
def test_horizon_discount(n_steps: float, discount: float) -> None:
    assert horizon_discount(n_steps) == pytest.approx(discount)


def test_episode_steps() -> None:
    from sb3_cir.envs import ActionRepeat

    assert episode_steps(make_vec_env("Pendulum-v1")) == 200
    assert episode_steps(make_vec_env("Pendulum-v1", wrapper_class=ActionRepeat)) == 100
    unlimited = make_vec_env(lambda: gym.make("Pendulum-v1", max_episode_steps=-1))
    assert episode_steps(unlimited) == 500


class TakesNoIndex(VecEnvWrapper):
    """As the adapters of some simulators, which are one batch and no list of environments."""

    def __init__(self, venv: VecEnv, knows_spec: bool):
        self.knows_spec = knows_spec
        super().__init__(venv)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        if indices is not None:
            len(indices)
        if not self.knows_spec:
            raise AttributeError(attr_name)
        return super().get_attr(attr_name)

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        return self.venv.step_wait()


@pytest.mark.parametrize(("knows_spec", "gamma"), [(True, 1 - 5 / 200), (False, 0.99)])
def test_gamma_where_attributes_take_no_index(knows_spec: bool, gamma: float) -> None:
    env = TakesNoIndex(make_vec_env("Pendulum-v1"), knows_spec)
    assert build(env=env, seed=None).gamma == gamma


class Repeats(gym.Wrapper):
    """Has a method of the name by which our wrapper says how often it takes an action."""

    def repeat(self) -> None:
        pass


def test_gamma_where_a_name_means_something_else() -> None:
    env = gym.wrappers.TimeLimit(Repeats(gym.make("Pendulum-v1").unwrapped), 200)
    assert build(env=env, seed=None).gamma == 1 - 5 / 200


def test_dm_control() -> None:
    pytest.importorskip("dm_control", reason="needs the dm-control extra")
    from sb3_cir import envs

    model = build(env=envs.make("dm_control/cartpole-balance-v0"), episodic=False).learn(30)
    assert model.gamma == 0.99


def test_own_gamma_and_target_entropy() -> None:
    model = build(gamma=0.9, target_entropy=-3)
    assert (model.gamma, model.target_entropy) == (0.9, -3)


@pytest.mark.parametrize("model_class", [SimBa, SimbaV2, CIRSimBa])
def test_gamma_of_another_text(model_class: type[BaseAlgorithm]) -> None:
    with pytest.raises(ValueError, match=r"gamma='0\.9': it must be a number in \[0, 1\] or 'auto'\."):
        build(model_class, gamma="0.9")


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"net_arch\['qf'\]=\[8, 16\]: SimBa needs one width"):
        build(policy_kwargs=dict(net_arch=dict(pi=[8], qf=[8, 16])))
    with pytest.raises(ValueError, match=r"net_arch\['pi'\]=\[\]: SimBa needs one width"):
        build(policy_kwargs=dict(net_arch=dict(pi=[], qf=[8])))


def test_in_sac(tmp_path: Path) -> None:
    """The batches make the statistics: 16 observations and as many next ones for each of 20 updates."""
    model = build(SAC, SimbaPolicy).learn(40)
    assert statistics(model).count == 20 * 2 * 16
    before = [parameter.clone() for parameter in model.policy.parameters()]
    model.learn(5, reset_num_timesteps=False)
    assert not any(th.equal(old, new) for old, new in zip(before, model.policy.parameters(), strict=True))
    model.save(tmp_path / "model.zip")
    loaded = SAC.load(tmp_path / "model.zip")
    for name, value in model.policy.state_dict().items():
        assert th.equal(value, loaded.policy.state_dict()[name]), name


def test_in_tqc(tmp_path: Path) -> None:
    tqc = pytest.importorskip("sb3_contrib", reason="needs sb3-contrib").TQC
    model = build(tqc, SimbaPolicy, policy_kwargs=dict(n_quantiles=5)).learn(40)
    observations, actions = th.randn(4, 3), th.rand(4, 1)
    quantiles = model.critic(observations, actions)
    assert quantiles.shape == (4, 2, 5)
    model.policy.set_training_mode(False)
    by_hand = model.critic.q_networks[1](th.cat([statistics(model)(observations), actions], dim=1))
    np.testing.assert_allclose(model.critic(observations, actions)[:, 1].detach(), by_hand.detach(), atol=1e-6)
    assert statistics(model).count == 20 * 2 * 16
    model.save(tmp_path / "model.zip")
    loaded = tqc.load(tmp_path / "model.zip")
    for name, value in model.policy.state_dict().items():
        assert th.equal(value, loaded.policy.state_dict()[name]), name


def test_in_tqc_without_quantiles() -> None:
    tqc = pytest.importorskip("sb3_contrib", reason="needs sb3-contrib").TQC
    with pytest.raises(TypeError, match=r"give it policy_kwargs=dict\(n_quantiles=25\)"):
        build(tqc, SimbaPolicy).learn(40)


def test_sde() -> None:
    model = build(use_sde=True, sde_sample_freq=4).learn(40)
    assert model._n_updates == 40


def test_name_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs TensorBoard")
    build(SimBaSMR, tensorboard_log=str(tmp_path)).learn(10)
    assert [path.name for path in tmp_path.iterdir()] == ["SimBaSMR_1"]


def test_gamma_of_processes_whose_spec_cannot_be_sent() -> None:
    """A process that is asked for it ends."""
    gym.register("local-v0", lambda: gym.make("Pendulum-v1").unwrapped, max_episode_steps=300)
    env = SubprocVecEnv([lambda: gym.make("local-v0")] * 2, start_method="fork")
    try:
        model = build(env=env, learning_starts=4, seed=None).learn(6)
        assert model.gamma == pytest.approx(1 - 5 / 300)
    finally:
        env.close()
        del gym.registry["local-v0"]


class OwnNorm(RSNorm):
    """A subclass is normalised by as RSNorm is."""


def test_a_subclass_of_rsnorm_is_shared() -> None:
    model = build(policy_kwargs=dict(features_extractor_class=OwnNorm))
    assert model.actor.features_extractor is model.critic.features_extractor is model.critic_target.features_extractor
    with pytest.raises(ValueError, match="must share the statistics"):
        build(policy_kwargs=dict(features_extractor_class=OwnNorm, share_features_extractor=False))


@pytest.mark.parametrize("trusted", [True, False])
def test_what_networks_were_made_from_cannot_be_changed(trusted: bool, tmp_path: Path) -> None:
    build().save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"episodic: the model was made with True, it cannot be changed\."):
        SimBa.load(tmp_path / "model", device="cpu", trusted=trusted, episodic=False)
    with pytest.raises(ValueError, match=r"gamma='auto' is found from an environment: pass env=\.\.\. too, or a number\."):
        SimBa.load(tmp_path / "model", device="cpu", trusted=trusted, gamma="auto")
    assert SimBa.load(tmp_path / "model", device="cpu", trusted=trusted, episodic=True).critic.n_critics == 2


def test_what_networks_were_made_from_cannot_be_changed_in_a_run(tmp_path: Path) -> None:
    model = build().learn(30, callback=Checkpoint(10, tmp_path))
    with pytest.raises(ValueError, match=r"\.zip: episodic: the model was made with True, it cannot be changed\."):
        SimBa.resume(tmp_path, model.get_env(), device="cpu", episodic=False)
    assert SimBa.resume(tmp_path, model.get_env(), device="cpu", episodic=True).critic.n_critics == 2
