// Transport: frames between ranks, point to point, in order between any two of them.
//
// The server and the device hosts speak to each other through this interface only. Implementations: MPI (mpi.hpp) and
// in one process (loopback.hpp). Nothing blocks without a limit, and the death of a peer is never an error: at most
// a frame never arrives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cleave/base/units.hpp"
#include "cleave/comm/frame.hpp"

namespace cleave::comm {

/// A frame that arrived, and the rank that sent it.
struct Received {
  int source = -1;
  Frame frame;
};

/// The process behind a rank, as the operating system reports it, whatever the rank itself says.
struct PeerProcess {
  std::int64_t pid = 0;  ///< 0: not known
  int descriptor = -1;   ///< refers to this very process (pidfd), for as long as this one lives; -1: not known
};

/// What went through a transport since it was made.
struct TransportStats {
  std::int64_t frames_sent = 0, frames_received = 0;
  std::int64_t bytes_sent = 0, bytes_received = 0;
  std::int64_t batches_sent = 0;   ///< messages with several small frames
  std::int64_t frames_shared = 0;  ///< of those sent: left in place for the receiver to read
  std::int64_t bytes_lent = 0;     ///< in frames that receivers still read in place
  std::int64_t oversized = 0;      ///< messages longer than expect() allows, thrown away unread
  std::int64_t most_taken_in = 0;  ///< most bytes of messages of one rank that were being received at once
  std::int64_t most_messages = 0;  ///< most messages of one rank that were being received at once
  std::int64_t sends_pending = 0;  ///< not yet complete
  std::int64_t sends_dropped = 0;  ///< to ranks that were abandoned
};

/// See the file comment. One thread may use a transport at a time; interrupt() alone may be called from any.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// Starts sending, and returns at once. The transport owns the frame until it is sent. A frame from seal_header()
  /// gets the checksum of its payload, unless the receiver reads it in place. A small frame soon after another one may
  /// stay here until the next poll() or wait(), to share a message with those that follow. Requires: 0 <= dest <
  /// size(), frame.size() <= kMaxFrameBytes. Errors: EnvironmentError.
  virtual void send(int dest, Frame frame) = 0;

  /// The next frame that has arrived, if any. Progresses pending sends. Errors: EnvironmentError.
  [[nodiscard]] virtual std::optional<Received> poll() = 0;

  /// Progresses pending sends and receives without returning a frame, during long computations.
  /// Errors: EnvironmentError.
  virtual void progress() {}

  /// As poll(), but sleeps until a frame arrives, for at most `at_most`, or until interrupt(). Errors:
  /// EnvironmentError.
  [[nodiscard]] virtual std::optional<Received> wait(Seconds at_most) = 0;

  /// Makes the wait() under way, or else the next one, return at once. Any thread may call it.
  virtual void interrupt() = 0;

  /// Offset of `data` within Frame::reach() of the frames that `dest` receives from this rank; none where `dest` cannot
  /// read that memory. Memory from shared_memory() may be readable.
  [[nodiscard]] virtual std::optional<std::int64_t> reached(int /*dest*/, const void* /*data*/) const { return {}; }

  /// Large frames from and to `rank` are read in place, so cutting them into parts gains nothing.
  [[nodiscard]] virtual bool shares_memory(int /*rank*/) const { return false; }

  /// True once the transport knows that a rank is gone for good. False promises nothing.
  [[nodiscard]] virtual bool gone(int rank) const = 0;

  /// The process of a rank; known where all ranks are on this host.
  [[nodiscard]] virtual PeerProcess process(int /*rank*/) const { return {}; }

  /// Where a rank is, as the system itself has it: the address that its connection comes from. Empty: on this host, as
  /// all others are.
  [[nodiscard]] virtual std::string address(int /*rank*/) const { return {}; }

  /// Bytes of frames to `rank` that are not sent yet.
  [[nodiscard]] virtual std::int64_t bytes_pending(int /*rank*/) const { return 0; }

  /// Bounds, from now on, the bytes of messages of `rank` that are being received at once; a longer message of it is
  /// thrown away unread. So a rank that owes little cannot make this one take much memory. At first: kMaxFrameBytes.
  /// Frames in shared memory take none.
  virtual void expect(int /*rank*/, std::int64_t /*bytes*/) {}

  /// Gives a rank up: pending sends to it no longer count, and whatever is sent to it later is dropped.
  virtual void abandon(int rank) = 0;

  /// Waits for at most `at_most` until every send has completed, then closes. Returns whether all had. The send of a
  /// frame that is read in place is complete as soon as its receiver can read it. No frame may be sent or received
  /// afterwards.
  virtual bool close(Seconds at_most) = 0;

  [[nodiscard]] virtual TransportStats stats() const = 0;
};

}  // namespace cleave::comm
