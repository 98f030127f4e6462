// SPDX-License-Identifier: Apache-2.0
// core/settings.cpp: the list in the word is the rank of a partial permutation.
#include <stdexcept>

#include <cynosure/settings.hpp>

namespace cynosure {
namespace {

constexpr std::uint64_t falling_factorial(std::uint64_t n, std::uint64_t k) {
  std::uint64_t product = 1;
  for (std::uint64_t i = 0; i < k; ++i) product *= n - i;
  return product;
}

/// Number of ordered lists that are shorter than `length`; lists are ranked by length, then position by position.
constexpr std::uint64_t lists_shorter_than(std::uint64_t length) {
  std::uint64_t count = 0;
  for (std::uint64_t k = 0; k < length; ++k) count += falling_factorial(kBackendCount, k);
  return count;
}
constexpr std::uint64_t kListCount = lists_shorter_than(kBackendCount + 1);
static_assert(kListCount <= (std::uint64_t{1} << 20U), "the rank fits its 20 bits");

std::uint64_t rank(const BackendList& list) {
  std::uint64_t result = 0;
  BackendSet used;
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::uint64_t smaller_unused = 0;
    for (std::uint8_t b = 0; b < static_cast<std::uint8_t>(list[i]); ++b)
      if (!used.contains(static_cast<Backend>(b))) ++smaller_unused;
    result += smaller_unused * falling_factorial(kBackendCount - i - 1, list.size() - i - 1);
    used |= list[i];
  }
  return lists_shorter_than(list.size()) + result;
}

BackendList unrank(std::uint64_t number) {
  std::uint64_t length = 0;
  while (length < kBackendCount && number >= lists_shorter_than(length + 1)) ++length;
  number -= lists_shorter_than(length);
  BackendList list;
  BackendSet used;
  for (std::uint64_t i = 0; i < length; ++i) {
    const std::uint64_t block = falling_factorial(kBackendCount - i - 1, length - i - 1);
    std::uint64_t skip = number / block;
    number %= block;
    for (const Backend backend : BackendSet::all()) {
      if (used.contains(backend)) continue;
      if (skip-- == 0) {
        list.push_back(backend);
        used |= backend;
        break;
      }
    }
  }
  return list;
}

std::string join(const BackendList& list) {
  std::string text;
  for (const Backend backend : list) {
    if (!text.empty()) text += ", ";
    text += name(backend);
  }
  return text;
}

}  // namespace

Settings Settings::from_word(std::uint64_t word) {
  Settings settings;
  settings.word_ = word;
  const std::uint64_t version = settings.bits(0, 6);
  if (version != kLayoutVersion)
    throw std::invalid_argument("settings word of layout version " + std::to_string(version) +
                                ", this release reads version " + std::to_string(kLayoutVersion) +
                                "; export or compile the model again with this release");
  const bool sound = settings.bits(kEnabledShift, 10) < (1U << kBackendCount) &&
                     settings.bits(kContractShift, 2) <= 2 && settings.bits(kListShift, 20) < kListCount &&
                     settings.bits(kPolicyShift, 3) <= 1 && settings.bits(kPrecisionShift, 2) <= 2 &&
                     settings.bits(kSwitchShift, 4) < 8 &&
                     (settings.contract() == Contract::automatic) == (settings.bits(kListShift, 20) == 0);
  if (!sound)
    throw std::invalid_argument("settings word " + std::to_string(word) +
                                " has a field out of range; take it from Settings.word");
  return settings;
}

BackendList Settings::named() const { return unrank(bits(kListShift, 20)); }

bool Settings::names(Backend backend) const {
  return contract() != Contract::automatic && named().set().contains(backend);
}

Settings Settings::with_contract(Contract contract, const BackendList& named) const {
  if ((contract == Contract::automatic) != named.empty())
    throw std::invalid_argument("contract " + std::string(kContractNames[static_cast<std::size_t>(contract)]) +
                                (named.empty() ? " needs at least one backend" : " takes no backends"));
  if (static_cast<std::size_t>(named.set().size()) != named.size())
    throw std::invalid_argument("a backend is named twice: " + join(named));
  return with(kContractShift, 2, static_cast<unsigned>(contract)).with(kListShift, 20, rank(named));
}

std::string Settings::describe() const {
  std::string text = "policy=" + std::string(kPolicyNames[static_cast<std::size_t>(policy())]);
  const BackendSet off = BackendSet::all() - enabled();
  BackendList off_list;
  for (const Backend backend : off) off_list.push_back(backend);
  text += off.empty() ? " enabled=all" : " switched_off=(" + join(off_list) + ")";
  text += " contract=" + std::string(kContractNames[static_cast<std::size_t>(contract())]);
  if (contract() != Contract::automatic) text += "(" + join(named()) + ")";
  text += deterministic() ? " deterministic=yes" : " deterministic=no";
  text +=
      " float32_matmul_precision=" + std::string(kMatmulPrecisionNames[static_cast<std::size_t>(matmul_precision())]);
  if (on(emulate_fp8)) text += " emulate_fp8=yes";
  if (on(onnx_export)) text += " onnx_export=yes";
  if (on(enforce)) text += " enforce=yes";
  if (rules_digest() != 0) text += " rule_set=" + std::to_string(rules_digest());
  return text + " (layout " + std::to_string(bits(0, 6)) + ")";
}

}  // namespace cynosure
