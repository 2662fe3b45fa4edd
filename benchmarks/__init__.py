"""Run the paper's grids, draw its tables and figures, check its theorems: ``python -m benchmarks run | report | theory``."""
