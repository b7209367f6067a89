"""The modelled timeline, on instruction lists built by hand, against arithmetic on documented figures."""

import json
from pathlib import Path

import pytest

from neuron_hw import chip
from nki.element_types import TYPES
from nki.instruction import Instruction
from nki.profiling import Profile
from nki.spills import add_spills
from nki.storage import Storage
from nki.tensor import NkiTensor
from nki.timeline import build_timeline
from nki.trace import Register, Trace


class Builder:
    """A trace under construction; every instruction is on a line of its own number."""

    def __init__(self, target="trn2"):
        self.trace = Trace(target)

    def tensor(self, region, *shape, dtype="float32", role=""):
        storage = Storage(len(self.trace.storages), region, shape, TYPES[dtype], role=role)
        self.trace.storages.append(storage)
        strides = [1] * len(shape)
        for i in range(len(shape) - 2, -1, -1):
            strides[i] = strides[i + 1] * shape[i + 1]
        return NkiTensor(storage, storage.dtype, shape, tuple(strides))

    def add(self, op, unit, out, args, *attrs, line=1, **hints):
        return self.trace.add(Instruction(op, unit, out, args, attrs, ("kernel.py", line, "f"), hints=hints or None))

    def load(self, dst, src, **hints):
        return self.add("dma_copy", "dma", (dst,), (src,), False, **hints)

    def activation(self, dst, src, **more):
        return self.add("activation", "scalar", (dst, None), (src, None, 1.0), "copy", "add", "idle", **more)

    def matmul(self, dst, stationary, moving):
        return self.add("matmul", "tensor", (dst,), (stationary, moving), None, False)

    def dependencies(self):
        """Whole tensors: readers wait for the last writer, writers for it and for the readers since."""
        writer, readers, found = {}, {}, []
        for i, instruction in enumerate(self.trace.instructions):
            waits = set()
            args = [v.storage.number for v in instruction.args if isinstance(v, NkiTensor)]
            outs = [v.storage.number for v in instruction.out if isinstance(v, NkiTensor)]
            for n in args:
                waits |= {writer[n]} if n in writer else set()
            for n in outs:
                waits |= ({writer[n]} if n in writer else set()) | set(readers.get(n, ()))
            for n in args:
                readers.setdefault(n, []).append(i)
            for n in outs:
                writer[n], readers[n] = i, []
            found.append(tuple(waits - {i}))
        return found

    def timeline(self):
        return build_timeline(self.trace, self.dependencies())


def test_dependent_instructions_wait_for_the_result_to_be_written():
    b = Builder("trn1")
    x = b.tensor("sbuf", 128, 1)
    for _ in range(100):
        b.activation(x, x)
    # "NKI Performance Optimizations": 189 ns from one to the next on NeuronCore-v2.
    assert b.timeline().latency / 100 == pytest.approx(189, rel=0.01)


def test_independent_instructions_start_an_interval_apart():
    b = Builder("trn1")
    x = b.tensor("sbuf", 128, 1)
    for _ in range(100):
        b.activation(b.tensor("sbuf", 128, 1), x)
    times = b.timeline().schedule.start
    assert times[50] - times[49] == pytest.approx(64 / 1.4)


def test_overwriting_what_was_read_waits_for_nothing():
    b = Builder("trn1")
    x, y = b.tensor("sbuf", 128, 1), b.tensor("sbuf", 128, 1)
    for _ in range(10):
        b.activation(y, x)
    times = b.timeline().schedule.start
    assert times[9] - times[8] == pytest.approx(64 / 1.4)


def test_loading_the_stationary_tile_hides_behind_the_multiplication():
    b = Builder("trn1")
    dst = b.tensor("psum", 128, 512)
    for _ in range(20):
        b.matmul(dst, b.tensor("sbuf", 128, 128, dtype="bfloat16"), b.tensor("sbuf", 128, 512, dtype="bfloat16"))
    start = b.timeline().schedule.start
    assert start[11] - start[10] == pytest.approx(512 / 2.8)


def test_loads_that_are_longer_than_multiplications_set_the_pace():
    b = Builder("trn1")
    dst = b.tensor("psum", 128, 8)
    for _ in range(20):
        b.matmul(dst, b.tensor("sbuf", 128, 128), b.tensor("sbuf", 128, 8))
    start = b.timeline().schedule.start
    assert start[11] - start[10] == pytest.approx(4 * 64 / 2.8)  # the multiplication's smallest interval, four passes


def matmuls(target, count):
    b = Builder(target)
    dst, a, m = b.tensor("psum", 128, 512), *(b.tensor("sbuf", 128, n, dtype="bfloat16") for n in (128, 512))
    for _ in range(count):
        b.matmul(dst, a, m)
    return b.timeline()


def test_the_tensor_engine_warms_up_on_trn2_and_not_on_trn1():
    start = matmuls("trn2", 100).schedule.start
    assert start[2] - start[1] == pytest.approx(2 * 512 / 2.4)
    assert start[90] - start[89] == pytest.approx(512 / 2.4)
    start = matmuls("trn1", 100).schedule.start
    assert start[2] - start[1] == pytest.approx(512 / 2.8)


def test_utilisation_is_against_the_array():
    timeline = matmuls("trn1", 1000)
    assert timeline.macs == 1000 * 128 * 128 * 512
    assert timeline.mfu_percent == pytest.approx(100, abs=0.5)
    assert timeline.hfu_percent == timeline.mfu_percent
    assert timeline.active_percent("tensor") == pytest.approx(100)


def test_a_consumer_waits_for_a_load_and_its_semaphore():
    b = Builder()
    x, tile, y = (
        b.tensor("shared_hbm", 4, 4096, dtype="bfloat16"),
        *(b.tensor("sbuf", 4, 4096, dtype="bfloat16") for _ in range(2)),
    )
    b.load(tile, x)
    b.activation(y, tile)
    timeline = b.timeline()
    # "Introduction to DMA", first profile: trigger at 22290 ns, 1416 ns of data, the scalar engine starts at 25010 ns.
    assert timeline.schedule.issued[1] == pytest.approx(2720, rel=0.02)
    assert timeline.active["dma"] == pytest.approx(1416, rel=0.02)
    assert timeline.hbm_read == 32768


def test_transfers_share_the_engines():
    b = Builder()
    x = b.tensor("shared_hbm", 128, 8192)
    for _ in range(50):
        b.load(b.tensor("sbuf", 128, 8192), x)
    timeline = b.timeline()
    rate = timeline.hbm_read / timeline.latency
    assert rate == pytest.approx(368, rel=0.02)
    assert timeline.dma_efficiency == pytest.approx(1, abs=0.02)
    assert timeline.mbu_percent == pytest.approx(100 * rate / 716, rel=0.01)


def test_small_transfers_are_bound_by_their_descriptors():
    b = Builder()
    x = b.tensor("shared_hbm", 128, 16)
    for _ in range(50):
        b.load(b.tensor("sbuf", 128, 16), x)
    issued = b.timeline().schedule.issued
    assert issued[30] - issued[29] == pytest.approx(600)


def test_descriptors_made_before_start_sooner_and_queues_of_other_engines_run_beside():
    def interval(**hints):
        b = Builder()
        x = b.tensor("shared_hbm", 128, 16)
        for i in range(20):
            b.load(b.tensor("sbuf", 128, 16), x, **{k: v[i % 2] for k, v in hints.items()})
        issued = sorted(b.timeline().schedule.issued)
        return (issued[18] - issued[8]) / 10

    assert interval(dge_mode=("none", "none")) < 100
    assert interval(dge_mode=("hwdge", "hwdge"), engine=("sync", "sync")) == pytest.approx(600)
    assert interval(dge_mode=("hwdge", "hwdge"), engine=("sync", "scalar")) == pytest.approx(300)


def test_a_store_that_waits_does_not_hold_up_loads():
    b = Builder()
    x, out = b.tensor("shared_hbm", 128, 512), b.tensor("shared_hbm", 128, 512)
    slow = b.tensor("sbuf", 128, 512)
    for _ in range(30):
        b.activation(slow, slow)
    store = b.load(out, slow)
    load = b.load(b.tensor("sbuf", 128, 512), x)
    schedule = b.timeline().schedule
    assert schedule.start[load.index] < schedule.start[store.index]
    assert schedule.issued[store.index] >= schedule.end[29]


@pytest.mark.parametrize(("target", "apart"), [("trn1", True), ("trn2", False)])
def test_vector_and_gpsimd_share_a_port_on_trn1_only(target, apart):
    b = Builder(target)
    for engine in ("vector", "gpsimd"):
        b.add("copy", engine, (b.tensor("sbuf", 128, 512),), (b.tensor("sbuf", 128, 512),))
    start = b.timeline().schedule.start
    assert (start[1] > start[0]) == apart


def test_a_dynamic_loop_takes_as_many_turns_as_its_bounds_say():
    def latency(turns):
        b = Builder("trn1")
        x = b.tensor("sbuf", 128, 2048)
        counter = Register(b.trace)
        b.add("loop_begin", "sync", (counter,), (0, turns), 1)
        b.activation(x, x)
        b.add("loop_end", "sync", (), ())
        timeline = b.timeline()
        assert timeline.schedule.times == [1, turns, 1]
        assert not timeline.notes
        assert sum(step.time for step in timeline.critical_path) == pytest.approx(timeline.latency)
        return timeline.latency, timeline.active["scalar"]

    once, many, never = latency(1), latency(40), latency(0)
    assert never == (0, 0)
    assert many[0] == pytest.approx(40 * once[0])
    assert many[1] == pytest.approx(40 * once[1])


def test_a_loop_of_unknown_length_is_counted_once_and_noted():
    b = Builder()
    x = b.tensor("sbuf", 128, 8)
    b.add("loop_begin", "sync", (Register(b.trace),), (0, Register(b.trace)), 1, line=7)
    b.activation(x, x)
    b.add("loop_end", "sync", (), ())
    (note,) = b.timeline().notes
    assert "kernel.py:7" in note
    assert "one turn" in note


def test_order_asked_for_is_kept():
    b = Builder()
    first = b.add("copy", "vector", (b.tensor("sbuf", 128, 4096),), (b.tensor("sbuf", 128, 4096),))
    second = b.activation(b.tensor("sbuf", 128, 8), b.tensor("sbuf", 128, 8))
    assert b.timeline().schedule.start[1] == 0
    second.after = (first,)
    schedule = b.timeline().schedule
    assert schedule.start[1] == schedule.end[0]


def pipeline():
    b = Builder()
    x, out = b.tensor("shared_hbm", 128, 512, role="argument"), b.tensor("shared_hbm", 128, 512)
    for _ in range(4):
        tile, y = b.tensor("sbuf", 128, 512), b.tensor("sbuf", 128, 512)
        b.load(tile, x, line=10)
        b.activation(y, tile, line=11)
        b.add("tensor_scalar", "vector", (y,), (y, 2.0, None), "multiply", False, None, False, line=12)
        b.load(out, y, line=13)
    return b


def test_the_critical_path_adds_up_to_the_time_of_the_kernel():
    timeline = pipeline().timeline()
    path = timeline.critical_path
    assert sum(step.time for step in path) == pytest.approx(timeline.latency)
    assert all(step.time >= 0 for step in path)
    assert path[0].reason == "start"
    assert path[-1].instruction.line[1] == 13


def test_time_by_source_line():
    timeline = pipeline().timeline()
    lines = {c.line[1]: c for c in timeline.lines}
    assert set(lines) == {10, 11, 12, 13}
    assert all(c.count == 4 for c in lines.values())
    assert sum(c.critical for c in lines.values()) == pytest.approx(timeline.latency)
    assert lines[11].work == pytest.approx(4 * 512 / 1.2)


def test_spilling_moves_what_does_not_fit_and_no_more():
    b = Builder()
    source = b.tensor("shared_hbm", 128, 1024, role="argument")
    tiles = [b.tensor("sbuf", 128, 1024) for _ in range(3)]
    for tile in tiles:
        b.load(tile, source)
    for tile in tiles:
        b.activation(tile, tile)
    for tile in tiles:
        b.activation(tile, tile)
    fits = add_spills(b.trace, b.dependencies(), 3 * 4096)
    assert fits[0] == b.trace.instructions
    assert fits[2] == 0
    instructions, dependencies, moved = add_spills(b.trace, b.dependencies(), 2 * 4096)
    added = [i for i in instructions if i.name == "spill"]
    assert moved == len(added) * 128 * 4096
    assert [i for i in instructions if i.name != "spill"] == b.trace.instructions
    # What was only loaded is loaded again without having been saved.
    of_second = [i for i in added if tiles[1].storage.number in (i.out[0].storage.number, i.args[0].storage.number)]
    assert of_second[0].out[0].storage.region == "sbuf"
    assert all(d < i for i, waits in enumerate(dependencies) for d in waits)
    timeline = build_timeline(b.trace, dependencies, instructions=instructions)
    assert timeline.latency > b.timeline().latency


def test_reports_say_that_they_are_modelled(tmp_path):
    timeline = pipeline().timeline()
    profile = Profile("kernel", "trn2", [timeline])
    text = profile.text()
    assert text.splitlines()[0].endswith("(modelled)")
    assert "kernel.py:11" in text
    assert profile.latency_us == pytest.approx(timeline.latency / 1e3)
    data = json.loads(profile.json())
    assert data["modelled"] is True
    assert data["hbm_read_bytes"] == data["hbm_write_bytes"] == 4 * 128 * 512 * 4
    assert data["engine_active_time_percent"]["scalar"] == pytest.approx(profile.engines["scalar"])
    assert len(data["lines"]) == 4


def test_perfetto_has_a_row_per_queue_and_an_arrow_per_wait(tmp_path):
    timeline = pipeline().timeline()
    path = Profile("kernel", "trn2", [timeline]).perfetto(tmp_path / "trace.json")
    events = json.loads(Path(path).read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"scalar", "vector", "qGpsimdLoad", "qGpsimdStore"} <= names
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == len(timeline.instructions)
    assert all(e["args"]["modelled"] for e in slices)
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys() != set()
    assert all(starts[k]["ts"] <= ends[k]["ts"] for k in starts)
    rows = {}
    for e in sorted(slices, key=lambda e: e["ts"]):
        if e["cat"] != "dma":
            assert e["ts"] >= rows.get(e["tid"], 0) - 1e-9
            rows[e["tid"]] = e["ts"] + e["dur"]


def test_two_cores_of_a_logical_core_share_the_memory():
    def latency(sharing):
        b = Builder()
        x = b.tensor("shared_hbm", 128, 8192)
        for _ in range(20):
            b.load(b.tensor("sbuf", 128, 8192), x)
        return build_timeline(b.trace, b.dependencies(), sharing).latency

    assert latency(2) / latency(1) == pytest.approx(2 * 368 / chip("trn2").hbm_stack_bandwidth, rel=0.02)
