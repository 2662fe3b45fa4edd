"""``python -m benchmarks speed``: what one train call of CIR costs beside its matrix products alone, and beside others."""

import argparse
import functools
import importlib
import importlib.util
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import torch as th
from gymnasium import spaces
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, ScalarFormatter
from rich.progress import Progress
from sb3_contrib import TQC
from stable_baselines3 import SAC
from stable_baselines3.common.logger import configure
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv

from benchmarks import figures
from benchmarks.arguments import folder, positive
from benchmarks.machine import processor
from sb3_cir import CIR, envs, methods
from sb3_cir.baselines import TD7
from sb3_cir.buffers import DeviceReplayBuffer
from sb3_cir.smr import SMR
from sb3_cir.update import fast_products

OBSERVATIONS, ACTIONS, BATCH, WIDTH, DEPTH, REUSE = 24, 6, 256, 512, 2, 2  # walker's sizes and the paper's
PEERS = ("simba", "td7", "bro", "bro_fast", "flash_sac", "simba_v2")
PARTS = ("peers", "acting", "learn", "growth")
GROWTH: dict[str, tuple[int, ...]] = {
    "width": (128, 256, 512, 1024),
    "depth": (1, 2, 3),
    "M": (1, 2, 4, 6, 8, 10),
    "batch": (64, 128, 256, 512, 1024, 2048),
    "n_envs": (1, 2, 4, 8, 16),
}
TASK = "dm_control/walker-walk-v0"
FLOOR, AUTHORS = "matrix products alone", "authors' code"

Train = Callable[[], Any]


class Sizes(gym.Env):
    """Has walker's spaces and is never stepped."""

    observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATIONS,))
    action_space = spaces.Box(-1, 1, (ACTIONS,))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """:param parser: The command's"""
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: all)")
    parser.add_argument("--methods", nargs="*", choices=PEERS, default=PEERS, help="other methods to measure (default: all)")
    parser.add_argument("--authors", type=Path, metavar="PATH", help="a checkout of the authors' code, to run beside ours")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--threads", type=positive, default=th.get_num_threads(), help="of torch (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, default=12, help="of each measurement, interleaved (default: %(default)s)")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what to print (default: table)")
    parser.add_argument("--out", type=folder, metavar="FOLDER", help="where to put the figure of how cost grows")


def main(options: argparse.Namespace) -> int:
    """
    :param options: See :func:`add_arguments`
    :return: Exit status
    :raises ValueError: If ``--authors`` holds no such code, or if there is no such device.
    """
    if options.device.startswith("cuda") and not th.cuda.is_available():
        raise ValueError(f"--device {options.device}: torch sees no GPU on this machine.")
    if options.authors and not (options.authors / "dmc" / "algo" / "cir.py").is_file():
        raise ValueError(f"--authors {options.authors}: there is no dmc/algo/cir.py in it.")
    th.set_num_threads(options.threads)
    found: dict[str, Any] = {"machine": machine(options.device)}
    with Progress(transient=True) as progress:
        if "peers" in options.parts:
            found |= peers(options, progress)
        if "acting" in options.parts:
            found["acting"] = acting(options, progress)
        if "learn" in options.parts:
            found["learn"] = learn(options.device, progress)
        if "growth" in options.parts:
            found["growth"] = growth(options, progress)
    if options.out and "growth" in found:
        options.out.mkdir(parents=True, exist_ok=True)
        draw_growth(found["growth"]).savefig(options.out / "growth.png", dpi=150)
    print(json.dumps(found, indent=1) if options.format == "json" else as_text(found))
    return 0


def machine(device: str) -> dict[str, Any]:
    """
    :param device: cpu or cuda
    :return: What the figures hold for
    """
    name = th.cuda.get_device_name(device) if device.startswith("cuda") else processor()
    driver = {"cuda": th.version.cuda} if device.startswith("cuda") else {}
    return {"device": device, "name": name, "threads": th.get_num_threads(), "torch": th.__version__} | driver


# --- what is measured ---


def filled(model: Any, n: int = 4096) -> Any:
    """
    :param model: An SB3 algorithm for :class:`Sizes`
    :param n: Transitions
    :return: The same, with random transitions in its buffer and a silent logger
    """
    rng = np.random.default_rng(0)
    for _ in range(n):
        obs, next_obs = rng.normal(size=(2, OBSERVATIONS)).astype(np.float32)
        action = rng.uniform(-1, 1, (1, ACTIONS)).astype(np.float32)
        model.replay_buffer.add(obs, next_obs, action, rng.normal(size=1), np.zeros(1), [{}])
    model.set_logger(configure(None, []))
    return model


def cir(device: str, width: int = WIDTH, depth: int = DEPTH, batch: int = BATCH, **kwargs: Any) -> Train:
    """
    :param device: cpu or cuda
    :param width: Of critic and actor
    :param depth: Of the critic
    :param batch: Transitions in a batch
    :param kwargs: CIR's arguments
    :return: Makes one train call
    """
    net_arch = dict(pi=[width, width], qf=[width] * depth)
    model = filled(CIR("MlpPolicy", Sizes(), buffer_size=4096, device=device, policy_kwargs=dict(net_arch=net_arch), **kwargs))
    return lambda: model.train(1, batch)


def of_sb3(algorithm: type[OffPolicyAlgorithm], device: str, net_arch: list[int]) -> Train:
    """
    :param algorithm: An algorithm of SB3 or sb3-contrib
    :param device: cpu or cuda
    :param net_arch: Of actor and critics
    :return: Makes one train call with as many gradient steps as CIR makes updates
    """
    model = filled(algorithm("MlpPolicy", Sizes(), buffer_size=4096, device=device, policy_kwargs=dict(net_arch=net_arch)))
    return lambda: model.train(REUSE, BATCH)


def own_sizes(name: str, device: str) -> Train:
    """
    :param name: One of :data:`PEERS`
    :param device: cpu or cuda
    :return: Makes all updates of one step of the agent, at the method's own sizes, compiled if it can be
    """
    algorithm = methods.algorithm(name)
    kwargs = dict(compile=True) if issubclass(algorithm, SMR) else {}
    model = filled(algorithm("MlpPolicy", Sizes(), buffer_size=4096, device=device, **kwargs))
    if isinstance(model, TD7):  # which makes those of a whole episode in a train call
        return lambda: model.make_updates(1, model.batch_size)
    return lambda: model.train(model.gradient_steps, model.batch_size)


def sbx_simba() -> Train:
    """
    :return: Makes one train call of SBX's SAC with SimBa's networks, as many gradient steps as CIR makes updates. It runs on
        JAX's default device.
    """
    sbx = importlib.import_module("sbx")
    net_arch = dict(pi=[128], qf=[WIDTH, WIDTH])
    model = filled(sbx.SAC("SimbaPolicy", Sizes(), buffer_size=4096, policy_kwargs=dict(net_arch=net_arch)))

    def train() -> None:
        model.train(REUSE, BATCH)
        importlib.import_module("jax").block_until_ready(model.policy.qf_state.params)

    return train


def authors(checkout: Path, device: str) -> Train:
    """
    :param checkout: Of the authors' repository
    :param device: cpu or cuda
    :return: Makes one train call of their code
    """
    sys.path.insert(0, str(checkout / "dmc"))
    try:
        algorithm, utils = importlib.import_module("algo.cir"), importlib.import_module("utils")
    finally:
        sys.path.pop(0)
    model = algorithm.CIR(th.device(device), OBSERVATIONS, ACTIONS, 1.0, hidden_sizes=[WIDTH, WIDTH], smr=True, ratio=REUSE)
    buffer = utils.ReplayBuffer(OBSERVATIONS, ACTIONS, th.device(device), max_size=4096)
    rng = np.random.default_rng(0)
    for _ in range(4096):
        obs, next_obs = rng.normal(size=(2, OBSERVATIONS))
        buffer.add(obs, rng.uniform(-1, 1, ACTIONS), next_obs, rng.normal(), 0.0)
    return lambda: model.train(buffer, BATCH)


class Products:
    """
    The matrix products of one train call at paper size and nothing else, each with matrices of its own.

    Both critics are one batched product. Critics: the target's forward pass, forward and backward for their own loss, forward
    and the gradient to the action for the actor's, for which no gradients of their parameters are needed. Actor: two forward
    passes, one backward. Gradients to observations are never needed.

    :param device: cpu or cuda
    """

    def __init__(self, device: str):
        self.device = device
        self.flops = 0
        layers = [(2, OBSERVATIONS + ACTIONS, WIDTH), *[(2, WIDTH, WIDTH)] * 3 * DEPTH, (2, WIDTH, 1)]
        actor = [(1, OBSERVATIONS, WIDTH), (1, WIDTH, WIDTH), (1, WIDTH, 2 * ACTIONS)]
        self.calls: list[Train] = []
        for _ in range(REUSE):
            for times_forward, backward, shapes in ((1, "", layers), (1, "wx", layers), (1, "x+", layers), (2, "wx", actor)):
                for _ in range(times_forward):
                    for shape in shapes:
                        self._forward(*shape)
                for index, shape in reversed(list(enumerate(shapes))):
                    self._backward(*shape, weight="w" in backward, inputs="x" in backward and (index > 0 or "+" in backward))

    def _add(self, a: th.Tensor, b: th.Tensor) -> None:
        out = th.bmm(a, b)
        self.flops += 2 * a.shape[0] * a.shape[1] * a.shape[2] * b.shape[2]
        self.calls.append(lambda: th.bmm(a, b, out=out))

    def _forward(self, stack: int, n_in: int, n_out: int) -> None:
        self._add(self._draw(stack, BATCH, n_in), self._draw(stack, n_in, n_out))

    def _backward(self, stack: int, n_in: int, n_out: int, weight: bool, inputs: bool) -> None:
        gradient = self._draw(stack, BATCH, n_out)
        if weight:
            self._add(self._draw(stack, BATCH, n_in).transpose(1, 2), gradient)
        if inputs:
            self._add(gradient, self._draw(stack, n_in, n_out).transpose(1, 2))

    def _draw(self, *shape: int) -> th.Tensor:
        return th.randn(shape, device=self.device)

    @fast_products()
    def __call__(self) -> None:
        for call in self.calls:
            call()


# --- how ---


class Apart:
    """
    A train call in a process of its own, as users run it: what one method sets for its process, such as what becomes of freed
    memory, must not be another's.

    :param threads: Of torch
    :param device: cpu or cuda
    :param make: Makes the train call there
    :param args: Its arguments
    :param kwargs: Its arguments
    """

    def __init__(self, threads: int, device: str, make: Callable[..., Train], *args: Any, **kwargs: Any):
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        context.Process(target=_serve, args=(theirs, threads, device, make, args, kwargs), daemon=True).start()
        theirs.close()

    def __call__(self) -> float:
        """
        :return: Seconds that it took
        :raises Exception: What it raised there
        """
        self._connection.send(None)
        answer: float | Exception = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


def _serve(
    connection: Connection, threads: int, device: str, make: Callable[..., Train], args: Any, kwargs: dict[str, Any]
) -> None:
    th.set_num_threads(threads)
    train: Train | None = None
    with suppress(EOFError):  # the benchmark has ended
        while True:
            connection.recv()
            try:
                train = train or make(*args, **kwargs)
                connection.send(clocked(train, device))
            except Exception as error:
                connection.send(error)


def clocked(train: Train, device: str) -> float:
    """
    :param train: To call once
    :param device: cpu or cuda
    :return: Seconds that it took
    """
    begin = time.perf_counter()
    train()
    if device.startswith("cuda"):
        th.cuda.synchronize()
    return time.perf_counter() - begin


def by_the_clock(trains: dict[Any, Train], device: str) -> dict[Any, Callable[[], float]]:
    """
    :param trains: By name
    :param device: cpu or cuda
    :return: The same, each to return the seconds that it took
    """
    return {name: functools.partial(clocked, train, device) for name, train in trains.items()}


def interleaved(trains: dict[Any, Callable[[], float]], rounds: int, progress: Progress, what: str) -> dict[Any, float]:
    """
    A machine's speed drifts, so each round calls every one of them once.

    :param trains: By name, each to return the seconds that it took
    :param rounds: Number of rounds, after two that are not counted
    :param progress: Shows how far it is
    :param what: What is measured, to show
    :return: Median milliseconds by name
    """
    seconds: dict[Any, list[float]] = {name: [] for name in trains}
    for count in progress.track(range(-2, rounds), description=what):
        for name, train in trains.items():
            took = train()
            if count >= 0:
                seconds[name].append(took)
    return {name: 1e3 * float(np.median(each)) for name, each in seconds.items()}


def peers(options: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """
    :param options: See :func:`add_arguments`
    :param progress: Shows how far it is
    :return: Milliseconds for one train call, and their ratios
    """
    device = options.device
    apart = functools.partial(Apart, options.threads, device)
    trains = {
        FLOOR: apart(Products, device),
        "CIR, compiled": apart(cir, device, compile=True),
        "CIR, eager": apart(cir, device, compile=False),
        "CIR, compiled, bfloat16": apart(cir, device, compile=True, precision="bfloat16"),
        "SB3 SAC [512, 512], 2 gradient steps": apart(of_sb3, SAC, device, [512, 512]),
        "sb3-contrib TQC [512, 512, 512], 2 gradient steps": apart(of_sb3, TQC, device, [512, 512, 512]),
    }
    trains |= {f"{methods.label(name)} at its own sizes": apart(own_sizes, name, device) for name in options.methods}
    if options.authors:
        trains[AUTHORS] = apart(authors, options.authors, device)
    if importlib.util.find_spec("sbx") is not None:
        trains["SBX SAC SimbaPolicy, 2 gradient steps"] = apart(sbx_simba)
    if device.startswith("cuda"):
        for name, compile in (("CIR, compiled", True), ("CIR, eager", False)):
            kwargs = dict(compile=compile, replay_buffer_class=DeviceReplayBuffer)
            trains[f"{name}, DeviceReplayBuffer"] = apart(cir, device, **kwargs)
    compiling = {name: train() for name, train in progress.track(list(trains.items()), description="compiling")}
    milliseconds = interleaved(trains, options.rounds, progress, "train calls")
    ratios = {"cir_over_gemm_floor": milliseconds["CIR, compiled"] / milliseconds[FLOOR]}
    flops = Products("meta").flops
    if AUTHORS in trains:
        ratios["cir_over_authors"] = milliseconds["CIR, compiled"] / milliseconds[AUTHORS]
        ratios["bfloat16_over_authors"] = milliseconds["CIR, compiled, bfloat16"] / milliseconds[AUTHORS]
    return {
        "milliseconds": milliseconds,
        "first_call_seconds": {name: seconds for name, seconds in compiling.items() if seconds > 2},
        "floor_gflop": flops / 1e9,
        "floor_gflop_per_second": flops / 1e6 / milliseconds[FLOOR],
        **ratios,
    }


def acting(options: argparse.Namespace, progress: Progress) -> dict[str, float]:
    """
    What one step of the environment and one action for it take, on walker-walk.

    :param options: See :func:`add_arguments`
    :param progress: Shows how far it is
    :return: Milliseconds by name. The copy is the actor on the CPU, its parameters fetched anew for each action, as they would
        have to be after each train call.
    """
    env = DummyVecEnv([lambda: envs.make(TASK, seed=0)])
    model = CIR("MlpPolicy", env, buffer_size=10, device=options.device)
    copy = deepcopy(model.actor).to("cpu")
    obs = env.reset()

    def by_copy() -> None:
        with th.no_grad():
            th._foreach_copy_(list(copy.parameters()), list(model.actor.parameters()))
        copy.predict(obs)

    calls: dict[str, Train] = {
        "environment": lambda: env.step(np.array([env.action_space.sample()])),
        "predict": lambda: model.predict(obs),
        "predict by a copy on the CPU": by_copy,
    }
    return interleaved(by_the_clock(calls, options.device), 25 * options.rounds, progress, "acting")


def learn(device: str, progress: Progress, n_steps: int = 300) -> dict[str, float]:
    """
    Whole ``learn()`` at paper size on walker-walk: on a GPU compiled and with the replay buffer there, on a CPU not compiled.

    :param device: cpu or cuda
    :param progress: Shows how far it is
    :param n_steps: Steps of the agent, with one train call each
    :return: Steps of the agent a second, the share of time in ``train()``, and the peak memory of this process
    """
    on_gpu = device.startswith("cuda")
    kwargs: dict[str, Any] = dict(compile=True, replay_buffer_class=DeviceReplayBuffer) if on_gpu else dict(compile=False)
    model = CIR("MlpPolicy", envs.make(TASK, seed=0), learning_starts=BATCH, device=device, **kwargs)
    model.learn(BATCH + 5)
    with timed(model) as in_train:
        begin = time.perf_counter()
        bar = progress.add_task("learn()", total=n_steps)
        model.learn(n_steps, reset_num_timesteps=False, callback=lambda *_: progress.advance(bar) or True)
        seconds = time.perf_counter() - begin
    memory = {"peak_process_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    if on_gpu:
        memory["peak_device_mib"] = th.cuda.max_memory_allocated() / 2**20
    return {"steps_per_second": n_steps / seconds, "share_in_train": sum(in_train) / seconds, **memory}


@contextmanager
def timed(model: CIR) -> Iterator[list[float]]:
    """
    :param model: Whose train calls to time
    :return: Seconds of each call, as they are made
    """
    seconds: list[float] = []
    train = model.train

    def call(*args: Any, **kwargs: Any) -> None:
        begin = time.perf_counter()
        train(*args, **kwargs)
        if model.device.type == "cuda":
            th.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)

    model.train = call  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        del model.train


def growth(options: argparse.Namespace, progress: Progress) -> dict[str, dict[int, float]]:
    """
    :param options: See :func:`add_arguments`
    :param progress: Shows how far it is
    :return: Milliseconds by what is varied and its value, all else at paper size and not compiled: of one train call, but for
        ``n_envs`` of one step of the agent in whole ``learn()`` with one train call for each round of environments
    """
    device = options.device
    make: dict[str, Callable[[int], Train]] = {
        "width": lambda value: cir(device, width=value, compile=False),
        "depth": lambda value: cir(device, depth=value, compile=False),
        "M": lambda value: cir(device, sample_reuse=value, compile=False),
        "batch": lambda value: cir(device, batch=value, compile=False),
        "n_envs": lambda value: learning(value, device),
    }
    found = {}
    for name, values in GROWTH.items():
        trains = {value: make[name](value) for value in values}
        found[name] = interleaved(by_the_clock(trains, device), max(3, options.rounds // 3), progress, name)
    found["n_envs"] = {n_envs: each / (STEPS_IN_ROUND * n_envs) for n_envs, each in found["n_envs"].items()}
    return found


STEPS_IN_ROUND = 4


def learning(n_envs: int, device: str) -> Train:
    """
    :param n_envs: Number of environments
    :param device: cpu or cuda
    :return: Learns for :data:`STEPS_IN_ROUND` steps of each environment
    """
    env = DummyVecEnv([lambda: envs.make(TASK, seed=0)] * n_envs)
    model = CIR("MlpPolicy", env, learning_starts=BATCH, device=device, compile=False)
    model.learn(BATCH + n_envs)
    return lambda: model.learn(STEPS_IN_ROUND * n_envs, reset_num_timesteps=False)


def exponent(costs: dict[int, float], start: int = 0) -> float:
    """
    :param costs: Milliseconds by value
    :param start: Least value to look at
    :return: k of the cost ~ value^k that fits best; 1 is linear growth
    """
    values = [value for value in costs if value >= start]
    return float(np.polyfit(np.log(values), np.log([costs[value] for value in values]), 1)[0])


# --- what it shows ---


def draw_growth(found: dict[str, dict[int, float]]) -> Figure:
    """
    :param found: From :func:`growth`
    :return: One panel for each thing varied, both axes logarithmic, with a line of slope 1
    """
    with figures.styled():
        figure = Figure(figsize=(13, 2.8), layout="constrained")
        for axes, (name, costs) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
            values = list(costs)
            axes.plot(values, list(costs.values()), "o-", color=figures.PALETTE[0])
            slope = -1 if name == "n_envs" else 1
            axes.plot(values, [costs[values[-1]] * (v / values[-1]) ** slope for v in values], ls=":", color="grey", lw=1)
            axes.set(xscale="log", yscale="log", xlabel=name, xticks=values, xticklabels=values)
            axes.minorticks_off()
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.set_ylabel("ms for a step of the agent" if name == "n_envs" else "ms for a train call")
        figure.axes[0].set_title("dotted: proportional", fontsize=8, color="grey", loc="left")
    return figure


def as_text(found: dict[str, Any]) -> str:
    """
    :param found: All that was measured
    :return: The same in Markdown
    """
    parts = [", ".join(f"{key} {value}" for key, value in found["machine"].items())]
    if "milliseconds" in found:
        milliseconds = found["milliseconds"]
        rows = [
            {"one train call": name, "ms": f"{each:.1f}"}
            | {f"× {base}": f"{each / milliseconds[base]:.2f}" for base in (FLOOR, AUTHORS) if base in milliseconds}
            | {"first call, s": f"{found['first_call_seconds'][name]:.0f}" if name in found["first_call_seconds"] else ""}
            for name, each in milliseconds.items()
        ]
        parts.append(pd.DataFrame(rows).to_markdown(index=False, disable_numparse=True))
        parts.append(f"{FLOOR}: {found['floor_gflop']:.1f} GFLOP, {found['floor_gflop_per_second']:.0f} GFLOP/s")
    if "acting" in found:
        parts.append("ms on walker-walk: " + ", ".join(f"{name} {each:.3f}" for name, each in found["acting"].items()))
    if "learn" in found:
        parts.append("learn() on walker-walk: " + ", ".join(f"{key} {value:.3g}" for key, value in found["learn"].items()))
    for name, costs in found.get("growth", {}).items():
        row = {name: "ms"} | {str(value): f"{each:.1f}" for value, each in costs.items()}
        row["exponent"] = f"{exponent(costs, start=256 if name == 'batch' else 0):.2f}"
        parts.append(pd.DataFrame([row]).to_markdown(index=False, disable_numparse=True))
    return "\n\n".join(parts)
