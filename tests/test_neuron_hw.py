"""Facts of the hardware and costs of single instructions, against the formulas that the documentation prints."""

import pickle
import re
from pathlib import Path

import pytest

import neuron_hw
from neuron_hw import CHIPS, INSTANCES, Fact, Operand, UnknownMachineError, chip, engine_cycles, instance_type
from neuron_hw.collective_costs import algorithm, collective_time, traffic

ROOT = Path(__file__).parents[1]


def tile(n, dtype="float32", psum=False, stride=1, dynamic=False):
    size = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3": 1}[dtype]
    return Operand(dtype, size, psum, stride * size, n, dynamic)


@pytest.mark.parametrize("name", CHIPS)
def test_every_number_has_a_unit_and_a_source(name):
    facts = chip(name).facts()
    assert len(facts) > 30
    for fact in facts.values():
        assert fact.unit
        assert len(fact.source) > 10
        for conflict in fact.conflicts:
            assert conflict.value != float(fact)
            assert conflict.source
            assert conflict.reason


def test_facts_are_numbers_and_survive_pickling():
    fact = chip("trn2").hbm_bandwidth
    assert fact / 2 == 1500
    again = pickle.loads(pickle.dumps(fact))
    assert isinstance(again, Fact)
    assert (float(again), again.unit, again.source, again.conflicts) == (
        float(fact), fact.unit, fact.source, fact.conflicts
    )  # fmt: skip


def test_known_disagreements_are_recorded():
    assert {"hbm_bandwidth", "collective_cores", "dma_rate", "peak_flops.bfloat16"} <= chip("trn2").conflicts().keys()
    assert {"hbm_bandwidth", "link_bandwidth"} <= chip("trn3").conflicts().keys()


@pytest.mark.parametrize(("name", "tflops"), [("trn1", 92), ("trn2", 79), ("trn3", 79)])
def test_peak_is_that_of_the_systolic_array(name, tflops):
    machine = chip(name)
    array = 128 * 128 * 2 * machine.tensor_clock * 1e9
    assert array == pytest.approx(tflops * 1e12, rel=0.01)
    assert machine.peak_flops["bfloat16"] == pytest.approx(array, rel=0.01)
    assert machine.peak_flops["float32"] == pytest.approx(array / 4, rel=0.03)


@pytest.mark.parametrize(
    ("name", "sbuf", "hbm", "dma"), [("trn1", 24, 32, 272), ("trn2", 28, 96, 368), ("trn3", 32, 144, 528)]
)
def test_sizes_are_those_of_the_architecture_guides(name, sbuf, hbm, dma):
    machine = chip(name)
    assert machine.sbuf_bytes_per_partition * 128 == sbuf * 2**20
    assert machine.psum_bytes_per_partition * 128 == 2 * 2**20
    assert machine.psum_bank_bytes * 8 == machine.psum_bytes_per_partition
    assert machine.hbm_bytes == hbm * 2**30
    assert machine.dma_rate * machine.dma_engines == dma
    assert machine.sbuf_usable_bytes_per_partition < machine.sbuf_bytes_per_partition


def test_instances_are_those_of_the_driver():
    text = (ROOT / "csrc/driver/instance.cpp").read_text()
    rows = re.findall(r'\{"([\w.]+)", "(\w+)", (\d+), (\d+), (\d+) \* GiB\}', text)
    assert len(rows) >= 5
    for name, target, chips, cores, gib in rows:
        found = instance_type(name)
        assert (found.target, found.chips) == (target, int(chips))
        assert found.chip.logical_cores == int(cores)
        assert found.hbm_bytes_per_logical_core == int(gib) * 2**30


def test_what_is_not_there_is_an_error_that_says_what_is():
    with pytest.raises(UnknownMachineError, match="trn1, trn2, trn3"):
        chip("trn9")
    with pytest.raises(UnknownMachineError, match=r"trn2\.48xlarge"):
        instance_type("trn2.metal")


# op, engine, out, inputs, further arguments, cycles on NeuronCore-v2 as the nki.isa reference of SDK 2.26 has them.
DOCUMENTED = [
    ("copy", "vector", tile(512), (tile(512),), {}, 512),
    ("copy", "vector", tile(10), (tile(10),), {}, 64),
    ("tensor_scalar", "scalar", tile(300), (tile(300),), {}, 300),
    ("tensor_tensor", "vector", tile(512), (tile(512), tile(512)), {"alu": "add"}, 1024),
    ("tensor_tensor", "vector", tile(512), (tile(512), tile(512, psum=True)), {"alu": "add"}, 512),
    ("tensor_tensor", "vector", tile(512, "bfloat16"), (tile(512, "bfloat16"),) * 2, {"alu": "multiply"}, 512),
    ("tensor_tensor", "vector", tile(512, "bfloat16"), (tile(512, "bfloat16"),) * 2, {"alu": "maximum"}, 1024),
    ("scalar_tensor_tensor", "vector", tile(100), (tile(100), tile(100)), {"alu": "add,add"}, 200),
    ("scalar_tensor_tensor", "vector", tile(200, "bfloat16"), (tile(200, "bfloat16"),) * 2,
     {"alu": "subtract,multiply"}, 200),
    ("tensor_reduce", "vector", tile(1), (tile(1000),), {"alu": "add"}, 1000),
    ("tensor_reduce", "vector", tile(1, "bfloat16"), (tile(1000, "bfloat16"),), {"alu": "add"}, 500),
    ("tensor_scalar_reduce", "vector", tile(512), (tile(512),), {}, 576),
    ("activation", "scalar", tile(512), (tile(512),), {}, 512),
    ("activation", "scalar", tile(512), (tile(512),), {"amount": 1.0}, 576),
    ("scan", "vector", tile(512), (tile(512), tile(512)), {}, 1024),
    ("reciprocal", "vector", tile(100), (tile(100),), {}, 800),
    ("bn_stats", "vector", tile(6), (tile(512),), {}, 512),
    ("bn_aggr", "vector", tile(2), (tile(30),), {}, 130),
    ("copy_predicated", "vector", tile(100), (tile(100), tile(100)), {}, 200),
    ("copy_predicated", "vector", tile(100), (tile(100, psum=True), tile(100)), {}, 100),
    ("fill", "vector", tile(512, "bfloat16"), (), {"amount": 1.0}, 256),
    ("fill", "vector", tile(512, "bfloat16"), (), {}, 512),
    ("max8", "vector", tile(8), (tile(1000),), {}, 1000),
    ("shuffle", "vector", tile(100), (tile(100),), {}, 100),
    ("range_select", "vector", tile(100), (tile(100),), {}, 100),
    ("iota", "gpsimd", tile(512), (), {}, 662),
    ("affine_select", "gpsimd", tile(512), (tile(512),), {}, 662),
    ("copy", "vector", tile(512, dynamic=True), (tile(512),), {}, 600),
    ("copy", "vector", tile(512), (tile(512, stride=8),), {}, 1024),
]  # fmt: skip


@pytest.mark.parametrize(("op", "engine", "out", "inputs", "more", "cycles"), DOCUMENTED)
def test_cycles_on_neuroncore_v2_are_the_documented_ones(op, engine, out, inputs, more, cycles):
    assert engine_cycles(chip("trn1"), op, engine, out, inputs, **more) == pytest.approx(cycles)


@pytest.mark.parametrize(
    ("op", "dtype", "in_psum", "stride", "speedup"),
    [
        ("copy", "bfloat16", False, 1, 4),
        ("tensor_scalar", "float16", False, 1, 4),
        ("copy", "bfloat16", False, 2, 2),
        ("copy", "bfloat16", True, 1, 2),
        ("copy", "float32", False, 1, 1),
        ("tensor_tensor", "bfloat16", False, 1, 2),
        ("tensor_tensor", "float32", False, 1, 1),
    ],
)
def test_performance_mode_of_neuroncore_v3(op, dtype, in_psum, stride, speedup):
    source = tile(2048, dtype, psum=in_psum, stride=stride)
    inputs = (source, source) if op == "tensor_tensor" else (source,)
    v2, v3 = (engine_cycles(chip(c), op, "vector", tile(2048, dtype), inputs, "add") for c in ("trn1", "trn2"))
    assert v2 / v3 == speedup


def test_scalar_engine_of_neuroncore_v4_copies_16_bit_types_twice_as_fast():
    half = tile(2048, "bfloat16")
    assert engine_cycles(chip("trn3"), "copy", "scalar", half, (half,)) == 1024
    assert engine_cycles(chip("trn3"), "activation", "scalar", half, (half,)) == 2048


def test_matrix_products():
    v2 = chip("trn1")
    assert neuron_hw.matmul_cycles(v2, 128, 512, "bfloat16") == (32, 512)
    assert neuron_hw.matmul_cycles(v2, 128, 512, "float32") == (128, 2048)
    assert neuron_hw.matmul_cycles(v2, 128, 512, "float32", 1) == (64, 1024)
    assert neuron_hw.matmul_cycles(v2, 128, 512, "bfloat16", 1) == (32, 512)
    assert neuron_hw.matmul_cycles(v2, 128, 1, "bfloat16")[1] == 64
    assert neuron_hw.matmul_cycles(v2, 16, 8, "bfloat16")[1] == 16
    assert neuron_hw.transpose_cycles(v2, 128, 128, 2)[1] == 128
    assert neuron_hw.transpose_cycles(v2, 32, 128, 2)[1] == 64


def test_transfers_take_what_profiles_of_trn2_show():
    trn2 = chip("trn2")
    one = neuron_hw.shares_of_rows(trn2, 0, 4, 1, 8192, runs=1 / 4)
    assert [s.engine for s in one] == [0]
    assert one[0].time == pytest.approx(1416, rel=0.1)
    assert neuron_hw.transfer_time(trn2, one) == pytest.approx(2720, rel=0.1)
    every = neuron_hw.shares_of_rows(trn2, 0, 128, 1, 256, runs=1 / 8)
    assert [s.engine for s in every] == list(range(16))
    assert every[0].time == pytest.approx(97, rel=0.1)


def test_partitions_belong_to_engines():
    shares = neuron_hw.shares_of_rows(chip("trn2"), 60, 8, 1, 4096)
    assert [s.engine for s in shares] == [7, 8]
    assert shares[0].time == pytest.approx(shares[1].time)


def test_small_elements_waste_the_engines():
    trn2 = chip("trn2")

    def efficiency(size):
        shares = neuron_hw.shares_of_rows(trn2, 0, 128, 65536 // size, size)
        return neuron_hw.dma_efficiency(trn2, 128 * 65536, sum(s.time for s in shares))

    assert efficiency(4096) > 0.97
    assert efficiency(2) < 0.02
    sizes = [2, 64, 256, 1024, 4096]
    assert [efficiency(s) for s in sizes] == sorted(efficiency(s) for s in sizes)


def test_collectives_change_algorithm_with_size():
    assert [algorithm(s) for s in (1 << 16, 1 << 22, 1 << 28)] == ["mesh", "halving", "ring"]
    assert traffic("all_gather", 800, 8) == 700
    assert traffic("all_reduce", 800, 8) == 1400


@pytest.mark.parametrize("name", ["trn2.3xlarge", "trn2.48xlarge", "trn2u.48xlarge", "trn3.gen2"])
def test_collectives_take_longer_with_more_bytes_and_more_ranks(name):
    instance = INSTANCES[name]
    ranks = [2, instance.logical_cores, 2 * instance.logical_cores]
    times = [collective_time(instance, "all_reduce", 1 << 20, r) for r in ranks]
    assert times == sorted(times)
    assert collective_time(instance, "all_gather", 1 << 28, 2) > collective_time(instance, "all_gather", 1 << 20, 2)
    assert collective_time(instance, "all_reduce", 1 << 20, 1) == 0
