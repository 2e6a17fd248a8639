// Lookahead: a series of jobs, whose results are taken one after another, with the next ones on their way on other
// cores. Use it where each result decides about the jobs that follow, but seldom.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cleave/base/threads.hpp"

namespace cleave {

/// Carries out jobs in the order in which they were given: on threads of its own or, where it has none, when they are
/// waited for. One thread uses it.
class JobQueue {
 public:
  using Job = std::function<void()>;

  /// `threads`: 0 or 1: no thread. Where the system gives fewer, there are fewer.
  explicit JobQueue(int threads);
  /// Waits for jobs under way; the others are dropped.
  ~JobQueue();
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;

  [[nodiscard]] int threads() const;
  /// Requires: the job throws nothing.
  void add(Job job);
  /// Drops all jobs that have not begun.
  void clear();
  /// Without threads: carries out the next job, if there is one.
  void run_next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Results of jobs that have numbers. What is taken does not depend on the number of threads, if a job's result depends
/// only on its number. One thread uses it.
template <class Result>
class Lookahead {
 public:
  /// A job is to return soon, with any result, once its flag is set. It may throw: take() does so then.
  using Stop = std::atomic<bool>;
  using Work = std::function<Result(std::size_t number, const Stop& stop)>;

  /// `threads`: threads_for(). Requires: what `work` refers to outlives this, and stays as it is from one drop() to the
  /// next.
  Lookahead(int threads, Work work)
      : work_(std::move(work)), stop_(std::make_shared<Stop>(false)), queue_(threads_for(threads)) {}
  ~Lookahead() { drop(); }
  Lookahead(const Lookahead&) = delete;
  Lookahead& operator=(const Lookahead&) = delete;

  /// Returns the result of job `number`. Meanwhile the jobs after it, below `end`, for whose numbers `wanted` is true
  /// are carried out, as many as keep all threads at work. Numbers may rise, or be asked for again: then the job is
  /// carried out anew.
  template <class Wanted>
  [[nodiscard]] Result take(std::size_t number, std::size_t end, const Wanted& wanted) {
    for (auto first = results_.begin(); first != results_.end() && first->first < number; first = results_.begin())
      passed_over_.push_back(std::move(results_.extract(first).mapped()));
    begin(number);
    const auto ahead = static_cast<std::size_t>(queue_.threads()) + 1;
    for (std::size_t next = number + 1; next < end && queue_.threads() > 0 && results_.size() < ahead; ++next) {
      if (wanted(next)) begin(next);
    }
    std::future<Result> result = std::move(results_.extract(number).mapped());
    while (queue_.threads() == 0 && result.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
      queue_.run_next();
    return result.get();
  }
  [[nodiscard]] Result take(std::size_t number, std::size_t end) {
    return take(number, end, [](std::size_t) { return true; });
  }
  /// Forgets all results that were not taken, and stops what is on its way: what jobs refer to is about to change.
  void drop() {
    stop_->store(true);
    queue_.clear();
    for (auto& [number, result] : results_) result.wait();  // at once where the job was dropped
    for (auto& result : passed_over_) result.wait();
    results_.clear();
    passed_over_.clear();
    stop_ = std::make_shared<Stop>(false);
  }

 private:
  void begin(std::size_t number) {
    if (results_.contains(number)) return;
    auto task =
        std::make_shared<std::packaged_task<Result()>>([this, number, stop = stop_] { return work_(number, *stop); });
    results_.emplace(number, task->get_future());
    queue_.add([task] { (*task)(); });
  }

  Work work_;
  std::shared_ptr<Stop> stop_;
  std::map<std::size_t, std::future<Result>> results_;
  std::vector<std::future<Result>> passed_over_;  // of jobs that were begun, and are not asked for any more
  JobQueue queue_;
};

}  // namespace cleave
