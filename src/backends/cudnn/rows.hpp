// SPDX-License-Identifier: Apache-2.0
// backends/cudnn/rows.hpp: arguments of the kernels in rows.cu, which include this file: plain types alone. Pointers
// are to device memory; null where there is none.
#pragma once

namespace cynosure::cudnn {

/// Lengths of queries or keys.
struct RowsSide {
  const int* lengths = nullptr;  ///< [batch] valid, or ragged: [batch + 1] cumulative; null: all are `most`
  long long tokens = 0;          ///< ragged: tokens of the tensor
  int most = 0;                  ///< no sequence is longer
};

/// Before cuDNN: lengths, offsets, outputs that it does not write, LSEs.
struct RowsBefore {
  using Side = RowsSide;
  /// Element offsets of the sequences of a ragged tensor.
  struct Offsets {
    long long* values = nullptr;  ///< [batch + 1], written
    long long row = 0;            ///< elements from one token to the next
    bool of_keys = false;
  };
  /// An output, for what cuDNN leaves as it is. Ragged: what lies behind the last sequence becomes 0. A gradient: so do
  /// rows behind a length, and sequences where one side is empty.
  struct Output {
    void* values = nullptr;
    long long row_bytes = 0;                 ///< of all heads, in one piece; a multiple of 16
    long long batch_step = 0, row_step = 0;  ///< bytes
    bool of_keys = false, gradient = false;
  };
  Side q, k;
  int batch = 0;
  bool ragged = false;
  int* lengths_q = nullptr;  ///< [batch], written
  int* lengths_k = nullptr;
  int offsets_count = 0, outputs_count = 0;
  Offsets offsets[9];
  Output outputs[3];
  const float* lse = nullptr;
  float* lse_for_backward = nullptr;
  long long lse_count = 0;
};

/// After a forward: rows without anything to attend.
struct RowsAfter {
  RowsSide q, k;
  int batch = 0, heads = 0, head_dim = 0;  ///< head_dim: of the output, a multiple of 8
  bool ragged = false, bottom_right = false;
  long long window_left = -1, window_right = -1;
  float* lse = nullptr;  ///< [batch, heads, most], or ragged: [tokens, heads]
  void* out = nullptr;   ///< of 16-bit elements, strides in elements
  long long out_batch = 0, out_head = 0, out_row = 0;
};

}  // namespace cynosure::cudnn
