// SPDX-License-Identifier: Apache-2.0
// cynosure/attention_params.hpp: TransformerEngine's AttentionParams, field for field, and its six answers.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <variant>

#include <cynosure/decision.hpp>
#include <cynosure/export.hpp>
#include <cynosure/problem.hpp>

namespace cynosure {

/// A value of a record as it comes from JSON or Python; text borrows from there.
using ParamValue =
    std::variant<std::monostate, bool, std::int64_t, double, std::string_view, std::span<const std::int64_t>>;

/// The record. Most of its fields are Features under TransformerEngine's names and defaults; set() knows them by name.
class AttentionParams {
 public:
  CYNOSURE_API AttentionParams();  ///< TransformerEngine's defaults (TE spec 1.1)

  /// Sets the field with TransformerEngine's name: "max_seqlen_kv", "attn_mask_type", ... Objects come flattened:
  /// "fp8_recipe.kind", ".format", ".fp8_dpa", ".fp8_mha"; "kv_cache.is_paged", ".page_size"; the object itself absent:
  /// ("kv_cache", monostate). Throws InvalidField with what was given and what is allowed.
  CYNOSURE_API void set(std::string_view name, const ParamValue& value);
  /// The names set() takes.
  [[nodiscard]] CYNOSURE_API static std::span<const std::string_view> names();

  /// The call it describes, for a policy: for `te` literally; otherwise by meaning (no dropout in inference, no right
  /// side of a causal window). Throws InvalidField where TransformerEngine itself raises.
  [[nodiscard]] CYNOSURE_API Problem problem(Policy policy) const;
  [[nodiscard]] bool deterministic() const { return deterministic_; }

 private:
  Problem problem_;
  bool mask_bottom_right_ = false;
  bool deterministic_ = false;
};

/// What TransformerEngine's get_attention_backend returns.
struct TeAnswer {
  bool flash = false;
  Version flash_version{};  ///< of the newest generation still available, also when another backend won
  bool fused = false;
  std::optional<int> fused_backend{};  ///< 1: 16 bit, 2: FP8; stays filled when flash won
  bool unfused = false;
  std::array<bool, 3> available{};  ///< flash, fused, unfused before the preference
  bool operator==(const TeAnswer&) const = default;
};
[[nodiscard]] CYNOSURE_API TeAnswer te_answer(const Outcome& outcome, const Device& device);

}  // namespace cynosure
