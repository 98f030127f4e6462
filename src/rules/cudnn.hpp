// SPDX-License-Identifier: Apache-2.0
// rules/cudnn.hpp: what holds for cuDNN's 16-bit and FP8 graphs alike (TE spec 1.9).
#pragma once

#include <tuple>

#include "rules/terms.hpp"

namespace cynosure::rules {

inline constexpr auto kCudnnRows = std::tuple{
    row({.id = "cudnn.arch", .backends = kCudnnBackends, .reads = {Field::sm}, .required = "compute capability 8.0 or newer",
         .evidence = "TE spec 1.9, stage 1", .te_stage = 1},
        [](const auto& c) { return c.d.sm < 80; }),
    row({.id = "cudnn.dtype", .backends = kCudnnBackends, .reads = {Field::dtype}, .required = "bfloat16, float16 or float8_e4m3",
         .evidence = "TE spec 1.9, stage 2", .te_stage = 2},
        [](const auto& c) { return !half(c.f.dtype) && c.f.dtype != DType::float8_e4m3; }),
    row({.id = "cudnn.tensor_kind", .backends = kCudnnBackends, .reads = {Field::tensor_kind}, .required = "plain, Float8 or MXFP8 tensors",
         .evidence = "TE spec 1.9, stage 2; 1.15 Q10", .te_stage = 2},
        [](const auto& c) { return c.f.tensor_kind == TensorKind::other && !plain_tensor(c); }),
    row({.id = "cudnn.num_splits", .backends = kCudnnBackends, .reads = {Field::num_splits}, .required = "num_splits=1",
         .evidence = "TE spec 1.9, stage 4", .te_stage = 4},
        [](const auto& c) { return c.f.num_splits != 1; }),
    row({.id = "cudnn.fp8_max_logit", .backends = kCudnnBackends, .reads = {Field::fp8_dpa, Field::return_max_logit},
         .required = "FP8 attention without return_max_logit", .evidence = "TE spec 1.9, stage 5", .te_stage = 5},
        [](const auto& c) { return fp8_attention(c) && c.f.return_max_logit; }),
    row({.id = "cudnn.score_mod_bprop", .backends = kCudnnBackends, .reads = {Field::score_mod, Field::score_mod_bprop},
         .required = "score_mod_bprop only together with score_mod", .evidence = "TE spec 1.9, stage 6", .te_stage = 6},
        [](const auto& c) { return c.f.score_mod_bprop && !c.f.score_mod; }),
    row({.id = "cudnn.score_mod", .backends = kCudnnBackends,
         .reads = {Field::score_mod, Field::dtype, Field::layout, Field::causal, Field::bias_type, Field::dropout},
         .required = "score_mod with 16-bit plain tensors, dense layouts, and no mask, window, bias, slopes, sinks, dropout, cache, context "
                     "parallelism, FP8, max_logit, checkpointing or CUDA graph",
         .evidence = "TE spec 1.9, stage 6", .te_stage = 6},
        [](const auto& c) {
          const bool allowed = half(c.f.dtype) && plain_tensor(c) && !c.f.fp8 && !c.f.fp8_output && c.f.kv_cache == KvCache::none &&
                               !c.f.context_parallel && c.layout.q != Format::thd && c.layout.kv != Format::thd &&
                               !c.f.pad_between_seqs && no_mask(c) && !masked(c) &&
                               !(c.f.window_given && (c.f.window_left != -1 || c.f.window_right != -1)) &&
                               c.f.bias_type == BiasType::none && !c.f.alibi_slopes && vanilla(c) && !c.f.dropout &&
                               !c.f.return_max_logit && !c.f.checkpoint && !c.f.cuda_graph && c.f.num_splits == 1;
          return c.f.score_mod && !allowed;
        }),
    row({.id = "cudnn.kv_cache_arch", .backends = kCudnnBackends, .reads = {Field::kv_cache, Field::sm},
         .required = "a KV cache on another compute capability than 8.9 and 12.x", .evidence = "TE spec 1.9, stage 7", .te_stage = 7},
        [](const auto& c) { return c.f.kv_cache != KvCache::none && (c.d.sm == 89 || sm12x(c)); }),
    row({.id = "cudnn.kv_cache_fp8", .backends = kCudnnBackends, .reads = {Field::kv_cache, Field::fp8_dpa},
         .required = "a KV cache without FP8 attention", .evidence = "TE spec 1.9, stage 7", .te_stage = 7},
        [](const auto& c) { return c.f.kv_cache != KvCache::none && fp8_attention(c); }),
    row({.id = "cudnn.te_head_dims_layout", .backends = kCudnnBackends, .policies = Policies::te, .reads = {Field::head_dim_qk, Field::head_dim_v, Field::layout},
         .required = "separate q, k and v, and no paged layout, for unequal head dims", .evidence = "TE spec 1.9, stage 8; 1.15 Q8", .te_stage = 8},
        [](const auto& c) { return c.f.head_dim_qk != c.f.head_dim_v && c.layout.group != LayoutGroup::separate; }),
    row({.id = "cudnn.head_dims_layout", .backends = kCudnnBackends, .policies = Policies::fastest, .reads = {Field::head_dim_qk, Field::head_dim_v, Field::layout},
         .required = "k and v in separate buffers for unequal head dims", .evidence = "TE spec 1.9, stage 8, without its quirk Q8"},
        [](const auto& c) { return c.f.head_dim_qk != c.f.head_dim_v && c.layout.group != LayoutGroup::separate && !paged_layout(c); }),
    row({.id = "cudnn.head_dims_sm12x", .backends = kCudnnBackends, .reads = {Field::head_dim_qk, Field::head_dim_v, Field::sm, Field::training},
         .required = "for unequal head dims with gradients on sm 12.x: head_dim_qk at most 128 and a multiple of 8", .evidence = "TE spec 1.9, stage 8", .te_stage = 8},
        [](const auto& c) {
          return c.f.head_dim_qk != c.f.head_dim_v && sm12x(c) && c.f.training && !(c.f.head_dim_qk <= 128 && c.f.head_dim_qk % 8 == 0);
        }),
    row({.id = "cudnn.thd_sm12x_version", .backends = kCudnnBackends, .reads = {Field::layout, Field::sm, Field::cudnn},
         .required = "cuDNN 9.18.1 or newer for ragged batches on sm 12.x", .evidence = "TE spec 1.9, stage 9", .te_stage = 9},
        [](const auto& c) { return thd(c) && sm12x(c) && c.d.cudnn < v(9, 18, 1); }),
    row({.id = "cudnn.thd_sm12x_packed", .backends = kCudnnBackends, .reads = {Field::layout, Field::sm},
         .required = "ragged batches not packed as t3hd or th3d on sm 12.x", .evidence = "TE spec 1.9, stage 9", .te_stage = 9},
        [](const auto& c) { return thd(c) && sm12x(c) && one_buffer_qkv(c); }),
    row({.id = "cudnn.sinks_fp8", .backends = kCudnnBackends, .reads = {Field::softmax, Field::fp8_dpa, Field::sm, Field::cudnn},
         .required = "compute capability 10.0 and cuDNN 9.21 or newer for sinks with FP8 attention", .evidence = "TE spec 1.9, stage 11", .te_stage = 11},
        [](const auto& c) { return !vanilla(c) && fp8_attention(c) && (c.d.sm < 100 || c.d.cudnn < v(9, 21)); }),
    row({.id = "cudnn.sinks_thd", .backends = kCudnnBackends, .reads = {Field::softmax, Field::layout, Field::cudnn},
         .required = "cuDNN 9.18 or newer for sinks in ragged batches", .evidence = "TE spec 1.9, stage 11", .te_stage = 11},
        [](const auto& c) { return !vanilla(c) && thd(c) && c.d.cudnn < v(9, 18); }),
    row({.id = "cudnn.sinks_cp", .backends = kCudnnBackends, .reads = {Field::softmax, Field::context_parallel, Field::cp_comm},
         .required = "context parallelism with a2a for sinks", .evidence = "TE spec 1.9, stage 11", .te_stage = 11},
        [](const auto& c) { return !vanilla(c) && c.f.context_parallel && c.f.cp_comm != CpComm::a2a; }),
    row({.id = "cudnn.cp_bottom_right", .backends = kCudnnBackends, .reads = {Field::context_parallel, Field::causal, Field::align},
         .required = "context parallelism with a causal mask aligned top_left", .evidence = "TE spec 1.9, stage 12", .te_stage = 12},
        [](const auto& c) { return c.f.context_parallel && c.f.causal && c.f.align == Align::bottom_right; }),
    row({.id = "cudnn.cp_cross_causal", .backends = kCudnnBackends, .reads = {Field::context_parallel, Field::causal, Field::seqlen_q, Field::seqlen_k},
         .required = "context parallelism with a causal mask over equal lengths", .evidence = "TE spec 1.9, stage 12", .te_stage = 12},
        [](const auto& c) { return c.f.context_parallel && c.f.causal && !c.len.q_equals_k(); }),
    row({.id = "cudnn.cp_bias", .backends = kCudnnBackends, .reads = {Field::context_parallel, Field::bias_type, Field::layout, Field::fp8_dpa, Field::cp_comm},
         .required = "context parallelism with no bias, or a post_scale_bias over p2p, in 16 bit and not ragged", .evidence = "TE spec 1.9, stage 12", .te_stage = 12},
        [](const auto& c) {
          return c.f.context_parallel && c.f.bias_type != BiasType::none &&
                 (c.f.bias_type != BiasType::post_scale_bias || thd(c) || fp8_attention(c) || c.f.cp_comm != CpComm::p2p);
        }),
    row({.id = "cudnn.cp_fp8_thd", .backends = kCudnnBackends, .reads = {Field::context_parallel, Field::fp8_dpa, Field::layout},
         .required = "FP8 context parallelism without ragged batches", .evidence = "TE spec 1.9, stage 12", .te_stage = 12},
        [](const auto& c) { return c.f.context_parallel && fp8_attention(c) && thd(c); }),
    row({.id = "cudnn.cp_window", .backends = kCudnnBackends, .reads = {Field::context_parallel, Field::window_left, Field::window_right, Field::cp_comm},
         .required = "all_gather or a2a for a sliding window under context parallelism", .evidence = "TE spec 1.9, stage 12", .te_stage = 12},
        [](const auto& c) {
          return c.f.context_parallel && c.f.window_given && sliding_window(c) && (c.f.cp_comm == CpComm::p2p || c.f.cp_comm == CpComm::a2a_p2p);
        }),
    row({.id = "cudnn.te_cp_heads", .backends = kCudnnBackends, .policies = Policies::te, .reads = {Field::context_parallel, Field::cp_comm, Field::heads, Field::kv_heads},
         .required = "even heads and kv_heads for a2a", .evidence = "TE spec 1.9, stage 12", .te_stage = 12},
        [](const auto& c) {
          return c.f.context_parallel && (c.f.cp_comm == CpComm::a2a || c.f.cp_comm == CpComm::a2a_p2p) && (c.f.heads % 2 != 0 || c.f.kv_heads % 2 != 0);
        }),
    row({.id = "cudnn.cp_heads", .backends = kCudnnBackends, .policies = Policies::fastest,
         .reads = {Field::context_parallel, Field::cp_comm, Field::cp_size, Field::heads, Field::kv_heads},
         .required = "heads and kv_heads divisible by cp_size for a2a (by 2 for a2a+p2p)", .evidence = "TE spec 1.15 Q11"},
        [](const auto& c) {
          const std::int32_t ranks = c.f.cp_comm == CpComm::a2a ? c.f.cp_size : 2;
          return c.f.context_parallel && (c.f.cp_comm == CpComm::a2a || c.f.cp_comm == CpComm::a2a_p2p) &&
                 (c.f.heads % ranks != 0 || c.f.kv_heads % ranks != 0);
        }),
    row({.id = "cudnn.te_attn_mask", .backends = kCudnnBackends, .policies = Policies::te, .reads = {Field::attn_mask},
         .required = "no arbitrary mask", .evidence = "TE spec 1.9, stage 13", .te_stage = 13},
        [](const auto& c) { return masked(c); }),
    row({.id = "cudnn.te_window_fp8", .backends = kCudnnBackends, .policies = Policies::te,
         .reads = {Field::window_left, Field::window_right, Field::fp8_dpa, Field::fp8_mha, Field::sm, Field::cudnn},
         .required = "compute capability 10.0 and cuDNN 9.21 or newer for a sliding window with fp8_dpa or fp8_mha", .evidence = "TE spec 1.9, stage 14", .te_stage = 14},
        [](const auto& c) {
          return sliding_window(c) && c.f.fp8 && (c.f.fp8_dpa || c.f.fp8_mha) && (c.d.sm < 100 || c.d.cudnn < v(9, 21));
        }),
    row({.id = "cudnn.window_fp8", .backends = kCudnnBackends, .policies = Policies::fastest,
         .reads = {Field::window_left, Field::window_right, Field::fp8_dpa, Field::sm, Field::cudnn},
         .required = "compute capability 10.0 and cuDNN 9.21 or newer for a sliding window with FP8 attention", .evidence = "TE spec 1.9, stage 14; 1.15 Q15"},
        [](const auto& c) { return sliding_window(c) && fp8_attention(c) && (c.d.sm < 100 || c.d.cudnn < v(9, 21)); }),
    row({.id = "cudnn.window_dropout", .backends = kCudnnBackends, .reads = {Field::window_left, Field::window_right, Field::dropout},
         .required = "a sliding window without dropout", .evidence = "TE spec 1.9, stage 14", .te_stage = 14},
        [](const auto& c) { return sliding_window(c) && c.f.dropout; }),
    row({.id = "cudnn.window_cross", .backends = kCudnnBackends, .reads = {Field::window_left, Field::window_right, Field::seqlen_q, Field::seqlen_k},
         .required = "no more queries than keys for a sliding window", .evidence = "TE spec 1.9, stage 14", .te_stage = 14},
        [](const auto& c) { return sliding_window(c) && !c.len.q_at_most_k(); }),
    row({.id = "cudnn.bias_gradient_111s", .backends = kCudnnBackends, .reads = {Field::bias_type, Field::bias_shape, Field::bias_requires_grad},
         .required = "no gradient for a bias of shape 111s", .evidence = "TE spec 1.9, stage 16", .te_stage = 16},
        [](const auto& c) {
          return c.f.bias_type == BiasType::post_scale_bias && c.f.bias_shape == BiasShape::one_one_one_s && c.f.bias_requires_grad;
        }),
    row({.id = "cudnn.deterministic_sinks", .backends = kCudnnBackends, .reads = {Field::deterministic, Field::softmax},
         .required = "no request for deterministic results with sinks", .evidence = "TE spec 1.11, stage 18", .te_stage = 18},
        [](const auto& c) { return c.s.deterministic() && !vanilla(c); }),

    // ours
    row({.id = "cudnn.softcap", .backends = kCudnnBackends, .policies = Policies::fastest, .reads = {Field::softcap}, .required = "softcap=0",
         .evidence = "the attention node of cuDNN's graph has no cap"},
        [](const auto& c) { return c.f.softcap; }),
    row({.id = "cudnn.lse_grad", .backends = kCudnnBackends, .policies = Policies::fastest, .reads = {Field::lse_grad}, .required = "lse_grad=False",
         .evidence = "cuDNN's backward takes no gradient for the statistics"},
        [](const auto& c) { return c.f.lse_grad; }),
    row({.id = "cudnn.bias_shape", .backends = kCudnnBackends, .policies = Policies::fastest, .reads = {Field::bias_type, Field::bias_shape},
         .required = "a bias of shape bhss, 1hss, b1ss, 11ss or 111s", .evidence = "TE spec 2.2"},
        [](const auto& c) {
          return c.f.bias_type == BiasType::post_scale_bias &&
                 (c.f.bias_shape == BiasShape::b_h_one_s || c.f.bias_shape == BiasShape::one_h_one_s || c.f.bias_shape == BiasShape::b_one_one_s);
        }),
};

}  // namespace cynosure::rules
