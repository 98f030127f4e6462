// SPDX-License-Identifier: Apache-2.0
// backends/cpu/forward.hpp: the forward pass, a block of rows against all its blocks of keys, by online softmax.
#pragma once

#include "backends/cpu/plan.hpp"
#include "backends/cpu/score.hpp"
#include "backends/cpu/tile.hpp"

namespace cynosure::cpu {
namespace {

/// Rows of a tensor, converted, into to[row][column]. True when all of it is finite.
template <class Isa, class Address>
bool pack_rows(DType dtype, Address address, Index rows, Index columns, float scale, float* to, Index ld) {
  bool finite = true;
  for (Index r = 0; r < rows; ++r) {
    load_row<Isa>(dtype, address(r), 1, columns, scale, to + r * ld);
    finite &= is_finite<Isa>(to + r * ld, columns);
  }
  return finite;
}

/// The same in contiguous panels: see Panels.
template <class Isa, class Address>
bool pack_panels(DType dtype, Address address, Index rows, Index columns, float* to, Index panel, float* line) {
  constexpr Index width = kPanel<Isa>;
  bool finite = true;
  for (Index r = 0; r < rows; ++r) {
    load_row<Isa>(dtype, address(r), 1, columns, 1.0F, line);
    finite &= is_finite<Isa>(line, columns);
    for (Index x = 0; x < columns; x += Isa::kLanes)
      Isa::store(to + x / width * panel + r * width + x % width, Isa::load(line + x));
  }
  return finite;
}

/// Transposed, in contiguous panels of rows, with zeros for the rows up to a whole panel.
template <class Isa, class Address>
void pack_transposed(DType dtype, Address address, Index rows, Index columns, float* to, Index panel, float* lines) {
  constexpr Index width = kPanel<Isa>;
  const Index line = leading(columns);
  for (Index r = 0; r < round_up(rows, kPanel<Isa>); r += Isa::kLanes) {
    for (Index x = 0; x < Isa::kLanes; ++x) {
      if (r + x < rows)
        load_row<Isa>(dtype, address(r + x), 1, columns, 1.0F, lines + x * line);
      else
        fill<Isa>(lines + x * line, 0, round_up(columns, Isa::kLanes), 0.0F);
    }
    transpose_rows<Isa>(lines, line, columns, to + r / width * panel + r % width, width);
  }
}

/// Floats from one panel of transposed rows to the next: transposition writes whole vectors of columns.
template <class Isa>
Index transposed_panel(Index columns) {
  return round_up(columns, Isa::kLanes) * kPanel<Isa>;
}

template <class Isa>
void pack_key_tile(const ForwardPlan& plan, const Sequence& sequence, Index kv_head, KeyRange keys, const KeyTile& tile,
                   float* lines) {
  const Attention& call = *plan.call;
  const auto key = [&](Index j) { return row_of(call.k, sequence.k, keys.first + j, kv_head, call.dtype); };
  const auto value = [&](Index j) { return row_of(call.v, sequence.k, keys.first + j, kv_head, call.dtype); };
  pack_transposed<Isa>(call.dtype, key, keys.count, call.head_dim_qk, tile.keys,
                       transposed_panel<Isa>(call.head_dim_qk), lines);
  const bool finite = pack_panels<Isa>(call.dtype, value, keys.count, call.head_dim_v, tile.values,
                                       plan.block.keys * kPanel<Isa>, lines);
  *tile.finite = finite ? 1.0F : 0.0F;
}

inline KeyRange key_range(const Sequence& sequence, Index block, Index size) {
  return {.first = block * size, .count = least(size, sequence.k.valid - block * size)};
}

/// In parts: a task packs one block of keys of one head.
template <class Isa>
void pack_keys(const ForwardPlan& plan, Index task, char* scratch) {
  const Attention& call = *plan.call;
  const Index b = find_sequence(plan.first_key_block, call.batch, task / call.kv_heads);
  const Sequence s = sequence(call, b);
  Arena arena(scratch);
  Arena packed(plan.keys + task * plan.key_block_bytes);
  const Index local = task - plan.first_key_block[b] * call.kv_heads;
  const Index blocks = ceil_div(s.k.valid, plan.block.keys);
  const KeyRange keys = key_range(s, local % blocks, plan.block.keys);
  pack_key_tile<Isa>(plan, s, local / blocks, keys, key_tile(plan, packed), forward_scratch(plan, arena).row);
}

/// Where packed blocks of keys of one head are. By heads they are packed when first needed, into one slot each or, when
/// a single block of rows comes by, all into the same.
struct KeyStore {
  char* memory = nullptr;
  Index slots = 0;                  ///< 0: all are there already
  unsigned char* packed = nullptr;  ///< a flag for each slot
};

/// The rows of a task: `heads` query heads from `head`, `rows` rows of each from `row`.
struct TaskRows {
  Index head = 0, heads = 0, row = 0, rows = 0;
  [[nodiscard]] Index count() const { return heads * rows; }
  [[nodiscard]] Index head_of(Index r) const { return head + r / rows; }
  [[nodiscard]] Index row_of(Index r) const { return row + r % rows; }
};

/// One row of a block: scores to probabilities, and the running maximum and sum.
template <class Isa>
struct OnlineSoftmax {
  using Float = typename Isa::Float;

  /// Returns the factor that brings what was summed before to the new maximum.
  static float step(float* s, Columns columns, Columns strip, float& maximum, float& sum) {
    constexpr Index lanes = Isa::kLanes;
    const Index end = columns.begin + round_up(columns.end - columns.begin, lanes);
    for (Index x = columns.end; x < end; ++x) s[x] = -kInfinity;
    const float largest = most_of(s, columns.begin, end, maximum);
    // Nothing but -inf so far: any finite reference will do, and every probability is 0.
    const float reference = largest == -kInfinity ? 0.0F : largest;
    const float factor = largest == maximum ? 1.0F : Isa::sum(exp<Isa>(Isa::set(maximum - reference))) * (1.0F / lanes);
    const Float shift = Isa::set(reference);
    Float total = Isa::zero();
    for (Index x = columns.begin; x < end; x += lanes) {
      const Float p = exp<Isa>(Isa::sub(Isa::load(s + x), shift));
      total = Isa::add(total, p);
      Isa::store(s + x, p);
    }
    fill<Isa>(s, strip.begin, columns.begin, 0.0F);
    fill<Isa>(s, end, strip.end, 0.0F);
    maximum = largest;
    sum = sum * factor + Isa::sum(total);
    return factor;
  }

 private:
  static float most_of(const float* s, Index begin, Index end, float maximum) {
    constexpr Index lanes = Isa::kLanes;
    Float m0 = Isa::set(maximum);
    Float m1 = m0;
    Index x = begin;
    for (; x + lanes < end; x += 2 * lanes) {
      m0 = Isa::max(m0, Isa::load(s + x));
      m1 = Isa::max(m1, Isa::load(s + x + lanes));
    }
    if (x < end) m0 = Isa::max(m0, Isa::load(s + x));
    return Isa::largest(Isa::max(m0, m1));
  }
};

/// Rows up to which keys are not packed: one query at a time, of a head or two.
constexpr Index kFewRows = 2;

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
    start();
    const Index last = rows_.row + rows_.rows - 1;
    const Index size = plan_.block.keys;
    for (Index block = sequence_.begin(rows_.row) / size; block * size < sequence_.end(last); ++block)
      visit(block, key_range(sequence_, block, size));
    finish();
  }

 private:
  void start() {
    const auto address = [&](Index r) {
      return row_of(call_.q, sequence_.q, rows_.row_of(r), rows_.head_of(r), call_.dtype);
    };
    for (Index r = 0; r < rows_.count(); ++r) {
      load_row<Isa>(call_.dtype, address(r), 1, call_.head_dim_qk, call_.scale, scratch_.q + r * ld_q_);
      fill<Isa>(scratch_.out + r * ld_out_, 0, round_up(call_.head_dim_v, kPanel<Isa>), 0.0F);
      scratch_.maximum[r] = -kInfinity;
      scratch_.sum[r] = 0;
    }
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
    if (store_.slots != 0 && (store_.slots == 1 || store_.packed[slot] == 0)) {
      pack_key_tile<Isa>(plan_, sequence_, kv_head_, keys, tile, scratch_.row);
      store_.packed[slot] = 1;
    }
    return tile;
  }

  void visit(Index block, KeyRange keys) {
    if (!set_columns(keys)) return;
    if (rows_.count() <= kFewRows) return visit_unpacked(keys);
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
    for (Index r = 0; r < rows_.count(); ++r) soften(r, keys);
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

  /// The same for few rows: packing would cost more than it saves, so each key and value is used as it is read.
  void visit_unpacked(KeyRange keys) {
    const Columns all = columns_together();
    for (Index j = all.begin; j < all.end; ++j) {
      const float* key =
          as_floats<Isa>(call_.dtype, row_of(call_.k, sequence_.k, keys.first + j, kv_head_, call_.dtype),
                         call_.head_dim_qk, scratch_.row);
      for (Index r = 0; r < rows_.count(); ++r)
        scratch_.scores[r * ld_scores_ + j] = dot<Isa>(scratch_.q + r * ld_q_, key, call_.head_dim_qk);
    }
    for (Index r = 0; r < rows_.count(); ++r) {
      soften(r, keys);
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

  /// One row of scale * q k^T becomes probabilities, up to the running maximum.
  void soften(Index r, KeyRange keys) {
    float* s = scratch_.scores + r * ld_scores_;
    const Columns columns{scratch_.begin[r], scratch_.end[r]};
    scratch_.rescale[r] = 1.0F;
    const Columns strip{scratch_.strip_begin[r / Isa::kRows], scratch_.strip_end[r / Isa::kRows]};
    if (columns.empty()) return fill<Isa>(s, strip.begin, strip.end, 0.0F);
    const Index head = rows_.head_of(r);
    const Index i = rows_.row_of(r);
    make_scores<Isa>(call_, sequence_, keys, head, i, columns, s, scratch_.line, nullptr);
    scratch_.rescale[r] = OnlineSoftmax<Isa>::step(s, columns, strip, scratch_.maximum[r], scratch_.sum[r]);
    if (call_.dropout.probability > 0) {
      keep_factors<Isa>(dropout_, sequence_.b * call_.heads + head, i, keys, columns, scratch_.keep);
      for (Index x = columns.begin; x < columns.end; x += Isa::kLanes)
        Isa::store(s + x, Isa::mul(Isa::load(s + x), Isa::load(scratch_.keep + x)));
      fill<Isa>(s, columns.end, strip.end, 0.0F);
    }
  }

  void finish() {
    for (Index r = 0; r < rows_.count(); ++r) {
      const Index head = rows_.head_of(r);
      const Index i = rows_.row_of(r);
      float maximum = scratch_.maximum[r];
      float sum = scratch_.sum[r];
      float factor = 0;
      float lse = -kInfinity;
      if (maximum != -kInfinity || sum != 0) {  // something was attended; a sum without a maximum: only NaN
        float rescale = 1;
        if (call_.sinks.data != nullptr) {
          const float sink = sink_of(call_.sinks, head);
          const float top = maximum > sink ? maximum : sink;
          rescale = __builtin_expf(maximum - top);
          sum = sum * rescale + __builtin_expf(sink - top);
          maximum = top;
        }
        factor = rescale / sum;
        lse = maximum + __builtin_logf(sum);
      }
      char* out = row_of_output(i, head);
      if (factor == 0)
        store_zeros(call_.dtype, out, call_.head_dim_v);
      else
        store_row<Isa>(call_.dtype, scratch_.out + r * ld_out_, call_.head_dim_v, factor, out);
      const RowsOutput& rows = plan_.outputs->lse;
      if (rows.data != nullptr) rows.data[number_of(rows, sequence_.q, i, head)] = lse;
    }
  }

  [[nodiscard]] char* row_of_output(Index i, Index head) const {
    return row_of(plan_.outputs->out, sequence_.q, i, head, call_.dtype);
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

/// In parts: one block of rows.
template <class Isa>
void forward_part(const ForwardPlan& plan, Index task, char* memory) {
  const Index b = find_sequence(plan.first_task, plan.call->batch, task);
  const Sequence s = sequence(*plan.call, b);
  const Index local = task - plan.first_task[b];
  const Index count = row_blocks(plan, s.q.valid).count;
  const Index kv_head = local / count;
  const Index first = plan.first_key_block[b] * plan.call->kv_heads + kv_head * ceil_div(s.k.valid, plan.block.keys);
  Arena arena(memory);
  ForwardTask<Isa>(plan, s, kv_head, local % count, {.memory = plan.keys + first * plan.key_block_bytes},
                   forward_scratch(plan, arena))
      .run();
}

/// By heads: all rows of one.
template <class Isa>
void forward_head(const ForwardPlan& plan, Index task, char* memory) {
  const Sequence s = sequence(*plan.call, task / plan.call->kv_heads);
  const Index count = row_blocks(plan, s.q.valid).count;
  Arena arena(memory);
  const ForwardScratch scratch = forward_scratch(plan, arena);
  KeyStore store;
  store.packed = arena.take<unsigned char>(plan.key_slots);
  store.memory = arena.take<char>(plan.key_slots * plan.key_block_bytes);
  store.slots = count == 1 ? 1 : plan.key_slots;
  for (Index slot = 0; slot < plan.key_slots; ++slot) store.packed[slot] = 0;
  for (Index part = 0; part < count; ++part)
    ForwardTask<Isa>(plan, s, task % plan.call->kv_heads, part, store, scratch).run();
}

}  // namespace
}  // namespace cynosure::cpu
