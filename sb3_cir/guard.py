"""Where version 0.1 had this callback."""

from sb3_cir.callbacks import NonFiniteGuard

__all__ = ["NonFiniteGuard"]
