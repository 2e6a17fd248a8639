// The systems, in the order of the documentation: the one place that lists them.
#include "cleave/rivals/registry.hpp"

// One line for each system: make_NAME(), in a file of its own, makes it.
#define CLEAVE_SYSTEMS(X) \
  X(cleave)               \
  X(cleave_paper)         \
  X(dtfm)                 \
  X(dtfm_plus)            \
  X(asteroid)             \
  X(asteroid_plus)        \
  X(swarm)                \
  X(megatron)             \
  X(fsdp)                 \
  X(confidant)            \
  X(fusionllm)            \
  X(local_steps)          \
  X(galaxy)               \
  X(summa)                \
  X(progfed)              \
  X(tensor_parallel)      \
  X(data_parallel)        \
  X(cloud_gpu)

namespace cleave::rivals {

#define CLEAVE_DECLARE(name) std::unique_ptr<System> make_##name();
CLEAVE_SYSTEMS(CLEAVE_DECLARE)
#undef CLEAVE_DECLARE

std::vector<std::unique_ptr<System>> all_systems() {
  std::vector<std::unique_ptr<System>> systems;
#define CLEAVE_MAKE(name) systems.push_back(make_##name());
  CLEAVE_SYSTEMS(CLEAVE_MAKE)
#undef CLEAVE_MAKE
  return systems;
}

std::unique_ptr<System> find_system(std::string_view name) {
  for (std::unique_ptr<System>& system : all_systems()) {
    if (system->name() == name) return std::move(system);
  }
  return nullptr;
}

}  // namespace cleave::rivals
