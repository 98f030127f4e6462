# SPDX-License-Identifier: Apache-2.0
"""Problem: one attention call, described by value."""

from __future__ import annotations

import json
from operator import index
from typing import Any

from cynosure import _core
from cynosure._constant import compiling, constant

_DEFAULT = _core.pack_features({})
_BIAS_DIMENSIONS = ("b", "h", "s", "s")


def _bias_shape(shape: Any) -> str:
    """"1hss" for (1, H, Sq, Skv): every dimension is 1 or full."""
    if isinstance(shape, str):
        return shape
    dimensions = tuple(shape)
    if len(dimensions) != 4 or not all(isinstance(n, int) and n >= 0 for n in dimensions):
        raise ValueError(f"attn_bias: got shape {dimensions}, expected 4 sizes [1 or B, 1 or H, 1 or Sq, Skv]")
    return "".join("1" if n == 1 else letter for n, letter in zip(dimensions[:3], _BIAS_DIMENSIONS, strict=False)) + "s"


def _text(value: Any) -> Any:
    """A torch dtype as its name; anything else as it is."""
    return str(value).removeprefix("torch.") if type(value).__name__ == "dtype" else value


@constant
def _pack(
    heads: int,
    kv_heads: int,
    head_dim_qk: int,
    head_dim_v: int,
    window_left: int,
    window_right: int,
    softcap: bool,
    dropout: bool,
    layout: str,
    causal: bool,
    attn_bias: Any,
    attn_mask: str | None,
    alibi_slopes: Any,
    sinks: Any,
    others: tuple[tuple[str, Any], ...],
) -> bytes | str:
    """The bytes of the features, or an error as text (see _constant.py)."""
    values: dict[str, Any] = {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim_qk": head_dim_qk,
        "head_dim_v": head_dim_v,
        "softcap": softcap,
        "dropout": dropout,
        "layout": _text(layout),
        "causal": causal,
    }
    try:
        if not isinstance(causal, bool):
            raise ValueError(f"causal: got {causal!r}, expected True or False")
        given = window_left != -1 or window_right != -1
        if given:
            if causal and window_right > 0:
                raise ValueError(f"window_size: got {(window_left, window_right)} with causal, expected 0 or -1 on the right")
            values.update(window_given=True, window_left=window_left, window_right=0 if causal else window_right)
        if attn_bias is not None:
            values.update(bias_type="post_scale_bias", bias_shape=_bias_shape(attn_bias))
        if alibi_slopes is not None and alibi_slopes is not False:
            if attn_bias is not None:
                raise ValueError("alibi_slopes: given together with attn_bias, expected one of them")
            values.update(bias_type="alibi", alibi_slopes=True)
        if attn_mask is not None:
            values["attn_mask"] = attn_mask
        if sinks is not None and sinks is not False:
            values["softmax"] = "learnable"
        values["padding"] = str(layout).startswith("thd")
        values.update((name, _text(value)) for name, value in others)
        key: bytes = _core.pack_features(values)
        return key
    except (ValueError, TypeError) as error:
        return str(error)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "device") and hasattr(value, "dtype")


def _integer(name: str, value: Any) -> int:
    """A static int; torch specialises here. Refuses tensors, bools and floats by name."""
    if compiling():
        return index(value)
    if isinstance(value, bool) or _is_tensor(value) or not hasattr(value, "__index__"):
        shown = f"a tensor; pass int({name})" if _is_tensor(value) else repr(value)
        raise TypeError(f"{name}: got {shown}, expected an int")
    return index(value)


def _check_lengths(problem: Problem) -> None:
    for name in ("batch", "seqlen_q", "seqlen_k"):
        setattr(problem, name, _integer(name, getattr(problem, name)))
    _core.validate(problem.key, problem.batch, problem.seqlen_q, problem.seqlen_k)


class Problem:
    """One attention call by value: shapes by name and the other arguments of `attention`.

    Args:
        batch: sequences.
        heads: query heads.
        seqlen_q: longest query length; may be symbolic while torch traces, as may batch and seqlen_k.
        head_dim: head dim of q and k (`head_dim_qk` is the same).
        kv_heads: key and value heads, default `heads`.
        seqlen_k: longest key length, default `seqlen_q`.
        head_dim_v: head dim of v, default `head_dim`.
        causal, align, window_size, softcap, dropout_p: as in `attention`.
        attn_bias: shape of the bias: "bhss", "1hss", ... or four sizes.
        attn_mask: "boolean" or "additive".
        alibi_slopes, sinks: True where the call has them.
        layout: "bshd", "sbhd", "bhsd", "thd", or one of TransformerEngine's layouts.
        features: any other field by name: dtype, training, padding, return_lse, ... (`cynosure.problem.FIELDS`).

    Raises:
        ValueError, TypeError: naming the field, what was given and what is allowed.
    """

    key: bytes
    batch: int
    seqlen_q: int
    seqlen_k: int

    def __init__(
        self,
        *,
        heads: int,
        seqlen_q: int,
        batch: int = 1,
        head_dim: int | None = None,
        head_dim_qk: int | None = None,
        kv_heads: int | None = None,
        seqlen_k: int | None = None,
        head_dim_v: int | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        dropout_p: float = 0.0,
        layout: str = "bshd",
        attn_bias: Any = None,
        attn_mask: str | None = None,
        alibi_slopes: Any = None,
        sinks: Any = None,
        **features: Any,
    ) -> None:
        if head_dim_qk is None:
            head_dim_qk = head_dim
        if head_dim_qk is None:
            raise TypeError("head_dim: missing, expected the head dim of q and k")
        if not compiling():
            _check_floats(softcap, dropout_p, window_size)
        heads = _integer("heads", heads)
        head_dim_qk = _integer("head_dim_qk", head_dim_qk)
        key = _pack(
            heads,
            heads if kv_heads is None else _integer("kv_heads", kv_heads),
            head_dim_qk,
            head_dim_qk if head_dim_v is None else _integer("head_dim_v", head_dim_v),
            _integer("window_size", window_size[0]),
            _integer("window_size", window_size[1]),
            True if softcap != 0.0 else False,  # noqa: SIM210: a comparison result may be symbolic, a branch is not
            True if dropout_p != 0.0 else False,  # noqa: SIM210
            layout,
            causal,
            attn_bias,
            attn_mask,
            alibi_slopes,
            sinks,
            tuple(features.items()),
        )
        if isinstance(key, str):
            raise ValueError(key)
        self.key = key
        self.batch = batch
        self.seqlen_q = seqlen_q
        self.seqlen_k = seqlen_q if seqlen_k is None else seqlen_k
        if not compiling():
            _check_lengths(self)

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return {"batch": self.batch, "seqlen_q": self.seqlen_q, "seqlen_k": self.seqlen_k, **_core.features_dict(self.key)}

    def to_json(self) -> str:
        """JSON text of the fields that differ from a Problem's defaults, and the sizes."""
        return json.dumps(self._stated())

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Problem:
        """From `to_dict`'s fields, or some of them. Raises ValueError for an unknown field or a value not allowed."""
        rest = dict(values)
        lengths = [_integer(name, rest.pop(name, 1)) for name in ("batch", "seqlen_q", "seqlen_k")]
        problem = problem_of_key(_core.pack_features(rest), *lengths)
        _check_lengths(problem)
        return problem

    @classmethod
    def from_json(cls, text: str) -> Problem:
        """From `to_json`'s text."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"problem: not JSON: {error}") from None
        if not isinstance(values, dict):
            raise ValueError(f"problem: got {type(values).__name__}, expected a JSON object")
        return cls.from_dict(values)

    def _stated(self) -> dict[str, Any]:
        default = _core.features_dict(_DEFAULT)
        sizes = ("heads", "kv_heads", "head_dim_qk", "head_dim_v", "dtype", "layout")
        return {
            name: value
            for name, value in self.to_dict().items()
            if name not in default or name in sizes or value != default[name]
        }

    def __getattr__(self, name: str) -> Any:
        if name in FIELDS:
            return _core.features_dict(self.key)[name]
        raise AttributeError(f"Problem has no field {name!r}")

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Problem)
            and self.key == other.key
            and (self.batch, self.seqlen_q, self.seqlen_k) == (other.batch, other.seqlen_q, other.seqlen_k)
        )

    def __hash__(self) -> int:
        return hash((self.key, self.batch, self.seqlen_q, self.seqlen_k))

    def __repr__(self) -> str:
        return f"Problem({', '.join(f'{name}={value!r}' for name, value in self._stated().items())})"


FIELDS = frozenset(_core.features_dict(_DEFAULT))


def _check_floats(softcap: Any, dropout_p: Any, window_size: Any) -> None:
    for name, value in (("softcap", softcap), ("dropout_p", dropout_p)):
        if isinstance(value, bool) or _is_tensor(value) or not isinstance(value, (int, float)):
            raise TypeError(f"{name}: got {value!r}, expected a float")
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p: got {dropout_p}, expected a probability from 0 to 1")
    if not 0.0 <= softcap < float("inf"):
        raise ValueError(f"softcap: got {softcap}, expected 0 (none) or a positive number")
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise ValueError(f"window_size: got {window_size!r}, expected (left, right)")


def problem_of_key(key: bytes, batch: int, seqlen_q: int, seqlen_k: int) -> Problem:
    """A Problem around packed features."""
    problem = object.__new__(Problem)
    problem.key = key
    problem.batch = batch
    problem.seqlen_q = seqlen_q
    problem.seqlen_k = seqlen_k
    return problem
