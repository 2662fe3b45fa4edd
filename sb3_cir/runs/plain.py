"""
What JSON can say of a model: its arguments and spaces, and the schemas of what lies in files beside the arrays.

What is read can make plain values, spaces, SB3's schedules and action noise, and name a class of network, policy, optimiser or
replay buffer of PyTorch, Stable-Baselines3 or this package. Nothing else: a file must not choose what code is run.
"""

import importlib
import math
import sys
from collections import OrderedDict
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise, VectorizedActionNoise
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule

from sb3_cir.runs.files import ROWS, DamagedError
from sb3_cir.words import short

# Classes of these kinds and places may be named in a file. None of them does anything when it is made.
KINDS = (th.nn.Module, th.optim.Optimizer, ReplayBuffer)
PLACES = ("sb3_cir.", "stable_baselines3.", "sb3_contrib.", "torch.nn.modules.", "torch.optim.")

# Kinds of numbers that an array or a space may be of.
DTYPES = frozenset(
    ("bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
)
LARGEST_SPACE = 2**24  # numbers in an observation; a file has to be as large to name a space of more than it has bytes

# Objects that are what their constructor was given: its arguments, and the attributes that keep them.
OBJECTS: dict[type, dict[str, str]] = {
    ConstantSchedule: dict(val="val"),
    LinearSchedule: dict(start="start", end="end", end_fraction="end_fraction"),
    FloatSchedule: dict(value_schedule="value_schedule"),
    NormalActionNoise: dict(mean="_mu", sigma="_sigma", dtype="_dtype"),
    OrnsteinUhlenbeckActionNoise: dict(
        mean="_mu", sigma="_sigma", theta="_theta", dt="_dt", initial_noise="initial_noise", dtype="_dtype"
    ),
}


def to_plain(value: Any) -> Any:
    """
    :param value: Numbers, strings, arrays, spaces, ``train_freq``, one of :data:`OBJECTS`, a class that may be named, and
        lists, tuples and dicts of them
    :return: What JSON can hold, for :func:`from_plain`
    :raises TypeError: If it is anything else.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value) is list:
        return [to_plain(entry) for entry in value]
    if isinstance(value, dict) and all(isinstance(key, str) and not key.startswith(":") for key in value):
        return {key: to_plain(entry) for key, entry in value.items()}
    if isinstance(value, TrainFreq):
        return {":train_freq:": [value.frequency, value.unit.value]}
    if type(value) is tuple:
        return {":tuple:": [to_plain(entry) for entry in value]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {":array:": value.tolist(), "dtype": value.dtype.name}
    if isinstance(value, spaces.Space):
        return {":space:": _space_to_plain(value)}
    if isinstance(value, VectorizedActionNoise):
        return to_plain(value.base_noise)
    if type(value) in OBJECTS:
        arguments = {name: to_plain(getattr(value, attribute)) for name, attribute in OBJECTS[type(value)].items()}
        return {":object:": type(value).__name__, "arguments": arguments}
    if isinstance(value, type) and issubclass(value, np.generic):
        return np.dtype(value).name
    if isinstance(value, type) and _named(name := f"{value.__module__}.{value.__qualname__}") is value:
        return {":class:": name}
    raise TypeError(f"{value!r} cannot be said in JSON")


def from_plain(plain: Any, largest: int = LARGEST_SPACE) -> Any:
    """
    The inverse of :func:`to_plain`. Whatever it is given, it makes nothing else than this takes.

    :param plain: What JSON had
    :param largest: How many numbers an element of a space may have. A space of one bound for all needs few bytes in a file
        and many in memory.
    :return: The value
    :raises ValueError: If it is nothing that :func:`to_plain` gives.
    """
    try:
        return _from_plain(plain, largest)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError, TypeError) as error:
        raise ValueError(f"{short(plain)} has no meaning here ({type(error).__name__}: {short(str(error))})") from error


def _from_plain(plain: Any, largest: int) -> Any:
    if isinstance(plain, list):
        return [_from_plain(entry, largest) for entry in plain]
    if not isinstance(plain, dict):
        return plain
    if ":train_freq:" in plain:
        frequency, unit = plain[":train_freq:"]
        if not 1 <= int(frequency) < 2**53:
            raise ValueError(f"a train_freq of {short(frequency)}, at least 1 is allowed")
        return TrainFreq(int(frequency), TrainFrequencyUnit(unit))
    if ":tuple:" in plain:
        return tuple(_from_plain(entry, largest) for entry in plain[":tuple:"])
    if ":array:" in plain:
        return np.array(plain[":array:"], dtype=_dtype(plain["dtype"]))
    if ":space:" in plain:
        return _space_from_plain(plain[":space:"], largest)
    if ":object:" in plain:
        return _object_from_plain(plain[":object:"], plain["arguments"], largest)
    if ":class:" in plain:
        found = _named(plain[":class:"])
        if found is None:
            raise ValueError(f"there is no class {short(plain[':class:'])} that a file may name")
        return found
    return {key: _from_plain(entry, largest) for key, entry in plain.items()}


def _object_from_plain(name: str, arguments: dict[str, Any], largest: int) -> Any:
    kind = {kind.__name__: kind for kind in OBJECTS}[name]
    if not set(arguments) <= set(OBJECTS[kind]):
        raise ValueError(f"{name} has no such arguments: {short(sorted(arguments))}")
    made = kind(**{key: _from_plain(entry, largest) for key, entry in arguments.items()})
    if kind in (ConstantSchedule, LinearSchedule, FloatSchedule) and not math.isfinite(made(1.0)):
        raise ValueError(f"{name} gives {made(1.0)}")
    return made


def _dtype(name: Any) -> np.dtype[Any]:
    if name not in DTYPES:
        raise ValueError(f"there is no kind of number {short(name)}")
    found: np.dtype[Any] = np.dtype(name)
    return found


def _named(name: str) -> type | None:
    """
    :param name: Module and name of a class
    :return: The class, if it is of :data:`KINDS` and :data:`PLACES`
    """
    module, _, attribute = name.rpartition(".")
    if not f"{module}.".startswith(PLACES):
        return None
    if module not in sys.modules:
        try:
            importlib.import_module(module)
        except ImportError:
            return None
    found = getattr(sys.modules[module], attribute, None)
    return found if isinstance(found, type) and issubclass(found, KINDS) else None


def _space_to_plain(space: spaces.Space[Any]) -> list[Any]:
    """:return: The kind of space and its arguments, of a subclass those of Gymnasium's"""
    if isinstance(space, spaces.Box):
        bounds = [
            bound.flat[0].item() if (bound == bound.flat[0]).all() else bound.tolist() for bound in (space.low, space.high)
        ]
        return ["Box", *bounds, list(space.shape), space.dtype.name]
    if isinstance(space, spaces.Dict):
        return ["Dict", [[key, _space_to_plain(entry)] for key, entry in space.spaces.items()]]
    if isinstance(space, spaces.Discrete):
        return ["Discrete", int(space.n), int(space.start)]
    if isinstance(space, spaces.MultiDiscrete):
        return ["MultiDiscrete", space.nvec.tolist()]
    if isinstance(space, spaces.MultiBinary):
        return ["MultiBinary", space.n if isinstance(space.n, int) else list(space.n)]
    raise TypeError(f"{type(space)} has no plain form.")


def _space_from_plain(plain: list[Any], largest: int) -> spaces.Space[Any]:
    kind, *arguments = plain
    if kind == "Box":
        low, high, shape, name = arguments
        dtype = _dtype(name)
        _limit(math.prod(shape), largest)
        low, high = (np.broadcast_to(np.asarray(bound, dtype), shape) for bound in (low, high))
        return spaces.Box(low, high, tuple(shape), dtype.type)
    if kind == "Dict":
        (entries,) = arguments
        return spaces.Dict(OrderedDict((key, _space_from_plain(entry, largest)) for key, entry in entries))
    if kind == "Discrete":
        n, start = arguments
        _limit(n, largest)
        return spaces.Discrete(n, start=start)
    if kind == "MultiDiscrete":
        (nvec,) = arguments
        _limit(sum(nvec), largest)
        return spaces.MultiDiscrete(nvec)
    if kind == "MultiBinary":
        (n,) = arguments
        _limit(n if isinstance(n, int) else math.prod(n), largest)
        return spaces.MultiBinary(n)
    raise ValueError(f"there is no space {short(kind)}")


def _limit(numbers: int, largest: int) -> None:
    if not 0 <= numbers <= largest:
        raise ValueError(f"a space of {short(numbers)} numbers, {largest} are allowed")


class Schema(BaseModel):
    """What an object in a JSON file must have; it must have nothing else."""

    # Infinite bounds of spaces are written as JSON in Python has them; by default they would become null.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, ser_json_inf_nan="constants")


Count = Annotated[int, Field(ge=0, lt=2**53)]
Number = bool | int | float


def _has_return_and_length(episode: dict[str, Number]) -> dict[str, Number]:
    if not {"r", "l"} <= episode.keys():
        raise ValueError("an episode has its return as r and its length as l")
    return episode


Episode = Annotated[dict[str, Number], AfterValidator(_has_return_and_length)]  # which SB3 logs the means of


class Argument(Schema):
    """
    An argument of a constructor.

    :param value: As :func:`to_plain` has it
    :param missing: Or why it could not be kept
    """

    value: JsonValue = None
    missing: str | None = None


Limit = Annotated[float, Field(gt=0)]  # inf is none; NaN is not above 0


class NormalizerSettings(Schema):
    """What the constructor of ``VecNormalize`` was given, beside the environments: see there."""

    training: bool
    norm_obs: bool
    norm_reward: bool
    clip_obs: Limit
    clip_reward: Limit
    gamma: Annotated[float, Field(ge=0, le=1)]
    epsilon: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    norm_obs_keys: list[str] | None


class Model(Schema):
    """
    A saved model, beside its arrays.

    :param format: Of the file
    :param algorithm: The class's name
    :param arguments: The constructor's, by name
    :param spaces: Observation and action space, as :func:`to_plain` has them
    :param n_envs: Environments that it learned from
    :param counters: How far it has come
    :param learning_rates: Of each optimiser, one for each group of parameters
    :param normalization: Of the ``VecNormalize`` that it learned with, if there was one
    """

    format: Literal[2]
    algorithm: str
    arguments: dict[str, Argument]
    spaces: dict[Literal["observation_space", "action_space"], JsonValue]
    n_envs: Annotated[int, Field(ge=1, lt=2**20)]
    counters: dict[str, Number]
    learning_rates: dict[str, list[Annotated[float, Field(ge=0, allow_inf_nan=False)]]]
    normalization: NormalizerSettings | None = None


class Block(Schema):
    """
    Consecutive rows of a replay buffer in a file.

    :param file: Its name
    :param first: Place of the first row
    :param rows: How many
    :param checksum: See :func:`~sb3_cir.runs.files.checksum`
    """

    file: Annotated[str, Field(pattern=f"^{ROWS.pattern}$")]
    first: Count
    rows: Annotated[int, Field(ge=1, lt=2**53)]
    checksum: Count


class Column(Schema):
    """
    What a replay buffer keeps of each transition.

    :param dtype: Kind of number
    :param shape: For one environment
    """

    dtype: str
    shape: list[Count]


class Rows(Schema):
    """
    A replay buffer, beside its rows.

    :param size: Rows that it has room for
    :param n_envs: Transitions in each
    :param pos: The next row to be written
    :param full: Whether the ring has closed
    :param columns: What it keeps of each transition, by name
    :param values: Plain values that it keeps besides
    :param blocks: Where its rows are; empty where they lie in the same file
    """

    size: Annotated[int, Field(ge=1, lt=2**53)]
    n_envs: Annotated[int, Field(ge=1, lt=2**20)]
    pos: Count
    full: bool
    columns: dict[str, Column]
    values: dict[str, JsonValue]
    blocks: list[Block] = []

    def without(self, names: set[str]) -> "Rows":
        """
        :param names: Arguments of the buffer that were asked to be otherwise
        :return: The same without their values
        """
        return self.model_copy(update=dict(values={name: value for name, value in self.values.items() if name not in names}))


class Buffer(Schema):
    """
    A replay buffer that was saved, beside its rows in the same file.

    :param format: Of the file
    :param buffers: The parts that it consists of
    :param checksum: Of all rows, and of this without the checksum, see :func:`~sb3_cir.runs.files.checksum`
    """

    format: Literal[1]
    buffers: dict[Annotated[str, Field(pattern="^[a-z_]+$")], Rows]
    checksum: Count


class PythonRandom(Schema):
    """The state of Python's generator that is no array: the last of its Gaussian pair."""

    gauss: Annotated[float, Field(allow_inf_nan=False)] | None


class NumpyRandom(Schema):
    """The state of NumPy's global generator, but for its key."""

    pos: Annotated[int, Field(ge=0, le=624)]
    has_gauss: Literal[0, 1]
    gauss: Annotated[float, Field(allow_inf_nan=False)]


class SpaceRandom(Schema):
    """The state of the action space's generator, NumPy's PCG64."""

    state: Annotated[int, Field(ge=0, lt=2**128)]
    inc: Annotated[int, Field(ge=0, lt=2**128)]
    has_uint32: Literal[0, 1]
    uinteger: Annotated[int, Field(ge=0, lt=2**32)]


class Random(Schema):
    """Random states, but for the arrays among them."""

    python: PythonRandom
    numpy: NumpyRandom
    action_space: SpaceRandom


class Checkpoint(Model):
    """
    A checkpoint, beside its arrays.

    :param run: Which run it is of
    :param step: The run's step
    :param episodes: What ``Monitor`` said of the last episodes
    :param successes: Whether they succeeded
    :param random: Random states
    :param buffers: Replay buffers by name
    :param callbacks: For each class of callback, the state of each of its objects
    :param log: The run's folder in ``tensorboard_log``, if it had one
    """

    run: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    step: Count
    episodes: list[Episode]
    successes: list[Number]
    random: Random
    buffers: dict[Annotated[str, Field(pattern="^[a-z_]+$")], Rows]
    callbacks: dict[str, list[dict[str, JsonValue]]]
    log: str | None = None


Kind = TypeVar("Kind", bound=Schema)


def validate(schema: type[Kind], value: dict[str, Any], what: str) -> Kind:
    """
    :param schema: What is expected
    :param value: What JSON had
    :param what: Where it stands, for the error
    :return: The same, checked
    :raises DamagedError: If it is something else. The sentence names the entry, what stands there and what is expected.
    """
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        entry = ".".join(str(part) for part in first["loc"])
        found = {"missing": "missing", "extra_forbidden": "nothing that is known here"}.get(first["type"])
        said = found or f"{short(first['input'])}: {first['msg'].lower()}"
        raise DamagedError(f"{what}: {short(entry)} is {said}.") from error
    except RecursionError as error:
        raise DamagedError(f"{what}: it is nested too deeply.") from error
