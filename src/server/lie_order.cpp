// From kinds of lies to orders on the wire.
#include "lie_order.hpp"

#include <array>

#include "cleave/base/random.hpp"

namespace cleave::server {

namespace {

using comm::Lie;
using fleet::LieKind;

constexpr std::uint32_t kSeed = 0x5EED;
constexpr std::array kLies{Lie::element, Lie::bit,  Lie::swap_rows, Lie::zero,
                           Lie::stale,   Lie::bias, Lie::nan,       Lie::infinity};

Lie lie_of(LieKind kind, const Random& draw) {
  if (kind == LieKind::colluding) return Lie::element;
  if (kind == LieKind::mixed) return kLies[draw.below(1, kLies.size())];
  return kLies[static_cast<std::size_t>(kind)];
}

}  // namespace

LieOrder order_lie(const std::optional<fleet::Lying>& lying, const sched::Tasklet& tasklet) {
  if (!lying) return {};
  const auto id = static_cast<std::uint32_t>(tasklet.id.value);
  const Random draw(kSeed, Purpose::churn, id);
  if (draw.uniform(0) >= lying->share) return {};
  std::uint32_t seed = kSeed + id;
  if (lying->kind == LieKind::colluding) {
    const plan::TaskletPlan& piece = tasklet.piece;
    seed = kSeed + static_cast<std::uint32_t>(tasklet.op.value * 31 + piece.box.m0 * 7 + piece.box.n0 * 5 +
                                              piece.box.k0 * 3 + piece.pairs.pair0);
  }
  return {lie_of(lying->kind, draw), seed};
}

}  // namespace cleave::server
