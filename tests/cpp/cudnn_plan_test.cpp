// SPDX-License-Identifier: Apache-2.0
// cudnn_plan_test.cpp: keys of cuDNN's plans and the cache that holds them. No GPU and no cuDNN is needed.
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "backends/cudnn/cache.hpp"
#include "backends/cudnn/key.hpp"

namespace cynosure::cudnn {
namespace {

PlanKey key_with(std::int64_t rows, std::int64_t keys, std::int64_t left, std::int64_t right, bool bottom_right,
                 LengthKind lengths = LengthKind::full) {
  PlanKey key;
  key.seqlen_q = rows;
  key.seqlen_k = keys;
  key.window_left = left;
  key.window_right = right;
  key.bottom_right = bottom_right;
  key.lengths = lengths;
  simplify_window(key);
  return key;
}

/// Whether row i of a sequence attends column j.
bool attends(const PlanKey& key, std::int64_t rows, std::int64_t keys, std::int64_t i, std::int64_t j) {
  const std::int64_t distance = j - (i + (key.bottom_right ? keys - rows : 0));
  return (key.window_left < 0 || distance >= -key.window_left) &&
         (key.window_right < 0 || distance <= key.window_right);
}

TEST(CudnnKey, SimplifiedWindowsMeanTheSame) {
  for (const LengthKind lengths : {LengthKind::full, LengthKind::padded})
    for (const bool bottom_right : {false, true})
      for (std::int64_t rows = 1; rows <= 5; ++rows)
        for (std::int64_t keys = 1; keys <= 5; ++keys)
          for (std::int64_t left = -1; left <= 6; ++left)
            for (std::int64_t right = -1; right <= 6; ++right) {
              PlanKey plain;
              plain.window_left = left;
              plain.window_right = right;
              plain.bottom_right = bottom_right;
              const PlanKey key = key_with(rows, keys, left, right, bottom_right, lengths);
              const bool own = lengths == LengthKind::padded;
              for (std::int64_t q = own ? 1 : rows; q <= rows; ++q)
                for (std::int64_t k = own ? 1 : keys; k <= keys; ++k)
                  for (std::int64_t i = 0; i < q; ++i)
                    for (std::int64_t j = 0; j < k; ++j)
                      ASSERT_EQ(attends(plain, q, k, i, j), attends(key, q, k, i, j))
                          << rows << "x" << keys << " of " << q << "x" << k << " window " << left << "," << right
                          << (bottom_right ? " bottom right" : " top left") << " at " << i << "," << j;
            }
}

TEST(CudnnKey, WindowsThatHideNothingAreDropped) {
  EXPECT_EQ(key_with(1, 9, -1, 0, true).window_right, -1);  // one query sees all keys
  EXPECT_FALSE(key_with(1, 9, -1, 0, true).bottom_right);
  EXPECT_EQ(key_with(9, 9, 8, 0, true).window_left, -1);
  EXPECT_FALSE(key_with(9, 9, 3, 0, true).bottom_right);  // equal lengths: both alignments
  EXPECT_TRUE(key_with(9, 9, 3, 0, true, LengthKind::ragged).bottom_right);
  EXPECT_EQ(key_with(5, 9, -1, 0, true).window_right, 0);
}

TEST(CudnnKey, EveryPartCounts) {
  const PlanKey plain;
  PlanKey other = plain;
  EXPECT_EQ(hash(plain), hash(other));
  other.v.row = 8;
  EXPECT_NE(hash(plain), hash(other));
  EXPECT_FALSE(plain == other);
  other = plain;
  other.deterministic = true;
  EXPECT_NE(hash(plain), hash(other));
}

TEST(CudnnKey, BoundsOfTokensAreRoundedUp) {
  for (std::int64_t tokens = 1; tokens < 100000; tokens += 7) {
    const std::int64_t bound = rounded_up(tokens);
    ASSERT_GE(bound, tokens);
    ASSERT_LE(bound, std::max<std::int64_t>(256, tokens + tokens / 4));
    ASSERT_EQ(rounded_up(bound), bound);
  }
}

TEST(CudnnKey, RaggedTensorsShareOffsets) {
  Problem problem;
  problem.features.layout = Layout::thd_thd_thd;
  problem.features.padding = true;
  problem.features.heads = 4;
  problem.features.kv_heads = 2;
  problem.lengths = {.batch = 3, .seqlen_q = 10, .seqlen_k = 12};
  const PlanKey key = key_of(problem, Direction::backward, false);
  const RaggedLayout layout = ragged_layout(key);
  EXPECT_EQ(layout.count, 3U);  // q and its like, k and its like, the statistics
  const auto of = [&](Slot slot) { return layout.offsets.at(layout.of_slot.at(static_cast<std::size_t>(slot))); };
  EXPECT_EQ(of(Slot::dq), (RaggedOffsets{.row = 4 * 64, .of_keys = false}));
  EXPECT_EQ(of(Slot::dv), (RaggedOffsets{.row = 2 * 64, .of_keys = true}));
  EXPECT_EQ(of(Slot::stats), (RaggedOffsets{.row = 4, .of_keys = false}));
  problem.features.layout = Layout::bshd_bshd_bshd;
  EXPECT_EQ(ragged_layout(key_of(problem, Direction::backward, false)).count, 0U);
}

using Numbers = Cache<int, int, std::hash<int>>;

TEST(CudnnCache, LeastRecentlyUsedGoesFirst) {
  Numbers cache(2);
  const auto get = [&](int key) { return *cache.get(key, false, [&] { return std::make_shared<int>(10 * key); }); };
  EXPECT_EQ(get(1), 10);
  EXPECT_EQ(get(2), 20);
  EXPECT_EQ(get(1), 10);
  EXPECT_EQ(get(3), 30);  // 2 is out
  EXPECT_EQ(cache.size(), 2U);
  EXPECT_NE(cache.find(1, false), nullptr);
  EXPECT_EQ(cache.find(2, false), nullptr);
}

TEST(CudnnCache, PinnedStay) {
  Numbers cache(2);
  const auto make = [](int value) { return [value] { return std::make_shared<int>(value); }; };
  const std::shared_ptr<int> first = cache.get(1, false, make(1));
  EXPECT_EQ(cache.find(1, true), first);
  for (int key = 2; key < 20; ++key) static_cast<void>(cache.get(key, false, make(key)));
  EXPECT_EQ(cache.pinned(), 1U);
  EXPECT_EQ(cache.size(), 3U);
  EXPECT_EQ(cache.find(1, false), first);
  EXPECT_EQ(cache.find(1, true), first);  // twice is once
  EXPECT_EQ(cache.pinned(), 1U);
}

TEST(CudnnCache, AFailureLeavesNothing) {
  Numbers cache(2);
  EXPECT_THROW(static_cast<void>(cache.get(1, false, []() -> std::shared_ptr<int> { throw std::runtime_error("no"); })),
               std::runtime_error);
  EXPECT_EQ(cache.size(), 0U);
  EXPECT_EQ(*cache.get(1, false, [] { return std::make_shared<int>(5); }), 5);
}

TEST(CudnnCache, ManyThreadsMakeOneValue) {
  Numbers cache(4);
  std::atomic<int> made{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        const int key = round % 3;
        const auto value = cache.get(key, false, [&] {
          ++made;
          return std::make_shared<int>(key);
        });
        EXPECT_EQ(*value, key);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 3);
}

}  // namespace
}  // namespace cynosure::cudnn
