"""Kernels that are wrong on purpose: copies of nkilib's modules with one change each, to see that their checks notice.

A mutation changes one node of a function's syntax tree. The mutated module is executed under another name, so that
nothing else sees it, and handed to the check of its family.
"""

import ast
import copy
import importlib
import random
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from nkilib_checks import strictly

Check = Callable[[types.ModuleType], None]

# Tokens of the language that stand in for each other: none of these pairs computes the same.
_TOKENS = {
    "add": "subtract",
    "subtract": "add",
    "multiply": "add",
    "maximum": "minimum",
    "minimum": "maximum",
    "equal": "not_equal",
    "not_equal": "equal",
    "greater_equal": "less",
    "greater": "less_equal",
    "less": "greater_equal",
    "less_equal": "greater",
    "exp": "square",
    "square": "copy",
    "rsqrt": "sqrt",
    "silu": "sigmoid",
    "silu_dx": "silu",
    "log": "exp",
    "copy": "square",
}
_COMPARISONS = {
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
_ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
# Positional operands of these instructions whose exchange changes the result.
_ORDERED = {"nc_matmul": (1, 2), "scalar_tensor_tensor": (1, 5)}
# Keyword arguments without which an instruction still means something.
_DROPPABLE = {"bias", "scale", "negate", "reverse0", "reverse1", "op1", "operand1", "channel_multiplier"}


@dataclass(frozen=True)
class Mutation:
    """One change: place `node` of the tree's walk, and the number of the change among those of that node."""

    family: str
    function: str
    kind: str
    description: str
    node: int
    choice: int

    @property
    def key(self) -> str:
        return f"{self.family}.{self.function}: {self.description}"


def checks() -> dict[str, Check]:
    """The check of each family: nkilib_checks, and further files of that kind."""
    found: dict[str, Check] = {"tiling": _check_tiling}
    for path in sorted(Path(__file__).parent.glob("nkilib_checks*.py")):
        found |= importlib.import_module(path.stem).CHECKS
    return found


def _check_tiling(module: types.ModuleType) -> None:
    for family in ("matmul", "norms"):
        checks()[family](standing_on(module, family, "tiling"))


def source_of(family: str) -> Path:
    path = importlib.import_module(f"nkilib.{family}").__file__
    assert path is not None
    return Path(path)


def mutations(family: str) -> list[Mutation]:
    """All changes of a family's functions, in the order of its source."""
    tree = ast.parse(source_of(family).read_text())
    seen: dict[str, int] = {}
    found = []
    for node_number, (function, node) in enumerate(_nodes(tree)):
        for choice, (_, text) in enumerate(_changes(node)):
            description = f"{ast.unparse(node)} -> {text}"
            number = seen[function + description] = seen.get(function + description, 0) + 1
            where = f" (no. {number})" if number > 1 else ""
            found.append(Mutation(family, function, _kind(node, text), description + where, node_number, choice))
    return found


def chosen(families: Sequence[str], count: int, seed: int, excluded: Sequence[str] = ()) -> list[Mutation]:
    """`count` mutations by a seed, in turns from all families, and within a family from all kinds of mutations.

    Those whose `key` is excluded are left out.
    """
    generator = random.Random(seed)
    decks = [
        _in_turns(generator, [m for m in mutations(family) if m.key not in excluded]) for family in sorted(families)
    ]
    generator.shuffle(decks)
    return [m for m in chain.from_iterable(zip_longest(*decks)) if m is not None][:count]


def _in_turns(generator: random.Random, found: list[Mutation]) -> list[Mutation]:
    """Shuffled, so that the kinds take turns."""
    generator.shuffle(found)
    by_kind: dict[str, list[Mutation]] = {}
    for mutation in found:
        by_kind.setdefault(mutation.kind, []).append(mutation)
    kinds = sorted(by_kind)
    generator.shuffle(kinds)
    return [m for m in chain.from_iterable(zip_longest(*(by_kind[kind] for kind in kinds))) if m is not None]


def mutated(mutation: Mutation) -> types.ModuleType:
    """The family's module with the change."""
    path = source_of(mutation.family)
    tree = ast.parse(path.read_text())
    _, node = list(_nodes(tree))[mutation.node]
    change, _ = list(_changes(node))[mutation.choice]
    tree = _Replace(node, change()).visit(tree)
    ast.fix_missing_locations(tree)
    return executed(mutation.family, tree, path)


def standing_on(module: types.ModuleType, family: str, below: str) -> types.ModuleType:
    """A family's module that imports from `module` where it would import from `nkilib.<below>`."""
    name = f"nkilib.{below}"
    original = importlib.import_module(name)
    sys.modules[name] = module
    try:
        path = source_of(family)
        return executed(family, ast.parse(path.read_text()), path)
    finally:
        sys.modules[name] = original


def executed(family: str, tree: ast.Module, path: Path) -> types.ModuleType:
    """A module of the family that is known to nobody."""
    module = types.ModuleType(f"mutated_{family}")
    module.__package__ = "nkilib"
    module.__file__ = str(path)
    # Classes of the standard library look for the module of what they decorate.
    sys.modules[module.__name__] = module
    try:
        exec(compile(tree, str(path), "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module


def caught(mutation: Mutation, check: Check) -> Exception | None:
    """What the check says about the change; None when it has not noticed. Traps of Python count: the test fails."""
    try:
        with strictly():
            check(mutated(mutation))
    except Exception as problem:  # noqa: BLE001 - whatever makes a test fail
        return problem
    return None


def _nodes(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Nodes in the bodies of all functions, with the name of the function."""
    for top in tree.body:
        functions = [top] if isinstance(top, ast.FunctionDef) else []
        if isinstance(top, ast.ClassDef):
            functions = [f for f in top.body if isinstance(f, ast.FunctionDef)]
        for function in functions:
            for statement in function.body:
                for node in ast.walk(statement):
                    yield function.name, node


def _kind(node: ast.AST, text: str) -> str:
    return type(node).__name__ if text != "(left out)" else "left out"


def _changes(node: ast.AST) -> Iterator[tuple[Callable[[], ast.AST], str]]:
    """What a node can become, and how that reads."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "nl":
        if node.attr in _TOKENS:
            yield from _as_changes(node, attr=_TOKENS[node.attr])
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        yield from _as_changes(node, ops=[_COMPARISONS[type(node.ops[0])]()])
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield from _as_changes(node, op=_ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.Slice) and node.upper is not None:
        # One element less than there should be, and the same number one place further on.
        less = ast.BinOp(copy.deepcopy(node.upper), ast.Sub(), ast.Constant(1))
        yield from _as_changes(node, upper=less)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield from _as_changes(node, value=node.value + 1)
    elif isinstance(node, ast.Call):
        yield from _call_changes(node)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _called(node.value).startswith("nisa."):
        yield (ast.Pass, "(left out)")


def _call_changes(call: ast.Call) -> Iterator[tuple[Callable[[], ast.AST], str]]:
    name = _called(call)
    if not name.startswith("nisa."):
        return
    for keyword in call.keywords:
        others = [k for k in call.keywords if k is not keyword]
        if keyword.arg in _DROPPABLE:
            yield from _as_changes(call, keywords=others)
        elif keyword.arg == "accumulate" and ast.unparse(keyword.value) != "False":
            yield from _as_changes(call, keywords=[*others, ast.keyword("accumulate", ast.Constant(False))])
    order = _ORDERED.get(name.removeprefix("nisa."))
    if [ast.unparse(a) for a in call.args[2:5:2]] == ["nl.multiply", "nl.multiply"]:
        order = None  # factors in another order
    if order is not None and len(call.args) > max(order):
        args = list(call.args)
        args[order[0]], args[order[1]] = args[order[1]], args[order[0]]
        yield from _as_changes(call, args=args)


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func)


def _as_changes(node: ast.AST, **fields: object) -> Iterator[tuple[Callable[[], ast.AST], str]]:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    yield (lambda: other), ast.unparse(other)


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)
