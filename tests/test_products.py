"""Which library computes float32 matrix products during an update."""

import contextlib
from typing import Any

import pytest
import torch as th
from small import small
from stable_baselines3.common.logger import configure

from sb3_cir import methods, update

PRODUCTS: Any = th.backends.mkldnn.matmul


@pytest.fixture
def onednn_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "_onednn_is_faster", lambda: True)


@pytest.mark.parametrize("name", methods.ours())
def test_every_algorithm_updates_with_the_faster_products(
    name: str, onednn_is_faster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small("Pendulum-v1", model_class=methods.algorithm(name), policy_kwargs={})
    model.set_logger(configure(None, []))
    model.num_timesteps = model.learning = 1  # TD7 has had an episode
    found = []

    def fails(*_: Any, **__: Any) -> None:
        found.append(PRODUCTS.fp32_precision)
        raise InterruptedError

    buffer = model.replay_buffer
    monkeypatch.setattr(buffer, "draw" if hasattr(buffer, "draw") else "sample", fails)
    before = PRODUCTS.fp32_precision
    with pytest.raises(InterruptedError):
        model.train(1, 16)
    assert found == ["bf16"]
    assert PRODUCTS.fp32_precision == before


def test_less_exact_products_stay_as_the_user_wants_them(onednn_is_faster: None) -> None:
    before = PRODUCTS.fp32_precision
    PRODUCTS.fp32_precision = "tf32"
    try:
        with update.fast_products():
            assert PRODUCTS.fp32_precision == "tf32"
    finally:
        PRODUCTS.fp32_precision = before


def test_products_of_an_update_are_float32() -> None:
    """On whichever processor this runs."""
    left, right = th.randn(512, 512), th.randn(512, 512)
    exact = left.double() @ right.double()
    with update.fast_products():
        product = left @ right
    assert (product - exact).abs().max() / exact.abs().max() < 1e-5


@pytest.mark.parametrize(
    ("amd", "capability", "rounds", "faster"),
    [
        (True, "AVX512", False, True),
        (True, "AVX512", True, False),
        (False, "AVX512", False, False),
        (True, "AVX2", False, False),
    ],
)
def test_on_which_processors(amd: bool, capability: str, rounds: bool, faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "_is_amd", lambda: amd)
    monkeypatch.setattr(th.backends.cpu, "get_cpu_capability", lambda: capability)
    products = (lambda: th.autocast("cpu", th.bfloat16)) if rounds else contextlib.nullcontext
    monkeypatch.setattr(update, "_through_onednn", products)
    assert update._onednn_is_faster.__wrapped__() is faster
