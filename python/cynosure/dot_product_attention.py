# SPDX-License-Identifier: Apache-2.0
"""DotProductAttention: TransformerEngine's module, its arguments and its checkpoints, over `cynosure.attention`."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import cynosure
from cynosure import _te_inputs as te
from cynosure import _tracing
from cynosure._te_inputs import refuse
from cynosure._tracing import compiling
from cynosure.problem import check_integer

# `attention` is looked up at each call: this module may be imported before it.
_public: Any = cynosure

_SOFTMAX_TYPES = ("vanilla", "off-by-one", "learnable")
_ATTENTION_TYPES = ("self", "cross")
_COMMUNICATION = ("p2p", "all_gather", "a2a", "a2a+p2p")
_NO_WINDOW = ((-1, -1), (-1, 0))

Padding = Tensor | tuple[Tensor, Tensor] | None


class DotProductAttention(torch.nn.Module):
    """Attention with TransformerEngine's constructor and forward: names, order, defaults, formats, checkpoints.

    Args:
        num_attention_heads: query heads, of all tensor parallel ranks together.
        kv_channels: head dim of query, key and value, or (of query and key, of value).
        num_gqa_groups: key and value heads, of all tensor parallel ranks together; None: as query heads.
        attention_dropout: probability of dropping an attention weight, in training mode only.
        qkv_format: "sbhd", "bshd" or "thd": dimensions of query, key and value.
        attn_mask_type: "no_mask", "padding", "causal", "padding_causal", "causal_bottom_right",
            "padding_causal_bottom_right" or "arbitrary". A comma is an underscore, and "causal,padding" is
            "padding_causal". "causal" and "padding_causal" lie on the top left diagonal.
        window_size: (left, right), how far a query sees before and after itself; -1: unlimited. With a causal mask
            (-1, 0) or (left, 0), otherwise (-1, -1) or both 0 or more. As in TransformerEngine the mask name wins over
            a window that differs from that on the right side only, with a warning; anything else is refused.
        bottom_right_diagonal: the diagonal that window and ALiBi count from, for the mask names that leave it open
            (no_mask, padding, arbitrary); None: True. The others say it themselves, and win, with a warning.
        sequence_parallel: if True, `get_rng_state_tracker` is not used.
        tp_size: tensor parallel ranks, among which heads are divided.
        get_rng_state_tracker: gives an object with `fork()`; the seed of dropout is drawn under it. Eager code only.
        tp_group: tensor parallel group; its size wins over `tp_size`.
        layer_number: kept, and has no effect. TransformerEngine scales float16 scores down by it where
            NVTE_APPLY_QK_LAYER_SCALING is set, and up again in the softmax; ours are float32 and cannot overflow.
        attention_type: "self" or "cross"; for self-attention one padding mask stands for queries and keys.
        cp_group, cp_global_ranks, cp_stream, cp_comm_type: context parallelism. It cannot run yet: a group of more than
            one rank is refused.
        softmax_scale: factor on the scores; None: 1 / sqrt(head dim of query and key).
        softmax_type: "vanilla"; "off-by-one", a logit of 0 joins every softmax; "learnable", one logit a head does, the
            parameter `softmax_offset`.
        return_max_logit: cannot run yet; expected False.
        name: kept.

    Attributes:
        softmax_offset: for "learnable" a parameter, float32 [heads of this rank], zeros at first; otherwise None.

    `state_dict` has `softmax_offset` or nothing. TransformerEngine's checkpoints load: their extra state, which is
    about FP8, is passed over. TransformerEngine loads ours.

    Raises:
        ValueError, TypeError: naming the argument, what was given and what is allowed.
    """

    softmax_offset: torch.nn.Parameter | None

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        tp_group: Any = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: list[int] | None = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        softmax_type: str = "vanilla",
        return_max_logit: bool | None = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if tp_group is not None:
            tp_size = torch.distributed.get_world_size(tp_group)
        _check_sizes(num_attention_heads, num_gqa_groups, tp_size)
        self.num_attention_heads = num_attention_heads
        self.num_gqa_groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        self.num_gqa_groups_per_partition = self.num_gqa_groups // tp_size
        self.hidden_size_per_attention_head_k, self.hidden_size_per_attention_head_v = _head_dims(kv_channels)
        _check_probability(attention_dropout)
        self.attention_dropout = attention_dropout
        _one_of("qkv_format", qkv_format, te.FORMATS)
        self.qkv_format = qkv_format
        mask = te.mask_of(attn_mask_type)
        self.attn_mask_type = mask.name
        self.window_size = te.window_of(mask, window_size)
        if bottom_right_diagonal not in (None, True, False):
            refuse("bottom_right_diagonal", repr(bottom_right_diagonal), "None, True or False")
        te.is_bottom_right(mask, bottom_right_diagonal, stated=True)
        self.bottom_right_diagonal = bottom_right_diagonal
        self.tp_size = tp_size
        self.tp_group = tp_group
        self.sequence_parallel = sequence_parallel
        self.get_rng_state_tracker = get_rng_state_tracker
        self.layer_number = 1 if layer_number is None else layer_number
        _one_of("attention_type", attention_type, _ATTENTION_TYPES)
        self.attention_type = attention_type
        self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)
        self.softmax_scale = _scale(softmax_scale, self.hidden_size_per_attention_head_k)
        _one_of("softmax_type", softmax_type, _SOFTMAX_TYPES)
        self.softmax_type = softmax_type
        if return_max_logit:
            refuse("return_max_logit", repr(return_max_logit), "False; the largest logit cannot be returned yet")
        self.return_max_logit = False
        self.name = name
        learnable = softmax_type == "learnable"
        offset = torch.zeros(num_attention_heads // tp_size, dtype=torch.float32) if learnable else None
        self.register_parameter("softmax_offset", None if offset is None else torch.nn.Parameter(offset))

    def reset_parameters(self) -> None:
        """Sets the learnable logits to zero, for modules that were made on the meta device."""
        if self.softmax_offset is not None:
            torch.nn.init.zeros_(self.softmax_offset)

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """Keeps the tensor parallel group. Heads stay divided as the constructor was told."""
        self.tp_group = tp_group

    def set_context_parallel_group(
        self, cp_group: Any, cp_global_ranks: list[int] | None, cp_stream: Any, cp_comm_type: str = "p2p"
    ) -> None:
        """Keeps the context parallel group, None or of one rank; for "a2a+p2p" a list of two.

        Raises:
            ValueError: for more ranks than one; context parallelism cannot run yet.
        """
        _one_of("cp_comm_type", cp_comm_type, _COMMUNICATION)
        for group in cp_group if isinstance(cp_group, (list, tuple)) else (cp_group,):
            ranks = 1 if group is None else torch.distributed.get_world_size(group)
            if ranks != 1:
                refuse("cp_group", f"a group of {ranks} ranks", "None or 1 rank; context parallelism cannot run yet")
        self.cp_group = cp_group
        self.cp_global_ranks = cp_global_ranks
        self.cp_stream = cp_stream
        self.cp_comm_type = cp_comm_type

    def extra_repr(self) -> str:
        """What differs from the constructor's defaults, and the sizes."""
        channels = (self.hidden_size_per_attention_head_k, self.hidden_size_per_attention_head_v)
        stated: dict[str, Any] = {"kv_channels": channels[0] if channels[0] == channels[1] else channels}
        if self.num_gqa_groups != self.num_attention_heads:
            stated["num_gqa_groups"] = self.num_gqa_groups
        if self.attention_dropout:
            stated["attention_dropout"] = self.attention_dropout
        stated.update(qkv_format=self.qkv_format, attn_mask_type=self.attn_mask_type)
        if self.window_size not in _NO_WINDOW:
            stated["window_size"] = self.window_size
        for name, default in (
            ("bottom_right_diagonal", None),
            ("tp_size", 1),
            ("layer_number", 1),
            ("attention_type", "self"),
            ("softmax_type", "vanilla"),
            ("name", None),
        ):
            if getattr(self, name) != default:
                stated[name] = getattr(self, name)
        if self.softmax_scale != channels[0] ** -0.5:
            stated["softmax_scale"] = self.softmax_scale
        return ", ".join([str(self.num_attention_heads), *(f"{name}={value!r}" for name, value in stated.items())])

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Passes over the extra state that TransformerEngine saves, of the module and of its backends."""
        unexpected: list[str] = []
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected, error_msgs)
        unexpected_keys.extend(key for key in unexpected if not key.endswith("_extra_state"))

    def forward(  # noqa: D417  # pairs are described together
        self,
        query_layer: Tensor | None = None,
        key_layer: Tensor | None = None,
        value_layer: Tensor | None = None,
        attention_mask: Padding = None,
        qkv_format: str | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_kv_padded: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        fast_zero_fill: bool = True,
        inference_params: Any = None,
        pad_between_seqs: bool | None = None,
        fp8_output: bool | None = False,
        bf16_backward: bool | None = False,
        num_splits: int | None = 1,
        score_mod: Callable[..., Any] | None = None,
        score_mod_bprop: Callable[..., Any] | None = None,
        score_mod_tensors: dict[str, Tensor] | None = None,
        score_mod_bprop_tensors: dict[str, Tensor] | None = None,
        qkv_layer: Tensor | None = None,
        kv_layer: Tensor | None = None,
        qkv_interleave_dim: int = -3,
    ) -> Tensor:
        """The attention of query over key and value.

        Args:
            query_layer: [s, b, h, d], [b, s, h, d] or [t, h, d] by `qkv_format`; float16, bfloat16, float32 or float64.
            key_layer, value_layer: the same of keys and values, with their heads and, for values, their head dim.
            attention_mask: bool, True = masked out. For padding types [b, 1, 1, s], valid tokens first, or a pair (of
                queries, of keys), which cross-attention needs. For "arbitrary" what broadcasts to
                [b, h, seqlen_q, seqlen_kv]. Other types do not use it, and warn.
            qkv_format, attn_mask_type, window_size, bottom_right_diagonal: in place of the constructor's.
            cu_seqlens_q, cu_seqlens_kv: int32 [b + 1], cumulative valid lengths. Needed for thd; for padding types of
                the other formats they go before `attention_mask`; refused for masks without padding.
            cu_seqlens_q_padded, cu_seqlens_kv_padded: int32 [b + 1], where sequences begin in memory, thd only. Tokens
                are then packed by one gather a tensor, and the output has zeros in the gaps.
            max_seqlen_q, max_seqlen_kv: bounds on the lengths, int; used for thd. None: no look at the data, and the
                number of tokens is the bound.
            checkpoint_core_attention: keep nothing for backward but the inputs, and compute again.
            core_attention_bias_type: "no_bias"; "post_scale_bias", scores * scale + bias; "pre_scale_bias",
                (scores + bias) * scale; "alibi".
            core_attention_bias: [1 or b, 1 or h, 1 or seqlen_q, seqlen_kv], for the first two kinds of bias.
            alibi_slopes: float32 [h] or [b, h], for "alibi"; None: the usual ones.
            fast_zero_fill: no effect; it chooses how FP8 outputs are filled.
            inference_params: a KV cache, which cannot run yet; expected None.
            pad_between_seqs: whether there are gaps, thd only; None: where padded offsets are given, unless they are
                the very tensor of the lengths. False: the padded offsets equal the others, and are not looked at.
            fp8_output, bf16_backward, num_splits, score_mod and its companions: cannot run yet; expected the defaults.
            qkv_layer: query, key and value in one, [..., 3, h, d] or [..., h, 3, d] by `qkv_interleave_dim`, -3 or -2.
            kv_layer: key and value in one, [..., 2, h, d] or [..., h, 2, d], beside `query_layer`.

        Returns:
            [s, b, h * d], [b, s, h * d] or [t, h * d], d that of the values. Rows that see nothing are 0: padded
            queries, tokens outside every sequence, queries whose keys are all masked.

        Raises:
            ValueError, TypeError: naming the argument, what was given and what is allowed.
            NoBackendError: nothing here can run the call; with every reason.
        """
        if (
            inference_params is not None
            or fp8_output
            or bf16_backward
            or not (num_splits is None or num_splits == 1)
            or score_mod is not None
            or score_mod_bprop is not None
            or score_mod_tensors is not None
            or score_mod_bprop_tensors is not None
        ):
            _refuse_what_cannot_run(
                inference_params=inference_params,
                fp8_output=fp8_output,
                bf16_backward=bf16_backward,
                num_splits=num_splits,
                score_mod=score_mod,
                score_mod_bprop=score_mod_bprop,
                score_mod_tensors=score_mod_tensors,
                score_mod_bprop_tensors=score_mod_bprop_tensors,
            )
        layout = self.qkv_format if qkv_format is None else qkv_format
        _one_of("qkv_format", layout, te.FORMATS)
        thd = layout == "thd"
        rank = 3 if thd else 4
        if qkv_layer is not None or kv_layer is not None:
            query_layer, key_layer, value_layer = te.unpack(
                query_layer, key_layer, value_layer, qkv_layer, kv_layer, qkv_interleave_dim, rank
            )
        q, k, v = self._checked_inputs(query_layer, key_layer, value_layer, layout, rank)
        checked = not torch.compiler.is_compiling()  # sizes and data; in traced code the operator checks them

        mask = te.mask_of(self.attn_mask_type if attn_mask_type is None else attn_mask_type)
        if window_size is None and self.window_size not in _NO_WINDOW:
            window_size = self.window_size
        left, right = te.window_of(mask, window_size)
        diagonal = self.bottom_right_diagonal if bottom_right_diagonal is None else bottom_right_diagonal
        bottom_right = te.is_bottom_right(mask, diagonal, stated=bottom_right_diagonal is not None)

        seqlens_q = seqlens_k = cu_q = cu_k = attend = packing_q = None
        if thd:
            if not mask.padding:
                refuse("attn_mask_type", f"{mask.name!r} with qkv_format='thd'", "a padding type")
            cu_q, cu_k = _both(cu_seqlens_q, cu_seqlens_kv, "qkv_format='thd'")
            if checked:
                _check_ragged(q, k, cu_q, cu_k, max_seqlen_q, max_seqlen_kv)
            elif isinstance(max_seqlen_q, Tensor) or isinstance(max_seqlen_kv, Tensor):
                _check_bounds(max_seqlen_q, max_seqlen_kv)
            q, k, v, packing_q = _without_gaps(
                q, k, v, (cu_q, cu_k), (cu_seqlens_q_padded, cu_seqlens_kv_padded), pad_between_seqs, checked
            )
        else:
            if cu_seqlens_q_padded is not None or cu_seqlens_kv_padded is not None or pad_between_seqs:
                _refuse_gaps(layout, cu_seqlens_q_padded, cu_seqlens_kv_padded)
            if mask.padding:
                seqlens_q, seqlens_k = self._lengths(
                    attention_mask, cu_seqlens_q, cu_seqlens_kv, mask.name, _sizes(q, k, layout), checked
                )
            elif cu_seqlens_q is not None or cu_seqlens_kv is not None:
                name = "cu_seqlens_kv" if cu_seqlens_q is None else "cu_seqlens_q"
                refuse(name, f"a tensor with attn_mask_type={mask.name!r}", "None, or a padding type of mask")
            elif mask.name == "arbitrary":
                attend = te.attended(attention_mask, k.shape[0 if layout == "sbhd" else 1])
                if checked:
                    te.check_broadcast("attention_mask", attend, self._scores(q, k, layout))
            elif attention_mask is not None:
                te.warn(f"attention_mask: not used, because of attn_mask_type={mask.name!r}")
            if checked:
                _check_bounds(max_seqlen_q, max_seqlen_kv)
            max_seqlen_q = max_seqlen_kv = None  # the shapes have them

        if core_attention_bias_type != "no_bias" or core_attention_bias is not None or alibi_slopes is not None:
            full = self._scores(q, k, layout) if checked and not thd else None
            bias, slopes = self._biases(core_attention_bias_type, core_attention_bias, alibi_slopes, full, q.device)
        else:
            bias = slopes = None
        sinks = self._sinks(q)
        dropout_p = self.attention_dropout if self.training else 0.0
        seed = self._seed(q.device) if dropout_p and self.get_rng_state_tracker is not None else None

        def attend_now(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None) -> Tensor:
            out: Tensor = _public.attention(
                q,
                k,
                v,
                layout=layout,
                causal=mask.causal,
                align="bottom_right" if bottom_right else "top_left",
                window_size=(left, -1 if mask.causal else right),
                attn_bias=bias,
                attn_mask=attend,
                alibi_slopes=slopes,
                sinks=sinks,
                scale=self.softmax_scale,
                dropout_p=dropout_p,
                dropout_seed=seed,
                seqlens_q=seqlens_q,
                seqlens_k=seqlens_k,
                cu_seqlens_q=cu_q,
                cu_seqlens_k=cu_k,
                max_seqlen_q=max_seqlen_q,
                max_seqlen_k=max_seqlen_kv,
            )
            return out

        if checkpoint_core_attention and torch.is_grad_enabled():
            random = dropout_p != 0.0
            out: Tensor = checkpoint(attend_now, q, k, v, bias, sinks, use_reentrant=False, preserve_rng_state=random)
        else:
            out = attend_now(q, k, v, bias, sinks)
        out = out.flatten(-2)
        return out if packing_q is None else out.index_select(0, packing_q.place)

    # --- parts of forward

    def _checked_inputs(
        self, q: Tensor | None, k: Tensor | None, v: Tensor | None, layout: str, rank: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, whose dtype, rank, heads and head dims fit. The error is worked out if one does not."""
        if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
            for name, tensor in (("query_layer", q), ("key_layer", k), ("value_layer", v)):
                if not isinstance(tensor, Tensor):
                    raise TypeError(f"{name}: got {tensor!r}, expected a tensor")
            raise AssertionError
        heads, groups = self.num_attention_heads // self.tp_size, self.num_gqa_groups_per_partition
        shape_q, shape_k, shape_v = q.shape, k.shape, v.shape
        if not (
            len(shape_q) == len(shape_k) == len(shape_v) == rank
            and shape_q[-2] == heads
            and shape_k[-2] == shape_v[-2] == groups
            and shape_q[-1] == shape_k[-1] == self.hidden_size_per_attention_head_k
            and shape_v[-1] == self.hidden_size_per_attention_head_v
            and q.dtype == k.dtype == v.dtype
            and q.dtype in te.DTYPES
        ):
            _refuse_inputs(
                q,
                k,
                v,
                layout,
                (heads, groups, groups),
                (self.hidden_size_per_attention_head_k,) * 2 + (self.hidden_size_per_attention_head_v,),
            )
        for tensor in (q, k, v):
            if type(tensor) is not Tensor and type(tensor).__module__.startswith("transformer_engine"):
                refuse("query_layer", type(tensor).__name__, "a plain tensor; FP8 attention cannot run yet")
        if not torch.compiler.is_compiling():
            if shape_k[:-2] != shape_v[:-2]:
                refuse("value_layer", f"shape {tuple(shape_v)}", f"{tuple(shape_k[:-2])} first, as key_layer has")
            batch = 1 if layout == "sbhd" else 0
            if layout != "thd" and shape_q[batch] != shape_k[batch]:
                refuse("key_layer", f"batch {shape_k[batch]}", f"{shape_q[batch]}, as query_layer has")
        return q, k, v

    def _lengths(
        self,
        attention_mask: Any,
        cu_seqlens_q: Tensor | None,
        cu_seqlens_kv: Tensor | None,
        mask_name: str,
        sizes: tuple[int, int, int],
        checked: bool,
    ) -> tuple[Tensor, Tensor]:
        """Valid lengths of queries and keys, from cumulative ones or from masks; `checked`: against the sizes."""
        batch, seqlen_q, seqlen_kv = sizes
        if cu_seqlens_q is not None or cu_seqlens_kv is not None:
            first, second = _both(cu_seqlens_q, cu_seqlens_kv, f"attn_mask_type={mask_name!r}")
            if checked:
                te.check_cumulative("cu_seqlens_q", first, batch, seqlen_q, None)
                te.check_cumulative("cu_seqlens_kv", second, batch, seqlen_kv, None)
            lengths = te.lengths_of_cumulative(first)
            return lengths, lengths if second is first else te.lengths_of_cumulative(second)
        if attention_mask is None:
            refuse(
                "attention_mask",
                f"None with attn_mask_type={mask_name!r}",
                "a mask [batch, 1, 1, seqlen], True = masked out, or cu_seqlens_q and cu_seqlens_kv",
            )
        pair = isinstance(attention_mask, (tuple, list))
        if pair and len(attention_mask) != 2:
            refuse("attention_mask", f"{len(attention_mask)} masks", "one, or a pair (of queries, of keys)")
        if not pair and self.attention_type == "cross":
            raise TypeError("attention_mask: got one mask, expected a pair (of queries, of keys) for cross-attention")
        first, second = attention_mask if pair else (attention_mask, attention_mask)
        name = "attention_mask[0]" if pair else "attention_mask"
        lengths = te.lengths_of_mask(name, first)
        if checked:
            te.check_mask(name, first, lengths, batch, seqlen_q)
        # Also in traced code: the operator sees lengths, and those of one mask fit both.
        same = _tracing.guard_or_true(seqlen_q == seqlen_kv) if compiling() else seqlen_q == seqlen_kv
        if not pair and not same:
            refuse(name, "one mask", f"a pair, because lengths {seqlen_q} and {seqlen_kv} differ")
        if second is first:
            return lengths, lengths
        lengths_kv = te.lengths_of_mask("attention_mask[1]", second)
        if checked:
            te.check_mask("attention_mask[1]", second, lengths_kv, batch, seqlen_kv)
        return lengths, lengths_kv

    def _biases(
        self,
        kind: str,
        bias: Tensor | None,
        slopes: Tensor | None,
        full: tuple[int, int, int, int] | None,
        device: torch.device,
    ) -> tuple[Tensor | None, Tensor | None]:
        """(`attention`'s bias, its slopes); `full`: the sizes of the scores to be checked against."""
        _one_of("core_attention_bias_type", kind, te.BIAS_TYPES)
        if slopes is not None and kind != "alibi":
            refuse("alibi_slopes", f"a tensor with core_attention_bias_type={kind!r}", "None, or the type 'alibi'")
        if kind in ("no_bias", "alibi"):
            if bias is not None:
                refuse(
                    "core_attention_bias",
                    f"a tensor with core_attention_bias_type={kind!r}",
                    "None, or the type 'pre_scale_bias' or 'post_scale_bias'",
                )
            if slopes is None:
                if self.tp_size != 1:
                    refuse(
                        "alibi_slopes",
                        f"None with tp_size={self.tp_size}",
                        "the slopes of this rank's heads, float32 [heads]; which heads those are is not known here",
                    )
                return None, te.default_alibi_slopes(self.num_attention_heads, device)
            if full is not None and tuple(slopes.shape) not in ((full[1],), full[:2]):
                refuse("alibi_slopes", f"shape {tuple(slopes.shape)}", f"{(full[1],)} or {full[:2]}")
            return None, slopes
        if not isinstance(bias, Tensor):
            raise TypeError(f"core_attention_bias: got {bias!r}, expected a tensor for {kind!r}")
        if bias.dim() != 4:
            refuse("core_attention_bias", f"rank {bias.dim()}", "rank 4, [1 or b, 1 or h, 1 or seqlen_q, seqlen_kv]")
        if full is not None:
            te.check_broadcast("core_attention_bias", bias, full)
        return (bias * self.softmax_scale if kind == "pre_scale_bias" else bias), None

    def _sinks(self, q: Tensor) -> Tensor | None:
        """The logits that join the softmax: none, zeros, or the parameter, in float32 if it was cast to less."""
        if self.softmax_type == "vanilla":
            return None
        offset = self.softmax_offset
        if offset is None:
            return torch.zeros(self.num_attention_heads // self.tp_size, dtype=torch.float32, device=q.device)
        return offset.float() if offset.dtype in (torch.float16, torch.bfloat16) else offset

    def _seed(self, device: torch.device) -> Tensor | None:
        """(seed, offset) drawn under the random state tracker; None: the operator draws it."""
        if self.sequence_parallel or self.get_rng_state_tracker is None:
            return None
        if torch.compiler.is_compiling():
            refuse(
                "get_rng_state_tracker",
                "a tracker with dropout in traced code",
                "None, or this module outside the compiled region (torch.compiler.disable)",
            )
        fork: AbstractContextManager[Any] = self.get_rng_state_tracker().fork()
        seed = torch.zeros(2, dtype=torch.int64, device=device)
        with fork:
            seed[:1].random_()
        return seed

    def _scores(self, q: Tensor, k: Tensor, layout: str) -> tuple[int, int, int, int]:
        """Sizes of the scores: batch, query heads, lengths."""
        batch, seqlen_q, seqlen_kv = _sizes(q, k, layout)
        return batch, q.shape[2], seqlen_q, seqlen_kv


# --- checks


def _one_of(name: str, given: Any, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        refuse(name, repr(given), f"one of {', '.join(allowed)}")


def _check_sizes(heads: Any, groups: Any, tp_size: Any) -> None:
    """Numbers of heads, and that they divide."""
    for name, value in (("num_attention_heads", heads), ("num_gqa_groups", groups), ("tp_size", tp_size)):
        if value is None and name == "num_gqa_groups":
            continue
        check_integer(name, value)
        if value < 1:
            refuse(name, str(value), "1 or more")
    groups = heads if groups is None else groups
    if heads % groups:
        refuse("num_gqa_groups", str(groups), f"a divisor of num_attention_heads, {heads}")
    for name, value in (("num_attention_heads", heads), ("num_gqa_groups", groups)):
        if value % tp_size:
            refuse(name, str(value), f"a multiple of the tensor parallel size, {tp_size}")


def _head_dims(kv_channels: Any) -> tuple[int, int]:
    pair = kv_channels if isinstance(kv_channels, (tuple, list)) else (kv_channels, kv_channels)
    if len(pair) != 2:
        refuse("kv_channels", repr(kv_channels), "a head dim, or a pair (of query and key, of value)")
    for value in pair:
        check_integer("kv_channels", value)
        if value < 1:
            refuse("kv_channels", repr(kv_channels), "1 or more")
    return index(pair[0]), index(pair[1])


def _check_probability(dropout: Any) -> None:
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)):
        raise TypeError(f"attention_dropout: got {dropout!r}, expected a float")
    if not 0.0 <= dropout <= 1.0:
        refuse("attention_dropout", str(dropout), "a probability from 0 to 1")


def _scale(scale: Any, head_dim: int) -> float:
    if scale is None:
        return float(head_dim**-0.5)
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"softmax_scale: got {scale!r}, expected None or a float")
    if not math.isfinite(scale):
        raise ValueError(f"softmax_scale: got {scale}, expected a finite number")
    return float(scale)


_EXPECTED = {
    "inference_params": (None, "a KV cache cannot run yet"),
    "fp8_output": (False, "FP8 attention cannot run yet"),
    "bf16_backward": (False, "FP8 attention cannot run yet"),
    "num_splits": (1, "splits cannot be chosen yet"),
    "score_mod": (None, "score functions cannot run yet"),
    "score_mod_bprop": (None, "score functions cannot run yet"),
    "score_mod_tensors": (None, "score functions cannot run yet"),
    "score_mod_bprop_tensors": (None, "score functions cannot run yet"),
}


def _refuse_what_cannot_run(**given: Any) -> None:
    """The error for the first of these that is not as expected."""
    for name, (expected, why) in _EXPECTED.items():
        value = given[name]
        if value is not None and value is not expected and value != expected:
            text = repr(value) if isinstance(value, (bool, int)) else f"a {type(value).__name__}"
            refuse(name, text, f"{expected}; {why}")


def _refuse_inputs(
    q: Tensor, k: Tensor, v: Tensor, layout: str, heads: tuple[int, int, int], dims: tuple[int, ...]
) -> None:
    """The error for the first of query, key and value that does not fit."""
    for name, tensor, tensor_heads, dim in zip(
        ("query_layer", "key_layer", "value_layer"), (q, k, v), heads, dims, strict=True
    ):
        if tensor.dim() != len(layout):
            refuse(name, f"rank {tensor.dim()}", f"rank {len(layout)} for qkv_format={layout!r}")
        if tensor.dtype not in te.DTYPES:
            extra = "; FP8 attention cannot run yet" if "float8" in str(tensor.dtype) else ""
            refuse(name, f"dtype {tensor.dtype}", f"one of {', '.join(str(dtype) for dtype in te.DTYPES)}{extra}")
        if tensor.dtype != q.dtype:
            refuse(name, f"dtype {tensor.dtype}", f"{q.dtype}, as query_layer has")
        if tensor.shape[-2] != tensor_heads:
            refuse(name, f"{tensor.shape[-2]} heads", f"{tensor_heads}, by the constructor")
        if tensor.shape[-1] != dim:
            refuse(name, f"head dim {tensor.shape[-1]}", f"{dim}, by the constructor's kv_channels")


def _both(first: Any, second: Any, because: str) -> tuple[Tensor, Tensor]:
    """Cumulative lengths of queries and keys, both given and both int32 vectors."""
    for name, value in (("cu_seqlens_q", first), ("cu_seqlens_kv", second)):
        if value is None:
            refuse(name, "None", f"int32 [batch + 1] for {because}")
        te.require_cumulative(name, value)
    return first, second


def _check_bounds(max_seqlen_q: Any, max_seqlen_kv: Any) -> None:
    for name, value in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_kv", max_seqlen_kv)):
        if value is not None:
            check_integer(name, value)


def _check_ragged(
    q: Tensor, k: Tensor, cu_seqlens_q: Tensor, cu_seqlens_kv: Tensor, max_seqlen_q: Any, max_seqlen_kv: Any
) -> None:
    """Cumulative lengths against tokens and bounds."""
    _check_bounds(max_seqlen_q, max_seqlen_kv)
    if cu_seqlens_kv.shape != cu_seqlens_q.shape:
        refuse("cu_seqlens_kv", f"{cu_seqlens_kv.shape[0]} values", f"{cu_seqlens_q.shape[0]}, as cu_seqlens_q has")
    for name, tensor, cumulative, most in (
        ("cu_seqlens_q", q, cu_seqlens_q, max_seqlen_q),
        ("cu_seqlens_kv", k, cu_seqlens_kv, max_seqlen_kv),
    ):
        tokens = tensor.shape[0]
        te.check_cumulative(name, cumulative, None, tokens if most is None else index(most), tokens)


def _refuse_gaps(layout: str, padded_q: Any, padded_kv: Any) -> None:
    name = "cu_seqlens_q_padded" if padded_q is not None else "cu_seqlens_kv_padded"
    if padded_q is None and padded_kv is None:
        refuse("pad_between_seqs", f"True with qkv_format={layout!r}", "None or False, or the format 'thd'")
    refuse(name, f"a tensor with qkv_format={layout!r}", "None, or the format 'thd'")


def _without_gaps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cumulative: tuple[Tensor, Tensor],
    padded: tuple[Tensor | None, Tensor | None],
    gaps: bool | None,
    checked: bool,
) -> tuple[Tensor, Tensor, Tensor, te.Packing | None]:
    """Query, key and value with the tokens of the sequences first, and how those of the query were moved."""
    if gaps and padded[0] is None and padded[1] is None:
        refuse("pad_between_seqs", "True without padded offsets", "cu_seqlens_q_padded or cu_seqlens_kv_padded")
    packings: list[te.Packing | None] = []
    for name, tensor, lengths, offsets in zip(
        ("cu_seqlens_q_padded", "cu_seqlens_kv_padded"), (q, k), cumulative, padded, strict=True
    ):
        if offsets is None or offsets is lengths or gaps is False:
            packings.append(None)
            continue
        te.require_cumulative(name, offsets)
        if checked:
            te.check_padded(name, offsets, lengths, tensor.shape[0])
        packings.append(te.packing_of(tensor.shape[0], lengths, offsets))
    packing_q, packing_kv = packings
    if packing_q is not None:
        q = q.index_select(0, packing_q.order)
    if packing_kv is not None:
        k, v = k.index_select(0, packing_kv.order), v.index_select(0, packing_kv.order)
    return q, k, v, packing_q


def _sizes(q: Tensor, k: Tensor, layout: str) -> tuple[int, int, int]:
    """(batch, query length, key length) of a dense call."""
    batch, sequence = (1, 0) if layout == "sbhd" else (0, 1)
    return q.shape[batch], q.shape[sequence], k.shape[sequence]
