// SPDX-License-Identifier: Apache-2.0
// cynosure/errors.hpp: a value that cannot be, with the field it was meant for.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include <cynosure/export.hpp>

namespace cynosure {

/// what(): "heads: got 7 with kv_heads 2, expected a multiple of kv_heads".
class CYNOSURE_API InvalidField : public std::invalid_argument {
 public:
  InvalidField(std::string_view field, std::string_view problem)
      : std::invalid_argument(std::string(field) + ": " + std::string(problem)), field_(field) {}
  [[nodiscard]] const std::string& field() const { return field_; }

 private:
  std::string field_;
};

}  // namespace cynosure
