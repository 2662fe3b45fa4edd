"""
A trained policy as one file that runs without this package, on a robot for instance::

    python -m sb3_cir.export model.zip policy.onnx --vecnormalize normalization.safetensors

The file takes observations as the environment gives them and returns deterministic actions as the environment takes them.
Only the channels of images come first, as SB3 puts them before the policy: ``(batch, channels, height, width)``.
The normalisation of observations is in it, the network, the squashing, and the scaling to the action's bounds. Each time, it
is compared with ``model.predict`` before it is written.

The suffix says what is written: ``.onnx`` for ONNX Runtime (needs the ``export`` extra), ``.pt`` for libtorch in C++
(TorchScript), ``.pt2`` for ``torch.export.load``.
"""

import argparse
import contextlib
import importlib
import io
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space, is_image_space_channels_first
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch import nn
from torch.distributions import Distribution

from sb3_cir import __version__, methods
from sb3_cir.baselines.simba import RSNorm
from sb3_cir.extras import install_hint
from sb3_cir.runs import archive, files, normalization
from sb3_cir.runs.plain import NormalizerSettings
from sb3_cir.words import did_you_mean, first_line

TOLERANCE = 1e-5
CHECKED = (1, 64, 7)  # batch sizes; the network is traced with another one, 2
NOTE = "sb3_cir.json"
ACTION, OBSERVATION = "action", "observation"

Arrays = dict[str, np.ndarray]
Run = Callable[[Arrays], np.ndarray]


@dataclass(frozen=True)
class Traced:
    """
    A policy in one of the formats.

    :param content: The file's bytes
    :param run: What they compute: observations by name, ``(batch, ...)`` each, to actions
    """

    content: bytes
    run: Run


class DeterministicPolicy(nn.Module):
    """
    Observations to actions, both in the environment's own units.

    :param model: A model
    :param normalizer: What normalised its observations while it learned, if anything did
    """

    low: th.Tensor
    high: th.Tensor

    def __init__(self, model: BaseAlgorithm, normalizer: VecNormalize | None):
        super().__init__()
        policy = model.policy
        assert isinstance(model.action_space, spaces.Box)
        plain = type(policy)._predict in (SACPolicy._predict, TD3Policy._predict)
        self.network: Any = policy.actor if plain else policy  # without the critics, where they take no part
        self.squashed = policy.squash_output
        self.action_shape = model.action_space.shape
        self.names = inputs(model.observation_space)
        self.is_dict = isinstance(model.observation_space, spaces.Dict)
        self.normalized: list[str] = []
        self.clip = 0.0
        statistics = _statistics(normalizer)
        if normalizer is not None and statistics:
            self.clip = float(normalizer.clip_obs)
            self.normalized = list(statistics)
            for index, each in enumerate(statistics.values()):
                # In double precision, as VecNormalize computes.
                self.register_buffer(f"mean_{index}", th.as_tensor(each.mean, dtype=th.float64))
                self.register_buffer(f"std_{index}", th.as_tensor(np.sqrt(each.var + normalizer.epsilon), dtype=th.float64))
        self.register_buffer("low", th.as_tensor(model.action_space.low))
        self.register_buffer("high", th.as_tensor(model.action_space.high))

    def forward(self, *observations: th.Tensor) -> th.Tensor:
        """
        :param observations: ``(batch, ...)`` each, in the order of ``names``
        :return: Actions, ``(batch, ...)``
        """
        named = {name: self._normalize(name, each) for name, each in zip(self.names, observations, strict=True)}
        actions: th.Tensor = self.network._predict(named if self.is_dict else named[OBSERVATION], deterministic=True)
        actions = actions.reshape(-1, *self.action_shape)
        if self.squashed:
            return self.low + 0.5 * (actions + 1.0) * (self.high - self.low)
        return th.minimum(th.maximum(actions, self.low), self.high)

    def _normalize(self, name: str, observation: th.Tensor) -> th.Tensor:
        if name not in self.normalized:
            return observation
        index = self.normalized.index(name)
        mean, std = self.get_buffer(f"mean_{index}"), self.get_buffer(f"std_{index}")
        return ((observation.double() - mean) / std).clamp(-self.clip, self.clip).float()


def inputs(space: spaces.Space[Any]) -> dict[str, spaces.Space[Any]]:
    """
    :param space: An observation space
    :return: The inputs of an exported policy by name, each with its space
    """
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {OBSERVATION: space}


def description(model: BaseAlgorithm, normalizer: VecNormalize | None) -> dict[str, Any]:
    """
    :param model: A model
    :param normalizer: What normalised its observations, if anything did
    :return: What the file says of itself: names, shapes (without the batch), dtypes, axes of images, and the bounds of actions
    """
    space = model.action_space
    assert isinstance(space, spaces.Box)
    return {
        "inputs": [
            {"name": name, "shape": list(each.shape or ()), "dtype": np.dtype(each.dtype).name} | _layout(each)
            for name, each in inputs(model.observation_space).items()
        ],
        "output": {
            "name": ACTION,
            "shape": list(space.shape),
            "dtype": np.dtype(space.dtype).name,
            "low": space.low.tolist(),
            "high": space.high.tolist(),
        },
        "observations_normalized_inside": normalizer is not None and normalizer.norm_obs,
        "algorithm": type(model).__name__,
        "sb3_cir": __version__,
    }


def _layout(space: spaces.Space[Any]) -> dict[str, str]:
    """What the axes of an image are: a policy's need not be the environment's."""
    if isinstance(space, spaces.Box) and is_image_space(space):
        return {"axes": "channels, height, width" if is_image_space_channels_first(space) else "height, width, channels"}
    return {}


def export(model: BaseAlgorithm, path: str | Path, normalizer: VecNormalize | None = None) -> float:
    """
    Write a policy to a file. Nothing is written if it computes anything else than ``model.predict(..., deterministic=True)``.

    :param model: A model with continuous actions, on the CPU
    :param path: The file; its suffix is one of :data:`FORMATS`. Folders are made.
    :param normalizer: What normalised its observations while it learned. Default: the model's environment's, if it has one
    :return: The largest difference from ``model.predict`` over random observations. Of an actor that ends in tanh: in units of
        half the action's range, or in the action's own where that is less than 1. Of any other: relative to actions beyond 1
    :raises ValueError: If the suffix is none of these, if the policy cannot be exported, or if the difference is larger than
        1e-5. The sentence says which part it is.
    :raises ImportError: If the extra is not installed.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ValueError(f"{path}: the suffix must be one of {', '.join(FORMATS)}.")
    if not isinstance(model.action_space, spaces.Box):
        raise ValueError(f"The action space is {model.action_space}: policies with a Box of actions can be exported.")
    if model.device.type != "cpu":
        raise ValueError(f"The model is on {model.device}: load it with device='cpu' to export it.")
    normalizer = normalizer or model.get_vec_normalize_env()
    learned_with: NormalizerSettings | None = getattr(model, "_normalization", None)
    if normalizer is None and learned_with is not None and learned_with.norm_obs:
        warnings.warn(
            "The model learned with VecNormalize, whose statistics are not given: the exported policy takes observations that "
            "are normalised already. Pass normalizer=..., on the command line --vecnormalize.",
            stacklevel=2,
        )
    model.policy.set_training_mode(False)
    module = DeterministicPolicy(model, normalizer).eval()
    note = json.dumps(description(model, normalizer))
    example = tuple(th.as_tensor(each) for each in _random(model, normalizer, 2).values())
    with _traceable():
        traced = FORMATS[path.suffix](module, example, note)
    difference = max(_difference(model, normalizer, traced.run, size) for size in CHECKED)
    if not difference <= TOLERANCE:
        raise ValueError(
            f"{path}: actions differ from model.predict by {difference:.3g}, {TOLERANCE:g} is allowed. Something in the "
            f"policy ({type(model.policy).__name__}, {_extractor(module)}) depends on more than the observation, or decides "
            "by the numbers in it. Nothing was written."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_whole(path, traced.content)
    return difference


def _extractor(module: DeterministicPolicy) -> str:
    actor = getattr(module.network, "actor", module.network)
    return type(actor.features_extractor).__name__


def _difference(model: BaseAlgorithm, normalizer: VecNormalize | None, run: Run, size: int) -> float:
    observations = _random(model, normalizer, size)
    given: Any = observations if isinstance(model.observation_space, spaces.Dict) else observations[OBSERVATION]
    expected, _ = model.predict(given if normalizer is None else normalizer.normalize_obs(given), deterministic=True)
    found = run(observations)
    if found.shape != expected.shape:
        raise ValueError(f"For {size} observations the exported policy gives actions of shape {found.shape}.")
    assert isinstance(model.action_space, spaces.Box)
    # A policy that squashes its actions spreads them over the range; others, such as PPO's, know nothing of it.
    half = (model.action_space.high - model.action_space.low) / 2
    unit = np.maximum(1, half if model.policy.squash_output else np.abs(expected))
    return float(np.max(np.abs(found - expected) / unit))


def _random(model: BaseAlgorithm, normalizer: VecNormalize | None, size: int) -> Arrays:
    """:return: ``size`` observations by name, spread as far as those that the normalisations have seen"""
    spreads = [_seen_by_policy(model), _seen_by(normalizer)]
    rng = np.random.default_rng(size)

    def one(name: str, space: spaces.Space[Any]) -> np.ndarray:
        if not (isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)):
            return np.array([space.sample() for _ in range(size)], space.dtype)
        x = 2 * rng.standard_normal((size, *space.shape))
        for mean, std in (spread[name] for spread in spreads if name in spread):
            x = mean + std * x
        return np.clip(x, space.low, space.high).astype(space.dtype)

    return {name: one(name, space) for name, space in inputs(model.observation_space).items()}


def _statistics(normalizer: VecNormalize | None) -> dict[str, RunningMeanStd]:
    """:return: Those of observations by name, none where nothing normalises them"""
    if normalizer is None or not normalizer.norm_obs:
        return {}
    return normalizer.obs_rms if isinstance(normalizer.obs_rms, dict) else {OBSERVATION: normalizer.obs_rms}


def _seen_by(normalizer: VecNormalize | None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """:return: Mean and standard deviation of observations by name, none where nothing normalises them"""
    return {name: (each.mean, np.sqrt(each.var)) for name, each in _statistics(normalizer).items()}


def _seen_by_policy(model: BaseAlgorithm) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The same of RSNorm, which keeps one vector of all entries."""
    extractor = getattr(getattr(model.policy, "actor", None), "features_extractor", None)
    if not isinstance(extractor, RSNorm):
        return {}
    shapes = inputs(model.observation_space)
    ends = np.cumsum([get_flattened_obs_dim(space) for space in shapes.values()])[:-1]
    vectors = (np.split(each.cpu().numpy(), ends) for each in (extractor.mean, extractor.var.sqrt()))
    return {
        name: (mean.reshape(space.shape), std.reshape(space.shape))
        for (name, space), mean, std in zip(shapes.items(), *vectors, strict=True)
        if isinstance(space, spaces.Box)
    }


@contextlib.contextmanager
def _traceable() -> Iterator[None]:
    """Distributions check their arguments by looking at the numbers, which no graph can do; tracers warn of what they do."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        with warnings.catch_warnings(), th.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        Distribution.set_default_validate_args(before)


# Formats


def _exported(module: DeterministicPolicy, example: tuple[th.Tensor, ...]) -> Any:
    sizes = (tuple({0: th.export.Dim("batch")} for _ in example),)
    part: list[str] = []
    hooks = [hook for name, each in module.named_modules() if name for hook in _watched(each, name, part)]
    try:
        return th.export.export(module, example, dynamic_shapes=sizes, strict=False)
    except Exception as error:  # the tracer raises what it likes
        name = part[-1] if part else "network"
        what = type(module.get_submodule(name)).__name__
        raise ValueError(f"The policy cannot be exported: the graph ends in {name} ({what}): {first_line(error)}") from error
    finally:
        for hook in hooks:
            hook.remove()


def _watched(module: nn.Module, name: str, part: list[str]) -> list[Any]:
    """Note the name of the module that is at work: the last one is where the tracer fails."""
    return [
        module.register_forward_pre_hook(lambda *_: part.append(name)),
        module.register_forward_hook(lambda *_: part.remove(name)),
    ]


def _to_onnx(module: DeterministicPolicy, example: tuple[th.Tensor, ...], note: str) -> Traced:
    try:
        onnx, runtime = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
        importlib.import_module("onnxscript")
    except ImportError as error:
        raise ImportError(f"To write ONNX needs {error.name}: {install_hint('export')}") from error
    names = list(module.names)
    if ACTION in names:
        raise ValueError(f"An entry of the observations is called {ACTION!r}, as the output is: ONNX cannot have both.")
    program = th.onnx.export(
        _exported(module, example), (), input_names=names, output_names=[ACTION], dynamo=True, verbose=False
    )
    assert program is not None
    proto = program.model_proto
    onnx.helper.set_model_props(proto, {NOTE: note})
    content = proto.SerializeToString()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return Traced(content, lambda observations: session.run([ACTION], {name: observations[name] for name in names})[0])


def _to_torch_export(module: DeterministicPolicy, example: tuple[th.Tensor, ...], note: str) -> Traced:
    buffer = io.BytesIO()
    th.export.save(_exported(module, example), buffer, extra_files={NOTE: note})
    return Traced(buffer.getvalue(), _run(th.export.load(io.BytesIO(buffer.getvalue())).module(), module.names))


def _to_torchscript(module: DeterministicPolicy, example: tuple[th.Tensor, ...], note: str) -> Traced:
    _exported(module, example)  # tracing would leave out what depends on numbers, without a word
    buffer = io.BytesIO()
    jit: Any = th.jit
    jit.save(jit.freeze(jit.trace(module, example, check_trace=False)), buffer, _extra_files={NOTE: note})
    return Traced(buffer.getvalue(), _run(jit.load(io.BytesIO(buffer.getvalue())), module.names))


def _run(module: Any, names: dict[str, spaces.Space[Any]]) -> Run:
    def run(observations: Arrays) -> np.ndarray:
        with th.no_grad():
            actions: np.ndarray = module(*(th.as_tensor(observations[name]) for name in names)).numpy()
        return actions

    return run


FORMATS: dict[str, Callable[[DeterministicPolicy, tuple[th.Tensor, ...], str], Traced]] = {
    ".onnx": _to_onnx,
    ".pt": _to_torchscript,
    ".pt2": _to_torch_export,
}


# The command line


class _OnlySpaces(gym.Env[Any, Any]):
    """An environment that is asked for its spaces alone."""

    def __init__(self, model: BaseAlgorithm):
        self.observation_space, self.action_space = model.observation_space, model.action_space


def load(path: str | Path, algo: str | None = None, trusted: bool = False) -> BaseAlgorithm:
    """
    :param path: A saved model
    :param algo: RL Zoo's name of its algorithm; files of this version say it themselves.
    :param trusted: Whether pickles in it are read, which can run any code
    :return: The model, on the CPU
    :raises ValueError: If it cannot be read, or does not say of which algorithm it is.
    """
    kinds: dict[str, Any] = {name: methods.algorithm(name) for name in methods.ours()}
    if algo is not None and algo not in kinds:
        raise ValueError(f"--algo {algo}: {did_you_mean(algo, list(kinds))}")
    path = files.find(path, ".zip")
    if algo is None:
        members = files.unpack_archive(files.read_regular(Path(path)), str(path))
        said = files.read_json(members.get(archive.MANIFEST, b"{}"), str(path)).get("algorithm")
        algo = next((name for name, kind in kinds.items() if kind.__name__ == said), None)
        if algo is None and said is not None:
            raise ValueError(
                f"{path} is of a {said}, which is no class of this package: load it in Python and call "
                "sb3_cir.export.export(model, path)."
            )
        if algo is None:
            raise ValueError(
                f"{path} does not say of which algorithm it is. If it is one of this package's, pass --algo with one of "
                f"{', '.join(kinds)}. If it is another's, load it in Python and call sb3_cir.export.export(model, path)."
            )
    # Without the replay buffer that it learned with: HER's needs an environment.
    plain: dict[str, Any] = dict(buffer_size=1, replay_buffer_class=None, replay_buffer_kwargs={}, optimize_memory_usage=False)
    model: BaseAlgorithm = kinds[algo].load(path, device="cpu", trusted=trusted, **plain)
    return model


def main(argv: list[str] | None = None) -> None:
    """
    Run ``python -m sb3_cir.export``.

    :param argv: The command line
    """
    parser = argparse.ArgumentParser(prog="python -m sb3_cir.export", description="Write a policy to a file of its own.")
    parser.add_argument("model", help="a saved model, model.zip")
    parser.add_argument("path", help=f"where to: a file with one of the suffixes {', '.join(FORMATS)}")
    parser.add_argument("--vecnormalize", help="the statistics of VecNormalize, if the model learned with it")
    parser.add_argument("--algo", help="RL Zoo's name of the algorithm, for models that do not say it")
    parser.add_argument("--trusted", action="store_true", help="read pickles, which can run any code")
    options = parser.parse_args(argv)
    try:
        statistics = options.vecnormalize or _statistics_beside(Path(options.model))
        model = load(options.model, options.algo, options.trusted)
        normalizer = None
        if statistics:
            venv = DummyVecEnv([lambda: _OnlySpaces(model)])
            normalizer = normalization.load(statistics, venv, options.trusted)
            print(f"Observations are normalised as {statistics} says.")
        difference = export(model, options.path, normalizer)
    except (ImportError, OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error
    print(f"{options.path}: actions differ from model.predict by at most {difference:.2g}.")


def _statistics_beside(model: Path) -> Path | None:
    """Those that RL Zoo saved of the run that a model is of: without them the policy would act on other observations."""
    found = sorted(model.parent.glob("*/vecnormalize.pkl"))
    if len(found) > 1:
        raise ValueError(f"{model}: pass --vecnormalize with one of {', '.join(map(str, found))}.")
    return found[0] if found else None


if __name__ == "__main__":
    main()
