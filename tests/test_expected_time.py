"""The line that says how long a run will take, on SB3's own algorithms."""

import re
import warnings

import pytest
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_cir.runs import expected_time
from sb3_cir.runs.expected_time import ExpectedTime, duration, with_expected_time

SMALL = dict(learning_starts=20, batch_size=8, buffer_size=500, policy_kwargs=dict(net_arch=[8]), device="cpu", seed=0)
LINE = re.compile(
    r"Expected time: (.+) for the ([\d,]+) steps that are left.*\(([\d.,]+) ms a step, measured over (\d+) updates"
)


def lines(output: str) -> list[tuple[str, ...]]:
    return [match.groups() for match in LINE.finditer(output)]


def test_one_line_once_enough_updates_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    SAC("MlpPolicy", "Pendulum-v1", **SMALL).learn(100, callback=ExpectedTime(updates=30))
    [(_, left, _, measured)] = lines(capsys.readouterr().out)
    # Updates begin at step 21; the first is not measured, and 30 more end at step 51.
    assert (left, measured) == ("49", "30")


class Clock(BaseCallback):
    """Takes its time: a little at every step, much at one."""

    now = 0.0

    def __init__(self, step: float = 0.02):
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        self.now += 0.5 if self.num_timesteps == 30 else self.step
        return True


def test_a_single_long_step_such_as_an_evaluation_does_not_count(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(expected_time.time, "perf_counter", lambda: clock.now)
    SAC("MlpPolicy", "Pendulum-v1", **SMALL).learn(60, callback=[ExpectedTime(updates=15), clock])
    [(_, left, milliseconds, _)] = lines(capsys.readouterr().out)
    # The mean would have another 0.48 s / 15 = 32 ms of the long one.
    assert (left, milliseconds) == ("24", "20")


@pytest.mark.parametrize(("step", "milliseconds"), [(0.00213, "2.13"), (0.165, "165"), (1.1512, "1,151")])
def test_milliseconds_are_written_as_numbers_are(
    step: float, milliseconds: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(step)
    monkeypatch.setattr(expected_time.time, "perf_counter", lambda: clock.now)
    SAC("MlpPolicy", "Pendulum-v1", **SMALL).learn(40, callback=[ExpectedTime(updates=5), clock])
    assert lines(capsys.readouterr().out)[0][2] == milliseconds


def test_several_environments_and_rounds_of_an_episode(capsys: pytest.CaptureFixture[str]) -> None:
    env = make_vec_env("Pendulum-v1", n_envs=2)
    SAC("MlpPolicy", env, gradient_steps=-1, **SMALL).learn(200, callback=ExpectedTime(updates=40))
    [(_, left, _, measured)] = lines(capsys.readouterr().out)
    assert int(measured) >= 40
    assert int(left) % 2 == 0
    arguments = {**SMALL, "learning_starts": 100}
    SAC("MlpPolicy", "Pendulum-v1", train_freq=(1, "episode"), gradient_steps=20, **arguments).learn(
        800, callback=ExpectedTime(updates=20)
    )
    assert lines(capsys.readouterr().out)[0][1] == "400"


def test_a_run_that_goes_on_measures_anew(capsys: pytest.CaptureFixture[str]) -> None:
    model = SAC("MlpPolicy", "Pendulum-v1", **SMALL).learn(100)
    model.learn(100, callback=ExpectedTime(updates=10), reset_num_timesteps=False)
    [(_, left, _, _)] = lines(capsys.readouterr().out)
    assert int(left) < 100


class Announcing(SAC):
    """As an algorithm of ours uses it: the one line in ``_init_callback``."""

    def _init_callback(self, callback, progress_bar=False):
        return super()._init_callback(with_expected_time(self, callback), progress_bar)


class Count(BaseCallback):
    def _on_step(self) -> bool:
        return True


@pytest.mark.parametrize("callback", [None, Count(), [Count(), Count()], lambda *_: True])
def test_learn_says_it_when_verbose(callback, capsys: pytest.CaptureFixture[str]) -> None:
    Announcing("MlpPolicy", "Pendulum-v1", **SMALL, verbose=1).learn(150, callback=callback, log_interval=None)
    assert len(lines(capsys.readouterr().out)) == 1
    Announcing("MlpPolicy", "Pendulum-v1", **SMALL).learn(150, callback=callback)
    assert not capsys.readouterr().out


def test_a_run_that_ends_before_learning_starts_says_so() -> None:
    model: OffPolicyAlgorithm = Announcing("MlpPolicy", "Pendulum-v1", **{**SMALL, "learning_starts": 2500})
    with pytest.warns(UserWarning, match=r"No update will be made: this run ends at step 200, and the first 2,500 steps"):
        model.learn(200)
    assert model._n_updates == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Announcing("MlpPolicy", "Pendulum-v1", **SMALL).learn(21)
        # A rollout of all environments goes on beyond the end.
        env = make_vec_env("Pendulum-v1", n_envs=8)
        assert Announcing("MlpPolicy", env, **{**SMALL, "learning_starts": 100}).learn(100)._n_updates > 0
    by_episode = Announcing("MlpPolicy", "Pendulum-v1", train_freq=(1, "episode"), **{**SMALL, "learning_starts": 100})
    with pytest.warns(
        UserWarning, match=r"No update will be made, unless the last episode ends later: this run ends at step 100"
    ):
        by_episode.learn(100)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "1 s"),
        (59.4, "59 s"),
        (61, "1 min 1 s"),
        (20 * 60 + 20, "20 min"),
        (3600, "1 h 0 min"),
        (11 * 3600 + 20 * 60, "11 h 20 min"),
        (100 * 3600, "4 d 4 h"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
