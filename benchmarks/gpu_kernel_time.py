# SPDX-License-Identifier: Apache-2.0
"""Device time of attention on a GPU: ours on cuDNN against SDPA pinned to cuDNN and to flash, in CUDA graphs.

    python benchmarks/gpu_kernel_time.py [--json FILE] [--rounds N]

Each candidate is captured once and replayed; rounds are interleaved in an order of their own, because a GPU that was
just busy is slower than one that was idle. `ratio`: over SDPA's on cuDNN, median of rounds; `again` is that a second
time, the noise floor. `share`: of the rate that a matrix product (8192^3, bfloat16) reaches in the same rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measure import gpu, machine
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn

import cynosure

Run = Callable[[], Any]
sdpa = torch.nn.functional.scaled_dot_product_attention


class Shape(NamedTuple):
    name: str
    batch: int
    heads: int
    kv_heads: int
    rows: int
    keys: int
    dim: int
    causal: bool
    backward: bool


SHAPES = (
    Shape("train 2k", 8, 32, 8, 2048, 2048, 128, True, True),
    Shape("train 8k", 2, 32, 32, 8192, 8192, 128, True, True),
    Shape("train 1k d64", 16, 16, 16, 1024, 1024, 64, True, True),
    Shape("prefill 2k", 8, 32, 8, 2048, 2048, 128, True, False),
    Shape("prefill 8k", 2, 32, 32, 8192, 8192, 128, True, False),
    Shape("prefill 32k", 1, 16, 16, 32768, 32768, 128, True, False),
    Shape("no mask 1k d64", 16, 16, 16, 1024, 1024, 64, False, False),
    Shape("decode", 32, 32, 8, 1, 4096, 128, False, False),
)
RAGGED = (512, 100, 2048, 1300)


def flops(shape: Shape) -> float:
    forward = 4.0 * shape.batch * shape.heads * shape.rows * shape.keys * shape.dim * (0.5 if shape.causal else 1.0)
    return forward * (3.5 if shape.backward else 1.0)


class Graphed(NamedTuple):
    """A captured call, with what keeps its tensors alive."""

    graph: torch.cuda.CUDAGraph
    run: Run


def graphed(run: Run) -> Graphed:
    """One call, captured when warm."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        run()
    return Graphed(graph, run)


def with_backward(forward: Callable[..., Any], inputs: list[Any], gradient: Any) -> Run:
    return lambda: torch.autograd.grad(forward(*inputs), inputs, gradient)


def candidates(shape: Shape) -> dict[str, Graphed]:
    def tensor(length: int, heads: int) -> Any:
        made = torch.randn(shape.batch, length, heads, shape.dim, device="cuda", dtype=torch.bfloat16)
        return made.requires_grad_(shape.backward)

    ours = [tensor(shape.rows, shape.heads), tensor(shape.keys, shape.kv_heads), tensor(shape.keys, shape.kv_heads)]
    theirs = [x.detach().transpose(1, 2).requires_grad_(shape.backward) for x in ours]
    gradient = torch.randn_like(ours[0])

    def our(q: Any, k: Any, v: Any) -> Any:
        return cynosure.attention(q, k, v, causal=shape.causal, backend="cudnn")

    def their(q: Any, k: Any, v: Any) -> Any:
        return sdpa(q, k, v, is_causal=shape.causal, enable_gqa=shape.heads != shape.kv_heads)

    def run(forward: Callable[..., Any], inputs: list[Any], gradient: Any) -> Run:
        if shape.backward:
            return with_backward(forward, inputs, gradient)
        return lambda: forward(*inputs)

    found = {"cynosure": graphed(run(our, ours, gradient))}
    for name, backend in (
        ("sdpa cudnn", SDPBackend.CUDNN_ATTENTION),
        ("again", SDPBackend.CUDNN_ATTENTION),
        ("sdpa flash", SDPBackend.FLASH_ATTENTION),
    ):
        with sdpa_kernel(backend):
            found[name] = graphed(run(their, theirs, gradient.transpose(1, 2)))
    return found


def ragged_candidates() -> dict[str, Graphed]:
    """A ragged batch of RAGGED, 32 heads of 128: once as thd, once a captured loop of calls, once varlen_attn."""
    cu = torch.tensor([0, *torch.tensor(RAGGED).cumsum(0).tolist()], device="cuda", dtype=torch.int32)
    q, k, v = (torch.randn(sum(RAGGED), 32, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    longest = max(RAGGED)
    bounds = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": longest, "max_seqlen_k": longest}
    starts = cu.tolist()

    def loop() -> Any:
        for a, b in itertools.pairwise(starts):
            part = [x[None, a:b].transpose(1, 2) for x in (q, k, v)]
            sdpa(*part, is_causal=True)

    found = {
        "cynosure": graphed(lambda: cynosure.attention(q, k, v, layout="thd", causal=True, backend="cudnn", **bounds))
    }
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        found["sdpa cudnn"] = graphed(loop)
        found["again"] = graphed(loop)
    found["varlen_attn"] = graphed(lambda: varlen_attn(q, k, v, cu, cu, longest, longest, window_size=(-1, 0)))
    return found


def timed(graphs: dict[str, Graphed], rounds: int, replays: int) -> dict[str, list[float]]:
    """Microseconds a replay, by candidate and round."""
    found: dict[str, list[float]] = {name: [] for name in graphs}
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        order = list(graphs)
        shuffle(order)
        for name in order:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(replays):
                graphs[name].graph.replay()
            end.record()
            end.synchronize()
            found[name].append(begin.elapsed_time(end) * 1e3 / replays)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.manual_seed(0)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    rows = []
    work: list[tuple[str, float, Callable[[], dict[str, Graphed]]]] = [
        (shape.name, flops(shape), lambda shape=shape: candidates(shape))  # type: ignore[misc]
        for shape in SHAPES
    ]
    work.append(("ragged 512,100,2048,1300", sum(2.0 * 32 * n * n * 128 for n in RAGGED), ragged_candidates))
    for name, count, make in work:
        graphs = {**make(), "product": graphed(lambda: torch.matmul(a, b))}
        times = timed(graphs, args.rounds, 5)
        rate = 2.0 * 8192**3 / statistics.median(times.pop("product"))
        for who, us in times.items():
            against = statistics.median([t / s for t, s in zip(us, times["sdpa cudnn"], strict=True)])
            row = {
                "call": name,
                "who": who,
                "us": round(statistics.median(us), 1),
                "ratio": round(against, 3),
                "tflops": round(count / statistics.median(us) / 1e6, 1),
                "share": round(count / statistics.median(us) / rate, 3),
            }
            rows.append(row)
            reached = f"{row['tflops']:6.1f} TFLOP/s  {row['share']:.3f}"
            print(f"{name:26} {who:12} {row['us']:9.1f} us  {against:6.3f}  {reached}")
    if args.json:
        record = {"machine": {**machine(), **gpu()}, "product_tflops": round(rate / 1e6, 1), "rows": rows}
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
