// SPDX-License-Identifier: Apache-2.0
// cynosure/decision.hpp: the answer: the chosen backend and a verdict, with every reason, on each of the others.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cynosure/backend.hpp>
#include <cynosure/device.hpp>
#include <cynosure/export.hpp>
#include <cynosure/length_facts.hpp>
#include <cynosure/problem.hpp>
#include <cynosure/rule.hpp>
#include <cynosure/settings.hpp>

namespace cynosure {

/// A set of rows, by index: built-in rows first, then the rows of the rule set in force.
class RuleMask {
 public:
  static constexpr std::size_t kCapacity = 384;
  constexpr void set(std::size_t i) { words_[i / 64] |= std::uint64_t{1} << (i % 64); }
  [[nodiscard]] constexpr bool test(std::size_t i) const { return ((words_[i / 64] >> (i % 64)) & 1U) != 0; }
  [[nodiscard]] constexpr bool any() const {
    for (const std::uint64_t word : words_)
      if (word != 0) return true;
    return false;
  }
  constexpr RuleMask operator&(const RuleMask& other) const {
    RuleMask both;
    for (std::size_t i = 0; i < words_.size(); ++i) both.words_[i] = words_[i] & other.words_[i];
    return both;
  }
  constexpr RuleMask operator|(const RuleMask& other) const {
    RuleMask either;
    for (std::size_t i = 0; i < words_.size(); ++i) either.words_[i] = words_[i] | other.words_[i];
    return either;
  }
  template <class F>
  constexpr void for_each(F f) const {
    for (std::size_t w = 0; w < words_.size(); ++w)
      for (std::uint64_t rest = words_[w]; rest != 0; rest &= rest - 1)
        f(w * 64 + static_cast<std::size_t>(std::countr_zero(rest)));
  }
  bool operator==(const RuleMask&) const = default;

 private:
  std::array<std::uint64_t, kCapacity / 64> words_{};
};

/// What select computes: small, trivially copyable, cached. Texts are made from it on demand (Decision).
struct Outcome {
  RuleMask fired;      ///< rows that exclude, undecided ones included; not those that hang on facts never asked
  RuleMask undecided;  ///< of those, the ones that an undecidable length fact left open
  BackendSet eligible;
  std::int8_t chosen = -1;     ///< a Backend, or -1
  std::uint8_t order_row = 0;  ///< the policy's row that gave the order
  bool operator==(const Outcome&) const = default;

  [[nodiscard]] std::optional<Backend> backend() const {
    return chosen < 0 ? std::nullopt : std::optional(static_cast<Backend>(chosen));
  }
};

/// A changed fact, and what it does: found by search and verified by select before it is named.
struct Fix {
  std::string text;             ///< "cuDNN 9.5.0 or newer"
  bool makes_eligible = false;  ///< alone it makes the backend eligible; otherwise other reasons remain
  bool operator==(const Fix&) const = default;
};

/// Where the order comes from: the policy's row, a contract apart. Borrows from the policy's table.
struct Ground {
  Policy policy{};
  std::string_view row;
  std::string_view when;  ///< the row's condition, as prose
  BackendList best_first;
  std::string_view evidence;
};

/// One rule that fired against one backend.
struct Reason {
  struct Actual {
    std::string name;
    std::string value;
    bool operator==(const Actual&) const = default;
  };
  Backend backend{};
  std::string rule;  ///< the row's id
  Way way = Way::not_eligible;
  std::vector<Actual> actual;
  std::string required;
  std::string evidence;
  bool undecided = false;    ///< excluded because a length fact is unknown (unbacked size)
  std::optional<Fix> fix{};  ///< filled by explain only
  bool operator==(const Reason&) const = default;
};

/// The outcome together with the values it is about. Pure data: reasons are computed when asked for.
class Decision {
 public:
  Decision(const Problem& problem, Settings settings, const Device& device, const Outcome& outcome)
      : problem_(problem), device_(device), settings_(settings), outcome_(outcome) {}

  [[nodiscard]] const Problem& problem() const { return problem_; }
  [[nodiscard]] const Device& device() const { return device_; }
  [[nodiscard]] Settings settings() const { return settings_; }
  [[nodiscard]] const Outcome& outcome() const { return outcome_; }

  [[nodiscard]] std::optional<Backend> backend() const { return outcome_.backend(); }
  [[nodiscard]] BackendSet eligible() const { return outcome_.eligible; }
  /// Best first: the eligible backends in the order of contract and policy.
  [[nodiscard]] CYNOSURE_API std::vector<Backend> order() const;
  [[nodiscard]] CYNOSURE_API Ground policy_ground() const;
  /// Why this order, as prose: the contract, then the policy's row.
  [[nodiscard]] CYNOSURE_API std::string ground() const;
  [[nodiscard]] CYNOSURE_API std::vector<Reason> reasons() const;                 ///< all, in backend then table order
  [[nodiscard]] CYNOSURE_API std::vector<Reason> reasons(Backend backend) const;  ///< empty exactly when eligible
  /// The smallest known change that removes this reason, verified; nothing where none is known.
  [[nodiscard]] CYNOSURE_API std::optional<Fix> fix_for(const Reason& reason) const;
  /// What it takes to make a backend eligible: one verified sentence, or nothing.
  [[nodiscard]] CYNOSURE_API std::optional<std::string> remedy(Backend backend) const;
  /// Why nothing runs, for an error: what to do, the call, and every reason by backend. Meant for a decision without
  /// one.
  [[nodiscard]] CYNOSURE_API std::string refusal() const;
  bool operator==(const Decision&) const = default;

 private:
  Problem problem_;
  Device device_;
  Settings settings_;
  Outcome outcome_;
};

}  // namespace cynosure
