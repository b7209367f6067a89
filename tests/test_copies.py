"""Copies between host and device, conversions on the way, moves of modules and parameters, exchange with DLPack."""

import itertools

import pytest
import torch
from comparison import assert_same, assert_same_as_cpu
from torch import nn
from torch.utils.data import DataLoader, Dataset

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
)


def sample(dtype: torch.dtype, shape: tuple[int, ...] = (4, 64)) -> torch.Tensor:
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_floating_point:
        return (torch.randn(shape) * 3).to(dtype)
    return torch.randint(0 if dtype == torch.uint8 else -9, 100, shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip_keeps_every_bit(device, dtype):
    x = sample(dtype)
    on_device = x.to(device)
    assert on_device.device.type == device.type
    assert_same(on_device.cpu(), x)


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_conversion_between_all_dtype_pairs(device, source):  # S1
    x = sample(source)
    for target in DTYPES:
        if source.is_complex and not target.is_complex:
            continue  # warns and drops the imaginary part; tested below
        assert_same(x.to(device).to(target), x.to(target), where=f"{source} to {target} on the device")
        assert_same(x.to(device, dtype=target), x.to(target), where=f"{source} to {target} on the way to the device")
        assert_same(x.to(device).to("cpu", target), x.to(target), where=f"{source} to {target} on the way back")


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("target", [torch.float32, torch.int64, torch.bool], ids=str)
def test_conversion_of_complex_drops_the_imaginary_part(device, target):  # S1
    assert_same_as_cpu(lambda x: x.to(target), sample(torch.complex64), device=device)


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t(),
    "strided": lambda x: x[::2, 1::3],
    "offset": lambda x: x[1:, 5:],
    "expanded": lambda x: x[:, :1].expand(-1, 8),
    "reversed dims": lambda x: x.view(4, 8, 8).permute(2, 0, 1),
    "empty": lambda x: x[:0],
    "scalar": lambda x: x[1, 2],
}


@pytest.mark.parametrize(("source", "target"), list(itertools.product(LAYOUTS, LAYOUTS)))
def test_copy_between_any_layouts(device, source, target):
    data = torch.randn(4, 64)
    view = LAYOUTS[source](data)
    if target == "expanded":
        pytest.skip("a tensor that overlaps itself cannot be written to, on any device")
    base = torch.zeros(4, 64)
    wanted = LAYOUTS[target](base)
    try:
        wanted.copy_(view)
    except RuntimeError as error:
        with pytest.raises(type(error)):
            LAYOUTS[target](torch.zeros(4, 64, device=device)).copy_(view)
        return
    for source_device, target_device in ((device, device), ("cpu", device), (device, "cpu")):
        where = torch.zeros(4, 64, device=target_device)
        LAYOUTS[target](where).copy_(LAYOUTS[source](data.to(source_device)))
        assert_same(where, base, where=f"{source_device} to {target_device}")


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"expanded"}))
def test_move_keeps_strides_like_pytorch(device, layout):
    x = LAYOUTS[layout](torch.randn(4, 64))
    assert_same(x.to(device, copy=True), x.to("cpu", copy=True), where="to the device")
    assert_same(x.to(device, copy=True).cpu(), x.to("cpu", copy=True), where="and back")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32], ids=str)
def test_converting_copy_into_a_strided_tensor(device, dtype):
    def fill(x):
        y = torch.zeros(8, 8, dtype=dtype, device=x.device)
        y[::2, ::2].copy_(x)
        return y

    assert_same_as_cpu(fill, torch.randn(4, 4, dtype=torch.float64), device=device)


def test_copy_of_conjugated_and_negated_views(device):  # O1
    z = torch.randn(3, dtype=torch.cfloat)
    assert_same_as_cpu(lambda z: z.conj().clone(), z, device=device)
    assert_same_as_cpu(lambda z: z.conj().imag.clone(), z, device=device)
    assert_same(z.to(device).conj().cpu(), z.conj().resolve_conj())
    assert_same(z.conj().to(device), z.conj())
    assert_same_as_cpu(lambda z: torch.empty_like(z).copy_(z.conj()), z, device=device)


@pytest.mark.parametrize("transform", ["fft", "ifft", "rfft", "hfft", "ihfft", "fft2", "hfft2"])
def test_fourier_transforms(device, transform):  # O1
    real = transform in ("rfft", "ihfft")
    x = torch.randn(4, 10, dtype=torch.float32 if real else torch.cfloat)
    assert_same_as_cpu(getattr(torch.fft, transform), x, device=device)


def test_copy_broadcasts(device):
    assert_same_as_cpu(lambda y, x: y.copy_(x), torch.zeros(4, 3), torch.randn(3), device=device)


def test_copy_of_overlapping_ranges_of_one_tensor(device):
    def shift(x):
        x[1:].copy_(x[:-1].clone())
        return x

    assert_same_as_cpu(shift, torch.randn(300), device=device)


@pytest.mark.neuron_only
def test_nonblocking_copy_to_the_host(device):  # O5
    x = torch.randn(256, 256)
    y = (x.to(device) * 2).to("cpu", non_blocking=True)
    torch.accelerator.synchronize()
    assert_same(y, x * 2)


@pytest.mark.neuron_only
def test_pinned_memory_is_pinned_and_copies(device):  # O5
    x = torch.randn(1000).pin_memory()
    assert x.is_pinned()
    assert not torch.randn(3).is_pinned()
    y = x.to(device, non_blocking=True)
    x_before = x.clone()
    z = torch.empty(1000).pin_memory()
    z.copy_(y, non_blocking=True)
    torch.accelerator.synchronize()
    assert_same(z.clone(), x_before)


@pytest.mark.neuron_only
def test_source_of_a_blocking_copy_may_change_at_once(device):
    x = torch.zeros(100_000)
    copies = []
    for i in range(20):
        x.fill_(i)
        copies.append(x.to(device))
    assert [int(c.sum()) for c in copies] == [i * 100_000 for i in range(20)]


@pytest.mark.neuron_only
@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_gives_pinned_batches(device, workers):  # O5
    data = [(torch.full((3,), float(i)), i) for i in range(8)]
    batches = list(DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers))
    assert all(x.is_pinned() and y.is_pinned() for x, y in batches)
    assert [x.to(device, non_blocking=True).sum().item() for x, _ in batches] == [18.0, 66.0]


class Batch:
    """A batch type of a user's own, which pins itself."""

    def __init__(self, items: list[tuple[torch.Tensor, int]]) -> None:
        self.x = torch.stack([x for x, _ in items])
        self.pinned_for: object = "nobody asked"

    def pin_memory(self, device: object = None) -> "Batch":
        self.x = self.x.pin_memory()
        self.pinned_for = device
        return self


class Numbers(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.full((2,), float(i)), i


@pytest.mark.neuron_only
def test_data_loader_pins_a_custom_batch_type(device):  # P29
    (batch,) = DataLoader(Numbers(), batch_size=4, pin_memory=True, collate_fn=Batch)
    assert batch.x.is_pinned()
    assert batch.pinned_for != "nobody asked"
    assert batch.x.to(device).sum().item() == 12.0


def test_parameter_keeps_its_identity_when_its_data_moves(device):  # P1
    p = nn.Parameter(torch.ones(2))
    before = p
    p.data = p.data.to(device)
    assert p is before
    assert isinstance(p, nn.Parameter)
    assert p.device.type == device.type
    (p * 3).sum().backward()
    assert_same(p.grad, torch.full((2,), 3.0))


def test_tied_weights_stay_tied_when_a_module_moves(device):  # P2
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model.to(device)
    assert model[1].weight is model[0].weight
    assert model[0].weight.device.type == device.type
    assert len(list(model.parameters())) == 3


def test_module_to_keeps_parameter_objects_known_to_an_optimizer(device):
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model.to(device)
    model(torch.ones(1, 3, device=device)).sum().backward()
    before = model.bias.detach().cpu().clone()
    optimizer.step()
    assert_same(model.bias.detach(), before - 0.5)


@pytest.mark.neuron_only
def test_an_index_means_the_accelerator(device):  # A6
    assert torch.ones(2).to(0).device == torch.device("neuron:0")
    assert nn.Linear(2, 2).to(0).weight.device == torch.device("neuron:0")
    assert torch.ones(2).to(2).device == torch.device("neuron:2")
    assert torch.ones(2, device=1).device == torch.device("neuron:1")


@pytest.mark.neuron_only
def test_tensor_and_module_have_a_neuron_method(device):
    assert torch.ones(2).neuron().device == torch.device("neuron:0")
    assert nn.Linear(2, 2).neuron().weight.device == torch.device("neuron:0")
    assert torch.ones(2).neuron().is_neuron


@pytest.mark.neuron_only
def test_dlpack_shares_memory(device):  # P4
    x = torch.arange(6.0, device=device).view(2, 3)
    kind, index = x.__dlpack_device__()
    assert int(kind) == 12  # kDLExtDev
    assert index == 0
    y = torch.from_dlpack(x)
    assert y.device == x.device
    assert y.data_ptr() == x.data_ptr()
    y.add_(1)
    assert_same(x, torch.arange(6.0).view(2, 3) + 1)


@pytest.mark.neuron_only
def test_dlpack_of_another_device_names_it(device):  # P4
    x = torch.ones(2, device="neuron:2")
    assert x.__dlpack_device__()[1] == 2
    assert torch.from_dlpack(x).device == torch.device("neuron:2")


@pytest.mark.neuron_only
def test_numpy_of_a_device_tensor_is_pytorchs_error(device):
    with pytest.raises(TypeError, match=r"(?i)can't convert .*neuron.* tensor to numpy.*cpu\(\)"):
        torch.ones(2, device=device).numpy()


def test_printing(device):  # A9
    for x in (
        torch.tensor([1.5, -2.0], dtype=torch.float16),
        torch.tensor([True, False]),
        torch.arange(5),
        torch.empty(0),
        torch.empty(2, 0, 3),
        torch.tensor([float("inf"), float("nan"), -float("inf")]),
        torch.tensor(3.0),
        torch.randn(50, 50),
        torch.tensor([1 + 2j]),
    ):
        text = repr(x.to(device))
        if device.type != "cpu":
            assert f"device='{device.type}:0'" in text
            text = text.replace(f",\n       device='{device.type}:0'", "").replace(f", device='{device.type}:0'", "")
        assert text.replace("\n", "").replace(" ", "") == repr(x).replace("\n", "").replace(" ", "")


def test_host_reads(device):
    x = torch.tensor([1.0, 0.0, 2.0], device=device)
    assert x.tolist() == [1.0, 0.0, 2.0]
    assert bool(x[0])
    assert not x[1]
    assert x[2].item() == 2.0
    assert float(x.sum()) == 3.0
    assert int(torch.tensor(7, device=device)) == 7
    assert f"{x[2]:.1f}" == "2.0"
    assert list(range(torch.tensor(3, device=device))) == [0, 1, 2]
    assert 2.0 in x
    assert len(x) == 3
    with pytest.raises(RuntimeError, match=r"more than one value|cannot be converted to Scalar"):
        x.item()


def test_tensor_constructor_copies_from_the_device(device):
    x = torch.arange(4.0, device=device)
    assert_same(torch.as_tensor(x, device="cpu"), torch.arange(4.0))
    assert_same(torch.asarray(x, dtype=torch.int64), torch.arange(4))
    assert_same(torch.tensor([[1, 2], [3, 4]], device=device), torch.tensor([[1, 2], [3, 4]]))
    assert_same(torch.tensor([x[1], x[3]]), torch.tensor([1.0, 3.0]))
    assert_same(x.new_tensor([5.0]), torch.tensor([5.0]))
    assert x.new_zeros(3).device.type == device.type


def test_default_device_context(device):
    with torch.device(device):
        layer = nn.Linear(3, 3)
        x = torch.zeros(2)
    assert layer.weight.device.type == device.type
    assert x.device.type == device.type
    assert torch.zeros(2).device.type == "cpu"
