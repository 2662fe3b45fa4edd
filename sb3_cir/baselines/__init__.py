"""The methods that the paper compares CIR with, as Stable-Baselines3 algorithms."""

from sb3_cir.baselines.sac_tanh import SACTanh, SACTanhNorm
from sb3_cir.baselines.simba import SimBa, SimbaPolicy, SimBaSMR
from sb3_cir.baselines.td7 import TD7

__all__ = ["TD7", "SACTanh", "SACTanhNorm", "SimBa", "SimBaSMR", "SimbaPolicy"]
