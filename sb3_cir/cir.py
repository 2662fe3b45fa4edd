"""CIR: what it changes in SAC with sample multiple reuse."""

from typing import Any, ClassVar

import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from stable_baselines3.sac.policies import SACPolicy

from sb3_cir.policies import CnnPolicy, MlpPolicy, MultiInputPolicy
from sb3_cir.smr import SMR
from sb3_cir.valid import is_number


class CIR(SMR):
    """
    Temporal difference learning with Constrained Initial Representations (CIR).

    SAC with a constrained U-shaped critic (in the policy), convex Q-learning (here) and sample multiple reuse (:class:`SMR`).
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
    :param precision: "float32", or "bfloat16" for the critics' matrix products, but for the last layers: faster where the
        hardware has them.
    :raises ValueError: If ``convex_coef``, ``sample_reuse``, ``compile`` or ``precision`` is out of its range, or if the
        action space is one that no Gaussian policy can act in.
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
        if not (is_number(convex_coef) and 0 <= convex_coef <= 1):
            raise ValueError(f"convex_coef={convex_coef!r}: it must lie in [0, 1] (paper: 0.3).")
        self.convex_coef = convex_coef
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
            sample_reuse=sample_reuse,
            entropy_in_target=entropy_in_target,
            compile=compile,
            precision=precision,
            use_sde=use_sde,
            sde_sample_freq=sde_sample_freq,
            use_sde_at_warmup=use_sde_at_warmup,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            _init_setup_model=_init_setup_model,
        )

    def _next_value(self, q_values: th.Tensor) -> th.Tensor:
        """Convex Q-learning (Eq. 10): ``λ min Q' + (1 - λ) max Q'``."""
        smallest, largest = q_values.aminmax(dim=1, keepdim=True)
        return self.convex_coef * smallest + (1 - self.convex_coef) * largest

    def _actor_value(self, q_values: th.Tensor) -> th.Tensor:
        """The mean over critics, where SAC takes their minimum."""
        return q_values.mean()
