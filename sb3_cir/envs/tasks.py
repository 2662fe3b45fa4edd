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


# ODRL's tasks that the paper uses.
ODRL = (
    "walker2d-friction-0.5",
    "walker2d-friction-5.0",
    "ant-friction-0.5",
    "walker2d-gravity-0.5",
    "ant-gravity-0.5",
    "ant-gravity-5.0",
    "ant-kinematic-anklejnt-medium",
    "ant-morph-alllegs-hard",
)

# ODRL's reference scores (envs/infos.py of its repository): returns of a random and of an expert policy. Each robot has one
# random return, that of the source. Under friction and gravity most experts are the target's own. Everywhere else, and for
# all of the hopper's tasks, there is one expert for a robot. The cheetah's gravity 0.5 and 2.0 have the same figure there.
ODRL_RANDOM = {"walker2d": 10.079455055289959, "ant": -325.6, "hopper": -26.3360015397715, "halfcheetah": -280.178953}
ODRL_EXPERT = {"walker2d": 4592.3, "ant": 5139.832, "hopper": 3234.3, "halfcheetah": 12135.0}
# Robot and shift -> the experts at 0.1, 0.5, 2.0 and 5.0
ODRL_EXPERT_BY_FACTOR = {
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
# Task -> (random, expert), for all 80
ODRL_REFERENCE_SCORES = {
    f"{name}-{factor}": (ODRL_RANDOM[name.split("-")[0]], expert)
    for name, experts in ODRL_EXPERT_BY_FACTOR.items()
    for factor, expert in zip(("0.1", "0.5", "2.0", "5.0"), experts, strict=True)
} | {
    f"{robot}-{shift}-{level}": (ODRL_RANDOM[robot], ODRL_EXPERT[robot])
    for robot, shifts in ODRL_SHIFTS.items()
    for shift in shifts
    for level in ("easy", "medium", "hard")
}
