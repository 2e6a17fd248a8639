// progfed: data parallelism on a model that grows while it trains.
//
// Training starts with a fraction of the layers under the head and adds the others in equal parts, each part for as
// many steps as the others but the last, which gets what is left. Its step is the mean over the whole run:
//   step = sum over parts p of share_p * step of the model with p/parts of the layers
// Other layers' parameters neither compute nor travel yet. That is another algorithm: its loss must be read beside its
// time. Source: Wang et al. 2022 (ProgFed, arXiv 2110.05323): four parts, growth over the first half of the run.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cleave/rivals/system.hpp"
#include "data_parallel_grid.hpp"

namespace cleave::rivals {

namespace {

constexpr std::int64_t kParts = 4;
/// Share of the run over which the model grows; the rest trains all of it.
constexpr double kGrowing = 0.5;

class ProgFed final : public PlacedSystem {
 public:
  [[nodiscard]] std::string name() const override { return "progfed"; }
  [[nodiscard]] std::string summary() const override {
    return "data parallelism on a model that grows layer by layer (ProgFed): another algorithm";
  }

 private:
  [[nodiscard]] std::vector<PlacedLayout> find_layouts(const StudyInput& study, SystemReport& report) const override {
    const Workload whole = describe_workload(study.model, study.batch, study.wire);
    CopyChoice choice = choose_copies(study, whole, {});
    report.why = choice.why;
    if (choice.able == 0) return {};
    std::string layout = fmt::format("{} of {} devices that hold the model, grown in {} parts; another algorithm",
                                     choice.grid.size(), choice.able, kParts);
    return one_layout(std::move(layout),
                      std::make_unique<CopyGrid>(study, whole, std::move(choice.grid), CopyOptions{}));
  }

  void carry_out(const StudyInput& study, const std::function<Seconds()>& elapsed,
                 SystemReport& report) const override {
    PlacedSystem::carry_out(study, elapsed, report);
    if (!report.feasible) return;
    const Workload whole = describe_workload(study.model, study.batch, study.wire);
    const CopyChoice choice = choose_copies(study, whole, {});
    const double whole_s = CopyGrid(study, whole, choice.grid, {}).step().time_s;
    report.figures.emplace_back("whole_model_s", whole_s);

    // Means over the run of what an undisturbed step says; losses and churn are those of the whole model.
    double step_s = 0, compute_s = 0, energy = 0, up = 0, down = 0;
    for (std::int64_t part = 1; part <= kParts; ++part) {
      StudyInput grown = study;
      grown.model.n_layer = std::max<std::int64_t>(1, study.model.n_layer * part / kParts);
      const double share = part < kParts ? kGrowing / (kParts - 1) : 1 - kGrowing;
      const Workload workload = describe_workload(grown.model, study.batch, study.wire);
      SystemReport stage;
      fill_report(grown, CopyGrid(grown, workload, choice.grid, {}).step(), stage);
      step_s += share * stage.step.value();
      compute_s += share * stage.compute.value();
      energy += share * stage.energy.value();
      up += share * static_cast<double>(stage.bytes_up.value());
      down += share * static_cast<double>(stage.bytes_down.value());
    }
    // Under churn a step's time holds the recovery, which is that of the whole model.
    const double smaller = step_s / whole_s;
    const Seconds recovery = study.churn.empty() ? Seconds(0) : report.recovery;
    report.step = (report.step - recovery) * smaller + recovery;
    report.lower_bound = report.lower_bound * smaller;
    report.compute = Seconds(compute_s);
    report.energy = Joules(energy);
    report.bytes_up = Bytes(static_cast<std::int64_t>(up));
    report.bytes_down = Bytes(static_cast<std::int64_t>(down));
  }
};

}  // namespace

std::unique_ptr<System> make_progfed() { return std::make_unique<ProgFed>(); }

}  // namespace cleave::rivals
