"""DARC: what it adds to SAC on two domains."""

from typing import Any, ClassVar

import torch as th
from stable_baselines3.common.preprocessing import get_action_dim, get_flattened_obs_dim
from stable_baselines3.common.torch_layers import create_mlp
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn
from torch.nn import functional as F

from sb3_cir.baselines.two_domain_sac import TwoDomainSAC, require_single_transitions
from sb3_cir.off_dynamics import TwoDomainReplayBuffer
from sb3_cir.update import minimise
from sb3_cir.valid import check_counts, check_least


class DomainClassifiers(nn.Module):
    """
    Which domain a transition is from: one classifier sees (s, a, s'), the other (s, a).

    :param obs_dim: Size of the observation
    :param action_dim: Size of the action
    :param net_arch: Hidden layers of each, with ReLU
    """

    def __init__(self, obs_dim: int, action_dim: int, net_arch: list[int]):
        super().__init__()
        self.sas = nn.Sequential(*create_mlp(2 * obs_dim + action_dim, 1, net_arch))
        self.sa = nn.Sequential(*create_mlp(obs_dim + action_dim, 1, net_arch))

    def forward(self, batch: ReplayBufferSamples, noise: float = 0.0) -> tuple[th.Tensor, th.Tensor]:
        """
        :param batch: Transitions
        :param noise: Standard deviation of the Gaussian noise on the inputs of each classifier
        :return: Log-odds of the target domain by (s, a, s') and by (s, a), each ``(batch, 1)``
        """
        assert isinstance(batch.observations, th.Tensor)
        sa = th.cat([batch.observations, batch.actions], dim=1).float()
        sas = th.cat([sa, batch.next_observations.float()], dim=1)
        by_sas, by_sa = (
            classifier(inputs + noise * th.randn_like(inputs) if noise else inputs)
            for classifier, inputs in ((self.sas, sas), (self.sa, sa))
        )
        return by_sas, by_sa

    def log_ratio(self, batch: ReplayBufferSamples, epsilon: float = 0.0) -> th.Tensor:
        """
        By Bayes' rule the difference of the two log-odds is the log-ratio of the dynamics.

        :param batch: Transitions
        :param epsilon: Added to each probability before its logarithm is taken
        :return: Estimate of ``log p_target(s' | s, a) - log p_source(s' | s, a)``, ``(batch, 1)``
        """
        by_sas, by_sa = self(batch)
        if epsilon:
            by_sas, by_sa = (
                th.log(th.sigmoid(odds) + epsilon) - th.log(th.sigmoid(-odds) + epsilon) for odds in (by_sas, by_sa)
            )
        difference: th.Tensor = by_sas - by_sa
        return difference


class DARC(TwoDomainSAC):
    """
    Domain Adaptation with Rewards from Classifiers (https://arxiv.org/abs/2006.13916), as ODRL runs it.

    SAC on source transitions alone, with a reward for those that would be as likely in the target domain.

    ODRL's code takes a softmax twice in the classifiers' loss. A classifier that minimises such a loss has a log-odds of
    2 artanh(x) where the true one is x, and one without bound where x is beyond 1: what DARC adds to the reward is no
    log-ratio then. Here the loss is DARC's own by default. Figures that were made with ODRL need ``odrl_softmax=True``.

    :param args: SAC's arguments
    :param correction_coef: Weight of the log-ratio in the reward
    :param correction_starts: Steps in the source before classifiers learn and rewards change
    :param classifier_freq: Gradient steps for one of the classifiers, on half a batch from each domain
    :param classifier_noise: Standard deviation of the Gaussian noise on the classifiers' inputs while they learn. The
        log-ratio they learn is that of the noisy transitions.
    :param classifier_arch: Hidden layers of each classifier; default ``[256, 256]``
    :param odrl_softmax: Whether the classifiers learn as in ODRL's code, by a softmax taken twice, and have probabilities to
        which 1e-10 is added before the logarithm, so that no log-odds is beyond 23.03
    :param kwargs: SAC's arguments
    :raises ValueError: If observations are no vectors, or with n-step returns. From ``learn()``: if there is no transition of
        the target domain.
    """

    counters: ClassVar[tuple[str, ...]] = (*TwoDomainSAC.counters, "n_batches")

    def __init__(
        self,
        *args: Any,
        correction_coef: float = 1.0,
        correction_starts: int = 100_000,
        classifier_freq: int = 10,
        classifier_noise: float = 1.0,
        classifier_arch: list[int] | None = None,
        odrl_softmax: bool = False,
        **kwargs: Any,
    ):
        check_least(correction_coef=(correction_coef, 0), classifier_noise=(classifier_noise, 0))
        check_counts(correction_starts=(correction_starts, 0), classifier_freq=(classifier_freq, 1))
        self.correction_coef = correction_coef
        self.correction_starts = correction_starts
        self.classifier_freq = classifier_freq
        self.classifier_noise = classifier_noise
        self.classifier_arch = [256, 256] if classifier_arch is None else classifier_arch
        self.odrl_softmax = odrl_softmax
        self.n_batches = 0
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        super()._setup_model()
        for width in self.classifier_arch:
            check_counts(classifier_arch=(width, 1))
        require_single_transitions(self)
        obs_dim, action_dim = get_flattened_obs_dim(self.observation_space), get_action_dim(self.action_space)
        self.classifiers = DomainClassifiers(obs_dim, action_dim, self.classifier_arch).to(self.device)
        self.classifier_optimizer = th.optim.Adam(self.classifiers.parameters(), lr=self.lr_schedule(1))

    def sample_batch(
        self, pair: TwoDomainReplayBuffer, batch_size: int, env: VecNormalize | None = None
    ) -> ReplayBufferSamples:
        self.n_batches += 1
        if pair.target.size() == 0:
            pair.sample_both(batch_size, env)  # raises, where classifiers would only once they learn
        batch = pair.source.sample(batch_size, env)
        if self.num_timesteps <= self.correction_starts:
            return batch
        if self.n_batches % self.classifier_freq == 0:
            self.train_classifiers(*pair.sample_both(batch_size, env))
        with th.no_grad():
            ratio = self.classifiers.log_ratio(batch, epsilon=1e-10 if self.odrl_softmax else 0.0)
            correction = self.correction_coef * ratio
        self.logger.record("train/reward_correction", correction.mean().item())
        return batch._replace(rewards=batch.rewards + correction)

    def train_classifiers(self, source: ReplayBufferSamples, target: ReplayBufferSamples) -> None:
        """
        One step of both classifiers.

        :param source: Transitions of the source domain
        :param target: As many of the target domain
        """
        self._update_learning_rate(self.classifier_optimizer)
        loss = th.zeros((), device=self.device)
        for batch, label in ((source, 0.0), (target, 1.0)):
            for log_odds in self.classifiers(batch, self.classifier_noise):
                if self.odrl_softmax:
                    # The probabilities in place of logits: p - (1 - p) is their difference, as log_odds is that of logits.
                    log_odds = th.tanh(log_odds / 2)
                loss = loss + F.binary_cross_entropy_with_logits(log_odds, th.full_like(log_odds, label)) / 2
        minimise(loss, self.classifier_optimizer)
        self.logger.record("train/classifier_loss", loss.item())

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "classifiers", "classifier_optimizer"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts, variables = super()._get_torch_save_params()
        return [*state_dicts, "classifiers", "classifier_optimizer"], variables
