# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for TransformerEngine's objects: its record with its field names, tensors, recipes, cache parameters.

Only names and attributes matter: Cynosure imports nothing of TransformerEngine.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cynosure import Device


class TeTensors:
    """Quantized tensors, known by their class names."""

    Float8Tensor = type("Float8Tensor", (), {})
    Float8TensorStorage = type("Float8TensorStorage", (), {})
    MXFP8Tensor = type("MXFP8Tensor", (), {})
    MXFP8TensorStorage = type("MXFP8TensorStorage", (), {})


class Format(enum.Enum):
    E4M3 = "e4m3"
    HYBRID = "hybrid"


@dataclass
class Recipe:
    fp8_dpa: bool = False
    fp8_mha: bool = False
    fp8_format: Format = Format.HYBRID


class Recipes:
    DelayedScaling = type("DelayedScaling", (Recipe,), {})
    Float8CurrentScaling = type("Float8CurrentScaling", (Recipe,), {})
    MXFP8BlockScaling = type("MXFP8BlockScaling", (Recipe,), {})
    Float8BlockScaling = type("Float8BlockScaling", (Recipe,), {})
    NVFP4BlockScaling = type("NVFP4BlockScaling", (Recipe,), {})
    Unheard = type("Unheard", (Recipe,), {})

    BY_KIND: ClassVar[dict[str, Any]] = {
        "delayed": DelayedScaling,
        "current": Float8CurrentScaling,
        "mxfp8": MXFP8BlockScaling,
        "block": Float8BlockScaling,
        "nvfp4": NVFP4BlockScaling,
    }


@dataclass
class TeInferenceParams:
    is_paged: bool
    page_size: int | None
    max_batch_size: int = 8
    sequences: dict[int, int] = field(default_factory=dict)


@dataclass
class TeAttentionParams:
    """TransformerEngine's own record, field for field."""

    qkv_type: Any = "tensor"
    qkv_dtype: Any = "bf16"
    qkv_layout: str = "sbh3d"
    batch_size: int = 1
    num_heads: int = 16
    num_gqa_groups: int = 16
    max_seqlen_q: int = 128
    max_seqlen_kv: int = 128
    head_dim_qk: int = 64
    head_dim_v: int = 64
    attn_mask_type: str = "no_mask"
    window_size: Any = None
    bottom_right_diagonal: bool = True
    alibi_slopes_shape: Any = None
    core_attention_bias_type: str = "no_bias"
    core_attention_bias_shape: str | None = "1hss"
    core_attention_bias_requires_grad: bool = True
    pad_between_seqs: bool = False
    attention_dropout: float = 0.0
    context_parallel: bool = False
    cp_comm_type: str = "p2p"
    cp_size: int = 1
    deterministic: bool = False
    is_training: bool = True
    fp8: bool = False
    fp8_meta: Any = None
    inference_params: Any = None
    softmax_type: str = "vanilla"
    return_max_logit: bool = False
    cuda_graph: bool = False
    num_splits: int = 1
    fp8_output: bool = False
    checkpoint_core_attention: bool = False
    has_score_mod: bool = False
    has_score_mod_bprop: bool = False


# --- records of tests/data/te_decisions.jsonl.gz


def device_of(row: dict[str, Any]) -> Device:
    number = row["cudnn"]
    parts = (
        (number // 10000, number // 100 % 100, number % 100)
        if number >= 90000
        else (number // 1000, number // 100 % 10, number % 100)
    )
    fields = {"device_kind": "cuda", "sm": row["sm"], "cudnn": ".".join(map(str, parts))}
    packages = {ours: row.get(theirs) for ours, theirs in (("flash2", "fa2"), ("flash3", "fa3"), ("flash4", "fa4"))}
    return Device.named("h200", **fields, **packages, torch=None)


def record_of(params: dict[str, Any]) -> TeAttentionParams:
    import torch

    fields = {**params}
    recipe, cache = fields.pop("fp8_recipe", None), fields.pop("kv_cache", None)
    kinds = {
        "tensor": torch.Tensor,
        "float8": TeTensors.Float8Tensor,
        "float8_storage": TeTensors.Float8TensorStorage,
        "mxfp8": TeTensors.MXFP8Tensor,
        "mxfp8_storage": TeTensors.MXFP8TensorStorage,
    }
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8_e4m3": torch.float8_e4m3fn}
    fields["qkv_type"] = kinds[fields.get("qkv_type", "tensor")]
    fields["qkv_dtype"] = dtypes[fields.get("qkv_dtype", "bf16")]
    for name in ("window_size", "alibi_slopes_shape"):
        if fields.get(name) is not None:
            fields[name] = tuple(fields[name])
    if recipe is not None:
        made = Recipes.BY_KIND[recipe["kind"]](
            recipe.get("fp8_dpa", False), recipe.get("fp8_mha", False), Format[recipe.get("format", "HYBRID")]
        )
        fields["fp8_meta"] = {"recipe": made}
    if cache is not None:
        fields["inference_params"] = TeInferenceParams(cache["is_paged"], cache["page_size"])
    return TeAttentionParams(**fields)


def answer_of(answer: Any) -> dict[str, Any]:
    """Six values in the form of the golden records."""
    flash, version, fused, sub, unfused, available = answer
    return {
        "available": available,
        "flash": flash,
        "flash_version": None if version is None else str(version),
        "fused": fused,
        "fused_backend": None if sub is None else int(sub),
        "unfused": unfused,
    }
