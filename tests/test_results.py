"""What callbacks have counted and found goes on with a run."""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import small
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
)
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from walk import Walk

from sb3_cir import CIR
from sb3_cir.callbacks import Checkpoint
from sb3_cir.runs.checkpoint import read


def test_more_episodes_in_an_evaluation(tmp_path: Path) -> None:
    """They are rows of one table: those of before are left, with a warning."""

    def evaluation(n: int) -> EvalCallback:
        return EvalCallback(DummyVecEnv([Walk]), n_eval_episodes=n, eval_freq=10, log_path=str(tmp_path), warn=False)

    small(Walk()).learn(40, callback=[Checkpoint(20, tmp_path), evaluation(2)])
    model, now = CIR.resume(tmp_path, Walk(), device="cpu"), evaluation(3)
    with pytest.warns(UserWarning, match="EvalCallback: the checkpoint's evaluations_.* cannot be put back"):
        model.learn(60, callback=[Checkpoint(20, tmp_path), now])
    assert (now.evaluations_timesteps, np.shape(now.evaluations_results)) == ([50, 60], (2, 3))
    assert now.best_mean_reward > -np.inf


def test_evaluation_goes_on(tmp_path: Path) -> None:
    """In step, with its best return and its past; and a model saved meanwhile has nothing of the checkpoints in it."""

    def evaluation() -> EvalCallback:
        path = str(tmp_path)
        return EvalCallback(
            Monitor(Walk()), n_eval_episodes=1, eval_freq=15, best_model_save_path=path, log_path=path, verbose=0
        )

    first = evaluation()
    small(Walk()).learn(50, callback=[Checkpoint(20, tmp_path / "checkpoints"), first])
    second = evaluation()
    CIR.resume(tmp_path / "checkpoints", Walk()).learn(70, callback=second)
    assert second.evaluations_timesteps == [15, 30, 45, 60]
    assert second.evaluations_results[:3] == [list(each) for each in first.evaluations_results]
    assert second.best_mean_reward >= first.best_mean_reward
    assert CIR.load(tmp_path / "best_model.zip", device="cpu").num_timesteps in (15, 30, 45, 60)


def test_what_callbacks_count_goes_on(tmp_path: Path) -> None:
    """SB3's own by their names; anybody's, what is numbers and was not given to the constructor."""

    class Mine(BaseCallback):
        def __init__(self, limit: int, path: str):
            super().__init__()
            self.limit, self.path, self.name, self._most = limit, path, path, 2 * limit
            self.seen, self.sums, self.array, self.pair = 0, [], np.zeros(2), (0, 0)
            self.newest: deque[int] = deque(maxlen=3)

        def _on_step(self) -> bool:
            self.seen += 1
            self.sums.append(self.seen)
            self.array += 1
            self.pair = (self.seen, -self.seen)
            self.newest.append(self.seen)
            return True

    def callbacks(limit: int, path: str) -> list[BaseCallback]:
        return [Mine(limit, path), StopTrainingOnMaxEpisodes(4), EveryNTimesteps(25, Mine(0, ""))]

    first = callbacks(3, "here")
    small(Walk()).learn(60, callback=[Checkpoint(30, tmp_path), *first])
    second = callbacks(5, "there")
    model = CIR.resume(tmp_path, Walk()).learn(200, callback=second)
    assert model.num_timesteps == 60 + 2 * 23  # the third and the fourth episode end there
    mine = second[0]
    assert (mine.limit, mine.path, mine.name, mine._most) == (5, "there", "there", 10)
    assert (mine.seen, mine.sums[:3], mine.array.tolist(), mine.pair) == (106, [1, 2, 3], [106.0, 106.0], (106, -106))
    assert (list(mine.newest), mine.newest.maxlen) == ([104, 105, 106], 3)
    assert second[2].last_time_trigger == 100


class Turns(BaseCallback):
    """Whose attributes become something else."""

    def __init__(self, n: int):
        super().__init__()
        self.best, self.last, self.long, self.too_long, self.n = None, 0, [], [], n

    def _on_step(self) -> bool:
        if self.n:
            self.best = self.later = self.num_timesteps
            self.last = [1.0, 2.0]
            self.long += [0.5] * self.n
            self.too_long = [0.5] * 300_000
        return True


def test_attributes_that_become_something_else(tmp_path: Path) -> None:
    """What was None or is long goes on; what cannot is named, when it is left out and when the run goes on without it."""
    with pytest.warns(UserWarning, match="Turns: no checkpoint can hold its too_long"):
        small(Walk()).learn(20, callback=[Checkpoint(20, tmp_path), Turns(600)])
    turns = Turns(0)
    with pytest.warns(UserWarning, match="Turns: the checkpoint's last, later cannot be put back"):
        CIR.resume(tmp_path, Walk()).learn(21, callback=turns)
    assert (turns.best, turns.last, len(turns.long)) == (20, 0, 12_000)


class TwoLists(BaseCallback):
    """Each of which a checkpoint has room for, and not for both."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.first = [], []

    def _on_step(self) -> bool:
        self.first = self.second = [0.5] * 150_000
        return True


def test_what_a_full_checkpoint_leaves_out(tmp_path: Path) -> None:
    """What stands last, whatever order a set has in this process."""
    with pytest.warns(UserWarning, match="TwoLists: no checkpoint can hold its first"):
        small(Walk()).learn(5, callback=[Checkpoint(5, tmp_path), TwoLists()])


class CountsEvaluations(EvalCallback):
    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.mine = 0

    def _on_step(self) -> bool:
        self.mine += 1
        return super()._on_step()


class SaysWhatGoesOn(CountsEvaluations):
    state = ("mine",)


@pytest.mark.parametrize("kind", [CountsEvaluations, SaysWhatGoesOn])
def test_evaluation_of_ones_own_goes_on(kind: type, tmp_path: Path) -> None:
    def evaluation() -> EvalCallback:
        return kind(Monitor(Walk()), n_eval_episodes=1, eval_freq=15, log_path=str(tmp_path), verbose=0)

    first, second = evaluation(), evaluation()
    small(Walk()).learn(40, callback=[Checkpoint(20, tmp_path), first])
    CIR.resume(tmp_path, Walk()).learn(41, callback=second)
    assert (second.mine, second.best_mean_reward) == (41, first.best_mean_reward)
    assert second.evaluations_timesteps == [15, 30]


class Clock(BaseCallback):
    """Counts, and notes when this start of a run began, as one that ends it before the cluster does."""

    def __init__(self, began: list[float]):
        super().__init__()
        self.steps, self.times = 0, iter(began)

    def _on_training_start(self) -> None:
        self.start, self.here = next(self.times), 0

    def _on_step(self) -> bool:
        self.steps += 1
        self.here += 1
        return True


@pytest.mark.parametrize("inside", [lambda clock: clock, lambda clock: CallbackList([EveryNTimesteps(1, clock)])])
def test_what_a_start_of_a_run_sets_stays(inside: Callable[[BaseCallback], BaseCallback], tmp_path: Path) -> None:
    """Also where a callback was in an earlier ``learn()``, and where it is another callback's. What changes later goes on."""
    clock = Clock([1.0, 2.0])
    model = small(Walk()).learn(20, callback=inside(clock))
    model.learn(20, callback=[Checkpoint(20, tmp_path), inside(clock)], reset_num_timesteps=False)
    (saved,) = read(tmp_path).manifest.callbacks["Clock"]
    assert saved == dict(n_calls=40, steps=40, here=20)
    clock = Clock([3.0])
    CIR.resume(tmp_path, Walk()).learn(45, callback=[Checkpoint(40, tmp_path), inside(clock)])
    assert (clock.start, clock.steps, clock.here) == (3.0, 45, 25)
    (saved,) = read(tmp_path).manifest.callbacks["Clock"]
    assert saved == dict(n_calls=45, steps=45, here=25)


def test_a_count_that_is_called_as_sb3s_lists(tmp_path: Path) -> None:
    class Mine(BaseCallback):
        def __init__(self):
            super().__init__()
            self.evaluations_done, self.evaluations_results = 0, 0.0

        def _on_step(self) -> bool:
            self.evaluations_done += 1
            self.evaluations_results += 0.5
            return True

    small(Walk()).learn(20, callback=[Checkpoint(20, tmp_path), Mine()])
    mine = Mine()
    CIR.resume(tmp_path, Walk()).learn(21, callback=mine)
    assert (mine.evaluations_done, mine.evaluations_results) == (21, 10.5)


def test_numbers_of_episodes(tmp_path: Path) -> None:
    """Also those that ``Monitor`` was asked for."""

    class Info(Walk):
        def step(self, action):
            *results, _ = super().step(action)
            return *results, {"score": 2.5, "name": "x"}

    env = Monitor(Info(), info_keywords=("score", "name"))
    small(env).learn(60, callback=Checkpoint(30, tmp_path))
    (first, second) = CIR.resume(tmp_path, env).ep_info_buffer
    assert first["score"] == second["score"] == 2.5
    assert "name" not in first
