"""The model against published measurements, on the kernels of benchmarks/nki_models at a part of their size.

The whole comparison is docs/model-accuracy.md; figures here are those of the guides it names.
"""

import functools
import runpy
from pathlib import Path

import numpy as np
import pytest

import nki
from benchmarks.nki_models import anchors, mamba, matmul


def zeros(*shape, dtype="float32"):
    return np.broadcast_to(np.zeros((), dtype), shape)


@functools.cache
def product(kernel, rows, columns):
    return nki.profile(kernel, target="trn2")(zeros(8192, rows), zeros(8192, columns))


def test_a_product_that_waits_for_its_loads():
    p = product(matmul.tiled, 256, 8192)
    assert p.latency_us == pytest.approx(39890 / 16, rel=0.03)
    assert p.engines["dma"] == pytest.approx(99.93, abs=5)
    assert p.engines["tensor"] == pytest.approx(87.28, abs=5)
    assert p.timeline.mfu_percent == pytest.approx(17.52, abs=1)
    assert p.timeline.mbu_percent == pytest.approx(38.06, abs=1)
    assert p.timeline.dma_busy / 1e6 == pytest.approx(519.58 / 16, rel=0.1)


def test_a_product_that_keeps_the_tensor_engine_busy():
    p = product(matmul.hoisted, 512, 8192)
    assert p.latency_us == pytest.approx(28200 / 8, rel=0.03)
    assert p.engines["dma"] == pytest.approx(99.73, abs=8)  # the end, without loads, is longer at an eighth of the size
    assert p.engines["tensor"] == pytest.approx(99.85, abs=5)


@pytest.mark.slow
def test_a_product_that_spills():
    p = product(matmul.blocked, 4096, 2048)
    assert p.latency_us == pytest.approx(28300 / 4, rel=0.05)
    assert p.engines["dma"] == pytest.approx(21.54, abs=5)
    assert p.engines["tensor"] == pytest.approx(99.50, abs=5)
    assert p.engines["vector"] == pytest.approx(10.55, abs=5)
    assert p.timeline.mbu_percent == pytest.approx(8.96, abs=0.5)
    assert p.timeline.spilled
    assert "SBUF is too small" in p.text()


def scan(kernel, channels, length):
    wide = zeros(channels, length), zeros(channels, length)
    return nki.profile(kernel, target="trn1")(*wide, zeros(channels, 16), zeros(16, length), zeros(16, length))


@pytest.mark.parametrize(
    ("kernel", "length", "published"),
    [(mamba.first, 512, 2340), (mamba.reordered, 512, 1610), (mamba.tiled, 512, 1600), (mamba.tiled, 2048, 6600)],
)
def test_selective_scans(kernel, length, published):
    p = scan(kernel, 512, length)
    assert p.latency_us == pytest.approx(published / 8, rel=0.2)
    assert p.engines["vector"] > 90


def test_dependent_activations():
    p = nki.profile(anchors.dependent_activations, target="trn1")(zeros(128, 1), 100)
    assert p.timeline.active["scalar"] / 100 == pytest.approx(189, rel=0.05)


def test_the_first_example_of_the_guide_to_dma():
    p = nki.profile(anchors.exponential, target="trn2")(zeros(4, 4096, dtype="float16"))
    schedule = p.timeline.schedule
    assert schedule.work[0].busy == pytest.approx(1416, rel=0.1)
    assert schedule.issued[1] == pytest.approx(2720, rel=0.1)


def test_the_page_is_what_the_script_writes():
    root = Path(__file__).parents[1]
    script = runpy.run_path(str(root / "scripts" / "model_accuracy.py"), run_name="model_accuracy")
    page = (root / "docs" / "model-accuracy.md").read_text()
    for part in (script["table"](script["transfers"]()), script["inferences"](), script["conflicts"]()):
        assert part in page, "run: python scripts/model_accuracy.py > docs/model-accuracy.md"
