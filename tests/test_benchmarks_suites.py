"""The suites against the paper, the package's environments and its variants."""

import pytest

from benchmarks import suites
from sb3_cir.envs.tasks import DMC_EASY_MEDIUM, DMC_HARD

SIZES = {
    "dmc_easy_medium": 20,
    "dmc_hard": 7,
    "humanoid_bench": 14,
    "humanoid_bench_wider": 6,
    "odrl": 8,
    "ablation": 14,
    "ablation_squash": 20,
    "ablation_actor": 14,
    "ablation_input": 12,
    "sac_tanh": 20,
    "simba_smr": 20,
    "parameter_c": 12,
    "scaling_width": 9,
    "scaling_smr": 9,
    "scaling_depth": 13,
    "scaling_smr_humanoid": 4,
}


def names(suite):
    return {task.name for task in suites.suite(suite).tasks}


def test_sizes_are_the_papers():
    assert {name: len(suite.tasks) for name, suite in suites.SUITES.items()} == SIZES


def test_dmc_tasks_are_those_of_the_environments():
    assert names("dmc_easy_medium") == set(DMC_EASY_MEDIUM)
    assert names("dmc_hard") == set(DMC_HARD)


def test_a_study_of_medium_and_hard_tasks_has_both_budgets():
    budgets = {task.name: task.env_steps for task in suites.suite("ablation").tasks}
    assert budgets["hopper-hop"] == 500_000
    assert budgets["dog-run"] == 1_000_000
    assert sum(task.hard for task in suites.suite("ablation").tasks) == 7


def test_scores_are_normalised_as_the_paper_does():
    assert suites.task("walker-walk").score(973.9) == 973.9
    assert suites.task("h1-reach-v0").score(6000.0) == 500.0
    odrl = suites.task("walker2d-gravity-0.5")
    assert odrl.score(10.08) == 0
    assert odrl.score(5194.713) == pytest.approx(100)
    assert odrl.value(odrl.score(3759.8)) == pytest.approx(3759.8)
    assert odrl.action_repeat == 1


def test_every_heading_of_the_papers_tables_is_a_method():
    for suite in suites.SUITES.values():
        if suite.published:
            methods = {suites.method_of_heading(entry["column"]) for entry in suites.published(suite.published)}
            assert methods >= set(suite.methods)


def test_every_variant_in_a_study_is_one_of_the_packages():
    variants = pytest.importorskip("sb3_cir.variants", reason="needs the variants").VARIANTS
    studied = {method for suite in suites.SUITES.values() for method in suite.methods if ":" in method}
    assert {method.removeprefix("cir:") for method in studied} <= set(variants)


def test_an_unknown_suite_is_refused_with_those_that_exist():
    with pytest.raises(ValueError, match=r"'dmc'.*dmc_hard"):
        suites.suite("dmc")
