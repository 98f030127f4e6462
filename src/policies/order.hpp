// SPDX-License-Identifier: Apache-2.0
// policies/order.hpp: the policies. Order only: the first row whose condition holds gives the order, best first.
#pragma once

#include <string_view>
#include <tuple>

#include <cynosure/backend.hpp>
#include <cynosure/device.hpp>
#include <cynosure/settings.hpp>

namespace cynosure::policies {

struct Order {
  std::string_view id;
  std::string_view when;  ///< the condition, as prose
  BackendList best_first;
  std::string_view evidence;
};
template <class Predicate>
struct OrderRow {
  Order order;
  Predicate holds;
};
template <class Predicate>
constexpr OrderRow<Predicate> order(Order order, Predicate holds) {
  return {order, holds};
}

using enum Backend;

/// Policy `fastest`: by architecture and length facts.
inline constexpr auto kFastest = std::tuple{
    order(
        {"cpu", "tensors on the CPU", {cpu, unfused}, "our kernels keep no Sq x Skv buffer; unfused is the reference"},
        [](const auto& c) { return c.d.kind == DeviceKind::cpu; }),
    order({"sm9x.decode",
           "sm 9.x and one query per sequence",
           {cudnn, cudnn_fp8, flash4, flash3, flash2, aten_flash, unfused},
           "H200, torch 2.11, cuDNN 9.19, b32 h32 hkv8 skv4096 d128: cuDNN 125 us, FA4 130, FA3 145, FA2 225"},
          [](const auto& c) { return c.d.sm >= 90 && c.d.sm < 100 && c.len.q.equals(1); }),
    order({"sm9x",
           "sm 9.x",
           {cudnn, cudnn_fp8, flash3, flash4, flash2, aten_flash, unfused},
           "H200, torch 2.11, cuDNN 9.19, forward + backward b2 h32 s8192 d128 causal: cuDNN 7669 us, FA2 12755; b16 "
           "h16 s1024 d64 forward: cuDNN 111, FA3 125, FA4 134, FA2 167"},
          [](const auto& c) { return c.d.sm >= 90 && c.d.sm < 100; }),
    order({"sm12x",
           "sm 12.x",
           {flash2, aten_flash, flash4, cudnn, cudnn_fp8, unfused},
           "huggingface/transformers#48163: cuDNN at 0.88 of FlashAttention on an RTX PRO 6000"},
          [](const auto& c) { return c.d.sm >= 120; }),
    order({"sm10x",
           "sm 10.x and 11.x",
           {cudnn, cudnn_fp8, flash4, flash2, aten_flash, flash3, unfused},
           "no measurement of ours; TransformerEngine's order (TE spec 1.6, stage 22: cuDNN first from sm 9.0 on)"},
          [](const auto& c) { return c.d.sm >= 100; }),
    order({"sm8x",
           "sm 8.x",
           {flash2, aten_flash, cudnn, cudnn_fp8, unfused},
           "huggingface/transformers#48163: cuDNN at 0.82 of FlashAttention on an A100, 0.93 on an A10G"},
          [](const auto& c) { return c.d.sm >= 80; }),
    order({"older", "sm below 8.0", {unfused}, "no fused kernel supports it"}, [](const auto&) { return true; }),
};

/// Policy `te`: TransformerEngine's order (TE spec 1.6, stages 21 to 23). Backends that it does not know come
/// after all of its own; only a contract that names them makes them eligible.
inline constexpr auto kTe = std::tuple{
    order({"te.cudnn_first",
           "sm 9.0 and newer",
           {cudnn, cudnn_fp8, flash4, flash3, flash2, unfused, aten_flash, cpu},
           "TE spec 1.6, stages 22 and 23"},
          [](const auto& c) { return c.d.sm >= 90; }),
    order({"te.flash_first",
           "older than sm 9.0",
           {flash4, flash3, flash2, cudnn, cudnn_fp8, unfused, aten_flash, cpu},
           "TE spec 1.6, stages 22 and 23"},
          [](const auto&) { return true; }),
};

}  // namespace cynosure::policies
