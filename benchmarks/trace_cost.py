# SPDX-License-Identifier: Apache-2.0
"""What selection costs: a traced call site, the guards of a compiled call, an eager call.

    python benchmarks/trace_cost.py [--json FILE] [--rounds N]

Subjects are interleaved, so that a busy machine slows all of them alike; the median and the least are given.

* trace: thread CPU time of tracing 11 call sites less that of 1, over 10, all warm.
* guards: the guards of a compiled function with a selection, checked as torch checks them before each call, less those
  of the same function without, in which everything else that is guarded stays.
* eager: wall time a call. `prepared` has a Problem and nothing else; `given` has a device and settings too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.eval_frame import _debug_get_cache_entry_list as compiled_entries

import cynosure
from cynosure import AttentionParams, Device, Problem, Settings, get_attention_backend, select

H200 = Device.named("h200")
SETTINGS = Settings()
PROBLEM = Problem(heads=8, seqlen_q=128, head_dim=64, causal=True)
RECORD = AttentionParams(core_attention_bias_shape=None, qkv_layout="bshd_bshd_bshd")
X = torch.zeros(2, 128, dtype=torch.bfloat16)


def shapes(x: Any) -> Any:
    """What a caller reads of its tensor anyway."""
    return x.shape[0], x.shape[1], x.dtype


def problem_and_select(x: Any) -> Any:
    return select(
        Problem(batch=x.shape[0], heads=8, seqlen_q=x.shape[1], head_dim=64, causal=True, dtype=x.dtype), H200
    )


TRACED: dict[str, Callable[[Any], Any]] = {
    "the caller's own shape reads": shapes,
    "Problem and select": problem_and_select,
    "select of a prepared problem": lambda x: select(PROBLEM, H200),
    "the same, settings given": lambda x: select(PROBLEM, H200, SETTINGS),
    "get_attention_backend of a given record": lambda x: get_attention_backend(RECORD, H200),
}
EAGER: dict[str, Callable[[], Any]] = {
    "select, prepared": lambda: select(PROBLEM),
    "select, given": lambda: select(PROBLEM, H200, SETTINGS),
    "get_attention_backend, 35 fields": lambda: get_attention_backend(RECORD),
    "Problem": lambda: Problem(heads=8, seqlen_q=128, head_dim=64, causal=True),
}


def traced_ms(site: Callable[[Any], Any], sites: int) -> float:
    torch._dynamo.reset()

    def function(x: Any) -> Any:
        for _ in range(sites):
            site(x)
        return x

    start = time.thread_time()
    torch.compile(function, fullgraph=True, backend="eager", dynamic=True)(X)
    return (time.thread_time() - start) * 1e3


Figures = dict[str, float]


def summary(values: list[float], base: list[float] | None = None, share: int = 1) -> Figures:
    """Median and least, less those of a base; a difference of two minima is steadier than the least difference."""
    low, middle = (0.0, 0.0) if base is None else (min(base), statistics.median(base))
    return {
        "median": round((statistics.median(values) - middle) / share, 3),
        "min": round((min(values) - low) / share, 3),
    }


def trace(rounds: int) -> dict[str, Figures]:
    times: dict[tuple[str, int], list[float]] = {(name, sites): [] for name in TRACED for sites in (1, 11)}
    for site in TRACED.values():
        traced_ms(site, 2)
    for _ in range(rounds):
        for name, site in TRACED.items():
            for sites in (1, 11):
                times[name, sites].append(traced_ms(site, sites))
    return {name: summary(times[name, 11], times[name, 1], 10) for name in TRACED}


def guards(rounds: int, calls: int = 200) -> dict[str, Figures]:
    """Microseconds a compiled call, of functions that differ in the selection alone."""

    def bare(x: Any) -> Any:
        return x + 1 if x.shape[0] > 0 and x.shape[1] > 0 else x

    def with_select(x: Any) -> Any:
        return x + 1 if problem_and_select(x).backend is not None else x

    def with_record(x: Any) -> Any:
        return x + 1 if get_attention_backend(RECORD, H200)[2] else x

    torch._dynamo.reset()
    torch._dynamo.maybe_mark_dynamic(X, (0, 1))
    checks: dict[str, Callable[[dict[str, Any]], bool]] = {}
    for name, function in (
        ("bare", bare),
        ("Problem and select", with_select),
        ("get_attention_backend of a given record", with_record),
    ):
        torch.compile(function, fullgraph=True, backend="eager")(X)
        (entry,) = compiled_entries(function.__code__)
        checks[name] = entry.guard_manager.check
        assert checks[name]({"x": X})
    times: dict[str, list[float]] = {name: [] for name in checks}
    for _ in range(rounds * 50):
        for name, check in checks.items():
            arguments = {"x": X}
            start = time.perf_counter()
            for _ in range(calls):
                check(arguments)
            times[name].append((time.perf_counter() - start) / calls * 1e6)
    base = times.pop("bare")
    return {"the same without": summary(base), **{name: summary(values, base) for name, values in times.items()}}


def eager(rounds: int, calls: int = 200) -> dict[str, Figures]:
    times: dict[str, list[float]] = {name: [] for name in EAGER}
    for _ in range(rounds * 50):
        for name, call in EAGER.items():
            start = time.perf_counter()
            for _ in range(calls):
                call()
            times[name].append((time.perf_counter() - start) / calls * 1e6)
    return {name: summary(values) for name, values in times.items()}


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()

    load = os.getloadavg()[0]
    result: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cynosure": cynosure.__version__,
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": [round(load, 2)],
    }
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {result['processor']}, load {load:.1f}")
    parts = (
        ("trace", "ms a call site", trace),
        ("guards", "us a compiled call", guards),
        ("eager", "us a call", eager),
    )
    for part, unit, measure in parts:
        print(f"{part}: {unit}")
        result[part] = {"unit": unit}
        for name, figures in measure(options.rounds).items():
            result[part][name] = figures
            print(f"  {name:42s} median {figures['median']:7.2f}   min {figures['min']:7.2f}")
    result["load"].append(round(os.getloadavg()[0], 2))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
