"""A run that was interrupted and goes on: the same, bit by bit, as one that was not."""

import functools
import json
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from sb3_contrib import QRDQN, TQC, CrossQ
from small import PowerError, small
from stable_baselines3 import DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from test_off_dynamics import SOURCE, TARGET, Drift
from test_save_load import same_tensors
from torch import nn
from walk import Discrete, Stop, Walk, everything, make_env, pair

from sb3_cir import CIR
from sb3_cir.baselines import SACTanh, SACTanhNorm, SimBa
from sb3_cir.baselines.darc import DARC
from sb3_cir.baselines.par import PAR
from sb3_cir.baselines.two_domain_sac import TwoDomainSAC
from sb3_cir.buffers import DeviceReplayBuffer, SymmetricReplayBuffer
from sb3_cir.callbacks import Checkpoint
from sb3_cir.off_dynamics import OffDynamicsCallback, TwoDomainReplayBuffer
from sb3_cir.runs import resumable, rows
from sb3_cir.runs.files import checkpoints
from sb3_cir.runs.plain import from_plain, to_plain
from sb3_cir.runs.watch import FailedEnvError
from sb3_cir.smr import SMR

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
    "on the device": dict(replay_buffer_class=DeviceReplayBuffer, n_envs=3, buffer_size=90),
    "fixed temperature": dict(ent_coef=0.1),
    "schedule": dict(learning_rate=LinearSchedule(1e-2, 0.0, 1.0)),
    "other layers": dict(policy_kwargs=dict(activation_fn=nn.Tanh, net_arch=dict(pi=[8], qf=[8, 8, 8]))),
    "several updates": dict(train_freq=5, gradient_steps=3, sample_reuse=3),
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


def test_the_total_is_the_runs(tmp_path: Path) -> None:
    """The same line starts a run and continues it; SB3's own way to ask for more steps still does."""
    small(Walk()).learn(40, callback=Checkpoint(20, tmp_path))
    model = CIR.resume(tmp_path, Walk())
    assert model.learn(60).num_timesteps == 60
    assert model._total_timesteps == 60
    assert model.learn(10, reset_num_timesteps=False).num_timesteps == 70
    assert CIR.resume(tmp_path, Walk()).learn(10, reset_num_timesteps=False).num_timesteps == 50
    nothing = r"Nothing is left to learn: this run is at step 40, .* asked for 30 in all\. With reset"
    with pytest.warns(UserWarning, match=nothing):
        assert CIR.resume(tmp_path, Walk()).learn(30).num_timesteps == 40


def test_arguments_come_back(tmp_path: Path) -> None:
    noise = NormalActionNoise(np.zeros(1), 0.2 * np.ones(1))
    arguments = dict(gamma=0.9, convex_coef=0.7, train_freq=(2, "step"), n_steps=3, action_noise=noise, ent_coef="auto_0.5")
    small(Walk(), learning_rate=LinearSchedule(1e-3, 1e-4, 0.5), **arguments).learn(40, callback=Checkpoint(20, tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = CIR.resume(tmp_path, Walk(), tau=0.1)
    assert (model.gamma, model.convex_coef, model.n_steps, model.ent_coef, model.tau) == (0.9, 0.7, 3, "auto_0.5", 0.1)
    assert (model.train_freq.frequency, model.seed, model.batch_size, model.buffer_size) == (2, 0, 16, 500)
    assert model.lr_schedule(0.75) == pytest.approx(5.5e-4)
    assert repr(model.action_noise) == repr(noise)
    small(Walk(), learning_rate=lambda progress: 1e-3).learn(20, callback=Checkpoint(20, tmp_path / "other"))
    with pytest.raises(ValueError, match=r"step_20\.zip: learning_rate: .* in JSON; pass learning_rate=\.\.\.$"):
        CIR.resume(tmp_path / "other", Walk())
    assert CIR.resume(tmp_path / "other", Walk(), learning_rate=1e-3).num_timesteps == 20


def test_a_file_does_not_choose_what_is_run() -> None:
    for module, name in (("subprocess", "Popen"), ("os", "system"), ("not_there", "Net"), ("torch", "load")):
        with pytest.raises(ValueError, match="there is no class"):
            from_plain({":class:": f"{module}.{name}"})
    for value in (nn.ReLU, HerReplayBuffer, dict(a=(1, [2.5, None])), th.optim.AdamW):
        assert from_plain(json.loads(json.dumps(to_plain(value)))) == value


def test_what_does_not_fit(tmp_path: Path) -> None:
    small(Walk()).learn(20, callback=Checkpoint(20, tmp_path))
    with pytest.raises(ValueError, match="n_envs=2: it was 1"):
        CIR.resume(tmp_path, make_env([(0, 0)] * 2))
    with pytest.raises(ValueError, match="buffer_size=100: it was 500"):
        CIR.resume(tmp_path, Walk(), buffer_size=100)
    with pytest.raises(ValueError, match="VecNormalize: this model's environment was wrapped in it and the run's is not"):
        CIR.resume(tmp_path, make_env([(0, 0)], normalize=True))
    with pytest.raises(ValueError, match=r"latent_pi\.0\.weight is \(16, 2\) there, and \(8, 2\) here\.$"):
        CIR.resume(tmp_path, Walk(), policy_kwargs=dict(net_arch=[8, 8]))
    with pytest.raises(ValueError, match=r"step_20\.zip is a checkpoint: CIR\.resume"):
        CIR.load(tmp_path / "step_20.zip")
    shutil.copy(tmp_path / "step_20.zip", tmp_path / "best.zip")
    for read_it in (CIR.load, small(Walk()).set_parameters):
        with pytest.raises(
            ValueError, match=r"best\.zip is a checkpoint: CIR\.resume\(path, env\) reads it, as step_<n>\.zip in"
        ):
            read_it(tmp_path / "best.zip")
    with pytest.raises(ValueError, match="is of a CIR, not of a SimBa"):
        SimBa.resume(tmp_path, Walk())
    with pytest.raises(FileNotFoundError, match="no checkpoint that can be read"):
        CIR.resume(tmp_path / "nowhere", Walk())
    with pytest.raises(ValueError, match=r"it holds step 20 of another run. Continue that one with CIR.resume\(\), or choose"):
        small(Walk()).learn(20, callback=Checkpoint(20, tmp_path))
    with pytest.warns(UserWarning, match=r"HerReplayBuffer: no checkpoint can hold its infos \(copy_info_dict=True\)"):
        learn_her(tmp_path / "her", copy_info_dict=True)
    for arguments in (dict(every=0), dict(every=1, keep=0), dict(every=1, keep=1.5)):
        with pytest.raises(ValueError, match="must be a whole number of at least 1"):
            Checkpoint(folder=tmp_path, **arguments)
    with pytest.raises(ValueError, match=r"a SAC cannot be resumed. sb3_cir.runs.resumable\(SAC\) makes a class that can"):
        small(Walk(), model_class=SAC).learn(20, callback=Checkpoint(20, tmp_path / "sac"))


class Odd(ReplayBuffer):
    """One with plain values of its own, a column of its own, and something that no file holds."""

    def __init__(self, *args, alpha: float = 0.6, beta: float = 0, **kwargs):
        super().__init__(*args, **kwargs)
        self.alpha = alpha
        self.beta = beta
        self.largest = 1.0
        self.sums = np.zeros(3)
        self.weights = np.zeros((self.buffer_size, self.n_envs), np.float32)
        self.where = Path()

    def add(self, obs, *args):
        self.largest += 1
        self.beta += 0.01
        self.sums += 0.5
        self.weights[self.pos] = self.largest
        super().add(obs, *args)


def test_a_buffer_of_ones_own(tmp_path: Path) -> None:
    """What it keeps goes on; what cannot be kept is named."""
    kwargs = dict(replay_buffer_class=Odd, replay_buffer_kwargs=dict(alpha=0.3))
    with pytest.warns(UserWarning, match="Odd: no checkpoint can hold its where: a run that is resumed will be without"):
        model = small(Walk(), **kwargs).learn(30, callback=Checkpoint(10, tmp_path))
    found = CIR.resume(tmp_path, Walk(), replay_buffer_class=Odd).replay_buffer
    assert (found.alpha, found.largest, found.sums.tolist()) == (0.3, 31.0, [15.0] * 3)
    assert found.beta == pytest.approx(0.3)
    # What is asked for by name counts more.
    other = CIR.resume(tmp_path, Walk(), replay_buffer_class=Odd, replay_buffer_kwargs=dict(alpha=0.3, beta=0.9))
    assert (other.replay_buffer.beta, other.replay_buffer.largest) == (0.9, 31.0)
    other = CIR.resume(tmp_path, Walk(), replay_buffer_class=Odd, replay_buffer_kwargs=dict(alpha=np.full(3, 0.5)))
    assert other.replay_buffer.alpha.tolist() == [0.5] * 3
    np.testing.assert_array_equal(found.weights, model.replay_buffer.weights)


def test_a_file_of_before_has_no_arguments_of_a_buffer_of_ones_own(tmp_path: Path) -> None:
    buffer = small(Walk(), replay_buffer_class=Odd).replay_buffer
    saved = rows.describe(buffer, [])
    del saved.values["alpha"], saved.values["beta"]
    rows.check(buffer, saved, "it")
    buffer.beta = 0.5
    rows.load(buffer, saved, iter([]))
    assert buffer.beta == 0.5
    del saved.values["largest"]
    with pytest.raises(ValueError, match="The replay buffer's largest is not in it as it is here"):
        rows.check(buffer, saved, "it")


def test_rows_that_are_changed_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relabelled where they are, or added: the next checkpoint has them as they are then."""
    monkeypatch.setattr(rows, "BLOCK_BYTES", 300)

    class Relabel(BaseCallback):
        def _on_rollout_start(self) -> None:
            buffer = self.model.replay_buffer
            if self.num_timesteps == 35:
                buffer.rewards[3:20] = -7
                for _ in range(100):
                    buffer.add(np.ones(2), np.ones(2), np.ones(1), np.ones(1), np.zeros(1), [{}])

        def _on_step(self) -> bool:
            return True

    model = small(Walk(), learning_starts=1000, buffer_size=90)
    model.learn(60, callback=[Checkpoint(20, tmp_path), Relabel()])
    for name in ("observations", "rewards", "actions", "dones"):
        found = CIR.resume(tmp_path, Walk()).replay_buffer
        np.testing.assert_array_equal(getattr(found, name), getattr(model.replay_buffer, name))
    assert CIR.resume(tmp_path / "step_40.zip", Walk()).replay_buffer.pos == 50


def learn_her(folder: Path, **kwargs) -> CIR:
    arguments = dict(replay_buffer_class=HerReplayBuffer, replay_buffer_kwargs=kwargs, learning_starts=40)
    return small(Walk(form="goal"), "MultiInputPolicy", **arguments).learn(60, callback=Checkpoint(20, folder))


def test_an_episode_that_was_left_is_cut_off(tmp_path: Path) -> None:
    """With an environment that starts anew, nothing joins the last transition to the next one."""
    small(Walk(), n_steps=3).learn(30, callback=Checkpoint(30, tmp_path / "n"))
    model = CIR.resume(tmp_path / "n", Walk()).learn(40)
    assert np.flatnonzero(model.replay_buffer.timeouts[:40, 0]).tolist() == [22, 29]
    assert np.flatnonzero(model.replay_buffer.dones[:40, 0]).tolist() == [22]
    assert (model.replay_buffer.observations[29, 0, 1], model.replay_buffer.observations[30, 0, 1]) == (6, 0)

    kwargs = dict(optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False))
    small(Walk(), **kwargs).learn(30, callback=Checkpoint(30, tmp_path / "m"))
    model = CIR.resume(tmp_path / "m", Walk()).learn(40)
    assert np.flatnonzero(model.replay_buffer.dones[:40, 0]).tolist() == [22, 29]

    learn_her(tmp_path / "h")
    model = CIR.resume(tmp_path / "h", Walk(form="goal")).learn(90, callback=Checkpoint(10, tmp_path / "h"))
    lengths = model.replay_buffer.ep_length[:90, 0].tolist()
    assert lengths == [23] * 46 + [14] * 14 + [23] * 23 + [0] * 7
    again = CIR.resume(tmp_path / "h", Walk(form="goal"))
    assert again.replay_buffer.ep_length[:90, 0].tolist() == lengths


class Fails(gym.Wrapper):
    """Raises once, at its 15th step."""

    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 15:
            raise OSError("the simulator is gone")
        return super().step(action)


@pytest.mark.parametrize(
    ("kwargs", "end"),
    [
        (dict(n_steps=3), "timeouts"),
        (dict(optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False)), "dones"),
    ],
)
def test_an_episode_that_failed_is_cut_off(kwargs: dict, end: str) -> None:
    """When the same model goes on, nothing joins what was before the failure to the new episode."""
    model = small(Fails(Walk()), **kwargs)
    with pytest.raises(FailedEnvError, match="the simulator is gone"):
        model.learn(30)
    model.learn(20, reset_num_timesteps=False)
    buffer = model.replay_buffer
    assert (buffer.observations[13, 0, 1], buffer.observations[14, 0, 1]) == (13, 0)
    assert np.flatnonzero(getattr(buffer, end)[:34, 0]).tolist() == [13]


def test_her_after_a_failure() -> None:
    model = small(Fails(Walk(form="goal")), "MultiInputPolicy", replay_buffer_class=HerReplayBuffer, learning_starts=100)
    with pytest.raises(FailedEnvError, match="the simulator is gone"):
        model.learn(30)
    model.learn(30, reset_num_timesteps=False)
    assert model.replay_buffer.ep_length[:44, 0].tolist() == [14] * 14 + [23] * 23 + [0] * 7
    assert (model.replay_buffer.dones[13, 0], model.replay_buffer.timeouts[13, 0]) == (1, 1)  # left, not ended


class NumPys(DummyVecEnv):
    """A simulator of many environments: it counts them by NumPy, and has arrays of one number in an episode's record."""

    def __init__(self):
        super().__init__([Walk, Walk])
        self.num_envs = np.int64(2)

    def step_wait(self):
        *results, dones, infos = super().step_wait()
        for done, info in zip(dones, infos, strict=True):
            if done:
                info["episode"] = dict(r=np.array([2.5]), l=th.tensor(23), name="x", both=np.zeros(2))
        return *results, dones, infos


def test_numpys_numbers(tmp_path: Path) -> None:
    model = small(NumPys()).learn(60, callback=Checkpoint(60, tmp_path))
    model.save(tmp_path / "model")
    for found in (CIR.load(tmp_path / "model", device="cpu"), CIR.resume(tmp_path, NumPys(), device="cpu")):
        assert found.num_timesteps == 60
    assert list(found.ep_info_buffer) == [dict(r=2.5, l=23.0)] * 2


def test_episodes_without_a_time(tmp_path: Path) -> None:
    """Environments that are many in one keep their own accounts, often without SB3's seconds."""

    class Counts(Walk):
        def step(self, action):
            *results, done, info = super().step(action)
            return *results, done, {"episode": {"r": 1.5, "l": 23}} if done else info

    small(DummyVecEnv([Counts])).learn(60, callback=Checkpoint(30, tmp_path))
    assert list(CIR.resume(tmp_path, DummyVecEnv([Counts])).ep_info_buffer) == [{"r": 1.5, "l": 23.0}] * 2


def test_buffer_arguments_beside_n_steps(tmp_path: Path) -> None:
    kwargs = dict(n_steps=3, replay_buffer_kwargs=dict(handle_timeout_termination=False))
    small(Walk(), **kwargs).learn(40, callback=Checkpoint(20, tmp_path))
    buffer = CIR.resume(tmp_path, Walk()).replay_buffer
    assert (buffer.handle_timeout_termination, buffer.n_steps) == (False, 3)


class MyNSteps(NStepReplayBuffer):
    """One that SB3 does not choose."""


@pytest.mark.parametrize("kind", [MyNSteps, SymmetricReplayBuffer])
def test_a_buffer_of_n_steps_that_was_given(kind: type, tmp_path: Path) -> None:
    kwargs = dict(n_steps=3, gamma=0.99)
    model = small(Walk(), n_steps=3, replay_buffer_class=kind, replay_buffer_kwargs=kwargs, learning_starts=1000)
    model.learn(20, callback=Checkpoint(20, tmp_path))
    given = dict(replay_buffer_class=kind) if kind is MyNSteps else {}  # a class that no file may name
    found = CIR.resume(tmp_path, Walk(), **given)
    assert type(found.replay_buffer) is kind
    assert found.replay_buffer_kwargs == kwargs
    assert [part.n_steps for part in rows.first(found.replay_buffer)] == [3]


def test_other_n_steps(tmp_path: Path) -> None:
    """SB3 chooses another replay buffer for them, of the same rows."""
    small(Walk()).learn(20, callback=Checkpoint(20, tmp_path / "1"))
    found = CIR.resume(tmp_path / "1", Walk(), n_steps=3)
    assert (type(found.replay_buffer), found.replay_buffer.n_steps) == (NStepReplayBuffer, 3)
    found.learn(40, callback=Checkpoint(40, tmp_path / "3"))
    assert type(CIR.resume(tmp_path / "3", Walk(), n_steps=1).replay_buffer) is ReplayBuffer


def test_another_temperature(tmp_path: Path) -> None:
    small(Walk(), ent_coef=0.1).learn(40, callback=Checkpoint(20, tmp_path))
    assert CIR.resume(tmp_path, Walk()).ent_coef_tensor == pytest.approx(0.1)
    assert CIR.resume(tmp_path, Walk(), ent_coef=0.5).ent_coef_tensor == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"ent_coef='auto': the temperature of the run to resume .* was fixed"):
        CIR.resume(tmp_path, Walk(), ent_coef="auto")


def test_simba(tmp_path: Path) -> None:
    whole = small(Walk(), model_class=SimBa, policy_kwargs=dict(net_arch=dict(pi=[8], qf=[8]))).learn(60)
    model = small(Walk(), model_class=SimBa, policy_kwargs=dict(net_arch=dict(pi=[8], qf=[8])))
    with pytest.raises(PowerError) as power:
        model.learn(60, callback=[Checkpoint(20, tmp_path), Stop(40)])
    model = SimBa.resume(tmp_path, Walk(*power.value.args[0]))
    assert same_tensors(whole.get_parameters(), model.learn(60).get_parameters())


class Deaf(Walk):
    """Begins its episodes at random, and its observation does not say where it is: no run can go on in their midst."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=2).astype(np.float32)
        self.hidden = self.np_random.normal()
        return self.observe(), {}

    def step(self, action):
        observation, reward, *_ = super().step(action)
        return observation, reward + self.hidden, False, bool(self.np_random.random() < 0.04), {}


RESUMABLE: dict[str, dict[str, Any]] = {
    "CIR": dict(model_class=CIR),
    "SMR": dict(model_class=SMR),
    "SimBa": dict(model_class=SimBa, policy_kwargs=dict(net_arch=dict(pi=[8], qf=[8]))),
    "SACTanh": dict(model_class=SACTanh),
    "SACTanhNorm": dict(model_class=SACTanhNorm),
    "SAC": dict(model_class=resumable(SAC)),
    "TD3": dict(model_class=resumable(TD3), action_noise=NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))),
    # Its noise remembers, so that a new episode has to begin it anew.
    "DDPG": dict(model_class=resumable(DDPG), action_noise=OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.5 * np.ones(1))),
    "TQC": dict(model_class=resumable(TQC)),
    "CrossQ": dict(model_class=resumable(CrossQ)),
    "DQN": dict(model_class=resumable(DQN), discrete=True),
    "several, normalised": dict(model_class=CIR, n_envs=3, normalize=True),
}


@pytest.mark.parametrize("name", RESUMABLE)
def test_to_the_bit_with_episodes_that_begin_anew(name: str, tmp_path: Path) -> None:
    """For any off-policy algorithm: a run that was killed equals one that was not, and so do its evaluations."""
    kwargs = dict(RESUMABLE[name])
    n_envs, normalize = kwargs.pop("n_envs", 1), kwargs.pop("normalize", False)
    discrete = kwargs.pop("discrete", False)

    def env(n: int = n_envs):
        made = DummyVecEnv([lambda: Discrete(Deaf()) if discrete else Deaf()] * n)
        return VecNormalize(made) if normalize else made

    def callbacks(folder: Path, *more: BaseCallback) -> tuple[EvalCallback, list[BaseCallback]]:
        evaluated = env(1)
        evaluated.seed(5)
        evaluation = EvalCallback(evaluated, n_eval_episodes=2, eval_freq=15, log_path=str(folder), verbose=0, warn=False)
        return evaluation, [Checkpoint(30, folder, restart_episodes=True), evaluation, *more]

    make = functools.partial(small, **kwargs)
    expected, learning = callbacks(tmp_path / "whole")
    whole = make(env()).learn(120, callback=learning)
    _, learning = callbacks(tmp_path / "killed", Stop(76))
    with pytest.raises(PowerError):
        make(env()).learn(120, callback=learning)
    for seed in (random.seed, np.random.seed, th.manual_seed):
        seed(1)
    found, learning = callbacks(tmp_path / "killed")
    model = type(whole).resume(tmp_path / "killed", env())
    assert model.num_timesteps == 60
    model.learn(120, callback=learning)
    assert same_tensors(whole.get_parameters(), model.get_parameters())
    np.testing.assert_array_equal(whole.replay_buffer.observations, model.replay_buffer.observations)
    np.testing.assert_array_equal(whole.replay_buffer.rewards, model.replay_buffer.rewards)
    assert expected.evaluations_timesteps == found.evaluations_timesteps
    np.testing.assert_array_equal(expected.evaluations_results, found.evaluations_results)


@pytest.mark.parametrize(("kind", "arguments"), [(CIR, {}), (TwoDomainSAC, {}), (DARC, dict(correction_starts=20)), (PAR, {})])
def test_two_domains_to_the_bit(kind: type, arguments: dict, tmp_path: Path) -> None:
    def callbacks(folder: str, *more: BaseCallback) -> list[BaseCallback]:
        off_dynamics = OffDynamicsCallback(target=functools.partial(Drift, TARGET), eval_freq=0, target_freq=5)
        return [Checkpoint(40, tmp_path / folder, restart_episodes=True), off_dynamics, *more]

    make = functools.partial(small, model_class=kind, replay_buffer_class=TwoDomainReplayBuffer, **arguments)
    whole = make(Drift(SOURCE)).learn(160, callback=callbacks("whole"))
    with pytest.raises(PowerError):
        make(DummyVecEnv([lambda: Walkable(SOURCE)])).learn(160, callback=callbacks("killed", Stop(100)))
    model = kind.resume(tmp_path / "killed", Drift(SOURCE))
    assert model.num_timesteps == 80
    model.learn(160, callback=callbacks("killed"))
    assert same_tensors(whole.get_parameters(), model.get_parameters())
    for ours, theirs in zip(pair(whole), pair(model), strict=True):
        np.testing.assert_array_equal(ours.observations, theirs.observations)
        np.testing.assert_array_equal(ours.timeouts, theirs.timeouts)


class Walkable(Drift):
    """With the attribute that :class:`Stop` looks at."""

    state = (0.0,)


def test_sb3s_own_files_stay_sb3s(tmp_path: Path) -> None:
    """A model of a class that was made resumable is loaded by the class itself, and the other way round."""
    model = small(Walk(), model_class=resumable(SAC)).learn(30)
    model.save(tmp_path / "model")
    assert same_tensors(SAC.load(tmp_path / "model", device="cpu").get_parameters(), model.get_parameters())
    plain = small(Walk(), model_class=SAC).learn(30)
    plain.save(tmp_path / "plain")
    assert same_tensors(resumable(SAC).load(tmp_path / "plain", device="cpu").get_parameters(), plain.get_parameters())
    assert resumable(SAC) is resumable(SAC)


@pytest.mark.parametrize("kind", [DQN, QRDQN])
def test_discrete_actions_are_saved_and_loaded(kind: type, tmp_path: Path) -> None:
    model = small(Discrete(Walk()), model_class=resumable(kind), train_freq=1).learn(30)
    model.save(tmp_path / "model")
    loaded = resumable(kind).load(tmp_path / "model", Discrete(Walk()), "cpu")
    assert same_tensors(loaded.get_parameters(), model.get_parameters())
    assert (loaded.num_timesteps, loaded._n_calls) == (30, model._n_calls)
    assert loaded.learn(10, reset_num_timesteps=False).num_timesteps == 40
    with pytest.raises(ValueError, match="Action spaces do not match"):
        resumable(kind).load(tmp_path / "model", Walk(), "cpu")


def test_what_can_be_made_resumable() -> None:
    assert resumable(SAC) is resumable(SAC)
    assert resumable(CIR) is CIR
    with pytest.raises(TypeError, match="is no off-policy algorithm"):
        resumable(PPO)


def test_an_argument_under_another_name(tmp_path: Path) -> None:
    """It does not silently fall back to its default."""

    class Mine(CIR):
        def __init__(self, *args: Any, beta: float = 0.5, **kwargs: Any):
            self._beta = beta
            super().__init__(*args, **kwargs)

    small(Walk(), model_class=Mine, beta=0.9).learn(20, callback=Checkpoint(20, tmp_path))
    with pytest.raises(ValueError, match=r"beta: Mine keeps it under another name, or not at all; pass beta=\.\.\.$"):
        Mine.resume(tmp_path, Walk())
    assert Mine.resume(tmp_path, Walk(), beta=0.9)._beta == 0.9


def test_other_settings_are_named(tmp_path: Path) -> None:
    small(Walk()).learn(20, callback=Checkpoint(20, tmp_path))
    model = small(Walk(), convex_coef=1.0, batch_size=8)
    with pytest.warns(UserWarning, match=r"other settings than .* \(batch_size: 16 → 8; convex_coef: 0.3 → 1.0\)"):
        model.restore(tmp_path)


def normalised(**settings: Any) -> VecNormalize:
    return VecNormalize(DummyVecEnv([Walk]), **settings)


def test_the_settings_of_normalisation_come_back(tmp_path: Path) -> None:
    env = normalised(norm_reward=False, clip_obs=1.5, gamma=0.9)
    small(env).learn(30, callback=Checkpoint(every=30, folder=tmp_path))
    named = r"norm_reward=False in the place of True, clip_obs=1\.5 in the place of 10\.0, gamma=0\.9 in the place of 0\.99\."
    with pytest.warns(UserWarning, match=named):
        resumed = CIR.resume(tmp_path, normalised(), device="cpu")
    again = resumed.get_vec_normalize_env()
    assert (again.norm_reward, again.clip_obs, again.gamma) == (False, 1.5, 0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CIR.resume(tmp_path, normalised(norm_reward=False, clip_obs=1.5, gamma=0.9), device="cpu")

    # Into a model that is there already, whose settings stay.
    other = small(normalised(norm_reward=False, clip_obs=3.0, gamma=0.9))
    with pytest.warns(UserWarning, match=r"other settings than .*VecNormalize's clip_obs: 1\.5 → 3\.0"):
        other.restore(tmp_path)
    assert other.get_vec_normalize_env().clip_obs == 3.0


def test_a_normaliser_whose_settings_cannot_be_said(tmp_path: Path) -> None:
    env = normalised()
    env.clip_obs = np.ones(2)  # one for each number
    small(env).learn(30, callback=Checkpoint(every=30, folder=tmp_path))
    resumed = CIR.resume(tmp_path, normalised(clip_obs=7.0), device="cpu")
    assert resumed.get_vec_normalize_env().clip_obs == 7.0

    small(normalised()).learn(30, callback=Checkpoint(every=30, folder=tmp_path / "plain"))
    resumed = CIR.resume(tmp_path / "plain", env, device="cpu")
    assert resumed.get_vec_normalize_env().clip_obs.tolist() == [1, 1]


def test_the_log_goes_on_in_its_own_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for name in ("a", "b"):
        each = small(Walk(), tensorboard_log=str(tmp_path / "log"))
        each.learn(30, callback=Checkpoint(every=30, folder=tmp_path / name))
    assert each.logger.get_dir().endswith("CIR_2")

    def go_on(**named: Any) -> str:
        resumed = CIR.resume(tmp_path / "a", Walk(), device="cpu", tensorboard_log=str(tmp_path / "log"))
        return Path(resumed.learn(40, **named).logger.get_dir()).relative_to(tmp_path / "log").as_posix()

    assert go_on() == "CIR_1"
    assert go_on(tb_log_name="other") == "other_0"  # as SB3 has it
    elsewhere = CIR.resume(tmp_path / "a", Walk(), device="cpu", tensorboard_log=str(tmp_path / "new"))
    assert elsewhere.learn(40).logger.get_dir() == str(tmp_path / "new" / "CIR_1")
    assert elsewhere.learn(40, reset_num_timesteps=True).logger.get_dir() == str(tmp_path / "new" / "CIR_2")
