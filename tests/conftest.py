"""Fixtures of all tests.

`TEST_DEVICE=cpu` runs the tests against plain PyTorch, which shows that they ask for what PyTorch does; tests of the
device itself are marked `neuron_only` and skipped then.
"""

import os
import zlib
from collections.abc import Iterator

import pytest
import torch

DEVICE_TYPE = os.environ.get("TEST_DEVICE", "neuron")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "neuron_only: tests the device itself, means nothing with TEST_DEVICE=cpu")


def pytest_report_header() -> str:
    return f"device under test: {DEVICE_TYPE}; {torch.get_num_threads()} threads on the CPU"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if DEVICE_TYPE == "neuron":
        return
    for item in items:
        if item.get_closest_marker("neuron_only"):
            item.add_marker(pytest.mark.skip(reason=f"tests the device itself; TEST_DEVICE={DEVICE_TYPE}"))


@pytest.fixture
def device() -> torch.device:
    """The device under test."""
    return torch.device(DEVICE_TYPE)


def _synchronize_all() -> None:
    if DEVICE_TYPE != "neuron" or not torch.neuron.is_initialized():
        return
    for index in range(torch.neuron.device_count()):
        torch.neuron.synchronize(index)


@pytest.fixture(autouse=True)
def _clean_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Seeds each test with a number of its own and fails it when it leaves an error or another current device."""
    seed = zlib.crc32(request.node.nodeid.encode()) % 2**31
    print(f"seed {seed}")  # shown when the test fails
    torch.manual_seed(seed)
    yield
    _synchronize_all()  # raises an error that the test left pending
    if DEVICE_TYPE == "neuron":
        assert torch.neuron.current_device() == 0, "the test left another current device"
