"""
SimbaV2: hyperspherical normalisation for scalable deep reinforcement learning (Lee et al., ICML 2025,
https://arxiv.org/abs/2502.15280), after the authors' JAX code (github.com/DAVIAN-Robotics/SimbaV2).
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, ReplayBufferSamples, Schedule
from stable_baselines3.common.utils import polyak_update
from torch import nn
from torch.nn import functional as F

from sb3_cir.baselines.categorical import CategoricalPolicy, CategoricalSAC
from sb3_cir.baselines.parts import EPSILON, UnitLinear, common_width
from sb3_cir.baselines.simba import HorizonDefaults, NormalizesObservations, ObservesWhileActing


def to_sphere(x: th.Tensor) -> th.Tensor:
    """
    :param x: ``(..., width)``
    :return: The same with length 1 along the last axis
    """
    return F.normalize(x, dim=-1, eps=EPSILON)


class Scaler(nn.Module):
    """
    A learned factor for each entry. It is kept as a parameter of size ``scale``, which decides how fast it learns, and is
    ``init`` at first.

    :param n_stack: Number of them in the stack
    :param width: Size of input and output
    :param init: What it is at first
    :param scale: What its parameter is at first
    """

    def __init__(self, n_stack: int, width: int, init: float = 1.0, scale: float = 1.0):
        super().__init__()
        self.weight = nn.Parameter(th.full((n_stack, 1, width), scale))
        self.factor = init / scale

    def forward(self, x: th.Tensor) -> th.Tensor:
        return self.weight * self.factor * x


class Embedding(nn.Module):
    """
    Observations, and actions, to the sphere: ``to_sphere(scaler(Linear(to_sphere([x, shift]))))``. The constant beside x
    keeps its length, which the first ``to_sphere`` would lose.

    :param n_stack: Number of them in the stack
    :param in_features: Size of the input
    :param width: Size of the output
    :param shift: The constant
    """

    def __init__(self, n_stack: int, in_features: int, width: int, shift: float = 3.0):
        super().__init__()
        self.shift = shift
        self.linear = UnitLinear(n_stack, in_features + 1, width)
        self.scaler = Scaler(n_stack, width, math.sqrt(2 / width), math.sqrt(2 / width))

    def forward(self, x: th.Tensor) -> th.Tensor:
        x = to_sphere(F.pad(x, (0, 1), value=self.shift))
        return to_sphere(self.scaler(self.linear(x)))


class LerpBlock(nn.Module):
    """
    A step on the sphere towards what an MLP says, of a learned length for each entry: with
    ``y = to_sphere(Linear(ReLU(scaler(Linear(x)))))``, four times as wide inside, ``to_sphere(x + lerp (y - x))``.

    :param n_stack: Number of blocks in the stack
    :param width: Size of input and output
    :param init: What lerp is at first
    """

    EXPANSION = 4

    def __init__(self, n_stack: int, width: int, init: float):
        super().__init__()
        inner = self.EXPANSION * width
        scale = math.sqrt(2 / width) / math.sqrt(self.EXPANSION)
        self.linear1 = UnitLinear(n_stack, width, inner)
        self.scaler = Scaler(n_stack, inner, scale, scale)
        self.linear2 = UnitLinear(n_stack, inner, width)
        self.lerp = Scaler(n_stack, width, init, 1 / math.sqrt(width))

    def forward(self, x: th.Tensor) -> th.Tensor:
        # Were all units dead, there would be no direction.
        y = F.relu(self.scaler(self.linear1(x))) + EPSILON
        return to_sphere(x + self.lerp(to_sphere(self.linear2(y)) - x))


class SphereHead(nn.Sequential):
    """
    Linear layer, scaler, linear layer with a bias.

    :param n_stack: Number of heads in the stack
    :param width: Size of the input
    :param out_features: Size of the output
    """

    def __init__(self, n_stack: int, width: int, out_features: int):
        layers = UnitLinear(n_stack, width, width), Scaler(n_stack, width), UnitLinear(n_stack, width, out_features, bias=True)
        super().__init__(*layers)


def sphere_encoder(n_stack: int, in_features: int, widths: Sequence[int], key: str) -> nn.Sequential:
    """
    :param n_stack: Number of networks in the stack
    :param in_features: Size of the input
    :param widths: Width of each block, all equal
    :param key: Where they stand in ``net_arch``, for the error
    :return: Embedding and blocks, from ``(n_stack, batch, in_features)`` to ``(n_stack, batch, width)``
    :raises ValueError: If there is no width, or if they differ.
    """
    width = common_width(widths, key)
    blocks = (LerpBlock(n_stack, width, 1 / (len(widths) + 1)) for _ in widths)
    return nn.Sequential(Embedding(n_stack, in_features, width), *blocks)


class SimbaV2Policy(CategoricalPolicy, NormalizesObservations):
    """
    SimbaV2's networks, on observations that are normalised as SimBa's are: by running statistics, which actor, critics and
    target critics share. Arguments are :class:`~sb3_cir.baselines.categorical.CategoricalPolicy`'s; ``net_arch`` is by
    default the original's ``dict(pi=[128], qf=[512, 512])``.
    """

    encoder = staticmethod(sphere_encoder)
    head = SphereHead
    default_net_arch: ClassVar[dict[str, list[int]]] = dict(pi=[128], qf=[512, 512])


class SimbaV2(ObservesWhileActing, HorizonDefaults, CategoricalSAC):
    """
    SimbaV2 at the original's hyperparameters for dm_control, HumanoidBench and MyoSuite, where it takes every action twice and
    makes two updates a step. On Gymnasium's MuJoCo tasks it repeats none and makes one update a step: pass
    ``gradient_steps=1`` there.

    SAC with features and weights on the unit sphere, a categorical critic, rewards scaled by running return statistics,
    normalised observations, and a learning rate that falls.

    Left out: JAX's compilation, prioritised replay (which no setting of the original's turns on), behaviour cloning and
    training on given data. Different: learning starts a step later, as SB3 counts; n-step returns and the rescaling of actions
    are SB3's; statistics have the very first observation of the run too, and the return statistics have each step before the
    updates that follow it, where the original's have it after them.

    Arguments not named here are SAC's, by keyword.

    :param policy: "MlpPolicy" or a policy class
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_rate: For actor, critics and temperature, at the start. A schedule takes the place of the fall, but
        for SB3's ``ConstantSchedule``, which RL Zoo makes of a number.
    :param learning_rate_end: What it falls to, on a line, if that is less. Default: half of ``learning_rate``
    :param decay_timesteps: Steps of the agent, over all environments, in which it falls. "auto" is all of the run's. The fall
        is counted in updates, from the model's first.
    :param episodic: Whether episodes can end otherwise than by a time limit. If so there are two critics and the smaller
        of them counts (CDQ), else a single one. dm_control's never do.
    :param gamma: Discount, or "auto" for SimBa's, from the environment's time limit
    :param gradient_steps: Batches, and updates, for each step (UTD). The original's is its action repeat.
    :param learning_starts: Steps of uniformly random actions before learning
    :param ent_coef: Temperature, learned from 0.01 on
    :param target_entropy: "auto" is minus HALF the number of actions
    :raises ValueError: If an argument is out of its range.
    """

    settled_arguments = ("episodic",)
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"MlpPolicy": SimbaV2Policy}
    policy: SimbaV2Policy

    def __init__(
        self,
        policy: str | type[SimbaV2Policy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 1e-4,
        *,
        learning_rate_end: float | None = None,
        decay_timesteps: int | str = "auto",
        episodic: bool = True,
        gamma: float | str = "auto",
        gradient_steps: int = 2,
        learning_starts: int = 5_000,
        ent_coef: str | float = "auto_0.01",
        target_entropy: str | float = "auto",
        policy_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        self.episodic = episodic
        super().__init__(
            policy,
            env,
            learning_rate,
            learning_rate_end=learning_rate_end,
            decay_timesteps=decay_timesteps,
            gamma=gamma,
            gradient_steps=gradient_steps,
            learning_starts=learning_starts,
            ent_coef=ent_coef,
            target_entropy=target_entropy,
            policy_kwargs=dict(n_critics=2 if episodic else 1) | (policy_kwargs or {}),
            **kwargs,
        )

    def _update_critics(self, batch: ReplayBufferSamples) -> dict[str, th.Tensor]:
        scalars = super()._update_critics(batch)
        if self._n_updates % self.target_update_interval == 0:
            # Of a features extractor with batch normalisation, as in SAC.
            polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)
        return scalars
