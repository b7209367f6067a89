"""One process of the run: takes a list of cases, runs them in order and writes a line of JSON before and after each.

Started by ``conformance.processes`` as ``python -m conformance.worker``. The job comes in on standard input; results go
to a descriptor of their own, because what PyTorch or a kernel prints must not end up between them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
import warnings
from typing import Any

from conformance.candidate import load as load_candidate
from conformance.cases import Case


def main() -> None:
    """Runs the job on standard input."""
    job: dict[str, Any] = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    with os.fdopen(job["results"], "w", buffering=1) as results:
        _run(job, results)


def _run(job: dict[str, Any], results: Any) -> None:
    import torch

    from conformance import suites
    from conformance.suites.suite import Options, Tally, describe, settle

    torch.set_num_threads(1)
    candidate = load_candidate(job["candidate"])
    candidate.prepare()
    options = Options(**job["options"])
    loaded = {name: suites.load(name) for name in {item["case"]["suite"] for item in job["cases"]}}

    def send(message: dict[str, Any]) -> None:
        results.write(json.dumps(message) + "\n")

    send({"ready": True})
    for item in job["cases"]:
        case = Case(**item["case"])
        send({"begin": item["index"]})
        began = time.perf_counter()
        try:
            tally = loaded[case.suite].check(case, candidate, options, item["check_values"])
            candidate.synchronize()
        except Exception as error:  # noqa: BLE001 - neither a sample generator nor a late error may end the run
            tally = Tally()
            tally.fail("outside the samples", describe(error))
            settle(candidate)
        send({"end": item["index"], "seconds": time.perf_counter() - began, "tally": dataclasses.asdict(tally)})


if __name__ == "__main__":
    main()
