"""CIR, reinforcement learning with constrained initial representations, for Stable-Baselines3."""

from sb3_cir import envs
from sb3_cir.cir import CIR
from sb3_cir.policies import CnnPolicy, MlpPolicy, MultiInputPolicy

__version__ = "0.2.0"

envs.register()

__all__ = ["CIR", "CnnPolicy", "MlpPolicy", "MultiInputPolicy", "__version__"]
