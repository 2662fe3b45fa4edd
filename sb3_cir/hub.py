"""
What our algorithms need to go to the Hugging Face Hub and back by RL Zoo's ``push_to_hub`` and ``load_from_hub``.

The card of a published model gets a section: what the algorithm is, how to install this package, how the model was evaluated,
and the settings that it was trained with.
"""

import functools
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from pprint import pformat
from typing import Any

from sb3_cir import methods
from sb3_cir.runs import archive
from sb3_cir.runs.plain import from_plain

ABOUT_CIR = (
    "CIR (*Temporal Difference Learning with Constrained Initial Representations*, 2026, "
    "[arXiv 2602.11800](https://arxiv.org/abs/2602.11800)): SAC with a critic whose first layer is kept small, a target that "
    "mixes both critics, and two updates for every mini-batch."
)
# These say where a model is trained, not how.
ELSEWHERE = ("tensorboard_log", "verbose")


def with_our_part(save_model_card: Callable[..., None], algo: str, env_id: str, path: Path) -> Callable[..., None]:
    """
    :param save_model_card: RL Zoo's function that writes the card
    :param algo: RL Zoo's name of one of our algorithms
    :param env_id: The environment's Gymnasium id
    :param path: The model
    :return: The same with our section in the card, before the one on how to use the model
    """

    @functools.wraps(save_model_card)
    def amended(repo_dir: Path, card: str, metadata: Any) -> None:
        results = json.loads((repo_dir / "results.json").read_text(encoding="utf-8"))
        before, usage, after = card.partition("## Usage")
        save_model_card(repo_dir, before + section(algo, env_id, results, settings(algo, path)) + usage + after, metadata)

    return amended


def settings(algo: str, path: Path) -> dict[str, Any]:
    """
    :param algo: RL Zoo's name of one of our algorithms
    :param path: A model
    :return: The arguments that it was made with, as far as they are plain values. Nothing is unpickled.
    """
    plain = archive.read(methods.algorithm(algo), path, archive.READ_ALONE).plain
    return {
        name: from_plain(argument.value)
        for name, argument in plain.items()
        if argument.missing is None and name not in (*archive.SPACES, *ELSEWHERE)
    }


def section(algo: str, env_id: str, results: dict[str, Any], arguments: dict[str, Any]) -> str:
    """
    :param algo: RL Zoo's name of one of our algorithms
    :param env_id: The environment's Gymnasium id
    :param results: What ``huggingface_sb3`` writes of an evaluation
    :param arguments: See :func:`settings`
    :return: A part of a card, in Markdown
    """
    label = methods.label(algo)
    about = ABOUT_CIR if algo == "cir" else f"{label} comes with the package of {ABOUT_CIR}"
    checkout, extra = ("'.[dmc]'", "[dmc]") if env_id.startswith("dm_control/") else (".", "")
    kind = "deterministic" if results["is_deterministic"] else "sampled"
    return f"""## {label}

{about}

RL Zoo knows it once the package `sb3_cir` is installed, from a checkout of its repository or by git:
```sh
pip install -c constraints.txt {checkout}
pip install 'sb3-cir{extra} @ git+<address of the repository>'
```

Evaluation: {results["mean_reward"]:.2f} ± {results["std_reward"]:.2f}, mean and standard deviation of the returns of
{results["n_eval_episodes"]} episodes with {kind} actions.

Trained with
```python
{pformat(arguments, sort_dicts=False)}
```

"""


def repair() -> None:
    """
    Two names that RL Zoo 2.9 and today's ``huggingface_sb3`` and ``huggingface_hub`` do not agree on, without which
    ``push_to_hub`` ends at its first import, and ``load_from_hub`` at a model that has no statistics.
    """
    package, push = (sys.modules.get(name) for name in ("huggingface_sb3", "huggingface_sb3.push_to_hub"))
    if package is None or push is None:
        return
    if not hasattr(push, "generate_metadata"):
        vars(push)["generate_metadata"] = lambda *args: push._generate_metadata(*args).to_dict()
    if not hasattr(package.load_from_hub, "__wrapped__"):  # once is enough
        vars(package)["load_from_hub"] = _with_the_error_of_requests(package.load_from_hub)


def _with_the_error_of_requests(load_from_hub: Callable[..., str]) -> Callable[..., str]:
    """RL Zoo takes this error, which ``huggingface_hub`` had once, for "there is no such file"."""

    @functools.wraps(load_from_hub)
    def amended(*args: Any, **kwargs: Any) -> str:
        errors = importlib.import_module("huggingface_hub.errors")
        try:
            return load_from_hub(*args, **kwargs)
        except errors.LocalEntryNotFoundError:  # no answer: the file may be there
            raise
        except errors.EntryNotFoundError as error:
            raise importlib.import_module("requests.exceptions").HTTPError(str(error)) from error

    return amended
