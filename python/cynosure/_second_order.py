# SPDX-License-Identifier: Apache-2.0
"""Gradients that can be differentiated again.

Where `unfused` runs the call they are its own gradients (src/torch/run_unfused.cpp has the same formulas), written in
torch's differentiable operations. Elsewhere the backend computes them, and asking for their derivative raises.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cynosure import _core
from cynosure._core import Backend
from cynosure._operators import (
    BIAS_GRAD,
    CAUSAL,
    CPU_ISA_SHIFT,
    DIMS,
    LSE_GRAD,
    MASK_GRAD,
    NUMBERS,
    RETURN_LSE,
    SCALE_GIVEN,
    SINKS_GRAD,
    TERMS,
    TOP_LEFT,
    raw_forward,
    transforms_active,
)
from cynosure._transforms import Forward, Gradients
from cynosure.device import Device, built_for
from cynosure.problem import Problem

_LAYOUTS = tuple(DIMS)
_HEADS_FIRST = ((0, 2, 1, 3), (1, 2, 0, 3), (0, 1, 2, 3))  # from bshd, sbhd and bhsd
_HEADS_BACK = ((0, 2, 1, 3), (2, 0, 1, 3), (0, 1, 2, 3))


def backward(
    q: Any, k: Any, v: Any, out: Any, lse: Any, rest: tuple[Any, ...], grad_out: Any, grad_lse: Any
) -> tuple[Any, ...]:
    """(dq, dk, dv, dbias, dmask, dsinks) of a call of the raw forward; None: of grad_out and grad_lse, zeros."""
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    if q.is_nested:
        return _of_nested(q, k, v, out, lse, rest, grad_out, grad_lse)
    saved, numbers = (q, k, v, *rest[TERMS]), (*rest[NUMBERS], *rest[:2])
    if _decision(saved, numbers) is Backend.unfused:
        dtensor: Any = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
        if dtensor is not None and isinstance(q, dtensor):
            return _of_dtensors(dtensor, saved, numbers, grad_out, grad_lse)
        return _Call.of(saved, numbers).gradients(grad_out, grad_lse)
    return tuple(Gradients.of(grad_out, grad_lse, q, k, v, out, lse, *rest))


def _of_nested(
    q: Any, k: Any, v: Any, out: Any, lse: Any, rest: tuple[Any, ...], grad_out: Any, grad_lse: Any
) -> tuple[Any, ...]:
    """On the tokens of jagged tensors."""
    from cynosure._nested import ragged_rest

    def tokens(t: Any) -> Any:
        return (t if t._ragged_idx == 1 else t.transpose(1, 2)).values()

    def nested(t: Any, like: Any) -> Any:
        result = torch.nested.nested_tensor_from_jagged(t, like.offsets())
        return result if like._ragged_idx == 1 else result.transpose(1, 2)

    dq, dk, dv, *_ = backward(
        tokens(q),
        tokens(k),
        tokens(v),
        tokens(out),
        lse.values(),
        tuple(ragged_rest(q, k, v, rest)),
        tokens(grad_out),
        None if grad_lse is None else grad_lse.values(),
    )
    return nested(dq, q), nested(dk, k), nested(dv, v), None, None, None


def _of_dtensors(dtensor: Any, saved: Any, numbers: Any, grad_out: Any, grad_lse: Any) -> tuple[Any, ...]:
    """On whole tensors, the same on every rank: DTensor's matmul takes no sharded heads."""
    from torch.distributed.tensor import Replicate

    mesh = saved[0].device_mesh

    def whole(t: Any) -> Any:
        return t.full_tensor() if isinstance(t, dtensor) else t

    grads = _Call.of(tuple([whole(t) for t in saved]), numbers).gradients(whole(grad_out), whole(grad_lse))
    replicated = [Replicate()] * mesh.ndim
    return tuple([None if g is None else dtensor.from_local(g, mesh, replicated, run_check=False) for g in grads])


def _decision(saved: Any, numbers: Any) -> Backend | None:
    """The backend that the operators take for this call's gradients."""
    q, k, v, attn_bias, attn_mask, alibi_slopes, sinks, lengths_q, lengths_k, _ = saved
    longest_q, longest_k, left, right, _, softcap, dropout_p, options, settings = numbers
    device = _device(q.device, options)
    if device is None:
        return None
    layout = _LAYOUTS[options & 3]
    lengths = ("cu_seqlens_q", "cu_seqlens_k") if layout == "thd" else ("seqlens_q", "seqlens_k")
    problem = Problem.of(
        q,
        k,
        v,
        layout=layout,
        causal=bool(options & CAUSAL),
        align="top_left" if options & TOP_LEFT else "bottom_right",
        window_size=(left, right),
        attn_bias=attn_bias,
        attn_mask=attn_mask,
        alibi_slopes=alibi_slopes,
        softcap=softcap,
        sinks=sinks,
        dropout_p=dropout_p,
        max_seqlen_q=None if longest_q < 0 else longest_q,
        max_seqlen_k=None if longest_k < 0 else longest_k,
        return_lse=bool(options & RETURN_LSE),
        lse_grad=bool(options & LSE_GRAD),
        **dict(zip(lengths, (lengths_q, lengths_k), strict=True)),
    )
    wanted = problem.to_dict() | {"training": True, "bias_requires_grad": bool(options & BIAS_GRAD)}
    problem = Problem.from_dict(wanted)
    word = _core.settings_with(settings, enforce=True)
    chosen, _ = _core.outcome(problem.key, problem.batch, problem.seqlen_q, problem.seqlen_k, word, device.key)
    return None if chosen < 0 else Backend(chosen)


def _device(device: torch.device, options: int) -> Device | None:
    """As src/torch/arguments.cpp describes it; None where nothing runs."""
    if device.type == "cuda":
        return Device.this(device.index)
    if device.type != "cpu":
        return None
    from cynosure._detect import detect

    isa = options >> CPU_ISA_SHIFT & 7
    name = _core.CPU_ISAS[isa - 1] if isa else detect().cpu_isa
    return Device(device_kind="cpu", cpu_isa=name, built=built_for("cpu"))


@dataclass
class _Ragged:
    """Where the tokens of one side of a ragged batch lie in a padded one, and back."""

    lengths: Tensor  # [B]
    from_tokens: Tensor  # [B, S]: the token at each padded place, any token where there is none
    sequence: Tensor  # [T]: of each token, and its place there
    place: Tensor
    is_token: Tensor  # [T]: belongs to a sequence

    @classmethod
    def of(cls, tokens: Tensor, cumulative: Tensor, length: int) -> _Ragged:
        ends = cumulative.long()
        starts = ends[:-1]
        count, batch = tokens.shape[0], starts.shape[0]
        places = torch.arange(length, device=ends.device)
        t = torch.arange(count, device=ends.device)
        sequence = (ends[1:] <= t[:, None]).sum(1).clamp(max=max(batch - 1, 0))
        return cls(
            ends[1:] - starts,
            (starts[:, None] + places).clamp(max=max(count - 1, 0)),
            sequence,
            (t - starts[sequence]).clamp(0, max(length - 1, 0)),
            t < ends[-1],
        )

    def pad(self, t: Tensor) -> Tensor:
        """[T, H, D] as [B, H, S, D]."""
        return t[self.from_tokens].transpose(1, 2)

    def unpad(self, t: Tensor) -> Tensor:
        """[B, H, S, D] as [T, H, D]."""
        return t.transpose(1, 2)[self.sequence, self.place].masked_fill(~self.is_token[:, None, None], 0.0)


@dataclass
class _Call:
    """The call with all sequences padded to [B, H, S, D], in the type in which it is computed."""

    saved: tuple[Any, ...]
    numbers: tuple[Any, ...]  # those of the call, then options and settings
    dims: int
    dtype: torch.dtype
    q: Tensor
    k: Tensor
    v: Tensor
    ragged_q: _Ragged | None
    ragged_k: _Ragged | None
    lengths_q: Tensor | None  # [B]
    lengths_k: Tensor | None

    @classmethod
    def of(cls, saved: Any, numbers: Any) -> _Call:
        q, k, v, *_, lengths_q, lengths_k, _ = saved
        dims = numbers[-2] & 3
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        if dims < 3:
            order = _HEADS_FIRST[dims]
            q, k, v = (t.permute(order).to(dtype) for t in (q, k, v))
            return cls(saved, numbers, dims, dtype, q, k, v, None, None, lengths_q, lengths_k)
        terms = saved[3] is not None or saved[4] is not None
        of_q = _Ragged.of(q, lengths_q, _longest(lengths_q, numbers[0], q.shape[0], terms))
        of_k = _Ragged.of(k, lengths_k, _longest(lengths_k, numbers[1], k.shape[0], terms))
        q, k, v = of_q.pad(q).to(dtype), of_k.pad(k).to(dtype), of_k.pad(v).to(dtype)
        return cls(saved, numbers, dims, dtype, q, k, v, of_q, of_k, of_q.lengths, of_k.lengths)

    def gradients(self, grad_out: Tensor, grad_lse: Tensor | None) -> tuple[Any, ...]:
        """Of q, k, v, and of attn_bias, attn_mask and sinks where the options ask for it."""
        device = self.q.device.type
        if torch.amp.is_autocast_available(device):
            with torch.autocast(device, enabled=False):
                return self._gradients(grad_out, grad_lse)
        return self._gradients(grad_out, grad_lse)

    def _gradients(self, grad_out: Tensor, grad_lse: Tensor | None) -> tuple[Any, ...]:
        attn_bias, attn_mask, sinks = self.saved[3], self.saved[4], self.saved[6]
        scale, softcap, dropout_p, options = *self.numbers[4:7], self.numbers[7]
        batch, heads, rows, _ = self.q.shape
        kv_heads, keys = self.k.shape[1:3]
        if 0 in (batch, rows, keys, self.saved[0].numel(), self.saved[1].numel()):
            return self._nothing()
        scale = scale if options & SCALE_GIVEN else self.saved[0].shape[-1] ** -0.5
        visible, distance = self._visible()
        q, k, v = self.q, self.k, self.v
        dead = None
        if visible is not None:
            visible = visible.expand(batch, heads, rows, keys)
            dead = ~visible.any(3, keepdim=True)
            unseen = ~visible.reshape(batch, kv_heads, -1, rows, keys).any(2).any(2)[..., None]
            # Something that no row attends, or that attends nothing, may hold NaN: it counts as 0.
            q, k, v = q.masked_fill(dead, 0.0), k.masked_fill(unseen, 0.0), v.masked_fill(unseen, 0.0)

        def by_group(t: Tensor) -> Tensor:
            """The heads of a group as rows of their key head."""
            return t if heads == kv_heads else t.reshape(batch, kv_heads, -1, t.shape[3])

        # the scores
        s = (by_group(q * scale) @ k.transpose(2, 3)).reshape(batch, heads, rows, keys)
        tangent = torch.tanh(s / softcap) if softcap > 0 else None
        if tangent is not None:
            s = softcap * tangent
        if attn_bias is not None:
            s = s + attn_bias.to(self.dtype)
        if self.saved[5] is not None:
            assert distance is not None
            s = s - self.saved[5].to(self.dtype)[..., None, None] * distance.abs().to(self.dtype)
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            s = s + attn_mask.to(self.dtype)
        if visible is not None:
            s = s.masked_fill(~visible, -torch.inf)

        # the softmax; m is any number near the largest score, so it has no derivative
        m = s.detach().amax(3, keepdim=True)
        sink = None if sinks is None else sinks.to(self.dtype)[:, None, None]
        if sink is not None:
            m = torch.maximum(m, sink.detach())
        m = m.masked_fill(m == -torch.inf, 0.0)
        e = torch.exp(s - m)
        total = e.sum(3, keepdim=True)
        of_sink = None if sink is None else torch.exp(sink - m)
        if of_sink is not None:
            total = total + of_sink
        total = total.masked_fill(total == 0, 1.0)
        p = e / total

        # the gradients
        grad_out = self._heads_first(grad_out)
        grad_out = grad_out if dead is None else grad_out.masked_fill(dead, 0.0)
        dp = (by_group(grad_out) @ v.transpose(2, 3)).reshape(batch, heads, rows, keys)
        if visible is not None:
            dp = dp.masked_fill(~visible, 0.0)
        kept = p
        if dropout_p > 0:
            keep = self._keep().to(self.dtype) * (1.0 / (1.0 - dropout_p) if dropout_p < 1 else 0.0)
            kept, dp = p * keep, dp * keep
        dv = by_group(kept).transpose(2, 3) @ by_group(grad_out)
        delta = (p * dp).sum(3, keepdim=True)
        if grad_lse is not None:
            dlse = self._rows(grad_lse)
            delta = delta - (dlse if dead is None else dlse.masked_fill(dead, 0.0))
        ds = p * (dp - delta)
        if visible is not None:
            ds = ds.masked_fill(~visible, 0.0)
        dbias = dmask = dsinks = None
        if attn_bias is not None and options & BIAS_GRAD:
            dbias = ds.sum_to_size(attn_bias.shape).to(attn_bias.dtype)
        if attn_mask is not None and options & MASK_GRAD:
            dmask = ds.sum_to_size(attn_mask.shape).to(attn_mask.dtype)
        if of_sink is not None and options & SINKS_GRAD:
            of_sinks = -(of_sink / total) * delta
            if dead is not None:
                of_sinks = of_sinks.masked_fill(dead, 0.0)
            dsinks = of_sinks.sum((0, 2, 3)).to(sinks.dtype)
        if tangent is not None:
            ds = ds * (1 - tangent * tangent)
        ds = by_group(ds * scale)
        dq = (ds @ k).reshape(self.q.shape)
        dk = ds.transpose(2, 3) @ by_group(q)
        return (
            self._back(dq, self.ragged_q),
            self._back(dk, self.ragged_k),
            self._back(dv, self.ragged_k),
            dbias,
            dmask,
            dsinks,
        )

    def _nothing(self) -> tuple[Any, ...]:
        wanted = (None, None, None, BIAS_GRAD, MASK_GRAD, None, SINKS_GRAD)
        zeros = [
            None if t is None or (bit is not None and not self.numbers[7] & bit) else torch.zeros_like(t)
            for t, bit in zip(self.saved, wanted, strict=False)
        ]
        return (*zeros[:5], zeros[6])

    def _visible(self) -> tuple[Tensor | None, Tensor | None]:
        """(the pairs that are attended, broadcasting to [B, H, Sq, Skv], None: all; j - (i + offset))."""
        left, right, options = self.numbers[2], self.numbers[3], self.numbers[7]
        attn_mask, alibi_slopes = self.saved[4], self.saved[5]
        conditions: list[Tensor] = []
        rows, keys = self.q.shape[2], self.k.shape[2]
        i = torch.arange(rows, device=self.q.device)[:, None]
        j = torch.arange(keys, device=self.q.device)
        count_q = None if self.lengths_q is None else self.lengths_q.long()[:, None, None, None]
        count_k = None if self.lengths_k is None else self.lengths_k.long()[:, None, None, None]
        if count_q is not None:
            conditions.append(i < count_q)
        if count_k is not None:
            conditions.append(j < count_k)
        right = 0 if options & CAUSAL else right
        distance: Tensor | None = None
        if right >= 0 or left >= 0 or alibi_slopes is not None:
            distance = j - i
            if not options & TOP_LEFT:
                distance = distance - ((keys if count_k is None else count_k) - (rows if count_q is None else count_q))
            if right >= 0:
                conditions.append(distance <= right)
            if left >= 0:
                conditions.append(distance >= -left)
        if attn_mask is not None:
            conditions.append(attn_mask if attn_mask.dtype == torch.bool else attn_mask != -torch.inf)
        visible = None
        for condition in conditions:
            visible = condition if visible is None else visible & condition
        return visible, distance

    def _keep(self) -> Tensor:
        """Bool [B, H, Sq, Skv]: the pairs that dropout keeps, as the backend draws them.

        For equal scores and the unit vectors as values the output is the kept weights themselves.
        """
        batch, heads, rows, _ = self.q.shape
        keys = self.k.shape[2]
        like = {"dtype": self.dtype, "device": self.q.device}
        q = torch.zeros(batch, heads, rows, 1, **like)  # type: ignore[call-overload]
        k = torch.zeros(batch, 1, keys, 1, **like)  # type: ignore[call-overload]
        v = torch.eye(keys, **like).expand(batch, 1, keys, keys)  # type: ignore[call-overload]
        word = _core.settings_with(self.numbers[8], contract="require", names=["unfused"])
        args = (q, k, v, DIMS["bhsd"], word, *(None,) * 6, self.saved[9], -1, -1, -1, -1, 1.0, 0.0, self.numbers[6])
        out: Tensor = (Forward.apply(*args) if transforms_active() else raw_forward(*args))[0]
        return out != 0

    def _heads_first(self, t: Tensor) -> Tensor:
        t = t.permute(_HEADS_FIRST[self.dims]) if self.ragged_q is None else self.ragged_q.pad(t)
        return t.to(self.dtype)

    def _rows(self, t: Tensor) -> Tensor:
        """[B, H, Sq] or [H, T] as [B, H, Sq, 1]."""
        t = t[..., None] if self.ragged_q is None else self.ragged_q.pad(t.transpose(0, 1)[..., None])
        return t.to(self.dtype)

    def _back(self, t: Tensor, ragged: _Ragged | None) -> Tensor:
        t = t.permute(_HEADS_BACK[self.dims]) if ragged is None else ragged.unpad(t)
        return t.to(self.saved[0].dtype)


def _longest(cumulative: Tensor, stated: int, tokens: int, terms: bool) -> int:
    """The longest sequence where the host can read it, else max_seqlen or the tokens; with terms, their size."""
    bound = tokens if stated < 0 else stated
    if terms:
        return bound
    if type(cumulative) is not Tensor or cumulative.device.type != "cpu" or transforms_active():
        return min(bound, tokens)
    return int(cumulative.diff().max()) if cumulative.shape[0] > 1 else 0
