// SPDX-License-Identifier: Apache-2.0
// core/call.cpp: what may be wrong with a call, in the order in which a reader would look.
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include <cynosure/call.hpp>

namespace cynosure {
namespace {

constexpr std::int64_t kMaxInt32 = 2147483647;
// torch's DeviceType, in its order.
constexpr std::array<std::string_view, 21> kDeviceKinds{
    "cpu",   "cuda", "mkldnn", "opengl", "opencl", "ideep", "hip",  "fpga", "maia", "xla",          "vulkan",
    "metal", "xpu",  "mps",    "meta",   "hpu",    "ve",    "lazy", "ipu",  "mtia", "privateuseone"};

template <class Table, class Value>
std::string text(const Table& names, Value value) {
  return std::string(names.at(static_cast<std::size_t>(value)));
}

std::string dtype_of(const TensorInfo& t) {
  if (t.element == Element::other && !t.other_name.empty()) return std::string(t.other_name);
  return text(kElementNames, t.element);
}

/// The shortest text that is this number.
std::string text_of(double x) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), x).ptr};
}

std::string shape_of(const TensorInfo& t) {
  std::string shape = "[";
  for (std::size_t i = 0; static_cast<int>(i) < std::min<int>(t.rank, 4); ++i) {
    if (i > 0) shape += ", ";
    shape += t.sizes[i] < 0 ? "?" : std::to_string(t.sizes[i]);
  }
  return shape + (t.rank > 4 ? ", ...]" : "]");
}

std::string device_of(const TensorInfo& t) {
  const auto kind = static_cast<std::size_t>(t.device_kind);
  std::string name =
      kind < kDeviceKinds.size() ? std::string(kDeviceKinds[kind]) : "device type " + std::to_string(t.device_kind);
  if (t.device_kind != 0 && t.device_index >= 0) name += ":" + std::to_string(t.device_index);
  return name;
}

bool floating(Element e) { return e <= Element::float64; }
bool known(std::int64_t size) { return size >= 0; }
bool differ(std::int64_t a, std::int64_t b) { return known(a) && known(b) && a != b; }

/// Which dimension of q, k and v is which.
struct Axes {
  std::size_t batch, sequence, head;
};
constexpr Axes axes(Dims dims) {
  switch (dims) {
    case Dims::bshd:
      return {0, 1, 2};
    case Dims::sbhd:
      return {1, 0, 2};
    case Dims::bhsd:
      return {0, 2, 1};
    case Dims::thd:
      return {0, 0, 1};  // batch is not a dimension
  }
  return {};
}
std::int64_t head_dim(const TensorInfo& t, Dims dims) { return t.sizes[dims == Dims::thd ? 2 : 3]; }

/// Finds the first error. Each function returns whether to go on.
class Checker {
 public:
  explicit Checker(const Call& call) : c_(call) {}

  std::optional<CallError> run() {
    static_cast<void>(tensors() && sizes() && numbers() && lengths() && terms() && dropout());
    return std::move(error_);
  }

 private:
  bool fail(ErrorKind kind, std::string_view argument, const std::string& message) {
    error_ = {kind, std::string(argument) + ": " + message};
    return false;
  }
  bool value(std::string_view argument, const std::string& message) {
    return fail(ErrorKind::value, argument, message);
  }
  bool type(std::string_view argument, const std::string& message) { return fail(ErrorKind::type, argument, message); }

  bool same_device(std::string_view name, const TensorInfo& t) {
    if (t.device_kind == c_.q.device_kind && t.device_index == c_.q.device_index) return true;
    return value(name, "on " + device_of(t) + ", expected " + device_of(c_.q) + " as q");
  }

  bool tensors() {
    const std::int8_t rank = c_.dims == Dims::thd ? 3 : 4;
    for (const auto& [name, t] : {std::pair{"q", &c_.q}, std::pair{"k", &c_.k}, std::pair{"v", &c_.v}}) {
      if (t->rank != rank)
        return value(name, "rank " + std::to_string(t->rank) + ", need " + std::to_string(rank) + " for layout '" +
                               text(kDimsNames, c_.dims) + "'");
      if (!floating(t->element))
        return type(name, "got " + dtype_of(*t) + ", expected float32, bfloat16, float16 or float64");
      if (t->element != c_.q.element)
        return type(name, "got " + dtype_of(*t) + ", expected " + text(kElementNames, c_.q.element) + " as q");
      if (!same_device(name, *t)) return false;
    }
    return true;
  }

  bool too_large(std::string_view name, std::string_view what, std::int64_t size) {
    return value(name, std::string(what) + " " + std::to_string(size) + ", expected at most 2147483647");
  }
  bool sizes() {
    const auto [batch, sequence, head] = axes(c_.dims);
    const auto equal = [&](std::string_view name, std::string_view what, std::int64_t got, std::int64_t expected,
                           std::string_view as) {
      if (!differ(got, expected)) return true;
      return value(name, std::string(what) + " " + std::to_string(got) + ", expected " + std::to_string(expected) +
                             " as " + std::string(as));
    };
    const bool dense = c_.dims != Dims::thd;
    if (dense && !equal("k", "batch", c_.k.sizes[batch], c_.q.sizes[batch], "q")) return false;
    if (dense && !equal("v", "batch", c_.v.sizes[batch], c_.q.sizes[batch], "q")) return false;
    if (!equal("v", dense ? "length" : "tokens", c_.v.sizes[sequence], c_.k.sizes[sequence], "k")) return false;
    if (!equal("v", "heads", c_.v.sizes[head], c_.k.sizes[head], "k")) return false;
    if (!equal("k", "head dim", head_dim(c_.k, c_.dims), head_dim(c_.q, c_.dims), "q")) return false;
    for (const auto& [name, t] : {std::pair{"q", &c_.q}, std::pair{"k", &c_.k}, std::pair{"v", &c_.v}}) {
      for (const auto& [what, size] :
           {std::pair{"heads", t->sizes[head]}, std::pair{"head dim", head_dim(*t, c_.dims)}}) {
        if (size == 0) return value(name, std::string(what) + " 0, expected at least 1");
        if (size > kMaxInt32) return too_large(name, what, size);
      }
    }
    const std::string_view what = dense ? "length" : "tokens";
    for (const auto& [name, t] : {std::pair{"q", &c_.q}, std::pair{"k", &c_.k}}) {
      if (t->sizes[sequence] > kMaxInt32) return too_large(name, what, t->sizes[sequence]);
      if (dense && t->sizes[batch] > kMaxInt32) return too_large(name, "batch", t->sizes[batch]);
    }
    const std::int64_t heads = c_.q.sizes[head];
    const std::int64_t kv_heads = c_.k.sizes[head];
    if (known(heads) && known(kv_heads) && heads % kv_heads != 0)
      return value("q", "heads " + std::to_string(heads) + ", expected a multiple of the " + std::to_string(kv_heads) +
                            " heads of k and v");
    return true;
  }

  bool numbers() {
    for (const std::int64_t side : {c_.window_left, c_.window_right})
      if (side < -1 || side > kMaxInt32)
        return value("window_size", "got (" + std::to_string(c_.window_left) + ", " + std::to_string(c_.window_right) +
                                        "), expected -1 (unlimited) to 2147483647");
    if (c_.causal && c_.window_right > 0)
      return value("window_size", "got (" + std::to_string(c_.window_left) + ", " + std::to_string(c_.window_right) +
                                      ") with causal, expected 0 or -1 on the right");
    // Kernels take both as float32.
    constexpr double most = std::numeric_limits<float>::max();
    if (!(std::abs(c_.scale) <= most))
      return value("scale", "got " + text_of(c_.scale) + ", expected a finite number of float32");
    if (c_.softcap != 0 && !(c_.softcap >= std::numeric_limits<float>::min() && c_.softcap <= most))
      return value("softcap", "got " + text_of(c_.softcap) + ", expected 0 (none) or a positive number of float32");
    if (!(c_.dropout_p >= 0 && c_.dropout_p <= 1))
      return value("dropout_p", "got " + std::to_string(c_.dropout_p) + ", expected a probability from 0 to 1");
    return true;
  }

  bool integers(std::string_view name, const TensorInfo& t, std::int64_t count, std::string_view what) {
    if (t.element != Element::int32) return type(name, "got " + dtype_of(t) + ", expected int32");
    if (t.rank != 1 || differ(t.sizes[0], count))
      return value(name, "shape " + shape_of(t) + ", expected " + std::string(what) +
                             (known(count) ? " = [" + std::to_string(count) + "]" : ""));
    return same_device(name, t);
  }

  bool lengths() {
    if (c_.dims == Dims::thd) {
      if (!c_.seqlens_q.given || !c_.seqlens_k.given)
        return value(c_.seqlens_q.given ? "cu_seqlens_k" : "cu_seqlens_q",
                     "missing, expected int32 [batch + 1] for layout 'thd'");
      if (!integers("cu_seqlens_q", c_.seqlens_q, -1, "[batch + 1]")) return false;
      if (c_.seqlens_q.sizes[0] == 0) return value("cu_seqlens_q", "shape [0], expected [batch + 1]");
      if (!integers("cu_seqlens_k", c_.seqlens_k, c_.seqlens_q.sizes[0], "[batch + 1] as cu_seqlens_q")) return false;
      for (const auto& [name, size] :
           {std::pair{"max_seqlen_q", c_.max_seqlen_q}, std::pair{"max_seqlen_k", c_.max_seqlen_k}})
        if (size < -1 || size > kMaxInt32)
          return value(name, "got " + std::to_string(size) + ", expected 0 to 2147483647");
      return true;
    }
    for (const auto& [name, size] :
         {std::pair{"max_seqlen_q", c_.max_seqlen_q}, std::pair{"max_seqlen_k", c_.max_seqlen_k}})
      if (size != -1)
        return value(name, "given with layout '" + text(kDimsNames, c_.dims) + "', expected only with 'thd'");
    const std::int64_t batch = c_.q.sizes[axes(c_.dims).batch];
    return (!c_.seqlens_q.given || integers("seqlens_q", c_.seqlens_q, batch, "[batch]")) &&
           (!c_.seqlens_k.given || integers("seqlens_k", c_.seqlens_k, batch, "[batch]"));
  }

  /// A tensor of shape [B, H, Sq, Skv] with 1 where it broadcasts; the last dimension only for masks.
  bool broadcasts(std::string_view name, const TensorInfo& t, bool last) {
    const CallSizes s = sizes_of(c_);
    const std::array<std::int64_t, 4> full{s.batch, s.heads, s.seqlen_q, s.seqlen_k};
    bool good = t.rank == 4;
    for (std::size_t i = 0; good && i < 4; ++i)
      good = !differ(t.sizes[i], full[i]) || (t.sizes[i] == 1 && (i < 3 || last));
    if (good) return same_device(name, t);
    const auto size = [&](std::size_t i) {
      return (i < 3 || last ? "1 or " : "") + (known(full[i]) ? std::to_string(full[i]) : std::string("?"));
    };
    return value(name, "shape " + shape_of(t) + ", expected [" + size(0) + ", " + size(1) + ", " + size(2) + ", " +
                           size(3) + "]: batch, heads, query length, key length");
  }

  bool terms() {
    const auto float32_or_own = [&](std::string_view name, const TensorInfo& t, std::string_view also) {
      if (t.element == c_.q.element || t.element == Element::float32) return true;
      return type(name, "got " + dtype_of(t) + ", expected " + std::string(also) + text(kElementNames, c_.q.element) +
                            " as q" + (c_.q.element == Element::float32 ? "" : ", or float32"));
    };
    if (c_.attn_bias.given &&
        !(float32_or_own("attn_bias", c_.attn_bias, "") && broadcasts("attn_bias", c_.attn_bias, false)))
      return false;
    if (c_.attn_mask.given) {
      if (c_.attn_mask.element != Element::boolean && !float32_or_own("attn_mask", c_.attn_mask, "bool, "))
        return false;
      if (!broadcasts("attn_mask", c_.attn_mask, true)) return false;
    }
    const std::int64_t heads = c_.q.sizes[axes(c_.dims).head];
    if (c_.alibi_slopes.given) {
      const TensorInfo& t = c_.alibi_slopes;
      if (c_.attn_bias.given) return value("alibi_slopes", "given together with attn_bias, expected one of them");
      if (t.element != Element::float32) return type("alibi_slopes", "got " + dtype_of(t) + ", expected float32");
      const std::int64_t batch = sizes_of(c_).batch;
      const bool good = (t.rank == 1 && !differ(t.sizes[0], heads)) ||
                        (t.rank == 2 && !differ(t.sizes[0], batch) && !differ(t.sizes[1], heads));
      if (!good) return value("alibi_slopes", "shape " + shape_of(t) + ", expected [heads] or [batch, heads]");
      if (!same_device("alibi_slopes", t)) return false;
    }
    if (c_.sinks.given) {
      const TensorInfo& t = c_.sinks;
      if (!float32_or_own("sinks", t, "")) return false;
      if (t.rank != 1 || differ(t.sizes[0], heads))
        return value("sinks", "shape " + shape_of(t) + ", expected one logit a head" +
                                  (known(heads) ? ": [" + std::to_string(heads) + "]" : ""));
      if (!same_device("sinks", t)) return false;
    }
    return true;
  }

  bool dropout() {
    const TensorInfo& t = c_.dropout_seed;
    if (!t.given)
      return c_.dropout_p == 0 || value("dropout_seed", "missing with dropout_p > 0, expected int64 [2]: seed, offset");
    if (t.element != Element::int64) return type("dropout_seed", "got " + dtype_of(t) + ", expected int64");
    if (t.rank != 1 || differ(t.sizes[0], 2))
      return value("dropout_seed", "shape " + shape_of(t) + ", expected [2]: seed, offset");
    return same_device("dropout_seed", t);
  }

  const Call& c_;
  std::optional<CallError> error_;
};

DType dtype_of(Element element) {
  switch (element) {
    case Element::bfloat16:
      return DType::bfloat16;
    case Element::float16:
      return DType::float16;
    case Element::float64:
      return DType::float64;
    default:
      return DType::float32;
  }
}

BiasShape bias_shape(const TensorInfo& t) {
  // By which of batch, heads and rows are there in full.
  const bool b = t.sizes[0] != 1;
  const bool h = t.sizes[1] != 1;
  const bool s = t.sizes[2] != 1;
  if (s)
    return b ? (h ? BiasShape::b_h_s_s : BiasShape::b_one_s_s) : (h ? BiasShape::one_h_s_s : BiasShape::one_one_s_s);
  return b ? (h ? BiasShape::b_h_one_s : BiasShape::b_one_one_s)
           : (h ? BiasShape::one_h_one_s : BiasShape::one_one_one_s);
}

thread_local CallError last_error{.kind = ErrorKind::none, .text = {}};

}  // namespace

CallSizes sizes_of(const Call& call) {
  const auto [batch, sequence, head] = axes(call.dims);
  CallSizes sizes{.batch = call.q.sizes[batch],
                  .seqlen_q = call.q.sizes[sequence],
                  .seqlen_k = call.k.sizes[sequence],
                  .heads = call.q.sizes[head],
                  .kv_heads = call.k.sizes[head],
                  .head_dim_qk = head_dim(call.q, call.dims),
                  .head_dim_v = head_dim(call.v, call.dims)};
  if (call.dims == Dims::thd) {
    sizes.batch = call.seqlens_q.given && known(call.seqlens_q.sizes[0]) ? call.seqlens_q.sizes[0] - 1 : -1;
    if (call.max_seqlen_q >= 0) sizes.seqlen_q = call.max_seqlen_q;
    if (call.max_seqlen_k >= 0) sizes.seqlen_k = call.max_seqlen_k;
  }
  return sizes;
}

std::optional<CallError> check(const Call& call) { return Checker(call).run(); }

Problem problem_of(const Call& call) {
  const CallSizes s = sizes_of(call);
  Problem problem;
  problem.lengths = {.batch = s.batch, .seqlen_q = s.seqlen_q, .seqlen_k = s.seqlen_k};
  Features& f = problem.features;
  f.heads = static_cast<std::int32_t>(s.heads);
  f.kv_heads = static_cast<std::int32_t>(s.kv_heads);
  f.head_dim_qk = static_cast<std::int32_t>(s.head_dim_qk);
  f.head_dim_v = static_cast<std::int32_t>(s.head_dim_v);
  f.dtype = dtype_of(call.q.element);
  constexpr std::array layouts{Layout::bshd_bshd_bshd, Layout::sbhd_sbhd_sbhd, Layout::bhsd_bhsd_bhsd,
                               Layout::thd_thd_thd};
  f.layout = layouts.at(static_cast<std::size_t>(call.dims));
  f.training = call.training;
  f.causal = call.causal;
  f.align = call.align;
  if (call.window_left != -1 || call.window_right != -1) {
    f.window_given = true;
    f.window_left = static_cast<std::int32_t>(call.window_left);
    f.window_right = call.causal ? 0 : static_cast<std::int32_t>(call.window_right);
  }
  f.padding = call.dims == Dims::thd || call.seqlens_q.given || call.seqlens_k.given;
  f.same_lengths = call.seqlens_q.given && call.seqlens_k.given && call.seqlens_q.identity == call.seqlens_k.identity;
  if (call.attn_mask.given)
    f.attn_mask = call.attn_mask.element == Element::boolean ? AttnMask::boolean : AttnMask::additive;
  if (call.attn_bias.given) {
    f.bias_type = BiasType::post_scale_bias;
    f.bias_shape = bias_shape(call.attn_bias);
    f.bias_requires_grad = call.bias_requires_grad;
    f.bias_float32 = call.attn_bias.element == Element::float32 && call.q.element != Element::float32;
  }
  // A mask that is added has its gradient where a bias has its own.
  if (f.attn_mask == AttnMask::additive && call.mask_requires_grad) f.bias_requires_grad = true;
  if (call.alibi_slopes.given) {
    f.bias_type = BiasType::alibi;
    f.alibi_slopes = true;
  }
  f.softcap = call.softcap > 0;
  if (call.sinks.given) f.softmax = Softmax::learnable;
  f.dropout = call.dropout_p > 0;
  f.return_lse = call.return_lse || call.lse_grad;
  f.lse_grad = call.lse_grad;
  return problem;
}

void set_last_error(CallError error) { last_error = std::move(error); }
CallError take_last_error() { return std::exchange(last_error, CallError{.kind = ErrorKind::none, .text = {}}); }

}  // namespace cynosure
