"""Benchmarks of sb3_cir; the package itself imports nothing from here."""
