"""NKI, the Neuron Kernel Interface: kernels for Trainium in Python, which run, are checked and timed on any machine.

    import nki
    import nki.isa as nisa
    import nki.language as nl

    @nki.jit
    def double(x):
        tile = nl.load(x)
        result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(result, nl.multiply(tile, 2.0))
        return result

Calling `double` with NumPy arrays, CPU tensors or tensors of the device `neuron` runs it; `nki.check(double)(x)` lists
what the chip would fail on, `nki.profile(double)(x)` says how long it would take there (modelled).
"""

from __future__ import annotations

from . import collectives, dtype, isa, language, typing
from .checking import check
from .kernel import BoundKernel, Kernel, PerRank, jit, register_framework
from .profiling import profile
from .simulator import simulate

__all__ = [
    "BoundKernel",
    "Kernel",
    "PerRank",
    "check",
    "collectives",
    "dtype",
    "isa",
    "jit",
    "language",
    "profile",
    "register_framework",
    "simulate",
    "typing",
]
