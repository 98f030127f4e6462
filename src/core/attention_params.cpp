// SPDX-License-Identifier: Apache-2.0
// core/attention_params.cpp: TransformerEngine's names onto Features.
#include <algorithm>
#include <cmath>

#include <cynosure/attention_params.hpp>
#include <cynosure/errors.hpp>
#include <cynosure/fields.hpp>

namespace cynosure {
namespace {

/// A record's field that is a field of ours under another name, or the same one.
struct Mapping {
  std::string_view name;
  Field field;
};
constexpr std::array kMappings{
    Mapping{"qkv_type", Field::tensor_kind},
    Mapping{"qkv_dtype", Field::dtype},
    Mapping{"qkv_layout", Field::layout},
    Mapping{"batch_size", Field::batch},
    Mapping{"num_heads", Field::heads},
    Mapping{"num_gqa_groups", Field::kv_heads},
    Mapping{"max_seqlen_q", Field::seqlen_q},
    Mapping{"max_seqlen_kv", Field::seqlen_k},
    Mapping{"head_dim_qk", Field::head_dim_qk},
    Mapping{"head_dim_v", Field::head_dim_v},
    Mapping{"bottom_right_diagonal", Field::bottom_right_diagonal},
    Mapping{"core_attention_bias_type", Field::bias_type},
    Mapping{"core_attention_bias_shape", Field::bias_shape},
    Mapping{"core_attention_bias_requires_grad", Field::bias_requires_grad},
    Mapping{"pad_between_seqs", Field::pad_between_seqs},
    Mapping{"context_parallel", Field::context_parallel},
    Mapping{"cp_comm_type", Field::cp_comm},
    Mapping{"cp_size", Field::cp_size},
    Mapping{"is_training", Field::training},
    Mapping{"fp8", Field::fp8},
    Mapping{"fp8_recipe.kind", Field::fp8_recipe},
    Mapping{"fp8_recipe.format", Field::fp8_format},
    Mapping{"fp8_recipe.fp8_dpa", Field::fp8_dpa},
    Mapping{"fp8_recipe.fp8_mha", Field::fp8_mha},
    Mapping{"kv_cache.page_size", Field::page_size},
    Mapping{"softmax_type", Field::softmax},
    Mapping{"return_max_logit", Field::return_max_logit},
    Mapping{"cuda_graph", Field::cuda_graph},
    Mapping{"num_splits", Field::num_splits},
    Mapping{"fp8_output", Field::fp8_output},
    Mapping{"checkpoint_core_attention", Field::checkpoint},
    Mapping{"has_score_mod", Field::score_mod},
    Mapping{"has_score_mod_bprop", Field::score_mod_bprop},
};

/// Fields that need more than a look-up; AttentionParams::set treats each by name.
constexpr std::array<std::string_view, 8> kSpecial{"attn_mask_type",    "window_size",   "alibi_slopes_shape",
                                                   "attention_dropout", "deterministic", "kv_cache.is_paged",
                                                   "kv_cache",          "fp8_recipe"};

constexpr auto kNames = [] {
  std::array<std::string_view, kMappings.size() + kSpecial.size()> names{};
  for (std::size_t i = 0; i < kMappings.size(); ++i) names[i] = kMappings[i].name;
  for (std::size_t i = 0; i < kSpecial.size(); ++i) names[kMappings.size() + i] = kSpecial[i];
  return names;
}();

std::string text_of(const ParamValue& value) {
  struct Visitor {
    std::string operator()(std::monostate) const { return "None"; }
    std::string operator()(bool b) const { return b ? "True" : "False"; }
    std::string operator()(std::int64_t i) const { return std::to_string(i); }
    std::string operator()(double d) const { return std::to_string(d); }
    std::string operator()(std::string_view s) const { return "'" + std::string(s) + "'"; }
    std::string operator()(std::span<const std::int64_t> list) const {
      std::string text = "(";
      for (const std::int64_t item : list) text += (text.size() > 1 ? ", " : "") + std::to_string(item);
      return text + ")";
    }
  };
  return std::visit(Visitor{}, value);
}

[[noreturn]] void refuse(std::string_view name, const ParamValue& value, const std::string& expected) {
  throw InvalidField(name, "got " + text_of(value) + ", expected " + expected);
}

bool boolean(std::string_view name, const ParamValue& value) {
  if (const bool* b = std::get_if<bool>(&value)) return *b;
  const auto* i = std::get_if<std::int64_t>(&value);
  if (i == nullptr || (*i != 0 && *i != 1)) refuse(name, value, "True or False");
  return *i == 1;
}

std::int64_t by_field(const Mapping& mapping, const ParamValue& value) {
  const FieldInfo& field = info(mapping.field);
  switch (field.type) {
    case FieldType::boolean:
      return boolean(mapping.name, value) ? 1 : 0;
    case FieldType::integer: {
      const auto* i = std::get_if<std::int64_t>(&value);
      if (i == nullptr || *i < field.min || *i > field.max)
        refuse(mapping.name, value, "an integer of at least " + std::to_string(field.min));
      return *i;
    }
    case FieldType::choice: {
      if (mapping.field == Field::bias_shape && std::holds_alternative<std::monostate>(value)) return 0;
      std::string names;
      if (const auto* s = std::get_if<std::string_view>(&value)) {
        try {
          return parse_value(mapping.field, *s);
        } catch (const std::invalid_argument&) {
          names.clear();  // refused below, under the record's own name of the field
        }
      }
      for (const std::string_view choice : field.choices) names += (names.empty() ? "" : ", ") + std::string(choice);
      refuse(mapping.name, value, "one of " + names);
    }
    case FieldType::version:
    case FieldType::backends:
      break;
  }
  refuse(mapping.name, value, "something else");
}

/// The same error under the record's own name of the field: "qkv_layout" for our "layout".
InvalidField under_own_name(const InvalidField& error) {
  const std::string_view problem = std::string_view(error.what()).substr(error.field().size() + 2);
  for (const Mapping& mapping : kMappings)
    if (info(mapping.field).name == error.field() && mapping.name.find('.') == std::string_view::npos)
      return {mapping.name, problem};
  return error;
}

}  // namespace

AttentionParams::AttentionParams() {
  Features& f = problem_.features;
  f.layout = Layout::sbh3d;
  f.heads = 16;
  f.kv_heads = 16;
  f.bias_shape = BiasShape::one_h_s_s;
  f.bias_requires_grad = true;
  problem_.lengths = {1, 128, 128};
}

std::span<const std::string_view> AttentionParams::names() { return kNames; }

void AttentionParams::set(std::string_view name, const ParamValue& value) {
  Features& f = problem_.features;
  const auto* const mapping =
      std::find_if(kMappings.begin(), kMappings.end(), [&](const Mapping& m) { return m.name == name; });
  if (mapping != kMappings.end()) {
    set_value(problem_, mapping->field, by_field(*mapping, value));
  } else if (name == "attn_mask_type") {
    const auto* text = std::get_if<std::string_view>(&value);
    const std::string_view mask = text != nullptr ? *text : std::string_view();
    f.causal = mask == "causal" || mask == "padding_causal" || mask == "causal_bottom_right" ||
               mask == "padding_causal_bottom_right";
    f.padding = mask == "padding" || mask == "padding_causal" || mask == "padding_causal_bottom_right";
    f.attn_mask = mask == "arbitrary" ? AttnMask::boolean : AttnMask::none;
    mask_bottom_right_ = mask == "causal_bottom_right" || mask == "padding_causal_bottom_right";
    if (!f.causal && !f.padding && mask != "arbitrary" && mask != "no_mask")
      refuse(name, value,
             "one of no_mask, padding, causal, padding_causal, causal_bottom_right, padding_causal_bottom_right, "
             "arbitrary");
  } else if (name == "window_size") {
    f.window_given = !std::holds_alternative<std::monostate>(value);
    f.window_left = f.window_right = -1;
    if (!f.window_given) return;
    const auto* pair = std::get_if<std::span<const std::int64_t>>(&value);
    const auto side = [](std::int64_t n) { return n >= -1 && n <= kInt32Max; };
    if (pair == nullptr || pair->size() != 2 || !side((*pair)[0]) || !side((*pair)[1]))
      refuse(name, value, "None or (left, right), each -1 or more");
    f.window_left = static_cast<std::int32_t>((*pair)[0]);
    f.window_right = static_cast<std::int32_t>((*pair)[1]);
  } else if (name == "alibi_slopes_shape") {
    const auto* shape = std::get_if<std::span<const std::int64_t>>(&value);
    f.alibi_slopes = !std::holds_alternative<std::monostate>(value);
    if (f.alibi_slopes && (shape == nullptr || shape->empty() || shape->size() > 2))
      refuse(name, value, "None, (heads) or (batch, heads)");
  } else if (name == "attention_dropout") {
    double p = -1.0;
    if (const auto* d = std::get_if<double>(&value)) p = *d;
    if (const auto* i = std::get_if<std::int64_t>(&value)) p = static_cast<double>(*i);
    if (!(p >= 0.0 && p <= 1.0)) refuse(name, value, "a number from 0 to 1");
    f.dropout = p != 0.0;
  } else if (name == "deterministic") {
    deterministic_ = boolean(name, value);
  } else if (name == "kv_cache.is_paged") {
    f.kv_cache = boolean(name, value) ? KvCache::paged : KvCache::contiguous;
  } else if (name == "kv_cache") {
    if (!std::holds_alternative<std::monostate>(value))
      refuse(name, value, "None or an object with is_paged and page_size");
    f.kv_cache = KvCache::none;
  } else if (name == "fp8_recipe") {
    if (!std::holds_alternative<std::monostate>(value))
      refuse(name, value, "None or an object with kind, format, fp8_dpa and fp8_mha");
    f.fp8_recipe = Fp8Recipe::none;
  } else {
    throw InvalidField(name, "is no field of AttentionParams");
  }
}

Problem AttentionParams::problem(Policy policy) const {
  Problem problem = problem_;
  Features& f = problem.features;
  const bool bottom_right = f.causal ? mask_bottom_right_ : f.bottom_right_diagonal;
  f.align = bottom_right ? Align::bottom_right : Align::top_left;
  try {
    validate(problem, /*strict=*/false);
  } catch (const InvalidField& error) {
    throw under_own_name(error);
  }
  if (policy == Policy::te) return problem;
  f.dropout = f.dropout && f.training;
  if (f.causal && f.window_given) f.window_right = 0;
  if (f.bias_type == BiasType::none || f.bias_type == BiasType::alibi) {
    f.bias_shape = BiasShape::none;
    f.bias_requires_grad = false;
  }
  return problem;
}

TeAnswer te_answer(const Outcome& outcome, const Device& device) {
  const auto can = [&](Backend backend) { return outcome.eligible.contains(backend); };
  const auto is = [&](Backend backend) { return outcome.chosen == static_cast<std::int8_t>(backend); };
  TeAnswer answer;
  for (const auto& [backend, version] : {std::pair{Backend::flash4, device.flash4},
                                         {Backend::flash3, device.flash3},
                                         {Backend::flash2, device.flash2}}) {
    if (can(backend) && !answer.available[0]) {
      answer.available[0] = true;
      answer.flash_version = version;
    }
    answer.flash = answer.flash || is(backend);
  }
  if (can(Backend::cudnn)) answer.fused_backend = 1;
  if (can(Backend::cudnn_fp8)) answer.fused_backend = 2;
  answer.available[1] = answer.fused_backend.has_value();
  answer.available[2] = can(Backend::unfused);
  answer.fused = is(Backend::cudnn) || is(Backend::cudnn_fp8);
  answer.unfused = is(Backend::unfused);
  return answer;
}

}  // namespace cynosure
