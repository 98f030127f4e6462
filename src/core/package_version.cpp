// SPDX-License-Identifier: Apache-2.0
// core/package_version.cpp
#include <charconv>

#include <cynosure/package_version.hpp>

namespace cynosure {
namespace {

/// Reads a decimal number of at most `limit` from the front of `text`.
std::optional<unsigned> take_number(std::string_view& text, unsigned limit) {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number > limit) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::optional<Version> Version::parse(std::string_view text) {
  text = text.substr(0, text.find('+'));
  unsigned parts[3] = {0, 0, 0};
  for (std::size_t i = 0; i < 3; ++i) {
    const std::optional<unsigned> part = take_number(text, 0xfff);
    if (!part) return std::nullopt;
    parts[i] = *part;
    if (i == 2 || text.size() < 2 || text[0] != '.' || text[1] < '0' || text[1] > '9') break;
    text.remove_prefix(1);
  }
  // A fourth number, as cuDNN's wheels have, is a build number and plays no part.
  while (text.size() >= 2 && text[0] == '.' && text[1] >= '0' && text[1] <= '9') {
    text.remove_prefix(1);
    if (!take_number(text, ~0U)) return std::nullopt;
  }
  Phase phase = Phase::final;
  if (take(text, ".post") || take(text, "-")) {
    phase = Phase::post;
  } else if (take(text, ".dev")) {
    phase = Phase::dev;
  } else if (take(text, "rc")) {
    phase = Phase::candidate;
  } else if (take(text, "a")) {
    phase = Phase::alpha;
  } else if (take(text, "b")) {
    phase = Phase::beta;
  }
  unsigned number = 0;
  if (phase != Phase::final) {
    const std::optional<unsigned> given = take_number(text, 0xffff);
    if (!given) return std::nullopt;
    number = *given;
  }
  if (!text.empty()) return std::nullopt;
  const Version version(parts[0], parts[1], parts[2], phase, number);
  if (!version.installed()) return std::nullopt;
  return version;
}

std::string Version::to_string() const {
  if (!installed()) return {};
  std::string text = std::to_string(major()) + "." + std::to_string(minor()) + "." + std::to_string(micro());
  switch (phase()) {
    case Phase::dev:
      return text + ".dev" + std::to_string(number());
    case Phase::alpha:
      return text + "a" + std::to_string(number());
    case Phase::beta:
      return text + "b" + std::to_string(number());
    case Phase::candidate:
      return text + "rc" + std::to_string(number());
    case Phase::post:
      return text + ".post" + std::to_string(number());
    case Phase::final:
      break;
  }
  return text;
}

}  // namespace cynosure
