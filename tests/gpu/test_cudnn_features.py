# SPDX-License-Identifier: Apache-2.0
"""Every feature with every other on the backend `cudnn`: the body of tests/python/attend/test_features.py over calls
that have a chance there (16 bits, head dims that are multiples of 8, no soft cap, no gradient for the LSE)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import Case
from features import all_cases, check_or_skip, dim_of_eights, half


def suited(case: Case, number: int) -> Case:
    """The nearest case that cuDNN may take."""
    lse = "returned" if case.lse == "grad" else case.lse
    # A masked weight is 0 there, and 0 times NaN is NaN: only what lies behind the lengths is never read.
    inside = case.mask or case.causal or case.window != (-1, -1)
    poison = case.poison and not inside and case.lengths != "full"
    case = replace(case, dqk=dim_of_eights(case.dqk), dv=dim_of_eights(case.dv))
    return replace(case, dtype=half(case, number), lse=lse, softcap=0.0, poison=poison)


def ragged_memory() -> list[Case]:
    """Ragged tensors that lie in memory in other ways, over the head dims of each kernel."""
    wide = Case(dtype="bfloat16", layout="thd", batch=3, heads=4, kv_heads=4, sq=70, sk=70, lengths="some", causal=True)
    return [
        replace(wide, strides=strides, dqk=dim, dv=dim, seed=dim)
        for strides in ("plain", "packed", "transposed", "odd", "last")
        for dim in (64, 128, 192, 256)
    ]


@pytest.mark.parametrize("case", all_cases(ragged_memory(), suited, seed=21), ids=str)
def test_every_feature(case: Case) -> None:
    check_or_skip(case, "cudnn")
