// SPDX-License-Identifier: Apache-2.0
// tests/cpp/golden_test.cpp: every decision of TransformerEngine's in tests/data comes out under policy te.
#include <string>

#include <gtest/gtest.h>

#include "gzip_lines.hpp"
#include "io/records.hpp"

namespace cynosure {
namespace {

constexpr std::size_t kShownMismatches = 10;

/// The text of the object under `key`; keys are in alphabetical order in both files, so equal objects are equal text.
std::string object_at(const std::string& line, const std::string& key) {
  const std::size_t start = line.find("\"" + key + "\":{");
  return start == std::string::npos ? "" : line.substr(start, line.find('}', start) + 1 - start);
}

bool agrees(const std::string& record, const std::string& answer) {
  const std::string expected = object_at(record, "expect");
  const bool error = expected.find("\"error\"") != std::string::npos;
  return error ? answer.starts_with("{\"error\":") : (!expected.empty() && object_at(answer, "expect") == expected);
}

TEST(Golden, EveryDecisionAgreesUnderTe) {
  testing::GzipLines lines(testing::kGoldenPath);
  std::size_t count = 0;
  std::size_t mismatches = 0;
  for (std::string line; lines.next(line); ++count) {
    const std::string answer = io::answer_record(line, Policy::te);
    if (agrees(line, answer)) continue;
    ++mismatches;
    if (mismatches <= kShownMismatches) ADD_FAILURE() << line << "\n" << answer;
  }
  EXPECT_EQ(mismatches, 0U);
  EXPECT_EQ(count, testing::kGoldenRecords) << "tests/data/te_decisions.jsonl.gz did not come through gzip -dc whole";
}

TEST(Golden, EveryRecordHasAnAnswerUnderFastest) {
  testing::GzipLines lines(testing::kGoldenPath);
  for (std::string line; lines.next(line);) {
    const std::string answer = io::answer_record(line, Policy::fastest);
    const bool te_raises = line.find("\"expect\":{\"error\"") != std::string::npos;
    ASSERT_TRUE(answer.starts_with(te_raises ? "{\"error\":" : "{\"chosen\":")) << line << "\n" << answer;
  }
}

}  // namespace
}  // namespace cynosure
