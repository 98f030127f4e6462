// SPDX-License-Identifier: Apache-2.0
// cynosure/length_facts.hpp: the closed forms through which rules and policies see lengths, and nothing else.
//
// A rule gets LengthFacts, whose oracle keeps the lengths private. With lengths at hand (ConcreteLengths) a fact is a
// bool. While torch traces with symbolic lengths (PartialLengths) it is a Truth: some facts are known, some may still
// be asked, some cannot be decided (unbacked sizes) and stay unknown.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cynosure/export.hpp>
#include <cynosure/problem.hpp>

namespace cynosure {

/// Yes, no or unknown (Kleene's logic). Both operands of && and || are evaluated.
class Truth {
 public:
  enum class Value : std::uint8_t { no, yes, unknown };
  // NOLINTBEGIN(google-explicit-constructor): mixes with bool in predicates
  constexpr Truth(bool value) : value_(value ? Value::yes : Value::no) {}
  constexpr Truth(Value value) : value_(value) {}
  // NOLINTEND(google-explicit-constructor)
  static constexpr Truth unknown() { return Value::unknown; }

  [[nodiscard]] constexpr bool is_yes() const { return value_ == Value::yes; }
  [[nodiscard]] constexpr bool is_no() const { return value_ == Value::no; }
  [[nodiscard]] constexpr bool is_unknown() const { return value_ == Value::unknown; }

  friend constexpr Truth operator!(Truth a) { return a.is_unknown() ? a : Truth(a.is_no()); }
  friend constexpr Truth operator&&(Truth a, Truth b) {
    if (a.is_no() || b.is_no()) return false;
    return (a.is_unknown() || b.is_unknown()) ? unknown() : Truth(true);
  }
  friend constexpr Truth operator||(Truth a, Truth b) {
    if (a.is_yes() || b.is_yes()) return true;
    return (a.is_unknown() || b.is_unknown()) ? unknown() : Truth(false);
  }
  constexpr bool operator==(const Truth&) const = default;

 private:
  Value value_;
};

[[nodiscard]] constexpr bool is_yes(bool value) { return value; }
[[nodiscard]] constexpr bool is_yes(Truth value) { return value.is_yes(); }
[[nodiscard]] constexpr bool is_unknown(bool) { return false; }
[[nodiscard]] constexpr bool is_unknown(Truth value) { return value.is_unknown(); }

inline constexpr std::int64_t kInt32Max = 2147483647;

/// One closed form over lengths.
struct LengthFact {
  enum class Kind : std::uint8_t {
    equals,        ///< length == constant
    multiple_of,   ///< length % constant == 0
    at_most,       ///< length <= constant
    q_at_most_k,   ///< seqlen_q <= seqlen_k
    q_equals_k,    ///< seqlen_q == seqlen_k
    product_over,  ///< constant * (product of the lengths in `of`) > 2^31 - 1
  };
  /// Which lengths, as bits; exactly one for the first three kinds.
  enum Operand : std::uint8_t { batch = 1, seqlen_q = 2, seqlen_k = 4 };

  Kind kind = Kind::equals;
  std::uint8_t of = 0;
  std::int64_t constant = 0;

  [[nodiscard]] CYNOSURE_API std::string to_string() const;  ///< "seqlen_k % 64 == 0"
  bool operator==(const LengthFact&) const = default;
};

/// A fact with its value; `unknown` where torch cannot decide it.
struct KnownFact {
  LengthFact fact;
  Truth value = Truth::unknown();
};

/// Oracle over real lengths.
class ConcreteLengths {
 public:
  using Answer = bool;
  constexpr explicit ConcreteLengths(const Lengths& lengths) : lengths_(lengths) {}

  [[nodiscard]] [[gnu::always_inline]] constexpr bool holds(const LengthFact& fact) const {
    switch (fact.kind) {
      case LengthFact::Kind::equals:
        return length(fact.of) == fact.constant;
      case LengthFact::Kind::multiple_of:
        return length(fact.of) % fact.constant == 0;
      case LengthFact::Kind::at_most:
        return length(fact.of) <= fact.constant;
      case LengthFact::Kind::q_at_most_k:
        return lengths_.seqlen_q <= lengths_.seqlen_k;
      case LengthFact::Kind::q_equals_k:
        return lengths_.seqlen_q == lengths_.seqlen_k;
      case LengthFact::Kind::product_over:
        return product_over(fact);
    }
    return false;
  }

 private:
  [[nodiscard]] [[gnu::always_inline]] constexpr std::int64_t length(std::uint8_t of) const {
    if (of == LengthFact::batch) return lengths_.batch;
    return of == LengthFact::seqlen_q ? lengths_.seqlen_q : lengths_.seqlen_k;
  }
  [[nodiscard]] constexpr bool product_over(const LengthFact& fact) const {
    // Saturating: the factors are at most 2^63, so stop as soon as the bound is passed.
    std::int64_t product = fact.constant;
    for (const std::uint8_t of : {LengthFact::batch, LengthFact::seqlen_q, LengthFact::seqlen_k}) {
      if ((fact.of & of) == 0) continue;
      const std::int64_t factor = length(of);
      if (factor == 0 || product == 0) return false;
      product = product > kInt32Max / factor ? kInt32Max + 1 : product * factor;
    }
    return product > kInt32Max;
  }

  Lengths lengths_;
};

/// Oracle over facts gathered while tracing. Draws the plain consequences of what it knows (s % 128 == 0 gives
/// s % 64 == 0), and notes the first fact it was asked and does not know.
class PartialLengths {
 public:
  using Answer = Truth;
  explicit PartialLengths(std::span<const KnownFact> known) : known_(known) {}
  [[nodiscard]] CYNOSURE_API Truth holds(const LengthFact& fact) const;

  /// The facts asked so far that are neither known nor declared undecidable, in the order asked, without repeats.
  [[nodiscard]] const std::vector<LengthFact>& open() const { return open_; }
  void forget_open() { open_.clear(); }

 private:
  [[nodiscard]] Truth implied(const LengthFact& fact) const;

  std::span<const KnownFact> known_;
  mutable std::vector<LengthFact> open_;
};

/// What a rule sees of one length.
template <class Oracle>
class LengthView {
 public:
  using Answer = typename Oracle::Answer;
  constexpr LengthView(const Oracle& oracle, LengthFact::Operand which) : oracle_(oracle), which_(which) {}
  [[nodiscard]] [[gnu::always_inline]] constexpr Answer equals(std::int64_t c) const {
    return ask(LengthFact::Kind::equals, c);
  }
  [[nodiscard]] [[gnu::always_inline]] constexpr Answer multiple_of(std::int64_t m) const {
    return ask(LengthFact::Kind::multiple_of, m);
  }
  [[nodiscard]] [[gnu::always_inline]] constexpr Answer at_most(std::int64_t c) const {
    return ask(LengthFact::Kind::at_most, c);
  }
  [[nodiscard]] [[gnu::always_inline]] constexpr Answer at_least(std::int64_t c) const { return !at_most(c - 1); }
  /// coefficient * length > 2^31 - 1
  [[nodiscard]] [[gnu::always_inline]] constexpr Answer product_over_int32(std::int64_t coefficient) const {
    return coefficient <= 0 ? Answer(false) : !at_most(kInt32Max / coefficient);
  }

 private:
  [[nodiscard]] [[gnu::always_inline]] constexpr Answer ask(LengthFact::Kind kind, std::int64_t c) const {
    return oracle_.holds(LengthFact{kind, which_, c});
  }
  const Oracle& oracle_;
  LengthFact::Operand which_;
};

/// What a rule sees of all lengths. Raw lengths are out of reach.
template <class Oracle>
class LengthFacts {
 public:
  using Answer = typename Oracle::Answer;
  constexpr explicit LengthFacts(const Oracle& oracle)
      : batch(oracle, LengthFact::batch),
        q(oracle, LengthFact::seqlen_q),
        k(oracle, LengthFact::seqlen_k),
        oracle_(oracle) {}

  LengthView<Oracle> batch;
  LengthView<Oracle> q;
  LengthView<Oracle> k;

  [[nodiscard]] [[gnu::always_inline]] constexpr Answer q_at_most_k() const {
    return oracle_.holds({LengthFact::Kind::q_at_most_k, 0, 0});
  }
  [[nodiscard]] [[gnu::always_inline]] constexpr Answer q_equals_k() const {
    return oracle_.holds({LengthFact::Kind::q_equals_k, 0, 0});
  }
  /// coefficient * product of the lengths in `of` (LengthFact::Operand bits) > 2^31 - 1
  [[nodiscard]] [[gnu::always_inline]] constexpr Answer product_over_int32(std::uint8_t of,
                                                                           std::int64_t coefficient) const {
    return oracle_.holds({LengthFact::Kind::product_over, of, coefficient});
  }

 private:
  const Oracle& oracle_;
};

}  // namespace cynosure
