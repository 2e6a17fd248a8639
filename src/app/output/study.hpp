// From an input to what systems are compared on, and from their reports to JSON and a table.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cleave/rivals/system.hpp"
#include "input/input.hpp"

namespace cleave::app {

/// Errors: InputError for a faulty churn trace.
[[nodiscard]] rivals::StudyInput study_of(const Input& input);

/// The object of docs/interface.md, with `layout` and `figures` (the method's own) beside.
[[nodiscard]] nlohmann::ordered_json to_json(const rivals::SystemReport& report);

/// The head of the table, and a system's line in it.
[[nodiscard]] std::string table_head();
[[nodiscard]] std::string table_row(const rivals::SystemReport& report);

}  // namespace cleave::app
