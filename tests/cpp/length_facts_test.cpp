// SPDX-License-Identifier: Apache-2.0
// tests/cpp/length_facts_test.cpp: facts over real lengths, and what follows from facts alone.
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <cynosure/length_facts.hpp>

#include "random_calls.hpp"

namespace cynosure {
namespace {

using Kind = LengthFact::Kind;
using testing::Random;

bool holds(const LengthFact& fact, const Lengths& lengths) { return ConcreteLengths(lengths).holds(fact); }

TEST(Truth, IsKleenesLogic) {
  const Truth yes(true);
  const Truth no(false);
  const Truth unknown = Truth::unknown();
  EXPECT_EQ(!yes, no);
  EXPECT_EQ(!unknown, unknown);
  EXPECT_EQ(yes && unknown, unknown);
  EXPECT_EQ(no && unknown, no);
  EXPECT_EQ(unknown && no, no);
  EXPECT_EQ(yes || unknown, yes);
  EXPECT_EQ(unknown || yes, yes);
  EXPECT_EQ(no || unknown, unknown);
  EXPECT_EQ(unknown && unknown, unknown);
  EXPECT_EQ(yes && yes, yes);
  EXPECT_EQ(no || no, no);
}

TEST(ConcreteLengths, EveryKindOfFact) {
  const Lengths lengths{3, 128, 192};
  EXPECT_TRUE(holds({Kind::equals, LengthFact::batch, 3}, lengths));
  EXPECT_FALSE(holds({Kind::equals, LengthFact::seqlen_q, 3}, lengths));
  EXPECT_TRUE(holds({Kind::multiple_of, LengthFact::seqlen_k, 64}, lengths));
  EXPECT_FALSE(holds({Kind::multiple_of, LengthFact::seqlen_k, 128}, lengths));
  EXPECT_TRUE(holds({Kind::at_most, LengthFact::seqlen_q, 128}, lengths));
  EXPECT_FALSE(holds({Kind::at_most, LengthFact::seqlen_q, 127}, lengths));
  EXPECT_TRUE(holds({Kind::q_at_most_k, 0, 0}, lengths));
  EXPECT_FALSE(holds({Kind::q_equals_k, 0, 0}, lengths));
}

TEST(ConcreteLengths, ProductsStopAtTheBound) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  constexpr std::uint8_t kAll = LengthFact::batch | LengthFact::seqlen_q | LengthFact::seqlen_k;
  const auto over = [](std::int64_t factor, std::uint8_t of, Lengths lengths) {
    return holds({Kind::product_over, of, factor}, lengths);
  };
  EXPECT_TRUE(over(1, kAll, {kHuge, kHuge, kHuge}));
  EXPECT_TRUE(over(std::numeric_limits<std::int64_t>::max(), kAll, {kHuge, kHuge, kHuge}));
  EXPECT_FALSE(over(std::numeric_limits<std::int64_t>::max(), kAll, {kHuge, kHuge, 0})) << "nothing in it";
  EXPECT_FALSE(over(1, kAll, {0, kHuge, kHuge}));
  EXPECT_FALSE(over(1, LengthFact::seqlen_q, {1, kInt32Max, 1}));
  EXPECT_TRUE(over(1, LengthFact::seqlen_q, {1, kInt32Max + 1, 1}));
  EXPECT_TRUE(over(2, LengthFact::seqlen_q, {1, std::int64_t{1} << 30, 1}));
  EXPECT_FALSE(over(2, LengthFact::seqlen_q, {1, (std::int64_t{1} << 30) - 1, 1}));
  EXPECT_TRUE(over(1, LengthFact::batch | LengthFact::seqlen_k, {65536, 1, 32768}));
  EXPECT_FALSE(over(1, LengthFact::batch | LengthFact::seqlen_k, {65536, 1, 32767}));
  EXPECT_TRUE(over(kInt32Max + 1, 0, {1, 1, 1}));
}

TEST(ConcreteLengths, ProductAgreesWithWideArithmetic) {
  Random random(1);
  for (int i = 0; i < 20000; ++i) {
    const auto number = [&] { return std::int64_t{1} << random.below(41) | random.below(7); };
    const Lengths lengths{number(), number(), number()};
    const std::int64_t factor = 1 + random.below(1 << 20);
    const auto of = static_cast<std::uint8_t>(1 + random.below(7));
    long double product = static_cast<long double>(factor);
    if ((of & LengthFact::batch) != 0) product *= static_cast<long double>(lengths.batch);
    if ((of & LengthFact::seqlen_q) != 0) product *= static_cast<long double>(lengths.seqlen_q);
    if ((of & LengthFact::seqlen_k) != 0) product *= static_cast<long double>(lengths.seqlen_k);
    EXPECT_EQ(holds({Kind::product_over, of, factor}, lengths), product > 2147483647.0L);
  }
}

TEST(LengthFacts, ACoefficientBecomesABound) {
  const Lengths lengths{1, 1000, 1};
  const ConcreteLengths oracle(lengths);
  const LengthFacts<ConcreteLengths> facts(oracle);
  EXPECT_FALSE(facts.q.product_over_int32(2147483));
  EXPECT_TRUE(facts.q.product_over_int32(2147484));
  EXPECT_FALSE(facts.q.product_over_int32(0));
  EXPECT_FALSE(facts.q.product_over_int32(-1));
  EXPECT_TRUE(facts.q.at_least(1000));
  EXPECT_FALSE(facts.q.at_least(1001));
}

LengthFact random_fact(Random& random) {
  const auto of = static_cast<std::uint8_t>(1U << static_cast<unsigned>(random.below(3)));
  switch (random.below(6)) {
    case 0:
      return {Kind::equals, of, random.of<std::int64_t>({1, 2, 64, 96, 128, 1024})};
    case 1:
    case 2:
      return {Kind::multiple_of, of, random.of<std::int64_t>({2, 3, 32, 64, 96, 128, 256})};
    case 3:
      return {Kind::at_most, of, random.of<std::int64_t>({0, 1, 2, 63, 64, 127, 128, 1024, 65535})};
    case 4:
      return {random.percent(50) ? Kind::q_at_most_k : Kind::q_equals_k, 0, 0};
    default:
      return {Kind::product_over, static_cast<std::uint8_t>(1 + random.below(7)),
              random.of<std::int64_t>({1, 8, 1 << 20})};
  }
}

TEST(PartialLengths, WhatFollowsIsTrue) {
  Random random(2);
  int followed = 0;
  for (int i = 0; i < 60000; ++i) {
    Lengths lengths = testing::random_lengths(random);
    if (random.percent(20)) lengths.seqlen_k = lengths.seqlen_q + random.below(3) - 1;
    std::vector<KnownFact> known;
    for (std::int64_t n = random.below(5); n > 0; --n) {
      const LengthFact fact = random_fact(random);
      known.push_back({fact, random.percent(15) ? Truth::unknown() : Truth(holds(fact, lengths))});
    }
    const PartialLengths partial(known);
    const LengthFact asked = random_fact(random);
    const Truth answer = partial.holds(asked);
    if (answer.is_unknown()) continue;
    ++followed;
    ASSERT_EQ(answer.is_yes(), holds(asked, lengths))
        << asked.to_string() << " for " << lengths.batch << ", " << lengths.seqlen_q << ", " << lengths.seqlen_k
        << " from " << [&] {
             std::string text;
             for (const KnownFact& fact : known)
               text += fact.fact.to_string() + (fact.value.is_yes() ? " yes; " : " no or unknown; ");
             return text;
           }();
  }
  EXPECT_GT(followed, 3000);
}

TEST(PartialLengths, DrawsThePlainConsequences) {
  const auto after = [](LengthFact fact, bool value, LengthFact asked) {
    const std::vector<KnownFact> known{{fact, Truth(value)}};
    return PartialLengths(known).holds(asked);
  };
  const LengthFact q64{Kind::multiple_of, LengthFact::seqlen_q, 64};
  const LengthFact q128{Kind::multiple_of, LengthFact::seqlen_q, 128};
  const LengthFact k64{Kind::multiple_of, LengthFact::seqlen_k, 64};
  const LengthFact one{Kind::equals, LengthFact::seqlen_q, 1};
  const LengthFact most1{Kind::at_most, LengthFact::seqlen_q, 1};
  EXPECT_TRUE(after(q128, true, q64).is_yes());
  EXPECT_TRUE(after(q64, false, q128).is_no());
  EXPECT_TRUE(after(q64, true, q128).is_unknown());
  EXPECT_TRUE(after(q64, true, k64).is_unknown());
  EXPECT_TRUE(after(one, true, q64).is_no());
  EXPECT_TRUE(after(one, true, most1).is_yes());
  EXPECT_TRUE(after(most1, false, one).is_no());
  EXPECT_TRUE(after({Kind::q_equals_k, 0, 0}, true, {Kind::q_at_most_k, 0, 0}).is_yes());
  EXPECT_TRUE(after({Kind::q_at_most_k, 0, 0}, false, {Kind::q_equals_k, 0, 0}).is_no());
  EXPECT_TRUE(after({Kind::q_equals_k, 0, 0}, false, {Kind::q_at_most_k, 0, 0}).is_unknown());
  const std::vector<KnownFact> self{{{Kind::q_equals_k, 0, 0}, true}, {q64, true}};
  EXPECT_TRUE(PartialLengths(self).holds(k64).is_yes()) << "q and k are one length";
}

TEST(PartialLengths, NotesWhatItCouldNotAnswerOnce) {
  const LengthFact asked{Kind::at_most, LengthFact::batch, 7};
  const LengthFact undecidable{Kind::at_most, LengthFact::batch, 9};
  const std::vector<KnownFact> known{{undecidable, Truth::unknown()}};
  PartialLengths partial(known);
  EXPECT_TRUE(partial.holds(asked).is_unknown());
  EXPECT_TRUE(partial.holds(asked).is_unknown());
  EXPECT_TRUE(partial.holds(undecidable).is_unknown()) << "never asked again";
  EXPECT_EQ(partial.open(), std::vector<LengthFact>{asked});
  partial.forget_open();
  EXPECT_TRUE(partial.open().empty());
}

TEST(LengthFact, TextIsAClosedForm) {
  EXPECT_EQ((LengthFact{Kind::equals, LengthFact::batch, 1}).to_string(), "batch == 1");
  EXPECT_EQ((LengthFact{Kind::multiple_of, LengthFact::seqlen_k, 64}).to_string(), "seqlen_k % 64 == 0");
  EXPECT_EQ((LengthFact{Kind::at_most, LengthFact::seqlen_q, 9}).to_string(), "seqlen_q <= 9");
  EXPECT_EQ((LengthFact{Kind::q_at_most_k, 0, 0}).to_string(), "seqlen_q <= seqlen_k");
  EXPECT_EQ((LengthFact{Kind::q_equals_k, 0, 0}).to_string(), "seqlen_q == seqlen_k");
  EXPECT_EQ((LengthFact{Kind::product_over, LengthFact::batch | LengthFact::seqlen_k, 8}).to_string(),
            "8 * batch * seqlen_k > 2147483647");
}

}  // namespace
}  // namespace cynosure
