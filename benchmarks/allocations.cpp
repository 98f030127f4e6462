// SPDX-License-Identifier: Apache-2.0
// benchmarks/allocations.cpp: operator new, counted. Replacing these replaces the array and nothrow forms too.
#include "allocations.hpp"

#include <cstdlib>
#include <new>

namespace cynosure::benchmarks {
std::atomic<std::uint64_t> allocations{0};
}

void* operator new(std::size_t size) {
  cynosure::benchmarks::allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size != 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
