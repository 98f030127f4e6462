// SPDX-License-Identifier: Apache-2.0
// tests/cpp/gzip_lines.hpp: the golden decisions, line by line.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

namespace cynosure::testing {

inline constexpr const char* kGoldenPath = CYNOSURE_SOURCE_DIR "/tests/data/te_decisions.jsonl.gz";
inline constexpr std::size_t kGoldenRecords = 20000;

/// Lines of a compressed file. gzip is a program on every system with a compiler; a library would be one more to find.
class GzipLines {
 public:
  explicit GzipLines(const std::string& path) : pipe_(popen(("gzip -dc '" + path + "'").c_str(), "r"), &pclose) {}
  bool next(std::string& line) {
    line.clear();
    for (int c = 0; pipe_ && (c = std::fgetc(pipe_.get())) != EOF;) {
      if (c == '\n') return true;
      line += static_cast<char>(c);
    }
    return !line.empty();
  }

 private:
  std::unique_ptr<FILE, int (*)(FILE*)> pipe_;
};

}  // namespace cynosure::testing
