// Stream: messages between two ranks over one connection, for ranks that do not share a host.
//
// A connection says what MPI over TCP does not: that the other side is gone. The kernel closes it when either process
// ends, however it ends, and what is under way then is lost and nothing else. Nothing here waits: what the connection
// does not take yet stays in a queue, and what has not come whole yet is gone on with later.
//
// Each message is a StreamHeader and its bytes. A header that is none ends the stream, as nobody knows where the next
// one would begin; a message longer than what is expected is passed over unread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "cleave/comm/frame.hpp"
#include "descriptor.hpp"
#include "incoming.hpp"

namespace cleave::comm {

/// What a message stands for: itself, or a frame in memory that both sides share.
enum class StreamKind : std::uint32_t { frame = 1, notice = 2 };

/// Before each message; little-endian, as all that ranks send.
struct StreamHeader {
  static constexpr std::uint32_t kMagic = 0x4d534c43;  // "CLSM"
  std::uint64_t bytes = 0;
  StreamKind kind = StreamKind::frame;
  std::uint32_t magic = kMagic;
};
static_assert(sizeof(StreamHeader) == 16);

/// Sets up a connected socket for a stream: small messages leave at once, and a host that is away for so long that its
/// ranks must have left is given up. Until then silence means nothing: a host may come back.
void prepare_for_stream(int socket);

class Stream {
 public:
  struct Message {
    Frame frame;
    StreamKind kind = StreamKind::frame;
  };

  /// Takes a connected stream socket.
  explicit Stream(Descriptor socket) : socket_(std::move(socket)) {}

  [[nodiscard]] int descriptor() const { return socket_.get(); }

  /// Queues a message; write() sends it.
  void send(Frame frame, StreamKind kind);
  /// Sends what the connection takes. Returns how many messages went along with another one.
  std::int64_t write();
  /// The connection takes more than at the last write().
  void set_writable() { writable_ = true; }
  [[nodiscard]] bool can_write() const { return writable_ && !outgoing_.empty(); }
  /// Messages that were not handed to the kernel whole, and their bytes.
  [[nodiscard]] std::int64_t pending() const { return std::ssize(outgoing_); }
  [[nodiscard]] std::int64_t pending_bytes() const { return pending_bytes_; }
  /// The kernel, too, has nothing left to send.
  [[nodiscard]] bool flushed() const;
  /// Throws away what has not begun to be sent, and what is sent from now on.
  void abandon();
  [[nodiscard]] bool abandoned() const { return abandoned_; }

  /// Takes in what has come, as far as there is room for it. Returns how many messages became whole.
  std::int64_t read();
  void set_readable() { readable_ = true; }
  [[nodiscard]] bool can_read() const { return !ended_ && (readable_ || staged() > 0) && room(); }
  /// The oldest whole message. Requires: waiting() > 0.
  [[nodiscard]] Message take();
  [[nodiscard]] std::int64_t waiting() const { return std::ssize(whole_); }
  /// From now on at most so many bytes are taken in at once.
  void expect(std::int64_t bytes) { incoming_.most_bytes = bytes; }
  [[nodiscard]] const Incoming& incoming() const { return incoming_; }
  [[nodiscard]] std::int64_t oversized() const { return oversized_; }

  /// Nothing more will come: the other side has closed, or sent what is no message.
  [[nodiscard]] bool ended() const { return ended_; }

 private:
  struct Outgoing {
    StreamHeader header;
    Frame frame;
  };
  // Bytes that are read ahead, so that many small messages cost one call; a large one goes where it belongs.
  static constexpr std::size_t kStage = std::size_t{16} << 10;

  [[nodiscard]] std::size_t staged() const { return stage_end_ - stage_begin_; }
  // A message that has begun is gone on with; another one begins where there is room.
  [[nodiscard]] bool room() const { return in_message_ || to_skip_ > 0 || incoming_.has_room(); }
  void consume_stage();
  bool begin();
  void finish();
  void end();

  Descriptor socket_;
  bool readable_ = true, writable_ = true, abandoned_ = false, ended_ = false;

  std::deque<Outgoing> outgoing_;
  std::size_t sent_ = 0;  // bytes of the first of them, header included
  std::int64_t pending_bytes_ = 0;

  std::unique_ptr<std::array<std::byte, kStage>> stage_;
  std::size_t stage_begin_ = 0, stage_end_ = 0;
  StreamHeader header_;
  std::size_t header_bytes_ = 0;  // of header_, so far
  bool in_message_ = false;       // header_ is whole, and its message is not
  Frame frame_;
  std::int64_t frame_bytes_ = 0;  // of frame_, so far
  std::uint64_t to_skip_ = 0;     // of a message that is passed over
  std::deque<Message> whole_;
  Incoming incoming_;
  std::int64_t oversized_ = 0;
};

}  // namespace cleave::comm
