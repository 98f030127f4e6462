# SPDX-License-Identifier: Apache-2.0
"""The definition of attention in plain torch operations, written for the tests alone, and the bound it gives.

    s = scale * q k^T;  s = c * tanh(s / c);  s += bias - slope * |j - (i + offset)| + additive mask;  then masking
    p = exp(s - m) / (sum exp(s - m) + exp(sink - m));  dropout on p;  out = p v

`attend` computes it in the dtype of its leaves: in float64 it is the reference, in the call's dtype the plain program
whose error bounds what a backend may have. Sequences are taken one by one; what nobody attends is never read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from cases import (
    Case,
    Inputs,
    attended,
    by_group,
    cut,
    lse_rows_of,
    offset,
    rows_of,
)
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Keep = list[Tensor]  # of each sequence [H, rows, keys]: what dropout leaves


@dataclass
class Results:
    """What one evaluation gives; gradients are of the leaves, where wanted."""

    out: Tensor
    lse: Tensor
    gradients: dict[str, Tensor]


def _sequence(
    case: Case, arguments: dict[str, Tensor], inputs: Inputs, b: int, keep: Tensor | None
) -> tuple[Tensor, Tensor]:
    """out [H, rows, Dv] and LSE [H, rows] of one sequence."""
    rows, keys, group = inputs.lengths_q[b], inputs.lengths_k[b], case.heads // case.kv_heads
    q = rows_of(case, arguments["q"], inputs.lengths_q, b)
    k = rows_of(case, arguments["k"], inputs.lengths_k, b)
    v = rows_of(case, arguments["v"], inputs.lengths_k, b)
    device = q.device
    kept = attended(case, arguments, b, rows, keys).to(device)
    some = kept.any(2)
    used = by_group(case, kept).any(1)
    zero = torch.zeros((), dtype=q.dtype, device=device)
    q = torch.where(some[..., None], q, zero)
    k = torch.where(used[..., None], k, zero).repeat_interleave(group, 0)
    v = torch.where(used[..., None], v, zero).repeat_interleave(group, 0)

    s = q @ k.transpose(1, 2) * (case.dqk**-0.5 if case.scale is None else case.scale)
    if case.softcap:
        s = case.softcap * torch.tanh(s / case.softcap)
    for name in ("attn_bias", "attn_mask"):
        term = arguments.get(name)
        if term is not None and term.dtype != torch.bool:
            s = (s + cut(term, b, rows, keys)).to(q.dtype)
    if case.alibi:
        slopes = arguments["alibi_slopes"]
        slopes = slopes if slopes.dim() == 1 else slopes[b]
        i, j = torch.arange(rows, device=device), torch.arange(keys, device=device)
        distance = (j[None, :] - (i[:, None] + offset(case, rows, keys))).abs()
        s = s - (slopes.to(torch.promote_types(torch.float32, q.dtype))[:, None, None] * distance).to(q.dtype)
    s = torch.where(kept, s, torch.full_like(zero, float("-inf")))
    s = torch.where(some[..., None], s, zero)  # a row without keys: any numbers, taken back below
    if case.sinks:
        sink = arguments["sinks"].to(q.dtype)[:, None, None].expand(case.heads, rows, 1)
        s = torch.cat([s, sink], 2)
    if s.shape[2]:
        p, lse = torch.softmax(s, 2)[..., :keys], torch.logsumexp(s, 2)
    else:
        p, lse = s, s.sum(2)
    p = torch.where(some[..., None], p, zero)
    lse = torch.where(some, lse, torch.full_like(zero, float("-inf")))
    if keep is not None:
        p = p * keep.to(p.dtype) * (0.0 if case.dropout == 1.0 else 1.0 / (1.0 - case.dropout))
    return p @ v, lse


def attend(inputs: Inputs, leaves: dict[str, Tensor], keep: Keep | None = None) -> tuple[Tensor, Tensor]:
    """(out in q's layout, LSE) in the dtype of the leaves, differentiable."""
    case, arguments = inputs.case, inputs.arguments(leaves)
    q = arguments["q"]
    out = q.new_zeros(inputs.dout.shape)
    lse = q.new_full(inputs.dlse.shape, float("-inf"))
    for b in range(case.batch):
        of_b, lse_b = _sequence(case, arguments, inputs, b, None if keep is None else keep[b])
        rows_of(case, out, inputs.lengths_q, b).copy_(of_b)
        lse_rows_of(case, lse, inputs.lengths_q, b).copy_(lse_b)
    return out, lse


@contextlib.contextmanager
def plain_sdpa() -> Iterator[None]:
    """torch's math attention, in 16 bits too."""
    allowed = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(allowed)


def sdpa_can(inputs: Inputs) -> bool:
    """Whether torch's math attention computes this case as it is."""
    case = inputs.case
    if case.ragged or case.lengths != "full" or case.window != (-1, -1) or case.softcap or case.sinks or case.alibi:
        return False
    if case.dropout or case.lse == "grad" or case.poison or (case.bias and case.mask):
        return False
    if case.causal and (case.bias or case.mask or (case.align == "bottom_right" and case.sq != case.sk)):
        return False
    if case.bias_float32 and case.dtype != "float32":
        return False
    arguments = inputs.arguments()
    return all(bool(attended(case, arguments, b, case.sq, case.sk).any(2).all()) for b in range(case.batch))


def sdpa(inputs: Inputs, leaves: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """As `attend`, by torch's math attention; its LSE is not computed."""
    case, arguments = inputs.case, inputs.arguments(leaves)
    order = {"bshd": (0, 2, 1, 3), "sbhd": (1, 2, 0, 3), "bhsd": (0, 1, 2, 3)}[case.layout]
    back = tuple(order.index(i) for i in range(4))
    q, k, v = (arguments[name].permute(order) for name in "qkv")
    mask = arguments.get("attn_mask", arguments.get("attn_bias"))
    with plain_sdpa():
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, mask, is_causal=case.causal, scale=case.scale, enable_gqa=case.heads != case.kv_heads
        )
    return out.permute(back), out.new_full(inputs.dlse.shape, 0.0)


def gradients_of(inputs: Inputs, leaves: dict[str, Tensor], out: Tensor, lse: Tensor | None) -> dict[str, Tensor]:
    """Gradients of the leaves that want one, for the case's dout and, where it asks for that, dlse."""
    wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    if not wanted:
        return {}
    outputs, incoming = [out], [inputs.dout.to(out.dtype)]
    if inputs.case.lse == "grad" and lse is not None:
        outputs.append(lse)
        incoming.append(inputs.dlse.to(lse.dtype))
    found = torch.autograd.grad(outputs, list(wanted.values()), incoming, allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(wanted.items(), found, strict=True)
    }


def _evaluate(inputs: Inputs, dtype: torch.dtype | None, keep: Keep | None, by_sdpa: bool) -> Results:
    leaves = {
        name: x.detach().to(dtype if dtype and x.is_floating_point() else x.dtype).requires_grad_(x.requires_grad)
        for name, x in inputs.leaves.items()
    }
    out, lse = sdpa(inputs, leaves) if by_sdpa else attend(inputs, leaves, keep)
    if out.requires_grad:
        gradients = gradients_of(inputs, leaves, out, lse)
    else:  # a batch of nothing
        gradients = {name: torch.zeros_like(leaf) for name, leaf in leaves.items() if leaf.requires_grad}
    return Results(out.detach(), lse.detach(), gradients)


def reference(inputs: Inputs, keep: Keep | None = None) -> Results:
    """The definition in float64."""
    return _evaluate(inputs, torch.float64, keep, by_sdpa=False)


def plain(inputs: Inputs, keep: Keep | None = None) -> Results:
    """The plain program in the call's dtype: torch's math attention where it can, else the definition."""
    return _evaluate(inputs, None, keep, by_sdpa=sdpa_can(inputs))


def magnitudes(inputs: Inputs, keep: Keep | None = None) -> Results:
    """How large the terms are that each result sums up, all taken as absolute values: the scale of roundings.

    `lse` is one number: the largest sum of the terms of a score.
    """
    case = inputs.case
    leaves = {
        name: x.detach().to(torch.float64 if x.is_floating_point() else x.dtype).requires_grad_(x.requires_grad)
        for name, x in inputs.leaves.items()
    }
    arguments = inputs.arguments(leaves)
    scale = abs(case.dqk**-0.5 if case.scale is None else case.scale)
    group = case.heads // case.kv_heads
    out = torch.zeros(inputs.dout.shape, dtype=torch.float64, device=inputs.dout.device)
    sums: dict[str, Tensor] = {
        name: torch.zeros(arguments[name].shape, dtype=torch.float64, device=out.device)
        for name in ("q", "k", "v", "attn_bias", "attn_mask", "sinks")
        if name in arguments
    }
    score = 1.0
    with torch.no_grad():
        for b in range(case.batch):
            rows, keys = inputs.lengths_q[b], inputs.lengths_k[b]
            kept = attended(case, arguments, b, rows, keys).to(out.device)
            used = by_group(case, kept).any(1)[..., None]
            q, k, v = (
                rows_of(case, arguments[name], inputs.lengths_q if name == "q" else inputs.lengths_k, b).abs()
                for name in "qkv"
            )
            q = torch.where(kept.any(2)[..., None], q, 0.0)
            k = torch.where(used, k, 0.0).repeat_interleave(group, 0)
            v = torch.where(used, v, 0.0).repeat_interleave(group, 0)
            terms = torch.where(kept, scale * q @ k.transpose(1, 2), 0.0)
            score = max(score, float(terms.max()) if terms.numel() else 0.0)
            one = torch.eye(keys, dtype=torch.float64, device=out.device)  # p itself, as the output for v = 1
            p = _probabilities(case, leaves, inputs, b, one)
            factor = 1.0 if keep is None else keep[b].double() / max(1e-9, 1.0 - case.dropout)
            dout = rows_of(case, inputs.dout, inputs.lengths_q, b).double().abs()
            rows_of(case, out, inputs.lengths_q, b).copy_((p * factor) @ v)
            dp = dout @ v.transpose(1, 2) * factor
            delta = (p * dp).sum(2, keepdim=True)
            if case.lse == "grad":
                delta = delta + lse_rows_of(case, inputs.dlse, inputs.lengths_q, b).double().abs()[..., None]
            ds = p * (dp + delta)
            rows_of(case, sums["q"], inputs.lengths_q, b).add_(scale * ds @ k)
            for name, term in (("k", scale * ds.transpose(1, 2) @ q), ("v", (p * factor).transpose(1, 2) @ dout)):
                rows_of(case, sums[name], inputs.lengths_k, b).add_(term.unflatten(0, (case.kv_heads, group)).sum(1))
            for name in ("attn_bias", "attn_mask"):
                if name in sums:
                    part = cut(sums[name], b, rows, keys)
                    part.add_(ds.sum_to_size(part.shape))
            if "sinks" in sums:
                sums["sinks"].add_(((1.0 - p.sum(2, keepdim=True)) * delta).sum((1, 2)).abs())
    wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    views = {name: arguments[name] for name in sums if arguments[name].requires_grad}
    found: tuple[Tensor | None, ...] = ()
    if wanted:
        found = torch.autograd.grad(
            list(views.values()), list(wanted.values()), [sums[name] for name in views], allow_unused=True
        )
    gradients = {
        name: torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(wanted.items(), found, strict=True)
    }
    return Results(out, torch.tensor(score), gradients)


def _probabilities(case: Case, leaves: dict[str, Tensor], inputs: Inputs, b: int, one: Tensor) -> Tensor:
    """[H, rows, keys]: p of sequence b, before dropout."""
    arguments = dict(inputs.arguments(leaves))
    keys = inputs.lengths_k[b]
    whole = torch.zeros((*arguments["v"].shape[:-1], keys), dtype=torch.float64, device=one.device)
    view = rows_of(case, whole, inputs.lengths_k, b)
    view.copy_(one.expand(view.shape))
    arguments["v"] = whole
    return _sequence(case, arguments, inputs, b, None)[0]
