"""The update compiled, and in bfloat16: the same numbers, and what happens where it cannot be."""

import copy
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import test_parity
import torch as th
from small import changed, small, weights
from stable_baselines3.common.logger import configure
from stable_baselines3.common.torch_layers import FlattenExtractor
from test_wrapped import same
from torch import nn

from sb3_cir import CIR, update
from sb3_cir.baselines import BROFast, SACTanh, SimBa
from sb3_cir.callbacks import Checkpoint
from sb3_cir.runs import parameters
from sb3_cir.smr import SMR

needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="torch.compile on a CPU needs a C++ compiler"
)


@needs_compiler
def test_compiled_update_equals_the_authors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reference = test_parity.Reference(test_parity.FILES[0])
    model = test_parity.build(reference, compile=True)
    test_parity.inject(monkeypatch, model, reference)
    model.train(gradient_steps=1, batch_size=reference.meta["batch_size"])
    assert model._losses.compiling
    for name, value in test_parity.read_weights(model, reference).items():
        np.testing.assert_allclose(value, reference[f"after/{name}"], err_msg=name, **test_parity.TOLERANCE)

    model.save(tmp_path / "model")
    loaded = CIR.load(tmp_path / "model", device="cpu")
    assert loaded.compile is True
    assert all(th.equal(value, weights(model)[name]) for name, value in weights(loaded).items())


@needs_compiler
def test_compiled_with_n_step_returns() -> None:
    """Their batches have a discount of their own for each transition."""
    models = []
    for choice in (False, True):
        model = small("Pendulum-v1", compile=choice, n_steps=3, learning_starts=1000).learn(250)
        model.set_logger(configure(None, []))
        np.random.seed(0)
        th.manual_seed(0)
        model.train(gradient_steps=3, batch_size=64)
        assert model._losses.compiling == choice
        models.append(model)
    assert len(set(models[0].replay_buffer.sample(64).discounts.flatten().tolist())) > 1
    eager, compiled = map(weights, models)
    for name, value in eager.items():
        np.testing.assert_allclose(compiled[name], value, err_msg=name, rtol=0, atol=1e-5)


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
    assert models[1]._losses.compiling
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
        model.learn(30).learn(30)
    messages = [str(each.message) for each in caught if "could not be compiled" in str(each.message)]
    assert len(messages) == 1
    assert changed(before, model) == set(before)


def test_falls_back_where_warnings_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """``python -W error`` does not end a run that goes on uncompiled."""
    model = small("Pendulum-v1", compile=True, policy_kwargs=dict(features_extractor_class=Opaque))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(30)
    assert model._n_updates == 20
    assert capsys.readouterr().err.count("could not be compiled") == 1


def test_a_hook_on_a_parameter_is_noticed() -> None:
    """W&B's ``watch()`` registers such hooks. Compiled, a critic's is called with None in the actor's step."""
    model = small("Pendulum-v1", compile=True)
    norms: list[th.Tensor] = []
    for parameter in model.policy.parameters():
        parameter.register_hook(lambda gradient: norms.append(gradient.data.norm()))
    with pytest.warns(UserWarning, match="could not be compiled and runs without .a hook was registered on a parameter"):
        model.learn(30)
    assert len(norms) > 20


def fails_once(error: Exception) -> type[th.autograd.Function]:
    """The identity, whose first backward pass fails."""
    errors = [error]

    class Identity(th.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: th.Tensor) -> th.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: th.Tensor) -> th.Tensor:
            if errors:
                raise errors.pop()
            return gradient

    return Identity


def test_an_error_in_the_backward_pass_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the weights of a run that never compiled: the step is made once, with whole gradients."""
    eager, other = (small("Pendulum-v1", compile=False, learning_starts=1000).learn(30) for _ in range(2))
    identity = fails_once(RuntimeError("no backward pass"))

    def compiled(self: update.Losses, loss: update.Loss) -> update.Loss:
        self._compiled[loss.__name__] = loss

        def call(*args: object) -> tuple[th.Tensor, th.Tensor]:
            value, kept = loss(*args)
            return identity.apply(value), kept

        return call

    monkeypatch.setattr(update.Losses, "_compile", compiled)
    other._losses.compiling = True
    for model in (eager, other):
        model.set_logger(configure(None, []))
        th.manual_seed(0)
        np.random.seed(0)
    eager.train(gradient_steps=2, batch_size=16)
    th.manual_seed(0)
    np.random.seed(0)
    with pytest.warns(UserWarning, match="runs without .RuntimeError: no backward pass"):
        other.train(gradient_steps=2, batch_size=16)
    assert all(th.equal(value, weights(other)[name]) for name, value in weights(eager).items())


@needs_compiler
@pytest.mark.slow
def test_more_models_than_torch_compiles_one_function_for() -> None:
    """All in one process, as a grid or a test suite makes them. Each has its own sizes, so that none serves another."""
    limit = th._dynamo.config.recompile_limit
    models = [small("Pendulum-v1", compile=True, policy_kwargs=dict(net_arch=[4 + n] * 2)) for n in range(limit + 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model in models:
            th._dynamo.utils.counters.clear()
            model.learn(21)
            assert model._losses.compiling
            assert th._dynamo.utils.counters["stats"]["unique_graphs"] >= 2


SPACED = """
import warnings
warnings.simplefilter("error")
from small import small
model = small("Pendulum-v1", compile=True, verbose=1).learn(22)
assert model._losses.compiling
"""


@needs_compiler
@pytest.mark.slow
def test_a_temporary_folder_with_a_space(tmp_path: Path) -> None:
    """The compiler is called all the same, and the user is told of the wait before it."""
    folder = tmp_path / "with space"
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    environment |= {"TMPDIR": str(folder), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    command = [sys.executable, "-c", SPACED]
    result = subprocess.run(command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Compiling the update: the first one takes up to two minutes.") == 1


@pytest.mark.parametrize(
    ("n_steps", "kwargs", "worth"),
    [
        (1_000, {}, False),
        (250_000, {}, True),
        (100_000, dict(policy_kwargs=dict(net_arch=[64, 64])), True),
        (5_000, dict(policy_kwargs=dict(net_arch=[64, 64])), False),
        (250_000, dict(use_sde=True), False),
        (250_000, dict(n_steps=3), True),
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
    monkeypatch.setattr(update.Losses, "_compile", lambda *_: pytest.fail("compiled"))
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


def last_layers(model: SMR) -> list[nn.Module]:
    """Of all critics."""
    stacked = getattr(model.critic, "q_network", None)
    if stacked is None:
        return [network[-1] for network in model.critic.q_networks]
    return [stacked.head if hasattr(stacked, "head") else stacked[-1]]


@pytest.mark.parametrize("model_class", [CIR, SMR, SACTanh, SimBa, BROFast])
def test_large_q_values_in_bfloat16(model_class: type[SMR]) -> None:
    """It has 8 bits: around 150 its neighbours are 149 and 151."""
    model = small("Pendulum-v1", model_class=model_class, precision="bfloat16")
    with th.no_grad():
        for layer in last_layers(model):
            layer.bias.add_(150)
        obs, actions = th.randn(256, 3), th.rand(256, 1)
        rounded, exact = model._q_values(model.critic, obs, actions), th.cat(model.critic(obs, actions), dim=1)
    assert exact.mean() > 140
    assert 1e-5 < (rounded - exact).abs().max() < 0.05
    assert len(rounded.unique()) > 200


@needs_compiler
def test_large_q_values_in_bfloat16_compiled() -> None:
    model = small("Pendulum-v1", precision="bfloat16", compile=True, learning_starts=1000).learn(30)
    with th.no_grad():
        for layer in last_layers(model):
            layer.bias.add_(150)
    batch = model.replay_buffer.sample(256)
    model._losses.compiling = True
    _, kept = model._losses.minimise(model.critic.optimizer, model._critic_loss, batch, th.tensor(0.1), th.randn(256, 1))
    assert model._losses.compiling
    assert len(kept.unique()) > 50  # of 30 transitions, by two critics


@pytest.mark.parametrize("kernel", ["foreach", "differentiable"])
def test_another_kernel_of_adam(kernel: str) -> None:
    """Which excludes the fused one; and it stays when the state of a fused one is loaded."""
    fused = small("Pendulum-v1").learn(30)
    model = small("Pendulum-v1", policy_kwargs=dict(optimizer_kwargs={kernel: True}))
    model.set_parameters(copy.deepcopy(fused.get_parameters()))
    for group in (*model.actor.optimizer.param_groups, *model.critic.optimizer.param_groups):
        assert (group[kernel], group["fused"]) == (True, False)
    if kernel == "foreach":
        model.learn(30)


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


def compiled(model: CIR) -> CIR:
    """As a user does it who wants his actor to be fast."""
    model.policy.actor = th.compile(model.policy.actor)
    return model


@th.compiler.set_stance("force_eager")  # names alone are looked at
def test_a_compiled_actor_leaves_no_trace(tmp_path: Path) -> None:
    """It is saved and loaded as any other is, both ways, and so are checkpoints."""
    model = compiled(small("Pendulum-v1")).learn(40, callback=Checkpoint(20, tmp_path / "steps"))
    obs = np.ones((1, 3), np.float32)
    assert isinstance(model.policy.actor, th._dynamo.OptimizedModule)
    assert not any("_orig_mod" in name for name in parameters.take(model))
    model.save(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = CIR.load(tmp_path / "model", device="cpu", trusted=False)
        same(plain, model)
        np.testing.assert_array_equal(plain.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])
        other = compiled(small("Pendulum-v1", seed=1))
        other.set_parameters(tmp_path / "model.zip")
        assert all(th.equal(value, weights(model)[name]) for name, value in weights(other).items())
        resumed = CIR.resume(tmp_path / "steps", gym.make("Pendulum-v1"), device="cpu")
        same(resumed, model)
    resumed.learn(60, callback=Checkpoint(20, tmp_path / "steps"))
    other = compiled(small("Pendulum-v1", seed=2))
    other.restore(tmp_path / "steps")
    same(other, resumed)
    other.learn(70)
