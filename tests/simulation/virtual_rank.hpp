// VirtualRank: a device rank without threads: given a frame, it says at once what an honest rank would answer. Who
// drives it decides when the answers leave, and whether they do.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cleave/base/version.hpp"
#include "cleave/comm/handshake.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/kernels/parallel.hpp"
#include "execute.hpp"
#include "part_stream.hpp"
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
      case comm::Kind::welcome: out.push_back(comm::encode_ready()); break;
      case comm::Kind::ping: out.push_back(comm::encode_pong(header->sequence)); break;
      case comm::Kind::goodbye: out.push_back(comm::encode_farewell()); break;
      case comm::Kind::release: columns_.erase(header->tasklet); break;
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

  void compute(comm::Frame frame, const comm::Header& header, std::vector<comm::Frame>& out) {
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
      if (found == columns_.end()) return refuse(comm::Reason::columns);
      const comm::TaskView columns = comm::view_task(*found->second.frame, found->second.header);
      job.view.operands[1] = columns.operands[1];
      job.view.column_exponents = columns.column_exponents;
      job.view.header.b_by_columns = found->second.header.b_by_columns;
    }
    const auto say = [&](std::variant<comm::ResultDraft, comm::Reason> result) {
      if (const auto* reason = std::get_if<comm::Reason>(&result)) return refuse(*reason);
      auto& draft = std::get<comm::ResultDraft>(result);
      comm::set_timing(draft, Seconds(1e-4), Seconds(1e-4));
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
};

}  // namespace cleave::simulation
