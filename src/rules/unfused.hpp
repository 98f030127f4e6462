// SPDX-License-Identifier: Apache-2.0
// rules/unfused.hpp: the reference (TE spec 1.12).
#pragma once

#include <tuple>

#include "rules/terms.hpp"

namespace cynosure::rules {

constexpr bool fp8_emulated(const auto& c) { return c.s.on(Settings::emulate_fp8) || c.s.on(Settings::onnx_export); }

inline constexpr auto kUnfusedRows = std::tuple{
    row({.id = "unfused.fp8",
         .backends = Backend::unfused,
         .reads = {Field::fp8_dpa, Field::emulate_fp8, Field::onnx_export},
         .required = "FP8 attention only emulated (NVTE_UnfusedDPA_Emulate_FP8=1) or in ONNX export",
         .evidence = "TE spec 1.12, stage 3",
         .te_stage = 3},
        [](const auto& c) { return fp8_attention(c) && !fp8_emulated(c); }),
    row({.id = "unfused.num_splits",
         .backends = Backend::unfused,
         .reads = {Field::num_splits},
         .required = "num_splits=1",
         .evidence = "TE spec 1.12, stage 4",
         .te_stage = 4},
        [](const auto& c) { return c.f.num_splits != 1; }),
    row({.id = "unfused.fp8_max_logit",
         .backends = Backend::unfused,
         .reads = {Field::fp8_dpa, Field::return_max_logit},
         .required = "FP8 attention without return_max_logit",
         .evidence = "TE spec 1.12, stage 5",
         .te_stage = 5},
        [](const auto& c) { return fp8_attention(c) && c.f.return_max_logit; }),
    row({.id = "unfused.score_mod",
         .backends = Backend::unfused,
         .reads = {Field::score_mod, Field::score_mod_bprop},
         .required = "no score_mod callbacks",
         .evidence = "TE spec 1.12, stage 6",
         .te_stage = 6},
        [](const auto& c) { return c.f.score_mod || c.f.score_mod_bprop; }),
    row({.id = "unfused.gaps",
         .backends = Backend::unfused,
         .reads = {Field::layout, Field::pad_between_seqs},
         .required = "ragged batches without gaps between sequences",
         .evidence = "TE spec 1.12, stage 9",
         .te_stage = 9},
        [](const auto& c) { return thd(c) && c.f.pad_between_seqs; }),
    row({.id = "unfused.fp8_sinks",
         .backends = Backend::unfused,
         .reads = {Field::fp8_dpa, Field::softmax},
         .required = "FP8 attention without sinks",
         .evidence = "TE spec 1.12, stage 11",
         .te_stage = 11},
        [](const auto& c) { return fp8_attention(c) && !vanilla(c); }),
    row({.id = "unfused.cp",
         .backends = Backend::unfused,
         .reads = {Field::context_parallel},
         .required = "no context parallelism",
         .evidence = "TE spec 1.12, stage 12",
         .te_stage = 12},
        [](const auto& c) { return c.f.context_parallel; }),

    // ours
    row({.id = "unfused.dtype",
         .backends = Backend::unfused,
         .policies = Policies::fastest,
         .reads = {Field::dtype},
         .required = "float32, float64, bfloat16 or float16",
         .evidence = "torch.matmul has no plain FP8 product"},
        [](const auto& c) { return fp8(c.f.dtype); }),
};

}  // namespace cynosure::rules
