"""PAR: what it adds to SAC on two domains."""

import copy
from typing import Any, ClassVar

import torch as th
from stable_baselines3.common.preprocessing import get_action_dim, get_flattened_obs_dim
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.utils import polyak_update
from stable_baselines3.common.vec_env import VecNormalize

from sb3_cir.baselines.sale import DynamicsEncoder
from sb3_cir.baselines.two_domain_sac import TwoDomainSAC, require_single_transitions
from sb3_cir.buffers import join
from sb3_cir.off_dynamics import TwoDomainReplayBuffer
from sb3_cir.update import minimise
from sb3_cir.valid import check_counts, check_least


class PAR(TwoDomainSAC):
    """
    Policy Adaptation by Representation mismatch (https://arxiv.org/abs/2405.15369), as ODRL runs it.

    SAC on both domains, with a penalty on the reward of source transitions: the error of a model of the target's dynamics,
    learnt from target transitions alone, in the space of a representation.

    :param args: SAC's arguments
    :param penalty_coef: The paper's β: weight of the error in the reward
    :param encoder_freq: Gradient steps for one of the encoder, on half as many transitions as the target has in a batch
    :param encoder_width: Size of the encoder's layers and of the representation
    :param kwargs: SAC's arguments; ``tau`` is the encoder's too, whose averaged copy gives the penalty.
    :raises ValueError: If observations are no vectors, or with n-step returns.
    """

    counters: ClassVar[tuple[str, ...]] = (*TwoDomainSAC.counters, "n_batches")

    def __init__(
        self, *args: Any, penalty_coef: float = 0.1, encoder_freq: int = 200, encoder_width: int = 256, **kwargs: Any
    ):
        check_least(penalty_coef=(penalty_coef, 0))
        check_counts(encoder_freq=(encoder_freq, 1), encoder_width=(encoder_width, 1))
        self.penalty_coef = penalty_coef
        self.encoder_freq = encoder_freq
        self.encoder_width = encoder_width
        self.n_batches = 0
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        super()._setup_model()
        require_single_transitions(self)
        obs_dim, action_dim = get_flattened_obs_dim(self.observation_space), get_action_dim(self.action_space)
        self.encoder = DynamicsEncoder(obs_dim, action_dim, self.encoder_width).to(self.device)
        self.encoder_target = copy.deepcopy(self.encoder).requires_grad_(False)
        self.encoder_optimizer = th.optim.Adam(self.encoder.parameters(), lr=self.lr_schedule(1))

    def sample_batch(
        self, pair: TwoDomainReplayBuffer, batch_size: int, env: VecNormalize | None = None
    ) -> ReplayBufferSamples:
        self.n_batches += 1
        source, target = pair.sample_both(batch_size, env)
        if self.n_batches % self.encoder_freq == 0:
            self.train_encoder(pair.target.sample(max(batch_size // 4, 1), env))
        penalty = self.penalty_coef * self.encoder_target.error(source)
        polyak_update(self.encoder.parameters(), self.encoder_target.parameters(), self.tau)
        self.logger.record("train/reward_penalty", penalty.mean().item())
        return join(source._replace(rewards=source.rewards - penalty), target)

    def train_encoder(self, target: ReplayBufferSamples) -> None:
        """
        One step of the encoder.

        :param target: Transitions of the target domain
        """
        self._update_learning_rate(self.encoder_optimizer)
        loss = self.encoder.error(target).mean()
        minimise(loss, self.encoder_optimizer)
        self.logger.record("train/encoder_loss", loss.item())

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "encoder", "encoder_target", "encoder_optimizer"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts, variables = super()._get_torch_save_params()
        return [*state_dicts, "encoder", "encoder_target", "encoder_optimizer"], variables
