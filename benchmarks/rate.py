"""How many steps a second a method makes on this machine, measured in some seconds by training it with the zoo."""

import json
import subprocess
import tempfile
import time
from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.jobs import Job
from benchmarks.machine import ROOT

WARM_UP, FIRST, UPDATES = 40, 10, 30
# Two whole episodes of dm_control, and more of others
AT_MOST = 1100


class Stopwatch(BaseCallback):
    """
    Times the steps that follow the first updates (which allocate memory), and writes the rate to a file.

    :param file: JSON: simulator steps a second
    :param action_repeat: Simulator steps for one of the agent
    """

    def __init__(self, file: str, action_repeat: int) -> None:
        super().__init__()
        self.file = Path(file)
        self.action_repeat = action_repeat
        self.began: tuple[float, int, int] | None = None

    def _on_step(self) -> bool:
        now, updates = time.monotonic(), getattr(self.model, "_n_updates", 0)
        if self.began is None:
            if self.num_timesteps >= WARM_UP + FIRST:
                self.began = now, self.num_timesteps, updates
            return True
        since, first, updates_before = self.began
        # Some methods make their updates after an episode.
        if self.num_timesteps < first + UPDATES or updates == updates_before:
            return True
        self.file.write_text(json.dumps((self.num_timesteps - first) * self.action_repeat / (now - since)))
        return False


def measure(job: Job) -> float | None:
    """
    Train it for a moment with its own settings, in a folder that is thrown away. Evaluations are not counted, and nothing is
    compiled, so that a long run may be faster.

    :param job: What to measure
    :return: Simulator steps a second with its updates; None if it could not be trained
    """
    with tempfile.TemporaryDirectory(prefix="sb3_cir_rate_") as folder:
        file = Path(folder) / "rate.json"
        stopwatch = {"file": str(file), "action_repeat": job.action_repeat}
        command = job.short_command(WARM_UP, AT_MOST, Path(folder), {"benchmarks.rate.Stopwatch": stopwatch})
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        return float(json.loads(file.read_text())) if file.exists() else None
