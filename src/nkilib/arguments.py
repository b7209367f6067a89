"""What the ops ask of their arguments before a kernel is traced for them."""

from __future__ import annotations

import torch

from .errors import UnsupportedDtypeError, UnsupportedShapeError

__all__ = ["FLOATS", "as_rows", "require_floats", "require_shape", "supported"]

FLOATS = frozenset({torch.bfloat16, torch.float16, torch.float32})


def supported(*tensors: torch.Tensor | None) -> bool:
    """Whether the kernels compute with tensors like these: of one of FLOATS, the same for all, and not empty."""
    given = [t for t in tensors if t is not None]
    return given[0].dtype in FLOATS and all(t.dtype == given[0].dtype and t.numel() > 0 for t in given)


def require_floats(op: str, **operands: torch.Tensor | None) -> None:
    """All operands are of one of FLOATS and of the same, and none is empty.

    Raises:
        UnsupportedDtypeError, UnsupportedShapeError.
    """
    first: torch.Tensor | None = None
    for name, operand in operands.items():
        if operand is None:
            continue
        if operand.dtype not in FLOATS:
            known = ", ".join(sorted(str(d) for d in FLOATS))
            raise UnsupportedDtypeError(op=op, operand=name, dtype=operand.dtype, rule=f"the kernels take {known}")
        first = operand if first is None else first
        if operand.dtype != first.dtype:
            raise UnsupportedDtypeError(
                op=op,
                operand=name,
                dtype=operand.dtype,
                rule=f"all operands have one type, here {first.dtype}",
            )
        require_shape(op, name, operand, operand.numel() > 0, "kernels do not compute with empty tensors")


def require_shape(op: str, operand: str, tensor: torch.Tensor, holds: bool, rule: str) -> None:
    """
    Raises:
        UnsupportedShapeError: not `holds`.
    """
    if not holds:
        raise UnsupportedShapeError(op=op, operand=operand, shape=tuple(tensor.shape), rule=rule)


def as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """All dimensions but the last one as one."""
    return tensor.reshape(-1, tensor.shape[-1])
