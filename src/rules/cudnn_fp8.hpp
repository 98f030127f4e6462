// SPDX-License-Identifier: Apache-2.0
// rules/cudnn_fp8.hpp: cuDNN's FP8 graph (TE spec 1.9 by recipe, 1.10 FP8, 1.11).
#pragma once

#include <tuple>

#include "rules/terms.hpp"

namespace cynosure::rules {

constexpr auto fp8_shape(const auto& c) {
  const std::int32_t qk = c.f.head_dim_qk;
  const std::int32_t dv = c.f.head_dim_v;
  const bool by16 = qk % 16 == 0 && dv % 16 == 0;
  const auto tl = causal_top_left(c);
  const bool hopper = c.d.sm < 100;
  const auto a = c.d.cudnn >= v(9, 2, 1) && hopper && qk == 128 && dv == 128 && !c.f.padding && (!c.f.causal || tl) &&
                 c.len.q.multiple_of(128) && c.len.k.multiple_of(128);
  const auto b = c.d.cudnn >= v(9, 7) && by16 && (!c.f.causal || tl) &&
                 ((hopper && !c.f.training && qk <= 256 && dv <= 256) ||
                  (hopper && c.f.training && qk == 128 && dv == 128) || (!hopper && qk <= 128 && dv <= 128));
  const auto newest = c.d.cudnn >= v(9, 21) && !hopper && qk <= 192 && dv <= 128 && by16 && !c.f.padding;
  return a || b || newest;
}

inline constexpr auto kCudnnFp8Rows = std::tuple{
    row({.id = "cudnn_fp8.dtype",
         .backends = Backend::cudnn_fp8,
         .reads = {Field::dtype, Field::fp8, Field::fp8_dpa},
         .required = "FP8 attention (a recipe with fp8_dpa, or FP8 data)",
         .evidence = "TE spec 1.7, probe dtype",
         .te_stage = 17},
        [](const auto& c) { return !fp8_graph(c); }),
    row({.id = "cudnn_fp8.sm12x",
         .backends = kCudnnBackends,
         .reads = {Field::fp8_dpa, Field::sm},
         .required = "FP8 attention on another architecture than 12.x",
         .evidence = "TE spec 1.9, stage 3",
         .te_stage = 3},
        [](const auto& c) { return fp8_attention(c) && sm12x(c); }),
    row({.id = "cudnn_fp8.delayed_deterministic",
         .backends = Backend::cudnn_fp8,
         .reads = {Field::fp8_recipe, Field::sm, Field::deterministic, Field::cudnn},
         .required = "cuDNN 9.18 or newer for deterministic delayed scaling on sm 10.0 and up",
         .evidence = "TE spec 1.9, stage 3",
         .te_stage = 3},
        [](const auto& c) {
          return fp8_attention(c) && c.f.fp8_recipe == Fp8Recipe::delayed && c.d.sm >= 100 && c.s.deterministic() &&
                 c.d.cudnn < v(9, 18);
        }),
    row({.id = "cudnn_fp8.current",
         .backends = Backend::cudnn_fp8,
         .reads = {Field::fp8_recipe, Field::sm, Field::deterministic, Field::cudnn},
         .required = "compute capability 10.0 and cuDNN 9.14 or newer for current scaling, 9.18 if deterministic",
         .evidence = "TE spec 1.9, stage 3",
         .te_stage = 3},
        [](const auto& c) {
          return fp8_attention(c) && c.f.fp8_recipe == Fp8Recipe::current &&
                 (c.d.sm < 100 || c.d.cudnn < v(9, 14) || (c.s.deterministic() && c.d.cudnn < v(9, 18)));
        }),
    row({.id = "cudnn_fp8.mxfp8",
         .backends = Backend::cudnn_fp8,
         .reads = {Field::fp8_recipe, Field::sm, Field::fp8_mha, Field::cudnn, Field::layout},
         .required = "for MXFP8: compute capability 10.0, cuDNN 9.21 or newer but not 9.23.0 or 9.23.1, no fp8_mha, no "
                     "ragged batch",
         .evidence = "TE spec 1.9, stage 3",
         .te_stage = 3},
        [](const auto& c) {
          return fp8_attention(c) && c.f.fp8_recipe == Fp8Recipe::mxfp8 &&
                 (c.d.sm < 100 || c.f.fp8_mha || c.d.cudnn < v(9, 21) || c.d.cudnn == v(9, 23, 0) ||
                  c.d.cudnn == v(9, 23, 1) || thd(c));
        }),
    row({.id = "cudnn_fp8.recipe",
         .backends = Backend::cudnn_fp8,
         .reads = {Field::fp8_recipe},
         .required = "FP8 recipe delayed, current or mxfp8",
         .evidence = "TE spec 1.9, stage 3",
         .te_stage = 3},
        [](const auto& c) {
          return fp8_attention(c) && (c.f.fp8_recipe == Fp8Recipe::block || c.f.fp8_recipe == Fp8Recipe::nvfp4);
        }),
    row({.id = "cudnn_fp8.score_mod",
         .backends = Backend::cudnn_fp8,
         .reads = {Field::score_mod},
         .required = "no score_mod: it runs on the 16-bit graph only",
         .evidence = "TE spec 1.9, stage 17",
         .te_stage = 17},
        [](const auto& c) { return c.f.score_mod; }),
    row({.id = "cudnn_fp8.arch",
         .backends = Backend::cudnn_fp8,
         .reads = {Field::sm},
         .required = "compute capability 9.0 or newer",
         .evidence = "TE spec 1.10 FP8",
         .te_stage = 17},
        [](const auto& c) { return c.d.sm < 90; }),
    row({.id = "cudnn_fp8.version",
         .backends = Backend::cudnn_fp8,
         .reads = {Field::cudnn},
         .required = "cuDNN 8.9.0 or newer",
         .evidence = "TE spec 1.10",
         .te_stage = 17},
        [](const auto& c) { return c.d.cudnn < v(8, 9); }),
    row({.id = "cudnn_fp8.bias",
         .backends = Backend::cudnn_fp8,
         .reads = {Field::bias_type, Field::attn_mask},
         .required = "no bias and no dense mask",
         .evidence = "TE spec 1.10 FP8",
         .te_stage = 17},
        [](const auto& c) { return !cudnn_no_bias(c); }),
    row({.id = "cudnn_fp8.max_logit",
         .backends = Backend::cudnn_fp8,
         .reads = {Field::return_max_logit},
         .required = "return_max_logit off",
         .evidence = "TE spec 1.10 FP8",
         .te_stage = 17},
        [](const auto& c) { return c.f.return_max_logit; }),
    row({.id = "cudnn_fp8.blocked_release",
         .backends = Backend::cudnn_fp8,
         .reads = {Field::cudnn},
         .required = "a release other than cuDNN 9.10.0",
         .evidence = "TE spec 1.10 FP8",
         .te_stage = 17},
        [](const auto& c) { return c.d.cudnn == v(9, 10, 0); }),
    row({.id = "cudnn_fp8.layout",
         .backends = Backend::cudnn_fp8,
         .reads = {Field::layout, Field::softmax, Field::cudnn},
         .required = "bshd or sbhd without sinks; from cuDNN 9.21 bhsd and sinks too",
         .evidence = "TE spec 1.10 FP8",
         .te_stage = 17},
        [](const auto& c) {
          return !(c.d.cudnn < v(9, 21) ? (bshd_or_sbhd(c) && vanilla(c)) : (bshd_or_sbhd(c) || both(c, Format::bhsd)));
        }),
    row({.id = "cudnn_fp8.shape",
         .backends = Backend::cudnn_fp8,
         .reads = {Field::head_dim_qk, Field::head_dim_v, Field::training, Field::causal, Field::sm, Field::cudnn},
         .required = "head dims that are multiples of 16 within this cuDNN's range (sm 9.0: 128 with gradients, 256 "
                     "without; sm 10.0: 128, from 9.21 (192, 128)) and a mask it has",
         .evidence = "TE spec 1.10 FP8 a, b, c",
         .te_stage = 17},
        [](const auto& c) { return !fp8_shape(c); }),
    row({.id = "cudnn_fp8.deterministic",
         .backends = Backend::cudnn_fp8,
         .reads = {Field::deterministic, Field::training, Field::cudnn},
         .required = "cuDNN 9.19 or newer for a deterministic backward",
         .evidence = "TE spec 1.11",
         .te_stage = 18},
        [](const auto& c) { return c.s.deterministic() && c.f.training && (c.d.sm < 90 || c.d.cudnn < v(9, 19)); }),

    // ours
    row({.id = "cudnn_fp8.window",
         .backends = Backend::cudnn_fp8,
         .policies = Policies::fastest,
         .reads = {Field::window_left, Field::window_right, Field::dtype, Field::sm, Field::cudnn},
         .required = "compute capability 10.0 and cuDNN 9.21 or newer for a sliding window",
         .evidence = "TE spec 2.4: its FP8 rules do not examine the window"},
        [](const auto& c) { return sliding_window(c) && (c.d.sm < 100 || c.d.cudnn < v(9, 21)); }),
    row({.id = "cudnn_fp8.cp_all_gather",
         .backends = Backend::cudnn_fp8,
         .policies = Policies::fastest,
         .reads = {Field::context_parallel, Field::cp_comm, Field::causal, Field::sm},
         .required =
             "another communication than all_gather for a causal mask below sm 10.0: each step runs as bottom_right",
         .evidence = "TE spec 1.15 Q6"},
        [](const auto& c) {
          return c.f.context_parallel && c.f.cp_comm == CpComm::all_gather && c.f.causal && c.d.sm < 100;
        }),
};

}  // namespace cynosure::rules
