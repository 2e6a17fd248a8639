// Memory of frames.
#include "cleave/comm/frame.hpp"

#include <cstring>
#include <new>

namespace cleave::comm {

void Frame::Free::operator()(std::byte* bytes) const { ::operator delete (bytes, std::align_val_t{kAlignment}); }

Frame::Frame(std::int64_t bytes) : size_(bytes) {
  if (bytes > 0) {
    data_.reset(
        static_cast<std::byte*>(::operator new (static_cast<std::size_t>(bytes), std::align_val_t{kAlignment})));
  }
}

Frame Frame::copy() const {
  Frame other(size_);
  if (size_ > 0) std::memcpy(other.data(), data(), static_cast<std::size_t>(size_));
  return other;
}

}  // namespace cleave::comm
