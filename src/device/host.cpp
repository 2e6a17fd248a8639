// The loop of a device rank: handshake, then receive, compute, answer, until goodbye.
#include "cleave/device/host.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "cleave/base/error.hpp"
#include "cleave/base/host_name.hpp"
#include "cleave/base/version.hpp"
#include "cleave/comm/handshake.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "cleave/model/step_text.hpp"
#include "cleave/pieces/stage_parts.hpp"
#include "execute.hpp"
#include "part_stream.hpp"
#include "stage_device.hpp"
#include "worker.hpp"

namespace cleave::device {

namespace {

using comm::Kind;
using comm::Reason;

constexpr Seconds kFlush{10};  // for the last messages to leave

// Columns of B that stay for tasks to come.
struct CachedColumns {
  comm::Header header;
  std::shared_ptr<const comm::Frame> frame;
};

// Memory that a step in stages keeps on a device, and the slices or the weights of a stage that go with it.
struct Reserved {
  Bytes memory;
  std::int32_t owner = -1, stage = -1;
};

struct Hosted {
  Bytes memory;
  std::unordered_map<TaskletId, Reserved> reserved{};  // by the task that asked for it
  Bytes reserved_bytes{0};
  bool lacks_memory = false;  // for something that was to be held in this step
  std::unique_ptr<StageDevice> stages{};
  std::unordered_map<TaskletId, CachedColumns> columns{};  // by the task that brought them
  Bytes columns_bytes{0};
};

std::string system_host_name() {
  std::string name = host_name();
  return name.empty() ? "unknown" : name;
}

class Host {
 public:
  Host(comm::Transport& transport, const HostOptions& options) : transport_(transport), options_(options) {}

  HostReport run() {
    heard_ = asked_ = clock_.now();
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
      const Seconds left = options_.welcome_patience - (clock_.now() - heard_);
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
    if (!welcome_.step.empty()) {
      const auto step = model::parse_step_text(welcome_.step);
      if (!step) return refuse("malformed model");
      graph_ = model::graph_of_stages(*step);
      table_.emplace(graph_);
    }
    for (const comm::HostedDevice& device : welcome_.devices) {
      devices_.emplace(device.id, Hosted{.memory = device.memory});
      report_.devices.push_back(device.id);
    }
    send(comm::encode_ready());
    return true;
  }

  void serve() {
    heard_ = asked_ = clock_.now();
    Worker worker(options_.threads, [this] { transport_.interrupt(); });
    const Seconds nap = std::min(welcome_.heartbeat, welcome_.patience);
    while (true) {
      while (auto outcome = worker.take()) finish(std::move(*outcome));
      if (server_is_gone()) return;
      auto received = transport_.wait(nap);
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
    const Seconds now = clock_.now(), silence = now - heard_;
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

  // False: goodbye.
  bool handle(comm::Frame frame, Worker& worker) {
    heard_ = clock_.now();
    const auto header = comm::decode(frame);
    if (!header) {
      malformed(frame, header.fault());
      return true;
    }
    switch (header->kind) {
      case Kind::task: admit(std::move(frame), *header, worker); return true;
      case Kind::ping: send(comm::encode_pong(header->sequence)); return true;
      case Kind::release: release(*header, worker); return true;
      case Kind::goodbye: return false;
      default: return true;
    }
  }

  // A damaged task is answered where its frame still says which it was; anything else is dropped.
  void malformed(const comm::Frame& frame, comm::Fault fault) {
    ++report_.malformed;
    if (const auto name = comm::peek_task(frame)) {
      parts_.give_up(name->tasklet);
      refuse_task(name->tasklet, name->device, Reason::malformed, comm::name_of(fault));
    }
  }

  void refuse_task(TaskletId tasklet, DeviceId device, Reason reason, std::string_view text) {
    ++report_.refused;
    send(comm::encode_refused(tasklet, device, reason, text));
  }

  void admit(comm::Frame frame, const comm::Header& header, Worker& worker) {
    const Seconds arrival = clock_.now();
    const auto refuse = [&](Reason reason, std::string_view text) {
      parts_.give_up(header.tasklet);
      refuse_task(header.tasklet, header.device, reason, text);
    };
    const auto hosted = devices_.find(header.device);
    if (hosted == devices_.end()) return refuse(Reason::unknown_device, "not hosted on this rank");
    Hosted& device = hosted->second;
    if (header.work == comm::Work::stage) return admit_stage(device, std::move(frame), header, arrival, worker);
    const Bytes needed = resident_bytes(header);
    const Bytes memory = device.memory - device.columns_bytes - device.reserved_bytes;
    const bool admitted = header.part.first > 0;  // with its first part
    if (!admitted && needed > memory) {
      return refuse(Reason::memory, fmt::format("needs {} bytes of {}", needed.value(), memory.value()));
    }
    Job job;
    job.arrival = arrival;
    job.view = comm::view_task(frame, header);
    job.frame = std::move(frame);
    if (header.part.whole()) {
      parts_.drop();
    } else {
      switch (parts_.take(header)) {
        case PartStream::Found::next: break;
        case PartStream::Found::again: return;
        case PartStream::Found::broken: return refuse(Reason::malformed, "a part is missing");
      }
      parts_.share(job);
    }
    if (header.columns == comm::Columns::kept && !take_columns(device, job)) {
      return refuse(Reason::absent, fmt::format("task {} brought no such columns", header.brought_by.value));
    }
    if (header.columns == comm::Columns::bring) return keep_columns(device, header, std::move(job.frame));
    worker.add(std::move(job));
  }

  // Columns outlive the message, so they do not stay in a sender's memory.
  static void keep_columns(Hosted& device, const comm::Header& header, comm::Frame frame) {
    if (device.columns.contains(header.tasklet)) return;
    device.columns_bytes += resident_bytes(header);
    auto own = std::make_shared<const comm::Frame>(frame.borrowed() ? frame.copy() : std::move(frame));
    device.columns.emplace(header.tasklet, CachedColumns{header, std::move(own)});
  }

  // Points a job to the columns that it is to use; false where they are not there.
  static bool take_columns(const Hosted& device, Job& job) {
    comm::Header& header = job.view.header;
    const auto found = device.columns.find(header.brought_by);
    if (found == device.columns.end()) return false;
    const comm::Header& kept = found->second.header;
    comm::GemmBlock wanted = header.gemm;
    wanted.m = 0;
    if (kept.gemm != wanted || kept.wire != header.wire) return false;
    job.columns = found->second.frame;
    const comm::TaskView columns = comm::view_task(*job.columns, kept);
    job.view.operands[1] = columns.operands[1];
    job.view.column_exponents = columns.column_exponents;
    header.b_by_columns = kept.b_by_columns;
    return true;
  }

  // Of tasks of a step in stages each has its place in the order, also those that only ask for memory.
  void admit_stage(Hosted& device, comm::Frame frame, const comm::Header& header, Seconds arrival, Worker& worker) {
    const auto refuse = [&](Reason reason, std::string_view text) {
      refuse_task(header.tasklet, header.device, reason, text);
    };
    if (!table_ || table_->size() == 0) return refuse(Reason::malformed, "there is no model for stages");
    if (!device.stages) device.stages = std::make_unique<StageDevice>(*table_, worker.parallel(), device.memory);
    const comm::StageTask& task = header.stage_task;
    if (task.errand == comm::StageErrand::begin) {
      device.reserved.clear();
      device.reserved_bytes = Bytes(0);
      device.lacks_memory = false;
    }
    if (task.errand == comm::StageErrand::hold && !device.reserved.contains(header.tasklet)) {
      const Bytes free = device.memory - device.columns_bytes - device.reserved_bytes;
      if (Bytes(task.memory) > free) {
        device.lacks_memory = true;
        return refuse(Reason::memory, fmt::format("needs {} bytes of {}", task.memory, free.value()));
      }
      const bool weights = task.owner < 0 && task.operand_bytes > 0;
      device.reserved.emplace(header.tasklet, Reserved{Bytes(task.memory), task.owner, weights ? task.stage : -1});
      device.reserved_bytes += Bytes(task.memory);
    }
    if (device.lacks_memory && task.answered()) return refuse(Reason::memory, "what it needs could not be held");
    Job job;
    job.arrival = arrival;
    job.stages = device.stages.get();
    job.view = comm::view_task(frame, header);
    job.frame = std::move(frame);
    worker.add(std::move(job));
  }

  void release(const comm::Header& header, Worker& worker) {
    const auto hosted = devices_.find(header.device);
    if (hosted == devices_.end()) return;
    if (const auto kept = hosted->second.reserved.find(header.tasklet); kept != hosted->second.reserved.end()) {
      hosted->second.reserved_bytes -= kept->second.memory;
      if (kept->second.owner >= 0 || kept->second.stage >= 0) {
        Job job;
        job.stages = hosted->second.stages.get();
        job.drops = Dropped{.owner = kept->second.owner, .stage = kept->second.stage};
        worker.add(std::move(job));
      }
      hosted->second.reserved.erase(kept);
    }
    const auto found = hosted->second.columns.find(header.tasklet);
    if (found == hosted->second.columns.end()) return;
    hosted->second.columns_bytes -= resident_bytes(found->second.header);
    hosted->second.columns.erase(found);
  }

  void finish(Outcome outcome) {
    report_.compute += outcome.compute;
    if (const auto* reason = std::get_if<Reason>(&outcome.result)) {
      return refuse_task(outcome.task.tasklet, outcome.task.device, *reason, comm::name_of(*reason));
    }
    ++report_.computed;
    const Seconds computed = outcome.done - outcome.arrival;
    if (outcome.digest) return send(comm::encode_digest(outcome.task, *outcome.digest, outcome.compute, computed));
    auto& result = std::get<comm::ResultDraft>(outcome.result);
    comm::set_timing(result, outcome.compute, computed);
    send(comm::seal_header(std::move(result)));
  }

  comm::Transport& transport_;
  const HostOptions& options_;
  SteadyClock clock_;
  comm::Welcome welcome_;
  model::StepGraph graph_;  // of steps in stages
  std::optional<pieces::PieceTable> table_;
  std::unordered_map<DeviceId, Hosted> devices_;
  PartStream parts_;
  Seconds heard_, asked_;  // when the server was last heard, and last asked
  std::uint32_t pings_ = 0;
  HostReport report_;
};

}  // namespace

HostReport run_device_host(comm::Transport& transport, const HostOptions& options) {
  return Host(transport, options).run();
}

}  // namespace cleave::device
