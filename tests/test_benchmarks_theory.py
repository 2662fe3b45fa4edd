"""The theory checks: what each verdict rests on, and the page."""

from dataclasses import replace

import numpy as np
import pytest

theory = pytest.importorskip("benchmarks.theory", reason="needs matplotlib and rliable, of the benchmarks extra")


@pytest.fixture
def rng():
    return np.random.default_rng(1)


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


def test_linear_independence(rng):
    found = theory.linear_independence(rng, matrices=20).numbers
    assert found["kept"] == 1
    assert found["singular"] < 1e-12 < abs(found["independent"])


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


def test_regularised(rng):
    found = theory.regularised(rng, chains=20, steps=50).numbers
    assert found["holds"]
    assert found["ours"] < 1e-12
    assert found["theirs"] > 1e-3


def test_convex_q(rng):
    found = theory.convex_q(rng, seeds=3, steps=8000).numbers
    assert found["holds"]
    assert max(found["worst"], found["zero"]) < 0.15 < found["first"]
    early = theory.convex_q(rng, seeds=1, steps=3)
    assert not early.numbers["holds"]
    assert early.verdict.startswith("FAILS")


def test_one_figure_and_one_line_each(tmp_path, capsys, monkeypatch):
    checks = [theory.opening, theory.regularised]
    monkeypatch.setattr(theory, "CHECKS", checks)
    from benchmarks.__main__ import main

    assert main(["theory", "--out", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(checks)
    assert {path.name for path in tmp_path.glob("*.png")} == {"opening.png", "theorem4.png"}
    assert (tmp_path / "index.html").read_text().count("<img") == len(checks)
