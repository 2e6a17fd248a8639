// A small pool of threads that runs chunks of a loop; every kernel that can use more than one thread takes one.
//
// Invariant: where chunks begin and end depends on the loop alone, never on the number of threads, so a kernel that
// reduces inside chunks and then combines them in order yields the same bits with any pool. Waiting threads sleep:
// ranks share cores, and a spinning thread would take them from the rank that has work (so no OpenMP here).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "cleave/base/clock.hpp"

namespace cleave::kernels {

/// See the file comment.
class Parallel {
 public:
  /// A pool that works with `threads` threads, the calling one included; 1 runs everything inline.
  /// Errors: EnvironmentError where the system gives no more threads.
  explicit Parallel(int threads = 1);
  ~Parallel();
  Parallel(const Parallel&) = delete;
  Parallel& operator=(const Parallel&) = delete;

  [[nodiscard]] int threads() const { return threads_; }

  /// Sets a function that the calling thread of a loop calls between chunks, at least kMeanwhile apart, so that other
  /// duties do not wait for a long kernel. It must not use this pool. What it throws ends the loop.
  void set_meanwhile(std::function<void()> meanwhile) { meanwhile_ = std::move(meanwhile); }
  static constexpr Seconds kMeanwhile{200e-6};

  /// Calls body(begin, end) for [0,chunk), [chunk,2*chunk), ... up to n, in any order, on any thread; returns when all
  /// are done. One loop at a time: callers from several threads wait for each other; a loop inside a body runs inline.
  /// Requires: chunk > 0. Errors: the first exception that a body threw; chunks not begun by then are left out.
  template <class Body>
  void for_chunks(std::int64_t n, std::int64_t chunk, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(
        n, chunk,
        [](void* context, std::int64_t begin, std::int64_t end) { (*static_cast<Plain*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  /// Sum of term(begin, end) over the chunks of for_chunks(), added in the order of the chunks: the same bits for any
  /// number of threads. Requires: a term does not call sum_chunks() itself. Errors: as for_chunks().
  template <class Term>
  [[nodiscard]] double sum_chunks(std::int64_t n, std::int64_t chunk, Term&& term) {
    return sum_chunks_together(n, chunk, 1,
                               [&](std::int64_t begin, std::int64_t end, double* terms) { *terms = term(begin, end); });
  }

  /// The same sum, with up to `together` neighbouring chunks in one call: terms_of(begin, end, sums) sets sums[c] to
  /// the term of the chunk that begins at begin + c * chunk.
  template <class Terms>
  [[nodiscard]] double sum_chunks_together(std::int64_t n, std::int64_t chunk, std::int64_t together,
                                           Terms&& terms_of) {
    const std::span<double> terms = memory_for((n + chunk - 1) / chunk);
    for_chunks(n, chunk * together,
               [&](std::int64_t begin, std::int64_t end) { terms_of(begin, end, terms.data() + begin / chunk); });
    double sum = 0;
    for (const double of_chunk : terms) sum += of_chunk;
    return sum;
  }

 private:
  using Call = void (*)(void* context, std::int64_t begin, std::int64_t end);
  struct Pool;
  // Of the calling thread, which keeps it.
  static std::span<double> memory_for(std::int64_t terms);
  void run(std::int64_t n, std::int64_t chunk, Call call, void* context);

  void look_after_others();

  int threads_;
  std::unique_ptr<Pool> pool_;  // null for one thread
  std::function<void()> meanwhile_;
  SteadyClock clock_;
  Seconds looked_after_;  // when meanwhile_ was last called
};

}  // namespace cleave::kernels
