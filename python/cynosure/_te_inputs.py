# SPDX-License-Identifier: Apache-2.0
"""TransformerEngine's attention inputs in our terms: mask names, windows, packed tensors, lengths, gaps.

Everything here traces: names and flags are constants of the trace, data stays in tensors, and only `check_*` functions
look at lengths or data. Eager code calls those; the operator checks the same things in compiled code.
"""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from cynosure._constant import constant

FORMATS = ("sbhd", "bshd", "thd")
BIAS_TYPES = ("no_bias", "pre_scale_bias", "post_scale_bias", "alibi")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def refuse(name: str, got: str, expected: str) -> NoReturn:
    """The one form of our errors."""
    raise ValueError(f"{name}: got {got}, expected {expected}")


@constant
def warn(text: str) -> None:
    """A warning, at trace time in traced code."""
    warnings.warn(text, UserWarning, stacklevel=4)


# --- masks, diagonals, windows


class Mask(NamedTuple):
    """What a mask name stands for."""

    name: str
    causal: bool = False
    padding: bool = False
    bottom_right: bool | None = None  # where the diagonal lies; None: the caller may say


_MASKS = {
    mask.name: mask
    for mask in (
        Mask("no_mask"),
        Mask("padding", padding=True),
        Mask("causal", causal=True, bottom_right=False),
        Mask("padding_causal", causal=True, padding=True, bottom_right=False),
        Mask("causal_bottom_right", causal=True, bottom_right=True),
        Mask("padding_causal_bottom_right", causal=True, padding=True, bottom_right=True),
        Mask("arbitrary"),
    )
}
_ORDERS = {
    "causal_padding": "padding_causal",
    "causal_bottom_right_padding": "padding_causal_bottom_right",
    "causal_padding_bottom_right": "padding_causal_bottom_right",
}


def mask_of(name: Any) -> Mask:
    """The mask of a name; a comma is an underscore, and the words come in any order."""
    mask = _MASKS.get(name) if isinstance(name, str) else None
    if mask is None and isinstance(name, str):
        name_ = name.replace(",", "_")
        mask = _MASKS.get(_ORDERS.get(name_, name_))
    if mask is None:
        refuse("attn_mask_type", repr(name), f"one of {', '.join(_MASKS)}")
    return mask


def window_of(mask: Mask, window: Any) -> tuple[int, int]:
    """TransformerEngine's window for a mask: (-1, 0) or (left, 0) with a causal one, both -1 or both given without."""
    if window is None:
        return (-1, 0) if mask.causal else (-1, -1)
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        refuse("window_size", repr(window), "None or (left, right)")
    left, right = window[0], window[1]
    for side in (left, right):
        if isinstance(side, bool) or not isinstance(side, int):
            refuse("window_size", repr(window), "two ints")
    if mask.causal:
        if right == 0 and left >= -1:
            return left, 0
        if (right >= -1 and left >= 0) or left == right == -1:
            warn(f"window_size: got {(left, right)}, taken as {(left, 0)} because of attn_mask_type={mask.name!r}")
            return left, 0
        refuse("window_size", repr((left, right)), f"(-1, 0) or (left >= 0, 0) for attn_mask_type={mask.name!r}")
    if left == right == -1 or (left >= 0 and right >= 0):
        return left, right
    if left == -1 and right == 0:
        warn(f"window_size: got (-1, 0), taken as (-1, -1) because of attn_mask_type={mask.name!r}")
        return -1, -1
    refuse("window_size", repr((left, right)), f"(-1, -1) or both 0 or more for attn_mask_type={mask.name!r}")


def is_bottom_right(mask: Mask, asked: bool | None, stated: bool) -> bool:
    """Where the diagonal lies. A mask name that says so wins; `stated`: warn where the caller said otherwise."""
    if mask.bottom_right is None:
        return True if asked is None else asked
    if stated and asked is not None and asked != mask.bottom_right:
        warn(
            f"bottom_right_diagonal: got {asked}, taken as {mask.bottom_right} because of attn_mask_type={mask.name!r}"
        )
    return mask.bottom_right


# --- packed tensors


def unpack(
    query: Tensor | None, key: Tensor | None, value: Tensor | None, qkv: Tensor | None, kv: Tensor | None, dim: int,
    rank: int,
) -> tuple[Tensor | None, Tensor, Tensor]:  # fmt: skip
    """q, k and v as views of one tensor [..., 3 or 2, heads, head dim] (dim -3) or [..., heads, 3 or 2, head dim]."""
    if qkv is not None and kv is not None:
        refuse("qkv_layer", "a tensor together with kv_layer", "one of them")
    if dim not in (-3, -2):
        refuse("qkv_interleave_dim", repr(dim), "-3 or -2")
    name, packed, parts = ("qkv_layer", qkv, 3) if qkv is not None else ("kv_layer", kv, 2)
    taken = (("query_layer", query if parts == 3 else None), ("key_layer", key), ("value_layer", value))
    for other, tensor in taken:
        if tensor is not None:
            refuse(other, f"a tensor together with {name}", f"None, because {name} holds it")
    if not isinstance(packed, Tensor):
        raise TypeError(f"{name}: got {packed!r}, expected a tensor")
    if packed.dim() != rank + 1:
        refuse(name, f"rank {packed.dim()}", f"rank {rank + 1}")
    if packed.shape[dim] != parts:
        refuse(name, f"shape {tuple(packed.shape)}", f"{parts} in dimension {dim} (qkv_interleave_dim)")
    if packed.stride(-1) != 1:
        refuse(name, f"stride {packed.stride(-1)} in the last dimension", "1")
    views = packed.unbind(dim)
    return (views[0], views[1], views[2]) if parts == 3 else (query, views[0], views[1])


# --- dense masks


def attended(mask: Any, seqlen_kv: int) -> Tensor:
    """`attention`'s mask, [1 or B, 1 or H, 1 or Sq, Skv] and True = attend, of a mask with True = masked out."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"attention_mask: got {mask!r}, expected a tensor for attn_mask_type='arbitrary'")
    if mask.dtype != torch.bool:
        refuse("attention_mask", f"dtype {mask.dtype}", "torch.bool, True = masked out")
    rank = mask.dim()
    if not 1 <= rank <= 4:
        refuse("attention_mask", f"rank {rank}", "what broadcasts to [batch, heads, seqlen_q, seqlen_kv]")
    if not torch.compiler.is_compiling() and mask.shape[-1] not in (1, seqlen_kv):
        refuse("attention_mask", f"shape {tuple(mask.shape)}", f"1 or {seqlen_kv} keys in its last dim")
    return mask.expand(*mask.shape[:-1], seqlen_kv).logical_not()[(None,) * (4 - rank)]


# --- lengths


def lengths_of_mask(name: str, mask: Any) -> Tensor:
    """Valid lengths, int32 [B], of a padding mask [B, 1, 1, S], True = masked out.

    A length is -1, which no kernel takes for a length, where valid tokens do not come first: on the CPU the operator
    then raises, elsewhere the rows of that sequence are 0. That costs no look at the data.
    """
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name}: got {mask!r}, expected a tensor")
    if mask.dtype != torch.bool:
        refuse(name, f"dtype {mask.dtype}", "torch.bool, True = masked out")
    if mask.dim() != 4 or mask.shape[1] != 1 or mask.shape[2] != 1:
        refuse(
            name,
            f"shape {tuple(mask.shape)}",
            "[batch, 1, 1, seqlen] for a padding type; attn_mask_type='arbitrary' takes any mask",
        )
    masked = mask[:, 0, 0, :]
    count = masked.logical_not().sum(-1, dtype=torch.int32)
    return torch.where(_has_holes(masked, count), -1, count)


def _has_holes(masked: Tensor, count: Tensor) -> Tensor:
    """[B]: whether a valid token comes after a masked one, by the number of valid ones."""
    after = torch.arange(masked.shape[1], device=masked.device) >= count[:, None]
    return (masked != after).any(-1)


def lengths_of_cumulative(cumulative: Tensor) -> Tensor:
    """Lengths, int32 [B], of int32 [B + 1]."""
    return cumulative[1:] - cumulative[:-1]


def require_cumulative(name: str, cumulative: Any) -> None:
    """Refuses what is no int32 vector."""
    if not isinstance(cumulative, Tensor):
        raise TypeError(f"{name}: got {cumulative!r}, expected an int32 tensor [batch + 1]")
    if cumulative.dtype != torch.int32:
        refuse(name, f"dtype {cumulative.dtype}", "torch.int32")
    if cumulative.dim() != 1:
        refuse(name, f"rank {cumulative.dim()}", "rank 1, [batch + 1]")


class Packing(NamedTuple):
    """A permutation of tokens that brings those of the sequences to the front: `packed = tokens[order]`, and back."""

    order: Tensor  # int64 [T]: which token comes here
    place: Tensor  # int64 [T]: where a token goes


def packing_of(tokens: int, cumulative: Tensor, padded: Tensor) -> Packing:
    """For sequences that begin at `padded`, with the lengths of `cumulative`. A permutation for any values of both."""
    at = torch.arange(tokens, dtype=torch.int32, device=padded.device)
    sequence = torch.searchsorted(padded[1:], at, right=True).clamp(max=padded.shape[0] - 2)
    within = at - padded[sequence]
    valid = (within >= 0) & (within < lengths_of_cumulative(cumulative)[sequence])
    before = valid.cumsum(0)
    at = at.long()
    place = torch.where(valid, before - 1, valid.sum() + at - before)
    return Packing(torch.zeros_like(place).scatter(0, place, at), place)


# --- checks of sizes and data, for eager code


def _readable(tensor: Tensor) -> bool:
    """Whether its data can be looked at for nothing: on the CPU, and no stand-in of a tracer or a transform."""
    return (
        tensor.device.type == "cpu"
        and type(tensor) in (Tensor, torch.nn.Parameter)
        and not torch._C._are_functorch_transforms_active()
    )


def check_mask(name: str, mask: Tensor, lengths: Tensor, batch: int, seqlen: int) -> None:
    """A padding mask and its lengths against the sizes, and that valid tokens come first."""
    if mask.shape[0] != batch or mask.shape[3] != seqlen:
        refuse(name, f"shape {tuple(mask.shape)}", f"{(batch, 1, 1, seqlen)}")
    if _readable(lengths):
        values = lengths.tolist()
        if -1 in values:
            refuse(
                name,
                f"a valid token after a masked one in sequence {values.index(-1)}",
                "valid tokens first for a padding type; attn_mask_type='arbitrary' takes any mask",
            )


def check_cumulative(name: str, cumulative: Tensor, batch: int | None, most: int, most_in_all: int | None) -> None:
    """Cumulative lengths: their number, and on the CPU that they start at 0, do not fall and stay in bounds."""
    if batch is not None and cumulative.shape[0] != batch + 1:
        refuse(
            name,
            f"{cumulative.shape[0]} values",
            f"{batch + 1}, batch + 1; qkv_format='thd' takes several sequences in one row",
        )
    if cumulative.shape[0] < 1:
        refuse(name, "0 values", "batch + 1")
    if not _readable(cumulative):
        return
    values = cumulative.tolist()
    if values[0] != 0:
        refuse(name, f"{values[0]} as its first value", "0")
    for index, (start, end) in enumerate(pairwise(values)):
        if not 0 <= end - start <= most:
            refuse(name, f"length {end - start} of sequence {index}", f"0 to {most}")
    if most_in_all is not None and values[-1] > most_in_all:
        refuse(name, f"{values[-1]} tokens in all", f"at most {most_in_all}")


def check_padded(name: str, padded: Tensor, cumulative: Tensor, tokens: int) -> None:
    """Offsets in memory: as many as cumulative lengths, and on the CPU that every sequence fits between its two."""
    if padded.shape != cumulative.shape or padded.shape[0] < 2:
        refuse(name, f"shape {tuple(padded.shape)}", f"that of cu_seqlens, {tuple(cumulative.shape)}, and a sequence")
    if not (_readable(padded) and _readable(cumulative)):
        return
    offsets, values = padded.tolist(), cumulative.tolist()
    if offsets[0] < 0 or offsets[-1] > tokens:
        refuse(name, f"{offsets[0]} to {offsets[-1]}", f"offsets from 0 to {tokens}")
    for index in range(len(values) - 1):
        room, length = offsets[index + 1] - offsets[index], values[index + 1] - values[index]
        if room < length:
            refuse(name, f"room for {room} tokens of sequence {index}", f"at least its length, {length}")


def check_broadcast(name: str, tensor: Tensor, full: tuple[int, int, int, int]) -> None:
    """A bias or mask against [batch, heads, seqlen_q, seqlen_kv]."""
    shape = tuple(tensor.shape)
    if any(size not in (1, whole) for size, whole in zip(shape, full[-len(shape) :], strict=True)):
        refuse(name, f"shape {shape}", f"one that broadcasts to {full}")


# --- ALiBi


def default_alibi_slopes(heads: int, device: torch.device) -> Tensor:
    """float32 [heads]: a geometric sequence, made on the device, so that no copy is captured or waited for."""
    power = 1 << (heads.bit_length() - 1)
    slopes = torch.exp2(torch.arange(1, power + 1, dtype=torch.float32, device=device) * (-8.0 / power))
    if heads == power:
        return slopes
    odd = torch.arange(1, 2 * (heads - power), 2, dtype=torch.float32, device=device)
    return torch.cat([slopes, torch.exp2(odd * (-4.0 / power))])
