// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cynosure/package_version.hpp>

#include "detect/flash.hpp"

namespace cynosure::detect {
namespace {

Version v(const char* text) { return Version::parse(text).value(); }

TEST(RefuseFlash2, TheIntervalIsThatOfTheSpecification) {
  for (const char* text : {"2.1.1", "2.5.7", "2.7.3", "2.8.3", "2.8.3.post1", "2.8.3+cu13torch2.11"})
    EXPECT_EQ(refuse_flash2(v(text), 90), std::nullopt) << text;
  for (const char* text : {"1.0.9", "2.1.0", "2.1.1rc1", "2.8.4", "2.8.4+local", "2.8.4.post1", "3.0.0"})
    EXPECT_NE(refuse_flash2(v(text), 90), std::nullopt) << text;
}

TEST(RefuseFlash2, BlackwellNeedsANewerOne) {
  EXPECT_EQ(refuse_flash2(v("2.7.2"), 0), std::nullopt);
  EXPECT_EQ(refuse_flash2(v("2.7.2"), 90), std::nullopt);
  EXPECT_NE(refuse_flash2(v("2.7.2.post1"), 100), std::nullopt);
  EXPECT_EQ(refuse_flash2(v("2.7.3"), 100), std::nullopt);
  EXPECT_NE(refuse_flash2(v("2.7.2"), 120), std::nullopt);
}

TEST(RefuseFlash2, TheReasonNamesTheVersionAndTheInterval) {
  EXPECT_EQ(refuse_flash2(v("2.8.4"), 90),
            "flash-attn 2.8.4 is not supported: need 2.1.1 or newer and older than 2.8.4");
  EXPECT_EQ(
      refuse_flash2(v("2.7.2"), 103),
      "flash-attn 2.7.2 is not supported on compute capability 10.0 and newer: need 2.7.3 or newer and older than "
      "2.8.4");
  EXPECT_EQ(refuse_flash2({}, 90), "flash-attn is not installed");
}

TEST(RefuseFlash4, NeedsCutlassDsl) {
  EXPECT_EQ(refuse_flash4(v("4.0.0b36"), v("4.3.0")), std::nullopt);
  EXPECT_EQ(refuse_flash4(v("4.0.0b36"), {}), "flash-attn-4 4.0.0b36 needs nvidia-cutlass-dsl, which is not installed");
  EXPECT_EQ(refuse_flash4({}, v("4.3.0")), "flash-attn-4 is not installed");
}

TEST(RefuseFlash4, OneReleaseNeedsANewCutlassDsl) {
  EXPECT_EQ(refuse_flash4(v("4.0.0b24"), v("4.6.1")),
            "flash-attn-4 4.0.0b24 needs nvidia-cutlass-dsl 4.6.2 or newer, found 4.6.1");
  EXPECT_EQ(refuse_flash4(v("4.0.0b24"), v("4.6.2")), std::nullopt);
  EXPECT_EQ(refuse_flash4(v("4.0.0b23"), v("4.6.1")), std::nullopt);
  EXPECT_EQ(refuse_flash4(v("4.0.0b25"), v("4.6.1")), std::nullopt);
}

}  // namespace
}  // namespace cynosure::detect
