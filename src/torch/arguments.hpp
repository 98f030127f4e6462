// SPDX-License-Identifier: Apache-2.0
// torch/arguments.hpp: the arguments of the raw operators, read once, checked and made into a Problem.
#pragma once

#include <cstdint>

#include <cynosure/call.hpp>
#include <cynosure/decision.hpp>

#include "torch/aten.hpp"

namespace cynosure::torch_abi {

/// What the raw operators share, in the order of their schemas (see kSharedSchema).
struct Arguments {
  Tensor q, k, v;
  OptionalTensor attn_bias, attn_mask, alibi_slopes, sinks;
  OptionalTensor seqlens_q, seqlens_k;  ///< valid lengths [B]; thd: cumulative [B + 1]
  OptionalTensor dropout_seed;
  Call call;
  double scale = 1;
  bool mask_requires_grad = false, sinks_requires_grad = false;
  bool check_values = false;  ///< CYNOSURE_CHECK
  std::uint8_t cpu_isa = 0;   ///< CYNOSURE_CPU_ISA as CpuIsa + 1; 0: not set
  std::int64_t settings = 0;

  Problem problem;  ///< this and below: once checked
  CallSizes sizes;
  Device device;
};

/// The bits of the argument `options`; python/cynosure/_operators.py has the same table.
inline constexpr std::uint32_t kDims = 0x3;
inline constexpr std::uint32_t kCausal = 1U << 2U;
inline constexpr std::uint32_t kTopLeft = 1U << 3U;
inline constexpr std::uint32_t kTraining = 1U << 4U;
inline constexpr std::uint32_t kReturnLse = 1U << 5U;
inline constexpr std::uint32_t kLseGrad = 1U << 6U;
inline constexpr std::uint32_t kBiasGrad = 1U << 7U;
inline constexpr std::uint32_t kMaskGrad = 1U << 8U;
inline constexpr std::uint32_t kSinksGrad = 1U << 9U;
inline constexpr std::uint32_t kScaleGiven = 1U << 10U;
inline constexpr std::uint32_t kCheck = 1U << 11U;
inline constexpr std::uint32_t kCpuIsaShift = 12;  // three bits; from bit 16 the schemas' revision, for caches alone

inline constexpr const char* kSharedSchema =
    "int options, int settings, Tensor? attn_bias, Tensor? attn_mask, Tensor? alibi_slopes, Tensor? sinks, "
    "Tensor? seqlens_q, Tensor? seqlens_k, Tensor? dropout_seed, SymInt max_seqlen_q, SymInt max_seqlen_k, "
    "int window_left, int window_right, float scale, float softcap, float dropout_p";

/// Throws the error of a call for Python to see with its type: what the operators throw is a std::runtime_error.
[[noreturn]] void fail(ErrorKind kind, const std::string& text);

/// Whether all shared arguments are on the stack, or options and settings alone: a plain call, at less host time.
enum class Shared : std::uint8_t { all, two };

/// Reads q, k, v at `tensors` and the shared arguments at `shared`, taking over what they own. Throws what `check`
/// finds. On the CPU the values of lengths are checked, too.
void read(Arguments& arguments, StableIValue* tensors, StableIValue* shared, Shared given);

/// The chosen backend; throws the table of reasons where there is none.
[[nodiscard]] Backend decide(const Arguments& arguments, bool backward);

/// Lengths on the CPU; null where they are not given.
[[nodiscard]] const std::int32_t* host_lengths(const OptionalTensor& lengths);
/// The longest sequence of a ragged batch, from cumulative lengths on the CPU.
[[nodiscard]] std::int64_t longest_on_host(const std::int32_t* starts, std::int64_t batch);

}  // namespace cynosure::torch_abi
