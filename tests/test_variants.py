"""Each variant does what its label says, and CIR is none of them."""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from torch import nn

from sb3_cir import CIR, MlpPolicy
from sb3_cir.ablations import CRITICS
from sb3_cir.methods import METHODS, as_zoo_params, zoo_command
from sb3_cir.networks import UShape, UShapeCritic
from sb3_cir.variants import VARIANTS, arguments


def build(name: str | None = None, **kwargs: Any) -> CIR:
    """CIR on Pendulum with 40 random transitions, or a variant of it, small unless its label is about size."""
    kwargs |= {} if name is None else arguments(name)
    kwargs["policy_kwargs"] = dict(net_arch=[16, 16]) | kwargs.get("policy_kwargs", {})
    model = CIR("MlpPolicy", "Pendulum-v1", learning_starts=40, batch_size=16, buffer_size=100, seed=0, device="cpu", **kwargs)
    return model.learn(40)


def weights(module: nn.Module) -> dict[str, th.Tensor]:
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def q_values(model: CIR) -> th.Tensor:
    batch = model.replay_buffer._get_samples(np.arange(16))
    with th.no_grad():
        return th.cat(model.critic(batch.observations, batch.actions), dim=1)


def same(left: dict[str, th.Tensor], right: dict[str, th.Tensor]) -> bool:
    return left.keys() == right.keys() and all(th.equal(left[name], right[name]) for name in left)


def check_same_weights_other_values(cir: CIR, variant: CIR) -> None:
    """The critic alone differs, and not by its parameters."""
    assert same(weights(cir.policy), weights(variant.policy))
    assert not th.allclose(q_values(cir), q_values(variant), atol=1e-3)


def check_no_ln(cir: CIR, variant: CIR) -> None:
    assert {name for name in weights(cir.critic) if "norm" in name} == {"q_network.norm.weight", "q_network.norm.bias"}
    assert not [name for name in weights(variant.critic) if "norm" in name]
    shared = {name: weight for name, weight in weights(cir.critic).items() if "norm" not in name}
    assert same(shared, weights(variant.critic))
    assert not th.allclose(q_values(cir), q_values(variant), atol=1e-3)


def check_ln_per_place(cir: CIR, variant: CIR) -> None:
    """At depth 2 seven LayerNorms for each critic, which begin as CIR's one does and each have a gradient of their own."""
    norms = {name: weight for name, weight in weights(variant.critic).items() if ".norm." in name}
    assert len(norms) == 2 * (1 + 3 * 2)
    assert {tuple(weight.shape) for weight in norms.values()} == {(2, 1, 16)}
    assert th.allclose(q_values(cir), q_values(variant), atol=1e-5)
    variant.train(gradient_steps=1, batch_size=16)
    moved = [weight[critic] for name, weight in norms.items() if name.endswith("weight") for critic in range(2)]
    assert len({tuple(weight.flatten().tolist()) for weight in moved}) == 2 * 7


def check_as_printed(cir: CIR, variant: CIR) -> None:
    """No LayerNorm after a sum, so that there are five for each critic."""
    norms = {name for name in weights(variant.critic) if ".norm." in name}
    assert len(norms) == 2 * (1 + 2 * 2)
    assert not th.allclose(q_values(cir), q_values(variant), atol=1e-3)


def check_ortho_init(cir: CIR, variant: CIR) -> None:
    for name, weight in weights(variant.critic).items():
        if name.endswith("bias"):
            assert not weight.any(), name
        elif "norm" not in name:
            for matrix in weight:
                tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
                np.testing.assert_allclose(tall.T @ tall, np.eye(tall.shape[1]), atol=1e-5, err_msg=name)
    down = cir.critic.q_network.down[0].weight[0].detach()
    assert not np.allclose(down.T @ down, np.eye(16), atol=0.1)
    assert same(weights(cir.actor), weights(variant.actor))


def check_actor_ln(cir: CIR, variant: CIR) -> None:
    kinds = [type(layer) for layer in variant.actor.latent_pi]
    assert kinds == [nn.Linear, nn.LayerNorm, nn.ReLU] * 2
    assert [type(layer) for layer in cir.actor.latent_pi] == [nn.Linear, nn.ReLU] * 2
    assert type(variant.critic.q_network) is UShapeCritic


def check_actor_cir(cir: CIR, variant: CIR) -> None:
    """Its mean is linear in what one U-shape, of the critic's kind and as deep, makes of the observation."""
    body = variant.actor.latent_pi[0]
    assert type(body) is UShape
    assert [layer.weight.shape for layer in body.down] == [(1, 16, 16)] * 2
    critic = {
        name: parameter.shape[1:] for name, parameter in variant.critic.q_network.named_parameters() if "norm" not in name
    }
    del critic["head.weight"], critic["head.bias"]
    critic["input.weight"] = th.Size([3, 16])
    assert critic == {name: parameter.shape[1:] for name, parameter in body.named_parameters() if "norm" not in name}
    observations = th.randn(5, 3)
    mean, log_std, _ = variant.actor.get_action_dist_params(observations)
    assert th.equal(mean, variant.actor.mu(body(observations)[0]))
    assert log_std.shape == (5, 1)
    assert not [module for module in cir.actor.modules() if isinstance(module, UShape)]


def target_by_hand(model: CIR, convex_coef: float, entropy: bool) -> tuple[th.Tensor, th.Tensor]:
    """The model's target and the equation's, of the same noise."""
    batch, alpha = model.replay_buffer._get_samples(np.arange(16)), th.tensor(0.7)
    th.manual_seed(3)
    target = model._target(batch, alpha)
    th.manual_seed(3)
    with th.no_grad():
        next_actions, log_prob = model.actor.action_log_prob(batch.next_observations)
        next_q = th.cat(model.critic_target(batch.next_observations, next_actions), dim=1)
    smallest, largest = next_q.min(dim=1).values, next_q.max(dim=1).values
    value = convex_coef * smallest + (1 - convex_coef) * largest - (alpha * log_prob if entropy else 0)
    return target, (batch.rewards[:, 0] + 0.99 * (1 - batch.dones[:, 0]) * value)[:, None]


def check_target(convex_coef: float = 0.3, entropy: bool = True) -> Callable[[CIR, CIR], None]:
    def check(cir: CIR, variant: CIR) -> None:
        assert same(weights(cir.policy), weights(variant.policy))
        np.testing.assert_allclose(*target_by_hand(variant, convex_coef, entropy), rtol=1e-5)
        theirs, ours = target_by_hand(cir, convex_coef, entropy)
        assert not np.allclose(theirs, ours, atol=1e-3)

    return check


def check_batches(batches: int, updates: int) -> Callable[[CIR, CIR], None]:
    """Of one more step of learning: batches sampled, updates made."""

    def count(model: CIR) -> tuple[int, int]:
        sampled, sample, before = [], model.replay_buffer.sample, model._n_updates

        def counting(*args: Any, **kwargs: Any) -> Any:
            sampled.append(sample(*args, **kwargs))
            return sampled[-1]

        model.replay_buffer.sample = counting
        model.learn(1, reset_num_timesteps=False)
        return len(sampled), model._n_updates - before

    def check(cir: CIR, variant: CIR) -> None:
        assert count(cir) == (1, 2)
        assert count(variant) == (batches, updates)

    return check


def check_coef(coef: float) -> Callable[[CIR, CIR], None]:
    def check(cir: CIR, variant: CIR) -> None:
        hidden = th.randn(2, 4, 16)
        for model, mean in ((cir, 0.1), (variant, coef)):
            assert model.critic.q_network.compress(hidden).abs().mean().item() == pytest.approx(mean, rel=1e-4)
        check_same_weights_other_values(cir, variant)

    return check


def check_size(actor: list[int], critic: list[int]) -> Callable[[CIR, CIR], None]:
    def check(cir: CIR, variant: CIR) -> None:
        linear = [layer.out_features for layer in variant.actor.latent_pi if isinstance(layer, nn.Linear)]
        assert linear == actor
        network = variant.critic.q_network
        for layers in (network.down, network.up_hidden, network.up_out):
            assert [tuple(layer.weight.shape) for layer in layers] == [(2, width, width) for width in critic]

    return check


def check_weight_decay(cir: CIR, variant: CIR) -> None:
    """A step without gradients shrinks the critic by learning rate times decay, and nothing else."""
    for model, factor in ((cir, 1.0), (variant, 1 - 3e-4 * 0.01)):
        for network, expected in ((model.critic, factor), (model.actor, 1.0)):
            before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
            for parameter in network.parameters():
                parameter.grad = th.zeros_like(parameter)
            network.optimizer.step()
            for name, parameter in network.named_parameters():
                np.testing.assert_allclose(parameter.detach(), expected * before[name], rtol=1e-7, atol=1e-9, err_msg=name)


CHECKS: dict[str, Callable[[CIR, CIR], None]] = {
    "no_tanh": check_same_weights_other_values,
    "no_ln": check_no_ln,
    "cdq": check_target(convex_coef=1.0),
    "utd": check_batches(2, 2),
    "sigmoid": check_same_weights_other_values,
    "softmax": check_same_weights_other_values,
    "layer_norm": check_same_weights_other_values,
    "no_sc": check_same_weights_other_values,
    "actor_ln": check_actor_ln,
    "actor_cir": check_actor_cir,
    "res": check_same_weights_other_values,
    "no_ent": check_target(entropy=False),
    "no_input_ln": check_same_weights_other_values,
    "no_avg_r_norm": check_same_weights_other_values,
    "no_input_norm": check_same_weights_other_values,
    "max_r_norm": check_same_weights_other_values,
    "all_avg_r_norm": check_same_weights_other_values,
    "ortho_init": check_ortho_init,
    "wd": check_weight_decay,
    "avg_q": check_target(convex_coef=0.5),
    **{f"c_{c}": check_coef(c) for c in (0.01, 0.2, 0.5, 1.0)},
    **{f"depth_{depth}": check_size([512, 512], [512] * depth) for depth in (1, 3)},
    **{f"width_{width}": check_size([width] * 2, [width] * 2) for width in (128, 256, 1024)},
    **{f"m_{m}": check_batches(1, m) for m in (4, 6, 8, 10)},
    "ln_per_place": check_ln_per_place,
    "paper_up": check_same_weights_other_values,
    "as_printed": check_as_printed,
}


def test_every_variant_is_checked() -> None:
    """The critics' equations are in ``test_equations.py``, by label."""
    assert CHECKS.keys() == VARIANTS.keys()
    named = {variant.arguments.get("policy_kwargs", {}).get("critic_network", "CIR") for variant in VARIANTS.values()}
    assert named == CRITICS.keys()


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_differs_as_its_label_says(name: str) -> None:
    CHECKS[name](build(), build(name))


OF_SIZE = [name for name in VARIANTS if name.startswith(("depth_", "width_"))]


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in OF_SIZE])
def test_save_and_load(name: str, tmp_path: Path) -> None:
    """Those that differ in size alone are saved and loaded in ``test_zoo_methods.py``."""
    model = build(name)
    model.save(tmp_path / "model.zip")
    loaded = CIR.load(tmp_path / "model.zip")
    assert same(weights(model.policy), weights(loaded.policy))
    assert type(loaded.critic.q_network) is type(model.critic.q_network)
    for argument in ("convex_coef", "sample_reuse", "gradient_steps", "entropy_in_target"):
        assert getattr(loaded, argument) == getattr(model, argument)
    groups = [each.critic.optimizer.param_groups[0]["weight_decay"] for each in (model, loaded)]
    assert groups == [0.01 if name == "wd" else 0] * 2
    observation = np.ones(3, np.float32)
    np.testing.assert_array_equal(*(each.predict(observation, deterministic=True)[0] for each in (model, loaded)))


def test_policy_saves_and_loads_alone(tmp_path: Path) -> None:
    kwargs = dict(critic_network="NoSC", actor_network="ActorCIR", critic_weight_decay=0.1, avg_r_norm_coef=0.2)
    policy = build(policy_kwargs=kwargs).policy
    policy.save(tmp_path / "policy.pth")
    loaded = MlpPolicy.load(tmp_path / "policy.pth")
    assert {name: getattr(loaded, name) for name in kwargs} == kwargs
    assert same(weights(policy), weights(loaded))


def test_default_is_untouched() -> None:
    """Names, order and first values of the parameters, and the values computed, as they were before there were variants."""
    th.manual_seed(0)
    network = UShapeCritic(2, 3, [4, 4])
    layers = ["input", "norm", "down.0", "down.1", "up_hidden.0", "up_hidden.1", "up_out.0", "up_out.1", "head"]
    assert list(network.state_dict()) == [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]
    values = network(th.linspace(-1, 1, 6).reshape(2, 3)).flatten().tolist()
    expected = [-0.38670799136161804, -0.45606085658073425, -0.7773056030273438, -0.8269486427307129]
    assert values == pytest.approx(expected, abs=1e-6)


def test_own_critic_network() -> None:
    class Scaled(UShapeCritic):
        def squash(self, x: th.Tensor) -> th.Tensor:
            return 2 * th.tanh(x)

    network = build(policy_kwargs=dict(critic_network=Scaled)).critic.q_network
    x = th.randn(4, 4)
    assert th.equal(network.constrain(x), 2 * UShapeCritic.squash(network, network.compress(network.input(x.expand(2, 4, 4)))))


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        (dict(critic_network="NoTan"), "critic_network='NoTan': it must be one of 'CIR', 'NoTanh'"),
        (dict(actor_network="LN"), "actor_network='LN': it must be one of 'CIR', 'ActorLN', 'ActorCIR'"),
        (dict(critic_weight_decay=-1), "critic_weight_decay=-1: it must not be negative"),
        (
            dict(critic_weight_decay=0.1, optimizer_class=th.optim.RMSprop),
            r"critic_weight_decay=0\.1: RMSprop has no decoupled weight decay; PyTorch's Adam and AdamW have\.",
        ),
        (dict(actor_network="ActorCIR", net_arch=dict(pi=[16, 8], qf=[16])), r"net_arch\['pi'\]=\[16, 8\] has unequal widths"),
    ],
)
def test_bad_arguments(kwargs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build(policy_kwargs=kwargs)


def test_unknown_variant() -> None:
    with pytest.raises(
        ValueError, match="There is no variant 'notanh': did you mean 'no_tanh'\\? it must be one of no_tanh, no_ln"
    ):
        arguments("notanh")
    with pytest.raises(ValueError, match="There is no variant 'xyzzy': it must be one of no_tanh, no_ln"):
        arguments("xyzzy")


def test_arguments_are_a_copy() -> None:
    arguments("no_tanh")["policy_kwargs"]["critic_network"] = "CIR"
    assert arguments("no_tanh") == dict(policy_kwargs=dict(critic_network="NoTanh"))


@pytest.mark.parametrize("name", VARIANTS)
def test_zoo_reads_what_we_write(name: str) -> None:
    store_dict = pytest.importorskip("rl_zoo3.utils", reason="needs RL Zoo").StoreDict
    parser = argparse.ArgumentParser()
    parser.add_argument("-params", nargs="+", action=store_dict)
    assert parser.parse_args(["-params", *as_zoo_params(arguments(name))]).params == arguments(name)


def test_listing() -> None:
    """Names, labels and commands of all; the commands themselves run in ``test_zoo_methods.py``."""
    command = [sys.executable, "-m", "sb3_cir.variants", "--env", "Pendulum-v1"]
    head, _, empty, *lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert head.startswith("NAME")
    assert empty == ""
    assert len(lines) == 2 * len([method for method in METHODS.values() if method.algo])
    listed = dict(zip(lines[::2], lines[1::2], strict=True))
    assert listed["cir:no_tanh  NoTanh"] == (
        """    python -m rl_zoo3.train --algo cir --env Pendulum-v1 -params 'policy_kwargs:dict(critic_network="NoTanh")'"""
    )
    assert listed["simba_smr  SimBa (SMR)"] == "    python -m rl_zoo3.train --algo simba_smr --env Pendulum-v1"
    assert "--env odrl/" in listed["darc  DARC"]


def test_a_reader_who_has_seen_enough_of_the_listing_gets_no_traceback() -> None:
    """As ``python -m sb3_cir.variants | head`` does."""
    command = [sys.executable, "-m", "sb3_cir.variants"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_zoo_command() -> None:
    assert zoo_command("cir:cdq", "Pendulum-v1")[-2:] == ["-params", "convex_coef:1.0"]
    assert zoo_command("simba", "Pendulum-v1")[-4:] == ["--algo", "simba", "--env", "Pendulum-v1"]


def test_labels_are_the_papers() -> None:
    labels = {variant.label for variant in VARIANTS.values()}
    assert labels >= {"NoTanh", "NoLN", "CDQ", "UTD", "ActorLN", "ActorCIR", "Res", "NoEnt", "NoInputLN", "NoAvgRNorm"}
    assert labels >= {"NoInputNorm", "MaxRNorm", "AllAvgRNorm", "Orthoini", "WD", "AvgQ"}
    assert len(labels) == len(VARIANTS)


@pytest.mark.parametrize("module", ["methods", "tasks"])
def test_data_alone(module: str) -> None:
    """Loading the file loads no package that takes long."""
    path = sys.modules[f"sb3_cir.{module}"].__file__
    code = f"import runpy, sys; runpy.run_path({path!r}); print([n in sys.modules for n in ('torch', 'numpy', 'gymnasium')])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[False, False, False]"


def test_c_of_the_actor() -> None:
    actor = build(policy_kwargs=dict(actor_network="ActorCIR", avg_r_norm_coef=0.7)).actor
    assert actor.latent_pi[0].avg_r_norm.coef == 0.7
