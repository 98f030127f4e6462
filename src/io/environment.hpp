// SPDX-License-Identifier: Apache-2.0
// io/environment.hpp: environment variables, given as values, become Settings. Nothing here reads the environment.
//
// TransformerEngine's variables keep their meaning and ours add to them. An unreadable value is an error that names
// the variable and what it accepts, never a guess; the rest of the environment is none of our business.
#pragma once

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <cynosure/settings.hpp>

namespace cynosure::io {

using Variable = std::pair<std::string_view, std::string_view>;  ///< name and value

/// `base` with what the variables say. A switch only ever takes backends away from base. Throws InvalidField.
[[nodiscard]] Settings settings_from_environment(std::span<const Variable> variables, Settings base);
/// The names settings_from_environment reads, for the edge that has to ask for each of them.
[[nodiscard]] std::vector<std::string_view> environment_names();

/// Only the variables that TransformerEngine reads at each selection (TE spec 1.4). `fp8`: FP8 is on, and then
/// it reads a few numbers that decide nothing but have to be numbers.
[[nodiscard]] Settings selection_switches(std::span<const Variable> variables, Settings base, bool fp8);

/// `auto` | NAME | NAME,NAME | prefer(NAME,...) | require(NAME,...); bare names mean require. Spaces may stand
/// anywhere between the words. `field` names the text in the error: an argument or a variable.
[[nodiscard]] std::pair<Contract, BackendList> parse_contract(std::string_view text,
                                                              std::string_view field = "backend");

}  // namespace cynosure::io
