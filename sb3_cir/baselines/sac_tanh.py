"""SAC+Tanh and SAC+Tanh+Norm: what tanh on the initial representation does for plain SAC (appendix of the paper)."""

from typing import Any, ClassVar

from stable_baselines3 import SAC
from stable_baselines3.common.policies import BasePolicy, ContinuousCritic
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.sac.policies import SACPolicy
from torch import nn
from typing_extensions import Self

from sb3_cir.networks import AvgRNorm
from sb3_cir.runs.algorithm import Resumable


class SACTanhPolicy(SACPolicy):
    """
    SAC's policy with tanh in place of the activation after the critic's first linear layer: ``z = tanh(Linear(o))``. The
    layers behind it and the actor are as they were.

    :raises ValueError: If the critic has no hidden layer.
    """

    def constraint(self, width: int) -> nn.Module:
        """
        :param width: Size of the first layer
        :return: What takes the place of the first activation
        """
        return nn.Tanh()

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> ContinuousCritic:
        critic = super().make_critic(features_extractor)
        for q_network in critic.q_networks:
            assert isinstance(q_network, nn.Sequential)
            if len(q_network) < 3:
                raise ValueError("net_arch['qf'] is empty: there is no first layer to constrain, e.g. qf=[256, 256].")
            first = q_network[0]
            assert isinstance(first, nn.Linear)
            q_network[1] = self.constraint(first.out_features).to(self.device)
        return critic


class SACTanhNormPolicy(SACTanhPolicy):
    """
    The same with CIR's whole constraint (Eq. 4): ``z = tanh(AvgRNorm(LayerNorm(Linear(o))))``.

    :param avg_r_norm_coef: c of AvgRNorm
    """

    def __init__(self, *args: Any, avg_r_norm_coef: float = 0.1, **kwargs: Any):
        self.avg_r_norm_coef = avg_r_norm_coef
        super().__init__(*args, **kwargs)

    def constraint(self, width: int) -> nn.Module:
        return nn.Sequential(nn.LayerNorm(width), AvgRNorm(self.avg_r_norm_coef), nn.Tanh())

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "avg_r_norm_coef": self.avg_r_norm_coef}


class SACTanh(Resumable, SAC):
    """
    SAC+Tanh: SB3's SAC with :class:`SACTanhPolicy`. Arguments are SAC's; the only policy is "MlpPolicy".

    The paper says "we constrain the initial representations in SAC with vanilla Tanh" and gives neither the code nor the
    sizes. Here tanh replaces the first ReLU of each critic. Algorithm and optimiser are SB3's, so what the authors' SAC does
    otherwise is left out: its exact log-probability, and mean squared errors without the factor 0.5.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"MlpPolicy": SACTanhPolicy}

    def learn(self, *args: Any, **kwargs: Any) -> Self:
        """Learn; all arguments are SAC's. The run's name for TensorBoard is the class's unless given."""
        return super().learn(*args, **{"tb_log_name": type(self).__name__} | kwargs)


class SACTanhNorm(SACTanh):
    """SAC+Tanh+Norm: SB3's SAC with :class:`SACTanhNormPolicy`. What :class:`SACTanh` says of the original holds here too."""

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"MlpPolicy": SACTanhNormPolicy}
