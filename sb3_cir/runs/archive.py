"""
Saved models, read without trusting them.

SB3's archives hold pickles, which run whatever code their maker put there when they are loaded. Ours have plain values and
arrays beside them, of all that a model needs. ``load(..., trusted=False)`` reads these alone, also in SB3's format, in which
version 0.1 saved.

What is read goes through one gate, whatever the format and whether it is trusted: the constructor's own checks, then a
comparison of each array with what it replaces.
"""

import io
import pickle
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import __version__ as sb3_version
from stable_baselines3.common.noise import VectorizedActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.save_util import data_to_json, json_to_data, open_path
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import check_for_correct_spaces, get_system_info
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_cir.runs import arguments, checkpoint, files, optimizer_state, parameters, state
from sb3_cir.runs.files import DamagedError, File
from sb3_cir.runs.plain import Argument, Model, NormalizerSettings, from_plain, validate
from sb3_cir.words import short

MANIFEST, ARRAYS, PICKLES = checkpoint.MANIFEST, checkpoint.ARRAYS, "data"
VERSION, SYSTEM = "_stable_baselines3_version", "system_info.txt"

# What a model does without: made anew when it is set up, or by the next learn(), which then starts with a reset.
DISPENSABLE = {"lr_schedule", "_last_obs", "_last_episode_starts", "_last_original_obs", "ep_info_buffer", "ep_success_buffer"}
# Those of batch normalisation, which SB3's models hold by name too, on their own device.
STATISTICS = {"batch_norm_stats", "batch_norm_stats_target"}
SPACES = ("observation_space", "action_space")


@dataclass(frozen=True)
class Options:
    """What ``load()`` was called with, see :meth:`~sb3_cir.runs.algorithm.Resumable.load`."""

    env: GymEnv | None
    device: th.device | str
    custom_objects: dict[str, Any]
    print_system_info: bool
    force_reset: bool
    trusted: bool
    changes: dict[str, Any]


# To read what a file has, of which no model is made.
READ_ALONE = Options(None, "auto", {}, False, False, False, {})


@dataclass(frozen=True)
class Content:
    """
    A saved model as it was read, in either format.

    :param what: The file's name, for errors
    :param size: Its bytes
    :param attributes: The model's attributes as SB3 writes them: plain values and pickles
    :param plain: The constructor's arguments and the spaces, as plain values
    :param counters: How far the model had come
    :param n_envs: Environments that it learned from
    :param arrays: All that it has learned, see :mod:`sb3_cir.runs.parameters`
    :param rates: Learning rates
    :param normalization: Of the ``VecNormalize`` that it learned with, where that is known
    """

    what: str
    size: int
    attributes: str
    plain: dict[str, Argument]
    counters: dict[str, Any]
    n_envs: int
    arrays: dict[str, np.ndarray]
    rates: dict[str, list[float]]
    normalization: NormalizerSettings | None = None

    def has_plain(self, name: str) -> bool:
        """:return: Whether there is a plain value of an argument or a space"""
        return name in self.plain and self.plain[name].missing is None

    def plain_value(self, name: str) -> Any:
        """
        :param name: What :meth:`has_plain` is true of
        :return: Its value
        :raises DamagedError: If it cannot be read.
        """
        try:
            # A space of many numbers belongs to a network of as many weights at least.
            return from_plain(self.plain[name].value, max(self.size, 2**16))
        except ValueError as error:
            attribute = arguments.attribute(name)
            raise DamagedError(f"{self.what}: the plain value of {attribute} cannot be read ({error}).") from error


# Models


def save(model: OffPolicyAlgorithm, path: File, exclude: set[str]) -> None:
    """
    :param model: A model
    :param path: Where to
    :param exclude: Attributes that are left out
    """
    torch_names = {name.split(".")[0] for names in model._get_torch_save_params() for name in names}
    attributes = {name: value for name, value in vars(model).items() if name not in exclude | torch_names | STATISTICS}
    manifest = Model(**checkpoint.describe_model(model))
    members = {
        PICKLES: data_to_json(attributes),
        MANIFEST: manifest.model_dump_json(),
        ARRAYS: files.pack(parameters.take(model)),
        VERSION: sb3_version,
        SYSTEM: get_system_info(print_info=False)[1],
    }
    if isinstance(path, (str, Path)):
        files.write_whole(_place(Path(path)).resolve(), files.pack_archive(members).getbuffer())
    else:
        files.pack_archive(members, open_path(path, "w"))


def _place(path: Path) -> Path:
    """Where SB3 would write a model: its suffix is added, a folder of this name is left alone, a missing one is made."""
    path = path if path.suffix else Path(f"{path}.zip")
    if path.is_dir():
        warnings.warn(f"{path} is a folder. The model is saved as {path}_2 instead.", stacklevel=4)
        return _place(Path(f"{path}_2"))
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def load(kind: type[Any], path: File, options: Options) -> Any:
    """
    :param kind: The class to be made
    :param path: The file
    :param options: How
    :return: The model
    :raises ValueError: If the file is a checkpoint, is damaged or is another algorithm's, or if it has what cannot be read.
    """
    if isinstance(path, (str, Path)) and files.is_checkpoint(Path(path)):
        raise ValueError(f"{path} is a checkpoint: {kind.__name__}.resume(path, env) reads it.")
    if options.print_system_info:
        print("== CURRENT SYSTEM INFO ==")
        get_system_info()
    content = read(kind, path, options)
    attributes = _trusted(content, options) if options.trusted else _untrusted(kind, content, options)
    _check_action_space(kind, attributes.get("action_space"), content.what)
    return _build(kind, content, attributes, options)


def read(kind: type[Any], path: File, options: Options) -> Content:
    """
    :param kind: The class to be made
    :param path: The file
    :param options: How
    :return: What it holds. Nothing was unpickled.
    :raises ValueError: If it is damaged, or another algorithm's.
    """
    what, content = _bytes(path)
    members = files.unpack_archive(content, what)
    if options.print_system_info and SYSTEM in members:
        print("== SAVED MODEL SYSTEM INFO ==")
        print(members[SYSTEM].decode(errors="replace"))
    if MANIFEST not in members:
        return _read_first_format(kind, members, what, len(content), options.trusted)
    said = files.read_json(members[MANIFEST], f"{what}: {MANIFEST}", options.trusted)
    if PICKLES not in members and "run" in said:
        raise ValueError(
            f"{what} is a checkpoint: {kind.__name__}.resume(path, env) reads it, as step_<n>.zip in the folder that it was "
            "written to, where its transitions are."
        )
    files.require(members, [ARRAYS, PICKLES], what)
    manifest = validate(Model, said, f"{what}: {MANIFEST}")
    checkpoint.check_class(kind, manifest.algorithm, what)
    return Content(
        what,
        len(content),
        members[PICKLES].decode(errors="replace"),
        manifest.arguments | {name: Argument(value=value) for name, value in manifest.spaces.items()},
        manifest.counters,
        manifest.n_envs,
        files.unpack(members[ARRAYS], f"{what}: {ARRAYS}"),
        manifest.learning_rates,
        manifest.normalization,
    )


def _bytes(path: File) -> tuple[str, bytes]:
    """:return: The file's name, and what is in it"""
    if not isinstance(path, (str, Path)):
        path.seek(0)  # Where it was left does not matter to SB3 either: a zip is read from its end.
        return str(getattr(path, "name", path)), path.read()
    found = files.find(path, ".zip")
    return found.name, files.read_regular(found)


def _read_first_format(kind: type[Any], members: dict[str, bytes], what: str, size: int, trusted: bool) -> Content:
    """What SB3 writes, and wrote for version 0.1: attributes in JSON, some as pickles; state dicts by ``torch.save``."""
    if PICKLES not in members:
        raise DamagedError(f"{what}: this is no archive of a model.")
    if ARRAYS in members:
        raise DamagedError(f"{what}: {MANIFEST} is missing in it.")
    attributes = files.read_json(members[PICKLES], f"{what}: {PICKLES}", trusted)
    plain = attributes.get("_plain") or {}
    if not isinstance(plain, dict):
        raise DamagedError(f"{what}: its plain values are {short(plain)}.")
    values = {name: value for name, value in attributes.items() if not (isinstance(value, dict) and ":serialized:" in value)}
    named = {arguments.attribute(name): name for name in arguments.names(kind)} | {name: name for name in SPACES}
    known = {argument: Argument(value=(plain | values)[name]) for name, argument in named.items() if name in plain | values}
    _check_algorithm(kind, known.get("policy"), attributes, what)
    arrays, rates = _read_state_dicts(members, what)
    counters = {name: value for name, value in values.items() if name in getattr(kind, "counters", state.COUNTERS)}
    n_envs = values.get("n_envs", 1)
    if not isinstance(n_envs, int) or not 1 <= n_envs < 2**20:
        raise DamagedError(f"{what}: n_envs={short(n_envs)}: it must be a whole number of at least 1.")
    return Content(what, size, members[PICKLES].decode(), known, counters, n_envs, arrays, rates)


def _check_algorithm(kind: type[Any], policy: Argument | None, attributes: dict[str, Any], what: str) -> None:
    """SB3's format does not say of which class a model is: its policy tells, or the arguments that only one class has."""
    if policy is not None and policy.missing is None:
        try:
            found = from_plain(policy.value)
        except ValueError as error:
            raise DamagedError(f"{what}: its policy cannot be read ({error}).") from error
        if isinstance(found, type) and not issubclass(found, tuple(kind.policy_aliases.values())):
            raise ValueError(
                f"{what} has a {found.__name__}, which is no policy of a {kind.__name__}: it is another algorithm's."
            )
        return
    sb3s = next(each for each in kind.__mro__ if each.__module__.startswith(("stable_baselines3.", "sb3_contrib.")))
    own = set(arguments.names(kind)) - set(arguments.names(sb3s))
    missing = [name for name in sorted(own) if arguments.attribute(name) not in attributes]
    if missing:
        raise ValueError(
            f"{what} is not of a {kind.__name__}: it has no {', '.join(missing)}. If it is of SB3's {sb3s.__name__}, that "
            "loads it; what can be taken over from it is told in docs/guide/data.md."
        )


def _read_state_dicts(members: dict[str, bytes], what: str) -> tuple[dict[str, np.ndarray], dict[str, list[float]]]:
    """:return: What the model has learned, as :mod:`sb3_cir.runs.parameters` has it, and its learning rates"""
    tensors: dict[str, Any] = {}
    rates: dict[str, list[float]] = {}
    for member, content in members.items():
        name, _, suffix = member.rpartition(".")
        if suffix != "pth":
            continue
        files.unpack_archive(content, f"{what}: {member}")  # whose tensors may be far larger than it looks
        try:
            value = th.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            if name == "pytorch_variables":
                tensors |= {f"{parameters.VARIABLES}/{key}": each for key, each in value.items() if each is not None}
            elif "param_groups" in value:
                rates[name] = [float(group["lr"]) for group in value["param_groups"]]
                for index, moments in value["state"].items():
                    tensors |= {f"{name}/{int(index)}/{key}": each for key, each in moments.items() if each is not None}
            else:
                tensors |= {f"{name}/{key}": each for key, each in value.items()}
        except pickle.UnpicklingError as error:
            raise DamagedError(f"{what}: there is more than tensors in {member}, which is not read.") from error
        except Exception as error:  # torch's reader, and whatever stands where a state dict should
            raise DamagedError(f"{what}: {member} holds no state that can be read ({short(str(error))}).") from error
    arrays = {}
    for name, value in tensors.items():
        if name.rpartition("/")[2] not in parameters.NOT_LEARNED:
            try:
                arrays[name] = optimizer_state.to_array(value)
            except (RuntimeError, TypeError, ValueError) as error:
                raise DamagedError(f"{what}: {short(name)} is no array of numbers ({short(str(error))}).") from error
    return arrays, rates


def _trusted(content: Content, options: Options) -> dict[str, Any]:
    """:return: All attributes, pickles among them"""
    try:
        attributes = json_to_data(content.attributes, options.custom_objects)
    except Exception as error:  # a pickle can fail in any way
        raise DamagedError(f"{content.what}: its attributes cannot be read ({short(str(error))}).") from error
    attributes.pop("_plain", None)
    for name in ("replay_buffer_class", "replay_buffer_kwargs"):
        # As they were given: the attributes have what SB3 made of them and of n_steps and gamma, which may be changed.
        if content.has_plain(name) and name not in options.custom_objects:
            attributes[name] = content.plain_value(name)
    if isinstance(attributes.get("action_noise"), VectorizedActionNoise):
        attributes["action_noise"] = attributes["action_noise"].base_noise
    return attributes


def _untrusted(kind: type[Any], content: Content, options: Options) -> dict[str, Any]:
    """:return: What has a name that the class knows, and a plain value"""
    given = options.custom_objects | options.changes
    attributes = {name: value for name, value in given.items() if name not in DISPENSABLE}
    missing = []
    for name in (*arguments.names(kind), *SPACES):
        attribute = arguments.attribute(name)
        if attribute in given or name in given:
            attributes[attribute] = given.get(attribute, given.get(name))
        elif name in SPACES and options.env is not None:
            continue
        elif name in arguments.PATHS:
            attributes[attribute] = None
        elif not content.has_plain(name):
            missing.append(attribute)
        else:
            attributes[attribute] = content.plain_value(name)
    if missing:
        hint = " or env=..." if set(missing) <= set(SPACES) else ""
        example = ", ".join(f"{name!r}: ..." for name in missing)
        raise ValueError(
            f"{content.what}: {', '.join(missing)}: there is no plain value, and a pickle is not read from a file that is "
            f"not trusted. Pass custom_objects={{{example}}}{hint}, or trusted=True if you trust whoever made it."
        )
    parameters.check_counts(attributes.get("policy_kwargs"), content.arrays, content.what)
    return attributes


def _build(kind: type[Any], content: Content, attributes: dict[str, Any], options: Options) -> Any:
    """
    :param kind: The class to be made
    :param content: What was read
    :param attributes: What the model is to have besides
    :param options: How
    :return: The model
    """
    model, kept = _constructed(kind, content, attributes, options)
    if options.env is not None and options.force_reset:
        model._last_obs = None
    arrays = _for_its_environments(model, content)
    parameters.check(model, arrays, content.what, finite=not options.trusted)
    parameters.check_rates(model, content.rates, content.what)
    parameters.put(model, arrays, content.rates)
    asked = options.custom_objects | options.changes
    counters = content.counters | {name: value for name, value in asked.items() if name in content.counters}
    state.check_counters(model, counters, content.what)
    state.put_counters(model, counters)
    model._normalization = content.normalization
    if model.use_sde:
        model.policy.reset_noise()
    arguments.warn_of_differences(model, {name: content.plain[name] for name in kept if name in content.plain}, content.what)
    return model


def _constructed(kind: type[Any], content: Content, attributes: dict[str, Any], options: Options) -> tuple[Any, list[str]]:
    """
    :param kind: The class to be made
    :param content: What was read
    :param attributes: What the model is to have besides
    :param options: How
    :return: The model, whose networks have their first values yet; and the arguments that it gave itself, against the file
    """
    arguments.check_names(kind, options.changes, [*(attributes if options.trusted else SPACES), *content.counters])
    attributes |= {arguments.attribute(name): value for name, value in options.changes.items() if name != "policy_kwargs"}
    named = {name: arguments.attribute(name) for name in arguments.names(kind)}
    given = {name: attributes[key] for name, key in named.items() if key in attributes}
    asked = options.custom_objects | options.changes
    read = {name: value for name, value in given.items() if not {name, named[name]} & asked.keys()}
    arguments.check(kind, read, content.what)
    if attributes.get("policy_kwargs") != options.changes.get("policy_kwargs", attributes.get("policy_kwargs")):
        raise ValueError(f"policy_kwargs: the model has {attributes['policy_kwargs']}, they cannot be changed.")
    arguments.check_settled(kind, options.changes, content.plain, content.what)
    kept_in = attributes.get("replay_buffer_class")
    if options.env is None and isinstance(kept_in, type) and issubclass(kept_in, HerReplayBuffer):
        raise ValueError(f"{content.what}: a {kept_in.__name__} needs an environment: pass env=...")
    env = None if options.env is None else kind._wrap_env(options.env, attributes.get("verbose", 0))
    _check_spaces(content, attributes, env)
    with arguments.constructing(kind, content.what):
        passed = {name: value for name, value in given.items() if name not in read}
        model, fixed = arguments.construct_loaded(kind, read, passed, env=env, device=options.device)
        # As with SB3 a file has the last word. Only where it is not trusted, an argument that the class gives itself stays.
        kept = [] if options.trusted else [name for name in fixed if name in read]
        # What was asked for stays what the constructor has made of it.
        made = [named[name] for name in passed if name not in fixed]
        left_out = {*content.counters, *(named[name] for name in kept), *(key for key in made if key in vars(model))}
        # SB3's own checks, or none: what is of a wrong kind fails somewhere in here.
        vars(model).update({name: value for name, value in attributes.items() if name not in left_out})
        model.n_envs = content.n_envs if env is None else env.num_envs
        if not options.trusted:
            arguments.check_noise(model.action_noise, model.action_space.shape, content.what)
            parameters.rehearse(model, content.arrays, content.what)
        model._setup_model()
    return model, kept


def _check_spaces(content: Content, attributes: dict[str, Any], env: Any) -> None:
    for name in SPACES:
        if name not in attributes and env is not None:
            attributes[name] = getattr(env, name)
        if not isinstance(attributes.get(name), spaces.Space):
            raise DamagedError(f"{content.what}: {name} is {short(attributes.get(name))}, a space was expected.")
    if env is not None:
        check_for_correct_spaces(env, attributes["observation_space"], attributes["action_space"])


def _check_action_space(kind: type[Any], space: Any, what: str) -> None:
    """SB3 looks at an environment's alone."""
    expected = kind.action_space_class
    if isinstance(space, spaces.Space) and not isinstance(space, expected):
        raise ValueError(f"{what}: action_space is {short(space)}, a {expected.__name__} was expected.")


def _for_its_environments(model: OffPolicyAlgorithm, content: Content) -> dict[str, np.ndarray]:
    """:return: What was read, but the model's own arrays of its environments where these are more or fewer"""
    if model.n_envs == content.n_envs:
        return content.arrays
    own, names = parameters.take(model), getattr(model, "per_environment", ())
    return content.arrays | {name: own[name] for name in names}


def put_parameters(model: OffPolicyAlgorithm, path: File, exact_match: bool) -> None:
    """
    :param model: A model, which gets networks and optimisers of another
    :param path: Where that was saved
    :param exact_match: Whether it must have all that this one has, and nothing else. Otherwise what both have is taken.
    :raises ValueError: If they do not fit.
    """
    content = read(type(model), path, READ_ALONE)
    own = parameters.take(model)
    arrays = {
        name: array
        for name, array in _for_its_environments(model, content).items()
        if not name.startswith(parameters.VARIABLES)
    }
    arrays |= {name: array for name, array in own.items() if name.startswith(parameters.VARIABLES)}
    rates = content.rates
    if not exact_match:
        arrays, rates = parameters.of_both(model, arrays, rates, content.what)
    elif rates.keys() != parameters.optimizers(model).keys():
        raise ValueError(
            f"{content.what} has {', '.join(rates)}, this model {', '.join(parameters.optimizers(model))}: "
            "exact_match=False takes what both have."
        )
    parameters.check(model, arrays, content.what, finite=False)
    parameters.check_rates(model, rates, content.what)
    parameters.put(model, arrays, rates)
