// SPDX-License-Identifier: Apache-2.0
// rules/flash3.hpp: the flash-attn-3 package, on Hopper.
#pragma once

#include <algorithm>
#include <tuple>

#include "rules/terms.hpp"

namespace cynosure::rules {

inline constexpr auto kFlash3Rows = std::tuple{
    row({.id = "flash3.arch",
         .backends = Backend::flash3,
         .reads = {Field::sm},
         .required = "compute capability 9.0",
         .evidence = "TE spec 1.8, stage 1",
         .te_stage = 1},
        [](const auto& c) { return c.d.sm != 90; }),
    row({.id = "flash3.dtype",
         .backends = Backend::flash3,
         .reads = {Field::dtype},
         .required = "bfloat16, float16 or float8_e4m3",
         .evidence = "TE spec 1.8, stage 2",
         .te_stage = 2},
        [](const auto& c) { return !half(c.f.dtype) && c.f.dtype != DType::float8_e4m3; }),
    row({.id = "flash3.tensor_kind",
         .backends = Backend::flash3,
         .reads = {Field::tensor_kind},
         .required = "plain or Float8 tensors",
         .evidence = "TE spec 1.8, stage 2; 1.15 Q10",
         .te_stage = 2},
        [](const auto& c) {
          return !plain_tensor(c) && c.f.tensor_kind != TensorKind::float8 &&
                 c.f.tensor_kind != TensorKind::float8_storage;
        }),
    row({.id = "flash3.fp8_training",
         .backends = Backend::flash3,
         .reads = {Field::fp8_dpa, Field::training},
         .required = "FP8 attention in inference only",
         .evidence = "TE spec 1.8, stage 3",
         .te_stage = 3},
        [](const auto& c) { return fp8_attention(c) && c.f.training; }),
    row({.id = "flash3.fp8_recipe",
         .backends = Backend::flash3,
         .reads = {Field::fp8_dpa, Field::fp8_recipe},
         .required = "FP8 recipe delayed or current",
         .evidence = "TE spec 1.8, stage 3",
         .te_stage = 3},
        [](const auto& c) {
          return fp8_attention(c) && c.f.fp8_recipe != Fp8Recipe::delayed && c.f.fp8_recipe != Fp8Recipe::current;
        }),
    row({.id = "flash3.kv_cache_fp8",
         .backends = Backend::flash3,
         .reads = {Field::kv_cache, Field::fp8_dpa, Field::layout},
         .required = "FP8 attention over a KV cache with queries in thd",
         .evidence = "TE spec 1.8, stage 7",
         .te_stage = 7},
        [](const auto& c) { return c.f.kv_cache != KvCache::none && fp8_attention(c) && c.layout.q != Format::thd; }),
    row({.id = "flash3.head_dim",
         .backends = Backend::flash3,
         .reads = {Field::head_dim_qk},
         .required = "head_dim_qk at most 256",
         .evidence = "TE spec 1.8, stage 8",
         .te_stage = 8},
        [](const auto& c) { return c.f.head_dim_qk > 256; }),
    row({.id = "flash3.heads",
         .backends = Backend::flash3,
         .reads = {Field::heads, Field::kv_heads},
         .required = "heads divisible by kv_heads",
         .evidence = "TE spec 1.8, stage 8",
         .te_stage = 8},
        [](const auto& c) { return c.f.heads % c.f.kv_heads != 0; }),
    row({.id = "flash3.head_dims",
         .backends = Backend::flash3,
         .reads = {Field::head_dim_qk, Field::head_dim_v, Field::dtype},
         .required =
             "equal head dims; or 128 < qk <= 192 with 96 < v <= 128; or qk <= 64 with v <= 512 (16 bit above 256)",
         .evidence = "TE spec 1.8, stage 8",
         .te_stage = 8},
        [](const auto& c) {
          const std::int32_t qk = c.f.head_dim_qk;
          const std::int32_t dv = c.f.head_dim_v;
          const bool pair = (qk > 128 && qk <= 192 && dv > 96 && dv <= 128) || (qk <= 64 && dv <= 512);
          return qk != dv && !(pair && (dv <= 256 || half(c.f.dtype)));
        }),
    row({.id = "flash3.dropout",
         .backends = Backend::flash3,
         .reads = {Field::dropout},
         .required = "no dropout",
         .evidence = "TE spec 1.8, stage 10",
         .te_stage = 10},
        [](const auto& c) { return c.f.dropout; }),
    row({.id = "flash3.alibi",
         .backends = Backend::flash3,
         .reads = {Field::bias_type},
         .required = "no ALiBi",
         .evidence = "TE spec 1.8, stage 15",
         .te_stage = 15},
        [](const auto& c) { return c.f.bias_type == BiasType::alibi; }),
    row({.id = "flash3.deterministic",
         .backends = Backend::flash3,
         .reads = {Field::deterministic, Field::training, Field::head_dim_qk, Field::head_dim_v},
         .required = "a deterministic backward with head dims below 256",
         .evidence = "TE spec 1.8, stage 18",
         .te_stage = 18},
        [](const auto& c) {
          return c.s.deterministic() && c.f.training && std::max(c.f.head_dim_qk, c.f.head_dim_v) >= 256;
        }),

    // ours
    row({.id = "flash3.fp8_backward",
         .backends = Backend::flash3,
         .policies = Policies::fastest,
         .reads = {Field::dtype, Field::training},
         .required = "FP8 data in inference only",
         .evidence = "TE spec 1.8, stage 3, which looks at the recipe alone: its backward has no FP8"},
        [](const auto& c) { return fp8(c.f.dtype) && c.f.training; }),
    row({.id = "flash3.head_dim_alignment",
         .backends = Backend::flash3,
         .policies = Policies::fastest,
         .reads = {Field::head_dim_qk, Field::head_dim_v, Field::dtype},
         .required = "head dims that are multiples of 8 (of 16 in FP8)",
         .evidence = "flash-attn-3's fwd: head_size % alignment == 0, with 16 bytes of elements"},
        [](const auto& c) {
          const std::int32_t multiple = fp8(c.f.dtype) || fp8_attention(c) ? 16 : 8;
          return c.f.head_dim_qk % multiple != 0 || c.f.head_dim_v % multiple != 0;
        }),
    row({.id = "flash3.backward_head_dims",
         .backends = Backend::flash3,
         .policies = Policies::fastest,
         .reads = {Field::training, Field::head_dim_qk, Field::head_dim_v},
         .required = "equal head dims when gradients are wanted",
         .evidence = "NVIDIA/TransformerEngine#3481: its backward crashes"},
        [](const auto& c) { return c.f.training && c.f.head_dim_qk != c.f.head_dim_v; }),
};

}  // namespace cynosure::rules
