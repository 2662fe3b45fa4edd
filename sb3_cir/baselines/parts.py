"""
What SimbaV2 and FlashSAC are made of, and what BRO and SimBa share with them, as plain torch modules (this file imports torch,
NumPy and ``ablations.py`` alone).
"""

from collections.abc import Sequence

import numpy as np
import torch as th
from torch import nn
from torch.nn import functional as F

from sb3_cir.ablations import OrthogonalLinear

# Where a norm is a divisor.
EPSILON = 1e-8
# The bounds that actors squeeze log_std into.
LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0


def squeeze(x: th.Tensor, low: float, high: float) -> th.Tensor:
    """
    :param x: Any numbers
    :param low: What they tend to far below 0
    :param high: What they tend to far above 0
    :return: In between, smoothly; the same shape
    """
    return low + 0.5 * (high - low) * (1 + th.tanh(x))


def orthogonal_linear(in_features: int, out_features: int, gain: float = 1.0, bias: bool = True) -> nn.Linear:
    """
    :param in_features: Size of the input
    :param out_features: Size of the output
    :param gain: Of the orthogonal weights that it begins with
    :param bias: Whether there is a bias, which begins with zero
    :return: The layer
    """
    layer = nn.Linear(in_features, out_features, bias=bias)
    nn.init.orthogonal_(layer.weight, gain)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def common_width(widths: Sequence[int], key: str, demand: str = "there must be", example: int = 256) -> int:
    """
    :param widths: Width of each residual block
    :param key: Where they stand in ``net_arch``, for the error
    :param demand: Who asks for it, likewise
    :param example: A width that would do, likewise
    :return: The one width that all have
    :raises ValueError: If there is no width, or if they differ.
    """
    if len(set(widths)) != 1:
        raise ValueError(
            f"net_arch['{key}']={list(widths)}: {demand} one width for each residual block, all equal, "
            f"e.g. {key}=[{example}, {example}] for two."
        )
    return widths[0]


class Residual(nn.Module):
    """
    ``x + branch(x)``.

    :param layers: The branch, one after the other
    """

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.branch = nn.Sequential(*layers)

    def forward(self, x: th.Tensor) -> th.Tensor:
        branch: th.Tensor = self.branch(x)
        return x + branch


class UnitNorm(nn.Module):
    """A module whose parameters are put back to a fixed norm after each step of the optimiser."""

    def normalise_parameters(self) -> None:
        """Put them back, in place."""
        raise NotImplementedError


@th.no_grad()
def normalise_parameters(network: nn.Module) -> None:
    """
    Put all parameters of a network that are to have a fixed norm back to it.

    :param network: A network, of which some modules are :class:`UnitNorm`
    """
    for module in network.modules():
        if isinstance(module, UnitNorm):
            module.normalise_parameters()


class UnitLinear(OrthogonalLinear, UnitNorm):
    """
    A stack of linear layers in which the weights that lead to each output are a vector of length 1, and orthogonal at first.

    :param n_stack: Number of layers in the stack
    :param in_features: Size of the input
    :param out_features: Size of the output
    :param bias: Whether there is a bias; its length is free.
    """

    def __init__(self, n_stack: int, in_features: int, out_features: int, bias: bool = False):
        super().__init__(n_stack, in_features, out_features)
        if not bias:
            self.register_parameter("bias", None)

    def normalise_parameters(self) -> None:
        self.weight.copy_(F.normalize(self.weight, dim=1, eps=EPSILON))

    def forward(self, x: th.Tensor) -> th.Tensor:
        return th.bmm(x, self.weight) if self.bias is None else super().forward(x)


def project(probabilities: th.Tensor, values: th.Tensor, largest: float) -> th.Tensor:
    """
    Move a categorical distribution to a fixed grid: the probability of each value is shared by its two neighbours on the
    grid, the nearer one getting more (Bellemare et al. 2017, algorithm 1).

    :param probabilities: ``(batch, n_bins)``
    :param values: What each is the probability of, the same shape. Those outside the grid count as its ends.
    :param largest: The grid has ``n_bins`` values from ``-largest`` to ``largest``.
    :return: Probabilities of the grid's values, the same shape
    """
    n_bins = probabilities.shape[1]
    place = (values.clamp(-largest, largest) + largest) / (2 * largest / (n_bins - 1))
    # Where a value is NaN, so are the probabilities: that shows in the loss, and no index is out of bounds.
    lower = place.nan_to_num().long()
    upper = (lower + 1).clamp(max=n_bins - 1)
    upper_share = place - lower
    projected = th.zeros_like(probabilities)
    projected.scatter_add_(1, lower, probabilities * (1 - upper_share))
    return projected.scatter_add_(1, upper, probabilities * upper_share)


class ReturnScale(nn.Module):
    """
    Scales rewards so that returns keep to the grid of a categorical critic.

    Each environment has a running discounted return, ``G <- gamma (1 - done) G + r``. Rewards are divided by the standard
    deviation of all G so far, or by ``max |G| / largest`` where this is more.

    :param n_envs: Number of environments
    :param gamma: Discount
    :param largest: The largest return that a scaled reward may lead to
    """

    # The variance starts at 1, with the weight of this many returns.
    FIRST_COUNT = 1e-4
    # What each update adds to the weight of the variance before it.
    MORE_WEIGHT = 0.0

    returns: th.Tensor
    largest_return: th.Tensor
    mean: th.Tensor
    var: th.Tensor
    count: th.Tensor

    def __init__(self, n_envs: int, gamma: float, largest: float):
        super().__init__()
        self.n_envs = n_envs
        self.gamma = gamma
        self.largest = largest
        # After a million returns one more moves the mean by less than float32 can hold.
        self.register_buffer("returns", th.zeros(n_envs, dtype=th.float64))
        for name, value in dict(largest_return=0.0, mean=0.0, var=1.0, count=self.FIRST_COUNT).items():
            self.register_buffer(name, th.tensor(value, dtype=th.float64))

    def update(self, rewards: th.Tensor, dones: th.Tensor) -> None:
        """
        Add one step of each environment.

        :param rewards: ``(n_envs,)``
        :param dones: ``(n_envs,)``, 1 where an episode ended, in whatever way
        """
        self.returns.mul_(self.gamma * (1 - dones)).add_(rewards)
        self.largest_return.copy_(th.maximum(self.largest_return, self.returns.abs().max()))
        count = self.count + self.n_envs
        share = self.n_envs / count
        delta = self.returns.mean() - self.mean
        squares = self.var * (self.count + self.MORE_WEIGHT) + self.returns.var(correction=0) * self.n_envs
        self.var.copy_((squares + delta.square() * self.count * share) / count)
        self.mean.add_(share * delta)
        self.count.copy_(count)

    def cut_off(self, goes_on: np.ndarray) -> None:
        """
        The next step of an environment begins an episode, though the one under way has not ended.

        :param goes_on: ``(n_envs,)``, where its episode goes on all the same
        """
        self.returns.mul_(th.as_tensor(goes_on, device=self.returns.device))

    def forward(self, rewards: th.Tensor) -> th.Tensor:
        """
        :param rewards: Any shape
        :return: Scaled, the same shape
        """
        return rewards / self.divisor().to(rewards.dtype)

    def divisor(self) -> th.Tensor:
        """:return: What rewards are divided by, and Q-values with them"""
        return th.maximum((self.var + EPSILON).sqrt(), self.largest_return / self.largest)

    def extra_repr(self) -> str:
        return f"n_envs={self.n_envs}, gamma={self.gamma}, largest={self.largest}"
