// SPDX-License-Identifier: Apache-2.0
// backends/cpu/backward.hpp: the backward pass. Probabilities are computed again from the scores and the LSE.
//
//   dp = dout v^T (through dropout);  ds = p (dp - delta), delta = dout . out - dlse
//   dv += p^T dout;  dk += scale ds^T q;  dq += scale ds k
//
// Steps: prepare_rows packs q and dout and makes delta; SplitTask holds a block of keys (a task: some blocks of one key
// and value head) against all rows that attend it, so that dk and dv are summed in one place; dq is summed for each
// split of the keys on its own and added up, in order, by finish_rows. Gradients of terms are a pass of their own.
#pragma once

#include "backends/cpu/forward.hpp"

namespace cynosure::cpu {
namespace {

inline KeyRange row_range(const Side& side, Index block, Index size) {
  return {.first = block * size, .count = least(size, side.valid - block * size)};
}

/// Packed blocks of rows: of all heads, or by heads only those of one group, in scratch.
struct RowStore {
  char* memory = nullptr;
  Index first_head = 0;  ///< of those in memory
};
/// layout: row_tile, or its twin for tiles.
template <auto layout>
auto row_block_of(const BackwardPlan& plan, const RowStore& store, const Sequence& sequence, Index head, Index block) {
  const Index blocks = ceil_div(sequence.q.valid, plan.block.rows);
  Arena arena(store.memory + ((head - store.first_head) * blocks + block) * plan.row_block_bytes);
  return layout(plan, arena);
}
inline RowStore shared_rows(const BackwardPlan& plan, Index b) {
  return {.memory = plan.rows + plan.first_row_block[b] * plan.row_block_bytes, .first_head = 0};
}

/// Of row r of a block: its LSE, and 0 for the others, which add_delta() sets. False: it attends nothing.
template <class Tile>
bool start_row(const BackwardInputs& in, const Side& side, Index i, Index head, Index r, const Tile& tile) {
  tile.lse[r] = in.lse.data[number_of(in.lse, side, i, head)];
  tile.delta[r] = 0;
  tile.dlse[r] = 0;
  return tile.lse[r] != -kInfinity;
}

/// product: dout . out. Returns what the row gives to the gradient of its sink.
template <class Tile>
double add_delta(const BackwardPlan& plan, const Side& side, Index i, Index head, Index r, float product,
                 const Tile& tile) {
  const Attention& call = *plan.call;
  const BackwardInputs& in = *plan.inputs;
  if (in.dlse.data != nullptr) tile.dlse[r] = in.dlse.data[number_of(in.dlse, side, i, head)];
  tile.delta[r] = product - tile.dlse[r];
  if (call.sinks.data == nullptr) return 0;
  const double p = __builtin_exp(static_cast<double>(sink_of(call.sinks, head)) - static_cast<double>(tile.lse[r]));
  return -p * static_cast<double>(tile.delta[r]);
}

inline void keep_dsink(const BackwardPlan& plan, const Sequence& sequence, Index head, Index block, double dsink) {
  const Index blocks = ceil_div(sequence.q.valid, plan.block.rows);
  plan.dsinks[plan.first_row_block[sequence.b] + head * blocks + block] = dsink;
}

template <class Isa>
void prepare_rows(const BackwardPlan& plan, const Sequence& sequence, Index head, Index block, const RowTile& tile,
                  const BackwardScratch& /*scratch*/) {
  const Attention& call = *plan.call;
  const BackwardInputs& in = *plan.inputs;
  const Side& side = sequence.q;
  const KeyRange rows = row_range(side, block, plan.block.rows);
  const Index ld_q = leading(call.head_dim_qk);
  const Index ld_v = leading(call.head_dim_v);
  double dsink = 0;
  Finite<Isa> finite;
  for (Index r = 0; r < rows.count; ++r) {
    const Index i = rows.first + r;
    float* dout = tile.dout + r * ld_v;
    if (!start_row(in, side, i, head, r, tile)) {  // what came in as its gradient is ignored
      fill<Isa>(dout, 0, round_up(call.head_dim_v, Isa::kLanes), 0.0F);
      continue;
    }
    typename Isa::Float sum = Isa::zero();
    with_dtype(call.dtype, [&](auto typed) {
      const char* from = row_of(in.dout, side, i, head, call.dtype);
      const char* out = row_of(in.out, side, i, head, call.dtype);
      for (Index x = 0; x < call.head_dim_v; x += Isa::kLanes) {
        const auto value = load_part<Isa, typed()>(from, x, call.head_dim_v);
        finite.see(value);
        sum = Isa::fma(value, load_part<Isa, typed()>(out, x, call.head_dim_v), sum);
        Isa::store(dout + x, value);
      }
    });
    dsink += add_delta(plan, side, i, head, r, Isa::sum(sum), tile);
  }
  tile.finite[1] = finite.all() ? 1.0F : 0.0F;
  keep_dsink(plan, sequence, head, block, dsink);
  const bool queries_finite = pack_rows<Isa>(rows_of(call.q, side, rows.first, head, call.dtype), rows.count,
                                             call.head_dim_qk, call.scale, tile.q, ld_q);
  tile.finite[0] = queries_finite ? 1.0F : 0.0F;
  fill<Isa>(tile.dq, 0, plan.slots * plan.block.rows * ld_q, 0.0F);
}

template <class Isa>
void finish_rows(const BackwardPlan& plan, const Sequence& sequence, Index head, Index block, float* sums) {
  const Attention& call = *plan.call;
  const Output& dq = plan.gradients->dq;
  if (dq.data == nullptr) return;
  const KeyRange rows = row_range(sequence.q, block, plan.block.rows);
  const Index ld = leading(call.head_dim_qk);
  for (Index r = 0; r < rows.count; ++r) {
    float* sum = sums + r * ld;
    for (Index slot = 1; slot < plan.slots; ++slot) {
      const float* part = sum + slot * plan.block.rows * ld;
      for (Index x = 0; x < call.head_dim_qk; x += Isa::kLanes)
        Isa::store(sum + x, Isa::add(Isa::load(sum + x), Isa::load(part + x)));
    }
    store_row<Isa>(call.dtype, sum, call.head_dim_qk, call.scale,
                   row_of(dq, sequence.q, rows.first + r, head, call.dtype));
  }
}

/// p and ds for a block of keys against blocks of rows.
template <class Isa>
class Pairs {
  using Float = typename Isa::Float;

 public:
  /// `capped`: ds goes on through the soft cap to q and k; otherwise it is the gradient of the terms.
  Pairs(const BackwardPlan& plan, const BackwardScratch& scratch, bool capped)
      : plan_(plan), call_(*plan.call), scratch_(scratch), capped_(capped) {
    if (call_.dropout.probability > 0)
      dropout_ = dropout_key(call_.dropout.probability, call_.dropout.seed, call_.dropout.offset);
  }

  [[nodiscard]] const BackwardScratch& scratch() const { return scratch_; }
  [[nodiscard]] const Sequence& sequence() const { return sequence_; }
  [[nodiscard]] KeyRange keys() const { return keys_; }
  [[nodiscard]] bool keys_finite() const { return finite_; }

  void set_keys(const Sequence& sequence, Index kv_head, KeyRange keys) {
    sequence_ = sequence;
    keys_ = keys;
    const Rows key = rows_of(call_.k, sequence.k, keys.first, kv_head, call_.dtype);
    const Rows value = rows_of(call_.v, sequence.k, keys.first, kv_head, call_.dtype);
    finite_ = pack_panels<Isa>(key, keys.count, call_.head_dim_qk, scratch_.keys, plan_.block.keys * kPanel<Isa>);
    pack_transposed<Isa>(key, keys.count, call_.head_dim_qk, scratch_.keys_t, panel_qk_, scratch_.row);
    pack_transposed<Isa>(value, keys.count, call_.head_dim_v, scratch_.values_t, panel_v_, scratch_.row);
  }

  /// Fills scratch().scores with p (after dropout), scratch().grads with ds. False when no pair meets.
  bool compute(Index head, KeyRange rows, const RowTile& tile) {
    if (!set_columns(head, rows, tile)) return false;
    Product product{.rows = rows.count,
                    .columns = keys_.count,
                    .depth = call_.head_dim_qk,
                    .a = tile.q,
                    .lda = leading(call_.head_dim_qk),
                    .b = {scratch_.keys_t, kPanel<Isa>, panel_qk_},
                    .c = scratch_.scores,
                    .ldc = ld_,
                    .begin = scratch_.strip_begin,
                    .end = scratch_.strip_end};
    multiply_columns<Isa>(product);
    product.depth = call_.head_dim_v;
    product.a = tile.dout;
    product.lda = leading(call_.head_dim_v);
    product.b = {scratch_.values_t, kPanel<Isa>, panel_v_};
    product.c = scratch_.grads;
    multiply_columns<Isa>(product);
    for (Index r = 0; r < rows.count; ++r) differentiate(head, rows.first + r, r, tile);
    return true;
  }

 private:
  bool set_columns(Index head, KeyRange rows, const RowTile& tile) {
    rows_begin_ = rows.count;
    rows_end_ = 0;
    for (Index r = 0; r < rows.count; ++r) {
      const Index i = rows.first + r;
      Columns columns = columns_of(sequence_, i, keys_);
      if (tile.lse[r] == -kInfinity) columns = {};
      if (call_.mask.data != nullptr && !columns.empty() && masked_out(call_.mask, sequence_, keys_, head, i, columns))
        columns = {};
      scratch_.begin[r] = columns.begin;
      scratch_.end[r] = columns.end;
      if (columns.empty()) continue;
      rows_begin_ = least(rows_begin_, r);
      rows_end_ = r + 1;
    }
    if (rows_end_ == 0) return false;
    strip_columns(scratch_.begin, scratch_.end, rows.count, Isa::kRows, scratch_.strip_begin, scratch_.strip_end);
    strip_rows(scratch_.begin, scratch_.end, rows.count, keys_.count, Isa::kRows, scratch_.column_begin,
               scratch_.column_end);
    return true;
  }

  void differentiate(Index head, Index i, Index r, const RowTile& tile) {
    float* s = scratch_.scores + r * ld_;
    float* g = scratch_.grads + r * ld_;
    const Columns columns{scratch_.begin[r], scratch_.end[r]};
    if (!columns.empty()) {
      make_scores<Isa>(call_, sequence_, keys_, head, i, columns, s, scratch_.line, scratch_.cap);
      if (call_.dropout.probability > 0)
        keep_factors<Isa>(dropout_, sequence_.b * call_.heads + head, i, keys_, columns, scratch_.keep);
      const float lse = hide_not_a_number(columns, s, tile.lse[r]);
      if (sequence_.begin(i) >= keys_.first && sequence_.end(i) <= keys_.first + keys_.count)
        differentiate_whole(columns, s, g, lse, call_.sinks.data == nullptr ? -kInfinity : sink_of(call_.sinks, head),
                            tile.dlse[r]);
      else
        differentiate_part(columns, s, g, lse, tile.delta[r]);
    }
    clear_beside(r, columns, s, g);
  }

  /// Zeros where products read beside the columns of a row: as far as its strip of rows goes and, since ranges move one
  /// way from row to row, as wide as a strip of columns. A row without columns may lie between others that have some.
  void clear_beside(Index r, Columns columns, float* s, float* g) {
    const std::int32_t strip_begin = scratch_.strip_begin[r / Isa::kRows];
    const std::int32_t strip_end = scratch_.strip_end[r / Isa::kRows];
    Index begin = 0;
    Index end = keys_.count;
    if (!columns.empty()) {
      begin = most(0, least(strip_begin, columns.begin - Isa::kRows));
      end = least(keys_.count, most(strip_end, columns.end + Isa::kRows));
    } else if (r < rows_begin_ || r >= rows_end_) {
      begin = strip_begin;
      end = strip_end;
    }
    for (float* row : {s, g}) {
      fill<Isa>(row, begin, columns.begin, 0.0F);
      fill<Isa>(row, most(begin, columns.end), end, 0.0F);
    }
  }

  /// The row as differentiate_part() and differentiate_whole() want it. Returns the LSE to use.
  static float hide_not_a_number(Columns columns, float* s, float lse) {
    for (Index x = columns.end; x < columns.end + Isa::kLanes; ++x) s[x] = -kInfinity;
    if (lse == lse) return lse;
    for (Index x = columns.begin; x < columns.end; ++x)  // the row attends a NaN: all its pairs are NaN, if not masked
      if (s[x] != -kInfinity) s[x] = lse;
    return 0;
  }

  /// s - lse becomes exp(s - lse), and function(x, vector of it) is called for each vector.
  template <class Function>
  static void for_exponentials(Columns columns, const float* s, float lse, const Function& function) {
    for_vectors<Isa>(columns.begin, columns.end, [&](Index x, auto together) {
      constexpr int count = decltype(together)::value;
      Float p[count];
      for (int i = 0; i < count; ++i)
        p[i] = Isa::min(Isa::set(88.0F), Isa::sub(Isa::load(s + x + i * Isa::kLanes), Isa::set(lse)));
      exp_each<Isa>(p);
      for (int i = 0; i < count; ++i) function(x + i * Isa::kLanes, p[i]);
    });
  }

  /// dp, through dropout.
  [[nodiscard]] Float kept(const float* g, Index x) const {
    const Float dp = Isa::load(g + x);
    if (call_.dropout.probability <= 0) return dp;
    const Float keep = Isa::load(scratch_.keep + x);
    return Isa::select(Isa::is_zero(keep), keep, Isa::mul(dp, keep));
  }

  /// `change`: dp - delta.
  void store_pair(Index x, float* s, float* g, Float p, Float change) const {
    Float ds = Isa::mul(p, change);
    if (capped_ && call_.softcap != 0) ds = Isa::mul(ds, Isa::load(scratch_.cap + x));
    Isa::store(g + x, Isa::select(Isa::is_zero(p), p, ds));
    Isa::store(s + x, call_.dropout.probability > 0 ? Isa::mul(p, Isa::load(scratch_.keep + x)) : p);
  }

  /// Scores become probabilities (after dropout), dp becomes ds.
  void differentiate_part(Columns columns, float* s, float* g, float lse, float delta) const {
    const Float shift = Isa::set(delta);
    for_exponentials(columns, s, lse, [&](Index x, Float p) { store_pair(x, s, g, p, Isa::sub(kept(g, x), shift)); });
  }

  /// The same for a row whose keys are all here. Its sum and delta come from its pairs: what is taken from the LSE and
  /// the output carries their rounding, and what cancels (all of it, when there is one key) would not quite cancel.
  void differentiate_whole(Columns columns, float* s, float* g, float lse, float sink, float dlse) const {
    Float sum = Isa::zero();
    Float product = Isa::zero();
    for_exponentials(columns, s, lse, [&](Index x, Float p) {
      sum = Isa::add(sum, p);
      product = Isa::add(product, Isa::select(Isa::is_zero(p), p, Isa::mul(p, kept(g, x))));
      Isa::store(s + x, p);
    });
    const float total = Isa::sum(sum) + (sink == -kInfinity ? 0.0F : __builtin_expf(sink - lse));
    const Float delta = Isa::set(Isa::sum(product) / total);
    for (Index x = columns.begin; x < columns.end; x += Isa::kLanes) {
      const Float p = Isa::load(s + x);
      store_pair(x, s, g, Isa::select(Isa::is_zero(p), p, Isa::div(p, Isa::set(total))),
                 Isa::add(Isa::sub(kept(g, x), delta), Isa::set(dlse)));
    }
  }

  const BackwardPlan& plan_;
  const Attention& call_;
  BackwardScratch scratch_;
  bool capped_;
  Sequence sequence_;
  KeyRange keys_;
  Index rows_begin_ = 0, rows_end_ = 0;  ///< from the first to behind the last row that attends something
  bool finite_ = true;
  DropoutKey dropout_;
  Index ld_ = leading(plan_.block.keys);
  Index panel_qk_ = transposed_panel<Isa>(call_.head_dim_qk);
  Index panel_v_ = transposed_panel<Isa>(call_.head_dim_v);
};

/// Blocks of rows that can attend these keys.
struct BlockRange {
  Index begin = 0, end = 0;
};
inline BlockRange attending_blocks(const Sequence& s, KeyRange keys, Index size) {
  Index first = 0;
  Index last = s.q.valid - 1;
  if (s.right >= 0) first = most(first, keys.first - s.offset - s.right);
  if (s.left >= 0) last = least(last, keys.first + keys.count - 1 - s.offset + s.left);
  if (first > last) return {};
  return {.begin = first / size, .end = last / size + 1};
}

/// Every splits-th block of keys of one key and value head.
template <class Isa>
class SplitTask {
 public:
  SplitTask(const BackwardPlan& plan, const Sequence& sequence, Index kv_head, Index split, const RowStore& store,
            const BackwardScratch& scratch)
      : plan_(plan),
        call_(*plan.call),
        pairs_(plan, scratch, true),
        split_(split),
        kv_head_(kv_head),
        sequence_(sequence),
        store_(store) {}

  void run() {
    const Index blocks = ceil_div(sequence_.k.valid, plan_.block.keys);
    for (Index block = split_; block < blocks; block += plan_.splits)
      visit(key_range(sequence_, block, plan_.block.keys));
  }

 private:
  void visit(KeyRange keys) {
    const BackwardScratch& scratch = pairs_.scratch();
    fill<Isa>(scratch.dk, 0, keys.count * ld_qk_, 0.0F);
    fill<Isa>(scratch.dv, 0, keys.count * ld_v_, 0.0F);
    const BlockRange range = attending_blocks(sequence_, keys, plan_.block.rows);
    if (range.begin < range.end) pairs_.set_keys(sequence_, kv_head_, keys);
    for (Index head = kv_head_ * plan_.group; head < (kv_head_ + 1) * plan_.group; ++head)
      for (Index block = range.begin; block < range.end; ++block) add(head, block);
    for (Index j = 0; j < keys.count; ++j) {
      put(plan_.gradients->dk, keys.first + j, scratch.dk + j * ld_qk_, call_.head_dim_qk);
      put(plan_.gradients->dv, keys.first + j, scratch.dv + j * ld_v_, call_.head_dim_v);
    }
  }

  void add(Index head, Index block) {
    const KeyRange rows = row_range(sequence_.q, block, plan_.block.rows);
    const RowTile tile = row_block_of<row_tile>(plan_, store_, sequence_, head, block);
    if (!pairs_.compute(head, rows, tile)) return;
    const BackwardScratch& scratch = pairs_.scratch();
    const Index ld = leading(plan_.block.keys);
    const Index keys = pairs_.keys().count;
    const Index slot = pairs_.keys().first / plan_.block.keys % plan_.slots;
    if (plan_.gradients->dv.data != nullptr)
      multiply_depth<Isa, ALayout::by_step>({.rows = keys,
                                             .columns = call_.head_dim_v,
                                             .a = scratch.scores,
                                             .lda = ld,
                                             .b = {tile.dout, ld_v_, kPanel<Isa>},
                                             .c = scratch.dv,
                                             .ldc = ld_v_,
                                             .start = Start::sum,
                                             .begin = scratch.column_begin,
                                             .end = scratch.column_end,
                                             .careful = tile.finite[1] == 0});
    if (plan_.gradients->dk.data != nullptr)
      multiply_depth<Isa, ALayout::by_step>({.rows = keys,
                                             .columns = call_.head_dim_qk,
                                             .a = scratch.grads,
                                             .lda = ld,
                                             .b = {tile.q, ld_qk_, kPanel<Isa>},
                                             .c = scratch.dk,
                                             .ldc = ld_qk_,
                                             .start = Start::sum,
                                             .begin = scratch.column_begin,
                                             .end = scratch.column_end,
                                             .careful = tile.finite[0] == 0});
    if (plan_.gradients->dq.data != nullptr)
      multiply_depth<Isa, ALayout::by_row>({.rows = rows.count,
                                            .columns = call_.head_dim_qk,
                                            .a = scratch.grads,
                                            .lda = ld,
                                            .b = {scratch.keys, kPanel<Isa>, plan_.block.keys * kPanel<Isa>},
                                            .c = tile.dq + slot * plan_.block.rows * ld_qk_,
                                            .ldc = ld_qk_,
                                            .start = Start::sum,
                                            .begin = scratch.strip_begin,
                                            .end = scratch.strip_end,
                                            .careful = !pairs_.keys_finite()});
  }

  void put(const Output& gradient, Index j, const float* from, Index n) {
    if (gradient.data != nullptr)
      store_row<Isa>(call_.dtype, from, n, 1.0F, row_of(gradient, sequence_.k, j, kv_head_, call_.dtype));
  }

  const BackwardPlan& plan_;
  const Attention& call_;
  Pairs<Isa> pairs_;
  Index split_, kv_head_;
  Sequence sequence_;
  RowStore store_;
  Index ld_qk_ = leading(call_.head_dim_qk);
  Index ld_v_ = leading(call_.head_dim_v);
};

// --- tasks, over the steps of this algorithm or of its twin in tiles

template <class Isa>
struct BackwardSteps {
  using Split = SplitTask<Isa>;
  static constexpr auto layout = row_tile;
  static constexpr auto scratch_of = backward_scratch;
  static constexpr auto prepare = prepare_rows<Isa>;
  static constexpr auto finish = finish_rows<Isa>;
};

/// The block of rows of a numbered task: function(sequence, head, block, tile).
template <class Steps, class Function>
void with_row_block(const BackwardPlan& plan, Index task, const Function& function) {
  const Index b = find_sequence(plan.first_row_block, plan.call->batch, task);
  const Sequence s = sequence(*plan.call, b);
  const Index local = task - plan.first_row_block[b];
  const Index blocks = ceil_div(s.q.valid, plan.block.rows);
  function(s, local / blocks, local % blocks,
           row_block_of<Steps::layout>(plan, shared_rows(plan, b), s, local / blocks, local % blocks));
}

template <class Steps>
void prepare_part(const BackwardPlan& plan, Index task, char* memory) {
  Arena arena(memory);
  const auto scratch = Steps::scratch_of(plan, arena);
  with_row_block<Steps>(plan, task, [&](const Sequence& s, Index head, Index block, const auto& tile) {
    Steps::prepare(plan, s, head, block, tile, scratch);
  });
}

template <class Steps>
void backward_part(const BackwardPlan& plan, Index task, char* memory) {
  Arena arena(memory);
  const Index kv_head = task / plan.splits % plan.call->kv_heads;
  const Index b = task / plan.splits / plan.call->kv_heads;
  typename Steps::Split(plan, sequence(*plan.call, b), kv_head, task % plan.splits, shared_rows(plan, b),
                        Steps::scratch_of(plan, arena))
      .run();
}

template <class Steps>
void finish_part(const BackwardPlan& plan, Index task, char*) {
  with_row_block<Steps>(plan, task, [&](const Sequence& s, Index head, Index block, const auto& tile) {
    Steps::finish(plan, s, head, block, tile.dq);
  });
}

/// By heads: all steps for one key and value head.
template <class Steps>
void backward_head(const BackwardPlan& plan, Index task, char* memory) {
  const Sequence s = sequence(*plan.call, task / plan.call->kv_heads);
  const Index kv_head = task % plan.call->kv_heads;
  Arena arena(memory);
  const auto scratch = Steps::scratch_of(plan, arena);
  const RowStore store{.memory = arena.take<char>(plan.row_slots * plan.row_block_bytes),
                       .first_head = kv_head * plan.group};
  const Index blocks = ceil_div(s.q.valid, plan.block.rows);
  const auto for_each_row_block = [&](const auto& function) {
    for (Index head = store.first_head; head < store.first_head + plan.group; ++head)
      for (Index block = 0; block < blocks; ++block)
        function(head, block, row_block_of<Steps::layout>(plan, store, s, head, block));
  };
  for_each_row_block(
      [&](Index head, Index block, const auto& tile) { Steps::prepare(plan, s, head, block, tile, scratch); });
  for (Index split = 0; split < plan.splits; ++split)
    typename Steps::Split(plan, s, kv_head, split, store, scratch).run();
  for_each_row_block([&](Index head, Index block, const auto& tile) { Steps::finish(plan, s, head, block, tile.dq); });
}

template <class Isa>
class TermTask {
 public:
  TermTask(const BackwardPlan& plan, const TermGradient& gradient, Index task, const BackwardScratch& scratch)
      : plan_(plan),
        call_(*plan.call),
        gradient_(gradient),
        tiles_(term_tiles(plan, gradient)),
        pairs_(plan, scratch, false) {
    key_block_ = task % tiles_.key_blocks;
    task /= tiles_.key_blocks;
    row_block_ = task % tiles_.row_blocks;
    task /= tiles_.row_blocks;
    head_ = task % tiles_.heads;
    b_ = task / tiles_.heads;
  }

  void run() {
    const Index rows = tiles_.all_rows ? 1 : least(plan_.block.rows, call_.seqlen_q - row_block_ * plan_.block.rows);
    float* sum = pairs_.scratch().term;
    for (Index r = 0; r < rows; ++r) fill<Isa>(sum + r * ld_, 0, ld_, 0.0F);
    if (tiles_.all_batch)
      for (Index b = 0; b < call_.batch; ++b) add_batch(b);
    else
      add_batch(b_);
    const Index first = key_block_ * plan_.block.keys;
    const Index keys = least(plan_.block.keys, call_.seqlen_k - first);
    for (Index r = 0; r < rows; ++r) {
      const Index element = element_of(gradient_, b_, head_, row_block_ * plan_.block.rows + r, first);
      char* to = static_cast<char*>(gradient_.data) + element * element_size(gradient_.dtype);
      store_row<Isa>(gradient_.dtype, sum + r * ld_, keys, 1.0F, to, gradient_.column);
    }
  }

 private:
  void add_batch(Index b) {
    const Sequence s = sequence(call_, b);
    if (key_block_ * plan_.block.keys >= s.k.valid) return;
    const KeyRange keys = key_range(s, key_block_, plan_.block.keys);
    const BlockRange range = attending_blocks(s, keys, plan_.block.rows);
    const Index begin = tiles_.all_heads ? 0 : head_;
    const Index end = tiles_.all_heads ? call_.heads : head_ + 1;
    Index packed = -1;
    for (Index head = begin; head < end; ++head)
      for (Index block = range.begin; block < range.end; ++block) {
        if (!tiles_.all_rows && block != row_block_) continue;
        if (packed != head / plan_.group) pairs_.set_keys(s, packed = head / plan_.group, keys);
        add_block(s, head, block);
      }
  }

  void add_block(const Sequence& s, Index head, Index block) {
    const KeyRange rows = row_range(s.q, block, plan_.block.rows);
    if (!pairs_.compute(head, rows, row_block_of<row_tile>(plan_, shared_rows(plan_, s.b), s, head, block))) return;
    const BackwardScratch& scratch = pairs_.scratch();
    float* line = scratch.line;  // all rows into one: a block is summed first, so that long sums stay accurate
    if (tiles_.all_rows) fill<Isa>(line, 0, ld_, 0.0F);
    for (Index r = 0; r < rows.count; ++r)
      accumulate(scratch.grads + r * ld_, scratch.begin[r], scratch.end[r],
                 tiles_.all_rows ? line : scratch.term + r * ld_);
    if (tiles_.all_rows) accumulate(line, 0, pairs_.keys().count, scratch.term);
  }

  static void accumulate(const float* from, Index begin, Index end, float* to) {
    for (Index x = begin; x < end; ++x) to[x] += from[x];
  }

  const BackwardPlan& plan_;
  const Attention& call_;
  const TermGradient& gradient_;
  TermTiles tiles_;
  Pairs<Isa> pairs_;
  Index b_ = 0, head_ = 0, row_block_ = 0, key_block_ = 0;
  Index ld_ = leading(plan_.block.keys);
};

template <class Isa>
void term_gradient(const BackwardPlan& plan, const TermGradient& gradient, Index task, char* memory) {
  Arena arena(memory);
  TermTask<Isa>(plan, gradient, task, backward_scratch(plan, arena)).run();
}

}  // namespace
}  // namespace cynosure::cpu
