// PartStream: whether a part of a tasklet can be computed: answers go back in order, a part of rows needs B, which
// came with the first one, and one of K blocks the sums of those before it. The server sends the parts of a tasklet
// one after another, so one B, or one result, is kept at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "cleave/comm/message.hpp"
#include "worker.hpp"

namespace cleave::device {

class PartStream {
 public:
  enum class Found : std::uint8_t {
    next,   ///< the part that was to come
    again,  ///< came before, or of a tasklet that is given up: nothing is to be done
    broken  ///< one before it is missing: the tasklet is given up
  };

  /// Requires: a part of a task that decode() has accepted.
  [[nodiscard]] Found take(const comm::Header& part);

  /// Parts of `tasklet` that still come are to be passed over.
  void give_up(TaskletId tasklet);

  /// Another tasklet's message has come: if parts were still missing, they will not come.
  void drop();

  /// Gives a part what it needs of those before it, and keeps what those after it need. Requires: take() has found it
  /// to be the next; job.frame and job.view are its own.
  void share(Job& job);

 private:
  std::optional<comm::Header> first_;  // header of the first part of the tasklet whose parts come
  std::int64_t next_ = 0;              // in units of its parts
  TaskletId given_up_;
  std::shared_ptr<const comm::Frame> frame_;  // of the first part of rows, until the last has come
  comm::TaskView view_;                       // into it
  std::shared_ptr<StreamedProduct> product_;  // of parts of K blocks, likewise
};

}  // namespace cleave::device
