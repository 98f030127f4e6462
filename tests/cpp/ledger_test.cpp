// SPDX-License-Identifier: Apache-2.0
// The ledger: distinct, counted, bounded, and safe from many threads; and the message of a call without a backend.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <cynosure/ledger.hpp>
#include <cynosure/select.hpp>

namespace cynosure {
namespace {

Device cpu() {
  Device device;
  device.built = static_cast<std::uint16_t>((BackendSet{Backend::cpu} | Backend::unfused).bits());
  return device;
}
Problem problem(std::int64_t length) {
  Problem p;
  p.features.dtype = DType::float32;
  p.lengths = {.batch = 1, .seqlen_q = length, .seqlen_k = length};
  return p;
}

class Ledger : public testing::Test {
 protected:
  void SetUp() override { clear_ledger(); }
  void TearDown() override {
    set_ledger_sink(nullptr);
    clear_ledger();
  }
};

TEST_F(Ledger, CountsEachDirection) {
  for (int i = 0; i < 3; ++i) decide_and_record(problem(8), {}, cpu(), Direction::forward);
  decide_and_record(problem(8), {}, cpu(), Direction::backward);
  decide_and_record(problem(9), {}, cpu(), Direction::forward);
  const LedgerSnapshot snapshot = ledger();
  ASSERT_EQ(snapshot.entries.size(), 2U);
  EXPECT_EQ(snapshot.entries[0].forward, 3U);
  EXPECT_EQ(snapshot.entries[0].backward, 1U);
  EXPECT_EQ(snapshot.entries[0].decision, select(problem(8), {}, cpu()));
  EXPECT_EQ(snapshot.entries[1].forward, 1U);
}

TEST_F(Ledger, DecidesAsSelectDoes) {
  const Outcome outcome = decide_and_record(problem(8), {}, cpu(), Direction::forward);
  EXPECT_EQ(outcome, evaluate(problem(8), {}, cpu()));
  EXPECT_EQ(outcome.backend(), Backend::cpu);
}

TEST_F(Ledger, CountsPlanBuildsFromManyThreads) {
  using std::chrono::nanoseconds;
  std::vector<std::thread> threads;
  for (int i = 1; i <= 4; ++i)
    threads.emplace_back([i] {
      for (int n = 0; n < 1000; ++n) record_plan_build(Direction::backward, nanoseconds(i));
    });
  for (std::thread& thread : threads) thread.join();
  record_plan_build(Direction::forward, nanoseconds(7));
  const PlanBuilds forward{.count = 1, .total = nanoseconds(7), .longest = nanoseconds(7)};
  const PlanBuilds backward{.count = 4000, .total = nanoseconds(10000), .longest = nanoseconds(4)};
  EXPECT_EQ(ledger().plan_builds[0], forward);
  EXPECT_EQ(ledger().plan_builds[1], backward);
  clear_ledger();
  EXPECT_EQ(ledger().plan_builds[0], PlanBuilds{});
  EXPECT_EQ(ledger().plan_builds[1], PlanBuilds{});
}

TEST_F(Ledger, ClearedItStartsAnew) {
  decide_and_record(problem(8), {}, cpu(), Direction::forward);
  clear_ledger();
  EXPECT_TRUE(ledger().entries.empty());
  decide_and_record(problem(8), {}, cpu(), Direction::backward);  // this thread still knows the slot
  ASSERT_EQ(ledger().entries.size(), 1U);
  EXPECT_EQ(ledger().entries[0].forward, 0U);
  EXPECT_EQ(ledger().entries[0].backward, 1U);
}

std::atomic<int> told{0};
TEST_F(Ledger, TellsOfEachNewDecisionOnce) {
  told = 0;
  set_ledger_sink([](const Decision&, Direction) { ++told; });
  for (int i = 0; i < 4; ++i) decide_and_record(problem(20), {}, cpu(), Direction::forward);
  decide_and_record(problem(20), {}, cpu(), Direction::backward);
  decide_and_record(problem(21), {}, cpu(), Direction::forward);
  EXPECT_EQ(told, 2);
  clear_ledger();
  decide_and_record(problem(21), {}, cpu(), Direction::forward);
  EXPECT_EQ(told, 3);
}

TEST_F(Ledger, ManyThreads) {
  constexpr int threads = 4;
  constexpr int calls = 2000;
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t)
    pool.emplace_back([] {
      for (int i = 0; i < calls; ++i)
        decide_and_record(problem(30 + i % 7), {}, cpu(), i % 2 == 0 ? Direction::forward : Direction::backward);
    });
  for (std::thread& thread : pool) thread.join();
  std::uint64_t sum = 0;
  for (const LedgerEntry& entry : ledger().entries) sum += entry.forward + entry.backward;
  EXPECT_EQ(sum, std::uint64_t{threads} * calls);
  EXPECT_EQ(ledger().entries.size(), 7U);
}

TEST_F(Ledger, IsBounded) {
  constexpr auto more = static_cast<std::int64_t>(kLedgerCapacity) + 100;
  for (std::int64_t i = 0; i < more; ++i) decide_and_record(problem(1000 + i), {}, cpu(), Direction::forward);
  const LedgerSnapshot snapshot = ledger();
  EXPECT_LE(snapshot.entries.size(), kLedgerCapacity);
  EXPECT_GE(snapshot.unlisted, 100U);
}

TEST(Refusal, SaysWhatToDoAndEveryReason) {
  Problem p = problem(8);
  p.features.dtype = DType::float64;
  const Settings settings = Settings{}.with_contract(Contract::require, {Backend::cpu});
  const Decision decision = select(p, settings, cpu());
  ASSERT_FALSE(decision.backend().has_value());
  const std::string text = decision.refusal();
  EXPECT_TRUE(text.starts_with("no backend may run this call")) << text;
  for (const char* part :
       {"cpu.dtype: dtype=float64; required: float32, bfloat16 or float16", "dtype=float64", "unfused"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

TEST(Refusal, SaysEachWay) {
  const Settings settings = Settings{}
                                .with_contract(Contract::require, {Backend::cpu, Backend::flash2})
                                .with_enabled(BackendSet{Backend::unfused} | Backend::flash2);
  const std::string text = select(problem(8), settings, cpu()).refusal();
  const auto line = [&](const std::string& backend) {
    const std::size_t start = text.find("\n  " + backend + ": ");
    return text.substr(start, text.find('\n', start + 1) - start);
  };
  EXPECT_EQ(line("cpu"), "\n  cpu: switched off") << text;
  EXPECT_NE(line("flash2").find(": not built in this release"), std::string::npos) << text;
  EXPECT_NE(line("flash2").find("cuda.device: device_kind=cpu"), std::string::npos) << text;
  EXPECT_EQ(line("unfused"), "\n  unfused: unfused.not_required: contract=require; required: named in require(...)")
      << text;
}

TEST(Refusal, NamesWhatIsRequiredAndSwitchedOff) {
  const Settings settings =
      Settings{}.with_contract(Contract::require, {Backend::cpu}).with_enabled(BackendSet{Backend::unfused});
  const std::string text = select(problem(8), settings, cpu()).refusal();
  EXPECT_TRUE(text.starts_with("no backend may run this call: cpu is required and switched off")) << text;
}

}  // namespace
}  // namespace cynosure
