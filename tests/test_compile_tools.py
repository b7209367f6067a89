"""What stands around compiled code: errors and fallback, caches across processes, listings, counts."""

import logging
import os
import pickle

import pytest
import torch
from processes import run_python
from torch import Tensor, nn

import torch_neuronx.compile.pipeline as pipeline
from torch_neuronx import knobs
from torch_neuronx.errors import GraphBuildError
from torch_neuronx.targets.emulator import target
from torch_neuronx.targets.emulator.space import MismatchError

pytestmark = pytest.mark.neuron_only


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    torch.neuron.reset_dynamo_metrics()
    with torch.compiler.config.patch(force_disable_caches=True):
        yield
    torch.compiler.reset()


def two_steps(x: Tensor) -> Tensor:
    return (x @ x).softmax(-1) + 1


# --- graphs that cannot be built


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch):
    """A compiler that fails at the first matrix product."""
    original = target.build_program

    def build(module):
        for node in module.graph.nodes:
            if node.target is torch.ops.aten.mm.default:
                reason = MismatchError("no loops for this one")
                reason.node = node  # type: ignore[attr-defined]
                raise reason
        return original(module)

    monkeypatch.setattr(target, "build_program", build)


@pytest.mark.usefixtures("broken")
def test_a_graph_that_cannot_be_built_is_an_error_with_op_shapes_and_line() -> None:
    x = torch.randn(4, 4, device="neuron")
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as raised:
        torch.compile(two_steps, backend="neuron")(x)
    error = raised.value.inner_exception
    assert isinstance(error, GraphBuildError)
    assert "aten.mm.default" in str(error)
    assert "torch.float32[4, 4], torch.float32[4, 4]" in str(error)
    assert "test_compile_tools.py" in str(error)
    assert "no loops for this one" in str(error)


@pytest.mark.usefixtures("broken")
def test_fallback_runs_the_graph_op_by_op_and_says_so_once() -> None:
    x = torch.randn(4, 4)
    pipeline._told.clear()
    f = torch.compile(two_steps, backend="neuron", options={"fallback_execution": True})
    with pytest.warns(UserWarning, match="op by op"):
        actual = f(x.to("neuron"))
    torch.testing.assert_close(actual.cpu(), two_steps(x))
    assert torch.neuron.get_dynamo_metrics()["fallbacks"] == 1
    assert torch.neuron.get_dynamo_metrics()["host_calls"] >= 3


@pytest.mark.usefixtures("broken")
def test_the_knob_allows_fallback_for_all_graphs() -> None:
    knobs.set("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "0")
    try:
        x = torch.randn(4, 4)
        pipeline._told.clear()
        with pytest.warns(UserWarning, match="op by op"):
            actual = torch.compile(two_steps)(x.to("neuron"))
        torch.testing.assert_close(actual.cpu(), two_steps(x))
    finally:
        knobs.set("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "1")


def test_errors_inside_the_builder_name_their_op(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise MismatchError("cannot")

    monkeypatch.setattr("torch_neuronx.targets.emulator.build.write_kernel", fail)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"op: aten\.add\.Tensor(.|\n)*float32\[4, 4\]"):
        torch.compile(lambda x: x + x.t(), backend="neuron")(torch.randn(4, 4, device="neuron"))


# --- caches

TRAIN = """
import sys, torch, torch_neuronx.compile.backend as backend
backend._identity = lambda: {identity!r}
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 4)).to("neuron")
f = torch.compile(model, dynamic={dynamic})
loss = f(torch.ones(3, 8, device="neuron")).square().sum()
loss.backward()
f(torch.ones(5, 8, device="neuron")).sum().backward()
m = torch.neuron.get_dynamo_metrics()
print(m["cache_hits"], m["graphs"], float(loss), float(model[0].weight.grad.sum()))
"""


def outcome(tmp_path, dynamic: bool, identity: str = "same") -> tuple[int, int, str]:  # type: ignore[no-untyped-def]
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "i"), "TORCH_NEURONX_CACHE_DIR": str(tmp_path / "n")}
    result = run_python(TRAIN.format(identity=identity, dynamic=dynamic), directory=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    hits, graphs, *numbers = result.stdout.split()
    return int(hits), int(graphs), " ".join(numbers)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_another_process_builds_nothing_again(tmp_path, dynamic: bool) -> None:  # type: ignore[no-untyped-def]
    hits, graphs, first = outcome(tmp_path, dynamic)
    assert (hits, graphs >= 2) == (0, True)
    hits, graphs, second = outcome(tmp_path, dynamic)
    assert (hits >= 1, graphs) == (True, 0)
    assert first == second
    hits, graphs, _ = outcome(tmp_path, dynamic, identity="other")  # another version of the compiler
    assert (hits, graphs >= 2) == (0, True)


@pytest.mark.slow
def test_a_failed_build_is_not_remembered(tmp_path) -> None:  # type: ignore[no-untyped-def]
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "i"), "TORCH_NEURONX_CACHE_DIR": str(tmp_path / "n")}
    program = """
import os, torch, torch_neuronx.compile.backend as backend
from torch_neuronx.targets.emulator import target
backend._identity = lambda: "same"
if "FAIL" in os.environ:
    def fail(module): raise RuntimeError("not today")
    target.build_program = fail
x = torch.ones(4, device="neuron")
try:
    print(torch.compile(lambda x: x * 2 + 1, backend="neuron")(x).tolist())
except torch._dynamo.exc.BackendCompilerFailed as error:
    print("failed", "not today" in str(error))
"""
    failed = run_python(program, directory=tmp_path, env={**environment, "FAIL": "1"})
    assert failed.stdout.split() == ["failed", "True"], failed.stderr
    assert run_python(program, directory=tmp_path, env=environment).stdout.strip() == "[3.0, 3.0, 3.0, 3.0]"


@pytest.mark.slow
def test_artifacts_carry_programs_to_another_machine(tmp_path) -> None:  # type: ignore[no-untyped-def]
    program = """
import os, sys, torch, torch_neuronx.compile.backend as backend
backend._identity = lambda: "same"
file = {file!r}
if os.path.exists(file):
    torch.compiler.load_cache_artifacts(open(file, "rb").read())
y = torch.compile(lambda x: (x @ x).softmax(-1))(torch.ones(4, 4, device="neuron"))
if not os.path.exists(file):
    open(file, "wb").write(torch.compiler.save_cache_artifacts()[0])
print(torch.neuron.get_dynamo_metrics()["graphs"], y.sum().item())
""".format(file=str(tmp_path / "artifacts"))
    for machine, graphs in (("a", "1"), ("b", "0")):
        environment = {
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / machine / "i"),
            "TORCH_NEURONX_CACHE_DIR": str(tmp_path / machine / "n"),
        }
        result = run_python(program, directory=tmp_path, env=environment)
        assert result.stdout.split() == [graphs, "4.0"], result.stderr


def test_compiled_graphs_can_be_pickled() -> None:
    kept = []
    original = target.build

    def build(*args):  # type: ignore[no-untyped-def]
        kept.append(original(*args))
        return kept[-1]

    target.build = build
    try:
        x = torch.randn(6, 6)
        expected = torch.compile(two_steps, backend="neuron")(x.to("neuron")).cpu()
    finally:
        target.build = original
    again = pickle.loads(pickle.dumps(kept[0]))
    assert torch.equal(again([x.to("neuron")])[0].cpu(), expected)


# --- what people look at


def test_listings_are_kept_on_request(tmp_path) -> None:  # type: ignore[no-untyped-def]
    knobs.set("TORCH_NEURONX_DEBUG_DIR", str(tmp_path))
    knobs.set("TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS", "1")
    try:
        torch.compile(two_steps, options={"model_name": "mine"})(torch.randn(4, 4, device="neuron"))
    finally:
        knobs.set("TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS", "0")
        knobs.set("TORCH_NEURONX_DEBUG_DIR", "")
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith(f"mine.inference.{os.getpid()}")
    assert "torch.ops.aten.mm.default" in (folder / "graph.py").read_text()
    (program,) = folder.glob("*.program.txt")
    text = program.read_text()
    assert "aten::mm.default(input0:float32[4, 4], input0:float32[4, 4])" in text
    assert "reduce_max f32" in text


def test_nothing_is_kept_unasked(tmp_path) -> None:  # type: ignore[no-untyped-def]
    knobs.set("TORCH_NEURONX_DEBUG_DIR", str(tmp_path))
    try:
        torch.compile(two_steps)(torch.randn(4, 4, device="neuron"))
    finally:
        knobs.set("TORCH_NEURONX_DEBUG_DIR", "")
    assert list(tmp_path.iterdir()) == []


def test_metrics_count_what_was_built_and_why_again(caplog: pytest.LogCaptureFixture) -> None:
    f = torch.compile(lambda x: (x @ x).relu() + 1, dynamic=False)
    f(torch.randn(4, 4, device="neuron"))
    m = torch.neuron.get_dynamo_metrics()
    assert (m["graphs"], m["programs"], m["steps"], m["kernels"], m["host_calls"]) == (1, 1, 2, 1, 0)
    assert m["recompilations"] == []
    assert m["build_seconds"] > 0
    with caplog.at_level(logging.INFO, logger="torch_neuronx.compile"):
        f(torch.randn(5, 5, device="neuron"))
    (again,) = torch.neuron.get_dynamo_metrics()["recompilations"]
    assert "size mismatch" in again["reason"]
    assert any("size mismatch" in record.getMessage() for record in caplog.records)
    torch.neuron.reset_dynamo_metrics()
    assert torch.neuron.get_dynamo_metrics()["graphs"] == 0


# --- without a compiler for kernels


def test_without_llvmlite_every_op_is_a_call(tmp_path) -> None:  # type: ignore[no-untyped-def]
    program = """
import torch
f = torch.compile(lambda x, w: torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, (8,)) @ w).sum(0))
x, w = torch.randn(4, 8), torch.randn(8, 8)
torch.testing.assert_close(f(x.to("neuron"), w.to("neuron")).cpu(), f(x, w), rtol=1e-4, atol=1e-4)
m = torch.neuron.get_dynamo_metrics()
print(m["kernels"], m["graphs"])
"""
    environment = {"TORCH_NEURONX_JIT": "0", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    result = run_python(program, directory=tmp_path, env=environment)
    assert result.stdout.split() == ["0", "1"], result.stderr


# --- regions


def test_a_region_never_stands_on_both_sides_of_another_unit() -> None:
    # y goes into the product and next to its result: one kernel could not be both before and after.
    def f(x: Tensor) -> Tensor:
        y = x * 2
        return y @ x + y

    x = torch.randn(8, 8)
    torch.testing.assert_close(torch.compile(f, fullgraph=True)(x.to("neuron")).cpu(), f(x))
    assert torch.neuron.get_dynamo_metrics()["steps"] == 3


def test_updates_of_inputs_are_done_where_they_lie() -> None:
    model = nn.BatchNorm2d(4)
    copy = nn.BatchNorm2d(4).to("neuron")
    x = torch.randn(2, 4, 3, 3)
    address = copy.running_mean.data_ptr()  # type: ignore[union-attr, operator]
    compiled = torch.compile(copy)
    for _ in range(2):
        torch.testing.assert_close(compiled(x.to("neuron")).cpu(), model(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(copy.running_mean.cpu(), model.running_mean)  # type: ignore[union-attr, operator]
    assert copy.running_mean.data_ptr() == address  # type: ignore[union-attr, operator]
