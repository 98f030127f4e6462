// SPDX-License-Identifier: Apache-2.0
// io/environment.cpp: one row for each variable.
#include "io/environment.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include <cynosure/device.hpp>
#include <cynosure/errors.hpp>

#include "io/document.hpp"

namespace cynosure::io {
namespace {

// ---- values -----------------------------------------------------------------------------------------------------

/// The characters that Python strips from the ends of a number.
constexpr std::string_view kSpaces = " \t\n\v\f\r\x1c\x1d\x1e\x1f";
constexpr std::size_t kMaxDigits = 4300;  // Python's own limit

std::string_view stripped(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

/// Whether Python's int(text) is not zero; nothing where int() raises. How large the number is does not matter.
std::optional<bool> nonzero(std::string_view text) {
  text = stripped(text);
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  bool any = false;
  std::size_t digits = 0;
  bool after_digit = false;
  for (const char c : text) {
    if (c == '_' ? !after_digit : (c < '0' || c > '9')) return std::nullopt;
    after_digit = c != '_';
    digits += after_digit ? 1 : 0;
    any = any || (after_digit && c != '0');
  }
  if (!after_digit || digits > kMaxDigits) return std::nullopt;
  return any;
}

/// The items of a comma separated list, stripped.
std::vector<std::string_view> items(std::string_view text) {
  std::vector<std::string_view> found;
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    found.push_back(stripped(text.substr(0, comma)));
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);
  }
  return found;
}

template <std::size_t N>
bool is_one_of(std::string_view text, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), text) != names.end();
}

// ---- variables --------------------------------------------------------------------------------------------------

enum class Scope : std::uint8_t {
  selection,      ///< read at each selection
  fp8_selection,  ///< read at each selection with FP8 on
  settings,       ///< read when settings are made
};

struct Row {
  std::string_view name;
  Scope scope;
  std::string_view accepts;
  bool (*read)(std::string_view value, Settings& settings);  ///< false: unreadable
};

template <Backend... Off>
bool read_switch(std::string_view value, Settings& settings) {
  const std::optional<bool> on = nonzero(value);
  if (on == false) settings = settings.with_enabled(settings.enabled() - BackendSet{Off...});
  return on.has_value();
}
bool read_number(std::string_view value, Settings& /*settings*/) { return nonzero(value).has_value(); }
bool read_emulation(std::string_view value, Settings& settings) {
  settings = settings.with_switch(Settings::emulate_fp8, value == "1");
  return true;
}
bool read_nondeterministic(std::string_view value, Settings& settings) {
  const std::optional<bool> allowed = nonzero(value);
  if (allowed == false) settings = settings.with_deterministic(true);
  return allowed.has_value();
}
bool read_policy(std::string_view value, Settings& settings) {
  const auto* const policy = std::find(kPolicyNames.begin(), kPolicyNames.end(), value);
  if (policy == kPolicyNames.end()) return false;
  settings = settings.with_policy(static_cast<Policy>(policy - kPolicyNames.begin()));
  return true;
}
bool read_contract(std::string_view value, Settings& settings) {
  const auto [contract, named] = parse_contract(value, "CYNOSURE_BACKEND");
  settings = settings.with_contract(contract, named);
  return true;
}
bool read_log(std::string_view value, Settings& /*settings*/) {
  constexpr std::array<std::string_view, 2> logs{"decisions", "reasons"};
  if (stripped(value).empty()) return true;
  return std::ranges::all_of(items(value), [&](std::string_view item) { return is_one_of(item, logs); });
}
bool read_cpu_isa(std::string_view value, Settings& /*settings*/) { return is_one_of(value, kCpuIsaNames); }
bool read_check(std::string_view value, Settings& /*settings*/) { return value == "0" || value == "1"; }

using enum Backend;
constexpr std::string_view kSwitch = "an integer: 0 switches it off";
constexpr std::string_view kInteger = "an integer";

constexpr std::array kRows{
    Row{"NVTE_FLASH_ATTN", Scope::selection, kSwitch, read_switch<flash2, aten_flash, flash3, flash4>},
    Row{"NVTE_FLASH_ATTN_V2", Scope::selection, kSwitch, read_switch<flash2, aten_flash>},
    Row{"NVTE_FLASH_ATTN_V3", Scope::selection, kSwitch, read_switch<flash3>},
    Row{"NVTE_FLASH_ATTN_V4", Scope::selection, kSwitch, read_switch<flash4>},
    Row{"NVTE_FUSED_ATTN", Scope::selection, kSwitch, read_switch<cudnn, cudnn_fp8>},
    Row{"NVTE_UNFUSED_ATTN", Scope::selection, kSwitch, read_switch<unfused>},
    Row{"NVTE_UnfusedDPA_Emulate_FP8", Scope::selection, "1 for on, anything else for off", read_emulation},
    Row{"NVTE_FP8_DPA_BWD", Scope::fp8_selection, kInteger, read_number},
    Row{"NVTE_DPA_FP8CS_O_in_F16", Scope::fp8_selection, kInteger, read_number},
    Row{"NVTE_DPA_FP8DS_AMAX_HISTLEN", Scope::fp8_selection, kInteger, read_number},
    Row{"NVTE_DPA_FP8DS_REDUCE_AMAX", Scope::fp8_selection, kInteger, read_number},
    Row{"NVTE_ALLOW_NONDETERMINISTIC_ALGO", Scope::settings, "an integer: 0 asks for deterministic results",
        read_nondeterministic},
    Row{"NVTE_DEBUG", Scope::settings, kInteger, read_number},
    Row{"NVTE_DEBUG_LEVEL", Scope::settings, kInteger, read_number},
    Row{"CYNOSURE_POLICY", Scope::settings, "fastest or te", read_policy},
    Row{"CYNOSURE_BACKEND", Scope::settings, "", read_contract},  // names what it accepts itself
    Row{"CYNOSURE_LOG", Scope::settings, "decisions, reasons or both, with a comma", read_log},
    Row{"CYNOSURE_CPU_ISA", Scope::settings, "generic, avx2, avx512 or amx", read_cpu_isa},
    Row{"CYNOSURE_CHECK", Scope::settings, "0 or 1", read_check},
};

template <class InScope>
Settings read_rows(std::span<const Variable> variables, Settings settings, InScope in_scope) {
  for (const auto& [name, value] : variables) {
    const auto* const row = std::ranges::find(kRows, name, &Row::name);
    if (row == kRows.end() || !in_scope(row->scope)) continue;
    if (!row->read(value, settings))
      throw InvalidField(name, "got " + in_quotes(value) + ", expected " + std::string(row->accepts));
  }
  return settings;
}

// ---- contracts --------------------------------------------------------------------------------------------------

[[noreturn]] void refuse_contract(std::string_view field, std::string_view text, const std::string& why) {
  throw InvalidField(field,
                     "got " + in_quotes(text) + (why.empty() ? "" : ", in which " + why) +
                         ", expected auto, NAME, NAME,NAME, prefer(NAME,...) or require(NAME,...) with names from " +
                         joined(kBackendNames));
}

/// Takes `word(` ... `)` off the text; spaces may stand around the bracket.
bool take_call(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  const std::string_view rest = stripped(text.substr(word.size()));
  if (!rest.starts_with('(') || !rest.ends_with(')')) return false;
  text = rest.substr(1, rest.size() - 2);
  return true;
}

}  // namespace

Settings settings_from_environment(std::span<const Variable> variables, Settings base) {
  return read_rows(variables, base, [](Scope scope) { return scope != Scope::fp8_selection; });
}

std::vector<std::string_view> environment_names() {
  std::vector<std::string_view> names;
  for (const Row& row : kRows)
    if (row.scope != Scope::fp8_selection) names.push_back(row.name);
  return names;
}

Settings selection_switches(std::span<const Variable> variables, Settings base, bool fp8) {
  return read_rows(variables, base,
                   [fp8](Scope scope) { return scope == Scope::selection || (fp8 && scope == Scope::fp8_selection); });
}

std::pair<Contract, BackendList> parse_contract(std::string_view text, std::string_view field) {
  std::string_view names = stripped(text);
  if (names == "auto") return {Contract::automatic, {}};
  Contract contract = Contract::require;
  if (take_call(names, "prefer")) {
    contract = Contract::prefer;
  } else {
    take_call(names, "require");
  }
  BackendList named;
  for (const std::string_view item : items(names)) {
    const std::optional<Backend> backend = backend_named(item);
    if (!backend) refuse_contract(field, text, item == names ? "" : in_quotes(item) + " is no backend");
    if (named.set().contains(*backend)) refuse_contract(field, text, in_quotes(item) + " comes twice");
    named.push_back(*backend);
  }
  return {contract, named};
}

}  // namespace cynosure::io
