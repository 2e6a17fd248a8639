// Frame: the bytes of one message, header and payload, in one owned buffer.
//
// Encoders fill it, transports carry it, decoders look into it without copying. The buffer starts on a 64-byte boundary
// and is never moved while a message is under way: a pending send or receive owns its frame until it is complete. Large
// buffers are used again for later frames (base/block_pool.hpp). Where ranks share a host, large frames lie in memory
// that the others can read, and a frame that was received may be a view of its sender's memory: nobody may write to it,
// and it goes back to the sender when it is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <utility>

#include "cleave/base/block_pool.hpp"

namespace cleave::comm {

/// Bytes of the header of every message; plan::kMessageHeader counts the same.
inline constexpr std::int64_t kHeaderBytes = 128;

/// Largest frame that is ever sent or accepted: a length from the wire is held against it before memory is taken. It is
/// 1 GiB of operands (plan::kMaxMessage) and room for their alignment and a schedule. A larger value lets one message
/// take more memory; MPI counts elements in an int, so it must stay below 2 GiB.
inline constexpr std::int64_t kMaxFrameBytes = (std::int64_t{1} << 30) + (std::int64_t{64} << 20);

/// Boundary on which a frame and each of its payload sections start.
inline constexpr std::int64_t kAlignment = 64;

/// Owner of the bytes of borrowed frames. Thread-safe.
class FrameMemory {
 public:
  virtual ~FrameMemory() = default;
  /// Called when a frame made by Frame::borrow() is destroyed: its bytes, and its ticket.
  virtual void give_back(std::byte* data, std::int64_t bytes, std::uint32_t ticket) noexcept = 0;
};

/// See the file comment. Move-only; the bytes of a new frame are not initialised.
class Frame {
 public:
  Frame() = default;
  /// A frame of its own memory, not initialised. Requires: 0 <= bytes. Errors: std::bad_alloc.
  explicit Frame(std::int64_t bytes);
  /// A view of another process's bytes. `memory` gets them back, with the ticket, when the frame is destroyed.
  /// Requires: data is on a boundary of kAlignment; bytes > 0.
  [[nodiscard]] static Frame borrow(const std::byte* data, std::int64_t bytes, std::shared_ptr<FrameMemory> memory,
                                    std::uint32_t ticket);
  Frame(Frame&& other) noexcept { swap(other); }
  Frame& operator=(Frame&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Frame() { release(); }

  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  /// The first byte. Requires, to write: not borrowed().
  [[nodiscard]] std::byte* data() { return data_; }
  [[nodiscard]] const std::byte* data() const { return data_; }
  [[nodiscard]] std::span<std::byte> bytes() { return {data_, static_cast<std::size_t>(size_)}; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, static_cast<std::size_t>(size_)}; }
  /// True: a view of another process's memory, which it may only read and which that process could change.
  [[nodiscard]] bool borrowed() const { return borrowed_; }

  /// Memory of its sender that a received frame may point into (message.hpp, OperandPlace); empty where there is none.
  [[nodiscard]] std::span<const std::byte> reach() const { return reach_; }
  /// Sets reach(); the frame holds `keeper`, which keeps that memory mapped.
  void set_reach(std::span<const std::byte> reach, std::shared_ptr<FrameMemory> keeper) {
    reach_ = reach;
    keeper_ = std::move(keeper);
  }

  /// A frame with the same bytes, in memory of its own. Errors: std::bad_alloc.
  [[nodiscard]] Frame copy() const;

 private:
  void release();
  void swap(Frame& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(block_, other.block_);
    std::swap(memory_, other.memory_);
    std::swap(ticket_, other.ticket_);
    std::swap(borrowed_, other.borrowed_);
    std::swap(reach_, other.reach_);
    std::swap(keeper_, other.keeper_);
  }

  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
  Block block_;                          // of at least size_ bytes, or empty: then the bytes are in
  std::shared_ptr<FrameMemory> memory_;  // this
  std::uint32_t ticket_ = 0;
  bool borrowed_ = false;
  std::span<const std::byte> reach_;
  std::shared_ptr<FrameMemory> keeper_;
};

/// Memory for data that other ranks of this host may read in place. Blocks of 64 KiB and more: shared memory, once a
/// transport of this process shares some and while there is room in it; otherwise the heap. Smaller blocks: a pool.
/// Thread-safe; it lives as long as the process.
[[nodiscard]] std::pmr::memory_resource& shared_memory();

}  // namespace cleave::comm
