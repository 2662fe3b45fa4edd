"""Saved models, checkpoints and replay buffers, and the damaged and hostile variants of them."""

import base64
import io
import json
import math
import os
import pickle
import random
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch as th
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from benchmarks.damage import Change, add_to_zip, drop, in_arrays, in_bytes, in_json, in_zip, put, read_zip, write_zip, zeros
from benchmarks.reliability import Numbered, small_model
from sb3_cir import CIR
from sb3_cir.callbacks import Checkpoint
from sb3_cir.runs import arguments

ROWS = 50  # of the replay buffer: its ring has closed
STEPS = 60
EVERY = 20
NEWEST, OLDER = f"step_{STEPS}.zip", f"step_{STEPS - EVERY}.zip"

Plain = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """
    :param source: What is altered: "model", "first format", "checkpoint" or "buffer"
    :param name: What is done to it
    :param change: Does it to a copy of the source's folder
    :param damaged: Whether it is something that happens to files. Otherwise somebody means it.
    """

    source: str
    name: str
    change: Change
    damaged: bool = False


# The files


def environment() -> VecNormalize:
    """:return: One environment, with statistics of its observations"""
    return VecNormalize(DummyVecEnv([Numbered]), norm_reward=False)


def callbacks(folder: Path) -> list[BaseCallback]:
    """
    :param folder: For checkpoints
    :return: What the runs learn with
    """
    evaluation = EvalCallback(environment(), n_eval_episodes=1, eval_freq=15, verbose=0, warn=False)
    return [Checkpoint(EVERY, folder), evaluation]


def make_sources(folder: Path) -> None:
    """:param folder: Gets a folder of each source"""
    model = small_model(environment(), buffer_size=ROWS)
    (folder / "checkpoint").mkdir()
    model.learn(STEPS, callback=callbacks(folder / "checkpoint"))
    for source in ("model", "first format", "buffer"):
        (folder / source).mkdir()
    model.save(folder / "model" / "model.zip")
    model.save_replay_buffer(folder / "buffer" / "buffer.safetensors")
    save_first_format(model, folder / "first format" / "model.zip")


def save_first_format(model: CIR, path: Path) -> None:
    """
    Save as version 0.1 did: SB3's format, with plain values beside the pickles.

    :param model: A model
    :param path: Where to
    """
    CIR.sb3_archives = True
    try:
        model.save(path)
    finally:
        CIR.sb3_archives = False
    plain = {arguments.attribute(name): value.value for name, value in arguments.take(model).items() if value.missing is None}
    plain |= {name: arguments.to_plain(getattr(model, name)) for name in ("observation_space", "action_space")}
    members = read_zip(path)
    data = json.loads(members["data"])
    data["_plain"] = {name: value for name, value in plain.items() if isinstance(data.get(name), dict)}
    write_zip(path, members | {"data": json.dumps(data).encode()})


# What is done to them


DEEP = "[" * 100_000 + "]" * 100_000

# What nothing in a manifest may be; a key whose entry allows one leaves it out.
WRONG: dict[str, Any] = {
    "nothing": None,
    "a text": "x",
    "a list": [["x"]],
    "an object": {"x": 1},
    "not a number": math.nan,
    "infinity": math.inf,
    "a huge number": 10**400,
    "below zero": -3,
}


def zip_variants(source: str, file: str, member: str) -> Iterator[Variant]:
    """
    :param source: Of which
    :param file: Name of its zip
    :param member: Of the zip, JSON
    :return: What can be wrong with any zip
    """

    def compressed(folder: Path, kind: int = zipfile.ZIP_DEFLATED) -> None:
        write_zip(folder / file, read_zip(folder / file), kind)

    def bomb(folder: Path) -> None:
        members = read_zip(folder / file)
        (folder / file).write_bytes(zeros("more"))
        add_to_zip(folder / file, members)

    def twice(folder: Path) -> None:
        with warnings.catch_warnings(), zipfile.ZipFile(folder / file, "a") as archive:
            warnings.simplefilter("ignore")
            archive.writestr(member, b"{}")

    def pipe(folder: Path) -> None:
        (folder / file).unlink()
        os.mkfifo(folder / file)

    def link(target: str) -> Change:
        def linked(folder: Path) -> None:
            (folder / file).unlink()
            (folder / file).symlink_to(target)

        return linked

    def in_directory(offset: int, value: bytes) -> Callable[[bytearray], None]:
        """Of the first entry of the zip's directory."""

        def change(content: bytearray) -> None:
            at = content.find(b"PK\x01\x02") + offset
            content[at : at + len(value)] = value

        return change

    def encrypted(content: bytearray) -> None:
        for signature, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
            content[content.find(signature) + offset] |= 1

    def hole(content: bytearray) -> bytearray:
        return content[:200] + bytes(1000) + content[200:]

    damaged: dict[str, Change] = {
        "empty file": in_bytes(file, lambda content: content.clear()),
        "text": in_bytes(file, lambda content: bytearray(b"no zip at all")),
        "deleted": lambda folder: (folder / file).unlink(),
        "cut in half": in_bytes(file, lambda content: content[: len(content) // 2]),
        "last byte missing": in_bytes(file, lambda content: content[:-1]),
        "bytes put in": in_bytes(file, hole),
        "zeros from the middle on": in_bytes(file, lambda content: content[: len(content) // 2] + bytes(len(content) // 2)),
        "bytes before it": in_bytes(file, lambda content: b"x" * 100 + content),
        "bytes behind it": in_bytes(file, lambda content: content + b"x" * 100),
        "JSON cut": in_zip(file, lambda members: members.update({member: members[member][:-20]})),
        "JSON empty": in_zip(file, lambda members: members.update({member: b""})),
        "JSON is Latin-1": in_zip(file, lambda members: members.update({member: b'{"\xe9": 1}'})),
    }
    hostile: dict[str, Change] = {
        "compressed": compressed,
        "compressed with LZMA": lambda folder: compressed(folder, zipfile.ZIP_LZMA),
        "much more than a GiB of zeros, compressed": bomb,
        "unknown compression": in_bytes(file, in_directory(10, struct.pack("<H", 99))),
        "size of four GiB": in_bytes(file, in_directory(20, struct.pack("<II", 2**32 - 2, 2**32 - 2))),
        "offset behind the end": in_bytes(file, in_directory(42, struct.pack("<I", 2**32 - 2))),
        "checksum altered": in_bytes(file, in_directory(16, b"\1\2\3\4")),
        "name altered in the directory": in_bytes(file, in_directory(46, b"x")),
        "flags altered": in_bytes(file, in_directory(8, b"\xff\xff")),
        "encrypted": in_bytes(file, encrypted),
        "a member twice": twice,
        "a named pipe": pipe,
        "a link to /dev/zero": link("/dev/zero"),
        "a link to /dev/stdin": link("/dev/stdin"),
        "a link to itself": link(file),
        "JSON of 100,000 levels": in_zip(file, lambda members: members.update({member: DEEP.encode()})),
        "JSON with 100,000 levels in an entry": in_zip(
            file, lambda members: members.update({member: members[member][:-1] + f', "more": {DEEP}}}'.encode()})
        ),
        "JSON is a list": in_zip(file, lambda members: members.update({member: b"[1, 2]"})),
        "JSON is a number": in_zip(file, lambda members: members.update({member: b"7"})),
        "JSON of 40 MB": in_zip(file, lambda members: members.update({member: b'{"x": [' + b"[]," * 13_000_000 + b"1]}"})),
        "a climbing member": in_zip(file, lambda members: members.update({"../../climbed": b"x"})),
        "a member of no use": in_zip(file, lambda members: members.update({"more": b"x"})),
    }
    if source == "checkpoint":
        del damaged["deleted"]  # then the one before it is the newest
    yield from (Variant(source, name, change, damaged=True) for name, change in damaged.items())
    yield from (Variant(source, name, change) for name, change in hostile.items())


def member_variants(source: str, file: str, members: list[str]) -> Iterator[Variant]:
    """
    :param source: Of which
    :param file: Name of its zip
    :param members: Those that it needs
    :return: Each of them missing, empty, cut, altered, another's
    """
    for member in members:

        def garbage(contents: dict[str, bytes], member: str = member) -> None:
            contents[member] = bytes(range(256)) * 8

        changes = {
            "missing": lambda contents, member=member: contents.pop(member),
            "empty": lambda contents, member=member: contents.update({member: b""}),
            "cut": lambda contents, member=member: contents.update({member: contents[member][:-7]}),
            "garbage": garbage,
        }
        yield from (Variant(source, f"{member} {name}", in_zip(file, change), True) for name, change in changes.items())


def manifest_variants(source: str, file: str, keys: list[str]) -> Iterator[Variant]:
    """
    :param source: Of which
    :param file: Name of its zip
    :param keys: Those of its manifest
    :return: What can be wrong with any manifest
    """
    for key in keys:
        yield Variant(source, f"{key} missing", in_json(file, "manifest.json", drop(key)))
        for name, value in WRONG.items():
            yield Variant(source, f"{key} is {name}", in_json(file, "manifest.json", put(key, value=value)))
    yield Variant(source, "a key more", in_json(file, "manifest.json", put("_setup_model", value="x")))


# What no constructor allows.
BAD_ARGUMENTS: dict[str, list[Any]] = {
    "convex_coef": [7, "x", math.nan, None],
    "sample_reuse": [-3, 0, 10**30, 1.5],
    "precision": ["int3", None],
    "compile": ["maybe", [1]],
    "entropy_in_target": ["x", None],
    "buffer_size": [-5, 0, 10**18, "x", math.inf, False],
    "batch_size": [-1, 0, "x", 10**12],
    "learning_starts": ["x", math.nan],
    "tau": [7.0, math.nan, "x"],
    "gamma": [7.0, math.nan, -1.0],
    "learning_rate": [math.nan, -1.0, "x", {":object:": "LinearSchedule", "arguments": {}}, {":object:": "Makes"}],
    "train_freq": [
        {":train_freq:": [0, "step"]},
        {":train_freq:": [math.inf, "step"]},
        {":train_freq:": [1, "year"]},
        "x",
        -1,
    ],
    "gradient_steps": ["x", -(10**30), 10**12],
    "n_steps": [0, -1, "x"],
    "ent_coef": ["x", math.nan, "auto_x", "auto_nan", [1]],
    "target_entropy": ["x", math.inf],
    "target_update_interval": [0, -1, "x"],
    "stats_window_size": [-1, "x", 10**30],
    "seed": [-1, 2**70, "x"],
    "verbose": ["x", 2**70],
    "use_sde": ["x"],
    "sde_sample_freq": ["x", -(10**30)],
    "optimize_memory_usage": ["x"],
    "action_noise": [
        7,
        {":object:": "NormalActionNoise", "arguments": {"mean": {":array:": [[0.0] * 3], "dtype": "float32"}, "sigma": 1}},
        {":object:": "NormalActionNoise", "arguments": {"mean": 0, "sigma": "x"}},
    ],
    "replay_buffer_class": [{":class:": "os.system"}, {":class:": "torch.nn.modules.linear.Linear"}, "x"],
    "replay_buffer_kwargs": [7, {"x": 1}, {"buffer_size": 10**9}],
    "policy": [
        {":class:": "stable_baselines3.sac.policies.MultiInputPolicy"},
        {":class:": "torch.hub.load"},
        "x",
        {":class:": 3},
    ],
    "policy_kwargs": [
        *(7, ["Dict"], {"x": 1}, {"n_critics": 300_000}, {"n_critics": -1}, {"n_critics": "x"}, {"n_critics": 2}),
        *({"net_arch": [16] * 200_000}, {"net_arch": [60_000, 60_000]}, {"net_arch": [4000] * 16}, {"net_arch": {"pi": [16]}}),
        *({"net_arch": ["x"]}, {"net_arch": [16, -16]}, {"net_arch": [[16], 16]}, {"critic_network": "x"}),
        *({"optimizer_class": {":class:": "os.system"}}, {"optimizer_kwargs": {"lr": "x"}}, {"optimizer_kwargs": {"x": 1}}),
        *({"features_extractor_class": {":class:": "torch.nn.modules.linear.Linear"}}, {"log_std_init": "x", "use_expln": 3}),
    ],
    "tensorboard_log": ["chosen", 7],
}

BOX = ["Box", -1.0, 1.0, [2], "float32"]
BAD_SPACES: dict[str, Any] = {
    "of 200,000,000 numbers": ["Box", -1.0, 1.0, [200_000_000], "float32"],
    "of 10**30 numbers": ["Box", -1.0, 1.0, [10**15, 10**15], "float32"],
    "below zero": ["Box", -1.0, 1.0, [-2], "float32"],
    "of three": ["Box", -1.0, 1.0, [3], "float32"],
    "of texts": ["Box", -1.0, 1.0, [2], "U300000000"],
    "of objects": ["Box", -1.0, 1.0, [2], "object"],
    "of many axes": ["Box", -1.0, 1.0, [1] * 200, "float32"],
    "with bounds not numbers": ["Box", math.nan, math.nan, [2], "float32"],
    "with bounds exchanged": ["Box", 1.0, -1.0, [2], "float32"],
    "with a bound of three": ["Box", [0.0, 0.0, 0.0], 1.0, [2], "float32"],
    "with texts as bounds": ["Box", "x", "y", [2], "float32"],
    "without arguments": ["Dict"],
    "in itself": ["Dict", [["x", ["Dict", [["x", ["Dict", []]]]]]]],
    "of many entries": ["Dict", [[str(index), BOX] for index in range(5_000)]],
    "of many numbers to choose from": ["Discrete", 10**12, 0],
    "of many numbers to choose from, often": ["MultiDiscrete", [10**9] * 10],
    "of many bits": ["MultiBinary", 10**10],
    "of nothing": [],
    "unknown": ["Text", 3],
    "a text": "x",
    "nothing": None,
}


def argument_variants(source: str, file: str, where: Callable[[str], tuple[tuple[Any, ...], str]]) -> Iterator[Variant]:
    """
    :param source: Of which
    :param file: Name of its zip
    :param where: For an argument, where its value stands in which member
    :return: Values that no constructor allows
    """
    for name, values in BAD_ARGUMENTS.items():
        path, member = where(name)
        for value in values:
            said = repr(value) if len(repr(value)) < 60 else f"{repr(value)[:57]}..."
            yield Variant(source, f"{name}={said}", in_json(file, member, put(*path, value=value)))


def array_variants(source: str, file: str) -> Iterator[Variant]:
    """
    :param source: Of which
    :param file: Name of its zip
    :return: Wrong arrays
    """
    weight, moment = "policy/actor.mu.weight", "actor.optimizer/0/exp_avg"

    def change(name: str, function: Callable[[np.ndarray], np.ndarray]) -> Change:
        return in_arrays(file, lambda arrays: arrays.update({name: function(arrays[name])}))

    for name in (weight, moment, "actor.optimizer/0/exp_avg_sq", "actor.optimizer/0/step", "variables/log_ent_coef"):
        for what, function in {
            "too small": lambda array: array.reshape(-1)[:1] if array.size > 1 else np.zeros(0, array.dtype),
            "of one more axis": lambda array: array[None],
            "turned": lambda array: array.T if array.ndim > 1 else array.reshape(1, -1),
            "of another kind": lambda array: array.astype(np.float64),
            "of integers": lambda array: array.astype(np.int64),
            "with NaN": lambda array: np.full_like(array, math.nan),
            "with infinity": lambda array: np.full_like(array, -math.inf),
        }.items():
            yield Variant(source, f"{name} {what}", change(name, function))
        yield Variant(source, f"{name} missing", in_arrays(file, lambda arrays, name=name: arrays.pop(name)))
    for more in (f"{weight}.__class__.__base__", "actor.optimizer/99/exp_avg", "variables/gamma", "policy.__class__", "x"):
        extra = {more: np.zeros(3, np.float32)}
        yield Variant(source, f"an array {more}", in_arrays(file, lambda arrays, extra=extra: arrays.update(extra)))
    below = in_arrays(file, lambda arrays: arrays.update({"actor.optimizer/0/step": np.array(-7, np.float32)}))
    yield Variant(source, "a step below zero", below)
    squares = change("actor.optimizer/0/exp_avg_sq", lambda array: array - 1)
    yield Variant(source, "squares below zero", squares)
    for name, header in {
        "a header of 2**60 bytes": struct.pack("<Q", 2**60),
        "a header of 90 MB of spaces": struct.pack("<Q", 90 * 2**20) + b" " * 90 * 2**20,
        "an array of 2**60": arrays_header({"x": {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 4]}}),
        "arrays that overlap": arrays_header({n: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} for n in "xy"}),
        "an array of bfloat16": arrays_header({"x": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}),
        "an array of objects": arrays_header({"x": {"dtype": "O", "shape": [2], "data_offsets": [0, 4]}}),
    }.items():
        content = header + bytes(4)
        yield Variant(
            source, name, in_zip(file, lambda members, content=content: members.update({"arrays.safetensors": content}))
        )


def arrays_header(header: dict[str, Any]) -> bytes:
    """
    :param header: Of a file in the safetensors format
    :return: It in bytes
    """
    content = json.dumps(header).encode()
    return struct.pack("<Q", len(content)) + content


def model_variants() -> Iterator[Variant]:
    """:return: Of a saved model"""
    source, file = "model", "model.zip"
    yield from zip_variants(source, file, "manifest.json")
    yield from member_variants(source, file, ["manifest.json", "arrays.safetensors", "data"])
    keys = ["format", "algorithm", "arguments", "spaces", "n_envs", "counters", "learning_rates"]
    yield from manifest_variants(source, file, keys)
    yield from argument_variants(source, file, lambda name: (("arguments", name, "value"), "manifest.json"))
    yield from array_variants(source, file)
    for space in ("observation_space", "action_space"):
        for name, value in BAD_SPACES.items():
            plain = {":space:": value}
            yield Variant(source, f"{space} {name}", in_json(file, "manifest.json", put("spaces", space, value=plain)))
    for name, value in {"a float": 0.5, "below zero": -3, "huge": 2**70, "true": True, "not a number": math.nan}.items():
        yield Variant(
            source, f"num_timesteps {name}", in_json(file, "manifest.json", put("counters", "num_timesteps", value=value))
        )
    more = put("counters", "learning_starts", value=10**9)
    yield Variant(source, "a counter more", in_json(file, "manifest.json", more))
    yield Variant(source, "a counter missing", in_json(file, "manifest.json", drop("counters", "_n_updates")))
    for name, value in {"nan": [math.nan], "below zero": [-1.0], "two": [1e-3, 1e-3], "none": []}.items():
        yield Variant(
            source,
            f"learning rate {name}",
            in_json(file, "manifest.json", put("learning_rates", "actor.optimizer", value=value)),
        )
    other = put("algorithm", value="SAC")
    yield Variant(source, "another algorithm's", in_json(file, "manifest.json", other))
    # By default pickles are read, which is why these are for trusted=False.
    yield Variant(source, "pickles that run code", in_json(file, "data", lambda data: poison(data)))


class Harm:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.makedirs, ("harm", 0o777, True)


def poison(data: Plain) -> None:
    """:param data: SB3's JSON, in which each attribute becomes a pickle that runs code"""
    code = base64.b64encode(pickle.dumps(Harm())).decode()
    for name in [name for name in data if name != "_plain"]:
        data[name] = {":type:": "", ":serialized:": code}


def tensors(change: Callable[[Any], Any], member: str) -> Change:
    """
    :param change: Alters a state dict, or returns what is to stand in its place
    :param member: Of the first format's zip
    :return: The same, to a folder
    """

    def changed(members: dict[str, bytes]) -> None:
        value = th.load(io.BytesIO(members[member]), weights_only=False)
        value = change(value) or value
        buffer = io.BytesIO()
        th.save(value, buffer)
        members[member] = buffer.getvalue()

    return in_zip("model.zip", changed)


def first_format_variants() -> Iterator[Variant]:
    """:return: Of a model in the format of version 0.1"""
    source, file = "first format", "model.zip"
    members = ["data", "policy.pth", "actor.optimizer.pth", "critic.optimizer.pth", "ent_coef_optimizer.pth"]
    members.append("pytorch_variables.pth")
    yield from zip_variants(source, file, "data")
    yield from member_variants(source, file, members)

    def where(name: str) -> tuple[tuple[Any, ...], str]:
        return (arguments.attribute(name),), "data"

    yield from argument_variants(source, file, where)
    for space in ("observation_space", "action_space"):
        for name, value in BAD_SPACES.items():
            plain = {":space:": value}
            yield Variant(source, f"{space} {name}", in_json(file, "data", put("_plain", space, value=plain)))
    for name, value in WRONG.items():
        yield Variant(source, f"_plain is {name}", in_json(file, "data", put("_plain", value=value)))
    yield Variant(source, "_plain missing", in_json(file, "data", drop("_plain")))
    for key in ("num_timesteps", "_n_updates", "n_envs"):
        for name, value in WRONG.items():
            yield Variant(source, f"{key} is {name}", in_json(file, "data", put(key, value=value)))
    for name in ("actor.mu.weight.__class__.__base__.data", "policy.__class__", "gamma", "x", "replay_buffer.pos"):
        extra = {name: th.zeros(3)}
        yield Variant(source, f"a variable {name}", tensors(lambda value, extra=extra: value | extra, "pytorch_variables.pth"))
    yield Variant(source, "no variables", tensors(lambda value: value.clear(), "pytorch_variables.pth"))
    nan = {"log_ent_coef": th.full((1,), math.nan)}
    yield Variant(source, "temperature NaN", tensors(lambda value: nan, "pytorch_variables.pth"))
    for what, tensor in {
        "of one number": th.zeros(1),
        "strided": th.zeros(1).expand(16, 16),
        "a text": "x",
        "sparse": th.zeros(16, 16).to_sparse(),
        "without memory": th.zeros(16, 16, device="meta"),
        "of 10**12 numbers": th.zeros(1).expand(10**6, 10**6),
        "half": th.zeros(16, 16, dtype=th.bfloat16),
        "quantized": th.zeros(16, 16, dtype=th.complex64),
    }.items():

        def moments(value: Any, tensor: Any = tensor) -> None:
            value["state"][0]["exp_avg"] = tensor

        yield Variant(source, f"a moment {what}", tensors(moments, "actor.optimizer.pth"))
        weights = {"actor.mu.weight": tensor}
        yield Variant(source, f"a weight {what}", tensors(lambda value, weights=weights: value | weights, "policy.pth"))
    for what, thing in {"a list": [1], "a tensor": th.zeros(3), "a text": "x", "a number": 7}.items():
        for member in members[1:]:
            yield Variant(source, f"{member} is {what}", tensors(lambda value, thing=thing: [thing], member))
    for name, group in {"nan": {"lr": math.nan}, "text": {"lr": "x"}, "none": {}}.items():

        def groups(value: Any, group: Any = group) -> None:
            value["param_groups"] = [group]

        yield Variant(source, f"learning rate {name}", tensors(groups, "actor.optimizer.pth"))
    for member in members[1:]:
        yield Variant(source, f"{member} runs code", tensors(lambda value: {"x": Harm()}, member))
        code = pickle.dumps(Harm())
        run = in_zip(file, lambda contents, member=member, code=code: contents.update({member: code}))
        yield Variant(source, f"{member} is a pickle that runs code", run)
    yield Variant(source, "pickles that run code", in_json(file, "data", lambda data: poison(data)))

    def bomb(members: dict[str, bytes]) -> None:
        buffer = io.BytesIO()
        th.save({"x": th.zeros(4)}, buffer)
        inner = read_zip(buffer)
        numbers = next(name for name in inner if "/data/" in name)
        del inner[numbers]
        much = io.BytesIO(zeros(numbers))
        add_to_zip(much, inner)
        members["policy.pth"] = much.getvalue()

    yield Variant(source, "much more than a GiB of numbers, compressed", in_zip(file, bomb))


def checkpoint_variants() -> Iterator[Variant]:
    """:return: Of a folder of checkpoints"""
    source, file, rows_file = "checkpoint", NEWEST, "transitions/*.safetensors"
    yield from zip_variants(source, file, "manifest.json")
    yield from member_variants(source, file, ["manifest.json", "arrays.safetensors"])
    keys = ["format", "algorithm", "arguments", "spaces", "n_envs", "counters", "learning_rates"]
    keys += ["run", "step", "episodes", "successes", "random", "buffers", "callbacks"]
    yield from manifest_variants(source, file, keys)
    yield from argument_variants(source, file, lambda name: (("arguments", name, "value"), "manifest.json"))
    yield from array_variants(source, file)
    for name, array in {
        "random/python": np.zeros(3, np.uint32),
        "random/numpy": np.zeros(3, np.uint32),
        "random/torch": np.zeros(3, np.uint8),
        "random/cuda/0": np.zeros(3, np.uint8),
        "observation/": np.zeros((7, 9), np.float32),
        "normalized/": np.zeros((7, 9), np.float32),
        "normalization/returns": np.zeros((3, 3)),
        "normalization/observations//mean": np.full(2, math.nan),
        "normalization/observations//var": np.full(2, -1.0),
        "normalization/observations//count": np.array(math.inf),
        "action_noise/0": np.zeros(3),
        "buffers/replay/rewards": np.zeros((ROWS, 1), np.float32),
    }.items():
        change = in_arrays(file, lambda arrays, name=name, array=array: arrays.update({name: array}))
        yield Variant(source, f"{name} of another form", change)
        missing = in_arrays(file, lambda arrays, name=name: arrays.pop(name, None))
        yield Variant(source, f"{name} missing", missing)
    for path, values in {
        ("random", "numpy", "pos"): [10**9, 625, -1, 1.5],
        ("random", "numpy", "gauss"): [math.nan, "x"],
        ("random", "python", "gauss"): ["x", []],
        ("random", "action_space", "state"): [2**128, -1, "x"],
        ("random", "action_space", "inc"): [2, 2**128],
        ("random", "action_space", "uinteger"): [2**32],
        ("buffers", "replay", "pos"): [50, 10**9, -1, 0.5],
        ("buffers", "replay", "full"): [False, 7],
        ("buffers", "replay", "size"): [10, 10**12, 0],
        ("buffers", "replay", "n_envs"): [2, 0],
        ("buffers", "replay", "columns"): [{}, {"x": {"dtype": "float32", "shape": []}}],
        ("buffers", "replay", "columns", "rewards", "dtype"): ["object", "U300000000", "float64"],
        ("buffers", "replay", "columns", "rewards", "shape"): [[10**12], [-1], [3]],
        ("buffers", "replay", "values"): [{"x": 1}],
        ("buffers", "replay", "blocks"): [[], "x"],
        ("buffers", "replay", "blocks", 0, "first"): [3, -1, 10**9],
        ("buffers", "replay", "blocks", 0, "rows"): [1, 0, 10**9],
        ("buffers", "replay", "blocks", 0, "checksum"): [0, -1],
        ("counters", "num_timesteps"): [-1, 59, 10**9, 1.5],
        ("counters", "_n_updates"): [-7, math.nan, 1.5],
        ("counters", "learning_starts"): [10**9],
        ("episodes",): [[{"r": "x"}], [{"r": math.nan, "l": 1, "t": 0}], [{}]],
        ("successes",): [["x"]],
        ("step",): [59],
        ("run",): ["0" * 32, "x", "../../x"],
        ("callbacks", "Checkpoint"): [[{"keep": 0, "every": 0, "folder": "chosen", "n_calls": 60}]],
        ("callbacks", "EvalCallback"): [
            [{"best_model_save_path": "chosen", "log_path": "chosen", "n_calls": 60}],
            [{"best_mean_reward": "x"}],
            [{"n_calls": "x"}],
            [{"n_calls": math.nan}],
            [{"evaluations_timesteps": 7}],
            [{"evaluations_results": "x"}],
        ],
    }.items():
        for value in values:
            said = repr(value) if len(repr(value)) < 60 else f"{repr(value)[:57]}..."
            yield Variant(
                source, f"{'.'.join(map(str, path))}={said}", in_json(file, "manifest.json", put(*path, value=value))
            )
    for name in (
        *("../../x.npz", "/etc/passwd", "/dev/zero", "/dev/stdin", "..", "", "x\0y", "transitions/x", "a" * 5000),
        *(f"../{OLDER}", "replay_60_000000000000.safetensors", "step_60.zip", 7, None, ["x"]),
    ):
        change = put("buffers", "replay", "blocks", 0, "file", value=name)
        yield Variant(source, f"rows in {str(name)[:40]!r}", in_json(file, "manifest.json", change))
    spoil: dict[str, Callable[[bytearray], Any]] = {
        "cut": lambda content: content[:-7],
        "empty": lambda content: content.clear(),
        "a bit altered": lambda content: content.__setitem__(-9, content[-9] ^ 1),
        "text": lambda content: bytearray(b"no arrays"),
        "header altered": lambda content: content.__setitem__(20, content[20] ^ 1),
    }
    yield from (Variant(source, f"rows {name}", in_bytes(rows_file, change), True) for name, change in spoil.items())

    def rows_that_are(make: Callable[[Path], Any]) -> Change:
        def changed(folder: Path) -> None:
            manifest = json.loads(read_zip(folder / NEWEST)["manifest.json"])
            path = folder / "transitions" / manifest["buffers"]["replay"]["blocks"][0]["file"]
            path.unlink()
            make(path)

        return changed

    yield Variant(source, "rows deleted", rows_that_are(lambda path: None), True)
    yield Variant(source, "rows a pipe", rows_that_are(os.mkfifo))
    yield Variant(source, "rows a folder", rows_that_are(Path.mkdir))
    yield Variant(source, "rows a link to /dev/zero", rows_that_are(lambda path: path.symlink_to("/dev/zero")))

    def exchange(folder: Path) -> None:
        (folder / NEWEST).rename(folder / "x")
        (folder / OLDER).rename(folder / NEWEST)
        (folder / "x").rename(folder / OLDER)

    def add_another(folder: Path) -> None:
        shutil.copy(folder / NEWEST, folder / "step_99.zip")
        in_json("step_99.zip", "manifest.json", lambda value: value.update(run="0" * 32, step=99))(folder)

    yield Variant(source, "the older copied over the newer", lambda folder: shutil.copy(folder / OLDER, folder / NEWEST), True)
    yield Variant(source, "names exchanged", exchange, True)
    yield Variant(source, "renamed", lambda folder: (folder / NEWEST).rename(folder / "step_99.zip"), True)
    yield Variant(source, "transitions deleted", lambda folder: shutil.rmtree(folder / "transitions"), True)
    yield Variant(source, "another run's added", add_another)


def buffer_variants() -> Iterator[Variant]:
    """:return: Of a saved replay buffer"""
    source, file = "buffer", "buffer.safetensors"

    def altered(change: Callable[[dict[str, np.ndarray]], Any]) -> Change:
        def changed(content: bytearray) -> bytes:
            length = int.from_bytes(content[:8], "little")
            note = json.loads(content[8 : 8 + length])["__metadata__"]
            arrays = {name: array.copy() for name, array in safetensors.numpy.load(bytes(content)).items()}
            change(arrays)
            return safetensors.numpy.save(arrays, note)

        return in_bytes(file, changed)

    def said(change: Callable[[Any], Any]) -> Change:
        def changed(content: bytearray) -> bytes:
            length = int.from_bytes(content[:8], "little")
            note = json.loads(content[8 : 8 + length])["__metadata__"]["sb3_cir"]
            value = json.loads(note)
            value = change(value) or value
            return safetensors.numpy.save(safetensors.numpy.load(bytes(content)), {"sb3_cir": json.dumps(value)})

        return in_bytes(file, changed)

    def pipe(folder: Path) -> None:
        (folder / file).unlink()
        os.mkfifo(folder / file)

    for name, change in {
        "empty file": lambda content: content.clear(),
        "text": lambda content: bytearray(b"no arrays at all"),
        "cut in half": lambda content: content[: len(content) // 2],
        "last byte missing": lambda content: content[:-1],
        "a bit of the rows altered": lambda content: content.__setitem__(-9, content[-9] ^ 1),
        "a byte of the header altered": lambda content: content.__setitem__(40, content[40] ^ 1),
        "bytes behind it": lambda content: content + b"x" * 100,
        "zeros": lambda content: bytearray(len(content)),
    }.items():
        yield Variant(source, name, in_bytes(file, change), True)
    yield Variant(source, "deleted", lambda folder: (folder / file).unlink(), True)
    yield Variant(source, "a pipe", pipe)
    yield Variant(source, "a pickle that runs code", in_bytes(file, lambda content: pickle.dumps(Harm(), 4)))
    yield Variant(source, "a pickle of protocol 0 that runs code", in_bytes(file, lambda content: pickle.dumps(Harm(), 0)))
    yield Variant(source, "a header of 2**60 bytes", in_bytes(file, lambda content: struct.pack("<Q", 2**60) + content[8:]))
    column = "replay/rewards"
    for name, function in {
        "of fewer rows": lambda array: array[:-1].copy(),
        "of one row": lambda array: array[:1].copy(),
        "of another kind": lambda array: array.astype(np.float64),
        "of two environments": lambda array: np.repeat(array, 2, axis=1),
        "altered": lambda array: array + 1,
    }.items():
        yield Variant(source, f"rewards {name}", altered(lambda a, f=function: a.update({column: f(a[column])})))
    yield Variant(source, "rewards missing", altered(lambda arrays: arrays.pop(column)))
    yield Variant(source, "a column more", altered(lambda arrays: arrays.update({"replay/x": np.zeros(3)})))
    yield Variant(source, "a buffer more", altered(lambda arrays: arrays.update({"other/rewards": np.zeros(3)})))
    for key in ("format", "buffers", "checksum"):
        yield Variant(source, f"{key} missing", said(drop(key)))
        for name, value in WRONG.items():
            yield Variant(source, f"{key} is {name}", said(put(key, value=value)))
    for key, values in {
        "pos": [20, 50, 10**9, -1, 1.5],
        "full": [False, "x"],
        "size": [10, 10**12],
        "n_envs": [2, 0],
        "columns": [{}],
        "values": [{"x": 1}],
        "blocks": [[{"file": "/dev/zero", "first": 0, "rows": 1, "checksum": 0}]],
    }.items():
        for value in values:
            yield Variant(source, f"{key}={value!r}"[:60], said(put("buffers", "replay", key, value=value)))


def random_variants(count: int, seed: int) -> Iterator[Variant]:
    """
    :param count: How many
    :param seed: Of what is chosen
    :return: One to eight bytes of a file altered
    """
    generator = random.Random(seed)
    places = (
        ("model", "model.zip"),
        ("first format", "model.zip"),
        ("checkpoint", NEWEST),
        ("buffer", "buffer.safetensors"),
        ("checkpoint", "transitions/*.safetensors"),
    )
    for index in range(count):
        source, pattern = generator.choice(places)
        chosen = [(generator.random(), generator.randrange(1, 256)) for _ in range(generator.randrange(1, 9))]
        ends = generator.random() < 0.5  # where zips have their directory, and arrays their header

        backwards = pattern.endswith(".zip")

        def change(content: bytearray, chosen: Any = chosen, ends: bool = ends, backwards: bool = backwards) -> None:
            for place, value in chosen:
                at = int(place * min(len(content), 1500)) if ends else int(place * len(content))
                content[-1 - at if backwards else at] ^= value

        yield Variant(source, f"random bytes, {index}", in_bytes(pattern, change), True)


def variants(count: int, seed: int) -> list[Variant]:
    """
    :param count: How many with random bytes altered
    :param seed: Of those
    :return: All of them
    """
    groups = (
        model_variants(),
        first_format_variants(),
        checkpoint_variants(),
        buffer_variants(),
        random_variants(count, seed),
    )
    return [variant for group in groups for variant in group]
