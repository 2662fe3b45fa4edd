"""
Learning from two domains at once: a source domain with plenty of data and a target domain whose dynamics differ.

Any off-policy algorithm of Stable-Baselines3 learns from both with the pair of replay buffers and the callback from here::

    env = gymnasium.make("odrl/walker2d-friction-0.5-v0", domain="source")
    model = CIR("MlpPolicy", env, replay_buffer_class=TwoDomainReplayBuffer)
    model.learn(1e6, callback=OffDynamicsCallback())

The model's own environment is the source. The protocol is ODRL's (https://arxiv.org/abs/2410.20750), online in both domains.
"""

import dataclasses
import functools
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_cir.buffers import ReplayBufferPair, cut_off
from sb3_cir.runs.state import seed_at_this_step
from sb3_cir.runs.watch import BadDataError, FailedEnvError, watch
from sb3_cir.tasks import BY_ID
from sb3_cir.valid import check_counts
from sb3_cir.words import short


class TwoDomainReplayBuffer(ReplayBufferPair):
    """
    Two replay buffers that never mix: what the algorithm adds goes to ``source``, what the callback adds to ``target``.

    A batch has ``batch_size // 2`` transitions of the target, after those of the source. An algorithm that learns from
    other batches sets ``make_batch``: a function that gets this replay buffer and the arguments of :meth:`sample`, and
    returns the batch. It is the algorithm's, and not saved with the transitions.

    Takes :class:`~sb3_cir.buffers.ReplayBufferPair`'s arguments, and is saved and loaded as one.
    """

    make_batch: "Callable[[TwoDomainReplayBuffer, int, VecNormalize | None], ReplayBufferSamples] | None" = None

    names = ("source", "target")
    empty = "There is no transition of the target domain yet: pass an OffDynamicsCallback to learn()."
    source: ReplayBuffer
    target: ReplayBuffer

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "make_batch"}

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """
        :param batch_size: Transitions, of both domains together
        :param env: To normalise observations and rewards of both domains with
        :return: What ``make_batch`` makes: unless an algorithm has set another, transitions of the source, then
            ``batch_size // 2`` of the target
        :raises ValueError: If there is none of the target yet.
        """
        if self.make_batch is not None:
            return self.make_batch(self, batch_size, env)
        return self.sample_plain(batch_size, env)

    def sample_plain(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """
        As :meth:`sample` without ``make_batch``, which may train networks: for a look that changes nothing.

        :param batch_size: Transitions, of both domains together
        :param env: To normalise observations and rewards of both domains with
        :return: Transitions of the source, then ``batch_size // 2`` of the target
        """
        return super().sample(batch_size, env)


def _one_row(observation: Any) -> Any:
    """An observation of one environment, as a ``VecEnv`` of one gives it."""
    if isinstance(observation, dict):
        return {key: np.asarray(value)[np.newaxis] for key, value in observation.items()}
    return np.asarray(observation)[np.newaxis]


EnvMaker = str | Callable[[], gym.Env[Any, Any]]


def _maker(spec: EnvSpec, without: str = "") -> EnvMaker:
    """What makes an environment again, with its arguments and its time limit, but without its wrappers and its pictures."""
    kwargs = {name: value for name, value in spec.kwargs.items() if name not in ("render_mode", without)}
    return functools.partial(gym.make, dataclasses.replace(spec, kwargs=kwargs, additional_wrappers=()))


def _is_as_registered(spec: EnvSpec) -> bool:
    """Whether an environment's returns can be compared with others': other arguments may change rewards and lengths."""
    registered = gym.spec(spec.id)
    names = (spec.kwargs.keys() | registered.kwargs.keys()) - {"render_mode", "domain"}
    same = all(spec.kwargs.get(name) == registered.kwargs.get(name) for name in names)
    return same and spec.max_episode_steps == registered.max_episode_steps


class OffDynamicsCallback(BaseCallback):
    """
    Steps the target domain while the model learns, and evaluates in both domains.

    Every ``target_freq`` steps in the source, over all its environments, the target takes one step with the policy as it is
    then: uniformly random before ``learning_starts``, without ``action_noise`` after it. It has one environment, with
    episodes of its own. ``VecNormalize`` around the source normalises the target too, by the source's statistics. Other
    wrappers are not repeated: pass ``target`` and ``source`` with them. A domain that is made by default has the arguments of
    the model's environment, and its time limit.

    Logs ``rollout/target_ep_rew_mean``, ``rollout/target_ep_len_mean``, ``time/target_steps``, ``eval/source_return``,
    ``eval/target_return`` and, for the paper's tasks, ``eval/target_score``.

    :param target: The target domain, as a Gymnasium id or a function that makes it. Default: the task whose source the
        model learns from, for ``odrl/`` ids made with ``domain="source"``.
    :param source: The source domain for evaluation, likewise. Default: the model's environment made again from its id.
    :param target_freq: Steps in the source for one in the target (paper: 10)
    :param eval_freq: Steps in the source between two evaluations; 0 for none (paper: 10,000)
    :param n_eval_episodes: Episodes of an evaluation in each domain, with deterministic actions (paper: 10)
    :param verbose: Whether to print evaluations
    :raises ValueError: If a number is out of its range. From ``learn()``: if the model's replay buffer is no pair, if there
        is nothing to make a domain from, or if the two domains' spaces differ.
    """

    # For checkpoints, which ask observations() and begin_episode().
    steps_own_env: ClassVar[bool] = True
    # What goes on where it was when an interrupted run is resumed.
    state: ClassVar[tuple[str, ...]] = ("target_steps", "_steps_owed", "evaluations")

    def __init__(
        self,
        target: EnvMaker | None = None,
        source: EnvMaker | None = None,
        target_freq: int = 10,
        eval_freq: int = 10_000,
        n_eval_episodes: int = 10,
        verbose: int = 0,
    ):
        super().__init__(verbose)
        check_counts(target_freq=(target_freq, 1), eval_freq=(eval_freq, 0), n_eval_episodes=(n_eval_episodes, 1))
        self.target = target
        self.source = source
        self.target_freq = target_freq
        self.eval_freq = eval_freq
        self.n_eval_episodes = n_eval_episodes
        self.target_steps = 0
        self.evaluations: list[dict[str, float]] = []
        self._target_env: VecEnv | None = None
        self._stepped_for: OffPolicyAlgorithm | None = None
        self._steps_owed = 0

    def _init_callback(self) -> None:
        model = self._checked_model()
        self._plan_evaluation(model.num_timesteps)  # the callback's own steps are of the last learn() yet
        if self._stepped_for is not model:  # else learn() was called again: the target's episode goes on
            self._begin_run(model)

    def _checked_model(self) -> OffPolicyAlgorithm:
        if not isinstance(self.model, OffPolicyAlgorithm) or not isinstance(self.model.replay_buffer, TwoDomainReplayBuffer):
            raise ValueError("OffDynamicsCallback needs a model made with replay_buffer_class=TwoDomainReplayBuffer.")
        if self.model.n_steps > 1 and not isinstance(self.model.replay_buffer.source, NStepReplayBuffer):
            # SB3 leaves n_steps to the replay buffer when it is given one.
            raise ValueError(
                f"n_steps={self.model.n_steps} has no effect with a TwoDomainReplayBuffer: pass "
                f"replay_buffer_kwargs=dict(n_steps={self.model.n_steps}, gamma={self.model.gamma}) instead."
            )
        return self.model

    def _plan_evaluation(self, n_steps: int) -> None:
        self._next_eval = (n_steps // self.eval_freq + 1) * self.eval_freq if self.eval_freq else np.inf

    def _begin_run(self, model: OffPolicyAlgorithm) -> None:
        assert isinstance(model.replay_buffer, TwoDomainReplayBuffer)
        if self._stepped_for is not None:  # another model's run is over
            self.target_steps, self._steps_owed, self.evaluations = 0, 0, []
        needs_spec = self.target is None or (self.source is None and self.eval_freq)
        # Not every spec can be sent from another process.
        known = needs_spec and self.training_env.has_attr("spec")
        spec = self.training_env.get_attr("spec")[0] if known else None
        make_target = self._target_maker(spec)
        # Not the first episodes of the run once more where it goes on.
        seed = None if model.seed is None else seed_at_this_step(model, model.seed)
        target_env = self._make(make_target, seed)
        buffer = model.replay_buffer.target
        with watch(target_env, model, buffer, domain="target domain"):
            self._last_obs: Any = target_env.reset()
        if getattr(model, "_resumed", None) is None:
            cut_off(buffer)  # of a resumed run it is seen before its first rollout whether the episode goes on
        self._target_env, self._stepped_for = target_env, model
        self._episodes: deque[dict[str, float]] = deque(maxlen=model._stats_window_size)
        if self.eval_freq:
            seed = None if model.seed is None else model.seed + 100
            makers = {"source": self._source_maker(spec), "target": make_target}
            self._eval_envs = {name: self._make(maker, seed) for name, maker in makers.items()}

    def observations(self) -> dict[str, Any]:
        """:return: What is observed in the target, by the name of the part of the replay buffer that it fills"""
        return {} if self._target_env is None else {"target": self._last_obs}

    def begin_episode(self, seed: int) -> None:
        """
        Leave the target's episode and begin another; evaluations begin anew too.

        :param seed: For the environments
        """
        assert self._target_env is not None
        for env in (self._target_env, *(self._eval_envs.values() if self.eval_freq else ())):
            env.seed(seed)
        self._last_obs = self._target_env.reset()

    def _target_maker(self, spec: EnvSpec | None) -> EnvMaker:
        if self.target is not None:
            return self.target
        if spec is None or not spec.id.startswith("odrl/"):
            raise ValueError("target=None: pass a Gymnasium id or a function that makes the target domain.")
        if spec.kwargs.get("domain") != "source":
            raise ValueError(f"The model must learn from the source domain: gymnasium.make({spec.id!r}, domain='source').")
        return _maker(spec, without="domain")

    def _source_maker(self, spec: EnvSpec | None) -> EnvMaker:
        if self.source is not None:
            return self.source
        if spec is None:
            raise ValueError("source=None: pass a Gymnasium id or a function that makes the source domain, or eval_freq=0.")
        return _maker(spec)

    def _make(self, maker: EnvMaker, seed: int | None) -> VecEnv:
        if not isinstance(maker, str) and not callable(maker):
            raise ValueError(f"{short(maker)} is no domain: pass a Gymnasium id or a function that makes the environment.")
        env = self.model._wrap_env(gym.make(maker) if isinstance(maker, str) else maker(), verbose=0)
        if env.num_envs != 1:
            raise ValueError(f"{maker} makes {env.num_envs} environments: a domain has one here.")
        for space in ("observation_space", "action_space"):
            if getattr(env, space) != getattr(self.model, space):
                raise ValueError(
                    f"{space} differs: {getattr(env, space)} of {maker} is not the model's {getattr(self.model, space)}."
                )
        env.seed(seed)
        return env

    def _on_step(self) -> bool:
        self._steps_owed += self.training_env.num_envs
        model = self.model
        assert isinstance(model, OffPolicyAlgorithm)
        assert isinstance(model.replay_buffer, TwoDomainReplayBuffer)
        if model.replay_buffer.target.size() == 0 and self.num_timesteps > model.learning_starts:
            # Updates follow, as in a model that was loaded, and each batch has transitions of the target.
            self._steps_owed = max(self._steps_owed, self.target_freq)
        while self._steps_owed >= self.target_freq:
            self._steps_owed -= self.target_freq
            self._step_target()
        if self.num_timesteps >= self._next_eval:
            self._plan_evaluation(self.num_timesteps)
            self._evaluate()
        return True

    def _step_target(self) -> None:
        model = self.model
        assert isinstance(model, OffPolicyAlgorithm)
        assert isinstance(model.replay_buffer, TwoDomainReplayBuffer)
        assert self._target_env is not None
        action, buffer_action = self._act(model)
        try:
            with watch(self._target_env, model, model.replay_buffer.target, domain="target domain"):
                new_obs, rewards, dones, infos = self._target_env.step(action)
        except (BadDataError, FailedEnvError):
            self._target_env = self._stepped_for = None  # the next learn() makes another
            raise
        # A VecEnv has begun the next episode already.
        ended = infos[0].get("terminal_observation") if dones[0] else None
        next_obs: Any = new_obs if ended is None else _one_row(ended)
        # SB3's buffer of Dicts changes the dicts that it is given.
        obs: Any = dict(self._last_obs) if isinstance(self._last_obs, dict) else self._last_obs
        next_obs = dict(next_obs) if isinstance(next_obs, dict) else next_obs
        model.replay_buffer.target.add(obs, next_obs, buffer_action, rewards, dones, infos)
        self._last_obs = new_obs
        self.target_steps += 1
        self.logger.record("time/target_steps", self.target_steps, exclude="tensorboard")
        if "episode" in infos[0]:
            self._episodes.append(infos[0]["episode"])
        if self._episodes:
            self.logger.record("rollout/target_ep_rew_mean", safe_mean([episode["r"] for episode in self._episodes]))
            self.logger.record("rollout/target_ep_len_mean", safe_mean([episode["l"] for episode in self._episodes]))

    def _act(self, model: OffPolicyAlgorithm) -> tuple[np.ndarray, np.ndarray]:
        """
        An action as SB3's ``_sample_action`` chooses it, on the target's observation and without noise.

        :param model: The model
        :return: The action for the environment, and as replay buffers have it, between -1 and 1; ``(1, action_dim)`` each
        """
        warming_up = self.num_timesteps < model.learning_starts and not (model.use_sde and model.use_sde_at_warmup)
        action = np.array([model.action_space.sample()]) if warming_up else self.predict(self._last_obs)[0]
        if not isinstance(model.action_space, spaces.Box):
            return action, action
        scaled = model.policy.scale_action(action)
        return model.policy.unscale_action(scaled), scaled

    def _normalize(self, observation: Any) -> Any:
        normalizer = self.model.get_vec_normalize_env()
        return observation if normalizer is None else normalizer.normalize_obs(observation)

    def predict(self, observation: Any, *args: Any, **kwargs: Any) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """
        The model's ``predict``, for observations that are not normalised.

        :param observation: As an environment gives it
        :return: Actions, and no state
        """
        return self.model.predict(self._normalize(observation), *args, **kwargs)

    def _evaluate(self) -> None:
        results: dict[str, float] = {}
        for name, env in self._eval_envs.items():
            mean, _ = evaluate_policy(self, env, self.n_eval_episodes, deterministic=True)
            assert isinstance(mean, float)
            results[f"{name}_return"] = mean
        spec = self._eval_envs["target"].get_attr("spec")[0]
        task = None if spec is None else BY_ID.get(spec.id)
        if task is not None and task.two_domains and _is_as_registered(spec):
            results["target_score"] = float(task.score(results["target_return"]))
        self.evaluations.append({"timesteps": self.num_timesteps, **results})
        if self.verbose:
            print(f"Evaluation at {self.num_timesteps}: {', '.join(f'{k}={v:.1f}' for k, v in results.items())}")
        for name, value in results.items():
            self.logger.record(f"eval/{name}", value)
        # As SB3's EvalCallback does: the log has the evaluation at its own step.
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(self.num_timesteps)
