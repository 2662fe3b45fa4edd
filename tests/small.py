"""CIR small enough for a test, and what tests ask of a model."""

from typing import Any

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.sac.policies import SACPolicy

from sb3_cir import CIR


def small(env: Any, policy: str | type[SACPolicy] = "MlpPolicy", model_class: type = CIR, **kwargs: Any) -> Any:
    """A model with narrow networks and small batches, which learns from step 21 on; ``kwargs`` are added or replace."""
    policy_kwargs = dict(net_arch=[16, 16]) | kwargs.pop("policy_kwargs", {})
    defaults = dict(learning_starts=20, batch_size=16, buffer_size=500, seed=0, device="cpu")
    return model_class(policy, env, policy_kwargs=policy_kwargs, **defaults | kwargs)


def weights(model: BaseAlgorithm) -> dict[str, th.Tensor]:
    """A copy of all of the policy's parameters."""
    return {name: parameter.detach().clone() for name, parameter in model.policy.named_parameters()}


def changed(before: dict[str, th.Tensor], model: BaseAlgorithm) -> set[str]:
    """Names of the parameters that are not what they were."""
    return {name for name, parameter in weights(model).items() if not th.equal(parameter, before[name])}


class PowerError(Exception):
    """It fails, and takes the process with it."""


class PowerCut(BaseCallback):
    """Ends a run by :class:`PowerError` at a step."""

    def __init__(self, step: int):
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.step:
            raise PowerError
        return True
