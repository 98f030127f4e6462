// SPDX-License-Identifier: Apache-2.0
// tests/cpp/fixes_test.cpp: a fix that is named is true, and a remedy makes its backend eligible.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <cynosure/fields.hpp>
#include <cynosure/select.hpp>

#include "random_calls.hpp"

namespace cynosure {
namespace {

using testing::Call;
using testing::Random;

/// Does what the text says, as a reader of it would. Nothing for a text this test does not know.
std::optional<Call> applied(Call call, const std::string& text, Backend backend) {
  Features& f = call.problem.features;
  Lengths& l = call.problem.lengths;
  Settings& s = call.settings;
  const auto starts = [&](std::string_view prefix) { return text.starts_with(prefix); };
  const std::map<std::string_view, Version Device::*> packages{{"cuDNN ", &Device::cudnn},
                                                               {"flash-attn ", &Device::flash2},
                                                               {"flash-attn-3 ", &Device::flash3},
                                                               {"flash-attn-4 ", &Device::flash4},
                                                               {"torch ", &Device::torch}};
  for (const auto& [prefix, member] : packages) {
    if (!starts(prefix)) continue;
    const std::string version = text.substr(prefix.size(), text.find(' ', prefix.size()) - prefix.size());
    call.device.*member = Version::parse(version).value_or(Version());
    return call;
  }
  if (starts("switch ")) {
    s = s.with_enabled(s.enabled() | backend);
  } else if (starts("name it: backend=")) {
    BackendList named = s.named();
    if (!named.set().contains(backend)) named.push_back(backend);
    s = s.with_contract(s.contract() == Contract::automatic ? Contract::prefer : s.contract(), named);
  } else if (starts("head dims padded to ") || starts("lengths padded, and masked, to ")) {
    long long first = 0;
    long long second = 0;
    const std::size_t number = text.find(" to ") + 4;
    if (std::sscanf(text.c_str() + number, "%lld and %lld", &first, &second) != 2) return std::nullopt;
    if (starts("head dims")) {
      f.head_dim_qk = static_cast<std::int32_t>(first);
      f.head_dim_v = static_cast<std::int32_t>(second);
    } else {
      l.seqlen_q = first;
      l.seqlen_k = second;
    }
  } else if (text == "no deterministic mode") {
    s = s.with_deterministic(false);
  } else if (text == "NVTE_UnfusedDPA_Emulate_FP8=1") {
    s = s.with_switch(Settings::emulate_fp8, true);
  } else if (text == "align=\"bottom_right\" (another mask)") {
    f.align = Align::bottom_right;
    f.bottom_right_diagonal = true;
  } else if (text == "bottom_right_diagonal=True") {
    f.bottom_right_diagonal = true;
  } else if (text == "no gradients (torch.no_grad())") {
    f.training = false;
  } else if (text == "no dropout (another result)") {
    f.dropout = false;
  } else if (text == "num_splits=1") {
    f.num_splits = 1;
  } else if (text == "lse_grad=False") {
    f.lse_grad = false;
  } else if (text == "return_max_logit=False") {
    f.return_max_logit = false;
  } else if (text == "no bias shape") {
    f.bias_shape = BiasShape::none;
  } else if (text == "no gradient for the bias") {
    f.bias_requires_grad = false;
  } else if (text == "the bias in the dtype of q") {
    f.bias_float32 = false;
  } else if (text == "the same seqlens for q and k") {
    f.same_lengths = true;
    l.seqlen_k = l.seqlen_q;
  } else if (text == "no gaps between sequences") {
    f.pad_between_seqs = false;
  } else if (text == "pages of 256 tokens") {
    f.page_size = 256;
  } else if (text == "bfloat16" || text == "float32") {
    f.dtype = text == "float32" ? DType::float32 : DType::bfloat16;
  } else if (starts("layout ")) {
    f.layout = text == "layout thd" ? Layout::thd_thd_thd : Layout::bshd_bshd_bshd;
  } else {
    return std::nullopt;
  }
  return call;
}

bool fires(const Call& call, Backend backend, const std::string& id) {
  const std::vector<Reason> reasons = call.decision().reasons(backend);
  return std::any_of(reasons.begin(), reasons.end(), [&](const Reason& reason) { return reason.rule == id; });
}

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find("; ", start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 2;
  }
  return parts;
}

TEST(Fixes, AFixDoesWhatItSays) {
  Random random(41);
  int fixes = 0;
  std::map<std::string, int> seen;
  for (int i = 0; i < 400; ++i) {
    const Call call = testing::random_call(random);
    const Decision decision = call.decision();
    for (const Reason& reason : decision.reasons()) {
      if (++seen[reason.rule] > 12) continue;
      const std::optional<Fix> fix = decision.fix_for(reason);
      if (!fix) continue;
      ++fixes;
      const std::optional<Call> changed = applied(call, fix->text, reason.backend);
      ASSERT_TRUE(changed) << "unknown text: " << fix->text;
      EXPECT_FALSE(fires(*changed, reason.backend, reason.rule))
          << reason.rule << ": " << fix->text << "\n  " << call.text();
      EXPECT_EQ(changed->outcome().eligible.contains(reason.backend), fix->makes_eligible)
          << reason.rule << ": " << fix->text << "\n  " << call.text();
    }
  }
  EXPECT_GT(fixes, 300);
}

TEST(Fixes, ARemedyMakesItsBackendEligible) {
  Random random(42);
  int remedies = 0;
  for (int i = 0; i < 300; ++i) {
    const Call call = testing::random_call(random);
    const Decision decision = call.decision();
    for (const Backend backend : BackendSet::all()) {
      const std::optional<std::string> remedy = decision.remedy(backend);
      if (!remedy) continue;
      EXPECT_FALSE(decision.eligible().contains(backend)) << "an eligible backend needs no remedy";
      ++remedies;
      std::optional<Call> changed = call;
      for (const std::string& part : parts_of(*remedy)) {
        changed = applied(*changed, part, backend);
        ASSERT_TRUE(changed) << "unknown text: " << part;
      }
      EXPECT_TRUE(changed->outcome().eligible.contains(backend))
          << name(backend) << ": " << *remedy << "\n  " << call.text();
    }
  }
  EXPECT_GT(remedies, 100);
}

TEST(Fixes, OrNewerHoldsForEveryNewerRelease) {
  Random random(43);
  int said = 0;
  for (int i = 0; i < 400; ++i) {
    const Call call = testing::random_call(random);
    const Decision decision = call.decision();
    for (const Reason& reason : decision.reasons(Backend::cudnn)) {
      const std::optional<Fix> fix = decision.fix_for(reason);
      if (!fix || !fix->text.starts_with("cuDNN ") || !fix->text.ends_with(" or newer")) continue;
      ++said;
      for (const Version newer :
           {Version(9, 15, 1), Version(9, 19, 0), Version(9, 23, 1), Version(9, 25, 0), Version(9, 26, 0)}) {
        Call changed = *applied(call, fix->text, Backend::cudnn);
        if (newer <= changed.device.cudnn) continue;
        changed.device.cudnn = newer;
        EXPECT_FALSE(fires(changed, Backend::cudnn, reason.rule))
            << fix->text << " but not " << newer.to_string() << "\n  " << call.text();
      }
    }
  }
  EXPECT_GT(said, 30);
}

TEST(Fixes, NamesTheReleaseThatHelps) {
  Call call;
  call.device = *named_device("h200");
  call.device.cudnn = Version(9, 10, 1);
  call.problem.features.softmax = Softmax::learnable;
  call.problem.lengths = {2, 1024, 1024};
  const Decision decision = call.decision();
  std::map<std::string, std::string> fixes;
  for (const Reason& reason : decision.reasons(Backend::cudnn))
    fixes[reason.rule] = decision.fix_for(reason).value_or(Fix()).text;
  EXPECT_EQ(fixes["cudnn_f16.sinks_version"], "cuDNN 9.13.1 or newer");
  EXPECT_EQ(fixes["cudnn_f16.blocked_release"], "cuDNN 9.10.2 or newer");
  EXPECT_EQ(decision.remedy(Backend::cudnn), "cuDNN 9.13.1 or newer");
}

TEST(Fixes, NothingForWhatNoChangeRemoves) {
  Call call;
  call.device = *named_device("t4");
  const Decision decision = call.decision();
  for (const Reason& reason : decision.reasons(Backend::flash2)) {
    if (reason.rule == "flash2.arch") {
      EXPECT_FALSE(decision.fix_for(reason));
    }
  }
  EXPECT_FALSE(decision.remedy(Backend::flash2));
  EXPECT_FALSE(decision.remedy(Backend::unfused)) << "it is eligible";
}

TEST(Fixes, AnUndecidedReasonHasNone) {
  Call call;
  call.device = *named_device("h200");
  call.problem.features.causal = true;
  call.problem.features.align = Align::top_left;
  std::vector<KnownFact> known;
  PartialStep step = evaluate_partial(call.problem.features, call.settings, call.device, known);
  for (; step.ask; step = evaluate_partial(call.problem.features, call.settings, call.device, known))
    known.push_back({*step.ask, Truth::unknown()});
  const Decision decision(call.problem, call.settings, call.device, step.outcome);
  bool undecided = false;
  for (const Reason& reason : decision.reasons()) {
    if (!reason.undecided) continue;
    undecided = true;
    EXPECT_FALSE(decision.fix_for(reason)) << reason.rule;
  }
  EXPECT_TRUE(undecided);
}

}  // namespace
}  // namespace cynosure
