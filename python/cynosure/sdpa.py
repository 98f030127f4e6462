# SPDX-License-Identifier: Apache-2.0
"""scaled_dot_product_attention: torch's function, argument for argument, over Cynosure's attention.

Two ways through it. A common call (four dims, no dropout) goes straight to the operator, which checks it; only where
that refuses do we look closer. Any other is checked here as torch does, brought to [B, H, L, E] and run.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from numbers import Real
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from cynosure import _core, log
from cynosure._attention import _autocast, _runtime
from cynosure._constant import ENVIRONMENT
from cynosure._operators import (
    CAUSAL,
    DIMS,
    PLAIN_REST,
    SCALE_GIVEN,
    TOP_LEFT,
    TRAINING,
    apply_plain,
    draw_seed,
    raw_forward,
    rest_of,
    run,
    seed_of_call,
    surface,
    typed,
    unusual,
)
from cynosure._tracing import Traceable, call, compiling, in_traces
from cynosure.errors import NoBackendError
from cynosure.settings import _word_with, eager_now, traced_word

_BHSD = DIMS["bhsd"]
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled
_is_grad_enabled = torch.is_grad_enabled
_forward = raw_forward._op  # what the operator's __call__ calls
_flash_enabled = torch._C._get_flash_sdp_enabled
_math_enabled = torch._C._get_math_sdp_enabled
_cudnn_enabled = torch._C._get_cudnn_sdp_enabled


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale * query key^T + mask) value: torch.nn.functional.scaled_dot_product_attention on our backends.

    Args:
        query: [..., H, L, E], two dims or more, of float32, bfloat16, float16 or float64. Or a jagged nested tensor
            [B, H, j, E], that is [B, j, H, E].transpose(1, 2); then key and value are nested, too.
        key: [..., H, S, E].
        value: [..., H, S, Ev]. All dims but the last two broadcast.
        attn_mask: bool (True: attend) or additive, of query's dtype or float32 and possibly with a gradient;
            broadcasts to [..., H, L, S]. Also a `torch.nn.attention.bias.CausalBias`.
        dropout_p: the probability with which a weight becomes 0. As in torch it always applies: pass 0.0 to evaluate.
        is_causal: row i attends columns up to i, also where L and S differ. Not together with attn_mask.
        scale: of the scores; None: 1 / sqrt(E).
        enable_gqa: key and value may have fewer heads than query, which has a multiple of theirs.

    Returns:
        [..., H, L, Ev]. A row with nothing to attend: 0, as in torch.

    The backend is chosen for each call, among those that `torch.nn.attention.sdpa_kernel` and
    `torch.backends.cuda.enable_*_sdp` leave switched on. FLASH_ATTENTION stands for flash2, flash3, flash4, aten_flash
    and, on the CPU, cpu; CUDNN_ATTENTION for cudnn; MATH for unfused; EFFICIENT_ATTENTION and OVERRIDEABLE for none.

    Differs from torch: random numbers of dropout are another stream; the order that `sdpa_kernel(set_priority=True)`
    gives has no effect (`CYNOSURE_BACKEND=prefer:...` has); a scale that is not finite is refused.

    Raises:
        TypeError: an argument of another type, where torch raises it.
        RuntimeError: dtypes, devices, shapes and values that torch refuses, naming the argument. IndexError and
            NotImplementedError where torch raises those: enable_gqa with two dims; complex and 8-bit floats.
        ValueError: nested tensors with others, or with a mask.
        NoBackendError: a RuntimeError; no backend is left. The message has every reason.
    """
    if compiling():
        return _traced(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if dropout_p == 0.0 and not _is_any_autocast_enabled() and not unusual():
        try:
            # The operator groups heads by itself, so it cannot see heads that differ and should not.
            if (
                (is_causal is False or (is_causal is True and attn_mask is None))
                and (attn_mask is None or type(attn_mask) is Tensor)
                and (
                    enable_gqa is True
                    or (enable_gqa is False and (query.shape == key.shape or query.shape[1] == key.shape[1]))
                )
            ):
                word, logged, _ = eager_now()
                if logged:
                    log.follow_ledger()
                known = _known
                options = known[1] if known[0] is word else _options_of(word)
                if not (_flash_enabled() and _math_enabled() and _cudnn_enabled()):
                    word = _allowed(word, _flash_enabled(), _math_enabled(), _cudnn_enabled())
                if is_causal:
                    options |= CAUSAL | TOP_LEFT
                factor = 1.0
                if scale is not None:
                    factor = scale
                    options |= SCALE_GIVEN
                if attn_mask is not None:
                    return _masked(query, key, value, attn_mask, factor, options, word)
                out: Tensor
                if _is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
                    rest = (*PLAIN_REST, -1, -1, -1, -1, factor, 0.0, 0.0, options | TRAINING, word)
                    out = apply_plain(query, key, value, rest)
                else:
                    out = _forward(query, key, value, *PLAIN_REST, -1, -1, -1, -1, factor, 0.0, 0.0, options, word)[0]
                return out
        except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
            _raise_if_no_backend(error)
    return _checked(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, options: int, word: int) -> Tensor:
    """A plain call but for its mask."""
    if mask.dim() < 4:
        mask = mask[(None,) * (4 - mask.dim())]
    if mask.dtype == torch.bool:
        terms: Any = (None, mask)
    else:
        length = k.shape[-2]
        terms = (mask if mask.shape[-1] == length else mask.expand(-1, -1, -1, length), None)
    rest = (*terms, *PLAIN_REST[2:], -1, -1, -1, -1, scale, 0.0, 0.0, options, word)
    return run(q, k, v, rest)[0]  # type: ignore[no-any-return]


# --- settings: what the environment says, and torch's switches

_known: tuple[Any, int] = (None, 0)  # (the last word, the operator's options by the environment it was made from)


def _options_of(word: int) -> int:
    """Layout and what the environment says. A changed environment makes a new word, another object."""
    global _known
    isa, check = ENVIRONMENT.get(b"CYNOSURE_CPU_ISA"), ENVIRONMENT.get(b"CYNOSURE_CHECK")
    options = _BHSD if isa is None and check is None else _BHSD | _runtime(isa, check)
    _known = (word, options)
    return options


@lru_cache(maxsize=256)
def _allowed(word: int, flash: bool, math: bool, cudnn: bool) -> int:
    """The word without the backends that torch's switches turn off. Its memory-efficient kernel is none of ours."""
    off = list(_core.settings_dict(word)["switched_off"])
    for on, names in (
        (flash, ("cpu", "flash2", "aten_flash", "flash3", "flash4")),
        (math, ("unfused",)),
        (cudnn, ("cudnn", "cudnn_fp8")),
    ):
        if not on:
            off += [name for name in names if name not in off]
    allowed, error, _ = _word_with(word, None, None, None, None, tuple(off), None)
    if error is not None:
        raise ValueError(error)
    return allowed


@in_traces
def allowed_now(word: int) -> int:
    """`_allowed` by torch's switches at trace time. torch does not guard them, so we add the guards."""
    guard_switches()
    return _allowed(word, _flash_enabled(), _math_enabled(), _cudnn_enabled())


def guard_switches() -> None:
    """A compiled function is compiled once more where a switch is not as it was when the function was entered."""
    from torch._dynamo.guards import GuardBuilder, install_guard
    from torch._dynamo.source import AttrSource, CallFunctionNoArgsSource, ImportSource

    module = AttrSource(ImportSource("torch"), "_C")
    for switch in (_flash_enabled, _math_enabled, _cudnn_enabled):
        value = CallFunctionNoArgsSource(AttrSource(module, switch.__name__))
        install_guard(value.make_guard(GuardBuilder.CONSTANT_MATCH))


# --- errors


def _raise_if_no_backend(error: BaseException) -> None:
    """Other errors need a closer look: the operator does not take the call as it is."""
    if isinstance(error, NoBackendError):
        raise error
    try:
        typed(error)
    except NoBackendError:
        raise
    except Exception:
        return


def _refuse(name: str, got: str, expected: str, kind: type[Exception] = RuntimeError) -> NoReturn:
    raise kind(f"{name}: got {got}, expected {expected}")


def _number(name: str, value: Any) -> Any:
    if isinstance(value, float):
        return value
    if isinstance(value, Tensor) and value.dim() == 0 and not value.requires_grad:
        return float(value)
    if not isinstance(value, (int, torch.SymFloat, torch.SymInt, Real)):
        _refuse(name, type(value).__name__, "a float", TypeError)
    return float(value)


def _flag(name: str, value: Any) -> bool:
    if value is True or value is False:
        return value
    if not isinstance(value, (bool, torch.SymBool)):
        _refuse(name, type(value).__name__, "True or False", TypeError)
    return True if value else False  # noqa: SIM210  # a condition on sizes becomes one on this call


def _check_tensors(query: Any, key: Any, value: Any, attn_mask: Any) -> None:
    for name, t in (("query", query), ("key", key), ("value", value)):
        if not isinstance(t, Tensor):
            _refuse(name, type(t).__name__, "a tensor", TypeError)
        if t.dtype != query.dtype:
            _refuse(name, str(t.dtype), f"{query.dtype} as query")
        if t.device != query.device:
            _refuse(name, f"a tensor on {t.device}", f"{query.device} as query")
        if t.dim() < 2:
            _refuse(name, f"rank {t.dim()}", "2 dims or more")
    if query.dtype not in _DTYPES:
        kind = NotImplementedError if query.is_floating_point() or query.is_complex() else RuntimeError
        _refuse("query", str(query.dtype), "float32, bfloat16, float16 or float64", kind)
    if attn_mask is None:
        return
    if not isinstance(attn_mask, Tensor):
        _refuse("attn_mask", type(attn_mask).__name__, "a tensor or None", TypeError)
    if attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        _refuse("attn_mask", str(attn_mask.dtype), f"bool, float32 or {query.dtype} as query")
    if attn_mask.device != query.device:
        _refuse("attn_mask", f"a tensor on {attn_mask.device}", f"{query.device} as query")


# --- shapes


def _same(a: Any, b: Any) -> Any:
    """Whether two sizes are equal; where a trace cannot know, they are."""
    return Traceable._guard_or_true(a == b) if compiling() else a == b


def _is_plain(q: Any, k: Any, v: Any, gqa: bool) -> Any:
    """Whether the operator takes these as they are."""
    return (
        q.dim() == k.dim() == v.dim() == 4
        and _same(k.shape[0], q.shape[0])
        and _same(v.shape[0], q.shape[0])
        and (gqa or _same(k.shape[1], q.shape[1]))
        and _same(v.shape[1], k.shape[1])
        and q.shape[1] != 0
    )


def _broadcast(names: str, *sizes: Any) -> Any:
    """The one size that is not 1."""
    common = 1
    for size in sizes:
        if common == 1:
            common = size
        elif size != 1 and not _same(size, common):
            _refuse(names, f"sizes {', '.join([str(n) for n in sizes])} of one dim", "sizes that broadcast")
    return common


def _with_heads(t: Any, rank: int, gqa: bool) -> Any:
    """[..., H, L, E] of four dims or more, where the call has `rank`."""
    t = t[(None,) * (rank - t.dim())] if t.dim() < rank else t
    return t[None, None] if rank == 2 else t if rank > 3 else t[None] if gqa else t.unsqueeze(1)


def _four_dims(q: Any, k: Any, v: Any, mask: Any, gqa: bool) -> tuple[Any, Any, Any, Any, tuple[Any, ...]]:
    """q, k, v and mask as [B, H, L, E], and the dims of the output before L."""
    rank = max(q.dim(), k.dim(), v.dim())
    if gqa and min(q.dim(), k.dim(), v.dim()) == 2:
        _refuse("enable_gqa", "True with two dims", "three or more, heads being the third last", IndexError)
    if mask is not None and mask.dim() > rank:
        _refuse("attn_mask", f"rank {mask.dim()}", f"at most {rank}")
    q, k, v = _with_heads(q, rank, gqa), _with_heads(k, rank, gqa), _with_heads(v, rank, gqa)
    heads, of_k, of_v = q.shape[-3], k.shape[-3], v.shape[-3]
    if gqa:
        if of_k == 0 or of_v == 0 or heads % of_k != 0 or heads % of_v != 0:
            _refuse("key, value", f"{of_k} and {of_v} heads", f"divisors of the {heads} heads of query")
        if of_k != of_v:
            k, v = k.repeat_interleave(heads // of_k, -3), v.repeat_interleave(heads // of_v, -3)
            of_k = of_v = heads
        scores = [heads]
    else:
        scores = [_broadcast("query, key", heads, of_k)]
        heads = _broadcast("query, key, value", heads, of_k, of_v)
        if of_k != 1 or of_v != 1:  # one head for all is a group
            of_k = of_v = heads
    axes = range(q.dim() - 3)
    batches = [_broadcast("query, key, value", q.shape[i], k.shape[i], v.shape[i]) for i in axes]
    if mask is not None:
        mask = _with_heads(mask, rank, gqa)
        scores = [*[_broadcast("query, key", q.shape[i], k.shape[i]) for i in axes], *scores, q.shape[-2], k.shape[-2]]
        for i, size in enumerate(mask.shape):
            if size != 1 and not _same(size, scores[i]):
                _refuse("attn_mask", f"{size} in a dim", f"1 or {scores[i]} as the scores {scores}")
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


# --- any call


class _Call(NamedTuple):
    """A call in the terms of the operator, and how its output becomes that of the function."""

    q: Any
    k: Any
    v: Any
    attn_bias: Any
    attn_mask: Any
    causal: bool
    align: str
    scale: Any
    dropout_p: Any
    lead: Any  # the dims before L, where they are not those of q
    empty: bool  # the last dim is 0; the operator wants 1


def _prepared(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: Any, is_causal: Any, scale: Any, enable_gqa: Any
) -> _Call:
    """The call, checked."""
    dropout_p = _number("dropout_p", dropout_p)
    scale = None if scale is None else _number("scale", scale)
    causal, gqa = _flag("is_causal", is_causal), _flag("enable_gqa", enable_gqa)
    align = "top_left" if causal else "bottom_right"
    if attn_mask is not None and type(attn_mask) is not Tensor:
        attn_mask, causal, align = _without_causal_bias(query, key, attn_mask, causal, align)
    if _is_any_autocast_enabled() and isinstance(query, Tensor):
        query, key, value, _, attn_mask, _ = _autocast(query.device.type, query, key, value, None, attn_mask, None)
    _check_tensors(query, key, value, attn_mask)
    if causal and attn_mask is not None:
        raise RuntimeError("attn_mask: given together with is_causal, expected one of them")
    if not 0 <= dropout_p <= 1:
        _refuse("dropout_p", str(dropout_p), "a probability from 0 to 1")
    if query.is_nested or key.is_nested or value.is_nested:
        _check_nested(query, key, value, attn_mask, gqa)
        return _Call(query, key, value, None, None, causal, align, scale, dropout_p, None, False)
    if not _same(key.shape[-1], query.shape[-1]):
        _refuse("key", f"head dim {key.shape[-1]}", f"{query.shape[-1]} as query")
    if not _same(value.shape[-2], key.shape[-2]):
        _refuse("value", f"length {value.shape[-2]}", f"{key.shape[-2]} as key")
    lead = None
    if not _is_plain(query, key, value, gqa) or (attn_mask is not None and attn_mask.dim() > 4):
        query, key, value, attn_mask, lead = _four_dims(query, key, value, attn_mask, gqa)
    elif attn_mask is not None and attn_mask.dim() < 4:
        attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
    bias = None
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        bias, attn_mask = attn_mask.expand(-1, -1, -1, key.shape[-2]), None
    empty = value.shape[-1] == 0
    if empty:
        value = _padded(value)
    if query.shape[-1] == 0:  # all scores are 0
        query, key, scale = _padded(query), _padded(key), 1.0
    return _Call(query, key, value, bias, attn_mask, causal, align, scale, dropout_p, lead, empty)


def _without_causal_bias(query: Any, key: Any, mask: Any, causal: bool, align: str) -> tuple[Any, bool, str]:
    from torch.nn.attention.bias import CausalBias, CausalVariant

    if not isinstance(mask, CausalBias):
        return mask, causal, align
    if causal:
        raise ValueError("attn_mask: a CausalBias together with is_causal, expected one of them")
    if mask.variant == CausalVariant.UPPER_LEFT or mask.seq_len_q == mask.seq_len_kv:
        return None, True, "top_left"
    lengths = query.shape[-2], key.shape[-2]
    if lengths != (mask.seq_len_q, mask.seq_len_kv):
        _refuse("attn_mask", f"CausalBias of {mask.seq_len_q} and {mask.seq_len_kv}", f"the lengths {lengths}")
    return None, True, "bottom_right"


def _check_nested(query: Any, key: Any, value: Any, attn_mask: Any, gqa: bool) -> None:
    if attn_mask is not None:
        raise ValueError("attn_mask: given with nested tensors, expected None")
    for name, t in (("query", query), ("key", key), ("value", value)):
        if not t.is_nested or t.layout != torch.jagged:
            what = f"layout {t.layout}" if t.is_nested else "a tensor that is not nested"
            _refuse(name, what, "a nested one of layout torch.jagged as query, key or value", ValueError)
        if t.dim() != 4 or t._ragged_idx != 2:
            _refuse(name, f"rank {t.dim()}, jagged in dim {t._ragged_idx}", "[B, j, H, E].transpose(1, 2)", ValueError)
    if not gqa and query.shape[1] != key.shape[1]:
        _refuse("key", f"{key.shape[1]} heads", f"{query.shape[1]} as query, or enable_gqa=True")


def _finished(c: _Call, out: Tensor) -> Tensor:
    if c.empty:
        out = out[..., :0]
    return out if c.lead is None else out.reshape(*c.lead, *out.shape[-2:])


_NAMES = {"q": "query", "k": "key", "v": "value", "attn_bias": "attn_mask"}


def _checked(*given: Any) -> Tensor:
    """Eager: any call."""
    c = _prepared(*given)
    word, logged, _ = eager_now()
    if logged:
        log.follow_ledger()
    known = _known
    runtime = known[1] if known[0] is word else _options_of(word)  # with the layout, once more
    word = _allowed(word, _flash_enabled(), _math_enabled(), _cudnn_enabled())
    rest = rest_of(
        _BHSD,
        c.causal,
        c.align == "top_left",
        -1,
        -1,
        c.attn_bias,
        c.attn_mask,
        None,
        0.0,
        None,
        c.scale,
        c.dropout_p,
        seed_of_call(c.q) if c.dropout_p else None,
        None,
        None,
        -1,
        -1,
        False,
        False,
        runtime,
        word,
    )
    try:
        out, _ = run(c.q, c.k, c.v, rest)
    except (ValueError, TypeError) as error:  # torch's type, and the names of this function's arguments
        name, colon, text = str(error).partition(":")
        if text.endswith(" as q"):
            text += "uery"
        raise RuntimeError(f"{_NAMES.get(name, name)}{colon}{text}") from None
    return _finished(c, out)


def _traced(*given: Any) -> Tensor:
    """While torch traces: the operator that names its arguments."""
    c = _prepared(*given)
    word = call("allowed_now", traced_word())
    runtime, error = call("runtime_options", ENVIRONMENT.get(b"CYNOSURE_CPU_ISA"), ENVIRONMENT.get(b"CYNOSURE_CHECK"))
    if error is not None:
        raise ValueError(error)
    seed = draw_seed(c.q) if c.dropout_p else None
    named: dict[str, Any] = {"layout": "bhsd"}
    for name, value, default in (
        ("align", c.align, "bottom_right"),
        ("dropout_p", c.dropout_p, 0.0),
        ("runtime", runtime, 0),
    ):
        if value != default:
            named[name] = value
    for name, optional in (
        ("attn_bias", c.attn_bias),
        ("attn_mask", c.attn_mask),
        ("scale", c.scale),
        ("dropout_seed", seed),
    ):
        if optional is not None:
            named[name] = optional
    out, _ = surface(c.q, c.k, c.v, word, c.causal, **named)
    return _finished(c, out)
