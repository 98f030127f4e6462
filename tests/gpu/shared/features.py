# SPDX-License-Identifier: Apache-2.0
"""What the feature tests of backends on a GPU share: the body and the cases of tests/python/attend."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cases import Case, edges, one_at_a_time, pairwise, random_cases
from checks import check

import cynosure


def half(case: Case, number: int) -> str:
    """The case's dtype where it has 16 bits, or one that has."""
    return case.dtype if case.dtype in ("bfloat16", "float16") else ("bfloat16", "float16")[number % 2]


def dim_of_eights(dim: int) -> int:
    """The next head dim that is a multiple of 8."""
    return -(-dim // 8) * 8


def all_cases(by_hand: list[Case], suited: Callable[[Case, int], Case], seed: int) -> list[Case]:
    """Those by hand and those that every backend gets, each made one that this backend may take."""
    found = [
        *by_hand,
        *one_at_a_time(),
        *edges(),
        *pairwise(),
        *random_cases(150, seed),
        *random_cases(100, seed + 1, 300),
    ]
    return list(dict.fromkeys(suited(case, n) for n, case in enumerate(found)))


def check_or_skip(case: Case, backend: str) -> None:
    """Forward and gradients against the reference; skipped with the reason where rules refuse the call."""
    try:
        check(case, backend, "cuda")
    except cynosure.NoBackendError as error:
        pytest.skip(str(error).partition("\n")[0])
