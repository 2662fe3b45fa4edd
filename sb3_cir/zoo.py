"""
CIR and the methods it is compared with in RL Zoo: ``python -m rl_zoo3.train --algo cir --env ...``. This file,
``zoo_search.py``, ``zoo_hook.py`` and ``hub.py`` alone import or amend RL Zoo.

**Folders from other people.** ``enjoy``, ``record_video`` and ``push_to_hub`` run what a downloaded folder says, whatever the
algorithm: RL Zoo reads ``config.yml`` and ``args.yml`` with a loader that makes any Python object, evaluates the value of
``normalize``, calls what ``env_wrapper`` and ``vec_env_wrapper`` name, and unpickles the model's own pickles. It unpickles
``vecnormalize.pkl`` too, where that is a pickle: ours is none, whatever its name. No one setting makes this safe. The safe way
is to leave the folder's settings alone and to load the model by itself: ``CIR.load("model.zip", trusted=False)``, in an
environment that you make.
"""

import functools
import importlib
import inspect
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import yaml
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize
from torch import nn

from sb3_cir import hub, methods, zoo_search
from sb3_cir.baselines.parts import ReturnScale
from sb3_cir.baselines.simba import RSNorm
from sb3_cir.buffers import DeviceReplayBuffer, RecencyDictReplayBuffer, RecencyReplayBuffer
from sb3_cir.callbacks import Checkpoint
from sb3_cir.off_dynamics import TwoDomainReplayBuffer
from sb3_cir.runs import normalization
from sb3_cir.runs.algorithm import Resumable, resumable
from sb3_cir.runs.files import checkpoints, is_checkpoint

ALGOS: dict[str, type[BaseAlgorithm]] = {name: methods.algorithm(name) for name in methods.ours()}
REPLAY_BUFFERS = (TwoDomainReplayBuffer, DeviceReplayBuffer, RecencyReplayBuffer, RecencyDictReplayBuffer)

Function = Callable[..., Any]

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

    :param module: One of ``rl_zoo3.utils``, ``rl_zoo3.hyperparams_opt``, ``rl_zoo3.exp_manager`` and ``rl_zoo3.callbacks``
    """
    _AMENDMENTS[module.__name__](module)


def _add_algorithms(utils: ModuleType) -> None:
    utils.ALGOS.update(ALGOS)
    hub.repair()
    for name, amended in (("get_model_path", _to_be_played), ("create_test_env", _with_word_on_episodes)):
        function = getattr(utils, name)
        if not hasattr(function, "__wrapped__"):  # once is enough
            new = functools.wraps(function)(amended(function, utils))
            for module in (utils, sys.modules["rl_zoo3"]):  # which has some of the names too, once it is imported
                if hasattr(module, name):
                    setattr(module, name, new)


class _Played:
    """
    One of our algorithms while RL Zoo loads a model to play, film or publish it.

    RL Zoo asks for no memory for transitions then, but only from the algorithms on a list of its own, which lacks ours.

    :param algo: RL Zoo's name of the algorithm
    :param utils: RL Zoo's ``utils``, which has this object in the algorithm's place until the model is loaded
    :param publishes: Whether the program is ``push_to_hub``
    """

    def __init__(self, algo: str, utils: ModuleType, publishes: bool):
        self.algo = algo
        self.utils = utils
        self.publishes = publishes

    def load(self, path: str, **kwargs: Any) -> "BaseAlgorithm | _Published":
        self.utils.ALGOS[self.algo] = ALGOS[self.algo]
        model: BaseAlgorithm = ALGOS[self.algo].load(path, **{"buffer_size": 1, **kwargs})
        return _Published(model, path) if self.publishes else model


def _to_be_played(get_model_path: Function, utils: ModuleType) -> Function:
    """
    RL Zoo's programs that load a model ask for its path first, and the one that trains does not. Others who ask go on to
    train, or have no use for a stand-in.
    """

    def amended(exp_id: int, folder: str, algo: str, env_name: Any, *args: Any, **kwargs: Any) -> Any:
        found = get_model_path(exp_id, folder, algo, env_name, *args, **kwargs)
        program = sys._getframe(1).f_globals
        if algo in ALGOS and getattr(program.get("__spec__"), "name", "").startswith("rl_zoo3."):
            publishes = "save_model_card" in program
            utils.ALGOS[algo] = _Played(algo, utils, publishes)
            if publishes:
                card = hub.with_our_part(program["save_model_card"], algo, env_name.gym_id, Path(found[1]))
                program["save_model_card"] = card
        return found

    return amended


class _SaysIfNoEpisodeEnds(VecEnvWrapper):
    """RL Zoo's ``enjoy`` prints what an episode earned when it ends, and nothing if none does."""

    def __init__(self, venv: VecEnv):
        super().__init__(venv)
        self.steps = 0
        self.has_ended = False

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        results = self.venv.step_wait()
        self.steps += 1
        self.has_ended = self.has_ended or bool(results[2].any())
        return results

    def close(self) -> None:
        if self.steps and not self.has_ended:
            print(f"No episode ended within {self.steps} steps, so there is no return to print. -n sets the number of steps.")
        super().close()


class PlainVecNormalize(VecNormalize):
    """
    ``VecNormalize`` whose statistics are saved without a pickle: see :mod:`sb3_cir.runs.normalization`.

    RL Zoo names the file, ``vecnormalize.pkl``, looks for it by that name and publishes it by that name. What is in it is seen
    from its first byte.
    """

    def save(self, save_path: str) -> None:
        normalization.save(self, save_path)

    @staticmethod
    def load(load_path: str, venv: VecEnv) -> "PlainVecNormalize":
        loaded = normalization.load(load_path, venv, trusted=True, kind=PlainVecNormalize)
        assert isinstance(loaded, PlainVecNormalize)
        return loaded


def _choose_normalizer(module: ModuleType, ours: bool) -> None:
    """One of RL Zoo's modules wraps environments in the ``VecNormalize`` that it finds among its names."""
    vars(module)["VecNormalize"] = PlainVecNormalize if ours else VecNormalize


def _with_plain_statistics(maybe_normalize: Function) -> Function:
    def amended(self: Any, *args: Any, **kwargs: Any) -> VecEnv:
        _choose_normalizer(sys.modules[maybe_normalize.__module__], self.algo in ALGOS)
        env: VecEnv = maybe_normalize(self, *args, **kwargs)
        return env

    return amended


def _with_word_on_episodes(create_test_env: Function, utils: ModuleType) -> Function:
    def amended(*args: Any, **kwargs: Any) -> VecEnv:
        ours = any(isinstance(algorithm, _Played) for algorithm in utils.ALGOS.values())
        _choose_normalizer(utils, ours)
        env: VecEnv = create_test_env(*args, **kwargs)
        return _SaysIfNoEpisodeEnds(env) if ours else env

    return amended


def _add_search_spaces(hyperparams_opt: ModuleType) -> None:
    samplers, converters = hyperparams_opt.HYPERPARAMS_SAMPLER, hyperparams_opt.HYPERPARAMS_CONVERTER
    for algo in ALGOS:
        like = methods.METHODS[algo].search_space
        if like in zoo_search.SPACES:
            sample, convert = zoo_search.SPACES[like]
            samplers[algo], converters[algo] = functools.partial(sample, hyperparams_opt), convert
        else:  # RL Zoo's own
            samplers[algo], converters[algo] = samplers[like], converters[like]


def yaml_of(algo: str) -> Path:
    """
    :param algo: RL Zoo's name of an algorithm
    :return: Where our yaml for it is, if there is one: some share a sibling's
    """
    sibling = methods.METHODS[algo].hyperparams if algo in methods.METHODS else ""
    return HYPERPARAMS / f"{sibling or algo}.yml"


def _with_our_yaml(init: Function) -> Function:
    """
    RL Zoo looks for ``<algo>.yml`` in its own folder. Ours is meant for our algorithms, and for another's where only ours has
    the environment.
    """
    signature = inspect.signature(init)
    zoo_folder = Path(inspect.getfile(init)).parent

    def amended(*args: Any, **kwargs: Any) -> None:
        arguments = signature.bind(*args, **kwargs).arguments
        algo, env_id = arguments["algo"], arguments["env_id"]
        ours, theirs = yaml_of(algo), zoo_folder / "hyperparams" / f"{algo}.yml"
        is_ours = algo in ALGOS or (has_settings(ours, env_id) and not has_settings(theirs, env_id))
        if arguments.get("config") is None and is_ours:
            if algo in ALGOS and methods.METHODS[algo].two_domains and not env_id.startswith("odrl/"):
                raise ValueError(
                    f"--algo {algo} learns from two domains, which its settings know for odrl/ ids alone, not "
                    f"for {env_id}. For other domains name a yaml of your own by -conf, whose callback has a target: "
                    "{sb3_cir.off_dynamics.OffDynamicsCallback: {target: <id>}}"
                )
            arguments["config"] = str(ours)
        if arguments.get("save_freq", -1) > 0 or is_checkpoint(Path(arguments.get("trained_agent", ""))):
            _make_resumable(algo)
        init(**arguments)

    return amended


def _zoos() -> dict[str, type[BaseAlgorithm]]:
    """:return: RL Zoo's table of algorithms, with ours in it"""
    algorithms: dict[str, type[BaseAlgorithm]] = importlib.import_module("rl_zoo3.utils").ALGOS
    return algorithms


def _make_resumable(algo: str) -> None:
    """Where a run makes checkpoints or goes on from one, SB3's own off-policy algorithms learn to do it too."""
    algorithm = _zoos().get(algo)
    if isinstance(algorithm, type) and issubclass(algorithm, OffPolicyAlgorithm):
        _zoos()[algo] = resumable(algorithm)


def _with_workers_gone(learn: Function) -> Function:
    """
    Ctrl-C reaches the worker processes of environments too. Where they are gone first, RL Zoo fails to close them and does
    not come to saving the model, which is its next step. Only closing may fail: an error while it learns is one.
    """

    def amended(self: Any, model: BaseAlgorithm) -> None:
        learning = _Learning(model)
        try:
            learn(self, learning)
        except (BrokenPipeError, ConnectionResetError):
            if self.algo not in ALGOS or not learning.interrupted:
                raise

    return amended


class _Model:
    """A model, but for the methods of a subclass."""

    def __init__(self, model: BaseAlgorithm):
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class _Learning(_Model):
    """A model that remembers whether Ctrl-C ended its ``learn()``."""

    interrupted = False

    def learn(self, *args: Any, **kwargs: Any) -> None:
        try:
            self._model.learn(*args, **kwargs)
        except KeyboardInterrupt:
            self.interrupted = True
            raise


class _Published(_Model):
    """
    A model that ``push_to_hub`` saves as its file stands, with the size of its replay buffer: it is loaded with room for one
    transition.
    """

    def __init__(self, model: BaseAlgorithm, path: str):
        super().__init__(model)
        self._path = path

    def save(self, path: str | Path) -> None:
        shutil.copyfile(self._path, f"{path}.zip")


class _SavedWithSuffix(_Model):
    """A model that adds ``.zip`` to the path it is saved to."""

    def save(self, path: str | Path) -> None:
        self._model.save(f"{path}.zip")


def _with_suffix(save: Function) -> Function:
    """RL Zoo leaves ``.zip`` to SB3, which takes the end of ``odrl/walker2d-friction-0.5-v0`` for a suffix and adds none."""

    def amended(self: Any, model: BaseAlgorithm) -> None:
        save(self, _SavedWithSuffix(model))

    return amended


def _with_checkpoints(create_callbacks: Function) -> Function:
    """
    ``--save-freq`` also saves all that a run needs to go on, where the algorithm can be resumed, in ``checkpoints/``. RL Zoo's
    own files, a model each, are what ``enjoy --load-checkpoint`` and ``record_training`` look for.
    """

    def amended(self: Any) -> None:
        every = self.save_freq  # RL Zoo divides it by the number of environments
        create_callbacks(self)
        has_one = any(isinstance(each, Checkpoint) for each in self.callbacks)  # from the yaml, or from -params
        if every > 0 and _is_resumable(self.algo) and not has_one:
            self.callbacks.append(Checkpoint(every, Path(self.save_path) / "checkpoints", verbose=1))

    return amended


def _from_checkpoints(load: Function) -> Function:
    """``--trained-agent`` takes a checkpoint too: the model is made from the yaml, as ever, and goes on from there."""

    def amended(self: Any, hyperparams: dict[str, Any], env: VecEnv) -> BaseAlgorithm:
        path = Path(self.trained_agent)
        if not is_checkpoint(path):
            loaded: BaseAlgorithm = load(self, hyperparams, env)
            return loaded
        if not _is_resumable(self.algo):
            raise ValueError(
                f"{path} is a checkpoint, from which --algo {self.algo} cannot go on: pass the --algo of the run that made it."
            )
        algorithm: Any = _zoos()[self.algo]
        model: Resumable = algorithm(
            env=env,
            tensorboard_log=self.tensorboard_log,
            seed=self.seed,
            verbose=self.verbose,
            device=self.device,
            **hyperparams,
        )
        model.restore(path)
        done = model.num_timesteps
        if done > self.n_timesteps:
            raise ValueError(f"{path} is of step {done}, past the {self.n_timesteps} of -n: nothing is left to learn.")
        print(f"Continuing at step {done} of {self.n_timesteps}, from {path.parent}")
        return model

    return amended


def name_newest_checkpoint(argv: list[str]) -> None:
    """
    Let ``-i`` of RL Zoo's command line take a folder of checkpoints, or a run's folder that has one. RL Zoo accepts files
    only, so the newest checkpoint's path is put there.

    :param argv: The command line, which is changed
    :raises SystemExit: If the folder has none.
    """
    for index, word in enumerate(argv):
        before, sign, value = word.rpartition("--trained-agent=")
        if sign and not before:
            argv[index] = sign + _newest_checkpoint(value)
        elif index and argv[index - 1] in ("-i", "--trained-agent"):
            argv[index] = _newest_checkpoint(word)


def _newest_checkpoint(path: str) -> str:
    """What is no folder stays as it is."""
    folder = Path(path)
    if not path or not folder.is_dir():
        return path
    found = [*checkpoints(folder), *checkpoints(folder / "checkpoints")]
    if not found:
        raise SystemExit(f"error: there is no checkpoint in {folder}. A run makes them with --save-freq.")
    return str(found[0][1])


def _is_resumable(algo: str) -> bool:
    return issubclass(_zoos()[algo], Resumable)


_AMENDED: dict[str, Callable[[Function], Function]] = {
    "__init__": _with_our_yaml,
    "learn": _with_workers_gone,
    "save_trained_model": _with_suffix,
    "create_callbacks": _with_checkpoints,
    "_load_pretrained_agent": _from_checkpoints,
    "_maybe_normalize": _with_plain_statistics,
}


def _open_utf8(path: Any, mode: str = "r") -> IO[Any]:
    """RL Zoo opens a yaml in the locale's encoding, and ours have Greek letters."""
    return open(path, mode, encoding=None if "b" in mode else "utf-8")


def _amend_exp_manager(exp_manager: ModuleType) -> None:
    if "rl_zoo3" in Path(sys.argv[0]).parts:
        name_newest_checkpoint(sys.argv)
    vars(exp_manager)["open"] = _open_utf8
    # RL Zoo evaluates a yaml's replay_buffer_class among this module's names.
    vars(exp_manager).update({buffer.__name__: buffer for buffer in REPLAY_BUFFERS})
    manager = exp_manager.ExperimentManager
    for name, amended in _AMENDED.items():
        method = getattr(manager, name)
        if not hasattr(method, "__wrapped__"):  # once is enough
            setattr(manager, name, functools.wraps(method)(amended(method)))


def _amend_callbacks(callbacks: ModuleType) -> None:
    parallel = callbacks.ParallelTrainCallback
    if not hasattr(parallel._init_callback, "__wrapped__"):  # once is enough
        parallel._init_callback = functools.wraps(parallel._init_callback)(_as_its_own(parallel._init_callback, callbacks))
        parallel._on_rollout_end = functools.wraps(parallel._on_rollout_end)(_after_statistics(parallel._on_rollout_end))
        parallel._on_training_end = functools.wraps(parallel._on_training_end)(_before_statistics(parallel._on_training_end))


def _as_its_own(init_callback: Function, callbacks: ModuleType) -> Function:
    """RL Zoo loads the copy that learns in a thread as SB3's SAC, of which our algorithms are kinds."""

    def amended(self: Any) -> None:
        names, sac = vars(callbacks), callbacks.SAC
        names["SAC"] = type(self.model) if isinstance(self.model, sac) else sac
        try:
            init_callback(self)
        finally:
            names["SAC"] = sac

    return amended


def _after_statistics(on_rollout_end: Function) -> Function:
    """
    RL Zoo gives the acting model all parameters of the copy that learns. What is counted with each step of the environment is
    the acting model's. So the copy gets that first.
    """

    def amended(self: Any) -> None:
        if self._model_ready:  # else the copy is amid an update, and the original does nothing
            _hand_statistics(self.model, self._model)
        on_rollout_end(self)

    return amended


def _before_statistics(on_training_end: Function) -> Function:
    """The copy is what RL Zoo saves."""

    def amended(self: Any) -> None:
        on_training_end(self)  # waits for the copy's last update
        _hand_statistics(self.model, self._model)

    return amended


def _hand_statistics(acting: BaseAlgorithm, learning: BaseAlgorithm) -> None:
    """RSNorm's statistics, the scale of returns, and the number of steps."""
    for theirs, own in zip(_statistics(acting), _statistics(learning), strict=True):
        own.load_state_dict(theirs.state_dict())
    learning.num_timesteps = acting.num_timesteps


def _statistics(model: BaseAlgorithm) -> list[nn.Module]:
    parts = [each for each in (model.policy, getattr(model, "return_scale", None)) if isinstance(each, nn.Module)]
    return [module for part in parts for module in part.modules() if isinstance(module, (RSNorm, ReturnScale))]


def has_settings(hyperparams: Path, env_id: str) -> bool:
    """
    :param hyperparams: A yaml of RL Zoo's kind, which need not be there
    :param env_id: Gymnasium's id of an environment
    :return: Whether it has settings of this environment's own
    """
    return hyperparams.is_file() and env_id in yaml.safe_load(hyperparams.read_text(encoding="utf-8"))


_AMENDMENTS = {
    "rl_zoo3.utils": _add_algorithms,
    "rl_zoo3.hyperparams_opt": _add_search_spaces,
    "rl_zoo3.exp_manager": _amend_exp_manager,
    "rl_zoo3.callbacks": _amend_callbacks,
}
