"""Passes over graphs of ATen ops that every target wants: one verb per file, `module -> None`."""

from .attend_densely import attend_densely
from .place_concatenations import place_concatenations
from .replay_random_numbers import replay_random_numbers
from .update_in_place import update_in_place

__all__ = ["attend_densely", "place_concatenations", "replay_random_numbers", "update_in_place"]
