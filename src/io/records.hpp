// SPDX-License-Identifier: Apache-2.0
// io/records.hpp: one line of text in, one line out: `cynosure select --jsonl` and the golden decisions.
#pragma once

#include <string>
#include <string_view>

#include <cynosure/device.hpp>
#include <cynosure/problem.hpp>
#include <cynosure/settings.hpp>

namespace cynosure::io {

/// What a record asks about, converted for a policy.
struct RecordedCall {
  Problem problem;
  Settings settings;
  Device device;
};
/// Of `base`, policy and determinism are replaced by `policy` and the record's own. Throws InvalidField.
[[nodiscard]] RecordedCall read_record(std::string_view line, Policy policy, Settings base = {});

/// Answers a record {"device": {...}, "env": {...}, "params": {...}}: what TransformerEngine is told about a machine,
/// its environment and a call (AttentionParams). An "expect" is ignored. The line that comes back has no line break:
///
///   {"expect": TransformerEngine's six answers, under policy te, "chosen": a backend or null,
///    "reasons": {backend: [rule ids], ...}}
///   {"error": {"field": what was wrong, "message": what was given and what is allowed}}
///
/// Only the backends that TransformerEngine knows are asked. Any input gives one line; nothing is thrown.
[[nodiscard]] std::string answer_record(std::string_view line, Policy policy, Settings base = {});

}  // namespace cynosure::io
