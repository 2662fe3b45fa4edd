"""Minari's datasets, made here by Minari itself, in replay buffers."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from small import small
from test_datasets import episode

from sb3_cir import CIR, datasets
from sb3_cir.buffers import SymmetricReplayBuffer
from sb3_cir.envs import FlatFloat32

minari = pytest.importorskip("minari", reason="needs Minari (the minari extra)")
pytest.importorskip("h5py", reason="needs h5py (the minari extra)")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


class Named(gym.Env):
    """Observations by name, in an order that is not the alphabet's, one of them 0-d and one of another kind."""

    observation_space = spaces.Dict(
        speed=spaces.Box(-9, 9, (2,)), height=spaces.Box(-9, 9, (), np.float64), contact=spaces.Discrete(3)
    )
    action_space = spaces.Box(-1, 3, (1,))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}


def dataset(name: str, env: gym.Env, *recorded: dict[str, Any]) -> Any:
    """As ``minari.DataCollector`` makes it, without what it needs beside."""
    buffers = [minari.data_collector.EpisodeBuffer(**{key: listed(value) for key, value in each.items()}) for each in recorded]
    spaces_of = dict(observation_space=env.observation_space, action_space=env.action_space)
    return minari.create_dataset_from_buffers(name, buffers, **spaces_of)


def listed(value: Any) -> Any:
    if isinstance(value, tuple):
        return value
    return {key: listed(each) for key, each in value.items()} if isinstance(value, dict) else list(value)


def named_episode(steps: int) -> dict[str, Any]:
    Named.observation_space.seed(steps)
    samples = [Named.observation_space.sample() for _ in range(steps + 1)]
    observations = {key: np.array([each[key] for each in samples]) for key in Named.observation_space.spaces}
    return episode(steps) | dict(observations=observations, actions=np.full((steps, 1), 2, np.float32))


@pytest.mark.parametrize("by", ["id", "folder", "object"])
def test_vectors(place: Path, by: str) -> None:
    """Float64 in the dataset; ends of each kind, one that is neither's among them."""
    recorded = [episode(5, 1), episode(4, 2, "terminations"), episode(3, 3, "")]
    for each in recorded:
        each["observations"] = each["observations"].astype(np.float64)
    env = gym.make("Pendulum-v1").unwrapped
    env.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    made = dataset("pendulum/random-v0", env, *recorded)
    model = small("Pendulum-v1")
    source = dict(id="pendulum/random-v0", folder=place / "pendulum" / "random-v0", object=made)[by]
    assert datasets.fill(model, source) == 12
    buffer = model.replay_buffer
    for key, part in (("observations", slice(-1)), ("next_observations", slice(1, None))):
        expected = np.concatenate([each["observations"][part] for each in recorded])
        np.testing.assert_allclose(getattr(buffer, key)[:12, 0], expected, rtol=1e-6)
    np.testing.assert_allclose(buffer.actions[:12, 0], np.concatenate([each["actions"] for each in recorded]) / 2, atol=1e-6)
    np.testing.assert_allclose(buffer.rewards[:12, 0], np.concatenate([each["rewards"] for each in recorded]), rtol=1e-6)
    assert np.flatnonzero(buffer.dones[:12, 0]).tolist() == [4, 8, 11]
    assert np.flatnonzero(buffer.timeouts[:12, 0]).tolist() == [4, 11]
    model.learn(30)


def test_what_the_collector_records() -> None:
    pytest.importorskip("jax", reason="needs jax, as Minari's collector does")
    collector = minari.DataCollector(gym.make("Pendulum-v1", max_episode_steps=6))
    seen = []
    for seed in range(2):
        seen.append(collector.reset(seed=seed)[0])
        for _ in range(6 - seed):  # the second was left under way
            seen.append(collector.step(collector.action_space.sample())[0])
    made = collector.create_dataset("pendulum/collected-v0")
    model = small("Pendulum-v1")
    assert datasets.fill(model, made) == 11
    np.testing.assert_array_equal(model.replay_buffer.next_observations[:11, 0], np.array([*seen[1:7], *seen[8:]]))
    assert np.flatnonzero(model.replay_buffer.timeouts[:11, 0]).tolist() == [5, 10]


@pytest.mark.parametrize("flat", [True, False])
def test_named_observations(flat: bool) -> None:
    """By name, or as one vector in the order of the model's environment. When they are read, names are sorted."""
    recorded = named_episode(4)
    dataset("named/random-v0", Named(), recorded)
    made = minari.load_dataset("named/random-v0")
    assert list(made.observation_space.spaces) == sorted(Named.observation_space.spaces)
    env = FlatFloat32(Named()) if flat else Named()
    model = small(env, "MlpPolicy" if flat else "MultiInputPolicy", replay_buffer_class=SymmetricReplayBuffer)
    assert datasets.fill(model, made) == 4
    buffer, observations = model.replay_buffer.offline, recorded["observations"]
    assert (buffer.actions[:4] == 0.5).all()
    if flat:
        one_hot = np.eye(3)[observations["contact"]]
        vectors = np.concatenate([observations["speed"], observations["height"][:, None], one_hot], axis=1)
        np.testing.assert_allclose(buffer.observations[:4, 0], vectors[:-1], rtol=1e-6)
        np.testing.assert_allclose(buffer.next_observations[:4, 0], vectors[1:], rtol=1e-6)
    else:
        np.testing.assert_allclose(buffer.next_observations["height"][:4, 0, 0], observations["height"][1:], rtol=1e-6)
        np.testing.assert_array_equal(buffer.observations["contact"][:4, 0, 0], observations["contact"][:-1])


class Vector(gym.Env):
    """Makes its vector itself, in an order that nobody can know."""

    observation_space = spaces.Box(-9, 9, (6,))
    action_space = Named.action_space


def test_named_observations_in_an_unknown_order(tmp_path: Path) -> None:
    """The length alone says nothing."""
    made = dataset("named/random-v0", Named(), named_episode(4))
    order = "observations are named contact, height, speed. In which order they stand in the model's one vector cannot be"
    made = minari.load_dataset("named/random-v0")
    with pytest.raises(ValueError, match=f"{order} known: none of its environments has these names with these shapes"):
        datasets.fill(small(Vector()), made)
    small(FlatFloat32(Named())).save(tmp_path / "model")
    loaded = CIR.load(tmp_path / "model", device="cpu")
    with pytest.raises(ValueError, match=f"{order} seen without its environment: pass one by set_env"):
        datasets.fill(loaded, made)
    loaded.set_env(FlatFloat32(Named()))
    assert datasets.fill(loaded, made) == 4


class Parts(gym.Env):
    """Observations of which some have numbers in place of names."""

    observation_space = spaces.Dict(
        speeds=spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (3,)))), contact=spaces.Discrete(3)
    )
    action_space = spaces.Box(-1, 3, (1,))


def parts(speeds: int, contacts: tuple[int, ...]) -> dict[str, Any]:
    """An episode of 2 steps."""
    rng = np.random.default_rng(0)
    pair = tuple(list(rng.uniform(-1, 1, (length, size)).astype(np.float32)) for length, size in ((3, 2), (speeds, 3)))
    observations = dict(speeds=pair, contact=np.array(contacts))
    return episode(2) | dict(observations=observations, actions=np.zeros((2, 1), np.float32))


def test_a_tuple_among_names() -> None:
    recorded = parts(3, (0, 1, 2))
    dataset("parts/random-v0", Parts(), recorded)
    model = small(FlatFloat32(Parts()))
    assert datasets.fill(model, "parts/random-v0") == 2
    speeds = recorded["observations"]["speeds"]
    expected = np.concatenate([speeds[0], speeds[1], np.eye(3)], axis=1)
    np.testing.assert_allclose(model.replay_buffer.observations[:2, 0], expected[:-1], rtol=1e-6)


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        (parts(5, (0, 1, 2)), r"observations/speeds/1 are float32 of shape \(5, 3\), \(3, 3\) was expected: 2 steps"),
        (parts(3, (0, 1, -1)), "observations/contact have -1 in them, where 0 to 2 is allowed"),
    ],
)
def test_what_cannot_become_a_vector(recorded: dict[str, Any], message: str) -> None:
    """Entries are looked at before they are flattened, which cuts the longer ones and takes -1 for the last."""
    dataset("parts/random-v0", Parts(), recorded)
    with pytest.raises(ValueError, match=f"episode 0 of parts/random-v0: {message}"):
        datasets.fill(small(FlatFloat32(Parts())), "parts/random-v0")


@pytest.mark.parametrize("recorded", [dict(speeds=(np.zeros((3, 2)), np.zeros((3, 3)))), np.zeros((3, 8))])
def test_an_entry_that_is_not_there(recorded: Any) -> None:
    with pytest.raises(ValueError, match=r"^episode 0: observations have no contact, which the dataset's space has"):
        datasets._check_entries("episode 0", "observations", recorded, 2, Parts.observation_space)


def test_images() -> None:
    """With their channels last, as datasets are published."""

    class Sees(Named):
        observation_space = spaces.Box(0, 255, (5, 6, 3), np.uint8)

    images = np.random.default_rng(0).integers(0, 256, (5, 5, 6, 3), np.uint8)
    made = dataset("sees/random-v0", Sees(), episode(4) | dict(observations=images, actions=np.zeros((4, 1), np.float32)))
    model = small(Sees())
    assert datasets.fill(model, made) == 4
    np.testing.assert_array_equal(model.replay_buffer.observations[:4, 0], images[:-1].transpose(0, 3, 1, 2))


def test_dm_control() -> None:
    """A dataset of plain dm_control in a model of the paper's protocol, whose observations are flat."""
    pytest.importorskip("dm_control", reason="needs the extra dmc")
    raw = gym.make("dm_control/walker-walk-v0")
    raw.action_space.seed(0)
    observed, actions = [raw.reset(seed=0)[0]], []
    for _ in range(4):
        actions.append(raw.action_space.sample())
        observed.append(raw.step(actions[-1])[0])
    observations = {key: np.array([each[key] for each in observed]) for key in raw.observation_space.spaces}
    made = dataset("walker/random-v0", raw, episode(4) | dict(observations=observations, actions=actions))
    model = small(FlatFloat32(gym.make("dm_control/walker-walk-v0")))
    assert datasets.fill(model, made) == 4
    flat = [spaces.flatten(raw.observation_space, each) for each in observed]
    np.testing.assert_allclose(model.replay_buffer.observations[:4, 0], np.array(flat[:-1]), rtol=1e-6)


def test_refused(place: Path) -> None:
    made = dataset("pendulum/random-v0", gym.make("Pendulum-v1"), episode(4))
    with pytest.raises(ValueError, match=r"dataset's observation_space is Box\(\[-1\..*\(3,\).*, the model's Box\(.*\(2,\)"):
        datasets.fill(small("MountainCarContinuous-v0"), made)
    stretched = gym.wrappers.RescaleAction(gym.make("Pendulum-v1"), np.float32(-1), np.float32(1))
    with pytest.raises(ValueError, match=r"The dataset's action_space is Box\(-2\.0, 2\.0.*, the model's Box\(-1\.0, 1\.0"):
        datasets.fill(small(stretched), made)
    with pytest.raises(ValueError, match=r"dataset's observation_space is Box.*, the model's Dict\('speed'"):
        datasets.fill(small(Named(), "MultiInputPolicy"), made)
    model = small("Pendulum-v1")
    for name in ("pendulum/nothing-v0", "no such folder/", "episodes"):
        with pytest.raises(FileNotFoundError, match=f"{name} is neither a folder nor a Minari dataset on this machine"):
            datasets.fill(model, name)
    path = next(place.rglob("metadata.json"))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"pendulum/random-v0: this Minari dataset cannot be read \("):
        datasets.fill(model, "pendulum/random-v0")
    path.write_bytes(content)
    path = next(place.rglob("main_data.hdf5"))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"pendulum/random-v0: this Minari dataset cannot be read \("):
        datasets.fill(model, "pendulum/random-v0")
    assert model.replay_buffer.size() == 0
