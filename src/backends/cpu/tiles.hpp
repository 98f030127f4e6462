// SPDX-License-Identifier: Apache-2.0
// backends/cpu/tiles.hpp: products of bfloat16 matrices by a tile unit (AMX), and the layouts that it takes.
//
// A tile is 16 rows of 64 bytes. dot() adds to C (16 x 16 float32) the product of A (16 rows x 32 steps) and B, whose
// rows are pairs of steps: row k holds the elements (2 k, column), (2 k + 1, column) of 16 columns side by side. So
//   - A is a matrix by rows, as it lies in memory;
//   - B of X Y', from rows of Y, is Y in 16 x 16 transposes of pairs (pack_transposed_tiles);
//   - B of X Y, from rows of Y, is two rows of Y interleaved (pack_interleaved_tiles).
// Packed tiles are contiguous, 1 KB each. Where a matrix ends inside a tile, the tile goes on with zeros.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "backends/cpu/geometry.hpp"
#include "backends/cpu/row.hpp"

namespace cynosure::cpu {
namespace {

using Half = std::uint16_t;  ///< the bits of a bfloat16

constexpr Index kTileRows = 16;     ///< of A and C
constexpr Index kTileColumns = 16;  ///< of B and C
constexpr Index kTileSteps = 32;    ///< of depth
constexpr Index kTileHalves = 512;

inline Index tile_steps(Index depth) { return ceil_div(depth, kTileSteps); }
inline Index tile_columns(Index columns) { return ceil_div(columns, kTileColumns); }

/// Where tile (index, step) of an operand lies, in halves; `stride`: of its rows.
struct Operand {
  const Half* data = nullptr;
  Index next = 0;  ///< to the next 16 rows of A, or columns of B
  Index step = kTileHalves;
  Index stride = kTileSteps;
};

/// C = A B, or C += A B. All sizes in tiles; rows are even.
struct TileProduct {
  Index rows = 0, columns = 0, steps = 0;
  Operand a, b;
  float* c = nullptr;
  Index ldc = 0;
  bool sum = false;
};

/// 32 rows by 16 or 32 columns stay in the unit: four tiles of C, two of A, two of B. Each load feeds two products.
template <class Isa, int kColumns>
void multiply_tiles(typename Isa::Tiles& tiles, const TileProduct& p, Index row, Index column) {
  float* const c = p.c + row * kTileRows * p.ldc + column * kTileColumns;
  float* const below = c + kTileRows * p.ldc;
  const Index ldc = p.ldc * 4;
  if (p.sum) {
    tiles.template load<0>(c, ldc);
    tiles.template load<2>(below, ldc);
    if constexpr (kColumns == 2) {
      tiles.template load<1>(c + kTileColumns, ldc);
      tiles.template load<3>(below + kTileColumns, ldc);
    }
  } else {
    tiles.template zero<0>();
    tiles.template zero<2>();
    if constexpr (kColumns == 2) {
      tiles.template zero<1>();
      tiles.template zero<3>();
    }
  }
  const Half* a = p.a.data + row * p.a.next;
  const Half* b = p.b.data + column * p.b.next;
  for (Index step = 0; step < p.steps; ++step, a += p.a.step, b += p.b.step) {
    tiles.template load<4>(a, p.a.stride * 2);
    tiles.template load<6>(b, p.b.stride * 2);
    tiles.template dot<0, 4, 6>();
    tiles.template load<5>(a + p.a.next, p.a.stride * 2);
    tiles.template dot<2, 5, 6>();
    if constexpr (kColumns == 2) {
      tiles.template load<7>(b + p.b.next, p.b.stride * 2);
      tiles.template dot<1, 4, 7>();
      tiles.template dot<3, 5, 7>();
    }
  }
  tiles.template store<0>(c, ldc);
  tiles.template store<2>(below, ldc);
  if constexpr (kColumns == 2) {
    tiles.template store<1>(c + kTileColumns, ldc);
    tiles.template store<3>(below + kTileColumns, ldc);
  }
}

template <class Isa>
void multiply(typename Isa::Tiles& tiles, const TileProduct& p) {
  for (Index column = 0; column < p.columns; column += 2)
    for (Index row = 0; row < p.rows; row += 2) {
      if (column + 2 <= p.columns)
        multiply_tiles<Isa, 2>(tiles, p, row, column);
      else
        multiply_tiles<Isa, 1>(tiles, p, row, column);
    }
}

/// A row with zeros behind it, up to `padded` elements.
inline void copy_padded(const char* from, Index columns, Index padded, Half* to) {
  Index x = 0;
  for (; x + kTileSteps <= columns; x += kTileSteps) std::memcpy(to + x, from + x * 2, kTileSteps * 2);
  if (x == padded) return;
  std::memset(to + x, 0, static_cast<std::size_t>(padded - x) * 2);
  std::memcpy(to + x, from + x * 2, static_cast<std::size_t>(columns - x) * 2);
}

/// Rows as A: tiles [row / 16][step]. row(r): address of a row; nullptr: zeros.
template <class RowOf>
void pack_row_tiles(Index rows, Index columns, Half* to, const RowOf& row) {
  const Index steps = tile_steps(columns);
  for (Index r = 0; r < rows; ++r) {
    Half* tile = to + r / kTileRows * steps * kTileHalves + r % kTileRows * kTileSteps;
    const char* from = row(r);
    for (Index x = 0; x < columns; x += kTileSteps, tile += kTileHalves) {
      if (from == nullptr)
        std::memset(tile, 0, kTileSteps * 2);
      else
        copy_padded(from + x * 2, least(kTileSteps, columns - x), kTileSteps, tile);
    }
  }
}

/// 16 x 16 pairs: to[j][i] = from[i][j]; rows of 16 pairs at `to`.
template <class Isa>
void transpose_pairs(const Half* from, Index stride, Half* to) {
  const auto* pairs = reinterpret_cast<const float*>(from);
  auto* out = reinterpret_cast<float*>(to);
  for (Index i = 0; i < 16; i += Isa::kLanes)
    for (Index j = 0; j < 16; j += Isa::kLanes)
      Isa::transpose(pairs + i * (stride / 2) + j, stride / 2, out + j * 16 + i, 16);
}

/// Rows of Y as B of X Y': tiles [row / 16][step], pairs of row tiles. `lines`: scratch of 16 rows of whole steps and
/// one more.
template <class Isa>
void pack_transposed_tiles(const Rows& rows, Index count, Index columns, Half* to, Half* lines) {
  const Index steps = tile_steps(columns);
  const Index line = steps * kTileSteps + kTileSteps;
  for (Index first = 0; first < round_up(count, kTileSteps); first += 16) {
    for (Index i = 0; i < 16; ++i) {
      if (first + i < count)
        copy_padded(rows.data + (first + i) * rows.stride * 2, columns, steps * kTileSteps, lines + i * line);
      else
        std::memset(lines + i * line, 0, static_cast<std::size_t>(steps * kTileSteps) * 2);
    }
    for (Index step = 0; step < steps; ++step, to += kTileHalves)
      transpose_pairs<Isa>(lines + step * kTileSteps, line, to);
  }
}

/// Addresses of rows: nullptr behind the last one.
inline auto rows_behind(const Rows& rows, Index count) {
  return [rows, count](Index r) { return r < count ? rows.data + r * rows.stride * 2 : nullptr; };
}

/// Rows of Y as B of X Y: tiles [column / 16][row / 32], `steps` of these for each column. row(r): address of a row;
/// nullptr: zeros. `lines`: scratch of 2 rows. True when all of it is finite.
template <class Isa, class RowOf>
bool pack_interleaved_tiles(Index count, Index columns, Index steps, Half* to, Half* lines, const RowOf& row) {
  Finite<Isa> finite;
  const Index padded = round_up(columns, kTileColumns);
  for (Index r = 0; r < round_up(count, kTileSteps); r += 2) {
    const Half* pair[2];
    for (Index i = 0; i < 2; ++i) {
      const char* from = row(r + i);
      Half* line = lines + i * padded;
      if (from == nullptr)
        std::memset(line, 0, static_cast<std::size_t>(padded) * 2);
      else
        copy_padded(from, columns, padded, line);
      pair[i] = line;
    }
    for (Index x = 0; x < padded; x += Isa::kLanes) {
      Isa::interleave(pair[0] + x, pair[1] + x,
                      to + (x / kTileColumns * steps + r / kTileSteps) * kTileHalves + r % kTileSteps / 2 * kTileSteps +
                          x % kTileColumns * 2);
      finite.see(Isa::load_bfloat16(pair[0] + x));
      finite.see(Isa::load_bfloat16(pair[1] + x));
    }
  }
  return finite.all();
}

/// Element (row, column) of such tiles.
inline float interleaved_element(const Half* tiles, Index steps, Index row, Index column) {
  return from_bfloat16(tiles[(column / kTileColumns * steps + row / kTileSteps) * kTileHalves +
                             row % kTileSteps / 2 * kTileSteps + column % kTileColumns * 2 + row % 2]);
}

/// C += A B where 0 times anything is 0, from rows of A and interleaved tiles of B, for depth begin to end. Slow: only
/// for a B that holds NaN or infinity. `steps`: tiles of B for each 16 columns.
inline void multiply_carefully(const Half* a, Index lda, Index rows, Index begin, Index end, const Half* b, Index steps,
                               Index columns, float* c, Index ldc) {
  for (Index r = 0; r < rows; ++r)
    for (Index j = begin; j < end; ++j) {
      const float x = from_bfloat16(a[r * lda + j]);
      if (x == 0) continue;
      for (Index column = 0; column < columns; ++column)
        c[r * ldc + column] += x * interleaved_element(b, steps, j, column);
    }
}

}  // namespace
}  // namespace cynosure::cpu
