// ByDevice: a value for each device, by its index, and one for the server itself; there from the first use on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "cleave/base/ids.hpp"

namespace cleave::sched {

template <class Value>
class ByDevice {
 public:
  /// Every value is as new.
  void clear() {
    values_.clear();
    server_ = Value{};
  }
  Value& operator[](DeviceId device) {
    if (device == kServerDevice) return server_;
    const auto index = static_cast<std::size_t>(device.value);
    if (index >= values_.size()) values_.resize(index + 1);
    return values_[index];
  }
  /// Null: it was not used yet.
  [[nodiscard]] const Value* find(DeviceId device) const {
    if (device == kServerDevice) return &server_;
    const auto index = static_cast<std::size_t>(device.value);
    return index < values_.size() ? &values_[index] : nullptr;
  }
  /// Devices, the server not among them, whose value is `value`.
  [[nodiscard]] std::int64_t count(const Value& value) const {
    return std::count(values_.begin(), values_.end(), value);
  }

 private:
  std::deque<Value> values_;  // not a vector: references stay, and bool is one like others
  Value server_{};
};

}  // namespace cleave::sched
