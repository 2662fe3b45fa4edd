"""Learning from two domains: who steps where and when, what is stored in which replay buffer, what a batch is made of."""

import csv
import functools
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
import yaml
from gymnasium import spaces
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecNormalize

import sb3_cir
from sb3_cir import CIR
from sb3_cir.baselines.darc import DARC
from sb3_cir.baselines.par import PAR
from sb3_cir.baselines.two_domain_sac import TwoDomainSAC
from sb3_cir.callbacks import Checkpoint
from sb3_cir.envs.odrl import normalized_score
from sb3_cir.off_dynamics import OffDynamicsCallback, TwoDomainReplayBuffer
from sb3_cir.runs.watch import FailedEnvError
from sb3_cir.tasks import of_group


def tiny(**kwargs) -> dict:
    """Small sizes, for any algorithm. A new dict each time: SB3 writes into ``policy_kwargs``."""
    small = dict(learning_starts=40, batch_size=16, buffer_size=2000, policy_kwargs=dict(net_arch=[16, 16]))
    return dict(device="cpu", seed=0) | small | kwargs


SOURCE, TARGET = 1.0, -1.0


class Drift(gym.Env):
    """
    A point that actions and the domain's drift move. Observations are (domain, position, step); episodes end at |position|
    > 2 or are cut off after 7 steps.
    """

    def __init__(self, domain: float, discrete: bool = False, as_dict: bool = False, size: int = 3):
        box = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.observation_space = spaces.Dict({"state": box}) if as_dict else box
        self.action_space = spaces.Discrete(3) if discrete else spaces.Box(-2, 2, (1,), np.float32)
        self.domain = domain
        self.as_dict = as_dict

    def observe(self):
        state = np.array([self.domain, self.position, self.steps], dtype=np.float32)
        return {"state": state} if self.as_dict else state

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.steps = self.np_random.uniform(-0.1, 0.1), 0
        return self.observe(), {}

    def step(self, action):
        move = action - 1 if isinstance(self.action_space, spaces.Discrete) else action[0]
        self.position += 0.3 * float(move) + 0.1 * self.domain
        self.steps += 1
        terminated, truncated = abs(self.position) > 2, self.steps == 7
        return self.observe(), self.domain, terminated, truncated, {}


def learn(algorithm=SAC, steps=200, n_envs=1, callback=None, env_kwargs=None, normalize=False, **kwargs):
    """A model that has learned from both domains, and the callback."""
    env_kwargs = env_kwargs or {}
    env = make_vec_env(functools.partial(Drift, SOURCE, **env_kwargs), n_envs=n_envs, seed=0)
    policy = "MultiInputPolicy" if env_kwargs.get("as_dict") else "MlpPolicy"
    arguments = tiny(replay_buffer_class=TwoDomainReplayBuffer) | kwargs
    model = algorithm(policy, VecNormalize(env) if normalize else env, **arguments)
    model.set_logger(configure(None, []))
    callback = callback or OffDynamicsCallback(target=functools.partial(Drift, TARGET, **env_kwargs), eval_freq=0)
    model.learn(steps, callback=callback)
    return model, callback


def check_buffer(buffer, domain: float, n_steps: int) -> None:
    """Every transition is of this domain; each goes on where the one before ended, unless an episode did."""
    assert buffer.size() == n_steps
    as_dict = isinstance(buffer.observations, dict)
    observations, next_observations = (
        (array["state"] if as_dict else array)[:n_steps] for array in (buffer.observations, buffer.next_observations)
    )
    assert (observations[..., 0] == domain).all()
    assert (next_observations[..., 0] == domain).all()
    assert (buffer.rewards[:n_steps] == domain).all()
    np.testing.assert_array_equal(next_observations[..., 2], observations[..., 2] + 1)
    ended = buffer.dones[:n_steps].astype(bool)
    assert ended.any()
    np.testing.assert_array_equal(ended, (next_observations[..., 2] == 7) | (abs(next_observations[..., 1]) > 2))
    cut_off = buffer.timeouts[:n_steps].astype(bool)
    np.testing.assert_array_equal(cut_off, ended & (abs(next_observations[..., 1]) <= 2))
    goes_on = ~ended[:-1]
    np.testing.assert_array_equal(observations[1:][goes_on], next_observations[:-1][goes_on])
    assert (observations[1:][~goes_on][..., 2] == 0).all()


@pytest.mark.parametrize("algorithm", [SAC, TD3, DDPG, CIR, DQN, TwoDomainSAC, DARC, PAR])
def test_domains_never_mix(algorithm) -> None:
    env_kwargs = dict(discrete=algorithm is DQN)
    model, callback = learn(algorithm, steps=205, env_kwargs=env_kwargs, train_freq=1)
    check_buffer(model.replay_buffer.source, SOURCE, 205)
    check_buffer(model.replay_buffer.target, TARGET, 20)
    assert callback.target_steps == 20
    assert model._n_updates > 0


def test_several_environments() -> None:
    model, callback = learn(n_envs=3, steps=300, train_freq=2)
    logged = model.logger.name_to_value
    assert logged["rollout/target_ep_rew_mean"] == -logged["rollout/target_ep_len_mean"] < 0  # the reward is the domain
    check_buffer(model.replay_buffer.source, SOURCE, 100)
    check_buffer(model.replay_buffer.target, TARGET, 30)
    assert callback.target_steps == 30


def test_dict_observations() -> None:
    model, _ = learn(CIR, env_kwargs=dict(as_dict=True))
    check_buffer(model.replay_buffer.source, SOURCE, 200)
    check_buffer(model.replay_buffer.target, TARGET, 20)
    batch = model.replay_buffer.sample(10)
    assert batch.observations["state"][:, 0].tolist() == [SOURCE] * 5 + [TARGET] * 5


@pytest.mark.parametrize(("batch_size", "n_source", "n_target"), [(16, 8, 8), (17, 9, 8), (1, 1, 0)])
def test_batch_is_half_and_half(batch_size: int, n_source: int, n_target: int) -> None:
    model, _ = learn(steps=60)
    batch = model.replay_buffer.sample(batch_size)
    domains = [SOURCE] * n_source + [TARGET] * n_target
    assert batch.observations[:, 0].tolist() == domains
    assert batch.next_observations[:, 0].tolist() == domains
    assert batch.rewards[:, 0].tolist() == domains
    assert batch.actions.shape == (batch_size, 1)
    assert batch.dones.shape == (batch_size, 1)


def test_target_acts_by_the_current_policy_without_noise() -> None:
    """The policy is deterministic and does not learn: what it would do is what the target was given."""
    noise = NormalActionNoise(np.zeros(1), np.full(1, 0.2))
    model, _ = learn(TD3, steps=400, action_noise=noise, gradient_steps=0)
    for buffer, warm_up, exact in ((model.replay_buffer.source, 40, False), (model.replay_buffer.target, 4, True)):
        by_policy, _ = model.policy.predict(buffer.observations[warm_up : buffer.pos, 0], deterministic=True)
        taken = 2 * buffer.actions[warm_up : buffer.pos, 0]  # stored between -1 and 1, the bounds are -2 and 2
        assert np.allclose(by_policy, taken, atol=1e-5) == exact
        assert abs(taken).max() <= 2
    warm_up = model.replay_buffer.target.actions[:3, 0]
    assert not np.allclose(warm_up, model.policy.predict(model.replay_buffer.target.observations[:3, 0])[0] / 2, atol=1e-2)


def test_learn_again_goes_on() -> None:
    model, callback = learn(steps=105)
    model.learn(100, callback=callback, reset_num_timesteps=False)
    check_buffer(model.replay_buffer.source, SOURCE, 205)
    check_buffer(model.replay_buffer.target, TARGET, 20)


def test_a_callback_begins_anew_with_another_model() -> None:
    _, callback = learn(steps=105)
    model, _ = learn(CIR, steps=205, callback=callback)
    check_buffer(model.replay_buffer.target, TARGET, 20)
    assert callback.target_steps == 20
    assert model.replay_buffer.target.observations[0, 0, 2] == 0
    with pytest.raises(ValueError, match="action_space differs"):
        learn(steps=20, callback=callback, env_kwargs=dict(discrete=True), algorithm=DQN)


def test_the_target_does_not_begin_the_same_episodes_again(tmp_path: Path) -> None:
    """Where a run goes on in another call, or from a checkpoint, its target would be seen in its first states alone."""

    def callback() -> OffDynamicsCallback:
        return OffDynamicsCallback(target=functools.partial(Drift, TARGET), eval_freq=0)

    model, _ = learn(CIR, steps=100, callback=[callback(), Checkpoint(100, tmp_path)])
    first = model.replay_buffer.target.observations[0, 0, 1]
    model.learn(100, callback=callback(), reset_num_timesteps=False)
    resumed = CIR.resume(tmp_path, functools.partial(Drift, SOURCE)(), device="cpu")
    resumed.learn(200, callback=callback())
    for each in (model, resumed):
        observations = each.replay_buffer.target.observations[:20, 0]
        begins = observations[observations[:, 2] == 0, 1]
        assert begins[0] == first
        assert len(set(begins.tolist())) == len(begins) >= 3


class Touches(Drift):
    """Has an entry that SB3's buffer reshapes in place, before the others by its name."""

    def __init__(self, domain: float):
        super().__init__(domain)
        self.observation_space = spaces.Dict(contact=spaces.Discrete(3), state=self.observation_space)

    def observe(self):
        return {"contact": 1, "state": super().observe()}


def test_dicts_with_a_discrete_entry() -> None:
    arguments = tiny(replay_buffer_class=TwoDomainReplayBuffer)
    model = CIR("MultiInputPolicy", Touches(SOURCE), **arguments)
    callback = OffDynamicsCallback(target=functools.partial(Touches, TARGET), target_freq=2, eval_freq=0)
    model.learn(60, callback=callback)
    assert model.replay_buffer.target.size() == 30


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Drift(TARGET), "is no domain: pass a Gymnasium id or a function that makes the environment"),
        (lambda: make_vec_env(functools.partial(Drift, TARGET), n_envs=2), "makes 2 environments: a domain has one here"),
    ],
)
def test_what_is_no_domain(target: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learn(callback=OffDynamicsCallback(target=target, eval_freq=0))


@pytest.mark.parametrize("algorithm", [SAC, CIR])
def test_another_callback_begins_another_episode(algorithm) -> None:
    """No n-step return goes from the target's last episode into it."""
    model, _ = learn(algorithm, steps=105, replay_buffer_kwargs=dict(n_steps=3, gamma=0.9))
    buffer = model.replay_buffer.target
    assert not buffer.dones[9]
    callback = OffDynamicsCallback(target=functools.partial(Drift, TARGET), eval_freq=0)
    model.learn(100, callback=callback, reset_num_timesteps=False)
    assert buffer.size() == 20
    assert buffer.observations[10, 0, 2] == 0
    batch = buffer._get_samples(np.arange(20))
    assert set((batch.next_observations[:, 2] - batch.observations[:, 2]).tolist()) == {1.0, 2.0, 3.0}
    assert (batch.dones[7:10] == 0).all()


@pytest.mark.parametrize("algorithm", [CIR, TwoDomainSAC, DARC, PAR])
def test_save_and_load(algorithm, tmp_path: Path) -> None:
    active = {DARC: dict(correction_starts=0, classifier_freq=1), PAR: dict(encoder_freq=1)}.get(algorithm, {})
    model, _ = learn(algorithm, **active)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = algorithm.load(tmp_path / "model", env=model.get_env())
    loaded.load_replay_buffer(tmp_path / "buffer")
    for domain in ("source", "target"):
        saved, restored = getattr(model.replay_buffer, domain), getattr(loaded.replay_buffer, domain)
        assert saved.pos == restored.pos
        np.testing.assert_array_equal(saved.observations, restored.observations)
    assert loaded.replay_buffer.target.device == loaded.replay_buffer.device == loaded.device
    for name in dict(zip([DARC, PAR], [["classifiers"], ["encoder", "encoder_target"]], strict=True)).get(algorithm, []):
        ours, theirs = getattr(model, name).state_dict(), getattr(loaded, name).state_dict()
        assert all(th.equal(value, theirs[key]) for key, value in ours.items())
    callback = OffDynamicsCallback(target=functools.partial(Drift, TARGET), eval_freq=0)
    loaded.learn(100, callback=callback, reset_num_timesteps=False)
    assert loaded.replay_buffer.source.size() == 300
    assert loaded.replay_buffer.target.size() == 30


def test_a_loaded_model_goes_on_with_an_empty_buffer(tmp_path: Path) -> None:
    """It learns from its first step on."""
    model, _ = learn(TwoDomainSAC)
    model.save(tmp_path / "model")
    loaded = TwoDomainSAC.load(tmp_path / "model", env=model.get_env())
    callback = OffDynamicsCallback(target=functools.partial(Drift, TARGET), eval_freq=0)
    loaded.learn(20, callback=callback, reset_num_timesteps=False)
    assert loaded._n_updates > model._n_updates
    assert loaded.replay_buffer.target.size() == 2


@pytest.mark.parametrize(("learning_starts", "n_envs"), [(0, 1), (3, 1), (3, 4)])
def test_updates_that_begin_before_the_target_is_due(learning_starts: int, n_envs: int) -> None:
    model, callback = learn(TwoDomainSAC, steps=20, n_envs=n_envs, learning_starts=learning_starts, train_freq=1)
    assert model._n_updates > 0
    assert callback.target_steps == 2


def test_n_step_returns() -> None:
    model, _ = learn(replay_buffer_kwargs=dict(n_steps=3, gamma=0.9))
    assert isinstance(model.replay_buffer.target, NStepReplayBuffer)
    batch = model.replay_buffer.sample(64)
    n_steps = batch.next_observations[:, 2] - batch.observations[:, 2]
    assert set(n_steps.tolist()) <= {1.0, 2.0, 3.0}
    np.testing.assert_allclose(batch.discounts[:, 0], 0.9**n_steps, rtol=1e-5)
    np.testing.assert_allclose(batch.rewards[:, 0] / batch.observations[:, 0], (1 - 0.9**n_steps) / 0.1, rtol=1e-5)


def test_vec_normalize() -> None:
    """Both domains are stored as they are and normalised by the source's statistics, for acting and for learning."""
    model, callback = learn(normalize=True, steps=300)
    check_buffer(model.replay_buffer.source, SOURCE, 300)
    check_buffer(model.replay_buffer.target, TARGET, 30)
    statistics = model.get_vec_normalize_env()
    assert statistics.obs_rms.mean[0] == pytest.approx(SOURCE, abs=1e-3)
    batch = model.replay_buffer.sample(8, env=statistics)
    assert (batch.observations[:4, 0].abs() < 0.1).all()
    assert (batch.observations[4:, 0] == -10).all()  # far off the source's mean, clipped
    raw = np.array([[TARGET, 0.3, 2.0]], dtype=np.float32)
    by_model, _ = model.predict(statistics.normalize_obs(raw), deterministic=True)
    by_callback, _ = callback.predict(raw, deterministic=True)
    np.testing.assert_array_equal(by_model, by_callback)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (dict(replay_buffer_class=None), "needs a model made with replay_buffer_class=TwoDomainReplayBuffer"),
        (dict(n_steps=3), "n_steps=3 has no effect .* replay_buffer_kwargs=dict\\(n_steps=3, gamma=0.99\\)"),
        (dict(optimize_memory_usage=True), "optimize_memory_usage=True: .* False only"),
        (dict(callback=OffDynamicsCallback()), "target=None: pass a Gymnasium id or a function"),
        (dict(callback=OffDynamicsCallback(target="Pendulum-v1")), "differs: .* of Pendulum-v1 is not the model's"),
        (dict(callback=OffDynamicsCallback(target=lambda: Drift(TARGET))), "source=None: pass .*, or eval_freq=0"),
        (dict(algorithm=TwoDomainSAC, replay_buffer_class=NStepReplayBuffer), "must be a TwoDomainReplayBuffer"),
        (dict(algorithm=DARC, n_steps=2), "n_steps=2: DARC compares the domains step by step"),
        (dict(algorithm=PAR, replay_buffer_kwargs=dict(n_steps=2, gamma=0.9)), "n_steps=2: PAR compares"),
        (dict(algorithm=PAR, env_kwargs=dict(as_dict=True)), "PAR takes vectors only"),
        (dict(algorithm=DARC, classifier_freq=0), "classifier_freq=0: it must be a whole number of at least 1"),
        (dict(algorithm=DARC, classifier_noise=-1.0), r"classifier_noise=-1\.0: it must be a number of at least 0"),
        (dict(algorithm=DARC, classifier_arch=[8, 0]), "classifier_arch=0: it must be a whole number of at least 1"),
        (dict(algorithm=DARC, classifier_arch=64), "classifier_arch is 64, list"),
        (dict(algorithm=DARC, correction_coef=math.nan), "correction_coef=nan: it must be a number of at least 0"),
        (dict(algorithm=PAR, encoder_freq=0), "encoder_freq=0: it must be a whole number of at least 1"),
        (dict(algorithm=PAR, encoder_freq="often"), "encoder_freq='often': it must be a whole number of at least 1"),
        (dict(algorithm=PAR, encoder_width=0), "encoder_width=0: it must be a whole number of at least 1"),
        (dict(replay_buffer_kwargs=dict(n_steps=2)), r"must be given the model's discount too"),
        (dict(env_kwargs=dict(as_dict=True), replay_buffer_kwargs=dict(n_steps=2)), "not supported with Dict observations"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is ignored because a custom")
def test_refused(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learn(**kwargs)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (dict(target_freq=math.nan), "target_freq=nan: it must be a whole number of at least 1"),
        (dict(target_freq=0), "target_freq=0: it must be a whole number of at least 1"),
        (dict(eval_freq=-1), "eval_freq=-1: it must be a whole number of at least 0"),
        (dict(n_eval_episodes=1.5), r"n_eval_episodes=1\.5: it must be a whole number of at least 1"),
        (dict(n_eval_episodes=0), "n_eval_episodes=0: it must be a whole number of at least 1"),
    ],
)
def test_callback_numbers_out_of_range(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OffDynamicsCallback(**kwargs)


class FailsOnce(Drift):
    """At the third step of the first that is made."""

    made = 0

    def __init__(self) -> None:
        super().__init__(TARGET)
        FailsOnce.made += 1
        self.first = FailsOnce.made == 1

    def step(self, action):
        if self.first and self.steps == 2:
            raise RuntimeError("a motor is hot")
        return super().step(action)


def test_goes_on_after_a_target_that_failed() -> None:
    """With another target, an episode of its own, and the steps that were counted."""
    callback = OffDynamicsCallback(target=FailsOnce, eval_freq=0)
    model = SAC("MlpPolicy", Drift(SOURCE), **tiny(replay_buffer_class=TwoDomainReplayBuffer))
    with pytest.raises(FailedEnvError, match="a motor is hot"):
        model.learn(100, callback=callback)
    assert callback.target_steps == 2
    model.learn(50, callback=callback, reset_num_timesteps=False)
    assert FailsOnce.made == 2
    assert callback.target_steps == 2 + 5
    assert model.replay_buffer.target.size() == callback.target_steps


# DARC and PAR, on domains that are known


def fill(buffer, mean: float, std: float, shift: float, noise: float, n: int = 4000) -> None:
    """``s' = s + a + shift + noise``, from states around ``mean``."""
    rng = np.random.default_rng(int(1000 * (shift + 10)))
    states = rng.normal(mean, std, (n, 1, 1)).astype(np.float32)
    actions = rng.uniform(-1, 1, (n, 1, 1)).astype(np.float32)
    next_states = states + actions + shift + noise * rng.normal(size=(n, 1, 1))
    for state, action, next_state in zip(states, actions, next_states, strict=True):
        buffer.add(state, next_state, action, np.zeros(1), np.zeros(1), [{}])


class Line(gym.Env):
    """Has the spaces of the domains above and is never stepped."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)


def on_a_line(algorithm, **kwargs):
    model = algorithm("MlpPolicy", Line(), **(tiny(buffer_size=4000, learning_rate=3e-3) | kwargs))
    model.set_logger(configure(None, []))
    model.num_timesteps = 1
    return model


def test_darc_learns_the_log_ratio_of_the_dynamics() -> None:
    """With unit noise and a shift of 0 and 1, the log-ratio is x - 1/2 at x = s' - s - a, wherever the states are."""
    darc = on_a_line(DARC, correction_starts=0, classifier_freq=1, classifier_noise=0.0, classifier_arch=[64])
    fill(darc.replay_buffer.source, mean=0.0, std=1.0, shift=0.0, noise=1.0)
    fill(darc.replay_buffer.target, mean=1.0, std=1.0, shift=1.0, noise=1.0)
    for _ in range(600):
        darc.sample_batch(darc.replay_buffer, 512)
    batch = darc.replay_buffer.source.sample(1000)
    true = batch.next_observations - batch.observations - batch.actions - 0.5
    with th.no_grad():
        error = darc.classifiers.log_ratio(batch) - true
    assert error.abs().mean() < 0.25
    assert abs(error.mean()) < 0.15
    # The correction is what is added to rewards, which were 0, and these are the source's alone.
    corrected = darc.sample_batch(darc.replay_buffer, 1000)
    x = corrected.next_observations - corrected.observations - corrected.actions
    assert np.corrcoef(corrected.rewards[:, 0], x[:, 0])[0, 1] > 0.97
    assert abs(x.mean()) < 0.15  # 0 in the source, 1 in the target


def test_darc_waits_and_scales() -> None:
    darc = on_a_line(DARC, correction_starts=100, classifier_freq=1, correction_coef=2.0)
    for buffer, shift in ((darc.replay_buffer.source, 0.0), (darc.replay_buffer.target, 1.0)):
        fill(buffer, mean=0.0, std=1.0, shift=shift, noise=1.0, n=50)
    before = [parameter.clone() for parameter in darc.classifiers.parameters()]
    darc.num_timesteps = 100
    assert (darc.sample_batch(darc.replay_buffer, 16).rewards == 0).all()
    assert all(map(th.equal, before, darc.classifiers.parameters()))
    darc.num_timesteps = 101
    batch = darc.sample_batch(darc.replay_buffer, 16)
    assert not all(map(th.equal, before, darc.classifiers.parameters()))
    th.testing.assert_close(batch.rewards, 2 * darc.classifiers.log_ratio(batch).detach())


def test_darc_needs_the_target_from_its_first_update_on() -> None:
    """Not only from the step on at which its classifiers learn, which is the 100,000th by default."""
    darc = DARC("MlpPolicy", "Pendulum-v1", **tiny(learning_starts=20))
    with pytest.raises(ValueError, match="no transition of the target domain yet: pass an OffDynamicsCallback"):
        darc.learn(30)
    assert darc.num_timesteps == 21


def test_rl_zoos_darc_is_the_papers() -> None:
    """The paper's figures are those of ODRL's code, which takes two softmaxes."""
    settings = yaml.safe_load((Path(__file__).parent.parent / "hyperparams" / "darc.yml").read_text())
    assert settings["default"]["odrl_softmax"] is True


def test_darc_with_odrls_softmax() -> None:
    """One step of the classifiers on the loss as ODRL has it: cross-entropy of two outputs that are probabilities already."""
    darc = on_a_line(DARC, correction_starts=0, classifier_freq=1, classifier_noise=0.0, odrl_softmax=True)
    for buffer, shift in ((darc.replay_buffer.source, 0.0), (darc.replay_buffer.target, 1.0)):
        fill(buffer, mean=0.0, std=1.0, shift=shift, noise=1.0, n=50)
    source, target = darc.replay_buffer.sample_both(40)
    labels = th.cat([th.zeros(20, dtype=th.long), th.ones(20, dtype=th.long)])
    loss = th.zeros(())
    for of_source, of_target in zip(darc.classifiers(source), darc.classifiers(target), strict=True):
        logits = th.cat([of_source, of_target]) * th.tensor([[0.0, 1.0]])
        loss = loss + th.nn.functional.cross_entropy(th.softmax(logits, dim=1), labels)
    expected = th.autograd.grad(loss, list(darc.classifiers.parameters()))
    darc.train_classifiers(source, target)
    for parameter, gradient in zip(darc.classifiers.parameters(), expected, strict=True):
        th.testing.assert_close(parameter.grad, gradient)
    # What is added to rewards: the difference of log-probabilities, none of which is below that of 1e-10.
    with th.no_grad():
        darc.classifiers.sas[-1].bias.fill_(1000.0)
        darc.classifiers.sa[-1].bias.fill_(0.0)
        darc.classifiers.sa[-1].weight.fill_(0.0)
    ratio = darc.classifiers.log_ratio(source, epsilon=1e-10)
    th.testing.assert_close(ratio, th.full_like(ratio, 10 * np.log(10)))
    assert (darc.classifiers.log_ratio(source) > 900).all()
    assert (darc.sample_batch(darc.replay_buffer, 16).rewards < 30).all()


@pytest.mark.parametrize("algorithm", [SAC, PAR])
def test_nothing_is_lent_and_nothing_swapped(algorithm, tmp_path: Path) -> None:
    """While the target is stepped and while the model trains, its attributes are its own; the batches are the algorithm's."""
    seen = []

    class Looks(gym.Wrapper):
        def step(self, action):
            seen.append((model._last_obs[0, 0], model.replay_buffer))
            return super().step(action)

    env = functools.partial(Drift, SOURCE)
    model = algorithm("MlpPolicy", env(), **tiny(replay_buffer_class=TwoDomainReplayBuffer))
    buffer, sample = model.replay_buffer, model.replay_buffer.source.sample
    model.replay_buffer.source.sample = lambda *args: (seen.append((SOURCE, model.replay_buffer)), sample(*args))[1]
    model.set_logger(configure(None, []))
    model.learn(60, callback=OffDynamicsCallback(target=lambda: Looks(Drift(TARGET)), eval_freq=0))
    assert len(seen) == 6 + 20
    assert all(domain == SOURCE and found is buffer for domain, found in seen)
    # A replay buffer that was saved is not tied to a model.
    del buffer.source.sample
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    other = algorithm("MlpPolicy", env(), **tiny(replay_buffer_class=TwoDomainReplayBuffer))
    other.load_replay_buffer(tmp_path / "buffer.pkl")
    assert other.replay_buffer.make_batch is None
    assert list(other.replay_buffer.parts()) == ["source", "target"]
    assert other.replay_buffer.parts()["target"].size() == 6
    assert (tmp_path / "buffer.pkl").stat().st_size < 400_000


def test_par_penalty_is_near_zero_where_the_dynamics_agree() -> None:
    penalties = {}
    for name, shift in (("agree", 0.5), ("differ", -0.5)):
        par = on_a_line(PAR, encoder_freq=1, encoder_width=32, penalty_coef=1.0, tau=0.05, learning_rate=1e-3)
        fill(par.replay_buffer.source, mean=0.0, std=1.0, shift=shift, noise=0.0)
        fill(par.replay_buffer.target, mean=0.0, std=1.0, shift=0.5, noise=0.0)
        for _ in range(1000):
            batch = par.sample_batch(par.replay_buffer, 256)
        assert (batch.rewards[128:] == 0).all()  # the target's are left alone
        penalties[name] = -batch.rewards[:128].mean().item()
    # Representations have a mean absolute value of 1: an error of 1 is that of a random guess.
    assert 0 <= penalties["agree"] < 0.02
    assert penalties["differ"] > 10 * penalties["agree"]


# ODRL's tasks


def test_odrl_task_needs_nothing_but_the_callback(tmp_path: Path) -> None:
    pytest.importorskip("mujoco", reason="needs MuJoCo (the odrl extra)")
    env = gym.make("odrl/ant-friction-0.5-v0", domain="source")
    model = CIR("MlpPolicy", env, replay_buffer_class=TwoDomainReplayBuffer, **tiny())
    model.set_logger(configure(str(tmp_path), ["csv"]))
    callback = OffDynamicsCallback(eval_freq=60, n_eval_episodes=1)
    model.learn(120, callback=callback)
    assert callback.target_steps == 12
    friction = callback._target_env.envs[0].unwrapped.model.geom_friction
    np.testing.assert_allclose(friction, 0.5 * env.unwrapped.model.geom_friction)
    assert callback._eval_envs["source"].envs[0].unwrapped.model.geom_friction[0, 0] == 1.0
    assert callback._eval_envs["target"].envs[0].unwrapped.model.geom_friction[0, 0] == 0.5

    assert [row["timesteps"] for row in callback.evaluations] == [60, 120]
    with (tmp_path / "progress.csv").open() as file:
        logged = [row for row in csv.DictReader(file) if row["eval/target_return"]]
    assert [int(row["time/total_timesteps"]) for row in logged] == [60, 120]
    for row, evaluation in zip(logged, callback.evaluations, strict=True):
        for name in ("source_return", "target_return", "target_score"):
            assert float(row[f"eval/{name}"]) == evaluation[name]
        score = normalized_score("odrl/ant-friction-0.5-v0", evaluation["target_return"])
        assert evaluation["target_score"] == score


def test_no_score_where_the_task_is_another() -> None:
    """The reference scores are of the task's own rewards and episodes."""
    pytest.importorskip("mujoco", reason="needs MuJoCo (the odrl extra)")
    for name, value in (("healthy_reward", 5.0), ("max_episode_steps", 20)):
        env = gym.make("odrl/hopper-gravity-0.5-v0", domain="source", **{name: value})
        callback = OffDynamicsCallback(eval_freq=30, n_eval_episodes=1)
        CIR("MlpPolicy", env, replay_buffer_class=TwoDomainReplayBuffer, **tiny()).learn(30, callback=callback)
        assert callback.evaluations[0].keys() == {"timesteps", "source_return", "target_return"}


def test_evaluations_of_several_environments() -> None:
    """They are due at multiples of eval_freq, however many steps are made at once."""
    makers = (functools.partial(Drift, domain) for domain in (TARGET, SOURCE))
    callback = OffDynamicsCallback(*makers, target_freq=4, eval_freq=6, n_eval_episodes=1)
    learn(steps=40, n_envs=4, callback=callback)
    assert [row["timesteps"] for row in callback.evaluations] == [8, 12, 20, 24, 32, 36]
    assert all(row["source_return"] > 0 > row["target_return"] for row in callback.evaluations)  # the reward is the domain
    resets = []
    for _ in range(2):
        callback.begin_episode(3)
        resets.append([env.reset() for env in callback._eval_envs.values()])
    np.testing.assert_array_equal(*resets)


class Still(gym.Env):
    """It always shows the same, and notes the actions that it is given."""

    observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Box(-2, 2, (1,))

    def __init__(self, taken: list[float]):
        self.taken = taken

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.taken.append(float(action[0]))
        return np.zeros(1, np.float32), 0.0, False, self.steps == 5, {}


def test_exploration_in_the_target_and_none_in_evaluations() -> None:
    learned, evaluated = [], {"source": [], "target": []}
    makes = iter([learned, evaluated["target"]])
    callback = OffDynamicsCallback(
        lambda: Still(next(makes)), lambda: Still(evaluated["source"]), eval_freq=60, n_eval_episodes=3, target_freq=2
    )
    arguments = tiny(replay_buffer_class=TwoDomainReplayBuffer, gradient_steps=0, learning_starts=20)
    SAC("MlpPolicy", Still([]), **arguments).learn(60, callback=callback)
    assert len(set(learned[10:])) == len(learned[10:]) == 20
    for taken in evaluated.values():
        assert len(taken) == 3 * 5
        assert len(set(taken)) == 1


def test_both_domains_are_on_one_device() -> None:
    buffer = TwoDomainReplayBuffer(10, Still.observation_space, Still.action_space, device="cpu")
    buffer.device = th.device("meta")
    assert {part.device.type for part in buffer.parts().values()} == {"meta"}


def test_domains_made_by_default_have_the_sources_arguments() -> None:
    pytest.importorskip("mujoco", reason="needs MuJoCo (the odrl extra)")
    env = gym.make("odrl/hopper-friction-0.5-v0", domain="source", max_episode_steps=77, healthy_reward=5.0)
    model = SAC("MlpPolicy", env, replay_buffer_class=TwoDomainReplayBuffer, **tiny())
    callback = OffDynamicsCallback()
    model.learn(1, callback=callback)
    made = dict(target=callback._target_env, source=callback._eval_envs["source"])
    for domain, venv in (*made.items(), ("target", callback._eval_envs["target"])):
        assert venv.get_attr("spec")[0].max_episode_steps == 77
        assert venv.get_attr("_healthy_reward") == [5.0]
        factor = 0.5 if domain == "target" else 1
        np.testing.assert_allclose(venv.get_attr("model")[0].geom_friction, factor * env.unwrapped.model.geom_friction)


def test_odrl_task_itself_is_no_source() -> None:
    pytest.importorskip("mujoco", reason="needs MuJoCo (the odrl extra)")
    model = SAC("MlpPolicy", gym.make(of_group("odrl")[0].env_id), replay_buffer_class=TwoDomainReplayBuffer, **tiny())
    with pytest.raises(ValueError, match=r"must learn from the source domain: .* domain='source'"):
        model.learn(10, callback=OffDynamicsCallback())


def run(code: str, folder: Path) -> str:
    root = str(Path(sb3_cir.__file__).parent.parent)
    code = f"import sys; sys.path.insert(0, {root!r})\nimport sb3_cir.zoo; sb3_cir.zoo.register()\n{code}"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_zoo(tmp_path: Path) -> None:
    """With the yaml's own entry but for sizes: the source is trained in, both are evaluated, RL Zoo finds its model again."""
    pytest.importorskip("mujoco", reason="needs MuJoCo (the odrl extra)")
    pytest.importorskip("rl_zoo3", reason="needs RL Zoo (the zoo extra)")
    code = """
import rl_zoo3.exp_manager
import rl_zoo3.train, rl_zoo3.enjoy

create = rl_zoo3.exp_manager.ExperimentManager.create_envs
def create_envs(self, *args, eval_env=False, **kwargs):
    envs = create(self, *args, eval_env=eval_env, **kwargs)
    gravity = envs.envs[0].unwrapped.model.opt.gravity[2]
    print(f"{self.algo} {'evaluates' if eval_env else 'trains'} in {gravity:.3f}")
    return envs
rl_zoo3.exp_manager.ExperimentManager.create_envs = create_envs

tiny = ["learning_starts:40", "batch_size:16", "buffer_size:1000", "policy_kwargs:dict(net_arch=[16,16])"]
for algo in ("cir", "odrl_sac", "darc", "par"):
    common = ["--algo", algo, "--env", "odrl/walker2d-gravity-0.5-v0", "--device", "cpu", "--num-threads", "1"]
    sys.argv = ["train", *common, "-n", "100", "--eval-freq", "50", "--eval-episodes", "1", "-params", *tiny]
    rl_zoo3.train.train()
    sys.argv = ["enjoy", *common, "-f", "logs", "-n", "5", "--no-render", "--env-kwargs", "domain:'target'"]
    rl_zoo3.enjoy.enjoy()
"""
    out = run(code, tmp_path)
    for algo in ("cir", "odrl_sac", "darc", "par"):
        assert f"{algo} trains in -9.810" in out
        assert f"{algo} evaluates in -4.905" in out
        assert f"Loading logs/{algo}/odrl-walker2d-gravity-0.5-v0_1/odrl-walker2d-gravity-0.5-v0.zip" in out


ALGORITHMS = [
    functools.partial(CIR, convex_coef=0.3, replay_buffer_class=TwoDomainReplayBuffer),
    TwoDomainSAC,
    functools.partial(DARC, correction_starts=1000, classifier_arch=[16]),
    functools.partial(PAR, encoder_freq=20, encoder_width=16),
]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["CIR", "SAC", "DARC", "PAR"])
@pytest.mark.parametrize("task", [task.name for task in of_group("odrl")])
def test_2000_steps_of_the_papers_tasks(task: str, algorithm) -> None:
    """Each task learns by each method, with a tenth of the steps in the target; tiny networks, one update for ten steps."""
    pytest.importorskip("mujoco", reason="needs MuJoCo (the odrl extra)")
    arguments = tiny(learning_starts=200, train_freq=10)
    model = algorithm("MlpPolicy", gym.make(f"odrl/{task}-v0", domain="source"), **arguments)
    before = [parameter.clone() for parameter in model.policy.parameters()]
    callback = OffDynamicsCallback(eval_freq=0)
    model.learn(2000, callback=callback)
    assert callback.target_steps == 200
    assert model.replay_buffer.target.size() == 200
    assert model.replay_buffer.source.pos == 0  # 2,000 of 2,000: full, and about to begin again
    assert model.replay_buffer.source.full
    assert model._n_updates == 180 * getattr(model, "sample_reuse", 1)
    assert not all(map(th.equal, before, model.policy.parameters()))
    assert all(parameter.isfinite().all() for parameter in model.policy.parameters())
