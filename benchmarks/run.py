"""
``python -m benchmarks run``: train a grid of methods, tasks and seeds with Ray.

Each job is one RL Zoo command in a process of its own (see :mod:`benchmarks.jobs`), started by a Ray worker. Results are
files below ``--out``, which every machine of a cluster must see under the same path, as it must this checkout.
"""

import argparse
import ctypes
import itertools
import json
import logging
import math
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from benchmarks import rate
from benchmarks.arguments import folder
from benchmarks.jobs import Job, Settings, method, rates
from benchmarks.machine import ROOT, checkout, processor, versions
from benchmarks.progress import View
from benchmarks.suites import SUITES, suite
from sb3_cir.runs.files import write_whole

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the command's options.

    :param parser: Gets them
    """
    parser.add_argument("--suite", required=True, choices=list(SUITES), metavar="SUITE", help=f"one of {', '.join(SUITES)}")
    parser.add_argument(
        "--methods",
        nargs="+",
        help="algorithms of the zoo and variants, e.g. cir sac cir:cdq (default: those of the paper that this project has)",
    )
    parser.add_argument("--tasks", nargs="+", help="only these tasks of the suite")
    parser.add_argument("--seeds", type=int, help="how many; they are 0, 1, ... (default: the paper's for the suite, 10 or 5)")
    parser.add_argument("--out", type=folder, required=True, help="folder of the results")
    parser.add_argument("--budget", type=float, default=1.0, help="fraction of the paper's steps (default: %(default)s)")
    parser.add_argument("--eval-every", type=int, help="steps of the simulator between evaluations (default: the paper's)")
    parser.add_argument(
        "--params",
        nargs="+",
        default=[],
        help="hyperparameters for all jobs, as for the zoo's -params; a variant's own win, policy_kwargs as a whole",
    )
    parser.add_argument("--address", help="a Ray cluster to join (default: this machine)")
    parser.add_argument("--cpus-per-job", type=float, default=1.0, help="may be a fraction (default: %(default)s)")
    parser.add_argument("--gpus-per-job", type=float, default=0.0, help="may be a fraction; with 0 jobs run on CPU")
    parser.add_argument(
        "--list",
        action="store_true",
        help="show what would run, with an estimate of hours; a method without a log is measured for some seconds first",
    )


def main(options: argparse.Namespace) -> int:
    """
    :param options: See :func:`add_arguments`
    :return: 0, or 1 where a job failed
    """
    jobs = grid(options)
    for job in jobs:
        job.check_settings()
    console = Console()
    if options.list:
        console.print(plan(jobs, _at_once(options), _rates(jobs, console)))
        return 0
    view = View(jobs, console)
    missing = [job for job in jobs if not job.finished]
    finished = [job for job in jobs if job not in missing]
    for job in finished:  # whose tidying up may have been killed
        shutil.rmtree(job.folder / GONE, ignore_errors=True)
    if missing:
        console.print("Starting Ray. On a small machine this takes up to a minute.")
    view.finished.update(finished)
    try:
        with view:
            for job, problem in _train_all(missing, options, view.refresh):
                view.ended(job, problem)
    except KeyboardInterrupt:
        console.print("Interrupted. The same command goes on where this one stopped.")
        return 130
    return 1 if view.failed else 0


def grid(options: argparse.Namespace) -> list[Job]:
    """
    :param options: See :func:`add_arguments`
    :return: Its jobs, the first seed of everything first
    :raises ValueError: If a method, a task or a setting is not valid.
    """
    chosen = suite(options.suite)
    names = list(dict.fromkeys(options.tasks or [task.name for task in chosen.tasks]))
    tasks = {task.name: task for task in chosen.tasks}
    unknown = [name for name in names if name not in tasks]
    if unknown:
        raise ValueError(f"--tasks {unknown[0]}: suite {chosen.name} has {', '.join(tasks)}.")
    seeds = chosen.seeds if options.seeds is None else options.seeds
    if seeds < 1:
        raise ValueError(f"--seeds {seeds}: it must be at least 1.")
    for name, share in (("--cpus-per-job", options.cpus_per_job), ("--gpus-per-job", options.gpus_per_job)):
        if not 0 <= share < math.inf:
            raise ValueError(f"{name} {share}: it must be finite and at least 0.")
    settings = Settings(
        options.budget,
        options.eval_every,
        tuple(options.params),
        threads=max(1, int(options.cpus_per_job)),
        device="cuda" if options.gpus_per_job else "cpu",
    )
    # Each once, however often it is named: the same job twice would be two in one folder.
    methods = [method(name) for name in dict.fromkeys(options.methods or chosen.methods)]
    out = options.out.resolve()
    order = itertools.product(range(seeds), methods, [tasks[name] for name in names])
    jobs = [Job(each, task, seed, out, settings) for seed, each, task in order]
    for job in jobs:
        if job.seed == 0:
            job.check_domains()
        n_envs = dict(word.split(":", 1) for word in (*settings.params, *job.method.params)).get("n_envs", "1")
        if n_envs.isdigit() and int(n_envs) and job.eval_every % int(n_envs):
            raise ValueError(
                f"n_envs:{n_envs}: {job.method.name} is evaluated every {job.eval_every:,} steps, no multiple of it, so that "
                "the last evaluation would never come. --eval-every counts the simulator's."
            )
        if settings.eval_every and settings.budget == 1 and job.env_steps > job.task.env_steps:
            raise ValueError(
                f"--eval-every {settings.eval_every}: the {job.task.env_steps:,} steps of {job.task.name} are no multiple of "
                "it, so that the last evaluation would lie beyond them."
            )
    return jobs


def _at_once(options: argparse.Namespace) -> int:
    """How many jobs this machine has processors and GPUs for."""
    found = (os.cpu_count() or 1) / (options.cpus_per_job or 1)
    if options.gpus_per_job:
        import torch

        found = min(found, torch.cuda.device_count() / options.gpus_per_job)
    return max(1, int(found))


def _rates(jobs: list[Job], console: Console) -> pd.DataFrame:
    """From the logs of the grid; of a method that has none yet, measured now on one of its tasks."""
    seen = rates(jobs)
    unknown = {job.method.name: job for job in reversed(jobs) if job.method.name not in set(seen.method)}
    found = []
    for name, job in reversed(unknown.items()):
        console.print(f"{name} has no log here yet: measuring {rate.UPDATES} updates on {job.task.name} ...")
        measured = rate.measure(job)
        if measured is None:
            console.print(f"{name} could not be trained on {job.task.name}. `benchmarks run` keeps a log that says why.")
        else:
            found.append((name, job.task.name, measured))
    return pd.DataFrame([*seen.itertuples(index=False), *found], columns=["method", "task", "rate"])


# A folder that is being deleted
GONE = ".gone"


def plan(jobs: list[Job], at_once: int, seen: pd.DataFrame) -> Table:
    """
    :param jobs: A grid
    :param at_once: How many run at the same time
    :param seen: Rates as :func:`benchmarks.jobs.rates` has them
    :return: What is done and what would run, with hours from the rates: of the same method and task, else of the same method
    """
    table = Table("method", "task", "seeds done", "simulator steps left", "hours", title=f"{len(jobs)} jobs")
    total, longest = 0.0, 0.0
    at_once = max(min(at_once, sum(not job.finished for job in jobs)), 1)
    for (name, task), group in _by_method_and_task(jobs):
        left = [job.env_steps - min(job.done_steps, job.env_steps) for job in group]
        like = [seen[(seen.method == name) & (seen.task == task)], seen[seen.method == name]]
        per_second = next((each.rate.mean() for each in like if len(each)), np.nan)
        hours, longest_here = (steps / per_second / 3600 if steps else 0.0 for steps in (sum(left), max(left)))
        total, longest = total + hours, max(longest, longest_here)
        done = sum(job.finished for job in group)
        table.add_row(name, task, f"{done} of {len(group)}", f"{sum(left):,}", "?" if np.isnan(hours) else f"{hours:.2f}")
    waits = max(total / at_once, longest)
    table.caption = (
        "Hours are not known for every method."
        if np.isnan(total)
        else f"{total:.1f} hours of jobs left: {waits:.1f} hours with {at_once} at once, as on this machine."
    )
    return table


def _by_method_and_task(jobs: list[Job]) -> list[tuple[tuple[str, str], list[Job]]]:
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.method.name, job.task.name), []).append(job)
    return list(groups.items())


def _train_all(jobs: list[Job], options: argparse.Namespace, refresh: Any) -> Iterator[tuple[Job, str | None]]:
    """Train the jobs with Ray; yield each that ended, with the reason if it failed."""
    if not jobs:
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    for job in jobs:
        (job.folder / "progress.json").unlink(missing_ok=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    ray.init(
        address=options.address,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
        include_dashboard=False if options.address is None else None,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        if options.address is None:
            _check_resources(options, ray.cluster_resources())
        remote = ray.remote(num_cpus=options.cpus_per_job, num_gpus=options.gpus_per_job, max_retries=0)(train)
        running = {remote.remote(job): job for job in jobs}
        while running:
            ended, _ = ray.wait(list(running), timeout=1.0)
            for reference in ended:
                try:
                    problem = ray.get(reference)
                except ray.exceptions.RayError as error:
                    # Of what was raised in the worker, the class alone would not say what happened.
                    problem = f"its worker died ({getattr(error, 'cause', None) or type(error).__name__})"
                yield running.pop(reference), problem
            refresh()
    finally:
        ray.shutdown()


def _check_resources(options: argparse.Namespace, here: dict[str, float]) -> None:
    """Ray would wait for ever, without a word."""
    for name, wanted, kind in (("cpus", options.cpus_per_job, "CPU"), ("gpus", options.gpus_per_job, "GPU")):
        if wanted > here.get(kind, 0):
            raise ValueError(f"--{name}-per-job {wanted:g}: this machine has {here.get(kind, 0):g}.")


def train(job: Job) -> str | None:
    """
    Run one job to its end, from its last checkpoint if it has one. Runs in a Ray worker.

    :param job: The job
    :return: None, or why it failed
    """
    lock = job.lock()
    try:
        job.check_settings()  # again: another grid may have begun it since
        if job.finished:
            remove_leftovers(job)
            return None
        checkpoint = job.checkpoint
        command = job.command(checkpoint)
        write_manifest(job, command)
        with open(job.log_file, "a") as output:
            print(f"\n{shlex.join(command)}", file=output, flush=True)
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, pass_fds=[lock], preexec_fn=_die_with_parent
            )
            status = process.wait()
        if status or job.done_steps < job.env_steps:
            return f"the zoo ended with status {status} after {job.done_steps} of {job.env_steps} steps"
        remove_leftovers(job)
        return None
    finally:
        os.close(lock)


def remove_leftovers(job: Job) -> None:
    """
    Remove checkpoints, and what a killed process had begun to write.

    :param job: A job that is finished
    """
    gone = job.folder / GONE
    shutil.rmtree(gone, ignore_errors=True)
    for path in list(job.folder.glob(".*")):
        if path.is_dir():
            # At once, for half a folder of checkpoints would be gone on from.
            path.rename(gone)
            shutil.rmtree(gone)
        elif path.name != ".lock":
            path.unlink()


def _die_with_parent() -> None:
    """A worker that is killed takes its training with it (Linux; elsewhere the job's lock keeps a second one waiting)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def write_manifest(job: Job, command: list[str]) -> None:
    """
    Write ``manifest.json``, or add to it the start that goes on from a checkpoint.

    :param job: The job
    :param command: The command that is about to run
    """
    path = job.folder / "manifest.json"
    manifest = json.loads(path.read_text()) if path.exists() else {"settings": job.settings_line(), "starts": []}
    manifest["starts"].append(
        {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": shlex.join(command),
            **checkout(),
            "machine": {"system": platform.platform(), "processor": processor(), "cpus": os.cpu_count(), "gpu": _gpu(job)},
            "versions": {"python": platform.python_version(), **versions()},
        }
    )
    write_whole(path, json.dumps(manifest, indent=1).encode())


def _gpu(job: Job) -> str | None:
    if job.settings.device == "cpu":
        return None
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
