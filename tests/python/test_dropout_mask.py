# SPDX-License-Identifier: Apache-2.0
"""Which pairs dropout keeps is one function of seed, offset and position, on every backend and device."""

from __future__ import annotations

from typing import Any

import pytest

import cynosure

torch = pytest.importorskip("torch")

SEEDS = [(0, 0), (5, 7), (2**63 - 1, -3), (-9, 2**40 + 11), (123456789012345, 2**62)]


def weights(seed: tuple[int, int], probability: float, backend: str) -> Any:
    """The weights after dropout: q is 0, so all are 1 / 13 before, and v is the identity."""
    q = torch.zeros(2, 19, 3, 8)
    k = torch.zeros(2, 13, 3, 8)
    v = torch.eye(13)[None, :, None, :].expand(2, 13, 3, 13)
    return cynosure.attention(q, k, v, dropout_p=probability, dropout_seed=torch.tensor(seed), backend=backend)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.999, 1.0])
def test_every_way_keeps_the_same_pairs(
    clean_environment: pytest.MonkeyPatch, seed: tuple[int, int], probability: float
) -> None:
    fused, unfused = weights(seed, probability, "cpu"), weights(seed, probability, "unfused")
    clean_environment.setenv("CYNOSURE_CHECK", "1")  # by torch's integer operators, as on other devices
    by_tensors = weights(seed, probability, "unfused")
    assert torch.equal(fused != 0, unfused != 0)
    assert torch.equal(unfused, by_tensors)
    torch.testing.assert_close(fused, unfused)
    kept = (unfused != 0).float().mean().item()
    assert abs(kept - (1 - probability)) < 0.06


def test_seeds_and_offsets_differ() -> None:
    masks = [weights(seed, 0.5, "cpu") != 0 for seed in SEEDS]
    for i, a in enumerate(masks):
        for b in masks[i + 1 :]:
            assert 0.3 < (a == b).float().mean().item() < 0.7
