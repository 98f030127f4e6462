# SPDX-License-Identifier: Apache-2.0
"""The `cpu` backend against torch SDPA over a grid of lengths and head dims, interleaved.

    python benchmarks/cpu_grid.py [--json FILE] [--dtype float32] [--threads 1] [--quick] [--decode] [--isa avx2]
        [--lengths 128 1024] [--head-dims 64 128] [--groups 1 4] [--seconds 120]

Ratios are SDPA's time over ours: larger is better. `noise` is SDPA over SDPA. The process is pinned to as many cores as
it has threads. With --seconds, cells that do not fit are left out, and the result says so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from measure import interleaved, machine, ratio

import cynosure

sdpa = torch.nn.functional.scaled_dot_product_attention

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
HEAD_DIMS = (64, 80, 96, 128, 256)


def batch_for(length: int, dim: int, heads: int) -> int:
    """So that a forward takes some tens of milliseconds on one thread."""
    work = 4.0 * heads * length * length * dim
    return max(1, min(64, round(4e9 / work)))


def measured(cell: dict[str, Any], rounds: int) -> dict[str, Any]:
    b, h, hkv, sq, sk, d = (cell[name] for name in ("batch", "heads", "kv_heads", "seqlen_q", "seqlen_k", "head_dim"))
    dtype, causal = getattr(torch, cell["dtype"]), cell["causal"]
    q = torch.randn(b, sq, h, d).to(dtype)
    k, v = (torch.randn(b, sk, hkv, d).to(dtype) for _ in range(2))
    qt, kt, vt = (x.transpose(1, 2) for x in (q, k, v))
    gqa = h != hkv

    def theirs() -> Any:
        return sdpa(qt, kt, vt, is_causal=causal, enable_gqa=gqa)

    def ours() -> Any:
        return cynosure.attention(q, k, v, causal=causal, align="top_left", backend="cpu")

    with torch.no_grad():
        forward = interleaved({"sdpa": theirs, "again": theirs, "ours": ours}, rounds, 1)
    result = {
        **cell,
        "forward_ms": round(statistics.median(forward["ours"]) * 1e3, 3),
        "forward": round(ratio(forward, "sdpa", "ours"), 3),
        "noise": round(ratio(forward, "sdpa", "again"), 3),
    }
    if cell["backward"]:
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        plain = [x.detach().transpose(1, 2).requires_grad_() for x in inputs]
        out = torch.randn(b, sq, h, d).to(dtype)

        def theirs_both() -> Any:
            return torch.autograd.grad(sdpa(*plain, is_causal=causal, enable_gqa=gqa), plain, out.transpose(1, 2))

        def ours_both() -> Any:
            return torch.autograd.grad(
                cynosure.attention(*inputs, causal=causal, align="top_left", backend="cpu"), inputs, out
            )

        both = interleaved({"sdpa": theirs_both, "again": theirs_both, "ours": ours_both}, rounds, 1)
        result["both_noise"] = round(ratio(both, "sdpa", "again"), 3)
        result["both_ms"] = round(statistics.median(both["ours"]) * 1e3, 3)
        result["both"] = round(ratio(both, "sdpa", "ours"), 3)
    return result


def cells(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    if args.decode:
        for rows_q in (1, 8):
            for group in (1, 4, 8):
                for dim in (64, 128):
                    rows.append(
                        {"batch": 8, "heads": 32, "kv_heads": 32 // group, "seqlen_q": rows_q, "seqlen_k": 4096,
                         "head_dim": dim, "causal": False, "dtype": args.dtype, "backward": False}
                    )  # fmt: skip
        return rows
    lengths = args.lengths or (LENGTHS[1:5:2] if args.quick else LENGTHS)
    for length in lengths:
        for dim in args.head_dims or ((64, 128) if args.quick else HEAD_DIMS):
            for causal in (False, True):
                for group in args.groups or ((1,) if args.quick else (1, 4)):
                    heads = 8
                    rows.append(
                        {"batch": batch_for(length, dim, heads), "heads": heads, "kv_heads": heads // group,
                         "seqlen_q": length, "seqlen_k": length, "head_dim": dim, "causal": causal,
                         "dtype": args.dtype, "backward": not args.forward_only}
                    )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--lengths", type=int, nargs="+")
    parser.add_argument("--head-dims", type=int, nargs="+")
    parser.add_argument("--groups", type=int, nargs="+")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--isa", choices=["generic", "avx2", "avx512", "amx"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--forward-only", action="store_true")
    args = parser.parse_args()
    if args.isa:
        os.environ["CYNOSURE_CPU_ISA"] = args.isa
    # Set before the pool starts: its threads inherit it.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    rows = []
    wanted = cells(args)
    started = time.monotonic()
    for cell in wanted:
        if time.monotonic() - started > args.seconds:
            break
        rows.append(measured(cell, args.rounds))
        row = rows[-1]
        name = f"{row['batch']}x{row['heads']}/{row['kv_heads']} {row['seqlen_q']}x{row['seqlen_k']} d{row['head_dim']}"
        print(
            f"{name:28} {'causal' if row['causal'] else 'full':6} forward {row['forward_ms']:9.2f} ms "
            f"{row['forward']:6.2f}  both {row.get('both_ms', math.nan):9.2f} ms {row.get('both', math.nan):6.2f}"
            f"  noise {row['noise']:5.2f}",
            flush=True,
        )
    summary = {}
    for what in ("forward", "both"):
        ratios = [row[what] for row in rows if what in row]
        if ratios:
            summary[what] = {"geometric_mean": round(statistics.geometric_mean(ratios), 3), "worst": min(ratios)}
            print(what, summary[what])
    if args.json:
        about = {**machine(), "forced_isa": args.isa, "threads": args.threads, "rounds": args.rounds,
                 "cells_left_out": len(wanted) - len(rows)}  # fmt: skip
        args.json.write_text(
            json.dumps({"machine": about, "summary": summary, "rows": rows}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
