"""The methods that the paper compares CIR with, as Stable-Baselines3 algorithms."""

from sb3_cir.baselines.sac_tanh import SACTanh, SACTanhNorm, SACTanhNormPolicy, SACTanhPolicy
from sb3_cir.baselines.simba import SimBa, SimbaPolicy, SimBaSMR
from sb3_cir.smr import SMR

__all__ = ["SMR", "SACTanh", "SACTanhNorm", "SACTanhNormPolicy", "SACTanhPolicy", "SimBa", "SimBaSMR", "SimbaPolicy"]
