// Transport: frames between ranks, point to point, in order between any two of them.
//
// The server and the device hosts speak to each other through this interface only. Implementations: MPI (mpi.hpp) and
// in one process (loopback.hpp). Nothing blocks without a limit, and the death of a peer is never an error: at most
// a frame never arrives.
#pragma once

#include <cstdint>
#include <optional>

#include "cleave/base/units.hpp"
#include "cleave/comm/frame.hpp"

namespace cleave::comm {

struct Received {
  int source = -1;
  Frame frame;
};

/// The process behind a rank, as the system itself has it; no message of the rank has a say in it.
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
  std::int64_t oversized = 0;      ///< messages longer than what is expected, thrown away unread
  std::int64_t most_taken_in = 0;  ///< bytes of messages of one rank that were being received at once
  std::int64_t most_messages = 0;  ///< and their number
  std::int64_t sends_pending = 0;  ///< not yet complete
  std::int64_t sends_dropped = 0;  ///< to ranks that were abandoned
};

/// See the file comment. One thread may use a transport at a time; interrupt() alone may be called from any.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// Starts sending; the transport owns the frame until it is through. Never waits for the receiver. A frame that was
  /// sealed by its header alone gets its payload's checksum, unless the receiver reads it where it is. A small frame
  /// soon after another may stay here until the next poll() or wait(), to share a message with those that follow.
  /// Requires: 0 <= dest < size(), frame.size() <= kMaxFrameBytes. Errors: EnvironmentError.
  virtual void send(int dest, Frame frame) = 0;

  /// The next frame that has arrived, if any; moves pending sends on. Errors: EnvironmentError.
  [[nodiscard]] virtual std::optional<Received> poll() = 0;

  /// Moves on what is under way, either way, and hands nothing over: for whoever is busy with something else meanwhile.
  /// Errors: EnvironmentError.
  virtual void progress() {}

  /// The same as poll(), waiting for at most `at_most` without keeping a processor busy; empty-handed also when
  /// interrupted.
  [[nodiscard]] virtual std::optional<Received> wait(Seconds at_most) = 0;

  /// Makes the wait under way, or else the next one, return early.
  virtual void interrupt() = 0;

  /// How many bytes into the reach (Frame::reach()) of the frames that `dest` receives from here `data` lies; nothing
  /// where that rank cannot read it. What lies in shared_memory() may be readable.
  [[nodiscard]] virtual std::optional<std::int64_t> reached(int /*dest*/, const void* /*data*/) const { return {}; }

  /// Large frames from and to `rank` are read where they were written: nothing is gained by cutting them.
  [[nodiscard]] virtual bool shares_memory(int /*rank*/) const { return false; }

  /// True once the transport knows that a rank is gone for good. False promises nothing.
  [[nodiscard]] virtual bool gone(int rank) const = 0;

  /// Known of ranks of this host, where all ranks are.
  [[nodiscard]] virtual PeerProcess process(int /*rank*/) const { return {}; }

  /// Bytes of what was sent to `rank` and is not through yet: it does not read, or has not come to it.
  [[nodiscard]] virtual std::int64_t bytes_pending(int /*rank*/) const { return 0; }

  /// From now on at most so many bytes of messages of `rank` are taken in at once, and a longer message of it is thrown
  /// away unread: whoever asks for little gives nobody reason to send much. Without a word: as much as a frame may
  /// have. Over memory that is shared nothing is taken.
  virtual void expect(int /*rank*/, std::int64_t /*bytes*/) {}

  /// Gives a rank up: what is pending to it no longer counts, what is sent to it later is thrown away.
  virtual void abandon(int rank) = 0;

  /// Waits until every send has completed, at most for `at_most`, then closes. False: some had not. A frame that is
  /// read in place is complete when its receiver can read it, however long it does. No frame may be sent or received
  /// afterwards.
  virtual bool close(Seconds at_most) = 0;

  [[nodiscard]] virtual TransportStats stats() const = 0;
};

}  // namespace cleave::comm
