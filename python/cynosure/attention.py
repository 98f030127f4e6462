# SPDX-License-Identifier: Apache-2.0
"""attention: every feature, any layout; the backend is chosen for each call, in eager and in compiled code."""

from __future__ import annotations

from typing import Any

import torch

from cynosure import _core, log
from cynosure._constant import ENVIRONMENT, constant
from cynosure._operators import (
    CAUSAL,
    CHECK,
    CPU_ISA_SHIFT,
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
    surface,
    typed,
)
from cynosure._tracing import call, compiling, in_traces, traced_word
from cynosure.backend import BackendArgument, Contract
from cynosure.settings import _word_with, eager_now

_is_autocast_enabled = torch.is_autocast_enabled
is_grad_enabled = torch.is_grad_enabled
_no_limits = (-1, -1)


def attention(
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
    dims = DIMS.get(layout) if isinstance(layout, str) else None
    if dims is None:
        raise ValueError(f"layout: got {layout!r}, expected one of {', '.join(DIMS)}")
    if causal is not True and causal is not False:
        raise ValueError(f"causal: got {causal!r}, expected True or False")
    if attn_mask is not None and attn_mask.dim() < 4:
        attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
    if _is_autocast_enabled(q.device.type):
        q, k, v, attn_bias, attn_mask = _autocast(q.device.type, q, k, v, attn_bias, attn_mask)
    plain = (
        attn_bias is None
        and attn_mask is None
        and alibi_slopes is None
        and sinks is None
        and dropout_p == 0.0
        and seqlens_q is None
        and seqlens_k is None
        and dims != 3
        and not return_lse
        and max_seqlen_q is None
        and max_seqlen_k is None
    )
    if window_size is not _no_limits and window_size != _no_limits:
        _check_window(window_size)
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
    if isinstance(max_seqlen_q, torch.Tensor) or isinstance(max_seqlen_k, torch.Tensor):
        name = "max_seqlen_q" if isinstance(max_seqlen_q, torch.Tensor) else "max_seqlen_k"
        raise TypeError(f"{name}: got a tensor, expected an int; pass int({name})")

    if compiling():
        word = traced_word()
        if not (isinstance(backend, str) and backend == "auto") or policy is not None:
            kind, names = (backend.kind, backend.names) if isinstance(backend, Contract) else (None, backend)
            word, error, wrong_type = _word_with(word, kind, names, policy, None, None, None)
            if error is not None:
                raise (TypeError(error) if wrong_type else ValueError(error))
        runtime, error = call(
            "runtime_options", ENVIRONMENT.get(b"CYNOSURE_CPU_ISA"), ENVIRONMENT.get(b"CYNOSURE_CHECK")
        )
        if error is not None:
            raise ValueError(error)
        if dropout_p and dropout_seed is None:
            dropout_seed = draw_seed(q)
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
                given[name] = optional
        out, lse = surface(q, k, v, word, causal, **given)
        return (out, lse) if return_lse else out

    word, logged = eager_now()
    if logged:
        log.follow_ledger()
    if backend != "auto" or policy is not None:
        word = _word_for(word, backend, policy)
    isa, check = ENVIRONMENT.get(b"CYNOSURE_CPU_ISA"), ENVIRONMENT.get(b"CYNOSURE_CHECK")
    runtime = 0 if isa is None and check is None else _runtime(isa, check)
    try:
        if plain:
            options = dims | runtime
            if causal:
                options |= CAUSAL
            if align == "top_left":
                options |= TOP_LEFT
            if scale is not None:
                options |= SCALE_GIVEN
            training = is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
            if training:
                options |= TRAINING
            rest = (
                *PLAIN_REST,
                -1,
                -1,
                window_size[0],
                window_size[1],
                1.0 if scale is None else scale,
                softcap,
                0.0,
                options,
                word,
            )
            return apply_plain(q, k, v, rest) if training else raw_forward(q, k, v, *rest)[0]
        if dropout_p and dropout_seed is None:
            dropout_seed = draw_seed(q)
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
    except RuntimeError as error:
        typed(error)
    return (out, lse) if return_lse else out


def _check_window(window_size: Any) -> None:
    if (
        not isinstance(window_size, (tuple, list))
        or len(window_size) != 2
        or any([isinstance(side, bool) or not isinstance(side, int) for side in window_size])  # noqa: C419  # traced
    ):
        raise ValueError(f"window_size: got {window_size!r}, expected (left, right), two ints")


def _autocast(device: str, *tensors: Any) -> Any:
    """As autocast does for SDPA: floating tensors that are not float64 take its dtype."""
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        [
            t.to(dtype) if t is not None and t.is_floating_point() and t.dtype != torch.float64 else t
            for t in tensors
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
    options = CHECK if check == b"1" else 0
    if isa is not None:
        from cynosure._detect import detect

        names = ("generic", "avx2", "avx512", "amx")
        name, best = isa.decode(errors="replace"), detect().cpu_isa
        if name not in names:
            return 0, f"CYNOSURE_CPU_ISA: got {name!r}, expected one of {', '.join(names)}"
        if names.index(name) > names.index(best):
            return 0, f"CYNOSURE_CPU_ISA: got {name!r}, expected at most {best!r}, the best of this processor"
        options |= (names.index(name) + 1) << CPU_ISA_SHIFT
    return options, None


_words: dict[Any, int] = {}
_MOST_WORDS = 256


def _word_for(word: int, backend: BackendArgument, policy: str | None) -> int:
    """The word with this call's contract and policy over it; remembered."""
    kind, names = (backend.kind, backend.names) if isinstance(backend, Contract) else (None, backend)
    key = (word, kind, tuple(names) if isinstance(names, list) else names, policy)
    try:
        known = _words.get(key)
    except TypeError:
        known = None
    if known is None:
        known, error, wrong_type = _word_with(word, kind, names, policy, None, None, None)
        if error is not None:
            raise TypeError(error) if wrong_type else ValueError(error)
        if len(_words) >= _MOST_WORDS:
            _words.clear()
        _words[key] = known
    return known
