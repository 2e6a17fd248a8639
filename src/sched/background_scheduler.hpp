// BackgroundScheduler: plans for operations that nothing urgent waits for, on few devices each, for as long as the
// critical path lasts.
//
// With links as the limit, an operation on 1/g of the fleet moves g^(-1/3) of the bytes. So what is off the critical
// path of urgent operations is given as few devices as finish it before the critical path ends: those with least such
// work in hand, each with what the critical path leaves over of its links and of its memory, and in panels so short
// that the critical path hardly waits for one. Towards the end of the critical path that takes more and more devices,
// and at last the whole fleet.
#pragma once

#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan_cache.hpp"
#include "residency/device_partitions.hpp"
#include "work_hash.hpp"

namespace cleave::sched {

class BackgroundScheduler {
 public:
  /// `plans`, of the operations on the whole fleet, and `partitions` must outlive it.
  BackgroundScheduler(PlanCache& plans, const DevicePartitions& partitions, const plan::PlanOptions& options);

  /// A new step: no critical path, and nothing in hand.
  void begin();
  /// One more operation of the critical path, still to be done; `partition` where it belongs to one.
  void expect(const plan::Work& work, std::optional<std::size_t> partition = {});
  /// One of them is complete.
  void done(const plan::Work& work, std::optional<std::size_t> partition = {});

  /// A plan that ends with the critical path; none where that takes the whole fleet. The devices then have it in hand.
  [[nodiscard]] std::optional<plan::OperationPlan> plan(const plan::Work& work, Seconds now);
  /// For how long what is left of the critical path takes the fleet.
  [[nodiscard]] Seconds critical_path_time() { return left().time; }
  /// For how long, from `now`, a device has deferrable work in hand, as planned.
  [[nodiscard]] Seconds in_hand(DeviceId device, Seconds now) const;

 private:
  // What is left of the critical path: for how long it, and one of its operations, takes the fleet, and which share of
  // all links it uses meanwhile.
  struct Left {
    Seconds time{0}, operation{0};
    double down = 0, up = 0;
  };
  [[nodiscard]] Left left();
  // Shares of links that deferrable work is given.
  [[nodiscard]] static double left_of_down(const Left& path);
  [[nodiscard]] static double left_of_up(const Left& path);
  // The devices as deferrable work finds them, those with least in hand first.
  [[nodiscard]] std::vector<plan::DeviceState> devices_beside(const Left& path, Seconds now);
  [[nodiscard]] bool is_hopeless(const plan::Work& work, const Left& path, Seconds now) const;
  [[nodiscard]] bool has_in_hand(Seconds now) const;
  void renew_fleet();
  [[nodiscard]] Seconds link_time(const plan::OperationPlan& plan) const;
  [[nodiscard]] Seconds least_link_time(const plan::Work& work, Bytes memory) const;

  struct CriticalPart {
    plan::Work work;
    std::optional<std::size_t> partition;
    std::int64_t count = 0;  // that are left
  };
  [[nodiscard]] std::vector<CriticalPart>::iterator find(const plan::Work& work, std::optional<std::size_t> partition);
  [[nodiscard]] const plan::OperationPlan& plan_of(const CriticalPart& part);

  PlanCache& plans_;
  const DevicePartitions& partitions_;
  plan::PlanOptions options_;
  std::vector<CriticalPart> critical_path_;
  std::unordered_map<DeviceId, Seconds> until_;  // deferrable work in hand
  // Devices that the last operation of a shape got: the critical path gets shorter, so the next one hardly needs fewer.
  std::unordered_map<plan::Work, std::size_t, WorkHash> fewest_;
  // Shapes of which every plan moved far more than is worthwhile, and what was left of the critical path then. Where
  // devices have little memory that is every shape, and plans of hundreds of blocks would be made for each operation.
  std::unordered_map<plan::Work, Left, WorkHash> hopeless_;
  // For plans of version_: memory that the critical path leaves over, and joint rates.
  std::unordered_map<DeviceId, Bytes> memory_;
  BytesPerSecond downlink_, uplink_;
  std::uint64_t version_ = 0;
};

}  // namespace cleave::sched
