# SPDX-License-Identifier: Apache-2.0
"""attention: every feature, any layout; the backend is chosen for each call, in eager and in compiled code."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from cynosure import _core, _nested, _tracing, log
from cynosure._constant import ENVIRONMENT
from cynosure._operators import (
    CAUSAL,
    CHECK,
    CPU_ISA_SHIFT,
    DIMS,
    FORWARD_AD,
    MODES,
    REVISION,
    draw_seed,
    plain,
    rest_of,
    run,
    seed_of_call,
    surface,
    typed,
)
from cynosure._tracing import call, compiling, in_traces
from cynosure.backend import BackendArgument
from cynosure.problem import LARGEST
from cynosure.settings import eager_now, traced_word, word_over

_is_any_autocast_enabled = torch._C._is_any_autocast_enabled
is_grad_enabled = torch.is_grad_enabled
is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_no_limits = (-1, -1)
_DENSE = {name: (DIMS[name], DIMS[name] | CAUSAL) for name in ("bshd", "sbhd", "bhsd")}  # options, by `causal`

_nested.register()


def attention(  # noqa: D417  # pairs of arguments share a line
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    layout: str = "bshd",
    causal: bool = False,
    align: str = "bottom_right",
    window_size: tuple[int, int] = (-1, -1),
    attn_bias: torch.Tensor | None = None,
    attn_mask: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    dropout_seed: torch.Tensor | None = None,
    seqlens_q: torch.Tensor | None = None,
    seqlens_k: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    backend: BackendArgument = "auto",
    policy: str | None = None,
    return_lse: bool = False,
    lse_grad: bool = False,
) -> Any:
    """Attention: softmax(scale * q k^T + terms) v, by the fastest backend that is correct for this call.

    Args:
        q: [B, Sq, H, D] in layout "bshd"; "sbhd", "bhsd" and, for ragged batches, "thd" ([T, H, D]) likewise.
        k: [B, Skv, Hkv, D]; H is a multiple of Hkv (grouped-query attention).
        v: [B, Skv, Hkv, Dv].
        layout: the order of the dimensions of q, k, v and the output.
        causal: row i attends columns up to i + offset.
        align: where the diagonal lies: "bottom_right" (offset Skv - Sq, by sequence) or "top_left" (offset 0).
        window_size: (left, right) columns around the diagonal that a row attends; -1: unlimited.
        attn_bias: added to the scaled scores: [1 or B, 1 or H, 1 or Sq, Skv], of q's dtype or float32.
        attn_mask: bool (True: attend) or additive, broadcasting to [B, H, Sq, Skv].
        alibi_slopes: float32 [H] or [B, H]; adds -slope * |j - (i + offset)|.
        softcap: c > 0 replaces a score s by c * tanh(s / c), before bias and masks.
        sinks: [H], one logit a head that joins the softmax and has no value.
        scale: of the scores; None: 1 / sqrt(D).
        dropout_p: the probability with which a weight becomes 0; the others are divided by 1 - dropout_p.
        dropout_seed: int64 [2] (seed, offset) on q's device, to repeat a call; None: drawn from torch's generator.
        seqlens_q, seqlens_k: int32 [B], how many rows and keys of each sequence are valid.
        cu_seqlens_q, cu_seqlens_k: int32 [B + 1] for "thd": where each sequence starts among the tokens, and the end.
        max_seqlen_q, max_seqlen_k: for "thd", an upper bound of the lengths; None: the tokens.
        backend: "auto", a name or list (required), `prefer(...)` or `require(...)`.
        policy: "fastest" or "te"; None: as CYNOSURE_POLICY says.
        return_lse: also return the logarithm of the softmax's denominator, float32 [B, H, Sq] ("thd": [H, T]).
        lse_grad: its gradient is a requirement of the backend (on the CPU it always has one).

    Returns:
        The output, q's shape with v's head dim, or (output, lse). A row with nothing to attend: 0, and -inf.

    Raises:
        ValueError, TypeError: naming the argument, what it is and what is allowed.
        NoBackendError: where no backend may run the call; the message has every reason.
    """
    if (
        # What most calls are: straight to the operator.
        not is_dynamo_compiling()
        and attn_bias is None
        and attn_mask is None
        and alibi_slopes is None
        and sinks is None
        and scale is None
        and seqlens_q is None
        and seqlens_k is None
        and cu_seqlens_q is None
        and cu_seqlens_k is None
        and dropout_seed is None
        and max_seqlen_q is None
        and max_seqlen_k is None
        and policy is None
        and return_lse is False
        and lse_grad is False
        and window_size is _no_limits
        and (causal is False or causal is True)
        and type(softcap) is float
        and softcap == 0.0
        and type(dropout_p) is float
        and dropout_p == 0.0
        and align == "bottom_right"
        and type(q) is Tensor
        and type(k) is Tensor
        and type(v) is Tensor
        and type(layout) is str
        and layout in _DENSE
    ):
        plain_word: Any = _core.plain_word(ENVIRONMENT, _tracing.added_faults, MODES, FORWARD_AD)
        if plain_word is not None:
            if backend != "auto":
                plain_word = _word_for(plain_word, backend, None)
            options = _DENSE[layout][causal]
            try:
                return plain(q, k, v, options, plain_word)
            except (AttributeError, TypeError, RuntimeError) as refused:
                _refused(refused, q, k, v)
    dims = DIMS.get(layout) if isinstance(layout, str) else None
    if dims is None:
        raise ValueError(f"layout: got {layout!r}, expected one of {', '.join(DIMS)}")
    if causal is not True and causal is not False:
        causal = _truth("causal", causal)
    if not (
        isinstance(softcap, float) and isinstance(dropout_p, float) and (scale is None or isinstance(scale, float))
    ):
        softcap, dropout_p = _number("softcap", softcap), _number("dropout_p", dropout_p)
        scale = None if scale is None else _number("scale", scale)
    if isinstance(attn_mask, torch.Tensor) and attn_mask.dim() < 4:
        attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
    if _is_any_autocast_enabled():
        q, k, v, attn_bias, attn_mask, sinks = _autocast(q.device.type, q, k, v, attn_bias, attn_mask, sinks)
    if window_size is not _no_limits:
        _check_window(window_size)
    for name, flag in (("return_lse", return_lse), ("lse_grad", lse_grad)):
        if flag is not True and flag is not False:
            raise ValueError(f"{name}: got {flag!r}, expected True or False")
    if align != "bottom_right" and align != "top_left":
        raise ValueError(f"align: got {align!r}, expected 'bottom_right' or 'top_left'")
    if lse_grad and not return_lse:
        raise ValueError("lse_grad: got True without return_lse, expected return_lse=True too")
    lengths_q, lengths_k = seqlens_q, seqlens_k
    if dims == 3:
        if seqlens_q is not None or seqlens_k is not None:
            raise ValueError("seqlens_q, seqlens_k: given with layout 'thd', expected cu_seqlens_q and cu_seqlens_k")
        lengths_q, lengths_k = cu_seqlens_q, cu_seqlens_k
    elif cu_seqlens_q is not None or cu_seqlens_k is not None:
        raise ValueError(f"cu_seqlens_q, cu_seqlens_k: given with layout {layout!r}, expected only with 'thd'")
    if max_seqlen_q is not None or max_seqlen_k is not None:
        _check_bound("max_seqlen_q", max_seqlen_q)
        _check_bound("max_seqlen_k", max_seqlen_k)
    if isinstance(alibi_slopes, torch.Tensor) and alibi_slopes.requires_grad and is_grad_enabled():
        raise ValueError(
            "alibi_slopes: requires a gradient, which no backend has; pass alibi_slopes.detach(), or what they add as "
            "attn_bias, which has one"
        )
    if compiling():
        word = traced_word()
        if _said(backend) is not None or policy is not None:
            word = word_over(word, _said(backend), policy)
        runtime, error = call(
            "runtime_options", ENVIRONMENT.get(b"CYNOSURE_CPU_ISA"), ENVIRONMENT.get(b"CYNOSURE_CHECK")
        )
        if error is not None:
            raise ValueError(error)
        if dropout_p and dropout_seed is None:
            dropout_seed = draw_seed(q)
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{name}: got {type(tensor).__name__}, expected a tensor")
        given: dict[str, Any] = {}
        for name, value, default in (
            ("layout", layout, "bshd"),
            ("align", align, "bottom_right"),
            ("window_left", window_size[0], -1),
            ("window_right", window_size[1], -1),
            ("softcap", softcap, 0.0),
            ("dropout_p", dropout_p, 0.0),
            ("return_lse", return_lse, False),
            ("lse_grad", lse_grad, False),
            ("runtime", runtime, 0),
        ):
            if value != default:
                given[name] = value
        for name, optional in (
            ("attn_bias", attn_bias),
            ("attn_mask", attn_mask),
            ("alibi_slopes", alibi_slopes),
            ("sinks", sinks),
            ("scale", scale),
            ("dropout_seed", dropout_seed),
            ("seqlens_q", seqlens_q),
            ("seqlens_k", seqlens_k),
            ("cu_seqlens_q", cu_seqlens_q),
            ("cu_seqlens_k", cu_seqlens_k),
            ("max_seqlen_q", max_seqlen_q),
            ("max_seqlen_k", max_seqlen_k),
        ):
            if optional is not None:
                if name not in _NUMBERS and not isinstance(optional, Tensor):
                    expected = _EXPECTED.get(name, "a tensor")
                    raise TypeError(f"{name}: got {type(optional).__name__}, expected {expected}")
                given[name] = optional
        out, lse = surface(q, k, v, word, causal, **given)
        return (out, lse) if return_lse else out
    try:
        word, logged, _ = eager_now()
        if logged:
            log.follow_ledger()
        if backend != "auto" or policy is not None:
            word = _word_for(word, _said(backend), policy)
        isa, check = ENVIRONMENT.get(b"CYNOSURE_CPU_ISA"), ENVIRONMENT.get(b"CYNOSURE_CHECK")
        runtime = 0 if isa is None and check is None else _runtime(isa, check)
        if dropout_p and dropout_seed is None:
            dropout_seed = seed_of_call(q)
        out, lse = run(
            q,
            k,
            v,
            rest_of(
                dims,
                causal,
                align == "top_left",
                window_size[0],
                window_size[1],
                attn_bias,
                attn_mask,
                alibi_slopes,
                softcap,
                sinks,
                scale,
                dropout_p,
                dropout_seed,
                lengths_q,
                lengths_k,
                -1 if max_seqlen_q is None else max_seqlen_q,
                -1 if max_seqlen_k is None else max_seqlen_k,
                return_lse,
                lse_grad,
                runtime,
                word,
            ),
        )
        return (out, lse) if return_lse else out
    except (AttributeError, TypeError, RuntimeError):
        _name_what_is_wrong(
            {"q": q, "k": k, "v": v},
            {
                "attn_bias": attn_bias,
                "attn_mask": attn_mask,
                "alibi_slopes": alibi_slopes,
                "sinks": sinks,
                "dropout_seed": dropout_seed,
                "seqlens_q": seqlens_q,
                "seqlens_k": seqlens_k,
                "cu_seqlens_q": cu_seqlens_q,
                "cu_seqlens_k": cu_seqlens_k,
            },
        )
        raise


def _refused(error: Exception, q: Any, k: Any, v: Any) -> NoReturn:
    """The better error of a plain call."""
    try:
        if isinstance(error, RuntimeError):
            typed(error)
        raise error
    except (AttributeError, TypeError, RuntimeError):
        _name_what_is_wrong({"q": q, "k": k, "v": v}, {})
        raise


def _truth(name: str, value: Any) -> bool:
    """A comparison of symbolic lengths, while tracing; nothing else but a bool."""
    if compiling() and isinstance(value, (bool, torch.SymBool)):
        return True if value else False  # noqa: SIM210  # bool() of it does not trace
    raise ValueError(f"{name}: got {value!r}, expected True or False")


def _number(name: str, value: Any) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{name}: got an int of {value.bit_length()} bits, expected a finite number") from None
    if isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: got a tensor, expected a float; pass float({name})")
    raise TypeError(f"{name}: got {value!r}, expected a float")


def _check_bound(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: got a tensor, expected an int; pass int({name})")
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{name}: got {value!r}, expected an int")
    if isinstance(value, int) and not 0 <= value <= LARGEST:
        raise ValueError(f"{name}: got {value}, expected 0 to {LARGEST}")


_EXPECTED = {
    "dropout_seed": "an int64 tensor [2]: seed, offset",
    "seqlens_q": "an int32 tensor [batch]",
    "seqlens_k": "an int32 tensor [batch]",
    "cu_seqlens_q": "an int32 tensor [batch + 1]",
    "cu_seqlens_k": "an int32 tensor [batch + 1]",
}
_NUMBERS = ("scale", "max_seqlen_q", "max_seqlen_k")
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _name_what_is_wrong(inputs: dict[str, Any], optional: dict[str, Any]) -> None:
    """Raises the better error for an argument of a kind that no operator can be asked about; returns where all are."""
    for name, value in (*inputs.items(), *optional.items()):
        if value is None and name in optional:
            continue
        if not isinstance(value, torch.Tensor):
            expected = _EXPECTED.get(name, "a tensor")
            raise TypeError(f"{name}: got {type(value).__name__}, expected {expected}") from None
        if value.is_nested and value.layout is not torch.jagged:
            raise ValueError(f"{name}: got a nested tensor of layout {value.layout}, expected torch.jagged") from None
        if value.layout is not torch.strided and not value.is_nested:
            raise ValueError(f"{name}: got layout {value.layout}, expected a dense tensor (torch.strided)") from None
        if name in inputs and value.dtype not in _DTYPES:
            given = str(value.dtype).removeprefix("torch.")
            raise TypeError(f"{name}: got {given}, expected float32, bfloat16, float16 or float64") from None


def _check_window(window_size: Any) -> None:
    if (
        not isinstance(window_size, (tuple, list))
        or len(window_size) != 2
        or any([isinstance(side, bool) or not isinstance(side, int) for side in window_size])  # noqa: C419  # traced
    ):
        raise ValueError(f"window_size: got {window_size!r}, expected (left, right), two ints")
    if not all([-1 <= side <= LARGEST for side in window_size]):  # noqa: C419
        raise ValueError(f"window_size: got {tuple(window_size)}, expected -1 (unlimited) to {LARGEST}")


def _autocast(device: str, q: Any, k: Any, v: Any, attn_bias: Any, attn_mask: Any, sinks: Any) -> Any:
    """As autocast does for SDPA: floating tensors that are not float64 take its dtype. Float32 sinks may stay."""
    if device == "meta" or not torch.is_autocast_enabled(device):  # which torch cannot be asked for meta tensors
        return q, k, v, attn_bias, attn_mask, sinks
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        [
            t.to(dtype)
            if t is not None
            and t.is_floating_point()
            and t.dtype != torch.float64
            and not (t is sinks and t.dtype == torch.float32)
            else t
            for t in (q, k, v, attn_bias, attn_mask, sinks)
        ]
    )


def _runtime(isa: bytes | None, check: bytes | None) -> int:
    options, error = runtime_options(isa, check)
    if error is not None:
        raise ValueError(error)
    return options


@in_traces
def runtime_options(isa: bytes | None, check: bytes | None) -> tuple[int, str | None]:
    """Bits of the operators' options for CYNOSURE_CPU_ISA and CYNOSURE_CHECK, or an error as text."""
    if log.wanted():  # so that compiled code is logged, too
        log.follow_ledger()
    options = REVISION | CHECK if check == b"1" else REVISION
    if isa is not None:
        from cynosure._detect import detect

        name, best = isa.decode(), detect().cpu_isa  # a name that is none was refused with the settings
        level = _core.CPU_ISAS.index(name)
        if level > _core.CPU_ISAS.index(best):
            return 0, f"CYNOSURE_CPU_ISA: got {name!r}, expected at most {best!r}, the best of this processor"
        options |= (level + 1) << CPU_ISA_SHIFT
    return options, None


_words: dict[Any, int] = {}
_MOST_WORDS = 256


def _said(backend: BackendArgument) -> BackendArgument | None:
    """None for "auto": a call that says nothing leaves the environment's contract."""
    return None if isinstance(backend, str) and backend == "auto" else backend


def _word_for(word: int, backend: BackendArgument | None, policy: str | None) -> int:
    """The word with this call's contract and policy over it; remembered."""
    key = (word, tuple(backend) if isinstance(backend, list) else backend, policy)
    try:
        known = _words.get(key)
    except TypeError:  # nothing to remember by: refused below
        known = None
    if known is None:
        known = word_over(word, backend, policy)
        if len(_words) >= _MOST_WORDS:
            _words.clear()
        _words[key] = known
    return known
