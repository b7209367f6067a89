"""Passes over graphs of ATen ops that every target wants: one verb per file, `module -> None`."""

from .replay_random_numbers import replay_random_numbers
from .update_in_place import update_in_place

__all__ = ["replay_random_numbers", "update_in_place"]
