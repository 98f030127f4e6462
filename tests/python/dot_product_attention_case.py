# SPDX-License-Identifier: Apache-2.0
"""A call of DotProductAttention with its float64 reference, and what its tests share.

The reference is written from the specification of TransformerEngine's module alone: row by row,
over the keys that a row sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from cynosure import dot_product_attention

DotProductAttention: Any = dot_product_attention.DotProductAttention

DENSE = ("sbhd", "bshd")

# What each mask name means: (causal, the diagonal lies bottom right; None: as asked, bottom right by default, padding).
MEANING = {
    "no_mask": (False, None, False),
    "padding": (False, None, True),
    "causal": (True, False, False),
    "padding_causal": (True, False, True),
    "causal_bottom_right": (True, True, False),
    "padding_causal_bottom_right": (True, True, True),
    "arbitrary": (False, None, False),
}
PADDED = [name for name, meaning in MEANING.items() if meaning[2]]


@dataclass
class Case:
    """One call, in [batch, sequence, heads, dim] and float64, and what is asked of it."""

    mask: str = "no_mask"
    lengths_q: tuple[int, ...] = (5, 5)
    lengths_k: tuple[int, ...] = (7, 7)
    heads: int = 4
    groups: int = 2
    dim: int = 8
    dim_v: int = 6
    window: tuple[int, int] | None = None
    bottom_right: bool | None = None
    scale: float | None = None
    softmax: str = "vanilla"
    bias_type: str = "no_bias"
    bias: Any = None
    slopes: Any = None
    hidden: Any = None  # of "arbitrary": True = masked out
    leaves: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        def leaf(*shape: int) -> Any:
            return torch.randn(*shape, dtype=torch.float64).requires_grad_()

        batch, seqlen_q, seqlen_k = len(self.lengths_q), max(self.lengths_q), max(self.lengths_k)
        self.leaves = {
            "q": leaf(batch, seqlen_q, self.heads, self.dim),
            "k": leaf(batch, seqlen_k, self.groups, self.dim),
            "v": leaf(batch, seqlen_k, self.groups, self.dim_v),
        }
        if self.bias is not None:
            self.leaves["bias"] = leaf(*self.bias)
        if self.softmax == "learnable":
            self.leaves["sink"] = leaf(self.heads)
        self.cotangent = torch.randn(batch, seqlen_q, self.heads * self.dim_v, dtype=torch.float64)

    def sees(self, b: int, h: int, i: int, j: int) -> bool:
        causal, bottom_right, padding = MEANING[self.mask]
        if bottom_right is None:
            bottom_right = self.bottom_right is not False
        length_q, length_k = (
            (self.lengths_q[b], self.lengths_k[b]) if padding else (max(self.lengths_q), max(self.lengths_k))
        )
        if i >= length_q or j >= length_k:
            return False
        if self.hidden is not None:
            full = self.hidden.expand(len(self.lengths_q), self.heads, max(self.lengths_q), max(self.lengths_k))
            if bool(full[b, h, i, j]):
                return False
        distance = j - i - (length_k - length_q if bottom_right else 0)
        left, right = self.window or (-1, -1)
        return not (
            (causal and distance > 0)
            or (left >= 0 and distance < -left)
            or (right >= 0 and not causal and distance > right)
        )

    def reference(self) -> Any:
        """The output, row by row over the keys that it sees."""
        q, k, v = self.leaves["q"], self.leaves["k"], self.leaves["v"]
        scale = 1 / math.sqrt(self.dim) if self.scale is None else self.scale
        slopes = self.slopes
        if self.bias_type == "alibi" and slopes is None:
            slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / self.heads) for h in range(self.heads)])
        rows = []
        for b in range(q.shape[0]):
            for i in range(q.shape[1]):
                for h in range(self.heads):
                    rows.append(self.row(b, i, h, q, k, v, scale, slopes))
        return torch.stack(rows).reshape(q.shape[0], q.shape[1], self.heads * self.dim_v)

    def row(self, b: int, i: int, h: int, q: Any, k: Any, v: Any, scale: float, slopes: Any) -> Any:
        g = h // (self.heads // self.groups)
        seen = [j for j in range(k.shape[1]) if self.sees(b, h, i, j)]
        if not seen:
            return torch.zeros(self.dim_v, dtype=torch.float64)
        scores = []
        offset = 0
        if MEANING[self.mask][1] is not False and self.bottom_right is not False:
            padding = MEANING[self.mask][2]
            offset = self.lengths_k[b] - self.lengths_q[b] if padding else k.shape[1] - q.shape[1]
        for j in seen:
            score = q[b, i, h] @ k[b, j, g]
            if self.bias is not None:
                at = [min(size - 1, want) for size, want in zip(self.bias, (b, h, i, j), strict=True)]
                bias = self.leaves["bias"][tuple(at)]
                score = (score + bias) * scale if self.bias_type == "pre_scale_bias" else score * scale + bias
            else:
                score = score * scale
            if slopes is not None:
                score = score - float(slopes[..., h][b] if slopes.dim() == 2 else slopes[h]) * abs(j - i - offset)
            scores.append(score)
        extra = {"vanilla": [], "off-by-one": [torch.zeros((), dtype=torch.float64)]}.get(self.softmax)
        p = torch.softmax(torch.stack(scores + ([self.leaves["sink"][h]] if extra is None else extra)), 0)
        return sum((p[n] * v[b, j, g] for n, j in enumerate(seen)), torch.zeros(self.dim_v, dtype=torch.float64))

    # --- the same call, of the module

    def module(self, layout: str, **options: Any) -> Any:
        made = DotProductAttention(
            self.heads,
            (self.dim, self.dim_v),
            num_gqa_groups=self.groups,
            qkv_format=layout,
            attn_mask_type=self.mask,
            window_size=self.window,
            bottom_right_diagonal=self.bottom_right,
            softmax_scale=self.scale,
            softmax_type=self.softmax,
            attention_type="self" if self.lengths_q == self.lengths_k else "cross",
            **options,
        )
        if self.softmax == "learnable":
            made = made.double()
            with torch.no_grad():
                made.softmax_offset.copy_(self.leaves["sink"])
        return made

    def inputs(self, layout: str) -> tuple[list[Any], dict[str, Any]]:
        """Positional and named arguments; padding by masks."""
        q, k, v = (to_layout(self.leaves[name], layout, self.lengths(name)) for name in "qkv")
        named: dict[str, Any] = {}
        if layout == "thd":
            named = {
                "cu_seqlens_q": cumulative(self.lengths_q),
                "cu_seqlens_kv": cumulative(self.lengths_k),
                "max_seqlen_q": max(self.lengths_q),
                "max_seqlen_kv": max(self.lengths_k),
            }
        elif MEANING[self.mask][2]:
            masks = padding_mask(self.lengths_q), padding_mask(self.lengths_k)
            named["attention_mask"] = masks[0] if self.lengths_q == self.lengths_k else masks
        elif self.mask == "arbitrary":
            named["attention_mask"] = self.hidden
        if self.bias_type != "no_bias":
            named.update(core_attention_bias_type=self.bias_type, core_attention_bias=self.leaves.get("bias"))
            named.update(alibi_slopes=self.slopes)
        return [q, k, v], named

    def lengths(self, name: str) -> tuple[int, ...]:
        return self.lengths_q if name == "q" else self.lengths_k

    def check(self, layout: str, tolerance: float = 1e-9, dtype: Any = torch.float64, **named: Any) -> None:
        """Output and every gradient of the module against the reference; `named` goes over the inputs."""
        module = self.module(layout).to(dtype)
        positional, rest = self.inputs(layout)
        rest.update(named)
        if isinstance(rest.get("core_attention_bias"), torch.Tensor):
            rest["core_attention_bias"] = rest["core_attention_bias"].to(dtype)
        out = module(*(tensor.to(dtype) for tensor in positional), **rest)
        assert out.dtype == dtype
        cotangent = to_layout(self.cotangent, layout, self.lengths_q)
        expected = self.reference()
        close(out, to_layout(expected, layout, self.lengths_q), tolerance, "output")
        names = [name for name in self.leaves if name != "sink"]
        leaves = [self.leaves[name] for name in names] + [module.softmax_offset] * (self.softmax == "learnable")
        found = torch.autograd.grad((out * cotangent).sum(), leaves)
        wanted = torch.autograd.grad((expected * self.cotangent).sum(), list(self.leaves.values()))
        for name, one, other in zip(self.leaves, found, wanted, strict=True):
            close(one, other, tolerance, f"gradient of {name}")


def close(found: Any, wanted: Any, tolerance: float, what: str) -> None:
    """Equal but for rounding."""
    torch.testing.assert_close(
        found.double(), wanted, rtol=tolerance, atol=tolerance, msg=f"{what}: {found}, expected {wanted}"
    )


def cumulative(lengths: tuple[int, ...]) -> Any:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def padding_mask(lengths: tuple[int, ...]) -> Any:
    """True = masked out."""
    return torch.arange(max(lengths))[None, None, None, :] >= torch.tensor(lengths)[:, None, None, None]


def to_layout(tensor: Any, layout: str, lengths: tuple[int, ...]) -> Any:
    """From [batch, sequence, ...]; thd takes the valid tokens."""
    if layout == "thd":
        return torch.cat([tensor[b, :length] for b, length in enumerate(lengths)])
    return tensor.transpose(0, 1) if layout == "sbhd" else tensor


RAGGED: dict[str, Any] = {"lengths_q": (5, 2, 0, 3), "lengths_k": (4, 7, 3, 0)}


class Tracker:
    """A random state of its own, as Megatron's tracker has, and how often it was entered."""

    def __init__(self) -> None:
        self.forks = 0
        self.state = torch.Generator().manual_seed(11).get_state()

    @contextmanager
    def fork(self) -> Iterator[None]:
        self.forks += 1
        before = torch.get_rng_state()
        torch.set_rng_state(self.state)
        try:
            yield
        finally:
            self.state = torch.get_rng_state()
            torch.set_rng_state(before)


def dropout_module(**options: Any) -> Any:
    return DotProductAttention(2, 8, attention_dropout=0.5, attn_mask_type="no_mask", qkv_format="bshd", **options)


# Calls of a module of 4 heads of dim 8, float32
X = torch.zeros(2, 5, 4, 8)
CALL: dict[str, Any] = {"query_layer": X, "key_layer": X, "value_layer": X}
T = torch.zeros(7, 4, 8)
CU = torch.tensor([0, 3, 7], dtype=torch.int32)
RAGGED_CALL: dict[str, Any] = {
    "query_layer": T,
    "key_layer": T,
    "value_layer": T,
    "qkv_format": "thd",
    "attn_mask_type": "padding",
    "cu_seqlens_q": CU,
    "cu_seqlens_kv": CU,
}
PADDING: dict[str, Any] = {"attn_mask_type": "padding"}
HOLES = torch.tensor([[False, True, True, True, True], [True, False, False, False, False]])[:, None, None, :]
