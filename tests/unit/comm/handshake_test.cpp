// Hello and welcome from somebody with bad intentions: a value that means nothing, and a byte too few or too many, are
// refused.
#include "cleave/comm/handshake.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "frames.hpp"
#include "layout.hpp"

namespace cleave::comm {
namespace {

Frame some_hello() { return encode(Hello{.pid = 1234, .host = "node", .version = "1"}); }

Frame some_welcome(const std::string& step = {}) {
  Welcome welcome;
  welcome.gemm_kernels = "skx";
  welcome.devices = {{DeviceId(4), Bytes(1 << 20)}, {DeviceId(5), Bytes(0)}};
  welcome.step = step;
  return encode(welcome);
}

// Where the fields lie, from the payload's first byte on, as docs/wire_format.md has them.
constexpr std::size_t kWire = 0, kKernels = 1, kHeartbeat = 8, kPatience = 16, kCount = 24, kFirstDevice = 28;

template <class T>
Frame with(const Frame& frame, std::size_t at, T value) {
  return with_field(frame, kHeaderBytes + at, value);
}

// The same message with so many bytes of its payload, or with some more.
Frame of_length(const Frame& frame, Kind kind, std::int64_t bytes) {
  std::vector<std::byte> payload(frame.bytes().begin() + kHeaderBytes, frame.bytes().end());
  payload.resize(static_cast<std::size_t>(bytes));
  return encode_payload(kind, payload);
}

Fault fault_of_hello(const Frame& frame) {
  EXPECT_TRUE(decode(frame));  // the header is good
  const auto hello = decode_hello(frame);
  EXPECT_FALSE(hello);
  return hello ? Fault{255} : hello.fault();
}

Fault fault_of_welcome(const Frame& frame) {
  EXPECT_TRUE(decode(frame));
  const auto welcome = decode_welcome(frame);
  EXPECT_FALSE(welcome);
  return welcome ? Fault{255} : welcome.fault();
}

TEST(Handshake, AHelloThatMeansNothingIsRefused) {
  const Frame hello = some_hello();
  ASSERT_TRUE(decode_hello(hello));
  EXPECT_EQ(fault_of_hello(with<std::int64_t>(hello, 0, -1)), Fault::payload);
  EXPECT_EQ(fault_of_hello(with<std::uint32_t>(hello, 8, 5)), Fault::payload);  // a longer name leaves the next none
  EXPECT_EQ(fault_of_hello(with<std::uint32_t>(hello, 8, 0xffffffff)), Fault::payload);
  const std::int64_t whole = hello.size() - kHeaderBytes;
  for (std::int64_t bytes = 0; bytes < whole; ++bytes)
    EXPECT_EQ(fault_of_hello(of_length(hello, Kind::hello, bytes)), Fault::payload) << bytes;
  EXPECT_EQ(fault_of_hello(of_length(hello, Kind::hello, whole + 1)), Fault::payload);
  EXPECT_EQ(fault_of_hello(some_welcome()), Fault::kind);
}

TEST(Handshake, AWelcomeThatMeansNothingIsRefused) {
  const Frame welcome = some_welcome();
  const auto good = decode_welcome(welcome);
  ASSERT_TRUE(good);
  EXPECT_EQ(good->devices.size(), 2U);
  EXPECT_EQ(fault_of_welcome(with<std::uint8_t>(welcome, kWire, 255)), Fault::payload);
  EXPECT_EQ(fault_of_welcome(with<std::uint32_t>(welcome, kKernels, 257)), Fault::payload);
  for (const std::size_t at : {kHeartbeat, kPatience}) {
    EXPECT_TRUE(decode_welcome(with(welcome, at, 1e-3)));
    for (const double value :
         {0.0, -1.0, 1e-4, 1e30, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      EXPECT_EQ(fault_of_welcome(with(welcome, at, value)), Fault::payload) << value;
    }
  }
  for (const std::uint32_t count : {1U, 3U, 0xffffffffU})
    EXPECT_EQ(fault_of_welcome(with(welcome, kCount, count)), Fault::payload) << count;
  EXPECT_EQ(fault_of_welcome(with<std::int64_t>(welcome, kFirstDevice, -1)), Fault::payload);
  EXPECT_EQ(fault_of_welcome(with<std::int64_t>(welcome, kFirstDevice + 8, -1)), Fault::payload);  // its memory
  const std::int64_t whole = welcome.size() - kHeaderBytes;
  for (std::int64_t bytes = 0; bytes < whole; ++bytes)
    EXPECT_EQ(fault_of_welcome(of_length(welcome, Kind::welcome, bytes)), Fault::payload) << bytes;
  EXPECT_EQ(fault_of_welcome(of_length(welcome, Kind::welcome, whole + 1)), Fault::payload);
  EXPECT_EQ(fault_of_welcome(of_length(welcome, Kind::welcome, whole + 4)), Fault::payload);  // a step of no bytes
  EXPECT_EQ(fault_of_welcome(some_hello()), Fault::kind);
  const Frame in_stages = some_welcome("step");
  ASSERT_TRUE(decode_welcome(in_stages));
  EXPECT_EQ(fault_of_welcome(of_length(in_stages, Kind::welcome, in_stages.size() - kHeaderBytes + 1)), Fault::payload);
}

}  // namespace
}  // namespace cleave::comm
