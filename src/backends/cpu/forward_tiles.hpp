// SPDX-License-Identifier: Apache-2.0
// backends/cpu/forward_tiles.hpp: the forward pass of bfloat16 on a tile unit.
//
// As forward.hpp: a block of rows against all its blocks of keys. Inside a block, strips of 32 rows go through scores,
// softmax and P V one after the other, so that scores (32 x 256 floats, 32 KB) and probabilities stay close to the
// first-level cache between the unit and the vectors.
//
// The exponentials refer to a running maximum that follows the true one only when it would be exceeded by more than
// kSlack: probabilities are then at most 2^kSlack, which neither bfloat16 nor the float32 sums mind, and the output is
// rescaled in the first blocks only. Exponents are of 2: the factor log2(e) is part of the scale.
#pragma once

#include "backends/cpu/forward.hpp"
#include "backends/cpu/tiles.hpp"

namespace cynosure::cpu {
namespace {

constexpr Index kStrip = 2 * kTileRows;
constexpr float kSlack = 12;
constexpr float kLog2E = 1.44269504F;

/// A packed block of keys.
struct KeyTiles {
  Half *keys, *values;
  float* finite;
};
inline KeyTiles key_tiles(const ForwardPlan& plan, Arena& arena) {
  const Attention& call = *plan.call;
  const Index keys = plan.block.keys;
  return {.keys = arena.take<Half>(keys * tile_steps(call.head_dim_qk) * kTileSteps),
          .values = arena.take<Half>(keys * round_up(call.head_dim_v, kTileColumns)),
          .finite = arena.take<float>(1)};
}

/// Whether the scale can be applied with the exponential. Whatever changes scores needs them scaled before, and where
/// columns are filled up with -inf the scale must be positive.
inline bool scaled_late(const Attention& call) {
  return call.softcap == 0 && call.bias.data == nullptr && call.additive_mask.data == nullptr &&
         call.mask.data == nullptr && call.alibi.data == nullptr && call.scale > 0;
}

struct TileScratch {
  Half *q, *lines, *probabilities;
  float *scores, *out, *reference, *line, *keep;
  float* sum;  ///< a vector for each row: its lanes are added up at the end
  std::int32_t *begin, *end;
};
/// Of rows of probabilities, in halves: whole vectors may be written behind the last column.
inline Index leading_halves(Index columns) { return leading(columns / 2) * 2; }
inline TileScratch tile_scratch(const ForwardPlan& plan, Arena& arena) {
  const Attention& call = *plan.call;
  const Index rows = plan.block.rows;
  const Index line = leading(plan.block.keys);
  const Index depth = tile_steps(call.head_dim_qk) * kTileSteps;
  return {.q = arena.take<Half>(rows * depth),
          .lines = arena.take<Half>(16 * (most(depth, round_up(call.head_dim_v, kTileColumns)) + kTileSteps)),
          .probabilities = arena.take<Half>(kStrip * leading_halves(plan.block.keys)),
          .scores = arena.take<float>(kStrip * line),
          .out = arena.take<float>(rows * leading(call.head_dim_v)),
          .reference = arena.take<float>(rows),
          .line = arena.take<float>(line),
          .keep = arena.take<float>(line + 128),
          .sum = arena.take<float>(rows * 16),
          .begin = arena.take<std::int32_t>(rows),
          .end = arena.take<std::int32_t>(rows)};
}

template <class Isa>
void pack_key_tiles(const ForwardPlan& plan, const Sequence& sequence, Index kv_head, KeyRange keys,
                    const KeyTiles& tiles, const TileScratch& scratch) {
  const Attention& call = *plan.call;
  pack_transposed_tiles<Isa>(rows_of(call.k, sequence.k, keys.first, kv_head, call.dtype), keys.count, call.head_dim_qk,
                             tiles.keys, scratch.lines);
  const Rows values = rows_of(call.v, sequence.k, keys.first, kv_head, call.dtype);
  const bool finite = pack_interleaved_tiles<Isa>(keys.count, call.head_dim_v, plan.block.keys / kTileSteps,
                                                  tiles.values, scratch.lines, rows_behind(values, keys.count));
  *tiles.finite = finite ? 1.0F : 0.0F;
}

/// Columns of `count` consecutive rows from row i where all attend all keys; most strips, so rows are not asked one by
/// one. Neither end of a row's range decreases from row to row.
inline bool all_attend_all(const Sequence& sequence, Index i, Index count, KeyRange keys) {
  return sequence.begin(i + count - 1) <= keys.first && sequence.end(i) >= keys.first + keys.count;
}

template <class Isa>
class TileForwardTask {
 public:
  TileForwardTask(const ForwardPlan& plan, const Sequence& sequence, Index kv_head, Index task, const KeyStore& store,
                  const TileScratch& scratch)
      : plan_(plan), call_(*plan.call), scratch_(scratch), sequence_(sequence), kv_head_(kv_head), store_(store) {
    const RowBlocks blocks = row_blocks(plan, sequence_.q.valid);
    const Index block = blocks.blocks - 1 - task % blocks.blocks;  // the last rows first, as in forward.hpp
    const Index head = task / blocks.blocks * blocks.heads;
    rows_ = {.head = kv_head_ * plan.group + head,
             .heads = least(blocks.heads, plan.group - head),
             .row = block * blocks.rows,
             .rows = least(blocks.rows, sequence_.q.valid - block * blocks.rows)};
    if (call_.dropout.probability > 0)
      dropout_ = dropout_key(call_.dropout.probability, call_.dropout.seed, call_.dropout.offset);
    plain_ = scaled_late(call_);
    late_scale_ = kLog2E * (plain_ ? call_.scale : 1.0F);
  }

  void run() {
    start();
    const Index last = rows_.row + rows_.rows - 1;
    const Index size = plan_.block.keys;
    const Index end = ceil_div(sequence_.k.valid, size);
    for (Index block = sequence_.begin(rows_.row) / size; block < end && block * size < sequence_.end(last); ++block)
      visit(block, key_range(sequence_, block, size));
    finish();
  }

 private:
  [[nodiscard]] Index padded_rows() const { return round_up(rows_.count(), kStrip); }

  void start() {
    pack_row_tiles(padded_rows(), call_.head_dim_qk, scratch_.q, [&](Index r) {
      return r < rows_.count() ? row_of(call_.q, sequence_.q, rows_.row_of(r), rows_.head_of(r), call_.dtype) : nullptr;
    });
    for (Index r = 0; r < padded_rows(); ++r) {
      fill<Isa>(scratch_.out + r * ld_out_, 0, round_up(call_.head_dim_v, kTileColumns), 0.0F);
      scratch_.reference[r] = -kInfinity;
      Isa::store(scratch_.sum + r * Isa::kLanes, Isa::zero());
    }
  }

  KeyTiles keys_of(Index block, KeyRange keys) {
    const Index slot = store_.slots == 1 ? 0 : block;
    Arena memory(store_.memory + slot * plan_.key_block_bytes);
    const KeyTiles tiles = key_tiles(plan_, memory);
    if (store_.slots == 1 || (store_.slots != 0 && store_.packed[slot] == 0)) {
      pack_key_tiles<Isa>(plan_, sequence_, kv_head_, keys, tiles, scratch_);
      if (store_.slots != 1) store_.packed[slot] = 1;
    }
    return tiles;
  }

  /// Columns that the rows of a strip attend, each and together.
  Columns set_columns(Index strip, KeyRange keys) {
    Columns all;
    if (rows_.heads == 1 && call_.mask.data == nullptr && strip + kStrip <= rows_.count() &&
        all_attend_all(sequence_, rows_.row + strip, kStrip, keys)) {
      all.end = static_cast<std::int32_t>(keys.count);
      for (Index r = strip; r < strip + kStrip; ++r) scratch_.begin[r] = 0, scratch_.end[r] = all.end;
      return all;
    }
    for (Index r = strip; r < strip + kStrip; ++r) {
      Columns columns;
      if (r < rows_.count()) columns = columns_of(sequence_, rows_.row_of(r), keys);
      if (call_.mask.data != nullptr && !columns.empty() &&
          masked_out(call_.mask, sequence_, keys, rows_.head_of(r), rows_.row_of(r), columns))
        columns = {};
      scratch_.begin[r] = columns.begin;
      scratch_.end[r] = columns.end;
      if (columns.empty()) continue;
      if (all.empty() || columns.begin < all.begin) all.begin = columns.begin;
      if (columns.end > all.end) all.end = columns.end;
    }
    return all;
  }

  void visit(Index block, KeyRange keys) {
    KeyTiles tiles{};
    for (Index strip = 0; strip < rows_.count(); strip += kStrip) {
      Columns columns = set_columns(strip, keys);
      if (columns.empty()) continue;
      if (tiles.keys == nullptr) tiles = keys_of(block, keys);
      columns.begin = static_cast<std::int32_t>(columns.begin / kTileSteps * kTileSteps);
      columns.end = static_cast<std::int32_t>(round_up(columns.end, kTileSteps));
      visit(strip, columns, keys, tiles);
    }
  }

  void visit(Index strip, Columns columns, KeyRange keys, const KeyTiles& tiles) {
    const Index depth = tile_steps(call_.head_dim_qk);
    multiply<Isa>(unit_, {.rows = 2,
                          .columns = (columns.end - columns.begin) / kTileColumns,
                          .steps = depth,
                          .a = {.data = scratch_.q + strip * depth * kTileSteps, .next = depth * kTileHalves},
                          .b = {.data = tiles.keys + columns.begin * depth * kTileSteps, .next = depth * kTileHalves},
                          .c = scratch_.scores + columns.begin,
                          .ldc = ld_scores_});
    soften(strip, columns, keys);
    const Index steps = plan_.block.keys / kTileSteps;
    if (*tiles.finite == 0)
      return multiply_carefully(scratch_.probabilities, ld_probabilities_, kStrip, columns.begin, columns.end,
                                tiles.values, steps, call_.head_dim_v, scratch_.out + strip * ld_out_, ld_out_);
    multiply<Isa>(unit_,
                  {.rows = 2,
                   .columns = tile_columns(call_.head_dim_v),
                   .steps = (columns.end - columns.begin) / kTileSteps,
                   .a = {.data = scratch_.probabilities + columns.begin,
                         .next = kTileRows * ld_probabilities_,
                         .step = kTileSteps,
                         .stride = ld_probabilities_},
                   .b = {.data = tiles.values + columns.begin / kTileSteps * kTileHalves, .next = steps * kTileHalves},
                   .c = scratch_.out + strip * ld_out_,
                   .ldc = ld_out_,
                   .sum = true});
  }

  /// Rows of q k^T become probabilities. First the references of all rows, then all exponentials: a row waits for its
  /// own maximum, but not for another's.
  void soften(Index strip, Columns columns, KeyRange keys) {
    for (Index r = strip; r < strip + kStrip; ++r)
      if (scratch_.begin[r] < scratch_.end[r]) prepare(r, scratch_.scores + (r - strip) * ld_scores_, keys);
    for (Index r = strip; r < strip + kStrip; ++r) {
      const float* s = scratch_.scores + (r - strip) * ld_scores_;
      Half* p = scratch_.probabilities + (r - strip) * ld_probabilities_;
      const Columns whole = whole_vectors(r);
      if (whole.empty()) {
        clear(p, columns.begin, columns.end);
        continue;
      }
      if (call_.dropout.probability > 0) {
        keep_factors<Isa>(dropout_, sequence_.b * call_.heads + rows_.head_of(r), rows_.row_of(r), keys, whole,
                          scratch_.keep);
        exponentiate<true>(r, whole, s, p);
      } else {
        exponentiate<false>(r, whole, s, p);
      }
      clear(p, columns.begin, whole.begin);
      clear(p, whole.end, columns.end);
    }
  }

  /// Columns of a row in whole vectors, which agree with those of the tiles.
  [[nodiscard]] Columns whole_vectors(Index r) const {
    constexpr Index lanes = Isa::kLanes;
    if (scratch_.begin[r] >= scratch_.end[r]) return {};
    return {static_cast<std::int32_t>(scratch_.begin[r] / lanes * lanes),
            static_cast<std::int32_t>(round_up(scratch_.end[r], lanes))};
  }

  /// Scores as they should be, up to the scale if that comes late, and a reference for them.
  void prepare(Index r, float* s, KeyRange keys) {
    const Columns columns{scratch_.begin[r], scratch_.end[r]};
    if (!plain_) {
      for (Index x = columns.begin; x < columns.end; x += Isa::kLanes)
        Isa::store(s + x, Isa::mul(Isa::load(s + x), Isa::set(call_.scale)));
      make_scores<Isa>(call_, sequence_, keys, rows_.head_of(r), rows_.row_of(r), columns, s, scratch_.line, nullptr);
    }
    const Columns whole = whole_vectors(r);
    for (Index x = whole.begin; x < columns.begin; ++x) s[x] = -kInfinity;
    for (Index x = columns.end; x < whole.end; ++x) s[x] = -kInfinity;
    refer(r, largest(s, whole.begin, whole.end) * late_scale_);
  }

  template <bool kDrop>
  void exponentiate(Index r, Columns whole, const float* s, Half* p) {
    using Float = typename Isa::Float;
    constexpr Index lanes = Isa::kLanes;
    const float reference = scratch_.reference[r];
    const Float shift = Isa::set(reference == -kInfinity ? 0.0F : -reference);
    const Float factor = Isa::set(late_scale_);
    const float* keep = scratch_.keep;
    float* sum = scratch_.sum + r * lanes;
    Float total = Isa::load(sum);
    for_vectors<Isa>(whole.begin, whole.end, [&](Index x, auto together) {
      constexpr int count = decltype(together)::value;
      Float e[count];
      for (int i = 0; i < count; ++i) e[i] = Isa::exp2(Isa::fma(Isa::load(s + x + i * lanes), factor, shift));
      for (int i = 0; i < count; ++i) {
        total = Isa::add(total, e[i]);
        if constexpr (kDrop) e[i] = Isa::mul(e[i], Isa::load(keep + x + i * lanes));
        Isa::round_to_bfloat16(p + x + i * lanes, e[i]);
      }
    });
    Isa::store(sum, total);
  }

  static float largest(const float* s, Index begin, Index end) {
    auto m0 = Isa::load(s + begin);
    auto m1 = m0;
    Index x = begin + Isa::kLanes;
    for (; x + Isa::kLanes < end; x += 2 * Isa::kLanes) {
      m0 = Isa::max(m0, Isa::load(s + x));
      m1 = Isa::max(m1, Isa::load(s + x + Isa::kLanes));
    }
    if (x < end) m0 = Isa::max(m0, Isa::load(s + x));
    return Isa::largest(Isa::max(m0, m1));
  }

  /// Lets the reference of the row follow its maximum.
  void refer(Index r, float maximum) {
    const float before = scratch_.reference[r];
    if (!(maximum > before + kSlack)) return;
    scratch_.reference[r] = maximum;
    if (before == -kInfinity) return;  // nothing was summed, or NaN, which stays
    const float rescale = __builtin_exp2f(before - maximum);
    float* sum = scratch_.sum + r * Isa::kLanes;
    Isa::store(sum, Isa::mul(Isa::load(sum), Isa::set(rescale)));
    float* out = scratch_.out + r * ld_out_;
    for (Index x = 0; x < call_.head_dim_v; x += Isa::kLanes)
      Isa::store(out + x, Isa::mul(Isa::load(out + x), Isa::set(rescale)));
  }

  static void clear(Half* p, Index begin, Index end) {
    if (begin < end) std::memset(p + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(Half));
  }

  void finish() {
    for (Index r = 0; r < rows_.count(); ++r)
      finish_row<Isa>(plan_, sequence_, rows_.head_of(r), rows_.row_of(r), scratch_.reference[r] / kLog2E,
                      Isa::sum(Isa::load(scratch_.sum + r * Isa::kLanes)), scratch_.out + r * ld_out_);
  }

  const ForwardPlan& plan_;
  const Attention& call_;
  TileScratch scratch_;
  Sequence sequence_;
  Index kv_head_;
  KeyStore store_;
  TaskRows rows_;
  DropoutKey dropout_;
  bool plain_ = false;
  float late_scale_ = 1;
  Index ld_scores_ = leading(plan_.block.keys);
  Index ld_probabilities_ = leading_halves(plan_.block.keys);
  Index ld_out_ = leading(call_.head_dim_v);
  typename Isa::Tiles unit_;
};

}  // namespace
}  // namespace cynosure::cpu
