"""What the lines of random programs say: templates over {a}, {b}, {c} (tensors), {s}, {t} (scalars), {n} (small int).

`torch` runs each of them on the CPU with results that do not depend on anything but the operands' values. Left out
because they do: casts of what does not fit from floating point to integers (vector and scalar instructions differ),
and what shows the sign or payload of a NaN.
"""

UNARY = (
    "{a}.abs()",
    "-{a}",
    "{a}.sqrt()",
    "{a}.rsqrt()",
    "{a}.reciprocal()",
    "{a}.exp()",
    "{a}.log()",
    "{a}.log1p()",
    "{a}.expm1()",
    "{a}.exp2()",
    "{a}.sin()",
    "{a}.cos()",
    "{a}.tanh()",
    "{a}.sigmoid()",
    "{a}.erf()",
    "{a}.square()",
    "{a}.floor()",
    "{a}.ceil()",
    "{a}.round()",
    "{a}.trunc()",
    "{a}.sign()",
    "{a}.relu()",
    "{a}.isnan()",
    "{a}.logical_not()",
    "{a}.clone()",
    "{a}.contiguous()",
    "torch.zeros_like({a})",
    "torch.full_like({a}, {n})",
    "F.silu({a})",
    "F.gelu({a})",
    "F.gelu({a}, approximate='tanh')",
    "F.softplus({a})",
    "F.leaky_relu({a}, 0.1)",
    "F.elu({a})",
    "F.hardtanh({a})",
    "F.mish({a})",
    "{a}.nan_to_num(0.0, 1.0, -1.0)",
)

# For integers and booleans without a floating point operand.
UNARY_INTEGRAL = ("~{a}", "{a}.bitwise_not()")

BINARY = (
    "{a} + {b}",
    "{a} - {b}",
    "{a} * {b}",
    "{a} / {b}",
    "torch.add({a}, {b}, alpha={n})",
    "torch.sub({a}, {b}, alpha={n})",
    "torch.minimum({a}, {b})",
    "torch.maximum({a}, {b})",
    "torch.fmax({a}, {b})",
    "{a}.abs() ** {b}",
    "torch.atan2({a}, {b})",
    "{a} < {b}",
    "{a} >= {b}",
    "{a} == {b}",
    "{a} != {b}",
    "torch.logical_and({a}, {b})",
    "torch.logical_xor({a}, {b})",
    "torch.where({a} > {b}, {a}, {b})",
    "{a}.masked_fill({b} > 0, {n})",
    "torch.lerp({a}, {b}, 0.25)",
    "{a} * {b} + {a}",
    "{a} * ({b}.to({a}.dtype) if {a}.is_floating_point() else {b})",
)

BINARY_INTEGRAL = ("{a} & {b}", "{a} | {b}", "{a} ^ {b}")

SCALAR = (
    "{a} + {s}",
    "{s} - {a}",
    "{a} * {s}",
    "{a} / {s}",
    "{s} / {a}",
    "{a} > {s}",
    "{a} <= {s}",
    "torch.add({a}, {s}, alpha={n})",
    "{a}.clamp({s}, {t})",
    "{a}.clamp_min({s})",
    "{a}.clamp(max={s})",
    "torch.where({a} > {s}, {a}, {t})",
    "torch.where({a} != {a}, {s}, {a})",
    "{a}.masked_fill({a} < {s}, {n})",
    "F.threshold({a}, 0.1, {n})",
    "{a} * {s} + {t}",
    "({a} - {s}).abs() * {t}",
)

POWERS = ("{a} ** 2", "{a} ** 3", "{a}.float() ** 0.5", "{a}.float() ** -1", "{a}.float() ** -0.5", "{a}.abs() ** 1.7")

TERNARY = (
    "torch.addcmul({a}, {b}, {c}, value=0.5)",
    "torch.addcdiv({a}, {b}, {c}, value=-0.1)",
    "torch.where({a} > 0, {b}, {c})",
    "torch.lerp({a}, {b}, {c})",
    "torch.clamp({a}, {b}, {c})",
    "{a} * {b} + {c}",
    "({a} - {b}) / ({c}.abs() + 1e-5)",
    "{a} * torch.sigmoid({b}) * {c}",
)

CASTS = (
    "{a}.to(torch.float32)",
    "{a}.float()",
    "{a}.to(torch.bfloat16)",
    "{a}.to(torch.float16)",
    "{a}.to(torch.float64)",
    "{a} != 0",
    "{a}.to(torch.bool)",
    "{a}.to(torch.bfloat16).to({a}.dtype) if {a}.is_floating_point() else {a} * 2",
    "({a}.to(torch.float32) * 0.5).to(torch.float16) + 1",
    "{a}.nan_to_num(0, 9, -9).clamp(-1000, 1000).to(torch.int32)",
    "{a}.nan_to_num(0, 9, -9).clamp(-1000, 1000).to(torch.int64)",
)

# Into {a}, of the shape of {a}.
IN_PLACE_UNARY = (
    "{a}.neg_()",
    "{a}.abs_()",
    "{a}.sqrt_()",
    "{a}.exp_()",
    "{a}.tanh_()",
    "{a}.sigmoid_()",
    "{a}.relu_()",
    "{a}.reciprocal_()",
    "{a}.zero_()",
    "{a}.fill_({n})",
    "{a}.clamp_(-1, {n})",
    "{a}.mul_({n})",
    "{a}.mul_(0.9)",
    "{a}.add_({n})",
    "{a}.add_(0.1).mul_(1.01)",
    "{a}.div_({s})",
    "{a}.masked_fill_({a} > {s}, {n})",
    "{a}.pow_(2)",
    "F.silu({a}, inplace=True)",
    "torch.mul({a}, 2, out={a})",
)
IN_PLACE_BINARY = (
    "{a}.add_({b})",
    "{a}.sub_({b}, alpha={n})",
    "{a}.mul_({b})",
    "{a}.div_({b})",
    "{a}.copy_({b}.to({a}.dtype) if {a}.dtype.is_floating_point else {b} > 0)",
    "{a}.copy_({b} * 2 if {a}.dtype.is_floating_point else {b} != 0)",
    "{a}.lerp_({b}, 0.3)",
    "{a}.masked_fill_({b} > 0, {n})",
    "{a}.addcmul_({b}, {b}, value=0.1)",
    "{a}.addcdiv_({b}, {b}.abs() + 1, value=-0.1)",
    "{a}.clamp_(max={b})",
    "torch.add({a}, {b}, out={a})",
    "torch.minimum({a}, {b}, out={a})",
    "{a}.mul_(0.9).add_({b}, alpha=0.1)",
    "{a} += {b}",
    "{a} *= {b}",
    "{a}[...] = {b} > 0",
)

# Between parts of one tensor: {x} is a slice along a dimension, {y} another of the same length.
SELF_OVERLAP = (
    "{x}.add_({y})",
    "{x}.copy_({y})",
    "{x}.mul_({y}).add_(1)",
    "{y}.sub_({x})",
    "torch.add({x}, {y}, out={x})",
)

ROW_WISE = (
    "{a}.sum(-1)",
    "{a}.sum(-1, keepdim=True)",
    "{a}.mean(-1)",
    "{a}.mean(-1, keepdim=True)",
    "{a}.amax(-1)",
    "{a}.amax(-1, keepdim=True)",
    "{a}.amin(-1, keepdim=True)",
    "{a}.argmax(-1)",
    "{a}.softmax(-1)",
    "{a}.log_softmax(-1)",
    "{a}.softmax(-1, dtype=torch.float32)",
    "{a}.var(-1)",
    "{a}.var(-1, keepdim=True, correction=0)",
    "{a}.std(-1, keepdim=True)",
    "{a}.logsumexp(-1)",
    "{a}.float().norm(dim=-1, keepdim=True)",
    "{a}.prod(-1)",
    "F.layer_norm({a}, {a}.shape[-1:])",
    "F.rms_norm({a}, {a}.shape[-1:])",
    "{a} - {a}.mean(-1, keepdim=True)",
    "{a} / {a}.sum(-1, keepdim=True)",
    # Reductions and scans that are not row-wise.
    "{a}.sum()",
    "{a}.sum(0)",
    "{a}.amax(0, keepdim=True)",
    "{a}.mean()",
    "{a}.cumsum(-1)",
    "{a}.float().softmax(0)",
)

# What models and optimizers are made of; intermediates die inside.
IDIOMS = (
    "0.5 * {a} * (1 + torch.tanh(0.7978845608 * ({a} + 0.044715 * {a} ** 3)))",
    "{a} * torch.rsqrt({a}.square().mean(-1, keepdim=True) + 1e-6)",
    "{a} * torch.rsqrt({a}.float().pow(2).mean(-1, keepdim=True) + 1e-6).to({a}.dtype) * {b}",
    "F.silu({a}) * {b}",
    "({a} * 0.125).masked_fill({b} > 0, float('-inf')).softmax(-1)",
    "{a} * 0.8 + torch.cat((-{a}[..., {a}.shape[-1] // 2 :], {a}[..., : {a}.shape[-1] // 2]), -1) * 0.6",
    "({a} - {a}.amax(-1, keepdim=True)).exp() / ({a} - {a}.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)",
    "({a} - {a}.mean(-1, keepdim=True)) / ({a}.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()",
    "({a} - {b}).square().mean()",
    "torch.sigmoid({a}) * torch.tanh({b}) + torch.sigmoid({b}) * {a}",
    "{a}.addcdiv({b} * 0.1, ({b} * {b} * 0.001).sqrt().add_(1e-8), value=-0.001)",
)

FOREACH = (
    "torch._foreach_add_([{a}, {b}], 2.0)",
    "torch._foreach_mul_([{a}, {b}], 0.9)",
    "torch._foreach_add_([{a}], [{b}], alpha=0.5)",
    "torch._foreach_lerp_([{a}], [{b}], 0.1)",
    "torch._foreach_addcmul_([{a}], [{b}], [{b}], 0.1)",
    "torch._foreach_sqrt_([{a}, {b}])",
    "torch._foreach_zero_([{a}, {b}])",
)
FOREACH_NEW = (
    "torch._foreach_mul([{a}, {b}], 2.0)[1]",
    "torch._foreach_sqrt([{a}, {b}])[0]",
    "torch._foreach_add([{a}, {b}], [{b}, {a}])[0]",
)

DROPOUT = ("F.dropout({a}, 0.25)", "F.dropout({a}.float(), 0.5) * 2", "torch.rand_like({a}.float()) + {a}")

# Refused by PyTorch when they are called, whatever the values are.
WRONG = (
    "{a}.view(3, 7, 11)",
    "{a} + make(0, (7, 9, 11), torch.float32)",
    "{a}.sum(9)",
    "{a} & 1.5",
    "{a}.expand(2, 2, 2, 2, 2, 2, 2, 3).add_(1)",
    "{a}.to(torch.int64).add_(0.5)",
    "{a}[1000000]",
)
