"""The checks of nkilib's kernels notice kernels that are wrong on purpose."""

import importlib

import nkilib_checks
import nkilib_checks_sequence
import pytest
from nkilib_checks import strictly
from nkilib_mutations import caught, checks, chosen, mutations

pytestmark = pytest.mark.slow

SEED = 20261130
COUNT = 20
# Mutations that change nothing that a result could show: key -> why.
EQUIVALENT: dict[str, str] = nkilib_checks.EQUIVALENT | nkilib_checks_sequence.EQUIVALENT

MUTATIONS = chosen(list(checks()), COUNT, SEED, list(EQUIVALENT))


@pytest.mark.parametrize("family", sorted(checks()))
def test_right_kernels_pass_their_check(family):
    with strictly():
        checks()[family](importlib.import_module(f"nkilib.{family}"))


def test_there_are_mutations_of_all_families_and_kinds():
    assert len(MUTATIONS) == COUNT
    assert {m.family for m in MUTATIONS} == set(checks())
    assert len({m.kind for m in MUTATIONS}) >= 6


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[m.key for m in MUTATIONS])
def test_the_check_notices(mutation):
    assert caught(mutation, checks()[mutation.family]) is not None, f"nobody noticed {mutation.key}"


def test_equivalent_mutations_exist_and_have_a_reason():
    known = {m.key for family in checks() for m in mutations(family)}
    assert not set(EQUIVALENT) - known, "these were listed for code that has changed"
    assert all(len(reason) > 20 for reason in EQUIVALENT.values())
