// SPDX-License-Identifier: Apache-2.0
// backends/cpu/forward.hpp: the forward pass, a block of rows against all its blocks of keys, by online softmax.
#pragma once

#include "backends/cpu/plan.hpp"
#include "backends/cpu/score.hpp"
#include "backends/cpu/tile.hpp"

namespace cynosure::cpu {
namespace {

/// Rows of a tensor, converted, into to[row][column]. True when all of it is finite.
template <class Isa>
bool pack_rows(const Rows& rows, Index count, Index columns, float scale, float* to, Index ld) {
  Finite<Isa> finite;
  with_dtype(rows.dtype, [&](auto typed) {
    const char* row = rows.data;
    for (Index r = 0; r < count; ++r, row += rows.stride * bytes_of(typed()))
      for (Index x = 0; x < columns; x += Isa::kLanes) {
        const auto value = Isa::mul(Isa::set(scale), load_part<Isa, typed()>(row, x, columns));
        finite.see(value);
        Isa::store(to + r * ld + x, value);
      }
  });
  return finite.all();
}

/// The same in contiguous panels: see Panels.
template <class Isa>
bool pack_panels(const Rows& rows, Index count, Index columns, float* to, Index panel) {
  constexpr Index width = kPanel<Isa>;
  Finite<Isa> finite;
  with_dtype(rows.dtype, [&](auto typed) {
    const char* row = rows.data;
    for (Index r = 0; r < count; ++r, row += rows.stride * bytes_of(typed()))
      for (Index first = 0; first < columns; first += width)
        for (Index x = first; x < least(first + width, columns); x += Isa::kLanes) {
          const auto value = load_part<Isa, typed()>(row, x, columns);
          finite.see(value);
          Isa::store(to + first / width * panel + r * width + x - first, value);
        }
  });
  return finite.all();
}

template <class Isa>
bool all_finite(const Rows& rows, Index begin, Index end, Index columns) {
  Finite<Isa> finite;
  const char* row = rows.data + begin * rows.stride * 4;
  for (Index r = begin; r < end; ++r, row += rows.stride * 4)
    for (Index x = 0; x < columns; x += Isa::kLanes) finite.see(load_part<Isa, DType::float32>(row, x, columns));
  return finite.all();
}

/// Transposed, in contiguous panels of rows, with zeros for the rows up to a whole panel. `lines`: scratch.
template <class Isa>
void pack_transposed(const Rows& rows, Index count, Index columns, float* to, Index panel, float* lines) {
  constexpr Index lanes = Isa::kLanes;
  constexpr Index width = kPanel<Isa>;
  const Index line = leading(columns);
  with_dtype(rows.dtype, [&](auto typed) {
    const bool in_place = typed() == DType::float32 && reinterpret_cast<std::uintptr_t>(rows.data) % 4 == 0;
    for (Index r = 0; r < round_up(count, width); r += lanes) {
      const char* first = rows.data + r * rows.stride * bytes_of(typed());
      float* panel_of_r = to + r / width * panel + r % width;
      // Whole squares of floats are taken where they lie.
      Index x = 0;
      if (in_place && r + lanes <= count)
        for (; x + lanes <= columns; x += lanes)
          Isa::transpose(reinterpret_cast<const float*>(first) + x, rows.stride, panel_of_r + x * width, width);
      if (x >= columns) continue;
      for (Index i = 0; i < lanes; ++i)
        for (Index y = x; y < columns; y += lanes)
          Isa::store(lines + i * line + y,
                     r + i < count ? load_part<Isa, typed()>(first + i * rows.stride * bytes_of(typed()), y, columns)
                                   : Isa::zero());
      for (; x < columns; x += lanes) Isa::transpose(lines + x, line, panel_of_r + x * width, width);
    }
  });
}

/// Floats from one panel of transposed rows to the next: transposition writes whole vectors of columns.
template <class Isa>
Index transposed_panel(Index columns) {
  return round_up(columns, Isa::kLanes) * kPanel<Isa>;
}

template <class Isa>
void pack_key_tile(const ForwardPlan& plan, const Sequence& sequence, Index kv_head, KeyRange keys, const KeyTile& tile,
                   const ForwardScratch& scratch) {
  const Attention& call = *plan.call;
  pack_transposed<Isa>(rows_of(call.k, sequence.k, keys.first, kv_head, call.dtype), keys.count, call.head_dim_qk,
                       tile.keys, transposed_panel<Isa>(call.head_dim_qk), scratch.row);
  const bool finite = pack_panels<Isa>(rows_of(call.v, sequence.k, keys.first, kv_head, call.dtype), keys.count,
                                       call.head_dim_v, tile.values, plan.block.keys * kPanel<Isa>);
  *tile.finite = finite ? 1.0F : 0.0F;
}

inline KeyRange key_range(const Sequence& sequence, Index block, Index size) {
  return {.first = block * size, .count = least(size, sequence.k.valid - block * size)};
}

/// In parts: a task packs one block of keys of one head. pack: pack_key_tile, or its twin for tiles; tile_of and
/// scratch_of: its layouts.
template <auto pack, auto tile_of, auto scratch_of>
void pack_keys(const ForwardPlan& plan, Index task, char* scratch) {
  const Attention& call = *plan.call;
  const Index b = find_sequence(plan.first_key_block, call.batch, task / call.kv_heads);
  const Sequence s = sequence(call, b);
  Arena arena(scratch);
  Arena packed(plan.keys + task * plan.key_block_bytes);
  const Index local = task - plan.first_key_block[b] * call.kv_heads;
  const Index blocks = ceil_div(s.k.valid, plan.block.keys);
  const KeyRange keys = key_range(s, local % blocks, plan.block.keys);
  pack(plan, s, local / blocks, keys, tile_of(plan, packed), scratch_of(plan, arena));
}

/// Where packed blocks of keys of one head are. By heads they are packed when first needed, into one slot each or, when
/// a single block of rows comes by, all into the same.
struct KeyStore {
  char* memory = nullptr;
  Index slots = 0;                  ///< 0: all are there already
  unsigned char* packed = nullptr;  ///< a flag for each slot, when there are several
};

/// The rows of a task: `heads` query heads from `head`, `rows` rows of each from `row`.
struct TaskRows {
  Index head = 0, heads = 0, row = 0, rows = 0;
  [[nodiscard]] Index count() const { return heads * rows; }
  [[nodiscard]] Index head_of(Index r) const { return heads == 1 ? head : head + r / rows; }
  [[nodiscard]] Index row_of(Index r) const { return heads == 1 ? row + r : row + r % rows; }
};

/// The largest score of a row, at least `maximum`. Behind `columns` the row becomes -inf up to a whole vector.
template <class Isa>
float largest_score(float* s, Columns columns, float maximum) {
  constexpr Index lanes = Isa::kLanes;
  const Index end = columns.begin + round_up(columns.end - columns.begin, lanes);
  for (Index x = columns.end; x < end; ++x) s[x] = -kInfinity;
  auto m0 = Isa::set(maximum);
  auto m1 = m0;
  Index x = columns.begin;
  for (; x + lanes < end; x += 2 * lanes) {
    m0 = Isa::max(m0, Isa::load(s + x));
    m1 = Isa::max(m1, Isa::load(s + x + lanes));
  }
  if (x < end) m0 = Isa::max(m0, Isa::load(s + x));
  return Isa::largest(Isa::max(m0, m1));
}

/// s = exp(s - reference) in whole vectors from columns.begin, 0 in the rest of the strip. Returns the sum.
template <class Isa>
float exponentiate(float* s, Columns columns, Columns strip, float reference) {
  using Float = typename Isa::Float;
  constexpr Index lanes = Isa::kLanes;
  const Index end = columns.begin + round_up(columns.end - columns.begin, lanes);
  const Float shift = Isa::set(reference);
  Float total = Isa::zero();
  for_vectors<Isa>(columns.begin, end, [&](Index x, auto together) {
    constexpr int count = decltype(together)::value;
    Float p[count];
    for (int i = 0; i < count; ++i) p[i] = Isa::sub(Isa::load(s + x + i * lanes), shift);
    exp_each<Isa>(p);
    for (int i = 0; i < count; ++i) {
      total = Isa::add(total, p[i]);
      Isa::store(s + x + i * lanes, p[i]);
    }
  });
  fill<Isa>(s, strip.begin, columns.begin, 0.0F);
  fill<Isa>(s, end, strip.end, 0.0F);
  return Isa::sum(total);
}

/// Writes a row of the output, and its LSE: `out` holds the sum of exp(s - maximum) v, `sum` that of exp(s - maximum).
template <class Isa>
void finish_row(const ForwardPlan& plan, const Sequence& sequence, Index head, Index i, float maximum, float sum,
                const float* out) {
  const Attention& call = *plan.call;
  const RowsOutput& rows = plan.outputs->lse;
  float factor = 0;
  float lse = -kInfinity;
  if (maximum != -kInfinity || sum != 0) {  // something was attended; a sum without a maximum: only NaN
    float rescale = 1;
    if (call.sinks.data != nullptr) {
      const float sink = sink_of(call.sinks, head);
      const float top = maximum > sink ? maximum : sink;
      rescale = __builtin_expf(maximum - top);
      sum = sum * rescale + __builtin_expf(sink - top);
      maximum = top;
    }
    factor = rescale / sum;
    if (rows.data != nullptr) lse = maximum + __builtin_logf(sum);
  }
  char* to = row_of(plan.outputs->out, sequence.q, i, head, call.dtype);
  if (factor == 0)
    store_zeros(call.dtype, to, call.head_dim_v);
  else
    store_row<Isa>(call.dtype, out, call.head_dim_v, factor, to);
  if (rows.data != nullptr) rows.data[number_of(rows, sequence.q, i, head)] = lse;
}

/// Rows up to which each key meets each row on its own: one query at a time, of a head or two.
constexpr Index kSingleRows = 2;

template <class Isa>
class ForwardTask {
 public:
  /// `task`: one of the row_blocks() of this head.
  ForwardTask(const ForwardPlan& plan, const Sequence& sequence, Index kv_head, Index task, const KeyStore& store,
              const ForwardScratch& scratch)
      : plan_(plan), call_(*plan.call), scratch_(scratch), sequence_(sequence), kv_head_(kv_head), store_(store) {
    const RowBlocks blocks = row_blocks(plan, sequence_.q.valid);
    // The last rows first: under a causal mask they have most to do.
    const Index block = blocks.blocks - 1 - task % blocks.blocks;
    const Index head = task / blocks.blocks * blocks.heads;
    rows_ = {.head = kv_head_ * plan.group + head,
             .heads = least(blocks.heads, plan.group - head),
             .row = block * blocks.rows,
             .rows = least(blocks.rows, sequence_.q.valid - block * blocks.rows)};
    if (call_.dropout.probability > 0)
      dropout_ = dropout_key(call_.dropout.probability, call_.dropout.seed, call_.dropout.offset);
  }

  void run() {
    visit_blocks(0, ceil_div(sequence_.k.valid, plan_.block.keys));
    finish();
  }

  /// One split of the keys.
  void run(Index split, const Partial& partial) {
    const Index blocks = ceil_div(ceil_div(sequence_.k.valid, plan_.block.keys), plan_.splits);
    visit_blocks(split * blocks, (split + 1) * blocks);
    for (Index r = 0; r < rows_.count(); ++r) {
      partial.maximum[r] = scratch_.maximum[r];
      partial.sum[r] = scratch_.sum[r];
      for (Index x = 0; x < call_.head_dim_v; x += Isa::kLanes)
        Isa::store(partial.out + r * ld_out_ + x, Isa::load(scratch_.out + r * ld_out_ + x));
    }
  }

  /// Adds up what the splits left: part_of(split).
  template <class PartOf>
  void combine(const PartOf& part_of) {
    for (Index r = 0; r < rows_.count(); ++r) {
      float maximum = -kInfinity;
      for (Index split = 0; split < plan_.splits; ++split) {
        const float other = part_of(split).maximum[r];
        maximum = other > maximum ? other : maximum;
      }
      const float reference = maximum == -kInfinity ? 0.0F : maximum;
      float* out = scratch_.out + r * ld_out_;
      fill<Isa>(out, 0, round_up(call_.head_dim_v, Isa::kLanes), 0.0F);
      scratch_.maximum[r] = maximum;
      scratch_.sum[r] = 0;
      for (Index split = 0; split < plan_.splits; ++split) {
        const Partial part = part_of(split);
        if (part.maximum[r] == -kInfinity && part.sum[r] == 0) continue;  // attends nothing there
        const float weight = __builtin_expf(part.maximum[r] - reference);
        scratch_.sum[r] += weight * part.sum[r];
        for (Index x = 0; x < call_.head_dim_v; x += Isa::kLanes)
          Isa::store(out + x, Isa::fma(Isa::set(weight), Isa::load(part.out + r * ld_out_ + x), Isa::load(out + x)));
      }
    }
    finish();
  }

 private:
  /// Those of [begin, end) that some row attends.
  void visit_blocks(Index begin, Index end) {
    start();
    const Index last = rows_.row + rows_.rows - 1;
    const Index size = plan_.block.keys;
    for (Index block = most(begin, sequence_.begin(rows_.row) / size);
         block < end && block * size < sequence_.end(last); ++block)
      visit(block, key_range(sequence_, block, size));
  }

  void start() {
    for (Index head = 0; head < rows_.heads; ++head)
      pack_rows<Isa>(rows_of(call_.q, sequence_.q, rows_.row, rows_.head + head, call_.dtype), rows_.rows,
                     call_.head_dim_qk, call_.scale, scratch_.q + head * rows_.rows * ld_q_, ld_q_);
    for (Index r = 0; r < rows_.count(); ++r) {
      fill<Isa>(scratch_.out + r * ld_out_, 0, round_up(call_.head_dim_v, kPanel<Isa>), 0.0F);
      scratch_.maximum[r] = -kInfinity;
      scratch_.sum[r] = 0;
    }
    if (few()) {
      const Rows rows{.dtype = DType::float32, .data = reinterpret_cast<const char*>(scratch_.q), .stride = ld_q_};
      pack_transposed<Isa>(rows, rows_.count(), call_.head_dim_qk, scratch_.q_t,
                           transposed_panel<Isa>(call_.head_dim_qk), scratch_.row);
    }
  }
  /// Not where keys are packed for several tasks anyway. The same bits: products commute, and sums have one order.
  [[nodiscard]] bool few() const {
    return store_.slots == 1 && rows_.count() > kSingleRows && rows_.count() <= kFewRows;
  }

  /// Columns that each row attends. False when there are none.
  bool set_columns(KeyRange keys) {
    bool any = false;
    for (Index r = 0; r < rows_.count(); ++r) {
      Columns columns = columns_of(sequence_, rows_.row_of(r), keys);
      if (call_.mask.data != nullptr && !columns.empty() &&
          masked_out(call_.mask, sequence_, keys, rows_.head_of(r), rows_.row_of(r), columns))
        columns = {};
      scratch_.begin[r] = columns.begin;
      scratch_.end[r] = columns.end;
      any |= !columns.empty();
    }
    if (any)
      strip_columns(scratch_.begin, scratch_.end, rows_.count(), Isa::kRows, scratch_.strip_begin, scratch_.strip_end);
    return any;
  }

  KeyTile keys_of(Index block, KeyRange keys) {
    const Index slot = store_.slots == 1 ? 0 : block;
    Arena memory(store_.memory + slot * plan_.key_block_bytes);
    const KeyTile tile = key_tile(plan_, memory);
    if (store_.slots == 1 || (store_.slots != 0 && store_.packed[slot] == 0)) {
      pack_key_tile<Isa>(plan_, sequence_, kv_head_, keys, tile, scratch_);
      if (store_.slots != 1) store_.packed[slot] = 1;
    }
    return tile;
  }

  void visit(Index block, KeyRange keys) {
    if (!set_columns(keys)) return;
    if (rows_.count() <= kSingleRows) return visit_singly(keys);
    if (few()) return visit_unpacked(keys);
    const KeyTile tile = keys_of(block, keys);
    multiply_columns<Isa>({.rows = rows_.count(),
                           .columns = keys.count,
                           .depth = call_.head_dim_qk,
                           .a = scratch_.q,
                           .lda = ld_q_,
                           .b = {tile.keys, kPanel<Isa>, transposed_panel<Isa>(call_.head_dim_qk)},
                           .c = scratch_.scores,
                           .ldc = ld_scores_,
                           .begin = scratch_.strip_begin,
                           .end = scratch_.strip_end});
    soften_all(keys);
    multiply_depth<Isa, ALayout::by_row>({.rows = rows_.count(),
                                          .columns = call_.head_dim_v,
                                          .a = scratch_.scores,
                                          .lda = ld_scores_,
                                          .b = {tile.values, kPanel<Isa>, plan_.block.keys * kPanel<Isa>},
                                          .c = scratch_.out,
                                          .ldc = ld_out_,
                                          .start = Start::rescaled_sum,
                                          .rescale = scratch_.rescale,
                                          .begin = scratch_.strip_begin,
                                          .end = scratch_.strip_end,
                                          .careful = *tile.finite == 0});
  }

  /// The same for few rows: S' = K Q', with keys in the place of rows, so that keys, and values, are used where they
  /// lie (converted to float32 where they must be).
  void visit_unpacked(KeyRange keys) {
    const Columns all = columns_together();
    Arena memory(store_.memory);
    const KeyTile tile = key_tile(plan_, memory);
    Rows key = rows_of(call_.k, sequence_.k, keys.first, kv_head_, call_.dtype);
    if (!in_place(key)) {
      const Index ld = round_up(call_.head_dim_qk, 16);
      pack_rows<Isa>(key, keys.count, call_.head_dim_qk, 1.0F, tile.keys, ld);
      key = {.dtype = DType::float32, .data = reinterpret_cast<const char*>(tile.keys), .stride = ld};
    }
    const Index begin = all.begin / Isa::kLanes * Isa::kLanes;
    multiply_columns<Isa>({.rows = all.end - begin,
                           .columns = rows_.count(),
                           .depth = call_.head_dim_qk,
                           .a = reinterpret_cast<const float*>(key.data) + begin * key.stride,
                           .lda = key.stride,
                           .b = {scratch_.q_t, kPanel<Isa>, transposed_panel<Isa>(call_.head_dim_qk)},
                           .c = scratch_.scores_t,
                           .ldc = 32});
    for (Index r = 0; r < rows_.count(); r += Isa::kLanes)
      for (Index j = begin; j < all.end; j += Isa::kLanes)
        Isa::transpose(scratch_.scores_t + (j - begin) * 32 + r, 32, scratch_.scores + r * ld_scores_ + j, ld_scores_);
    soften_all(keys);
    const Rows value = rows_of(call_.v, sequence_.k, keys.first, kv_head_, call_.dtype);
    Panels values{tile.values, kPanel<Isa>, plan_.block.keys * kPanel<Isa>};
    bool finite = true;
    if (in_place(value) && call_.head_dim_v % Isa::kLanes == 0) {
      values = {reinterpret_cast<const float*>(value.data), value.stride, kPanel<Isa>};
      finite = all_finite<Isa>(value, all.begin, all.end, call_.head_dim_v);
    } else {
      finite = pack_panels<Isa>(value, keys.count, call_.head_dim_v, tile.values, values.panel);
    }
    multiply_depth<Isa, ALayout::by_row>({.rows = rows_.count(),
                                          .columns = call_.head_dim_v,
                                          .a = scratch_.scores,
                                          .lda = ld_scores_,
                                          .b = values,
                                          .c = scratch_.out,
                                          .ldc = ld_out_,
                                          .start = Start::rescaled_sum,
                                          .rescale = scratch_.rescale,
                                          .begin = scratch_.strip_begin,
                                          .end = scratch_.strip_end,
                                          .careful = !finite});
  }
  static bool in_place(const Rows& rows) {
    return rows.dtype == DType::float32 && reinterpret_cast<std::uintptr_t>(rows.data) % alignof(float) == 0;
  }

  /// The same for one row or two.
  void visit_singly(KeyRange keys) {
    const Columns all = columns_together();
    for (Index j = all.begin; j < all.end; ++j) {
      const float* key =
          as_floats<Isa>(call_.dtype, row_of(call_.k, sequence_.k, keys.first + j, kv_head_, call_.dtype),
                         call_.head_dim_qk, scratch_.row);
      for (Index r = 0; r < rows_.count(); ++r)
        scratch_.scores[r * ld_scores_ + j] = dot<Isa>(scratch_.q + r * ld_q_, key, call_.head_dim_qk);
    }
    soften_all(keys);
    for (Index r = 0; r < rows_.count(); ++r) {
      float* out = scratch_.out + r * ld_out_;
      if (scratch_.rescale[r] != 1.0F)
        for (Index x = 0; x < call_.head_dim_v; x += Isa::kLanes)
          Isa::store(out + x, Isa::mul(Isa::set(scratch_.rescale[r]), Isa::load(out + x)));
    }
    for (Index j = all.begin; j < all.end; ++j) {
      const float* value =
          as_floats<Isa>(call_.dtype, row_of(call_.v, sequence_.k, keys.first + j, kv_head_, call_.dtype),
                         call_.head_dim_v, scratch_.row);
      for (Index r = 0; r < rows_.count(); ++r) {
        const float p = scratch_.scores[r * ld_scores_ + j];
        float* out = scratch_.out + r * ld_out_;
        if (p == 0) continue;  // also where the value is not finite
        for (Index x = 0; x < call_.head_dim_v; x += Isa::kLanes)
          Isa::store(out + x, Isa::fma(Isa::set(p), Isa::load(value + x), Isa::load(out + x)));
      }
    }
  }

  /// All columns that some row attends. Strips are made to agree, so that soften() clears the same range in every row.
  Columns columns_together() {
    Columns all;
    const Index strips = ceil_div(rows_.count(), Isa::kRows);
    for (Index strip = 0; strip < strips; ++strip) {
      const Columns some{scratch_.strip_begin[strip], scratch_.strip_end[strip]};
      if (some.empty()) continue;
      if (all.empty() || some.begin < all.begin) all.begin = some.begin;
      if (some.end > all.end) all.end = some.end;
    }
    for (Index strip = 0; strip < strips; ++strip) {
      scratch_.strip_begin[strip] = all.begin;
      scratch_.strip_end[strip] = all.end;
    }
    return all;
  }

  /// Rows of scale * q k^T become probabilities, up to the running maximum.
  void soften_all(KeyRange keys) {
    for (Index r = 0; r < rows_.count(); r += Isa::kLanes) soften(r, least(Isa::kLanes, rows_.count() - r), keys);
  }

  /// As many rows at once as a vector has lanes: the waits of one row (for its maximum, its sum) are filled with
  /// others.
  void soften(Index first, Index count, KeyRange keys) {
    using Float = typename Isa::Float;
    float reference[Isa::kLanes];
    float total[Isa::kLanes] = {};
    Isa::store(reference, Isa::load(scratch_.maximum + first));
    for (Index r = first; r < first + count; ++r) {
      const Columns columns = columns_of_row(r);
      float* s = scratch_.scores + r * ld_scores_;
      if (columns.empty()) continue;
      make_scores<Isa>(call_, sequence_, keys, rows_.head_of(r), rows_.row_of(r), columns, s, scratch_.line, nullptr);
      reference[r - first] = largest_score<Isa>(s, columns, reference[r - first]);
    }
    // What was summed before comes to the new maximum. Nothing but -inf so far: any finite reference will do, and every
    // probability is 0.
    const Float before = Isa::load(scratch_.maximum + first);
    const Float largest = Isa::load(reference);
    const Float shift = Isa::select(Isa::less(largest, Isa::set(kLowest)), Isa::zero(), largest);
    const Float factor = Isa::select(Isa::equal(before, largest), Isa::set(1.0F), exp<Isa>(Isa::sub(before, shift)));
    Isa::store(scratch_.rescale + first, factor);
    Isa::store(scratch_.maximum + first, largest);
    Isa::store(reference, shift);
    for (Index r = first; r < first + count; ++r) {
      const Columns columns = columns_of_row(r);
      const Columns strip{scratch_.strip_begin[r / Isa::kRows], scratch_.strip_end[r / Isa::kRows]};
      float* s = scratch_.scores + r * ld_scores_;
      if (columns.empty()) {
        fill<Isa>(s, strip.begin, strip.end, 0.0F);
        continue;
      }
      total[r - first] = exponentiate<Isa>(s, columns, strip, reference[r - first]);
      if (call_.dropout.probability > 0) drop(r, keys, columns, strip);
    }
    Isa::store(scratch_.sum + first, Isa::fma(Isa::load(scratch_.sum + first), factor, Isa::load(total)));
  }

  void drop(Index r, KeyRange keys, Columns columns, Columns strip) {
    float* s = scratch_.scores + r * ld_scores_;
    keep_factors<Isa>(dropout_, sequence_.b * call_.heads + rows_.head_of(r), rows_.row_of(r), keys, columns,
                      scratch_.keep);
    for (Index x = columns.begin; x < columns.end; x += Isa::kLanes)
      Isa::store(s + x, Isa::mul(Isa::load(s + x), Isa::load(scratch_.keep + x)));
    fill<Isa>(s, columns.end, strip.end, 0.0F);
  }

  [[nodiscard]] Columns columns_of_row(Index r) const { return {scratch_.begin[r], scratch_.end[r]}; }

  void finish() {
    for (Index r = 0; r < rows_.count(); ++r)
      finish_row<Isa>(plan_, sequence_, rows_.head_of(r), rows_.row_of(r), scratch_.maximum[r], scratch_.sum[r],
                      scratch_.out + r * ld_out_);
  }

  const ForwardPlan& plan_;
  const Attention& call_;
  ForwardScratch scratch_;
  Sequence sequence_;
  Index kv_head_;
  KeyStore store_;
  TaskRows rows_;
  DropoutKey dropout_;
  Index ld_q_ = leading(call_.head_dim_qk);
  Index ld_scores_ = leading(plan_.block.keys);
  Index ld_out_ = leading(call_.head_dim_v);
};

/// A task of one split, or of all together.
template <class Isa, class Function>
void with_split_task(const ForwardPlan& plan, Index task, char* memory, const Function& function) {
  const Index b = find_sequence(plan.first_task, plan.call->batch, task);
  const Sequence s = sequence(*plan.call, b);
  const Index local = task - plan.first_task[b];
  const Index count = row_blocks(plan, s.q.valid).count;
  Arena arena(memory);
  const ForwardScratch scratch = forward_scratch(plan, arena);
  const KeyStore store{.memory = arena.take<char>(plan.key_block_bytes), .slots = 1};
  function(ForwardTask<Isa>(plan, s, local / count, local % count, store, scratch));
}
inline Partial partial_of(const ForwardPlan& plan, Index task, Index split) {
  Arena arena(plan.partials + (task * plan.splits + split) * plan.partial_bytes);
  return partial(plan, arena);
}

template <class Isa>
void forward_split(const ForwardPlan& plan, Index task, char* memory) {
  const Index split = task % plan.splits;
  task /= plan.splits;
  with_split_task<Isa>(plan, task, memory,
                       [&](ForwardTask<Isa> rows) { rows.run(split, partial_of(plan, task, split)); });
}

template <class Isa>
void combine_splits(const ForwardPlan& plan, Index task, char* memory) {
  with_split_task<Isa>(plan, task, memory, [&](ForwardTask<Isa> rows) {
    rows.combine([&](Index split) { return partial_of(plan, task, split); });
  });
}

/// In parts: one block of rows. Task: ForwardTask, or its twin in tiles; scratch_of: what that keeps.
template <class Task, auto scratch_of>
void forward_part(const ForwardPlan& plan, Index task, char* memory) {
  const Index b = find_sequence(plan.first_task, plan.call->batch, task);
  const Sequence s = sequence(*plan.call, b);
  const Index local = task - plan.first_task[b];
  const Index count = row_blocks(plan, s.q.valid).count;
  const Index kv_head = local / count;
  const Index first = plan.first_key_block[b] * plan.call->kv_heads + kv_head * ceil_div(s.k.valid, plan.block.keys);
  Arena arena(memory);
  Task(plan, s, kv_head, local % count, {.memory = plan.keys + first * plan.key_block_bytes}, scratch_of(plan, arena))
      .run();
}

/// By heads: all rows of one.
template <class Task, auto scratch_of>
void forward_head(const ForwardPlan& plan, Index task, char* memory) {
  const Sequence s = sequence(*plan.call, task / plan.call->kv_heads);
  const Index count = row_blocks(plan, s.q.valid).count;
  Arena arena(memory);
  const auto scratch = scratch_of(plan, arena);
  KeyStore store;
  store.packed = arena.take<unsigned char>(plan.key_slots);
  store.memory = arena.take<char>(plan.key_slots * plan.key_block_bytes);
  store.slots = count == 1 ? 1 : plan.key_slots;
  for (Index slot = 0; slot < plan.key_slots; ++slot) store.packed[slot] = 0;
  for (Index part = 0; part < count; ++part) Task(plan, s, task % plan.call->kv_heads, part, store, scratch).run();
}

}  // namespace
}  // namespace cynosure::cpu
