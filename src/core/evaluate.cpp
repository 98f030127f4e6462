// SPDX-License-Identifier: Apache-2.0
// core/evaluate.cpp: runs every row over a call, then orders what is left.
#include "core/evaluate.hpp"

#include <utility>

#include <cynosure/rule_set.hpp>
#include <cynosure/select.hpp>

#include "policies/order.hpp"
#include "rules/table.hpp"

namespace cynosure {
namespace {

using rules::Call;

constexpr std::size_t kCodeRows = rules::kCodeRowCount;
static_assert(kCodeRows + 64 + RuleSet::kMaxFaults <= RuleMask::kCapacity, "room for built-in and user faults");

using rules::for_each_row;

template <class F, std::size_t... I>
[[gnu::always_inline]] constexpr void for_each_diagonal_row_at(F&& f, std::index_sequence<I...>) {
  (f(rules::kRowCount + I, std::get<I>(rules::kTeFlashDiagonalRows)), ...);
}
template <class F>
[[gnu::always_inline]] constexpr void for_each_diagonal_row(F&& f) {
  for_each_diagonal_row_at(std::forward<F>(f), std::make_index_sequence<rules::kDiagonalRowCount>{});
}

constexpr bool holds_for(Policies policies, Policies wanted) {
  return (static_cast<unsigned>(policies) & static_cast<unsigned>(wanted)) != 0;
}

constexpr auto kBackendsOfRow = [] {
  std::array<BackendSet, kCodeRows> sets{};
  for_each_row([&](std::size_t i, const auto& row) { sets[i] = row.rule.backends; });
  for_each_diagonal_row([&](std::size_t i, const auto& row) { sets[i] = row.rule.backends; });
  return sets;
}();

constexpr RuleMask code_rows_of(Policies wanted) {
  RuleMask mask;
  const auto add = [&](std::size_t i, const auto& row) {
    if (holds_for(row.rule.policies, wanted)) mask.set(i);
  };
  for_each_row(add);
  for_each_diagonal_row(add);
  return mask;
}
constexpr RuleMask kFastestRows = code_rows_of(Policies::fastest);
constexpr RuleMask kTeRows = code_rows_of(Policies::te);
constexpr RuleMask kAllRows = code_rows_of(Policies::both);

/// The rows that decide whether FlashAttention 2 is alive when TransformerEngine reaches stage 14.
constexpr RuleMask kFlash2BeforeStage14 = [] {
  RuleMask mask;
  for_each_row([&](std::size_t i, const auto& row) {
    const bool counts = row.rule.te_stage <= 13 || row.rule.id == "flash2.not_installed";
    if (counts && row.rule.backends.contains(Backend::flash2) && holds_for(row.rule.policies, Policies::te))
      mask.set(i);
  });
  return mask;
}();

Policies policies_in_force(Settings settings) {
  if (settings.policy() == Policy::fastest) return Policies::fastest;
  return settings.on(Settings::enforce) ? Policies::both : Policies::te;
}
constexpr const RuleMask& code_rows_in_force(Policies policies) {
  return policies == Policies::fastest ? kFastestRows : (policies == Policies::te ? kTeRows : kAllRows);
}

/// What the rows say: those that fired, and those that an unknown fact leaves open.
struct Verdicts {
  RuleMask fired;
  RuleMask open;
};

template <class Oracle>
[[gnu::always_inline]] inline void note(Verdicts& verdicts, std::size_t i, typename Oracle::Answer fires) {
  if (is_yes(fires)) verdicts.fired.set(i);
  if (is_unknown(fires)) verdicts.open.set(i);
}

template <class Oracle>
Verdicts code_verdicts(const Call<Oracle>& call) {
  using Answer = typename Oracle::Answer;
  Verdicts verdicts;
  for_each_row([&](std::size_t i, const auto& row)
                   __attribute__((always_inline)) { note<Oracle>(verdicts, i, Answer(row.fires(call))); });
  if (call.te) {
    Answer alive(!(verdicts.fired & kFlash2BeforeStage14).any());
    if constexpr (std::is_same_v<Answer, Truth>)
      if ((verdicts.open & kFlash2BeforeStage14).any()) alive = alive && Truth::unknown();
    for_each_diagonal_row(
        [&](std::size_t i, const auto& row) { note<Oracle>(verdicts, i, Answer(row.fires(call, alive))); });
  }
  return verdicts;
}

/// Visits the fault rows in force with their index: built-in ones, then those of the rule set.
template <class F>
void for_each_fault(Settings settings, F&& f) {
  std::size_t i = kCodeRows;
  for (const Fault& fault : builtin_faults()) f(i++, fault);
  if (settings.rules_digest() != 0) {
    const std::shared_ptr<const RuleSet> set = rule_set(settings.rules_digest());
    for (const Fault& fault : set->faults()) f(i++, fault);
  }
}

/// The policy's row for a call, and the rows before it that an unknown fact leaves open.
struct OrderChoice {
  std::uint8_t row = 0;
  std::uint32_t open = 0;  ///< bit mask
};

template <class Oracle>
OrderChoice choose_order(const Call<Oracle>& call) {
  OrderChoice choice;
  bool found = false;
  const auto look = [&](const auto& table) {
    std::apply(
        [&](const auto&... rows) {
          std::uint8_t i = 0;
          const auto visit = [&](const auto& row) {
            if (!found) {
              const typename Oracle::Answer holds(row.holds(call));
              if (is_unknown(holds)) choice.open |= 1U << i;
              if (is_yes(holds)) {
                choice.row = i;
                found = true;
              }
            }
            ++i;
          };
          (visit(rows), ...);
        },
        table);
  };
  if (call.te) {
    look(policies::kTe);
  } else {
    look(policies::kFastest);
  }
  return choice;
}

template <class Oracle>
struct Evaluation {
  Verdicts verdicts;
  BackendSet excluded;        ///< by a row that fired
  BackendSet maybe_excluded;  ///< by a row that is open
};

template <class Oracle>
Call<Oracle> make_call(const Features& features, Settings settings, const Device& device,
                       const LengthFacts<Oracle>& facts) {
  return {features, device, settings, facts, settings.policy() == Policy::te, info(features.layout)};
}

template <class Oracle>
Evaluation<Oracle> evaluate_rows(const Call<Oracle>& call) {
  const Policies policies = policies_in_force(call.s);
  Evaluation<Oracle> result;
  result.verdicts = code_verdicts(call);
  const RuleMask& in_force = code_rows_in_force(policies);
  result.verdicts.fired = result.verdicts.fired & in_force;
  result.verdicts.open = result.verdicts.open & in_force;
  result.verdicts.fired.for_each([&](std::size_t i) { result.excluded |= kBackendsOfRow[i]; });
  result.verdicts.open.for_each([&](std::size_t i) { result.maybe_excluded |= kBackendsOfRow[i]; });
  for_each_fault(call.s, [&](std::size_t i, const Fault& fault) {
    if (!holds_for(fault.policies, policies)) return;
    const typename Oracle::Answer fires = rules::fault_fires(fault, call);
    note<Oracle>(result.verdicts, i, fires);
    if (is_yes(fires)) result.excluded |= fault.backends;
    if (is_unknown(fires)) result.maybe_excluded |= fault.backends;
  });
  return result;
}

}  // namespace

BackendList ordered(Settings settings, std::uint8_t order_row) {
  const BackendList named = settings.named();
  BackendList order = named;
  if (settings.contract() == Contract::require) return order;
  const BackendList by_policy = policy_order(settings.policy(), order_row).best_first;
  for (const Backend backend : by_policy)
    if (!named.set().contains(backend)) order.push_back(backend);
  for (const Backend backend : BackendSet::all())
    if (!order.set().contains(backend)) order.push_back(backend);
  return order;
}

const policies::Order& policy_order(Policy policy, std::uint8_t row) {
  const auto pick = [row](const auto& table) {
    const policies::Order* found = nullptr;
    std::apply(
        [&](const auto&... rows) {
          std::uint8_t i = 0;
          ((i++ == row ? static_cast<void>(found = &rows.order) : static_cast<void>(0)), ...);
        },
        table);
    return found;
  };
  const policies::Order* order = policy == Policy::te ? pick(policies::kTe) : pick(policies::kFastest);
  return *order;
}

namespace {

std::int8_t first_eligible(Settings settings, std::uint8_t row, BackendSet eligible) {
  if (settings.contract() == Contract::automatic) {
    // The common case without building a list: the policy's order is complete for what its rows leave eligible.
    const BackendList& order = policy_order(settings.policy(), row).best_first;
    for (const Backend backend : order)
      if (eligible.contains(backend)) return static_cast<std::int8_t>(backend);
  }
  for (const Backend backend : ordered(settings, row))
    if (eligible.contains(backend)) return static_cast<std::int8_t>(backend);
  return -1;
}

}  // namespace

Outcome evaluate(const Problem& problem, Settings settings, const Device& device) {
  const ConcreteLengths oracle(problem.lengths);
  const LengthFacts<ConcreteLengths> facts(oracle);
  const Call<ConcreteLengths> call = make_call(problem.features, settings, device, facts);
  const Evaluation<ConcreteLengths> rows = evaluate_rows(call);
  Outcome outcome;
  outcome.fired = rows.verdicts.fired;
  outcome.eligible = BackendSet::all() - rows.excluded;
  outcome.order_row = choose_order(call).row;
  outcome.chosen = first_eligible(settings, outcome.order_row, outcome.eligible);
  return outcome;
}

PartialStep evaluate_partial(const Features& features, Settings settings, const Device& device,
                             std::span<const KnownFact> known) {
  PartialLengths oracle(known);
  const LengthFacts<PartialLengths> facts(oracle);
  const Call<PartialLengths> call = make_call(features, settings, device, facts);
  const Evaluation<PartialLengths> rows = evaluate_rows(call);

  PartialStep step;
  Outcome& outcome = step.outcome;
  outcome.fired = rows.verdicts.fired;
  outcome.eligible = BackendSet::all() - (rows.excluded | rows.maybe_excluded);

  // An open row matters only where nothing else excludes its backend. Ask the first fact that such a row hangs on.
  oracle.forget_open();
  const BackendSet in_question = rows.maybe_excluded - rows.excluded;
  const auto matters = [&](BackendSet backends) { return !(backends & in_question).empty(); };
  // The other open rows hang on facts that nobody asked: they are no reasons, and their backends have others.
  const auto keep_if_it_matters = [&](std::size_t i, BackendSet backends) {
    if (rows.verdicts.open.test(i) && matters(backends)) outcome.undecided.set(i);
  };
  for (std::size_t i = 0; i < kCodeRows; ++i) keep_if_it_matters(i, kBackendsOfRow[i]);
  for_each_fault(settings, [&](std::size_t i, const Fault& fault) { keep_if_it_matters(i, fault.backends); });
  outcome.fired = outcome.fired | outcome.undecided;
  for_each_row([&](std::size_t i, const auto& row) {
    if (oracle.open().empty() && rows.verdicts.open.test(i) && matters(row.rule.backends))
      static_cast<void>(row.fires(call));
  });
  for_each_fault(settings, [&](std::size_t i, const Fault& fault) {
    if (oracle.open().empty() && rows.verdicts.open.test(i) && matters(fault.backends))
      static_cast<void>(rules::fault_fires(fault, call));
  });
  if (call.te && oracle.open().empty()) {
    for_each_diagonal_row([&](std::size_t i, const auto& row) {
      if (rows.verdicts.open.test(i) && matters(row.rule.backends)) static_cast<void>(row.fires(call, Truth(true)));
    });
    if (!in_question.empty() && oracle.open().empty())
      for_each_row([&](std::size_t i, const auto& row) {
        // The diagonal rows hang on rows of flash2, whether or not flash2 itself is in question.
        if (rows.verdicts.open.test(i) && kFlash2BeforeStage14.test(i)) static_cast<void>(row.fires(call));
      });
  }
  if (!oracle.open().empty()) {
    step.ask = oracle.open().front();
    return step;
  }
  // Order: ask only where the rows still open would choose differently.
  const OrderChoice order = choose_order(call);
  outcome.order_row = order.row;
  outcome.chosen = first_eligible(settings, order.row, outcome.eligible);
  for (std::uint32_t rest = order.open; rest != 0; rest &= rest - 1) {
    const auto row = static_cast<std::uint8_t>(std::countr_zero(rest));
    if (first_eligible(settings, row, outcome.eligible) != outcome.chosen && !oracle.open().empty()) {
      step.ask = oracle.open().front();
      return step;
    }
  }
  return step;
}

std::vector<LengthFact> length_facts(const Features& features, Settings settings, const Device& device) {
  const PartialLengths oracle({});
  const LengthFacts<PartialLengths> facts(oracle);
  const Call<PartialLengths> call = make_call(features, settings, device, facts);
  static_cast<void>(evaluate_rows(call));
  static_cast<void>(choose_order(call));
  return oracle.open();
}

}  // namespace cynosure
