"""What importing does: order of imports, cost, no device work, and what a broken install says."""

import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from processes import run_python

import torch_neuronx
from torch_neuronx import _install

pytestmark = pytest.mark.neuron_only
ROOT = Path(__file__).parent.parent

# Makes a program find a copy of the package in its own folder: the finder of an editable install would win over it.
FIND_THE_COPY = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'Redirecting' not in type(f).__name__]\n"


@pytest.fixture
def copy_of_package(tmp_path: Path) -> Path:
    package = tmp_path / "torch_neuronx"
    ignored = shutil.ignore_patterns("_C*.so", "__pycache__")
    shutil.copytree(Path(torch_neuronx.__file__).parent, package, ignore=ignored)
    shutil.copy(torch_neuronx._C.__file__, package)
    return package


WORKS = """
    x = torch.ones(2, device="neuron") + 1
    assert x.device == torch.device("neuron:0") and x.tolist() == [2, 2]
    assert torch.neuron is torch_neuronx
"""


@pytest.mark.parametrize(
    ("first", "env"),
    [
        pytest.param("import torch\n    import torch_neuronx", {}, id="torch first"),
        pytest.param("import torch_neuronx\n    import torch", {}, id="torch_neuronx first"),
        pytest.param(
            "import torch\n    assert not hasattr(torch, 'neuron')\n    import torch_neuronx",
            {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            id="no autoload",
        ),
    ],
)
def test_import_order(first: str, env: dict[str, str], tmp_path: Path) -> None:
    result = run_python(f"    {first}\n{WORKS}", directory=tmp_path, env=env)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_import_torch_alone_gives_the_device(tmp_path: Path) -> None:
    result = run_python("import torch\nprint(torch.ones(2, device='neuron').sum().item())", directory=tmp_path)
    assert (result.stdout, result.stderr) == ("2.0\n", "")


def test_import_does_no_device_work(tmp_path: Path) -> None:
    program = """
        import os, sys
        import torch

        def largest_mapping():
            sizes = []
            for line in open("/proc/self/maps"):
                start, end = line.split()[0].split("-")
                sizes.append(int(end, 16) - int(start, 16))
            return max(sizes)

        print(len(os.listdir("/proc/self/task")), largest_mapping() < 1 << 30)
        import torch_neuronx
        print(len(os.listdir("/proc/self/task")), largest_mapping() < 1 << 30)
        assert not torch.neuron.is_initialized()
        # Asking is free as well.
        torch.neuron.device_count(), torch.neuron.is_available(), torch.neuron.get_device_properties()
        torch.manual_seed(3), torch.neuron.get_rng_state(), torch.neuron.memory_summary(), torch.neuron.mem_get_info()
        torch.neuron.current_stream(), torch.neuron.default_stream(), torch.neuron.empty_cache()
        assert not torch.neuron.is_initialized()
        print(len(os.listdir("/proc/self/task")), largest_mapping() < 1 << 30)
        torch.ones(1, device="neuron")
        assert torch.neuron.is_initialized() and largest_mapping() > 1 << 30
    """
    result = run_python(program, directory=tmp_path, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert result.returncode == 0, result.stderr
    before, after, asked = result.stdout.splitlines()
    assert before == after == asked
    assert before.endswith("True")


# -- Broken installs --------------------------------------------------------------------------------------------------


def _extension(package: Path) -> Path:
    (extension,) = package.glob("_C*.so")
    return extension


def _replace(file: Path, old: bytes, new: bytes) -> None:
    content = file.read_bytes()
    assert old in content
    file.write_bytes(content.replace(old, new))


def _lose_library(package: Path) -> None:
    _replace(_extension(package), b"libtorch_cpu.so\0", b"libtorch_xyz.so\0")


def _lose_extension(package: Path) -> None:
    _extension(package).unlink()


def _lose_symbol(package: Path) -> None:
    _replace(_extension(package), b"\0PyErr_SetString\0", b"\0PyErr_SetStrung\0")


def _other_torch(package: Path) -> None:
    _replace(package / "_install.py", b'TORCH_VERSION = "2.13.0"', b'TORCH_VERSION = "9.9.9"')


def _damage_source(package: Path) -> None:
    with (package / "memory.py").open("a") as file:
        file.write("\nraise RuntimeError('half written')\n")


BREAKAGES = [
    pytest.param(_lose_library, "MissingLibraryError", r"shared library libtorch_xyz\.so is missing", id="library"),
    pytest.param(_lose_extension, "MissingExtensionError", r"extension module _C is not in ", id="extension"),
    pytest.param(_lose_symbol, "ForeignExtensionError", r"does not fit .* symbol PyErr_SetStrung", id="symbol"),
    pytest.param(_other_torch, "TorchVersionError", r"built for torch 9\.9\.9, but torch 2\.13\.0", id="torch"),
    pytest.param(_damage_source, "BrokenInstallError", r"RuntimeError: half written", id="source"),
]


@pytest.mark.parametrize(("damage", "error", "cause"), BREAKAGES)
def test_broken_install_leaves_torch_usable(
    damage: Callable[[Path], None], error: str, cause: str, copy_of_package: Path
) -> None:
    program = """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import torch
        (warning,) = [w for w in caught if "neuron" in str(w.message)]
        print(str(warning.message).splitlines()[0])
        assert issubclass(warning.category, RuntimeWarning)
        assert torch.ones(3).sum().item() == 3
        try:
            import torch_neuronx
        except ImportError as error:
            print(type(error).__name__, str(error).splitlines()[0])
    """
    damage(copy_of_package)
    result = run_python(FIND_THE_COPY + re.sub(r"(?m)^ {8}", "", program), directory=copy_of_package.parent)
    assert result.returncode == 0, result.stderr
    warned, raised = result.stdout.splitlines()
    assert re.search(cause, warned)
    assert warned.startswith("the device 'neuron' is not available: ")
    assert raised.startswith(error)
    assert re.search(cause, raised)


@pytest.mark.parametrize(("damage", "error", "cause"), BREAKAGES[:2])
def test_broken_install_imported_first(
    damage: Callable[[Path], None], error: str, cause: str, copy_of_package: Path
) -> None:
    damage(copy_of_package)
    result = run_python(FIND_THE_COPY + "import torch_neuronx", directory=copy_of_package.parent)
    assert result.returncode == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("torch_neuronx.errors.")]
    assert line.startswith(f"torch_neuronx.errors.{error}: ")
    assert re.search(cause, line)


def test_broken_install_with_warnings_as_errors(copy_of_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error::RuntimeWarning")
    _lose_extension(copy_of_package)
    result = run_python(FIND_THE_COPY + "import torch\nprint('usable')", directory=copy_of_package.parent)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "usable\n"
    assert "extension module _C is not in" in result.stderr


# -- Names ------------------------------------------------------------------------------------------------------------


def test_all_names_exist() -> None:
    assert [name for name in torch_neuronx.__all__ if not hasattr(torch.neuron, name)] == []


def test_submodules_are_loaded_once() -> None:
    from torch.neuron.amp import autocast

    assert autocast is torch_neuronx.amp.autocast


def test_amp_as_torch_cuda_has_it() -> None:
    x = torch.ones(2, 2, device="neuron")
    with torch.neuron.amp.autocast(dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
    scaler = torch.neuron.amp.GradScaler(init_scale=4.0)
    assert scaler.scale(x).tolist() == [[4, 4], [4, 4]]


@pytest.mark.slow
def test_libraries_find_the_device() -> None:
    # They look for an importable torch_neuronx and for torch.neuron; without them they silently use the CPU.
    transformers = pytest.importorskip("transformers.utils.import_utils")
    accelerate = pytest.importorskip("accelerate")
    assert transformers.is_torch_neuron_available(check_device=True)
    assert accelerate.Accelerator().device.type == "neuron"


def test_versions_agree_with_the_project_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert torch_neuronx.__version__ == project["version"]
    assert f"torch=={_install.TORCH_VERSION}" in project["dependencies"]


def test_methods_of_tensors_modules_and_storages() -> None:
    x = torch.arange(3.0)
    y = x.neuron()
    assert (y.is_neuron, x.is_neuron) == (True, False)
    assert y.device == torch.device("neuron:0")
    assert torch.equal(y.cpu(), x)
    layer = torch.nn.Linear(2, 2).neuron()
    assert {p.device.type for p in layer.parameters()} == {"neuron"}
    storage = x.untyped_storage().neuron()
    assert storage.is_neuron
    assert bytes(storage.cpu()) == bytes(x.untyped_storage())
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)]).neuron()
    assert packed.is_neuron
