// SPDX-License-Identifier: Apache-2.0
// cynosure/problem.hpp: one attention call described by value.
//
// A Problem is Features (everything a rule may read as it is) and Lengths (which rules see only through length facts,
// see length_facts.hpp). Both are plain data without padding, so that a Problem hashes and compares as bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace cynosure {

enum class DType : std::uint8_t { bfloat16, float16, float32, float64, float8_e4m3, float8_e5m2 };
inline constexpr std::array<std::string_view, 6> kDTypeNames{"bfloat16", "float16",     "float32",
                                                             "float64",  "float8_e4m3", "float8_e5m2"};

/// TransformerEngine's `qkv_type`: the exact Python type of q, k and v. `other`: any other tensor subclass.
enum class TensorKind : std::uint8_t { plain, float8, float8_storage, mxfp8, mxfp8_storage, other };
inline constexpr std::array<std::string_view, 6> kTensorKindNames{"tensor", "float8",        "float8_storage",
                                                                  "mxfp8",  "mxfp8_storage", "other"};

/// Memory layout of q, k and v; TransformerEngine's names and numbers (its ABI). Letters: s sequence, b batch, h head,
/// d head dim, t packed tokens of a ragged batch; 3/2: tensors packed in one buffer; paged_kv: K and V in cache pages.
/// "bshd", "sbhd", "bhsd" and "thd" are accepted as short names of the four with three separate equal parts.
enum class Layout : std::uint8_t {
  sb3hd,
  sbh3d,
  sbhd_sb2hd,
  sbhd_sbh2d,
  sbhd_sbhd_sbhd,
  bs3hd,
  bsh3d,
  bshd_bs2hd,
  bshd_bsh2d,
  bshd_bshd_bshd,
  t3hd,
  th3d,
  thd_t2hd,
  thd_th2d,
  thd_thd_thd,
  sbhd_bshd_bshd,
  bshd_sbhd_sbhd,
  thd_bshd_bshd,
  thd_sbhd_sbhd,
  paged_kv_bshd_bshd_bshd,
  paged_kv_bshd_sbhd_sbhd,
  paged_kv_sbhd_bshd_bshd,
  paged_kv_sbhd_sbhd_sbhd,
  paged_kv_thd_bshd_bshd,
  paged_kv_thd_sbhd_sbhd,
  bhsd_bhsd_bhsd
};
inline constexpr std::array<std::string_view, 26> kLayoutNames{"sb3hd",
                                                               "sbh3d",
                                                               "sbhd_sb2hd",
                                                               "sbhd_sbh2d",
                                                               "sbhd_sbhd_sbhd",
                                                               "bs3hd",
                                                               "bsh3d",
                                                               "bshd_bs2hd",
                                                               "bshd_bsh2d",
                                                               "bshd_bshd_bshd",
                                                               "t3hd",
                                                               "th3d",
                                                               "thd_t2hd",
                                                               "thd_th2d",
                                                               "thd_thd_thd",
                                                               "sbhd_bshd_bshd",
                                                               "bshd_sbhd_sbhd",
                                                               "thd_bshd_bshd",
                                                               "thd_sbhd_sbhd",
                                                               "paged_kv_bshd_bshd_bshd",
                                                               "paged_kv_bshd_sbhd_sbhd",
                                                               "paged_kv_sbhd_bshd_bshd",
                                                               "paged_kv_sbhd_sbhd_sbhd",
                                                               "paged_kv_thd_bshd_bshd",
                                                               "paged_kv_thd_sbhd_sbhd",
                                                               "bhsd_bhsd_bhsd"};

/// Order of the dimensions of one tensor.
enum class Format : std::uint8_t { sbhd, bshd, thd, bhsd };
/// How q, k and v share buffers.
enum class LayoutGroup : std::uint8_t { packed_3hd, packed_h3d, kv_2hd, kv_h2d, separate, paged };

struct LayoutInfo {
  Format q;
  Format kv;
  LayoutGroup group;
};
[[nodiscard]] constexpr LayoutInfo info(Layout layout) {
  using enum Format;
  using enum LayoutGroup;
  constexpr std::array<LayoutInfo, 26> table{{
      {sbhd, sbhd, packed_3hd}, {sbhd, sbhd, packed_h3d}, {sbhd, sbhd, kv_2hd},     {sbhd, sbhd, kv_h2d},
      {sbhd, sbhd, separate},   {bshd, bshd, packed_3hd}, {bshd, bshd, packed_h3d}, {bshd, bshd, kv_2hd},
      {bshd, bshd, kv_h2d},     {bshd, bshd, separate},   {thd, thd, packed_3hd},   {thd, thd, packed_h3d},
      {thd, thd, kv_2hd},       {thd, thd, kv_h2d},       {thd, thd, separate},     {sbhd, bshd, separate},
      {bshd, sbhd, separate},   {thd, bshd, separate},    {thd, sbhd, separate},    {bshd, bshd, paged},
      {bshd, sbhd, paged},      {sbhd, bshd, paged},      {sbhd, sbhd, paged},      {thd, bshd, paged},
      {thd, sbhd, paged},       {bhsd, bhsd, separate},
  }};
  return table[static_cast<std::size_t>(layout)];
}

/// Where the diagonal of a causal mask or window starts: row i attends up to column i + offset, offset 0 for top_left,
/// Skv - Sq (per sequence) for bottom_right.
enum class Align : std::uint8_t { top_left, bottom_right };
inline constexpr std::array<std::string_view, 2> kAlignNames{"top_left", "bottom_right"};

enum class AttnMask : std::uint8_t { none, boolean, additive };
inline constexpr std::array<std::string_view, 3> kAttnMaskNames{"none", "boolean", "additive"};

/// TransformerEngine's bias types; `post_scale_bias` is what `attn_bias=` means.
enum class BiasType : std::uint8_t { none, pre_scale_bias, post_scale_bias, alibi };
inline constexpr std::array<std::string_view, 4> kBiasTypeNames{"no_bias", "pre_scale_bias", "post_scale_bias",
                                                                "alibi"};

/// Shape of the bias [B, H, Sq, Skv] with 1 for a broadcast dimension: "1hss" is [1, H, Sq, Skv], "bh1s" [B, H, 1,
/// Skv].
enum class BiasShape : std::uint8_t {
  none,
  b_h_s_s,
  one_h_s_s,
  b_one_s_s,
  one_one_s_s,
  one_one_one_s,
  b_h_one_s,
  one_h_one_s,
  b_one_one_s
};
inline constexpr std::array<std::string_view, 9> kBiasShapeNames{"none", "bhss", "1hss", "b1ss", "11ss",
                                                                 "111s", "bh1s", "1h1s", "b11s"};

/// `learnable`: one logit per head joins the softmax (`sinks`); `off_by_one`: that logit is zero.
enum class Softmax : std::uint8_t { vanilla, off_by_one, learnable };
inline constexpr std::array<std::string_view, 3> kSoftmaxNames{"vanilla", "off-by-one", "learnable"};

enum class KvCache : std::uint8_t { none, contiguous, paged };
inline constexpr std::array<std::string_view, 3> kKvCacheNames{"none", "contiguous", "paged"};

enum class CpComm : std::uint8_t { p2p, all_gather, a2a, a2a_p2p };
inline constexpr std::array<std::string_view, 4> kCpCommNames{"p2p", "all_gather", "a2a", "a2a+p2p"};

enum class Fp8Recipe : std::uint8_t { none, delayed, current, mxfp8, block, nvfp4, custom };
inline constexpr std::array<std::string_view, 7> kFp8RecipeNames{"none",  "delayed", "current", "mxfp8",
                                                                 "block", "nvfp4",   "custom"};

enum class Fp8Format : std::uint8_t { e4m3, hybrid, e5m2 };
inline constexpr std::array<std::string_view, 3> kFp8FormatNames{"E4M3", "HYBRID", "E5M2"};

/// Everything about a call but its lengths. Defaults: a plain bfloat16 forward and backward, one head of 64.
struct Features {
  std::int32_t heads = 1;          ///< query heads
  std::int32_t kv_heads = 1;       ///< K/V heads; fewer than heads: grouped-query attention
  std::int32_t head_dim_qk = 64;   ///< of q and k, elements
  std::int32_t head_dim_v = 64;    ///< of v and the output, elements
  std::int32_t window_left = -1;   ///< columns left of the diagonal a row attends; -1: all
  std::int32_t window_right = -1;  ///< columns right of it; -1: all. A causal mask means 0
  std::int32_t page_size = 0;      ///< tokens in a page of a paged KV cache
  std::int32_t num_splits = 1;     ///< FlashAttention's split of the keys; 0: its heuristic
  std::int32_t cp_size = 1;        ///< ranks of context parallelism

  DType dtype = DType::bfloat16;
  TensorKind tensor_kind = TensorKind::plain;
  Layout layout = Layout::bshd_bshd_bshd;
  bool training = true;  ///< gradients are wanted: forward and backward are judged together

  bool causal = false;
  Align align = Align::bottom_right;  ///< of the causal mask or window
  bool padding = false;               ///< valid lengths per sequence (seqlens_*, or a ragged batch)
  bool same_lengths = false;          ///< with padding: sequence by sequence, q and k have equal lengths
  bool pad_between_seqs = false;      ///< gaps between the sequences of a ragged batch
  AttnMask attn_mask = AttnMask::none;
  bool window_given = false;          ///< the caller stated a window (TransformerEngine's quirks read this)
  bool bottom_right_diagonal = true;  ///< TransformerEngine's separate flag; `align` is what is computed

  BiasType bias_type = BiasType::none;
  BiasShape bias_shape = BiasShape::none;
  bool bias_requires_grad = false;
  bool bias_float32 = false;  ///< the bias is float32 while q is of 16 bits
  bool alibi_slopes = false;  ///< slopes come as a tensor (always, from `attention`)

  bool softcap = false;
  Softmax softmax = Softmax::vanilla;
  bool dropout = false;
  bool return_lse = false;
  bool lse_grad = false;
  bool return_max_logit = false;
  bool score_mod = false;  ///< TransformerEngine's cuDNN callbacks
  bool score_mod_bprop = false;
  bool cuda_graph = false;  ///< will be captured in a CUDA graph
  bool checkpoint = false;  ///< recompute in backward, by the attention itself

  KvCache kv_cache = KvCache::none;
  bool context_parallel = false;
  CpComm cp_comm = CpComm::p2p;

  bool fp8 = false;
  Fp8Recipe fp8_recipe = Fp8Recipe::none;
  Fp8Format fp8_format = Fp8Format::hybrid;
  bool fp8_dpa = false;  ///< the recipe runs attention itself in FP8
  bool fp8_mha = false;  ///< and passes FP8 tensors in and out
  bool fp8_output = false;

  bool operator==(const Features&) const = default;
};
static_assert(std::has_unique_object_representations_v<Features>, "hashed and compared as bytes");

/// The sizes of a call, each from 0 to 2^31 - 1, which is what kernels take. Rules never see them: they see length
/// facts (length_facts.hpp).
struct Lengths {
  std::int64_t batch = 1;     ///< sequences
  std::int64_t seqlen_q = 1;  ///< longest query length
  std::int64_t seqlen_k = 1;  ///< longest key length
  bool operator==(const Lengths&) const = default;
};
static_assert(std::has_unique_object_representations_v<Lengths>);

/// One attention call.
struct Problem {
  Features features;
  Lengths lengths;
  bool operator==(const Problem&) const = default;
};

}  // namespace cynosure
