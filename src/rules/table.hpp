// SPDX-License-Identifier: Apache-2.0
// rules/table.hpp: the whole rule table, a file per subject. The one header of this layer that the core includes.
#pragma once

#include <tuple>

#include "rules/common.hpp"
#include "rules/cpu.hpp"
#include "rules/cudnn.hpp"
#include "rules/cudnn_f16.hpp"
#include "rules/cudnn_fp8.hpp"
#include "rules/faults.hpp"
#include "rules/flash.hpp"
#include "rules/flash2.hpp"
#include "rules/flash3.hpp"
#include "rules/flash4.hpp"
#include "rules/te_quirks.hpp"
#include "rules/unfused.hpp"

namespace cynosure::rules {

inline constexpr auto kRows = std::tuple_cat(kCommonRows, kFlashRows, kFlash2Rows, kFlash3Rows, kFlash4Rows, kCudnnRows,
                                             kCudnnF16Rows, kCudnnFp8Rows, kUnfusedRows, kCpuRows, kTeRows);
inline constexpr std::size_t kRowCount = std::tuple_size_v<decltype(kRows)>;
inline constexpr std::size_t kDiagonalRowCount = std::tuple_size_v<decltype(kTeFlashDiagonalRows)>;
/// Built-in rows with a predicate in code; rows of known faults follow them.
inline constexpr std::size_t kCodeRowCount = kRowCount + kDiagonalRowCount;

}  // namespace cynosure::rules
