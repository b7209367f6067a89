"""nkilib.enable: PyTorch's functions computed by the kernels."""

import threading

import pytest
import torch
from nkilib_checks import BF16, normal
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import nkilib


class Ops(TorchDispatchMode):
    """Names of the library's ops that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "nkilib":
            self.names.append(func._opname)
        return func(*args, **(kwargs or {}))


def ops_of(function, *args, **kwargs):
    with Ops() as ops:
        function(*args, **kwargs)
    return ops.names


@pytest.fixture(autouse=True)
def _nothing_is_left_enabled():
    yield
    nkilib.disable()
    assert torch.overrides._get_current_function_mode_stack() == []


def cases(device):
    x, target = normal(1, 4, 6).to(device), torch.tensor([0, 5, 2, 1], device=device)
    weight, matrix = normal(2, 6).to(device), normal(3, 5, 6).to(device)
    return {
        "softmax": lambda: F.softmax(x, -1),
        "torch.softmax": lambda: torch.softmax(x, 0),
        "method": lambda: x.softmax(dim=1),
        "module": lambda: torch.nn.Softmax(-1)(x),
        "rms_norm": lambda: F.rms_norm(x, (6,), weight, 1e-3),
        "rms_norm without eps": lambda: F.rms_norm(x, (6,)),
        "layer_norm": lambda: F.layer_norm(x, (6,), weight, weight, 1e-3),
        "cross_entropy": lambda: F.cross_entropy(x, target),
        "cross_entropy of images": lambda: F.cross_entropy(x.view(2, 6, 2), target.view(2, 2), reduction="none"),
        "linear": lambda: F.linear(x, matrix, weight[:5]),
        "matmul": lambda: x @ matrix.T,
    }


NAMES = list(cases("cpu"))


@pytest.mark.parametrize("name", NAMES)
def test_routed_functions_give_what_torch_gives(device, name):
    function, expected = cases(device)[name], cases("cpu")[name]()
    assert ops_of(function) == []
    with nkilib.enable(*nkilib.routes()):
        assert len(ops_of(function)) == 1
        torch.testing.assert_close(function().cpu(), expected, rtol=1e-5, atol=1e-5)
    assert ops_of(function) == []


def test_products_are_routed_only_by_name(device):
    nkilib.enable()
    assert ops_of(cases(device)["linear"]) == []
    assert ops_of(cases(device)["softmax"]) == ["softmax"]
    nkilib.enable("linear")
    assert ops_of(cases(device)["linear"]) == ["matmul"]
    assert ops_of(cases(device)["softmax"]) == []
    assert nkilib.routes()["softmax"]
    assert not nkilib.routes()["linear"]


@pytest.mark.parametrize(
    "call",
    [
        lambda d: F.softmax(torch.ones(2, 3, device=d, dtype=torch.float64), -1),
        lambda d: F.softmax(torch.ones(2, 3, device=d), -1, dtype=torch.float64),
        lambda d: F.softmax(torch.ones(2, 0, device=d), -1),
        lambda d: F.softmax(torch.ones((), device=d), 0),
        lambda d: F.softmax(torch.ones(2, 3), -1),
        lambda d: F.layer_norm(torch.ones(2, 3, 4, device=d), (3, 4)),
        lambda d: F.layer_norm(torch.ones(2, 8000, device=d), (8000,)),
        lambda d: F.layer_norm(torch.ones(2, 3, device=d, dtype=torch.float64), (3,)),
        lambda d: F.cross_entropy(torch.ones(2, 3, device=d), torch.ones(2, 3, device=d) / 3),
        lambda d: F.cross_entropy(torch.ones(2, 3, device=d), torch.tensor([1, 2], device=d), label_smoothing=0.1),
        lambda d: F.cross_entropy(torch.ones(2, 3, device=d), torch.tensor([1, 2], device=d), torch.ones(3, device=d)),
        lambda d: torch.matmul(torch.ones(2, 3, 4, device=d), torch.ones(4, 5, device=d)),
    ],
)
def test_unsupported_calls_go_on_to_torch(device, call):
    expected = call("cpu")
    with nkilib.enable(*nkilib.routes()):
        assert ops_of(call, device) == []
        torch.testing.assert_close(call(device).cpu(), expected)


def test_errors_of_torch_stay(device):
    x = torch.ones(2, 3, device=device)
    with nkilib.enable():
        with pytest.raises(RuntimeError, match="normalized_shape"):
            F.layer_norm(x, (4,))
        with pytest.raises((ValueError, RuntimeError, IndexError)):
            F.softmax(x, 5)


def test_autocast_and_function_transforms_are_left_alone(device):
    x = normal(1, 4, 6).to(device)
    with nkilib.enable():
        with torch.autocast("neuron", dtype=BF16):
            assert ops_of(F.softmax, x, -1) == []
        assert torch.vmap(lambda r: F.softmax(r, -1))(x).shape == (4, 6)


def _model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(12, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.RMSNorm(16), torch.nn.Linear(16, 5)
    )


def _train(model, x, target):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_model_trains_through_the_kernels_as_without_them(device):
    x, target = normal(1, 9, 12), torch.arange(9) % 5
    expected = _train(_model(), x, target)
    with nkilib.enable("layer_norm", "rms_norm", "cross_entropy", "linear"):
        model, x, target = _model().to(device), x.to(device), target.to(device)
        assert ops_of(model, x) == ["matmul", "layer_norm", "rms_norm", "matmul"]
        actual = _train(model, x, target)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_compiled_code_has_the_ops_as_nodes(device):
    x, target = normal(1, 9, 12).to(device), (torch.arange(9) % 5).to(device)
    model, graphs = _model().to(device), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    def loss(x, target):
        return F.cross_entropy(model(x), target)

    torch._dynamo.reset()
    with nkilib.enable():
        expected = loss(x, target)
        actual = torch.compile(loss, fullgraph=True, backend=backend)(x, target)
    assert torch.equal(actual, expected)
    nodes = [str(node.target) for node in graphs[0].graph.nodes if "nkilib" in str(node.target)]
    assert [n.split(".")[1] for n in nodes] == ["layer_norm", "rms_norm", "cross_entropy"]
    # And not in code that is compiled when nothing is enabled.
    torch.compile(loss, fullgraph=True, backend=backend)(x, target)
    assert not [node for node in graphs[-1].graph.nodes if "nkilib" in str(node.target)]


def test_other_threads_are_not_concerned(device):
    seen = []
    with nkilib.enable():
        thread = threading.Thread(target=lambda: seen.append(ops_of(cases(device)["softmax"])))
        thread.start()
        thread.join()
    assert seen == [[]]


def test_blocks_nest(device):
    softmax, norm = cases(device)["softmax"], cases(device)["layer_norm"]
    with nkilib.enable("softmax"):
        with nkilib.enable("layer_norm"):
            assert (ops_of(softmax), ops_of(norm)) == ([], ["layer_norm"])
        assert (ops_of(softmax), ops_of(norm)) == (["softmax"], [])


def test_disabling_inside_of_another_mode(device):
    softmax = cases(device)["softmax"]
    nkilib.enable()
    with torch.device(device):
        nkilib.disable()
        assert ops_of(softmax) == []
        assert torch.ones(1).device.type == device.type
    nkilib.enable()
    assert ops_of(softmax) == ["softmax"]


def test_unknown_routes_are_refused():
    with pytest.raises(nkilib.UnknownRouteError, match=r"soft_max.*softmax"):
        nkilib.enable("soft_max")


def test_torch_neuronx_has_it():
    import torch_neuronx

    assert torch_neuronx.nkilib is nkilib
