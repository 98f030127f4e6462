// SPDX-License-Identifier: Apache-2.0
// backends/cpu/attention.hpp: attention on CPUs, forward and backward, by plain pointers. Knows no torch.
//
//   s = scale * q k^T;  s = softcap * tanh(s / softcap);  s += bias - slope * |j - (i + offset)| + additive mask
//   p = exp(s - m) / (sum exp(s - m) + exp(sink - m));   dropout on p;   out = p v
//
// Row i attends column j when -left <= j - (i + offset) <= right, j is a valid key, the boolean mask is true there and
// the additive terms are not -inf; offset is 0, or keys - rows of the sequence for bottom_right. A row with nothing to
// attend: output 0, gradients 0, LSE -inf, even with a sink. Rows and keys beyond a sequence's length: output,
// gradients 0, what they hold is never read.
//
// What holds
//   - Memory is linear in the lengths: nothing of size rows x keys. Time follows the pairs attended for causal masks,
//     windows and lengths; blocks that a boolean mask empties are skipped.
//   - Results are equal bit for bit whatever the number of threads and the order in which they run: tasks and the order
//     of all sums depend on shapes and lengths only. Instruction sets agree within rounding, dropout exactly.
//   - Scores, statistics and all sums are float32; 16-bit tensors are converted where they are packed.
//   - NaN and infinity in a key, value, query or output gradient reach only the results that attend it: a product with
//     a probability (or its gradient) of exactly 0 counts as 0, so an attended pair whose probability underflows
//     counts as not attended. A boolean mask or an additive -inf hides a NaN score.
//   - Strides are in elements and may be anything, 0 and negative included; the last dimension is contiguous. Pointers
//     need no alignment, except that of the workspace. Nothing outside the tensors is read.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cynosure/device.hpp>
#include <cynosure/problem.hpp>

#include "backends/cpu/parallel.hpp"

namespace cynosure::cpu {

/// A tensor that is read: where it starts and its strides. In a ragged batch `batch` is not used.
struct Input {
  const void* data = nullptr;
  std::int64_t batch = 0, sequence = 0, head = 0;
};
/// A tensor that is written. Without data: not wanted.
struct Output {
  void* data = nullptr;
  std::int64_t batch = 0, sequence = 0, head = 0;
};

/// Something of shape [B, H, Sq, Skv] added to the scores (bias, additive mask); stride 0 where it broadcasts.
struct Term {
  const void* data = nullptr;
  DType dtype = DType::float32;  ///< float32 or the call's
  std::int64_t batch = 0, head = 0, row = 0, column = 1;
};
/// The gradient of a term, already summed over the dimensions of stride 0. The last dimension does not broadcast.
struct TermGradient {
  void* data = nullptr;
  DType dtype = DType::float32;
  std::int64_t batch = 0, head = 0, row = 0, column = 1;
};
/// Bytes of shape [B, H, Sq, Skv]; not 0: attend.
struct BooleanMask {
  const std::uint8_t* data = nullptr;
  std::int64_t batch = 0, head = 0, row = 0, column = 1;
};
/// ALiBi slopes, [H] or [B, H].
struct Slopes {
  const float* data = nullptr;
  std::int64_t batch = 0, head = 1;
};
/// One logit a head, contiguous.
struct Sinks {
  const void* data = nullptr;
  DType dtype = DType::float32;  ///< float32, bfloat16 or float16
};
struct SinksGradient {
  void* data = nullptr;
  DType dtype = DType::float32;
};
/// Float32 numbers a row, [B, H, Sq] (ragged: [H, T], `batch` is not used).
struct RowsInput {
  const float* data = nullptr;
  std::int64_t batch = 0, head = 0, row = 1;
};
struct RowsOutput {
  float* data = nullptr;
  std::int64_t batch = 0, head = 0, row = 1;
};

/// How long the sequences of one side (queries, or keys) are. With neither array, all are as long as the tensor.
struct SequenceLengths {
  const std::int32_t* valid = nullptr;       ///< [B], how much of each sequence counts
  const std::int32_t* cumulative = nullptr;  ///< [B + 1], a ragged batch: where each starts in the packed tokens
  std::int64_t tokens = 0;                   ///< of the packed tensor; those behind the last sequence give 0
};

/// Dropout by Philox 4x32-10 (philox.hpp): whether a pair is dropped depends on seed, offset and (b, h, i, j) alone.
struct Dropout {
  double probability = 0;
  std::int64_t seed = 0, offset = 0;
};

/// One call: what forward and backward share.
struct Attention {
  DType dtype = DType::float32;  ///< of q, k, v, out and their gradients: float32, bfloat16 or float16
  std::int64_t batch = 0, heads = 0, kv_heads = 0;
  std::int64_t seqlen_q = 0, seqlen_k = 0;  ///< of the tensors; ragged: the longest sequence, or more
  std::int64_t head_dim_qk = 0, head_dim_v = 0;
  Input q, k, v;
  SequenceLengths lengths_q, lengths_k;

  float scale = 1;
  float softcap = 0;  ///< 0: none
  bool causal = false;
  Align align = Align::bottom_right;
  std::int64_t window_left = -1, window_right = -1;
  Term bias;
  Term additive_mask;
  BooleanMask mask;
  Slopes alibi;
  Sinks sinks;
  Dropout dropout;
};

struct ForwardOutputs {
  Output out;
  RowsOutput lse;  ///< natural logarithm, with the sink, before dropout
};

struct BackwardInputs {
  Input out, dout;
  RowsInput lse;   ///< what forward returned
  RowsInput dlse;  ///< gradient of the LSE; optional
};
struct Gradients {
  Output dq, dk, dv;
  TermGradient dbias, dmask;  ///< of `bias` and `additive_mask`
  SinksGradient dsinks;
};

/// What the kernels may use.
struct Instructions {
  CpuIsa isa = CpuIsa::generic;               ///< at most what the processor has
  bool emulate_tiles = false;                 ///< for tests: the tile algorithm on any processor, slowly
  Instructions(CpuIsa level) : isa(level) {}  // NOLINT(google-explicit-constructor): a level is all that callers know
  Instructions(CpuIsa level, bool emulate) : isa(level), emulate_tiles(emulate) {}
};

/// Bytes of workspace for `threads` threads; 0 is possible.
[[nodiscard]] std::size_t forward_workspace(const Attention& call, Instructions with, int threads);
[[nodiscard]] std::size_t backward_workspace(const Attention& call, const Gradients& wanted, Instructions with,
                                             int threads);

/// `workspace`: aligned to 64 bytes, sized by the functions above for parallel.threads() and the same instructions. A
/// level that this build lacks stands for the best one below it, and so does one that does not serve the call.
void forward(const Attention& call, const ForwardOutputs& outputs, Instructions with, const Parallel& parallel,
             void* workspace);
void backward(const Attention& call, const BackwardInputs& inputs, const Gradients& gradients, Instructions with,
              const Parallel& parallel, void* workspace);

/// What runs when instructions are asked for: the level and whether in tiles, by AMX or emulated. Tiles serve bfloat16
/// calls of more than 48 rows whose head dimensions lie between 8 and 256; backward without gradients of terms.
struct Used {
  CpuIsa isa = CpuIsa::generic;
  bool tiles = false;
  friend bool operator==(const Used&, const Used&) = default;
};
[[nodiscard]] Used used_by_forward(const Attention& call, Instructions with);
[[nodiscard]] Used used_by_backward(const Attention& call, const Gradients& wanted, Instructions with);
/// The best level of this build, for some call.
[[nodiscard]] CpuIsa built_isa(CpuIsa isa);

}  // namespace cynosure::cpu
