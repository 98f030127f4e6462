// SPDX-License-Identifier: Apache-2.0
// tests/fuzz/faults.cpp: fault rows are refused or come back whole, and can be evaluated on any call.
#include "rules/faults.hpp"

#include <cynosure/errors.hpp>
#include <cynosure/length_facts.hpp>

#include "check.hpp"
#include "io/json.hpp"

namespace cynosure::fuzz {
namespace {

/// With nothing known of the lengths a row may stay open, but never says the opposite of what it says with them.
void evaluate(const Fault& fault, const Problem& problem, const Device& device, const std::string& text) {
  const Settings settings;
  const LayoutInfo layout = info(problem.features.layout);
  const ConcreteLengths lengths(problem.lengths);
  const LengthFacts<ConcreteLengths> known(lengths);
  const rules::Call<ConcreteLengths> call{problem.features, device, settings, known, false, layout};
  const PartialLengths nothing({});
  const LengthFacts<PartialLengths> unknown(nothing);
  const rules::Call<PartialLengths> open_call{problem.features, device, settings, unknown, false, layout};
  const bool fires = rules::fault_fires(fault, call);
  const Truth open = rules::fault_fires(fault, open_call);
  check(open.is_unknown() || open.is_yes() == fires, "unknown lengths contradict known ones", text);
}

void evaluate(const RuleSet& rules, const std::string& text) {
  Device device;
  device.cudnn = device.flash2 = device.flash3 = device.flash4 = device.torch = Version(9, 19);
  device.sm = 90;
  Problem largest;
  largest.lengths = {std::int64_t{1} << 40, std::int64_t{1} << 40, std::int64_t{1} << 40};
  for (const Fault& fault : rules.faults())
    for (const Problem& problem : {Problem(), largest}) evaluate(fault, problem, device, text);
}

}  // namespace
}  // namespace cynosure::fuzz

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace cynosure;
  const std::string_view given(reinterpret_cast<const char*>(data), size);
  try {
    const RuleSet rules = io::read_rule_set(given);
    const std::string text = io::write(rules);
    const RuleSet again = io::read_rule_set(text);
    fuzz::check(again == rules && again.digest() == rules.digest(), "came back changed", text);
    fuzz::check(io::write(again) == text, "another text the second time", text);
    fuzz::evaluate(rules, text);
  } catch (const InvalidField& error) {
    fuzz::check(std::string_view(error.what()).starts_with(error.field()), "an error without its field", error.what());
  }
  return 0;
}
