// SPDX-License-Identifier: Apache-2.0
// core/length_facts.cpp: consequences of known facts.
#include <algorithm>

#include <cynosure/length_facts.hpp>

namespace cynosure {
namespace {

std::string lengths_text(std::uint8_t of) {
  std::string text;
  const auto add = [&](LengthFact::Operand which, std::string_view name) {
    if ((of & which) == 0) return;
    if (!text.empty()) text += " * ";
    text += name;
  };
  add(LengthFact::batch, "batch");
  add(LengthFact::seqlen_q, "seqlen_q");
  add(LengthFact::seqlen_k, "seqlen_k");
  return text;
}

/// What `known` (decided) says about `asked`, both about one and the same length.
Truth consequence(const LengthFact& known, bool holds, const LengthFact& asked) {
  using Kind = LengthFact::Kind;
  if (known.kind == asked.kind && known.constant == asked.constant) return holds;
  if (known.kind == Kind::equals && holds) {
    if (asked.kind == Kind::equals) return false;
    if (asked.kind == Kind::multiple_of) return known.constant % asked.constant == 0;
    if (asked.kind == Kind::at_most) return known.constant <= asked.constant;
  }
  if (known.kind == Kind::multiple_of && asked.kind == Kind::multiple_of) {
    if (holds && known.constant % asked.constant == 0) return true;
    if (!holds && asked.constant % known.constant == 0) return false;
  }
  if (known.kind == Kind::multiple_of && !holds && asked.kind == Kind::equals && asked.constant % known.constant == 0)
    return false;
  if (known.kind == Kind::multiple_of && holds && asked.kind == Kind::equals && asked.constant % known.constant != 0)
    return false;
  if (known.kind == Kind::at_most) {
    if (asked.kind == Kind::at_most) {
      if (holds && asked.constant >= known.constant) return true;
      if (!holds && asked.constant <= known.constant) return false;
    }
    if (asked.kind == Kind::equals) {
      if (holds && asked.constant > known.constant) return false;
      if (!holds && asked.constant <= known.constant) return false;
    }
  }
  return Truth::unknown();
}

bool about_one_length(const LengthFact& fact) {
  return fact.kind == LengthFact::Kind::equals || fact.kind == LengthFact::Kind::multiple_of ||
         fact.kind == LengthFact::Kind::at_most;
}

}  // namespace

std::string LengthFact::to_string() const {
  switch (kind) {
    case Kind::equals:
      return lengths_text(of) + " == " + std::to_string(constant);
    case Kind::multiple_of:
      return lengths_text(of) + " % " + std::to_string(constant) + " == 0";
    case Kind::at_most:
      return lengths_text(of) + " <= " + std::to_string(constant);
    case Kind::q_at_most_k:
      return "seqlen_q <= seqlen_k";
    case Kind::q_equals_k:
      return "seqlen_q == seqlen_k";
    case Kind::product_over:
      return std::to_string(constant) + " * " + lengths_text(of) + " > 2147483647";
  }
  return {};
}

Truth PartialLengths::implied(const LengthFact& fact) const {
  const auto decided = [&](LengthFact::Kind kind) {
    const auto it = std::find_if(known_.begin(), known_.end(), [&](const KnownFact& k) { return k.fact.kind == kind; });
    return it == known_.end() ? Truth::unknown() : it->value;
  };
  if (fact.kind == LengthFact::Kind::q_at_most_k && decided(LengthFact::Kind::q_equals_k).is_yes()) return true;
  if (fact.kind == LengthFact::Kind::q_equals_k && decided(LengthFact::Kind::q_at_most_k).is_no()) return false;
  if (!about_one_length(fact)) return Truth::unknown();
  const bool same = decided(LengthFact::Kind::q_equals_k).is_yes() && fact.of != LengthFact::batch;
  for (const KnownFact& known : known_) {
    if (known.value.is_unknown() || !about_one_length(known.fact)) continue;
    if (known.fact.of != fact.of && !(same && known.fact.of != LengthFact::batch)) continue;
    const Truth value = consequence(known.fact, known.value.is_yes(), fact);
    if (!value.is_unknown()) return value;
  }
  return Truth::unknown();
}

Truth PartialLengths::holds(const LengthFact& fact) const {
  bool undecidable = false;
  for (const KnownFact& known : known_) {
    if (known.fact != fact) continue;
    if (!known.value.is_unknown()) return known.value;
    undecidable = true;
  }
  const Truth value = implied(fact);
  if (value.is_unknown() && !undecidable && std::find(open_.begin(), open_.end(), fact) == open_.end())
    open_.push_back(fact);
  return value;
}

}  // namespace cynosure
