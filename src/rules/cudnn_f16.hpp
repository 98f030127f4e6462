// SPDX-License-Identifier: Apache-2.0
// rules/cudnn_f16.hpp: cuDNN's 16-bit graph (TE spec 1.10, predicates A to N, and 1.11).
#pragma once

#include <algorithm>
#include <tuple>

#include "rules/terms.hpp"

namespace cynosure::rules {

/// The window of predicate I, resolved.
constexpr bool window_is(const auto& c, std::int32_t left, std::int32_t right) {
  return window_left(c) == left && window_right(c) == right;
}
constexpr bool default_window(const auto& c) {
  return window_left(c) == -1 && (window_right(c) == -1 || window_right(c) == 0);
}
constexpr bool no_bias_no_dropout(const auto& c) { return cudnn_no_bias(c) && !c.f.dropout; }

/// Some tensor of a ragged batch has more than 2^31 - 1 elements (judged by maximum lengths).
constexpr auto ragged_needs_64_bit(const auto& c) {
  // Beyond 2^31 any row is too long by itself; capped, so that its multiples stay within 64 bits.
  const auto row_of = [](std::int32_t heads, std::int32_t dim) {
    return std::min(std::int64_t{heads} * dim, kInt32Max + 1);
  };
  const std::int64_t q_row = row_of(c.f.heads, c.f.head_dim_qk);
  const std::int64_t k_row = row_of(c.f.kv_heads, c.f.head_dim_qk);
  const std::int64_t v_row = row_of(c.f.kv_heads, c.f.head_dim_v);
  const bool shared_kv = c.layout.group == LayoutGroup::kv_2hd || c.layout.group == LayoutGroup::kv_h2d;
  return both(c, Format::thd) &&
         (c.len.q.product_over_int32(one_buffer_qkv(c) ? 3 * q_row : q_row) ||
          c.len.k.product_over_int32(one_buffer_qkv(c) ? 0 : (shared_kv ? 2 * k_row : std::max(k_row, v_row))));
}

constexpr auto f16_head_dim(const auto& c) {
  const std::int32_t qk = c.f.head_dim_qk;
  const std::int32_t dv = c.f.head_dim_v;
  const Version cudnn = c.d.cudnn;
  const bool train = c.f.training;
  const bool within_256 = qk <= 256 && dv <= 256;
  const bool d1 = qk <= 128 && dv <= 128;
  const bool d2 = within_256 && c.d.sm == 90 && cudnn >= (train ? v(9, 5) : v(9, 1));
  const bool d3 = !train && c.d.sm >= 100 && cudnn >= v(9, 9) && !paged_layout(c);
  const bool d4 = !train && cudnn >= v(9, 10, 2);
  const bool d5 = train && qk == 192 && dv == 128 && c.d.sm >= 100 && cudnn >= v(9, 11);
  const bool d6 = train && qk == 256 && dv == 256 && c.d.sm >= 100 && c.d.sm < 110 &&
                  cudnn >= (c.layout.q == Format::thd || c.layout.kv == Format::thd ? v(9, 25) : v(9, 23)) &&
                  !paged_layout(c) && no_bias_no_dropout(c) && vanilla(c) &&
                  (window_is(c, -1, -1) || (c.f.causal && (window_right(c) == -1 || window_right(c) == 0)));
  const bool dx =
      cudnn >= v(9, 11) && train && c.d.sm == 90 && qk >= 128 && dv >= 128 && qk != dv && !(qk == 192 && dv == 128);
  const auto several_queries = c.len.q.at_least(2);
  return qk % 8 == 0 && dv % 8 == 0 && !dx &&
         (d1 || d2 || d5 || d6 || (d3 && several_queries) ||
          (d4 && (paged_layout(c) || several_queries || (c.len.q.equals(1) && !strictly_top_left(c)))));
}

constexpr auto f16_mask(const auto& c) {
  const Version cudnn = c.d.cudnn;
  const bool plain = no_bias_no_dropout(c);
  const auto tl = causal_top_left(c);
  const auto br = causal_bottom_right(c);
  const bool dense = bshd_or_sbhd(c);
  return (cudnn < v(8, 9, 6) && !c.f.padding && tl) || (cudnn >= v(8, 9, 6) && dense && (!c.f.causal || tl)) ||
         (cudnn >= v(9, 1) && both(c, Format::thd) && c.f.padding && (!c.f.causal || tl)) ||
         (cudnn >= v(9, 3) && dense && !c.f.padding && br && aligned64(c) && plain) ||
         (cudnn >= v(9, 5) && paged_layout(c) && plain && c.f.padding && (!c.f.causal || tl || (br && aligned64(c)))) ||
         (cudnn >= v(9, 6) && c.f.padding && br && aligned64(c) && plain) ||
         (cudnn >= v(9, 7) &&
          (no_mask(c) || (!c.f.padding && tl) || (c.f.padding && plain) || (br && c.len.q_at_most_k()))) ||
         (measured_cudnn(c) && c.f.padding);
}

/// The window's right side cuts keys off, counted from the last key, so that the library has its "bottom right" mask.
constexpr auto bottom_right_edge(const auto& c) {
  return window_right(c) >= 0 && c.f.align == Align::bottom_right && !equal_lengths(c) && !c.len.q.equals(1);
}

constexpr bool f16_layout(const auto& c) {
  const Version cudnn = c.d.cudnn;
  const bool q_thd = c.layout.q == Format::thd;
  const bool kv_thd = c.layout.kv == Format::thd;
  return bshd_or_sbhd(c) || both(c, Format::bhsd) ||
         (q_thd && kv_thd && c.d.sm >= 90 && (cudnn >= v(9, 6) || (cudnn >= v(9, 1) && c.f.heads == c.f.kv_heads))) ||
         (cudnn >= v(9, 7) && (!q_thd || !kv_thd || c.d.sm >= 90));
}

constexpr auto f16_window(const auto& c) {
  const Version cudnn = c.d.cudnn;
  const bool plain = no_bias_no_dropout(c);
  const auto tl = causal_top_left(c);
  const auto br = causal_bottom_right(c);
  const auto q_le_k = c.len.q_at_most_k();
  const bool any_window = window_left(c) >= -1 && window_right(c) >= -1;
  return (cudnn < v(9, 2) && default_window(c)) || (cudnn >= v(9, 2) && window_is(c, -1, -1) && no_mask(c)) ||
         (cudnn >= v(9, 2) && window_right(c) == 0 && !c.f.padding &&
          (!c.f.causal || tl || (br && c.len.q_equals_k())) && q_le_k && plain && bshd_or_sbhd(c)) ||
         (cudnn >= v(9, 6) && default_window(c)) ||
         (cudnn >= v(9, 6) && any_window && q_le_k && plain &&
          (no_mask(c) || (c.f.padding && (!c.f.causal || tl)) ||
           (br && (c.d.sm < 100 || cudnn > v(9, 7) || c.len.q_equals_k())))) ||
         (measured_cudnn(c) && any_window && (c.f.padding || q_le_k));
}

inline constexpr auto kCudnnF16Rows = std::tuple{
    row({.id = "cudnn_f16.dtype",
         .backends = Backend::cudnn,
         .reads = {Field::dtype, Field::fp8_dpa},
         .required = "16-bit attention (FP8 is cudnn_fp8's)",
         .evidence = "TE spec 1.7, probe dtype",
         .te_stage = 17},
        [](const auto& c) { return fp8_graph(c); }),
    row({.id = "cudnn_f16.version",
         .backends = Backend::cudnn,
         .reads = {Field::cudnn},
         .required = "cuDNN 8.9.0 or newer",
         .evidence = "TE spec 1.10",
         .te_stage = 17},
        [](const auto& c) { return c.d.cudnn < v(8, 9); }),
    row({.id = "cudnn_f16.arch_version",
         .backends = Backend::cudnn,
         .reads = {Field::sm, Field::cudnn},
         .required = "cuDNN 8.9.3 or newer for compute capability 8.x and 9.x (older: 8.0 and 9.0 only), 9.7 or newer "
                     "for 10.0 and up",
         .evidence = "TE spec 1.10 A",
         .te_stage = 17},
        [](const auto& c) {
          return !((c.d.cudnn < v(8, 9, 3) && (c.d.sm == 80 || c.d.sm == 90)) ||
                   (c.d.cudnn >= v(8, 9, 3) && c.d.sm >= 80 && c.d.sm < 100) ||
                   (c.d.cudnn >= v(9, 7) && c.d.sm >= 100));
        }),
    row({.id = "cudnn_f16.seqlen_64",
         .backends = Backend::cudnn,
         .reads = {Field::cudnn, Field::seqlen_q, Field::seqlen_k},
         .required = "cuDNN 9.0 or newer for lengths that are no multiple of 64",
         .evidence = "TE spec 1.10 B",
         .te_stage = 17},
        [](const auto& c) { return c.d.cudnn < v(9, 0) && !(c.len.q.multiple_of(64) && c.len.k.multiple_of(64)); }),
    row({.id = "cudnn_f16.gqa_version",
         .backends = Backend::cudnn,
         .reads = {Field::cudnn, Field::heads, Field::kv_heads},
         .required = "cuDNN 8.9.7 or newer for grouped-query attention",
         .evidence = "TE spec 1.10 C",
         .te_stage = 17},
        [](const auto& c) { return c.d.cudnn < v(8, 9, 7) && c.f.heads != c.f.kv_heads; }),
    row({.id = "cudnn_f16.head_dim",
         .backends = Backend::cudnn,
         .reads = {Field::head_dim_qk, Field::head_dim_v, Field::sm, Field::cudnn, Field::training, Field::seqlen_q},
         .required =
             "head dims that are multiples of 8 and at most 128; up to 256 on sm 9.0 (cuDNN 9.1, with gradients 9.5); "
             "larger in inference "
             "(9.10.2; sm 10.0 9.9); with gradients (192, 128) on sm 10.0 and up (9.11), (256, 256) on sm 10.x (9.23)",
         .evidence = "TE spec 1.10 D",
         .te_stage = 17},
        [](const auto& c) { return !f16_head_dim(c); }),
    row({.id = "cudnn_f16.bias",
         .backends = Backend::cudnn,
         .reads = {Field::bias_type, Field::attn_mask, Field::causal, Field::sm, Field::cudnn},
         .required = "no bias; or post_scale_bias with cuDNN 9.0 (8.9.6 on sm 9.0 and up); or built-in ALiBi under a "
                     "causal mask on sm 9.0 and up with 8.9.6",
         .evidence = "TE spec 1.10 E",
         .te_stage = 17},
        [](const auto& c) {
          const auto alibi = cudnn_alibi(c) && c.f.causal && !c.f.padding && c.d.sm >= 90 && c.d.cudnn >= v(8, 9, 6);
          const bool post_scale = cudnn_post_scale(c) &&
                                  ((c.d.sm >= 90 && c.d.cudnn >= v(8, 9, 6)) || (c.d.sm >= 80 && c.d.cudnn >= v(9, 0)));
          return !(cudnn_no_bias(c) || ((alibi || post_scale) && c.f.bias_type != BiasType::pre_scale_bias));
        }),
    row({.id = "cudnn_f16.mask",
         .backends = Backend::cudnn,
         .reads = {Field::causal, Field::align, Field::padding, Field::layout, Field::cudnn, Field::seqlen_q},
         .required = "a mask this cuDNN has: from 9.7 none, causal top_left, padding without bias and dropout, "
                     "bottom_right with Sq <= Skv",
         .evidence = "TE spec 1.10 F",
         .te_stage = 17},
        [](const auto& c) { return !f16_mask(c); }),
    row({.id = "cudnn_f16.te_padding_bias",
         .backends = Backend::cudnn,
         .policies = Policies::te,
         .reads = {Field::padding, Field::causal, Field::bias_type, Field::attn_mask},
         .required = "no post_scale_bias together with valid lengths, unless causal bottom_right",
         .evidence = "TE spec 1.10 G",
         .te_stage = 17},
        [](const auto& c) {
          return c.d.cudnn >= v(8, 9, 6) && c.f.padding && cudnn_post_scale(c) && (!c.f.causal || strictly_top_left(c));
        }),
    row({.id = "cudnn_f16.padding_bias",
         .backends = Backend::cudnn,
         .policies = Policies::fastest,
         .reads = {Field::padding, Field::bias_type, Field::attn_mask},
         .required = "no bias and no mask together with valid lengths",
         .evidence = "TE spec 1.10 G; H200, cuDNN 9.19: NaN behind a length reaches the output"},
        [](const auto& c) { return c.f.padding && cudnn_post_scale(c); }),
    row({.id = "cudnn_f16.bottom_right_plain",
         .backends = Backend::cudnn,
         .policies = Policies::fastest,
         .reads = {Field::causal, Field::align, Field::window_right, Field::bias_type, Field::attn_mask,
                   Field::dropout},
         .required =
             "no bias, mask or dropout where columns are cut off to the right, aligned bottom_right, over unequal "
             "lengths",
         .evidence = "cudnn-frontend 1.28 refuses it"},
        [](const auto& c) { return bottom_right_edge(c) && !no_bias_no_dropout(c); }),
    row({.id = "cudnn_f16.bottom_right_cross",
         .backends = Backend::cudnn,
         .policies = Policies::fastest,
         .reads = {Field::causal, Field::align, Field::window_right, Field::padding, Field::seqlen_q, Field::seqlen_k},
         .required = "no more queries than keys where columns are cut off to the right, aligned bottom_right",
         .evidence = "cudnn-frontend 1.28 refuses it"},
        [](const auto& c) { return bottom_right_edge(c) && !c.f.padding && !c.len.q_at_most_k(); }),
    row({.id = "cudnn_f16.one_by_one",
         .backends = Backend::cudnn,
         .policies = Policies::fastest,
         .reads = {Field::training, Field::seqlen_q, Field::seqlen_k},
         .required = "with gradients, more than one query or more than one key",
         .evidence = "cudnn-frontend 1.28 refuses it"},
        [](const auto& c) { return c.f.training && c.len.q.equals(1) && c.len.k.equals(1); }),
    row({.id = "cudnn_f16.sinks_one_query",
         .backends = Backend::cudnn,
         .policies = Policies::fastest,
         .reads = {Field::softmax, Field::seqlen_q},
         .required = "more than one query for sinks",
         .evidence = "cudnn-frontend 1.28 refuses it"},
        [](const auto& c) { return !vanilla(c) && c.len.q.equals(1); }),
    row({.id = "cudnn_f16.sinks_dropout",
         .backends = Backend::cudnn,
         .policies = Policies::fastest,
         .reads = {Field::softmax, Field::dropout, Field::training},
         .required = "with gradients, not sinks and dropout together",
         .evidence =
             "H200, cuDNN 9.19.0: the gradient of the sinks comes out times 1 - dropout_p; other versions unknown"},
        [](const auto& c) { return c.f.training && !vanilla(c) && c.f.dropout; }),
    row({.id = "cudnn_f16.layout",
         .backends = Backend::cudnn,
         .reads = {Field::layout, Field::sm, Field::cudnn, Field::heads, Field::kv_heads},
         .required = "bshd, sbhd or bhsd; thd on sm 9.0 and up with cuDNN 9.6 (9.1 without grouped queries); mixed "
                     "formats with 9.7",
         .evidence = "TE spec 1.10 H",
         .te_stage = 17},
        [](const auto& c) { return !f16_layout(c); }),
    row({.id = "cudnn_f16.window",
         .backends = Backend::cudnn,
         .reads = {Field::window_left, Field::window_right, Field::causal, Field::padding, Field::cudnn,
                   Field::seqlen_q},
         .required = "an unlimited window (with padding from cuDNN 9.6), or from 9.6 a window with Sq <= Skv, no bias, "
                     "no dropout",
         .evidence = "TE spec 1.10 I",
         .te_stage = 17},
        [](const auto& c) { return !f16_window(c); }),
    row({.id = "cudnn_f16.ragged_64_bit",
         .backends = Backend::cudnn,
         .reads = {Field::layout, Field::heads, Field::head_dim_qk, Field::seqlen_q, Field::seqlen_k, Field::cudnn},
         .required = "cuDNN 9.5 or newer for ragged tensors of more than 2^31 - 1 elements",
         .evidence = "TE spec 1.10 J",
         .te_stage = 17},
        [](const auto& c) { return c.d.cudnn < v(9, 5) && ragged_needs_64_bit(c); }),
    row({.id = "cudnn_f16.blocked_release",
         .backends = Backend::cudnn,
         .reads = {Field::cudnn},
         .required = "a release other than cuDNN 9.10.0 and 9.10.1, which have known bugs",
         .evidence = "TE spec 1.10 K; NVIDIA/TransformerEngine#2285",
         .te_stage = 17},
        [](const auto& c) { return c.d.cudnn == v(9, 10, 0) || c.d.cudnn == v(9, 10, 1); }),
    row({.id = "cudnn_f16.sinks_version",
         .backends = Backend::cudnn,
         .reads = {Field::softmax, Field::cudnn},
         .required = "cuDNN 9.13.1 or newer for sinks",
         .evidence = "TE spec 1.10 L",
         .te_stage = 17},
        [](const auto& c) { return !vanilla(c) && c.d.cudnn < v(9, 13, 1); }),
    row({.id = "cudnn_f16.max_logit_version",
         .backends = Backend::cudnn,
         .reads = {Field::return_max_logit, Field::cudnn},
         .required = "cuDNN 9.21 or newer for return_max_logit",
         .evidence = "TE spec 1.10 M",
         .te_stage = 17},
        [](const auto& c) { return c.f.return_max_logit && c.d.cudnn < v(9, 21); }),
    row({.id = "cudnn_f16.backward_sm10x",
         .backends = Backend::cudnn,
         .reads = {Field::training, Field::sm, Field::deterministic, Field::dropout, Field::bias_type, Field::cudnn},
         .required = "with gradients on sm 10.0 and up: not dropout and bias together; deterministic: neither, and "
                     "cuDNN 9.18.1 or newer",
         .evidence = "TE spec 1.10 N",
         .te_stage = 17},
        [](const auto& c) {
          const bool none = cudnn_no_bias(c);
          return c.d.sm >= 100 && c.f.training &&
                 !((!c.s.deterministic() && (!c.f.dropout || none)) ||
                   (c.s.deterministic() && c.d.cudnn >= v(9, 18, 1) && !c.f.dropout && none));
        }),
    row({.id = "cudnn_f16.sm12x_version",
         .backends = Backend::cudnn,
         .reads = {Field::sm, Field::cudnn},
         .required = "cuDNN 9.18.1 or newer on sm 12.x",
         .evidence = "TE spec 1.10, after N",
         .te_stage = 17},
        [](const auto& c) { return sm12x(c) && c.d.cudnn < v(9, 18, 1); }),
    row({.id = "cudnn_f16.sm12x_deterministic",
         .backends = Backend::cudnn,
         .reads = {Field::sm, Field::deterministic, Field::training},
         .required = "no deterministic backward on sm 12.x",
         .evidence = "TE spec 1.10, after N",
         .te_stage = 17},
        [](const auto& c) { return sm12x(c) && c.s.deterministic() && c.f.training; }),
    row({.id = "cudnn_f16.sm12x_packed",
         .backends = Backend::cudnn,
         .reads = {Field::sm, Field::layout},
         .required = "no t3hd or th3d on sm 12.x",
         .evidence = "TE spec 1.10, after N",
         .te_stage = 17},
        [](const auto& c) { return sm12x(c) && both(c, Format::thd) && one_buffer_qkv(c); }),
    row({.id = "cudnn_f16.deterministic",
         .backends = Backend::cudnn,
         .reads = {Field::deterministic, Field::training, Field::sm, Field::bias_requires_grad, Field::cudnn},
         .required = "for a deterministic backward: compute capability 9.0, cuDNN 8.9.5 or newer and no bias gradient",
         .evidence = "TE spec 1.11",
         .te_stage = 18},
        [](const auto& c) {
          return c.s.deterministic() && c.f.training && (c.d.sm < 90 || bias_gradient(c) || c.d.cudnn < v(8, 9, 5));
        }),
};

}  // namespace cynosure::rules
