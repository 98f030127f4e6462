// SPDX-License-Identifier: Apache-2.0
// backends/cpu/row.hpp: functions of rows: conversion, exp, tanh, sums. Scratch rows have a spare cache line behind
// them, so loops over scratch go in whole vectors and may touch up to Isa::kLanes - 1 floats too many; users' memory is
// never touched outside the row.
#pragma once

#include <cstring>

#include "backends/cpu/geometry.hpp"
#include "backends/cpu/half.hpp"

namespace cynosure::cpu {
namespace {

constexpr float kInfinity = __builtin_huge_valf();

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
struct Typed {
  static constexpr DType kType = kDType;
  static constexpr Index kBytes = kDType == DType::float32 ? 4 : 2;
};
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

/// to[x] = scale * from[x], with zeros up to a whole vector. `stride` in elements.
template <class Isa>
void load_row(DType dtype, const char* from, Index stride, Index n, float scale, float* to) {
  with_dtype(dtype, [&](auto typed) {
    constexpr DType type = decltype(typed)::kType;
    constexpr Index bytes = decltype(typed)::kBytes;
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
    constexpr DType type = decltype(typed)::kType;
    constexpr Index bytes = decltype(typed)::kBytes;
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

/// Copies a row of a tensor into scratch, transposed with its neighbours later; true while all is finite.
template <class Isa>
bool is_finite(const float* row, Index n) {
  typename Isa::Float x = Isa::zero();  // 0 * finite is 0, anything else NaN
  for (Index i = 0; i < n; i += Isa::kLanes) x = Isa::fma(Isa::load(row + i), Isa::zero(), x);
  return Isa::sum(x) == 0;
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

/// to[d][j] = from[j][d] for a square of whole vectors that covers keys x columns.
template <class Isa>
void transpose_rows(const float* from, Index from_ld, Index columns, float* to, Index to_ld) {
  for (Index d = 0; d < columns; d += Isa::kLanes) Isa::transpose(from + d, from_ld, to + d * to_ld, to_ld);
}

// --- functions

constexpr float kRoundingMagic = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits

/// exp to a relative 8e-8. Below -87: 0. Above 88: exp(88); NaN stays NaN.
template <class Isa>
typename Isa::Float exp(typename Isa::Float x) {
  using Float = typename Isa::Float;
  const Float clamped = Isa::min(Isa::set(88.0F), Isa::max(Isa::set(-87.0F), x));
  // x = n ln 2 + r, |r| <= ln 2 / 2; ln 2 in two parts so that n times the first is exact.
  const Float t = Isa::fma(clamped, Isa::set(1.44269504F), Isa::set(kRoundingMagic));
  const Float n = Isa::sub(t, Isa::set(kRoundingMagic));
  Float r = Isa::fma(n, Isa::set(-0.693359375F), clamped);
  r = Isa::fma(n, Isa::set(2.12194440e-4F), r);
  // Minimax for the relative error, 3e-9: 1 + r + r^2 q(r).
  Float q = Isa::set(0.001381460577249527F);
  q = Isa::fma(q, r, Isa::set(0.00836871936917305F));
  q = Isa::fma(q, r, Isa::set(0.04166838899254799F));
  q = Isa::fma(q, r, Isa::set(0.1666652113199234F));
  q = Isa::fma(q, r, Isa::set(0.4999999403953552F));
  q = Isa::fma(q, r, Isa::set(1.0F));
  q = Isa::fma(q, r, Isa::set(1.0F));
  return Isa::select(Isa::less(x, Isa::set(-87.0F)), Isa::zero(), Isa::mul(q, Isa::power_of_two(t)));
}

/// tanh to a relative 1.5e-7.
template <class Isa>
typename Isa::Float tanh(typename Isa::Float x) {
  using Float = typename Isa::Float;
  const Float size = Isa::absolute(x);
  const Float z = Isa::mul(x, x);
  Float q = Isa::set(-0.005697343498468399F);
  q = Isa::fma(q, z, Isa::set(0.020632511004805565F));
  q = Isa::fma(q, z, Isa::set(-0.053737789392471313F));
  q = Isa::fma(q, z, Isa::set(0.13331420719623566F));
  q = Isa::fma(q, z, Isa::set(-0.3333328068256378F));
  const Float small = Isa::fma(Isa::mul(q, z), x, x);
  const Float e = exp<Isa>(Isa::add(size, size));
  const Float positive = Isa::sub(Isa::set(1.0F), Isa::div(Isa::set(2.0F), Isa::add(e, Isa::set(1.0F))));
  const Float large = Isa::select(Isa::less(x, Isa::zero()), Isa::sub(Isa::zero(), positive), positive);
  return Isa::select(Isa::less(size, Isa::set(0.625F)), small, large);
}

}  // namespace
}  // namespace cynosure::cpu
