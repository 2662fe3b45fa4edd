"""
What becomes of files from strangers: damaged and hostile variants of saved models, checkpoints and replay buffers.

Each is loaded in a process of its own, with limits of time and memory, and learned with where it loads. What came out is then
compared with what the file was made of.
"""

import argparse
import collections
import contextlib
import multiprocessing
import os
import resource
import shutil
import signal
import tempfile
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from rich.console import Console
from rich.progress import track

from benchmarks.arguments import not_negative
from benchmarks.hostile_files import EVERY, OLDER, ROWS, STEPS, Variant, callbacks, environment, make_sources, variants
from benchmarks.machine import resident
from benchmarks.reliability import small_model
from sb3_cir import CIR
from sb3_cir.runs import arguments, normalization, parameters, rows, state

SECONDS = 20
MEMORY = 2**30  # more than what a process has when it begins

# What may become of a file, from good to bad.
OUTCOMES = (
    "equal",
    "clear error",
    "passed over",
    "silently different",
    "traceback",
    "crash",
    "more than 1 GiB",
    "hang",
    "harm",
)
GOOD = OUTCOMES[:3]

WAYS = {
    "model": ("load(trusted=False)", "load()"),
    "first format": ("load(trusted=False)", "load()"),
    "checkpoint": ("resume",),
    "buffer": ("load_replay_buffer(trusted=False)",),
}


def load(way: str, folder: Path) -> CIR:
    """
    :param way: One of :data:`WAYS`
    :param folder: The variant's
    :return: What was loaded, with an environment
    """
    if way == "resume":
        return CIR.resume(folder, environment(), device="cpu")
    if way.startswith("load_replay_buffer"):
        model = small_model(environment(), buffer_size=ROWS)
        model.load_replay_buffer(folder / "buffer.safetensors", trusted=False)
        return model
    # No environment: the spaces are the file's own.
    model = CIR.load(folder / "model.zip", device="cpu", trusted="False" not in way)
    model.predict(model.observation_space.sample())
    model.set_env(environment())
    return model


def facts(way: str, model: CIR) -> dict[str, Any]:
    """
    :param way: One of :data:`WAYS`
    :param model: What was loaded so
    :return: All that it should have from the file
    """
    buffer = model.replay_buffer
    assert buffer is not None
    found: dict[str, Any] = {}
    if way.startswith("load("):
        found |= {name: value.value for name, value in arguments.take(model).items()}
        found |= {name: str(getattr(model, name)) for name in ("observation_space", "action_space")}
    if not way.startswith("load_replay_buffer"):
        found |= parameters.take(model) | state.take_counters(model) | {"rates": parameters.learning_rates(model)}
    if not way.startswith("load("):
        found |= rows.columns(buffer) | {"pos": buffer.pos, "full": buffer.full}
    if way == "resume":
        found |= normalization.take(model.get_vec_normalize_env())
    return found


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """
    :param ours: Facts of one model
    :param theirs: Of another
    :return: Those in which they differ
    """
    differ = []
    for name in sorted({*ours, *theirs}):
        one, other = ours.get(name), theirs.get(name)
        arrays = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
        if not (np.array_equal(one, other, equal_nan=True) if arrays else one == other):
            differ.append(name)
    return differ


def is_clear(error: Exception, folder: Path) -> bool:
    """
    :param error: What loading raised
    :param folder: The variant's
    :return: Whether it is one sentence that names the file
    """
    text = str(error)
    named = any(path.name in text for path in (*folder.iterdir(), folder)) or ".zip" in text or ".safetensors" in text
    return isinstance(error, (ValueError, OSError)) and named and "\n" not in text and 20 < len(text) < 2000


def try_out(way: str, folder: Path, expected: dict[int, dict[str, Any]], to_parent: Connection) -> None:
    """
    Load, compare and learn, in a process of its own.

    :param way: One of :data:`WAYS`
    :param folder: The variant's
    :param expected: Facts of what the source was made of, by step
    :param to_parent: Gets the outcome, and what it rests on
    """
    os.chdir(folder.parent)
    output = os.open("output", os.O_WRONLY | os.O_CREAT)
    null = os.open("/dev/null", os.O_RDONLY)
    for number, descriptor in enumerate((null, output, output)):
        os.dup2(descriptor, number)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 8 * MEMORY, used + 8 * MEMORY))
    data = vars(th._C.TensorBase)["data"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model = load(way, folder)
        except BaseException as error:
            outcome = "clear error" if isinstance(error, Exception) and is_clear(error, folder) else "traceback"
            to_parent.send((outcome, f"{type(error).__name__}: {error}"))
            return
        found = facts(way, model)
        differences = {step: same(each, found) for step, each in expected.items()}
        step = min(differences, key=lambda each: len(differences[each]))
        outcome, why = "equal", ""
        if differences[step]:
            outcome, why = "silently different", ", ".join(differences[step])
        elif step < STEPS:
            outcome = "passed over" if any("damaged" in str(each.message) for each in caught) else "silently different"
            why = "; ".join(str(each.message) for each in caught)
        try:
            learn(way, model, folder)
        except BaseException as error:
            outcome, why = "traceback", f"at learn(): {type(error).__name__}: {error}"
        if vars(th._C.TensorBase)["data"] is not data or "data" in vars(th.Tensor):
            outcome, why = "harm", "torch was altered"
    to_parent.send((outcome, why))


def learn(way: str, model: CIR, folder: Path) -> None:
    """
    :param way: One of :data:`WAYS`
    :param model: What was loaded so
    :param folder: The variant's
    """
    if way != "resume":
        model.learning_starts = min(model.learning_starts, 20)
        model.learn(12, reset_num_timesteps=not way.startswith("load("))
        return
    ours = callbacks(folder)
    before = [
        {name: vars(each).get(name) for name in ("keep", "every", "folder", "log_path", "best_model_save_path")}
        for each in ours
    ]
    model.learn(STEPS + EVERY, callback=ours)
    if before != [{name: vars(each).get(name) for name in before[0]} for each in ours]:
        raise AssertionError("a callback has what the file says")


def run(way: str, folder: Path, expected: dict[int, dict[str, Any]]) -> tuple[str, str]:
    """
    :param way: One of :data:`WAYS`
    :param folder: The variant's
    :param expected: Facts of what the source was made of, by step
    :return: The outcome, and what it rests on
    """
    ours, theirs = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=try_out, args=(way, folder, expected, theirs))
    process.start()
    theirs.close()
    began, least, most = processor_seconds(process.pid), resident(process.pid), 0
    deadline = time.monotonic() + 20 * SECONDS  # on a machine that is busy with others
    outcome = None
    while process.is_alive():
        process.join(0.05)
        most = max(most, resident(process.pid))
        if most - least > MEMORY:
            outcome = "more than 1 GiB"
        elif processor_seconds(process.pid) - began > SECONDS or time.monotonic() > deadline or is_waiting(process.pid):
            outcome = "hang"
        if outcome is not None:
            process.kill()
            process.join()
            break
    made = sorted(path.name for path in folder.parent.iterdir() if path not in (folder, folder.parent / "output"))
    if made:
        return "harm", f"it made {', '.join(made)}"
    if outcome is not None:
        return outcome, ""
    try:
        return ours.recv()  # type: ignore[no-any-return]
    except EOFError:
        name = signal.Signals(-process.exitcode).name if process.exitcode and process.exitcode < 0 else process.exitcode
        return "crash", f"{name}: {(folder.parent / 'output').read_text(errors='replace')[-500:]}"


def processor_seconds(pid: int | None) -> float:
    """
    :param pid: A process
    :return: How long it has had a processor; 0 if it is gone
    """
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0


def is_waiting(pid: int | None) -> bool:
    """
    :param pid: A process
    :return: Whether it waits for somebody to write to a pipe
    """
    with contextlib.suppress(OSError):
        return "fifo" in Path(f"/proc/{pid}/wchan").read_text()
    return False


def try_variant(variant: Variant, sources: Path, expected: dict[str, dict[int, dict[str, Any]]]) -> dict[str, tuple[str, str]]:
    """
    :param variant: What to try
    :param sources: Folder of the sources
    :param expected: For each way, facts of what the sources were made of
    :return: For each way, the outcome and what it rests on
    """
    found = {}
    for way in WAYS[variant.source]:
        if way == "load()" and not variant.damaged:
            continue  # only who trusts a file loads it so
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "files"
            shutil.copytree(sources / variant.source, folder)
            variant.change(folder)
            found[way] = run(way, folder, expected[f"{variant.source} {way}"])
    return found


def expectations(sources: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """
    :param sources: Folder of the sources
    :return: For each source and way, what the files were made of, by step
    """
    expected: dict[str, dict[int, dict[str, Any]]] = {}
    for source, ways in WAYS.items():
        for way in ways:
            expected[f"{source} {way}"] = {STEPS: facts(way, load(way, sources / source))}
    older = CIR.resume(sources / "checkpoint" / OLDER, environment(), device="cpu")
    expected["checkpoint resume"][STEPS - EVERY] = facts("resume", older)
    return expected


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the command's options.

    :param parser: Gets them
    """
    parser.add_argument(
        "--random", type=not_negative, default=200, help="how many with random bytes altered (default: %(default)s)"
    )
    parser.add_argument("--seed", type=not_negative, default=0, help="of those (default: %(default)s)")
    parser.add_argument("--only", help="those alone whose source and name have this in them")
    parser.add_argument(
        "--part",
        type=not_negative,
        nargs=2,
        default=(0, 1),
        metavar=("I", "N"),
        help="part I of N, from 0 to N - 1 (default: all)",
    )
    parser.add_argument("--show", nargs="+", choices=OUTCOMES, default=list(OUTCOMES[3:]), help="outcomes to print one by one")


def main(options: argparse.Namespace) -> int:
    """
    :param options: See :func:`add_arguments`
    :return: 0, or 1 if something happened that should not
    """
    if not Path("/proc/self/statm").exists():
        raise FileNotFoundError("/proc: the limits need Linux.")
    part, parts = options.part
    if part >= parts:
        raise ValueError(f"--part {part} {parts}: the parts are 0 to {parts - 1}.")
    th.set_num_threads(1)
    chosen = [each for each in variants(options.random, options.seed) if (options.only or "") in f"{each.source}: {each.name}"]
    if not chosen:
        raise ValueError(f"--only {options.only}: no variant has that in its source and name.")
    chosen = chosen[part::parts]
    counts: dict[str, collections.Counter[str]] = {}
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        sources = Path(name)
        make_sources(sources)
        expected = expectations(sources)
        for variant in track(chosen, "tried", console=Console(stderr=True)):
            for way, (outcome, why) in try_variant(variant, sources, expected).items():
                counts.setdefault(f"{variant.source}, {way}", collections.Counter())[outcome] += 1
                bad += outcome not in GOOD
                if outcome in options.show:
                    print(f"{outcome}: {variant.source}, {way}: {variant.name}: {why}", flush=True)
    print(f"{len(chosen)} variants, {bad} of which came out as they should not")
    for what, each in counts.items():
        print(f"{what}: {', '.join(f'{each[outcome]} {outcome}' for outcome in OUTCOMES if each[outcome])}")
    return int(bad > 0)
