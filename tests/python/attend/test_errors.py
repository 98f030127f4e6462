# SPDX-License-Identifier: Apache-2.0
"""What cannot be: each bad argument raises, by name, with what it is and what is allowed; eager and compiled alike.

And sizes from a hostile caller: nothing is read, written or allocated because of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from checks import BACKENDS
from torch import Tensor

import cynosure
from cynosure import NoBackendError


def q_(*shape: int, dtype: torch.dtype = torch.float32, **options: Any) -> Tensor:
    x = torch.zeros(shape, dtype=dtype, **options)
    return x.normal_() if dtype.is_floating_point and x.device.type == "cpu" and dtype.itemsize > 1 else x


def lengths(*values: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


Q = (2, 5, 4, 8)  # batch, length, heads, head dim
T = (9, 4, 8)


def good(**changed: Any) -> dict[str, Any]:
    return {"q": q_(*Q), "k": q_(*Q), "v": q_(*Q), **changed}


def ragged(**changed: Any) -> dict[str, Any]:
    cu = {"cu_seqlens_q": lengths(0, 4, 9), "cu_seqlens_k": lengths(0, 4, 9)}
    return {"q": q_(*T), "k": q_(*T), "v": q_(*T), "layout": "thd", **cu, **changed}


@dataclass
class Bad:
    """A call that must fail. `data`: found by looking at values, which traced code cannot do before it runs."""

    arguments: Callable[[], dict[str, Any]]
    error: type[Exception] | tuple[type[Exception], ...]
    named: str  # a regex: the argument first, then what it is
    allowed: str  # a regex: what is allowed
    data: bool = False
    compiled: bool = True


WRONG = (ValueError, TypeError)
BAD: dict[str, Bad] = {
    # --- tensors
    "q is no tensor": Bad(lambda: good(q=None), TypeError, r"\bq\b.*None", r"[Tt]ensor"),
    "k is a list": Bad(lambda: good(k=[1.0]), TypeError, r"\bk\b.*list", r"[Tt]ensor"),
    "sinks is a list": Bad(lambda: good(sinks=[1.0] * 4), TypeError, r"\bsinks\b.*list", r"[Tt]ensor"),
    "seqlens_k is a list": Bad(lambda: good(seqlens_k=[5, 5]), TypeError, r"seqlens_k.*list", r"int32"),
    "return_lse": Bad(lambda: good(return_lse="no"), ValueError, r"return_lse.*no", r"True or False"),
    "a window beyond 64 bits": Bad(
        lambda: good(window_size=(2**70, 0)), ValueError, r"window_size.*\(1180", r"2147483647"
    ),
    "a bound beyond 32 bits": Bad(
        lambda: ragged(max_seqlen_q=2**40), ValueError, r"max_seqlen_q.*1099511627776", r"2147483647"
    ),
    "a scale that float cannot hold": Bad(lambda: good(scale=10**400), ValueError, r"\bscale\b.*1329", r"finite"),
    "a scale that float32 cannot hold": Bad(lambda: good(scale=1e39), ValueError, r"\bscale\b.*1e\+39", r"float32"),
    "a cap that float32 cannot hold": Bad(lambda: good(softcap=1e-46), ValueError, r"softcap.*1e-46", r"float32"),
    "a batch beyond 32 bits": Bad(
        lambda: {name: torch.empty(1).expand(2**40, 0, 1, 1) for name in "qkv"},
        ValueError,
        r"\bq\b.*batch 1099511627776",
        r"2147483647",
        compiled=False,
    ),
    "strided nested": Bad(
        lambda: {name: torch.nested.nested_tensor([torch.zeros(3, 4, 8)] * 2, layout=torch.strided) for name in "qkv"},
        ValueError,
        r"\bq\b.*strided",
        r"jagged",
        compiled=False,
    ),
    "q has rank 3": Bad(lambda: good(q=q_(5, 4, 8)), ValueError, r"\bq\b.*rank 3", r"4.*bshd"),
    "v has rank 5": Bad(lambda: good(v=q_(1, *Q)), ValueError, r"\bv\b.*rank 5", r"4.*bshd"),
    "thd with rank 4": Bad(lambda: ragged(q=q_(*Q)), ValueError, r"\bq\b.*rank 4", r"3.*thd"),
    "dtype of k": Bad(lambda: good(k=q_(*Q, dtype=torch.bfloat16)), WRONG, r"\bk\b.*bfloat16", r"float32"),
    "dtype of v": Bad(lambda: good(v=q_(*Q, dtype=torch.float64)), WRONG, r"\bv\b.*float64", r"float32"),
    "integers": Bad(
        lambda: {name: q_(*Q, dtype=torch.int32) for name in "qkv"}, WRONG, r"\bq\b.*int32", r"float32.*float16"
    ),
    "complex": Bad(
        lambda: {name: torch.zeros(Q, dtype=torch.complex64) for name in "qkv"}, WRONG, r"\bq\b.*complex64", r"float32"
    ),
    "device of k": Bad(lambda: good(k=q_(*Q, device="meta")), ValueError, r"\bk\b.*meta", r"cpu"),
    "sparse": Bad(lambda: good(q=q_(*Q).to_sparse()), WRONG, r"\bq\b.*[Ss]parse", r"strided|dense", compiled=False),
    # --- sizes
    "batch of k": Bad(lambda: good(k=q_(3, 5, 4, 8)), ValueError, r"\bk\b.*3", r"2"),
    "batch of v": Bad(lambda: good(v=q_(3, 5, 4, 8)), ValueError, r"\bv\b.*3", r"2"),
    "length of v": Bad(lambda: good(v=q_(2, 6, 4, 8)), ValueError, r"\bv\b.*6", r"5"),
    "head dim of k": Bad(lambda: good(k=q_(2, 5, 4, 7)), ValueError, r"\bk\b.*7", r"8"),
    "heads of v": Bad(lambda: good(v=q_(2, 5, 2, 8)), ValueError, r"\bv\b.*2", r"4"),
    "heads do not divide": Bad(
        lambda: good(k=q_(2, 5, 3, 8), v=q_(2, 5, 3, 8)), ValueError, r"heads.*4.*3|\bk\b.*3.*4", r"multiple|divi"
    ),
    "no heads of k": Bad(lambda: good(k=q_(2, 5, 0, 8), v=q_(2, 5, 0, 8)), ValueError, r"heads|\bk\b", r"0"),
    "head dim 0": Bad(lambda: good(q=q_(2, 5, 4, 0), k=q_(2, 5, 4, 0)), ValueError, r"head_dim|\bq\b", r"1|positive"),
    "tokens of v": Bad(lambda: ragged(v=q_(8, 4, 8)), ValueError, r"\bv\b.*8", r"9"),
    # --- plain arguments
    "layout": Bad(lambda: good(layout="bhds"), ValueError, r"layout.*bhds", r"bshd, sbhd, bhsd, thd"),
    "align": Bad(lambda: good(align="middle"), ValueError, r"align.*middle", r"bottom_right"),
    "causal is text": Bad(lambda: good(causal="yes"), WRONG, r"causal.*yes", r"True or False", compiled=False),
    "causal is a number": Bad(lambda: good(causal=2), WRONG, r"causal.*2", r"True or False", compiled=False),
    "window is one number": Bad(lambda: good(window_size=4), WRONG, r"window_size.*4", r"left, right", compiled=False),
    "window of three": Bad(lambda: good(window_size=(1, 2, 3)), WRONG, r"window_size", r"left, right", compiled=False),
    "window below -1": Bad(lambda: good(window_size=(-2, 0)), ValueError, r"window_size.*-2", r"-1"),
    "window of floats": Bad(lambda: good(window_size=(1.5, 0)), WRONG, r"window_size.*1\.5", r"int", compiled=False),
    "window right of causal": Bad(
        lambda: good(causal=True, window_size=(3, 2)),
        ValueError,
        r"window_size.*3, 2.*causal|window_size.*2.*causal",
        r"0 or -1",
    ),
    "softcap below 0": Bad(lambda: good(softcap=-1.0), ValueError, r"softcap.*-1", r"0|positive"),
    "softcap is NaN": Bad(
        lambda: good(softcap=float("nan")), ValueError, r"softcap.*nan", r"0|positive", compiled=False
    ),
    "softcap is infinite": Bad(
        lambda: good(softcap=float("inf")), ValueError, r"softcap.*inf", r"positive", compiled=False
    ),
    "softcap is a tensor": Bad(
        lambda: good(softcap=torch.tensor(3.0)), TypeError, r"softcap", r"float", compiled=False
    ),
    "scale is text": Bad(lambda: good(scale="big"), WRONG, r"scale.*big", r"float", compiled=False),
    "scale is a tensor": Bad(lambda: good(scale=torch.tensor(3.0)), TypeError, r"scale", r"float", compiled=False),
    "scale is NaN": Bad(lambda: good(scale=float("nan")), ValueError, r"scale.*nan", r"finite|number", compiled=False),
    "dropout above 1": Bad(lambda: good(dropout_p=1.5), ValueError, r"dropout_p.*1\.5", r"0 to 1"),
    "dropout below 0": Bad(lambda: good(dropout_p=-0.1), ValueError, r"dropout_p.*-0\.1", r"0 to 1"),
    "dropout is text": Bad(lambda: good(dropout_p="some"), WRONG, r"dropout_p.*some", r"float", compiled=False),
    "backend": Bad(lambda: good(backend="flash9"), ValueError, r"backend.*flash9", r"unfused"),
    "backend twice": Bad(lambda: good(backend=["cpu", "cpu"]), ValueError, r"backend.*cpu", r"twice"),
    "backend is a number": Bad(lambda: good(backend=3), WRONG, r"backend.*", r"name", compiled=False),
    "policy": Bad(lambda: good(policy="slowest"), ValueError, r"policy.*slowest", r"fastest"),
    "lse_grad alone": Bad(lambda: good(lse_grad=True), ValueError, r"lse_grad", r"return_lse"),
    "unknown argument": Bad(lambda: good(is_causal=True), TypeError, r"is_causal", r"argument", compiled=False),
    # --- bias, masks, slopes, sinks
    "rank of the bias": Bad(
        lambda: good(attn_bias=q_(5, 5)), ValueError, r"attn_bias.*5, 5|attn_bias.*rank 2", r"1 or"
    ),
    "shape of the bias": Bad(lambda: good(attn_bias=q_(1, 4, 5, 6)), ValueError, r"attn_bias.*6", r"1 or"),
    "heads of the bias": Bad(lambda: good(attn_bias=q_(1, 3, 5, 5)), ValueError, r"attn_bias.*3", r"1 or"),
    "bias with one column": Bad(lambda: good(attn_bias=q_(1, 4, 5, 1)), ValueError, r"attn_bias.*1", r"Skv|5"),
    "dtype of the bias": Bad(
        lambda: good(attn_bias=q_(1, 4, 5, 5, dtype=torch.float64)), WRONG, r"attn_bias.*float64", r"float32"
    ),
    "bias of bools": Bad(
        lambda: good(attn_bias=torch.ones(1, 4, 5, 5, dtype=torch.bool)),
        WRONG,
        r"attn_bias.*bool",
        r"float32|attn_mask",
    ),
    "device of the bias": Bad(
        lambda: good(attn_bias=q_(1, 4, 5, 5, device="meta")), ValueError, r"attn_bias.*meta", r"cpu"
    ),
    "rank of the mask": Bad(
        lambda: good(attn_mask=torch.ones(1, 1, 1, 5, 5, dtype=torch.bool)),
        ValueError,
        r"attn_mask.*(rank 5|1, 1, 1, 5)",
        r"1 or",
    ),
    "shape of the mask": Bad(
        lambda: good(attn_mask=torch.ones(2, 4, 6, 5, dtype=torch.bool)), ValueError, r"attn_mask.*6", r"1 or"
    ),
    "mask of integers": Bad(
        lambda: good(attn_mask=torch.ones(2, 4, 5, 5, dtype=torch.int64)), WRONG, r"attn_mask.*int64", r"bool"
    ),
    "mask is a word": Bad(
        lambda: good(attn_mask="causal"), TypeError, r"attn_mask.*(causal|str)", r"[Tt]ensor", compiled=False
    ),
    "slopes of one": Bad(lambda: good(alibi_slopes=q_(1)), ValueError, r"alibi_slopes.*1", r"4|\[H\]|\[heads\]"),
    "slopes of rank 3": Bad(lambda: good(alibi_slopes=q_(1, 2, 4)), ValueError, r"alibi_slopes", r"\[H\]|\[heads\]"),
    "dtype of slopes": Bad(
        lambda: good(alibi_slopes=q_(4, dtype=torch.bfloat16)), WRONG, r"alibi_slopes.*bfloat16", r"float32"
    ),
    "slopes and a bias": Bad(
        lambda: good(alibi_slopes=q_(4), attn_bias=q_(1, 4, 5, 5)),
        ValueError,
        r"alibi_slopes.*attn_bias",
        r"one of them",
    ),
    "slopes that want a gradient": Bad(
        lambda: good(alibi_slopes=q_(4).requires_grad_()),
        ValueError,
        r"alibi_slopes.*(grad|differentiable)",
        r"detach|attn_bias|no gradient",
    ),
    "number of sinks": Bad(lambda: good(sinks=q_(3)), ValueError, r"sinks.*3", r"4|\[H\]|\[heads\]"),
    "rank of sinks": Bad(lambda: good(sinks=q_(2, 4)), ValueError, r"sinks", r"\[H\]|4"),
    "dtype of sinks": Bad(lambda: good(sinks=torch.ones(4, dtype=torch.int64)), WRONG, r"sinks.*int64", r"float32"),
    # --- dropout's seed
    "seed is a number": Bad(
        lambda: good(dropout_p=0.5, dropout_seed=3), TypeError, r"dropout_seed.*(3|int)", r"int64.*2", compiled=False
    ),
    "dtype of the seed": Bad(
        lambda: good(dropout_p=0.5, dropout_seed=lengths(1, 2)), WRONG, r"dropout_seed.*int32", r"int64"
    ),
    "shape of the seed": Bad(
        lambda: good(dropout_p=0.5, dropout_seed=lengths(1, 2, 3, dtype=torch.int64)),
        ValueError,
        r"dropout_seed.*3",
        r"2",
    ),
    "device of the seed": Bad(
        lambda: good(dropout_p=0.5, dropout_seed=torch.zeros(2, dtype=torch.int64, device="meta")),
        ValueError,
        r"dropout_seed.*meta",
        r"cpu",
    ),
    # --- lengths
    "seqlens of int64": Bad(
        lambda: good(seqlens_q=lengths(5, 5, dtype=torch.int64)), WRONG, r"seqlens_q.*int64", r"int32"
    ),
    "seqlens is a list": Bad(lambda: good(seqlens_k=[5, 5]), TypeError, r"seqlens_k.*list", r"int32", compiled=False),
    "number of seqlens": Bad(lambda: good(seqlens_k=lengths(5, 5, 5)), ValueError, r"seqlens_k.*3", r"2"),
    "rank of seqlens": Bad(
        lambda: good(seqlens_k=torch.ones(2, 1, dtype=torch.int32)),
        ValueError,
        r"seqlens_k",
        r"\[batch\]|\[2\]",
    ),
    "seqlens beyond the tensor": Bad(
        lambda: good(seqlens_k=lengths(5, 6)), ValueError, r"seqlens_k.*6", r"5", data=True
    ),
    "seqlens below 0": Bad(lambda: good(seqlens_q=lengths(5, -1)), ValueError, r"seqlens_q.*-1", r"0", data=True),
    "seqlens in thd": Bad(lambda: ragged(seqlens_q=lengths(4, 5)), ValueError, r"seqlens_q.*thd", r"cu_seqlens_q"),
    "cu_seqlens in bshd": Bad(
        lambda: good(cu_seqlens_q=lengths(0, 5, 10), cu_seqlens_k=lengths(0, 5, 10)),
        ValueError,
        r"cu_seqlens_q.*bshd",
        r"thd",
    ),
    "max_seqlen in bshd": Bad(
        lambda: good(max_seqlen_q=5), ValueError, r"max_seqlen_q.*bshd|max_seqlen_q.*layout", r"thd"
    ),
    "no cu_seqlens": Bad(lambda: ragged(cu_seqlens_k=None), ValueError, r"cu_seqlens_k", r"int32"),
    "neither cu_seqlens": Bad(
        lambda: ragged(cu_seqlens_q=None, cu_seqlens_k=None), ValueError, r"cu_seqlens_q", r"int32"
    ),
    "cu_seqlens of int64": Bad(
        lambda: ragged(cu_seqlens_q=lengths(0, 4, 9, dtype=torch.int64)), WRONG, r"cu_seqlens_q.*int64", r"int32"
    ),
    "cu_seqlens of floats": Bad(lambda: ragged(cu_seqlens_k=q_(3)), WRONG, r"cu_seqlens_k.*float32", r"int32"),
    "rank of cu_seqlens": Bad(
        lambda: ragged(cu_seqlens_k=torch.zeros(1, 3, dtype=torch.int32)),
        ValueError,
        r"cu_seqlens_k",
        r"\[batch \+ 1\]",
    ),
    "cu_seqlens of nothing": Bad(
        lambda: ragged(cu_seqlens_q=lengths(), cu_seqlens_k=lengths()),
        ValueError,
        r"cu_seqlens_q",
        r"\+ ?1|at least 1|0",
    ),
    "batches of cu_seqlens": Bad(
        lambda: ragged(cu_seqlens_k=lengths(0, 2, 4, 9)), ValueError, r"cu_seqlens_k.*4", r"3"
    ),
    "cu_seqlens fall": Bad(
        lambda: ragged(cu_seqlens_q=lengths(0, 5, 4)),
        ValueError,
        r"cu_seqlens_q.*(5.*4|4.*5)",
        r"rise|decrease|monoton|falling|smaller",
        data=True,
    ),
    "cu_seqlens start late": Bad(
        lambda: ragged(cu_seqlens_q=lengths(1, 4, 9)), ValueError, r"cu_seqlens_q.*1", r"0", data=True
    ),
    "cu_seqlens below 0": Bad(
        lambda: ragged(cu_seqlens_k=lengths(-1, 4, 9)), ValueError, r"cu_seqlens_k.*-1", r"0", data=True
    ),
    "cu_seqlens beyond the tensor": Bad(
        lambda: ragged(cu_seqlens_k=lengths(0, 4, 10)), ValueError, r"cu_seqlens_k.*10", r"9", data=True
    ),
    "cu_seqlens far beyond": Bad(
        lambda: ragged(cu_seqlens_q=lengths(0, 4, 2**31 - 1)), ValueError, r"cu_seqlens_q.*2147483647", r"9", data=True
    ),
    "max_seqlen too small": Bad(
        lambda: ragged(max_seqlen_q=4, max_seqlen_k=5), ValueError, r"max_seqlen_q.*4", r"5", data=True
    ),
    "max_seqlen below 0": Bad(lambda: ragged(max_seqlen_k=-1), ValueError, r"max_seqlen_k.*-1", r"0|at least"),
    "max_seqlen is a tensor": Bad(
        lambda: ragged(max_seqlen_q=torch.tensor(5)), TypeError, r"max_seqlen_q.*tensor", r"int\(max_seqlen_q\)"
    ),
    "max_seqlen is a float": Bad(
        lambda: ragged(max_seqlen_q=5.0), TypeError, r"max_seqlen_q.*5\.0", r"int", compiled=False
    ),
    # --- nothing may run
    "cpu has no float64": Bad(
        lambda: {**{name: q_(*Q, dtype=torch.float64) for name in "qkv"}, "backend": "cpu"},
        NoBackendError,
        r"float64",
        r"float32, bfloat16 or float16",
    ),
    "cudnn on the CPU": Bad(lambda: good(backend="cudnn"), NoBackendError, r"cudnn", r"CUDA device"),
    "flash2 or flash3": Bad(lambda: good(backend=["flash2", "flash3"]), NoBackendError, r"flash2", r"flash3"),
    "float8": Bad(
        lambda: {name: q_(*Q, dtype=torch.float8_e4m3fn) for name in "qkv"},
        (TypeError, ValueError),
        r"float8_e4m3",
        r"float32",
    ),
    "policy te": Bad(lambda: good(policy="te"), NoBackendError, r"cpu|CPU", r"unfused"),
}


def call(arguments: dict[str, Any]) -> Any:
    rest = {name: value for name, value in arguments.items() if name not in ("q", "k", "v")}
    return cynosure.attention(arguments["q"], arguments["k"], arguments["v"], **rest)


@pytest.fixture(autouse=True)
def _no_variables(clean_environment: pytest.MonkeyPatch) -> None:
    """The environment changes no message here."""


@pytest.mark.parametrize("what", BAD)
def test_bad_calls(what: str) -> None:
    bad = BAD[what]
    with pytest.raises(bad.error) as caught:
        call(bad.arguments())
    message = str(caught.value)
    assert re.search(bad.named, message, re.DOTALL), f"{message!r} does not say what is wrong: {bad.named}"
    assert re.search(bad.allowed, message, re.DOTALL), f"{message!r} does not say what is allowed: {bad.allowed}"


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


@pytest.mark.parametrize("what", [name for name, bad in BAD.items() if bad.compiled])
def test_the_same_message_compiled(what: str, compiled: Any) -> None:
    bad = BAD[what]
    arguments = bad.arguments()
    with pytest.raises(bad.error) as caught:
        call(arguments)
    message = first_line(caught.value)
    with pytest.raises(Exception) as traced:  # noqa: PT011  # torch's type while tracing, RuntimeError while running
        torch.compile(lambda: call(arguments), fullgraph=True, backend="eager")()
    chain: list[str] = []
    error: BaseException | None = traced.value
    while error is not None:
        chain.append(str(error))
        error = error.__cause__ or error.__context__
    assert any(message in text for text in chain), f"{message!r} is not in\n{chain[0][:2000]}"


def test_compiled_functions_check_the_values_that_they_run_with(compiled: Any) -> None:
    """Lengths are data: a compiled graph that ran with good ones refuses bad ones, and runs again."""
    run = compiled(lambda q, cu: cynosure.attention(q, q, q, layout="thd", cu_seqlens_q=cu, cu_seqlens_k=cu))
    q = q_(*T)
    expected = run(q, lengths(0, 4, 9))
    with pytest.raises((RuntimeError, ValueError), match=r"cu_seqlens_q.*10"):
        run(q, lengths(0, 4, 10))
    with pytest.raises((RuntimeError, ValueError), match=r"cu_seqlens_q"):
        run(q, lengths(0, 5, 4))
    assert torch.equal(run(q, lengths(0, 4, 9)), expected)
    assert run.graphs == 1


def test_no_backend_error_has_the_whole_table() -> None:
    with pytest.raises(NoBackendError) as caught:
        cynosure.attention(q_(*Q), q_(*Q), q_(*Q), backend="cudnn")
    assert isinstance(caught.value, RuntimeError)
    for backend in cynosure.Backend:
        assert backend.name in str(caught.value)


def test_a_required_backend_that_is_switched_off_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVTE_UNFUSED_ATTN", "0")
    with pytest.raises(NoBackendError, match=r"unfused is required and switched off"):
        cynosure.attention(q_(*Q), q_(*Q), q_(*Q), backend="unfused")


def test_an_unreadable_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CYNOSURE_BACKEND", "fastest please")
    with pytest.raises(ValueError, match=r"CYNOSURE_BACKEND"):
        cynosure.attention(q_(*Q), q_(*Q), q_(*Q))


def test_other_devices_are_named() -> None:
    """No kernel runs there; meta tensors are the exception (shapes only)."""
    out = cynosure.attention(*(q_(*Q, device="meta"),) * 3)
    assert out.device.type == "meta"


# --- hostile sizes


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name in ("cpu", "unfused")])
@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd", "thd"])
@pytest.mark.parametrize("zero", ["batch", "q", "k", "both", "heads"])
def test_nothing_at_all(backend: str, layout: str, zero: str) -> None:
    batch, sq, sk = 0 if zero == "batch" else 2, 0 if zero in ("q", "both") else 3, 0 if zero in ("k", "both") else 5
    heads = 0 if zero == "heads" else 2
    more: dict[str, Any] = {}
    shapes = {
        "bshd": lambda s: (batch, s, heads, 8),
        "sbhd": lambda s: (s, batch, heads, 8),
        "bhsd": lambda s: (batch, heads, s, 8),
        "thd": lambda s: (batch * s, heads, 8),
    }
    if layout == "thd":
        more["cu_seqlens_q"] = torch.arange(batch + 1, dtype=torch.int32) * sq
        more["cu_seqlens_k"] = torch.arange(batch + 1, dtype=torch.int32) * sk
    q, k, v = (q_(*shapes[layout](s)).requires_grad_() for s in (sq, sk, sk))  # type: ignore[no-untyped-call]
    if zero == "heads":  # no heads are no call
        with pytest.raises(ValueError, match="heads"):
            cynosure.attention(q, k, v, layout=layout, backend=backend, **more)
        return
    out, lse = cynosure.attention(q, k, v, layout=layout, return_lse=True, causal=True, backend=backend, **more)
    assert out.shape == q.shape
    assert not out.any()
    assert torch.isneginf(lse).all()
    out.sum().backward()
    assert all(x.grad is not None and not x.grad.any() for x in (q, k, v))


HOSTILE = """
import resource, sys, torch, cynosure
resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
{code}
"""
HUGE: dict[str, str] = {
    # about 2^31 elements and more of one number each, by stride 0
    "keys": "x = torch.zeros(1, 1, 1, 1).expand(1, 2**31 - 1, 1, 1); q = torch.zeros(1, 1, 1, 1); f = (q, x, x)",
    "heads": "x = torch.zeros(1, 1, 1, 1).expand(1, 3, 2**31 - 1, 1); f = (x, x, x)",
    "batch": "x = torch.zeros(1, 1, 1, 1).expand(2**31 - 1, 1, 2, 1); f = (x, x, x)",
    "head dim": "x = torch.zeros(1, 1, 1, 1).expand(1, 1, 1, 2**31); f = (x, x, x)",
    "everything": "x = torch.zeros(1, 1, 1, 1).expand(2**15, 2**15, 2**15, 2**15); f = (x, x, x)",
    "products that overflow": "x = torch.zeros(1, 1, 1, 1).expand(2**31, 2**30, 1, 2); f = (x, x, x)",
}


@pytest.mark.parametrize("what", HUGE)
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name in ("cpu", "unfused")])
def test_hostile_sizes_end_in_an_error(what: str, backend: str) -> None:
    """In a process of its own with limited memory: an exception, or a result in a few seconds; never a crash."""
    code = f"""
{HUGE[what]}
signature = (RuntimeError, ValueError, MemoryError)
def attend():
    try:
        cynosure.explain(*f)
        cynosure.attention(*f, backend={backend!r}, window_size=(0, 0))
        print("ran")
    except signature as error:
        print("refused", type(error).__name__, str(error)[:300])
import signal
signal.signal(signal.SIGALRM, lambda *_: sys.exit("still running"))
attend()
"""
    if what in ("keys", "heads", "batch"):  # much work rather than much memory: the size of a tensor must not wrap
        code = f"""
{HUGE[what]}
meta = [torch.empty_strided(x.shape, x.stride(), device="meta") for x in f]
out = cynosure.attention(*meta, backend="auto")
assert out.shape == (*f[0].shape[:-1], f[2].shape[-1]), out.shape
print("ran")
"""
    process = subprocess.run(
        [sys.executable, "-c", HOSTILE.format(code=code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 0, process.stderr[-2000:]
    assert process.stdout.startswith(("ran", "refused")), process.stdout


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name in ("cpu", "unfused")])
def test_more_than_2_31_elements_by_strides(backend: str) -> None:
    """The offset of the last key lies beyond 2^31 elements; the memory behind it is real and small."""
    storage = torch.randn(1 << 16)
    k = storage.as_strided((1, 5, 1, 8), (0, 8, 0, 1))
    batch = k.expand(2**27, 5, 1, 8)[-2:]  # the last two of 5 * 2^30 elements
    q = torch.randn(2, 3, 1, 8)
    out = cynosure.attention(q, batch, batch, backend=backend)
    torch.testing.assert_close(
        out, cynosure.attention(q, k.expand(2, 5, 1, 8).contiguous(), batch.clone(), backend=backend)
    )


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name in ("cpu", "unfused")])
def test_windows_and_lengths_of_any_size(backend: str) -> None:
    q = q_(*Q)
    expected = cynosure.attention(q, q, q, causal=True, backend=backend)
    huge = 2**31 - 1
    found = cynosure.attention(q, q, q, causal=True, window_size=(huge, 0), backend=backend)
    assert torch.equal(found, expected)
    both_sides = cynosure.attention(q, q, q, window_size=(huge, huge), backend=backend)
    assert torch.equal(both_sides, cynosure.attention(q, q, q, backend=backend))


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name in ("cpu", "unfused")])
@pytest.mark.parametrize("bound", [100_000, 2**31 - 1])
def test_a_bound_of_any_size_costs_nothing(backend: str, bound: int) -> None:
    """max_seqlen far beyond the tokens, in a process of its own with limited memory: what is there decides."""
    code = f"""
x = torch.randn(9, 4, 8, requires_grad=True)
cu = torch.tensor([0, 4, 9], dtype=torch.int32)
lengths = dict(layout="thd", cu_seqlens_q=cu, cu_seqlens_k=cu, backend={backend!r})
expected = cynosure.attention(x, x, x, **lengths)
found = cynosure.attention(x, x, x, **lengths, max_seqlen_q={bound}, max_seqlen_k={bound})
assert torch.equal(found, expected)
found.sum().backward()
"""
    process = subprocess.run(
        [sys.executable, "-c", HOSTILE.format(code=code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 0, process.stderr[-2000:]


def test_no_sequence_costs_nothing() -> None:
    """However many keys there are, or sequences of length 0."""
    some = torch.empty(1).expand(2**31 - 1, 0, 1, 1)
    assert cynosure.attention(some, some, some, backend="cpu").shape == (2**31 - 1, 0, 1, 1)
    keys = torch.empty(1).expand(1, 2**31 - 1, 1, 1)
    assert cynosure.attention(torch.empty(1, 0, 1, 1), keys, keys, backend="cpu").shape == (1, 0, 1, 1)


def test_what_a_hook_raises_reaches_the_user() -> None:
    """And the forward pass runs once."""
    q = q_(2, 4, 5, 8).requires_grad_()
    calls = []

    def pack(x: Tensor) -> Tensor:
        calls.append(x)
        raise RuntimeError("this hook failed")

    for function in (cynosure.scaled_dot_product_attention, cynosure.attention):
        calls.clear()
        with (
            pytest.raises(RuntimeError, match="this hook failed"),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x),
        ):
            function(q, q, q)
        assert len(calls) == 1


def test_a_mode_that_raises_once_is_not_asked_twice() -> None:
    class Guard(torch.overrides.TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "attention" in str(function):
                self.calls += 1
                raise ValueError("this guard refuses")
            return function(*args, **(kwargs or {}))

    q = q_(2, 4, 5, 8)
    with Guard() as guard, pytest.raises(ValueError, match="this guard refuses"):
        cynosure.scaled_dot_product_attention(q, q, q)
    assert guard.calls == 1
