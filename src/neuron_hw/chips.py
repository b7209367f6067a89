"""The chips: what one NeuronCore of each generation has and how fast it is.

Sources are pages of the AWS Neuron documentation, by title. "Profile figures" are the screenshots of measured kernels
in those pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import ClassVar

from .facts import Conflict, Fact, UnknownMachineError

__all__ = ["CHIPS", "Chip", "chip"]

_ARCH = {
    2: "NKI: Trainium/Inferentia2 Architecture Guide",
    3: "NKI: Trainium2 Architecture Guide",
    4: "NKI: Trainium3 Architecture Guide",
}
_PRODUCT = {
    2: "Neuron: Trainium Architecture",
    3: "Neuron: Trainium2 Architecture",
    4: "Neuron: Trainium3 Architecture",
}
_DMA = "NKI: Introduction to DMA"
_BANDWIDTH = "NKI: Guideline to Avoid Under-Utilizing DMA Bandwidth"
_DGE = "NKI: Descriptor Generation Engine Reference"
_PERF = "NKI: Performance Optimizations"
_ISA = "NKI: nki.isa reference of SDK 2.26, estimated instruction cost"
_OPTIMIZATION = "NKI: Introduction to NKI Kernel Optimization, profile figures"
_EXPLORER = "Neuron Explorer: overview summary page"

KiB, GiB = 1024, 1024**3


@dataclass(frozen=True)
class Chip:
    """One generation of chip. Rates are per NeuronCore unless the name says otherwise.

    Attributes:
        name: "trn1", "trn2" or "trn3".
        generation: of the NeuronCore: 2, 3 or 4.
        cores: physical NeuronCores.
        logical_cores: with the default logical NeuronCore configuration.
        hbm_stacks, hbm_bytes: device memory of the chip.
        hbm_bandwidth: of the chip; hbm_stack_bandwidth: of one stack, as profiles count it.
        sbuf_bytes_per_partition: all of it; sbuf_usable_bytes_per_partition: what kernels get.
        dma_rate: what one DMA engine reaches; dma_rate_theoretical: what it is built for.
        dma_start: from the trigger until the first engine moves data; dma_stagger: from one engine to the next;
            dma_completion: from the last byte until the waiting engine starts.
        dma_trigger, dma_descriptors: time between two transfers of one queue with descriptors made before, or while the
            kernel runs.
        dma_smallest: bytes that the smallest element of a transfer takes the time of.
        dma_transpose_share, dma_sbuf_transpose_share, dma_compute_share: parts of the copying rate.
        minimum_interval: between two instructions of the vector or scalar engine.
        *_latency: cycles until a result can be read, beyond the time that the data takes.
        matmul_interval: smallest time between two matrix multiplications.
        warm_up, warm_up_rate, warm_up_share: after a pause the tensor engine runs at this rate for this long, and a
            window of that length that it is busy less than this share of counts as a pause.
        peak_flops: dense peak of a core by data type.
        link_bandwidth: of the chip to others in the instance, both directions together.
    """

    name: str
    generation: int
    cores: int
    logical_cores: int
    hbm_stacks: int
    hbm_bytes: Fact
    hbm_bandwidth: Fact
    hbm_stack_bandwidth: Fact
    sbuf_bytes_per_partition: Fact
    sbuf_usable_bytes_per_partition: Fact
    psum_bytes_per_partition: Fact
    psum_bank_bytes: Fact
    tensor_clock: Fact
    vector_clock: Fact
    scalar_clock: Fact
    gpsimd_clock: Fact
    dma_engines: Fact
    dma_rate: Fact
    dma_rate_theoretical: Fact
    dma_start: Fact
    dma_stagger: Fact
    dma_completion: Fact
    dma_trigger: Fact
    dma_descriptors: Fact
    dma_smallest: Fact
    dma_transpose_share: Fact
    dma_sbuf_transpose_share: Fact
    dma_compute_share: Fact
    minimum_interval: Fact
    dynamic_interval: Fact
    gpsimd_start: Fact
    vector_latency: Fact
    scalar_latency: Fact
    tensor_latency: Fact
    accumulator_read: Fact
    matmul_interval: Fact
    fast_load: Fact
    warm_up: Fact
    warm_up_rate: Fact
    warm_up_share: Fact
    collective_cores: Fact
    link_bandwidth: Fact
    peak_flops: Mapping[str, Fact]

    partitions: ClassVar[int] = 128
    psum_banks: ClassVar[int] = 8

    @property
    def hbm_bandwidth_per_core(self) -> float:
        """GB/s when all cores read at once."""
        return self.hbm_bandwidth / self.cores

    def clock(self, engine: str) -> float:
        """GHz of "tensor", "vector", "scalar", "gpsimd", or "sync"."""
        return float(getattr(self, f"{'scalar' if engine == 'sync' else engine}_clock"))

    def facts(self) -> dict[str, Fact]:
        """All numbers with sources, by name."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), Fact)}
        return found | {f"peak_flops.{name}": fact for name, fact in self.peak_flops.items()}

    def conflicts(self) -> dict[str, Fact]:
        """Those that public pages disagree about."""
        return {name: fact for name, fact in self.facts().items() if fact.conflicts}


def _latencies(generation: int, scalar_clock: float, tensor_clock: float) -> dict[str, Fact]:
    # A systolic array of 128 x 128: the first row enters 128 cycles before the last, the last column leaves 128 after
    # the first. Reading SBUF and writing PSUM take 60 cycles of the 1.4 (1.2) GHz memory each.
    tensor = 128 + 128 + 2 * 60 * tensor_clock / scalar_clock
    return {
        "minimum_interval": Fact(64, "cycles", _ISA),
        "dynamic_interval": Fact(600, "cycles", f"{_ISA} (tensor_copy_dynamic_src)"),
        "gpsimd_start": Fact(150, "cycles", _ISA),
        "vector_latency": Fact(100, "cycles", f"{_ARCH[2]}: static overhead of dependent instructions"),
        "scalar_latency": Fact(
            200, "cycles", f"{_PERF}: dependent instructions of one element start 264 cycles apart, less 64 of interval"
        ),
        "tensor_latency": Fact(
            tensor,
            "cycles",
            f"inference: filling and draining a 128 x 128 systolic array, and twice the access overhead of 60 memory "
            f"cycles of the {_ARCH[2]}",
        ),
        "accumulator_read": Fact(64, "cycles", f"{_ARCH[2]}: ActReadAccumulator"),
        "matmul_interval": Fact(64, "cycles", f"{_ARCH[2]}: MM_INIT_LATENCY"),
        "fast_load": Fact(4, "times", f"{_ARCH[2]}: Fast LoadStationary"),
        "warm_up": Fact(3000 if generation > 2 else 0, "ns", f"{_EXPLORER}: throttling"),
        "warm_up_rate": Fact(0.5 if generation > 2 else 1, "of the rate", f"{_EXPLORER}: throttling"),
        "warm_up_share": Fact(0.5 if generation > 2 else 0, "of the time", f"{_EXPLORER}: throttling"),
    }


def _dma(generation: int, rate: float, theoretical: float) -> dict[str, Fact]:
    trigger = "inference: one instruction of the sequencer, 64 cycles"
    return {
        "dma_engines": Fact(16, "engines", _DMA),
        "dma_rate": Fact(
            rate,
            "GB/s",
            _BANDWIDTH,
            Conflict(theoretical, _DMA, "theoretical; measured transfers reach the smaller figure"),
        ),
        "dma_rate_theoretical": Fact(theoretical, "GB/s", _DMA),
        "dma_start": Fact(
            689,
            "ns",
            f"{_DMA}, first profile figure: trigger at 22290 ns, first engine near 22990 ns; with dma_stagger of all "
            f"engines and dma_completion the 1300 ns of {_BANDWIDTH}",
        ),
        "dma_stagger": Fact(20, "ns", f"{_DMA}, second profile figure: first engine at 34040 ns, last at 34340 ns"),
        "dma_completion": Fact(
            311, "ns", f"{_DMA}, first profile figure: data until 24699 ns, the scalar engine starts at 25010 ns"
        ),
        "dma_trigger": Fact(64 / (1.4 if generation == 2 else 1.2), "ns", trigger),
        "dma_descriptors": Fact(600, "ns", f"{_DGE}: a transfer whose descriptors are made on the device"),
        "dma_smallest": Fact(
            64, "bytes", "inference: one access of HBM; packet times of published profiles agree to 4 %"
        ),
        "dma_transpose_share": Fact(0.9, "of the rate", f"{_ARCH[3]}: DMA transpose")
        if generation > 2
        else Fact(0.25, "of the rate", f"inference: {_PERF} says much lower than a load, without a figure"),
        "dma_sbuf_transpose_share": Fact(0.5, "of the rate", f"{_ARCH[3]}: DMA transpose")
        if generation > 2
        else Fact(0.25, "of the rate", "inference: as from HBM"),
        "dma_compute_share": Fact(1 if generation > 3 else 0.5, "of the rate", f"{_ARCH[4]}: near-memory accumulation"),
    }


def _sbuf(kib: int, generation: int) -> dict[str, Fact]:
    reserved = 16 * KiB + 8
    library = "nki-library: MAX_AVAILABLE_SBUF_SIZE of the MLP kernel, 224 KiB - 16 KiB - 8"
    return {
        "sbuf_bytes_per_partition": Fact(kib * KiB, "bytes", _ARCH[generation]),
        "sbuf_usable_bytes_per_partition": Fact(
            kib * KiB - reserved, "bytes", library if generation == 3 else f"inference: the same part as in {library}"
        ),
        "psum_bytes_per_partition": Fact(16 * KiB, "bytes", _ARCH[generation]),
        "psum_bank_bytes": Fact(2 * KiB, "bytes", _ARCH[generation]),
    }


def _clocks(generation: int, tensor: float, vector: float, other: float) -> dict[str, Fact]:
    def fact(value: float) -> Fact:
        return Fact(value, "GHz", _ARCH[generation])

    return {
        "tensor_clock": fact(tensor),
        "vector_clock": fact(vector),
        "scalar_clock": fact(other),
        "gpsimd_clock": fact(other),
    }


def _peaks(generation: int, chip_bf16: float, cores: int, **tflops: float) -> Mapping[str, Fact]:
    reason = "the chip's figure is more than its cores have; theirs is 128 * 128 * 2 * clock"
    found = {}
    for name, value in tflops.items():
        conflicts: tuple[Conflict, ...] = ()
        if name == "bfloat16":
            conflicts = (Conflict(chip_bf16 / cores * 1e12, _PRODUCT[generation], reason),)
        found[name] = Fact(value * 1e12, "FLOP/s", _ARCH[generation], *conflicts)
    for name in ("float16", "tfloat32"):
        found[name] = found["bfloat16"]
    for name in ("float8_e4m3", "float8_e5m2", "float8_e4m3fn"):
        found.setdefault(name, found["float8"])
    return MappingProxyType(found)


def _stack(generation: int, chip_gb: float, stacks: int) -> Fact:
    if generation == 3:
        return Fact(
            716,
            "GB/s",
            f"{_OPTIMIZATION}: MBU of the tiled and hoisted kernels against their bytes",
            Conflict(725, f"{_PRODUCT[3]}: 2.9 TB/s over 4 stacks", "the profiler's own figure reproduces its MBU"),
        )
    return Fact(chip_gb / stacks, "GB/s", f"inference: an equal part of the chip's bandwidth, {_ARCH[generation]}")


_GUIDE = "the guide for kernels and the product page disagree; the guide is what kernels are written by"
_CC = "the guide's figure counts all, the product page those in use"

_TRN1 = Chip(
    name="trn1",
    generation=2,
    cores=2,
    logical_cores=2,
    hbm_stacks=2,
    hbm_bytes=Fact(32 * GiB, "bytes", _ARCH[2]),
    hbm_bandwidth=Fact(820, "GB/s", _ARCH[2]),
    hbm_stack_bandwidth=_stack(2, 820, 2),
    collective_cores=Fact(6, "cores", _ARCH[2]),
    link_bandwidth=Fact(384, "GB/s", f"{_PRODUCT[3]}: table of generations"),
    peak_flops=_peaks(2, 190, 2, bfloat16=92, float8=92, float32=23),
    **_sbuf(192, 2),
    **_clocks(2, 2.8, 1.12, 1.4),
    **_dma(2, 17, 27.2),
    **_latencies(2, 1.4, 2.8),
)

_TRN2 = Chip(
    name="trn2",
    generation=3,
    cores=8,
    logical_cores=4,
    hbm_stacks=4,
    hbm_bytes=Fact(96 * GiB, "bytes", _ARCH[3]),
    hbm_bandwidth=Fact(3000, "GB/s", _ARCH[3], Conflict(2900, _PRODUCT[3], _GUIDE)),
    hbm_stack_bandwidth=_stack(3, 3000, 4),
    collective_cores=Fact(20, "cores", _ARCH[3], Conflict(16, _PRODUCT[3], _CC)),
    link_bandwidth=Fact(1024, "GB/s", "Neuron: Trn2 Architecture"),
    peak_flops=_peaks(3, 667, 8, bfloat16=79, float8=158, float32=20, sparse=316),
    **_sbuf(224, 3),
    **_clocks(3, 2.4, 0.96, 1.2),
    **_dma(3, 23, 27.2),
    **_latencies(3, 1.2, 2.4),
)

_TRN3 = Chip(
    name="trn3",
    generation=4,
    cores=8,
    logical_cores=4,
    hbm_stacks=4,
    hbm_bytes=Fact(144 * GiB, "bytes", _ARCH[4]),
    hbm_bandwidth=Fact(4700, "GB/s", _ARCH[4], Conflict(4900, _PRODUCT[4], _GUIDE)),
    hbm_stack_bandwidth=_stack(4, 4700, 4),
    collective_cores=Fact(20, "cores", _ARCH[4], Conflict(16, _PRODUCT[4], _CC)),
    link_bandwidth=Fact(
        2560,
        "GB/s",
        _PRODUCT[4],
        Conflict(704, "Neuron: Trn3 Architecture, sum of the links of a chip", "the pages do not reconcile the two"),
    ),
    peak_flops=_peaks(4, 671, 8, bfloat16=79, float8=158, float32=20, mx=315, sparse=315),
    **_sbuf(256, 4),
    **_clocks(4, 2.4, 1.2, 1.2),
    **_dma(4, 33, 38.4),
    **_latencies(4, 1.2, 2.4),
)

CHIPS: Mapping[str, Chip] = MappingProxyType({c.name: c for c in (_TRN1, _TRN2, _TRN3)})


def chip(target: str) -> Chip:
    """The chip of that name: "trn1", "trn2" or "trn3".

    Raises:
        UnknownMachineError: there is none.
    """
    found = CHIPS.get(target)
    if found is None:
        raise UnknownMachineError("chip", target, tuple(CHIPS))
    return found
