// Whether a run starts: what all ranks agree on.
#pragma once

namespace cleave::comm {

/// The server says with which exit code the run ends before it begins, 0 if it begins; every rank returns that code.
/// Waiting ranks sleep. Requires: an MpiSession. Collective: all ranks. Errors: EnvironmentError.
[[nodiscard]] int share_start_code(int code);

}  // namespace cleave::comm
