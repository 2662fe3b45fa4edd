"""Models on disk: what comes back, and what an interrupted run leaves."""

import copy
import errno
import io
import math
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from small import changed, small, weights
from stable_baselines3 import SAC, HerReplayBuffer
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv, SimpleMultiObsEnv
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import ConstantSchedule
from torch import nn

from sb3_cir import CIR
from sb3_cir.baselines import TD7, FlashSAC, SimbaV2
from sb3_cir.baselines.td7 import LAPReplayBuffer
from sb3_cir.baselines.two_domain_sac import TwoDomainSAC
from sb3_cir.buffers import DeviceReplayBuffer
from sb3_cir.callbacks import Checkpoint, NonFiniteGuard
from sb3_cir.cir_simba import CIRSimBa
from sb3_cir.off_dynamics import OffDynamicsCallback
from sb3_cir.runs import arguments, rows

OBSERVATIONS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


def same_tensors(ours: dict, theirs: dict) -> bool:
    """Whether two nested state dicts are equal."""
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same_tensors(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(same_tensors, ours, theirs))
    return th.equal(ours, theirs) if isinstance(ours, th.Tensor) else ours == theirs


def test_save_and_load(tmp_path: Path) -> None:
    """Networks, optimisers, temperature, arguments and counters come back, with and without an environment."""
    policy_kwargs = dict(n_critics=3, avg_r_norm_coef=0.4)
    model = small("Pendulum-v1", convex_coef=0.6, sample_reuse=3, learning_rate=1e-2, policy_kwargs=policy_kwargs).learn(30)
    model.save(tmp_path / "model")
    for env in (None, gym.make("Pendulum-v1")):
        loaded = CIR.load(tmp_path / "model", env=env, device="cpu")
        assert same_tensors(model.get_parameters(), loaded.get_parameters())
        assert th.equal(model.log_ent_coef, loaded.log_ent_coef)
        assert (loaded.convex_coef, loaded.sample_reuse) == (0.6, 3)
        assert (loaded.critic.n_critics, loaded.critic.q_network.avg_r_norm.coef) == (3, 0.4)
        assert (loaded.num_timesteps, loaded._n_updates) == (30, 30)
        actions = [each.predict(OBSERVATIONS, deterministic=True)[0] for each in (model, loaded)]
        np.testing.assert_array_equal(*actions)


def test_a_save_that_fails_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("Pendulum-v1").learn(30)
    model.save(tmp_path / "model")
    before = (tmp_path / "model.zip").read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    model.learn(30, reset_num_timesteps=False)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        model.save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model.zip"]
    assert (tmp_path / "model.zip").read_bytes() == before


def test_where_a_model_is_saved(tmp_path: Path) -> None:
    """As by SB3: a suffix is added where there is none, folders are made, and one in the way is left alone."""
    model = small("Pendulum-v1")
    (tmp_path / "taken.zip").mkdir()
    model.save(f"{tmp_path}/new/model")
    model.save(tmp_path / "model.best")
    with pytest.warns(UserWarning, match=r"taken\.zip is a folder. The model is saved as"):
        model.save(tmp_path / "taken")
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"new/model.zip", "model.best", "taken.zip_2"}


def test_continue_after_load(tmp_path: Path) -> None:
    model = small("Pendulum-v1").learn(30)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = CIR.load(tmp_path / "model", env=gym.make("Pendulum-v1"), device="cpu")
    loaded.load_replay_buffer(tmp_path / "buffer")
    before = weights(loaded)
    loaded.learn(15, reset_num_timesteps=False)
    assert (loaded.num_timesteps, loaded.replay_buffer.pos) == (45, 45)
    assert loaded._n_updates == 2 * (10 + 15)
    assert changed(before, loaded) == set(before)


def test_continue_is_the_same_training(tmp_path: Path) -> None:
    """A batch and a seed lead a loaded model where they lead the saved one: no optimiser state is lost."""
    model = small("Pendulum-v1").learn(30)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = CIR.load(tmp_path / "model", device="cpu")
    loaded.load_replay_buffer(tmp_path / "buffer")
    loaded.set_logger(model.logger)
    for each in (model, loaded):
        each.set_random_seed(7)
        each.train(gradient_steps=3, batch_size=16)
    assert not changed(weights(model), loaded)
    assert th.equal(model.log_ent_coef, loaded.log_ent_coef)


def test_load_with_other_arguments(tmp_path: Path) -> None:
    small("Pendulum-v1").save(tmp_path / "model")
    loaded = CIR.load(tmp_path / "model", device="cpu", convex_coef=1.0, sample_reuse=1, learning_rate=1e-5)
    assert (loaded.convex_coef, loaded.sample_reuse, loaded.lr_schedule(1.0)) == (1.0, 1, 1e-5)


def test_set_parameters() -> None:
    model, other = small("Pendulum-v1", seed=0), small("Pendulum-v1", seed=1)
    assert changed(weights(model), other)
    other.set_parameters(model.get_parameters())
    assert not changed(weights(model), other)


def test_set_parameters_leaves_the_optimisers_settings() -> None:
    """The variant with weight decay stays one. The rate is part of what is gone on with."""
    model = small("Pendulum-v1", learning_rate=1e-5).learn(30)
    other = small("Pendulum-v1", policy_kwargs=dict(critic_weight_decay=0.01))
    other.set_parameters(model.get_parameters())
    (group,) = other.critic.optimizer.param_groups
    assert (group["weight_decay"], group["decoupled_weight_decay"], group["lr"]) == (0.01, True, 1e-5)
    assert len(other.critic.optimizer.state) == len(group["params"])


@pytest.mark.parametrize("model_class", [SimbaV2, FlashSAC])
def test_set_parameters_of_more_environments(model_class: type) -> None:
    """What is of each environment begins anew, as from a file."""
    model = small(make_vec_env("Pendulum-v1", n_envs=3), model_class=model_class).learn(60)
    other = small("Pendulum-v1", model_class=model_class)
    other.set_parameters(model.get_parameters())
    assert not changed(weights(model), other)
    assert other.return_scale.returns.shape == (1,)
    assert other.learn(30).num_timesteps == 30


@pytest.mark.parametrize("sb3s_format", [False, True])
def test_set_parameters_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sb3s_format: bool) -> None:
    """Networks and optimisers, as with SB3; the temperature stays."""
    model, other = small("Pendulum-v1", seed=0).learn(30), small("Pendulum-v1", seed=1)
    monkeypatch.setattr(CIR, "sb3_archives", sb3s_format)
    model.save(tmp_path / "model")
    other.set_parameters(str(tmp_path / "model"))
    assert same_tensors(model.get_parameters(), other.get_parameters())
    assert not th.equal(model.log_ent_coef, other.log_ent_coef)


@pytest.mark.parametrize("sb3s_format", [False, True])
def test_set_parameters_of_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sb3s_format: bool) -> None:
    """What a file has is set and the rest stays, as with SB3; also where the file has more."""
    monkeypatch.setattr(CIR, "sb3_archives", sb3s_format)
    fixed, learned = small("Pendulum-v1", ent_coef=0.1).learn(30), small("Pendulum-v1", seed=1).learn(30)
    for saved, other in ((fixed, learned), (learned, fixed)):
        file = io.BytesIO()
        saved.save(file)
        with pytest.raises(
            ValueError, match=r"has actor.optimizer.*, this model .*: exact_match=False takes what both have\.$"
        ):
            other.set_parameters(file)
        temperature = copy.deepcopy(learned.ent_coef_optimizer.state_dict())
        with th.no_grad():
            other.actor.mu.weight.zero_()
        other.set_parameters(file, exact_match=False)
        for name in ("policy", "actor.optimizer", "critic.optimizer"):
            assert same_tensors(saved.get_parameters()[name], other.get_parameters()[name])
        assert same_tensors(temperature, learned.ent_coef_optimizer.state_dict())
    with pytest.raises(ValueError, match=r"policy_kwargs, or the environment, are not those of .*BytesIO"):
        small("Pendulum-v1", policy_kwargs=dict(net_arch=[8, 8])).set_parameters(file, exact_match=False)


class Named(th.optim.SGD):
    """With arguments that it must be given, and does not keep by their names."""

    def __init__(self, params: Any, lr: float, k: float):
        super().__init__(params, lr=lr, momentum=k)
        self.k = k

    def step(self, closure: Any = None) -> None:
        assert self.k == 0.3
        super().step(closure)


def test_an_optimizer_that_asks_for_arguments(tmp_path: Path) -> None:
    policy_kwargs = dict(optimizer_class=Named, optimizer_kwargs=dict(k=0.3))
    model = small("Pendulum-v1", policy_kwargs=policy_kwargs).learn(30, callback=Checkpoint(30, tmp_path / "run"))
    model.save(tmp_path / "model")
    loaded = CIR.load(tmp_path / "model", device="cpu")
    resumed = CIR.resume(tmp_path / "run", "Pendulum-v1", "cpu", policy_kwargs=model.policy_kwargs)
    before = weights(model)
    for each in (loaded, resumed):
        assert same_tensors(model.get_parameters(), each.get_parameters())
        assert "momentum_buffer" in each.critic.optimizer.state_dict()["state"][0]
    assert not changed(before, model)


class Counting(th.optim.Adam):
    """Counts for its group of parameters, as Prodigy and schedule-free optimisers do."""

    def __init__(self, params: Any, lr: float = 1e-3, weight_decay: float = 0.0):
        super().__init__(params, lr=lr, weight_decay=weight_decay)
        for group in self.param_groups:
            group.setdefault("k", 0)
            group.setdefault("d", 1.0)

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] += 1
            group["d"] *= 1.5
        super().step(closure)


@pytest.mark.parametrize("trusted", [True, False])
def test_an_optimizer_that_counts_for_itself(trusted: bool, tmp_path: Path) -> None:
    model = small("Pendulum-v1", policy_kwargs=dict(optimizer_class=Counting))
    model.learn(30, callback=Checkpoint(30, tmp_path / "run"))
    for group in model.critic.optimizer.param_groups:
        group["weight_decay"] = 0.1  # one of its arguments, which a file does not change
    model.save(tmp_path / "model")
    objects = {} if trusted else dict(policy_kwargs=model.policy_kwargs)
    loaded = CIR.load(tmp_path / "model", device="cpu", trusted=trusted, custom_objects=objects)
    resumed = CIR.resume(tmp_path / "run", "Pendulum-v1", "cpu", policy_kwargs=model.policy_kwargs)
    own = model.critic.optimizer.param_groups[0]
    for each in (loaded, resumed):
        group = each.critic.optimizer.param_groups[0]
        assert (group["k"], group["d"], group["weight_decay"]) == (own["k"], own["d"], 0.0)
        assert type(group["k"]) is int
    assert own["k"] == model._n_updates > 0


class LikeProdigy(Counting):
    """Keeps less of a parameter that is 0, and counts something only once it has begun."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if not self.state[parameter]:
                    start = parameter.detach().flatten().clone() if parameter.any() else th.tensor(0.0)
                    self.state[parameter]["p0"] = start
            group["d_hat"] = 2.0 * group["d"]
        momentum = {each: dict(self.state[each]) for each in self.state}
        for each in self.state:  # Adam begins where there is nothing
            self.state[each].pop("p0")
        super().step(closure)
        for each, state in momentum.items():
            self.state[each]["p0"] = state["p0"]


class LikeShampoo(th.optim.Adam):
    """Keeps a matrix for each axis, and more from its second step on."""

    def step(self, closure: Any = None) -> None:
        learned = {each: dict(state) for each, state in self.state.items() if state}
        for each, state in learned.items():
            self.state[each] = {key: value for key, value in state.items() if key not in ("axes", "slow", "told")}
        super().step(closure)
        for each in self.state:
            before = learned.get(each, {})
            axes = before.get("axes") or [th.zeros(n, n) for n in each.shape] + [[]]
            self.state[each]["axes"] = [axis + 1 if isinstance(axis, th.Tensor) else axis for axis in axes]
            self.state[each]["told"] = {"no": "number"}
            if before:
                self.state[each]["slow"] = before.get("slow", 0) + 0.5


@pytest.mark.parametrize("steps", [6, 30])
@pytest.mark.parametrize("kind", [LikeProdigy, LikeShampoo])
def test_optimizers_that_torch_does_not_have(kind: type, steps: int, tmp_path: Path) -> None:
    """After one update, when not all is there yet, and after many."""
    model = small("Pendulum-v1", policy_kwargs=dict(optimizer_class=kind), learning_starts=5, sample_reuse=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LikeShampoo: its told is a dict, which is not saved")
        model.learn(steps, callback=Checkpoint(steps, tmp_path / "run"))
        model.save(tmp_path / "model")
        loaded = CIR.load(tmp_path / "model", device="cpu")
        resumed = CIR.resume(tmp_path / "run", "Pendulum-v1", "cpu", policy_kwargs=model.policy_kwargs)
    other = small("Pendulum-v1", policy_kwargs=model.policy_kwargs).learn(40)  # its p0 have other forms
    other.set_parameters(str(tmp_path / "model"))
    told = small("Pendulum-v1", policy_kwargs=model.policy_kwargs)
    told.set_parameters(model.get_parameters())
    for each in (loaded, resumed, other, told):
        theirs, own = (m.critic.optimizer.state_dict() for m in (each, model))
        assert {k: v for k, v in theirs["param_groups"][0].items() if k != "lr"} == {
            k: v for k, v in own["param_groups"][0].items() if k != "lr"
        }
        for index, state in own["state"].items():
            kept = {key: value for key, value in state.items() if key != "told"}
            assert same_tensors(kept, {key: value for key, value in theirs["state"][index].items() if key != "told"})
            assert [type(value) for value in kept.values()] == [type(theirs["state"][index][key]) for key in kept]


class OddExtractor(FlattenExtractor):
    """Holds a part in bfloat16, as a frozen network may be, and something that is no tensor."""

    def __init__(self, observation_space: gym.Space):
        super().__init__(observation_space)
        self.frozen = nn.Linear(2, 2).to(th.bfloat16).requires_grad_(False)

    def get_extra_state(self) -> dict[str, Any]:
        return {"version": "2"}

    def set_extra_state(self, state: Any) -> None:
        pass


def test_parts_that_numpy_cannot_hold(tmp_path: Path) -> None:
    model = small("Pendulum-v1", policy_kwargs=dict(features_extractor_class=OddExtractor))
    with pytest.warns(
        UserWarning, match=r"actor\.features_extractor\._extra_state.*: what get_extra_state\(\) gives is not saved"
    ):
        model.learn(30, callback=[Checkpoint(30, tmp_path / "run"), NonFiniteGuard()]).save(tmp_path / "model")
    before = weights(model)
    for loaded in (
        CIR.load(tmp_path / "model", device="cpu"),
        CIR.resume(tmp_path / "run", "Pendulum-v1", "cpu", policy_kwargs=model.policy_kwargs),
    ):
        assert not changed(before, loaded)
        assert loaded.actor.features_extractor.frozen.weight.dtype is th.bfloat16


class OwnKinds(CIR):
    """Keeps something else under the names of its arguments than it took, and declares kinds that are no classes."""

    def __init__(
        self, *args: Any, mode: Literal["fast", "slow"] = "fast", depth: str = "10", betas: Any = "0.9", **kwargs: Any
    ):
        self.mode, self.depth, self.betas = mode, int(depth), [float(each) for each in betas.split(",")]
        super().__init__(*args, **kwargs)


def test_a_class_with_arguments_of_its_own(tmp_path: Path) -> None:
    """As with a subclass of SAC, what it keeps comes back."""
    model = small("Pendulum-v1", model_class=OwnKinds, mode="slow", betas="0.9,0.99").learn(30)
    model.save(tmp_path / "model")
    for trusted in (True, False):
        loaded = OwnKinds.load(tmp_path / "model", device="cpu", trusted=trusted)
        assert (loaded.mode, loaded.depth, loaded.betas) == ("slow", 10, [0.9, 0.99])
        assert not changed(weights(model), loaded)


def test_what_is_asked_for_is_what_the_constructor_makes_of_it(tmp_path: Path) -> None:
    """RL Zoo passes a ``ConstantSchedule`` as the rate, of which SimbaV2 takes the number; and 2.0 is no index to Python."""
    kwargs = dict(learning_starts=20, batch_size=16, buffer_size=500, policy_kwargs=dict(net_arch=dict(pi=[8], qf=[8])))
    SimbaV2("MlpPolicy", "Pendulum-v1", **kwargs).save(tmp_path / "model")
    loaded = SimbaV2.load(tmp_path / "model", learning_rate=ConstantSchedule(1e-3))
    assert loaded.learning_rate == 1e-3
    small("Pendulum-v1").save(tmp_path / "cir")
    model = CIR.load(tmp_path / "cir", env=gym.make("Pendulum-v1"), sample_reuse=3.0)
    assert model.sample_reuse == 3
    assert model.learn(30)._n_updates % 3 == 0


class Narrow(CIR):
    """Fixes arguments of its base class."""

    discount = 0.95

    def __init__(self, env: Any, width: int = 16, **kwargs: Any):
        self.width = width
        super().__init__("MlpPolicy", env, policy_kwargs=dict(net_arch=[width] * 2), gamma=self.discount, **kwargs)


def test_a_class_that_fixes_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of its own loads without a word. Where the class has changed since, a file that is not trusted leaves it so."""
    model = Narrow("Pendulum-v1", width=8, learning_starts=20, batch_size=16, buffer_size=500, tau=0.1, device="cpu")
    model.learn(30, callback=Checkpoint(30, tmp_path / "run")).save(tmp_path / "model")

    def load(trusted: bool) -> Narrow:
        return Narrow.load(tmp_path / "model", device="cpu", trusted=trusted)

    def resume() -> Narrow:
        return Narrow.resume(tmp_path / "run", "Pendulum-v1", "cpu")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for loaded in (load(True), load(False), resume(), Narrow.load(tmp_path / "model", device="cpu", gamma=0.9)):
            assert same_tensors(model.get_parameters(), loaded.get_parameters())
            assert (loaded.width, loaded.tau, loaded.policy_class) == (8, 0.1, model.policy_class)
        assert (resume().gamma, loaded.gamma) == (0.95, 0.9)
    monkeypatch.setattr(Narrow, "discount", 0.97)
    assert load(True).gamma == 0.95
    for again in (lambda: load(False), resume):
        with pytest.warns(UserWarning, match=r"The model has other settings than .*\.zip \(gamma: 0\.95 → 0\.97\)\.$"):
            assert again().gamma == 0.97
    with pytest.raises(ValueError, match=r"step_30\.zip: .* multiple values for .*'gamma'"):
        Narrow.resume(tmp_path / "run", "Pendulum-v1", "cpu", gamma=0.9)


# What constructors take though they declare something else.
OTHER_KINDS: list[dict[str, Any]] = [
    dict(
        buffer_size=np.int64(500),
        learning_starts=np.int64(20),
        batch_size=np.int64(16),
        gradient_steps=np.int64(2),
        n_steps=np.int64(3),
        target_update_interval=np.int64(2),
        sde_sample_freq=np.int64(4),
        sample_reuse=np.int64(3),
        gamma=np.float32(0.9),
        tau=np.float32(0.1),
        ent_coef=np.float32(0.1),
        convex_coef=np.float32(0.5),
        entropy_in_target=np.bool_(False),
    ),
    dict(verbose=True, use_sde=1, entropy_in_target=0, sample_reuse=3.0, gradient_steps=-2, sde_sample_freq=-2, compile=0),
    dict(stats_window_size=None),
    dict(stats_window_size=0),
]


@pytest.mark.parametrize("given", OTHER_KINDS, ids=["numpy", "switches", "all episodes", "no episode"])
def test_values_of_other_kinds(tmp_path: Path, given: dict[str, Any]) -> None:
    """Each alone passes the look at what a file says; together they are loaded, trusted or not, and resumed."""
    for name, value in given.items():
        arguments.check(CIR, {name: value}, "a file")
    model = small("Pendulum-v1", tensorboard_log=tmp_path / "logs", **given)
    model.learn(30, callback=Checkpoint(30, tmp_path / "run")).save(tmp_path / "model")
    loaded = [CIR.load(tmp_path / "model", device="cpu", trusted=trusted) for trusted in (True, False)]
    assert [each.tensorboard_log for each in loaded] == [tmp_path / "logs", None]
    with pytest.warns(UserWarning, match=rf"tensorboard_log was {tmp_path / 'logs'}, which only you can say"):
        loaded.append(CIR.resume(tmp_path / "run", "Pendulum-v1", "cpu"))
    for each in loaded:
        assert {name: getattr(each, arguments.attribute(name)) for name in given} == given
        assert same_tensors(model.get_parameters(), each.get_parameters())


@pytest.mark.parametrize("name", ["model_v1.0", "model"])
def test_a_suffix_may_be_left_out(tmp_path: Path, name: str) -> None:
    """Whatever dots are in the name, and whatever folder is beside it."""
    model = small("Pendulum-v1").learn(30)
    model.save(tmp_path / f"{name}.zip")
    model.save_replay_buffer(tmp_path / f"{name}.safetensors")
    (tmp_path / name).mkdir()
    loaded = CIR.load(tmp_path / name, device="cpu")
    loaded.load_replay_buffer(str(tmp_path / name))
    assert not changed(weights(model), loaded)
    assert loaded.replay_buffer.pos == 30
    with pytest.raises(FileNotFoundError, match=r"model_v2\.0"):
        CIR.load(tmp_path / "model_v2.0")


BUFFERS: dict[str, Callable[[], Any]] = {
    "vector": lambda: small("Pendulum-v1"),
    "full": lambda: small("Pendulum-v1", buffer_size=30),
    "two environments": lambda: small(make_vec_env("Pendulum-v1", n_envs=2)),
    "n-step": lambda: small("Pendulum-v1", n_steps=3),
    "dict": lambda: small(SimpleMultiObsEnv(discrete_actions=False), "MultiInputPolicy"),
    "hindsight": lambda: small(
        BitFlippingEnv(n_bits=4, continuous=True), "MultiInputPolicy", replay_buffer_class=HerReplayBuffer
    ),
    "device": lambda: small("Pendulum-v1", replay_buffer_class=DeviceReplayBuffer),
    "memory": lambda: small(
        "Pendulum-v1", optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False)
    ),
    "volatile": lambda: small("Pendulum-v1", replay_buffer_class=Prioritised),
    "two domains": lambda: small("Pendulum-v1", model_class=TwoDomainSAC),
}


class Prioritised(ReplayBuffer):
    """With a column that changes all the time, and a number of its own."""

    volatile = ("priorities",)

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.priorities = np.zeros((self.buffer_size, self.n_envs), np.float32)
        self.largest = 1.0

    def add(self, *args: Any) -> None:
        self.priorities[self.pos] = self.largest = self.largest + 0.5
        super().add(*args)


def rows_of(model: Any) -> dict[str, Any]:
    """All that its replay buffers hold."""
    return {
        f"{name} {key}": value
        for name, part in rows.parts(model.replay_buffer).items()
        for key, value in (rows.columns(part) | rows.values(part) | dict(pos=part.pos, full=part.full)).items()
    }


def learned(kind: str) -> Any:
    """A model whose replay buffer has something in each of its parts."""
    model = BUFFERS[kind]()
    two = kind == "two domains"
    return model.learn(50, callback=OffDynamicsCallback("Pendulum-v1", target_freq=2, eval_freq=0) if two else None)


@pytest.mark.parametrize("kind", BUFFERS)
def test_a_replay_buffer_comes_back(kind: str, tmp_path: Path) -> None:
    model, loaded = learned(kind), BUFFERS[kind]()
    model.save_replay_buffer(tmp_path / "buffer")
    loaded.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=False, trusted=False)
    ours, theirs = rows_of(model), rows_of(loaded)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if isinstance(value, np.ndarray):
            filled = slice(None) if ours[f"{name.split()[0]} full"] else slice(ours[f"{name.split()[0]} pos"])
            np.testing.assert_array_equal(value[filled], theirs[name][filled], err_msg=name)
        else:
            assert value == theirs[name], name
    np.random.seed(0)
    th.manual_seed(0)
    ours = model.replay_buffer.sample(8)
    np.random.seed(0)
    th.manual_seed(0)
    assert all(same_tensors(*pair) for pair in zip(ours, loaded.replay_buffer.sample(8), strict=True))


@pytest.mark.parametrize("kind", [".safetensors", ".pkl"])
def test_n_step_returns_do_not_run_into_another_models_episode(kind: str, tmp_path: Path) -> None:
    model, loaded = learned("n-step"), learned("n-step")
    if kind == ".pkl":
        (tmp_path / "buffer.pkl").write_bytes(pickle.dumps(model.replay_buffer))
    else:
        model.save_replay_buffer(tmp_path / "buffer")
    loaded.load_replay_buffer(tmp_path / f"buffer{kind}", trusted=True)
    buffer = loaded.replay_buffer
    assert buffer.timeouts[buffer.pos - 1].all()


@pytest.mark.parametrize("kind", ["vector", "n-step", "hindsight", "two domains"])
def test_a_replay_buffer_of_another_size(kind: str, tmp_path: Path) -> None:
    """The size that was saved counts, as with SB3, also for the checkpoints that follow."""
    model, other = learned(kind), BUFFERS[kind]()
    other.buffer_size, other.replay_buffer = 60, None
    other._setup_model()
    model.save_replay_buffer(tmp_path / "buffer")
    other.load_replay_buffer(tmp_path / "buffer")
    assert other.buffer_size == 500
    assert rows_of(other).keys() == rows_of(model).keys()
    assert len(other.replay_buffer.sample(8).rewards) == 8
    if kind == "vector":
        with pytest.warns(UserWarning, match="No update will be made"):
            other.learn(10, callback=Checkpoint(10, tmp_path / "checkpoints"))
        assert CIR.resume(tmp_path / "checkpoints", "Pendulum-v1", device="cpu").replay_buffer.pos == 60


def test_a_rate_that_falls_to_0(tmp_path: Path) -> None:
    """Runs end past their total where that is amid a rollout: no rate is negative there."""
    env = make_vec_env("Pendulum-v1", n_envs=3)
    model = small(env, learning_rate=lambda left: left * 1e-3).learn(100, callback=Checkpoint(51, tmp_path / "checkpoints"))
    assert model.num_timesteps == 102
    assert model.actor.optimizer.param_groups[0]["lr"] == 0
    model.save(tmp_path / "model")
    assert not changed(weights(model), CIR.load(tmp_path / "model", device="cpu"))


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
def test_a_rate_that_is_none(tmp_path: Path, rate: float) -> None:
    """A schedule may fail in the last update. What was learned before is saved all the same."""
    model = small("Pendulum-v1").learn(30)
    model.critic.optimizer.param_groups[0]["lr"] = rate
    model.save(tmp_path / "model")
    assert not changed(weights(model), CIR.load(tmp_path / "model", device="cpu"))


def test_hindsight_without_an_environment(tmp_path: Path) -> None:
    learned("hindsight").save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"model\.zip: a HerReplayBuffer needs an environment: pass env=\.\.\.$"):
        CIR.load(tmp_path / "model", device="cpu")


def test_replay_buffers_that_are_refused(tmp_path: Path) -> None:
    model = learned("vector")
    OffPolicyAlgorithm.save_replay_buffer(model, tmp_path / "buffer.pkl")
    with pytest.raises(ValueError, match=r"buffer\.pkl is a pickle, which can run any code: pass trusted=True"):
        model.load_replay_buffer(tmp_path / "buffer.pkl", trusted=False)
    loaded = small("Pendulum-v1")
    loaded.load_replay_buffer(tmp_path / "buffer.pkl")
    assert loaded.replay_buffer.pos == 50
    five = small("Pendulum-v1", n_steps=5, gamma=0.9).learn(30)
    OffPolicyAlgorithm.save_replay_buffer(five, tmp_path / "five.pkl")
    three = small("Pendulum-v1", n_steps=3)
    three.load_replay_buffer(tmp_path / "five.pkl")  # its rows, not the steps and the discount of its returns
    assert (three.replay_buffer.pos, three.replay_buffer.n_steps, three.replay_buffer.gamma) == (30, 3, 0.99)
    path = tmp_path / "buffer.safetensors"
    model.save_replay_buffer(path)
    for other, message in (
        (small(make_vec_env("Pendulum-v1", n_envs=2)), "n_envs=2: it was 1"),
        (small("MountainCarContinuous-v0"), r"observations were float32 of shape \(3,\) .* and are float32 of shape \(2,\)"),
        (BUFFERS["volatile"](), "priorities were not there"),
    ):
        with pytest.raises(ValueError, match=message):
            other.load_replay_buffer(path)
        assert other.replay_buffer.size() == 0
    content = bytearray(path.read_bytes())
    for place in (-9, content.index(b"pos") + 7):  # a number, and what is said of them
        altered = bytearray(content)
        altered[place] ^= 1
        path.write_bytes(altered)
        with pytest.raises(ValueError, match=r"buffer\.safetensors"):
            loaded.load_replay_buffer(path)
    assert loaded.replay_buffer.pos == 50


class Interrupt(BaseCallback):
    """Ctrl-C at one step."""

    def __init__(self, step: int):
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        if self.num_timesteps == self.step:
            raise KeyboardInterrupt
        return True


def test_interrupted_run(tmp_path: Path) -> None:
    model = small("Pendulum-v1")
    with pytest.raises(KeyboardInterrupt):
        model.learn(1000, callback=Interrupt(30))
    model.save(tmp_path / "model")
    loaded = CIR.load(tmp_path / "model", env=gym.make("Pendulum-v1"), device="cpu")
    assert not changed(weights(model), loaded)
    assert loaded.learn(30, reset_num_timesteps=False).num_timesteps == 60


TRAIN = "import sb3_cir.zoo; sb3_cir.zoo.register(); from rl_zoo3.train import train; train()"


def members(group: int) -> set[int]:
    """The ids of a process group's living processes."""
    states = {int(path.parent.name): path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat")}
    return {pid for pid, (state, _, its_group, *_) in states.items() if int(its_group) == group and state != "Z"}


def wait_for(condition: Callable[[], bool], run: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert run.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds worker processes in /proc")
@pytest.mark.parametrize("vec_env", ["dummy", "subproc"])
def test_interrupted_zoo_run(tmp_path: Path, vec_env: str) -> None:
    """
    Ctrl-C in a terminal: SIGINT to the run and to its worker processes. Who gets it first is chance, so here the workers are
    gone before the run sees it.
    """
    arguments = ["--algo", "cir", "--env", "Pendulum-v1", "-f", str(tmp_path), "-n", "1000000", "--vec-env", vec_env]
    parameters = [
        "-params",
        "policy_kwargs:dict(net_arch=[16])",
        "learning_starts:50",
        "batch_size:16",
        "n_envs:2",
        "train_freq:10",
    ]
    command = [sys.executable, "-c", TRAIN, *arguments, "--log-interval", "1", *parameters]
    log = tmp_path / "log.txt"
    with log.open("w") as output:
        run = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        wait_for(lambda: "n_updates" in log.read_text(), run, log)
        os.kill(run.pid, signal.SIGSTOP)
        others = members(run.pid) - {run.pid}
        for pid in others:
            os.kill(pid, signal.SIGINT)
        workers = 2 if vec_env == "subproc" else 0
        wait_for(lambda: len(members(run.pid) & others) <= len(others) - workers, run, log)
        os.kill(run.pid, signal.SIGINT)
        os.kill(run.pid, signal.SIGCONT)
        assert run.wait(timeout=300) == 0, log.read_text()
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    loaded = CIR.load(tmp_path / "cir/Pendulum-v1_1/Pendulum-v1.zip", env=gym.make("Pendulum-v1"), device="cpu")
    steps = loaded.num_timesteps
    assert loaded._n_updates > 0
    assert loaded.learn(10, reset_num_timesteps=False).num_timesteps == steps + 10


@pytest.mark.parametrize("trusted", [True, False])
def test_changed_arguments_count(trusted: bool, tmp_path: Path) -> None:
    """SB3 makes a buffer's class and arguments of some; what it made for the model that was saved does not stay."""
    noise = NormalActionNoise(np.zeros(1), np.ones(1))
    env = make_vec_env("Pendulum-v1", n_envs=4)
    small(env, n_steps=3, action_noise=noise).learn(40).save(tmp_path / "model")

    def load(**kwargs: Any) -> CIR:
        env = make_vec_env("Pendulum-v1", n_envs=2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return CIR.load(tmp_path / "model", env=env, device="cpu", trusted=trusted, **kwargs)

    buffer = load().learn(40).replay_buffer  # with noise for two environments
    assert (buffer.n_steps, buffer.gamma) == (3, 0.99)
    model = load(n_steps=5, gamma=0.9, stats_window_size=7)
    assert (model.replay_buffer.n_steps, model.replay_buffer.gamma, model.gamma) == (5, 0.9, 0.9)
    assert model._stats_window_size == 7
    assert type(load(n_steps=1).replay_buffer) is ReplayBuffer


@pytest.mark.parametrize(("model_class", "kind"), [(CIRSimBa, NStepReplayBuffer), (CIR, DeviceReplayBuffer)])
def test_sb3s_buffer_in_a_method_with_another(model_class: type, kind: type, tmp_path: Path) -> None:
    """SB3 would put its own buffer in the place of the method's, whose returns over three steps would be lost."""
    recorded = small("Pendulum-v1", model_class=SAC).learn(50)
    recorded.save_replay_buffer(tmp_path / "buffer")
    device = dict(replay_buffer_class=DeviceReplayBuffer) if kind is DeviceReplayBuffer else {}
    model = small("Pendulum-v1", model_class=model_class, **device)
    model.load_replay_buffer(tmp_path / "buffer")
    assert type(model.replay_buffer) is kind
    assert model.replay_buffer.size() == 50
    np.testing.assert_array_equal(model.replay_buffer.rewards[:50], recorded.replay_buffer.rewards[:50])
    model.learn(30, reset_num_timesteps=False)


def test_sb3s_buffer_that_a_method_cannot_learn_from(tmp_path: Path) -> None:
    small("Pendulum-v1", model_class=SAC).learn(50).save_replay_buffer(tmp_path / "buffer")
    model = small("Pendulum-v1", model_class=TD7)
    with pytest.raises(ValueError, match=r"buffer\.pkl"):
        model.load_replay_buffer(tmp_path / "buffer")
    assert type(model.replay_buffer) is LAPReplayBuffer


def test_an_argument_that_there_is_not(tmp_path: Path) -> None:
    small("Pendulum-v1").learn(30, callback=Checkpoint(every=30, folder=tmp_path / "checkpoints")).save(tmp_path / "model")
    wrong = r"CIR has no argument 'convex_coeff': did you mean 'convex_coef'\?"
    for trusted in (True, False):
        with pytest.raises(TypeError, match=wrong):
            CIR.load(tmp_path / "model", convex_coeff=1.0, trusted=trusted)
    with pytest.raises(TypeError, match=wrong):
        CIR.resume(tmp_path / "checkpoints", "Pendulum-v1", convex_coeff=1.0)
    assert CIR.load(tmp_path / "model", convex_coef=1.0, _n_updates=7)._n_updates == 7  # what it keeps may be changed too


def test_set_parameters_wholly_or_not_at_all() -> None:
    model, other = small("Pendulum-v1"), SAC("MlpPolicy", "Pendulum-v1", policy_kwargs=dict(net_arch=[16, 16]), device="cpu")
    before = copy.deepcopy(model.get_parameters())
    with pytest.raises(ValueError, match="parameter group"):
        model.set_parameters(other.get_parameters(), exact_match=False)
    assert same_tensors(model.get_parameters(), before)


def test_sacs_actor_is_cirs(tmp_path: Path) -> None:
    """As docs/guide/data.md says."""
    sac = SAC("MlpPolicy", "Pendulum-v1", policy_kwargs=dict(net_arch=[16, 16]), learning_starts=5, device="cpu").learn(20)
    sac.save(tmp_path / "sac")
    sac.save_replay_buffer(tmp_path / "transitions")
    with pytest.raises(ValueError, match=r"sac\.zip is not of a CIR.* If it is of SB3's SAC, that loads it"):
        CIR.load(tmp_path / "sac")
    model = small("Pendulum-v1", learning_starts=0)
    model.actor.load_state_dict(sac.actor.state_dict())
    model.load_replay_buffer(tmp_path / "transitions")
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    actions = (each.predict(observations, deterministic=True)[0] for each in (model, sac))
    np.testing.assert_allclose(*actions, atol=1e-6)
    assert model.learn(5)._n_updates == 5 * model.sample_reuse


def test_a_buffer_of_other_environments(tmp_path: Path) -> None:
    """SB3's own, of the class that the model has too."""
    for env in ("Pendulum-v1", make_vec_env("Pendulum-v1", 2)):
        SAC("MlpPolicy", env, buffer_size=100).learn(4).save_replay_buffer(tmp_path / "transitions")
        model = small(make_vec_env("Pendulum-v1", 3))
        own = model.replay_buffer
        with pytest.raises(ValueError, match=r"transitions.*: the replay buffer in it has n_envs=\d, the model's n_envs=3"):
            model.load_replay_buffer(tmp_path / "transitions")
        assert model.replay_buffer is own
    with pytest.raises(ValueError, match=r"has obs_shape=\(3,\), the model's obs_shape=\(2,\)"):
        small(make_vec_env("MountainCarContinuous-v0", 2)).load_replay_buffer(tmp_path / "transitions")


def test_a_frequency_that_is_changed(tmp_path: Path) -> None:
    model = small("Pendulum-v1").learn(30)
    model.train_freq = 4
    n_updates = model._n_updates
    model.learn(8, reset_num_timesteps=False)
    assert model._n_updates == n_updates + 2 * model.sample_reuse
