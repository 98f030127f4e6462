# SPDX-License-Identifier: Apache-2.0
"""What the timed scripts share: rounds of interleaved candidates, and a description of the machine."""

from __future__ import annotations

import os
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch

import cynosure
from cynosure._detect import detect

Candidates = dict[str, Callable[[], Any]]


def interleaved(
    candidates: Candidates, rounds: int, calls: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds a call, by candidate and round; each round runs all of them in an order of its own."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for function in candidates.values():
        function()
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        order = list(candidates)
        shuffle(order)
        for name in order:
            function = candidates[name]
            start = clock()
            for _ in range(calls):
                function()
            seconds[name].append((clock() - start) / calls)
    return seconds


def ratio(seconds: dict[str, list[float]], peer: str, ours: str) -> float:
    """The peer's time over ours: the median over rounds, which a disturbed round does not move."""
    return statistics.median([theirs / mine for theirs, mine in zip(seconds[peer], seconds[ours], strict=True)])


def machine() -> dict[str, Any]:
    """Where and with what this ran."""
    found = detect()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "cpu": found.cpu_name,
        "isa": found.cpu_isa,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cynosure": cynosure.__version__,
        "commit": commit or "unknown",
        "load": round(os.getloadavg()[0], 1),
    }


def gpu() -> dict[str, Any]:
    """The GPU and what drives it."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().partition("\n")[0]
    major, rest = divmod(torch.backends.cudnn.version() or 0, 10000)
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver or "unknown",
        "cuda": torch.version.cuda,
        "cudnn": f"{major}.{rest // 100}.{rest % 100}",
    }


def after_the_gpu() -> float:
    """A clock that waits for the GPU first."""
    torch.cuda.synchronize()
    return time.perf_counter()
