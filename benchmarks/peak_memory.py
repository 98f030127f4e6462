# SPDX-License-Identifier: Apache-2.0
"""Peak memory of forward + backward on the CPU at one length and at twice that length.

    python benchmarks/peak_memory.py [--json FILE] [--length N]

Each call runs in a process of its own: batch 1, 8 heads, head dim 64, float32, causal. `grown` is the peak resident set
less what was resident before the inputs were made; linear in the length means a ratio of 2.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

BACKENDS = ("cpu", "unfused", "sdpa")


def peak() -> int:
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one_call(backend: str, length: int) -> None:
    import torch

    import cynosure

    def run(n: int) -> None:
        q, k, v = (torch.randn(1, n, 8, 64, requires_grad=True) for _ in range(3))
        if backend == "sdpa":
            q_, k_, v_ = (x.transpose(1, 2) for x in (q, k, v))
            out = torch.nn.functional.scaled_dot_product_attention(q_, k_, v_, is_causal=True)
        else:
            out = cynosure.attention(q, k, v, causal=True, backend=backend)
        out.sum().backward()

    run(64)  # what the first call alone needs
    before = peak()
    run(length)
    print(json.dumps({"before": before, "peak": peak()}))


def measured(backend: str, length: int) -> dict[str, int | str]:
    command = [sys.executable, __file__, "--call", backend, "--length", str(length)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    grown = found["peak"] - found["before"]
    return {"backend": backend, "length": length, "peak_mib": found["peak"] >> 20, "grown_mib": grown >> 20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--call", choices=BACKENDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.call:
        one_call(args.call, args.length)
        return
    from measure import machine

    rows = []
    for backend in ("cpu", "sdpa"):  # unfused holds all scores: 17 GB at 16,384
        pair = [measured(backend, length) for length in (args.length, 2 * args.length)]
        ratio = pair[1]["grown_mib"] / pair[0]["grown_mib"]  # type: ignore[operator]
        rows += [pair[0], pair[1] | {"ratio": round(ratio, 3)}]
        for row in rows[-2:]:
            print(row)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
