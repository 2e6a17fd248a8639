// Bell: a pipe by which one process of a host wakes another that sleeps in poll().
//
// Whoever has an end may read, write or fill the pipe, and change the flags of the end that it has. So each process has
// an end of its own (another()), opened anew and not passed on: flags belong to an end, and no end that never waits can
// be made to. A counter of the kernel (eventfd) wakes as fast, but all who have it share its flags.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>

#include <array>
#include <utility>

#include "descriptor.hpp"

namespace cleave::comm {

class Bell {
 public:
  Bell() = default;
  /// An end that was received.
  explicit Bell(Descriptor end) : end_(std::move(end)) {}

  /// A bell; one that is not there where the system has no pipes left.
  [[nodiscard]] static Bell make() {
    std::array<int, 2> ends{-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return {};
    const Descriptor reader(ends[0]), writer(ends[1]);
    return Bell(open_again(ends[0]));
  }

  /// An end for another process.
  [[nodiscard]] Descriptor another() const { return open_again(descriptor()); }

  [[nodiscard]] int descriptor() const { return end_.get(); }
  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(end_); }

  /// A full pipe is as good as one byte more.
  void ring() const {
    const char byte = 0;
    (void)!::write(descriptor(), &byte, 1);
  }
  void silence() const {
    std::array<char, 4096> rings;
    if (end_) (void)!::read(descriptor(), rings.data(), rings.size());
  }

 private:
  // To read and to write: who has an end is never without a reader, so that ringing is no signal (SIGPIPE).
  [[nodiscard]] static Descriptor open_again(int descriptor) {
    return Descriptor(::open(fmt::format("/proc/self/fd/{}", descriptor).c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  }
  Descriptor end_;
};

}  // namespace cleave::comm
