// What a device does next, and until when it needs nobody else.
#include "simulated_device.hpp"

#include <algorithm>
#include <utility>

#include "cleave/base/error.hpp"

namespace cleave::timing {

namespace {

// What a stream still takes of its device, at declared rates.
void add_rest(const Stream& stream, DeviceState& state) {
  state.down_busy += stream.still_down / state.profile.downlink;
  state.compute_busy += stream.still_flops / state.profile.compute;
  state.up_busy += stream.still_up / state.profile.uplink;
}

// Where a stream is among those that a device holds, or their end. Most are near one of the ends.
auto place_of(Fifo<Stream*>& holds, const Stream* stream) {
  const std::size_t count = holds.size();
  for (std::size_t i = 0; 2 * i < count; ++i) {
    if (holds[i] == stream) return holds.begin() + static_cast<std::ptrdiff_t>(i);
    if (holds[count - 1 - i] == stream) return holds.end() - static_cast<std::ptrdiff_t>(i + 1);
  }
  return holds.end();
}

}  // namespace

SimulatedDevice::SimulatedDevice(fleet::DeviceProfile profile) : declared(std::move(profile)) { slow(1.0); }

void SimulatedDevice::slow(double factor) {
  downlink_ = declared.downlink * factor;
  uplink_ = declared.uplink * factor;
  compute_ = declared.compute * factor;
}

void SimulatedDevice::submit(Stream& stream, Seconds now, SharedState& shared) {
  holds_.push(&stream);
  if (stream.uses >= 0) hasten(stream);
  const Coming coming{stream.priority, &stream, stream.resident, stream.still_down};
  down_queue_.insert(std::ranges::upper_bound(down_queue_, coming.priority, {}, &Coming::priority), coming);
  pump_down(now, shared);
}

// What a stream uses comes just before it, where it is not down yet.
void SimulatedDevice::hasten(const Stream& user) {
  const auto found = std::ranges::find(down_queue_, user.uses, [](const Coming& coming) { return coming.stream->id; });
  if (found == down_queue_.end()) return;
  Coming used = *found;
  down_queue_.erase(found);
  Priority& priority = used.stream->priority;
  priority.first = std::min(priority.first, user.priority.first);
  priority.second = std::min(priority.second, user.priority.second);
  used.priority = priority;
  down_queue_.insert(std::ranges::lower_bound(down_queue_, used.priority, {}, &Coming::priority), used);
}

Stream* SimulatedDevice::release(std::int64_t id, Seconds now, SharedState& shared) {
  const auto found = std::ranges::find(holds_, id, [](const Stream* held) { return held->id; });
  if (found == holds_.end() || (*found)->released) return nullptr;
  Stream& stream = **found;
  stream.released = true;
  const bool begun = stream.begun();
  if (begun && !stream.arrived) return nullptr;  // given up when the rest is there: send_down()
  forget(stream);
  if (begun) memory_taken_ -= stream.resident;
  pump_down(now, shared);
  return &stream;
}

bool SimulatedDevice::drop(Stream& stream, Seconds now, SharedState& shared) {
  if (stream.begun()) return false;
  forget(stream);
  pump_down(now, shared);
  return true;
}

void SimulatedDevice::forget(Stream& stream) {
  const auto held = place_of(holds_, &stream);
  if (held != holds_.end()) holds_.erase(held);
  const auto coming = std::ranges::find(down_queue_, &stream, &Coming::stream);
  if (coming == down_queue_.end()) return;
  begun_down_ -= coming->begun ? 1 : 0;
  down_queue_.erase(coming);
}

// A panel that is computed while the uplink is taken is looked at when that is free again.
SimulatedDevice::Pick SimulatedDevice::pick() const {
  Pick next;
  if (down_.free_at < next.at) next = {Next::down_free, down_.free_at, down_.sequence};
  if (up_.taken()) {
    if (up_.free_at < next.at) next = {Next::up_free, up_.free_at, up_.sequence};
  } else if (!computed_.empty() && computed_.front().at < next.at) {
    next = {Next::computed, computed_.front().at, computed_.front().sequence};
  }
  if (!background_.empty()) {
    const Background& first = background_.front();
    const Seconds at = std::max(first.arrival, processor_.free_at());
    if (at < next.at) next = {Next::background, at, first.sequence};
  }
  return next;
}

EventKey SimulatedDevice::next_within() const {
  const Pick next = pick();
  return next.at == kNotTaken ? kNever : event_key(next.at, EventPriority::within_device, next.sequence);
}

EventKey SimulatedDevice::next_answer() const { return answers_.empty() ? kNever : answers_.front().when; }

// The last panel of a stream that is down is computed at a known time, and goes up after those before it. Of one that
// is coming down it also has to come down and be computed after what is left of it; those behind it come later still.
// The uplink has nothing to do before something is computed. The answer is not there before half of the last panel's
// way up.
EventKey SimulatedDevice::no_answer_before(Seconds now) const {
  const EventKey within = next_within();
  if (within == kNever || !answers_.empty()) return kNever;
  const Seconds idle_until = computed_.empty() || !up_queue_.empty() ? now : std::max(now, computed_.front().at);
  const Seconds up_free = up_.taken() ? up_.free_at : idle_until;
  const auto last_up = [&](const Stream& f, Seconds ready) {
    const Seconds last = f.last.up / uplink_;
    return std::max(ready, up_free + f.still_up / uplink_ - last) + last * 0.5;
  };
  Seconds soonest = kNotTaken;
  for (const Stream* stream : finishing_) soonest = std::min(soonest, last_up(*stream, stream->computed));
  for (std::size_t i = 0; down_.taken() && i < down_queue_.size(); ++i) {
    const Seconds down = down_.free_at + down_queue_[i].still_down() / downlink_ + declared.latency;
    if (down_queue_[i].begun) {
      const Stream& stream = *down_queue_[i].stream;
      soonest = std::min(soonest, last_up(stream, std::max(down + stream.last.flops / compute_,
                                                           processor_.free_at() + stream.still_flops / compute_)));
      for (std::size_t behind = i + 1; behind < down_queue_.size(); ++behind)
        soonest = std::min(soonest, down + down_queue_[behind].still_down() / downlink_);
      break;
    }
    if (i == 0) soonest = std::min(soonest, down);  // further ones that are not in memory come after it
  }
  if (soonest == kNotTaken) return kNever;
  // Sums of many terms round otherwise than one product.
  const Seconds safe = soonest - (soonest - now) * 1e-6 - soonest * 1e-11;
  return safe > within.at ? event_key(safe, EventPriority::within_device, 0) : within;
}

// The stream whose panel comes down next: the most urgent one that is in memory or finds room there. While one waits
// for room, those behind it that are not in yet wait too, so that it is not overtaken for ever.
std::size_t SimulatedDevice::next_down() const {
  bool waiting = false;
  for (std::size_t i = 0; i < down_queue_.size(); ++i) {
    const Coming& coming = down_queue_[i];
    if (coming.begun) return i;
    if (waiting) continue;
    if (memory_taken_.value() == 0 || memory_taken_ + coming.resident + reserved_ <= declared.memory) return i;
    if (begun_down_ == 0) break;
    waiting = true;
  }
  return down_queue_.size();
}

// Starts the next panel down a link that is free, if memory allows its stream in; and the panels after it for which
// the link is free by `until`: nothing else that happens within the device changes whose panel is next.
void SimulatedDevice::pump_down(Seconds now, SharedState& shared, Seconds until) {
  if (!present || hung_ || down_.taken()) return;
  const std::size_t chosen = next_down();
  if (chosen == down_queue_.size()) return;
  Coming& coming = down_queue_[chosen];
  Stream& stream = *coming.stream;
  in_ = &stream;
  if (!std::exchange(coming.begun, true)) {
    ++begun_down_;
    memory_taken_ += coming.resident;
    usage.memory_peak = std::max(usage.memory_peak, memory_taken_);
  }
  for (ask_down(stream, now, shared); !stream.all_begun() && down_.free_at <= until;)
    ask_down(stream, std::exchange(down_.free_at, kNotTaken), shared);
  if (!stream.all_begun()) return;
  --begun_down_;
  down_queue_.erase(down_queue_.begin() + static_cast<std::ptrdiff_t>(chosen));
  if (stream.stays) return;
  stream.finishes = finishing_.size();
  finishing_.push_back(&stream);
}

SimulatedDevice::Way SimulatedDevice::way_down(SharedState& shared) {
  return {shared.out, down_, downlink_, shared.server.nic_out, &Tail::down};
}

SimulatedDevice::Way SimulatedDevice::way_up(SharedState& shared) {
  return {shared.in, up_, uplink_, shared.server.nic_in, &Tail::up};
}

// A link that waits for the server's interface is taken: nothing overtakes the panel that was asked for. (Streams have
// no tails where the interface is unlimited, and nobody waits.)
bool SimulatedDevice::has_to_wait(const Way& way, const Stream& stream, std::int64_t number, Bytes bytes,
                                  SharedState& shared) {
  if (shared.unlimited) return false;
  const Seconds through = bytes / way.nic_rate;
  if (!way.port.has_to_wait(through)) return false;
  way.link.waiting = true;
  way.link.expected = way.port.after_all() + std::max(through, bytes / way.link_rate);
  way.port.wait({.priority = stream.priority,
                 .tail = stream.tails[static_cast<std::size_t>(number)].*way.tail,
                 .sequence = shared.sequence++,
                 .through = through,
                 .device = this,
                 .epoch = epoch});
  return true;
}

// The link and the interface carry a panel from `now` on; each is free again after its own time.
SimulatedDevice::Carried SimulatedDevice::carry(const Way& way, Bytes bytes, Seconds now, SharedState& shared) {
  const Seconds link_time = bytes / way.link_rate;
  const Seconds nic_time = shared.unlimited ? Seconds(0) : bytes / way.nic_rate;
  if (!shared.unlimited) way.port.take(now, nic_time, shared.sequence++);
  way.link.free_at = now + std::max(nic_time, link_time);
  way.link.sequence = shared.sequence++;
  return {link_time, nic_time, way.link.free_at};
}

void SimulatedDevice::ask_down(Stream& stream, Seconds now, SharedState& shared) {
  const Operands operands{&stream, stream.panels.next(), static_cast<std::int32_t>(stream.panels.made() - 1)};
  stream.still_down -= operands.panel.down;
  if (has_to_wait(way_down(shared), stream, stream.panels.made() - 1, operands.panel.down, shared)) {
    asked_down_ = operands;
  } else {
    send_down(operands, now, shared);
  }
}

void SimulatedDevice::begin_down(Seconds now, SharedState& shared) {
  down_.waiting = false;
  send_down(asked_down_, now, shared);
}

void SimulatedDevice::send_down(const Operands& operands, Seconds now, SharedState& shared) {
  Stream& stream = *operands.stream;
  const Bytes bytes = operands.panel.down;
  const auto [link_time, nic_time, end] = carry(way_down(shared), bytes, now, shared);
  usage.down += link_time;
  usage.bytes_down += bytes;
  stream.measured.down += link_time;
  stream.measured.bytes_down += bytes;
  if (shared.observer != nullptr && bytes.value() > 0) {
    shared.observer->used(stream, Resource::down, now, end, bytes);
    shared.observer->used(stream, Resource::server_out, now, now + nic_time, bytes);
  }
  const Seconds arrival = bytes.value() > 0 ? std::max(arrival_, end + shared.latency_of(declared)) : now;
  arrival_ = std::max(arrival_, arrival);
  if (!stream.stays) return take_in(operands, arrival, shared);
  stream.arrived = stream.all_begun();
  if (!stream.released || !stream.arrived) return;
  memory_taken_ -= stream.resident;
  holds_.erase(place_of(holds_, &stream));
  shared.ended.push_back(&stream);
}

// Messages arrive in the order in which they went down, so every panel that arrives before this one is known.
void SimulatedDevice::take_in(const Operands& operands, Seconds arrival, SharedState& shared) {
  if (operands.stream->background) return background_.push({arrival, shared.sequence++, operands});
  if (!background_.empty()) compute_background(arrival, false, shared);
  compute(operands, arrival, shared);
}

void SimulatedDevice::compute_background(Seconds until, bool including, SharedState& shared) {
  while (!background_.empty()) {
    const Background first = background_.front();
    const Seconds start = std::max(first.arrival, processor_.free_at());
    if (including ? start > until : start >= until) return;
    background_.pop();
    compute(first.operands, first.arrival, shared);
  }
}

// A panel that has arrived is computed, and what comes of it waits for the uplink.
void SimulatedDevice::compute(const Operands& operands, Seconds arrival, SharedState& shared) {
  Stream& stream = *operands.stream;
  const Panel& panel = operands.panel;
  const Seconds work = panel.flops / compute_;
  const Seconds computed = processor_.reserve(arrival, work) + work;
  usage.compute += work;
  stream.still_flops = stream.still_flops - panel.flops;
  stream.measured.compute += work;
  stream.measured.flops = stream.measured.flops + panel.flops;
  stream.computed = computed;
  if (shared.observer != nullptr) shared.observer->used(stream, Resource::compute, computed - work, computed, Bytes(0));
  if (panel.up.value() == 0) return;
  const Priority priority = stream.priority;
  in_order_ = (computed_.empty() && up_queue_.empty()) || (in_order_ && latest_ <= priority);
  latest_ = priority;
  computed_.push({computed, shared.sequence++, {&stream, panel.up, operands.number}});
}

// The uplink is free: of what was computed by now the most urgent goes up.
void SimulatedDevice::pump_up(Seconds now, SharedState& shared) {
  const auto priority_of = [](const Result& result) { return result.stream->priority; };
  for (; !computed_.empty() && computed_.front().at <= now; computed_.pop()) {
    const Result& result = computed_.front().result;
    up_queue_.insert(
        std::upper_bound(up_queue_.begin(), up_queue_.end(), result,
                         [&](const Result& a, const Result& b) { return priority_of(a) < priority_of(b); }),
        result);
  }
  if (up_queue_.empty()) return;
  const Result result = up_queue_.front();
  up_queue_.pop();
  ask_up(result, now, shared);
}

// The uplink has been free for longer: what is computed first goes up at once.
void SimulatedDevice::ask_up_first(SharedState& shared) {
  const Computed done = computed_.front();
  computed_.pop();
  ask_up(done.result, done.at, shared);
}

void SimulatedDevice::ask_up(const Result& result, Seconds now, SharedState& shared) {
  result.stream->still_up -= result.bytes;
  if (has_to_wait(way_up(shared), *result.stream, result.number, result.bytes, shared)) {
    asked_up_ = result;
  } else {
    send_up(result, now, shared);
  }
}

void SimulatedDevice::begin_up(Seconds now, SharedState& shared) {
  up_.waiting = false;
  send_up(asked_up_, now, shared);
}

void SimulatedDevice::send_up(const Result& result, Seconds now, SharedState& shared) {
  Stream& stream = *result.stream;
  const auto [link_time, nic_time, end] = carry(way_up(shared), result.bytes, now, shared);
  usage.up += link_time;
  usage.bytes_up += result.bytes;
  stream.measured.up += link_time;
  stream.measured.bytes_up += result.bytes;
  if (shared.observer != nullptr) {
    shared.observer->used(stream, Resource::up, now, end, result.bytes);
    shared.observer->used(stream, Resource::server_in, now, now + nic_time, result.bytes);
  }
  out_ = &stream;
  if (result.number + 1 < stream.panels.size()) return;
  finishing_.back()->finishes = stream.finishes;
  finishing_[stream.finishes] = finishing_.back();
  finishing_.pop_back();
  answered_ = std::max(answered_, end + shared.latency_of(declared));
  const Answer answer{event_key(answered_, EventPriority::answer, stream.id), &stream};
  answers_.insert(std::upper_bound(answers_.begin(), answers_.end(), answer,
                                   [](const Answer& a, const Answer& b) { return a.when < b.when; }),
                  answer);
}

void SimulatedDevice::serve(SharedState& shared) {
  const Pick next = pick();
  switch (next.what) {
    case Next::nothing: return;
    case Next::down_free: down_.free_at = kNotTaken; return pump_down(next.at, shared);
    case Next::up_free: up_.free_at = kNotTaken; return pump_up(next.at, shared);
    case Next::computed: return ask_up_first(shared);
    case Next::background: return compute_background(next.at, true, shared);
  }
}

void SimulatedDevice::prefetch_further() const {
  prefetch_lines(in_, offsetof(Stream, tails));
  if (out_ != in_) prefetch_lines(out_, offsetof(Stream, tails));
  prefetch_lines(down_queue_.where(), sizeof(Coming));
  prefetch_lines(computed_.where(), 2 * sizeof(Computed));
}

// Before the next answer, which frees memory, nothing that goes up matters to what comes down.
[[gnu::flatten]] void SimulatedDevice::advance(Seconds until, SharedState& shared) {
  prefetch_further();
  while (down_.free_at <= until) {
    pump_down(std::exchange(down_.free_at, kNotTaken), shared, until);
    advance_up(std::min(until, down_.free_at), shared);  // so that few computed panels wait in memory
  }
  advance_up(until, shared);
}

// Where results wait in order of priority, the first to be computed goes first.
void SimulatedDevice::advance_up(Seconds until, SharedState& shared) {
  if (!background_.empty()) compute_background(until, true, shared);
  while (in_order_ && up_queue_.empty()) {
    const bool taken = up_.taken();
    if (computed_.empty() || computed_.front().at > until || (taken && up_.free_at > until)) {
      if (up_.free_at <= until) up_.free_at = kNotTaken;
      return;
    }
    const Computed done = computed_.front();
    computed_.pop();
    ask_up(done.result, taken ? std::max(up_.free_at, done.at) : done.at, shared);
  }
  for (;;) {
    if (up_.taken()) {
      if (up_.free_at > until) return;
      pump_up(std::exchange(up_.free_at, kNotTaken), shared);
    } else {
      if (computed_.empty() || computed_.front().at > until) return;
      ask_up_first(shared);
    }
  }
}

Stream& SimulatedDevice::answer(Seconds now, SharedState& shared) {
  Stream& stream = *answers_.front().stream;
  answers_.pop();
  memory_taken_ -= stream.resident;
  holds_.erase(place_of(holds_, &stream));
  ++usage.streams;
  pump_down(now, shared);
  return stream;
}

void SimulatedDevice::forget_all() {
  ++epoch;
  down_ = up_ = Link{};
  background_.clear();
  computed_.clear();
  finishing_.clear();
  answers_.clear();
}

void SimulatedDevice::reserve(Bytes bytes, Seconds now, SharedState& shared) {
  reserved_ += bytes;
  if (bytes.value() < 0) pump_down(now, shared);
}

void SimulatedDevice::occupy(Seconds down_until, Seconds compute_until, Seconds up_until, SharedState& shared) {
  const auto take = [&](Link& link, Seconds until) {
    if (until.value() <= 0) return;
    link.free_at = until;
    link.sequence = shared.sequence++;
  };
  take(down_, down_until);
  take(up_, up_until);
  processor_.reserve(compute_until, Seconds(0));
}

// Nothing that it has begun ends. What it holds counts as lost when the scheduler gives up waiting.
void SimulatedDevice::hang(Seconds now) {
  hung_ = true;
  hung_at = now;
  forget_all();
}

Usage SimulatedDevice::usage_by(Seconds now) const {
  const auto until_now = [&](Seconds used, Seconds free_at) {
    return free_at > now && free_at != kNotTaken ? std::max(used - (free_at - now), Seconds(0)) : used;
  };
  Usage by = usage;
  by.compute = until_now(usage.compute, processor_.free_at());
  if (!down_.waiting) by.down = until_now(usage.down, down_.free_at);
  if (!up_.waiting) by.up = until_now(usage.up, up_.free_at);
  return by;
}

std::vector<Stream*> SimulatedDevice::leave(Seconds now) {
  usage = usage_by(now);
  present = hung_ = false;
  forget_all();
  up_queue_.clear();
  down_queue_.clear();
  begun_down_ = 0;
  memory_taken_ = reserved_ = Bytes(0);
  processor_ = SerialResource{};
  arrival_ = answered_ = Seconds(0);
  std::vector<Stream*> held(holds_.begin(), holds_.end());
  holds_.clear();
  return held;
}

void SimulatedDevice::join() {
  present = true;
  hung_ = false;
}

DeviceState SimulatedDevice::state() const {
  DeviceState state{declared, {}, {}, {}};
  for (const Stream* stream : holds_) add_rest(*stream, state);
  return state;
}

DeviceState SimulatedDevice::state_ahead_of(const Priority& priority, Seconds now) const {
  const auto left = [now](const Link& link) {
    if (!link.taken()) return Seconds(0);
    return std::max((link.waiting ? link.expected : link.free_at) - now, Seconds(0));
  };
  DeviceState state{declared, left(down_), std::max(processor_.free_at() - now, Seconds(0)), left(up_)};
  for (const Stream* stream : holds_) {
    if (stream->priority <= priority) add_rest(*stream, state);
  }
  return state;
}

}  // namespace cleave::timing
