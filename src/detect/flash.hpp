// SPDX-License-Identifier: Apache-2.0
// detect/flash.hpp: which releases of the FlashAttention packages are accepted (TE spec 1.3).
// A refused package counts as not installed. FlashAttention 3 has no bounds.
#pragma once

#include <optional>
#include <string>

#include <cynosure/package_version.hpp>

namespace cynosure::detect {

/// Why this flash-attn is not accepted on GPUs of compute capability `sm` (90 is 9.0; 0: no GPU); nothing when it is.
[[nodiscard]] std::optional<std::string> refuse_flash2(Version flash_attn, unsigned sm);

/// Why this flash-attn-4 is not accepted beside that nvidia-cutlass-dsl; nothing when it is.
[[nodiscard]] std::optional<std::string> refuse_flash4(Version flash_attn_4, Version cutlass_dsl);

}  // namespace cynosure::detect
