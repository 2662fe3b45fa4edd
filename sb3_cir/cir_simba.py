"""CIR for hard tasks: CIR's critics and targets, with SimBa's actor, rates and normalisation, and returns over three steps."""

from typing import Any, ClassVar

from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from stable_baselines3.sac.policies import Actor, SACPolicy

from sb3_cir.baselines.simba import HorizonDefaults, NormalizesObservations, ObservesWhileActing, SimbaActor
from sb3_cir.cir import CIR
from sb3_cir.policies import CIRPolicy, ForImages
from sb3_cir.runs import rows
from sb3_cir.smr import SMR
from sb3_cir.valid import check_activation, check_counts


class CIRSimBaPolicy(NormalizesObservations, CIRPolicy):
    """
    :class:`~sb3_cir.policies.CIRPolicy` with SimBa's actor, on observations that are normalised as SimBa's are. It takes the
    same arguments but for ``actor_network``.

    :param observation_space: Observation space
    :param action_space: Action space
    :param lr_schedule: Learning rate schedule
    :param net_arch: ``dict(pi=[...], qf=[...])``: for the actor the width of each residual block (all equal), for the critic
        that of each down-sampling layer (all equal). One list serves both. Default: SimBa's actor and the paper's critic,
        ``dict(pi=[128], qf=[512, 512])``.
    :param kwargs: What else :class:`~sb3_cir.policies.CIRPolicy` takes
    :raises ValueError: If it is given another actor or activation, or a ``net_arch`` that is none.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Box,
        lr_schedule: Schedule,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        **kwargs: Any,
    ):
        check_activation(type(self), kwargs)
        if kwargs.get("actor_network", "CIR") != "CIR":
            raise ValueError(f"actor_network={kwargs['actor_network']!r}: {type(self).__name__} takes none, it has SimBa's.")
        if net_arch is None:
            net_arch = dict(pi=[128], qf=[512, 512])
        super().__init__(observation_space, action_space, lr_schedule, net_arch, **kwargs)

    def make_actor(self, features_extractor: BaseFeaturesExtractor | None = None) -> Actor:
        return SimbaActor(**self._update_features_extractor(self.actor_kwargs, features_extractor)).to(self.device)


class CIRSimBaCnnPolicy(ForImages, CIRSimBaPolicy):
    """:class:`CIRSimBaPolicy` for images: ``NatureCNN`` in the place of RSNorm."""


class ShortensReturns(SMR):
    """
    Mixin for an algorithm: after ``long_return_updates`` updates its returns are over one step. SB3's n-step replay
    buffers make returns as they are sampled, so that what is stored serves both.
    """

    long_return_updates: int | None

    def train(self, gradient_steps: int, batch_size: int = 256) -> None:
        """
        As :meth:`SMR.train`.

        :param gradient_steps: Number of batches
        :param batch_size: Transitions in a batch
        """
        if self.long_return_updates is not None and self._n_updates >= self.long_return_updates:
            for buffer in rows.parts_of(self).values():
                if isinstance(buffer, NStepReplayBuffer):
                    buffer.n_steps = 1
        super().train(gradient_steps, batch_size)


class CIRSimBa(ShortensReturns, ObservesWhileActing, HorizonDefaults, CIR):
    """
    CIR in SimBa's setting, with n-step returns. The critics, their targets (convex Q-learning) and the reuse of batches are
    :class:`CIR`'s.

    - The actor is SimBa's, and the learning rate, 1e-4. With CIR's own, returns on dog-walk hardly grew beyond
      50,000 steps.
    - The temperature begins at 0.01, towards an entropy of minus half a nat for each action. CIR's own begins at 1, towards
      minus one nat, so that entropy is most of what the critics learn at first where there are many actions.
    - Observations are normalised by running statistics (RSNorm), which are saved with the policy.
    - Targets have the rewards of three steps. The actor runs ahead of the critics, which overrate its next action. Each target
      adds this error once more: with three-step returns once in three steps, not once in each. After 50,000 updates they are
      over one step: the actions of older policies are in longer ones, uncorrected, and with them
      returns came to a halt on walker-walk.

    This is no method of the paper. What is known of it stands under "Hard tasks" in ``benchmarks/README.md``.

    Arguments not named here are CIR's, by keyword.

    :param policy: "MlpPolicy", "CnnPolicy", "MultiInputPolicy" or a policy class
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_rate: For actor, critics and temperature
    :param n_steps: Steps of a return. "auto": 3, and 1 where SB3 has no n-step returns, which is with Dict observations,
        with ``optimize_memory_usage`` and with a ``replay_buffer_class`` of your own.
    :param long_return_updates: Updates with returns over ``n_steps``; later ones have returns over one. None for all.
    :param ent_coef: Temperature, learned from 0.01 on
    :param kwargs: What else CIR takes. ``target_entropy="auto"``, the default, is minus HALF the number of actions, and
        ``gamma="auto"`` is SimBa's discount, from the environment's time limit.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": CIRSimBaPolicy,
        "CnnPolicy": CIRSimBaCnnPolicy,
        "MultiInputPolicy": CIRSimBaPolicy,
    }

    def __init__(
        self,
        policy: str | type[SACPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 1e-4,
        *,
        n_steps: int | str = "auto",
        long_return_updates: int | None = 50_000,
        ent_coef: str | float = "auto_0.01",
        **kwargs: Any,
    ):
        if long_return_updates is not None:
            check_counts(long_return_updates=(long_return_updates, 0))
        self.long_return_updates = long_return_updates
        super().__init__(policy, env, learning_rate, n_steps=n_steps, ent_coef=ent_coef, **kwargs)  # type: ignore[arg-type]

    def _setup_model(self) -> None:
        if isinstance(self.n_steps, str):
            if self.n_steps != "auto":
                raise ValueError(f"n_steps={self.n_steps!r}: it must be a number of at least 1 or 'auto'.")
            vectors = not isinstance(self.observation_space, spaces.Dict)
            possible = vectors and self.replay_buffer_class is None and not self.optimize_memory_usage
            self.n_steps = 3 if possible else 1
        super()._setup_model()
