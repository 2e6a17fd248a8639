// The three states of a device.
#include "recovery/breaker.hpp"

#include <algorithm>

namespace cleave::sched {

void Breaker::failed(DeviceId device, Seconds now) {
  State& state = states_[device];
  if (state.open) return;
  const bool half_open = state.pause.value() > 0;
  if (++state.failures < kFailuresInARow && !half_open) return;
  state.pause = half_open ? std::min(state.pause * 2.0, kLongestPause) : kFirstPause;
  state.until = now + state.pause;
  state.open = true;
  ++open_;
  ++version_;
}

void Breaker::answered(DeviceId device) {
  if (states_.empty()) return;
  const auto found = states_.find(device);
  if (found == states_.end() || found->second.open) return;  // a late answer ends no pause
  states_.erase(found);
}

void Breaker::advance(Seconds now) {
  if (open_ == 0) return;
  for (auto& [device, state] : states_) {
    if (!state.open || state.until > now) continue;
    state.open = false;
    --open_;
    ++version_;
  }
}

bool Breaker::leaves_out(DeviceId device) const {
  if (open_ == 0) return false;
  const auto found = states_.find(device);
  return found != states_.end() && found->second.open;
}

}  // namespace cleave::sched
