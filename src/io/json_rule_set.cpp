// SPDX-License-Identifier: Apache-2.0
// io/json_rule_set.cpp: fault rows. Conditions are written the way a person would write them in a TOML file.
#include <algorithm>

#include "io/json.hpp"
#include "io/json_values.hpp"

namespace cynosure::io {
namespace {

using Op = Clause::Op;

constexpr std::array<std::string_view, 10> kFaultKeys{"id",       "library",  "since", "until",  "sm",
                                                      "backends", "policies", "when",  "effect", "link"};
constexpr std::uint16_t kNoSmMax = 0xffff;

/// The words of conditions that are written as {"word": value}; equals and one_of need none.
struct Word {
  std::string_view word;
  Op op;
};
constexpr std::array kWords{
    Word{"not", Op::not_equals},
    Word{"at_most", Op::at_most},
    Word{"at_least", Op::at_least},
    Word{"multiple_of", Op::multiple_of},
    Word{"not_multiple_of", Op::not_multiple_of},
    Word{"none_of", Op::none_of},
    Word{"product_over_int32", Op::product_over},
};
constexpr auto kWordNames = [] {
  std::array<std::string_view, kWords.size()> names{};
  std::ranges::transform(kWords, names.begin(), &Word::word);
  return names;
}();

struct Operand {
  std::string_view name;
  LengthFact::Operand bit;
};
constexpr std::array kOperands{Operand{"batch", LengthFact::batch}, Operand{"seqlen_q", LengthFact::seqlen_q},
                               Operand{"seqlen_k", LengthFact::seqlen_k}};

// ---- reading conditions -----------------------------------------------------------------------------------------

std::int64_t mask_from(const FieldInfo& field, const Document& given) {
  const List& items = list(given, field.name);
  if (field.type != FieldType::choice || items.empty())
    refuse(field.name, given, "a list for a named choice only, with at least one name");
  std::uint64_t mask = 0;
  for (const Document& item : items) {
    const std::uint64_t bit = std::uint64_t{1} << static_cast<std::uint64_t>(value_from(field, item));
    if ((mask & bit) != 0) refuse(field.name, given, "each name once");
    mask |= bit;
  }
  return static_cast<std::int64_t>(mask);
}

std::uint8_t operands_from(const Document& given) {
  std::uint8_t of = 0;
  for (const Document& item : list(given, "lengths")) {
    const auto operand = std::ranges::find(kOperands, text(item, "lengths"), &Operand::name);
    if (operand == kOperands.end()) refuse("lengths", item, "batch, seqlen_q or seqlen_k");
    if ((of & operand->bit) != 0) refuse("lengths", given, "each length once");
    of = static_cast<std::uint8_t>(of | operand->bit);
  }
  return of;
}

Clause product_from(const FieldInfo& field, const Document& given) {
  constexpr std::array<std::string_view, 2> keys{"factor", "lengths"};
  const Object& members = object(given, "product_over_int32");
  allow_only(members, keys, "product_over_int32");
  const Document* factor = find(members, "factor");
  return {field.field, Op::product_over, factor != nullptr ? integer(*factor, "factor") : 1,
          operands_from(required(members, "lengths", "product_over_int32"))};
}

Clause clause_from(const FieldInfo& field, const Member& condition) {
  const auto word = std::ranges::find(kWords, condition.key, &Word::word);
  if (word == kWords.end())
    throw InvalidField(field.name, "got the key " + in_quotes(condition.key) + ", expected only " + joined(kWordNames));
  if (word->op == Op::product_over) return product_from(field, condition.value);
  if (word->op == Op::none_of) return {field.field, Op::none_of, mask_from(field, condition.value)};
  return {field.field, word->op, value_from(field, condition.value)};
}

void add_conditions(std::vector<Clause>& when, const Object& conditions) {
  for (const Member& condition : conditions) {
    const std::optional<Field> known = field_named(condition.key);
    if (!known)
      throw InvalidField("when", "got the key " + in_quotes(condition.key) + ", expected the name of a field");
    const FieldInfo& field = info(*known);
    if (const auto* words = std::get_if<Object>(&condition.value.value())) {
      if (words->empty()) refuse(field.name, condition.value, "at least one condition");
      for (const Member& word : *words) when.push_back(clause_from(field, word));
    } else if (std::holds_alternative<List>(condition.value.value())) {
      when.push_back({field.field, Op::one_of, mask_from(field, condition.value)});
    } else {
      when.push_back({field.field, Op::equals, value_from(field, condition.value)});
    }
  }
}

std::vector<Clause> conditions_from(const Document& given) {
  std::vector<Clause> when;
  if (const auto* parts = std::get_if<List>(&given.value())) {
    for (const Document& part : *parts) add_conditions(when, object(part, "when"));
  } else {
    add_conditions(when, object(given, "when"));
  }
  return when;
}

// ---- reading a row ----------------------------------------------------------------------------------------------

Version bound_from(const Object& members, std::string_view key) {
  const Document* given = find(members, key);
  if (given == nullptr) return {};
  const std::string& version = text(*given, key);
  if (version == "unknown") return {};
  const std::optional<Version> parsed = Version::parse(version);
  if (!parsed) refuse(key, *given, "a version such as \"9.19.0\", or \"unknown\"");
  return *parsed;
}

std::uint16_t sm_from(const Document& given) {
  const std::int64_t sm = integer(given, "sm");
  if (sm < 0 || sm > kNoSmMax) refuse("sm", given, "compute capabilities times 10: [90, 100]");
  return static_cast<std::uint16_t>(sm);
}

Policies policies_from(const Document& given) {
  constexpr std::string_view expected = "a list of fastest, te or both";
  unsigned bits = 0;
  for (const Document& item : list(given, "policies")) {
    const bool te = static_cast<Policy>(index_from(item, kPolicyNames, "policies")) == Policy::te;
    const unsigned bit = static_cast<unsigned>(te ? Policies::te : Policies::fastest);
    if ((bits & bit) != 0) refuse("policies", given, expected);
    bits |= bit;
  }
  if (bits == 0) refuse("policies", given, expected);
  return static_cast<Policies>(bits);
}

Fault fault_from(const Document& given) {
  const Object& members = object(given, "faults");
  allow_only(members, kFaultKeys, "faults");
  Fault fault;
  fault.id = text(required(members, "id", "faults"), "id");
  const std::string row = "fault " + in_quotes(fault.id);
  fault.library = static_cast<Library>(index_from(required(members, "library", row), kLibraryNames, "library"));
  fault.since = bound_from(members, "since");
  fault.until = bound_from(members, "until");
  if (const Document* sm = find(members, "sm")) {
    const List& range = list(*sm, "sm");
    if (range.size() != 2) refuse("sm", *sm, "[lowest, highest]");
    fault.sm_min = sm_from(range[0]);
    fault.sm_max = sm_from(range[1]);
  }
  fault.backends = backends_from(required(members, "backends", row), "backends").set();
  if (const Document* policies = find(members, "policies")) fault.policies = policies_from(*policies);
  if (const Document* when = find(members, "when")) fault.when = conditions_from(*when);
  fault.effect = text(required(members, "effect", row), "effect");
  if (const Document* link = find(members, "link")) fault.link = text(*link, "link");
  return fault;
}

// ---- writing ----------------------------------------------------------------------------------------------------

Document mask_to_document(const FieldInfo& field, std::int64_t mask) {
  List names;
  for (std::size_t i = 0; i < field.choices.size(); ++i)
    if (((static_cast<std::uint64_t>(mask) >> i) & 1U) != 0) names.emplace_back(field.choices[i]);
  return names;
}

Document condition_of(const Clause& clause) {
  const FieldInfo& field = info(clause.field);
  switch (clause.op) {
    case Op::one_of:
    case Op::none_of:
      return mask_to_document(field, clause.value);
    case Op::product_over: {
      List lengths;
      for (const Operand& operand : kOperands)
        if ((clause.of & operand.bit) != 0) lengths.emplace_back(operand.name);
      return Object{{"factor", clause.value}, {"lengths", std::move(lengths)}};
    }
    default:
      return to_document(field, clause.value);
  }
}

/// Adds a clause to the conditions written so far, unless that would change their order or need a key twice: "equals"
/// and "one of" have no word, the others share an object with the clause before.
bool add_clause(Object& conditions, const Clause& clause) {
  const std::string_view field = info(clause.field).name;
  const auto word = std::ranges::find(kWords, clause.op, &Word::op);
  if (find(conditions, field) == nullptr) {
    Document condition = condition_of(clause);
    if (word != kWords.end()) condition = Object{{std::string(word->word), std::move(condition)}};
    conditions.push_back({std::string(field), std::move(condition)});
    return true;
  }
  auto* words = std::get_if<Object>(&conditions.back().value.value());
  if (conditions.back().key != field || words == nullptr || word == kWords.end()) return false;
  if (find(*words, word->word) != nullptr) return false;
  words->push_back({std::string(word->word), condition_of(clause)});
  return true;
}

Document conditions_of(const std::vector<Clause>& when) {
  List parts(1, Object());
  for (const Clause& clause : when) {
    if (add_clause(std::get<Object>(parts.back().value()), clause)) continue;
    Object& next = std::get<Object>(parts.emplace_back(Object()).value());
    add_clause(next, clause);
  }
  return parts.size() == 1 ? std::move(parts.front()) : Document(std::move(parts));
}

Document names_of(Policies policies) {
  List names;
  for (const auto& [one, policy] : {std::pair{Policies::fastest, Policy::fastest}, {Policies::te, Policy::te}})
    if ((static_cast<unsigned>(policies) & static_cast<unsigned>(one)) != 0)
      names.emplace_back(kPolicyNames[static_cast<std::size_t>(policy)]);
  return names;
}

Document row_of(const Fault& fault) {
  Object members{{"id", fault.id}, {"library", kLibraryNames[static_cast<std::size_t>(fault.library)]}};
  const auto add = [&](std::string_view key, Document value) {
    members.push_back({std::string(key), std::move(value)});
  };
  if (fault.since.installed()) add("since", fault.since.to_string());
  if (fault.until.installed()) add("until", fault.until.to_string());
  if (fault.sm_min != 0 || fault.sm_max != kNoSmMax) add("sm", List{fault.sm_min, fault.sm_max});
  add("backends", to_document(fault.backends));
  if (fault.policies != Policies::fastest) add("policies", names_of(fault.policies));
  if (!fault.when.empty()) add("when", conditions_of(fault.when));
  add("effect", fault.effect);
  if (!fault.link.empty()) add("link", fault.link);
  return members;
}

}  // namespace

RuleSet read_rule_set(std::string_view given) {
  constexpr std::array<std::string_view, 1> keys{"faults"};
  const Document document = parse(given, "faults");
  const Object& members = object(document, "faults");
  allow_only(members, keys, "faults");
  std::vector<Fault> faults;
  for (const Document& row : list(required(members, "faults", "faults"), "faults")) faults.push_back(fault_from(row));
  try {
    return RuleSet(std::move(faults));
  } catch (const InvalidField&) {
    throw;
  } catch (const std::invalid_argument& error) {
    throw InvalidField("faults", error.what());
  }
}

std::string write(const RuleSet& rules) {
  List rows;
  for (const Fault& fault : rules.faults()) rows.push_back(row_of(fault));
  return to_text(Object{{"faults", std::move(rows)}});
}

}  // namespace cynosure::io
