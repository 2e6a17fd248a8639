// Frames: every decoder on every frame, first as it is, then with its checksum made right, so that what the checksum
// would stop is tried as well: the sender may be hostile and know how to compute one.
#include <xxhash.h>

#include <cstdlib>
#include <cstring>

#include "cleave/comm/handshake.hpp"
#include "cleave/comm/message.hpp"
#include "fuzz.hpp"

namespace {

using namespace cleave;

/// docs/wire_format.md: offset of the checksum, which covers the header with these 8 bytes zero, and the payload.
constexpr std::size_t kChecksum = 16;

void make_checksum_right(comm::Frame& frame) {
  if (frame.size() < comm::kHeaderBytes) return;
  std::memset(frame.data() + kChecksum, 0, 8);
  const std::uint64_t seed = XXH3_64bits(frame.data(), comm::kHeaderBytes);
  const std::uint64_t sum = XXH3_64bits_withSeed(frame.data() + comm::kHeaderBytes,
                                                 static_cast<std::size_t>(frame.size() - comm::kHeaderBytes), seed);
  std::memcpy(frame.data() + kChecksum, &sum, sizeof sum);
}

void require(bool condition) {
  if (!condition) std::abort();
}

// Reads every byte that a view shows, and holds it to lie within the frame.
template <class T>
std::uint64_t touch(std::span<const T> part, const comm::Frame& frame) {
  const auto bytes = std::as_bytes(part);
  if (bytes.empty()) return 0;
  require(bytes.data() >= frame.data() && bytes.data() + bytes.size() <= frame.data() + frame.size());
  return XXH3_64bits(bytes.data(), bytes.size());
}

void decode_as_everything(const comm::Frame& frame) {
  volatile std::uint64_t sink = 0;
  (void)comm::peek_task(frame);
  if (frame.size() >= comm::kHeaderBytes)
    (void)comm::decode_header(frame.bytes().first(static_cast<std::size_t>(comm::kHeaderBytes)), frame.size());
  const auto header = comm::decode(frame);
  if (header && (header->kind == comm::Kind::refusal || header->kind == comm::Kind::refused))
    sink = sink + comm::text_of(frame).size();
  if (const auto task = comm::decode_task(frame)) {
    sink = sink + touch(task->row_exponents, frame) + touch(task->column_exponents, frame);
    for (const auto& operand : task->operands) sink = sink + touch(operand, frame);
    require(comm::frame_bytes(task->header) == frame.size());
    const comm::Header& asked = task->header;
    const bool answered =
        asked.work == comm::Work::stage ? asked.stage_task.answered() : asked.columns != comm::Columns::bring;
    require(!answered || comm::frame_bytes(comm::result_header(task->header)) >= 0);
  }
  if (const auto result = comm::decode_result(frame)) {
    for (const auto& output : result->outputs) sink = sink + touch(output, frame);
    require(comm::frame_bytes(result->header) == frame.size());
  }
  // What a handshake says comes back the same when it is said again.
  if (const auto hello = comm::decode_hello(frame)) require(*comm::decode_hello(comm::encode(*hello)) == *hello);
  if (const auto welcome = comm::decode_welcome(frame))
    require(*comm::decode_welcome(comm::encode(*welcome)) == *welcome);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  comm::Frame frame(static_cast<std::int64_t>(size));
  if (size > 0) std::memcpy(frame.data(), data, size);
  decode_as_everything(frame);
  make_checksum_right(frame);
  decode_as_everything(frame);
  return 0;
}
