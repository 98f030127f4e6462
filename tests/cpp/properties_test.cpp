// SPDX-License-Identifier: Apache-2.0
// tests/cpp/properties_test.cpp: what holds for every problem, setting and device. Fixed seeds; a failure prints the
// call.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include <cynosure/fields.hpp>
#include <cynosure/select.hpp>

#include "random_calls.hpp"

namespace cynosure {
namespace {

using testing::Call;
using testing::Random;

bool contains(const std::vector<Backend>& list, Backend backend) {
  return std::find(list.begin(), list.end(), backend) != list.end();
}

// ---- verdicts and order ------------------------------------------------------------------------------------------

TEST(Properties, EligibleExactlyWithoutAReason) {
  Random random(11);
  for (int i = 0; i < 4000; ++i) {
    const Call call = testing::random_call(random);
    const Decision decision = call.decision();
    for (const Backend backend : BackendSet::all())
      ASSERT_EQ(decision.eligible().contains(backend), decision.reasons(backend).empty())
          << name(backend) << "\n  " << call.text();
  }
}

TEST(Properties, TheChosenOneIsFirstInOrder) {
  Random random(12);
  for (int i = 0; i < 40000; ++i) {
    const Call call = testing::random_call(random);
    const Decision decision = call.decision();
    const std::vector<Backend> order = decision.order();
    ASSERT_EQ(order.size(), static_cast<std::size_t>(decision.eligible().size())) << call.text();
    ASSERT_EQ(decision.backend(), order.empty() ? std::nullopt : std::optional(order.front())) << call.text();
    for (const Backend backend : order) ASSERT_TRUE(decision.eligible().contains(backend)) << call.text();
  }
}

TEST(Properties, RequireTakesTheFirstEligibleOfItsListOrNone) {
  Random random(13);
  for (int i = 0; i < 20000; ++i) {
    const Call call = testing::random_call(random);
    if (call.settings.contract() != Contract::require) continue;
    const Outcome outcome = call.outcome();
    std::optional<Backend> expected;
    for (const Backend backend : call.settings.named())
      if (!expected && outcome.eligible.contains(backend)) expected = backend;
    ASSERT_EQ(outcome.backend(), expected) << call.text();
    for (const Backend backend : outcome.eligible) ASSERT_TRUE(call.settings.names(backend)) << call.text();
  }
}

TEST(Properties, PreferChangesTheOrderAndNothingElse) {
  Random random(14);
  for (int i = 0; i < 20000; ++i) {
    Call call = testing::random_call(random);
    if (call.settings.contract() != Contract::prefer) continue;
    const Decision with = call.decision();
    const BackendList named = call.settings.named();
    call.settings = call.settings.with_contract(Contract::automatic, {});
    const Decision without = call.decision();
    // Under `te` naming a backend that TransformerEngine does not know is what makes it eligible.
    const BackendSet gained = with.eligible() - without.eligible();
    ASSERT_TRUE((without.eligible() - with.eligible()).empty()) << call.text();
    ASSERT_TRUE(call.settings.policy() == Policy::te || gained.empty()) << call.text();
    std::vector<Backend> expected;
    for (const Backend backend : named)
      if (with.eligible().contains(backend)) expected.push_back(backend);
    for (const Backend backend : without.order())
      if (!contains(expected, backend)) expected.push_back(backend);
    ASSERT_EQ(with.order(), expected) << call.text();
  }
}

TEST(Properties, EnforceOnlyEverExcludesMore) {
  Random random(15);
  for (int i = 0; i < 20000; ++i) {
    Call call = testing::random_call(random);
    call.settings = call.settings.with_policy(Policy::te).with_switch(Settings::enforce, false);
    const BackendSet without = call.outcome().eligible;
    call.settings = call.settings.with_switch(Settings::enforce, true);
    ASSERT_TRUE((call.outcome().eligible - without).empty()) << call.text();
  }
}

TEST(Properties, WithoutSettingsAgainstItSomethingRunsAnyPlainCall) {
  Random random(16);
  for (int i = 0; i < 20000; ++i) {
    Call call = testing::random_call(random);
    call.settings = {};
    call.device.built = BackendSet::all().bits();
    const Features& f = call.problem.features;
    const bool plain = !f.fp8 && f.dtype <= DType::float64 && f.num_splits == 1 && !f.score_mod && !f.score_mod_bprop &&
                       !f.pad_between_seqs && !f.context_parallel;
    ASSERT_TRUE(!plain || call.outcome().eligible.contains(Backend::unfused)) << call.text();
  }
}

// ---- determinism -------------------------------------------------------------------------------------------------

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x100000001b3ULL;
  return hash ^ (hash >> 29U);
}

/// A hash of many outcomes, each evaluated and taken from the cache.
std::uint64_t hash_of_outcomes() {
  Random random(17);
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (int i = 0; i < 20000; ++i) {
    const Call call = testing::random_call(random);
    const Outcome outcome = call.outcome();
    EXPECT_EQ(outcome, call.outcome()) << call.text();
    EXPECT_EQ(outcome, cached_outcome(call.problem, call.settings, call.device)) << call.text();
    outcome.fired.for_each([&](std::size_t row) { hash = mixed(hash, row); });
    hash = mixed(hash, outcome.eligible.bits());
    hash = mixed(hash, static_cast<std::uint64_t>(outcome.chosen + 1) << 8U | outcome.order_row);
  }
  return hash;
}

TEST(Properties, EqualInputsGiveEqualOutcomesInAnotherProcess) {
  constexpr const char* kChild = "CYNOSURE_PROPERTIES_CHILD";
  const std::uint64_t hash = hash_of_outcomes();
  if (std::getenv(kChild) != nullptr) {
    std::printf("\noutcomes %llu\n", static_cast<unsigned long long>(hash));
    return;
  }
  std::array<char, 4096> self{};
  ASSERT_GT(readlink("/proc/self/exe", self.data(), self.size() - 1), 0);
  const std::string command = std::string(kChild) + "=1 '" + self.data() +
                              "' --gtest_filter=Properties.EqualInputsGiveEqualOutcomesInAnotherProcess";
  const std::unique_ptr<FILE, int (*)(FILE*)> child(popen(command.c_str(), "r"), &pclose);
  ASSERT_TRUE(child);
  unsigned long long theirs = 0;
  for (std::array<char, 512> line{}; std::fgets(line.data(), line.size(), child.get()) != nullptr;)
    static_cast<void>(std::sscanf(line.data(), "outcomes %llu", &theirs));
  EXPECT_EQ(theirs, hash);
}

// ---- every reason has a cause among the fields it names ----------------------------------------------------------

/// Values worth trying for a field of a call.
std::vector<std::int64_t> candidates(const FieldInfo& field, const Call& call) {
  const Features& f = call.problem.features;
  const Lengths& l = call.problem.lengths;
  switch (field.field) {
    case Field::batch:
    case Field::seqlen_q:
    case Field::seqlen_k:
      return {1, 2, 64, 128, 256, 1024, l.seqlen_q, l.seqlen_k};
    case Field::heads:
    case Field::kv_heads:
      return {1, 2, f.heads, f.kv_heads, f.cp_size, 2 * f.cp_size};
    case Field::head_dim_qk:
    case Field::head_dim_v:
      return {8, 64, 128, 256, f.head_dim_qk, f.head_dim_v};
    case Field::window_left:
    case Field::window_right:
      return {-1, 0};
    case Field::page_size:
      return {256};
    case Field::num_splits:
    case Field::cp_size:
      return {1};
    case Field::sm:
      return {70, 80, 86, 89, 90, 100, 110, 120};
    case Field::sm_count:
      return {132};
    default:
      break;
  }
  std::vector<std::int64_t> values;
  if (field.type == FieldType::boolean || field.type == FieldType::choice)
    for (std::int64_t i = field.min; i <= field.max; ++i) values.push_back(i);
  if (field.type == FieldType::backends) values.push_back(BackendSet::all().bits());
  if (field.type == FieldType::version)
    for (const Version version : {Version(), Version(2, 8, 3), Version(3, 0, 0), Version(4, 0, 0), Version(8, 9, 0),
                                  Version(9, 10, 2), Version(9, 15, 1), Version(9, 24, 1), Version(9, 26, 0)})
      values.push_back(static_cast<std::int64_t>(version.bits()));
  return values;
}

/// The call with one field changed, in every way worth trying; settings so that `backend` may run.
std::vector<Call> changes(const Call& call, Field field, Backend backend) {
  std::vector<Call> changed;
  const Settings s = call.settings;
  const auto with = [&](Settings settings) { changed.push_back({call.problem, settings, call.device}); };
  switch (field) {
    case Field::switched_off:
      with(s.with_enabled(s.enabled() | backend));
      with(s.with_enabled(s.enabled() - BackendSet(Backend::flash3)));
      break;
    case Field::contract:
      with(s.with_contract(Contract::automatic, {}));
      with(s.with_contract(Contract::prefer, {backend}));
      break;
    case Field::policy:
      with(s.with_policy(Policy::fastest));
      with(s.with_policy(Policy::te));
      break;
    case Field::deterministic:
      with(s.with_deterministic(!s.deterministic()));
      break;
    case Field::emulate_fp8:
      with(s.with_switch(Settings::emulate_fp8, true));
      break;
    case Field::onnx_export:
      with(s.with_switch(Settings::onnx_export, true));
      break;
    default:
      break;
  }
  const auto index = static_cast<std::size_t>(field);
  if (index >= kFirstSettingsField) return changed;
  for (const std::int64_t value : candidates(info(field), call)) {
    Call next = call;
    if (index < kFirstDeviceField) {
      set_value(next.problem, field, value);
    } else {
      set_value(next.device, field, value);
    }
    changed.push_back(next);
  }
  return changed;
}

/// At most `most` changes of fields that the row reads make it stop firing. Only the row's predicate is judged: a
/// changed problem may be one that validate() refuses.
bool removable(const Call& call, std::size_t row, const Rule& rule, int most) {
  for (const Field field : rule.reads) {
    for (const Backend backend : rule.backends) {
      for (const Call& changed : changes(call, field, backend)) {
        if (!changed.outcome().fired.test(row)) return true;
        if (most > 1 && removable(changed, row, rule, most - 1)) return true;
      }
    }
  }
  return false;
}

/// Rows that one change does not always remove, because several of their fields may each be a cause: how many have to
/// change at most, and why.
struct SeveralCauses {
  int changes;
  std::string_view why;
};
const std::map<std::string_view, SeveralCauses> kSeveralCauses{
    {"aten_flash.kv_cache", {2, "a KV cache and context parallelism"}},
    {"cpu.kv_cache", {2, "a KV cache and context parallelism"}},
    {"cpu.score_mod", {2, "two callbacks"}},
    {"flash.score_mod", {2, "two callbacks"}},
    {"unfused.score_mod", {2, "two callbacks"}},
    {"cudnn_f16.bias", {2, "a bias and a dense mask"}},
    {"cudnn_fp8.bias", {2, "a bias and a dense mask"}},
    {"cudnn_f16.dtype", {2, "FP8 data and FP8 attention"}},
    {"cudnn_f16.head_dim", {2, "both head dims"}},
    {"flash2.head_dim", {2, "both head dims"}},
    {"flash3.head_dim_alignment", {2, "both head dims"}},
    {"cudnn.te_window_fp8", {2, "both sides of the window; fp8_dpa and fp8_mha"}},
    {"cudnn_fp8.window", {2, "both sides of the window; architecture and version"}},
    {"cudnn_f16.mask", {2, "the mask and the version"}},
    {"cudnn_f16.window", {3, "both sides of the window, and the version"}},
    {"cudnn_fp8.layout", {2, "the layout and sinks"}},
    {"cudnn_fp8.shape", {4, "both head dims, the mask, architecture and version"}},
};

TEST(Properties, EveryReasonHasItsCauseAmongTheFieldsItNames) {
  constexpr int kSamples = 150;
  Random random(18);
  const std::vector<Rule> table = rule_table();
  std::map<std::string_view, int> seen;
  std::map<std::string_view, std::set<int>> needed;  // how many changes, over the calls where the row fires
  for (int i = 0; i < 10000; ++i) {
    const Call call = testing::random_call(random);
    call.outcome().fired.for_each([&](std::size_t row) {
      const Rule& rule = table[row];
      if (++seen[rule.id] > kSamples) return;
      const auto several = kSeveralCauses.find(rule.id);
      const int most = several == kSeveralCauses.end() ? 1 : several->second.changes;
      int count = 1;
      while (count <= most && !removable(call, row, rule, count)) ++count;
      needed[rule.id].insert(count);
      EXPECT_LE(count, most) << rule.id << " fires whatever fields it reads are changed\n  " << call.text();
    });
  }
  for (const auto& [id, counts] : needed) EXPECT_EQ(*counts.begin(), 1) << id << ": one change never does";
}

// ---- symbolic lengths --------------------------------------------------------------------------------------------

struct Dialogue {
  Outcome outcome;
  std::string path;  ///< the facts asked for, with their answers
  std::size_t questions = 0;
};

/// Answers every question from real lengths.
Dialogue dialogue(const Call& call, const Lengths& lengths) {
  const ConcreteLengths oracle(lengths);
  std::vector<KnownFact> known;
  Dialogue result;
  for (;;) {
    const PartialStep step = evaluate_partial(call.problem.features, call.settings, call.device, known);
    result.outcome = step.outcome;
    if (!step.ask) return result;
    const bool holds = oracle.holds(*step.ask);
    known.push_back({*step.ask, holds});
    result.path += step.ask->to_string() + (holds ? " yes; " : " no; ");
    if (++result.questions > 100) return result;
  }
}

TEST(Properties, ADialogueEndsInWhatEvaluateSays) {
  Random random(19);
  for (int i = 0; i < 20000; ++i) {
    const Call call = testing::random_call(random);
    const Dialogue partial = dialogue(call, call.problem.lengths);
    const Outcome whole = call.outcome();
    ASSERT_LT(partial.questions, 20U) << call.text();
    ASSERT_EQ(partial.outcome.eligible, whole.eligible) << partial.path << "\n  " << call.text();
    ASSERT_EQ(partial.outcome.chosen, whole.chosen) << partial.path << "\n  " << call.text();
    // Its reasons hold; those that hang on facts nobody asked are left out, and their backends have others.
    const std::vector<Rule> table = rule_table(call.settings);
    BackendSet excluded;
    partial.outcome.fired.for_each([&](std::size_t row) {
      excluded |= table[row].backends;
      ASSERT_TRUE(whole.fired.test(row)) << table[row].id << call.text();
    });
    ASSERT_EQ(BackendSet::all() - excluded, whole.eligible) << call.text();
    ASSERT_FALSE(partial.outcome.undecided.any()) << call.text();
  }
}

TEST(Properties, QuestionsAreAmongTheFactsOfTheCall) {
  Random random(20);
  for (int i = 0; i < 5000; ++i) {
    const Call call = testing::random_call(random);
    const std::vector<LengthFact> facts = length_facts(call.problem.features, call.settings, call.device);
    std::vector<KnownFact> known;
    const ConcreteLengths oracle(call.problem.lengths);
    for (;;) {
      const PartialStep step = evaluate_partial(call.problem.features, call.settings, call.device, known);
      if (!step.ask) break;
      ASSERT_NE(std::find(facts.begin(), facts.end(), *step.ask), facts.end()) << step.ask->to_string() << call.text();
      ASSERT_TRUE(std::none_of(known.begin(), known.end(), [&](const KnownFact& k) { return k.fact == *step.ask; }));
      known.push_back({*step.ask, oracle.holds(*step.ask)});
    }
  }
}

/// Every fact undecidable: what is left may be run with any lengths.
TEST(Properties, UnknownLengthsLeaveOnlyWhatRunsWithAnyLengths) {
  Random random(21);
  for (int i = 0; i < 6000; ++i) {
    Call call = testing::random_call(random);
    std::vector<KnownFact> known;
    PartialStep step = evaluate_partial(call.problem.features, call.settings, call.device, known);
    for (; step.ask && known.size() < 100;
         step = evaluate_partial(call.problem.features, call.settings, call.device, known))
      known.push_back({*step.ask, Truth::unknown()});
    ASSERT_FALSE(step.ask) << call.text();
    for (int sample = 0; sample < 12; ++sample) {
      call.problem.lengths = testing::random_lengths(random);
      const Outcome outcome = call.outcome();
      ASSERT_TRUE((step.outcome.eligible - outcome.eligible).empty()) << call.text();
    }
    step.outcome.undecided.for_each([&](std::size_t row) { ASSERT_TRUE(step.outcome.fired.test(row)); });
  }
}

// ---- regions: how many graphs torch compiles over many lengths ---------------------------------------------------

std::vector<Lengths> sixty_four_lengths(bool self, std::uint64_t seed) {
  Random random(seed);
  std::vector<Lengths> all;
  for (int i = 0; i < 64; ++i) {
    // Half of them round, as lengths in use are, up to 8192.
    const auto length = [&] { return random.percent(50) ? 64 * (1 + random.below(128)) : 2 + random.below(8191); };
    Lengths lengths;
    lengths.batch = 1 + random.below(64);
    lengths.seqlen_q = length();
    lengths.seqlen_k = self ? lengths.seqlen_q : length();
    all.push_back(lengths);
  }
  return all;
}

std::set<std::string> regions(const Call& call, bool self) {
  static const std::vector<Lengths> same = sixty_four_lengths(true, 1);
  static const std::vector<Lengths> cross = sixty_four_lengths(false, 2);
  std::set<std::string> paths;
  for (const Lengths& lengths : self ? same : cross) paths.insert(dialogue(call, lengths).path);
  return paths;
}

std::string lines_of(const std::set<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) text += "\n    " + path;
  return text;
}

TEST(Regions, AtMostEightForAnyProblem) {
  Random random(22);
  std::size_t most = 0;
  for (int i = 0; i < 6000; ++i) {
    const Call call = testing::random_call(random);
    for (const bool self : {true, false}) {
      const std::set<std::string> paths = regions(call, self);
      most = std::max(most, paths.size());
      EXPECT_LE(paths.size(), 8U) << (self ? "self\n  " : "cross\n  ") << call.text() << lines_of(paths);
    }
  }
  std::printf("[   INFO   ] at most %zu regions\n", most);
}

/// bfloat16 on the three data center generations, in the forms that models use.
std::vector<Call> common_calls() {
  std::vector<Call> calls;
  for (const char* device : {"a100", "h200", "b200"}) {
    for (const bool training : {false, true}) {
      for (const std::int32_t dim : {64, 128, 256}) {
        Call call;
        call.device = *named_device(device);
        Features& f = call.problem.features;
        f.heads = 32;
        f.kv_heads = 8;
        f.head_dim_qk = f.head_dim_v = dim;
        f.training = training;
        calls.push_back(call);  // full
        f.causal = true;
        calls.push_back(call);  // causal
        f.window_given = true;
        f.window_left = 1023;
        f.window_right = 0;
        calls.push_back(call);  // window
        f.window_given = false;
        f.window_left = f.window_right = -1;
        f.padding = true;
        calls.push_back(call);  // padding and causal
        f.causal = false;
        calls.push_back(call);  // padding
        f.layout = Layout::thd_thd_thd;
        calls.push_back(call);  // ragged
        f.causal = f.same_lengths = true;
        calls.push_back(call);  // ragged and causal
        f.causal = f.same_lengths = f.padding = false;
        f.layout = Layout::bshd_bshd_bshd;
        f.bias_type = BiasType::post_scale_bias;
        f.bias_shape = BiasShape::one_h_s_s;
        calls.push_back(call);  // bias
      }
    }
  }
  return calls;
}

TEST(Regions, AtMostFourForCommonProblems) {
  std::size_t most = 0;
  for (const Call& call : common_calls()) {
    for (const bool self : {true, false}) {
      const std::set<std::string> paths = regions(call, self);
      most = std::max(most, paths.size());
      EXPECT_LE(paths.size(), 4U) << (self ? "self\n  " : "cross\n  ") << call.text() << lines_of(paths);
    }
  }
  std::printf("[   INFO   ] at most %zu regions\n", most);
}

}  // namespace
}  // namespace cynosure
