// The systems, in the order of the documentation.
#include "cleave/rivals/registry.hpp"

#include "systems.hpp"

namespace cleave::rivals {

std::vector<std::unique_ptr<System>> all_systems() {
  std::vector<std::unique_ptr<System>> systems;
  systems.push_back(make_cleave());
  systems.push_back(make_cleave_paper());
  systems.push_back(make_dtfm());
  systems.push_back(make_asteroid());
  systems.push_back(make_tensor_parallel());
  systems.push_back(make_data_parallel());
  systems.push_back(make_cloud_gpu());
  return systems;
}

std::unique_ptr<System> find_system(std::string_view name) {
  for (std::unique_ptr<System>& system : all_systems()) {
    if (system->name() == name) return std::move(system);
  }
  return nullptr;
}

}  // namespace cleave::rivals
