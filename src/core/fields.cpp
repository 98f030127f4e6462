// SPDX-License-Identifier: Apache-2.0
// core/fields.cpp: the one table of named values.
#include <algorithm>
#include <charconv>

#include <cynosure/errors.hpp>
#include <cynosure/fields.hpp>

#include "core/feature_value.hpp"

namespace cynosure {
namespace {

constexpr std::int64_t kMaxInt32 = 2147483647;
// Every kernel takes 32-bit lengths. Products of them are another matter: those are length facts (product_over).
constexpr std::int64_t kMaxLength = kMaxInt32;

/// A field with its accessors. A null setter: not settable by value.
struct Entry {
  FieldInfo info;
  std::int64_t (*get)(const Problem&, const Device&, Settings) = nullptr;
  void (*set)(Problem&, Device&, std::int64_t) = nullptr;
};

template <class Value>
constexpr std::int64_t as_int(Value value) {
  if constexpr (std::is_same_v<Value, Version>) {
    return static_cast<std::int64_t>(value.bits());
  } else {
    return static_cast<std::int64_t>(value);
  }
}
template <class Value>
constexpr Value from_int(std::int64_t value) {
  if constexpr (std::is_same_v<Value, Version>) {
    return Version::from_bits(static_cast<std::uint64_t>(value));
  } else {
    return static_cast<Value>(value);
  }
}

template <auto Member>
constexpr Entry length(Field field, std::string_view name, std::string_view doc) {
  return {{field, name, FieldType::integer, 0, kMaxLength, {}, doc},
          [](const Problem& p, const Device&, Settings) { return p.lengths.*Member; },
          [](Problem& p, Device&, std::int64_t value) { p.lengths.*Member = value; }};
}
template <auto Member>
constexpr Entry feature(FieldInfo info) {
  return {info, [](const Problem& p, const Device&, Settings) { return as_int(p.features.*Member); },
          [](Problem& p, Device&, std::int64_t value) {
            p.features.*Member = from_int<std::remove_reference_t<decltype(p.features.*Member)>>(value);
          }};
}
template <auto Member>
constexpr Entry device(FieldInfo info) {
  return {info, [](const Problem&, const Device& d, Settings) { return as_int(d.*Member); },
          [](Problem&, Device& d, std::int64_t value) {
            d.*Member = from_int<std::remove_reference_t<decltype(d.*Member)>>(value);
          }};
}
template <auto Member>
constexpr Entry integer(Field field, std::string_view name, std::int64_t min, std::int64_t max, std::string_view doc) {
  return feature<Member>({field, name, FieldType::integer, min, max, {}, doc});
}
template <auto Member>
constexpr Entry flag(Field field, std::string_view name, std::string_view doc) {
  return feature<Member>({field, name, FieldType::boolean, 0, 1, {}, doc});
}
template <auto Member, std::size_t N>
constexpr Entry choice(Field field, std::string_view name, const std::array<std::string_view, N>& names,
                       std::string_view doc) {
  return feature<Member>({field, name, FieldType::choice, 0, static_cast<std::int64_t>(N) - 1, names, doc});
}
template <auto Member>
constexpr Entry version(Field field, std::string_view name, std::string_view doc) {
  return device<Member>({field, name, FieldType::version, 0, 0, {}, doc});
}
constexpr Entry setting(FieldInfo info, std::int64_t (*get)(const Problem&, const Device&, Settings)) {
  return {info, get, nullptr};
}

using F = Features;
using D = Device;

// clang-format off
constexpr std::array<Entry, kFieldCount> kEntries{
    length<&Lengths::batch>(Field::batch, "batch", "sequences"),
    length<&Lengths::seqlen_q>(Field::seqlen_q, "seqlen_q", "longest query length"),
    length<&Lengths::seqlen_k>(Field::seqlen_k, "seqlen_k", "longest key length"),

    integer<&F::heads>(Field::heads, "heads", 1, kMaxInt32, "query heads"),
    integer<&F::kv_heads>(Field::kv_heads, "kv_heads", 1, kMaxInt32, "key and value heads"),
    integer<&F::head_dim_qk>(Field::head_dim_qk, "head_dim_qk", 1, kMaxInt32, "head dim of q and k"),
    integer<&F::head_dim_v>(Field::head_dim_v, "head_dim_v", 1, kMaxInt32, "head dim of v and the output"),
    integer<&F::window_left>(Field::window_left, "window_left", -1, kMaxInt32, "columns left of the diagonal; -1: unlimited"),
    integer<&F::window_right>(Field::window_right, "window_right", -1, kMaxInt32, "columns right of the diagonal; -1: unlimited"),
    integer<&F::page_size>(Field::page_size, "page_size", 0, kMaxInt32, "tokens in a page of the KV cache"),
    integer<&F::num_splits>(Field::num_splits, "num_splits", 0, kMaxInt32, "splits of the keys; 0: heuristic"),
    integer<&F::cp_size>(Field::cp_size, "cp_size", 1, kMaxInt32, "ranks of context parallelism"),
    choice<&F::dtype>(Field::dtype, "dtype", kDTypeNames, "dtype of q, k and v"),
    choice<&F::tensor_kind>(Field::tensor_kind, "tensor_kind", kTensorKindNames, "Python type of q, k and v"),
    choice<&F::layout>(Field::layout, "layout", kLayoutNames, "memory layout"),
    flag<&F::training>(Field::training, "training", "gradients are wanted"),
    flag<&F::causal>(Field::causal, "causal", "causal mask"),
    choice<&F::align>(Field::align, "align", kAlignNames, "where the diagonal starts"),
    flag<&F::padding>(Field::padding, "padding", "valid lengths per sequence"),
    flag<&F::same_lengths>(Field::same_lengths, "same_lengths", "q and k have equal lengths, sequence by sequence"),
    flag<&F::pad_between_seqs>(Field::pad_between_seqs, "pad_between_seqs", "gaps between the sequences of a ragged batch"),
    choice<&F::attn_mask>(Field::attn_mask, "attn_mask", kAttnMaskNames, "dense mask"),
    flag<&F::window_given>(Field::window_given, "window_given", "the window was stated"),
    flag<&F::bottom_right_diagonal>(Field::bottom_right_diagonal, "bottom_right_diagonal", "TransformerEngine's flag"),
    choice<&F::bias_type>(Field::bias_type, "bias_type", kBiasTypeNames, "kind of bias"),
    choice<&F::bias_shape>(Field::bias_shape, "bias_shape", kBiasShapeNames, "broadcast shape of the bias"),
    flag<&F::bias_requires_grad>(Field::bias_requires_grad, "bias_requires_grad", "the bias wants a gradient"),
    flag<&F::bias_float32>(Field::bias_float32, "bias_float32", "float32 bias with 16-bit q"),
    flag<&F::alibi_slopes>(Field::alibi_slopes, "alibi_slopes", "ALiBi slopes come as a tensor"),
    flag<&F::softcap>(Field::softcap, "softcap", "soft cap on the logits"),
    choice<&F::softmax>(Field::softmax, "softmax", kSoftmaxNames, "softmax kind"),
    flag<&F::dropout>(Field::dropout, "dropout", "dropout"),
    flag<&F::return_lse>(Field::return_lse, "return_lse", "the LSE is returned"),
    flag<&F::lse_grad>(Field::lse_grad, "lse_grad", "the LSE wants a gradient"),
    flag<&F::return_max_logit>(Field::return_max_logit, "return_max_logit", "per-head maxima are returned"),
    flag<&F::score_mod>(Field::score_mod, "score_mod", "cuDNN score callback"),
    flag<&F::score_mod_bprop>(Field::score_mod_bprop, "score_mod_bprop", "its backward callback"),
    flag<&F::cuda_graph>(Field::cuda_graph, "cuda_graph", "will be captured in a CUDA graph"),
    flag<&F::checkpoint>(Field::checkpoint, "checkpoint", "recompute in backward"),
    choice<&F::kv_cache>(Field::kv_cache, "kv_cache", kKvCacheNames, "KV cache"),
    flag<&F::context_parallel>(Field::context_parallel, "context_parallel", "context parallelism"),
    choice<&F::cp_comm>(Field::cp_comm, "cp_comm", kCpCommNames, "its communication"),
    flag<&F::fp8>(Field::fp8, "fp8", "FP8 is on"),
    choice<&F::fp8_recipe>(Field::fp8_recipe, "fp8_recipe", kFp8RecipeNames, "FP8 recipe"),
    choice<&F::fp8_format>(Field::fp8_format, "fp8_format", kFp8FormatNames, "FP8 format"),
    flag<&F::fp8_dpa>(Field::fp8_dpa, "fp8_dpa", "FP8 attention"),
    flag<&F::fp8_mha>(Field::fp8_mha, "fp8_mha", "FP8 in and out"),
    flag<&F::fp8_output>(Field::fp8_output, "fp8_output", "FP8 output"),

    device<&D::kind>({Field::device_kind, "device_kind", FieldType::choice, 0, 1, kDeviceKindNames, "cpu or cuda"}),
    device<&D::sm>({Field::sm, "sm", FieldType::integer, 0, 999, {}, "compute capability times 10"}),
    device<&D::sm_count>({Field::sm_count, "sm_count", FieldType::integer, 0, 65535, {}, "streaming multiprocessors"}),
    device<&D::cpu_isa>({Field::cpu_isa, "cpu_isa", FieldType::choice, 0, 3, kCpuIsaNames, "CPU instruction set"}),
    version<&D::cudnn>(Field::cudnn, "cudnn", "runtime cuDNN"),
    version<&D::flash2>(Field::flash2, "flash2", "flash-attn"),
    version<&D::flash3>(Field::flash3, "flash3", "flash-attn-3"),
    version<&D::flash4>(Field::flash4, "flash4", "flash-attn-4"),
    version<&D::torch>(Field::torch, "torch", "torch"),
    device<&D::built>({Field::built, "built", FieldType::backends, 0, 0, {}, "backends in this build"}),
    device<&D::interpreter>({Field::interpreter, "interpreter", FieldType::boolean, 0, 1, {}, "a Python interpreter is there"}),

    setting({Field::switched_off, "switched_off", FieldType::backends, 0, 0, {}, "backends switched off"},
            [](const Problem&, const Device&, Settings s) { return std::int64_t{(BackendSet::all() - s.enabled()).bits()}; }),
    setting({Field::contract, "contract", FieldType::choice, 0, 2, kContractNames, "auto, prefer or require"},
            [](const Problem&, const Device&, Settings s) { return as_int(s.contract()); }),
    setting({Field::policy, "policy", FieldType::choice, 0, 1, kPolicyNames, "policy"},
            [](const Problem&, const Device&, Settings s) { return as_int(s.policy()); }),
    setting({Field::deterministic, "deterministic", FieldType::boolean, 0, 1, {}, "deterministic results wanted"},
            [](const Problem&, const Device&, Settings s) { return as_int(s.deterministic()); }),
    setting({Field::matmul_precision, "matmul_precision", FieldType::choice, 0, 2, kMatmulPrecisionNames, "float32 matmul precision"},
            [](const Problem&, const Device&, Settings s) { return as_int(s.matmul_precision()); }),
    setting({Field::emulate_fp8, "emulate_fp8", FieldType::boolean, 0, 1, {}, "NVTE_UnfusedDPA_Emulate_FP8"},
            [](const Problem&, const Device&, Settings s) { return as_int(s.on(Settings::emulate_fp8)); }),
    setting({Field::onnx_export, "onnx_export", FieldType::boolean, 0, 1, {}, "ONNX export"},
            [](const Problem&, const Device&, Settings s) { return as_int(s.on(Settings::onnx_export)); }),
    setting({Field::enforce, "enforce", FieldType::boolean, 0, 1, {}, "an operator runs"},
            [](const Problem&, const Device&, Settings s) { return as_int(s.on(Settings::enforce)); }),
};
// clang-format on

constexpr bool in_order() {
  for (std::size_t i = 0; i < kFieldCount; ++i)
    if (static_cast<std::size_t>(kEntries[i].info.field) != i) return false;
  return true;
}
static_assert(in_order(), "a row of kEntries stands where its Field says");

constexpr auto kInfos = [] {
  std::array<FieldInfo, kFieldCount> infos{};
  for (std::size_t i = 0; i < kFieldCount; ++i) infos[i] = kEntries[i].info;
  return infos;
}();

const Entry& entry(Field field) { return kEntries[static_cast<std::size_t>(field)]; }

std::string allowed(const FieldInfo& info) {
  switch (info.type) {
    case FieldType::boolean:
      return "true or false";
    case FieldType::version:
      return "a version such as \"9.19.0\"";
    case FieldType::backends:
      return "a list of backends";
    case FieldType::integer:
      return "an integer from " + std::to_string(info.min) +
             (info.max >= kMaxInt32 ? " up" : " to " + std::to_string(info.max));
    case FieldType::choice:
      break;
  }
  std::string names;
  for (const std::string_view name : info.choices) names += (names.empty() ? "" : ", ") + std::string(name);
  return "one of " + names;
}

[[noreturn]] void refuse(const FieldInfo& info, std::string_view given) {
  throw InvalidField(info.name, "got " + std::string(given) + ", expected " + allowed(info));
}

void check(const FieldInfo& info, std::int64_t value) {
  const bool ranged =
      info.type == FieldType::integer || info.type == FieldType::boolean || info.type == FieldType::choice;
  if (ranged && (value < info.min || value > info.max)) refuse(info, std::to_string(value));
}

// Short names for common values, accepted on input only.
struct Alias {
  Field field;
  std::string_view alias;
  std::string_view name;
};
constexpr std::array kAliases{
    Alias{Field::layout, "bshd", "bshd_bshd_bshd"},
    Alias{Field::layout, "sbhd", "sbhd_sbhd_sbhd"},
    Alias{Field::layout, "bhsd", "bhsd_bhsd_bhsd"},
    Alias{Field::layout, "thd", "thd_thd_thd"},
    Alias{Field::dtype, "bf16", "bfloat16"},
    Alias{Field::dtype, "fp16", "float16"},
    Alias{Field::dtype, "half", "float16"},
    Alias{Field::dtype, "fp32", "float32"},
    Alias{Field::dtype, "float", "float32"},
    Alias{Field::dtype, "fp64", "float64"},
    Alias{Field::dtype, "double", "float64"},
    Alias{Field::dtype, "fp8_e4m3", "float8_e4m3"},
    Alias{Field::dtype, "float8_e4m3fn", "float8_e4m3"},
    Alias{Field::dtype, "fp8_e5m2", "float8_e5m2"},
    Alias{Field::bias_type, "none", "no_bias"},
    Alias{Field::softmax, "off_by_one", "off-by-one"},
};

}  // namespace

std::span<const FieldInfo> fields() { return kInfos; }

std::optional<Field> field_named(std::string_view name) {
  for (const FieldInfo& info : kInfos)
    if (info.name == name) return info.field;
  return std::nullopt;
}

std::int64_t value(Field field, const Problem& problem, const Device& device, Settings settings) {
  return entry(field).get(problem, device, settings);
}

std::string value_text(Field field, std::int64_t value) {
  const FieldInfo& info = cynosure::info(field);
  switch (info.type) {
    case FieldType::boolean:
      return value != 0 ? "yes" : "no";
    case FieldType::choice:
      return value >= 0 && value < static_cast<std::int64_t>(info.choices.size())
                 ? std::string(info.choices[static_cast<std::size_t>(value)])
                 : std::to_string(value);
    case FieldType::version: {
      const Version version = Version::from_bits(static_cast<std::uint64_t>(value));
      return version.installed() ? version.to_string() : "absent";
    }
    case FieldType::backends: {
      std::string names;
      for (const Backend backend : BackendSet::from_bits(static_cast<std::uint32_t>(value)))
        names += (names.empty() ? "" : ", ") + std::string(name(backend));
      return names.empty() ? "none" : names;
    }
    case FieldType::integer:
      break;
  }
  if (field == Field::sm) return std::to_string(value / 10) + "." + std::to_string(value % 10);
  return std::to_string(value);
}

void set_value(Problem& problem, Field field, std::int64_t value) {
  if (static_cast<std::size_t>(field) >= kFirstDeviceField)
    throw InvalidField(info(field).name, "is not a field of a Problem");
  check(info(field), value);
  Device unused;
  entry(field).set(problem, unused, value);
}

void set_value(Device& device, Field field, std::int64_t value) {
  const auto i = static_cast<std::size_t>(field);
  if (i < kFirstDeviceField || i >= kFirstSettingsField)
    throw InvalidField(info(field).name, "is not a field of a Device");
  check(info(field), value);
  Problem unused;
  entry(field).set(unused, device, value);
}

std::int64_t parse_value(Field field, std::string_view text) {
  const FieldInfo& info = cynosure::info(field);
  for (const Alias& alias : kAliases)
    if (alias.field == field && alias.alias == text) text = alias.name;
  switch (info.type) {
    case FieldType::choice:
      for (std::size_t i = 0; i < info.choices.size(); ++i)
        if (info.choices[i] == text) return static_cast<std::int64_t>(i);
      break;
    case FieldType::version:
      if (text.empty() || text == "absent") return 0;
      if (const std::optional<Version> version = Version::parse(text))
        return static_cast<std::int64_t>(version->bits());
      break;
    case FieldType::boolean:
      if (text == "true" || text == "yes" || text == "1") return 1;
      if (text == "false" || text == "no" || text == "0") return 0;
      break;
    case FieldType::integer: {
      std::int64_t number = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (error != std::errc() || end != text.data() + text.size()) break;
      check(info, number);
      return number;
    }
    case FieldType::backends: {
      BackendSet set;
      while (!text.empty()) {
        const std::size_t comma = text.find(',');
        std::string_view item = text.substr(0, comma);
        while (item.starts_with(' ')) item.remove_prefix(1);
        while (item.ends_with(' ')) item.remove_suffix(1);
        const std::optional<Backend> backend = backend_named(item);
        if (!backend) refuse(info, "'" + std::string(item) + "'");
        set |= *backend;
        text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
      }
      return set.bits();
    }
  }
  refuse(info, "'" + std::string(text) + "'");
}

void validate(const Problem& problem, bool strict) {
  const Features& f = problem.features;
  for (const FieldInfo& info : kInfos)
    if (static_cast<std::size_t>(info.field) < kFirstDeviceField)
      check(info, value(info.field, problem, Device{}, Settings{}));
  if (f.fp8 && f.fp8_recipe == Fp8Recipe::none)
    throw InvalidField("fp8_recipe", "got none with fp8 on, expected a recipe");
  const LayoutGroup group = info(f.layout).group;
  if (f.kv_cache != KvCache::none && (group == LayoutGroup::packed_3hd || group == LayoutGroup::packed_h3d))
    throw InvalidField("layout", "got " + value_text(Field::layout, static_cast<std::int64_t>(f.layout)) +
                                     " with a KV cache, expected separate q and kv");
  if (!strict) return;
  if (f.heads % f.kv_heads != 0)
    throw InvalidField("heads", "got " + std::to_string(f.heads) + " with kv_heads " + std::to_string(f.kv_heads) +
                                    ", expected a multiple of kv_heads");
  if (f.causal && f.window_right > 0)
    throw InvalidField("window_size", "got a right side of " + std::to_string(f.window_right) +
                                          " with a causal mask, expected 0 or -1");
  const bool tensor_bias = f.bias_type == BiasType::post_scale_bias || f.bias_type == BiasType::pre_scale_bias;
  if (tensor_bias != (f.bias_shape != BiasShape::none))
    throw InvalidField("bias_shape", tensor_bias ? "got none with a bias, expected its shape"
                                                 : "got a shape without a bias, expected none");
  if (f.kv_cache == KvCache::paged && f.page_size < 1)
    throw InvalidField("page_size", "got 0 with a paged KV cache, expected the tokens in a page");
  if (f.lse_grad && !f.return_lse)
    throw InvalidField("lse_grad", "got true without return_lse, expected return_lse too");
}

std::int64_t feature_value(Field field, const Features& features, const Device& device, Settings settings) {
  return entry(field).get(Problem{features, {}}, device, settings);
}

}  // namespace cynosure
