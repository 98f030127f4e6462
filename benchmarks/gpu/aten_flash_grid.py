# SPDX-License-Identifier: Apache-2.0
"""Our rules of `aten_flash` against torch's FlashAttention 2 itself, over random small problems on this GPU.

    PYTHONPATH=tests/python/attend python benchmarks/gpu/aten_flash_grid.py --out FILE [--count N] [--seconds S]

Every problem has a float64 reference, forward and gradients. Where the rules let a problem through, the backend has to
be right; where they refuse it, torch's operator is called directly, to see whether the refusal is needed. Resumable: a
problem that FILE has is not run again. One that ends the process (an illegal memory access) is written down before it
runs, and counts as such when the next run finds it so.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from cases import Case, Inputs, make, random_case
from checks import compare, run
from reference import Results, gradients_of, magnitudes, plain, reference
from torch import Tensor
from torch.nn.functional import pad

import cynosure

SEED = 5
STARTED = "started"


def case_of(number: int) -> Case:
    """Problem `number`: random, without what torch's operator has no argument for."""
    case = random_case(random.Random(SEED * 1_000_003 + number), 70 if number % 4 else 300)
    dtype = case.dtype if case.dtype in ("bfloat16", "float16") else ("bfloat16", "float16")[number % 2]
    dim = -(-case.dqk // 8) * 8
    odd = number % 8 == 0  # unequal head dims and such that are no multiples of 8
    return replace(
        case,
        dtype=dtype,
        dqk=case.dqk if odd else dim,
        dv=case.dv if odd else dim,
        lengths=case.lengths if case.ragged else "full",
        poison=False,
        lse="returned" if case.lse else "",
        bias="",
        mask="",
        mask_grad=False,
        masked_rows=False,
        softcap=0.0,
        sinks="",
        dropout=0.0,
        gradients=case.gradients and not (case.alibi and number % 2),
    )


def in_order(case: Case, t: Tensor) -> Tensor:
    """[B, S, H, D] and the call's layout: the way is the same in both directions."""
    return {"sbhd": t.transpose(0, 1), "bhsd": t.transpose(1, 2)}.get(case.layout, t) if t.dim() == 4 else t


def direct(inputs: Inputs) -> Results:
    """torch's operator with the same meaning of every argument that it has; what it leaves unwritten is cleared."""
    case, leaves = inputs.case, inputs.copy()
    arguments = inputs.arguments(leaves)
    width = arguments["v"].shape[-1]
    q, k, v = (
        pad(in_order(case, arguments[n]), (0, -arguments[n].shape[-1] % 8)).contiguous() for n in ("q", "k", "v")
    )
    ragged = case.ragged
    starts = (arguments["cu_seqlens_q"], arguments["cu_seqlens_k"]) if ragged else (None, None)
    most = (max(inputs.lengths_q), max(inputs.lengths_k)) if ragged else (q.shape[1], k.shape[1])
    scale = arguments.get("scale")
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, *starts, *most, 0.0, case.causal, False,
        scale=case.dqk**-0.5 if scale is None else scale,
        window_size_left=case.window[0], window_size_right=-1 if case.causal else case.window[1],
        alibi_slopes=None if arguments.get("alibi_slopes") is None else arguments["alibi_slopes"].float(),
    )  # fmt: skip
    out = in_order(case, out[..., :width])
    if ragged:
        total = sum(inputs.lengths_q)
        out = torch.cat([out[:total], torch.zeros_like(out[total:])])
        lse = torch.cat([lse[:, :total], torch.full_like(lse[:, total:], float("-inf"))], 1)
    lse = lse.masked_fill(lse == float("inf"), float("-inf")).detach()
    gradients = gradients_of(inputs, leaves, out, None)
    return Results(out.detach(), lse if case.lse else torch.zeros(()), gradients)


def judged(inputs: Inputs, results: Results) -> str:
    """`right`, or in what it is wrong."""
    try:
        compare(inputs, results, reference(inputs), plain(inputs), magnitudes(inputs), exact_weights=False)
    except AssertionError as error:
        return str(error).partition("\n")[0]
    return "right"


def outcome(case: Case) -> dict[str, Any]:
    """One problem."""
    inputs = make(case, "cuda")
    found: dict[str, Any] = {"case": repr(case)}
    try:
        results = run(inputs, "aten_flash")
    except cynosure.NoBackendError:
        arguments = inputs.arguments()
        q, k, v = (arguments.pop(name) for name in ("q", "k", "v"))
        decision = cynosure.explain(q, k, v, **arguments, backend="aten_flash").decision
        found["refused"] = sorted({reason.rule for reason in decision.reasons[cynosure.Backend.aten_flash]})
        try:
            found["torch"] = judged(inputs, direct(inputs))
        except Exception as error:  # whatever torch says
            found["torch"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        return found
    except RuntimeError as error:
        found["ours"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
        return found
    found["ours"] = judged(inputs, results)
    return found


def summary(problems: dict[str, Any]) -> dict[str, Any]:
    """Counts, and both kinds of disagreement."""
    values = [p for p in problems.values() if p != STARTED]
    allowed = [p for p in values if "ours" in p]
    refused = [p for p in values if "refused" in p]
    needless = [p for p in refused if p["torch"] == "right"]
    return {
        "problems": len(values),
        "allowed": len(allowed),
        "allowed_but_wrong": [p for p in allowed if p["ours"] != "right"],
        "refused": len(refused),
        "refused_but_right": dict(Counter(" ".join(p["refused"]) for p in needless)),
        "refused_and_torch_refuses_or_is_wrong": dict(
            Counter(" ".join(p["refused"]) for p in refused if p["torch"] != "right")
        ),
        "ended_the_process": [n for n, p in problems.items() if p == STARTED],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    kept = json.loads(options.out.read_text()) if options.out.exists() else {"problems": {}}
    problems = kept["problems"]
    head = {
        "what": "rules of aten_flash against torch's FlashAttention 2",
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "seed": SEED,
    }

    def save() -> None:
        options.out.write_text(
            json.dumps({**head, "summary": summary(problems), "problems": problems}, indent=1) + "\n"
        )

    end = time.monotonic() + options.seconds
    for number in range(options.count):
        if str(number) in problems:
            continue
        if time.monotonic() > end:
            break
        problems[str(number)] = STARTED
        try:
            problems[str(number)] = outcome(case_of(number))
            torch.cuda.synchronize()
        except torch.AcceleratorError:
            problems[str(number)] = STARTED
            save()
            raise
        if number % 100 == 0:
            save()
    save()
    print(json.dumps(summary(problems), indent=1))


if __name__ == "__main__":
    main()
