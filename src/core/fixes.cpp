// SPDX-License-Identifier: Apache-2.0
// core/fixes.cpp: tries single changes to the facts a row reads, in the order in which a user would rather make them.
#include "core/fixes.hpp"

#include <algorithm>

#include <cynosure/fields.hpp>
#include <cynosure/select.hpp>

namespace cynosure {
namespace {

/// The facts of a decision, to be changed.
struct Facts {
  Problem problem;
  Settings settings;
  Device device;
};

struct Change {
  Field field;
  std::string text;
  Facts facts;
};

// Releases in order; "X or newer" is said only when every later one here is free of the reason too.
constexpr std::array kCudnnReleases{
    Version(8, 9, 0),  Version(8, 9, 3),  Version(8, 9, 5),  Version(8, 9, 6),  Version(8, 9, 7),  Version(9, 0, 0),
    Version(9, 1, 0),  Version(9, 2, 0),  Version(9, 2, 1),  Version(9, 3, 0),  Version(9, 4, 0),  Version(9, 5, 0),
    Version(9, 6, 0),  Version(9, 7, 0),  Version(9, 7, 1),  Version(9, 8, 0),  Version(9, 9, 0),  Version(9, 10, 0),
    Version(9, 10, 1), Version(9, 10, 2), Version(9, 11, 0), Version(9, 12, 0), Version(9, 13, 0), Version(9, 13, 1),
    Version(9, 14, 0), Version(9, 15, 0), Version(9, 15, 1), Version(9, 16, 0), Version(9, 17, 0), Version(9, 18, 0),
    Version(9, 18, 1), Version(9, 19, 0), Version(9, 20, 0), Version(9, 21, 0), Version(9, 22, 0), Version(9, 23, 0),
    Version(9, 23, 1), Version(9, 23, 2), Version(9, 24, 0), Version(9, 25, 0), Version(9, 26, 0)};
constexpr std::array kFlash2Releases{Version(2, 1, 1), Version(2, 3, 0), Version(2, 4, 0),
                                     Version(2, 4, 1), Version(2, 5, 0), Version(2, 5, 7),
                                     Version(2, 6, 3), Version(2, 7, 3), Version(2, 8, 3)};
constexpr std::array kFlash3Releases{Version(3, 0, 0)};
constexpr std::array kFlash4Releases{Version(4, 0, 0, Version::Phase::beta, 11),
                                     Version(4, 0, 0, Version::Phase::beta, 36)};
constexpr std::array kTorchReleases{Version(2, 10, 0), Version(2, 11, 0), Version(2, 15, 0)};

struct Package {
  Field field;
  std::string_view name;
  std::span<const Version> releases;
  Version Device::* member;
};
constexpr std::array<Package, 5> kPackages{{{Field::cudnn, "cuDNN", kCudnnReleases, &Device::cudnn},
                                            {Field::flash2, "flash-attn", kFlash2Releases, &Device::flash2},
                                            {Field::flash3, "flash-attn-3", kFlash3Releases, &Device::flash3},
                                            {Field::flash4, "flash-attn-4", kFlash4Releases, &Device::flash4},
                                            {Field::torch, "torch", kTorchReleases, &Device::torch}}};

/// Row `row` of the table does not fire for these facts.
bool removed(const Facts& facts, std::size_t row) {
  return !evaluate(facts.problem, facts.settings, facts.device).fired.test(row);
}

Facts with_version(const Facts& facts, const Package& package, Version version) {
  Facts changed = facts;
  changed.device.*package.member = version;
  return changed;
}

/// The nearest newer release without the reason, else the nearest older one.
std::optional<Change> version_change(const Facts& facts, const Package& package, std::size_t row) {
  const Version now = facts.device.*package.member;
  const auto good = [&](Version version) { return removed(with_version(facts, package, version), row); };
  const auto& releases = package.releases;
  const auto change = [&](Version version, std::string_view suffix) {
    return Change{package.field, std::string(package.name) + " " + version.to_string() + std::string(suffix),
                  with_version(facts, package, version)};
  };
  for (auto it = std::upper_bound(releases.begin(), releases.end(), now); it != releases.end(); ++it) {
    if (!good(*it)) continue;
    const bool all_newer = std::all_of(it, releases.end(), good);
    return change(*it, all_newer ? " or newer" : "");
  }
  for (auto it = std::lower_bound(releases.begin(), releases.end(), now); it != releases.begin();)
    if (good(*--it)) return change(*it, "");
  return std::nullopt;
}

std::string switch_text(Backend backend) {
  switch (backend) {
    case Backend::cudnn:
    case Backend::cudnn_fp8:
      return "switch cuDNN on (NVTE_FUSED_ATTN, sdpa_kernel)";
    case Backend::flash2:
    case Backend::aten_flash:
      return "switch FlashAttention 2 on (NVTE_FLASH_ATTN, NVTE_FLASH_ATTN_V2, sdpa_kernel)";
    case Backend::flash3:
      return "switch FlashAttention 3 on (NVTE_FLASH_ATTN, NVTE_FLASH_ATTN_V3)";
    case Backend::flash4:
      return "switch FlashAttention 4 on (NVTE_FLASH_ATTN, NVTE_FLASH_ATTN_V4)";
    case Backend::unfused:
      return "switch unfused on (NVTE_UNFUSED_ATTN, sdpa_kernel)";
    case Backend::cpu:
      break;
  }
  return "switch " + std::string(name(backend)) + " on";
}

void settings_changes(const Facts& facts, Field field, Backend backend, std::vector<Change>& changes) {
  const auto add = [&](std::string text, Settings settings) {
    changes.push_back({field, std::move(text), {facts.problem, settings, facts.device}});
  };
  if (field == Field::switched_off)
    add(switch_text(backend), facts.settings.with_enabled(facts.settings.enabled() | backend));
  if (field == Field::contract) {
    BackendList named = facts.settings.named();
    if (!named.set().contains(backend)) named.push_back(backend);
    const Contract contract =
        facts.settings.contract() == Contract::automatic ? Contract::prefer : facts.settings.contract();
    add("name it: backend=\"" + std::string(name(backend)) + "\"", facts.settings.with_contract(contract, named));
  }
  if (field == Field::deterministic && facts.settings.deterministic())
    add("no deterministic mode", facts.settings.with_deterministic(false));
  if (field == Field::emulate_fp8)
    add("NVTE_UnfusedDPA_Emulate_FP8=1", facts.settings.with_switch(Settings::emulate_fp8, true));
}

std::int64_t round_up(std::int64_t n, std::int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/// Changes of the call itself that keep most of its meaning, for a field that the row reads.
void problem_changes(const Facts& facts, Field field, std::vector<Change>& changes) {
  const Features& f = facts.problem.features;
  const Lengths& l = facts.problem.lengths;
  const auto add = [&](std::string text, auto edit) {
    Facts changed = facts;
    edit(changed.problem.features, changed.problem.lengths);
    if (!(changed.problem == facts.problem)) changes.push_back({field, std::move(text), changed});
  };
  switch (field) {
    case Field::align:
      add("align=\"bottom_right\" (another mask)", [](Features& g, Lengths&) {
        g.align = Align::bottom_right;
        g.bottom_right_diagonal = true;
      });
      break;
    case Field::bottom_right_diagonal:
      add("bottom_right_diagonal=True", [](Features& g, Lengths&) { g.bottom_right_diagonal = true; });
      break;
    case Field::training:
      add("no gradients (torch.no_grad())", [](Features& g, Lengths&) { g.training = false; });
      break;
    case Field::dropout:
      add("no dropout (another result)", [](Features& g, Lengths&) { g.dropout = false; });
      break;
    case Field::num_splits:
      add("num_splits=1", [](Features& g, Lengths&) { g.num_splits = 1; });
      break;
    case Field::lse_grad:
      add("lse_grad=False", [](Features& g, Lengths&) { g.lse_grad = false; });
      break;
    case Field::return_max_logit:
      add("return_max_logit=False", [](Features& g, Lengths&) { g.return_max_logit = false; });
      break;
    case Field::bias_shape:
      if (f.bias_type == BiasType::none)
        add("no bias shape", [](Features& g, Lengths&) { g.bias_shape = BiasShape::none; });
      break;
    case Field::bias_requires_grad:
      add("no gradient for the bias", [](Features& g, Lengths&) { g.bias_requires_grad = false; });
      break;
    case Field::bias_float32:
      add("the bias in the dtype of q", [](Features& g, Lengths&) { g.bias_float32 = false; });
      break;
    case Field::same_lengths:
      add("the same seqlens for q and k", [](Features& g, Lengths& m) {
        g.same_lengths = true;
        m.seqlen_k = m.seqlen_q;
      });
      break;
    case Field::pad_between_seqs:
      add("no gaps between sequences", [](Features& g, Lengths&) { g.pad_between_seqs = false; });
      break;
    case Field::dtype:
      // The nearest first: from 64 bits to 32.
      for (const DType dtype : {f.dtype == DType::float64 ? DType::float32 : DType::bfloat16,
                                f.dtype == DType::float64 ? DType::bfloat16 : DType::float32})
        add(std::string(kDTypeNames[static_cast<std::size_t>(dtype)]),
            [dtype](Features& g, Lengths&) { g.dtype = dtype; });
      break;
    case Field::layout:
      for (const Layout layout : {Layout::bshd_bshd_bshd, Layout::thd_thd_thd})
        add("layout " + std::string(layout == Layout::bshd_bshd_bshd ? "bshd" : "thd"),
            [layout](Features& g, Lengths&) { g.layout = layout; });
      break;
    case Field::head_dim_qk:
    case Field::head_dim_v:
      for (const std::int32_t multiple : {8, 16}) {
        if (round_up(std::max(f.head_dim_qk, f.head_dim_v), multiple) > kInt32Max) break;
        const auto padded = [multiple](std::int32_t d) { return static_cast<std::int32_t>(round_up(d, multiple)); };
        add("head dims padded to " + std::to_string(padded(f.head_dim_qk)) + " and " +
                std::to_string(padded(f.head_dim_v)),
            [padded](Features& g, Lengths&) {
              g.head_dim_qk = padded(g.head_dim_qk);
              g.head_dim_v = padded(g.head_dim_v);
            });
      }
      break;
    case Field::page_size:
      add("pages of 256 tokens", [](Features& g, Lengths&) { g.page_size = 256; });
      break;
    case Field::seqlen_q:
    case Field::seqlen_k:
      // Padding both lengths moves the diagonal of a mask that ends at the bottom right.
      if (l.seqlen_q != l.seqlen_k && (f.causal || f.window_given) && f.align == Align::bottom_right) break;
      for (const std::int64_t multiple : {64, 128, 256})
        add("lengths padded, and masked, to " + std::to_string(round_up(l.seqlen_q, multiple)) + " and " +
                std::to_string(round_up(l.seqlen_k, multiple)),
            [multiple](Features&, Lengths& m) {
              m.seqlen_q = round_up(m.seqlen_q, multiple);
              m.seqlen_k = round_up(m.seqlen_k, multiple);
            });
      break;
    default:
      break;
  }
}

std::optional<std::pair<std::size_t, Rule>> find_rule(Settings settings, std::string_view id) {
  const std::vector<Rule> table = rule_table(settings);
  for (std::size_t i = 0; i < table.size(); ++i)
    if (table[i].id == id) return std::pair{i, table[i]};
  return std::nullopt;
}

/// The first change that removes the row, settings before packages before the call.
std::optional<Change> find_change(const Facts& facts, Backend backend, std::size_t row, const Rule& rule) {
  std::vector<Change> changes;
  for (const Field field : rule.reads) settings_changes(facts, field, backend, changes);
  for (const Change& change : changes)
    if (removed(change.facts, row)) return change;
  for (const Field field : rule.reads)
    for (const Package& package : kPackages)
      if (package.field == field)
        if (std::optional<Change> change = version_change(facts, package, row)) return change;
  changes.clear();
  for (const Field field : rule.reads) problem_changes(facts, field, changes);
  for (const Change& change : changes)
    if (removed(change.facts, row)) return change;
  return std::nullopt;
}

}  // namespace

std::optional<Fix> find_fix(const Decision& decision, const Reason& reason) {
  if (reason.undecided) return std::nullopt;
  const auto rule = find_rule(decision.settings(), reason.rule);
  if (!rule) return std::nullopt;
  const Facts facts{decision.problem(), decision.settings(), decision.device()};
  const std::optional<Change> change = find_change(facts, reason.backend, rule->first, rule->second);
  if (!change) return std::nullopt;
  return Fix{
      change->text,
      evaluate(change->facts.problem, change->facts.settings, change->facts.device).eligible.contains(reason.backend)};
}

std::optional<std::string> find_remedy(const Decision& decision, Backend backend) {
  Facts facts{decision.problem(), decision.settings(), decision.device()};
  const std::vector<Rule> table = rule_table(facts.settings);
  std::vector<Change> made;
  constexpr int most_changes = 8;
  for (int i = 0; i < most_changes; ++i) {
    const Outcome outcome = evaluate(facts.problem, facts.settings, facts.device);
    if (outcome.eligible.contains(backend)) {
      std::string text;
      for (const Change& change : made) text += (text.empty() ? "" : "; ") + change.text;
      return text.empty() ? std::nullopt : std::optional(text);
    }
    std::optional<Change> change;
    bool found = false;
    outcome.fired.for_each([&](std::size_t row) {
      if (found || !table[row].backends.contains(backend)) return;
      found = true;
      change = find_change(facts, backend, row, table[row]);
    });
    if (!change) return std::nullopt;
    facts = change->facts;
    // A later change of the same thing (a still newer version) replaces the earlier one.
    std::erase_if(made, [&](const Change& earlier) { return earlier.field == change->field; });
    made.push_back(*change);
  }
  return std::nullopt;
}

}  // namespace cynosure
