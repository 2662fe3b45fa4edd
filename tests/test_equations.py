"""CIR's network and its ablations against the paper's equations, written out in NumPy for one critic at a time."""

import numpy as np
import pytest
import torch as th
from torch.func import functional_call

from sb3_cir.ablations import CRITICS
from sb3_cir.networks import AvgRNorm, UShapeCritic

TOLERANCE = dict(rtol=0, atol=1e-6)
C = 0.1


def layer_norm(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)


def avg_r_norm(x: np.ndarray) -> np.ndarray:
    """Eq. 6."""
    return C * x / np.abs(x).mean(axis=-1, keepdims=True)


def max_r_norm(x: np.ndarray) -> np.ndarray:
    return x / np.abs(x).max(axis=-1, keepdims=True)


def elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.expm1(x))


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


# Eq. 7 of each label, of ``x = Linear(o)``; ``ln`` is LayerNorm with its weight and bias.
INPUT = {
    "CIR": lambda x, ln: np.tanh(avg_r_norm(ln(x))),
    "NoTanh": lambda x, ln: avg_r_norm(ln(x)),
    "Sigmoid": lambda x, ln: sigmoid(avg_r_norm(ln(x))),
    "Softmax": lambda x, ln: softmax(avg_r_norm(ln(x))),
    "LayerNorm": lambda x, ln: layer_norm(avg_r_norm(ln(x))),
    "NoInputLN": lambda x, ln: np.tanh(avg_r_norm(x)),
    "NoAvgRNorm": lambda x, ln: np.tanh(ln(x)),
    "NoInputNorm": lambda x, ln: np.tanh(x),
    "MaxRNorm": lambda x, ln: np.tanh(max_r_norm(ln(x))),
    "NoLN": lambda x, ln: np.tanh(avg_r_norm(x)),
}
# What comes after each later linear layer of each label.
NORM = {
    "CIR": lambda x, ln: ln(x),
    "NoLN": lambda x, ln: x,
    "AllAvgRNorm": lambda x, ln: avg_r_norm(ln(x)),
}
# What ends an up-sampling layer with output y, input x and the down-sampling layer's output s.
SUM = {
    "CIR": lambda y, x, s, norm: norm(y + s),
    "NoSC": lambda y, x, s, norm: norm(y),
    "Res": lambda y, x, s, norm: norm(y + x),
    "PaperUp": lambda y, x, s, norm: y + s,
    "AsPrinted": lambda y, x, s, norm: y + s,
}


def q_value(network: UShapeCritic, label: str, observations: np.ndarray, critic: int) -> np.ndarray:
    """Eq. 7 to 9, with the elus that the paper omits "for clarity" in Eq. 8 and 9, and the authors' after Eq. 7."""
    weights = {name: parameter.detach().numpy() for name, parameter in network.named_parameters()}

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[f"{name}.weight"][critic] + weights[f"{name}.bias"][critic]

    def ln(x: np.ndarray, place: str) -> np.ndarray:
        if label == "NoLN":
            return x
        if label in ("LNPerPlace", "AsPrinted"):
            return layer_norm(x) * weights[f"norm.{place}.weight"][critic] + weights[f"norm.{place}.bias"][critic]
        return layer_norm(x) * weights["norm.weight"] + weights["norm.bias"]

    def norm(x: np.ndarray, place: str) -> np.ndarray:
        return NORM.get(label, NORM["CIR"])(x, lambda x: ln(x, place))

    z = INPUT.get(label, INPUT["CIR"])(linear(observations, "input"), lambda x: ln(x, "input_0"))
    x = z if label == "AsPrinted" else elu(z)
    down = []
    for layer in range(2):
        x = elu(norm(linear(x, f"down.{layer}"), f"down_{layer}"))
        down.append(x)
    for layer in range(2):
        hidden = elu(norm(linear(x, f"up_hidden.{layer}"), f"up_hidden_{layer}"))
        ends = SUM.get(label, SUM["CIR"])
        x = ends(linear(hidden, f"up_out.{layer}"), x, down[1 - layer], lambda x: norm(x, f"up_sum_{layer}"))  # noqa: B023
    return linear(x, "head")


@pytest.fixture(params=CRITICS)
def label(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def network(label: str) -> UShapeCritic:
    """In float64 and with every parameter away from its first value: a LayerNorm begins as none would."""
    th.manual_seed(1)
    network = CRITICS[label](2, 3, [4, 4], C).double()
    with th.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * th.randn_like(parameter))
    return network


@pytest.fixture
def observations() -> th.Tensor:
    return th.randn(5, 3, dtype=th.float64, generator=th.Generator().manual_seed(2))


def test_network(network: UShapeCritic, label: str, observations: th.Tensor) -> None:
    q_values = network(observations).detach()
    assert q_values.shape == (2, 5, 1)
    for critic in range(2):
        np.testing.assert_allclose(q_values[critic], q_value(network, label, observations.numpy(), critic), **TOLERANCE)


def test_network_gradients(network: UShapeCritic, observations: th.Tensor) -> None:
    """By the input and by every parameter."""
    names = [name for name, _ in network.named_parameters()]

    def q_values(x: th.Tensor, *parameters: th.Tensor) -> th.Tensor:
        return functional_call(network, dict(zip(names, parameters, strict=True)), (x,))

    assert th.autograd.gradcheck(q_values, (observations[:2].requires_grad_(), *network.parameters()))


@pytest.mark.parametrize("label", INPUT, indirect=True)
def test_constraint(network: UShapeCritic, label: str, observations: th.Tensor) -> None:
    """Eq. 7 alone, with its gradient."""
    weights = {name: parameter.detach().numpy() for name, parameter in network.named_parameters()}

    def ln(x: np.ndarray) -> np.ndarray:
        return layer_norm(x) * weights["norm.weight"] + weights["norm.bias"]

    linear = observations.numpy() @ weights["input.weight"] + weights["input.bias"]
    np.testing.assert_allclose(network.constrain(observations).detach(), INPUT[label](linear, ln), **TOLERANCE)
    assert th.autograd.gradcheck(network.constrain, observations[:2].requires_grad_())


def test_avg_r_norm(observations: th.Tensor) -> None:
    module = AvgRNorm(C)
    np.testing.assert_allclose(module(observations), avg_r_norm(observations.numpy()), **TOLERANCE)
    assert th.autograd.gradcheck(module, observations.requires_grad_())


def test_max_r_norm(observations: th.Tensor) -> None:
    """Without LayerNorm before it."""
    network = CRITICS["MaxRNorm"](1, 3, [3]).double()
    network.norm = th.nn.Identity()
    np.testing.assert_allclose(network.compress(observations), max_r_norm(observations.numpy()), **TOLERANCE)
    assert th.autograd.gradcheck(network.compress, observations.requires_grad_())


@pytest.mark.parametrize("name", ["CIR", "MaxRNorm"])
def test_zeros_stay_zero(name: str) -> None:
    """The equations divide by zero there."""
    network = CRITICS[name](1, 3, [3])
    assert th.equal(network.constrain(th.zeros(2, 3)).isfinite(), th.ones(1, 2, 3, dtype=th.bool))
    network.norm = th.nn.Identity()
    assert th.equal(network.compress(th.zeros(2, 3)), th.zeros(2, 3))
