"""
SAC that learns from a source and a target domain, and what DARC and PAR share.

The three have ODRL's settings and run on SB3's SAC. What ODRL's code (https://github.com/OffDynamicsRL/off-dynamics-rl) does
otherwise:

- Its log-probability of an action is exact. SB3's has 1e-6 under the logarithm, and so a floor for saturated actions.
- Its critic loss is the sum of both critics' errors, SB3's is half of that. Adam is nearly, not exactly, free of scale.
- An update is critics, then target networks, then actor. SB3's is critics, actor, target networks. The actor's loss has no
  target network in it, so that only the order of random numbers differs.
- Until it learns it acts by the untrained policy. SB3 acts uniformly at random.
- Its first step in the target is beside the first in the source, ours is beside the tenth. There are as many.
- DARC's classifiers have two outputs each, for the source and for the target; ours have the difference of the two. Its loss
  takes the softmax twice, see ``DARC(odrl_softmax=True)``.

What differs in the environments is in :mod:`sb3_cir.envs.odrl`.
"""

from stable_baselines3 import SAC
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sb3_cir.off_dynamics import TwoDomainReplayBuffer
from sb3_cir.runs.algorithm import Resumable
from sb3_cir.update import fast_products
from sb3_cir.valid import check_vectors


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

    @fast_products()
    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """
        SAC's update on the batches of :meth:`sample_batch`.

        :param gradient_steps: Number of updates
        :param batch_size: Transitions in a batch, of both domains together
        """
        assert isinstance(self.replay_buffer, TwoDomainReplayBuffer)
        self.replay_buffer.make_batch = self.sample_batch  # here, since a replay buffer may have been loaded meanwhile
        super().train(gradient_steps, batch_size)

    def sample_batch(
        self, pair: TwoDomainReplayBuffer, batch_size: int, env: VecNormalize | None = None
    ) -> ReplayBufferSamples:
        """
        :param pair: The replay buffers
        :param batch_size: Transitions in the batch
        :param env: ``VecNormalize`` to normalise with, if there is one
        :return: What SAC learns from in one gradient step
        """
        return pair.sample_plain(batch_size, env)


def require_single_transitions(model: SAC) -> None:
    """
    Refuse what a network on (s, a, s') cannot take.

    :param model: DARC or PAR
    :raises ValueError: If observations are no vectors, or if transitions span several steps.
    """
    name = type(model).__name__
    check_vectors(model)
    n_steps = model.replay_buffer_kwargs.get("n_steps", model.n_steps)
    if n_steps != 1:
        raise ValueError(f"n_steps={n_steps}: {name} compares the domains step by step, only n_steps=1 is supported.")
