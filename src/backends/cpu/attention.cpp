// SPDX-License-Identifier: Apache-2.0
// backends/cpu/attention.cpp: plans a call, lays out its workspace and runs the passes.
#include "backends/cpu/attention.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>

#include "backends/cpu/half.hpp"
#include "backends/cpu/kernels.hpp"
#include "backends/cpu/plan.hpp"

namespace cynosure::cpu {
namespace {

/// Products and sums of a whole call below which one thread is faster than waking others.
constexpr double kWorkForThread = 1e6;

double work_of(const Attention& call) {
  return static_cast<double>(call.batch) * static_cast<double>(call.heads) * static_cast<double>(call.seqlen_q) *
         static_cast<double>(call.seqlen_k) * static_cast<double>(call.head_dim_qk + call.head_dim_v);
}

/// How many of the caller's threads are worth waking.
std::int64_t useful_threads(const Attention& call, int threads) {
  return static_cast<std::int64_t>(std::min<double>(std::max(1, threads), 1 + work_of(call) / kWorkForThread));
}

/// Heads are tasks when every thread gets several: they can be of very different cost.
bool enough_heads(const Attention& call, std::int64_t threads) {
  return threads == 1 || call.batch * call.kv_heads >= 4 * threads;
}

/// Whether the tile algorithm serves a call; by type and shape alone. Up to kSharedRows rows the time goes into reading
/// keys, which forward.hpp does without packing them; tiny heads would fill tiles with zeros, and large ones are rare.
bool tiles_serve(const Attention& call) {
  constexpr std::int64_t least_dim = 8;
  constexpr std::int64_t most_dim = 256;
  const auto suits = [](std::int64_t dim) { return dim >= least_dim && dim <= most_dim; };
  return call.dtype == DType::bfloat16 && call.seqlen_q > kSharedRows && suits(call.head_dim_qk) &&
         suits(call.head_dim_v);
}

const Kernels& forward_kernels(const Attention& call, Instructions with) {
  if (tiles_serve(call)) {
    if (with.emulate_tiles) return kEmulatedTileKernels;
    if (built_isa(with.isa) == CpuIsa::amx) return kAmxKernels;
  }
  return kernels(with.isa);
}

/// Gradients of terms are computed from the other algorithm's blocks.
const Kernels& backward_kernels(const Attention& call, const Gradients& wanted, Instructions with) {
  const bool terms = wanted.dbias.data != nullptr || wanted.dmask.data != nullptr;
  return terms ? kernels(with.isa) : forward_kernels(call, with);
}

Used used(const Kernels& table) {
  return {.isa = table.isa, .tiles = &table == &kAmxKernels || &table == &kEmulatedTileKernels};
}

/// Runs the tasks of one pass. Which thread runs which does not matter: each task's result is its own, and the counter
/// keeps threads busy whatever the tasks cost.
class Passes {
 public:
  Passes(const Parallel& parallel, const Attention& call)
      : parallel_(parallel), threads_(useful_threads(call, parallel.threads())) {}

  /// task(number, thread), thread < parallel.threads(). `work`: of a pass that does less than its share of the call's.
  template <class Task>
  void operator()(std::int64_t tasks, const Task& task, double work = kWorkForThread * 1e6) const {
    const auto useful = static_cast<std::int64_t>(std::min(1 + work / kWorkForThread, 1e6));
    const std::int64_t threads = std::min({threads_, tasks, useful});
    if (threads <= 1) {
      for (std::int64_t number = 0; number < tasks; ++number) task(number, 0);
      return;
    }
    std::atomic<std::int64_t> next{0};
    parallel_(0, threads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t thread = begin; thread < end; ++thread)
        for (std::int64_t number = next++; number < tasks; number = next++) task(number, thread);
    });
  }

 private:
  const Parallel& parallel_;
  std::int64_t threads_;
};

/// Zeros and -inf for what lies beyond the valid rows of each sequence, and behind the last one of a ragged batch.
template <class Clear>
void for_each_padding(const Attention& call, const SequenceLengths& lengths, std::int64_t seqlen, const Clear& clear) {
  for (std::int64_t b = 0; b < call.batch; ++b) {
    Side s = side(lengths, seqlen, b);
    for (std::int64_t i = s.valid; i < s.extent; ++i) clear(s, i);
  }
  if (lengths.cumulative == nullptr) return;
  const Side all{};
  for (std::int64_t i = call.batch > 0 ? lengths.cumulative[call.batch] : 0; i < lengths.tokens; ++i) clear(all, i);
}

void clear_rows(const Attention& call, const SequenceLengths& lengths, std::int64_t seqlen, std::int64_t heads,
                const Output& out, std::int64_t columns) {
  if (out.data == nullptr) return;
  for_each_padding(call, lengths, seqlen, [&](const Side& s, std::int64_t i) {
    for (std::int64_t head = 0; head < heads; ++head)
      std::memset(row_of(out, s, i, head, call.dtype), 0, static_cast<std::size_t>(columns * element_size(call.dtype)));
  });
}

/// first[b] = what the sequences before b hold.
template <class Count>
std::int64_t running_sum(const Attention& call, std::int64_t* first, const Count& count) {
  std::int64_t sum = 0;
  for (std::int64_t b = 0; b < call.batch; ++b) {
    if (first != nullptr) first[b] = sum;
    sum += count(sequence(call, b));
  }
  if (first != nullptr) first[call.batch] = sum;
  return sum;
}

/// Parts of the keys when a task has few rows, so that there is work for machines with many cores; by shape alone.
std::int64_t forward_splits(const ForwardPlan& plan) {
  constexpr std::int64_t wanted = 64;  // tasks
  constexpr std::int64_t keys = 512;   // at least, in each part: what it leaves is small beside them
  const Attention& call = *plan.call;
  if (call.seqlen_q > kSharedRows) return 1;
  const std::int64_t tasks = call.batch * call.kv_heads * row_blocks(plan, call.seqlen_q).count;
  return std::max<std::int64_t>(1, std::min(ceil_div(wanted, std::max<std::int64_t>(1, tasks)), call.seqlen_k / keys));
}

std::int64_t plan_forward(ForwardPlan& plan, const Attention& call, const Kernels& isa, int wanted, void* memory) {
  const std::int64_t threads = useful_threads(call, wanted);
  plan.call = &call;
  plan.block = isa.forward_blocks(call);
  plan.group = call.kv_heads > 0 ? call.heads / call.kv_heads : 0;
  plan.heads = call.batch * call.kv_heads;
  plan.splits = forward_splits(plan);
  plan.key_block_bytes = isa.key_block_bytes(plan);
  Arena scratch(nullptr);
  scratch.take<char>(isa.forward_scratch_bytes(plan));

  Arena arena(memory);
  plan.first_task = arena.take<std::int64_t>(call.batch + 1);
  plan.first_key_block = arena.take<std::int64_t>(call.batch + 1);
  std::int64_t most_parts = 0;
  std::int64_t most_keys = 0;
  plan.tasks = call.kv_heads * running_sum(call, plan.first_task, [&](const Sequence& s) {
                 const std::int64_t count = row_blocks(plan, s.q.valid).count;
                 most_parts = std::max(most_parts, count);
                 return count;
               });
  if (plan.first_task != nullptr)
    for (std::int64_t b = 0; b <= call.batch; ++b) plan.first_task[b] *= call.kv_heads;
  plan.pack_tasks = call.kv_heads * running_sum(call, plan.first_key_block, [&](const Sequence& s) {
                      const std::int64_t count = ceil_div(s.k.valid, plan.block.keys);
                      most_keys = std::max(most_keys, count);
                      return count;
                    });
  plan.by_heads = plan.splits == 1 && (most_parts <= 1 || enough_heads(call, threads));
  if (plan.splits > 1) {
    Arena part(nullptr);
    partial(plan, part);
    plan.partial_bytes = part.used();
    plan.partials = arena.take<char>(plan.tasks * plan.splits * plan.partial_bytes);
    plan.key_slots = 1;
    scratch.take<char>(plan.key_block_bytes);
  } else if (plan.by_heads) {
    plan.key_slots = most_parts <= 1 ? 1 : most_keys;
    scratch.take<unsigned char>(plan.key_slots);
    scratch.take<char>(plan.key_slots * plan.key_block_bytes);
  } else {
    plan.keys = arena.take<char>(plan.pack_tasks * plan.key_block_bytes);
  }
  plan.scratch_bytes = scratch.used();
  plan.scratch = arena.take<char>(threads * plan.scratch_bytes);
  return arena.used();
}

/// Consecutive blocks of keys that a block of rows can meet, at most.
std::int64_t met_blocks(const Attention& call, const Blocks& block) {
  const std::int64_t right = call.causal ? 0 : call.window_right;
  const std::int64_t all = ceil_div(call.seqlen_k, block.keys);
  if (call.window_left < 0 || right < 0 || call.window_left >= call.seqlen_k || right >= call.seqlen_k)
    return std::max<std::int64_t>(1, all);
  return std::max<std::int64_t>(1, std::min(all, ceil_div(block.rows + call.window_left + right, block.keys) + 1));
}

/// Tasks worth having, for machines with many cores; each split of the keys costs one more dq in the workspace.
std::int64_t backward_splits(const Attention& call, std::int64_t key_block) {
  constexpr std::int64_t wanted = 32;
  constexpr std::int64_t limit = 16;
  const std::int64_t tasks = std::max<std::int64_t>(1, call.batch * call.kv_heads);
  const std::int64_t blocks = std::max<std::int64_t>(1, call.seqlen_k / (2 * key_block));
  return std::min({ceil_div(wanted, tasks), limit, blocks});
}

std::int64_t plan_backward(BackwardPlan& plan, const Attention& call, const Gradients& wanted, const Kernels& isa,
                           int wanted_threads, void* memory) {
  const std::int64_t threads = useful_threads(call, wanted_threads);
  plan.call = &call;
  plan.gradients = &wanted;
  plan.block = isa.backward_blocks(call);
  plan.group = call.kv_heads > 0 ? call.heads / call.kv_heads : 0;
  plan.heads = call.batch * call.kv_heads;
  plan.splits = backward_splits(call, plan.block.keys);
  plan.slots = std::min(plan.splits, met_blocks(call, plan.block));
  plan.key_tasks = plan.heads * plan.splits;
  plan.row_block_bytes = isa.row_block_bytes(plan);
  Arena scratch(nullptr);
  scratch.take<char>(isa.backward_scratch_bytes(plan));

  Arena arena(memory);
  plan.first_row_block = arena.take<std::int64_t>(call.batch + 1);
  std::int64_t most_blocks = 0;
  plan.row_blocks = running_sum(call, plan.first_row_block, [&](const Sequence& s) {
    const std::int64_t blocks = ceil_div(s.q.valid, plan.block.rows);
    most_blocks = std::max(most_blocks, blocks);
    return call.heads * blocks;
  });
  plan.dsinks = arena.take<double>(plan.row_blocks);
  // Gradients of terms read the packed rows of every head.
  const bool terms = wanted.dbias.data != nullptr || wanted.dmask.data != nullptr;
  plan.by_heads = !terms && enough_heads(call, threads);
  if (plan.by_heads) {
    plan.row_slots = plan.group * most_blocks;
    scratch.take<char>(plan.row_slots * plan.row_block_bytes);
  } else {
    plan.rows = arena.take<char>(plan.row_blocks * plan.row_block_bytes);
  }
  plan.scratch_bytes = scratch.used();
  plan.scratch = arena.take<char>(threads * plan.scratch_bytes);
  return arena.used();
}

void sum_sinks(const BackwardPlan& plan, const SinksGradient& gradient) {
  const Attention& call = *plan.call;
  for (std::int64_t head = 0; head < call.heads; ++head) {
    double sum = 0;
    for (std::int64_t b = 0; b < call.batch; ++b) {
      const std::int64_t blocks = ceil_div(sequence(call, b).q.valid, plan.block.rows);
      for (std::int64_t block = 0; block < blocks; ++block)
        sum += plan.dsinks[plan.first_row_block[b] + head * blocks + block];
    }
    const auto value = static_cast<float>(sum);
    char* to = static_cast<char*>(gradient.data) + head * element_size(gradient.dtype);
    if (gradient.dtype == DType::float32) {
      std::memcpy(to, &value, sizeof value);
    } else {
      const std::uint16_t half = gradient.dtype == DType::bfloat16 ? to_bfloat16(value) : to_float16(value);
      std::memcpy(to, &half, sizeof half);
    }
  }
}

}  // namespace

std::size_t forward_workspace(const Attention& call, Instructions with, int threads) {
  ForwardPlan plan;
  return static_cast<std::size_t>(plan_forward(plan, call, forward_kernels(call, with), threads, nullptr));
}

std::size_t backward_workspace(const Attention& call, const Gradients& wanted, Instructions with, int threads) {
  BackwardPlan plan;
  return static_cast<std::size_t>(
      plan_backward(plan, call, wanted, backward_kernels(call, wanted, with), threads, nullptr));
}

void forward(const Attention& call, const ForwardOutputs& outputs, Instructions with, const Parallel& parallel,
             void* workspace) {
  const Kernels& table = forward_kernels(call, with);
  ForwardPlan plan;
  plan_forward(plan, call, table, parallel.threads(), workspace);
  plan.outputs = &outputs;
  const Passes passes(parallel, call);
  const auto scratch = [&](std::int64_t thread) { return plan.scratch + thread * plan.scratch_bytes; };
  const auto pass = [&](std::int64_t tasks, Kernels::Forward run) {
    passes(tasks, [&](std::int64_t task, std::int64_t thread) { run(plan, task, scratch(thread)); });
  };
  if (plan.splits > 1) {
    pass(plan.tasks * plan.splits, table.forward_split);
    passes(
        plan.tasks, [&](std::int64_t task, std::int64_t thread) { table.combine_splits(plan, task, scratch(thread)); },
        static_cast<double>(plan.tasks * plan.splits * plan.partial_bytes));
  } else if (plan.by_heads) {
    pass(plan.heads, table.forward_head);
  } else {
    pass(plan.pack_tasks, table.pack_keys);
    pass(plan.tasks, table.forward_part);
  }
  clear_rows(call, call.lengths_q, call.seqlen_q, call.heads, outputs.out, call.head_dim_v);
  if (outputs.lse.data == nullptr) return;
  for_each_padding(call, call.lengths_q, call.seqlen_q, [&](const Side& s, std::int64_t i) {
    for (std::int64_t head = 0; head < call.heads; ++head)
      outputs.lse.data[number_of(outputs.lse, s, i, head)] = -__builtin_huge_valf();
  });
}

void backward(const Attention& call, const BackwardInputs& inputs, const Gradients& gradients, Instructions with,
              const Parallel& parallel, void* workspace) {
  const Kernels& table = backward_kernels(call, gradients, with);
  BackwardPlan plan;
  plan_backward(plan, call, gradients, table, parallel.threads(), workspace);
  plan.inputs = &inputs;
  const Passes passes(parallel, call);
  const auto scratch = [&](std::int64_t thread) { return plan.scratch + thread * plan.scratch_bytes; };
  const auto pass = [&](std::int64_t tasks, Kernels::Backward run) {
    passes(tasks, [&](std::int64_t task, std::int64_t thread) { run(plan, task, scratch(thread)); });
  };
  if (plan.by_heads) {
    pass(plan.heads, table.backward_head);
  } else {
    pass(plan.row_blocks, table.prepare_part);
    pass(plan.key_tasks, table.backward_part);
    pass(plan.row_blocks, table.finish_part);
  }
  for (const TermGradient* gradient : {&gradients.dbias, &gradients.dmask})
    if (gradient->data != nullptr)
      passes(term_tiles(plan, *gradient).count(), [&](std::int64_t task, std::int64_t thread) {
        table.term_gradient(plan, *gradient, task, scratch(thread));
      });
  if (gradients.dsinks.data != nullptr) sum_sinks(plan, gradients.dsinks);
  clear_rows(call, call.lengths_q, call.seqlen_q, call.heads, gradients.dq, call.head_dim_qk);
  clear_rows(call, call.lengths_k, call.seqlen_k, call.kv_heads, gradients.dk, call.head_dim_qk);
  clear_rows(call, call.lengths_k, call.seqlen_k, call.kv_heads, gradients.dv, call.head_dim_v);
}

Used used_by_forward(const Attention& call, Instructions with) { return used(forward_kernels(call, with)); }
Used used_by_backward(const Attention& call, const Gradients& wanted, Instructions with) {
  return used(backward_kernels(call, wanted, with));
}

CpuIsa built_isa(CpuIsa isa) {
  if (isa == CpuIsa::amx && tiles_granted()) return CpuIsa::amx;
  return kernels(isa).isa;
}

}  // namespace cynosure::cpu
