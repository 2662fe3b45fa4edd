"""CIR's networks in Stable-Baselines3's shape: critic, actor, and the three policies."""

import math
from typing import Any, ClassVar

import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import DiagGaussianDistribution, SquashedDiagGaussianDistribution
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, NatureCNN, create_mlp
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.sac.policies import Actor, SACPolicy
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import ParamsT

from sb3_cir.ablations import CRITICS, choose
from sb3_cir.networks import UShape, UShapeCritic, check_widths, ends_in_float32
from sb3_cir.valid import check_activation, check_n_critics, check_net_arch, is_number


class ConcatCritic(ContinuousCritic):
    """A critic whose networks see features and actions side by side. A shared features extractor learns nothing from it."""

    # Whether what it gives is values, one for each of its networks, and no distributions of them.
    gives_values: ClassVar[bool] = True

    def network_input(self, obs: PyTorchObs, actions: th.Tensor) -> th.Tensor:
        """
        :param obs: Observations
        :param actions: ``(batch, n_actions)`` in [-1, 1]
        :return: Features and actions side by side, ``(batch, features_dim + n_actions)``.
        """
        with th.set_grad_enabled(th.is_grad_enabled() and not self.share_features_extractor):
            features = self.extract_features(obs, self.features_extractor)
        return th.cat([features, actions], dim=1)


class SequentialCritic(ConcatCritic):
    """SB3's critics, whose last layers are float32's (:func:`~sb3_cir.networks.ends_in_float32`)."""

    def forward(self, obs: PyTorchObs, actions: th.Tensor) -> tuple[th.Tensor, ...]:
        x = self.network_input(obs, actions)
        return tuple(ends_in_float32(network, x) for network in self.q_networks)  # type: ignore[arg-type]


class OwnNetworks(ConcatCritic):
    """
    A critic without SB3's networks: a subclass makes its own.

    :param n_critics: Number of critics
    :param kwargs: What else SB3's ``ContinuousCritic`` takes, by keyword
    """

    def __init__(self, *, n_critics: int = 2, **kwargs: Any):
        super().__init__(n_critics=0, **kwargs)
        self.n_critics = n_critics
        self.in_features = kwargs["features_dim"] + get_action_dim(self.action_space)

    def q1_forward(self, obs: PyTorchObs, actions: th.Tensor) -> th.Tensor:
        q_value: th.Tensor = self(obs, actions)[0]
        return q_value


class CIRCritic(OwnNetworks):
    """
    All of CIR's critics in one module; called, it returns one ``(batch, 1)`` tensor for each, like any SB3 critic.

    :param avg_r_norm_coef: c of AvgRNorm
    :param network: The stack of Q-functions
    :param kwargs: What SB3's ``ContinuousCritic`` takes, by keyword. ``net_arch`` is the width of each down-sampling layer,
        all equal (paper: ``[512, 512]``).
    """

    def __init__(self, *, avg_r_norm_coef: float = 0.1, network: type[UShapeCritic] = UShapeCritic, **kwargs: Any):
        super().__init__(**kwargs)
        self.q_network = network(self.n_critics, self.in_features, kwargs["net_arch"], avg_r_norm_coef)

    def forward(self, obs: PyTorchObs, actions: th.Tensor) -> tuple[th.Tensor, ...]:
        return tuple(self.q_network(self.network_input(obs, actions)).unbind(dim=0))

    def saturation(self, obs: PyTorchObs, actions: th.Tensor, threshold: float = 0.97) -> th.Tensor:
        """
        Share of the constrained input's units that tanh has flattened, where hardly any gradient passes: CIR's own
        failure mode. With another squash than tanh it says little.

        :param obs: Observations
        :param actions: ``(batch, n_actions)`` in [-1, 1]
        :param threshold: A unit counts as saturated above this absolute value.
        :return: Scalar in [0, 1]
        """
        with th.no_grad():
            constrained = self.q_network.constrain(self.network_input(obs, actions))
            return (constrained.abs() > threshold).float().mean()


class ExactSquashedGaussian(SquashedDiagGaussianDistribution):
    """
    A Gaussian squashed by tanh with the exact log-probability.

    SB3's ``log(1 - a^2 + 1e-6)`` levels off where actions saturate; the identity
    ``log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))`` does not.
    """

    def log_prob(self, actions: th.Tensor, gaussian_actions: th.Tensor | None = None) -> th.Tensor:
        """
        :param actions: ``(batch, n_actions)``, in (-1, 1)
        :param gaussian_actions: The same before tanh; recovered from ``actions`` when not given.
        :return: ``(batch,)``
        """
        if gaussian_actions is None:
            # The largest float32 below 1: tanh rounds to 1 beyond |u| = 9, and atanh(1) is infinite.
            limit = 1 - th.finfo(actions.dtype).eps / 2
            gaussian_actions = th.atanh(actions.clamp(-limit, limit))
        log_prob = DiagGaussianDistribution.log_prob(self, gaussian_actions)
        return log_prob - log_tanh_derivative(gaussian_actions).sum(dim=1)

    def log_prob_from_params(
        self, mean_actions: th.Tensor, log_std: th.Tensor, noise: th.Tensor | None = None
    ) -> tuple[th.Tensor, th.Tensor]:
        """
        Sample an action, with its log-probability from the noise that made it (no ``torch.distributions``: its checks read
        values back from the device).

        :param mean_actions: ``(batch, n_actions)``, before tanh
        :param log_std: The same shape
        :param noise: From N(0, 1), the same shape; drawn here when not given
        :return: Actions ``(batch, n_actions)`` and log-probabilities ``(batch,)``
        """
        if noise is None:
            noise = th.randn_like(mean_actions)
        gaussian_actions = mean_actions + log_std.exp() * noise
        gaussian_log_prob = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        log_prob = (gaussian_log_prob - log_tanh_derivative(gaussian_actions)).sum(dim=1)
        return th.tanh(gaussian_actions), log_prob


def log_tanh_derivative(x: th.Tensor) -> th.Tensor:
    """
    ``log(1 - tanh(x)^2)``, exact for any x.

    :param x: Any shape
    :return: The same shape
    """
    return 2 * (math.log(2) - x - F.softplus(-2 * x))


class CIRActor(Actor):
    """SAC's actor with the exact log-probability, of noise that may be given. With gSDE the distribution stays SB3's."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if not self.use_sde:
            self.action_dist = ExactSquashedGaussian(get_action_dim(self.action_space))  # type: ignore[assignment]

    def action_log_prob(self, obs: PyTorchObs, noise: th.Tensor | None = None) -> tuple[th.Tensor, th.Tensor]:
        """
        :param obs: Observations
        :param noise: From N(0, 1), ``(batch, n_actions)``; drawn here when not given. Not with gSDE, whose noise is in its
            weights.
        :return: Actions ``(batch, n_actions)`` and log-probabilities ``(batch,)``
        """
        if noise is None:
            return super().action_log_prob(obs)
        assert isinstance(self.action_dist, ExactSquashedGaussian)
        mean_actions, log_std, _ = self.get_action_dist_params(obs)
        return self.action_dist.log_prob_from_params(mean_actions, log_std, noise)


class LayerNormActor(CIRActor):
    """The actor's MLP with a LayerNorm after each hidden linear layer (variant ActorLN)."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        layers = create_mlp(self.features_dim, -1, self.net_arch, self.activation_fn, post_linear_modules=[nn.LayerNorm])
        self.latent_pi = nn.Sequential(*layers)


class UShapeActor(CIRActor):
    """
    An actor with the critic's network for a body (variant ActorCIR): one U-shape, then mean and log_std as linear heads.

    :param avg_r_norm_coef: c of AvgRNorm
    """

    def __init__(self, *args: Any, avg_r_norm_coef: float = 0.1, **kwargs: Any):
        super().__init__(*args, **kwargs)
        check_widths(self.net_arch, "pi")
        stack = UShape(1, self.features_dim, self.net_arch, avg_r_norm_coef)
        self.latent_pi = nn.Sequential(stack, nn.Flatten(0, 1))


class FusedAdam(th.optim.Adam):
    """
    PyTorch's Adam by its fused kernel: one pass over memory where the default takes a dozen, on a CPU six times faster. With
    ``foreach=True`` or ``differentiable=True``, which exclude the fused kernel, it is PyTorch's own.

    Loads the state of any Adam, that of models saved with the default one too.

    :param params: Parameters
    :param kwargs: Adam's arguments
    """

    def __init__(self, params: ParamsT, **kwargs: Any):
        fused = not (kwargs.get("foreach") or kwargs.get("differentiable"))
        super().__init__(params, **{"fused": fused} | kwargs)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        kernel = {name: self.defaults[name] for name in ("fused", "foreach", "differentiable")}
        groups = [group | kernel for group in state_dict["param_groups"]]
        super().load_state_dict(state_dict | {"param_groups": groups})


ACTORS: dict[str, type[CIRActor]] = {"CIR": CIRActor, "ActorLN": LayerNormActor, "ActorCIR": UShapeActor}


class SavesSharing(SACPolicy):
    """SB3's policy. A loaded one has as many features extractors as the saved one, where SB3's always has two."""

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "share_features_extractor": self.share_features_extractor}


class SMRPolicy(SavesSharing):
    """
    Policy of the authors' own SAC: the actor with the exact log-probability, and SB3's plain critics.

    :param observation_space: Observation space
    :param action_space: Action space
    :param lr_schedule: Learning rate schedule
    :param net_arch: ``dict(pi=[...], qf=[...])``: hidden layers of the actor's MLP, and of each critic's. One list serves
        both. Default: the authors' ``[512, 512]``.
    :param optimizer_class: Optimiser of actor and critic
    :param kwargs: What else SB3's ``SACPolicy`` takes
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Box,
        lr_schedule: Schedule,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        *,
        optimizer_class: type[th.optim.Optimizer] = FusedAdam,
        **kwargs: Any,
    ):
        check_n_critics(kwargs)
        if net_arch is None:
            net_arch = dict(pi=[512, 512], qf=[512, 512])
        check_net_arch(net_arch)
        super().__init__(observation_space, action_space, lr_schedule, net_arch, optimizer_class=optimizer_class, **kwargs)

    def make_actor(self, features_extractor: BaseFeaturesExtractor | None = None) -> Actor:
        return CIRActor(**self._update_features_extractor(self.actor_kwargs, features_extractor)).to(self.device)

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> ContinuousCritic:
        return SequentialCritic(**self._update_features_extractor(self.critic_kwargs, features_extractor)).to(self.device)


class CIRPolicy(SMRPolicy):
    """
    Policy with SAC's actor and CIR's critic. Also serves SB3's own SAC: ``SAC(CIRPolicy, env)``.

    :param observation_space: Observation space
    :param action_space: Action space
    :param lr_schedule: Learning rate schedule
    :param net_arch: ``dict(pi=[...], qf=[...])``: hidden layers of the actor's MLP, and the width of each of the critic's
        down-sampling layers (all equal). One list serves both. Default: the paper's ``[512, 512]``.
    :param avg_r_norm_coef: c of AvgRNorm (Eq. 6)
    :param critic_network: A label of ``ablations.CRITICS``, for the paper's variants of the critic, or a ``UShapeCritic`` of
        your own.
    :param actor_network: "CIR", "ActorLN" or "ActorCIR" (the paper's variants of the actor)
    :param critic_weight_decay: Decoupled weight decay on the critic's Adam, as AdamW has it (variant WD)
    :param kwargs: What else :class:`SMRPolicy` takes. ``activation_fn`` is the actor's; the critic's is always elu, and so is
        that of "ActorCIR".
    :raises ValueError: If the critic's widths are unequal or none is given, if there is no critic, if c is not positive, if
        the weight decay is negative or the optimiser has no decoupled one, or if there is no network of the given name.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Box,
        lr_schedule: Schedule,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        *,
        avg_r_norm_coef: float = 0.1,
        critic_network: str | type[UShapeCritic] = "CIR",
        actor_network: str = "CIR",
        critic_weight_decay: float = 0.0,
        **kwargs: Any,
    ):
        if isinstance(net_arch, list) and len(set(net_arch)) > 1:
            raise ValueError(
                f"net_arch['qf']={net_arch} has unequal widths: CIR's skip connections add the critic's layers to each other. "
                f"Write policy_kwargs=dict(net_arch=dict(pi={net_arch}, qf={[max(net_arch)] * len(net_arch)}))."
            )
        if not (is_number(critic_weight_decay) and critic_weight_decay >= 0):
            raise ValueError(f"critic_weight_decay={critic_weight_decay}: it must not be negative.")
        if isinstance(critic_network, str):
            choose(CRITICS, "critic_network", critic_network)
        choose(ACTORS, "actor_network", actor_network)
        self.avg_r_norm_coef = avg_r_norm_coef
        self.critic_network = critic_network
        self.actor_network = actor_network
        self.critic_weight_decay = critic_weight_decay
        if actor_network == "ActorCIR":
            check_activation(type(self), kwargs)
        super().__init__(observation_space, action_space, lr_schedule, net_arch, **kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        if self.critic_weight_decay:
            for group in self.critic.optimizer.param_groups:
                if "decoupled_weight_decay" not in group:
                    raise ValueError(
                        f"critic_weight_decay={self.critic_weight_decay}: {self.optimizer_class.__name__} has no decoupled "
                        "weight decay; PyTorch's Adam and AdamW have."
                    )
                group.update(weight_decay=self.critic_weight_decay, decoupled_weight_decay=True)

    def make_actor(self, features_extractor: BaseFeaturesExtractor | None = None) -> Actor:
        kwargs = self._update_features_extractor(self.actor_kwargs, features_extractor)
        actor_class = ACTORS[self.actor_network]
        if actor_class is UShapeActor:
            kwargs["avg_r_norm_coef"] = self.avg_r_norm_coef
        return actor_class(**kwargs).to(self.device)

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> ContinuousCritic:
        kwargs = self._update_features_extractor(self.critic_kwargs, features_extractor)
        network = CRITICS[self.critic_network] if isinstance(self.critic_network, str) else self.critic_network
        return CIRCritic(**kwargs, avg_r_norm_coef=self.avg_r_norm_coef, network=network).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {
            **super()._get_constructor_parameters(),
            "avg_r_norm_coef": self.avg_r_norm_coef,
            "critic_network": self.critic_network,
            "actor_network": self.actor_network,
            "critic_weight_decay": self.critic_weight_decay,
        }


class FlattenFrom0d(nn.Flatten):
    """``nn.Flatten`` that takes a batch of scalars too, as a column: ``(batch,)`` to ``(batch, 1)``."""

    def forward(self, x: th.Tensor) -> th.Tensor:
        return x.reshape(x.shape[0], -1)


class DictExtractor(CombinedExtractor):
    """SB3's ``CombinedExtractor`` for Dict spaces that also have 0-d entries, as dm_control's do."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        for key, extractor in self.extractors.items():
            if isinstance(extractor, nn.Flatten):
                self.extractors[key] = FlattenFrom0d()


class ForImages(SACPolicy):
    """Mixin for a policy: SB3's ``NatureCNN`` is the default features extractor."""

    def __init__(self, *args: Any, features_extractor_class: type[BaseFeaturesExtractor] = NatureCNN, **kwargs: Any):
        super().__init__(*args, **kwargs | {"features_extractor_class": features_extractor_class})


class ForDicts(SACPolicy):
    """Mixin for a policy: :class:`DictExtractor` is the default features extractor."""

    def __init__(self, *args: Any, features_extractor_class: type[BaseFeaturesExtractor] = DictExtractor, **kwargs: Any):
        super().__init__(*args, **kwargs | {"features_extractor_class": features_extractor_class})


MlpPolicy = CIRPolicy


class CnnPolicy(ForImages, CIRPolicy):
    """:class:`CIRPolicy` for images."""


class MultiInputPolicy(ForDicts, CIRPolicy):
    """:class:`CIRPolicy` for Dict observations."""


class SMRCnnPolicy(ForImages, SMRPolicy):
    """:class:`SMRPolicy` for images."""


class SMRMultiInputPolicy(ForDicts, SMRPolicy):
    """:class:`SMRPolicy` for Dict observations."""
