// SPDX-License-Identifier: Apache-2.0
// torch/run_cpu.cpp: the backend `cpu`: tensors to pointers and strides, torch's threads, workspace.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "backends/cpu/attention.hpp"
#include "torch/backend.hpp"

namespace cynosure::torch_abi {
namespace {

template <class Side>
Side side_of(const Arguments& a, const Tensor& t) {
  const std::int64_t* s = strides(t);
  switch (a.call.dims) {
    case Dims::bshd:
      return {.data = data(t), .batch = s[0], .sequence = s[1], .head = s[2]};
    case Dims::sbhd:
      return {.data = data(t), .batch = s[1], .sequence = s[0], .head = s[2]};
    case Dims::bhsd:
      return {.data = data(t), .batch = s[0], .sequence = s[2], .head = s[1]};
    case Dims::thd:
      break;
  }
  return {.data = data(t), .batch = 0, .sequence = s[0], .head = s[1]};
}

template <class Rows>
Rows rows_of(const Arguments& a, const Tensor& t) {
  auto* values = static_cast<float*>(data(t));
  const std::int64_t* s = strides(t);
  if (a.call.dims == Dims::thd) return {.data = values, .batch = 0, .head = s[0], .row = s[1]};
  return {.data = values, .batch = s[0], .head = s[1], .row = s[2]};
}

DType dtype_of(const Tensor& t) {
  const std::int32_t type = dtype(t);
  return type == aoti_torch_dtype_float32()    ? DType::float32
         : type == aoti_torch_dtype_bfloat16() ? DType::bfloat16
                                               : DType::float16;
}

/// Strides of [B, H, Sq, Skv], 0 where the tensor broadcasts.
std::array<std::int64_t, 4> broadcast_strides(const Tensor& t) {
  std::array<std::int64_t, 4> result{};
  for (std::size_t i = 0; i < 4; ++i) result[i] = sizes(t)[i] == 1 ? 0 : strides(t)[i];
  return result;
}
cpu::Term term_of(const OptionalTensor& t, std::int64_t keys) {
  if (!t) return {};
  const auto s = broadcast_strides(*t);
  return {.data = data(*t),
          .dtype = dtype_of(*t),
          .batch = s[0],
          .head = s[1],
          .row = s[2],
          .column = keys == 1 ? 1 : s[3]};
}

/// Everything of a call for the kernels, and what has to live as long as it.
struct Prepared {
  cpu::Attention call;
  Tensor q, k, v;
};

Prepared prepare(const Arguments& a) {
  Prepared p{.call = {}, .q = rows_in_one_piece(a.q), .k = rows_in_one_piece(a.k), .v = rows_in_one_piece(a.v)};
  cpu::Attention& c = p.call;
  c.dtype = dtype_of(a.q);
  c.batch = a.sizes.batch;
  c.heads = a.sizes.heads;
  c.kv_heads = a.sizes.kv_heads;
  c.seqlen_q = a.sizes.seqlen_q;
  c.seqlen_k = a.sizes.seqlen_k;
  c.head_dim_qk = a.sizes.head_dim_qk;
  c.head_dim_v = a.sizes.head_dim_v;
  c.q = side_of<cpu::Input>(a, p.q);
  c.k = side_of<cpu::Input>(a, p.k);
  c.v = side_of<cpu::Input>(a, p.v);
  if (a.call.dims == Dims::thd) {
    c.lengths_q = {.cumulative = host_lengths(a.seqlens_q), .tokens = sizes(a.q)[0]};
    c.lengths_k = {.cumulative = host_lengths(a.seqlens_k), .tokens = sizes(a.k)[0]};
    if (!a.attn_bias && !a.attn_mask) {  // otherwise the gradients of these are as large as the bounds
      c.seqlen_q = longest_on_host(c.lengths_q.cumulative, a.sizes.batch);
      c.seqlen_k = longest_on_host(c.lengths_k.cumulative, a.sizes.batch);
    }
  } else {
    c.lengths_q.valid = host_lengths(a.seqlens_q);
    c.lengths_k.valid = host_lengths(a.seqlens_k);
  }
  c.scale = static_cast<float>(a.scale);
  c.softcap = static_cast<float>(a.call.softcap);
  c.causal = a.call.causal;
  c.align = a.call.align;
  c.window_left = a.call.window_left;
  c.window_right = a.call.window_right;
  c.bias = term_of(a.attn_bias, a.sizes.seqlen_k);
  if (a.attn_mask && a.call.attn_mask.element == Element::boolean) {
    const auto s = broadcast_strides(*a.attn_mask);
    c.mask = {.data = static_cast<const std::uint8_t*>(data(*a.attn_mask)),
              .batch = s[0],
              .head = s[1],
              .row = s[2],
              .column = s[3]};
  } else {
    c.additive_mask = term_of(a.attn_mask, a.sizes.seqlen_k);
  }
  if (a.alibi_slopes) {
    const std::int64_t* s = strides(*a.alibi_slopes);
    const bool by_batch = rank(*a.alibi_slopes) == 2;
    c.alibi = {.data = static_cast<const float*>(data(*a.alibi_slopes)),
               .batch = by_batch ? s[0] : 0,
               .head = by_batch ? s[1] : s[0]};
  }
  if (a.call.dropout_p > 0) {
    const auto* seed = static_cast<const std::int64_t*>(data(*a.dropout_seed));
    const std::int64_t step = strides(*a.dropout_seed)[0];
    c.dropout = {.probability = a.call.dropout_p, .seed = seed[0], .offset = seed[step]};
  }
  return p;
}

/// Sinks in one piece, and their place in the call.
OptionalTensor place_sinks(const Arguments& a, cpu::Attention& c) {
  if (!a.sinks) return std::nullopt;
  Tensor sinks = rows_in_one_piece(*a.sinks);
  c.sinks = {.data = data(sinks), .dtype = dtype_of(sinks)};
  return sinks;
}

/// Memory for the kernels. What is small stays with the thread, so that short calls allocate nothing.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes) {
    if (bytes <= kKept) {
      thread_local std::unique_ptr<void, Free> kept;
      if (kept == nullptr) kept.reset(allocate(kKept));
      memory_ = kept.get();
    } else {
      own_.reset(allocate(bytes));
      memory_ = own_.get();
    }
  }
  [[nodiscard]] void* get() const { return memory_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }  // NOLINT(cppcoreguidelines-no-malloc)
  };
  static void* allocate(std::size_t bytes) {
    void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory == nullptr)
      fail(ErrorKind::value, "q: no memory for a workspace of " + std::to_string(bytes) + " bytes");
    return memory;
  }
  static constexpr std::size_t kKept = std::size_t{1} << 20U;
  std::unique_ptr<void, Free> own_;
  void* memory_ = nullptr;
};

/// run(parallel) with the threads of torch's pool.
template <class Run>
void with_threads(const Run& run) {
  std::uint32_t threads = 1;
  ok(torch_get_num_threads(&threads), "num_threads");
  const auto in_torch = [](std::int64_t begin, std::int64_t end, std::int64_t grain, cpu::RangeFunction function) {
    const auto call = [](std::int64_t from, std::int64_t to, void* context) {
      (*static_cast<cpu::RangeFunction*>(context))(from, to);
    };
    ok(torch_parallel_for(begin, end, grain, call, &function), "parallel_for");
  };
  if (threads > 1)
    run(cpu::Parallel(static_cast<int>(threads), in_torch));
  else
    run(cpu::Parallel());
}

cpu::TermGradient gradient_of(const OptionalTensor& t) {
  if (!t) return {};
  const auto s = broadcast_strides(*t);
  return {.data = data(*t), .dtype = dtype_of(*t), .batch = s[0], .head = s[1], .row = s[2], .column = strides(*t)[3]};
}

}  // namespace

ForwardResult forward_cpu(const Arguments& a) {
  ForwardResult result{.out = new_out(a), .lse = new_lse(a)};
  Prepared p = prepare(a);
  const OptionalTensor sinks = place_sinks(a, p.call);
  cpu::ForwardOutputs outputs{.out = side_of<cpu::Output>(a, result.out), .lse = {}};
  if (result.lse) outputs.lse = rows_of<cpu::RowsOutput>(a, *result.lse);
  const CpuIsa isa = a.device.cpu_isa;
  with_threads([&](const cpu::Parallel& parallel) {
    const Workspace workspace(cpu::forward_workspace(p.call, isa, parallel.threads()));
    cpu::forward(p.call, outputs, isa, parallel, workspace.get());
  });
  return result;
}

BackwardResult backward_cpu(const Arguments& a, const BackwardInputs& in) {
  BackwardResult result{
      .dq = new_like(a, a.q), .dk = new_like(a, a.k), .dv = new_like(a, a.v), .dbias = {}, .dmask = {}, .dsinks = {}};
  Prepared p = prepare(a);
  const OptionalTensor sinks = place_sinks(a, p.call);
  const Tensor dout = rows_in_one_piece(in.grad_out);
  const Tensor out = rows_in_one_piece(in.out);
  const cpu::BackwardInputs inputs{.out = side_of<cpu::Input>(a, out),
                                   .dout = side_of<cpu::Input>(a, dout),
                                   .lse = rows_of<cpu::RowsInput>(a, in.lse),
                                   .dlse = in.grad_lse ? rows_of<cpu::RowsInput>(a, *in.grad_lse) : cpu::RowsInput{}};
  if (a.attn_bias && a.call.bias_requires_grad) result.dbias = empty_like(*a.attn_bias);
  // A mask's last dimension may broadcast, which the kernels' gradients do not: the sum over it comes after.
  const bool mask_grad = a.attn_mask && a.mask_requires_grad && a.call.attn_mask.element != Element::boolean;
  const bool one_column = mask_grad && sizes(*a.attn_mask)[3] == 1 && a.sizes.seqlen_k != 1;
  if (mask_grad) {
    Sizes size(sizes(*a.attn_mask), sizes(*a.attn_mask) + 4);
    if (one_column) size[3] = a.sizes.seqlen_k;
    result.dmask = empty(*a.attn_mask, one_column ? aoti_torch_dtype_float32() : dtype(*a.attn_mask), size);
  }
  if (a.sinks && a.sinks_requires_grad) result.dsinks = empty_like(*a.sinks);
  cpu::Gradients gradients{.dq = side_of<cpu::Output>(a, result.dq),
                           .dk = side_of<cpu::Output>(a, result.dk),
                           .dv = side_of<cpu::Output>(a, result.dv),
                           .dbias = gradient_of(result.dbias),
                           .dmask = gradient_of(result.dmask),
                           .dsinks = {}};
  if (result.dsinks) gradients.dsinks = {.data = data(*result.dsinks), .dtype = dtype_of(*result.dsinks)};
  const CpuIsa isa = a.device.cpu_isa;
  with_threads([&](const cpu::Parallel& parallel) {
    const Workspace workspace(cpu::backward_workspace(p.call, gradients, isa, parallel.threads()));
    cpu::backward(p.call, inputs, gradients, isa, parallel, workspace.get());
  });
  if (one_column)
    result.dmask = aten("aten::sum", "dim_IntList", *result.dmask, std::optional<Sizes>(Sizes{3}), true,
                        std::optional<std::int32_t>(dtype(*a.attn_mask)));
  return result;
}

}  // namespace cynosure::torch_abi
