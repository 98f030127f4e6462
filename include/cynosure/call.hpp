// SPDX-License-Identifier: Apache-2.0
// cynosure/call.hpp: one attention call as its tensors are: shapes, dtypes and devices, never data. What may be wrong
// with it is found here, in one place, for the operators, their fake kernels and C++ hosts alike.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <cynosure/export.hpp>
#include <cynosure/problem.hpp>

namespace cynosure {

/// The element types a tensor argument may have; `other` stands for all that no argument takes.
enum class Element : std::uint8_t { bfloat16, float16, float32, float64, boolean, int32, int64, other };
inline constexpr std::array<std::string_view, 8> kElementNames{"bfloat16", "float16", "float32", "float64",
                                                               "bool",     "int32",   "int64",   "another dtype"};

/// One tensor argument. A size of -1 is not known yet (symbolic while tracing) and passes every check.
struct TensorInfo {
  bool given = false;
  Element element = Element::other;
  std::string_view other_name{};  ///< for messages, where the element is `other`
  std::int8_t rank = 0;           ///< true rank; sizes hold the first four
  std::array<std::int64_t, 4> sizes{};
  std::int16_t device_kind = 0;  ///< torch's DeviceType
  std::int16_t device_index = 0;
  std::int64_t identity = 0;  ///< equal for two arguments that are one tensor
};

/// The order of dimensions of q, k, v and out, letters as in Layout.
enum class Dims : std::uint8_t { bshd, sbhd, bhsd, thd };
inline constexpr std::array<std::string_view, 4> kDimsNames{"bshd", "sbhd", "bhsd", "thd"};

/// The arguments of `attention`.
struct Call {
  TensorInfo q, k, v;
  TensorInfo attn_bias, attn_mask, alibi_slopes, sinks, dropout_seed;
  TensorInfo seqlens_q, seqlens_k;  ///< valid lengths [B], or for thd cumulative lengths [B + 1]
  Dims dims = Dims::bshd;
  bool causal = false;
  Align align = Align::bottom_right;
  std::int64_t window_left = -1, window_right = -1;
  std::int64_t max_seqlen_q = -1, max_seqlen_k = -1;  ///< thd; -1: not given
  double scale = 0;                                   ///< 0 is a scale like any other
  double softcap = 0, dropout_p = 0;
  bool training = false, return_lse = false, lse_grad = false;
  bool bias_requires_grad = false, mask_requires_grad = false;
};

enum class ErrorKind : std::uint8_t { none, value, type, no_backend };

struct CallError {
  ErrorKind kind = ErrorKind::value;
  std::string text;  ///< the argument, what it is, what is allowed
};

/// Sizes by name. For thd the lengths are bounds: max_seqlen_*, or the tokens.
struct CallSizes {
  std::int64_t batch = 0, seqlen_q = 0, seqlen_k = 0, heads = 0, kv_heads = 0, head_dim_qk = 0, head_dim_v = 0;
};
/// Of a call whose ranks are right.
[[nodiscard]] CYNOSURE_API CallSizes sizes_of(const Call& call);

/// The first thing wrong with the call, or nothing. Allocates only when something is.
[[nodiscard]] CYNOSURE_API std::optional<CallError> check(const Call& call);

/// The problem of a call that passed `check` and has all its sizes.
[[nodiscard]] CYNOSURE_API Problem problem_of(const Call& call);

/// What the operators of this thread threw last, for a host that wants its type: set where it is thrown.
CYNOSURE_API void set_last_error(CallError error);
/// Hands it out once; `kind` is none where there is none.
[[nodiscard]] CYNOSURE_API CallError take_last_error();

}  // namespace cynosure
