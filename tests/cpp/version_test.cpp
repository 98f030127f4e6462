// SPDX-License-Identifier: Apache-2.0
// tests/cpp/version_test.cpp: versions of packages in PEP 440's order.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <cynosure/package_version.hpp>

namespace cynosure {
namespace {

Version parsed(std::string_view text) {
  const std::optional<Version> version = Version::parse(text);
  EXPECT_TRUE(version) << text;
  return version.value_or(Version());
}

TEST(Version, ReadsReleasesAndPhases) {
  EXPECT_EQ(parsed("2.8.3"), Version(2, 8, 3));
  EXPECT_EQ(parsed("9.19"), Version(9, 19, 0));
  EXPECT_EQ(parsed("3"), Version(3, 0, 0));
  EXPECT_EQ(parsed("3.0.0b1"), Version(3, 0, 0, Version::Phase::beta, 1));
  EXPECT_EQ(parsed("3.0b1"), Version(3, 0, 0, Version::Phase::beta, 1));
  EXPECT_EQ(parsed("1.2.3a4"), Version(1, 2, 3, Version::Phase::alpha, 4));
  EXPECT_EQ(parsed("1.2.3rc4"), Version(1, 2, 3, Version::Phase::candidate, 4));
  EXPECT_EQ(parsed("2.15.0.dev7"), Version(2, 15, 0, Version::Phase::dev, 7));
}

TEST(Version, ReadsPostReleasesAndDropsLocalParts) {
  EXPECT_EQ(parsed("2.8.3.post1"), Version(2, 8, 3, Version::Phase::post, 1));
  EXPECT_EQ(parsed("2.8.3-1"), Version(2, 8, 3, Version::Phase::post, 1));
  EXPECT_EQ(parsed("2.8.3+cu13torch2.11"), Version(2, 8, 3));
  EXPECT_EQ(parsed("2.8.3.post1+cu13"), Version(2, 8, 3, Version::Phase::post, 1));
}

TEST(Version, AFourthNumberIsABuild) {
  EXPECT_EQ(parsed("9.19.0.56"), Version(9, 19, 0));
  EXPECT_EQ(parsed("9.19.0.56.7"), Version(9, 19, 0));
}

TEST(Version, RefusesWhatIsNoVersion) {
  for (const std::string_view text : {"",
                                      " ",
                                      "x",
                                      ".1",
                                      "1.",
                                      "1.2.",
                                      "v1.2",
                                      "1.2.3 ",
                                      " 1.2.3",
                                      "-1",
                                      "1..2",
                                      "1.2.3c1",
                                      "1.2.3rc",
                                      "1.2.3.post",
                                      "1.2.3.dev",
                                      "1.2.3b1x",
                                      "4096",
                                      "1.4096",
                                      "99999999999999999999",
                                      "1.2.3rc65536",
                                      "+cu13",
                                      "1,2",
                                      "1.2.3.4b",
                                      "0x1",
                                      "0.0.0.dev0"})
    EXPECT_FALSE(Version::parse(text)) << "'" << text << "'";
  EXPECT_FALSE(Version::parse(std::string_view("1.2\0.3", 6)));
}

TEST(Version, OrdersAsPep440Does) {
  const std::vector<std::string> ascending{"0.0.1",   "1.0.0.dev0", "1.0.0.dev3", "1.0.0a0",       "1.0.0a1",
                                           "1.0.0b1", "1.0.0rc1",   "1.0.0",      "1.0.0.post1",   "1.0.0.post12",
                                           "1.0.1",   "1.2.0",      "1.10.0",     "2.0.0.dev0",    "2.0.0",
                                           "9.9.0",   "9.26.0",     "10.0.0b11",  "4095.0.0.post1"};
  for (std::size_t i = 0; i < ascending.size(); ++i)
    for (std::size_t j = 0; j < ascending.size(); ++j)
      EXPECT_EQ(parsed(ascending[i]) <=> parsed(ascending[j]), i <=> j) << ascending[i] << " " << ascending[j];
}

TEST(Version, NotInstalledIsBelowEverything) {
  EXPECT_FALSE(Version().installed());
  EXPECT_EQ(Version().to_string(), "");
  EXPECT_LT(Version(), parsed("0.0.1.dev0"));
}

TEST(Version, TextAndBitsRoundTrip) {
  for (const std::string_view text :
       {"2.8.3", "3.0.0b1", "1.2.3a4", "4.0.0rc2", "2.8.3.post1", "1.0.0.dev7", "4095.4095.4095"}) {
    const Version version = parsed(text);
    EXPECT_EQ(version.to_string(), text);
    EXPECT_EQ(parsed(version.to_string()), version);
    EXPECT_EQ(Version::from_bits(version.bits()), version);
  }
  EXPECT_EQ(parsed("2.1").to_string(), "2.1.0");
}

TEST(Version, PartsComeBack) {
  constexpr Version version(12, 34, 56, Version::Phase::candidate, 78);
  static_assert(version.major() == 12 && version.minor() == 34 && version.micro() == 56);
  static_assert(version.phase() == Version::Phase::candidate && version.number() == 78);
}

TEST(Version, CudnnIntegers) {
  EXPECT_EQ(Version::from_cudnn_integer(0), Version());
  EXPECT_EQ(Version::from_cudnn_integer(8907), Version(8, 9, 7));
  EXPECT_EQ(Version::from_cudnn_integer(8100), Version(8, 1, 0));
  EXPECT_EQ(Version::from_cudnn_integer(90000), Version(9, 0, 0));
  EXPECT_EQ(Version::from_cudnn_integer(90201), Version(9, 2, 1));
  EXPECT_EQ(Version::from_cudnn_integer(91002), Version(9, 10, 2));
  EXPECT_EQ(Version::from_cudnn_integer(92600), Version(9, 26, 0));
  EXPECT_EQ(Version::from_cudnn_integer(100100), Version(10, 1, 0));
}

}  // namespace
}  // namespace cynosure
