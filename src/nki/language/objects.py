"""Base of the objects that kernels pass about."""

from __future__ import annotations

from typing import Any

__all__ = ["NKIObject"]


class NKIObject:
    """Base class of a kernel's own configuration objects.

    Fields are what the class annotates, or else its plain attributes. Keywords of the constructor set them; defaults
    are attributes of the class. It works under `@dataclass`, with a constructor of its own, or as it is. Objects of one
    class with equal fields are equal, as NKI up to 0.6 had it.

    Raises:
        TypeError: a keyword that is no field, or a field without a value.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A class without annotations has its plain attributes as fields, also under @dataclass, which looks later.
        if not vars(cls).get("__annotations__"):
            cls.__annotations__ = {
                name: Any
                for name, value in vars(cls).items()
                if not name.startswith("_")
                and not callable(value)
                and not isinstance(value, (property, classmethod, staticmethod))
                and type(value).__hash__ is not None
            }

    def __init__(self, **kwargs: Any) -> None:
        fields = _fields(type(self))
        for name, value in kwargs.items():
            if name not in fields and fields:
                raise TypeError(f"{type(self).__name__} has no field {name!r}; its fields are {', '.join(fields)}")
            setattr(self, name, value)
        missing = [name for name in fields if not hasattr(self, name)]
        if missing:
            raise TypeError(f"{type(self).__name__} needs a value for {', '.join(missing)}")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted((name, _hashable(value)) for name, value in vars(self).items()))))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def _fields(cls: type) -> list[str]:
    """Annotated names, those of base classes first."""
    found: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        found.update(dict.fromkeys(vars(base).get("__annotations__", {})))
    return list(found)


def _hashable(value: Any) -> int:
    try:
        return hash(value)
    except TypeError:
        return hash(repr(value))
