// SPDX-License-Identifier: Apache-2.0
// tests/fuzz/values.cpp: problems, devices, settings, reasons, decisions, contracts and environment variables are
// refused or come back whole. The first byte picks which: p, d, s, r, D, c, or the name of a variable up to '='.
#include <array>

#include <cynosure/errors.hpp>
#include <cynosure/select.hpp>

#include "check.hpp"
#include "io/environment.hpp"
#include "io/json.hpp"

namespace cynosure::fuzz {
namespace {

template <class Read>
auto round_trip(Read read, std::string_view given) {
  const auto value = read(given);
  const std::string text = io::write(value);
  check(read(text) == value, "came back changed", text);
  check(io::write(read(text)) == text, "another text the second time", text);
  return value;
}

/// Whatever can be read can be decided, explained, written and read again.
void decide(const Problem& problem, const Device& device) {
  for (const Policy policy : {Policy::fastest, Policy::te}) {
    const Settings settings = Settings().with_policy(policy);
    const Decision decision(problem, settings, device, evaluate(problem, settings, device));
    check(io::read_decision(io::write(decision)) == decision, "a decision came back changed", io::write(problem));
  }
}

void decide_anywhere(const Problem& problem) {
  for (const std::string_view device : {"cpu", "a100", "h200", "b200", "rtx5090"})
    decide(problem, *named_device(device));
}

void read_contract(std::string_view given) {
  const auto [contract, named] = io::parse_contract(given);
  const Settings settings = Settings().with_contract(contract, named);
  check(settings.contract() == contract && settings.named() == named, "a contract came back changed",
        std::string(given));
}

void read_variable(std::string_view given) {
  const std::size_t end = given.find('=');
  if (end == std::string_view::npos) return;
  const std::array variables{io::Variable{given.substr(0, end), given.substr(end + 1)}};
  static_cast<void>(io::selection_switches(variables, Settings(), true));
  const Settings settings = io::settings_from_environment(variables, Settings());
  check(Settings::from_word(settings.word()) == settings, "an impossible word", std::string(given));
}

void read(std::string_view given) {
  const std::string_view rest = given.substr(1);
  switch (given.front()) {
    case 'p':
      return decide_anywhere(round_trip(io::read_problem, rest));
    case 'd':
      return decide(Problem(), round_trip(io::read_device, rest));
    case 's':
      return static_cast<void>(round_trip(io::read_settings, rest));
    case 'r':
      return static_cast<void>(round_trip(io::read_reason, rest));
    case 'D':
      return static_cast<void>(round_trip(io::read_decision, rest));
    case 'c':
      return read_contract(rest);
    default:
      return read_variable(given);
  }
}

}  // namespace
}  // namespace cynosure::fuzz

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace cynosure;
  if (size == 0) return 0;
  try {
    fuzz::read({reinterpret_cast<const char*>(data), size});
  } catch (const InvalidField& error) {
    fuzz::check(std::string_view(error.what()).starts_with(error.field()), "an error without its field", error.what());
  }
  return 0;
}
