"""Replay buffers for what SB3's own cannot hold, holds in the wrong place, or cannot draw."""

import functools
import math
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common import buffers
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

Samples = TypeVar("Samples", ReplayBufferSamples, DictReplayBufferSamples)


def cut_off(buffer: buffers.ReplayBuffer, goes_on: np.ndarray | None = None) -> None:
    """
    Mark where an episode was left, so that nothing joins its last transition to the next one in the buffer.

    :param buffer: A replay buffer
    :param goes_on: For each environment, whether its episode goes on (default: none does)
    """
    if buffer.size() == 0:
        return
    if goes_on is None:
        goes_on = np.zeros(buffer.n_envs, dtype=bool)
    last = buffer.pos - 1
    for env in np.flatnonzero(~goes_on & (buffer.dones[last] == 0)):
        if buffer.optimize_memory_usage:
            # Its next observation is going to be overwritten: SB3 too takes it for the end then.
            buffer.dones[last, env] = True
        elif isinstance(buffer, HerReplayBuffer):
            buffer.dones[last, env] = buffer.timeouts[last, env] = True
            buffer._compute_episode_length(int(env))
        else:
            # Ends n-step returns; one-step transitions are as before.
            buffer.timeouts[last, env] = True


def has_scalar_entries(space: spaces.Space[Any]) -> bool:
    """
    :param space: Any observation space
    :return: Whether it is a Dict with a 0-d Box in it, as dm_control's are (walker's ``height``).
    """
    return isinstance(space, spaces.Dict) and any(
        isinstance(entry, spaces.Box) and entry.shape == () for entry in space.spaces.values()
    )


def _as_vector(space: spaces.Space[Any]) -> spaces.Space[Any]:
    if isinstance(space, spaces.Box) and space.shape == ():
        return spaces.Box(space.low.reshape(1), space.high.reshape(1), dtype=space.dtype.type)
    return space


class ScalarDictReplayBuffer(buffers.DictReplayBuffer):
    """
    SB3's ``DictReplayBuffer`` for Dict spaces with 0-d entries, which it cannot index: each is kept as a vector of one.

    Takes the same arguments. Samples have such an entry as ``(batch, 1)``.
    """

    def __init__(self, buffer_size: int, observation_space: spaces.Dict, *args: Any, **kwargs: Any):
        vectors = spaces.Dict({key: _as_vector(entry) for key, entry in observation_space.spaces.items()})
        super().__init__(buffer_size, vectors, *args, **kwargs)

    def add(  # type: ignore[override]
        self,
        obs: dict[str, np.ndarray],
        next_obs: dict[str, np.ndarray],
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        super().add(self._with_axis(obs), self._with_axis(next_obs), action, reward, done, infos)

    def _with_axis(self, obs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert isinstance(self.obs_shape, dict)
        return {key: np.reshape(value, (self.n_envs, *self.obs_shape[key])) for key, value in obs.items()}


def refuse_n_steps(buffer: object, kwargs: dict[str, Any]) -> None:
    """
    :param buffer: A replay buffer
    :param kwargs: What its constructor was given. SB3 warns that ``n_steps`` must be among it to have an effect.
    :raises ValueError: If it is.
    """
    if "n_steps" in kwargs:
        raise ValueError(f"n_steps={kwargs['n_steps']}: {type(buffer).__name__} has no n-step returns.")


class RecencyWeighted:
    """
    Mixin for a replay buffer: new transitions are drawn more often than old ones.

    The weight of a transition is ``max(min_weight, decay ** age)``. Its age is the number of steps added since, so that of the
    newest is 0. Where several environments step together, their transitions of one step have one age. Drawing takes the same
    time however many transitions there are: the sum of the weights up to any age has a closed form that can be inverted.

    DR.Q (github.com/dmksjfl/DR.Q) has ``decay=0.9999`` and FoG ("forget and grow") ``decay=1 - 1e-5``, both with
    ``min_weight=0.1``.

    :param args: The buffer's own arguments
    :param decay: In (0, 1]. With 1 all are drawn alike.
    :param min_weight: In [0, 1]: the weight that no transition falls below.
    :param kwargs: The buffer's own arguments
    :raises ValueError: If ``decay`` or ``min_weight`` is out of its range, or if the buffer is one of HER.
    """

    # The buffer's
    buffer_size: int
    pos: int
    full: bool
    optimize_memory_usage: bool

    def __init__(self, *args: Any, decay: float = 0.9999, min_weight: float = 0.1, **kwargs: Any):
        if not 0 < decay <= 1:
            raise ValueError(f"decay={decay}: it must lie in (0, 1], e.g. 0.9999.")
        if not 0 <= min_weight <= 1:
            raise ValueError(f"min_weight={min_weight}: it must lie in [0, 1], e.g. 0.1.")
        refuse_n_steps(self, kwargs)
        if isinstance(self, HerReplayBuffer):  # whose goals are relabelled as it draws
            raise ValueError(f"{type(self).__name__}: HerReplayBuffer draws by itself, it cannot be weighted by recency.")
        super().__init__(*args, **kwargs)
        self.decay = decay
        self.min_weight = min_weight

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """
        :param batch_size: Number of transitions to draw, with replacement
        :param env: To normalise them with, if given
        :return: As the buffer's own
        """
        rows = (self.pos - 1 - self._draw_ages(batch_size)) % self.buffer_size
        return self._get_samples(rows, env=env)  # type: ignore[attr-defined]

    def _draw_ages(self, n: int) -> np.ndarray:
        n_rows = self.buffer_size if self.full else self.pos
        if self.full and self.optimize_memory_usage:
            n_rows -= 1  # the newest transition's next observation stands in the oldest row
        n_fading = self._n_fading(n_rows)
        if n_fading == 0:
            return np.random.randint(n_rows, size=n)
        # The weights of the first k ages add up to (1 - decay ** k) / (1 - decay), which can be solved for k.
        seen = 1 - self.decay**n_fading
        fading = np.log1p(-seen * np.random.random_sample(n)) / math.log(self.decay)
        fading = np.minimum(fading.astype(np.int64), n_fading - 1)  # rounding may lead one too far
        flat = np.random.randint(n_fading, max(n_rows, n_fading + 1), size=n)
        weight_of_flat = self.min_weight * (n_rows - n_fading)
        is_flat = np.random.random_sample(n) < weight_of_flat / (weight_of_flat + seen / (1 - self.decay))
        return np.where(is_flat, flat, fading)

    def _n_fading(self, n_rows: int) -> int:
        """Number of ages, from 0, at which the weight is still above ``min_weight``."""
        if self.decay == 1 or self.min_weight == 1:
            return 0
        if self.min_weight == 0:
            return n_rows
        return min(n_rows, math.ceil(math.log(self.min_weight) / math.log(self.decay)))


class RecencyReplayBuffer(RecencyWeighted, buffers.ReplayBuffer):
    """
    :class:`RecencyWeighted` as SB3's ``ReplayBuffer``, for any off-policy algorithm::

        SAC("MlpPolicy", env, replay_buffer_class=RecencyReplayBuffer, replay_buffer_kwargs=dict(decay=0.9999, min_weight=0.1))

    :raises ValueError: If observations are Dicts.
    """

    def __init__(self, buffer_size: int, observation_space: spaces.Space[Any], *args: Any, **kwargs: Any):
        if isinstance(observation_space, spaces.Dict):
            raise ValueError("RecencyReplayBuffer holds no Dict observations: RecencyDictReplayBuffer does.")
        super().__init__(buffer_size, observation_space, *args, **kwargs)


class RecencyDictReplayBuffer(RecencyWeighted, ScalarDictReplayBuffer):
    """:class:`RecencyWeighted` for Dict observations."""


class DeviceReplayBuffer(buffers.ReplayBuffer):
    """
    SB3's ``ReplayBuffer`` with a copy of its transitions on the model's device: for GPUs.

    SB3 gathers each batch on the host and sends it as five arrays. Here each new transition is sent once, and a batch is drawn
    and gathered on the device, in two kernels. It takes 4 bytes of the device's memory for each number of a transition, 224 MB
    for a million of walker's, and the same again on the host, for saving.

    Takes ``ReplayBuffer``'s arguments. What is drawn comes from torch's generator there, not from numpy's. With
    ``VecNormalize``, whose statistics move, batches come from the host, as SB3's do.

    :raises ValueError: If observations are no vectors of floats, such as images (four times as large here as on the host), or
        if memory usage is optimised.
    """

    def __init__(self, buffer_size: int, observation_space: spaces.Space[Any], *args: Any, **kwargs: Any):
        floats = isinstance(observation_space, spaces.Box) and np.issubdtype(observation_space.dtype, np.floating)
        if not (floats and len(observation_space.shape or ()) == 1):
            raise ValueError(f"DeviceReplayBuffer holds observations that are vectors of floats, not {observation_space}.")
        refuse_n_steps(self, kwargs)
        super().__init__(buffer_size, observation_space, *args, **kwargs)
        if self.optimize_memory_usage:
            raise ValueError("optimize_memory_usage=True: DeviceReplayBuffer keeps both observations of a transition.")
        self.rewritten()

    # What is on the device is made anew from the rows.
    derived = ("_on_device", "_n_new")

    def rewritten(self) -> None:
        """
        To be called by whoever has changed transitions where they are: all of them are sent to the device once more, when they
        are needed.
        """
        self._on_device: th.Tensor | None = None
        self._n_new = 0

    def reset(self) -> None:
        """Remove all transitions."""
        super().reset()
        self.rewritten()

    def add(self, *args: Any, **kwargs: Any) -> None:
        """As SB3's."""
        super().add(*args, **kwargs)
        self._n_new = min(self._n_new + 1, self.buffer_size)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """
        :param batch_size: Number of transitions to draw
        :param env: To normalise them with, if given
        :return: On the device, float32
        """
        if env is not None:
            return super().sample(batch_size, env)
        rows = self._sent()
        index = th.randint(self.size() * self.n_envs, (batch_size,), device=self.device)
        n_obs = self.obs_shape[0]
        return ReplayBufferSamples(*th.split(rows[index], [n_obs, self.action_dim, n_obs, 1, 1], dim=1))

    def _sent(self) -> th.Tensor:
        """
        Send what the device has not got yet.

        :return: All transitions there, ``(buffer_size * n_envs, numbers of a transition)``
        """
        if self._on_device is None:
            numbers = 2 * self.obs_shape[0] + self.action_dim + 2
            self._on_device = th.empty(self.buffer_size, self.n_envs, numbers, device=self.device)
            self._n_new = self.size()
        while self._n_new > 0:  # twice where the ring closes
            first = (self.pos - self._n_new) % self.buffer_size
            rows = slice(first, min(first + self._n_new, self.buffer_size))
            self._on_device[rows] = th.from_numpy(self._side_by_side(rows))
            self._n_new -= rows.stop - rows.start
        return self._on_device.flatten(0, 1)

    def _side_by_side(self, rows: slice) -> np.ndarray:
        # Episodes that were cut off have not ended, as in SB3's samples.
        ended = self.dones[rows] * (1 - self.timeouts[rows])
        columns = (self.observations[rows], self.actions[rows], self.next_observations[rows], ended, self.rewards[rows])
        return np.concatenate([column.reshape(*ended.shape, -1) for column in columns], axis=2, dtype=np.float32)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_on_device": None, "_n_new": 0}


class ReplayBufferPair(buffers.ReplayBuffer):
    """
    Two replay buffers that never mix, saved and loaded as one. What the algorithm adds goes to the first of them. Half of a
    batch is from each.

    :param buffer_size: Transitions that each of the two can hold
    :param observation_space: Observation space
    :param action_space: Action space
    :param device: PyTorch device
    :param n_envs: Number of environments that fill the first; the second has one.
    :param optimize_memory_usage: Not supported
    :param kwargs: Passed on to both, e.g. ``handle_timeout_termination``. With ``n_steps`` and ``gamma`` both are SB3's
        ``NStepReplayBuffer``.
    :raises ValueError: If ``optimize_memory_usage`` is set, or ``n_steps`` with Dict observations or without ``gamma``.
    """

    # What the two are called, as attributes and in files.
    names: ClassVar[tuple[str, str]]
    # What to say where a batch is asked for and the second is empty.
    empty: ClassVar[str]

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        **kwargs: Any,
    ):
        # Nothing of its own is stored, so SB3's constructor, which allocates, is not called.
        if optimize_memory_usage:
            raise ValueError("optimize_memory_usage=True: a pair of replay buffers supports False only.")
        self.observation_space = observation_space
        self.action_space = action_space
        # SB3 takes a loaded buffer without this attribute for one of an old version.
        self.handle_timeout_termination = kwargs.get("handle_timeout_termination", True)
        make = functools.partial(
            _buffer_class(observation_space, kwargs), buffer_size, observation_space, action_space, device, **kwargs
        )
        for name, n in zip(self.names, (n_envs, 1), strict=True):
            setattr(self, name, make(n_envs=n))

    def parts(self) -> dict[str, buffers.ReplayBuffer]:
        """:return: The two replay buffers that hold the transitions, by name"""
        return {name: getattr(self, name) for name in self.names}

    # SB3 moves a loaded buffer by setting its device.
    @property
    def device(self) -> th.device:
        return next(iter(self.parts().values())).device

    @device.setter
    def device(self, device: th.device) -> None:
        for part in self.parts().values():
            part.device = device

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Add a transition of each environment to the first."""
        next(iter(self.parts().values())).add(*args, **kwargs)

    def size(self) -> int:
        """:return: Steps that the first holds of each environment"""
        return next(iter(self.parts().values())).size()

    def reset(self) -> None:
        """Empty both."""
        for part in self.parts().values():
            part.reset()

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """
        :param batch_size: Transitions, of both together
        :param env: To normalise observations and rewards with
        :return: Transitions of the first, then ``batch_size // 2`` of the second
        :raises ValueError: If the second is empty.
        """
        return join(*self.sample_both(batch_size, env))

    def sample_both(self, batch_size: int, env: VecNormalize | None = None) -> tuple[ReplayBufferSamples, ReplayBufferSamples]:
        """
        As :meth:`sample`, not joined.

        :param batch_size: Transitions, of both together
        :param env: To normalise observations and rewards with
        :return: Transitions of the first, and ``batch_size // 2`` of the second
        :raises ValueError: If the second is empty.
        """
        first, second = self.parts().values()
        if second.size() == 0:
            raise ValueError(self.empty)
        return first.sample(batch_size - batch_size // 2, env), second.sample(batch_size // 2, env)


class SymmetricReplayBuffer(ReplayBufferPair):
    """
    Half of each batch is what the model has seen itself, half is what others recorded: symmetric sampling as in RLPD (Ball et
    al., 2023, https://arxiv.org/abs/2302.02948). For any off-policy algorithm of SB3::

        model = CIR("MlpPolicy", env, replay_buffer_class=SymmetricReplayBuffer)
        sb3_cir.datasets.fill(model, "episodes/")

    Takes :class:`ReplayBufferPair`'s arguments.
    """

    names = ("online", "offline")
    empty = "There are no recorded transitions: call sb3_cir.datasets.fill(model, source) before learn()."

    online: buffers.ReplayBuffer
    offline: buffers.ReplayBuffer


def _buffer_class(observation_space: spaces.Space[Any], kwargs: dict[str, Any]) -> type[buffers.ReplayBuffer]:
    """SB3's choice of replay buffer, which it does not make when it is given one, and CIR's for 0-d entries."""
    is_dict = isinstance(observation_space, spaces.Dict)
    if "n_steps" in kwargs:
        if is_dict:
            raise ValueError(f"n_steps={kwargs['n_steps']}: n-step returns are not supported with Dict observations.")
        if "gamma" not in kwargs:
            n_steps = kwargs["n_steps"]
            raise ValueError(
                f"n_steps={n_steps}: this replay buffer must be given the model's discount too, for example "
                f"replay_buffer_kwargs=dict(n_steps={n_steps}, gamma=0.99)."
            )
        return buffers.NStepReplayBuffer
    if is_dict:
        return ScalarDictReplayBuffer if has_scalar_entries(observation_space) else buffers.DictReplayBuffer
    return buffers.ReplayBuffer


def join(first: Samples, second: Samples) -> Samples:
    """
    :param first: Transitions
    :param second: More of the same kind
    :return: All of them, in this order
    """

    def cat(a: Any, b: Any) -> Any:
        if a is None:
            return None
        return {key: th.cat([a[key], b[key]]) for key in a} if isinstance(a, dict) else th.cat([a, b])

    return type(first)(*map(cat, first, second))
