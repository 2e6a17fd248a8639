// Tournament: the first of as many keys as there are places, each of which holds one at most.
//
// A change plays the matches of one place again, level by level, without the moves of a heap and without branches,
// which no processor could foresee: a key is one integer of 128 bits, its time above its order and its place, so a
// match is a minimum. (Knuth, The Art of Computer Programming, volume 3, section 5.4.1: a tree of winners.)
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cleave/timing/event_queue.hpp"

namespace cleave::timing {

class Tournament {
 public:
  /// Requires: no more than 2^20 places.
  explicit Tournament(std::size_t places) : leaves_(std::bit_ceil(places + 1)), keys_(2 * leaves_, kNone) {}

  [[nodiscard]] bool empty() const { return keys_[1] == kNone; }
  /// The least key; kNever: empty.
  [[nodiscard]] EventKey next() const { return key_of(keys_[1]); }
  /// Whose key is next. Requires: not empty.
  [[nodiscard]] std::size_t first() const { return static_cast<std::size_t>(keys_[1]) & kPlaces; }
  [[nodiscard]] EventKey key(std::size_t place) const { return key_of(keys_[leaves_ + place]); }

  /// Requires: the time is not negative, and the order below 2^44.
  void set(std::size_t place, const EventKey& key) {
    const auto at = std::bit_cast<std::uint64_t>(key.at.value() + 0.0);  // of times that are not negative: ascending
    play(place, key == kNever ? kNone : PackedKey{at} << 64U | PackedKey{key.order << kPlaceBits | place});
  }
  /// The longest is the first; of equal ones the one of the least order. next() is not to be asked then.
  void set_longest(std::size_t place, Seconds length, std::uint64_t order) {
    const auto bits = std::bit_cast<std::uint64_t>(length.value() + 0.0);
    play(place, PackedKey{~bits} << 64U | PackedKey{order << kPlaceBits | place});
  }
  void clear(std::size_t place) { play(place, kNone); }

 private:
  __extension__ using PackedKey = unsigned __int128;
  static constexpr unsigned kPlaceBits = 20;
  static constexpr std::uint64_t kPlaces = (std::uint64_t{1} << kPlaceBits) - 1;
  static constexpr PackedKey kNone = ~PackedKey{0};

  static EventKey key_of(PackedKey key) {
    if (key == kNone) return kNever;
    return {Seconds(std::bit_cast<double>(static_cast<std::uint64_t>(key >> 64U))),
            static_cast<std::uint64_t>(key) >> kPlaceBits};
  }
  void play(std::size_t place, PackedKey key) {
    std::size_t node = leaves_ + place;
    keys_[node] = key;
    for (; node > 1; node /= 2) keys_[node / 2] = key = std::min(key, keys_[node ^ 1U]);
  }

  std::size_t leaves_;
  std::vector<PackedKey> keys_;  // of each node of the tree; the root is 1
};

}  // namespace cleave::timing
