// Ranks whose answers are lost, held back, changed or refused on their way out.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "passing_on.hpp"
#include "run.hpp"

namespace cleave::testing_run {

/// What becomes of an answer.
enum class Deed {
  pass,
  lose,
  spoil,   // a bit of the first number is another
  huge,    // every number that comes first is the largest of fp32
  refuse,  // for want of finite values
  hold,
  hold_spoiled
};
using Deeds = std::function<Deed(const comm::Header&)>;

/// Does so with the answers of a rank. What is held goes on its way behind the next answer that passes.
class Meddling final : public PassingOn {
 public:
  Meddling(std::shared_ptr<comm::Transport> inner, Deeds deeds)
      : PassingOn(std::move(inner)), deeds_(std::move(deeds)) {}
  void send(int dest, comm::Frame frame) override {
    frame = comm::seal_payload(std::move(frame));
    const auto result = comm::decode_result(frame);
    if (!result) return PassingOn::send(dest, std::move(frame));
    switch (deeds_(result->header)) {
      case Deed::lose: return;
      case Deed::hold: held_.push_back(std::move(frame)); return;
      case Deed::hold_spoiled: held_.push_back(spoiled(*result)); return;
      case Deed::spoil: PassingOn::send(dest, spoiled(*result)); break;
      case Deed::huge: PassingOn::send(dest, huge(*result)); break;
      case Deed::refuse: PassingOn::send(dest, refused(result->header)); break;
      case Deed::pass: PassingOn::send(dest, std::move(frame)); break;
    }
    for (; !held_.empty(); held_.pop_front()) PassingOn::send(dest, std::move(held_.front()));
  }

 private:
  static comm::ResultDraft copy_of(const comm::ResultView& result) {
    comm::ResultDraft draft = comm::begin_result(result.header);
    for (std::size_t i = 0; i < draft.outputs.size(); ++i)
      std::ranges::copy(result.outputs[i], draft.outputs[i].begin());
    return draft;
  }
  static comm::Frame spoiled(const comm::ResultView& result) {
    comm::ResultDraft draft = copy_of(result);
    if (draft.outputs[0].size() > 2) draft.outputs[0][2] ^= std::byte{0x10};
    return comm::seal(std::move(draft));
  }
  static comm::Frame huge(const comm::ResultView& result) {
    comm::ResultDraft draft = copy_of(result);
    constexpr float kHuge = std::numeric_limits<float>::max();
    for (std::size_t at = 0; at + sizeof kHuge <= draft.outputs[0].size(); at += sizeof kHuge)
      std::memcpy(draft.outputs[0].data() + at, &kHuge, sizeof kHuge);
    return comm::seal(std::move(draft));
  }

  static comm::Frame refused(const comm::Header& header) {
    return comm::encode_refused(header.tasklet, header.device, comm::Reason::non_finite, "not finite");
  }

  Deeds deeds_;
  std::deque<comm::Frame> held_;
};

inline bool answers(const comm::Header& header, comm::StageErrand errand) {
  return header.work == comm::Work::stage && header.stage_task.errand == errand;
}

/// `s` with all answers of all ranks meddled with.
inline Setting with_deeds(Setting s, const Deeds& deeds) {
  s.between = [deeds](std::shared_ptr<comm::Transport> endpoint, int) {
    return std::make_shared<Meddling>(std::move(endpoint), deeds);
  };
  return s;
}

/// The bits that a setting must end with, whatever its layout and its devices do.
inline std::uint64_t bits_in_tiles(Setting s) {
  s.layout = sched::Layout::tiles;
  s.devices.clear();
  s.between = {};
  return train(s).hash;
}

}  // namespace cleave::testing_run
