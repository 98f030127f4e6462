// SPDX-License-Identifier: Apache-2.0
// core/evaluate.hpp: what the explanations need of the evaluation.
#pragma once

#include <cynosure/settings.hpp>

#include "policies/order.hpp"

namespace cynosure {

/// The row of a policy's table by its index (Outcome::order_row).
[[nodiscard]] const policies::Order& policy_order(Policy policy, std::uint8_t row);

/// Contract first, then the policy's order: all backends that may run, best first.
[[nodiscard]] BackendList ordered(Settings settings, std::uint8_t order_row);

}  // namespace cynosure
