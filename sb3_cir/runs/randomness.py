"""Random states, taken and put back: of Python's, NumPy's and torch's global generators, and of the action space."""

import random
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_cir.runs.files import Arrays, DamagedError
from sb3_cir.runs.plain import NumpyRandom, PythonRandom, Random, SpaceRandom
from sb3_cir.words import short


def take(model: OffPolicyAlgorithm) -> Random:
    """
    :param model: A model
    :return: Random states, but for the arrays among them
    """
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    space = model.action_space.np_random.bit_generator.state
    return Random(
        python=PythonRandom(gauss=random.getstate()[2]),
        numpy=NumpyRandom(
            pos=numpy_state["state"]["pos"], has_gauss=numpy_state["has_gauss"], gauss=float(numpy_state["gauss"])
        ),
        action_space=SpaceRandom(
            **{key: int(value) for key, value in space["state"].items()},
            has_uint32=space["has_uint32"],
            uinteger=space["uinteger"],
        ),
    )


def take_arrays() -> dict[str, np.ndarray]:
    """:return: Random states that are arrays: of Python's, NumPy's and torch's global generators"""
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    arrays = {
        "random/python": np.array(random.getstate()[1], np.uint32),
        "random/numpy": numpy_state["state"]["key"],
        "random/torch": th.get_rng_state().numpy(),
    }
    if th.cuda.is_available():
        arrays |= {f"random/cuda/{index}": each.numpy() for index, each in enumerate(th.cuda.get_rng_state_all())}
    return arrays


def check(states: Random, arrays: Arrays, what: str) -> None:
    """
    Try random states on generators that nobody uses. (NumPy takes a position of 10**9, and crashes with the next number.)

    :param states: Random states, but for the arrays among them
    :param arrays: Those
    :param what: Where they are from, for the error
    :raises DamagedError: If one cannot be.
    """
    try:
        internal, key = arrays["random/python"], arrays["random/numpy"]
        if internal.dtype != np.uint32 or internal.shape != (625,) or key.dtype != np.uint32 or key.shape != (624,):
            raise ValueError("a generator's numbers are not 625 and 624 of 32 bits")
        random.Random().setstate((3, tuple(internal.tolist()), states.python.gauss))
        np.random.RandomState().set_state(_numpy_state(states.numpy, key))
        th.Generator().set_state(th.from_numpy(arrays["random/torch"]))
        if states.action_space.inc % 2 == 0:
            raise ValueError("the action space's generator has an even increment")
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise DamagedError(f"{what}: its random states cannot be ({short(str(error))}).") from error


def put(model: OffPolicyAlgorithm, states: Random, arrays: Arrays) -> None:
    """
    :param model: A model
    :param states: Random states, but for the arrays among them
    :param arrays: Those
    """
    random.setstate((3, tuple(arrays["random/python"].tolist()), states.python.gauss))
    np.random.set_state(_numpy_state(states.numpy, arrays["random/numpy"]))
    space = states.action_space
    model.action_space.np_random.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": space.state, "inc": space.inc},
        "has_uint32": space.has_uint32,
        "uinteger": space.uinteger,
    }
    th.set_rng_state(th.from_numpy(arrays["random/torch"]))
    cuda = {name for name in arrays if name.startswith("random/cuda/")}
    devices = [f"random/cuda/{index}" for index in range(len(cuda))]
    if th.cuda.is_available() and len(cuda) == th.cuda.device_count() and cuda == set(devices):
        th.cuda.set_rng_state_all([th.from_numpy(arrays[name]) for name in devices])


def _numpy_state(state: NumpyRandom, key: np.ndarray) -> dict[str, Any]:
    return {
        "bit_generator": "MT19937",
        "state": {"key": key, "pos": state.pos},
        "has_gauss": state.has_gauss,
        "gauss": state.gauss,
    }
