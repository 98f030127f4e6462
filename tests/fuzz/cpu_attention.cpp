// SPDX-License-Identifier: Apache-2.0
// tests/fuzz/cpu_attention.cpp: the kernels of the cpu backend over any shapes, strides, lengths and features, forward
// and backward. Nothing is compared: they stay inside their tensors (the sanitizers see to that) and come to an end.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "backends/cpu/attention.hpp"
#include "detect/cpu.hpp"

namespace cynosure::fuzz {
namespace {

using namespace cynosure::cpu;

/// The input, number by number; zeros when it has ended.
class Numbers {
 public:
  Numbers(const unsigned char* data, std::size_t size) : data_(data), size_(size) {}
  std::int64_t below(std::int64_t n) { return n <= 0 ? 0 : static_cast<std::int64_t>(next()) % n; }
  bool coin() { return below(2) == 1; }
  float real() {  // any float: NaN, infinity and denormals too
    const std::uint32_t bits = next() | next() << 8U | next() << 16U | next() << 24U;
    float x = 0;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }

 private:
  std::uint32_t next() { return at_ < size_ ? data_[at_++] : 0; }
  const unsigned char* data_;
  std::size_t size_, at_ = 0;
};

/// Memory of exactly so many bytes, so that the sanitizer notices the first one beyond.
struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Memory = std::unique_ptr<char, Free>;
Memory bytes(std::int64_t count, unsigned char fill) {
  auto* p = static_cast<char*>(std::malloc(static_cast<std::size_t>(count > 0 ? count : 1)));
  std::memset(p, fill, static_cast<std::size_t>(count > 0 ? count : 1));
  return Memory(p);
}

struct Call {
  Attention attention;
  std::vector<Memory> memories;
  std::vector<std::int32_t> lengths[2];
  std::int64_t tokens[2] = {0, 0};

  std::int64_t element() const { return attention.dtype == DType::float32 ? 4 : 2; }

  /// A tensor [batch or 1, rows, heads, columns] with dimensions in any order and gaps.
  template <class View>
  View tensor(Numbers& numbers, int side, std::int64_t heads, std::int64_t columns, bool written) {
    const bool ragged = attention.lengths_q.cumulative != nullptr;
    const std::int64_t rows = ragged ? tokens[side] : side == 0 ? attention.seqlen_q : attention.seqlen_k;
    const std::int64_t batch = ragged ? 1 : attention.batch;
    const std::int64_t pitch = columns + numbers.below(4);
    View view;
    const std::int64_t order = numbers.below(4);
    if (order == 0)
      view.head = pitch, view.sequence = heads * pitch, view.batch = rows * heads * pitch;
    else if (order == 1)
      view.sequence = pitch, view.head = rows * pitch, view.batch = rows * heads * pitch;
    else if (order == 2)
      view.head = pitch, view.batch = heads * pitch, view.sequence = batch * heads * pitch;
    else if (written)
      view.sequence = pitch, view.head = rows * pitch, view.batch = rows * heads * pitch;
    // else all strides are 0: one row for everything
    const auto last = [](std::int64_t n) { return n > 0 ? n - 1 : 0; };
    std::int64_t span = last(batch) * view.batch + last(rows) * view.sequence + last(heads) * view.head + columns;
    if (batch * rows * heads * columns == 0) span = 0;
    memories.push_back(bytes(span * element(), static_cast<unsigned char>(numbers.below(256))));
    char* data = memories.back().get();
    if (!written && span > 0) {  // some values of their own
      for (std::int64_t i = numbers.below(8); i > 0; --i) {
        const float x = numbers.real();
        std::memcpy(data + numbers.below(span) * element(), &x, static_cast<std::size_t>(element() < 4 ? 2 : 4));
      }
      if (order == 1 && numbers.coin()) {  // backwards
        data += last(rows) * view.sequence * element();
        view.sequence = -view.sequence;
      }
    }
    view.data = data;
    return view;
  }

  template <class View>
  void add_shape(Numbers& numbers, View& view, std::int64_t element_bytes, bool column_broadcasts) {
    const std::int64_t sizes[4] = {attention.batch, attention.heads, attention.seqlen_q, attention.seqlen_k};
    std::int64_t strides[4] = {0, 0, 0, 0};
    std::int64_t span = 1;
    for (int dim = 3; dim >= 0; --dim) {
      if ((dim < 3 || column_broadcasts) && numbers.coin()) continue;
      strides[dim] = span;
      span *= sizes[dim];
    }
    memories.push_back(
        bytes(span * element_bytes, static_cast<unsigned char>(numbers.coin() ? 0 : numbers.below(256))));
    view.batch = strides[0], view.head = strides[1], view.row = strides[2], view.column = strides[3];
    view.data = reinterpret_cast<decltype(view.data)>(memories.back().get());
  }
};

void read_shapes(Numbers& numbers, Attention& a) {
  constexpr DType dtypes[] = {DType::float32, DType::bfloat16, DType::float16};
  const auto length = [&] { return numbers.below(6) == 0 ? numbers.below(256) * 5 : numbers.below(40); };
  const auto depth = [&] { return numbers.below(6) == 0 ? numbers.below(256) + 60 : numbers.below(36); };
  a.dtype = dtypes[numbers.below(3)];
  a.batch = numbers.below(4);
  a.kv_heads = numbers.below(3) + 1;
  a.heads = a.kv_heads * (numbers.below(5) + 1);
  a.seqlen_q = length();
  a.seqlen_k = length();
  while (a.batch * a.heads * a.seqlen_q * a.seqlen_k > 400000) a.seqlen_q /= 2, a.seqlen_k = a.seqlen_k * 3 / 4;
  a.head_dim_qk = depth();
  a.head_dim_v = depth();
  a.scale = numbers.below(8) == 0 ? numbers.real() : 0.25F;
  a.softcap = numbers.below(4) == 0 ? 2.0F : 0.0F;
  a.causal = numbers.coin();
  a.align = numbers.coin() ? Align::top_left : Align::bottom_right;
  const auto window = [&]() -> std::int64_t {
    const std::int64_t kind = numbers.below(4);
    return kind < 2 ? -1 : kind == 2 ? numbers.below(256) : INT64_MAX;
  };
  a.window_left = window();
  a.window_right = window();
}

void read_lengths(Numbers& numbers, Call& call) {
  Attention& a = call.attention;
  const std::int64_t kind = numbers.below(3);
  const std::int64_t longest[2] = {a.seqlen_q, a.seqlen_k};
  SequenceLengths* lengths[2] = {&a.lengths_q, &a.lengths_k};
  if (kind == 0) return;
  for (int side = 0; side < 2; ++side) {
    std::int32_t sum = 0;
    if (kind == 2) call.lengths[side].push_back(0);
    for (std::int64_t b = 0; b < a.batch; ++b) {
      const auto n = static_cast<std::int32_t>(numbers.below(longest[side] + 1));
      call.lengths[side].push_back(kind == 1 ? n : sum += n);
    }
    if (kind == 1) {
      lengths[side]->valid = call.lengths[side].data();
    } else {
      call.tokens[side] = sum + numbers.below(4);
      *lengths[side] = {.valid = nullptr, .cumulative = call.lengths[side].data(), .tokens = call.tokens[side]};
    }
  }
}

/// Runs the parts of a pass one after the other: as many threads as are asked for, in name only.
struct OneByOne {
  void operator()(std::int64_t begin, std::int64_t end, std::int64_t, RangeFunction function) const {
    for (std::int64_t i = end - 1; i >= begin; --i) function(i, i + 1);
  }
};

std::unique_ptr<void, Free> workspace(std::size_t size) {
  return std::unique_ptr<void, Free>(std::aligned_alloc(64, (size + 64) / 64 * 64));
}

void run(Numbers numbers) {
  Call call;
  Attention& a = call.attention;
  const CpuIsa asked = numbers.coin() ? CpuIsa::generic : detect::best_cpu_isa();
  const int threads = static_cast<int>(numbers.below(5)) + 1;
  read_shapes(numbers, a);
  read_lengths(numbers, call);
  a.q = call.tensor<Input>(numbers, 0, a.heads, a.head_dim_qk, false);
  a.k = call.tensor<Input>(numbers, 1, a.kv_heads, a.head_dim_qk, false);
  a.v = call.tensor<Input>(numbers, 1, a.kv_heads, a.head_dim_v, false);
  Gradients gradients;
  const auto term = [&](Term& to, TermGradient& gradient) {
    if (numbers.below(4) != 0) return;
    to.dtype = numbers.coin() ? DType::float32 : a.dtype;
    const std::int64_t size = to.dtype == DType::float32 ? 4 : 2;
    call.add_shape(numbers, to, size, true);
    if (to.column == 0 || numbers.coin()) return;
    gradient = {.data = nullptr, .dtype = to.dtype, .batch = 0, .head = 0, .row = 0, .column = 1};
    call.add_shape(numbers, gradient, size, false);
    if (gradient.batch == 0 && to.batch != 0) gradient.data = nullptr;
  };
  term(a.bias, gradients.dbias);
  term(a.additive_mask, gradients.dmask);
  if (numbers.below(4) == 0) call.add_shape(numbers, a.mask, 1, true);
  std::vector<float> slopes(static_cast<std::size_t>(a.batch * a.heads), 0.5F);
  if (numbers.below(4) == 0) a.alibi = {.data = slopes.data(), .batch = a.heads, .head = 1};
  std::vector<float> sinks(static_cast<std::size_t>(a.heads), numbers.real());
  std::vector<float> dsinks(sinks);
  if (numbers.below(4) == 0) a.sinks = {.data = sinks.data(), .dtype = DType::float32};
  if (a.sinks.data != nullptr) gradients.dsinks = {.data = dsinks.data(), .dtype = DType::float32};
  if (numbers.below(4) == 0)
    a.dropout = {.probability = static_cast<float>(numbers.below(5)) * 0.25F, .seed = numbers.below(256), .offset = 1};

  const bool ragged = a.lengths_q.cumulative != nullptr;
  const std::int64_t rows = ragged ? call.tokens[0] : a.seqlen_q;
  std::vector<float> lse(static_cast<std::size_t>((ragged ? 1 : a.batch) * a.heads * rows));
  std::vector<float> dlse(lse.size(), 0.5F);
  const auto out = call.tensor<Output>(numbers, 0, a.heads, a.head_dim_v, true);
  const OneByOne one_by_one;
  const Parallel parallel(threads, one_by_one);
  auto memory = workspace(forward_workspace(a, asked, threads));
  forward(a, {.out = out, .lse = {.data = lse.data(), .batch = a.heads * rows, .head = rows, .row = 1}}, asked,
          parallel, memory.get());

  BackwardInputs inputs;
  inputs.out = {.data = out.data, .batch = out.batch, .sequence = out.sequence, .head = out.head};
  inputs.dout = call.tensor<Input>(numbers, 0, a.heads, a.head_dim_v, false);
  inputs.lse = {.data = lse.data(), .batch = a.heads * rows, .head = rows, .row = 1};
  if (numbers.coin()) inputs.dlse = {.data = dlse.data(), .batch = a.heads * rows, .head = rows, .row = 1};
  if (numbers.below(8) != 0) gradients.dq = call.tensor<Output>(numbers, 0, a.heads, a.head_dim_qk, true);
  if (numbers.below(8) != 0) gradients.dk = call.tensor<Output>(numbers, 1, a.kv_heads, a.head_dim_qk, true);
  if (numbers.below(8) != 0) gradients.dv = call.tensor<Output>(numbers, 1, a.kv_heads, a.head_dim_v, true);
  memory = workspace(backward_workspace(a, gradients, asked, threads));
  backward(a, inputs, gradients, asked, parallel, memory.get());
}

}  // namespace
}  // namespace cynosure::fuzz

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  cynosure::fuzz::run({data, size});
  return 0;
}
