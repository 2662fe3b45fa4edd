"""All jobs of a grid at a glance: a live table on a terminal, plain lines elsewhere."""

import contextlib
import json
import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from benchmarks.jobs import Job
from sb3_cir.runs.expected_time import duration

PLAIN_EVERY = 60.0  # seconds
MOST_ROWS = 30


class View:
    """
    :param jobs: The grid
    :param console: Where to show it
    """

    def __init__(self, jobs: list[Job], console: Console):
        self.jobs = jobs
        self.console = console
        self.finished: set[Job] = set()
        self.failed: dict[Job, str] = {}
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self.last_plain = time.monotonic()

    def __enter__(self) -> "View":
        if self.live:
            self.live.start()
        self._say(self._counts([]))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live:
            self.live.update(self._table(), refresh=True)
            self.live.stop()
        self._say(self._counts(self._running()))

    def ended(self, job: Job, problem: str | None) -> None:
        """
        :param job: A job that ended
        :param problem: Why it failed; None where it did not
        """
        if problem is None:
            self.finished.add(job)
            self._say(f"done: {job}")
        else:
            self.failed[job] = problem
            self._say(f"FAILED: {job}: {problem}. Its log: {job.log_file}")

    def refresh(self) -> None:
        """Read the running jobs' progress and show it."""
        if self.live:
            self.live.update(self._table(), refresh=True)
        elif time.monotonic() > self.last_plain + PLAIN_EVERY:
            self.last_plain = time.monotonic()
            running = self._running()
            self._say(self._counts(running))
            for job, progress in running:
                left = _time_left(progress)
                step = f"step {progress['step']:,} of {progress['total']:,}"
                self._say(f"  {job}: {step}, {progress['rate']:.0f} a second, {left} left")

    def _say(self, line: str) -> None:
        if not self.live:
            self.console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _running(self) -> list[tuple[Job, dict[str, float]]]:
        waiting = [job for job in self.jobs if job not in self.finished and job not in self.failed]
        running = []
        for job in waiting:
            # It comes and goes, and another machine may be replacing it on a shared disk.
            with contextlib.suppress(OSError, ValueError):
                running.append((job, json.loads((job.folder / "progress.json").read_text())))
        return running

    def _counts(self, running: list[tuple[Job, dict[str, float]]]) -> str:
        done, failed = len(self.finished), len(self.failed)
        waiting = len(self.jobs) - done - failed - len(running)
        return f"{len(self.jobs)} jobs: {done} done, {len(running)} running, {waiting} waiting, {failed} failed"

    def _table(self) -> Group:
        running = self._running()
        table = Table("running", "", "step", "steps a second", "left", box=None, pad_edge=False)
        for job, progress in running[:MOST_ROWS]:
            table.add_row(
                str(job),
                ProgressBar(progress["total"], progress["step"], width=20),
                f"{progress['step']:,} of {progress['total']:,}",
                f"{progress['rate']:.0f}",
                _time_left(progress),
            )
        if len(running) > MOST_ROWS:
            table.add_row(f"and {len(running) - MOST_ROWS} more")
        failures = [Text(f"failed: {job}: {problem}\n  {job.log_file}", "red") for job, problem in self.failed.items()]
        return Group(self._counts(running), *([table] if running else []), *failures)


def seconds_left(progress: dict[str, float]) -> float | None:
    """
    :param progress: ``step``, ``total`` and ``rate``, as :class:`benchmarks.recorder.Recorder` writes them
    :return: Seconds; None where there is no rate yet
    """
    return (progress["total"] - progress["step"]) / progress["rate"] if progress["rate"] else None


def _time_left(progress: dict[str, float]) -> str:
    seconds = seconds_left(progress)
    return "?" if seconds is None else duration(seconds)
