# SPDX-License-Identifier: Apache-2.0
"""Attention calls described by value, the tensors they are made of, and samplers over them.

A `Case` says everything about a call in plain values, so that a failing one can be pasted into a test. `make` turns it
into `Inputs`: leaf tensors, and how the arguments are viewed from them, so that broadcast, packed and strided inputs
are exactly that, and gradients are those of the leaves.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


@dataclass(frozen=True)
class Case:
    """One call. A broadcast shape is four letters, as in "1hss": each is 1 or full; the last is 1 in masks alone.

    lengths: "full"; "some", "empty" (some are 0), "q_only", "k_only" (padded layouts: the other side is whole);
    in "thd" also "tail" (tokens behind the last sequence). strides: how q, k and v lie in memory, see `_STRIDES`.
    poison: NaN and infinity in every place that nobody attends. lse: "", "returned" or "grad".
    """

    batch: int = 2
    heads: int = 2
    kv_heads: int = 2
    sq: int = 19
    sk: int = 19
    dqk: int = 16
    dv: int = 16
    dtype: str = "float32"
    layout: str = "bshd"
    causal: bool = False
    align: str = "bottom_right"
    window: tuple[int, int] = (-1, -1)
    bias: str = ""
    bias_float32: bool = False
    bias_grad: bool = True
    mask: str = ""  # "bool:1hss", "additive:b1ss" (with -inf in places)
    mask_grad: bool = False
    masked_rows: bool = False  # some rows of the mask attend nothing
    alibi: str = ""  # "h" or "bh"
    softcap: float = 0.0
    sinks: str = ""  # "same" (dtype) or "float32"
    scale: float | None = None
    dropout: float = 0.0
    lengths: str = "full"
    strides: str = "plain"
    poison: bool = False
    lse: str = ""
    gradients: bool = True
    seed: int = 0

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in self._stated()).replace(" ", "") or "plain"

    def __repr__(self) -> str:
        return f"Case({', '.join(f'{name}={value!r}' for name, value in self._stated())})"

    def _stated(self) -> list[tuple[str, Any]]:
        """The values that are not a plain case's."""
        pairs = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]
        return [(name, value) for name, value, default in pairs if value != default]

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def ragged(self) -> bool:
        return self.layout == "thd"


@dataclass
class Inputs:
    """Tensors of a case. `leaves` own the memory; `arguments(leaves)` views them as the call's arguments."""

    case: Case
    leaves: dict[str, Tensor]
    views: Callable[[dict[str, Tensor]], dict[str, Any]]
    lengths_q: list[int]
    lengths_k: list[int]
    plain: dict[str, Any] = field(default_factory=dict)  # arguments that are no leaves
    dout: Tensor = field(default_factory=lambda: torch.empty(0))
    dlse: Tensor = field(default_factory=lambda: torch.empty(0))

    def arguments(self, leaves: dict[str, Tensor] | None = None) -> dict[str, Any]:
        """All arguments of the call, q, k and v included."""
        return {**self.views(self.leaves if leaves is None else leaves), **self.plain}

    def copy(self, dtype: torch.dtype | None = None, device: str | torch.device | None = None) -> dict[str, Tensor]:
        """Fresh leaves of the same values, strides and requires_grad, perhaps in another dtype."""
        return {
            name: torch.empty_strided(x.shape, x.stride(), dtype=dtype or x.dtype, device=device or x.device)
            .copy_(x.detach())
            .requires_grad_(x.requires_grad)
            for name, x in self.leaves.items()
        }


# --- geometry: what attends what


def offset(case: Case, rows: int, keys: int) -> int:
    """Column that the diagonal of row 0 lies on."""
    return keys - rows if case.align == "bottom_right" else 0


def band(case: Case, rows: int, keys: int) -> Tensor:
    """[rows, keys]: what the causal mask and the window leave."""
    left, right = case.window
    if case.causal:
        right = 0
    distance = torch.arange(keys)[None, :] - (torch.arange(rows)[:, None] + offset(case, rows, keys))
    kept = torch.ones(rows, keys, dtype=torch.bool)
    if left >= 0:
        kept &= distance >= -left
    if right >= 0:
        kept &= distance <= right
    return kept


def cut(term: Tensor, b: int, rows: int, keys: int) -> Tensor:
    """The part of a broadcast [B, H, Sq, Skv] term that concerns one sequence: [1 or H, 1 or rows, 1 or keys]."""
    term = term[b if term.shape[0] > 1 else 0]
    term = term[:, :rows] if term.shape[1] > 1 else term
    return term[..., :keys] if term.shape[-1] > 1 else term


def attended(case: Case, arguments: dict[str, Any], b: int, rows: int, keys: int) -> Tensor:
    """[H, rows, keys] of sequence b: which pairs count."""
    kept = band(case, rows, keys).expand(case.heads, rows, keys)
    mask = arguments.get("attn_mask")
    if mask is not None:
        part = cut(mask.detach().cpu(), b, rows, keys)
        kept = kept & (part if part.dtype == torch.bool else part != float("-inf"))
    bias = arguments.get("attn_bias")
    if bias is not None:
        kept = kept & (cut(bias.detach().cpu(), b, rows, keys) != float("-inf"))
    return kept


def by_group(case: Case, kept: Tensor) -> Tensor:
    """[H, rows, keys] as [Hkv, group * rows, keys]."""
    group = case.heads // case.kv_heads
    return kept.reshape(case.kv_heads, group, *kept.shape[1:]).flatten(1, 2)


def rows_of(case: Case, x: Tensor, lengths: list[int], b: int) -> Tensor:
    """The valid tokens of sequence b of q, k, v or out as [H, n, D], a view."""
    n = lengths[b]
    if case.layout == "thd":
        start = sum(lengths[:b])
        return x[start : start + n].transpose(0, 1)
    if case.layout == "bshd":
        return x[b, :n].transpose(0, 1)
    if case.layout == "sbhd":
        return x[:n, b].transpose(0, 1)
    return x[b, :, :n]


def lse_rows_of(case: Case, lse: Tensor, lengths: list[int], b: int) -> Tensor:
    """The valid rows of sequence b of an LSE as [H, n], a view."""
    if case.layout == "thd":
        start = sum(lengths[:b])
        return lse[:, start : start + lengths[b]]
    return lse[b, :, : lengths[b]]


# --- making tensors


def _shape(case: Case, length: int, heads: int, dim: int, tokens: int) -> tuple[int, ...]:
    return {
        "bshd": (case.batch, length, heads, dim),
        "sbhd": (length, case.batch, heads, dim),
        "bhsd": (case.batch, heads, length, dim),
        "thd": (tokens, heads, dim),
    }[case.layout]


def _randn(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype)


_Shape = tuple[int, ...]
_Made = tuple[Tensor, Callable[[Tensor], Tensor]]  # a leaf, and how the argument is viewed from it
_Maker = Callable[[_Shape, torch.dtype, torch.Generator], _Made]


def _plain(shape: _Shape, dtype: torch.dtype, g: torch.Generator) -> _Made:
    return _randn(shape, dtype, g), lambda x: x


def _transposed(shape: _Shape, dtype: torch.dtype, g: torch.Generator) -> _Made:
    """The dimensions before the last in reverse order in memory."""
    order = [*reversed(range(len(shape) - 1)), len(shape) - 1]
    return _randn(tuple(shape[i] for i in order), dtype, g), lambda x: x.permute(order)


def _odd(shape: _Shape, dtype: torch.dtype, g: torch.Generator) -> _Made:
    """Cut out of a larger tensor: strides that are multiples of nothing, a start that is aligned to nothing."""
    larger = tuple(n + 1 + 2 * (i == len(shape) - 1) for i, n in enumerate(shape))
    inner = tuple(slice(1, n + 1) for n in shape)
    return _randn(larger, dtype, g), lambda x: x[inner]


def _last(shape: _Shape, dtype: torch.dtype, g: torch.Generator) -> _Made:
    """The last dimension is not contiguous."""
    swapped = (*shape[:-2], shape[-1], shape[-2])
    return _randn(swapped, dtype, g), lambda x: x.transpose(-1, -2)


def _expanded(axis: int) -> _Maker:
    def make_one(shape: _Shape, dtype: torch.dtype, g: torch.Generator) -> _Made:
        one = tuple(min(n, 1) if i == axis else n for i, n in enumerate(shape))
        return _randn(one, dtype, g), lambda x: x.expand(shape)

    return make_one


# How q, k and v (and the gradient of the output) lie in memory. "packed" (one tensor) and "same" (q is k is v) are made
# in `make`; "expanded" has stride 0 over the heads, "repeated" over the first dimension.
_STRIDES: dict[str, Callable[[Case], _Maker]] = {
    "plain": lambda case: _plain,
    "transposed": lambda case: _transposed,
    "odd": lambda case: _odd,
    "last": lambda case: _last,
    "expanded": lambda case: _expanded(case.layout.index("h")),
    "repeated": lambda case: _expanded(0),
    "packed": lambda case: _plain,
    "same": lambda case: _plain,
}
STRIDES = tuple(_STRIDES)


def _lengths(case: Case, longest: int, rng: random.Random) -> list[int]:
    kind = case.lengths
    if kind == "full":
        return [longest] * case.batch
    found = [rng.randint(min(1, longest), longest) for _ in range(case.batch)]
    if kind == "empty" and case.batch:
        found[rng.randrange(case.batch)] = 0
        if case.batch > 2:
            found[-1] = 0
    if found and kind != "empty":
        found[rng.randrange(case.batch)] = longest
    return found


def _broadcast(case: Case, letters: str) -> tuple[int, int, int, int]:
    full = (case.batch, case.heads, case.sq, case.sk)
    b, h, q, k = (1 if letter == "1" else n for letter, n in zip(letters, full, strict=True))
    return b, h, q, k


def _cumulative(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def _mask(case: Case, g: torch.Generator) -> Tensor:
    kind, letters = case.mask.split(":")
    shape = _broadcast(case, letters)
    keep = torch.rand(shape, generator=g) < 0.75
    if case.masked_rows and shape[2]:
        keep[..., torch.arange(shape[2]) % 3 == 1, :] = False
    if case.poison and shape[3] > 2:
        keep[..., torch.arange(shape[3]) % 4 == 2] = False  # columns that nobody attends
    if kind == "bool":
        return keep
    additive = torch.randn(shape, generator=g)
    return additive.masked_fill(~keep, float("-inf")).to(case.torch_dtype)


def make(case: Case, device: str = "cpu") -> Inputs:
    """The tensors of a case; equal cases give equal values."""
    g = torch.Generator().manual_seed(case.seed)
    rng = random.Random(case.seed)
    lengths_q = _lengths(replace(case, lengths="full") if case.lengths == "k_only" else case, case.sq, rng)
    lengths_k = _lengths(replace(case, lengths="full") if case.lengths == "q_only" else case, case.sk, rng)
    if case.strides in ("packed", "same") and case.ragged:
        lengths_k = list(lengths_q)
    tail = 3 if case.lengths == "tail" else 0
    tokens_q, tokens_k = sum(lengths_q) + tail, sum(lengths_k) + tail
    dtype = case.torch_dtype

    shapes = {
        "q": _shape(case, case.sq, case.heads, case.dqk, tokens_q),
        "k": _shape(case, case.sk, case.kv_heads, case.dqk, tokens_k),
        "v": _shape(case, case.sk, case.kv_heads, case.dv, tokens_k),
    }
    maker = _STRIDES[case.strides](case)
    leaves: dict[str, Tensor] = {}
    parts: dict[str, Callable[[dict[str, Tensor]], Tensor]] = {}
    head_axis = case.layout.index("h")
    if case.strides == "same":
        leaves["qkv"] = _randn(shapes["q"], dtype, g)
        parts = {name: lambda x: x["qkv"] for name in "qkv"}
    elif case.strides == "packed":
        heads = [case.heads, case.kv_heads, case.kv_heads]
        packed = tuple(sum(heads) if i == head_axis else n for i, n in enumerate(shapes["q"]))
        leaves["qkv"] = _randn(packed, dtype, g)
        starts = dict(zip("qkv", itertools.accumulate([0, *heads]), strict=False))
        parts = {
            name: lambda x, start=starts[name], n=n: x["qkv"].narrow(head_axis, start, n)  # type: ignore[misc]
            for name, n in zip("qkv", heads, strict=True)
        }
    else:
        for name, shape in shapes.items():
            of_name = _plain if case.strides in ("expanded", "repeated") and name == "q" else maker
            leaves[name], view = of_name(shape, dtype, g)
            parts[name] = lambda x, name=name, view=view: view(x[name])  # type: ignore[misc]

    if case.bias:
        bias = torch.randn(_broadcast(case, case.bias), generator=g)
        leaves["attn_bias"] = bias.to(torch.float32 if case.bias_float32 else dtype)
    if case.mask:
        leaves["attn_mask"] = _mask(case, g)
    if case.sinks:
        leaves["sinks"] = torch.randn(case.heads, generator=g).to(torch.float32 if case.sinks == "float32" else dtype)

    plain: dict[str, Any] = {
        "layout": case.layout,
        "causal": case.causal,
        "align": case.align,
        "window_size": case.window,
        "softcap": case.softcap,
        "scale": case.scale,
        "dropout_p": case.dropout,
    }
    if case.alibi:
        slopes_shape = (case.heads,) if case.alibi == "h" else (case.batch, case.heads)
        plain["alibi_slopes"] = torch.rand(slopes_shape, generator=g).to(device)
    if case.dropout:
        plain["dropout_seed"] = torch.tensor([case.seed + 1234, 5 * case.seed], dtype=torch.int64, device=device)
    if case.ragged:
        plain["cu_seqlens_q"] = _cumulative(lengths_q).to(device)
        plain["cu_seqlens_k"] = _cumulative(lengths_k).to(device)
        if case.mask or case.bias or rng.random() < 0.5:
            plain["max_seqlen_q"], plain["max_seqlen_k"] = case.sq, case.sk
    else:
        if case.lengths not in ("full", "k_only"):
            plain["seqlens_q"] = torch.tensor(lengths_q, dtype=torch.int32, device=device)
        if case.lengths not in ("full", "q_only"):
            plain["seqlens_k"] = torch.tensor(lengths_k, dtype=torch.int32, device=device)
    if case.lse:
        plain["return_lse"], plain["lse_grad"] = True, case.lse == "grad"

    def views(x: dict[str, Tensor]) -> dict[str, Any]:
        found: dict[str, Any] = {name: part(x) for name, part in parts.items()}
        found.update((name, x[name]) for name in ("attn_bias", "attn_mask", "sinks") if name in x)
        return found

    inputs = Inputs(case, leaves, views, lengths_q, lengths_k, plain)
    out_shape = _shape(case, case.sq, case.heads, case.dv, tokens_q)
    lse_shape = (case.heads, tokens_q) if case.ragged else (case.batch, case.heads, case.sq)
    dout, view = maker(out_shape, dtype, g)
    inputs.dout = view(dout)
    inputs.dlse = torch.randn(lse_shape, generator=g)
    if case.poison and case.strides in ("plain", "transposed", "odd", "last"):
        _poison(inputs)
    for name in leaves:
        leaves[name] = leaves[name].to(device)
        wanted = {"attn_bias": case.bias_grad, "attn_mask": case.mask_grad}.get(name, True)
        leaves[name].requires_grad_(case.gradients and wanted and leaves[name].is_floating_point())
    inputs.dout, inputs.dlse = inputs.dout.to(device), inputs.dlse.to(device)
    return inputs


def _poison(inputs: Inputs) -> None:
    """NaN and infinity where nobody attends: keys, values, queries; the output's gradient beyond each length."""
    case, arguments = inputs.case, inputs.arguments()
    bad = itertools.cycle([float("nan"), float("inf"), float("-inf")])
    free: dict[str, Tensor] = {name: torch.ones_like(arguments[name][..., 0], dtype=torch.bool) for name in "qkv"}
    beyond = torch.ones_like(inputs.dout[..., 0], dtype=torch.bool)
    for b in range(case.batch):
        rows, keys = inputs.lengths_q[b], inputs.lengths_k[b]
        kept = attended(case, arguments, b, rows, keys)
        rows_of(case, beyond[..., None], inputs.lengths_q, b).zero_()
        rows_of(case, free["q"][..., None], inputs.lengths_q, b).copy_(~kept.any(2)[..., None])
        used = by_group(case, kept).any(1)
        for name in "kv":
            rows_of(case, free[name][..., None], inputs.lengths_k, b).copy_(~used[..., None])
    for name in "qkv":
        arguments[name].detach()[free[name]] = next(bad)
    inputs.dout[beyond] = next(bad)


# --- samplers

_SHAPES: tuple[dict[str, int], ...] = (
    {},
    {"sq": 33, "sk": 7},
    {"sq": 7, "sk": 33},
    {"sq": 1, "sk": 1},
    {"sq": 1, "sk": 70},
    {"sq": 70, "sk": 1},
    {"sq": 130, "sk": 131},
    {"sq": 64, "sk": 64},
    {"sq": 0, "sk": 5},
    {"sq": 5, "sk": 0},
    {"batch": 0},
    {"batch": 1},
    {"batch": 5, "sq": 9, "sk": 12},
)
_HEADS = ((2, 2), (1, 1), (3, 1), (6, 2), (5, 1), (14, 2))
_HEAD_DIMS = (
    (16, 16),
    (64, 64),
    (8, 8),
    (1, 1),
    (3, 3),
    (128, 128),
    (40, 9),
    (5, 24),
    (96, 64),
    (192, 128),
    (256, 256),
    (257, 257),
    (320, 320),
    (64, 257),
)
BROADCASTS = ("bhss", "1hss", "b1ss", "11ss", "bh1s", "1h1s", "b11s", "111s")

# Every feature's values; the first of each is what most calls have.
FEATURES: dict[str, tuple[dict[str, Any], ...]] = {
    "dtype": tuple({"dtype": name} for name in DTYPES),
    "layout": tuple({"layout": name} for name in ("bshd", "sbhd", "bhsd", "thd")),
    "shape": _SHAPES,
    "heads": tuple({"heads": h, "kv_heads": kv} for h, kv in _HEADS),
    "head_dims": tuple({"dqk": dqk, "dv": dv} for dqk, dv in _HEAD_DIMS),
    "band": (
        {},
        {"causal": True},
        {"window": (4, 2)},
        {"window": (0, 0)},
        {"window": (-1, 5)},
        {"window": (6, -1)},
        {"causal": True, "window": (3, 0)},
        {"causal": True, "window": (5, -1)},
        {"causal": True, "window": (0, 0)},
        {"window": (1000, 1000)},
    ),
    "align": ({"align": "bottom_right"}, {"align": "top_left"}),
    "bias": (
        {},
        *({"bias": letters} for letters in BROADCASTS),
        {"bias": "1hss", "bias_float32": True},
        {"bias": "bhss", "bias_grad": False},
        {"alibi": "h"},
        {"alibi": "bh"},
    ),
    "mask": (
        {},
        *({"mask": f"bool:{letters}"} for letters in BROADCASTS),
        *({"mask": f"additive:{letters}"} for letters in ("bhss", "1hss", "b1ss", "111s")),
        {"mask": "additive:bhss", "mask_grad": True},
        {"mask": "additive:111s", "mask_grad": True},
        {"mask": "additive:1h1s", "mask_grad": True},
        {"mask": "bool:b1s1"},
        {"mask": "additive:11s1", "mask_grad": True},
    ),
    "masked_rows": ({}, {"masked_rows": True}),
    "softcap": ({}, {"softcap": 1.5}, {"softcap": 30.0}),
    "sinks": ({}, {"sinks": "same"}, {"sinks": "float32"}),
    "scale": ({}, {"scale": 0.3}, {"scale": -1.0}, {"scale": 0.0}),
    "dropout": ({}, {"dropout": 0.3}, {"dropout": 1.0}),
    "lengths": tuple({"lengths": kind} for kind in ("full", "some", "empty", "q_only", "k_only", "tail")),
    "strides": tuple({"strides": kind} for kind in STRIDES),
    "poison": ({}, {"poison": True}),
    "lse": tuple({"lse": kind} for kind in ("", "returned", "grad")),
    "gradients": ({}, {"gradients": False}),
}


def possible(values: dict[str, Any]) -> bool:
    """Whether these values of a case, others being free, go together."""
    case = replace(Case(), **values)
    given = values.__contains__
    if case.strides in ("packed", "same"):
        if case.sq != case.sk or case.dqk != case.dv:
            return False
        if case.strides == "same" and case.heads != case.kv_heads:
            return False
        if case.ragged and case.lengths in ("q_only", "k_only"):
            return False
        if case.poison:
            return False
    if case.strides in ("expanded", "repeated") and case.poison:
        return False
    if case.lengths == "tail" and given("layout") and not case.ragged:
        return False
    if case.masked_rows and given("mask") and not case.mask:
        return False
    if case.mask.startswith("additive") and given("dtype") and case.dtype == "float64" and case.bias_float32:
        return False
    # dropout of everything leaves nothing to compare that another feature could change
    return not (case.dropout == 1.0 and case.lse == "grad" and case.dtype == "float16")


def _settle(values: dict[str, Any], seed: int) -> Case:
    """The case; what only makes sense with something that is absent is dropped."""
    case = replace(Case(), **values, seed=seed)
    if not case.mask:
        case = replace(case, mask_grad=False, masked_rows=False)
    if case.lengths == "tail" and not case.ragged:
        case = replace(case, lengths="full")
    return case


def pairwise(seed: int = 0) -> list[Case]:
    """Cases in which every two values of two features meet (where they can), by a greedy choice."""
    rng = random.Random(seed)
    names = list(FEATURES)
    pairs: set[tuple[int, int, int, int]] = set()
    for a, b in itertools.combinations(range(len(names)), 2):
        for i, first in enumerate(FEATURES[names[a]]):
            for j, second in enumerate(FEATURES[names[b]]):
                if possible({**first, **second}):
                    pairs.add((a, i, b, j))
    cases: list[Case] = []
    while pairs:
        best: tuple[int, dict[int, int]] = (0, {})
        for start in rng.sample(sorted(pairs), min(3, len(pairs))):
            row = {start[0]: start[1], start[2]: start[3]}
            order = [n for n in range(len(names)) if n not in row]
            rng.shuffle(order)
            for n in order:
                row[n] = max(
                    range(len(FEATURES[names[n]])),
                    key=lambda i: (
                        possible(_values({**row, n: i}, names)),
                        sum(((m, v, n, i) if m < n else (n, i, m, v)) in pairs for m, v in row.items()),
                        i == 0,
                        rng.random(),
                    ),
                )
            if possible(_values(row, names)):
                met = sum((a, row[a], b, row[b]) in pairs for a, b in itertools.combinations(sorted(row), 2))
                best = max(best, (met, row), key=lambda found: found[0])
            else:
                pairs.discard(start)  # possible alone, in no whole case
        if best[0]:
            row = best[1]
            pairs -= {(a, row[a], b, row[b]) for a, b in itertools.combinations(sorted(row), 2)}
            cases.append(_settle(_values(row, names), len(cases)))
    return cases


def _values(row: dict[int, int], names: list[str]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for n in sorted(row):
        merged.update(FEATURES[names[n]][row[n]])
    return merged


def one_at_a_time() -> list[Case]:
    """The default case, and each value of each feature alone, in the two commonest dtypes."""
    found: dict[Case, None] = {}
    for dtype in ("float32", "bfloat16"):
        for values in itertools.chain.from_iterable(FEATURES.values()):
            merged = {"dtype": dtype, **values}
            if merged.get("lengths") == "tail":
                merged["layout"] = "thd"
            if merged.get("masked_rows"):
                merged["mask"] = "bool:bhss"
            found[_settle(merged, 7)] = None
    return list(found)


def edges() -> list[Case]:
    """Combinations that have gone wrong somewhere, or are at the limit of a definition."""
    found = []
    for align in ("bottom_right", "top_left"):
        aligned = Case(align=align)
        for sq, sk in ((5, 2), (2, 5), (1, 9), (9, 1), (6, 6)):
            sized = replace(aligned, sq=sq, sk=sk)
            found.append(replace(sized, causal=True, lse="grad"))
            for side in (0, 1, sk - 1, sk, sk + 1):
                found.append(replace(sized, window=(side, 0)))
                found.append(replace(sized, window=(-1, side)))
                found.append(replace(sized, window=(side, -1), causal=True))
        for lengths in ("some", "empty", "q_only", "k_only"):
            for layout in ("bshd", "sbhd", "bhsd", "thd"):
                padded = replace(aligned, batch=4, layout=layout, lengths=lengths, poison=True)
                found.append(replace(padded, sq=11, sk=17, causal=True, lse="grad"))
                found.append(replace(padded, sq=17, sk=11, window=(3, 1), sinks="same"))
    for dtype in ("float32", "bfloat16", "float16"):
        found += [
            Case(dtype=dtype, mask="bool:bhss", masked_rows=True, poison=True, sinks="same", lse="grad"),
            Case(dtype=dtype, mask="additive:b1ss", mask_grad=True, masked_rows=True, bias="1hss", softcap=2.0),
            Case(dtype=dtype, heads=7, kv_heads=1, sq=1, sk=129, dqk=128, dv=128),
            Case(dtype=dtype, heads=6, sq=150, sk=200, dqk=64, dv=64, causal=True, alibi="h", dropout=0.2),
            Case(dtype=dtype, layout="thd", batch=6, sq=40, sk=60, lengths="empty", causal=True, dropout=0.5),
        ]
    return [replace(case, seed=1000 + n) for n, case in enumerate(found)]


def random_case(rng: random.Random, largest: int = 70) -> Case:
    """Any case: each feature is on with its own chance, sizes are anything up to `largest`."""
    often = {"dtype": 0.7, "layout": 0.7, "heads": 0.5, "head_dims": 0.6, "band": 0.6, "align": 0.5}
    while True:
        values: dict[str, Any] = {}
        for name, choices in FEATURES.items():
            if rng.random() < often.get(name, 0.3):
                values.update(rng.choice(choices))
        if rng.random() < 0.7:
            values.update(sq=rng.randint(0, largest), sk=rng.randint(0, largest), batch=rng.randint(1, 4))
        if rng.random() < 0.3:
            values.update(dqk=rng.randint(1, 80), dv=rng.randint(1, 80))
        if rng.random() < 0.3 and "window" in values:
            values["window"] = (rng.randint(-1, largest), 0 if values.get("causal") else rng.randint(-1, largest))
        if possible(values):
            return _settle(values, rng.randrange(2**31))


def random_cases(count: int, seed: int, largest: int = 70) -> Iterator[Case]:
    rng = random.Random(seed)
    for _ in range(count):
        yield random_case(rng, largest)
