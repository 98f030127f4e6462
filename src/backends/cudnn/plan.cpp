// SPDX-License-Identifier: Apache-2.0
// backends/cudnn/plan.cpp: the cache of plans.
#include "backends/cudnn/plan.hpp"

#include <stdexcept>

#include "backends/cudnn/cache.hpp"

namespace cynosure::cudnn {
namespace {

// A plan takes about 100 KB of host memory.
constexpr std::size_t kMostPlans = 2048;

using PlanCache = Cache<PlanKey, Plan, PlanKeyHash>;
PlanCache& plans() {
  // Never destroyed: at exit the libraries behind a plan may be gone before us.
  static PlanCache* const cache = new PlanCache(kMostPlans);  // NOLINT(cppcoreguidelines-owning-memory)
  return *cache;
}

}  // namespace

std::shared_ptr<Plan> plan_for(const PlanKey& key, Stream stream, Built built) {
  enter(key.device);
  if (is_capturing(stream)) {
    if (std::shared_ptr<Plan> plan = plans().find(key, true)) return plan;
    throw std::runtime_error(
        "cynosure: cudnn: this call needs a plan that is not built yet, and a stream that is being captured into a "
        "CUDA "
        "graph cannot build one. Run the same call once before the capture.");
  }
  // The last plan of a thread is mostly the next one, too: then nothing is locked.
  thread_local PlanKey last_key;
  thread_local std::shared_ptr<Plan> last;
  if (last == nullptr || !(last_key == key)) {
    last = plans().get(key, false, [&] {
      const auto start = std::chrono::steady_clock::now();
      std::shared_ptr<Plan> plan = build(key, handle_for(key.device, stream));
      built(key.direction, std::chrono::steady_clock::now() - start);
      return plan;
    });
    last_key = key;
  }
  return last;
}

}  // namespace cynosure::cudnn
