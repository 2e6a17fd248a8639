// A long link of a given rate between two network interfaces, for kernels whose queues know no delay.
//
//   far_link NAME NAME BITS_PER_SECOND DELAY_MS
//
// Makes two Ethernet interfaces (TAP devices) and carries frames from each to the other. A frame leaves when those
// before it have left at that rate, and arrives a delay later. What would have to wait for longer than 50 ms at the
// sender is dropped, as a router's queue does. Prints a line when the interfaces are there; they go when the process
// ends.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Span = std::chrono::nanoseconds;

constexpr Span kLongestQueue = std::chrono::milliseconds(50);
constexpr std::size_t kLargestFrame = 65536;
constexpr int kReadAhead = 64;

int make_tap(const std::string& name) {
  const int device = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  name.copy(request.ifr_name, sizeof request.ifr_name - 1);
  if (device < 0 || ::ioctl(device, TUNSETIFF, &request) != 0) {
    std::fprintf(stderr, "far_link: %s: %s\n", name.c_str(), std::strerror(errno));
    std::exit(1);
  }
  return device;
}

struct Link {
  double bits_per_second;
  Span delay;
};

// One direction, for as long as the process lives.
void carry(int from, int to, Link link) {
  struct UnderWay {
    Clock::time_point arrives;
    std::vector<char> frame;
  };
  std::deque<UnderWay> under_way;
  std::array<char, kLargestFrame> buffer;
  Clock::time_point free = Clock::now();  // when the sender's queue is empty
  while (true) {
    timespec rest{};
    if (!under_way.empty()) {
      const Span left = std::max<Span>(under_way.front().arrives - Clock::now(), Span(0));
      rest.tv_sec = static_cast<time_t>(left.count() / 1'000'000'000);
      rest.tv_nsec = static_cast<long>(left.count() % 1'000'000'000);
    }
    pollfd event{from, POLLIN, 0};
    (void)::ppoll(&event, 1, under_way.empty() ? nullptr : &rest, nullptr);
    for (int i = 0; i < kReadAhead; ++i) {
      const ssize_t bytes = ::read(from, buffer.data(), buffer.size());
      if (bytes <= 0) break;
      const Clock::time_point now = Clock::now();
      free = std::max(free, now);
      if (free - now > kLongestQueue) continue;
      free += Span(static_cast<std::int64_t>(8e9 * static_cast<double>(bytes) / link.bits_per_second));
      under_way.push_back({free + link.delay, std::vector<char>(buffer.data(), buffer.data() + bytes)});
    }
    while (!under_way.empty() && under_way.front().arrives <= Clock::now()) {
      const std::vector<char>& frame = under_way.front().frame;
      (void)!::write(to, frame.data(), frame.size());  // an interface that is down loses it
      under_way.pop_front();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: far_link NAME NAME BITS_PER_SECOND DELAY_MS\n");
    return 2;
  }
  const Link link{std::atof(argv[3]),
                  std::chrono::duration_cast<Span>(std::chrono::duration<double, std::milli>(std::atof(argv[4])))};
  if (!(link.bits_per_second > 0) || link.delay < Span(0)) return 2;
  const int one = make_tap(argv[1]), other = make_tap(argv[2]);
  std::puts("there");
  std::fflush(stdout);
  std::thread back(carry, other, one, link);
  carry(one, other, link);
}
