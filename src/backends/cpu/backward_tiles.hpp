// SPDX-License-Identifier: Apache-2.0
// backends/cpu/backward_tiles.hpp: the backward pass of bfloat16 on a tile unit. Steps, tasks and the order of sums are
// those of backward.hpp.
//
// Scores and dp of a strip of 32 rows become P and dS, by rows. Two rows interleaved are what the unit takes for B, so
// the gradients of keys and values are summed transposed and nothing of size rows x keys is:
//   dV' += dO' P,   dK' += Q' dS   (dO' and Q' are packed once for all blocks of keys),   dQ += dS K
#pragma once

#include "backends/cpu/backward.hpp"
#include "backends/cpu/forward_tiles.hpp"

namespace cynosure::cpu {
namespace {

/// Rows of A are taken in pairs of tiles.
inline Index paired_tiles(Index columns) { return round_up(tile_columns(columns), 2); }

/// A packed block of rows.
struct RowTiles {
  Half *q, *dout, *q_t, *dout_t;
  float *delta, *dlse, *lse, *finite, *dq;
};
inline RowTiles row_tiles(const BackwardPlan& plan, Arena& arena) {
  const Attention& call = *plan.call;
  const Index rows = plan.block.rows;
  return {.q = arena.take<Half>(rows * tile_steps(call.head_dim_qk) * kTileSteps),
          .dout = arena.take<Half>(rows * tile_steps(call.head_dim_v) * kTileSteps),
          .q_t = arena.take<Half>(rows * paired_tiles(call.head_dim_qk) * kTileRows),
          .dout_t = arena.take<Half>(rows * paired_tiles(call.head_dim_v) * kTileRows),
          .delta = arena.take<float>(rows),
          .dlse = arena.take<float>(rows),
          .lse = arena.take<float>(rows),
          .finite = arena.take<float>(2),
          .dq = arena.take<float>(plan.slots * rows * leading(call.head_dim_qk))};
}

struct TileBackwardScratch {
  Half *keys_t, *values_t, *keys, *p_rows, *ds_rows, *p, *ds, *lines, *tiles;
  float *scores, *grads, *dk_t, *dv_t, *line, *keep, *cap, *rows;
  std::int32_t *begin, *end, *strip_begin, *strip_end;
};
inline TileBackwardScratch tile_backward_scratch(const BackwardPlan& plan, Arena& arena) {
  const Attention& call = *plan.call;
  const Index rows = plan.block.rows;
  const Index keys = plan.block.keys;
  const Index line = leading(keys);
  const Index wide = most(call.head_dim_qk, call.head_dim_v);
  return {.keys_t = arena.take<Half>(keys * tile_steps(call.head_dim_qk) * kTileSteps),
          .values_t = arena.take<Half>(keys * tile_steps(call.head_dim_v) * kTileSteps),
          .keys = arena.take<Half>(keys * round_up(call.head_dim_qk, kTileColumns)),
          .p_rows = arena.take<Half>(kStrip * leading_halves(keys)),
          .ds_rows = arena.take<Half>(kStrip * leading_halves(keys)),
          .p = arena.take<Half>(rows * keys),
          .ds = arena.take<Half>(rows * keys),
          .lines = arena.take<Half>(16 * (tile_steps(wide) + 1) * kTileSteps),
          .tiles = arena.take<Half>(rows * round_up(wide, kTileColumns)),
          .scores = arena.take<float>(kStrip * line),
          .grads = arena.take<float>(kStrip * line),
          .dk_t = arena.take<float>(paired_tiles(call.head_dim_qk) * kTileRows * line),
          .dv_t = arena.take<float>(paired_tiles(call.head_dim_v) * kTileRows * line),
          .line = arena.take<float>(line),
          .keep = arena.take<float>(line + 128),
          .cap = arena.take<float>(line),
          .rows = arena.take<float>(16 * leading(wide)),
          .begin = arena.take<std::int32_t>(rows),
          .end = arena.take<std::int32_t>(rows),
          .strip_begin = arena.take<std::int32_t>(rows),
          .strip_end = arena.take<std::int32_t>(rows)};
}

/// Rows of Y as A of Y' X: tiles [column / 16][row / 32], pairs of column tiles. True when all of it is finite.
template <class Isa, class RowOf>
bool pack_transposed_rows(Index count, Index columns, Index steps, Half* to, const TileBackwardScratch& scratch,
                          const RowOf& row) {
  const bool finite = pack_interleaved_tiles<Isa>(count, columns, steps, scratch.tiles, scratch.lines, row);
  for (Index column = 0; column < paired_tiles(columns); ++column)
    for (Index step = 0; step < tile_steps(count); ++step) {
      const Index tile = (column * steps + step) * kTileHalves;
      if (column < tile_columns(columns))
        transpose_pairs<Isa>(scratch.tiles + tile, kTileSteps, to + tile);
      else
        std::memset(to + tile, 0, kTileHalves * sizeof(Half));
    }
  return finite;
}

template <class Isa>
void prepare_row_tiles(const BackwardPlan& plan, const Sequence& sequence, Index head, Index block,
                       const RowTiles& tiles, const TileBackwardScratch& scratch) {
  const Attention& call = *plan.call;
  const BackwardInputs& in = *plan.inputs;
  const Side& side = sequence.q;
  const KeyRange rows = row_range(side, block, plan.block.rows);
  double dsink = 0;
  for (Index r = 0; r < rows.count; ++r) {
    const Index i = rows.first + r;
    if (!start_row(in, side, i, head, r, tiles)) continue;
    typename Isa::Float sum = Isa::zero();
    const char* dout = row_of(in.dout, side, i, head, call.dtype);
    const char* out = row_of(in.out, side, i, head, call.dtype);
    for (Index x = 0; x < call.head_dim_v; x += Isa::kLanes)
      sum = Isa::fma(load_part<Isa, DType::bfloat16>(dout, x, call.head_dim_v),
                     load_part<Isa, DType::bfloat16>(out, x, call.head_dim_v), sum);
    dsink += add_delta(plan, side, i, head, r, Isa::sum(sum), tiles);
  }
  keep_dsink(plan, sequence, head, block, dsink);

  const auto query = [&](Index r) -> const char* {
    return r < rows.count ? row_of(call.q, side, rows.first + r, head, call.dtype) : nullptr;
  };
  // A row that attends nothing: what came in as its gradient is ignored.
  const auto gradient = [&](Index r) -> const char* {
    if (r >= rows.count || tiles.lse[r] == -kInfinity) return nullptr;
    return row_of(in.dout, side, rows.first + r, head, call.dtype);
  };
  const Index padded = round_up(rows.count, kStrip);
  const Index steps = plan.block.rows / kTileSteps;
  pack_row_tiles(padded, call.head_dim_qk, tiles.q, query);
  pack_row_tiles(padded, call.head_dim_v, tiles.dout, gradient);
  tiles.finite[0] =
      pack_transposed_rows<Isa>(rows.count, call.head_dim_qk, steps, tiles.q_t, scratch, query) ? 1.0F : 0.0F;
  tiles.finite[1] =
      pack_transposed_rows<Isa>(rows.count, call.head_dim_v, steps, tiles.dout_t, scratch, gradient) ? 1.0F : 0.0F;
  fill<Isa>(tiles.dq, 0, plan.slots * plan.block.rows * leading(call.head_dim_qk), 0.0F);
}

template <class Isa>
class TileSplitTask {
  using Float = typename Isa::Float;

 public:
  TileSplitTask(const BackwardPlan& plan, const Sequence& sequence, Index kv_head, Index split, const RowStore& store,
                const TileBackwardScratch& scratch)
      : plan_(plan),
        call_(*plan.call),
        scratch_(scratch),
        split_(split),
        kv_head_(kv_head),
        sequence_(sequence),
        store_(store) {
    if (call_.dropout.probability > 0)
      dropout_ = dropout_key(call_.dropout.probability, call_.dropout.seed, call_.dropout.offset);
    plain_ = scaled_late(call_);
    changed_ = call_.dropout.probability > 0 || call_.softcap != 0;
  }

  void run() {
    const Index blocks = ceil_div(sequence_.k.valid, plan_.block.keys);
    for (Index block = split_; block < blocks; block += plan_.splits)
      visit(key_range(sequence_, block, plan_.block.keys));
  }

 private:
  void visit(KeyRange keys) {
    keys_ = keys;
    fill<Isa>(scratch_.dk_t, 0, paired_tiles(call_.head_dim_qk) * kTileRows * ld_, 0.0F);
    fill<Isa>(scratch_.dv_t, 0, paired_tiles(call_.head_dim_v) * kTileRows * ld_, 0.0F);
    const BlockRange range = attending_blocks(sequence_, keys, plan_.block.rows);
    if (range.begin < range.end) pack_keys();
    for (Index head = kv_head_ * plan_.group; head < (kv_head_ + 1) * plan_.group; ++head)
      for (Index block = range.begin; block < range.end; ++block) add(head, block);
    put(plan_.gradients->dk, scratch_.dk_t, call_.head_dim_qk, call_.scale);
    put(plan_.gradients->dv, scratch_.dv_t, call_.head_dim_v, 1.0F);
  }

  [[nodiscard]] Index padded_keys() const { return round_up(keys_.count, kTileSteps); }

  void pack_keys() {
    const Rows key = rows_of(call_.k, sequence_.k, keys_.first, kv_head_, call_.dtype);
    const Rows value = rows_of(call_.v, sequence_.k, keys_.first, kv_head_, call_.dtype);
    pack_transposed_tiles<Isa>(key, keys_.count, call_.head_dim_qk, scratch_.keys_t, scratch_.lines);
    pack_transposed_tiles<Isa>(value, keys_.count, call_.head_dim_v, scratch_.values_t, scratch_.lines);
    finite_ = pack_interleaved_tiles<Isa>(keys_.count, call_.head_dim_qk, plan_.block.keys / kTileSteps, scratch_.keys,
                                          scratch_.lines, rows_behind(key, keys_.count));
  }

  void add(Index head, Index block) {
    rows_ = row_range(sequence_.q, block, plan_.block.rows);
    tiles_ = row_block_of<row_tiles>(plan_, store_, sequence_, head, block);
    head_ = head;
    bool any = false;
    for (Index strip = 0; strip < rows_.count; strip += kStrip) any |= visit_strip(strip);
    if (!any) return;
    const Index steps = plan_.block.rows / kTileSteps;
    for (Index column = 0; column < padded_keys(); column += 2 * kTileColumns) {
      // Strips that meet these keys, from the first to the last: between them P and dS are cleared where nothing meets.
      Index first = steps;
      Index last = -1;
      for (Index s = 0; s < ceil_div(rows_.count, kStrip); ++s) {
        if (scratch_.strip_begin[s] >= column + 2 * kTileColumns || scratch_.strip_end[s] <= column) continue;
        first = least(first, s);
        last = s;
      }
      if (last < first) continue;
      add_columns(plan_.gradients->dv, tiles_.dout_t, call_.head_dim_v, scratch_.p, scratch_.dv_t, column, first, last,
                  tiles_.finite[1] != 0);
      add_columns(plan_.gradients->dk, tiles_.q_t, call_.head_dim_qk, scratch_.ds, scratch_.dk_t, column, first, last,
                  tiles_.finite[0] != 0);
    }
  }

  /// The gradient of 32 keys (or values), transposed, from strips first to last.
  void add_columns(const Output& wanted, const Half* rows_t, Index dim, const Half* pairs, float* sum, Index column,
                   Index first, Index last, bool finite) {
    if (wanted.data == nullptr) return;
    const Index steps = plan_.block.rows / kTileSteps;
    if (!finite) return add_carefully(rows_t, dim, pairs, sum, column, first, last);
    multiply<Isa>(unit_, {.rows = paired_tiles(dim),
                          .columns = 2,
                          .steps = last - first + 1,
                          .a = {.data = rows_t + first * kTileHalves, .next = steps * kTileHalves},
                          .b = {.data = pairs + (column / kTileColumns * steps + first) * kTileHalves,
                                .next = steps * kTileHalves},
                          .c = sum + column,
                          .ldc = ld_,
                          .sum = true});
  }

  void add_carefully(const Half* rows_t, Index dim, const Half* pairs, float* sum, Index column, Index first,
                     Index last) {
    const Index steps = plan_.block.rows / kTileSteps;
    for (Index j = column; j < column + 2 * kTileColumns; ++j)
      for (Index r = first * kStrip; r < (last + 1) * kStrip; ++r) {
        const float p = interleaved_element(pairs, steps, r, j);
        if (p == 0) continue;
        for (Index x = 0; x < dim; ++x) {
          const Half y = rows_t[(x / kTileRows * steps + r / kTileSteps) * kTileHalves + x % kTileRows * kTileSteps +
                                r % kTileSteps];
          sum[x * ld_ + j] += p * from_bfloat16(y);
        }
      }
  }

  bool visit_strip(Index strip) {
    const Columns columns = set_columns(strip);
    const Index s = strip / kStrip;
    scratch_.strip_begin[s] = columns.begin;
    scratch_.strip_end[s] = columns.end;
    if (!columns.empty()) {
      score(strip, columns);
      for (Index r = strip; r < strip + kStrip; ++r) differentiate(r, r - strip, columns);
      add_to_queries(strip, columns);
    }
    store_pairs(s, columns, scratch_.p_rows, scratch_.p);
    store_pairs(s, columns, scratch_.ds_rows, scratch_.ds);
    return !columns.empty();
  }

  /// Columns that the rows of a strip attend, each, and together in whole steps.
  Columns set_columns(Index strip) {
    Columns all;
    for (Index r = strip; r < strip + kStrip; ++r) {
      Columns columns;
      const Index i = rows_.first + r;
      if (r < rows_.count && tiles_.lse[r] != -kInfinity) columns = columns_of(sequence_, i, keys_);
      if (call_.mask.data != nullptr && !columns.empty() && masked_out(call_.mask, sequence_, keys_, head_, i, columns))
        columns = {};
      scratch_.begin[r] = columns.begin;
      scratch_.end[r] = columns.end;
      if (columns.empty()) continue;
      if (all.empty() || columns.begin < all.begin) all.begin = columns.begin;
      if (columns.end > all.end) all.end = columns.end;
    }
    all.begin = static_cast<std::int32_t>(all.begin / kTileSteps * kTileSteps);
    all.end = static_cast<std::int32_t>(round_up(all.end, kTileSteps));
    return all;
  }

  /// Q K' and dO V' of a strip.
  void score(Index strip, Columns columns) {
    const auto product = [&](const Half* rows, const Half* keys, Index dim, float* to) {
      const Index steps = tile_steps(dim);
      multiply<Isa>(unit_, {.rows = 2,
                            .columns = (columns.end - columns.begin) / kTileColumns,
                            .steps = steps,
                            .a = {.data = rows + strip * steps * kTileSteps, .next = steps * kTileHalves},
                            .b = {.data = keys + columns.begin * steps * kTileSteps, .next = steps * kTileHalves},
                            .c = to + columns.begin,
                            .ldc = ld_});
    };
    product(tiles_.q, scratch_.keys_t, call_.head_dim_qk, scratch_.scores);
    product(tiles_.dout, scratch_.values_t, call_.head_dim_v, scratch_.grads);
  }

  /// Row r of the block, `line` of the strip: P (after dropout) and dS, rounded, with zeros beside what it attends.
  void differentiate(Index r, Index line, Columns strip) {
    constexpr Index lanes = Isa::kLanes;
    const Columns columns{scratch_.begin[r], scratch_.end[r]};
    Half* p = scratch_.p_rows + line * ld_halves_;
    Half* ds = scratch_.ds_rows + line * ld_halves_;
    if (columns.empty()) {
      clear(p, strip.begin, strip.end);
      clear(ds, strip.begin, strip.end);
      return;
    }
    const Index i = rows_.first + r;
    float* s = scratch_.scores + line * ld_;
    const float* g = scratch_.grads + line * ld_;
    Row row{.begin = columns.begin / lanes * lanes, .end = round_up(columns.end, lanes), .scale = call_.scale};
    if (!plain_) {
      for (Index x = columns.begin; x < columns.end; x += lanes)
        Isa::store(s + x, Isa::mul(Isa::load(s + x), Isa::set(call_.scale)));
      make_scores<Isa>(call_, sequence_, keys_, head_, i, columns, s, scratch_.line, scratch_.cap);
      row.scale = 1;
    }
    if (call_.dropout.probability > 0)
      keep_factors<Isa>(dropout_, sequence_.b * call_.heads + head_, i, keys_,
                        {static_cast<std::int32_t>(row.begin), static_cast<std::int32_t>(row.end)}, scratch_.keep);
    row.lse = tiles_.lse[r];
    if (row.lse != row.lse) {  // the row attends a NaN: all its pairs are NaN, if not masked
      for (Index x = columns.begin; x < columns.end; ++x)
        if (s[x] != -kInfinity) s[x] = row.lse;
      row.lse = 0;
    }
    for (Index x = row.begin; x < columns.begin; ++x) s[x] = -kInfinity;
    for (Index x = columns.end; x < row.end; ++x) s[x] = -kInfinity;
    const bool whole = sequence_.begin(i) >= keys_.first && sequence_.end(i) <= keys_.first + keys_.count;
    if (whole && changed_)
      differentiate_whole<true>(row, r, s, g, p, ds);
    else if (whole)
      differentiate_whole<false>(row, r, s, g, p, ds);
    else if (changed_)
      differentiate_part<true>(row, r, s, g, p, ds);
    else
      differentiate_part<false>(row, r, s, g, p, ds);
    for (Half* to : {p, ds}) {
      clear(to, strip.begin, row.begin);
      clear(to, row.end, strip.end);
    }
  }

  struct Row {
    Index begin = 0, end = 0;  ///< whole vectors
    float scale = 1;           ///< still to be applied to the scores; positive
    float lse = 0;
  };

  /// function(x, exp(scale s - lse)) for each vector.
  template <class Function>
  static void for_exponentials(const Row& row, const float* s, const Function& function) {
    const Float scale = Isa::set(row.scale * kLog2E);
    const Float shift = Isa::set(-row.lse * kLog2E);
    for_vectors<Isa>(row.begin, row.end, [&](Index x, auto together) {
      constexpr int count = decltype(together)::value;
      Float p[count];
      for (int i = 0; i < count; ++i)
        p[i] = Isa::exp2(Isa::min(Isa::set(126.0F), Isa::fma(Isa::load(s + x + i * Isa::kLanes), scale, shift)));
      for (int i = 0; i < count; ++i) function(x + i * Isa::kLanes, p[i]);
    });
  }

  /// kChanged: dropout or a cap.

  /// dp, through dropout.
  template <bool kChanged>
  [[nodiscard]] Float kept(const float* g, Index x) const {
    const Float dp = Isa::load(g + x);
    if (!kChanged || call_.dropout.probability <= 0) return dp;
    const Float keep = Isa::load(scratch_.keep + x);
    return Isa::select(Isa::is_zero(keep), keep, Isa::mul(dp, keep));
  }

  /// `change`: dp - delta.
  template <bool kChanged>
  void store_pair(Index x, Float e, Float change, Half* p, Half* ds) const {
    Float gradient = Isa::mul(e, change);
    if (kChanged && call_.softcap != 0) gradient = Isa::mul(gradient, Isa::load(scratch_.cap + x));
    Isa::round_to_bfloat16(ds + x, Isa::select(Isa::is_zero(e), e, gradient));
    const bool dropped = kChanged && call_.dropout.probability > 0;
    Isa::round_to_bfloat16(p + x, dropped ? Isa::mul(e, Isa::load(scratch_.keep + x)) : e);
  }

  template <bool kChanged>
  void differentiate_part(const Row& row, Index r, const float* s, const float* g, Half* p, Half* ds) const {
    const Float delta = Isa::set(tiles_.delta[r]);
    for_exponentials(
        row, s, [&](Index x, Float e) { store_pair<kChanged>(x, e, Isa::sub(kept<kChanged>(g, x), delta), p, ds); });
  }

  /// A row whose keys are all here: see backward.hpp.
  template <bool kChanged>
  void differentiate_whole(const Row& row, Index r, float* s, const float* g, Half* p, Half* ds) const {
    Float sum = Isa::zero();
    Float product = Isa::zero();
    for_exponentials(row, s, [&](Index x, Float e) {
      sum = Isa::add(sum, e);
      product = Isa::add(product, Isa::select(Isa::is_zero(e), e, Isa::mul(e, kept<kChanged>(g, x))));
      Isa::store(s + x, e);
    });
    const float sink = call_.sinks.data == nullptr ? -kInfinity : sink_of(call_.sinks, head_);
    const float total = Isa::sum(sum) + (sink == -kInfinity ? 0.0F : __builtin_expf(sink - row.lse));
    const Float delta = Isa::set(Isa::sum(product) / total);
    const Float dlse = Isa::set(tiles_.dlse[r]);
    const Float share = Isa::set(1.0F / total);
    for (Index x = row.begin; x < row.end; x += Isa::kLanes) {
      const Float e = Isa::load(s + x);
      store_pair<kChanged>(x, Isa::select(Isa::is_zero(e), e, Isa::mul(e, share)),
                           Isa::add(Isa::sub(kept<kChanged>(g, x), delta), dlse), p, ds);
    }
  }

  /// A strip of rows, interleaved, to where the products of all strips take it; zeros beside `columns`.
  void store_pairs(Index strip, Columns columns, const Half* rows, Half* to) const {
    const Index steps = plan_.block.rows / kTileSteps;
    for (Index column = 0; column < padded_keys(); column += kTileColumns) {
      Half* tile = to + (column / kTileColumns * steps + strip) * kTileHalves;
      if (column < columns.begin || column >= columns.end) {
        std::memset(tile, 0, kTileHalves * sizeof(Half));
        continue;
      }
      for (Index r = 0; r < kStrip; r += 2, tile += kTileSteps)
        for (Index x = 0; x < kTileColumns; x += Isa::kLanes)
          Isa::interleave(rows + r * ld_halves_ + column + x, rows + (r + 1) * ld_halves_ + column + x, tile + 2 * x);
    }
  }

  void add_to_queries(Index strip, Columns columns) {
    if (plan_.gradients->dq.data == nullptr) return;
    const Index slot = keys_.first / plan_.block.keys % plan_.slots;
    const Index ld = leading(call_.head_dim_qk);
    float* dq = tiles_.dq + (slot * plan_.block.rows + strip) * ld;
    const Index steps = plan_.block.keys / kTileSteps;
    if (!finite_)
      return multiply_carefully(scratch_.ds_rows, ld_halves_, kStrip, columns.begin, columns.end, scratch_.keys, steps,
                                call_.head_dim_qk, dq, ld);
    multiply<Isa>(unit_,
                  {.rows = 2,
                   .columns = tile_columns(call_.head_dim_qk),
                   .steps = (columns.end - columns.begin) / kTileSteps,
                   .a = {.data = scratch_.ds_rows + columns.begin,
                         .next = kTileRows * ld_halves_,
                         .step = kTileSteps,
                         .stride = ld_halves_},
                   .b = {.data = scratch_.keys + columns.begin / kTileSteps * kTileHalves, .next = steps * kTileHalves},
                   .c = dq,
                   .ldc = ld,
                   .sum = true});
  }

  static void clear(Half* p, Index begin, Index end) {
    if (begin < end) std::memset(p + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(Half));
  }

  /// Transposed sums to the user's rows.
  void put(const Output& gradient, const float* sum, Index dim, float scale) {
    if (gradient.data == nullptr) return;
    const Index ld = leading(dim);
    for (Index first = 0; first < keys_.count; first += 16) {
      for (Index x = 0; x < dim; x += Isa::kLanes)
        for (Index j = 0; j < 16; j += Isa::kLanes)
          Isa::transpose(sum + x * ld_ + first + j, ld_, scratch_.rows + j * ld + x, ld);
      for (Index j = first; j < least(first + 16, keys_.count); ++j)
        store_row<Isa>(call_.dtype, scratch_.rows + (j - first) * ld, dim, scale,
                       row_of(gradient, sequence_.k, keys_.first + j, kv_head_, call_.dtype));
    }
  }

  const BackwardPlan& plan_;
  const Attention& call_;
  TileBackwardScratch scratch_;
  Index split_, kv_head_;
  Sequence sequence_;
  RowStore store_;
  KeyRange keys_, rows_;
  RowTiles tiles_{};
  Index head_ = 0;
  bool finite_ = true, plain_ = false, changed_ = false;
  DropoutKey dropout_;
  Index ld_ = leading(plan_.block.keys);
  Index ld_halves_ = leading_halves(plan_.block.keys);
  typename Isa::Tiles unit_;
};

/// Steps and tasks are those of backward.hpp.
template <class Isa>
struct TileBackwardSteps {
  using Split = TileSplitTask<Isa>;
  static constexpr auto layout = row_tiles;
  static constexpr auto scratch_of = tile_backward_scratch;
  static constexpr auto prepare = prepare_row_tiles<Isa>;
  static constexpr auto finish = finish_rows<Isa>;
};

}  // namespace
}  // namespace cynosure::cpu
