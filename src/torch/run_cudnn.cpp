// SPDX-License-Identifier: Apache-2.0
// torch/run_cudnn.cpp: the backend `cudnn`: tensors to keys and pointers, torch's stream, torch's allocator.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include <cynosure/ledger.hpp>

#include "backends/cudnn/plan.hpp"
#include "backends/cudnn/run_rows.hpp"
#include "detect/loader.hpp"
#include "torch/backend.hpp"
#include "torch/cuda_call.hpp"
#include "torch/tensor_math.hpp"

namespace cynosure::torch_abi {
namespace {

using cudnn::Direction;
using cudnn::LengthKind;
using cudnn::PlanKey;
using cudnn::Slot;

// --- torch's CUDA part: looked up, since a build with torch for CPUs has to load, too

/// torch's current stream of a device.
cudnn::Stream current_stream(std::int32_t device) {
  using Get = AOTITorchError(std::int32_t, void**);
  static Get* const get = [] {
    const detect::Loader& loader = detect::system_loader();
    void* const library = loader.loaded("libtorch_cuda.so");
    return library != nullptr ? loader.function<Get>(library, "aoti_torch_get_current_cuda_stream") : nullptr;
  }();
  if (get == nullptr) throw std::runtime_error("cynosure: cudnn: libtorch_cuda.so is not loaded");
  void* stream = nullptr;
  ok(get(device, &stream), "the current stream");
  return stream;
}

// --- tensors as cuDNN reads them

bool is_aligned(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory) % static_cast<std::uintptr_t>(cudnn::kAlignment) == 0;
}

/// The tensor, or a copy where its memory is not as plans take it: rows in one piece, all aligned, nothing repeated. In
/// a ragged backward dense besides: cuDNN 9.19 finds a gradient at the offsets of its input, whatever is stated of it.
Tensor readable(const Arguments& a, Direction direction, const Tensor& t) {
  constexpr std::int64_t elements = cudnn::kAlignment / 2;  // of 16 bits
  const std::int64_t dims = rank(t);
  const std::int64_t* n = sizes(t);
  const std::int64_t* s = strides(t);
  bool good = is_aligned(data(t)) && (s[dims - 1] == 1 || n[dims - 1] == 1);
  for (std::int64_t i = 0; i + 1 < dims; ++i) good = good && (n[i] == 1 || (s[i] > 0 && s[i] % elements == 0));
  if (a.call.dims == Dims::thd && direction == Direction::backward)
    good = good && (n[1] == 1 || s[1] == n[2]) && (n[0] == 1 || s[0] == n[1] * n[2]);
  if (good) return t;
  Tensor copy = empty_like(t);
  static_cast<void>(aten("aten::copy_", "", copy, t, false));
  return copy;
}

/// Strides by name. Those of dims of one are made as if dense, so that they make no difference between plans.
cudnn::Strides strides_of(const Arguments& a, const Tensor& t) {
  constexpr std::array<std::array<std::int64_t, 3>, 4> axes{{{0, 2, 1}, {1, 2, 0}, {0, 1, 2}, {-1, 1, 0}}};
  const auto [batch, head, row] = axes[static_cast<std::size_t>(a.call.dims)];
  const std::int64_t* s = strides(t);
  const std::int64_t* n = sizes(t);
  const std::int64_t width = n[rank(t) - 1];
  cudnn::Strides result{.batch = batch < 0 ? 0 : s[batch], .head = s[head], .row = s[row]};
  if (n[head] == 1) result.head = width;
  if (n[row] == 1) result.row = n[head] * width;
  const std::int64_t all = std::max(n[head] * result.head, n[row] * result.row);
  if (batch >= 0 && n[batch] == 1) result.batch = all;
  return result;
}

std::int64_t heads_of(const Arguments& a, const Tensor& t) {
  constexpr std::array axis{2, 2, 1, 1};
  return sizes(t)[axis[static_cast<std::size_t>(a.call.dims)]];
}

std::int64_t bound(const Arguments& a, std::int64_t length, const Tensor& tokens) {
  return a.call.dims == Dims::thd ? std::min(length, sizes(tokens)[0]) : length;
}

Tensor signed_q(const Arguments& a, Direction direction) {
  const double sign = sign_of_scale(a);
  return readable(a, direction, sign > 0 ? a.q : mul(a.q, number(sign)));
}

bool keeps_nothing(const Arguments& a) { return a.call.dropout_p >= 1; }

/// Of ragged tensors, as if all sequences had the longest length: cuDNN derives what it loads at once from them.
void set_batch_strides(PlanKey& key) {
  for (cudnn::Strides* s : {&key.q, &key.out, &key.dout, &key.dq}) s->batch = key.seqlen_q * s->row;
  for (cudnn::Strides* s : {&key.k, &key.v, &key.dk, &key.dv}) s->batch = key.seqlen_k * s->row;
}

/// The key of the call; the bias is stated later (Extras::put).
PlanKey key_for(const Arguments& a, Direction direction, const Tensor& q, const Tensor& k, const Tensor& v,
                const Tensor& out) {
  const bool deterministic = Settings::from_word(static_cast<std::uint64_t>(a.settings)).deterministic();
  Problem problem = a.problem;
  problem.lengths.seqlen_q = bound(a, a.sizes.seqlen_q, a.q);
  problem.lengths.seqlen_k = bound(a, a.sizes.seqlen_k, a.k);
  PlanKey key = cudnn::key_of(problem, direction, deterministic);
  key.q = strides_of(a, q);
  key.k = strides_of(a, k);
  key.v = strides_of(a, v);
  key.out = strides_of(a, out);
  if (key.lengths == LengthKind::ragged) set_batch_strides(key);
  key.bias_batch = key.bias_heads = 0;
  key.bias = {};
  key.scale = std::bit_cast<std::uint32_t>(static_cast<float>(size_of_scale(a)));
  key.dropout_p = std::bit_cast<std::uint32_t>(keeps_nothing(a) ? 0.0F : static_cast<float>(a.call.dropout_p));
  key.device = a.call.q.device_index;
  key.sm_count = a.device.sm_count;
  key.cudnn = cudnn::library().number;
  return key;
}

/// Whether a row may have no key because of lengths or of the window.
bool rows_may_be_empty(const PlanKey& key) {
  if (key.lengths != LengthKind::full) return true;
  if (key.bottom_right) return key.window_right >= 0 && key.seqlen_k - key.seqlen_q + key.window_right < 0;
  return key.window_left >= 0 && key.seqlen_q - 1 - key.window_left > key.seqlen_k - 1;
}

// --- what is added to the scores: bias, mask and ALiBi in one tensor, as cuDNN has a single one

struct Added {
  OptionalTensor values;  ///< [1 or B, 1 or H, Sq, Skv]
  OptionalTensor dead;    ///< bool [1 or B, 1 or H, Sq, 1]: rows in which a mask leaves nothing
};

/// j - (i + offset) as float64 [1, 1, Sq, Skv].
Tensor distances(const Arguments& a) {
  const std::int64_t rows = a.sizes.seqlen_q;
  const std::int64_t keys = a.sizes.seqlen_k;
  const Tensor i = reshape(count(a.q, rows), {1, 1, rows, 1});
  const Tensor j = reshape(count(a.q, keys), {1, 1, 1, keys});
  return sub(sub(j, i), number(a.call.align == Align::bottom_right ? keys - rows : 0));
}

/// Pairs within the window, bool [1, 1, Sq, Skv]; nothing: all are.
OptionalTensor within_window(const Arguments& a) {
  const std::int64_t right = a.call.causal ? 0 : a.call.window_right;
  if (right < 0 && a.call.window_left < 0) return std::nullopt;
  const Tensor distance = distances(a);
  OptionalTensor kept;
  if (right >= 0) kept = at_most(distance, number(right));
  if (a.call.window_left >= 0) {
    const Tensor left = at_least(distance, number(-a.call.window_left));
    kept = kept ? both(*kept, left) : left;
  }
  return kept;
}

/// Memory for one [batch, heads, Sq, Skv] with aligned rows.
Tensor new_added(const Arguments& a, std::int64_t batch, std::int64_t heads, std::int32_t type) {
  const std::int64_t rows = a.sizes.seqlen_q;
  const std::int64_t pitch = (a.sizes.seqlen_k + 7) / 8 * 8;
  const std::array size{batch, heads, rows, a.sizes.seqlen_k};
  const std::array stride{heads * rows * pitch, rows * pitch, pitch, std::int64_t{1}};
  return empty(a.q, type, size.data(), stride.data(), 4);
}

bool usable_as_it_is(const Arguments& a, const Tensor& bias) {
  const std::int64_t* n = sizes(bias);
  const std::int64_t* s = strides(bias);
  bool good = n[2] == a.sizes.seqlen_q && n[3] == a.sizes.seqlen_k && s[3] == 1 && is_aligned(data(bias));
  for (std::size_t i = 0; i < 3; ++i) good = good && (n[i] == 1 || (s[i] > 0 && s[i] % 8 == 0));
  return good;
}

Added added_to_scores(const Arguments& a) {
  if (!a.attn_bias && !a.attn_mask && !a.alibi_slopes) return {};
  if (a.attn_bias && !a.attn_mask && !a.alibi_slopes && usable_as_it_is(a, *a.attn_bias))
    return {.values = a.attn_bias, .dead = {}};
  const std::int32_t float32 = aoti_torch_dtype_float32();
  const bool additive = a.attn_mask && a.call.attn_mask.element != Element::boolean;
  const bool exact = a.alibi_slopes || (a.attn_bias && dtype(*a.attn_bias) == float32) ||
                     (additive && (a.attn_bias || dtype(*a.attn_mask) == float32));
  const std::int32_t type = exact ? float32 : dtype(a.q);
  OptionalTensor total;
  const auto add_term = [&](const Tensor& term) { total = total ? add(*total, to(term, type)) : to(term, type); };
  if (a.attn_bias) add_term(*a.attn_bias);
  if (additive) add_term(*a.attn_mask);
  if (a.alibi_slopes) {
    const bool by_batch = rank(*a.alibi_slopes) == 2;
    const Tensor slopes = reshape(*a.alibi_slopes, {by_batch ? a.sizes.batch : 1, a.sizes.heads, 1, 1});
    add_term(neg(mul(to(slopes, float32), to(abs(distances(a)), float32))));
  }
  const auto full = [&](const Tensor& t) {
    return expand(t, {sizes(t)[0], sizes(t)[1], a.sizes.seqlen_q, a.sizes.seqlen_k});
  };
  Added result;
  if (a.attn_mask) {
    OptionalTensor visible;
    if (additive) {
      visible = no(equal(*a.attn_mask, number(-kInfinity)));
    } else {
      visible = *a.attn_mask;
      if (!total) {
        const Tensor zero = empty(a.q, type, {1, 1, 1, 1});
        fill(zero, 0.0);
        total = zero;
      }
      total = masked_fill(*total, no(*visible), -kInfinity);
    }
    visible = full(*visible);
    if (const OptionalTensor window = within_window(a)) visible = both(*visible, *window);
    result.dead = no(any(*visible, 3, true));
    total = masked_fill(full(*total), *result.dead, 0.0);  // any numbers: they are taken back afterwards
  }
  result.values = new_added(a, sizes(*total)[0], sizes(*total)[1], type);
  copy(*result.values, full(*total));
  return result;
}

void put_bias(PlanKey& key, const Tensor& bias) {
  const std::int64_t* s = strides(bias);
  key.bias_batch = sizes(bias)[0];
  key.bias_heads = sizes(bias)[1];
  const std::int64_t all = key.seqlen_q * s[2];
  key.bias = {.batch = key.bias_batch == 1 ? key.bias_heads * all : s[0],
              .head = key.bias_heads == 1 ? all : s[1],
              .row = s[2]};
  key.bias_type = dtype(bias) == aoti_torch_dtype_float32() ? cudnn::Type::float32 : key.type;
}

/// The gradient of a term from that of the sum.
Tensor gradient_of_term(const Tensor& gradient, const Tensor& term) {
  Sizes dims;
  for (std::int64_t i = 0; i < 4; ++i)
    if (sizes(term)[i] == 1 && sizes(gradient)[i] != 1) dims.push_back(i);
  Tensor result = empty_like(term);
  copy(result, dims.empty() ? gradient : sum(gradient, dims, true));
  return result;
}

// --- one call

void count_build(Direction direction, std::chrono::nanoseconds time) {
  record_plan_build(direction == Direction::forward ? cynosure::Direction::forward : cynosure::Direction::backward,
                    time);
}

void* at(const OptionalTensor& t) { return t ? data(*t) : nullptr; }

/// Hands out parts of one allocation.
class Workspace {
 public:
  [[nodiscard]] std::int64_t add(std::int64_t bytes) {
    const std::int64_t start = bytes_;
    bytes_ += (bytes + 255) / 256 * 256;
    return start;
  }
  void allocate(const Tensor& like) {
    if (bytes_ > 0) memory_ = empty(like, aoti_torch_dtype_uint8(), {bytes_});
  }
  template <class T>
  [[nodiscard]] T* at(std::int64_t start) const {
    return memory_ ? reinterpret_cast<T*>(static_cast<char*>(data(*memory_)) + start) : nullptr;
  }

 private:
  std::int64_t bytes_ = 0;
  OptionalTensor memory_;
};

cudnn::RowsSide side_of(const Arguments& a, const OptionalTensor& lengths, const Tensor& tokens, std::int64_t most) {
  return {.lengths = static_cast<const int*>(torch_abi::at(lengths)),
          .tokens = a.call.dims == Dims::thd ? sizes(tokens)[0] : 0,
          .most = static_cast<int>(most)};
}

/// A plan with its pointers, and the small kernels around it.
class Launch {
 public:
  Launch(const Arguments& a, const PlanKey& key)
      : a_(a),
        key_(key),
        stream_(current_stream(key.device)),
        plan_(cudnn::plan_for(key, stream_, &count_build)),
        ragged_(cudnn::ragged_layout(key)) {
    before_.q = side_of(a, a.seqlens_q, a.q, key.seqlen_q);
    before_.k = side_of(a, a.seqlens_k, a.k, key.seqlen_k);
    before_.batch = static_cast<int>(key.batch);
    before_.ragged = key.lengths == LengthKind::ragged;
  }

  void set(Slot slot, void* pointer) { pointers_[static_cast<std::size_t>(slot)] = pointer; }
  void set(Slot slot, const Tensor& t) { set(slot, data(t)); }
  /// An output, dense in the call's layout: what cuDNN does not write of it becomes 0.
  void clear(const Tensor& t, bool of_keys, bool gradient) {
    if (key_.lengths == LengthKind::full || (!before_.ragged && !gradient)) return;
    const cudnn::Strides s = strides_of(a_, t);
    before_.outputs[before_.outputs_count++] = {.values = data(t),
                                                .row_bytes = 2 * heads_of(a_, t) * sizes(t)[rank(t) - 1],
                                                .batch_step = 2 * s.batch,
                                                .row_step = 2 * s.row,
                                                .of_keys = of_keys,
                                                .gradient = gradient};
  }
  /// The LSE for a backward in which rows may have nothing to attend.
  void mend(const Tensor& lse) {
    before_.lse = static_cast<const float*>(data(lse));
    before_.lse_count = lse.numel();
  }

  void run() {
    Workspace workspace;
    const std::int64_t own = workspace.add(plan_->workspace());
    const bool lengths = key_.lengths != LengthKind::full;
    const std::int64_t lengths_bytes = lengths ? 4 * key_.batch : 0;
    const std::int64_t lengths_q = workspace.add(lengths_bytes);
    const std::int64_t lengths_k = workspace.add(lengths_bytes);
    std::array<std::int64_t, cudnn::kMostOffsets> offsets{};
    for (std::size_t i = 0; i < ragged_.count; ++i) offsets[i] = workspace.add(8 * (key_.batch + 1));
    const std::int64_t lse = workspace.add(before_.lse != nullptr ? 4 * before_.lse_count : 0);
    workspace.allocate(a_.q);
    if (lengths) {
      before_.lengths_q = workspace.at<int>(lengths_q);
      before_.lengths_k = workspace.at<int>(lengths_k);
      set(Slot::lengths_q, before_.lengths_q);
      set(Slot::lengths_k, before_.lengths_k);
    }
    for (std::size_t i = 0; i < ragged_.count; ++i) {
      before_.offsets[i] = {.values = workspace.at<long long>(offsets[i]),
                            .row = ragged_.offsets[i].row,
                            .of_keys = ragged_.offsets[i].of_keys};
      pointers_[static_cast<std::size_t>(Slot::ragged) + i] = before_.offsets[i].values;
    }
    before_.offsets_count = static_cast<int>(ragged_.count);
    if (before_.lse != nullptr) {
      before_.lse_for_backward = workspace.at<float>(lse);
      set(Slot::stats, before_.lse_for_backward);
    }
    if (lengths || before_.lse != nullptr) cudnn::run(before_, key_.device, stream_);
    plan_->execute(cudnn::handle_for(key_.device, stream_), pointers_, workspace.at<void>(own));
  }

  /// Rows without anything to attend, as `lengths` and the window leave them.
  void clear_empty_rows(const Tensor& out, void* lse) {
    cudnn::RowsAfter after{.q = before_.q,
                           .k = before_.k,
                           .batch = before_.batch,
                           .heads = static_cast<int>(key_.heads),
                           .head_dim = static_cast<int>(key_.head_dim_v),
                           .ragged = before_.ragged,
                           .bottom_right = key_.bottom_right,
                           .window_left = key_.window_left,
                           .window_right = key_.window_right,
                           .lse = static_cast<float*>(lse),
                           .out = data(out),
                           .out_batch = key_.out.batch,
                           .out_head = key_.out.head,
                           .out_row = key_.out.row};
    cudnn::run(after, key_.device, stream_);
  }

 private:
  const Arguments& a_;
  const PlanKey& key_;
  cudnn::Stream stream_;
  std::shared_ptr<cudnn::Plan> plan_;
  cudnn::RaggedLayout ragged_;
  cudnn::RowsBefore before_{};
  cudnn::Pointers pointers_{};
};

/// What both directions read besides q, k and v; holds what the pointers point to.
class Extras {
 public:
  explicit Extras(const Arguments& a) : added_(added_to_scores(a)) {
    if (a.sinks) sinks_ = to(rows_in_one_piece(*a.sinks), aoti_torch_dtype_float32());
    if (a.call.dropout_p > 0 && !keeps_nothing(a)) seed_ = rows_in_one_piece(*a.dropout_seed);
  }
  void put(PlanKey& key) const {
    if (added_.values) put_bias(key, *added_.values);
  }
  void put(Launch& launch) const {
    if (added_.values) launch.set(Slot::bias, *added_.values);
    if (sinks_) launch.set(Slot::sinks, *sinks_);
    if (seed_) {
      auto* const values = static_cast<std::int64_t*>(data(*seed_));
      launch.set(Slot::seed, values);
      launch.set(Slot::offset, values + 1);
    }
  }
  [[nodiscard]] const Added& added() const { return added_; }

 private:
  Added added_;
  OptionalTensor sinks_, seed_;
};

/// Whether an LSE lies in memory as `new_lse` makes it.
bool is_as_new(const Arguments& a, const Tensor& lse) {
  const std::int64_t* n = sizes(lse);
  const std::int64_t* s = strides(lse);
  if (a.call.dims == Dims::thd) return (s[0] == 1 || n[0] == 1) && (s[1] == n[0] || n[1] == 1);
  return (s[2] == 1 || n[2] == 1) && (s[1] == n[2] || n[1] == 1) && (s[0] == n[1] * n[2] || n[0] == 1);
}

/// [B, H, Sq, X] view of a dense tensor in the call's layout.
Tensor heads_first(const Arguments& a, const Tensor& t) {
  if (a.call.dims == Dims::bshd) return permute(t, {0, 2, 1, 3});
  if (a.call.dims == Dims::sbhd) return permute(t, {1, 2, 0, 3});
  return t;
}

}  // namespace

bool cudnn_is_built() { return true; }

Version cudnn_version() {
  // Beside torch: <site-packages>/torch/lib/libtorch_cpu.so and <site-packages>/nvidia/cudnn/lib.
  static const Version version = [] {
    std::string path = detect::system_loader().file(reinterpret_cast<void*>(&aoti_torch_get_data_ptr));
    for (int i = 0; i < 3; ++i) path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
    return cudnn::library(path.empty() ? path : path + "/nvidia/cudnn/lib/libcudnn.so.9").version;
  }();
  return version;
}

ForwardResult forward_cudnn(const Arguments& a) {
  ForwardResult result{.out = new_out(a), .lse = new_lse(a)};
  if (nothing_to_do(a) || (keeps_nothing(a) && !result.lse)) {
    fill(result.out, 0.0);
    if (result.lse) fill(*result.lse, -kInfinity);
    return result;
  }
  const OnDevice guard(a.call.q.device_index);
  const Tensor q = signed_q(a, Direction::forward);
  const Tensor k = readable(a, Direction::forward, a.k);
  const Tensor v = readable(a, Direction::forward, a.v);
  const Extras extras(a);
  PlanKey key = key_for(a, Direction::forward, q, k, v, result.out);
  extras.put(key);
  Launch launch(a, key);
  launch.set(Slot::q, q);
  launch.set(Slot::k, k);
  launch.set(Slot::v, v);
  launch.set(Slot::out, result.out);
  if (result.lse) launch.set(Slot::stats, *result.lse);
  extras.put(launch);
  launch.clear(result.out, false, false);
  launch.run();
  if (rows_may_be_empty(key)) launch.clear_empty_rows(result.out, at(result.lse));
  if (const OptionalTensor& dead = extras.added().dead) {
    copy(heads_first(a, result.out), masked_fill(heads_first(a, result.out), *dead, 0.0));
    if (result.lse)
      copy(*result.lse,
           masked_fill(*result.lse, reshape(*dead, {sizes(*dead)[0], sizes(*dead)[1], sizes(*dead)[2]}), -kInfinity));
  }
  if (keeps_nothing(a)) fill(result.out, 0.0);
  return result;
}

BackwardResult backward_cudnn(const Arguments& a, const BackwardInputs& in) {
  BackwardResult result{
      .dq = new_like(a, a.q), .dk = new_like(a, a.k), .dv = new_like(a, a.v), .dbias = {}, .dmask = {}, .dsinks = {}};
  const bool bias_grad = a.attn_bias && a.call.bias_requires_grad;
  const bool mask_grad = a.attn_mask && a.mask_requires_grad && a.call.attn_mask.element != Element::boolean;
  const bool sinks_grad = a.sinks && a.sinks_requires_grad;
  if (nothing_to_do(a) || keeps_nothing(a)) {
    for (const Tensor* t : {&result.dq, &result.dk, &result.dv}) fill(*t, 0.0);
    if (bias_grad) result.dbias = zeros_like(*a.attn_bias);
    if (mask_grad) result.dmask = zeros_like(*a.attn_mask);
    if (sinks_grad) result.dsinks = zeros_like(*a.sinks);
    return result;
  }
  const OnDevice guard(a.call.q.device_index);
  const Tensor q = signed_q(a, Direction::backward);
  const Tensor k = readable(a, Direction::backward, a.k);
  const Tensor v = readable(a, Direction::backward, a.v);
  const Tensor out = readable(a, Direction::backward, in.out);
  Tensor dout = readable(a, Direction::backward, in.grad_out);
  if (cudnn::library().version < Version{9, 5, 1} && strides_of(a, dout) != strides_of(a, out)) {
    dout = empty(out, dtype(out), sizes(out), strides(out), rank(out));
    copy(dout, in.grad_out);
  }
  const Extras extras(a);
  PlanKey key = key_for(a, Direction::backward, q, k, v, out);
  key.dout = strides_of(a, dout);
  key.dq = strides_of(a, result.dq);
  key.dk = strides_of(a, result.dk);
  key.dv = strides_of(a, result.dv);
  if (key.lengths == LengthKind::ragged) set_batch_strides(key);
  key.bias_grad = bias_grad || mask_grad;
  key.sinks_grad = sinks_grad;
  if (key.lengths == LengthKind::ragged) {
    key.tokens_q = cudnn::rounded_up(sizes(a.q)[0]);
    key.tokens_k = cudnn::rounded_up(sizes(a.k)[0]);
  }
  extras.put(key);
  Launch launch(a, key);
  Tensor lse = in.lse;
  if (!is_as_new(a, lse)) {
    const std::int64_t* n = sizes(lse);
    const Tensor dense =
        a.call.dims == Dims::thd ? transpose(empty(lse, dtype(lse), {n[1], n[0]}), 0, 1) : empty_like(lse);
    copy(dense, lse);
    lse = dense;
  }
  launch.set(Slot::q, q);
  launch.set(Slot::k, k);
  launch.set(Slot::v, v);
  launch.set(Slot::out, out);
  launch.set(Slot::dout, dout);
  launch.set(Slot::stats, lse);
  launch.set(Slot::dq, result.dq);
  launch.set(Slot::dk, result.dk);
  launch.set(Slot::dv, result.dv);
  if (rows_may_be_empty(key) || extras.added().dead) launch.mend(lse);
  extras.put(launch);
  OptionalTensor dadded;
  OptionalTensor dsinks;
  if (key.bias_grad) {
    const std::int64_t* const n = sizes(*extras.added().values);
    dadded = empty(a.q, dtype(a.q), Sizes{n[0], n[1], n[2], n[3]});
    launch.set(Slot::dbias, *dadded);
  }
  if (sinks_grad) {
    dsinks = empty(a.q, aoti_torch_dtype_float32(), {a.sizes.heads});
    launch.set(Slot::dsinks, *dsinks);
  }
  launch.clear(result.dq, false, true);
  launch.clear(result.dk, true, true);
  launch.clear(result.dv, true, true);
  launch.run();
  if (sign_of_scale(a) <= 0) copy(result.dq, mul(result.dq, number(sign_of_scale(a))));
  if (bias_grad) result.dbias = gradient_of_term(*dadded, *a.attn_bias);
  if (mask_grad) result.dmask = gradient_of_term(*dadded, *a.attn_mask);
  if (sinks_grad) {
    result.dsinks = empty_like(*a.sinks);
    copy(*result.dsinks, *dsinks);
  }
  return result;
}

}  // namespace cynosure::torch_abi
