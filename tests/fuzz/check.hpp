// SPDX-License-Identifier: Apache-2.0
// tests/fuzz/check.hpp: a condition that a fuzz target holds its subject to.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace cynosure::fuzz {

/// Ends the process, which libFuzzer reports with the input.
inline void check(bool holds, const char* what, const std::string& text) {
  if (holds) return;
  std::fprintf(stderr, "%s: %s\n", what, text.c_str());
  std::abort();
}

}  // namespace cynosure::fuzz
