// SPDX-License-Identifier: Apache-2.0
// backends/cpu/tile_table.hpp: the tile algorithm over one page of primitives, and the sizes of its blocks.
#pragma once

#include "backends/cpu/backward_tiles.hpp"
#include "backends/cpu/table.hpp"

namespace cynosure::cpu {
namespace {

/// 256 rows by 256 keys, 128 where heads are large: at head dimension 128 rows, output, keys and values take 330 KB of
/// the second-level cache (2 MB where there are tiles), and what comes from beyond it is used for 256 rows. Against 128
/// keys, the output is loaded and stored half as often.
template <class Isa>
Blocks tile_forward_blocks(const Attention& call) {
  const Index keys = most(call.head_dim_qk, call.head_dim_v) > 128 ? 128 : 256;
  return {.rows = even_blocks(call.seqlen_q, 256, kStrip), .keys = even_blocks(call.seqlen_k, keys, kTileSteps)};
}

/// 256 by 256, 128 rows where heads are large: gradients of keys and values are loaded and stored once for 8 steps of
/// depth, those of queries too.
template <class Isa>
Blocks tile_backward_blocks(const Attention& call) {
  const Index rows = most(call.head_dim_qk, call.head_dim_v) > 128 ? 128 : 256;
  return {.rows = even_blocks(call.seqlen_q, rows, kStrip), .keys = even_blocks(call.seqlen_k, 256, kTileSteps)};
}

/// Only what the calls that tiles serve come to: see kernels.hpp.
template <class Isa>
constexpr Kernels tile_table() noexcept {
  Kernels table{};
  table.isa = Isa::kIsa;
  table.forward_blocks = tile_forward_blocks<Isa>;
  table.key_block_bytes = bytes_of_layout<key_tiles, ForwardPlan>;
  table.forward_scratch_bytes = bytes_of_layout<tile_scratch, ForwardPlan>;
  table.forward_head = forward_head<TileForwardTask<Isa>, tile_scratch>;
  table.pack_keys = pack_keys<pack_key_tiles<Isa>, key_tiles, tile_scratch>;
  table.forward_part = forward_part<TileForwardTask<Isa>, tile_scratch>;
  table.backward_blocks = tile_backward_blocks<Isa>;
  table.row_block_bytes = bytes_of_layout<row_tiles, BackwardPlan>;
  table.backward_scratch_bytes = bytes_of_layout<tile_backward_scratch, BackwardPlan>;
  table.backward_head = backward_head<TileBackwardSteps<Isa>>;
  table.prepare_part = prepare_part<TileBackwardSteps<Isa>>;
  table.backward_part = backward_part<TileBackwardSteps<Isa>>;
  table.finish_part = finish_part<TileBackwardSteps<Isa>>;
  return table;
}

}  // namespace
}  // namespace cynosure::cpu
