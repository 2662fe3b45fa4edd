"""
TD7 (Fujimoto et al., NeurIPS 2023, https://arxiv.org/abs/2306.02451), after the authors' code (github.com/sfujim/TD7): TD3
with state-action embeddings, prioritised replay and policy checkpoints.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import TD3
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.noise import ActionNoise, NormalActionNoise
from stable_baselines3.common.policies import BasePolicy, ContinuousCritic
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, create_mlp
from stable_baselines3.common.type_aliases import GymEnv, PyTorchObs, ReplayBufferSamples, Schedule
from stable_baselines3.td3.policies import Actor, TD3Policy
from torch import nn

from sb3_cir.baselines.lap import LAPReplayBuffer, lap_huber
from sb3_cir.baselines.sale import DynamicsEncoder
from sb3_cir.networks import AvgRNorm, StackedLinear
from sb3_cir.policies import FusedAdam, OwnNetworks
from sb3_cir.runs.algorithm import Resumable
from sb3_cir.update import fast_products, frozen, minimise
from sb3_cir.valid import (
    check_action_space,
    check_counts,
    check_fixed_arguments,
    check_least,
    check_n_critics,
    check_observed,
    check_policy,
    check_vectors,
    is_number,
)

# What the original has for the least of no values. (JSON has no infinity.)
NOT_YET = 1e8


class TD7Actor(Actor):
    """
    TD3's actor with the state's embedding beside its first layer.

    :param embedding_dim: Size of the embedding
    :param kwargs: What else SB3's ``Actor`` takes
    """

    def __init__(self, *, embedding_dim: int, **kwargs: Any):
        super().__init__(**kwargs)
        width = self.net_arch[0]
        self.input = nn.Sequential(nn.Linear(self.features_dim, width), AvgRNorm(1.0))
        action_dim = get_action_dim(self.action_space)
        layers = create_mlp(width + embedding_dim, action_dim, self.net_arch, self.activation_fn, squash_output=True)
        self.mu = nn.Sequential(*layers)

    def forward(self, obs: PyTorchObs, zs: th.Tensor) -> th.Tensor:  # type: ignore[override]
        """
        :param obs: Observations
        :param zs: Embedding of the state, ``(batch, embedding_dim)``
        :return: Actions in [-1, 1], ``(batch, n_actions)``
        """
        features = self.input(self.extract_features(obs, self.features_extractor))
        actions: th.Tensor = self.mu(th.cat([features, zs], dim=1))
        return actions


class TD7Critic(OwnNetworks):
    """
    TD3's critics with the embeddings of state and action beside their first layer, as one stack of networks with elu.

    :param embedding_dim: Size of each of the two embeddings
    :param kwargs: What SB3's ``ContinuousCritic`` takes, by keyword
    """

    def __init__(self, *, embedding_dim: int, **kwargs: Any):
        super().__init__(**kwargs)
        n_critics, widths = self.n_critics, kwargs["net_arch"]
        self.input = nn.Sequential(StackedLinear(n_critics, self.in_features, widths[0]), AvgRNorm(1.0))
        sizes = [widths[0] + 2 * embedding_dim, *widths]
        hidden = [
            layer
            for n_in, n_out in zip(sizes, widths, strict=False)
            for layer in (StackedLinear(n_critics, n_in, n_out), nn.ELU())
        ]
        self.q_network = nn.Sequential(*hidden, StackedLinear(n_critics, widths[-1], 1))

    def forward(  # type: ignore[override]
        self, obs: PyTorchObs, actions: th.Tensor, zsa: th.Tensor, zs: th.Tensor
    ) -> th.Tensor:
        """
        :param obs: Observations
        :param actions: ``(batch, n_actions)`` in [-1, 1]
        :param zsa: Embedding of state and action, ``(batch, embedding_dim)``
        :param zs: Embedding of the state, ``(batch, embedding_dim)``
        :return: ``(batch, n_critics)``
        """
        x = self.network_input(obs, actions)
        features = self.input(x.expand(self.n_critics, *x.shape))
        embeddings = th.cat([zsa, zs], dim=1).expand(self.n_critics, -1, -1)
        q_values: th.Tensor = self.q_network(th.cat([features, embeddings], dim=2))
        return q_values.squeeze(2).T


class TD7Policy(TD3Policy):
    """
    Actor, critics and encoder, each with what TD7 holds fixed meanwhile. :meth:`predict` acts as the checkpoint does.

    :param observation_space: Observation space, a Box of one axis
    :param action_space: Action space
    :param lr_schedule: Learning rate schedule
    :param net_arch: Hidden layers of actor and critics. Default: the original's ``[256, 256]``.
    :param encoder_width: Size of the encoder's layers and of the embeddings
    :param optimizer_class: Optimiser of actor, critics and encoder
    :param kwargs: What else SB3's ``TD3Policy`` takes. ``activation_fn`` is the actor's alone: critics and encoder have the
        original's ELU. Actor, critics and encoder see observations through a
        ``features_extractor_class`` alone, each through one of its own. With ``share_features_extractor`` the critics use the
        actor's, which learns by the actor's loss alone.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Box,
        lr_schedule: Schedule,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        *,
        encoder_width: int = 256,
        optimizer_class: type[th.optim.Optimizer] = FusedAdam,
        **kwargs: Any,
    ):
        check_n_critics(kwargs)
        self.encoder_width = encoder_width
        self.from_checkpoint = True
        net_arch = [256, 256] if net_arch is None else net_arch
        if not all(net_arch.values() if isinstance(net_arch, dict) else [net_arch]):
            raise ValueError(f"net_arch={net_arch}: TD7 needs a hidden layer at least in actor and critics.")
        super().__init__(observation_space, action_space, lr_schedule, net_arch, optimizer_class=optimizer_class, **kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        if self.share_features_extractor:
            # The actor's update holds still what the critics' optimiser has.
            own = [each for name, each in self.critic.named_parameters() if not name.startswith("features_extractor.")]
            self.critic.optimizer = self.optimizer_class(own, lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]
        self.encoder = self._make_encoder()
        self.encoder_optimizer = self.optimizer_class(
            self.encoder.parameters(),
            lr=lr_schedule(1),  # type: ignore[call-arg]
            **self.optimizer_kwargs,
        )
        # What actor and critics learn with, what their targets do, and what the checkpoint acts with.
        self.fixed_encoder, self.fixed_encoder_target, self.checkpoint_encoder = (self._make_encoder() for _ in range(3))
        self.checkpoint_actor = self.make_actor()
        for encoder in (self.fixed_encoder, self.fixed_encoder_target, self.checkpoint_encoder):
            encoder.load_state_dict(self.encoder.state_dict())
        self.checkpoint_actor.load_state_dict(self.actor.state_dict())
        for fixed in (self.fixed_encoder, self.fixed_encoder_target, self.checkpoint_encoder, self.checkpoint_actor):
            fixed.requires_grad_(False).eval()

    def set_training_mode(self, mode: bool) -> None:
        super().set_training_mode(mode)
        self.encoder.train(mode)

    def _make_encoder(self) -> DynamicsEncoder:
        n_actions = get_action_dim(self.action_space)
        encoder = DynamicsEncoder(self.actor.features_dim, n_actions, self.encoder_width)
        # By name, so that the layers behind it keep theirs.
        layers = dict(encoder.state.named_children())
        encoder.state = nn.Sequential(OrderedDict(features=self.make_features_extractor(), **layers))
        return encoder.to(self.device)

    def make_actor(self, features_extractor: BaseFeaturesExtractor | None = None) -> Actor:
        kwargs = self._update_features_extractor(self.actor_kwargs, features_extractor)
        return TD7Actor(**kwargs, embedding_dim=self.encoder_width).to(self.device)

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> ContinuousCritic:
        kwargs = self._update_features_extractor(self.critic_kwargs, features_extractor)
        return TD7Critic(**kwargs, embedding_dim=self.encoder_width).to(self.device)

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> th.Tensor:
        assert isinstance(observation, th.Tensor)
        if not self.from_checkpoint:
            return self.act(observation)
        actions: th.Tensor = self.checkpoint_actor(observation, self.checkpoint_encoder.state(observation.float()))
        return actions

    def act(self, obs: th.Tensor) -> th.Tensor:
        """
        :param obs: Observations
        :return: Actions of the actor that learns, ``(batch, n_actions)`` in [-1, 1]
        """
        actions: th.Tensor = self.actor(obs, self.fixed_encoder.state(obs.float()))
        return actions

    def q_values(self, obs: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """
        :param obs: Observations
        :param actions: ``(batch, n_actions)`` in [-1, 1]
        :return: The critics' values, ``(batch, n_critics)``
        """
        zs = self.fixed_encoder.state(obs.float())
        q_values: th.Tensor = self.critic(obs, actions, self.fixed_encoder.predict(zs, actions), zs)
        return q_values

    @contextmanager
    def current(self) -> Iterator[None]:
        """Meanwhile :meth:`predict` acts as the actor that learns does."""
        self.from_checkpoint = False
        try:
            yield
        finally:
            self.from_checkpoint = True

    def keep_checkpoint(self) -> None:
        """Let the checkpoint be the actor as it is now."""
        self.checkpoint_actor.load_state_dict(self.actor.state_dict())
        self.checkpoint_encoder.load_state_dict(self.fixed_encoder.state_dict())

    def update_targets(self) -> None:
        """Let each target be what it is the target of: those of the encoder are one copy behind each other."""
        self.actor_target.load_state_dict(self.actor.state_dict())
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.fixed_encoder_target.load_state_dict(self.fixed_encoder.state_dict())
        self.fixed_encoder.load_state_dict(self.encoder.state_dict())

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "encoder_width": self.encoder_width}


class TD7(Resumable, TD3):
    """
    TD7 at the original's hyperparameters: TD3 with embeddings of state and action (SALE), prioritised replay (LAP), a Huber
    loss, targets clipped to the range of values seen, target networks copied whole, and policy checkpoints.

    Policy checkpoints: it does not train while an episode lasts. Once a policy has been assessed for some episodes, as many
    updates follow as it made steps. The policy whose WORST episode was the best so far is the checkpoint, which ``predict()``
    and so all evaluation acts with; the assessment of a policy ends early at an episode that is worse. So training comes in
    bursts, and ``learn(n)`` ends with the episode that step ``n`` is in.

    Left out of the original: offline training (TD3+BC), and training without checkpoints, after each step. Different: rows of
    the replay buffer are drawn in float64 from numpy's generator.

    Arguments not named here are TD3's, by keyword.

    :param policy: "MlpPolicy" or a policy class
    :param env: The environment to learn from (if registered in Gym, can be str): one, with observations that are vectors
    :param learning_rate: For actor, critics and encoder
    :param learning_starts: Actions are uniformly random to the end of the episode in which this many steps have been made.
    :param target_update_interval: Updates between two copies of all networks to their targets
    :param exploration_noise: Standard deviation of Gaussian noise on actions, which are in [-1, 1]
    :param priority_exponent: LAP's α
    :param min_priority: The least priority before the exponent, and where the Huber loss begins to be linear
    :param steps_before_checkpointing: Updates after which a policy is assessed for more than one episode
    :param max_eps_when_checkpointing: Episodes for which it is from then on
    :param reset_weight: What the best return so far is multiplied with at that moment
    :raises ValueError: If observations are no vectors, if there are several environments, or if an argument is given that the
        method fixes.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"MlpPolicy": TD7Policy}
    fixed_arguments = ("tau", "train_freq", "gradient_steps", "action_noise", "replay_buffer_class", "n_steps")
    acts = ("actor", "fixed_encoder")
    counters = (
        *Resumable.counters,
        *("learning", "eps_since_update", "timesteps_since_update", "max_eps_before_update"),
        *("min_return", "best_min_return", "max_value", "min_value", "max_target", "min_target"),
    )
    policy: TD7Policy
    replay_buffer: LAPReplayBuffer

    def __init__(
        self,
        policy: str | type[TD7Policy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 3e-4,
        *,
        learning_starts: int = 25_000,
        target_update_interval: int = 250,
        exploration_noise: float = 0.1,
        priority_exponent: float = 0.4,
        min_priority: float = 1.0,
        steps_before_checkpointing: int = 750_000,
        max_eps_when_checkpointing: int = 20,
        reset_weight: float = 0.9,
        **kwargs: Any,
    ):
        check_fixed_arguments(type(self), kwargs)
        check_least(exploration_noise=(exploration_noise, 0), priority_exponent=(priority_exponent, 0))
        check_counts(
            max_eps_when_checkpointing=(max_eps_when_checkpointing, 1), policy_delay=(kwargs.get("policy_delay", 1), 1)
        )
        if not (is_number(min_priority) and min_priority > 0):  # with 0 the Huber loss would be 0 too
            raise ValueError(f"min_priority={min_priority}: it must be above 0.")
        self.target_update_interval = target_update_interval
        self.exploration_noise = exploration_noise
        self.priority_exponent = priority_exponent
        self.min_priority = min_priority
        self.steps_before_checkpointing = steps_before_checkpointing
        self.max_eps_when_checkpointing = max_eps_when_checkpointing
        self.reset_weight = reset_weight

        # The policy that is being assessed
        self.learning = 0  # 1 once random actions are over
        self.eps_since_update = 0
        self.timesteps_since_update = 0
        self.max_eps_before_update = 1
        self.min_return = NOT_YET
        self.best_min_return = -NOT_YET
        self._episode_return = 0.0
        self._episode_start = 0  # the step of the run that it began at
        # Targets so far, and what they are clipped to: 0 until the first copy to the target networks
        self.max_value, self.min_value = -NOT_YET, NOT_YET
        self.max_target, self.min_target = 0.0, 0.0
        super().__init__(
            policy,
            env,
            learning_rate,
            learning_starts=learning_starts,
            tau=1.0,
            train_freq=(1, "episode"),
            gradient_steps=-1,
            action_noise=None,
            replay_buffer_class=LAPReplayBuffer,
            n_steps=1,
            **kwargs,
        )

    def _setup_model(self) -> None:
        check_vectors(self)
        check_policy(self, TD7Policy)
        check_action_space(self.action_space)
        if self.n_envs != 1:
            raise ValueError(f"n_envs={self.n_envs}: TD7 assesses one policy at a time, in 1 environment.")
        shape = self.action_space.shape
        assert shape is not None
        self.action_noise = NormalActionNoise(np.zeros(shape), np.full(shape, self.exploration_noise))
        super()._setup_model()
        check_observed(self)

    def _setup_learn(self, total_timesteps: int, callback: Any = None, reset_num_timesteps: bool = True, *args: Any) -> Any:
        if reset_num_timesteps:
            # Random actions come first again, as in all of SB3. What the checkpoint returned may be of another environment:
            # it stays until the first assessment, and no longer.
            self.learning = self.eps_since_update = self.timesteps_since_update = 0
            self.min_return, self.best_min_return = NOT_YET, -NOT_YET
        new_episode = reset_num_timesteps or self._last_obs is None
        ready = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, *args)
        if new_episode:
            self._episode_return, self._episode_start = 0.0, self.num_timesteps
        return ready

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        if not self.learning:
            return super()._sample_action(self.num_timesteps + 1, None, n_envs)  # uniformly random
        with self.policy.current():
            return super()._sample_action(0, action_noise, n_envs)

    def _store_transition(
        self,
        replay_buffer: ReplayBuffer,
        buffer_action: np.ndarray,
        new_obs: np.ndarray | dict[str, np.ndarray],
        reward: np.ndarray,
        dones: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)
        original = reward if self._vec_normalize_env is None else self._vec_normalize_env.get_original_reward()
        self._episode_return += float(original[0])

    def train(self, gradient_steps: int, batch_size: int = 256) -> None:
        """
        Called at the end of each episode: judge the policy by it, and train if its assessment is over.

        :param gradient_steps: Steps of the rollout. They are less than the episode's where a callback had ended a run in its
            middle, so that they do not count.
        :param batch_size: Transitions in a batch
        """
        episode_return, n_steps = self._episode_return, self.num_timesteps - self._episode_start
        self._episode_return, self._episode_start = 0.0, self.num_timesteps
        if not self.learning:
            self.learning = 1
            return
        self.eps_since_update += 1
        self.timesteps_since_update += n_steps
        self.min_return = min(self.min_return, episode_return)
        worse = self.min_return < self.best_min_return
        if not worse and self.eps_since_update < self.max_eps_before_update:
            return
        if not worse:
            self.best_min_return = self.min_return
            self.policy.keep_checkpoint()
        # As many updates as the policy made steps; then another one is assessed.
        self.make_updates(self.timesteps_since_update, batch_size)
        self.eps_since_update = 0
        self.timesteps_since_update = 0
        self.min_return = NOT_YET

    @fast_products()
    def make_updates(self, n_updates: int, batch_size: int = 256) -> None:
        """
        Train without looking at how the policy fares.

        :param n_updates: Number of updates, each with a batch of its own
        :param batch_size: Transitions in a batch
        """
        self.policy.set_training_mode(True)
        self._update_learning_rate([self.actor.optimizer, self.critic.optimizer, self.policy.encoder_optimizer])
        scalars: dict[str, list[float]] = {}
        for _ in range(n_updates):
            if self._n_updates == self.steps_before_checkpointing:
                self.best_min_return *= self.reset_weight
                self.max_eps_before_update = self.max_eps_when_checkpointing
            rows = self.replay_buffer.draw(batch_size)
            batch = self.replay_buffer._get_samples(rows, self._vec_normalize_env)
            for name, value in self._update(batch, rows).items():
                scalars.setdefault(name, []).append(value)
        for name, values in scalars.items():
            self.logger.record(f"train/{name}", float(np.mean(values)))
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/best_min_return", self.best_min_return)

    def _update(self, batch: ReplayBufferSamples, rows: np.ndarray) -> dict[str, float]:
        """
        One update of encoder, critics and priorities; of the actor at every ``policy_delay``-th, and of the targets at every
        ``target_update_interval``-th.

        :param batch: Transitions
        :param rows: Where they stand in the replay buffer
        :return: Scalars for the logger
        """
        self._n_updates += 1
        scalars = {"encoder_loss": self._update_encoder(batch)}
        critic_loss, priorities = self._update_critics(batch)
        scalars["critic_loss"] = critic_loss
        self.replay_buffer.update_priorities(rows, priorities)
        if self._n_updates % self.policy_delay == 0:
            scalars["actor_loss"] = self._update_actor(batch)
        if self._n_updates % self.target_update_interval == 0:
            self.policy.update_targets()
            self.replay_buffer.forget_max_priority()
            self.max_target, self.min_target = self.max_value, self.min_value
        return scalars

    def _update_encoder(self, batch: ReplayBufferSamples) -> float:
        loss = self.policy.encoder.error(batch).mean()
        minimise(loss, self.policy.encoder_optimizer)
        return loss.item()

    def _update_critics(self, batch: ReplayBufferSamples) -> tuple[float, np.ndarray]:
        """
        :param batch: Transitions
        :return: The loss, and the new priorities of the transitions, ``(batch,)``
        """
        target = self._target(batch)
        self.max_value = max(self.max_value, target.max().item())
        self.min_value = min(self.min_value, target.min().item())
        zs, zsa = self._embed(self.policy.fixed_encoder, batch.observations, batch.actions)
        td_error = (self.critic(batch.observations, batch.actions, zsa, zs) - target).abs()
        loss = lap_huber(td_error, self.min_priority)
        minimise(loss, self.critic.optimizer)
        largest = td_error.detach().amax(dim=1)
        priorities = largest.clamp(min=self.min_priority).pow(self.priority_exponent)
        return loss.item(), priorities.cpu().numpy()

    @th.no_grad()
    def _target(self, batch: ReplayBufferSamples) -> th.Tensor:
        """
        :param batch: Transitions
        :return: TD3's target, the next value clipped to the range of values seen, ``(batch, 1)``
        """
        encoder, next_obs = self.policy.fixed_encoder_target, batch.next_observations
        zs = encoder.state(next_obs.float())
        noise = self.target_policy_noise * th.randn_like(batch.actions)
        noise = noise.clamp(-self.target_noise_clip, self.target_noise_clip)
        next_actions = (self.actor_target(next_obs, zs) + noise).clamp(-1, 1)
        next_q = self.critic_target(next_obs, next_actions, encoder.predict(zs, next_actions), zs)
        next_value = next_q.amin(dim=1, keepdim=True).clamp(self.min_target, self.max_target)
        target: th.Tensor = batch.rewards + (1 - batch.dones) * self.gamma * next_value
        return target

    def _update_actor(self, batch: ReplayBufferSamples) -> float:
        # The loss passes through the critics, whose own gradients would be computed for nothing.
        with frozen(self.critic.optimizer):
            encoder = self.policy.fixed_encoder
            zs = encoder.state(batch.observations.float())
            actions = self.actor(batch.observations, zs)
            loss: th.Tensor = -self.critic(batch.observations, actions, encoder.predict(zs, actions), zs).mean()
            minimise(loss, self.actor.optimizer)
        return loss.item()

    @staticmethod
    @th.no_grad()
    def _embed(encoder: DynamicsEncoder, obs: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        zs = encoder.state(obs.float())
        return zs, encoder.predict(zs, actions)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "action_noise"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts, variables = super()._get_torch_save_params()
        return [*state_dicts, "policy.encoder_optimizer"], variables
