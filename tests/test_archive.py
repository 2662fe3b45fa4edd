"""Models that others made: what is loaded without a pickle, and what is refused."""

import base64
import contextlib
import io
import json
import math
import os
import pickle
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import safetensors.numpy
import torch as th
from gymnasium import spaces
from small import changed, small, weights
from stable_baselines3 import SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.envs import FakeImageEnv, SimpleMultiObsEnv
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from sb3_cir import CIR
from sb3_cir.baselines import SACTanh, SimBa
from sb3_cir.callbacks import NonFiniteGuard
from sb3_cir.policies import CIRPolicy
from sb3_cir.runs import arguments, files, state
from sb3_cir.runs.plain import from_plain, to_plain


class Makes:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def alter(path: Path, change: Any = None, members: dict[str, bytes] | None = None) -> Path:
    """A copy in which ``change`` was made to the JSON data, and other entries are as given."""
    altered = path.with_name("altered.zip")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(altered, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "data" and change is not None:
                data = json.loads(content)
                change(data)
                content = json.dumps(data).encode()
            target.writestr(name, (members or {}).get(name, content))
    return altered


def poison(data: dict[str, Any], mark: Path, names: set[str] | None = None) -> None:
    """Replace what is pickled, or all of the attributes named, with what makes ``mark``."""
    for name, value in data.items():
        if name != "_plain" and (name in names if names else isinstance(value, dict) and ":serialized:" in value):
            # A directory can be made once: each in a place of its own.
            code = base64.b64encode(pickle.dumps(Makes(mark / name))).decode()
            data[name] = {":type:": "", ":serialized:": code}


def saved(
    tmp_path: Path, env: Any = "Pendulum-v1", policy: str = "MlpPolicy", first_format: bool = False, **kwargs: Any
) -> tuple[Any, Path]:
    """A model and its file, in our format or as version 0.1 wrote it: SB3's, with plain values of what is pickled."""
    model = small(env, policy, **kwargs)
    model.learn(30)
    path = tmp_path / "model.zip"
    if not first_format:
        model.save(tmp_path / "model")
        return model, path
    BaseAlgorithm.save(model, path)
    plain = {arguments.attribute(name): each.value for name, each in arguments.take(model).items() if each.missing is None}
    plain |= {name: to_plain(getattr(model, name)) for name in ("observation_space", "action_space")}

    def add(data: dict[str, Any]) -> None:
        data["_plain"] = {name: value for name, value in plain.items() if isinstance(data[name], dict)}

    alter(path, add).replace(path)
    return model, path


def same(model: Any, loaded: Any) -> None:
    """Weights, optimisers, temperature and actions."""
    assert not changed(weights(model), loaded)
    for name in ("actor", "critic"):
        ours, theirs = (getattr(each, name).optimizer.state_dict()["state"] for each in (model, loaded))
        assert all(th.equal(ours[key]["exp_avg"], theirs[key]["exp_avg"]) for key in ours)
    if model.log_ent_coef is not None:
        assert th.equal(model.log_ent_coef, loaded.log_ent_coef)
    model.observation_space.seed(0)
    for _ in range(3):
        observation = model.observation_space.sample()
        actions = [each.predict(observation, deterministic=True)[0] for each in (model, loaded)]
        np.testing.assert_array_equal(*actions)


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "lists": dict(policy_kwargs=dict(net_arch=dict(pi=[16], qf=[8, 8]), critic_network="NoTanh"), train_freq=(2, "step")),
    "classes": dict(policy_kwargs=dict(activation_fn=nn.Tanh, optimizer_class=th.optim.AdamW)),
    "schedule": dict(learning_rate=LinearSchedule(1e-3, 1e-4, 0.5)),
    "n_steps": dict(n_steps=3),
    "fixed": dict(ent_coef=0.2, use_sde=True),
    "dict": dict(env=SimpleMultiObsEnv(discrete_actions=False), policy="MultiInputPolicy"),
    "tanh": dict(model_class=SACTanh),
    "simba": dict(model_class=SimBa),
}


@pytest.mark.parametrize("first_format", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_no_pickle_is_needed(tmp_path: Path, case: str, first_format: bool) -> None:
    """With and without an environment; and it learns on."""
    model, path = saved(tmp_path, first_format=first_format, **CASES[case])
    mark = tmp_path / "mark"
    mark.mkdir()
    altered = alter(path, lambda data: poison(data, mark))
    for env in (None, model.get_env()):
        loaded = type(model).load(altered, env=env, device="cpu", trusted=False)
        same(model, loaded)
    assert not list(mark.iterdir())
    for name in ("observation_space", "action_space", "policy_kwargs", "train_freq", "learning_rate", "replay_buffer_class"):
        ours, theirs = getattr(model, name), getattr(loaded, name)
        assert vars(ours) == vars(theirs) if name == "learning_rate" and case == "schedule" else ours == theirs
    assert loaded.policy_class is model.policy_class
    assert loaded.learn(12, reset_num_timesteps=False).num_timesteps == model.num_timesteps + 12


@pytest.mark.parametrize("first_format", [False, True])
def test_every_attribute(tmp_path: Path, first_format: bool) -> None:
    """Whatever is a pickle in the file, also where SB3 writes none, is not read; what is needed is asked for by name."""
    model, path = saved(tmp_path, first_format=first_format)
    with zipfile.ZipFile(path) as archive:
        data = json.loads(archive.read("data"))
    mark = tmp_path / "mark"
    mark.mkdir()
    asked_for = set()
    for name in sorted(set(data) - {"_plain"}):
        altered = alter(path, lambda data, name=name: poison(data, mark, {name}))
        try:
            same(model, CIR.load(altered, device="cpu", trusted=False))
        except ValueError as error:
            asked_for.add(name)
            if name not in state.COUNTERS:
                assert f"altered.zip: {name}: there is no plain value" in str(error)  # noqa: PT017
                same(model, CIR.load(altered, device="cpu", trusted=False, custom_objects={name: getattr(model, name)}))
    assert not list(mark.iterdir())
    # Beside the pickles there is a manifest, or else the plain values of what SB3 pickles alone.
    assert ("gamma" in asked_for) == first_format
    assert "policy_class" not in asked_for
    # It is a pickle that works: trusted as it is by default, it does what it was made for.
    with contextlib.suppress(ValueError):
        CIR.load(alter(path, lambda data: poison(data, mark, {"gamma"})), device="cpu")
    assert [each.name for each in mark.iterdir()] == ["gamma"]


@pytest.mark.parametrize("member", ["policy.pth", "pytorch_variables.pth", "actor.optimizer.pth"])
@pytest.mark.parametrize("trusted", [False, True])
def test_pickle_among_the_tensors(tmp_path: Path, member: str, trusted: bool) -> None:
    """In SB3's format. Tensors need no pickle, whoever made them."""
    _, path = saved(tmp_path, first_format=True)
    mark = tmp_path / "mark"
    bad = io.BytesIO()
    th.save({"log_ent_coef": Makes(mark)}, bad)
    for content, message in ((bad.getvalue(), "there is more than tensors in"), (pickle.dumps(Makes(mark)), "")):
        altered = alter(path, members={member: content})
        with pytest.raises(ValueError, match=rf"altered\.zip: {message}.*{member}|altered\.zip: {member}: this is no archive"):
            CIR.load(altered, device="cpu", trusted=trusted)
    assert not mark.exists()
    assert pickle.loads(pickle.dumps(Makes(mark))) is None
    assert mark.exists()


def test_names_of_tensors(tmp_path: Path) -> None:
    """A file sets what the model has, not what it names: SB3's loader follows any path of attributes."""
    _, path = saved(tmp_path, first_format=True)
    variables = io.BytesIO()
    th.save({"log_ent_coef": th.zeros(1), "actor.mu.weight.__class__.__base__.data": th.zeros(1)}, variables)
    altered = alter(path, members={"pytorch_variables.pth": variables.getvalue()})
    for trusted in (False, True):
        with pytest.raises(
            ValueError, match=r"altered\.zip: variables/actor\.mu\.weight\.__class__\.__base__\.data was .*not there"
        ):
            CIR.load(altered, device="cpu", trusted=trusted)
    assert "data" not in vars(th.Tensor)


@pytest.mark.parametrize("member", ["policy.pth", "pytorch_variables.pth", "actor.optimizer.pth", "ent_coef_optimizer.pth"])
def test_each_part_is_needed(tmp_path: Path, member: str) -> None:
    _, path = saved(tmp_path, first_format=True)
    part = path.with_name("part.zip")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(part, "w") as target:
        for name in source.namelist():
            if name != member:
                target.writestr(name, source.read(name))
    for trusted in (False, True):
        with pytest.raises(ValueError, match=r"part\.zip"):
            CIR.load(part, device="cpu", trusted=trusted)


def test_another_algorithms(tmp_path: Path) -> None:
    """Being a SAC is not being the same algorithm."""
    sac = SAC("MlpPolicy", "Pendulum-v1", policy_kwargs=dict(net_arch=[16]), buffer_size=10, device="cpu")
    sac.save(tmp_path / "sac.zip")
    for trusted in (False, True):
        with pytest.raises(ValueError, match=r"sac\.zip is not of a CIR: it has no .*convex_coef"):
            CIR.load(tmp_path / "sac.zip", device="cpu", trusted=trusted)
    _, path = saved(tmp_path)
    with pytest.raises(ValueError, match=r"model\.zip is of a CIR, not of a SimBa\."):
        SimBa.load(path, device="cpu")
    _, path = saved(tmp_path, first_format=True)
    with pytest.raises(ValueError, match=r"model\.zip has a CIRPolicy, which is no policy of a SimBa"):
        SimBa.load(path, device="cpu")


def manifest(path: Path, change: Any) -> Path:
    """A copy in which ``change`` was made to the manifest."""
    with zipfile.ZipFile(path) as archive:
        said = json.loads(archive.read("manifest.json"))
    change(said)
    return alter(path, members={"manifest.json": json.dumps(said).encode()})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("convex_coef", 7, r"convex_coef=7: it must lie in \[0, 1\]"),
        ("convex_coef", "x", "convex_coef is 'x', float was expected"),
        ("precision", "int3", "precision='int3': it must be 'float32' or 'bfloat16'"),
        ("sample_reuse", -3, "sample_reuse=-3: it must be a whole number of at least 1"),
        ("sample_reuse", 10**30, "sample_reuse is 1000.*, it must be from"),
        ("entropy_in_target", "no", "entropy_in_target is 'no', bool was expected"),
        ("buffer_size", -5, "buffer_size is -5, it must be from 1 to"),
        ("tau", math.nan, "tau is nan, it must be a number"),
        ("stats_window_size", -1, "stats_window_size is -1, it must be from 0"),
        ("train_freq", {":train_freq:": [0, "step"]}, "train_freq cannot be read .a train_freq of 0, at least 1"),
        ("policy_kwargs", {"n_critics": 300_000}, "policy_kwargs has a 300000 in it"),
        ("policy_kwargs", {"net_arch": [16] * 200_000}, "policy_kwargs has a list of 200000"),
        ("policy_kwargs", {"net_arch": [4000] * 16}, r"policy/.* is \(.*\) there, and"),
        ("policy_kwargs", {"x": 1}, "no CIR can have what it says .TypeError"),
    ],
    ids=str,
)
def test_values_that_no_constructor_allows(tmp_path: Path, name: str, value: Any, message: str) -> None:
    _, path = saved(tmp_path)
    altered = manifest(path, lambda said: said["arguments"][name].update(value=value))
    with pytest.raises(ValueError, match=rf"altered\.zip.*{message}"):
        CIR.load(altered, device="cpu", trusted=False)


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_that_hides_its_size(kind: int) -> None:
    """It says that it has 1,000 bytes, with their checksum, and holds 100 MiB: no more than it says is ever unpacked."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", kind) as archive:
        archive.writestr("manifest.json", bytes(100 * 2**20))
    content = bytearray(packed.getvalue())
    entry = content.rfind(b"PK\x01\x02")
    struct.pack_into("<I", content, entry + 16, zlib.crc32(bytes(1000)))
    struct.pack_into("<I", content, entry + 24, 1000)
    tracemalloc.start()
    try:
        with contextlib.suppress(files.DamagedError):
            assert files.unpack_archive(bytes(content), "x.zip") == {"manifest.json": bytes(1000)}
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def test_two_processes_that_write_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a part of its own, so that one of the two is there whole."""
    with files._part_of(tmp_path / "model.zip") as ours:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with files._part_of(tmp_path / "model.zip") as theirs:
            assert ours != theirs
            theirs.write_text("theirs")
        ours.write_text("ours")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["ours"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    """As with SB3, what it leads to is written."""
    (tmp_path / "there").mkdir()
    (tmp_path / "model.zip").symlink_to(tmp_path / "there" / "real.zip")
    small("Pendulum-v1").save(tmp_path / "model")
    assert (tmp_path / "model.zip").is_symlink()
    assert CIR.load(tmp_path / "there" / "real", device="cpu").num_timesteps == 0


def test_networks_are_compared_before_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those with weight decay, which not every optimiser has."""
    _, path = saved(tmp_path, policy_kwargs=dict(critic_weight_decay=0.1))
    altered = manifest(path, lambda said: said["arguments"]["policy_kwargs"]["value"].update(net_arch=[4000] * 16))
    monkeypatch.setattr(CIR, "_setup_model", lambda self: pytest.fail("it was made"))
    with pytest.raises(ValueError, match=r"altered\.zip: policy/.* is \(.*\) there, and"):
        CIR.load(altered, device="cpu", trusted=False)


def test_where_to_write_is_no_files_to_say(tmp_path: Path) -> None:
    _, path = saved(tmp_path)
    altered = manifest(path, lambda said: said["arguments"]["tensorboard_log"].update(value=str(tmp_path / "chosen")))
    assert CIR.load(altered, device="cpu", trusted=False).tensorboard_log is None


@pytest.mark.parametrize("first_format", [False, True])
def test_a_long_list(tmp_path: Path, first_format: bool) -> None:
    """Somebody's own of their model comes back. Of a file that is not trusted it is not read, or not read in."""
    model, path = saved(tmp_path)
    model.losses = [0.5] * 600_000
    if first_format:
        BaseAlgorithm.save(model, path)
    else:
        model.save(path)
    assert len(CIR.load(path, device="cpu").losses) == 600_000
    if first_format:
        with pytest.raises(ValueError, match=r"model\.zip: data: .* with 600\d+ values, 500000 are allowed"):
            CIR.load(path, device="cpu", trusted=False)
    else:
        assert not hasattr(CIR.load(path, device="cpu", trusted=False), "losses")


def test_infinite_bounds(tmp_path: Path) -> None:
    """JSON has no word for them."""
    space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    _, path = saved(tmp_path, env=gym.wrappers.TransformObservation(gym.make("Pendulum-v1"), lambda obs: obs, space))
    assert CIR.load(path, device="cpu", trusted=False).observation_space == space


def test_what_is_not_finite(tmp_path: Path) -> None:
    """What ``NonFiniteGuard`` saves can be looked at; a stranger's file cannot have it."""
    model = small("Pendulum-v1")
    with th.no_grad():
        model.actor.mu.weight[0, 3] = math.nan
    with pytest.raises(ValueError, match="the model as it is now was saved to"):
        model.learn(30, callback=NonFiniteGuard(tmp_path))
    (path,) = tmp_path.glob("non_finite_*.zip")
    assert CIR.load(path, device="cpu").actor.mu.weight.isnan().sum() == 1
    with pytest.raises(ValueError, match=r"non_finite_.*: policy/actor\.mu\.weight has nan in it"):
        CIR.load(path, device="cpu", trusted=False)


@pytest.mark.parametrize(
    "array", [np.zeros(1, np.float32), np.zeros((16, 3), np.float64), np.full((16, 3), np.inf, np.float32)]
)
def test_moments_that_do_not_fit(tmp_path: Path, array: np.ndarray) -> None:
    """The fused Adam would run past the end of those that are too small."""
    _, path = saved(tmp_path)
    with zipfile.ZipFile(path) as archive:
        arrays = safetensors.numpy.load(archive.read("arrays.safetensors"))
    content = safetensors.numpy.save(arrays | {"actor.optimizer/0/exp_avg": array})
    with pytest.raises(ValueError, match=r"altered\.zip.*actor\.optimizer/0/exp_avg"):
        CIR.load(alter(path, members={"arrays.safetensors": content}), device="cpu", trusted=False)


def test_environment_named_in_a_file(tmp_path: Path) -> None:
    """SB3 makes it, and ``module:name`` has Gymnasium import a module."""
    _, path = saved(tmp_path)
    altered = alter(path, lambda data: data.update(env="antigravity:Pendulum-v1"))
    assert CIR.load(altered, device="cpu", trusted=False).get_env() is None


class MyPolicy(CIRPolicy):
    """Somebody's own."""


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (dict(policy=MyPolicy), dict(policy_class=MyPolicy)),
        (dict(learning_rate=lambda _: 1e-3), dict(learning_rate=1e-3)),
    ],
    ids=["policy", "schedule"],
)
def test_refused_by_name(tmp_path: Path, arguments: dict, given: dict) -> None:
    model, path = saved(tmp_path, **arguments)
    (name,) = given
    message = rf"model\.zip: {name}: there is no plain value, .* Pass custom_objects={{'{name}': \.\.\.}}, or trusted=True"
    with pytest.raises(ValueError, match=message):
        CIR.load(path, device="cpu", trusted=False)
    same(model, CIR.load(path, device="cpu", trusted=False, custom_objects=given))


def test_action_noise(tmp_path: Path) -> None:
    model, path = saved(tmp_path, action_noise=NormalActionNoise(np.zeros(1), 0.3 * np.ones(1)))
    loaded = CIR.load(path, device="cpu", trusted=False)
    same(model, loaded)
    assert repr(loaded.action_noise) == repr(model.action_noise)


def test_archive_without_plain_values(tmp_path: Path) -> None:
    """As SB3 writes it."""
    model, path = saved(tmp_path, first_format=True)
    old = alter(path, lambda data: data.pop("_plain"))
    given = dict(policy_class=CIRPolicy, replay_buffer_class=None, train_freq=1)
    with pytest.raises(ValueError, match="policy_class, train_freq, replay_buffer_class, observation_space"):
        CIR.load(old, device="cpu", trusted=False)
    with pytest.raises(ValueError, match=r"observation_space, action_space: there is no plain.* or env=\.\.\., or trusted"):
        CIR.load(old, device="cpu", trusted=False, custom_objects=given)
    same(model, CIR.load(old, env=gym.make("Pendulum-v1"), device="cpu", trusted=False, custom_objects=given))
    same(model, CIR.load(old, device="cpu"))


def test_trusted_is_as_before(tmp_path: Path) -> None:
    """By path without suffix, by file object; a pickled policy of one's own comes back."""
    model, path = saved(tmp_path, policy=MyPolicy)
    assert CIR.load(path.with_suffix(""), device="cpu").policy_class is MyPolicy
    given = dict(policy_class=MyPolicy)
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)  # where saving leaves it
        same(model, CIR.load(file, device="cpu", trusted=False, custom_objects=given))
    same(model, CIR.load(path.with_suffix(""), device="cpu", trusted=False, custom_objects=given))
    assert CIR.load(path, device="cpu")._last_obs is not None


def test_no_archive(tmp_path: Path) -> None:
    (tmp_path / "model.zip").write_bytes(b"no zip")
    with pytest.raises(ValueError, match=r"model\.zip: this is no archive that can be read"):
        CIR.load(tmp_path / "model.zip", trusted=False)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (3,), np.float32),
        spaces.Box(np.array([0.1, -0.2]), np.array([1, np.inf]), dtype=np.float64),
        spaces.Box(-1, 1, (), np.float32),
        FakeImageEnv(discrete=False).observation_space,
        spaces.Dict(
            [("b", spaces.Discrete(3, start=1)), ("a", spaces.MultiBinary([2, 2])), ("c", spaces.MultiDiscrete([2, 3]))]
        ),
    ],
    ids=str,
)
def test_spaces(space: spaces.Space) -> None:
    again = from_plain(json.loads(json.dumps(to_plain(space))))
    assert again == space
    assert again.dtype == space.dtype
    if isinstance(space, spaces.Dict):
        assert list(again.spaces) == list(space.spaces)


class Bounded(spaces.Box):
    """A Box of somebody's own."""


def test_spaces_of_ones_own(tmp_path: Path) -> None:
    """They are saved as Gymnasium's, and fit; a file that is trusted has them as they were."""

    class Env(gym.Wrapper):
        observation_space = Bounded(-np.inf, np.inf, (3,), np.float32)

    model, path = saved(tmp_path, env=Env(gym.make("Pendulum-v1")))
    same(model, CIR.load(path, Env(gym.make("Pendulum-v1")), "cpu", trusted=False))
    for trusted, kind in ((False, spaces.Box), (True, Bounded)):
        assert type(CIR.load(path, device="cpu", trusted=trusted).observation_space) is kind


@pytest.mark.parametrize(
    "plain",
    [
        {":class:": "os.system"},
        {":class:": "torch.hub.load"},
        {":class:": "sb3_cir.cir.CIR"},
        {":class:": "stable_baselines3.common.save_util.cloudpickle.loads"},
        {":class:": "torch.nn.modules.module.Tensor"},
        {":object:": "Makes", "arguments": {}},
        {":space:": ["Text", 3]},
        {":train_freq:": [1, "year"]},
    ],
    ids=str,
)
def test_what_a_file_may_not_name(plain: Any) -> None:
    with pytest.raises(ValueError, match=r"no meaning here|that a file may name|there is no space|is not a valid"):
        from_plain(plain)


def test_arrays_are_no_pickle_whatever_the_length_of_their_header(tmp_path: Path) -> None:
    """It is the first that stands in the file, and one in 32 begins with the byte that pickles begin with."""
    first_bytes = set()
    for length in range(1, 300):
        content = files.pack({"a" * length: np.zeros(1, np.float32)})
        (tmp_path / "arrays").write_bytes(content)
        first_bytes.add(content[0])
        assert not files.is_pickle(tmp_path / "arrays")
        assert not files.is_pickle(io.BytesIO(content))
    assert 0x80 in first_bytes
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        for value in (None, 3, {}, {"a": 1}, np.zeros(300)):
            stream = io.BytesIO(pickle.dumps(value, protocol))
            assert files.is_pickle(stream)
            assert stream.tell() == 0
