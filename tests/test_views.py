"""Views share memory with their base, on the device as on the CPU."""

import pytest
import torch
from comparison import assert_same, assert_same_as_cpu

VIEWS = {
    "view": lambda x: x.view(2, 8, 4, 4),
    "reshape": lambda x: x.reshape(16, 16),
    "transpose": lambda x: x.transpose(1, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "slice": lambda x: x[:, 1:7:2, ::3],
    "select": lambda x: x[1],
    "last": lambda x: x[:, -1],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "unsqueeze": lambda x: x[..., None],
    "squeeze": lambda x: x[:1].squeeze(0),
    "chunk": lambda x: x.chunk(3, dim=2)[1],
    "split": lambda x: x.split([1, 4, 3], dim=1)[2],
    "unbind": lambda x: x.unbind(1)[5],
    "diagonal": lambda x: x.diagonal(dim1=1, dim2=2),
    "unfold": lambda x: x.unfold(2, 4, 4),
    "as_strided": lambda x: x.as_strided((3, 4), (7, 2), 5),
    "movedim": lambda x: x.movedim(0, -1),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(2, (4, 4)),
    "detach": lambda x: x.detach(),
    "alias": lambda x: torch.ops.aten.alias(x),
    "view_as_integers": lambda x: x.view(torch.int32),
    "view_as_bytes": lambda x: x.view(torch.uint8),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(2, 8, 8, 2)),
    "unsafe_view": lambda x: torch.ops.aten._unsafe_view(x, (2, 128)),
    "T of a slice": lambda x: x[0, :3].T,
    "view of a view of a view": lambda x: x.transpose(0, 1)[2:].unsqueeze(0)[0, :, 1, 4:],
}


@pytest.mark.parametrize("name", VIEWS)
def test_view_equals_cpu(device, name):
    assert_same_as_cpu(VIEWS[name], torch.randn(2, 8, 16), device=device)


@pytest.mark.parametrize("name", VIEWS)
def test_write_through_a_view_reaches_its_base(device, name):
    def write(x):
        view = VIEWS[name](x)
        view.fill_(1)
        return x, view

    assert_same_as_cpu(write, torch.randn(2, 8, 16), device=device)


@pytest.mark.parametrize("name", VIEWS)
def test_write_to_the_base_shows_in_a_view(device, name):
    def write(x):
        view = VIEWS[name](x)
        x.mul_(2).add_(1)
        return view

    assert_same_as_cpu(write, torch.randn(2, 8, 16), device=device)


@pytest.mark.parametrize("name", VIEWS)
def test_view_is_of_the_same_storage(device, name):
    x = torch.randn(2, 8, 16, device=device)
    view = VIEWS[name](x)
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert view.device == x.device
    assert view.untyped_storage().device == x.device
    if name not in ("detach", "alias", "unsafe_view", "view_as_integers", "view_as_bytes"):
        assert view._base is x


def test_attention_head_split(device):  # S3
    assert_same_as_cpu(lambda x: x.view(2, 8, 4, 4).transpose(1, 2).contiguous(), torch.randn(2, 8, 16), device=device)


def test_last_position_of_a_sequence(device):  # S20
    x = torch.randn(1, 64, 4096)
    assert_same_as_cpu(lambda x: x[:, -1], x, device=device)
    assert_same_as_cpu(lambda x: x[..., None], x, device=device)
    assert_same_as_cpu(lambda x: x[:, -1] @ x[0].t(), x, device=device)


def test_element_of_a_chunk_view_read_by_the_host(device):  # S20
    x = torch.randn(4, 12)
    on_device = x.to(device).chunk(3, dim=1)[2][1, 2].cpu()
    assert_same(on_device, x.chunk(3, dim=1)[2][1, 2].clone())
    assert x.to(device).chunk(3, dim=1)[1][3, 0].item() == x[3, 4].item()


def test_expanded_tensor_is_not_copied(device):
    x = torch.randn(4, 1, device=device)
    y = x.expand(4, 1000)
    assert y.stride() == (1, 0)
    assert y.untyped_storage().nbytes() == 16
    with pytest.raises(RuntimeError, match="single memory location"):
        y.add_(1)


def test_reshape_copies_only_when_it_must(device):
    x = torch.randn(4, 6, device=device)
    assert x.reshape(3, 8).data_ptr() == x.data_ptr()
    assert x.t().reshape(24).data_ptr() != x.data_ptr()
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.t().view(24)


def test_channels_last_is_kept(device):
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert_same_as_cpu(lambda x: x.relu(), x, device=device)
    assert_same_as_cpu(lambda x: x.to(torch.float64), x, device=device)
    assert x.to(device).is_contiguous(memory_format=torch.channels_last)
    assert torch.empty_like(x.to(device)).stride() == torch.empty_like(x).stride()


def test_in_place_op_on_two_overlapping_views(device):
    def program(x):
        a, b = x[:6], x[4:]
        a.add_(1)
        b.mul_(a[:4].sum())
        a.sub_(b[0].clone())
        return x

    assert_same_as_cpu(program, torch.randn(10), device=device)


def test_set_data_and_storage(device):
    x = torch.zeros(4, device=device)
    y = torch.arange(6.0, device=device)
    x.data = y[2:]
    assert_same(x, torch.arange(2.0, 6.0))
    z = torch.empty(0, device=device)
    z.set_(y.untyped_storage(), 1, (2, 2), (2, 1))
    assert_same(z, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    z.set_(y)
    assert z.data_ptr() == y.data_ptr()


def test_resize_keeps_the_data_that_fits(device):
    def program(x):
        y = x.clone()
        y.resize_(9)
        kept = y[:4].clone()
        y.resize_(2)
        return kept, y

    assert_same_as_cpu(program, torch.randn(4), device=device)


def test_storage_resize(device):
    x = torch.arange(4.0, device=device)
    storage = x.untyped_storage()
    storage.resize_(8 * 4)
    assert storage.nbytes() == 32
    assert_same(x, torch.arange(4.0))
    storage.resize_(0)  # what FSDP does to free a parameter
    assert storage.nbytes() == 0
    storage.resize_(16)
    x.copy_(torch.ones(4))
    assert_same(x, torch.ones(4))


def test_version_counter_is_shared_by_views(device):
    x = torch.zeros(4, device=device)
    view = x[:2]
    before = x._version
    view.add_(1)
    assert x._version == view._version == before + 1


def test_empty_strided_and_its_like(device):
    x = torch.empty_strided((2, 3), (1, 4), device=device)
    assert x.stride() == (1, 4)
    assert x.untyped_storage().nbytes() == (1 + 2 * 4 + 1) * 4
    assert torch.empty_like(x.fill_(0)).shape == (2, 3)


def test_as_strided_scatter_and_slice_scatter(device):
    x, y = torch.randn(4, 4), torch.randn(4, 2)
    assert_same_as_cpu(lambda x, y: torch.slice_scatter(x, y, dim=1, start=1, end=3), x, y, device=device)
    assert_same_as_cpu(lambda x, y: torch.select_scatter(x, y[:, 0], 0, 2), x, y, device=device)
    assert_same_as_cpu(lambda x, y: torch.diagonal_scatter(x, y[:, 1]), x, y, device=device)
