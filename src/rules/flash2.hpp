// SPDX-License-Identifier: Apache-2.0
// rules/flash2.hpp: FlashAttention 2, as the flash-attn package and as built into torch (aten_flash).
#pragma once

#include <algorithm>
#include <tuple>

#include "rules/terms.hpp"

namespace cynosure::rules {

inline constexpr BackendSet kFlash2Kernels{Backend::flash2, Backend::aten_flash};

inline constexpr auto kFlash2Rows = std::tuple{
    row({.id = "flash2.arch", .backends = kFlash2Kernels, .reads = {Field::sm}, .required = "compute capability 8.0 or newer",
         .evidence = "TE spec 1.8, stage 1", .te_stage = 1},
        [](const auto& c) { return c.d.sm < 80; }),
    row({.id = "flash2.dtype", .backends = kFlash2Kernels, .reads = {Field::dtype}, .required = "bfloat16 or float16",
         .evidence = "TE spec 1.8, stage 2", .te_stage = 2},
        [](const auto& c) { return !half(c.f.dtype); }),
    row({.id = "flash2.fp8", .backends = kFlash2Kernels, .reads = {Field::fp8_dpa}, .required = "no FP8 attention",
         .evidence = "TE spec 1.8, stage 3", .te_stage = 3},
        [](const auto& c) { return fp8_attention(c); }),
    row({.id = "flash2.num_splits", .backends = kFlash2Kernels, .reads = {Field::num_splits}, .required = "num_splits=1",
         .evidence = "TE spec 1.8, stage 4", .te_stage = 4},
        [](const auto& c) { return c.f.num_splits != 1; }),
    row({.id = "flash2.page_size", .backends = Backend::flash2, .reads = {Field::kv_cache, Field::page_size},
         .required = "pages of a multiple of 256 tokens", .evidence = "TE spec 1.8, stage 7", .te_stage = 7},
        [](const auto& c) { return c.f.kv_cache == KvCache::paged && c.f.page_size % 256 != 0; }),
    row({.id = "flash2.paged_version", .backends = Backend::flash2, .reads = {Field::kv_cache, Field::flash2},
         .required = "flash-attn 2.5 or newer for a paged KV cache", .evidence = "TE spec 1.8, stage 7", .te_stage = 7},
        [](const auto& c) { return c.f.kv_cache == KvCache::paged && c.d.flash2.installed() && c.d.flash2 < v(2, 5); }),
    row({.id = "flash2.cache_length", .backends = Backend::flash2, .reads = {Field::kv_cache, Field::seqlen_k},
         .required = "a contiguous KV cache whose length is a multiple of 256", .evidence = "TE spec 1.8, stage 7", .te_stage = 7},
        [](const auto& c) { return c.f.kv_cache == KvCache::contiguous && !c.len.k.multiple_of(256); }),
    row({.id = "flash2.head_dim", .backends = kFlash2Kernels, .reads = {Field::head_dim_qk, Field::head_dim_v},
         .required = "the larger head dim a multiple of 8 and at most 256", .evidence = "TE spec 1.8, stage 8", .te_stage = 8},
        [](const auto& c) {
          const std::int32_t d = std::max(c.f.head_dim_qk, c.f.head_dim_v);
          return d > 256 || d % 8 != 0;
        }),
    row({.id = "flash2.te_head_dim_arch", .backends = kFlash2Kernels, .policies = Policies::te, .reads = {Field::head_dim_qk, Field::head_dim_v, Field::sm},
         .required = "head dims at most 192, or exactly compute capability 8.0, 9.0, 10.0 or 12.0", .evidence = "TE spec 1.8, stage 8", .te_stage = 8},
        [](const auto& c) {
          return std::max(c.f.head_dim_qk, c.f.head_dim_v) > 192 && c.d.sm != 80 && c.d.sm != 90 && c.d.sm != 100 && c.d.sm != 120;
        }),
    row({.id = "flash2.head_dim_arch", .backends = kFlash2Kernels, .policies = Policies::fastest, .reads = {Field::head_dim_qk, Field::head_dim_v, Field::sm},
         .required = "head dims at most 192 on compute capability 8.6 to 8.9", .evidence = "TE spec 1.8 (ranges instead of its exact list: NVIDIA/TransformerEngine#3360)"},
        [](const auto& c) { return std::max(c.f.head_dim_qk, c.f.head_dim_v) > 192 && c.d.sm > 80 && c.d.sm < 90; }),
    row({.id = "flash2.gaps", .backends = kFlash2Kernels, .reads = {Field::layout, Field::pad_between_seqs},
         .required = "ragged batches without gaps between sequences", .evidence = "TE spec 1.8, stage 9", .te_stage = 9},
        [](const auto& c) { return thd(c) && c.f.pad_between_seqs; }),
    row({.id = "flash2.window_version", .backends = Backend::flash2, .reads = {Field::window_left, Field::window_right, Field::flash2},
         .required = "flash-attn 2.3 or newer for a sliding window", .evidence = "TE spec 1.8, stage 14", .te_stage = 14},
        [](const auto& c) { return sliding_window(c) && c.d.flash2.installed() && c.d.flash2 < v(2, 3); }),
    row({.id = "flash2.alibi_version", .backends = Backend::flash2, .reads = {Field::bias_type, Field::flash2},
         .required = "flash-attn 2.4 or newer for ALiBi", .evidence = "TE spec 1.8, stage 15", .te_stage = 15},
        [](const auto& c) { return c.f.bias_type == BiasType::alibi && c.d.flash2.installed() && c.d.flash2 < v(2, 4); }),
    row({.id = "flash2.te_deterministic_version", .backends = Backend::flash2, .policies = Policies::te, .reads = {Field::deterministic, Field::flash2},
         .required = "flash-attn 2.4.1 or newer for deterministic results, in inference too", .evidence = "TE spec 1.8, stage 18", .te_stage = 18},
        [](const auto& c) { return c.s.deterministic() && c.d.flash2.installed() && c.d.flash2 < v(2, 4, 1); }),
    row({.id = "flash2.deterministic_version", .backends = Backend::flash2, .policies = Policies::fastest, .reads = {Field::deterministic, Field::training, Field::flash2},
         .required = "flash-attn 2.4.1 or newer for a deterministic backward", .evidence = "TE spec 1.8, stage 18; the forward has no atomics"},
        [](const auto& c) { return c.s.deterministic() && c.f.training && c.d.flash2.installed() && c.d.flash2 < v(2, 4, 1); }),

    // ours
    row({.id = "flash2.softcap_version", .backends = Backend::flash2, .policies = Policies::fastest, .reads = {Field::softcap, Field::flash2},
         .required = "flash-attn 2.6 or newer for a soft cap", .evidence = "flash-attn 2.6 changelog"},
        [](const auto& c) { return c.f.softcap && c.d.flash2.installed() && c.d.flash2 < v(2, 6); }),
    row({.id = "flash2.dropout_seed", .backends = kFlash2Kernels, .policies = Policies::fastest, .reads = {Field::dropout},
         .required = "no dropout: it draws its own seed and takes none, so a run could not be replayed",
         .evidence = "flash_attn::_flash_attn_forward and aten::_flash_attention_forward have no seed argument"},
        [](const auto& c) { return c.f.dropout; }),
    row({.id = "flash2.cp_all_gather_thd", .backends = Backend::flash2, .policies = Policies::fastest, .reads = {Field::context_parallel, Field::cp_comm, Field::layout},
         .required = "another communication than all_gather for ragged batches under context parallelism",
         .evidence = "TE spec 1.15 Q5: that path needs padded offsets, which FlashAttention 2 cannot take"},
        [](const auto& c) { return c.f.context_parallel && c.f.cp_comm == CpComm::all_gather && thd(c); }),
    row({.id = "aten_flash.softcap", .backends = Backend::aten_flash, .policies = Policies::fastest, .reads = {Field::softcap},
         .required = "softcap=0", .evidence = "aten::_flash_attention_forward has no cap"},
        [](const auto& c) { return c.f.softcap; }),
    row({.id = "aten_flash.alibi_backward", .backends = Backend::aten_flash, .policies = Policies::fastest, .reads = {Field::bias_type, Field::training},
         .required = "ALiBi without gradients", .evidence = "aten::_flash_attention_backward takes no slopes"},
        [](const auto& c) { return c.f.bias_type == BiasType::alibi && c.f.training; }),
    row({.id = "aten_flash.head_dims_equal", .backends = Backend::aten_flash, .policies = Policies::fastest, .reads = {Field::head_dim_qk, Field::head_dim_v},
         .required = "equal head dims of q, k and v", .evidence = "torch's sdp_utils: check_head_dim_size_flash"},
        [](const auto& c) { return c.f.head_dim_qk != c.f.head_dim_v; }),
    row({.id = "aten_flash.padding", .backends = Backend::aten_flash, .policies = Policies::fastest, .reads = {Field::padding, Field::layout},
         .required = "valid lengths in thd layout only", .evidence = "aten::_flash_attention_forward takes lengths of packed tokens"},
        [](const auto& c) { return c.f.padding && !thd(c); }),
    row({.id = "aten_flash.deterministic", .backends = Backend::aten_flash, .policies = Policies::fastest, .reads = {Field::deterministic, Field::training},
         .required = "no request for a deterministic backward", .evidence = "aten::_flash_attention_backward reads torch's global flag, not the call's"},
        [](const auto& c) { return c.s.deterministic() && c.f.training; }),
    row({.id = "aten_flash.kv_cache", .backends = Backend::aten_flash, .policies = Policies::fastest, .reads = {Field::kv_cache, Field::context_parallel},
         .required = "no KV cache and no context parallelism", .evidence = "aten::_flash_attention_forward has no such arguments"},
        [](const auto& c) { return c.f.kv_cache != KvCache::none || c.f.context_parallel; }),
};

}  // namespace cynosure::rules
