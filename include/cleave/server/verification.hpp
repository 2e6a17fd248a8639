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

/// Settings of verification.
struct Verification {
  VerifyMode mode = VerifyMode::sample;
  double fraction = 0.1;      ///< share of the blocks: checked (sample), computed again (audit), paired (quorum)
  std::int64_t rollback = 0;  ///< most steps that are taken back because a device that was found out had a part in them
  std::uint64_t seed = 0;     ///< secret of the draws of blocks and of the vectors x; devices must not know it
  std::optional<SipKey> pair_secret{};  ///< key of the draws of pairs, for tests; none: from the operating system
};

/// A block that was found wrong.
struct Finding {
  DeviceId device;
  TaskletId tasklet{};
  std::string operation{};
  bool checked = true;  ///< found by a comparison; false: it is not finite, or not of the form that was asked for
  bool digest = false;  ///< the device's digest of another device's block was wrong, not a block of its own
  double ratio = 0;     ///< error over bound in the cheap check; 0 where that was not made
};

/// The blocks that a device returned in a step, before it was found out, and that were not checked.
struct Unchecked {
  DeviceId device;
  std::int64_t blocks = 0;
};

/// What verification did and found.
struct VerificationReport {
  std::int64_t blocks = 0;     ///< blocks that devices returned
  std::int64_t checked = 0;    ///< of them, those that the cheap check or an audit looked at
  std::int64_t suspected = 0;  ///< failed the cheap check, or differed from the digest of a second device
  std::int64_t cleared = 0;    ///< suspected, but right
  std::vector<Finding> wrong;
  double largest_ratio = 0;  ///< largest error over bound among the blocks that were right
  Seconds time;              ///< processor time of checking, without helper threads of an audit
  Seconds device_time;       ///< real time of the devices' computations, as they report it
};

/// now - before, member by member; largest_ratio is that of `now`.
[[nodiscard]] VerificationReport difference(VerificationReport now, const VerificationReport& before);

/// Probability that at least one wrong block was accepted before its device was found out.
///
/// A wrong block is drawn for a check with probability f. A device had no wrong block accepted exactly if its first
/// wrong block was drawn, whatever share of its blocks is wrong. So with d devices found out
///   P = 1 - f^d;   f = `fraction`, 1 with `all`; NaN (unknown) with `off`.
/// d does not count devices that returned a false digest. Devices that were never found out are not covered:
/// missed_share() bounds what they may have done.
[[nodiscard]] double slip_probability(const Verification& terms, const VerificationReport& report);

/// The largest share q of wrong blocks with which a device that returned `blocks` blocks stays unnoticed with
/// probability `chance`: (1 - f q)^blocks = chance; at most 1; NaN with `off`. f: as slip_probability().
[[nodiscard]] double missed_share(const Verification& terms, std::int64_t blocks, double chance = 0.05);

}  // namespace cleave::server
