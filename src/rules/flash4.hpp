// SPDX-License-Identifier: Apache-2.0
// rules/flash4.hpp: the flash-attn-4 package.
#pragma once

#include <numeric>
#include <tuple>

#include "rules/terms.hpp"

namespace cynosure::rules {

constexpr bool datacenter_blackwell(const auto& c) { return c.d.sm >= 100 && c.d.sm < 120; }
constexpr bool head_dims(const auto& c, std::int32_t qk, std::int32_t dv) {
  return c.f.head_dim_qk == qk && c.f.head_dim_v == dv;
}
/// The package's own head-dim check; 8 elements are 16 bytes of a 16-bit type, the only ones it takes.
constexpr bool flash4_head_dims_accepted(const auto& c) {
  const std::int32_t qk = c.f.head_dim_qk;
  const std::int32_t dv = c.f.head_dim_v;
  const bool aligned = qk % 8 == 0 && dv % 8 == 0 && qk >= 8 && dv >= 8;
  if (c.d.sm >= 90 && c.d.sm < 100) return aligned && qk <= 256 && dv <= 256;
  if (datacenter_blackwell(c))
    return (aligned && qk <= 128 && dv <= 128) || head_dims(c, 192, 128) || head_dims(c, 64, 512) ||
           head_dims(c, 256, 256);
  return true;
}

inline constexpr auto kFlash4Rows = std::tuple{
    row({.id = "flash4.arch",
         .backends = Backend::flash4,
         .reads = {Field::sm},
         .required = "compute capability 9.0 or newer",
         .evidence = "TE spec 1.8, stage 1",
         .te_stage = 1},
        [](const auto& c) { return c.d.sm < 90; }),
    row({.id = "flash4.te_flash3_first",
         .backends = Backend::flash4,
         .policies = Policies::te,
         .reads = {Field::sm, Field::flash3},
         .required = "FlashAttention 3 absent or switched off: on sm 9.0 TransformerEngine drops FA4 for it before "
                     "looking at the problem",
         .evidence = "TE spec 1.15 Q3, stage 1",
         .te_stage = 1},
        [](const auto& c) {
          return c.d.sm == 90 && c.d.flash3.installed() && c.d.flash4.installed() &&
                 c.s.enabled().contains(Backend::flash3);
        }),
    row({.id = "flash4.dtype",
         .backends = Backend::flash4,
         .reads = {Field::dtype},
         .required = "bfloat16 or float16",
         .evidence = "TE spec 1.8, stage 2",
         .te_stage = 2},
        [](const auto& c) { return !half(c.f.dtype); }),
    row({.id = "flash4.fp8",
         .backends = Backend::flash4,
         .reads = {Field::fp8_dpa},
         .required = "no FP8 attention",
         .evidence = "TE spec 1.8, stage 3",
         .te_stage = 3},
        [](const auto& c) { return fp8_attention(c); }),
    row({.id = "flash4.num_splits",
         .backends = Backend::flash4,
         .reads = {Field::num_splits, Field::sm},
         .required = "num_splits=1, or compute capability 10.0 or newer",
         .evidence = "TE spec 1.8, stage 4",
         .te_stage = 4},
        [](const auto& c) { return c.f.num_splits != 1 && c.d.sm < 100; }),
    row({.id = "flash4.kv_cache",
         .backends = Backend::flash4,
         .reads = {Field::kv_cache},
         .required = "no KV cache",
         .evidence = "TE spec 1.8, stage 7",
         .te_stage = 7},
        [](const auto& c) { return c.f.kv_cache != KvCache::none; }),
    row({.id = "flash4.head_dim",
         .backends = Backend::flash4,
         .reads = {Field::head_dim_qk, Field::head_dim_v, Field::sm},
         .required =
             "multiples of 8: up to 256 on sm 9.x; up to 128, or (192, 128), (64, 512), (256, 256) on sm 10.x and 11.x",
         .evidence = "flash-attn-4's validator; TE spec 1.3",
         .te_stage = 8},
        [](const auto& c) { return !flash4_head_dims_accepted(c); }),
    row({.id = "flash4.head_dim_512",
         .backends = Backend::flash4,
         .reads = {Field::head_dim_qk, Field::head_dim_v, Field::sm},
         .required = "not (512, 512) on sm 10.x and 11.x",
         .evidence = "TE spec 1.8, stage 8",
         .te_stage = 8},
        [](const auto& c) { return datacenter_blackwell(c) && head_dims(c, 512, 512); }),
    row({.id = "flash4.head_dim_256_cross",
         .backends = Backend::flash4,
         .reads = {Field::head_dim_qk, Field::head_dim_v, Field::sm, Field::seqlen_q, Field::seqlen_k},
         .required = "equal lengths for head dims (256, 256) on sm 10.x and 11.x",
         .evidence = "TE spec 1.8, stage 8",
         .te_stage = 8},
        [](const auto& c) { return datacenter_blackwell(c) && head_dims(c, 256, 256) && !c.len.q_equals_k(); }),
    row({.id = "flash4.head_dim_256_window",
         .backends = Backend::flash4,
         .reads = {Field::head_dim_qk, Field::head_dim_v, Field::sm, Field::window_left, Field::window_right},
         .required = "no sliding window for head dims (256, 256) on sm 10.x and 11.x",
         .evidence = "TE spec 1.8, stage 14",
         .te_stage = 14},
        [](const auto& c) { return datacenter_blackwell(c) && head_dims(c, 256, 256) && sliding_window(c); }),
    row({.id = "flash4.backward_head_dims",
         .backends = Backend::flash4,
         .reads = {Field::training, Field::head_dim_qk, Field::head_dim_v, Field::sm},
         .required = "for a backward with unequal head dims and qk >= 128 on sm 10.x and 11.x: ceil16(v)/2 divisible "
                     "by gcd(32, ceil16(qk)/2)",
         .evidence = "TE spec 1.8, stage 8",
         .te_stage = 8},
        [](const auto& c) {
          const auto half_of_ceil16 = [](std::int64_t x) { return (x + 15) / 16 * 16 / 2; };
          return datacenter_blackwell(c) && c.f.training && c.f.head_dim_qk != c.f.head_dim_v &&
                 c.f.head_dim_qk >= 128 &&
                 half_of_ceil16(c.f.head_dim_v) % std::gcd(std::int64_t{32}, half_of_ceil16(c.f.head_dim_qk)) != 0;
        }),
    row({.id = "flash4.gaps",
         .backends = Backend::flash4,
         .reads = {Field::layout, Field::pad_between_seqs},
         .required = "ragged batches without gaps between sequences",
         .evidence = "TE spec 1.8, stage 9",
         .te_stage = 9},
        [](const auto& c) { return thd(c) && c.f.pad_between_seqs; }),
    row({.id = "flash4.dropout",
         .backends = Backend::flash4,
         .reads = {Field::dropout},
         .required = "no dropout",
         .evidence = "TE spec 1.8, stage 10",
         .te_stage = 10},
        [](const auto& c) { return c.f.dropout; }),
    row({.id = "flash4.cp",
         .backends = Backend::flash4,
         .reads = {Field::context_parallel},
         .required = "no context parallelism",
         .evidence = "TE spec 1.8, stage 12",
         .te_stage = 12},
        [](const auto& c) { return c.f.context_parallel; }),
    row({.id = "flash4.alibi",
         .backends = Backend::flash4,
         .reads = {Field::bias_type},
         .required = "no ALiBi",
         .evidence = "TE spec 1.8, stage 15",
         .te_stage = 15},
        [](const auto& c) { return c.f.bias_type == BiasType::alibi; }),
};

}  // namespace cynosure::rules
