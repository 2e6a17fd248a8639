// data-parallel: the whole model on each device, ring all-reduce of gradients, shares in proportion to speed.
// Source of the ring: Patarasuk & Yuan 2009.
#include <fmt/format.h>

#include <memory>

#include "cleave/rivals/system.hpp"
#include "data_parallel_grid.hpp"

namespace cleave::rivals {

namespace {

class DataParallel final : public PlacedSystem {
 public:
  [[nodiscard]] std::string name() const override { return "data-parallel"; }
  [[nodiscard]] std::string summary() const override { return "the whole model on each device, ring all-reduce"; }

 private:
  [[nodiscard]] std::vector<PlacedLayout> find_layouts(const StudyInput& study, SystemReport& report) const override {
    const Workload workload = describe_workload(study.model, study.batch, study.wire);
    CopyChoice choice = choose_copies(study, workload, {});
    if (choice.able == 0) {
      report.why = choice.why;
      return {};
    }
    std::string layout = fmt::format("{} of {} devices that hold the model", choice.grid.size(), choice.able);
    return one_layout(std::move(layout),
                      std::make_unique<CopyGrid>(study, workload, std::move(choice.grid), CopyOptions{}));
  }
};

}  // namespace

std::unique_ptr<System> make_data_parallel() { return std::make_unique<DataParallel>(); }

}  // namespace cleave::rivals
