"""What makes long runs survive, for any off-policy algorithm of Stable-Baselines3: see ``algorithm.py``."""

from sb3_cir.runs.algorithm import Resumable, resumable

__all__ = ["Resumable", "resumable"]
