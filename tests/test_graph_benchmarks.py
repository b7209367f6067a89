"""The benchmark of captured graphs: that each part runs, and checks before it measures."""

import math

import pytest
import torch

from benchmarks import graph_replays, section

pytestmark = pytest.mark.neuron_only

SETTINGS = section.Settings("cpu", "neuron", threads=2, quick=True)


@pytest.mark.parametrize("part", graph_replays.PARTS)
def test_part_runs(part: str) -> None:
    for work in graph_replays.PARTS[part]:
        row = graph_replays.measure_work(work, SETTINGS)
        assert list(row.best) == ["cpu eager", "neuron eager", "replay"]
        assert all(math.isfinite(value) and value > 0 for value in row.best.values())


def test_wrong_results_are_an_error() -> None:
    def make(device: torch.device, prepare: object) -> object:
        calls = iter(range(100))
        return lambda: (torch.full((2,), float(next(calls)), device=device),)

    work = graph_replays.Work("counts calls", make, 1, None, None)
    with pytest.raises(AssertionError, match="does not give the bits of eager mode"):
        graph_replays.require_same(work, torch.device("neuron"))
