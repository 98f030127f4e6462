# SPDX-License-Identifier: Apache-2.0
"""scaled_dot_product_attention: torch's function, argument for argument, over Cynosure's attention.

Two ways through it. A common call (four dims, no dropout) goes straight to the operator, which checks it; only where
that refuses do we look closer. Any other is checked as torch does and brought to [B, H, L, E] (_sdpa_inputs).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cynosure import _core, _tracing, log
from cynosure._attention import _runtime
from cynosure._constant import ENVIRONMENT
from cynosure._operators import (
    CAUSAL,
    DEFAULTS,
    DIMS,
    FORWARD_AD,
    MODES,
    SCALE_GIVEN,
    TOP_LEFT,
    draw_seed,
    plain,
    rest_of,
    run,
    seed_of_call,
    surface,
    typed,
)
from cynosure._sdpa_inputs import Inputs
from cynosure._tracing import call, compiling, in_traces
from cynosure.errors import NoBackendError
from cynosure.settings import _word_with, eager_now

_BHSD = DIMS["bhsd"]
_CAUSAL = _BHSD | CAUSAL | TOP_LEFT
is_dynamo_compiling = torch.compiler.is_dynamo_compiling
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
    if is_dynamo_compiling():
        return _traced(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    word: Any = None
    if type(dropout_p) is float and dropout_p == 0.0:
        word = _core.plain_word(ENVIRONMENT, _tracing.added_faults, MODES, FORWARD_AD)
    if (
        word is not None
        and type(query) is type(key) is type(value) is Tensor
        and (is_causal is False or (is_causal is True and attn_mask is None))
        and (attn_mask is None or (type(attn_mask) is Tensor and attn_mask.shape[-1:] in ((1,), key.shape[2:3])))
        and (scale is None or type(scale) is float)
        and query.dim() == key.dim() == value.dim() == 4
        and not (query.is_nested or key.is_nested)
        # The operator groups heads by itself, so it cannot see heads that differ and should not.
        and (enable_gqa is True or (enable_gqa is False and query.shape[1] == key.shape[1]))
    ):
        try:
            if not (_flash_enabled() and _math_enabled() and _cudnn_enabled()):
                word = _allowed(word, _flash_enabled(), _math_enabled(), _cudnn_enabled())
            options = _CAUSAL if is_causal else _BHSD
            if scale is not None or attn_mask is not None:
                return _with_terms(query, key, value, attn_mask, scale, options, word)
            return plain(query, key, value, options, word)  # type: ignore[no-any-return]
        except (RuntimeError, ValueError, TypeError) as error:
            if not _needs_a_closer_look(error):
                raise
    if compiling():
        return _traced(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return _checked(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _with_terms(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None, options: int, word: int
) -> Tensor:
    """A plain call but for its mask or its scale."""
    terms: Any = (None, None)
    if mask is not None:
        if mask.dim() < 4:
            mask = mask[(None,) * (4 - mask.dim())]
        if mask.dtype == torch.bool:
            terms = (None, mask)
        else:
            length = k.shape[-2]
            terms = (mask if mask.shape[-1] == length else mask.expand(-1, -1, -1, length), None)
    if scale is not None:
        options |= SCALE_GIVEN
    rest = (options, word, *terms, *DEFAULTS[2:-3], 1.0 if scale is None else scale, 0.0, 0.0)
    return run(q, k, v, rest)[0]  # type: ignore[no-any-return]


# --- settings: torch's switches


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


# --- any call


def _needs_a_closer_look(error: Exception) -> bool:
    """Whether the operator refused the call, or torch has none for such tensors.

    Raises where no backend is left. What a hook or a mode of the user's raised is neither.
    """
    if isinstance(error, NotImplementedError):
        return True
    if not hasattr(error, "refused"):
        try:
            typed(error)
        except Exception as found:
            error = found
    if isinstance(error, NoBackendError):
        raise error
    return hasattr(error, "refused")


_NAMES = {"q": "query", "k": "key", "v": "value", "attn_bias": "attn_mask"}


def _checked(*given: Any) -> Tensor:
    """Eager: any call."""
    c = object.__new__(Inputs)
    c.take(*given)
    word, logged, _ = eager_now()
    if logged:
        log.follow_ledger()
    isa, check = ENVIRONMENT.get(b"CYNOSURE_CPU_ISA"), ENVIRONMENT.get(b"CYNOSURE_CHECK")
    runtime = 0 if isa is None and check is None else _runtime(isa, check)
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
    return c.finished(out)  # type: ignore[no-any-return]


def _traced(*given: Any) -> Tensor:
    """While torch traces: the operator that names its arguments."""
    c = object.__new__(Inputs)
    c.take(*given)
    word = call("allowed_now", c._traced_word())
    get = ENVIRONMENT.get
    runtime, error = call("runtime_options", get(b"CYNOSURE_CPU_ISA"), get(b"CYNOSURE_CHECK"))
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
    return c.finished(out)  # type: ignore[no-any-return]
