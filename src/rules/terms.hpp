// SPDX-License-Identifier: Apache-2.0
// rules/terms.hpp: the words in which rows are written. A row is a Rule and a predicate over Call; predicates are
// single expressions of &&, || and ! (an `if` would not work on a Truth).
#pragma once

#include <cynosure/length_facts.hpp>
#include <cynosure/problem.hpp>
#include <cynosure/rule.hpp>

namespace cynosure::rules {

/// One call as a rule sees it. `te`: the policy is TransformerEngine's, so its literal reading of masks applies.
template <class Oracle>
struct Call {
  const Features& f;
  const Device& d;
  Settings s;
  const LengthFacts<Oracle>& len;
  bool te = false;
  LayoutInfo layout{};
};

template <class Predicate>
struct Row {
  Rule rule;
  Predicate fires;
};
template <class Predicate>
constexpr Row<Predicate> row(Rule rule, Predicate fires) {
  return {rule, fires};
}

constexpr Version v(unsigned major, unsigned minor, unsigned micro = 0) { return {major, minor, micro}; }

// ---- architecture -----------------------------------------------------------------------------------------------
/// Consumer Blackwell. TransformerEngine compares with 12.0 exactly, so 12.1 falls between its rules (quirk Q7).
constexpr bool sm12x(const auto& c) { return c.te ? c.d.sm == 120 : (c.d.sm >= 120 && c.d.sm < 130); }

// ---- types ------------------------------------------------------------------------------------------------------
constexpr bool half(DType t) { return t == DType::bfloat16 || t == DType::float16; }
constexpr bool fp8(DType t) { return t == DType::float8_e4m3 || t == DType::float8_e5m2; }
/// The attention itself runs in FP8.
constexpr bool fp8_attention(const auto& c) { return c.f.fp8 && c.f.fp8_dpa; }
/// What cuDNN is asked for: an FP8 graph, or a 16-bit one.
constexpr bool fp8_graph(const auto& c) { return fp8_attention(c) || fp8(c.f.dtype); }
/// An unlisted tensor subclass counts as a plain tensor, except for TransformerEngine (quirk Q10).
constexpr bool plain_tensor(const auto& c) {
  return c.f.tensor_kind == TensorKind::plain || (!c.te && c.f.tensor_kind == TensorKind::other);
}

// ---- layout -----------------------------------------------------------------------------------------------------
/// TransformerEngine's "thd" in its Python stages: the combined format is exactly thd. Without a KV cache it takes a
/// mixed layout, paged ones included, for its q format.
constexpr bool thd(const auto& c) {
  return c.layout.q == Format::thd && (c.f.kv_cache == KvCache::none || c.layout.kv == Format::thd);
}
/// The format both q and kv have, as cuDNN's probe derives it.
constexpr bool both(const auto& c, Format format) { return c.layout.q == format && c.layout.kv == format; }
constexpr bool bshd_or_sbhd(const auto& c) { return both(c, Format::bshd) || both(c, Format::sbhd); }
constexpr bool one_buffer_qkv(const auto& c) {
  return c.layout.group == LayoutGroup::packed_3hd || c.layout.group == LayoutGroup::packed_h3d;
}
constexpr bool paged_layout(const auto& c) { return c.layout.group == LayoutGroup::paged; }

// ---- masks ------------------------------------------------------------------------------------------------------
/// Every sequence has as many queries as keys, so both alignments mean the same.
constexpr auto equal_lengths(const auto& c) { return c.len.q_equals_k() && (!c.f.padding || c.f.same_lengths); }
constexpr bool masked(const auto& c) { return c.f.attn_mask != AttnMask::none; }
constexpr bool no_mask(const auto& c) { return !c.f.causal && !c.f.padding; }
/// "causal": aligned top left; for equal lengths the other name of the same mask does as well (not for `te`).
constexpr auto causal_top_left(const auto& c) {
  return c.f.causal && (c.f.align == Align::top_left || (!c.te && equal_lengths(c)));
}
constexpr auto causal_bottom_right(const auto& c) {
  return c.f.causal && (c.f.align == Align::bottom_right || (!c.te && equal_lengths(c)));
}
/// Only as "causal", not as "causal_bottom_right".
constexpr auto strictly_top_left(const auto& c) { return c.f.causal && !causal_bottom_right(c); }
/// The right edge once an unstated window is resolved: 0 for a causal mask.
constexpr std::int32_t window_right(const auto& c) {
  return c.f.window_given ? c.f.window_right : (c.f.causal ? 0 : -1);
}
constexpr std::int32_t window_left(const auto& c) { return c.f.window_given ? c.f.window_left : -1; }
/// A sliding window proper: more than a plain causal mask.
constexpr bool sliding_window(const auto& c) {
  return window_left(c) != -1 || (window_right(c) != -1 && window_right(c) != 0);
}
/// Both lengths are multiples of 64 and no query comes without a key. In this order: over symbolic lengths the last
/// two are asked only where q <= k does not settle the row.
constexpr auto aligned64(const auto& c) {
  return c.len.q_at_most_k() && c.len.q.multiple_of(64) && c.len.k.multiple_of(64);
}

/// Where cuDNN was seen to be right beyond what TransformerEngine asks of it: on an H200 with 9.19, by the releases
/// that cudnn-frontend 1.28 names.
constexpr bool measured_cudnn(const auto& c) {
  return !c.te && c.d.sm >= 90 && c.d.sm < 100 && c.d.cudnn >= v(9, 10, 2);
}

// ---- bias and softmax -------------------------------------------------------------------------------------------
constexpr bool vanilla(const auto& c) { return c.f.softmax == Softmax::vanilla; }
/// ALiBi with slopes reaches cuDNN as a bias after scaling; so does a dense mask, except under `te`, which refuses it.
constexpr bool cudnn_post_scale(const auto& c) {
  return c.f.bias_type == BiasType::post_scale_bias || (c.f.bias_type == BiasType::alibi && c.f.alibi_slopes) ||
         (!c.te && masked(c));
}
constexpr bool cudnn_alibi(const auto& c) { return c.f.bias_type == BiasType::alibi && !c.f.alibi_slopes; }
constexpr bool cudnn_no_bias(const auto& c) { return c.f.bias_type == BiasType::none && (c.te || !masked(c)); }
/// A bias tensor whose gradient is wanted. TransformerEngine's record says so even where there is no bias (quirk Q2).
constexpr bool bias_gradient(const auto& c) {
  return c.f.bias_requires_grad &&
         (c.te || c.f.bias_type == BiasType::post_scale_bias || c.f.bias_type == BiasType::pre_scale_bias);
}

}  // namespace cynosure::rules
