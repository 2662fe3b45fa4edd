"""The methods that CIR is compared with, as Stable-Baselines3 algorithms."""

from sb3_cir.baselines.bro import BRO, BROFast
from sb3_cir.baselines.flash_sac import FlashSAC, FlashSACPolicy
from sb3_cir.baselines.sac_tanh import SACTanh, SACTanhNorm, SACTanhNormPolicy, SACTanhPolicy
from sb3_cir.baselines.simba import SimBa, SimbaPolicy, SimBaSMR
from sb3_cir.baselines.simba_v2 import SimbaV2, SimbaV2Policy
from sb3_cir.baselines.td7 import TD7
from sb3_cir.smr import SMR

__all__ = [
    "BRO",
    "SMR",
    "TD7",
    "BROFast",
    "FlashSAC",
    "FlashSACPolicy",
    "SACTanh",
    "SACTanhNorm",
    "SACTanhNormPolicy",
    "SACTanhPolicy",
    "SimBa",
    "SimBaSMR",
    "SimbaPolicy",
    "SimbaV2",
    "SimbaV2Policy",
]
