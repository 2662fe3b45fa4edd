"""SAC that learns from a source and a target domain, and what DARC and PAR share."""

import functools
from types import SimpleNamespace

from gymnasium import spaces
from stable_baselines3 import SAC
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize


from sb3_cir.runs.algorithm import Resumable
from sb3_cir.off_dynamics import TwoDomainReplayBuffer


class TwoDomainSAC(Resumable, SAC):
    """
    SAC with half of every batch from the source and half from the target: ODRL's SAC baseline.

    Takes SAC's arguments; its replay buffer is a :class:`TwoDomainReplayBuffer`, filled by an ``OffDynamicsCallback``.

    :raises ValueError: If it is given another kind of replay buffer.
    """

    def _setup_model(self) -> None:
        if self.replay_buffer_class is None:
            self.replay_buffer_class = TwoDomainReplayBuffer
        elif not issubclass(self.replay_buffer_class, TwoDomainReplayBuffer):
            raise ValueError(f"replay_buffer_class={self.replay_buffer_class.__name__}: it must be a TwoDomainReplayBuffer.")
        super()._setup_model()

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """
        SAC's update on the batches of :meth:`sample_batch`.

        :param gradient_steps: Number of updates
        :param batch_size: Transitions in a batch, of both domains together
        """
        pair = self.replay_buffer
        assert isinstance(pair, TwoDomainReplayBuffer)
        # One batch for each gradient step is all that SAC's train() asks its replay buffer for.
        self.replay_buffer = SimpleNamespace(sample=functools.partial(self.sample_batch, pair))  # type: ignore[assignment]
        try:
            super().train(gradient_steps, batch_size)
        finally:
            self.replay_buffer = pair

    def sample_batch(
        self, pair: TwoDomainReplayBuffer, batch_size: int, env: VecNormalize | None = None
    ) -> ReplayBufferSamples:
        """
        :param pair: The replay buffers
        :param batch_size: Transitions in the batch
        :param env: ``VecNormalize`` to normalise with, if there is one
        :return: What SAC learns from in one gradient step
        """
        return pair.sample(batch_size, env)


def require_single_transitions(model: SAC) -> None:
    """
    Refuse what a network on (s, a, s') cannot take.

    :param model: DARC or PAR
    :raises ValueError: If observations are no vectors, or if transitions span several steps.
    """
    name = type(model).__name__
    if not isinstance(model.observation_space, spaces.Box) or len(model.observation_space.shape) != 1:
        raise ValueError(f"observation_space={model.observation_space}: {name} takes vectors only.")
    n_steps = model.replay_buffer_kwargs.get("n_steps", model.n_steps)
    if n_steps != 1:
        raise ValueError(f"n_steps={n_steps}: {name} compares the domains step by step, only n_steps=1 is supported.")
