// SPDX-License-Identifier: Apache-2.0
// rules/faults.cpp: known upstream faults, as data. A row excludes no more than its evidence; where upstream names no
// first or last version, the bound is left open and said to be unknown.
//
// A fault is a row when it lies in a library that a backend of ours calls. Reports of the same kind that are no rows,
// and why (numbered as in tests/cpp/faults_test.cpp):
//
// D3   pytorch/pytorch#138649, #138522, #139298, huggingface/diffusers#9704, #9768: NaN and crashes when torch 2.5 put
//      cuDNN first. Where a cause was found it is that of D4.
// D4   pytorch/pytorch#134001: torch's wrapper let the gradient of the output have other strides than the output, which
//      cuDNN before 9.5.1 cannot read (pytorch/pytorch#141147). Strides are no part of a Problem: the cudnn backend
//      states the strides of every tensor, and lays the incoming gradient out as the output.
// D12  NVIDIA/cudnn-frontend#160: NaN in a backward over odd lengths. cudnn-frontend, part of our build, repairs it
//      from 1.15 on: it adds a padding mask for cuDNN up to 9.15.0. What that cannot reach, a captured CUDA graph, is
//      D5 and D8.
// D13  jax-ml/jax#32242: XLA declared a float32 bias with q's dtype (openxla/xla#32985); the cudnn backend declares
//      each tensor's own. jax-ml/jax#23701: a segmentation fault for a vmapped bias, repaired in JAX
//      (jax-ml/jax#23807). jax-ml/jax#28974: JAX did not broadcast a mask of one query row. jax-ml/jax#32430: fails
//      with CUDA 13; neither cause nor cuDNN version is named.
// N1   Dao-AILab/flash-attention#2244: FlashAttention 3's deterministic dq differs between runs. Not reproduced on an
//      H200 by others (six shapes, 200 runs), and neither the reporter's GPU nor its version is known.
#include <cynosure/rule_set.hpp>

#include "rules/terms.hpp"

namespace cynosure {
namespace {

using rules::v;
using Op = Clause::Op;

template <class Value>
constexpr Clause is(Field field, Value value) {
  return {field, Op::equals, static_cast<std::int64_t>(value)};
}
template <class Value>
constexpr Clause is_not(Field field, Value value) {
  return {field, Op::not_equals, static_cast<std::int64_t>(value)};
}
constexpr Clause at_least(Field field, std::int64_t value) { return {field, Op::at_least, value}; }
constexpr Clause multiple_of(Field field, std::int64_t value) { return {field, Op::multiple_of, value}; }
constexpr Clause not_multiple_of(Field field, std::int64_t value) { return {field, Op::not_multiple_of, value}; }

/// The layouts for which `holds`.
template <class Predicate>
constexpr Clause layout_where(Predicate holds) {
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < kLayoutNames.size(); ++i)
    if (holds(info(static_cast<Layout>(i)))) mask |= std::uint64_t{1} << i;
  return {Field::layout, Op::one_of, static_cast<std::int64_t>(mask)};
}
constexpr bool both(LayoutInfo layout, Format format) { return layout.q == format && layout.kv == format; }
constexpr Clause kRagged = layout_where([](LayoutInfo l) { return both(l, Format::thd); });
constexpr Clause kBshdOrSbhd =
    layout_where([](LayoutInfo l) { return both(l, Format::bshd) || both(l, Format::sbhd); });
constexpr Clause kNotRagged = layout_where([](LayoutInfo l) { return l.q != Format::thd && l.kv != Format::thd; });

constexpr std::uint8_t kAllLengths = 7;  // LengthFact::batch, seqlen_q and seqlen_k
constexpr Clause kGradients = is(Field::training, true);
/// One block of 64 keys fills the first half of the last 128.
constexpr Clause kWhole64 = multiple_of(Field::seqlen_k, 64);
constexpr Clause kNoWhole128 = not_multiple_of(Field::seqlen_k, 128);

}  // namespace

const std::vector<Fault>& builtin_faults() {
  static const std::vector<Fault> faults{
      // D1. The Hopper backward kernel decides per 64 keys what lies beyond the end, but works on 128, so that zeros
      // from beyond enter exp(0 - LSE): infinite for a row whose LSE is below -88.7. Seen with a mask tensor, all-true
      // ones included; a bias and ALiBi slopes are the same input of the graph. A causal mask alone is clean. First
      // faulty version unknown. Cause and fix: NVIDIA/cudnn-frontend#628, pytorch/pytorch#196861.
      {.id = "fault.cudnn_mask_dq_nan",
       .backends = Backend::cudnn,
       .library = Library::cudnn,
       .until = v(9, 26),
       .sm_min = 90,
       .sm_max = 90,
       .when = {kGradients, is_not(Field::attn_mask, AttnMask::none), kWhole64, kNoWhole128},
       .effect = "NaN in the gradient of q, with a mask, where a row's LSE is below -88.7",
       .link = "pytorch/pytorch#196678"},
      {.id = "fault.cudnn_bias_dq_nan",
       .backends = Backend::cudnn,
       .library = Library::cudnn,
       .until = v(9, 26),
       .sm_min = 90,
       .sm_max = 90,
       .when = {kGradients, is(Field::bias_type, BiasType::post_scale_bias), kWhole64, kNoWhole128},
       .effect = "NaN in the gradient of q, with a bias, where a row's LSE is below -88.7",
       .link = "pytorch/pytorch#196678"},
      {.id = "fault.cudnn_alibi_dq_nan",
       .backends = Backend::cudnn,
       .library = Library::cudnn,
       .until = v(9, 26),
       .sm_min = 90,
       .sm_max = 90,
       .when = {kGradients, is(Field::bias_type, BiasType::alibi), is(Field::alibi_slopes, true), kWhole64,
                kNoWhole128},
       .effect = "NaN in the gradient of q, with ALiBi slopes, where a row's LSE is below -88.7",
       .link = "pytorch/pytorch#196678"},
      // Found beside D1, for one shape: one query over 128 keys. With a padding mask or 97 keys it is clean. Seen with
      // 9.25.1 and 9.26.0; first and last version unknown.
      {.id = "fault.cudnn_one_query_dkv_nan",
       .backends = Backend::cudnn,
       .library = Library::cudnn,
       .sm_min = 90,
       .sm_max = 90,
       .when = {kGradients, is(Field::causal, false), is(Field::padding, false), is(Field::head_dim_qk, 64),
                is(Field::head_dim_v, 64), is(Field::seqlen_q, 1), is(Field::seqlen_k, 128)},
       .effect = "NaN in the gradients of k and v, where the query's LSE is strongly negative",
       .link = "NVIDIA/cudnn-frontend#1072"},

      // D2. Reported for 2 and 4 KV heads of 128, and not seen with 8, nor with 4 of 64; the guard that torch put in is
      // for every single-query call (pytorch/pytorch#194927) and has the versions: 9.19 to 9.25.0, but not 9.24.1.
      {.id = "fault.cudnn_decode_corrupt",
       .backends = Backend::cudnn,
       .library = Library::cudnn,
       .since = v(9, 19),
       .until = v(9, 24, 1),
       .sm_min = 100,
       .sm_max = 119,
       .when = {is(Field::seqlen_q, 1)},
       .effect = "wrong output for a single query",
       .link = "pytorch/pytorch#193893"},
      {.id = "fault.cudnn_decode_corrupt_9_25_0",
       .backends = Backend::cudnn,
       .library = Library::cudnn,
       .since = v(9, 25),
       .until = v(9, 25, 1),
       .sm_min = 100,
       .sm_max = 119,
       .when = {is(Field::seqlen_q, 1)},
       .effect = "wrong output for a single query",
       .link = "pytorch/pytorch#193893"},

      // D8. What TransformerEngine refuses, and exactly that, so that policy te answers as it does. Its masks "causal"
      // and "causal_bottom_right" are free of the first fault, hence a row for each half of "neither".
      {.id = "fault.cudnn_9_14_0_window",
       .backends = Backend::cudnn,
       .library = Library::cudnn,
       .since = v(9, 14),
       .until = v(9, 14, 1),
       .when = {is(Field::causal, false), is_not(Field::window_left, -1), at_least(Field::seqlen_k, 1025)},
       .policies = Policies::both,
       .effect = "NaN for a window over more than 1024 keys without a causal mask",
       .link = "NVIDIA/TransformerEngine#2344"},
      {.id = "fault.cudnn_9_14_0_window_padding_causal",
       .backends = Backend::cudnn,
       .library = Library::cudnn,
       .since = v(9, 14),
       .until = v(9, 14, 1),
       .when = {is(Field::causal, true), is(Field::padding, true), is_not(Field::window_left, -1),
                at_least(Field::seqlen_k, 1025)},
       .policies = Policies::both,
       .effect = "NaN for a window over more than 1024 keys with a causal mask and padding",
       .link = "NVIDIA/TransformerEngine#2344"},
      {.id = "fault.cudnn_graph_128",
       .backends = Backend::cudnn,
       .library = Library::cudnn,
       .until = v(9, 15, 1),
       .when = {kGradients, is(Field::cuda_graph, true), is(Field::padding, false), kBshdOrSbhd, kNoWhole128},
       .policies = Policies::both,
       .effect = "illegal memory access in the backward of a replayed CUDA graph",
       .link = "NVIDIA/TransformerEngine#2344"},
      // D5. The same fault in every dense layout: TransformerEngine's condition names bshd and sbhd only. Outside CUDA
      // graphs it does not reach us: cudnn-frontend repairs it (release notes of 1.16); torch had an older one. First
      // faulty version unknown.
      {.id = "fault.cudnn_graph_128_any_layout",
       .backends = Backend::cudnn,
       .library = Library::cudnn,
       .until = v(9, 15, 1),
       .when = {kGradients, is(Field::cuda_graph, true), is(Field::padding, false), kNotRagged, kNoWhole128},
       .effect = "illegal memory access in the backward of a replayed CUDA graph",
       .link = "pytorch/pytorch#171627"},

      // D6. The batch is a 16-bit grid dimension: 65535 passes, 65536 fails when it is launched. Versions unknown.
      {.id = "fault.cudnn_batch_65536",
       .backends = Backend::cudnn,
       .library = Library::cudnn,
       .when = {at_least(Field::batch, 65536)},
       .effect = "fails at execution for a batch of 65536 and more",
       .link = "pytorch/pytorch#181235"},
      // D7. The same limit in FlashAttention 2, torch's copy and the package: batch and heads are grid dimensions.
      {.id = "fault.aten_flash_batch_65536",
       .backends = Backend::aten_flash,
       .library = Library::torch,
       .when = {at_least(Field::batch, 65536)},
       .effect = "invalid launch configuration for a batch of 65536 and more",
       .link = "pytorch/pytorch#146704"},
      {.id = "fault.aten_flash_heads_65536",
       .backends = Backend::aten_flash,
       .library = Library::torch,
       .when = {at_least(Field::heads, 65536)},
       .effect = "invalid launch configuration for 65536 heads and more",
       .link = "Dao-AILab/flash-attention#1812"},
      {.id = "fault.flash2_batch_65536",
       .backends = Backend::flash2,
       .library = Library::flash2,
       .when = {at_least(Field::batch, 65536)},
       .effect = "invalid launch configuration for a batch of 65536 sequences and more",
       .link = "Dao-AILab/flash-attention#1786"},
      {.id = "fault.flash2_heads_65536",
       .backends = Backend::flash2,
       .library = Library::flash2,
       .when = {at_least(Field::heads, 65536)},
       .effect = "invalid launch configuration for 65536 heads and more",
       .link = "Dao-AILab/flash-attention#1812"},

      // D9. Seen with cuDNN 9.25.0 under TransformerEngine, which has since changed its call: cuDNN's backward does not
      // read ragged statistics on sm 8.x and 12.x. Nobody has shown our call right there. Versions unknown.
      {.id = "fault.cudnn_sm120_ragged_backward",
       .backends = Backend::cudnn,
       .library = Library::cudnn,
       .sm_min = 120,
       .sm_max = 120,
       .when = {kGradients, kRagged},
       .effect = "wrong gradients for a ragged batch",
       .link = "NVIDIA/TransformerEngine#3333"},
      // D10. The kernel before the backward reads ragged statistics as if they were dense. Reported for values of 192;
      // cudnn-frontend refuses sinks in a ragged backward for any head dim and either kind, saying why.
      {.id = "fault.cudnn_ragged_sink_backward",
       .backends = Backend::cudnn,
       .library = Library::cudnn,
       .until = v(9, 26),
       .when = {kGradients, is_not(Field::softmax, Softmax::vanilla), kRagged},
       .effect = "out-of-bounds read, wrong gradient of the sinks",
       .link = "NVIDIA/TransformerEngine#3249"},
      // D11. Nothing runs: the process dies while the backward is planned. Seen with 9.26.0; versions unknown.
      {.id = "fault.cudnn_plan_segfault",
       .backends = Backend::cudnn,
       .library = Library::cudnn,
       .sm_min = 90,
       .sm_max = 90,
       .when = {kGradients, is(Field::causal, false), is(Field::heads, 1), is(Field::batch, 1), is(Field::seqlen_q, 1)},
       .effect = "segmentation fault while planning the backward",
       .link = "NVIDIA/cudnn-frontend#1071"},
      // D14. The gradient of a bias [B, 1, Sq, Skv] with more elements than 32 bits count. Seen with 9.13.1 at B = 2
      // and
      // S = 33280; architecture and versions unknown.
      {.id = "fault.cudnn_bias_gradient_int32",
       .backends = Backend::cudnn,
       .library = Library::cudnn,
       .when = {kGradients,
                is(Field::bias_type, BiasType::post_scale_bias),
                is(Field::bias_shape, BiasShape::b_one_s_s),
                is(Field::bias_requires_grad, true),
                {Field::batch, Op::product_over, 1, kAllLengths}},
       .effect = "illegal memory access in the backward of a bias of more than 2^31 - 1 elements",
       .link = "openxla/xla#36454"},

      // Found beside these reports: torch does not ask these releases for dropout.
      {.id = "fault.cudnn_dropout_plans",
       .backends = Backend::cudnn,
       .library = Library::cudnn,
       .since = v(9, 11),
       .until = v(9, 14),
       .when = {is(Field::dropout, true)},
       .effect = "crash in the heuristics that plan a graph with dropout",
       .link = "pytorch/pytorch#163903"},
  };
  return faults;
}

}  // namespace cynosure
