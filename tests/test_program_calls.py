"""Steps of programs that call ATen ops: results, random numbers and dtypes are those of eager mode."""

import pytest
import torch
import torch.nn.functional as F
from comparison import assert_same
from program_writer import Writer, on_device, t

from torch_neuronx import _C

pytestmark = pytest.mark.neuron_only


def run_op(op: str, arguments, outputs, *args, **kwargs) -> list[torch.Tensor]:
    """Runs one op twice as a program. `args` are constants or the numbers of arguments, as "0"."""
    devices = on_device(*arguments)
    w = Writer(devices)
    tensors = [w.like(i, a) for i, a in enumerate(arguments)]

    def argument(value):
        if isinstance(value, str) and value.isdigit():
            return t(tensors[int(value)])
        if isinstance(value, list) and any(isinstance(v, str) and v.isdigit() for v in value):
            return ("tensors", [None if v is None else tensors[int(v)] for v in value])
        return value

    results = [
        None
        if o is None
        else w.tensor(w.builder.output(w.ref(o.untyped_storage().nbytes())), o.shape, o.dtype, o.stride())
        for o in outputs
    ]
    w.call(op, [argument(a) for a in args], results, **{k: argument(v) for k, v in kwargs.items()})
    binding = w.bind([r for r in results if r is not None])
    binding.run(list(devices))
    return binding.run(list(devices))


X, Y = torch.randn(4, 6), torch.randn(4, 6)
IMAGE = torch.randn(2, 3, 4, 5)
INDEX = torch.tensor([2, 0, 3])
CALLS = {
    "cat": ("cat", [X, Y], [torch.cat([X, Y], 1)], (["0", "1"], 1)),
    "stack": ("stack", [X, Y], [torch.stack([X, Y])], (["0", "1"],)),
    "index": ("index.Tensor", [X, INDEX], [X[:, INDEX]], ("0", [None, "1"])),
    "index_two": ("index.Tensor", [X, INDEX, INDEX], [X[INDEX, INDEX]], ("0", ["1", "2"])),
    "sum_none": ("sum.dim_IntList", [X], [X.sum()], ("0", None)),
    "to_copy": ("_to_copy", [X], [X.half()], ("0",), {"dtype": torch.float16, "device": torch.device("neuron")}),
    "full": (
        "full",
        [],
        [torch.full((2, 3), 7, dtype=torch.int64)],
        ([2, 3], 7),
        {"dtype": torch.int64, "device": torch.device("neuron", 0)},
    ),
    "layer_norm": (
        "native_layer_norm",
        [X, Y[0], Y[1]],
        torch.native_layer_norm(X, [6], Y[0], Y[1], 1e-5),
        ("0", [6], "1", "2", 1e-5),
    ),
    "layer_norm_none": (
        "native_layer_norm",
        [X],
        torch.native_layer_norm(X, [6], None, None, 1e-5),
        ("0", [6], None, None, 1e-5),
    ),
    "topk": ("topk", [X], torch.topk(X, 2), ("0", 2)),
    "var_mean": ("var_mean.correction", [X], torch.var_mean(X, 1), ("0", [1]), {"correction": 1}),
    "gelu": ("gelu", [X], [F.gelu(X, approximate="tanh")], ("0",), {"approximate": "tanh"}),
    "split_copy": ("split_copy.Tensor", [X], [p.clone() for p in X.split(2, 1)], ("0", 2, 1)),
    "foreach": ("_foreach_add.List", [X, Y, Y, X], [X + Y, Y + X], (["0", "1"], ["2", "3"])),
    "number_first": ("pow.Scalar", [X], [torch.pow(2.5, X)], (2.5, "0")),
    "compare": ("lt.Scalar", [X], [X < 0], ("0", 0)),
    "flip": ("flip", [X], [X.flip(0, 1)], ("0", [0, 1])),
    "complex": ("view_as_complex_copy", [X.view(4, 3, 2)], [torch.view_as_complex(X.view(4, 3, 2)).clone()], ("0",)),
    "channels_last": (
        "clone",
        [IMAGE],
        [IMAGE.contiguous(memory_format=torch.channels_last)],
        ("0",),
        {"memory_format": torch.channels_last},
    ),
    "empty_tensors": ("cat", [X[:0], X], [X], (["0", "1"],)),
    "no_elements": ("exp", [X[:0]], [X[:0]], ("0",)),
    "int_scaled": ("mul.Tensor", [INDEX], [INDEX * 1.5], ("0", 1.5)),
    "promoted": ("add.Tensor", [X.half()], [X.half() + 1.5], ("0", 1.5)),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls(case):
    op, arguments, outputs, args, *kwargs = CALLS[case]
    actual = run_op(op, arguments, outputs, *args, **(kwargs[0] if kwargs else {}))
    assert_same(actual, list(outputs))


def test_convolution_and_its_gradient():
    x, weight, bias = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
    args = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    y = torch.ops.aten.convolution(x, weight, bias, *args)
    assert_same(run_op("convolution", [x, weight, bias], [y], "0", "1", "2", *args), [y])
    grad = torch.randn_like(y)
    mask = [False, True, True]
    expected = torch.ops.aten.convolution_backward(grad, x, weight, [4], *args, mask)
    actual = run_op("convolution_backward", [grad, x, weight], list(expected), "0", "1", "2", [4], *args, mask)
    assert_same(actual, list(expected[1:]))


def test_attention():
    q, k, v = torch.randn(3, 2, 4, 16, 8)
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    expected = op(q, k, v, 0.0, True)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    actual = run_op(name, [q, k, v], list(expected), "0", "1", "2", 0.0, True)
    assert_same(actual, list(expected))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_products_are_those_of_eager_mode(dtype):
    a, b, c = torch.randn(33, 70).to(dtype), torch.randn(70, 20).to(dtype), torch.randn(20).to(dtype)
    eager = torch.addmm(*on_device(c, a, b)).cpu()
    assert_same(run_op("addmm", [c, a, b], [eager], "0", "1", "2"), [eager])


def test_results_are_seldom_copied():
    before = _C.launch_statistics()["moved_outputs"]
    x = torch.randn(4, 6)
    run_op("native_layer_norm", [x], torch.native_layer_norm(x, [6], None, None, 1e-5), "0", [6], None, None, 1e-5)
    run_op("cat", [x, x], [torch.cat([x, x])], ["0", "1"])
    torch.neuron.synchronize()
    assert _C.launch_statistics()["moved_outputs"] == before


def test_results_in_another_order_than_planned():
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    columns = torch.empty_strided((4, 6), (1, 4)).copy_(x)
    assert_same(run_op("clone", [x], [columns], "0", memory_format=torch.contiguous_format), [columns])
    padded = torch.empty_strided((4, 6), (8, 1)).copy_(x + y)
    assert_same(run_op("add.Tensor", [x, y], [padded], "0", "1"), [padded])
    swapped = [torch.empty_strided((4, 6), (1, 4)).copy_(r) for r in (x + 1, y + 1)]
    assert_same(run_op("_foreach_add.Scalar", [x, y], swapped, ["0", "1"], 1), swapped)


def test_temporaries_do_not_stay_in_the_place_of_results():
    x, weight = torch.randn(4, 8, 16, 16), torch.randn(8, 8, 3, 3)
    args = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    y = torch.convolution(x, weight, None, *args)
    device = on_device(y, x, weight)
    w = Writer(device)
    results = [w.output(x.shape), w.output(weight.shape)]
    mask = [True, True, False]
    w.call(
        "convolution_backward", [t(w.like(i, a)) for i, a in enumerate((y, x, weight))] + [None, *args, mask], results
    )
    binding = w.bind(results)
    expected = torch.ops.aten.convolution_backward(y, x, weight, None, *args, mask)[:2]
    for _ in range(6):
        assert_same(binding.run(list(device)), list(expected))
    before = _C.launch_statistics()["moved_outputs"]
    assert_same(binding.run(list(device)), list(expected))
    assert _C.launch_statistics()["moved_outputs"] == before


def test_results_that_are_arguments_are_copied():
    x = torch.randn(4, 6)
    assert_same(run_op("contiguous", [x], [x], "0"), [x])
    assert_same(run_op("reshape", [x], [x.view(24)], "0", [24]), [x.view(24)])
    assert_same(run_op("expand", [x[:1]], [x[:1].expand(4, 6).contiguous()], "0", [4, 6]), [x[:1].repeat(4, 1)])


RANDOM = {
    "rand": ("rand", [], torch.empty(7, 5), ([7, 5],)),
    "randn": ("randn", [], torch.empty(7, 5), ([7, 5],)),
    "randint": ("randint.low", [], torch.empty(9, dtype=torch.int64), (3, 99, [9])),
    "randperm": ("randperm", [], torch.empty(9, dtype=torch.int64), (9,)),
    "rand_like": ("rand_like", [X], X, ("0",)),
    "randn_like": ("randn_like", [X], X, ("0",)),
    "randint_like": ("randint_like", [X], X, ("0", 9)),
    "bernoulli": ("bernoulli.p", [X], X, ("0", 0.3)),
    "normal": ("normal_functional", [X], X, ("0", 1.0, 2.0)),
    "multinomial": ("multinomial", [X.exp()], torch.empty(4, 3, dtype=torch.int64), ("0", 3)),
}


@pytest.mark.parametrize("case", RANDOM)
def test_random_numbers_are_those_of_eager_mode(case):
    op, arguments, like, args = RANDOM[case]
    name, _, overload = op.partition(".")
    function = getattr(getattr(torch.ops.aten, name), overload or "default")
    real = [on_device(arguments[int(a)])[0] if isinstance(a, str) else a for a in args]
    device = {} if arguments else {"device": torch.device("neuron")}
    dtype = {} if arguments else {"dtype": like.dtype}
    torch.manual_seed(5)
    expected = [function(*real, **device, **dtype).cpu() for _ in range(3)]
    torch.manual_seed(5)
    first = function(*real, **device, **dtype)  # eager and compiled runs draw from one sequence
    actual = run_op(op, arguments, [like], *args, **device, **dtype)
    assert_same([first, actual[0]], [expected[0], expected[2]])


@pytest.mark.parametrize(("p", "train"), [(0.4, True), (0.4, None), (0.4, False), (1.0, True), (0.0, True)])
@pytest.mark.parametrize("size", [40, 1 << 15])
def test_dropout_is_that_of_eager_mode(p, train, size):
    x = torch.randn(size)
    (dx,) = on_device(x)
    torch.manual_seed(5)
    expected = [torch.native_dropout(dx, p, train) for _ in range(2)][1]
    torch.manual_seed(5)
    mask = torch.empty(size, dtype=torch.bool)
    actual = run_op("native_dropout", [x], [x, mask], "0", p, train)
    assert_same(actual, [e.cpu() for e in expected])
    grad = torch.randn(size)
    scale = 1 / (1 - p) if p < 1 else 0.0
    expected = torch.ops.aten.native_dropout_backward(grad.to("neuron"), expected[1], scale).cpu()
    assert_same(run_op("native_dropout_backward", [grad, actual[1].cpu()], [grad], "0", "1", scale), [expected])
