// Recording: cells, sums and the thinning of single spans. timeline_files.cpp writes what was recorded.
#include "timeline.hpp"

#include <algorithm>
#include <limits>

#include "cleave/base/error.hpp"

namespace cleave::app {

namespace {

constexpr std::size_t kMaxCells = 60'000;
constexpr std::size_t kMaxParts = 2'000;
constexpr std::size_t kMaxChanges = 4'000;

const char* phase_name(model::Phase phase) {
  switch (phase) {
    case model::Phase::forward: return "forward";
    case model::Phase::input_gradient: return "input gradient";
    case model::Phase::weight_gradient: return "weight gradient";
    case model::Phase::update: return "update";
  }
  return "";
}

bool of_server(sched::Resource resource) {
  return resource == sched::Resource::server_out || resource == sched::Resource::server_in ||
         resource == sched::Resource::kernel;
}

}  // namespace

Timeline::Timeline(std::vector<fleet::DeviceProfile> devices, std::size_t max_spans)
    : devices_(std::move(devices)),
      max_spans_(max_spans),
      columns_(std::clamp(kMaxCells / (devices_.size() + 1), std::size_t{32}, std::size_t{1024}) / 2 * 2),
      cells_((devices_.size() + 1) * columns_ * kLanes) {
  for (Kept& growing : server_) growing.end = -1;
}

std::int64_t Timeline::row_of(DeviceId device) const {
  const auto rows = static_cast<std::int64_t>(devices_.size());
  return device.value >= 0 && device.value < rows ? device.value : rows;
}

void Timeline::begin_part(std::int64_t step, bool evaluation) {
  part_ = {.first = step,
           .last = step,
           .evaluation = evaluation,
           .start = -1,
           .end = 0,
           .bytes_down = 0,
           .bytes_up = 0,
           .down_s = 0,
           .compute_s = 0,
           .up_s = 0,
           .lost_s = 0};
}

void Timeline::begin(const model::StepGraph& graph, Seconds at) {
  graph_ = &graph;
  if (part_.start < 0) part_.start = at.value();
  if (!graph_names_.contains(&graph)) {
    std::vector<std::int32_t> names;
    for (const model::Operation& op : graph.operations) {
      const auto [found, fresh] = name_index_.try_emplace(op.type, static_cast<std::int32_t>(names_.size()));
      if (fresh) names_.push_back(op.type);
      names.push_back(found->second);
    }
    graph_names_.emplace(&graph, std::move(names));
  }
}

std::int32_t Timeline::name_of(OpId op) { return graph_names_.at(graph_).at(static_cast<std::size_t>(op.value)); }

void Timeline::span(const sched::Span& s) {
  const double start = s.start.value(), end = s.end.value(), length = end - start;
  end_ = std::max(end_, end);
  if (of_server(s.resource)) {
    const std::size_t which = s.resource == sched::Resource::server_out ? 0
                              : s.resource == sched::Resource::kernel   ? 1
                                                                        : 2;
    const auto server = static_cast<std::int64_t>(devices_.size());
    add_to_cells(server, which, start, end);
    Kept& growing = server_[which];
    const std::int32_t name = which == 1 ? name_of(s.op) : -1;
    if (growing.end >= 0 && growing.name == name && start <= growing.end * (1 + 1e-12)) {
      growing.end = std::max(growing.end, end);
      return;
    }
    if (growing.end >= 0) keep(growing);
    growing = {.start = start,
               .end = end,
               .device = server,
               .name = name,
               .part = static_cast<std::int32_t>(part_number_),
               .resource = static_cast<std::uint8_t>(s.resource),
               .lost = false,
               .redone = false};
    return;
  }
  switch (s.resource) {
    case sched::Resource::down:
      part_.bytes_down += s.bytes.value();
      part_.down_s += length;
      break;
    case sched::Resource::up:
      part_.bytes_up += s.bytes.value();
      part_.up_s += length;
      break;
    default: part_.compute_s += length; break;
  }
  // Panels of one tasklet that follow each other on a link are one span.
  std::vector<Kept>& open = open_[s.tasklet];
  for (Kept& earlier : open) {
    if (earlier.resource == static_cast<std::uint8_t>(s.resource) && start <= earlier.end * (1 + 1e-12)) {
      earlier.end = std::max(earlier.end, end);
      return;
    }
  }
  open.push_back({.start = start,
                  .end = end,
                  .device = row_of(s.device),
                  .name = name_of(s.op),
                  .part = static_cast<std::int32_t>(part_number_),
                  .resource = static_cast<std::uint8_t>(s.resource),
                  .lost = false,
                  .redone = s.redone});
}

void Timeline::settled(TaskletId tasklet, Seconds at, bool lost) {
  const auto found = open_.find(tasklet);
  if (found == open_.end()) return;
  for (Kept& s : found->second) {
    if (lost) {
      const auto hung = hung_.find(s.device);
      s.end = std::min(s.end, hung == hung_.end() ? at.value() : std::min(at.value(), hung->second));
      if (s.end <= s.start) continue;
      part_.lost_s += s.end - s.start;
    }
    s.lost = lost;
    if (s.device < static_cast<std::int64_t>(devices_.size())) {
      add_to_cells(s.device, s.resource, s.start, s.end);
      if (lost) add_to_cells(s.device, kLost, s.start, s.end);
      if (s.redone) add_to_cells(s.device, kRedone, s.start, s.end);
    }
    keep(s);
  }
  open_.erase(found);
}

void Timeline::changed(DeviceId device, sched::DeviceChange change, Seconds at, double factor) {
  const std::int64_t row = row_of(device);
  if (change == sched::DeviceChange::hung) hung_[row] = at.value();
  if (change == sched::DeviceChange::left || change == sched::DeviceChange::joined) hung_.erase(row);
  if (changes_.size() < kMaxChanges) {
    changes_.push_back({at.value(), row, change, factor});
  } else {
    ++changes_left_out_;
  }
}

void Timeline::keep(const Kept& span) {
  if (full_ || span.part % step_stride_ != 0) return;
  if (span.device < static_cast<std::int64_t>(devices_.size()) && span.device % device_stride_ != 0) return;
  kept_.push_back(span);
  if (kept_.size() > max_spans_) thin_out();
}

// First every other step goes; once one step alone is too much, every other device.
void Timeline::thin_out() {
  while (kept_.size() > max_spans_) {
    const bool several = std::any_of(kept_.begin(), kept_.end(), [&](const Kept& s) { return s.part > first_part_; }) &&
                         step_stride_ <= part_number_;
    if (several) {
      step_stride_ *= 2;
    } else if (device_stride_ < static_cast<std::int64_t>(devices_.size())) {
      device_stride_ *= 2;
    } else {
      full_ = true;  // one device and step alone are too much: their first spans must do
      return;
    }
    std::erase_if(kept_, [&](const Kept& s) {
      return s.part % step_stride_ != 0 ||
             (s.device < static_cast<std::int64_t>(devices_.size()) && s.device % device_stride_ != 0);
    });
  }
}

void Timeline::widen() {
  for (std::size_t row = 0; row <= devices_.size(); ++row) {
    float* cells = cells_.data() + row * columns_ * kLanes;
    for (std::size_t to = 0; to < columns_; ++to) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        float sum = 0;
        if (to < columns_ / 2) sum = cells[2 * to * kLanes + lane] + cells[(2 * to + 1) * kLanes + lane];
        cells[to * kLanes + lane] = sum;
      }
    }
  }
  width_ *= 2;
}

void Timeline::add_to_cells(std::int64_t row, std::size_t lane, double start, double end) {
  while (end > width_ * static_cast<double>(columns_)) widen();
  float* cells = cells_.data() + static_cast<std::size_t>(row) * columns_ * kLanes;
  for (auto column = static_cast<std::size_t>(start / width_); column < columns_; ++column) {
    const double from = std::max(start, static_cast<double>(column) * width_);
    const double to = std::min(end, static_cast<double>(column + 1) * width_);
    if (to > from) cells[column * kLanes + lane] += static_cast<float>(to - from);
    if (end <= static_cast<double>(column + 1) * width_) break;
  }
}

void Timeline::end_part(const sched::StepReport* report) {
  for (Kept& growing : server_) {
    if (growing.end >= 0) keep(growing);
    growing.end = -1;
  }
  part_.end = report != nullptr ? part_.start + report->time.value() : end_;
  if (report != nullptr && graph_ != nullptr) {
    ++counted_steps_;
    for (const sched::OperationTiming& timing : report->operations) {
      const model::Operation& op = graph_->operation(timing.op);
      OperationSum& sum = operations_[op.type];
      sum.kind = model::name_of(op.kind);
      sum.phase = phase_name(op.phase);
      ++sum.count;
      sum.time_s += (timing.end - timing.start).value();
      sum.planned_s += timing.planned.value();
      sum.bound_s += timing.lower_bound.value();
    }
  }
  parts_.push_back(part_);
  ++part_number_;
  if (parts_.size() > kMaxParts) merge_parts();
}

// Neighbours of one kind become one; sums stay exact.
void Timeline::merge_parts() {
  std::vector<Part> merged;
  for (const Part& part : parts_) {
    Part* last = merged.empty() ? nullptr : &merged.back();
    const bool joins = last != nullptr && last->evaluation == part.evaluation &&
                       (merged.size() * 2 > static_cast<std::size_t>(&part - parts_.data()));
    if (!joins) {
      merged.push_back(part);
      continue;
    }
    last->last = part.last;
    last->end = part.end;
    last->bytes_down += part.bytes_down;
    last->bytes_up += part.bytes_up;
    last->down_s += part.down_s;
    last->compute_s += part.compute_s;
    last->up_s += part.up_s;
    last->lost_s += part.lost_s;
  }
  parts_ = std::move(merged);
}

void Timeline::finish(std::span<const sched::Usage> usage, Bytes server_memory_predicted,
                      Bytes server_activations_peak) {
  std::vector<TaskletId> left_over;
  for (const auto& [tasklet, spans] : open_) left_over.push_back(tasklet);
  std::sort(left_over.begin(), left_over.end());
  for (const TaskletId tasklet : left_over) settled(tasklet, Seconds(end_), false);
  usage_.assign(usage.begin(), usage.end());
  server_predicted_ = server_memory_predicted;
  server_peak_ = server_activations_peak;
}

}  // namespace cleave::app
