// What the program does when the system gives it no memory.
//
// A little is held back for that moment: the first who gets none, a library too, is given it, so that the step gets
// through; the training loop looks after each step, and ends in order where none can be held back again. Who gets none
// even so is told: std::bad_alloc from operator new, which ends the run with a message. Where that cannot be, because
// no exception may pass (a destructor, the end of a thread) or because a library would crash (HDF5, BLIS, Open MPI),
// the program says so and ends at once: files that it leaves are whole or absent, as after a kill.
#pragma once

#include <cstddef>

namespace cleave::app {

/// To be called once, before the command begins.
void prepare_for_want_of_memory();

enum class MemoryState { enough, ran_out, none_left };

/// Whether memory ran out since the last call; if it did, memory is held back again. none_left: it is not to be had.
[[nodiscard]] MemoryState look_after_memory();

/// True: what was held back is free now, and whoever got no memory may try again.
[[nodiscard]] bool give_what_was_held_back() noexcept;

/// A library has asked for so many bytes and there are none: says so and ends the program, unless the caller at
/// `code` can be told, that is the program itself or the C++ library.
void end_unless_it_can_be_told(const void* code, std::size_t bytes) noexcept;

}  // namespace cleave::app
