// One handler per kind of error.
#include "cli/failures.hpp"

#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>

#include "cleave/base/error.hpp"
#include "cli/signals.hpp"
#include "commands/session.hpp"

namespace cleave::app {

namespace {

int fail(ExitCode code, const char* prefix, const std::string& text) {
  // Bad input is the same on every rank: one of them says it, and where the launcher ends the others with it, it is
  // said once. Who is left sees something else, such as a file that is missing on its host: one rank of each host says
  // that. Other failures are a rank's own.
  if (code == ExitCode::bad_input) let_first_rank_leave();
  if (launcher_rank() == 0 || code != ExitCode::bad_input) {
    std::fprintf(stderr, "%s%s\n", prefix, text.c_str());
  } else if (is_first_on_its_host()) {
    std::fprintf(stderr, "cleave: rank %d: %s%s\n", launcher_rank(), prefix, text.c_str());
  }
  return static_cast<int>(code);
}

}  // namespace

int with_exit_code(const std::function<int()>& body) {
  try {
    return body();
  } catch (const InputError& error) {
    return fail(ExitCode::bad_input, "", error.what());
  } catch (const CheckFailure& error) {
    return fail(ExitCode::check_failed, "cleave: ", error.what());
  } catch (const EnvironmentError& error) {
    return fail(ExitCode::environment, "cleave: ", error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(ExitCode::environment, "cleave: ", error.what());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::environment, "cleave: ", "out of memory");
  } catch (const Bug& error) {
    return fail(ExitCode::bug, "cleave: this is a bug of ours, please report it: ", error.what());
  } catch (const std::exception& error) { return fail(ExitCode::bug, "cleave: unexpected: ", error.what()); }
}

int require_whole_output() {
  if (!standard_output_is_whole()) throw EnvironmentError("write", "standard output", "it did not take everything");
  return 0;
}

}  // namespace cleave::app
