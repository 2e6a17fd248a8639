// Timeline: what every device did and when, in bounded memory: the source of timeline.json and trace.json.
//
// It listens to a fleet (sched::Observer). Everything goes into coarse cells (device x time, width doubling as the run
// grows) and into exact sums per step; single spans are kept for some steps and some devices only, and the files say
// for how many. Times are the fleet's own.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cleave/base/kept_memory.hpp"
#include "cleave/fleet/profile.hpp"
#include "cleave/sched/fleet.hpp"
#include "cleave/sched/observer.hpp"
#include "cleave/sched/scheduler.hpp"

namespace cleave::app {

class Timeline final : public sched::Observer {
 public:
  static constexpr std::size_t kMaxSpans = 48'000;  ///< that are kept

  /// `clock` says whose times these are: virtual, wall or off.
  explicit Timeline(std::vector<fleet::DeviceProfile> devices, std::string clock = "virtual",
                    std::size_t max_spans = kMaxSpans);

  /// About the most memory that the timeline of a fleet takes after so many tasklets, with the trace made of it.
  [[nodiscard]] static Bytes memory_of(std::int64_t devices, std::int64_t tasklets);

  /// What follows belongs to update `step` (1-based), or to the evaluation after it.
  void begin_part(std::int64_t step, bool evaluation);
  /// The part is over; its operations' times are counted when it was a training step.
  void end_part(const sched::StepReport* report);
  /// Figures of the devices at the end; the last call counts.
  void finish(std::span<const sched::Usage> usage, Bytes server_memory_predicted, Bytes server_activations_peak);

  void begin(const model::StepGraph& graph, Seconds at) override;
  void span(const sched::Span& span) override;
  void settled(TaskletId tasklet, Seconds at, bool lost) override;
  void changed(DeviceId device, sched::DeviceChange change, Seconds at, double factor) override;

  /// The data of the report (docs/report.md). Errors: EnvironmentError.
  void store(const std::filesystem::path& path) const;
  /// The kept spans for Perfetto and chrome://tracing. Errors: EnvironmentError.
  void store_trace(const std::filesystem::path& path) const;

 private:
  enum Lane : std::uint8_t { kDown, kCompute, kUp, kLost, kRedone, kLanes };
  /// What a device does in a step in stages; the lanes hold its share of the first three of the others. What of them is
  /// neither weights nor owners' is chunks'.
  enum Work : std::uint8_t { kBlocks, kChunks, kWeights, kOwners };
  enum WorkLane : std::uint8_t { kWeightsDown, kOwnersDown, kOwnersCompute, kOwnersUp, kWorkLanes };
  struct Kept {
    double start, end;
    std::int64_t device;  // index; the number of devices is the server
    std::int32_t name;
    std::int32_t part;
    std::uint8_t resource;
    bool lost, redone;
    Work work = kBlocks;
  };
  struct Part {  // a step or an evaluation; neighbours of one kind are merged in a long run
    std::int64_t number, first, last;
    bool evaluation;
    double start, end, time;
    std::int64_t bytes_down, bytes_up;
    double down_s, compute_s, up_s, lost_s;
  };
  struct Change {
    double at;
    std::int64_t device;
    sched::DeviceChange kind;
    double factor;
  };
  struct OperationSum {
    std::string kind, phase;
    std::int64_t count = 0;
    double time_s = 0, planned_s = 0, bound_s = 0;
  };

  struct Group {  // devices of one profile
    std::string name;
    std::int64_t count = 0, used = 0;
    std::array<double, kLanes> busy{};
    std::int64_t bytes_down = 0, bytes_up = 0, tasklets = 0, memory_peak = 0;
    double energy = 0;
  };

  void add_devices(nlohmann::ordered_json& out) const;
  [[nodiscard]] std::int64_t index_of(DeviceId device) const;
  [[nodiscard]] std::int64_t fleet_size() const { return static_cast<std::int64_t>(devices_.size()); }
  [[nodiscard]] std::int64_t device_rows() const { return (fleet_size() + devices_per_row_ - 1) / devices_per_row_; }
  [[nodiscard]] std::int32_t name_of(OpId op);
  [[nodiscard]] static Work work_of(sched::Errand errand);
  [[nodiscard]] std::int32_t name_of(sched::Errand errand, std::int32_t stage);
  std::int32_t index_of_name(const std::string& name);
  void keep(const Kept& span);
  [[nodiscard]] bool keeps(const Kept& span) const;
  void thin_out();
  void add_to_cells(std::int64_t device, std::size_t lane, double start, double end);
  void add_to(std::vector<float>& cells, std::size_t lanes, std::int64_t device, std::size_t lane, double start,
              double end) const;
  // After its resource's cells were added to, which are as wide.
  void add_work(const Kept& span);
  void widen();
  void merge_parts();

  std::vector<fleet::DeviceProfile> devices_;
  std::string clock_;
  std::size_t max_spans_;
  std::int64_t devices_per_row_;  // neighbours share a row of cells in a fleet that is larger than any screen
  std::size_t columns_;
  double width_ = 1e-6;
  std::vector<float> cells_;                      // [row][column][lane]; the last row is the server's: out, kernel, in
  std::vector<float> work_cells_;                 // the same of WorkLane; empty until something is done in stages
  std::vector<std::array<double, kLanes>> busy_;  // seconds for which each device's resources were taken
  NodePool nodes_;
  std::pmr::unordered_map<TaskletId, std::pmr::vector<Kept>> open_{&nodes_};
  std::map<std::int64_t, double> hung_;
  std::vector<Kept> kept_;
  bool full_ = false;
  std::array<Kept, 3> server_{};  // its last span of each resource, still growing
  bool server_links_ = true;      // single uses of the server's interface are kept
  std::int64_t step_stride_ = 1, device_stride_ = 1, part_number_ = 0, first_part_ = 0;
  std::vector<Part> parts_;
  Part part_{};
  double end_ = 0;
  std::vector<Change> changes_;
  std::int64_t changes_left_out_ = 0;
  const model::StepGraph* graph_ = nullptr;
  std::vector<std::string> names_;
  std::map<std::string, std::int32_t> name_index_;
  std::map<std::pair<sched::Errand, std::int32_t>, std::int32_t> errand_names_;
  std::unordered_map<const model::StepGraph*, std::vector<std::int32_t>> graph_names_;
  std::map<std::string, OperationSum> operations_;
  std::int64_t counted_steps_ = 0;
  std::vector<sched::Usage> usage_;
  Bytes server_predicted_, server_peak_;
};

}  // namespace cleave::app
