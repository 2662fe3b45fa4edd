"""
What an update is made of: one step of an optimiser, parameters held still meanwhile, losses that may be compiled, and which
library computes the matrix products.
"""

import contextlib
import functools
import getpass
import os
import platform
import sys
import sysconfig
import tempfile
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch as th
from stable_baselines3 import SAC
from torch import nn

from sb3_cir.words import first_line

# A loss gives the scalar to minimise, and a tensor that is needed afterwards.
Loss = Callable[..., tuple[th.Tensor, th.Tensor]]

# For compile="auto": rough, on the side of not compiling (see "Speed" in benchmarks/README.md for what was measured).
FLOPS = 2e11  # of float32 matrix products on a few cores
SHARE_SAVED = 0.07  # of the time that these products take: fewer passes over memory
SECONDS_SAVED = 3e-3  # of each update, whatever its size: fewer calls of small operations
COMPILE_SECONDS = 60


def parameters_of(optimizer: th.optim.Optimizer) -> list[th.Tensor]:
    """
    :param optimizer: An optimiser
    :return: The parameters that it changes
    """
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


@contextlib.contextmanager
def frozen(optimizer: th.optim.Optimizer) -> Iterator[None]:
    """
    No gradients are computed for the parameters of this optimiser.

    :param optimizer: An optimiser
    """
    parameters = [parameter for parameter in parameters_of(optimizer) if parameter.requires_grad]
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def gradient_norm(optimizer: th.optim.Optimizer) -> th.Tensor:
    """
    :param optimizer: An optimiser
    :return: Euclidean norm of all its gradients together, a scalar
    """
    return nn.utils.get_total_norm([p.grad for p in parameters_of(optimizer) if p.grad is not None])


def minimise(loss: th.Tensor, optimizer: th.optim.Optimizer) -> None:
    """
    Make one step.

    :param loss: What to make smaller, a scalar
    :param optimizer: What makes the step
    """
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def temperature(model: SAC) -> th.Tensor:
    """
    :param model: A model
    :return: α, detached
    """
    return model.ent_coef_tensor if model.log_ent_coef is None else model.log_ent_coef.detach().exp()


@th.no_grad()
def follow(target: nn.Module, online: nn.Module, tau: float) -> None:
    """
    Move a target network, as SB3's ``polyak_update`` does, in one pass over all of its parameters.

    :param target: What is moved
    :param online: Towards this
    :param tau: By this share of the way
    """
    th._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)


class Losses:
    """
    The losses of one model, compiled for as long as this works.

    Each model has its own, for torch keeps at most eight compilations of one function. Where compiling fails, in the forward
    or in the backward pass, the run goes on without, after one warning.

    :param device_type: Where the model is. On CUDA forward and backward passes become CUDA graphs.
    :param verbose: From 1 on a line is printed before the first compiled update, which takes long.
    """

    def __init__(self, device_type: str, verbose: int = 0):
        self.compiling = False
        self.failed = False  # once is enough for a run, and for those that follow
        self.verbose = verbose
        self.mode = "reduce-overhead" if device_type == "cuda" else None
        self._compiled: dict[str, Callable[..., tuple[th.Tensor, th.Tensor]]] = {}

    def minimise(self, optimizer: th.optim.Optimizer, loss: Loss, *args: Any) -> tuple[th.Tensor, th.Tensor]:
        """
        Make one step.

        :param optimizer: What makes the step
        :param loss: A method, whose first result is to become smaller
        :param args: Its arguments
        :return: What it returned, detached
        """
        value, kept = self._backward(optimizer, loss, *args)
        optimizer.step()
        return value.detach(), kept

    def stop_compiling(self, reason: str) -> None:
        """
        Go on without, and say so.

        :param reason: Why
        """
        self.compiling, self.failed = False, True
        _warn(f"The update could not be compiled and runs without ({reason}).")

    def refuse_hooks(self, optimizers: Iterable[th.optim.Optimizer]) -> None:
        """
        Do not compile if a parameter has a hook for its gradient, as W&B's ``watch()`` gives it one. Compiled passes call it
        with None for the parameters that are held still, where torch would not call it.

        :param optimizers: All that are used
        """
        if self.compiling and any(p._backward_hooks for optimizer in optimizers for p in parameters_of(optimizer)):
            self.stop_compiling("a hook was registered on a parameter, for its gradient")

    def _backward(self, optimizer: th.optim.Optimizer, loss: Loss, *args: Any) -> tuple[th.Tensor, th.Tensor]:
        if self.compiling:
            try:
                with self._first_time(loss):
                    return _backward(optimizer, self._compile(loss), *args)
            except Exception as error:  # A compiler may raise anything; what is wrong with the loss itself is raised below.
                self.stop_compiling(f"{first_line(error)}{_advice()}")
        return _backward(optimizer, loss, *args)

    def _compile(self, loss: Loss) -> Loss:
        """
        :param loss: A method
        :return: The same compiled, when it is first called
        """
        method: Any = loss
        name = method.__name__
        if name not in self._compiled:
            function = _of_its_own(method.__func__)
            self._compiled[name] = th.compile(function, fullgraph=True, dynamic=False, mode=self.mode)
        return types.MethodType(self._compiled[name], method.__self__)

    @contextlib.contextmanager
    def _first_time(self, loss: Loss) -> Iterator[None]:
        """The compiler warns of its own affairs. Where warnings are errors (``python -W error``), that would end it."""
        if loss.__name__ in self._compiled:
            yield
            return
        if not self._compiled and self.verbose >= 1:
            print("Compiling the update: the first one takes up to two minutes.", flush=True)
        with warnings.catch_warnings(), _temporary_folder_without_space():
            warnings.simplefilter("ignore")
            yield


def _backward(optimizer: th.optim.Optimizer, loss: Loss, *args: Any) -> tuple[th.Tensor, th.Tensor]:
    value, kept = loss(*args)
    optimizer.zero_grad()
    value.backward()  # type: ignore[no-untyped-call]
    return value, kept


def _of_its_own(function: types.FunctionType) -> types.FunctionType:
    """
    :param function: A function, or a method as one
    :return: The same with a code object of its own, by which torch counts compilations
    """
    code = function.__code__.replace()
    copy = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _warn(message: str) -> None:
    try:
        warnings.warn(message, stacklevel=2)
    except Warning:
        # Under ``-W error``: a run of days does not end over what it can do without.
        print(message, file=sys.stderr)


@contextlib.contextmanager
def _temporary_folder_without_space() -> Iterator[None]:
    """
    torch hands the C++ compiler paths without quotes, so a folder for temporary files with a space in its name is none for it.
    Meanwhile it is /tmp, here and in the processes that torch starts to compile. Compiled code goes there too, and stays,
    unless the user has set TORCHINDUCTOR_CACHE_DIR.
    """
    folder = tempfile.gettempdir()
    if " " not in folder or not Path("/tmp").is_dir():
        yield
        return
    # torch may have set this one already, from the folder with the space.
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR", folder).startswith(folder):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"/tmp/torchinductor_{getpass.getuser()}"
    before, name = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = "/tmp"
    try:
        yield
    finally:
        tempfile.tempdir = before
        os.environ.pop("TMPDIR")
        if name is not None:
            os.environ["TMPDIR"] = name


def _advice() -> str:
    """:return: What can be done about a path with a space, if there is one"""
    paths = (os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""), str(Path(th.__file__).parent), sysconfig.get_path("include"))
    spaced = next((path for path in paths if " " in path), None)
    return "" if spaced is None else f"; there is a space in {spaced!r}, which the compiler does not take: move it"


def worth_compiling(n_updates: int, batch_size: int, critic: nn.Module, actor: nn.Module) -> bool:
    """
    What ``compile="auto"`` does on a CPU. It depends on sizes alone, never on the clock, so that a run can be repeated.

    :param n_updates: Updates in the whole run
    :param batch_size: Transitions in a batch
    :param critic: All critics
    :param actor: The actor
    :return: Whether compiled updates save more time than compiling takes
    """
    # Matrix products of an update: six passes through the critics, four through the actor.
    n_critic, n_actor = (sum(p.numel() for p in module.parameters()) for module in (critic, actor))
    flops = 2 * batch_size * (6 * n_critic + 4 * n_actor)
    return n_updates * (SECONDS_SAVED + SHARE_SAVED * flops / FLOPS) > COMPILE_SECONDS


@contextlib.contextmanager
def fast_products() -> Iterator[None]:
    """
    Meanwhile float32 matrix products on a CPU are oneDNN's where those are faster and as exact. A decorator too.

    By default they are MKL's, which gives AMD's processors its kernels for AVX2. oneDNN goes by the units that a processor
    has: on Zen 5 it is 2.3 times as fast (see "Speed" in ``benchmarks/README.md``). Where the user lets products be less exact
    than float32 (``torch.set_float32_matmul_precision``, ``torch.backends``), nothing is changed.
    """
    with _through_onednn() if _is_float32() and _onednn_is_faster() else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _through_onednn() -> Iterator[None]:
    # torch hands float32 products to oneDNN only where they may be rounded to bfloat16. oneDNN does round them where there are
    # AMX units, and not with AVX-512 alone.
    products = th.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = products.fp32_precision
    products.fp32_precision = "bf16"
    try:
        yield
    finally:
        products.fp32_precision = before


def _is_float32() -> bool:
    return th.backends.mkldnn.matmul.fp32_precision in ("none", "ieee")  # type: ignore[attr-defined]


@functools.cache
def _onednn_is_faster() -> bool:
    """:return: Whether this is an AMD processor with AVX-512 where oneDNN's products are found to be float32's"""
    if th.backends.cpu.get_cpu_capability() != "AVX512" or not _is_amd():
        return False
    left, right = (th.randn(256, 256, generator=th.Generator().manual_seed(seed)) for seed in (0, 1))
    exact = left.double() @ right.double()
    with _through_onednn():
        error = (left @ right - exact).abs().max() / exact.abs().max()
    return bool(error < 1e-5)  # rounded to bfloat16 it would be 1e-3


def _is_amd() -> bool:
    with contextlib.suppress(OSError):
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    return "AuthenticAMD" in platform.processor()  # as Windows says it


def keep_freed_memory() -> None:
    """
    Have this process keep what is freed after one update for the next one. By default glibc hands blocks of this size back to
    the system and takes them again, a few thousand page faults for each train call.

    It adapts: once a block that was mapped is freed, it maps only larger ones, and keeps twice as much free (mallopt(3),
    ``M_MMAP_THRESHOLD``), unless the user has set its thresholds. This is the largest block it adapts to; nothing is written.
    """
    th.empty(32 * 2**20 - 2**16, dtype=th.uint8)
