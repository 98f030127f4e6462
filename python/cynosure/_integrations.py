# SPDX-License-Identifier: Apache-2.0
"""What parts of torch want to know of the operators: FLOP formulas, and how DTensor may shard them.

Both are told when a call first needs it, so that nobody imports torch's counter or DTensor for us.
"""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

from cynosure._operators import (
    BIAS_GRAD,
    MASK_GRAD,
    NUMBERS,
    RETURN_LSE,
    SINKS_GRAD,
    TERMS,
    TRAINING,
    draw_seed,
    full,
    raw_backward,
    raw_forward,
)

# --- FLOP formulas, as torch counts its own attention: matmuls over all pairs, masked or not

_LAYOUTS = ("bshd", "sbhd", "bhsd", "thd")


def count_flops() -> None:
    """Gives torch.utils.flop_counter our formulas, and the counters that are at work."""
    counter = sys.modules.get("torch.utils.flop_counter")
    if counter is None or raw_forward.overloadpacket in getattr(counter, "flop_registry", {raw_forward.overloadpacket}):
        return
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    operators = (raw_forward.overloadpacket, raw_backward.overloadpacket)
    for operator, formula in zip(operators, (_forward_flops, _backward_flops), strict=True):
        counter.register_flop_formula(operator, get_raw=True)(formula)
    for mode in _get_current_dispatch_mode_stack():
        registry = getattr(getattr(mode, "counter", None), "flop_registry", None)
        if isinstance(registry, dict):
            registry.update({operator: counter.flop_registry[operator] for operator in operators})


def _forward_flops(query: Any, key: Any, value: Any, *rest: Any, **_: Any) -> int:
    """Two matmuls."""
    qk, pv = _matmuls(query, key, value, rest)
    return qk + pv


def _backward_flops(*args: Any, **_: Any) -> int:
    """Five: the scores once more, then for dp and dv, dq and dk."""
    plain = isinstance(args[6], int)  # without the gradient of the LSE
    query, key, value, _out, _lse, *rest = args[1 if plain else 2 :]
    qk, pv = _matmuls(query, key, value, rest)
    return 3 * qk + 2 * pv


def _matmuls(query: Any, key: Any, value: Any, rest: Any) -> tuple[int, int]:
    """FLOPs of q k^T and of p v."""
    rest = full(rest)
    layout = _LAYOUTS[rest[0] & 3]
    heads = query.shape[layout.index("h")]
    if layout == "thd":
        pairs = _ragged_pairs(query, key, *rest[TERMS][4:6], *rest[NUMBERS][:2])
    else:
        batch, sequence = layout.index("b"), layout.index("s")
        pairs = query.shape[batch] * query.shape[sequence] * key.shape[sequence]
    return 2 * heads * pairs * query.shape[-1], 2 * heads * pairs * value.shape[-1]


def _ragged_pairs(query: Any, key: Any, cu_q: Any, cu_k: Any, longest_q: Any, longest_k: Any) -> int:
    """The pairs of a ragged batch; of tensors without values as many as there may be, as torch counts them."""
    from torch._subclasses.fake_tensor import is_fake
    from torch._subclasses.functional_tensor import FunctionalTensor

    if any(is_fake(t) or isinstance(t, FunctionalTensor) or t.device.type == "meta" for t in (cu_q, cu_k)):
        most_q = longest_q if longest_q >= 0 else query.shape[0]
        most_k = longest_k if longest_k >= 0 else key.shape[0]
        return int((cu_q.shape[0] - 1) * most_q * most_k)
    return int((cu_q.diff().long() * cu_k.diff().long()).sum())


# --- DTensor


def as_dtensors(tensors: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The tensors of a call that failed, for a second try; None where DTensor is not why it failed.

    DTensor learns our rules here, and tensors beside DTensors become replicated ones: lengths, slopes, a bias.
    """
    tensor_module = sys.modules.get("torch.distributed.tensor")
    dtensor: Any = getattr(tensor_module, "DTensor", None)
    if dtensor is None:
        return None
    mesh = next((t.device_mesh for t in tensors if isinstance(t, dtensor)), None)
    if mesh is None:
        return None
    new = _tell_dtensor()
    if not new and all(t is None or isinstance(t, dtensor) for t in tensors):
        return None
    replicated = [tensor_module.Replicate()] * mesh.ndim  # type: ignore[union-attr]
    return tuple(
        [
            t if t is None or isinstance(t, dtensor) else dtensor.from_local(t, mesh, replicated, run_check=False)
            for t in tensors
        ]
    )


_told = False


def _tell_dtensor() -> bool:
    """Registers the sharding rules; whether that was new."""
    global _told
    if _told:
        return False
    from torch.distributed.tensor.experimental import register_sharding

    register_sharding(raw_forward)(_shard_forward)
    register_sharding(raw_backward)(_shard_backward)
    register_sharding(draw_seed)(_shard_draw)
    _told = True
    return True


def _shard_draw(like: Any) -> list[tuple[list[Any], list[Any]]]:
    """One seed for all ranks, whose generators must agree, as for torch's own random functions."""
    from torch.distributed.tensor import Replicate, Shard

    return [([Replicate()], [placement]) for placement in (Replicate(), *map(Shard, range(like.ndim)))]


def _shard_forward(query: Any, key: Any, value: Any, *rest: Any) -> list[tuple[list[Any], list[Any]]]:
    return [([w.out, w.lse], [w.q, w.kv, w.kv, *w.rest]) for w in _ways(query, key, rest)]


def _shard_backward(
    grad_out: Any, grad_lse: Any, query: Any, key: Any, value: Any, out: Any, lse: Any, *rest: Any
) -> list[tuple[list[Any], list[Any]]]:
    return [
        (
            [w.q, w.kv_grad, w.kv_grad, *w.term_grads],
            [w.out, None if grad_lse is None else w.lse, w.q, w.kv, w.kv, w.out, w.lse, *w.rest],
        )
        for w in _ways(query, key, rest)
    ]


class _Way:
    """One way to lay a call on a dimension of the mesh: a placement for each tensor."""

    def __init__(self, rest: Any, q: int | None, kv: int | None, axis: int | None, lse: int | None) -> None:
        """Sharded dimensions of q and out, of k and v, of [B, H, Sq, Skv], and of the LSE; None: replicated."""
        from torch.distributed.tensor import Partial, Replicate, Shard

        def placement(dim: int | None) -> Any:
            return Replicate() if dim is None else Shard(dim)

        attn_bias, attn_mask, alibi_slopes, sinks, seqlens_q, seqlens_k, dropout_seed = rest[TERMS]
        options = rest[0]

        def term(t: Any) -> Any:
            """Of [1 or B, 1 or H, 1 or Sq, 1 or Skv]."""
            return None if t is None else placement(None if axis is None or t.shape[axis] == 1 else axis)

        def grad(t: Any, bit: int, of_t: Any) -> Any:
            """What is replicated beside sharded sequences or heads has a part of its gradient on each."""
            if t is None or not options & bit:
                return None
            return Partial() if axis is not None and of_t == Replicate() else of_t

        def by(t: Any, dims: tuple[int | None, int | None]) -> Any:
            """A tensor with these dimensions for batch and heads."""
            return None if t is None else placement(None if axis is None else dims[axis])

        has_lse = bool(options & (TRAINING | RETURN_LSE))
        self.q = self.out = placement(q)
        self.kv = placement(kv)
        self.kv_grad = Partial() if kv is None and q is not None else self.kv
        self.lse = placement(lse if has_lse else None)
        bias, mask, of_sinks = term(attn_bias), term(attn_mask), by(sinks, (None, 0))
        slopes = by(alibi_slopes, (0, 1) if alibi_slopes is not None and alibi_slopes.ndim == 2 else (None, 0))
        terms = [
            bias,
            mask,
            slopes,
            of_sinks,
            by(seqlens_q, (0, None)),
            by(seqlens_k, (0, None)),
            by(dropout_seed, (None, None)),
        ]
        self.rest = [None, None, *terms, *[None] * len(rest[NUMBERS])]
        self.term_grads = [
            grad(attn_bias, BIAS_GRAD, bias),
            grad(attn_mask, MASK_GRAD, mask),
            grad(sinks, SINKS_GRAD, of_sinks),
        ]


def _ways(query: Any, key: Any, rest: Any) -> list[_Way]:
    """Replicated; by sequences; by heads. Which pairs dropout keeps hangs on both: with it, replicated."""
    ways = [_Way(rest, None, None, None, None)]
    dropout_p, options = rest[-1], rest[0]
    if dropout_p > 0:
        return ways
    layout = _LAYOUTS[options & 3]
    ragged = layout == "thd"
    head = layout.index("h")
    if not ragged:
        ways.append(_Way(rest, layout.index("b"), layout.index("b"), 0, 0))
    heads, kv_heads = query.shape[head], key.shape[head]
    of_lse = 0 if ragged else 1
    if heads == kv_heads or _divides(query.mesh, kv_heads):
        ways.append(_Way(rest, head, head, 1, of_lse))
    if kv_heads == 1 and heads > 1:
        ways.append(_Way(rest, head, None, 1, of_lse))
    return ways


def _divides(mesh: Any, kv_heads: int) -> bool:
    """Whatever dimensions of the mesh shard them, groups stay whole: as many key heads go to each."""
    sizes = [mesh.size(i) for i in range(mesh.ndim)]
    for count in range(1, mesh.ndim + 1):
        for some in itertools.combinations(sizes, count):
            parts = math.prod(some)
            if parts <= kv_heads and kv_heads % parts:
                return False
    return True
