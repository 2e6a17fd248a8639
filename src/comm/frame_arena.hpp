// FrameArena: where a process keeps the large frames that ranks of its host may read in place.
//
// A range of addresses far larger than what is used. Memory is taken from the system two MiB at a time, when a frame
// first needs it, and stays for later frames, at the lowest addresses first; what is free beyond a limit goes back,
// where the kernel takes it: not where it keeps others from writing to it (SharedMapping::Writers).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cleave/base/kept_memory.hpp"
#include "cleave/base/units.hpp"
#include "cleave/comm/frame.hpp"
#include "shared_mapping.hpp"

namespace cleave::comm {

/// See the file comment. Any thread may use it.
class FrameArena final : public FrameMemory {
 public:
  /// At most `bytes` of memory, of which `spare` are kept when free. Null where memory cannot be shared.
  /// Where only the maker may write, as in share_large_frames(), memory stays at its peak instead.
  [[nodiscard]] static std::shared_ptr<FrameArena> make(std::int64_t bytes, std::int64_t spare,
                                                        SharedMapping::Writers writers = SharedMapping::Writers::all);

  /// Memory on a page of its own, not initialised. Null: there is none left, here or in the system.
  [[nodiscard]] std::byte* take(std::int64_t bytes);
  void give_back(std::byte* data, std::int64_t bytes, std::uint32_t ticket) noexcept override;

  [[nodiscard]] bool holds(const std::byte* data) const {
    return data >= memory_.data() && data < memory_.data() + memory_.bytes();
  }
  [[nodiscard]] std::int64_t offset_of(const std::byte* data) const { return data - memory_.data(); }
  [[nodiscard]] SharedAddress address() const { return memory_.address(); }
  /// Taken from the system, in use or spare.
  [[nodiscard]] Bytes held() const;
  [[nodiscard]] Bytes in_use() const;

 private:
  FrameArena(SharedMapping memory, std::int64_t spare);
  bool ensure(std::int64_t offset, std::int64_t bytes);
  void return_spare();

  SharedMapping memory_;
  std::int64_t spare_;
  mutable std::mutex mutex_;
  NodePool nodes_;
  std::pmr::map<std::int64_t, std::int64_t> free_{&nodes_};  // bytes by offset; neighbours are merged
  std::vector<bool> taken_;                                  // chunks that have memory
  std::int64_t in_use_ = 0, held_ = 0;
  bool returns_ = true;
};

/// The arena that large frames of this process come from, made when it is first asked for; null where there is none.
[[nodiscard]] std::shared_ptr<FrameArena> share_large_frames();

}  // namespace cleave::comm
