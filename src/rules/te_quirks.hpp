// SPDX-License-Identifier: Apache-2.0
// rules/te_quirks.hpp: rows of policy `te` alone that are about what TransformerEngine is, not about any backend.
#pragma once

#include <tuple>

#include "rules/terms.hpp"

namespace cynosure::rules {

inline constexpr auto kTeRows = std::tuple{
    row({.id = "cpu.te_unknown",
         .backends = Backend::cpu,
         .policies = Policies::te,
         .reads = {Field::policy, Field::contract},
         .required = "named in the contract: TransformerEngine does not know this backend",
         .evidence = "policy te"},
        [](const auto& c) { return !c.s.names(Backend::cpu); }),
    row({.id = "aten_flash.te_unknown",
         .backends = Backend::aten_flash,
         .policies = Policies::te,
         .reads = {Field::policy, Field::contract},
         .required = "named in the contract: TransformerEngine does not know this backend",
         .evidence = "policy te"},
        [](const auto& c) { return !c.s.names(Backend::aten_flash); }),
    row({.id = "unfused.te_cpu_device",
         .backends = Backend::unfused,
         .policies = Policies::te,
         .reads = {Field::device_kind, Field::contract},
         .required = "a CUDA device, or named in the contract: TransformerEngine runs on CUDA only",
         .evidence = "TE spec 2.3"},
        [](const auto& c) { return c.d.kind != DeviceKind::cuda && !c.s.names(Backend::unfused); }),
};

/// A quirk of order (TE spec 1.6, exception 2): a top-left window over unequal lengths kills the whole family,
/// but only while FlashAttention 2 is still alive at stage 14. Its predicate gets that as a second argument.
inline constexpr auto kTeFlashDiagonalRows = std::tuple{
    row({.id = "flash.te_top_left_window",
         .backends = kFlashBackends,
         .policies = Policies::te,
         .reads = {Field::window_left, Field::window_right, Field::bottom_right_diagonal, Field::seqlen_q,
                   Field::seqlen_k, Field::flash2},
         .required =
             "bottom_right_diagonal for a window over unequal lengths (looked at only while FlashAttention 2 is alive)",
         .evidence = "TE spec 1.6 exception 2; 1.15 Q4",
         .te_stage = 14},
        [](const auto& c, const auto& flash2_alive) {
          return sliding_window(c) && flash2_alive && c.d.flash2 >= v(2, 3) && !c.f.bottom_right_diagonal &&
                 !c.len.q_equals_k();
        }),
    row({.id = "flash.te_top_left_alibi",
         .backends = kFlashBackends,
         .policies = Policies::te,
         .reads = {Field::bias_type, Field::bottom_right_diagonal, Field::seqlen_q, Field::seqlen_k, Field::flash2},
         .required =
             "bottom_right_diagonal for ALiBi over unequal lengths (looked at only while FlashAttention 2 is alive)",
         .evidence = "TE spec 1.6 exception 2; 1.15 Q4",
         .te_stage = 15},
        [](const auto& c, const auto& flash2_alive) {
          return c.f.bias_type == BiasType::alibi && flash2_alive && c.d.flash2 >= v(2, 4) &&
                 !c.f.bottom_right_diagonal && !c.len.q_equals_k();
        }),
};

}  // namespace cynosure::rules
