"""Saving, loading, copying and sharing tensors of the device."""

import copy
import io
import pickle

import pytest
import torch
from comparison import assert_same, assert_same_as_cpu
from torch import nn


def saved(value: object) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.neuron_only
@pytest.mark.parametrize("weights_only", [True, False])
def test_loaded_tensor_is_where_it_was(device, weights_only):
    x = torch.arange(4.0, device="neuron:1")
    loaded = torch.load(saved(x), weights_only=weights_only)
    assert loaded.device == torch.device("neuron:1")
    assert_same(loaded, torch.arange(4.0))


@pytest.mark.neuron_only
@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize(
    ("map_location", "expected"),
    [
        ("cpu", "cpu"),
        ("neuron", "neuron:0"),
        ("neuron:2", "neuron:2"),
        (("device", "neuron:3"), "neuron:3"),
        (("device", "cpu"), "cpu"),
        ({"neuron:1": "neuron:0"}, "neuron:0"),
        ({"neuron:1": "cpu"}, "cpu"),
        ({"neuron:7": "cpu"}, "neuron:1"),
        (lambda storage, location: storage, "cpu"),
        (lambda storage, location: storage.neuron(2), "neuron:2"),
        (lambda storage, location: None, "neuron:1"),
    ],
    ids=["str cpu", "str", "str index", "device", "device cpu", "dict", "dict cpu", "dict other", "keep", "move", "no"],
)
def test_load_with_map_location(device, map_location, expected, weights_only):  # P11
    if isinstance(map_location, tuple):
        map_location = torch.device(map_location[1])
    x = torch.arange(4.0, device="neuron:1")
    loaded = torch.load(saved({"x": x, "view": x[1:3]}), map_location=map_location, weights_only=weights_only)
    assert loaded["x"].device == torch.device(expected)
    assert_same(loaded["x"], torch.arange(4.0))
    assert_same(loaded["view"], torch.arange(1.0, 3.0))
    loaded["x"][1] = 9.0
    assert loaded["view"][0].item() == 9.0, "views of one storage no longer share it"


@pytest.mark.neuron_only
def test_cpu_checkpoint_loads_onto_the_device(device):  # P11
    loaded = torch.load(saved(torch.arange(4.0)), map_location="neuron:1")
    assert loaded.device == torch.device("neuron:1")
    assert_same(loaded, torch.arange(4.0))


@pytest.mark.neuron_only
def test_device_that_does_not_exist_here_is_named(device):
    count = torch.neuron.device_count()
    with pytest.raises(RuntimeError, match=r"neuron.*99|99.*neuron"):
        torch.load(saved(torch.ones(2)), map_location="neuron:99")
    assert torch.neuron.device_count() == count


def test_mmap_load(device, tmp_path):
    torch.save({"x": torch.arange(4.0, device=device)}, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", map_location="cpu", mmap=True)
    assert_same(loaded["x"].clone(), torch.arange(4.0))


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool, torch.complex64],
    ids=str,
)
def test_all_dtypes_are_saved(device, dtype):
    x = (torch.randn(3, 4) * 2).to(dtype)
    assert_same(torch.load(saved(x.to(device)), map_location="cpu"), x)


def test_strides_are_saved(device):
    x = torch.randn(4, 5).t()
    loaded = torch.load(saved(x.to(device)))
    assert loaded.device.type == device.type
    assert_same(loaded, x)


def test_module_and_optimizer_resume(device):
    def build():
        torch.manual_seed(0)
        model = nn.Linear(4, 4).to(device)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(2, 4, device=device)).pow(2).sum().backward()
        optimizer.step()

    model, optimizer = build()
    step(model, optimizer)
    buffer = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    step(model, optimizer)

    other, other_optimizer = build()
    checkpoint = torch.load(buffer, weights_only=True)
    other.load_state_dict(checkpoint["model"])
    other_optimizer.load_state_dict(checkpoint["optimizer"])
    step(other, other_optimizer)
    assert_same(other.weight.detach(), model.weight.detach().cpu())
    assert other_optimizer.state[other.weight]["exp_avg"].device.type == device.type


def test_state_dict_of_the_cpu_loads_into_a_device_module(device):
    source, target = nn.Linear(3, 3), nn.Linear(3, 3).to(device)
    target.load_state_dict(source.state_dict())
    assert target.weight.device.type == device.type
    assert_same(target.weight.detach(), source.weight.detach())


def test_deepcopy(device):
    x = torch.randn(3, 4, device=device)
    pair = copy.deepcopy([x, x.view(12)])
    pair[0].zero_()
    assert pair[1].count_nonzero().item() == 0, "deepcopy lost that both share a storage"
    assert x.count_nonzero().item() > 0
    p = nn.Parameter(x)
    q = copy.deepcopy(p)
    assert isinstance(q, nn.Parameter)
    assert q.device.type == device.type
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to(device)
    assert_same(dict(copy.deepcopy(model).state_dict()), {k: v.cpu() for k, v in model.state_dict().items()})


def test_deepcopied_tensor_computes(device):
    def program(x):
        return copy.deepcopy(x).mul_(2) + copy.deepcopy(x).t().contiguous().t()

    assert_same_as_cpu(program, torch.randn(3, 3), device=device)


def test_copy_shares_memory(device):
    x = torch.zeros(2, device=device)
    copy.copy(x).add_(1)
    assert x.tolist() == [1.0, 1.0]


def test_pickle(device):
    x = torch.randn(3, device=device)
    y = pickle.loads(pickle.dumps(x))
    assert y.device == x.device
    assert_same(y, x.cpu())
    p = pickle.loads(pickle.dumps(nn.Parameter(x)))
    assert p.requires_grad
    assert p.device == x.device


def test_storage_interface(device):
    x = torch.arange(3.0, device=device)
    storage = x.untyped_storage()
    assert storage.device.type == device.type
    assert storage.nbytes() == 12
    assert storage.cpu().device.type == "cpu"
    assert storage.clone().device.type == device.type
    assert len(storage.tolist()) == 12
    clone = storage.clone()
    clone.fill_(0)
    assert_same(x, torch.arange(3.0))
    other = torch.zeros(3, device=device)
    other.untyped_storage().copy_(storage)
    assert_same(other, torch.arange(3.0))
    assert x.storage_offset() == 0
    assert x[1:].storage_offset() == 1


@pytest.mark.neuron_only
def test_storage_has_a_neuron_method(device):
    storage = torch.arange(3.0).untyped_storage().neuron()
    assert storage.device == torch.device("neuron:0")
    assert storage.is_neuron


@pytest.mark.neuron_only
def test_share_memory_of_a_device_tensor(device):
    # As on CUDA: device memory counts as shared, and there is nothing to do.
    x = torch.ones(2, device=device)
    assert x.share_memory_() is x
    assert x.is_shared()
    assert_same(x, torch.ones(2))
    nn.Linear(2, 2).to(device).share_memory()


@pytest.mark.neuron_only
def test_rng_state_survives_a_checkpoint(device):
    torch.manual_seed(3)
    torch.rand(3, device=device)
    module = torch.get_device_module(device)
    state = torch.load(saved(module.get_rng_state()))
    first = torch.rand(5, device=device).cpu()
    module.set_rng_state(state)
    assert_same(torch.rand(5, device=device), first)
