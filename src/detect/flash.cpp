// SPDX-License-Identifier: Apache-2.0
// detect/flash.cpp: the accepted intervals.
#include "detect/flash.hpp"

namespace cynosure::detect {
namespace {

constexpr Version kFlash2First{2, 1, 1};
constexpr Version kFlash2FirstOnBlackwell{2, 7, 3};  // compute capability 10.0 and newer
constexpr Version kFlash2End{2, 8, 4};               // 2.8.3.post1 is still in

// The one release that needs a particular nvidia-cutlass-dsl; elsewhere any will do.
constexpr Version kFlash4Picky{4, 0, 0, Version::Phase::beta, 24};
constexpr Version kCutlassDslForPicky{4, 6, 2};

}  // namespace

std::optional<std::string> refuse_flash2(Version flash_attn, unsigned sm) {
  if (!flash_attn.installed()) return "flash-attn is not installed";
  const bool blackwell = sm >= 100;
  const Version first = blackwell ? kFlash2FirstOnBlackwell : kFlash2First;
  if (flash_attn >= first && flash_attn < kFlash2End) return std::nullopt;
  return "flash-attn " + flash_attn.to_string() + " is not supported" +
         (blackwell ? " on compute capability 10.0 and newer" : "") + ": need " + first.to_string() +
         " or newer and older than " + kFlash2End.to_string();
}

std::optional<std::string> refuse_flash4(Version flash_attn_4, Version cutlass_dsl) {
  if (!flash_attn_4.installed()) return "flash-attn-4 is not installed";
  const std::string package = "flash-attn-4 " + flash_attn_4.to_string();
  if (!cutlass_dsl.installed()) return package + " needs nvidia-cutlass-dsl, which is not installed";
  if (flash_attn_4 == kFlash4Picky && cutlass_dsl < kCutlassDslForPicky)
    return package + " needs nvidia-cutlass-dsl " + kCutlassDslForPicky.to_string() + " or newer, found " +
           cutlass_dsl.to_string();
  return std::nullopt;
}

}  // namespace cynosure::detect
