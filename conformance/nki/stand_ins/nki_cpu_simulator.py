"""The name under which the harness of nki-library looks for a simulator: this one."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import nki
import nki.dtype
import nki.isa
import nki.isa.constants
import nki.language
import nki.tensor
import nki.typing

_TARGETS = {"2": "trn1", "3": "trn2", "4": "trn3"}


class _Simulated:
    def __init__(self, kernel: Any, cores: int = 1) -> None:
        self.kernel = kernel if isinstance(kernel, (nki.Kernel, nki.BoundKernel)) else nki.jit(kernel)
        self.cores = cores

    def __getitem__(self, cores: int) -> _Simulated:
        return _Simulated(self.kernel, cores)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        generation = "".join(c for c in os.environ.get("NKI_NC_VERSION", "3") if c.isdigit())[-1:]
        return nki.simulate(self.kernel, target=_TARGETS[generation])[self.cores](*args, **kwargs)


__path__: list[str] = []
nki.cpu_simulate = _Simulated  # type: ignore[attr-defined]
_compiler = types.ModuleType("nki.compiler")
_builtin = types.ModuleType("nki.builtin")
# `import a.b as c` looks for b in a.
nki.builtin, nki.compiler, nki.language.dtypes = _builtin, _compiler, nki.dtype  # type: ignore[attr-defined]
for _name, _module in {
    "": nki,
    ".builtin": _builtin,
    ".compiler": _compiler,
    ".isa": nki.isa,
    ".isa.constants": nki.isa.constants,
    ".language": nki.language,
    ".language.dtypes": nki.dtype,
    ".tensor": nki.tensor,
    ".typing": nki.typing,
}.items():
    sys.modules[f"{__name__}.nki{_name}"] = _module
