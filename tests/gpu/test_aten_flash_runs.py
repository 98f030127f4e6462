# SPDX-License-Identifier: Apache-2.0
"""The backend `aten_flash` in its surroundings: CUDA graphs, torch.compile, hostile lengths, no waiting, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from calls import close, ints, tensors
from checks import Ran
from torch import Tensor

import cynosure


def attend(q: Tensor, k: Tensor, v: Tensor, **more: Any) -> Any:
    return cynosure.attention(q, k, v, **{"backend": "aten_flash", **more})


def both_ways(q: Tensor, k: Tensor, v: Tensor, **more: Any) -> list[Tensor]:
    out = attend(q, k, v, **more)
    return [out, *torch.autograd.grad(out, [q, k, v], torch.ones_like(out))]


def test_the_variable_forces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CYNOSURE_BACKEND", "aten_flash")
    q, k, v = tensors(2, 100, 4, 64, grad=True)
    with Ran() as ran:
        cynosure.attention(q, k, v, causal=True).sum().backward()
    assert ran.only == "aten_flash"


def test_it_runs_next_after_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    q, k, v = tensors(2, 100, 4, 64)
    with Ran() as ran:
        cynosure.attention(q, k, v, causal=True)
    assert ran.only == "aten_flash"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"dropout_p": 0.1}, "flash2.dropout_seed"),
        ({"softcap": 5.0}, "aten_flash.softcap"),
        ({"align": "top_left", "causal": True}, "flash.top_left"),
        ({"window_size": (3, -1)}, "aten_flash.window_cross"),
        ({"return_lse": True, "lse_grad": True}, "flash.lse_grad"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_rule(more: dict[str, Any], why: str) -> None:
    q, k, v = (torch.randn(2, s, 4, 64, device="cuda", dtype=torch.bfloat16) for s in (64, 32, 32))
    with pytest.raises(cynosure.NoBackendError):
        attend(q, k, v, **more)
    reasons = cynosure.explain(q, k, v, backend="aten_flash", **more).decision.reasons[cynosure.Backend.aten_flash]
    assert why in {reason.rule for reason in reasons}


@pytest.mark.parametrize("layout", ["bshd", "thd"])
def test_a_captured_forward_and_backward_replays_with_new_inputs(layout: str) -> None:
    more: dict[str, Any] = {"causal": True, "layout": layout}
    shape: tuple[int, ...] = (2, 100, 4, 64)
    if layout == "thd":
        shape = (200, 4, 64)
        more |= {"cu_seqlens_q": ints(0, 60, 190), "cu_seqlens_k": ints(0, 60, 190)}
    q, k, v = tensors(*shape, grad=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        both_ways(q, k, v, **more)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        found = both_ways(q, k, v, **more)
    with torch.no_grad():
        for x in (q, k, v):
            x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    for x, y in zip(found, both_ways(q, k, v, **more), strict=True):
        assert close(x, y)


def test_nothing_waits_for_the_device() -> None:
    q, k, v = tensors(256, 4, 64, grad=True)
    cu = ints(0, 100, 256)
    more = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 156, "max_seqlen_k": 156}
    both_ways(q, k, v, layout="thd", causal=True, **more)
    torch.cuda.set_sync_debug_mode("error")
    try:
        both_ways(q, k, v, layout="thd", causal=True, **more)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_lengths_of_one_query_with_grouped_heads_and_an_empty_sequence() -> None:
    """torch takes the number of tokens for that of sequences there, unless it is led around."""
    q = torch.randn(2, 8, 64, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(90, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    more = {"cu_seqlens_q": ints(0, 1, 1, 2), "cu_seqlens_k": ints(0, 40, 60, 90)}
    most = {"max_seqlen_q": 1, "max_seqlen_k": 40, "layout": "thd"}
    out = attend(q, k, v, **more, **most)
    assert close(out, attend(q, k, v, **more, **most, backend="unfused"))


def test_a_batch_of_65536_goes_elsewhere() -> None:
    q, k, v = (torch.randn(65536, 2, 1, 8, device="cuda", dtype=torch.float16) for _ in range(3))
    with pytest.raises(cynosure.NoBackendError):
        attend(q, k, v)
    with Ran() as ran:
        out = cynosure.attention(q, k, v)
    assert ran.only not in ("aten_flash", "cudnn")
    assert out.isfinite().all()
