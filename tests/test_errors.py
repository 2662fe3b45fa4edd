"""Bad input gets one sentence: the name, the value, what is allowed."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from small import small
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch import nn

from sb3_cir import CIR, envs
from sb3_cir.baselines import SMR, TD7, BROFast, FlashSAC, SimBa, SimbaV2
from sb3_cir.baselines.bro import BROPolicy
from sb3_cir.baselines.flash_sac import FlashSACPolicy
from sb3_cir.baselines.par import PAR
from sb3_cir.cir_simba import CIRSimBa
from sb3_cir.runs import resumable

BOX = spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(convex_coef=1.5), r"convex_coef=1\.5: it must lie in \[0, 1\]"),
        (dict(convex_coef=-0.1), r"convex_coef=-0\.1: it must lie in \[0, 1\]"),
        (dict(convex_coef=float("nan")), r"convex_coef=nan: it must lie in \[0, 1\]"),
        (dict(sample_reuse=0), "sample_reuse=0: it must be a whole number of at least 1"),
        (dict(sample_reuse=1.5), r"sample_reuse=1\.5: it must be a whole number of at least 1"),
        (dict(policy_kwargs=dict(net_arch=dict(pi=[8], qf=[8, 16]))), r"net_arch\['qf'\]=\[8, 16\] has unequal widths"),
        (
            dict(policy_kwargs=dict(net_arch=[8, 16])),
            r"net_arch\['qf'\]=\[8, 16\] has unequal widths: .* Write "
            r"policy_kwargs=dict\(net_arch=dict\(pi=\[8, 16\], qf=\[16, 16\]\)\)\.",
        ),
        (dict(policy_kwargs=dict(net_arch=dict(pi=[8], qf=[]))), r"net_arch\['qf'\] is empty"),
        (dict(policy_kwargs=dict(n_critics=0)), "n_critics=0: at least 1 critic"),
        (dict(policy_kwargs=dict(avg_r_norm_coef=0.0)), r"avg_r_norm_coef=0\.0: it must be positive"),
        (dict(convex_coef="0.3"), r"convex_coef='0\.3': it must lie in \[0, 1\]"),
        (dict(sample_reuse=None), "sample_reuse=None: it must be a whole number of at least 1"),
        (dict(policy_kwargs=dict(n_critics=1.5)), r"n_critics=1\.5: at least 1 critic"),
        (dict(policy_kwargs=dict(n_critics=2.0)), r"n_critics=2\.0: at least 1 critic is needed, and a whole number"),
        (dict(policy_kwargs=dict(critic_weight_decay="1")), "critic_weight_decay=1: it must not be negative"),
        (
            dict(ent_coef="auto_x"),
            "ent_coef is 'auto_x', it must be 'auto', 'auto_0.1' with any first value above 0",
        ),
        (dict(ent_coef="auto_inf"), "ent_coef is 'auto_inf'"),
        (dict(ent_coef="autox"), "ent_coef is 'autox'"),
        (dict(ent_coef="auto_0"), "ent_coef is 'auto_0'"),
        (dict(train_freq=0), "train_freq is 0, it must be from 1 to"),
        (dict(train_freq=(0, "episode")), r"train_freq is \(0, 'episode'\), it must be from 1 to"),
        (dict(batch_size=0), "batch_size is 0, it must be from 1 to"),
        (dict(tau="a"), "tau is 'a', float was expected"),
        (dict(gamma=1.5), r"gamma is 1\.5, it must be from 0 to 1"),
        (dict(n_steps="three"), "n_steps is 'three', int was expected"),
        (dict(entropy_in_target=3), "entropy_in_target is 3, bool was expected"),
    ],
)
def test_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small("Pendulum-v1", **arguments)


def test_whole_numbers_that_are_floats() -> None:
    """They pass, and are no indices to Python."""
    assert (
        small("Pendulum-v1", buffer_size=50.0, batch_size=8.0, gradient_steps=2.0, n_steps=3.0).learn(24)._n_updates
        == 2 * 2 * 4
    )


def test_a_second_actor_with_nan_is_named() -> None:
    model = small("Pendulum-v1", model_class=BROFast, learning_starts=0)
    with th.no_grad():
        model.policy.optimistic_actor.body[0].weight.fill_(th.nan)
    with pytest.raises(ValueError, match=r"there is nan in optimistic_actor\."):
        model.learn(5)


@pytest.mark.parametrize("activation", [nn.Tanh, "Tanh"])
def test_the_u_shape_has_one_activation(activation: Any) -> None:
    with pytest.raises(ValueError, match=r"activation_fn=Tanh: CIRPolicy takes none"):
        small("Pendulum-v1", policy_kwargs=dict(actor_network="ActorCIR", activation_fn=activation))


@pytest.mark.parametrize("model_class", [SimBa, SimbaV2, FlashSAC, BROFast])
def test_an_activation_that_the_method_fixes(model_class: type, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"activation_fn=Tanh: \w+Policy takes none, the method fixes it\."):
        small("Pendulum-v1", model_class=model_class, policy_kwargs=dict(activation_fn=nn.Tanh))
    policy = small("Pendulum-v1", model_class=model_class).policy  # a saved one has SB3's default
    policy.save(tmp_path / "policy.pt")
    assert type(policy).load(tmp_path / "policy.pt", device="cpu").observation_space == policy.observation_space


@pytest.mark.parametrize("model_class", [CIR, CIRSimBa, SimBa, SMR])
def test_a_policy_of_sb3s_takes_the_method_away(model_class: type) -> None:
    with pytest.warns(UserWarning, match=rf"policy=SACPolicy of .*, not those of {model_class.__name__}\. Pass 'MlpPolicy'"):
        model_class(SACPolicy, "Pendulum-v1", buffer_size=10, device="cpu", policy_kwargs=dict(net_arch=[8]))


@pytest.mark.parametrize(("model_class", "policy"), [(TD7, TD3Policy), (BROFast, SACPolicy)])
def test_a_policy_that_the_method_cannot_learn_with(model_class: type, policy: type) -> None:
    with pytest.raises(ValueError, match=rf"policy={policy.__name__}: {model_class.__name__} needs its own, 'MlpPolicy' by"):
        model_class(policy, "Pendulum-v1", buffer_size=10, device="cpu")


@pytest.mark.parametrize("model_class", [TD7, BROFast, SimbaV2, FlashSAC])
def test_a_policy_for_other_observations(model_class: type) -> None:
    with pytest.raises(ValueError, match=rf"policy='CnnPolicy': {model_class.__name__} has MlpPolicy alone\. A wrapper"):
        model_class("CnnPolicy", "Pendulum-v1", buffer_size=10, device="cpu")


def test_td7_has_no_actions_without_room() -> None:
    flat = spaces.Box(np.zeros(2, np.float32), np.array([0, 1], np.float32))
    env = gym.wrappers.TransformAction(gym.make("Pendulum-v1"), lambda action: action[:1], flat)
    with pytest.raises(ValueError, match=r"low must be below high"):
        small(env, model_class=TD7)


@pytest.mark.parametrize("net_arch", [[0], [16.0, 16.0], "64,64", dict(pi=[8], qf=[0])])
@pytest.mark.parametrize("model_class", [CIR, SMR])
def test_widths_that_are_none(net_arch: Any, model_class: type) -> None:
    with pytest.raises(ValueError, match=r"net_arch=.*: it must be a list of widths, such as \[64, 64\], or dict"):
        small("Pendulum-v1", model_class=model_class, policy_kwargs=dict(net_arch=net_arch))


def test_texts_are_shown_as_texts() -> None:
    """YAML reads 1e-2 as one."""
    with pytest.raises(ValueError, match=r"tau is '1e-2', float was expected\."):
        small("Pendulum-v1", tau="1e-2")
    with pytest.raises(ValueError, match=r"convex_coef='0\.3': it must lie in"):
        small("Pendulum-v1", convex_coef="0.3")


@pytest.mark.parametrize("model_class", [TD7, BROFast])
def test_observations_that_are_no_vectors(model_class: type) -> None:
    env = gym.wrappers.TransformObservation(gym.make("Pendulum-v1"), lambda x: x[None], spaces.Box(-9, 9, (1, 3)))
    with pytest.raises(ValueError, match=rf"{model_class.__name__} takes vectors only\. A wrapper such as "):
        small(env, model_class=model_class)


def test_the_first_model_of_a_process() -> None:
    """What SB3 declares holds names that Python can look up only after somebody else has."""
    script = "from sb3_cir import CIR; CIR('MlpPolicy', 'Pendulum-v1', entropy_in_target=3)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stderr.splitlines()[-1] == "ValueError: entropy_in_target is 3, bool was expected."


class Faulty(gym.Env):
    """Gives one bad number, at the step that is asked for, and ends every episode at its third step."""

    def __init__(
        self, where: str, value: float, step: int, observation_space: spaces.Space = BOX, action_space: spaces.Space = BOX
    ):
        self.where, self.value, self.bad_step, self.steps = where, value, step, 0
        self.observation_space = observation_space
        self.action_space = action_space

    def _observe(self) -> np.ndarray | dict[str, np.ndarray]:
        observation = self.observation_space.sample()
        if self.where == "observation" and self.steps == self.bad_step:
            entry = observation["b"] if isinstance(observation, dict) else observation
            entry[-1] = self.value
        return observation

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        reward = self.value if self.where == "reward" and self.steps == self.bad_step else 1.0
        return self._observe(), reward, self.steps % 3 == 0, False, {}


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiBinary(2)], ids=str)
def test_action_space_that_is_no_box(space: spaces.Space) -> None:
    with pytest.raises(AssertionError, match=r"only supports .*Box.* as action spaces but .* was provided"):
        small(Faulty("", 0, 0, action_space=space))


@pytest.mark.parametrize("repeat", [0, -1, 2.5])
def test_action_repeat(repeat: float) -> None:
    with pytest.raises(ValueError, match=rf"repeat={repeat}: it must be a whole number of at least 1"):
        envs.ActionRepeat(gym.make("Pendulum-v1"), repeat)


def test_observations_without_a_length() -> None:
    class Growing(gym.Env):
        observation_space = spaces.Sequence(BOX)
        action_space = BOX

    with pytest.raises(ValueError, match=r"Sequence\(Box.* has no fixed length: it cannot be made one vector"):
        envs.FlatFloat32(Growing())


def test_infinite_action_bounds() -> None:
    with pytest.raises(AssertionError, match="action space must have a finite lower and upper bound"):
        small(Faulty("", 0, 0, action_space=spaces.Box(-np.inf, np.inf, (2,))))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(0, 3, (2,), dtype=np.int64), "a Box of int64: it must be one of floats"),
        (spaces.Box(np.array([-1, 2], np.float32), np.array([1, 2], np.float32)), r"low=2\.0 and high=2\.0 in dimension 1:"),
        (spaces.Box(-1, 1, ()), r"a Box of shape \(\): it must have an axis"),
    ],
    ids=["integers", "no room", "no axis"],
)
@pytest.mark.parametrize("model_class", [CIR, SMR, SimBa])
def test_box_that_no_gaussian_acts_in(model_class: type, space: spaces.Box, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_class("MlpPolicy", Faulty("", 0, 0, action_space=space), buffer_size=10)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["observation", "reward"])
def test_not_finite(where: str, value: float) -> None:
    """At step 5 of the one environment; the four transitions before it are all that is stored."""
    model = small(Faulty(where, value, 5))
    with pytest.raises(ValueError, match=rf"^{value} in the {where} of environment 0 at step 5: nothing of it was stored"):
        model.learn(30)
    assert model.replay_buffer.pos == 4


def test_not_finite_in_dict() -> None:
    model = small(Faulty("observation", np.nan, 5, spaces.Dict(a=BOX, b=BOX)), "MultiInputPolicy")
    with pytest.raises(ValueError, match=r"^nan in the observation 'b' of environment 0 at step 5"):
        model.learn(30)
    assert model.replay_buffer.pos == 4


@pytest.mark.parametrize("space", [BOX, spaces.Dict(a=BOX, b=BOX)], ids=["flat", "dict"])
def test_not_finite_when_an_episode_ends(space: spaces.Space) -> None:
    """
    The environment is bad from its third step to its fourth: in the last observation of an episode and in the first of the
    next. Made whole by its reset, it is bad in the last one alone.
    """
    policy = "MultiInputPolicy" if isinstance(space, spaces.Dict) else "MlpPolicy"
    both, last = Faulty("observation", np.inf, 3, space), HealedByReset("observation", np.inf, 3, space)
    for env in (both, last):
        model = small(env, policy)
        with pytest.raises(ValueError, match=r"^inf in the observation .*of environment 0 at step 3"):
            model.learn(30)
        assert model.replay_buffer.pos == 2


class HealedByReset(Faulty):
    def reset(self, **kwargs):
        self.bad_step = None if self.steps else self.bad_step
        return super().reset(**kwargs)


@pytest.mark.parametrize("space", [BOX, spaces.Dict(a=BOX, b=BOX)], ids=["flat", "dict"])
def test_not_finite_from_the_start(space: spaces.Space) -> None:
    policy = "MultiInputPolicy" if isinstance(space, spaces.Dict) else "MlpPolicy"
    with pytest.raises(ValueError, match=r"^nan in the observation .*of environment 0 at step 0"):
        small(Faulty("observation", np.nan, 0, space), policy).learn(30)


@pytest.mark.parametrize("where", ["observation", "reward"])
@pytest.mark.parametrize("space", [BOX, spaces.Dict(a=BOX, b=BOX)], ids=["flat", "dict"])
def test_not_finite_in_one_of_several(where: str, space: spaces.Space) -> None:
    """The third environment at its second step: after 2 x 3 steps in all."""
    bad_steps = iter([100, 100, 2])
    env = make_vec_env(lambda: Faulty(where, np.nan, next(bad_steps), space), n_envs=3)
    model = small(env, "MultiInputPolicy" if isinstance(space, spaces.Dict) else "MlpPolicy")
    with pytest.raises(ValueError, match=f"^nan in the {where} .*of environment 2 at step 6"):
        model.learn(30)
    assert model.replay_buffer.pos == 1


def test_not_finite_in_a_worker_process() -> None:
    env = make_vec_env(Faulty, n_envs=1, env_kwargs=dict(where="reward", value=np.inf, step=2), vec_env_cls=SubprocVecEnv)
    with pytest.raises(ValueError, match=r"^inf in the reward of environment 0 at step 2"):
        small(env).learn(30)
    env.close()


@pytest.mark.parametrize("step", [0, 5])
@pytest.mark.parametrize("training", [False, True])
def test_not_finite_behind_vec_normalize(step: int, training: bool) -> None:
    """VecNormalize clips inf to a finite value, the buffer would keep the inf."""
    env = VecNormalize(make_vec_env(lambda: Faulty("observation", np.inf, step)), training=training)
    model = small(env)
    with (
        pytest.raises(ValueError, match=f"^inf in the observation of environment 0 at step {step}"),
        np.errstate(all="ignore"),
    ):
        model.learn(30)
    assert model.replay_buffer.pos == max(step - 1, 0)


def test_large_but_finite() -> None:
    """Values whose sum overflows are no error."""
    largest = np.finfo(np.float32).max
    model = small(Faulty("observation", largest, 5, spaces.Box(0.99 * largest, largest, (2,))), learning_starts=100)
    with np.errstate(over="ignore"):
        assert model.learn(10).replay_buffer.pos == 10


@pytest.mark.parametrize("policy", [BROPolicy, FlashSACPolicy])
@pytest.mark.parametrize("model_class", [CIR, SMR, SimBa])
def test_critics_of_distributions(model_class: type[SMR], policy: type) -> None:
    """Their quantiles or bins would count as so many critics."""
    with pytest.raises(
        ValueError, match=rf"policy={policy.__name__}: its critics give distributions, .* Pass 'MlpPolicy', which"
    ):
        model_class(policy, "Pendulum-v1", device="cpu", buffer_size=10)


@pytest.mark.parametrize(
    ("env_id", "nearest"),
    [
        ("dm_control/walker-wlk-v0", "dm_control/walker-walk-v0"),
        ("Pendulun-v1", "Pendulum-v1"),
        ("walker-walk", "dm_control/walker-walk-v0"),
        ("dog-walk", "dm_control/dog-walk-v0"),
    ],
)
def test_unknown_environment(env_id: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"There is no environment '{env_id}'. Did you mean '{nearest}'"):
        envs.make(env_id)


def test_environment_like_no_other() -> None:
    """Most likely one whose package nobody imported."""
    with pytest.raises(
        ValueError, match=r"There is no environment 'My-v0'\. Import its package first, or name it: 'package:My-v0'"
    ):
        envs.make("My-v0")


def test_missing_extra() -> None:
    """With dm_control not to be found, only making one of its environments fails, and says what to install."""
    program = """
import sys
sys.modules["dm_control"] = None
import sb3_cir
try:
    sb3_cir.envs.make("dm_control/walker-walk-v0")
except ImportError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install " in result.stdout
    assert "sb3-cir[" not in result.stdout  # on no index
    assert "dm_control" in result.stdout


@pytest.mark.parametrize("model_class", [CIR, FlashSAC, TD7, PAR, resumable(SAC)], ids=lambda kind: kind.__name__)
def test_a_callers_policy_kwargs_stay_as_they_are(model_class: type[OffPolicyAlgorithm]) -> None:
    """SB3 writes use_sde into them, at which another algorithm may fail."""
    given: dict[str, Any] = dict(net_arch=[16, 16])
    model_class("MlpPolicy", "Pendulum-v1", policy_kwargs=given, device="cpu", _init_setup_model=False)
    assert given == dict(net_arch=[16, 16])
