"""Keeping the device busy, so that a test can see that the host does not wait."""

import torch


def occupy(device: torch.device | str = "neuron", launches: int = 12) -> torch.Event:
    """Keeps the current stream of `device` busy for some 100 ms; the event is done when it is free again."""
    x = torch.randn(700, 700).to(device)
    torch.neuron.synchronize(torch.device(device))
    for _ in range(launches):
        x = (x @ x).tanh()
    event = torch.Event(device=device)
    event.record()
    return event
