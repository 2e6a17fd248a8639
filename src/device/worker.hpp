// The thread that computes: takes tasks in order of urgency, hands back results, and never touches the transport.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/comm/message.hpp"
#include "throttle.hpp"

namespace cleave::device {

/// A task that has been accepted. `view` looks into `frame`.
struct Job {
  comm::Frame frame;
  comm::TaskView view;
  Timeline modelled;       ///< wall clock; else zero
  Seconds arrival;         ///< when it came to this rank
  std::int64_t order = 0;  ///< of acceptance
};

/// What became of a job.
struct Outcome {
  comm::Header task;
  Timeline modelled;
  Seconds arrival;
  std::variant<comm::ResultDraft, comm::Reason> result;
  Seconds compute;  ///< real time of the computation
  Seconds done;     ///< real time at which it ended
};

class Worker {
 public:
  /// `notify` is called on the worker's thread after each outcome.
  Worker(int threads, Clock& clock, std::function<void()> notify);
  /// Lets the computation under way end, throws away the rest.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void add(Job job);
  /// The next outcome, in order of completion. Errors: what the kernels threw.
  [[nodiscard]] std::optional<Outcome> take();

 private:
  void run(int threads);

  Clock& clock_;
  std::function<void()> notify_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Job> waiting_;
  std::vector<Outcome> finished_;
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace cleave::device
