"""The benchmark of NKI kernels: that each section runs, and compares results before it measures."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from benchmarks import nki_attention, nki_instructions, nki_matmul, section

pytestmark = pytest.mark.neuron_only

SETTINGS = section.Settings("cpu", "neuron", threads=1, quick=True)


def test_small_instructions() -> None:
    for row in nki_instructions.rows(SETTINGS):
        assert list(row.best) == ["NumPy", "kernel"]
        assert all(math.isfinite(value) and value > 0 for value in row.best.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_matrix_products(dtype: torch.dtype) -> None:
    work = nki_matmul.Workload("small", 256, 384, 512, dtype)
    row = nki_matmul.measure(work, torch.device("neuron"), quick=True)
    assert row.best["kernel"] > 0
    assert "modelled" in row.remark


def test_attention() -> None:
    work = dataclasses.replace(nki_attention.WORKLOADS[-1], sequence=256)
    row = nki_attention.measure(work, torch.device("neuron"), quick=True)
    assert row.best["nkilib"] > 0
    assert "modelled" in row.remark


def test_wrong_results_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nki_instructions, "with_numpy", lambda x: np.zeros_like(x))
    with pytest.raises(AssertionError):
        nki_instructions.rows(SETTINGS)
