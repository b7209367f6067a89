"""What the installed package adds to `import torch`: `python -m benchmarks.import_time`.

Peers: a process whose `import torch` loads the backend, and one with TORCH_DEVICE_BACKEND_AUTOLOAD=0, in turns. Figures
are CPU time of the process, best of all turns, with bytecode already written.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

PROGRAM = "import time; start = time.process_time(); import torch; print(1000 * (time.process_time() - start))"


def import_ms(autoload: bool) -> float:
    """CPU milliseconds of `import torch` in a fresh process."""
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(autoload))}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # the first turn writes it, as an installation does
    output = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True).stdout
    return float(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=8)
    turns = parser.parse_args().turns
    times: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(turns):
        for autoload in (True, False) if turn % 2 else (False, True):
            times[autoload].append(import_ms(autoload))
    with_backend, without = min(times[True]), min(times[False])
    print(f"import torch, CPU time, best of {turns} interleaved turns, load average {os.getloadavg()[0]:.1f}")
    print(f"  with the backend {with_backend:.0f} ms, without {without:.0f} ms, ratio {with_backend / without:.3f}")
    added = with_backend - without
    print(f"  the backend adds {added:.0f} ms; bound 50 ms: {'met' if added < 50 else 'missed'}")


if __name__ == "__main__":
    main()
