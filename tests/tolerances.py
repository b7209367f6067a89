"""The only place where a test may state a tolerance.

The rule is bit equality with CPU eager (`comparison.assert_same`). A tolerance is for what the device does on purpose
in another way than ATen's CPU kernels: low-precision matmul, convolution and attention accumulate in fp32 and round
once on the way out, as the chip's PSUM does.
"""

from typing import NamedTuple

import torch


class Tolerance(NamedTuple):
    rtol: float
    atol: float


# Twice the spacing of the format around 1: one rounding by us and one by the CPU kernel, which may round differently.
LOW_PRECISION_MATMUL = {
    torch.bfloat16: Tolerance(rtol=2 * 2**-7, atol=2 * 2**-7),
    torch.float16: Tolerance(rtol=2 * 2**-10, atol=2 * 2**-10),
}

# Several low-precision products in a row (a training step): each adds its rounding.
LOW_PRECISION_STEP = {
    torch.bfloat16: Tolerance(rtol=2e-2, atol=2e-2),
    torch.float16: Tolerance(rtol=4e-3, atol=4e-3),
}

# Recurrent layers and cells: ATen itself goes another way on an accelerator than on the CPU (fused cells and an input
# projection per step, against one projection for the whole sequence and oneDNN's LSTM), so sums have another order.
RECURRENT = {
    torch.float64: Tolerance(rtol=1e-12, atol=1e-12),
    torch.float32: Tolerance(rtol=1e-5, atol=1e-5),
}

# Against a float64 reference computed by NumPy.
AGAINST_FLOAT64 = {
    torch.float64: Tolerance(rtol=1e-12, atol=1e-12),
    torch.float32: Tolerance(rtol=1e-5, atol=1e-5),
    torch.bfloat16: Tolerance(rtol=2**-7, atol=2**-7),
    torch.float16: Tolerance(rtol=2**-10, atol=2**-10),
}

# Compiled graphs against CPU eager: kernels keep intermediate values unrounded and sum rows in an order of their own.
COMPILED = {
    torch.float64: Tolerance(rtol=1e-10, atol=1e-10),
    torch.float32: Tolerance(rtol=2e-5, atol=2e-6),
    torch.bfloat16: Tolerance(rtol=2e-2, atol=2e-2),
    torch.float16: Tolerance(rtol=4e-3, atol=4e-3),
    torch.complex64: Tolerance(rtol=2e-5, atol=2e-6),
}

# FlexAttention against dense attention in fp32 on the CPU: sums of products and of exponentials have another order.
ATTENTION = {
    torch.float32: Tolerance(rtol=1e-4, atol=1e-5),
    torch.bfloat16: Tolerance(rtol=2e-2, atol=2e-2),
    torch.float16: Tolerance(rtol=4e-3, atol=4e-3),
}
ATTENTION_GRADIENTS = {
    torch.float32: Tolerance(rtol=1e-3, atol=1e-4),
    torch.bfloat16: Tolerance(rtol=5e-2, atol=5e-2),
    torch.float16: Tolerance(rtol=1e-2, atol=1e-2),
}

# Kernels of nkilib against a float64 reference: they compute in fp32 and round once, which is half of the spacing of
# the format. fp32: rounding of sums of some thousand terms, and of exponentials.
NKILIB = {
    torch.float32: Tolerance(rtol=1e-5, atol=1e-5),
    torch.bfloat16: Tolerance(rtol=2**-8 + 2**-15, atol=1e-5),
    torch.float16: Tolerance(rtol=2**-11 + 2**-18, atol=1e-5),
}
# Where results were rounded on the way (probabilities, hidden values).
NKILIB_CHAINED = {
    torch.float32: Tolerance(rtol=1e-4, atol=1e-5),
    torch.bfloat16: Tolerance(rtol=2e-2, atol=2e-2),
    torch.float16: Tolerance(rtol=4e-3, atol=4e-3),
}
# The same for gradients through several kernels, each of which rounds.
NKILIB_GRADIENTS = {
    torch.float32: Tolerance(rtol=1e-4, atol=1e-5),
    torch.bfloat16: Tolerance(rtol=4e-2, atol=4e-2),
    torch.float16: Tolerance(rtol=5e-3, atol=5e-3),
}
# Attention of nkilib: probabilities, and in the gradient their gradients, are rounded to the operands' type before the
# Tensor engine multiplies them, as their sum over many keys averages out; fp32 has sums in another order.
NKILIB_ATTENTION = {
    torch.float32: Tolerance(rtol=1e-4, atol=1e-5),
    torch.bfloat16: Tolerance(rtol=2**-7, atol=1e-2),
    torch.float16: Tolerance(rtol=2**-10, atol=2e-3),
}
