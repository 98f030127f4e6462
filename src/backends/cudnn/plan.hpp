// SPDX-License-Identifier: Apache-2.0
// backends/cudnn/plan.hpp: execution plans of cuDNN's attention graph, built and run through cudnn-frontend.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "backends/cudnn/key.hpp"
#include "backends/cudnn/library.hpp"

namespace cynosure::cudnn {

/// Device pointers by slot. Those that a plan's key does not mention are not read.
using Pointers = std::array<void*, kSlots>;

class Plan {
 public:
  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  virtual ~Plan() = default;

  [[nodiscard]] virtual std::int64_t workspace() const = 0;  ///< bytes
  /// Enqueues the plan on the handle's stream. Throws std::runtime_error with cuDNN's text.
  virtual void execute(void* handle, const Pointers& pointers, void* workspace) const = 0;
};

/// Builds a plan. Throws std::runtime_error with cuDNN's text where it has none for the key.
[[nodiscard]] std::shared_ptr<Plan> build(const PlanKey& key, void* handle);

/// Why cuDNN has no plan for the key on a machine described by `properties` (what `device_properties` gives) and `sm`;
/// "" where it has one. Needs no GPU. With `compile` the plan is built, not only looked for.
[[nodiscard]] std::string why_not(const PlanKey& key, const std::string& properties, int sm, bool compile);
/// The current device, for `why_not` elsewhere.
[[nodiscard]] std::string device_properties(void* handle);

/// The plan of a key, from the cache of this process. A plan that is asked for while the stream is captured stays for
/// good, since the graph may be replayed at any time; one that is not built then is an error. `built` hears of a plan
/// that this call built, and of the time that took.
using Built = void (*)(Direction direction, std::chrono::nanoseconds time);
[[nodiscard]] std::shared_ptr<Plan> plan_for(const PlanKey& key, Stream stream, Built built);

}  // namespace cynosure::cudnn
