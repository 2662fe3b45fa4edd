"""The paper's tasks, as data (imports nothing)."""

DMC_EASY_MEDIUM = (
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
)
DMC_HARD = (
    "dog-run",
    "dog-stand",
    "dog-trot",
    "dog-walk",
    "humanoid-run",
    "humanoid-stand",
    "humanoid-walk",
)
# What else shimmy registers of the suite.
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
    "lqr-lqr_2_1",
    "lqr-lqr_6_2",
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

# Task -> its success score (the paper's table of tasks), by which returns are normalised.
HUMANOID_BENCH = {
    "h1-balance_hard": 800,
    "h1-balance_simple": 800,
    "h1-crawl": 700,
    "h1-hurdle": 700,
    "h1-maze": 1200,
    "h1-pole": 700,
    "h1-reach": 12000,
    "h1-run": 700,
    "h1-sit_hard": 750,
    "h1-sit_simple": 750,
    "h1-slide": 700,
    "h1-stair": 700,
    "h1-stand": 800,
    "h1-walk": 700,
}
# The six of the paper's Table 1, which has returns alone; the success scores are HumanoidBench's own (``success_bar``).
HUMANOID_BENCH_WIDER = {
    "h1-door": 600,
    "h1-highbar_simple": 750,
    "h1hand-reach": 12000,
    "h1hand-run": 700,
    "h1hand-sit_hard": 750,
    "h1hand-sit_simple": 750,
}


def dmc_id(task: str) -> str:
    """
    :param task: ``<domain>-<task>``
    :return: Its Gymnasium id
    """
    return f"dm_control/{task}-v0"


def humanoid_bench_id(task: str) -> str:
    """
    :param task: ``<robot>-<task>``
    :return: Its Gymnasium id
    """
    return f"{task}-v0"


def normalized_return(task: str, episode_return: float) -> float:
    """
    :param task: A HumanoidBench task, ``<robot>-<task>``
    :param episode_return: Its undiscounted return
    :return: The return on the scale on which 1000 is HumanoidBench's success score
    :raises KeyError: If there is no such task
    """
    return episode_return / {**HUMANOID_BENCH, **HUMANOID_BENCH_WIDER}[task] * 1000


# ODRL's eight tasks in the paper, each with the returns of the random and the expert policy in the target domain.
ODRL_REFERENCE_SCORES = {
    "walker2d-friction-0.5": (10.08, 4229.348),
    "walker2d-friction-5.0": (10.08, 4988.835),
    "ant-friction-0.5": (-325.6, 8301.338),
    "walker2d-gravity-0.5": (10.08, 5194.713),
    "ant-gravity-0.5": (-325.6, 4317.065),
    "ant-gravity-5.0": (-325.6, 6226.89),
    "ant-kinematic-anklejnt-medium": (-325.6, 5139.832),
    "ant-morph-alllegs-hard": (-325.6, 5139.832),
}
ODRL = tuple(ODRL_REFERENCE_SCORES)
