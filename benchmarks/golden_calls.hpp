// SPDX-License-Identifier: Apache-2.0
// benchmarks/golden_calls.hpp: calls to measure with, taken from the golden decisions.
#pragma once

#include <string>
#include <vector>

#include <cynosure/settings.hpp>

#include "io/records.hpp"

namespace cynosure::benchmarks {

/// `count` calls spread over tests/data/te_decisions.jsonl.gz. At most a tenth of them is decided by
/// TransformerEngine's first two stages (switches and architecture): those need no look at the problem.
[[nodiscard]] std::vector<io::RecordedCall> golden_calls(Policy policy, std::size_t count);

}  // namespace cynosure::benchmarks
