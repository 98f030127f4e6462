// SPDX-License-Identifier: Apache-2.0
// python/bind_select.cpp: selection over packed values, and the Decision object for explanations.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cynosure/rule_set.hpp>
#include <cynosure/select.hpp>

#include "python/convert.hpp"

namespace cynosure::python {
namespace {

using Answer = std::tuple<int, int>;  // the chosen backend or -1, the eligible set

Answer outcome(const nb::bytes& key, std::int64_t batch, std::int64_t seqlen_q, std::int64_t seqlen_k,
               std::int64_t word, const nb::bytes& device) {
  const Outcome result = cached_outcome({from_bytes<Features>(key), {batch, seqlen_q, seqlen_k}}, settings_from(word),
                                        from_bytes<Device>(device));
  return {result.chosen, result.eligible.bits()};
}

/// Repeats the questions that led to these answers (True, False, or None for undecidable) and takes the next step.
struct Replay {
  std::vector<KnownFact> known;
  PartialStep step;
};
Replay replay(const Features& features, Settings settings, const Device& device, const nb::tuple& answers) {
  Replay result;
  result.step = evaluate_partial(features, settings, device, result.known);
  for (const nb::handle answer : answers) {
    if (!result.step.ask) break;
    result.known.push_back({*result.step.ask, answer.is_none() ? Truth::unknown() : Truth(nb::cast<bool>(answer))});
    result.step = evaluate_partial(features, settings, device, result.known);
  }
  return result;
}

/// (kind, of, constant) of the fact to decide next, or (-1, chosen, eligible).
std::tuple<int, std::int64_t, std::int64_t> step(const nb::bytes& key, std::int64_t word, const nb::bytes& device,
                                                 const nb::tuple& answers) {
  const Replay result = replay(from_bytes<Features>(key), settings_from(word), from_bytes<Device>(device), answers);
  if (result.step.ask) return {static_cast<int>(result.step.ask->kind), result.step.ask->of, result.step.ask->constant};
  return {-1, result.step.outcome.chosen, result.step.outcome.eligible.bits()};
}

/// The decision under another word, over the same facts; what that word would ask beyond them is unknown.
Decision decide_again(const nb::bytes& key, std::int64_t word, const nb::bytes& device, const nb::tuple& answers,
                      std::int64_t other) {
  const auto features = from_bytes<Features>(key);
  const auto on = from_bytes<Device>(device);
  const Replay first = replay(features, settings_from(word), on, answers);
  std::vector<KnownFact> known = first.known;
  PartialStep result = evaluate_partial(features, settings_from(other), on, known);
  while (result.ask) {
    known.push_back({*result.ask, Truth::unknown()});
    result = evaluate_partial(features, settings_from(other), on, known);
  }
  return {{features, {}}, settings_from(other), on, result.outcome};
}

nb::list facts_of(const nb::bytes& key, std::int64_t word, const nb::bytes& device, const nb::tuple& answers) {
  nb::list facts;
  for (const KnownFact& known :
       replay(from_bytes<Features>(key), settings_from(word), from_bytes<Device>(device), answers).known)
    facts.append(nb::make_tuple(known.fact.to_string(), known.value.is_unknown()
                                                            ? nb::object(nb::none())
                                                            : nb::object(nb::bool_(known.value.is_yes()))));
  return facts;
}

nb::dict reason_dict(const Decision& decision, const Reason& reason, bool with_fix) {
  nb::dict row;
  row["backend"] = nb::cast(std::string(name(reason.backend)));
  row["rule"] = nb::cast(reason.rule);
  row["way"] = nb::cast(std::string(kWayNames[static_cast<std::size_t>(reason.way)]));
  nb::dict actual;
  for (const Reason::Actual& item : reason.actual) actual[nb::cast(item.name)] = nb::cast(item.value);
  row["actual"] = actual;
  row["required"] = nb::cast(reason.required);
  row["evidence"] = nb::cast(reason.evidence);
  row["undecided"] = nb::bool_(reason.undecided);
  row["fix"] = nb::none();
  if (!with_fix) return row;
  if (const std::optional<Fix> fix = decision.fix_for(reason)) {
    nb::dict found;
    found["text"] = nb::cast(fix->text);
    found["makes_eligible"] = nb::bool_(fix->makes_eligible);
    row["fix"] = found;
  }
  return row;
}

nb::list names_of(const std::vector<Backend>& backends) {
  nb::list names;
  for (const Backend backend : backends) names.append(nb::cast(std::string(name(backend))));
  return names;
}

nb::list rules_list(std::int64_t word) {
  nb::list rows;
  for (const Rule& rule : rule_table(settings_from(word))) {
    nb::dict row;
    row["id"] = nb::cast(std::string(rule.id));
    nb::list backends;
    for (const Backend backend : rule.backends) backends.append(nb::cast(std::string(name(backend))));
    row["backends"] = backends;
    nb::list policies;
    if ((static_cast<unsigned>(rule.policies) & 1U) != 0) policies.append("fastest");
    if ((static_cast<unsigned>(rule.policies) & 2U) != 0) policies.append("te");
    row["policies"] = policies;
    row["way"] = nb::cast(std::string(kWayNames[static_cast<std::size_t>(rule.way)]));
    nb::list reads;
    for (const Field field : rule.reads) reads.append(nb::cast(std::string(info(field).name)));
    row["reads"] = reads;
    row["required"] = nb::cast(std::string(rule.required));
    row["evidence"] = nb::cast(std::string(rule.evidence));
    rows.append(row);
  }
  return rows;
}

}  // namespace

void bind_select(nb::module_& m) {
  m.def("outcome", &outcome, nb::arg("key"), nb::arg("batch"), nb::arg("seqlen_q"), nb::arg("seqlen_k"),
        nb::arg("word"), nb::arg("device"));
  m.def("step", &step, nb::arg("key"), nb::arg("word"), nb::arg("device"), nb::arg("answers"));
  m.def("facts_of", &facts_of, nb::arg("key"), nb::arg("word"), nb::arg("device"), nb::arg("answers"));
  m.def("rule_table", &rules_list, nb::arg("word"));

  nb::class_<Decision>(m, "Decision", "A decision with its inputs; reasons are computed on demand.")
      .def_prop_ro("chosen", [](const Decision& d) { return static_cast<int>(d.outcome().chosen); })
      .def_prop_ro("eligible", [](const Decision& d) { return static_cast<int>(d.eligible().bits()); })
      .def("order", [](const Decision& d) { return names_of(d.order()); })
      .def("ground", &Decision::ground)
      .def("policy_ground",
           [](const Decision& d) {
             const Ground ground = d.policy_ground();
             nb::list best_first;
             for (const Backend backend : ground.best_first) best_first.append(nb::cast(std::string(name(backend))));
             return nb::make_tuple(std::string(kPolicyNames[static_cast<std::size_t>(ground.policy)]),
                                   std::string(ground.row), std::string(ground.when), best_first,
                                   std::string(ground.evidence));
           })
      .def("remedy",
           [](const Decision& d, std::string_view backend) -> std::optional<std::string> {
             const std::optional<Backend> found = backend_named(backend);
             return found ? d.remedy(*found) : std::nullopt;
           })
      .def(
          "reasons",
          [](const Decision& d, bool with_fix) {
            nb::list rows;
            for (const Reason& reason : d.reasons()) rows.append(reason_dict(d, reason, with_fix));
            return rows;
          },
          nb::arg("with_fix") = false);
  m.def(
      "decide",
      [](const nb::bytes& key, std::int64_t batch, std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t word,
         const nb::bytes& device) {
        return select({from_bytes<Features>(key), {batch, seqlen_q, seqlen_k}}, settings_from(word),
                      from_bytes<Device>(device));
      },
      nb::arg("key"), nb::arg("batch"), nb::arg("seqlen_q"), nb::arg("seqlen_k"), nb::arg("word"), nb::arg("device"));
  m.def("decide_again", &decide_again, nb::arg("key"), nb::arg("word"), nb::arg("device"), nb::arg("answers"),
        nb::arg("other"));
  m.def(
      "decide_partial",
      [](const nb::bytes& key, std::int64_t word, const nb::bytes& device, const nb::tuple& answers) {
        const auto features = from_bytes<Features>(key);
        const Settings settings = settings_from(word);
        const auto on = from_bytes<Device>(device);
        return Decision({features, {}}, settings, on, replay(features, settings, on, answers).step.outcome);
      },
      nb::arg("key"), nb::arg("word"), nb::arg("device"), nb::arg("answers"),
      "A decision over symbolic lengths, whose lengths are therefore not real.");
}

}  // namespace cynosure::python
