// When devices leave, join, hang, slow down or begin to return wrong results: a trace, from a file or drawn from a
// generator.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "cleave/base/ids.hpp"
#include "cleave/base/units.hpp"

namespace cleave::fleet {

enum class ChurnKind : std::uint8_t {
  leave,   ///< gone at once, with whatever it holds
  join,    ///< back, empty-handed; a device that was slowed is as slow as before
  slow,    ///< every rate is multiplied by `factor` from now on; 1 restores it
  hang,    ///< keeps its connection but answers nothing until it joins again
  faulty,  ///< from now on its results are wrong with probability `factor`
};

/// In which way the results are wrong that a device is told to return.
enum class InjectedFaultKind : std::uint8_t {
  element,       ///< one element far off
  bit,           ///< one bit of one element flipped, of any significance
  swap_rows,     ///< two rows exchanged
  zero,          ///< all zero
  stale,         ///< the block of the same operation from an earlier step
  bias,          ///< every element off by a small random amount of its own size
  nan,           ///< one element not a number
  infinity,      ///< one element infinite
  colluding,     ///< one element far off, the same one by the same amount on every device that is given the block
  mixed,         ///< any of the above but the last, drawn per block
  other,         ///< the honest block of another tasklet of the same shape
  false_digest,  ///< blocks are honest, digests of other devices' blocks are not
  huge,          ///< one element finite, and so large that nobody can compute with it
};

/// Kinds of injected faults by the names that inputs have for them.
inline constexpr std::pair<const char*, InjectedFaultKind> kInjectedFaultNames[] = {
    {"element", InjectedFaultKind::element},
    {"bit", InjectedFaultKind::bit},
    {"swap_rows", InjectedFaultKind::swap_rows},
    {"zero", InjectedFaultKind::zero},
    {"stale", InjectedFaultKind::stale},
    {"bias", InjectedFaultKind::bias},
    {"nan", InjectedFaultKind::nan},
    {"infinity", InjectedFaultKind::infinity},
    {"colluding", InjectedFaultKind::colluding},
    {"mixed", InjectedFaultKind::mixed},
    {"other", InjectedFaultKind::other},
    {"false_digest", InjectedFaultKind::false_digest},
    {"huge", InjectedFaultKind::huge}};
[[nodiscard]] constexpr const char* name_of(InjectedFaultKind kind) {
  for (const auto& [name, named] : kInjectedFaultNames) {
    if (named == kind) return name;
  }
  return "";
}

/// What a device is told to return wrongly: in which way, and in what share of its results.
struct InjectedFaults {
  InjectedFaultKind kind = InjectedFaultKind::element;
  double share = 1.0;
};

/// One change of one device.
struct ChurnEvent {
  Seconds at;  ///< emulated time
  DeviceId device;
  ChurnKind kind = ChurnKind::leave;
  double factor = 1.0;                                   ///< slow, faulty: see ChurnKind
  InjectedFaultKind fault = InjectedFaultKind::element;  ///< faulty: in which way
};

/// Events in order of time, then device.
using ChurnTrace = std::vector<ChurnEvent>;

/// Settings of the generator: sessions and absences are exponential with these means.
struct ChurnModel {
  Seconds mean_session{0};  ///< 0: devices never leave
  Seconds mean_absence{600};
  double slow_fraction = 0;  ///< share of devices that run at slow_factor from the start, unannounced
  double slow_factor = 0.1;
  double faulty_fraction = 0;  ///< share of devices whose results are wrong
  InjectedFaults faults{};     ///< how, and in what share of them
  std::uint64_t seed = 1;
};

/// Draws the events of `devices` devices up to `horizon`. Device d's events depend on (seed, d) only.
[[nodiscard]] ChurnTrace draw_churn(const ChurnModel& model, std::int64_t devices, Seconds horizon);

}  // namespace cleave::fleet
