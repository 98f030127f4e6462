# SPDX-License-Identifier: Apache-2.0
"""DotProductAttention's interface: names, errors, what is refused, state, checkpoints, pickling."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from dot_product_attention_case import (  # type: ignore[import-not-found]  # noqa: E402
    CALL,
    CU,
    HOLES,
    MEANING,
    PADDING,
    RAGGED_CALL,
    Case,
    DotProductAttention,
    X,
    padding_mask,
)

from cynosure import _te_inputs  # noqa: E402

pytestmark = pytest.mark.usefixtures("attention")

# --- the interface


CONSTRUCTOR = """num_attention_heads kv_channels num_gqa_groups=None attention_dropout=0.0 qkv_format='sbhd'
attn_mask_type='causal' window_size=None bottom_right_diagonal=None sequence_parallel=False tp_size=1
get_rng_state_tracker=None tp_group=None layer_number=None attention_type='self' cp_group=None cp_global_ranks=None
cp_stream=None cp_comm_type='p2p' softmax_scale=None softmax_type='vanilla' return_max_logit=False name=None"""
FORWARD = """query_layer=None key_layer=None value_layer=None attention_mask=None qkv_format=None cu_seqlens_q=None
cu_seqlens_kv=None cu_seqlens_q_padded=None cu_seqlens_kv_padded=None max_seqlen_q=None max_seqlen_kv=None
attn_mask_type=None window_size=None bottom_right_diagonal=None checkpoint_core_attention=False
core_attention_bias_type='no_bias' core_attention_bias=None alibi_slopes=None fast_zero_fill=True inference_params=None
pad_between_seqs=None fp8_output=False bf16_backward=False num_splits=1 score_mod=None score_mod_bprop=None
score_mod_tensors=None score_mod_bprop_tensors=None qkv_layer=None kv_layer=None qkv_interleave_dim=-3"""


@pytest.mark.parametrize(
    ("function", "expected"), [(DotProductAttention.__init__, CONSTRUCTOR), (DotProductAttention.forward, FORWARD)]
)
def test_names_order_and_defaults_are_transformer_engines(function: Any, expected: str) -> None:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    found = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
    assert found == expected.split()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("padding,causal", "padding_causal"),
        ("causal,padding", "padding_causal"),
        ("causal_padding", "padding_causal"),
        ("padding,causal_bottom_right", "padding_causal_bottom_right"),
        ("causal_bottom_right,padding", "padding_causal_bottom_right"),
        *((name, name) for name in MEANING),
    ],
)
def test_mask_names(given: str, meant: str) -> None:
    assert DotProductAttention(2, 8, attn_mask_type=given).attn_mask_type == meant
    if MEANING[meant][2]:
        case = Case(meant, (3, 5), (3, 5))
        positional, named = case.inputs("bshd")
        out = DotProductAttention(4, (8, 6), 2, qkv_format="bshd")(*positional, **named, attn_mask_type=given)
        torch.testing.assert_close(out, case.reference())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads: got 0, expected 1 or more"),
        ({"num_gqa_groups": 3}, "num_gqa_groups: got 3, expected a divisor of num_attention_heads, 4"),
        ({"tp_size": 3}, "num_attention_heads: got 4, expected a multiple of the tensor parallel size, 3"),
        ({"num_gqa_groups": 2, "tp_size": 4}, "num_gqa_groups: got 2, expected a multiple of the tensor parallel"),
        ({"kv_channels": (8, 8, 8)}, "kv_channels: got (8, 8, 8), expected a head dim, or a pair"),
        ({"kv_channels": 0}, "kv_channels: got 0, expected 1 or more"),
        ({"kv_channels": 8.0}, "kv_channels: got 8.0, expected an int"),
        ({"attention_dropout": 1.5}, "attention_dropout: got 1.5, expected a probability from 0 to 1"),
        ({"attention_dropout": "0.5"}, "attention_dropout: got '0.5', expected a float"),
        ({"qkv_format": "bhsd"}, "qkv_format: got 'bhsd', expected one of sbhd, bshd, thd"),
        ({"qkv_format": "thd_2bshd"}, "qkv_format: got 'thd_2bshd', expected one of sbhd, bshd, thd"),
        ({"attn_mask_type": "casual"}, "attn_mask_type: got 'casual', expected one of no_mask, padding, causal"),
        ({"attn_mask_type": None}, "attn_mask_type: got None, expected one of"),
        ({"attention_type": "own"}, "attention_type: got 'own', expected one of self, cross"),
        ({"softmax_type": "off_by_one"}, "softmax_type: got 'off_by_one', expected one of vanilla, off-by-one"),
        ({"softmax_scale": "1"}, "softmax_scale: got '1', expected None or a float"),
        ({"softmax_scale": float("nan")}, "softmax_scale: got nan, expected a finite number"),
        ({"window_size": (None, 0)}, "window_size: got (None, 0), expected two ints"),
        ({"window_size": (1.5, 0)}, "window_size: got (1.5, 0), expected two ints"),
        ({"bottom_right_diagonal": "yes"}, "bottom_right_diagonal: got 'yes', expected None, True or False"),
        ({"cp_comm_type": "ring"}, "cp_comm_type: got 'ring', expected one of p2p, all_gather, a2a, a2a+p2p"),
        ({"return_max_logit": True}, "return_max_logit: got True, expected False; the largest logit cannot be"),
    ],
)
def test_constructor_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        DotProductAttention(**{"num_attention_heads": 4, "kv_channels": 8, **arguments})
    assert message in str(caught.value)


def test_context_parallel_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: group)
    module = DotProductAttention(4, 8, cp_group=[1, 1], cp_comm_type="a2a+p2p")
    module.set_context_parallel_group(None, None, None)
    for group in (2, [1, 2]):
        with pytest.raises(ValueError, match="cp_group: got a group of 2 ranks, expected None or 1 rank"):
            module.set_context_parallel_group(group, [0, 1], None, "p2p")
    assert module.cp_group is None
    parallel = DotProductAttention(8, 8, num_gqa_groups=4, tp_group=2, tp_size=1, softmax_type="learnable")
    assert (parallel.tp_size, parallel.num_gqa_groups_per_partition) == (2, 2)
    assert parallel.softmax_offset.shape == (4,)


@pytest.mark.parametrize(
    ("base", "arguments", "message"),
    [
        # what cannot run yet, by name (N5: FP8 is refused, not ignored)
        (CALL, {"inference_params": object()}, "inference_params: got a object, expected None; a KV cache cannot run"),
        (CALL, {"fp8_output": True}, "fp8_output: got True, expected False; FP8 attention cannot run yet"),
        (CALL, {"bf16_backward": True}, "bf16_backward: got True, expected False; FP8 attention cannot run yet"),
        (CALL, {"num_splits": 4}, "num_splits: got 4, expected 1; splits cannot be chosen yet"),
        (CALL, {"score_mod": max}, "score_mod: got a builtin_function_or_method, expected None; score functions"),
        (CALL, {"score_mod_bprop_tensors": {}}, "score_mod_bprop_tensors: got a dict, expected None; score functions"),
        (CALL, {"qkv_format": "sbhd_2bshd"}, "qkv_format: got 'sbhd_2bshd', expected one of sbhd, bshd, thd"),
        (
            CALL,
            {name: X.to(torch.float8_e4m3fn) for name in CALL},
            "query_layer: got dtype torch.float8_e4m3fn, expected one of torch.float16, torch.bfloat16",
        ),
        # tensors; B1: the rank is named
        (CALL, {"query_layer": X[0]}, "query_layer: got rank 3, expected rank 4 for qkv_format='bshd'"),
        (CALL, {"key_layer": None}, "key_layer: got None, expected a tensor"),
        (CALL, {"value_layer": X.double()}, "value_layer: got dtype torch.float64, expected torch.float32, as query"),
        (CALL, {"query_layer": X[:, :, :2]}, "query_layer: got 2 heads, expected 4, by the constructor"),
        (CALL, {"key_layer": X[:, :, :2]}, "key_layer: got 2 heads, expected 4, by the constructor"),
        (CALL, {"key_layer": X[..., :4]}, "key_layer: got head dim 4, expected 8, by the constructor's kv_channels"),
        (CALL, {"key_layer": X[:1], "value_layer": X[:1]}, "key_layer: got batch 1, expected 2, as query_layer has"),
        # H13
        (CALL, {"value_layer": X[:, :4]}, "value_layer: got shape (2, 4, 4, 8), expected (2, 5) first, as key_layer"),
        # masks and lengths
        (CALL, {"attn_mask_type": "own"}, "attn_mask_type: got 'own', expected one of no_mask, padding"),
        (CALL, PADDING, "attention_mask: got None with attn_mask_type='padding', expected a mask"),
        (CALL, {**PADDING, "attention_mask": 3}, "attention_mask: got 3, expected a tensor"),
        (
            CALL,
            {**PADDING, "attention_mask": torch.zeros(2, 1, 1, 5)},
            "attention_mask: got dtype torch.float32, expected torch.bool, True = masked out",
        ),
        (
            CALL,
            {**PADDING, "attention_mask": torch.zeros(2, 1, 5, 5, dtype=torch.bool)},
            "attention_mask: got shape (2, 1, 5, 5), expected [batch, 1, 1, seqlen] for a padding type; "
            "attn_mask_type='arbitrary' takes any mask",
        ),
        (
            CALL,
            {**PADDING, "attention_mask": torch.zeros(2, 1, 1, 4, dtype=torch.bool)},
            "attention_mask: got shape (2, 1, 1, 4), expected (2, 1, 1, 5)",
        ),
        (
            CALL,
            {**PADDING, "attention_mask": HOLES},
            "attention_mask: got a valid token after a masked one in sequence 1, expected valid tokens first",
        ),
        (
            CALL,
            {**PADDING, "attention_mask": (HOLES,) * 3},
            "attention_mask: got 3 masks, expected one, or a pair (of queries, of keys)",
        ),
        (
            CALL,
            {**PADDING, "attention_mask": (HOLES & False, HOLES)},
            "attention_mask[1]: got a valid token after a masked one in sequence 1",
        ),
        (CALL, {"attn_mask_type": "arbitrary"}, "attention_mask: got None, expected a tensor for"),
        (
            CALL,
            {"attn_mask_type": "arbitrary", "attention_mask": torch.zeros(2, 3, 5, 5, dtype=torch.bool)},
            "attention_mask: got shape (2, 3, 5, 5), expected one that broadcasts to (2, 4, 5, 5)",
        ),
        (
            CALL,
            {"attn_mask_type": "arbitrary", "attention_mask": torch.zeros(5, 5)},
            "attention_mask: got dtype torch.float32, expected torch.bool, True = masked out",
        ),
        # L1: several sequences in one row are thd, and lengths without a padding type are no lengths
        (
            CALL,
            {**PADDING, "cu_seqlens_q": CU.new_tensor([0, 1, 3, 5]), "cu_seqlens_kv": CU.new_tensor([0, 1, 3, 5])},
            "cu_seqlens_q: got 4 values, expected 3, batch + 1; qkv_format='thd' takes several sequences in one row",
        ),
        (CALL, {"cu_seqlens_q": CU}, "cu_seqlens_q: got a tensor with attn_mask_type='causal', expected None, or"),
        (CALL, {"cu_seqlens_kv": CU}, "cu_seqlens_kv: got a tensor with attn_mask_type='causal', expected None"),
        (CALL, {**PADDING, "cu_seqlens_q": CU}, "cu_seqlens_kv: got None, expected int32 [batch + 1] for"),
        (
            CALL,
            {**PADDING, "cu_seqlens_q": CU, "cu_seqlens_kv": CU.new_tensor([0, 2, 9])},
            "cu_seqlens_kv: got length 7 of sequence 1, expected 0 to 5",
        ),
        (CALL, {"cu_seqlens_q_padded": CU}, "cu_seqlens_q_padded: got a tensor with qkv_format='bshd', expected None"),
        (CALL, {"pad_between_seqs": True}, "pad_between_seqs: got True with qkv_format='bshd', expected None or False"),
        (RAGGED_CALL, {"attn_mask_type": "causal"}, "attn_mask_type: got 'causal' with qkv_format='thd', expected a"),
        (RAGGED_CALL, {"cu_seqlens_kv": None}, "cu_seqlens_kv: got None, expected int32 [batch + 1] for qkv_format"),
        (RAGGED_CALL, {"cu_seqlens_q": CU.long()}, "cu_seqlens_q: got dtype torch.int64, expected torch.int32"),
        (RAGGED_CALL, {"cu_seqlens_q": [0, 3, 7]}, "cu_seqlens_q: got [0, 3, 7], expected an int32 tensor [batch + 1]"),
        (RAGGED_CALL, {"cu_seqlens_q": CU[None]}, "cu_seqlens_q: got rank 2, expected rank 1, [batch + 1]"),
        (RAGGED_CALL, {"cu_seqlens_kv": CU[:2]}, "cu_seqlens_kv: got 2 values, expected 3, as cu_seqlens_q has"),
        (RAGGED_CALL, {"cu_seqlens_q": CU + 1}, "cu_seqlens_q: got 1 as its first value, expected 0"),
        (RAGGED_CALL, {"cu_seqlens_q": CU * 2}, "cu_seqlens_q: got length 8 of sequence 1, expected 0 to 7"),
        (
            RAGGED_CALL,
            {"cu_seqlens_kv": CU.new_tensor([0, 3, 2])},
            "cu_seqlens_kv: got length -1 of sequence 1, expected",
        ),
        (
            RAGGED_CALL,
            {"cu_seqlens_kv": CU.new_tensor([0, 6, 9])},
            "cu_seqlens_kv: got 9 tokens in all, expected at most",
        ),
        (RAGGED_CALL, {"max_seqlen_q": 3}, "cu_seqlens_q: got length 4 of sequence 1, expected 0 to 3"),
        # A13, B7: a bound that is a tensor
        (RAGGED_CALL, {"max_seqlen_kv": torch.tensor(4)}, "max_seqlen_kv: got a tensor, expected an int; pass"),
        (CALL, {"max_seqlen_q": torch.tensor(5)}, "max_seqlen_q: got a tensor, expected an int; pass"),
        (RAGGED_CALL, {"pad_between_seqs": True}, "pad_between_seqs: got True without padded offsets, expected"),
        (RAGGED_CALL, {"cu_seqlens_q_padded": CU[:2]}, "cu_seqlens_q_padded: got shape (2,), expected that of"),
        (RAGGED_CALL, {"cu_seqlens_q_padded": CU.long()}, "cu_seqlens_q_padded: got dtype torch.int64, expected"),
        (
            RAGGED_CALL,
            {"cu_seqlens_kv_padded": CU.new_tensor([0, 2, 7])},
            "cu_seqlens_kv_padded: got room for 2 tokens of sequence 0, expected at least its length, 3",
        ),
        (RAGGED_CALL, {"cu_seqlens_q_padded": CU * 2}, "cu_seqlens_q_padded: got 0 to 14, expected offsets"),
        # biases
        (CALL, {"core_attention_bias_type": "post"}, "core_attention_bias_type: got 'post', expected one of no_bias"),
        (CALL, {"core_attention_bias_type": "post_scale_bias"}, "core_attention_bias: got None, expected a tensor for"),
        (CALL, {"core_attention_bias": X}, "core_attention_bias: got a tensor with core_attention_bias_type='no_bias'"),
        (
            CALL,
            {"core_attention_bias_type": "alibi", "core_attention_bias": X},
            "core_attention_bias: got a tensor with core_attention_bias_type='alibi', expected None, or the type",
        ),
        (
            CALL,
            {"core_attention_bias_type": "pre_scale_bias", "core_attention_bias": torch.zeros(5, 5)},
            "core_attention_bias: got rank 2, expected rank 4, [1 or b, 1 or h, 1 or seqlen_q, seqlen_kv]",
        ),
        (
            CALL,
            {"core_attention_bias_type": "pre_scale_bias", "core_attention_bias": torch.zeros(3, 1, 5, 5)},
            "core_attention_bias: got shape (3, 1, 5, 5), expected one that broadcasts to (2, 4, 5, 5)",
        ),
        (CALL, {"alibi_slopes": torch.zeros(4)}, "alibi_slopes: got a tensor with core_attention_bias_type='no_bias'"),
        (
            CALL,
            {"core_attention_bias_type": "alibi", "alibi_slopes": torch.zeros(3)},
            "alibi_slopes: got shape (3,), expected (4,) or (2, 4)",
        ),
        # packed tensors
        (CALL, {"qkv_layer": X}, "query_layer: got a tensor together with qkv_layer, expected None, because qkv_layer"),
        ({}, {"query_layer": X, "value_layer": X, "kv_layer": X}, "value_layer: got a tensor together with kv_layer"),
        ({}, {"qkv_layer": X, "kv_layer": X}, "qkv_layer: got a tensor together with kv_layer, expected one of them"),
        ({}, {"qkv_layer": X, "qkv_interleave_dim": 2}, "qkv_interleave_dim: got 2, expected -3 or -2"),
        ({}, {"qkv_layer": X}, "qkv_layer: got rank 4, expected rank 5"),
        ({}, {"qkv_layer": X[:, :, None]}, "qkv_layer: got shape (2, 5, 1, 4, 8), expected 3 in dimension -3"),
        (
            {},
            {"query_layer": X, "kv_layer": X[:, :, None]},
            "kv_layer: got shape (2, 5, 1, 4, 8), expected 2 in dimension",
        ),
        (
            {},
            {"qkv_layer": torch.zeros(2, 5, 3, 4, 16)[..., ::2]},
            "qkv_layer: got stride 2 in the last dimension, expected 1",
        ),
    ],
)
def test_forward_errors(base: dict[str, Any], arguments: dict[str, Any], message: str) -> None:
    module = DotProductAttention(4, 8, qkv_format="bshd")
    with pytest.raises((ValueError, TypeError)) as caught:
        module(**{**base, **arguments})
    assert message in str(caught.value)


def test_cross_attention_needs_a_mask_for_each_side() -> None:
    module = DotProductAttention(4, 8, qkv_format="bshd", attn_mask_type="padding", attention_type="cross")
    with pytest.raises(TypeError, match="attention_mask: got one mask, expected a pair"):
        module(X, X, X, attention_mask=HOLES & False)
    own = DotProductAttention(4, 8, qkv_format="bshd", attn_mask_type="padding")
    with pytest.raises(ValueError, match="attention_mask: got one mask, expected a pair, because lengths 5 and 4"):
        own(X, X[:, :4], X[:, :4], attention_mask=HOLES & False)


def test_alibi_under_tensor_parallelism_needs_slopes() -> None:
    module = DotProductAttention(8, 8, qkv_format="bshd", tp_size=2)
    with pytest.raises(ValueError, match="alibi_slopes: got None with tp_size=2, expected the slopes of this rank's"):
        module(X, X, X, core_attention_bias_type="alibi")
    module(X, X, X, core_attention_bias_type="alibi", alibi_slopes=torch.zeros(4))


def test_a_mask_with_holes_that_nobody_looked_at_is_no_length() -> None:
    """In traced code, and on a GPU: the operator raises, or the sequence gives zeros; never a plausible answer."""
    assert _te_inputs.lengths_of_mask("attention_mask", HOLES).tolist() == [1, -1]
    assert _te_inputs.lengths_of_mask("attention_mask", padding_mask((3, 0, 4))).tolist() == [3, 0, 4]


# --- state


def test_the_state_dict() -> None:
    for softmax in ("vanilla", "off-by-one"):
        assert not DotProductAttention(4, 8, softmax_type=softmax).state_dict()
        assert DotProductAttention(4, 8, softmax_type=softmax).softmax_offset is None
    module = DotProductAttention(4, 8, softmax_type="learnable", tp_size=2)
    assert {name: tuple(value.shape) for name, value in module.state_dict().items()} == {"softmax_offset": (2,)}
    assert module.softmax_offset.dtype == torch.float32
    assert module.softmax_offset.requires_grad
    assert not module.softmax_offset.any()
    torch.nn.init.ones_(module.softmax_offset)
    other = DotProductAttention(4, 8, softmax_type="learnable", tp_size=2)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other.softmax_offset, module.softmax_offset)
    other.reset_parameters()
    assert not other.softmax_offset.any()


def test_transformer_engines_checkpoints_load() -> None:
    def model(softmax: str) -> Any:
        return torch.nn.ModuleDict({"core_attention": DotProductAttention(4, 8, softmax_type=softmax)})

    state = {
        "core_attention._extra_state": torch.zeros(3, dtype=torch.uint8),
        "core_attention.fused_attention._extra_state": io.BytesIO(),  # of TransformerEngine 1.6 and 1.7
    }
    model("vanilla").load_state_dict(state)
    made = model("learnable")
    made.load_state_dict({**state, "core_attention.softmax_offset": torch.ones(4)})
    assert torch.equal(made.core_attention.softmax_offset, torch.ones(4))
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"core_attention.weight"'):
        model("vanilla").load_state_dict({**state, "core_attention.weight": torch.ones(4)})
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"core_attention.softmax_offset"'):
        model("vanilla").load_state_dict({"core_attention.softmax_offset": torch.ones(4)})
    with pytest.raises(RuntimeError, match=r'Missing key.*"core_attention.softmax_offset"'):
        model("learnable").load_state_dict(state)


def test_pickling_copying_and_saving() -> None:
    module = DotProductAttention(4, 8, 2, 0.1, "bshd", "causal", (3, 0), softmax_type="learnable", name="layer")
    torch.nn.init.ones_(module.softmax_offset)
    saved = io.BytesIO()
    torch.save(module, saved)
    saved.seek(0)
    for other in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module), torch.load(saved, weights_only=False)):
        assert repr(other) == repr(module)
        assert torch.equal(other.softmax_offset, module.softmax_offset)
        q, k = torch.randn(2, 5, 4, 8), torch.randn(2, 5, 2, 8)
        assert torch.equal(other.eval()(q, k, k), module.eval()(q, k, k))


def test_repr() -> None:
    assert repr(DotProductAttention(4, 8)) == (
        "DotProductAttention(4, kv_channels=8, qkv_format='sbhd', attn_mask_type='causal')"
    )
    text = repr(
        DotProductAttention(
            4, (8, 6), 2, 0.1, "bshd", "no_mask", (3, 3), False, softmax_scale=0.5, softmax_type="off-by-one", name="a"
        )
    )
    for part in (
        "kv_channels=(8, 6)",
        "num_gqa_groups=2",
        "attention_dropout=0.1",
        "window_size=(3, 3)",
        "bottom_right_diagonal=False",
        "softmax_type='off-by-one'",
        "softmax_scale=0.5",
        "name='a'",
    ):
        assert part in text


def test_meta_tensors() -> None:
    """They have no data: so nothing looks at any, and nothing waits for a GPU."""
    with torch.device("meta"):
        module = DotProductAttention(4, (8, 6), 2, softmax_type="learnable", attn_mask_type="padding")
        q, k, v = torch.empty(5, 2, 4, 8), torch.empty(7, 2, 2, 8), torch.empty(7, 2, 2, 6)
        masks = torch.empty(2, 1, 1, 5, dtype=torch.bool), torch.empty(2, 1, 1, 7, dtype=torch.bool)
        cu, padded = torch.empty(4, dtype=torch.int32), torch.empty(4, dtype=torch.int32)
    assert module(q, k, v, attention_mask=masks).shape == (5, 2, 24)
    assert module(q, k, v, cu_seqlens_q=cu[:3], cu_seqlens_kv=cu[:3]).shape == (5, 2, 24)
    ragged = {"cu_seqlens_q": cu, "cu_seqlens_kv": cu, "cu_seqlens_q_padded": padded, "cu_seqlens_kv_padded": padded}
    assert module(q[:, 0], k[:, 0], v[:, 0], qkv_format="thd", **ragged).shape == (5, 24)
    module = module.to_empty(device="cpu")
    module.reset_parameters()
    assert not module.softmax_offset.any()
