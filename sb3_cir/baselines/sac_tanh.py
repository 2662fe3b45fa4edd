"""SAC+Tanh and SAC+Tanh+Norm: what tanh on the initial representation does for plain SAC (appendix of the paper)."""

from typing import Any, ClassVar

from stable_baselines3.common.policies import BasePolicy, ContinuousCritic
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.sac.policies import SACPolicy
from torch import nn

from sb3_cir.networks import AvgRNorm
from sb3_cir.policies import ForDicts, ForImages, SMRPolicy
from sb3_cir.smr import SMR


class SACTanhPolicy(SACPolicy):
    """
    SB3's policy for SAC with tanh in place of the activation after the critic's first linear layer: ``z = tanh(Linear(o))``.
    The layers behind it and the actor are as they were. It is for SB3's own SAC; see also :class:`SACTanh`.

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
                raise ValueError("net_arch['qf'] is empty: there is no first layer to constrain, e.g. qf=[512, 512].")
            first = q_network[0]
            assert isinstance(first, nn.Linear)
            q_network[1] = self.constraint(first.out_features).to(self.device)
        return critic


class SACTanhNormPolicy(SACTanhPolicy):
    """
    The same with CIR's whole constraint (Eq. 7): ``z = tanh(AvgRNorm(LayerNorm(Linear(o))))``.

    :param avg_r_norm_coef: c of AvgRNorm
    """

    def __init__(self, *args: Any, avg_r_norm_coef: float = 0.1, **kwargs: Any):
        self.avg_r_norm_coef = avg_r_norm_coef
        super().__init__(*args, **kwargs)

    def constraint(self, width: int) -> nn.Module:
        return nn.Sequential(nn.LayerNorm(width), AvgRNorm(self.avg_r_norm_coef), nn.Tanh())

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "avg_r_norm_coef": self.avg_r_norm_coef}


class SMRTanhPolicy(SACTanhPolicy, SMRPolicy):
    """:class:`SACTanhPolicy` at the size of the authors' SAC (512, 512) and with its actor."""


class SMRTanhCnnPolicy(ForImages, SMRTanhPolicy):
    """:class:`SMRTanhPolicy` for images."""


class SMRTanhMultiInputPolicy(ForDicts, SMRTanhPolicy):
    """:class:`SMRTanhPolicy` for Dict observations."""


class SMRTanhNormPolicy(SACTanhNormPolicy, SMRPolicy):
    """:class:`SACTanhNormPolicy` at the size of the authors' SAC (512, 512) and with its actor."""


class SMRTanhNormCnnPolicy(ForImages, SMRTanhNormPolicy):
    """:class:`SMRTanhNormPolicy` for images."""


class SMRTanhNormMultiInputPolicy(ForDicts, SMRTanhNormPolicy):
    """:class:`SMRTanhNormPolicy` for Dict observations."""


class SACTanh(SMR):
    """
    SAC+Tanh: the authors' own SAC (:class:`SMR` at its defaults) with tanh in place of the first ReLU of each critic.

    The paper says "we constrain the initial representations in SAC with vanilla Tanh" and gives neither the code nor the
    sizes. Two readings are at hand:

    - This class: the SAC that the authors released beside CIR, which is likely their base. 512 x 2, 2,500 steps of warm-up,
      one update a step, exact log-probability, critic loss not halved.
    - The SAC whose results the paper prints, which are the SimBa authors', with SB3's update: ``SAC(SACTanhPolicy, env,
      learning_starts=5000, gradient_steps=2)``, 256 x 2.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": SMRTanhPolicy,
        "CnnPolicy": SMRTanhCnnPolicy,
        "MultiInputPolicy": SMRTanhMultiInputPolicy,
    }


class SACTanhNorm(SACTanh):
    """
    SAC+Tanh+Norm: the same with CIR's whole constraint. The other reading, as :class:`SACTanh` has it, is
    ``SAC(SACTanhNormPolicy, env, learning_starts=5000, gradient_steps=2)``.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": SMRTanhNormPolicy,
        "CnnPolicy": SMRTanhNormCnnPolicy,
        "MultiInputPolicy": SMRTanhNormMultiInputPolicy,
    }
