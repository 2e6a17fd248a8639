// EarlierCheckpoints: the states to which a run can go back beyond what its process has in memory: the checkpoints of
// its branch, as far as nothing that bits depend on was changed since. It also leaves the verdict in the folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cleave/model/config.hpp"
#include "cleave/server/parameter_store.hpp"
#include "cleave/server/trainer.hpp"

namespace cleave::app {

class EarlierCheckpoints : public server::EarlierStates {
 public:
  /// `settings`: those of the run that goes on (RunState::settings). `warn` is told of checkpoints that cannot be used,
  /// and of a verdict that cannot be written. `parameters` must outlive it.
  EarlierCheckpoints(std::filesystem::path folder, server::ParameterStore& parameters, model::ModelConfig config,
                     std::string settings, std::function<void(const std::string&)> warn)
      : folder_(std::move(folder)),
        parameters_(parameters),
        config_(std::move(config)),
        settings_(std::move(settings)),
        warn_(std::move(warn)) {}

  [[nodiscard]] std::optional<std::int64_t> find(std::int64_t wanted, std::int64_t reach) override;
  void load(std::int64_t step) override;
  void condemn(std::int64_t step, const std::vector<DeviceId>& devices) override;

 private:
  std::filesystem::path folder_;
  server::ParameterStore& parameters_;
  model::ModelConfig config_;
  std::string settings_;
  std::function<void(const std::string&)> warn_;
};

}  // namespace cleave::app
