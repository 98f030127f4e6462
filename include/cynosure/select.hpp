// SPDX-License-Identifier: Apache-2.0
// cynosure/select.hpp: select(Problem, Settings, Device) -> Decision, a pure function of its arguments.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <cynosure/decision.hpp>
#include <cynosure/export.hpp>

namespace cynosure {

/// Evaluates every row. Reads nothing but its arguments (a rule set named by the settings' digest is an immutable
/// value: rule_set.hpp). Throws std::invalid_argument when that digest is not registered in this process.
[[nodiscard]] CYNOSURE_API Outcome evaluate(const Problem& problem, Settings settings, const Device& device);

/// The same through a bounded process-wide cache. Thread-safe; allocates nothing on a hit.
[[nodiscard]] CYNOSURE_API Outcome cached_outcome(const Problem& problem, Settings settings, const Device& device);

[[nodiscard]] inline Decision select(const Problem& problem, Settings settings, const Device& device) {
  return {problem, settings, device, cached_outcome(problem, settings, device)};
}

/// One step of a decision over symbolic lengths.
struct PartialStep {
  std::optional<LengthFact> ask;  ///< decide this fact and call again; absent: the outcome is final
  Outcome outcome;
};
/// Evaluates with what is known of the lengths. Asks only facts that can still change the eligible set or the choice.
/// A known fact whose value is unknown is never asked again: backends that hang on it are excluded as undecided.
[[nodiscard]] CYNOSURE_API PartialStep evaluate_partial(const Features& features, Settings settings,
                                                        const Device& device, std::span<const KnownFact> known);

/// All rows in force for these settings, in table order; an Outcome's masks index them.
[[nodiscard]] CYNOSURE_API std::vector<Rule> rule_table(Settings settings = {});
/// Every length fact that rows and policy can ask about a call with these features, in table order, without repeats.
[[nodiscard]] CYNOSURE_API std::vector<LengthFact> length_facts(const Features& features, Settings settings,
                                                                const Device& device);

}  // namespace cynosure
