// SPDX-License-Identifier: Apache-2.0
// What may be wrong with a call, by argument; and the problem that a right one is.
#include <functional>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <cynosure/call.hpp>

namespace cynosure {
namespace {

TensorInfo tensor(Element element, std::initializer_list<std::int64_t> sizes) {
  TensorInfo info{.given = true, .element = element, .rank = static_cast<std::int8_t>(sizes.size())};
  std::size_t i = 0;
  for (const std::int64_t size : sizes)
    if (i < 4) info.sizes[i++] = size;
  return info;
}

/// B 2, Sq 5, Skv 7, H 6, Hkv 3, D 16, Dv 8, in bshd.
Call plain() {
  Call call;
  call.q = tensor(Element::float32, {2, 5, 6, 16});
  call.k = tensor(Element::float32, {2, 7, 3, 16});
  call.v = tensor(Element::float32, {2, 7, 3, 8});
  call.scale = 1;
  return call;
}
Call ragged() {
  Call call = plain();
  call.dims = Dims::thd;
  call.q = tensor(Element::float32, {10, 6, 16});
  call.k = tensor(Element::float32, {14, 3, 16});
  call.v = tensor(Element::float32, {14, 3, 8});
  call.seqlens_q = tensor(Element::int32, {3});
  call.seqlens_k = tensor(Element::int32, {3});
  return call;
}

struct Bad {
  const char* name;
  ErrorKind kind;
  const char* text;  ///< how the message starts
  std::function<void(Call&)> change;
  bool thd = false;
};
void PrintTo(const Bad& bad, std::ostream* out) { *out << bad.name; }

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

const Bad kBad[] = {
    {"RankOfQ", ErrorKind::value, "q: rank 3, need 4 for layout 'bshd'",
     [](Call& c) { c.q = tensor(Element::float32, {2, 5, 16}); }},
    {"RankFive", ErrorKind::value, "v: rank 5, need 4",
     [](Call& c) { c.v = tensor(Element::float32, {1, 2, 7, 3, 8}); }},
    {"DtypeOfQ", ErrorKind::type, "q: got int32, expected float32, bfloat16, float16 or float64",
     [](Call& c) { c.q.element = Element::int32; }},
    {"DtypeOfK", ErrorKind::type, "k: got float16, expected float32 as q",
     [](Call& c) { c.k.element = Element::float16; }},
    {"DeviceOfV", ErrorKind::value, "v: on cuda:1, expected cpu as q",
     [](Call& c) {
       c.v.device_kind = 1;
       c.v.device_index = 1;
     }},
    {"Batch", ErrorKind::value, "k: batch 3, expected 2 as q", [](Call& c) { c.k.sizes[0] = c.v.sizes[0] = 3; }},
    {"LengthOfV", ErrorKind::value, "v: length 8, expected 7 as k", [](Call& c) { c.v.sizes[1] = 8; }},
    {"HeadsOfV", ErrorKind::value, "v: heads 6, expected 3 as k", [](Call& c) { c.v.sizes[2] = 6; }},
    {"HeadDim", ErrorKind::value, "k: head dim 8, expected 16 as q", [](Call& c) { c.k.sizes[3] = 8; }},
    {"NoHeads", ErrorKind::value, "k: heads 0, expected at least 1", [](Call& c) { c.k.sizes[2] = c.v.sizes[2] = 0; }},
    {"NoHeadDim", ErrorKind::value, "v: head dim 0, expected at least 1", [](Call& c) { c.v.sizes[3] = 0; }},
    {"ManyHeads", ErrorKind::value, "q: heads 2147483648, expected at most 2147483647",
     [](Call& c) { c.q.sizes[2] = 2147483648; }},
    {"Group", ErrorKind::value, "q: heads 7, expected a multiple of the 3 heads of k and v",
     [](Call& c) { c.q.sizes[2] = 7; }},
    {"Window", ErrorKind::value, "window_size: got (-2, 0), expected -1 (unlimited)",
     [](Call& c) {
       c.window_left = -2;
       c.window_right = 0;
     }},
    {"WindowAhead", ErrorKind::value, "window_size: got (3, 1) with causal, expected 0 or -1 on the right",
     [](Call& c) {
       c.causal = true;
       c.window_left = 3;
       c.window_right = 1;
     }},
    {"Scale", ErrorKind::value, "scale: got ", [](Call& c) { c.scale = kNaN; }},
    {"Softcap", ErrorKind::value, "softcap: got ", [](Call& c) { c.softcap = -1; }},
    {"SoftcapInf", ErrorKind::value, "softcap: got ", [](Call& c) { c.softcap = kInfinity; }},
    {"Dropout", ErrorKind::value, "dropout_p: got ", [](Call& c) { c.dropout_p = 1.5; }},
    {"DropoutNaN", ErrorKind::value, "dropout_p: got ", [](Call& c) { c.dropout_p = kNaN; }},
    {"NoSeed", ErrorKind::value, "dropout_seed: missing", [](Call& c) { c.dropout_p = 0.5; }},
    {"SeedDtype", ErrorKind::type, "dropout_seed: got int32, expected int64",
     [](Call& c) { c.dropout_seed = tensor(Element::int32, {2}); }},
    {"SeedShape", ErrorKind::value, "dropout_seed: shape [3], expected [2]",
     [](Call& c) { c.dropout_seed = tensor(Element::int64, {3}); }},
    {"LengthsDtype", ErrorKind::type, "seqlens_q: got int64, expected int32",
     [](Call& c) { c.seqlens_q = tensor(Element::int64, {2}); }},
    {"LengthsShape", ErrorKind::value, "seqlens_k: shape [3], expected [batch] = [2]",
     [](Call& c) { c.seqlens_k = tensor(Element::int32, {3}); }},
    {"MaxDense", ErrorKind::value, "max_seqlen_q: given with layout 'bshd'", [](Call& c) { c.max_seqlen_q = 5; }},
    {"BiasShape", ErrorKind::value, "attn_bias: shape [2, 5, 5, 7], expected [1 or 2, 1 or 6, 1 or 5, 7]",
     [](Call& c) { c.attn_bias = tensor(Element::float32, {2, 5, 5, 7}); }},
    {"BiasOneColumn", ErrorKind::value, "attn_bias: shape [1, 1, 5, 1]",
     [](Call& c) { c.attn_bias = tensor(Element::float32, {1, 1, 5, 1}); }},
    {"BiasDtype", ErrorKind::type, "attn_bias: got bool",
     [](Call& c) { c.attn_bias = tensor(Element::boolean, {1, 1, 5, 7}); }},
    {"MaskShape", ErrorKind::value, "attn_mask: shape [3, 1, 5, 7]",
     [](Call& c) { c.attn_mask = tensor(Element::boolean, {3, 1, 5, 7}); }},
    {"MaskDtype", ErrorKind::type, "attn_mask: got int64, expected bool, float32 as q",
     [](Call& c) { c.attn_mask = tensor(Element::int64, {1, 1, 5, 7}); }},
    {"SlopesShape", ErrorKind::value, "alibi_slopes: shape [3], expected [heads] or [batch, heads]",
     [](Call& c) { c.alibi_slopes = tensor(Element::float32, {3}); }},
    {"SlopesDtype", ErrorKind::type, "alibi_slopes: got float16",
     [](Call& c) { c.alibi_slopes = tensor(Element::float16, {6}); }},
    {"SlopesAndBias", ErrorKind::value, "alibi_slopes: given together with attn_bias",
     [](Call& c) {
       c.alibi_slopes = tensor(Element::float32, {6});
       c.attn_bias = tensor(Element::float32, {1, 1, 5, 7});
     }},
    {"SinksShape", ErrorKind::value, "sinks: shape [3], expected one logit a head: [6]",
     [](Call& c) { c.sinks = tensor(Element::float32, {3}); }},
    {"RaggedWithoutLengths", ErrorKind::value, "cu_seqlens_k: missing", [](Call& c) { c.seqlens_k = {}; }, true},
    {"RaggedDtype", ErrorKind::type, "cu_seqlens_q: got int64, expected int32",
     [](Call& c) { c.seqlens_q.element = Element::int64; }, true},
    {"RaggedBatch", ErrorKind::value, "cu_seqlens_k: shape [4], expected [batch + 1] as cu_seqlens_q = [3]",
     [](Call& c) { c.seqlens_k.sizes[0] = 4; }, true},
    {"RaggedEmpty", ErrorKind::value, "cu_seqlens_q: shape [0], expected [batch + 1]",
     [](Call& c) { c.seqlens_q.sizes[0] = 0; }, true},
    {"RaggedTokens", ErrorKind::value, "v: tokens 13, expected 14 as k", [](Call& c) { c.v.sizes[0] = 13; }, true},
    {"RaggedMax", ErrorKind::value, "max_seqlen_k: got -2", [](Call& c) { c.max_seqlen_k = -2; }, true},
};

class BadCall : public testing::TestWithParam<Bad> {};
TEST_P(BadCall, NamesTheArgument) {
  Call call = GetParam().thd ? ragged() : plain();
  ASSERT_FALSE(check(call).has_value());
  GetParam().change(call);
  const std::optional<CallError> error = check(call);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind, GetParam().kind);
  EXPECT_TRUE(error->text.starts_with(GetParam().text)) << error->text;
}
INSTANTIATE_TEST_SUITE_P(Call, BadCall, testing::ValuesIn(kBad),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Call, UnknownSizesPass) {
  Call call = plain();
  for (TensorInfo* t : {&call.q, &call.k, &call.v}) t->sizes = {-1, -1, -1, -1};
  call.attn_bias = tensor(Element::float32, {1, -1, 4, -1});
  call.seqlens_q = tensor(Element::int32, {-1});
  EXPECT_FALSE(check(call).has_value());
}

TEST(Call, ProblemOfADenseCall) {
  Call call = plain();
  call.causal = true;
  call.window_left = 3;
  call.training = true;
  call.attn_bias = tensor(Element::float32, {1, 6, 1, 7});
  call.bias_requires_grad = true;
  const Problem p = problem_of(call);
  EXPECT_EQ(p.lengths, (Lengths{.batch = 2, .seqlen_q = 5, .seqlen_k = 7}));
  EXPECT_EQ(p.features.heads, 6);
  EXPECT_EQ(p.features.kv_heads, 3);
  EXPECT_EQ(p.features.head_dim_qk, 16);
  EXPECT_EQ(p.features.head_dim_v, 8);
  EXPECT_EQ(p.features.dtype, DType::float32);
  EXPECT_TRUE(p.features.causal && p.features.training && p.features.window_given);
  EXPECT_EQ(p.features.window_left, 3);
  EXPECT_EQ(p.features.window_right, 0);  // causal
  EXPECT_EQ(p.features.bias_shape, BiasShape::one_h_one_s);
  EXPECT_TRUE(p.features.bias_requires_grad);
  EXPECT_FALSE(p.features.padding);
}

TEST(Call, EveryLayoutHasTheSameSizes) {
  const auto sizes = [](Dims dims, std::initializer_list<std::int64_t> q, std::initializer_list<std::int64_t> k) {
    Call call = plain();
    call.dims = dims;
    call.q = tensor(Element::float32, q);
    call.k = call.v = tensor(Element::float32, k);
    return problem_of(call).lengths;
  };
  const Lengths expected{.batch = 2, .seqlen_q = 5, .seqlen_k = 7};
  EXPECT_EQ(sizes(Dims::bshd, {2, 5, 6, 16}, {2, 7, 3, 16}), expected);
  EXPECT_EQ(sizes(Dims::sbhd, {5, 2, 6, 16}, {7, 2, 3, 16}), expected);
  EXPECT_EQ(sizes(Dims::bhsd, {2, 6, 5, 16}, {2, 3, 7, 16}), expected);
}

TEST(Call, RaggedLengthsAreBounds) {
  Call call = ragged();
  call.seqlens_q.identity = call.seqlens_k.identity = 42;
  Problem p = problem_of(call);
  EXPECT_EQ(p.lengths, (Lengths{.batch = 2, .seqlen_q = 10, .seqlen_k = 14}));
  EXPECT_TRUE(p.features.padding && p.features.same_lengths);
  call.max_seqlen_q = 6;
  call.max_seqlen_k = 9;
  call.seqlens_k.identity = 43;
  p = problem_of(call);
  EXPECT_EQ(p.lengths, (Lengths{.batch = 2, .seqlen_q = 6, .seqlen_k = 9}));
  EXPECT_FALSE(p.features.same_lengths);
}

TEST(Call, LastErrorIsTakenOnce) {
  set_last_error({.kind = ErrorKind::type, .text = "q: no"});
  const CallError first = take_last_error();
  EXPECT_EQ(first.kind, ErrorKind::type);
  EXPECT_EQ(first.text, "q: no");
  EXPECT_EQ(take_last_error().kind, ErrorKind::none);
}

}  // namespace
}  // namespace cynosure
