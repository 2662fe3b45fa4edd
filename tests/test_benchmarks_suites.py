"""The suites against the paper, the package's environments and its variants."""

import pytest

from benchmarks import suites
from sb3_cir import methods
from sb3_cir.tasks import TASKS, of_group

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


MEDIUM = {"acrobot-swingup", "cheetah-run", "fish-swim", "hopper-hop", "hopper-stand", "walker-run"}
HUMANOID = {"humanoid-run", "humanoid-stand", "humanoid-walk"}


@pytest.mark.parametrize(
    ("suite", "tasks"),
    [
        ("parameter_c", MEDIUM | HUMANOID | {"dog-run", "dog-stand", "dog-walk"}),
        ("scaling_width", MEDIUM | HUMANOID),
        ("scaling_smr", MEDIUM | HUMANOID),
        ("scaling_depth", MEDIUM | HUMANOID | {"dog-run", "dog-trot", "dog-stand", "dog-walk"}),
        ("scaling_smr_humanoid", {"h1-reach-v0", "h1-run-v0", "h1-walk-v0", "h1-slide-v0"}),
    ],
)
def test_the_studies_that_have_no_table_are_of_the_papers_tasks(suite, tasks):
    assert names(suite) == tasks


def test_seeds_are_the_papers():
    of_five = {name for name, suite in suites.SUITES.items() if suite.seeds == 5}
    scaling = {"scaling_smr", "scaling_depth", "scaling_smr_humanoid"}
    assert of_five == {"ablation_actor", "ablation_input", "simba_smr", "parameter_c"} | scaling
    assert {suite.seeds for suite in suites.SUITES.values()} == {5, 10}


@pytest.mark.parametrize("group", ["dmc_easy_medium", "dmc_hard", "humanoid_bench", "humanoid_bench_wider", "odrl"])
def test_the_rows_of_the_papers_tables_are_the_tasks_of_a_group(group):
    assert names(group) == {task.name for task in of_group(group)}


def test_a_group_that_there_is_not():
    with pytest.raises(ValueError, match="There is no group 'dmc_hrad' of tasks: it must be one of dmc_easy_medium, dmc_hard"):
        of_group("dmc_hrad")


def test_success_scores_are_those_of_the_papers_table():
    table = [entry for entry in suites.published("humanoid_bench_success_scores") if entry["column"] == "Task success score"]
    assert {entry["row"]: float(entry["mean"]) for entry in table} == {
        task.name: task.one for task in of_group("humanoid_bench")
    }


def test_the_wider_tasks_are_shown_in_plain_returns():
    assert suites.suite("humanoid_bench_wider").plain
    assert TASKS["h1-door-v0"].score(600) == 1000


def test_a_study_of_medium_and_hard_tasks_has_both_budgets():
    budgets = {task.name: task.env_steps for task in suites.suite("ablation").tasks}
    assert budgets["hopper-hop"] == 500_000
    assert budgets["dog-run"] == 1_000_000
    assert sum(task.hard for task in suites.suite("ablation").tasks) == 7


def test_scores_are_normalised_as_the_paper_does():
    assert suites.task("walker-walk").score(973.9) == 973.9
    assert suites.task("h1-reach-v0").score(6000.0) == 500.0
    odrl = suites.task("walker2d-gravity-0.5")
    assert odrl.score(10.08) == pytest.approx(0, abs=1e-3)  # ODRL has more digits than the paper
    assert odrl.score(5194.713) == pytest.approx(100)
    assert odrl.value(odrl.score(3759.8)) == pytest.approx(3759.8)
    assert odrl.action_repeat == 1


def test_every_heading_of_the_papers_tables_is_a_method():
    for suite in suites.SUITES.values():
        if suite.published:
            found = {methods.of_heading(entry["column"]) for entry in suites.published(suite.published)}
            beside = {"sac_smr"} if suite.name == "sac_tanh" else set()  # of the size of the paper's variants of SAC
            assert found | beside >= set(suite.methods)


@pytest.mark.parametrize("name", ["ablation", "ablation_squash", "ablation_actor", "ablation_input"])
def test_the_columns_of_a_study_are_its_variants(name):
    assert suites.suite(name).methods == methods.study(name)


def test_a_parameters_values_are_in_order_with_cir_among_them():
    assert list(suites.suite("parameter_c").methods.values()) == ["c=0.01", "c=0.1", "c=0.2", "c=0.5", "c=1.0"]
    assert list(suites.suite("scaling_depth").methods.values()) == ["L=1", "L=2", "L=3"]
    assert list(suites.suite("scaling_width").methods) == ["cir:width_128", "cir:width_256", "cir", "cir:width_1024"]
    assert list(suites.suite("scaling_smr_humanoid").methods.values()) == ["M=2", "M=4", "M=10"]


def test_methods_compared_are_those_that_can_be_trained():
    assert next(iter(suites.suite("dmc_hard").methods)) == "cir"
    assert "dreamerv3" not in suites.suite("dmc_hard").methods
    assert list(suites.suite("odrl").methods) == ["cir", "sac", "darc", "par"]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("TD7", "td7"), ("sac_simba", "simba"), ("td_mpcv2", "tdmpc2"), ("simbaV2_utd2", "simba_v2"), ("a_MLP", "a_MLP")],
)
def test_methods_are_known_by_the_names_in_published_logs(theirs, ours):
    assert methods.of_log(theirs) == ours


def test_the_papers_bro_makes_two_updates():
    """As the paper says, and so in SimBa's logs: its name here is another method's, with ten."""
    assert methods.of_heading("BRO") == "bro_fast"
    assert (methods.of_log("bro"), methods.of_log("BRO", published=True)) == ("bro", "bro_fast")
    for name in ("dmc_easy_medium", "dmc_hard", "humanoid_bench"):
        assert "bro_fast" in suites.suite(name).methods
        assert "bro" not in suites.suite(name).methods


def test_a_name_alias_or_heading_belongs_to_one_method():
    for names_of in (lambda name, each: {name, *each.aliases}, lambda name, each: {each.label, *each.headings}):
        found = [text for name, each in methods.METHODS.items() for text in names_of(name, each)]
        assert len(found) == len(set(found))


@pytest.mark.parametrize("name", [name for name, each in methods.METHODS.items() if each.algorithm])
def test_every_class_that_is_named_is_there(name):
    assert methods.algorithm(name).__name__ == methods.METHODS[name].algorithm.split(":")[1]


def test_an_unknown_suite_is_refused_with_those_that_exist():
    with pytest.raises(ValueError, match=r"'dmc'.*dmc_hard"):
        suites.suite("dmc")
