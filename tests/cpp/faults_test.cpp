// SPDX-License-Identifier: Apache-2.0
// faults_test.cpp: every known fault excludes what its row says and nothing beside; rule sets are checked values.
#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <cynosure/rule_set.hpp>
#include <cynosure/select.hpp>

namespace cynosure {
namespace {

using Op = Clause::Op;

// ---- a Problem and a Device made from a row ----------------------------------------------------------------------

bool is_length(Field field) { return field <= Field::seqlen_k; }

/// What a clause says of a value, written again so that the rows' own reading of it is checked.
bool holds(const Clause& clause, std::int64_t value) {
  switch (clause.op) {
    case Op::equals:
      return value == clause.value;
    case Op::not_equals:
      return value != clause.value;
    case Op::at_most:
      return value <= clause.value;
    case Op::at_least:
      return value >= clause.value;
    case Op::multiple_of:
      return value % clause.value == 0;
    case Op::not_multiple_of:
      return value % clause.value != 0;
    case Op::one_of:
      return ((clause.value >> value) & 1) != 0;
    case Op::none_of:
      return ((clause.value >> value) & 1) == 0;
    case Op::product_over:
      break;
  }
  ADD_FAILURE() << "product_over is about several lengths";
  return false;
}

std::vector<Clause> clauses_on(const Fault& fault, Field field) {
  std::vector<Clause> found;
  for (const Clause& clause : fault.when)
    if (clause.field == field && clause.op != Op::product_over) found.push_back(clause);
  return found;
}

/// The first value of the field for which every clause of the row on it holds, `but` alone being violated.
std::optional<std::int64_t> value_for(const Fault& fault, Field field, const Clause* but = nullptr) {
  const FieldInfo& about = info(field);
  const bool counted = about.type == FieldType::integer;
  const std::int64_t first = is_length(field) ? 1 : about.min;
  const std::int64_t last =
      counted ? 70000 : (about.type == FieldType::choice ? static_cast<std::int64_t>(about.choices.size()) - 1 : 1);
  const std::vector<Clause> clauses = clauses_on(fault, field);
  for (std::int64_t value = first; value <= last; ++value)
    if (std::all_of(clauses.begin(), clauses.end(),
                    [&](const Clause& clause) { return holds(clause, value) != (but != nullptr && clause == *but); }))
      return value;
  return std::nullopt;
}

void set_product(Problem& problem, const Clause& clause, bool over) {
  const auto set = [&](LengthFact::Operand which, std::int64_t& length) {
    if ((clause.of & which) != 0) length = over ? 2048 : 4;
  };
  set(LengthFact::batch, problem.lengths.batch);
  set(LengthFact::seqlen_q, problem.lengths.seqlen_q);
  set(LengthFact::seqlen_k, problem.lengths.seqlen_k);
}

Problem problem_of(const Fault& fault) {
  Problem problem;
  problem.lengths = {.batch = 2, .seqlen_q = 128, .seqlen_k = 128};
  for (const Clause& clause : fault.when) {
    if (clause.op == Op::product_over) {
      set_product(problem, clause, true);
      continue;
    }
    const std::optional<std::int64_t> value = value_for(fault, clause.field);
    if (!value)
      throw std::logic_error(fault.id + ": its clauses on " + std::string(info(clause.field).name) +
                             " contradict each other");
    set_value(problem, clause.field, *value);
  }
  return problem;
}

Version just_below(Version version) {
  if (version.micro() > 0) return {version.major(), version.minor(), version.micro() - 1};
  return version.minor() > 0 ? Version(version.major(), version.minor() - 1, 9) : Version(version.major() - 1, 99, 0);
}

Field field_of(Library library) {
  constexpr std::array fields{Field::cudnn, Field::flash2, Field::flash3, Field::flash4, Field::torch};
  return fields[static_cast<std::size_t>(library)];
}
void set_library(Device& device, Library library, Version version) {
  set_value(device, field_of(library), static_cast<std::int64_t>(version.bits()));
}

/// A machine with every library, the faulty one in a faulty version.
Device device_of(const Fault& fault) {
  Device device;
  device.kind = DeviceKind::cuda;
  device.sm = fault.sm_min != 0 ? fault.sm_min : 90;
  device.sm_count = 132;
  device.cudnn = Version(9, 26, 0);
  device.flash2 = Version(2, 8, 3);
  device.torch = Version(2, 11, 0);
  if (fault.since.installed()) {
    set_library(device, fault.library, fault.since);
  } else if (fault.until.installed()) {
    set_library(device, fault.library, just_below(fault.until));
  }
  return device;
}

std::size_t row_of(const std::string& id, Settings settings = {}) {
  const std::vector<Rule> table = rule_table(settings);
  const auto it = std::find_if(table.begin(), table.end(), [&](const Rule& rule) { return rule.id == id; });
  if (it == table.end()) throw std::logic_error("no row " + id);
  return static_cast<std::size_t>(it - table.begin());
}
bool fires(const Fault& fault, const Problem& problem, const Device& device, Settings settings = {}) {
  return select(problem, settings, device).outcome().fired.test(row_of(fault.id, settings));
}

bool holds_under(const Fault& fault, Policies policies) {
  return (static_cast<unsigned>(fault.policies) & static_cast<unsigned>(policies)) != 0;
}

Fault builtin(const std::string& id) {
  for (const Fault& fault : builtin_faults())
    if (fault.id == id) return fault;
  throw std::logic_error("no built-in fault " + id);
}

std::set<std::string> rules_against(Backend backend, const Decision& decision) {
  std::set<std::string> rules;
  for (const Reason& reason : decision.reasons(backend)) rules.insert(reason.rule);
  return rules;
}

class EveryFault : public testing::TestWithParam<Fault> {};
INSTANTIATE_TEST_SUITE_P(BuiltIn, EveryFault, testing::ValuesIn(builtin_faults()), [](const auto& about) {
  std::string name = about.param.id.substr(about.param.id.find('.') + 1);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

// ---- each row ----------------------------------------------------------------------------------------------------

TEST_P(EveryFault, IsWellFormed) {
  const Fault& fault = GetParam();
  EXPECT_TRUE(fault.id.starts_with("fault."));
  EXPECT_FALSE(fault.effect.empty());
  EXPECT_NE(fault.link.find('#'), std::string::npos) << "a full issue reference: owner/repository#number";
  EXPECT_NE(fault.link.find('/'), std::string::npos);
  EXPECT_FALSE(fault.when.empty());
  for (const Clause& clause : fault.when)
    EXPECT_LT(static_cast<std::size_t>(clause.field), kFirstDeviceField) << "a Problem's field";
  // What a user's row must pass, a built-in one passes too.
  Fault copy = fault;
  copy.id = "copy." + fault.id;
  EXPECT_NO_THROW(RuleSet({copy}));
}

TEST_P(EveryFault, ExcludesItsBackends) {
  const Fault& fault = GetParam();
  Settings settings;
  if (!holds_under(fault, Policies::fastest)) settings = settings.with_policy(Policy::te);
  const Decision decision = select(problem_of(fault), settings, device_of(fault));
  EXPECT_TRUE(decision.outcome().fired.test(row_of(fault.id, settings)));
  EXPECT_TRUE((decision.eligible() & fault.backends).empty());
  for (const Backend backend : fault.backends) {
    const std::vector<Reason> reasons = decision.reasons(backend);
    const auto reason =
        std::find_if(reasons.begin(), reasons.end(), [&](const Reason& r) { return r.rule == fault.id; });
    ASSERT_NE(reason, reasons.end());
    EXPECT_EQ(reason->way, Way::not_eligible);
    EXPECT_NE(reason->required.find(fault.effect), std::string::npos);
    EXPECT_EQ(reason->evidence, fault.link);
  }
}

TEST_P(EveryFault, HoldsForItsVersionsOnly) {
  const Fault& fault = GetParam();
  const Problem problem = problem_of(fault);
  Device device = device_of(fault);
  ASSERT_TRUE(fires(fault, problem, device));
  set_library(device, fault.library, Version());
  EXPECT_FALSE(fires(fault, problem, device)) << "not installed";
  if (fault.until.installed()) {
    set_library(device, fault.library, fault.until);
    EXPECT_FALSE(fires(fault, problem, device)) << fault.until.to_string();
    set_library(device, fault.library, just_below(fault.until));
    EXPECT_TRUE(fires(fault, problem, device)) << just_below(fault.until).to_string();
  }
  if (fault.since.installed()) {
    set_library(device, fault.library, just_below(fault.since));
    EXPECT_FALSE(fires(fault, problem, device)) << just_below(fault.since).to_string();
  }
}

TEST_P(EveryFault, HoldsForItsArchitecturesOnly) {
  const Fault& fault = GetParam();
  const Problem problem = problem_of(fault);
  Device device = device_of(fault);
  const auto at = [&](int sm) {
    device.sm = static_cast<std::uint16_t>(sm);
    return fires(fault, problem, device);
  };
  if (fault.sm_min != 0) {
    EXPECT_TRUE(at(fault.sm_min));
    EXPECT_FALSE(at(fault.sm_min - 1));
  }
  if (fault.sm_max != 0xffff) {
    EXPECT_TRUE(at(fault.sm_max));
    EXPECT_FALSE(at(fault.sm_max + 1));
  }
}

TEST_P(EveryFault, NeedsEveryClause) {
  const Fault& fault = GetParam();
  const Device device = device_of(fault);
  for (const Clause& clause : fault.when) {
    Problem problem = problem_of(fault);
    if (clause.op == Op::product_over) {
      set_product(problem, clause, false);
    } else {
      const std::optional<std::int64_t> other = value_for(fault, clause.field, &clause);
      ASSERT_TRUE(other) << "the clause on " << info(clause.field).name << " follows from the others";
      set_value(problem, clause.field, *other);
    }
    EXPECT_FALSE(fires(fault, problem, device)) << info(clause.field).name;
  }
}

TEST_P(EveryFault, HoldsForItsPoliciesOnly) {
  const Fault& fault = GetParam();
  const Problem problem = problem_of(fault);
  const Device device = device_of(fault);
  const Settings te = Settings().with_policy(Policy::te);
  EXPECT_EQ(fires(fault, problem, device), holds_under(fault, Policies::fastest));
  EXPECT_EQ(fires(fault, problem, device, te), holds_under(fault, Policies::te));
  EXPECT_TRUE(fires(fault, problem, device, te.with_switch(Settings::enforce, true)))
      << "an operator runs: correctness first";
}

/// The row matters: on some call it alone stands between a backend and being eligible.
TEST_P(EveryFault, ExcludesWhatWouldElseRun) {
  const Fault& fault = GetParam();
  // What a call of that kind has beside the clauses.
  const std::map<std::string, std::function<void(Problem&, Device&)>> setting{
      {"fault.cudnn_9_14_0_window",
       [](Problem& p, Device&) {
         p.lengths.seqlen_q = p.lengths.seqlen_k;
         p.features.window_given = true;
       }},
      {"fault.cudnn_9_14_0_window_padding_causal",
       [](Problem& p, Device&) {
         p.lengths.seqlen_q = p.lengths.seqlen_k;
         p.features.window_given = true;
         p.features.window_right = 0;
       }},
      {"fault.cudnn_alibi_dq_nan",
       [](Problem& p, Device&) {
         p.features.causal = true;
         p.features.align = Align::top_left;
       }},
      {"fault.cudnn_sm120_ragged_backward",
       [](Problem& p, Device&) {
         p.features.layout = Layout::thd_thd_thd;
         p.features.padding = true;
       }},
      {"fault.cudnn_ragged_sink_backward", [](Problem& p, Device&) { p.features.padding = true; }},
      {"fault.aten_flash_batch_65536", [](Problem&, Device& d) { d.cudnn = Version(); }},
      {"fault.aten_flash_heads_65536", [](Problem&, Device& d) { d.cudnn = Version(); }},
  };
  Problem problem = problem_of(fault);
  Device device = device_of(fault);
  if (const auto it = setting.find(fault.id); it != setting.end()) it->second(problem, device);
  const Decision decision = select(problem, {}, device);
  EXPECT_TRUE(decision.outcome().fired.test(row_of(fault.id)));
  for (const Backend backend : fault.backends)
    for (const std::string& rule : rules_against(backend, decision)) EXPECT_TRUE(rule.starts_with("fault.")) << rule;
}

TEST(Faults, HaveIdsOfTheirOwnAndFitTheMask) {
  std::set<std::string> ids;
  for (const Rule& rule : rule_table()) EXPECT_TRUE(ids.insert(std::string(rule.id)).second) << rule.id;
  EXPECT_LE(builtin_faults().size(), 60U);
}

/// Reports from public trackers, D1 to D14: each is a row, or src/rules/faults.cpp says why not.
TEST(Faults, OwnEveryReport) {
  const std::map<std::string, std::vector<std::string>> rows{
      {"D1",
       {"fault.cudnn_mask_dq_nan", "fault.cudnn_bias_dq_nan", "fault.cudnn_alibi_dq_nan",
        "fault.cudnn_one_query_dkv_nan"}},
      {"D2", {"fault.cudnn_decode_corrupt", "fault.cudnn_decode_corrupt_9_25_0"}},
      {"D3", {}},
      {"D4", {}},
      {"D5", {"fault.cudnn_graph_128", "fault.cudnn_graph_128_any_layout"}},
      {"D6", {"fault.cudnn_batch_65536"}},
      {"D7",
       {"fault.aten_flash_batch_65536", "fault.aten_flash_heads_65536", "fault.flash2_batch_65536",
        "fault.flash2_heads_65536"}},
      {"D8", {"fault.cudnn_9_14_0_window", "fault.cudnn_9_14_0_window_padding_causal", "fault.cudnn_graph_128"}},
      {"D9", {"fault.cudnn_sm120_ragged_backward"}},
      {"D10", {"fault.cudnn_ragged_sink_backward"}},
      {"D11", {"fault.cudnn_plan_segfault"}},
      {"D12", {}},
      {"D13", {}},
      {"D14", {"fault.cudnn_bias_gradient_int32"}},
  };
  std::set<std::string> owned{"fault.cudnn_dropout_plans"};
  for (int number = 1; number <= 14; ++number) {
    const auto it = rows.find("D" + std::to_string(number));
    ASSERT_NE(it, rows.end()) << number;
    for (const std::string& id : it->second) {
      EXPECT_NO_THROW(static_cast<void>(builtin(id)));
      owned.insert(id);
    }
  }
  for (const Fault& fault : builtin_faults()) EXPECT_TRUE(owned.contains(fault.id)) << fault.id;
}

// ---- the reports' own inputs -------------------------------------------------------------------------------------

Device h200(Version cudnn) {
  Device device;
  device.kind = DeviceKind::cuda;
  device.sm = 90;
  device.sm_count = 132;
  device.cudnn = cudnn;
  device.torch = Version(2, 11, 0);
  return device;
}

TEST(Faults, D1MaskOverHalfATile) {
  Problem problem;
  problem.lengths = {.batch = 1, .seqlen_q = 704, .seqlen_k = 704};
  problem.features.layout = Layout::bhsd_bhsd_bhsd;
  problem.features.attn_mask = AttnMask::boolean;
  const std::string id = "fault.cudnn_mask_dq_nan";
  EXPECT_EQ(rules_against(Backend::cudnn, select(problem, {}, h200({9, 20, 0}))), std::set<std::string>{id});
  EXPECT_TRUE(select(problem, {}, h200({9, 26, 0})).eligible().contains(Backend::cudnn));
  for (const std::int64_t clean : {640, 768, 700, 705}) {
    problem.lengths.seqlen_q = problem.lengths.seqlen_k = clean;
    EXPECT_TRUE(select(problem, {}, h200({9, 20, 0})).eligible().contains(Backend::cudnn)) << clean;
  }
  problem.lengths.seqlen_q = problem.lengths.seqlen_k = 704;
  problem.features.training = false;
  EXPECT_TRUE(select(problem, {}, h200({9, 20, 0})).eligible().contains(Backend::cudnn)) << "the forward is right";
  problem.features.training = true;
  problem.features.attn_mask = AttnMask::none;
  problem.features.causal = true;
  EXPECT_TRUE(select(problem, {}, h200({9, 20, 0})).eligible().contains(Backend::cudnn)) << "a causal mask is clean";
}

TEST(Faults, D2DecodeOnDatacenterBlackwell) {
  Problem problem;
  problem.lengths = {.batch = 64, .seqlen_q = 1, .seqlen_k = 900};
  problem.features = {.heads = 28,
                      .kv_heads = 4,
                      .head_dim_qk = 128,
                      .head_dim_v = 128,
                      .training = false,
                      .attn_mask = AttnMask::boolean};
  const auto eligible = [&](std::uint16_t sm, Version cudnn) {
    Device device = h200(cudnn);
    device.sm = sm;
    return select(problem, {}, device).eligible().contains(Backend::cudnn);
  };
  for (const std::uint16_t sm : std::initializer_list<std::uint16_t>{100, 103, 110}) {
    EXPECT_FALSE(eligible(sm, {9, 19, 0}));
    EXPECT_FALSE(eligible(sm, {9, 20, 0}));
    EXPECT_FALSE(eligible(sm, {9, 24, 0}));
    EXPECT_TRUE(eligible(sm, {9, 24, 1}));
    EXPECT_FALSE(eligible(sm, {9, 25, 0}));
    EXPECT_TRUE(eligible(sm, {9, 25, 1}));
  }
  EXPECT_TRUE(eligible(90, {9, 20, 0}));
  EXPECT_TRUE(eligible(120, {9, 20, 0}));
  problem.lengths.seqlen_q = 2;
  EXPECT_TRUE(eligible(100, {9, 20, 0}));
}

TEST(Faults, D5BackwardOver261KeysInACapturedGraph) {
  Problem problem;
  problem.lengths = {.batch = 1, .seqlen_q = 261, .seqlen_k = 261};
  problem.features = {.heads = 24, .kv_heads = 24, .cuda_graph = true};
  const auto against = [&](Version cudnn) { return rules_against(Backend::cudnn, select(problem, {}, h200(cudnn))); };
  const std::string id = "fault.cudnn_graph_128_any_layout";
  for (const Layout layout : {Layout::bhsd_bhsd_bhsd, Layout::bshd_bshd_bshd, Layout::bs3hd, Layout::sbhd_sbhd_sbhd,
                              Layout::bshd_sbhd_sbhd}) {
    problem.features.layout = layout;
    EXPECT_TRUE(against({9, 15, 0}).contains(id)) << kLayoutNames[static_cast<std::size_t>(layout)];
    EXPECT_TRUE(against({9, 15, 1}).empty()) << kLayoutNames[static_cast<std::size_t>(layout)];
  }
  problem.features.cuda_graph = false;
  EXPECT_TRUE(against({9, 15, 0}).empty()) << "cudnn-frontend adds the padding mask";
  problem.features.cuda_graph = true;
  problem.features.padding = true;
  for (const Layout layout : {Layout::thd_thd_thd, Layout::bshd_bshd_bshd}) {
    problem.features.layout = layout;
    EXPECT_TRUE(against({9, 15, 0}).empty()) << kLayoutNames[static_cast<std::size_t>(layout)];
  }
}

TEST(Faults, D6AndD7BatchOf65536) {
  Problem problem;
  problem.lengths = {.batch = 65535, .seqlen_q = 4, .seqlen_k = 4};
  problem.features = {.heads = 8, .kv_heads = 8, .dtype = DType::float16, .training = false};
  Device device = h200({9, 26, 0});
  device.flash2 = Version(2, 8, 3);
  const BackendSet all{Backend::cudnn, Backend::flash2, Backend::aten_flash};
  EXPECT_EQ(select(problem, {}, device).eligible() & all, all);
  problem.lengths.batch = 65536;
  EXPECT_TRUE((select(problem, {}, device).eligible() & all).empty());
}

/// D8, against TransformerEngine's two conditions written out (TE spec 1.10, after N).
TEST(Faults, D8AnswersAsTransformerEngine) {
  const Settings te = Settings().with_policy(Policy::te);
  const std::size_t window = row_of("fault.cudnn_9_14_0_window");
  const std::size_t window_padding = row_of("fault.cudnn_9_14_0_window_padding_causal");
  const std::size_t graph = row_of("fault.cudnn_graph_128");
  const std::vector<Version> versions{{8, 9, 7},  {9, 13, 1}, {9, 14, 0}, {9, 14, 1},
                                      {9, 15, 0}, {9, 15, 1}, {9, 26, 0}};
  for (const Version cudnn : versions)
    for (std::size_t layout = 0; layout < kLayoutNames.size(); ++layout)
      for (unsigned bits = 0; bits < 32; ++bits)
        for (const std::int32_t left : {-1, 0, 128})
          for (const std::int64_t keys : {128, 1000, 1024, 1025, 2048}) {
            Problem problem;
            Features& f = problem.features;
            f.layout = static_cast<Layout>(layout);
            f.causal = (bits & 1U) != 0;
            f.padding = (bits & 2U) != 0;
            f.align = (bits & 4U) != 0 ? Align::top_left : Align::bottom_right;
            f.training = (bits & 8U) != 0;
            f.cuda_graph = (bits & 16U) != 0;
            f.window_left = left;
            f.window_given = left != -1;
            problem.lengths = {.batch = 2, .seqlen_q = 128, .seqlen_k = keys};
            const RuleMask fired = evaluate(problem, te, h200(cudnn)).fired;

            const bool causal_or_bottom_right = f.causal && !f.padding;
            const LayoutInfo about = info(f.layout);
            const bool dense = about.q == about.kv && (about.q == Format::bshd || about.q == Format::sbhd);
            const bool nan = cudnn == Version(9, 14, 0) && keys > 1024 && left != -1 && !causal_or_bottom_right;
            const bool access =
                cudnn <= Version(9, 15, 0) && f.training && dense && keys % 128 != 0 && f.cuda_graph && !f.padding;
            ASSERT_EQ(fired.test(window) || fired.test(window_padding), nan)
                << cudnn.to_string() << " " << kLayoutNames[layout] << " " << bits << " " << left << " " << keys;
            ASSERT_EQ(fired.test(graph), access)
                << cudnn.to_string() << " " << kLayoutNames[layout] << " " << bits << " " << left << " " << keys;
          }
}

TEST(Faults, D9AndD10RaggedBackward) {
  Problem problem;
  problem.lengths = {.batch = 9, .seqlen_q = 598, .seqlen_k = 598};
  problem.features = {.heads = 64,
                      .kv_heads = 8,
                      .head_dim_qk = 192,
                      .head_dim_v = 192,
                      .layout = Layout::thd_thd_thd,
                      .causal = true,
                      .padding = true,
                      .softmax = Softmax::learnable};
  const Fault sink = builtin("fault.cudnn_ragged_sink_backward");
  EXPECT_TRUE(fires(sink, problem, h200({9, 25, 0})));
  EXPECT_FALSE(fires(sink, problem, h200({9, 26, 0})));
  for (const Layout layout : {Layout::t3hd, Layout::th3d, Layout::thd_t2hd, Layout::thd_th2d}) {
    problem.features.layout = layout;
    EXPECT_TRUE(fires(sink, problem, h200({9, 25, 0})));
  }
  problem.features.layout = Layout::bshd_bshd_bshd;
  EXPECT_FALSE(fires(sink, problem, h200({9, 25, 0})));

  problem.features = {.layout = Layout::thd_thd_thd, .padding = true};
  const Fault ragged = builtin("fault.cudnn_sm120_ragged_backward");
  Device device = h200({9, 25, 0});
  EXPECT_FALSE(fires(ragged, problem, device));
  device.sm = 120;
  EXPECT_TRUE(fires(ragged, problem, device));
  problem.features.training = false;
  EXPECT_FALSE(fires(ragged, problem, device)) << "the forward is right";
}

TEST(Faults, D14BiasGradientBeyond32Bits) {
  Problem problem;
  problem.features = {.heads = 8,
                      .kv_heads = 8,
                      .head_dim_qk = 128,
                      .head_dim_v = 128,
                      .bias_type = BiasType::post_scale_bias,
                      .bias_shape = BiasShape::b_one_s_s,
                      .bias_requires_grad = true};
  const Fault fault = builtin("fault.cudnn_bias_gradient_int32");
  problem.lengths = {.batch = 2, .seqlen_q = 33280, .seqlen_k = 33280};
  EXPECT_TRUE(fires(fault, problem, h200({9, 13, 1})));
  problem.lengths = {.batch = 2, .seqlen_q = 32768, .seqlen_k = 32767};
  EXPECT_FALSE(fires(fault, problem, h200({9, 13, 1})));
  problem.lengths = {.batch = 2, .seqlen_q = 32768, .seqlen_k = 32768};
  EXPECT_TRUE(fires(fault, problem, h200({9, 13, 1}))) << "2^31 elements";
}

// ---- rule sets ---------------------------------------------------------------------------------------------------

Fault user_fault(std::string id = "site.no_cudnn") {
  return {.id = std::move(id),
          .backends = Backend::cudnn,
          .library = Library::cudnn,
          .when = {{Field::head_dim_qk, Op::equals, 64}},
          .effect = "slow here",
          .link = "ticket 7"};
}
Fault with(Clause clause) {
  Fault fault = user_fault();
  fault.when = {clause};
  return fault;
}
std::string refusal(std::vector<Fault> faults) {
  try {
    static_cast<void>(RuleSet(std::move(faults)));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return {};
}

TEST(RuleSet, RefusesBadRows) {
  std::vector<Fault> many;
  for (std::size_t i = 0; i <= RuleSet::kMaxFaults; ++i) many.push_back(user_fault("site." + std::to_string(i)));
  EXPECT_NE(refusal(many).find("64"), std::string::npos);
  many.pop_back();
  EXPECT_EQ(refusal(many), "");

  EXPECT_NE(refusal({user_fault("")}), "");
  EXPECT_NE(refusal({user_fault(), user_fault()}).find("site.no_cudnn"), std::string::npos);
  EXPECT_NE(refusal({user_fault(builtin_faults().front().id)}).find(builtin_faults().front().id), std::string::npos);

  Fault fault = user_fault();
  fault.backends = {};
  EXPECT_NE(refusal({fault}).find("backends"), std::string::npos);
  fault = user_fault();
  fault.since = fault.until = Version(9, 20, 0);
  EXPECT_NE(refusal({fault}).find("9.20.0"), std::string::npos);
  fault.since = Version(9, 21, 0);
  EXPECT_NE(refusal({fault}), "");
  fault = user_fault();
  fault.sm_min = 100;
  fault.sm_max = 90;
  EXPECT_NE(refusal({fault}).find("sm_min"), std::string::npos);
}

TEST(RuleSet, RefusesClausesAFieldCannotTake) {
  EXPECT_NE(refusal({with({Field::seqlen_k, Op::multiple_of, 0})}).find("seqlen_k"), std::string::npos);
  EXPECT_NE(refusal({with({Field::head_dim_qk, Op::not_multiple_of, -8})}).find("head_dim_qk"), std::string::npos);
  EXPECT_NE(refusal({with({Field::seqlen_q, Op::one_of, 3})}), "") << "a list of lengths would be a list of guards";
  EXPECT_NE(refusal({with({Field::heads, Op::none_of, 3})}), "");
  EXPECT_NE(refusal({with({Field::layout, Op::at_most, 3})}).find("layout"), std::string::npos);
  EXPECT_NE(refusal({with({Field::causal, Op::at_least, 1})}), "");
  EXPECT_NE(refusal({with({Field::cudnn, Op::equals, 1})}).find("since"), std::string::npos);
  EXPECT_NE(refusal({with({Field::switched_off, Op::equals, 1})}), "");
  EXPECT_NE(refusal({with({Field::batch, Op::equals, -1})}).find("batch"), std::string::npos);
  EXPECT_NE(refusal({with({Field::batch, Op::product_over, 1, 0})}), "") << "the product of nothing";
  EXPECT_NE(refusal({with({Field::batch, Op::product_over, 0, 1})}), "");
  EXPECT_NE(refusal({with({Field::batch, Op::product_over, 1, 8})}), "");
  EXPECT_NE(refusal({with({Field::heads, Op::product_over, 1, 1})}), "");
  EXPECT_NE(refusal({with({Field::batch, Op::at_most, 1, 1})}), "") << "`of` belongs to product_over";
  EXPECT_EQ(refusal({with({Field::batch, Op::product_over, 1, 7})}), "");
  EXPECT_EQ(refusal({with({Field::layout, Op::one_of, 3})}), "");
  EXPECT_EQ(refusal({with({Field::deterministic, Op::equals, 1})}), "");
}

TEST(RuleSet, DigestIsOfTheContent) {
  EXPECT_EQ(RuleSet().digest(), 0);
  EXPECT_EQ(RuleSet(std::vector<Fault>{}).digest(), 0);
  const std::uint16_t digest = RuleSet({user_fault()}).digest();
  EXPECT_NE(digest, 0);
  EXPECT_EQ(RuleSet({user_fault()}).digest(), digest);

  const std::vector<std::function<void(Fault&)>> changes{
      [](Fault& f) { f.id += "x"; },
      [](Fault& f) { f.backends |= Backend::flash2; },
      [](Fault& f) { f.library = Library::torch; },
      [](Fault& f) { f.since = Version(9, 1, 0); },
      [](Fault& f) { f.until = Version(9, 1, 0); },
      [](Fault& f) { f.sm_min = 80; },
      [](Fault& f) { f.sm_max = 90; },
      [](Fault& f) { f.when[0].field = Field::head_dim_v; },
      [](Fault& f) { f.when[0].op = Op::not_equals; },
      [](Fault& f) { f.when[0].value = 128; },
      [](Fault& f) { f.when.clear(); },
      [](Fault& f) { f.policies = Policies::both; },
      [](Fault& f) { f.effect += "."; },
      [](Fault& f) { f.link += "8"; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Fault fault = user_fault();
    changes[i](fault);
    EXPECT_NE(RuleSet({fault}).digest(), digest) << "change " << i;
    EXPECT_FALSE(RuleSet({fault}) == RuleSet({user_fault()})) << "change " << i;
  }
}

TEST(RuleSet, ActsUnderItsDigestAndNotUnderZero) {
  Problem problem;
  problem.lengths = {.batch = 2, .seqlen_q = 1024, .seqlen_k = 1024};
  const Device device = h200({9, 26, 0});
  ASSERT_EQ(select(problem, {}, device).backend(), Backend::cudnn);

  const std::uint16_t digest = register_rule_set(RuleSet({user_fault()}));
  EXPECT_EQ(register_rule_set(RuleSet({user_fault()})), digest) << "registering again does nothing";
  const Settings settings = Settings().with_rules_digest(digest);
  const Decision decision = select(problem, settings, device);
  EXPECT_NE(decision.backend(), Backend::cudnn);
  EXPECT_EQ(rules_against(Backend::cudnn, decision), std::set<std::string>{"site.no_cudnn"});
  EXPECT_EQ(decision.reasons(Backend::cudnn).front().evidence, "ticket 7");
  EXPECT_EQ(rule_set(digest)->faults().size(), 1U);

  EXPECT_EQ(select(problem, {}, device).backend(), Backend::cudnn);
  problem.features.head_dim_qk = problem.features.head_dim_v = 128;
  EXPECT_EQ(select(problem, settings, device).backend(), Backend::cudnn) << "another head dim";
}

TEST(RuleSet, MayReadTheSettings) {
  Fault fault = user_fault("site.deterministic");
  fault.when = {{Field::deterministic, Op::equals, 1}};
  const Settings settings = Settings().with_rules_digest(register_rule_set(RuleSet({fault})));
  Problem problem;
  problem.lengths = {.batch = 2, .seqlen_q = 1024, .seqlen_k = 1024};
  EXPECT_TRUE(select(problem, settings, h200({9, 26, 0})).eligible().contains(Backend::cudnn));
  EXPECT_FALSE(
      select(problem, settings.with_deterministic(true), h200({9, 26, 0})).eligible().contains(Backend::cudnn));
}

TEST(RuleSet, UnknownDigestNamesTheVariable) {
  std::uint16_t unknown = 1;
  for (bool known = true; known; ++unknown) {
    try {
      static_cast<void>(rule_set(unknown));
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find("CYNOSURE_FAULTS"), std::string::npos);
      known = false;
      break;
    }
  }
  const Settings settings = Settings().with_rules_digest(unknown);
  try {
    static_cast<void>(select(Problem(), settings, h200({9, 26, 0})));
    FAIL() << "a digest that nobody registered was ignored";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("CYNOSURE_FAULTS"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find(std::to_string(unknown)), std::string::npos);
  }
}

TEST(RuleSet, TwoSetsWithOneDigestAreAnError) {
  // 16 bits: among some hundred sets two share a digest.
  std::map<std::uint16_t, RuleSet> seen;
  for (int i = 0; i < 5000; ++i) {
    Fault fault = user_fault("site.collision");
    fault.effect = "number " + std::to_string(i);
    const RuleSet set({fault});
    const auto [first, inserted] = seen.try_emplace(set.digest(), set);
    if (inserted) continue;
    register_rule_set(first->second);
    try {
      register_rule_set(set);
      FAIL() << "a second set took the digest of the first";
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find("CYNOSURE_FAULTS"), std::string::npos);
    }
    EXPECT_TRUE(*rule_set(set.digest()) == first->second) << "the first set stays";
    return;
  }
  FAIL() << "no collision found";
}

}  // namespace
}  // namespace cynosure
