# SPDX-License-Identifier: Apache-2.0
"""Host time of a tiny call (b1 h8 s16 d64, float32, one thread) against torch SDPA, interleaved.

    python benchmarks/host_cost.py [--json FILE] [--rounds N] [--no-compile]

Ratios are ours over SDPA's: smaller is better. `again` is SDPA a second time: the noise floor. `raw` is the raw
operator alone; the group of one row has next to no arithmetic.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from measure import Candidates, both_ways, compiled_candidates, interleaved, machine

import cynosure
from cynosure._operators import CAUSAL, plain_output

sdpa = torch.nn.functional.scaled_dot_product_attention


def candidates(compiled: bool) -> dict[str, Candidates]:
    torch.manual_seed(0)
    base = [torch.randn(1, 16, 8, 64) for _ in range(3)]
    plain = [x.transpose(1, 2) for x in base]
    grad = [x.clone().requires_grad_() for x in base]
    plain_grad = [x.clone().requires_grad_() for x in plain]
    out = torch.randn(1, 16, 8, 64)

    def theirs(q: Any, k: Any, v: Any) -> Any:
        return sdpa(q, k, v, is_causal=True)

    def ours(q: Any, k: Any, v: Any) -> Any:
        return cynosure.attention(q, k, v, causal=True)

    def drop_in(q: Any, k: Any, v: Any) -> Any:
        return cynosure.scaled_dot_product_attention(q, k, v, is_causal=True)

    rest = (CAUSAL, cynosure.Settings.current().word)
    row = [x[:, :1].contiguous() for x in base]
    plain_row = [x.transpose(1, 2) for x in row]
    result: dict[str, Candidates] = {
        "no grad": {
            "sdpa": lambda: theirs(*plain),
            "again": lambda: theirs(*plain),
            "attention": lambda: ours(*base),
            "drop-in": lambda: drop_in(*plain),
            "raw": lambda: plain_output(*base, *rest),
        },
        "no grad, one row": {
            "sdpa": lambda: theirs(*plain_row),
            "again": lambda: theirs(*plain_row),
            "attention": lambda: ours(*row),
            "raw": lambda: plain_output(*row, *rest),
        },
        "forward with grad": {
            "sdpa": lambda: theirs(*plain_grad),
            "again": lambda: theirs(*plain_grad),
            "attention": lambda: ours(*grad),
            "drop-in": lambda: drop_in(*plain_grad),
        },
        "forward + backward": {
            "sdpa": both_ways(theirs, plain_grad, out.transpose(1, 2)),
            "again": both_ways(theirs, plain_grad, out.transpose(1, 2)),
            "attention": both_ways(ours, grad, out),
            "drop-in": both_ways(drop_in, plain_grad, out.transpose(1, 2)),
        },
    }
    if compiled:
        result |= compiled_candidates(theirs, ours, (plain, plain_grad, out.transpose(1, 2)), (base, grad, out))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, group in candidates(not args.no_compile).items():
        seconds = interleaved(group, args.rounds, 300)
        for who, times in seconds.items():
            against = statistics.median([t / s for t, s in zip(times, seconds["sdpa"], strict=True)])
            rows.append(
                {"call": name, "who": who, "us": round(statistics.median(times) * 1e6, 2), "ratio": round(against, 3)}
            )
            print(f"{name:30} {who:10} {rows[-1]['us']:8.2f} us  {rows[-1]['ratio']:6.3f}")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
