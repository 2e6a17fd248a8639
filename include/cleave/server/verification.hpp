// Verification of returned blocks: which are checked and how, and what came of it. docs/security.md says what it is
// worth.
//
//   off     nothing is checked
//   sample  a share of the blocks, drawn from the server's secret seed, is checked against its operands (C x = A (B x))
//   all     every block is
//   audit   a share of the blocks is computed again by the server and compared bit for bit
//   quorum  a share of the blocks is computed by a second device too, and the digests of both are compared
//
// A block that fails the cheap check is suspected, not condemned: it is computed again and compared bit for bit, so an
// honest device is never left out because of rounding.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/ids.hpp"
#include "cleave/base/siphash.hpp"
#include "cleave/base/units.hpp"

namespace cleave::server {

enum class VerifyMode : std::uint8_t { off, sample, all, audit, quorum };
/// As inputs have it.
[[nodiscard]] std::string_view name_of(VerifyMode mode);

struct Verification {
  VerifyMode mode = VerifyMode::sample;
  double fraction = 0.1;      ///< of blocks that `sample` checks, that `audit` computes again, that `quorum` pairs
  std::int64_t rollback = 0;  ///< steps, at most, that are taken back because a device found out had a part in them
  std::uint64_t seed = 0;     ///< secret of the server: devices must not foresee which blocks, nor with which vectors
  std::optional<SipKey> pair_secret{};  ///< of the draws of pairs, for tests; otherwise of the operating system
};

/// A block that was found wrong.
struct Finding {
  DeviceId device;
  TaskletId tasklet{};
  std::string operation{};
  bool checked = true;  ///< against its operands; false: it is not finite, or not even what was asked for
  bool digest = false;  ///< its blocks were not wrong, but what it said of another device's was
  double ratio = 0;     ///< of its error to the bound of the cheap check; 0 when that did not look at it
};

/// Blocks that a device had returned in a step, and which the server had not looked at, before it was found out.
struct Unchecked {
  DeviceId device;
  std::int64_t blocks = 0;
};

struct VerificationReport {
  std::int64_t blocks = 0;     ///< that devices returned
  std::int64_t checked = 0;    ///< of them, by the cheap check or by an audit
  std::int64_t suspected = 0;  ///< failed the cheap check, or differed from the digest of a second device
  std::int64_t cleared = 0;    ///< suspected, and right after all
  std::vector<Finding> wrong;
  double largest_ratio = 0;  ///< of error to bound among the blocks that were right
  Seconds time;              ///< processor time of checking; helper threads of an audit are not in it
  Seconds device_time;       ///< real time of the devices' computations, as they report it
};

/// What was added since `before`; largest_ratio is of the whole.
[[nodiscard]] VerificationReport difference(VerificationReport now, const VerificationReport& before);

/// Probability that at least one wrong block was taken for right before its device was found out.
///
/// A device escapes notice until one of its wrong blocks is drawn, each with probability f. No wrong block of it was
/// taken exactly when its first one was drawn, whatever share of its blocks is wrong. So with d devices found out
///   P = 1 - f^d,   who told a false digest not counted;   f = 1 with `all`, and NaN (unknown) with `off`.
/// Devices that were never found out are not in it: missed_share() bounds what they may have done.
[[nodiscard]] double slip_probability(const Verification& terms, const VerificationReport& report);

/// Largest share of wrong blocks that a device can have returned among `blocks` and still have gone unnoticed with
/// probability `chance`: (1 - f q)^blocks = chance, at most 1; NaN with `off`.
[[nodiscard]] double missed_share(const Verification& terms, std::int64_t blocks, double chance = 0.05);

}  // namespace cleave::server
