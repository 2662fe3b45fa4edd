"""
The critic of CIR as plain torch modules (this file imports torch alone).

Everything here works on a *stack* of critics: weights and activations carry a leading axis ``n_critics``, so that one
batched matrix product serves all critics at once.
"""

import math
from collections.abc import Sequence

import torch as th
from torch import nn
from torch.nn import functional as F


def check_widths(widths: Sequence[int]) -> None:
    """
    Refuse critic widths that a U-shape cannot have.

    :param widths: Width of each down-sampling layer.
    :raises ValueError: If there is none, or if they differ: skip connections add layers of one width.
    """
    if len(widths) == 0:
        raise ValueError("net_arch['qf'] is empty: CIR's critic needs at least one down-sampling layer, e.g. qf=[512, 512].")
    if len(set(widths)) > 1:
        raise ValueError(
            f"net_arch['qf']={list(widths)} has unequal widths: CIR's skip connections add layers to each other, "
            f"so all must be equal, e.g. qf={[max(widths)] * len(widths)}."
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
        return th.baddbmm(self.bias, x, self.weight)

    def extra_repr(self) -> str:
        n_stack, in_features, out_features = self.weight.shape
        return f"n_stack={n_stack}, in_features={in_features}, out_features={out_features}"


class AvgRNorm(nn.Module):
    """
    Average representation normalisation, ``c * x / mean(|x|)`` over the last axis (``AvgRNorm`` in section 5.1).

    :param coef: The scale c, small and positive.
    """

    # The authors' code clamps the mean here; the paper's equation has no such guard.
    MIN_MEAN = 1e-8

    def __init__(self, coef: float = 0.1):
        super().__init__()
        self.coef = coef

    def forward(self, x: th.Tensor) -> th.Tensor:
        return self.coef * x / x.abs().mean(dim=-1, keepdim=True).clamp(min=self.MIN_MEAN)

    def extra_repr(self) -> str:
        return f"coef={self.coef}"


class UShapeCritic(nn.Module):
    """
    ``n_critics`` Q-functions: constrained input (Eq. 4), down- and up-sampling layers (Eq. 5 and 6), linear head.

    Follows the authors' released code where it differs from the equations: an elu after tanh and after every hidden
    linear layer, a LayerNorm after each sum, and ONE LayerNorm shared by every place in all critics.

    :param n_critics: Number of critics in the stack.
    :param in_features: Size of the concatenated observation features and action.
    :param widths: Width of each of the L down-sampling layers, all equal; as many up-sampling layers follow.
    :param avg_r_norm_coef: c of :class:`AvgRNorm`.
    :raises ValueError: If ``widths`` is empty or unequal.
    """

    def __init__(self, n_critics: int, in_features: int, widths: Sequence[int], avg_r_norm_coef: float = 0.1):
        super().__init__()
        check_widths(widths)
        width = widths[0]
        self.input = StackedLinear(n_critics, in_features, width)
        self.norm = nn.LayerNorm(width)
        self.avg_r_norm = AvgRNorm(avg_r_norm_coef)
        self.down = nn.ModuleList(StackedLinear(n_critics, width, width) for _ in widths)
        self.up_hidden = nn.ModuleList(StackedLinear(n_critics, width, width) for _ in widths)
        self.up_out = nn.ModuleList(StackedLinear(n_critics, width, width) for _ in widths)
        self.head = StackedLinear(n_critics, width, 1)

    def constrain(self, x: th.Tensor) -> th.Tensor:
        """
        Squeeze the input into (-1, 1) (Eq. 4).

        :param x: ``(batch, in_features)``, the same for all critics.
        :return: ``(n_critics, batch, width)``.
        """
        x = x.expand(self.input.weight.shape[0], *x.shape)
        return th.tanh(self.avg_r_norm(self.norm(self.input(x))))

    def forward(self, x: th.Tensor) -> th.Tensor:
        """
        :param x: ``(batch, in_features)``.
        :return: Q-values, ``(n_critics, batch, 1)``.
        """
        x = F.elu(self.constrain(x))
        skips = []
        for down in self.down:
            x = F.elu(self.norm(down(x)))
            skips.append(x)
        for hidden, out in zip(self.up_hidden, self.up_out, strict=True):
            x = self.norm(out(F.elu(self.norm(hidden(x)))) + skips.pop())
        q_values: th.Tensor = self.head(x)
        return q_values
