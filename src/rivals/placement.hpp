// Placement: a method's layout in use. What a step takes now, and what it costs when devices are lost.
//
// Each rival builds one; run_study() puts it through the study's losses or churn and fills the report, so that every
// rival is put through them alike.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cleave/rivals/system.hpp"
#include "cleave/sched/fleet.hpp"

namespace cleave::rivals {

/// What a step takes on the devices that are there.
struct StepCost {
  double time_s = 0;
  std::vector<sched::Usage> usage;  ///< per device of the study; zero for those not used
};

/// What a loss costs the step in which it happens.
struct Remedy {
  bool survives = true;  ///< false: state is gone that the method keeps nowhere else
  double added_s = 0;    ///< until the batch is back where it would have been, without detection
  std::string why;       ///< does not survive: what is gone
  std::vector<std::pair<std::string, double>> figures;
};

class Placement {
 public:
  virtual ~Placement() = default;
  [[nodiscard]] virtual StepCost step() const = 0;
  [[nodiscard]] virtual bool uses(std::size_t device) const = 0;
  /// Devices lost at once when this share of the step is done. Afterwards step() is that of what remains.
  virtual Remedy lose(std::span<const std::size_t> devices, double progress) = 0;
  /// A lost device is back: it takes its old place from the next step on, its state fetched in the background.
  virtual void restore(std::size_t device) = 0;
  /// Every rate of a device is from now on `factor` of what was declared.
  virtual void slow(std::size_t device, double factor) = 0;
};

/// A layout that a method may take, and what it says of it.
struct PlacedLayout {
  std::string layout;
  std::shared_ptr<const void> owned;  ///< what the placement refers to beside the study, so outlives it; may be empty
  std::unique_ptr<Placement> placement;
};

/// Memory of the study's devices, in bytes.
struct FleetMemory {
  double largest = 0, together = 0;
};
[[nodiscard]] FleetMemory memory_of_fleet(const StudyInput& study);

/// A list of the one layout that a method takes.
[[nodiscard]] std::vector<PlacedLayout> one_layout(std::string layout, std::unique_ptr<Placement> placement,
                                                   std::shared_ptr<const void> owned = nullptr);

/// A method whose devices hold their parts of the model between steps. It says which layouts it finds for a fleet, and
/// the study is run on them:
///
/// - of several candidates the best report is kept: the shortest step of those that go on, or that survive the losses.
///   Granted where devices may be lost, as the product's layout is chosen so.
/// - **A method plans again when devices turn out slow**: their rates are known from the step after the one in which
///   they changed. Then it finds layouts for the rates that steps have shown and for the devices that are there, and
///   goes on with the shorter step of these and of what it has. Granted: planning, and moving state between steps.
class PlacedSystem : public System {
 protected:
  /// The layouts that the method may take for the study's devices at these rates, the best first; none where the study
  /// is impossible, and report.why says what is missing. May add to report.figures. Requires of the caller: the study
  /// outlives the placements.
  [[nodiscard]] virtual std::vector<PlacedLayout> find_layouts(const StudyInput& study, SystemReport& report) const = 0;

  /// Finds layouts and runs the study on them. The lower bound is the time for which the layout's busiest resource is
  /// taken.
  void carry_out(const StudyInput& study, const std::function<Seconds()>& elapsed, SystemReport& report) const override;
};

/// Whether devices may be lost in the study.
[[nodiscard]] bool may_lose_devices(const StudyInput& study);

/// Fills what one undisturbed step says: all but recovery, planning and wall.
void fill_report(const StudyInput& study, const StepCost& cost, SystemReport& report);

/// The devices that the study's loss takes: the first `study.loss.devices` of a random order of all devices, among
/// those in use.
[[nodiscard]] std::vector<std::size_t> choose_victims(const StudyInput& study, const std::vector<bool>& used);

}  // namespace cleave::rivals
