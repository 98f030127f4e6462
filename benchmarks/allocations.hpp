// SPDX-License-Identifier: Apache-2.0
// benchmarks/allocations.hpp: how often the process has called operator new.
#pragma once

#include <atomic>
#include <cstdint>

namespace cynosure::benchmarks {

extern std::atomic<std::uint64_t> allocations;

}  // namespace cynosure::benchmarks
