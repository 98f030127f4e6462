// SPDX-License-Identifier: Apache-2.0
// torch/tensor_math.hpp: torch's operators by short names, for what backends do in torch's own operations.
#pragma once

#include <limits>

#include "torch/aten.hpp"

namespace cynosure::torch_abi {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The stable ABI passes no Scalar, so numbers come as float64 tensors without
// dimensions, which change no floating tensor's dtype. Its one sum, `subtract`, has a floating factor, which integer
// tensors refuse: positions and lengths are float64 here, exact up to 2^53.

inline Tensor number(double value) {
  AtenTensorHandle result = nullptr;
  ok(aoti_torch_scalar_to_tensor_float64(value, &result), "a number");
  return Tensor(result);
}
inline Tensor number(std::int64_t value) { return number(static_cast<double>(value)); }
/// a - alpha * b
inline Tensor subtract(const Tensor& a, const Tensor& b, double alpha) {
  AtenTensorHandle result = nullptr;
  ok(aoti_torch_aten_subtract_Tensor(a.get(), b.get(), alpha, &result), "subtract");
  return Tensor(result);
}
inline Tensor sub(const Tensor& a, const Tensor& b) { return subtract(a, b, 1.0); }
inline Tensor add(const Tensor& a, const Tensor& b) { return subtract(a, b, -1.0); }
inline Tensor mul(const Tensor& a, const Tensor& b) { return aten("aten::mul", "Tensor", a, b); }
inline Tensor div(const Tensor& a, const Tensor& b) { return aten("aten::div", "Tensor", a, b); }
inline Tensor matmul(const Tensor& a, const Tensor& b) { return aten("aten::matmul", "", a, b); }
inline Tensor exp(const Tensor& t) { return aten("aten::exp", "", t); }
inline Tensor log(const Tensor& t) { return aten("aten::log", "", t); }
inline Tensor tanh(const Tensor& t) { return aten("aten::tanh", "", t); }
inline Tensor neg(const Tensor& t) { return aten("aten::neg", "", t); }
inline Tensor abs(const Tensor& t) { return aten("aten::abs", "", t); }
inline Tensor maximum(const Tensor& a, const Tensor& b) { return aten("aten::maximum", "", a, b); }
inline Tensor equal(const Tensor& a, const Tensor& b) { return aten("aten::eq", "Tensor", a, b); }
inline Tensor less(const Tensor& a, const Tensor& b) { return aten("aten::lt", "Tensor", a, b); }
inline Tensor at_most(const Tensor& a, const Tensor& b) { return aten("aten::le", "Tensor", a, b); }
inline Tensor at_least(const Tensor& a, const Tensor& b) { return aten("aten::ge", "Tensor", a, b); }
inline Tensor both(const Tensor& a, const Tensor& b) { return aten("aten::logical_and", "", a, b); }
inline Tensor no(const Tensor& t) { return aten("aten::logical_not", "", t); }
inline Tensor masked_fill(const Tensor& t, const Tensor& mask, double value) {
  return aten("aten::masked_fill", "Tensor", t, mask, number(value));
}
/// Between 0 and `last`. (clamp takes no number from another device.)
inline Tensor clamp(const Tensor& t, std::int64_t last) {
  return aten("aten::minimum", "", maximum(t, number(std::int64_t{0})), number(last));
}
inline Tensor transpose(const Tensor& t, std::int64_t a, std::int64_t b) {
  return aten("aten::transpose", "int", t, a, b);
}
inline Tensor permute(const Tensor& t, const Sizes& order) { return aten("aten::permute", "", t, order); }
inline Tensor reshape(const Tensor& t, const Sizes& size) { return aten("aten::reshape", "", t, size); }
inline Tensor expand(const Tensor& t, const Sizes& size) { return aten("aten::expand", "", t, size, false); }
inline Tensor to(const Tensor& t, std::int32_t type) {
  if (dtype(t) == type) return t;
  return aten("aten::to", "dtype", t, type, false, false, std::nullopt);
}
inline Tensor index(const Tensor& t) { return to(t, aoti_torch_dtype_int64()); }
inline Tensor sum(const Tensor& t, const Sizes& dims, bool keep) {
  return aten("aten::sum", "dim_IntList", t, std::optional<Sizes>(dims), keep, std::nullopt);
}
inline Tensor any(const Tensor& t, std::int64_t dim, bool keep) { return aten("aten::any", "dim", t, dim, keep); }
inline Tensor amax(const Tensor& t, std::int64_t dim) { return aten("aten::amax", "", t, Sizes{dim}, true); }
inline Tensor pick(const Tensor& t, std::int64_t dim, const Tensor& index) {
  return aten("aten::index_select", "", t, dim, index);
}
inline Tensor narrow(const Tensor& t, std::int64_t dim, std::int64_t start, std::int64_t length) {
  return aten("aten::narrow", "", t, dim, start, length);
}
inline void copy(const Tensor& to, const Tensor& from) { static_cast<void>(aten("aten::copy_", "", to, from, false)); }
inline void fill(const Tensor& t, double value) { ok(aoti_torch_aten_fill__Scalar(t.get(), value), "fill_"); }
inline Tensor zeros_like(const Tensor& t) {
  Tensor result = empty_like(t);
  fill(result, 0.0);
  return result;
}
/// 0, 1, 2, ... as float64, on the device of `like`.
inline Tensor count(const Tensor& like, std::int64_t n) {
  const Tensor ones = empty(like, aoti_torch_dtype_float64(), {n});
  fill(ones, 1.0);
  return sub(aten("aten::cumsum", "", ones, std::int64_t{0}, std::nullopt), number(std::int64_t{1}));
}

}  // namespace cynosure::torch_abi
