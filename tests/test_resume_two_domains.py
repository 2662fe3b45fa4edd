"""Runs in two domains that were interrupted and go on: the same, bit by bit, as those that were not."""

import functools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from small import PowerError, small
from test_save_load import same_tensors
from walk import Stop, Walk

from sb3_cir.baselines.darc import DARC
from sb3_cir.baselines.par import PAR
from sb3_cir.baselines.two_domain_sac import TwoDomainSAC
from sb3_cir.callbacks import Checkpoint
from sb3_cir.off_dynamics import OffDynamicsCallback, TwoDomainReplayBuffer

STEPS = 120


def everything(model: TwoDomainSAC, callback: OffDynamicsCallback) -> dict[str, Any]:
    """All that must be equal, as tensors."""
    assert isinstance(model.replay_buffer, TwoDomainReplayBuffer)
    return {
        "parameters": model.get_parameters(),
        "log_ent_coef": model.log_ent_coef,
        "counts": [getattr(model, name) for name in model.counters],
        "target": [getattr(callback, name) for name in callback.state],
        "random": (random.random(), np.random.random(), th.rand(1).item(), model.action_space.sample().tolist()),
    } | {
        f"{domain} {name}": th.as_tensor(value)
        for domain, buffer in model.replay_buffer.parts().items()
        for name, value in vars(buffer).items()
        if isinstance(value, np.ndarray) or name in ("pos", "full")
    }


def learn(model: TwoDomainSAC, target: tuple, *more: Any) -> OffDynamicsCallback:
    """The same line for a run and for its continuation; ``more`` are callbacks."""
    callback = OffDynamicsCallback(target=functools.partial(Walk, target, length=11), target_freq=7, eval_freq=0)
    try:
        model.learn(STEPS, callback=[callback, *more])
    except PowerError as error:
        error.args = (error.args[0], callback._last_obs[0])
        raise
    return callback


@pytest.mark.parametrize(
    ("model_class", "kwargs"),
    [
        (TwoDomainSAC, {}),
        (DARC, dict(correction_starts=50, classifier_freq=3, classifier_arch=[8], correction_coef=0.5, odrl_softmax=True)),
        (PAR, dict(encoder_freq=3, encoder_width=8, penalty_coef=0.5)),
    ],
)
def test_bit_identical(model_class: type[TwoDomainSAC], kwargs: dict[str, Any], tmp_path: Path) -> None:
    """Interrupted between two updates of the classifiers and of the encoder, with a step in the target owed."""
    arguments = dict(model_class=model_class, learning_starts=40, buffer_size=70, **kwargs)
    source, target = (0.1, 0.0), (0.3, 0.0)
    whole = small(Walk(source), **arguments)
    expected = everything(whole, learn(whole, target))
    assert whole._n_updates == STEPS - 40

    model = small(Walk(source), **arguments)
    for step in (60, 100):
        with pytest.raises(PowerError) as power:
            learn(model, target, Checkpoint(20, tmp_path), Stop(step))
        (source,), target = power.value.args
        for seed in (random.seed, np.random.seed, th.manual_seed):
            seed(1)
        model = model_class.resume(tmp_path, Walk(source))
        assert model.num_timesteps == step
        for name, value in kwargs.items():
            assert getattr(model, name) == value
    found = everything(model, learn(model, target, Checkpoint(50, tmp_path)))
    assert found.keys() == expected.keys()
    assert [name for name, value in expected.items() if not same_tensors(value, found[name])] == []
