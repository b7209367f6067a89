"""FlexAttention backward: gradients of query, key, value and captured tensors, compiled and eager, and training."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from attention_reference import CAUSAL, SOFT_CAP, Mods, alibi, dense, dense_attention, documents, flex, sliding_window
from compiling import assert_near, compiled, fresh_compiler
from tolerances import ATTENTION, ATTENTION_GRADIENTS
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

pytestmark = [
    pytest.mark.neuron_only,  # PyTorch has no backward of FlexAttention on the CPU
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]

SLOW = pytest.mark.slow  # most of the time is Dynamo's


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with fresh_compiler():
        yield


def operands(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, depth: int = 32, **kind: Any
) -> list[Tensor]:
    sizes = [(batch, heads, queries), (batch, kv_heads, keys), (batch, kv_heads, keys)]
    return [torch.randn(*size, depth, **kind) for size in sizes]


def assert_gradients(
    qkv: list[Tensor], mods: Mods, device: torch.device, eager: bool = False, lse: bool = True, **options: Any
) -> None:
    """Gradients of a combination of the output and, with `lse`, of the logsumexp of rows that have one."""
    reference = [t.float().clone().requires_grad_() for t in qkv]
    expected, logsumexp = dense_attention(*reference, mods)
    weights = torch.randn(expected.shape)
    of_rows = torch.randn(logsumexp.shape).masked_fill(logsumexp == -torch.inf, 0)
    rows = logsumexp.masked_fill(logsumexp == -torch.inf, 0)
    torch.autograd.backward([expected, rows] if lse else [expected], [weights, of_rows] if lse else [weights])

    leaves = [t.to(device).requires_grad_() for t in qkv]
    function = flex(*leaves, mods, **options)
    out, actual_rows = (function if eager else compiled(function))(*leaves)
    outputs, factors = [out], [weights.to(out.dtype)]
    if lse:
        outputs, factors = [out, actual_rows], [*factors, of_rows]
    torch.autograd.backward(outputs, [f.to(device) for f in factors])
    tolerance = ATTENTION_GRADIENTS[qkv[0].dtype]
    for name, have, want in zip("qkv", leaves, reference, strict=True):
        assert have.grad is not None
        assert want.grad is not None
        assert_near(have.grad, want.grad.to(have.dtype), tolerance, f"gradient of {name}", strides=False)


@pytest.mark.parametrize(
    "mods",
    [
        pytest.param(Mods(), id="plain", marks=SLOW),
        pytest.param(CAUSAL, id="causal", marks=SLOW),
        pytest.param(sliding_window(50), id="window", marks=SLOW),
        pytest.param(documents(torch.arange(300) // 70), id="documents"),
        pytest.param(alibi(4), id="alibi", marks=SLOW),
        pytest.param(SOFT_CAP, id="soft cap"),
    ],
)
def test_gradients(mods, device):
    assert_gradients(operands(2, 4, 2, 300, 300), mods, device)


@pytest.mark.parametrize("mods", [pytest.param(CAUSAL, id="causal", marks=SLOW), pytest.param(alibi(4), id="alibi")])
def test_eager_gives_the_same(mods, device):
    assert_gradients(operands(2, 4, 2, 150, 150), mods, device, eager=True)


@SLOW
def test_output_alone(device):
    assert_gradients(operands(1, 2, 2, 70, 80), SOFT_CAP, device, lse=False)


@SLOW
def test_logsumexp_alone(device):
    qkv = operands(1, 2, 2, 70, 80)
    leaves = [t.to(device).requires_grad_() for t in qkv[:2]]
    reference = [t.clone().requires_grad_() for t in qkv[:2]]
    function = flex(*leaves, qkv[2].to(device), SOFT_CAP)
    compiled(lambda q, k, v: function(q, k, v)[1].sin().sum())(*leaves, qkv[2].to(device)).backward()
    dense_attention(*reference, qkv[2], SOFT_CAP)[1].sin().sum().backward()
    for have, want in zip(leaves, reference, strict=True):
        assert_near(have.grad, want.grad, ATTENTION_GRADIENTS[torch.float32])


@SLOW
@pytest.mark.parametrize("block", [16, (32, 128), 512])
def test_block_sizes(block, device):
    assert_gradients(operands(1, 2, 2, 200, 233), sliding_window(90), device, block=block)


@SLOW
@pytest.mark.parametrize(("heads", "kv_heads", "queries", "keys"), [(1, 1, 300, 40), (3, 1, 1, 150), (4, 2, 129, 257)])
def test_heads_and_lengths(heads, kv_heads, queries, keys, device):
    assert_gradients(operands(1, heads, kv_heads, queries, keys, 20), Mods(), device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=SLOW)])
def test_low_precision(dtype, device):
    assert_gradients(operands(2, 4, 2, 140, 140, 64, dtype=dtype), Mods(SOFT_CAP.score, CAUSAL.mask), device)


@SLOW
def test_rows_without_keys_have_no_gradient(device):
    allowed = torch.rand(100, 130) > 0.7
    allowed[40:60] = False
    mods = Mods(mask=lambda allowed: lambda b, h, q, k: allowed[q, k], captured=[allowed])
    assert_gradients(operands(2, 2, 2, 100, 130), mods, device, block=32)


@SLOW
def test_keys_that_want_no_gradient(device):
    q, k, v = (t.to(device) for t in operands(1, 2, 2, 70, 70))
    q.requires_grad_()
    compiled(lambda q, k, v: flex_attention(q, k, v))(q, k, v).sum().backward()
    reference = q.detach().cpu().requires_grad_()
    dense(reference, k.cpu(), v.cpu(), None, None)[0].sum().backward()
    assert_near(q.grad, reference.grad, ATTENTION_GRADIENTS[torch.float32])


@pytest.mark.parametrize("eager", [pytest.param(False, id="compiled"), pytest.param(True, id="eager", marks=SLOW)])
def test_captured_tensors_that_are_learned(eager, device):
    qkv, bias = operands(2, 2, 2, 40, 40), torch.randn(2, 40, 40)
    reference = [t.clone().requires_grad_() for t in (*qkv, bias)]
    dense(*reference[:3], lambda s, b, h, q, k: s + reference[3][h, q, k], None)[0].sin().sum().backward()
    leaves = [t.to(device).requires_grad_() for t in (*qkv, bias)]

    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return flex_attention(q, k, v, lambda s, b, h, q, k: s + bias[h, q, k]).sin().sum()

    (function if eager else compiled(function))(*leaves).backward()
    for have, want in zip(leaves, reference, strict=True):
        assert_near(have.grad, want.grad, ATTENTION_GRADIENTS[torch.float32], strides=False)


class Attention(nn.Module):
    """A layer of attention whose inner part is given."""

    def __init__(self, width: int, heads: int, attend: Any) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return x + self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


def test_training(device):
    """Some steps of a small model end where they end on the CPU."""
    mods = sliding_window(30)
    block_mask = create_block_mask(mods.mask_mod(device), None, None, 100, 100, device=str(device))
    reference = Attention(64, 4, lambda q, k, v: dense_attention(q, k, v, mods)[0])
    model = Attention(64, 4, lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask)).to(device)
    model.load_state_dict(reference.state_dict())
    x = torch.randn(2, 100, 64)
    for module, function, data in (
        (reference, reference, x),
        (model, compiled(model), x.to(device)),
    ):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            function(data).square().mean().backward()
            optimizer.step()
    for (name, have), want in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert_near(have, want.detach(), ATTENTION[torch.float32], name)


@SLOW
def test_under_autocast(device):
    q, k, v = (t.to(device).requires_grad_() for t in operands(1, 2, 2, 60, 60))
    for function in (flex_attention, compiled(flex_attention)):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            out = function(q, k, v)
        assert out.dtype == torch.bfloat16
        (gradient,) = torch.autograd.grad(out.float().sum(), q)
        assert gradient.dtype == torch.float32


@SLOW
def test_programs_are_found_in_the_cache(device, tmp_path):
    """Also those that call the dense functions, whose graphs go into the cache with them."""
    from torch._inductor.utils import fresh_cache

    bias = torch.randn(20, 20, device=device, requires_grad=True)

    def lowered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, SOFT_CAP.score())

    def learned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, lambda s, b, h, q, k: s + bias[q, k])

    with torch.compiler.config.patch(force_disable_caches=False), fresh_cache():
        for function in (lowered, learned):
            results = []
            for found in (0, 1):
                torch._dynamo.reset()
                counters.clear()
                torch.manual_seed(5)
                q, k, v = (t.to(device).requires_grad_() for t in operands(1, 2, 2, 20, 20))
                out = compiled(function)(q, k, v)
                results.append([out, *torch.autograd.grad(out.sum(), [q, k, v])])
                assert counters["aot_autograd"]["autograd_cache_hit"] == found
            assert_near(results[1], [t.cpu() for t in results[0]], ATTENTION[torch.float32])
