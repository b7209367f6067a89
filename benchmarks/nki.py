"""Kernels of NKI on the simulated core: a matrix product, attention, and many small instructions.

Each part takes turns with its peer in one run: torch's fp32 product, torch's fp32 attention by products and softmax,
NumPy. All figures are wall time of this machine except where a remark says that it is modelled time of a chip.
"""

import argparse
from collections.abc import Sequence

from benchmarks import nki_attention, nki_instructions, nki_matmul


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nki", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    arguments = parser.parse_args(argv)
    for part in (nki_matmul, nki_attention, nki_instructions):
        part.main(["--quick"] if arguments.quick else [])


if __name__ == "__main__":
    main()
