// A transport between a rank and its endpoint, for tests in which one behaves otherwise: it passes everything on, and
// whoever derives from it changes what the test is about.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "cleave/comm/transport.hpp"

namespace cleave::testing_run {

class PassingOn : public comm::Transport {
 public:
  explicit PassingOn(std::shared_ptr<comm::Transport> inner) : inner_(std::move(inner)) {}
  void send(int dest, comm::Frame frame) override { inner_->send(dest, std::move(frame)); }
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  [[nodiscard]] std::optional<comm::Received> poll() override { return inner_->poll(); }
  [[nodiscard]] std::optional<comm::Received> wait(Seconds at_most) override { return inner_->wait(at_most); }
  void interrupt() override { inner_->interrupt(); }
  [[nodiscard]] bool gone(int rank) const override { return inner_->gone(rank); }
  void abandon(int rank) override { inner_->abandon(rank); }
  bool close(Seconds at_most) override { return inner_->close(at_most); }
  [[nodiscard]] comm::TransportStats stats() const override { return inner_->stats(); }

 private:
  std::shared_ptr<comm::Transport> inner_;
};

}  // namespace cleave::testing_run
