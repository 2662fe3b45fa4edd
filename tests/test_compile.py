"""The update compiled, and in bfloat16: the same numbers, and what happens where it cannot be."""

import copy
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import test_parity
import torch as th
from small import changed, small, weights
from stable_baselines3.common.logger import configure
from stable_baselines3.common.torch_layers import FlattenExtractor

from sb3_cir import CIR, cir

needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="torch.compile on a CPU needs a C++ compiler"
)


@needs_compiler
def test_compiled_update_equals_the_authors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reference = test_parity.Reference(test_parity.FILES[0])
    model = test_parity.build(reference, compile=True)
    test_parity.inject(monkeypatch, model, reference)
    model.train(gradient_steps=1, batch_size=reference.meta["batch_size"])
    assert model._compiling
    for name, value in test_parity.read_weights(model, reference).items():
        np.testing.assert_allclose(value, reference[f"after/{name}"], err_msg=name, **test_parity.TOLERANCE)

    model.save(tmp_path / "model")
    loaded = CIR.load(tmp_path / "model", device="cpu")
    assert loaded.compile is True
    assert all(th.equal(value, weights(model)[name]) for name, value in weights(loaded).items())


@pytest.mark.skipif(not th.cuda.is_available(), reason="needs a GPU")
def test_compiled_equals_eager_on_cuda() -> None:
    models = []
    for choice in (False, True):
        model = small("Pendulum-v1", device="cuda", compile=choice, learning_starts=1000).learn(100)
        model.set_logger(configure(None, []))
        np.random.seed(0)
        th.manual_seed(0)
        for _ in range(10):
            model.train(gradient_steps=1, batch_size=16)
        models.append(model)
    assert models[1]._compiling
    eager, compiled = map(weights, models)
    for name, value in eager.items():
        np.testing.assert_allclose(compiled[name].cpu(), value.cpu(), err_msg=name, rtol=0, atol=1e-4)


class Opaque(FlattenExtractor):
    """What the compiler may not look into."""

    @th.compiler.disable
    def forward(self, observations: th.Tensor) -> th.Tensor:
        return super().forward(observations)


def test_falls_back_with_one_warning() -> None:
    model = small("Pendulum-v1", compile=True, policy_kwargs=dict(features_extractor_class=Opaque))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = weights(model)
        model.learn(30)
    messages = [str(each.message) for each in caught if "could not be compiled" in str(each.message)]
    assert len(messages) == 1
    assert changed(before, model) == set(before)


@pytest.mark.parametrize(
    ("n_steps", "kwargs", "worth"),
    [
        (1_000, {}, False),
        (250_000, {}, True),
        (250_000, dict(use_sde=True), False),
        (250_000, dict(n_steps=3), False),
        (250_000, dict(gradient_steps=0), False),
        (250_000, dict(train_freq=(1, "episode")), False),
        (250_000, dict(train_freq=(1, "episode"), gradient_steps=-1), True),
        (5_000, {}, False),
        (5_000, dict(sample_reuse=10), True),
    ],
)
def test_what_is_worth_compiling(n_steps: int, kwargs: dict, worth: bool) -> None:
    model = CIR("MlpPolicy", "Pendulum-v1", buffer_size=10, device="cpu", **kwargs)
    assert model._worth_compiling(n_steps) == worth


def test_auto_leaves_a_short_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cir, "compiled", lambda *_: pytest.fail("compiled"))
    model = small("Pendulum-v1").learn(30)
    assert model.compile == "auto"
    assert model._n_updates == 20


def test_a_run_that_goes_on_compiles_as_it_would_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the steps of the whole run, so that its updates are the same to the last bit."""
    asked = []
    monkeypatch.setattr(CIR, "_worth_compiling", lambda _, n_steps: asked.append(n_steps) or False)
    small("Pendulum-v1").learn(30).learn(10, reset_num_timesteps=False)
    assert asked == [30, 40]


def test_bfloat16() -> None:
    """The critics' products lose digits, nothing else does, and all parameters stay float32."""
    model = small("Pendulum-v1", precision="bfloat16", learning_starts=1000).learn(30)
    obs, actions = th.randn(256, 3), th.rand(256, 1)
    with th.no_grad():
        rounded, exact = model._q_values(model.critic, obs, actions), th.cat(model.critic(obs, actions), dim=1)
    assert rounded.dtype == th.float32
    assert 1e-5 < (rounded - exact).abs().max() < 0.05
    model.set_logger(configure(None, []))
    before = weights(model)
    model.train(gradient_steps=1, batch_size=16)
    assert changed(before, model) == set(before)
    assert {parameter.dtype for parameter in model.policy.parameters()} == {th.float32}


def test_optimiser_goes_on_from_plain_adam() -> None:
    """As in models saved before the fused kernel was the default."""
    models = [
        small("Pendulum-v1", learning_starts=1000, policy_kwargs=policy_kwargs).learn(40)
        for policy_kwargs in (dict(optimizer_class=th.optim.Adam), {})
    ]
    batch = models[0].replay_buffer.sample(16)
    models[0]._update(batch)
    models[1].set_parameters(copy.deepcopy(models[0].get_parameters()))
    models[1].log_ent_coef.data.copy_(models[0].log_ent_coef)
    for model in models:
        th.manual_seed(0)
        model._update(batch)
    plain, fused = map(weights, models)
    for name, value in plain.items():
        np.testing.assert_allclose(fused[name], value, err_msg=name, rtol=0, atol=1e-6)
    kernels = [[group["fused"] for group in model.critic.optimizer.param_groups] for model in models]
    assert kernels == [[None], [True]]
