"""``python -m benchmarks run | keep | report | ...``: what CIR's benchmarks train, measure and show."""

import argparse
import importlib
import sys

from gymnasium.error import Error as GymnasiumError

from sb3_cir.extras import install_hint

COMMANDS = {
    "demo": "train CIR on cartpole-balance in minutes, draw what it learns, film it",
    "run": "train every method on every task of a suite with several seeds",
    "keep": "copy learning runs into one small file, with commit, command and processor",
    "report": "tables, figures and a page from logs",
    "theory": "the paper's theorems on random finite Markov chains",
    "speed": "what a train call costs, beside its matrix products alone and beside other implementations",
    "screen": "why CIR learns slowly on hard tasks, one part of CIR and SimBa at a time",
    "reliability": "runs that are killed, a full disk, damaged files, a long run",
    "hostile": "damaged and hostile files of models, checkpoints and replay buffers: what becomes of each",
    "preset": "return against minutes: CIR with small networks beside SAC, on a CPU",
    "prefill": "what 10,000 recorded transitions are worth on Pendulum",
}


def main(arguments: list[str] | None = None) -> int:
    """
    :param arguments: What follows ``python -m benchmarks``; None for the command line's
    :return: Exit status
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="CIR's benchmarks. Each command has a --help of its own."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="|".join(COMMANDS))
    try:
        for name, summary in COMMANDS.items():
            command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
            # Its module is imported when it is asked for and not before.
            if name in arguments[:1]:
                importlib.import_module(f"benchmarks.{name}").add_arguments(command)
        options = parser.parse_args(arguments)
        return int(importlib.import_module(f"benchmarks.{options.command}").main(options))
    except ModuleNotFoundError as error:
        problem = f"{error}. The benchmarks need more than the package: {install_hint('benchmarks')}"
    except (ValueError, OSError, ImportError, GymnasiumError) as error:
        problem = str(error)
    print(f"{parser.prog} {arguments[0]}: {problem}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
