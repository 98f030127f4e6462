# SPDX-License-Identifier: Apache-2.0
"""`cynosure.attention` in plain torch operations, for tests of what is built on it where it is not there.

Quadratic in memory and in no hurry. Nothing in it branches on data or on a length, so it traces with dynamic shapes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: str = "bshd",
    causal: bool = False,
    align: str = "bottom_right",
    window_size: tuple[int, int] = (-1, -1),
    attn_bias: Tensor | None = None,
    attn_mask: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    dropout_seed: Tensor | None = None,
    seqlens_q: Tensor | None = None,
    seqlens_k: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    backend: Any = "auto",
    policy: Any = None,
    return_lse: bool = False,
    lse_grad: bool = False,
) -> Tensor:
    """The output, in the layout of q. See the design's definition of the mathematics."""
    assert layout in ("bshd", "sbhd", "bhsd", "thd")
    assert not return_lse, "the stand-in has no LSE"
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    to_bhsd = {"bshd": (0, 2, 1, 3), "sbhd": (1, 2, 0, 3), "bhsd": (0, 1, 2, 3)}.get(layout)
    if to_bhsd is None:
        assert attn_bias is None
        assert attn_mask is None
        q_, k_, v_ = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))  # one batch of all tokens
    else:
        q_, k_, v_ = (x.permute(to_bhsd) for x in (q, k, v))
    q_, k_, v_ = (x.to(wide) for x in (q_, k_, v_))
    group = q_.shape[1] // k_.shape[1]
    k_, v_ = (x.repeat_interleave(group, dim=1) for x in (k_, v_))

    scores = (q_ @ k_.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    distance, visible = _positions(
        q_, k_, layout, align, seqlens_q, seqlens_k, cu_seqlens_q, cu_seqlens_k, alibi_batch=alibi_slopes
    )
    if attn_bias is not None:
        scores = scores + attn_bias.to(wide)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.to(wide)[..., :, None, None] * distance.abs()
    left, right = window_size[0], 0 if causal else window_size[1]
    if left >= 0:
        visible = visible & (distance >= -left)
    if right >= 0:
        visible = visible & (distance <= right)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            visible = visible & attn_mask
        else:
            scores = scores + attn_mask.to(wide)
    return _output(scores, visible, v_, sinks, dropout_p, dropout_seed, layout).to(q.dtype)


def _positions(
    q: Tensor,
    k: Tensor,
    layout: str,
    align: str,
    seqlens_q: Tensor | None,
    seqlens_k: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    *,
    alibi_batch: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """(j - (i + offset), whether row i and column j are valid and of one sequence), broadcastable to the scores."""
    i = torch.arange(q.shape[2], device=q.device)
    j = torch.arange(k.shape[2], device=q.device)
    if layout == "thd":
        assert cu_seqlens_q is not None
        assert cu_seqlens_k is not None
        assert alibi_batch is None or alibi_batch.dim() == 1
        starts_q, starts_k = cu_seqlens_q.long(), cu_seqlens_k.long()
        sequence_q = torch.bucketize(i, starts_q[1:], right=True)
        sequence_k = torch.bucketize(j, starts_k[1:], right=True)
        batch = starts_q.shape[0] - 1
        visible = (sequence_q[:, None] == sequence_k[None, :]) & (sequence_q < batch)[:, None]
        offset = (starts_k.diff() - starts_q.diff()) if align == "bottom_right" else torch.zeros_like(starts_q[1:])
        at = sequence_q.clamp(max=batch - 1)
        i, j = i - starts_q[at], j - starts_k[sequence_k.clamp(max=batch - 1)]
        return j[None, :] - (i + offset[at])[:, None], visible
    lengths_q = torch.full_like(i[:1], q.shape[2]) if seqlens_q is None else seqlens_q.long().clamp(0)
    lengths_k = torch.full_like(i[:1], k.shape[2]) if seqlens_k is None else seqlens_k.long().clamp(0)
    offset = lengths_k - lengths_q if align == "bottom_right" else torch.zeros_like(lengths_q)
    distance = j[None, None, None, :] - (i[None, None, :, None] + offset[:, None, None, None])
    visible = (i[:, None] < lengths_q[:, None, None, None]) & (j < lengths_k[:, None, None, None])
    return distance, visible


def _output(
    scores: Tensor,
    visible: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    dropout_p: float,
    dropout_seed: Tensor | None,
    layout: str,
) -> Tensor:
    """Masking, softmax, dropout and the product with v; rows without a visible key give 0."""
    scores = scores.masked_fill(~visible, float("-inf"))
    maximum = scores.detach().amax(-1, keepdim=True)
    if sinks is not None:
        logits = sinks.to(scores.dtype)[:, None, None]
        maximum = torch.maximum(maximum, logits.detach())
    maximum = maximum.masked_fill(maximum == float("-inf"), 0.0)
    weights = (scores - maximum).exp()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (logits - maximum).exp()
    anything = visible.any(-1, keepdim=True)
    p = weights / total.masked_fill(~anything, 1.0)
    if dropout_p:
        if dropout_seed is None:
            p = torch.nn.functional.dropout(p, dropout_p)
        else:
            generator = torch.Generator(p.device).manual_seed(int(dropout_seed[0]) + int(dropout_seed[1]))
            kept = torch.rand(p.shape, generator=generator, device=p.device) >= dropout_p
            p = p * kept / (1.0 - dropout_p)
    out = (p @ v).masked_fill(~anything, 0.0)
    if layout == "thd":
        return out.squeeze(0).transpose(0, 1).contiguous()
    back = {"bshd": (0, 2, 1, 3), "sbhd": (2, 0, 1, 3), "bhsd": (0, 1, 2, 3)}[layout]
    return out.permute(back).contiguous()
