"""The floors of the house: what each folder may include or import, and how long a file may be."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CSRC, SRC = ROOT / "csrc", ROOT / "src"

# Lowest first: a folder may include itself and those before it.
FLOORS = ["driver", "engines", "runtime", "eager", "program", "distributed", "bindings"]

# Folders that must not know PyTorch, and the headers by which one would.
WITHOUT_TORCH = ["driver", "engines"]
TORCH_HEADERS = re.compile(r"^(torch|ATen|c10|caffe2)/")
PYTHON_HEADERS = re.compile(r"^(Python\.h|pybind11/|pyconfig\.h|torch/csrc/|torch/extension\.h|torch/python\.h)")

# Which of our packages each of our packages may import, besides itself.
PACKAGES: dict[str, set[str]] = {
    "neuron_hw": set(),
    "nki": {"neuron_hw"},
    "neuronxcc": {"neuron_hw", "nki"},  # the older dialect of nki
    "torch_neuronx": {"neuron_hw", "nki"},
    "nkilib": {"neuron_hw", "nki", "torch_neuronx"},
    "neuron_explorer": {"neuron_hw", "nki", "torch_neuronx"},
    "vllm_neuron": {"neuron_hw", "nki", "nkilib", "torch_neuronx"},
    "vllm_omni_neuron": {"neuron_hw", "nki", "nkilib", "torch_neuronx", "vllm_neuron"},
}
# Serving systems and model libraries build on the device; it never imports them.
USERS_OF_THE_DEVICE = {"vllm", "vllm_omni", "transformers", "accelerate", "diffusers", "sglang", "jax", "tensorflow"}

# A little above the usual size of the style guide, which asks for about 400 and 500.
MAX_CPP_LINES, MAX_PYTHON_LINES = 450, 550


def cpp_files() -> list[Path]:
    return sorted(p for p in CSRC.rglob("*") if p.suffix in (".h", ".cpp", ".cc", ".hpp"))


def python_files(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', path.read_text(), re.MULTILINE)


def imports(path: Path) -> set[str]:
    """Top-level packages that a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def floor_of(path: Path) -> str:
    return path.relative_to(CSRC).parts[0]


def upward_includes(folder: str, included: list[str]) -> list[str]:
    allowed = FLOORS[: FLOORS.index(folder) + 1]
    return [i for i in included if i.split("/")[0] in FLOORS and i.split("/")[0] not in allowed]


def test_there_is_something_to_check():
    assert len(cpp_files()) > 10
    assert (SRC / "torch_neuronx" / "__init__.py").exists()


def test_checks_can_fail():
    assert upward_includes("driver", ["driver/queue.h", "runtime/stream.h"]) == ["runtime/stream.h"]
    assert upward_includes("bindings", ["driver/queue.h", "eager/call.h"]) == []
    assert TORCH_HEADERS.match("c10/core/Device.h")
    assert PYTHON_HEADERS.match("pybind11/pybind11.h")
    assert not PYTHON_HEADERS.match("ATen/core/Tensor.h")


def test_every_file_stands_on_a_floor():
    assert {floor_of(p) for p in cpp_files()} <= set(FLOORS)


def test_includes_point_down():
    wrong = {str(p.relative_to(ROOT)): up for p in cpp_files() if (up := upward_includes(floor_of(p), includes(p)))}
    assert not wrong


def test_own_headers_are_included_by_their_floor():
    # "queue.h" instead of "driver/queue.h" would hide an arrow from the test above.
    wrong = [
        f"{p.relative_to(ROOT)}: {name}"
        for p in cpp_files()
        for name in includes(p)
        if "/" not in name and name.endswith(".h") and (p.parent / name).exists()
    ]
    assert not wrong


def test_driver_and_engines_do_not_know_pytorch():
    wrong = [
        f"{p.relative_to(ROOT)}: {name}"
        for p in cpp_files()
        for name in includes(p)
        if floor_of(p) in WITHOUT_TORCH and TORCH_HEADERS.match(name)
    ]
    assert not wrong


def test_only_bindings_see_python():
    wrong = [
        f"{p.relative_to(ROOT)}: {name}"
        for p in cpp_files()
        for name in includes(p)
        if floor_of(p) != "bindings" and PYTHON_HEADERS.match(name)
    ]
    assert not wrong


def test_nobody_asks_whether_the_machine_is_emulated():
    # The emulator is a driver, never a mode.
    wrong = [
        str(p.relative_to(ROOT))
        for p in cpp_files()
        if floor_of(p) != "driver" and re.search(r"\b(is_?emulat|emulated\(\)|isEmulat)", p.read_text())
    ]
    assert not wrong


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_down(package):
    wrong = {}
    for path in python_files(f"src/{package}"):
        forbidden = (imports(path) & set(PACKAGES)) - PACKAGES[package] - {package}
        if forbidden:
            wrong[str(path.relative_to(ROOT))] = forbidden
    assert not wrong


def test_the_device_does_not_import_its_users():
    wrong = {
        str(p.relative_to(ROOT)): found
        for p in python_files("src/torch_neuronx", "src/nki", "src/neuron_hw")
        if (found := imports(p) & USERS_OF_THE_DEVICE)
    }
    assert not wrong


def test_hardware_facts_are_pure_python():
    wrong = {
        str(p.relative_to(ROOT)): found
        for p in python_files("src/neuron_hw")
        if (found := imports(p) & {"torch", "numpy"})
    }
    assert not wrong


def test_patches_of_pytorch_stand_in_one_file():
    patch = re.compile(r"^\s*torch\.[\w.]+\s*=[^=]|setattr\(torch\b", re.MULTILINE)
    wrong = [
        str(p.relative_to(ROOT))
        for p in python_files("src")
        if p.name != "_upstream_shims.py" and patch.search(p.read_text())
    ]
    assert not wrong


def test_files_are_short():
    limits = [(p, MAX_CPP_LINES) for p in cpp_files()]
    limits += [(p, MAX_PYTHON_LINES) for p in python_files("src", "tests", "conformance", "benchmarks", "examples")]
    too_long = {str(p.relative_to(ROOT)): n for p, limit in limits if (n := len(p.read_text().splitlines())) > limit}
    assert not too_long


def test_there_is_no_drawer_for_everything():
    assert not [p for p in python_files("src", "tests") if p.name in ("utils.py", "helpers.py", "misc.py", "common.py")]


def test_test_files_are_named_by_capability():
    for path in (ROOT / "tests").glob("test_*.py"):
        assert not re.search(r"test_(issue|step|case|p|s|o|w|a)\d", path.name), path.name
