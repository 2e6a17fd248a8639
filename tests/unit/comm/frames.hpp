// Frames with contents, and frames that somebody has tampered with.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "cleave/comm/message.hpp"

namespace cleave::comm {

template <class Draft>
void fill(Draft& draft) {
  for (std::int64_t i = kHeaderBytes; i < draft.frame.size(); ++i) {
    draft.frame.data()[i] = static_cast<std::byte>(i * 31 % 251);
  }
}

// Writes a field and makes the checksum right again, as a sender with bad intentions would.
template <class T>
Frame with_field(const Frame& frame, std::size_t offset, T value) {
  // A sealed draft whose frame is the damaged copy gets a new checksum.
  ResultDraft draft;
  draft.frame = frame.copy();
  std::memcpy(draft.frame.data() + offset, &value, sizeof value);
  return seal(std::move(draft));
}

inline Fault fault_of(const Frame& frame) {
  const auto header = decode(frame);
  EXPECT_FALSE(header);
  return header ? Fault{255} : header.fault();
}

}  // namespace cleave::comm
