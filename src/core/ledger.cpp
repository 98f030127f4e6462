// SPDX-License-Identifier: Apache-2.0
// core/ledger.cpp: slots are never freed, so that a thread may keep a pointer to the one it used last.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include <cynosure/ledger.hpp>
#include <cynosure/select.hpp>

namespace cynosure {
namespace {

struct Key {
  Problem problem;
  Settings settings;
  Device device;
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    const auto bytes = [](const auto& value) {
      return std::hash<std::string_view>{}({reinterpret_cast<const char*>(&value), sizeof(value)});
    };
    return (bytes(key.problem) * 31 + bytes(key.device)) * 31 + std::hash<std::uint64_t>{}(key.settings.word());
  }
};

struct Slot {
  Key key;
  Outcome outcome;
  std::array<std::atomic<std::uint64_t>, 2> counts{};  // by Direction
};

class Ledger {
 public:
  /// The slot of a decision, made where it is new; null when the ledger is full.
  Slot* find(const Key& key, const Outcome& outcome) {
    const std::lock_guard lock(mutex_);
    const auto found = slots_.find(key);
    if (found != slots_.end()) return found->second;
    if (order_.size() == kLedgerCapacity) return nullptr;
    Slot* slot = new Slot{key, outcome};  // NOLINT(cppcoreguidelines-owning-memory): lives as long as the process
    slots_.emplace(key, slot);
    order_.push_back(slot);
    return slot;
  }
  void add(Direction direction, std::chrono::nanoseconds time) {
    const std::lock_guard lock(mutex_);
    PlanBuilds& builds = plan_builds_[static_cast<std::size_t>(direction)];
    ++builds.count;
    builds.total += time;
    builds.longest = std::max(builds.longest, time);
  }
  void count_unlisted() { unlisted_.fetch_add(1, std::memory_order_relaxed); }

  LedgerSnapshot snapshot() {
    const std::lock_guard lock(mutex_);
    LedgerSnapshot result;
    for (const Slot* slot : order_) {
      const LedgerEntry entry{.decision = {slot->key.problem, slot->key.settings, slot->key.device, slot->outcome},
                              .forward = slot->counts[0].load(std::memory_order_relaxed),
                              .backward = slot->counts[1].load(std::memory_order_relaxed)};
      if (entry.forward + entry.backward > 0) result.entries.push_back(entry);
    }
    result.unlisted = unlisted_.load(std::memory_order_relaxed);
    result.plan_builds = plan_builds_;
    return result;
  }
  /// Slots stay, with their counts at zero: threads hold pointers to them.
  void clear() {
    const std::lock_guard lock(mutex_);
    for (Slot* slot : order_)
      for (auto& count : slot->counts) count.store(0, std::memory_order_relaxed);
    unlisted_.store(0, std::memory_order_relaxed);
    plan_builds_ = {};
  }

 private:
  std::mutex mutex_;
  std::unordered_map<Key, Slot*, KeyHash> slots_;
  std::vector<Slot*> order_;
  std::atomic<std::uint64_t> unlisted_{0};
  std::array<PlanBuilds, 2> plan_builds_;
};

Ledger& the_ledger() {
  static auto* ledger = new Ledger;  // never destroyed: threads may outlive static objects
  return *ledger;
}

std::atomic<LedgerSink> sink{nullptr};

}  // namespace

Outcome decide_and_record(const Problem& problem, Settings settings, const Device& device, Direction direction) {
  thread_local Slot* last = nullptr;
  if (last == nullptr || last->key.settings != settings || last->key.problem != problem || last->key.device != device) {
    const Outcome outcome = cached_outcome(problem, settings, device);
    Slot* const found = the_ledger().find({problem, settings, device}, outcome);
    if (found == nullptr) {
      the_ledger().count_unlisted();
      return outcome;
    }
    last = found;
  }
  Slot& slot = *last;  // the sink may run code that decides, too
  const auto count = static_cast<std::size_t>(direction);
  const std::uint64_t before =
      slot.counts[count].fetch_add(1, std::memory_order_relaxed) + slot.counts[1 - count].load();
  // The first since the process began, or since the ledger was cleared.
  if (before == 0)
    if (const LedgerSink call = sink.load(std::memory_order_acquire))
      call({problem, settings, device, slot.outcome}, direction);
  return slot.outcome;
}

void record_plan_build(Direction direction, std::chrono::nanoseconds time) { the_ledger().add(direction, time); }
LedgerSnapshot ledger() { return the_ledger().snapshot(); }
void clear_ledger() { the_ledger().clear(); }
void set_ledger_sink(LedgerSink call) { sink.store(call, std::memory_order_release); }

}  // namespace cynosure
