"""Cached launches: outputs where the host promised them, arguments as they were at the call, aliases kept."""

import pytest
import torch
import torch.nn.functional as F
from busy import occupy
from comparison import assert_same, assert_same_as_cpu

pytestmark = pytest.mark.neuron_only


# --- outputs placed where the host promised


def test_two_outputs_of_equal_size_are_not_swapped(device):
    def losses(x, y):
        out = torch.ops.aten.nll_loss_forward(x, y, None, 1, -100)
        return list(out)

    def weighted(x, y):
        return list(torch.ops.aten.nll_loss_forward(x, y, torch.arange(4.0, device=x.device), 1, -100))

    target = torch.tensor([1, 0, 3, 2, 2])
    for function in (losses, weighted):
        assert_same_as_cpu(function, torch.randn(5, 4).log_softmax(1), target, device=device, repetitions=4)


def test_gradients_of_equal_size_are_not_swapped(device):
    def program(x, w, b):
        F.conv2d(x, w, b, padding=1).pow(2).sum().backward()
        return x.grad, w.grad, b.grad

    # input and weight of the same number of bytes
    x, w = torch.randn(3, 3, 3, 3, requires_grad=True), torch.randn(3, 3, 3, 3, requires_grad=True)
    assert_same_as_cpu(program, x, w, torch.randn(3, requires_grad=True), device=device, repetitions=4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.linalg.qr(x),
        lambda x: torch.linalg.svd(x),
        lambda x: torch.frexp(x),
        lambda x: x.sort(1),
        lambda x: torch.var_mean(x, 1),
        lambda x: torch.aminmax(x, dim=0),
        lambda x: x.max(0),
        lambda x: torch.linalg.slogdet(x),
        lambda x: torch.lu_unpack(*torch.linalg.lu_factor(x)),
        lambda x: torch.native_layer_norm(x, (8,), None, None, 1e-5),
    ],
    ids=["qr", "svd", "frexp", "sort", "var_mean", "aminmax", "max", "slogdet", "lu", "layer_norm"],
)
def test_ops_of_several_outputs(device, function):
    assert_same_as_cpu(lambda x: list(function(x)), torch.randn(8, 8), device=device, repetitions=4)


def test_out_argument_is_resized_and_filled(device):
    def program(x):
        out = torch.empty(0, device=x.device)
        torch.add(x, 1, out=out)
        again = torch.empty(0, device=x.device)
        torch.mm(x, x, out=again)
        values, indices = torch.empty(0, device=x.device), torch.empty(0, dtype=torch.int64, device=x.device)
        torch.max(x, 1, out=(values, indices))
        return out, again, values, indices

    assert_same_as_cpu(program, torch.randn(6, 6), device=device, repetitions=4)


def test_out_argument_that_dies_at_once(device):
    x = torch.randn(300, 300)
    on_device = x.to(device)
    for _ in range(30):
        out = torch.empty(0, device=device)
        torch.mul(on_device, 2, out=out)
        view = out[5]
        del out
        assert_same(view, x[5] * 2)


def test_out_argument_that_is_a_view_or_of_another_dtype(device):
    def program(x):
        y = torch.zeros(6, 6, device=x.device)
        torch.sum(x, 0, out=y[2])
        torch.add(x[0], x[1], out=y[:, 3])
        z = torch.zeros(6, dtype=torch.float64, device=x.device)
        torch.add(x[0], 1, out=z)
        return y, z

    assert_same_as_cpu(program, torch.randn(6, 6), device=device, repetitions=4)


# --- what the host changes after the launch


def test_scalar_tensor_of_the_cpu_may_change_after_the_launch(device):
    x = torch.randn(100)
    scale = torch.tensor(1.0)
    on_device = x.to(device)
    occupy(device)
    late = []
    for i in range(20):
        scale.fill_(i)
        late.append(on_device * scale)
        late.append(torch.add(on_device, 1, alpha=2) + scale)
    scale.fill_(-1)
    for i in range(20):
        assert_same(late[2 * i], x * i)
        assert_same(late[2 * i + 1], torch.add(x, 1, alpha=2) + float(i))


def test_pageable_source_of_a_nonblocking_copy_may_change(device):
    x = torch.zeros(1000)
    occupy(device)
    late = []
    for i in range(10):
        x.fill_(i)
        late.append(x.to(device, non_blocking=True))
    x.fill_(-1)
    assert [int(y.sum()) for y in late] == [1000 * i for i in range(10)]


def test_python_lists_of_arguments_may_change(device):
    x = torch.randn(6, 4)
    on_device = x.to(device)
    occupy(device)
    sizes, tensors = [2, 3], [on_device, on_device]
    padded = F.pad(on_device, sizes)
    joined = torch.cat(tensors)
    scalars = [1.0, 2.0]
    scaled = torch._foreach_mul(tensors, scalars)
    sizes[:] = [0, 0]
    tensors.clear()
    scalars[:] = [9.0, 9.0]
    assert_same(padded, F.pad(x, [2, 3]))
    assert_same(joined, torch.cat([x, x]))
    assert_same(list(scaled), [x, x * 2])


def test_scalars_that_change_each_step_hit_the_cache_with_their_new_value(device):
    x = torch.randn(50)
    on_device = x.to(device)
    for i in range(10):
        assert_same(on_device * (0.1 * i), x * (0.1 * i))
        assert_same(torch.add(on_device, on_device, alpha=i), torch.add(x, x, alpha=i))
        assert_same(on_device.clamp(-0.1 * i, 0.2 * i), x.clamp(-0.1 * i, 0.2 * i))
        assert_same(on_device.roll(i), x.roll(i))
        assert_same(on_device.sum() + i, x.sum() + i)
        assert_same(torch.full((3,), i, device=device), torch.full((3,), i))
        assert_same(torch.full((3,), i + 0.5, device=device), torch.full((3,), i + 0.5))
        assert_same(torch.arange(i, device=device), torch.arange(i))
        assert_same(on_device.addcmul(on_device, on_device, value=i / 7), x.addcmul(x, x, value=i / 7))


@pytest.mark.parametrize(("first", "second"), [(2, 2.5), (2.5, 2), (True, 2), (2, 1 + 2j), (2.5, True)])
def test_scalars_of_another_type_are_another_launch(device, first, second):
    for dtype in (torch.int32, torch.float32):
        x = torch.arange(4).to(dtype)
        on_device = x.to(device)
        for scalar in (first, second, first, second):
            assert_same(on_device * scalar, x * scalar)
            assert_same(on_device + scalar, x + scalar)


def test_shapes_that_alternate_do_not_mix(device):
    for shape in ((4,), (2, 2), (4, 1), (1, 4), (4,), (2, 2), (0,), ()):
        x = torch.randn(shape)
        assert_same(x.to(device) * 2, x * 2)
        assert_same(x.to(device).sum(), x.sum())
        assert_same(torch.cat([x.to(device).flatten()] * 3), torch.cat([x.flatten()] * 3))


def test_strides_that_alternate_do_not_mix(device):
    x = torch.randn(4, 4)
    on_device = x.to(device)
    for _ in range(3):
        for layout in (lambda t: t, lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[1:2].expand(4, 4)):
            assert_same(layout(on_device) * 2, layout(x) * 2)
            assert_same(layout(on_device).sum(0), layout(x).sum(0))
            assert_same(layout(on_device).contiguous(), layout(x).contiguous())


# --- aliases that schemas do not tell of


def test_unsafe_view_aliases(device):
    for _ in range(3):
        x = torch.randn(4, 4, device=device)
        y = torch.ops.aten._unsafe_view(x, (16,))
        assert y.data_ptr() == x.data_ptr()
        x.fill_(3)
        assert y.sum().item() == 48.0
        z = torch.ones(2, 3, 4, device=device) @ torch.ones(4, 4, device=device)  # uses _unsafe_view inside
        assert z.shape == (2, 3, 4)
        assert z.sum().item() == 96.0


def test_ops_that_may_return_their_argument(device):
    x = torch.randn(4, 4, device=device)
    for _ in range(3):
        assert x.contiguous().data_ptr() == x.data_ptr()
        assert x.to(torch.float32).data_ptr() == x.data_ptr()
        assert x.reshape(16).data_ptr() == x.data_ptr()
        assert x.resolve_conj().data_ptr() == x.data_ptr()
        assert x.expand_as(x).data_ptr() == x.data_ptr()
        assert x.clone().data_ptr() != x.data_ptr()
        assert torch.real(x).data_ptr() == x.data_ptr()


def test_clone_of_conjugate_and_negative_views(device):
    z = torch.randn(4, dtype=torch.complex64)
    for _ in range(3):
        on_device = z.to(device)
        assert on_device.conj().is_conj()
        assert not on_device.conj().clone().is_conj() or on_device.conj().clone().cpu().is_conj()
        assert_same(on_device.conj().clone(), z.conj().clone())
        assert_same(on_device.conj().imag.neg().clone(), z.conj().imag.neg().clone())
        assert_same(on_device.conj() * on_device, z.conj() * z)
        assert_same(torch._neg_view(on_device).clone(), torch._neg_view(z).clone())
        copy = torch.empty_like(on_device)
        copy.conj().copy_(on_device)
        assert_same(copy, z.conj().resolve_conj())


def test_zero_tensors(device):
    for _ in range(3):
        zero = torch._efficientzerotensor((3,), device=device)
        assert zero._is_zerotensor()
        assert zero.device.type == "neuron"
        x = torch.ones(3, device=device)
        assert (x + zero).tolist() == [1.0] * 3
        assert (x * zero).tolist() == [0.0] * 3
        assert zero.clone().tolist() == [0.0] * 3
        assert zero.cpu().tolist() == [0.0] * 3
    # Forward-mode differentiation makes them on its own.
    assert_same_as_cpu(
        lambda x: torch.func.jvp(lambda a, b: a * b, (x, x), (x, torch.zeros_like(x))), torch.randn(3), device=device
    )


def test_launches_in_flight_run_with_the_default_dtype_of_their_call(device):
    ones = torch.ones(64, 64, dtype=torch.int64, device=device)
    try:
        for turn in range(60):
            results = [ones / 3 for _ in range(20)]
            torch.set_default_dtype(torch.float32 if turn % 2 else torch.float64)
            assert {r.dtype for r in results} == {torch.float64 if turn % 2 else torch.float32}
        torch.accelerator.synchronize()
    finally:
        torch.set_default_dtype(torch.float32)
