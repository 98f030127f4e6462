// SPDX-License-Identifier: Apache-2.0
// core/refusal.cpp: the message of a call that no backend may run.
#include <algorithm>

#include <cynosure/decision.hpp>
#include <cynosure/fields.hpp>

namespace cynosure {
namespace {

/// The call in one line: its sizes, and what differs from a plain one.
std::string call_text(const Problem& problem) {
  constexpr std::array always{Field::heads,      Field::kv_heads, Field::head_dim_qk,
                              Field::head_dim_v, Field::dtype,    Field::layout};
  std::string text;
  for (const FieldInfo& field : fields()) {
    if (static_cast<std::size_t>(field.field) >= kFirstDeviceField) break;
    const std::int64_t here = value(field.field, problem, Device{}, Settings{});
    const bool shown = static_cast<std::size_t>(field.field) < 3 ||
                       std::ranges::find(always, field.field) != always.end() ||
                       here != value(field.field, Problem{}, Device{}, Settings{});
    if (shown) text += (text.empty() ? "" : ", ") + std::string(field.name) + "=" + value_text(field.field, here);
  }
  return text;
}

std::string reason_text(const Reason& reason) {
  // These say all there is to say; of the others a reader wants the values.
  if (reason.way == Way::switched_off) return "switched off";
  if (reason.way == Way::not_built) return "not built in this release";
  std::string actual;
  for (const Reason::Actual& item : reason.actual)
    actual += (actual.empty() ? "" : ", ") + item.name + "=" + item.value;
  return reason.rule + (actual.empty() ? "" : ": " + actual) + "; required: " + reason.required;
}

}  // namespace

std::string Decision::refusal() const {
  std::string text = "no backend may run this call";
  if (settings_.contract() == Contract::require) {
    std::string off;
    for (const Backend backend : settings_.named())
      if (!settings_.enabled().contains(backend)) off += (off.empty() ? "" : ", ") + std::string(name(backend));
    if (!off.empty()) text += ": " + off + " is required and switched off";
  }
  for (const Backend backend : {Backend::cpu, Backend::unfused, Backend::cudnn, Backend::flash3, Backend::flash4,
                                Backend::flash2, Backend::aten_flash}) {
    const std::optional<std::string> way = remedy(backend);
    if (!way) continue;
    text += ". To run " + std::string(name(backend)) + ": " + *way;
    break;
  }
  text += "\n  call: " + call_text(problem_);
  for (const Backend backend : BackendSet::all()) {
    std::string why;
    for (const Reason& reason : reasons(backend)) why += (why.empty() ? "" : " | ") + reason_text(reason);
    text += "\n  " + std::string(name(backend)) + ": " + (why.empty() ? "eligible" : why);
  }
  return text;
}

}  // namespace cynosure
