# SPDX-License-Identifier: Apache-2.0
"""Every feature with every other on the backend `cudnn`: the body of tests/python/attend/test_features.py over calls
that have a chance there (16 bits, head dims that are multiples of 8, no soft cap, no gradient for the LSE)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import Case, edges, one_at_a_time, pairwise, random_cases
from checks import check

import cynosure


def suited(case: Case, number: int) -> Case:
    """The nearest case that cuDNN may take."""
    dtype = case.dtype if case.dtype in ("bfloat16", "float16") else ("bfloat16", "float16")[number % 2]
    lse = "returned" if case.lse == "grad" else case.lse
    # A masked weight is 0 there, and 0 times NaN is NaN: only what lies behind the lengths is never read.
    inside = case.mask or case.causal or case.window != (-1, -1)
    poison = case.poison and not inside and case.lengths != "full"
    case = replace(case, dqk=-(-case.dqk // 8) * 8, dv=-(-case.dv // 8) * 8)
    return replace(case, dtype=dtype, lse=lse, softcap=0.0, poison=poison)


def ragged_memory() -> list[Case]:
    """Ragged tensors that lie in memory in other ways, over the head dims of each kernel."""
    wide = Case(dtype="bfloat16", layout="thd", batch=3, heads=4, kv_heads=4, sq=70, sk=70, lengths="some", causal=True)
    return [
        replace(wide, strides=strides, dqk=dim, dv=dim, seed=dim)
        for strides in ("plain", "packed", "transposed", "odd", "last")
        for dim in (64, 128, 192, 256)
    ]


def cases() -> list[Case]:
    found = [
        *ragged_memory(),
        *one_at_a_time(),
        *edges(),
        *pairwise(),
        *random_cases(150, seed=21),
        *random_cases(100, 22, 300),
    ]
    return list(dict.fromkeys(suited(case, n) for n, case in enumerate(found)))


@pytest.mark.parametrize("case", cases(), ids=str)
def test_every_feature(case: Case) -> None:
    try:
        check(case, "cudnn", "cuda")
    except cynosure.NoBackendError as error:
        pytest.skip(str(error).partition("\n")[0])
