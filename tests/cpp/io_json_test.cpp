// SPDX-License-Identifier: Apache-2.0
// tests/cpp/io_json_test.cpp: values to JSON and back, and what reading refuses.
#include <gtest/gtest.h>

#include <cynosure/errors.hpp>
#include <cynosure/fields.hpp>
#include <cynosure/select.hpp>

#include "io/json.hpp"

namespace cynosure::io {
namespace {

/// The field named by the error that reading throws; "" when it throws none.
template <class Read>
std::string refused(Read read, std::string_view text) {
  try {
    static_cast<void>(read(text));
  } catch (const InvalidField& error) {
    EXPECT_TRUE(std::string_view(error.what()).starts_with(error.field())) << error.what();
    return error.field();
  }
  return "";
}

/// A value of a field that is not its default.
std::int64_t another(const FieldInfo& field, std::int64_t usual) {
  switch (field.type) {
    case FieldType::integer:
      return usual == field.max ? usual - 1 : usual + 1;
    case FieldType::version:
      return static_cast<std::int64_t>(Version(9, 19, 1, Version::Phase::post, 2).bits());
    case FieldType::backends:
      return BackendSet{Backend::cudnn, Backend::unfused}.bits();
    case FieldType::boolean:
    case FieldType::choice:
      break;
  }
  return usual == 0 ? 1 : 0;
}

bool of_problem(const FieldInfo& field) { return static_cast<std::size_t>(field.field) < kFirstDeviceField; }
bool of_device(const FieldInfo& field) {
  return !of_problem(field) && static_cast<std::size_t>(field.field) < kFirstSettingsField;
}

TEST(JsonProblem, DefaultsAreLeftOut) { EXPECT_EQ(write(Problem()), "{}"); }

TEST(JsonProblem, NamesAndValuesAreThoseOfTheFields) {
  Problem problem;
  problem.features.heads = 32;
  problem.features.dtype = DType::float16;
  problem.features.causal = true;
  problem.lengths.seqlen_k = 2147483647;
  EXPECT_EQ(write(problem), R"({"seqlen_k":2147483647,"heads":32,"dtype":"float16","causal":true})");
}

TEST(JsonProblem, EveryFieldComesBack) {
  Problem all;
  for (const FieldInfo& field : fields()) {
    if (!of_problem(field)) continue;
    Problem one;
    const std::int64_t changed = another(field, value(field.field, one, {}, {}));
    set_value(one, field.field, changed);
    set_value(all, field.field, changed);
    EXPECT_EQ(read_problem(write(one)), one) << field.name;
    EXPECT_NE(write(one), "{}") << field.name;
  }
  EXPECT_EQ(read_problem(write(all)), all);
  EXPECT_EQ(write(read_problem(write(all))), write(all));
}

TEST(JsonProblem, ShortNamesAreRead) {
  const Problem problem = read_problem(R"({"layout": "thd", "dtype": "bf16"})");
  EXPECT_EQ(problem.features.layout, Layout::thd_thd_thd);
  EXPECT_EQ(write(problem), R"({"layout":"thd_thd_thd"})");
}

TEST(JsonProblem, RefusesEveryKindOfBadInput) {
  const auto field = [](std::string_view text) { return refused(read_problem, text); };
  for (const std::string_view text :
       {"", "null", "[]", "3", "{", "{} {}", "{\"heads\":01}", "{\"heads\":NaN}", "{\"heads\":Infinity}", "{'heads':1}",
        "{\"heads\":1,}", "{\"head\":1}", "{\"sm\":90}", "{\"policy\":\"te\"}", "{\"heads\":1,\"heads\":2}",
        "{\"heads\":1,\"he\\u0061ds\":1}", "/**/{}", "{\"\xff\":1}"})
    EXPECT_EQ(field(text), "problem") << text;
  for (const std::string_view text : {"1.0", "1e3", "1E0", "-0.0", "9223372036854775808", "-9223372036854775809",
                                      "1e999", "0", "-1", "2147483648", "\"1\"", "true", "null", "[1]", "{}"})
    EXPECT_NE(field("{\"heads\":" + std::string(text) + "}"), "") << text;
  for (const std::string_view text : {"1", "0", "\"true\"", "null"})
    EXPECT_EQ(field("{\"causal\":" + std::string(text) + "}"), "causal") << text;
  for (const std::string_view text : {"0", "\"bfloat\"", "\"\"", "null", "[\"bfloat16\"]"})
    EXPECT_EQ(field("{\"dtype\":" + std::string(text) + "}"), "dtype") << text;
  EXPECT_EQ(field(std::string(1000, '[')), "problem");
  EXPECT_EQ(field("{\"heads\":" + std::string(100, '[') + std::string(100, ']') + "}"), "problem");
}

TEST(JsonProblem, AnErrorSaysWhatWasGivenAndWhatIsAllowed) {
  const auto message = [](std::string_view text) -> std::string {
    try {
      static_cast<void>(read_problem(text));
    } catch (const InvalidField& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(R"({"heads":0})"), "heads: got 0, expected an integer from 1 up");
  EXPECT_EQ(message(R"({"heads":1e3})"), "heads: got 1e3, expected an integer of 64 bits in plain digits");
  EXPECT_EQ(message(R"({"align":5})"), "align: got 5, expected one of top_left, bottom_right");
  EXPECT_EQ(message(R"({"heads":1,"heads":1})"), "problem: has the key \"heads\" twice in one object");
  EXPECT_LT(message("{\"heads\":\"" + std::string(100000, 'x') + "\"}").size(), 300U);
}

TEST(JsonDevice, EveryFieldComesBack) {
  Device all;
  for (const FieldInfo& field : fields()) {
    if (!of_device(field)) continue;
    Device one;
    const std::int64_t changed = another(field, value(field.field, {}, one, {}));
    set_value(one, field.field, changed);
    set_value(all, field.field, changed);
    EXPECT_EQ(read_device(write(one)), one) << field.name;
  }
  EXPECT_EQ(read_device(write(all)), all);
  EXPECT_EQ(write(Device()), "{}");
}

TEST(JsonDevice, VersionsAreTextAndBuiltIsAList) {
  Device device = *named_device("h200");
  device.built = BackendSet{Backend::cpu, Backend::cudnn}.bits();
  const std::string text = write(device);
  EXPECT_NE(text.find(R"("built":["cpu","cudnn"])"), std::string::npos) << text;
  EXPECT_EQ(read_device(text), device);
  EXPECT_EQ(read_device(R"({"cudnn": "9.19"})").cudnn, Version(9, 19, 0));
}

TEST(JsonDevice, RefusesBadInput) {
  const auto field = [](std::string_view text) { return refused(read_device, text); };
  EXPECT_EQ(field(R"({"heads":1})"), "device");
  EXPECT_EQ(field(R"({"sm":1000})"), "sm");
  EXPECT_EQ(field(R"({"cudnn":9.19})"), "cudnn");
  EXPECT_EQ(field(R"({"cudnn":91900})"), "cudnn");
  EXPECT_EQ(field(R"({"cudnn":"new"})"), "cudnn");
  EXPECT_EQ(field(R"({"built":"cpu"})"), "built");
  EXPECT_EQ(field(R"({"built":["gpu"]})"), "built");
  EXPECT_EQ(field(R"({"built":["cpu","cpu"]})"), "built");
  EXPECT_EQ(field(R"({"built":[0]})"), "built");
}

TEST(JsonSettings, TheWordComesBack) {
  const Settings settings = Settings()
                                .with_policy(Policy::te)
                                .with_contract(Contract::prefer, {Backend::flash3, Backend::cudnn})
                                .with_deterministic(true)
                                .with_rules_digest(0xffff);
  EXPECT_EQ(read_settings(write(settings)), settings);
  EXPECT_EQ(read_settings(R"({"word":"0x0000000000003fc1"})"), Settings());
  EXPECT_EQ(read_settings(R"({"word":"0x3FC1","describe":")" + Settings().describe() + "\"}"), Settings());
}

TEST(JsonSettings, RefusesBadWords) {
  const auto field = [](std::string_view text) { return refused(read_settings, text); };
  for (const std::string_view word : {"\"\"", "\"0x\"", "\"3fc1\"", "\"0x3fc1 \"", "\"0x-1\"",
                                      "\"0x10000000000003fc1\"", "\"0x3fc2\"", "\"0x0\"", "16321", "null"})
    EXPECT_EQ(field("{\"word\":" + std::string(word) + "}"), "word") << word;
  EXPECT_EQ(field("{}"), "settings");
  EXPECT_EQ(field(R"({"word":"0x3fc1","words":1})"), "settings");
  EXPECT_EQ(field(R"({"word":"0x3fc1","describe":"policy=te"})"), "describe") << "it disagrees with the word";
}

// ---- decisions --------------------------------------------------------------------------------------------------

std::vector<Decision> decisions() {
  const Problem usual = read_problem(
      R"({"heads":32,"kv_heads":8,"seqlen_q":4096,"seqlen_k":4096,"head_dim_qk":128,"head_dim_v":128,"causal":true})");
  Problem hard = usual;
  hard.features.dropout = true;
  hard.features.bias_type = BiasType::alibi;
  hard.features.align = Align::top_left;
  hard.lengths.seqlen_k = 4000;
  const Settings none = Settings().with_enabled({});
  const Settings wish = Settings().with_policy(Policy::te).with_contract(Contract::prefer, {Backend::flash2});
  std::vector<Decision> all;
  for (const std::string_view device : {"cpu", "v100", "a100", "h200", "b200", "rtx5090"})
    for (const Problem& problem : {usual, hard})
      for (const Settings settings : {Settings(), none, wish})
        all.push_back(select(problem, settings, *named_device(device)));
  return all;
}

TEST(JsonDecision, ComesBackWholeAndAsTheSameText) {
  for (const Decision& decision : decisions()) {
    const std::string text = write(decision);
    EXPECT_EQ(text.find('\n'), std::string::npos);
    EXPECT_EQ(read_decision(text), decision) << text;
    EXPECT_EQ(write(read_decision(text)), text);
  }
}

/// `text` with the first `old` replaced.
std::string changed(std::string text, std::string_view old, std::string_view now) {
  const std::size_t at = text.find(old);
  EXPECT_NE(at, std::string::npos) << old << " in " << text;
  return text.replace(at, old.size(), now);
}

TEST(JsonDecision, ADecisionThatWouldNotBeMadeIsRefused) {
  const std::string text =
      write(select(read_problem(R"({"causal":true,"seqlen_q":512,"seqlen_k":512})"), {}, *named_device("h200")));
  const auto field = [](std::string_view given) { return refused(read_decision, given); };
  EXPECT_EQ(field(text), "");
  EXPECT_EQ(field(changed(text, R"("backend":"cudnn")", R"("backend":null)")), "backend");
  EXPECT_EQ(field(changed(text, R"("eligible":["cudnn",)", R"("eligible":[)")), "eligible");
  EXPECT_EQ(field(changed(text, R"("order":["cudnn",)", R"("order":[)")), "order");
  EXPECT_EQ(field(changed(text, R"("rule":"cpu.device")", R"("rule":"cpu.dtype")")), "cpu");
  EXPECT_EQ(field(changed(text, R"("undecided":false)", R"("undecided":true)")), "undecided");
  EXPECT_NE(field(changed(text, R"("causal":true)", R"("score_mod":true)")), "");
  EXPECT_EQ(field(changed(text, R"("way":"not_eligible")", R"("way":"unwilling")")), "way");
  EXPECT_EQ(field(changed(text, R"("backend":)", R"("back_end":)")), "decision");
  const std::string undescribed = changed(text, ",\"describe\":\"" + Settings().describe() + "\"", "");
  EXPECT_EQ(field(changed(undescribed, R"("word":"0x0000)", R"("word":"0x4444)")), "settings") << "an unknown rule set";
}

TEST(JsonReason, ComesBack) {
  Reason reason{Backend::flash3, "flash3.arch", Way::not_eligible, {{"sm", "8.0"}}, "compute \"capability\" 9.0\n",
                "\xc2\xa7 1.8",  true,          Fix{"a GPU", true}};
  EXPECT_EQ(read_reason(write(reason)), reason);
  reason.fix.reset();
  EXPECT_EQ(read_reason(write(reason)), reason);
  EXPECT_EQ(refused(read_reason, R"({"backend":"flash5"})"), "backend");
  EXPECT_EQ(refused(read_reason, R"({"rule":"x"})"), "reason");
}

}  // namespace
}  // namespace cynosure::io
