"""
Train CIR on cartpole-balance through RL Zoo, say what it has learned, draw the learning curve, film the agent.

``make demo`` runs this. Everything it writes goes to ``demo/``.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_cir import CIR, envs

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ENV_ID = "dm_control/cartpole-balance-v0"
STEPS = 5_000  # of the agent: the paper's warm-up of 2,500 and as many train calls, about 8 minutes on 2 cores
EVAL_EVERY = 500
OUT = Path("demo")
NO_VIDEO = (
    "No video: no GL backend could be opened. Install libegl1 and libgl1-mesa-dri (Debian's names) for MUJOCO_GL=egl, "
    "or libosmesa6 for MUJOCO_GL=osmesa, and run `make demo` again."
)


def zoo(script: str, *arguments: str, env: dict[str, str] | None = None, quiet: bool = False) -> int:
    """Run one of RL Zoo's scripts as a user would, and show the command."""
    command = ["-m", f"rl_zoo3.{script}", "--algo", "cir", "--env", ENV_ID, "-f", str(OUT / "logs"), "--seed", "0", *arguments]
    print("$ python", " ".join(command), flush=True)
    output = subprocess.DEVNULL if quiet else None
    return subprocess.run([sys.executable, *command], env=env, stdout=output, stderr=output).returncode


def draw_learning_curve(evaluations: Path, picture: Path) -> None:
    """Mean and standard deviation over evaluation episodes against simulator steps."""
    data = np.load(evaluations)
    steps, returns = 2 * data["timesteps"], data["results"]
    mean, std = returns.mean(axis=1), returns.std(axis=1)
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.plot(steps, mean, marker="o", markersize=3)
    axes.fill_between(steps, mean - std, mean + std, alpha=0.2, linewidth=0)
    axes.axvline(5_000, color="grey", linestyle=":", linewidth=1)
    axes.annotate("learning starts", (5_000, 20), xytext=(4, 0), textcoords="offset points", color="grey", fontsize=8)
    episodes = returns.shape[1]
    axes.set(title=f"CIR on {ENV_ID}", xlabel="simulator steps", ylabel=f"return (mean ± std of {episodes} episodes)", ylim=0)
    figure.savefig(picture, dpi=150)


def film(video: Path) -> bool:
    """Film the trained agent for five seconds, with the first GL backend that opens."""
    chosen = os.environ.get("MUJOCO_GL")
    for backend in [chosen] if chosen else ["egl", "osmesa"]:
        env = {**os.environ, "MUJOCO_GL": backend}
        size = ["--env-kwargs", "render_kwargs:dict(height=480, width=640)"]
        if zoo("record_video", "-n", "250", "-o", str(OUT), "--no-render", *size, env=env, quiet=True) == 0:
            for made in OUT.glob("*-step-0-to-step-250.mp4"):
                shutil.move(made, video)
            return True
    return False


def main() -> None:
    """Train, evaluate, draw, film."""
    shutil.rmtree(OUT, ignore_errors=True)
    evaluation = ["--eval-freq", str(EVAL_EVERY), "--eval-episodes", "5"]
    if zoo("train", "-n", str(STEPS), *evaluation, "--verbose", "0", "-P") != 0:
        sys.exit("Training failed; what it printed above says why.")
    run = OUT / "logs" / "cir" / "dm_control-cartpole-balance-v0_1"

    model = CIR.load(run / "dm_control-cartpole-balance-v0.zip", buffer_size=1)
    mean, std = evaluate_policy(model, envs.make(ENV_ID, seed=1), n_eval_episodes=10, deterministic=True, warn=False)
    print(f"Deterministic return over 10 episodes: {mean:.1f} ± {std:.1f} (of 1000)")

    draw_learning_curve(run / "evaluations.npz", OUT / "learning_curve.png")
    print(f"Learning curve: {OUT / 'learning_curve.png'}")
    print(f"Video: {OUT / 'video.mp4'}" if film(OUT / "video.mp4") else NO_VIDEO)


if __name__ == "__main__":
    main()
