// SPDX-License-Identifier: Apache-2.0
// backends/cpu/geometry.hpp: which rows and keys exist, which pairs meet, and where they lie in memory.
//
// Everything here has internal linkage: each instruction set compiles its own copy (see kernels.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/attention.hpp"

namespace cynosure::cpu {

using Index = std::int64_t;

namespace {

// The standard library's templates would be shared between instruction sets by the linker.
inline Index least(Index a, Index b) { return a < b ? a : b; }
inline Index most(Index a, Index b) { return a > b ? a : b; }
inline Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }
inline Index round_up(Index a, Index b) { return ceil_div(a, b) * b; }

inline Index element_size(DType dtype) { return dtype == DType::float32 ? 4 : 2; }

/// One side (queries, or keys) of one sequence.
struct Side {
  Index batch = 0;   ///< index for the batch stride: 0 in a ragged batch
  Index first = 0;   ///< index of its first row in the sequence dimension
  Index extent = 0;  ///< rows that belong to it
  Index valid = 0;   ///< rows of these that count
};

inline Side side(const SequenceLengths& lengths, Index seqlen, Index b) {
  Side result{.batch = b, .first = 0, .extent = seqlen, .valid = seqlen};
  if (lengths.cumulative != nullptr) {
    result.batch = 0;
    result.first = lengths.cumulative[b];
    result.extent = result.valid = most(0, lengths.cumulative[b + 1] - result.first);
  }
  if (lengths.valid != nullptr) result.valid = most(0, least(lengths.valid[b], result.extent));
  return result;
}

struct Sequence {
  Index b = 0;
  Side q, k;
  Index offset = 0;  ///< of the diagonal
  Index left = -1, right = -1;

  /// Row i attends keys [begin(i), end(i)), which is empty when end <= begin. Neither decreases as i grows.
  [[nodiscard]] Index begin(Index i) const { return left < 0 ? 0 : most(0, i + offset - left); }
  [[nodiscard]] Index end(Index i) const {
    return right < 0 ? k.valid : most(0, least(k.valid, i + offset + right + 1));
  }
};

inline Sequence sequence(const Attention& call, Index b) {
  constexpr Index unlimited = 1'000'000'000'000'000'000;  // so that sums below cannot overflow
  Sequence s;
  s.b = b;
  s.q = side(call.lengths_q, call.seqlen_q, b);
  s.k = side(call.lengths_k, call.seqlen_k, b);
  s.offset = call.align == Align::bottom_right ? s.k.valid - s.q.valid : 0;
  s.left = call.window_left < 0 ? -1 : least(call.window_left, unlimited);
  s.right = call.causal ? 0 : call.window_right < 0 ? -1 : least(call.window_right, unlimited);
  return s;
}

/// Address of row `i` of head `h` in a tensor.
inline const char* row_of(const Input& t, const Side& side, Index i, Index h, DType dtype) {
  const Index offset = side.batch * t.batch + (side.first + i) * t.sequence + h * t.head;
  return static_cast<const char*>(t.data) + offset * element_size(dtype);
}
inline char* row_of(const Output& t, const Side& side, Index i, Index h, DType dtype) {
  const Index offset = side.batch * t.batch + (side.first + i) * t.sequence + h * t.head;
  return static_cast<char*>(t.data) + offset * element_size(dtype);
}
template <class Rows>
inline Index number_of(const Rows& t, const Side& side, Index i, Index h) {
  return side.batch * t.batch + h * t.head + (side.first + i) * t.row;
}

/// Leading dimension of a tile of `columns` floats: an odd number of cache lines, so that rows spread over all sets of
/// the first-level cache, with at least one line spare, so that a vector may start anywhere in a row.
inline Index leading(Index columns) { return ((ceil_div(columns, 16) + 1) / 2 * 2 + 1) * 16; }

/// Hands out parts of the workspace, each on a cache line. Without memory it only counts.
class Arena {
 public:
  explicit Arena(void* memory) : memory_(static_cast<char*>(memory)) {}
  template <class T>
  T* take(Index count) {
    const Index at = used_;
    used_ += round_up(count * static_cast<Index>(sizeof(T)), 64);
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + at);
  }
  [[nodiscard]] Index used() const { return used_; }

 private:
  char* memory_;
  Index used_ = 0;
};

}  // namespace
}  // namespace cynosure::cpu
