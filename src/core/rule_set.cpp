// SPDX-License-Identifier: Apache-2.0
// core/rule_set.cpp: checks, digests and registers rule sets.
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <stdexcept>

#include <cynosure/rule_set.hpp>

namespace cynosure {
namespace {

/// FNV-1a over a canonical text of the content, folded to 16 bits; never 0, which means "no rows".
class Digest {
 public:
  void add(std::string_view text) {
    for (const char c : text) mix(static_cast<unsigned char>(c));
    mix(0);
  }
  void add(std::int64_t number) { add(std::to_string(number)); }
  [[nodiscard]] std::uint16_t fold() const {
    const std::uint64_t folded = hash_ ^ (hash_ >> 32U);
    const auto digest = static_cast<std::uint16_t>((folded ^ (folded >> 16U)) & 0xffffU);
    return digest == 0 ? std::uint16_t{1} : digest;
  }

 private:
  void mix(unsigned char byte) { hash_ = (hash_ ^ byte) * 0x100000001b3ULL; }
  std::uint64_t hash_ = 0xcbf29ce484222325ULL;
};

bool is_length(Field field) { return field <= Field::seqlen_k; }

void check(const Fault& fault, const Clause& clause) {
  const FieldInfo& field = info(clause.field);
  const std::string where = "fault '" + fault.id + "', " + std::string(field.name) + ": ";
  using Op = Clause::Op;
  const bool modular = clause.op == Op::multiple_of || clause.op == Op::not_multiple_of;
  const bool set = clause.op == Op::one_of || clause.op == Op::none_of;
  if (modular && clause.value < 1)
    throw std::invalid_argument(where + "got a modulus of " + std::to_string(clause.value) + ", expected 1 or more");
  if ((clause.op == Op::product_over) != (clause.of != 0) || clause.of > 7 ||
      (clause.op == Op::product_over && (!is_length(clause.field) || clause.value < 1)))
    throw std::invalid_argument(
        where + "product_over takes a positive factor and the lengths to multiply (batch, seqlen_q, seqlen_k)");
  if (set && field.type != FieldType::choice)
    throw std::invalid_argument(where + "a list of values is for named choices only; write one row for each value");
  const bool ordered = clause.op == Op::at_most || clause.op == Op::at_least || modular;
  if (ordered && field.type != FieldType::integer)
    throw std::invalid_argument(where + "at_most, at_least and multiple_of are for integers");
  if (field.type == FieldType::version || field.type == FieldType::backends)
    throw std::invalid_argument(where + "versions belong in library, since and until; sets of backends in backends");
  const bool named = field.type == FieldType::choice || field.type == FieldType::boolean;
  if (named && !set && (clause.value < field.min || clause.value > field.max))
    throw std::invalid_argument(where + "got " + std::to_string(clause.value) + ", which is no value of this field");
  if (set && (clause.value <= 0 ||
              (static_cast<std::uint64_t>(clause.value) >> static_cast<std::uint64_t>(field.max + 1)) != 0))
    throw std::invalid_argument(where +
                                "a list of values must name at least one of the field's choices, and no others");
  if (is_length(clause.field) && clause.value < 0)
    throw std::invalid_argument(where + "got " + std::to_string(clause.value) + ", expected 0 or more");
}

struct Registry {
  std::shared_mutex mutex;
  std::map<std::uint16_t, std::shared_ptr<const RuleSet>> sets;
};
Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

RuleSet::RuleSet(std::vector<Fault> faults) : faults_(std::move(faults)) {
  if (faults_.size() > kMaxFaults)
    throw std::invalid_argument("a rule set has " + std::to_string(faults_.size()) + " rows, at most " +
                                std::to_string(kMaxFaults) + " are allowed");
  std::set<std::string_view> ids;
  for (const Fault& builtin : builtin_faults()) ids.insert(builtin.id);
  Digest digest;
  for (const Fault& fault : faults_) {
    if (fault.id.empty()) throw std::invalid_argument("a fault row has no id");
    if (!ids.insert(fault.id).second) throw std::invalid_argument("fault '" + fault.id + "': this id is taken already");
    if (fault.backends.empty())
      throw std::invalid_argument("fault '" + fault.id + "': backends is empty, expected at least one backend");
    if (fault.until.installed() && fault.until <= fault.since)
      throw std::invalid_argument("fault '" + fault.id + "': until " + fault.until.to_string() +
                                  " is not after since " + fault.since.to_string());
    if (fault.sm_min > fault.sm_max) throw std::invalid_argument("fault '" + fault.id + "': sm_min is above sm_max");
    digest.add(fault.id);
    digest.add(fault.backends.bits());
    digest.add(static_cast<std::int64_t>(fault.library));
    digest.add(static_cast<std::int64_t>(fault.since.bits()));
    digest.add(static_cast<std::int64_t>(fault.until.bits()));
    digest.add(fault.sm_min);
    digest.add(fault.sm_max);
    for (const Clause& clause : fault.when) {
      check(fault, clause);
      digest.add(info(clause.field).name);
      digest.add(static_cast<std::int64_t>(clause.op));
      digest.add(clause.value);
      digest.add(clause.of);
    }
    digest.add(static_cast<std::int64_t>(fault.policies));
    digest.add(fault.effect);
    digest.add(fault.link);
  }
  digest_ = faults_.empty() ? std::uint16_t{0} : digest.fold();
}

std::uint16_t register_rule_set(const RuleSet& set) {
  if (set.digest() == 0) return 0;
  Registry& known = registry();
  const std::unique_lock lock(known.mutex);
  const auto [it, inserted] = known.sets.try_emplace(set.digest(), nullptr);
  if (inserted) {
    it->second = std::make_shared<const RuleSet>(set);
  } else if (!(*it->second == set)) {
    throw std::invalid_argument(
        "two different rule sets have the digest " + std::to_string(set.digest()) +
        "; change the text of a row (its effect, say) in CYNOSURE_FAULTS or cynosure.faults.add");
  }
  return set.digest();
}

std::shared_ptr<const RuleSet> rule_set(std::uint16_t digest) {
  Registry& known = registry();
  const std::shared_lock lock(known.mutex);
  const auto it = known.sets.find(digest);
  if (it == known.sets.end())
    throw std::invalid_argument("the settings name a rule set with digest " + std::to_string(digest) +
                                " that this process does not have; point CYNOSURE_FAULTS at the file it came from, or "
                                "add its rows with cynosure.faults.add");
  return it->second;
}

}  // namespace cynosure
