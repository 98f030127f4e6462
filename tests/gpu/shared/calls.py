# SPDX-License-Identifier: Apache-2.0
"""Small calls on a GPU, for the tests of every backend there."""

from __future__ import annotations

import torch
from torch import Tensor


def tensors(*shape: int, count: int = 3, grad: bool = False, device: str = "cuda") -> list[Tensor]:
    """Random q, k, v (or `count` such) in bfloat16."""
    return [torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=grad) for _ in range(count)]


def close(x: Tensor, y: Tensor) -> bool:
    """To a hundredth of the norm of y."""
    return float((x.float() - y.float()).norm()) <= 0.01 * float(y.float().norm())


def ints(*values: int) -> Tensor:
    """Lengths, on the device."""
    return torch.tensor(values, device="cuda", dtype=torch.int32)
