// StreamedProduct: a product whose operands come in panels of K blocks. Its sums stay on the device from panel to panel
// and are finished with the last one, so two panels of the operands are there at once, and never all of them.
//
// Sums lie in strips of rows, which leave one after another: a result takes no more room than its sums did.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <variant>
#include <vector>

#include "cleave/comm/message.hpp"
#include "cleave/kernels/matrix.hpp"
#include "cleave/kernels/parallel.hpp"
#include "execute.hpp"

namespace cleave::device {

class StreamedProduct {
 public:
  /// Called with each answer to a panel, in order.
  using Answer = std::function<void(std::variant<comm::ResultDraft, comm::Reason>)>;

  /// Of the tasklet whose first panel is `first`, which brings the exponents.
  explicit StreamedProduct(const comm::TaskView& first);

  /// Adds one panel and answers it: with a result that has no numbers or, if it is the last one, with the rows of C,
  /// strip after strip; or with Reason::non_finite, after which nothing of this product is answered any more.
  /// Requires: panels in order, each once. Errors: EnvironmentError, bad_alloc.
  void take(const comm::TaskView& panel, kernels::Parallel& parallel, Scratch& scratch, const Answer& answer);

 private:
  struct Strip {
    std::int64_t first = 0, count = 0;  // rows
    std::vector<std::byte> sums{};
  };
  [[nodiscard]] bool add(const comm::TaskView& panel, const Strip& strip, std::byte* sums, kernels::ConstMatrix a,
                         kernels::ConstMatrix b, kernels::Parallel& parallel) const;
  [[nodiscard]] comm::ResultDraft begin_rows(const Strip& strip) const;
  [[nodiscard]] bool finish(const Strip& strip, std::span<std::byte> rows, kernels::Parallel& parallel,
                            Scratch& scratch) const;

  comm::Header task_;
  std::vector<std::int16_t> row_exponents_, column_exponents_;
  std::vector<Strip> strips_;
  bool failed_ = false;
};

}  // namespace cleave::device
