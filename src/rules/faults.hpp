// SPDX-License-Identifier: Apache-2.0
// rules/faults.hpp: evaluates a fault row, built-in or the user's, on a call.
#pragma once

#include <cynosure/rule_set.hpp>

#include "core/feature_value.hpp"
#include "rules/terms.hpp"

namespace cynosure::rules {

[[nodiscard]] inline Version version_of(const Device& device, Library library) {
  switch (library) {
    case Library::cudnn:
      return device.cudnn;
    case Library::flash2:
      return device.flash2;
    case Library::flash3:
      return device.flash3;
    case Library::flash4:
      return device.flash4;
    case Library::torch:
      return device.torch;
  }
  return {};
}

template <class Oracle>
[[nodiscard]] auto length_clause(const Clause& clause, const LengthFacts<Oracle>& len) -> typename Oracle::Answer {
  using Answer = typename Oracle::Answer;
  const auto& view = clause.field == Field::batch ? len.batch : (clause.field == Field::seqlen_q ? len.q : len.k);
  switch (clause.op) {
    case Clause::Op::equals:
      return view.equals(clause.value);
    case Clause::Op::not_equals:
      return !view.equals(clause.value);
    case Clause::Op::at_most:
      return view.at_most(clause.value);
    case Clause::Op::at_least:
      return view.at_least(clause.value);
    case Clause::Op::multiple_of:
      return view.multiple_of(clause.value);
    case Clause::Op::not_multiple_of:
      return !view.multiple_of(clause.value);
    case Clause::Op::product_over:
      return len.product_over_int32(clause.of, clause.value);
    case Clause::Op::one_of:
    case Clause::Op::none_of:
      break;  // refused by RuleSet's constructor
  }
  return Answer(false);
}

[[nodiscard]] inline bool feature_clause(const Clause& clause, std::int64_t actual) {
  const auto in_mask = [&] {
    return actual >= 0 && actual < 63 &&
           ((static_cast<std::uint64_t>(clause.value) >> static_cast<unsigned>(actual)) & 1U) != 0;
  };
  switch (clause.op) {
    case Clause::Op::equals:
      return actual == clause.value;
    case Clause::Op::not_equals:
      return actual != clause.value;
    case Clause::Op::at_most:
      return actual <= clause.value;
    case Clause::Op::at_least:
      return actual >= clause.value;
    case Clause::Op::multiple_of:
      return actual % clause.value == 0;
    case Clause::Op::not_multiple_of:
      return actual % clause.value != 0;
    case Clause::Op::one_of:
      return in_mask();
    case Clause::Op::none_of:
      return !in_mask();
    case Clause::Op::product_over:
      break;  // refused by RuleSet's constructor
  }
  return false;
}

/// The fault is there: library, architecture and every clause. Facts about lengths are asked last, and only when all
/// else holds, so that tracing does not guard on what cannot matter.
template <class Oracle>
[[nodiscard]] auto fault_fires(const Fault& fault, const Call<Oracle>& c) -> typename Oracle::Answer {
  using Answer = typename Oracle::Answer;
  const Version installed = version_of(c.d, fault.library);
  const bool exposed = installed.installed() && installed >= fault.since &&
                       (!fault.until.installed() || installed < fault.until) && c.d.sm >= fault.sm_min &&
                       c.d.sm <= fault.sm_max;
  if (!exposed) return Answer(false);
  for (const Clause& clause : fault.when)
    if (clause.field > Field::seqlen_k && !feature_clause(clause, feature_value(clause.field, c.f, c.d, c.s)))
      return Answer(false);
  Answer all(true);
  for (const Clause& clause : fault.when)
    if (clause.field <= Field::seqlen_k) all = all && length_clause(clause, c.len);
  return all;
}

}  // namespace cynosure::rules
