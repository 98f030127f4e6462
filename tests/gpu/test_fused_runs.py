# SPDX-License-Identifier: Apache-2.0
"""Every fused backend on a GPU in its surroundings: torch.compile, another device, hostile lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from calls import close, ints, tensors
from torch import Tensor

import cynosure

pytestmark = pytest.mark.parametrize("backend", ["cudnn", "aten_flash"])


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd", "thd"])
def test_compiled_calls_are_eager_ones(backend: str, layout: str) -> None:
    def model(q: Tensor, k: Tensor, v: Tensor, cu: Tensor | None) -> Any:
        more: dict[str, Any] = (
            {} if cu is None else {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 192, "max_seqlen_k": 192}
        )
        return cynosure.attention(q * 1.5, k, v, causal=True, layout=layout, backend=backend, **more)

    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for length in (64, 96):
        shapes = {"bshd": (2, length, 4, 64), "sbhd": (length, 2, 4, 64), "bhsd": (2, 4, length, 64)}
        q, k, v = tensors(*shapes.get(layout, (2 * length, 4, 64)), grad=True)
        cu = ints(0, length // 2, 2 * length - 20) if layout == "thd" else None
        results = []
        for function in (model, compiled):
            out = function(q, k, v, cu)
            results.append([out, *torch.autograd.grad(out, [q, k, v], torch.ones_like(out))])
        for eager, traced in zip(*results, strict=True):
            assert close(traced, eager)
            assert traced.stride() == eager.stride()


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="one GPU")
def test_tensors_on_another_device_than_the_current(backend: str) -> None:
    q, k, v = tensors(2, 64, 4, 64, grad=True, device="cuda:1")
    out = cynosure.attention(q, k, v, causal=True, backend=backend)
    assert out.device == q.device
    gradients = torch.autograd.grad(out, [q, k, v], torch.ones_like(out))
    assert close(out, cynosure.attention(q, k, v, causal=True, backend="unfused"))
    assert all(x.isfinite().all() for x in gradients)
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("cu", [(0, 500, 3), (0, -7, 90), (50, 20, 2**31 - 1), (-(2**31), 64, 128), (0, 0, 0)])
def test_hostile_lengths_stay_in_bounds(backend: str, cu: tuple[int, ...]) -> None:
    whole = tensors(384, 4, 64, grad=True)
    q, k, v = (x[128:256] for x in whole)
    starts = ints(*cu)
    more: dict[str, Any] = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": 128, "max_seqlen_k": 128}
    out = cynosure.attention(q, k, v, layout="thd", causal=True, backend=backend, **more)
    gradients = torch.autograd.grad(out, whole, torch.ones_like(out))
    torch.cuda.synchronize()
    assert out.isfinite().all()
    for gradient in gradients:
        assert gradient.isfinite().all()
        assert not gradient[:128].any()
        assert not gradient[256:].any()


def test_sequences_longer_than_stated_leave_nothing_unwritten(backend: str) -> None:
    q, k, v = tensors(256, 4, 64, grad=True)
    cu = ints(0, 200, 256)
    more: dict[str, Any] = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 100, "max_seqlen_k": 100}
    out, lse = cynosure.attention(q, k, v, layout="thd", backend=backend, return_lse=True, **more)
    assert not lse.isnan().any()
    for x in (out, *torch.autograd.grad(out, [q, k, v], torch.ones_like(out))):
        assert x.isfinite().all()
