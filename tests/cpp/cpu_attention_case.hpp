// SPDX-License-Identifier: Apache-2.0
// cpu_attention_case.hpp: one attention call as a test states it, its data in the users' layouts, and the definition
// written out in float64. The reference shares no code with the kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/cpu/attention.hpp"

namespace cynosure::cpu::testing {

enum class Shape : std::uint8_t { none, bhss, one_hss, b1ss, oness, row };  ///< row: [1, 1, 1, Skv]
enum class Order : std::uint8_t { bshd, sbhd, bhsd };
enum class LengthKind : std::uint8_t { whole, padded, ragged };

struct Case {
  DType dtype = DType::float32;
  std::int64_t batch = 2, heads = 2, kv_heads = 2, seqlen_q = 19, seqlen_k = 19, head_dim_qk = 16, head_dim_v = 16;
  Order order = Order::bshd;
  LengthKind lengths = LengthKind::whole;
  bool causal = false;
  Align align = Align::bottom_right;
  std::int64_t left = -1, right = -1;
  float softcap = 0;
  float scale = 0;  ///< 0: 1 / sqrt(head_dim_qk)
  Shape bias = Shape::none;
  bool bias_float32 = false;
  Shape additive = Shape::none;  ///< with -inf in some places
  Shape boolean = Shape::none;
  int alibi = 0;  ///< 1: [H], 2: [B, H]
  bool sinks = false;
  float dropout = 0;
  bool lse_gradient = false;
  std::uint64_t seed = 1;

  [[nodiscard]] std::string text() const;
};

/// Numbers by index (a, b, c, d) in double.
struct Array {
  std::int64_t size[4] = {0, 0, 0, 0};
  std::vector<double> value;
  Array() = default;
  Array(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d)
      : size{a, b, c, d}, value(static_cast<std::size_t>(a * b * c * d)) {}
  /// Dimensions of size 1 broadcast.
  double& at(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    const auto index = [&](int dim, std::int64_t x) { return size[dim] == 1 ? 0 : x; };
    return value[static_cast<std::size_t>(((index(0, a) * size[1] + index(1, b)) * size[2] + index(2, c)) * size[3] +
                                          index(3, d))];
  }
  [[nodiscard]] double at(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const {
    return const_cast<Array*>(this)->at(a, b, c, d);
  }
};

/// All inputs, rounded to their types. Rows are indexed inside their sequence, [B, H, S, D], also in ragged batches.
struct Data {
  Array q, k, v, dout, dlse, bias, additive, boolean, alibi, sinks;
  std::vector<std::int32_t> rows, keys;          ///< valid lengths
  std::vector<std::int32_t> extent_q, extent_k;  ///< rows that exist; ragged: as many as valid
};
[[nodiscard]] Data make_data(const Case& c);

struct Results {
  Array out, lse, dq, dk, dv, dbias, dadditive, dsinks;
};
/// The definition. `round` is applied to what a plain program would store: identity in double is the reference.
/// `magnitude`: every product and difference is taken as a sum of absolute values, which gives the scale of rounding.
template <class Real>
[[nodiscard]] Results evaluate(const Case& c, const Data& data, const std::function<double(double)>& round,
                               bool magnitude = false);

[[nodiscard]] double round_to(DType dtype, double x);

/// Runs the kernels on the data, in memory that ends where the tensors end, and checks that nothing else is written.
[[nodiscard]] Results run(const Case& c, const Data& data, Instructions isa, const Parallel& parallel = {});

}  // namespace cynosure::cpu::testing
