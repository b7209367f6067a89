"""Tensors for tests of single instructions: storages and views of the current trace, made without nki.language."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import pytest

from nki import errors
from nki.element_types import of
from nki.storage import Storage
from nki.tensor import Dynamic, NkiTensor
from nki.trace import Trace, current, tracing


def tile(*shape: int, dtype: str = "float32", region: str = "sbuf", at: tuple[int, int] | None = None) -> NkiTensor:
    """A whole tensor, in SBUF unless said otherwise, at the address (partition, byte) `at`."""
    trace = current()
    storage = Storage(len(trace.storages), region, shape, of(dtype), address=at)
    trace.storages.append(storage)
    return NkiTensor(storage, storage.dtype, shape, tuple(prod(shape[i + 1 :]) for i in range(len(shape))))


def psum(*shape: int, **more: Any) -> NkiTensor:
    return tile(*shape, region="psum", **more)


def hbm(*shape: int, dtype: str = "float32") -> NkiTensor:
    return tile(*shape, dtype=dtype, region="shared_hbm")


def bf16(*shape: int, **more: Any) -> NkiTensor:
    return tile(*shape, dtype="bfloat16", **more)


def i32(*shape: int, **more: Any) -> NkiTensor:
    return tile(*shape, dtype="int32", **more)


def u8(*shape: int) -> NkiTensor:
    return tile(*shape, dtype="uint8")


def rows(view: NkiTensor, start: int, stop: int) -> NkiTensor:
    shape = (stop - start, *view.shape[1:])
    return NkiTensor(view.storage, view.dtype, shape, view.strides, view.offset + start * view.strides[0])


def columns(view: NkiTensor, start: int, stop: int) -> NkiTensor:
    return NkiTensor(view.storage, view.dtype, (view.shape[0], stop - start), view.strides, view.offset + start)


def moving(view: NkiTensor, kind: str) -> NkiTensor:
    """`view` with a run-time index."""
    dynamic = Dynamic(kind, tile(128, 1, dtype="uint32"), 1, 1 << 20, 16)
    return NkiTensor(view.storage, view.dtype, view.shape, view.strides, 0, dynamic)


def provoke(target: str, call: Callable[[], Any], mistake: type[errors.NkiError], names: list[str]) -> None:
    """`call` has to make `mistake`, with a text that has `names` and the line of `call`; and add no instruction."""
    with tracing(Trace(target)) as trace, pytest.raises(mistake) as raised:
        call()
    assert type(raised.value) is mistake
    text = str(raised.value)
    assert [name for name in names if name not in text] == []
    assert raised.value.line is not None
    assert raised.value.line[0] == call.__code__.co_filename
    assert trace.instructions == []
