// A device rank behind a loopback transport, with a test as its server, and small tasks for it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/base/random.hpp"
#include "cleave/comm/handshake.hpp"
#include "cleave/comm/loopback.hpp"
#include "cleave/device/host.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "cleave/kernels/wire.hpp"
#include "support/task_header.hpp"

namespace cleave::device {

using comm::Kind;
using comm::Reason;
using comm::Work;

inline constexpr Seconds kPatience{30};

inline comm::HostedDevice device(std::int64_t id, std::int64_t memory = 1 << 30) {
  return {.id = DeviceId(id), .memory = Bytes(memory)};
}

inline comm::Welcome welcome(std::vector<comm::HostedDevice> devices) {
  comm::Welcome w;
  w.gemm_kernels = std::string(kernels::name_of(kernels::best_gemm_kernels()));
  w.devices = std::move(devices);
  return w;
}

// The server's side of a hub with one host running on a thread.
class Server {
 public:
  explicit Server(HostOptions options = {}) : hub_(2), transport_(hub_.endpoint(0)) {
    auto far = hub_.endpoint(1);
    host_ = std::async(std::launch::async,
                       [endpoint = std::move(far), options]() mutable { return run_device_host(*endpoint, options); });
  }
  ~Server() {
    if (host_.valid()) transport_->close(Seconds(0));
  }

  void send(comm::Frame frame) { transport_->send(1, std::move(frame)); }

  comm::Frame expect(Kind kind) {
    const SteadyClock clock;
    for (const Seconds deadline = clock.now() + kPatience; clock.now() < deadline;) {
      auto received = transport_->wait(Seconds(1));
      if (!received) continue;
      const auto header = comm::decode(received->frame);
      EXPECT_TRUE(header);
      if (header && header->kind == kind) return std::move(received->frame);
      if (header && header->kind == Kind::ping) {
        if (answer_pings) send(comm::encode_pong(header->sequence));
        continue;
      }
      ADD_FAILURE() << "got " << (header ? comm::name_of(header->kind) : "a damaged frame") << " "
                    << comm::text_of(received->frame);
      return {};
    }
    ADD_FAILURE() << "waited in vain for " << comm::name_of(kind);
    return {};
  }

  void start(const comm::Welcome& terms) {
    EXPECT_EQ(comm::decode_hello(expect(Kind::hello))->pid, getpid());
    send(comm::encode(terms));
    expect(Kind::ready);
  }

  HostReport stop() {
    send(comm::encode_goodbye());
    expect(Kind::farewell);
    return report();
  }

  HostReport report() {
    EXPECT_EQ(host_.wait_for(std::chrono::seconds(30)), std::future_status::ready);
    return host_.get();
  }

  comm::Transport& transport() { return *transport_; }
  bool answer_pings = true;

 private:
  comm::LoopbackHub hub_;
  std::unique_ptr<comm::Transport> transport_;
  std::future<HostReport> host_;
};

inline std::vector<float> numbers(std::size_t count, std::uint32_t stream) {
  const Random random(5, Purpose::test, stream);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(random.normal(i));
  return values;
}

// The same rows x cols values, column after column.
inline std::vector<float> transposed(const std::vector<float>& values, std::int64_t rows, std::int64_t cols) {
  std::vector<float> turned;
  for (std::int64_t j = 0; j < cols; ++j) {
    for (std::int64_t i = 0; i < rows; ++i) turned.push_back(values[static_cast<std::size_t>(i * cols + j)]);
  }
  return turned;
}

inline comm::Header task_header(Work work, DType wire, std::int64_t device_id = 0) {
  return testing_support::task_header(work, wire, device_id);
}

inline comm::Header gemm_header(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t blocks, std::int64_t first,
                                DType wire) {
  comm::Header header = task_header(Work::gemm, wire);
  header.gemm = {m, n, k, blocks, first};
  header.output = header.gemm.whole_depth() ? wire : partial_sum_type(wire);
  return header;
}

inline void pack(std::span<std::byte> to, DType wire, const std::vector<float>& values) {
  ASSERT_EQ(to.size(), values.size() * static_cast<std::size_t>(size_of(wire)));
  if (values.empty()) return;  // memcpy takes no null pointer, even for no bytes
  if (wire == DType::f32) {
    std::memcpy(to.data(), values.data(), to.size());
  } else {
    const auto count = static_cast<std::int64_t>(values.size());
    kernels::narrow(wire, kernels::ConstRows(values.data(), 1, count), reinterpret_cast<std::uint16_t*>(to.data()),
                    count);
  }
}

inline std::vector<std::byte> packed(DType wire, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(size_of(wire)));
  pack(bytes, wire, values);
  return bytes;
}

inline std::vector<std::byte> copy_of(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

// A small finished product on device `id`.
inline comm::Frame small_task(std::int64_t id, std::int64_t tasklet,
                              comm::InjectedFault lie = comm::InjectedFault::none) {
  comm::Header header = gemm_header(4, 3, 8, 1, 0, DType::f32);
  header.device = DeviceId(id);
  header.tasklet = TaskletId(tasklet);
  header.fault = lie;
  header.sequence = static_cast<std::uint32_t>(lie);
  comm::TaskDraft draft = comm::begin_task(header);
  pack(draft.operands[0], DType::f32, numbers(32, 1));
  pack(draft.operands[1], DType::f32, numbers(24, 2));
  return comm::seal(std::move(draft));
}

}  // namespace cleave::device
