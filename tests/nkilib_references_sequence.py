"""What nkilib's kernels over sequences and experts should give, in plain PyTorch on the CPU, in float64."""

import torch
from torch.nn import functional as F


def visible(queries: int, keys: int, left: int = -1, right: int = -1, offset: int = 0) -> torch.Tensor:
    """Whether query i sees key j."""
    distance = torch.arange(keys)[None, :] - (torch.arange(queries)[:, None] + offset)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    return seen


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None = None,
    left: int = -1,
    right: int = -1,
    offset: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, and the logarithms of the sums of exponentials: -inf for queries that see nothing."""
    query, key, value = query.double(), key.double(), value.double()
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-1, -2) * scale
    scores = scores.masked_fill(~visible(query.shape[2], key.shape[2], left, right, offset), -torch.inf)
    logarithms = scores.logsumexp(-1)
    probabilities = torch.where(scores == -torch.inf, 0.0, (scores - logarithms[..., None]).exp())
    return probabilities @ value, logarithms


def topk(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of equal elements the first comes first: a stable sort."""
    values, places = torch.sort(x.double(), dim=-1, descending=True, stable=True)
    return values[..., :k], places[..., :k]


def cumsum(x: torch.Tensor, dim: int, reverse: bool = False) -> torch.Tensor:
    x = x.double()
    return x.flip(dim).cumsum(dim).flip(dim) if reverse else x.cumsum(dim)


def moe(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Token by token, expert by expert."""
    x, gate, up, down = x.double(), gate.double(), up.double(), down.double()
    result = torch.zeros_like(x)
    for token in range(x.shape[0]):
        for expert, weight in zip(indices[token].tolist(), weights[token].double(), strict=True):
            hidden = F.silu(x[token] @ gate[expert]) * (x[token] @ up[expert])
            result[token] += weight * (hidden @ down[expert])
    return result


def selective_scan(
    x: torch.Tensor,
    delta: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    skip: torch.Tensor,
    initial: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Step by step; y and the last state."""
    x, delta, a, b, c = (t.double() for t in (x, delta, a, b, c))
    state = initial.double()
    steps = []
    for t in range(x.shape[2]):
        decay = torch.exp(delta[:, :, t, None] * a)
        state = decay * state + (delta * x)[:, :, t, None] * b[:, None, :, t]
        steps.append((state * c[:, None, :, t]).sum(-1))
    return torch.stack(steps, -1) + skip.double().reshape(-1, 1) * x, state
