// StreamedProduct: a product whose operands come in parts of K blocks. Its sums stay on the device from part to part
// and are finished with the last one, so two parts of the operands are there at once, and never all of them.
//
// Sums lie in bands of rows, which leave one after another: a result takes no more room than its sums did.
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
#include "cleave/kernels/token_sum_matrix.hpp"
#include "execute.hpp"

namespace cleave::device {

class StreamedProduct {
 public:
  /// Called with each answer to a part, in order.
  using Answer = std::function<void(std::variant<comm::ResultDraft, comm::Reason>)>;

  /// Of the tasklet whose first part is `first`, which brings the exponents.
  explicit StreamedProduct(const comm::TaskView& first);

  /// Adds one part and answers it: with a result that has no numbers or, if it is the last one, with the rows of C,
  /// band after band; or with Reason::non_finite, after which nothing of this product is answered any more.
  /// Requires: parts in order, each once. Errors: EnvironmentError, bad_alloc.
  void take(const comm::TaskView& part, kernels::Parallel& parallel, Scratch& scratch, const Answer& answer);

 private:
  struct ResultBand {
    std::int64_t first = 0, count = 0;  // rows
    std::vector<std::byte> sums{};
    kernels::TokenSumMatrix unit_sums{};  // in their place where TokenSumMatrix::sums() says so
  };
  [[nodiscard]] bool add(const comm::TaskView& part, ResultBand& band, kernels::ConstMatrix a, kernels::ConstMatrix b,
                         kernels::Parallel& parallel) const;
  [[nodiscard]] comm::ResultDraft begin_rows(const ResultBand& band) const;
  [[nodiscard]] comm::Reason finish(const ResultBand& band, comm::ResultDraft& rows, kernels::Parallel& parallel,
                                    Scratch& scratch) const;

  comm::Header task_;
  std::vector<std::int16_t> row_exponents_, column_exponents_;
  std::vector<ResultBand> bands_;
  bool failed_ = false;
};

}  // namespace cleave::device
