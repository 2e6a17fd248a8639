// A fleet that counts how often it is asked for an event, for tests of steps that might not end.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "cleave/sched/forwarding_fleet.hpp"

namespace cleave::sched {

class AskedOften : public ForwardingFleet<> {
 public:
  using ForwardingFleet::ForwardingFleet;

  Event next_event(Seconds deadline) override {
    if (++asked > 2'000'000) throw std::runtime_error("the step does not end");
    return ForwardingFleet::next_event(deadline);
  }

  std::int64_t asked = 0;
};

}  // namespace cleave::sched
