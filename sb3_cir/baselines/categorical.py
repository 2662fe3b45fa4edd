"""
What SimbaV2 and FlashSAC share: SAC with a categorical critic, scaled rewards, parameters of fixed norm, and a learning rate
that falls. Here it is as SimbaV2 has it; ``flash_sac.py`` says where FlashSAC differs.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.preprocessing import get_action_dim, is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import (
    GymEnv,
    PyTorchObs,
    ReplayBufferSamples,
    Schedule,
    TrainFreq,
    TrainFrequencyUnit,
)
from stable_baselines3.common.utils import ConstantSchedule
from stable_baselines3.sac.policies import Actor, SACPolicy
from torch import nn

from sb3_cir.baselines.parts import LOG_STD_MAX, LOG_STD_MIN, ReturnScale, normalise_parameters, project, squeeze
from sb3_cir.policies import CIRActor, FusedAdam, OwnNetworks, SavesSharing
from sb3_cir.runs.algorithm import Resumable
from sb3_cir.update import fast_products, follow, frozen, minimise, temperature
from sb3_cir.valid import check_action_space, check_activation, check_counts, check_n_critics, check_observed


class Encoder(Protocol):
    """Makes the body of a stack of networks: ``(n_stack, batch, in_features)`` to ``(n_stack, batch, width)``."""

    def __call__(self, n_stack: int, in_features: int, widths: Sequence[int], key: str) -> nn.Module: ...


class Head(Protocol):
    """Makes what follows the body: ``(n_stack, batch, width)`` to ``(n_stack, batch, out_features)``."""

    def __call__(self, n_stack: int, width: int, out_features: int) -> nn.Module: ...


class StackActor(CIRActor):
    """
    SAC's actor with exact log-probability, a stack of one network for a body, and log_std squeezed into [-10, 2].

    :param encoder: Makes the body
    :param head: Makes the two heads, for the mean and for log_std
    :param kwargs: What else SB3's ``Actor`` takes, by keyword
    """

    log_std: nn.Module  # type: ignore[assignment]

    def __init__(self, *, encoder: Encoder, head: Head, **kwargs: Any):
        super().__init__(**kwargs)
        self.latent_pi = encoder(1, self.features_dim, self.net_arch, "pi")  # type: ignore[assignment]
        action_dim = get_action_dim(self.action_space)
        self.mu, self.log_std = (head(1, self.net_arch[-1], action_dim) for _ in range(2))

    def get_action_dist_params(self, obs: PyTorchObs) -> tuple[th.Tensor, th.Tensor, dict[str, th.Tensor]]:
        latent = self.latent_pi(self.extract_features(obs, self.features_extractor).unsqueeze(0))
        mean, log_std = self.mu(latent).squeeze(0), self.log_std(latent).squeeze(0)
        return mean, squeeze(log_std, LOG_STD_MIN, LOG_STD_MAX), {}


class CategoricalCritic(OwnNetworks):
    """
    Critics that give a distribution of the return over a fixed grid of values. Called, it returns the mean of each, one
    ``(batch, 1)`` tensor for each critic like any SB3 critic.

    :param encoder: Makes the body
    :param head: Makes the head
    :param n_bins: Number of values on the grid
    :param largest_value: They go from minus this to this.
    :param kwargs: What SB3's ``ContinuousCritic`` takes, by keyword
    """

    gives_values: ClassVar[bool] = False
    bins: th.Tensor

    def __init__(self, *, encoder: Encoder, head: Head, n_bins: int, largest_value: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.largest_value = largest_value
        body = encoder(self.n_critics, self.in_features, kwargs["net_arch"], "qf")
        self.q_network = nn.Sequential(body, head(self.n_critics, kwargs["net_arch"][-1], n_bins))
        self.register_buffer("bins", th.linspace(-largest_value, largest_value, n_bins), persistent=False)

    def log_probabilities(self, obs: PyTorchObs, actions: th.Tensor) -> th.Tensor:
        """
        :param obs: Observations
        :param actions: ``(batch, n_actions)`` in [-1, 1]
        :return: Logarithm of the probability of each value, ``(n_critics, batch, n_bins)``
        """
        x = self.network_input(obs, actions)
        return th.log_softmax(self.q_network(x.expand(self.n_critics, *x.shape)), dim=2)

    def means(self, log_probabilities: th.Tensor) -> th.Tensor:
        """
        :param log_probabilities: ``(n_critics, batch, n_bins)``
        :return: Q-values, ``(n_critics, batch)``
        """
        return (log_probabilities.exp() * self.bins).sum(dim=2)

    @staticmethod
    def probabilities_of(critics: th.Tensor, log_probabilities: th.Tensor) -> th.Tensor:
        """
        :param critics: Which critic, for each row, ``(batch,)``
        :param log_probabilities: ``(n_critics, batch, n_bins)``
        :return: That critic's probabilities, ``(batch, n_bins)``
        """
        return log_probabilities[critics, th.arange(len(critics), device=critics.device)].exp()

    def forward(self, obs: PyTorchObs, actions: th.Tensor) -> tuple[th.Tensor, ...]:
        return tuple(self.means(self.log_probabilities(obs, actions)).unsqueeze(2).unbind(dim=0))


def cross_entropy(target: th.Tensor, log_probabilities: th.Tensor) -> th.Tensor:
    """
    :param target: Probabilities that all critics are to have, ``(batch, n_bins)``
    :param log_probabilities: Of each critic, ``(n_critics, batch, n_bins)``
    :return: The sum over critics of their means over the batch
    """
    return -(target * log_probabilities).sum(dim=2).mean(dim=1).sum()


class CategoricalPolicy(SavesSharing):
    """
    SAC's policy with a :class:`StackActor` and :class:`CategoricalCritic`. A subclass says what they are made of.

    :param observation_space: Observation space, a Box that is no image
    :param action_space: Action space
    :param lr_schedule: Learning rate schedule
    :param net_arch: ``dict(pi=[...], qf=[...])``: for actor and critics the width of each residual block (equal in each list).
        One list serves both.
    :param n_bins: Number of values that the critics' distributions are over
    :param largest_value: They go from minus this to this.
    :param optimizer_class: Optimiser of actor and critics
    :param kwargs: What else SB3's ``SACPolicy`` takes
    :raises ValueError: If the observation space is no flat Box, if a list of ``net_arch`` is empty or unequal, if there is no
        critic, if there are fewer than two values, if they do not reach above 0, or if gSDE is asked for.
    """

    encoder: ClassVar[Encoder]
    head: ClassVar[Head]
    default_net_arch: ClassVar[dict[str, list[int]]]
    actor_class: ClassVar[type[StackActor]] = StackActor

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Box,
        lr_schedule: Schedule,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        *,
        n_bins: int = 101,
        largest_value: float = 5.0,
        optimizer_class: type[th.optim.Optimizer] = FusedAdam,
        use_sde: bool = False,
        **kwargs: Any,
    ):
        name = type(self).__name__.removesuffix("Policy")
        if not isinstance(observation_space, spaces.Box) or is_image_space(observation_space):
            kind = "an image" if isinstance(observation_space, spaces.Box) else f"a {type(observation_space).__name__}"
            raise ValueError(
                f"{name} takes flat observations, not {kind}: its network has no part for more. A wrapper such as "
                "sb3_cir.envs.FlatFloat32 makes one vector of them."
            )
        if use_sde:
            raise ValueError(f"use_sde=True: {name} has no gSDE, its noise is drawn for each action.")
        check_counts(n_bins=(n_bins, 2))
        if not 0 < largest_value < math.inf:
            raise ValueError(f"largest_value={largest_value}: it must be positive and finite (original: 5).")
        check_n_critics(kwargs)
        check_activation(type(self), kwargs)
        self.n_bins = int(n_bins)
        self.largest_value = largest_value
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            self.default_net_arch if net_arch is None else net_arch,
            optimizer_class=optimizer_class,
            **kwargs,
        )

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        for network in (self.actor, self.critic, self.critic_target):
            normalise_parameters(network)

    def make_actor(self, features_extractor: BaseFeaturesExtractor | None = None) -> Actor:
        kwargs = self._update_features_extractor(self.actor_kwargs, features_extractor)
        return self.actor_class(**kwargs, encoder=type(self).encoder, head=type(self).head).to(self.device)

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> ContinuousCritic:
        kwargs = self._update_features_extractor(self.critic_kwargs, features_extractor)
        kwargs |= dict(n_bins=self.n_bins, largest_value=self.largest_value)
        return CategoricalCritic(**kwargs, encoder=type(self).encoder, head=type(self).head).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {
            **super()._get_constructor_parameters(),
            "n_bins": self.n_bins,
            "largest_value": self.largest_value,
        }


class ScalesRewards(Resumable):
    """
    Mixin for an off-policy algorithm whose critic is a :class:`CategoricalCritic`: watches the returns of its
    environments, so that ``return_scale`` brings rewards to the critic's grid.
    """

    learns_distributions: ClassVar[bool] = True
    per_environment: ClassVar[tuple[str, ...]] = ("return_scale/returns",)
    return_scale_class: ClassVar[type[ReturnScale]] = ReturnScale
    return_scale: ReturnScale
    critic: Any  # SAC says that it is SB3's own

    def _setup_model(self) -> None:
        super()._setup_model()
        if not isinstance(self.critic, CategoricalCritic):
            raise ValueError(
                f"policy={type(self.policy).__name__}: {type(self).__name__} needs a policy whose critic is a "
                f"CategoricalCritic, as that of {self.policy_aliases['MlpPolicy'].__name__} is."
            )
        self.return_scale = self.return_scale_class(self.n_envs, self.gamma, self.critic.largest_value).to(self.device)

    def _store_transition(
        self,
        replay_buffer: ReplayBuffer,
        buffer_action: np.ndarray,
        new_obs: np.ndarray | dict[str, np.ndarray],
        reward: np.ndarray,
        dones: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)
        self.return_scale.update(*(th.as_tensor(each, dtype=th.float64, device=self.device) for each in (reward, dones)))

    def _backed_up(
        self, probabilities: th.Tensor, batch: ReplayBufferSamples, ent_coef: th.Tensor, next_log_prob: th.Tensor
    ) -> th.Tensor:
        """
        A distribution at the next observations, whose values v become ``r + γ (1 - d) (v - α log π)``, on the grid again.

        :param probabilities: ``(batch, n_bins)``
        :param batch: Sampled transitions with scaled rewards
        :param ent_coef: α
        :param next_log_prob: log π of the next actions, ``(batch,)``
        :return: ``(batch, n_bins)``
        """
        # With n-step returns the buffer gives gamma**n, shorter where an episode ended.
        discounts = self.gamma if batch.discounts is None else batch.discounts
        next_values = self.critic.bins - ent_coef * next_log_prob.unsqueeze(1)
        values = batch.rewards + discounts * next_values * (1 - batch.dones)
        return project(probabilities, values, self.critic.largest_value)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        modules, tensors = super()._get_torch_save_params()
        return [*modules, "return_scale"], tensors


class CategoricalSAC(ScalesRewards, SAC):
    """
    SAC with a categorical critic. In each update: actor, temperature, critics, target critics, each with what the one before
    has become.

    Arguments not named here are SAC's, by keyword.

    :param policy: "MlpPolicy" or a policy class
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_rate: For actor, critics and temperature, at the start. A schedule takes the place of the fall.
    :param learning_rate_end: What it falls to, if that is less; half of ``learning_rate`` where it is None
    :param decay_timesteps: Steps of the agent, over all environments, in which it falls. "auto" is all of the run's. The fall
        is counted in steps of each optimiser, from the model's first.
    :param target_entropy: Target entropy, or "auto"
    :raises ValueError: If an argument is out of its range.
    """

    policy: CategoricalPolicy
    actor: StackActor
    critic: CategoricalCritic
    critic_target: CategoricalCritic

    # Updates of the critics for one of the actor
    policy_delay: int = 1

    def __init__(
        self,
        policy: str | type[SACPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule,
        *,
        learning_rate_end: float | None,
        decay_timesteps: int | str = "auto",
        **kwargs: Any,
    ):
        if isinstance(learning_rate, ConstantSchedule):  # which RL Zoo makes of a number
            learning_rate = learning_rate.val
        if learning_rate_end is not None and not learning_rate_end >= 0:
            raise ValueError(f"learning_rate_end={learning_rate_end}: it must not be negative.")
        if decay_timesteps != "auto" and not (isinstance(decay_timesteps, (int, float)) and decay_timesteps > 0):
            raise ValueError(f"decay_timesteps={decay_timesteps!r}: it must be 'auto' or a positive number of steps.")
        self.learning_rate_end = learning_rate_end
        self.decay_timesteps = decay_timesteps
        super().__init__(policy, env, learning_rate, **kwargs)

    def _setup_model(self) -> None:
        check_action_space(self.action_space)
        super()._setup_model()
        check_observed(self)
        assert isinstance(self.train_freq, TrainFreq)
        falls = callable(self.learning_rate) or self._lowest_rate(self.learning_rate) < self.learning_rate
        if falls and self.gradient_steps >= 0 and self.train_freq.unit != TrainFrequencyUnit.STEP:
            raise ValueError(
                f"train_freq=({self.train_freq.frequency}, 'episode') with gradient_steps={self.gradient_steps}: nobody knows "
                "how many updates there will be, over which the learning rate falls. Count train_freq in steps, or take "
                "gradient_steps=-1."
            )

    def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
        total_timesteps, callback = super()._setup_learn(*args, **kwargs)
        begins_anew = self._n_updates > 0 and self.num_timesteps == 0
        rate = self._learning_rate(self._n_updates)
        if begins_anew and self.decay_timesteps == "auto" and rate != self._learning_rate(0):
            warnings.warn(
                f"This run begins with a learning rate of {rate:g}: it falls over {self._planned_updates():,.0f} updates from "
                f"the model's first, of which {self._n_updates:,} are made. Go on by learn(..., reset_num_timesteps=False), "
                "or say by decay_timesteps in how many steps of all runs it falls.",
                stacklevel=3,
            )
        return total_timesteps, callback

    @fast_products()
    def train(self, gradient_steps: int, batch_size: int = 256) -> None:
        """
        Sample ``gradient_steps`` batches and make one update with each.

        :param gradient_steps: Number of batches
        :param batch_size: Transitions in a batch
        """
        assert self.replay_buffer is not None
        updates: dict[str, list[th.Tensor]] = {}
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            for name, scalar in self._update(batch._replace(rewards=self.return_scale(batch.rewards))).items():
                updates.setdefault(name, []).append(scalar)
            self._n_updates += 1
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/learning_rate", self.critic.optimizer.param_groups[0]["lr"])
        for name, scalars in updates.items():
            self.logger.record(f"train/{name}", th.stack(scalars).mean().item())

    def _update(self, batch: ReplayBufferSamples) -> dict[str, th.Tensor]:
        """
        :param batch: Sampled transitions with scaled rewards
        :return: Scalars for the logger, on the model's device
        """
        scalars = self._update_actor(batch) if self._n_updates % self.policy_delay == 0 else {}
        return scalars | self._update_critics(batch)

    def _update_actor(self, batch: ReplayBufferSamples) -> dict[str, th.Tensor]:
        """
        One step of the actor and, if it is learned, of the temperature.

        :param batch: Sampled transitions with scaled rewards
        :return: Scalars for the logger
        """
        self._set_modes(of_actor=True)
        n_steps = self._n_updates // self.policy_delay
        with frozen(self.critic.optimizer):
            actor_loss, log_prob = self._actor_loss(batch, temperature(self))
            self._step(actor_loss, self.actor.optimizer, n_steps)
        normalise_parameters(self.actor)
        scalars = {"actor_loss": actor_loss.detach()}
        if self.log_ent_coef is not None and self.ent_coef_optimizer is not None:
            assert isinstance(self.target_entropy, float)
            ent_coef_loss = -(self.log_ent_coef.exp() * (log_prob.detach().mean() + self.target_entropy)).sum()
            self._step(ent_coef_loss, self.ent_coef_optimizer, n_steps)
            scalars["ent_coef_loss"] = ent_coef_loss.detach()
        return scalars

    def _update_critics(self, batch: ReplayBufferSamples) -> dict[str, th.Tensor]:
        """
        One step of the critics, then of the target critics, whose parameters are not put back to their norm.

        :param batch: Sampled transitions with scaled rewards
        :return: Scalars for the logger
        """
        self._set_modes(of_actor=False)
        ent_coef = temperature(self)
        critic_loss = self._critic_loss(batch, ent_coef)
        self._step(critic_loss, self.critic.optimizer, self._n_updates)
        normalise_parameters(self.critic)
        if self._n_updates % self.target_update_interval == 0:
            follow(self.critic_target, self.critic, self.tau)
        return {"critic_loss": critic_loss.detach(), "ent_coef": ent_coef.squeeze()}

    def _set_modes(self, of_actor: bool) -> None:
        """
        Which networks are in training mode.

        :param of_actor: Whether the actor's loss comes next, else the critics'
        """
        self.policy.set_training_mode(True)

    def _actor_loss(self, batch: ReplayBufferSamples, ent_coef: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        :param batch: Sampled transitions
        :param ent_coef: α
        :return: ``α log π - min Q``, and log π, ``(batch,)``
        """
        actions, log_prob = self._actions(batch)
        q_values = th.cat(self.critic(batch.observations, actions), dim=1)
        return (ent_coef * log_prob - q_values.amin(dim=1)).mean(), log_prob

    def _critic_loss(self, batch: ReplayBufferSamples, ent_coef: th.Tensor) -> th.Tensor:
        """
        The cross-entropy between the critics' distributions and the target: that of the target critic with the smallest
        mean, whose values v became ``r + γ (1 - d) (v - α log π)``, on the grid again.

        :param batch: Sampled transitions with scaled rewards
        :param ent_coef: α
        :return: The sum over critics of their means over the batch
        """
        with th.no_grad():
            next_actions, next_log_prob = self._next_actions(batch)
            probabilities = self._smallest(self._next_log_probabilities(batch, next_actions))
            target = self._backed_up(probabilities, batch, ent_coef, next_log_prob)
        return cross_entropy(target, self._log_probabilities(batch, next_actions))

    def _smallest(self, log_probabilities: th.Tensor) -> th.Tensor:
        """
        :param log_probabilities: ``(n_critics, batch, n_bins)``
        :return: Probabilities of the critic with the smallest mean, ``(batch, n_bins)``
        """
        return self.critic.probabilities_of(self.critic.means(log_probabilities).argmin(dim=0), log_probabilities)

    def _actions(self, batch: ReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        """
        :param batch: Sampled transitions
        :return: The policy's actions at the observations, ``(batch, n_actions)``, and log π, ``(batch,)``
        """
        return self.actor.action_log_prob(batch.observations, self._draw_noise(batch))

    def _next_actions(self, batch: ReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        """
        :param batch: Sampled transitions
        :return: The same at the next observations
        """
        return self.actor.action_log_prob(batch.next_observations, self._draw_noise(batch))

    def _next_log_probabilities(self, batch: ReplayBufferSamples, next_actions: th.Tensor) -> th.Tensor:
        """
        :param batch: Sampled transitions
        :param next_actions: The policy's at the next observations
        :return: The target critics' there, ``(n_critics, batch, n_bins)``
        """
        return self.critic_target.log_probabilities(batch.next_observations, next_actions)

    def _log_probabilities(self, batch: ReplayBufferSamples, next_actions: th.Tensor) -> th.Tensor:
        """
        :param batch: Sampled transitions
        :param next_actions: The policy's at the next observations
        :return: The critics' at the observations and actions of the batch, ``(n_critics, batch, n_bins)``
        """
        return self.critic.log_probabilities(batch.observations, batch.actions)

    def _draw_noise(self, batch: ReplayBufferSamples) -> th.Tensor:
        return th.randn_like(batch.actions)

    def _step(self, loss: th.Tensor, optimizer: th.optim.Optimizer, n_steps: int) -> None:
        """
        One step of an optimiser, with the learning rate that is due.

        :param loss: What to make smaller
        :param optimizer: Makes the step
        :param n_steps: Steps that it has made before
        """
        for group in optimizer.param_groups:
            group["lr"] = self._learning_rate(n_steps)
        minimise(loss, optimizer)

    def _learning_rate(self, n_steps: int) -> float:
        """
        :param n_steps: Steps that an optimiser has made before
        :return: The learning rate of its next one
        """
        n_planned = self._planned_updates()
        remaining = max(1 - n_steps / n_planned, 0.0) if n_planned > 0 else 1.0
        # SB3 makes a schedule of a number too; another one was put in its place.
        own = isinstance(getattr(self.lr_schedule, "value_schedule", None), ConstantSchedule)
        if callable(self.learning_rate) or not own:
            return float(self.lr_schedule(remaining))
        end = self._lowest_rate(self.learning_rate)
        return end + (self.learning_rate - end) * self._shape_of_fall(remaining)

    def _lowest_rate(self, rate: float) -> float:
        return rate / 2 if self.learning_rate_end is None else min(self.learning_rate_end, rate)

    def _shape_of_fall(self, remaining: float) -> float:
        """
        :param remaining: How much of the run is left, from 1 to 0
        :return: How much of the fall is left, from 1 to 0
        """
        return remaining

    def _planned_updates(self) -> float:
        """:return: Updates in ``decay_timesteps``; 0 where the length of the run is not known, outside ``learn()``."""
        n_steps = self._total_timesteps if self.decay_timesteps == "auto" else float(self.decay_timesteps)
        if self.gradient_steps < 0:
            return n_steps
        assert isinstance(self.train_freq, TrainFreq)
        return n_steps * self.gradient_steps / (self.train_freq.frequency * self.n_envs)
