"""torch.compile for the device `neuron`: from Dynamo's graphs to programs.

Imported when something is compiled, never by `import torch_neuronx`.
"""

from .backend import neuron
from .decompositions import register_decomposition

__all__ = ["neuron", "register_decomposition"]
