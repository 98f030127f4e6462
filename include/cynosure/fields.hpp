// SPDX-License-Identifier: Apache-2.0
// cynosure/fields.hpp: every named value a rule may read, once: for printing, JSON, fault rows and checks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <cynosure/device.hpp>
#include <cynosure/export.hpp>
#include <cynosure/problem.hpp>
#include <cynosure/settings.hpp>

namespace cynosure {

enum class Field : std::uint8_t {
  // lengths (rules: through facts only)
  batch,
  seqlen_q,
  seqlen_k,
  // features, in the order of the struct
  heads,
  kv_heads,
  head_dim_qk,
  head_dim_v,
  window_left,
  window_right,
  page_size,
  num_splits,
  cp_size,
  dtype,
  tensor_kind,
  layout,
  training,
  causal,
  align,
  padding,
  same_lengths,
  pad_between_seqs,
  attn_mask,
  window_given,
  bottom_right_diagonal,
  bias_type,
  bias_shape,
  bias_requires_grad,
  bias_float32,
  alibi_slopes,
  softcap,
  softmax,
  dropout,
  return_lse,
  lse_grad,
  return_max_logit,
  score_mod,
  score_mod_bprop,
  cuda_graph,
  checkpoint,
  kv_cache,
  context_parallel,
  cp_comm,
  fp8,
  fp8_recipe,
  fp8_format,
  fp8_dpa,
  fp8_mha,
  fp8_output,
  // device
  device_kind,
  sm,
  sm_count,
  cpu_isa,
  cudnn,
  flash2,
  flash3,
  flash4,
  torch,
  built,
  interpreter,
  // settings
  switched_off,
  contract,
  policy,
  deterministic,
  matmul_precision,
  emulate_fp8,
  onnx_export,
  enforce,
};
inline constexpr std::size_t kFieldCount = static_cast<std::size_t>(Field::enforce) + 1;
inline constexpr std::size_t kFirstDeviceField = static_cast<std::size_t>(Field::device_kind);
inline constexpr std::size_t kFirstSettingsField = static_cast<std::size_t>(Field::switched_off);

enum class FieldType : std::uint8_t { integer, boolean, choice, version, backends };

struct FieldInfo {
  Field field;
  std::string_view name;
  FieldType type;
  std::int64_t min = 0;  ///< smallest value allowed, for integers
  std::int64_t max = 0;
  std::span<const std::string_view> choices{};  ///< names of a choice, by value
  std::string_view doc;
};

/// All fields, by Field's value.
[[nodiscard]] CYNOSURE_API std::span<const FieldInfo> fields();
[[nodiscard]] CYNOSURE_API std::optional<Field> field_named(std::string_view name);
[[nodiscard]] inline const FieldInfo& info(Field field) { return fields()[static_cast<std::size_t>(field)]; }

/// A field's value: the integer, 0 or 1, the choice's number, Version::bits(), or BackendSet::bits().
[[nodiscard]] CYNOSURE_API std::int64_t value(Field field, const Problem& problem, const Device& device,
                                              Settings settings);
[[nodiscard]] CYNOSURE_API std::string value_text(Field field,
                                                  std::int64_t value);  ///< "bshd_bshd_bshd", "9.19.0", "yes"

/// Sets a feature or length. Throws std::invalid_argument naming the field, the value and what is allowed.
CYNOSURE_API void set_value(Problem& problem, Field field, std::int64_t value);
CYNOSURE_API void set_value(Device& device, Field field, std::int64_t value);
/// A choice, version or backend list from its text; throws as set_value does.
[[nodiscard]] CYNOSURE_API std::int64_t parse_value(Field field, std::string_view text);

/// Throws std::invalid_argument for a problem no backend could mean: heads not divisible, a causal mask with a window
/// to the right, ... `heads` must divide only where `strict` (TransformerEngine's records are answered as they are).
CYNOSURE_API void validate(const Problem& problem, bool strict = true);

}  // namespace cynosure
