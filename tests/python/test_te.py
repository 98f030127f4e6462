# SPDX-License-Identifier: Apache-2.0
"""AttentionParams and get_attention_backend, eager: TransformerEngine's answers, its record, and clear errors."""

from __future__ import annotations

import copy
import dataclasses
import enum
import gzip
import json
import pickle
import random
from collections.abc import Iterator
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

import cynosure
from cynosure import AttentionParams, Device, FusedAttnBackend, Version, _core, get_attention_backend, te

GOLDEN = Path(__file__).parents[1] / "data" / "te_decisions.jsonl.gz"
H200 = Device.named("h200")
BASE: dict[str, Any] = {"core_attention_bias_shape": None, "qkv_layout": "bshd_bshd_bshd"}


@pytest.fixture(autouse=True)
def _clean(clean_environment: pytest.MonkeyPatch) -> None:
    pass


# --- agreement with TransformerEngine


def golden(count: int, errors: bool) -> Iterator[Any]:
    with gzip.open(GOLDEN, "rt") as lines:
        records = [record for line in lines if ("error" in (record := json.loads(line))["expect"]) is errors]
    yield from random.Random(3).sample(records, count)


def ask(record: Any, patch: pytest.MonkeyPatch) -> Any:
    with patch.context() as environment:
        for name, value in record["env"].items():
            environment.setenv(name, value)
        return get_attention_backend(record_of(record["params"]), device_of(record["device"]))


def test_2000_golden_records(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    for record in golden(2000, errors=False):
        assert answer_of(ask(record, monkeypatch)) == record["expect"], record


def test_records_that_transformer_engine_raises_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours name the field: a KV cache with a one-part packed layout."""
    pytest.importorskip("torch")
    for record in golden(100, errors=True):
        with pytest.raises(
            ValueError, match=f"qkv_layout: got {record['params'].get('qkv_layout', 'sbh3d')} with a KV cache"
        ):
            ask(record, monkeypatch)


# --- the record


def test_fields_and_defaults() -> None:
    theirs = TeAttentionParams()
    assert list(AttentionParams.__dataclass_fields__) == list(TeAttentionParams.__dataclass_fields__)
    assert len(AttentionParams.__dataclass_fields__) == 35
    for name in AttentionParams.__dataclass_fields__:
        assert getattr(AttentionParams(), name) == getattr(theirs, name)
    assert get_attention_backend(AttentionParams(), H200) == get_attention_backend(theirs, H200)


def test_records_are_values() -> None:
    record = AttentionParams(num_heads=32, window_size=(64, 0))
    assert record == AttentionParams(num_heads=32, window_size=(64, 0)) != AttentionParams()
    assert pickle.loads(pickle.dumps(record)) == copy.deepcopy(record) == record
    assert "num_heads=32" in repr(record)
    with pytest.raises(TypeError, match="num_head"):
        AttentionParams(num_head=32)  # type: ignore[call-arg]


def test_a_default_record_never_gets_flash() -> None:
    """TransformerEngine's quirk Q1: the default bias shape."""
    assert get_attention_backend(AttentionParams(), H200)[:2] == (False, None)


def test_the_environment_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    record = AttentionParams(**BASE)
    both = get_attention_backend(record, H200)
    monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    flash = get_attention_backend(record, H200)
    monkeypatch.delenv("NVTE_FUSED_ATTN")
    assert both[2]
    assert flash[0]
    assert not flash[2]
    assert get_attention_backend(record, H200) == both


def test_this_machine() -> None:
    assert get_attention_backend(AttentionParams(**BASE)) == get_attention_backend(
        AttentionParams(**BASE), Device.this()
    )


def test_a_memory_of_answers_is_no_memory_of_errors() -> None:
    """A record that equals a remembered one but is none: the choice does not hang on what was asked before."""
    one = AttentionParams(**BASE, num_heads=1, num_gqa_groups=1)
    get_attention_backend(one, H200)
    for wrong in (True, 1.0):
        with pytest.raises(TypeError, match="num_heads: got"):
            get_attention_backend(dataclasses.replace(one, num_heads=wrong), H200)  # type: ignore[arg-type]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(te, "_MOST_REMEMBERED", 16)
    for length in range(1, 100):
        get_attention_backend(AttentionParams(max_seqlen_q=length, max_seqlen_kv=length), H200)
        assert len(te._remembered) <= 16


def test_fp8_takes_recipe_objects_and_plain_data() -> None:
    device = Device.named("h200", cudnn="9.21.0")
    for recipe in (Recipes.DelayedScaling(fp8_dpa=True), {"kind": "delayed", "fp8_dpa": True}):
        record = TeAttentionParams(
            **BASE,
            fp8=True,
            fp8_meta={"recipe": recipe},
            qkv_type=TeTensors.Float8Tensor,
            head_dim_qk=128,
            head_dim_v=128,
        )
        answer = get_attention_backend(record, device)
        assert answer[3] is FusedAttnBackend.FP8
        assert answer[2]
    local = {"recipe": Recipes.DelayedScaling(fp8_dpa=True), "local_recipes": [Recipes.NVFP4BlockScaling()]}
    assert not get_attention_backend(TeAttentionParams(**BASE, fp8=True, fp8_meta=local), device)[2]
    assert get_attention_backend(TeAttentionParams(**BASE, fp8_meta=local), device)[2]  # not read without fp8


@pytest.mark.parametrize(
    "name", ["NVTE_FP8_DPA_BWD", "NVTE_DPA_FP8CS_O_in_F16", "NVTE_DPA_FP8DS_AMAX_HISTLEN", "NVTE_DPA_FP8DS_REDUCE_AMAX"]
)
def test_fp8_variables_are_read_with_fp8_only(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "yes")
    get_attention_backend(TeAttentionParams(**BASE), H200)
    with pytest.raises(ValueError, match=name):
        get_attention_backend(TeAttentionParams(**BASE, fp8=True, fp8_meta={"recipe": Recipes.DelayedScaling()}), H200)


# --- what is refused


class Tensor0d:
    device, dtype, shape = "cuda", "int32", ()

    def __index__(self) -> int:
        return 128


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"num_heads": "4"}, "num_heads: got '4', expected an int"),
    ({"num_heads": True}, "num_heads: got True, expected an int"),
    ({"num_heads": 4.0}, "num_heads: got 4.0, expected an int"),
    ({"num_heads": 2**70}, "num_heads: got 1180591620717411303424, expected at most 2147483647"),
    ({"max_seqlen_q": -1}, "max_seqlen_q: got -1, expected 0 or more"),
    ({"max_seqlen_q": 2**63}, "max_seqlen_q: got 9223372036854775808, expected at most"),
    ({"max_seqlen_q": 2**31}, "max_seqlen_q: got 2147483648, expected at most 2147483647"),
    ({"deterministic": "x"}, "deterministic: got 'x', expected True or False"),
    ({"deterministic": 1}, "deterministic: got 1, expected True or False"),
    ({"alibi_slopes_shape": "x"}, "alibi_slopes_shape: got 'x', expected None"),
    ({"qkv_type": 5}, "qkv_type: got 5, expected a type"),
    ({"max_seqlen_kv": None}, "max_seqlen_kv: got None, expected an int"),
    ({"head_dim_qk": 0}, "head_dim_qk: got 0, expected"),
    ({"qkv_layout": "x"}, "qkv_layout: got 'x', expected one of sb3hd"),
    ({"qkv_dtype": "int8"}, "qkv_dtype: got 'int8', expected one of"),
    ({"attn_mask_type": "x"}, "attn_mask_type: got 'x', expected one of no_mask"),
    ({"window_size": (1,)}, r"window_size: got \(1,\), expected None or"),
    ({"window_size": 5}, "window_size: got 5, expected None or"),
    ({"window_size": (-5, 0)}, r"window_size: got \(-5, 0\), expected None or"),
    ({"attention_dropout": float("nan")}, "attention_dropout: got nan, expected a number from 0 to 1"),
    ({"attention_dropout": 2}, "attention_dropout: got 2, expected"),
    ({"attention_dropout": "x"}, "attention_dropout: got 'x', expected"),
    ({"is_training": 3}, "is_training: got 3, expected True or False"),
    ({"bottom_right_diagonal": None}, "bottom_right_diagonal: got None, expected True or False"),
    ({"core_attention_bias_type": "x"}, "core_attention_bias_type: got 'x', expected one of no_bias"),
    ({"core_attention_bias_shape": "x"}, "core_attention_bias_shape: got 'x', expected one of"),
    ({"softmax_type": "x"}, "softmax_type: got 'x', expected one of vanilla"),
    ({"cp_comm_type": "x"}, "cp_comm_type: got 'x', expected one of p2p"),
    ({"cp_size": 0}, "cp_size: got 0, expected"),
    ({"alibi_slopes_shape": 5}, "alibi_slopes_shape: got 5, expected None"),
    ({"alibi_slopes_shape": (1, 2, 3)}, "alibi_slopes_shape: got"),
    ({"inference_params": 3}, "inference_params: got 3, expected None or an object"),
    ({"inference_params": TeInferenceParams(True, 128), "qkv_layout": "t3hd"}, "qkv_layout: got t3hd with a KV cache"),
    ({"fp8": True}, "fp8"),
    ({"fp8": True, "fp8_meta": {}}, "fp8_meta: got {}, expected a dict with a recipe"),
    ({"fp8": True, "fp8_meta": {"recipe": 3}}, "fp8_meta: got recipe int, expected one of DelayedScaling"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG)
@pytest.mark.parametrize("kind", [AttentionParams, TeAttentionParams])
def test_wrong_values(kind: Any, fields: dict[str, Any], message: str) -> None:
    for _ in range(2):  # what was asked before makes no difference
        with pytest.raises((ValueError, TypeError), match=message):
            get_attention_backend(kind(**{**BASE, **fields}), H200)


@pytest.mark.parametrize("name", ["max_seqlen_q", "max_seqlen_kv", "batch_size", "num_heads"])
def test_lengths_as_tensors(name: str) -> None:
    """A13, B7: a 0-d tensor as a length is refused, with the remedy."""
    with pytest.raises(TypeError, match=rf"{name}: got a tensor, expected an int; pass int\({name}\)"):
        get_attention_backend(TeAttentionParams(**{**BASE, name: Tensor0d()}), H200)
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=rf"pass int\({name}\)"):
        get_attention_backend(TeAttentionParams(**{**BASE, name: torch.tensor(128)}), H200)


def test_b7_gemma() -> None:
    """B7: with lengths as ints there is an answer, or none and the reasons; no crash."""
    common = {**BASE, "qkv_layout": "thd_thd_thd", "num_heads": 2, "num_gqa_groups": 1, "is_training": True}
    for dim, window, mask in ((256, (1023, 0), "padding_causal"), (512, None, "padding_causal")):
        answer = get_attention_backend(
            TeAttentionParams(**common, head_dim_qk=dim, head_dim_v=dim, window_size=window, attn_mask_type=mask), H200
        )
        assert [answer[0], answer[2], answer[4]].count(True) <= 1


# --- FusedAttnBackend


class Foreign(enum.Enum):
    """As TransformerEngine's native enum: no int, equal values."""

    NONE = -1
    F16 = 1
    FP8 = 2


def test_fused_values_are_pinned() -> None:
    assert {member.name: member.value for member in FusedAttnBackend} == {
        "No_Backend": -1,
        "F16_arbitrary_seqlen": 1,
        "FP8": 2,
    }
    assert tuple((member.name, member.value) for member in FusedAttnBackend) == _core.TE_SUB_BACKENDS
    assert isinstance(FusedAttnBackend.FP8, int)
    assert FusedAttnBackend["FP8"] is FusedAttnBackend(2) is FusedAttnBackend.FP8
    assert cynosure.FusedAttnBackend is FusedAttnBackend


@pytest.mark.parametrize("member", FusedAttnBackend)
def test_fused_cast(member: FusedAttnBackend) -> None:
    foreign = Foreign(member.value)
    for value in (member, member.value, member.name, foreign):
        assert FusedAttnBackend.cast(value) is member
    assert member == foreign
    assert not member != foreign  # noqa: SIM202
    assert foreign.value == member
    assert member == member.value
    assert member.value == member
    assert hash(member) == hash(member.value)
    assert {member.value: "x"}[member] == "x"
    for other in FusedAttnBackend:
        assert (member == Foreign(other.value)) is (member is other)
    assert pickle.loads(pickle.dumps(member)) is copy.copy(member) is member
    assert member != "FP8"
    assert member is not None


@pytest.mark.parametrize("value", [0, 3, "fp8", True, None, 1.0, Foreign, object()])
def test_fused_cast_refuses(value: Any) -> None:
    with pytest.raises(ValueError, match=r"FusedAttnBackend: got .*, expected one of No_Backend"):
        FusedAttnBackend.cast(value)


def test_agreement_with_the_core_is_checked_at_import() -> None:
    import subprocess
    import sys

    code = (
        "from cynosure import _core\n"
        "_core.TE_SUB_BACKENDS = (('No_Backend', -1), ('FP8', 1))\n"
        "import importlib, sys\n"
        "del sys.modules['cynosure.backend']\n"
        "importlib.import_module('cynosure.backend')\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "FusedAttnBackend does not agree with the native core" in result.stderr


# --- Version


def test_versions_compare_as_pep_440_has_it() -> None:
    ordered = ["2.8.3.dev1", "2.8.3a1", "2.8.3b2", "2.8.3rc1", "2.8.3", "2.8.3.post1", "2.8.4", "2.10", "3.0.0b1", "3"]
    versions = [Version(text) for text in ordered]
    assert sorted(versions, key=lambda version: version.key) == versions
    for i, version in enumerate(versions):
        for j, other in enumerate(versions):
            assert (version < other, version <= other, version == other) == (i < j, i <= j, i == j)
            assert (version > other, version >= other, version != other) == (i > j, i >= j, i != j)
            assert (version < ordered[j], version == ordered[j]) == (i < j, i == j)
    assert Version("2.8.3+cu12") == Version("2.8.3") == (2, 8, 3)
    assert Version("2.8") == "2.8.0" == Version("2.8")
    assert Version("2.8.3") > (2, 8)
    assert Version("2.8.3") != 3
    assert hash(Version("2.8")) == hash(Version("2.8.0"))
    assert pickle.loads(pickle.dumps(Version("2.8.3"))) == copy.copy(Version("2.8.3")) == Version("2.8.3")
    assert (str(Version("2.8.3")), repr(Version("2.8.3"))) == ("2.8.3", "Version('2.8.3')")
    assert (Version("2.8.3").major, Version("2.8.3").minor, Version("2.8.3").micro) == (2, 8, 3)
    with pytest.raises(ValueError, match="version: got 'two', expected"):
        Version("two")


def test_versions_compare_with_packagings() -> None:
    packaging = pytest.importorskip("packaging.version")
    assert Version("2.8.3") >= packaging.Version("2.8.2")
    assert Version("2.8.3") == packaging.Version("2.8.3")
    assert packaging.Version("2.8.2") <= Version("2.8.3")
