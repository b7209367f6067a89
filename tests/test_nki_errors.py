"""The catalogue of mistakes in kernels: complete in the glossary, with texts that can be made, of builtin kinds."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path

import pytest

from nki import errors, instruction_errors

GLOSSARY = (Path(__file__).parent.parent / "docs" / "nki-errors.md").read_text()
BASES = {errors.NkiError, errors.NkiValidationError}
CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, errors.NkiError) and cls.__module__.startswith("nki.")
]


def facts_of(cls: type[errors.NkiError]) -> dict[str, str]:
    """Something for each name in the text; numbers where the text formats numbers."""
    return {name: name.upper() for name in re.findall(r"\{(\w+)", cls.message)}


def test_glossary_has_every_error() -> None:
    assert [cls.__name__ for cls in CLASSES if f"`{cls.__name__}`" not in GLOSSARY] == []


def test_glossary_has_no_other_error() -> None:
    # Other files of the catalogue have classes of their own; only what stands in no file at all is wrong.
    source = "".join(path.read_text() for path in (Path(errors.__file__).parent).glob("*errors.py"))
    named = re.findall(r"^\| `(\w+)`", GLOSSARY, re.MULTILINE)
    assert len(named) == len(set(named))
    assert [name for name in named if f"class {name}(" not in source] == []


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls not in BASES], ids=lambda cls: cls.__name__)
def test_class(cls: type[errors.NkiError]) -> None:
    facts = facts_of(cls)
    error = cls(line=("kernel.py", 7, "kernel"), **facts)
    text = str(error)
    assert [fact for fact in facts.values() if fact not in text] == []
    assert text.endswith("kernel.py:7, in kernel")
    assert cls.__doc__
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert (str(again), again.line, again.facts) == (text, error.line, facts)
    builtin = {TypeError, ValueError, AssertionError, RuntimeError, IndexError, MemoryError}
    assert builtin & set(cls.__mro__), "a mistake is also of a builtin kind"


def test_mistakes_of_instructions_are_validation_errors() -> None:
    own = [getattr(instruction_errors, name) for name in instruction_errors.__all__]
    others = [cls.__name__ for cls in own if not issubclass(cls, errors.NkiValidationError)]
    assert others == ["RegisterInPythonError"]


def test_instructions_raise_every_mistake_of_theirs() -> None:
    folder = Path(errors.__file__).parent
    used = set()
    for path in (*folder.glob("isa/*.py"), folder / "operators.py"):
        used |= set(re.findall(r"\b(\w+Error)\b", path.read_text()))
    assert set(instruction_errors.__all__) - used == set()
