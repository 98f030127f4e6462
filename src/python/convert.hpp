// SPDX-License-Identifier: Apache-2.0
// python/convert.hpp: values cross to Python as bytes, integers and text, because those are what torch can hold as
// constants in a trace. A Problem's features and a Device are their bytes; settings are their word, as a signed
// integer.
#pragma once

#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <nanobind/nanobind.h>

#include <cynosure/device.hpp>
#include <cynosure/fields.hpp>
#include <cynosure/problem.hpp>
#include <cynosure/settings.hpp>

namespace cynosure::python {

namespace nb = nanobind;

/// A trivially copyable value as bytes.
template <class Value>
[[nodiscard]] nb::bytes to_bytes(const Value& value) {
  static_assert(std::has_unique_object_representations_v<Value>);
  return nb::bytes(reinterpret_cast<const char*>(&value), sizeof(Value));
}
template <class Value>
[[nodiscard]] Value from_bytes(const nb::bytes& bytes) {
  if (bytes.size() != sizeof(Value))
    throw std::invalid_argument("key: got bytes of another release of Cynosure, build the Problem or Device again");
  Value value;
  std::memcpy(static_cast<void*>(&value), bytes.c_str(), sizeof(Value));
  return value;
}

[[nodiscard]] inline Settings settings_from(std::int64_t word) {
  return Settings::from_word(static_cast<std::uint64_t>(word));
}
[[nodiscard]] inline std::int64_t word_of(Settings settings) { return static_cast<std::int64_t>(settings.word()); }

/// A field's value from a Python bool, int or str. Throws InvalidField.
[[nodiscard]] std::int64_t field_value(Field field, nb::handle object);
/// And back: bool, int, str, or a list of backend names.
[[nodiscard]] nb::object field_object(Field field, std::int64_t value);

/// The variables that make up settings, in the order in which values for them are passed.
[[nodiscard]] const std::vector<std::string>& environment();

void bind_values(nb::module_& m);
void bind_select(nb::module_& m);
void bind_now(nb::module_& m);
void bind_records(nb::module_& m);
void bind_detect(nb::module_& m);
void bind_call(nb::module_& m);

}  // namespace cynosure::python
