# SPDX-License-Identifier: Apache-2.0
"""attention under torch.func's transforms, and the gradients that may not be differentiated again.

`Forward` and `Gradients` are the raw pair as torch.func wants a Function: a batch that vmap adds is folded into the
call's own. What has no batch of its own (ragged batches, sinks, the seed of dropout) is taken sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C import _functorch

from cynosure._operators import (
    BIAS_GRAD,
    LSE_GRAD,
    MASK_GRAD,
    NUMBERS,
    RETURN_LSE,
    SINKS_GRAD,
    TERMS,
    TRAINING,
    raw_backward,
    raw_forward,
    typed,
)

_BATCH_AXIS = (0, 1, 0)  # of q, k and v in bshd, sbhd and bhsd
_OPTIONS, _SINKS, _DROPOUT_P = 3, 8, 18  # of the raw forward; the gradients have 4 more before


def run(q: Any, k: Any, v: Any, rest: tuple[Any, ...]) -> tuple[Any, Any]:
    """(out, lse) by way of torch.func."""
    bits = 0
    if torch.is_grad_enabled():
        attn_bias, attn_mask, _, sinks = rest[TERMS][:4]
        bits = TRAINING if any(_wants_gradient(t) for t in (q, k, v)) else 0
        for tensor, bit in ((attn_bias, BIAS_GRAD), (attn_mask, MASK_GRAD), (sinks, SINKS_GRAD)):
            if _wants_gradient(tensor):
                bits |= TRAINING | bit
        if bits and rest[0] & RETURN_LSE and q.device.type == "cpu":
            bits |= LSE_GRAD
    result: tuple[Any, Any] = Forward.apply(q, k, v, rest[0] | bits, *rest[1:])
    return result


def _wants_gradient(t: Any) -> bool:
    """At any level of the transforms."""
    if t is None or not t.is_floating_point():
        return False
    while not t.requires_grad:
        if not _functorch.is_functorch_wrapped_tensor(t):
            return False
        t = _functorch.get_unwrapped(t)
    return True


def refuse_forward_mode() -> NoReturn:
    """For jvp, jacfwd, hessian and dual tensors."""
    raise NotImplementedError(
        "cynosure.attention: forward-mode differentiation (jvp, jacfwd, hessian, dual tensors) is not implemented; "
        'reverse mode is: grad, vjp, jacrev, and jacrev(jacrev(...)) with backend="unfused" for second derivatives'
    )


def refuse_dual_tensors(*tensors: Any) -> None:
    """The operators would drop a tangent in silence."""
    for t in tensors:
        if t is not None and t.is_floating_point() and torch.autograd.forward_ad.unpack_dual(t).tangent is not None:
            refuse_forward_mode()


class Forward(torch.autograd.Function):
    """The raw forward: (out, lse)."""

    @staticmethod
    def forward(*args: Any) -> Any:
        """The operator itself."""
        try:
            return raw_forward(*args)
        except RuntimeError as error:
            typed(error)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """As Attention keeps them."""
        rest = inputs[3:]
        ctx.save_for_backward(*inputs[:3], *output, *rest[TERMS])
        ctx.rest = (rest[:2], rest[NUMBERS])
        ctx.set_materialize_grads(False)
        if not inputs[_OPTIONS] & LSE_GRAD:
            ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad_out: Any, grad_lse: Any) -> Any:
        """Always differentiable: torch.func may ask for it."""
        from cynosure import _second_order

        if grad_out is None and grad_lse is None:
            return (None,) * 19
        q, k, v, out, lse, *tensors = ctx.saved_tensors
        dq, dk, dv, dbias, dmask, dsinks = _second_order.backward(
            q, k, v, out, lse, (*ctx.rest[0], *tensors, *ctx.rest[1]), grad_out, grad_lse
        )
        return dq, dk, dv, None, None, dbias, dmask, None, dsinks, *(None,) * 10

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Not implemented."""
        refuse_forward_mode()

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """The batch of vmap before the call's own."""
        n, dims = info.batch_size, args[_OPTIONS] & 3
        if _one_by_one(args, in_dims, 0):
            return _loop(Forward.apply, n, in_dims, args)
        axis = _BATCH_AXIS[dims]
        fold = _Fold(n, args[0].shape[axis if in_dims[0] is None or in_dims[0] > axis else axis + 1])
        qkv = [fold.axis(t, d, axis) for t, d in zip(args[:3], in_dims[:3], strict=True)]
        out, lse = Forward.apply(*qkv, *fold.rest(args[3:], in_dims[3:]))
        if lse.dim() == 1:
            return (fold.back(out, axis), lse), (axis, None)
        return (fold.back(out, axis), fold.back(lse, 0)), (axis, 0)


class Gradients(torch.autograd.Function):
    """The raw backward: those of its gradients that are wanted. Differentiating them raises."""

    @staticmethod
    def forward(*args: Any) -> Any:
        """The operator itself."""
        try:
            return tuple([grad for grad in raw_backward(*args) if grad is not None])
        except RuntimeError as error:
            typed(error)

    @staticmethod
    def of(*args: Any) -> list[Any]:
        """(dq, dk, dv, dbias, dmask, dsinks), None where it is not wanted."""
        found = iter(Gradients.apply(*args))
        return [next(found) if there else None for there in _wanted(args)]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Not there."""
        raise RuntimeError(
            "cynosure.attention: the backend of this call has no second derivative; "
            'backend="unfused" has one (in the call, or CYNOSURE_BACKEND=unfused)'
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Not implemented."""
        refuse_forward_mode()

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """As Forward's."""
        n, options = info.batch_size, args[_OPTIONS + 4]
        if options & SINKS_GRAD or _one_by_one(args, in_dims, 4):
            return _loop(Gradients.apply, n, in_dims, args)
        axis = _BATCH_AXIS[options & 3]
        fold = _Fold(n, args[2].shape[axis if in_dims[2] is None or in_dims[2] > axis else axis + 1])
        axes = (axis, 0, axis, axis, axis, axis, 0)  # grad_out, grad_lse, q, k, v, out, lse
        tensors = [fold.axis(t, d, a) for t, d, a in zip(args[:7], in_dims[:7], axes, strict=True)]
        dq, dk, dv, *terms = Gradients.apply(*tensors, *fold.rest(args[7:], in_dims[7:], options))
        given = [(args[i], in_dims[i]) for i, there in ((9, 3), (10, 4)) if _wanted(args)[there]]
        terms = [fold.back_term(grad, t, d) for grad, (t, d) in zip(terms, given, strict=True)]
        return (*[fold.back(t, axis) for t in (dq, dk, dv)], *terms), (axis,) * 3 + (0,) * len(terms)


def _wanted(args: Any) -> tuple[bool, ...]:
    """Which gradients these arguments of the raw backward ask for."""
    attn_bias, attn_mask, _, sinks = args[7:][TERMS][:4]
    options = args[_OPTIONS + 4]
    return (
        True,
        True,
        True,
        attn_bias is not None and bool(options & BIAS_GRAD),
        attn_mask is not None and bool(options & MASK_GRAD),
        sinks is not None and bool(options & SINKS_GRAD),
    )


def _one_by_one(args: Any, in_dims: Any, skip: int) -> bool:
    """Nothing to fold the batch into; or a rank is wrong, which the operator says best for one sample."""
    options, dropout_p = args[_OPTIONS + skip], args[_DROPOUT_P + skip]
    if options & 3 == 3 or dropout_p > 0 or in_dims[_SINKS + skip] is not None:
        return True
    first = 0 if skip == 0 else 2
    return any(
        t.dim() - (d is not None) != 4 for t, d in zip(args[first : first + 3], in_dims[first : first + 3], strict=True)
    )


def _loop(apply: Callable[..., Any], n: int, in_dims: Any, args: Any) -> Any:
    """Sample by sample, results stacked."""
    samples = [
        apply(*[t if d is None else t.select(d, i) for t, d in zip(args, in_dims, strict=True)]) for i in range(n)
    ]
    results = tuple([torch.stack(list(of_all)) for of_all in zip(*samples, strict=True)])
    return results, (0,) * len(results)


class _Fold:
    """A batch of n samples of `batch` sequences each, as one of n * batch; samples vary slowest."""

    def __init__(self, n: int, batch: int) -> None:
        self.n, self.batch = n, batch

    def axis(self, t: Any, dim: int | None, axis: int) -> Any:
        """A tensor whose batch lies at an axis, and vmap's at `dim`."""
        if t is None:
            return None
        if dim is None:
            t = t.unsqueeze(axis)
            t = t.expand(*t.shape[:axis], self.n, *t.shape[axis + 1 :])
        else:
            t = t.movedim(dim, axis)
        return t.flatten(axis, axis + 1)

    def term(self, t: Any, dim: int | None, of_each: bool) -> Any:
        """[1 or B, ...]; `of_each`: a sample needs its own, for its gradient."""
        if t is None or (dim is None and t.shape[0] == 1 and not of_each):
            return t
        t = t.expand(self.n, *t.shape) if dim is None else t.movedim(dim, 0)
        return t.expand(self.n, self.batch, *t.shape[2:]).flatten(0, 1)

    def rest(self, rest: Any, in_dims: Any, options: int = 0) -> list[Any]:
        """The shared arguments."""
        _, _, attn_bias, attn_mask, alibi_slopes, sinks, seqlens_q, seqlens_k, *others = rest
        _, _, bias, mask, slopes, _, of_q, of_k, *_ = in_dims
        if alibi_slopes is not None and not (slopes is None and alibi_slopes.dim() == 1):
            if alibi_slopes.dim() - (slopes is not None) == 1:
                alibi_slopes, slopes = alibi_slopes.movedim(slopes, 0)[:, None], 0
            alibi_slopes = self.term(alibi_slopes, slopes, True)
        same = seqlens_q is seqlens_k
        seqlens_q = self.axis(seqlens_q, of_q, 0)
        return [
            *rest[:2],
            self.term(attn_bias, bias, bool(options & BIAS_GRAD)),
            self.term(attn_mask, mask, bool(options & MASK_GRAD)),
            alibi_slopes,
            sinks,
            seqlens_q,
            seqlens_q if same else self.axis(seqlens_k, of_k, 0),
            *others,
        ]

    def back(self, t: Tensor, axis: int) -> Tensor:
        """The two batches apart; vmap's lies at `axis`."""
        return t.reshape(*t.shape[:axis], self.n, self.batch, *t.shape[axis + 1 :])

    def back_term(self, grad: Tensor, t: Tensor, dim: int | None) -> Tensor:
        """Of what `term` made for each sample: [n, 1 or B, ...]."""
        grad = self.back(grad, 0)
        own = t.shape[0] if dim is None else t.movedim(dim, 0).shape[1]
        return grad if own == self.batch else grad.sum(1, keepdim=True)
