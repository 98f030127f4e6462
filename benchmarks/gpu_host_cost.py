# SPDX-License-Identifier: Apache-2.0
"""Host time of a tiny call on a GPU (b1 h8 s128 d64, bfloat16) against torch SDPA, interleaved and shuffled.

    python benchmarks/gpu_host_cost.py [--json FILE] [--rounds N] [--compile]

The GPU is done with such a call before the next one is ready, so that the time is the host's. Ratios are ours over
SDPA's: smaller is better. `again` is SDPA a second time: the noise floor. `named`: with backend="cudnn"; `raw`: the
operator alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from measure import Candidates, after_the_gpu, both_ways, compiled_candidates, gpu, interleaved, machine
from torch.nn.attention import SDPBackend
from torch.nn.attention.varlen import varlen_attn

import cynosure
from cynosure._operators import CAUSAL, plain_output

sdpa = torch.nn.functional.scaled_dot_product_attention


def switched_to(backend: SDPBackend) -> None:
    """SDPA runs one backend from here on: no context manager within the timed calls."""
    torch.backends.cuda.enable_cudnn_sdp(backend == SDPBackend.CUDNN_ATTENTION)
    torch.backends.cuda.enable_flash_sdp(backend == SDPBackend.FLASH_ATTENTION)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)


def candidates(compiled: bool) -> dict[str, Candidates]:
    torch.manual_seed(0)
    base = [torch.randn(1, 128, 8, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    plain = [x.transpose(1, 2) for x in base]
    grad = [x.clone().requires_grad_() for x in base]
    plain_grad = [x.clone().requires_grad_() for x in plain]
    out = torch.randn_like(base[0])
    tokens = [x[0] for x in base]
    cu = torch.tensor([0, 30, 128], device="cuda", dtype=torch.int32)

    def theirs(q: Any, k: Any, v: Any) -> Any:
        return sdpa(q, k, v, is_causal=True)

    def ours(q: Any, k: Any, v: Any) -> Any:
        return cynosure.attention(q, k, v, causal=True)  # cudnn, by the policy

    def named(q: Any, k: Any, v: Any) -> Any:
        return cynosure.attention(q, k, v, causal=True, backend="cudnn")

    def ragged() -> Any:
        return cynosure.attention(
            *tokens, layout="thd", causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=98, max_seqlen_k=98,
        )  # fmt: skip

    word = cynosure.Settings.current().word
    result: dict[str, Candidates] = {
        "forward": {
            "sdpa": lambda: theirs(*plain),
            "again": lambda: theirs(*plain),
            "attention": lambda: ours(*base),
            "named": lambda: named(*base),
            "raw": lambda: plain_output(*base, CAUSAL, word),
        },
        "forward + backward": {
            "sdpa": both_ways(theirs, plain_grad, out.transpose(1, 2)),
            "again": both_ways(theirs, plain_grad, out.transpose(1, 2)),
            "attention": both_ways(ours, grad, out),
        },
        "ragged forward": {
            "sdpa": lambda: varlen_attn(*tokens, cu, cu, 98, 98, window_size=(-1, 0)),
            "again": lambda: varlen_attn(*tokens, cu, cu, 98, 98, window_size=(-1, 0)),
            "attention": ragged,
        },
    }
    if compiled:
        result |= compiled_candidates(theirs, ours, (plain, plain_grad, out.transpose(1, 2)), (base, grad, out))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    rows = []
    before = len(cynosure.ledger())
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        switched_to(backend)
        peer = "sdpa cudnn" if backend == SDPBackend.CUDNN_ATTENTION else "sdpa flash"
        for name, group in candidates(args.compile).items():
            if name == "ragged forward":
                peer = "varlen_attn"
            seconds = interleaved(group, args.rounds, 200, after_the_gpu)
            for who, times in seconds.items():
                against = statistics.median([t / s for t, s in zip(times, seconds["sdpa"], strict=True)])
                us = round(statistics.median(times) * 1e6, 2)
                who = peer if who == "sdpa" else who
                rows.append({"call": name, "peer": peer, "who": who, "us": us, "ratio": round(against, 3)})
                print(f"{name:30} against {peer:12} {who:12} {us:8.2f} us  {against:6.3f}")
            peer = "sdpa cudnn" if backend == SDPBackend.CUDNN_ATTENTION else "sdpa flash"
    chosen = {entry.decision.backend for entry in list(cynosure.ledger())[before:]}
    if chosen != {cynosure.Backend.cudnn}:
        raise SystemExit(f"ran {chosen}, not cudnn alone")
    if args.json:
        record = {"machine": {**machine(), **gpu()}, "rows": rows}
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
