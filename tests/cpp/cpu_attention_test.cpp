// SPDX-License-Identifier: Apache-2.0
// The kernels of the cpu backend against the definition in float64: every feature with every other, random
// combinations, edges; equal bits for any number of threads; every instruction set of this machine.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <random>
#include <thread>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "cpu_attention_case.hpp"
#include "detect/cpu.hpp"

namespace cynosure::cpu::testing {
namespace {

double norm(const Array& a) {
  double sum = 0;
  for (const double x : a.value) sum += x * x;
  return std::sqrt(sum);
}
double distance(const Array& a, const Array& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.value.size(); ++i) sum += (a.value[i] - b.value[i]) * (a.value[i] - b.value[i]);
  return std::sqrt(sum);
}

/// The design's bound: |x - ref| <= 1.5 |m - ref| + one rounding of ref, where m is a plain program in the call's type.
struct Errors {
  double own = 0, plain = 0, rounding = 0;
  [[nodiscard]] bool within() const { return own <= 1.5 * plain + rounding; }
};

constexpr double kFew = 64;

/// From how many rows the plain program's error comes: (sum e)^2 / sum e^2 of their squared errors e. Errors within a
/// row go together, so this counts independent samples.
double samples(const Array& plain, const Array& ref) {
  const auto width = static_cast<std::size_t>(std::max<std::int64_t>(1, ref.size[3]));
  double sum = 0;
  double squares = 0;
  for (std::size_t first = 0; first < ref.value.size(); first += width) {
    double e = 0;
    for (std::size_t x = first; x < first + width; ++x)
      e += (plain.value[x] - ref.value[x]) * (plain.value[x] - ref.value[x]);
    sum += e;
    squares += e * e;
  }
  return squares > 0 ? sum * sum / squares : 0;
}

/// The bound compares two samples of rounding errors, which says something where there are many. Where there are few
/// (one key, say, where the plain program makes no error at all; or a softmax so steep that two scores decide) a result
/// is held to it together with all others of its kind in a test, each in units of the sum of its terms' magnitudes; and
/// alone to a loose limit in that unit.
class FewNumbers {
 public:
  void add(const std::string& name, double samples, const Errors& errors, double magnitude) {
    auto& [count, sum] = sums_[name];
    count += samples;
    sum.own += square(errors.own / magnitude);
    sum.plain += square(errors.plain / magnitude);
    sum.rounding += square(errors.rounding / magnitude);
  }
  ~FewNumbers() {
    for (const auto& [name, counted] : sums_) {
      const auto& [count, sum] = counted;
      if (count < kFew) continue;
      const Errors all{std::sqrt(sum.own), std::sqrt(sum.plain), std::sqrt(sum.rounding)};
      EXPECT_TRUE(all.within()) << name << ": error " << all.own << ", of the plain program " << all.plain
                                << ", of rounding " << all.rounding;
    }
  }

 private:
  static double square(double x) { return x * x; }
  std::map<std::string, std::pair<double, Errors>> sums_;
};

struct Bound {
  DType dtype;
  double loose;  ///< relative to the magnitude of the terms
};

double largest_lse(const Results& ref) {
  double largest = 1;
  for (const double x : ref.lse.value)
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  return largest;
}

void expect_close(const char* name, const Array& x, const Array& ref, const Array& plain, const Array& magnitude,
                  Bound bound, FewNumbers& few) {
  ASSERT_EQ(x.value.size(), ref.value.size()) << name;
  Array rounded = ref;
  for (double& value : rounded.value) value = round_to(bound.dtype, value);
  const Errors errors{distance(x, ref), distance(plain, ref), distance(rounded, ref)};
  const double size = norm(magnitude);
  const double count = samples(plain, ref);
  if (count >= kFew) {
    EXPECT_TRUE(errors.within()) << name << ": error " << errors.own << ", of the plain program " << errors.plain
                                 << ", of rounding " << errors.rounding << ", of " << norm(ref);
    return;
  }
  const double loose = 2 * errors.plain + errors.rounding + bound.loose * size;
  EXPECT_TRUE(errors.own <= loose) << name << ": error " << errors.own << ", loosely allowed " << loose << " of "
                                   << norm(ref);
  const std::string kind = std::string(name) + " in " + kDTypeNames[static_cast<std::size_t>(bound.dtype)].data();
  if (size > 0) few.add(kind, count, errors, size);
}

void expect_equal_lse(const Array& lse, const Array& ref, bool wide) {
  for (std::size_t i = 0; i < ref.value.size(); ++i) {
    if (std::isinf(ref.value[i])) {
      ASSERT_EQ(lse.value[i], ref.value[i]) << "LSE " << i;
    } else {
      ASSERT_NEAR(lse.value[i], ref.value[i], (wide ? 4e-5 : 1e-5) * std::max(1.0, std::abs(ref.value[i])))
          << "LSE " << i;
    }
  }
}

void check(const Case& c, Instructions isa, FewNumbers& few) {
  SCOPED_TRACE(c.text());
  const Data data = make_data(c);
  const auto exact = [](double x) { return x; };
  const auto in_dtype = [&](double x) { return round_to(c.dtype, x); };
  const Results ref = evaluate<double>(c, data, exact);
  const Results plain = evaluate<float>(c, data, in_dtype);
  const Results size = evaluate<double>(c, data, exact, true);
  const Results x = run(c, data, isa);
  // The loose limit: one intermediate rounded to the call's type; in float32 the terms and, going backward, the LSE.
  const double unit = c.dtype == DType::float32 ? 0 : c.dtype == DType::bfloat16 ? 0x1p-9 : 0x1p-12;
  const Bound forward{c.dtype, std::max(unit, 0x1p-22)};
  const Bound backward{c.dtype, std::max(unit, 0x1p-22 * largest_lse(ref))};
  const Bound bias{c.bias_float32 ? DType::float32 : c.dtype, backward.loose};
  const auto close = [&](const char* name, Array Results::* result, const Bound& bound) {
    expect_close(name, x.*result, ref.*result, plain.*result, size.*result, bound, few);
  };
  close("out", &Results::out, forward);
  expect_equal_lse(x.lse, ref.lse, c.softcap != 0);
  close("dq", &Results::dq, backward);
  close("dk", &Results::dk, backward);
  close("dv", &Results::dv, backward);
  close("dbias", &Results::dbias, bias);
  close("dadditive", &Results::dadditive, backward);
  close("dsinks", &Results::dsinks, backward);
}

/// Every setting a case can have besides its sizes. The first of each group is what the default case has.
using Change = void (*)(Case&);
const std::vector<std::vector<Change>>& features() {
  static const std::vector<std::vector<Change>> groups{
      {[](Case& c) { c.dtype = DType::bfloat16; }, [](Case& c) { c.dtype = DType::float16; }},
      {[](Case& c) { c.order = Order::sbhd; }, [](Case& c) { c.order = Order::bhsd; }},
      {[](Case& c) { c.lengths = LengthKind::padded; }, [](Case& c) { c.lengths = LengthKind::ragged; }},
      {[](Case& c) { c.causal = true; }, [](Case& c) { c.left = 4, c.right = 2; }, [](Case& c) { c.right = 5; },
       [](Case& c) { c.causal = true, c.left = 3; }},
      {[](Case& c) { c.align = Align::top_left; }},
      {[](Case& c) { c.kv_heads = 2, c.heads = 6; }, [](Case& c) { c.kv_heads = 1; }},
      {[](Case& c) { c.seqlen_q = 7, c.seqlen_k = 33; }, [](Case& c) { c.seqlen_q = 33, c.seqlen_k = 7; },
       [](Case& c) { c.seqlen_q = 1; }, [](Case& c) { c.seqlen_q = 110, c.seqlen_k = 150; }},
      {[](Case& c) { c.head_dim_qk = 5, c.head_dim_v = 24; }, [](Case& c) { c.head_dim_qk = 40, c.head_dim_v = 9; }},
      {[](Case& c) { c.softcap = 1.5F; }},
      {[](Case& c) { c.bias = Shape::bhss; }, [](Case& c) { c.bias = Shape::one_hss, c.bias_float32 = true; },
       [](Case& c) { c.bias = Shape::b1ss; }, [](Case& c) { c.bias = Shape::oness, c.bias_float32 = true; },
       [](Case& c) { c.bias = Shape::row; }},
      {[](Case& c) { c.additive = Shape::b1ss; }, [](Case& c) { c.additive = Shape::row; }},
      {[](Case& c) { c.boolean = Shape::bhss; }, [](Case& c) { c.boolean = Shape::row; },
       [](Case& c) { c.boolean = Shape::b1ss; }},
      {[](Case& c) { c.alibi = 1; }, [](Case& c) { c.alibi = 2; }},
      {[](Case& c) { c.sinks = true; }},
      {[](Case& c) { c.dropout = 0.3F; }, [](Case& c) { c.dropout = 1.0F; }},
      {[](Case& c) { c.lse_gradient = true; }},
  };
  return groups;
}

std::vector<Instructions> available() {
  std::vector<Instructions> result;
  for (const CpuIsa isa : {CpuIsa::generic, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::amx})
    if (isa <= detect::best_cpu_isa() && built_isa(isa) == isa) result.emplace_back(isa);
  result.emplace_back(CpuIsa::generic, true);
  return result;
}

bool in_tiles(Instructions with) { return with.emulate_tiles || with.isa == CpuIsa::amx; }
/// The case as one that tiles serve.
Case for_tiles(Case c) {
  c.dtype = DType::bfloat16;
  if (c.seqlen_q <= 48) c.seqlen_q += 49;
  if (c.seqlen_k <= 48) c.seqlen_k += c.seqlen_k % 2 == 0 ? 49 : 0;
  for (std::int64_t* dim : {&c.head_dim_qk, &c.head_dim_v}) *dim = std::clamp<std::int64_t>(*dim, 8, 256);
  return c;
}

std::string name_of(Instructions with) {
  return with.emulate_tiles ? "emulated_tiles" : std::string(kCpuIsaNames[static_cast<std::size_t>(with.isa)]);
}

class CpuAttention : public ::testing::TestWithParam<Instructions> {};
INSTANTIATE_TEST_SUITE_P(Isa, CpuAttention, ::testing::ValuesIn(available()),
                         [](const auto& with) { return name_of(with.param); });

/// The level asked for is the one that runs; tiles where they serve the call, by shape alone.
TEST_P(CpuAttention, RunsWhatWasAskedFor) {
  Attention call;
  call.dtype = DType::bfloat16;
  call.batch = call.heads = call.kv_heads = 1;
  call.seqlen_q = 49;
  call.seqlen_k = 1;
  call.head_dim_qk = 8;
  call.head_dim_v = 256;
  const Instructions with = GetParam();
  const bool tiles = in_tiles(with);
  EXPECT_EQ(used_by_forward(call, with), (Used{.isa = with.isa, .tiles = tiles}));
  EXPECT_EQ(used_by_backward(call, {}, with), (Used{.isa = with.isa, .tiles = tiles}));
  const CpuIsa other = with.isa == CpuIsa::amx ? CpuIsa::avx512 : with.isa;
  const auto without_tiles = [&](auto change) {
    Attention changed = call;
    change(changed);
    EXPECT_EQ(used_by_forward(changed, with), (Used{.isa = other, .tiles = false}));
    EXPECT_EQ(used_by_backward(changed, {}, with), (Used{.isa = other, .tiles = false}));
  };
  without_tiles([](Attention& c) { c.dtype = DType::float32; });
  without_tiles([](Attention& c) { c.dtype = DType::float16; });
  without_tiles([](Attention& c) { c.seqlen_q = 48; });
  without_tiles([](Attention& c) { c.head_dim_qk = 7; });
  without_tiles([](Attention& c) { c.head_dim_v = 257; });
  float term = 0;
  Gradients of_a_term;
  of_a_term.dbias.data = &term;
  EXPECT_EQ(used_by_backward(call, of_a_term, with), (Used{.isa = other, .tiles = false}));
}

TEST_P(CpuAttention, EveryFeatureWithEveryOther) {
  FewNumbers few;
  const auto& groups = features();
  std::uint64_t seed = 0;
  check({}, GetParam(), few);
  for (std::size_t a = 0; a < groups.size(); ++a)
    for (const Change first : groups[a]) {
      for (std::size_t b = a; b < groups.size(); ++b)
        for (const Change second : groups[b]) {
          Case c;
          c.seed = ++seed;
          first(c);
          second(c);
          if (c.heads % c.kv_heads != 0) c.heads = c.kv_heads * 2;
          check(in_tiles(GetParam()) ? for_tiles(c) : c, GetParam(), few);
          if (HasFailure()) return;
        }
    }
}

Case random_case(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  Case c;
  for (const auto& group : features())
    if (below(3) == 0) group[static_cast<std::size_t>(below(group.size()))](c);
  c.batch = 1 + below(3);
  c.kv_heads = 1 + below(3);
  c.heads = c.kv_heads * (1 + below(4));
  c.seqlen_q = below(8) == 0 ? 1 + below(220) : 1 + below(40);
  c.seqlen_k = below(3) == 0 ? c.seqlen_q : below(8) == 0 ? 1 + below(300) : 1 + below(40);
  if (below(4) != 0) c.head_dim_qk = 1 + below(48);
  if (below(2) == 0) c.head_dim_v = 1 + below(48);
  if (below(12) == 0)
    c.head_dim_qk = 1 + below(330), c.head_dim_v = 1 + below(330), c.batch = 1, c.seqlen_q %= 64, c.seqlen_k %= 64;
  if (c.left >= 0) c.left = below(static_cast<std::uint64_t>(c.seqlen_k + 2));
  if (c.right >= 0) c.right = below(static_cast<std::uint64_t>(c.seqlen_k + 2));
  if (below(4) == 0) c.scale = 0.01F * static_cast<float>(1 + below(100));
  c.seed = random();
  return c;
}

/// CYNOSURE_SOAK=N runs N of them.
TEST_P(CpuAttention, RandomCombinations) {
  FewNumbers few;
  std::mt19937_64 random(20240607);
  const char* soak = std::getenv("CYNOSURE_SOAK");
  const int cases = soak != nullptr ? std::atoi(soak) : 300;
  for (int i = 0; i < cases && !HasFailure(); ++i) {
    const Case c = random_case(random);
    check(in_tiles(GetParam()) ? for_tiles(c) : c, GetParam(), few);
  }
}

TEST_P(CpuAttention, Edges) {
  const Instructions isa = GetParam();
  FewNumbers few;
  for (const std::int64_t zero : {0, 1, 2, 3, 4}) {  // empty dimensions
    Case c;
    (zero == 0   ? c.batch
     : zero == 1 ? c.seqlen_q
     : zero == 2 ? c.seqlen_k
     : zero == 3 ? c.head_dim_v
                 : c.head_dim_qk) = 0;
    c.scale = 1;
    c.bias = Shape::oness;
    c.sinks = true;
    check(c, isa, few);
  }
  for (const std::int64_t d : {8, 31, 33, 64, 80, 127, 128, 255, 256, 257, 320}) {
    Case c;
    c.batch = 1;
    c.head_dim_qk = d;
    c.head_dim_v = d;
    c.causal = true;
    check(c, isa, few);
    c.dtype = DType::bfloat16;
    c.head_dim_v = d + 1;
    check(c, isa, few);
  }
  for (const std::int64_t s : {1, 5, 16, 97}) {  // windows at their limits, both alignments, both shapes
    for (const std::int64_t window :
         {std::int64_t{0}, std::int64_t{1}, s - 1, s, std::numeric_limits<std::int64_t>::max()})
      for (const Align align : {Align::top_left, Align::bottom_right})
        for (const std::int64_t keys : {s, s + 40, std::max<std::int64_t>(1, s - 40)}) {
          Case c;
          c.batch = 1;
          c.seqlen_q = s;
          c.seqlen_k = keys;
          c.align = align;
          c.left = window;
          c.right = window;
          check(c, isa, few);
          c.right = -1;
          c.causal = true;
          check(c, isa, few);
        }
  }
  for (const std::int64_t rows :
       {1, 2, 3, 9, 17})  // few rows: the keys are split; one head, and heads that share blocks
    for (const std::int64_t heads : {1, 6}) {
      Case c;
      c.batch = 2;
      c.kv_heads = 1;
      c.heads = heads;
      c.seqlen_q = rows;
      c.seqlen_k = 1300;
      c.head_dim_v = heads == 1 ? 16 : 21;
      c.causal = rows == 9;
      if (rows == 3) c.left = 100;
      if (rows == 17) c.lengths = LengthKind::padded, c.sinks = true;
      if (rows == 2) c.dtype = DType::bfloat16, c.boolean = Shape::row;
      check(c, isa, few);
    }
  Case c;  // a narrow window over many blocks; several splits of the keys
  c.batch = 1;
  c.heads = 1;
  c.kv_heads = 1;
  c.seqlen_q = c.seqlen_k = 1000;
  c.left = 3;
  c.right = 2;
  c.bias = Shape::row;
  check(c, isa, few);
  c.left = c.right = -1;
  c.causal = true;
  c.heads = 2;
  c.dtype = DType::float16;
  check(c, isa, few);
}

TEST_P(CpuAttention, EverythingMasked) {
  Case c;
  if (in_tiles(GetParam())) c = for_tiles(c);
  c.boolean = Shape::bhss;
  c.sinks = true;
  c.lse_gradient = true;
  Data data = make_data(c);
  for (double& x : data.boolean.value) x = 0;
  for (double& x : data.dout.value) x = std::numeric_limits<double>::quiet_NaN();
  for (double& x : data.v.value) x = std::numeric_limits<double>::infinity();
  const Results x = run(c, data, GetParam());
  for (const Array* a : {&x.out, &x.dq, &x.dk, &x.dv, &x.dsinks})
    for (const double value : a->value) ASSERT_EQ(value, 0);
  for (const double value : x.lse.value) ASSERT_EQ(value, -std::numeric_limits<double>::infinity());
}

/// NaN and infinity reach the rows that attend them and no others.
TEST_P(CpuAttention, NotFiniteStaysWhereItIs) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    for (const bool boolean : {false, true}) {
      Case c;
      c.batch = 1;
      c.seqlen_q = c.seqlen_k = 40;
      c.causal = !boolean;
      if (boolean) c.boolean = Shape::oness;
      if (in_tiles(GetParam())) c = for_tiles(c), c.seqlen_k = c.seqlen_q;
      const double close = c.dtype == DType::bfloat16 ? 0.02 : 1e-6;  // of one rounding of results up to 4
      const double close_gradient = c.dtype == DType::bfloat16 ? 0.02 : 1e-5;
      const std::int64_t rows = c.seqlen_q;
      Data clean = make_data(c);
      constexpr std::int64_t key = 25;
      if (boolean)
        for (std::int64_t i = 0; i < rows; ++i)
          for (std::int64_t j = 0; j < rows; ++j) clean.boolean.at(0, 0, i, j) = i < key ? j < key : j >= key;
      const Results want = run(c, clean, GetParam());
      Data data = clean;
      for (Array* a : {&data.k, &data.v})
        for (std::int64_t h = 0; h < 2; ++h) a->at(0, h, key, 3) = bad;
      const Results got = run(c, data, GetParam());
      for (std::int64_t h = 0; h < 2; ++h)
        for (std::int64_t i = 0; i < rows; ++i)
          for (std::int64_t d = 0; d < 16; ++d) {
            if (i < key) {
              ASSERT_NEAR(got.out.at(0, h, i, d), want.out.at(0, h, i, d), close) << i;
              ASSERT_NEAR(got.dq.at(0, h, i, d), want.dq.at(0, h, i, d), close_gradient) << i;
            } else if (std::isnan(bad)) {  // an infinite key can score -inf, which hides its value
              ASSERT_TRUE(std::isnan(got.out.at(0, h, i, d)));
            }
            if (boolean && i < key) {  // keys that only good rows attend
              ASSERT_NEAR(got.dk.at(0, h, i, d), want.dk.at(0, h, i, d), close_gradient) << i;
              ASSERT_NEAR(got.dv.at(0, h, i, d), want.dv.at(0, h, i, d), close_gradient) << i;
            }
          }
    }
}

/// Runs on threads of its own, the last part first.
class Threads {
 public:
  void operator()(std::int64_t begin, std::int64_t end, std::int64_t, RangeFunction function) const {
    std::vector<std::thread> threads;
    for (std::int64_t part = end - 1; part >= begin; --part)
      threads.emplace_back([part, function] { function(part, part + 1); });
    for (std::thread& thread : threads) thread.join();
  }
};

TEST_P(CpuAttention, EqualBitsForAnyNumberOfThreads) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 12; ++i) {
    Case c = random_case(random);
    c.batch = 2;
    c.kv_heads = 2;
    c.heads = 4;
    c.seqlen_q = c.seqlen_k = 210 + i;
    c.head_dim_qk = c.head_dim_v = 32;
    if (i % 3 == 2) c.seqlen_q = 1 + i, c.seqlen_k = 1100 + i;
    if (in_tiles(GetParam())) c = for_tiles(c);
    SCOPED_TRACE(c.text());
    const Data data = make_data(c);
    const Results one = run(c, data, GetParam());
    for (const int threads : {2, 3, 7}) {
      Threads pool;
      const Results many = run(c, data, GetParam(), Parallel(threads, pool));
      const Array* a[] = {&one.out, &one.lse, &one.dq, &one.dk, &one.dv, &one.dbias, &one.dadditive, &one.dsinks};
      const Array* b[] = {&many.out, &many.lse,   &many.dq,        &many.dk,
                          &many.dv,  &many.dbias, &many.dadditive, &many.dsinks};
      for (std::size_t n = 0; n < std::size(a); ++n)
        for (std::size_t x = 0; x < a[n]->value.size(); ++x)
          ASSERT_EQ(std::bit_cast<std::uint64_t>(a[n]->value[x]), std::bit_cast<std::uint64_t>(b[n]->value[x]))
              << "result " << n << ", " << threads << " threads";
    }
  }
}

/// Offsets beyond 2^32 bytes, in address space that is only reserved.
TEST_P(CpuAttention, HugeStrides) {
  constexpr std::int64_t stride = (std::int64_t{1} << 31) + 3;  // elements
  constexpr std::size_t bytes = 4 * (2 * static_cast<std::size_t>(stride) + 4096);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space of " << bytes << " bytes here";
  auto* far = static_cast<float*>(memory);
  std::vector<float> near(2 * 3 * 4);
  for (std::int64_t head = 0; head < 2; ++head)
    for (std::int64_t x = 0; x < 12; ++x)
      near[static_cast<std::size_t>(head * 12 + x)] = far[head * stride + x] = static_cast<float>((x * 7 + head) % 5);
  Attention call;
  call.batch = 1;
  call.heads = call.kv_heads = 2;
  call.seqlen_q = call.seqlen_k = 3;
  call.head_dim_qk = call.head_dim_v = 4;
  std::vector<float> out[2] = {std::vector<float>(24), std::vector<float>(24)};
  std::vector<char> workspace(forward_workspace(call, GetParam(), 1) + 64);
  void* aligned = workspace.data() + (64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64);
  for (const int where : {0, 1}) {
    const Input t{.data = where == 0 ? near.data() : far, .batch = 0, .sequence = 4, .head = where == 0 ? 12 : stride};
    call.q = call.k = call.v = t;
    forward(call, {.out = {.data = out[where].data(), .sequence = 4, .head = 12}, .lse = {}}, GetParam(), {}, aligned);
  }
  EXPECT_EQ(out[0], out[1]);
  munmap(memory, bytes);
}

TEST(CpuAttentionIsa, SetsAgree) {
  std::mt19937_64 random(99);
  for (int i = 0; i < 40; ++i) {
    Case c = random_case(random);
    if (i % 2 == 0) c = for_tiles(c);
    SCOPED_TRACE(c.text());
    const Data data = make_data(c);
    const Results first = run(c, data, CpuIsa::generic);
    for (const Instructions isa : available()) {
      const Results other = run(c, data, isa);
      const double eps = c.dtype == DType::float32 ? 1e-5 : c.dtype == DType::float16 ? 2e-3 : 1.6e-2;
      EXPECT_LE(distance(first.out, other.out), eps * norm(first.out));
      EXPECT_LE(distance(first.dv, other.dv), eps * norm(first.dv));
    }
  }
}

TEST(CpuAttentionIsa, TheOneAskedForRuns) {
  EXPECT_EQ(built_isa(CpuIsa::generic), CpuIsa::generic);
  for (const Instructions with : available()) EXPECT_EQ(built_isa(with.isa), with.isa);
  EXPECT_LE(built_isa(CpuIsa::amx), CpuIsa::amx);
}

TEST(CpuAttentionMemory, IsLinearInLength) {
  Attention call;
  call.batch = 1;
  call.heads = call.kv_heads = 8;
  call.seqlen_q = call.seqlen_k = 16384;
  call.head_dim_qk = call.head_dim_v = 64;
  Attention twice = call;
  twice.seqlen_q = twice.seqlen_k = 32768;
  for (const Instructions isa : available())
    for (const int threads : {1, 4, 64}) {
      const auto forward_once = static_cast<double>(forward_workspace(call, isa, threads));
      const auto backward_once = static_cast<double>(backward_workspace(call, {}, isa, threads));
      EXPECT_LE(static_cast<double>(forward_workspace(twice, isa, threads)), 2.05 * forward_once);
      EXPECT_LE(static_cast<double>(backward_workspace(twice, {}, isa, threads)), 2.05 * backward_once);
    }
}

}  // namespace
}  // namespace cynosure::cpu::testing
