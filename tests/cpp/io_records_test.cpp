// SPDX-License-Identifier: Apache-2.0
// tests/cpp/io_records_test.cpp: one line in, one line out, whatever the line.
#include <gtest/gtest.h>

#include "io/document.hpp"
#include "io/records.hpp"

namespace cynosure::io {
namespace {

std::string te(std::string_view line) { return answer_record(line, Policy::te); }

/// The field an answer's error names; "" for an answer without one.
std::string error_field(std::string_view line) {
  const Document answer = parse(te(line), "answer");
  const Document* error = find(object(answer, "answer"), "error");
  return error == nullptr ? "" : text(required(object(*error, "error"), "field", "error"), "field");
}

TEST(Records, AnswersInThePublishedForm) {
  const std::string line = R"({"device": {"sm": 90, "cudnn": 91900, "fa2": "2.8.3"}, "env": {"NVTE_FUSED_ATTN": "0"},
      "params": {"qkv_layout": "bshd_bshd_bshd", "core_attention_bias_shape": null}, "expect": "ignored"})";
  EXPECT_EQ(te(line),
            R"({"expect":{"available":[true,false,true],"flash":true,"flash_version":"2.8.3","fused":false,)"
            R"("fused_backend":null,"unfused":false},"chosen":"flash2","reasons":{"cudnn":["cudnn.switched_off"],)"
            R"("cudnn_fp8":["cudnn_fp8.switched_off","cudnn_fp8.dtype","cudnn_fp8.shape"],"flash2":[],)"
            R"("flash3":["flash3.not_installed"],"flash4":["flash4.not_installed"],"unfused":[]}})");
  const std::string fastest = answer_record(line, Policy::fastest);
  EXPECT_TRUE(fastest.starts_with(R"({"chosen":"flash2","reasons":{"cudnn":[)")) << fastest;
}

TEST(Records, NothingLeftIsNoError) {
  const std::string answer = te(R"({"device": {"sm": 70}, "env": {"NVTE_UNFUSED_ATTN": "0"}})");
  EXPECT_NE(answer.find(R"("chosen":null)"), std::string::npos) << answer;
  EXPECT_NE(answer.find(R"("flash_version":null)"), std::string::npos) << answer;
}

TEST(Records, OnlyBackendsThatTransformerEngineKnowsAreAsked) {
  const std::string answer = answer_record(R"({"device": {"sm": 80}})", Policy::fastest);
  EXPECT_NE(answer.find(R"("chosen":"unfused")"), std::string::npos) << answer;
}

TEST(Records, TheBaseKeepsWhatARecordDoesNotSay) {
  const Settings base = Settings().with_enabled(Backend::unfused).with_policy(Policy::te).with_deterministic(true);
  const std::string line =
      R"({"device": {"sm": 90, "cudnn": 91900, "fa2": "2.3.0"}, "env": {"NVTE_FUSED_ATTN": "1"}, "params": {"core_attention_bias_shape": null}})";
  const std::string answer = answer_record(line, Policy::fastest, base);
  EXPECT_NE(answer.find("flash2.switched_off"), std::string::npos) << answer;
  EXPECT_EQ(answer.find("deterministic"), std::string::npos) << "determinism is the record's: " << answer;
}

struct Bad {
  std::string_view line;
  std::string_view field;
};

constexpr Bad kBad[]{
    {"", "record"},
    {"null", "record"},
    {"[]", "record"},
    {"{", "record"},
    {"{}", "record"},
    {"\xff\xfe", "record"},
    {R"({"device": {"sm": 90}} trailing)", "record"},
    {R"({"device": {"sm": 90}, "devices": 1})", "record"},
    {R"({"device": {"sm": 90}, "device": {"sm": 90}})", "record"},
    {R"({"device": {"sm": 90, "sm": 90}})", "record"},
    {R"({"device": []})", "device"},
    {R"({"device": {}})", "device"},
    {R"({"device": {"sm": 90, "fa5": "1"}})", "device"},
    {R"({"device": {"sm": "90"}})", "device.sm"},
    {R"({"device": {"sm": 90.0}})", "device.sm"},
    {R"({"device": {"sm": true}})", "device.sm"},
    {R"({"device": {"sm": 9}})", "device.sm"},
    {R"({"device": {"sm": 1000}})", "device.sm"},
    {R"({"device": {"sm": -90}})", "device.sm"},
    {R"({"device": {"sm": 99999999999999999999}})", "device.sm"},
    {R"({"device": {"sm": 90, "cudnn": 1000000}})", "device.cudnn"},
    {R"({"device": {"sm": 90, "cudnn": 12345}})", "device.cudnn"},
    {R"({"device": {"sm": 90, "cudnn": 0}})", "device.cudnn"},
    {R"({"device": {"sm": 90, "cudnn": "9.19.0"}})", "device.cudnn"},
    {R"({"device": {"sm": 90, "fa2": 2}})", "device.fa2"},
    {R"({"device": {"sm": 90, "fa3": "three"}})", "device.fa3"},
    {R"({"device": {"sm": 90, "fa4": null}})", "device.fa4"},
    {R"({"device": {"sm": 90}, "env": []})", "env"},
    {R"({"device": {"sm": 90}, "env": {"NVTE_FLASH_ATTN": 1}})", "NVTE_FLASH_ATTN"},
    {R"({"device": {"sm": 90}, "env": {"NVTE_FLASH_ATTN": "on"}})", "NVTE_FLASH_ATTN"},
    {R"({"device": {"sm": 90}, "env": {"NVTE_FP8_DPA_BWD": "on"}, "params": {"fp8": true, "fp8_recipe": {"kind": "delayed"}}})",
     "NVTE_FP8_DPA_BWD"},
    {R"({"device": {"sm": 90}, "params": null})", "params"},
    {R"({"device": {"sm": 90}, "params": {"heads": 3}})", "heads"},
    {R"({"device": {"sm": 90}, "params": {"kv_cache.is_paged": true}})", "params"},
    {R"({"device": {"sm": 90}, "params": {"num_heads": 0}})", "num_heads"},
    {R"({"device": {"sm": 90}, "params": {"num_heads": 1e1}})", "num_heads"},
    {R"({"device": {"sm": 90}, "params": {"num_heads": {"n": 1}}})", "num_heads"},
    {R"({"device": {"sm": 90}, "params": {"max_seqlen_q": 9223372036854775807}})", "max_seqlen_q"},
    {R"({"device": {"sm": 90}, "params": {"is_training": "yes"}})", "is_training"},
    {R"({"device": {"sm": 90}, "params": {"window_size": [1]}})", "window_size"},
    {R"({"device": {"sm": 90}, "params": {"window_size": [1, "2"]}})", "window_size"},
    {R"({"device": {"sm": 90}, "params": {"attention_dropout": "0.1"}})", "attention_dropout"},
    {R"({"device": {"sm": 90}, "params": {"attn_mask_type": "triangle"}})", "attn_mask_type"},
    {R"({"device": {"sm": 90}, "params": {"kv_cache": {}}})", "kv_cache"},
    {R"({"device": {"sm": 90}, "params": {"kv_cache": {"is_paged": true, "pages": 1}}})", "kv_cache.pages"},
    {R"({"device": {"sm": 90}, "params": {"kv_cache": {"is_paged": false}}})", "qkv_layout"},
    {R"({"device": {"sm": 90}, "params": {"fp8": true}})", "fp8_recipe"},
    {R"({"device": {"sm": 90}, "params": {"fp8_recipe": {"fp8_dpa": true}}})", "fp8_recipe"},
};

TEST(Records, EveryBadLineIsOneErrorThatNamesItsField) {
  for (const Bad& bad : kBad) {
    EXPECT_EQ(error_field(bad.line), bad.field) << bad.line << "\n" << te(bad.line);
    EXPECT_EQ(te(bad.line).find('\n'), std::string::npos);
  }
}

TEST(Records, AnErrorSaysWhatWasGivenAndWhatIsAllowed) {
  EXPECT_EQ(te(R"({"device": {"sm": 9}})"),
            R"({"error":{"field":"device.sm","message":"device.sm: got 9, expected an integer from 10 to 999"}})");
}

TEST(Records, DeepOrLongInputIsRefusedShortly) {
  EXPECT_LT(te(std::string(1000000, '[')).size(), 200U);
  EXPECT_LT(te(R"({"device": {"sm": ")" + std::string(1000000, 'x') + "\"}}").size(), 300U);
  EXPECT_LT(te(R"({"device": {"sm": )" + std::string(1000000, '9') + "}}").size(), 300U);
}

TEST(Records, ALineBreakInsideComesBackEscaped) {
  const std::string answer = te("{\"device\": {\"sm\": 90,\n \"a\\nb\": 1}}");
  EXPECT_EQ(answer.find('\n'), std::string::npos) << answer;
}

}  // namespace
}  // namespace cynosure::io
