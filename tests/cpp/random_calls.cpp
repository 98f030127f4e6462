// SPDX-License-Identifier: Apache-2.0
// tests/cpp/random_calls.cpp
#include "random_calls.hpp"

#include <cynosure/fields.hpp>

#include "io/json.hpp"

namespace cynosure::testing {
namespace {

Version random_cudnn(Random& random) {
  return random.of<Version>({{},         {8, 8, 0},  {8, 9, 0},  {8, 9, 3},  {8, 9, 5},  {8, 9, 6},  {8, 9, 7},
                             {9, 0, 0},  {9, 1, 0},  {9, 2, 0},  {9, 2, 1},  {9, 3, 0},  {9, 5, 0},  {9, 5, 1},
                             {9, 6, 0},  {9, 7, 0},  {9, 7, 1},  {9, 9, 0},  {9, 10, 0}, {9, 10, 1}, {9, 10, 2},
                             {9, 11, 0}, {9, 12, 0}, {9, 13, 0}, {9, 13, 1}, {9, 14, 0}, {9, 15, 0}, {9, 15, 1},
                             {9, 18, 0}, {9, 18, 1}, {9, 19, 0}, {9, 20, 0}, {9, 21, 0}, {9, 23, 0}, {9, 23, 1},
                             {9, 24, 0}, {9, 24, 1}, {9, 25, 0}, {9, 25, 1}, {9, 26, 0}});
}

void add_mask(Random& random, Features& f) {
  f.causal = random.percent(50);
  f.align = random.any<Align>(kAlignNames);
  f.bottom_right_diagonal = random.percent(70) ? f.align == Align::bottom_right : random.percent(50);
  f.padding = random.percent(30);
  f.same_lengths = f.padding && random.percent(50);
  if (random.percent(15)) f.attn_mask = random.any<AttnMask>(kAttnMaskNames);
  if (!random.percent(30)) return;
  f.window_given = random.percent(90);
  f.window_left = random.of<std::int32_t>({-1, 0, 1, 127, 128, 1023, 4096});
  f.window_right = f.causal ? 0 : random.of<std::int32_t>({-1, 0, 1, 128});
}

void add_bias(Random& random, Features& f) {
  if (!random.percent(25)) return;
  f.bias_type = random.any<BiasType>(kBiasTypeNames);
  f.bias_shape = random.any<BiasShape>(kBiasShapeNames);
  f.bias_requires_grad = random.percent(40);
  f.bias_float32 = random.percent(30);
  f.alibi_slopes = f.bias_type == BiasType::alibi && random.percent(70);
}

void add_fp8(Random& random, Features& f) {
  if (!random.percent(12)) return;
  f.fp8 = true;
  f.fp8_recipe = static_cast<Fp8Recipe>(1 + random.below(6));
  f.fp8_format = random.any<Fp8Format>(kFp8FormatNames);
  f.fp8_dpa = random.percent(80);
  f.fp8_mha = random.percent(30);
  f.fp8_output = random.percent(30);
  if (random.percent(40)) f.dtype = DType::float8_e4m3;
  if (random.percent(40)) f.tensor_kind = random.any<TensorKind>(kTensorKindNames);
}

void add_rare(Random& random, Features& f) {
  if (random.percent(10)) f.softcap = true;
  if (random.percent(15)) f.softmax = random.any<Softmax>(kSoftmaxNames);
  f.dropout = random.percent(12);
  f.return_lse = random.percent(15);
  f.lse_grad = f.return_lse && random.percent(40);
  f.return_max_logit = random.percent(5);
  f.score_mod = random.percent(4);
  f.score_mod_bprop = f.score_mod ? random.percent(50) : random.percent(2);
  f.cuda_graph = random.percent(15);
  f.checkpoint = random.percent(5);
  if (random.percent(10)) f.num_splits = random.of<std::int32_t>({0, 1, 2, 8});
  if (random.percent(12)) f.kv_cache = random.percent(50) ? KvCache::paged : KvCache::contiguous;
  if (f.kv_cache == KvCache::paged) f.page_size = random.of<std::int32_t>({16, 64, 256, 512});
  if (!random.percent(10)) return;
  f.context_parallel = true;
  f.cp_comm = random.any<CpComm>(kCpCommNames);
  f.cp_size = random.of<std::int32_t>({2, 3, 4, 8});
}

}  // namespace

std::uint64_t Random::next() {
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

std::string Call::text() const {
  return io::write(problem) + "\n  " + io::write(device) + "\n  " + std::to_string(settings.word()) + " " +
         settings.describe();
}

Lengths random_lengths(Random& random) {
  const auto length = [&] {
    if (random.percent(30)) return 1 + random.below(9000);
    return random.of<std::int64_t>({1, 2, 17, 63, 64, 65, 128, 192, 256, 704, 1024, 1025, 2048, 4096, 8192, 33280});
  };
  Lengths lengths;
  lengths.batch = random.percent(5) ? random.of<std::int64_t>({65535, 65536, 100000}) : 1 + random.below(64);
  lengths.seqlen_q = length();
  lengths.seqlen_k = random.percent(60) ? lengths.seqlen_q : length();
  return lengths;
}

Problem random_problem(Random& random) {
  Problem problem;
  Features& f = problem.features;
  f.kv_heads = random.of<std::int32_t>({1, 1, 2, 3, 4, 8, 16});
  f.heads = f.kv_heads * random.of<std::int32_t>({1, 1, 1, 2, 3, 4, 8});
  f.head_dim_qk =
      random.of<std::int32_t>({8, 40, 64, 64, 72, 96, 100, 128, 128, 128, 160, 192, 192, 224, 256, 264, 512, 576});
  f.head_dim_v = random.percent(75) ? f.head_dim_qk : random.of<std::int32_t>({8, 40, 64, 100, 128, 128, 256, 512});
  f.dtype = random.percent(75) ? DType::bfloat16 : random.any<DType>(kDTypeNames);
  if (random.percent(6)) f.tensor_kind = random.any<TensorKind>(kTensorKindNames);
  if (random.percent(35)) f.layout = random.any<Layout>(kLayoutNames);
  if (random.percent(20)) f.layout = Layout::thd_thd_thd;
  f.training = random.percent(60);
  f.pad_between_seqs = random.percent(8);
  // Half of them have at most one kind of rare feature: with many at once nothing is left to choose between.
  const std::int64_t kind = random.percent(50) ? random.below(4) : -1;
  add_mask(random, f);
  if (kind == -1 || kind == 1) add_bias(random, f);
  if (kind == -1 || kind == 2) add_fp8(random, f);
  if (kind == -1 || kind == 3) add_rare(random, f);
  const LayoutGroup group = info(f.layout).group;
  if (group == LayoutGroup::packed_3hd || group == LayoutGroup::packed_h3d) f.kv_cache = KvCache::none;
  problem.lengths = random_lengths(random);
  validate(problem, /*strict=*/false);  // records of TransformerEngine may have a bias shape without a bias
  return problem;
}

Settings random_settings(Random& random) {
  Settings settings = Settings().with_policy(random.percent(50) ? Policy::te : Policy::fastest);
  if (random.percent(40)) return settings;
  if (random.percent(15))
    settings = settings.with_enabled(BackendSet::from_bits(static_cast<std::uint32_t>(random.next())));
  if (random.percent(20)) {
    BackendList list;
    const std::int64_t size = 1 + random.below(4);
    while (static_cast<std::int64_t>(list.size()) < size) {
      const auto backend = static_cast<Backend>(random.below(kBackendCount));
      if (!list.set().contains(backend)) list.push_back(backend);
    }
    settings = settings.with_contract(random.percent(50) ? Contract::prefer : Contract::require, list);
  }
  settings = settings.with_deterministic(random.percent(20));
  settings = settings.with_matmul_precision(random.any<MatmulPrecision>(kMatmulPrecisionNames));
  for (const Settings::Switch which : {Settings::emulate_fp8, Settings::onnx_export, Settings::enforce})
    settings = settings.with_switch(which, random.percent(10));
  return settings;
}

Device random_device(Random& random) {
  constexpr std::array<std::string_view, 13> kNames{"cpu",  "v100", "t4",   "a100",    "l40s", "h100", "h200",
                                                    "b200", "b300", "thor", "rtx5090", "gb10", "a10g"};
  Device device = *named_device(kNames[static_cast<std::size_t>(random.below(kNames.size()))]);
  device.cpu_isa = random.any<CpuIsa>(kCpuIsaNames);
  if (random.percent(60)) device.cudnn = random_cudnn(random);
  if (random.percent(30))
    device.flash2 = random.of<Version>({{}, {2, 1, 1}, {2, 3, 0}, {2, 4, 0}, {2, 4, 1}, {2, 5, 7}, {2, 6, 3}});
  if (random.percent(20)) device.flash3 = random.of<Version>({{}, {3, 0, 0}, {3, 0, 0, Version::Phase::beta, 1}});
  if (random.percent(20)) device.flash4 = random.of<Version>({{}, {4, 0, 0}, {4, 0, 0, Version::Phase::beta, 11}});
  if (random.percent(5)) device.torch = Version();
  if (random.percent(5)) device.built = BackendSet::from_bits(static_cast<std::uint32_t>(random.next())).bits();
  device.interpreter = random.percent(90);
  return device;
}

Call random_call(Random& random) {
  Call call;
  call.problem = random_problem(random);
  call.settings = random_settings(random);
  call.device = random_device(random);
  return call;
}

}  // namespace cynosure::testing
