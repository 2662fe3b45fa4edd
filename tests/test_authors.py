"""Weights as CIR's authors publish them."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from test_archive import Makes
from torch import nn

from sb3_cir import CIR, authors
from sb3_cir.envs import paper_protocol


def actor(n_obs: int = 3, n_actions: int = 1, width: int = 32) -> nn.Module:
    """An actor of their shape: mean rows over log_std rows in the last layer."""
    th.manual_seed(0)
    layers = [nn.Linear(n_obs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2 * n_actions)]
    outer, inner = nn.Module(), nn.Module()
    inner.network = nn.Sequential(*layers)
    outer.network = inner
    return outer


def test_a_file_becomes_a_model_that_acts_as_they_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """tanh of the mean, in the environment's units; log_std is theirs too."""
    theirs = actor()
    th.save(theirs.state_dict(), tmp_path / "weights.pt")
    authors.main([str(tmp_path / "weights.pt"), "--env", "Pendulum-v1", "-o", str(tmp_path / "model.zip")])
    assert "the critics are new and have learned nothing" in capsys.readouterr().out
    model = CIR.load(tmp_path / "model.zip", device="cpu", trusted=False)
    obs = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    with th.no_grad():
        mean, log_std = theirs.network.network(th.as_tensor(obs)).chunk(2, dim=1)
        ours = model.actor.get_action_dist_params(th.as_tensor(obs))
    np.testing.assert_allclose(model.predict(obs, deterministic=True)[0], 2 * th.tanh(mean), atol=1e-6)
    np.testing.assert_allclose(ours[1], log_std.clamp(-20, 2), atol=1e-6)
    assert model.num_timesteps == 0
    assert model.buffer_size == 1_000_000  # to learn on with


def test_arguments_of_the_policy_beside_their_sizes() -> None:
    model = authors.model(actor().state_dict(), "Pendulum-v1", buffer_size=1, policy_kwargs=dict(n_critics=4), device="cpu")
    assert len(model.critic(th.zeros(1, 3), th.zeros(1, 1))) == 4


def test_an_extra_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    th.save(actor().state_dict(), tmp_path / "weights.pt")

    def fail(*args: object) -> None:
        raise ImportError("dm_control tasks need the extra dmc")

    monkeypatch.setattr(gym, "make", fail)
    with pytest.raises(SystemExit, match=r"^error: dm_control tasks need the extra dmc$"):
        authors.main([str(tmp_path / "weights.pt"), "--env", "Pendulum-v1", "-o", str(tmp_path / "model.zip")])


def test_the_order_of_observations() -> None:
    """dm_control's order is not Gymnasium's: on walker the height stands in another place."""
    pytest.importorskip("dm_control", reason="needs the extra dmc")
    theirs = actor(n_obs=24, n_actions=6)
    model = authors.model(theirs.state_dict(), "dm_control/walker-walk-v0", buffer_size=1, device="cpu")
    env = paper_protocol(gym.make("dm_control/walker-walk-v0"))
    ours, _ = env.reset(seed=0)
    for _ in range(5):
        ours, *_ = env.step(env.action_space.sample())
    inner = env.unwrapped._env
    observation = inner.task.get_observation(inner.physics)
    their_own = np.concatenate([np.ravel(value) for value in observation.values()]).astype(np.float32)
    assert not np.array_equal(ours, their_own)
    with th.no_grad():
        mean = theirs.network.network(th.as_tensor(their_own))[:6]
    np.testing.assert_allclose(model.predict(ours, deterministic=True)[0], th.tanh(mean), atol=1e-6)


def test_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    th.save(actor(n_obs=24, n_actions=6).state_dict(), path)
    with pytest.raises(
        ValueError, match=r"of another environment: their latent_pi\.0\.weight is \(32, 24\), and \(32, 3\) with Box"
    ):
        authors.model(authors.read(path), gym.make("Pendulum-v1"), buffer_size=1)
    broken = actor().state_dict()
    broken["network.network.2.bias"][3] = float("nan")
    with pytest.raises(ValueError, match=r"latent_pi\.2\.bias is not finite"):
        authors.model(broken, gym.make("Pendulum-v1"), buffer_size=1)
    th.save({"actor": th.zeros(3)}, path)
    with pytest.raises(ValueError, match=r"weights\.pt has \['actor'\]; an actor of CIR's authors has network\.network"):
        authors.read(path)
    th.save(Makes(tmp_path / "made"), path)
    with pytest.raises(ValueError, match=r"weights\.pt: these are no weights that can be read"):
        authors.read(path)
    assert not (tmp_path / "made").exists()
    for content in (b"nothing", b"\x80\x02."):
        path.write_bytes(content)
        with pytest.raises(SystemExit, match="these are no weights"):
            authors.main([str(path), "--env", "Pendulum-v1", "-o", str(tmp_path / "model.zip")])
    with pytest.raises(ValueError, match=r"action_space is Discrete\(2\): CIR's actors are for a Box of actions"):
        authors.model(actor().state_dict(), "CartPole-v1", buffer_size=1)


@pytest.mark.parametrize("value", [th.tensor(1.0), th.zeros(32), th.ones(32, 3).to_sparse(), th.ones(32, 3, dtype=th.int32)])
def test_weights_of_another_form(tmp_path: Path, value: th.Tensor) -> None:
    th.save(actor().state_dict() | {"network.network.0.weight": value}, tmp_path / "weights.pt")
    with pytest.raises(
        ValueError, match=r"weights\.pt: its network\.network\.0\.weight is a torch.*, 2 dense ones were expected"
    ):
        authors.read(tmp_path / "weights.pt")


def test_observations_without_bounds_load_untrusted(tmp_path: Path) -> None:
    """Infinite bounds are not lost in the file's JSON."""
    env = gym.wrappers.TransformObservation(
        gym.make("Pendulum-v1"), lambda obs: obs, gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    )
    model = authors.model(actor().state_dict(), env, buffer_size=1, device="cpu")
    model.save(tmp_path / "model")
    assert CIR.load(tmp_path / "model", device="cpu", trusted=False).observation_space == env.observation_space
