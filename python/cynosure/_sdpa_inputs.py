# SPDX-License-Identifier: Apache-2.0
"""torch SDPA's inputs in our terms: checked as torch does, brought to [B, H, L, E], the mask a bool one or a bias.

Everything here traces. In the usual shapes, four dims that need no broadcasting, no length is looked at.
"""

from __future__ import annotations

from math import prod
from numbers import Real
from typing import Any, NoReturn

import torch
from torch import Tensor

from cynosure import _tracing
from cynosure._attention import _autocast
from cynosure._tracing import Traceable, compiling


def refuse(name: str, got: str, expected: str, kind: type[Exception] = RuntimeError) -> NoReturn:
    """The one form of our errors, of the type that torch raises."""
    raise kind(f"{name}: got {got}, expected {expected}")


class Inputs(Traceable):
    """A call in the terms of the operator, and how its output becomes that of the function."""

    q: Any
    k: Any
    v: Any
    attn_bias: Any
    attn_mask: Any  # bool
    causal: bool
    align: str
    scale: Any
    dropout_p: Any
    lead: Any  # the dims of the output before L, where they are not those of q; else None
    empty: bool  # the output's last dim is 0; the operator wants 1

    # Without a guard where traced code reads them.
    _tensor = Tensor
    _bool = torch.bool
    _dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    _is_any_autocast_enabled = staticmethod(torch._C._is_any_autocast_enabled)

    def take(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any,
        dropout_p: Any,
        is_causal: Any,
        scale: Any,
        enable_gqa: Any,
    ) -> None:
        """From the function's arguments. Raises what torch raises."""
        dropout_p = dropout_p if isinstance(dropout_p, float) else _number("dropout_p", dropout_p)
        self.scale = scale if scale is None or isinstance(scale, float) else _number("scale", scale)
        causal = is_causal if is_causal is True or is_causal is False else _flag("is_causal", is_causal)
        gqa = enable_gqa if enable_gqa is True or enable_gqa is False else _flag("enable_gqa", enable_gqa)
        self.causal, self.align = causal, "top_left" if causal else "bottom_right"
        if attn_mask is not None and type(attn_mask) is not self._tensor:
            attn_mask = self._without_causal_bias(query, key, attn_mask)
        if self._is_any_autocast_enabled() and isinstance(query, self._tensor):
            query, key, value, _, attn_mask, _ = _autocast(query.device.type, query, key, value, None, attn_mask, None)
        self._check_tensors(query, key, value, attn_mask)
        if causal and attn_mask is not None:
            raise RuntimeError("attn_mask: given together with is_causal, expected one of them")
        if not 0 <= dropout_p <= 1:
            refuse("dropout_p", str(dropout_p), "a probability from 0 to 1")
        self.dropout_p, self.lead, self.empty, self.attn_bias = dropout_p, None, False, None
        if query.is_nested or key.is_nested or value.is_nested:
            _check_nested(query, key, value, attn_mask, gqa)
        else:
            query, key, value, attn_mask = self._arranged(query, key, value, attn_mask, gqa)
        self.q, self.k, self.v, self.attn_mask = query, key, value, attn_mask

    def finished(self, out: Any) -> Any:
        """The function's output, from the operator's."""
        if self.empty:
            out = out[..., :0]
        return out if self.lead is None else out.reshape(*self.lead, *out.shape[-2:])

    def _same(self, a: Any, b: Any) -> Any:
        """Whether two sizes are equal; where a trace cannot know, they are."""
        return _tracing.guard_or_true(a == b) if compiling() else a == b

    def _check_tensors(self, query: Any, key: Any, value: Any, attn_mask: Any) -> None:
        for name, t in (("query", query), ("key", key), ("value", value)):
            if not isinstance(t, self._tensor):
                refuse(name, type(t).__name__, "a tensor", TypeError)
            if t.dtype != query.dtype:
                refuse(name, str(t.dtype), f"{query.dtype} as query")
            if t.device != query.device:
                refuse(name, f"a tensor on {t.device}", f"{query.device} as query")
            if t.dim() < 2:
                refuse(name, f"rank {t.dim()}", "2 dims or more")
        if query.dtype not in self._dtypes:
            kind = NotImplementedError if query.is_floating_point() or query.is_complex() else RuntimeError
            refuse("query", str(query.dtype), "float32, bfloat16, float16 or float64", kind)
        if attn_mask is None:
            return
        if not isinstance(attn_mask, self._tensor):
            refuse("attn_mask", type(attn_mask).__name__, "a tensor or None", TypeError)
        if attn_mask.dtype != self._bool and attn_mask.dtype != self._dtypes[0] and attn_mask.dtype != query.dtype:
            refuse("attn_mask", str(attn_mask.dtype), f"bool, float32 or {query.dtype} as query")
        if attn_mask.device != query.device:
            refuse("attn_mask", f"a tensor on {attn_mask.device}", f"{query.device} as query")

    def _without_causal_bias(self, query: Any, key: Any, mask: Any) -> Any:
        """The mask; None where it is a CausalBias, which becomes a diagonal."""
        from torch.nn.attention.bias import CausalBias, CausalVariant

        if not isinstance(mask, CausalBias):
            return mask
        if self.causal:
            raise ValueError("attn_mask: a CausalBias together with is_causal, expected one of them")
        self.causal = True
        if mask.variant == CausalVariant.UPPER_LEFT or mask.seq_len_q == mask.seq_len_kv:
            self.align = "top_left"
            return None
        lengths = query.shape[-2], key.shape[-2]
        if lengths != (mask.seq_len_q, mask.seq_len_kv):
            refuse("attn_mask", f"CausalBias of {mask.seq_len_q} and {mask.seq_len_kv}", f"the lengths {lengths}")
        return None

    def _arranged(self, q: Any, k: Any, v: Any, mask: Any, gqa: bool) -> tuple[Any, Any, Any, Any]:
        """q, k, v and a bool mask as the operator takes them. Sets the bias, and how the output goes back."""
        same = self._same
        if not same(k.shape[-1], q.shape[-1]):
            refuse("key", f"head dim {k.shape[-1]}", f"{q.shape[-1]} as query")
        if not same(v.shape[-2], k.shape[-2]):
            refuse("value", f"length {v.shape[-2]}", f"{k.shape[-2]} as key")
        if not (
            q.dim() == k.dim() == v.dim() == 4
            and same(k.shape[0], q.shape[0])
            and same(v.shape[0], q.shape[0])
            and (gqa or same(k.shape[1], q.shape[1]))
            and same(v.shape[1], k.shape[1])
            and q.shape[1] != 0
            and (mask is None or mask.dim() <= 4)
        ):
            q, k, v, mask, self.lead = _four_dims(q, k, v, mask, gqa, same)
        elif mask is not None and mask.dim() < 4:
            mask = mask[(None,) * (4 - mask.dim())]
        if mask is not None and mask.dtype != self._bool:
            length = k.shape[-2]
            if mask.shape[-1] != 1 and not same(mask.shape[-1], length):
                refuse("attn_mask", f"{mask.shape[-1]} columns", f"1 or {length}, the length of key")
            self.attn_bias, mask = mask.expand(-1, -1, -1, length), None
        if v.shape[-1] == 0:
            v, self.empty = _padded(v), True
        if q.shape[-1] == 0:  # all scores are 0
            q, k, self.scale = _padded(q), _padded(k), 1.0
        return q, k, v, mask


def _number(name: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.dim() == 0 and not value.requires_grad:
        return float(value)
    if not isinstance(value, (int, torch.SymFloat, torch.SymInt, Real)):
        refuse(name, type(value).__name__, "a float", TypeError)
    return float(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, torch.SymBool)):
        refuse(name, type(value).__name__, "True or False", TypeError)
    return True if value else False  # noqa: SIM210  # a condition on sizes becomes one on this call


def _check_nested(query: Any, key: Any, value: Any, attn_mask: Any, gqa: bool) -> None:
    if attn_mask is not None:
        raise ValueError("attn_mask: given with nested tensors, expected None")
    for name, t in (("query", query), ("key", key), ("value", value)):
        if not t.is_nested or t.layout != torch.jagged:
            what = f"layout {t.layout}" if t.is_nested else "a tensor that is not nested"
            refuse(name, what, "a nested one of layout torch.jagged as query, key or value", ValueError)
        if t.dim() != 4 or t._ragged_idx != 2:
            refuse(name, f"rank {t.dim()}, jagged in dim {t._ragged_idx}", "[B, j, H, E].transpose(1, 2)", ValueError)
    if not gqa and query.shape[1] != key.shape[1]:
        refuse("key", f"{key.shape[1]} heads", f"{query.shape[1]} as query, or enable_gqa=True")


# --- other shapes


def _broadcast(same: Any, names: str, *sizes: Any) -> Any:
    """The one size that is not 1."""
    common = 1
    for size in sizes:
        if common == 1:
            common = size
        elif size != 1 and not same(size, common):
            refuse(names, f"sizes {', '.join([str(n) for n in sizes])} of one dim", "sizes that broadcast")
    return common


def _with_heads(t: Any, rank: int, gqa: bool) -> Any:
    """[..., H, L, E] of four dims or more, where the call has `rank`."""
    t = t[(None,) * (rank - t.dim())] if t.dim() < rank else t
    return t[None, None] if rank == 2 else t if rank > 3 else t[None] if gqa else t.unsqueeze(1)


def _four_dims(q: Any, k: Any, v: Any, mask: Any, gqa: bool, same: Any) -> tuple[Any, Any, Any, Any, tuple[Any, ...]]:
    """q, k, v and mask as [B, H, L, E], and the dims of the output before L."""
    rank = max(q.dim(), k.dim(), v.dim())
    if gqa and min(q.dim(), k.dim(), v.dim()) == 2:
        refuse("enable_gqa", "True with two dims", "three or more, heads being the third last", IndexError)
    if mask is not None and mask.dim() > rank:
        refuse("attn_mask", f"rank {mask.dim()}", f"at most {rank}")
    q, k, v = _with_heads(q, rank, gqa), _with_heads(k, rank, gqa), _with_heads(v, rank, gqa)
    heads, of_k, of_v = q.shape[-3], k.shape[-3], v.shape[-3]
    if gqa:
        if of_k == 0 or of_v == 0 or heads % of_k != 0 or heads % of_v != 0:
            refuse("key, value", f"{of_k} and {of_v} heads", f"divisors of the {heads} heads of query")
        if of_k != of_v:
            k, v = k.repeat_interleave(heads // of_k, -3), v.repeat_interleave(heads // of_v, -3)
            of_k = of_v = heads
        scores = [heads]
    else:
        scores = [_broadcast(same, "query, key", heads, of_k)]
        heads = _broadcast(same, "query, key, value", heads, of_k, of_v)
        if of_k != 1 or of_v != 1:  # one head for all is a group
            of_k = of_v = heads
    axes = range(q.dim() - 3)
    batches = [_broadcast(same, "query, key, value", q.shape[i], k.shape[i], v.shape[i]) for i in axes]
    if mask is not None:
        mask = _with_heads(mask, rank, gqa)
        scores = [
            *[_broadcast(same, "query, key", q.shape[i], k.shape[i]) for i in axes],
            *scores,
            q.shape[-2],
            k.shape[-2],
        ]
        for i, size in enumerate(mask.shape):
            if size != 1 and not same(size, scores[i]):
                refuse("attn_mask", f"{size} in a dim", f"1 or {scores[i]} as the scores {scores}")
        if heads == 0 or any([size != 1 for size in mask.shape[:-3]]):  # noqa: C419  # traced
            mask = _flattened(mask, batches, mask.shape[-3] if heads else 0)
        else:
            mask = mask.reshape(1, *mask.shape[-3:])
    lead = [heads] if rank == 3 and gqa else batches if rank == 3 else [] if rank == 2 else [*batches, heads]
    q, k, v = _flattened(q, batches, heads), _flattened(k, batches, of_k), _flattened(v, batches, of_v)
    return q, k, v, mask, tuple(lead)


def _flattened(t: Any, batches: list[Any], heads: Any) -> Any:
    """[*batches, heads, ...] in four dims. No heads are an empty batch of one: there is nothing to do."""
    t = t.expand(*batches, heads, -1, -1)
    if heads == 0:
        return t.reshape(0, 1, *t.shape[-2:])
    return t if t.dim() == 4 else t.reshape(prod(batches), *t.shape[-3:])


def _padded(t: Any) -> Any:
    return torch.nn.functional.pad(t, (0, 1))
