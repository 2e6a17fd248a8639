// The thread that computes: takes tasks in the order in which they came, but for visits that are recomputed for
// another device, which wait while the step's own do not. Hands back results, and never touches the transport.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>

#include "cleave/base/clock.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/kernels/parallel.hpp"
#include "stage_device.hpp"
#include "streamed_product.hpp"

namespace cleave::device {

/// What a device holds no more: an owner's slices, or a stage's weights; the other one is negative.
struct Dropped {
  std::int32_t owner = -1, stage = -1;
};

/// A task that has been accepted. `view` looks into `frame` and, for B, into the frame that brought it: of the first
/// part, or of columns that were kept.
struct Job {
  comm::Frame frame;
  std::shared_ptr<const comm::Frame> first_part, columns;
  std::shared_ptr<StreamedProduct> product;  ///< of a part of K blocks
  StageDevice* stages = nullptr;             ///< of a task of a step in stages
  std::optional<Dropped> drops{};            ///< no task: this is not held any more
  comm::TaskView view;
  Seconds arrival;  ///< when it came to this rank
};

/// What became of a job.
struct Outcome {
  comm::Header task;
  Seconds arrival;
  std::variant<comm::ResultDraft, comm::Reason> result;
  Seconds compute;                 ///< real time of the computation
  Seconds done;                    ///< real time at which it ended
  std::optional<SipTag> digest{};  ///< of the result, for a task that asks for no more
};

class Worker {
 public:
  /// `notify` is called on the worker's thread after each outcome. A job has one; the last part of K blocks one for
  /// each part of its result, a task that is never answered none.
  Worker(int threads, std::function<void()> notify);
  /// Lets the computation under way end, throws away the rest.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void add(Job job);
  /// The pool that works on jobs: what they need of it may be made before they come.
  [[nodiscard]] kernels::Parallel& parallel() { return parallel_; }
  /// The next outcome, in order of completion. Errors: what the kernels threw.
  [[nodiscard]] std::optional<Outcome> take();

 private:
  void run();
  void put(Outcome outcome);
  // The job that is next. Requires: one waits.
  [[nodiscard]] Job next();

  SteadyClock clock_;
  std::function<void()> notify_;
  kernels::Parallel parallel_;
  std::mutex mutex_;
  std::condition_variable changed_;
  NodePool nodes_;  // used under the mutex, as both queues are
  std::pmr::deque<Job> waiting_{&nodes_};
  std::pmr::deque<Outcome> finished_{&nodes_};
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace cleave::device
