// SPDX-License-Identifier: Apache-2.0
// rules/flash.hpp: what no FlashAttention of any generation does (family F, docs/transformer_engine.md 1.8).
#pragma once

#include <tuple>

#include "rules/terms.hpp"

namespace cynosure::rules {

inline constexpr auto kFlashRows = std::tuple{
    row({.id = "flash.fp8_sm12x", .backends = kFlashBackends, .reads = {Field::fp8_dpa, Field::sm},
         .required = "FP8 attention on another architecture than 12.x", .evidence = "TE spec 1.8, stage 3", .te_stage = 3},
        [](const auto& c) { return fp8_attention(c) && sm12x(c); }),
    row({.id = "flash.max_logit", .backends = kFlashBackends, .reads = {Field::return_max_logit},
         .required = "return_max_logit off", .evidence = "TE spec 1.8, stage 5", .te_stage = 5},
        [](const auto& c) { return c.f.return_max_logit; }),
    row({.id = "flash.score_mod", .backends = kFlashBackends, .reads = {Field::score_mod, Field::score_mod_bprop},
         .required = "no score_mod callbacks", .evidence = "TE spec 1.8, stage 6", .te_stage = 6},
        [](const auto& c) { return c.f.score_mod || c.f.score_mod_bprop; }),
    row({.id = "flash.kv_cache_sm12x", .backends = kFlashBackends, .reads = {Field::kv_cache, Field::sm},
         .required = "no KV cache on architecture 12.x", .evidence = "TE spec 1.8, stage 7", .te_stage = 7},
        [](const auto& c) { return c.f.kv_cache != KvCache::none && sm12x(c); }),
    row({.id = "flash.sinks", .backends = kFlashBackends, .reads = {Field::softmax}, .required = "softmax 'vanilla' (no sinks)",
         .evidence = "TE spec 1.8, stage 11", .te_stage = 11},
        [](const auto& c) { return !vanilla(c); }),
    row({.id = "flash.cp_fp8", .backends = kFlashBackends, .reads = {Field::context_parallel, Field::fp8_dpa},
         .required = "context parallelism without FP8 attention", .evidence = "TE spec 1.8, stage 12", .te_stage = 12},
        [](const auto& c) { return c.f.context_parallel && fp8_attention(c); }),
    row({.id = "flash.cp_bottom_right", .backends = kFlashBackends, .reads = {Field::context_parallel, Field::causal, Field::align},
         .required = "context parallelism with a causal mask aligned top_left", .evidence = "TE spec 1.8, stage 12", .te_stage = 12},
        [](const auto& c) { return c.f.context_parallel && c.f.causal && c.f.align == Align::bottom_right; }),
    row({.id = "flash.cp_cross_causal", .backends = kFlashBackends,
         .reads = {Field::context_parallel, Field::causal, Field::seqlen_q, Field::seqlen_k},
         .required = "context parallelism with a causal mask over equal lengths", .evidence = "TE spec 1.8, stage 12", .te_stage = 12},
        [](const auto& c) { return c.f.context_parallel && c.f.causal && !c.len.q_equals_k(); }),
    row({.id = "flash.cp_bias", .backends = kFlashBackends, .reads = {Field::context_parallel, Field::bias_type, Field::layout},
         .required = "context parallelism without ALiBi or pre-scale bias, and with no bias at all for thd", .evidence = "TE spec 1.8, stage 12", .te_stage = 12},
        [](const auto& c) {
          return c.f.context_parallel && c.f.bias_type != BiasType::none && (c.f.bias_type != BiasType::post_scale_bias || thd(c));
        }),
    row({.id = "flash.attn_mask", .backends = kFlashBackends, .reads = {Field::attn_mask}, .required = "no dense attn_mask",
         .evidence = "TE spec 1.8, stage 13", .te_stage = 13},
        [](const auto& c) { return masked(c); }),
    row({.id = "flash.te_top_left_causal", .backends = kFlashBackends, .policies = Policies::te,
         .reads = {Field::causal, Field::align, Field::seqlen_q, Field::seqlen_k},
         .required = "equal maximum lengths, or a causal mask aligned bottom_right", .evidence = "TE spec 1.8, stage 13", .te_stage = 13},
        [](const auto& c) { return c.f.causal && c.f.align == Align::top_left && !c.len.q_equals_k(); }),
    row({.id = "flash.top_left", .backends = kFlashBackends, .policies = Policies::fastest,
         .reads = {Field::align, Field::seqlen_q, Field::seqlen_k, Field::padding, Field::same_lengths},
         .required = "align='bottom_right', or equal lengths in every sequence: FlashAttention's diagonal ends at the bottom right",
         .evidence = "flash-attn 2.1 changelog; NVIDIA/TransformerEngine#960; TE spec 1.15 Q4"},
        [](const auto& c) {
          return (c.f.causal || sliding_window(c) || c.f.bias_type == BiasType::alibi) && c.f.align == Align::top_left && !equal_lengths(c);
        }),
    row({.id = "flash.bias", .backends = kFlashBackends, .reads = {Field::bias_type}, .required = "no bias other than ALiBi slopes",
         .evidence = "TE spec 1.8, stage 15", .te_stage = 15},
        [](const auto& c) { return c.f.bias_type != BiasType::none && c.f.bias_type != BiasType::alibi; }),
    row({.id = "flash.te_bias_shape", .backends = kFlashBackends, .policies = Policies::te, .reads = {Field::bias_shape},
         .required = "bias shape None, even without a bias", .evidence = "TE spec 1.15 Q1, stage 15", .te_stage = 15},
        [](const auto& c) { return c.f.bias_shape != BiasShape::none; }),
    row({.id = "flash.lse_grad", .backends = kFlashBackends, .policies = Policies::fastest, .reads = {Field::lse_grad},
         .required = "lse_grad=False", .evidence = "its backward takes no gradient for the LSE"},
        [](const auto& c) { return c.f.lse_grad; }),
    row({.id = "any.kv_cache_cp", .backends = kFlashBackends | kCudnnBackends | Backend::unfused, .reads = {Field::kv_cache, Field::context_parallel},
         .required = "a KV cache without context parallelism", .evidence = "TE spec 1.6, stage 7", .te_stage = 7},
        [](const auto& c) { return c.f.kv_cache != KvCache::none && c.f.context_parallel; }),
    row({.id = "any.kv_cache_fp8_mha", .backends = kFlashBackends | kCudnnBackends | Backend::unfused, .reads = {Field::kv_cache, Field::fp8_mha},
         .required = "a KV cache without fp8_mha", .evidence = "TE spec 1.6, stage 7", .te_stage = 7},
        [](const auto& c) { return c.f.kv_cache != KvCache::none && fp8_attention(c) && c.f.fp8_mha; }),
    row({.id = "any.kv_cache_gaps", .backends = kFlashBackends | kCudnnBackends | Backend::unfused, .reads = {Field::kv_cache, Field::layout, Field::pad_between_seqs},
         .required = "a KV cache with queries in thd without gaps between sequences", .evidence = "TE spec 1.6, stage 7", .te_stage = 7},
        [](const auto& c) {
          return c.f.kv_cache != KvCache::none && !fp8_attention(c) && c.layout.q == Format::thd && c.f.pad_between_seqs;
        }),
};

}  // namespace cynosure::rules
