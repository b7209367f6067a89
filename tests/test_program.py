"""Programs: steps over planned memory that run as one launch. Written by hand here; torch.compile writes them else."""

import gc

import pytest
import torch
from busy import occupy
from comparison import assert_same
from program_writer import KERNEL, Writer, address_of, on_device, t

from torch_neuronx import _C

pytestmark = pytest.mark.neuron_only


def test_steps_share_memory_of_the_run(device):
    a, b, c = torch.randn(4, 5), torch.randn(5, 6), torch.randn(6)
    w = Writer(on_device(a, b, c))
    x, y, z = w.like(0, a), w.like(1, b), w.like(2, c)
    product, shifted, result = w.temporary([4, 6]), w.temporary([4, 6]), w.output([4, 6])
    w.call("mm", [t(x), t(y)], [product])
    w.call("add.Tensor", [t(product), t(z)], [shifted], alpha=2)
    w.call("relu", [t(shifted)], [result])
    binding = w.bind([result])
    assert binding.arena_bytes == 128 + 96
    expected = [torch.relu(torch.mm(a, b) + 2 * c)]
    for _ in range(3):
        assert_same(binding.run(on_device(a, b, c)), expected)


def test_an_arena_can_be_used_again_within_a_run():
    x = torch.randn(64)
    w = Writer(on_device(x))
    first, second = w.builder.arena(w.ref(0)), w.builder.arena(w.ref(256))
    tensors = [w.tensor(where, [64]) for where in (first, second)]
    w.call("neg", [t(w.like(0, x))], [tensors[0]])
    for i in range(4):
        w.call("exp", [t(tensors[i % 2])], [tensors[(i + 1) % 2]])
        w.call("tanh", [t(tensors[(i + 1) % 2])], [tensors[i % 2]])
        w.call("neg", [t(tensors[i % 2])], [tensors[(i + 1) % 2]])
    result = w.output([64])
    w.call("clone", [t(tensors[0])], [result])
    binding = w.bind([result])
    assert binding.arena_bytes == 512
    y = -x
    for _ in range(4):
        y = -torch.tanh(torch.exp(y))
    assert_same(binding.run(on_device(x)), [y])


def test_ops_in_place_and_out():
    x, y = torch.randn(5, 4), torch.randn(4)
    dx, dy = on_device(x, y)
    w = Writer([dx, dy])
    a, b, total = w.like(0, x), w.like(1, y), w.output([4])
    w.call("add_.Tensor", [t(a), t(b)], alpha=3)
    w.call("mul_.Tensor", [t(a), 2.0])
    w.call("sum.IntList_out", [t(a), [0]], out=t(total))
    w.call("copy_", [t(b), t(total)])
    binding = w.bind([total, ("argument", 0)])
    out, same = binding.run([dx, dy])
    x.add_(y, alpha=3).mul_(2)
    y.copy_(x.sum(0))
    assert same is dx
    assert_same([out, dx, dy], [y, x, y])


def test_views_are_tensors_with_strides():
    x = torch.randn(6, 8)
    w = Writer(on_device(x))
    columns = w.tensor(0, [8, 3], strides=[1, 16], offset=8)  # x[1::2].t()
    buffer = w.builder.output(w.ref(8 * 6 * 4))
    left, right = w.tensor(buffer, [8, 3], strides=[6, 1]), w.tensor(buffer, [8, 3], strides=[6, 1], offset=3)
    w.call("neg", [t(columns)], [left])
    w.call("clone", [t(columns)], [right])
    binding = w.bind([w.tensor(buffer, [8, 6]), right])
    whole, half = binding.run(on_device(x))
    assert_same(whole, torch.cat([-x[1::2].t(), x[1::2].t()], 1))
    assert half.stride() == (6, 1)
    assert half.storage_offset() == 3
    assert half.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def test_arguments_begin_at_their_first_element():
    base = torch.arange(40.0)
    args = [base[8:24].view(4, 4), base[3:19].view(4, 4).t()]
    w = Writer(on_device(args[0]))
    result = w.output([4])
    w.call("sum.dim_IntList", [t(w.tensor(0, [4, 4])), [1]], [result])
    binding = w.bind([result])
    d = base.to("neuron")
    assert_same(binding.run([d[8:24].view(4, 4)]), [args[0].sum(1)])
    assert_same(binding.run([d[20:36].view(4, 4)]), [base[20:36].view(4, 4).sum(1)])


def test_outputs_over_the_memory_of_arguments():
    x = torch.randn(3, 4)
    dx = torch.randn(20, device="neuron")[8:].view(3, 4).copy_(x)
    w = Writer([dx])
    a = w.like(0, x)
    w.call("sigmoid_", [t(a)])
    turned = w.tensor(0, [4, 3], strides=[1, 4])
    binding = w.bind([turned, w.tensor(0, [12], torch.int32)])
    view, words = binding.run([dx])
    expected = x.sigmoid_()
    assert_same(view, expected.t())
    assert_same(words, expected.view(-1).view(torch.int32))
    assert view.untyped_storage().data_ptr() == dx.untyped_storage().data_ptr()
    assert view.storage_offset() == 8
    address = dx.untyped_storage().data_ptr()
    del dx
    gc.collect()
    assert torch.empty(20, device="neuron").untyped_storage().data_ptr() != address
    assert_same(view, expected.t())


def test_what_cannot_be_a_step():
    refused = [
        ("nonzero", ""),
        ("unique_dim", ""),
        ("item", ""),
        ("_local_scalar_dense", ""),
        ("equal", ""),
        ("no", ""),
    ]
    assert not any(_C.can_be_step(f"aten::{op}", overload) for op, overload in refused)
    assert _C.can_be_step("aten::mm", "")
    assert _C.can_be_step("aten::rand", "")
    assert not _C.can_be_step("prims::add", "")  # kernels of other namespaces may be Python functions
    w = Writer([torch.float32])
    with pytest.raises(ValueError, match=r"aten::nonzero cannot be a step"):
        w.call("nonzero", [t(w.tensor(0, [3]))], [])


def test_sizes_come_from_the_binding():
    w = Writer([torch.float32, torch.float32])
    x = w.tensor(0, ["rows", 4], strides=[4, 1])
    bias = w.tensor(1, [4])
    hidden = w.tensor(w.builder.arena(w.ref(0)), ["rows", 4], strides=[4, 1])
    out = w.tensor(w.builder.output(w.ref("bytes")), [2, "half", 4], strides=["slab", 4, 1])
    zeros = w.tensor(w.builder.output(w.ref("zeros")), ["rows"], torch.int64, strides=[1])
    w.call("add.Tensor", [t(x), t(bias)], [hidden])
    w.call(
        "mul.Tensor",
        [t(hidden), ("int", w.ref("rows"))],
        [hidden2 := w.tensor(w.builder.arena(w.ref("second")), ["rows", 4], strides=[4, 1])],
    )
    w.call("view_copy", [t(hidden2), ("ints", w.refs([2, "half", 4]))], [out])
    w.call("full", [("ints", w.refs(["rows"])), ("int", w.ref("rows"))], [zeros], dtype=torch.int64)
    program = w.builder.build([("tensor", out), ("tensor", zeros)])
    bindings = {}
    for rows in (2, 6, 4, 6, 0, 2, 100):
        if rows not in bindings:
            bindings[rows] = w.bind_program(
                program,
                rows=rows,
                half=rows // 2,
                slab=max(rows // 2, 1) * 4,
                bytes=rows * 16,
                zeros=rows * 8,
                second=(rows * 16 + 63) // 64 * 64,
            )
        x, bias = torch.randn(rows, 4), torch.randn(4)
        expected = [((x + bias) * rows).view(2, rows // 2, 4), torch.full((rows,), rows)]
        assert_same(bindings[rows].run(on_device(x, bias)), expected)


def test_bindings_that_do_not_fit():
    w = Writer([torch.float32])
    out = w.tensor(w.builder.output(w.ref("bytes")), ["n"], strides=[1])
    w.call("neg", [t(w.tensor(0, ["n"], strides=[1]))], [out])
    program = w.builder.build([("tensor", out)])
    with pytest.raises(ValueError, match=r"refers to \d integers, but was given 1"):
        program.bind([4])
    with pytest.raises(ValueError, match=r"Program 'test' does not hold together: its tensors reach .* 12 bytes"):
        w.bind_program(program, n=4, bytes=12)
    with pytest.raises(ValueError, match=r"sizes \[-1\]"):
        w.bind_program(program, n=-1, bytes=12)


def test_arguments_that_do_not_fit():
    x = torch.randn(4, 4, device="neuron")
    w = Writer([x, None])
    out = w.output([4, 4])
    w.call("neg", [t(w.like(0, x))], [out])
    binding = w.bind([out])
    assert_same(binding.run([x, 3]), [-x.cpu()])
    assert_same(binding.run([x, torch.ones(3)]), [-x.cpu()])
    for args, text in [
        ([x], "takes 2 arguments, but was given 1"),
        ([3, x], "takes a tensor as argument 0"),
        ([x.cpu(), 0], "takes argument 0 on neuron:0, but was given a tensor on cpu"),
        ([x.double(), 0], "takes argument 0 of dtype Float, but was given one of dtype Double"),
        ([x[:3].clone(), 0], "reads 64 bytes of argument 0, but was given .* 48 bytes"),
        ([x[1:], 0], "reads 64 bytes of argument 0, but was given"),
    ]:
        with pytest.raises(RuntimeError, match=f"Program 'test' {text}"):
            binding.run(args)


def test_numbers_on_the_cpu_travel_with_the_launch():
    x, step = torch.randn(4), torch.tensor(3.0)
    (dx,) = on_device(x)
    w = Writer([dx, step])
    out = w.output([4])
    w.call("mul.Tensor", [t(w.like(0, x)), t(w.tensor(1, []))], [out])
    binding = w.bind([out])
    event = occupy("neuron")
    result = binding.run([dx, step])
    step.fill_(9.0)
    assert not event.query()
    assert_same(result, [x * 3])
    assert_same(binding.run([dx, step]), [x * 9])
    with pytest.raises(RuntimeError, match="takes one number as argument 1"):
        binding.run([dx, torch.ones(2)])


def test_synchronous_programs_write_to_the_cpu():
    x, table = torch.randn(5), torch.zeros(5)
    (dx,) = on_device(x)
    w = Writer([dx, table], synchronous=True)
    out = w.tensor(w.builder.host_output(w.ref(20)), [5])
    w.call("neg", [t(w.like(0, x))], [out])
    w.call("copy_", [t(w.like(1, table)), t(w.like(0, x))])
    (result,) = w.bind([out]).run([dx, table])
    assert result.device.type == "cpu"
    assert_same([result, table], [-x, x])
    with pytest.raises(ValueError, match="has to be synchronous"):
        Writer([dx]).builder.host_output(0)


def test_constants():
    x, table, scale = torch.randn(4), torch.randn(9), torch.tensor(2.5)
    w = Writer(on_device(x))
    where = w.builder.constant(table.to("neuron")[5:])
    number = w.builder.constant(scale)
    out, whole = w.output([4]), w.builder.constant(on_device(x)[0])
    w.call("mul.Tensor", [t(w.tensor(where, [4])), t(w.tensor(number, []))], [out])
    w.call("add_.Tensor", [t(out), t(w.like(0, x))])
    binding = w.bind([out, ("constant", whole)])
    del table
    gc.collect()
    out, same = binding.run(on_device(x))
    assert_same(same, x)
    again, _ = binding.run(on_device(x))
    assert_same(out, again.cpu())
    w = Writer(on_device(x))
    with pytest.raises(ValueError, match="a constant must be"):
        w.builder.constant(x.to(torch.complex64).conj())
    w.tensor(w.builder.constant(scale), [2])
    with pytest.raises(ValueError, match=r"reach from byte 0 to byte 8 of buffer 1, which has 4 bytes"):
        w.bind([])


def test_mistakes_of_the_writer():
    w = Writer([torch.float32, None])
    x = w.tensor(0, [3])
    for write, text in [
        (lambda: w.call("add.Tensor", [t(x)]), "argument 'other' of aten::add.Tensor is missing"),
        (lambda: w.call("add.Tensor", [t(x), t(9)]), "there is no tensor 9"),
        (lambda: w.call("add.Tensor", [t(x), t(x), 1, 2]), "given arguments that it does not have"),
        (lambda: w.call("add.Tensor", [t(x), t(x)], beta=2), "given arguments that it does not have"),
        (lambda: w.call("add.Tensor", [t(x), "text"]), "neither a tensor of the program nor a number"),
        (lambda: w.call("sum.dim_IntList", [t(x), t(x)]), "argument 'dim' of aten::sum.dim_IntList is no tensor"),
        (lambda: w.call("sum.dim_IntList", [t(x), "text"]), "argument 'dim' of .* cannot be 'text'"),
        (lambda: w.call("relu", [("tenser", x)]), "has the tag 'tenser'"),
        (lambda: w.call("relu", [t(x)], [4]), "there is no tensor 4"),
        (lambda: w.tensor(7, [3]), "there is no buffer 7"),
        (lambda: w.tensor(1, [3]), "lies in argument 1, which is none"),
        (lambda: w.builder.build([("tensor", w.temporary([3]))]), "memory that does not outlive the run"),
    ]:
        with pytest.raises(ValueError, match=text):
            write()


def test_an_error_names_the_step():
    x, index = torch.randn(4), torch.tensor([1, 7])
    args = on_device(x, index)
    w = Writer(args, name="lookup")
    h, out = w.temporary([4]), w.output([2])
    w.call("neg", [t(w.like(0, x))], [h])
    w.call("index_select", [t(h), 0, t(w.like(1, index))], [out], label='model.py:12 "h[i]"')
    binding = w.bind([out])
    binding.run(args)
    text = (
        r"(?s)out of .*asynchronous launch of step 1 of program 'lookup', aten::index_select\(Float\[4\], "
        r"Long\[2\] with values from 1 to 7\) \(model.py:12 \"h\[i\]\"\), on device neuron"
    )
    with pytest.raises(IndexError, match=text):
        torch.neuron.synchronize()
    args[1].fill_(2)
    assert_same(binding.run(args), [-x[[2, 2]]])


def test_results_of_another_shape_are_errors():
    x = torch.randn(4)
    w = Writer(on_device(x))
    out = w.output([5])
    w.call("neg", [t(w.like(0, x))], [out])
    w.bind([out]).run(on_device(x))
    with pytest.raises(RuntimeError, match="gave an output of another shape"):
        torch.neuron.synchronize()
    w = Writer(on_device(x))
    out = w.output([2])
    w.call("neg.out", [t(w.like(0, x))], out=t(out))
    w.bind([out]).run(on_device(x))
    with pytest.raises(RuntimeError, match="has resized an argument"):
        torch.neuron.synchronize()


ADD_KERNEL = """
define void @step(ptr %operands, ptr %ints, ptr %scratch, i64 %begin, i64 %end) {
entry:
  %second = getelementptr ptr, ptr %operands, i64 1
  %from = load ptr, ptr %operands
  %to = load ptr, ptr %second
  %number = load i64, ptr %ints
  %added = sitofp i64 %number to float
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %a = getelementptr float, ptr %from, i64 %i
  %b = getelementptr float, ptr %to, i64 %i
  %x = load float, ptr %a
  %y = fadd float %x, %added
  store volatile float %y, ptr %scratch
  %z = load volatile float, ptr %scratch
  store float %z, ptr %b
  %next = add i64 %i, 1
  %again = icmp slt i64 %next, %end
  br i1 %again, label %loop, label %done
done:
  ret void
}
"""


def test_machine_code_is_a_step():
    pytest.importorskip("llvmlite")
    from torch_neuronx.jit.llvm import toolchain

    address = toolchain().load(toolchain().object_code(ADD_KERNEL), "step")
    w = Writer([torch.float32])
    h = w.tensor(w.builder.arena(w.ref(0)), ["n"], strides=[1])
    out = w.tensor(w.builder.output(w.ref("bytes")), ["n"], strides=[1])
    x = w.tensor(0, ["n"], strides=[1], offset="from")
    w.call("neg", [t(x)], [h])
    w.builder.kernel(address, [h, out], [w.ref(5)], w.ref("n"), w.ref(100), w.ref(64), "add", "model.py:3")
    program = w.builder.build([("tensor", out)])
    assert program.steps() == [("aten::neg", ""), ("add", "model.py:3")]
    for n in (10, 1000, 99, 100_000, 0):
        binding = w.bind_program(program, **{"n": n, "from": 1, "bytes": 4 * n})
        x = torch.randn(n + 1)
        assert_same(binding.run(on_device(x)), [-x[1:] + 5])


@pytest.mark.parametrize(("units", "grain"), [(1000, 1), (1000, 499), (1000, 501), (3, 1), (1, 7), (0, 1), (7, 0)])
def test_ranges_of_machine_code(units, grain):
    ranges, seen = [], set()

    @KERNEL
    def kernel(operands, ints, scratch, begin, end):
        ranges.append((begin, end))
        seen.add((ints[0], ints[1], scratch % 64, bool(operands[0])))

    x = torch.zeros(4, device="neuron")
    w = Writer([x])
    w.builder.kernel(
        address_of(kernel), [w.like(0, x)], w.refs([-3, 1 << 40]), w.ref(units), w.ref(grain), w.ref(24), "python"
    )
    w.bind([]).run([x])
    torch.neuron.synchronize()
    ranges.sort()
    assert [i for begin, end in ranges for i in range(begin, end)] == list(range(units))
    threads = min(max(units // max(grain, 1), 1), torch.get_num_threads()) if units else 0
    assert len(ranges) == threads
    assert seen == ({(-3, 1 << 40, 0, True)} if units else set())
