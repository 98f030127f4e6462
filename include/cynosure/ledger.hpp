// SPDX-License-Identifier: Apache-2.0
// cynosure/ledger.hpp: the bounded record of every distinct decision that operators made in this process.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <cynosure/decision.hpp>
#include <cynosure/export.hpp>

namespace cynosure {

enum class Direction : std::uint8_t { forward, backward };

struct LedgerEntry {
  Decision decision;
  std::uint64_t forward = 0, backward = 0;  ///< how often it was made
};

/// Execution plans that a backend's library built within calls, and how long the calls waited for them.
struct PlanBuilds {
  std::uint64_t count = 0;
  std::chrono::nanoseconds total{0}, longest{0};
  bool operator==(const PlanBuilds&) const = default;
};

struct LedgerSnapshot {
  std::vector<LedgerEntry> entries;       ///< in the order in which they were first made
  std::uint64_t unlisted = 0;             ///< calls whose decisions came when the ledger was full
  std::array<PlanBuilds, 2> plan_builds;  ///< by Direction
};

inline constexpr std::size_t kLedgerCapacity = 4096;

/// Decides through the process-wide cache and records the decision. Thread-safe; a repeated call of one thread costs a
/// comparison and an atomic increment. A decision without a backend is recorded, too.
CYNOSURE_API Outcome decide_and_record(const Problem& problem, Settings settings, const Device& device,
                                       Direction direction);

/// Counts one plan that was built. Thread-safe.
CYNOSURE_API void record_plan_build(Direction direction, std::chrono::nanoseconds time);

[[nodiscard]] CYNOSURE_API LedgerSnapshot ledger();
CYNOSURE_API void clear_ledger();

/// Called with each decision that is new to the ledger, from the thread that made it, with no lock held; nullptr: none.
using LedgerSink = void (*)(const Decision& decision, Direction direction);
CYNOSURE_API void set_ledger_sink(LedgerSink sink);

}  // namespace cynosure
