"""
The critics that the paper compares with CIR's: each overrides the one method of ``networks.UShape`` that differs (this file
imports torch and ``networks.py`` alone). :data:`CRITICS` has each under the paper's label ("Ablation Study" and, in the
appendix, "More Ablation Study"); ``methods.py`` says how to train each.
"""

from collections.abc import Mapping
from typing import TypeVar

import torch as th
from torch import nn
from torch.nn import functional as F

from sb3_cir.networks import AvgRNorm, StackedLinear, UShapeCritic


class NoTanh(UShapeCritic):
    """The input is normalised, not squashed."""

    def squash(self, x: th.Tensor) -> th.Tensor:
        return x


class SigmoidSquash(UShapeCritic):
    """The logistic function in place of tanh."""

    def squash(self, x: th.Tensor) -> th.Tensor:
        return th.sigmoid(x)


class SoftmaxSquash(UShapeCritic):
    """A softmax over the units in place of tanh."""

    def squash(self, x: th.Tensor) -> th.Tensor:
        return th.softmax(x, dim=-1)


class LayerNormSquash(UShapeCritic):
    """A layer normalisation without scale and shift in place of tanh."""

    def squash(self, x: th.Tensor) -> th.Tensor:
        return F.layer_norm(x, x.shape[-1:])


class NoInputLN(UShapeCritic):
    """``tanh(AvgRNorm(Linear(o)))``."""

    def compress(self, x: th.Tensor) -> th.Tensor:
        compressed: th.Tensor = self.avg_r_norm(x)
        return compressed


class NoAvgRNorm(UShapeCritic):
    """``tanh(LayerNorm(Linear(o)))``."""

    def compress(self, x: th.Tensor) -> th.Tensor:
        return self.normalise(x, "input")


class NoInputNorm(UShapeCritic):
    """``tanh(Linear(o))``."""

    def compress(self, x: th.Tensor) -> th.Tensor:
        return x


class MaxRNorm(UShapeCritic):
    """``tanh(MaxRNorm(LayerNorm(Linear(o))))`` with ``MaxRNorm(x) = x / max(|x|)``, which has no scale c."""

    def compress(self, x: th.Tensor) -> th.Tensor:
        x = self.normalise(x, "input")
        return x / x.abs().amax(dim=-1, keepdim=True).clamp(min=AvgRNorm.MIN_MEAN)


class NoLN(UShapeCritic):
    """No LayerNorm anywhere."""

    def make_norm(self, n_stack: int, width: int, depth: int) -> nn.Module:
        return nn.Identity()


class AllAvgRNorm(UShapeCritic):
    """AvgRNorm after every LayerNorm. The input has one already; a second changes nothing."""

    def normalise(self, x: th.Tensor, place: str, layer: int = 0) -> th.Tensor:
        normalised: th.Tensor = self.avg_r_norm(super().normalise(x, place, layer))
        return normalised


class NoSC(UShapeCritic):
    """No skip connections: up-sampling layers add nothing."""

    def join(self, output: th.Tensor, x: th.Tensor, skip: th.Tensor, layer: int) -> th.Tensor:
        return self.normalise(output, "up_sum", layer)


class Res(UShapeCritic):
    """
    Residual connections in place of skip connections: an up-sampling layer adds its own input, which makes it a residual
    block. The paper does not print this network; here it has CIR's layers and as many parameters.
    """

    def join(self, output: th.Tensor, x: th.Tensor, skip: th.Tensor, layer: int) -> th.Tensor:
        return self.normalise(output + x, "up_sum", layer)


class OrthogonalLinear(StackedLinear):
    """:class:`StackedLinear` that begins with orthogonal weights and zero bias."""

    gain = 1.0

    def reset_parameters(self) -> None:
        for weight in self.weight:
            nn.init.orthogonal_(weight, self.gain)
        nn.init.zeros_(self.bias)


class Orthoini(UShapeCritic):
    """Orthogonal initialisation. The paper names no gain; 1 and zero bias are what the authors' code has (unused) for it."""

    linear = OrthogonalLinear


class StackedLayerNorm(nn.Module):
    """``n_stack`` LayerNorms, one for each network of the stack: ``(n_stack, batch, width)`` to the same."""

    def __init__(self, n_stack: int, width: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(th.ones(n_stack, 1, width))
        self.bias = nn.Parameter(th.zeros(n_stack, 1, width))

    def forward(self, x: th.Tensor) -> th.Tensor:
        return self.weight * F.layer_norm(x, x.shape[-1:], eps=self.eps) + self.bias


class LNPerPlace(UShapeCritic):
    """A LayerNorm of its own for each place in each critic, as the paper's equations read (no label in the paper)."""

    places: tuple[str, ...] = ("down", "up_hidden", "up_sum")

    def make_norm(self, n_stack: int, width: int, depth: int) -> nn.Module:
        places = ["input_0", *(f"{place}_{layer}" for place in self.places for layer in range(depth))]
        return nn.ModuleDict({place: StackedLayerNorm(n_stack, width) for place in places})

    def normalise(self, x: th.Tensor, place: str, layer: int = 0) -> th.Tensor:
        assert isinstance(self.norm, nn.ModuleDict)
        normalised: th.Tensor = self.norm[f"{place}_{layer}"](x)
        return normalised


class PaperUp(UShapeCritic):
    """The up-sampling layer as Eq. 9 prints it: no LayerNorm after the sum (no label in the paper)."""

    def join(self, output: th.Tensor, x: th.Tensor, skip: th.Tensor, layer: int) -> th.Tensor:
        return output + skip


class AsPrinted(PaperUp, LNPerPlace):
    """
    Eq. 7 to 9 as they are printed: as ``LNPerPlace`` and ``PaperUp``, and no elu between Eq. 7 and 8 (no label in the paper,
    which omits the elus of Eq. 8 and 9 alone).
    """

    places = ("down", "up_hidden")

    def begin(self, z: th.Tensor) -> th.Tensor:
        return z


# By the paper's labels, which are the classes' names but where those would be torch's own.
CRITICS: dict[str, type[UShapeCritic]] = {
    "CIR": UShapeCritic,
    "NoTanh": NoTanh,
    "Sigmoid": SigmoidSquash,
    "Softmax": SoftmaxSquash,
    "LayerNorm": LayerNormSquash,
    "NoInputLN": NoInputLN,
    "NoAvgRNorm": NoAvgRNorm,
    "NoInputNorm": NoInputNorm,
    "MaxRNorm": MaxRNorm,
    "NoLN": NoLN,
    "AllAvgRNorm": AllAvgRNorm,
    "NoSC": NoSC,
    "Res": Res,
    "Orthoini": Orthoini,
    "LNPerPlace": LNPerPlace,
    "PaperUp": PaperUp,
    "AsPrinted": AsPrinted,
}

Choice = TypeVar("Choice")


def choose(choices: Mapping[str, Choice], argument: str, name: str) -> Choice:
    """
    :param choices: What there is, by name
    :param argument: The argument that names one of them, for the error
    :param name: Its value
    :return: The one of this name
    :raises ValueError: If there is none of this name.
    """
    if name not in choices:
        raise ValueError(f"{argument}={name!r}: it must be one of {', '.join(map(repr, choices))}.")
    return choices[name]
