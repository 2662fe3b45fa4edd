"""SAC with sample multiple reuse: the update loop that the authors' SAC, CIR and SimBa share."""

from typing import Any, ClassVar

import torch as th
from stable_baselines3 import SAC
from stable_baselines3.common.policies import BasePolicy, ContinuousCritic
from stable_baselines3.common.type_aliases import (
    GymEnv,
    PyTorchObs,
    ReplayBufferSamples,
    Schedule,
    TrainFreq,
    TrainFrequencyUnit,
)
from stable_baselines3.common.utils import polyak_update
from stable_baselines3.sac.policies import SACPolicy

from sb3_cir.buffers import ScalarDictReplayBuffer, has_scalar_entries
from sb3_cir.diagnostics import q_gain, unchanged_randomness
from sb3_cir.policies import CIRActor, CIRCritic, SMRCnnPolicy, SMRMultiInputPolicy, SMRPolicy
from sb3_cir.runs.algorithm import Resumable
from sb3_cir.update import (
    Losses,
    fast_products,
    follow,
    frozen,
    gradient_norm,
    keep_freed_memory,
    minimise,
    temperature,
    worth_compiling,
)
from sb3_cir.valid import check_action_space, check_counts, check_gives_values, check_observed, warn_of_sb3s_policy

# Updates between two looks at gradients, Q-values and units.
DIAGNOSE_EVERY = 100


class SMR(Resumable, SAC):
    """
    SAC with sample multiple reuse (SMR), as CIR's authors released it (``dmc/algo/sac.py``); SMR itself is
    https://arxiv.org/abs/2305.18443. Of the batch sampled for each of the ``gradient_steps``, it makes ``sample_reuse``
    updates.

    It differs from SB3's SAC in four points. The log-probability of actions is exact. The critic loss is the sum over critics
    of their mean squared errors, where SB3 takes half of it. In each update critics come first, then target critics, actor and
    temperature. The loss of the temperature multiplies with α, where SB3 multiplies with log α.

    Arguments not named here are SAC's, mean the same and stand at the same place. An algorithm on top of this one overrides
    :meth:`_next_value`, :meth:`_actor_value` or :meth:`_update`.

    :param policy: "MlpPolicy", "CnnPolicy", "MultiInputPolicy" or a policy class
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_starts: Steps of uniformly random actions before learning (the authors': 5,000 simulator steps, which are
        2,500 steps of the agent at an action repeat of 2).
    :param args: SAC's arguments from ``batch_size`` on
    :param sample_reuse: Updates made with each sampled batch, at least 1, each with new action noise (the authors' ``--smr``).
    :param entropy_in_target: Whether the target has the term -α log π.
    :param compile: Whether to compile the losses with ``torch.compile``: same numbers to rounding, fewer passes over
        memory. "auto" does on a CPU, in runs long enough to gain more than the minute that it takes.
    :param precision: "float32", or "bfloat16" for the critics' matrix products but those of the last layers: faster where the
        hardware has them.
    :param kwargs: What else SAC takes, by keyword
    :raises ValueError: If ``sample_reuse``, ``compile`` or ``precision`` is out of its range, or if the action space is one
        that no Gaussian policy can act in.
    """

    learns_distributions: ClassVar[bool] = False
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": SMRPolicy,
        "CnnPolicy": SMRCnnPolicy,
        "MultiInputPolicy": SMRMultiInputPolicy,
    }

    def __init__(
        self,
        policy: str | type[SACPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 3e-4,
        buffer_size: int = 1_000_000,
        learning_starts: int = 2_500,
        *args: Any,
        sample_reuse: int = 1,
        entropy_in_target: bool = True,
        compile: bool | str = "auto",
        precision: str = "float32",
        **kwargs: Any,
    ):
        check_counts(sample_reuse=(sample_reuse, 1))
        if compile not in (True, False, "auto"):
            raise ValueError(f"compile={compile!r}: it must be True, False or 'auto'.")
        if precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision={precision!r}: it must be 'float32' or 'bfloat16'.")
        self.sample_reuse = int(sample_reuse)
        self.entropy_in_target = entropy_in_target
        self.compile = compile
        self.precision = precision
        super().__init__(policy, env, learning_rate, buffer_size, learning_starts, *args, **kwargs)

    def _setup_model(self) -> None:
        check_action_space(self.action_space)
        self._scalars: dict[str, th.Tensor] = {}
        if self.replay_buffer_class is None and self.n_steps == 1 and has_scalar_entries(self.observation_space):
            self.replay_buffer_class = ScalarDictReplayBuffer
        warn_of_sb3s_policy(self)
        super()._setup_model()
        check_observed(self)
        if not self.learns_distributions:
            check_gives_values(self)
        self._losses = Losses(self.device.type, self.verbose)
        self._losses.compiling = self.compile is True
        if self.device.type == "cpu":
            keep_freed_memory()

    @fast_products()
    def train(self, gradient_steps: int, batch_size: int = 256) -> None:
        """
        Sample ``gradient_steps`` batches and make ``sample_reuse`` updates with each.

        :param gradient_steps: Number of batches
        :param batch_size: Transitions in a batch
        """
        assert self.replay_buffer is not None
        self.policy.set_training_mode(True)
        self._update_learning_rate(self._optimizers())
        self._losses.refuse_hooks(self._optimizers())

        updates: list[th.Tensor] = []
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            for _ in range(self.sample_reuse):
                scalars = self._update(batch)
                updates.append(th.stack(list(scalars.values())))
                self._n_updates += 1

        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        if not updates:
            return
        self._scalars |= dict(zip(scalars, th.stack(updates).mean(dim=0), strict=True))
        look = self._n_updates == len(updates) or self._n_updates % DIAGNOSE_EVERY < len(updates)
        if look:
            self._scalars |= self._diagnose(batch)
        # A GPU is waited for only now and then. Evaluations write the log too, and episodes may have no end.
        if look or self.device.type == "cpu":
            self.record_scalars()

    # One update, and its parts in the order in which it makes them

    def _update(self, batch: ReplayBufferSamples) -> dict[str, th.Tensor]:
        """
        One update of critics, target critics, actor and temperature, in this order. The last two use the temperature from
        before.

        :param batch: Sampled transitions
        :return: Scalars for the logger, on the model's device
        """
        self._reset_sde_noise()
        ent_coef = temperature(self)
        scalars = self._update_critics(batch, ent_coef)
        self._update_target_critics()
        scalars |= self._update_actor_and_temperature(batch, ent_coef)
        self._copy_running_statistics()
        return scalars

    def _reset_sde_noise(self) -> None:
        if self.use_sde:
            self.actor.reset_noise()

    def _update_critics(self, batch: ReplayBufferSamples, ent_coef: th.Tensor) -> dict[str, th.Tensor]:
        noise = self._draw_noise(batch)
        loss, q_values = self._losses.minimise(self.critic.optimizer, self._critic_loss, batch, ent_coef, noise)
        return {
            # A copy: where a compiled loss is a CUDA graph, the next one writes over what this one returned.
            "critic_loss": loss.clone(),
            "q_mean": q_values.mean(),
            "q_abs_max": q_values.abs().max(),
            "ent_coef": ent_coef.squeeze(),
        }

    def _update_target_critics(self) -> None:
        if self._n_updates % self.target_update_interval == 0:
            follow(self.critic_target, self.critic, self.tau)

    def _update_actor_and_temperature(self, batch: ReplayBufferSamples, ent_coef: th.Tensor) -> dict[str, th.Tensor]:
        noise = self._draw_noise(batch)
        # The loss passes through the critics, whose own gradients would be computed for nothing.
        with frozen(self.critic.optimizer):
            actor_loss, log_prob = self._losses.minimise(self.actor.optimizer, self._actor_loss, batch, ent_coef, noise)
        scalars = {"actor_loss": actor_loss.clone()}  # as of the critics' loss
        if self.log_ent_coef is not None and self.ent_coef_optimizer is not None:
            assert isinstance(self.target_entropy, float)
            ent_coef_loss = -(self.log_ent_coef.exp() * (log_prob + self.target_entropy)).mean()
            minimise(ent_coef_loss, self.ent_coef_optimizer)
            scalars["ent_coef_loss"] = ent_coef_loss.detach()
        return scalars

    def _copy_running_statistics(self) -> None:
        """Those of a features extractor, to the target critics whole, as in SAC: once the last pass has moved them."""
        if self._n_updates % self.target_update_interval == 0:
            polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)

    def _optimizers(self) -> list[th.optim.Optimizer]:
        optimizers = [self.actor.optimizer, self.critic.optimizer]
        return optimizers if self.ent_coef_optimizer is None else [*optimizers, self.ent_coef_optimizer]

    # The losses. These may be compiled, so that noise is drawn outside and given.

    def _critic_loss(
        self, batch: ReplayBufferSamples, ent_coef: th.Tensor, noise: th.Tensor | None
    ) -> tuple[th.Tensor, th.Tensor]:
        """
        :param batch: Sampled transitions
        :param ent_coef: α
        :param noise: For the next actions, see :meth:`_draw_noise`
        :return: The sum over critics of their mean squared errors, and the Q-values, ``(batch, n_critics)``, detached
        """
        target = self._target(batch, ent_coef, noise)
        q_values = self._q_values(self.critic, batch.observations, batch.actions)
        return (q_values - target).square().mean(dim=0).sum(), q_values.detach()

    def _actor_loss(
        self, batch: ReplayBufferSamples, ent_coef: th.Tensor, noise: th.Tensor | None
    ) -> tuple[th.Tensor, th.Tensor]:
        """
        :param batch: Sampled transitions
        :param ent_coef: α
        :param noise: For the actions, see :meth:`_draw_noise`
        :return: The loss, and log π, ``(batch,)``, detached
        """
        actions, log_prob = self._act(batch.observations, noise)
        q_values = self._q_values(self.critic, batch.observations, actions)
        return (ent_coef * log_prob).mean() - self._actor_value(q_values), log_prob.detach()

    @th.no_grad()
    def _target(self, batch: ReplayBufferSamples, ent_coef: th.Tensor, noise: th.Tensor | None = None) -> th.Tensor:
        """
        ``r + γ (1 - d) (V' - α log π)``, where V' is :meth:`_next_value`.

        :param batch: Sampled transitions
        :param ent_coef: α
        :param noise: For the next actions, see :meth:`_draw_noise`
        :return: ``(batch, 1)``
        """
        next_actions, next_log_prob = self._act(batch.next_observations, noise)
        next_value = self._next_value(self._q_values(self.critic_target, batch.next_observations, next_actions))
        if self.entropy_in_target:
            next_value = next_value - ent_coef * next_log_prob.reshape(-1, 1)
        # With n-step returns the buffer gives gamma**n, shorter where an episode ended.
        discounts = self.gamma if batch.discounts is None else batch.discounts
        return batch.rewards + (1 - batch.dones) * discounts * next_value

    def _next_value(self, q_values: th.Tensor) -> th.Tensor:
        """
        What the target makes of the target critics' values: their minimum (clipped double Q-learning).

        :param q_values: ``(batch, n_critics)``
        :return: ``(batch, 1)``
        """
        return q_values.amin(dim=1, keepdim=True)

    def _actor_value(self, q_values: th.Tensor) -> th.Tensor:
        """
        What the actor is to make large: the mean over the batch of the critics' minimum.

        :param q_values: Of the actor's actions, ``(batch, n_critics)``
        :return: Scalar
        """
        return q_values.amin(dim=1).mean()

    def _draw_noise(self, batch: ReplayBufferSamples) -> th.Tensor | None:
        """
        :param batch: Sampled transitions
        :return: From N(0, 1), ``(batch, n_actions)``, or None if the actor draws its own. Drawn outside what is compiled, it
            is the same there as without.
        """
        if self.use_sde or not isinstance(self.actor, CIRActor):
            return None
        return th.randn_like(batch.actions)

    def _act(self, obs: PyTorchObs, noise: th.Tensor | None) -> tuple[th.Tensor, th.Tensor]:
        if noise is None:
            return self.actor.action_log_prob(obs)
        assert isinstance(self.actor, CIRActor)
        return self.actor.action_log_prob(obs, noise)

    def _q_values(self, critic: ContinuousCritic, obs: PyTorchObs, actions: th.Tensor) -> th.Tensor:
        """
        :param critic: Online or target critics
        :param obs: Observations
        :param actions: ``(batch, n_actions)`` in [-1, 1]
        :return: ``(batch, n_critics)``
        """
        with th.autocast(self.device.type, th.bfloat16, enabled=self.precision == "bfloat16"):
            q_values = th.cat(critic(obs, actions), dim=1)
        return q_values.float()

    # What is logged

    @th.no_grad()
    def _diagnose(self, batch: ReplayBufferSamples) -> dict[str, th.Tensor]:
        """
        What shows a divergence, or an actor that runs ahead of its critics, before returns do. Training is the same with and
        without: no running statistics move, and random numbers are drawn from where they would be without.

        :param batch: The batch of the last update, whose gradients are still there
        :return: Scalars for the logger
        """
        self.policy.set_training_mode(False)
        with unchanged_randomness(self.device):
            gain = q_gain(self, batch.observations, batch.actions)
        scalars = {
            "q_gain": gain,
            "critic_grad_norm": gradient_norm(self.critic.optimizer),
            "actor_grad_norm": gradient_norm(self.actor.optimizer),
        }
        if isinstance(self.critic, CIRCritic):
            scalars["input_saturation"] = self.critic.saturation(batch.observations, batch.actions)
        return scalars

    def record_scalars(self) -> None:
        """Hand the logger what the last train call left on the device, in one transfer."""
        if self._scalars:
            for name, value in zip(self._scalars, th.stack(list(self._scalars.values())).tolist(), strict=True):
                self.logger.record(f"train/{name}", value)
            self._scalars = {}

    def dump_logs(self) -> None:
        """Write log data."""
        self.record_scalars()
        super().dump_logs()

    # Around a run

    def _worth_compiling(self, n_steps: int) -> bool:
        """
        What ``compile="auto"`` does.

        :param n_steps: Steps of the agent in the whole run: those made before count, so that a resumed run goes on as it began
        :return: Whether to compile. On a GPU nobody has measured it yet: no.
        """
        if self.device.type != "cpu":
            return False
        if self.use_sde or any(True for _ in self.actor.features_extractor.parameters()):
            return False
        assert isinstance(self.train_freq, TrainFreq)
        n_steps -= self.learning_starts
        if self.gradient_steps < 0:
            n_batches = n_steps
        elif self.train_freq.unit == TrainFrequencyUnit.STEP:
            n_batches = n_steps // (self.train_freq.frequency * self.n_envs) * self.gradient_steps
        else:
            return False  # Nobody knows how many episodes there will be.
        return worth_compiling(n_batches * self.sample_reuse, self.batch_size, self.critic, self.actor)

    def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
        total_timesteps, callback = super()._setup_learn(*args, **kwargs)
        asked = self._worth_compiling(total_timesteps) if self.compile == "auto" else bool(self.compile)
        self._losses.compiling = asked and not self._losses.failed
        return total_timesteps, callback

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_scalars", "_losses"]
