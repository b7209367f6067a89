"""What the chip would fail on, or quietly get wrong, found before a kernel runs.

Limits of single instructions are checked where they are called (nki.isa); here is what takes the whole kernel.
"""

from __future__ import annotations

from .cores import check_cores
from .program import check_program
from .trace import check_trace

__all__ = ["check_cores", "check_program", "check_trace"]
