# SPDX-License-Identifier: Apache-2.0
"""Problem: one attention call, described by value."""

from __future__ import annotations

import json
import sys
from numbers import Number
from operator import index
from typing import Any

from cynosure import _core
from cynosure._constant import constant
from cynosure._json import read_object
from cynosure._tracing import compiling
from cynosure._values import value_class

_DEFAULT = _core.pack_features({})
_BIAS_DIMENSIONS = ("b", "h", "s", "s")


def _bias_shape(shape: Any) -> str:
    """The word for a shape, "1hss" for (1, H, Sq, Skv): every dimension is 1 or full."""
    if isinstance(shape, str):
        return shape
    dimensions = tuple(shape) if isinstance(shape, (tuple, list)) else ()
    if len(dimensions) != 4 or not all(isinstance(n, int) and n >= 0 for n in dimensions):
        raise ValueError(
            f"attn_bias: got {shape!r}, expected 4 sizes [1 or B, 1 or H, 1 or Sq, Skv] or a word such as '1hss'"
        )
    return "".join("1" if n == 1 else letter for n, letter in zip(dimensions[:3], _BIAS_DIMENSIONS, strict=False)) + "s"


def _text(value: Any) -> Any:
    """A torch dtype as its name; anything else as it is."""
    return str(value).removeprefix("torch.") if type(value).__name__ == "dtype" else value


@constant
def _pack(
    heads: int,
    kv_heads: int | None,
    head_dim_qk: int,
    head_dim_v: int | None,
    window_left: int,
    window_right: int,
    page_size: int,
    num_splits: int,
    cp_size: int,
    softcap: bool,
    dropout: bool,
    layout: str,
    causal: bool,
    attn_bias: Any,
    attn_mask: str | None,
    alibi_slopes: Any,
    sinks: Any,
    others: dict[str, Any],
) -> tuple[bytes, str | None]:
    """The bytes of the features, or an error as text (see _constant.py)."""
    values: dict[str, Any] = {
        "heads": heads,
        "kv_heads": heads if kv_heads is None else kv_heads,
        "head_dim_qk": head_dim_qk,
        "head_dim_v": head_dim_qk if head_dim_v is None else head_dim_v,
        "page_size": page_size,
        "num_splits": num_splits,
        "cp_size": cp_size,
        "softcap": softcap,
        "dropout": dropout,
        "layout": _text(layout),
        "causal": causal,
    }
    try:
        for name, flag in (("alibi_slopes", alibi_slopes or False), ("sinks", sinks or False)):
            if not isinstance(flag, bool):
                raise ValueError(f"{name}: got {flag!r}, expected True or False")
        given = window_left != -1 or window_right != -1
        if given:
            if causal and window_right > 0:
                raise ValueError(
                    f"window_size: got {(window_left, window_right)} with causal, expected 0 or -1 on the right"
                )
            values.update(window_given=True, window_left=window_left, window_right=0 if causal else window_right)
        if attn_bias is not None:
            values.update(bias_type="post_scale_bias", bias_shape=_bias_shape(attn_bias))
        if alibi_slopes:
            if attn_bias is not None:
                raise ValueError("alibi_slopes: given together with attn_bias, expected one of them")
            values.update(bias_type="alibi", alibi_slopes=True)
        if attn_mask is not None:
            values["attn_mask"] = attn_mask
        if sinks:
            values["softmax"] = "learnable"
        values["padding"] = str(layout).startswith("thd")
        values.update((name, _text(value)) for name, value in others.items())
        key: bytes = _core.pack_features(values)
        _core.validate(key, 1, 1, 1)  # what does not hang on lengths, so that traced code is told too
        return key, None
    except (ValueError, TypeError) as error:
        return b"", str(error)


@constant
def _field(key: bytes, name: str) -> Any:
    return _core.features_dict(key)[name]


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "device") and hasattr(value, "dtype") and not isinstance(value, Number)  # as numpy's are


def _check_arguments(*, causal: Any, softcap: Any, dropout_p: Any, window_size: Any, **integers: Any) -> None:
    """Types and ranges that only eager code can check. Names the argument, what it is and what is allowed."""
    if not isinstance(causal, bool):
        raise ValueError(f"causal: got {causal!r}, expected True or False")
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise ValueError(f"window_size: got {window_size!r}, expected (left, right)")
    optional = ("kv_heads", "seqlen_k", "head_dim_v")
    for name, value in (*integers.items(), ("window_size", window_size[0]), ("window_size", window_size[1])):
        if not (value is None and name in optional):
            check_integer(name, value)
    for name, value in (("softcap", softcap), ("dropout_p", dropout_p)):
        if isinstance(value, bool) or _is_tensor(value) or not isinstance(value, (int, float)):
            raise TypeError(f"{name}: got {value!r}, expected a float")
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p: got {dropout_p}, expected a probability from 0 to 1")
    if not 0.0 <= softcap < float("inf"):
        raise ValueError(f"softcap: got {softcap}, expected 0 (none) or a positive number")


LARGEST = 2**31 - 1  # of lengths, heads, head dims and windows: kernels take 32 bits


def check_integer(name: str, value: Any, largest: int = LARGEST) -> None:
    """Refuses what is no int, a tensor with the remedy."""
    if _is_tensor(value):
        raise TypeError(f"{name}: got a tensor, expected an int; pass int({name})")
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: got {value!r}, expected an int")
    if index(value) > largest:
        raise ValueError(f"{name}: got {value}, expected at most {largest}")


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
            All of these are at most 2**31 - 1, which is what kernels take; symbolic lengths are taken to be.
        causal, align, window_size, softcap, dropout_p: as in `attention`.
        attn_bias: shape of the bias: "bhss", "1hss", ... or four sizes.
        attn_mask: "boolean" or "additive".
        alibi_slopes, sinks: True where the call has them.
        layout: "bshd", "sbhd", "bhsd", "thd", or one of TransformerEngine's layouts.
        page_size, num_splits, cp_size: of a paged cache, of split keys, of context parallelism.
        features: any other field by name: dtype, training, padding, return_lse, ... (`cynosure.problem.FIELDS`).

    Raises:
        ValueError, TypeError: naming the field, what was given and what is allowed.
    """

    __slots__ = ("__weakref__", "_value")
    # (features, batch, seqlen_q, seqlen_k): one attribute, because each costs the tracer
    _value: tuple[bytes, int, int, int]

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
        page_size: int = 0,
        num_splits: int = 1,
        cp_size: int = 1,
        **features: Any,
    ) -> None:
        if head_dim_qk is None:
            head_dim_qk = head_dim
        elif head_dim is not None:
            raise ValueError("head_dim: given together with head_dim_qk, which is the same; expected one of them")
        if seqlen_k is None:
            seqlen_k = seqlen_q
        tracing = compiling()
        if not tracing:
            _check_arguments(
                batch=batch,
                heads=heads,
                kv_heads=kv_heads,
                seqlen_q=seqlen_q,
                seqlen_k=seqlen_k,
                head_dim_qk=head_dim_qk,
                head_dim_v=head_dim_v,
                page_size=page_size,
                num_splits=num_splits,
                cp_size=cp_size,
                causal=causal,
                softcap=softcap,
                dropout_p=dropout_p,
                window_size=window_size,
            )
        # index(): torch specialises on a static int here, where int() would leave it symbolic.
        key, error = _pack(
            index(heads),
            None if kv_heads is None else index(kv_heads),
            index(head_dim_qk),  # type: ignore[arg-type]  # None: TypeError, while tracing
            None if head_dim_v is None else index(head_dim_v),
            index(window_size[0]),
            index(window_size[1]),
            index(page_size),
            index(num_splits),
            index(cp_size),
            True if softcap else False,  # noqa: SIM210  # a float may be symbolic, a branch is not
            True if dropout_p else False,  # noqa: SIM210
            layout,
            True if causal else False,  # noqa: SIM210  # may be a comparison of symbolic lengths
            attn_bias,
            attn_mask,
            alibi_slopes,
            sinks,
            features,
        )
        if error is not None:
            raise ValueError(error)
        if not tracing:
            _core.validate(key, batch, seqlen_q, seqlen_k)
        self._value = (key, batch, seqlen_q, seqlen_k)

    @property
    def key(self) -> bytes:
        """All but the lengths, packed."""
        return self._value[0]

    @property
    def batch(self) -> int:
        """Sequences."""
        return self._value[1]

    @property
    def seqlen_q(self) -> int:
        """The longest query length."""
        return self._value[2]

    @property
    def seqlen_k(self) -> int:
        """The longest key length."""
        return self._value[3]

    @classmethod
    def of(
        cls,
        q: Any,
        k: Any,
        v: Any,
        *,
        layout: str = "bshd",
        causal: bool = False,
        align: str = "bottom_right",
        window_size: tuple[int, int] = (-1, -1),
        attn_bias: Any = None,
        attn_mask: Any = None,
        alibi_slopes: Any = None,
        softcap: float = 0.0,
        sinks: Any = None,
        scale: float | None = None,
        dropout_p: float = 0.0,
        dropout_seed: Any = None,
        seqlens_q: Any = None,
        seqlens_k: Any = None,
        cu_seqlens_q: Any = None,
        cu_seqlens_k: Any = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        return_lse: bool = False,
        lse_grad: bool = False,
    ) -> Problem:
        """The problem of a call of `attention` with these tensors and arguments (its keywords; see there).

        Only shapes, dtypes and requires_grad are read, never data. A ragged batch (thd) without max_seqlen_* is bounded
        by its tokens. `scale` and `dropout_seed` decide nothing.
        """
        if layout not in _LAYOUTS:
            raise ValueError(f"layout: got {layout!r}, expected one of {', '.join(_LAYOUTS)}")
        rank = len(layout)
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if len(tensor.shape) != rank:
                raise ValueError(f"{name}: rank {len(tensor.shape)}, need {rank} for layout {layout!r}")
        ragged = layout == "thd"
        if ragged and (cu_seqlens_q is None or cu_seqlens_k is None):
            raise ValueError("cu_seqlens_q and cu_seqlens_k: missing, expected int32 [batch + 1] each for layout 'thd'")
        heads_axis = layout.index("h")
        sequence_axis = layout.index("t" if ragged else "s")
        lengths_q, lengths_k = (cu_seqlens_q, cu_seqlens_k) if ragged else (seqlens_q, seqlens_k)
        tensors = (q, k, v, attn_bias, sinks)
        return cls(
            batch=cu_seqlens_q.shape[0] - 1 if ragged else q.shape[layout.index("b")],
            heads=q.shape[heads_axis],
            kv_heads=k.shape[heads_axis],
            seqlen_q=q.shape[sequence_axis] if max_seqlen_q is None else max_seqlen_q,
            seqlen_k=k.shape[sequence_axis] if max_seqlen_k is None else max_seqlen_k,
            head_dim=q.shape[-1],
            head_dim_v=v.shape[-1],
            dtype=q.dtype,
            layout=layout,
            causal=causal,
            align=align,
            window_size=window_size,
            softcap=softcap,
            dropout_p=dropout_p,
            attn_bias=None if attn_bias is None else tuple([1 if n == 1 else 2 for n in attn_bias.shape]),
            bias_requires_grad=any(t is not None and t.requires_grad for t in (attn_bias, attn_mask)),
            bias_float32=attn_bias is not None
            and str(attn_bias.dtype) == "torch.float32"
            and q.dtype != attn_bias.dtype,
            attn_mask=None if attn_mask is None else "boolean" if str(attn_mask.dtype) == "torch.bool" else "additive",
            alibi_slopes=alibi_slopes is not None,
            sinks=sinks is not None,
            training=_gradients_wanted(tensors),
            padding=lengths_q is not None or lengths_k is not None,
            same_lengths=lengths_q is not None and lengths_q is lengths_k,
            return_lse=return_lse or lse_grad,
            lse_grad=lse_grad,
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return {
            "batch": self.batch,
            "seqlen_q": self.seqlen_q,
            "seqlen_k": self.seqlen_k,
            **_core.features_dict(self.key),
        }

    def to_json(self) -> str:
        """JSON text of the fields that differ from a Problem's defaults, and the sizes."""
        return json.dumps(self._stated())

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Problem:
        """From `to_dict`'s fields, or some of them, with the constructor's defaults.

        Raises:
            ValueError, TypeError: for a field that is missing or unknown, or a value not allowed.
        """
        rest = dict(values)
        if "head_dim" in rest:
            rest.setdefault("head_dim_qk", rest.pop("head_dim"))
        for name in ("heads", "seqlen_q", "head_dim_qk"):
            if name not in rest:
                raise ValueError(f"{name}: missing, expected an integer")
        for name, default in (("batch", 1), ("seqlen_k", rest["seqlen_q"])):
            rest.setdefault(name, default)
        for name, same in (("kv_heads", "heads"), ("head_dim_v", "head_dim_qk")):
            rest.setdefault(name, rest[same])
        lengths = {name: rest.pop(name) for name in ("batch", "seqlen_q", "seqlen_k")}
        for name, length in lengths.items():
            check_integer(name, length)
        for name in rest:
            if not isinstance(name, str):
                raise ValueError(f"problem: got the key {name!r}, expected the name of a field")
        problem = problem_of_key(_core.pack_features(rest), **lengths)
        _core.validate(problem.key, problem.batch, problem.seqlen_q, problem.seqlen_k)
        return problem

    @classmethod
    def from_json(cls, text: str) -> Problem:
        """From `to_json`'s text."""
        return cls.from_dict(read_object(text, "problem"))

    def _stated(self) -> dict[str, Any]:
        default = _core.features_dict(_DEFAULT)
        sizes = ("heads", "kv_heads", "head_dim_qk", "head_dim_v", "dtype", "layout")
        return {
            name: value
            for name, value in self.to_dict().items()
            if name not in default or name in sizes or value != default[name]
        }

    def __getattr__(self, name: str) -> Any:
        # The fields are properties, made below.
        raise AttributeError(f"Problem has no field {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Problem.from_dict, (self.to_dict(),)  # by name, so that another release reads it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return f"Problem({', '.join(f'{name}={value!r}' for name, value in self._stated().items())})"


def _gradients_wanted(tensors: tuple[Any, ...]) -> bool:
    """Grad mode is on and one of these wants a gradient."""
    torch = sys.modules["torch"]
    return torch.is_grad_enabled() and any([t is not None and t.requires_grad for t in tensors])  # noqa: C419  # traced


# The layouts that `attention` takes; the letters are the dimensions of q, k and v in order.
_LAYOUTS = ("bshd", "sbhd", "bhsd", "thd")

FIELDS = frozenset(_core.features_dict(_DEFAULT))
value_class(Problem, FIELDS, lambda problem, name: _field(problem._value[0], name))


def problem_of_key(key: bytes, batch: int, seqlen_q: int, seqlen_k: int) -> Problem:
    """A Problem around packed features."""
    problem = object.__new__(Problem)
    problem._value = (key, batch, seqlen_q, seqlen_k)
    return problem
