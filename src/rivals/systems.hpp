// What each system's file offers to registry.cpp.
#pragma once

#include <memory>

#include "cleave/rivals/system.hpp"

namespace cleave::rivals {

[[nodiscard]] std::unique_ptr<System> make_cleave();
[[nodiscard]] std::unique_ptr<System> make_cleave_paper();
[[nodiscard]] std::unique_ptr<System> make_dtfm();
[[nodiscard]] std::unique_ptr<System> make_asteroid();
[[nodiscard]] std::unique_ptr<System> make_tensor_parallel();
[[nodiscard]] std::unique_ptr<System> make_data_parallel();
[[nodiscard]] std::unique_ptr<System> make_cloud_gpu();

}  // namespace cleave::rivals
