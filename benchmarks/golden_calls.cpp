// SPDX-License-Identifier: Apache-2.0
// benchmarks/golden_calls.cpp
#include <cstdio>
#include <memory>
#include <stdexcept>

#include <cynosure/errors.hpp>
#include <cynosure/select.hpp>

#include "golden_calls.hpp"

namespace cynosure::benchmarks {
namespace {

constexpr std::size_t kRecords = 20000;

std::vector<std::string> golden_lines() {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      popen("gzip -dc '" CYNOSURE_SOURCE_DIR "/tests/data/te_decisions.jsonl.gz'", "r"), &pclose);
  std::vector<std::string> lines;
  std::string line;
  for (int c = 0; pipe && (c = std::fgetc(pipe.get())) != EOF;) {
    if (c != '\n') {
      line += static_cast<char>(c);
      continue;
    }
    lines.push_back(std::move(line));
    line.clear();
  }
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
  if (lines.size() != kRecords) throw std::runtime_error("tests/data/te_decisions.jsonl.gz: not read whole");
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
