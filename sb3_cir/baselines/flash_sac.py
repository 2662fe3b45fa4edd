"""
FlashSAC: fast and stable off-policy reinforcement learning for high-dimensional robot control (Kim et al., 2026,
https://arxiv.org/abs/2604.04539), after the authors' PyTorch code (github.com/Holiday-Robot/FlashSAC).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.type_aliases import GymEnv, PyTorchObs, ReplayBufferSamples, Schedule
from torch import nn
from torch.nn import functional as F

from sb3_cir.baselines.categorical import CategoricalPolicy, CategoricalSAC, StackActor
from sb3_cir.baselines.parts import EPSILON, Residual, ReturnScale, UnitLinear, UnitNorm, common_width
from sb3_cir.valid import check_counts


class UnitBatchNorm(UnitNorm):
    """
    A stack of batch normalisations; scale and bias together are put back to a length of ``sqrt(width)``.

    :param n_stack: Number of them in the stack
    :param width: Size of input and output
    """

    MOMENTUM = 0.01
    MIN_VAR = 1e-5
    running_mean: th.Tensor
    running_var: th.Tensor

    def __init__(self, n_stack: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(th.ones(n_stack, 1, width))
        self.bias = nn.Parameter(th.zeros(n_stack, 1, width))
        self.register_buffer("running_mean", th.zeros(n_stack, 1, width))
        self.register_buffer("running_var", th.ones(n_stack, 1, width))

    def normalise_parameters(self) -> None:
        squares = (self.weight.square() + self.bias.square()).sum(dim=2, keepdim=True)
        factor = math.sqrt(self.weight.shape[2]) * th.rsqrt(squares + EPSILON)
        self.weight.mul_(factor)
        self.bias.mul_(factor)

    def forward(self, x: th.Tensor) -> th.Tensor:
        n_stack, batch, width = x.shape
        # PyTorch's own takes one network: here those of the stack are side by side, as so many more columns.
        mean, var, weight, bias = (each.view(-1) for each in (self.running_mean, self.running_var, self.weight, self.bias))
        x = x.transpose(0, 1).reshape(batch, n_stack * width)
        x = F.batch_norm(x, mean, var, weight, bias, self.training, self.MOMENTUM, self.MIN_VAR)
        return x.view(batch, n_stack, width).transpose(0, 1)


class UnitRMSNorm(UnitNorm):
    """
    A stack of RMS normalisations, ``x / sqrt(mean(x^2)) * scale``; the scale is put back to a length of ``sqrt(width)``.

    :param n_stack: Number of them in the stack
    :param width: Size of input and output
    """

    MIN_SQUARE = 1e-6

    def __init__(self, n_stack: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(th.ones(n_stack, 1, width))

    def normalise_parameters(self) -> None:
        squares = self.weight.square().sum(dim=2, keepdim=True)
        self.weight.mul_(math.sqrt(self.weight.shape[2]) * th.rsqrt(squares + EPSILON))

    def forward(self, x: th.Tensor) -> th.Tensor:
        return x * th.rsqrt(x.square().mean(dim=2, keepdim=True) + self.MIN_SQUARE) * self.weight


class InvertedBlock(Residual):
    """
    Inverted residual block, four times as wide inside: ``x + ReLU(BN(Linear(ReLU(BN(Linear(x))))))``.

    :param n_stack: Number of blocks in the stack
    :param width: Size of input and output
    """

    def __init__(self, n_stack: int, width: int):
        super().__init__(
            *(UnitLinear(n_stack, width, 4 * width), UnitBatchNorm(n_stack, 4 * width), nn.ReLU()),
            *(UnitLinear(n_stack, 4 * width, width), UnitBatchNorm(n_stack, width), nn.ReLU()),
        )


def flash_encoder(n_stack: int, in_features: int, widths: Sequence[int], key: str) -> nn.Sequential:
    """
    Batch normalisation, linear layer, inverted residual blocks, RMS normalisation.

    :param n_stack: Number of networks in the stack
    :param in_features: Size of the input
    :param widths: Width of each residual block, all equal
    :param key: Where they stand in ``net_arch``, for the error
    :return: The network, from ``(n_stack, batch, in_features)`` to ``(n_stack, batch, width)``
    :raises ValueError: If there is no width, or if they differ.
    """
    width = common_width(widths, key)
    blocks = (InvertedBlock(n_stack, width) for _ in widths)
    embedding = (UnitBatchNorm(n_stack, in_features), UnitLinear(n_stack, in_features, width))
    return nn.Sequential(*embedding, *blocks, UnitRMSNorm(n_stack, width))


def flash_head(n_stack: int, width: int, out_features: int) -> nn.Module:
    """
    :param n_stack: Number of layers in the stack
    :param width: Size of the input
    :param out_features: Size of the output
    :return: A linear layer with a bias
    """
    return UnitLinear(n_stack, width, out_features, bias=True)


class FlashReturnScale(ReturnScale):
    """FlashSAC counts from 0 and has the first variance of 1 in each update anew, with the weight of 1e-4 returns."""

    FIRST_COUNT = 0.0
    MORE_WEIGHT = 1e-4


class RepeatedNoise(nn.Module):
    """
    Noise from N(0, 1) that is kept for several actions: for n with a probability proportional to ``n**-exponent``, n from 1
    to ``longest``. All environments get new noise at the same step.

    :param n_envs: Number of environments
    :param n_actions: Size of an action
    :param exponent: Exponent of the zeta distribution
    :param longest: The most actions that noise is kept for
    """

    noise: th.Tensor
    left: th.Tensor
    cumulative: th.Tensor

    def __init__(self, n_envs: int, n_actions: int, exponent: float, longest: int):
        super().__init__()
        self.register_buffer("noise", th.zeros(n_envs, n_actions))
        self.register_buffer("left", th.tensor(0))
        weights = th.arange(1, longest + 1, dtype=th.float32) ** -exponent
        self.register_buffer("cumulative", (weights / weights.sum()).cumsum(dim=0), persistent=False)

    def draw_length(self) -> th.Tensor:
        """:return: For how many actions the next noise is kept, a scalar"""
        lengths = 1 + th.searchsorted(self.cumulative, th.rand((), device=self.cumulative.device), right=True)
        # The last sum may be rounded to less than 1.
        return lengths.clamp(max=len(self.cumulative))

    def forward(self) -> th.Tensor:
        """:return: The noise of the next action, ``(n_envs, n_actions)``"""
        if self.left == 0:
            self.noise.normal_()
            self.left.copy_(self.draw_length())
        self.left -= 1
        return self.noise


class FlashActor(StackActor):
    """FlashSAC's actor. What it acts with while it learns is given to it."""

    # Gives the noise of the next action; without it each action has its own.
    noise_source: Callable[[], th.Tensor] | None = None

    def forward(self, obs: PyTorchObs, deterministic: bool = False) -> th.Tensor:
        if deterministic or self.noise_source is None:
            return super().forward(obs, deterministic)
        mean, log_std, _ = self.get_action_dist_params(obs)
        return th.tanh(mean + log_std.exp() * self.noise_source())


class FlashSACPolicy(CategoricalPolicy):
    """
    FlashSAC's networks: inverted residual blocks with batch normalisation, the same for actor and critics. Arguments are
    :class:`~sb3_cir.baselines.categorical.CategoricalPolicy`'s; ``net_arch`` is by default the original's
    ``dict(pi=[128, 128], qf=[256, 256])``.
    """

    encoder = staticmethod(flash_encoder)
    head = staticmethod(flash_head)
    actor_class = FlashActor
    default_net_arch: ClassVar[dict[str, list[int]]] = dict(pi=[128, 128], qf=[256, 256])


class FlashSAC(CategoricalSAC):
    """
    FlashSAC at the original's hyperparameters for one environment of a simulator on a CPU. (For a thousand on a GPU its
    authors have others.)

    SAC with batch-normalised inverted residual blocks, a categorical critic, rewards scaled by running return statistics, and
    parameters of fixed norm. Actor and critics see the current and the next observations of a batch in one pass, so that
    both are normalised alike. While it acts, noise is kept for several steps.

    It repeats no action: on dm_control and HumanoidBench a step of the agent is one of the simulator, where all other methods
    here take two.

    Left out: compilation and float16, behaviour cloning and training on given data, observations of which the actor sees a
    part, and the warm-up of the learning rate (the first step in a million). Different: learning starts a step later, as SB3
    counts; n-step returns and the rescaling of actions are SB3's.

    Arguments not named here are SAC's, by keyword.

    :param policy: "MlpPolicy" or a policy class
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_rate: For actor, critics and temperature, at the start. A schedule takes the place of the fall, but
        for SB3's ``ConstantSchedule``, which RL Zoo makes of a number.
    :param learning_rate_end: What it falls to, along half a cosine, if that is less. Default: half of ``learning_rate``
    :param decay_timesteps: Steps of the agent, over all environments, in which it falls. "auto" is all of the run's. The fall
        is counted in steps of each optimiser, from the model's first: the actor's, which makes half as many steps, comes
        half the way.
    :param learning_starts: Steps of uniformly random actions before learning
    :param batch_size: Transitions in a batch
    :param tau: The target critics' rate
    :param policy_delay: Updates of the critics for one of actor and temperature
    :param ent_coef: Temperature, learned from 0.01 on
    :param target_entropy: "auto" is that of a Gaussian whose standard deviation is ``target_std`` for each action
    :param target_std: See there
    :param noise_exponent: Noise is kept for n steps with a probability proportional to n to the power of minus this.
    :param noise_longest: The most steps that it is kept for; with 1, each action has its own.
    :raises ValueError: If an argument is out of its range.
    """

    settled_arguments = ("target_std",)
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"MlpPolicy": FlashSACPolicy}
    per_environment = (*CategoricalSAC.per_environment, "noise/noise", "noise/left")
    return_scale_class = FlashReturnScale
    actor: FlashActor

    def __init__(
        self,
        policy: str | type[FlashSACPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 3e-4,
        *,
        learning_rate_end: float | None = None,
        decay_timesteps: int | str = "auto",
        learning_starts: int = 10_000,
        batch_size: int = 512,
        tau: float = 0.01,
        policy_delay: int = 2,
        ent_coef: str | float = "auto_0.01",
        target_entropy: str | float = "auto",
        target_std: float = 0.15,
        noise_exponent: float = 2.0,
        noise_longest: int = 16,
        **kwargs: Any,
    ):
        check_counts(policy_delay=(policy_delay, 1), noise_longest=(noise_longest, 1))
        if not target_std > 0:
            raise ValueError(f"target_std={target_std}: it must be positive (original: 0.15).")
        self.policy_delay = int(policy_delay)
        self.target_std = target_std
        self.noise_exponent = noise_exponent
        self.noise_longest = int(noise_longest)
        super().__init__(
            policy,
            env,
            learning_rate,
            learning_rate_end=learning_rate_end,
            decay_timesteps=decay_timesteps,
            learning_starts=learning_starts,
            batch_size=batch_size,
            tau=tau,
            ent_coef=ent_coef,
            target_entropy=target_entropy,
            **kwargs,
        )

    def _setup_model(self) -> None:
        n_actions = get_action_dim(self.action_space)
        if self.target_entropy == "auto":
            self.target_entropy = 0.5 * n_actions * math.log(2 * math.pi * math.e * self.target_std**2)
        super()._setup_model()
        self.noise = RepeatedNoise(self.n_envs, n_actions, self.noise_exponent, self.noise_longest).to(self.device)

    def _sample_action(self, *args: Any, **kwargs: Any) -> tuple[np.ndarray, np.ndarray]:
        # Only learning comes here: predict() by anyone else leaves the noise as it is.
        self.actor.noise_source = self.noise.forward
        try:
            return super()._sample_action(*args, **kwargs)
        finally:
            self.actor.noise_source = None

    def _set_modes(self, of_actor: bool) -> None:
        self.actor.set_training_mode(of_actor)
        for critic in (self.critic, self.critic_target):
            critic.set_training_mode(not of_actor)

    def _actions(self, batch: ReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        mean, log_std, _ = self.actor.get_action_dist_params(_joint(batch))
        n = len(batch.actions)
        return self.actor.action_dist.log_prob_from_params(mean[:n], log_std[:n], self._draw_noise(batch))

    def _next_log_probabilities(self, batch: ReplayBufferSamples, next_actions: th.Tensor) -> th.Tensor:
        actions = th.cat([batch.actions, next_actions])
        return self.critic_target.log_probabilities(_joint(batch), actions)[:, len(batch.actions) :]

    def _log_probabilities(self, batch: ReplayBufferSamples, next_actions: th.Tensor) -> th.Tensor:
        actions = th.cat([batch.actions, next_actions])
        return self.critic.log_probabilities(_joint(batch), actions)[:, : len(batch.actions)]

    def _critic_loss(self, batch: ReplayBufferSamples, ent_coef: th.Tensor) -> th.Tensor:
        # The mean over critics.
        return super()._critic_loss(batch, ent_coef) / self.critic.n_critics

    def _shape_of_fall(self, remaining: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * (1 - remaining)))

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        modules, tensors = super()._get_torch_save_params()
        return [*modules, "noise"], tensors


def _joint(batch: ReplayBufferSamples) -> th.Tensor:
    """The observations, and below them the next ones, ``(2 batch, ...)``."""
    return th.cat([batch.observations, batch.next_observations])
