"""
Every benchmark task once, as data: its id, the paper's budget, and which returns are a score of 0 and of 1000.

A new task is one entry here, and one line in the yaml of each method that trains it. Suites, scores, environments, tables and
tests read this file. It imports nothing heavy. (What a shift of ODRL's does to a robot is in ``envs/odrl.py``.)

Steps are counted in two ways. **Simulator steps** are what the paper's tables, all logs and this file count. **Agent steps**
are what Stable-Baselines3, RL Zoo and its yaml files count: one for each action that the agent chooses.
:data:`ACTION_REPEAT` has the simulator steps of one agent step.
"""

from dataclasses import dataclass
from typing import Any

# By the start of an id. Elsewhere a step of the agent is one of the simulator.
ACTION_REPEAT = {"dm_control/": 2, "h1-": 2, "h1hand-": 2}


def action_repeat(env_id: str) -> int:
    """
    :param env_id: Any Gymnasium id
    :return: Simulator steps for one of the agent, by the paper's protocol
    """
    return next((repeat for start, repeat in ACTION_REPEAT.items() if env_id.startswith(start)), 1)


@dataclass(frozen=True)
class Task:
    """
    One task by the paper's protocol (appendix "Environment Details").

    :param name: Its name in logs
    :param env_id: Its Gymnasium id
    :param group: The benchmark that it belongs to
    :param env_steps: The paper's training steps, in simulator steps
    :param eval_every: Simulator steps between evaluations
    :param zero: Return that scores 0
    :param one: Return that scores ``scale``
    :param scale: Size of the score: 1000 on DMC and HumanoidBench, 100 on ODRL
    :param gamma: The paper's discount
    :param convex_coef: The paper's λ
    """

    name: str
    env_id: str
    group: str
    env_steps: int
    eval_every: int = 5_000
    zero: float = 0.0
    one: float = 1000.0
    scale: float = 1000.0
    gamma: float = 0.99
    convex_coef: float = 0.3

    @property
    def action_repeat(self) -> int:
        """Simulator steps for one of the agent."""
        return action_repeat(self.env_id)

    @property
    def agent_steps(self) -> int:
        """The paper's training steps, in agent steps."""
        return self.env_steps // self.action_repeat

    @property
    def hard(self) -> bool:
        """Whether it is one of the DMC tasks that the paper calls hard."""
        return self.group == "dmc_hard"

    @property
    def two_domains(self) -> bool:
        """Whether it is learned from a source and a target domain."""
        return self.env_id.startswith("odrl/")

    @property
    def unit(self) -> float:
        """Score for one more in the return."""
        return self.scale / (self.one - self.zero)

    def score(self, value: Any) -> Any:
        """
        :param value: Return of an episode, or an array of them
        :return: The paper's normalised return
        """
        return (value - self.zero) * self.scale / (self.one - self.zero)

    def value(self, score: Any) -> Any:
        """
        :param score: A normalised return, or an array of them
        :return: The return
        """
        return score / self.unit + self.zero


def _dmc(group: str, env_steps: int, *names: str) -> list[Task]:
    return [Task(name, f"dm_control/{name}-v0", group, env_steps) for name in names]


def _humanoid_bench(group: str, gamma: float, success: dict[str, int]) -> list[Task]:
    return [
        Task(f"{name}-v0", f"{name}-v0", group, 2_000_000, one=score, gamma=gamma, convex_coef=1.0)
        for name, score in success.items()
    ]


# ODRL's reference scores (envs/infos.py of its repository): returns of a random and of an expert policy. Each robot has one
# random return, that of the source. Under friction and gravity most experts are the target's own. Everywhere else, and for
# all of the hopper's tasks, there is one expert for a robot. The cheetah's gravity 0.5 and 2.0 have the same figure there.
_RANDOM = {"walker2d": 10.079455055289959, "ant": -325.6, "hopper": -26.3360015397715, "halfcheetah": -280.178953}
_EXPERT = {"walker2d": 4592.3, "ant": 5139.832, "hopper": 3234.3, "halfcheetah": 12135.0}
# Robot and shift -> the experts at 0.1, 0.5, 2.0 and 5.0
_EXPERT_BY_FACTOR = {
    "walker2d-friction": (3360.181, 4229.348, 5180.044, 4988.835),
    "walker2d-gravity": (2074.904, 5194.713, 5056.445, 3665.385),
    "ant-friction": (7938.962, 8301.338, 5167.376, 4545.021),
    "ant-gravity": (2782.098, 4317.065, 6705.12, 6226.89),
    "hopper-friction": (3234.3,) * 4,
    "hopper-gravity": (3234.3,) * 4,
    "halfcheetah-friction": (41696.546875, 7357.0712890625, 11255.9677734375, 10199.3271484375),
    "halfcheetah-gravity": (2466.85, 9509.15, 9509.15, 3756.24),
}
# Robot -> its kinematic and morphology shifts, each with the levels easy, medium and hard
ODRL_SHIFTS = {
    "walker2d": ("kinematic-footjnt", "kinematic-thighjnt", "morph-leg", "morph-torso"),
    "ant": ("kinematic-anklejnt", "kinematic-hipjnt", "morph-alllegs", "morph-halflegs"),
    "hopper": ("kinematic-footjnt", "kinematic-legjnt", "morph-foot", "morph-torso"),
    "halfcheetah": ("kinematic-footjnt", "kinematic-thighjnt", "morph-thigh", "morph-torso"),
}

# Those of the paper; all others are ODRL's alone.
_OF_THE_PAPER = (
    "walker2d-friction-0.5",
    "walker2d-friction-5.0",
    "ant-friction-0.5",
    "walker2d-gravity-0.5",
    "ant-gravity-0.5",
    "ant-gravity-5.0",
    "ant-kinematic-anklejnt-medium",
    "ant-morph-alllegs-hard",
)


def _odrl() -> list[Task]:
    """The paper's eight first, in its order."""
    experts = {
        f"{name}-{factor}": expert
        for name, by_factor in _EXPERT_BY_FACTOR.items()
        for factor, expert in zip(("0.1", "0.5", "2.0", "5.0"), by_factor, strict=True)
    }
    for robot, shifts in ODRL_SHIFTS.items():
        for shift in shifts:
            experts |= {f"{robot}-{shift}-{level}": _EXPERT[robot] for level in ("easy", "medium", "hard")}
    return [
        Task(
            name,
            f"odrl/{name}-v0",
            "odrl" if name in _OF_THE_PAPER else "odrl_other",
            1_000_000,
            eval_every=10_000,
            zero=_RANDOM[name.split("-")[0]],
            one=experts[name],
            scale=100.0,
        )
        for name in dict.fromkeys([*_OF_THE_PAPER, *experts])
    ]


_ALL = (
    *_dmc(
        "dmc_easy_medium",
        500_000,
        "acrobot-swingup",
        "cartpole-balance",
        "cartpole-balance_sparse",
        "cartpole-swingup",
        "cartpole-swingup_sparse",
        "cheetah-run",
        "finger-spin",
        "finger-turn_easy",
        "finger-turn_hard",
        "fish-swim",
        "hopper-hop",
        "hopper-stand",
        "pendulum-swingup",
        "quadruped-run",
        "quadruped-walk",
        "reacher-easy",
        "reacher-hard",
        "walker-run",
        "walker-stand",
        "walker-walk",
    ),
    *_dmc(
        "dmc_hard",
        1_000_000,
        "dog-run",
        "dog-stand",
        "dog-trot",
        "dog-walk",
        "humanoid-run",
        "humanoid-stand",
        "humanoid-walk",
    ),
    # Each with its success score (the paper's table of tasks).
    *_humanoid_bench(
        "humanoid_bench",
        0.95,
        {
            "h1-balance_hard": 800,
            "h1-crawl": 700,
            "h1-hurdle": 700,
            "h1-pole": 700,
            "h1-reach": 12000,
            "h1-run": 700,
            "h1-sit_hard": 750,
            "h1-sit_simple": 750,
            "h1-walk": 700,
        },
    ),
    *_humanoid_bench(
        "humanoid_bench",
        0.99,
        {
            "h1-balance_simple": 800,
            "h1-maze": 1200,
            "h1-slide": 700,
            "h1-stair": 700,
            "h1-stand": 800,
        },
    ),
    # The six of the paper's Table 1, which has plain returns; the success scores are HumanoidBench's own (``success_bar``).
    *_humanoid_bench(
        "humanoid_bench_wider",
        0.99,
        {
            "h1-door": 600,
            "h1-highbar_simple": 750,
            "h1hand-reach": 12000,
            "h1hand-run": 700,
            "h1hand-sit_hard": 750,
            "h1hand-sit_simple": 750,
        },
    ),
    *_odrl(),
)
TASKS: dict[str, Task] = {task.name: task for task in _ALL}
BY_ID: dict[str, Task] = {task.env_id: task for task in _ALL}

# What else shimmy registers of the DeepMind Control suite. The paper has no budget for these. Left out is lqr, whose episodes
# have no end and whose actions reach to 1e10.
DMC_OTHER = (
    "acrobot-swingup_sparse",
    "ball_in_cup-catch",
    "cartpole-three_poles",
    "cartpole-two_poles",
    "dog-fetch",
    "fish-upright",
    "humanoid-run_pure_state",
    "humanoid_CMU-run",
    "humanoid_CMU-stand",
    "humanoid_CMU-walk",
    "manipulator-bring_ball",
    "manipulator-bring_peg",
    "manipulator-insert_ball",
    "manipulator-insert_peg",
    "point_mass-easy",
    "point_mass-hard",
    "quadruped-escape",
    "quadruped-fetch",
    "stacker-stack_2",
    "stacker-stack_4",
    "swimmer-swimmer15",
    "swimmer-swimmer6",
)


def name_of(env_id: str) -> str:
    """
    :param env_id: Any Gymnasium id
    :return: The task's name in logs and reports: its own where it is one of the tasks here, else the id
    """
    return BY_ID[env_id].name if env_id in BY_ID else env_id


def of_group(*groups: str) -> list[Task]:
    """
    :param groups: ``dmc_easy_medium``, ``dmc_hard``, ``humanoid_bench``, ``humanoid_bench_wider``, ``odrl`` or ``odrl_other``
    :return: Their tasks
    :raises ValueError: If there is no such group.
    """
    known = list(dict.fromkeys(task.group for task in _ALL))
    for group in groups:
        if group not in known:
            raise ValueError(f"There is no group {group!r} of tasks: it must be one of {', '.join(known)}.")
    return [task for task in _ALL if task.group in groups]
