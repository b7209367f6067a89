"""Device management: torch.neuron's functions, torch.accelerator's."""

import threading

import pytest
import torch

from torch_neuronx import errors

pytestmark = pytest.mark.neuron_only


def test_default_machine() -> None:
    assert torch.neuron.is_available()
    assert torch.neuron.device_count() == 4
    properties = torch.neuron.get_device_properties("neuron:3")
    assert (properties.chip, properties.instance) == ("trn2", "trn2.3xlarge")
    assert properties.total_memory == 24 << 30
    assert torch.neuron.get_device_name(3) == properties.name != ""
    assert torch.neuron.get_device_capability() == (3, 0) == (properties.major, properties.minor)
    assert torch.neuron.is_bf16_supported()
    with pytest.raises(AttributeError):
        properties.name = "x"  # type: ignore[misc]


def test_init_makes_the_machine() -> None:
    torch.neuron.init()
    assert torch.neuron.is_initialized()
    assert torch.neuron._initialized
    assert not torch.neuron._is_in_bad_fork()


@pytest.mark.parametrize("which", [2, "neuron:2", torch.device("neuron", 2)])
def test_set_device(which: int | str | torch.device) -> None:
    try:
        torch.neuron.set_device(which)
        assert torch.neuron.current_device() == 2
        assert torch.ones(1, device="neuron").device.index == 2
    finally:
        torch.neuron.set_device(0)
    assert torch.neuron.current_device() == 0


def test_set_device_with_a_negative_index_changes_nothing() -> None:
    torch.neuron.set_device(-1)
    assert torch.neuron.current_device() == 0


def test_device_context() -> None:
    with torch.neuron.device(1):
        assert torch.neuron.current_device() == 1
        with torch.neuron.device("neuron:3"):
            assert torch.neuron.current_device() == 3
            with torch.neuron.device(None), torch.neuron.device(-1), torch.neuron.device("neuron"):
                assert torch.neuron.current_device() == 3
        assert torch.neuron.current_device() == 1
        with pytest.raises(KeyError), torch.neuron.device(2):
            raise KeyError
        assert torch.neuron.current_device() == 1
    assert torch.neuron.current_device() == 0


def test_device_of() -> None:
    with torch.neuron.device_of(torch.empty(1, device="neuron:2")):
        assert torch.neuron.current_device() == 2
        with torch.neuron.device_of(torch.empty(1)):
            assert torch.neuron.current_device() == 2
    assert torch.neuron.current_device() == 0


def test_the_current_device_belongs_to_the_thread() -> None:
    seen = []
    with torch.neuron.device(3):
        thread = threading.Thread(target=lambda: seen.append(torch.neuron.current_device()))
        thread.start()
        thread.join()
    assert seen == [0]


@pytest.mark.parametrize(
    "use",
    [
        torch.neuron.set_device,
        torch.neuron.get_device_name,
        torch.neuron.synchronize,
        torch.neuron.memory_allocated,
        torch.neuron.Stream,
        torch.neuron.current_stream,
        torch.neuron.get_rng_state,
        lambda index: torch.neuron.device(index).__enter__(),
    ],
)
def test_no_such_device(use: object) -> None:
    with pytest.raises(errors.NoSuchDeviceError, match=r"no device neuron:4: 4 are visible \(neuron:0 to neuron:3\)"):
        use(4)  # type: ignore[operator]


def test_no_such_device_in_a_tensor_call() -> None:
    with pytest.raises(RuntimeError, match="neuron:9"):
        torch.empty(1, device="neuron:9")


@pytest.mark.parametrize("which", ["cpu", torch.device("meta"), 1.5])
def test_not_a_neuron_device(which: object) -> None:
    with pytest.raises(errors.NotANeuronDeviceError, match="Expected a neuron device, but got: "):
        torch.neuron.set_device(which)  # type: ignore[arg-type]


def test_device_index_rules() -> None:
    get = torch.neuron._get_device_index
    assert get("neuron:1") == get(torch.device("neuron", 1)) == get(1) == 1
    assert get("cpu", allow_cpu=True) == -1
    with torch.neuron.device(2):
        assert get(None, optional=True) == get("neuron", optional=True) == 2
    for unspecific in (None, "neuron"):
        with pytest.raises(errors.MissingDeviceIndexError):
            get(unspecific)


def test_peers() -> None:
    assert torch.neuron.can_device_access_peer(0, 3)
    assert not torch.neuron.can_device_access_peer(1, "neuron:1")
    with pytest.raises(errors.NoSuchDeviceError):
        torch.neuron.can_device_access_peer(0, 4)


def test_an_index_alone_means_the_accelerator() -> None:
    x = torch.ones(2)
    assert x.to(0).device == torch.device("neuron:0")
    assert x.to(3).device == torch.device("neuron:3")
    assert next(torch.nn.Linear(2, 2).to(1).parameters()).device == torch.device("neuron:1")


def test_accelerator_functions() -> None:
    accelerator = torch.accelerator
    assert accelerator.is_available()
    assert accelerator.device_count() == 4
    assert accelerator.current_accelerator() == torch.device("neuron")
    assert accelerator.current_device_index() == 0
    accelerator.set_device_index(1)
    assert torch.neuron.current_device() == 1
    accelerator.set_device_index(0)
    with accelerator.device_index(2):
        assert torch.neuron.current_device() == 2
    stream = torch.Stream("neuron")
    before = accelerator.current_stream()
    accelerator.set_stream(stream)
    assert accelerator.current_stream() == stream == torch.neuron.current_stream()
    accelerator.set_stream(before)
    accelerator.synchronize()
    x = torch.ones(1 << 20, device="neuron")
    assert accelerator.memory_allocated() == torch.neuron.memory_allocated() >= 4 << 20
    assert accelerator.memory_reserved() >= accelerator.memory_allocated()
    assert accelerator.max_memory_allocated() >= accelerator.memory_allocated()
    assert accelerator.max_memory_reserved() >= accelerator.memory_reserved()
    assert accelerator.memory_stats() == torch.neuron.memory_stats()
    free, total = accelerator.get_memory_info()
    assert 0 < free < total == 24 << 30
    del x
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats()
    accelerator.empty_cache()
    accelerator.empty_host_cache()
    dtypes = accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool} <= dtypes


def test_device_module_and_device_context_of_torch() -> None:
    assert torch.get_device_module("neuron") is torch.neuron
    assert torch.get_device_module() is torch.neuron
    with torch.device("neuron:1"):
        assert torch.ones(1).device == torch.device("neuron:1")


def test_sending_a_tensor_to_another_process_is_refused() -> None:
    x = torch.ones(2, device="neuron")
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    with pytest.raises(errors.SharedDeviceTensorError, match=r"on neuron:0 cannot be sent .*`tensor\.cpu\(\)`"):
        queue.put(x)
    assert x.share_memory_() is x  # nothing to do, as on torch.cuda
    assert torch.ones(2).share_memory_().is_shared()  # CPU tensors go on as before
