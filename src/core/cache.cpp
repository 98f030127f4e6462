// SPDX-License-Identifier: Apache-2.0
// core/cache.cpp: the bounded cache of outcomes.
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <optional>
#include <type_traits>

#include <cynosure/select.hpp>

namespace cynosure {
namespace {

using Word = std::uint64_t;

/// The arguments of evaluate, as words.
constexpr std::size_t kKeyWords = (sizeof(Problem) + sizeof(Device) + sizeof(Word)) / sizeof(Word);
using Key = std::array<Word, kKeyWords>;
static_assert(sizeof(Problem) % sizeof(Word) == 0 && sizeof(Device) % sizeof(Word) == 0);
static_assert(std::has_unique_object_representations_v<Problem> && std::has_unique_object_representations_v<Device>);

constexpr std::size_t kOutcomeWords = sizeof(Outcome) / sizeof(Word);
static_assert(sizeof(Outcome) % sizeof(Word) == 0 && std::is_trivially_copyable_v<Outcome>);

Key make_key(const Problem& problem, Settings settings, const Device& device) {
  Key key;
  std::memcpy(key.data(), &problem, sizeof(Problem));
  std::memcpy(key.data() + sizeof(Problem) / sizeof(Word), &device, sizeof(Device));
  key.back() = settings.word();
  return key;
}

/// An odd constant for each word of a key (splitmix64).
constexpr Key kMultipliers = [] {
  Key constants{};
  Word state = 0;
  for (Word& constant : constants) {
    state += 0x9e3779b97f4a7c15ULL;
    Word z = state;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
    constant = (z ^ (z >> 31U)) | 1U;
  }
  return constants;
}();

/// Pairs of words, multiplied to 128 bits and folded: no step waits for another, so a key takes a few nanoseconds. A
/// collision costs a comparison, never a wrong answer.
Word hash(const Key& key) {
  __extension__ using Wide = unsigned __int128;
  static_assert(kKeyWords % 2 == 0);
  Word h = 0;
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kKeyWords; i += 2) {
    const Wide product = static_cast<Wide>(key[i] ^ kMultipliers[i]) * (key[i + 1] ^ kMultipliers[i + 1]);
    h ^= static_cast<Word>(product) ^ static_cast<Word>(product >> 64U);
  }
  h = (h ^ (h >> 32U)) * 0xd6e8feb86659fd93ULL;
  return h ^ (h >> 32U);
}

/// 128 sets of eight ways. A full set drops its oldest entry. Values are immutable functions of their keys, so dropping
/// one costs an evaluation and nothing else.
///
/// Readers take no lock (a seqlock): a set's version is odd while it is written, and a reader that sees it change
/// takes what it read for a miss. The words are atomics, released by the writer and acquired by readers, so that
/// whoever reads a new word also sees the version that came before it.
class Cache {
 public:
  [[nodiscard]] std::optional<Outcome> find(Word h, const Key& key) const {
    const Set& set = sets_[h >> kSetShift];
    const Word version = set.version.load(std::memory_order_acquire);
    const std::uint32_t tag = tag_of(h);
    for (std::size_t way = 0; way < kWays; ++way) {
      if (set.tags[way].load(std::memory_order_acquire) != tag) continue;
      const Entry& entry = set.entries[way];
      if (!equal(entry, key)) continue;
      std::array<Word, kOutcomeWords> words;  // NOLINT(*-member-init): filled below; zeroing it first is measurable
#pragma GCC unroll 16
      for (std::size_t i = 0; i < kOutcomeWords; ++i) words[i] = entry[kKeyWords + i].load(std::memory_order_acquire);
      if (version % 2 != 0 || set.version.load(std::memory_order_relaxed) != version) return std::nullopt;
      return std::bit_cast<Outcome>(words);
    }
    return std::nullopt;
  }

  /// Does nothing where another thread is writing to the same set: the next miss tries again.
  void insert(Word h, const Key& key, const Outcome& outcome) {
    Set& set = sets_[h >> kSetShift];
    Word version = set.version.load(std::memory_order_relaxed);
    if (version % 2 != 0 || !set.version.compare_exchange_strong(version, version + 1, std::memory_order_acquire))
      return;
    const std::size_t way = set.next++ % kWays;
    Entry& entry = set.entries[way];
    std::array<Word, kOutcomeWords> words{};
    std::memcpy(words.data(), &outcome, sizeof(Outcome));
    set.tags[way].store(tag_of(h), std::memory_order_release);
    for (std::size_t i = 0; i < kKeyWords; ++i) entry[i].store(key[i], std::memory_order_release);
    for (std::size_t i = 0; i < kOutcomeWords; ++i) entry[kKeyWords + i].store(words[i], std::memory_order_release);
    set.version.store(version + 2, std::memory_order_release);
  }

 private:
  static constexpr std::size_t kWays = 8;
  static constexpr std::size_t kSets = 128;
  static constexpr unsigned kSetShift = 57;  // the set comes from the upper bits, the tag from the lower ones
  static_assert(std::size_t{1} << (64 - kSetShift) == kSets);

  using Entry = std::array<std::atomic<Word>, kKeyWords + kOutcomeWords>;
  struct alignas(64) Set {
    std::atomic<Word> version{0};
    std::uint32_t next = 0;  ///< the way to write next; only the thread that made `version` odd touches it
    std::array<std::atomic<std::uint32_t>, kWays> tags{};  ///< 0: empty
    std::array<Entry, kWays> entries{};
  };

  static std::uint32_t tag_of(Word h) { return static_cast<std::uint32_t>(h) | 1U; }
  static bool equal(const Entry& entry, const Key& key) {
    Word difference = 0;
#pragma GCC unroll 32
    for (std::size_t i = 0; i < kKeyWords; ++i) difference |= entry[i].load(std::memory_order_acquire) ^ key[i];
    return difference == 0;
  }

  std::array<Set, kSets> sets_{};
};

constinit Cache cache;  // about 280 KB of zero pages until used

}  // namespace

Outcome cached_outcome(const Problem& problem, Settings settings, const Device& device) {
  const Key key = make_key(problem, settings, device);
  const Word h = hash(key);
  if (const std::optional<Outcome> known = cache.find(h, key)) return *known;
  const Outcome outcome = evaluate(problem, settings, device);
  cache.insert(h, key, outcome);
  return outcome;
}

}  // namespace cynosure
