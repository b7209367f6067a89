"""What all errors of nki are: a text made of facts, and the line of the kernel that they concern."""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = ["NkiError", "NkiValidationError"]


class NkiError(Exception):
    """Base of all errors of nki. `line` is (file, line, function) of the kernel, where one is concerned."""

    message: ClassVar[str] = ""

    def __init__(self, *, line: tuple[str, int, str] | None = None, **facts: Any) -> None:
        self.facts = facts
        self.line = line
        where = f"\n  {line[0]}:{line[1]}, in {line[2]}" if line and line[1] else ""
        super().__init__(self.message.format(**facts) + where)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.line, self.facts)


def _rebuild(cls: type[NkiError], line: Any, facts: dict[str, Any]) -> NkiError:
    return cls(line=line, **facts)


class NkiValidationError(NkiError, AssertionError):
    """An instruction that the chip does not have: base of all broken limits. AssertionError, as kernels catch it."""
