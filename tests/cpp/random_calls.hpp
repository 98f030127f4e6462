// SPDX-License-Identifier: Apache-2.0
// tests/cpp/random_calls.hpp: random problems, settings and devices from a fixed seed, and their text.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include <cynosure/device.hpp>
#include <cynosure/problem.hpp>
#include <cynosure/select.hpp>
#include <cynosure/settings.hpp>

namespace cynosure::testing {

/// splitmix64: the same numbers on every platform, which <random>'s distributions do not promise.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n)); }
  bool percent(int chance) { return below(100) < chance; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<std::int64_t>(values.size()))];
  }
  /// Any enumerator of an enum whose names are `names`.
  template <class E, std::size_t N>
  E any(const std::array<std::string_view, N>&) {
    return static_cast<E>(below(static_cast<std::int64_t>(N)));
  }

 private:
  std::uint64_t state_;
};

/// The arguments of select.
struct Call {
  Problem problem;
  Settings settings;
  Device device;

  [[nodiscard]] Outcome outcome() const { return evaluate(problem, settings, device); }
  [[nodiscard]] Decision decision() const { return {problem, settings, device, outcome()}; }
  /// Everything needed to repeat it: the JSON of each part, and the settings word.
  [[nodiscard]] std::string text() const;
};

/// Problems that validate() accepts, common ones and ones with several rare features at once.
[[nodiscard]] Problem random_problem(Random& random);
[[nodiscard]] Lengths random_lengths(Random& random);
[[nodiscard]] Settings random_settings(Random& random);
[[nodiscard]] Device random_device(Random& random);
[[nodiscard]] Call random_call(Random& random);

}  // namespace cynosure::testing
