// SPDX-License-Identifier: Apache-2.0
// tests/cpp/select_test.cpp: contracts, switches, the cache and the tables that select hands out.
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <cynosure/rule_set.hpp>
#include <cynosure/select.hpp>

#include "random_calls.hpp"

namespace cynosure {
namespace {

using testing::Call;
using testing::Random;

Call plain_call(std::string_view device = "h200") {
  Call call;
  call.device = *named_device(device);
  call.problem.features.heads = call.problem.features.kv_heads = 16;
  call.problem.features.head_dim_qk = call.problem.features.head_dim_v = 128;
  call.problem.lengths = {2, 4096, 4096};
  return call;
}

bool has_reason(const Decision& decision, Backend backend, std::string_view id) {
  const std::vector<Reason> reasons = decision.reasons(backend);
  return std::any_of(reasons.begin(), reasons.end(), [&](const Reason& reason) { return reason.rule == id; });
}

TEST(Select, ThePolicyDecidesUnlessToldOtherwise) {
  EXPECT_EQ(plain_call("h200").decision().backend(), Backend::cudnn);
  EXPECT_EQ(plain_call("a100").decision().backend(), Backend::flash2);
  EXPECT_EQ(plain_call("v100").decision().backend(), Backend::unfused);
  EXPECT_EQ(plain_call("cpu").decision().backend(), Backend::cpu);
}

TEST(Select, RequireNeverFallsBack) {
  Call call = plain_call("a100");
  call.settings = call.settings.with_contract(Contract::require, {Backend::flash3});
  EXPECT_EQ(call.decision().backend(), std::nullopt);
  EXPECT_TRUE(has_reason(call.decision(), Backend::flash3, "flash3.arch"));
  EXPECT_TRUE(has_reason(call.decision(), Backend::flash2, "flash2.not_required"));
  call.settings = call.settings.with_contract(Contract::require, {Backend::flash3, Backend::unfused});
  EXPECT_EQ(call.decision().backend(), Backend::unfused) << "the list is in order, the policy's is not asked";
}

TEST(Select, PreferFallsBackToThePolicy) {
  Call call = plain_call("a100");
  call.settings = call.settings.with_contract(Contract::prefer, {Backend::flash3, Backend::cudnn});
  EXPECT_EQ(call.decision().backend(), Backend::cudnn);
  EXPECT_EQ(call.decision().order().at(1), Backend::flash2);
  EXPECT_NE(call.decision().ground().find("prefer(flash3, cudnn)"), std::string::npos);
}

TEST(Select, ARequiredBackendThatIsSwitchedOffSaysSo) {
  Call call = plain_call();
  call.settings = call.settings.with_enabled(BackendSet::all() - BackendSet(Backend::flash2))
                      .with_contract(Contract::require, {Backend::flash2});
  const Decision decision = call.decision();
  EXPECT_EQ(decision.backend(), std::nullopt);
  const std::vector<Reason> reasons = decision.reasons(Backend::flash2);
  ASSERT_EQ(reasons.size(), 1U);
  EXPECT_EQ(reasons[0].rule, "flash2.switched_off");
  EXPECT_EQ(reasons[0].way, Way::switched_off);
}

TEST(Select, CpuTensorsUnderTeNeedABackendByName) {
  Call call = plain_call("cpu");
  call.settings = call.settings.with_policy(Policy::te);
  EXPECT_EQ(call.decision().backend(), std::nullopt);
  call.settings = call.settings.with_contract(Contract::require, {Backend::unfused});
  EXPECT_EQ(call.decision().backend(), Backend::unfused);
  call.settings = call.settings.with_contract(Contract::prefer, {Backend::cpu});
  EXPECT_EQ(call.decision().backend(), Backend::cpu);
}

TEST(Select, AReasonNamesActualRequiredAndEvidence) {
  Call call = plain_call();
  call.problem.features.head_dim_qk = call.problem.features.head_dim_v = 100;
  const std::vector<Reason> reasons = call.decision().reasons(Backend::flash2);
  ASSERT_EQ(reasons.size(), 1U);
  EXPECT_EQ(reasons[0].rule, "flash2.head_dim");
  ASSERT_EQ(reasons[0].actual.size(), 2U);
  EXPECT_EQ(reasons[0].actual[0], (Reason::Actual{"head_dim_qk", "100"}));
  EXPECT_EQ(reasons[0].required, "the larger head dim a multiple of 8 and at most 256");
  EXPECT_FALSE(reasons[0].evidence.empty());
}

TEST(Select, ReasonsOfAllAreThoseOfEach) {
  Random random(31);
  for (int i = 0; i < 300; ++i) {
    const Decision decision = testing::random_call(random).decision();
    std::vector<Reason> each;
    for (const Backend backend : BackendSet::all())
      for (const Reason& reason : decision.reasons(backend)) each.push_back(reason);
    ASSERT_EQ(decision.reasons(), each);
  }
}

TEST(Select, TheCacheAnswersAsEvaluate) {
  Random random(32);
  std::vector<Call> calls;
  for (int i = 0; i < 3000; ++i) calls.push_back(testing::random_call(random));  // more than it holds
  for (int round = 0; round < 2; ++round) {
    for (const Call& call : calls) {
      const Decision decision = select(call.problem, call.settings, call.device);
      ASSERT_EQ(decision.outcome(), call.outcome()) << call.text();
      ASSERT_EQ(decision, call.decision());
    }
  }
}

TEST(Select, TheCacheTellsEveryFieldApart) {
  // One bit of difference anywhere in the key must not give another key's answer.
  const Call base = plain_call();
  static_cast<void>(cached_outcome(base.problem, base.settings, base.device));
  for (std::int64_t seqlen = 1; seqlen < 5000; ++seqlen) {
    Call call = base;
    call.problem.lengths.seqlen_k = seqlen;
    call.problem.features.causal = true;
    ASSERT_EQ(cached_outcome(call.problem, call.settings, call.device), call.outcome()) << seqlen;
  }
}

TEST(Select, ManyThreadsGetTheSameAnswers) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 4;
  Random random(33);
  std::vector<Call> calls;
  std::vector<Outcome> expected;
  for (int i = 0; i < 600; ++i) {  // few enough to meet in the cache, more than a set holds
    calls.push_back(testing::random_call(random));
    expected.push_back(calls.back().outcome());
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round)
        for (std::size_t i = 0; i < calls.size(); ++i) {
          const std::size_t at = (i * 7 + static_cast<std::size_t>(t) * 75) % calls.size();
          const Call& call = calls[at];
          if (!(cached_outcome(call.problem, call.settings, call.device) == expected[at])) ++wrong;
        }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

RuleSet numbered_rule_set(int number) {
  Fault fault;
  fault.id = "select_test.row_" + std::to_string(number);
  fault.backends = Backend::cudnn;
  fault.effect = "a test";
  return RuleSet({fault});
}

TEST(Select, ManyThreadsRegisterRuleSets) {
  constexpr int kThreads = 8;
  constexpr int kSets = 24;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&wrong] {
      Call call = plain_call();
      for (int i = 0; i < kSets; ++i) {
        const RuleSet set = numbered_rule_set(i);
        call.settings = call.settings.with_rules_digest(register_rule_set(set));
        const Outcome outcome = cached_outcome(call.problem, call.settings, call.device);
        if (outcome.eligible.contains(Backend::cudnn) || !(*rule_set(set.digest()) == set)) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Select, AnUnknownDigestIsAnError) {
  Call call = plain_call();
  call.settings = call.settings.with_rules_digest(0xbeef);
  EXPECT_THROW(static_cast<void>(call.outcome()), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(cached_outcome(call.problem, call.settings, call.device)), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(rule_table(call.settings)), std::invalid_argument);
}

TEST(Select, AFactThatIsUnknownIsNotAskedAgain) {
  Call call = plain_call();
  call.problem.features.causal = true;
  call.problem.features.align = Align::top_left;
  PartialStep step = evaluate_partial(call.problem.features, call.settings, call.device, {});
  ASSERT_TRUE(step.ask);
  const std::vector<KnownFact> known{{*step.ask, Truth::unknown()}};
  step = evaluate_partial(call.problem.features, call.settings, call.device, known);
  EXPECT_NE(step.ask, known[0].fact);
  EXPECT_TRUE(step.outcome.undecided.any());
}

TEST(Select, APlainCallIsAskedAboutItsBatchAndLengthsOfOne) {
  const Call call = plain_call("a100");
  const ConcreteLengths lengths(call.problem.lengths);
  std::vector<KnownFact> known;
  PartialStep step = evaluate_partial(call.problem.features, call.settings, call.device, known);
  for (; step.ask; step = evaluate_partial(call.problem.features, call.settings, call.device, known)) {
    EXPECT_TRUE(step.ask->of == LengthFact::batch || step.ask->to_string().ends_with(" == 1")) << step.ask->to_string();
    known.push_back({*step.ask, lengths.holds(*step.ask)});
  }
  EXPECT_EQ(step.outcome.backend(), Backend::flash2);
  EXPECT_FALSE(step.outcome.undecided.any()) << "what nobody asked is no reason";
}

}  // namespace
}  // namespace cynosure
