// SPDX-License-Identifier: Apache-2.0
// io/json_values.cpp: problems, devices and settings. Their fields are those of fields(); no name is written here.
#include "io/json_values.hpp"

#include <charconv>
#include <cstdio>

#include "io/json.hpp"

namespace cynosure::io {
namespace {

constexpr bool of_problem(Field field) { return static_cast<std::size_t>(field) < kFirstDeviceField; }
constexpr bool of_device(Field field) {
  return !of_problem(field) && static_cast<std::size_t>(field) < kFirstSettingsField;
}

std::int64_t get(const Problem& problem, Field field) { return value(field, problem, Device{}, Settings{}); }
std::int64_t get(const Device& device, Field field) { return value(field, Problem{}, device, Settings{}); }

/// The fields of a Value that `belongs` admits, less those that have their default.
template <class Value, class Belongs>
Document fields_of(const Value& given, Belongs belongs) {
  Object members;
  for (const FieldInfo& field : fields()) {
    if (!belongs(field.field) || get(given, field.field) == get(Value{}, field.field)) continue;
    members.push_back({std::string(field.name), to_document(field, get(given, field.field))});
  }
  return members;
}

template <class Belongs>
std::string names_of(Belongs belongs) {
  std::vector<std::string_view> names;
  for (const FieldInfo& field : fields())
    if (belongs(field.field)) names.push_back(field.name);
  return joined(names);
}

template <class Value, class Belongs>
Value read_fields(const Document& given, std::string_view what, Belongs belongs) {
  Value result{};
  for (const Member& member : object(given, what)) {
    const std::optional<Field> field = field_named(member.key);
    if (!field || !belongs(*field))
      throw InvalidField(what, "got the key " + in_quotes(member.key) + ", expected one of " + names_of(belongs));
    set_value(result, *field, value_from(info(*field), member.value));
  }
  return result;
}

std::string hexadecimal(std::uint64_t word) {
  std::array<char, 19> text{};
  std::snprintf(text.data(), text.size(), "0x%016llx", static_cast<unsigned long long>(word));
  return text.data();
}

std::uint64_t word_from(const Document& given) {
  const std::string& digits = text(given, "word");
  std::uint64_t word = 0;
  const char* const end = digits.data() + digits.size();
  const bool prefixed = digits.starts_with("0x");
  const auto [rest, error] = std::from_chars(digits.data() + (prefixed ? 2 : 0), end, word, 16);
  if (!prefixed || error != std::errc() || rest != end) refuse("word", given, "a word such as \"0x0000000000003fc1\"");
  return word;
}

}  // namespace

Document to_document(const FieldInfo& field, std::int64_t value) {
  switch (field.type) {
    case FieldType::boolean:
      return value != 0;
    case FieldType::integer:
      return value;
    case FieldType::backends:
      return to_document(BackendSet::from_bits(static_cast<std::uint32_t>(value)));
    case FieldType::choice:
    case FieldType::version:
      break;
  }
  return value_text(field.field, value);
}

std::int64_t value_from(const FieldInfo& field, const Document& given) {
  switch (field.type) {
    case FieldType::boolean:
      return boolean(given, field.name) ? 1 : 0;
    case FieldType::integer:
      return integer(given, field.name);
    case FieldType::backends:
      return backends_from(given, field.name).set().bits();
    case FieldType::choice:
    case FieldType::version:
      break;
  }
  const auto* name = std::get_if<std::string>(&given.value());
  if (name == nullptr)
    refuse(field.name, given,
           field.choices.empty() ? "a version such as \"9.19.0\"" : "one of " + joined(field.choices));
  return parse_value(field.field, *name);
}

Document to_document(BackendSet set) {
  List names;
  for (const Backend backend : set) names.emplace_back(name(backend));
  return names;
}

Backend backend_from(const Document& given, std::string_view where) {
  return static_cast<Backend>(index_from(given, kBackendNames, where));
}

BackendList backends_from(const Document& given, std::string_view where) {
  BackendList named;
  for (const Document& item : list(given, where)) {
    const Backend backend = backend_from(item, where);
    if (named.set().contains(backend)) refuse(where, given, "each backend once");
    named.push_back(backend);
  }
  return named;
}

Document to_document(const Problem& problem) { return fields_of(problem, of_problem); }
Document to_document(const Device& device) { return fields_of(device, of_device); }
Document to_document(Settings settings) {
  return Object{{"word", hexadecimal(settings.word())}, {"describe", settings.describe()}};
}

Problem problem_from(const Document& given) { return read_fields<Problem>(given, "problem", of_problem); }
Device device_from(const Document& given) { return read_fields<Device>(given, "device", of_device); }
Settings settings_from(const Document& given) {
  constexpr std::array<std::string_view, 2> keys{"word", "describe"};
  const Object& members = object(given, "settings");
  allow_only(members, keys, "settings");
  const std::uint64_t word = word_from(required(members, "word", "settings"));
  const Settings settings = [&] {
    try {
      return Settings::from_word(word);
    } catch (const std::invalid_argument& error) {
      throw InvalidField("word", error.what());
    }
  }();
  for (const Member& member : members)
    if (member.key == "describe" && text(member.value, "describe") != settings.describe())
      refuse("describe", member.value, "what the word says: " + in_quotes(settings.describe()));
  return settings;
}

Problem read_problem(std::string_view text) { return problem_from(parse(text, "problem")); }
std::string write(const Problem& problem) { return to_text(to_document(problem)); }
Device read_device(std::string_view text) { return device_from(parse(text, "device")); }
std::string write(const Device& device) { return to_text(to_document(device)); }
Settings read_settings(std::string_view text) { return settings_from(parse(text, "settings")); }
std::string write(Settings settings) { return to_text(to_document(settings)); }

}  // namespace cynosure::io
