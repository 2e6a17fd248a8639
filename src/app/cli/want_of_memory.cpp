// Nothing here asks for memory but look_after_memory().
#include "cli/want_of_memory.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

#include "cleave/base/error.hpp"

namespace cleave::app {

namespace {

/// For what a checkpoint's writer needs beside the tensors, which it writes from where they are.
constexpr std::size_t kHeldBack = std::size_t{1} << 20;

std::atomic<void*> held_back{nullptr};

void say(std::string_view text) noexcept { (void)!::write(STDERR_FILENO, text.data(), text.size()); }

void try_again_or_throw() {
  if (!give_what_was_held_back()) throw std::bad_alloc();
}

// An exception that nobody catches, or that would leave what must not fail; or one for which there was no memory.
[[noreturn]] void end_at_once() noexcept {
  bool out_of_memory = held_back == nullptr;
  std::string_view what = "std::terminate was called";
  std::exception_ptr current = std::current_exception();  // the text lives as long
  if (current) {
    try {
      throw;
    } catch (const std::bad_alloc&) { out_of_memory = true; } catch (const std::exception& error) {
      out_of_memory = false;
      what = error.what();
    } catch (...) {
      out_of_memory = false;
      what = "an exception that nobody catches";
    }
  }
  if (out_of_memory) {
    say("cleave: out of memory, where it is not to be done without\n");
    ::_exit(static_cast<int>(ExitCode::environment));
  }
  say("cleave: this is a bug of ours, please report it: ");
  say(what);
  say("\n");
  ::_exit(static_cast<int>(ExitCode::bug));
}

// Where the library or program begins that has this code; null: unknown.
const void* base_of(const void* code, Dl_info& info) noexcept {
  return ::dladdr(code, &info) != 0 ? info.dli_fbase : nullptr;
}

}  // namespace

void prepare_for_want_of_memory() {
  std::set_terminate(end_at_once);
  (void)look_after_memory();
  std::set_new_handler(try_again_or_throw);
}

MemoryState look_after_memory() {
  if (held_back != nullptr) return MemoryState::enough;
  void* const memory = std::malloc(kHeldBack);
  held_back = memory;
  return memory != nullptr ? MemoryState::ran_out : MemoryState::none_left;
}

bool give_what_was_held_back() noexcept {
  void* const memory = held_back.exchange(nullptr);
  std::free(memory);
  return memory != nullptr;
}

void end_unless_it_can_be_told(const void* code, std::size_t bytes) noexcept {
  Dl_info who{}, known{};
  const void* const asker = base_of(code, who);
  const auto* const of_cxx = reinterpret_cast<const void*>(&std::terminate);
  const auto* const of_program = reinterpret_cast<const void*>(&give_what_was_held_back);
  if (asker == nullptr || asker == base_of(of_cxx, known) || asker == base_of(of_program, known)) return;
  std::array<char, 512> text;
  const auto end = fmt::format_to_n(text.data(), text.size(), "cleave: out of memory: {} asked for {} bytes\n",
                                    who.dli_fname == nullptr ? "a library" : who.dli_fname, bytes);
  say({text.data(), std::min(end.size, text.size())});
  ::_exit(static_cast<int>(ExitCode::environment));
}

}  // namespace cleave::app
