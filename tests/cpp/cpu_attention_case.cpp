// SPDX-License-Identifier: Apache-2.0
#include "cpu_attention_case.hpp"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>

#include <gtest/gtest.h>

#include "backends/cpu/half.hpp"

namespace cynosure::cpu::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

double default_scale(const Case& c) {
  return c.scale != 0 ? static_cast<double>(c.scale) : 1.0 / std::sqrt(static_cast<double>(c.head_dim_qk));
}

Array array_of(Shape shape, const Case& c) {
  switch (shape) {
    case Shape::none:
      return {};
    case Shape::bhss:
      return {c.batch, c.heads, c.seqlen_q, c.seqlen_k};
    case Shape::one_hss:
      return {1, c.heads, c.seqlen_q, c.seqlen_k};
    case Shape::b1ss:
      return {c.batch, 1, c.seqlen_q, c.seqlen_k};
    case Shape::oness:
      return {1, 1, c.seqlen_q, c.seqlen_k};
    case Shape::row:
      return {1, 1, 1, c.seqlen_k};
  }
  return {};
}

/// Philox 4x32-10 as published, one block at a time.
std::uint32_t philox_word(std::int64_t seed, std::int64_t offset, std::uint64_t batch_head, std::uint64_t row,
                          std::uint64_t column) {
  const auto offset_bits = static_cast<std::uint64_t>(offset);
  std::uint64_t key = static_cast<std::uint64_t>(seed) + (offset_bits >> 32) * 0x9e3779b97f4a7c15U;
  std::uint32_t x[4] = {static_cast<std::uint32_t>(column / 4), static_cast<std::uint32_t>(row),
                        static_cast<std::uint32_t>(batch_head), static_cast<std::uint32_t>(offset_bits)};
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * x[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * x[2];
    const std::uint32_t y[4] = {static_cast<std::uint32_t>(b >> 32) ^ x[1] ^ k0, static_cast<std::uint32_t>(b),
                                static_cast<std::uint32_t>(a >> 32) ^ x[3] ^ k1, static_cast<std::uint32_t>(a)};
    std::memcpy(x, y, sizeof x);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return x[column % 4];
}

constexpr std::int64_t kSeed = -1234567890123;
constexpr std::int64_t kOffset = (std::int64_t{5} << 32) + 17;

}  // namespace

std::string Case::text() const {
  std::ostringstream s;
  s << kDTypeNames[static_cast<std::size_t>(dtype)] << " b" << batch << " h" << heads << "/" << kv_heads << " s"
    << seqlen_q << "x" << seqlen_k << " d" << head_dim_qk << "/" << head_dim_v << " order " << int(order) << " lengths "
    << int(lengths) << " causal " << causal << " align " << int(align) << " window " << left << "," << right << " cap "
    << softcap << " bias " << int(bias) << (bias_float32 ? "f" : "") << " additive " << int(additive) << " boolean "
    << int(boolean) << " alibi " << alibi << " sinks " << sinks << " dropout " << dropout << " dlse " << lse_gradient
    << " seed " << seed;
  return s.str();
}

double round_to(DType dtype, double x) {
  const auto f = static_cast<float>(x);
  if (dtype == DType::bfloat16) return static_cast<double>(from_bfloat16(to_bfloat16(f)));
  if (dtype == DType::float16) return static_cast<double>(from_float16(to_float16(f)));
  return static_cast<double>(f);
}

Data make_data(const Case& c) {
  std::mt19937_64 random(c.seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  const auto fill = [&](Array& a, DType dtype, double scale) {
    for (double& x : a.value) x = round_to(dtype, scale * normal(random));
  };
  Data d;
  d.q = {c.batch, c.heads, c.seqlen_q, c.head_dim_qk};
  d.k = {c.batch, c.kv_heads, c.seqlen_k, c.head_dim_qk};
  d.v = {c.batch, c.kv_heads, c.seqlen_k, c.head_dim_v};
  d.dout = {c.batch, c.heads, c.seqlen_q, c.head_dim_v};
  d.dlse = {c.batch, c.heads, c.seqlen_q, 1};
  for (Array* a : {&d.q, &d.k, &d.v, &d.dout}) fill(*a, c.dtype, 1);
  fill(d.dlse, DType::float32, 0.5);
  d.bias = array_of(c.bias, c);
  fill(d.bias, c.bias_float32 ? DType::float32 : c.dtype, 1);
  d.additive = array_of(c.additive, c);
  fill(d.additive, c.dtype, 1);
  for (double& x : d.additive.value)
    if (uniform(random) < 0.2) x = -kInf;
  d.boolean = array_of(c.boolean, c);
  for (double& x : d.boolean.value) x = uniform(random) < 0.6 ? 1 : 0;
  if (c.alibi > 0) {
    d.alibi = {c.alibi == 2 ? c.batch : 1, c.heads, 1, 1};
    for (double& x : d.alibi.value) x = round_to(DType::float32, 0.3 * uniform(random));
  }
  if (c.sinks) {
    d.sinks = {1, c.heads, 1, 1};
    fill(d.sinks, c.dtype, 1);
  }
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const auto length = [&](std::int64_t longest) {
      if (c.lengths == LengthKind::whole || b == 1) return static_cast<std::int32_t>(longest);
      return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(longest + 1));
    };
    d.rows.push_back(length(c.seqlen_q));
    d.keys.push_back(length(c.seqlen_k));
    d.extent_q.push_back(c.lengths == LengthKind::ragged ? d.rows.back() : static_cast<std::int32_t>(c.seqlen_q));
    d.extent_k.push_back(c.lengths == LengthKind::ragged ? d.keys.back() : static_cast<std::int32_t>(c.seqlen_k));
  }
  return d;
}

template <class Real>
Results evaluate(const Case& c, const Data& data, const std::function<double(double)>& round, bool magnitude) {
  const auto rounded = [&](Real x) { return static_cast<Real>(round(static_cast<double>(x))); };
  const auto part = [&](Real x) { return magnitude ? std::abs(x) : x; };
  Results r;
  r.out = {c.batch, c.heads, c.seqlen_q, c.head_dim_v};
  r.lse = {c.batch, c.heads, c.seqlen_q, 1};
  r.dq = {c.batch, c.heads, c.seqlen_q, c.head_dim_qk};
  r.dk = {c.batch, c.kv_heads, c.seqlen_k, c.head_dim_qk};
  r.dv = {c.batch, c.kv_heads, c.seqlen_k, c.head_dim_v};
  r.dbias = array_of(c.bias, c);
  r.dadditive = array_of(c.additive, c);
  if (c.sinks) r.dsinks = {1, c.heads, 1, 1};
  for (double& x : r.lse.value) x = -kInf;

  const Real scale = static_cast<Real>(default_scale(c));
  const auto keep_scale = static_cast<Real>(c.dropout < 1 ? 1 / (1 - static_cast<double>(c.dropout)) : 0);
  const std::int64_t group = c.kv_heads > 0 ? c.heads / c.kv_heads : 1;
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < data.rows[static_cast<std::size_t>(b)]; ++i) {
        const std::int64_t kv = h / group;
        const std::int64_t rows = data.rows[static_cast<std::size_t>(b)];
        const std::int64_t keys = data.keys[static_cast<std::size_t>(b)];
        const std::int64_t offset = c.align == Align::bottom_right ? keys - rows : 0;
        const auto width = static_cast<std::size_t>(keys);
        std::vector<Real> s(width);
        std::vector<Real> slope(width, 1);
        std::vector<Real> p(width);
        std::vector<Real> kept(width);
        std::vector<Real> dp(width);
        std::vector<Real> dp_parts(width);
        std::vector<bool> attends(width);
        Real maximum = -static_cast<Real>(kInf);
        for (std::int64_t j = 0; j < keys; ++j) {
          const auto x = static_cast<std::size_t>(j);
          const std::int64_t away = j - (i + offset);
          const std::int64_t right = c.causal ? 0 : c.right;
          attends[x] = (c.left < 0 || away >= -c.left) && (right < 0 || away <= right) &&
                       (c.boolean == Shape::none || data.boolean.at(b, h, i, j) != 0) &&
                       (c.additive == Shape::none || data.additive.at(b, h, i, j) != -kInf);
          if (!attends[x]) continue;
          Real sum = 0;
          for (std::int64_t d = 0; d < c.head_dim_qk; ++d)
            sum += static_cast<Real>(data.q.at(b, h, i, d)) * static_cast<Real>(data.k.at(b, kv, j, d));
          s[x] = rounded(scale * sum);
          if (c.softcap != 0) {
            const Real t = rounded(std::tanh(s[x] / static_cast<Real>(c.softcap)));
            s[x] = rounded(static_cast<Real>(c.softcap) * t);
            slope[x] = rounded(1 - t * t);
          }
          if (c.bias != Shape::none) s[x] = rounded(s[x] + static_cast<Real>(data.bias.at(b, h, i, j)));
          if (c.alibi != 0)
            s[x] = rounded(s[x] - static_cast<Real>(data.alibi.at(b, h, 0, 0)) * static_cast<Real>(std::abs(away)));
          if (c.additive != Shape::none) s[x] = rounded(s[x] + static_cast<Real>(data.additive.at(b, h, i, j)));
          maximum = std::max(maximum, s[x]);
        }
        if (maximum == -static_cast<Real>(kInf)) continue;
        const Real sink = c.sinks ? static_cast<Real>(data.sinks.at(0, h, 0, 0)) : -static_cast<Real>(kInf);
        const Real top = std::max(maximum, sink);
        Real total = c.sinks ? std::exp(sink - top) : 0;
        for (std::size_t x = 0; x < width; ++x)
          if (attends[x]) total += std::exp(s[x] - top);
        r.lse.at(b, h, i, 0) = static_cast<double>(top + std::log(total));
        const auto out_of = [&](std::int64_t d) -> double& { return r.out.at(b, h, i, d); };
        Real delta = 0;
        for (std::int64_t j = 0; j < keys; ++j) {
          const auto x = static_cast<std::size_t>(j);
          if (!attends[x]) continue;
          p[x] = rounded(std::exp(s[x] - top) / total);
          Real keep = 1;
          if (c.dropout > 0) {
            const std::uint32_t word = philox_word(kSeed, kOffset, static_cast<std::uint64_t>(b * c.heads + h),
                                                   static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(j));
            keep = c.dropout >= 1 || word < static_cast<double>(c.dropout) * 4294967296.0 ? Real{0} : keep_scale;
          }
          kept[x] = rounded(p[x] * keep);
          for (std::int64_t d = 0; d < c.head_dim_v; ++d) {
            const Real v = static_cast<Real>(data.v.at(b, kv, j, d));
            out_of(d) = static_cast<double>(static_cast<Real>(out_of(d)) + part(kept[x] * v));
            dp[x] += part(static_cast<Real>(data.dout.at(b, h, i, d)) * v);
          }
          dp[x] = rounded(dp[x]) * keep;
          delta += part(p[x] * dp[x]);
        }
        for (std::int64_t d = 0; d < c.head_dim_v; ++d)
          out_of(d) = static_cast<double>(rounded(static_cast<Real>(out_of(d))));
        const Real dlse = c.lse_gradient ? static_cast<Real>(data.dlse.at(b, h, i, 0)) : Real{0};
        for (std::int64_t j = 0; j < keys; ++j) {
          const auto x = static_cast<std::size_t>(j);
          if (!attends[x]) continue;
          const Real difference = magnitude ? dp[x] + delta + std::abs(dlse) : dp[x] - delta + dlse;
          const Real term = rounded(p[x] * difference);
          const auto add = [&](double& to, Real value) {
            to = static_cast<double>(static_cast<Real>(to) + part(value));
          };
          if (c.bias != Shape::none) add(r.dbias.at(b, h, i, j), term);
          if (c.additive != Shape::none) add(r.dadditive.at(b, h, i, j), term);
          const Real ds = rounded(term * slope[x]) * scale;
          for (std::int64_t d = 0; d < c.head_dim_qk; ++d) {
            add(r.dq.at(b, h, i, d), ds * static_cast<Real>(data.k.at(b, kv, j, d)));
            add(r.dk.at(b, kv, j, d), ds * static_cast<Real>(data.q.at(b, h, i, d)));
          }
          for (std::int64_t d = 0; d < c.head_dim_v; ++d)
            add(r.dv.at(b, kv, j, d), kept[x] * static_cast<Real>(data.dout.at(b, h, i, d)));
        }
        if (c.sinks) {
          const Real p_sink = rounded(std::exp(sink - top) / total);
          const Real slope_sink = magnitude ? delta + std::abs(dlse) : dlse - delta;
          double& to = r.dsinks.at(0, h, 0, 0);
          to = static_cast<double>(static_cast<Real>(to) + p_sink * slope_sink);
        }
      }
  for (Array* a : {&r.dq, &r.dk, &r.dv, &r.dbias, &r.dadditive, &r.dsinks})
    for (double& x : a->value) x = static_cast<double>(rounded(static_cast<Real>(x)));
  return r;
}
template Results evaluate<double>(const Case&, const Data&, const std::function<double(double)>&, bool);
template Results evaluate<float>(const Case&, const Data&, const std::function<double(double)>&, bool);

namespace {

/// A tensor in memory of its own: exactly as long as it must be, at an address that is aligned to its elements only,
/// with gaps between rows. Whatever it does not hold stays as it was.
class Memory {
 public:
  Memory(DType dtype, std::int64_t elements) : dtype_(dtype), bytes_(static_cast<std::size_t>(elements * size())) {
    block_.assign(bytes_ + static_cast<std::size_t>(size()), kFill);
  }
  [[nodiscard]] std::int64_t size() const { return dtype_ == DType::float32 ? 4 : 2; }
  [[nodiscard]] char* data() { return block_.data() + size(); }
  void set(std::int64_t element, double x) {
    written_.resize(block_.size());
    const auto f = static_cast<float>(x);
    char* to = data() + element * size();
    if (dtype_ == DType::float32) {
      std::memcpy(to, &f, 4);
    } else {
      const std::uint16_t half = dtype_ == DType::bfloat16 ? to_bfloat16(f) : to_float16(f);
      std::memcpy(to, &half, 2);
    }
  }
  double take(std::int64_t element) {
    taken_.resize(block_.size());
    char* from = data() + element * size();
    std::memset(taken_.data() + (from - block_.data()), 1, static_cast<std::size_t>(size()));
    if (dtype_ == DType::float32) {
      float f = 0;
      std::memcpy(&f, from, 4);
      return static_cast<double>(f);
    }
    std::uint16_t half = 0;
    std::memcpy(&half, from, 2);
    return static_cast<double>(dtype_ == DType::bfloat16 ? from_bfloat16(half) : from_float16(half));
  }
  /// Bytes outside of what was taken that are not as they were.
  [[nodiscard]] std::size_t strays() const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < block_.size(); ++i)
      count += (i >= taken_.size() || taken_[i] == 0) && block_[i] != kFill;
    return count;
  }

 private:
  static constexpr char kFill = 0x7f;  // NaN in every type
  DType dtype_;
  std::size_t bytes_;
  std::vector<char> block_, written_, taken_;
};

/// [B, H, S, D] or, ragged, [T, H, D].
struct Tensor {
  Memory memory;
  std::int64_t batch, sequence, head;
  std::vector<std::int64_t> first;  ///< of each sequence, in rows
  [[nodiscard]] std::int64_t element(std::int64_t b, std::int64_t h, std::int64_t s) const {
    return b * batch + (first[static_cast<std::size_t>(b)] + s) * sequence + h * head;
  }
};

constexpr std::int64_t kRaggedRest = 3;  ///< tokens behind the last sequence

Tensor make_tensor(const Case& c, const std::vector<std::int32_t>& extents, std::int64_t heads, std::int64_t columns,
                   std::int64_t gap) {
  const std::int64_t pitch = columns + gap;
  std::vector<std::int64_t> first;
  std::int64_t tokens = 0;
  for (const std::int32_t extent : extents) {
    first.push_back(c.lengths == LengthKind::ragged ? tokens : 0);
    tokens += extent;
  }
  const std::int64_t longest = extents.empty() ? 0 : *std::max_element(extents.begin(), extents.end());
  std::int64_t batch = 0;
  std::int64_t sequence = heads * pitch;
  std::int64_t head = pitch;
  std::int64_t rows = c.batch * longest;
  if (c.lengths == LengthKind::ragged) {
    rows = tokens + kRaggedRest;
    if (c.order == Order::bhsd) {
      head = rows * pitch;
      sequence = pitch;
    }
  } else if (c.order == Order::bshd) {
    batch = longest * heads * pitch;
  } else if (c.order == Order::sbhd) {
    sequence = c.batch * heads * pitch;
    batch = heads * pitch;
  } else {
    batch = heads * longest * pitch;
    head = longest * pitch;
    sequence = pitch;
  }
  const std::int64_t elements = rows * heads == 0 ? 0 : rows * heads * pitch - gap;
  return {Memory(c.dtype, elements), batch, sequence, head, first};
}

template <class View>
View view(Tensor& t) {
  return {.data = t.memory.data(), .batch = t.batch, .sequence = t.sequence, .head = t.head};
}

Tensor put(const Case& c, const Array& a, const std::vector<std::int32_t>& extents,
           const std::vector<std::int32_t>& valid, std::int64_t gap) {
  Tensor t = make_tensor(c, extents, a.size[1], a.size[3], gap);
  for (std::int64_t b = 0; b < a.size[0]; ++b)
    for (std::int64_t h = 0; h < a.size[1]; ++h)
      for (std::int64_t s = 0; s < valid[static_cast<std::size_t>(b)]; ++s)  // beyond: NaN, as the memory is
        for (std::int64_t d = 0; d < a.size[3]; ++d) t.memory.set(t.element(b, h, s) + d, a.at(b, h, s, d));
  return t;
}

/// Reads a result back; padding and the tokens behind a ragged batch must be 0.
Array get(const Case& c, Tensor& t, const std::vector<std::int32_t>& extents, const std::vector<std::int32_t>& valid,
          std::int64_t heads, std::int64_t longest, std::int64_t columns, const char* name) {
  Array a(c.batch, heads, longest, columns);
  std::size_t wrong = 0;
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t s = 0; s < extents[static_cast<std::size_t>(b)]; ++s)
        for (std::int64_t d = 0; d < columns; ++d) {
          const double x = t.memory.take(t.element(b, h, s) + d);
          if (s < valid[static_cast<std::size_t>(b)])
            a.at(b, h, s, d) = x;
          else
            wrong += x != 0;
        }
  if (c.lengths == LengthKind::ragged) {
    std::int64_t tokens = 0;
    for (const std::int32_t extent : extents) tokens += extent;
    for (std::int64_t s = tokens; s < tokens + kRaggedRest; ++s)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t d = 0; d < columns; ++d) wrong += t.memory.take(s * t.sequence + h * t.head + d) != 0;
  }
  EXPECT_EQ(wrong, 0U) << name << ": padding is not 0";
  EXPECT_EQ(t.memory.strays(), 0U) << name << ": written outside";
  return a;
}

/// Strides of a dense array of the given shape, 0 where it broadcasts.
template <class View>
void set_strides(View& view, const Array& a, std::int64_t pitch) {
  view.column = 1;
  view.row = a.size[2] == 1 ? 0 : pitch;
  view.head = a.size[1] == 1 ? 0 : a.size[2] * pitch;
  view.batch = a.size[0] == 1 ? 0 : a.size[1] * a.size[2] * pitch;
}

struct TermMemory {
  Memory memory;
  std::int64_t pitch;
};
TermMemory put_term(const Array& a, DType dtype, std::int64_t gap) {
  const std::int64_t pitch = a.size[3] + gap;
  TermMemory t{Memory(dtype, a.value.empty() ? 0 : a.size[0] * a.size[1] * a.size[2] * pitch - gap), pitch};
  for (std::size_t i = 0; i < a.value.size(); ++i) {
    const auto n = static_cast<std::int64_t>(i);
    t.memory.set(n / a.size[3] * pitch + n % a.size[3], a.value[i]);
  }
  return t;
}
Array get_term(TermMemory& t, const Array& like, const char* name) {
  Array a = like;
  for (std::size_t i = 0; i < a.value.size(); ++i) {
    const auto n = static_cast<std::int64_t>(i);
    a.value[i] = t.memory.take(n / a.size[3] * t.pitch + n % a.size[3]);
  }
  EXPECT_EQ(t.memory.strays(), 0U) << name << ": written outside";
  return a;
}

struct AlignedFree {
  void operator()(void* p) const { std::free(p); }
};
std::unique_ptr<void, AlignedFree> workspace(std::size_t bytes) {
  void* p = std::aligned_alloc(64, bytes + 64 - bytes % 64);
  std::memset(p, 0x7f, bytes);
  return std::unique_ptr<void, AlignedFree>(p);
}

}  // namespace

Results run(const Case& c, const Data& data, Instructions isa, const Parallel& parallel) {
  Attention call;
  call.dtype = c.dtype;
  call.batch = c.batch;
  call.heads = c.heads;
  call.kv_heads = c.kv_heads;
  call.seqlen_q = c.seqlen_q;
  call.seqlen_k = c.seqlen_k;
  call.head_dim_qk = c.head_dim_qk;
  call.head_dim_v = c.head_dim_v;
  call.scale = static_cast<float>(default_scale(c));
  call.causal = c.causal;
  call.align = c.align;
  call.window_left = c.left;
  call.window_right = c.right;
  call.softcap = c.softcap;

  Tensor q = put(c, data.q, data.extent_q, data.rows, 3);
  Tensor k = put(c, data.k, data.extent_k, data.keys, 5);
  Tensor v = put(c, data.v, data.extent_k, data.keys, 0);
  Tensor dout = put(c, data.dout, data.extent_q, data.rows, 1);
  call.q = view<Input>(q);
  call.k = view<Input>(k);
  call.v = view<Input>(v);

  std::vector<std::int32_t> cumulative_q{0};
  std::vector<std::int32_t> cumulative_k{0};
  for (std::size_t b = 0; b < data.rows.size(); ++b) {
    cumulative_q.push_back(cumulative_q.back() + data.rows[b]);
    cumulative_k.push_back(cumulative_k.back() + data.keys[b]);
  }
  if (c.lengths == LengthKind::padded) {
    call.lengths_q.valid = data.rows.data();
    call.lengths_k.valid = data.keys.data();
  } else if (c.lengths == LengthKind::ragged) {
    call.lengths_q = {.valid = nullptr, .cumulative = cumulative_q.data(), .tokens = cumulative_q.back() + kRaggedRest};
    call.lengths_k = {.valid = nullptr, .cumulative = cumulative_k.data(), .tokens = cumulative_k.back() + kRaggedRest};
  }

  const DType bias_dtype = c.bias_float32 ? DType::float32 : c.dtype;
  TermMemory bias = put_term(data.bias, bias_dtype, 1);
  TermMemory additive = put_term(data.additive, c.dtype, 0);
  if (c.bias != Shape::none) {
    call.bias = {.data = bias.memory.data(), .dtype = bias_dtype};
    set_strides(call.bias, data.bias, bias.pitch);
  }
  if (c.additive != Shape::none) {
    call.additive_mask = {.data = additive.memory.data(), .dtype = c.dtype};
    set_strides(call.additive_mask, data.additive, additive.pitch);
  }
  std::vector<std::uint8_t> boolean;
  for (const double x : data.boolean.value) boolean.push_back(x != 0 ? 1 : 0);
  if (c.boolean != Shape::none) {
    call.mask.data = boolean.data();
    set_strides(call.mask, data.boolean, data.boolean.size[3]);
  }
  std::vector<float> alibi;
  for (const double x : data.alibi.value) alibi.push_back(static_cast<float>(x));
  if (c.alibi != 0) call.alibi = {.data = alibi.data(), .batch = c.alibi == 2 ? c.heads : 0, .head = 1};
  TermMemory sinks = put_term(data.sinks.value.empty() ? Array(1, 1, 1, 0) : Array(1, 1, 1, c.heads), c.dtype, 0);
  if (c.sinks) {
    for (std::int64_t h = 0; h < c.heads; ++h) sinks.memory.set(h, data.sinks.at(0, h, 0, 0));
    call.sinks = {.data = sinks.memory.data(), .dtype = c.dtype};
  }
  call.dropout = {.probability = c.dropout, .seed = kSeed, .offset = kOffset};

  // LSE and its gradient: [B, H, S], ragged [H, T].
  const bool ragged = c.lengths == LengthKind::ragged;
  const std::int64_t lse_row = ragged ? cumulative_q.back() + kRaggedRest : c.seqlen_q;
  std::vector<float> lse(static_cast<std::size_t>((ragged ? 1 : c.batch) * c.heads * lse_row), 7.0F);
  std::vector<float> dlse(lse.size(), std::numeric_limits<float>::quiet_NaN());
  const RowsOutput lse_out{.data = lse.data(), .batch = c.heads * lse_row, .head = lse_row, .row = 1};
  const RowsInput lse_in{.data = lse.data(), .batch = c.heads * lse_row, .head = lse_row, .row = 1};
  const auto lse_at = [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const auto at = static_cast<std::size_t>(b);
    return static_cast<std::size_t>(ragged ? h * lse_row + cumulative_q[at] + i : (b * c.heads + h) * lse_row + i);
  };
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < data.rows[static_cast<std::size_t>(b)]; ++i)
        dlse[lse_at(b, h, i)] = static_cast<float>(data.dlse.at(b, h, i, 0));

  Tensor out = make_tensor(c, data.extent_q, c.heads, c.head_dim_v, 2);
  auto memory = workspace(forward_workspace(call, isa, parallel.threads()));
  forward(call, {.out = view<Output>(out), .lse = lse_out}, isa, parallel, memory.get());

  Results r;
  r.out = get(c, out, data.extent_q, data.rows, c.heads, c.seqlen_q, c.head_dim_v, "out");
  r.lse = {c.batch, c.heads, c.seqlen_q, 1};
  for (double& x : r.lse.value) x = -kInf;
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < data.extent_q[static_cast<std::size_t>(b)]; ++i)
        r.lse.at(b, h, i, 0) = static_cast<double>(lse[lse_at(b, h, i)]);

  Tensor dq = make_tensor(c, data.extent_q, c.heads, c.head_dim_qk, 1);
  Tensor dk = make_tensor(c, data.extent_k, c.kv_heads, c.head_dim_qk, 0);
  Tensor dv = make_tensor(c, data.extent_k, c.kv_heads, c.head_dim_v, 3);
  const auto empty = [](const Array& a) {
    Array result = a;
    result.value.assign(result.value.size(), 0);
    return result;
  };
  const auto unset = [](const Array& a, DType dtype, std::int64_t gap) {
    const std::int64_t pitch = a.size[3] + gap;
    return TermMemory{Memory(dtype, a.value.empty() ? 0 : a.size[0] * a.size[1] * a.size[2] * pitch - gap), pitch};
  };
  TermMemory dbias = unset(data.bias, bias_dtype, 2);
  TermMemory dadditive = unset(data.additive, c.dtype, 0);
  TermMemory dsinks = unset(c.sinks ? Array(1, 1, 1, c.heads) : Array(1, 1, 1, 0), c.dtype, 0);
  Gradients gradients;
  gradients.dq = view<Output>(dq);
  gradients.dk = view<Output>(dk);
  gradients.dv = view<Output>(dv);
  if (c.bias != Shape::none) {
    gradients.dbias = {.data = dbias.memory.data(), .dtype = bias_dtype};
    set_strides(gradients.dbias, data.bias, dbias.pitch);
  }
  if (c.additive != Shape::none) {
    gradients.dmask = {.data = dadditive.memory.data(), .dtype = c.dtype};
    set_strides(gradients.dmask, data.additive, dadditive.pitch);
  }
  if (c.sinks) gradients.dsinks = {.data = dsinks.memory.data(), .dtype = c.dtype};
  BackwardInputs inputs{.out = view<Input>(out), .dout = view<Input>(dout), .lse = lse_in, .dlse = {}};
  if (c.lse_gradient) inputs.dlse = {.data = dlse.data(), .batch = lse_in.batch, .head = lse_in.head, .row = 1};
  memory = workspace(backward_workspace(call, gradients, isa, parallel.threads()));
  backward(call, inputs, gradients, isa, parallel, memory.get());

  r.dq = get(c, dq, data.extent_q, data.rows, c.heads, c.seqlen_q, c.head_dim_qk, "dq");
  r.dk = get(c, dk, data.extent_k, data.keys, c.kv_heads, c.seqlen_k, c.head_dim_qk, "dk");
  r.dv = get(c, dv, data.extent_k, data.keys, c.kv_heads, c.seqlen_k, c.head_dim_v, "dv");
  r.dbias = get_term(dbias, empty(data.bias), "dbias");
  r.dadditive = get_term(dadditive, empty(data.additive), "dadditive");
  if (c.sinks) {
    r.dsinks = {1, c.heads, 1, 1};
    for (std::int64_t h = 0; h < c.heads; ++h) r.dsinks.at(0, h, 0, 0) = dsinks.memory.take(h);
  }
  return r;
}

}  // namespace cynosure::cpu::testing
