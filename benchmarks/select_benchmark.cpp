// SPDX-License-Identifier: Apache-2.0
// benchmarks/select_benchmark.cpp: the cost of a decision: evaluated, from the cache, and over symbolic lengths.
//
// All figures are for one decision. `allocations` counts calls of operator new in the measured loop.
#include <algorithm>
#include <chrono>
#include <vector>

#include <benchmark/benchmark.h>

#include <cynosure/select.hpp>

#include "allocations.hpp"
#include "golden_calls.hpp"

namespace cynosure::benchmarks {
namespace {

constexpr std::size_t kGolden = 1000;
constexpr std::size_t kCached = 256;

const std::vector<io::RecordedCall>& calls(Policy policy) {
  static const std::vector<io::RecordedCall> fastest = golden_calls(Policy::fastest, kGolden);
  static const std::vector<io::RecordedCall> te = golden_calls(Policy::te, kGolden);
  return policy == Policy::te ? te : fastest;
}

/// Runs `decide` over the calls, round after round, and reports what one decision costs.
template <class Decide>
void over_calls(benchmark::State& state, const std::vector<io::RecordedCall>& calls, Decide decide) {
  for (const io::RecordedCall& call : calls) benchmark::DoNotOptimize(decide(call));  // warm caches, make tables
  const std::uint64_t before = allocations.load(std::memory_order_relaxed);
  for (auto _ : state)
    for (const io::RecordedCall& call : calls) benchmark::DoNotOptimize(decide(call));
  const std::uint64_t after = allocations.load(std::memory_order_relaxed);
  const auto decisions = static_cast<double>(state.iterations()) * static_cast<double>(calls.size());
  state.counters["seconds_per_decision"] =
      benchmark::Counter(decisions, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["allocations"] = static_cast<double>(after - before) / decisions;
}

void cold(benchmark::State& state, Policy policy) {
  over_calls(state, calls(policy),
             [](const io::RecordedCall& call) { return evaluate(call.problem, call.settings, call.device); });
}

/// The median and the slowest of single decisions, each the best of a few, so that the mean above hides nothing.
void cold_spread(benchmark::State& state, Policy policy) {
  using Clock = std::chrono::steady_clock;
  constexpr int kBatch = 64;
  std::vector<double> ns;
  for (auto _ : state) {
    ns.clear();
    for (const io::RecordedCall& call : calls(policy)) {
      double best = 1e9;
      for (int attempt = 0; attempt < 3; ++attempt) {
        const Clock::time_point start = Clock::now();
        for (int i = 0; i < kBatch; ++i) benchmark::DoNotOptimize(evaluate(call.problem, call.settings, call.device));
        best = std::min(best, std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kBatch);
      }
      ns.push_back(best);
    }
  }
  std::sort(ns.begin(), ns.end());
  state.counters["median_ns"] = ns[ns.size() / 2];
  state.counters["p99_ns"] = ns[ns.size() * 99 / 100];
  state.counters["max_ns"] = ns.back();
}

/// As an operator does it: the key is built from the parts of the call, then looked up. 256 problems take turns.
void cached(benchmark::State& state) {
  const std::vector<io::RecordedCall>& all = calls(Policy::fastest);
  const std::vector<io::RecordedCall> some(all.begin(), all.begin() + kCached);
  over_calls(state, some,
             [](const io::RecordedCall& call) { return cached_outcome(call.problem, call.settings, call.device); });
}

/// A whole dialogue over symbolic lengths: every fact that is asked for gets its answer.
void partial(benchmark::State& state, Policy policy) {
  over_calls(state, calls(policy), [](const io::RecordedCall& call) {
    const ConcreteLengths lengths(call.problem.lengths);
    std::vector<KnownFact> known;
    PartialStep step = evaluate_partial(call.problem.features, call.settings, call.device, known);
    while (step.ask) {
      known.push_back({*step.ask, lengths.holds(*step.ask)});
      step = evaluate_partial(call.problem.features, call.settings, call.device, known);
    }
    return step.outcome;
  });
}

void repeated(benchmark::internal::Benchmark* benchmark) { benchmark->Repetitions(9)->ReportAggregatesOnly(true); }

BENCHMARK_CAPTURE(cold, te, Policy::te)->Apply(repeated);
BENCHMARK_CAPTURE(cold, fastest, Policy::fastest)->Apply(repeated);
BENCHMARK_CAPTURE(cold_spread, te, Policy::te)->Unit(benchmark::kMillisecond)->Apply(repeated);
BENCHMARK_CAPTURE(cold_spread, fastest, Policy::fastest)->Unit(benchmark::kMillisecond)->Apply(repeated);
BENCHMARK(cached)->Apply(repeated);
BENCHMARK_CAPTURE(partial, te, Policy::te)->Apply(repeated);
BENCHMARK_CAPTURE(partial, fastest, Policy::fastest)->Apply(repeated);

}  // namespace
}  // namespace cynosure::benchmarks
