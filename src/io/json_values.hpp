// SPDX-License-Identifier: Apache-2.0
// io/json_values.hpp: the values of json.hpp as parts of larger documents.
#pragma once

#include <array>
#include <optional>

#include <cynosure/decision.hpp>
#include <cynosure/fields.hpp>

#include "io/document.hpp"

namespace cynosure::io {

[[nodiscard]] Document to_document(const Problem& problem);
[[nodiscard]] Document to_document(const Device& device);
[[nodiscard]] Document to_document(Settings settings);
[[nodiscard]] Problem problem_from(const Document& given);
[[nodiscard]] Device device_from(const Document& given);
[[nodiscard]] Settings settings_from(const Document& given);

/// A field's value: true, 32, "bfloat16", "9.19.0", ["cpu"].
[[nodiscard]] Document to_document(const FieldInfo& field, std::int64_t value);
[[nodiscard]] std::int64_t value_from(const FieldInfo& field, const Document& given);

[[nodiscard]] Document to_document(BackendSet set);
[[nodiscard]] Backend backend_from(const Document& given, std::string_view where);
/// Distinct backends, in the order given.
[[nodiscard]] BackendList backends_from(const Document& given, std::string_view where);

/// The place of a text among the names.
template <std::size_t N>
[[nodiscard]] std::size_t index_from(const Document& given, const std::array<std::string_view, N>& names,
                                     std::string_view where) {
  const std::string& name = text(given, where);
  for (std::size_t i = 0; i < N; ++i)
    if (names[i] == name) return i;
  refuse(where, given, "one of " + joined(names));
}

}  // namespace cynosure::io
