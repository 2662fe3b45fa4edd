"""
What the critics of an off-policy actor-critic believe, beside what is true: two numbers that show overestimation.

:class:`QGain` and :class:`QBiasEvalCallback` log them while an algorithm of Stable-Baselines3 learns: SAC, TD3, TQC, CIR and
its kin, TD7. They change nothing in a run: random numbers go on as if none had been drawn for them.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_cir.valid import check_counts

# Of a return that a time limit cut off, at most this share of the discounts' weight may be missing.
UNSEEN = 0.1


@th.no_grad()
def mean_q(model: OffPolicyAlgorithm, obs: PyTorchObs, actions: th.Tensor) -> th.Tensor:
    """
    :param model: An actor-critic
    :param obs: Observations as the networks take them: tensors, normalised if the model's are
    :param actions: ``(batch, n_actions)`` in [-1, 1]
    :return: Mean over the online critics (and quantiles, where they have some), ``(batch,)``
    """
    # TD7's networks take embeddings too, which its policy knows.
    critic: Any = model.critic  # type: ignore[attr-defined]
    q_values = getattr(model.policy, "q_values", critic)(obs, actions)
    if isinstance(q_values, tuple):
        q_values = th.cat(q_values, dim=1)
    mean: th.Tensor = q_values.flatten(start_dim=1).mean(dim=1)
    return mean


@th.no_grad()
def q_gain(model: OffPolicyAlgorithm, obs: PyTorchObs, actions: th.Tensor) -> th.Tensor:
    """
    How much better than the actions that were taken the critics believe the policy's own to be:
    the mean of ``Q(s, fresh action) - Q(s, taken action)``.

    A policy improves while this is above 0, and it grows with the scale of Q: a large one alone is no fault. Where the taken
    actions are the newest, drawn by nearly the same policy, it is how far the policy has run ahead of what the critics have
    seen. There a gain that does not go away adds up: Q-values then go beyond what is earned by as much as
    ``q_gain / (1 - gamma)``, which :class:`QBias` shows.

    :param model: An actor-critic
    :param obs: Observations as the networks take them
    :param actions: Actions taken there, ``(batch, n_actions)`` in [-1, 1]
    :return: The gain, on the model's device
    """
    # SAC's and TQC's actor draws it, TD3's and TD7's has no noise.
    fresh = getattr(model.policy, "act", model.actor)(obs)
    return (mean_q(model, obs, fresh) - mean_q(model, obs, actions)).mean()


def _check_critics(model: BaseAlgorithm) -> None:
    if not (isinstance(model, OffPolicyAlgorithm) and hasattr(model, "actor") and hasattr(model, "critic")):
        raise ValueError(f"a {type(model).__name__} has no critic of actions and actor, whose Q-values could be looked at.")


class QGain(BaseCallback):
    """
    Log ``train/q_gain``, see :func:`q_gain`, of a batch from the whole replay buffer. CIR and its kin on ``SMR`` log it
    themselves, of the batch of their last update; this is for all others, and for a look at more transitions.

    :param every: Steps of the agent between two looks. One costs about as much as a tenth of an update.
    :param batch_size: Transitions in the batch
    :raises ValueError: If ``every`` or ``batch_size`` is less than 1. From ``learn()``: if the model has no actor and critic.
    """

    def __init__(self, every: int = 1000, batch_size: int = 256):
        super().__init__()
        check_counts(every=(every, 1), batch_size=(batch_size, 1))
        self.every = every
        self.batch_size = batch_size
        self._updates_before = 0

    def _on_training_start(self) -> None:
        _check_critics(self.model)
        assert isinstance(self.model, OffPolicyAlgorithm)
        assert self.model.replay_buffer is not None
        self._updates_before = 0 if self.model.replay_buffer.size() else self.model._n_updates

    def _on_step(self) -> bool:
        assert isinstance(self.model, OffPolicyAlgorithm)
        # Before the first update the buffer may have nothing to draw: HER's before an episode has ended, a loaded model's.
        learns = self.num_timesteps > self.model.learning_starts and self.model._n_updates > self._updates_before
        if self.num_timesteps % self.every < self.training_env.num_envs and learns:
            with unchanged_randomness(self.model.device):
                self.logger.record("train/q_gain", self._look(self.model))
        return True

    def _look(self, model: OffPolicyAlgorithm) -> float:
        assert model.replay_buffer is not None
        model.policy.set_training_mode(False)
        # One of two domains may train networks of its own by what it samples.
        sample = getattr(model.replay_buffer, "sample_plain", model.replay_buffer.sample)
        batch = sample(self.batch_size, env=model.get_vec_normalize_env())
        return float(q_gain(model, batch.observations, batch.actions))


@contextmanager
def unchanged_randomness(device: th.device) -> Iterator[None]:
    """
    Random numbers go on afterwards as if nothing had been drawn.

    :param device: The model's
    """
    numpy_state = np.random.get_state()
    with th.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            np.random.set_state(numpy_state)


def discounted_returns(rewards: Sequence[float] | np.ndarray, gamma: float) -> np.ndarray:
    """
    :param rewards: Of each step of an episode
    :param gamma: Discount
    :return: For each step the discounted sum of its reward and those that follow
    """
    returns = np.zeros(len(rewards))
    following = 0.0
    for step in reversed(range(len(rewards))):
        following = returns[step] = rewards[step] + gamma * following
    return returns


def counted_steps(length: int, gamma: float, truncated: bool) -> int:
    """
    How many steps of an episode, from its first, show their whole discounted return. Of an episode that a time limit cut off,
    those after which at least 90 % of the discounts' weight was seen (with a discount of 0.99: all but the last 229); where it
    is too short for any, its first step.

    :param length: Steps of the episode
    :param gamma: Discount
    :param truncated: Whether a time limit ended it
    :return: Their number, at least 1
    """
    if not truncated or gamma == 0:
        return length
    needed = length if gamma == 1 else math.ceil(math.log(UNSEEN) / math.log(gamma))
    return max(length - needed + 1, 1)


class QBias:
    """
    Compares Q-values along evaluation episodes with the discounted returns that are earned from there.

    It is a ``callback`` of SB3's ``evaluate_policy``, so it needs no episodes of its own::

        bias = QBias(model)
        evaluate_policy(model, eval_env, n_eval_episodes=10, callback=bias)
        bias.mean()

    The entropy that a soft critic counts is no part of what is earned. Rewards must be the environment's own, as they are with
    ``VecNormalize(..., norm_reward=False)``; where the model learns from rewards that were scaled, by ``VecNormalize`` or by a
    ``return_scale`` of its own (SimbaV2's, FlashSAC's), its Q-values are scaled back. In TD7's
    evaluations the checkpoint acts, while its critics count what the actor that learns would earn from the next step on.

    :param model: An actor-critic
    :raises ValueError: If it is none.
    """

    def __init__(self, model: BaseAlgorithm):
        _check_critics(model)
        assert isinstance(model, OffPolicyAlgorithm)
        self.model = model
        normalize = model.get_vec_normalize_env()
        self._scale = 1.0
        if normalize is not None and normalize.norm_reward:
            self._scale = float(np.sqrt(normalize.ret_rms.var + normalize.epsilon))
        if hasattr(model, "return_scale"):
            self._scale *= float(model.return_scale.divisor())
        self._running: dict[int, list[tuple[float, float]]] = {}
        self._q_values: list[np.ndarray] = []
        self._returns: list[np.ndarray] = []

    def __call__(self, evaluation: dict[str, Any], _globals: dict[str, Any]) -> None:
        """:param evaluation: Local variables of ``evaluate_policy``, one environment's step at a time"""
        env = evaluation["i"]
        episode = self._running.setdefault(env, [])
        q_value = self._q_value(_only(evaluation["observations"], env), evaluation["actions"][env : env + 1])
        episode.append((q_value, float(evaluation["reward"])))
        if evaluation["done"]:
            self._end(self._running.pop(env), truncated=bool(evaluation["info"].get("TimeLimit.truncated", False)))

    def _q_value(self, obs: Any, actions: np.ndarray) -> float:
        tensors, _ = self.model.policy.obs_to_tensor(obs)
        # An environment's bounds may be float64, as dm_control's are, and with them its actions.
        scaled = th.as_tensor(self.model.policy.scale_action(actions), dtype=th.float32, device=self.model.device)
        return self._scale * mean_q(self.model, tensors, scaled.flatten(start_dim=1)).item()

    def _end(self, episode: list[tuple[float, float]], truncated: bool) -> None:
        q_values, rewards = np.array(episode).T
        n_steps = counted_steps(len(rewards), self.model.gamma, truncated)
        self._q_values.append(q_values[:n_steps])
        self._returns.append(discounted_returns(rewards, self.model.gamma)[:n_steps])

    def mean(self) -> float:
        """:return: Mean over all counted steps of Q minus the discounted return"""
        return self.mean_q() - self.mean_return()

    def mean_q(self) -> float:
        """:return: Mean Q-value of the counted steps"""
        return float(np.concatenate(self._q_values).mean())

    def mean_return(self) -> float:
        """:return: Mean discounted return of the counted steps"""
        return float(np.concatenate(self._returns).mean())


class QBiasEvalCallback(EvalCallback):
    """SB3's ``EvalCallback``, with the same arguments, that also logs ``eval/q_bias``: see :class:`QBias`."""

    def _on_step(self) -> bool:
        if self.eval_freq > 0 and self.n_calls % self.eval_freq == 0:
            self.bias = QBias(self.model)
            with unchanged_randomness(self.model.device):  # a policy that is asked for its noise draws it
                return super()._on_step()
        return super()._on_step()

    def _log_success_callback(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None:
        # The one place that SB3 calls at every step of an evaluation.
        super()._log_success_callback(locals_, globals_)
        self.bias(locals_, globals_)
        if locals_["done"]:
            self.logger.record("eval/q_bias", self.bias.mean())


def _only(observations: Any, env: int) -> Any:
    """One environment's part of a batch of observations."""
    if isinstance(observations, dict):
        return {key: value[env : env + 1] for key, value in observations.items()}
    return observations[env : env + 1]
