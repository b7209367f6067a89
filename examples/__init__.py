"""Programs that run on the device "neuron", or on any other: the only device-specific thing in them is ``--device``."""
