// SPDX-License-Identifier: Apache-2.0
// cynosure/rule.hpp: what a row of the rule table says, apart from its predicate (src/rules).
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include <cynosure/backend.hpp>
#include <cynosure/fields.hpp>
#include <cynosure/settings.hpp>

namespace cynosure {

/// The ways in which rows keep a backend from running; `not_required`: a require(...) does not name it. One further
/// way, "not preferred", is an eligible backend that was not chosen.
enum class Way : std::uint8_t { switched_off, not_required, not_installed, not_built, not_eligible };
inline constexpr std::array<std::string_view, 5> kWayNames{"switched_off", "not_required", "not_installed", "not_built",
                                                           "not_eligible"};

/// The policies for which a row holds. Rows of `fastest` also hold under `te` when an operator runs
/// (Settings::enforce).
enum class Policies : std::uint8_t { fastest = 1, te = 2, both = 3 };

/// The fields whose values explain why a row fired: its "actual". At most six.
class FieldList {
 public:
  constexpr FieldList() = default;
  constexpr FieldList(std::initializer_list<Field> fields) {
    for (const Field field : fields) items_[size_++] = field;
  }
  constexpr void push_back(Field field) { items_[size_++] = field; }
  [[nodiscard]] constexpr const Field* begin() const { return items_.data(); }
  [[nodiscard]] constexpr const Field* end() const { return items_.data() + size_; }
  [[nodiscard]] constexpr std::size_t size() const { return size_; }

 private:
  std::array<Field, 6> items_{};
  std::uint8_t size_ = 0;
};

struct Rule {
  std::string_view id;  ///< "flash2.head_dim": stable, unique
  BackendSet backends;  ///< all of these are excluded when the row fires
  Policies policies = Policies::both;
  Way way = Way::not_eligible;
  FieldList reads;
  std::string_view required;  ///< what would have to hold, as prose
  std::string_view
      evidence;  ///< where this comes from: an upstream issue, documentation, or "TE spec": docs/transformer_engine.md
  int te_stage = 99;  ///< TransformerEngine's evaluation stage; its order matters in two quirks only
};

}  // namespace cynosure
