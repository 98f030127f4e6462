# SPDX-License-Identifier: Apache-2.0
"""Jagged nested tensors as ragged batches: their values are tokens, their offsets the cumulative lengths."""

from __future__ import annotations

from typing import Any

import torch

# Of `attention`: what has no meaning for ragged sequences of its own, and what the offsets say.
_NOT_NESTED = (
    "attn_bias",
    "attn_mask",
    "seqlens_q",
    "seqlens_k",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "max_seqlen_q",
    "max_seqlen_k",
)


def nested_attention(given: dict[str, Any]) -> Any:
    """`cynosure.attention` on jagged nested tensors.

    Args:
        given: all arguments of `attention`. q is [B, j, H, D], k and v are [B, j', Hkv, D] and [B, j', Hkv, Dv], all
            jagged in dim 1; layout is "bshd", and bias, mask and lengths are None.

    Returns:
        [B, j, H, Dv] with q's ragged structure; with return_lse also the LSE, [B, H, j].

    Raises:
        ValueError: naming the argument.
    """
    from cynosure._attention import attention

    rest = {name: value for name, value in given.items() if name not in ("q", "k", "v", "layout", *_NOT_NESTED)}
    if given["layout"] != "bshd":
        raise ValueError(f"layout: got {given['layout']!r} with nested tensors, expected 'bshd'")
    for name in _NOT_NESTED:
        if given[name] is not None:
            raise ValueError(f"{name}: given with nested tensors, expected None")
    (q, cu_q), (k, cu_k), (v, _) = tokens(q=given["q"], k=given["k"], v=given["v"])
    result = attention(q, k, v, layout="thd", cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, **rest)
    if not given["return_lse"]:
        return of_tokens(result, given["q"])
    return of_tokens(result[0], given["q"]), of_tokens(result[1], given["q"], jagged_dim=2)


def tokens(**tensors: Any) -> list[tuple[Any, Any]]:
    """(values [T, H, D], int32 offsets [B + 1]) of nested tensors [B, j, H, D] by name. No copy of data, no sync."""
    found: list[tuple[Any, Any]] = []
    seen: list[tuple[Any, Any]] = []
    for name, t in tensors.items():
        if not t.is_nested or t.layout != torch.jagged:
            what = f"a nested tensor of layout {t.layout}" if t.is_nested else "a tensor that is not nested"
            raise ValueError(f"{name}: got {what}, expected one of layout torch.jagged as the others")
        if t.dim() != 4 or t._ragged_idx != 1:
            raise ValueError(f"{name}: got rank {t.dim()}, jagged in dim {t._ragged_idx}, expected rank 4 and dim 1")
        if t.lengths() is not None:  # holes
            t = t.contiguous()
        offsets = t.offsets()
        cu_seqlens = None
        for other, converted in seen:  # equal lengths stay one tensor
            if other is offsets:
                cu_seqlens = converted
        if cu_seqlens is None:
            cu_seqlens = offsets.to(torch.int32)
            seen.append((offsets, cu_seqlens))
        found.append((t.values(), cu_seqlens))
    return found


def of_tokens(values: Any, like: Any, jagged_dim: int = 1) -> Any:
    """The nested tensor of these values with the ragged structure of `like`."""
    if like.lengths() is not None:
        like = like.contiguous()
    return torch.nested.nested_tensor_from_jagged(
        values,
        like.offsets(),
        jagged_dim=jagged_dim,
        min_seqlen=like._maybe_min_seqlen,
        max_seqlen=like._maybe_max_seqlen,
    )
