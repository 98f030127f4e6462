// SPDX-License-Identifier: Apache-2.0
// backends/cudnn/key.cpp
#include "backends/cudnn/key.hpp"

#include <bit>
#include <cstring>

namespace cynosure::cudnn {
namespace {

Strides dense(Format format, std::int64_t batch, std::int64_t length, std::int64_t heads, std::int64_t width) {
  const std::int64_t row = heads * width;
  switch (format) {
    case Format::sbhd:
      return {.batch = row, .head = width, .row = batch * row};
    case Format::thd:
    case Format::bshd:
    case Format::bhsd:  // our outputs are [B, S, H, D] in memory, and so are most inputs
      break;
  }
  return {.batch = length * row, .head = width, .row = row};
}

void put_bias(PlanKey& key, const Features& f) {
  const bool bias = f.bias_type == BiasType::post_scale_bias;
  if (!bias && f.attn_mask == AttnMask::none && !f.alibi_slopes) return;
  using enum BiasShape;
  const BiasShape shape = f.bias_shape;
  key.bias_batch =
      bias && (shape == b_h_s_s || shape == b_one_s_s || shape == b_h_one_s || shape == b_one_one_s) ? key.batch : 1;
  const bool by_head =
      f.alibi_slopes || shape == b_h_s_s || shape == one_h_s_s || shape == b_h_one_s || shape == one_h_one_s;
  key.bias_heads = by_head ? key.heads : 1;
  const std::int64_t row = (key.seqlen_k + 7) / 8 * 8;
  key.bias = {.batch = key.bias_heads * key.seqlen_q * row, .head = key.seqlen_q * row, .row = row};
  key.bias_type =
      f.alibi_slopes || f.bias_float32 || (bias && f.attn_mask == AttnMask::additive) ? Type::float32 : key.type;
}

}  // namespace

PlanKey key_of(const Problem& problem, Direction direction, bool deterministic) {
  const Features& f = problem.features;
  const bool backward = direction == Direction::backward;
  PlanKey key;
  key.batch = problem.lengths.batch;
  key.heads = f.heads;
  key.kv_heads = f.kv_heads;
  key.seqlen_q = problem.lengths.seqlen_q;
  key.seqlen_k = problem.lengths.seqlen_k;
  key.head_dim_qk = f.head_dim_qk;
  key.head_dim_v = f.head_dim_v;
  const auto [format_q, format_kv, group] = info(f.layout);
  key.q = dense(format_q, key.batch, key.seqlen_q, key.heads, key.head_dim_qk);
  key.k = dense(format_kv, key.batch, key.seqlen_k, key.kv_heads, key.head_dim_qk);
  key.v = dense(format_kv, key.batch, key.seqlen_k, key.kv_heads, key.head_dim_v);
  key.out = dense(format_q, key.batch, key.seqlen_q, key.heads, key.head_dim_v);
  key.window_left = f.window_left;
  key.window_right = f.causal ? 0 : f.window_right;
  // Where sequence by sequence the lengths are equal, both alignments are the same.
  key.bottom_right = f.align == Align::bottom_right && !(f.padding && f.same_lengths);
  key.lengths = format_q == Format::thd ? LengthKind::ragged : f.padding ? LengthKind::padded : LengthKind::full;
  simplify_window(key);
  key.scale = std::bit_cast<std::uint32_t>(1.0F);
  if (f.dropout) key.dropout_p = std::bit_cast<std::uint32_t>(0.5F);
  key.type = f.dtype == DType::bfloat16 ? Type::bfloat16 : Type::float16;
  key.direction = direction;
  key.stats = !backward && (f.training || f.return_lse);
  key.sinks = f.softmax != Softmax::vanilla;
  put_bias(key, f);
  if (!backward) return key;
  key.dout = key.out;
  key.dq = key.q;
  key.dk = key.k;
  key.dv = key.v;
  key.bias_grad = f.bias_requires_grad && key.bias_batch > 0;
  key.sinks_grad = key.sinks;
  key.deterministic = deterministic;
  if (key.lengths == LengthKind::ragged) {
    key.tokens_q = rounded_up(key.batch * key.seqlen_q);
    key.tokens_k = rounded_up(key.batch * key.seqlen_k);
  }
  return key;
}

std::size_t hash(const PlanKey& key) {
  static_assert(sizeof(PlanKey) % sizeof(std::uint64_t) == 0);
  std::array<std::uint64_t, sizeof(PlanKey) / sizeof(std::uint64_t)> words{};
  std::memcpy(words.data(), &key, sizeof(PlanKey));
  std::uint64_t state = 0x9e3779b97f4a7c15U;
  for (const std::uint64_t word : words) {
    state = (state ^ word) * 0xd6e8feb86659fd93U;
    state ^= state >> 32U;
  }
  return state;
}

void simplify_window(PlanKey& key) {
  const bool own_lengths = key.lengths != LengthKind::full;
  if (!own_lengths && key.seqlen_q == key.seqlen_k) key.bottom_right = false;
  // The diagonal ends in column Sq - 1 or, aligned at the bottom right, in the last one of its sequence.
  const std::int64_t last = key.bottom_right ? key.seqlen_k - 1 : key.seqlen_q - 1;
  if (key.window_left >= last) key.window_left = -1;
  // Aligned at the bottom right, row 0 lies Sq - 1 columns or fewer before the last one: with one query none.
  const std::int64_t hidden = key.bottom_right ? key.seqlen_q - 1 : key.seqlen_k - 1;
  if (key.window_right >= hidden) key.window_right = -1;
  if (key.window_left < 0 && key.window_right < 0) key.bottom_right = false;
}

std::int64_t rounded_up(std::int64_t tokens) {
  if (tokens <= 256) return 256;
  const int low_bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(tokens))) - 3;
  const auto step = static_cast<std::int64_t>(std::uint64_t{1} << static_cast<unsigned>(low_bits));
  return (tokens + step - 1) / step * step;
}

RaggedLayout ragged_layout(const PlanKey& key) {
  RaggedLayout layout;
  if (key.lengths != LengthKind::ragged) return layout;
  const auto add = [&](Slot slot, std::int64_t row, bool of_keys) {
    const RaggedOffsets wanted{.row = row, .of_keys = of_keys};
    std::size_t i = 0;
    while (i < layout.count && !(layout.offsets[i] == wanted)) ++i;
    if (i == layout.count) layout.offsets[layout.count++] = wanted;
    layout.of_slot[static_cast<std::size_t>(slot)] = static_cast<std::uint8_t>(i);
  };
  add(Slot::q, key.q.row, false);
  add(Slot::k, key.k.row, true);
  add(Slot::v, key.v.row, true);
  add(Slot::out, key.out.row, false);
  if (key.stats || key.direction == Direction::backward) add(Slot::stats, key.heads, false);
  if (key.direction == Direction::backward) {
    add(Slot::dout, key.dout.row, false);
    add(Slot::dq, key.dq.row, false);
    add(Slot::dk, key.dk.row, true);
    add(Slot::dv, key.dv.row, true);
  }
  return layout;
}

}  // namespace cynosure::cudnn
