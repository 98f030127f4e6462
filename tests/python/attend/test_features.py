# SPDX-License-Identifier: Apache-2.0
"""Every feature with every other, on every backend of this build, forward and all gradients, against the definition."""

from __future__ import annotations

import pytest
from cases import Case, edges, one_at_a_time, pairwise, random_cases
from checks import BACKENDS, TARGETS, check, refused

import cynosure

CASES = list(dict.fromkeys([*one_at_a_time(), *edges(), *pairwise(), *random_cases(100, seed=20)]))


def test_the_reference_backends_are_here() -> None:
    assert "unfused" in BACKENDS
    if cynosure.Device.this().device_kind == "cpu":
        assert "cpu" in BACKENDS


@pytest.mark.parametrize(("backend", "device"), TARGETS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_feature(case: Case, backend: str, device: str) -> None:
    reason = refused(case, backend)
    if reason is not None:
        with pytest.raises(cynosure.NoBackendError, match=reason):
            check(case, backend, device)
    elif backend in ("cpu", "unfused"):  # these have every feature
        check(case, backend, device)
    else:
        try:
            check(case, backend, device)
        except cynosure.NoBackendError as error:
            pytest.skip(str(error).partition("\n")[0])
