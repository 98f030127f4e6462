// SPDX-License-Identifier: Apache-2.0
// cynosure/rule_set.hpp: known upstream faults as data, the built-in ones and the user's.
//
// A RuleSet is an immutable value registered under the digest of its content, which is part of the settings word. So
// a compiled graph, a ledger or another process names the very rows it decided with.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <cynosure/backend.hpp>
#include <cynosure/export.hpp>
#include <cynosure/fields.hpp>
#include <cynosure/rule.hpp>

namespace cynosure {

/// The software whose versions a fault row speaks of.
enum class Library : std::uint8_t { cudnn, flash2, flash3, flash4, torch };
inline constexpr std::array<std::string_view, 5> kLibraryNames{"cudnn", "flash2", "flash3", "flash4", "torch"};

/// One condition on one field. A length field takes the forms of length facts: no one_of or none_of.
struct Clause {
  enum class Op : std::uint8_t {
    equals,
    not_equals,
    at_most,
    at_least,
    multiple_of,
    not_multiple_of,
    one_of,
    none_of,       ///< choices only; `value` is a bit mask of them
    product_over,  ///< `field` is batch, seqlen_q or seqlen_k; see `of`: value * product of lengths > 2^31 - 1
  };
  Field field{};
  Op op = Op::equals;
  std::int64_t value = 0;
  std::uint8_t of = 0;  ///< for product_over: the lengths, as LengthFact::Operand bits; 0 otherwise
  bool operator==(const Clause&) const = default;
};
inline constexpr std::array<std::string_view, 9> kClauseOpNames{"equals",   "not_equals",  "at_most",
                                                                "at_least", "multiple_of", "not_multiple_of",
                                                                "one_of",   "none_of",     "product_over"};

/// A known fault: with `library` in [since, until) on an architecture in [sm_min, sm_max], when every clause holds,
/// the backends are excluded.
struct Fault {
  std::string id;
  BackendSet backends;
  Library library = Library::cudnn;
  Version since{};  ///< first faulty version; not installed(): unknown, taken as any
  Version until{};  ///< first good version; not installed(): unknown, the fault is taken as still there
  std::uint16_t sm_min = 0;
  std::uint16_t sm_max = 0xffff;
  std::vector<Clause> when;
  Policies policies = Policies::fastest;
  std::string effect;  ///< what goes wrong: "NaN in the gradient of q"
  std::string link;    ///< upstream issue
  bool operator==(const Fault&) const = default;
};

/// The faults that ship with this release.
[[nodiscard]] CYNOSURE_API const std::vector<Fault>& builtin_faults();

class RuleSet {
 public:
  static constexpr std::size_t kMaxFaults = 64;
  RuleSet() = default;
  /// Throws std::invalid_argument: too many rows, a repeated or empty id, no backend, a clause a length cannot take.
  CYNOSURE_API explicit RuleSet(std::vector<Fault> faults);
  [[nodiscard]] const std::vector<Fault>& faults() const { return faults_; }
  [[nodiscard]] std::uint16_t digest() const { return digest_; }  ///< 0 exactly when empty; equal content, equal digest
  bool operator==(const RuleSet& other) const { return faults_ == other.faults_; }

 private:
  std::vector<Fault> faults_;
  std::uint16_t digest_ = 0;
};

/// Makes a rule set known under its digest. Throws std::invalid_argument (naming CYNOSURE_FAULTS) when a different set
/// already has that digest. Thread-safe; registering the same set again does nothing.
CYNOSURE_API std::uint16_t register_rule_set(const RuleSet& set);
/// Throws std::invalid_argument, naming CYNOSURE_FAULTS, for a digest not registered in this process.
[[nodiscard]] CYNOSURE_API std::shared_ptr<const RuleSet> rule_set(std::uint16_t digest);

}  // namespace cynosure
