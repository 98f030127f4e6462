// SPDX-License-Identifier: Apache-2.0
// core/decision.cpp: reasons as values and texts.
#include <algorithm>

#include <cynosure/decision.hpp>
#include <cynosure/fields.hpp>
#include <cynosure/rule_set.hpp>
#include <cynosure/select.hpp>

#include "core/evaluate.hpp"
#include "core/fixes.hpp"
#include "rules/table.hpp"

namespace cynosure {
namespace {

Field field_of(Library library) {
  switch (library) {
    case Library::cudnn:
      return Field::cudnn;
    case Library::flash2:
      return Field::flash2;
    case Library::flash3:
      return Field::flash3;
    case Library::flash4:
      return Field::flash4;
    case Library::torch:
      return Field::torch;
  }
  return Field::cudnn;
}

Rule as_rule(const Fault& fault) {
  Rule rule;
  rule.id = fault.id;
  rule.backends = fault.backends;
  rule.policies = fault.policies;
  // The version first, then the distinct fields of the conditions, as many as a FieldList holds.
  std::array<Field, 6> reads{field_of(fault.library)};
  std::size_t size = 1;
  const auto add = [&](Field field) {
    if (size < reads.size() && std::find(reads.begin(), reads.begin() + size, field) == reads.begin() + size)
      reads[size++] = field;
  };
  if (fault.sm_min != 0 || fault.sm_max != 0xffff) add(Field::sm);
  for (const Clause& clause : fault.when) add(clause.field);
  for (std::size_t i = 0; i < size; ++i) rule.reads.push_back(reads[i]);
  rule.required = fault.effect;
  rule.evidence = fault.link;
  return rule;
}

std::string interval(const Fault& fault) {
  std::string text(kLibraryNames[static_cast<std::size_t>(fault.library)]);
  if (fault.since.installed()) text += " from " + fault.since.to_string();
  text += fault.until.installed() ? " before " + fault.until.to_string() : " (first good version unknown)";
  return text;
}

const Fault* fault_at(std::size_t row, Settings settings) {
  std::size_t i = row - rules::kCodeRowCount;
  const std::vector<Fault>& builtin = builtin_faults();
  if (i < builtin.size()) return &builtin[i];
  i -= builtin.size();
  // The registry keeps every set for the life of the process.
  return &rule_set(settings.rules_digest())->faults()[i];
}

std::vector<Reason> reasons_against(Backend backend, const Decision& decision, const std::vector<Rule>& table) {
  std::vector<Reason> reasons;
  decision.outcome().fired.for_each([&](std::size_t row) {
    const Rule& rule = table[row];
    if (!rule.backends.contains(backend)) return;
    Reason reason;
    reason.backend = backend;
    reason.rule = rule.id;
    reason.way = rule.way;
    for (const Field field : rule.reads) {
      const std::int64_t actual = value(field, decision.problem(), decision.device(), decision.settings());
      reason.actual.push_back({std::string(info(field).name), value_text(field, actual)});
    }
    reason.required = rule.required;
    if (row >= rules::kCodeRowCount) {
      const Fault& fault = *fault_at(row, decision.settings());
      reason.required = "a release without this known fault of " + interval(fault) + ": " + fault.effect;
    }
    reason.evidence = rule.evidence;
    reason.undecided = decision.outcome().undecided.test(row);
    reasons.push_back(std::move(reason));
  });
  return reasons;
}

}  // namespace

std::vector<Rule> rule_table(Settings settings) {
  std::vector<Rule> table;
  const auto add = [&](const auto&... rows) { (table.push_back(rows.rule), ...); };
  rules::for_each_row([&](std::size_t, const auto& row) { add(row); });
  std::apply(add, rules::kTeFlashDiagonalRows);
  for (const Fault& fault : builtin_faults()) table.push_back(as_rule(fault));
  if (settings.rules_digest() != 0)
    for (const Fault& fault : rule_set(settings.rules_digest())->faults()) table.push_back(as_rule(fault));
  return table;
}

std::vector<Backend> Decision::order() const {
  std::vector<Backend> best_first;
  for (const Backend backend : ordered(settings_, outcome_.order_row))
    if (outcome_.eligible.contains(backend)) best_first.push_back(backend);
  return best_first;
}

Ground Decision::policy_ground() const {
  const policies::Order& order = policy_order(settings_.policy(), outcome_.order_row);
  return {settings_.policy(), order.id, order.when, order.best_first, order.evidence};
}

std::string Decision::ground() const {
  const auto listed = [](const BackendList& backends) {
    std::string names;
    for (const Backend backend : backends) names += (names.empty() ? "" : ", ") + std::string(name(backend));
    return names;
  };
  std::string text;
  if (settings_.contract() != Contract::automatic) {
    text = std::string(kContractNames[static_cast<std::size_t>(settings_.contract())]) + "(" +
           listed(settings_.named()) + ")";
    if (settings_.contract() == Contract::require) return text;
    text += ", then ";
  }
  const Ground order = policy_ground();
  return text + "policy " + std::string(kPolicyNames[static_cast<std::size_t>(order.policy)]) + ", row " +
         std::string(order.row) + " (" + std::string(order.when) + "): " + listed(order.best_first) +
         ". Evidence: " + std::string(order.evidence);
}

std::vector<Reason> Decision::reasons(Backend backend) const {
  return reasons_against(backend, *this, rule_table(settings_));
}

std::vector<Reason> Decision::reasons() const {
  std::vector<Reason> all;
  const std::vector<Rule> table = rule_table(settings_);
  for (const Backend backend : BackendSet::all())
    for (Reason& reason : reasons_against(backend, *this, table)) all.push_back(std::move(reason));
  return all;
}

std::optional<Fix> Decision::fix_for(const Reason& reason) const { return find_fix(*this, reason); }

std::optional<std::string> Decision::remedy(Backend backend) const { return find_remedy(*this, backend); }

}  // namespace cynosure
