// SPDX-License-Identifier: Apache-2.0
// backends/cudnn/graph.cpp: from a key to cuDNN's graph. The one source that includes cudnn-frontend.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include <dlfcn.h>

// Hidden, so that none of it meets the copy of another release inside torch.
#pragma GCC visibility push(hidden)
#include <cudnn_frontend.h>
#pragma GCC visibility pop

#include "backends/cudnn/plan.hpp"

// Where cudnn-frontend looks its functions up; opened before any of them is called.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace cynosure::cudnn {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

void open_library() {
  const Library& found = library();
  if (found.handle == nullptr) throw std::runtime_error("cynosure: cudnn: " + found.why_not);
  static std::once_flag once;
  std::call_once(once, [&] { fe::cudnn_dlhandle = found.handle; });
}

fe::DataType_t data_type(Type type) {
  switch (type) {
    case Type::bfloat16:
      return fe::DataType_t::BFLOAT16;
    case Type::float16:
      return fe::DataType_t::HALF;
    case Type::float32:
      break;
  }
  return fe::DataType_t::FLOAT;
}

using Four = std::vector<std::int64_t>;

/// A graph with what its tensors are, and which of them the caller provides.
class Builder {
 public:
  /// `device` and `sm`: of another machine than this one.
  explicit Builder(const PlanKey& key, std::shared_ptr<const fe::DeviceProperties> device = nullptr, int sm = 0)
      : key_(key), ragged_(ragged_layout(key)), graph_(std::make_shared<fe::graph::Graph>()) {
    if (device != nullptr) {  // first: nodes copy what the graph knows
      graph_->set_device_properties(std::move(device));
      graph_->set_sm_version(sm);
    }
    graph_->set_io_data_type(data_type(key.type))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    for (std::size_t i = 0; i < ragged_.count; ++i)
      offsets_[i] = whole(slot_of_offsets(i), {key.batch + 1, 1, 1, 1}, fe::DataType_t::INT64);
    if (key.direction == Direction::forward)
      forward();
    else
      backward();
  }

  [[nodiscard]] const std::shared_ptr<fe::graph::Graph>& graph() const { return graph_; }
  [[nodiscard]] const std::array<bool, kSlots>& used() const { return used_; }

 private:
  static Slot slot_of_offsets(std::size_t i) { return static_cast<Slot>(static_cast<std::size_t>(Slot::ragged) + i); }

  void describe(fe::graph::Tensor_attributes& tensor, Slot slot, const Four& size, const Four& stride,
                fe::DataType_t type) {
    tensor.set_dim(size).set_stride(stride).set_data_type(type).set_uid(static_cast<std::int64_t>(slot) + 1);
    used_[static_cast<std::size_t>(slot)] = true;
  }
  Tensor input(Slot slot, const Four& size, const Four& stride, fe::DataType_t type) {
    fe::graph::Tensor_attributes attributes;
    describe(attributes, slot, size, stride, type);
    if (is_ragged(slot)) attributes.set_ragged_offset(offsets_[ragged_.of_slot[static_cast<std::size_t>(slot)]]);
    return graph_->tensor(attributes);
  }
  void output(const Tensor& tensor, Slot slot, const Four& size, const Four& stride, fe::DataType_t type) {
    tensor->set_output(true);
    describe(*tensor, slot, size, stride, type);
    if (is_ragged(slot)) tensor->set_ragged_offset(offsets_[ragged_.of_slot[static_cast<std::size_t>(slot)]]);
  }
  /// A dense tensor of few elements.
  Tensor whole(Slot slot, const Four& size, fe::DataType_t type) {
    return input(slot, size, {size[1] * size[2] * size[3], size[2] * size[3], size[3], 1}, type);
  }
  [[nodiscard]] bool is_ragged(Slot slot) const {
    if (key_.lengths != LengthKind::ragged) return false;
    switch (slot) {
      case Slot::q:
      case Slot::k:
      case Slot::v:
      case Slot::out:
      case Slot::stats:
      case Slot::dout:
      case Slot::dq:
      case Slot::dk:
      case Slot::dv:
        return true;
      default:
        return false;
    }
  }

  static Four strides(const Strides& s) { return {s.batch, s.head, s.row, 1}; }
  [[nodiscard]] Four size_q() const { return {key_.batch, key_.heads, key_.seqlen_q, key_.head_dim_qk}; }
  [[nodiscard]] Four size_k() const { return {key_.batch, key_.kv_heads, key_.seqlen_k, key_.head_dim_qk}; }
  [[nodiscard]] Four size_v() const { return {key_.batch, key_.kv_heads, key_.seqlen_k, key_.head_dim_v}; }
  [[nodiscard]] Four size_out() const { return {key_.batch, key_.heads, key_.seqlen_q, key_.head_dim_v}; }
  [[nodiscard]] Four size_stats() const { return {key_.batch, key_.heads, key_.seqlen_q, 1}; }
  /// Dense: [B, H, Sq]. Ragged: [T, H].
  [[nodiscard]] Four strides_stats() const {
    const std::int64_t all = key_.heads * key_.seqlen_q;
    if (key_.lengths == LengthKind::ragged) return {all, 1, key_.heads, 1};
    return {all, key_.seqlen_q, 1, 1};
  }
  [[nodiscard]] Four size_bias() const { return {key_.bias_batch, key_.bias_heads, key_.seqlen_q, key_.seqlen_k}; }
  [[nodiscard]] fe::DataType_t type() const { return data_type(key_.type); }

  /// What both directions state alike.
  template <class Options>
  void state(Options& options) {
    options.set_attn_scale(std::bit_cast<float>(key_.scale));
    if (key_.window_left >= 0 || key_.window_right >= 0)
      options.set_diagonal_alignment(key_.bottom_right ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                                       : fe::DiagonalAlignment_t::TOP_LEFT);
    // cuDNN's left bound is the first column that is hidden.
    if (key_.window_left >= 0) options.set_diagonal_band_left_bound(static_cast<int>(key_.window_left + 1));
    if (key_.window_right >= 0) options.set_diagonal_band_right_bound(static_cast<int>(key_.window_right));
    if (key_.lengths != LengthKind::full)
      options.set_padding_mask(true)
          .set_seq_len_q(whole(Slot::lengths_q, {key_.batch, 1, 1, 1}, fe::DataType_t::INT32))
          .set_seq_len_kv(whole(Slot::lengths_k, {key_.batch, 1, 1, 1}, fe::DataType_t::INT32));
    if (key_.bias_batch > 0)
      options.set_bias(input(Slot::bias, size_bias(), strides(key_.bias), data_type(key_.bias_type)));
    if (const auto p = std::bit_cast<float>(key_.dropout_p); p > 0)
      options.set_dropout(p, whole(Slot::seed, {1, 1, 1, 1}, fe::DataType_t::INT64),
                          whole(Slot::offset, {1, 1, 1, 1}, fe::DataType_t::INT64));
    if (key_.sinks) options.set_sink_token(whole(Slot::sinks, {1, key_.heads, 1, 1}, fe::DataType_t::FLOAT));
  }

  void forward() {
    const Tensor q = input(Slot::q, size_q(), strides(key_.q), type());
    const Tensor k = input(Slot::k, size_k(), strides(key_.k), type());
    const Tensor v = input(Slot::v, size_v(), strides(key_.v), type());
    fe::graph::SDPA_attributes options;
    options.set_name("attention").set_generate_stats(key_.stats);
    state(options);
    const auto [out, stats] = graph_->sdpa(q, k, v, options);
    output(out, Slot::out, size_out(), strides(key_.out), type());
    if (key_.stats) output(stats, Slot::stats, size_stats(), strides_stats(), fe::DataType_t::FLOAT);
  }

  void backward() {
    const Tensor q = input(Slot::q, size_q(), strides(key_.q), type());
    const Tensor k = input(Slot::k, size_k(), strides(key_.k), type());
    const Tensor v = input(Slot::v, size_v(), strides(key_.v), type());
    const Tensor out = input(Slot::out, size_out(), strides(key_.out), type());
    const Tensor dout = input(Slot::dout, size_out(), strides(key_.dout), type());
    const Tensor stats = input(Slot::stats, size_stats(), strides_stats(), fe::DataType_t::FLOAT);
    fe::graph::SDPA_backward_attributes options;
    options.set_name("attention_backward").set_deterministic_algorithm(key_.deterministic);
    state(options);
    if (key_.bias_grad) {
      auto dbias = std::make_shared<fe::graph::Tensor_attributes>();
      // The library's own condition: 16 bits, dense.
      const std::int64_t all = key_.seqlen_q * key_.seqlen_k;
      output(dbias, Slot::dbias, size_bias(), {key_.bias_heads * all, all, key_.seqlen_k, 1}, type());
      options.set_dbias(dbias);
    }
    if (key_.sinks_grad) {
      auto dsinks = std::make_shared<fe::graph::Tensor_attributes>();
      output(dsinks, Slot::dsinks, {1, key_.heads, 1, 1}, {key_.heads, 1, 1, 1}, fe::DataType_t::FLOAT);
      options.set_dsink_token(dsinks);
    }
    if (key_.lengths == LengthKind::ragged)
      options.set_max_total_seq_len_q(key_.tokens_q).set_max_total_seq_len_kv(key_.tokens_k);
    const auto [dq, dk, dv] = graph_->sdpa_backward(q, k, v, out, dout, stats, options);
    output(dq, Slot::dq, size_q(), strides(key_.dq), type());
    output(dk, Slot::dk, size_k(), strides(key_.dk), type());
    output(dv, Slot::dv, size_v(), strides(key_.dv), type());
  }

  const PlanKey& key_;
  RaggedLayout ragged_;
  std::shared_ptr<fe::graph::Graph> graph_;
  std::array<Tensor, kMostOffsets> offsets_;
  std::array<bool, kSlots> used_{};
};

void check(fe::error_t status, const char* what) {
  if (status.is_bad()) throw std::runtime_error(std::string("cynosure: cudnn: ") + what + ": " + status.get_message());
}

class GraphPlan : public Plan {
 public:
  explicit GraphPlan(const Builder& builder) : graph_(builder.graph()) {
    for (std::size_t i = 0; i < kSlots; ++i)
      if (builder.used()[i]) slots_[count_++] = static_cast<std::uint8_t>(i);
  }
  void measure() { check(graph_->get_workspace_size(workspace_), "workspace"); }

  [[nodiscard]] std::int64_t workspace() const override { return workspace_; }

  void execute(void* handle, const Pointers& pointers, void* workspace) const override {
    std::array<void*, kSlots> ordered{};  // as the uids
    for (std::size_t i = 0; i < count_; ++i) ordered[i] = pointers[slots_[i]];
    const std::lock_guard lock(mutex_);  // cuDNN promises no more than one thread at a time for each plan
    check(graph_->execute(static_cast<cudnnHandle_t>(handle), ordered.data(), static_cast<int>(count_), workspace),
          "execute");
  }

 private:
  std::shared_ptr<fe::graph::Graph> graph_;
  std::array<std::uint8_t, kSlots> slots_{};
  std::size_t count_ = 0;
  std::int64_t workspace_ = 0;
  mutable std::mutex mutex_;
};

/// cudnn-frontend reports some errors as values and some by throwing.
template <class Work>
auto with_cudnn_errors(const Work& work) {
  open_library();
  try {
    return work();
  } catch (const fe::cudnnException& error) {
    throw std::runtime_error(std::string("cynosure: cudnn: ") + error.what());
  }
}

/// Which of its heuristics cuDNN orders engines by.
std::vector<fe::HeurMode_t> modes() { return {fe::HeurMode_t::A}; }

}  // namespace

std::shared_ptr<Plan> build(const PlanKey& key, void* handle) {
  return with_cudnn_errors([&]() -> std::shared_ptr<Plan> {
    const Builder builder(key);
    check(builder.graph()->build(static_cast<cudnnHandle_t>(handle), modes()), "no plan");
    auto plan = std::make_shared<GraphPlan>(builder);
    plan->measure();
    return plan;
  });
}

std::string why_not(const PlanKey& key, const std::string& properties, int sm, bool compile) {
  return with_cudnn_errors([&]() -> std::string {
    auto device = std::make_shared<fe::DeviceProperties>();
    if (auto status = device->deserialize({properties.begin(), properties.end()}); status.is_bad())
      throw std::runtime_error("cynosure: cudnn: these are no device properties: " + status.get_message());
    const Builder builder(key, device, sm);
    fe::graph::Graph& graph = *builder.graph();
    fe::error_t status = graph.validate();
    if (status.is_good()) status = graph.build_operation_graph();
    if (status.is_good()) status = graph.create_execution_plans(modes());
    if (status.is_good()) status = graph.check_support();
    if (status.is_good() && compile) status = graph.build_plans();
    return status.is_good() ? "" : status.get_message().empty() ? "no reason given" : status.get_message();
  });
}

std::string device_properties(void* handle) {
  return with_cudnn_errors([&]() -> std::string {
    fe::DeviceProperties device;
    device.set_handle(static_cast<cudnnHandle_t>(handle)).set_device_id(-1);  // either, not both
    check(device.build(), "device properties");
    std::vector<std::uint8_t> text;
    check(device.serialize(text), "device properties");
    return {text.begin(), text.end()};
  });
}

}  // namespace cynosure::cudnn
