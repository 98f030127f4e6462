# SPDX-License-Identifier: Apache-2.0
"""A stream of new lengths on a GPU: 200 calls over 64 lengths in random order (b2 h16 d128, bfloat16, causal).

    python benchmarks/gpu_new_lengths.py [--json FILE] [--rounds N]

Each way runs in a process of its own, once cold and then warm. Loading the libraries is not counted: one call of
another head dim comes first. `ragged`: the same calls of Cynosure stated as a ragged batch, whose longest length is
rounded up, so that many lengths share one plan: what a backend with such buckets would gain, and at what kernel time.
`kernel`: device time of a call in a CUDA graph, by length, with the plan of a rounded length over that of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import after_the_gpu, gpu, machine

import cynosure

WAYS = ("sdpa", "attention", "ragged")
BATCH, HEADS, WIDTH = 2, 16, 128


def stream() -> list[int]:
    """200 lengths, 64 of them different, each at least once; none a multiple of 8."""
    pick = random.Random(0)
    lengths = pick.sample([n for n in range(100, 4097) if n % 8], 64)
    calls = lengths + pick.choices(lengths, k=200 - len(lengths))
    pick.shuffle(calls)
    return calls


def rounded(length: int, bits: int = 3) -> int:
    """Up to so many leading bits."""
    step = 1 << max(0, length.bit_length() - bits)
    return -(-length // step) * step


def tensors(way: str, length: int, width: int, grad: bool) -> list[Any]:
    shape = {
        "sdpa": (BATCH, HEADS, length, width),
        "attention": (BATCH, length, HEADS, width),
        "ragged": (BATCH * length, HEADS, width),
    }[way]
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=grad) for _ in range(3)]


def ragged(inputs: list[Any], cu: Any, most: int) -> Any:
    return cynosure.attention(
        *inputs, layout="thd", causal=True, backend="cudnn",
        cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=most, max_seqlen_k=most,
    )  # fmt: skip


def starts(length: int) -> Any:
    return torch.tensor([0, length, 2 * length], device="cuda", dtype=torch.int32)


def call(way: str, length: int, width: int, grad: bool) -> Callable[[], Any]:
    inputs = tensors(way, length, width, grad)
    cu = starts(length)

    def forward() -> Any:
        if way == "sdpa":
            return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
        if way == "attention":
            return cynosure.attention(*inputs, causal=True, backend="cudnn")
        return ragged(inputs, cu, rounded(length))

    if not grad:
        return forward
    gradient = torch.randn_like(inputs[0])
    return lambda: torch.autograd.grad(forward(), inputs, gradient)


def run_stream(way: str, grad: bool, rounds: int) -> dict[str, Any]:
    """What one process measures."""
    call(way, 64, 64, grad)()
    calls = stream()
    ready = {length: call(way, length, WIDTH, grad) for length in set(calls)}
    cynosure.ledgers.clear()
    result: dict[str, Any] = {"way": way, "direction": "forward + backward" if grad else "forward"}
    walls, each = [], []
    for _ in range(1 + rounds):
        each = []
        start = after_the_gpu()
        for length in calls:
            before = time.perf_counter()
            ready[length]()
            each.append(time.perf_counter() - before)
        walls.append(after_the_gpu() - start)
        result.setdefault("cold_worst_ms", round(max(each) * 1e3, 3))
    result |= {"cold_ms": round(walls[0] * 1e3, 2), "warm_ms": round(statistics.median(walls[1:]) * 1e3, 2)}
    result |= {"warm_worst_ms": round(max(each) * 1e3, 3)}
    ledger = cynosure.ledger()
    for name, builds in (("forward", ledger.forward_builds), ("backward", ledger.backward_builds)):
        result[f"{name}_builds"] = builds.to_dict()
    return result


def captured(function: Callable[[], Any]) -> Any:
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            function()
    return graph


def timed(graph: Any) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / 20


def forwards(length: int) -> dict[str, Callable[[], Any]]:
    """The same forward: dense with its own length (twice), and ragged with bounds of its own and rounded."""
    cu, packed = starts(length), tensors("ragged", length, WIDTH, False)
    dense = [x.view(BATCH, length, HEADS, WIDTH) for x in packed]

    def bounded(most: int) -> Callable[[], Any]:
        return lambda: ragged(packed, cu, most)

    def plain() -> Any:
        return cynosure.attention(*dense, causal=True, backend="cudnn")

    return {
        "dense": plain,
        "again": plain,
        "ragged": bounded(length),
        "rounded to 4 bits": bounded(rounded(length, 4)),
        "rounded to 3 bits": bounded(rounded(length)),
    }


def kernel_times(rounds: int) -> list[dict[str, Any]]:
    """Microseconds of each of `forwards`, of a few lengths."""
    rows = []
    for length in sorted(random.Random(1).sample(sorted(set(stream())), 12)):
        ways = forwards(length)  # alive as long as the graphs, which read its tensors
        graphs = {name: captured(function) for name, function in ways.items()}
        times: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(rounds):
            order = list(graphs)
            random.shuffle(order)
            for name in order:
                times[name].append(timed(graphs[name]))
        us = {name: round(statistics.median(values), 2) for name, values in times.items()}
        rows.append({"length": length, "us": us, "over dense": {n: round(t / us["dense"], 3) for n, t in us.items()}})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--one", nargs=2, metavar=("WAY", "DIRECTION"), help="in this process alone")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(run_stream(args.one[0], args.one[1] == "both", args.rounds)))
        return
    rows = []
    for direction in ("forward", "both"):
        for way in WAYS:
            command = [sys.executable, __file__, "--rounds", str(args.rounds), "--one", way, direction]
            text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            rows.append(json.loads(text.splitlines()[-1]))
            print(rows[-1], flush=True)
    kernels = kernel_times(31)
    for row in kernels:
        print(row)
    if args.json:
        record = {"machine": {**machine(), **gpu()}, "streams": rows, "kernel": kernels}
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
