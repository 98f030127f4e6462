# SPDX-License-Identifier: Apache-2.0
"""DotProductAttention under torch.compile(fullgraph=True): as eager, one graph over all lengths; and under export."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from dot_product_attention_case import (  # type: ignore[import-not-found]  # noqa: E402
    CALL,
    CU,
    DENSE,
    HOLES,
    MEANING,
    PADDED,
    DotProductAttention,
    Tracker,
    X,
    cumulative,
    dropout_module,
    padding_mask,
)

import cynosure  # noqa: E402

public: Any = cynosure
pytestmark = pytest.mark.usefixtures("attention")

# --- one graph


def dynamic(tensor: Any, *dims: int) -> Any:
    for dim in dims:
        torch._dynamo.mark_dynamic(tensor, dim)
    return tensor


SIZES = [(2, 5), (3, 8), (5, 16), (2, 33), (7, 2), (4, 64), (6, 7), (9, 12)]


@pytest.mark.parametrize("mask", ["causal", "no_mask", "arbitrary", *PADDED])
@pytest.mark.parametrize("layout", DENSE)
def test_one_graph_over_many_lengths(compiled: Any, mask: str, layout: str) -> None:
    """I11, H7 as well: the compiled output and gradients have the head dim of the values."""
    module = DotProductAttention(4, (8, 6), 2, qkv_format=layout, attn_mask_type=mask, softmax_type="learnable")
    run = compiled(module)
    for batch, seqlen in SIZES:
        shape = (seqlen, batch) if layout == "sbhd" else (batch, seqlen)
        q, k, v = (torch.randn(*shape, h, d, requires_grad=True) for h, d in ((4, 8), (2, 8), (2, 6)))
        named = {}
        if MEANING[mask][2]:
            lengths = torch.randint(0, seqlen + 1, (batch,))
            hidden = torch.arange(seqlen)[None, None, None, :] >= lengths[:, None, None, None]
            named["attention_mask"] = dynamic(hidden, 0, 3)
        elif mask == "arbitrary":
            named["attention_mask"] = dynamic(torch.rand(batch, 1, seqlen, seqlen) < 0.3, 0, 2, 3)
        inputs = [dynamic(x, 0, 1) for x in (q, k, v)]
        out = run(*inputs, **named)
        assert out.shape == (*shape, 24)
        expected = module(q, k, v, **named)
        torch.testing.assert_close(out, expected)
        cotangent = torch.randn_like(out)
        for one, other in zip(
            torch.autograd.grad(out, (q, k, v), cotangent),
            torch.autograd.grad(expected, (q, k, v), cotangent),
            strict=True,
        ):
            torch.testing.assert_close(one, other)
    assert run.graphs == 1


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("bounded", [False, True])
def test_one_graph_over_many_ragged_batches(compiled: Any, gaps: bool, bounded: bool) -> None:
    module = DotProductAttention(4, (8, 6), 2, qkv_format="thd", attn_mask_type="padding_causal")

    def call(q: Any, k: Any, v: Any, cu: Any, padded: Any, longest: Any) -> Any:
        bound = longest.shape[0] if bounded else None
        return module(
            q, k, v, cu_seqlens_q=cu, cu_seqlens_kv=cu, cu_seqlens_q_padded=padded, cu_seqlens_kv_padded=padded,
            max_seqlen_q=bound, max_seqlen_kv=bound,
        )  # fmt: skip

    run = compiled(call)
    for batch, most in SIZES:
        lengths = torch.randint(0, most + 1, (batch,)).tolist()
        room = [n + (n % 3 if gaps else 0) for n in lengths]
        tokens = sum(room) + 2
        q, k, v = (dynamic(torch.randn(tokens, h, d), 0) for h, d in ((4, 8), (2, 8), (2, 6)))
        cu = dynamic(cumulative(tuple(lengths)), 0)
        padded = dynamic(cumulative(tuple(room)), 0) if gaps else None
        longest = dynamic(torch.zeros(most), 0)
        out, expected = run(q, k, v, cu, padded, longest), call(q, k, v, cu, padded, longest)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert run.graphs == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_every_feature_traces(compiled: Any, backend: str) -> None:
    """Forward and backward, without a break: packed tensors, biases, slopes, windows, recomputation."""
    for named in (
        {"core_attention_bias_type": "alibi"},
        {"core_attention_bias_type": "pre_scale_bias", "core_attention_bias": torch.randn(1, 4, 5, 5)},
        {"window_size": (2, 0), "attn_mask_type": "causal,padding", "attention_mask": padding_mask((5, 3))},
        {"window_size": [2, 2], "attn_mask_type": "no_mask", "bottom_right_diagonal": False},
        {"checkpoint_core_attention": True},
    ):
        torch._dynamo.reset()
        module = DotProductAttention(4, 8, qkv_format="bshd", softmax_type="off-by-one")
        packed = torch.randn(2, 5, 3, 4, 8, requires_grad=True)
        run = torch.compile(module, fullgraph=True, backend=backend)
        out, expected = run(qkv_layer=packed, **named), module(qkv_layer=packed, **named)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(
            torch.autograd.grad(out.square().sum(), packed), torch.autograd.grad(expected.square().sum(), packed)
        )


def test_inductor_as_eager(compiled: Any) -> None:
    q, k, v = (torch.randn(20, h, d, requires_grad=True) for h, d in ((4, 8), (2, 8), (2, 6)))
    module = DotProductAttention(
        4, (8, 6), 2, qkv_format="thd", attn_mask_type="padding_causal", softmax_type="learnable"
    )
    cu, padded = cumulative((5, 0, 7)), cumulative((6, 2, 10))
    named = {"cu_seqlens_q": cu, "cu_seqlens_kv": cu, "cu_seqlens_q_padded": padded, "cu_seqlens_kv_padded": padded}
    out, expected = torch.compile(module, fullgraph=True)(q, k, v, **named), module(q, k, v, **named)
    torch.testing.assert_close(out, expected)
    leaves = (q, k, v, module.softmax_offset)
    for one, other in zip(
        torch.autograd.grad(out.square().sum(), leaves),
        torch.autograd.grad(expected.square().sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_j1_dropout_is_the_same_compiled(compiled: Any) -> None:
    x = torch.randn(2, 16, 2, 8)
    module = dropout_module()
    run = compiled(module)
    torch.manual_seed(7)
    out = run(x, x, x)
    torch.manual_seed(7)
    assert torch.equal(out, module(x, x, x))
    module.eval()
    torch.testing.assert_close(run(x, x, x), module(x, x, x))
    assert run.graphs == 2


def test_a_tracker_is_not_traced(compiled: Any) -> None:
    tracker = Tracker()
    module = dropout_module(get_rng_state_tracker=lambda: tracker)
    x = torch.randn(2, 6, 2, 8)
    with pytest.raises(Exception, match="get_rng_state_tracker: got a tracker with dropout in traced code"):
        compiled(module)(x, x, x)
    torch._dynamo.reset()
    compiled(module, fullgraph=False)(x, x, x)  # runs eagerly
    assert tracker.forks == 1


def test_a_warning_comes_while_tracing(compiled: Any) -> None:
    run = compiled(DotProductAttention(4, 8, qkv_format="bshd"))
    with pytest.warns(UserWarning, match="window_size: got"):
        run(X, X, X, window_size=(3, 3))


def test_export(compiled: Any) -> None:
    module = DotProductAttention(4, 8, qkv_format="bshd", attn_mask_type="padding")
    batch, seqlen = torch.export.Dim("batch"), torch.export.Dim("seqlen")
    sizes = {0: batch, 1: seqlen}
    shapes = (sizes, sizes, sizes, {0: batch, 3: seqlen})
    x = torch.randn(2, 5, 4, 8)
    program = torch.export.export(module, (x, x.clone(), x.clone(), padding_mask((5, 3))), dynamic_shapes=shapes)
    y = torch.randn(3, 9, 4, 8)
    mask = padding_mask((4, 9, 1))
    torch.testing.assert_close(program.module()(y, y, y, mask), module(y, y, y, mask))


# --- errors, warnings and decisions in traced code


def test_every_error_of_a_name_is_told_in_traced_code_too(compiled: Any) -> None:
    module = DotProductAttention(4, 8, qkv_format="bshd")
    for arguments, message in (
        ({"attn_mask_type": "own"}, "attn_mask_type: got 'own', expected one of no_mask"),
        ({"fp8_output": True}, "fp8_output: got True, expected False"),
        ({"window_size": (-1, 5)}, "window_size: got (-1, 5), expected (-1, 0) or (left >= 0, 0)"),
        ({"query_layer": X[0]}, "query_layer: got rank 3, expected rank 4"),
        ({"cu_seqlens_q": CU}, "cu_seqlens_q: got a tensor with attn_mask_type='causal'"),
    ):
        torch._dynamo.reset()
        with pytest.raises(Exception) as caught:  # noqa: PT011
            compiled(module)(**{**CALL, **arguments})
        assert message in str(caught.value)


def test_c17_a_padding_mask_becomes_lengths_not_a_dense_mask(monkeypatch: pytest.MonkeyPatch, compiled: Any) -> None:
    """All valid or not, eager or compiled: the same question to the same rules."""
    seen: list[Any] = []

    def record(q: Any, k: Any, v: Any, **named: Any) -> Any:
        seen.append({name: value is not None for name, value in named.items() if name.startswith(("seq", "attn"))})
        return q * named["seqlens_k"].sum()

    monkeypatch.setattr(cynosure, "attention", record, raising=False)
    module = DotProductAttention(4, 8, qkv_format="bshd", attn_mask_type="padding")
    for run in (module, compiled(module)):
        run(X, X, X, attention_mask=HOLES & False)
    assert seen[0] == seen[-1] == {"seqlens_q": True, "seqlens_k": True, "attn_bias": False, "attn_mask": False}


def test_compiled_code_tells_of_a_mask_with_holes(compiled: Any) -> None:
    """Eager code names the mask; in compiled code the operator finds a length of -1 in its place."""
    if public.attention.__module__ == "attention_stand_in":
        pytest.skip("the stand-in checks no lengths")
    module = DotProductAttention(4, 8, qkv_format="bshd", attn_mask_type="padding")
    holes = torch.tensor([[False] * 5, [True, False, False, False, False]])[:, None, None, :]
    with pytest.raises((RuntimeError, ValueError), match="seqlens_q: got -1 for sequence 1, expected 0 to 5"):
        compiled(module)(X, X, X, attention_mask=holes)


def test_one_mask_for_unequal_lengths_is_refused_in_traced_code_too() -> None:
    module = DotProductAttention(4, 8, qkv_format="bshd", attn_mask_type="padding")
    run = torch.compile(module, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="attention_mask: got one mask, expected a pair, because lengths 5 and 4"):
        run(X, X[:, :4], X[:, :4], attention_mask=HOLES & False)
