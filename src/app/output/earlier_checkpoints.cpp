// From the newest checkpoint back, until one is early enough, or of other settings.
#include "output/earlier_checkpoints.hpp"

#include <fmt/format.h>

#include "cleave/base/error.hpp"
#include "cleave/checkpoint/folder.hpp"
#include "cleave/checkpoint/snapshot.hpp"
#include "cleave/server/checkpointing.hpp"
#include "input/run_settings.hpp"
#include "output/verdict.hpp"

namespace cleave::app {

std::optional<std::int64_t> EarlierCheckpoints::find(std::int64_t wanted, std::int64_t reach) {
  std::optional<std::int64_t> found;
  const RunSettings now = settings_from(settings_);
  for (const checkpoint::CheckpointFile& file : checkpoint::find_checkpoints(folder_)) {
    if (file.step >= reach) continue;
    try {
      checkpoint::verify_snapshot(file.path);
      const checkpoint::Header header = checkpoint::read_header(file.path);
      const RunSettings then = settings_from(checkpoint::find_text(header.state, "settings").value_or(""));
      if (then.empty() || !differences(then, now).empty()) {
        warn_(fmt::format("{} was trained with other settings: the run does not go back there", file.path.string()));
        break;
      }
      found = file.step;
    } catch (const InputError& error) { warn_(fmt::format("skipped {}: {}", file.path.string(), error.what())); }
    if (found && *found <= wanted) break;
  }
  return found;
}

void EarlierCheckpoints::load(std::int64_t step) {
  (void)server::load_checkpoint(checkpoint::checkpoint_path(folder_, step), parameters_, config_);
}

// The run goes on: that nothing on the disk says so yet matters only if it is killed before the steps are taken back.
void EarlierCheckpoints::condemn(std::int64_t step, const std::vector<DeviceId>& devices) {
  try {
    store_verdict(folder_, {.after_step = step, .devices = devices});
  } catch (const EnvironmentError& error) {
    warn_(fmt::format("a kill before the end of this step would leave checkpoints that are not to be used: {}",
                      error.what()));
  }
}

}  // namespace cleave::app
