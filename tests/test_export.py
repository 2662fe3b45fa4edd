"""Policies as files of their own: what they compute, what they say of themselves, and what is refused."""

import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import RescaleAction
from small import small
from stable_baselines3 import PPO, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv, SimpleMultiObsEnv
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize
from test_normalization import stepped

from sb3_cir import CIR, export
from sb3_cir.baselines import SimBa
from sb3_cir.baselines.simba import RSNorm
from sb3_cir.cir_simba import CIRSimBa
from sb3_cir.export import NOTE
from sb3_cir.runs import normalization

has_onnx = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript"))
needs_onnx = pytest.mark.skipif(not has_onnx, reason="needs ONNX Runtime (the export extra)")
FORMATS = [pytest.param(".onnx", marks=needs_onnx), ".pt", ".pt2"]


class Uneven(gym.Env):
    """Observations by name and of every kind; actions with bounds of their own."""

    observation_space = spaces.Dict(
        position=spaces.Box(-np.inf, np.inf, (3,), np.float64),
        height=spaces.Box(-5, 5, (), np.float32),
        phase=spaces.Discrete(3),
        camera=spaces.Box(0, 255, (3, 36, 36), np.uint8),
    )
    action_space = spaces.Box(np.array([-2, 0], np.float32), np.array([1, 30], np.float32))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}


class Stretched(gym.ActionWrapper):
    """Pendulum with actions between -7 and 3."""

    def __init__(self):
        super().__init__(gym.make("Pendulum-v1"))
        self.action_space = spaces.Box(-7.0, 3.0, (1,), np.float32)

    def action(self, action):
        return action / 4


def pendulum() -> VecEnv:
    return DummyVecEnv([Stretched])


def run(path: Path, observations: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, Any]]:
    """What a program without this package gets from the file: actions, and what it says of itself."""
    tensors = [th.as_tensor(each) for each in observations.values()]
    extra = {NOTE: ""}
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path))
        note = session.get_modelmeta().custom_metadata_map[NOTE]
        return session.run(["action"], observations)[0], json.loads(note)
    if path.suffix == ".pt2":
        module = th.export.load(path, extra_files=extra).module()
    else:
        module = th.jit.load(io.BytesIO(path.read_bytes()), _extra_files=extra)
    with th.no_grad():
        return module(*tensors).numpy(), json.loads(extra[NOTE])


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("kind", ["CIR", "VecNormalize", "RSNorm", "gSDE"])
def test_vectors(tmp_path: Path, suffix: str, kind: str) -> None:
    """On the observations of an episode, in batches of one and more, within the tolerance; and not without normalisation."""
    env: VecEnv = pendulum()
    if kind == "VecNormalize":
        env = VecNormalize(env, clip_obs=1.5)
    settings = dict(model_class=SimBa, policy_kwargs=dict(net_arch=dict(pi=[16], qf=[16]))) if kind == "RSNorm" else {}
    model = small(env, **settings, use_sde=kind == "gSDE").learn(60)
    path = tmp_path / f"policy{suffix}"
    assert export.export(model, path) <= 1e-5

    raw = pendulum()
    observations = [raw.reset()]
    observations += [raw.step(np.full((1, 1), 3, np.float32))[0] for _ in range(20)]
    batch = np.concatenate(observations).astype(np.float32)
    seen = env.normalize_obs(batch) if isinstance(env, VecNormalize) else batch
    expected, _ = model.predict(seen, deterministic=True)
    actions, said = run(path, dict(observation=batch))
    np.testing.assert_allclose(actions, expected, atol=5e-5)
    np.testing.assert_allclose(run(path, dict(observation=batch[:1]))[0], expected[:1], atol=5e-5)
    if kind in ("VecNormalize", "RSNorm"):
        assert actions.std() > 1e-3  # it says something of the observation
    if kind == "VecNormalize":
        assert np.abs(actions - model.predict(batch, deterministic=True)[0]).max() > 1e-3
    assert said["inputs"] == [dict(name="observation", shape=[3], dtype="float32")]
    assert said["output"] == dict(name="action", shape=[1], dtype="float32", low=[-7.0], high=[3.0])
    assert said["observations_normalized_inside"] == (kind == "VecNormalize")


@pytest.mark.parametrize("suffix", FORMATS)
def test_named_observations(tmp_path: Path, suffix: str) -> None:
    env = VecNormalize(DummyVecEnv([Uneven]), norm_obs_keys=["position"])
    model = small(env, "MultiInputPolicy", learning_starts=10**6).learn(30)
    path = tmp_path / f"policy{suffix}"
    export.export(model, path)
    raw = DummyVecEnv([Uneven])
    observations = [raw.reset() for _ in range(5)]
    batch = {key: np.concatenate([each[key] for each in observations]) for key in Uneven.observation_space.spaces}
    actions, said = run(path, batch)
    np.testing.assert_allclose(actions, model.predict(env.normalize_obs(batch), deterministic=True)[0], atol=2e-4)
    assert {each["name"]: (each["shape"], each["dtype"]) for each in said["inputs"]} == {
        "position": ([3], "float64"),
        "height": ([], "float32"),
        "phase": ([], "int64"),
        "camera": ([3, 36, 36], "uint8"),
    }


class Decides(BaseFeaturesExtractor):
    """Python that looks at the numbers."""

    def __init__(self, space):
        super().__init__(space, 3)

    def forward(self, observations):
        return observations if observations.sum() > 0 else -observations


class Remembers(BaseFeaturesExtractor):
    """Gives something else the next time."""

    def __init__(self, space):
        super().__init__(space, 3)
        self.calls = 0

    def forward(self, observations):
        self.calls += 1
        return observations + self.calls


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_cannot_be_exported(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"policy{suffix}"
    model = small("Pendulum-v1", policy_kwargs=dict(features_extractor_class=Decides))
    with pytest.raises(ValueError, match=r"cannot be exported: the graph ends in network\.features_extractor \(Decides\)"):
        export.export(model, path)
    model = small("Pendulum-v1", policy_kwargs=dict(features_extractor_class=Remembers))
    with pytest.raises(ValueError, match=r"differ from model\.predict by .*Remembers.* Nothing was written"):
        export.export(model, path)
    assert not path.exists()


class Noisy(BaseFeaturesExtractor):
    """Gives something else each time, by a little."""

    def __init__(self, space):
        super().__init__(space, 3)

    def forward(self, observations):
        return observations + th.rand_like(observations)


def test_wide_bounds_hide_no_difference(tmp_path: Path) -> None:
    """PPO's actions know nothing of the bounds."""
    env = RescaleAction(gym.make("Pendulum-v1"), np.float32(-1e6), np.float32(1e6))
    model = PPO("MlpPolicy", env, policy_kwargs=dict(features_extractor_class=Noisy), device="cpu")
    with pytest.raises(ValueError, match=r"differ from model\.predict by .*Noisy"):
        export.export(model, tmp_path / "policy.pt")
    assert export.export(PPO("MlpPolicy", env, device="cpu"), tmp_path / "policy.pt") <= 1e-5


def test_bad_arguments(tmp_path: Path) -> None:
    model = small("Pendulum-v1")
    with pytest.raises(ValueError, match=r"policy\.tflite: the suffix must be one of \.onnx, \.pt, \.pt2"):
        export.export(model, tmp_path / "policy.tflite")


@needs_onnx
def test_an_observation_called_as_the_output(tmp_path: Path) -> None:
    class Acted(Uneven):
        observation_space = spaces.Dict(action=spaces.Box(-1, 1, (2,)))

    with pytest.raises(ValueError, match="An entry of the observations is called 'action', as the output is"):
        export.export(small(Acted(), "MultiInputPolicy"), tmp_path / "policy.onnx")


def test_images_have_their_channels_first(tmp_path: Path) -> None:
    """The file says so: environments give them last."""

    class Sees(Uneven):
        observation_space = spaces.Box(0, 255, (36, 40, 3), np.uint8)

    model, path = small(Sees(), "CnnPolicy"), tmp_path / "new" / "folder" / "policy.pt"
    export.export(model, path)
    images = np.random.default_rng(0).integers(0, 256, (4, 36, 40, 3), np.uint8)
    actions, said = run(path, dict(observation=images.transpose(0, 3, 1, 2).copy()))
    np.testing.assert_allclose(actions, model.predict(images, deterministic=True)[0], atol=2e-4)
    axes = "channels, height, width"
    assert said["inputs"] == [dict(name="observation", shape=[3, 36, 40], dtype="uint8", axes=axes)]


@pytest.mark.parametrize(
    "settings",
    [
        dict(replay_buffer_class=HerReplayBuffer, replay_buffer_kwargs=dict(n_sampled_goal=2)),
        dict(n_steps=3),
        dict(optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False)),
    ],
)
def test_whatever_a_model_learned_from(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Its replay buffer is not needed, nor what HER asks of an environment."""
    her = "replay_buffer_class" in settings
    env = BitFlippingEnv(n_bits=4, continuous=True) if her else "Pendulum-v1"
    model = small(env, "MultiInputPolicy" if her else "MlpPolicy", **settings)
    model.save(tmp_path / "model")
    export.main([str(tmp_path / "model.zip"), str(tmp_path / "policy.pt")])
    observation = model.get_env().reset()
    actions, _ = run(tmp_path / "policy.pt", observation if her else dict(observation=observation))
    np.testing.assert_allclose(actions, model.predict(observation, deterministic=True)[0], atol=2e-5)


class Steady(gym.ObservationWrapper):
    """Pendulum with two entries more that hardly change, as contact forces are where nothing touches."""

    def __init__(self):
        super().__init__(gym.make("Pendulum-v1"))
        self.observation_space = spaces.Box(-np.inf, np.inf, (5,), np.float32)

    def observation(self, observation):
        return np.append(observation, [0.0, 1e-4]).astype(np.float32)


def test_is_checked_where_rsnorm_has_been(tmp_path: Path) -> None:
    """Far from what it has seen all actions are at a bound, so that nothing would be compared."""
    model = small(Steady(), model_class=CIRSimBa).learn(60)
    observations = export._random(model, None, 64)["observation"]
    assert np.abs(observations[:, 3:]).max() < 0.01
    assert np.abs(observations[:, :3]).max() > 1
    assert np.abs(model.predict(observations, deterministic=True)[0]).mean() < 1.9
    assert export.export(model, tmp_path / "policy.pt") < 1e-5


def test_named_observations_are_spread_as_rsnorm_has_seen_them() -> None:
    model = small(SimpleMultiObsEnv(discrete_actions=False), "MultiInputPolicy")
    space = spaces.Dict(a=spaces.Box(-9, 9, (2,)), b=spaces.Discrete(3), c=spaces.Box(-9, 9, (1, 2)))
    model.observation_space, model.actor.features_extractor = space, RSNorm(space)
    model.actor.features_extractor.mean[:] = th.arange(7)
    model.actor.features_extractor.var[:] = 0
    found = export._random(model, None, 2)
    np.testing.assert_allclose(found["a"], [[0, 1]] * 2)
    np.testing.assert_allclose(found["c"], [[[5, 6]]] * 2)


def test_a_class_of_somebody_elses(tmp_path: Path) -> None:
    class Sub(CIR):
        """It is in no table."""

    small("Pendulum-v1", model_class=Sub).save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"model\.zip is of a Sub, which is no class of this package: load it in Python"):
        export.load(tmp_path / "model")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = stepped(VecNormalize(make_vec_env("Pendulum-v1", seed=0), clip_obs=2.0))
    model = small(env)
    model.save(tmp_path / "model")
    normalization.save(env, tmp_path / "statistics.safetensors")
    arguments = [str(tmp_path / "model.zip"), str(tmp_path / "policy.pt")]
    export.main([*arguments, "--vecnormalize", str(tmp_path / "statistics.safetensors")])
    assert "differ from model.predict by at most" in capsys.readouterr().out
    batch = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    actions, said = run(tmp_path / "policy.pt", dict(observation=batch))
    np.testing.assert_allclose(actions, model.predict(env.normalize_obs(batch), deterministic=True)[0], atol=2e-5)
    assert said["algorithm"] == "CIR"
    assert said["observations_normalized_inside"]

    rewards_alone = VecNormalize(make_vec_env("Pendulum-v1"), norm_obs=False)
    assert not export.description(model, rewards_alone)["observations_normalized_inside"]
    with pytest.warns(UserWarning, match="learned with VecNormalize, whose statistics are not given"):
        export.main(arguments)
    assert "at most" in capsys.readouterr().out
    (beside := tmp_path / "Pendulum-v1").mkdir()  # where RL Zoo has them, and where nobody thinks of them
    normalization.save(env, beside / "vecnormalize.pkl")
    export.main(arguments)
    assert f"normalised as {beside / 'vecnormalize.pkl'} says" in capsys.readouterr().out
    np.testing.assert_array_equal(run(tmp_path / "policy.pt", dict(observation=batch))[0], actions)
    (other := tmp_path / "other").mkdir()
    normalization.save(env, other / "vecnormalize.pkl")
    with pytest.raises(SystemExit, match=r"pass --vecnormalize with one of .*Pendulum-v1.*, .*other"):
        export.main(arguments)
    (other / "vecnormalize.pkl").unlink()

    model.sb3_archives = True  # as SB3 saves, which does not say of which algorithm a model is
    model.save(tmp_path / "model")
    with pytest.raises(SystemExit, match=r"does not say of which algorithm it is\. If .*, pass --algo with one of cir, "):
        export.main(arguments)
    with pytest.raises(SystemExit, match=r"--algo cirr: did you mean 'cir'\?"):
        export.main([*arguments, "--algo", "cirr"])
