"""HiGHS in a process of its own: `python highs_worker.py`, in a folder with a model and a job; leaves an answer.

Run as a script, so that it needs nothing but highspy. Inside another process HiGHS's threads turn interrupts into
aborts, and some of its phases ignore every limit.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

MODEL_FILE, JOB_FILE, ANSWER_FILE = "model.mps", "job.json", "answer.json"

MIN_LIMIT_S = 0.1
"""The solver gets this long, even where starting the process took all of its time."""


def solve(job: dict[str, Any]) -> dict[str, Any]:
    """The answer to a job of `{"deadline_s", "seed", "start"}`, the deadline on the monotonic clock.

    It holds HiGHS's own `status` and `words`, the dual `bound` (None if it is infinite), and `values` by variable name
    (empty without a solution).
    """
    import highspy

    highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    if highs.readModel(MODEL_FILE) == highspy.HighsStatus.kError:
        return {"status": "kLoadError", "words": "HiGHS cannot read the model", "bound": None, "values": {}}
    names = list(highs.getLp().col_names_)
    _set_options(highs, job)
    _set_start(highs, names, job["start"])
    highs.run()
    return _answer(highs, names)


def _set_options(highs: Any, job: dict[str, Any]) -> None:
    """One thread, gap 0."""
    limit_s = max(MIN_LIMIT_S, job["deadline_s"] - time.monotonic())
    options = {"output_flag": False, "threads": 1, "random_seed": job["seed"], "time_limit": limit_s}
    for key, value in {**options, "mip_rel_gap": 0.0, "mip_abs_gap": 1e-7}.items():
        highs.setOptionValue(key, value)


def _set_start(highs: Any, names: list[str], start: dict[str, float]) -> None:
    import numpy as np

    known = [i for i, name in enumerate(names) if name in start]
    values = np.array([start[names[i]] for i in known], dtype=float)
    if known:
        highs.setSolution(len(known), np.array(known, dtype=np.int32), values)


def _answer(highs: Any, names: list[str]) -> dict[str, Any]:
    status, info = highs.getModelStatus(), highs.getInfo()
    has_solution = info.primal_solution_status == 2  # 2 is "feasible" in HiGHS's enumeration
    return {
        "status": status.name,
        "words": highs.modelStatusToString(status),
        "bound": info.mip_dual_bound if math.isfinite(info.mip_dual_bound) else None,
        "values": dict(zip(names, highs.getSolution().col_value, strict=True)) if has_solution else {},
    }


def main() -> None:
    """Answer the job of this folder; the file appears whole or not at all."""
    answer = solve(json.loads(Path(JOB_FILE).read_text()))
    unfinished = Path(f"{ANSWER_FILE}.part")
    unfinished.write_text(json.dumps(answer))
    unfinished.replace(ANSWER_FILE)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # HiGHS's threads are not waited for
