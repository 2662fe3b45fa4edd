"""
BRO: bigger, regularised, optimistic (Nauman et al., NeurIPS 2024, https://arxiv.org/abs/2405.16158), after the authors' JAX
code (github.com/naumix/BiggerRegularizedOptimistic): SAC with large residual critics of quantiles, a second actor that
explores, and resets.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy, ContinuousCritic
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import GymEnv, PyTorchObs, ReplayBufferSamples, Schedule
from stable_baselines3.sac.policies import Actor
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import ParamsT

from sb3_cir.ablations import OrthogonalLinear, StackedLayerNorm
from sb3_cir.baselines.parts import Residual, common_width, orthogonal_linear, squeeze
from sb3_cir.baselines.simba import RSNorm, SimbaActor
from sb3_cir.networks import ends_in_float32
from sb3_cir.policies import FusedAdam, OwnNetworks, SavesSharing
from sb3_cir.smr import SMR
from sb3_cir.update import fast_products, frozen, minimise
from sb3_cir.valid import check_activation, check_fixed_arguments, check_n_critics, check_policy, check_vectors


class FusedAdamW(FusedAdam):
    """Adam with decoupled weight decay (AdamW), by the fused kernel; takes Adam's arguments."""

    def __init__(self, params: ParamsT, **kwargs: Any):
        super().__init__(params, **{"decoupled_weight_decay": True} | kwargs)


class ReLULinear(OrthogonalLinear):
    """With the gain of layers that are followed by ReLU, which the original gives to all."""

    gain = math.sqrt(2)


class BroBlock(Residual):
    """
    Residual block: ``x + LayerNorm(Linear(ReLU(LayerNorm(Linear(x)))))``.

    :param n_stack: Number of networks
    :param width: Size of input and output
    """

    def __init__(self, n_stack: int, width: int):
        super().__init__(*_linear_and_norm(n_stack, width, width), nn.ReLU(), *_linear_and_norm(n_stack, width, width))


def _linear_and_norm(n_stack: int, in_features: int, width: int) -> tuple[nn.Module, nn.Module]:
    # flax's epsilon
    return ReLULinear(n_stack, in_features, width), StackedLayerNorm(n_stack, width, eps=1e-6)


def bro_net(n_stack: int, in_features: int, widths: Sequence[int], key: str) -> nn.Sequential:
    """
    BroNet: a linear layer with LayerNorm and ReLU, then residual blocks.

    :param n_stack: Number of networks
    :param in_features: Size of the input
    :param widths: Width of each residual block, all equal
    :param key: Where they stand in ``net_arch``, for the error
    :return: The networks, from ``(n_stack, batch, in_features)`` to ``(n_stack, batch, width)``
    :raises ValueError: If there is no width, or if they differ.
    """
    width = common_width(widths, key, "BRO needs", 512)
    return nn.Sequential(
        *_linear_and_norm(n_stack, in_features, width), nn.ReLU(), *(BroBlock(n_stack, width) for _ in widths)
    )


class BROActor(SimbaActor):
    """SAC's actor with a BroNet for a body. Like SimBa's it squeezes log_std smoothly into [-10, 2]."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # Flatten takes the axis of the stack away.
        self.latent_pi = nn.Sequential(
            nn.Unflatten(0, (1, -1)), bro_net(1, self.features_dim, self.net_arch, "pi"), nn.Flatten(0, 1)
        )
        n_actions = get_action_dim(self.action_space)
        self.mu = orthogonal_linear(self.net_arch[-1], n_actions, math.sqrt(2))
        self.log_std = orthogonal_linear(self.net_arch[-1], n_actions)  # type: ignore[assignment]


class OptimisticActor(nn.Module):
    """
    The second actor of BRO's dual policy, which collects: the first one with its mean shifted and its standard deviation
    multiplied.

    :param features_dim: Size of the observation's features
    :param n_actions: Size of the action
    :param widths: As those of the first actor
    :param std_multiplier: What the standard deviation is multiplied with
    """

    def __init__(self, features_dim: int, n_actions: int, widths: Sequence[int], std_multiplier: float):
        super().__init__()
        self.std_multiplier = std_multiplier
        self.body = bro_net(1, features_dim + n_actions, widths, "pi")
        self.shift = orthogonal_linear(widths[-1], n_actions, 0.01, bias=False)

    def forward(self, features: th.Tensor, mean: th.Tensor) -> th.Tensor:
        """
        :param features: Of the observation, ``(batch, features_dim)``
        :param mean: The first actor's before tanh, ``(batch, n_actions)``
        :return: By how much it is shifted, the same shape
        """
        shift: th.Tensor = self.shift(self.body(th.cat([features, mean], dim=1).unsqueeze(0)).squeeze(0))
        return shift


class Adjustment(nn.Module):
    """
    A weight that is learned: ``exp`` of a number that is squeezed smoothly into [-10, 7.5].

    :param initial: The weight at the beginning
    """

    LOG_MIN, LOG_MAX = -10.0, 7.5

    def __init__(self, initial: float):
        super().__init__()
        squeezed = 2 * (math.log(initial) - self.LOG_MIN) / (self.LOG_MAX - self.LOG_MIN) - 1
        self.log_value = nn.Parameter(th.tensor(math.atanh(squeezed)))

    def forward(self) -> th.Tensor:
        return squeeze(self.log_value, self.LOG_MIN, self.LOG_MAX).exp()


class BROCritic(OwnNetworks):
    """
    BRO's critics as one stack of BroNets; called, it returns one ``(batch, n_quantiles)`` tensor for each.

    :param n_quantiles: Number of quantiles that each estimates
    :param kwargs: What SB3's ``ContinuousCritic`` takes, by keyword
    """

    gives_values: ClassVar[bool] = False

    def __init__(self, *, n_quantiles: int = 100, **kwargs: Any):
        super().__init__(**kwargs)
        self.n_quantiles = n_quantiles
        widths = kwargs["net_arch"]
        body = bro_net(self.n_critics, self.in_features, widths, "qf")
        self.q_network = nn.Sequential(body, ReLULinear(self.n_critics, widths[-1], n_quantiles))

    def forward(self, obs: PyTorchObs, actions: th.Tensor) -> tuple[th.Tensor, ...]:
        x = self.network_input(obs, actions)
        return tuple(ends_in_float32(self.q_network, x.expand(self.n_critics, *x.shape)))

    def q1_forward(self, obs: PyTorchObs, actions: th.Tensor) -> th.Tensor:
        return self.forward(obs, actions)[0].mean(dim=1, keepdim=True)


class BROPolicy(SavesSharing):
    """
    Critics, the actor that is evaluated, and the one that explores, with the two weights in its loss.

    :param observation_space: Observation space, a Box of one axis
    :param action_space: Action space
    :param lr_schedule: Learning rate schedule
    :param net_arch: ``dict(pi=[...], qf=[...])``: for actors and critics the width of each residual block (equal in each
        list). Default: the original's ``dict(pi=[256], qf=[512, 512])``.
    :param n_quantiles: Number of quantiles of each critic
    :param std_multiplier: Standard deviation of the second actor as a multiple of the first one's
    :param optimizer_class: Optimiser of actors and critics
    :param optimizer_kwargs: Its arguments. Default of :class:`FusedAdamW`: ``dict(weight_decay=1e-4)``, on all parameters, as
        optax' AdamW has it.
    :param kwargs: What else SB3's ``SACPolicy`` takes
    :raises ValueError: If a list of ``net_arch`` is empty or unequal, or if there is no critic.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Box,
        lr_schedule: Schedule,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        *,
        n_quantiles: int = 100,
        std_multiplier: float = 0.75,
        optimizer_class: type[th.optim.Optimizer] = FusedAdamW,
        optimizer_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        check_n_critics(kwargs)
        check_activation(type(self), kwargs)
        self.n_quantiles = n_quantiles
        self.std_multiplier = std_multiplier
        self.exploring = False
        if optimizer_kwargs is None and issubclass(optimizer_class, FusedAdamW):
            optimizer_kwargs = dict(weight_decay=1e-4)
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            dict(pi=[256], qf=[512, 512]) if net_arch is None else net_arch,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
            **kwargs,
        )

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        n_actions = get_action_dim(self.action_space)
        self.optimistic_actor = OptimisticActor(
            self.actor.features_dim, n_actions, self.actor.net_arch, self.std_multiplier
        ).to(self.device)
        self.optimism, self.regularizer = Adjustment(1.0).to(self.device), Adjustment(0.25).to(self.device)
        self.optimistic_optimizer = self.optimizer_class(
            self.optimistic_actor.parameters(),
            lr=lr_schedule(1),  # type: ignore[call-arg]
            **self.optimizer_kwargs,
        )

    def make_actor(self, features_extractor: BaseFeaturesExtractor | None = None) -> Actor:
        return BROActor(**self._update_features_extractor(self.actor_kwargs, features_extractor)).to(self.device)

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> ContinuousCritic:
        kwargs = self._update_features_extractor(self.critic_kwargs, features_extractor)
        return BROCritic(**kwargs, n_quantiles=self.n_quantiles).to(self.device)

    def optimistic_params(self, obs: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """
        :param obs: Observations
        :return: Mean and standard deviation of the first actor before tanh, detached, and by how much the second one's mean is
            shifted; each ``(batch, n_actions)``
        """
        with th.no_grad():
            mean, log_std, _ = self.actor.get_action_dist_params(obs)
            features = self.actor.extract_features(obs, self.actor.features_extractor)
        return mean, log_std.exp(), self.optimistic_actor(features, mean)

    def explore(self, obs: th.Tensor, noise: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        :param obs: Observations
        :param noise: From N(0, 1), ``(batch, n_actions)``
        :return: Actions of the second actor, ``(batch, n_actions)``, and how far it is from the first: the Kullback-Leibler
            divergence of the two Gaussians with the first one's standard deviation, ``(batch,)``
        """
        mean, std, shift = self.optimistic_params(obs)
        actions = th.tanh(mean + shift + self.std_multiplier * std * noise)
        return actions, (shift / std).square().sum(dim=1) / 2

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> th.Tensor:
        if not self.exploring:
            return super()._predict(observation, deterministic)
        assert isinstance(observation, th.Tensor)
        noise = th.randn(len(observation), get_action_dim(self.action_space), device=observation.device)
        return self.explore(observation, noise)[0]

    @contextmanager
    def as_it_explores(self) -> Iterator[None]:
        """Meanwhile :meth:`predict` samples from the second actor."""
        self.exploring = True
        try:
            yield
        finally:
            self.exploring = False

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {
            **super()._get_constructor_parameters(),
            "n_quantiles": self.n_quantiles,
            "std_multiplier": self.std_multiplier,
        }


def quantile_huber_loss(quantiles: th.Tensor, target: th.Tensor) -> th.Tensor:
    """
    :param quantiles: ``(batch, n_critics, n_quantiles)``
    :param target: Equally likely values, ``(batch, n_targets)``
    :return: The loss: the sum over critics and their quantiles of the mean over batch and target values
    """
    n = quantiles.shape[2]
    fractions = (th.arange(n, device=quantiles.device) + 0.5) / n
    error = target[:, None, None, :] - quantiles.unsqueeze(3)
    huber = F.huber_loss(error, th.zeros_like(error), reduction="none")
    weight = th.where(error.detach() < 0, 1 - fractions[:, None], fractions[:, None])
    return (weight * huber).sum(dim=(1, 2)).mean()


class BRO(SMR):
    """
    BRO at the original's hyperparameters.

    Built on :class:`SMR` for its loop, its order of updates and its temperature. What it changes: critics estimate quantiles
    of the return, targets and actor take the MEAN over both critics. A second, optimistic actor collects: it maximises the
    mean over critics plus ``optimism`` times half their difference, minus ``regularizer`` times its divergence from the first
    actor; both weights are learned so that this divergence becomes ``kl_target`` for each entry of the action. ``predict()``,
    and so all evaluation, acts by the first. At ``reset_steps`` all networks, optimisers and learned weights begin anew; the
    replay buffer stays.

    Left out of the original: several seeds at once, critics of plain values, networks without residual blocks, and pessimism,
    which is 0 there. Different: a reset draws new weights, where the original returns to those that it began with.

    Arguments not named here are SAC's, by keyword.

    :param policy: "MlpPolicy" or a policy class
    :param env: The environment to learn from (if registered in Gym, can be str), with observations that are vectors
    :param learning_rate: For actors, critics and temperature
    :param batch_size: Transitions in a batch
    :param learning_starts: Steps of uniformly random actions (the original's updates begin at step 2,500)
    :param gradient_steps: Batches, and updates, for each step (the replay ratio)
    :param target_entropy: "auto" is minus HALF the number of actions
    :param adj_lr: Learning rate of ``optimism`` and ``regularizer``
    :param kl_target: Divergence of the two actors that they are learned for, for each entry of the action
    :param reset_steps: Steps of the agent, in rising order, at which everything but the replay buffer is reset. They count
        once in a model's life, in however many calls of ``learn()``.
    :raises ValueError: If observations are no vectors, if ``reset_steps`` do not rise, or if an argument is given that the
        method fixes.
    """

    learns_distributions: ClassVar[bool] = True
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"MlpPolicy": BROPolicy}
    fixed_arguments = ("sample_reuse", "entropy_in_target", "use_sde")
    counters = (*SMR.counters, "n_resets")
    acts = ("actor", "optimistic_actor")
    policy: BROPolicy

    def __init__(
        self,
        policy: str | type[BROPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 3e-4,
        *,
        batch_size: int = 128,
        learning_starts: int = 2_499,
        gradient_steps: int = 10,
        target_entropy: str | float = "auto",
        adj_lr: float = 3e-5,
        kl_target: float = 0.05,
        reset_steps: Sequence[int] = (15_001, 50_001, 250_001, 500_001, 750_001, 1_000_001, 1_500_001, 2_000_001),
        **kwargs: Any,
    ):
        check_fixed_arguments(type(self), kwargs)
        if list(reset_steps) != sorted(set(reset_steps)):
            raise ValueError(f"reset_steps={reset_steps}: they must rise.")
        self.adj_lr = adj_lr
        self.kl_target = kl_target
        self.reset_steps = tuple(reset_steps)
        self.n_resets = 0
        super().__init__(
            policy,
            env,
            learning_rate,
            batch_size=batch_size,
            learning_starts=learning_starts,
            gradient_steps=gradient_steps,
            target_entropy=target_entropy,
            sample_reuse=1,
            entropy_in_target=True,
            use_sde=False,
            **kwargs,
        )

    def _setup_model(self) -> None:
        check_vectors(self)
        check_policy(self, BROPolicy)
        if self.target_entropy == "auto":
            self.target_entropy = -0.5 * get_action_dim(self.action_space)
        super()._setup_model()
        if isinstance(self.actor.features_extractor, RSNorm):
            raise ValueError(
                "features_extractor_class=RSNorm: BRO's actors and critics share none, so that its statistics would be the "
                "actor's alone. VecNormalize normalises observations for all of them."
            )
        if self.log_ent_coef is not None:
            self.ent_coef_optimizer = th.optim.Adam([self.log_ent_coef], lr=self.lr_schedule(1), betas=(0.5, 0.999))
            self._initial_log_ent_coef = self.log_ent_coef.item()
        adjustments = [self.policy.optimism.log_value, self.policy.regularizer.log_value]
        self.adjustment_optimizer = th.optim.Adam(adjustments, lr=self.adj_lr, betas=(0.5, 0.999))

    def _sample_action(self, *args: Any, **kwargs: Any) -> tuple[np.ndarray, np.ndarray]:
        with self.policy.as_it_explores():
            return super()._sample_action(*args, **kwargs)

    @fast_products()
    def train(self, gradient_steps: int, batch_size: int = 128) -> None:
        """
        Reset, if it is time to, and make ``gradient_steps`` updates, each with a batch of its own.

        :param gradient_steps: Number of updates
        :param batch_size: Transitions in a batch
        """
        due = sum(step <= self.num_timesteps for step in self.reset_steps)
        if due > self.n_resets:
            self.n_resets = due
            self._reset()
        for group in self.adjustment_optimizer.param_groups:  # which a loaded file brings with a rate of its own
            group["lr"] = self.adj_lr
        super().train(gradient_steps, batch_size)

    @th.no_grad()
    def _reset(self) -> None:
        """In place: what holds on to a parameter, such as a compiled update, must go on seeing it."""
        fresh = self.policy_class(self.observation_space, self.action_space, self.lr_schedule, **self.policy_kwargs)
        policy = getattr(self.policy, "_orig_mod", self.policy)  # within what torch.compile makes of it
        policy.load_state_dict(fresh.state_dict())
        if self.log_ent_coef is not None:
            self.log_ent_coef.fill_(self._initial_log_ent_coef)
        for optimizer in (*self._optimizers(), self.adjustment_optimizer):
            optimizer.state.clear()

    def _optimizers(self) -> list[th.optim.Optimizer]:
        return [*super()._optimizers(), self.policy.optimistic_optimizer]

    def _update(self, batch: ReplayBufferSamples) -> dict[str, th.Tensor]:
        """
        One update of critics, target critics, actor, temperature, the optimistic actor and its two weights, in this order.

        :param batch: Sampled transitions
        :return: Scalars for the logger, on the model's device
        """
        return super()._update(batch) | self._update_optimistic_actor(batch)

    def _update_optimistic_actor(self, batch: ReplayBufferSamples) -> dict[str, th.Tensor]:
        policy = self.policy
        weights = policy.optimism().detach(), policy.regularizer().detach()
        with frozen(self.critic.optimizer):
            loss, divergence = self._losses.minimise(
                policy.optimistic_optimizer, self._optimistic_loss, batch, *weights, th.randn_like(batch.actions)
            )
        excess = divergence / get_action_dim(self.action_space) - self.kl_target
        optimism, regularizer = policy.optimism(), policy.regularizer()
        # Too far from the first actor: less optimism, more regularisation.
        minimise((optimism - regularizer) * excess, self.adjustment_optimizer)
        return {
            "optimistic_actor_loss": loss.clone(),
            "kl": divergence.clone(),
            "optimism": weights[0],
            "regularizer": weights[1],
        }

    def _optimistic_loss(
        self, batch: ReplayBufferSamples, optimism: th.Tensor, regularizer: th.Tensor, noise: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor]:
        """
        :param batch: Sampled transitions
        :param optimism: Weight of the difference of the critics
        :param regularizer: Weight of the divergence from the first actor
        :param noise: For the actions, see :meth:`_draw_noise`
        :return: The loss, and the mean divergence, detached
        """
        assert isinstance(batch.observations, th.Tensor)
        actions, divergence = self.policy.explore(batch.observations, noise)
        quantiles = self._quantiles(self._q_values(self.critic, batch.observations, actions))
        half_range = (quantiles.amax(dim=1) - quantiles.amin(dim=1)) / 2
        value = (quantiles.mean(dim=1) + optimism * half_range).mean()
        return regularizer * divergence.mean() - value, divergence.detach().mean()

    def _critic_loss(
        self, batch: ReplayBufferSamples, ent_coef: th.Tensor, noise: th.Tensor | None
    ) -> tuple[th.Tensor, th.Tensor]:
        """
        :param batch: Sampled transitions
        :param ent_coef: α
        :param noise: For the next actions, see :meth:`_draw_noise`
        :return: :func:`quantile_huber_loss`, and the Q-values, ``(batch, n_critics)``, detached
        """
        target = self._target(batch, ent_coef, noise)
        quantiles = self._quantiles(self._q_values(self.critic, batch.observations, batch.actions))
        return quantile_huber_loss(quantiles, target), quantiles.detach().mean(dim=2)

    def _next_value(self, q_values: th.Tensor) -> th.Tensor:
        """:return: The mean over critics of each quantile, ``(batch, n_quantiles)``"""
        return self._quantiles(q_values).mean(dim=1)

    def _actor_value(self, q_values: th.Tensor) -> th.Tensor:
        """:return: The mean over critics, quantiles and batch"""
        return q_values.mean()

    def _quantiles(self, q_values: th.Tensor) -> th.Tensor:
        """:return: ``(batch, n_critics, n_quantiles)``"""
        return q_values.reshape(len(q_values), -1, self.policy.n_quantiles)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "adjustment_optimizer"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts, variables = super()._get_torch_save_params()
        return [*state_dicts, "policy.optimistic_optimizer", "adjustment_optimizer"], variables


class BROFast(BRO):
    """BRO with two updates a step instead of ten, and the first reset alone: the original's faster setting."""

    def __init__(
        self,
        policy: str | type[BROPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 3e-4,
        *,
        gradient_steps: int = 2,
        reset_steps: Sequence[int] = (15_001,),
        **kwargs: Any,
    ):
        super().__init__(policy, env, learning_rate, gradient_steps=gradient_steps, reset_steps=reset_steps, **kwargs)
