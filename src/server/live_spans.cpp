// From moments on the server and durations on the device to spans.
#include "live_spans.hpp"

#include <algorithm>

namespace cleave::server {

using sched::Resource;

LiveSpans::LiveSpans(sched::Observer* observer, std::size_t devices) : observer_(observer), free_(devices) {}

void LiveSpans::begin(const model::StepGraph& graph, Seconds at) {
  if (observer_ == nullptr) return;
  open_.clear();
  observer_->begin(graph, at);
}

void LiveSpans::tell(const sched::Tasklet& tasklet, Resource resource, Seconds start, Seconds end, Bytes bytes) {
  const bool of_device = resource == Resource::down || resource == Resource::compute || resource == Resource::up;
  Seconds& free = of_device
                      ? free_[static_cast<std::size_t>(tasklet.piece.device.value)][static_cast<std::size_t>(resource)]
                  : resource == Resource::server_out ? server_free_[0]
                                                     : server_free_[1];
  start = std::max(start, free);
  end = std::max(start, end);
  free = end;
  observer_->span(sched::span_of(tasklet, resource, start, end, bytes));
}

void LiveSpans::sent(const sched::Tasklet& tasklet, Seconds begun, Seconds sent) {
  if (observer_ == nullptr) return;
  open_.insert_or_assign(tasklet.id, Open{tasklet, sent});
  tell(tasklet, Resource::server_out, begun, sent, tasklet.piece.bytes_down);
}

void LiveSpans::answered(const sched::Tasklet& tasklet, const comm::Header& result, Seconds at) {
  if (observer_ == nullptr) return;
  const auto found = open_.find(tasklet.id);
  if (found == open_.end()) return;
  const Seconds sent = found->second.sent;
  const plan::TaskletPlan& piece = tasklet.piece;
  // A device may say what it likes, but had no more time than that.
  const Seconds all = std::max(Seconds(0), at - sent), there = std::min(result.computed, all), ways = all - there;
  const auto down = static_cast<double>(piece.bytes_down.value()), up = static_cast<double>(piece.bytes_up.value());
  const Seconds arrived = sent + ways * (down + up > 0 ? down / (down + up) : 0.0);
  const Seconds computed = arrived + there;
  tell(tasklet, Resource::down, sent, arrived, piece.bytes_down);
  tell(tasklet, Resource::compute, std::max(arrived, computed - result.compute), computed, Bytes(0));
  tell(tasklet, Resource::up, computed, at, piece.bytes_up);
  open_.erase(found);
  observer_->settled(tasklet.id, at, false);
}

void LiveSpans::placed(const sched::Tasklet& tasklet, Seconds begun, Seconds end) {
  if (observer_ != nullptr) tell(tasklet, Resource::server_in, begun, end, tasklet.piece.bytes_up);
}

// What the device did for it is not known: it is told as computing from when it was sent.
void LiveSpans::lost(TaskletId tasklet, Seconds at) {
  if (observer_ == nullptr) return;
  const auto found = open_.find(tasklet);
  if (found == open_.end()) return;
  tell(found->second.tasklet, Resource::compute, found->second.sent, at, Bytes(0));
  open_.erase(found);
  observer_->settled(tasklet, at, true);
}

void LiveSpans::lost_with(DeviceId device, Seconds at) {
  std::vector<TaskletId> held;
  for (const auto& [id, open] : open_) {
    if (open.tasklet.piece.device == device) held.push_back(id);
  }
  std::sort(held.begin(), held.end());
  for (const TaskletId id : held) lost(id, at);
}

void LiveSpans::changed(DeviceId device, sched::DeviceChange change, Seconds at, double factor) {
  if (observer_ != nullptr) observer_->changed(device, change, at, factor);
}

void LiveSpans::computed_here(const sched::Tasklet& tasklet, Seconds start, Seconds end) {
  if (observer_ == nullptr) return;
  observer_->span({.device = kServerDevice,
                   .resource = Resource::compute,
                   .start = start,
                   .end = end,
                   .op = tasklet.op,
                   .tasklet = tasklet.id,
                   .bytes = Bytes(0),
                   .redone = tasklet.redone});
  observer_->settled(tasklet.id, end, false);
}

void LiveSpans::kernel(OpId op, Seconds start, Seconds end) {
  if (observer_ == nullptr) return;
  start = std::max(start, server_free_[2]);
  end = std::max(start, end);
  server_free_[2] = end;
  observer_->span({.device = kServerDevice,
                   .resource = Resource::kernel,
                   .start = start,
                   .end = end,
                   .op = op,
                   .tasklet = {},
                   .bytes = Bytes(0)});
}

}  // namespace cleave::server
