// SPDX-License-Identifier: Apache-2.0
// backends/cudnn/key.hpp: everything that an execution plan of cuDNN bakes in, as plain data. Equal bytes: the same
// plan.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <cynosure/problem.hpp>

namespace cynosure::cudnn {

enum class Direction : std::uint8_t { forward, backward };
enum class Type : std::uint8_t { bfloat16, float16, float32 };
/// How sequences have lengths of their own: not at all, as valid lengths [B], or one after the other in [T, H, D].
enum class LengthKind : std::uint8_t { full, padded, ragged };

/// Elements from one batch, head and row to the next; the head dim is contiguous.
struct Strides {
  std::int64_t batch = 0, head = 0, row = 0;
  bool operator==(const Strides&) const = default;
};

/// All pointers are aligned to 16 bytes, and so is every stride (elements of 16 bits: a multiple of 8).
inline constexpr std::int64_t kAlignment = 16;

/// One plan. Sizes in elements; for a ragged batch the lengths are bounds, and batch strides those of such lengths.
struct PlanKey {
  std::int64_t batch = 0, heads = 0, kv_heads = 0, seqlen_q = 0, seqlen_k = 0, head_dim_qk = 0, head_dim_v = 0;
  Strides q, k, v, out;
  Strides dout, dq, dk, dv;                          ///< backward
  std::int64_t bias_batch = 0, bias_heads = 0;       ///< 1 or full; 0: no bias. Sq and Skv are always full
  Strides bias;                                      ///< its gradient is dense
  std::int64_t window_left = -1, window_right = -1;  ///< as in the definition: columns beside the diagonal, -1: all
  std::int64_t tokens_q = 0, tokens_k = 0;           ///< backward, ragged: bounds of the workspace
  std::uint32_t scale = 0, dropout_p = 0;            ///< bits of the floats
  std::int32_t device = 0, sm_count = 0, cudnn = 0;  ///< cudnn: cudnnGetVersion()
  Type type = Type::bfloat16, bias_type = Type::float32;  ///< of q, k, v, out; of the bias
  Direction direction = Direction::forward;
  LengthKind lengths = LengthKind::full;
  bool bottom_right = false;
  bool stats = false;  ///< forward: the LSE is an output
  bool sinks = false;
  bool bias_grad = false, sinks_grad = false, deterministic = false;
  std::array<std::uint8_t, 2> reserved{};

  bool operator==(const PlanKey&) const = default;
};
static_assert(std::has_unique_object_representations_v<PlanKey>, "hashed and compared as bytes");

/// The plan of a problem with dense tensors, for one direction; scale 1, dropout 0.5, and a mask that differs in
/// nothing but rows and columns. Whoever has the tensors states what they are instead.
[[nodiscard]] PlanKey key_of(const Problem& problem, Direction direction, bool deterministic);

[[nodiscard]] std::size_t hash(const PlanKey& key);
struct PlanKeyHash {
  [[nodiscard]] std::size_t operator()(const PlanKey& key) const { return hash(key); }
};

/// The same mathematics in the form that needs least: a side of the window that hides nothing is dropped, and where
/// both alignments mean the same, top left is taken. So more calls share a plan, and more are within what the library
/// has.
void simplify_window(PlanKey& key);

/// A bound of tokens, rounded up to three leading bits, so that batches of nearly equal size share a plan.
[[nodiscard]] std::int64_t rounded_up(std::int64_t tokens);

/// What a plan reads and writes. The values are the uids in the graph.
enum class Slot : std::uint8_t {
  q,
  k,
  v,
  bias,
  lengths_q,
  lengths_k,
  seed,
  offset,
  sinks,
  out,
  stats,
  dout,
  dq,
  dk,
  dv,
  dbias,
  dsinks,
  ragged,  ///< the first of up to kMostOffsets tensors of element offsets
};
inline constexpr std::size_t kMostOffsets = 9;
inline constexpr std::size_t kSlots = static_cast<std::size_t>(Slot::ragged) + kMostOffsets;

/// Element offsets of the sequences of a ragged tensor: cumulative lengths of one side times the stride of a row.
struct RaggedOffsets {
  std::int64_t row = 0;
  bool of_keys = false;
  bool operator==(const RaggedOffsets&) const = default;
};
/// The distinct ones of a plan, and which of them each tensor uses.
struct RaggedLayout {
  std::array<RaggedOffsets, kMostOffsets> offsets{};
  std::size_t count = 0;
  std::array<std::uint8_t, kSlots> of_slot{};
};
[[nodiscard]] RaggedLayout ragged_layout(const PlanKey& key);

}  // namespace cynosure::cudnn
