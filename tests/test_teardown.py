"""The end of a process: it never hangs and never crashes, whatever the device is doing."""

import pytest
from processes import run_python

pytestmark = pytest.mark.neuron_only

BUSY = """
import os, sys, threading, time
import torch

x = torch.randn(600, 600, device="neuron")
def work(n=40):
    y = x
    for _ in range(n):
        y = (y @ x).tanh()
    return y
"""

ENDINGS = {
    "end of the program": ("y = work()", 0),
    "nothing used": ("", 0),
    "exception in flight": ("y = work()\nraise KeyError('mine')", 1),
    "exception that holds a tensor": ("y = work()\ne = ValueError('mine')\ne.tensor = y\nraise e", 1),
    "os._exit": ("y = work()\nos._exit(7)", 7),
    "sys.exit": ("y = work()\nsys.exit(5)", 5),
    "sys.exit in a thread": (
        "def leave():\n    work()\n    sys.exit(3)\nt = threading.Thread(target=leave)\nt.start()\nt.join()\nwork()",
        0,
    ),
    "tensors that outlive their module": (
        "import builtins\nbuiltins.kept = [work(), torch.Stream(device='neuron')]",
        0,
    ),
    "launches from an atexit function": ("import atexit\natexit.register(lambda: print(work(2).sum().item()))", 0),
    "launches from a destructor": (
        "class Last:\n    def __del__(self):\n        self.y = work(2)\nsys.last = Last()\nwork()",
        0,
    ),
    "side streams and several devices": (
        "with torch.Stream(device='neuron'):\n    work()\n"
        "for i in range(4):\n    torch.ones(9, device=f'neuron:{i}').add_(1)",
        0,
    ),
    "backward in flight": (
        "w = torch.randn(600, 600, device='neuron', requires_grad=True)\n(w @ x).tanh().sum().backward()",
        0,
    ),
}


# Each is a process of its own, some seconds long: the fast tier runs those that most programs meet.
FAST = ("end of the program", "exception in flight", "os._exit")


@pytest.mark.parametrize("ending", [pytest.param(e, marks=[] if e in FAST else pytest.mark.slow) for e in ENDINGS])
def test_process_ends(tmp_path, ending):
    program, code = ENDINGS[ending]
    result = run_python(BUSY + program, directory=tmp_path, timeout=60)
    assert result.returncode == code, result.stderr
    if code == 1:
        assert "mine" in result.stderr


DAEMONS = """
def forever():
    while True:
        {work}
for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("work", ["work(3)", "torch.ones(3, device='neuron').sum().item()"], ids=["launch", "read"])
def test_daemon_threads_do_not_keep_the_process(tmp_path, work):
    try:
        result = run_python(BUSY + DAEMONS.format(work=work), directory=tmp_path, timeout=60)
    except AssertionError as failure:
        # CPython before 3.14 ends such a thread with pthread_exit when it asks for the GIL, which PyTorch's own C++
        # frames do not survive: the same program ends in the same way on device cpu.
        if "terminate called without an active exception" not in str(failure):
            raise
        pytest.xfail("PyTorch does not survive daemon threads at exit on this Python, on any device")
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_interrupt_in_the_middle_of_a_wait(tmp_path):
    program = BUSY + (
        "import signal\nsignal.alarm(1)\n"
        "def interrupt(*_):\n    raise TimeoutError('mine')\nsignal.signal(signal.SIGALRM, interrupt)\n"
        "while True:\n    work(5).sum().item()\n"
    )
    result = run_python(program, directory=tmp_path, timeout=60)
    assert result.returncode == 1
    assert "TimeoutError: mine" in result.stderr


FAILURE = """
import torch
x = torch.zeros(3, 5, device="neuron")
for i in (2, 2, {index}):
    y = x.gather(0, torch.full((2, 4), i, device="neuron"))
{after}
"""


def test_error_that_nobody_was_told_is_reported_at_exit(tmp_path):
    result = run_python(FAILURE.format(index=7, after=""), directory=tmp_path)
    assert "gather" in result.stderr
    assert "7" in result.stderr


@pytest.mark.slow
def test_error_that_was_told_is_not_reported_again(tmp_path):
    after = "try:\n    torch.neuron.synchronize()\nexcept (RuntimeError, IndexError):\n    print('told')"
    result = run_python(FAILURE.format(index=7, after=after), directory=tmp_path)
    assert result.returncode == 0
    assert "told" in result.stdout
    assert "gather" not in result.stderr


def test_good_program_says_nothing(tmp_path):
    result = run_python(FAILURE.format(index=2, after=""), directory=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


def test_first_use_under_its_old_name(tmp_path):  # P12
    program = """
    import torch
    try:
        x = torch.ones(1, device="privateuseone")
    except RuntimeError as error:
        assert "neuron" in str(error), error
    else:
        assert x.device.type == "neuron", x.device
        assert x.item() == 1.0
    """
    result = run_python(program, directory=tmp_path)
    assert result.returncode == 0, result.stderr


def test_memory_functions_before_any_allocation(tmp_path):  # P17
    program = """
    import torch
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()
    torch.neuron.empty_cache()
    torch.neuron.reset_peak_memory_stats()
    assert torch.accelerator.memory_allocated() == 0
    assert torch.neuron.max_memory_allocated() == 0
    torch.accelerator.empty_host_cache()
    """
    result = run_python(program, directory=tmp_path)
    assert result.returncode == 0, result.stderr


def test_memory_information(tmp_path):  # A2
    program = """
    import torch
    free, total = torch.neuron.mem_get_info(0)
    assert total == 24 * 2**30, total
    assert 0 < free <= total
    kept = torch.empty(2**28, dtype=torch.uint8, device="neuron")
    assert torch.neuron.mem_get_info(0)[0] <= free - 2**28
    assert torch.neuron.mem_get_info(1)[0] == total
    assert torch.accelerator.get_memory_info(0)[1] == total
    """
    result = run_python(program, directory=tmp_path)
    assert result.returncode == 0, result.stderr
