"""
``python -m benchmarks theory``: the paper's five theorems and its opening figure on random finite Markov chains.

Each check computes what the theorem speaks of, draws it and says in a line whether it was found so. Where a claim holds under
a narrower reading only, the line has the counter-example. Theorems are those of section 4 and appendix A.
"""

import argparse
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import figures
from benchmarks.arguments import folder, not_negative
from benchmarks.page import Page, how_it_was_made

GAMMA = 0.9


@dataclass
class Finding:
    """
    :param name: Of the figure's file
    :param title: What was checked
    :param verdict: One line
    :param figure: What was seen
    :param numbers: What the verdict rests on
    """

    name: str
    title: str
    verdict: str
    figure: Figure
    numbers: dict[str, float]


@dataclass
class Chain:
    """
    A Markov reward process with features.

    :param transition: ``(states, states)``, rows sum to 1
    :param reward: ``(states,)``, in [-1, 1]
    :param features: ``(states, d)``, with mean 0 under the stationary distribution
    """

    transition: np.ndarray
    reward: np.ndarray
    features: np.ndarray

    @property
    def stationary(self) -> np.ndarray:
        """ν, ``(states,)``."""
        states = len(self.reward)
        equations = np.vstack([self.transition.T - np.eye(states), np.ones(states)])
        return np.linalg.lstsq(equations, np.eye(states + 1)[-1], rcond=None)[0]

    @property
    def pairs(self) -> np.ndarray:
        """Probability of each transition, ``(states, states)``."""
        return self.stationary[:, None] * self.transition


def random_chain(rng: np.random.Generator, states: int = 10, d: int = 4, concentration: float = 0.5) -> Chain:
    """
    :param rng: Source of randomness
    :param states: Number of states
    :param d: Number of features
    :param concentration: Of the Dirichlet distribution that rows of the transition matrix come from
    :return: A chain; every transition has positive probability, so it is ergodic
    """
    transition = 0.99 * rng.dirichlet(np.full(states, concentration), size=states) + 0.01 / states
    chain = Chain(transition, rng.uniform(-1, 1, states), rng.normal(size=(states, d)))
    chain.features -= chain.stationary @ chain.features
    return chain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the command's options.

    :param parser: Gets them
    """
    parser.add_argument("--out", type=folder, required=True, help="folder of the figures and the page")
    parser.add_argument("--seed", type=not_negative, default=0, help="of the random chains (default: %(default)s)")


def main(options: argparse.Namespace) -> int:
    """
    :param options: See :func:`add_arguments`
    :return: 0
    """
    page = Page(options.out, "CIR's theory on random finite Markov chains", how_it_was_made())
    with figures.styled():
        for check in CHECKS:
            found = check(np.random.default_rng(options.seed))
            print(f"{found.title}: {found.verdict}")
            page.figure(found.name, found.title, found.figure, found.verdict)
    page.write()
    return 0


def _panels(*titles: str) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    axes = list(figure.subplots(1, len(titles), squeeze=False)[0])
    for each, title in zip(axes, titles, strict=True):
        each.set_title(title, fontsize=9)
    return figure, axes


def _band(axes: Axes, x: np.ndarray, samples: np.ndarray, label: str, colour: str) -> None:
    """Median over the last axis and the range in which 90 % of it lie."""
    low, middle, high = np.quantile(samples, [0.05, 0.5, 0.95], axis=-1)
    axes.plot(x, middle, color=colour, label=label)
    axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)


RELU, TANH, THIRD, FOURTH = figures.PALETTE[1], figures.PALETTE[0], figures.PALETTE[2], figures.PALETTE[4]


SQUASHES = {"ReLU": lambda x: np.maximum(x, 0), "tanh": np.tanh}


def _hidden_change(name: str, first: np.ndarray, near: np.ndarray, far: np.ndarray) -> np.ndarray:
    """``σ(W1 far) - σ(W1 near)``, ``(..., h)``; arguments are :func:`output_deviation`'s."""
    squash = SQUASHES[name]
    return squash(far @ first) - squash(near @ first)


def output_deviation(name: str, first: np.ndarray, second: np.ndarray, near: np.ndarray, far: np.ndarray) -> np.ndarray:
    """
    :param name: Of σ in ``y = W2 σ(W1 x)``
    :param first: W1's transpose, ``(d, h)``
    :param second: W2, ``(h,)``
    :param near: One input, ``(d,)``
    :param far: Others, ``(..., d)``
    :return: ``|y(far) - y(near)|``, ``(...)``
    """
    return np.abs(_hidden_change(name, first, near, far) @ second)


def nearer_bound(name: str, first: np.ndarray, second: np.ndarray, near: np.ndarray, far: np.ndarray) -> np.ndarray:
    """
    The bound that section 1 goes through: ``‖W2‖ ‖σ(W1 far) - σ(W1 near)‖``.

    :param name: See :func:`output_deviation`, as for the others
    :param first: ``(d, h)``
    :param second: ``(h,)``
    :param near: ``(d,)``
    :param far: ``(..., d)``
    :return: ``(...)``
    """
    return np.linalg.norm(second) * np.linalg.norm(_hidden_change(name, first, near, far), axis=-1)


def deviation_bound(name: str, first: np.ndarray, second: np.ndarray, near: np.ndarray, far: np.ndarray) -> np.ndarray:
    """
    The bound that section 1 ends with: ``‖W2‖ ‖W1‖_F ‖far - near‖`` for ReLU. For tanh it is ``2√h ‖W2‖``, wherever far lies,
    since each of the h units moves by 2 at most.

    :param name: See :func:`output_deviation`, as for the others
    :param first: ``(d, h)``
    :param second: ``(h,)``
    :param near: ``(d,)``
    :param far: ``(..., d)``
    :return: ``(...)``
    """
    moved = np.linalg.norm(far - near, axis=-1)
    hidden = np.linalg.norm(first) * moved if name == "ReLU" else np.full_like(moved, 2 * np.sqrt(len(second)))
    return np.linalg.norm(second) * hidden


def opening(rng: np.random.Generator, d: int = 8, hidden: int = 64, networks: int = 50) -> Finding:
    """
    Section 1: ``y = W2 σ(W1 x)``, with W2 fitted on inputs in [-1, 1]^d, followed as the input leaves that range.

    :param rng: Source of randomness
    :param d: Inputs
    :param hidden: Hidden units
    :param networks: How many, each with a function of its own to fit
    :return: The finding
    """
    scales = np.geomspace(1, 100, 40)
    deviation, nearer, bound = ({name: np.empty((len(scales), networks)) for name in SQUASHES} for _ in range(3))
    for number in range(networks):
        first = rng.normal(size=(d, hidden)) / np.sqrt(d)
        inputs = rng.uniform(-1, 1, (1024, d))
        targets = np.sin(inputs @ rng.normal(size=d))
        edge = rng.uniform(-1, 1, d)
        edge /= np.abs(edge).max()
        far = scales[:, None] * edge
        for name, squash in SQUASHES.items():
            second = np.linalg.lstsq(squash(inputs @ first), targets, rcond=1e-3)[0]
            deviation[name][:, number] = output_deviation(name, first, second, edge, far)
            nearer[name][:, number] = nearer_bound(name, first, second, edge, far)
            bound[name][:, number] = deviation_bound(name, first, second, edge, far)
    figure, axes = _panels("output deviation from the edge of the training range", "the same over the paper's bound")
    for name, colour in zip(SQUASHES, (RELU, TANH), strict=True):
        _band(axes[0], scales[1:], deviation[name][1:], name, colour)
        _band(axes[1], scales[1:], deviation[name][1:] / bound[name][1:], name, colour)
    for each in axes:
        each.set(xscale="log", yscale="log", xlabel="input, in multiples of the training range's edge")
        each.legend()
    medians = {name: np.median(deviation[name], axis=1) for name in SQUASHES}
    far = {name: float(median[-1]) for name, median in medians.items()}
    better = float(scales[np.argmax(medians["tanh"][1:] < medians["ReLU"][1:]) + 1])
    pairs = [pair for name in SQUASHES for pair in ((deviation[name], nearer[name]), (nearer[name], bound[name]))]
    holds = all((less <= more + 1e-9).all() for less, more in pairs)
    verdict = (
        f"{'both bounds hold' if holds else 'a bound FAILS'}: 100 times outside the range the median deviation is "
        f"{far['ReLU']:.1f} with ReLU, growing without end, and {far['tanh']:.1f} with tanh, which its bound 2√h‖W2‖ ends. "
        f"Nearer to the range tanh deviates no less: it is the smaller one from {better:.1f} times the range on."
    )
    return Finding(
        "opening", "Opening figure: a first layer out of its range", verdict, figure, far | {"holds": holds, "better": better}
    )


def safe_scale(features: np.ndarray) -> np.ndarray:
    """
    The c below which the proof of theorem 1 gives tanh(cΦ) full rank: ``c² = 3 σ_min(Φ) / ‖Φ∘³‖_F``.

    :param features: Φ, ``(..., size, size)``
    :return: ``(...)``
    """
    # |x - tanh x| <= |x|^3 / 3, so σ_min(tanh(cΦ)) / c >= σ_min(Φ) - c² ‖Φ∘³‖_F / 3.
    smallest = np.linalg.svd(features, compute_uv=False)[..., -1]
    return np.sqrt(3 * smallest / np.linalg.norm(features**3, axis=(-2, -1)))


def linear_independence(rng: np.random.Generator, size: int = 12, matrices: int = 200) -> Finding:
    """
    Theorem 1: for small c, tanh(cΦ) has the rank of Φ.

    :param rng: Source of randomness
    :param size: Basis functions, and entries of each
    :param matrices: How many Φ
    :return: The finding
    """
    c = np.geomspace(1e-3, 1e2, 40)
    signed = rng.normal(size=(matrices, size, size))
    kinds = {"features of both signs": signed, "positive features": np.abs(signed) + 0.1}
    ranks = {
        name: np.stack([np.linalg.matrix_rank(np.tanh(each * features)) for each in c]) for name, features in kinds.items()
    }
    safe = safe_scale(signed)
    kept = np.linalg.matrix_rank(np.tanh(0.999 * safe[:, None, None] * signed)) == size
    # tanh(1) tanh(1) = tanh(0.8) tanh(x): at c = 1 the rows become dependent, which before they were not.
    x = np.arctanh(np.tanh(1.0) ** 2 / np.tanh(0.8))
    example = np.array([[1.0, 0.8], [x, 1.0]])
    determinants = np.linalg.det(np.tanh(c[:, None, None] * example)) / c**2

    figure, axes = _panels(f"mean rank of {size} × {size} features under tanh(c ·)", "counter-example: det tanh(cΦ) / c²")
    for (name, rank), colour in zip(ranks.items(), (RELU, TANH), strict=True):
        axes[0].plot(c, rank.mean(axis=1), label=name, color=colour)
    axes[0].axvspan(safe.min(), safe.max(), color=THIRD, alpha=0.2, lw=0, label="where the proof's c ends")
    axes[0].axvline(0.1, color="black", lw=1, ls=":", label="the paper's c")
    axes[1].axhline(0, color="black", lw=1)
    axes[1].plot(c, determinants, color=TANH, label=f"Φ = [[1, 0.8], [{x:.3f}, 1]]")
    axes[1].plot(1, 0, "o", color=TANH)
    for each in axes:
        each.set(xscale="log", xlabel="c")
        each.legend(loc="best")
    singular = float(abs(np.linalg.det(np.tanh(example))))
    lost = c[np.argmax(ranks["positive features"].mean(axis=1) < size)]
    verdict = (
        f"{'holds' if kept.all() else 'FAILS'} for each Φ below its own c (kept for {kept.sum()} of {matrices} with c² < "
        f"3σ_min(Φ)/‖Φ∘³‖, at worst c = {safe.min():.2g}), not for one c fixed before: W = I turns the independent "
        f"[[1, 0.8], [{x:.3f}, 1]] (det {np.linalg.det(example):.3f}) into dependent rows (det {singular:.0e}); positive "
        f"features lose rank from c = {lost:.2g} on."
    )
    numbers = {"kept": float(kept.mean()), "singular": singular, "independent": float(np.linalg.det(example))}
    return Finding("theorem1", "Theorem 1, linear independence", verdict, figure, numbers)


def _gradient_variance(chain: Chain, features: np.ndarray, theta: np.ndarray) -> tuple[float, np.ndarray]:
    """Spectral norm of the semi-gradient's covariance over transitions, and its mean ``(d,)``."""
    errors = chain.reward[:, None] + GAMMA * (features @ theta)[None, :] - (features @ theta)[:, None]
    mean = np.einsum("st,st,sd->d", chain.pairs, errors, features)
    second = np.einsum("st,st,sd,se->de", chain.pairs, errors**2, features, features)
    return float(np.linalg.norm(second - np.outer(mean, mean), 2)), mean


def _variance_bounds(chain: Chain, theta: np.ndarray, c: float | None) -> np.ndarray:
    """The theorem's bound for each transition ``(states, states)``; with c None the one without tanh."""
    norms = np.linalg.norm(chain.features, axis=1)
    largest = np.maximum(norms[:, None], norms[None, :])
    squashed = norms if c is None else np.linalg.norm(np.tanh(c * chain.features), axis=1)
    factor = np.abs(chain.reward).max() + (1 + GAMMA) * np.linalg.norm(theta) * (1 if c is None else c) * largest
    return factor**2 * squashed[:, None] ** 2


def _bound_for_all_features(chain: Chain, theta: np.ndarray) -> float:
    """The remark's bound with tanh, ``(max |r| + (1 + γ) ‖θ‖ √d)² d``, which no feature enters."""
    d = len(theta)
    return float((np.abs(chain.reward).max() + (1 + GAMMA) * np.linalg.norm(theta) * np.sqrt(d)) ** 2 * d)


def variance(rng: np.random.Generator, chains: int = 200) -> Finding:
    """
    Theorem 2: the semi-gradient's variance is below its bound, with tanh and without, and smaller with it. Its remark: with
    W = cI, c up to 1, the bound with tanh is the smaller one for each transition, and the variance is below one bound for
    all features.

    :param rng: Source of randomness
    :param chains: How many
    :return: The finding
    """
    c = np.array([0.1, 0.3, 1.0])
    plain, ratios = np.empty((chains, 2)), np.empty((len(c), chains))
    squashed = np.empty((len(c), chains, 2))
    for_all_features = np.empty(chains)
    tighter = True
    too_low = means = 0.0
    for number in range(chains):
        chain = random_chain(rng)
        theta = rng.normal(size=chain.features.shape[1]) * rng.choice([0.1, 1, 10])
        value, mean = _gradient_variance(chain, chain.features, theta)
        bounds = _variance_bounds(chain, theta, None)
        plain[number] = value, bounds.max()
        for_all_features[number] = _bound_for_all_features(chain, theta)
        too_low += chain.pairs[bounds < value].sum() / chains
        means = max(means, np.linalg.norm(mean) ** 2 / value)
        for row, each in enumerate(c):
            value_tanh, _ = _gradient_variance(chain, np.tanh(each * chain.features), theta)
            bounds_tanh = _variance_bounds(chain, theta, each)
            squashed[row, number] = value_tanh, bounds_tanh.max()
            tighter &= bool((bounds_tanh <= bounds).all())
            ratios[row, number] = value_tanh / value
    holds = (plain[:, 0] <= plain[:, 1]).all() and (squashed[..., 0] <= squashed[..., 1]).all()
    remark = tighter and bool((squashed[..., 0] <= for_all_features).all())
    worse = _exact_values_example(rng)

    figure, axes = _panels("variance against its bound (largest over transitions)", "variance with tanh over variance without")
    axes[0].loglog(plain[:, 1], plain[:, 0], ".", color=RELU, label="no tanh")
    for row, colour in enumerate((FOURTH, THIRD, TANH)):
        axes[0].loglog(squashed[row, :, 1], squashed[row, :, 0], ".", ms=4, color=colour, label=f"tanh, c = {c[row]}")
        axes[1].plot(np.sort(ratios[row]), np.linspace(0, 1, chains), color=colour, label=f"c = {c[row]}")
    ends = [min(plain[:, 0].min(), squashed[..., 0].min()), plain[:, 1].max()]
    axes[0].plot(ends, ends, color="black", lw=1)
    axes[0].set(xlabel="bound", ylabel="measured ‖Var‖")
    axes[1].axvline(1, color="black", lw=1)
    axes[1].axvline(worse, color=TANH, lw=1, ls=":", label="counter-example, c = 1")
    axes[1].set(xscale="log", xlabel="ratio", ylabel="share of random chains with less", xlim=(1e-7, None))
    for each in axes:
        each.legend()
    smaller = float((ratios[-1] < 1).mean())
    verdict = (
        f"{'both bounds hold' if holds else 'a bound FAILS'} when their right side is the largest over transitions, and the "
        f"remark's two inequalities {'hold' if remark else 'FAIL'}. Not as "
        f"stated for any given s: {too_low:.0%} of transitions have a bound below the variance (a state with φ(s) = 0 has "
        f"bound 0), and the proof's E[∇L] = 0 is not so (‖E∇L‖² is up to {means:.1f} × the variance). A tighter bound is not "
        f"a smaller variance: with c = 1 it shrank on {smaller:.0%} of chains, and where θ is exact without tanh it grew "
        f"{worse:.0f} ×."
    )
    numbers = {
        "holds": bool(holds),
        "remark": remark,
        "too_low": float(too_low),
        "mean": float(means),
        "smaller": smaller,
        "worse": worse,
    }
    return Finding("theorem2", "Theorem 2, variance reduction", verdict, figure, numbers)


def _exact_values_example(rng: np.random.Generator, states: int = 6) -> float:
    """A nearly deterministic cycle whose values are linear in the features: TD errors vanish there, but not after tanh."""
    transition = 0.99 * np.roll(np.eye(states), 1, axis=1) + 0.01 / states
    chain = Chain(transition, rng.uniform(-1, 1, states), rng.normal(size=(states, states)))
    chain.features -= chain.stationary @ chain.features
    centred = np.linalg.solve(np.eye(states) - GAMMA * transition, chain.reward - chain.stationary @ chain.reward)
    theta = np.linalg.lstsq(chain.features, centred - chain.stationary @ centred, rcond=None)[0]
    chain.reward = chain.reward - chain.stationary @ chain.reward
    before, _ = _gradient_variance(chain, chain.features, theta)
    after, _ = _gradient_variance(chain, np.tanh(chain.features), theta)
    return after / before


def _td_equation(chain: Chain, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``A θ = b``, the projected Bellman equation: A ``(d, d)``, b ``(d,)``."""
    weighted = features.T * chain.stationary
    return weighted @ (features - GAMMA * chain.transition @ features), weighted @ chain.reward


def _project(theta: np.ndarray, radius: float) -> np.ndarray:
    return theta * np.minimum(1, radius / np.maximum(np.linalg.norm(theta, axis=-1, keepdims=True), 1e-12))


# Steps like t^-p have an infinite sum for p <= 1, and squares with a finite one for p > 1/2. Theorems 3 and 5 ask for both.
TD_DECAY, Q_DECAY = 0.85, 0.65


def td_rate(step: float) -> float:
    """
    :param step: Of TD(0), from 1 on
    :return: α_t = 0.5 / (1 + t / 200)^0.85
    """
    return 0.5 / (1 + step / 200) ** TD_DECAY


def projected_td(
    rng: np.random.Generator, chain: Chain, features: np.ndarray, theta: np.ndarray, radius: float, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """
    Projected TD(0) along one trajectory for each row of ``theta``, with the steps of :func:`td_rate`.

    :param rng: Source of randomness
    :param chain: The chain
    :param features: Of its states, ``(states, d)``
    :param theta: Where to begin, ``(runs, d)``
    :param radius: C_θ
    :param steps: How many
    :return: Steps at which θ was kept ``(kept,)``, and it there ``(kept, runs, d)``
    """
    keep = np.unique(np.geomspace(1, steps, 60).astype(int))
    cumulative = chain.transition.cumsum(axis=1)
    states = rng.integers(len(features), size=len(theta))
    kept = []
    for step in range(1, steps + 1):
        following = (rng.random(len(theta))[:, None] > cumulative[states]).sum(axis=1).clip(max=len(features) - 1)
        now, then = features[states], features[following]
        error = chain.reward[states] + ((GAMMA * then - now) * theta).sum(axis=1)
        theta = _project(theta + td_rate(step) * error[:, None] * now, radius)
        states = following
        if step in keep:
            kept.append(theta)
    return keep, np.array(kept)


def convergence(rng: np.random.Generator, runs: int = 48, steps: int = 30_000) -> Finding:
    """
    Theorem 3: projected TD(0) on tanh features ends in the solution of the projected Bellman equation.

    :param rng: Source of randomness
    :param runs: Trajectories
    :param steps: Of each
    :return: The finding
    """
    chain = random_chain(rng)
    features = np.tanh(chain.features)
    solution = np.linalg.solve(*_td_equation(chain, features))
    size = np.linalg.norm(solution)
    begin = rng.normal(size=(runs, len(solution)))

    def distance(radius: float, target: np.ndarray) -> np.ndarray:
        kept = projected_td(rng, chain, features, begin, radius, steps)[1]
        return np.linalg.norm(kept - target, axis=-1) / size

    wide = distance(2 * size, solution)
    limit = _projected_limit(chain, features, size / 2)
    narrow = projected_td(rng, chain, features, begin, size / 2, steps)
    # Saturated positive features are all 1: one direction is learned, the others stay where they began.
    ones = np.tanh(1000 * (np.abs(chain.features) + 0.1))
    apart = projected_td(rng, chain, ones, begin, 2 * size, steps)[1][-1]

    figure, axes = _panels("C_θ = 2‖θ*‖", "C_θ = ‖θ*‖ / 2")
    _band(axes[0], narrow[0], wide, "to the solved fixed point θ*", TANH)
    to_solution, to_limit = (np.linalg.norm(narrow[1] - target, axis=-1) / size for target in (solution, limit))
    _band(axes[1], narrow[0], to_solution, "to θ*", TANH)
    _band(axes[1], narrow[0], to_limit, "to the fixed point of the projected update", THIRD)
    for each in axes:
        each.set(xscale="log", yscale="log", xlabel="step of TD(0)", ylabel="distance / ‖θ*‖")
        each.legend(loc="lower left")
    holds = _falls(np.median(wide, axis=1))
    left, missed = float(np.median(wide[-1])), float(np.median(to_solution[-1]))
    spread = float(np.linalg.norm(apart - apart.mean(axis=0), axis=1).mean())
    verdict = (
        f"{'holds' if holds else 'FAILS'} where the ball contains θ*, the solution of the projected Bellman equation (median "
        f"distance {left:.1%} of ‖θ*‖ after {steps:,} steps{' and falling' if holds else ''}). The statement does not ask for "
        f"that: with C_θ = ‖θ*‖/2 it converges to a point on the ball's edge, {missed:.0%} of ‖θ*‖ away, that does not solve "
        "it (against the appendix); nor for independent features: where tanh took their rank the limit depends on the start "
        f"(spread {spread:.2f})."
    )
    numbers = {"holds": holds, "left": left, "missed": missed, "to_limit": float(np.median(to_limit[-1])), "spread": spread}
    return Finding("theorem3", "Theorem 3, convergence under TD(0)", verdict, figure, numbers)


def _falls(errors: np.ndarray) -> bool:
    """
    :param errors: Over steps that lie apart by equal factors, as shares of what is to be found
    :return: Whether they are small at the end, and have been falling until then
    """
    return bool(errors[-1] < 0.25 and errors[-1] < errors[-max(len(errors) // 8, 2)])


def _projected_limit(chain: Chain, features: np.ndarray, radius: float) -> np.ndarray:
    """Where the expected projected update stands still."""
    a, b = _td_equation(chain, features)
    theta = np.zeros(len(b))
    for _ in range(20_000):
        theta = _project(theta + 0.1 * (b - a @ theta), radius)
    return theta


def _squared_error(chain: Chain, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A ``(d, d)`` and b ``(d,)`` of theorem 4: ``E[(r + (γφ' - φ)ᵀθ)²] = θᵀAθ + 2θᵀb + E[r²]``."""
    difference = GAMMA * features[None, :, :] - features[:, None, :]
    a = np.einsum("st,std,ste->de", chain.pairs, difference, difference)
    return a, np.einsum("st,s,std->d", chain.pairs, chain.reward, difference)


def descent(
    a: np.ndarray, b: np.ndarray, strength: float, begin: np.ndarray, steps: int, share: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """
    Gradient descent on theorem 4's loss, ``L(θ) = θᵀ(A + λI)θ + 2θᵀb + c``, with α = share / β.

    :param a: A of each problem, ``(..., d, d)``
    :param b: b of each, ``(..., d)``
    :param strength: λ
    :param begin: θ_0, ``(..., d)``
    :param steps: How many
    :param share: αβ; the theorem's are those up to 1
    :return: The minimiser θ* ``(..., d)``. Before each step and after the last, each ``(steps + 1, ...)``: L(θ) - L(θ*), its
        bound ``(1 - 2αλ)^t (L(θ_0) - L(θ*))``, and ``‖θ - θ*‖``
    """
    hessian = 2 * (a + strength * np.eye(b.shape[-1]))
    minimiser = -np.linalg.solve(hessian / 2, b[..., None])[..., 0]
    alpha = share / np.linalg.eigvalsh(hessian)[..., -1]
    path = [begin]
    for _ in range(steps):
        gradient = (hessian @ path[-1][..., None])[..., 0] + 2 * b
        path.append(path[-1] - alpha[..., None] * gradient)
    away = np.array(path) - minimiser
    # L is quadratic: this is L(θ) - L(θ*), and small ones are not lost in the difference of two losses.
    gaps = 0.5 * np.einsum("...d,...de,...e->...", away, hessian, away)
    bounds = gaps[0] * np.array([(1 - 2 * alpha * strength) ** step for step in range(steps + 1)])
    return minimiser, gaps, bounds, np.linalg.norm(away, axis=-1)


def regularised(rng: np.random.Generator, chains: int = 200, steps: int = 400) -> Finding:
    """
    Theorem 4: gradient descent on the regularised loss converges at rate 1 - 2αλ_θ to the closed-form minimiser,
    with α = 1/β and with half of it.

    :param rng: Source of randomness
    :param chains: How many
    :param steps: Of gradient descent
    :return: The finding
    """
    strengths = (0.01, 0.1, 1.0)
    problems, begin, solutions = [], [], []
    for _ in range(chains):
        chain = random_chain(rng)
        features = np.tanh(chain.features)
        problems.append(_squared_error(chain, features))
        begin.append(rng.normal(size=features.shape[1]) * 3)
        solutions.append(np.linalg.solve(*_td_equation(chain, features)))
    a, b = (np.array(each) for each in zip(*problems, strict=True))
    ran = {(each, share): descent(a, b, each, np.array(begin), steps, share) for each in strengths for share in (1.0, 0.5)}
    minimiser = ran[0.1, 1.0][0]
    gradients = [np.linalg.norm(2 * (np.einsum("nde,ne->nd", a, at) + 0.1 * at + b), axis=1) for at in (minimiser, -minimiser)]
    away = np.linalg.norm(minimiser - solutions, axis=1) / np.linalg.norm(solutions, axis=1)

    def below(values: np.ndarray, bounds: np.ndarray) -> bool:
        # Beyond double precision a gap is rounding.
        return bool((values <= bounds * (1 + 1e-9) + 1e-12).all())

    holds = all(below(gaps, bounds) for _, gaps, bounds, _ in ran.values())
    # On a quadratic the rate is the distance's, and the gap falls by its square.
    rates = [(gaps, bounds / gaps[0], distances) for _, gaps, bounds, distances in ran.values()]
    squared = all(below(far, far[0] * rate) and below(gaps, gaps[0] * rate**2) for gaps, rate, far in rates)

    figure, axes = _panels("loss gap under gradient descent, α = 1/β", "‖∇L‖ at two closed forms")
    for row, colour in enumerate((FOURTH, THIRD, TANH)):
        _, gaps, bounds, _ = ran[strengths[row], 1.0]
        _band(axes[0], np.arange(steps + 1), gaps.clip(1e-16), f"λ_θ = {strengths[row]}", colour)
        axes[0].plot(np.arange(steps + 1), np.median(bounds, axis=1).clip(1e-16), color=colour, ls=":")
    axes[0].plot([], [], color="black", ls=":", label="the theorem's rate")
    axes[0].set(yscale="log", xlabel="step", ylabel="L(θ) - L(θ*)", ylim=(1e-13, None))
    bins = np.geomspace(1e-17, 10, 50)
    axes[1].hist(gradients[0].clip(1e-17), bins, color=THIRD, label="-(A + λI)⁻¹ b")
    axes[1].hist(gradients[1], bins, color=TANH, label="(A + λI)⁻¹ b, the paper's")
    axes[1].set(xscale="log", xlabel="gradient norm there (λ_θ = 0.1)", ylabel="chains")
    for each in axes:
        each.legend()
    verdict = (
        f"the linear rate 1 - 2αλ_θ {'holds' if holds else 'FAILS'} on all {chains} chains, with α = 1/β and with half of it, "
        f"and the minimum is unique, but the paper's closed form has the wrong sign: with its b = E[r(γφ' - φ)] the minimiser "
        f"is -(A + λI)⁻¹b, and at (A + λI)⁻¹b the gradient is {np.median(gradients[1]):.2f} (at ours "
        f"{gradients[0].max():.0e}). It is the minimum of this loss only: TD's fixed point is {np.median(away):.0%} of its "
        "own length away (λ_θ = 0.1)."
    )
    numbers = {"holds": holds, "squared": squared, "ours": float(gradients[0].max()), "theirs": float(gradients[1].min())}
    return Finding("theorem4", "Theorem 4, global convergence under regularisation", verdict, figure, numbers)


def q_rate(visits: np.ndarray) -> np.ndarray:
    """
    :param visits: To a state and action, this one counted
    :return: α = 1 / (1 + visits)^0.65
    """
    return (1 + visits) ** -Q_DECAY


def convex_target(reward: np.ndarray, following: np.ndarray, coef: np.ndarray) -> np.ndarray:
    """
    ``r + γ (λ min(Q^A, Q^B) + (1 - λ) max(Q^A, Q^B))`` at the action that is greedy in Q^A (appendix, for two tables).

    :param reward: ``(runs,)``
    :param following: Q^A and Q^B in the next state, ``(2, runs, actions)``
    :param coef: λ, ``(runs,)``
    :return: ``(runs,)``
    """
    greedy = following[0].argmax(axis=-1)
    both = np.take_along_axis(following, greedy[None, :, None], axis=-1)[..., 0]
    return reward + GAMMA * (coef * both.min(axis=0) + (1 - coef) * both.max(axis=0))


def convex_update(tables: np.ndarray, visits: np.ndarray, place: tuple[np.ndarray, ...], target: np.ndarray) -> None:
    """
    One visit to a state and action of each run: both tables take a step to the same target, so that what is between them
    shrinks by 1 - α. Tables and visits are changed in place.

    :param tables: Q^A and Q^B, ``(2, runs, states, actions)``
    :param visits: ``(runs, states, actions)``
    :param place: Run, state and action, each ``(runs,)``
    :param target: ``(runs,)``
    """
    visits[place] += 1
    both = (slice(None), *place)
    tables[both] += q_rate(visits[place]) * (target - tables[both])


def convex_q(rng: np.random.Generator, states: int = 5, actions: int = 3, seeds: int = 10, steps: int = 30_000) -> Finding:
    """
    Theorem 5: tabular convex Q-learning ends in Q*, for any λ in (0, 1].

    :param rng: Source of randomness
    :param states: Number of states
    :param actions: Number of actions
    :param seeds: Runs for each λ, on one MDP, each from tables of its own
    :param steps: Updates, each of one state and action drawn uniformly; :func:`q_rate` is less than 1, so that the two
        tables come together step by step, as in the proof
    :return: The finding
    """
    coefs = np.linspace(0, 1, 11)
    transition = rng.dirichlet(np.ones(states), size=(states, actions))
    reward = rng.uniform(-1, 1, (states, actions))
    optimal = np.zeros((states, actions))
    for _ in range(1000):
        optimal = reward + GAMMA * transition @ optimal.max(axis=1)

    runs = len(coefs) * seeds
    coef, row = np.repeat(coefs, seeds), np.arange(runs)
    tables = rng.normal(size=(2, runs, states, actions)) * 5
    visits = np.zeros((runs, states, actions))
    cumulative = transition.cumsum(axis=-1)
    keep = np.unique(np.geomspace(1, steps, 60).astype(int))
    errors, gaps = [], []
    for step in range(1, steps + 1):
        state, action = rng.integers(states, size=runs), rng.integers(actions, size=runs)
        drawn = rng.random(runs)[:, None] > cumulative[state, action]
        following = drawn.sum(axis=1).clip(max=states - 1)
        noisy = reward[state, action] + rng.uniform(-0.5, 0.5, runs)
        convex_update(tables, visits, (row, state, action), convex_target(noisy, tables[:, row, following], coef))
        if step in keep:
            errors.append(np.abs(tables - optimal).max(axis=(0, 2, 3)).reshape(len(coefs), seeds).mean(axis=1))
            gaps.append(np.abs(tables[0] - tables[1]).max(axis=(1, 2)).mean())
    errors = np.array(errors) / np.abs(optimal).max()

    figure, axes = _panels("error of both tables, max norm over ‖Q*‖", "the same at the end, over λ")
    shades = figures.mpl.colormaps["viridis"]
    for number, each in enumerate(coefs):
        axes[0].plot(keep, errors[:, number], color=shades(0.9 * each), label=f"λ = {each:.1f}" if number % 5 == 0 else None)
    axes[0].plot(keep, np.array(gaps) / np.abs(optimal).max(), color="black", ls=":", label="between the tables")
    axes[0].set(xscale="log", yscale="log", xlabel="update", ylim=(1e-3, None))
    axes[0].legend()
    axes[1].plot(coefs, errors[-1], "o-", color=TANH)
    axes[1].set(xlabel="λ (min's share; the theorem leaves 0 out)", ylim=(0, None))
    first, last = errors[0].max(), errors[-1, 1:]
    holds = _falls(errors[:, 1:].max(axis=1))
    zero = "converges too" if _falls(errors[:, 0]) else "does NOT converge"
    verdict = (
        f"{'holds' if holds else 'FAILS'}: after {steps:,} updates the error is {last.min():.1%} to {last.max():.1%} of ‖Q*‖ "
        f"for λ from 0.1 to 1 (from {first:.0%}){' and falling' if holds else ''}. λ = 0, which the theorem leaves out, "
        f"{zero} ({errors[-1, 0]:.1%}). Since both tables take the same target, they become one (dotted) and λ has no part in "
        "the limit: the theorem says nothing about how λ acts while two estimates differ, which is what CIR uses it for."
    )
    numbers = {"holds": holds, "worst": float(last.max()), "zero": float(errors[-1, 0]), "first": float(first)}
    return Finding("theorem5", "Theorem 5, convex Q-learning", verdict, figure, numbers)


CHECKS = (opening, linear_independence, variance, convergence, regularised, convex_q)
