// SPDX-License-Identifier: Apache-2.0
// tests/cpp/io_environment_test.cpp: variables to settings, and the grammar of contracts.
#include <gtest/gtest.h>

#include <cynosure/errors.hpp>

#include "io/environment.hpp"

namespace cynosure::io {
namespace {

Settings settings(std::string_view name, std::string_view value) {
  const std::array variables{Variable{name, value}};
  return settings_from_environment(variables, Settings());
}

/// The message of the error, or "" for none.
std::string refusal(std::string_view name, std::string_view value) {
  try {
    static_cast<void>(settings(name, value));
  } catch (const InvalidField& error) {
    EXPECT_EQ(error.field(), name);
    return error.what();
  }
  return "";
}

TEST(Environment, SwitchesTakeTheirBackendsAway) {
  const auto off = [](std::string_view name) { return BackendSet::all() - settings(name, "0").enabled(); };
  EXPECT_EQ(off("NVTE_FLASH_ATTN"), kFlashBackends);
  EXPECT_EQ(off("NVTE_FLASH_ATTN_V2"), Backend::flash2 | Backend::aten_flash);
  EXPECT_EQ(off("NVTE_FLASH_ATTN_V3"), BackendSet(Backend::flash3));
  EXPECT_EQ(off("NVTE_FLASH_ATTN_V4"), BackendSet(Backend::flash4));
  EXPECT_EQ(off("NVTE_FUSED_ATTN"), kCudnnBackends);
  EXPECT_EQ(off("NVTE_UNFUSED_ATTN"), BackendSet(Backend::unfused));
}

TEST(Environment, ASwitchNeverGivesABackendBack) {
  const Settings base = Settings().with_enabled(Backend::unfused);
  const std::array variables{Variable{"NVTE_FLASH_ATTN", "1"}, Variable{"NVTE_FUSED_ATTN", "1"}};
  EXPECT_EQ(settings_from_environment(variables, base), base);
}

TEST(Environment, NumbersAreReadAsPythonDoes) {
  for (const std::string_view on : {"1", " 1\n", "+1", "-1", "007", "1_000", "0_1",
                                    "\x1c"
                                    "5"})
    EXPECT_EQ(settings("NVTE_FUSED_ATTN", on), Settings()) << on;
  for (const std::string_view off : {"0", "-0", "00", "0_0", "\t0 "})
    EXPECT_EQ(settings("NVTE_FUSED_ATTN", off).enabled(), BackendSet::all() - kCudnnBackends) << off;
  for (const std::string_view bad :
       {"", " ", "true", "yes", "1.0", "1e3", "0x1", "_1", "1_", "1__0", "+", "- 1", "1 1", "\xc3\xa9"})
    EXPECT_NE(refusal("NVTE_FUSED_ATTN", bad), "") << bad;
  EXPECT_NE(refusal("NVTE_FUSED_ATTN", std::string(5000, '1')), "");
}

TEST(Environment, AnErrorNamesVariableValueAndWhatIsAccepted) {
  EXPECT_EQ(refusal("NVTE_FLASH_ATTN", "true"), "NVTE_FLASH_ATTN: got 'true', expected an integer: 0 switches it off");
  EXPECT_EQ(refusal("CYNOSURE_POLICY", "fast"), "CYNOSURE_POLICY: got 'fast', expected fastest or te");
  EXPECT_EQ(refusal("CYNOSURE_CHECK", "2"), "CYNOSURE_CHECK: got '2', expected 0 or 1");
  EXPECT_EQ(refusal("CYNOSURE_CPU_ISA", "sse"), "CYNOSURE_CPU_ISA: got 'sse', expected generic, avx2, avx512 or amx");
  EXPECT_EQ(refusal("CYNOSURE_LOG", "all"),
            "CYNOSURE_LOG: got 'all', expected decisions, reasons or both, with a comma");
  EXPECT_NE(refusal("NVTE_DEBUG", "x"), "");
  EXPECT_NE(refusal("NVTE_DEBUG_LEVEL", "x"), "");
  EXPECT_NE(refusal("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "x"), "");
  EXPECT_NE(refusal("CYNOSURE_BACKEND", "flash"), "");
}

TEST(Environment, TheRestBecomesSettings) {
  EXPECT_TRUE(settings("NVTE_UnfusedDPA_Emulate_FP8", "1").on(Settings::emulate_fp8));
  EXPECT_FALSE(settings("NVTE_UnfusedDPA_Emulate_FP8", " 1").on(Settings::emulate_fp8)) << "text, not a number";
  EXPECT_TRUE(settings("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0").deterministic());
  EXPECT_FALSE(settings("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1").deterministic());
  EXPECT_EQ(settings("CYNOSURE_POLICY", "te").policy(), Policy::te);
  EXPECT_EQ(settings("CYNOSURE_BACKEND", "flash3,cudnn"),
            Settings().with_contract(Contract::require, {Backend::flash3, Backend::cudnn}));
  for (const std::string_view log : {"", "decisions", "decisions, reasons"})
    EXPECT_EQ(settings("CYNOSURE_LOG", log), Settings());
  EXPECT_EQ(settings("CYNOSURE_CPU_ISA", "avx512"), Settings());
  EXPECT_EQ(settings("CYNOSURE_CHECK", "1"), Settings());
  EXPECT_EQ(settings("NVTE_FUSED_ATTN_BACKEND", "nonsense"), Settings()) << "no code reads it";
  EXPECT_EQ(settings("PATH", "0"), Settings());
}

TEST(Environment, ItsNamesAreWhatItReads) {
  for (const std::string_view name : environment_names()) {
    if (name == "NVTE_UnfusedDPA_Emulate_FP8") continue;  // takes any text
    EXPECT_NE(refusal(name, "no such value"), "") << name;
  }
}

TEST(Environment, SelectionReadsNumbersOfFp8OnlyWithFp8) {
  for (const std::string_view name :
       {"NVTE_FP8_DPA_BWD", "NVTE_DPA_FP8CS_O_in_F16", "NVTE_DPA_FP8DS_AMAX_HISTLEN", "NVTE_DPA_FP8DS_REDUCE_AMAX"}) {
    const std::array variables{Variable{name, "on"}};
    EXPECT_EQ(selection_switches(variables, Settings(), false), Settings());
    EXPECT_THROW(static_cast<void>(selection_switches(variables, Settings(), true)), InvalidField);
    EXPECT_EQ(settings_from_environment(variables, Settings()), Settings());
  }
  const std::array ours{Variable{"CYNOSURE_POLICY", "neither"}, Variable{"NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0"}};
  EXPECT_EQ(selection_switches(ours, Settings(), true), Settings());
}

TEST(Contract, ReadsTheGrammar) {
  using enum Backend;
  const auto is = [](std::string_view text, Contract contract, const BackendList& named) {
    EXPECT_EQ(parse_contract(text), std::pair(contract, named)) << text;
  };
  is("auto", Contract::automatic, {});
  is(" auto ", Contract::automatic, {});
  is("flash3", Contract::require, {flash3});
  is("flash3,cudnn", Contract::require, {flash3, cudnn});
  is(" flash3 , cudnn ", Contract::require, {flash3, cudnn});
  is("require(cpu)", Contract::require, {cpu});
  is(" require ( cpu , unfused ) ", Contract::require, {cpu, unfused});
  is("prefer(flash4,flash3,cudnn_fp8)", Contract::prefer, {flash4, flash3, cudnn_fp8});
}

TEST(Contract, RefusesTheRest) {
  for (const std::string_view text : {"",
                                      " ",
                                      ",",
                                      "flash",
                                      "Flash3",
                                      "AUTO",
                                      "auto,cpu",
                                      "cpu,",
                                      ",cpu",
                                      "cpu cudnn",
                                      "cpu,cpu",
                                      "prefer",
                                      "prefer()",
                                      "prefer(cpu",
                                      "prefer cpu",
                                      "prefer(cpu))",
                                      "prefer(prefer(cpu))",
                                      "prefer(auto)",
                                      "require()",
                                      "demand(cpu)",
                                      "prefer(cpu),cudnn"}) {
    try {
      static_cast<void>(parse_contract(text, "backend"));
      ADD_FAILURE() << text;
    } catch (const InvalidField& error) {
      EXPECT_EQ(error.field(), "backend");
      EXPECT_NE(std::string_view(error.what()).find("prefer(NAME,...)"), std::string_view::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace cynosure::io
