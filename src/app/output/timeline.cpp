// Recording: cells, sums and the thinning of single spans. timeline_files.cpp writes what was recorded.
#include "output/timeline.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>

#include "cleave/base/error.hpp"

namespace cleave::app {

namespace {

constexpr std::size_t kMaxCells = 60'000;
constexpr std::int64_t kMaxCellRows = 1'024;
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

const char* errand_name(sched::Errand errand) {
  switch (errand) {
    case sched::Errand::none: return "";
    case sched::Errand::weights: return "weights";
    case sched::Errand::forward: return "forward";
    case sched::Errand::recompute: return "recomputation";
    case sched::Errand::backward: return "backward";
    case sched::Errand::replay: return "chunk again";
    case sched::Errand::sum: return "summing";
    case sched::Errand::send_sums: return "sums";
    case sched::Errand::witness: return "visit recomputed";
    case sched::Errand::witness_sums: return "digest of sums";
  }
  return "";
}

bool of_server(sched::Resource resource) {
  return resource == sched::Resource::server_out || resource == sched::Resource::server_in ||
         resource == sched::Resource::kernel;
}

}  // namespace

Timeline::Timeline(std::vector<fleet::DeviceProfile> devices, std::string clock, std::size_t max_spans)
    : devices_(std::move(devices)),
      clock_(std::move(clock)),
      max_spans_(max_spans),
      devices_per_row_(std::max<std::int64_t>(1, (fleet_size() + kMaxCellRows - 1) / kMaxCellRows)) {
  const auto rows = static_cast<std::size_t>(device_rows() + 1);
  columns_ = std::clamp(kMaxCells / rows, std::size_t{32}, std::size_t{1024}) / 2 * 2;
  cells_.resize(rows * columns_ * kLanes);
  busy_.resize(devices_.size());
  for (Kept& growing : server_) growing.end = -1;
}

Bytes Timeline::memory_of(std::int64_t devices, std::int64_t tasklets) {
  constexpr std::int64_t kSpansOfTasklet = 3;   // down, compute, up
  constexpr std::size_t kTraceEvent = 80;       // what the trace's writer holds of a span
  constexpr std::int64_t kDeviceTracks = 1000;  // bytes: three tracks with their names
  const auto spans = static_cast<std::size_t>(
      std::min<std::int64_t>(static_cast<std::int64_t>(kMaxSpans), kSpansOfTasklet * tasklets));
  // Lists double as they grow, and while they do the old one is there beside the new.
  const std::size_t lists = std::bit_ceil(spans) * (sizeof(Kept) + kTraceEvent * 3 / 2);
  const std::size_t cells = kMaxCells * sizeof(float) * kLanes;
  return Bytes(static_cast<std::int64_t>(lists + cells) + devices * kDeviceTracks);
}

std::int64_t Timeline::index_of(DeviceId device) const {
  return device.value >= 0 && device.value < fleet_size() ? device.value : fleet_size();
}

void Timeline::begin_part(std::int64_t step, bool evaluation) {
  part_ = {.number = part_number_,
           .first = step,
           .last = step,
           .evaluation = evaluation,
           .start = -1,
           .end = 0,
           .time = 0,
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
    for (const model::Operation& op : graph.operations) { names.push_back(index_of_name(op.type)); }
    graph_names_.emplace(&graph, std::move(names));
  }
}

std::int32_t Timeline::index_of_name(const std::string& name) {
  const auto [found, fresh] = name_index_.try_emplace(name, static_cast<std::int32_t>(names_.size()));
  if (fresh) names_.push_back(name);
  return found->second;
}

std::int32_t Timeline::name_of(sched::Errand errand, std::int32_t stage) {
  const auto [found, fresh] = errand_names_.try_emplace({errand, stage}, 0);
  if (fresh) found->second = index_of_name(std::string(errand_name(errand)) + ", stage " + std::to_string(stage));
  return found->second;
}

// A late answer belongs to no operation of this graph.
std::int32_t Timeline::name_of(OpId op) {
  return op.valid() ? graph_names_.at(graph_).at(static_cast<std::size_t>(op.value)) : -1;
}

void Timeline::span(const sched::Span& s) {
  const double start = s.start.value(), end = s.end.value(), length = end - start;
  end_ = std::max(end_, end);
  if (of_server(s.resource)) {
    const std::size_t which = s.resource == sched::Resource::server_out ? 0
                              : s.resource == sched::Resource::kernel   ? 1
                                                                        : 2;
    const std::int64_t server = fleet_size();
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
               .redone = false,
               .work = kBlocks};
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
    default:
      if (index_of(s.device) < fleet_size()) part_.compute_s += length;  // not a block that the server computes itself
      break;
  }
  // Panels of one tasklet that follow each other on a link are one span.
  std::pmr::vector<Kept>& open = open_[s.tasklet];
  for (Kept& earlier : open) {
    if (earlier.resource == static_cast<std::uint8_t>(s.resource) && start <= earlier.end * (1 + 1e-12)) {
      earlier.end = std::max(earlier.end, end);
      return;
    }
  }
  open.push_back({.start = start,
                  .end = end,
                  .device = index_of(s.device),
                  .name = s.errand == sched::Errand::none ? name_of(s.op) : name_of(s.errand, s.stage),
                  .part = static_cast<std::int32_t>(part_number_),
                  .resource = static_cast<std::uint8_t>(s.resource),
                  .lost = false,
                  .redone = s.redone,
                  .work = work_of(s.errand)});
}

void Timeline::settled(TaskletId tasklet, Seconds at, bool lost) {
  const auto found = open_.find(tasklet);
  if (found == open_.end()) return;
  for (Kept& s : found->second) {
    if (lost) {
      const auto hung = hung_.find(s.device);
      const double told = s.end;
      s.end = std::max(s.start, std::min({s.end, at.value(), hung == hung_.end() ? s.end : hung->second}));
      double& sum = s.resource == kDown ? part_.down_s : s.resource == kUp ? part_.up_s : part_.compute_s;
      if (s.device < fleet_size()) sum -= told - s.end;  // it was not taken for that long after all
      if (s.end <= s.start) continue;
      part_.lost_s += s.end - s.start;
    }
    s.lost = lost;
    if (s.device < fleet_size()) {
      const auto add = [&](std::size_t lane) {
        busy_[static_cast<std::size_t>(s.device)][lane] += s.end - s.start;
        add_to_cells(s.device, lane, s.start, s.end);
      };
      add(s.resource);
      if (lost) add(kLost);
      if (s.redone) add(kRedone);
      add_work(s);
    }
    keep(s);
  }
  open_.erase(found);
}

Timeline::Work Timeline::work_of(sched::Errand errand) {
  switch (errand) {
    case sched::Errand::none: return kBlocks;
    case sched::Errand::weights: return kWeights;
    case sched::Errand::sum:
    case sched::Errand::send_sums:
    case sched::Errand::witness_sums: return kOwners;
    default: return kChunks;
  }
}

void Timeline::add_work(const Kept& span) {
  if (span.work == kBlocks) return;
  if (work_cells_.empty()) work_cells_.resize(cells_.size() / kLanes * kWorkLanes);
  if (span.work == kWeights && span.resource == kDown)
    add_to(work_cells_, kWorkLanes, span.device, kWeightsDown, span.start, span.end);
  if (span.work == kOwners)
    add_to(work_cells_, kWorkLanes, span.device, std::size_t{kOwnersDown} + span.resource, span.start, span.end);
}

void Timeline::changed(DeviceId device, sched::DeviceChange change, Seconds at, double factor) {
  const std::int64_t row = index_of(device);
  if (change == sched::DeviceChange::hung) hung_[row] = at.value();
  if (change == sched::DeviceChange::left || change == sched::DeviceChange::joined) hung_.erase(row);
  if (changes_.size() < kMaxChanges) {
    changes_.push_back({at.value(), row, change, factor});
  } else {
    ++changes_left_out_;
  }
}

bool Timeline::keeps(const Kept& span) const {
  if (span.part % step_stride_ != 0) return false;
  if (span.device < fleet_size()) return span.device % device_stride_ == 0;
  return server_links_ || span.resource == static_cast<std::uint8_t>(sched::Resource::kernel);
}

void Timeline::keep(const Kept& span) {
  if (full_ || span.end <= span.start || !keeps(span)) return;
  kept_.push_back(span);
  if (kept_.size() > max_spans_) thin_out();
}

// First every other step goes; once one step alone is too much, the server's links, then every other device.
void Timeline::thin_out() {
  while (kept_.size() > max_spans_) {
    const bool several = std::any_of(kept_.begin(), kept_.end(), [&](const Kept& s) { return s.part > first_part_; }) &&
                         step_stride_ <= part_number_;
    const auto of_server =
        std::count_if(kept_.begin(), kept_.end(), [&](const Kept& s) { return s.device == fleet_size(); });
    if (several) {
      step_stride_ *= 2;
    } else if (server_links_ && static_cast<std::size_t>(of_server) * 4 > kept_.size()) {
      server_links_ = false;
    } else if (device_stride_ < fleet_size()) {
      device_stride_ *= 2;
    } else {
      full_ = true;  // one device and step alone are too much: their first spans must do
      return;
    }
    std::erase_if(kept_, [&](const Kept& s) { return !keeps(s); });
  }
}

void Timeline::widen() {
  const auto join_pairs = [&](std::vector<float>& all, std::size_t lanes) {
    for (std::size_t at = 0; at < all.size(); at += columns_ * lanes) {
      float* cells = all.data() + at;
      for (std::size_t to = 0; to < columns_; ++to) {
        for (std::size_t lane = 0; lane < lanes; ++lane) {
          float sum = 0;
          if (to < columns_ / 2) sum = cells[2 * to * lanes + lane] + cells[(2 * to + 1) * lanes + lane];
          cells[to * lanes + lane] = sum;
        }
      }
    }
  };
  join_pairs(cells_, kLanes);
  join_pairs(work_cells_, kWorkLanes);
  width_ *= 2;
}

void Timeline::add_to_cells(std::int64_t device, std::size_t lane, double start, double end) {
  while (end > width_ * static_cast<double>(columns_)) widen();
  add_to(cells_, kLanes, device, lane, start, end);
}

void Timeline::add_to(std::vector<float>& all, std::size_t lanes, std::int64_t device, std::size_t lane, double start,
                      double end) const {
  const std::int64_t row = device == fleet_size() ? device_rows() : device / devices_per_row_;
  float* cells = all.data() + static_cast<std::size_t>(row) * columns_ * lanes;
  for (auto column = static_cast<std::size_t>(start / width_); column < columns_; ++column) {
    const double from = std::max(start, static_cast<double>(column) * width_);
    const double to = std::min(end, static_cast<double>(column + 1) * width_);
    if (to > from) cells[column * lanes + lane] += static_cast<float>(to - from);
    if (end <= static_cast<double>(column + 1) * width_) break;
  }
}

void Timeline::end_part(const sched::StepReport* report) {
  for (Kept& growing : server_) {
    if (growing.end >= 0) keep(growing);
    growing.end = -1;
  }
  if (part_.start < 0) part_.start = end_;
  part_.time = report != nullptr ? report->time.value() : std::max(0.0, end_ - part_.start);
  part_.end = part_.start + part_.time;
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

// The older half is merged in pairs, steps with steps and evaluations with evaluations; sums stay exact.
void Timeline::merge_parts() {
  std::vector<Part> merged;
  std::array<std::optional<std::size_t>, 2> single;  // of each kind: where one waits for the next
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    std::optional<std::size_t>& waiting = single[part.evaluation ? 1 : 0];
    if (i > parts_.size() / 2 || !waiting) {
      waiting = merged.size();
      merged.push_back(part);
      continue;
    }
    Part& first = merged[*waiting];
    first.last = part.last;
    first.end = part.end;
    first.time += part.time;
    first.bytes_down += part.bytes_down;
    first.bytes_up += part.bytes_up;
    first.down_s += part.down_s;
    first.compute_s += part.compute_s;
    first.up_s += part.up_s;
    first.lost_s += part.lost_s;
    waiting.reset();
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
