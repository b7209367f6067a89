"""What a user is told: at once where the CPU says it at once, at the next sync where only the data can tell."""

import re

import pytest
import torch
import torch.nn.functional as F
from comparison import assert_same, assert_same_as_cpu
from processes import line_of, run_python

pytestmark = pytest.mark.neuron_only


def gather(device, index: int) -> torch.Tensor:
    """Fails on the device when `index` is above 2: only the data of its argument is wrong."""
    x = torch.zeros(3, 5, device=device)
    return x.gather(0, torch.full((2, 4), index, device=device))


def bad_gather(device) -> torch.Tensor:
    return gather(device, 7)


def warm(launch, device) -> None:
    """Runs `launch` with good data until it is cached, from when on its errors come late."""
    for _ in range(3):
        launch(device, 1)
    torch.accelerator.synchronize()


# Each reads or writes 4 rows at index `i`.
INDEXED = {
    "gather": lambda d, i: torch.zeros(4, 5, device=d).gather(0, torch.full((2, 4), i, device=d)),
    "embedding": lambda d, i: F.embedding(torch.tensor([1, i], device=d), torch.zeros(4, 6, device=d)),
    "index_select": lambda d, i: torch.zeros(4, 6, device=d).index_select(0, torch.tensor([i], device=d)),
    "index": lambda d, i: torch.zeros(4, 6, device=d)[torch.tensor([i], device=d)],
    "scatter": lambda d, i: torch.zeros(4, 6, device=d).scatter(
        0, torch.full((1, 6), i, device=d), torch.ones(1, 6, device=d)
    ),
    "nll_loss": lambda d, i: F.nll_loss(torch.zeros(2, 4, device=d), torch.tensor([0, i], device=d)),
}


@pytest.mark.parametrize("op", INDEXED)
@pytest.mark.parametrize("cached", [False, True])
def test_index_out_of_range_names_op_index_and_range(device, op, cached):  # W17
    if cached:
        warm(INDEXED[op], device)
    with pytest.raises((RuntimeError, IndexError)) as caught:
        INDEXED[op](device, 11)
        torch.accelerator.synchronize()
    text = str(caught.value)
    assert op in text
    assert re.search(r"\b11\b", text), f"the index is not named: {text}"
    assert re.search(r"\b4\b", text), f"the range is not named: {text}"


def test_late_error_names_op_shapes_and_dtypes(device):
    warm(gather, device)
    bad_gather(device)
    with pytest.raises((RuntimeError, IndexError)) as caught:
        torch.accelerator.synchronize()
    text = str(caught.value)
    assert "gather" in text
    assert re.search(r"3, ?5", text), text
    assert re.search(r"2, ?4", text), text
    assert re.search(r"(?i)float", text), text
    assert re.search(r"(?i)long|int64", text), text


def test_late_error_has_the_type_that_the_cpu_raises(device):
    x, index = torch.zeros(3), torch.tensor([5])
    with pytest.raises(Exception) as on_cpu:  # noqa: PT011 - whatever it is, it is the reference
        x[index]
    for _ in range(3):
        with pytest.raises(on_cpu.type):
            (x.to(device)[index.to(device)] + 1).cpu()


READS = {
    "synchronize": lambda x: torch.neuron.synchronize(),
    "accelerator.synchronize": lambda x: torch.accelerator.synchronize(),
    "stream.synchronize": lambda x: torch.neuron.current_stream().synchronize(),
    "item": lambda x: x.sum().item(),
    "cpu": lambda x: x.cpu(),
    "print": lambda x: repr(x),
    "nonzero": lambda x: x.nonzero(),
}


@pytest.mark.parametrize("name", READS)
def test_late_error_surfaces_at_every_kind_of_sync(device, name):
    warm(gather, device)
    result = bad_gather(device)
    with pytest.raises((RuntimeError, IndexError), match=r"gather"):
        READS[name](result)


def test_error_is_told_once_and_the_device_works_again(device):
    warm(gather, device)
    bad_gather(device)
    with pytest.raises((RuntimeError, IndexError)):
        torch.accelerator.synchronize()
    torch.accelerator.synchronize()
    assert_same_as_cpu(lambda x: (x @ x).relu().sum(0), torch.randn(8, 8), device=device)


def test_first_error_wins(device):
    warm(gather, device)
    warm(INDEXED["embedding"], device)
    with pytest.raises((RuntimeError, IndexError), match=r"gather"):
        bad_gather(device)
        INDEXED["embedding"](device, 11)
        torch.accelerator.synchronize()
    torch.accelerator.synchronize()


def test_error_of_one_device_is_not_told_by_another(device):
    warm(gather, torch.device("neuron:1"))
    torch.neuron.synchronize(1)
    bad_gather(torch.device("neuron:1"))
    assert torch.ones(3, device="neuron:0").sum().item() == 3.0
    with pytest.raises((RuntimeError, IndexError), match=r"gather"):
        torch.neuron.synchronize(1)


def test_memory_of_a_failed_launch_is_freed(device):
    warm(gather, device)
    before = torch.neuron.memory_allocated()
    for _ in range(20):
        with pytest.raises((RuntimeError, IndexError)):
            bad_gather(device)
            torch.accelerator.synchronize()
    assert torch.neuron.memory_allocated() == before


PROGRAM = """
import torch

def launch():
    x = torch.zeros(3, 5, device="neuron")
    y = x.gather(0, torch.full((2, 4), 2, device="neuron"))
    z = x.gather(0, torch.full((2, 4), 7, device="neuron"))  # here
    return z + 1

launch()
torch.accelerator.synchronize()  # sync
"""


def test_blocking_mode_raises_at_the_line(device, tmp_path):  # W17
    result = run_python(PROGRAM, directory=tmp_path, env={"NEURON_LAUNCH_BLOCKING": "1"})
    assert result.returncode == 1
    frames = re.findall(r'program\.py", line (\d+)', result.stderr)
    assert int(frames[-1]) == line_of(PROGRAM, "here"), result.stderr
    assert "gather" in result.stderr


def test_launch_lines_name_the_line_that_launched(device, tmp_path):  # W17
    result = run_python(
        PROGRAM, directory=tmp_path, env={"NEURON_LAUNCH_BLOCKING": "0", "TORCH_NEURONX_LAUNCH_LINES": "1"}
    )
    assert result.returncode == 1
    assert f"program.py:{line_of(PROGRAM, 'here')}" in result.stderr, result.stderr


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x + y,
        lambda x, y: x @ x,
        lambda x, y: torch.cat([x, y[None, None]]),
        lambda x, y: x.view(7),
        lambda x, y: x.add_(y),
        lambda x, y: x.expand(5, 5),
        lambda x, y: F.linear(x, y[None]),
        lambda x, y: F.conv2d(x, y),
        lambda x, y: x.sum(5),
        lambda x, y: x[9],
        lambda x, y: x.transpose(0, 4),
        lambda x, y: torch.mm(x, y),
        lambda x, y: x.masked_fill(y > 0, 1.0),
        lambda x, y: F.cross_entropy(x, torch.zeros(9, dtype=torch.int64, device=x.device)),
        lambda x, y: x.gather(0, torch.zeros(9, 9, 9, dtype=torch.int64, device=x.device)),
        lambda x, y: torch.stack([x, y]),
        lambda x, y: x.reshape(-1, 4),
        lambda x, y: x.log_softmax(3),
    ],
)
def test_shape_errors_are_raised_at_once_with_the_words_of_the_cpu(device, function):
    x, y = torch.randn(2, 3), torch.randn(4)
    with pytest.raises((RuntimeError, IndexError, ValueError)) as on_cpu:
        function(x, y)
    for _ in range(2):
        with pytest.raises(on_cpu.type) as on_device:
            function(x.to(device), y.to(device))
        assert str(on_cpu.value).splitlines()[0] in str(on_device.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.bitwise_and(x, x),
        lambda x: x.to(torch.int64).exp_(),
        lambda x: torch.mm(x, x.double()),
        lambda x: x[torch.tensor([0.5], device=x.device)],
        lambda x: torch.linalg.inv(x.to(torch.int64)),
        lambda x: x.to(torch.int32).mean(),
    ],
)
def test_dtype_errors_are_raised_at_once_with_the_type_of_the_cpu(device, function):
    x = torch.randn(3, 3)
    with pytest.raises((RuntimeError, IndexError, TypeError)) as on_cpu:
        function(x)
    for _ in range(2):
        with pytest.raises(on_cpu.type):
            function(x.to(device))


def overlapping_add(x):
    return torch.add(x[1:], 1, out=x[:-1])


def self_overlapping(x):
    return x[:1].expand(4).mul_(2)


def overlapping_copy(x):
    return torch.mul(x[:4], x[2:6], out=x[1:5])


@pytest.mark.parametrize("function", [overlapping_add, self_overlapping, overlapping_copy])
@pytest.mark.parametrize("cached", [False, True])
def test_overlap_of_input_and_output_is_refused(device, function, cached):
    x = torch.arange(10.0)
    with pytest.raises(RuntimeError) as on_cpu:
        function(x)
    x = x.to(device)
    if cached:  # the same op on tensors of the same sizes and strides that do not overlap
        a, b, c = (torch.arange(10.0, device=device) for _ in range(3))
        for _ in range(3):
            torch.add(a[1:], 1, out=b[:-1])
            torch.mul(a[:4], b[2:6], out=c[1:5])
        torch.accelerator.synchronize()
    with pytest.raises(RuntimeError, match=re.escape(str(on_cpu.value).splitlines()[0][:40])):
        function(x)
    assert_same(x, torch.arange(10.0))


MIXED = {
    "add": lambda a, b: a + b,
    "mm": lambda a, b: a @ b,
    "cat": lambda a, b: torch.cat([a, b]),
    "linear": lambda a, b: F.linear(a, b),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "add_": lambda a, b: a.add_(b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "embedding": lambda a, b: F.embedding(torch.tensor([1], device=a.device), b),
    "layer_norm": lambda a, b: F.layer_norm(a, (4,), b[0]),
    "conv": lambda a, b: F.conv1d(a[None], b[:, :, None]),
    "attention": lambda a, b: F.scaled_dot_product_attention(a[None], b[None], b[None]),
    "foreach": lambda a, b: torch._foreach_add_([a], [b]),
    "addmm": lambda a, b: torch.addmm(a, b, b),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices_are_refused_in_pytorchs_words(device, name, swapped):
    a, b = torch.randn(4, 4, device=device), torch.randn(4, 4)
    if swapped:
        a, b = b, a
    if name == "foreach" and swapped:
        pytest.skip("the CPU's own foreach kernel answers")
    # Attention checks its inputs before it is dispatched, and has words of its own on every device.
    words = "to have the same device type" if name == "attention" else "all tensors to be on the same device"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=rf"(?i)expected (query, key, and value )?{words}") as caught:
            MIXED[name](a, b)
        assert "neuron:0" in str(caught.value)
        assert "cpu" in str(caught.value)


def test_two_neuron_devices_are_refused_too(device):
    a, b = torch.ones(3, device="neuron:0"), torch.ones(3, device="neuron:1")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"(?i)same device.*neuron:[01].*neuron:[01]"):
            a + b


@pytest.mark.parametrize(
    ("name", "program"),
    list(
        {
            "to_sparse": lambda d: torch.eye(3, device=d).to_sparse(),
            "to_sparse_csr": lambda d: torch.eye(3, device=d).to_sparse_csr(),
            "sparse to device": lambda d: torch.eye(3).to_sparse().to(d),
            "sparse constructor": lambda d: torch.sparse_coo_tensor(
                torch.tensor([[0, 1], [1, 0]], device=d), torch.ones(2, device=d), (2, 2)
            ),
            "sampled_addmm": lambda d: torch.sparse.sampled_addmm(
                torch.eye(3).to_sparse_csr().to(d), torch.ones(3, 3, device=d), torch.ones(3, 3, device=d)
            ),
            "to_mkldnn": lambda d: torch.eye(3, device=d).to_mkldnn(),
        }.items()
    ),
)
def test_unsupported_layouts_work_or_are_refused_by_name(device, name, program):  # O4
    layout = "csr" if "csr" in name or name == "sampled_addmm" else "mkldnn" if "mkldnn" in name else "coo|sparse"
    try:
        result = program(device)
    except (NotImplementedError, RuntimeError) as refusal:
        text = str(refusal)
        assert re.search(f"(?i){layout}", text), f"does not name the layout: {text}"
        assert "neuron" in text.lower(), f"does not name the device: {text}"
        assert re.search(r"aten::\w+|_to_\w+|to_\w+|sampled_addmm|sparse_\w+", text), f"does not name the op: {text}"
        torch.accelerator.synchronize()
    else:
        assert result.device.type == device.type
        assert_same(result.to_dense(), torch.eye(3) if result.shape == (3, 3) else torch.eye(2).flip(0))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
def test_quantized_and_nested_tensors_are_refused_by_name(device):
    x = torch.randn(4, 4, device=device)
    with pytest.raises((NotImplementedError, RuntimeError), match=r"(?i)quantize_per_tensor|quantized"):
        torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    with pytest.raises(NotImplementedError, match=r"(?i)aten::mul.*neuron.*nested"):
        torch.nested.nested_tensor([x, x[:2]]) * 2
    torch.accelerator.synchronize()
    assert (x + 1).shape == (4, 4)


def test_jagged_nested_tensors_work(device):
    a, b = torch.randn(2, 3), torch.randn(4, 3)
    nested = torch.nested.nested_tensor([a, b], layout=torch.jagged, device=device)
    assert nested.device.type == device.type
    assert_same(list((nested * 2).unbind()), [a * 2, b * 2])


def test_generator_of_another_device_is_refused(device):
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"(?i)expected a 'neuron.*generator but found 'cpu'"):
            torch.randn(3, device=device, generator=torch.Generator())
    with pytest.raises(RuntimeError, match=r"(?i)generator"):
        torch.randn(3, generator=torch.Generator(device=device))
    with pytest.raises(RuntimeError, match=r"(?i)generator"):
        torch.zeros(3, device=device).normal_(generator=torch.Generator())


@pytest.mark.parametrize("index", [4, 99])
def test_device_that_does_not_exist(device, index):
    assert torch.neuron.device_count() <= index
    for use in (
        lambda: torch.ones(2, device=f"neuron:{index}"),
        lambda: torch.ones(2).to(f"neuron:{index}"),
        lambda: torch.neuron.set_device(index),
        lambda: torch.neuron.synchronize(index),
        lambda: torch.empty(2, device=index),
        lambda: torch.Stream(device=f"neuron:{index}"),
    ):
        with pytest.raises((RuntimeError, AssertionError, ValueError)) as caught:
            use()
        assert str(index) in str(caught.value)
        assert torch.neuron.current_device() == 0


def test_op_without_any_kernel_is_named(device):
    with pytest.raises(NotImplementedError, match=r"(?i)_cudnn_rnn_flatten_weight"):
        torch._cudnn_rnn_flatten_weight([torch.ones(2, device=device)], 1, 1, 1, 1, 0, 1, False, False)


def test_custom_op_with_only_a_cpu_kernel_runs(device):
    with torch.library._scoped_library("neuron_test_errors", "DEF") as library:
        library.define("cpu_only(Tensor x) -> Tensor")
        library.impl("cpu_only", lambda x: x + 1, "CPU")
        assert_same(torch.ops.neuron_test_errors.cpu_only(torch.ones(2)), torch.full((2,), 2.0))
        result = torch.ops.neuron_test_errors.cpu_only(torch.ones(2, device=device))
        assert result.device.type == "neuron"
        assert result.tolist() == [2.0, 2.0]


def test_linear_algebra_error_keeps_its_type(device):
    singular = torch.zeros(3, 3, device=device)
    for _ in range(2):
        with pytest.raises(torch.linalg.LinAlgError, match=r"(?i)singular"):
            torch.linalg.inv(singular).cpu()
            torch.accelerator.synchronize()
    with pytest.raises(torch.linalg.LinAlgError, match=r"(?i)positive-definite"):
        torch.linalg.cholesky(-torch.eye(3, device=device)).cpu()
        torch.accelerator.synchronize()


def test_assertion_on_the_device_surfaces(device):
    torch._assert_async(torch.tensor(True, device=device), "fine")
    torch.accelerator.synchronize()
    with pytest.raises(RuntimeError, match=r"this is wrong"):
        torch._assert_async(torch.tensor(False, device=device), "this is wrong")
        torch.accelerator.synchronize()


def test_multinomial_refuses_bad_probabilities(device):
    with pytest.raises(RuntimeError, match=r"(?i)probability|prob_dist|sum"):
        torch.multinomial(torch.tensor([-1.0, 2.0], device=device), 1).cpu()
        torch.accelerator.synchronize()
