// SPDX-License-Identifier: Apache-2.0
// torch/arguments.cpp: from the dispatcher's stack to a checked call.
#include "torch/arguments.hpp"

#include <algorithm>
#include <cmath>

#include <cynosure/ledger.hpp>

#include "detect/cpu.hpp"
#include "detect/cuda.hpp"
#include "torch/backend.hpp"

namespace cynosure::torch_abi {
namespace {

Element element_of(std::int32_t dtype) {
  static const std::array<std::int32_t, 7> codes{
      aoti_torch_dtype_bfloat16(), aoti_torch_dtype_float16(), aoti_torch_dtype_float32(), aoti_torch_dtype_float64(),
      aoti_torch_dtype_bool(),     aoti_torch_dtype_int32(),   aoti_torch_dtype_int64()};
  for (std::size_t i = 0; i < codes.size(); ++i)
    if (codes[i] == dtype) return static_cast<Element>(i);
  return Element::other;
}

std::string_view other_name(std::int32_t dtype) {
  const std::array<std::pair<std::int32_t, std::string_view>, 9> names{
      {{aoti_torch_dtype_uint8(), "uint8"},
       {aoti_torch_dtype_int8(), "int8"},
       {aoti_torch_dtype_int16(), "int16"},
       {aoti_torch_dtype_complex32(), "complex32"},
       {aoti_torch_dtype_complex64(), "complex64"},
       {aoti_torch_dtype_complex128(), "complex128"},
       {aoti_torch_dtype_float8_e5m2(), "float8_e5m2"},
       {aoti_torch_dtype_float8_e4m3fn(), "float8_e4m3fn"},
       {aoti_torch_dtype_uint16(), "uint16"}}};
  for (const auto& [code, name] : names)
    if (code == dtype) return name;
  return {};
}

TensorInfo info_of(const Tensor& t) {
  TensorInfo info{.given = true,
                  .element = element_of(dtype(t)),
                  .rank = static_cast<std::int8_t>(std::min<std::int64_t>(rank(t), 127)),
                  .device_kind = static_cast<std::int16_t>(device_type(t)),
                  .device_index = static_cast<std::int16_t>(device_index(t))};
  if (info.element == Element::other) info.other_name = other_name(dtype(t));
  std::copy_n(sizes(t), std::min<std::int64_t>(info.rank, 4), info.sizes.begin());
  return info;
}
TensorInfo info_of(const OptionalTensor& t) { return t ? info_of(*t) : TensorInfo{}; }
TensorInfo lengths_info(const OptionalTensor& t) {
  TensorInfo info = info_of(t);
  if (t) info.identity = reinterpret_cast<std::intptr_t>(data(*t));
  return info;
}

OptionalTensor optional_tensor(StableIValue value) { return torch::stable::detail::to<OptionalTensor>(value); }
double number(StableIValue value) { return torch::stable::detail::to<double>(value); }

/// Cumulative lengths start at 0, never decrease and end within the tokens; each is at most the stated maximum.
void check_cumulative(const char* name, const char* max_name, const Tensor& t, std::int64_t tokens, std::int64_t most) {
  const auto* values = static_cast<const std::int32_t*>(data(t));
  const std::int64_t count = sizes(t)[0];
  if (values[0] != 0)
    fail(ErrorKind::value, std::string(name) + ": starts at " + std::to_string(values[0]) + ", expected 0");
  for (std::int64_t i = 1; i < count; ++i) {
    const std::int64_t before = values[i - 1];
    const std::int64_t here = values[i];
    if (here < before)
      fail(ErrorKind::value, std::string(name) + ": " + std::to_string(here) + " after " + std::to_string(before) +
                                 " at position " + std::to_string(i) + ", expected values that never decrease");
    if (most >= 0 && here - before > most)
      fail(ErrorKind::value, std::string(max_name) + ": got " + std::to_string(most) + ", expected at least " +
                                 std::to_string(here - before) + ", the length of sequence " + std::to_string(i - 1));
  }
  const std::int64_t last = values[count - 1];
  if (last > tokens)
    fail(ErrorKind::value, std::string(name) + ": ends at " + std::to_string(last) + ", expected at most the " +
                               std::to_string(tokens) + " tokens");
}

void check_valid(const char* name, const Tensor& t, std::int64_t length) {
  const auto* values = static_cast<const std::int32_t*>(data(t));
  for (std::int64_t i = 0; i < sizes(t)[0]; ++i)
    if (const std::int64_t here = values[i]; here < 0 || here > length)
      fail(ErrorKind::value, std::string(name) + ": got " + std::to_string(here) + " for sequence " +
                                 std::to_string(i) + ", expected 0 to " + std::to_string(length));
}

void check_lengths(Arguments& a) {
  if (a.call.dims == Dims::thd) {
    check_cumulative("cu_seqlens_q", "max_seqlen_q", *a.seqlens_q, sizes(a.q)[0], a.call.max_seqlen_q);
    check_cumulative("cu_seqlens_k", "max_seqlen_k", *a.seqlens_k, sizes(a.k)[0], a.call.max_seqlen_k);
    return;
  }
  if (a.seqlens_q) check_valid("seqlens_q", *a.seqlens_q, a.sizes.seqlen_q);
  if (a.seqlens_k) check_valid("seqlens_k", *a.seqlens_k, a.sizes.seqlen_k);
}

std::uint16_t built(DeviceKind kind) {
  BackendSet set{Backend::unfused};
  if (kind == DeviceKind::cpu) set = set | BackendSet{Backend::cpu};
  if (kind == DeviceKind::cuda) set = set | BackendSet{Backend::aten_flash};
  if (kind == DeviceKind::cuda && cudnn_is_built()) set = set | BackendSet{Backend::cudnn};
  return static_cast<std::uint16_t>(set.bits());
}

/// Of the torch in this process: a byte each for major, minor and patch, from the top.
Version torch_version() {
  const std::uint64_t word = aoti_torch_abi_version();
  return {static_cast<unsigned>(word >> 56U), static_cast<unsigned>((word >> 48U) & 0xffU),
          static_cast<unsigned>((word >> 40U) & 0xffU)};
}

Device device_of(const Arguments& a) {
  static const CpuIsa best = detect::best_cpu_isa();
  Device device;
  if (a.call.q.device_kind == aoti_torch_device_type_cpu()) {
    device.cpu_isa = a.cpu_isa == 0 ? best : std::min(best, static_cast<CpuIsa>(a.cpu_isa - 1));
    device.built = built(DeviceKind::cpu);
    return device;
  }
  if (a.call.q.device_kind != aoti_torch_device_type_cuda())
    fail(ErrorKind::value,
         "q: on a device of torch type " + std::to_string(a.call.q.device_kind) + ", expected cpu or cuda");
  static const detect::FoundGpus found = detect::find_gpus();
  device.kind = DeviceKind::cuda;
  device.built = built(DeviceKind::cuda);
  device.cudnn = cudnn_version();
  device.torch = torch_version();
  const auto index = static_cast<std::size_t>(a.call.q.device_index);
  if (index < found.gpus.size()) {
    device.sm = static_cast<std::uint16_t>(found.gpus[index].sm);
    device.sm_count = static_cast<std::uint16_t>(found.gpus[index].sm_count);
  }
  return device;
}

}  // namespace

void fail(ErrorKind kind, const std::string& text) {
  set_last_error({kind, text});
  throw std::runtime_error(text);
}

namespace {

void read_optional(Arguments& a, StableIValue* shared) {
  a.attn_bias = optional_tensor(shared[2]);
  a.attn_mask = optional_tensor(shared[3]);
  a.alibi_slopes = optional_tensor(shared[4]);
  a.sinks = optional_tensor(shared[5]);
  a.seqlens_q = optional_tensor(shared[6]);
  a.seqlens_k = optional_tensor(shared[7]);
  a.dropout_seed = optional_tensor(shared[8]);
  Call& c = a.call;
  c.max_seqlen_q = static_cast<std::int64_t>(shared[9]);
  c.max_seqlen_k = static_cast<std::int64_t>(shared[10]);
  c.window_left = static_cast<std::int64_t>(shared[11]);
  c.window_right = static_cast<std::int64_t>(shared[12]);
  c.scale = number(shared[13]);
  c.softcap = number(shared[14]);
  c.dropout_p = number(shared[15]);
  if (a.seqlens_q) a.seqlens_q = rows_in_one_piece(*a.seqlens_q);
  if (a.seqlens_k) a.seqlens_k = rows_in_one_piece(*a.seqlens_k);
  c.attn_bias = info_of(a.attn_bias);
  c.attn_mask = info_of(a.attn_mask);
  c.alibi_slopes = info_of(a.alibi_slopes);
  c.sinks = info_of(a.sinks);
  c.seqlens_q = lengths_info(a.seqlens_q);
  c.seqlens_k = lengths_info(a.seqlens_k);
  c.dropout_seed = info_of(a.dropout_seed);
}

}  // namespace

void read(Arguments& a, StableIValue* tensors, StableIValue* shared, Shared given) {
  a.q = Tensor(reinterpret_cast<AtenTensorHandle>(tensors[0]));
  a.k = Tensor(reinterpret_cast<AtenTensorHandle>(tensors[1]));
  a.v = Tensor(reinterpret_cast<AtenTensorHandle>(tensors[2]));
  const auto options = static_cast<std::uint32_t>(shared[0]);
  a.settings = static_cast<std::int64_t>(shared[1]);
  Call& c = a.call;
  if (given == Shared::all) read_optional(a, shared);

  c.dims = static_cast<Dims>(options & kDims);
  c.causal = (options & kCausal) != 0;
  c.align = (options & kTopLeft) != 0 ? Align::top_left : Align::bottom_right;
  c.training = (options & kTraining) != 0;
  c.return_lse = (options & kReturnLse) != 0;
  c.lse_grad = (options & kLseGrad) != 0;
  c.bias_requires_grad = (options & kBiasGrad) != 0;
  a.mask_requires_grad = c.mask_requires_grad = (options & kMaskGrad) != 0;
  a.sinks_requires_grad = (options & kSinksGrad) != 0;
  a.check_values = (options & kCheck) != 0;
  a.cpu_isa = static_cast<std::uint8_t>((options >> kCpuIsaShift) & 7U);

  c.q = info_of(a.q);
  c.k = info_of(a.k);
  c.v = info_of(a.v);
  if (const std::optional<CallError> error = check(c)) fail(error->kind, error->text);
  a.sizes = sizes_of(c);
  a.scale = (options & kScaleGiven) != 0 ? c.scale : 1.0 / std::sqrt(static_cast<double>(a.sizes.head_dim_qk));
  if (c.q.device_kind == aoti_torch_device_type_cpu()) check_lengths(a);
  a.problem = problem_of(c);
  a.device = device_of(a);
}

Backend decide(const Arguments& a, bool backward) {
  Settings settings;
  Outcome outcome;
  try {
    settings = Settings::from_word(static_cast<std::uint64_t>(a.settings)).with_switch(Settings::enforce, true);
    outcome = decide_and_record(a.problem, settings, a.device, backward ? Direction::backward : Direction::forward);
  } catch (const std::invalid_argument& error) {
    fail(ErrorKind::value, error.what());
  }
  if (const std::optional<Backend> chosen = outcome.backend()) return *chosen;
  fail(ErrorKind::no_backend, Decision(a.problem, settings, a.device, outcome).refusal());
}

const std::int32_t* host_lengths(const OptionalTensor& lengths) {
  return lengths ? static_cast<const std::int32_t*>(data(*lengths)) : nullptr;
}

std::int64_t longest_on_host(const std::int32_t* starts, std::int64_t batch) {
  std::int64_t most = 0;
  for (std::int64_t b = 0; b < batch; ++b) most = std::max<std::int64_t>(most, starts[b + 1] - starts[b]);
  return most;
}

}  // namespace cynosure::torch_abi
