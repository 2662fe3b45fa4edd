"""The callback that ends a run with NaN or inf in it."""

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from small import small
from stable_baselines3 import A2C, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback, EveryNTimesteps
from stable_baselines3.common.logger import configure
from stable_baselines3.common.torch_layers import FlattenExtractor

from sb3_cir import CIR
from sb3_cir.baselines.darc import DARC
from sb3_cir.callbacks import Checkpoint, NonFiniteGuard, named_tensors


class Spoil(BaseCallback):
    """Put a value into one tensor at step 30."""

    def __init__(self, name: str, value: float):
        super().__init__()
        self.name, self.value = name, value

    def _on_step(self) -> bool:
        if self.num_timesteps == 30:
            tensor = dict(named_tensors(self.model))[self.name]
            with th.no_grad():
                tensor.view(-1)[0] = self.value
        return True


@pytest.mark.parametrize(
    ("name", "value"),
    [("critic.q_network.down.0.weight", th.nan), ("actor.mu.bias", th.inf), ("log_ent_coef", -th.inf)],
)
def test_parameter(tmp_path: Path, name: str, value: float) -> None:
    """Found without a train call, at the next step; the saved model has it too."""
    model = small("Pendulum-v1", gradient_steps=0)
    message = rf"^{value} in {re.escape(name)} at step 30: training has ended, the model as it is now was saved to (.*)\.$"
    with pytest.raises(ValueError, match=message) as caught:
        model.learn(60, callback=[Spoil(name, value), NonFiniteGuard(tmp_path / "here", check_freq=1)])
    (path,) = (tmp_path / "here").iterdir()
    assert re.match(message, str(caught.value))[1] == str(path)  # type: ignore[index]
    assert path.name == "non_finite_30_steps.zip"
    loaded = CIR.load(path, device="cpu")
    assert loaded.num_timesteps == 30
    np.testing.assert_array_equal(dict(named_tensors(loaded))[name].detach().view(-1)[0], np.float32(value))


@pytest.mark.parametrize("model_class", [CIR, SAC])
def test_loss(tmp_path: Path, model_class: type) -> None:
    """Found long before the parameters are looked at again. What was saved before is left as it was."""
    (tmp_path / "non_finite_30_steps.zip").write_text("mine")
    model = small("Pendulum-v1", model_class=model_class)
    name = next(name for name, _ in model.critic.named_parameters())
    message = r"^(nan|inf) in train/\w+ and (nan|inf) in \S+ at step 30: .*non_finite_30_steps_2\.zip\.$"
    with pytest.raises(ValueError, match=message):
        model.learn(60, callback=[Spoil(f"critic.{name}", th.inf), NonFiniteGuard(tmp_path)])
    assert (tmp_path / "non_finite_30_steps.zip").read_text() == "mine"


def test_loss_that_waits_for_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where a train call hands nothing to the logger."""
    train = CIR.train

    def train_alone(self: CIR, *args, **kwargs) -> None:
        self.record_scalars = lambda: None
        train(self, *args, **kwargs)
        del self.record_scalars

    monkeypatch.setattr(CIR, "train", train_alone)
    with pytest.raises(ValueError, match=r"nan in train/\w+ and nan in \S+ at step 30: .*non_finite_30_steps\.zip"):
        small("Pendulum-v1").learn(60, callback=[Spoil("critic.q_network.down.0.weight", th.nan), NonFiniteGuard(tmp_path)])
    model = small(gym.make("Pendulum-v1", max_episode_steps=20))
    model.set_logger(configure(str(tmp_path / "log"), ["csv"]))
    model.learn(60, log_interval=1)
    assert "train/critic_loss" in (tmp_path / "log" / "progress.csv").read_text().splitlines()[0].split(",")


class KeepsBack(SAC):
    """An algorithm of one's own that hands its losses to the logger when asked."""

    loss = 0.0

    def record_scalars(self) -> None:
        self.logger.record("train/loss", self.loss)


def test_loss_that_another_algorithm_keeps_back(tmp_path: Path) -> None:
    model = small("Pendulum-v1", model_class=KeepsBack)
    assert model.learn(30, callback=NonFiniteGuard(tmp_path)).num_timesteps == 30
    model.loss = math.nan
    with pytest.raises(ValueError, match=r"^nan in train/loss at step "):
        model.learn(30, callback=NonFiniteGuard(tmp_path))


def test_at_the_end(tmp_path: Path) -> None:
    """After the last train call no other step comes. The log's folder is where the model goes by default."""
    model = small("Pendulum-v1")
    model.set_logger(configure(str(tmp_path), ["csv"]))
    with pytest.raises(ValueError, match="at step 30: "):
        model.learn(30, callback=[Spoil("critic.q_network.down.0.weight", th.nan), NonFiniteGuard()])
    assert (tmp_path / "non_finite_30_steps.zip").exists()


def test_a_checkpoint_that_could_not_be_gone_on_from(tmp_path: Path) -> None:
    """It does not take the place of the last good one."""
    model = small("Pendulum-v1")
    with pytest.warns(UserWarning, match=r"No checkpoint of step 30 in .*: nan in .*; the last good one is step 25"):
        model.learn(30, callback=[Spoil("critic.q_network.down.0.weight", th.nan), Checkpoint(25, tmp_path, keep=1)])
    assert CIR.resume(tmp_path, "Pendulum-v1", device="cpu").num_timesteps == 25


def test_current_folder_without_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"saved to .*non_finite_30_steps\.zip"):
        small("Pendulum-v1").learn(30, callback=[Spoil("actor.mu.bias", th.nan), NonFiniteGuard()])
    assert (tmp_path / "non_finite_30_steps.zip").exists()


def test_large_is_not_infinite(tmp_path: Path) -> None:
    """Numbers whose squares overflow."""
    model = small("Pendulum-v1", gradient_steps=0)
    with th.no_grad():
        model.critic.q_network.down[0].weight.fill_(1e30)
    assert model.learn(30, callback=NonFiniteGuard(tmp_path, check_freq=1)).num_timesteps == 30
    assert not list(tmp_path.iterdir())


def test_within_a_callback_that_calls_now_and_then(tmp_path: Path) -> None:
    """SB3's pass on steps alone, no beginnings of rollouts."""
    name = "critic.q_network.down.0.weight"
    callback = [Spoil(name, th.nan), EveryNTimesteps(20, NonFiniteGuard(tmp_path))]
    with pytest.raises(ValueError, match=rf"^nan in {re.escape(name)} at step 40: "):
        small("Pendulum-v1", gradient_steps=0).learn(60, callback=callback)


def test_parameters_are_looked_at_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard, looks = NonFiniteGuard(tmp_path, check_freq=4), []
    monkeypatch.setattr(guard, "_check", lambda found: looks.append(guard.num_timesteps))
    small("Pendulum-v1", gradient_steps=0).learn(12, callback=guard)
    assert looks[:3] == [0, 4, 8]
    assert len(looks) <= 4  # and at the end


def test_a_model_that_cannot_be_saved(tmp_path: Path) -> None:
    """What was found is said all the same."""
    (tmp_path / "file").touch()
    callback = [Spoil("log_ent_coef", th.nan), NonFiniteGuard(tmp_path / "file", check_freq=1)]
    with pytest.raises(ValueError, match=r"^nan in log_ent_coef at step 30: .* as it is now could not be saved \("):
        small("Pendulum-v1", gradient_steps=0).learn(60, callback=callback)


def test_no_variance_to_explain(tmp_path: Path) -> None:
    """SB3 logs NaN for a single return, which is no fault."""
    model = A2C("MlpPolicy", "Pendulum-v1", n_steps=1, device="cpu")
    assert model.learn(5, callback=NonFiniteGuard(tmp_path)).num_timesteps == 5


class BadReward(gym.Wrapper):
    """NaN as the reward of one step."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1"))
        self.steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation, reward, *more = self.env.step(action)
        return observation, math.nan if self.steps == 40 else reward, *more


def test_a_rollout_is_looked_at_before_ppo_trains_on_it(tmp_path: Path) -> None:
    model = PPO("MlpPolicy", BadReward(), n_steps=64, batch_size=16, device="cpu")
    with pytest.raises(ValueError, match=r"^nan in rollout_buffer\.rewards at step 64: training has ended"):
        model.learn(64, callback=NonFiniteGuard(tmp_path))
    assert PPO.load(tmp_path / "non_finite_64_steps.zip", device="cpu").num_timesteps == 64


class SpoilAdvantages(BaseCallback):
    """As a normalisation of one's own may do."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.model.rollout_buffer.advantages[3] = np.nan


def test_advantages_are_looked_at_too(tmp_path: Path) -> None:
    model = PPO("MlpPolicy", "Pendulum-v1", n_steps=64, batch_size=16, device="cpu")
    with pytest.raises(ValueError, match=r"^nan in rollout_buffer\.advantages at step 64"):
        model.learn(64, callback=[SpoilAdvantages(), NonFiniteGuard(tmp_path)])


class Masked(FlattenExtractor):
    """With a buffer such as attention's causal mask."""

    def __init__(self, space: Any):
        super().__init__(space)
        self.register_buffer("mask", th.triu(th.full((3, 3), -math.inf), diagonal=1))


def test_a_mask_is_no_fault(tmp_path: Path) -> None:
    own = dict(policy_kwargs=dict(net_arch=[16, 16], features_extractor_class=Masked))
    model = small("Pendulum-v1", **own)
    model.learn(40, callback=[NonFiniteGuard(tmp_path, check_freq=1), Checkpoint(20, tmp_path / "checkpoints")])
    assert CIR.resume(tmp_path / "checkpoints", "Pendulum-v1", device="cpu", **own).num_timesteps == 40
    with th.no_grad():
        model.actor.features_extractor.mask[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"nan in .*mask at step 40"):
        model.learn(41, callback=NonFiniteGuard(tmp_path), reset_num_timesteps=False)


@pytest.mark.parametrize("check_freq", [0, math.nan])
def test_check_freq(check_freq: float) -> None:
    with pytest.raises(ValueError, match=f"check_freq={check_freq}: it must be a whole number of at least 1"):
        NonFiniteGuard(check_freq=check_freq)


def test_names() -> None:
    model = small("Pendulum-v1", model_class=DARC)
    names = {name for name, _ in named_tensors(model)}
    assert {"log_ent_coef", "actor.mu.weight", "critic_target.qf0.0.weight", "classifiers.sas.0.weight"} <= names


def test_zoo(tmp_path: Path) -> None:
    """By one line of yaml, in a run whose learning rate is absurd: the zoo's own final model is not written."""
    config = tmp_path / "cir.yml"
    config.write_text(
        "Pendulum-v1:\n  n_timesteps: 2000\n  policy: MlpPolicy\n  learning_rate: 1.0e+30\n  learning_starts: 50\n"
        "  policy_kwargs: dict(net_arch=[16])\n  callback: sb3_cir.callbacks.NonFiniteGuard\n"
    )
    program = "import sb3_cir.zoo; sb3_cir.zoo.register(); from rl_zoo3.train import train; train()"
    arguments = [
        "--algo",
        "cir",
        "--env",
        "Pendulum-v1",
        "-f",
        str(tmp_path / "logs"),
        "-conf",
        str(config),
        "--device",
        "cpu",
    ]
    run = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode != 0
    assert re.search(r"ValueError: (nan|inf) in train/\w+ and (nan|-?inf) in \S+ at step 5\d: training has ended", run.stderr)
    assert len(list(tmp_path.glob("non_finite_5*_steps.zip"))) == 1
    assert not list((tmp_path / "logs").rglob("Pendulum-v1.zip"))
