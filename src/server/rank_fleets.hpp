// The two fleets behind a transport, one a file; make_rank_fleet() chooses by the clock.
#pragma once

#include <memory>

#include "rank_fleet.hpp"

namespace cleave::server {

/// Modelled completion times order the events (clocks `virtual` and `wall`).
[[nodiscard]] std::unique_ptr<RankFleet> make_modelled_fleet(comm::Transport& transport, Executor& executor,
                                                             const sched::StepSpec& spec, const FleetTerms& terms);
/// Answers are events in the order in which they arrive (clock `off`).
[[nodiscard]] std::unique_ptr<RankFleet> make_live_fleet(comm::Transport& transport, Executor& executor,
                                                         const sched::StepSpec& spec, const FleetTerms& terms);

}  // namespace cleave::server
