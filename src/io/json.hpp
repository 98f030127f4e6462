// SPDX-License-Identifier: Apache-2.0
// io/json.hpp: the core's values as JSON text, both ways: write(read(text)) is the canonical text of a value.
//
// Names come from fields(): a Problem is {"heads": 32, "dtype": "bfloat16", "causal": true}. Writing leaves out what
// has its default; reading refuses what it does not know: another field, another type, a number that is no integer or
// out of range, a key given twice. Every read_ function throws InvalidField. One line, keys in a fixed order: equal
// values give equal text.
#pragma once

#include <string>
#include <string_view>

#include <cynosure/decision.hpp>
#include <cynosure/rule_set.hpp>

namespace cynosure::io {

/// Each field by itself is checked; validate() (fields.hpp) judges the problem as a whole.
[[nodiscard]] Problem read_problem(std::string_view text);
[[nodiscard]] std::string write(const Problem& problem);

/// Versions as text, "9.19.0"; `built` as a list of names.
[[nodiscard]] Device read_device(std::string_view text);
[[nodiscard]] std::string write(const Device& device);

/// {"word": "0x...", "describe": "..."}; only the word is read.
[[nodiscard]] Settings read_settings(std::string_view text);
[[nodiscard]] std::string write(Settings settings);

/// {"backend", "rule", "way", "actual": {name: text}, "required", "evidence", "undecided", "fix": {"text",
/// "makes_eligible"} or null}
[[nodiscard]] Reason read_reason(std::string_view text);
[[nodiscard]] std::string write(const Reason& reason);

/// {"backend": name or null, "eligible", "order", "ground", "problem", "device", "settings", "reasons": {backend:
/// [reason without its backend]}}. Each reason comes with its fix, which is searched for.
[[nodiscard]] std::string write(const Decision& decision);
/// Evaluates problem, settings and device again: a decision that this release would not make is refused, and so is one
/// over unknown lengths, which cannot be made again. Prose (ground, required, evidence, fixes) may differ.
[[nodiscard]] Decision read_decision(std::string_view text);

/// {"faults": [{"id", "library", "since", "until", "sm": [min, max], "backends": [...], "policies": ["fastest", "te"],
/// "when": {...}, "effect", "link"}]}. A bound that is absent or "unknown" is unknown; policies default to fastest.
/// `when` holds a condition for each field, all of which have to hold (or is a list of such objects):
///
///   "training": true                       equal to
///   "causal": {"not": true}                not equal to
///   "dtype": ["bfloat16", "float16"]       one of; {"none_of": [...]}: none of
///   "seqlen_k": {"not_multiple_of": 128}   multiple_of, not_multiple_of, at_least, at_most; several are joined
///   "batch": {"product_over_int32": {"factor": 8, "lengths": ["batch", "seqlen_q"]}}   8 * batch * seqlen_q > 2^31 - 1
[[nodiscard]] RuleSet read_rule_set(std::string_view text);
[[nodiscard]] std::string write(const RuleSet& rules);

}  // namespace cynosure::io
