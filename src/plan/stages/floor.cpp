// The floor: a bound of any layout. docs/cost_model.md, "A floor for any layout", derives it; the letters are those
// there.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cleave/plan/stage_bound.hpp"

namespace cleave::plan {

namespace {

class Floor {
 public:
  Floor(const StageWork& work, std::span<const fleet::DeviceProfile> devices, const fleet::ServerProfile& server)
      : server_(server),
        wire_(static_cast<double>(size_of(work.wire))),
        value_(wire_),
        tokens_(static_cast<double>(work.tokens())) {
    for (const model::Piece& piece : work.pieces) {
      const auto weights = static_cast<double>(piece.weight_elements());
      parameters_ += weights;
      double trained = 0;
      for (const model::SlicedTensor& tensor : piece.tensors)
        trained += tensor.trained && !tensor.vector ? static_cast<double>(tensor.elements()) : 0;
      trained_ += trained;
      const double attention =
          piece
              .attention_flops(0, work.seq, model::kAttentionForward + (piece.backward ? model::kAttentionBackward : 0))
              .value();
      flops_ +=
          static_cast<double>(work.batch) * attention + tokens_ * 2 * (weights * (piece.backward ? 2 : 1) + trained);
      if (piece.kind == model::PieceKind::head) continue;
      body_ += weights;
      if (piece.backward) body_back_ += weights;
      width_ = static_cast<double>(piece.width);
      value_ = std::min(wire_, static_cast<double>(row_bytes(work.boundary, piece.width)) / width_);
      for (const model::SlicedTensor& tensor : piece.tensors) {
        // A value that is no row of the residual stream is a product of depth `extent` or `width` at most.
        if (!tensor.vector)
          widest_ = std::max({widest_, static_cast<double>(tensor.extent), static_cast<double>(tensor.width)});
      }
    }
    for (const fleet::DeviceProfile& device : devices) {
      devices_.push_back({static_cast<double>(device.memory.value()), std::min(device.downlink, server.nic_out).value(),
                          std::min(device.uplink, server.nic_in).value(), device.compute.value()});
    }
  }

  double seconds() const {
    double flops = 0, down = 0, up = 0, fastest = 0, largest = 0;
    for (const Device& device : devices_) {
      flops += device.flops;
      down += device.down;
      up += device.up;
      fastest = std::max(fastest, device.down);
      largest = std::max(largest, device.memory);
    }
    down = std::min(down, server_.nic_out.value());
    up = std::min(up, server_.nic_in.value());
    const double links = wire_ * parameters_ / down + wire_ * trained_ / up;
    double rows = rows_leave();
    // A device that holds the whole model keeps its rows, once the weights have come.
    if (largest >= wire_ * parameters_) rows = std::min(rows, wire_ * parameters_ / fastest);
    return std::max({flops_ / flops, links, rows});
  }

 private:
  struct Device {
    double memory, down, up, flops;
  };

  // Parameters that a byte pays for, integrated over the uplink of a device until t.
  double paid(const Device& d, double t) const {
    if (std::isinf(d.up)) return std::numeric_limits<double>::infinity();
    if (std::isinf(d.down)) return d.up * t * std::max(d.memory / (wire_ * width_), widest_) / value_;
    const double filled = d.memory / d.down, grows = std::min(filled, widest_ * wire_ * width_ / d.down);
    const double least = widest_ / value_, full = std::max(d.memory / (wire_ * width_), widest_) / value_;
    const double slope = d.down / (wire_ * width_) / value_;
    double sum = least * std::min(t, grows);
    if (t > grows) sum += slope * (std::pow(std::min(t, filled), 2) - grows * grows) / 2;
    if (t > filled) sum += full * (t - filled);
    return sum * d.up;
  }
  double paid_by(double t) const {
    double sum = 0;
    for (const Device& d : devices_) sum += paid(d, t);
    return sum;
  }

  bool possible(double t) const {
    double fastest = 0;
    for (const Device& d : devices_) fastest = std::max(fastest, d.down);
    const double streamed = tokens_ * fastest * t / wire_;
    const double forward = tokens_ * body_, backward = tokens_ * body_back_;
    const double total = paid_by(t) + streamed;
    if (total < forward + backward) return false;
    double low = 0, high = t;
    for (int i = 0; i < 40; ++i) {
      const double middle = (low + high) / 2;
      (paid_by(middle) + streamed >= forward ? high : low) = middle;
    }
    // Gradients leave when the last row has passed the forward half, in the bytes that are worth least.
    double gradients = wire_ * trained_, spare = total - forward - backward;
    std::vector<std::pair<double, const Device*>> order;
    for (const Device& d : devices_)
      order.emplace_back(std::max(widest_, std::min(d.down * t, d.memory) / (wire_ * width_)), &d);
    std::ranges::sort(order, {}, &std::pair<double, const Device*>::first);
    for (const auto& [worth, d] : order) {
      const double bytes = std::min(gradients, d->up * (t - high));
      gradients -= bytes;
      spare -= bytes * std::max(widest_, std::min(d->down * high, d->memory) / (wire_ * width_)) / value_;
      if (gradients <= 0) break;
    }
    return gradients <= 0 && spare >= 0;
  }

  double rows_leave() const {
    double low = 0, high = 1;
    while (!possible(high)) {
      high *= 2;
      if (high > 1e12) return std::numeric_limits<double>::infinity();
    }
    for (int i = 0; i < 50; ++i) {
      const double middle = (low + high) / 2;
      (possible(middle) ? high : low) = middle;
    }
    return low;
  }

  fleet::ServerProfile server_;
  double wire_, value_;  // bytes of an element: a weight; a value that leaves a device
  double tokens_, width_ = 1, widest_ = 1;
  double parameters_ = 0, trained_ = 0, body_ = 0, body_back_ = 0, flops_ = 0;
  std::vector<Device> devices_;
};

}  // namespace

Seconds floor_of(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                 const fleet::ServerProfile& server, const ServerShare& share) {
  if (work.pieces.empty() || devices.empty()) return Seconds(0);
  return Seconds(Floor(work, devices, server).seconds()) + share.after;
}

}  // namespace cleave::plan
