// SPDX-License-Identifier: Apache-2.0
// rules/faults.cpp: known upstream faults, as data. A row excludes no more than its evidence; where upstream names no
// first or last version, the bound is left open and said to be unknown.
#include <cynosure/rule_set.hpp>

#include "rules/terms.hpp"

namespace cynosure {

const std::vector<Fault>& builtin_faults() {
  static const std::vector<Fault> faults = {};
  return faults;
}

}  // namespace cynosure
