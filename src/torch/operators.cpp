// SPDX-License-Identifier: Apache-2.0
// torch/operators.cpp: the operators. attention_forward and attention_backward decide at run time and run; `attention`
// is what a compiled graph shows, and its kernel (python/cynosure/_operators.py) records the raw pair.
#include <algorithm>
#include <string>

#include "torch/backend.hpp"

namespace cynosure::torch_abi {
namespace {

/// [B, S, H, D] by layout, with `sequence` rows and so on.
Tensor dense(const Arguments& a, std::int64_t tokens_or_length, std::int64_t heads, std::int64_t width) {
  const std::int64_t b = a.sizes.batch;
  const std::int64_t s = tokens_or_length;
  const std::int64_t row = heads * width;
  const std::int64_t plane = std::max<std::int64_t>(s, 1) * row;  // strides as torch makes them where a size is 0
  const std::int64_t step = std::max<std::int64_t>(b, 1) * row;
  const std::int32_t type = dtype(a.q);
  switch (a.call.dims) {
    case Dims::bshd: {
      const std::array size{b, s, heads, width};
      const std::array stride{plane, row, width, std::int64_t{1}};
      return empty(a.q, type, size.data(), stride.data(), 4);
    }
    case Dims::sbhd: {
      const std::array size{s, b, heads, width};
      const std::array stride{step, row, width, std::int64_t{1}};
      return empty(a.q, type, size.data(), stride.data(), 4);
    }
    case Dims::bhsd: {
      const std::array size{b, heads, s, width};
      const std::array stride{plane, width, row, std::int64_t{1}};
      return empty(a.q, type, size.data(), stride.data(), 4);
    }
    case Dims::thd:
      break;
  }
  const std::array size{s, heads, width};
  const std::array stride{row, width, std::int64_t{1}};
  return empty(a.q, type, size.data(), stride.data(), 3);
}

std::int64_t rows_of(const Arguments& a, const Tensor& t) {
  constexpr std::array axis{1, 0, 2, 0};
  return sizes(t)[axis[static_cast<std::size_t>(a.call.dims)]];
}
std::int64_t heads_of(const Arguments& a, const Tensor& t) {
  constexpr std::array axis{2, 2, 1, 1};
  return sizes(t)[axis[static_cast<std::size_t>(a.call.dims)]];
}

/// Takes over what the stack owns.
Tensor tensor(StableIValue value) { return Tensor(reinterpret_cast<AtenTensorHandle>(value)); }
StableIValue give(const Tensor& tensor) { return torch::stable::detail::from(tensor); }
StableIValue give(const OptionalTensor& tensor) { return torch::stable::detail::from(tensor ? *tensor : undefined()); }

ForwardResult run(const Arguments& a) {
  const NoGrad guard;
  switch (decide(a, false)) {
    case Backend::cpu:
      return forward_cpu(a);
    case Backend::cudnn:
      return forward_cudnn(a);
    case Backend::aten_flash:
      return forward_aten_flash(a);
    default:
      return forward_unfused(a);
  }
}

template <Shared kShared>
void forward(StableIValue* stack, std::uint64_t /*arguments*/, std::uint64_t /*results*/) {
  Arguments a;
  read(a, stack, stack + 3, kShared);
  const ForwardResult result = run(a);
  stack[0] = give(result.out);
  stack[1] = give(result.lse ? *result.lse : empty(a.q, aoti_torch_dtype_float32(), Sizes{0}));
}

/// Of a plain call the output alone.
void output(StableIValue* stack, std::uint64_t /*arguments*/, std::uint64_t /*results*/) {
  Arguments a;
  read(a, stack, stack + 3, Shared::two);
  stack[0] = give(run(a).out);
}

/// Gradients and saved tensors have the shapes that forward gave.
void check_saved(const Arguments& a, const BackwardInputs& in) {
  const auto expect = [&](const char* name, const Tensor& t, std::int64_t width) {
    const std::int64_t last = rank(t) - 1;
    const bool good =
        rank(t) == rank(a.q) && rows_of(a, t) == rows_of(a, a.q) && heads_of(a, t) == a.sizes.heads &&
        sizes(t)[last] == width && dtype(t) == dtype(a.q) && device_type(t) == device_type(a.q) &&
        (a.call.dims == Dims::thd || t.numel() == a.sizes.batch * rows_of(a, a.q) * a.sizes.heads * width);
    if (!good) fail(ErrorKind::value, std::string(name) + ": not of the shape, dtype and device of the output");
  };
  expect("grad_out", in.grad_out, a.sizes.head_dim_v);
  expect("out", in.out, a.sizes.head_dim_v);
  const std::int64_t rows = (a.call.dims == Dims::thd ? 1 : a.sizes.batch) * rows_of(a, a.q) * a.sizes.heads;
  const auto expect_rows = [&](const char* name, const Tensor& t) {
    if (t.numel() != rows || dtype(t) != aoti_torch_dtype_float32() || device_type(t) != device_type(a.q))
      fail(ErrorKind::value, std::string(name) + ": not of the shape, dtype and device of the LSE");
  };
  expect_rows("lse", in.lse);
  if (in.grad_lse) expect_rows("grad_lse", *in.grad_lse);
}

BackwardResult run(const Arguments& a, const BackwardInputs& in) {
  check_saved(a, in);
  const NoGrad guard;
  switch (decide(a, true)) {
    case Backend::cpu:
      return backward_cpu(a, in);
    case Backend::cudnn:
      return backward_cudnn(a, in);
    case Backend::aten_flash:
      return backward_aten_flash(a, in);
    default:
      return backward_unfused(a, in);
  }
}

void backward(StableIValue* stack, std::uint64_t /*arguments*/, std::uint64_t /*results*/) {
  const BackwardInputs in{.grad_out = tensor(stack[0]),
                          .grad_lse = torch::stable::detail::to<OptionalTensor>(stack[1]),
                          .out = tensor(stack[5]),
                          .lse = tensor(stack[6])};
  Arguments a;
  read(a, stack + 2, stack + 7, Shared::all);
  const BackwardResult result = run(a, in);
  stack[0] = give(result.dq);
  stack[1] = give(result.dk);
  stack[2] = give(result.dv);
  stack[3] = give(result.dbias);
  stack[4] = give(result.dmask);
  stack[5] = give(result.dsinks);
}

void plain_backward(StableIValue* stack, std::uint64_t /*arguments*/, std::uint64_t /*results*/) {
  const BackwardInputs in{
      .grad_out = tensor(stack[0]), .grad_lse = {}, .out = tensor(stack[4]), .lse = tensor(stack[5])};
  Arguments a;
  read(a, stack + 1, stack + 6, Shared::two);
  const BackwardResult result = run(a, in);
  stack[0] = give(result.dq);
  stack[1] = give(result.dk);
  stack[2] = give(result.dv);
}

/// int64 [2] on the device of a tensor, from torch's default generator there: the seed of a call's dropout, and 0.
void draw_seed(StableIValue* stack, std::uint64_t /*arguments*/, std::uint64_t /*results*/) {
  const Tensor like = tensor(stack[0]);
  const NoGrad guard;
  Tensor seed = empty(like, aoti_torch_dtype_int64(), {2});
  seed = aten("aten::random_", "from", seed, std::int64_t{0}, std::optional<std::int64_t>(INT64_MAX), std::nullopt);
  stack[0] = give(seed);
}

const char* forward_schema() {
  static const std::string text = std::string("attention_forward(Tensor query, Tensor key, Tensor value, ") +
                                  kSharedSchema + ") -> (Tensor out, Tensor lse)";
  return text.c_str();
}
const char* backward_schema() {
  static const std::string text =
      std::string(
          "attention_backward(Tensor grad_out, Tensor? grad_lse, Tensor query, Tensor key, Tensor value, "
          "Tensor out, Tensor lse, ") +
      kSharedSchema +
      ") -> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_bias, Tensor grad_mask, "
      "Tensor grad_sinks)";
  return text.c_str();
}

}  // namespace

Tensor new_out(const Arguments& a) { return dense(a, rows_of(a, a.q), a.sizes.heads, a.sizes.head_dim_v); }
Tensor new_like(const Arguments& a, const Tensor& like) {
  return dense(a, rows_of(a, like), heads_of(a, like), sizes(like)[rank(like) - 1]);
}
OptionalTensor new_lse(const Arguments& a) {
  if (!a.call.training && !a.call.return_lse) return std::nullopt;
  const std::int32_t type = aoti_torch_dtype_float32();
  if (a.call.dims == Dims::thd) {
    const std::array size{a.sizes.heads, rows_of(a, a.q)};
    const std::array stride{std::int64_t{1}, std::max<std::int64_t>(a.sizes.heads, 1)};
    return empty(a.q, type, size.data(), stride.data(), 2);
  }
  return empty(a.q, type, {a.sizes.batch, a.sizes.heads, rows_of(a, a.q)});
}

STABLE_TORCH_LIBRARY(cynosure, m) {
  m.def(
      "attention(Tensor query, Tensor key, Tensor value, int settings, bool causal=False, *, str layout=\"bshd\", "
      "str align=\"bottom_right\", int window_left=-1, int window_right=-1, Tensor? attn_bias=None, "
      "Tensor? attn_mask=None, Tensor? alibi_slopes=None, float softcap=0.0, Tensor? sinks=None, float? scale=None, "
      "float dropout_p=0.0, Tensor? dropout_seed=None, Tensor? seqlens_q=None, Tensor? seqlens_k=None, "
      "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, "
      "bool return_lse=False, bool lse_grad=False, int runtime=0) -> (Tensor out, Tensor lse)");
  m.def(forward_schema());
  m.def(backward_schema());
  m.def("attention_forward.output(Tensor query, Tensor key, Tensor value, int options, int settings) -> Tensor");
  m.def(
      "attention_forward.plain(Tensor query, Tensor key, Tensor value, int options, int settings) -> "
      "(Tensor out, Tensor lse)");
  m.def(
      "attention_backward.plain(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, "
      "int options, int settings) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)");
  // draw_seed is declared by python/cynosure/_operators.py: only Python can give it its tag.
}

#define CYNOSURE_KERNELS(key)                                 \
  STABLE_TORCH_LIBRARY_IMPL(cynosure, key, m) {               \
    m.impl("attention_forward", &forward<Shared::all>);       \
    m.impl("attention_forward.plain", &forward<Shared::two>); \
    m.impl("attention_forward.output", &output);              \
    m.impl("attention_backward", &backward);                  \
    m.impl("attention_backward.plain", &plain_backward);      \
    m.impl("draw_seed", &draw_seed);                          \
  }
CYNOSURE_KERNELS(CPU)
CYNOSURE_KERNELS(CUDA)
CYNOSURE_KERNELS(MPS)
CYNOSURE_KERNELS(XPU)
CYNOSURE_KERNELS(PrivateUse1)

}  // namespace cynosure::torch_abi
