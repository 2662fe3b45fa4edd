"""The report: the paper's aggregates from logs, and what is written."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("rliable", reason="needs rliable, of the benchmarks extra")

from benchmarks import figures, keep, log, scores, selection, tables
from benchmarks.__main__ import main
from benchmarks.suites import suite

CURVES = Path(__file__).parents[2] / "shared" / "reference" / "curves"
HARD = suite("dmc_hard")


def write_log(path, returns, method="cir", steps=(500_000, 1_000_000), chosen=HARD, seconds=None):
    """One run for each row of ``returns`` (runs, tasks), halfway at half the return."""
    found = []
    for run, row in enumerate(returns):
        for task, value in zip(chosen.tasks, row, strict=False):
            for step in steps:
                found.append((method, task.name, 7 - run, "avg_return", step, value * step / max(steps)))
                if seconds:
                    found += [
                        (method, task.name, 7 - run, "seconds", step, seconds),
                        (method, task.name, 7 - run, "updates", step, step),
                    ]
    log.write(path, pd.DataFrame(found, columns=log.COLUMNS))


@pytest.fixture
def returns():
    return np.random.default_rng(0).uniform(0, 1000, (3, 7)).round(3)


def aggregates(path, capsys, *options, suite="dmc_hard"):
    assert main(["report", str(path), "--suite", suite, "--format", "json", "--reps", "20", *options]) == 0
    found = json.loads(capsys.readouterr().out)["aggregates"]
    return {entry["name"]: entry for entry in found}


def test_aggregates_of_a_small_log(tmp_path, capsys, returns):
    write_log(tmp_path / "rows.csv", returns)
    cir = aggregates(tmp_path, capsys)["CIR"]
    flat = np.sort(returns.ravel())[5:-5]  # 21 values: a quarter of them, rounded down, is left out at each end
    assert cir["IQM"]["value"] == pytest.approx(flat.mean())
    assert cir["Median"]["value"] == pytest.approx(np.median(returns.mean(axis=1)))
    assert cir["Mean"]["value"] == pytest.approx(returns.mean())
    assert cir["OG"]["value"] == pytest.approx((1 - returns / 1000).mean())
    assert cir["Mean"]["low"] < cir["Mean"]["value"] < cir["Mean"]["high"]
    assert (cir["runs"], cir["tasks"], cir["of_tasks"]) == (3, 7, 7)


def test_runs_are_paired_in_the_order_of_the_file(tmp_path, capsys):
    write_log(tmp_path / "rows.csv", [[0] * 7, [100] * 7, [900] * 7])  # seeds 7, 6, 5
    assert aggregates(tmp_path, capsys)["CIR"]["Median"]["value"] == pytest.approx(100)


def test_steps_after_the_budget_do_not_count(tmp_path, capsys, returns):
    write_log(tmp_path / "rows.csv", returns, steps=(500_000, 1_000_000, 1_025_000))
    whole, half = (aggregates(tmp_path, capsys, *options)["CIR"] for options in ((), ("--budget", "0.5")))
    assert whole["Mean"]["value"] == pytest.approx(returns.mean() / 1.025)
    assert half["Mean"]["value"] == pytest.approx(returns.mean() / 2.05)
    assert half["budget"] == [0.5, 0.5]


@pytest.mark.parametrize("budget", ["0", "-0.5", "nan"])
def test_a_budget_that_is_none(tmp_path, capsys, returns, budget):
    write_log(tmp_path / "rows.csv", returns)
    with pytest.raises(SystemExit):
        aggregates(tmp_path, capsys, f"--budget={budget}")
    assert f"argument --budget: {budget}: it must be positive and finite." in capsys.readouterr().err


def test_missing_tasks_and_runs_are_left_out_and_said(tmp_path, capsys, returns):
    write_log(tmp_path / "rows.csv", returns[:, :6])
    rows = pd.read_csv(tmp_path / "rows.csv")
    log.write(tmp_path / "rows.csv", rows[~((rows.seed == 7) & (rows.env_name == "dog-run"))])
    cir = aggregates(tmp_path, capsys)["CIR"]
    assert (cir["runs"], cir["tasks"], cir["of_tasks"]) == (2, 6, 7)
    assert aggregates(tmp_path, capsys)["CIR"] == cir  # the bootstrap too
    assert "CIR: aggregates have the 2 runs that every task has; some tasks have up to 3." in select(tmp_path, HARD).notes


def test_a_run_that_is_not_at_its_end_is_said(tmp_path, capsys, returns):
    write_log(tmp_path / "rows.csv", returns)
    rows = pd.read_csv(tmp_path / "rows.csv")
    log.write(tmp_path / "rows.csv", rows[~((rows.seed == 6) & (rows.env_name == "dog-run") & (rows.env_step > 500_000))])
    cir = aggregates(tmp_path, capsys)["CIR"]
    assert cir["budget"] == [0.5, 1.0]
    returns[1, 0] /= 2
    assert cir["Mean"]["value"] == pytest.approx(returns.mean())


def test_humanoid_bench_and_odrl_are_normalised(tmp_path, capsys):
    for name, value in (("humanoid_bench", 1000), ("odrl", 100)):
        chosen = suite(name)
        write_log(tmp_path / f"{name}.csv", [[task.one for task in chosen.tasks]], chosen=chosen, steps=(1_000_000,))
        found = aggregates(tmp_path / f"{name}.csv", capsys, suite=name)["CIR"]
        assert found["Mean"]["value"] == pytest.approx(value)
        assert found["OG"]["value"] == pytest.approx(0)


def test_the_papers_figures_stand_beside_measured_ones_in_every_table(tmp_path, returns):
    write_log(tmp_path / "rows.csv", returns)
    measured = scores.collect(log.read([tmp_path]), HARD, scores.MEASURED)
    table = tables.per_task(measured, HARD).set_index("task")
    assert list(table.columns[:2]) == ["CIR", "CIR (paper)"]
    assert table.loc["dog-run", "CIR (paper)"] == "326.80"
    assert table.loc["dog-run", "CIR"] == f"{returns[:, 0].mean():.1f} ± {returns[:, 0].std():.1f}"
    shown = tables.aggregates_table(tables.aggregates(measured, HARD, reps=5)).set_index("method")
    assert shown.loc["CIR (paper)", "IQM"] == "669.59"


def test_odrl_returns_of_the_paper_are_shown_plain_and_normalised():
    odrl = suite("odrl")
    plain, normalised = (tables.per_task([], odrl, plain).set_index("task") for plain in (True, False))
    assert plain.loc["ant-gravity-5.0", "CIR (paper)"] == "4970.3 ± 271.6"
    assert normalised.loc["ant-gravity-5.0", "CIR (paper)"] == "80.8 ± 4.1"


def test_percent_of_cir(tmp_path):
    ablation = suite("ablation")
    write_log(tmp_path / "cir.csv", [[400] * 7 + [200] * 7] * 2, chosen=ablation, steps=(500_000,))
    write_log(tmp_path / "cdq.csv", [[200] * 7 + [200] * 7] * 2, chosen=ablation, steps=(500_000,), method="cir:cdq")
    found = scores.collect(log.read([tmp_path]), ablation, scores.MEASURED)
    table = tables.percent_of_cir(found, ablation, reps=5).set_index(["source", "group", "name"]).value
    assert table["measured", "medium", "CDQ"] == pytest.approx(50)
    assert table["measured", "hard", "CDQ"] == pytest.approx(100)
    assert table["measured", "all", "CDQ"] == pytest.approx(100 * 400 / 600)
    assert table["paper", "medium", "CDQ"] == pytest.approx(100 * 3916.6 / 5076.5)


def test_the_papers_percent_of_cir_stands_beside_all_tasks_alone(tmp_path):
    ablation = suite("ablation")
    for method in ("cir", "cir:cdq"):
        write_log(tmp_path / f"{method[-3:]}.csv", [[400] * 14], chosen=ablation, steps=(250_000, 500_000), method=method)
    found = select(tmp_path, ablation)
    medium = tables.percent_of_cir(found.scores, found.suite, reps=5)
    assert set(medium[medium.source == "paper"].group) == {"medium"}  # hard tasks are at half their steps


def test_cir_at_k_takes_hard_tasks_at_twice_the_steps(tmp_path):
    width = suite("scaling_width")
    rows = [
        ("cir", task.name, 0, "avg_return", step, float(step / (2 if task.hard else 1)))
        for task in width.tasks
        for step in range(100_000, task.env_steps + 1, 100_000)
    ]
    log.write(tmp_path / "rows.csv", pd.DataFrame(rows, columns=log.COLUMNS))
    table = tables.scaling(scores.collect(log.read([tmp_path]), width, scores.MEASURED))
    assert list(table.k * 500_000) == pytest.approx([100_000, 200_000, 300_000, 400_000, 500_000])
    assert list(table.value) == pytest.approx([100_000, 200_000, 300_000, 400_000, 500_000])


def test_cir_at_k_has_the_standard_deviation_of_each_tasks_runs(tmp_path):
    write_log(tmp_path / "rows.csv", [[100, 1000], [300, 1200]])
    table = tables.scaling(select(tmp_path, HARD).scores, points=1)
    assert table[["k", "value", "std"]].to_numpy().tolist() == [[1.0, 650.0, 100.0]]


def test_percent_of_cir_of_a_single_run_has_no_interval(tmp_path):
    ablation = suite("ablation")
    write_log(tmp_path / "cir.csv", [[400] * 14], chosen=ablation)
    write_log(tmp_path / "cdq.csv", [[200] * 14], chosen=ablation, method="cir:cdq")
    table = tables.percent_of_cir(select(tmp_path, ablation).scores, ablation, reps=5)
    assert table[table.source == "measured"][["low", "high"]].isna().all(axis=None)


def test_the_page_holds_everything_itself(tmp_path, returns, capsys):
    write_log(tmp_path / "cir.csv", returns, seconds=3600)
    write_log(tmp_path / "sac.csv", returns / 2, method="sac", seconds=1800)
    out = tmp_path / "report"
    logs = [str(tmp_path / name) for name in ("cir.csv", "sac.csv")]
    assert main(["report", *logs, "--reference", logs[0], "--suite", "dmc_hard", "--out", str(out), "--reps", "5"]) == 0
    pictures = {"aggregates", "learning_curves", "profiles", "return_against_time", "sample_efficiency"}
    assert {path.stem for path in out.glob("*.png")} == pictures
    assert (
        {path.stem for path in out.glob("*.md")}
        == {path.stem for path in out.glob("*.csv")}
        == {"aggregates", "costs", "per_task"}
    )
    page = (out / "index.html").read_text()
    assert page.count('src="data:image/png;base64,') == len(pictures)
    assert "http" not in page
    assert "CIR (log)" in page
    assert "CIR (paper)" in page
    assert page.count("<h2") == page.count("<nav>") * page.count('<a href="#part-')
    assert "Steps are simulator steps throughout" in page
    assert time.strftime("%d %B %Y") in page
    assert "commit" in page


def test_a_study_without_a_table_has_its_figures(tmp_path, capsys):
    chosen = suite("scaling_width")
    for number, method in enumerate(chosen.methods):
        write_log(tmp_path / f"{number}.csv", [[100 * number] * 9] * 2, method, steps=(250_000, 500_000), chosen=chosen)
    assert main(["report", str(tmp_path), "--suite", chosen.name, "--out", str(tmp_path / "report"), "--reps", "5"]) == 0
    assert (tmp_path / "report" / "scaling.png").exists()
    assert "| width=1024 " in capsys.readouterr().out


def test_a_study_counts_what_was_evaluated_by_then(tmp_path):
    """At k where a method has no evaluation yet it has no score, and k goes up to what all have reached."""
    write_log(tmp_path / "cir.csv", [[1000] * 7])
    write_log(tmp_path / "sac.csv", [[500] * 7], "sac", steps=(100_000, 250_000, 500_000))
    table = tables.scaling(select(tmp_path, HARD).scores)
    by_method = {entry.method: group for entry, group in table.groupby("entry", sort=False)}
    assert by_method["cir"][["k", "value"]].to_numpy().tolist() == [[0.5, 500]]
    assert by_method["sac"].k.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert by_method["sac"].value.tolist() == [100, 100, 250, 250, 500]


def test_percent_of_cir_has_all_runs_of_its_tasks(tmp_path):
    """One run of a hard task takes none from the medium ones."""
    chosen = suite("ablation")
    medium = next(task for task in chosen.tasks if not task.hard)
    hard = next(task for task in chosen.tasks if task.hard)
    write_log(tmp_path / "a.csv", [[100], [500], [600]], chosen=replace(chosen, tasks=(medium,)))
    write_log(tmp_path / "b.csv", [[100]], chosen=replace(chosen, tasks=(hard,)))
    write_log(tmp_path / "c.csv", [[800], [800], [800]], "cir:cdq", chosen=replace(chosen, tasks=(medium,)))
    table = tables.percent_of_cir(select(tmp_path, chosen).scores, chosen, reps=20)
    (entry,) = table[(table.group == "medium") & (table.source == scores.MEASURED)].itertuples()
    assert entry.value == pytest.approx(200)
    assert entry.low < 200 < entry.high


def test_time_is_that_of_the_tasks_and_steps_shown(tmp_path, returns):
    write_log(tmp_path / "cir.csv", returns, seconds=7200)
    write_log(tmp_path / "sac.csv", returns[:, :1], "sac", seconds=3600)
    rows = log.read([tmp_path])
    # Halfway, everything had taken half of it.
    rows.loc[(rows.metric == log.SECONDS) & (rows.env_step == 500_000), "value"] /= 2
    found = selection.select(rows, rows[:0], HARD, 0.5)
    assert [[task.name for task in each.tasks] for each in found.aggregated] == [[HARD.tasks[0].name]] * 2
    look = figures.Look([each.entry for each in found.scores])
    figure = figures.return_against_time(found.aggregated, scores.within(rows, found.suite, 0.5), look)
    points = [line.get_xydata()[0] for line in figure.axes[0].lines if line.get_marker() == "o"]
    mean = returns[:, 0].mean() / 2
    np.testing.assert_allclose(points, [[1.0, mean], [0.5, mean]])
    cost = tables.costs(rows, HARD).set_index("method")
    assert cost.loc["CIR", "hours a run"] == "2.000"

    # Of a second task there is one run alone, which counts as much as the three of the first.
    second = rows.env_name.isin([HARD.tasks[1].name]) & (rows.exp_name == "cir")
    rows.loc[second & (rows.metric == log.SECONDS), "value"] = 4 * 7200
    rows = rows[(rows.env_name == HARD.tasks[0].name) | second & (rows.seed == 7)]
    found = selection.select(rows[rows.exp_name == "cir"], rows[:0], HARD, 1.0)
    figure = figures.return_against_time(found.aggregated, rows, look)
    (point,) = (line.get_xdata() for line in figure.axes[0].lines if line.get_marker() == "o")
    assert point == pytest.approx((2 + 8) / 2)


def test_no_step_that_all_runs_share(tmp_path, capsys):
    write_log(tmp_path / "cir.csv", [[10], [20]])
    rows = log.read([tmp_path])
    early = (rows.seed == 7) & (rows.env_step == 500_000)
    rows.loc[early, "env_step"] = 100_000  # and it was stopped there
    log.write(tmp_path / "cir.csv", rows[(rows.seed != 7) | (rows.env_step == 100_000)])
    assert main(["report", str(tmp_path), "--suite", "dmc_hard", "--out", str(tmp_path / "out"), "--reps", "5"]) == 0
    assert not (tmp_path / "out" / "sample_efficiency.png").exists()


def test_commits_of_a_run_that_went_on_under_another():
    first, second = "a" * 40, "b" * 40
    run = dict(exp_name="cir", env_name="dog-run", seed=0, processor="p", commit=f"{first}, {second} and changes")
    assert tables.origins([run]).commit.tolist() == [f"{'a' * 10}, {'b' * 10} and changes"]


def test_critics_are_shown_at_the_last_step_that_all_runs_were_evaluated_at(tmp_path, returns):
    write_log(tmp_path / "cir.csv", returns[:2, :1])
    plain = log.read([tmp_path])
    found = [plain]
    for metric, factor in (("q_bias", 2), ("q_gain", 3), ("q_data", 4), ("entropy", 5)):
        found.append(plain.assign(metric=metric, value=factor * plain.value))
    rows = pd.concat(found)
    scores = selection.select(rows, rows[:0], HARD, 1.0).scores
    at_the_end = returns[:2, 0].mean()
    (row,) = tables.critics(scores, rows).to_dict("records")
    assert (row["method"], row["task"], row["runs"], row["simulator steps"]) == ("CIR", HARD.tasks[0].name, "2", "1,000,000")
    assert row["return"] == f"{at_the_end:.1f}"
    assert [row[text] for text in tables.CRITICS.values()] == [f"{factor * at_the_end:.2f}" for factor in (2, 3, 4, 5)]

    # One run was stopped halfway: the table stands there, and the figure's mean ends there.
    stopped = rows[(rows.seed == 7) | (rows.env_step == 500_000)]
    (row,) = tables.critics(scores, stopped).to_dict("records")
    assert (row["simulator steps"], row["return"]) == ("500,000", f"{at_the_end / 2:.1f}")
    figure = figures.critics(scores, stopped, figures.Look([each.entry for each in scores]))
    mean, *each_run = figure.axes[1].lines
    np.testing.assert_allclose(mean.get_xydata(), [[500, 3 * at_the_end / 2]])
    assert sorted(np.isfinite(line.get_ydata()).sum() for line in each_run) == [1, 2]

    # Other runs have none of it.
    assert tables.critics(scores, plain).empty
    assert figures.critics(scores, plain, figures.Look([])) is None


def test_costs_without_a_number_of_updates(tmp_path, returns):
    write_log(tmp_path / "cir.csv", returns, seconds=3600)
    rows = log.read([tmp_path])
    row = tables.costs(rows, HARD)[["simulator steps a run", "updates a run", "simulator steps a second"]]
    assert row.to_numpy().tolist() == [["1,000,000", "1,000,000", "277.8"]]
    cost = tables.costs(rows[rows.metric != log.UPDATES], HARD)
    assert cost[["hours a run", "updates a run"]].to_numpy().tolist() == [["1.000", ""]]


def test_sample_efficiency_is_the_iqm_of_what_was_evaluated_last(tmp_path):
    """Of 8 scores the 4 in the middle. A run keeps its last score until its next evaluation."""
    write_log(tmp_path / "rows.csv", [[0], [0], [100], [100], [100], [100], [800], [900]])
    (each,) = select(tmp_path, HARD).scores
    steps, grid = each.over_steps()
    assert (steps.tolist(), grid.shape) == ([0.5, 1.0], (8, 1, 2))
    np.testing.assert_allclose(scores.iqm_over_steps(grid), [50, 100])
    early = log.read([tmp_path])
    early = pd.concat([early, early.assign(env_name=HARD.tasks[1].name, env_step=early.env_step - 250_000)])
    (both,) = selection.select(early, early[:0], HARD, 1.0).scores
    steps, grid = both.over_steps()
    assert steps.tolist() == [0.5, 0.75]
    np.testing.assert_array_equal(grid[:, 0, 0], grid[:, 0, 1])


def test_few_runs_are_lines_and_a_placeholder_is_none(tmp_path, returns):
    write_log(tmp_path / "few.csv", returns[:2])
    write_log(tmp_path / "many.csv", np.repeat(returns, 2, axis=0), "sac", steps=(0, 500_000, 1_000_000))
    found = select(tmp_path, HARD)
    look = figures.Look([each.entry for each in found.scores])
    axes = figures.learning_curves(found.scores, HARD, 5, look).axes[0]
    assert len(axes.lines) == 1 + 2 + 1
    assert len(axes.collections) == 1  # the band of the six
    assert all(line.get_xdata()[0] == 500 for line in axes.lines)

    # A run that was stopped halfway ends there, and the mean with it.
    rows = log.read([tmp_path / "few.csv"])
    rows = rows[(rows.seed == 7) | (rows.env_step == 500_000)]
    found = selection.select(rows, rows[:0], HARD, 1.0)
    axes = figures.learning_curves(found.scores, HARD, 5, look).axes[0]
    assert [line.get_xdata().tolist() for line in axes.lines] == [[500], [500], [500, 1000]]


def test_a_log_of_another_suite_is_refused(tmp_path, capsys, returns):
    write_log(tmp_path / "rows.csv", returns)
    assert main(["report", str(tmp_path), "--suite", "odrl"]) == 2
    assert "odrl" in capsys.readouterr().err


def select(path, chosen, reference=None, budget=1.0):
    rows, others = log.load([path]).rows, log.load([reference] if reference else [], published=True).rows
    return selection.select(rows, others, chosen, budget)


def test_runs_of_one_seed_are_paired_where_every_task_has_the_same_seeds(tmp_path, capsys, returns):
    """As in SimBa's log, whose runs stand in another order for each task."""
    write_log(tmp_path / "rows.csv", returns)
    rows = pd.read_csv(tmp_path / "rows.csv")
    order = rows.seed * np.where(rows.env_name == "dog-run", -1, 1)
    rows.iloc[np.argsort(order, kind="stable")].to_csv(tmp_path / "rows.csv", index=False)
    assert aggregates(tmp_path, capsys)["CIR"]["Median"]["value"] == pytest.approx(np.median(returns.mean(axis=1)))


def test_references_are_cut_to_the_tasks_and_steps_that_were_measured(tmp_path, returns):
    write_log(tmp_path / "own.csv", returns[:, :2], steps=(250_000, 500_000))
    write_log(tmp_path / "theirs.csv", 2 * returns, "simba", steps=(250_000, 500_000, 1_000_000))
    found = select(tmp_path / "own.csv", HARD, tmp_path / "theirs.csv")
    own, theirs = found.aggregated
    assert own.tasks == theirs.tasks == list(HARD.tasks[:2])
    assert theirs.reach == (0.5, 0.5)
    assert theirs.final[::-1].tolist() == returns[:, :2].tolist()  # at half the steps; seeds are 7, 6, 5
    # The paper's figures are at its full steps.
    assert scores.paper_numbers(found.suite).empty
    assert "Nothing was measured on 5 of the suite's 7 tasks." in found.notes
    assert any("printed figures, at its full steps, are left out" in note for note in found.notes)


def test_every_task_has_the_steps_of_its_own_runs_beside_it(tmp_path, returns):
    """One task is at its end, another halfway."""
    write_log(tmp_path / "own.csv", returns[:, :2])
    rows = pd.read_csv(tmp_path / "own.csv")
    dog_run, other = (task.name for task in HARD.tasks[:2])
    log.write(tmp_path / "own.csv", rows[(rows.env_name == dog_run) | (rows.env_step <= 500_000)])
    write_log(tmp_path / "theirs.csv", 2 * returns, "simba", steps=(250_000, 500_000, 1_000_000))
    found = select(tmp_path / "own.csv", HARD, tmp_path / "theirs.csv")
    theirs = found.scores[1]
    assert [ends.max() for ends in theirs.ends] == [1.0, 0.5]
    table = tables.per_task(found.scores, found.suite).set_index("task")
    assert table.loc[dog_run, "CIR (paper)"] == "326.80"
    assert table.loc[other, "CIR (paper)"] == ""
    assert any("left out where no run is so long" in note and other in note for note in found.notes)
    assert not any("ended at different steps" in note for note in found.notes)


def test_runs_that_ended_at_different_steps_are_named_with_a_budget_for_all(tmp_path, returns):
    write_log(tmp_path / "rows.csv", returns)
    rows = pd.read_csv(tmp_path / "rows.csv")
    log.write(tmp_path / "rows.csv", rows[~((rows.seed == 6) & (rows.env_name == "dog-run") & (rows.env_step > 500_000))])
    found = select(tmp_path / "rows.csv", HARD)
    assert "Measured runs ended at different steps on dog-run: --budget 0.5 cuts all to at most that." in found.notes
    steps, curves = found.aggregated[0].over_steps()
    assert steps.tolist() == [0.5]  # no run is carried on beyond its end
    assert curves.shape == (3, 7, 1)


def test_the_papers_aggregates_are_not_shown_beside_some_of_the_tasks(tmp_path, capsys, returns):
    write_log(tmp_path / "cir.csv", returns)
    assert "CIR (paper)" in aggregates(tmp_path, capsys)
    write_log(tmp_path / "sac.csv", returns[:, :1], "sac")
    found = aggregates(tmp_path, capsys)
    assert set(found) == {"CIR", "SAC"}
    assert found["CIR"]["tasks"] == 1
    lacks = "Aggregates are over 1 of the 7 measured tasks: SAC lacks dog-stand, dog-trot, dog-walk, humanoid-run and 2 more."
    assert lacks in select(tmp_path, HARD).notes


def test_only_the_runs_that_are_shown_say_how_they_were_made(tmp_path, capsys, returns):
    for method, folder in (("cir", "a"), ("simba", "b")):
        (tmp_path / folder).mkdir()
        write_log(tmp_path / folder / "rows.csv", returns[:1, :1], method)
    made = [dict(zip(log.RUN, (method, "dog-run", 7), strict=True), processor="X") for method in ("cir", "simba")]
    made[0] |= dict(commit="b" * 40, earlier=[dict(commit="a" * 40 + " and changes", env_step=100)])
    kept = tmp_path / "kept.csv"
    keep.write(kept, log.load([tmp_path / "a", tmp_path / "b"]).rows, made)
    assert main(["report", str(kept), "--suite", "dmc_hard", "--methods", "cir", "--out", str(tmp_path / "out")]) == 0
    origins = pd.read_csv(tmp_path / "out" / "origins.csv")
    assert origins.method.tolist() == ["CIR"]
    assert origins.commit.tolist() == [f"{'a' * 10} and changes, {'b' * 10}"]


def test_a_second_report_leaves_no_file_of_the_first(tmp_path, returns):
    write_log(tmp_path / "rows.csv", returns, seconds=10)
    arguments = ["report", str(tmp_path / "rows.csv"), "--suite", "dmc_hard", "--reps", "5", "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert (tmp_path / "out" / "costs.md").exists()
    write_log(tmp_path / "rows.csv", returns)
    assert main(arguments) == 0
    assert not list((tmp_path / "out").glob("costs.*"))
    assert not (tmp_path / "out" / "return_against_time.png").exists()
    wider = suite("humanoid_bench_wider")
    write_log(tmp_path / "rows.csv", returns[:, :6], chosen=wider)
    assert main([*arguments[:3], wider.name, *arguments[4:]]) == 0
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert not written & {"profiles.png", "sample_efficiency.png", "aggregates.csv"}
    assert {"learning_curves.png", "index.html"} <= written


def test_the_papers_aggregates_stand_beside_all_tasks_alone(tmp_path, returns):
    for tasks, shown in ((7, True), (6, False)):
        write_log(tmp_path / "rows.csv", returns[:, :tasks])
        found = select(tmp_path / "rows.csv", HARD)
        paper = scores.paper_numbers(found.suite)
        assert ("IQM" in set(paper.row)) == shown
        assert "dog-run" in set(paper.row)


def test_the_one_aggregate_of_the_table_of_squashing_functions_is_shown(tmp_path, returns):
    chosen = suite("ablation_squash")
    write_log(tmp_path / "rows.csv", np.resize(returns, (3, len(chosen.tasks))), chosen=chosen)
    found = select(tmp_path / "rows.csv", chosen)
    aggregates = tables.aggregates(found.aggregated, chosen, reps=5)
    shown = tables.aggregates_table(aggregates).set_index("method")
    assert shown.loc["LayerNorm (paper)", ["IQM", "Mean"]].tolist() == ["", "822.60"]
    look = figures.Look([*(each.entry for each in found.scores), *(scores.Entry(e["method"], "", "") for e in aggregates)])
    assert [len(axes.lines) for axes in figures.aggregate_bars(aggregates, look).axes] == [2, 2, 7, 2]


def test_a_method_without_some_of_the_tasks_is_not_aggregated_and_that_is_said(tmp_path, returns):
    write_log(tmp_path / "own.csv", returns)
    write_log(tmp_path / "theirs.csv", returns[:, :5], "bro")
    found = select(tmp_path / "own.csv", HARD, tmp_path / "theirs.csv")
    assert [each.entry.method for each in found.scores] == ["cir", "bro_fast"]
    assert [each.entry.method for each in found.aggregated] == ["cir"]
    assert "BRO (fast) (log) is not in the aggregates: of their 7 tasks it lacks humanoid-stand, humanoid-walk." in found.notes


def test_what_is_left_out_is_said_with_the_reason(tmp_path, returns):
    write_log(tmp_path / "own.csv", returns)
    theirs = [
        ("ppo", "Craftax-Symbolic-v1", 0, "avg_return", 10, 1.0),
        ("TD7", "dog_run", 0, "avg_success", 10, 1.0),
        ("bro", "dog-run", 0, "avg_return", 14_000_000, 1.0),
    ]
    pd.DataFrame(theirs, columns=log.COLUMNS).to_csv(tmp_path / "theirs.csv")
    notes = select(tmp_path / "own.csv", HARD, tmp_path / "theirs.csv").notes
    assert "ppo is left out: it has none of the tasks shown, but Craftax-Symbolic-v1." in notes
    assert "TD7 is left out: of these tasks it has no avg_return, but avg_success." in notes
    assert "BRO (fast) is left out: it has no evaluation up to the steps that were measured on these tasks." in notes


def test_a_single_run_has_no_interval(tmp_path, capsys, returns):
    write_log(tmp_path / "rows.csv", returns[:1])
    assert "low" not in aggregates(tmp_path, capsys)["CIR"]["IQM"]
    table = tables.per_task(select(tmp_path / "rows.csv", HARD).scores, HARD).set_index("task")
    assert table.loc["dog-run", "CIR"] == f"{returns[0, 0]:.2f}"


def test_a_method_has_one_colour(returns):
    entries = [scores.Entry(name, scores.LOG, name) for name in ("tqc", "sac", "mine", "cir")]
    few, many = (
        figures.Look(entries[1:2]),
        figures.Look([*entries, *(scores.Entry(f"m{n}", scores.LOG, "") for n in range(30))]),
    )
    assert few.colours["sac"] == many.colours["sac"]
    lines = [many.line(scores.Entry(method, scores.LOG, "")) for method in many.colours]
    looks = {(line["color"], line.get("marker")) for line in lines}
    assert len(looks) == len(many.colours)
    assert sum(line["color"] == many.colours["cir"] for line in lines) == 1


def test_step_0_stands_beside_nothing(tmp_path, returns):
    """Some logs have the untrained agent there, some a 0 where nothing was evaluated."""
    write_log(tmp_path / "cir.csv", returns, steps=(0, 50_000))
    write_log(tmp_path / "simba.csv", returns, steps=(0, 100_000), method="simba")
    write_log(tmp_path / "sac.csv", returns, steps=(40_000, 100_000), method="sac")
    measured, reference = log.read([tmp_path / "cir.csv"]), log.read([tmp_path / "simba.csv", tmp_path / "sac.csv"])
    found = selection.select(measured, reference, HARD, 1.0)
    assert [each.entry.name for each in found.scores] == ["CIR", "SAC (log)"]
    notes = " ".join(found.notes)
    assert "SimBa is left out: it has no evaluation up to the steps that were measured" in notes
    assert "its last evaluation lies before the steps that were measured: on dog-run at 40,000 of 50,000." in notes


def test_two_methods_of_one_label_are_two_columns(tmp_path):
    ablation = suite("ablation")
    write_log(tmp_path / "cir.csv", [[300] * 14], chosen=ablation, method="cir:utd")
    write_log(tmp_path / "own.csv", [[777] * 14], chosen=ablation, method="UTD")
    table = tables.per_task(select(tmp_path, ablation).scores, ablation)
    assert {"UTD [cir:utd]", "UTD [UTD]"} <= set(table.columns)


def test_percent_of_cir_leaves_out_what_lacks_tasks(tmp_path):
    ablation = suite("ablation")
    write_log(tmp_path / "cir.csv", [[400] * 14], chosen=ablation)
    write_log(tmp_path / "cdq.csv", [[200] * 14], chosen=ablation, method="cir:cdq")
    write_log(tmp_path / "ln.csv", [[100]], chosen=ablation, method="cir:no_ln")
    table = tables.percent_of_cir(select(tmp_path, ablation).scores, ablation, reps=5)
    assert set(table[table.source == "measured"].method) == {"cir:cdq"}


def test_what_cannot_be_read_in_a_folder_is_left_out(tmp_path, returns):
    write_log(tmp_path / "cir.csv", returns)
    (tmp_path / "latest.csv").symlink_to(tmp_path / "gone")
    (tmp_path / "folder.csv").mkdir()
    found = log.load([tmp_path])
    assert len(found.rows) == 42
    assert any("2 .csv files" in note and "cannot be read" in note for note in found.notes)


def test_the_legend_has_methods_of_all_panels(tmp_path, returns):
    for method, kept in (("cir", "dog-stand"), ("simba", "dog-run")):
        write_log(tmp_path / f"{method}.csv", returns, method)
        rows = pd.read_csv(tmp_path / f"{method}.csv")
        rows[rows.env_name == kept].to_csv(tmp_path / f"{method}.csv", index=False)
    found = select(tmp_path, HARD).scores
    figure = figures.learning_curves(found, HARD, 5, figures.Look([each.entry for each in found]))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [each.entry.name for each in found]
    assert len(found) == 2


def test_names_are_no_formulas(tmp_path, returns):
    write_log(tmp_path / "rows.csv", returns, method=r"mine, 10 $ and \lost$")
    assert main(["report", str(tmp_path), "--suite", "dmc_hard", "--reps", "20", "--out", str(tmp_path / "page")]) == 0


def test_methods_that_are_not_in_the_logs_are_refused(tmp_path, capsys, returns):
    write_log(tmp_path / "rows.csv", returns)
    assert main(["report", str(tmp_path), "--suite", "dmc_hard", "--methods", "sca"]) == 2
    assert "--methods sca: the logs have cir." in capsys.readouterr().err


def test_the_study_of_c_has_easy_and_medium_tasks_apart_from_hard_ones(tmp_path, capsys):
    chosen = suite("parameter_c")
    for number, method in enumerate(chosen.methods):
        returns = [[100.0 * number] * 6 + [10.0 * number] * 6, [100.0 * number + 20] * 6 + [10.0 * number + 4] * 6]
        write_log(tmp_path / f"{number}.csv", returns, method, chosen=chosen, steps=(500_000,))
    table = tables.parameter_study(select(tmp_path, chosen).scores, chosen)
    of_c = table[table.entry.map(lambda entry: entry.name) == "c=0.5"].set_index("group")
    assert of_c.value.to_dict() == {"easy and medium tasks": 310.0, "hard tasks": 32.0}
    assert of_c["std"].to_dict() == {"easy and medium tasks": 10.0, "hard tasks": 2.0}
    assert main(["report", str(tmp_path), "--suite", chosen.name, "--out", str(tmp_path / "report"), "--reps", "5"]) == 0
    assert (tmp_path / "report" / "parameter_study.png").exists()


# The authors' own folders (os.pathsep between them), as published or as the project's copy of them.
PATHS = [Path(name) for name in os.environ.get("CIR_REFERENCE_CURVES", str(CURVES)).split(os.pathsep)]
needs_reference = pytest.mark.skipif(
    not all(path.exists() for path in PATHS), reason="needs the reference logs (CIR_REFERENCE_CURVES names their folders)"
)


@needs_reference
@pytest.mark.parametrize("name", ["dmc_easy_medium", "dmc_hard", "humanoid_bench"])
def test_the_authors_logs_give_the_papers_rows(name):
    chosen = suite(name)
    paper = scores.paper_numbers(chosen).set_index(["row", "method"])["mean"]
    # Of 84 figures four are apart: the printed ones of TD-MPC2 count two evaluations of one run as two runs (see below).
    apart = {("humanoid_bench", "tdmpc2")}
    found = selection.select(log.load([]).rows, log.load(PATHS, published=True).rows, chosen, 1)
    compared = [each for each in found.scores if ("IQM", each.entry.method) in paper.index]
    assert {each.entry.method for each in compared} == {method for row, method in paper.index if row == "IQM"}
    for each in compared:
        values = scores.aggregate(each.final / 1000) * [1000, 1000, 1000, 1]
        for key, value in zip(tables.AGGREGATES, values, strict=True):
            # Half a unit of the last printed digit, and a little for the logs' own rounding to three decimals.
            near = abs(value - paper[key, each.entry.method]) < (0.00006 if key == "OG" else 0.0056)
            assert near == ((name, each.entry.method) not in apart), (each.entry.name, key, value)


@pytest.mark.skipif(
    not any((path / "tdmpc2.csv").exists() for path in PATHS) or PATHS == [CURVES],
    reason="needs TD-MPC2's log as published, with two evaluations at one step (CIR_REFERENCE_CURVES names its folder)",
)
def test_td_mpc2s_printed_row_takes_the_first_three_rows_of_each_task_whatever_their_seeds():
    """On two tasks these are seed 1 twice and seed 2, so that seed 3 has no part in it. We count a run once."""
    chosen = suite("humanoid_bench")
    (file,) = [path / "tdmpc2.csv" for path in PATHS if (path / "tdmpc2.csv").exists()]
    rows = pd.read_csv(file)
    last = rows[(rows.metric == log.RETURN) & (rows.env_step == 2_000_000)]
    final = np.stack([task.score(last[last.env_name == task.name].value[:3].to_numpy()) for task in chosen.tasks], axis=1)
    printed = scores.aggregate(final / 1000) * [1000, 1000, 1000, 1]
    assert printed == pytest.approx([885.67, 796.18, 787.64, 0.2904], abs=0.0056)
