# SPDX-License-Identifier: Apache-2.0
"""TransformerEngine's question and answer: `get_attention_backend` over its AttentionParams record."""

from __future__ import annotations

import os
from dataclasses import dataclass
from operator import attrgetter, index
from typing import Any

from cynosure import _core, log
from cynosure._constant import ENVIRONMENT, constant
from cynosure._tracing import Traceable, compiling
from cynosure.backend import FusedAttnBackend
from cynosure.device import Device, this_key, this_key_constant
from cynosure.problem import check_integer
from cynosure.settings import eager_now
from cynosure.version import Version


@dataclass
class AttentionParams:
    """TransformerEngine's record: its field names and defaults (all 35). Its own record object is taken too."""

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
    window_size: tuple[int, int] | None = None
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
    fp8_meta: dict[str, Any] | None = None
    inference_params: Any = None
    softmax_type: str = "vanilla"
    return_max_logit: bool = False
    cuda_graph: bool = False
    num_splits: int = 1
    fp8_output: bool = False
    checkpoint_core_attention: bool = False
    has_score_mod: bool = False
    has_score_mod_bprop: bool = False


# (use_flash, flash version, use_fused, fused sub-backend, use_unfused, [flash, fused, unfused available])
TeAnswer = tuple[bool, "Version | None", bool, "FusedAttnBackend | None", bool, "list[bool]"]

_SUB_BACKENDS: tuple[FusedAttnBackend | None, ...] = (None, FusedAttnBackend.F16_arbitrary_seqlen, FusedAttnBackend.FP8)
_RECIPES = {
    "DelayedScaling": "delayed",
    "Float8CurrentScaling": "current",
    "MXFP8BlockScaling": "mxfp8",
    "Float8BlockScaling": "block",
    "NVFP4BlockScaling": "nvfp4",
    "CustomRecipe": "custom",
}
_TENSOR_KINDS = {
    "Tensor": "tensor",
    "Float8Tensor": "float8",
    "Float8TensorStorage": "float8_storage",
    "MXFP8Tensor": "mxfp8",
    "MXFP8TensorStorage": "mxfp8_storage",
}

# The fields that go to the core as they are, in the order in which _read passes them.
_PLAIN = (
    "core_attention_bias_type",
    "core_attention_bias_shape",
    "core_attention_bias_requires_grad",
    "pad_between_seqs",
    "context_parallel",
    "cp_comm_type",
    "is_training",
    "softmax_type",
    "return_max_logit",
    "cuda_graph",
    "fp8_output",
    "checkpoint_core_attention",
    "has_score_mod",
    "has_score_mod_bprop",
)
_NUMBERS = ("num_heads", "num_gqa_groups", "head_dim_qk", "head_dim_v", "cp_size", "num_splits")


def _dtype_name(dtype: Any) -> Any:
    if isinstance(dtype, str):
        return dtype
    text = str(dtype)  # torch.bfloat16, or TransformerEngine's DType.kFloat8E4M3
    return "float8_e4m3" if "E4M3" in text else text.removeprefix("torch.")


def _kind_name(kind: Any) -> Any:
    if isinstance(kind, str):
        return kind
    if not isinstance(kind, type):
        raise ValueError(f"qkv_type: got {kind!r}, expected a type, or one of {', '.join(_TENSOR_KINDS.values())}")
    name = getattr(kind, "__name__", repr(kind))
    if name == "Tensor" and not getattr(kind, "__module__", "").startswith("torch"):
        return "other"
    return _TENSOR_KINDS.get(name, "other")


@constant
def _pack(
    kind: Any, dtype: Any, layout: Any, mask: Any, window: Any, diagonal: Any, slopes: int | None, dropout: bool,
    fp8: Any, recipe: tuple[str, bool, bool] | None, cache: tuple[bool, int] | None, word: int,
    deterministic: bool, *rest: Any,
) -> tuple[bytes, int, str | None]:  # fmt: skip
    """(the features of a record, the settings word for it, None), or an error as text in the last."""
    try:
        if not isinstance(deterministic, bool):
            raise ValueError(f"deterministic: got {deterministic!r}, expected True or False")
        values: dict[str, Any] = {
            "qkv_type": _kind_name(kind),
            "qkv_dtype": _dtype_name(dtype),
            "qkv_layout": layout,
            "attn_mask_type": mask,
            "window_size": window,
            "bottom_right_diagonal": diagonal,
            "alibi_slopes_shape": None if slopes is None else (1,) * slopes,
            "attention_dropout": 0.5 if dropout else 0.0,  # only whether there is any decides
            "fp8": fp8,
            **dict(zip((*_NUMBERS, *_PLAIN), rest, strict=True)),
        }
        if recipe is not None:
            values.update(
                {"fp8_recipe.kind": recipe[0], "fp8_recipe.fp8_dpa": recipe[1], "fp8_recipe.fp8_mha": recipe[2]}
            )
        if cache is not None:
            values.update({"kv_cache.is_paged": cache[0], "kv_cache.page_size": cache[1]})
        features: bytes = _core.te_problem(values, "te")[0]
        return features, _core.settings_with(word, policy="te", deterministic=deterministic), None
    except ValueError as error:
        return b"", 0, str(error)


_ALL = tuple(AttentionParams.__dataclass_fields__)


@constant
def _plain(kind: Any) -> bool:
    """Whether instances of a record's class keep all fields in their dict, as a dataclass without slots does."""
    return kind.__getattribute__ is object.__getattribute__ and not any(
        hasattr(getattr(kind, name, None), "__set__") for name in _ALL
    )


def _fields_one_by_one(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in _ALL}


@constant
def _answer(chosen: int, eligible: int, device: bytes) -> tuple[Any, ...]:
    """TransformerEngine's six values, the last one flat; a version as its parts, a sub-backend as an index."""
    flash, version, fused, sub, unfused, available = _core.te_answer(chosen, eligible, device)
    return flash, None if version is None else _core.version_parts(version), fused, sub or 0, unfused, *available


def _recipe_of(meta: Any) -> tuple[str, bool, bool] | None:
    """(kind, fp8_dpa, fp8_mha) of fp8_meta's recipe: a TransformerEngine recipe, or a dict with these keys."""
    if meta is None:
        return None
    recipe = meta["recipe"]
    local = meta["local_recipes"][0] if meta.get("local_recipes") else recipe
    if isinstance(recipe, dict):
        return local["kind"], bool(recipe.get("fp8_dpa", False)), bool(recipe.get("fp8_mha", False))
    name = local.__class__.__name__
    if name not in _RECIPES:
        raise ValueError(f"fp8_meta: got recipe {name}, expected one of {', '.join(_RECIPES)}")
    return _RECIPES[name], True if recipe.fp8_dpa else False, True if recipe.fp8_mha else False  # noqa: SIM210


def _cache_of(inference: Any) -> tuple[bool, int]:
    paged = True if inference.is_paged else False  # noqa: SIM210
    return paged, index(inference.page_size) if paged else 256  # a size is read of pages only


def _fp8_variables() -> None:
    """TransformerEngine reads these as integers when FP8 is on; they decide nothing."""
    get = ENVIRONMENT.get
    error = _check_fp8_variables(
        get(b"NVTE_FP8_DPA_BWD"),
        get(b"NVTE_DPA_FP8CS_O_in_F16"),
        get(b"NVTE_DPA_FP8DS_AMAX_HISTLEN"),
        get(b"NVTE_DPA_FP8DS_REDUCE_AMAX"),
    )
    if error is not None:
        raise ValueError(error)


@constant
def _check_fp8_variables(*values: bytes | None) -> str | None:
    names = ("NVTE_FP8_DPA_BWD", "NVTE_DPA_FP8CS_O_in_F16", "NVTE_DPA_FP8DS_AMAX_HISTLEN", "NVTE_DPA_FP8DS_REDUCE_AMAX")
    given = {name: os.fsdecode(value) for name, value in zip(names, values, strict=True) if value is not None}
    try:
        _core.selection_switches(given, _core.default_settings(), True)
    except ValueError as error:
        return str(error)
    return None


class _Question(Traceable):
    """Reads a record and puts the answer together. An object, so that the trace reaches all of it without guards."""

    __slots__ = ()

    def _value_of(self, record: Any, word: int) -> tuple[tuple[bytes, Any, Any, Any], int]:
        """(the packed problem, settings word) of a record, for traced code.

        From its dict where it keeps its fields there: on torch 2.15 a guard there costs a quarter of an attribute's.
        """
        if _plain(record.__class__):
            try:
                return self._read(record.__dict__, word)
            except KeyError:  # deleted from the instance: its class has a default, or getattr says what is missing
                pass
        return self._read(_fields_one_by_one(record), word)

    def _read(self, p: Any, word: int) -> tuple[tuple[bytes, Any, Any, Any], int]:
        """(the packed problem, settings word) of a record's fields; each costs traced code: hence one flat call."""
        if p["fp8"]:
            _fp8_variables()
        window = p["window_size"]
        slopes = p["alibi_slopes_shape"]
        cache = p["inference_params"]
        features, word, error = _pack(
            p["qkv_type"],
            p["qkv_dtype"],
            p["qkv_layout"],
            p["attn_mask_type"],
            None if window is None else (index(window[0]), index(window[1])),
            p["bottom_right_diagonal"],
            None if slopes is None else len(slopes),
            True if p["attention_dropout"] else False,  # noqa: SIM210
            p["fp8"],
            _recipe_of(p["fp8_meta"]) if p["fp8"] else None,
            None if cache is None else _cache_of(cache),
            word,
            p["deterministic"],
            # _NUMBERS
            index(p["num_heads"]),
            index(p["num_gqa_groups"]),
            index(p["head_dim_qk"]),
            index(p["head_dim_v"]),
            index(p["cp_size"]),
            index(p["num_splits"]),
            # _PLAIN
            p["core_attention_bias_type"],
            p["core_attention_bias_shape"],
            p["core_attention_bias_requires_grad"],
            p["pad_between_seqs"],
            p["context_parallel"],
            p["cp_comm_type"],
            p["is_training"],
            p["softmax_type"],
            p["return_max_logit"],
            p["cuda_graph"],
            p["fp8_output"],
            p["checkpoint_core_attention"],
            p["has_score_mod"],
            p["has_score_mod_bprop"],
        )
        if error is not None:
            raise ValueError(error)
        return (features, p["batch_size"], p["max_seqlen_q"], p["max_seqlen_kv"]), word

    def _assemble(self, chosen: int, eligible: int, device: bytes) -> TeAnswer:
        """TransformerEngine's six values from `_answer`'s plain ones."""
        flash, parts, fused, sub, unfused, any_flash, any_fused, any_unfused = _answer(chosen, eligible, device)
        version = None
        if parts is not None:
            version = object.__new__(Version)  # version_of_parts, inlined: one module less to guard
            version._parts = parts
        return flash, version, fused, _SUB_BACKENDS[sub], unfused, [any_flash, any_fused, any_unfused]


def _check(p: Any) -> None:
    """What only eager code can check."""
    for name in _NUMBERS:
        check_integer(name, getattr(p, name))
    for name in ("batch_size", "max_seqlen_q", "max_seqlen_kv"):
        value = getattr(p, name)
        check_integer(name, value)
        if value < 0:
            raise ValueError(f"{name}: got {value}, expected 0 or more")
    dropout, window, slopes, cache = p.attention_dropout, p.window_size, p.alibi_slopes_shape, p.inference_params
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0.0 <= dropout <= 1.0:
        raise ValueError(f"attention_dropout: got {dropout!r}, expected a number from 0 to 1")
    if window is not None and not (isinstance(window, (tuple, list)) and len(window) == 2):
        raise ValueError(f"window_size: got {window!r}, expected None or (left, right), each -1 or more")
    if slopes is not None and (isinstance(slopes, str) or not hasattr(slopes, "__len__")):
        raise ValueError(f"alibi_slopes_shape: got {slopes!r}, expected None, (heads) or (batch, heads)")
    if p.fp8 and p.fp8_meta is not None and not (isinstance(p.fp8_meta, dict) and "recipe" in p.fp8_meta):
        raise ValueError(f"fp8_meta: got {p.fp8_meta!r}, expected a dict with a recipe")
    if cache is not None and not hasattr(cache, "is_paged"):
        raise ValueError(f"inference_params: got {cache!r}, expected None or an object with is_paged and page_size")


def get_attention_backend(attention_params: Any, device: Device | None = None) -> TeAnswer:
    """What TransformerEngine would choose, outcome for outcome; traceable under torch.compile(fullgraph=True).

    Args:
        attention_params: an `AttentionParams`, or TransformerEngine's own record.
        device: the machine; None: this one.

    Returns:
        (use_flash, flash version, use_fused, fused sub-backend, use_unfused, [flash, fused, unfused available]). The
        version and the sub-backend stay filled when another backend wins. All False where nothing may run.

    Raises:
        ValueError, TypeError: a record TransformerEngine raises on too, or a value no field takes; names the field.
    """
    p = attention_params
    if not compiling():
        word, logged, this = eager_now()
        return _eager(p, word, logged, (this or this_key()) if device is None else device._key)
    question = object.__new__(_Question)
    machine = this_key_constant() if device is None else device._key
    value, word = question._value_of(p, question._traced_word())
    _, chosen, eligible = question._decide(value, word, machine)
    return question._assemble(chosen, eligible, machine)


_MOST_REMEMBERED = 1024
_remembered: dict[Any, tuple[tuple[type, ...], TeAnswer]] = {}
_FIELDS = tuple(
    [name for name in AttentionParams.__dataclass_fields__ if name not in ("fp8", "fp8_meta", "inference_params")]
)
_fields_of = attrgetter(*_FIELDS)


def _eager(p: Any, word: int, logged: bool, machine: bytes) -> TeAnswer:
    """Remembers answers by the values of the fields: a hit costs one look-up. FP8 records are always worked out."""
    if p.fp8:
        return _work_out(p, word, machine)
    cache = p.inference_params
    fields = _fields_of(p)
    try:
        identity = (fields, None if cache is None else _cache_of(cache), word, machine)
        known = _remembered.get(identity)
    except (TypeError, AttributeError):  # a list where a tuple was meant, or what is refused below
        return _work_out(p, word, machine)
    types = tuple(map(type, fields))  # 1 and True are equal, but only one of them is a number of heads
    if known is None or known[0] != types or logged:
        answer = _work_out(p, word, machine)
        if len(_remembered) >= _MOST_REMEMBERED:
            _remembered.clear()
        _remembered[identity] = known = (types, answer)
    flash, version, fused, sub, unfused, available = known[1]
    return flash, version, fused, sub, unfused, available.copy()


def _work_out(p: Any, word: int, machine: bytes) -> TeAnswer:
    _check(p)
    question = _Question()
    value, word = question._read(_fields_one_by_one(p), word)
    chosen, eligible = _core.outcome(*value, word, machine)
    if log.wanted():
        log.decided(value[0], value[1:], word, machine, None)
    return question._assemble(chosen, eligible, machine)
