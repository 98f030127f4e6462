# SPDX-License-Identifier: Apache-2.0
"""Jagged nested tensors: the operators run them as ragged batches.

[B, j, H, D] ("bshd"), or its transpose(1, 2) ("bhsd"), is "thd" as it lies in memory: its values are the tokens and its
offsets the cumulative lengths. Nothing is copied and nothing waits for a device. Outputs and gradients are nested with
the ragged structure of what they belong to; the LSE is [B, H, j].
"""

from __future__ import annotations

from typing import Any

import torch

from cynosure._operators import DIMS, _library, draw_seed, raw_backward, raw_forward

_DIMS = 0x3  # bits of the options that hold the layout
_RAGGED_DIM = {DIMS["bshd"]: 1, DIMS["bhsd"]: 2}
# Of the shared arguments: terms that have no shape for sequences of their own lengths, and the lengths.
_SEQLENS_Q, _SEQLENS_K = 6, 7
_NOT_NESTED = {2: "attn_bias", 3: "attn_mask", _SEQLENS_Q: "seqlens_q", _SEQLENS_K: "seqlens_k"}


def register() -> None:
    """Teaches the operators jagged nested tensors, in eager and in compiled code. Called once, on import."""
    from torch.nested._internal.nested_tensor import NestedTensor

    for operator, rule in ((raw_forward, _forward), (raw_backward, _backward), (draw_seed, _draw_seed)):
        # torch gives every key of autograd a fallthrough but that of nested tensors
        _library.impl(operator._schema.name, torch.library.fallthrough_kernel, "AutogradNestedTensor")
        torch.library.register_torch_dispatch(operator, NestedTensor, rule)


def _forward(cls: Any, operator: Any, types: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    q, k, v, *rest = args
    rest = ragged_rest(q, k, v, rest)
    out, lse = operator(_tokens(q), _tokens(k), _tokens(v), *rest)
    if lse.dim() == 1:  # not wanted
        return _nested(out, q), lse
    return _nested(out, q), _nested(lse, q, lse=True)


def _backward(cls: Any, operator: Any, types: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
    grad_out, grad_lse, q, k, v, out, lse, *rest = args
    rest = ragged_rest(q, k, v, rest)
    of_lse = None if grad_lse is None else grad_lse.values()
    dq, dk, dv, *others = operator(
        _tokens(grad_out), of_lse, _tokens(q), _tokens(k), _tokens(v), _tokens(out), lse.values(), *rest
    )
    return (_nested(dq, q), _nested(dk, k), _nested(dv, v), *others)


def _draw_seed(cls: Any, operator: Any, types: Any, args: Any, kwargs: Any) -> Any:
    return operator(args[0].values())


def ragged_rest(q: Any, k: Any, v: Any, rest: Any) -> Any:
    """The shared arguments as "thd" takes them."""
    rest = list(rest)
    dims = rest[0] & _DIMS
    for name, t in (("q", q), ("k", k), ("v", v)):
        if not t.is_nested:
            raise ValueError(f"{name}: got a tensor that is not nested, expected a jagged one as q, k or v")
        if t.dim() != 4 or t._ragged_idx != _RAGGED_DIM.get(dims):
            raise ValueError(
                f"{name}: got rank {t.dim()}, jagged in dim {t._ragged_idx}, expected [batch, j, heads, head dim] for "
                'layout "bshd" or its transpose(1, 2) for "bhsd"'
            )
        if t.lengths() is not None:
            raise ValueError(f"{name}: got a nested tensor with holes, expected none; pass {name}.contiguous()")
    for i, name in _NOT_NESTED.items():
        if rest[i] is not None:
            raise ValueError(f"{name}: given with nested tensors, expected None")
    if not _same_sequences(v, k):
        raise ValueError("v: its sequences are not those of k, expected one offsets tensor for both")
    rest[_SEQLENS_Q] = q.offsets().to(torch.int32)
    rest[_SEQLENS_K] = rest[_SEQLENS_Q] if k.offsets() is q.offsets() else k.offsets().to(torch.int32)
    rest[0] = rest[0] & ~_DIMS | DIMS["thd"]
    return rest


def _same_sequences(a: Any, b: Any) -> bool:
    """By the identity of their lengths, as torch sees it; on the CPU also by the values of their offsets."""
    if a.shape[a._ragged_idx] == b.shape[b._ragged_idx]:
        return True
    of_a, of_b = a.offsets(), b.offsets()
    return type(of_a) is torch.Tensor and of_a.device.type == "cpu" and torch.equal(of_a, of_b)


def _tokens(t: Any) -> Any:
    """[T, H, D]."""
    return t._values if t._ragged_idx == 1 else t._values.transpose(0, 1)


def _nested(t: Any, like: Any, lse: bool = False) -> Any:
    """The nested tensor of these tokens with the structure of another; or of the LSE [H, T]."""
    ragged = 2 if lse else like._ragged_idx
    return type(like)(
        t if lse or ragged == 1 else t.transpose(0, 1),
        offsets=like.offsets(),
        _ragged_idx=ragged,
        _metadata_cache=like._metadata_cache,
    )
