// SPDX-License-Identifier: Apache-2.0
// backends/cpu/score.hpp: from scale * q k^T to the scores of the definition, for a block of pairs; and dropout.
//
// A block is some rows of one sequence against some consecutive keys. Columns of a block count from its first key.
#pragma once

#include "backends/cpu/philox.hpp"
#include "backends/cpu/row.hpp"

namespace cynosure::cpu {
namespace {

struct KeyRange {
  Index first = 0;  ///< key of column 0
  Index count = 0;
};

/// Columns of the block that row i attends, before masks.
struct Columns {
  std::int32_t begin = 0, end = 0;
  [[nodiscard]] bool empty() const { return begin >= end; }
};
inline Columns columns_of(const Sequence& sequence, Index i, KeyRange keys) {
  const Index begin = most(0, sequence.begin(i) - keys.first);
  const Index end = least(keys.count, sequence.end(i) - keys.first);
  if (begin >= end) return {};
  return {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)};
}

/// Element (head, i, key) of something of shape [B, H, Sq, Skv].
template <class Shape>
Index element_of(const Shape& t, Index b, Index head, Index i, Index key) {
  return b * t.batch + head * t.head + i * t.row + key * t.column;
}

/// s = cap * tanh(s / cap); slope (optional) = 1 - tanh^2, the factor of the gradient.
template <class Isa>
void cap_scores(float cap, Columns columns, float* s, float* slope) {
  const auto inverse = Isa::set(1.0F / cap);
  for (Index x = columns.begin; x < columns.end; x += Isa::kLanes) {
    typename Isa::Float change;
    const auto t = tanh<Isa>(Isa::mul(inverse, Isa::load(s + x)), change);
    Isa::store(s + x, Isa::mul(Isa::set(cap), t));
    if (slope != nullptr) Isa::store(slope + x, change);
  }
}

/// s += term; where the term is -inf, s = -inf whatever it was.
template <class Isa>
void add_term(const Term& term, Index element, Columns columns, float* s, float* line) {
  const Index n = columns.end - columns.begin;
  const char* from = static_cast<const char*>(term.data) + element * element_size(term.dtype);
  load_row<Isa>(term.dtype, from, term.column, n, 1.0F, line);
  const auto lowest = Isa::set(kLowest);
  for (Index x = 0; x < n; x += Isa::kLanes) {
    const auto t = Isa::load(line + x);
    const auto sum = Isa::add(Isa::load(s + columns.begin + x), t);
    Isa::store(s + columns.begin + x, Isa::select(Isa::less(t, lowest), t, sum));
  }
}

template <class Isa>
void add_alibi(float slope, Index distance, Columns columns, float* s) {
  float count[Isa::kLanes];
  for (int x = 0; x < Isa::kLanes; ++x) count[x] = static_cast<float>(x);
  const auto lane = Isa::load(count);
  for (Index x = columns.begin; x < columns.end; x += Isa::kLanes) {
    const auto away = Isa::add(Isa::set(static_cast<float>(distance + x)), lane);
    Isa::store(s + x, Isa::fma(Isa::set(-slope), Isa::absolute(away), Isa::load(s + x)));
  }
}

template <class Isa>
void apply_mask(const BooleanMask& mask, Index element, Columns columns, float* s) {
  const std::uint8_t* from = mask.data + element;
  Index x = columns.begin;
  if (mask.column == 1)
    for (; x + Isa::kLanes <= columns.end; x += Isa::kLanes, from += Isa::kLanes)
      Isa::store(s + x, Isa::select(Isa::load_mask(from), Isa::load(s + x), Isa::set(-kInfinity)));
  for (; x < columns.end; ++x, from += mask.column)
    if (*from == 0) s[x] = -kInfinity;
}

/// Makes scores of one row of scale * q k^T. `line`: scratch; `slope`: see cap_scores.
template <class Isa>
void make_scores(const Attention& call, const Sequence& sequence, KeyRange keys, Index head, Index i, Columns columns,
                 float* s, float* line, float* slope) {
  const Index first = keys.first + columns.begin;
  if (call.softcap != 0) cap_scores<Isa>(call.softcap, columns, s, slope);
  if (call.bias.data != nullptr)
    add_term<Isa>(call.bias, element_of(call.bias, sequence.b, head, i, first), columns, s, line);
  if (call.alibi.data != nullptr)
    add_alibi<Isa>(call.alibi.data[sequence.b * call.alibi.batch + head * call.alibi.head],
                   keys.first - i - sequence.offset, columns, s);
  if (call.additive_mask.data != nullptr)
    add_term<Isa>(call.additive_mask, element_of(call.additive_mask, sequence.b, head, i, first), columns, s, line);
  if (call.mask.data != nullptr)
    apply_mask<Isa>(call.mask, element_of(call.mask, sequence.b, head, i, first), columns, s);
}

inline float sink_of(const Sinks& sinks, Index head) {
  float sink = 0;
  const char* from = static_cast<const char*>(sinks.data) + head * element_size(sinks.dtype);
  with_dtype(sinks.dtype, [&](auto typed) { sink = load_element<decltype(typed)::value>(from); });
  return sink;
}

/// True when the boolean mask lets nothing of the row through.
inline bool masked_out(const BooleanMask& mask, const Sequence& sequence, KeyRange keys, Index head, Index i,
                       Columns columns) {
  const std::uint8_t* from = mask.data + element_of(mask, sequence.b, head, i, keys.first + columns.begin);
  for (Index x = columns.begin; x < columns.end; ++x, from += mask.column)
    if (*from != 0) return false;
  return true;
}

/// keep[x] = 0 where the pair is dropped, else 1 / (1 - probability). Writes whole batches from the group of four that
/// holds the first column: up to 8 * Isa::kLanes floats behind the last.
///
/// A set of blocks of the generator comes as 4 vectors, of word 0 of each block to word 3; columns want the 4 words of
/// a block side by side. Transposing each 4 by 4 quad of lanes puts lane 4 b + j of all words into quad b of vector j,
/// so that lane counts the block that belongs there: kLanes / 4 * j + b.
template <class Isa>
void keep_factors(const DropoutKey& key, Index batch_head, Index i, KeyRange keys, Columns columns, float* keep) {
  constexpr int lanes = Isa::kLanes;
  constexpr int sets = 2;
  constexpr Index step = Index{sets} * Index{4} * Index{lanes};
  std::uint32_t block[sets][lanes];
  for (Index x = Index{columns.begin / 4} * 4; x < columns.end; x += step) {
    typename Isa::Bits words[sets][4];
    for (int set = 0; set < sets; ++set) {
      for (int lane = 0; lane < lanes; ++lane)
        block[set][lane] = static_cast<std::uint32_t>((keys.first + x) / 4) +
                           static_cast<std::uint32_t>(set * lanes + lanes / 4 * (lane % 4) + lane / 4);
      words[set][0] = Isa::load_bits(block[set]);
      words[set][1] = Isa::set_bits(static_cast<std::uint32_t>(i));
      words[set][2] = Isa::set_bits(static_cast<std::uint32_t>(batch_head));
      words[set][3] = Isa::set_bits(key.offset);
    }
    philox<Isa>(key, words);
    for (int set = 0; set < sets; ++set) {
      typename Isa::Float factors[4];
      for (int word = 0; word < 4; ++word)
        factors[word] = Isa::select(Isa::less_bits(words[set][word], Isa::set_bits(key.threshold)), Isa::zero(),
                                    Isa::set(key.keep_scale));
      Isa::transpose_quads(factors);
      for (int word = 0; word < 4; ++word) Isa::store(keep + x + Index{lanes} * (4 * set + word), factors[word]);
    }
  }
}

/// Ranges of columns (rows of a strip together): begin = end where none of its rows attends anything.
inline void strip_columns(const std::int32_t* begin, const std::int32_t* end, Index rows, Index height,
                          std::int32_t* strip_begin, std::int32_t* strip_end) {
  for (Index row = 0; row < rows; row += height) {
    std::int32_t low = 0;
    std::int32_t high = 0;
    for (Index r = row; r < least(row + height, rows); ++r) {
      if (begin[r] >= end[r]) continue;
      if (low == high || begin[r] < low) low = begin[r];
      if (end[r] > high) high = end[r];
    }
    strip_begin[row / height] = low;
    strip_end[row / height] = high;
  }
}

/// Ranges of rows for strips of columns: the other direction.
inline void strip_rows(const std::int32_t* begin, const std::int32_t* end, Index rows, Index columns, Index height,
                       std::int32_t* strip_begin, std::int32_t* strip_end) {
  for (Index column = 0; column < columns; column += height) {
    std::int32_t low = 0;
    std::int32_t high = 0;
    for (Index r = 0; r < rows; ++r) {
      if (begin[r] >= end[r] || begin[r] >= column + height || end[r] <= column) continue;
      if (low == high) low = static_cast<std::int32_t>(r);
      high = static_cast<std::int32_t>(r + 1);
    }
    strip_begin[column / height] = low;
    strip_end[column / height] = high;
  }
}

}  // namespace
}  // namespace cynosure::cpu
