// Faults by rule: each frame is shown to the rules in order, and the first that picks it damages, holds or loses it.
#include "support/faulty_transport.hpp"

#include <algorithm>
#include <cstring>

namespace cleave::comm {

namespace {

constexpr std::size_t kKindOffset = 6;  // of the header, as docs/wire_format.md has it

Kind kind_of(const Frame& frame) {
  return frame.size() > static_cast<std::int64_t>(kKindOffset) ? static_cast<Kind>(frame.data()[kKindOffset]) : Kind{0};
}

}  // namespace

FaultyTransport::FaultyTransport(std::unique_ptr<Transport> inner, std::vector<FaultRule> rules, std::uint64_t seed)
    : inner_(std::move(inner)),
      rules_(std::move(rules)),
      seen_(rules_.size()),
      caused_(rules_.size()),
      random_(seed, Purpose::test, static_cast<std::uint32_t>(inner_->rank())) {}

const FaultRule* FaultyTransport::pick(Direction direction, const Frame& frame) {
  const Kind kind = kind_of(frame);
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const FaultRule& rule = rules_[i];
    if (rule.direction != direction || rule.kind != kind) continue;
    if (seen_[i]++ < rule.skip || (rule.count >= 0 && caused_[i] >= rule.count)) continue;
    if (rule.probability < 1 && random_.uniform(draws_++) >= rule.probability) continue;
    ++caused_[i];
    return &rule;
  }
  return nullptr;
}

Frame FaultyTransport::damage(FaultKind fault, Frame frame) {
  if (frame.empty()) return frame;
  if (fault == FaultKind::corrupt) {
    const std::uint64_t bit = random_.below(draws_++, static_cast<std::uint64_t>(frame.size()) * 8);
    frame.data()[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    return frame;
  }
  Frame shorter(static_cast<std::int64_t>(random_.below(draws_++, static_cast<std::uint64_t>(frame.size()))));
  if (!shorter.empty()) std::memcpy(shorter.data(), frame.data(), static_cast<std::size_t>(shorter.size()));
  return shorter;
}

void FaultyTransport::send(int dest, Frame frame) {
  release_due();
  const FaultRule* rule = pick(Direction::sending, frame);
  if (rule != nullptr) frame = seal_payload(std::move(frame));  // before it is damaged
  if (rule == nullptr) return inner_->send(dest, std::move(frame));
  switch (rule->fault) {
    case FaultKind::drop: return;
    case FaultKind::delay:
      held_.push_back({clock_.now() + rule->delay, Direction::sending, dest, std::move(frame)});
      return;
    case FaultKind::twice:
      inner_->send(dest, frame.copy());
      inner_->send(dest, std::move(frame));
      return;
    case FaultKind::corrupt:
    case FaultKind::truncate: inner_->send(dest, damage(rule->fault, std::move(frame))); return;
  }
}

void FaultyTransport::filter(Received received) {
  const FaultRule* rule = pick(Direction::receiving, received.frame);
  if (rule == nullptr) {
    arrived_.push_back(std::move(received));
    return;
  }
  received.frame = seal_payload(std::move(received.frame));
  if (received.frame.borrowed()) received.frame = received.frame.copy();
  switch (rule->fault) {
    case FaultKind::drop: return;
    case FaultKind::delay:
      held_.push_back({clock_.now() + rule->delay, Direction::receiving, received.source, std::move(received.frame)});
      return;
    case FaultKind::twice:
      arrived_.push_back({received.source, received.frame.copy()});
      arrived_.push_back(std::move(received));
      return;
    case FaultKind::corrupt:
    case FaultKind::truncate:
      arrived_.push_back({received.source, damage(rule->fault, std::move(received.frame))});
      return;
  }
}

void FaultyTransport::release_due() {
  const Seconds now = clock_.now();
  for (std::size_t i = 0; i < held_.size();) {
    if (held_[i].due > now) {
      ++i;
      continue;
    }
    Held held = std::move(held_[i]);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    if (held.direction == Direction::sending) {
      inner_->send(held.peer, std::move(held.frame));
    } else {
      arrived_.push_back({held.peer, std::move(held.frame)});
    }
  }
}

Seconds FaultyTransport::until_due(Seconds at_most) const {
  for (const Held& held : held_) at_most = std::min(at_most, std::max(Seconds(0), held.due - clock_.now()));
  return at_most;
}

std::optional<Received> FaultyTransport::poll() { return wait(Seconds(0)); }

std::optional<Received> FaultyTransport::wait(Seconds at_most) {
  const Seconds deadline = clock_.now() + at_most;
  while (true) {
    release_due();
    if (!arrived_.empty()) {
      Received first = std::move(arrived_.front());
      arrived_.pop_front();
      return first;
    }
    const Seconds left = std::max(Seconds(0), deadline - clock_.now());
    const Seconds nap = until_due(left);
    auto received = nap.value() > 0 ? inner_->wait(nap) : inner_->poll();
    if (received) {
      filter(std::move(*received));
    } else if (nap == left) {  // the time is up, or somebody interrupted
      release_due();
      if (arrived_.empty()) return std::nullopt;
    }
  }
}

}  // namespace cleave::comm
