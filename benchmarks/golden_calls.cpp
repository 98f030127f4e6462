// SPDX-License-Identifier: Apache-2.0
// benchmarks/golden_calls.cpp
#include "golden_calls.hpp"

#include <stdexcept>

#include <cynosure/errors.hpp>
#include <cynosure/select.hpp>

#include "gzip_lines.hpp"

namespace cynosure::benchmarks {
namespace {

std::vector<std::string> golden_lines() {
  std::vector<std::string> lines;
  testing::GzipLines file(testing::kGoldenPath);
  for (std::string line; file.next(line);) lines.push_back(line);
  if (lines.size() != testing::kGoldenRecords)
    throw std::runtime_error("tests/data/te_decisions.jsonl.gz was not read whole");
  return lines;
}

/// Stages 0 and 1 alone exclude every FlashAttention and both cuDNN graphs.
bool decided_early(const io::RecordedCall& call) {
  const std::vector<Rule> table = rule_table(call.settings);
  BackendSet excluded;
  evaluate(call.problem, call.settings, call.device).fired.for_each([&](std::size_t row) {
    if (table[row].te_stage <= 1) excluded |= table[row].backends;
  });
  const BackendSet asked = kTransformerEngineBackends - BackendSet(Backend::unfused);
  return (asked - excluded).empty();
}

}  // namespace

std::vector<io::RecordedCall> golden_calls(Policy policy, std::size_t count) {
  const std::vector<std::string> lines = golden_lines();
  std::vector<io::RecordedCall> calls;
  std::size_t early = 0;
  // 7919 is prime and no divisor of 20,000, so the walk visits every line once.
  for (std::size_t i = 0; i < lines.size() && calls.size() < count; ++i) {
    const std::string& line = lines[i * 7919 % lines.size()];
    try {
      const io::RecordedCall call = io::read_record(line, policy);
      // The stages are TransformerEngine's, so both policies measure the same records.
      if (decided_early(io::read_record(line, Policy::te)) && ++early > count / 10) continue;
      calls.push_back(call);
    } catch (const InvalidField&) {  // TransformerEngine raises for this record, and so do we
    }
  }
  return calls;
}

}  // namespace cynosure::benchmarks
