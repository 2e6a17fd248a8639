// The header of a task without a shape, for tests of who sends, reads or answers one.
#pragma once

#include <cstdint>

#include "cleave/comm/message.hpp"

namespace cleave::testing_support {

inline comm::Header task_header(comm::Work work, DType wire = DType::f32, std::int64_t device = 3) {
  comm::Header header;
  header.kind = comm::Kind::task;
  header.tasklet = TaskletId(7);
  header.device = DeviceId(device);
  header.op = OpId(1);
  header.work = work;
  header.wire = header.output = wire;
  header.panels = 1;
  return header;
}

}  // namespace cleave::testing_support
