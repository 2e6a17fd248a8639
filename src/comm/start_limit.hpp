// StartLimit: MPI's start-up waits without limit for ranks that ended in it, or that lack the memory to be reached.
// While one of these lives the process does not outlast its limit: it says what it waited for and ends.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "cleave/base/clock.hpp"

namespace cleave::comm {

class StartLimit {
 public:
  /// `waiting` completes "ranks do not meet: ...". Errors: EnvironmentError without a thread.
  StartLimit(Seconds limit, std::string waiting);
  StartLimit(const StartLimit&) = delete;
  StartLimit& operator=(const StartLimit&) = delete;
  ~StartLimit();

 private:
  void watch(Seconds limit, const std::string& waiting);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread watcher_;
};

}  // namespace cleave::comm
