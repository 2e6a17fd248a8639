// From kinds of injected faults to orders on the wire.
#include "injected_fault.hpp"

#include <array>

#include "cleave/base/random.hpp"

namespace cleave::server {

namespace {

using comm::InjectedFault;
using fleet::InjectedFaultKind;

constexpr std::uint32_t kSeed = 0x5EED;
constexpr std::array kFaults{InjectedFault::element, InjectedFault::bit,     InjectedFault::swap_rows,
                             InjectedFault::zero,    InjectedFault::stale,   InjectedFault::bias,
                             InjectedFault::nan,     InjectedFault::infinity};

InjectedFault fault_of(InjectedFaultKind kind, const Random& draw) {
  if (kind == InjectedFaultKind::colluding) return InjectedFault::element;
  if (kind == InjectedFaultKind::other) return InjectedFault::other;
  if (kind == InjectedFaultKind::huge) return InjectedFault::huge;
  if (kind == InjectedFaultKind::false_digest) return InjectedFault::bit;  // of the block that is digested
  if (kind == InjectedFaultKind::mixed) return kFaults[draw.below(1, kFaults.size())];
  return kFaults[static_cast<std::size_t>(kind)];
}

}  // namespace

FaultOrder order_fault(const std::optional<fleet::InjectedFaults>& faults, const sched::Tasklet& tasklet) {
  if (!faults) return {};
  if (faults->kind == InjectedFaultKind::false_digest && !tasklet.is_witness()) return {};
  auto seed = kSeed + static_cast<std::uint32_t>(tasklet.id.value);
  if (faults->kind == InjectedFaultKind::colluding && tasklet.is_run()) {
    const sched::StageItem& item = tasklet.item;
    if (!item.begins) return {};
    seed = kSeed + static_cast<std::uint32_t>(tasklet.stage * 31 + item.sequence * 7 + (item.back ? 3 : 0));
  } else if (faults->kind == InjectedFaultKind::colluding) {
    const plan::TaskletPlan& piece = tasklet.piece;
    seed = kSeed + static_cast<std::uint32_t>(tasklet.op.value * 31 + piece.box.m0 * 7 + piece.box.n0 * 5 +
                                              piece.box.k0 * 3 + piece.pairs.pair0);
  }
  const Random draw(kSeed, Purpose::churn, seed);
  if (draw.uniform(0) >= faults->share) return {};
  return {fault_of(faults->kind, draw), seed};
}

}  // namespace cleave::server
