"""CIR: what it changes in Stable-Baselines3's SAC."""

from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, ReplayBufferSamples, Schedule
from stable_baselines3.common.utils import polyak_update
from stable_baselines3.sac.policies import SACPolicy

from sb3_cir.buffers import ScalarDictReplayBuffer, has_scalar_entries
from sb3_cir.checkpoint import Resumable
from sb3_cir.policies import CIRCritic, CnnPolicy, MlpPolicy, MultiInputPolicy

SelfCIR = TypeVar("SelfCIR", bound="CIR")


class CIR(Resumable, SAC):
    """
    Temporal difference learning with Constrained Initial Representations (CIR).

    SAC with a constrained U-shaped critic (in the policy), convex Q-learning and sample multiple reuse (here).
    Paper: https://arxiv.org/abs/2602.11800. Where its text and the authors' code differ, this follows the code.

    Arguments not named here are SAC's and mean the same; defaults are the paper's. Of the batch sampled for each of the
    ``gradient_steps``, CIR makes ``sample_reuse`` updates.

    :param policy: "MlpPolicy", "CnnPolicy", "MultiInputPolicy" or a policy class
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_starts: Steps of uniformly random actions before learning (paper: 5,000 simulator steps, which are
        2,500 steps of the agent at its action repeat of 2).
    :param convex_coef: The paper's λ in [0, 1]: weight of the minimum over critics in the target; the maximum has 1 - λ
        (convex Q-learning). Paper: 0.3 on DMC and ODRL, 1.0 on HumanoidBench.
    :param sample_reuse: The paper's M >= 1: updates made with each sampled batch (SMR), each with new action noise.
    :param entropy_in_target: Whether the target has the term -α log π (without: the paper's variant NoEnt).
    :raises ValueError: If ``convex_coef`` or ``sample_reuse`` is out of its range.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }

    def __init__(
        self,
        policy: str | type[SACPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 3e-4,
        buffer_size: int = 1_000_000,
        learning_starts: int = 2_500,
        batch_size: int = 256,
        tau: float = 0.005,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 1,
        gradient_steps: int = 1,
        action_noise: ActionNoise | None = None,
        replay_buffer_class: type[ReplayBuffer] | None = None,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        ent_coef: str | float = "auto",
        target_update_interval: int = 1,
        target_entropy: str | float = "auto",
        convex_coef: float = 0.3,
        sample_reuse: int = 2,
        entropy_in_target: bool = True,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        use_sde_at_warmup: bool = False,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
    ):
        if not 0 <= convex_coef <= 1:
            raise ValueError(f"convex_coef={convex_coef}: it must lie in [0, 1] (paper: 0.3).")
        if int(sample_reuse) != sample_reuse or sample_reuse < 1:
            raise ValueError(f"sample_reuse={sample_reuse}: it must be a whole number of at least 1 (paper: 2).")
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            buffer_size=buffer_size,
            learning_starts=learning_starts,
            batch_size=batch_size,
            tau=tau,
            gamma=gamma,
            train_freq=train_freq,
            gradient_steps=gradient_steps,
            action_noise=action_noise,
            replay_buffer_class=replay_buffer_class,
            replay_buffer_kwargs=replay_buffer_kwargs,
            optimize_memory_usage=optimize_memory_usage,
            n_steps=n_steps,
            ent_coef=ent_coef,
            target_update_interval=target_update_interval,
            target_entropy=target_entropy,
            use_sde=use_sde,
            sde_sample_freq=sde_sample_freq,
            use_sde_at_warmup=use_sde_at_warmup,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            _init_setup_model=False,
        )
        self.convex_coef = convex_coef
        self.sample_reuse = int(sample_reuse)
        self.entropy_in_target = entropy_in_target

        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        if self.replay_buffer_class is None and self.n_steps == 1 and has_scalar_entries(self.observation_space):
            self.replay_buffer_class = ScalarDictReplayBuffer
        super()._setup_model()

    def train(self, gradient_steps: int, batch_size: int = 256) -> None:
        """
        Sample ``gradient_steps`` batches and make ``sample_reuse`` updates with each.

        :param gradient_steps: Number of batches
        :param batch_size: Transitions in a batch
        """
        assert self.replay_buffer is not None
        self.policy.set_training_mode(True)
        self._update_learning_rate(self._optimizers())

        updates = []
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            for _ in range(self.sample_reuse):
                updates.append(self._update(batch))
                self._n_updates += 1

        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name in updates[0]:
            self.logger.record(f"train/{name}", th.stack([update[name] for update in updates]).mean().item())
        if isinstance(self.critic, CIRCritic):
            # Looking at the critic must not move the running statistics of a features extractor.
            self.critic.set_training_mode(False)
            saturation = self.critic.saturation(batch.observations, batch.actions)
            self.logger.record("train/input_saturation", saturation.item())

    def _optimizers(self) -> list[th.optim.Optimizer]:
        optimizers = [self.actor.optimizer, self.critic.optimizer]
        return optimizers if self.ent_coef_optimizer is None else [*optimizers, self.ent_coef_optimizer]

    def _update(self, batch: ReplayBufferSamples) -> dict[str, th.Tensor]:
        """
        One update of critics, target critics, actor and temperature, in this order. The last two use the temperature from
        before.

        :param batch: Sampled transitions
        :return: Scalars for the logger, on the model's device
        """
        if self.use_sde:
            self.actor.reset_noise()
        ent_coef = self.ent_coef_tensor if self.log_ent_coef is None else self.log_ent_coef.detach().exp()

        # The sum over critics of their mean squared errors; SB3's SAC takes half of it.
        q_values = th.cat(self.critic(batch.observations, batch.actions), dim=1)
        critic_loss = (q_values - self._target(batch, ent_coef)).square().mean(dim=0).sum()
        minimise(critic_loss, self.critic.optimizer)

        update_target = self._n_updates % self.target_update_interval == 0
        if update_target:
            polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)

        actions, log_prob = self.actor.action_log_prob(batch.observations)
        # The mean over critics, where SAC takes their minimum.
        q_values_pi = th.cat(self.critic(batch.observations, actions), dim=1)
        actor_loss = (ent_coef * log_prob).mean() - q_values_pi.mean()
        minimise(actor_loss, self.actor.optimizer)

        if update_target:
            # Running statistics of a features extractor are copied whole, as in SAC, once the last pass has moved them.
            polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)

        scalars = {
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "ent_coef": ent_coef.squeeze(),
            "q_mean": q_values.detach().mean(),
        }
        if self.log_ent_coef is not None and self.ent_coef_optimizer is not None:
            assert isinstance(self.target_entropy, float)
            # The authors multiply with alpha where SB3 multiplies with its logarithm.
            ent_coef_loss = -(self.log_ent_coef.exp() * (log_prob.detach() + self.target_entropy)).mean()
            minimise(ent_coef_loss, self.ent_coef_optimizer)
            scalars["ent_coef_loss"] = ent_coef_loss.detach()
        return scalars

    @th.no_grad()
    def _target(self, batch: ReplayBufferSamples, ent_coef: th.Tensor) -> th.Tensor:
        """
        The target of convex Q-learning: ``r + γ (1 - d) (λ min Q' + (1 - λ) max Q' - α log π)``.

        :param batch: Sampled transitions
        :param ent_coef: α
        :return: ``(batch, 1)``
        """
        next_actions, next_log_prob = self.actor.action_log_prob(batch.next_observations)
        next_q = th.cat(self.critic_target(batch.next_observations, next_actions), dim=1)
        smallest, largest = next_q.aminmax(dim=1, keepdim=True)
        next_value = self.convex_coef * smallest + (1 - self.convex_coef) * largest
        if self.entropy_in_target:
            next_value = next_value - ent_coef * next_log_prob.reshape(-1, 1)
        # With n-step returns the buffer gives gamma**n, shorter where an episode ended.
        discounts = self.gamma if batch.discounts is None else batch.discounts
        return batch.rewards + (1 - batch.dones) * discounts * next_value

    def _store_transition(
        self,
        replay_buffer: ReplayBuffer,
        buffer_action: np.ndarray,
        new_obs: np.ndarray | dict[str, np.ndarray],
        reward: np.ndarray,
        dones: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        if self._vec_normalize_env is None:
            self._check_finite("reward", reward)
            self._check_finite("observation", new_obs)
        else:
            # What is stored: VecNormalize's own output is clipped, which hides inf.
            self._check_finite("reward", self._vec_normalize_env.get_original_reward())
            self._check_finite("observation", self._vec_normalize_env.get_original_obs())
        for index, info in enumerate(infos):
            if info.get("terminal_observation") is not None:
                self._check_finite("observation", info["terminal_observation"], env_index=index)
        super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)

    def _check_finite(self, what: str, value: np.ndarray | dict[str, np.ndarray], env_index: int | None = None) -> None:
        """
        :param what: What the value is, for the error
        :param value: With one row for each environment, or from the one at ``env_index``
        :raises ValueError: If there is NaN or inf in it
        """
        for name, entry in value.items() if isinstance(value, dict) else [("", value)]:
            array = np.asarray(entry)
            # Summing first is the fast path: a sum is finite unless an entry is not (or it overflows, then we look).
            if array.dtype.kind != "f" or np.isfinite(array.sum()) or np.isfinite(array).all():
                continue
            index = np.argwhere(~np.isfinite(array))[0]
            env = int(index[0]) if env_index is None else env_index
            raise ValueError(
                f"{array[tuple(index)]} in the {what}{f' {name!r}' if name else ''} of environment {env} "
                f"at step {self.num_timesteps}: nothing of it was stored, the model is as it was before this step."
            )

    def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
        total_timesteps, callback = super()._setup_learn(*args, **kwargs)
        first_obs = self._last_obs if self._vec_normalize_env is None else self._vec_normalize_env.get_original_obs()
        assert first_obs is not None
        self._check_finite("observation", first_obs)
        return total_timesteps, callback

    def learn(
        self: SelfCIR,
        total_timesteps: float,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str = "CIR",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfCIR:
        """
        Learn for ``total_timesteps``; all arguments are SAC's, but a float such as ``1e6`` will do.

        :param total_timesteps: Steps of the agent, over all environments
        """
        return super().learn(
            int(total_timesteps),
            callback=callback,
            log_interval=log_interval,
            tb_log_name=tb_log_name,
            reset_num_timesteps=reset_num_timesteps,
            progress_bar=progress_bar,
        )


def minimise(loss: th.Tensor, optimizer: th.optim.Optimizer) -> None:
    """
    One step on ``loss``, with gradients for this optimiser's parameters only: the actor's loss passes through the critics,
    whose own gradients would be computed for nothing.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.zero_grad()
    loss.backward(inputs=parameters)  # type: ignore[no-untyped-call]
    optimizer.step()
