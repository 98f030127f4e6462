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

import importlib.util
import sys
import sysconfig
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad

from cynosure import _core
from cynosure.device import OPERATORS
from cynosure.errors import NoBackendError

# The bits of the argument `options` of the raw pair; src/torch/arguments.hpp has the same table.
DIMS = {"bshd": 0, "sbhd": 1, "bhsd": 2, "thd": 3}
CAUSAL, TOP_LEFT, TRAINING, RETURN_LSE, LSE_GRAD = 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 6
BIAS_GRAD, MASK_GRAD, SINKS_GRAD, SCALE_GIVEN, CHECK = 1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 11
CPU_ISA_SHIFT = 12
# In every graph, since torch's compile caches know a graph by its arguments and not by the schema of its operators: one
# made for other schemas must not be met again. Raised with each change of the schemas or of what a bit means.
REVISION = 2 << 16

_SEQUENCE_AXIS = (1, 0, 2, 0)
_HEAD_AXIS = (2, 2, 1, 1)

if not OPERATORS.exists():
    raise ImportError(
        f"cynosure: {OPERATORS.name} is not in this build, which has the core and the command line only: torch 2.10 or "
        "newer was not there when it was built. Install torch, then: pip install --no-build-isolation cynosure"
    )
torch.ops.load_library(str(OPERATORS))
_library = torch.library.Library("cynosure", "FRAGMENT")  # lives as long as this module
_library.define("draw_seed(Tensor like) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))

transforms_active = torch._C._are_functorch_transforms_active
_modes = torch._C._len_torch_dispatch_stack

surface = torch.ops.cynosure.attention.default
raw_forward = torch.ops.cynosure.attention_forward.default
raw_backward = torch.ops.cynosure.attention_backward.default
# The same for plain calls, without the arguments that those leave at their defaults: less host time.
plain_forward, plain_backward = torch.ops.cynosure.attention_forward.plain, torch.ops.cynosure.attention_backward.plain
plain_output = torch.ops.cynosure.attention_forward.output
draw_seed = torch.ops.cynosure.draw_seed.default


# What changes how a call runs, for _core.plain_word: each gives 0 or False in almost every process.
MODES = (transforms_active, _modes, torch._C._is_any_autocast_enabled)
FORWARD_AD = forward_ad.__dict__


def unusual() -> bool:
    """Whether a call meets torch.func's transforms, a dispatch mode or dual tensors; almost none does."""
    return transforms_active() or _modes() > 0 or forward_ad._current_level >= 0


def seed_of_call(like: Any) -> Any:
    """A seed for dropout from torch's generator, int64 [2]."""
    try:
        return draw_seed(like)
    except RuntimeError as error:
        return draw_seed(*_known_to_dtensor(error, like))


def typed(error: BaseException) -> NoReturn:
    """Raises an operator's error with its type: operators can only throw a RuntimeError."""
    kind, text = _core.take_error()
    if kind and text in str(error):
        _refuse((ValueError, TypeError, NoBackendError)[kind - 1](text))
    raise error


def _refuse(error: Any) -> NoReturn:
    error.refused = True  # told from what hooks and modes of the user's raise
    raise error from None


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
    options: int,
    settings: int,
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
        _refuse(ValueError(error))


def _dense(like: Any, dims: int, rows: Any, heads: Any, width: Any) -> Any:
    """Uninitialised, with the strides that src/torch gives."""
    if dims == 3:
        return like.new_empty((rows, heads, width))
    if dims == 1:
        return like.new_empty((rows, like.shape[1], heads, width))
    out = like.new_empty((like.shape[0], rows, heads, width))
    return out.transpose(1, 2) if dims == 2 else out


@torch.library.register_fake("cynosure::attention_forward.output")  # type: ignore[untyped-decorator]
def _fake_output(q: Any, k: Any, v: Any, *rest: Any) -> Any:
    _check(q, k, v, *full(rest))
    dims = rest[0] & 3
    return _dense(q, dims, q.shape[_SEQUENCE_AXIS[dims]], q.shape[_HEAD_AXIS[dims]], v.shape[-1])


@torch.library.register_fake("cynosure::attention_forward.plain")  # type: ignore[untyped-decorator]
@torch.library.register_fake("cynosure::attention_forward")  # type: ignore[untyped-decorator]
def _fake_forward(q: Any, k: Any, v: Any, *rest: Any) -> tuple[Any, Any]:
    out = _fake_output(q, k, v, *rest)
    options = rest[0]
    dims = options & 3
    rows, heads = q.shape[_SEQUENCE_AXIS[dims]], q.shape[_HEAD_AXIS[dims]]
    if not options & (TRAINING | RETURN_LSE):
        shape: tuple[Any, ...] = (0,)
    elif dims == 3:
        return out, q.new_empty((rows, heads), dtype=torch.float32).transpose(0, 1)
    else:
        shape = (q.shape[1 if dims == 1 else 0], heads, rows)
    return out, q.new_empty(shape, dtype=torch.float32)


@torch.library.register_fake("cynosure::attention_backward")  # type: ignore[untyped-decorator]
def _fake_backward(
    grad_out: Any, grad_lse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any
) -> tuple[Any, ...]:
    rest = full(rest)
    _check(q, k, v, *rest)
    attn_bias, attn_mask, _, sinks = rest[TERMS][:4]
    options = rest[0]
    dims = options & 3
    s, h = _SEQUENCE_AXIS[dims], _HEAD_AXIS[dims]
    grads = [_dense(t, dims, t.shape[s], t.shape[h], t.shape[-1]) for t in (q, k, v)]
    for tensor, bit in ((attn_bias, BIAS_GRAD), (attn_mask, MASK_GRAD), (sinks, SINKS_GRAD)):
        grads.append(tensor.new_empty(tensor.shape) if tensor is not None and options & bit else None)
    return tuple(grads)


@torch.library.register_fake("cynosure::attention_backward.plain")  # type: ignore[untyped-decorator]
def _fake_plain_backward(grad_out: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any) -> tuple[Any, ...]:
    return _fake_backward(grad_out, None, q, k, v, out, lse, *rest)[:3]  # type: ignore[no-any-return]


@torch.library.register_fake("cynosure::draw_seed")  # type: ignore[untyped-decorator]
def _fake_draw_seed(like: Any) -> Any:
    # torch 2.11 merges equal calls in a graph but for the operators of a list of its own, and does not look at the tag.
    random = getattr(sys.modules.get("torch._functorch.compile_utils"), "rand_ops", None)
    if isinstance(random, list) and draw_seed.overloadpacket not in random:
        random.append(draw_seed.overloadpacket)
    return like.new_empty((2,), dtype=torch.int64)


# --- derivatives
#
# The arguments of the raw forward come in two parts: q, k, v, and `rest`, the shared ones in the order of their schema:
# options, settings; attn_bias, attn_mask, alibi_slopes, sinks, seqlens_q, seqlens_k, dropout_seed; then numbers. Of a
# plain call, options and settings alone.

TERMS, NUMBERS = slice(2, 9), slice(9, 16)
DEFAULTS = (None, None, None, None, None, None, None, -1, -1, -1, -1, 1.0, 0.0, 0.0)  # behind options and settings


def full(rest: Any) -> tuple[Any, ...]:
    """All shared arguments, also of a plain call."""
    return (*rest, *DEFAULTS[len(rest) - 2 :])


def _counted() -> None:
    """For a counter of FLOPs around a backward pass alone."""
    if _modes() > 0:
        from cynosure import _integrations

        _integrations.count_flops()


def _zeros_for(out: Any, grad_out: Any) -> Any:
    return torch.zeros_like(out) if grad_out is None else grad_out


class Attention(torch.autograd.Function):
    """The raw pair as one differentiable call. Arguments: q, k, v, attn_bias, attn_mask, sinks, rest."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, attn_bias: Any, attn_mask: Any, sinks: Any, rest: Any) -> Any:
        """The raw forward: (out, lse)."""
        out, lse = raw_forward(q, k, v, *rest)
        ctx.save_for_backward(q, k, v, out, lse, *rest[TERMS])
        ctx.rest = (rest[:2], rest[NUMBERS])
        ctx.set_materialize_grads(False)
        if not rest[0] & LSE_GRAD:
            ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Any, grad_lse: Any) -> Any:
        """The raw backward; a second derivative goes by way of `unfused`, or raises."""
        _counted()
        q, k, v, out, lse, *tensors = ctx.saved_tensors
        if grad_out is None and grad_lse is None:
            return (None,) * 7
        two, numbers = ctx.rest
        rest = (*two, *tensors, *numbers)
        if torch.is_grad_enabled():
            dq, dk, dv, dbias, dmask, dsinks = _differentiable_backward(q, k, v, out, lse, rest, grad_out, grad_lse)
        else:
            try:
                dq, dk, dv, dbias, dmask, dsinks = raw_backward(
                    _zeros_for(out, grad_out), grad_lse, q, k, v, out, lse, *rest
                )
            except RuntimeError as error:
                typed(error)
        return dq, dk, dv, dbias, dmask, dsinks, None


class PlainAttention(torch.autograd.Function):
    """The same for a plain call, and the output alone: what most calls are, at less host time."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, rest: Any) -> Any:
        """The raw forward: out."""
        out, lse = plain_forward._op(q, k, v, *rest)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.rest = rest
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Any) -> Any:
        """The raw backward, or as in Attention."""
        return *_plain_backward(grad_out, *ctx.saved_tensors, *ctx.rest), None


def _differentiable_backward(
    q: Any, k: Any, v: Any, out: Any, lse: Any, rest: Any, grad_out: Any, grad_lse: Any
) -> Any:
    """(dq, dk, dv, dbias, dmask, dsinks) that can be differentiated once more, or that raise when they are."""
    from cynosure import _second_order

    return _second_order.backward(q, k, v, out, lse, rest, grad_out, grad_lse)


# Function.apply without its Python part, which looks for functorch's transforms: those take another way (_transforms).
apply_plain = super(torch.autograd.Function, PlainAttention).apply
_output = plain_output._op  # what the operator's __call__ calls


def _plain_in_python(q: Any, k: Any, v: Any, options: int, settings: int) -> Any:
    """A plain call, differentiated where that is wanted: out. For tensors of torch's own type."""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return apply_plain(q, k, v, (options | TRAINING, settings))
    return _output(q, k, v, options, settings)


def _eager_module() -> Any:
    """The module _eager, where this build has it for just this torch and Python; otherwise None."""
    torch_version = torch.__version__.split("+")[0]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    path = OPERATORS.with_name(f"_eager_torch{torch_version}{suffix}")
    if not path.exists():
        return None
    spec = importlib.util.spec_from_file_location("cynosure._eager", path)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _plain_backward(
    grad_out: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, options: int, settings: int
) -> tuple[Any, Any, Any]:
    """What _eager does not do in C++: PlainAttention.backward."""
    _counted()
    if torch.is_grad_enabled():
        dq, dk, dv, *_ = _differentiable_backward(q, k, v, out, lse, full((options, settings)), grad_out, None)
    else:
        try:
            dq, dk, dv = plain_backward._op(grad_out, q, k, v, out, lse, options, settings)
        except RuntimeError as error:
            typed(error)
    return dq, dk, dv


eager = _eager_module()
if eager is not None:
    eager.register(_plain_in_python, _plain_backward)
plain = _plain_in_python if eager is None else eager.attention


def rest_of(
    dims: int,
    causal: bool,
    top_left: bool,
    window_left: int,
    window_right: int,
    attn_bias: Any,
    attn_mask: Any,
    alibi_slopes: Any,
    softcap: float,
    sinks: Any,
    scale: float | None,
    dropout_p: float,
    dropout_seed: Any,
    seqlens_q: Any,
    seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    return_lse: bool,
    lse_grad: bool,
    runtime: int,
    settings: int,
) -> tuple[Any, ...]:
    """The shared arguments, but for the bits that say which gradients are wanted."""
    options = dims | runtime
    if causal:
        options |= CAUSAL
    if top_left:
        options |= TOP_LEFT
    if scale is not None:
        options |= SCALE_GIVEN
    if return_lse:
        options |= RETURN_LSE | LSE_GRAD if lse_grad else RETURN_LSE
    return (
        options,
        settings,
        attn_bias,
        attn_mask,
        alibi_slopes,
        sinks,
        seqlens_q,
        seqlens_k,
        dropout_seed,
        max_seqlen_q,
        max_seqlen_k,
        window_left,
        window_right,
        1.0 if scale is None else scale,
        softcap,
        dropout_p,
    )


def gradient_bits(q: Any, k: Any, v: Any, attn_bias: Any, attn_mask: Any, sinks: Any) -> int:
    """Which gradients are wanted; 0: none. Grad mode is on."""
    bits = TRAINING if q.requires_grad or k.requires_grad or v.requires_grad else 0
    if attn_bias is not None and attn_bias.requires_grad:
        bits |= TRAINING | BIAS_GRAD
    if attn_mask is not None and attn_mask.requires_grad:
        bits |= TRAINING | MASK_GRAD
    if sinks is not None and sinks.requires_grad:
        bits |= TRAINING | SINKS_GRAD
    return bits


def run(q: Any, k: Any, v: Any, rest: tuple[Any, ...]) -> tuple[Any, Any]:
    """The raw forward, by way of what differentiates it where that is wanted: (out, lse). Errors have their types."""
    if unusual():
        from cynosure import _integrations, _transforms

        _integrations.count_flops()
        if forward_ad._current_level >= 0:
            _transforms.refuse_dual_tensors(q, k, v, *rest[TERMS])
        if transforms_active():
            return _transforms.run(q, k, v, rest)
    try:
        return _run(q, k, v, rest)
    except RuntimeError as error:
        return run_again(error, q, k, v, rest)


def run_again(error: RuntimeError, q: Any, k: Any, v: Any, rest: tuple[Any, ...]) -> tuple[Any, Any]:
    """A second try where DTensor did not know what it needs; otherwise raises the error with its type."""
    q, k, v, *tensors = _known_to_dtensor(error, q, k, v, *rest[TERMS])
    try:
        return _run(q, k, v, (*rest[:2], *tensors, *rest[NUMBERS]))
    except RuntimeError as second:
        typed(second)


def _known_to_dtensor(error: RuntimeError, *tensors: Any) -> tuple[Any, ...]:
    from cynosure import _integrations

    return _integrations.as_dtensors(tensors) or typed(error)


def _run(q: Any, k: Any, v: Any, rest: tuple[Any, ...]) -> tuple[Any, Any]:
    if torch.is_grad_enabled():
        attn_bias, attn_mask, _, sinks = rest[TERMS][:4]
        bits = gradient_bits(q, k, v, attn_bias, attn_mask, sinks)
        if bits:
            if rest[0] & RETURN_LSE and q.device.type == "cpu":
                bits |= LSE_GRAD  # both backends of the CPU have it
            rest = (rest[0] | bits, *rest[1:])
            of_gradients: tuple[Any, Any] = Attention.apply(q, k, v, attn_bias, attn_mask, sinks, rest)
            return of_gradients
    alone: tuple[Any, Any] = raw_forward(q, k, v, *rest)
    return alone


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
    for name, bound in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if type(bound) is int and bound < 0:
            raise ValueError(f"{name}: got {bound}, expected 0 or more")
    rest = rest_of(
        DIMS[layout],
        causal,
        align == "top_left",
        window_left,
        window_right,
        attn_bias,
        attn_mask,
        alibi_slopes,
        softcap,
        sinks,
        scale,
        dropout_p,
        dropout_seed,
        cu_seqlens_q if ragged else seqlens_q,
        cu_seqlens_k if ragged else seqlens_k,
        -1 if max_seqlen_q is None else max_seqlen_q,
        -1 if max_seqlen_k is None else max_seqlen_k,
        return_lse,
        lse_grad,
        runtime,
        settings,
    )
    return run(query, key, value, rest)


def _draw_seed_in_transforms(like: Any) -> Any:
    """Follows vmap's `randomness`."""
    return torch.randint(0, 2**63 - 1, (2,), dtype=torch.int64, device=like.device)


_library.impl("attention", _surface, "CompositeImplicitAutograd")
# Compiled torch.func: before its transforms take the operators apart.
_library.impl("attention", _surface, "FuncTorchDynamicLayerFrontMode")
_library.impl("draw_seed", _draw_seed_in_transforms, "FuncTorchDynamicLayerFrontMode")
