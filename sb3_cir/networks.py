"""
The critic of CIR as plain torch modules (this file imports torch alone).

Everything here works on a *stack* of critics: weights and activations carry a leading axis ``n_critics``, so that one
batched matrix product serves all critics at once.
"""

import math
from collections.abc import Iterable, Sequence

import torch as th
from torch import nn
from torch.nn import functional as F


def check_widths(widths: Sequence[int], key: str = "qf") -> None:
    """
    Refuse widths that a U-shape cannot have.

    :param widths: Width of each down-sampling layer.
    :param key: Where they stand in ``net_arch``.
    :raises ValueError: If there is none, or if they differ: skip connections add layers of one width.
    """
    if len(widths) == 0:
        raise ValueError(
            f"net_arch['{key}'] is empty: CIR's U-shape needs at least one down-sampling layer, e.g. {key}=[512, 512]."
        )
    if len(set(widths)) > 1:
        raise ValueError(
            f"net_arch['{key}']={list(widths)} has unequal widths: CIR's skip connections add layers to each other, "
            f"so all must be equal, e.g. {key}={[max(widths)] * len(widths)}."
        )


class StackedLinear(nn.Module):
    """
    ``n_stack`` independent linear layers in one batched product: ``(n_stack, batch, in)`` to ``(n_stack, batch, out)``.

    The weight is ``(n_stack, in, out)``, the transpose of ``nn.Linear``'s, since gradients then need no copy.
    """

    def __init__(self, n_stack: int, in_features: int, out_features: int):
        super().__init__()
        self.weight = nn.Parameter(th.empty(n_stack, in_features, out_features))
        self.bias = nn.Parameter(th.empty(n_stack, 1, out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias as ``nn.Linear`` does by default, which is what the authors' code uses."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: th.Tensor) -> th.Tensor:
        if th.compiler.is_compiling():
            # The compiler adds the bias in the same pass over memory as what follows; baddbmm takes one of its own.
            return th.bmm(x, self.weight) + self.bias
        return th.baddbmm(self.bias, x, self.weight)

    def extra_repr(self) -> str:
        n_stack, in_features, out_features = self.weight.shape
        return f"n_stack={n_stack}, in_features={in_features}, out_features={out_features}"


class AvgRNorm(nn.Module):
    """
    Average representation normalisation, ``c * x / mean(|x|)`` over the last axis (Eq. 6).

    :param coef: The scale c, small and positive.
    :raises ValueError: If c is not positive.
    """

    # The authors' code clamps the mean here; the paper's equation has no such guard.
    MIN_MEAN = 1e-8

    def __init__(self, coef: float = 0.1):
        super().__init__()
        if not coef > 0:
            raise ValueError(f"avg_r_norm_coef={coef}: it must be positive (paper: 0.1).")
        self.coef = coef

    def forward(self, x: th.Tensor) -> th.Tensor:
        return x * (self.coef / x.abs().mean(dim=-1, keepdim=True).clamp(min=self.MIN_MEAN))

    def extra_repr(self) -> str:
        return f"coef={self.coef}"


class UShape(nn.Module):
    """
    A stack of U-shapes: constrained input (Eq. 7), down- and up-sampling layers (Eq. 8 and 9).

    Follows the authors' released code where it differs from the equations: an elu after tanh and after every hidden
    linear layer, a LayerNorm after each sum, and ONE LayerNorm shared by every place in the whole stack.

    The short methods are what the paper's variants replace, see ``ablations.py``.

    :param n_stack: Number of networks in the stack.
    :param in_features: Size of the input.
    :param widths: Width of each of the L down-sampling layers, all equal; as many up-sampling layers follow.
    :param avg_r_norm_coef: c of :class:`AvgRNorm`.
    :raises ValueError: If ``widths`` is empty or unequal.
    """

    linear: type[StackedLinear] = StackedLinear

    def __init__(self, n_stack: int, in_features: int, widths: Sequence[int], avg_r_norm_coef: float = 0.1):
        super().__init__()
        check_widths(widths)
        width = widths[0]
        self.input = self.linear(n_stack, in_features, width)
        self.norm = self.make_norm(n_stack, width, len(widths))
        self.avg_r_norm = AvgRNorm(avg_r_norm_coef)
        self.down = nn.ModuleList(self.linear(n_stack, width, width) for _ in widths)
        self.up_hidden = nn.ModuleList(self.linear(n_stack, width, width) for _ in widths)
        self.up_out = nn.ModuleList(self.linear(n_stack, width, width) for _ in widths)

    def make_norm(self, n_stack: int, width: int, depth: int) -> nn.Module:
        """
        :param n_stack: Number of networks in the stack
        :param width: Width of every layer
        :param depth: Number of down-sampling layers
        :return: What :meth:`normalise` needs
        """
        return nn.LayerNorm(width)

    def normalise(self, x: th.Tensor, place: str, layer: int = 0) -> th.Tensor:
        """
        :param x: ``(n_stack, batch, width)``
        :param place: "input", "down", "up_hidden" or "up_sum"
        :param layer: Which of the down- or up-sampling layers, counted from 0 in the order data meets them
        :return: The same shape
        """
        normalised: th.Tensor = self.norm(x)
        return normalised

    def compress(self, x: th.Tensor) -> th.Tensor:
        """
        Make the input small before it is squashed, so that its gradient does not vanish.

        :param x: ``(n_stack, batch, width)``
        :return: The same shape
        """
        compressed: th.Tensor = self.avg_r_norm(self.normalise(x, "input"))
        return compressed

    def squash(self, x: th.Tensor) -> th.Tensor:
        """
        :param x: Any shape
        :return: The same shape, each entry in (-1, 1)
        """
        return th.tanh(x)

    def constrain(self, x: th.Tensor) -> th.Tensor:
        """
        Squeeze the input into (-1, 1) (Eq. 7).

        :param x: ``(batch, in_features)``, the same for the whole stack, or ``(n_stack, batch, in_features)``.
        :return: ``(n_stack, batch, width)``.
        """
        x = x.expand(self.input.weight.shape[0], *x.shape[-2:])
        return self.squash(self.compress(self.input(x)))

    def begin(self, z: th.Tensor) -> th.Tensor:
        """
        What the first down-sampling layer gets. The paper's text has z itself, the authors' code its elu.

        :param z: What :meth:`constrain` gave
        :return: The same shape
        """
        return F.elu(z)

    def join(self, output: th.Tensor, x: th.Tensor, skip: th.Tensor, layer: int) -> th.Tensor:
        """
        End an up-sampling layer with its skip connection.

        :param output: What the layer's two linear layers made, ``(n_stack, batch, width)``
        :param x: The layer's input, of the same shape
        :param skip: Output of the down-sampling layer opposite, of the same shape
        :param layer: Which up-sampling layer, counted from 0
        :return: The same shape
        """
        return self.normalise(output + skip, "up_sum", layer)

    def forward(self, x: th.Tensor) -> th.Tensor:
        """
        :param x: As :meth:`constrain` takes it
        :return: ``(n_stack, batch, width)``.
        """
        x = self.begin(self.constrain(x))
        skips = []
        for layer, down in enumerate(self.down):
            x = F.elu(self.normalise(down(x), "down", layer))
            skips.append(x)
        for layer, (hidden, out) in enumerate(zip(self.up_hidden, self.up_out, strict=True)):
            output = out(F.elu(self.normalise(hidden(x), "up_hidden", layer)))
            x = self.join(output, x, skips.pop(), layer)
        return x


class UShapeCritic(UShape):
    """
    ``n_critics`` Q-functions: U-shapes with a linear head.

    :param n_critics: Number of critics in the stack.
    :param in_features: Size of the concatenated observation features and action.
    :param widths: Width of each of the L down-sampling layers, all equal; as many up-sampling layers follow.
    :param avg_r_norm_coef: c of :class:`AvgRNorm`.
    :raises ValueError: If ``widths`` is empty or unequal.
    """

    def __init__(self, n_critics: int, in_features: int, widths: Sequence[int], avg_r_norm_coef: float = 0.1):
        super().__init__(n_critics, in_features, widths, avg_r_norm_coef)
        self.head = self.linear(n_critics, widths[0], 1)

    def forward(self, x: th.Tensor) -> th.Tensor:
        """
        :param x: ``(batch, in_features)``.
        :return: Q-values, ``(n_critics, batch, 1)``.
        """
        return in_float32(self.head, super().forward(x))


def in_float32(head: nn.Module, x: th.Tensor) -> th.Tensor:
    """
    What a critic's last layer makes of the others' output, in the precision of its parameters (float32, as a rule) whatever
    autocast makes of those: bfloat16 has 8 bits, so that Q-values around 100 would be multiples of 0.5.

    :param head: The last layer
    :param x: Its input, of any precision
    :return: Its output, in the precision of its parameters
    """
    with th.autocast(x.device.type, enabled=False):
        output: th.Tensor = head(x.to(next(head.parameters()).dtype))
    return output


def ends_in_float32(network: Iterable[nn.Module], x: th.Tensor) -> th.Tensor:
    """
    :param network: Layers, one after the other
    :param x: Input of the first
    :return: Output of the last, by :func:`in_float32`
    """
    *body, head = network
    for layer in body:
        x = layer(x)
    return in_float32(head, x)
