// SPDX-License-Identifier: Apache-2.0
// backends/cpu/parallel.hpp: how the kernels get threads. The caller brings its own pool; the default runs here.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

namespace cynosure::cpu {

template <class Signature>
class FunctionRef;

/// A callable by reference: two pointers, no allocation. What it refers to must outlive it.
template <class Result, class... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <class Callable>
    requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef>)
  FunctionRef(Callable&& callable)  // NOLINT(google-explicit-constructor): a parameter type, as std::function_ref is
      : object_(const_cast<void*>(static_cast<const void*>(&callable))),
        call_([](void* object, Arguments... arguments) -> Result {
          return (*static_cast<std::remove_reference_t<Callable>*>(object))(std::forward<Arguments>(arguments)...);
        }) {}
  Result operator()(Arguments... arguments) const { return call_(object_, std::forward<Arguments>(arguments)...); }

 private:
  void* object_;
  Result (*call_)(void*, Arguments...);
};

/// Work on indices [begin, end).
using RangeFunction = FunctionRef<void(std::int64_t begin, std::int64_t end)>;
/// Calls the function on parts of [begin, end), each of `grain` or more, all of them done when it returns. Which thread
/// runs which part, when, and how many there are is its own business: results do not depend on it.
using ParallelFor = FunctionRef<void(std::int64_t begin, std::int64_t end, std::int64_t grain, RangeFunction)>;

class Parallel {
 public:
  /// One thread: this one.
  Parallel() : for_(kSerial) {}
  /// `threads`: how many can usefully run at once; each gets its own scratch memory.
  Parallel(int threads, ParallelFor parallel_for) : threads_(threads < 1 ? 1 : threads), for_(parallel_for) {}

  [[nodiscard]] int threads() const { return threads_; }
  void operator()(std::int64_t begin, std::int64_t end, std::int64_t grain, RangeFunction function) const {
    for_(begin, end, grain, function);
  }

 private:
  static constexpr auto kSerial = [](std::int64_t begin, std::int64_t end, std::int64_t, RangeFunction function) {
    function(begin, end);
  };
  int threads_ = 1;
  ParallelFor for_;
};

}  // namespace cynosure::cpu
