// What a verification report says, and what may have slipped through.
#include "cleave/server/verification.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace cleave::server {

namespace {

/// Share of the blocks that are looked at.
double share_of(const Verification& terms) {
  switch (terms.mode) {
    case VerifyMode::off: return std::numeric_limits<double>::quiet_NaN();
    case VerifyMode::all: return 1.0;
    case VerifyMode::sample:
    case VerifyMode::audit:
    case VerifyMode::quorum: return terms.fraction;
  }
  return 1.0;
}

}  // namespace

std::string_view name_of(VerifyMode mode) {
  switch (mode) {
    case VerifyMode::off: return "off";
    case VerifyMode::sample: return "sample";
    case VerifyMode::all: return "all";
    case VerifyMode::audit: return "audit";
    case VerifyMode::quorum: return "quorum";
  }
  return "";
}

VerificationReport difference(VerificationReport now, const VerificationReport& before) {
  now.blocks -= before.blocks;
  now.checked -= before.checked;
  now.suspected -= before.suspected;
  now.cleared -= before.cleared;
  now.wrong.erase(now.wrong.begin(), now.wrong.begin() + std::ssize(before.wrong));
  now.time -= before.time;
  now.device_time -= before.device_time;
  return now;
}

double slip_probability(const Verification& terms, const VerificationReport& report) {
  std::set<DeviceId> found_out;
  for (const Finding& finding : report.wrong) {
    if (finding.checked && !finding.digest) found_out.insert(finding.device);
  }
  return 1.0 - std::pow(share_of(terms), static_cast<double>(found_out.size()));
}

double missed_share(const Verification& terms, std::int64_t blocks, double chance) {
  const double f = share_of(terms);
  if (blocks == 0) return std::isnan(f) ? f : 1.0;
  return std::min(1.0, (1.0 - std::pow(chance, 1.0 / static_cast<double>(blocks))) / f);
}

}  // namespace cleave::server
