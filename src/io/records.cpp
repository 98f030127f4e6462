// SPDX-License-Identifier: Apache-2.0
// io/records.cpp: a record's parts, each read by the code that owns its names.
#include "io/records.hpp"

#include <array>
#include <vector>

#include <cynosure/attention_params.hpp>
#include <cynosure/errors.hpp>
#include <cynosure/fields.hpp>
#include <cynosure/select.hpp>

#include "io/document.hpp"
#include "io/environment.hpp"

namespace cynosure::io {
namespace {

// ---- the device -------------------------------------------------------------------------------------------------

std::int64_t within(const Document& given, std::string_view where, std::int64_t min, std::int64_t max) {
  const std::int64_t value = integer(given, where);
  if (value < min || value > max)
    refuse(where, given, "an integer from " + std::to_string(min) + " to " + std::to_string(max));
  return value;
}

/// cuDNN's integer form has no values between 8.9 and 9.0.
Version cudnn_version(const Document& given) {
  constexpr std::int64_t first = 1000;
  constexpr std::int64_t first_9 = 90000;
  const std::int64_t value = within(given, "device.cudnn", first, 999999);
  if (value >= 9000 && value < first_9)
    refuse("device.cudnn", given, "cuDNN's integer version: 8907 is 8.9.7, 91900 is 9.19.0");
  return Version::from_cudnn_integer(static_cast<std::uint32_t>(value));
}

Version package_version(const Document& given, std::string_view where) {
  const std::optional<Version> version = Version::parse(text(given, where));
  if (!version) refuse(where, given, "a version such as \"2.8.3\"");
  return *version;
}

/// The machine of a record: CUDA, with everything there but what the record says it lacks.
Device read_device(const Document& given) {
  constexpr std::array<std::string_view, 5> keys{"sm", "cudnn", "fa2", "fa3", "fa4"};
  const Object& members = object(given, "device");
  allow_only(members, keys, "device");
  Device device;
  device.kind = DeviceKind::cuda;
  device.torch = Version(2, 11, 0);
  device.sm = static_cast<std::uint16_t>(within(required(members, "sm", "device"), "device.sm", 10, 999));
  if (const Document* cudnn = find(members, "cudnn")) device.cudnn = cudnn_version(*cudnn);
  if (const Document* flash = find(members, "fa2")) device.flash2 = package_version(*flash, "device.fa2");
  if (const Document* flash = find(members, "fa3")) device.flash3 = package_version(*flash, "device.fa3");
  if (const Document* flash = find(members, "fa4")) device.flash4 = package_version(*flash, "device.fa4");
  return device;
}

// ---- the call ---------------------------------------------------------------------------------------------------

void set_list(AttentionParams& params, std::string_view name, const List& items) {
  std::vector<std::int64_t> integers;
  integers.reserve(items.size());
  for (const Document& item : items) integers.push_back(integer(item, name));
  params.set(name, std::span<const std::int64_t>(integers));
}

void set_param(AttentionParams& params, std::string_view name, const Document& given);

/// An object's fields go by dotted names. One of them says that the object is there at all.
void set_object(AttentionParams& params, const std::string& name, const Object& members) {
  const std::string_view mark = name == "kv_cache" ? "is_paged" : (name == "fp8_recipe" ? "kind" : "");
  if (mark.empty()) refuse(name, members, "no object");
  static_cast<void>(required(members, mark, name));
  for (const Member& member : members) set_param(params, name + "." + member.key, member.value);
}

void set_param(AttentionParams& params, std::string_view name, const Document& given) {
  const auto set = [&](const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, Real>) {
      params.set(name, value.value);
    } else if constexpr (std::is_same_v<Value, std::string>) {
      params.set(name, std::string_view(value));
    } else if constexpr (std::is_same_v<Value, List>) {
      set_list(params, name, value);
    } else if constexpr (std::is_same_v<Value, Object>) {
      set_object(params, std::string(name), value);
    } else {
      params.set(name, value);
    }
  };
  std::visit(set, given.value());
}

AttentionParams read_params(const Document& given) {
  AttentionParams params;
  for (const Member& member : object(given, "params")) {
    // Dotted names are how set() knows the fields of objects; in a record they are objects.
    if (member.key.find('.') != std::string::npos)
      throw InvalidField("params", "got the key " + in_quotes(member.key) + ", expected a field of AttentionParams");
    set_param(params, member.key, member.value);
  }
  return params;
}

std::vector<Variable> read_environment(const Document& given) {
  std::vector<Variable> variables;
  for (const Member& member : object(given, "env")) variables.emplace_back(member.key, text(member.value, member.key));
  return variables;
}

// ---- the answer -------------------------------------------------------------------------------------------------

/// Keys in the order of the alphabet, as the golden file has them.
Object te_expectation(const TeAnswer& answer) {
  return {
      {"available", List{answer.available[0], answer.available[1], answer.available[2]}},
      {"flash", answer.flash},
      {"flash_version", answer.flash_version.installed() ? Document(answer.flash_version.to_string()) : Document()},
      {"fused", answer.fused},
      {"fused_backend", answer.fused_backend ? Document(*answer.fused_backend) : Document()},
      {"unfused", answer.unfused},
  };
}

Object rule_ids(const Outcome& outcome, Settings settings) {
  std::array<List, kBackendCount> ids;
  const std::vector<Rule> table = rule_table(settings);
  outcome.fired.for_each([&](std::size_t row) {
    const BackendSet excluded = table[row].backends & kTransformerEngineBackends;
    for (const Backend backend : excluded) ids[static_cast<std::size_t>(backend)].push_back(table[row].id);
  });
  Object reasons;
  for (const Backend backend : kTransformerEngineBackends)
    reasons.push_back({std::string(name(backend)), std::move(ids[static_cast<std::size_t>(backend)])});
  return reasons;
}

RecordedCall recorded_call(const Object& record, Policy policy, Settings base) {
  constexpr std::array<std::string_view, 4> keys{"device", "env", "expect", "params"};
  allow_only(record, keys, "record");
  const Device device = read_device(required(record, "device", "record"));
  const Document* given = find(record, "params");
  const AttentionParams params = given != nullptr ? read_params(*given) : AttentionParams();
  const Problem problem = params.problem(policy);

  Settings settings = base.with_policy(policy).with_deterministic(params.deterministic());
  settings = settings.with_enabled(settings.enabled() & kTransformerEngineBackends);
  if (const Document* env = find(record, "env"))
    settings = selection_switches(read_environment(*env), settings, problem.features.fp8);
  return {problem, settings, device};
}

Document answer(const RecordedCall& call, Policy policy) {
  // Not through the cache: records are many and seldom repeat.
  const Outcome outcome = evaluate(call.problem, call.settings, call.device);
  Object line;
  if (policy == Policy::te) line.push_back({"expect", te_expectation(te_answer(outcome, call.device))});
  line.push_back({"chosen", outcome.backend() ? Document(name(*outcome.backend())) : Document()});
  line.push_back({"reasons", rule_ids(outcome, call.settings)});
  return line;
}

std::string error_line(std::string_view field, std::string_view message) {
  return to_text(Object{{"error", Object{{"field", field}, {"message", message}}}});
}

}  // namespace

RecordedCall read_record(std::string_view line, Policy policy, Settings base) {
  return recorded_call(object(parse(line, "record"), "record"), policy, base);
}

std::string answer_record(std::string_view line, Policy policy, Settings base) {
  try {
    return to_text(answer(read_record(line, policy, base), policy));
  } catch (const InvalidField& error) {
    return error_line(error.field(), error.what());
  } catch (const std::exception& error) {
    return error_line("record", error.what());
  }
}

}  // namespace cynosure::io
