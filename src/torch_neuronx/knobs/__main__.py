"""``python -m torch_neuronx.knobs`` prints docs/knobs.md."""

from . import render

print(render(), end="")
