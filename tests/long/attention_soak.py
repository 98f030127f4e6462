# SPDX-License-Identifier: Apache-2.0
"""Random attention calls on every backend of this build, against the definition, until the time is over.

    python tests/long/attention_soak.py [SECONDS] [SEED]

Prints a reproducer for each failure, and exits 1 if there was one.
"""

from __future__ import annotations

import random
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python" / "attend"))

from cases import Case, random_case
from checks import TARGETS, check, refused

import cynosure

REPRODUCER = """\
# from tests/python/attend
from cases import Case
from checks import check
check({case!r}, {backend!r}, {device!r})
"""


def failure(case: Case, backend: str, device: str) -> str | None:
    """What went wrong with this case, as text."""
    try:
        check(case, backend, device)
    except cynosure.NoBackendError as error:
        if backend not in ("cpu", "unfused") or refused(case, backend):
            return None
        return f"refused: {str(error).partition(chr(10))[0]}"
    except Exception as error:
        place = "" if isinstance(error, AssertionError) else "".join(traceback.format_tb(error.__traceback__)[-3:])
        return f"{place}{type(error).__name__}: {error}"
    return f"ran, where it should refuse: {refused(case, backend)}" if refused(case, backend) else None


def smaller(case: Case, backend: str, device: str) -> Case:
    """The failing case with every value reset that it does not need in order to fail."""
    plain = Case()
    for name, value in vars(plain).items():
        if name != "seed" and getattr(case, name) != value:
            candidate = Case(**{**vars(case), name: value})
            try:
                if failure(candidate, backend, device):
                    case = candidate
            except Exception:  # values that do not go together
                pass
    return case


def main(seconds: float = 60, seed: int = 0) -> int:
    rng = random.Random(seed)
    start, cases, failures = time.monotonic(), 0, 0
    while time.monotonic() - start < seconds:
        case = random_case(rng, largest=rng.choice((20, 70, 300)))
        cases += 1
        for backend, device in TARGETS:
            problem = failure(case, backend, device)
            if problem:
                failures += 1
                print(
                    f"--- {backend}: {problem}\n{REPRODUCER.format(case=case, backend=backend, device=device)}",
                    flush=True,
                )
                print(f"# smaller: {smaller(case, backend, device)!r}\n", flush=True)
    print(f"{cases} cases on {', '.join(name for name, _ in TARGETS)}, seed {seed}: {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60, int(sys.argv[2]) if len(sys.argv) > 2 else 0))
