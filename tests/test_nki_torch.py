"""Kernels of NKI in PyTorch: on tensors of the device, as ops, under autograd and torch.compile, in graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import nki
import nki.isa as nisa
import nki.language as nl
from nki.errors import UnknownFrameworkError
from torch_neuronx import nki_op, wrap_nki
from torch_neuronx.errors import KernelTensorsError, NoKernelGradientError


@nki.jit
def multiply(x, y):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, x.shape[0], 128):
        rows = slice(start, min(start + 128, x.shape[0]))
        a, b = nl.load(x[rows, :]), nl.load(y[rows, :])
        nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.multiply)
        nl.store(out[rows, :], a)
    return out


@nki.jit
def scale_in_place(x, by):
    tile = nl.load(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=by)
    nl.store(x, tile)


@nki.jit
def add_constant(x):
    constant = nl.shared_constant(np.arange(x.shape[1], dtype=np.float32)[None, :].repeat(x.shape[0], 0))
    tile, numbers = nl.load(x), nl.load(constant)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=numbers, op=nl.add)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


@nki.jit
def pick_row(x, index):
    row = nl.load(index)
    tile = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x.ap(pattern=[[x.shape[1], 1], [1, x.shape[1]]], vector_offset=row, indirect_dim=0))
    out = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@nki_op("test_nki::multiply")
def multiply_op(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return multiply(x, y)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _multiply_backward(ctx, gradient):
    x, y = ctx.saved_tensors
    return multiply_op(gradient.contiguous(), y), multiply_op(gradient.contiguous(), x)


multiply_op.register_autograd(_multiply_backward, setup_context=_save)


@nki_op("test_nki::scale_", mutates_args={"x"})
def scale_op(x: torch.Tensor, by: float) -> None:
    scale_in_place(x, by)


def test_tensors_of_the_device():
    x, y = numbers(300, 17), numbers(300, 17, seed=1)
    result = multiply(x.to("neuron"), y.to("neuron"))
    assert result.device.type == "neuron"
    torch.testing.assert_close(result.cpu(), x * y)


def test_a_kernel_runs_in_stream_order():
    x = numbers(128, 64).to("neuron")
    for _ in range(50):
        x = multiply(x + 1, torch.ones_like(x)) - 1
    torch.testing.assert_close(x.cpu(), numbers(128, 64), atol=1e-4, rtol=1e-4)
    side = torch.neuron.Stream()
    side.wait_stream(torch.neuron.current_stream())
    with torch.neuron.stream(side):
        doubled = multiply(x, torch.full_like(x, 2.0))
    torch.neuron.current_stream().wait_stream(side)
    torch.testing.assert_close(doubled.cpu(), 2 * x.cpu())


def test_arguments_are_written_in_place():
    x = numbers(8, 8).to("neuron")
    before = x._version
    scale_in_place(x, 3.0)
    assert x._version > before
    torch.testing.assert_close(x.cpu(), numbers(8, 8) * 3)
    transposed = numbers(4, 8).to("neuron").t()
    scale_in_place(transposed, 2.0)
    torch.testing.assert_close(transposed.cpu(), numbers(4, 8).t() * 2)


def test_constants_live_on_the_device():
    x = numbers(4, 8)
    torch.testing.assert_close(add_constant(x.to("neuron")).cpu(), x + torch.arange(8.0))


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_gradients_are_asked_of_those_who_give_them(device):
    x = numbers(4, 4).to(device).requires_grad_()
    result = multiply(x, x.detach())
    with pytest.raises(NoKernelGradientError, match="register_autograd"):
        result.sum().backward()
    with torch.no_grad():
        assert not multiply(x, x).requires_grad


def test_gradients_of_an_op():
    x, y = numbers(130, 6).to("neuron").requires_grad_(), numbers(130, 6, seed=1).to("neuron").requires_grad_()
    (multiply_op(x, y) * 2).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * y.detach().cpu())
    torch.testing.assert_close(y.grad.cpu(), 2 * x.detach().cpu())


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_opcheck(device):
    x, y = numbers(16, 8).to(device).requires_grad_(), numbers(16, 8, seed=1).to(device)
    # The check of where autograd was registered knows no devices but PyTorch's own.
    utilities = ["test_schema", "test_faketensor", "test_aot_dispatch_dynamic"]
    if device == "cpu":
        utilities.append("test_autograd_registration")
    torch.library.opcheck(multiply_op, (x, y), test_utils=utilities)
    torch.library.opcheck(scale_op, (y, 2.0), test_utils=utilities)


def test_an_op_is_one_node_of_a_compiled_graph():
    graphs = []

    def keep(graph, inputs):
        graphs.append([str(n.target) for n in graph.graph.nodes if n.op == "call_function"])
        return graph

    def f(x, y):
        return multiply_op(x + 1, y).relu()

    x, y = numbers(64, 8).to("neuron"), numbers(64, 8, seed=1).to("neuron")
    torch.compile(f, backend=keep, fullgraph=True)(x, y)
    assert sum("multiply" in name for name in graphs[0]) == 1
    compiled = torch.compile(f, fullgraph=True)
    torch.testing.assert_close(compiled(x, y).cpu(), ((x.cpu() + 1) * y.cpu()).relu())


def test_gradients_of_compiled_code():
    x = numbers(64, 8).to("neuron").requires_grad_()
    y = numbers(64, 8, seed=1).to("neuron")
    torch.compile(lambda x, y: (multiply_op(x, y) ** 2).sum(), fullgraph=True)(x, y).backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * x.detach().cpu() * y.cpu() ** 2)


def test_an_op_that_writes_in_compiled_code():
    def f(x):
        y = x * 1.0
        scale_op(y, 3.0)
        return y + 1

    x = numbers(8, 8).to("neuron")
    torch.testing.assert_close(torch.compile(f, fullgraph=True)(x).cpu(), x.cpu() * 3 + 1)


def test_wrapped_kernels():
    x, y = numbers(64, 8).to("neuron"), numbers(64, 8, seed=1).to("neuron")
    wrapped = wrap_nki(multiply)
    torch.testing.assert_close(wrapped(x, y).cpu(), x.cpu() * y.cpu())
    torch.testing.assert_close(wrapped[1](x, y=y).cpu(), x.cpu() * y.cpu())
    torch.testing.assert_close(wrapped(x.cpu(), y.cpu()), x.cpu() * y.cpu())
    compiled = torch.compile(lambda x, y: wrapped(x * 2, y) + 1, fullgraph=True)
    torch.testing.assert_close(compiled(x, y).cpu(), 2 * x.cpu() * y.cpu() + 1)


def test_a_plain_kernel_in_compiled_code():
    x, y = numbers(64, 8).to("neuron"), numbers(64, 8, seed=1).to("neuron")
    compiled = torch.compile(lambda x, y: multiply(x + 1, y) * 2)
    torch.testing.assert_close(compiled(x, y).cpu(), (x.cpu() + 1) * y.cpu() * 2)


def test_kernels_in_captured_graphs():
    x, y = numbers(64, 8).to("neuron"), numbers(64, 8, seed=1).to("neuron")
    multiply(x, y)
    graph = torch.neuron.NeuronGraph()
    with torch.neuron.graph(graph):
        result = multiply(x, y) + 1
    x.copy_(numbers(64, 8, seed=2))
    graph.replay()
    torch.testing.assert_close(result.cpu(), numbers(64, 8, seed=2) * y.cpu() + 1)


def test_faults_of_a_kernel_show_when_the_device_is_waited_for():
    x = numbers(16, 8).to("neuron")
    assert torch.equal(pick_row(x, torch.tensor([[3]], dtype=torch.int32).to("neuron")).cpu()[0], x.cpu()[3])
    result = pick_row(x, torch.tensor([[16]], dtype=torch.int32).to("neuron"))
    with pytest.raises(RuntimeError, match=r"pick_row.*out of bounds.*test_nki_torch.py:\d+"):
        result.cpu()
    with pytest.raises(IndexError, match="out of bounds"):
        pick_row(numbers(16, 8), torch.tensor([[16]], dtype=torch.int32))


def test_tensors_of_several_devices_are_refused():
    with pytest.raises(KernelTensorsError, match="one device"):
        multiply(numbers(4, 4).to("neuron"), numbers(4, 4))


def test_sparse_tensors_are_refused():
    with pytest.raises(UnknownFrameworkError, match="sparse_coo"):
        multiply(torch.eye(4).to_sparse(), numbers(4, 4))


def test_ranks_have_tensors_of_their_own():
    x = torch.ones(4, 4)
    nki.simulate(scale_in_place, ranks=2)(x, 2.0)
    torch.testing.assert_close(x, torch.ones(4, 4))


def test_both_physical_cores():
    @nki.jit
    def halves(x):
        core = nl.program_id(0)
        half = x.shape[0] // 2
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x[core * half : (core + 1) * half, :])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=float(core))
        nl.store(out[core * half : (core + 1) * half, :], tile)
        return out

    x = numbers(64, 8)
    expected = x + torch.tensor([0.0, 1.0]).repeat_interleave(32)[:, None]
    torch.testing.assert_close(halves[2](x.to("neuron")).cpu(), expected)
