// SPDX-License-Identifier: Apache-2.0
// backends/cpu/plan.hpp: how a call is cut into tasks and tiles, and where the workspace keeps what.
//
// Sizes follow from shapes, lengths and the instruction set; never from the number of threads, except that the
// workspace has one scratch area for each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/attention.hpp"
#include "backends/cpu/geometry.hpp"

namespace cynosure::cpu {

/// Sizes of the blocks that tasks work on, in rows (queries) and keys.
struct Blocks {
  std::int64_t rows = 0, keys = 0;
};

/// Rows of a sequence up to which heads of a group share a block, so that keys are read once for them.
constexpr std::int64_t kSharedRows = 48;

/// Both passes can run in two ways, with equal results. By heads: a task is a key and value head of a sequence with all
/// that attends it, and packs what it needs into its own scratch, where it stays close. In parts: heads are cut into
/// smaller tasks, for when there are more threads than heads; what several tasks read is packed first and shared.

struct ForwardPlan {
  const Attention* call = nullptr;
  const ForwardOutputs* outputs = nullptr;
  Blocks block;
  std::int64_t group = 1;  ///< query heads that share a key and value head
  bool by_heads = true;
  std::int64_t heads = 0;                   ///< tasks by heads
  std::int64_t* first_task = nullptr;       ///< [B + 1], in parts: number of the first task of each sequence
  std::int64_t* first_key_block = nullptr;  ///< [B + 1], in parts: the same for packed blocks of keys
  std::int64_t tasks = 0, pack_tasks = 0;
  char* keys = nullptr;        ///< packed, in parts
  std::int64_t key_slots = 0;  ///< packed blocks of keys in each scratch, by heads
  /// Few rows, many keys: the keys of each task are cut into so many parts, whose results are added up in order.
  std::int64_t splits = 1;
  char* partials = nullptr;  ///< for each task and split
  char* scratch = nullptr;   ///< one area for each thread
  std::int64_t key_block_bytes = 0, scratch_bytes = 0, partial_bytes = 0;
};

struct BackwardPlan {
  const Attention* call = nullptr;
  const BackwardInputs* inputs = nullptr;
  const Gradients* gradients = nullptr;
  Blocks block;
  std::int64_t group = 1;
  bool by_heads = true;
  std::int64_t heads = 0;  ///< tasks by heads
  /// The blocks of keys are dealt to so many tasks in turn.
  std::int64_t splits = 1;
  /// Parts of dq, added up at the end: block number modulo slots says which one takes what a block of keys gives. As
  /// many as splits or, under a window, as blocks of keys that one block of rows can meet, whichever is less.
  std::int64_t slots = 1;
  std::int64_t* first_row_block = nullptr;  ///< [B + 1], over all query heads
  double* dsinks = nullptr;                 ///< a part for each block of rows
  std::int64_t row_blocks = 0, key_tasks = 0;
  char* rows = nullptr;        ///< packed blocks of rows, in parts
  std::int64_t row_slots = 0;  ///< packed blocks of rows in each scratch, by heads
  char* scratch = nullptr;
  std::int64_t row_block_bytes = 0, scratch_bytes = 0;
};

namespace {

/// Room for panels of `rows` rows and at least `columns` columns, whatever the instruction set's panel and vector are.
inline Index panel_room(Index rows, Index columns) { return round_up(rows, 16) * round_up(columns, 32); }

/// A packed block of keys of the forward pass, in panels: keys transposed, values by rows.
struct KeyTile {
  float *keys, *values, *finite;
};
inline KeyTile key_tile(const ForwardPlan& plan, Arena& arena) {
  const Attention& call = *plan.call;
  return {.keys = arena.take<float>(panel_room(call.head_dim_qk, plan.block.keys)),
          .values = arena.take<float>(panel_room(plan.block.keys, call.head_dim_v)),
          .finite = arena.take<float>(1)};
}

/// What one split of the keys leaves: the running maximum, sum and output of its rows.
struct Partial {
  float *maximum, *sum, *out;
};
inline Partial partial(const ForwardPlan& plan, Arena& arena) {
  const Index rows = plan.block.rows;
  return {.maximum = arena.take<float>(rows),
          .sum = arena.take<float>(rows),
          .out = arena.take<float>(rows * leading(plan.call->head_dim_v))};
}

/// Rows up to which keys are not packed: it would cost more than it saves.
constexpr Index kFewRows = 16;

/// What a forward task keeps: a block of rows.
struct ForwardScratch {
  float *q, *q_t, *scores, *scores_t, *out, *maximum, *sum, *rescale, *line, *keep, *row;
  std::int32_t *begin, *end, *strip_begin, *strip_end;
};
inline ForwardScratch forward_scratch(const ForwardPlan& plan, Arena& arena) {
  const Attention& call = *plan.call;
  const Index rows = plan.block.rows;
  const Index line = leading(plan.block.keys);
  return {.q = arena.take<float>(rows * leading(call.head_dim_qk)),
          .q_t = arena.take<float>(panel_room(call.head_dim_qk, kFewRows)),
          .scores = arena.take<float>(round_up(rows, 16) * line),
          .scores_t = arena.take<float>(panel_room(plan.block.keys, kFewRows)),
          .out = arena.take<float>(rows * leading(call.head_dim_v)),
          .maximum = arena.take<float>(rows),
          .sum = arena.take<float>(rows),
          .rescale = arena.take<float>(rows),
          .line = arena.take<float>(line),
          .keep = arena.take<float>(line + 128),
          .row = arena.take<float>(16 * leading(most(call.head_dim_qk, call.head_dim_v))),
          .begin = arena.take<std::int32_t>(rows),
          .end = arena.take<std::int32_t>(rows),
          .strip_begin = arena.take<std::int32_t>(rows),
          .strip_end = arena.take<std::int32_t>(rows)};
}

/// A packed block of rows of the backward pass.
struct RowTile {
  float *q, *dout, *delta, *dlse, *lse, *finite, *dq;
};
inline RowTile row_tile(const BackwardPlan& plan, Arena& arena) {
  const Attention& call = *plan.call;
  const Index rows = plan.block.rows;
  return {.q = arena.take<float>(rows * leading(call.head_dim_qk)),
          .dout = arena.take<float>(rows * leading(call.head_dim_v)),
          .delta = arena.take<float>(rows),
          .dlse = arena.take<float>(rows),
          .lse = arena.take<float>(rows),
          .finite = arena.take<float>(2),
          .dq = arena.take<float>(plan.slots * rows * leading(call.head_dim_qk))};
}

/// What a backward task keeps: a block of keys and the pairs it forms with one block of rows.
struct BackwardScratch {
  float *keys, *keys_t, *values_t, *dk, *dv, *scores, *grads, *line, *keep, *cap, *term, *row;
  std::int32_t *begin, *end, *strip_begin, *strip_end, *column_begin, *column_end;
};
inline BackwardScratch backward_scratch(const BackwardPlan& plan, Arena& arena) {
  const Attention& call = *plan.call;
  const Index rows = plan.block.rows;
  const Index keys = plan.block.keys;
  const Index line = leading(keys);
  const Index width_qk = leading(call.head_dim_qk);
  const Index width_v = leading(call.head_dim_v);
  return {.keys = arena.take<float>(panel_room(keys, call.head_dim_qk)),
          .keys_t = arena.take<float>(panel_room(call.head_dim_qk, keys)),
          .values_t = arena.take<float>(panel_room(call.head_dim_v, keys)),
          .dk = arena.take<float>(keys * width_qk),
          .dv = arena.take<float>(keys * width_v),
          .scores = arena.take<float>(rows * line),
          .grads = arena.take<float>(rows * line),
          .line = arena.take<float>(line),
          .keep = arena.take<float>(line + 128),
          .cap = arena.take<float>(line),
          .term = arena.take<float>(rows * line),
          .row = arena.take<float>(16 * leading(most(call.head_dim_qk, call.head_dim_v))),
          .begin = arena.take<std::int32_t>(rows),
          .end = arena.take<std::int32_t>(rows),
          .strip_begin = arena.take<std::int32_t>(rows),
          .strip_end = arena.take<std::int32_t>(rows),
          .column_begin = arena.take<std::int32_t>(keys),
          .column_end = arena.take<std::int32_t>(keys)};
}

/// Forward tasks, in parts, of one key and value head of a sequence. A task holds rows of one query head or, when these
/// are few, all rows of several heads of the group, so that keys are read once for them.
struct RowBlocks {
  Index heads = 1;   ///< query heads in a task
  Index rows = 0;    ///< rows of each of them in a task
  Index blocks = 0;  ///< of rows, for each set of heads
  Index count = 0;   ///< tasks
};
inline RowBlocks row_blocks(const ForwardPlan& plan, Index rows) {
  RowBlocks result;
  if (rows == 0 || plan.group == 0) return result;
  result.rows = least(rows, plan.block.rows);
  result.blocks = ceil_div(rows, result.rows);
  if (result.blocks == 1) result.heads = least(plan.group, plan.block.rows / rows);
  result.count = result.blocks * ceil_div(plan.group, result.heads);
  return result;
}

/// The gradient of a bias or an additive mask is as large as the term, in tiles. A task owns one tile and goes through
/// every batch index, head and row that broadcasting maps onto it: ds is computed once more, which costs two products
/// of five, and nothing is added from two threads.
struct TermTiles {
  Index batch = 1, heads = 1, row_blocks = 1, key_blocks = 1;
  bool all_batch = false, all_heads = false, all_rows = false;
  [[nodiscard]] Index count() const { return batch * heads * row_blocks * key_blocks; }
};
inline TermTiles term_tiles(const BackwardPlan& plan, const TermGradient& gradient) {
  const Attention& call = *plan.call;
  TermTiles t;
  t.all_batch = gradient.batch == 0;
  t.all_heads = gradient.head == 0;
  t.all_rows = gradient.row == 0;
  t.batch = t.all_batch ? 1 : call.batch;
  t.heads = t.all_heads ? 1 : call.heads;
  t.row_blocks = t.all_rows ? 1 : ceil_div(call.seqlen_q, plan.block.rows);
  t.key_blocks = ceil_div(call.seqlen_k, plan.block.keys);
  return t;
}

/// The last b with first[b] <= number: which sequence the numbered task belongs to.
inline Index find_sequence(const Index* first, Index batch, Index number) {
  Index low = 0;
  Index high = batch;
  while (high - low > 1) {
    const Index middle = low + (high - low) / 2;
    if (first[middle] <= number)
      low = middle;
    else
      high = middle;
  }
  return low;
}

}  // namespace
}  // namespace cynosure::cpu
