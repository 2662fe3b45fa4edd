"""CIR with one wide categorical critic, for tasks on which CIR learns slowly, such as dm_control's dogs."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch as th
from stable_baselines3.common.policies import BasePolicy, ContinuousCritic
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import GymEnv, PyTorchObs, ReplayBufferSamples, Schedule
from stable_baselines3.sac.policies import Actor

from sb3_cir.baselines.categorical import CategoricalCritic, CategoricalPolicy, ScalesRewards, cross_entropy
from sb3_cir.baselines.simba import HorizonDefaults, ObservesWhileActing, SimbaPolicy
from sb3_cir.cir import CIR
from sb3_cir.networks import StackedLinear, UShape
from sb3_cir.policies import CIRActor


class CategoricalCIRPolicy(CategoricalPolicy, SimbaPolicy):
    """
    CIR's actor and U-shape, which ends in a distribution over values, on observations that are normalised by running
    statistics as SimBa's are. It needs :class:`CategoricalCIR`: another algorithm neither scales rewards to the critic's grid
    nor counts observations.

    :param args: As :class:`~sb3_cir.baselines.categorical.CategoricalPolicy`'s. ``net_arch`` is as CIR's; by default it is
        ``dict(pi=[724, 724], qf=[724, 724])``, so that the one critic has as many parameters as CIR's two.
    :param n_critics: Number of critics
    :param avg_r_norm_coef: c of AvgRNorm (Eq. 6)
    :param optimizer_kwargs: Adam's arguments, beside the learning rate
    :param kwargs: What else ``CategoricalPolicy`` takes
    :raises ValueError: As ``CategoricalPolicy`` does, if the critic's widths are unequal, or if c is not positive.
    """

    head = StackedLinear
    default_net_arch: ClassVar[dict[str, list[int]]] = dict(pi=[724, 724], qf=[724, 724])

    def __init__(
        self,
        *args: Any,
        n_critics: int = 1,
        avg_r_norm_coef: float = 0.1,
        optimizer_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        self.avg_r_norm_coef = avg_r_norm_coef
        # SimBa's weight decay is not CIR's.
        super().__init__(*args, n_critics=n_critics, optimizer_kwargs=optimizer_kwargs or {}, **kwargs)

    def encoder(  # type: ignore[override]  # a method, for it needs c
        self, n_stack: int, in_features: int, widths: Sequence[int], _: str
    ) -> UShape:
        """:return: The critics' body, see :class:`~sb3_cir.baselines.categorical.Encoder`"""
        return UShape(n_stack, in_features, widths, self.avg_r_norm_coef)

    def make_actor(self, features_extractor: BaseFeaturesExtractor | None = None) -> Actor:
        return CIRActor(**self._update_features_extractor(self.actor_kwargs, features_extractor)).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "avg_r_norm_coef": self.avg_r_norm_coef}


class CategoricalCIR(ScalesRewards, ObservesWhileActing, HorizonDefaults, CIR):
    """
    CIR for hard tasks. Four things differ from :class:`CIR`; the update with its M reuses of a batch is the same.

    - One critic of width 724 takes the place of two of width 512, which differ from each other by very little on hard tasks.
      The actor is as wide.
    - It gives a distribution over 101 values from -5 to 5, and learns by cross-entropy (C51). Rewards are divided by the
      standard deviation of running returns, as in SimbaV2, so that one grid serves all tasks. ``train/q_mean`` and the losses
      count in rewards that are scaled so.
    - The temperature begins at 0.01, towards an entropy of minus half a nat for each action, as in SimBa.
    - Observations are normalised by running statistics, as in SimBa.

    With more critics (``policy_kwargs=dict(n_critics=2)``) convex Q-learning mixes the distributions of those with the
    smallest and with the largest mean.

    This is no method of the paper. What is known of it stands under "Hard tasks" in ``benchmarks/README.md``.

    Arguments not named here are CIR's, by keyword.

    :param policy: "MlpPolicy" or a policy class
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_rate: For actor, critic and temperature
    :param ent_coef: Temperature, learned from 0.01 on
    :param target_entropy: "auto" is minus HALF the number of actions
    :param kwargs: What else CIR takes
    :raises ValueError: As :class:`CIR` does, and if observations are images or a Dict.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"MlpPolicy": CategoricalCIRPolicy}
    policy: CategoricalCIRPolicy
    critic: CategoricalCritic
    critic_target: CategoricalCritic

    def __init__(
        self,
        policy: str | type[CategoricalCIRPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 3e-4,
        *,
        ent_coef: str | float = "auto_0.01",
        target_entropy: str | float = "auto",
        **kwargs: Any,
    ):
        # SB3 would send whoever has a Dict to a policy that there is not; ours says what to do.
        policy = self.policy_aliases.get(policy, policy) if isinstance(policy, str) else policy  # type: ignore[assignment]
        super().__init__(policy, env, learning_rate, ent_coef=ent_coef, target_entropy=target_entropy, **kwargs)

    def _critic_loss(
        self, batch: ReplayBufferSamples, ent_coef: th.Tensor, noise: th.Tensor | None
    ) -> tuple[th.Tensor, th.Tensor]:
        target = self._target_distribution(batch, ent_coef, noise)
        log_probabilities = self._log_probabilities(self.critic, batch.observations, batch.actions)
        return cross_entropy(target, log_probabilities), self.critic.means(log_probabilities).T.detach()

    @th.no_grad()
    def _target_distribution(self, batch: ReplayBufferSamples, ent_coef: th.Tensor, noise: th.Tensor | None) -> th.Tensor:
        """
        ``λ p_min + (1 - λ) p_max`` of the target critics, whose values v became ``r / scale + γ (1 - d) (v - α log π)``, on
        the grid again.

        :param batch: Sampled transitions
        :param ent_coef: α
        :param noise: For the next actions
        :return: ``(batch, n_bins)``
        """
        next_actions, next_log_prob = self._act(batch.next_observations, noise)
        log_probabilities = self._log_probabilities(self.critic_target, batch.next_observations, next_actions)
        means = self.critic.means(log_probabilities)
        smallest, largest = (
            self.critic.probabilities_of(which, log_probabilities) for which in (means.argmin(dim=0), means.argmax(dim=0))
        )
        mixed = self.convex_coef * smallest + (1 - self.convex_coef) * largest
        if not self.entropy_in_target:
            ent_coef = th.zeros_like(ent_coef)
        return self._backed_up(mixed, batch._replace(rewards=self.return_scale(batch.rewards)), ent_coef, next_log_prob)

    def _target(self, batch: ReplayBufferSamples, ent_coef: th.Tensor, noise: th.Tensor | None = None) -> th.Tensor:
        return (self._target_distribution(batch, ent_coef, noise) * self.critic.bins).sum(dim=1, keepdim=True)

    def _diagnose(self, batch: ReplayBufferSamples) -> dict[str, th.Tensor]:
        body = self.critic.q_network[0]
        assert isinstance(body, UShape)
        saturation = body.saturation(self.critic.network_input(batch.observations, batch.actions))
        return super()._diagnose(batch) | {"input_saturation": saturation}

    def _log_probabilities(self, critic: ContinuousCritic, obs: PyTorchObs, actions: th.Tensor) -> th.Tensor:
        """
        :param critic: Online or target critics
        :param obs: Observations
        :param actions: ``(batch, n_actions)`` in [-1, 1]
        :return: ``(n_critics, batch, n_bins)``
        """
        assert isinstance(critic, CategoricalCritic)
        with self._autocast():
            return critic.log_probabilities(obs, actions)
