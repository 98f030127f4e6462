// SPDX-License-Identifier: Apache-2.0
// io/document.hpp: JSON text as a value, strictly read: the one place where text from outside is parsed.
//
// Stricter than the format asks for: no key twice in an object, at most kMaxDepth levels, integers within 64 bits.
// Everything here throws InvalidField, which names where in the text the value stood and what was expected there.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <cynosure/errors.hpp>

namespace cynosure::io {

class Document;
struct Member;

/// A number that is not an integer of 64 bits in plain notation: 0.5, 1e3, 99999999999999999999.
struct Real {
  double value = 0.0;
  std::string text;  ///< as it was written
};
using List = std::vector<Document>;
using Object = std::vector<Member>;  ///< in the order of the text

class Document {
 public:
  using Value = std::variant<std::monostate, bool, std::int64_t, Real, std::string, List, Object>;

  Document() = default;  ///< null
  // Documents are put together as nested braces of plain values, so all of these convert silently.
  // NOLINTBEGIN(google-explicit-constructor)
  Document(std::same_as<bool> auto value);
  template <std::integral Int>
    requires(!std::same_as<Int, bool>)
  Document(Int value);
  Document(Real value);
  Document(std::string value);
  Document(std::string_view value);
  Document(const char* value);
  Document(List value);
  Document(Object value);
  // NOLINTEND(google-explicit-constructor)

  [[nodiscard]] const Value& value() const { return value_; }
  [[nodiscard]] Value& value() { return value_; }
  [[nodiscard]] bool is_null() const { return std::holds_alternative<std::monostate>(value_); }

 private:
  Value value_;
};

struct Member {
  std::string key;
  Document value;
};

// Here, because a variant that may hold Members needs to know what one is.
Document::Document(std::same_as<bool> auto value) : value_(value) {}
template <std::integral Int>
  requires(!std::same_as<Int, bool>)
Document::Document(Int value) : value_(static_cast<std::int64_t>(value)) {}

inline constexpr std::size_t kMaxDepth = 16;

/// `what` names the text in messages: "record", "problem".
[[nodiscard]] Document parse(std::string_view text, std::string_view what);
/// One line without spaces. Text that is not UTF-8 comes out with replacement characters.
[[nodiscard]] std::string to_text(const Document& document);

/// A value as messages show it: JSON, cut short.
[[nodiscard]] std::string shown(const Document& document);
/// Text from outside as messages show it: in single quotes, printable, cut short.
[[nodiscard]] std::string in_quotes(std::string_view text);
[[noreturn]] void refuse(std::string_view where, const Document& given, std::string_view expected);

/// The value as one type; `where` names it in the error.
[[nodiscard]] const Object& object(const Document& document, std::string_view where);
[[nodiscard]] const List& list(const Document& document, std::string_view where);
[[nodiscard]] const std::string& text(const Document& document, std::string_view where);
[[nodiscard]] std::int64_t integer(const Document& document, std::string_view where);
[[nodiscard]] bool boolean(const Document& document, std::string_view where);

/// The member of that name, or nothing.
[[nodiscard]] const Document* find(const Object& object, std::string_view key);
[[nodiscard]] const Document& required(const Object& object, std::string_view key, std::string_view where);
/// Refuses a member that is none of these.
void allow_only(const Object& object, std::span<const std::string_view> keys, std::string_view where);

/// "a, b, c"
[[nodiscard]] std::string joined(std::span<const std::string_view> names);

}  // namespace cynosure::io
