// SPDX-License-Identifier: Apache-2.0
// rules/cpu.hpp: our own CPU kernels.
#pragma once

#include <tuple>

#include "rules/terms.hpp"

namespace cynosure::rules {

inline constexpr auto kCpuRows = std::tuple{
    row({.id = "cpu.dtype",
         .backends = Backend::cpu,
         .reads = {Field::dtype},
         .required = "float32, bfloat16 or float16",
         .evidence = "the kernels' types"},
        [](const auto& c) { return c.f.dtype != DType::float32 && !half(c.f.dtype); }),
    row({.id = "cpu.fp8",
         .backends = Backend::cpu,
         .reads = {Field::fp8_dpa},
         .required = "no FP8 attention",
         .evidence = "the kernels' types"},
        [](const auto& c) { return fp8_attention(c); }),
    row({.id = "cpu.num_splits",
         .backends = Backend::cpu,
         .reads = {Field::num_splits},
         .required = "num_splits=1",
         .evidence = "splits follow the shapes, so that results do not depend on threads"},
        [](const auto& c) { return c.f.num_splits != 1; }),
    row({.id = "cpu.score_mod",
         .backends = Backend::cpu,
         .reads = {Field::score_mod, Field::score_mod_bprop},
         .required = "no score_mod callbacks",
         .evidence = "callbacks build cuDNN graphs"},
        [](const auto& c) { return c.f.score_mod || c.f.score_mod_bprop; }),
    row({.id = "cpu.max_logit",
         .backends = Backend::cpu,
         .reads = {Field::return_max_logit},
         .required = "return_max_logit off",
         .evidence = "not an output of the kernels"},
        [](const auto& c) { return c.f.return_max_logit; }),
    row({.id = "cpu.pre_scale_bias",
         .backends = Backend::cpu,
         .reads = {Field::bias_type},
         .required = "a bias added after scaling",
         .evidence = "the definition of attn_bias"},
        [](const auto& c) { return c.f.bias_type == BiasType::pre_scale_bias; }),
    row({.id = "cpu.gaps",
         .backends = Backend::cpu,
         .reads = {Field::layout, Field::pad_between_seqs},
         .required = "ragged batches without gaps between sequences",
         .evidence = "one cu_seqlens for offsets and lengths"},
        [](const auto& c) { return thd(c) && c.f.pad_between_seqs; }),
    row({.id = "cpu.kv_cache",
         .backends = Backend::cpu,
         .reads = {Field::kv_cache, Field::context_parallel},
         .required = "no KV cache and no context parallelism",
         .evidence = "not arguments of the kernels"},
        [](const auto& c) { return c.f.kv_cache != KvCache::none || c.f.context_parallel; }),
};

}  // namespace cynosure::rules
