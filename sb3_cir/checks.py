"""Where version 0.1 had these errors; they are raised by ``learn()``, see ``runs/watch.py``."""

from sb3_cir.runs.watch import BadDataError, FailedEnvError

__all__ = ["BadDataError", "FailedEnvError"]
