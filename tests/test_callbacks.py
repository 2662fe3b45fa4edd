"""SB3's callbacks, loggers, progress bar and evaluation around CIR."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from small import small
from stable_baselines3.common.callbacks import (
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor

from sb3_cir import CIR


def short_pendulum() -> gym.Env:
    return Monitor(gym.make("Pendulum-v1", max_episode_steps=20))


def test_evaluation_and_checkpoints(tmp_path: Path) -> None:
    evaluation = EvalCallback(
        short_pendulum(),
        n_eval_episodes=2,
        eval_freq=25,
        log_path=str(tmp_path),
        best_model_save_path=str(tmp_path),
        verbose=0,
    )
    checkpoints = CheckpointCallback(save_freq=30, save_path=str(tmp_path), save_replay_buffer=True)
    small(short_pendulum()).learn(60, callback=[evaluation, checkpoints])
    with np.load(tmp_path / "evaluations.npz") as results:
        assert results["timesteps"].tolist() == [25, 50]
        assert results["results"].shape == (2, 2)
        assert (results["results"] < 0).all()
    assert CIR.load(tmp_path / "best_model").num_timesteps in (25, 50)
    loaded = CIR.load(tmp_path / "rl_model_30_steps")
    loaded.load_replay_buffer(tmp_path / "rl_model_replay_buffer_30_steps")
    # The callback comes before the step is stored.
    assert (loaded.num_timesteps, loaded.replay_buffer.pos) == (30, 29)


def test_stopping() -> None:
    assert small(short_pendulum()).learn(200, callback=StopTrainingOnMaxEpisodes(2)).num_timesteps == 40
    assert small(short_pendulum()).learn(200, callback=lambda values, _: values["self"].num_timesteps < 35).num_timesteps == 35
    reached = EvalCallback(
        short_pendulum(), callback_on_new_best=StopTrainingOnRewardThreshold(-1e9), eval_freq=25, n_eval_episodes=1, verbose=0
    )
    assert small(short_pendulum()).learn(200, callback=reached).num_timesteps == 25


def test_every_n_timesteps(tmp_path: Path) -> None:
    callback = EveryNTimesteps(15, CheckpointCallback(save_freq=1, save_path=str(tmp_path)))
    small(short_pendulum()).learn(45, callback=callback)
    assert {path.name for path in tmp_path.iterdir()} == {f"rl_model_{steps}_steps.zip" for steps in (15, 30, 45)}


def test_evaluate_policy() -> None:
    """Deterministic actions of one model on one seed have one return."""
    model, env = small(short_pendulum()).learn(25), short_pendulum()
    returns = []
    for _ in range(2):
        env.reset(seed=0)
        returns.append(evaluate_policy(model, env, n_eval_episodes=3, return_episode_rewards=True))
    assert returns[0] == returns[1]
    assert returns[0][1] == [20, 20, 20]


def test_log_files(tmp_path: Path) -> None:
    model = small(short_pendulum())
    model.set_logger(configure(str(tmp_path), ["csv", "json"]))
    model.learn(60, log_interval=1)
    header, *rows = (tmp_path / "progress.csv").read_text().splitlines()
    assert len(rows) == 3
    for name in ("rollout/ep_rew_mean", "train/critic_loss", "train/q_mean", "train/input_saturation", "time/total_timesteps"):
        assert name in header.split(",")


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the tensorboard extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    small(short_pendulum(), tensorboard_log=str(tmp_path)).learn(60, log_interval=1)
    events = EventAccumulator(str(tmp_path / "CIR_1"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/critic_loss")] == [40, 60]
    assert "rollout/ep_rew_mean" in events.Tags()["scalars"]


def test_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich", reason="SB3's progress bar needs tqdm and rich")
    small(short_pendulum()).learn(1e2, progress_bar=True)
    assert "100/100" in capsys.readouterr().out
