// SPDX-License-Identifier: Apache-2.0
// backends/cudnn/rows.cu: the two small kernels around cuDNN's own. scripts/compile_kernels makes rows_ptx.hpp of this
// file, so that building Cynosure needs no CUDA compiler: the driver compiles the PTX when it is first used.
//
// rows_before runs ahead of a plan. Lengths come from the caller's device memory and may hold anything: here they are
// clamped, so that cuDNN stays within the tensors, and become what its graph takes. What cuDNN does not write becomes
// 0: tokens that belong to no sequence (in front of the first, behind the last, beyond a stated bound), and gradients
// of rows behind a length and of sequences where a side is empty. For a backward, LSEs of -inf become +inf, so that p =
// exp(s - lse) is 0 in rows that attend nothing. rows_after runs behind a forward: rows that attend nothing get output
// 0 and LSE -inf.
#include "rows.hpp"

using cynosure::cudnn::RowsAfter;
using cynosure::cudnn::RowsBefore;

namespace {

using Count = long long;

__device__ Count clamped(Count value, Count most) { return value < 0 ? 0 : value > most ? most : value; }

/// Start of sequence b (b = batch: the end of the last one).
__device__ Count start_of(const int* cumulative, int b, Count tokens) { return clamped(cumulative[b], tokens); }

__device__ int length_of(const RowsBefore::Side& side, bool ragged, int b) {
  if (side.lengths == nullptr) return side.most;
  if (!ragged) return static_cast<int>(clamped(side.lengths[b], side.most));
  const Count length = start_of(side.lengths, b + 1, side.tokens) - start_of(side.lengths, b, side.tokens);
  return static_cast<int>(clamped(length, side.most));
}

constexpr Count kChunk = 16;  // bytes

/// Zeros in rows first to last of memory that begins at `values`, by one block.
__device__ void clear_rows(const RowsBefore::Output& out, char* values, Count first, Count last) {
  const Count chunks = out.row_bytes / kChunk;
  for (Count j = first * chunks + threadIdx.x; j < last * chunks; j += blockDim.x)
    *reinterpret_cast<uint4*>(values + j / chunks * out.row_step + j % chunks * kChunk) = uint4{0, 0, 0, 0};
}

/// Of a ragged side, the first token behind sequence b - 1 (b = 0: of all). Between it and the start of sequence b lies
/// nothing, unless a first length is not 0, or a sequence is longer than stated.
__device__ Count gap_before(const RowsBefore::Side& side, int b) {
  return b == 0 ? 0 : start_of(side.lengths, b - 1, side.tokens) + length_of(side, true, b - 1);
}

/// Zeros in the rows of sequence b that get no gradient, by one block: all where one side is empty, else those behind
/// the length.
__device__ void clear(const RowsBefore& p, const RowsBefore::Output& out, int b) {
  const RowsBefore::Side& side = out.of_keys ? p.k : p.q;
  const bool empty = length_of(p.q, p.ragged, b) == 0 || length_of(p.k, p.ragged, b) == 0;
  const Count length = length_of(side, p.ragged, b);
  const Count first = empty ? 0 : length;
  const Count rows = p.ragged ? length : side.most;
  char* const values = static_cast<char*>(out.values) +
                       (p.ragged ? start_of(side.lengths, b, side.tokens) * out.row_step : b * out.batch_step);
  clear_rows(out, values, first, rows);
}

}  // namespace

extern "C" __global__ void rows_before(const RowsBefore p) {
  const Count thread = static_cast<Count>(blockIdx.x) * blockDim.x + threadIdx.x;
  const Count threads = static_cast<Count>(gridDim.x) * blockDim.x;
  for (Count b = thread; b <= p.batch; b += threads) {
    if (b < p.batch && p.lengths_q != nullptr) {
      p.lengths_q[b] = length_of(p.q, p.ragged, static_cast<int>(b));
      p.lengths_k[b] = length_of(p.k, p.ragged, static_cast<int>(b));
    }
    for (int i = 0; i < p.offsets_count; ++i) {
      const RowsBefore::Side& side = p.offsets[i].of_keys ? p.k : p.q;
      p.offsets[i].values[b] = start_of(side.lengths, static_cast<int>(b), side.tokens) * p.offsets[i].row;
    }
  }
  for (int i = 0; i < p.outputs_count; ++i) {
    const RowsBefore::Output& out = p.outputs[i];
    const RowsBefore::Side& side = out.of_keys ? p.k : p.q;
    if (p.ragged) {
      const Count row = out.row_bytes / kChunk;
      uint4* const values = static_cast<uint4*>(out.values);
      for (Count j = start_of(side.lengths, p.batch, side.tokens) * row + thread; j < side.tokens * row; j += threads)
        values[j] = uint4{0, 0, 0, 0};
      for (int b = static_cast<int>(blockIdx.x); b <= p.batch; b += static_cast<int>(gridDim.x))
        clear_rows(out, static_cast<char*>(out.values), gap_before(side, b), start_of(side.lengths, b, side.tokens));
    }
    if (out.gradient)
      for (int b = static_cast<int>(blockIdx.x); b < p.batch; b += static_cast<int>(gridDim.x)) clear(p, out, b);
  }
  const float infinity = __int_as_float(0x7f800000);
  if (p.lse != nullptr)
    for (Count i = thread; i < p.lse_count; i += threads) {
      const float value = p.lse[i];
      p.lse_for_backward[i] = value == -infinity ? infinity : value;
    }
}

extern "C" __global__ void rows_after(const RowsAfter p) {
  const Count thread = static_cast<Count>(blockIdx.x) * blockDim.x + threadIdx.x;
  const Count threads = static_cast<Count>(gridDim.x) * blockDim.x;
  const float minus_infinity = __int_as_float(0xff800000);
  if (p.ragged && p.lse != nullptr) {  // tokens that belong to no sequence
    const Count end = start_of(p.q.lengths, p.batch, p.q.tokens);
    for (Count i = end * p.heads + thread; i < p.q.tokens * p.heads; i += threads) p.lse[i] = minus_infinity;
    for (int b = static_cast<int>(blockIdx.x); b <= p.batch; b += static_cast<int>(gridDim.x)) {
      const Count start = start_of(p.q.lengths, b, p.q.tokens);
      for (Count i = gap_before(p.q, b) * p.heads + threadIdx.x; i < start * p.heads; i += blockDim.x)
        p.lse[i] = minus_infinity;
    }
  }
  const Count rows = p.q.most;
  const Count all = static_cast<Count>(p.batch) * rows;
  for (Count index = thread; index < all; index += threads) {
    const int b = static_cast<int>(index / rows);
    const Count i = index % rows;
    const Count rows_here = length_of(p.q, p.ragged, b);
    const Count keys_here = length_of(p.k, p.ragged, b);
    if (p.ragged && i >= rows_here) continue;  // the row of another sequence, or of none
    const Count diagonal = i + (p.bottom_right ? keys_here - rows_here : 0);
    Count first = p.window_left < 0 ? 0 : diagonal - p.window_left;
    Count last = p.window_right < 0 ? keys_here - 1 : diagonal + p.window_right;
    if (first < 0) first = 0;
    if (last > keys_here - 1) last = keys_here - 1;
    if (i < rows_here && first <= last) continue;
    const Count token = p.ragged ? start_of(p.q.lengths, b, p.q.tokens) + i : 0;
    for (int h = 0; h < p.heads; ++h) {
      if (p.lse != nullptr)
        p.lse[p.ragged ? token * p.heads + h : (static_cast<Count>(b) * p.heads + h) * rows + i] = minus_infinity;
      unsigned short* const out = static_cast<unsigned short*>(p.out) +
                                  (p.ragged ? token * p.out_row : b * p.out_batch + i * p.out_row) + h * p.out_head;
      for (int d = 0; d < p.head_dim; d += 8) *reinterpret_cast<uint4*>(out + d) = uint4{0, 0, 0, 0};
    }
  }
}
