"""The one class that hooks into SB3: each hook is a call of a function of the modules beside it."""

import copy
import functools
import os
import pathlib
import re
import time
import warnings
from collections.abc import Iterable
from io import BufferedIOBase
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar, cast

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutReturn
from stable_baselines3.common.vec_env import VecEnv

from sb3_cir.runs import archive, arguments, buffer_file, checkpoint, normalization, parameters, results, rows, state, watch
from sb3_cir.runs.expected_time import with_expected_time
from sb3_cir.runs.plain import NormalizerSettings
from sb3_cir.runs.state import Stored


class Saver(Protocol):
    """The callback that makes checkpoints."""

    restart_episodes: bool

    def between_rollouts(self, root: BaseCallback) -> None:
        """Whether it is time for one is looked at here."""

    def finish(self) -> None:
        """The run has come to its end."""

    def close(self) -> None:
        """``learn()`` has ended."""

    def workers_gone(self) -> None:
        """The environments' processes have ended."""


class Resumable(OffPolicyAlgorithm):
    """
    Mixin for an off-policy algorithm of SB3: ``class SMR(Resumable, SAC)``, or ``SAC = resumable(SAC)``.

    Its runs can be resumed from the checkpoints of a :class:`~sb3_cir.callbacks.Checkpoint`, end with a clear error where an
    environment gives what cannot be learned from, and its models are saved so that no pickle is needed to load them.
    """

    # Attributes that count something, beside SB3's own: a subclass with others adds them.
    counters: ClassVar[tuple[str, ...]] = state.COUNTERS
    # Arguments of a base class that a subclass's constructor does not take.
    fixed_arguments: ClassVar[tuple[str, ...]] = ()
    # What networks or other arguments were made from, so that it cannot be changed when a model is loaded or resumed
    settled_arguments: ClassVar[tuple[str, ...]] = ()
    # Arrays of :func:`~sb3_cir.runs.parameters.take` that depend on how many environments there are. A model that is loaded
    # with more or fewer begins them anew.
    per_environment: ClassVar[tuple[str, ...]] = ()
    # Parts of the policy that choose actions while it learns
    acts: ClassVar[tuple[str, ...]] = ("actor",)
    # What the algorithm's actions are.
    action_space_class: ClassVar[type[spaces.Space[Any]]] = spaces.Box
    # Whether models are saved in SB3's own format, which SB3 reads too.
    sb3_archives: ClassVar[bool] = False

    _resumed: Stored | None = None  # until its first rollout
    _normalization: NormalizerSettings | None = None  # of the VecNormalize that a loaded model had learned with
    _saved: checkpoint.Saved | None = None  # the newest checkpoint
    _saver: Saver | None = None  # while it learns

    def __init__(self, policy: str | type[BasePolicy], *args: Any, **kwargs: Any):
        if isinstance(policy, str) and "MultiInputPolicy" not in self.policy_aliases:
            # By its name SB3 would send Dict observations to a policy that there is not; this says what to do.
            policy = self._get_policy_from_name(policy)
        if kwargs.get("policy_kwargs") is not None:
            # SB3 writes into what it gets, which may be the caller's for more models.
            kwargs["policy_kwargs"] = dict(kwargs["policy_kwargs"])
        super().__init__(policy, *args, **kwargs)

    @classmethod
    def resume(cls, place: str | os.PathLike[str], env: GymEnv | str, device: th.device | str = "auto", **kwargs: Any) -> Self:
        """
        The model of an interrupted run, from the newest whole checkpoint of a :class:`~sb3_cir.callbacks.Checkpoint`.

        ``learn(total)`` then goes on to ``total`` steps, those made before included: call it as the interrupted run did. (Only
        ``reset_num_timesteps=False`` makes it so many steps more, as SB3 has it.) The episode under way is not restored: it
        counts as cut off, unless the environment's first observation is the one the run was interrupted at.

        :param place: The folder of checkpoints, or one of its ``.zip`` files, to go back to
        :param env: The environment to go on in, as many in number as there were; ``VecNormalize``, if there was one, takes
            its statistics and settings from the checkpoint. A warning names the settings that it had otherwise.
        :param device: Device to go on on
        :param kwargs: The constructor's arguments that are to differ, those that no JSON can hold, and ``tensorboard_log``:
            a file does not say where to write
        :return: The model
        :raises FileNotFoundError: If there is no checkpoint that can be read.
        :raises TypeError: If the constructor takes no such argument.
        :raises ValueError: If an argument is missing, or if ``env`` or an argument does not fit the checkpoint.
        """
        stored = checkpoint.read(Path(place))
        what = str(stored.path)
        checkpoint.check_class(cls, stored.manifest.algorithm, what)
        arguments.check_names(cls, kwargs)
        arguments.check_settled(cls, kwargs, stored.manifest.arguments, what)
        read = arguments.read(cls, stored.manifest.arguments, kwargs, what)
        arguments.check(cls, read, what)
        parameters.check_counts(read.get("policy_kwargs"), stored.arrays, what)
        if not isinstance(env, VecEnv):  # whose errors are not the file's
            env = cls._wrap_env(maybe_make_env(env, 0))
        fixed: list[str] = []
        with arguments.constructing(cls, what):
            if arguments.takes(cls, "_init_setup_model"):
                model, fixed = arguments.construct(cls, read, env=env, device=device, **kwargs)
                parameters.rehearse(model, stored.arrays, what)
                model._setup_model()
            else:
                model = cls(env=env, device=device, **read, **kwargs)
        model._restore(stored)
        normalizer = model.get_vec_normalize_env()
        if normalizer is not None and stored.manifest.normalization is not None:
            normalization.put_settings(normalizer, stored.manifest.normalization, what)
        # What else differs was asked for by name.
        arguments.warn_of_differences(model, {name: stored.manifest.arguments[name] for name in fixed}, what)
        return cast(Self, model)

    def restore(self, place: str | os.PathLike[str]) -> None:
        """
        As :meth:`resume`, into this model, whose arguments stay as they are. A warning names those that differ.

        :param place: The folder of checkpoints, or one of its ``.zip`` files, to go back to
        :raises FileNotFoundError: If there is no checkpoint that can be read.
        :raises ValueError: If the model does not fit the checkpoint.
        """
        stored = checkpoint.read(Path(place))
        checkpoint.check_class(type(self), stored.manifest.algorithm, str(stored.path))
        self._restore(stored)
        normalizer, said = self.get_vec_normalize_env(), stored.manifest.normalization
        also = normalization.differences(normalizer, said) if normalizer is not None and said is not None else {}
        arguments.warn_of_differences(self, stored.manifest.arguments, str(stored.path), also)

    def _restore(self, stored: Stored) -> None:
        state.check(self, stored)
        state.put(self, stored)
        self._saved = checkpoint.saved(stored)
        self._resumed = stored
        if self.env is not None:
            self.env.seed(state.episode_seed(self, stored.manifest.run))

    def learn(
        self,
        total_timesteps: float,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """
        As SB3's. The first after :meth:`resume` goes on to ``total_timesteps`` in all.

        :param total_timesteps: Steps of the agent, over all environments; a float such as ``1e6`` will do.
        :param tb_log_name: Name of the run for TensorBoard. Default: the class's
        :raises BadDataError: If an environment gives what cannot be learned from (a ``ValueError``).
        :raises FailedEnvError: If an environment raises, or if its process ends (a ``RuntimeError``).
        :raises ValueError: If the actor's output is not finite.
        """
        total_timesteps, name = int(total_timesteps), tb_log_name or type(self).__name__
        if self._resumed is not None and reset_num_timesteps:
            if total_timesteps <= self.num_timesteps:
                warnings.warn(
                    f"Nothing is left to learn: this run is at step {self.num_timesteps:,}, and learn() was asked for "
                    f"{total_timesteps:,} in all. With reset_num_timesteps=False it makes as many more.",
                    stacklevel=2,
                )
            total_timesteps, reset_num_timesteps = max(total_timesteps - self.num_timesteps, 0), False
        elif self._resumed is None and (reset_num_timesteps or self._last_obs is None):
            state.leave_episodes(self, np.zeros(self.n_envs, bool))  # the environments are about to be reset
        try:
            with watch.watch(self.env, self, *rows.first(self.replay_buffer)):
                super().learn(total_timesteps, callback, log_interval, name, reset_num_timesteps, progress_bar)
                if self._saver is not None:
                    self._saver.finish()
        finally:
            if self._saver is not None:
                self._saver.close()
                self._saver = None
        return self

    def _setup_model(self) -> None:
        arguments.refuse(self)
        # SB3 writes n_steps and gamma into it, which may be the caller's.
        self.replay_buffer_kwargs = dict(self.replay_buffer_kwargs)
        for name in ("buffer_size", "batch_size", "gradient_steps", "n_steps"):  # 2.0 is no index to Python
            if isinstance(getattr(self, name), float):
                setattr(self, name, int(getattr(self, name)))
        super()._setup_model()

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        self._convert_train_freq()  # a number that was put there after the model was made
        folder = None if self._resumed is None else self._resumed.manifest.log
        ours = folder is not None and re.fullmatch(re.escape(tb_log_name) + r"_\d+", folder) is not None
        if self.tensorboard_log is None or self._custom_logger or not ours:
            return super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
        # SB3 would go on in the newest folder of that name, which may be another run's.
        formats = ["stdout", "tensorboard"] if self.verbose >= 1 else ["tensorboard"]
        self.set_logger(configure(os.path.join(self.tensorboard_log, str(folder)), formats))
        try:
            return super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
        finally:
            self._custom_logger = False

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)
        # Runs end past their total where that is amid a rollout. A rate that falls to 0 would be negative there.
        self._current_progress_remaining = max(self._current_progress_remaining, 0.0)

    def _get_policy_from_name(self, policy_name: str) -> type[BasePolicy]:
        known = self.policy_aliases
        if policy_name not in known and policy_name in ("MlpPolicy", "CnnPolicy", "MultiInputPolicy"):
            raise ValueError(
                f"policy={policy_name!r}: {type(self).__name__} has {', '.join(known)} alone. A wrapper such as "
                "sb3_cir.envs.FlatFloat32 makes one vector of Dict observations, and of all others of a fixed length."
            )
        return super()._get_policy_from_name(policy_name)

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        ready = super()._init_callback(with_expected_time(self, callback), progress_bar)
        results.remember(ready)
        return ready

    def collect_rollouts(self, env: VecEnv, callback: BaseCallback, *args: Any, **kwargs: Any) -> RolloutReturn:
        """As SB3's. Before it, the last update is complete and each step's transition stored: the place for checkpoints."""
        results.begun(callback)
        if self._resumed is not None:
            anew = self._saver is not None and self._saver.restart_episodes
            state.go_on(self, self._resumed, callback, anew)
            self._resumed = None
        if self._saver is not None:
            self._saver.between_rollouts(callback)
        try:
            return super().collect_rollouts(env, callback, *args, **kwargs)
        except (EOFError, BrokenPipeError, ConnectionResetError, watch.FailedEnvError):
            # Ctrl-C reaches the worker processes of environments too, and they are gone at the next step. The run's own may be
            # still on its way: it is what ends the run then, and not what became of the workers.
            time.sleep(0.2)
            if self._saver is not None:
                self._saver.workers_gone()
            raise

    def _sample_action(self, *args: Any, **kwargs: Any) -> tuple[np.ndarray, np.ndarray]:
        return watch.checked_action(self, super()._sample_action, *args, **kwargs)

    def save(
        self,
        path: str | pathlib.Path | BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """
        Save all the attributes of the object and the model parameters in a zip-file.

        :param path: path to the file where the rl agent should be saved
        :param exclude: name of parameters that should be excluded in addition to the default ones
        :param include: name of parameters that might be excluded but should be included anyway
        """
        if self.sb3_archives:
            super().save(path, exclude, include)
        else:
            archive.save(self, path, {*self._excluded_save_params(), *(exclude or ())} - set(include or ()))

    @classmethod
    def load(
        cls,
        path: str | pathlib.Path | BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        trusted: bool = True,
        **kwargs: Any,
    ) -> Self:
        """
        Load the model from a zip-file.

        :param path: path to the file (or a file-like) where to load the agent from
        :param env: the new environment to run the loaded model on (can be None if you only need prediction from a trained
            model)
        :param device: Device on which the code should run.
        :param custom_objects: Attributes by name, in place of what the file has
        :param print_system_info: Whether to print system info from the saved model and the current system info
        :param force_reset: Force call to ``reset()`` before training
        :param trusted: Whether to unpickle what the file has, which can run any code: only for files from someone you trust.
            Otherwise only plain values and arrays are read; what a model does not need (its last observation, the episodes
            that the log's means are of) is left out.
        :param kwargs: extra arguments to change the model when loading
        :return: new model instance with loaded parameters
        :raises TypeError: If the model has nothing of an argument's name.
        :raises ValueError: If the file is a checkpoint, is damaged or is another algorithm's, if it has what no constructor
            allows, or if ``trusted`` is False and the file has something that the model needs as a pickle alone.
        """
        options = archive.Options(env, device, custom_objects or {}, print_system_info, force_reset, trusted, kwargs)
        model: Self = archive.load(cls, path, options)
        return model

    def set_parameters(
        self,
        load_path_or_dict: str | dict[str, Any],
        exact_match: bool = True,
        device: th.device | str = "auto",
    ) -> None:
        """
        As SB3's, from a model that was saved in either format too. Optimisers keep their own settings, such as weight decay;
        the learning rate is the other's.

        :param load_path_or_dict: The file, or what ``get_parameters()`` gave
        :param exact_match: Whether all of the model's networks and optimisers must be there. Otherwise what is there is set.
        :param device: Without a meaning for files: what is in them is copied to where the model is.
        :raises ValueError: If something is missing, is too much, or has another shape; or if the file is another algorithm's.
            The model is as it was then.
        """
        if not isinstance(load_path_or_dict, dict):
            archive.put_parameters(self, load_path_or_dict, exact_match)
            return
        settings, before = parameters.settings(self), cast(dict[str, Any], copy.deepcopy(self.get_parameters()))
        try:
            super().set_parameters(parameters.for_its_environments(self, load_path_or_dict), exact_match, device)
        except Exception:
            super().set_parameters(before, device=device)
            raise
        finally:
            parameters.put_settings(self, settings)

    def save_replay_buffer(self, path: str | pathlib.Path | BufferedIOBase) -> None:
        """
        Save the replay buffer for :meth:`load_replay_buffer`, without a pickle. A class that :func:`resumable` made writes
        SB3's pickle.

        :param path: Path to the file; ``.safetensors`` is added where it has no suffix. Folders are made.
        """
        if self.sb3_archives:
            super().save_replay_buffer(path)
            return
        assert self.replay_buffer is not None, "The replay buffer is not defined"
        buffer_file.save(self.replay_buffer, path)

    def load_replay_buffer(
        self, path: str | pathlib.Path | BufferedIOBase, truncate_last_traj: bool = True, trusted: bool = True
    ) -> None:
        """
        Load a replay buffer, into this model's own.

        :param path: Path to the file
        :param truncate_last_traj: Whether the episode that was under way counts as ended: nothing joins its last transition to
            the next one.
        :param trusted: Whether a buffer that SB3 has pickled is read, which can run any code
        :raises ValueError: If the buffer does not fit this model's, or if ``trusted`` is False and it is a pickle.
        """
        buffer_file.load(self, path, truncate_last_traj, trusted, super().load_replay_buffer)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_normalization", "_resumed", "_saved", "_saver"]


Algorithm = TypeVar("Algorithm", bound=type[OffPolicyAlgorithm])


@functools.cache
def resumable(algorithm: Algorithm) -> Algorithm:
    """
    Any off-policy algorithm of SB3 or sb3-contrib, as one whose runs can be resumed to the bit: ``SAC = resumable(SAC)``.

    :param algorithm: Its class
    :return: A subclass of the same name. It saves models in SB3's own format, so that the algorithm itself loads them too.
    :raises TypeError: If it is no off-policy algorithm.
    """
    if not (isinstance(algorithm, type) and issubclass(algorithm, OffPolicyAlgorithm)):
        raise TypeError(f"{algorithm!r} is no off-policy algorithm: runs of those alone can be resumed.")
    if issubclass(algorithm, Resumable):
        return algorithm
    members = {"sb3_archives": True, "__module__": algorithm.__module__, "__doc__": algorithm.__doc__}
    if any(kind.__name__ in ("DQN", "QRDQN") for kind in algorithm.__mro__):
        # They copy to their target network by calls, and act at random by a rate that follows from the step before.
        members |= {"counters": (*state.COUNTERS, "_n_calls", "exploration_rate"), "action_space_class": spaces.Discrete}
    return type(algorithm.__name__, (Resumable, algorithm), members)  # type: ignore[return-value]
