# SPDX-License-Identifier: Apache-2.0
"""DotProductAttention: output and gradients against a float64 reference, in every format and with every feature.

Tests named after field reports (E1, F1, ...) own those rows for the module; so do the tests of
test_dot_product_attention_interface.py and test_trace_dot_product_attention.py.
"""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from dot_product_attention_case import (  # type: ignore[import-not-found]  # noqa: E402
    DENSE,
    MEANING,
    PADDED,
    RAGGED,
    Case,
    DotProductAttention,
    Tracker,
    cumulative,
    dropout_module,
    to_layout,
)

import cynosure  # noqa: E402
from cynosure import _te_inputs  # noqa: E402

pytestmark = pytest.mark.usefixtures("attention")

# --- every mask name in every format


@pytest.mark.parametrize("layout", ["sbhd", "bshd", "thd"])
@pytest.mark.parametrize("mask", PADDED)
@pytest.mark.parametrize("window", [None, "small"])
def test_padding_masks(mask: str, layout: str, window: str | None) -> None:
    """L3 as well: empty sequences among others."""
    small = (2, 0) if MEANING[mask][0] else (1, 1)
    Case(mask, window=None if window is None else small, **RAGGED).check(layout)


@pytest.mark.parametrize("layout", DENSE)
@pytest.mark.parametrize("mask", ["no_mask", "causal", "causal_bottom_right"])
@pytest.mark.parametrize("lengths", [((5, 5), (7, 7)), ((6, 6), (3, 3)), ((1,), (6,)), ((4, 4), (4, 4))])
def test_masks_without_padding(mask: str, layout: str, lengths: Any) -> None:
    """F1, F3: both diagonals, more queries than keys and fewer, and one query."""
    Case(mask, *lengths).check(layout)


@pytest.mark.parametrize("layout", DENSE)
@pytest.mark.parametrize(
    "shape", [(1, 1, 5, 7), (2, 1, 5, 7), (2, 4, 5, 7), (1, 4, 1, 7), (5, 7), (4, 5, 1), (2, 1, 1, 7)]
)
def test_arbitrary_masks(layout: str, shape: tuple[int, ...]) -> None:
    """E1, E5: rows that see nothing are 0, and so are their gradients, whatever the batch."""
    hidden = torch.rand(shape) < 0.4
    if len(shape) == 4 and shape[2] == 5:
        hidden[..., 2, :] = True
    Case("arbitrary", hidden=hidden).check(layout)
    one = Case("arbitrary", (5,), (7,), hidden=hidden[:1] if len(shape) == 4 else hidden)
    one.check(layout)
    with torch.no_grad():
        positional, named = one.inputs(layout)
        assert not one.module(layout).eval()(*positional, **named).isnan().any()


@pytest.mark.parametrize("layout", DENSE)
@pytest.mark.parametrize("bottom_right", [None, True, False])
@pytest.mark.parametrize("mask", ["no_mask", "padding", "arbitrary"])
def test_the_diagonal_of_a_window(mask: str, layout: str, bottom_right: bool | None) -> None:
    lengths: Any = ((5, 3), (4, 7)) if mask == "padding" else ((5, 5), (7, 7))
    hidden = torch.rand(2, 1, 5, 7) < 0.2 if mask == "arbitrary" else None
    case = Case(mask, *lengths, window=(1, 2), bottom_right=bottom_right, hidden=hidden)
    case.check(layout)
    without = copy.copy(case)
    without.bottom_right = None
    module = without.module(layout)
    positional, named = case.inputs(layout)
    out = module(*positional, **named, bottom_right_diagonal=bottom_right)
    torch.testing.assert_close(out, to_layout(case.reference(), layout, case.lengths_q))


@pytest.mark.parametrize("layout", DENSE)
@pytest.mark.parametrize("mask", PADDED)
def test_lengths_as_cumulative_ones(mask: str, layout: str) -> None:
    lengths = {"cu_seqlens_q": cumulative(RAGGED["lengths_q"]), "cu_seqlens_kv": cumulative(RAGGED["lengths_k"])}
    Case(mask, **RAGGED).check(layout, attention_mask=None, **lengths)
    every = {"attention_mask": torch.ones(4, 1, 1, 5, dtype=torch.bool)}  # lengths go before it
    Case(mask, **RAGGED).check(layout, **every, **lengths)
    same = cumulative((3, 5))
    Case(mask, (3, 5), (3, 5)).check(layout, attention_mask=None, cu_seqlens_q=same, cu_seqlens_kv=same)


@pytest.mark.parametrize("layout", DENSE)
@pytest.mark.parametrize("mask", PADDED)
def test_one_mask_for_self_attention(mask: str, layout: str) -> None:
    Case(mask, (6, 2, 4), (6, 2, 4)).check(layout)


# --- windows


@pytest.mark.parametrize("left", [0, 1, 5, 6, 7])
@pytest.mark.parametrize("mask", ["causal", "causal_bottom_right"])
def test_g1_g3_causal_windows_at_the_edges(mask: str, left: int) -> None:
    """The left bound is included; S - 1 and more are causal."""
    for lengths in (((6,), (6,)), ((4,), (7,))):
        case = Case(mask, *lengths, window=(left, 0))
        case.check("bshd")
        if left >= 6 and lengths[0] == lengths[1]:
            positional, _ = case.inputs("bshd")
            causal = case.module("bshd")
            causal.window_size = (-1, 0)
            torch.testing.assert_close(case.module("bshd")(*positional), causal(*positional))


@pytest.mark.parametrize("window", [(0, 0), (0, 3), (6, 0), (7, 7), (-1, -1)])
def test_g5_windows_without_a_causal_mask(window: tuple[int, int]) -> None:
    Case("no_mask", window=window).check("sbhd")


@pytest.mark.parametrize(
    ("mask", "given", "taken", "warns"),
    [
        ("causal", None, (-1, 0), False),
        ("causal", (-1, 0), (-1, 0), False),
        ("causal", (3, 0), (3, 0), False),
        ("causal", [3, 0], (3, 0), False),
        ("causal", (-1, -1), (-1, 0), True),
        ("padding_causal", (3, 3), (3, 0), True),
        ("causal_bottom_right", (3, -1), (3, 0), True),
        ("no_mask", None, (-1, -1), False),
        ("no_mask", (-1, -1), (-1, -1), False),
        ("padding", (2, 0), (2, 0), False),
        ("arbitrary", (2, 3), (2, 3), False),
        ("no_mask", (-1, 0), (-1, -1), True),
    ],
)
def test_windows_are_normalised_as_transformer_engine_does(mask: str, given: Any, taken: Any, warns: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = DotProductAttention(2, 8, attn_mask_type=mask, window_size=given)
    assert module.window_size == taken
    assert [str(one.message).startswith("window_size: got ") for one in caught] == [True] * warns


@pytest.mark.parametrize(
    ("mask", "given"),
    [
        ("causal", (-1, 5)),
        ("causal", (-2, 0)),
        ("causal", (3, -2)),
        ("no_mask", (-1, 5)),
        ("no_mask", (5, -1)),
        ("padding", (-2, -1)),
        ("no_mask", 5),
        ("no_mask", (1, 2, 3)),
    ],
)
def test_windows_that_no_mask_takes(mask: str, given: Any) -> None:
    with pytest.raises(ValueError, match=r"window_size: got .*, expected"):
        DotProductAttention(2, 8, attn_mask_type=mask, window_size=given)


def test_mask_and_window_of_a_call_go_before_the_constructors() -> None:
    case = Case("no_mask", window=(1, 1))
    module = DotProductAttention(4, (8, 6), num_gqa_groups=2, qkv_format="thd", window_size=(3, 0))
    positional, _ = case.inputs("bshd")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = module(*positional, qkv_format="bshd", attn_mask_type="no_mask", window_size=(1, 1))
    torch.testing.assert_close(out, case.reference())
    assert module.attn_mask_type == "causal"
    # a window that was only the constructor's default follows the mask of the call, without a word
    plain = DotProductAttention(4, (8, 6), num_gqa_groups=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = plain(*positional, qkv_format="bshd", attn_mask_type="no_mask")
    unlimited = Case("no_mask")
    unlimited.leaves = case.leaves
    torch.testing.assert_close(out, unlimited.reference())


def test_a_mask_name_wins_over_the_diagonal_that_was_asked_for() -> None:
    case = Case("causal")
    positional, _ = case.inputs("bshd")
    module = case.module("bshd")
    with pytest.warns(UserWarning, match="bottom_right_diagonal: got True, taken as False because of attn_mask_type"):
        out = module(*positional, bottom_right_diagonal=True)
    torch.testing.assert_close(out, case.reference())
    with pytest.warns(UserWarning, match="bottom_right_diagonal: got False, taken as True"):
        DotProductAttention(2, 8, attn_mask_type="causal_bottom_right", bottom_right_diagonal=False)


def test_a_mask_that_is_not_used_warns() -> None:
    positional, _ = Case("causal").inputs("bshd")
    with pytest.warns(UserWarning, match="attention_mask: not used, because of attn_mask_type='causal'"):
        Case("causal").module("bshd")(*positional, attention_mask=torch.zeros(2, 1, 5, 7, dtype=torch.bool))


# --- bias, ALiBi, softmax, scale


@pytest.mark.parametrize("layout", DENSE)
@pytest.mark.parametrize("kind", ["pre_scale_bias", "post_scale_bias"])
@pytest.mark.parametrize("shape", [(2, 4, 5, 7), (1, 4, 5, 7), (2, 1, 5, 7), (1, 1, 5, 7), (1, 1, 1, 7)])
def test_biases(kind: str, shape: Any, layout: str) -> None:
    Case("causal", bias_type=kind, bias=shape, scale=0.3).check(layout)


def test_a_bias_with_a_padding_mask() -> None:
    Case("padding_causal", (5, 2), (4, 7), bias_type="post_scale_bias", bias=(1, 4, 5, 7)).check("sbhd")


@pytest.mark.parametrize("mask", ["no_mask", "causal", "causal_bottom_right", "padding_causal_bottom_right"])
@pytest.mark.parametrize("slopes", [None, (4,), (2, 4)])
def test_alibi(mask: str, slopes: Any) -> None:
    lengths: Any = ((5, 3), (4, 7)) if mask.startswith("padding") else ((5, 5), (7, 7))
    values = None if slopes is None else torch.rand(slopes)
    case = Case(mask, *lengths, bias_type="alibi", slopes=values)
    case.check("bshd", tolerance=1e-6)  # slopes are float32
    if slopes != (2, 4) and mask.startswith("padding"):
        case.check("thd", tolerance=1e-6)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 20, 71])
def test_default_slopes(heads: int) -> None:
    n = 2 ** math.floor(math.log2(heads))
    wanted = [2.0 ** (-8.0 * k / n) for k in range(1, n + 1)]
    wanted += [2.0 ** (-4.0 * k / n) for k in range(1, 2 * (heads - n), 2)]
    found = _te_inputs.default_alibi_slopes(heads, torch.device("cpu"))
    torch.testing.assert_close(found, torch.tensor(wanted))


@pytest.mark.parametrize("layout", ["sbhd", "bshd", "thd"])
@pytest.mark.parametrize("softmax", ["off-by-one", "learnable"])
@pytest.mark.parametrize("mask", ["padding", "padding_causal_bottom_right"])
def test_softmax_types(softmax: str, mask: str, layout: str) -> None:
    Case(mask, softmax=softmax, window=(2, 0), **RAGGED).check(layout)


def test_a_learnable_sink_in_sixteen_bits_reaches_attention_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def record(q: Any, k: Any, v: Any, **named: Any) -> Any:
        given.update(named)
        return q

    monkeypatch.setattr(cynosure, "attention", record, raising=False)
    module = DotProductAttention(2, 8, softmax_type="learnable").bfloat16()
    assert module.softmax_offset.dtype == torch.bfloat16
    x = torch.randn(3, 1, 2, 8, dtype=torch.bfloat16)
    module(x, x, x)
    assert given["sinks"].dtype == torch.float32
    assert given["sinks"].requires_grad


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 1), (6, 3), (9, 3)])
def test_h5_grouped_queries(heads: int, groups: int) -> None:
    Case("padding_causal", (3, 5), (3, 5), heads=heads, groups=groups).check("thd")
    Case("causal", heads=heads, groups=groups).check("sbhd")


@pytest.mark.parametrize(("dim", "dim_v"), [(8, 8), (4, 12), (12, 4)])
def test_h1_h7_head_dims_that_differ(dim: int, dim_v: int) -> None:
    case = Case("causal", dim=dim, dim_v=dim_v)
    case.check("bshd")
    positional, _ = case.inputs("sbhd")
    assert case.module("sbhd")(*positional).shape == (5, 2, 4 * dim_v)


def test_the_scale() -> None:
    Case("causal", scale=0.7).check("bshd")
    assert DotProductAttention(2, (64, 32)).softmax_scale == 1 / 8


def test_qk_layer_scaling_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """TransformerEngine divides float16 scores by the layer number and multiplies in the softmax."""
    positional, _ = Case("causal").inputs("bshd")
    halves = [x.detach().half() for x in positional]
    plain = Case("causal").module("bshd")(*halves)
    monkeypatch.setenv("NVTE_APPLY_QK_LAYER_SCALING", "1")
    assert torch.equal(Case("causal").module("bshd", layer_number=24)(*halves), plain)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 6e-2), (torch.float16, 8e-3)])
@pytest.mark.parametrize("layout", ["sbhd", "bshd", "thd"])
def test_dtypes(dtype: Any, tolerance: float, layout: str) -> None:
    """In these other backends run than in float64: so the features again."""
    cases = [
        Case("padding_causal", (5, 3), (5, 3), heads=2, groups=1),
        Case("padding", **RAGGED),
        Case("padding_causal_bottom_right", window=(2, 0), softmax="learnable", **RAGGED),
        Case("padding", window=(1, 1), bottom_right=False, softmax="off-by-one", **RAGGED),
        Case("padding_causal", (5, 2), (4, 7), bias_type="alibi"),
    ]
    if layout != "thd":
        cases += [
            Case("causal", bias_type="post_scale_bias", bias=(1, 4, 5, 7)),
            Case("causal_bottom_right", bias_type="pre_scale_bias", bias=(2, 1, 5, 7), scale=0.5),
            Case("arbitrary", hidden=torch.rand(2, 1, 5, 7) < 0.4),
            Case("no_mask", window=(2, 1)),
        ]
    for case in cases:
        case.check(layout, tolerance, dtype)


# --- packed tensors, gaps between sequences, checkpointing


@pytest.mark.parametrize("layout", ["sbhd", "bshd", "thd"])
@pytest.mark.parametrize("dim", [-3, -2])
@pytest.mark.parametrize("which", ["qkv_layer", "kv_layer"])
def test_packed_tensors(layout: str, dim: int, which: str) -> None:
    """H15: the layout is declared, not guessed from strides."""
    case = Case("padding_causal", (4, 3), (4, 3), groups=4, dim_v=8)
    positional, named = case.inputs(layout)
    taken = positional if which == "qkv_layer" else positional[1:]
    packed = torch.stack(taken, dim=dim).detach().requires_grad_()
    module = case.module(layout)
    rest = [] if which == "qkv_layer" else positional[:1]
    out = module(*rest, **named, **{which: packed}, qkv_interleave_dim=dim)
    expected = to_layout(case.reference(), layout, case.lengths_q)
    torch.testing.assert_close(out, expected)
    (found,) = torch.autograd.grad(out.sum(), packed)
    wanted = torch.stack(torch.autograd.grad(module(*positional, **named).sum(), taken), dim=dim)
    torch.testing.assert_close(found, wanted)


@dataclass
class Gaps:
    """Ragged lengths with room after some, and what stands there is not a number to be seen."""

    lengths: tuple[int, ...]
    room: tuple[int, ...]
    tail: int = 0

    @property
    def padded(self) -> Any:
        return cumulative(self.room)

    def spread(self, tokens: Any, filler: float) -> Any:
        """Tokens without gaps to tokens with them."""
        out = tokens.new_full((sum(self.room) + self.tail, *tokens.shape[1:]), filler)
        out[self.places()] = tokens
        return out

    def places(self) -> Any:
        starts = [0, *torch.tensor(self.room).cumsum(0).tolist()]
        return torch.cat([torch.arange(s, s + n) for s, n in zip(starts, self.lengths, strict=False)]).long()


@pytest.mark.parametrize("mask", PADDED)
@pytest.mark.parametrize("gap_q", [True, False])
def test_gaps_between_sequences(mask: str, gap_q: bool) -> None:
    case = Case(mask, **RAGGED)
    gaps_q = Gaps(case.lengths_q, (6, 2, 3, 4) if gap_q else case.lengths_q, tail=2)
    gaps_k = Gaps(case.lengths_k, (4, 9, 3, 1), tail=1)
    (q, k, v), named = case.inputs("thd")
    spread = [gaps_q.spread(q, 3.0), gaps_k.spread(k, -2.0), gaps_k.spread(v, 5.0)]
    spread = [x.detach().requires_grad_() for x in spread]
    module = case.module("thd")
    out = module(*spread, **named, cu_seqlens_q_padded=gaps_q.padded, cu_seqlens_kv_padded=gaps_k.padded)
    expected = gaps_q.spread(to_layout(case.reference(), "thd", case.lengths_q), 0.0)
    torch.testing.assert_close(out, expected)  # gaps and tail are 0
    cotangent = torch.randn_like(out)
    found = torch.autograd.grad((out * cotangent).sum(), spread)
    plain = case.module("thd")(q, k, v, **named)
    wanted = torch.autograd.grad((plain * cotangent[gaps_q.places()]).sum(), (q, k, v))
    for one, other, gaps in zip(found, wanted, (gaps_q, gaps_k, gaps_k), strict=True):
        torch.testing.assert_close(one, gaps.spread(other, 0.0))


def test_gaps_that_are_none() -> None:
    case = Case("padding_causal", (4, 3), (4, 3))
    positional, named = case.inputs("thd")
    same = named["cu_seqlens_q"]
    named["cu_seqlens_kv"] = same
    plain = case.module("thd")(*positional, **named)
    for padded in (same, same.clone()):
        for gaps in (None, False, True):
            out = case.module("thd")(
                *positional, **named, cu_seqlens_q_padded=padded, cu_seqlens_kv_padded=padded, pad_between_seqs=gaps
            )
            torch.testing.assert_close(out, plain, rtol=0, atol=0)


def test_any_offsets_give_a_permutation() -> None:
    """On a GPU nobody has looked at them."""
    for _ in range(50):
        offsets = torch.randint(-5, 20, (4,), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        lengths = torch.randint(-5, 20, (4,), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        packing = _te_inputs.packing_of(17, lengths, offsets)
        assert packing.order.sort().values.tolist() == list(range(17))
        assert torch.equal(packing.place[packing.order], torch.arange(17))


@pytest.mark.parametrize("layout", ["sbhd", "thd"])
def test_checkpoint_core_attention(layout: str) -> None:
    case = Case("padding_causal", softmax="learnable", **RAGGED)
    case.check(layout, checkpoint_core_attention=True)
    positional, named = case.inputs(layout)
    with torch.no_grad():
        case.module(layout)(*positional, **named, checkpoint_core_attention=True)


# --- dropout


def test_j3_dropout_is_on_in_training_and_off_in_eval() -> None:
    x = torch.randn(2, 16, 2, 8)
    module = dropout_module()
    plain = DotProductAttention(2, 8, attn_mask_type="no_mask", qkv_format="bshd")(x, x, x)
    torch.testing.assert_close(module.eval()(x, x, x), plain)
    one, two = module.train()(x, x, x), module(x, x, x)
    assert not torch.equal(one, two)
    assert not torch.allclose(one, plain)
    torch.manual_seed(3)
    one = module(x, x, x)
    torch.manual_seed(3)
    assert torch.equal(module(x, x, x), one)


def test_dropout_keeps_the_mean() -> None:
    x = torch.zeros(8, 64, 2, 8)
    ones = torch.ones(8, 64, 2, 8)
    out = dropout_module()(x, x, ones)
    assert abs(float(out.mean()) - 1) < 0.02
    assert float(out.std()) > 0.05


def test_dropout_under_checkpointing_is_the_same_in_the_second_forward() -> None:
    q, k, v = (torch.randn(2, 6, 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    module = dropout_module()
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(5)
        out = module(q, k, v, checkpoint_core_attention=recompute)
        gradients.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_dropout_draws_under_the_tracker() -> None:
    q, k, v = (torch.randn(2, 6, 2, 8, requires_grad=True) for _ in range(3))
    tracker = Tracker()
    module = dropout_module(get_rng_state_tracker=lambda: tracker)
    before = torch.get_rng_state()
    first = module(q, k, v)
    assert tracker.forks == 1
    assert torch.equal(torch.get_rng_state(), before)
    second = module(q, k, v)
    assert not torch.equal(first, second)
    again = Tracker()
    module = dropout_module(get_rng_state_tracker=lambda: again)
    recomputed = module(q, k, v, checkpoint_core_attention=True)
    assert torch.equal(recomputed, first)
    for one, other in zip(
        torch.autograd.grad(recomputed.sum(), (q, k, v)), torch.autograd.grad(first.sum(), (q, k, v)), strict=True
    ):
        torch.testing.assert_close(one, other)
    assert again.forks == 1
    module.eval()(q, k, v)
    dropout_module(get_rng_state_tracker=lambda: again, sequence_parallel=True)(q, k, v)
    assert again.forks == 1
