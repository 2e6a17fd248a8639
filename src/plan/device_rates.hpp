// Devices as plain numbers for inner loops: what each can move and multiply by a finish time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cleave/plan/plan.hpp"

namespace cleave::plan {

/// What a device can do up to some finish time: bytes down, FLOP, bytes up; and what it holds.
struct Budget {
  double down = 0, flops = 0, up = 0;
  double memory = 0;     ///< bytes, at any time
  double wavefront = 0;  ///< as DeviceRates has it
  [[nodiscard]] bool any() const { return down > 0 && flops > 0 && up > 0; }
};

/// Results leave only when operands have come: of the inputs of a tile, x allow x^2 of its results. A tile whose
/// downlink and uplink are both taken until the finish has all its results at the server at this multiple of it; no
/// tile later.
inline constexpr double kBalancedWavefront = 1.25;

/// Rates in bytes/s and FLOP/s, each resource with the time at which it can begin: its present load, both latencies,
/// and the header that its message pays.
struct DeviceRates {
  std::int32_t index = 0;  ///< of the device in the span that this was made from
  double down = 0, flops = 0, up = 0;
  double down_at = 0, flops_at = 0, up_at = 0;
  double memory = 0;
  /// By which the results of a tile of its own are all at the server, as a share of the finish (Reach).
  double wavefront = kBalancedWavefront;

  [[nodiscard]] Budget by(double finish) const {
    return {down * std::max(0.0, finish - down_at), flops * std::max(0.0, finish - flops_at),
            up * std::max(0.0, finish - up_at), memory, wavefront};
  }
  [[nodiscard]] bool same_as(const DeviceRates& o) const {
    return down == o.down && flops == o.flops && up == o.up && down_at == o.down_at && flops_at == o.flops_at &&
           up_at == o.up_at && memory == o.memory;
  }
  /// Before this nothing can come back.
  [[nodiscard]] double earliest() const { return std::max({down_at, flops_at, up_at}); }
};

/// `messages`: in how many messages each direction's bytes travel.
[[nodiscard]] std::vector<DeviceRates> device_rates_of(std::span<const DeviceState> devices,
                                                       const fleet::ServerProfile& server, std::int64_t messages);

/// Devices that are alike, counted once.
struct DeviceClass {
  DeviceRates rates;
  double count = 1;
};

/// Neighbours that are alike but for their index, together; usable_devices() makes equal devices neighbours.
[[nodiscard]] std::vector<DeviceClass> device_classes(std::span<const DeviceRates> device_rates);

/// At most `most` devices that stand for all of them: evenly spread over their order, each for as many.
[[nodiscard]] std::vector<DeviceClass> sample_of(std::span<const DeviceClass> devices, std::size_t most);

}  // namespace cleave::plan
