"""The tables of the installed PyTorch wheel, each as a suite of cases; imported only in processes that run them."""

from __future__ import annotations

import importlib

from conformance.suites.suite import Suite

# Name on the command line: (module, function that builds it).
_SUITES = {
    "op": ("ops", "op_suite"),
    "foreach": ("ops", "foreach_suite"),
    "module": ("modules", "module_suite"),
    "compiled": ("compiled", "compiled_suite"),
    "optim": ("optimizers", "optimizer_suite"),
}
# `--compile` runs this one, and no other.
COMPILED = "compiled"
NAMES: tuple[str, ...] = tuple(name for name in _SUITES if name != COMPILED)


def load(name: str) -> Suite:
    """Builds the suite ``name``. The table behind it takes seconds to import, hence no import at the top."""
    module, function = _SUITES[name]
    suite: Suite = getattr(importlib.import_module(f"conformance.suites.{module}"), function)()
    return suite
