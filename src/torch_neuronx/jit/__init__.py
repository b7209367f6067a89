"""The second tier of fused regions: machine code, made with LLVM, for stages that run often.

The tile kernels of csrc/engines run every program; a stage that earned it is handed over as text and replaced by what
:func:`compile_stage` gives, bit for bit the same. Without llvmlite nothing changes but speed.
"""

from .cache import ObjectCache, default_directory
from .compiler import Compiler, compile_stage
from .llvm import UnavailableError, available
from .stage import StageError

__all__ = [
    "Compiler",
    "ObjectCache",
    "StageError",
    "UnavailableError",
    "available",
    "compile_stage",
    "default_directory",
]
