// The loop of a device rank: handshake, then receive, compute, answer when due, until goodbye.
#include "cleave/device/host.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <utility>

#include "cleave/base/error.hpp"
#include "cleave/base/version.hpp"
#include "cleave/comm/handshake.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "execute.hpp"
#include "worker.hpp"

namespace cleave::device {

namespace {

using comm::Kind;
using comm::Reason;

constexpr Seconds kFlush{10};  // for the last messages to leave

struct Hosted {
  comm::HostedDevice profile;
  Throttle throttle;
};

std::string system_host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

class Host {
 public:
  Host(comm::Transport& transport, const HostOptions& options)
      : transport_(transport), options_(options), clock_(options.clock != nullptr ? *options.clock : steady_) {}

  HostReport run() {
    heard_ = asked_ = steady_.now();
    if (greet()) serve();
    return std::move(report_);
  }

 private:
  void send(comm::Frame frame) { transport_.send(options_.server_rank, std::move(frame)); }

  void end(HostEnd how, std::string why = {}) {
    report_.end = how;
    report_.why = std::move(why);
  }

  // Hello, welcome, ready; or a refusal from either side. True: tasks may come.
  bool greet() {
    send(comm::encode(comm::Hello{
        .pid = getpid(), .host = options_.host.empty() ? system_host_name() : options_.host, .version = kVersion}));
    while (true) {
      const Seconds left = options_.welcome_patience - (steady_.now() - heard_);
      if (left.value() <= 0 || transport_.gone(options_.server_rank)) {
        end(HostEnd::server_gone, "the server did not answer the hello");
        return false;
      }
      auto received = transport_.wait(left);
      if (!received || received->source != options_.server_rank) continue;
      const auto header = comm::decode(received->frame);
      if (!header) {
        ++report_.malformed;
        // A server of another version cannot be understood, but can be told.
        if (header.fault() == comm::Fault::version) {
          return refuse(
              fmt::format("the server speaks another version of the wire format than {}", comm::kWireVersion));
        }
        continue;
      }
      switch (header->kind) {
        case Kind::welcome: return accept(received->frame);
        case Kind::ping: send(comm::encode_pong(header->sequence)); break;
        case Kind::refusal: end(HostEnd::refused, comm::text_of(received->frame)); return false;
        case Kind::goodbye:
          send(comm::encode_farewell());
          transport_.close(kFlush);
          end(HostEnd::goodbye);
          return false;
        default: break;
      }
    }
  }

  bool refuse(std::string why) {
    send(comm::encode_refusal(why));
    transport_.close(kFlush);
    end(HostEnd::refused, std::move(why));
    return false;
  }

  bool accept(const comm::Frame& frame) {
    auto welcome = comm::decode_welcome(frame);
    if (!welcome) return refuse(fmt::format("malformed welcome ({})", comm::name_of(welcome.fault())));
    welcome_ = *welcome;
    const auto kernels = kernels::parse_gemm_kernels(welcome_.gemm_kernels);
    if (!kernels) return refuse(fmt::format("unknown matrix kernels '{}'", welcome_.gemm_kernels));
    try {
      kernels::select_gemm_kernels(*kernels);
    } catch (const EnvironmentError& error) { return refuse(error.what()); }
    for (const comm::HostedDevice& device : welcome_.devices) {
      devices_.emplace(device.id, Hosted{device, Throttle(device, welcome_.seed)});
      report_.devices.push_back(device.id);
    }
    send(comm::encode_ready());
    return true;
  }

  void serve() {
    heard_ = asked_ = steady_.now();
    Worker worker(options_.threads, clock_, [this] { transport_.interrupt(); });
    while (true) {
      while (auto outcome = worker.take()) finish(std::move(*outcome));
      send_due();
      if (server_is_gone()) return;
      auto received = transport_.wait(until_next());
      if (!received || received->source != options_.server_rank) continue;
      if (!handle(std::move(received->frame), worker)) break;
    }
    // What is still computed is no longer wanted.
    send(comm::encode_farewell());
    transport_.close(kFlush);
    end(HostEnd::goodbye);
  }

  // Pings after a heartbeat of silence, and gives the server up when it does not answer for too long.
  bool server_is_gone() {
    const Seconds now = steady_.now(), silence = now - heard_;
    if (transport_.gone(options_.server_rank)) {
      end(HostEnd::server_gone, "the connection to the server is closed");
      return true;
    }
    if (silence > welcome_.patience) {
      end(HostEnd::server_gone, fmt::format("nothing was heard of the server for {:.0f} s", silence.value()));
      return true;
    }
    if (silence > welcome_.heartbeat && now - asked_ > welcome_.heartbeat) {
      send(comm::encode_ping(++pings_));
      asked_ = now;
    }
    return false;
  }

  [[nodiscard]] Seconds until_next() const {
    Seconds nap = std::min(welcome_.heartbeat, welcome_.patience);
    if (!due_.empty()) nap = std::min(nap, due_.begin()->first - clock_.now());
    return std::max(nap, Seconds(0));
  }

  // False: goodbye.
  bool handle(comm::Frame frame, Worker& worker) {
    heard_ = steady_.now();
    const auto header = comm::decode(frame);
    if (!header) {
      malformed(frame, header.fault());
      return true;
    }
    switch (header->kind) {
      case Kind::task: admit(std::move(frame), *header, worker); return true;
      case Kind::ping: send(comm::encode_pong(header->sequence)); return true;
      case Kind::goodbye: return false;
      default: return true;
    }
  }

  // A damaged task is answered where its frame still says which it was; anything else is dropped.
  void malformed(const comm::Frame& frame, comm::Fault fault) {
    ++report_.malformed;
    if (const auto name = comm::peek_task(frame)) {
      refuse_task(name->tasklet, name->device, Reason::malformed, comm::name_of(fault));
    }
  }

  void refuse_task(TaskletId tasklet, DeviceId device, Reason reason, std::string_view text) {
    ++report_.refused;
    send(comm::encode_refused(tasklet, device, reason, text));
  }

  void admit(comm::Frame frame, const comm::Header& header, Worker& worker) {
    const Seconds arrival = clock_.now();
    const comm::TaskView task = comm::view_task(frame, header);
    const auto refuse = [&](Reason reason, std::string_view text) {
      refuse_task(header.tasklet, header.device, reason, text);
    };
    const auto hosted = devices_.find(header.device);
    if (hosted == devices_.end()) return refuse(Reason::unknown_device, "not hosted on this rank");
    const Bytes needed = resident_bytes(header), memory = hosted->second.profile.memory;
    if (needed > memory) {
      return refuse(Reason::memory, fmt::format("needs {} bytes of {}", needed.value(), memory.value()));
    }
    Job job;
    job.arrival = arrival;
    if (welcome_.clock == comm::ClockMode::wall) {
      if (task.schedule.empty()) return refuse(Reason::malformed, "no schedule for the wall clock");
      job.modelled = hosted->second.throttle.admit(arrival, task);
    }
    job.view = task;
    job.frame = std::move(frame);
    job.order = accepted_++;
    worker.add(std::move(job));
  }

  // Sends a result now, or puts it where send_due() finds it.
  void finish(Outcome outcome) {
    report_.compute += outcome.compute;
    if (const auto* reason = std::get_if<Reason>(&outcome.result)) {
      return refuse_task(outcome.task.tasklet, outcome.task.device, *reason, comm::name_of(*reason));
    }
    ++report_.computed;
    auto& result = std::get<comm::ResultDraft>(outcome.result);
    const bool wall = welcome_.clock == comm::ClockMode::wall;
    const Seconds late = wall ? std::max(Seconds(0), outcome.done - outcome.modelled.computed) : Seconds(0);
    report_.late = std::max(report_.late, late);
    comm::set_timing(result, late, outcome.compute);
    const Seconds computed = wall ? std::max(outcome.done, outcome.modelled.computed) : outcome.done;
    const Seconds received = wall ? outcome.modelled.received : outcome.arrival;
    comm::set_stay(result, std::max(Seconds(0), received - outcome.arrival),
                   std::max(Seconds(0), computed - outcome.arrival));
    comm::Frame frame = comm::seal_header(std::move(result));
    if (wall) {
      due_.emplace(outcome.modelled.answered, std::move(frame));
    } else {
      send(std::move(frame));
    }
  }

  void send_due() {
    while (!due_.empty() && due_.begin()->first <= clock_.now()) {
      send(std::move(due_.begin()->second));
      due_.erase(due_.begin());
    }
  }

  comm::Transport& transport_;
  const HostOptions& options_;
  SteadyClock steady_;  // for the limits on silence, whatever clock times the devices
  Clock& clock_;
  comm::Welcome welcome_;
  std::unordered_map<DeviceId, Hosted> devices_;
  std::multimap<Seconds, comm::Frame> due_;
  Seconds heard_, asked_;  // when the server was last heard, and last asked
  std::uint32_t pings_ = 0;
  std::int64_t accepted_ = 0;
  HostReport report_;
};

}  // namespace

HostReport run_device_host(comm::Transport& transport, const HostOptions& options) {
  return Host(transport, options).run();
}

}  // namespace cleave::device
