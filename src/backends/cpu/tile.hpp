// SPDX-License-Identifier: Apache-2.0
// backends/cpu/tile.hpp: products of small matrices in scratch memory. All time goes here.
//
// C (rows x columns) is cut into strips of Isa::kRows rows and panels of Isa::kVectors vectors of columns. One strip of
// one panel stays in registers while the micro-kernel runs through the depth: each step loads one row of the panel of B
// and broadcasts one element of A for each row of the strip.
//
// Panels are the outer loop: a panel of B (depth x 64-128 bytes) stays in the first-level cache while all strips of A
// pass by. Each strip has a range of its own (of columns, or of depth), so that masked pairs cost nothing but the
// rounding to strips and panels.
#pragma once

#include <cstdint>
#include <utility>

#include "backends/cpu/geometry.hpp"

namespace cynosure::cpu {
namespace {

/// Columns of a panel.
template <class Isa>
constexpr Index kPanel = Isa::kVectors * Isa::kLanes;

/// What the micro-kernel starts from.
enum class Start : std::uint8_t { zero, sum, rescaled_sum };
/// How A lies: element (row, step) at row * lda + step, or at step * lda + row.
enum class ALayout : std::uint8_t { by_row, by_step };

struct Tile {
  Index depth = 0;
  const float* a = nullptr;
  Index lda = 0;
  const float* b = nullptr;
  Index ldb = 0;
  float* c = nullptr;
  Index ldc = 0;
  Start start = Start::zero;
  const float* rescale = nullptr;  ///< a factor for each row of C, for rescaled_sum
};

template <class Isa, ALayout kLayout, int kRows, int kVectors>
void micro_kernel(const Tile& t) {
  using Float = typename Isa::Float;
  float* const c = t.c;  // in registers: stores of floats could change t, as far as the compiler knows
  const Index ldc = t.ldc;
  Float sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if (t.start == Start::zero)
        sum[r][v] = Isa::zero();
      else if (t.start == Start::sum)
        sum[r][v] = Isa::load(c + r * ldc + v * Isa::kLanes);
      else
        sum[r][v] = Isa::mul(Isa::set(t.rescale[r]), Isa::load(c + r * ldc + v * Isa::kLanes));
    }
  }
  const float* a = t.a;
  const float* b = t.b;
  const Index lda = t.lda;
  const Index ldb = t.ldb;
  for (Index step = 0; step < t.depth; ++step) {
    Float row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) row[v] = Isa::load(b + v * Isa::kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Float x = Isa::set(kLayout == ALayout::by_row ? a[r * lda] : a[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Isa::fma(x, row[v], sum[r][v]);
    }
    a += kLayout == ALayout::by_row ? 1 : lda;
    b += ldb;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) Isa::store(c + r * ldc + v * Isa::kLanes, sum[r][v]);
  }
}

/// The micro-kernel of each height and width, up to the full one.
template <class Isa, ALayout kLayout>
struct MicroKernels {
  using Function = void (*)(const Tile&);
  Function of[Isa::kVectors][Isa::kRows];

  constexpr MicroKernels() : of{} { widths(std::make_integer_sequence<int, Isa::kVectors>{}); }
  template <int... kWidth>
  constexpr void widths(std::integer_sequence<int, kWidth...>) {
    (heights<kWidth>(std::make_integer_sequence<int, Isa::kRows>{}), ...);
  }
  template <int kWidth, int... kHeight>
  constexpr void heights(std::integer_sequence<int, kHeight...>) {
    ((of[kWidth][kHeight] = micro_kernel<Isa, kLayout, kHeight + 1, kWidth + 1>), ...);
  }
};
template <class Isa, ALayout kLayout>
constexpr MicroKernels<Isa, kLayout> kMicroKernels;

/// A matrix of floats whose rows are cut into panels: element (row, column) lies at
/// column / width * panel + row * ld + column % width, where width is that of a panel of the micro-kernel. With
/// panel = width it is an ordinary matrix by rows; with ld = width each panel is contiguous, as the processor's
/// prefetchers like it for what comes from beyond the second-level cache.
struct Panels {
  const float* data = nullptr;
  Index ld = 0, panel = 0;
};

/// C = A B, or C += A B, or C = rescale C + A B.
struct Product {
  Index rows = 0, columns = 0, depth = 0;
  const float* a = nullptr;
  Index lda = 0;
  Panels b;
  float* c = nullptr;
  Index ldc = 0;
  Start start = Start::zero;
  const float* rescale = nullptr;
  const std::int32_t *begin = nullptr, *end = nullptr;  ///< a range for each strip; nullptr: everything
  bool careful = false;                                 ///< B holds NaN or infinity: products with 0 in A are 0
};

/// The ranges are of columns: C is written where they are, rounded outwards to vectors.
template <class Isa>
void multiply_columns(const Product& p) {
  constexpr Index panel = kPanel<Isa>;
  constexpr Index height = Isa::kRows;
  for (Index column = 0; column < p.columns; column += panel) {
    for (Index row = 0; row < p.rows; row += height) {
      const Index strip = row / height;
      const Index begin = p.begin != nullptr ? most(column, p.begin[strip]) : column;
      const Index end = least(column + panel, p.begin != nullptr ? p.end[strip] : p.columns);
      if (begin >= end) continue;
      const Index first = (begin - column) / Isa::kLanes * Isa::kLanes;
      const Index vectors = ceil_div(end - column - first, Isa::kLanes);
      const Index rows = least(height, p.rows - row);
      const Tile tile{.depth = p.depth,
                      .a = p.a + row * p.lda,
                      .lda = p.lda,
                      .b = p.b.data + column / panel * p.b.panel + first,
                      .ldb = p.b.ld,
                      .c = p.c + row * p.ldc + column + first,
                      .ldc = p.ldc,
                      .start = p.start};
      kMicroKernels<Isa, ALayout::by_row>.of[vectors - 1][rows - 1](tile);
    }
  }
}

/// C += A B where 0 times anything is 0. Slow: only for data that holds NaN or infinity.
template <class Isa, ALayout kLayout>
void multiply_carefully(const Product& p, Index row, Index rows, Index begin, Index end) {
  constexpr Index panel = kPanel<Isa>;
  for (Index r = row; r < row + rows; ++r) {
    float* c = p.c + r * p.ldc;
    if (p.start == Start::rescaled_sum)
      for (Index column = 0; column < p.columns; ++column) c[column] *= p.rescale[r];
    for (Index step = begin; step < end; ++step) {
      const float x = kLayout == ALayout::by_row ? p.a[r * p.lda + step] : p.a[step * p.lda + r];
      if (x == 0) continue;
      for (Index column = 0; column < p.columns; ++column)
        c[column] += x * p.b.data[column / panel * p.b.panel + step * p.b.ld + column % panel];
    }
  }
}

/// The ranges are of depth: strips whose range is empty are left as they are. start: sum or rescaled_sum.
template <class Isa, ALayout kLayout>
void multiply_depth(const Product& p) {
  constexpr Index panel = kPanel<Isa>;
  constexpr Index height = Isa::kRows;
  for (Index column = 0; column < p.columns; column += panel) {
    const Index vectors = least(Isa::kVectors, ceil_div(p.columns - column, Isa::kLanes));
    for (Index row = 0; row < p.rows; row += height) {
      const Index strip = row / height;
      const Index begin = p.begin != nullptr ? p.begin[strip] : 0;
      const Index end = p.begin != nullptr ? p.end[strip] : p.depth;
      if (begin >= end) continue;
      const Index rows = least(height, p.rows - row);
      if (p.careful) {
        if (column == 0) multiply_carefully<Isa, kLayout>(p, row, rows, begin, end);
        continue;
      }
      const float* a = kLayout == ALayout::by_row ? p.a + row * p.lda + begin : p.a + begin * p.lda + row;
      const float* b = p.b.data + column / panel * p.b.panel;
      const Tile tile{.depth = end - begin,
                      .a = a,
                      .lda = p.lda,
                      .b = b + begin * p.b.ld,
                      .ldb = p.b.ld,
                      .c = p.c + row * p.ldc + column,
                      .ldc = p.ldc,
                      .start = p.start,
                      .rescale = p.rescale != nullptr ? p.rescale + row : nullptr};
      kMicroKernels<Isa, kLayout>.of[vectors - 1][rows - 1](tile);
    }
  }
}

}  // namespace
}  // namespace cynosure::cpu
