// SPDX-License-Identifier: Apache-2.0
// torch/run_unfused.cpp: the reference `unfused`: the definition (docs/attention.md) in torch's own operators, with all
// scores in memory. 16-bit tensors are computed in float32. Nothing here reads device memory on the host.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/dropout_mask.hpp"
#include "torch/backend.hpp"
#include "torch/tensor_math.hpp"

namespace cynosure::torch_abi {
namespace {

// --- the call with all sequences padded to [B, H, S, D]

/// Where the tokens of a ragged batch lie in a padded one, and back.
struct Padding {
  std::int64_t tokens = 0, batch = 0, length = 0;
  OptionalTensor from_tokens;  ///< [batch * length]: the token at each padded place (any token where there is none)
  OptionalTensor to_tokens;    ///< [tokens]: the padded place of each token
  OptionalTensor is_token;     ///< [tokens, 1, 1]: belongs to a sequence
  OptionalTensor lengths;      ///< [batch, 1, 1, 1] float64
};

Padding padding_of(const Tensor& tokens, const Tensor& cumulative, std::int64_t batch, std::int64_t length) {
  Padding p;
  p.tokens = sizes(tokens)[0];
  p.batch = batch;
  p.length = length;
  const Tensor ends = to(cumulative, aoti_torch_dtype_float64());
  const Tensor starts = reshape(narrow(ends, 0, 0, batch), {batch, 1});
  p.lengths = reshape(sub(narrow(ends, 0, 1, batch), narrow(ends, 0, 0, batch)), {batch, 1, 1, 1});
  const Tensor place = add(starts, reshape(count(tokens, length), {1, length}));
  p.from_tokens = reshape(index(clamp(place, p.tokens - 1)), {batch * length});
  // The sequence of token t is the number of ends at or before it; tokens behind the last sequence belong to none.
  const Tensor t = reshape(count(tokens, p.tokens), {p.tokens, 1});
  const Tensor before = at_most(reshape(narrow(ends, 0, 1, batch), {1, batch}), t);
  const Tensor sequence = to(sum(before, {1}, false), aoti_torch_dtype_float64());
  p.is_token = reshape(less(sequence, number(batch)), {p.tokens, 1, 1});
  const Tensor mine = clamp(sequence, batch - 1);
  const Tensor position = sub(reshape(t, {p.tokens}), pick(reshape(starts, {batch}), 0, index(mine)));
  p.to_tokens = index(clamp(add(mul(mine, number(length)), position), batch * length - 1));
  return p;
}

struct Dense {
  std::int64_t batch = 0, heads = 0, kv_heads = 0, group = 1, rows = 0, keys = 0;
  std::int32_t type = 0;                ///< what is computed in
  OptionalTensor q, k, v;               ///< [B, H, S, D]
  OptionalTensor lengths_q, lengths_k;  ///< [B, 1, 1, 1] float64
  std::optional<Padding> padding_q, padding_k;
  OptionalTensor visible;            ///< bool, broadcasts to [B, H, Sq, Skv]; not given: every pair is
  OptionalTensor bias, alibi, mask;  ///< terms, broadcast to [B, H, Sq, Skv]
  OptionalTensor keep;               ///< dropout: 0 or 1 / (1 - p)
};

/// [B, S, H, D], [S, B, H, D] or [B, H, S, D] as [B, H, S, D].
Tensor heads_first(const Arguments& a, const Tensor& t) {
  switch (a.call.dims) {
    case Dims::bshd:
      return permute(t, {0, 2, 1, 3});
    case Dims::sbhd:
      return permute(t, {1, 2, 0, 3});
    default:
      return t;
  }
}
Tensor padded(const Tensor& t, const Padding& p) {
  const Tensor rows = pick(t, 0, *p.from_tokens);
  return permute(reshape(rows, {p.batch, p.length, sizes(t)[1], sizes(t)[2]}), {0, 2, 1, 3});
}
Tensor to_heads_first(const Arguments& a, const Tensor& t, const std::optional<Padding>& p) {
  return p ? padded(t, *p) : heads_first(a, t);
}
/// Writes [B, H, S, D] to a tensor in the call's layout; tokens that belong to no sequence get 0.
void write(const Arguments& a, const Tensor& result, const Tensor& from, const std::optional<Padding>& p) {
  if (!p) {
    copy(heads_first(a, result), from);
    return;
  }
  const Tensor rows = reshape(permute(from, {0, 2, 1, 3}), {p->batch * p->length, sizes(result)[1], sizes(result)[2]});
  copy(result, masked_fill(pick(rows, 0, *p->to_tokens), no(*p->is_token), 0.0));
}

OptionalTensor lengths_of(const OptionalTensor& t, std::int64_t batch) {
  if (!t) return std::nullopt;
  return reshape(to(*t, aoti_torch_dtype_float64()), {batch, 1, 1, 1});
}

/// The longest sequence on the CPU; elsewhere max_seqlen where it is given, at most the tokens.
std::int64_t longest(const Arguments& a, const OptionalTensor& cumulative, std::int64_t bound, std::int64_t tokens) {
  if (a.attn_bias || a.attn_mask) return bound;  // these are as large as the bound
  if (a.call.q.device_kind != aoti_torch_device_type_cpu()) return std::min(bound, tokens);
  return longest_on_host(host_lengths(cumulative), a.sizes.batch);
}

void also(OptionalTensor& visible, const Tensor& condition) {
  visible = visible ? both(*visible, condition) : condition;
}

void find_visible(const Arguments& a, Dense& d) {
  const Tensor i = reshape(count(a.q, d.rows), {1, 1, d.rows, 1});
  const Tensor j = reshape(count(a.q, d.keys), {1, 1, 1, d.keys});
  if (d.lengths_q) also(d.visible, less(i, *d.lengths_q));
  if (d.lengths_k) also(d.visible, less(j, *d.lengths_k));
  const std::int64_t right = a.call.causal ? 0 : a.call.window_right;
  if (right < 0 && a.call.window_left < 0 && !a.alibi_slopes) return;
  Tensor distance = sub(j, i);  // j - (i + offset)
  if (a.call.align == Align::bottom_right) {
    const Tensor rows = d.lengths_q ? *d.lengths_q : number(d.rows);
    const Tensor keys = d.lengths_k ? *d.lengths_k : number(d.keys);
    distance = sub(distance, sub(keys, rows));
  }
  if (right >= 0) also(d.visible, at_most(distance, number(right)));
  if (a.call.window_left >= 0) also(d.visible, at_least(distance, number(-a.call.window_left)));
  if (a.alibi_slopes) {
    const bool by_batch = rank(*a.alibi_slopes) == 2;
    const Tensor slopes = to(reshape(*a.alibi_slopes, {by_batch ? d.batch : 1, d.heads, 1, 1}), d.type);
    d.alibi = neg(mul(slopes, to(abs(distance), d.type)));
  }
}

/// Which pairs the kernels of `cpu` would keep, as bool: filled in place on the CPU.
Tensor kept_on_cpu(const Arguments& a, const Dense& d) {
  const auto* seed = static_cast<const std::int64_t*>(data(*a.dropout_seed));
  const cpu::Dropout dropout{
      .probability = a.call.dropout_p, .seed = seed[0], .offset = seed[strides(*a.dropout_seed)[0]]};
  const Tensor keep = empty(a.q, aoti_torch_dtype_float32(), {d.batch, d.heads, d.rows, d.keys});
  auto* values = static_cast<float*>(data(keep));
  for (std::int64_t head = 0; head < d.batch * d.heads; ++head)
    cpu::dropout_mask(dropout, head, d.rows, d.keys, values + head * d.rows * d.keys);
  return no(equal(keep, number(0.0)));
}

/// The same pairs by torch's integer operators, for other devices: Philox 4x32-10 of backends/cpu/philox.hpp on int64
/// tensors that hold 32 bits each. The seed stays on the device.
class TensorPhilox {
 public:
  TensorPhilox(const Arguments& a, const Dense& d) : a_(a), d_(d) {}

  Tensor kept() const {
    if (a_.call.dropout_p >= 1) return kept_none();
    const Tensor seed = pick(*a_.dropout_seed, 0, index(reshape(count(a_.q, 1), {1})));
    const Tensor offset = pick(*a_.dropout_seed, 0, ones_index());
    // key = seed + high half of offset * golden ratio, modulo 2^64, by 32-bit halves: sums are exact in float64.
    const Tensor bump = multiply(high(offset), integer(static_cast<std::int64_t>(0x9e3779b97f4a7c15U)));
    const Tensor low_sum = add(floating(low(seed)), floating(low(bump)));
    const Tensor key0 = wrapped(low_sum);
    const Tensor carry = to(at_least(low_sum, number(kTwo32)), aoti_torch_dtype_float64());
    const Tensor key1 = wrapped(add(add(floating(high(seed)), floating(high(bump))), carry));

    const std::int64_t blocks = (d_.keys + 3) / 4;
    const Sizes all{d_.batch * d_.heads, d_.rows, blocks};
    std::array<Tensor, 4> words{
        expand(reshape(index(count(a_.q, blocks)), {1, 1, blocks}), all),
        expand(reshape(index(count(a_.q, d_.rows)), {1, d_.rows, 1}), all),
        expand(reshape(index(count(a_.q, d_.batch * d_.heads)), {d_.batch * d_.heads, 1, 1}), all),
        expand(reshape(low(offset), {1, 1, 1}), all)};
    for (int round = 0; round < 10; ++round) {
      const Tensor k0 = bumped(key0, 0x9E3779B9U, round);
      const Tensor k1 = bumped(key1, 0xBB67AE85U, round);
      const Tensor product0 = multiply(words[0], integer(0xD2511F53));
      const Tensor product1 = multiply(words[2], integer(0xCD9E8D57));
      words = {exclusive_or(exclusive_or(high(product1), words[1]), k0), low(product1),
               exclusive_or(exclusive_or(high(product0), words[3]), k1), low(product0)};
    }
    // Word j % 4 of block j / 4 decides about column j.
    const double threshold = a_.call.dropout_p * kTwo32;
    const auto limit = static_cast<std::int64_t>(threshold);
    const Tensor stacked = aten("aten::stack", "", std::vector<Tensor>(words.begin(), words.end()), std::int64_t{3});
    const Tensor by_column = reshape(stacked, {d_.batch, d_.heads, d_.rows, blocks * 4});
    return at_least(narrow(by_column, 3, 0, d_.keys), integer(limit));
  }

 private:
  static constexpr double kTwo32 = 4294967296.0;

  static Tensor integer(std::int64_t value) {
    AtenTensorHandle result = nullptr;
    ok(aoti_torch_scalar_to_tensor_int64(value, &result), "a number");
    return Tensor(result);
  }
  static Tensor floating(const Tensor& t) { return to(t, aoti_torch_dtype_float64()); }
  static Tensor multiply(const Tensor& a, const Tensor& b) { return mul(a, b); }  // int64: modulo 2^64
  static Tensor exclusive_or(const Tensor& a, const Tensor& b) { return aten("aten::bitwise_xor", "Tensor", a, b); }
  static Tensor low(const Tensor& t) { return aten("aten::bitwise_and", "Tensor", t, integer(0xFFFFFFFF)); }
  static Tensor high(const Tensor& t) { return low(aten("aten::bitwise_right_shift", "Tensor", t, integer(32))); }
  /// A sum in float64 modulo 2^32, as int64.
  static Tensor wrapped(const Tensor& t) { return index(aten("aten::remainder", "Tensor", t, number(kTwo32))); }
  static Tensor bumped(const Tensor& key, std::uint32_t step, int round) {
    const auto all = static_cast<double>(step * static_cast<std::uint32_t>(round));
    return reshape(wrapped(add(floating(key), number(all))), {1, 1, 1});
  }
  Tensor ones_index() const {
    const Tensor one = empty(a_.q, aoti_torch_dtype_float64(), {1});
    fill(one, 1.0);
    return index(one);
  }
  Tensor kept_none() const {
    const Tensor none = empty(a_.q, aoti_torch_dtype_bool(), {d_.batch, d_.heads, d_.rows, d_.keys});
    fill(none, 0.0);
    return none;
  }

  const Arguments& a_;
  const Dense& d_;
};

Tensor dropout_keep(const Arguments& a, const Dense& d) {
  // CYNOSURE_CHECK=1 takes the other devices' way here too, so that it can be checked where no such device is.
  const bool on_cpu = a.call.q.device_kind == aoti_torch_device_type_cpu();
  const Tensor kept = on_cpu && !a.check_values ? kept_on_cpu(a, d) : TensorPhilox(a, d).kept();
  // 1 / (1 - p) in float64: the mask of the kernels has it in float32.
  const double scale = a.call.dropout_p < 1 ? 1.0 / (1.0 - a.call.dropout_p) : 0.0;
  return mul(to(kept, d.type), number(scale));
}

/// Something that no row attends, or that attends nothing, may hold NaN: it counts as 0.
Tensor zero_where(const Tensor& t, const Tensor& useless) { return masked_fill(t, useless, 0.0); }

Dense prepare(const Arguments& a) {
  Dense d;
  d.batch = a.sizes.batch;
  d.heads = a.sizes.heads;
  d.kv_heads = a.sizes.kv_heads;
  d.group = d.heads / d.kv_heads;
  d.type = a.call.q.element == Element::float64 ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32();
  d.rows = a.sizes.seqlen_q;
  d.keys = a.sizes.seqlen_k;
  if (a.call.dims == Dims::thd) {
    d.rows = longest(a, a.seqlens_q, d.rows, sizes(a.q)[0]);
    d.keys = longest(a, a.seqlens_k, d.keys, sizes(a.k)[0]);
    d.padding_q = padding_of(a.q, *a.seqlens_q, d.batch, d.rows);
    d.padding_k = padding_of(a.k, *a.seqlens_k, d.batch, d.keys);
    d.lengths_q = d.padding_q->lengths;
    d.lengths_k = d.padding_k->lengths;
  } else {
    d.lengths_q = lengths_of(a.seqlens_q, d.batch);
    d.lengths_k = lengths_of(a.seqlens_k, d.batch);
  }
  d.q = to(to_heads_first(a, a.q, d.padding_q), d.type);
  d.k = to(to_heads_first(a, a.k, d.padding_k), d.type);
  d.v = to(to_heads_first(a, a.v, d.padding_k), d.type);
  find_visible(a, d);
  if (a.attn_bias) d.bias = to(*a.attn_bias, d.type);
  if (a.attn_mask) {
    if (a.call.attn_mask.element == Element::boolean) {
      also(d.visible, *a.attn_mask);
    } else {
      d.mask = to(*a.attn_mask, d.type);
      also(d.visible, no(equal(*d.mask, number(-kInfinity))));
    }
  }
  if (d.visible) {
    const Tensor all = expand(*d.visible, {d.batch, d.heads, d.rows, d.keys});
    d.visible = all;
    const Tensor dead_rows = no(any(all, 3, true));
    const Tensor dead_keys =
        no(reshape(any(any(reshape(all, {d.batch, d.kv_heads, d.group, d.rows, d.keys}), 2, false), 2, true),
                   {d.batch, d.kv_heads, d.keys, 1}));
    d.q = zero_where(*d.q, dead_rows);
    d.k = zero_where(*d.k, dead_keys);
    d.v = zero_where(*d.v, dead_keys);
  }
  if (a.call.dropout_p > 0) d.keep = dropout_keep(a, d);
  return d;
}

/// weights x values, where a weight of 0 hides a NaN or an infinity, as in the kernels of `cpu`. Whether there are any
/// is read on the CPU only: elsewhere that would wait for the device, and a plain product is what the fused kernels do.
Tensor weighted(const Tensor& weights, const Tensor& values) {
  if (device_type(values) != aoti_torch_device_type_cpu()) return matmul(weights, values);
  const Tensor finite = aten("aten::isfinite", "", values);
  if (*static_cast<const bool*>(data(aten("aten::all", "", finite)))) return matmul(weights, values);
  const auto hits = [&](const Tensor& which) {  // whether a weight that is not 0 meets one of these
    const Tensor heavy = to(no(equal(weights, number(0.0))), dtype(values));
    return less(number(0.0), matmul(heavy, to(which, dtype(values))));
  };
  const Tensor infinite = aten("aten::isinf", "", values);
  const Tensor positive = less(number(0.0), values);
  const Tensor up = both(infinite, positive);
  const Tensor down = both(infinite, no(positive));
  // A negative weight turns an infinity over; then the sum is NaN or of the other sign. Weights are of one sign in the
  // forward pass; in the backward pass any of these is reported as NaN.
  const Tensor negative = aten("aten::any", "", less(weights, number(0.0)));
  Tensor result = matmul(weights, masked_fill(values, no(finite), 0.0));
  result = masked_fill(result, hits(up), kInfinity);
  result = masked_fill(result, hits(down), -kInfinity);
  const auto either = [](const Tensor& a, const Tensor& b) { return aten("aten::logical_or", "", a, b); };
  const Tensor undefined_sum =
      either(hits(aten("aten::isnan", "", values)), either(both(hits(up), hits(down)), both(hits(infinite), negative)));
  return masked_fill(result, undefined_sum, std::numeric_limits<double>::quiet_NaN());
}

/// [B, H, Sq, X] with the heads of a group as rows of their key head: [B, Hkv, G * Sq, X].
Tensor grouped(const Dense& d, const Tensor& t) {
  return d.group == 1 ? t : reshape(t, {d.batch, d.kv_heads, d.group * d.rows, sizes(t)[3]});
}
Tensor ungrouped(const Dense& d, const Tensor& t) {
  return d.group == 1 ? t : reshape(t, {d.batch, d.heads, d.rows, sizes(t)[3]});
}

struct Scores {
  Tensor s;                ///< all terms, -inf where not visible
  OptionalTensor tangent;  ///< tanh(s / cap), for its derivative
};
Scores scores(const Arguments& a, const Dense& d) {
  Scores r{.s = ungrouped(d, matmul(grouped(d, mul(*d.q, number(a.scale))), transpose(*d.k, 2, 3))), .tangent = {}};
  if (a.call.softcap > 0) {
    r.tangent = tanh(mul(r.s, number(1.0 / a.call.softcap)));
    r.s = mul(*r.tangent, number(a.call.softcap));
  }
  for (const OptionalTensor* term : {&d.bias, &d.alibi, &d.mask})
    if (*term) r.s = add(r.s, **term);
  if (d.visible) r.s = masked_fill(r.s, no(*d.visible), -kInfinity);
  return r;
}

Tensor sink_logits(const Arguments& a, const Dense& d) { return reshape(to(*a.sinks, d.type), {1, d.heads, 1, 1}); }

struct Softmax {
  Tensor p;         ///< 0 in rows without anything to attend
  Tensor m, total;  ///< [B, H, Sq, 1]: the reference of the exponents, and their sum
};
Softmax softmax_of(const Arguments& a, const Dense& d, const Tensor& s) {
  Tensor m = amax(s, 3);
  if (a.sinks) m = maximum(m, sink_logits(a, d));
  m = masked_fill(m, equal(m, number(-kInfinity)), 0.0);
  const Tensor e = exp(sub(s, m));
  Tensor total = sum(e, {3}, true);
  if (a.sinks) total = add(total, exp(sub(sink_logits(a, d), m)));
  return {.p = div(e, masked_fill(total, equal(total, number(0.0)), 1.0)), .m = m, .total = total};
}

/// Rows without anything to attend, [B, H, Sq, 1]; nothing where every row has something.
OptionalTensor empty_rows(const Dense& d) {
  if (d.visible) return no(any(*d.visible, 3, true));
  return std::nullopt;
}

/// No pair at all: results are zeros.
bool is_empty(const Arguments& a, const Dense& d) {
  return d.batch == 0 || d.rows == 0 || d.keys == 0 || a.q.numel() == 0 || a.k.numel() == 0;
}
bool nothing_to_do(const Arguments& a) { return a.sizes.batch == 0 || a.q.numel() == 0 || a.k.numel() == 0; }

}  // namespace

ForwardResult forward_unfused(const Arguments& a) {
  ForwardResult result{.out = new_out(a), .lse = new_lse(a)};
  const auto nothing = [&] {
    fill(result.out, 0.0);
    if (result.lse) fill(*result.lse, -kInfinity);
  };
  if (nothing_to_do(a)) {
    nothing();
    return result;
  }
  const Dense d = prepare(a);
  if (is_empty(a, d)) {
    nothing();
    return result;
  }
  const OptionalTensor dead = empty_rows(d);
  const Softmax softmax = softmax_of(a, d, scores(a, d).s);
  Tensor p = softmax.p;
  if (d.keep) p = mul(p, *d.keep);
  Tensor out = ungrouped(d, weighted(grouped(d, p), *d.v));
  if (dead) out = masked_fill(out, *dead, 0.0);
  write(a, result.out, out, d.padding_q);
  if (result.lse) {
    Tensor lse = add(log(softmax.total), softmax.m);
    if (dead) lse = masked_fill(lse, *dead, -kInfinity);
    if (d.padding_q) {
      const Padding& p_q = *d.padding_q;
      const Tensor rows = reshape(permute(lse, {0, 2, 1, 3}), {p_q.batch * p_q.length, d.heads});
      const Tensor outside = reshape(no(*p_q.is_token), {p_q.tokens, 1});
      copy(transpose(*result.lse, 0, 1), masked_fill(pick(rows, 0, *p_q.to_tokens), outside, -kInfinity));
    } else {
      copy(*result.lse, reshape(lse, {d.batch, d.heads, d.rows}));
    }
  }
  return result;
}

BackwardResult backward_unfused(const Arguments& a, const BackwardInputs& in) {
  BackwardResult result{
      .dq = new_like(a, a.q), .dk = new_like(a, a.k), .dv = new_like(a, a.v), .dbias = {}, .dmask = {}, .dsinks = {}};
  const bool bias_grad = a.attn_bias && a.call.bias_requires_grad;
  const bool mask_grad = a.attn_mask && a.mask_requires_grad && a.call.attn_mask.element != Element::boolean;
  const bool sinks_grad = a.sinks && a.sinks_requires_grad;
  if (bias_grad) result.dbias = zeros_like(*a.attn_bias);
  if (mask_grad) result.dmask = zeros_like(*a.attn_mask);
  if (sinks_grad) result.dsinks = zeros_like(*a.sinks);
  const auto nothing = [&] {
    fill(result.dq, 0.0);
    fill(result.dk, 0.0);
    fill(result.dv, 0.0);
  };
  if (nothing_to_do(a)) {
    nothing();
    return result;
  }
  const Dense d = prepare(a);
  if (is_empty(a, d)) {
    nothing();
    return result;
  }
  const Scores score = scores(a, d);
  const OptionalTensor dead = empty_rows(d);
  const auto rows_of = [&](const Tensor& t) {  // [B, H, Sq] or [H, T] as [B, H, Sq, 1]
    if (!d.padding_q) return to(reshape(t, {d.batch, d.heads, d.rows, 1}), d.type);
    const Padding& p = *d.padding_q;
    const Tensor rows = pick(transpose(t, 0, 1), 0, *p.from_tokens);
    return to(permute(reshape(rows, {p.batch, p.length, d.heads, 1}), {0, 2, 1, 3}), d.type);
  };
  Tensor dout = to(to_heads_first(a, in.grad_out, d.padding_q), d.type);
  if (dead) dout = masked_fill(dout, *dead, 0.0);
  // Not from the LSE, which is float32: a float64 call keeps its precision.
  const Softmax softmax = softmax_of(a, d, score.s);
  const Tensor& p = softmax.p;
  const Tensor kept = d.keep ? mul(p, *d.keep) : p;
  const Tensor rows_dout = grouped(d, dout);
  write(a, result.dv, weighted(transpose(grouped(d, kept), 2, 3), rows_dout), d.padding_k);
  Tensor dp = ungrouped(d, matmul(rows_dout, transpose(*d.v, 2, 3)));
  if (d.visible) dp = masked_fill(dp, no(*d.visible), 0.0);
  if (d.keep) dp = mul(dp, *d.keep);
  Tensor delta = sum(mul(p, dp), {3}, true);
  if (in.grad_lse) {
    Tensor dlse = rows_of(*in.grad_lse);
    if (dead) dlse = masked_fill(dlse, *dead, 0.0);
    delta = sub(delta, dlse);
  }
  Tensor ds = mul(p, sub(dp, delta));
  if (d.visible) ds = masked_fill(ds, no(*d.visible), 0.0);
  const auto reduce = [&](const Tensor& to_shape) {
    Sizes dims;
    for (std::int64_t i = 0; i < 4; ++i)
      if (sizes(to_shape)[i] == 1 && sizes(ds)[i] != 1) dims.push_back(i);
    return dims.empty() ? ds : sum(ds, dims, true);
  };
  if (bias_grad) copy(*result.dbias, reduce(*a.attn_bias));
  if (mask_grad) copy(*result.dmask, reduce(*a.attn_mask));
  if (sinks_grad) {
    Tensor sink = mul(div(exp(sub(sink_logits(a, d), softmax.m)), softmax.total), neg(delta));
    if (dead) sink = masked_fill(sink, *dead, 0.0);
    copy(*result.dsinks, reshape(sum(sink, {0, 2}, false), {d.heads}));
  }
  if (score.tangent) ds = mul(ds, sub(number(1.0), mul(*score.tangent, *score.tangent)));
  const Tensor rows_ds = grouped(d, mul(ds, number(a.scale)));
  write(a, result.dq, ungrouped(d, weighted(rows_ds, *d.k)), d.padding_q);
  write(a, result.dk, weighted(transpose(rows_ds, 2, 3), grouped(d, *d.q)), d.padding_k);
  return result;
}

}  // namespace cynosure::torch_abi
