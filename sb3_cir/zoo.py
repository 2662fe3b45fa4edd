"""
CIR and the methods it is compared with in RL Zoo: ``python -m rl_zoo3.train --algo cir --env ...``. This file alone knows
rl_zoo3.
"""

import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sb3_cir.baselines import SACTanh, SACTanhNorm, SimBa, SimBaSMR
from sb3_cir.baselines.darc import DARC
from sb3_cir.baselines.par import PAR
from sb3_cir.baselines.two_domain_sac import TwoDomainSAC
from sb3_cir.buffers import DeviceReplayBuffer, RecencyDictReplayBuffer, RecencyReplayBuffer
from sb3_cir.callbacks import Checkpoint
from sb3_cir.checkpoint import Resumable, is_checkpoint
from sb3_cir.cir import CIR
from sb3_cir.off_dynamics import TwoDomainReplayBuffer
from sb3_cir.smr import SMR

ALGOS: dict[str, type[BaseAlgorithm]] = {
    "cir": CIR,
    "sac_smr": SMR,
    "sac_tanh": SACTanh,
    "sac_tanh_norm": SACTanhNorm,
    "simba": SimBa,
    "simba_smr": SimBaSMR,
}
OFF_DYNAMICS: dict[str, type[BaseAlgorithm]] = {"odrl_sac": TwoDomainSAC, "darc": DARC, "par": PAR}
ALGOS |= OFF_DYNAMICS
REPLAY_BUFFERS = (TwoDomainReplayBuffer, DeviceReplayBuffer, RecencyReplayBuffer, RecencyDictReplayBuffer)

# Whose yaml an algorithm has that has no settings of its own.
YAML_OF = {"sac_tanh": "sac_smr", "sac_tanh_norm": "sac_smr", "simba_smr": "simba"}

# In a wheel the folder lies inside the package, in a checkout beside it.
_PLACES = [parent / "hyperparams" for parent in (Path(__file__).parent, Path(__file__).parent.parent)]
HYPERPARAMS = next((place for place in _PLACES if place.is_dir()), _PLACES[0])


def register() -> None:
    """Make our algorithms known to RL Zoo in this process; an installed package has done it already (see ``zoo_hook.py``)."""
    for name in _AMENDMENTS:
        amend(importlib.import_module(name))


def amend(module: ModuleType) -> None:
    """
    Add what our algorithms need to one of RL Zoo's modules.

    :param module: One of ``rl_zoo3.utils``, ``rl_zoo3.hyperparams_opt`` and ``rl_zoo3.exp_manager``
    """
    _AMENDMENTS[module.__name__](module)


def _add_algorithms(utils: ModuleType) -> None:
    utils.ALGOS.update(ALGOS)


def _add_search_spaces(hyperparams_opt: ModuleType) -> None:
    samplers, converters = hyperparams_opt.HYPERPARAMS_SAMPLER, hyperparams_opt.HYPERPARAMS_CONVERTER
    samplers["cir"], converters["cir"] = functools.partial(sample_cir_params, hyperparams_opt), convert_cir_params
    for algo in ("simba", "simba_smr"):
        samplers[algo], converters[algo] = sample_simba_params, convert_simba_params
    for algo in ("sac_smr", "sac_tanh", "sac_tanh_norm", *OFF_DYNAMICS):
        samplers[algo], converters[algo] = samplers["sac"], converters["sac"]


Method = Callable[..., Any]


def _with_our_yaml(init: Method) -> Method:
    """
    RL Zoo looks for ``<algo>.yml`` in its own folder. Ours is meant for our algorithms, and for another's where only ours has
    the environment.
    """
    signature = inspect.signature(init)
    zoo_folder = Path(inspect.getfile(init)).parent

    def amended(*args: Any, **kwargs: Any) -> None:
        arguments = signature.bind(*args, **kwargs).arguments
        algo, env_id = arguments["algo"], arguments["env_id"]
        ours, theirs = HYPERPARAMS / f"{YAML_OF.get(algo, algo)}.yml", zoo_folder / "hyperparams" / f"{algo}.yml"
        is_ours = algo in ALGOS or (_has(ours, env_id) and not _has(theirs, env_id))
        if arguments.get("config") is None and is_ours:
            arguments["config"] = str(ours)
        init(**arguments)

    return amended


def _with_workers_gone(learn: Method) -> Method:
    """
    Ctrl-C reaches the worker processes of environments too. Where they are gone first, RL Zoo fails to close them and does
    not come to saving the model, which is its next step.
    """

    def amended(self: Any, model: BaseAlgorithm) -> None:
        try:
            learn(self, model)
        except (BrokenPipeError, ConnectionResetError) as error:
            # With a context, learning itself had failed before.
            if self.algo not in ALGOS or error.__context__ is not None:
                raise

    return amended


class _SavedWithSuffix:
    """A model that adds ``.zip`` to the path it is saved to."""

    def __init__(self, model: BaseAlgorithm):
        self._model = model

    def save(self, path: str) -> None:
        self._model.save(f"{path}.zip")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _with_suffix(save: Method) -> Method:
    """RL Zoo leaves ``.zip`` to SB3, which takes the end of ``odrl/walker2d-friction-0.5-v0`` for a suffix and adds none."""

    def amended(self: Any, model: BaseAlgorithm) -> None:
        save(self, _SavedWithSuffix(model))

    return amended


def _with_checkpoints(create_callbacks: Method) -> Method:
    """``--save-freq`` saves all that a run needs to go on where the algorithm can be resumed, not the model alone."""

    def amended(self: Any) -> None:
        every = self.save_freq
        if every <= 0 or not _is_resumable(self.algo):
            create_callbacks(self)
            return
        self.save_freq = -1
        create_callbacks(self)
        self.callbacks.append(Checkpoint(every, Path(self.save_path) / "checkpoints", verbose=1))

    return amended


def _from_checkpoints(load: Method) -> Method:
    """``--trained-agent`` takes a checkpoint too: the model is made from the yaml, as ever, and goes on from there."""

    def amended(self: Any, hyperparams: dict[str, Any], env: VecEnv) -> BaseAlgorithm:
        path = Path(self.trained_agent)
        if not (is_checkpoint(path) and _is_resumable(self.algo)):
            loaded: BaseAlgorithm = load(self, hyperparams, env)
            return loaded
        algorithm: Any = ALGOS[self.algo]
        model: Resumable = algorithm(
            env=env,
            tensorboard_log=self.tensorboard_log,
            seed=self.seed,
            verbose=self.verbose,
            device=self.device,
            **hyperparams,
        )
        model.restore(path)
        print(f"Continuing at step {model.num_timesteps} of {self.n_timesteps}, from {path.parent}")
        return model

    return amended


def _is_resumable(algo: str) -> bool:
    return issubclass(ALGOS.get(algo, BaseAlgorithm), Resumable)


_METHODS: dict[str, Callable[[Method], Method]] = {
    "__init__": _with_our_yaml,
    "learn": _with_workers_gone,
    "save_trained_model": _with_suffix,
    "create_callbacks": _with_checkpoints,
    "_load_pretrained_agent": _from_checkpoints,
}


def _amend_exp_manager(exp_manager: ModuleType) -> None:
    # RL Zoo evaluates a yaml's replay_buffer_class among this module's names.
    vars(exp_manager).update({buffer.__name__: buffer for buffer in REPLAY_BUFFERS})
    manager = exp_manager.ExperimentManager
    for name, amended in _METHODS.items():
        method = getattr(manager, name)
        if not hasattr(method, "__wrapped__"):  # once is enough
            setattr(manager, name, functools.wraps(method)(amended(method)))


_AMENDMENTS = {
    "rl_zoo3.utils": _add_algorithms,
    "rl_zoo3.hyperparams_opt": _add_search_spaces,
    "rl_zoo3.exp_manager": _amend_exp_manager,
}


def _has(hyperparams: Path, env_id: str) -> bool:
    return hyperparams.is_file() and env_id in yaml.safe_load(hyperparams.read_text(encoding="utf-8"))


def sample_cir_params(
    zoo: ModuleType, trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any]
) -> dict[str, Any]:
    """
    CIR's search space for ``-optimize``: what the paper's parameter studies vary, and SAC's usual ones around them.

    :param zoo: RL Zoo's ``hyperparams_opt``
    :param trial: The Optuna trial
    :param n_actions: Size of the action
    :param n_envs: Number of environments
    :param additional_args: Whether a ``HerReplayBuffer`` is used, and its arguments
    :return: Arguments for CIR
    """
    sampled = {
        **_sample_usual_params(trial),
        "convex_coef": trial.suggest_float("convex_coef", 0.0, 1.0),
        "sample_reuse": trial.suggest_int("sample_reuse", 1, 4),
        "width": trial.suggest_categorical("width", [128, 256, 512]),
        "depth": trial.suggest_int("depth", 1, 3),
        "avg_r_norm_coef": trial.suggest_float("avg_r_norm_coef", 0.01, 1.0, log=True),
    }
    if additional_args["using_her_replay_buffer"]:
        sampled = zoo.sample_her_params(trial, sampled, additional_args["her_kwargs"])
    return _as_arguments(trial, convert_cir_params(sampled))


def convert_cir_params(sampled: dict[str, Any]) -> dict[str, Any]:
    """
    :param sampled: A trial's values, by the names in :func:`sample_cir_params`
    :return: Arguments for CIR
    """
    params = _convert_usual_params(sampled)
    width = params.pop("width")
    params["policy_kwargs"] = dict(
        net_arch=dict(pi=[width, width], qf=[width] * params.pop("depth")), avg_r_norm_coef=params.pop("avg_r_norm_coef")
    )
    return params


def sample_simba_params(trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """
    SimBa's search space for ``-optimize``: SAC's usual one, and the size of the networks in residual blocks.

    :param trial: The Optuna trial
    :param n_actions: Size of the action
    :param n_envs: Number of environments
    :param additional_args: Not used
    :return: Arguments for SimBa
    """
    sampled = {
        **_sample_usual_params(trial),
        "actor_width": trial.suggest_categorical("actor_width", [64, 128, 256]),
        "critic_width": trial.suggest_categorical("critic_width", [128, 256, 512]),
        "critic_blocks": trial.suggest_int("critic_blocks", 1, 3),
    }
    return _as_arguments(trial, convert_simba_params(sampled))


def convert_simba_params(sampled: dict[str, Any]) -> dict[str, Any]:
    """
    :param sampled: A trial's values, by the names in :func:`sample_simba_params`
    :return: Arguments for SimBa
    """
    params = _convert_usual_params(sampled)
    critic = [params.pop("critic_width")] * params.pop("critic_blocks")
    params["policy_kwargs"] = dict(net_arch=dict(pi=[params.pop("actor_width")], qf=critic))
    return params


def _sample_usual_params(trial: Any) -> dict[str, Any]:
    return {
        "one_minus_gamma": trial.suggest_float("one_minus_gamma", 0.001, 0.05, log=True),
        "learning_rate": trial.suggest_float("learning_rate", 1e-5, 2e-3, log=True),
        "batch_size_pow": trial.suggest_int("batch_size_pow", 5, 10),
        "tau": trial.suggest_float("tau", 0.001, 0.05, log=True),
    }


def _convert_usual_params(sampled: dict[str, Any]) -> dict[str, Any]:
    params = dict(sampled)
    params["gamma"] = 1 - params.pop("one_minus_gamma")
    params["batch_size"] = 2 ** params.pop("batch_size_pow")
    return params


def _as_arguments(trial: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Have Optuna's reports show these as they are used."""
    for name in ("gamma", "batch_size"):
        trial.set_user_attr(name, params[name])
    return params
