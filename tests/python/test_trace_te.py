# SPDX-License-Identifier: Apache-2.0
"""get_attention_backend under torch.compile(fullgraph=True), over our record and TransformerEngine's own."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from te_records import (  # type: ignore[import-not-found]
    Recipes,
    TeAttentionParams,
    TeInferenceParams,
    TeTensors,
    answer_of,
    device_of,
    record_of,
)

torch = pytest.importorskip("torch")
dynamo = pytest.importorskip("torch._dynamo")

from cynosure import AttentionParams, Device, FusedAttnBackend, Version, get_attention_backend  # noqa: E402

H200 = Device.named("h200")
B200 = Device.named("b200")
X = torch.zeros(2, 128, dtype=torch.bfloat16)
GOLDEN = Path(__file__).parents[1] / "data" / "te_decisions.jsonl.gz"

BASE: dict[str, Any] = {
    "core_attention_bias_shape": None,
    "qkv_layout": "bshd_bshd_bshd",
    "qkv_dtype": torch.bfloat16,
    "qkv_type": torch.Tensor,
}
FP8: dict[str, Any] = {
    "fp8": True,
    "fp8_meta": {"recipe": Recipes.DelayedScaling(fp8_dpa=True)},
    "qkv_type": TeTensors.Float8Tensor,
    "is_training": False,
}
TWO_VALUES: dict[str, tuple[Any, Any]] = {
    "qkv_type": (torch.Tensor, torch.nn.Parameter),
    "qkv_dtype": (torch.bfloat16, torch.float32),
    "qkv_layout": ("bshd_bshd_bshd", "thd_thd_thd"),
    "batch_size": (1, 2),
    "num_heads": (16, 32),
    "num_gqa_groups": (16, 4),
    "max_seqlen_q": (128, 256),
    "max_seqlen_kv": (128, 256),
    "head_dim_qk": (64, 256),
    "head_dim_v": (64, 128),
    "attn_mask_type": ("no_mask", "causal"),
    "window_size": (None, (64, 0)),
    "bottom_right_diagonal": (True, False),
    "alibi_slopes_shape": (None, (16,)),
    "core_attention_bias_type": ("no_bias", "post_scale_bias"),
    "core_attention_bias_shape": (None, "1hss"),
    "core_attention_bias_requires_grad": (False, True),
    "pad_between_seqs": (False, True),
    "attention_dropout": (0.0, 0.1),
    "context_parallel": (False, True),
    "cp_comm_type": ("p2p", "a2a"),
    "cp_size": (1, 2),
    "deterministic": (False, True),
    "is_training": (False, True),
    "fp8": (False, True),
    "fp8_meta": (
        {"recipe": Recipes.DelayedScaling(fp8_dpa=True)},
        {"recipe": Recipes.Float8CurrentScaling(fp8_dpa=True)},
    ),
    "inference_params": (None, TeInferenceParams(is_paged=True, page_size=128)),
    "softmax_type": ("vanilla", "learnable"),
    "return_max_logit": (False, True),
    "cuda_graph": (False, True),
    "num_splits": (1, 2),
    "fp8_output": (False, True),
    "checkpoint_core_attention": (False, True),
    "has_score_mod": (False, True),
    "has_score_mod_bprop": (False, True),
}
# What a field needs beside it, to matter or to be allowed.
WITH: dict[str, dict[str, Any]] = {
    "fp8": {"fp8_meta": FP8["fp8_meta"]},
    "fp8_meta": FP8,
    "cp_comm_type": {"context_parallel": True},
    "has_score_mod_bprop": {"has_score_mod": True},
    "fp8_output": {"has_score_mod": True},
    "checkpoint_core_attention": {"has_score_mod": True},
    "core_attention_bias_requires_grad": {"deterministic": True},
}


def test_every_field_is_walked() -> None:
    assert (
        list(TWO_VALUES) == list(AttentionParams.__dataclass_fields__) == list(TeAttentionParams.__dataclass_fields__)
    )


def given(x: Any, record: Any, device: Any) -> Any:
    return x + 1, get_attention_backend(record, device)


@pytest.mark.parametrize("name", TWO_VALUES)
def test_every_field_through_two_values(compiled: Any, name: str) -> None:
    """Of TransformerEngine's record, given to the compiled function."""
    records = [TeAttentionParams(**{**BASE, **WITH.get(name, {}), name: value}) for value in TWO_VALUES[name]]
    run = compiled(given)
    for record in (*records, *records):
        assert run(X, record, H200)[1] == get_attention_backend(record, H200)
    lengths = name in ("batch_size", "max_seqlen_q", "max_seqlen_kv")
    assert run.graphs <= 3 if lengths else run.graphs == 2


@pytest.mark.parametrize(
    "name", [name for name in TWO_VALUES if name not in ("qkv_type", "fp8_meta", "inference_params")]
)
def test_every_field_of_a_record_made_in_the_trace(compiled: Any, name: str) -> None:
    fields = {**BASE, **WITH.get(name, {})}

    def call(x: Any, value: Any) -> Any:
        return x + 1, get_attention_backend(AttentionParams(**{**fields, name: value}), H200)

    values = TWO_VALUES[name]
    run = compiled(call)
    for value in (*values, *values):
        assert run(X, value)[1] == call(X, value)[1]
    assert run.graphs <= 3


def test_our_record_given(compiled: Any) -> None:
    run = compiled(given)
    records = [AttentionParams(**BASE), AttentionParams(**{**BASE, "attn_mask_type": "causal", "window_size": (64, 0)})]
    for record in (*records, *records):
        assert run(X, record, H200)[1] == get_attention_backend(record, H200)
    assert run.graphs == 2


def test_a_record_that_is_changed_in_place(compiled: Any) -> None:
    """As TransformerEngine does between calls; the trace sees the change, and one made within it."""

    def call(x: Any, record: Any) -> Any:
        before = get_attention_backend(record, H200)
        record.attn_mask_type = "arbitrary"
        after = get_attention_backend(record, H200)
        record.attn_mask_type = "no_mask"
        return x + 1, before, after

    record = TeAttentionParams(**BASE)
    run = compiled(call)
    assert run(X, record)[1:] == call(X, record)[1:]
    assert run(X, record)[1] != run(X, record)[2]
    record.head_dim_qk = record.head_dim_v = 256
    assert run(X, record)[1:] == call(X, record)[1:]
    assert run.graphs == 2


# --- the answer


def test_the_answer_in_traced_code(compiled: Any) -> None:
    def call(x: Any, record: Any) -> Any:
        answer: Any = get_attention_backend(record, H200)
        flash, version, fused, sub, unfused, available = answer
        facts = (
            version >= Version("2.1"),
            version > "2.7",
            version != (3, 0, 1),
            version == Version("3.0.0"),
            Version("2.8.3") < version,
            version.major,
            str(version),
            sub == FusedAttnBackend.F16_arbitrary_seqlen,
            sub != FusedAttnBackend.FP8,
            sub == 1,
            available == [True, True, True],
            (flash, fused, unfused),
            sub is not None,
        )
        if fused and sub == FusedAttnBackend["F16_arbitrary_seqlen"]:
            x = x + 1
        return x, facts, sub, version, available

    record = AttentionParams(**BASE)
    traced, eager = compiled(call)(X, record), call(X, record)
    assert traced[0][0, 0] == eager[0][0, 0] == 1
    assert traced[1:] == eager[1:]
    assert traced[2] is FusedAttnBackend.F16_arbitrary_seqlen
    assert hash(traced[3]) == hash(eager[3])


def test_the_answer_survives_a_graph_break(compiled: Any) -> None:
    """I1: TransformerEngine's own did not."""

    def call(x: Any, record: Any) -> Any:
        answer = get_attention_backend(record, H200)
        dynamo.graph_break()
        if answer[3] == FusedAttnBackend.F16_arbitrary_seqlen and answer[1] >= Version("2.8") and answer[5][2]:
            x = x + 1
        return x, answer

    record = AttentionParams(**BASE)
    out, answer = compiled(call, fullgraph=False)(X, record)
    assert out[0, 0] == 1
    assert answer == get_attention_backend(record, H200)


def test_the_list_is_the_callers(compiled: Any) -> None:
    record = AttentionParams(**BASE)
    get_attention_backend(record, H200)[5].clear()
    assert get_attention_backend(record, H200)[5] == [True, True, True]


# --- lengths


def lengths(count: int) -> list[int]:
    rng = random.Random(count)
    return [*rng.sample(range(2, 8193), count - 4), 2, 128, 1024, 8192]


@pytest.mark.parametrize("device", ["h200", "b200", "a100"])
@pytest.mark.parametrize("mask", ["causal", "padding_causal_bottom_right"])
def test_64_lengths(compiled: Any, mask: str, device: str) -> None:
    machine = Device.named(device)

    def call(x: Any) -> Any:
        batch, length = x.shape[0], x.shape[1]
        record = AttentionParams(
            batch_size=batch,
            max_seqlen_q=length,
            max_seqlen_kv=length,
            attn_mask_type=mask,
            core_attention_bias_shape=None,
            qkv_layout="bshd_bshd_bshd",
        )
        return x + 1, get_attention_backend(record, machine)

    run = compiled(call)
    for length in lengths(64):
        x = torch.zeros(2, length)
        assert run(x)[1] == call(x)[1], length
    assert run.graphs <= 4


def test_lengths_of_a_given_record(compiled: Any) -> None:
    run = compiled(given)
    for length in lengths(24):
        record = TeAttentionParams(**{**BASE, "max_seqlen_q": length, "max_seqlen_kv": length})
        assert run(X, record, H200)[1] == get_attention_backend(record, H200), length
    assert run.graphs <= 4


# --- FP8


@pytest.mark.parametrize(
    "recipe", ["DelayedScaling", "Float8CurrentScaling", "MXFP8BlockScaling", "Float8BlockScaling", "NVFP4BlockScaling"]
)
@pytest.mark.parametrize("training", [False, True])
def test_fp8_recipes(compiled: Any, recipe: str, training: bool) -> None:
    kind = TeTensors.MXFP8Tensor if recipe.startswith("MX") else TeTensors.Float8Tensor
    made = getattr(Recipes, recipe)
    run = compiled(given)
    for fp8_dpa in (True, False, True):
        meta = {"recipe": made(fp8_dpa=fp8_dpa), "local_recipes": [made(fp8_dpa=fp8_dpa)]}
        record = TeAttentionParams(
            **{
                **BASE,
                "fp8": True,
                "fp8_meta": meta,
                "qkv_type": kind,
                "is_training": training,
                "head_dim_qk": 128,
                "head_dim_v": 128,
            }
        )
        for device in (H200, B200):
            assert run(X, record, device)[1] == get_attention_backend(record, device)
    assert run.graphs <= 4


def test_only_what_selection_reads_is_guarded(compiled: Any) -> None:
    """A9: new amax buffers of the same recipe do not select again."""
    run = compiled(given)
    for step in range(5):
        meta = {"recipe": Recipes.DelayedScaling(fp8_dpa=True), "scaling_fwd": torch.rand(3), "amax": [step]}
        record = TeAttentionParams(**{**BASE, **FP8, "fp8_meta": meta})
        assert run(X, record, H200)[1] == get_attention_backend(record, H200)
    assert run.graphs == 1


# --- errors


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attn_mask_type": "diagonal"}, "attn_mask_type: got 'diagonal', expected one of"),
        ({"qkv_layout": "bhs"}, "qkv_layout: got 'bhs', expected one of"),
        ({"softmax_type": "hard"}, "softmax_type: got 'hard', expected one of"),
        ({"deterministic": "x"}, "deterministic: got 'x', expected True or False"),
        ({"head_dim_qk": 0}, "head_dim_qk: got 0, expected"),
        ({"window_size": (-5, 0)}, "window_size: got (-5, 0), expected"),
        ({"fp8": True}, "fp8"),
        ({"fp8": True, "fp8_meta": {"recipe": Recipes.Unheard()}}, "fp8_meta: got recipe Unheard, expected one of"),
        ({"inference_params": TeInferenceParams(is_paged=False, page_size=1), "qkv_layout": "sbh3d"}, "qkv_layout"),
    ],
)
def test_records_that_are_refused(compiled: Any, fields: dict[str, Any], message: str) -> None:
    record = TeAttentionParams(**{**BASE, **fields})
    with pytest.raises(ValueError, match="got") as eager:
        given(X, record, H200)
    with pytest.raises(Exception) as traced:  # noqa: PT011  # torch's own type
        compiled(given)(X, record, H200)
    assert message in str(eager.value)
    assert message in str(traced.value) or message in str(traced.value.__cause__)


# --- agreement


def golden(count: int, errors: int) -> list[Any]:
    with gzip.open(GOLDEN, "rt") as lines:
        records = [json.loads(line) for line in lines]
    rng = random.Random(11)
    return rng.sample([r for r in records if "error" not in r["expect"]], count) + rng.sample(
        [r for r in records if "error" in r["expect"]], errors
    )


@pytest.mark.parametrize("dynamic", [None, True])
def test_golden_records_traced(compiled: Any, clean_environment: pytest.MonkeyPatch, dynamic: bool | None) -> None:
    """60 of TransformerEngine's own answers, in compiled code. The eager ones are in test_te.py."""
    for record in golden(57, 3)[dynamic is None :: 2]:
        dynamo.reset()
        for name, value in record["env"].items():
            clean_environment.setenv(name, value)
        run, params, device = compiled(given, dynamic=dynamic), record_of(record["params"]), device_of(record["device"])
        if "error" in record["expect"]:
            with pytest.raises(Exception, match="qkv_layout"):
                run(X, params, device)
        else:
            assert answer_of(run(X, params, device)[1]) == record["expect"], record
        for name in record["env"]:
            clean_environment.delenv(name)


# --- records that keep their fields elsewhere


def test_records_without_a_dict_and_with_deleted_fields(compiled: Any, many_graphs: None) -> None:
    """Fields are read from the record's dict where they are there, else as attributes; changes recompile either way."""
    fields = {name: getattr(TeAttentionParams(**BASE), name) for name in TWO_VALUES}

    class Slotted:
        __slots__ = tuple(TWO_VALUES)

        def __init__(self, **values: Any) -> None:
            for name, value in values.items():
                setattr(self, name, value)

    class Computed(TeAttentionParams):  # type: ignore[misc]
        @property
        def head_dim_qk(self) -> int:
            return int(self.__dict__["doubled"]) // 2

        @head_dim_qk.setter
        def head_dim_qk(self, value: int) -> None:
            self.__dict__["doubled"] = 2 * value

    deleted = TeAttentionParams(**BASE)
    del deleted.num_splits, deleted.attn_mask_type
    records: list[Any] = [Slotted(**fields), Computed(**BASE)]
    if torch.__version__ >= (2, 15):  # 2.11 follows no KeyError of an object's dict
        records.append(deleted)
    for record in records:
        run = compiled(given)
        for size in (64, 256, 64):
            record.head_dim_qk = record.head_dim_v = size
            assert run(X, record, H200)[1] == get_attention_backend(record, H200)
        assert run.graphs == 2
        record.attn_mask_type = "causal"
        assert run(X, record, H200)[1] == get_attention_backend(record, H200)
        assert run.graphs == 3


def test_our_record_changed_in_place(compiled: Any) -> None:
    """Every field, in a record that stays the same object, set from outside and within the trace."""

    def call(x: Any, record: Any) -> Any:
        first = get_attention_backend(record, H200)
        held, record.softmax_type = record.softmax_type, "learnable"
        second = get_attention_backend(record, H200)
        record.softmax_type = held
        return x + 1, first, second

    record = AttentionParams(**BASE)
    run = compiled(call)
    for mask in ("no_mask", "causal", "no_mask"):
        record.attn_mask_type = mask
        assert run(X, record)[1:] == call(X, record)[1:]
    assert run.graphs == 2
