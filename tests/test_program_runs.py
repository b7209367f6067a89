"""Runs of programs: streams, threads, memory, lifetimes, processes."""

import gc
import itertools
import threading

import pytest
import torch
from busy import occupy
from comparison import assert_same
from processes import run_python
from program_writer import Writer, on_device, t

from torch_neuronx import _C

pytestmark = pytest.mark.neuron_only


def test_the_host_runs_ahead():
    x = torch.randn(8)
    (dx,) = on_device(x)
    w = Writer([dx])
    out = w.output([8])
    w.call("sin", [t(w.like(0, x))], [out])
    binding = w.bind([out])
    event = occupy("neuron")
    for _ in range(10):
        (dx,) = binding.run([dx])
    assert not event.query()
    for _ in range(10):
        x = x.sin()
    assert_same(dx, x)


def test_runs_on_several_streams_do_not_share_memory():
    w = Writer([torch.float32])
    x, h, out = w.tensor(0, [512, 512]), w.temporary([512, 512]), w.output([512, 512])
    w.call("mm", [t(x), t(x)], [h])
    w.call("mm", [t(h), t(x)], [out])
    binding = w.bind([out])
    inputs = [torch.randn(512, 512) / 16 for _ in range(4)]
    streams = [torch.neuron.Stream() for _ in inputs]
    device = on_device(*inputs)
    torch.neuron.synchronize()
    results = []
    for _ in range(3):
        for stream, a in zip(streams, device, strict=True):
            with torch.neuron.stream(stream):
                results += binding.run([a])
    torch.neuron.synchronize()
    assert_same(results, [x @ x @ x for x in inputs] * 3)


def test_runs_from_several_threads():
    x = torch.randn(64)
    (dx,) = on_device(x)
    w = Writer([dx])
    h, out = w.temporary([64]), w.output([64])
    w.call("exp", [t(w.like(0, x))], [h])
    w.call("neg", [t(h)], [out])
    binding = w.bind([out])
    results = []

    def work():
        for _ in range(200):
            results.extend(binding.run([dx]))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same([results[0], results[-1]], [-x.exp()] * 2)
    assert len(results) == 600


def test_memory_is_that_of_the_outputs():
    megabyte = 1 << 18
    x = torch.randn(megabyte, device="neuron")
    w = Writer([x])
    temporaries, out = [w.temporary([megabyte]) for _ in range(3)], w.output([megabyte])
    w.call("neg", [t(w.like(0, x))], [temporaries[0]])
    for a, b in itertools.pairwise(temporaries):
        w.call("neg", [t(a)], [b])
    w.call("neg", [t(temporaries[-1])], [out])
    binding = w.bind([out])
    binding.run([x])
    torch.neuron.synchronize()
    before = torch.neuron.memory_allocated()
    torch.neuron.reset_peak_memory_stats()
    (y,) = binding.run([x])
    assert torch.neuron.memory_allocated() - before == 1 << 20
    assert torch.neuron.max_memory_allocated() - before == 4 << 20
    del y
    assert torch.neuron.memory_allocated() == before


def test_arguments_can_be_given_up():
    x = torch.randn(1 << 18)
    args = on_device(x)
    w = Writer(args)
    out = w.output([1 << 18])
    w.call("neg", [t(w.like(0, x))], [out])
    binding = w.bind([out])
    torch.zeros(1 << 18, device="neuron")
    before = torch.neuron.memory_allocated()
    event = occupy("neuron")
    (y,) = binding.run(args, clear=True)
    assert args == []
    assert torch.neuron.memory_allocated() == before
    torch.zeros(1 << 18, device="neuron")  # takes the memory of x, behind the run
    assert not event.query()
    assert_same(y, -x)


def test_arguments_that_a_window_has_yet_to_write():
    x = torch.randn(1 << 12)
    w = Writer(on_device(x))
    out = w.output([1 << 12])
    w.call("neg", [t(w.like(0, x))], [out])
    binding = w.bind([out])
    (dx,) = on_device(x)
    for _ in range(5):
        args = [(dx * 2).add_(1).mul_(3)]
        (y,) = binding.run(args, clear=True)
        assert_same(y, -(x * 2).add_(1).mul_(3))


def test_programs_may_go_before_their_launches():
    x = torch.randn(8)
    args, constant = on_device(x), torch.ones(8, device="neuron")
    event = occupy("neuron", launches=100)  # a collection takes long where much is imported
    w = Writer(args)
    out = w.output([8])
    w.call("add.Tensor", [t(w.like(0, x)), t(w.tensor(w.builder.constant(constant), [8]))], [out])
    (y,) = w.bind([out]).run(args)
    del w, constant
    gc.collect()
    assert not event.query()
    assert_same(y, x + 1)


def test_blocking_mode_raises_at_the_run(tmp_path):
    program = """
        import sys
        sys.path.insert(0, TESTS)
        import torch
        from program_writer import Writer, t
        args = [torch.zeros(3, device="neuron"), torch.tensor([5], device="neuron")]
        w = Writer(args)
        out = w.output([1])
        w.call("index_select", [t(w.like(0, args[0])), 0, t(w.like(1, args[1]))], [out], "line 7")
        binding = w.bind([out])
        try:
            binding.run(args)
        except IndexError as error:
            print("raised at once:", "line 7" in str(error))
    """.replace("TESTS", repr(__file__.rpartition("/")[0]))
    result = run_python(program, directory=tmp_path, env={"NEURON_LAUNCH_BLOCKING": "1"})
    assert result.stdout == "raised at once: True\n", result.stderr


def test_not_in_a_forked_child(tmp_path):
    program = """
        import os, sys
        sys.path.insert(0, TESTS)
        import torch
        from program_writer import Writer, t
        x = torch.ones(3, device="neuron")
        w = Writer([x])
        out = w.output([3])
        w.call("neg", [t(w.like(0, x))], [out])
        binding = w.bind([out])
        binding.run([x])
        torch.neuron.synchronize()
        if os.fork() == 0:
            try:
                binding.run([x])
            except RuntimeError as error:
                print("forked" in str(error), flush=True)
            os._exit(0)
        os.wait()
        print(binding.run([x])[0].sum().item())
    """.replace("TESTS", repr(__file__.rpartition("/")[0]))
    assert run_python(program, directory=tmp_path).stdout == "True\n-3.0\n"


def test_more_arguments_than_a_launch_holds():
    x = torch.randn(4)
    arguments = [*on_device(x), *[None] * 40_000, *on_device(x + 1)]
    w = Writer(arguments)
    out = w.output([4])
    w.call("mul.Tensor", [t(w.like(0, x)), t(w.like(40_001, x))], [out])
    binding = w.bind([out])
    for _ in range(3):
        assert_same(binding.run(list(arguments)), [x * (x + 1)])


def test_statistics():
    x = torch.randn(4)
    w = Writer(on_device(x))
    for _ in range(3):
        w.call("neg_", [t(w.like(0, x))])
    binding = w.bind([])
    torch.neuron.synchronize()
    before = _C.program_statistics()
    for _ in range(2):
        assert binding.run(on_device(x)) == []
    torch.neuron.synchronize()
    after = _C.program_statistics()
    assert {key: after[key] - before[key] for key in after} == {"runs": 2, "steps": 6}
