"""Where RL Zoo's ``-optimize`` looks for our algorithms' hyperparameters."""

from types import ModuleType
from typing import Any

Arguments = dict[str, Any]


def sample_cir_params(zoo: ModuleType, trial: Any, n_actions: int, n_envs: int, additional_args: Arguments) -> Arguments:
    """
    CIR's search space for ``-optimize``: what the paper's parameter studies vary, and SAC's usual ones around them.

    :param zoo: RL Zoo's ``hyperparams_opt``
    :param trial: The Optuna trial
    :param n_actions: Size of the action
    :param n_envs: Number of environments
    :param additional_args: Whether a ``HerReplayBuffer`` is used, and its arguments
    :return: Arguments for CIR
    """
    return _as_arguments(trial, convert_cir_params(_sample_cir_values(zoo, trial, additional_args)))


def _sample_cir_values(zoo: ModuleType, trial: Any, additional_args: Arguments) -> Arguments:
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
    return sampled


def convert_cir_params(sampled: Arguments) -> Arguments:
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


def sample_cir_simba_params(zoo: ModuleType, trial: Any, n_actions: int, n_envs: int, additional_args: Arguments) -> Arguments:
    """
    The search space of CIR with SimBa's actor for ``-optimize``: CIR's, and the width of an actor of one residual block.

    :param zoo: RL Zoo's ``hyperparams_opt``
    :param trial: The Optuna trial
    :param n_actions: Size of the action
    :param n_envs: Number of environments
    :param additional_args: Whether a ``HerReplayBuffer`` is used, and its arguments
    :return: Arguments for CIRSimBa
    """
    sampled = _sample_cir_values(zoo, trial, additional_args) | _sample_actor_width(trial)
    return _as_arguments(trial, convert_cir_simba_params(sampled))


def convert_cir_simba_params(sampled: Arguments) -> Arguments:
    """
    :param sampled: A trial's values, by the names in :func:`sample_cir_simba_params`
    :return: Arguments for CIRSimBa
    """
    params = dict(sampled)
    actor = [params.pop("actor_width")]
    params = convert_cir_params(params)
    params["policy_kwargs"]["net_arch"]["pi"] = actor
    return params


def sample_simba_params(zoo: ModuleType, trial: Any, n_actions: int, n_envs: int, additional_args: Arguments) -> Arguments:
    """
    The search space of SimBa and BRO for ``-optimize``: SAC's usual one, and the size of the networks in residual blocks.

    :param zoo: Not used
    :param trial: The Optuna trial
    :param n_actions: Size of the action
    :param n_envs: Number of environments
    :param additional_args: Not used
    :return: Arguments for SimBa or BRO
    """
    sampled = {
        **_sample_usual_params(trial),
        **_sample_actor_width(trial),
        "critic_width": trial.suggest_categorical("critic_width", [128, 256, 512]),
        "critic_blocks": trial.suggest_int("critic_blocks", 1, 3),
    }
    return _as_arguments(trial, convert_simba_params(sampled))


def convert_simba_params(sampled: Arguments) -> Arguments:
    """
    :param sampled: A trial's values, by the names in :func:`sample_simba_params`
    :return: Arguments for SimBa or BRO
    """
    params = _convert_usual_params(sampled)
    critic = [params.pop("critic_width")] * params.pop("critic_blocks")
    params["policy_kwargs"] = dict(net_arch=dict(pi=[params.pop("actor_width")], qf=critic))
    return params


def sample_td7_params(zoo: ModuleType, trial: Any, n_actions: int, n_envs: int, additional_args: Arguments) -> Arguments:
    """
    TD7's search space for ``-optimize``: the usual one without an averaging of targets, exploration, and LAP's exponent.

    :param zoo: Not used
    :param trial: The Optuna trial
    :param n_actions: Size of the action
    :param n_envs: Number of environments
    :param additional_args: Not used
    :return: Arguments for TD7
    """
    sampled = {
        **_sample_usual_params(trial, tau=False),
        "target_update_interval": trial.suggest_categorical("target_update_interval", [100, 250, 500, 1000]),
        "exploration_noise": trial.suggest_float("exploration_noise", 0.02, 0.3, log=True),
        "priority_exponent": trial.suggest_float("priority_exponent", 0.0, 0.8),
        "width": trial.suggest_categorical("width", [128, 256, 512]),
    }
    return _as_arguments(trial, convert_td7_params(sampled))


def convert_td7_params(sampled: Arguments) -> Arguments:
    """
    :param sampled: A trial's values, by the names in :func:`sample_td7_params`
    :return: Arguments for TD7
    """
    params = _convert_usual_params(sampled)
    width = params.pop("width")
    params["policy_kwargs"] = dict(net_arch=[width, width], encoder_width=width)
    return params


def _sample_usual_params(trial: Any, tau: bool = True) -> Arguments:
    sampled = {
        "one_minus_gamma": trial.suggest_float("one_minus_gamma", 0.001, 0.05, log=True),
        "learning_rate": trial.suggest_float("learning_rate", 1e-5, 2e-3, log=True),
        "batch_size_pow": trial.suggest_int("batch_size_pow", 5, 10),
    }
    return sampled | ({"tau": trial.suggest_float("tau", 0.001, 0.05, log=True)} if tau else {})


def _sample_actor_width(trial: Any) -> Arguments:
    return {"actor_width": trial.suggest_categorical("actor_width", [64, 128, 256])}


def _convert_usual_params(sampled: Arguments) -> Arguments:
    params = dict(sampled)
    params["gamma"] = 1 - params.pop("one_minus_gamma")
    params["batch_size"] = 2 ** params.pop("batch_size_pow")
    # What RL Zoo draws for hindsight stands beside the others in a study.
    of_her = {name: params.pop(name) for name in ("n_sampled_goal", "goal_selection_strategy") if name in params}
    if of_her:
        params["replay_buffer_kwargs"] = params.get("replay_buffer_kwargs", {}) | of_her
    return params


def _as_arguments(trial: Any, params: Arguments) -> Arguments:
    """Have Optuna's reports show these as they are used."""
    for name in ("gamma", "batch_size"):
        trial.set_user_attr(name, params[name])
    return params


# By the name in ``Method.search_space``: what draws a trial's arguments, and what makes them of the values of a finished one.
SPACES = {
    "cir": (sample_cir_params, convert_cir_params),
    "cir_simba": (sample_cir_simba_params, convert_cir_simba_params),
    "simba": (sample_simba_params, convert_simba_params),
    "td7": (sample_td7_params, convert_td7_params),
}
