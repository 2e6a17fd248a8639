// Links between devices under the one accounting: what a message from i to j takes of i's uplink and j's downlink.
//
// A device's uplink and downlink are serial and independent; a message is cut through, so each is taken for the bytes
// at its own rate and the message is through when both have carried it. Where the study has a link matrix, the pair's
// measured rate stands in for both. Devices are named by their position in the study.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cleave/fleet/links.hpp"
#include "cleave/fleet/profile.hpp"

namespace cleave::rivals {

/// A message under way: seconds that it takes of the sender's uplink and of the receiver's downlink, then one latency.
struct Hop {
  double send_s = 0, receive_s = 0, latency_s = 0;
  [[nodiscard]] double time_s() const { return (send_s > receive_s ? send_s : receive_s) + latency_s; }
};

class Network {
 public:
  /// Both must outlive the network. `links` empty: the star of the devices' own links.
  Network(const std::vector<fleet::DeviceProfile>& devices, const fleet::LinkMatrix& links)
      : devices_(&devices), links_(&links) {}

  [[nodiscard]] std::size_t size() const { return devices_->size(); }
  [[nodiscard]] const fleet::DeviceProfile& device(std::size_t i) const { return (*devices_)[i]; }

  /// True where a link matrix says what pairs can do.
  [[nodiscard]] bool measured() const { return !links_->empty(); }

  /// byte/s from i to j, alone: min(uplink_i, downlink_j), or the matrix.
  [[nodiscard]] double rate(std::size_t i, std::size_t j) const;
  /// latency_i + latency_j, or the matrix.
  [[nodiscard]] double latency_s(std::size_t i, std::size_t j) const;
  /// The slowest rate from a device of the one group to another device of the other; infinite where there is no such
  /// pair.
  [[nodiscard]] double slowest_rate(std::span<const std::size_t> from, std::span<const std::size_t> to) const;
  /// The longest latency of such a pair; 0 where there is none.
  [[nodiscard]] double longest_latency_s(std::span<const std::size_t> from, std::span<const std::size_t> to) const;
  /// A message of `payload` bytes, header included.
  [[nodiscard]] Hop hop(std::size_t i, std::size_t j, double payload) const;

 private:
  const std::vector<fleet::DeviceProfile>* devices_;
  const fleet::LinkMatrix* links_;
};

/// The matrix where device d has `factor[d]` of its rates: a pair goes at the factor of the slower one. Empty where the
/// matrix is.
[[nodiscard]] fleet::LinkMatrix slowed_links(const fleet::LinkMatrix& links, std::span<const double> factor);

}  // namespace cleave::rivals
