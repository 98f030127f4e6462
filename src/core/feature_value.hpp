// SPDX-License-Identifier: Apache-2.0
// core/feature_value.hpp: a field that is no length, for rows that are data.
#pragma once

#include <cynosure/fields.hpp>

namespace cynosure {

[[nodiscard]] std::int64_t feature_value(Field field, const Features& features, const Device& device,
                                         Settings settings);

}  // namespace cynosure
