// SPDX-License-Identifier: Apache-2.0
// tests/cpp/io_rule_set_test.cpp: fault rows as JSON.
#include <gtest/gtest.h>

#include <cynosure/errors.hpp>

#include "io/json.hpp"

namespace cynosure::io {
namespace {

/// One row with this condition, or with this further member.
std::string row(std::string_view member) {
  return R"({"faults":[{"id":"x","library":"cudnn","backends":["cudnn"],)" + std::string(member) +
         R"("effect":"NaN"}]})";
}
std::string when(std::string_view conditions) { return row("\"when\":" + std::string(conditions) + ","); }

std::string refused(std::string_view text) {
  try {
    static_cast<void>(read_rule_set(text));
  } catch (const InvalidField& error) {
    return error.field();
  }
  return "";
}

TEST(JsonRuleSet, EveryMemberIsRead) {
  const RuleSet rules = read_rule_set(R"({"faults": [{
      "id": "mine", "library": "flash2", "since": "2.7", "until": "2.8.4", "sm": [80, 90],
      "backends": ["flash2", "aten_flash"], "policies": ["te", "fastest"],
      "when": {"training": true, "dtype": ["bfloat16", "float16"], "seqlen_k": {"not_multiple_of": 128}},
      "effect": "wrong", "link": "me/mine#1"}]})");
  const Fault expected{.id = "mine",
                       .backends = Backend::flash2 | Backend::aten_flash,
                       .library = Library::flash2,
                       .since = Version(2, 7),
                       .until = Version(2, 8, 4),
                       .sm_min = 80,
                       .sm_max = 90,
                       .when = {{Field::training, Clause::Op::equals, 1},
                                {Field::dtype, Clause::Op::one_of, 3},
                                {Field::seqlen_k, Clause::Op::not_multiple_of, 128}},
                       .policies = Policies::both,
                       .effect = "wrong",
                       .link = "me/mine#1"};
  ASSERT_EQ(rules.faults().size(), 1U);
  EXPECT_EQ(rules.faults().front(), expected);
}

TEST(JsonRuleSet, UnknownBoundsAndDefaults) {
  const RuleSet rules = read_rule_set(row(R"("since":"unknown","until":"unknown",)"));
  EXPECT_FALSE(rules.faults().front().since.installed());
  EXPECT_FALSE(rules.faults().front().until.installed());
  EXPECT_EQ(rules.faults().front().policies, Policies::fastest);
  EXPECT_EQ(rules, read_rule_set(row("")));
  EXPECT_EQ(write(rules), row(""));
  EXPECT_EQ(write(RuleSet()), R"({"faults":[]})");
  EXPECT_EQ(read_rule_set(R"({"faults":[]})").digest(), 0);
}

TEST(JsonRuleSet, CanonicalTextComesBackAsItIs) {
  for (const std::string_view conditions : {
           R"({"training":true})",
           R"({"causal":{"not":true}})",
           R"({"dtype":"float16"})",
           R"({"dtype":["float16"]})",
           R"({"dtype":["bfloat16","float16"]})",
           R"({"dtype":{"not":"float16"}})",
           R"({"layout":{"none_of":["sb3hd","thd_thd_thd"]}})",
           R"({"seqlen_q":7})",
           R"({"seqlen_q":{"at_least":1025}})",
           R"({"seqlen_q":{"at_least":2,"at_most":1024,"multiple_of":8,"not":64}})",
           R"({"seqlen_k":{"not_multiple_of":128},"heads":{"multiple_of":3}})",
           R"({"batch":{"product_over_int32":{"factor":8,"lengths":["batch","seqlen_q"]}}})",
           R"({"deterministic":true,"sm":{"not":121},"window_left":{"at_least":0}})",
           R"([{"seqlen_q":{"not":1}},{"seqlen_q":{"not":2}}])",
           R"([{"seqlen_q":{"at_least":5},"training":true},{"seqlen_q":{"at_most":9}}])",
       }) {
    const std::string text = when(conditions);
    EXPECT_EQ(write(read_rule_set(text)), text);
  }
  for (const std::string_view member :
       {R"("since":"9.1.0",)", R"("until":"9.2.0.post1",)", R"("sm":[90,65535],)", R"("policies":["te"],)"}) {
    const std::size_t before = row("").find("\"backends\"");
    std::string text = row("");
    text.insert(member.starts_with("\"policies\"") ? text.find("\"effect\"") : before, member);
    EXPECT_EQ(write(read_rule_set(text)), text);
  }
}

TEST(JsonRuleSet, TheBuiltInFaultsComeBack) {
  std::vector<Fault> faults = builtin_faults();
  for (Fault& fault : faults) fault.id = "mine." + fault.id;
  const RuleSet rules(faults);
  const RuleSet again = read_rule_set(write(rules));
  EXPECT_EQ(again, rules);
  EXPECT_EQ(again.digest(), rules.digest());
}

TEST(JsonRuleSet, ClausesInAnyOrderComeBackInThatOrder) {
  using Op = Clause::Op;
  const std::vector<Clause> clauses{
      {Field::seqlen_q, Op::at_least, 5},   {Field::training, Op::equals, 1},
      {Field::seqlen_q, Op::at_most, 9},    {Field::seqlen_q, Op::at_most, 8},
      {Field::seqlen_q, Op::equals, 6},     {Field::seqlen_q, Op::equals, 6},
      {Field::seqlen_q, Op::not_equals, 7}, {Field::dtype, Op::one_of, 3},
      {Field::dtype, Op::none_of, 2},       {Field::batch, Op::product_over, 1, LengthFact::batch},
      {Field::batch, Op::equals, 70000}};
  const RuleSet rules({{.id = "x", .backends = Backend::cudnn, .when = clauses, .effect = "e", .link = ""}});
  EXPECT_EQ(read_rule_set(write(rules)), rules) << write(rules);
}

TEST(JsonRuleSet, RefusesBadRows) {
  for (const std::string_view text :
       {"{}", "[]", R"({"faults":{}})", R"({"faults":[1]})", R"({"faults":[],"more":1})", R"({"faults":[{}]})"})
    EXPECT_EQ(refused(text), "faults") << text;
  EXPECT_EQ(refused(row("\"since\":9.1,")), "since");
  EXPECT_EQ(refused(row("\"until\":\"soon\",")), "until");
  EXPECT_EQ(refused(row("\"until\":null,")), "until");
  EXPECT_EQ(refused(row("\"since\":\"9.2\",\"until\":\"9.1\",")), "faults");
  EXPECT_EQ(refused(row("\"sm\":90,")), "sm");
  EXPECT_EQ(refused(row("\"sm\":[90],")), "sm");
  EXPECT_EQ(refused(row("\"sm\":[90,70000],")), "sm");
  EXPECT_EQ(refused(row("\"sm\":[100,90],")), "faults");
  EXPECT_EQ(refused(row("\"policies\":[],")), "policies");
  EXPECT_EQ(refused(row("\"policies\":[\"te\",\"te\"],")), "policies");
  EXPECT_EQ(refused(row("\"policies\":[\"quick\"],")), "policies");
  EXPECT_EQ(refused(row("\"severity\":3,")), "faults");
  EXPECT_EQ(refused(row("\"link\":3,")), "link");
  EXPECT_EQ(refused(R"({"faults":[{"id":"x","library":"cuda","backends":["cudnn"],"effect":""}]})"), "library");
  EXPECT_EQ(refused(R"({"faults":[{"id":"x","library":"cudnn","backends":[],"effect":""}]})"), "faults");
  EXPECT_EQ(refused(R"({"faults":[{"id":"x","library":"cudnn","backends":["cuda"],"effect":""}]})"), "backends");
  EXPECT_EQ(refused(R"({"faults":[{"id":"","library":"cudnn","backends":["cudnn"],"effect":""}]})"), "faults");
}

TEST(JsonRuleSet, RefusesBadConditions) {
  const auto field = [](std::string_view conditions) { return refused(when(conditions)); };
  EXPECT_EQ(field("3"), "when");
  EXPECT_EQ(field("[3]"), "when");
  EXPECT_EQ(field(R"({"seqlen":1})"), "when");
  EXPECT_EQ(field(R"({"training":1})"), "training");
  EXPECT_EQ(field(R"({"training":[true]})"), "training");
  EXPECT_EQ(field(R"({"heads":"many"})"), "heads");
  EXPECT_EQ(field(R"({"heads":2.5})"), "heads");
  EXPECT_EQ(field(R"({"heads":[1,2]})"), "heads");
  EXPECT_EQ(field(R"({"heads":{}})"), "heads");
  EXPECT_EQ(field(R"({"heads":{"over":1}})"), "heads");
  EXPECT_EQ(field(R"({"heads":{"multiple_of":0}})"), "faults");
  EXPECT_EQ(field(R"({"dtype":[]})"), "dtype");
  EXPECT_EQ(field(R"({"dtype":["float16","half"]})"), "dtype");
  EXPECT_EQ(field(R"({"dtype":{"at_most":"float16"}})"), "faults");
  EXPECT_EQ(field(R"({"dtype":{"none_of":"float16"}})"), "dtype");
  EXPECT_EQ(field(R"({"seqlen_q":-1})"), "faults");
  EXPECT_EQ(field(R"({"cudnn":"9.1"})"), "faults");
  EXPECT_EQ(field(R"({"batch":{"product_over_int32":8}})"), "product_over_int32");
  EXPECT_EQ(field(R"({"batch":{"product_over_int32":{"factor":8}}})"), "product_over_int32");
  EXPECT_EQ(field(R"({"batch":{"product_over_int32":{"factor":0,"lengths":["batch"]}}})"), "faults");
  EXPECT_EQ(field(R"({"batch":{"product_over_int32":{"lengths":[]}}})"), "faults");
  EXPECT_EQ(field(R"({"batch":{"product_over_int32":{"lengths":["heads"]}}})"), "lengths");
  EXPECT_EQ(field(R"({"batch":{"product_over_int32":{"lengths":["batch","batch"]}}})"), "lengths");
}

}  // namespace
}  // namespace cynosure::io
