// The loop of the computing thread.
#include "worker.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "execute.hpp"
#include "injected_fault.hpp"

namespace cleave::device {

namespace {

comm::StageErrand errand_of(const Job& job) {
  return job.stages != nullptr && !job.drops ? job.view.header.stage_task.errand : comm::StageErrand::none;
}

bool gives_way(const Job& job) { return comm::makes_again(errand_of(job)); }

// Parts of a step that others wait for, and that change nothing that a visit is recomputed from.
bool goes_ahead(const Job& job) {
  const comm::StageErrand errand = errand_of(job);
  return errand == comm::StageErrand::forward || errand == comm::StageErrand::recompute ||
         errand == comm::StageErrand::backward || errand == comm::StageErrand::sum;
}

}  // namespace

Worker::Worker(int threads, std::function<void()> notify)
    : notify_(std::move(notify)), parallel_(threads), thread_([this] { run(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Worker::add(Job job) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(job));
  }
  changed_.notify_one();
}

std::optional<Outcome> Worker::take() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  if (finished_.empty()) return std::nullopt;
  Outcome first = std::move(finished_.front());
  finished_.pop_front();
  return first;
}

void Worker::put(Outcome outcome) {
  {
    const std::lock_guard lock(mutex_);
    finished_.push_back(std::move(outcome));
  }
  notify_();
}

// As timing::Stream::background has it. What comes behind anything else, as weights that take others' place, waits for
// all before it.
Job Worker::next() {
  auto chosen = std::ranges::find_if_not(waiting_, gives_way);
  if (chosen == waiting_.end() || !goes_ahead(*chosen)) chosen = waiting_.begin();
  Job job = std::move(*chosen);
  waiting_.erase(chosen);
  return job;
}

void Worker::run() {
  try {
    Scratch scratch;
    FaultInjector injector;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
      if (stop_) return;
      Job job = next();
      lock.unlock();

      Seconds start = clock_.now();
      const auto answer = [&](std::variant<comm::ResultDraft, comm::Reason> result) {
        std::optional<SipTag> digest;
        if (auto* draft = std::get_if<comm::ResultDraft>(&result)) {
          injector.inject(*draft, job.view.header);
          if (job.view.header.digest) digest = comm::digest_of(comm::key_of(job.view), draft->outputs);
        }
        const Seconds done = clock_.now();
        put({job.view.header, job.arrival, std::move(result), done - start, done, digest});
        start = done;
      };
      try {
        if (job.product) {
          job.product->take(job.view, parallel_, scratch, answer);
        } else if (job.drops) {
          if (job.drops->owner >= 0) job.stages->drop_slices(job.drops->owner);
          if (job.drops->stage >= 0) job.stages->drop_stage(job.drops->stage);
        } else if (job.stages != nullptr) {
          if (auto result = job.stages->execute(job.view, job.frame)) answer(std::move(*result));
        } else {
          answer(execute(job.view, parallel_, scratch));
        }
      } catch (const std::bad_alloc&) {
        answer(comm::Reason::memory);  // of this host, not of the emulated device; the server's answer is one
      }
      lock.lock();
    }
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
    }
    notify_();
  }
}

}  // namespace cleave::device
