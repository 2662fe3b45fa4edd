"""
SimBa: SAC with a network that scales (Lee et al., ICLR 2025, https://arxiv.org/abs/2410.09754), after the authors' JAX code
(github.com/SonyResearch/simba).

:class:`SimbaPolicy` is its network and works with SB3's SAC and sb3-contrib's TQC too; :class:`SimBa` is the whole method.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import SAC
from stable_baselines3.common.policies import BasePolicy, ContinuousCritic
from stable_baselines3.common.preprocessing import get_action_dim, get_flattened_obs_dim, is_image_space, preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import GymEnv, PyTorchObs, ReplayBufferSamples, Schedule, TensorDict
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.sac.policies import Actor
from torch import nn

from sb3_cir.baselines.parts import LOG_STD_MAX, LOG_STD_MIN, Residual, common_width, orthogonal_linear, squeeze
from sb3_cir.policies import CIRActor, ForImages, OwnNetworks, SavesSharing, SequentialCritic
from sb3_cir.smr import SMR
from sb3_cir.update import temperature
from sb3_cir.valid import check_activation, check_n_critics, is_number

TensorOrDict = th.Tensor | TensorDict


class RSNorm(BaseFeaturesExtractor):
    """
    Running-statistics normalisation: ``(o - mean) / sqrt(var + 1e-8)`` for each entry of a flat observation, with the mean
    and variance of all observations that were given to :meth:`update`. They are buffers, so they are saved and loaded with the
    policy. The entries of a Dict stand one after the other, in the order of the space.

    It has no network for images: a Dict that holds some is refused.

    A forward pass never moves them. Who calls :meth:`update`: :class:`SimBa` does with each observation that it acts on while
    learning, as the original does. Other algorithms do not know of it; for them :class:`SimbaActor` does.

    :param observation_space: Observation space
    :raises ValueError: If it is a Dict with images.
    """

    # float32 cannot hold the square of what is larger, and no simulator means it.
    LARGEST = 1e18
    must_observe = True

    mean: th.Tensor
    var: th.Tensor
    count: th.Tensor

    def __init__(self, observation_space: spaces.Space[Any]):
        if isinstance(observation_space, spaces.Dict):
            images = [name for name, space in observation_space.spaces.items() if is_image_space(space)]
            if images:
                raise ValueError(
                    f"RSNorm has no network for images ({', '.join(images)}): pass policy_kwargs="
                    "dict(features_extractor_class=sb3_cir.policies.DictExtractor), which has one and normalises nothing."
                )
        size = get_flattened_obs_dim(observation_space)
        super().__init__(observation_space, size)
        self._has_warned = False
        # After a million observations one more moves the mean by less than float32 can hold.
        self.register_buffer("mean", th.zeros(size, dtype=th.float64))
        self.register_buffer("var", th.ones(size, dtype=th.float64))
        self.register_buffer("count", th.zeros((), dtype=th.float64))

    @th.no_grad()
    def update(self, observations: TensorOrDict) -> None:
        """
        Add observations to the statistics (Chan et al.'s formula for merging variances). One with an entry beyond
        :attr:`LARGEST` is left out, with one warning: it would make the variance of this entry useless for good.

        :param observations: ``(batch, ...)``, or a dict of such
        """
        x = self._without_outliers(self._rows(observations)).to(self.mean.dtype)
        if len(x) == 0:
            return
        self.count += len(x)
        share = len(x) / self.count
        delta = x.mean(dim=0) - self.mean
        self.var += share * (x.var(dim=0, correction=0) - self.var + (1 - share) * delta.square())
        self.mean += share * delta

    def _without_outliers(self, x: th.Tensor) -> th.Tensor:
        too_large = x.abs() > self.LARGEST
        if not too_large.any():
            return x
        row, entry = too_large.nonzero()[0].tolist()
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"RSNorm: an observation has {x[row, entry].item():g} in entry {entry}. It is left out of the running mean "
                f"and variance, and so are all others with an entry beyond {self.LARGEST:g}.",
                stacklevel=3,
            )
        return x[~too_large.any(dim=1)]

    def forward(self, observations: TensorOrDict) -> th.Tensor:
        x = self._rows(observations)
        mean, std = self.mean.to(x.dtype), (self.var + 1e-8).sqrt().to(x.dtype)
        return (x - mean) / std

    def _rows(self, observations: TensorOrDict) -> th.Tensor:
        """Observations as ``(batch, size)``."""
        if isinstance(observations, dict):  # in any order, where the space always has the same
            assert isinstance(self._observation_space, spaces.Dict)
            entries = [observations[key] for key in self._observation_space.spaces]
        else:
            entries = [observations]
        # By shape and not by len(), which an exported policy would take for a constant.
        return th.cat([entry.reshape(entry.shape[0], -1) for entry in entries], dim=1)


def _he_normal(in_features: int, out_features: int) -> nn.Linear:
    """A linear layer with He's normal weights, cut off at two standard deviations as JAX's are, and zero bias."""
    layer = nn.Linear(in_features, out_features)
    # The cut makes a normal distribution this much narrower.
    std = math.sqrt(2 / in_features) / 0.87962566103423978
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    nn.init.zeros_(layer.bias)
    return layer


def _layer_norm(width: int) -> nn.LayerNorm:
    """With flax's epsilon."""
    return nn.LayerNorm(width, eps=1e-6)


class ResidualBlock(Residual):
    """
    Pre-LN residual block: ``x + Linear(ReLU(Linear(LayerNorm(x))))``, four times as wide inside.

    :param width: Size of input and output
    """

    def __init__(self, width: int):
        super().__init__(_layer_norm(width), _he_normal(width, 4 * width), nn.ReLU(), _he_normal(4 * width, width))


def simba_encoder(in_features: int, widths: Sequence[int], key: str) -> nn.Sequential:
    """
    Linear layer, residual blocks, LayerNorm.

    :param in_features: Size of the input
    :param widths: Width of each residual block, all equal
    :param key: Where they stand in ``net_arch``, for the error
    :return: The network, from ``(batch, in_features)`` to ``(batch, width)``
    :raises ValueError: If there is no width, or if they differ.
    """
    width = common_width(widths, key, "SimBa needs", 512)
    return nn.Sequential(orthogonal_linear(in_features, width), *(ResidualBlock(width) for _ in widths), _layer_norm(width))


def observe(actor: Actor, obs: PyTorchObs) -> None:
    """
    Add observations to the running statistics, if there are any.

    :param actor: What has them
    :param obs: ``(batch, ...)``
    """
    if isinstance(actor.features_extractor, RSNorm):
        actor.features_extractor.update(preprocess_obs(obs, actor.observation_space, actor.normalize_images))


class SimbaActor(CIRActor):
    """
    SAC's actor with exact log-probability, SimBa's body, and log_std squeezed smoothly into [-10, 2].

    Where nothing else gives :class:`RSNorm` its observations (``observes_batches``), those of each batch do on which
    ``train()`` of SAC or TQC asks for actions with their log-probability: the batch's observations and its next ones.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        self.observes_batches = True
        super().__init__(*args, **kwargs)
        self.latent_pi = simba_encoder(self.features_dim, self.net_arch, "pi")
        if not self.use_sde:
            action_dim = get_action_dim(self.action_space)
            self.mu, self.log_std = (orthogonal_linear(self.net_arch[-1], action_dim) for _ in range(2))  # type: ignore[assignment]

    def action_log_prob(self, obs: PyTorchObs, noise: th.Tensor | None = None) -> tuple[th.Tensor, th.Tensor]:
        if self.training and self.observes_batches:
            observe(self, obs)
        return super().action_log_prob(obs, noise)

    def get_action_dist_params(self, obs: PyTorchObs) -> tuple[th.Tensor, th.Tensor, dict[str, th.Tensor]]:
        if self.use_sde:
            return super().get_action_dist_params(obs)
        assert isinstance(self.log_std, nn.Module)
        latent = self.latent_pi(self.extract_features(obs, self.features_extractor))
        return self.mu(latent), squeeze(self.log_std(latent), LOG_STD_MIN, LOG_STD_MAX), {}


class SimbaCritic(OwnNetworks, SequentialCritic):
    """
    SimBa's Q-functions; called, it returns one ``(batch, 1)`` tensor for each, like any SB3 critic.

    :param n_outputs: Values that each gives
    :param kwargs: What SB3's ``ContinuousCritic`` takes, by keyword
    """

    def __init__(self, *, n_outputs: int = 1, **kwargs: Any):
        super().__init__(**kwargs)
        for index in range(self.n_critics):
            encoder = simba_encoder(self.in_features, kwargs["net_arch"], "qf")
            q_network = nn.Sequential(encoder, orthogonal_linear(kwargs["net_arch"][-1], n_outputs))
            self.add_module(f"qf{index}", q_network)
            self.q_networks.append(q_network)

    @property
    def quantiles_total(self) -> int:
        raise TypeError("TQC needs critics of quantiles: give it policy_kwargs=dict(n_quantiles=25).")


class SimbaQuantileCritic(SimbaCritic):
    """
    The same for sb3-contrib's TQC; called, it returns ``(batch, n_critics, n_quantiles)``.

    :param n_quantiles: Number of quantiles that each critic estimates
    """

    gives_values: ClassVar[bool] = False

    def __init__(self, *, n_quantiles: int, **kwargs: Any):
        super().__init__(n_outputs=n_quantiles, **kwargs)
        self.n_quantiles = n_quantiles

    @property
    def quantiles_total(self) -> int:
        return self.n_critics * self.n_quantiles

    def forward(self, obs: th.Tensor, actions: th.Tensor) -> th.Tensor:  # type: ignore[override]
        return th.stack(super().forward(obs, actions), dim=1)


class NormalizesObservations(SavesSharing):
    """
    Mixin for a policy: observations go through :class:`RSNorm`, one for actor, critics and target critics.

    :param features_extractor_class: What observations go through
    :param share_features_extractor: Whether the critics use the actor's features extractor. With :class:`RSNorm` they must,
        and by default with it alone: one that learns, such as ``NatureCNN``, is to learn from the critics' loss too.
    :raises ValueError: If statistics would not be shared.
    """

    def __init__(
        self,
        *args: Any,
        features_extractor_class: type[BaseFeaturesExtractor] = RSNorm,
        share_features_extractor: bool | None = None,
        **kwargs: Any,
    ):
        if share_features_extractor is None:
            share_features_extractor = issubclass(features_extractor_class, RSNorm)
        if issubclass(features_extractor_class, RSNorm) and not share_features_extractor:
            raise ValueError("share_features_extractor=False: actor and critics must share the statistics of RSNorm.")
        own = dict(features_extractor_class=features_extractor_class, share_features_extractor=share_features_extractor)
        super().__init__(*args, **kwargs | own)

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        if isinstance(self.actor.features_extractor, RSNorm):
            self.critic_target.features_extractor = self.actor.features_extractor
        # Only train() puts it into training mode, where batches may move the statistics.
        self.set_training_mode(False)


class SimbaPolicy(NormalizesObservations):
    """
    SimBa's network for SAC, and with ``n_quantiles`` for sb3-contrib's TQC: ``SAC(SimbaPolicy, env)``,
    ``TQC(SimbaPolicy, env, policy_kwargs=dict(n_quantiles=25))``. The learning rate is the algorithm's; SimBa's is 1e-4.

    :param observation_space: Observation space; images are for :class:`SimbaCnnPolicy`
    :param action_space: Action space
    :param lr_schedule: Learning rate schedule
    :param net_arch: ``dict(pi=[...], qf=[...])``: for actor and critics the width of each residual block (equal in each
        list). Default: the original's ``dict(pi=[128], qf=[512, 512])``.
    :param n_quantiles: Number of quantiles of each critic, for TQC
    :param optimizer_class: AdamW
    :param optimizer_kwargs: Its arguments. Default of AdamW: ``dict(weight_decay=0.01)``, on all parameters, as the
        original's.
    :param kwargs: What else :class:`NormalizesObservations` and SB3's ``SACPolicy`` take
    :raises ValueError: If a list of ``net_arch`` is empty or unequal, if there is no critic, or if statistics would not be
        shared.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Box,
        lr_schedule: Schedule,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        *,
        n_quantiles: int | None = None,
        optimizer_class: type[th.optim.Optimizer] = th.optim.AdamW,
        optimizer_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        check_n_critics(kwargs)
        check_activation(type(self), kwargs)
        self.n_quantiles = n_quantiles
        if optimizer_kwargs is None and issubclass(optimizer_class, th.optim.AdamW):
            optimizer_kwargs = dict(weight_decay=1e-2)
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            dict(pi=[128], qf=[512, 512]) if net_arch is None else net_arch,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
            **kwargs,
        )

    def make_actor(self, features_extractor: BaseFeaturesExtractor | None = None) -> Actor:
        return SimbaActor(**self._update_features_extractor(self.actor_kwargs, features_extractor)).to(self.device)

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> ContinuousCritic:
        kwargs = self._update_features_extractor(self.critic_kwargs, features_extractor)
        if self.n_quantiles is None:
            return SimbaCritic(**kwargs).to(self.device)
        return SimbaQuantileCritic(**kwargs, n_quantiles=self.n_quantiles).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "n_quantiles": self.n_quantiles}


class SimbaCnnPolicy(ForImages, SimbaPolicy):
    """:class:`SimbaPolicy` for images: ``NatureCNN`` in the place of :class:`RSNorm`. The original has none."""


def horizon_discount(n_steps: float) -> float:
    """
    SimBa's discount, from TD-MPC2: a fifth of an episode as horizon, within [0.95, 0.995].

    :param n_steps: Steps of the agent in an episode that reaches its time limit
    :return: The discount
    """
    return max(min(1 - 5 / n_steps, 0.995), 0.95)


def episode_steps(env: VecEnv) -> float:
    """
    :param env: Environments
    :return: Steps of the agent in an episode that reaches its time limit. Where Gymnasium knows no limit: 500, which is
        dm_control's 1,000 with every action taken twice. A limit is taken to count steps of the simulator, as it does in all
        of this package's environments, where it stands inside :class:`~sb3_cir.envs.ActionRepeat`.
    """
    # Of TimeLimit. The whole spec may be one that cannot be sent from another process, which then ends.
    limit = _first_count(env, "_max_episode_steps")
    if limit is None:
        return 500
    return limit / (_first_count(env, "repeat") or 1)


def _first_count(env: VecEnv, name: str) -> float | None:
    """
    :param env: Environments
    :param name: An attribute that is a number of at least 1
    :return: That of the first environment, None where there is none or where it is something else. Adapters of simulators that
        are no list of environments may take no index, have no attributes or raise errors of their own.
    """
    try:
        # A process of SB3's SubprocVecEnv that is asked for an attribute that it lacks ends.
        value: Any = env.get_attr(name)[0] if env.has_attr(name) else None
    except Exception:
        return None
    return float(value) if is_number(value) and value >= 1 else None


class HorizonDefaults(SAC):
    """
    Mixin for an algorithm: what SimBa and SimbaV2 make of ``gamma="auto"`` and ``target_entropy="auto"``.

    :raises ValueError: If ``gamma`` is another text.
    """

    def _setup_model(self) -> None:
        if isinstance(self.gamma, str):
            if self.gamma != "auto":
                raise ValueError(f"gamma={self.gamma!r}: it must be a number in [0, 1] or 'auto'.")
            if self.env is None:
                raise ValueError("gamma='auto' is found from an environment: pass env=... too, or a number.")
            self.gamma = horizon_discount(episode_steps(self.env))
        if self.target_entropy == "auto":
            self.target_entropy = -0.5 * get_action_dim(self.action_space)
        super()._setup_model()


class ObservesWhileActing(SAC):
    """Mixin for an algorithm: each observation it acts on while learning counts once in :class:`RSNorm`'s statistics."""

    observes = True

    def _setup_model(self) -> None:
        super()._setup_model()
        if isinstance(self.actor, SimbaActor):
            self.actor.observes_batches = False

    def _sample_action(self, *args: Any, **kwargs: Any) -> tuple[np.ndarray, np.ndarray]:
        # Only learning comes here, once a step: predict() does not.
        if isinstance(self.actor.features_extractor, RSNorm):
            assert self._last_obs is not None
            observe(self.actor, self.policy.obs_to_tensor(self._last_obs)[0])
        return super()._sample_action(*args, **kwargs)


class SimBa(ObservesWhileActing, HorizonDefaults, SMR):
    """
    SimBa with SAC, at the original's hyperparameters for all its benchmarks.

    The loss and target of :class:`SMR`, in the original's order: in each update actor, temperature, critics, target critics,
    each with what the one before has become.

    Left out: JAX's compilation and mixed precision. Different: n-step returns and the rescaling of actions are SB3's, and the
    statistics have the very first observation of the run too.

    Arguments not named here are :class:`SMR`'s, by keyword.

    :param policy: "MlpPolicy", "CnnPolicy", "MultiInputPolicy" or a policy class
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_rate: For actor, critics and temperature
    :param episodic: Whether episodes can end otherwise than by a time limit. If so there are two critics and the minimum
        of them (CDQ), else a single one. dm_control's never do.
    :param gamma: Discount, or "auto" for :func:`horizon_discount` of the environment's time limit
    :param gradient_steps: Batches, and updates, for each step (UTD)
    :param sample_reuse: Updates with each batch (SMR)
    :param learning_starts: Steps of uniformly random actions before learning
    :param ent_coef: Temperature, learned from 0.01 on
    :param target_entropy: "auto" is minus HALF the number of actions
    :raises ValueError: If an argument is out of its range.
    """

    settled_arguments = ("episodic",)
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": SimbaPolicy,
        "CnnPolicy": SimbaCnnPolicy,
        "MultiInputPolicy": SimbaPolicy,
    }

    def __init__(
        self,
        policy: str | type[SimbaPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 1e-4,
        *,
        episodic: bool = True,
        gamma: float | str = "auto",
        gradient_steps: int = 2,
        sample_reuse: int = 1,
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
            gamma=gamma,
            gradient_steps=gradient_steps,
            sample_reuse=sample_reuse,
            learning_starts=learning_starts,
            ent_coef=ent_coef,
            target_entropy=target_entropy,
            policy_kwargs=dict(n_critics=2 if episodic else 1) | (policy_kwargs or {}),
            **kwargs,
        )

    def _update(self, batch: ReplayBufferSamples) -> dict[str, th.Tensor]:
        """
        One update of actor, temperature, critics and target critics, in this order.

        :param batch: Sampled transitions
        :return: Scalars for the logger, on the model's device
        """
        self._reset_sde_noise()
        scalars = self._update_actor_and_temperature(batch, temperature(self))
        scalars |= self._update_critics(batch, temperature(self))
        self._update_target_critics()
        self._copy_running_statistics()
        return scalars


class SimBaSMR(SimBa):
    """SimBa with SMR in place of UTD: two updates with one batch for each step, instead of two batches."""

    def __init__(
        self,
        policy: str | type[SimbaPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 1e-4,
        *,
        gradient_steps: int = 1,
        sample_reuse: int = 2,
        **kwargs: Any,
    ):
        super().__init__(policy, env, learning_rate, gradient_steps=gradient_steps, sample_reuse=sample_reuse, **kwargs)
