// SPDX-License-Identifier: Apache-2.0
// rules/table.hpp: the whole rule table, a file per subject. The one header of this layer that the core includes.
#pragma once

#include <tuple>
#include <utility>

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

namespace detail {

template <std::size_t First, class F, class Rows, std::size_t... I>
[[gnu::always_inline]] constexpr void for_each_row_of(F& f, const Rows& rows, std::index_sequence<I...>) {
  (f(First + I, std::get<I>(rows)), ...);
}

/// A subject after another. No tuple of all rows: GCC 12 takes a minute to make one with warnings on, eight seconds
/// without.
template <std::size_t First, class F, class Rows, class... More>
[[gnu::always_inline]] constexpr void for_each_row_from(F& f, const Rows& rows, const More&... more) {
  constexpr std::size_t size = std::tuple_size_v<Rows>;
  for_each_row_of<First>(f, rows, std::make_index_sequence<size>{});
  if constexpr (sizeof...(More) > 0) for_each_row_from<First + size>(f, more...);
}

template <class... Rows>
constexpr std::size_t count(const Rows&...) {
  return (std::tuple_size_v<Rows> + ...);
}

/// The table: its subjects in order.
template <class F>
[[gnu::always_inline]] constexpr auto with_subjects(F&& f) {
  return f(kCommonRows, kFlashRows, kFlash2Rows, kFlash3Rows, kFlash4Rows, kCudnnRows, kCudnnF16Rows, kCudnnFp8Rows,
           kUnfusedRows, kCpuRows, kTeRows);
}

}  // namespace detail

/// Calls f(index, row) for each row in order.
template <class F>
[[gnu::always_inline]] constexpr void for_each_row(F&& f) {
  detail::with_subjects([&](const auto&... subjects)
                            __attribute__((always_inline)) { detail::for_each_row_from<0>(f, subjects...); });
}

inline constexpr std::size_t kRowCount =
    detail::with_subjects([](const auto&... subjects) { return detail::count(subjects...); });
inline constexpr std::size_t kDiagonalRowCount = std::tuple_size_v<decltype(kTeFlashDiagonalRows)>;
/// Built-in rows with a predicate in code; rows of known faults follow them.
inline constexpr std::size_t kCodeRowCount = kRowCount + kDiagonalRowCount;

}  // namespace cynosure::rules
