# SPDX-License-Identifier: Apache-2.0
"""Attention calls of well-known models, for the demonstration and for `cynosure diff`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cynosure.problem import Problem

# Shapes from the models' published configurations. Where windowed and full layers alternate, this is the windowed one.
MODELS: dict[str, dict[str, Any]] = {
    "Llama-3 8B": {"heads": 32, "kv_heads": 8, "head_dim": 128, "causal": True},
    "Gemma-2 9B": {
        "heads": 16,
        "kv_heads": 8,
        "head_dim": 256,
        "causal": True,
        "softcap": 50.0,
        "window_size": (4095, 0),
    },
    "DeepSeek-V3": {"heads": 128, "head_dim": 192, "head_dim_v": 128, "causal": True},
    "GPT-OSS 120B": {
        "heads": 64,
        "kv_heads": 8,
        "head_dim": 64,
        "causal": True,
        "sinks": True,
        "window_size": (127, 0),
    },
    "Mistral 7B": {"heads": 32, "kv_heads": 8, "head_dim": 128, "causal": True, "window_size": (4095, 0)},
    "Phi-2": {"heads": 32, "head_dim": 80, "causal": True},
    "MPT 7B": {"heads": 32, "head_dim": 128, "causal": True, "alibi_slopes": True},
    "BERT large": {"heads": 16, "head_dim": 64},
    "ViT-H": {"heads": 16, "head_dim": 80},
    "SDXL cross": {"heads": 20, "head_dim": 64},
    "Flux": {"heads": 24, "head_dim": 128},
    "T5 XL": {"heads": 32, "head_dim": 64, "attn_bias": "1hss"},
}
DECODERS = [name for name, model in MODELS.items() if model.get("causal")]


def call(model: str, **sizes: Any) -> Problem:
    """A model's call with these sizes."""
    return Problem(**{**MODELS[model], **sizes})


def grid() -> Iterator[tuple[str, Problem]]:
    """A label and a call for each of a few hundred realistic combinations."""
    for model in MODELS:
        for length in (128, 512, 1000, 2048, 4097, 8192, 32768):
            for dtype in ("bfloat16", "float16"):
                sizes = {"batch": 2, "seqlen_q": length, "dtype": dtype}
                yield f"{model} training {length} {dtype}", call(model, **sizes)
                yield f"{model} forward {length} {dtype}", call(model, **sizes, training=False)
        yield f"{model} training 4096 dropout", call(model, batch=2, seqlen_q=4096, dropout_p=0.1)
        yield f"{model} training 4096 padded", call(model, batch=8, seqlen_q=4096, padding=True)
        yield f"{model} training 4096 thd", call(model, batch=8, seqlen_q=4096, layout="thd")
        yield f"{model} training 4096 float32", call(model, batch=2, seqlen_q=4096, dtype="float32")
        yield f"{model} training 4096 CUDA graph", call(model, batch=2, seqlen_q=4096, cuda_graph=True)
    for model in DECODERS:
        for length in (1024, 4096, 4097, 32768, 131072):
            for batch in (1, 64):
                sizes = {"batch": batch, "seqlen_q": 1, "seqlen_k": length, "training": False}
                yield f"{model} decode {batch} x {length}", call(model, **sizes)
        yield f"{model} training 4096 boolean mask", call(model, batch=2, seqlen_q=4096, attn_mask="boolean")
        yield f"{model} extend 512 over 8192", call(model, batch=2, seqlen_q=512, seqlen_k=8192, training=False)
