"""A pytest plugin that lets the harness of nki-library be imported without what it needs for remote hosts.

Its tests run kernels here and compare arrays; connections to other machines, uploads and plots are not made.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any, ClassVar

_MISSING = ("test.utils.scripts", "test.utils.perf_analysis_private")
_ABSENT = (
    "aws_embedded_metrics",
    "boto3",
    "botocore",
    "fabric2",
    "paramiko",
    "plotext",
    "pytest_html",
    "invoke",
    "filelock",
)


# The scripts that the public copy of the harness imports, but does not contain, are stood in for as well.
class _Anything(types.ModuleType):
    """A module whose every attribute is a class of that name."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = type(name, (Exception,), {})
        setattr(self, name, found)
        return found


class _Finder:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in _ABSENT or name.startswith(_MISSING):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


# Last, so that packages that are installed are used.
sys.meta_path.append(_Finder())  # type: ignore[arg-type]


def pytest_sessionstart(session: Any) -> None:
    """The harness asks what it compiled, which in simulation is nothing; the public copy forgets to say so."""
    harness = sys.modules.get("test.utils.test_orchestrator")
    if harness is not None and not hasattr(harness.Orchestrator, "_compiled_kernel"):
        harness.Orchestrator._compiled_kernel = None
