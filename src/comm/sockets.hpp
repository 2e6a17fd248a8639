// Small things that both ends of the side channel do with their sockets. None of them waits, none is an error: what
// fails only means that a death is noticed later.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "cleave/base/clock.hpp"
#include "descriptor.hpp"

namespace cleave::comm {

/// Sends a byte with copies of descriptors.
void send_with_descriptors(int socket, char byte, std::span<const int> passed);

/// As recv() that does not wait; the first descriptors that come along find their place in `passed`, in order, and all
/// others are closed.
[[nodiscard]] std::ptrdiff_t receive_with_descriptors(int socket, std::span<std::byte> data,
                                                      std::span<Descriptor> passed);

/// What receiving from a socket that does not wait has found.
enum class Heard : unsigned char { something, nothing, end };
[[nodiscard]] Heard heard(std::ptrdiff_t received);

/// A full buffer is as good as a byte in it: whoever reads there has not woken yet.
void send_byte(int socket, char byte);

/// A byte that wakes must not wait for the acknowledgement of the one before. Only TCP has any.
void send_at_once(int socket);

/// Where the other end of a TCP connection is, in digits; empty of other sockets.
[[nodiscard]] std::string peer_address(int socket);

/// Closed for so long that nothing of the other side can be on its way any more.
[[nodiscard]] bool is_over(bool closed, Seconds closed_at, const Clock& clock);

/// Bytes that one side sends to wake the other, and by which it says that it has its bells.
inline constexpr char kWake = 0, kHasBells = 1;

}  // namespace cleave::comm
