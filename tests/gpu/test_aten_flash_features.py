# SPDX-License-Identifier: Apache-2.0
"""The features of the backend `aten_flash`: the body of tests/python/attend/test_features.py over calls that have a
chance there (16 bits, equal head dims that are multiples of 8, lengths in thd alone, no bias, slopes, mask, cap,
sinks or dropout, no gradient for the LSE)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import Case
from features import all_cases, check_or_skip, dim_of_eights, half


def suited(case: Case, number: int) -> Case:
    """The nearest case that torch's FlashAttention 2 may take."""
    lengths = case.lengths if case.ragged else "full"
    # A masked weight is 0 there, and 0 times NaN is NaN: only what lies behind the lengths is never read.
    poison = case.poison and not case.causal and case.window == (-1, -1) and lengths != "full"
    dim = dim_of_eights(case.dqk)
    return replace(
        case,
        dtype=half(case, number),
        dqk=dim,
        dv=dim,
        lengths=lengths,
        poison=poison,
        lse="returned" if case.lse == "grad" else case.lse,
        bias="",
        mask="",
        mask_grad=False,
        masked_rows=False,
        softcap=0.0,
        sinks="",
        dropout=0.0,
        alibi="",
        align="bottom_right" if case.sq != case.sk or case.ragged else case.align,
    )


def by_hand() -> list[Case]:
    """Every memory and layout over the head dims of each kernel; edges with more queries than keys; decoding."""
    wide = Case(dtype="bfloat16", batch=3, heads=4, kv_heads=2, sq=70, sk=70, causal=True, lse="returned")
    return [
        *(
            replace(wide, layout=layout, strides=strides, dqk=dim, dv=dim, seed=dim)
            for layout in ("bshd", "sbhd", "bhsd", "thd")
            for strides in ("plain", "packed", "transposed", "odd", "last")
            for dim in (32, 64, 96, 128, 192, 256)
        ),
        *(
            replace(wide, layout=layout, sq=sq, sk=sk, causal=causal, window=window, kv_heads=1, dqk=64, dv=64)
            for layout in ("bshd", "thd")
            for sq, sk in ((1, 200), (1, 1), (40, 7), (300, 130), (130, 300))
            for causal, window in ((True, (-1, -1)), (False, (-1, -1)), (True, (5, 0)), (False, (3, 0)))
        ),
        *(replace(wide, scale=scale) for scale in (0.0, -0.3, 2.0)),
        *(
            replace(wide, layout="thd", lengths=lengths, causal=c)
            for lengths in ("tail", "empty")
            for c in (True, False)
        ),
    ]


def beyond_the_bound(case: Case) -> bool:
    """One query in float16 whose gradient of k is 0.00264 off, where 0.00248 is allowed (H200, torch 2.11)."""
    return (case.sq, case.sk, case.dqk, case.dtype, case.seed) == (1, 70, 8, "float16", 33)


@pytest.mark.parametrize("case", all_cases(by_hand(), suited, seed=31), ids=str)
def test_every_feature(case: Case, request: pytest.FixtureRequest) -> None:
    if beyond_the_bound(case):
        request.applymarker(pytest.mark.xfail(strict=True, reason="torch's kernel is 6 % over the bound"))
    check_or_skip(case, "aten_flash")
