// SPDX-License-Identifier: Apache-2.0
// tests/cpp/rules_test.cpp: the table itself, TransformerEngine's quirks, and reports from the field by their numbers.
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <cynosure/attention_params.hpp>
#include <cynosure/fields.hpp>
#include <cynosure/select.hpp>

#include "io/environment.hpp"
#include "random_calls.hpp"

namespace cynosure {
namespace {

using testing::Call;
using testing::Random;
using enum Backend;

// ---- calls -------------------------------------------------------------------------------------------------------

using Edit = std::function<void(Features&, Lengths&)>;

/// bfloat16, 16 heads of 128, 2 sequences of 4096, gradients wanted, on a machine of the catalogue.
Call call_on(std::string_view device, const Edit& edit = {}) {
  Call call;
  call.device = *named_device(device);
  Features& f = call.problem.features;
  f.heads = f.kv_heads = 16;
  f.head_dim_qk = f.head_dim_v = 128;
  call.problem.lengths = {2, 4096, 4096};
  if (edit) edit(f, call.problem.lengths);
  return call;
}

Call under(Policy policy, Call call) {
  call.settings = call.settings.with_policy(policy);
  return call;
}
Call te(const Call& call) { return under(Policy::te, call); }
Call deterministic(Call call) {
  call.settings = call.settings.with_deterministic(true);
  return call;
}
Call with_cudnn(Call call, Version version) {
  call.device.cudnn = version;
  return call;
}
Call with_contract(Call call, Contract contract, const BackendList& named) {
  call.settings = call.settings.with_contract(contract, named);
  return call;
}

bool eligible(const Call& call, Backend backend) { return call.outcome().eligible.contains(backend); }
std::optional<Backend> chosen(const Call& call) { return call.outcome().backend(); }

std::set<std::string> reasons(const Call& call, Backend backend) {
  std::set<std::string> ids;
  for (const Reason& reason : call.decision().reasons(backend)) ids.insert(reason.rule);
  return ids;
}
bool fires(const Call& call, std::string_view id) {
  const std::vector<Rule> table = rule_table(call.settings);
  bool found = false;
  call.outcome().fired.for_each([&](std::size_t row) { found = found || table[row].id == id; });
  return found;
}
std::string fix_of(const Call& call, Backend backend, const std::string& id) {
  const Decision decision = call.decision();
  for (const Reason& reason : decision.reasons(backend))
    if (reason.rule == id) return decision.fix_for(reason).value_or(Fix()).text;
  return "no such reason";
}

/// A default record of TransformerEngine's, edited, for a policy.
Call record(Policy policy, std::string_view device, const std::function<void(AttentionParams&)>& edit = {}) {
  AttentionParams params;
  if (edit) edit(params);
  Call call;
  call.device = *named_device(device);
  call.problem = params.problem(policy);
  call.settings = call.settings.with_policy(policy).with_deterministic(params.deterministic());
  return call;
}

// ---- the table ---------------------------------------------------------------------------------------------------

TEST(Rules, IdsAreUniqueAndDotted) {
  std::set<std::string_view> ids;
  for (const Rule& rule : rule_table()) {
    EXPECT_TRUE(ids.insert(rule.id).second) << rule.id;
    const std::size_t dot = rule.id.find('.');
    EXPECT_TRUE(dot != std::string_view::npos && dot > 0 && dot + 1 < rule.id.size()) << rule.id;
    for (const char c : rule.id)
      EXPECT_TRUE((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.') << rule.id;
  }
}

TEST(Rules, EveryRowSaysWhatWouldHoldAndWhereThatComesFrom) {
  for (const Rule& rule : rule_table()) {
    EXPECT_FALSE(rule.required.empty()) << rule.id;
    EXPECT_FALSE(rule.evidence.empty()) << rule.id;
    EXPECT_FALSE(rule.backends.empty()) << rule.id;
    EXPECT_GT(rule.reads.size(), 0U) << rule.id;
    std::set<Field> reads(rule.reads.begin(), rule.reads.end());
    EXPECT_EQ(reads.size(), rule.reads.size()) << rule.id << " names a field twice";
  }
}

/// Rows of policy `te` alone, and what policy `fastest` has in their place. Nothing: the quirk is simply gone.
const std::map<std::string_view, std::string_view> kTeRows{
    {"aten_flash.te_unknown", ""},                            // TransformerEngine's list of backends
    {"cpu.te_unknown", ""},                                   //
    {"cudnn.te_attn_mask", ""},                               // a dense mask reaches cuDNN as a bias
    {"cudnn.te_bias_gradient_111s", ""},                      // the backend expands the bias and sums the gradient up
    {"cudnn.te_cp_heads", "cudnn.cp_heads"},                  // Q11
    {"cudnn.te_head_dims_layout", "cudnn.head_dims_layout"},  // Q8
    {"cudnn.te_window_cross", "cudnn.window_cross"},          // measured
    {"cudnn.te_window_dropout", "cudnn.window_dropout"},      // measured
    {"cudnn.te_window_fp8", "cudnn.window_fp8"},              // Q15
    {"cudnn_f16.te_padding_bias", "cudnn_f16.padding_bias"},  // bottom_right too
    {"flash.te_bias_shape", ""},                              // Q1
    {"flash.te_top_left_alibi", "flash.top_left"},            // Q4
    {"flash.te_top_left_causal", "flash.top_left"},
    {"flash.te_top_left_window", "flash.top_left"},
    {"flash2.te_deterministic_version", "flash2.deterministic_version"},
    {"flash2.te_head_dim_arch", "flash2.backward_head_dim_arch"},  // Q7
    {"flash4.te_flash3_first", ""},                                // Q3
    {"unfused.te_cpu_device", ""},
};

TEST(Rules, RowsOfOnePolicyAreKnownByName) {
  std::map<std::string_view, Policies> policies;
  std::set<std::string_view> te_only;
  for (const Rule& rule : rule_table()) {
    policies[rule.id] = rule.policies;
    if (rule.policies == Policies::te) te_only.insert(rule.id);
    EXPECT_EQ(rule.policies == Policies::te, rule.id.find(".te_") != std::string_view::npos) << rule.id;
  }
  for (const auto& [id, counterpart] : kTeRows) {
    EXPECT_TRUE(te_only.erase(id) == 1) << id << " is no row of te alone";
    if (!counterpart.empty()) {
      EXPECT_EQ(policies.at(counterpart), Policies::fastest) << counterpart;
    }
  }
  for (const std::string_view id : te_only) ADD_FAILURE() << id << " has no entry here: which row does fastest have?";
}

/// Rows that random calls meet too seldom.
std::vector<Call> directed_calls() {
  std::vector<Call> calls;
  const auto add = [&](std::string_view device, const Edit& edit, Version cudnn = {}) {
    Call call = call_on(device, edit);
    if (cudnn.installed()) call.device.cudnn = cudnn;
    calls.push_back(call);
    calls.push_back(te(call));
    calls.push_back(deterministic(call));
  };
  add(
      "h200",
      [](Features& f, Lengths& l) {  // a ragged batch beyond 32 bits, on an old cuDNN
        f.layout = Layout::thd_thd_thd;
        f.padding = true;
        l = {2, 4000000, 4000000};
      },
      Version(9, 4, 0));
  add("h200", [](Features& f, Lengths&) {
    f.fp8 = f.fp8_dpa = true;
    f.fp8_recipe = Fp8Recipe::delayed;
    f.return_max_logit = true;
    f.softmax = Softmax::learnable;
  });
  add("b200", [](Features& f, Lengths&) { f.head_dim_qk = f.head_dim_v = 512; });
  add("b200", [](Features& f, Lengths& l) {
    f.head_dim_qk = f.head_dim_v = 256;
    f.window_given = true;
    f.window_left = 128;
    f.window_right = 0;
    l.seqlen_k = 8192;
  });
  add("b200", [](Features& f, Lengths&) {
    f.head_dim_qk = 192;
    f.head_dim_v = 72;
  });
  add("h200", [](Features& f, Lengths&) {
    f.heads = 7;
    f.kv_heads = 2;
  });
  add(
      "rtx5090",
      [](Features& f, Lengths&) {
        f.layout = Layout::t3hd;
        f.padding = true;
      },
      Version(9, 15, 0));
  add("h200", [](Features& f, Lengths&) {
    f.kv_cache = KvCache::paged;
    f.context_parallel = f.fp8 = f.fp8_dpa = f.fp8_mha = true;
    f.fp8_recipe = Fp8Recipe::current;
    f.layout = Layout::paged_kv_thd_bshd_bshd;
  });
  add("h200", [](Features& f, Lengths& l) {
    f.causal = false;
    f.heads = f.kv_heads = 1;
    f.head_dim_qk = f.head_dim_v = 64;
    l = {1, 1, 128};
  });
  add("h200", [](Features& f, Lengths&) { f.heads = f.kv_heads = 65536; });
  add("h200", [](Features& f, Lengths& l) {
    f.bias_type = BiasType::post_scale_bias;
    f.bias_shape = BiasShape::b_one_s_s;
    f.bias_requires_grad = true;
    l = {2, 33280, 33280};
  });
  return calls;
}

TEST(Rules, EveryRowFiresSomewhere) {
  std::set<std::string_view> silent;
  const std::vector<Rule> table = rule_table();
  for (const Rule& rule : table) silent.insert(rule.id);
  const auto hear = [&](const Call& call) {
    call.outcome().fired.for_each([&](std::size_t row) { silent.erase(table[row].id); });
  };
  Random random(51);
  for (int i = 0; i < 60000 && !silent.empty(); ++i) hear(testing::random_call(random));
  for (const Call& call : directed_calls()) hear(call);
  for (const std::string_view id : silent) ADD_FAILURE() << id << " never fires";
}

TEST(Rules, ARowFiresUnderItsPoliciesOnly) {
  const std::vector<Rule> table = rule_table();
  Random random(52);
  for (int i = 0; i < 20000; ++i) {
    const Call call = testing::random_call(random);
    const bool fastest_rows = call.settings.policy() == Policy::fastest || call.settings.on(Settings::enforce);
    const bool te_rows = call.settings.policy() == Policy::te;
    call.outcome().fired.for_each([&](std::size_t row) {
      const auto policies = static_cast<unsigned>(table[row].policies);
      ASSERT_TRUE(((policies & 1U) != 0 && fastest_rows) || ((policies & 2U) != 0 && te_rows)) << table[row].id;
    });
  }
}

// ---- the quirks of specification 1.15: kept by `te`, gone under `fastest` ----------------------------------------

TEST(Quirks, Q1ADefaultRecordNeverSelectsFlash) {
  EXPECT_TRUE((record(Policy::te, "h200").outcome().eligible & kFlashBackends).empty());
  EXPECT_TRUE(fires(record(Policy::te, "h200"), "flash.te_bias_shape"));
  EXPECT_TRUE(eligible(record(Policy::fastest, "h200"), flash2));
  EXPECT_TRUE(eligible(record(Policy::fastest, "h200"), flash3));
}

TEST(Quirks, Q2ADefaultRecordIsNeverFusedWhenDeterministic) {
  const auto edit = [](AttentionParams& p) { p.set("deterministic", true); };
  EXPECT_EQ(reasons(record(Policy::te, "h200", edit), cudnn), std::set<std::string>{"cudnn_f16.deterministic"});
  EXPECT_TRUE(eligible(record(Policy::fastest, "h200", edit), cudnn));
}

TEST(Quirks, Q3FlashAttention4IsLostWhereFlashAttention3IsUnsuitable) {
  const Call call = call_on("h200", [](Features& f, Lengths&) { f.head_dim_qk = 96, f.head_dim_v = 64; });
  EXPECT_FALSE(eligible(te(call), flash3));
  EXPECT_EQ(reasons(te(call), flash4), std::set<std::string>{"flash4.te_flash3_first"});
  EXPECT_FALSE(eligible(call, flash3));
  EXPECT_TRUE(eligible(call, flash4));
}

TEST(Quirks, Q4AWrongDiagonalWhenFlashAttention2IsNotAlive) {
  Call call = call_on("h200", [](Features& f, Lengths& l) {
    f.window_given = true;
    f.window_left = f.window_right = 128;
    f.align = Align::top_left;
    f.bottom_right_diagonal = false;
    l.seqlen_k = 8192;
  });
  EXPECT_FALSE(eligible(te(call), flash3)) << "FlashAttention 2 is there, so the family is looked at";
  call.device.flash2 = Version();
  EXPECT_TRUE(eligible(te(call), flash3)) << "TransformerEngine's answer: it runs along the other diagonal";
  EXPECT_EQ(reasons(call, flash3), std::set<std::string>{"flash.top_left"});
}

TEST(Quirks, Q5FlashAttention2WithAllGatherOverRaggedBatches) {
  const Call call = call_on("a100", [](Features& f, Lengths&) {
    f.layout = Layout::thd_thd_thd;
    f.padding = true;
    f.context_parallel = true;
    f.cp_comm = CpComm::all_gather;
    f.cp_size = 2;
  });
  EXPECT_EQ(chosen(te(call)), flash2);
  EXPECT_TRUE(reasons(call, flash2).contains("flash2.cp_all_gather_thd"));
}

TEST(Quirks, Q6TheStepsOfContextParallelismAreNotExamined) {
  const Call call = call_on("h200", [](Features& f, Lengths&) {
    f.fp8 = f.fp8_dpa = true;
    f.fp8_recipe = Fp8Recipe::delayed;
    f.causal = true;
    f.align = Align::top_left;
    f.context_parallel = true;
    f.cp_comm = CpComm::all_gather;
    f.cp_size = 2;
  });
  EXPECT_EQ(chosen(te(call)), cudnn_fp8);
  EXPECT_EQ(reasons(call, cudnn_fp8), std::set<std::string>{"cudnn_fp8.cp_all_gather"});
}

TEST(Quirks, Q7ArchitecturesBetweenExactComparisons) {
  const Edit ragged = [](Features& f, Lengths&) {
    f.layout = Layout::t3hd;
    f.padding = true;
    f.training = false;
  };
  EXPECT_FALSE(eligible(te(call_on("rtx5090", ragged)), cudnn)) << "12.0";
  EXPECT_TRUE(eligible(te(call_on("gb10", ragged)), cudnn)) << "12.1 falls between the rules";
  EXPECT_TRUE(reasons(call_on("gb10", ragged), cudnn).contains("cudnn.thd_sm12x_packed"));
  const Edit wide = [](Features& f, Lengths&) { f.head_dim_qk = f.head_dim_v = 256; };
  EXPECT_EQ(reasons(te(call_on("b300", wide)), flash2), std::set<std::string>{"flash2.te_head_dim_arch"}) << "10.3";
  EXPECT_TRUE(eligible(call_on("b300", wide), flash2));
  EXPECT_TRUE(eligible(call_on("thor", wide), flash2)) << "11.0";
}

TEST(Quirks, Q8UnequalHeadDimsOverAPagedCache) {
  const Call call = call_on("h200", [](Features& f, Lengths&) {
    f.head_dim_qk = 192;
    f.training = false;
    f.padding = true;
    f.layout = Layout::paged_kv_bshd_bshd_bshd;
    f.kv_cache = KvCache::paged;
    f.page_size = 64;
  });
  EXPECT_EQ(reasons(te(call), cudnn), std::set<std::string>{"cudnn.te_head_dims_layout"});
  EXPECT_TRUE(eligible(call, cudnn));
}

TEST(Quirks, Q9ADeadVariableStaysDead) {
  const std::array<io::Variable, 1> variables{io::Variable{"NVTE_FUSED_ATTN_BACKEND", "0"}};
  EXPECT_EQ(io::selection_switches(variables, {}, false), Settings());
  const std::vector<std::string_view> names = io::environment_names();
  EXPECT_EQ(std::find(names.begin(), names.end(), "NVTE_FUSED_ATTN_BACKEND"), names.end());
}

TEST(Quirks, Q10TensorSubclassesDisableFlash3AndFused) {
  const Call call = call_on("h200", [](Features& f, Lengths&) { f.tensor_kind = TensorKind::other; });
  EXPECT_EQ(reasons(te(call), flash3), std::set<std::string>{"flash3.tensor_kind"});
  EXPECT_EQ(reasons(te(call), cudnn), std::set<std::string>{"cudnn.tensor_kind"});
  EXPECT_TRUE(eligible(call, flash3));
  EXPECT_TRUE(eligible(call, cudnn));
}

TEST(Quirks, Q11HeadsForAllToAllAreCheckedAsEven) {
  const auto heads = [](std::int32_t n, std::int32_t ranks) {
    return call_on("h200", [=](Features& f, Lengths&) {
      f.heads = f.kv_heads = n;
      f.context_parallel = true;
      f.cp_comm = CpComm::a2a;
      f.cp_size = ranks;
    });
  };
  EXPECT_TRUE(eligible(te(heads(6, 4)), cudnn)) << "6 heads do not divide over 4 ranks";
  EXPECT_EQ(reasons(heads(6, 4), cudnn), std::set<std::string>{"cudnn.cp_heads"});
  EXPECT_EQ(reasons(te(heads(9, 3)), cudnn), std::set<std::string>{"cudnn.te_cp_heads"})
      << "9 heads divide over 3 ranks";
  EXPECT_TRUE(eligible(heads(9, 3), cudnn));
}

TEST(Quirks, Q12AndQ13AndQ18NothingIsRemembered) {
  // No copy from import time, no minimum version that earlier calls changed, no current device: three calls in turn.
  const Call paged = call_on("h200", [](Features& f, Lengths&) { f.kv_cache = KvCache::paged, f.page_size = 256; });
  Call off = call_on("h200");
  off.settings = off.settings.with_enabled(BackendSet::all() - kFlashBackends);
  Call absent = call_on("a100");
  absent.device.flash2 = Version();
  const std::vector<Call> calls{paged, off, absent, call_on("b200")};
  std::vector<std::vector<Reason>> first;
  for (const Call& call : calls) first.push_back(call.decision().reasons());
  for (std::size_t i = calls.size(); i-- > 0;) EXPECT_EQ(calls[i].decision().reasons(), first[i]);
}

TEST(Quirks, Q14DropoutFiltersInInferenceToo) {
  const auto edit = [](AttentionParams& p) {
    p.set("attention_dropout", 0.1);
    p.set("is_training", false);
    p.set("core_attention_bias_shape", std::monostate{});
  };
  EXPECT_EQ(reasons(record(Policy::te, "h200", edit), flash3), std::set<std::string>{"flash3.dropout"});
  EXPECT_TRUE(eligible(record(Policy::fastest, "h200", edit), flash3));
}

TEST(Quirks, Q15AWindowWithFp8MhaAlone) {
  const Call call = call_on("h200", [](Features& f, Lengths&) {
    f.fp8 = f.fp8_mha = true;
    f.fp8_recipe = Fp8Recipe::delayed;
    f.window_given = true;
    f.window_left = 128;
    f.window_right = 0;
  });
  EXPECT_EQ(reasons(te(call), cudnn), std::set<std::string>{"cudnn.te_window_fp8"});
  EXPECT_TRUE(eligible(call, cudnn)) << "the attention runs in 16 bit";
}

TEST(Quirks, Q17AnswersHaveOneType) {
  const Call call = te(call_on("h200"));
  const TeAnswer answer = te_answer(call.outcome(), call.device);
  static_assert(std::is_same_v<decltype(answer.flash_version), Version>);
  static_assert(std::is_same_v<decltype(answer.fused_backend), std::optional<int>>);
  EXPECT_TRUE(answer.fused && !answer.flash && !answer.unfused);
}

// ---- reports from the field --------------------------------------------------------------------------------------

TEST(Field, A9TheKeyHoldsOnlyWhatSelectionReads) {
  for (const std::string_view name : AttentionParams::names()) {
    EXPECT_EQ(name.find("amax"), std::string_view::npos) << name;
    EXPECT_EQ(name.find("fp8_meta"), std::string_view::npos) << name;
  }
}

TEST(Field, A17APresetVariableDoesNotConflictWithAnArgument) {
  const std::array<io::Variable, 1> preset{io::Variable{"NVTE_FUSED_ATTN", "1"}};
  Call call = call_on("h200");
  call.settings = io::settings_from_environment(preset, {}).with_contract(Contract::require, {flash2});
  EXPECT_EQ(chosen(call), flash2);
  EXPECT_EQ(reasons(call, cudnn), std::set<std::string>{"cudnn.not_required"});
  const std::array<io::Variable, 1> off{io::Variable{"NVTE_FLASH_ATTN", "0"}};
  call.settings = io::settings_from_environment(off, {}).with_contract(Contract::require, {flash2});
  EXPECT_EQ(chosen(call), std::nullopt);
  EXPECT_EQ(reasons(call, flash2), std::set<std::string>{"flash2.switched_off"});
}

/// Every backend that may not run says why, in words and with the values it is about.
void expect_explained(const Call& call) {
  const Decision decision = call.decision();
  for (const Backend backend : BackendSet::all()) {
    if (decision.eligible().contains(backend)) continue;
    const std::vector<Reason> why = decision.reasons(backend);
    EXPECT_FALSE(why.empty()) << name(backend);
    for (const Reason& reason : why)
      EXPECT_TRUE(!reason.required.empty() && !reason.evidence.empty() && !reason.actual.empty()) << reason.rule;
  }
}

TEST(Field, B3FlashAloneWithAMaskOrOnAnOldCard) {
  const Call masked = with_contract(call_on("a100", [](Features& f, Lengths&) { f.attn_mask = AttnMask::boolean; }),
                                    Contract::require, {flash2, flash3});
  EXPECT_EQ(chosen(masked), std::nullopt);
  EXPECT_EQ(reasons(masked, flash2), std::set<std::string>{"flash.attn_mask"});
  expect_explained(masked);
  const Call old = with_contract(call_on("v100"), Contract::require, {flash2});
  EXPECT_TRUE(reasons(old, flash2).contains("flash2.arch"));
  expect_explained(old);
}

TEST(Field, B5ABlockedReleaseIsNamedWithTheOneThatHelps) {
  const Call call = with_cudnn(call_on("b200",
                                       [](Features& f, Lengths& l) {
                                         f.layout = Layout::thd_thd_thd;
                                         f.padding = f.causal = true;
                                         f.same_lengths = true;
                                         f.heads = f.kv_heads = 64;
                                         f.head_dim_qk = 192;
                                         l = {1, 8192, 8192};
                                       }),
                               Version(9, 10, 1));
  EXPECT_TRUE(reasons(call, cudnn).contains("cudnn_f16.blocked_release"));
  EXPECT_EQ(fix_of(call, cudnn, "cudnn_f16.blocked_release"), "cuDNN 9.10.2 or newer");
  EXPECT_EQ(fix_of(call, cudnn, "cudnn_f16.head_dim"), "cuDNN 9.11.0 or newer");
  EXPECT_EQ(call.decision().remedy(cudnn), "cuDNN 9.11.0 or newer");
}

TEST(Field, B7Gemma4OnHopper) {
  const auto gemma = [](std::int32_t dim, std::int32_t left) {
    return call_on("h200", [=](Features& f, Lengths&) {
      f.layout = Layout::thd_thd_thd;
      f.padding = f.causal = f.same_lengths = true;
      f.heads = 2;
      f.kv_heads = 1;
      f.head_dim_qk = f.head_dim_v = dim;
      f.window_given = true;
      f.window_left = left;
      f.window_right = 0;
    });
  };
  EXPECT_NE(chosen(gemma(256, 1023)), unfused);
  EXPECT_EQ(chosen(gemma(512, -1)), unfused);
  for (const Backend backend : {cudnn, flash2, flash3, flash4}) {
    const std::set<std::string> why = reasons(gemma(512, -1), backend);
    EXPECT_TRUE(std::any_of(why.begin(), why.end(), [](const std::string& id) { return id.ends_with("head_dim"); }))
        << name(backend);
  }
}

TEST(Field, B9TheCauseIsNamedNotAStatus) {
  EXPECT_TRUE(reasons(call_on("t4"), cudnn).contains("cudnn.arch"));
  const Call bias = call_on("a100", [](Features& f, Lengths&) {
    f.bias_type = BiasType::post_scale_bias;
    f.bias_shape = BiasShape::one_one_one_s;
    f.bias_requires_grad = true;
    f.padding = true;
  });
  EXPECT_TRUE(reasons(bias, cudnn).contains("cudnn_f16.padding_bias"));
  EXPECT_NE(fix_of(bias, cudnn, "cudnn_f16.padding_bias"), "no such reason");
}

TEST(Field, B13EveryBackendHasItsOwnReasons) {
  expect_explained(call_on("rtxpro6000", [](Features& f, Lengths&) { f.head_dim_qk = 192, f.causal = true; }));
  expect_explained(call_on("b200", [](Features& f, Lengths&) { f.head_dim_qk = f.head_dim_v = 576; }));
  const Call fp8 = call_on("a100", [](Features& f, Lengths&) { f.dtype = DType::float8_e4m3; });
  EXPECT_EQ(chosen(fp8), std::nullopt);
  expect_explained(fp8);
}

TEST(Field, B15AllowedBuiltInstalledEligibleAndChosenAreDifferentThings) {
  Call call = call_on("h200", [](Features& f, Lengths&) { f.head_dim_qk = f.head_dim_v = 320; });
  call.device.flash3 = Version();
  call.device.built = (BackendSet::all() - BackendSet(flash4)).bits();
  call.settings = call.settings.with_enabled(BackendSet::all() - BackendSet(flash2));
  std::map<std::string, Way> ways;
  for (const Reason& reason : call.decision().reasons()) ways[reason.rule] = reason.way;
  EXPECT_EQ(ways.at("flash2.switched_off"), Way::switched_off);
  EXPECT_EQ(ways.at("flash2.head_dim"), Way::not_eligible);
  EXPECT_EQ(ways.at("flash3.not_installed"), Way::not_installed);
  EXPECT_EQ(ways.at("flash4.not_built"), Way::not_built);
  EXPECT_EQ(chosen(call), unfused);
  call.settings = call.settings.with_contract(Contract::require, {unfused});
  for (const Reason& reason : call.decision().reasons()) ways[reason.rule] = reason.way;
  EXPECT_EQ(ways.at("cudnn.not_required"), Way::not_required);
}

TEST(Field, B17AndN9PreferenceIsByArchitectureAndOverridable) {
  EXPECT_EQ(chosen(call_on("h100")), cudnn) << "1.7 to 2.3 times FlashAttention";
  EXPECT_EQ(chosen(call_on("a100")), flash2) << "cuDNN at 0.82 of it";
  EXPECT_EQ(chosen(call_on("a10g")), flash2) << "0.93";
  EXPECT_EQ(chosen(call_on("rtxpro6000")), flash2) << "0.88";
  EXPECT_EQ(chosen(with_contract(call_on("a100"), Contract::prefer, {cudnn})), cudnn);
  EXPECT_EQ(chosen(with_contract(call_on("h100"), Contract::prefer, {flash3})), flash3);
}

TEST(Field, C9HeadDim256OnSm103IsNotLeftToUnfused) {
  for (const bool training : {false, true}) {
    const Call call = call_on("b300", [=](Features& f, Lengths&) {
      f.layout = Layout::thd_thd_thd;
      f.padding = f.causal = f.same_lengths = true;
      f.head_dim_qk = f.head_dim_v = 256;
      f.training = training;
    });
    EXPECT_TRUE(chosen(call) && chosen(call) != unfused);
    EXPECT_TRUE(eligible(call, flash2)) << "predicates on ranges";
  }
}

TEST(Field, C11AWindowIsNeverDropped) {
  Call call = call_on("a100", [](Features& f, Lengths&) {
    f.causal = f.window_given = true;
    f.window_left = 1023;
    f.window_right = 0;
  });
  call.device.flash2 = Version(2, 2, 0);
  EXPECT_EQ(reasons(call, flash2), std::set<std::string>{"flash2.window_version"});
  EXPECT_TRUE(eligible(call, unfused));
}

TEST(Field, C13ASoftCapFallsThroughToWhoHasIt) {
  const Edit cap = [](Features& f, Lengths&) { f.softcap = true; };
  EXPECT_EQ(chosen(call_on("t4", cap)), unfused);
  EXPECT_EQ(chosen(call_on("a100", cap)), flash2);
  Call old = call_on("a100", cap);
  old.device.flash2 = Version(2, 5, 7);
  EXPECT_EQ(chosen(old), unfused);
  EXPECT_TRUE(reasons(old, cudnn).contains("cudnn.softcap"));
  EXPECT_TRUE(reasons(old, aten_flash).contains("aten_flash.softcap"));
}

// Section D is in faults_test.cpp.

TEST(Field, F1AndF5AlignmentIsAnArgumentWhicheverSideIsLonger) {
  const auto causal = [](Align align, std::int64_t q, std::int64_t k) {
    return call_on("a100", [=](Features& f, Lengths& l) {
      f.causal = true;
      f.align = align;
      l = {1, q, k};
    });
  };
  for (const auto& [q, k] : {std::pair<std::int64_t, std::int64_t>{2, 5}, {5, 2}}) {
    EXPECT_TRUE(eligible(causal(Align::bottom_right, q, k), flash2)) << q << " " << k;
    EXPECT_EQ(reasons(causal(Align::top_left, q, k), flash2), std::set<std::string>{"flash.top_left"}) << q << " " << k;
    EXPECT_TRUE(eligible(causal(Align::top_left, q, k), unfused));
    EXPECT_TRUE(eligible(causal(Align::bottom_right, q, k), unfused));
  }
  EXPECT_TRUE(eligible(causal(Align::top_left, 5, 5), flash2)) << "one mask with two names";
}

TEST(Field, F3BothAlignmentsOverCrossLengthsAndDecode) {
  for (const Align align : {Align::top_left, Align::bottom_right}) {
    for (const std::int64_t q : {std::int64_t{2048}, std::int64_t{1}}) {
      const Call call = call_on("h200", [=](Features& f, Lengths& l) {
        f.causal = true;
        f.align = align;
        f.heads = f.kv_heads = 24;
        l = {1, q, 4096};
      });
      EXPECT_TRUE(chosen(call) && chosen(call) != unfused) << q;
    }
  }
}

TEST(Field, G1ASmallWindowIsAHardRequirement) {
  const Call call = call_on("h200", [](Features& f, Lengths& l) {
    f.dtype = DType::float16;
    f.heads = f.kv_heads = 64;
    f.head_dim_qk = f.head_dim_v = 64;
    f.causal = f.window_given = true;
    f.window_left = 1024;
    f.window_right = 0;
    l = {2, 2048, 2048};
  });
  EXPECT_TRUE(eligible(call, cudnn));
  EXPECT_TRUE(reasons(with_cudnn(call, Version(9, 1, 0)), cudnn).contains("cudnn_f16.window"));
}

TEST(Field, G3AnUnlimitedWindowIsNoWindow) {
  const Edit causal = [](Features& f, Lengths&) { f.causal = true; };
  const Edit stated = [](Features& f, Lengths&) {
    f.causal = f.window_given = true;
    f.window_right = 0;
  };
  for (const std::string_view device : {"a100", "h200", "b200", "rtx5090"})
    EXPECT_EQ(call_on(device, causal).outcome(), call_on(device, stated).outcome()) << device;
}

TEST(Field, H1FlashAttention3HasABackwardForEqualHeadDimsOnly) {
  for (const auto& [qk, dv] : {std::pair{192, 128}, {64, 128}, {64, 512}}) {
    for (const std::int32_t left : {-1, 127}) {
      const auto call = [&, qk = qk, dv = dv](bool training) {
        return call_on("h200", [=](Features& f, Lengths&) {
          f.head_dim_qk = qk;
          f.head_dim_v = dv;
          f.training = training;
          f.window_given = left != -1;
          f.window_left = left;
          f.window_right = left == -1 ? -1 : 0;
        });
      };
      EXPECT_EQ(reasons(call(true), flash3), std::set<std::string>{"flash3.backward_head_dims"}) << qk << " " << dv;
      EXPECT_TRUE(eligible(call(false), flash3)) << qk << " " << dv;
      EXPECT_TRUE(eligible(te(call(true)), flash3)) << "TransformerEngine's answer";
    }
  }
}

TEST(Field, H5AnyGroupSize) {
  const Edit three = [](Features& f, Lengths& l) {
    f.heads = 9;
    f.kv_heads = 3;
    f.head_dim_qk = f.head_dim_v = 64;
    l = {2, 5, 5};
  };
  EXPECT_EQ(call_on("h200", three).outcome().eligible & (cudnn | flash2), cudnn | flash2);
  EXPECT_EQ(chosen(call_on("cpu", three)), cpu);
}

TEST(Field, H7UnequalHeadDimsAlwaysFindABackend) {
  for (const auto& [qk, dv] : {std::pair{128, 512}, {64, 32}, {64, 128}, {8, 16}})
    for (const std::string_view device : {"cpu", "a100", "h200", "b200"})
      EXPECT_TRUE(chosen(call_on(device,
                                 [qk = qk, dv = dv](Features& f, Lengths& l) {
                                   f.head_dim_qk = qk;
                                   f.head_dim_v = dv;
                                   l = {1, 1024, 1024};
                                 })))
          << device << qk << dv;
}

TEST(Field, H9HeadDimsAreCheckedBeforeAnyLaunch) {
  const auto dim = [](std::int32_t d) {
    return call_on("h200", [d](Features& f, Lengths&) { f.head_dim_qk = f.head_dim_v = d; });
  };
  for (const std::int32_t d : {1, 7, 33, 100, 127})
    for (const Backend backend : {cudnn, flash2, aten_flash, flash3, flash4})
      EXPECT_FALSE(eligible(dim(d), backend)) << name(backend) << " " << d;
  for (const std::int32_t d : {8, 72, 120}) EXPECT_TRUE(eligible(dim(d), flash2)) << d;
}

TEST(Field, N1NoRowClaimsAnUnconfirmedFault) {
  for (const Rule& rule : rule_table()) EXPECT_EQ(rule.evidence.find("#2244"), std::string_view::npos) << rule.id;
  EXPECT_TRUE(eligible(deterministic(call_on("h200")), flash3));
}

TEST(Field, N3DeterminismIsAnInput) {
  EXPECT_TRUE(eligible(call_on("a100"), cudnn));
  EXPECT_EQ(reasons(deterministic(call_on("a100")), cudnn), std::set<std::string>{"cudnn_f16.deterministic"});
  EXPECT_TRUE(eligible(deterministic(call_on("h200")), cudnn)) << "another architecture, another answer";
  EXPECT_TRUE(fires(deterministic(call_on("rtx5090")), "cudnn_f16.sm12x_deterministic"));
}

TEST(Field, N5Fp8IsAHardRequirement) {
  const Edit fp8 = [](Features& f, Lengths&) {
    f.fp8 = f.fp8_dpa = true;
    f.fp8_recipe = Fp8Recipe::delayed;
  };
  EXPECT_EQ(chosen(call_on("a100", fp8)), std::nullopt) << "no 16-bit attention in its place";
  EXPECT_EQ(chosen(call_on("h200", fp8)), cudnn_fp8);
  EXPECT_TRUE(reasons(call_on("h200", fp8), flash3).contains("flash3.fp8_training")) << "its backward gives NaN";
}

}  // namespace
}  // namespace cynosure
