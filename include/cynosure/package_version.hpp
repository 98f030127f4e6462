// SPDX-License-Identifier: Apache-2.0
// cynosure/package_version.hpp: the version of a library or package, as a comparable value.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <cynosure/export.hpp>

namespace cynosure {

/// A release number in PEP 440's order: 3.0.0b1 < 3.0.0 < 3.0.0.post1 < 3.0.1. Local parts (+cu13) are dropped.
/// Packed into one integer, so that it compares in one instruction and fits a cache key. Zero means "not installed".
class Version {
 public:
  enum class Phase : std::uint8_t { dev = 0, alpha = 1, beta = 2, candidate = 3, final = 8, post = 9 };

  constexpr Version() = default;
  constexpr Version(unsigned major, unsigned minor, unsigned micro = 0, Phase phase = Phase::final, unsigned number = 0)
      : bits_((std::uint64_t{major & 0xfffU} << 44U) | (std::uint64_t{minor & 0xfffU} << 32U) |
              (std::uint64_t{micro & 0xfffU} << 20U) | (static_cast<std::uint64_t>(phase) << 16U) |
              (number & 0xffffU)) {}

  /// "2.8.3", "3.0.0b1", "2.8.3.post1+cu13"; nothing for text that is not a version of that form.
  [[nodiscard]] CYNOSURE_API static std::optional<Version> parse(std::string_view text);
  /// cuDNN's integer form: 9.x is 10000*major + 100*minor + patch, 8.x is 1000*major + 100*minor + patch.
  [[nodiscard]] static constexpr Version from_cudnn_integer(std::uint32_t value) {
    if (value == 0) return {};
    return value >= 90000 ? Version(value / 10000, value / 100 % 100, value % 100)
                          : Version(value / 1000, value / 100 % 10, value % 100);
  }
  [[nodiscard]] static constexpr Version from_bits(std::uint64_t bits) {
    Version version;
    version.bits_ = bits;
    return version;
  }

  [[nodiscard]] constexpr bool installed() const { return bits_ != 0; }
  [[nodiscard]] constexpr unsigned major() const { return static_cast<unsigned>(bits_ >> 44U) & 0xfffU; }
  [[nodiscard]] constexpr unsigned minor() const { return static_cast<unsigned>(bits_ >> 32U) & 0xfffU; }
  [[nodiscard]] constexpr unsigned micro() const { return static_cast<unsigned>(bits_ >> 20U) & 0xfffU; }
  [[nodiscard]] constexpr Phase phase() const { return static_cast<Phase>((bits_ >> 16U) & 0xfU); }
  [[nodiscard]] constexpr unsigned number() const { return static_cast<unsigned>(bits_) & 0xffffU; }
  [[nodiscard]] constexpr std::uint64_t bits() const { return bits_; }
  [[nodiscard]] CYNOSURE_API std::string to_string() const;  ///< canonical text; "" when not installed

  constexpr auto operator<=>(const Version&) const = default;

 private:
  std::uint64_t bits_ = 0;
};

}  // namespace cynosure
