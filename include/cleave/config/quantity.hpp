// Numbers with units as text: what an input file, an override or an option may say, and how a report says it back.
//
// A unit is always required. Powers: k M G T P are 1000^n, Ki Mi Gi Ti are 1024^n; `bit` and `B` are different.
//   size   B kB MB GB TB KiB MiB GiB TiB             must come out as a whole number of bytes
//   rate   bit/s kbit/s Mbit/s Gbit/s Tbit/s, B/s kB/s MB/s GB/s TB/s, KiB/s MiB/s GiB/s TiB/s; some `unlimited`
//   speed  FLOP/s kFLOP/s MFLOP/s GFLOP/s TFLOP/s PFLOP/s
//   time   ns us ms s min h
//   power  mW W kW
// Negative, infinite, not-a-number and overflowing values are refused. to_text() yields text that parses to the same
// value, to the last bit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cleave/base/units.hpp"

namespace cleave::config {

/// A value, or what is wrong with the text and how to mend it.
template <class T>
struct Parsed {
  std::optional<T> value{};
  std::string message{};
  std::string hint{};
};

enum class Unlimited : bool { refused, allowed };  ///< whether `unlimited` (an infinite rate) may be written

[[nodiscard]] Parsed<std::int64_t> parse_integer(std::string_view text);
[[nodiscard]] Parsed<double> parse_real(std::string_view text);
[[nodiscard]] Parsed<Bytes> parse_bytes(std::string_view text);
[[nodiscard]] Parsed<BytesPerSecond> parse_rate(std::string_view text, Unlimited unlimited = Unlimited::refused);
[[nodiscard]] Parsed<FlopsPerSecond> parse_compute(std::string_view text);
[[nodiscard]] Parsed<Seconds> parse_seconds(std::string_view text);
[[nodiscard]] Parsed<Watts> parse_watts(std::string_view text);

[[nodiscard]] std::string to_text(std::int64_t value);
[[nodiscard]] std::string to_text(double value);
[[nodiscard]] std::string to_text(Bytes value);
[[nodiscard]] std::string to_text(BytesPerSecond value);  ///< `unlimited` for an infinite rate
[[nodiscard]] std::string to_text(FlopsPerSecond value);
[[nodiscard]] std::string to_text(Seconds value);
[[nodiscard]] std::string to_text(Watts value);

}  // namespace cleave::config
