"""The methods that the paper compares CIR with, as Stable-Baselines3 algorithms."""

from sb3_cir.baselines.sac_tanh import SACTanh, SACTanhNorm
from sb3_cir.baselines.simba import SimBa, SimbaPolicy, SimBaSMR

__all__ = ["SACTanh", "SACTanhNorm", "SimBa", "SimBaSMR", "SimbaPolicy"]
