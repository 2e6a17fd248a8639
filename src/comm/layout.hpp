// Where the sections of a payload lie: one computation for the encoders, which make room, and the decoders, which
// hold the length on the wire against it. Sizes saturate instead of overflowing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "cleave/comm/message.hpp"

namespace cleave::comm {

/// Bytes [offset, offset + bytes) of the frame.
struct Section {
  std::int64_t offset = 0, bytes = 0;
};

/// operands, their places, or outputs | row exponents | column exponents | key, or a digest alone; each from a multiple
/// of kAlignment on. The frame ends with the last byte of its last section.
struct Layout {
  std::array<Section, 4> arrays;  ///< operands of a task, outputs of a result
  Section places;                 ///< of operands that are read in place
  Section row_exponents, column_exponents;
  Section keyed;  ///< the key of a task that asks for a digest; the digest
  std::int64_t frame_bytes = kHeaderBytes;
  bool fits = true;  ///< within kMaxFrameBytes; otherwise the sections are meaningless
};

/// The longest time that a message may tell.
inline constexpr double kMaxSeconds = 1e9;

/// Requires: header.kind is task, result or digest and its fields are legal.
[[nodiscard]] Layout layout_of(const Header& header);

/// Whether a message of this kind is about a block and has its geometry.
[[nodiscard]] constexpr bool has_block(Kind kind) {
  return kind == Kind::task || kind == Kind::result || kind == Kind::digest;
}

/// The fault of a header's fields (other than payload_bytes), or none: legal values, unused fields at their defaults.
[[nodiscard]] std::optional<Fault> check_fields(const Header& header);

/// A frame of a handshake with its payload, sealed. Requires: the payload is within the kind's limit.
[[nodiscard]] Frame encode_payload(Kind kind, std::span<const std::byte> payload);

}  // namespace cleave::comm
