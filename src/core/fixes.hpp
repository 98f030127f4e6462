// SPDX-License-Identifier: Apache-2.0
// core/fixes.hpp: what would remove a reason, found by trying and verified by evaluating.
#pragma once

#include <cynosure/decision.hpp>

namespace cynosure {

[[nodiscard]] std::optional<Fix> find_fix(const Decision& decision, const Reason& reason);
[[nodiscard]] std::optional<std::string> find_remedy(const Decision& decision, Backend backend);

}  // namespace cynosure
