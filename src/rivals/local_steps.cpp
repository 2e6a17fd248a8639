// local-steps: copies of the model that train on their own and are averaged now and then (DiLoCo).
//
// Every device trains its own copy on its share of the batch with AdamW; after `local_steps.interval` steps the copies'
// differences from the last average are all-reduced, and an outer optimizer with momentum makes the next average:
//   step = compute + update + ring all-reduce / interval
// That is another algorithm: a step does not lower the loss as a step of the same batch in one model does, so its time
// must be read beside its loss. Source: Douillard et al. 2023 (DiLoCo, arXiv 2311.08105), interval 500.
#include <fmt/format.h>

#include <memory>

#include "cleave/rivals/system.hpp"
#include "data_parallel_grid.hpp"

namespace cleave::rivals {

namespace {

/// The last average and the outer momentum, in fp32.
constexpr std::int64_t kOuterState = 8;

class LocalSteps final : public PlacedSystem {
 public:
  [[nodiscard]] std::string name() const override { return "local-steps"; }
  [[nodiscard]] std::string summary() const override {
    return "copies that train alone and are averaged now and then (DiLoCo): another algorithm";
  }

 private:
  [[nodiscard]] std::vector<PlacedLayout> find_layouts(const StudyInput& study, SystemReport& report) const override {
    const Workload workload = describe_workload(study.model, study.batch, study.wire);
    const CopyOptions options{.exchange_every = study.local_steps.interval, .extra_state = kOuterState};
    CopyChoice choice = choose_copies(study, workload, options);
    if (choice.able == 0) {
      report.why = choice.why;
      return {};
    }
    std::string layout = fmt::format("{} of {} devices that hold the model, averaged every {} steps; another algorithm",
                                     choice.grid.size(), choice.able, options.exchange_every);
    return one_layout(std::move(layout), std::make_unique<CopyGrid>(study, workload, std::move(choice.grid), options));
  }
};

}  // namespace

std::unique_ptr<System> make_local_steps() { return std::make_unique<LocalSteps>(); }

}  // namespace cleave::rivals
