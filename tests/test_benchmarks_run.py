"""The grid runner: jobs as zoo commands, the recorder in a training run, and Ray with workers and drivers that are killed."""

import argparse
import ast
import contextlib
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("rich", reason="needs rich and pandas, of the benchmarks extra")

from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from benchmarks import log, machine, recorder, run
from benchmarks.__main__ import main
from benchmarks.jobs import Job, Settings, method
from benchmarks.machine import ROOT
from benchmarks.recorder import Recorder
from benchmarks.suites import suite, task
from sb3_cir import CIR
from sb3_cir.baselines.darc import DARC
from sb3_cir.baselines.par import PAR
from sb3_cir.baselines.two_domain_sac import TwoDomainSAC
from sb3_cir.callbacks import Checkpoint
from sb3_cir.off_dynamics import TwoDomainReplayBuffer
from sb3_cir.runs import resumable

TINY = ["policy_kwargs:dict(net_arch=[8,8])", "batch_size:8", "learning_starts:20"]
needs_the_zoo = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None or importlib.util.find_spec("_sb3_cir_zoo_hook") is None,
    reason="needs ray, and sb3_cir installed so that the zoo knows cir",
)


def job(out, name="cir", budget=0.0008, eval_every=200, task_name="cartpole-balance"):
    return Job(method(name), task(task_name), 3, out, Settings(budget, eval_every, tuple(TINY)))


def options(out, *more):
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    return parser.parse_args(["--suite", "dmc_hard", "--out", str(out), *more])


def test_a_job_is_one_zoo_command(tmp_path):
    command = job(tmp_path).command()
    assert command[1:3] == ["-m", "rl_zoo3.train"]
    given = dict(zip(command[3 : command.index("-params") : 2], command[4 : command.index("-params") : 2], strict=True))
    assert given["--env"] == "dm_control/cartpole-balance-v0"
    # 500,000 steps of the simulator at action repeat 2, of which 0.0008
    assert (given["--n-timesteps"], given["--eval-freq"], given["--eval-episodes"]) == ("200", "100", "10")
    assert "batch_size:8" in command
    assert "benchmarks.recorder.Recorder" in command[-1]


def test_the_whole_budget_is_the_papers(tmp_path):
    whole = Job(method("cir"), task("dog-run"), 0, tmp_path)
    assert (whole.agent_steps, whole.env_steps, whole.eval_every) == (500_000, 1_000_000, 2_500)
    odrl = Job(method("cir"), task("ant-gravity-5.0"), 0, tmp_path)
    assert (odrl.agent_steps, odrl.eval_every) == (1_000_000, 10_000)


@pytest.mark.parametrize(("budget", "every", "steps", "interval"), [(0.001, 300, 300, 150), (0.001, 9999, 250, 250)])
def test_the_last_step_is_evaluated(tmp_path, budget, every, steps, interval):
    found = job(tmp_path, budget=budget, eval_every=every)
    assert (found.agent_steps, found.eval_every) == (steps, interval)


def test_variants_are_the_packages(tmp_path):
    assert "convex_coef:1.0" in job(tmp_path, "cir:cdq").command()
    with pytest.raises(ValueError, match="--methods cir:cqd: did you mean 'cir:cdq'"):
        method("cir:cqd")
    with pytest.raises(ValueError, match="only CIR"):
        method("sac:cdq")
    with pytest.raises(ValueError, match=r"--methods foo: it must be one of .*cir, .*tqc"):
        method("foo")


def test_algorithms_of_the_zoo_follow_the_papers_protocol():
    protocol = "env_wrapper:'sb3_cir.envs.paper_protocol'"
    assert all(protocol in method(name).params for name in ("sac", "td3", "tqc"))
    assert method("cir").params == method("simba").params == ()  # our own yaml has it


def test_the_grid_takes_the_first_seed_of_everything_first(tmp_path):
    jobs = run.grid(options(tmp_path, "--methods", "cir", "sac", "--tasks", "dog-run", "dog-walk", "--seeds", "2"))
    assert [(each.seed, each.method.name, each.task.name) for each in jobs[:3]] == [
        (0, "cir", "dog-run"),
        (0, "cir", "dog-walk"),
        (0, "sac", "dog-run"),
    ]
    assert len({each.folder for each in jobs}) == 8
    assert len(run.grid(options(tmp_path, "--methods", "cir", "cir", "--tasks", "dog-run", "dog-run", "--seeds", "1"))) == 1
    assert len(run.grid(options(tmp_path, "--methods", "cir", "--tasks", "dog-run"))) == 10


def test_what_learns_from_two_domains(tmp_path):
    """SAC is ODRL's there; another's settings may come from the command line."""
    run.grid(options(tmp_path, "--suite", "odrl", "--methods", "cir", "cir:cdq", "cir_simba", "sac", "darc", "par"))
    run.grid(
        options(tmp_path, "--suite", "odrl", "--methods", "simba", "--params", "replay_buffer_class:TwoDomainReplayBuffer")
    )


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--tasks", "dog-sit"], "dog-sit"),
        (["--budget", "0"], "--budget 0"),
        (["--seeds", "0"], "--seeds 0"),
        (["--eval-every", "0"], "--eval-every 0"),
        (["--budget", "inf"], "--budget inf"),
        (["--cpus-per-job", "inf"], "--cpus-per-job inf"),
        (["--params", "learning_rate=1e-3"], "--params learning_rate=1e-3: it must be name:value"),
        (["--eval-every", "30000"], "--eval-every 30000: the 1,000,000 steps of dog-.* are no multiple of it"),
        (["--methods", "ppo"], "--methods ppo"),
        (["--params", "n_envs:8"], "n_envs:8: cir is evaluated every 2,500 steps, no multiple of it"),
        (["--methods", "darc"], "--methods darc: it learns from two domains, and dog-.* has one"),
        (["--suite", "odrl", "--methods", "simba"], "--methods simba: .* has two domains, and its settings know nothing"),
        (["--suite", "odrl", "--methods", "td3"], "--methods td3: .* has two domains, and its settings know nothing"),
    ],
)
def test_bad_options_are_refused(tmp_path, more, says):
    with pytest.raises(ValueError, match=says):
        run.grid(options(tmp_path, *more))


def finished_rows(each, seconds=7200.0):
    """Half of it were random steps, which took a minute."""
    made = {
        each.env_steps // 2: (5.0, 60.0, 0.0),
        each.env_steps // 2 + 1: (5.0, 60.0, 2.0),
        each.env_steps: (5.0, seconds, 9.0),
    }
    rows = [
        (each.method.name, each.task.name, each.seed, key, step, value)
        for step, values in made.items()
        for key, value in zip((log.RETURN, log.SECONDS, log.UPDATES), values, strict=True)
    ]
    each.folder.mkdir(parents=True)
    log.write(each.rows_file, pd.DataFrame(rows, columns=log.COLUMNS))


def test_list_estimates_hours_from_the_rate_seen_and_starts_nothing(tmp_path, capsys, monkeypatch):
    given = options(tmp_path, "--methods", "cir", "--tasks", "dog-run", "--seeds", "3", "--list")
    monkeypatch.setattr(os, "cpu_count", lambda: 64)  # for more than there are left
    finished_rows(run.grid(given)[0])
    before = sorted(tmp_path.rglob("*"))
    assert run.main(given) == 0
    shown = capsys.readouterr().out
    assert "1 of 3" in shown
    # Two more with 7,140 seconds for 500,000 steps
    assert "7.9 hours of jobs left: 4.0 hours with 2 at once" in shown
    assert sorted(tmp_path.rglob("*")) == before


@needs_the_zoo
def test_list_measures_a_method_that_has_no_log_yet(tmp_path, capsys):
    given = options(tmp_path, "--methods", "cir", "--tasks", "dog-run", "--seeds", "2", "--list", "--params", *TINY)
    assert run.main(given) == 0
    shown = capsys.readouterr().out
    assert "cir has no log here yet: measuring 30 updates on dog-run" in shown
    assert "2,000,000" in shown
    assert "hours of jobs left" in shown
    assert list(tmp_path.iterdir()) == []


def test_list_says_where_nothing_could_be_measured(tmp_path, capsys):
    given = options(tmp_path, "--methods", "cir", "--tasks", "dog-run", "--list", "--params", "batch_size:-1")
    assert run.main(given) == 0
    shown = capsys.readouterr().out
    assert "cir could not be trained on dog-run" in shown
    assert "Hours are not known" in shown


def test_a_folder_with_other_settings_is_refused(tmp_path):
    first = job(tmp_path)
    finished_rows(first)
    run.write_manifest(first, first.command())
    first.check_settings()
    with pytest.raises(ValueError, match="other settings") as refused:
        job(tmp_path, budget=0.0016).check_settings()
    # What differs, and no commands.
    assert str(refused.value).splitlines()[1:] == ["  --n-timesteps: then 200, now 400", "  buffer_size: then 200, now 400"]
    changed = replace(job(tmp_path), settings=Settings(0.0008, 200, (*TINY[:1], "batch_size:4", "tau:0.1")))
    with pytest.raises(ValueError, match="batch_size: then 8, now 4") as refused:
        changed.check_settings()
    assert "tau: then not given, now 0.1" in str(refused.value)
    manifest = json.loads((first.folder / "manifest.json").read_text())
    start = manifest["starts"][0]
    assert shlex.split(start["command"]) == first.command()
    assert start["versions"]["stable-baselines3"]
    assert start["machine"]["cpus"] == os.cpu_count()


@pytest.mark.parametrize(("status", "problem"), [(0, None), (1, "the zoo ended with status 1")])
def test_a_run_that_failed_after_its_last_evaluation_keeps_its_checkpoint(tmp_path, monkeypatch, status, problem):
    """It has all of its rows, and its model is not saved yet."""
    each = job(tmp_path)
    finished_rows(each)
    each.checkpoints.mkdir()
    assert not each.finished
    monkeypatch.setattr(Job, "command", lambda *_: [sys.executable, "-c", f"raise SystemExit({status})"])
    found = run.train(each)
    assert found is problem or found.startswith(problem)
    assert each.finished == (status == 0)
    assert each.checkpoints.exists() == (status == 1)


class Killed(BaseCallback):
    """Ends the run as an exception would, at a step between evaluations."""

    def _on_step(self):
        if self.num_timesteps == 55:
            raise KeyError("killed")
        return True


def learn(folder, *callbacks, resumed=False, **kwargs):
    env, eval_env = make_vec_env("Pendulum-v1", seed=0), make_vec_env("Pendulum-v1", seed=0)
    each = Recorder(str(folder), "sac", "pendulum", 2, 80)
    saver = Checkpoint(40, folder / ".checkpoints", restart_episodes=True)
    arguments = {"learning_starts": 10, "batch_size": 8, "buffer_size": 80, "policy_kwargs": {"net_arch": [8, 8]}, "seed": 3}
    kind = resumable(SAC)
    model = kind.resume(folder / ".checkpoints", env) if resumed else kind("MlpPolicy", env, **arguments)
    evaluation = EvalCallback(eval_env, eval_freq=10, n_eval_episodes=1, verbose=0, **kwargs)
    return model.learn(80, callback=[each, *callbacks, saver, evaluation])


def test_evaluations_have_seeds_of_their_own(tmp_path, monkeypatch):
    """The run's and 100, as the authors' and ODRL's; RL Zoo gives both environments the run's."""
    given, seed = [], VecEnv.seed

    def noted(env, number=None):
        given.append((env, number))
        return seed(env, number)

    monkeypatch.setattr(VecEnv, "seed", noted)
    model = learn(tmp_path)
    assert 103 in [number for env, number in given if env is not model.env]
    assert 103 not in [number for env, number in given if env is model.env]


def test_a_full_disk_does_not_end_a_job(tmp_path, monkeypatch):
    write, full = recorder.write_whole, []

    def now_and_then(path, content):
        full.append(path.name)
        if len(full) < 4:
            raise OSError("no space left")
        write(path, content)

    monkeypatch.setattr(recorder, "write_whole", now_and_then)
    monkeypatch.setattr(log, "write_whole", now_and_then)
    with pytest.warns(UserWarning, match=r"rows\.csv could not be written, and will be tried again: no space left"):
        learn(tmp_path)
    assert {"progress.json", "rows.csv"} <= set(full[:3])
    assert values(tmp_path).env_step.max() == 160


def test_a_full_disk_does_not_end_an_evaluation(tmp_path, monkeypatch):
    """SB3's own callback would write its results, and the best agent, before the rows are."""
    monkeypatch.setattr("numpy.savez", lambda *_, **__: (_ for _ in ()).throw(OSError("no space left")))
    learn(tmp_path, log_path=str(tmp_path), best_model_save_path=str(tmp_path))
    assert values(tmp_path).env_step.max() == 160
    assert not list(tmp_path.glob("best_model*"))


def test_the_last_rows_must_be_written(tmp_path, monkeypatch):
    """A job that ended without them would never have them: it goes on from its end."""
    write = recorder.log.write

    def full(path, rows):
        if rows.env_step.max() == 160:
            raise OSError("no space left")
        write(path, rows)

    monkeypatch.setattr(recorder.log, "write", full)
    with pytest.raises(OSError, match="no space left"):
        learn(tmp_path)
    monkeypatch.undo()
    learn(tmp_path, resumed=True)
    assert values(tmp_path).env_step.max() == 160


def test_a_job_that_is_being_tidied_up_is_finished(tmp_path, monkeypatch):
    """Killed within, it is not begun anew, and what is left goes at the next start."""
    each = job(tmp_path)
    finished_rows(each)
    (each.folder / ".checkpoints" / "transitions").mkdir(parents=True)

    def killed(path, **_):
        if path.exists():
            raise KeyError("killed")

    monkeypatch.setattr(run.shutil, "rmtree", killed)
    with pytest.raises(KeyError):
        run.remove_leftovers(each)
    monkeypatch.undo()
    assert each.finished
    assert (each.folder / ".gone").exists()
    assert run.train(each) is None
    assert sorted(path.name for path in each.folder.glob(".*")) == [".lock"]


def test_what_a_killed_tidying_up_left_goes_at_the_next_start(tmp_path):
    given = options(tmp_path, "--tasks", "dog-run", "--methods", "cir", "--budget", "0.5", "--seeds", "1")
    (each,) = run.grid(given)
    finished_rows(each)
    (each.folder / ".gone" / "transitions").mkdir(parents=True)
    assert run.main(given) == 0
    assert not (each.folder / ".gone").exists()

    # One that is there already does not keep other checkpoints.
    (each.folder / ".gone" / "transitions").mkdir(parents=True)
    (each.folder / ".checkpoints" / "transitions").mkdir(parents=True)
    run.remove_leftovers(each)
    assert not list(each.folder.glob(".*"))


def test_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert machine.checkout() == {"git_commit": None, "git_clean": True}
    assert machine.git_commit() is None


def values(folder):
    """A log without what the clock says."""
    rows = log.read([folder])
    return rows[rows.metric != log.SECONDS].reset_index(drop=True)


def test_a_run_that_was_killed_has_the_rows_of_one_that_was_not(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    learn(whole)
    with pytest.raises(KeyError):
        learn(killed, Killed())
    # The last one is behind the checkpoint of step 40, so it is made once more.
    assert set(log.read([killed]).env_step) == {20, 40, 60, 80, 100}
    model = learn(killed, resumed=True)
    pd.testing.assert_frame_equal(values(whole), values(killed))
    rows = log.read([killed])
    assert list(rows[rows.metric == log.RETURN].env_step) == list(range(20, 161, 20))
    assert (rows[rows.metric == log.SECONDS].value.diff().dropna() > 0).all()
    assert (model._n_updates, model.replay_buffer.size()) == (70, 80)
    progress = json.loads((killed / "progress.json").read_text())
    assert progress["step"] == progress["total"] == 160


def grid_command(out, *more):
    grid = ["--suite", "dmc_easy_medium", "--methods", "cir", "sac", "--tasks", "cartpole-balance", "--seeds", "1"]
    command = [sys.executable, "-m", "benchmarks", "run", *grid, "--out", str(out), *more]
    return [*command, "--budget", "0.0008", "--eval-every", "200", "--params", *TINY]


def start(out, *more):
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(grid_command(out, *more), cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)


def parent(process):
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


def training(out):
    """The zoo's trainings below a folder: process id, and that of the parent, which is a Ray worker."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_text().split("\0")
            if "rl_zoo3.train" in words and any(word.startswith(str(out)) for word in words):
                found[int(path.name)] = parent(path.name)
        except OSError:
            continue  # it has ended
    return {process: worker for process, worker in found.items() if worker not in found}


def wait_for(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


def check_finished(out, steps=(200, 400)):
    files = sorted(out.rglob("rows.csv"))
    assert len(files) == 2
    for file in files:
        rows = pd.read_csv(file)
        assert len(rows) == 3 * len(steps)
        assert not rows.duplicated(["metric", "env_step"]).any()
        assert set(rows.env_step) == set(steps)
        assert not (file.parent / ".checkpoints").exists()


@needs_the_zoo
@pytest.mark.slow
@pytest.mark.parametrize("name", suite("odrl").methods)
def test_two_domains(name, tmp_path):
    """Killed after the first evaluation, too."""
    each = job(tmp_path, name, budget=0.0003, eval_every=100, task_name="walker2d-gravity-0.5")
    each.folder.mkdir(parents=True)
    with open(each.log_file, "a") as output:
        process = subprocess.Popen(each.command(), cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        wait_for(lambda: each.checkpoint or process.poll() is not None)
        process.kill()
        process.wait()
    assert each.checkpoint, each.log_file.read_text()
    assert run.train(each) is None, each.log_file.read_text()
    assert list(pd.read_csv(each.rows_file).env_step.unique()) == [100, 200, 300]
    (archive,) = each.folder.glob("zoo/*/*/odrl-*.zip")
    model = {"cir": CIR, "sac": TwoDomainSAC, "darc": DARC, "par": PAR}[name].load(archive, device="cpu")
    assert model.replay_buffer_class is TwoDomainReplayBuffer


@needs_the_zoo
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_killed_workers_and_drivers_change_no_row(tmp_path):
    driver = start(tmp_path)
    wait_for(lambda: list(tmp_path.rglob("rows.csv")))
    folder = next(tmp_path.rglob("rows.csv")).parent
    worker = next((worker for worker in training(folder).values()), None)
    assert worker is not None, "the job ended before it could be killed"
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not training(folder))
    wait_for(lambda: len(list(tmp_path.rglob("rows.csv"))) == 2 or driver.poll() is not None)
    driver.kill()
    wait_for(lambda: not training(tmp_path))

    again = start(tmp_path)
    shown = again.communicate()[0]
    assert again.returncode == 0, shown
    check_finished(tmp_path)
    uninterrupted = start(other := tmp_path.with_name("other"))
    assert uninterrupted.wait() == 0
    for file in tmp_path.rglob("rows.csv"):
        pd.testing.assert_frame_equal(values(file.parent), values(other / file.parent.relative_to(tmp_path)))
    manifest = json.loads((folder / "manifest.json").read_text())
    assert "--trained-agent" in manifest["starts"][-1]["command"]

    files = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
    third = start(tmp_path)
    assert "2 done" in third.communicate()[0]
    assert files == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}


@needs_the_zoo
@pytest.mark.slow
def test_a_failed_job_is_reported_and_does_not_stop_the_rest(tmp_path):
    blocked = tmp_path / "cir" / "cartpole-balance" / "seed_0"
    blocked.mkdir(parents=True)
    (blocked / "zoo").write_text("a file where the zoo wants a folder")
    driver = start(tmp_path)
    shown = driver.communicate()[0]
    assert driver.returncode == 1
    assert f"Its log: {blocked / 'log.txt'}" in shown
    assert "FileExistsError" in (blocked / "log.txt").read_text() or "NotADirectoryError" in (blocked / "log.txt").read_text()
    assert (tmp_path / "sac" / "cartpole-balance" / "seed_0" / "rows.csv").exists()


@needs_the_zoo
@pytest.mark.slow
def test_a_cluster_of_two_nodes(tmp_path):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        driver = start(tmp_path, "--address", cluster.address)
        nodes = set()
        while driver.poll() is None:
            with contextlib.suppress(OSError):
                nodes |= {parent(worker) for worker in training(tmp_path).values()}
            time.sleep(0.1)
        assert driver.returncode == 0, driver.communicate()[0]
        # Workers are children of their node's process.
        assert len(nodes) == 2
    finally:
        cluster.shutdown()
    check_finished(tmp_path)


def test_checkpoints_are_made_at_evaluations(tmp_path):
    """Where one restarts an episode that dm_control would have gone on with, training is not RL Zoo's."""
    short = Job(method("cir"), task("cartpole-balance"), 0, tmp_path, Settings(0.05))
    whole = Job(method("cir"), task("cartpole-balance"), 0, tmp_path)
    assert (short.eval_every, _checkpoint_every(short), _checkpoint_every(whole)) == (2_500, 2_500, 12_500)


def _checkpoint_every(each):
    (callback,) = (word for word in each.command() if word.startswith("callback:"))
    return ast.literal_eval(callback.partition(":")[2])[1]["sb3_cir.callbacks.Checkpoint"]["every"]


@pytest.mark.parametrize("text", ["", "{}", "[1"])
def test_a_damaged_manifest_is_named(tmp_path, text):
    each = job(tmp_path)
    each.folder.mkdir(parents=True)
    (each.folder / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        each.check_settings()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["theory", "--out", "FILE"], "FILE is a file"),
        (["speed", "--rounds", "0"], "--rounds: 0: it must be at least 1"),
        (["screen", "--arm", "cir", "--every", "2", "--eval-every", "3", "--out", "x"], "multiple of --every"),
        (["screen", "--arm", "cir", "--steps", "600000", "--out", "x"], "--steps 600000: at most 500000"),
        (["hostile", "--part", "8", "8"], "the parts are 0 to 7"),
        (["hostile", "--only", "no such variant"], "no variant"),
        (["preset", "--out", "."], ". is a folder"),
        (["prefill", "--seeds", "-1"], "--seeds: -1: it must be at least 0"),
    ],
)
def test_other_commands_refuse_bad_options_before_they_measure(tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").touch()
    with contextlib.suppress(SystemExit):  # argparse's own way
        assert main(words) == 2
    assert says in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["FILE"]
