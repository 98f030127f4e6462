// SPDX-License-Identifier: Apache-2.0
// tests/cpp/settings_test.cpp: the settings word: every field comes back, and nothing else is accepted.
#include <set>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include <cynosure/settings.hpp>

namespace cynosure {
namespace {

/// All ordered lists of distinct backends, shortest first.
void lists_from(const BackendList& prefix, std::vector<BackendList>& all) {
  all.push_back(prefix);
  for (const Backend backend : BackendSet::all()) {
    if (prefix.set().contains(backend)) continue;
    BackendList longer = prefix;
    longer.push_back(backend);
    lists_from(longer, all);
  }
}

std::string refusal(std::uint64_t word) {
  try {
    static_cast<void>(Settings::from_word(word));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Settings, DefaultsAreFastestAndEverythingEnabled) {
  constexpr Settings settings;
  EXPECT_EQ(settings.enabled(), BackendSet::all());
  EXPECT_EQ(settings.policy(), Policy::fastest);
  EXPECT_EQ(settings.contract(), Contract::automatic);
  EXPECT_TRUE(settings.named().empty());
  EXPECT_FALSE(settings.deterministic());
  EXPECT_EQ(settings.matmul_precision(), MatmulPrecision::highest);
  EXPECT_EQ(settings.rules_digest(), 0);
  EXPECT_EQ(settings.word() & 0x3fU, Settings::kLayoutVersion);
}

TEST(Settings, EveryContractListHasItsOwnWord) {
  std::vector<BackendList> lists;
  lists_from({}, lists);
  ASSERT_EQ(lists.size(), 109601U);
  std::set<std::uint64_t> words;
  for (const BackendList& list : lists) {
    const Settings settings = Settings().with_contract(list.empty() ? Contract::automatic : Contract::require, list);
    EXPECT_TRUE(words.insert(settings.word()).second);
    ASSERT_EQ(Settings::from_word(settings.word()).named(), list);
  }
}

TEST(Settings, FieldsDoNotDisturbEachOther) {
  const Settings all = Settings()
                           .with_enabled({Backend::cudnn, Backend::unfused})
                           .with_contract(Contract::prefer, {Backend::unfused, Backend::cpu})
                           .with_policy(Policy::te)
                           .with_deterministic(true)
                           .with_matmul_precision(MatmulPrecision::medium)
                           .with_switch(Settings::emulate_fp8, true)
                           .with_switch(Settings::enforce, true)
                           .with_rules_digest(0xffff);
  EXPECT_EQ(all.enabled(), BackendSet({Backend::cudnn, Backend::unfused}));
  EXPECT_EQ(all.contract(), Contract::prefer);
  EXPECT_EQ(all.named(), BackendList({Backend::unfused, Backend::cpu}));
  EXPECT_EQ(all.policy(), Policy::te);
  EXPECT_TRUE(all.deterministic());
  EXPECT_EQ(all.matmul_precision(), MatmulPrecision::medium);
  EXPECT_TRUE(all.on(Settings::emulate_fp8) && all.on(Settings::enforce) && !all.on(Settings::onnx_export));
  EXPECT_EQ(all.rules_digest(), 0xffff);
  EXPECT_EQ(Settings::from_word(all.word()), all);
  const Settings undone = all.with_enabled(BackendSet::all())
                              .with_contract(Contract::automatic, {})
                              .with_policy(Policy::fastest)
                              .with_deterministic(false)
                              .with_matmul_precision(MatmulPrecision::highest)
                              .with_switch(Settings::emulate_fp8, false)
                              .with_switch(Settings::enforce, false)
                              .with_rules_digest(0);
  EXPECT_EQ(undone, Settings());
}

TEST(Settings, EveryEnabledSetComesBack) {
  for (std::uint32_t bits = 0; bits < 256; ++bits)
    EXPECT_EQ(Settings::from_word(Settings().with_enabled(BackendSet::from_bits(bits)).word()).enabled().bits(), bits);
}

TEST(Settings, AWordOfAnotherLayoutIsRefusedWithBothVersions) {
  for (std::uint64_t version = 0; version < 64; ++version) {
    if (version == Settings::kLayoutVersion) continue;
    const std::string text = refusal((Settings().word() & ~std::uint64_t{0x3f}) | version);
    EXPECT_NE(text.find("layout version " + std::to_string(version) + ","), std::string::npos) << text;
    EXPECT_NE(text.find("version " + std::to_string(Settings::kLayoutVersion) + ";"), std::string::npos) << text;
    EXPECT_NE(text.find("again"), std::string::npos) << text;
  }
}

TEST(Settings, ImpossibleFieldsAreRefused) {
  const std::uint64_t good = Settings().word();
  const std::uint64_t named = Settings().with_contract(Contract::prefer, {Backend::cpu}).word();
  const auto bits = [](std::uint64_t value, unsigned shift) { return value << shift; };
  EXPECT_NE(refusal(good | bits(1, 14)), "accepted") << "a ninth backend";
  EXPECT_NE(refusal(good | bits(1, 15)), "accepted") << "a tenth backend";
  EXPECT_NE(refusal(named | bits(3, 16)), "accepted") << "a fourth contract";
  EXPECT_NE(refusal(good | bits(1, 16)), "accepted") << "prefer nothing";
  EXPECT_NE(refusal(good | bits(1, 18)), "accepted") << "a list without a contract";
  EXPECT_NE(refusal((named & ~bits(0xfffff, 18)) | bits(109601, 18)), "accepted") << "one list too many";
  EXPECT_EQ(refusal((named & ~bits(0xfffff, 18)) | bits(109600, 18)), "accepted") << "the last list";
  EXPECT_NE(refusal(good | bits(2, 38)), "accepted") << "a third policy";
  EXPECT_NE(refusal(good | bits(3, 42)), "accepted") << "a fourth precision";
  EXPECT_NE(refusal(good | bits(8, 44)), "accepted") << "a fourth switch";
  EXPECT_NE(refusal(0), "accepted");
  EXPECT_NE(refusal(~std::uint64_t{0}), "accepted");
}

TEST(Settings, AContractNeedsDistinctBackends) {
  EXPECT_THROW(static_cast<void>(Settings().with_contract(Contract::require, {})), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(Settings().with_contract(Contract::automatic, {Backend::cpu})), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(Settings().with_contract(Contract::prefer, {Backend::cpu, Backend::cpu})),
               std::invalid_argument);
}

TEST(Settings, NamesOnlyWhatTheContractNames) {
  const Settings settings = Settings().with_contract(Contract::prefer, {Backend::flash3, Backend::cudnn});
  for (const Backend backend : BackendSet::all())
    EXPECT_EQ(settings.names(backend), backend == Backend::flash3 || backend == Backend::cudnn);
  EXPECT_FALSE(Settings().names(Backend::cpu));
}

TEST(Settings, DescribeIsOneReadableLine) {
  EXPECT_EQ(Settings().describe(),
            "policy=fastest enabled=all contract=auto deterministic=no float32_matmul_precision=highest (layout 1)");
  EXPECT_EQ(Settings()
                .with_enabled(BackendSet::all() - (Backend::cpu | Backend::flash2))
                .with_contract(Contract::prefer, {Backend::flash3, Backend::cudnn})
                .with_policy(Policy::te)
                .with_deterministic(true)
                .with_matmul_precision(MatmulPrecision::high)
                .with_switch(Settings::emulate_fp8, true)
                .with_switch(Settings::onnx_export, true)
                .with_switch(Settings::enforce, true)
                .with_rules_digest(7)
                .describe(),
            "policy=te switched_off=(cpu, flash2) contract=prefer(flash3, cudnn) deterministic=yes "
            "float32_matmul_precision=high emulate_fp8=yes onnx_export=yes enforce=yes rule_set=7 (layout 1)");
}

}  // namespace
}  // namespace cynosure
