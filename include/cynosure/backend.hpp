// SPDX-License-Identifier: Apache-2.0
// cynosure/backend.hpp: the backends and sets of them.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace cynosure {

/// The values are part of the settings word and of saved ledgers: append only.
enum class Backend : std::uint8_t {
  cpu = 0,         ///< our own CPU kernels
  cudnn = 1,       ///< cuDNN's 16-bit attention graph
  cudnn_fp8 = 2,   ///< cuDNN's FP8 attention graph
  flash2 = 3,      ///< the flash-attn package
  aten_flash = 4,  ///< FlashAttention 2 as built into torch
  flash3 = 5,      ///< the flash-attn-3 package
  flash4 = 6,      ///< the flash-attn-4 package
  unfused = 7,     ///< the reference: plain matrix products
};

inline constexpr std::size_t kBackendCount = 8;
inline constexpr std::array<std::string_view, kBackendCount> kBackendNames{
    "cpu", "cudnn", "cudnn_fp8", "flash2", "aten_flash", "flash3", "flash4", "unfused"};

[[nodiscard]] constexpr std::string_view name(Backend backend) {
  return kBackendNames[static_cast<std::size_t>(backend)];
}
[[nodiscard]] constexpr std::optional<Backend> backend_named(std::string_view text) {
  for (std::size_t i = 0; i < kBackendCount; ++i)
    if (kBackendNames[i] == text) return static_cast<Backend>(i);
  return std::nullopt;
}

/// A set of backends as a bit mask; iterates in enum order.
class BackendSet {
 public:
  constexpr BackendSet() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): one backend reads as a set in the rule tables
  constexpr BackendSet(Backend backend) : bits_(bit(backend)) {}
  constexpr BackendSet(std::initializer_list<Backend> backends) {
    for (const Backend backend : backends) bits_ |= bit(backend);
  }
  [[nodiscard]] static constexpr BackendSet from_bits(std::uint32_t bits) {
    BackendSet set;
    set.bits_ = static_cast<std::uint16_t>(bits & ((1U << kBackendCount) - 1));
    return set;
  }
  [[nodiscard]] static constexpr BackendSet all() { return from_bits(~0U); }

  [[nodiscard]] constexpr bool contains(Backend backend) const { return (bits_ & bit(backend)) != 0; }
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }
  [[nodiscard]] constexpr int size() const { return std::popcount(bits_); }
  [[nodiscard]] constexpr std::uint16_t bits() const { return bits_; }

  constexpr BackendSet operator|(BackendSet other) const { return from_bits(bits_ | other.bits_); }
  constexpr BackendSet operator&(BackendSet other) const { return from_bits(bits_ & other.bits_); }
  constexpr BackendSet operator-(BackendSet other) const { return from_bits(bits_ & ~std::uint32_t{other.bits_}); }
  constexpr BackendSet& operator|=(BackendSet other) { return *this = *this | other; }
  constexpr bool operator==(const BackendSet&) const = default;

  class Iterator {
   public:
    constexpr explicit Iterator(std::uint32_t rest) : rest_(rest) {}
    constexpr Backend operator*() const { return static_cast<Backend>(std::countr_zero(rest_)); }
    constexpr Iterator& operator++() {
      rest_ &= rest_ - 1;
      return *this;
    }
    constexpr bool operator==(const Iterator&) const = default;

   private:
    std::uint32_t rest_;
  };
  [[nodiscard]] constexpr Iterator begin() const { return Iterator(bits_); }
  [[nodiscard]] constexpr Iterator end() const { return Iterator(0); }

 private:
  static constexpr std::uint16_t bit(Backend backend) {
    return static_cast<std::uint16_t>(1U << static_cast<unsigned>(backend));
  }
  std::uint16_t bits_ = 0;
};

constexpr BackendSet operator|(Backend a, Backend b) { return BackendSet(a) | BackendSet(b); }

inline constexpr BackendSet kFlashBackends{Backend::flash2, Backend::aten_flash, Backend::flash3, Backend::flash4};
inline constexpr BackendSet kCudnnBackends{Backend::cudnn, Backend::cudnn_fp8};
/// The backends TransformerEngine chooses between.
inline constexpr BackendSet kTransformerEngineBackends{Backend::cudnn,  Backend::cudnn_fp8, Backend::flash2,
                                                       Backend::flash3, Backend::flash4,    Backend::unfused};

}  // namespace cynosure
