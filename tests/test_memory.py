"""Memory statistics: torch.cuda's keys and meaning, before and after allocations."""

import gc
from pathlib import Path

import pytest
import torch
from processes import run_python

pytestmark = pytest.mark.neuron_only

MIB = 1 << 20
GROUPS = {"allocation", "segment", "active", "inactive_split"}
GROUPS_OF_BYTES = {"allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"}


@pytest.fixture(autouse=True)
def _nothing_left_over() -> None:
    gc.collect()
    torch.neuron.synchronize(3)
    torch.neuron.empty_cache()


# Device 3 is used by these tests alone, so its figures start from zero.
DEVICE = "neuron:3"


def test_all_functions_work_before_any_allocation(tmp_path: Path) -> None:
    program = """
        import torch
        neuron, accelerator = torch.neuron, torch.accelerator
        for memory in (neuron, accelerator):
            memory.empty_cache(), memory.empty_host_cache()
            memory.reset_peak_memory_stats(), memory.reset_accumulated_memory_stats()
            assert memory.memory_allocated() == memory.max_memory_allocated() == 0
            assert memory.memory_reserved() == memory.max_memory_reserved() == 0
            assert not any(v for k, v in memory.memory_stats().items() if "." in k)
        assert neuron.mem_get_info(0) == accelerator.get_memory_info() == (24 << 30, 24 << 30)
        assert neuron.memory_snapshot() == []
        assert "neuron:0" in neuron.memory_summary() and neuron.memory_summary(abbreviated=True)
        assert not neuron.is_initialized()
    """
    result = run_python(program, directory=tmp_path)
    assert result.returncode == 0, result.stderr


def test_keys_are_those_of_torch_cuda() -> None:
    keys = torch.neuron.memory_stats(DEVICE).keys()
    for group in GROUPS | GROUPS_OF_BYTES:
        for pool in ("all", "small_pool", "large_pool"):
            for metric in ("current", "peak", "allocated", "freed"):
                assert f"{group}.{pool}.{metric}" in keys
    assert {"num_ooms", "num_alloc_retries"} <= keys
    assert list(keys) == sorted(keys)
    nested = torch.neuron.memory_stats_as_nested_dict(DEVICE)
    assert nested["allocated_bytes"]["all"].keys() == {"current", "peak", "allocated", "freed"}


@pytest.mark.parametrize("which", [3, "neuron:3", torch.device("neuron:3")])
def test_allocated_memory_is_what_tensors_hold(which: int | str | torch.device) -> None:
    before = torch.neuron.memory_allocated(which)
    x = torch.empty(8 * MIB, dtype=torch.uint8, device=DEVICE)
    assert torch.neuron.memory_allocated(which) == before + 8 * MIB
    y = torch.empty(100, dtype=torch.uint8, device=DEVICE)
    assert before + 8 * MIB + 100 <= torch.neuron.memory_allocated(which) <= before + 8 * MIB + 4096
    assert torch.neuron.memory_reserved(which) >= torch.neuron.memory_allocated(which)
    del x, y
    assert torch.neuron.memory_allocated(which) == before


def test_current_device_is_the_default() -> None:
    with torch.neuron.device(DEVICE):
        x = torch.empty(3 * MIB, dtype=torch.uint8, device="neuron")
        assert torch.neuron.memory_allocated() == torch.neuron.memory_allocated(3) >= x.nbytes


def test_pools_are_split_at_one_mebibyte() -> None:
    before = torch.neuron.memory_stats(DEVICE)
    tensors = [torch.empty(size, dtype=torch.uint8, device=DEVICE) for size in (64, MIB - 4096, MIB, 5 * MIB)]
    after = torch.neuron.memory_stats(DEVICE)

    def more(key: str) -> int:
        return after[key] - before[key]

    assert more("allocation.small_pool.current") == 2
    assert more("allocation.large_pool.current") == 2
    assert more("allocation.all.current") == 4
    assert more("requested_bytes.all.current") == sum(t.nbytes for t in tensors)
    assert more("allocated_bytes.large_pool.current") >= 6 * MIB


def test_peak_and_reset() -> None:
    torch.neuron.reset_peak_memory_stats(DEVICE)
    start = torch.neuron.max_memory_allocated(DEVICE)
    assert start == torch.neuron.memory_allocated(DEVICE)
    x = torch.empty(32 * MIB, dtype=torch.uint8, device=DEVICE)
    del x
    assert torch.neuron.memory_allocated(DEVICE) == start
    assert torch.neuron.max_memory_allocated(DEVICE) == start + 32 * MIB
    assert torch.neuron.max_memory_reserved(DEVICE) >= start + 32 * MIB
    torch.neuron.reset_peak_memory_stats(DEVICE)
    assert torch.neuron.max_memory_allocated(DEVICE) == start


def test_accumulated_and_reset() -> None:
    torch.neuron.reset_accumulated_memory_stats(DEVICE)
    assert torch.neuron.memory_stats(DEVICE)["allocated_bytes.all.allocated"] == 0
    for _ in range(3):
        torch.empty(2 * MIB, dtype=torch.uint8, device=DEVICE)
    stats = torch.neuron.memory_stats(DEVICE)
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == 6 * MIB
    assert stats["allocation.all.allocated"] == 3
    torch.neuron.reset_accumulated_memory_stats(DEVICE)
    assert torch.neuron.memory_stats(DEVICE)["allocation.all.freed"] == 0


def test_empty_cache_gives_memory_back() -> None:
    free, total = torch.neuron.mem_get_info(DEVICE)
    x = torch.empty(64 * MIB, dtype=torch.uint8, device=DEVICE)
    assert torch.neuron.mem_get_info(DEVICE)[0] <= free - 64 * MIB
    del x
    assert torch.neuron.memory_reserved(DEVICE) >= 64 * MIB
    torch.neuron.synchronize(DEVICE)
    torch.neuron.empty_cache()
    assert torch.neuron.mem_get_info(DEVICE) == (free, total)
    assert torch.neuron.memory_reserved(DEVICE) == total - free


def test_out_of_memory() -> None:
    before = torch.neuron.memory_stats(DEVICE)["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 25\.00 GiB.*total capacity of 24\.00 GiB"):
        torch.empty(25 << 30, dtype=torch.uint8, device=DEVICE)
    assert torch.neuron.OutOfMemoryError is torch.OutOfMemoryError
    assert torch.neuron.memory_stats(DEVICE)["num_ooms"] == before + 1
    assert torch.ones(3, device=DEVICE).sum().item() == 3  # and the device goes on


def test_snapshot_agrees_with_the_statistics() -> None:
    held = [torch.empty(size, dtype=torch.uint8, device=DEVICE) for size in (100, 3 * MIB, 20 * MIB)]
    segments = [s for s in torch.neuron.memory_snapshot() if s["device"] == 3]
    stats = torch.neuron.memory_stats(DEVICE)
    assert sum(s["total_size"] for s in segments) == stats["reserved_bytes.all.current"]
    assert sum(s["allocated_size"] for s in segments) == stats["allocated_bytes.all.current"]
    assert len(segments) == stats["segment.all.current"]
    for segment in segments:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        assert segment["segment_type"] in ("small", "large")
    starts = {b["address"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated"}
    assert {t.data_ptr() for t in held} <= starts


def test_summary_is_a_table_of_the_statistics() -> None:
    x = torch.empty(48 * MIB, dtype=torch.uint8, device=DEVICE)
    summary = torch.neuron.memory_summary(DEVICE)
    (row,) = [line for line in summary.splitlines() if line.startswith(" Allocated memory")]
    assert "48." in row
    assert row.count("MiB") + row.count("GiB") >= 2
    assert summary.count("small pool") == 9
    short = torch.neuron.memory_summary(DEVICE, abbreviated=True)
    assert "small pool" not in short
    assert max(map(len, summary.splitlines())) <= 80
    del x


def test_pinned_memory_can_be_given_back() -> None:
    x = torch.ones(MIB, pin_memory=True)
    assert x.is_pinned()
    del x
    torch.neuron.empty_host_cache()
    assert torch.ones(4).pin_memory().is_pinned()
