// SPDX-License-Identifier: Apache-2.0
// torch/run_aten_flash.cpp: the backend `aten_flash`: FlashAttention 2 as torch has it, through torch's dispatcher.
#include <algorithm>
#include <array>

#include "torch/backend.hpp"
#include "torch/cuda_call.hpp"
#include "torch/tensor_math.hpp"

namespace cynosure::torch_abi {
namespace {

// --- torch's two operators: the one place that knows their schemas

/// More than any of them has. Newer versions of torch append optional arguments (2.11 has 15 for forward; 2.15 has
/// `block_table` and `num_splits` besides): a 0 on the stack is None for each of them.
using Stack = std::array<StableIValue, 32>;

template <class... Values>
Stack call(const char* name, const Values&... arguments) {
  static_assert(sizeof...(Values) < std::tuple_size_v<Stack>);
  Stack stack{torch::stable::detail::from(arguments)...};
  ok(torch_call_dispatcher(name, "", stack.data(), TORCH_ABI_VERSION), name);
  return stack;
}
Tensor taken(StableIValue value) { return torch::stable::detail::to<Tensor>(value); }

/// What both operators are told besides tensors.
struct Terms {
  std::int64_t most_q = 0, most_k = 0;
  bool causal = false;
  double scale = 1;
  std::int64_t left = -1, right = -1;
};

struct Forward {
  Tensor out, lse;
};
Forward flash_forward(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& starts_q,
                      const OptionalTensor& starts_k, const Terms& t) {
  const Stack stack =
      call("aten::_flash_attention_forward", q, k, v, starts_q, starts_k, t.most_q, t.most_k, 0.0 /*dropout_p*/,
           t.causal, false /*return_debug_mask*/, std::optional<double>(t.scale), std::optional<std::int64_t>(t.left),
           std::optional<std::int64_t>(t.right), std::nullopt /*seqused_k*/, std::nullopt /*alibi_slopes*/);
  // The other three are about dropout; which of them hold the seed has changed between versions.
  for (const std::size_t i : {2U, 3U, 4U}) static_cast<void>(taken(stack[i]));
  return {.out = taken(stack[0]), .lse = taken(stack[1])};
}

struct Backward {
  Tensor dq, dk, dv;
};
Backward flash_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                        const Tensor& lse, const OptionalTensor& starts_q, const OptionalTensor& starts_k,
                        const Terms& t) {
  const Tensor rng_state = empty(q, aoti_torch_dtype_uint64(), Sizes{2});  // not read without dropout
  const Stack stack =
      call("aten::_flash_attention_backward", dout, q, k, v, out, lse, starts_q ? *starts_q : undefined(),
           starts_k ? *starts_k : undefined(), t.most_q, t.most_k, 0.0 /*dropout_p*/, t.causal, rng_state, rng_state,
           std::optional<double>(t.scale), std::optional<std::int64_t>(t.left), std::optional<std::int64_t>(t.right));
  return {.dq = taken(stack[0]), .dk = taken(stack[1]), .dv = taken(stack[2])};
}

// --- tensors as the kernels read them

/// Kernels load 16 bytes at once, whatever torch lets through.
Tensor readable(const Tensor& t) {
  constexpr std::uintptr_t bytes = 16;
  constexpr std::int64_t elements = 8;
  const std::int64_t dims = rank(t);
  const std::int64_t* n = sizes(t);
  const std::int64_t* s = strides(t);
  bool good = reinterpret_cast<std::uintptr_t>(data(t)) % bytes == 0 && s[dims - 1] == 1;
  for (std::int64_t i = 0; i + 1 < dims; ++i) good = good && (n[i] == 1 || s[i] % elements == 0);
  if (good) return t;
  Tensor result = empty_like(t);
  copy(result, t);
  return result;
}

/// [B, S, H, D] view from the call's layout, and back; [T, H, D] stays.
Tensor turned(const Arguments& a, const Tensor& t) {
  if (a.call.dims == Dims::sbhd) return transpose(t, 0, 1);
  if (a.call.dims == Dims::bhsd) return transpose(t, 1, 2);
  return t;
}
Tensor input(const Arguments& a, const Tensor& t) { return turned(a, readable(t)); }
Tensor signed_q(const Arguments& a) {
  const double sign = sign_of_scale(a);
  return input(a, sign > 0 ? a.q : mul(a.q, number(sign)));
}

/// Whether a [B, S, H, D] or [T, H, D] result lies in memory as `new_out` and `new_like` do. torch follows its inputs.
bool is_in_place(const Arguments& a, const Tensor& t) {
  const std::int64_t* n = sizes(t);
  const std::int64_t* s = strides(t);
  if (a.call.dims == Dims::thd) return s[2] == 1 && s[1] == n[2] && s[0] == n[1] * n[2];
  const std::int64_t row = n[2] * n[3];
  if (s[3] != 1 || s[2] != n[3]) return false;
  return a.call.dims == Dims::sbhd ? s[0] == row && s[1] == n[0] * row : s[1] == row && s[0] == n[1] * row;
}
Tensor output(const Arguments& a, const Tensor& found, Tensor (*make)(const Arguments&, const Tensor&),
              const Tensor& like) {
  if (is_in_place(a, found)) return turned(a, found);
  Tensor result = make(a, like);
  copy(result, turned(a, found));
  return result;
}
Tensor new_out_like(const Arguments& a, const Tensor& /*like*/) { return new_out(a); }

void clear(const Tensor& t, const Tensor& where, double value) {
  static_cast<void>(aten("aten::masked_fill_", "Tensor", t, where, number(value)));
}

// --- ragged batches

/// Lengths are values on the device, and the kernels believe them; so they are made ones that stay in bounds. What
/// keeps the contract is not changed.
struct Sequences {
  OptionalTensor starts;   ///< int32 [B + 1]
  OptionalTensor outside;  ///< bool [T, 1, 1]: tokens behind the last sequence, which no kernel writes
};
Sequences sequences_of(const Arguments& a, const OptionalTensor& given, const Tensor& tokens, std::int64_t most) {
  if (a.call.dims != Dims::thd) return {};
  const std::int64_t batch = a.sizes.batch;
  const std::int64_t total = sizes(tokens)[0];
  const Tensor values = to(*given, aoti_torch_dtype_float64());
  const Tensor lengths = clamp(sub(narrow(values, 0, 1, batch), narrow(values, 0, 0, batch)), std::min(most, total));
  const Tensor ends = clamp(aten("aten::cumsum", "", lengths, std::int64_t{0}, std::nullopt), total);
  Sequences result;
  result.starts = empty(a.q, aoti_torch_dtype_int32(), {batch + 1});
  fill(*result.starts, 0.0);
  copy(narrow(*result.starts, 0, 1, batch), ends);
  result.outside = reshape(at_least(count(a.q, total), narrow(ends, 0, batch - 1, 1)), {total, 1, 1});
  return result;
}

Terms terms_of(const Arguments& a) {
  Terms t{.most_q = a.sizes.seqlen_q,
          .most_k = a.sizes.seqlen_k,
          .causal = a.call.causal,
          .scale = size_of_scale(a),
          .left = a.call.window_left,
          .right = a.call.causal ? -1 : a.call.window_right};
  if (a.call.dims == Dims::thd) {
    // For ragged batches with one query at most, torch takes the number of tokens for that of sequences.
    t.most_q = std::max<std::int64_t>(std::min(t.most_q, sizes(a.q)[0]), 2);
    t.most_k = std::min(t.most_k, sizes(a.k)[0]);
  }
  // Far windows, too: what reaches beyond every key is none, and no number of 32 bits is passed.
  if (t.left >= t.most_k + t.most_q) t.left = -1;
  if (t.right >= t.most_k + t.most_q) t.right = -1;
  return t;
}

/// Whether a row may have no key: torch gives those an LSE of +inf, and expects that in backward.
bool rows_may_be_empty(const Arguments& a) {
  const std::int64_t right = a.call.causal ? 0 : a.call.window_right;
  return a.call.dims == Dims::thd || (right >= 0 && a.sizes.seqlen_k - a.sizes.seqlen_q + right < 0);
}

}  // namespace

ForwardResult forward_aten_flash(const Arguments& a) {
  if (nothing_to_do(a)) {
    ForwardResult result{.out = new_out(a), .lse = new_lse(a)};
    fill(result.out, 0.0);
    if (result.lse) fill(*result.lse, -kInfinity);
    return result;
  }
  const OnDevice guard(a.call.q.device_index);
  const Terms terms = terms_of(a);
  const Sequences queries = sequences_of(a, a.seqlens_q, a.q, terms.most_q);
  const Sequences keys = sequences_of(a, a.seqlens_k, a.k, terms.most_k);
  const Forward found = flash_forward(signed_q(a), input(a, a.k), input(a, a.v), queries.starts, keys.starts, terms);
  if (queries.outside) clear(found.out, *queries.outside, 0.0);
  ForwardResult result{.out = output(a, found.out, &new_out_like, a.q), .lse = {}};
  if (!a.call.training && !a.call.return_lse) return result;
  Tensor lse = found.lse;
  if (rows_may_be_empty(a)) clear(lse, equal(lse, number(kInfinity)), -kInfinity);
  if (queries.outside) {
    clear(lse, reshape(*queries.outside, {1, sizes(a.q)[0]}), -kInfinity);
    const OptionalTensor mine = new_lse(a);
    copy(*mine, lse);
    lse = *mine;
  }
  result.lse = lse;
  return result;
}

BackwardResult backward_aten_flash(const Arguments& a, const BackwardInputs& in) {
  BackwardResult result{.dq = {}, .dk = {}, .dv = {}, .dbias = {}, .dmask = {}, .dsinks = {}};
  if (nothing_to_do(a)) {
    result.dq = new_like(a, a.q);
    result.dk = new_like(a, a.k);
    result.dv = new_like(a, a.v);
    for (const Tensor* t : {&result.dq, &result.dk, &result.dv}) fill(*t, 0.0);
    return result;
  }
  const OnDevice guard(a.call.q.device_index);
  const Terms terms = terms_of(a);
  const Sequences queries = sequences_of(a, a.seqlens_q, a.q, terms.most_q);
  const Sequences keys = sequences_of(a, a.seqlens_k, a.k, terms.most_k);
  Tensor lse = aten("aten::contiguous", "", in.lse, aoti_torch_memory_format_contiguous_format());
  if (rows_may_be_empty(a)) lse = masked_fill(lse, equal(lse, number(-kInfinity)), kInfinity);
  Backward found = flash_backward(input(a, in.grad_out), signed_q(a), input(a, a.k), input(a, a.v), input(a, in.out),
                                  lse, queries.starts, keys.starts, terms);
  if (queries.outside) {
    clear(found.dq, *queries.outside, 0.0);
    clear(found.dk, *keys.outside, 0.0);
    clear(found.dv, *keys.outside, 0.0);
  }
  if (sign_of_scale(a) <= 0) found.dq = mul(found.dq, number(sign_of_scale(a)));
  result.dq = output(a, found.dq, &new_like, a.q);
  result.dk = output(a, found.dk, &new_like, a.k);
  result.dv = output(a, found.dv, &new_like, a.v);
  return result;
}

}  // namespace cynosure::torch_abi
