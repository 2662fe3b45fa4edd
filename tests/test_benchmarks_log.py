"""The log's files: what is read from folders and files, and that a file is replaced as a whole."""

import json
import os
import re

import numpy as np
import pytest

pytest.importorskip("rich", reason="needs rich and pandas, of the benchmarks extra")

import pandas as pd

from benchmarks import log, machine, run
from benchmarks.__main__ import main
from benchmarks.jobs import Job, Settings, TrainedMethod
from benchmarks.keep import write as write_kept
from sb3_cir.tasks import TASKS


def rows(seed, steps=(100, 200), value=1.0, method="cir", task="walker-walk"):
    return pd.DataFrame([(method, task, seed, "avg_return", step, value) for step in steps], columns=log.COLUMNS)


def test_a_folder_is_read_in_natural_order(tmp_path):
    for seed in (10, 2, 1):
        (tmp_path / f"seed_{seed}").mkdir()
        log.write(tmp_path / f"seed_{seed}" / "rows.csv", rows(seed))
    assert list(log.read([tmp_path]).seed.unique()) == [1, 2, 10]


def test_what_is_no_log_is_left_out_of_a_folder_and_refused_as_a_file(tmp_path):
    log.write(tmp_path / "rows.csv", rows(1))
    other = tmp_path / "0.monitor.csv"
    other.write_text('#{"t_start": 1.0}\nr,l,t\n1,2,3\n')
    (tmp_path / ".part_7").mkdir()
    log.write(tmp_path / ".part_7" / "rows.csv", rows(2))
    assert set(log.read([tmp_path]).seed) == {1}
    with pytest.raises(ValueError, match=r"monitor\.csv.*exp_name"):
        log.read([other])


def test_the_order_of_columns_and_further_columns_do_not_matter(tmp_path):
    table = rows(3)[log.COLUMNS[::-1]].assign(host="a")
    table.to_csv(tmp_path / "theirs.csv", index=False)
    assert list(log.read([tmp_path / "theirs.csv"]).columns) == log.COLUMNS


def test_a_file_that_is_named_twice_counts_once(tmp_path):
    log.write(tmp_path / "rows.csv", rows(1))
    assert len(log.read([tmp_path, tmp_path / "rows.csv"])) == 2


def test_of_rows_that_stand_twice_the_first_counts_with_a_warning(tmp_path):
    log.write(tmp_path / "a.csv", pd.concat([rows(1, value=1.0), rows(1, value=2.0)]))
    with pytest.warns(UserWarning, match=r"2 times with another value.*cir on walker-walk, seed 1"):
        assert set(log.read([tmp_path]).value) == {1.0}


@pytest.mark.parametrize("steps", [(100, 200, 300), (150, 250), (100, 300)])
def test_another_run_by_the_same_name_is_left_out_whole(tmp_path, steps):
    """As of a run that was begun anew: its rows do not continue the first one's."""
    log.write(tmp_path / "a.csv", rows(1, value=1.0))
    log.write(tmp_path / "b.csv", pd.concat([rows(1, steps, value=2.0), rows(2, steps)]))
    with pytest.warns(UserWarning, match=r"1 runs of .*b\.csv are left out: .*a\.csv .*cir on walker-walk, seed 1"):
        found = log.read([tmp_path])
    assert found[found.seed == 1].env_step.tolist() == [100, 200]
    assert found[found.seed == 2].env_step.tolist() == list(steps)


@pytest.mark.parametrize("steps", [(100, 200, 300), (300, 400), (20, 50)])
def test_parts_and_longer_copies_of_a_run_are_joined(tmp_path, steps):
    log.write(tmp_path / "a.csv", rows(1))
    log.write(tmp_path / "b.csv", rows(1, steps))
    log.write(tmp_path / "c.csv", rows(1, (1, 2)).assign(metric="avg_success"))
    found = log.load([tmp_path]).rows
    assert set(found[found.metric == "avg_return"].env_step) == {100, 200, *steps}
    assert len(found[found.metric == "avg_success"]) == 2


def test_a_kept_run_and_the_same_one_gone_on(tmp_path):
    """Numbers of many digits, which CSV and pandas must bring back."""
    values = np.random.default_rng(0).uniform(0, 1000, 200)
    whole = pd.DataFrame(
        [("cir", "dog-run", 0, "avg_return", step, value) for step, value in enumerate(values)], columns=log.COLUMNS
    )
    log.write(tmp_path / "a.csv", whole[:100])
    for _ in range(3):
        log.write(tmp_path / "a.csv", log.read([tmp_path / "a.csv"]))
    log.write(tmp_path / "b.csv", whole)
    found = log.load([tmp_path])
    assert found.rows.value.tolist() == values.tolist()


def test_methods_are_known_by_what_reports_call_them(tmp_path):
    log.write(tmp_path / "a.csv", pd.concat([rows(1, method="SimBa (SMR)"), rows(1, method="UTD")]))
    assert set(log.load([tmp_path]).rows.exp_name) == {"simba_smr", "UTD"}


PUBLISHED = """,exp_name,env_name,seed,metric,env_step,value
0,sac_simba,dog_trot,4000,avg_return,0.0,7.25
1,sac_simba,dog_trot,4000,avg_return,1000000.0,512.5
2,td_mpcv2,finger-turn-easy,1,avg_return,500000.0,900.0
3,TD7,h1_walk_v0,2,avg_return,2000000,40.0
4,TD7,assembly-v2-goal-observable,2,avg_success,2000000,0.5
5,fog,humanoid-stand,25.0,avg_return,25000.0,
"""


def test_published_logs_are_read_as_they_are(tmp_path):
    """An index without a name, tasks with underscores or hyphens, methods by their authors' names, a row cut short."""
    (tmp_path / "theirs.csv").write_text(PUBLISHED)
    found = log.load([tmp_path])
    assert found.rows.to_numpy().tolist() == [
        ["simba", "dog-trot", 4000, "avg_return", 0, 7.25],
        ["simba", "dog-trot", 4000, "avg_return", 1_000_000, 512.5],
        ["tdmpc2", "finger-turn_easy", 1, "avg_return", 500_000, 900.0],
        ["td7", "h1-walk-v0", 2, "avg_return", 2_000_000, 40.0],
        ["td7", "assembly-v2-goal-observable", 2, "avg_success", 2_000_000, 0.5],
    ]
    assert found.notes == ["1 of 6 rows are left out: a name, a step or a value is missing or infinite."]


@pytest.mark.parametrize("header", ['"exp_name","env_name","seed","metric","env_step","value"', ", ".join(log.COLUMNS)])
def test_tables_of_spreadsheets_and_of_r(tmp_path, header):
    """A mark at the file's beginning, names in quotes, a space behind each comma."""
    (tmp_path / "theirs.csv").write_text(f"\ufeff{header}\ncir, dog-trot, 0, avg_return, 5000, 2.5\n")
    assert log.load([tmp_path]).rows.to_numpy().tolist() == [["cir", "dog-trot", 0, "avg_return", 5000, 2.5]]


def test_numbers_that_are_none(tmp_path):
    header = ",".join(log.COLUMNS)
    rows = ["cir,dog-trot,0,avg_return,5000,inf", "cir,dog-trot,0,avg_return,inf,1", "cir,dog-trot,0,avg_return,10000,2"]
    (tmp_path / "theirs.csv").write_text("\n".join([header, *rows]))
    found = log.load([tmp_path])
    assert found.rows.value.tolist() == [2]
    assert found.notes == ["2 of 3 rows are left out: a name, a step or a value is missing or infinite."]
    (tmp_path / "theirs.csv").write_text(f"{header}\ncir,dog-trot,0.2,avg_return,5000,1")
    with pytest.raises(ValueError, match=r"theirs\.csv' cannot be read \(ValueError: seed 0\.2 is no whole number\)"):
        log.load([tmp_path])


@pytest.mark.parametrize("manifest", ['{"name": "my page"}', '{"starts": []}'])
def test_a_manifest_of_something_else(tmp_path, manifest):
    log.write(tmp_path / "a.csv", rows(0, value=1.0, task="dog-trot"))
    (tmp_path / "manifest.json").write_text(manifest)
    found = log.load([tmp_path])
    assert (len(found.rows) > 0, found.runs) == (True, [])


def test_keep_leaves_logs_of_others_alone(tmp_path, capsys):
    job_folder(tmp_path / "grid", 0, 1.0)
    theirs = tmp_path / "theirs.csv"
    theirs.write_text(f"# measured by Eva\n{','.join(log.COLUMNS)},note\ncir,dog-trot,7,avg_return,5000,3,mine\n")
    before = theirs.read_text()
    assert keep(tmp_path / "grid", "--out", theirs) == 2
    assert "is a log that `keep` did not write" in capsys.readouterr().err
    assert theirs.read_text() == before


def test_an_unknown_method_keeps_its_name(tmp_path):
    (tmp_path / "theirs.csv").write_text(PUBLISHED.replace("sac_simba", "j_scaler-Init_1"))
    assert "j_scaler-Init_1" in set(log.load([tmp_path]).rows.exp_name)


def test_what_is_no_log_in_a_folder_is_said(tmp_path):
    log.write(tmp_path / "rows.csv", rows(1))
    (tmp_path / "aggregates.csv").write_text("method,IQM\ncir,1\n")
    assert log.load([tmp_path]).notes == [f"1 .csv files in {tmp_path} are no logs, e.g. aggregates.csv."]


ARGUMENTS = """!!python/object/apply:collections.OrderedDict
- - - algo
    - {algo}
  - - env
    - {env}
  - - hyperparams
    - {hyperparams}
  - - seed
    - 5
"""
SETTINGS = """!!python/object/apply:collections.OrderedDict
- - - env_wrapper
    - {wrapper}
  - - policy
    - MlpPolicy
"""


def zoo_run(folder, algo="cir", env="dm_control/walker-walk-v0", hyperparams="null", wrapper="sb3_cir.envs.paper_protocol"):
    """A run's folder as RL Zoo leaves it, its yaml files with the tags of Python that they have."""
    inner = folder / env.replace("/", "-")
    inner.mkdir(parents=True)
    (inner / "args.yml").write_text(ARGUMENTS.format(algo=algo, env=env, hyperparams=hyperparams))
    (inner / "config.yml").write_text(SETTINGS.format(wrapper=wrapper))
    (inner / "command.txt").write_text(f"/opt/venv/bin/python -m rl_zoo3.train --algo {algo} --env {env} -f /home/me/logs")
    np.savez(folder / "evaluations.npz", timesteps=[100, 200], results=[[1.0, 3.0], [5.0, 7.0]], ep_lengths=[[9, 9], [9, 9]])


def test_rl_zoos_evaluations_are_a_log(tmp_path):
    zoo_run(tmp_path / "cir" / "walker_1")
    found = log.load([tmp_path])
    # Two simulator steps for one of the agent; the mean over an evaluation's episodes.
    assert found.rows.to_numpy().tolist() == [
        ["cir", "walker-walk", 5, "avg_return", 200, 2.0],
        ["cir", "walker-walk", 5, "avg_return", 400, 6.0],
    ]
    assert found.runs[0]["command"] == "python -m rl_zoo3.train --algo cir --env dm_control/walker-walk-v0 -f logs"


def test_rl_zoos_runs_without_the_protocol_count_the_agents_steps(tmp_path):
    zoo_run(tmp_path / "tqc" / "walker_1", algo="tqc", wrapper="null")
    assert set(log.load([tmp_path]).rows.env_step) == {100, 200}


@pytest.mark.parametrize(
    ("hyperparams", "name"),
    [
        ("{convex_coef: 1.0}", "cir:cdq"),
        ("{convex_coef: 1.0, compile: true}", "cir:cdq"),
        ("{policy_kwargs: {critic_network: NoTanh, use_sde: false}}", "cir:no_tanh"),
        ("{batch_size: 64}", "cir batch_size=64"),
    ],
)
def test_rl_zoos_params_make_another_method(tmp_path, hyperparams, name):
    zoo_run(tmp_path / "run_1", hyperparams=hyperparams)
    assert set(log.load([tmp_path]).rows.exp_name) == {name}


def test_a_jobs_rows_count_and_not_the_evaluations_of_the_zoo_below_them(tmp_path):
    log.write(tmp_path / "rows.csv", rows(1))
    zoo_run(tmp_path / "zoo" / "cir" / "walker_1")
    assert set(log.load([tmp_path]).rows.seed) == {1}


def test_evaluations_without_what_rl_zoo_writes_beside_them_are_refused(tmp_path):
    zoo_run(tmp_path)
    next(tmp_path.glob("*/args.yml")).unlink()
    with pytest.raises(ValueError, match=r"no RL Zoo run: there is no args\.yml"):
        log.load([tmp_path])


def test_a_yaml_of_rl_zoo_builds_no_object(tmp_path):
    zoo_run(tmp_path, wrapper="!!python/object/apply:os.mkdir [" + str(tmp_path / "made") + "]")
    log.load([tmp_path])
    assert not (tmp_path / "made").exists()


def keep(*arguments):
    return main(["keep", *map(str, arguments)])


def job_folder(out, seed, value, commit="c0ffee"):
    """What ``benchmarks run`` leaves of a job, its manifest made by its own function."""
    job = Job(TrainedMethod("cir"), TASKS["dog-trot"], seed, out, Settings(budget=0.01))
    job.folder.mkdir(parents=True)
    log.write(job.rows_file, rows(seed, value=value, task="dog-trot"))
    run.write_manifest(job, job.command())
    manifest = json.loads((job.folder / "manifest.json").read_text())
    manifest["starts"][0] |= {"git_commit": commit, "git_clean": True}
    (job.folder / "manifest.json").write_text(json.dumps(manifest))


def test_kept_runs_say_how_they_were_made_and_hold_no_path_of_the_machine(tmp_path):
    job_folder(tmp_path / "grid", 0, 1.0)
    kept = tmp_path / "kept" / "screen.csv"
    assert keep(tmp_path / "grid", "--out", kept) == 0
    found = log.load([kept])
    (made,) = found.runs
    assert (made["exp_name"], made["env_name"], made["seed"], made["commit"]) == ("cir", "dog-trot", 0, "c0ffee")
    assert machine.processor() in made["processor"]
    assert re.match(r"python[\d.]* -m rl_zoo3\.train --algo cir --env dm_control/dog-trot-v0", made["command"])
    assert made["versions"]["torch"]
    assert str(tmp_path) not in kept.read_text()
    assert found.rows.equals(log.load([tmp_path / "grid"]).rows)


def test_keeping_more_runs_adds_them_and_takes_the_newer_of_the_same(tmp_path):
    kept = tmp_path / "kept.csv"
    for grid, seed, value in (("a", 0, 1.0), ("b", 1, 2.0), ("c", 0, 3.0)):
        job_folder(tmp_path / grid, seed, value, commit=grid)
        assert keep(tmp_path / grid, "--out", kept) == 0
    found = log.load([kept])
    assert {made["seed"]: made["commit"] for made in found.runs} == {0: "c", 1: "b"}
    assert found.rows.groupby("seed").value.unique().map(list).to_dict() == {0: [3.0], 1: [2.0]}
    assert found.notes == []


def test_of_a_run_that_stands_twice_the_first_is_kept_with_its_own_origin(tmp_path):
    (tmp_path / "logs").mkdir()
    for name, value in (("a", 1.0), ("b", 2.0)):
        made = dict(zip(log.RUN, ("cir", "walker-walk", 1), strict=True), commit=name * 8, processor=name)
        write_kept(tmp_path / "logs" / f"{name}.csv", rows(1, value=value), [made])
    keep(tmp_path / "logs", "--out", tmp_path / "kept.csv")
    (run,) = log.load([tmp_path / "kept.csv"]).runs
    assert run["commit"] == "aaaaaaaa"
    assert set(log.read([tmp_path / "kept.csv"]).value) == {1.0}


def test_keep_refuses_two_folders_of_one_run(tmp_path, capsys):
    for name in ("a", "b"):
        rows = pd.DataFrame([("cir", "dog-run", 3, log.RETURN, 100, 1.0)], columns=log.COLUMNS)
        log.write(tmp_path / f"{name}.csv", rows)
    assert main(["keep", str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), "--out", str(tmp_path / "kept.csv")]) == 2
    assert "both have cir on dog-run, seed 3: name one of them" in capsys.readouterr().err
    assert not (tmp_path / "kept.csv").exists()


def test_runs_of_rl_zoo_are_kept_with_the_commit_that_is_given(tmp_path):
    zoo_run(tmp_path / "logs" / "cir" / "walker_1")
    assert keep(tmp_path / "logs", "--out", tmp_path / "kept.csv", "--commit", "abc") == 0
    assert log.load([tmp_path / "kept.csv"]).runs[0]["commit"] == "abc"


def test_nothing_there_is_said(tmp_path):
    with pytest.raises(ValueError, match="no log in"):
        log.read([tmp_path])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        log.read([tmp_path / "nowhere"])


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "rows.csv"
    log.write(path, rows(1))
    before = path.read_text()

    def full(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        log.write(path, rows(2))
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("broken", [b"", b"PK\x03\x04 cut", b"\x93NUMPY"])
def test_a_damaged_evaluation_of_rl_zoo_is_left_out_of_a_folder_with_a_note(tmp_path, broken):
    log.write(tmp_path / "own.csv", rows(1))
    run_folder = tmp_path / "Pendulum-v1_1"
    run_folder.mkdir()
    zoo_run(run_folder)
    (run_folder / "evaluations.npz").write_bytes(broken)
    found = log.load([tmp_path])
    assert set(found.rows.seed) == {1}
    assert any("evaluations.npz' cannot be read" in note for note in found.notes)
    with pytest.raises(ValueError, match=r"evaluations\.npz' cannot be read"):
        log.load([run_folder / "evaluations.npz"])


@pytest.mark.parametrize(
    "text",
    [
        "exp_name,env_name,seed,metric,env_step,value\ncir,dog-run,0,avg_return,many,1\n",
        "# {broken\nexp_name,env_name,seed,metric,env_step,value\n",
        '# {"exp_name": "cir"}\nexp_name,env_name,seed,metric,env_step,value\n',
    ],
)
def test_an_error_names_the_damaged_file(tmp_path, text):
    (tmp_path / "theirs.csv").write_text(text)
    with pytest.raises(ValueError, match=r"theirs\.csv' cannot be read"):
        log.load([tmp_path / "theirs.csv"])


def test_keep_refuses_a_log_without_runs(tmp_path, capsys):
    (tmp_path / "empty.csv").write_text(",".join(log.COLUMNS) + "\n")
    assert main(["keep", str(tmp_path / "empty.csv"), "--out", str(tmp_path / "kept.csv")]) == 2
    assert "no runs" in capsys.readouterr().err
    assert not (tmp_path / "kept.csv").exists()
