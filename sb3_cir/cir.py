"""CIR: what it changes in Stable-Baselines3's SAC."""

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import torch as th
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.policies import BasePolicy, ContinuousCritic
from stable_baselines3.common.type_aliases import (
    GymEnv,
    MaybeCallback,
    PyTorchObs,
    ReplayBufferSamples,
    Schedule,
    TrainFreq,
    TrainFrequencyUnit,
)
from stable_baselines3.common.utils import polyak_update
from stable_baselines3.sac.policies import SACPolicy

from sb3_cir.buffers import ScalarDictReplayBuffer, has_scalar_entries
from sb3_cir.policies import CIRActor, CIRCritic, CnnPolicy, MlpPolicy, MultiInputPolicy
from sb3_cir.runs.algorithm import Resumable

SelfCIR = TypeVar("SelfCIR", bound="CIR")

# Updates between two looks at gradients, Q-values and units, which would cost a hundredth of each update.
DIAGNOSE_EVERY = 100

# For compile="auto": rough, on the side of not compiling (see "Speed" in benchmarks/README.md for what was measured).
FLOPS = 2e11  # of float32 matrix products on a few cores
SECONDS_PER_UPDATE = 2e-3  # what an update takes beside them
SHARE_SAVED = 0.07
COMPILE_SECONDS = 60


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
    :param compile: Whether to compile the losses with ``torch.compile``: same numbers to rounding, fewer passes over
        memory. "auto" does on a CPU, in runs long enough to gain more than the minute that it takes.
    :param precision: "float32", or "bfloat16" for the critics' matrix products: faster where the hardware has them.
    :raises ValueError: If ``convex_coef``, ``sample_reuse``, ``compile`` or ``precision`` is out of its range.
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
        compile: bool | str = "auto",
        precision: str = "float32",
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
        if compile not in (True, False, "auto"):
            raise ValueError(f"compile={compile!r}: it must be True, False or 'auto'.")
        if precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision={precision!r}: it must be 'float32' or 'bfloat16'.")
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
        self.compile = compile
        self.precision = precision

        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        self._compiling = self.compile is True
        self._scalars: dict[str, th.Tensor] = {}
        if self.replay_buffer_class is None and self.n_steps == 1 and has_scalar_entries(self.observation_space):
            self.replay_buffer_class = ScalarDictReplayBuffer
        super()._setup_model()
        if self.device.type == "cpu":
            keep_freed_memory()

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
                scalars = self._update(batch)
                updates.append(th.stack(list(scalars.values())))
                self._n_updates += 1

        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self._scalars |= dict(zip(scalars, th.stack(updates).mean(dim=0), strict=True))
        if self._n_updates == len(updates) or self._n_updates % DIAGNOSE_EVERY < len(updates):
            self._scalars |= self._diagnose(batch)
        if self.device.type == "cpu":
            self.record_scalars()

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
        ent_coef = self._ent_coef()
        scalars = self._update_critics(batch, ent_coef) | self._update_actor(batch, ent_coef)
        self._copy_running_statistics()
        return scalars

    def _copy_running_statistics(self) -> None:
        """Those of a features extractor, to the target critics whole, as in SAC: once the last pass has moved them."""
        if self._n_updates % self.target_update_interval == 0:
            polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)

    def _ent_coef(self) -> th.Tensor:
        return self.ent_coef_tensor if self.log_ent_coef is None else self.log_ent_coef.detach().exp()

    def _update_critics(self, batch: ReplayBufferSamples, ent_coef: th.Tensor) -> dict[str, th.Tensor]:
        """
        One step of the critics, then of the target critics.

        :param batch: Sampled transitions
        :param ent_coef: α
        :return: Scalars for the logger
        """
        critic_loss, q_mean = self._call(self._critic_loss, batch, ent_coef, self._draw_noise(batch))
        minimise(critic_loss, self.critic.optimizer)
        if self._n_updates % self.target_update_interval == 0:
            with th.no_grad():
                th._foreach_lerp_(list(self.critic_target.parameters()), list(self.critic.parameters()), self.tau)
        # Copies: where a compiled loss is a CUDA graph, the next one writes over what this one returned.
        return {"critic_loss": critic_loss.detach().clone(), "q_mean": q_mean.clone(), "ent_coef": ent_coef.squeeze()}

    def _update_actor(self, batch: ReplayBufferSamples, ent_coef: th.Tensor) -> dict[str, th.Tensor]:
        """
        One step of the actor and, if it is learned, of the temperature.

        :param batch: Sampled transitions
        :param ent_coef: α
        :return: Scalars for the logger
        """
        # The loss passes through the critics, whose own gradients would be computed for nothing.
        with frozen(self.critic.optimizer):
            actor_loss, log_prob = self._call(self._actor_loss, batch, ent_coef, self._draw_noise(batch))
            minimise(actor_loss, self.actor.optimizer)
        scalars = {"actor_loss": actor_loss.detach()}
        if self.log_ent_coef is not None and self.ent_coef_optimizer is not None:
            assert isinstance(self.target_entropy, float)
            # The authors multiply with alpha where SB3 multiplies with its logarithm.
            ent_coef_loss = -(self.log_ent_coef.exp() * (log_prob + self.target_entropy)).mean()
            minimise(ent_coef_loss, self.ent_coef_optimizer)
            scalars["ent_coef_loss"] = ent_coef_loss.detach()
        return scalars

    def _critic_loss(
        self, batch: ReplayBufferSamples, ent_coef: th.Tensor, noise: th.Tensor | None
    ) -> tuple[th.Tensor, th.Tensor]:
        """
        :param batch: Sampled transitions
        :param ent_coef: α
        :param noise: For the next actions, see :meth:`_draw_noise`
        :return: The sum over critics of their mean squared errors (SB3's SAC takes half of it), and the mean Q-value
        """
        target = self._target(batch, ent_coef, noise)
        q_values = self._q_values(self.critic, batch.observations, batch.actions)
        return (q_values - target).square().mean(dim=0).sum(), q_values.detach().mean()

    def _actor_loss(
        self, batch: ReplayBufferSamples, ent_coef: th.Tensor, noise: th.Tensor | None
    ) -> tuple[th.Tensor, th.Tensor]:
        """
        :param batch: Sampled transitions
        :param ent_coef: α
        :param noise: For the actions, see :meth:`_draw_noise`
        :return: The loss, with the mean over critics where SAC has their minimum, and log π, ``(batch,)``, detached
        """
        actions, log_prob = self._act(batch.observations, noise)
        q_values = self._q_values(self.critic, batch.observations, actions)
        return (ent_coef * log_prob).mean() - q_values.mean(), log_prob.detach()

    @th.no_grad()
    def _target(self, batch: ReplayBufferSamples, ent_coef: th.Tensor, noise: th.Tensor | None = None) -> th.Tensor:
        """
        The target of convex Q-learning: ``r + γ (1 - d) (λ min Q' + (1 - λ) max Q' - α log π)``.

        :param batch: Sampled transitions
        :param ent_coef: α
        :param noise: For the next actions, see :meth:`_draw_noise`
        :return: ``(batch, 1)``
        """
        next_actions, next_log_prob = self._act(batch.next_observations, noise)
        next_q = self._q_values(self.critic_target, batch.next_observations, next_actions)
        smallest, largest = next_q.aminmax(dim=1, keepdim=True)
        next_value = self.convex_coef * smallest + (1 - self.convex_coef) * largest
        if self.entropy_in_target:
            next_value = next_value - ent_coef * next_log_prob.reshape(-1, 1)
        # With n-step returns the buffer gives gamma**n, shorter where an episode ended.
        discounts = self.gamma if batch.discounts is None else batch.discounts
        return batch.rewards + (1 - batch.dones) * discounts * next_value

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

    def _call(self, loss: Callable[..., tuple[th.Tensor, th.Tensor]], *args: Any) -> tuple[th.Tensor, th.Tensor]:
        """
        Call a loss, compiled if this run compiles. Where that fails the run goes on without, with one warning.

        :param loss: A method
        :param args: Its arguments
        :return: What it returns
        """
        if self._compiling:
            try:
                return compiled(loss.__func__, self.device.type)(self, *args)  # type: ignore[attr-defined]
            except Exception as error:  # A compiler may raise anything; what is wrong with the loss itself is raised below.
                self._compiling = False
                reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
                warnings.warn(f"The update could not be compiled and runs without ({reason}).", stacklevel=2)
        return loss(*args)

    def _worth_compiling(self, n_steps: int) -> bool:
        """
        What ``compile="auto"`` does. It depends on sizes alone, never on the clock, so that a run can be repeated.

        :param n_steps: Steps of the agent in the whole run: those made before count, so that a resumed run goes on as it began
        :return: Whether a compiled update saves more time than compiling takes. On a GPU nobody has measured it yet: no.
        """
        if self.device.type != "cpu":
            return False
        if self.use_sde or self.n_steps > 1 or any(True for _ in self.actor.features_extractor.parameters()):
            return False
        assert isinstance(self.train_freq, TrainFreq)
        n_steps -= self.learning_starts
        if self.gradient_steps < 0:
            n_updates = n_steps * self.sample_reuse
        elif self.train_freq.unit == TrainFrequencyUnit.STEP:
            n_updates = n_steps // (self.train_freq.frequency * self.n_envs) * self.gradient_steps * self.sample_reuse
        else:
            return False  # Nobody knows how many episodes there will be.
        # Matrix products of an update: six passes through the critics, four through the actor.
        critic, actor = (sum(p.numel() for p in module.parameters()) for module in (self.critic, self.actor))
        flops = 2 * self.batch_size * (6 * critic + 4 * actor)
        seconds = n_updates * (SECONDS_PER_UPDATE + flops / FLOPS)
        return seconds * SHARE_SAVED > COMPILE_SECONDS

    def _diagnose(self, batch: ReplayBufferSamples) -> dict[str, th.Tensor]:
        """
        What shows a divergence before returns do.

        :param batch: The batch of the last update, whose gradients are still there
        :return: Scalars for the logger
        """
        # Looking at the critic must not move the running statistics of a features extractor.
        self.critic.set_training_mode(False)
        with th.no_grad():
            q_values = self._q_values(self.critic, batch.observations, batch.actions)
        scalars = {
            "q_abs_max": q_values.abs().max(),
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

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_scalars"]

    def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
        total_timesteps, callback = super()._setup_learn(*args, **kwargs)
        self._compiling = self._worth_compiling(total_timesteps) if self.compile == "auto" else bool(self.compile)
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
    :param loss: What to make smaller
    :param optimizer: Makes one step
    """
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def parameters_of(optimizer: th.optim.Optimizer) -> list[th.Tensor]:
    """
    :param optimizer: An optimiser
    :return: The parameters that it changes
    """
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


@contextmanager
def frozen(optimizer: th.optim.Optimizer) -> Iterator[None]:
    """
    No gradients are computed for the parameters of this optimiser.

    :param optimizer: An optimiser
    """
    parameters = [parameter for parameter in parameters_of(optimizer) if parameter.requires_grad]
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def gradient_norm(optimizer: th.optim.Optimizer) -> th.Tensor:
    """
    :param optimizer: An optimiser
    :return: Euclidean norm of all its gradients together, a scalar
    """
    return th.nn.utils.get_total_norm([p.grad for p in parameters_of(optimizer) if p.grad is not None])


def keep_freed_memory() -> None:
    """
    Have this process keep what is freed after one update for the next one. By default glibc hands blocks of this size back to
    the system and takes them again, a few thousand page faults for each train call.

    It adapts: once a block that was mapped is freed, it maps only larger ones, and keeps twice as much free (mallopt(3),
    ``M_MMAP_THRESHOLD``), unless the user has set its thresholds. This is the largest block it adapts to; nothing is written.
    """
    th.empty(32 * 2**20 - 2**16, dtype=th.uint8)


@functools.cache
def compiled(loss: Callable[..., tuple[th.Tensor, th.Tensor]], device_type: str) -> Callable[..., tuple[th.Tensor, th.Tensor]]:
    """
    :param loss: A loss as a plain function
    :param device_type: Where it runs. On CUDA its forward and backward passes become CUDA graphs.
    :return: The same compiled, when it is first called
    """
    mode = "reduce-overhead" if device_type == "cuda" else None
    return th.compile(loss, fullgraph=True, dynamic=False, mode=mode)
