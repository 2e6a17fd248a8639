// VirtualRank: a device rank without threads: given a frame, it says at once what an honest rank would answer. Who
// drives it decides when the answers leave, and whether they do.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cleave/base/version.hpp"
#include "cleave/comm/handshake.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/kernels/parallel.hpp"
#include "cleave/model/step_text.hpp"
#include "cleave/pieces/stage_parts.hpp"
#include "execute.hpp"
#include "part_stream.hpp"
#include "stage_device.hpp"
#include "streamed_product.hpp"
#include "worker.hpp"

namespace cleave::simulation {

class VirtualRank {
 public:
  /// `in_place`: its results are to be read where it wrote them, and have the checksum that such frames have.
  explicit VirtualRank(bool in_place = false) : in_place_(in_place) {}

  [[nodiscard]] static comm::Frame hello(std::int64_t pid = 1, std::string host = "simulated") {
    return comm::encode(comm::Hello{.pid = pid, .host = std::move(host), .version = kVersion});
  }

  /// What the rank answers to a frame, in order; empty for what is no task and asks for no answer.
  [[nodiscard]] std::vector<comm::Frame> answer(comm::Frame frame) {
    std::vector<comm::Frame> out;
    const auto header = comm::decode(frame);
    if (!header) {
      if (const auto name = comm::peek_task(frame)) {
        parts_.give_up(name->tasklet);
        out.push_back(comm::encode_refused(name->tasklet, name->device, comm::Reason::malformed, "damaged"));
      }
      return out;
    }
    switch (header->kind) {
      case comm::Kind::welcome:
        accept(frame);
        out.push_back(comm::encode_ready());
        break;
      case comm::Kind::ping: out.push_back(comm::encode_pong(header->sequence)); break;
      case comm::Kind::goodbye: out.push_back(comm::encode_farewell()); break;
      case comm::Kind::release: release(*header); break;
      case comm::Kind::task: compute(std::move(frame), *header, out); break;
      default: break;
    }
    return out;
  }

 private:
  struct Kept {
    comm::Header header;
    std::shared_ptr<const comm::Frame> frame;
  };

  static constexpr Seconds kTook{1e-4};

  static void tell_digest(const comm::TaskView& task, const comm::ResultDraft& draft, std::vector<comm::Frame>& out) {
    out.push_back(comm::encode_digest(task.header, comm::digest_of(comm::key_of(task), draft.outputs), kTook, kTook));
  }

  // A device of steps in stages, and what its loads are for: slices of an owner, else the weights of a stage.
  struct Hosted {
    std::unique_ptr<device::StageDevice> stages;
    std::map<TaskletId, comm::StageTask> loads{};
  };

  void accept(const comm::Frame& frame) {
    const auto welcome = comm::decode_welcome(frame);
    if (!welcome || welcome->step.empty() || table_) return;
    graph_ = model::graph_of_stages(*model::parse_step_text(welcome->step));
    table_.emplace(graph_);
    for (const comm::HostedDevice& device : welcome->devices)
      hosted_[device.id].stages = std::make_unique<device::StageDevice>(*table_, parallel_, device.memory);
  }

  void release(const comm::Header& header) {
    columns_.erase(header.tasklet);
    const auto hosted = hosted_.find(header.device);
    if (hosted == hosted_.end()) return;
    const auto load = hosted->second.loads.find(header.tasklet);
    if (load == hosted->second.loads.end()) return;
    const comm::StageTask& task = load->second;
    if (task.owner >= 0) {
      hosted->second.stages->drop_slices(task.owner);
    } else if (task.operand_bytes > 0) {
      hosted->second.stages->drop_stage(task.stage);
    }
    hosted->second.loads.erase(load);
  }

  void compute_in_stages(comm::Frame frame, const comm::Header& header, std::vector<comm::Frame>& out) {
    const auto hosted = hosted_.find(header.device);
    if (hosted == hosted_.end()) {
      out.push_back(comm::encode_refused(header.tasklet, header.device, comm::Reason::unknown_device, "not here"));
      return;
    }
    if (header.stage_task.errand == comm::StageErrand::begin) hosted->second.loads.clear();
    if (header.stage_task.errand == comm::StageErrand::hold)
      hosted->second.loads.emplace(header.tasklet, header.stage_task);
    const comm::TaskView task = comm::view_task(frame, header);
    auto result = hosted->second.stages->execute(task, frame);
    if (!result) return;
    if (const auto* reason = std::get_if<comm::Reason>(&*result)) {
      out.push_back(comm::encode_refused(header.tasklet, header.device, *reason, comm::name_of(*reason)));
      return;
    }
    auto& draft = std::get<comm::ResultDraft>(*result);
    if (header.digest) return tell_digest(task, draft, out);
    comm::set_timing(draft, kTook, kTook);
    out.push_back(comm::seal(std::move(draft)));
  }

  void compute(comm::Frame frame, const comm::Header& header, std::vector<comm::Frame>& out) {
    if (header.work == comm::Work::stage) return compute_in_stages(std::move(frame), header, out);
    const auto refuse = [&](comm::Reason reason) {
      parts_.give_up(header.tasklet);
      out.push_back(comm::encode_refused(header.tasklet, header.device, reason, comm::name_of(reason)));
    };
    device::Job job;
    job.view = comm::view_task(frame, header);
    job.frame = std::move(frame);
    if (header.part.whole()) {
      parts_.drop();
    } else {
      switch (parts_.take(header)) {
        case device::PartStream::Found::next: break;
        case device::PartStream::Found::again: return;
        case device::PartStream::Found::broken: return refuse(comm::Reason::malformed);
      }
      parts_.share(job);
    }
    if (header.columns == comm::Columns::bring) {
      columns_.emplace(header.tasklet, Kept{header, std::make_shared<const comm::Frame>(std::move(job.frame))});
      return;
    }
    if (header.columns == comm::Columns::kept) {
      const auto found = columns_.find(header.brought_by);
      if (found == columns_.end()) return refuse(comm::Reason::absent);
      const comm::TaskView columns = comm::view_task(*found->second.frame, found->second.header);
      job.view.operands[1] = columns.operands[1];
      job.view.column_exponents = columns.column_exponents;
      job.view.header.b_by_columns = found->second.header.b_by_columns;
    }
    const auto say = [&](std::variant<comm::ResultDraft, comm::Reason> result) {
      if (const auto* reason = std::get_if<comm::Reason>(&result)) return refuse(*reason);
      auto& draft = std::get<comm::ResultDraft>(result);
      if (job.view.header.digest) return tell_digest(job.view, draft, out);
      comm::set_timing(draft, kTook, kTook);
      out.push_back(in_place_ ? comm::seal_header(std::move(draft)) : comm::seal(std::move(draft)));
    };
    if (job.product) {
      job.product->take(job.view, parallel_, scratch_, say);
    } else {
      say(device::execute(job.view, parallel_, scratch_));
    }
  }

  bool in_place_;
  kernels::Parallel parallel_{1};
  device::Scratch scratch_;
  device::PartStream parts_;
  std::unordered_map<TaskletId, Kept> columns_;
  model::StepGraph graph_;  // of steps in stages
  std::optional<pieces::PieceTable> table_;
  std::map<DeviceId, Hosted> hosted_;
};

}  // namespace cleave::simulation
