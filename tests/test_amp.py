"""Automatic mixed precision: autocast with CUDA's op lists, and the gradient scaler."""

import copy

import pytest
import torch
import torch.nn.functional as F
from comparison import assert_same
from tolerances import LOW_PRECISION_MATMUL, LOW_PRECISION_STEP
from torch import nn
from torch.testing._internal.autocast_test_lists import AutocastTestLists

pytestmark = pytest.mark.neuron_only  # the CPU has other lists


def autocast(dtype: torch.dtype = torch.bfloat16, **options) -> torch.autocast:
    return torch.autocast("neuron", dtype=dtype, **options)


def matrices(device, dtype=torch.float32, count=3):
    return [torch.randn(8, 8, device=device, dtype=dtype) for _ in range(count)]


LOWER = {
    "matmul": lambda a, b, c: a @ b,
    "mm": lambda a, b, c: torch.mm(a, b),
    "mv": lambda a, b, c: torch.mv(a, b[0]),
    "bmm": lambda a, b, c: torch.bmm(a[None], b[None]),
    "addmm": lambda a, b, c: torch.addmm(a, b, c),
    "addmv": lambda a, b, c: torch.addmv(a[0], b, c[0]),
    "addr": lambda a, b, c: torch.addr(a, b[0], c[0]),
    "baddbmm": lambda a, b, c: torch.baddbmm(a[None], b[None], c[None]),
    "addbmm": lambda a, b, c: torch.addbmm(a, b[None], c[None]),
    "linear": lambda a, b, c: F.linear(a, b, c[0]),
    "einsum": lambda a, b, c: torch.einsum("ij,kj->ik", a, b),
    "chain_matmul": lambda a, b, c: torch.linalg.multi_dot([a, b, c]),
    "vecdot": lambda a, b, c: torch.linalg.vecdot(a, b),
    "conv1d": lambda a, b, c: F.conv1d(a[None], b[:, :, None]),
    "conv2d": lambda a, b, c: F.conv2d(a[None, None], b[None, None, :3, :3]),
    "conv3d": lambda a, b, c: F.conv3d(a.view(1, 1, 4, 4, 4), b.view(1, 1, 4, 4, 4)[..., :2]),
    "conv_transpose1d": lambda a, b, c: F.conv_transpose1d(a[None], b[:, :, None]),
    "conv_transpose2d": lambda a, b, c: F.conv_transpose2d(a[None, None], b[None, None, :3, :3]),
    "conv_transpose3d": lambda a, b, c: F.conv_transpose3d(a.view(1, 1, 4, 4, 4), b.view(1, 1, 4, 4, 4)),
    "prelu": lambda a, b, c: F.prelu(a, b[0, :1]),
    "attention": lambda a, b, c: F.scaled_dot_product_attention(a[None, None], b[None, None], c[None, None]),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LOWER)
def test_matmul_like_ops_run_in_lower_precision(device, name, dtype):
    arguments = matrices(device)
    with autocast(dtype):
        result = LOWER[name](*arguments)
    assert result.dtype == dtype
    if name == "chain_matmul":
        return  # three products in a row; their single ones are compared
    exact = LOWER[name](*(a.to(dtype).double() for a in arguments)).to(dtype)
    scale = float(exact.abs().max())
    tolerance = LOW_PRECISION_MATMUL[dtype]
    torch.testing.assert_close(
        result.cpu(), exact.cpu(), rtol=tolerance.rtol, atol=tolerance.atol * max(scale, 1.0), msg=name
    )


FP32 = {
    "exp": lambda a, b: a.exp(),
    "log": lambda a, b: a.abs().log(),
    "pow": lambda a, b: (a.pow(2), a.abs().pow(b), 2.0**a),
    "rsqrt": lambda a, b: a.abs().rsqrt(),
    "reciprocal": lambda a, b: a.reciprocal(),
    "softmax": lambda a, b: (a.softmax(0), a.log_softmax(1), F.softmax(a, 0)),
    "layer_norm": lambda a, b: F.layer_norm(a, (8,)),
    "rms_norm": lambda a, b: F.rms_norm(a, (8,)),
    "group_norm": lambda a, b: F.group_norm(a, 2),
    "sum": lambda a, b: (a.sum(), a.sum(0)),
    "cumsum": lambda a, b: (a.cumsum(0), a.cumprod(0), a.prod()),
    "norm": lambda a, b: (a.norm(), a.norm(dim=0), torch.linalg.vector_norm(a)),
    "logsumexp": lambda a, b: a.logsumexp(0),
    "losses": lambda a, b: (F.mse_loss(a, b), F.l1_loss(a, b), F.smooth_l1_loss(a, b), F.huber_loss(a, b)),
    "cross_entropy": lambda a, b: F.cross_entropy(a, b.argmax(1)),
    "bce_with_logits": lambda a, b: F.binary_cross_entropy_with_logits(a, b.sigmoid()),
    "kl_div": lambda a, b: F.kl_div(a, b.sigmoid(), reduction="sum"),
    "cosine_similarity": lambda a, b: F.cosine_similarity(a, b),
    "cdist": lambda a, b: (torch.cdist(a, b), torch.dist(a, b), F.pdist(a)),
    "softplus": lambda a, b: F.softplus(a),
    "upsample": lambda a, b: F.interpolate(a[None, None], scale_factor=2, mode="bilinear"),
}


# Parts of these run before the cast, in the dtype of the arguments.
SEVERAL_OPS = ("log", "pow", "rsqrt", "bce_with_logits", "kl_div", "cross_entropy")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FP32)
def test_sensitive_ops_run_in_fp32(device, name, dtype):
    arguments = matrices(device, dtype, 2)
    expected = FP32[name](*(a.cpu().float() for a in arguments))
    with autocast(dtype):
        result = FP32[name](*arguments)
    for r, e in zip(
        result if isinstance(result, tuple) else (result,),
        expected if isinstance(expected, tuple) else (expected,),
        strict=True,
    ):
        assert r.dtype == torch.float32
        if name not in SEVERAL_OPS:
            assert_same(r, e, where=name)  # the fp32 op on the upcast values


PROMOTE = {
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "addcdiv": lambda a, b: torch.addcdiv(a, b, b),
    "atan2": lambda a, b: torch.atan2(b, a),
    "cross": lambda a, b: torch.cross(a[0, :3], b[0, :3], dim=0),
    "dot": lambda a, b: torch.dot(a[0], b[0]),
    "tensordot": lambda a, b: torch.tensordot(a, b, 1),
    "scatter_add": lambda a, b: a.scatter_add(0, torch.zeros(8, 8, dtype=torch.int64, device=a.device), b),
    "index_put": lambda a, b: a.index_put((torch.tensor([1], device=a.device),), b[:1]),
    "bilinear": lambda a, b: F.bilinear(a, b, b[None, :, :].float()),
    "grid_sample": lambda a, b: F.grid_sample(a[None, None], b.view(1, 4, 8, 2), align_corners=False),
    "add": lambda a, b: a + b,
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([b, a]),
}


@pytest.mark.parametrize("name", PROMOTE)
def test_mixed_arguments_promote_to_the_widest(device, name):
    wide, narrow = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device, dtype=torch.float16)
    with autocast(torch.float16):
        assert PROMOTE[name](wide, narrow).dtype == torch.float32


@pytest.mark.parametrize("name", ["relu", "mul", "view", "gelu", "batch_norm"])
def test_other_ops_keep_their_dtype(device, name):
    function = {
        "relu": lambda x: x.relu(),
        "mul": lambda x: x * 2,
        "view": lambda x: x.view(4, 16),
        "gelu": lambda x: F.gelu(x),
        "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    }[name]
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(8, 8, device=device, dtype=dtype)
        with autocast():
            assert function(x).dtype == dtype


def test_binary_cross_entropy_is_banned(device):
    x = torch.rand(3, device=device)
    with autocast(), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x, x)


# PyTorch's own table of ops and arguments, by the class that CUDA's lists put them in.
TABLES = {
    "torch_fp16": (torch, torch.float16),
    "torch_fp32": (torch, torch.float32),
    "torch_need_autocast_promote": (torch, torch.float32),
    "torch_expect_builtin_promote": (torch, None),
    "nn_fp16": (torch._C._nn, torch.float16),
    "nn_fp32": (torch._C._nn, torch.float32),
    "linalg_fp16": (torch._C._linalg, torch.float16),
}


@pytest.mark.parametrize("table", TABLES)
def test_op_lists_are_those_of_cuda(device, table):
    module, dtype = TABLES[table]
    wrong = []
    for op, arguments, *rest in getattr(AutocastTestLists(device), table):
        if op.startswith("cudnn") or (op == "einsum"):
            continue  # CUDA's library; einsum is tested above, its entry here has no argument list
        kwargs = rest[0] if rest and isinstance(rest[0], dict) else {}
        wanted = dtype or rest[0]
        with autocast(torch.float16):
            function = getattr(module, op, None) or getattr(torch._C._nn, op)
            result = function(*arguments, **kwargs)
        first = result[0] if isinstance(result, tuple) else result
        if isinstance(first, torch.Tensor) and first.dtype != wanted:
            wrong.append(f"{op}: {first.dtype}, expected {wanted}")
    assert not wrong


def test_nested_and_disabled_regions(device):
    a, b, _ = matrices(device)
    assert not torch.is_autocast_enabled("neuron")
    with autocast(torch.bfloat16):
        assert torch.is_autocast_enabled("neuron")
        assert torch.get_autocast_dtype("neuron") == torch.bfloat16
        assert (a @ b).dtype == torch.bfloat16
        with autocast(torch.float16):
            assert (a @ b).dtype == torch.float16
        assert (a @ b).dtype == torch.bfloat16
        with autocast(enabled=False):
            assert (a @ b).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.float16):
            assert (a @ b).dtype == torch.bfloat16
        assert (a.cpu() @ b.cpu()).dtype == torch.float32
    assert not torch.is_autocast_enabled("neuron")
    assert (a @ b).dtype == torch.float32


def test_decorator_and_default_dtype(device):
    @torch.autocast("neuron")
    def product(a, b):
        return a @ b

    a, b, _ = matrices(device)
    assert product(a, b).dtype == torch.get_autocast_dtype("neuron")
    assert torch.get_autocast_dtype("neuron") in (torch.bfloat16, torch.float16)


def test_unsupported_dtype_warns_and_is_off(device):
    a, b, _ = matrices(device)
    with pytest.warns(UserWarning, match="(?i)autocast"), torch.autocast("neuron", dtype=torch.int32):
        assert (a @ b).dtype == torch.float32


def test_float64_is_left_alone(device):
    a, b, _ = matrices(device, torch.float64)
    with autocast():
        assert (a @ b).dtype == torch.float64


def test_weights_are_cast_once_per_region(device):
    layer = nn.Linear(8, 8).to(device)
    x = torch.randn(4, 8, device=device)
    with torch.profiler.profile() as profile, autocast():
        for _ in range(3):
            layer(x)
    with torch.profiler.profile() as uncached, autocast(cache_enabled=False):
        for _ in range(3):
            layer(x)

    def casts(p):
        return sum(e.count for e in p.key_averages() if e.key == "aten::_to_copy")

    assert casts(uncached) == 9  # input, weight and bias, three times
    assert casts(profile) == 5  # the parameters only once


def test_weight_cache_ends_with_the_region(device):
    layer = nn.Linear(8, 8).to(device)
    x = torch.randn(4, 8, device=device)
    with autocast():
        first = layer(x)
    with torch.no_grad():
        layer.weight.mul_(2)
        layer.bias.zero_()
    with autocast():
        second = layer(x)
    assert not torch.equal(first, second)


class Scale(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="neuron", cast_inputs=torch.float32)
    def forward(ctx, x):
        ctx.seen = x.dtype, torch.is_autocast_enabled("neuron")
        assert ctx.seen == (torch.float32, False)
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="neuron")
    def backward(ctx, grad):
        assert not torch.is_autocast_enabled("neuron")
        return grad * 2


def test_custom_forward_and_backward(device):
    x = torch.randn(4, device=device, dtype=torch.bfloat16, requires_grad=True)
    with autocast():
        y = Scale.apply(x)
        assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad.dtype == torch.bfloat16
    assert x.grad.tolist() == [2.0] * 4


class SeesAutocast(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="neuron")
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a @ a

    @staticmethod
    @torch.amp.custom_bwd(device_type="neuron")
    def backward(ctx, grad):
        (a,) = ctx.saved_tensors
        assert torch.is_autocast_enabled("neuron")
        return (grad @ a + a @ grad).to(a.dtype)


def test_custom_backward_runs_in_the_state_of_forward(device):
    a = torch.randn(8, 8, device=device, requires_grad=True)
    with autocast():
        y = SeesAutocast.apply(a)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert a.grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_training_step_stays_near_fp32(device, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    reference = F.cross_entropy(model(x), y)
    reference.backward()
    low = copy.deepcopy(model).to(device)
    low.zero_grad()
    with autocast(dtype):
        loss = F.cross_entropy(low(x.to(device)), y.to(device))
    assert loss.dtype == torch.float32
    loss.backward()
    tolerance = LOW_PRECISION_STEP[dtype]
    torch.testing.assert_close(loss.cpu(), reference, rtol=tolerance.rtol, atol=tolerance.atol)
    for p, q in zip(low.parameters(), model.parameters(), strict=True):
        assert p.grad.dtype == torch.float32
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=tolerance.rtol, atol=tolerance.atol)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_under_autocast(device, name):
    layer = getattr(nn, name)(8, 8).to(device)
    x = torch.randn(3, 2, 8, device=device, requires_grad=True)
    with autocast(torch.bfloat16):
        y, _ = layer(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert x.grad.dtype == torch.float32
    assert torch.isfinite(x.grad).all()


class TestGradScaler:
    def step(self, device, poison: float = 1.0, **options):
        torch.manual_seed(0)
        model = nn.Linear(4, 1).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, **options)
        scaler = torch.amp.GradScaler("neuron", init_scale=2.0**10, growth_interval=2)
        before = model.weight.detach().clone()
        loss = model(torch.ones(2, 4, device=device)).sum() * poison
        scaler.scale(loss).backward()
        return model, optimizer, scaler, before

    def test_step_unscales(self, device):
        model, optimizer, scaler, before = self.step(device)
        assert scaler.is_enabled()
        assert model.weight.grad.tolist() == [[2.0 * 2**10] * 4]
        scaler.step(optimizer)
        scaler.update()
        assert_same(model.weight.detach(), (before - 0.5 * 2.0).cpu())
        assert scaler.get_scale() == 2.0**10

    @pytest.mark.parametrize("poison", [float("inf"), float("nan")])
    @pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}], ids=str)
    def test_infinite_gradients_skip_the_step(self, device, poison, options):
        model, optimizer, scaler, before = self.step(device, poison, **options)
        scaler.step(optimizer)
        scaler.update()
        assert_same(model.weight.detach(), before.cpu())
        assert scaler.get_scale() == 2.0**9

    def test_scale_grows_after_good_steps(self, device):
        model, optimizer, scaler, _ = self.step(device)
        scaler.step(optimizer)
        scaler.update()
        scaler.scale(model(torch.ones(2, 4, device=device)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 2.0**11

    def test_unscale_before_clipping(self, device):
        model, optimizer, scaler, _ = self.step(device)
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert norm.item() == pytest.approx((4 * 2.0**2 + 2.0**2) ** 0.5)
        scaler.step(optimizer)
        scaler.update()
        scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"):
            scaler.unscale_(optimizer)

    def test_state_round_trip(self, device):
        *_, optimizer, scaler, _ = self.step(device)
        scaler.step(optimizer)
        scaler.update()
        other = torch.amp.GradScaler("neuron")
        other.load_state_dict(scaler.state_dict())
        assert other.get_scale() == scaler.get_scale()
