"""The theory checks: what each verdict rests on, and the page."""

from dataclasses import replace

import numpy as np
import pytest

theory = pytest.importorskip("benchmarks.theory", reason="needs matplotlib and rliable, of the benchmarks extra")


@pytest.fixture
def rng():
    return np.random.default_rng(1)


@pytest.fixture
def two_states():
    """From each state to each with probability 1/2, so ν = (1/2, 1/2); rewards 2 and 0."""
    return theory.Chain(np.full((2, 2), 0.5), np.array([2.0, 0.0]), np.eye(2))


def test_a_random_chain_is_ergodic_and_its_features_are_centred(rng):
    chain = theory.random_chain(rng)
    assert (chain.transition > 0).all()
    assert chain.stationary @ chain.transition == pytest.approx(chain.stationary)
    assert chain.pairs.sum() == pytest.approx(1)
    assert np.abs(chain.stationary @ chain.features).max() < 1e-12


def test_opening(rng):
    found = theory.opening(rng, networks=10).numbers
    assert found["holds"]
    assert found["tanh"] < found["ReLU"] / 3


# One input moves by (3, 4), the hidden units before ReLU from (3, 4) to (12, 20).
MOVES = [[3.0, 0.0], [0.0, 4.0]], [3.0, 4.0], [1.0, 1.0], [4.0, 5.0]
FAR_APART = [-1.0, -1.0], [1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "layers_and_inputs", "deviation", "nearer", "bound"),
    [
        ("ReLU", MOVES, 91, 5 * np.sqrt(9**2 + 16**2), 5 * 5 * 5),
        ("ReLU", ([[3.0]], [4.0], [1.0], [3.0]), 24, 24, 24),
        ("tanh", MOVES, 0.0175185, 0.0249526, 2 * np.sqrt(2) * 5),
        # Both units go from -1 to 1: nothing moves the output further. A half of the bound would be below it.
        ("tanh", ([[50.0, 0.0], [0.0, 50.0]], [1.0, 1.0], *FAR_APART), 4, 4, 2 * np.sqrt(2) * np.sqrt(2)),
        ("tanh", ([[60.0, 0.0], [0.0, 80.0]], [3.0, 4.0], *FAR_APART), 14, 14.142136, 14.142136),
    ],
)
def test_the_opening_figures_bounds_by_hand(name, layers_and_inputs, deviation, nearer, bound):
    first, second, near, far = (np.array(each) for each in layers_and_inputs)
    far = np.array([far, near])
    expected = {"output_deviation": [deviation, 0], "nearer_bound": [nearer, 0]}
    expected["deviation_bound"] = [bound, bound if name == "tanh" else 0]
    for function, values in expected.items():
        found = getattr(theory, function)(name, first, second, near, far)
        assert found == pytest.approx(np.array(values), rel=1e-5, abs=1e-12), function


@pytest.mark.parametrize("function", ["output_deviation", "nearer_bound", "deviation_bound"])
def test_a_bound_that_fails_is_said_to(function, rng, monkeypatch):
    """Each of the three in the wrong order: the deviation too large, the bound between too small, the last one too small."""
    found, factor = getattr(theory, function), 1e3 if function == "output_deviation" else 1e-3
    monkeypatch.setattr(theory, function, lambda *arguments: factor * found(*arguments))
    failed = theory.opening(rng, networks=2)
    assert not failed.numbers["holds"]
    assert failed.verdict.startswith("a bound FAILS")


def test_linear_independence(rng):
    found = theory.linear_independence(rng, matrices=20).numbers
    assert found["kept"] == 1
    assert found["singular"] < 1e-12 < abs(found["independent"])


def test_the_c_of_the_proof_by_hand():
    """c² = 3 σ_min(Φ) / ‖Φ∘³‖_F: 3 · 3 / √(27² + 64²), and for several Φ at once."""
    assert theory.safe_scale(np.diag([3.0, 4.0])) == pytest.approx(0.359954, abs=1e-6)
    both = theory.safe_scale(np.array([np.diag([3.0, 4.0]), np.diag([6.0, 8.0])]))
    assert both == pytest.approx(np.sqrt(9 / np.sqrt(4825)) / np.array([1, 2]))


@pytest.mark.parametrize(("c", "share"), [(0.1, 0.965265), (0.01, 0.999640), (0.001, 0.999996)])
def test_the_c_of_the_proof_is_the_largest_its_series_gives(c, share):
    """σ_min(tanh(cΦ)) / c is less than σ_min(Φ) by a share of what the proof allows, σ_min(Φ) c² / safe²: by all for c → 0."""
    allowed = 3 * (c / theory.safe_scale(np.array([[3.0]]))) ** 2
    assert allowed == pytest.approx(9 * c**2)
    assert (3 - np.tanh(3 * c) / c) / allowed == pytest.approx(share, abs=1e-6)


def test_variance(rng):
    found = theory.variance(rng, chains=20).numbers
    assert found["holds"]
    assert found["remark"]
    assert found["too_low"] > 0
    assert found["worse"] > 2


def test_the_bound_of_the_variance_by_hand(rng):
    """(max |r| + (1 + γ) ‖θ‖ c max(‖φ‖, ‖φ'‖))² ‖tanh(cφ)‖², and without tanh likewise with ‖φ‖."""
    chain = replace(theory.random_chain(rng, states=2, d=2), features=np.array([[3.0, 4.0], [0.0, 1.0]]))
    chain = replace(chain, reward=np.array([2.0, -7.0]))
    theta = np.array([0.6, 0.8])
    pairs = np.array([[5, 5], [5, 1]])  # the longer feature of each transition
    plain = (7 + (1 + theory.GAMMA) * pairs) ** 2 * np.array([[25.0], [1.0]])
    np.testing.assert_allclose(theory._variance_bounds(chain, theta, None), plain)
    squashed = (7 + (1 + theory.GAMMA) * 0.5 * pairs) ** 2
    squashed *= np.array([[np.tanh(1.5) ** 2 + np.tanh(2.0) ** 2], [np.tanh(0.5) ** 2]])
    np.testing.assert_allclose(theory._variance_bounds(chain, theta, 0.5), squashed)
    # The remark's, for all features: (7 + 1.9 √2)² · 2.
    assert theory._bound_for_all_features(chain, theta) == pytest.approx(187.676162)


def test_the_remark_is_held_for_each_transition(rng, monkeypatch):
    """One transition where tanh's bound is the larger one, though not the largest of all."""
    bounds = theory._variance_bounds

    def raised(chain, theta, c):
        plain, found = bounds(chain, theta, None), bounds(chain, theta, c)
        if c is not None:
            found.flat[plain.argmin()] = 1.01 * plain.min()
        return found

    monkeypatch.setattr(theory, "_variance_bounds", raised)
    found = theory.variance(rng, chains=2)
    assert found.numbers["holds"]
    assert not found.numbers["remark"]
    assert "two inequalities FAIL" in found.verdict


def test_the_remarks_bound_for_all_features_is_held(rng, monkeypatch):
    monkeypatch.setattr(theory, "_bound_for_all_features", lambda chain, theta: 0.0)
    assert not theory.variance(rng, chains=2).numbers["remark"]


def test_the_measured_variance_is_that_of_sampled_transitions(rng):
    chain = theory.random_chain(rng, states=5)
    theta = rng.normal(size=4)
    states = rng.choice(25, size=200_000, p=chain.pairs.ravel())
    now, then = chain.features[states // 5], chain.features[states % 5]
    gradients = (chain.reward[states // 5] + theory.GAMMA * then @ theta - now @ theta)[:, None] * now
    value, mean = theory._gradient_variance(chain, chain.features, theta)
    assert value == pytest.approx(np.linalg.norm(np.cov(gradients.T), 2), rel=0.05)
    assert mean == pytest.approx(gradients.mean(axis=0), abs=0.05 * np.sqrt(value))


def test_convergence(rng):
    found = theory.convergence(rng, runs=16, steps=4000).numbers
    assert found["left"] < 0.4
    early = theory.convergence(rng, runs=2, steps=5)
    assert not early.numbers["holds"]
    assert early.verdict.startswith("FAILS")
    assert found["to_limit"] < found["missed"]
    assert found["missed"] > 0.49  # the ball ends half way


def test_the_projected_bellman_equation_by_hand(two_states):
    """With a feature for each state θ is the value function; with the one feature (2, 1) A and b are numbers."""
    values = np.array([11.0, 9.0])  # 11 = 2 + 0.9 · 10 and 9 = 0 + 0.9 · 10
    assert np.linalg.solve(*theory._td_equation(two_states, np.eye(2))) == pytest.approx(values)
    assert theory._projected_limit(two_states, np.eye(2), 100.0) == pytest.approx(values)
    a, b = theory._td_equation(two_states, np.array([[2.0], [1.0]]))
    assert a == pytest.approx(np.array([[0.475]]))  # (2 (2 - 0.9 · 1.5) + 1 (1 - 0.9 · 1.5)) / 2
    assert b == pytest.approx(np.array([2.0]))  # 2 · 2 / 2
    assert theory._projected_limit(two_states, np.array([[2.0], [1.0]]), 100.0) == pytest.approx(np.array([2 / 0.475]))
    assert theory._projected_limit(two_states, np.array([[2.0], [1.0]]), 3.0) == pytest.approx(np.array([3.0]))


def test_projected_td_by_hand(rng):
    """One state that has feature 2 and reward 3: δ = 3 + (0.9 - 1) · 2θ, and θ moves by α δ · 2, no further than the ball."""
    chain = theory.Chain(np.ones((1, 1)), np.array([3.0]), np.array([[2.0]]))
    one = 0.5 / (1 + 1 / 200) ** 0.85 * 3 * 2
    two = one + 0.5 / (1 + 2 / 200) ** 0.85 * (3 - 0.2 * one) * 2
    steps, theta = theory.projected_td(rng, chain, chain.features, np.zeros((1, 1)), 100.0, 2)
    assert steps.tolist() == [1, 2]
    assert theta.ravel() == pytest.approx([one, two])
    assert theory.projected_td(rng, chain, chain.features, np.zeros((1, 1)), 4.0, 2)[1].ravel() == pytest.approx([one, 4])


@pytest.mark.parametrize(("rate", "decay"), [("td_rate", "TD_DECAY"), ("q_rate", "Q_DECAY")])
def test_the_steps_have_an_infinite_sum_and_squares_with_a_finite_one(rate, decay):
    """As theorems 3 and 5 ask, which is 1/2 < p <= 1 for steps that fall like t^-p."""
    rate, decay = getattr(theory, rate), getattr(theory, decay)
    assert 0.5 < decay <= 1
    assert np.log10(rate(1e12) / rate(1e13)) == pytest.approx(decay)
    assert 0 < rate(1) < 1


def test_the_steps_by_hand():
    assert theory.td_rate(200) == pytest.approx(0.5 / 2**0.85)
    assert theory.q_rate(3) == pytest.approx(1 / 4**0.65)


def test_regularised(rng):
    found = theory.regularised(rng, chains=20, steps=50).numbers
    assert found["holds"]
    assert found["ours"] < 1e-12
    assert found["theirs"] > 1e-3
    assert found["squared"]


def test_the_mean_squared_td_error_by_hand():
    """Features 3 and 1: γφ' - φ is -2.1 from the first state to the second, 1.7 and -0.1 from there, each with chance 1/3."""
    chain = theory.Chain(np.array([[0.0, 1.0], [0.5, 0.5]]), np.array([2.0, 0.0]), np.array([[3.0], [1.0]]))
    a, b = theory._squared_error(chain, chain.features)
    assert a == pytest.approx(np.array([[(2.1**2 + 1.7**2 + 0.1**2) / 3]]))
    assert b == pytest.approx(np.array([2 * -2.1 / 3]))


QUADRATIC = np.diag([3.0, 0.0]), np.array([8.0, -1.0]), 1.0  # H = diag(8, 2), so β = 8
MINIMISER = np.array([-2.0, 1.0])


@pytest.mark.parametrize(
    ("share", "gaps", "bounds"),
    [
        (1.0, [5, 9 / 16, 81 / 256, 729 / 4096], [5, 15 / 4, 45 / 16, 135 / 64]),
        (0.5, [5, 1.765625, 0.836182, 0.511295], [5, 4.375, 3.828125, 3.349609]),
    ],
)
def test_descent_by_hand(share, gaps, bounds):
    """L(θ) = 4θ₁² + θ₂² + 16θ₁ - 2θ₂ + c is c - 17 at its minimum, and its gap there is 4(θ₁ + 2)² + (θ₂ - 1)²."""
    minimiser, found, allowed, distances = theory.descent(*QUADRATIC, np.array([-1.0, 2.0]), 3, share)
    assert minimiser == pytest.approx(MINIMISER)
    assert found == pytest.approx(np.array(gaps), rel=1e-5)
    assert allowed == pytest.approx(np.array(bounds), rel=1e-6)
    away = (1 - share * np.array([1, 1 / 4])) ** np.arange(4)[:, None]  # 1 - αh in each direction
    assert distances == pytest.approx(np.linalg.norm(away, axis=1))


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_rate_is_sharp_for_the_distance_and_its_square_for_the_loss(share):
    """Where A has no curvature: 1 - 2αλ is 3/4 with α = 1/8, and 7/8 with half of it."""
    rate = 1 - share / 4
    _, gaps, bounds, distances = theory.descent(*QUADRATIC, np.array([-2.0, 2.0]), 5, share)
    assert distances == pytest.approx(rate ** np.arange(6))
    assert gaps == pytest.approx(rate ** (2 * np.arange(6)))
    assert bounds == pytest.approx(rate ** np.arange(6))


def test_descent_takes_several_problems_at_once():
    a, b, strength = QUADRATIC
    begin = np.array([[-1.0, 2.0], [3.0, 0.0]])
    several = theory.descent(np.array([a, a + np.eye(2)]), np.array([b, 2 * b]), strength, begin, 4, 0.5)
    first = theory.descent(a, b, strength, begin[0], 4, 0.5)
    second = theory.descent(a + np.eye(2), 2 * b, strength, begin[1], 4, 0.5)
    for axis, together, *apart in zip((0, 1, 1, 1), several, first, second, strict=True):
        assert together == pytest.approx(np.stack(apart, axis))


@pytest.mark.parametrize(
    ("of_gap", "of_distance", "holds", "squared"),
    [(2, 1, True, True), (1, 1, True, False), (2, 0.9, True, False), (0.9, 1, False, False)],
)
def test_a_rate_that_is_not_met_is_said_to_fail(of_gap, of_distance, holds, squared, rng, monkeypatch):
    """Gaps and distances that fall by powers of the theorem's factor: 1 is its bound, and a gap's square is met with 2."""
    descent = theory.descent

    def changed(*arguments):
        minimiser, gaps, bounds, distances = descent(*arguments)
        rate = bounds / gaps[0]
        return minimiser, gaps[0] * rate**of_gap, bounds, distances[0] * rate**of_distance

    monkeypatch.setattr(theory, "descent", changed)
    found = theory.regularised(rng, chains=5, steps=20)
    assert (found.numbers["holds"], found.numbers["squared"]) == (holds, squared)
    assert ("FAILS" in found.verdict) is not holds


def test_convex_q(rng):
    found = theory.convex_q(rng, seeds=3, steps=8000).numbers
    assert found["holds"]
    assert max(found["worst"], found["zero"]) < 0.15 < found["first"]
    early = theory.convex_q(rng, seeds=1, steps=3)
    assert not early.numbers["holds"]
    assert early.verdict.startswith("FAILS")


def test_the_convex_target_by_hand():
    """
    Tables 3 and 1 at the action that is greedy in the first: 0.3 · 1 + 0.7 · 3 = 2.4, with λ = 1 the minimum and with 0 the
    maximum. By the second table the action would be the other one.
    """
    following = np.array([[[3.0, 2.0]] * 3, [[1.0, 7.0]] * 3])
    values = np.array([2.4, 1.0, 3.0])
    target = theory.convex_target(np.array([0.0, 5.0, 0.0]), following, np.array([0.3, 1.0, 0.0]))
    assert target == pytest.approx(np.array([0, 5, 0]) + 0.9 * values)
    swapped = theory.convex_target(np.zeros(1), np.array([[[1.0, 0.0]], [[3.0, 9.0]]]), np.array([0.3]))
    assert swapped == pytest.approx(np.array([0.9 * 2.4]))


def test_what_is_between_the_tables_shrinks_by_one_minus_each_step():
    """The proof's Δ^BA after n visits: Π(1 - α_i) with α_i = (1 + i)^-0.65, whatever the targets. Elsewhere nothing moves."""
    tables = np.zeros((2, 1, 2, 2))
    tables[1] = 1
    visits, place, gaps = np.zeros((1, 2, 2)), (np.array([0]), np.array([1]), np.array([0])), []
    for target in (2.0, -5.0, 0.3):
        before = tables[0, 0, 1, 0]
        theory.convex_update(tables, visits, place, np.array([target]))
        assert tables[0, 0, 1, 0] == pytest.approx(before + (1 + visits[0, 1, 0]) ** -0.65 * (target - before))
        gaps.append((tables[1] - tables[0])[0, 1, 0])
    assert gaps == pytest.approx([0.362720, 0.185120, 0.109938], abs=1e-6)
    assert visits.tolist() == [[[0, 0], [3, 0]]]
    assert tables[0].tolist() == [[[0, 0], [tables[0, 0, 1, 0], 0]]]


def test_one_figure_and_one_line_each(tmp_path, capsys, monkeypatch):
    checks = [theory.opening, theory.regularised]
    monkeypatch.setattr(theory, "CHECKS", checks)
    from benchmarks.__main__ import main

    assert main(["theory", "--out", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(checks)
    assert {path.name for path in tmp_path.glob("*.png")} == {"opening.png", "theorem4.png"}
    assert (tmp_path / "index.html").read_text().count("<img") == len(checks)
