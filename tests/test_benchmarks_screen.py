"""The screen of arms between CIR and SimBa, on a task that is quick."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch as th

pytest.importorskip("dm_control")

from benchmarks import arms, log, screen
from benchmarks.__main__ import main
from sb3_cir.cir_simba import CIRSimBa
from sb3_cir.smr import SMR
from sb3_cir.update import temperature

TASK = "cartpole-balance"


def build(arm: str) -> SMR:
    return arms.ARMS[arm].build(screen.make_env(TASK), seed=0, width=8)


def test_arms_exchange_one_part() -> None:
    base, simba = build("cir+temp+rsnorm"), build("simba")
    for name in ("actor", "critic"):
        crossed = build(f"cir+temp+rsnorm+simba_{name}")
        other = "critic" if name == "actor" else "actor"
        assert type(getattr(crossed, name)) is type(getattr(simba, name))
        assert repr(getattr(crossed, other)) == repr(getattr(base, other))
    assert (base.target_entropy, simba.target_entropy, build("cir").target_entropy) == (-0.5, -0.5, -1.0)
    assert [build(arm).convex_coef for arm in ("cir", "cir+temp+rsnorm+lambda1")] == [0.3, 1.0]
    assert [build(arm).batch_size for arm in ("cir+temp+rsnorm", "cir+temp+rsnorm+batch128")] == [256, 128]


@pytest.mark.parametrize("convex_coef", [0.3, 1.0])
def test_categorical_target_has_the_convex_value(convex_coef: float) -> None:
    model = build("cir+temp+rsnorm+categorical").learn(30)
    model.convex_coef = convex_coef
    model.critic_target.q_network[1].bias.data.normal_()  # so that the two critics differ
    batch, noise, ent_coef = model.replay_buffer.sample(16), th.randn(16, 1), temperature(model)
    batch.dones[3] = 1
    target = model._target_distribution(batch, ent_coef, noise)
    th.testing.assert_close(target.sum(dim=1), th.ones(16))

    next_actions, next_log_prob = model._act(batch.next_observations, noise)
    smallest, largest = model._q_values(model.critic_target, batch.next_observations, next_actions).aminmax(
        dim=1, keepdim=True
    )
    assert (largest - smallest).min() > 1e-3
    next_value = convex_coef * smallest + (1 - convex_coef) * largest - ent_coef * next_log_prob.reshape(-1, 1)
    scaled = batch.rewards / model.return_scale.var.add(1e-8).sqrt().float()
    expected = scaled + (1 - batch.dones) * model.gamma * next_value
    # The grid's ends cut off what is beyond them, which moves a mean by little.
    th.testing.assert_close(model._target(batch, ent_coef, noise), expected.detach(), atol=0.15, rtol=0)
    th.testing.assert_close(model._target(batch, ent_coef, noise)[3], scaled[3])


def test_categorical_critics_have_no_other_precision() -> None:
    with pytest.raises(ValueError, match=r"precision='bfloat16': categorical critics are trained in float32 alone\."):
        arms.ARMS["cir+temp+rsnorm+categorical"].build(screen.make_env(TASK), 0, 8, "bfloat16")


def test_the_recipe_is_its_arm() -> None:
    """``CIRSimBa`` by its defaults trains as the arm that was measured, to the last bit."""
    arm = build("cir+temp+rsnorm+lr1e-4+simba_actor+n3to1")
    assert isinstance(arm, arms.PartsCIR)
    arm.learning_starts = 20
    arm.learn(40)
    own = dict(learning_starts=20, buffer_size=50_000, policy_kwargs=dict(net_arch=dict(pi=[128], qf=[8, 8])))
    recipe = CIRSimBa("MlpPolicy", screen.make_env(TASK), seed=0, device="cpu", **own).learn(40)
    assert recipe._n_updates == 40
    assert recipe.long_return_updates == arm.long_return_updates == 50_000
    ours, theirs = recipe.policy.state_dict(), arm.policy.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(th.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize("arm", ["cir+temp+rsnorm", "cir+temp+rsnorm+simba_actor", "simba", "simba+cir_actor"])
def test_each_observation_counts_once(arm: str) -> None:
    model = build(arm)
    model.learning_starts = 10
    model.learn(20)
    statistics = model.actor.features_extractor
    assert statistics.count == 20
    assert np.allclose(statistics.mean, model.replay_buffer.observations[:20, 0].mean(axis=0), atol=1e-6)


def test_gain_is_parted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q is the action itself; it was 0 when taken, the policy would have taken 0.25 that day and takes 1 today."""
    model = build("simba").learn(20)
    model.replay_buffer.actions[:] = 0
    monkeypatch.setattr(screen, "mean_q", lambda _, __, actions: actions.sum(dim=1))
    probe = screen.Probe("x", TASK, 10, 10, tmp_path / "rows.csv", {})
    probe.snapshot = (lambda obs: th.full((len(obs), 1), 0.25), 5)  # type: ignore[assignment]
    model.actor = lambda obs: th.full((len(obs), 1), 1.0)  # type: ignore[assignment]
    assert probe._parts_of_gain(model) == {"memorised": 0.25, "moved": 0.75}
    assert probe.snapshot[1] == 20


@pytest.fixture
def screened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], tuple[dict[str, Any], pd.DataFrame]]:
    """Runs an arm that learns from step 20 on, in the same folder each time; gives the file's comment and rows."""
    build_arm = arms.Arm.build

    def early(arm: arms.Arm, *args: Any, **kwargs: Any) -> SMR:
        model = build_arm(arm, *args, **kwargs)
        model.learning_starts = 20
        return model

    def run(steps: int, arm: str = "cir+temp+rsnorm", *more: str) -> tuple[dict[str, Any], pd.DataFrame]:
        sizes = ["--width", "8", "--steps", str(steps), "--every", "20", "--eval-every", "60"]
        assert main(["screen", "--arm", arm, "--task", TASK, *sizes, *more, "--out", str(tmp_path)]) == 0
        (file,) = tmp_path.glob("*.csv")
        (made,) = log.load([file]).runs
        return made, pd.read_csv(file, comment="#")

    monkeypatch.setattr(arms.Arm, "build", early)
    monkeypatch.setattr(screen, "EPISODES", 1)
    return run


def test_writes_rows_that_say_how_they_were_made(screened: Callable[[int], tuple[dict[str, Any], pd.DataFrame]]) -> None:
    made, table = screened(60)
    expected = f"python -m benchmarks screen --arm cir+temp+rsnorm --task {TASK} --seed 0 --width 8 --steps 60"
    assert made["command"].startswith(expected)
    rows = table.set_index(["metric", "env_step"]).value
    assert rows["updates", 120] == 2 * 40
    assert rows["q_bias", 120] == pytest.approx(rows["q_episode", 120] - rows["discounted_return", 120])
    assert ("q_gain", 80) in rows
    assert ("q_bias", 80) not in rows
    assert np.all(np.isfinite(rows))


def test_another_precision_is_another_run(
    screened: Callable[..., tuple[dict[str, Any], pd.DataFrame]], tmp_path: Path
) -> None:
    made, table = screened(40, "cir+temp+rsnorm", "--precision", "bfloat16")
    assert made["exp_name"] == "cir+temp+rsnorm, width 8, bfloat16"
    q_data = table.set_index("metric").value["q_data"]
    (file,) = tmp_path.glob("*.csv")
    file.unlink()
    made, table = screened(40)
    assert made["exp_name"] == "cir+temp+rsnorm, width 8"
    assert made["command"].endswith("--precision float32")
    assert table.set_index("metric").value["q_data"] != q_data


def test_the_last_agent_is_evaluated(screened: Callable[..., tuple[dict[str, Any], pd.DataFrame]]) -> None:
    _, table = screened(40)
    assert "avg_return" in set(table.metric)


def test_other_settings_do_not_go_on(
    screened: Callable[..., tuple[dict[str, Any], pd.DataFrame]], capsys: pytest.CaptureFixture[str]
) -> None:
    screened(40)
    with pytest.raises(AssertionError):  # main() gives 2
        screened(80, "cir+temp+rsnorm", "--every", "10")
    assert "was begun with other settings" in capsys.readouterr().err


def test_a_full_disk_does_not_end_a_run(
    screened: Callable[..., tuple[dict[str, Any], pd.DataFrame]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = screen.keep.write, []

    def full(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 1:
            raise OSError("no space left")
        write(*args)

    monkeypatch.setattr(screen.keep, "write", full)
    with pytest.warns(UserWarning, match="could not be written, and will be tried again: no space left"):
        _, table = screened(60)
    assert set(table.env_step) == {80, 120}
    monkeypatch.setattr(screen.keep, "write", lambda *args: calls.clear() or full())
    with pytest.raises(AssertionError):  # main() gives 2: the next look would be none
        screened(70)
    monkeypatch.setattr(screen.keep, "write", write)
    _, table = screened(70)
    assert set(table.env_step) == {80, 120, 140}


@pytest.mark.parametrize("arm", ["cir+temp+rsnorm", "cir+temp+rsnorm+categorical"])
def test_goes_on_where_it_ended(screened: Callable[..., tuple[dict[str, Any], pd.DataFrame]], arm: str) -> None:
    first, begun = screened(40, arm)
    made, table = screened(56, arm)
    assert made["earlier"] == [{"commit": first["commit"], "env_step": 80}]
    assert table[: len(begun)].equals(begun)
    assert not table.duplicated(["metric", "env_step"]).any()
    rows = table.set_index(["metric", "env_step"]).value
    assert [rows["updates", step] for step in (80, 112)] == [2 * 20, 2 * 36]
    assert ("moved", 112) in rows  # since the look at 80
    assert rows["seconds", 80] < rows["seconds", 112]
    done, same = screened(56, arm)
    assert done == made
    assert same.equals(table)
