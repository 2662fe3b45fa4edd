"""
What :mod:`benchmarks.screen` trains: *arms*, which are CIR or SimBa with some parts exchanged.

A new arm is one entry of :data:`ARMS`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch as th
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.sac.policies import Actor

from sb3_cir import CIR
from sb3_cir.ablations import CRITICS
from sb3_cir.baselines.categorical import CategoricalCritic, ScalesRewards, cross_entropy
from sb3_cir.baselines.simba import ObservesWhileActing, RSNorm, SimBa, SimbaActor, SimbaCritic, SimbaPolicy, SimBaSMR
from sb3_cir.buffers import RecencyReplayBuffer
from sb3_cir.cir_simba import ShortensReturns
from sb3_cir.networks import StackedLinear, UShape
from sb3_cir.policies import CIRActor, CIRCritic
from sb3_cir.smr import SMR


class PartsPolicy(SimbaPolicy):
    """
    CIR's and SimBa's parts in any combination.

    :param actor_body: "cir" (an MLP) or "simba"
    :param critic_body: "simba" or a label of ``ablations.CRITICS``
    :param rs_norm: Whether observations are normalised by SimBa's running statistics
    :param weight_decay: Decoupled, on actor and critic
    :param avg_r_norm_coef: c of CIR's critic
    :param categorical: Whether CIR's critic gives distributions, over as many values as SimbaV2's and FlashSAC's
    """

    def __init__(
        self,
        *args: Any,
        actor_body: str,
        critic_body: str,
        rs_norm: bool,
        weight_decay: float,
        avg_r_norm_coef: float = 0.1,
        categorical: bool = False,
        **kwargs: Any,
    ):
        self.actor_body, self.critic_body, self.avg_r_norm_coef = actor_body, critic_body, avg_r_norm_coef
        self.categorical = categorical
        super().__init__(
            *args,
            features_extractor_class=RSNorm if rs_norm else FlattenExtractor,
            optimizer_class=th.optim.AdamW,
            optimizer_kwargs=dict(weight_decay=weight_decay, fused=True),
            **kwargs,
        )

    def make_actor(self, features_extractor: BaseFeaturesExtractor | None = None) -> Actor:
        kwargs = self._update_features_extractor(self.actor_kwargs, features_extractor)
        return {"cir": CIRActor, "simba": SimbaActor}[self.actor_body](**kwargs).to(self.device)

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> ContinuousCritic:
        kwargs = self._update_features_extractor(self.critic_kwargs, features_extractor)
        if self.critic_body == "simba":
            return SimbaCritic(**kwargs).to(self.device)
        if self.categorical:
            return CategoricalCritic(**kwargs, encoder=self._body, head=StackedLinear, n_bins=101, largest_value=5.0).to(
                self.device
            )
        return CIRCritic(**kwargs, avg_r_norm_coef=self.avg_r_norm_coef, network=CRITICS[self.critic_body]).to(self.device)

    def _body(self, n_stack: int, in_features: int, widths: Sequence[int], _: str) -> UShape:
        return UShape(n_stack, in_features, widths, self.avg_r_norm_coef)


class PartsCIR(ShortensReturns, ObservesWhileActing, CIR):
    """
    CIR on :class:`PartsPolicy`.

    :param long_return_updates: As of ``CIRSimBa``
    """

    def __init__(self, *args: Any, long_return_updates: int | None = None, **kwargs: Any):
        self.long_return_updates = long_return_updates
        super().__init__(*args, **kwargs)


class PartsCategoricalCIR(ScalesRewards, PartsCIR):
    """CIR whose critics give distributions: convex Q-learning mixes those with the smallest and with the largest mean."""

    def _critic_loss(
        self, batch: ReplayBufferSamples, ent_coef: th.Tensor, noise: th.Tensor | None
    ) -> tuple[th.Tensor, th.Tensor]:
        target = self._target_distribution(batch, ent_coef, noise)
        log_probabilities = self.critic.log_probabilities(batch.observations, batch.actions)
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
        log_probabilities = self.critic_target.log_probabilities(batch.next_observations, next_actions)
        means = self.critic.means(log_probabilities)
        smallest, largest = (
            self.critic.probabilities_of(which, log_probabilities) for which in (means.argmin(dim=0), means.argmax(dim=0))
        )
        mixed = self.convex_coef * smallest + (1 - self.convex_coef) * largest
        return self._backed_up(mixed, batch._replace(rewards=self.return_scale(batch.rewards)), ent_coef, next_log_prob)

    def _target(self, batch: ReplayBufferSamples, ent_coef: th.Tensor, noise: th.Tensor | None = None) -> th.Tensor:
        return (self._target_distribution(batch, ent_coef, noise) * self.critic.bins).sum(dim=1, keepdim=True)


# Steps of the agent that the replay buffer has room for: those of the paper's hard tasks. What is not filled takes no memory.
LONGEST = 500_000


@dataclass(frozen=True)
class Arm:
    """
    A method with some of its parts exchanged.

    :param algorithm: Its update
    :param parts: For :class:`PartsPolicy`, beside the algorithm's own
    :param arguments: For the algorithm
    :param entropy_per_action: Target of the temperature, in nats; None for the algorithm's own
    """

    algorithm: type[SMR]
    parts: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    entropy_per_action: float | None = None

    def build(self, env: DummyVecEnv, seed: int, width: int, precision: str = "float32") -> SMR:
        """
        :param env: The environment
        :param seed: Of the run
        :param width: Of the critic, and of CIR's actor; SimBa's actor has its own 128
        :param precision: Of the critics' matrix products, see :class:`~sb3_cir.CIR`
        :return: The model
        :raises ValueError: If its critics would not have the precision.
        """
        if precision != "float32" and self.parts.get("categorical"):
            raise ValueError(f"precision={precision!r}: categorical critics are trained in float32 alone.")
        from_simba = issubclass(self.algorithm, SimBa)
        body = "simba" if from_simba else "cir"
        own = dict(actor_body=body, critic_body="simba" if from_simba else "CIR", rs_norm=from_simba)
        parts: dict[str, Any] = own | dict(weight_decay=0.01 if from_simba else 0.0) | self.parts
        parts["net_arch"] = dict(pi=[128] if parts["actor_body"] == "simba" else [width] * 2, qf=[width] * 2)
        # The same number of updates for all: SimBa's own warm-up is twice as long.
        arguments: dict[str, Any] = dict(learning_starts=2500, buffer_size=LONGEST, precision=precision)
        if from_simba:
            arguments["episodic"] = False  # no task of the screen ends by itself
        if self.entropy_per_action is not None:
            arguments["target_entropy"] = self.entropy_per_action * get_action_dim(env.action_space)
        return self.algorithm(
            PartsPolicy,
            env,
            policy_kwargs=parts,
            seed=seed,
            device="cpu",
            **arguments | self.arguments,
        )


# SimBa's: from 0.01 on, towards half the entropy that CIR asks for
_TEMPERATURE: dict[str, Any] = dict(ent_coef="auto_0.01")
_ENTROPY = -0.5


def _base(
    parts: dict[str, Any] | None = None, algorithm: type[SMR] = PartsCIR, entropy: float = _ENTROPY, **arguments: Any
) -> Arm:
    """CIR with SimBa's temperature and normalisation, and more."""
    return Arm(algorithm, dict(rs_norm=True) | (parts or {}), _TEMPERATURE | arguments, entropy)


def _with_simba_actor(**arguments: Any) -> Arm:
    """The same with SimBa's actor and returns over three steps."""
    return _base(dict(actor_body="simba"), **dict(learning_rate=1e-4, n_steps=3) | arguments)


def _categorical(**parts: Any) -> Arm:
    return _base(dict(categorical=True) | parts, PartsCategoricalCIR)


ARMS: dict[str, Arm] = {
    "cir": Arm(PartsCIR),
    "cir+temp": Arm(PartsCIR, {}, _TEMPERATURE, _ENTROPY),
    "cir+temp+rsnorm": _base(),
    "cir+temp+rsnorm+lr1e-4": _base(learning_rate=1e-4),
    "cir+temp+rsnorm+lr1e-4+simba_actor": _with_simba_actor(n_steps=1),
    "cir+temp+rsnorm+lr1e-4+simba_critic": _base(dict(critic_body="simba"), learning_rate=1e-4),
    "cir+temp+rsnorm+lr1e-4+wd": _base(dict(weight_decay=0.01), learning_rate=1e-4),
    "cir+temp+rsnorm+n3": _base(n_steps=3),
    "cir+temp+rsnorm+n5": _base(n_steps=5),
    "cir+temp+rsnorm+lr1e-4+simba_actor+n3": _with_simba_actor(),
    "cir+temp+rsnorm+lr1e-4+simba_actor+n3to1": _with_simba_actor(long_return_updates=50_000),
    "cir+temp+rsnorm+lr1e-4+simba_actor+n3+entropy1": _with_simba_actor(entropy=-1.0),
    "cir+temp+rsnorm+lr3e-4+simba_actor+n3": _with_simba_actor(learning_rate=3e-4),
    "cir+temp+rsnorm+lr1e-4+n3": _base(learning_rate=1e-4, n_steps=3),
    "cir+temp+rsnorm+wd": _base(dict(weight_decay=0.01)),
    "cir+temp+rsnorm+simba_critic": _base(dict(critic_body="simba")),
    "cir+temp+rsnorm+simba_actor": _base(dict(actor_body="simba")),
    "cir+temp+rsnorm+fresh": _base(gradient_steps=2, sample_reuse=1),
    "cir+temp+rsnorm+m1": _base(sample_reuse=1),
    "cir+temp+rsnorm+lambda1": _base(convex_coef=1.0),
    "cir+temp+rsnorm+lnperplace": _base(dict(critic_body="LNPerPlace")),
    "cir+temp+rsnorm+1critic": _base(dict(n_critics=1)),
    "cir+temp+rsnorm+c1": _base(dict(avg_r_norm_coef=1.0)),
    "cir+temp+rsnorm+batch128": _base(batch_size=128),
    "cir+temp+rsnorm+recency": _base(replay_buffer_class=RecencyReplayBuffer),
    "cir+temp+rsnorm+categorical": _categorical(),
    "cir+temp+rsnorm+categorical+1critic": _categorical(n_critics=1),
    "simba": Arm(SimBa),
    "simba+lr3e-4": Arm(SimBa, {}, dict(learning_rate=3e-4)),
    "simba+wd0": Arm(SimBa, dict(weight_decay=0.0)),
    "simba+cir_critic": Arm(SimBa, dict(critic_body="CIR")),
    "simba+cir_actor": Arm(SimBa, dict(actor_body="cir")),
    "simba+m2": Arm(SimBaSMR),
    "simba+2critics": Arm(SimBa, dict(n_critics=2)),
    "simba+cir_temp": Arm(SimBa, {}, dict(ent_coef="auto"), -1.0),
    "simba+nonorm": Arm(SimBa, dict(rs_norm=False)),
}
