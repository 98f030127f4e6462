// SPDX-License-Identifier: Apache-2.0
// backends/cpu/table.hpp: the generic algorithm over one page of primitives, and the sizes of its blocks.
#pragma once

#include "backends/cpu/backward.hpp"
#include "backends/cpu/kernels.hpp"

namespace cynosure::cpu {
namespace {

/// About `target` each, all of nearly equal size: a length just above the target must not leave a sliver.
inline Index even_blocks(Index length, Index target, Index multiple) {
  const Index blocks = most(1, ceil_div(length, target));
  return most(multiple, round_up(ceil_div(length, blocks), multiple));
}

/// A window of which a block of 256 keys mostly holds all.
inline bool narrow_window(const Attention& call) {
  const Index right = call.causal ? 0 : call.window_right;
  return call.window_left >= 0 && right >= 0 && call.window_left < 128 && right < 128;
}

/// 96 rows by 128 keys, 64 where heads are large: rows, scores, output and the tiles of keys and values then take 250
/// to 400 KB, which the second-level cache of current server processors holds (512 KB and up), and each key that comes
/// from beyond it meets 96 rows. Up to 144 rows stay one block, since then keys are packed for one use and never
/// stored. Keys in multiples of 32, the widest panel.
template <class Isa>
Blocks forward_blocks(const Attention& call) {
  const Index depth = most(call.head_dim_qk, call.head_dim_v);
  const Index group_rows = call.seqlen_q * most(1, call.heads / most(1, call.kv_heads));
  // Few rows: heads of a group share a block.
  const Index rows = call.seqlen_q > kSharedRows
                         ? even_blocks(call.seqlen_q, call.seqlen_q <= 144 ? 144 : 96, Isa::kRows)
                         : round_up(most(1, least(group_rows, 96)), Isa::kRows);
  const Index keys = depth > 256 ? 64 : narrow_window(call) ? 256 : 128;
  return {.rows = rows, .keys = even_blocks(call.seqlen_k, keys, 32)};
}

/// 96 by 96: both sides are streamed past the other (dk and dv by keys, dq by rows), so neither should be small.
template <class Isa>
Blocks backward_blocks(const Attention& call) {
  return {.rows = even_blocks(call.seqlen_q, 96, 4), .keys = even_blocks(call.seqlen_k, 96, 32)};
}

/// What a layout takes: layout(plan, arena).
template <auto layout, class Plan>
std::int64_t bytes_of_layout(const Plan& plan) {
  Arena arena(nullptr);
  layout(plan, arena);
  return arena.used();
}

template <class Isa>
constexpr Kernels kernel_table() noexcept {
  return {.isa = Isa::kIsa,
          .forward_blocks = forward_blocks<Isa>,
          .backward_blocks = backward_blocks<Isa>,
          .key_block_bytes = bytes_of_layout<key_tile, ForwardPlan>,
          .forward_scratch_bytes = bytes_of_layout<forward_scratch, ForwardPlan>,
          .row_block_bytes = bytes_of_layout<row_tile, BackwardPlan>,
          .backward_scratch_bytes = bytes_of_layout<backward_scratch, BackwardPlan>,
          .forward_head = forward_head<ForwardTask<Isa>, forward_scratch>,
          .pack_keys = pack_keys<pack_key_tile<Isa>, key_tile, forward_scratch>,
          .forward_part = forward_part<ForwardTask<Isa>, forward_scratch>,
          .forward_split = forward_split<Isa>,
          .combine_splits = combine_splits<Isa>,
          .backward_head = backward_head<BackwardSteps<Isa>>,
          .prepare_part = prepare_part<BackwardSteps<Isa>>,
          .backward_part = backward_part<BackwardSteps<Isa>>,
          .finish_part = finish_part<BackwardSteps<Isa>>,
          .term_gradient = term_gradient<Isa>};
}

}  // namespace
}  // namespace cynosure::cpu
