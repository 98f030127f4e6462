# SPDX-License-Identifier: Apache-2.0
"""The operators, as torch sees them: loaded, given fake kernels, and differentiated.

Three layers, so that a compiled graph holds no autograd.Function and no guard on a length:

* `cynosure::attention` names every argument and is what Dynamo records. Its kernel, `_surface`, runs `Attention`.
* `cynosure::attention_forward` and `cynosure::attention_backward` are the raw pair (src/torch), without a derivative.
  AOT graphs and exported programs hold only these.
* eager code calls `Attention.apply`, or the raw forward where no gradient is wanted.

Importing this module imports torch.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from cynosure import _core
from cynosure.device import OPERATORS
from cynosure.errors import NoBackendError

# The bits of the argument `options` of the raw pair; src/torch/arguments.hpp has the same table.
DIMS = {"bshd": 0, "sbhd": 1, "bhsd": 2, "thd": 3}
CAUSAL, TOP_LEFT, TRAINING, RETURN_LSE, LSE_GRAD = 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 6
BIAS_GRAD, MASK_GRAD, SINKS_GRAD, SCALE_GIVEN, CHECK = 1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 11
CPU_ISA_SHIFT = 12

_SEQUENCE_AXIS = (1, 0, 2, 0)
_HEAD_AXIS = (2, 2, 1, 1)

if not OPERATORS.exists():
    raise ImportError(
        f"cynosure: {OPERATORS.name} is not in this build, which has the core and the command line only: torch 2.10 or "
        "newer was not there when it was built. Install torch, then: pip install --no-build-isolation cynosure"
    )
torch.ops.load_library(str(OPERATORS))
_library = torch.library.Library("cynosure", "FRAGMENT")  # noqa: TOR901  # lives as long as this module
_library.define("draw_seed(Tensor like) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))

surface = torch.ops.cynosure.attention.default
raw_forward = torch.ops.cynosure.attention_forward.default
raw_backward = torch.ops.cynosure.attention_backward.default
draw_seed = torch.ops.cynosure.draw_seed.default


def typed(error: BaseException) -> NoReturn:
    """Raises an operator's error with its type: operators can only throw a RuntimeError."""
    kind, text = _core.take_error()
    if kind and text in str(error):
        raise (ValueError, TypeError, NoBackendError)[kind - 1](text) from None
    raise error


# --- fake kernels: shapes, dtypes and strides, and every check that sizes allow

_KINDS = {"cpu": 0, "cuda": 1, "xpu": 12, "mps": 13, "meta": 14}


def _known(size: Any) -> int:
    """A size as a number, -1 for one that is symbolic."""
    return size if type(size) is int else -1


def _info(tensor: Any) -> tuple[Any, ...] | None:
    if tensor is None:
        return None
    device = tensor.device
    kind = _KINDS.get(device.type, 20)
    sizes = tuple([_known(n) for n in tensor.shape])
    return str(tensor.dtype).removeprefix("torch."), sizes, kind, -1 if device.index is None else device.index


def _check(
    q: Any,
    k: Any,
    v: Any,
    attn_bias: Any,
    attn_mask: Any,
    alibi_slopes: Any,
    sinks: Any,
    seqlens_q: Any,
    seqlens_k: Any,
    dropout_seed: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    window_left: int,
    window_right: int,
    scale: Any,
    softcap: Any,
    dropout_p: Any,
    options: int,
    settings: int,
) -> None:
    tensors = (q, k, v, attn_bias, attn_mask, alibi_slopes, sinks, seqlens_q, seqlens_k, dropout_seed)

    def number(value: Any, unknown: float) -> float:
        return value if isinstance(value, (int, float)) else unknown

    error = _core.check_call(
        tuple([_info(t) for t in tensors]),
        _known(max_seqlen_q),
        _known(max_seqlen_k),
        window_left,
        window_right,
        number(scale, 1.0),
        number(softcap, 0.0),
        number(dropout_p, 0.0 if dropout_seed is None else 0.5),
        options & 3,
        bool(options & CAUSAL),
    )
    if error is not None:
        raise ValueError(error)


def _dense(like: Any, dims: int, rows: Any, heads: Any, width: Any) -> Any:
    """Uninitialised, with the strides that src/torch gives."""
    if dims == 3:
        return like.new_empty((rows, heads, width))
    if dims == 1:
        return like.new_empty((rows, like.shape[1], heads, width))
    out = like.new_empty((like.shape[0], rows, heads, width))
    return out.transpose(1, 2) if dims == 2 else out


@torch.library.register_fake("cynosure::attention_forward")
def _fake_forward(q: Any, k: Any, v: Any, *rest: Any) -> tuple[Any, Any]:
    _check(q, k, v, *rest)
    options = rest[-2]
    dims = options & 3
    rows, heads = q.shape[_SEQUENCE_AXIS[dims]], q.shape[_HEAD_AXIS[dims]]
    out = _dense(q, dims, rows, heads, v.shape[-1])
    if not options & (TRAINING | RETURN_LSE):
        shape: tuple[Any, ...] = (0,)
    elif dims == 3:
        shape = (heads, rows)
    else:
        shape = (q.shape[1 if dims == 1 else 0], heads, rows)
    return out, q.new_empty(shape, dtype=torch.float32)


@torch.library.register_fake("cynosure::attention_backward")
def _fake_backward(
    grad_out: Any, grad_lse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any
) -> tuple[Any, ...]:
    _check(q, k, v, *rest)
    attn_bias, attn_mask, _, sinks = rest[:4]
    options = rest[-2]
    dims = options & 3
    s, h = _SEQUENCE_AXIS[dims], _HEAD_AXIS[dims]
    grads = [_dense(t, dims, t.shape[s], t.shape[h], t.shape[-1]) for t in (q, k, v)]
    for tensor, bit in ((attn_bias, BIAS_GRAD), (attn_mask, MASK_GRAD), (sinks, SINKS_GRAD)):
        grads.append(tensor.new_empty(tensor.shape) if tensor is not None and options & bit else None)
    return tuple(grads)


@torch.library.register_fake("cynosure::draw_seed")
def _fake_draw_seed(like: Any) -> Any:
    return like.new_empty((2,), dtype=torch.int64)


# --- derivatives

# Of the arguments of the raw forward: q, k, v, then the shared ones.
_TENSORS = 10  # q, k, v, attn_bias, attn_mask, alibi_slopes, sinks, seqlens_q, seqlens_k, dropout_seed
_BIAS, _MASK, _SINKS = 3, 4, 6


def _zeros_for(out: Any, grad_out: Any) -> Any:
    return torch.zeros_like(out) if grad_out is None else grad_out


def _gradients(grads: Any) -> tuple[Any, ...]:
    """What backward returns: a gradient, or None, for each argument of the raw forward."""
    dq, dk, dv, dbias, dmask, dsinks = grads
    return dq, dk, dv, dbias, dmask, None, dsinks, None, None, None, *([None] * 9)


class Attention(torch.autograd.Function):
    """The raw pair as one differentiable call: (out, lse)."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:  # type: ignore[override]
        """The raw forward."""
        out, lse = raw_forward(*args)
        ctx.save_for_backward(*args[:_TENSORS], out, lse)
        ctx.rest = args[_TENSORS:]
        ctx.set_materialize_grads(False)
        if not args[-2] & LSE_GRAD:
            ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Any, grad_lse: Any) -> Any:  # type: ignore[override]
        """The raw backward; a second derivative goes by way of `unfused`, or raises."""
        saved = ctx.saved_tensors
        if grad_out is None and grad_lse is None:
            return (None,) * (_TENSORS + len(ctx.rest))
        if torch.is_grad_enabled():
            return _differentiable_backward(saved, ctx.rest, grad_out, grad_lse)
        q, k, v = saved[:3]
        out, lse = saved[_TENSORS:]
        try:
            grads = raw_backward(
                _zeros_for(out, grad_out), grad_lse, q, k, v, out, lse, *saved[3:_TENSORS], *ctx.rest
            )
        except RuntimeError as error:
            typed(error)
        return _gradients(grads)


def _differentiable_backward(saved: Any, rest: Any, grad_out: Any, grad_lse: Any) -> Any:
    from cynosure import _second_order

    return _second_order.backward(saved[:_TENSORS], rest, saved[_TENSORS:], grad_out, grad_lse)


def raw_arguments(
    q: Any,
    k: Any,
    v: Any,
    settings: int,
    *,
    dims: int,
    causal: bool,
    top_left: bool,
    window: tuple[int, int],
    attn_bias: Any,
    attn_mask: Any,
    alibi_slopes: Any,
    softcap: float,
    sinks: Any,
    scale: float | None,
    dropout_p: float,
    dropout_seed: Any,
    lengths: tuple[Any, Any],
    longest: tuple[Any, Any],
    return_lse: bool,
    lse_grad: bool,
    runtime: int,
) -> tuple[tuple[Any, ...], bool]:
    """The arguments of the raw forward, and whether a gradient is wanted."""
    options = dims | runtime
    if causal:
        options |= CAUSAL
    if top_left:
        options |= TOP_LEFT
    if scale is not None:
        options |= SCALE_GIVEN
    if return_lse:
        options |= RETURN_LSE
        if lse_grad or q.device.type == "cpu":
            options |= LSE_GRAD
    training = False
    if torch.is_grad_enabled():
        training = q.requires_grad or k.requires_grad or v.requires_grad
        for tensor, bit in ((attn_bias, BIAS_GRAD), (attn_mask, MASK_GRAD), (sinks, SINKS_GRAD)):
            if tensor is not None and tensor.requires_grad:
                training = True
                options |= bit
        if training:
            options |= TRAINING
    return (
        q,
        k,
        v,
        attn_bias,
        attn_mask,
        alibi_slopes,
        sinks,
        lengths[0],
        lengths[1],
        dropout_seed,
        longest[0],
        longest[1],
        window[0],
        window[1],
        1.0 if scale is None else scale,
        softcap,
        dropout_p,
        options,
        settings,
    ), training


def run(args: tuple[Any, ...], training: bool) -> tuple[Any, Any]:
    """Calls the raw forward, through autograd where a gradient is wanted."""
    if training:
        result: tuple[Any, Any] = Attention.apply(*args)
        return result
    result = raw_forward(*args)
    return result


def _surface(
    query: Any,
    key: Any,
    value: Any,
    settings: int,
    causal: bool = False,
    *,
    layout: str = "bshd",
    align: str = "bottom_right",
    window_left: int = -1,
    window_right: int = -1,
    attn_bias: Any = None,
    attn_mask: Any = None,
    alibi_slopes: Any = None,
    softcap: float = 0.0,
    sinks: Any = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    dropout_seed: Any = None,
    seqlens_q: Any = None,
    seqlens_k: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: Any = None,
    max_seqlen_k: Any = None,
    return_lse: bool = False,
    lse_grad: bool = False,
    runtime: int = 0,
) -> tuple[Any, Any]:
    """The kernel of `cynosure::attention`."""
    ragged = layout == "thd"
    args, training = raw_arguments(
        query,
        key,
        value,
        settings,
        dims=DIMS[layout],
        causal=causal,
        top_left=align == "top_left",
        window=(window_left, window_right),
        attn_bias=attn_bias,
        attn_mask=attn_mask,
        alibi_slopes=alibi_slopes,
        softcap=softcap,
        sinks=sinks,
        scale=scale,
        dropout_p=dropout_p,
        dropout_seed=dropout_seed,
        lengths=(cu_seqlens_q, cu_seqlens_k) if ragged else (seqlens_q, seqlens_k),
        longest=(-1 if max_seqlen_q is None else max_seqlen_q, -1 if max_seqlen_k is None else max_seqlen_k),
        return_lse=return_lse,
        lse_grad=lse_grad,
        runtime=runtime,
    )
    return run(args, training)


_library.impl("attention", _surface, "CompositeImplicitAutograd")
