// SPDX-License-Identifier: Apache-2.0
// backends/cpu/row.hpp: functions of rows: conversion, exp, tanh, sums. Scratch rows have a spare cache line behind
// them, so loops over scratch go in whole vectors and may touch up to Isa::kLanes - 1 floats too many; users' memory is
// never touched outside the row.
#pragma once

#include <cstring>
#include <type_traits>

#include "backends/cpu/geometry.hpp"
#include "backends/cpu/half.hpp"

namespace cynosure::cpu {
namespace {

constexpr float kInfinity = __builtin_huge_valf();
constexpr float kLowest = -3.402823466e38F;  ///< of the finite numbers

// --- the users' element types

template <DType kDType>
float load_element(const char* p) {
  if constexpr (kDType == DType::float32) {
    float x = 0;
    std::memcpy(&x, p, sizeof x);
    return x;
  } else {
    std::uint16_t x = 0;
    std::memcpy(&x, p, sizeof x);
    return kDType == DType::bfloat16 ? from_bfloat16(x) : from_float16(x);
  }
}

template <DType kDType>
void store_element(char* p, float x) {
  if constexpr (kDType == DType::float32) {
    std::memcpy(p, &x, sizeof x);
  } else {
    const std::uint16_t y = kDType == DType::bfloat16 ? to_bfloat16(x) : to_float16(x);
    std::memcpy(p, &y, sizeof y);
  }
}

template <class Isa, DType kDType>
typename Isa::Float load_vector(const char* p) {
  if constexpr (kDType == DType::float32)
    return Isa::load(p);
  else if constexpr (kDType == DType::bfloat16)
    return Isa::load_bfloat16(p);
  else
    return Isa::load_float16(p);
}

template <class Isa, DType kDType>
void store_vector(char* p, typename Isa::Float x) {
  if constexpr (kDType == DType::float32)
    Isa::store(p, x);
  else if constexpr (kDType == DType::bfloat16)
    Isa::store_bfloat16(p, x);
  else
    Isa::store_float16(p, x);
}

template <DType kDType>
using Typed = std::integral_constant<DType, kDType>;
constexpr Index bytes_of(DType dtype) { return dtype == DType::float32 ? 4 : 2; }
/// Calls function(Typed<dtype>{}).
template <class Function>
void with_dtype(DType dtype, Function function) {
  if (dtype == DType::float32)
    function(Typed<DType::float32>{});
  else if (dtype == DType::bfloat16)
    function(Typed<DType::bfloat16>{});
  else
    function(Typed<DType::float16>{});
}

/// Rows of a tensor, the last dimension contiguous.
struct Rows {
  DType dtype = DType::float32;
  const char* data = nullptr;
  Index stride = 0;  ///< in elements
};
inline Rows rows_of(const Input& t, const Side& side, Index i, Index h, DType dtype) {
  return {.dtype = dtype, .data = row_of(t, side, i, h, dtype), .stride = t.sequence};
}

/// A vector of a row from column x; zeros beyond the end.
template <class Isa, DType kDType>
typename Isa::Float load_part(const char* row, Index x, Index n) {
  constexpr Index bytes = bytes_of(kDType);
  if (x + Isa::kLanes <= n) return load_vector<Isa, kDType>(row + x * bytes);
  float part[Isa::kLanes] = {};
  for (Index i = x; i < n; ++i) part[i - x] = load_element<kDType>(row + i * bytes);
  return Isa::load(part);
}

/// Notices what is not finite: 0 * finite is 0, anything else NaN.
template <class Isa>
class Finite {
 public:
  void see(typename Isa::Float x) { sum_ = Isa::fma(x, Isa::zero(), sum_); }
  [[nodiscard]] bool all() const { return Isa::sum(sum_) == 0; }

 private:
  typename Isa::Float sum_ = Isa::zero();
};

/// to[x] = scale * from[x], with zeros up to a whole vector. `stride` in elements.
template <class Isa>
void load_row(DType dtype, const char* from, Index stride, Index n, float scale, float* to) {
  with_dtype(dtype, [&](auto typed) {
    constexpr DType type = decltype(typed)::value;
    constexpr Index bytes = bytes_of(type);
    Index x = 0;
    if (stride == 1)
      for (; x + Isa::kLanes <= n; x += Isa::kLanes)
        Isa::store(to + x, Isa::mul(Isa::set(scale), load_vector<Isa, type>(from + x * bytes)));
    for (; x < n; ++x) to[x] = scale * load_element<type>(from + x * stride * bytes);
    for (; x % Isa::kLanes != 0; ++x) to[x] = 0;
  });
}

/// A row as floats in whole vectors: where it lies if it is that already, else converted into `line`.
template <class Isa>
const float* as_floats(DType dtype, const char* from, Index n, float* line) {
  if (dtype == DType::float32 && n % Isa::kLanes == 0 && reinterpret_cast<std::uintptr_t>(from) % alignof(float) == 0)
    return reinterpret_cast<const float*>(from);
  load_row<Isa>(dtype, from, 1, n, 1.0F, line);
  return line;
}

/// to[x] = scale * from[x].
template <class Isa>
void store_row(DType dtype, const float* from, Index n, float scale, char* to, Index stride = 1) {
  with_dtype(dtype, [&](auto typed) {
    constexpr DType type = decltype(typed)::value;
    constexpr Index bytes = bytes_of(type);
    Index x = 0;
    if (stride == 1)
      for (; x + Isa::kLanes <= n; x += Isa::kLanes)
        store_vector<Isa, type>(to + x * bytes, Isa::mul(Isa::set(scale), Isa::load(from + x)));
    for (; x < n; ++x) store_element<type>(to + x * stride * bytes, scale * from[x]);
  });
}

inline void store_zeros(DType dtype, char* to, Index n) {
  std::memset(to, 0, static_cast<std::size_t>(n * element_size(dtype)));
}

template <class Isa>
void fill(float* row, Index begin, Index end, float value) {
  Index x = begin;
  for (; x + Isa::kLanes <= end; x += Isa::kLanes) Isa::store(row + x, Isa::set(value));
  for (; x < end; ++x) row[x] = value;
}

template <class Isa>
float dot(const float* a, const float* b, Index n) {
  typename Isa::Float s0 = Isa::zero();
  typename Isa::Float s1 = Isa::zero();
  Index x = 0;
  for (; x + Isa::kLanes < n; x += 2 * Isa::kLanes) {
    s0 = Isa::fma(Isa::load(a + x), Isa::load(b + x), s0);
    s1 = Isa::fma(Isa::load(a + x + Isa::kLanes), Isa::load(b + x + Isa::kLanes), s1);
  }
  if (x < n) s0 = Isa::fma(Isa::load(a + x), Isa::load(b + x), s0);
  return Isa::sum(Isa::add(s0, s1));
}

// --- functions

constexpr float kRoundingMagic = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits

/// exp of several vectors side by side, to a relative 1e-7. Below -88.03: 0. `x` must not be above 88; NaN stays NaN.
/// One vector alone waits for its own results (about 40 cycles for 15 operations); four keep the units busy.
template <class Isa, int kCount>
[[gnu::always_inline]] inline void exp_each(typename Isa::Float (&x)[kCount]) {
  using Float = typename Isa::Float;
  const Float log2e = Isa::set(1.44269504F);
  const Float magic = Isa::set(kRoundingMagic);
  Float power[kCount];
  Float r[kCount];
  Float z[kCount];
  Float q[kCount];
  const auto each = [](const auto& function) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) function(i);
  };
  // exp(x) = 2^n 2^r with n + r = x log2(e), |r| <= 1/2; n stops at -127, whose power of two is 0.
  each([&](int i) { x[i] = Isa::max(Isa::set(-88.0296919F), x[i]); });
  each([&](int i) { power[i] = Isa::fma(x[i], log2e, magic); });
  each([&](int i) { r[i] = Isa::fma(x[i], log2e, Isa::sub(magic, power[i])); });
  // Minimax for the relative error, 3e-9: 1 + r u(r).
  each([&](int i) { z[i] = Isa::mul(r[i], r[i]); });
  each([&](int i) { q[i] = Isa::fma(Isa::set(1.5594678e-4F), r[i], Isa::set(1.3406643e-3F)); });
  each([&](int i) { q[i] = Isa::fma(q[i], z[i], Isa::fma(Isa::set(9.6176928e-3F), r[i], Isa::set(5.5503104e-2F))); });
  each([&](int i) { q[i] = Isa::fma(q[i], z[i], Isa::fma(Isa::set(2.4022652e-1F), r[i], Isa::set(6.9314724e-1F))); });
  each([&](int i) { q[i] = Isa::fma(q[i], r[i], Isa::set(1.0F)); });
  each([&](int i) { x[i] = Isa::mul(q[i], Isa::power_of_two(power[i])); });
}

/// The same for one, above 88: exp(88).
template <class Isa>
[[gnu::always_inline]] inline typename Isa::Float exp(typename Isa::Float x) {
  typename Isa::Float one[1] = {Isa::min(Isa::set(88.0F), x)};
  exp_each<Isa>(one);
  return one[0];
}

template <int kCount>
using Together = std::integral_constant<int, kCount>;
/// function(first, Together<count>) for all vectors of [begin, end): counts are compile-time, 4 while they last,
/// then 1.
template <class Isa, class Function>
[[gnu::always_inline]] inline void for_vectors(Index begin, Index end, const Function& function) {
  constexpr Index lanes = Isa::kLanes;
  Index x = begin;
  for (; x + 3 * lanes < end; x += 4 * lanes) function(x, Together<4>{});
  for (; x < end; x += lanes) function(x, Together<1>{});
}

/// tanh to a relative 1.5e-7; slope = 1 - tanh^2, without the cancellation where tanh is near 1.
template <class Isa>
typename Isa::Float tanh(typename Isa::Float x, typename Isa::Float& slope) {
  using Float = typename Isa::Float;
  const Float size = Isa::absolute(x);
  const Float z = Isa::mul(x, x);
  Float q = Isa::set(-0.005697343498468399F);
  q = Isa::fma(q, z, Isa::set(0.020632511004805565F));
  q = Isa::fma(q, z, Isa::set(-0.053737789392471313F));
  q = Isa::fma(q, z, Isa::set(0.13331420719623566F));
  q = Isa::fma(q, z, Isa::set(-0.3333328068256378F));
  const Float near = Isa::fma(Isa::mul(q, z), x, x);
  const Float near_slope = Isa::fma(Isa::sub(Isa::zero(), near), near, Isa::set(1.0F));
  // |tanh| = 1 - w, so 1 - tanh^2 = w (2 - w).
  const Float e = exp<Isa>(Isa::add(size, size));
  const Float w = Isa::div(Isa::set(2.0F), Isa::add(e, Isa::set(1.0F)));
  const Float positive = Isa::sub(Isa::set(1.0F), w);
  const Float far = Isa::select(Isa::less(x, Isa::zero()), Isa::sub(Isa::zero(), positive), positive);
  const auto is_near = Isa::less(size, Isa::set(0.625F));
  slope = Isa::select(is_near, near_slope, Isa::mul(w, Isa::sub(Isa::set(2.0F), w)));
  return Isa::select(is_near, near, far);
}

}  // namespace
}  // namespace cynosure::cpu
