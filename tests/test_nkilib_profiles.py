"""What nki.check and nki.profile say about the kernels of nkilib, for each chip."""

import pytest
import torch

import nki
from nkilib.cross_entropy import cross_entropy_backward_kernel, cross_entropy_kernel
from nkilib.matmul import matmul_kernel
from nkilib.norms import layer_norm_backward_kernel, layer_norm_kernel, rms_norm_backward_kernel, rms_norm_kernel
from nkilib.rope import rope_kernel
from nkilib.softmax import softmax_backward_kernel, softmax_kernel
from nkilib.swiglu import swiglu_backward_kernel, swiglu_kernel, swiglu_mlp_kernel

TARGETS = ["trn1", "trn2", "trn3"]


def _floats(*shape, dtype):
    return torch.zeros(shape, dtype=dtype)


def _arguments(n, dtype):
    """Arguments of each kernel for `n` rows, by its name."""
    x, vector, column = _floats(n, 600, dtype=dtype), _floats(600, dtype=dtype), torch.zeros(n)
    target = torch.zeros(n, dtype=torch.int32)
    angles = torch.zeros(n, 32)
    return {
        "matmul": (matmul_kernel, (x, _floats(600, 700, dtype=dtype))),
        "matmul, transposed": (
            matmul_kernel, (_floats(600, n, dtype=dtype), _floats(700, 600, dtype=dtype), None, True, True),
        ),
        "softmax": (softmax_kernel, (x,)),
        "softmax of long rows": (softmax_kernel, (_floats(n, 9000, dtype=dtype),)),
        "softmax_backward": (softmax_backward_kernel, (x, x)),
        "rms_norm": (rms_norm_kernel, (x, vector)),
        "rms_norm_backward": (rms_norm_backward_kernel, (x, vector, column, x)),
        "layer_norm": (layer_norm_kernel, (x, vector, vector)),
        "layer_norm_backward": (layer_norm_backward_kernel, (x, vector, column, column, x)),
        "rope": (rope_kernel, (_floats(1, n, 4, 64, dtype=dtype), angles, angles)),
        "swiglu": (swiglu_kernel, (x, x)),
        "swiglu_backward": (swiglu_backward_kernel, (x, x, x)),
        "swiglu_mlp": (
            swiglu_mlp_kernel,
            (x, *(_floats(*s, dtype=dtype) for s in ((600, 900), (600, 900), (900, 600)))),
        ),
        "cross_entropy": (cross_entropy_kernel, (x, target)),
        "cross_entropy_backward": (
            cross_entropy_backward_kernel, (x, target, column, torch.ones(1), torch.ones(1)),
        ),
    }  # fmt: skip


NAMES = list(_arguments(1, torch.float32))
# The largest of what the kernels say they take: whatever overflows SBUF shows here.
LARGEST = {
    "matmul fp32": (matmul_kernel, ((2048, 2048), (2048, 2048)), torch.float32),
    "matmul bf16": (matmul_kernel, ((2048, 2048), (2048, 4096)), torch.bfloat16),
    "softmax fp32": (softmax_kernel, ((256, 8192),), torch.float32),
    "softmax of long rows fp32": (softmax_kernel, ((256, 16384),), torch.float32),
    "softmax_backward fp32": (softmax_backward_kernel, ((256, 8192), (256, 8192)), torch.float32),
    "rms_norm fp32": (rms_norm_kernel, ((256, 6144), (6144,)), torch.float32),
    "rms_norm bf16": (rms_norm_kernel, ((256, 12288), (12288,)), torch.bfloat16),
    "rms_norm_backward fp32": (rms_norm_backward_kernel, ((256, 6144), (6144,), (256,), (256, 6144)), torch.float32),
    "layer_norm fp32": (layer_norm_kernel, ((256, 6144), (6144,), (6144,)), torch.float32),
    "layer_norm bf16": (layer_norm_kernel, ((256, 12288), (12288,), (12288,)), torch.bfloat16),
    "layer_norm_backward fp32": (
        layer_norm_backward_kernel, ((256, 6144), (6144,), (256,), (256,), (256, 6144)), torch.float32,
    ),
    "swiglu fp32": (swiglu_kernel, ((256, 8192), (256, 8192)), torch.float32),
    "swiglu_backward fp32": (swiglu_backward_kernel, ((256, 8192),) * 3, torch.float32),
    "swiglu_mlp fp32": (swiglu_mlp_kernel, ((128, 4096), (4096, 24576), (4096, 24576), (24576, 512)), torch.float32),
    "swiglu_mlp bf16": (swiglu_mlp_kernel, ((512, 4096), (4096, 10240), (4096, 10240), (10240, 512)), torch.bfloat16),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found_wrong(name, dtype, target):
    kernel, arguments = _arguments(200, dtype)[name]
    found = nki.check(kernel, target=target)(*arguments)
    assert not found, str(found)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", list(LARGEST))
def test_the_largest_arguments_fit(name, target):
    kernel, shapes, dtype = LARGEST[name]
    found = nki.check(kernel, target=target)(*(_floats(*shape, dtype=dtype) for shape in shapes))
    assert not found, str(found)


@pytest.mark.parametrize("name", NAMES)
def test_modelled_time_grows_with_the_rows(name):
    times = []
    for rows in (1, 256, 512, 1024):
        kernel, arguments = _arguments(rows, torch.bfloat16)[name]
        times.append(nki.profile(kernel, target="trn2")(*arguments).latency_us)
    print(name, [f"{t:.1f} us" for t in times])
    assert times[0] > 0
    assert times == sorted(times)
    assert times[-1] > times[1]


def test_large_products_keep_the_tensor_engine_busy():
    a = torch.zeros(2048, 2048, dtype=torch.bfloat16)
    profile = nki.profile(matmul_kernel, target="trn2")(a, a)
    print(profile.text())
    assert profile.engines["tensor"] > 80


def test_norms_of_bf16_are_bound_by_the_transfers():
    x, weight = torch.zeros(4096, 2048, dtype=torch.bfloat16), torch.zeros(2048, dtype=torch.bfloat16)
    profile = nki.profile(rms_norm_kernel, target="trn2")(x, weight)
    print(profile.text())
    assert profile.engines["dma"] > 60
