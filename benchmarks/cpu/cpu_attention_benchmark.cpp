// SPDX-License-Identifier: Apache-2.0
// benchmarks/cpu_attention_benchmark.cpp: the kernels of the cpu backend on one thread, by instruction set, length and
// head dimension. GFLOP/s count the pairs attended: 4 D a pair forward, 10 D backward.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "backends/cpu/attention.hpp"
#include "detect/cpu.hpp"

namespace cynosure::benchmarks {
namespace {

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Workspace = std::unique_ptr<void, Free>;
Workspace workspace(std::size_t bytes) { return Workspace(std::aligned_alloc(64, (bytes + 63) / 64 * 64)); }

/// A call in float32 or bfloat16 (which takes half of the memory); [B, H, S, D].
struct Call {
  cpu::Attention attention;
  std::vector<float> q, k, v, out, dout, lse, dq, dk, dv;

  Call(DType dtype, std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t length,
       std::int64_t depth, bool causal) {
    attention.dtype = dtype;
    attention.batch = batch;
    attention.heads = heads;
    attention.kv_heads = kv_heads;
    attention.seqlen_q = attention.seqlen_k = length;
    attention.head_dim_qk = attention.head_dim_v = depth;
    attention.scale = 1 / std::sqrt(static_cast<float>(depth));
    attention.causal = causal;
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& t, std::int64_t h) {
      t.resize(static_cast<std::size_t>(batch * h * length * depth));
      for (float& x : t) x = normal(random);
      if (dtype == DType::bfloat16) {  // any finite numbers will do: two of +-[1, 2) in each float
        for (float& x : t) {
          const std::uint32_t bits = 0x3f803f80U | (static_cast<std::uint32_t>(random()) & 0x807f807fU);
          std::memcpy(&x, &bits, sizeof x);
        }
      }
    };
    for (std::vector<float>* t : {&q, &out, &dout, &dq}) fill(*t, heads);
    for (std::vector<float>* t : {&k, &v, &dk, &dv}) fill(*t, kv_heads);
    lse.resize(static_cast<std::size_t>(batch * heads * length));
    attention.q = view<cpu::Input>(q, heads);
    attention.k = view<cpu::Input>(k, kv_heads);
    attention.v = view<cpu::Input>(v, kv_heads);
  }

  template <class View>
  [[nodiscard]] View view(std::vector<float>& t, std::int64_t heads) const {
    const std::int64_t head = attention.seqlen_q * attention.head_dim_qk;
    return {.data = t.data(), .batch = heads * head, .sequence = attention.head_dim_qk, .head = head};
  }
  [[nodiscard]] std::int64_t lse_head() const { return attention.seqlen_q; }

  void forward(CpuIsa isa, void* memory) {
    const cpu::RowsOutput rows{.data = lse.data(), .batch = attention.heads * lse_head(), .head = lse_head(), .row = 1};
    cpu::forward(attention, {.out = view<cpu::Output>(out, attention.heads), .lse = rows}, isa, {}, memory);
  }
  void backward(CpuIsa isa, void* memory) {
    const cpu::RowsInput rows{.data = lse.data(), .batch = attention.heads * lse_head(), .head = lse_head(), .row = 1};
    const std::int64_t heads = attention.heads;
    cpu::backward(attention,
                  {.out = view<cpu::Input>(out, heads), .dout = view<cpu::Input>(dout, heads), .lse = rows, .dlse = {}},
                  gradients(), isa, {}, memory);
  }
  [[nodiscard]] cpu::Gradients gradients() {
    cpu::Gradients g;
    g.dq = view<cpu::Output>(dq, attention.heads);
    g.dk = view<cpu::Output>(dk, attention.kv_heads);
    g.dv = view<cpu::Output>(dv, attention.kv_heads);
    return g;
  }
  [[nodiscard]] double pairs() const {
    const auto n = static_cast<double>(attention.seqlen_q);
    return static_cast<double>(attention.batch * attention.heads) * (attention.causal ? n * (n + 1) / 2 : n * n);
  }
};

void report(benchmark::State& state, double products) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(products * 1e-9 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void forward(benchmark::State& state, CpuIsa isa, DType dtype, std::int64_t group, bool causal) {
  Call call(dtype, 1, 8, 8 / group, state.range(0), state.range(1), causal);
  const Workspace memory = workspace(cpu::forward_workspace(call.attention, isa, 1));
  for (auto _ : state) call.forward(isa, memory.get());
  report(state, 4 * static_cast<double>(state.range(1)) * call.pairs());
}

void forward_backward(benchmark::State& state, CpuIsa isa, DType dtype, std::int64_t group, bool causal) {
  Call call(dtype, 1, 8, 8 / group, state.range(0), state.range(1), causal);
  const Workspace memory = workspace(cpu::forward_workspace(call.attention, isa, 1));
  const Workspace more = workspace(cpu::backward_workspace(call.attention, call.gradients(), isa, 1));
  for (auto _ : state) {
    call.forward(isa, memory.get());
    call.backward(isa, more.get());
  }
  report(state, 14 * static_cast<double>(state.range(1)) * call.pairs());
}

const bool kRegistered = [] {
  for (const CpuIsa isa : {CpuIsa::generic, CpuIsa::avx2, CpuIsa::avx512}) {
    if (isa > detect::best_cpu_isa() || cpu::built_isa(isa) != isa) continue;
    for (const DType dtype : {DType::float32, DType::bfloat16})
      for (const std::int64_t group : {1, 4})
        for (const bool causal : {false, true}) {
          const std::string name = "/" + std::string(kCpuIsaNames[static_cast<std::size_t>(isa)]) + "/" +
                                   std::string(kDTypeNames[static_cast<std::size_t>(dtype)]) + "/gqa" +
                                   std::to_string(group) + (causal ? "/causal" : "/full");
          const auto add = [&](const char* what, auto function) {
            benchmark::RegisterBenchmark((what + name).c_str(), function, isa, dtype, group, causal)
                ->ArgNames({"s", "d"})
                ->ArgsProduct({{128, 512, 2048}, {64, 80, 128, 256}})
                ->Unit(benchmark::kMillisecond);
          };
          add("cpu_forward", forward);
          add("cpu_forward_backward", forward_backward);
        }
  }
  return true;
}();

}  // namespace
}  // namespace cynosure::benchmarks
