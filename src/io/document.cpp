// SPDX-License-Identifier: Apache-2.0
// io/document.cpp: the parser's events become a Document; whatever the format leaves open is refused here.
#include "io/document.hpp"

#include <algorithm>
#include <type_traits>

#include <nlohmann/json.hpp>

namespace cynosure::io {
namespace {

using nlohmann::json;

constexpr std::size_t kShownBytes = 120;

/// The parser's own message without its number, and without the text it had last read, which may be no valid UTF-8.
std::string plain(std::string_view message) {
  if (const std::size_t end = message.find("] "); end != std::string_view::npos) message.remove_prefix(end + 2);
  constexpr std::string_view prefix = "parse error ";
  if (message.starts_with(prefix)) message.remove_prefix(prefix.size());
  message = message.substr(0, message.find("; last read"));
  message = message.substr(0, message.find("; check that"));
  return std::string(message.substr(0, kShownBytes));
}

/// Receives the parser's events. `open_` holds the containers that are not closed yet; only the innermost grows, so
/// the pointers to the others stay good.
class Builder {
 public:
  explicit Builder(std::string_view what) : what_(what) {}
  [[nodiscard]] Document take() { return std::move(root_); }

  // The names of nlohmann's SAX interface; false would stop the parser, but every refusal is an exception.
  bool null() { return add(Document()); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(std::int64_t value) { return add(value); }
  bool number_unsigned(std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(INT64_MAX))
      return add(Real{static_cast<double>(value), std::to_string(value)});
    return add(static_cast<std::int64_t>(value));
  }
  bool number_float(double value, const std::string& digits) { return add(Real{value, digits}); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(json::binary_t& /*value*/) { return false; }  // JSON text has none
  bool start_object(std::size_t /*unknown*/) { return open(Object()); }
  bool key(std::string& name) {
    std::get<Object>(open_.back()->value()).push_back({std::move(name), {}});
    return true;
  }
  bool end_object() {
    refuse_repeated_keys(std::get<Object>(open_.back()->value()));
    return close();
  }
  bool start_array(std::size_t /*unknown*/) { return open(List()); }
  bool end_array() { return close(); }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/, const json::exception& error) {
    throw InvalidField(what_, "is not JSON: " + plain(error.what()));
  }

 private:
  /// Puts a value where the parser stands: at the root, at the end of a list, or under the last key of an object.
  Document& place(Document value) {
    if (open_.empty()) return root_ = std::move(value);
    if (auto* items = std::get_if<List>(&open_.back()->value())) return items->emplace_back(std::move(value));
    return std::get<Object>(open_.back()->value()).back().value = std::move(value);
  }
  bool add(Document value) {
    place(std::move(value));
    return true;
  }
  bool open(Document container) {
    if (open_.size() == kMaxDepth)
      throw InvalidField(what_, "is nested deeper than " + std::to_string(kMaxDepth) + " levels");
    open_.push_back(&place(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  void refuse_repeated_keys(const Object& object) const {
    std::vector<std::string_view> keys;
    keys.reserve(object.size());
    for (const Member& member : object) keys.emplace_back(member.key);
    std::sort(keys.begin(), keys.end());
    if (const auto twice = std::adjacent_find(keys.begin(), keys.end()); twice != keys.end())
      throw InvalidField(what_, "has the key " + shown(*twice) + " twice in one object");
  }

  std::string_view what_;
  Document root_;
  std::vector<Document*> open_;
};

void append_string(std::string& out, std::string_view value) {
  out += json(value).dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}
void append(std::string& out, const Document& document);
void append(std::string& out, const List& items) {
  out += '[';
  for (const Document& item : items) {
    if (&item != items.data()) out += ',';
    append(out, item);
  }
  out += ']';
}
void append(std::string& out, const Object& members) {
  out += '{';
  for (const Member& member : members) {
    if (&member != members.data()) out += ',';
    append_string(out, member.key);
    out += ':';
    append(out, member.value);
  }
  out += '}';
}
void append(std::string& out, const Document& document) {
  const auto write = [&out](const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, std::monostate>) {
      out += "null";
    } else if constexpr (std::is_same_v<Value, bool>) {
      out += value ? "true" : "false";
    } else if constexpr (std::is_same_v<Value, std::int64_t>) {
      out += std::to_string(value);
    } else if constexpr (std::is_same_v<Value, Real>) {
      out += value.text;
    } else if constexpr (std::is_same_v<Value, std::string>) {
      append_string(out, value);
    } else {
      append(out, value);
    }
  };
  std::visit(write, document.value());
}

/// At most kShownBytes of it, cut between characters.
std::string cut(std::string text) {
  if (text.size() <= kShownBytes) return text;
  std::size_t end = kShownBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;
  text.resize(end);
  return text + "...";
}

template <class Value>
const Value& as(const Document& document, std::string_view where, std::string_view expected) {
  const auto* value = std::get_if<Value>(&document.value());
  if (value == nullptr) refuse(where, document, expected);
  return *value;
}

}  // namespace

Document::Document(Real value) : value_(std::move(value)) {}
Document::Document(std::string value) : value_(std::move(value)) {}
Document::Document(std::string_view value) : value_(std::string(value)) {}
Document::Document(const char* value) : value_(std::string(value)) {}
Document::Document(List value) : value_(std::move(value)) {}
Document::Document(Object value) : value_(std::move(value)) {}

Document parse(std::string_view text, std::string_view what) {
  Builder builder(what);
  if (!json::sax_parse(text.begin(), text.end(), &builder)) throw InvalidField(what, "is not JSON");
  return builder.take();
}

std::string to_text(const Document& document) {
  std::string out;
  append(out, document);
  return out;
}

std::string shown(const Document& document) { return cut(to_text(document)); }

std::string in_quotes(std::string_view text) {
  const std::string escaped = to_text(text);  // in double quotes, which no reader of a message needs
  return "'" + cut(escaped.substr(1, escaped.size() - 2)) + "'";
}

void refuse(std::string_view where, const Document& given, std::string_view expected) {
  throw InvalidField(where, "got " + shown(given) + ", expected " + std::string(expected));
}

const Object& object(const Document& document, std::string_view where) {
  return as<Object>(document, where, "an object");
}
const List& list(const Document& document, std::string_view where) { return as<List>(document, where, "a list"); }
const std::string& text(const Document& document, std::string_view where) {
  return as<std::string>(document, where, "text");
}
std::int64_t integer(const Document& document, std::string_view where) {
  return as<std::int64_t>(document, where, "an integer of 64 bits in plain digits");
}
bool boolean(const Document& document, std::string_view where) { return as<bool>(document, where, "true or false"); }

const Document* find(const Object& object, std::string_view key) {
  for (const Member& member : object)
    if (member.key == key) return &member.value;
  return nullptr;
}

const Document& required(const Object& object, std::string_view key, std::string_view where) {
  const Document* value = find(object, key);
  if (value == nullptr) throw InvalidField(where, "has no " + in_quotes(key));
  return *value;
}

void allow_only(const Object& object, std::span<const std::string_view> keys, std::string_view where) {
  for (const Member& member : object)
    if (std::find(keys.begin(), keys.end(), member.key) == keys.end())
      throw InvalidField(where, "got the key " + in_quotes(member.key) + ", expected only " + joined(keys));
}

std::string joined(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

}  // namespace cynosure::io
