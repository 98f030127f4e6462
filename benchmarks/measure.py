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


def both_ways(function: Callable[..., Any], inputs: list[Any], gradient: Any) -> Callable[[], Any]:
    """A call, and the gradients of its inputs."""
    return lambda: torch.autograd.grad(function(*inputs), inputs, gradient)


def compiled_candidates(
    theirs: Callable[..., Any], ours: Callable[..., Any], of_theirs: tuple[Any, ...], of_ours: tuple[Any, ...]
) -> dict[str, Candidates]:
    """Both compiled for any length. The tuples: inputs, inputs that want a gradient, the gradient that comes in."""
    their, our = (torch.compile(f, fullgraph=True, dynamic=True) for f in (theirs, ours))
    return {
        "compiled forward": {
            "sdpa": lambda: their(*of_theirs[0]),
            "again": lambda: their(*of_theirs[0]),
            "attention": lambda: our(*of_ours[0]),
        },
        "compiled forward + backward": {
            "sdpa": both_ways(their, *of_theirs[1:]),
            "again": both_ways(their, *of_theirs[1:]),
            "attention": both_ways(our, *of_ours[1:]),
        },
    }


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
