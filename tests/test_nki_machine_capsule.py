"""Programs as other extension modules run them: without Python, from a capsule."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from nki_programs import ProgramBuilder, view

from nki import _engines
from nki.tensor import Dynamic

POINTER = ctypes.c_void_p
RUN = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, ctypes.POINTER(POINTER), ctypes.c_char_p, ctypes.c_size_t)
COUNT = ctypes.CFUNCTYPE(None, POINTER)


class Capsule(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32),
        ("programs", POINTER),
        ("run", RUN),
        ("retain", COUNT),
        ("release", COUNT),
    )


def struct_of(capsule: object) -> Capsule:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = POINTER, (ctypes.py_object, ctypes.c_char_p)
    return ctypes.cast(pointer(capsule, b"nki.program"), ctypes.POINTER(Capsule)).contents


def call(capsule: Capsule, *addresses: int) -> tuple[int, str]:
    error = ctypes.create_string_buffer(200)
    status = capsule.run(capsule.programs, (POINTER * len(addresses))(*addresses), error, 200)
    return status, error.value.decode()


def doubling() -> tuple[ProgramBuilder, int, int]:
    b = ProgramBuilder()
    tile = b.sbuf(128, 4)
    source, target = b.given(np.ones((128, 4), np.float32)), b.output(128, 4)
    b.copy(tile, source)
    b.emit("tensor_scalar", tile, (tile, 2.0, None), "multiply", False, None, False)
    b.copy(target, tile)
    return b, source.storage.number, target.storage.number


def test_addresses_are_those_of_hbm_in_order():
    b, source, target = doubling()
    capsule = b.program().capsule()
    struct = struct_of(capsule)
    assert struct.version == 1
    assert call(struct, b.arrays[source].ctypes.data, b.arrays[target].ctypes.data) == (0, "")
    assert (b.arrays[target] == 2).all()


def test_programs_that_run_together():
    pair = [ProgramBuilder() for _ in range(2)]
    outs = []
    for rank, b in enumerate(pair):
        tile = b.sbuf(128, 4)
        b.emit("fill", tile, (), float(rank))
        b.emit("sendrecv", tile, tile, 1 - rank, 1 - rank, 0)
        outs.append(b.array(b.stored(tile)))
    capsule = _engines.capsule([b.program() for b in pair])
    assert call(struct_of(capsule), *(o.ctypes.data for o in outs)) == (0, "")
    assert (outs[0] == 1).all()
    assert (outs[1] == 0).all()


def test_it_lives_as_long_as_somebody_holds_it():
    b, source, target = doubling()
    capsule = b.program().capsule()
    struct = struct_of(capsule)
    programs, run, release = struct.programs, struct.run, struct.release
    struct.retain(programs)
    del capsule
    addresses = (POINTER * 2)(b.arrays[source].ctypes.data, b.arrays[target].ctypes.data)
    assert run(programs, addresses, ctypes.create_string_buffer(10), 10) == 0
    release(programs)
    assert (b.arrays[target] == 2).all()


@pytest.mark.parametrize("room", [1, 12, 200])
def test_faults_are_told_as_text(room):
    b = ProgramBuilder()
    index, tile = b.sbuf(1, 1, dtype="int32"), b.sbuf(128, 4)
    b.emit("fill", index, (), 9)
    b.emit("fill", tile, (), 0.0)
    out = b.output(128, 1)
    b.copy(out, view(tile, (128, 1), (4, 1), dynamic=Dynamic("scalar", index, 1, 4)))
    capsule = b.program().capsule()
    struct = struct_of(capsule)
    error = ctypes.create_string_buffer(room)
    addresses = (POINTER * 1)(b.array(out).ctypes.data)
    assert struct.run(struct.programs, addresses, error, room) != 0
    full = "out of bounds: index 9 is outside [0, 4) (core 0, instruction 2)"
    assert error.value.decode() == full[: room - 1]


def test_a_host_of_another_kind_is_refused():
    b, _, _ = doubling()
    with pytest.raises(ValueError, match="PyCapsule"):
        _engines.set_host(b.program().capsule())
