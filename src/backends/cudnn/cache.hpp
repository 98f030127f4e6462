// SPDX-License-Identifier: Apache-2.0
// backends/cudnn/cache.hpp: values that are costly to make, by key: bounded, least recently used out first, any number
// of threads.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace cynosure::cudnn {

template <class Key, class Value, class Hash>
class Cache {
 public:
  explicit Cache(std::size_t capacity) : capacity_(capacity) {}

  /// The value of a key, made by `make()` where there is none: once, however many threads ask meanwhile; they wait.
  /// What `make` throws leaves nothing behind. `pin`: the value stays for good, and no longer counts.
  template <class Make>
  [[nodiscard]] std::shared_ptr<Value> get(const Key& key, bool pin, const Make& make) {
    const std::shared_ptr<Entry> entry = entry_of(key, pin, true);
    const std::lock_guard lock(entry->making);
    if (entry->value == nullptr) {
      try {
        entry->value = make();
      } catch (...) {
        forget(key, entry);
        throw;
      }
    }
    return entry->value;
  }

  /// The value where it is made already; null otherwise. Waits for one that is being made.
  [[nodiscard]] std::shared_ptr<Value> find(const Key& key, bool pin) {
    const std::shared_ptr<Entry> entry = entry_of(key, pin, false);
    if (entry == nullptr) return nullptr;
    const std::lock_guard lock(entry->making);
    return entry->value;
  }

  [[nodiscard]] std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }
  [[nodiscard]] std::size_t pinned() const {
    const std::lock_guard lock(mutex_);
    return entries_.size() - recent_.size();
  }

 private:
  struct Entry {
    std::mutex making;
    std::shared_ptr<Value> value;
    typename std::list<Key>::iterator place;  ///< in recent_, unless pinned
    bool pinned = false;
  };

  std::shared_ptr<Entry> entry_of(const Key& key, bool pin, bool create) {
    const std::lock_guard lock(mutex_);
    auto found = entries_.find(key);
    if (found == entries_.end()) {
      if (!create) return nullptr;
      found = entries_.emplace(key, std::make_shared<Entry>()).first;
      found->second->place = recent_.insert(recent_.begin(), key);
    }
    const std::shared_ptr<Entry> entry = found->second;  // evicting may move the table
    if (!entry->pinned) {
      if (pin) {
        recent_.erase(entry->place);
        entry->pinned = true;
      } else {
        recent_.splice(recent_.begin(), recent_, entry->place);
      }
    }
    while (recent_.size() > capacity_) {
      entries_.erase(recent_.back());
      recent_.pop_back();
    }
    return entry;
  }

  void forget(const Key& key, const std::shared_ptr<Entry>& entry) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end() || found->second != entry) return;
    if (!entry->pinned) recent_.erase(entry->place);
    entries_.erase(found);
  }

  std::size_t capacity_;
  mutable std::mutex mutex_;
  std::list<Key> recent_;  ///< most recently used first; without the pinned
  std::unordered_map<Key, std::shared_ptr<Entry>, Hash> entries_;
};

}  // namespace cynosure::cudnn
