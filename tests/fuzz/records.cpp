// SPDX-License-Identifier: Apache-2.0
// tests/fuzz/records.cpp: any line has exactly one line of JSON for an answer, twice the same, under either policy.
#include "io/records.hpp"

#include "check.hpp"
#include "io/document.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace cynosure;
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  for (const Policy policy : {Policy::te, Policy::fastest}) {
    const std::string answer = io::answer_record(line, policy);
    fuzz::check(answer.find('\n') == std::string::npos, "more than one line", answer);
    const io::Document document = io::parse(answer, "answer");
    const bool error = io::find(io::object(document, "answer"), "error") != nullptr;
    const bool chosen = io::find(io::object(document, "answer"), "chosen") != nullptr;
    fuzz::check(error != chosen, "neither an answer nor an error", answer);
    fuzz::check(io::answer_record(line, policy) == answer, "another answer the second time", answer);
  }
  return 0;
}
