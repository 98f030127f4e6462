// SPDX-License-Identifier: Apache-2.0
// python/bind_records.cpp: TransformerEngine's records, JSON and the environment.
#include <algorithm>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cynosure/attention_params.hpp>
#include <cynosure/rule_set.hpp>
#include <cynosure/select.hpp>

#include "io/environment.hpp"
#include "io/json.hpp"
#include "io/records.hpp"
#include "python/convert.hpp"

namespace cynosure::python {

const std::vector<std::string>& environment() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const std::string_view name : io::environment_names()) all.emplace_back(name);
    if (std::find(all.begin(), all.end(), "CYNOSURE_FAULTS") == all.end())
      all.emplace_back("CYNOSURE_FAULTS");  // read at the edge: it names a file
    return all;
  }();
  return names;
}

namespace {

/// Owns what a ParamValue borrows.
struct Held {
  std::string text;
  std::vector<std::int64_t> list;
};

ParamValue param(nb::handle object, Held& held) {
  if (object.is_none()) return std::monostate{};
  if (nb::isinstance<nb::bool_>(object)) return nb::cast<bool>(object);
  if (nb::isinstance<nb::int_>(object)) return nb::cast<std::int64_t>(object);
  if (nb::isinstance<nb::float_>(object)) return nb::cast<double>(object);
  if (nb::isinstance<nb::str>(object)) {
    held.text = nb::cast<std::string>(object);
    return std::string_view(held.text);
  }
  if (nb::isinstance<nb::tuple>(object) || nb::isinstance<nb::list>(object)) {
    for (const nb::handle item : object) held.list.push_back(nb::cast<std::int64_t>(item));
    return std::span<const std::int64_t>(held.list);
  }
  held.text = nb::cast<std::string>(nb::repr(object));
  return std::string_view(held.text);
}

/// (features, batch, seqlen_q, seqlen_k, deterministic) from TransformerEngine's field names and values.
std::tuple<nb::bytes, std::int64_t, std::int64_t, std::int64_t, bool> te_problem(const nb::dict& values,
                                                                                 std::string_view policy) {
  AttentionParams params;
  for (const auto& [key, item] : values) {
    Held held;
    params.set(nb::cast<std::string>(key), param(item, held));
  }
  const Problem problem = params.problem(policy == "te" ? Policy::te : Policy::fastest);
  return {to_bytes(problem.features), problem.lengths.batch, problem.lengths.seqlen_q, problem.lengths.seqlen_k,
          params.deterministic()};
}

/// (use_flash, flash version or None, use_fused, sub-backend or None, use_unfused, (flash, fused, unfused)).
nb::tuple te_answer_tuple(int chosen, int eligible, const nb::bytes& device) {
  Outcome result;
  result.chosen = static_cast<std::int8_t>(chosen);
  result.eligible = BackendSet::from_bits(static_cast<std::uint32_t>(eligible));
  const TeAnswer answer = te_answer(result, from_bytes<Device>(device));
  const nb::object version = answer.flash_version.installed() ? nb::object(nb::cast(answer.flash_version.to_string()))
                                                              : nb::object(nb::none());
  const nb::object sub = answer.fused_backend ? nb::object(nb::int_(*answer.fused_backend)) : nb::object(nb::none());
  return nb::make_tuple(answer.flash, version, answer.fused, sub, answer.unfused,
                        nb::make_tuple(answer.available[0], answer.available[1], answer.available[2]));
}

std::int64_t settings_from_environment(const nb::tuple& values, bool deterministic, int matmul_precision,
                                       int rules_digest) {
  if (values.size() != environment().size())
    throw std::invalid_argument("settings_from_environment: one value for each of ENVIRONMENT");
  std::vector<std::string> texts(values.size());
  std::vector<io::Variable> variables;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].is_none()) continue;
    const auto bytes = nb::cast<nb::bytes>(values[i]);
    texts[i].assign(bytes.c_str(), bytes.size());
    variables.emplace_back(environment()[i], texts[i]);
  }
  const Settings base = Settings()
                            .with_deterministic(deterministic)
                            .with_matmul_precision(static_cast<MatmulPrecision>(matmul_precision))
                            .with_rules_digest(static_cast<std::uint16_t>(rules_digest));
  return word_of(io::settings_from_environment(variables, base));
}

}  // namespace

void bind_records(nb::module_& m) {
  nb::list names;
  for (const std::string& name : environment()) names.append(nb::cast(name));
  m.attr("ENVIRONMENT") = nb::tuple(names);
  m.def("settings_from_environment", &settings_from_environment, nb::arg("values"), nb::arg("deterministic"),
        nb::arg("matmul_precision"), nb::arg("rules_digest"),
        "The word for values of ENVIRONMENT, each bytes or None. Raises ValueError naming the variable.");
  m.def(
      "parse_contract",
      [](std::string_view text) {
        const auto [contract, list] = io::parse_contract(text);
        std::vector<std::string> parts{std::string(kContractNames[static_cast<std::size_t>(contract)])};
        for (const Backend backend : list) parts.emplace_back(name(backend));
        return parts;
      },
      nb::arg("text"), "[kind, names...] of `auto`, NAME, NAME,NAME, prefer(...) or require(...).");
  m.def(
      "selection_switches",
      [](const nb::dict& values, std::int64_t word, bool fp8) {
        std::vector<std::string> texts;
        for (const auto& [key, item] : values) {
          texts.push_back(nb::cast<std::string>(key));
          texts.push_back(nb::cast<std::string>(item));
        }
        std::vector<io::Variable> variables;
        for (std::size_t i = 0; i < texts.size(); i += 2) variables.emplace_back(texts[i], texts[i + 1]);
        return word_of(io::selection_switches(variables, settings_from(word), fp8));
      },
      nb::arg("values"), nb::arg("word"), nb::arg("fp8"));
  m.def(
      "answer_record",
      [](std::string_view line, std::string_view policy, std::int64_t word) {
        return io::answer_record(line, policy == "te" ? Policy::te : Policy::fastest, settings_from(word));
      },
      nb::arg("line"), nb::arg("policy"), nb::arg("word"));
  m.def(
      "read_rule_set", [](std::string_view text) { return io::write(io::read_rule_set(text)); }, nb::arg("text"),
      "Checks fault rows given as JSON; returns their canonical JSON.");
  m.def(
      "register_rule_set",
      [](std::string_view text) { return static_cast<int>(register_rule_set(io::read_rule_set(text))); },
      nb::arg("text"), "Registers fault rows given as JSON; returns the digest.");
  m.def("te_problem", &te_problem, nb::arg("values"), nb::arg("policy") = "te");
  m.def("te_answer", &te_answer_tuple, nb::arg("chosen"), nb::arg("eligible"), nb::arg("device"));
}

}  // namespace cynosure::python
