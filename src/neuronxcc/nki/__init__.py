"""NKI Beta 1: kernels written for `import neuronxcc.nki`.

import neuronxcc.nki as nki
import neuronxcc.nki.language as nl

@nki.jit
def add(a, b):
    i_p = nl.arange(128)[:, None]
    i_f = nl.arange(512)[None, :]
    c = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nl.store(c[i_p, i_f], nl.load(a[i_p, i_f]) + nl.load(b[i_p, i_f]))
    return c
"""

from . import compiler, isa, language, typing
from .kernels import baremetal, benchmark, jit, simulate_kernel, trace
from .kernels import profiled as profile
from .typing import tensor

__all__ = [
    "baremetal", "benchmark", "compiler", "isa", "jit", "language", "profile", "simulate_kernel", "tensor", "trace",
    "typing"
]  # fmt: skip
