// SPDX-License-Identifier: Apache-2.0
// cynosure/settings.hpp: what the user switched on or off, as one self-describing 64-bit word.
//
// The word is a constant in compiled graphs and exported programs, so its layout carries a version: a word of another
// layout is refused, never reinterpreted.
//
//   bits   0-5  layout version          bits 38-40  policy
//   bits  6-15  enabled backends        bit  41     deterministic
//   bits 16-17  contract                bits 42-43  float32 matmul precision
//   bits 18-37  its ordered list, as    bits 44-47  switches
//               a permutation rank      bits 48-63  digest of the rule set; 0: the built-in rows alone
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <cynosure/backend.hpp>
#include <cynosure/export.hpp>

namespace cynosure {

enum class Policy : std::uint8_t { fastest = 0, te = 1 };
inline constexpr std::array<std::string_view, 2> kPolicyNames{"fastest", "te"};

enum class Contract : std::uint8_t { automatic = 0, prefer = 1, require = 2 };
inline constexpr std::array<std::string_view, 3> kContractNames{"auto", "prefer", "require"};

/// torch.get_float32_matmul_precision()
enum class MatmulPrecision : std::uint8_t { highest = 0, high = 1, medium = 2 };
inline constexpr std::array<std::string_view, 3> kMatmulPrecisionNames{"highest", "high", "medium"};

/// An ordered list of distinct backends, as a contract names it. Never longer than kBackendCount.
class BackendList {
 public:
  constexpr BackendList() = default;
  constexpr BackendList(std::initializer_list<Backend> backends) {
    for (const Backend backend : backends) push_back(backend);
  }
  constexpr void push_back(Backend backend) { items_[size_++] = backend; }
  [[nodiscard]] constexpr std::size_t size() const { return size_; }
  [[nodiscard]] constexpr bool empty() const { return size_ == 0; }
  [[nodiscard]] constexpr const Backend* begin() const { return items_.data(); }
  [[nodiscard]] constexpr const Backend* end() const { return items_.data() + size_; }
  [[nodiscard]] constexpr Backend operator[](std::size_t i) const { return items_[i]; }
  [[nodiscard]] constexpr BackendSet set() const {
    BackendSet all;
    for (const Backend backend : *this) all |= backend;
    return all;
  }
  constexpr bool operator==(const BackendList& other) const {
    if (size_ != other.size_) return false;
    for (std::size_t i = 0; i < size_; ++i)
      if (items_[i] != other.items_[i]) return false;
    return true;
  }

 private:
  std::array<Backend, kBackendCount> items_{};
  std::uint8_t size_ = 0;
};

class Settings {
 public:
  static constexpr unsigned kLayoutVersion = 1;

  enum Switch : std::uint8_t {
    emulate_fp8 = 1,  ///< NVTE_UnfusedDPA_Emulate_FP8=1
    onnx_export = 2,  ///< torch.onnx export is running
    enforce = 4,      ///< an operator runs: our correctness rules exclude under `te` too
  };

  constexpr Settings() : word_(kLayoutVersion | (std::uint64_t{BackendSet::all().bits()} << kEnabledShift)) {}
  /// Throws std::invalid_argument for a word of another layout version, or with an impossible field.
  [[nodiscard]] CYNOSURE_API static Settings from_word(std::uint64_t word);

  [[nodiscard]] constexpr std::uint64_t word() const { return word_; }
  [[nodiscard]] constexpr BackendSet enabled() const {
    return BackendSet::from_bits(static_cast<std::uint32_t>(bits(kEnabledShift, 10)));
  }
  [[nodiscard]] constexpr Contract contract() const { return static_cast<Contract>(bits(kContractShift, 2)); }
  [[nodiscard]] CYNOSURE_API BackendList named() const;          ///< the contract's ordered list; empty for automatic
  [[nodiscard]] CYNOSURE_API bool names(Backend backend) const;  ///< the contract names it
  [[nodiscard]] constexpr Policy policy() const { return static_cast<Policy>(bits(kPolicyShift, 3)); }
  [[nodiscard]] constexpr bool deterministic() const { return bits(kDeterministicShift, 1) != 0; }
  [[nodiscard]] constexpr MatmulPrecision matmul_precision() const {
    return static_cast<MatmulPrecision>(bits(kPrecisionShift, 2));
  }
  [[nodiscard]] constexpr bool on(Switch which) const { return (bits(kSwitchShift, 4) & which) != 0; }
  [[nodiscard]] constexpr std::uint16_t rules_digest() const {
    return static_cast<std::uint16_t>(bits(kDigestShift, 16));
  }

  [[nodiscard]] constexpr Settings with_enabled(BackendSet set) const { return with(kEnabledShift, 10, set.bits()); }
  [[nodiscard]] CYNOSURE_API Settings with_contract(Contract contract, const BackendList& named) const;
  [[nodiscard]] constexpr Settings with_policy(Policy policy) const {
    return with(kPolicyShift, 3, static_cast<unsigned>(policy));
  }
  [[nodiscard]] constexpr Settings with_deterministic(bool on) const {
    return with(kDeterministicShift, 1, on ? 1U : 0U);
  }
  [[nodiscard]] constexpr Settings with_matmul_precision(MatmulPrecision p) const {
    return with(kPrecisionShift, 2, static_cast<unsigned>(p));
  }
  [[nodiscard]] constexpr Settings with_switch(Switch which, bool on) const {
    const std::uint64_t old = bits(kSwitchShift, 4);
    return with(kSwitchShift, 4, on ? (old | which) : (old & ~std::uint64_t{which}));
  }
  [[nodiscard]] constexpr Settings with_rules_digest(std::uint16_t digest) const {
    return with(kDigestShift, 16, digest);
  }

  /// One line a person can read: "policy=fastest enabled=all contract=prefer(flash3, cudnn) deterministic=no ...".
  [[nodiscard]] CYNOSURE_API std::string describe() const;

  constexpr bool operator==(const Settings&) const = default;

 private:
  static constexpr unsigned kEnabledShift = 6;
  static constexpr unsigned kContractShift = 16;
  static constexpr unsigned kListShift = 18;
  static constexpr unsigned kPolicyShift = 38;
  static constexpr unsigned kDeterministicShift = 41;
  static constexpr unsigned kPrecisionShift = 42;
  static constexpr unsigned kSwitchShift = 44;
  static constexpr unsigned kDigestShift = 48;

  [[nodiscard]] constexpr std::uint64_t bits(unsigned shift, unsigned width) const {
    return (word_ >> shift) & ((std::uint64_t{1} << width) - 1);
  }
  [[nodiscard]] constexpr Settings with(unsigned shift, unsigned width, std::uint64_t value) const {
    const std::uint64_t mask = ((std::uint64_t{1} << width) - 1) << shift;
    Settings copy = *this;
    copy.word_ = (word_ & ~mask) | ((value << shift) & mask);
    return copy;
  }

  std::uint64_t word_;
};

}  // namespace cynosure
