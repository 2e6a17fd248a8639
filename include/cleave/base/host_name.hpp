// The name of the host that this process runs on.
#pragma once

#include <string>

namespace cleave {

/// As the kernel has it: any bytes, not always UTF-8. Empty where there is none.
[[nodiscard]] std::string host_name();

}  // namespace cleave
