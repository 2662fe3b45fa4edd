"""Recorded transitions in replay buffers: what stands there, what is sampled, and what is refused without a trace."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from small import changed, small, weights
from stable_baselines3 import DQN, SAC, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from sb3_cir import CIR, datasets
from sb3_cir.baselines import TD7
from sb3_cir.baselines.lap import LAPReplayBuffer
from sb3_cir.buffers import DeviceReplayBuffer, RecencyReplayBuffer, SymmetricReplayBuffer
from sb3_cir.callbacks import Checkpoint
from sb3_cir.off_dynamics import TwoDomainReplayBuffer
from sb3_cir.runs import rows


def episode(steps: int, seed: int = 0, end: str = "truncations") -> dict[str, np.ndarray]:
    """Steps of Pendulum, as they are recorded."""
    env = gym.make("Pendulum-v1")
    env.action_space.seed(seed)
    observations, actions, rewards = [env.reset(seed=seed)[0]], [], []
    for _ in range(steps):
        actions.append(env.action_space.sample())
        observation, reward, *_ = env.step(actions[-1])
        observations.append(observation)
        rewards.append(reward)
    ends = {name: np.zeros(steps, bool) for name in ("terminations", "truncations")}
    if end:
        ends[end][-1] = True
    return dict(observations=np.array(observations), actions=np.array(actions), rewards=np.array(rewards), **ends)


def folder(path: Path, *episodes: dict[str, np.ndarray]) -> Path:
    path.mkdir(exist_ok=True)
    for index, each in enumerate(episodes):
        np.savez(path / f"episode_{index}.npz", **each)
    return path


def test_what_stands_in_the_buffer(tmp_path: Path) -> None:
    """Actions between -1 and 1; the true next observation at an end; only a termination counts as one when it is sampled."""
    recorded = [episode(5, 1), episode(4, 2, "terminations"), episode(3, 3, "")]
    model = small("Pendulum-v1")
    assert datasets.fill(model, folder(tmp_path / "episodes", *recorded)) == 12
    buffer = model.replay_buffer
    assert buffer.size() == 12
    np.testing.assert_array_equal(
        buffer.observations[:12, 0], np.concatenate([each["observations"][:-1] for each in recorded])
    )
    following = np.concatenate([each["observations"][1:] for each in recorded])
    np.testing.assert_array_equal(buffer.next_observations[:12, 0], following)
    np.testing.assert_allclose(buffer.actions[:12, 0], np.concatenate([each["actions"] for each in recorded]) / 2, atol=1e-6)
    np.testing.assert_allclose(buffer.rewards[:12, 0], np.concatenate([each["rewards"] for each in recorded]), rtol=1e-6)
    ends = np.flatnonzero(buffer.dones[:12, 0])
    assert ends.tolist() == [4, 8, 11]
    assert np.flatnonzero(buffer.timeouts[:12, 0]).tolist() == [4, 11]
    assert buffer._get_samples(np.arange(12)).dones.flatten().nonzero().flatten().tolist() == [8]
    before = weights(model)
    model.learn(30)  # goes on behind them
    np.testing.assert_array_equal(buffer.next_observations[:12, 0], following)
    assert buffer.size() == 42
    assert changed(before, model)


def test_several_environments(tmp_path: Path) -> None:
    model = small(make_vec_env("Pendulum-v1", n_envs=2, seed=0))
    with pytest.warns(UserWarning, match="10 of 12 recorded transitions are added: .* 2 environments"):
        assert datasets.fill(model, folder(tmp_path / "episodes", episode(5, 1), episode(4, 2), episode(3, 3))) == 2 * 5
    buffer = model.replay_buffer
    np.testing.assert_array_equal(buffer.observations[:5, 0], episode(5, 1)["observations"][:-1])
    np.testing.assert_array_equal(buffer.observations[:4, 1], episode(4, 2)["observations"][:-1])
    np.testing.assert_array_equal(buffer.observations[4, 1], episode(3, 3)["observations"][0])
    assert buffer.timeouts[4].tolist() == [1, 1]  # the third was left: nothing joins it to what comes


@pytest.mark.parametrize("kind", ["CIR", "SAC"])
def test_half_of_each_batch_is_recorded(tmp_path: Path, kind: str) -> None:
    settings: dict[str, Any] = dict(replay_buffer_class=SymmetricReplayBuffer)
    model = small("Pendulum-v1", **settings, **(dict(model_class=SAC) if kind == "SAC" else {}))
    with pytest.raises(ValueError, match="There are no recorded transitions"):
        model.replay_buffer.sample(4)
    recorded = episode(9, 1)
    recorded["rewards"] += 1000
    assert datasets.fill(model, folder(tmp_path / "episodes", recorded)) == 9
    model.learn(40)
    assert (model.replay_buffer.online.size(), model.replay_buffer.offline.size()) == (40, 9)
    is_recorded = model.replay_buffer.sample(17).rewards.flatten() > 500
    assert is_recorded.tolist() == [False] * 9 + [True] * 8


def test_named_observations(tmp_path: Path) -> None:
    class Named(gym.Env):
        observation_space = spaces.Dict(position=spaces.Box(-9, 9, (2,)), height=spaces.Box(-9, 9, ()))
        action_space = spaces.Box(-1, 3, (1,))

    model = small(Named(), "MultiInputPolicy", replay_buffer_class=SymmetricReplayBuffer)
    rng = np.random.default_rng(0)
    plain = episode(4)
    names = {"observations/position": rng.normal(size=(5, 2)), "observations/height": rng.normal(size=5)}
    arrays = names | {name: plain[name] for name in ("rewards", "terminations", "truncations")} | dict(actions=np.ones((4, 1)))
    datasets.fill(model, folder(tmp_path / "episodes", arrays))
    buffer = model.replay_buffer.offline
    np.testing.assert_allclose(buffer.observations["position"][:4, 0], names["observations/position"][:-1], rtol=1e-6)
    np.testing.assert_allclose(buffer.next_observations["height"][:4, 0, 0], names["observations/height"][1:], rtol=1e-6)
    assert (buffer.actions[:4] == 0).all()


def test_which_of_two_domains(tmp_path: Path) -> None:
    model = small("Pendulum-v1", replay_buffer_class=TwoDomainReplayBuffer)
    place = folder(tmp_path / "episodes", episode(5, 1))
    with pytest.raises(ValueError, match="which of the two domains was recorded"):
        datasets.fill(model, place)
    with pytest.raises(ValueError, match="part='real': the model's replay buffer has 'source', 'target'"):
        datasets.fill(model, place, part="real")
    assert datasets.fill(model, place, part="target") == 5
    assert (model.replay_buffer.source.size(), model.replay_buffer.target.size()) == (0, 5)


def test_a_resumed_model_has_its_recordings(tmp_path: Path) -> None:
    place = folder(tmp_path / "episodes", episode(5, 1))
    model = small("Pendulum-v1")
    datasets.fill(model, place)
    model.learn(20, callback=Checkpoint(20, tmp_path / "run"))
    resumed = CIR.resume(tmp_path / "run", "Pendulum-v1", device="cpu")
    with pytest.warns(UserWarning, match="resumed from a checkpoint, which has all transitions"):
        datasets.fill(resumed, place)


def test_small_actions_are_held_to_their_bounds(tmp_path: Path) -> None:
    env = gym.wrappers.RescaleAction(gym.make("Pendulum-v1"), np.float32(-1e-4), np.float32(1e-4))
    recorded = episode(5, 1)
    recorded["actions"] = np.full_like(recorded["actions"], 1.9e-4)
    with pytest.raises(ValueError, match=r"actions have 0\.00019"):
        datasets.fill(small(env), folder(tmp_path / "episodes", recorded))


def bad(**changes: Any) -> dict[str, np.ndarray]:
    return episode(4) | changes


WRONG = {
    "space": (bad(observations=np.zeros((5, 7))), r"observations are float64 of shape \(5, 7\), \(5, 3\) was .*Box\(\[-1\."),
    "actions": (bad(actions=np.full((4, 1), 2.5)), r"actions have 2\.5 in them, the model's action_space is Box\(-2\.0, 2\.0"),
    "last observation": (bad(observations=np.zeros((4, 3))), r"shape \(4, 3\), \(5, 3\) was expected: 4 steps"),
    "nan": (bad(rewards=np.array([0, np.nan, 0, 0])), "rewards have nan in them"),
    "beyond float32": (bad(rewards=np.array([0, 0, 1e39, 0])), r"rewards have 1e\+39 in them, where -3\.40\d+e\+38 to 3\.40"),
    "one reward": (bad(rewards=np.array(3.0)), r"rewards are float64 of shape \(\), \(1,\) was expected"),
    "early end": (bad(terminations=np.array([0, 1, 0, 0], bool)), "terminations are true at step 1 of 4, before the end"),
    "no steps": (episode(0, end=""), "has no steps"),
    "objects": (bad(rewards=np.array([{}] * 4)), "this is no file of arrays that can be read"),
    "names": ({"observations": np.zeros((5, 3))}, "has observations; an episode has observations, actions, rewards"),
    "corrupt": (b"PK\x03\x04 not a zip", "this is no file of arrays that can be read"),
}


@pytest.mark.parametrize("what", WRONG)
def test_nothing_of_a_failed_fill_stays(tmp_path: Path, what: str) -> None:
    """Episodes before the bad one included; the file is named."""
    arrays, message = WRONG[what]
    place = folder(tmp_path / "episodes", episode(5, 1), *([arrays] if isinstance(arrays, dict) else []))
    if isinstance(arrays, bytes):
        (place / "episode_1.npz").write_bytes(arrays)
    model = small("Pendulum-v1").learn(10)
    before = {name: column.copy() for name, column in rows.columns(model.replay_buffer).items()}
    with pytest.raises(ValueError, match=rf"episode_1\.npz.*{message}"):
        datasets.fill(model, place)
    assert model.replay_buffer.pos == 10
    for name, column in rows.columns(model.replay_buffer).items():
        np.testing.assert_array_equal(column, before[name])


class Observes(gym.Env):
    """Has a space and is never stepped."""

    action_space = spaces.Box(-1, 1, (1,))

    def __init__(self, space: spaces.Space):
        self.observation_space = space


IMAGE = spaces.Box(0, 255, (3, 5, 6), np.uint8)


@pytest.mark.parametrize(
    ("space", "observations", "message"),
    [
        (
            IMAGE,
            np.full((5, 3, 5, 6), 0.5, np.float32),
            r"observations are float32, and the model has Box.*, which takes whole",
        ),
        (IMAGE, np.full((5, 3, 5, 6), 300), "observations have 300 in them, where 0 to 255 is allowed"),
        (spaces.Discrete(3, start=1), np.array([1, 2, 3, 4, 1]), "have 4 in them, where 1 to 3 is allowed"),
        (spaces.Discrete(3), np.array([0, 1, -1, 2, 1]), "have -1 in them, where 0 to 2 is allowed"),
        (spaces.Discrete(3), np.array([0, 1.7, 1, 2, 1]), r"are float64, and the model has Discrete\(3\), which takes whole"),
        (spaces.MultiDiscrete([2, 5]), np.array([[1, 4]] * 4 + [[2, 4]]), "have 2 in them, where 0 to 1 is allowed"),
        (spaces.MultiBinary(2), np.array([[1, 0]] * 4 + [[1, 2]]), "have 2 in them, where 0 to 1 is allowed"),
        (spaces.Box(-1, 1, (1,)), np.full((5, 1), -1e39), r"have -1e\+39 in them, where -3\.40"),
    ],
)
def test_numbers_that_the_buffer_would_make_others_of(
    tmp_path: Path, space: Any, observations: np.ndarray, message: str
) -> None:
    model = small(Observes(space))
    with pytest.raises(ValueError, match=rf"episode_0\.npz: observations {message.removeprefix('observations ')}"):
        datasets.fill(model, folder(tmp_path / "episodes", bad(observations=observations, actions=np.zeros((4, 1)))))
    assert model.replay_buffer.size() == 0


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(("value", "warned"), [(3e38, True), (-1.25, True), (1.15, False)])
def test_bounds_of_floats_are_no_limits(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, value: float, warned: bool, named: bool
) -> None:
    """They are kept. Far beyond the bounds one sentence asks whether a wrapper rescales them."""
    box = spaces.Box(np.array([-np.inf, -1], np.float32), np.array([0, 1], np.float32))
    observations = np.stack([np.full(5, 9), np.full(5, value)], axis=1)
    name = "observations/a" if named else "observations"
    arrays = bad(actions=np.zeros((4, 1)))
    del arrays["observations"]
    arrays[name] = observations
    model = small(Observes(spaces.Dict(a=box) if named else box), policy="MultiInputPolicy" if named else "MlpPolicy")
    assert datasets.fill(model, folder(tmp_path / "episodes", arrays, arrays)) == 8
    kept = model.replay_buffer.observations["a"] if named else model.replay_buffer.observations
    assert (kept[:8, 0, 1] == np.float32(value)).all()
    said = [str(each.message) for each in recwarn]
    assert len(said) == warned
    if warned:
        assert f"episode_0.npz: {name} have {np.float64(value)} in them" in said[0]
        assert "the model's environment says -1.0 to 1.0. If a wrapper rescales" in said[0]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_images(tmp_path: Path, named: bool, last: bool) -> None:
    """SB3 puts the channels of an environment's images first; files may have them as the environment does, or as SB3."""
    given = spaces.Box(0, 255, (36, 40, 3), np.uint8)
    space = spaces.Dict(camera=given) if named else given
    model = small(Observes(space), "MultiInputPolicy" if named else "MlpPolicy")
    images = np.random.default_rng(0).integers(0, 256, (5, 36, 40, 3), np.uint8)
    first = images.transpose(0, 3, 1, 2)
    plain = bad(actions=np.zeros((4, 1)))
    del plain["observations"]
    arrays = plain | {"observations/camera" if named else "observations": images if last else first}
    assert datasets.fill(model, folder(tmp_path / "episodes", arrays)) == 4
    buffer = model.replay_buffer
    stored = (buffer.observations, buffer.next_observations)
    for column, expected in zip(stored, (first[:-1], first[1:]), strict=True):
        np.testing.assert_array_equal((column["camera"] if named else column)[:4, 0], expected)


def test_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("Pendulum-v1").learn(10)
    buffer = model.replay_buffer
    before = {name: column.copy() for name, column in rows.columns(buffer).items()}
    add = buffer.add

    def interrupted(*args: Any) -> None:
        add(*args)
        if buffer.pos == 13:
            raise KeyboardInterrupt

    monkeypatch.setattr(buffer, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        datasets.fill(model, folder(tmp_path / "episodes", episode(5, 1)))
    assert (buffer.pos, buffer.full) == (10, False)
    for name, column in rows.columns(buffer).items():
        np.testing.assert_array_equal(column, before[name])


def test_no_room_and_no_episodes(tmp_path: Path) -> None:
    model = small("Pendulum-v1", buffer_size=8)
    with pytest.raises(ValueError, match="has 9 transitions, and the replay buffer has room for 8: pass a larger buffer_size"):
        datasets.fill(model, folder(tmp_path / "episodes", episode(9)))
    with pytest.raises(ValueError, match="nothing has too few episodes for 1 environments: 0"):
        datasets.fill(model, folder(tmp_path / "nothing"))


def test_actions_that_are_no_box(tmp_path: Path) -> None:
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=10, device="cpu")
    with pytest.raises(ValueError, match=r"action_space is Discrete\(2\): recorded episodes go into models with a Box"):
        datasets.fill(model, folder(tmp_path / "episodes", episode(5)))


def goal_episode(steps: int, seed: int) -> dict[str, np.ndarray]:
    """Steps in which bits are flipped, with the goal that they all be ones."""
    env = BitFlippingEnv(n_bits=4, continuous=True)
    env.action_space.seed(seed)
    observed, actions, rewards = [env.reset(seed=seed)[0]], [], []
    for _ in range(steps):
        actions.append(env.action_space.sample())
        observation, reward, *_ = env.step(actions[-1])
        observed.append(observation)
        rewards.append(reward)
    named = {f"observations/{key}": np.array([each[key] for each in observed]) for key in observed[0]}
    plain = episode(steps)
    ends = {name: plain[name] for name in ("terminations", "truncations")}
    return named | ends | dict(actions=np.array(actions), rewards=np.array(rewards))


@pytest.mark.parametrize("n_envs", [1, 2])
def test_hindsight_goals(tmp_path: Path, n_envs: int) -> None:
    """Goals are reached later in the same recorded episode, and rewards are those of the new goals."""
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=4, continuous=True), n_envs=n_envs)
    model = small(env, "MultiInputPolicy", replay_buffer_class=HerReplayBuffer)
    recorded = [goal_episode(length, seed) for seed, length in enumerate((5, 4, 3, 2))]
    assert datasets.fill(model, folder(tmp_path / "episodes", *recorded)) == 14
    buffer = model.replay_buffer
    first = [recorded[index] for index in ((0, 1, 2, 3) if n_envs == 1 else (0, 3))]
    following = np.concatenate([each["observations/achieved_goal"][1:] for each in first])
    np.testing.assert_array_equal(buffer.next_observations["achieved_goal"][: len(following), 0], following)
    lengths = [len(each["rewards"]) for each in first]
    assert buffer.ep_length[: sum(lengths), 0].tolist() == [length for length in lengths for _ in range(length)]
    batch = buffer.sample(500)
    reached, goal = batch.next_observations["achieved_goal"].numpy(), batch.observations["desired_goal"].numpy()
    np.testing.assert_array_equal(batch.rewards.numpy()[:, 0], np.where((reached == goal).all(axis=1), 0, -1))
    assert (goal == batch.next_observations["desired_goal"].numpy()).all()
    assert not (goal == 1).all()
    assert (batch.dones == 0).all()  # all were truncated
    model.learn(40)
    settings = dict(replay_buffer_class=HerReplayBuffer, replay_buffer_kwargs=dict(copy_info_dict=True))
    model = small(env, "MultiInputPolicy", **settings)
    with pytest.raises(ValueError, match="copy_info_dict=True: recorded episodes have no infos"):
        datasets.fill(model, tmp_path / "episodes")


def test_n_step_returns(tmp_path: Path) -> None:
    """They end with each recorded episode, whatever its end, and the run's own steps are not joined to the last."""
    recorded = [episode(5, 1), episode(4, 2, "terminations"), episode(3, 3, "")]
    model = small("Pendulum-v1", n_steps=3, gamma=0.9)
    datasets.fill(model, folder(tmp_path / "episodes", *recorded))
    model.learn(25)
    batch = model.replay_buffer._get_samples(np.arange(12))
    rewards, following, left, dones = [], [], [], []
    for each in recorded:
        for step in range(len(each["rewards"])):
            taken = each["rewards"][step : step + 3]
            rewards.append(np.sum(taken * 0.9 ** np.arange(len(taken))))
            following.append(each["observations"][step + len(taken)])
            left.append(0.9 ** len(taken))
            dones.append(bool(each["terminations"][step : step + 3].any()))
    np.testing.assert_allclose(batch.rewards.numpy()[:, 0], rewards, rtol=1e-5)
    np.testing.assert_allclose(batch.discounts.numpy()[:, 0], left, rtol=1e-6)
    np.testing.assert_array_equal(batch.next_observations.numpy(), np.array(following, np.float32))
    np.testing.assert_array_equal(batch.dones.numpy()[:, 0], dones)


@pytest.mark.parametrize("kind", [DeviceReplayBuffer, RecencyReplayBuffer, LAPReplayBuffer])
def test_what_is_sampled(tmp_path: Path, kind: type) -> None:
    """Recorded transitions, each whole, before and after the model's own are added."""
    settings = dict(model_class=TD7, policy_kwargs=dict(encoder_width=16)) if kind is LAPReplayBuffer else {}
    settings |= {} if kind is LAPReplayBuffer else dict(replay_buffer_class=kind)
    model = small("Pendulum-v1", **settings)
    recorded = episode(9, 1, "terminations")
    assert datasets.fill(model, folder(tmp_path / "episodes", recorded)) == 9
    assert isinstance(model.replay_buffer, kind)
    for learned in (0, 30):
        model.learn(learned)  # TD7 ends with the episode
        batch = model.replay_buffer.sample(4000)
        rewards = batch.rewards[:, 0].numpy()
        drawn, step = np.nonzero(rewards[:, None] == recorded["rewards"].astype(np.float32))
        assert set(step) == set(range(9))
        assert len(drawn) == 4000 or learned
        np.testing.assert_array_equal(batch.observations.numpy()[drawn], recorded["observations"][step])
        np.testing.assert_array_equal(batch.next_observations.numpy()[drawn], recorded["observations"][step + 1])
        np.testing.assert_allclose(batch.actions.numpy()[drawn], recorded["actions"][step] / 2, atol=1e-6)
        np.testing.assert_array_equal(batch.dones.numpy()[drawn, 0], step == 8)


def test_the_next_observation_of_an_optimised_buffer_survives_a_failed_fill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands where the next transition comes."""
    settings = dict(optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False))
    model = small("Pendulum-v1", **settings).learn(10)
    buffer = model.replay_buffer
    before = buffer.observations[:11].copy()
    assert before[10].any()

    def fails(*args: Any) -> None:
        add(*args)
        raise MemoryError

    add = buffer.add
    monkeypatch.setattr(buffer, "add", fails)
    with pytest.raises(MemoryError):
        datasets.fill(model, folder(tmp_path / "episodes", episode(5, 1)))
    np.testing.assert_array_equal(buffer.observations[:11], before)
