// SPDX-License-Identifier: Apache-2.0
// io/json_decision.cpp: decisions and reasons. A decision is pure, so reading one is making it again and comparing.
#include <algorithm>

#include <cynosure/select.hpp>

#include "io/json.hpp"
#include "io/json_values.hpp"

namespace cynosure::io {
namespace {

constexpr std::array<std::string_view, 8> kReasonKeys{"backend",  "rule",     "way",       "actual",
                                                      "required", "evidence", "undecided", "fix"};

Document fix_of(const std::optional<Fix>& fix) {
  if (!fix) return {};
  return Object{{"text", fix->text}, {"makes_eligible", fix->makes_eligible}};
}

/// All of a reason but its backend, which is the key it stands under.
Object members_of(const Reason& reason) {
  Object actual;
  for (const Reason::Actual& value : reason.actual) actual.push_back({value.name, value.value});
  return {
      {"rule", reason.rule},         {"way", kWayNames[static_cast<std::size_t>(reason.way)]},
      {"actual", std::move(actual)}, {"required", reason.required},
      {"evidence", reason.evidence}, {"undecided", reason.undecided},
      {"fix", fix_of(reason.fix)},
  };
}

std::optional<Fix> fix_from(const Document& given) {
  constexpr std::array<std::string_view, 2> keys{"text", "makes_eligible"};
  if (given.is_null()) return std::nullopt;
  const Object& members = object(given, "fix");
  allow_only(members, keys, "fix");
  return Fix{text(required(members, "text", "fix"), "text"),
             boolean(required(members, "makes_eligible", "fix"), "makes_eligible")};
}

/// `backend`: the key the reason stood under; nothing for a reason by itself, which names its own.
Reason reason_from(const Document& given, std::optional<Backend> backend) {
  const Object& members = object(given, "reason");
  allow_only(members, std::span(kReasonKeys).subspan(backend ? 1 : 0), "reason");
  const auto member = [&](std::string_view key) -> const Document& { return required(members, key, "reason"); };
  Reason reason;
  reason.backend = backend ? *backend : backend_from(member("backend"), "backend");
  reason.rule = text(member("rule"), "rule");
  reason.way = static_cast<Way>(index_from(member("way"), kWayNames, "way"));
  for (const Member& value : object(member("actual"), "actual"))
    reason.actual.push_back({value.key, text(value.value, "actual")});
  reason.required = text(member("required"), "required");
  reason.evidence = text(member("evidence"), "evidence");
  reason.undecided = boolean(member("undecided"), "undecided");
  reason.fix = fix_from(member("fix"));
  return reason;
}

Document names_of(const std::vector<Backend>& backends) {
  List names;
  for (const Backend backend : backends) names.emplace_back(name(backend));
  return names;
}

Document chosen(const Decision& decision) {
  return decision.backend() ? Document(name(*decision.backend())) : Document();
}

/// Every backend is a key; an eligible one has no reasons.
Document reasons_of(const Decision& decision) {
  Object by_backend;
  for (const Backend backend : BackendSet::all()) {
    List reasons;
    for (Reason& reason : decision.reasons(backend)) {
      reason.fix = decision.fix_for(reason);
      reasons.emplace_back(members_of(reason));
    }
    by_backend.push_back({std::string(name(backend)), std::move(reasons)});
  }
  return by_backend;
}

// ---- reading ----------------------------------------------------------------------------------------------------

Decision made_again(const Object& members) {
  const Problem problem = problem_from(required(members, "problem", "decision"));
  const Settings settings = settings_from(required(members, "settings", "decision"));
  const Device device = device_from(required(members, "device", "decision"));
  try {
    return {problem, settings, device, evaluate(problem, settings, device)};
  } catch (const std::invalid_argument& error) {  // a rule set that this process does not have
    throw InvalidField("settings", error.what());
  }
}

void expect_equal(std::string_view key, const Document& given, const Document& now) {
  if (to_text(given) == to_text(now)) return;
  throw InvalidField(key, "got " + shown(given) + ", but this release decides " + shown(now) +
                              " for that problem, device and settings");
}

void expect_same_reasons(Backend backend, const Document& given, const Decision& decision) {
  List was;
  for (const Document& item : list(given, "reasons")) {
    const Reason reason = reason_from(item, backend);
    if (reason.undecided)
      throw InvalidField("undecided",
                         "got true for " + reason.rule + "; a decision over unknown lengths cannot be made again");
    was.emplace_back(reason.rule);
  }
  List is;
  for (const Reason& reason : decision.reasons(backend)) is.emplace_back(reason.rule);
  expect_equal(name(backend), was, is);
}

}  // namespace

std::string write(const Reason& reason) {
  Object members = members_of(reason);
  members.insert(members.begin(), {"backend", name(reason.backend)});
  return to_text(members);
}
Reason read_reason(std::string_view text) { return reason_from(parse(text, "reason"), std::nullopt); }

std::string write(const Decision& decision) {
  return to_text(Object{
      {"backend", chosen(decision)},
      {"eligible", to_document(decision.eligible())},
      {"order", names_of(decision.order())},
      {"ground", decision.ground()},
      {"problem", to_document(decision.problem())},
      {"device", to_document(decision.device())},
      {"settings", to_document(decision.settings())},
      {"reasons", reasons_of(decision)},
  });
}

Decision read_decision(std::string_view given) {
  constexpr std::array<std::string_view, 8> keys{"backend", "eligible", "order",    "ground",
                                                 "problem", "device",   "settings", "reasons"};
  const Document document = parse(given, "decision");
  const Object& members = object(document, "decision");
  allow_only(members, keys, "decision");
  static_cast<void>(text(required(members, "ground", "decision"), "ground"));
  const Decision decision = made_again(members);
  const Object& reasons = object(required(members, "reasons", "decision"), "reasons");
  allow_only(reasons, kBackendNames, "reasons");
  for (const Backend backend : BackendSet::all())
    expect_same_reasons(backend, required(reasons, name(backend), "reasons"), decision);
  expect_equal("eligible", required(members, "eligible", "decision"), to_document(decision.eligible()));
  expect_equal("order", required(members, "order", "decision"), names_of(decision.order()));
  expect_equal("backend", required(members, "backend", "decision"), chosen(decision));
  return decision;
}

}  // namespace cynosure::io
