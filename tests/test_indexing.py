"""Reading and writing by index, joining, sorting, and ops whose result's shape depends on the data."""

import pytest
import torch
from comparison import assert_same, assert_same_as_cpu


def test_gather_of_equal_values(device):  # W1
    x = torch.full((10,), 5.0, device=device)
    assert x[torch.arange(10, device=device)].tolist() == [5.0] * 10
    assert x[torch.arange(10)].tolist() == [5.0] * 10


INDEXING = {
    "x[idx]": lambda x, i: x[i],
    "x[:, idx]": lambda x, i: x[:, i],
    "x[idx, idx]": lambda x, i: x[i, i],
    "x[idx, :, idx]": lambda x, i: x[i, :, i],
    "x[idx][:, None]": lambda x, i: x[i][:, None],
    "x[None, idx]": lambda x, i: x[None, i],
    "x[..., idx]": lambda x, i: x[..., i],
    "x[idx.view(2, 2)]": lambda x, i: x[i.view(2, 2)],
    "x[-idx]": lambda x, i: x[-i],
    "x[1:, idx, ::2]": lambda x, i: x[1:, i, ::2],
    "x[x > 0]": lambda x, i: x[x > 0],
    "x[mask, idx]": lambda x, i: x[torch.tensor([True, False, True, True, True, False], device=x.device), i],
    "index_select": lambda x, i: x.index_select(1, i),
    "gather": lambda x, i: x.gather(0, i.view(4, 1, 1).expand(4, 5, 4)),
    "take": lambda x, i: x.take(i * 7),
    "take_along_dim": lambda x, i: x.take_along_dim(x.argsort(1), 1),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x[:, 0]),
}


@pytest.mark.parametrize("name", INDEXING)
def test_reading_by_index(device, name):  # P8
    x, index = torch.randn(6, 5, 4), torch.tensor([3, 0, 1, 3])
    assert_same_as_cpu(INDEXING[name], x, index, device=device)


def _put(statement):
    def program(x, i, v):
        statement(x, i, v)
        return x

    return program


ASSIGNMENTS = {
    "x[None, idx] = v": _put(lambda x, i, v: x.__setitem__((None, i), v)),
    "x[idx] = scalar": _put(lambda x, i, v: x.__setitem__(i, 9.0)),
    "x[:, idx] = v": _put(lambda x, i, v: x.__setitem__((slice(None), i), v[0, 0])),
    "x[mask] = scalar": _put(lambda x, i, v: x.__setitem__(x > 0, 0.0)),
    "x[mask] = v": _put(lambda x, i, v: x.__setitem__(x[:, 0] > -9, v[0, :1])),
    "x[0] = v": _put(lambda x, i, v: x.__setitem__(0, v[0, 0])),
    "x[1:3] += 1": _put(lambda x, i, v: x[1:3].add_(1)),
    "x[..., 0] = 0-dim": _put(lambda x, i, v: x.__setitem__((..., 0), v[0, 0, 0])),
    "index_put_ accumulate": _put(lambda x, i, v: x.index_put_((i,), v[0], accumulate=True)),
    "index_add_": _put(lambda x, i, v: x.index_add_(0, i, v[0])),
    "index_copy_": _put(lambda x, i, v: x.index_copy_(0, i[:3], v[0, :3])),
    "index_fill_": _put(lambda x, i, v: x.index_fill_(1, i, 2.0)),
    "scatter_": _put(lambda x, i, v: x.scatter_(0, i[:3].view(3, 1).expand(3, 4), v[0, :3])),
    "scatter_add_": _put(lambda x, i, v: x.scatter_add_(0, i.view(4, 1).expand(4, 4), v[0])),
    "scatter_reduce_": _put(lambda x, i, v: x.scatter_reduce_(0, i.view(4, 1).expand(4, 4), v[0], "amax")),
    "masked_fill_": _put(lambda x, i, v: x.masked_fill_(x < 0, -1.0)),
    "masked_scatter_": _put(lambda x, i, v: x.masked_scatter_(x < 0, v.repeat(1, 3, 1))),
    "put_": _put(lambda x, i, v: x.put_(i, v[0, 0])),
}


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_writing_by_index(device, name):  # P8
    x, index, value = torch.randn(6, 4), torch.tensor([3, 0, 1, 3]), torch.randn(1, 4, 4)
    assert_same_as_cpu(ASSIGNMENTS[name], x, index, value, device=device)


def test_index_on_the_cpu_is_allowed(device):
    x, index = torch.randn(6, 5), torch.tensor([4, 0, 1])
    assert_same(x.to(device)[index], x[index])
    y = x.to(device, copy=True)
    y[index] = 1.0
    x[index] = 1.0
    assert_same(y, x)
    z = torch.arange(6.0, device=device)
    z[torch.tensor([1, 2])] = torch.tensor(9.0)
    assert z.tolist() == [0, 9, 9, 3, 4, 5]


def test_tensor_split_takes_its_indices_from_the_cpu(device):
    x = torch.arange(10.0)
    assert_same(x.to(device).tensor_split(torch.tensor([3, 7])), x.tensor_split(torch.tensor([3, 7])))


def test_cat_and_its_kin(device):  # P9
    a, b = torch.randn(2, 3), torch.randn(4, 3)
    assert_same_as_cpu(lambda a, b: torch.cat([a, b]), a, b, device=device)
    assert_same_as_cpu(lambda a, b: torch.cat([a.t(), b.t(), a.t()], dim=1), a, b, device=device)
    assert_same_as_cpu(lambda a, b: torch.cat([a, b.double(), a.int()]), a, b, device=device)
    assert_same_as_cpu(lambda a, b: torch.stack([a, a + 1], dim=1), a, b, device=device)
    assert_same_as_cpu(lambda a, b: torch.hstack([a, b[:2]]), a, b, device=device)
    assert_same_as_cpu(lambda a, b: torch.cat([torch.empty(0, device=a.device), a]), a, b, device=device)
    assert_same_as_cpu(lambda a, b: torch.block_diag(a, b), a, b, device=device)


def test_cat_of_nothing_is_the_usual_error(device):  # P9
    with pytest.raises((RuntimeError, ValueError), match="expected a non-empty list of Tensors"):
        torch.cat(())


def test_foreach_changes_every_tensor(device):  # P7
    a, b = torch.zeros(2, device=device), torch.ones(3, 2, device=device)
    torch._foreach_add_([a, b], 1)
    assert a.tolist() == [1.0, 1.0]
    assert b.tolist() == [[2.0, 2.0]] * 3


FOREACH = {
    "add": lambda xs, ys: torch._foreach_add(xs, ys, alpha=2),
    "mul_": lambda xs, ys: torch._foreach_mul_(xs, 3),
    "mul scalars": lambda xs, ys: torch._foreach_mul(xs, [1.0, 2.0, 3.0]),
    "addcdiv_": lambda xs, ys: torch._foreach_addcdiv_(xs, ys, [y + 5 for y in ys], value=0.5),
    "lerp_": lambda xs, ys: torch._foreach_lerp_(xs, ys, 0.25),
    "norm": lambda xs, ys: torch._foreach_norm(xs),
    "copy_": lambda xs, ys: torch._foreach_copy_(xs, ys),
    "zero_": lambda xs, ys: torch._foreach_zero_(xs),
    "div tensor": lambda xs, ys: torch._foreach_div(xs, xs[0].sum()),
    "maximum": lambda xs, ys: torch._foreach_maximum(xs, ys),
    "sqrt": lambda xs, ys: torch._foreach_sqrt([x.abs() for x in xs]),
    "pow": lambda xs, ys: torch._foreach_pow([x.abs() for x in xs], ys),
}


@pytest.mark.parametrize("name", FOREACH)
def test_foreach_ops(device, name):  # P7
    xs = [torch.randn(3, 4), torch.randn(5), torch.randn(())]
    ys = [torch.randn(3, 4), torch.randn(5), torch.randn(())]

    def program(xs, ys):
        result = FOREACH[name](xs, ys)
        return (list(result) if result is not None else [], xs)

    assert_same_as_cpu(program, xs, ys, device=device)


def test_foreach_of_mixed_shapes_and_views(device):
    def program(x):
        torch._foreach_add_([x[0], x[2:4], x[:, 3]], [1.0, 2.0, 3.0])
        torch._foreach_mul_([x[1]] * 3, 2.0)  # the same tensor three times
        return x

    assert_same_as_cpu(program, torch.randn(5, 4), device=device)


DATA_DEPENDENT = {
    "nonzero": lambda x: x.round().nonzero(),
    "unique": lambda x: x.round().unique(return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x: x.round().unique_consecutive(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "bincount": lambda x: x.abs().long().flatten().bincount(),
    "histc": lambda x: x.histc(5),
    "repeat_interleave": lambda x: x[0].repeat_interleave(x[0].abs().long()),
    "where": lambda x: torch.where(x > 0),
    "argwhere": lambda x: torch.argwhere(x > 0),
    "equal": lambda x: torch.equal(x, x.clone()),
    "allclose": lambda x: torch.allclose(x, x + 1),
    "is_nonzero": lambda x: bool(x[0, 0] > 0),
}


@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_results_whose_shape_depends_on_the_data(device, name):
    for seed in (1, 2):  # a cached shape of the first run would be wrong for the second
        torch.manual_seed(seed)
        assert_same_as_cpu(DATA_DEPENDENT[name], torch.randn(6, 7) * 2, device=device)


@pytest.mark.parametrize("stable", [False, True])
def test_sort_topk_and_search(device, stable):
    x = torch.randint(0, 5, (6, 20)).float()
    assert_same_as_cpu(lambda x: x.sort(dim=1, stable=stable), x, device=device)
    assert_same_as_cpu(lambda x: x.topk(4), torch.randn(6, 20), device=device)
    assert_same_as_cpu(lambda x: torch.searchsorted(x.sort()[0], x), x, device=device)
    assert_same_as_cpu(lambda x: (x.kthvalue(3), x.median(1), x.mode()), x, device=device)
