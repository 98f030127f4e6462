// SPDX-License-Identifier: Apache-2.0
// benchmarks/gpu/cudnn_grid.cpp: do our rules agree with cuDNN? Asks both about many problems and prints every
// disagreement. cuDNN plans for a GPU that is described by a file, so this runs without one.
//
//   cynosure_cudnn_grid properties LIBCUDNN > FILE             on the GPU, once: describes it
//   cynosure_cudnn_grid check LIBCUDNN FILE SM COUNT [SEED]    anywhere: COUNT random problems
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <cynosure/decision.hpp>
#include <cynosure/select.hpp>

#include "backends/cudnn/plan.hpp"

namespace {

using namespace cynosure;

/// A problem that `attention` can state, with a chance for each feature.
class Problems {
 public:
  explicit Problems(std::uint64_t seed) : engine_(seed) {}

  Problem next() {
    Problem p;
    Features& f = p.features;
    f.dtype = one_of({DType::bfloat16, DType::float16});
    f.layout = one_of({Layout::bshd_bshd_bshd, Layout::bshd_bshd_bshd, Layout::sbhd_sbhd_sbhd, Layout::bhsd_bhsd_bhsd,
                       Layout::thd_thd_thd});
    f.kv_heads = one_of({1, 2, 4});
    f.heads = f.kv_heads * one_of({1, 1, 2, 7});
    f.head_dim_qk = f.head_dim_v = one_of({64, 128, 64, 128, 8, 16, 40, 72, 96, 120, 136, 192, 256, 264, 512});
    if (chance(0.3)) f.head_dim_v = one_of({8, 16, 64, 128, 192, 256, 264});
    p.lengths.batch = one_of({1, 2, 5});
    p.lengths.seqlen_q = length();
    p.lengths.seqlen_k = chance(0.5) ? p.lengths.seqlen_q : length();
    f.training = chance(0.6);
    f.causal = chance(0.4);
    f.align = one_of({Align::top_left, Align::bottom_right});
    if (chance(0.3)) f.window_left = one_of({0, 1, 7, 64, 200});
    const std::int32_t right = chance(0.25) ? one_of({0, 1, 7, 64}) : -1;
    f.window_given = f.window_left != -1 || (right != -1 && !f.causal);
    if (f.window_given) f.window_right = f.causal ? 0 : right;
    f.padding = info(f.layout).q == Format::thd || chance(0.2);
    f.same_lengths = f.padding && p.lengths.seqlen_q == p.lengths.seqlen_k && chance(0.3);
    if (chance(0.15)) f.attn_mask = one_of({AttnMask::boolean, AttnMask::additive});
    if (chance(0.25)) {
      f.bias_type = BiasType::post_scale_bias;
      f.bias_shape = static_cast<BiasShape>(1 + pick(8));
      f.bias_requires_grad = f.training && chance(0.5);
      f.bias_float32 = chance(0.3);
    } else if (chance(0.1)) {
      f.bias_type = BiasType::alibi;
      f.alibi_slopes = true;
    }
    if (chance(0.15)) f.softmax = Softmax::learnable;
    f.dropout = chance(0.15);
    f.return_lse = chance(0.2);
    return p;
  }
  [[nodiscard]] bool chance(double p) { return std::uniform_real_distribution<double>(0, 1)(engine_) < p; }

 private:
  std::size_t pick(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(engine_); }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[pick(values.size())];
  }
  std::int64_t length() { return one_of({1, 2, 17, 64, 100, 128, 192, 200, 256, 1000, 1024, 2048}); }

  std::mt19937_64 engine_;
};

std::string first_line(const std::string& text) {
  const std::size_t reason = text.find("Reason: ");
  const std::size_t start = reason == std::string::npos ? 0 : reason + 8;
  return text.substr(start, std::min(text.find_first_of("\n", start), start + 150) - start);
}

/// What is stated of a problem, shortly.
std::string describe(const Problem& p, bool deterministic) {
  const Features& f = p.features;
  std::string text = std::string(kLayoutNames[static_cast<std::size_t>(f.layout)].substr(0, 4)) + " b" +
                     std::to_string(p.lengths.batch) + " h" + std::to_string(f.heads) + "/" +
                     std::to_string(f.kv_heads) + " s" + std::to_string(p.lengths.seqlen_q) + "x" +
                     std::to_string(p.lengths.seqlen_k) + " d" + std::to_string(f.head_dim_qk) + "/" +
                     std::to_string(f.head_dim_v);
  if (f.training) text += " training";
  if (f.causal) text += " causal";
  if (f.window_left >= 0 || f.window_right >= 0)
    text += " window(" + std::to_string(f.window_left) + "," + std::to_string(f.window_right) + ")";
  text += f.align == Align::top_left ? " tl" : " br";
  if (f.padding) text += f.same_lengths ? " padding=" : " padding";
  if (f.attn_mask != AttnMask::none) text += " mask";
  if (f.bias_type != BiasType::none)
    text += f.alibi_slopes ? " alibi"
                           : " bias:" + std::string(kBiasShapeNames[static_cast<std::size_t>(f.bias_shape)]) +
                                 (f.bias_requires_grad ? ":grad" : "") + (f.bias_float32 ? ":f32" : "");
  if (f.softmax != Softmax::vanilla) text += " sinks";
  if (f.dropout) text += " dropout";
  if (deterministic) text += " deterministic";
  return text;
}

std::string why_not(const Problem& p, bool deterministic, const std::string& properties, int sm) {
  using cudnn::Direction;
  std::string reason = cudnn::why_not(cudnn::key_of(p, Direction::forward, deterministic), properties, sm, false);
  if (!reason.empty()) return "forward: " + first_line(reason);
  if (!p.features.training) return {};
  reason = cudnn::why_not(cudnn::key_of(p, Direction::backward, deterministic), properties, sm, false);
  return reason.empty() ? reason : "backward: " + first_line(reason);
}

struct Group {
  int count = 0;
  std::vector<std::string> examples;
};

int check(const std::string& properties, int sm, int count, std::uint64_t seed) {
  Device device = *named_device("h200");
  device.sm = static_cast<std::uint16_t>(sm);
  device.cudnn = cudnn::library().version;
  Problems problems(seed);
  std::map<std::string, Group> groups;
  int agreed = 0;
  int plans = 0;
  for (int i = 0; i < count; ++i) {
    const Problem p = problems.next();
    const bool deterministic = problems.chance(0.15);
    const Settings settings = Settings{}.with_deterministic(deterministic);
    const Decision decision = cynosure::select(p, settings, device);
    const bool ours = decision.eligible().contains(Backend::cudnn);
    std::string theirs;
    try {
      theirs = why_not(p, deterministic, properties, sm);
    } catch (const std::exception& error) {
      theirs = error.what();
    }
    plans += theirs.empty() ? 1 : 0;
    if (ours == theirs.empty()) {
      ++agreed;
      continue;
    }
    std::string key = "no rule, but " + theirs;
    if (!ours) {
      key = "a plan exists, but rules say:";
      for (const Reason& reason : decision.reasons(Backend::cudnn)) key += " " + reason.rule;
    }
    Group& group = groups[key];
    ++group.count;
    if (group.examples.size() < 4) group.examples.push_back(describe(p, deterministic));
  }
  std::printf("%d problems, cuDNN %s, sm %d: %d with a plan, %d agreed\n", count, device.cudnn.to_string().c_str(), sm,
              plans, agreed);
  for (const auto& [key, group] : groups) {
    std::printf("%5d %s\n", group.count, key.c_str());
    for (const std::string& example : group.examples) std::printf("        %s\n", example.c_str());
  }
  return agreed == count ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 2) {
    std::fprintf(stderr, "usage: cynosure_cudnn_grid properties LIBCUDNN | check LIBCUDNN FILE SM COUNT [SEED]\n");
    return 2;
  }
  const cudnn::Library& library = cudnn::library(arguments[1]);
  if (library.handle == nullptr) {
    std::fprintf(stderr, "%s\n", library.why_not.c_str());
    return 2;
  }
  if (arguments[0] == "properties") {
    const std::string text = cudnn::device_properties(cudnn::handle_for(0, nullptr));
    std::fwrite(text.data(), 1, text.size(), stdout);
    return 0;
  }
  if (arguments.size() < 5) return 2;
  std::ifstream file(arguments[2], std::ios::binary);
  const std::string properties{std::istreambuf_iterator<char>(file), {}};
  return check(properties, std::atoi(arguments[3].c_str()), std::atoi(arguments[4].c_str()),
               arguments.size() > 5 ? std::strtoull(arguments[5].c_str(), nullptr, 10) : 1);
}
