// SPDX-License-Identifier: Apache-2.0
// tests/cpp/attention_params_test.cpp: TransformerEngine's record: its names, defaults and refusals, and its answers.
#include <array>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include <cynosure/attention_params.hpp>
#include <cynosure/errors.hpp>
#include <cynosure/fields.hpp>
#include <cynosure/select.hpp>

namespace cynosure {
namespace {

using namespace std::string_view_literals;

std::string refusal(std::string_view name, const ParamValue& value) {
  AttentionParams params;
  try {
    params.set(name, value);
  } catch (const InvalidField& error) {
    EXPECT_EQ(error.field(), name);
    return error.what();
  }
  return "accepted";
}

TEST(AttentionParams, DefaultsAreTransformerEngines) {
  // Specification 1.1, in its order.
  const Problem p = AttentionParams().problem(Policy::te);
  const Features& f = p.features;
  EXPECT_EQ(f.tensor_kind, TensorKind::plain);
  EXPECT_EQ(f.dtype, DType::bfloat16);
  EXPECT_EQ(f.layout, Layout::sbh3d);
  EXPECT_EQ(p.lengths, (Lengths{1, 128, 128}));
  EXPECT_TRUE(f.heads == 16 && f.kv_heads == 16 && f.head_dim_qk == 64 && f.head_dim_v == 64);
  EXPECT_TRUE(!f.causal && !f.padding && f.attn_mask == AttnMask::none);
  EXPECT_TRUE(!f.window_given && f.window_left == -1 && f.window_right == -1);
  EXPECT_TRUE(f.bottom_right_diagonal);
  EXPECT_FALSE(f.alibi_slopes);
  EXPECT_EQ(f.bias_type, BiasType::none);
  EXPECT_EQ(f.bias_shape, BiasShape::one_h_s_s);
  EXPECT_TRUE(f.bias_requires_grad);
  EXPECT_TRUE(!f.pad_between_seqs && !f.dropout);
  EXPECT_TRUE(!f.context_parallel && f.cp_comm == CpComm::p2p && f.cp_size == 1);
  EXPECT_FALSE(AttentionParams().deterministic());
  EXPECT_TRUE(f.training && !f.fp8 && f.fp8_recipe == Fp8Recipe::none && f.kv_cache == KvCache::none);
  EXPECT_EQ(f.softmax, Softmax::vanilla);
  EXPECT_TRUE(!f.return_max_logit && !f.cuda_graph && f.num_splits == 1 && !f.fp8_output && !f.checkpoint);
  EXPECT_TRUE(!f.score_mod && !f.score_mod_bprop);
}

TEST(AttentionParams, NamesAreTransformerEngines) {
  const std::set<std::string_view> names(AttentionParams::names().begin(), AttentionParams::names().end());
  EXPECT_EQ(names.size(), AttentionParams::names().size());
  // fp8_meta and inference_params come flattened, as fp8_recipe and kv_cache.
  const std::set<std::string_view> record{"qkv_type",
                                          "qkv_dtype",
                                          "qkv_layout",
                                          "batch_size",
                                          "num_heads",
                                          "num_gqa_groups",
                                          "max_seqlen_q",
                                          "max_seqlen_kv",
                                          "head_dim_qk",
                                          "head_dim_v",
                                          "attn_mask_type",
                                          "window_size",
                                          "bottom_right_diagonal",
                                          "alibi_slopes_shape",
                                          "core_attention_bias_type",
                                          "core_attention_bias_shape",
                                          "core_attention_bias_requires_grad",
                                          "pad_between_seqs",
                                          "attention_dropout",
                                          "context_parallel",
                                          "cp_comm_type",
                                          "cp_size",
                                          "deterministic",
                                          "is_training",
                                          "fp8",
                                          "fp8_recipe",
                                          "kv_cache",
                                          "softmax_type",
                                          "return_max_logit",
                                          "cuda_graph",
                                          "num_splits",
                                          "fp8_output",
                                          "checkpoint_core_attention",
                                          "has_score_mod",
                                          "has_score_mod_bprop",
                                          "fp8_recipe.kind",
                                          "fp8_recipe.format",
                                          "fp8_recipe.fp8_dpa",
                                          "fp8_recipe.fp8_mha",
                                          "kv_cache.is_paged",
                                          "kv_cache.page_size"};
  EXPECT_EQ(names, record);
}

TEST(AttentionParams, EveryMaskType) {
  struct Expected {
    std::string_view type;
    bool causal, padding;
    Align align;
  };
  for (const Expected& e : {Expected{"no_mask", false, false, Align::bottom_right},
                            {"padding", false, true, Align::bottom_right},
                            {"causal", true, false, Align::top_left},
                            {"padding_causal", true, true, Align::top_left},
                            {"causal_bottom_right", true, false, Align::bottom_right},
                            {"padding_causal_bottom_right", true, true, Align::bottom_right}}) {
    AttentionParams params;
    params.set("attn_mask_type", e.type);
    const Features f = params.problem(Policy::te).features;
    EXPECT_TRUE(f.causal == e.causal && f.padding == e.padding && f.align == e.align) << e.type;
    EXPECT_EQ(f.attn_mask, AttnMask::none);
  }
  AttentionParams params;
  params.set("attn_mask_type", "arbitrary"sv);
  EXPECT_EQ(params.problem(Policy::te).features.attn_mask, AttnMask::boolean);
  params.set("attn_mask_type", "no_mask"sv);
  EXPECT_EQ(params.problem(Policy::te).features.attn_mask, AttnMask::none) << "set again";
}

TEST(AttentionParams, EveryGoodValueIsTaken) {
  const std::array<std::int64_t, 2> window{127, 0};
  const std::array<std::int64_t, 1> slopes{16};
  AttentionParams params;
  params.set("window_size", std::span<const std::int64_t>(window));
  params.set("alibi_slopes_shape", std::span<const std::int64_t>(slopes));
  params.set("attention_dropout", 0.1);
  params.set("deterministic", true);
  params.set("kv_cache.is_paged", true);
  params.set("kv_cache.page_size", std::int64_t{256});
  params.set("qkv_layout", "thd_thd_thd"sv);
  params.set("softmax_type", "off-by-one"sv);
  params.set("core_attention_bias_shape", std::monostate{});
  params.set("fp8_recipe.kind", "delayed"sv);
  params.set("fp8_recipe.format", "E4M3"sv);
  params.set("is_training", std::int64_t{0});
  const Features f = params.problem(Policy::te).features;
  EXPECT_TRUE(f.window_given && f.window_left == 127 && f.window_right == 0);
  EXPECT_TRUE(f.alibi_slopes && f.dropout && params.deterministic() && f.kv_cache == KvCache::paged &&
              f.page_size == 256);
  EXPECT_TRUE(f.layout == Layout::thd_thd_thd && f.softmax == Softmax::off_by_one && f.bias_shape == BiasShape::none);
  EXPECT_TRUE(f.fp8_recipe == Fp8Recipe::delayed && f.fp8_format == Fp8Format::e4m3 && !f.training);
  params.set("window_size", std::monostate{});
  params.set("alibi_slopes_shape", std::monostate{});
  params.set("kv_cache", std::monostate{});
  params.set("fp8_recipe", std::monostate{});
  const Features g = params.problem(Policy::te).features;
  EXPECT_TRUE(!g.window_given && !g.alibi_slopes && g.kv_cache == KvCache::none && g.fp8_recipe == Fp8Recipe::none);
}

TEST(AttentionParams, EveryBadValueNamesItsField) {
  const std::array<std::int64_t, 3> three{1, 2, 3};
  const std::array<std::int64_t, 2> below{-2, 0};
  const ParamValue triple = std::span<const std::int64_t>(three);
  for (const std::string_view name : AttentionParams::names())
    EXPECT_NE(refusal(name, "no such value"sv), "accepted") << name;
  for (const std::string_view name :
       {"num_heads", "head_dim_qk", "max_seqlen_q", "batch_size", "num_splits", "cp_size"})
    for (const ParamValue& bad : {ParamValue{std::int64_t{-1}}, ParamValue{1.5}, ParamValue{std::monostate{}}, triple})
      EXPECT_NE(refusal(name, bad), "accepted") << name;
  EXPECT_NE(refusal("num_heads", std::int64_t{0}), "accepted");
  EXPECT_NE(refusal("num_heads", std::int64_t{1} << 32), "accepted");
  EXPECT_NE(refusal("window_size", triple), "accepted");
  EXPECT_NE(refusal("window_size", std::span<const std::int64_t>(below)), "accepted");
  EXPECT_NE(refusal("alibi_slopes_shape", triple), "accepted");
  EXPECT_NE(refusal("alibi_slopes_shape", std::span<const std::int64_t>()), "accepted");
  for (const double bad :
       {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    EXPECT_NE(refusal("attention_dropout", bad), "accepted") << bad;
  EXPECT_NE(refusal("is_training", std::int64_t{2}), "accepted");
  EXPECT_NE(refusal("no_such_field", true), "accepted");
  EXPECT_EQ(refusal("attn_mask_type", "Causal"sv),
            "attn_mask_type: got 'Causal', expected one of no_mask, padding, causal, padding_causal, "
            "causal_bottom_right, padding_causal_bottom_right, arbitrary");
}

TEST(AttentionParams, RaisesWhereTransformerEngineDoes) {
  AttentionParams fp8;
  fp8.set("fp8", true);
  EXPECT_THROW(static_cast<void>(fp8.problem(Policy::te)), InvalidField) << "FP8 without a recipe";
  AttentionParams packed;
  packed.set("kv_cache.is_paged", true);
  EXPECT_THROW(static_cast<void>(packed.problem(Policy::te)), InvalidField) << "a KV cache with sbh3d";
  AttentionParams heads;
  heads.set("num_heads", std::int64_t{7});
  heads.set("num_gqa_groups", std::int64_t{2});
  EXPECT_NO_THROW(static_cast<void>(heads.problem(Policy::te)));
}

TEST(AttentionParams, OtherPoliciesReadTheMeaning) {
  AttentionParams params;
  params.set("attention_dropout", 0.5);
  params.set("is_training", false);
  params.set("attn_mask_type", "causal"sv);
  const std::array<std::int64_t, 2> window{-1, -1};
  params.set("window_size", std::span<const std::int64_t>(window));
  const Features te = params.problem(Policy::te).features;
  EXPECT_TRUE(te.dropout && te.window_right == -1 && te.bias_requires_grad && te.bias_shape == BiasShape::one_h_s_s);
  const Features meant = params.problem(Policy::fastest).features;
  EXPECT_TRUE(!meant.dropout && meant.window_right == 0 && !meant.bias_requires_grad &&
              meant.bias_shape == BiasShape::none);
}

TEST(TeAnswer, ReportsTheNewestFlashEvenWhenAnotherWon) {
  const Device device = *named_device("h200");
  Outcome outcome;
  outcome.eligible = BackendSet({Backend::cudnn, Backend::flash2, Backend::flash3, Backend::unfused});
  outcome.chosen = static_cast<std::int8_t>(Backend::cudnn);
  const TeAnswer answer = te_answer(outcome, device);
  EXPECT_TRUE(!answer.flash && answer.fused && !answer.unfused);
  EXPECT_EQ(answer.flash_version, device.flash3);
  EXPECT_EQ(answer.fused_backend, 1);
  EXPECT_EQ(answer.available, (std::array{true, true, true}));
}

TEST(TeAnswer, KeepsTheSubBackendWhenFlashWon) {
  const Device device = *named_device("a100");
  Outcome outcome;
  outcome.eligible = BackendSet({Backend::cudnn_fp8, Backend::flash2});
  outcome.chosen = static_cast<std::int8_t>(Backend::flash2);
  const TeAnswer answer = te_answer(outcome, device);
  EXPECT_TRUE(answer.flash && !answer.fused && !answer.unfused);
  EXPECT_EQ(answer.fused_backend, 2);
  EXPECT_EQ(answer.flash_version, device.flash2);
  EXPECT_EQ(answer.available, (std::array{true, true, false}));
}

TEST(TeAnswer, NothingLeft) {
  const TeAnswer answer = te_answer(Outcome(), *named_device("cpu"));
  EXPECT_EQ(answer, TeAnswer());
  EXPECT_FALSE(answer.flash_version.installed());
  EXPECT_EQ(answer.fused_backend, std::nullopt);
}

TEST(TeAnswer, BackendsItDoesNotKnowAreNoneOfItsAnswers) {
  Outcome outcome;
  outcome.eligible = Backend::cpu | Backend::aten_flash;
  outcome.chosen = static_cast<std::int8_t>(Backend::aten_flash);
  EXPECT_EQ(te_answer(outcome, *named_device("h200")), TeAnswer());
}

}  // namespace
}  // namespace cynosure
