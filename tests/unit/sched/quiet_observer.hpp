// An observer for tests, which override what they watch.
#pragma once

#include "cleave/sched/observer.hpp"

namespace cleave::sched {

/// Does nothing with what it is told, and asks for no spans.
class QuietObserver : public Observer {
 public:
  void begin(const model::StepGraph& /*graph*/, Seconds /*at*/) override {}
  [[nodiscard]] bool wants_spans() const override { return false; }
  void span(const Span& /*span*/) override {}
  void settled(TaskletId /*tasklet*/, Seconds /*at*/, bool /*lost*/) override {}
  void changed(DeviceId /*device*/, DeviceChange /*change*/, Seconds /*at*/, double /*factor*/) override {}
};

}  // namespace cleave::sched
