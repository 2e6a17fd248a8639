// Descriptor: a file descriptor that is closed when nobody has it any more.
#pragma once

#include <unistd.h>

#include <utility>

namespace cleave::comm {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }

  [[nodiscard]] int get() const { return number_; }
  [[nodiscard]] explicit operator bool() const { return number_ >= 0; }
  void reset() { *this = Descriptor(); }

 private:
  int number_ = -1;
};

}  // namespace cleave::comm
