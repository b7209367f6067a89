"""Processes: the device cannot be used in the forked child of a process that used it."""

import pytest
import torch
from processes import run_python
from torch.utils.data import DataLoader, Dataset

pytestmark = pytest.mark.neuron_only

FORK = """
import os, sys
import torch

{before}

pid = os.fork()
if pid == 0:
    try:
        {child}
    except RuntimeError as error:
        print("child:", error, flush=True)
        os._exit(3)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert code == {code}, code
x = torch.ones(3, device="neuron")
assert (x + 1).sum().item() == 6.0
print("parent works")
"""

USED = "y = torch.ones(4, device='neuron'); assert y.sum().item() == 4.0"


EVERY_USE = """
import os
import torch

y = torch.ones(4, device="neuron")
assert y.sum().item() == 4.0
uses = {
    "factory": lambda: torch.ones(2, device="neuron"),
    "op": lambda: y + 1,
    "view and op": lambda: y[1:].mul_(2),
    "read": lambda: y.cpu(),
    "item": lambda: y[0].item(),
    "to": lambda: torch.ones(2).to("neuron"),
    "synchronize": lambda: torch.neuron.synchronize(),
    "accelerator": lambda: torch.accelerator.synchronize(),
    "stream": lambda: torch.neuron.Stream().synchronize(),
    "random": lambda: torch.rand(2, device="neuron"),
    "mem_get_info": lambda: torch.neuron.mem_get_info(0),
}
for name, use in uses.items():
    pid = os.fork()
    if pid == 0:
        try:
            use()
        except RuntimeError as error:
            os._exit(3 if "spawn" in str(error) and "fork" in str(error) else 4)
        except BaseException:
            os._exit(5)
        os._exit(0)
    print(name, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
assert (y + 1).sum().item() == 8.0
print("parent works")
"""


def test_every_use_in_a_forked_child_names_spawn(tmp_path):  # A3
    result = run_python(EVERY_USE, directory=tmp_path)
    assert result.returncode == 0, result.stderr
    *children, parent = result.stdout.splitlines()
    assert parent == "parent works"
    assert len(children) == 11
    assert [c for c in children if not c.endswith(" 3")] == []


def test_fork_before_first_use_is_fine(tmp_path):  # A3
    result = run_python(
        FORK.format(before="assert torch.neuron.device_count() == 4", child=USED, code=0), directory=tmp_path
    )
    assert result.returncode == 0, result.stderr


def test_questions_do_not_initialise(tmp_path):  # A3
    questions = """
assert torch.neuron.is_available()
assert torch.accelerator.is_available()
assert torch.accelerator.current_accelerator().type == "neuron"
torch.neuron.device_count(), torch.neuron.current_device(), torch.neuron.is_bf16_supported()
torch.accelerator.device_count()
torch.manual_seed(3)
torch.neuron.manual_seed_all(3)
torch.device("neuron:1")
torch.autocast("neuron", dtype=torch.bfloat16)
torch.amp.GradScaler("neuron")
assert not torch.neuron.is_initialized()
"""
    result = run_python(FORK.format(before=questions, child=USED, code=0), directory=tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_questions_in_a_forked_child_are_answered(tmp_path):  # A3
    child = "assert torch.neuron.device_count() == 4 and torch.accelerator.is_available(); torch.ones(2).add(1)"
    result = run_python(FORK.format(before=USED, child=child, code=0), directory=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_fork_while_the_device_works(tmp_path):
    busy = "y = torch.randn(700, 700, device='neuron')\nfor _ in range(20): y = (y @ y).tanh()"
    child = "assert torch.ones(1000).add(1).sum().item() == 2000.0"
    result = run_python(FORK.format(before=busy, child=child, code=0), directory=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


MULTIPROCESSING = """
import torch
import torch.multiprocessing as mp

def work(queue):
    try:
        queue.put(torch.full((3,), 2.0, device="neuron").sum().item())
    except RuntimeError as error:
        queue.put(str(error))

if __name__ == "__main__":
    assert torch.ones(4, device="neuron").sum().item() == 4.0
    context = mp.get_context("{method}")
    queue = context.SimpleQueue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print("answer:", queue.get())
    process.join(60)
    assert process.exitcode == 0, process.exitcode
"""


@pytest.mark.slow
def test_multiprocessing_fork_names_spawn(tmp_path):  # A3
    result = run_python(MULTIPROCESSING.format(method="fork"), directory=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "spawn" in result.stdout


@pytest.mark.slow
def test_multiprocessing_spawn_works(tmp_path):  # A3
    result = run_python(MULTIPROCESSING.format(method="spawn"), directory=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "answer: 6.0" in result.stdout


class Squares(Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((2,), float(i)) ** 2


def test_data_loader_workers_may_fork_while_the_device_is_in_use(device):
    weight = torch.randn(300, 300, device=device)
    total = torch.zeros((), device=device)
    for _ in range(2):
        for batch in DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
            weight = (weight @ weight).tanh()
            total += batch.to(device).sum()
    assert total.item() == 2 * 2 * sum(i * i for i in range(12))


class OnDevice(Squares):
    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((2,), float(i), device="neuron")


def test_data_loader_worker_that_uses_the_device_fails_clearly(device):
    torch.ones(2, device=device).sum().item()
    with pytest.raises(RuntimeError, match="spawn"):
        next(iter(DataLoader(OnDevice(), num_workers=1, multiprocessing_context="fork")))
