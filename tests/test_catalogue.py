"""The catalogue of errors: complete in the glossary, and of the kinds that callers expect."""

import inspect
import pickle
import re
from pathlib import Path

import pytest

from torch_neuronx import errors

ROOT = Path(__file__).parent.parent
CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.NeuronError)]
BASES = {
    errors.NeuronError,
    errors.InstallError,
    errors.KnobError,
    errors.DeviceError,
    errors.CompileError,
    errors.GraphError,
    errors.KernelError,
}


def test_glossary_has_every_python_error() -> None:
    glossary = (ROOT / "docs" / "errors.md").read_text()
    assert [cls.__name__ for cls in CLASSES if f"`{cls.__name__}`" not in glossary] == []


def test_glossary_has_every_native_error() -> None:
    glossary = (ROOT / "docs" / "errors.md").read_text()
    header = (ROOT / "csrc" / "runtime" / "errors.h").read_text()
    codes = re.findall(r"\[\[noreturn\]\] void (\w+)\(", header)
    assert len(codes) >= 8
    assert [code for code in codes if f"`{code}`" not in glossary] == []


def test_everything_is_exported() -> None:
    assert sorted(errors.__all__) == sorted(cls.__name__ for cls in CLASSES)


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls not in BASES])
def test_class(cls: type[errors.NeuronError]) -> None:
    facts = {name: name.upper() for name in re.findall(r"\{(\w+)", cls.message)}
    error = cls(**facts)
    assert "{" not in str(error)
    assert all(value in str(error) for value in facts.values())
    assert issubclass(cls, ImportError | ValueError | RuntimeError | TypeError | NotImplementedError)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (cls, str(error))
    # What to do: every text has more than the statement of what happened.
    assert len(re.split(r"[.:\n]\s", cls.message)) >= 2
