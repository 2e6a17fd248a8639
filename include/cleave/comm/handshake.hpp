// What a device rank and the server tell each other before the first task: Hello and Welcome.
//
// Device rank: hello -> server: welcome (or refusal) -> device rank: ready (or refusal).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cleave/base/ids.hpp"
#include "cleave/base/shapes.hpp"
#include "cleave/base/units.hpp"
#include "cleave/comm/message.hpp"

namespace cleave::comm {

/// Who a device rank is, for ranks.json and for noticing its death.
struct Hello {
  std::int64_t pid = 0;
  std::string host;
  std::string version;  ///< cleave::kVersion of its program
  bool operator==(const Hello&) const = default;
};

/// The part of a device's profile that its rank enforces.
struct HostedDevice {
  DeviceId id;
  Bytes memory;
  bool operator==(const HostedDevice&) const = default;
};

/// Longest Welcome::step, in bytes.
inline constexpr std::size_t kMaxStepText = 64 << 10;

/// What a rank hosts, and the settings that it must follow.
struct Welcome {
  DType wire = DType::f32;
  std::string gemm_kernels;  ///< the server's choice: kernels::select_gemm_kernels
  Seconds heartbeat{1.0};    ///< the rank pings after this long without a message; smaller: more messages
  Seconds patience{300.0};   ///< orphan limit: without a message for this long it leaves; larger: orphans stay longer
  std::vector<HostedDevice> devices;
  std::string step{};  ///< model::to_text() of the step, where steps may come in stages; at most kMaxStepText bytes
  bool operator==(const Welcome&) const = default;
};

/// Sealed frames of kind hello and welcome.
[[nodiscard]] Frame encode(const Hello& hello);
[[nodiscard]] Frame encode(const Welcome& welcome);

/// Decodes and validates a frame. Errors: as decode(); Fault::kind for a frame of another kind, Fault::payload for a
/// value outside its limits.
[[nodiscard]] Decoded<Hello> decode_hello(const Frame& frame);
[[nodiscard]] Decoded<Welcome> decode_welcome(const Frame& frame);

}  // namespace cleave::comm
