// What a device does next, and until when it needs nobody else.
#include "station.hpp"

#include <algorithm>
#include <utility>

#include "cleave/base/error.hpp"

namespace cleave::sched {

namespace {

// What a flight still takes of its device, at declared rates.
void add_rest(const Flight& flight, plan::DeviceState& state) {
  state.down_busy += flight.still_down / state.profile.downlink;
  state.compute_busy += flight.still_flops / state.profile.compute;
  state.up_busy += flight.still_up / state.profile.uplink;
}

}  // namespace

Station::Station(fleet::DeviceProfile profile) : declared(std::move(profile)) { slow(1.0); }

void Station::slow(double factor) {
  downlink_ = declared.downlink * factor;
  uplink_ = declared.uplink * factor;
  compute_ = declared.compute * factor;
}

void Station::submit(Flight& flight, Seconds now, Commons& commons) {
  flight.measured = Measured{};
  for (const plan::Panel& panel : flight.panels) {
    flight.measured.bytes_down += panel.down;
    flight.measured.bytes_up += panel.up;
    flight.measured.flops = flight.measured.flops + panel.flops;
  }
  flight.still_down = flight.measured.bytes_down;
  flight.still_up = flight.measured.bytes_up;
  flight.still_flops = flight.measured.flops;
  if (!commons.unlimited) plan::tails_of(flight.panels, declared, flight.tails);
  holds_.push_back(&flight);
  const auto place_of = [](const Flight* f) { return f->tasklet.place(); };
  if (flight.tasklet.columns.valid() && !flight.tasklet.brings_columns()) hasten(flight.tasklet);
  down_queue_.insert(std::ranges::upper_bound(down_queue_, flight.tasklet.place(), {}, place_of), &flight);
  pump_down(now, commons);
}

// Columns that somebody waits for come just before him.
void Station::hasten(const Tasklet& user) {
  const auto found = std::ranges::find(down_queue_, user.columns, [](const Flight* f) { return f->tasklet.id; });
  if (found == down_queue_.end()) return;
  Flight* const columns = *found;
  down_queue_.erase(found);
  columns->tasklet.urgency = std::min(columns->tasklet.urgency, user.urgency);
  columns->tasklet.turn = std::min(columns->tasklet.turn, user.turn);
  const auto place_of = [](const Flight* f) { return f->tasklet.place(); };
  down_queue_.insert(std::ranges::lower_bound(down_queue_, columns->tasklet.place(), {}, place_of), columns);
}

Flight* Station::release(TaskletId columns, Seconds now, Commons& commons) {
  const auto found = std::ranges::find(holds_, columns, [](const Flight* f) { return f->tasklet.id; });
  if (found == holds_.end()) return nullptr;
  Flight& flight = **found;
  flight.wanted = false;
  const bool begun = flight.next_panel > 0;
  if (begun && !flight.arrived) return nullptr;  // given up when the rest is there
  std::erase(holds_, &flight);
  std::erase(down_queue_, &flight);
  if (begun) memory_taken_ -= flight.tasklet.piece.resident;
  pump_down(now, commons);
  return &flight;
}

bool Station::drop(Flight& flight, Seconds now, Commons& commons) {
  if (flight.next_panel > 0) return false;
  std::erase(down_queue_, &flight);
  std::erase(holds_, &flight);
  pump_down(now, commons);
  return true;
}

// A panel that is computed while the uplink is taken is looked at when that is free again.
Station::Pick Station::pick() const {
  Pick next;
  if (down_.free_at < next.at) next = {Next::down_free, down_.free_at, down_.sequence};
  if (up_.taken()) {
    if (up_.free_at < next.at) next = {Next::up_free, up_.free_at, up_.sequence};
  } else if (!computed_.empty() && computed_.front().at < next.at) {
    next = {Next::computed, computed_.front().at, computed_.front().sequence};
  }
  return next;
}

Moment Station::next_within() const {
  const Pick next = pick();
  return next.at == kNotTaken ? kNever : moment(next.at, Rank::within_device, next.sequence);
}

Moment Station::next_answer() const {
  return answers_.empty() ? kNever
                          : moment(answers_.front().at, Rank::answer, answers_.front().flight->tasklet.id.value);
}

// The last panel of a flight that is down is computed at a known time, and goes up after those before it. Of one that
// is coming down it also has to come down and be computed after what is left of it; those behind it come later still.
// The answer is not there before half of the last panel's way up.
Moment Station::no_answer_before(Seconds now) const {
  const Moment within = next_within();
  if (within == kNever) return kNever;
  const auto last_up = [&](const Flight& f, Seconds ready) {
    const Seconds last = f.panels.back().up / uplink_, free = up_.taken() ? up_.free_at : now;
    return std::max(ready, free + f.still_up / uplink_ - last) + last * 0.5;
  };
  Seconds soonest = kNotTaken;
  for (const Flight* flight : finishing_) soonest = std::min(soonest, last_up(*flight, flight->computed));
  for (std::size_t i = 0; down_.taken() && i < down_queue_.size(); ++i) {
    const Flight& flight = *down_queue_[i];
    const Seconds down = down_.free_at + flight.still_down / downlink_ + declared.latency;
    if (flight.next_panel > 0) {
      soonest =
          std::min(soonest, last_up(flight, std::max(down, processor_.free_at() + flight.still_flops / compute_)));
      for (std::size_t behind = i + 1; behind < down_queue_.size(); ++behind)
        soonest = std::min(soonest, down + down_queue_[behind]->still_down / downlink_);
      break;
    }
    if (i == 0) soonest = std::min(soonest, down);  // further ones that are not in memory come after it
  }
  if (soonest == kNotTaken) return within;
  // Sums of many terms round otherwise than one product.
  const Seconds safe = soonest - (soonest - now) * 1e-6 - soonest * 1e-11;
  return safe > within.at ? moment(safe, Rank::within_device, 0) : within;
}

// The tasklet whose panel comes down next: the most urgent one that is in memory or finds room there. While one waits
// for room, those behind it that are not in yet wait too, so that it is not overtaken for ever.
std::size_t Station::next_down() const {
  bool waiting = false;
  for (std::size_t i = 0; i < down_queue_.size(); ++i) {
    const Flight& flight = *down_queue_[i];
    if (flight.next_panel > 0) return i;
    if (waiting) continue;
    if (memory_taken_.value() == 0 || memory_taken_ + flight.tasklet.piece.resident <= declared.memory) return i;
    waiting = true;
  }
  return down_queue_.size();
}

// Starts the next panel down a link that is free, if memory allows its tasklet in; and the panels after it for which
// the link is free by `until`: nothing else that happens within the device changes whose panel is next.
void Station::pump_down(Seconds now, Commons& commons, Seconds until) {
  if (!present || hung_ || down_.taken()) return;
  const std::size_t chosen = next_down();
  if (chosen == down_queue_.size()) return;
  Flight& flight = *down_queue_[chosen];
  if (flight.next_panel == 0) {
    memory_taken_ += flight.tasklet.piece.resident;
    usage.memory_peak = std::max(usage.memory_peak, memory_taken_);
  }
  const std::size_t panels = flight.panels.size();
  for (ask_down(flight, now, commons); flight.next_panel < panels && down_.free_at <= until;)
    ask_down(flight, std::exchange(down_.free_at, kNotTaken), commons);
  if (flight.next_panel < panels) return;
  down_queue_.erase(down_queue_.begin() + static_cast<std::ptrdiff_t>(chosen));
  if (!flight.tasklet.brings_columns()) finishing_.push_back(&flight);
}

Station::Way Station::way_down(Commons& commons) {
  return {commons.out, down_, downlink_, commons.server.nic_out, &plan::Panel::down, &plan::Tail::down};
}

Station::Way Station::way_up(Commons& commons) {
  return {commons.in, up_, uplink_, commons.server.nic_in, &plan::Panel::up, &plan::Tail::up};
}

// A link that waits for the server's interface is taken: nothing overtakes the panel that was asked for. (Flights have
// no tails where the interface is unlimited, and nobody waits.)
bool Station::has_to_wait(const Way& way, Flight& flight, std::size_t number, Commons& commons) {
  const Bytes bytes = flight.panels[number].*way.bytes;
  const Seconds through = bytes / way.nic_rate;
  if (!way.gate.has_to_wait(through)) return false;
  way.link.waiting = &flight;
  way.link.panel = number;
  way.link.expected = way.gate.after_all() + std::max(through, bytes / way.link_rate);
  way.gate.wait({.place = flight.tasklet.place(),
                 .tail = flight.tails[number].*way.tail,
                 .sequence = commons.sequence++,
                 .through = through,
                 .station = this,
                 .epoch = epoch});
  return true;
}

// The link and the interface carry a panel from `now` on; each is free again after its own time.
Station::Carried Station::carry(const Way& way, Bytes bytes, Seconds now, Commons& commons) {
  const Seconds link_time = bytes / way.link_rate, nic_time = bytes / way.nic_rate;
  way.gate.take(now, nic_time, commons.sequence++);
  way.link.free_at = now + std::max(nic_time, link_time);
  way.link.sequence = commons.sequence++;
  return {link_time, nic_time, way.link.free_at};
}

void Station::ask_down(Flight& flight, Seconds now, Commons& commons) {
  const std::size_t number = flight.next_panel++;
  flight.still_down -= flight.panels[number].down;
  if (!has_to_wait(way_down(commons), flight, number, commons)) send_down(flight, number, now, commons);
}

void Station::begin_down(Seconds now, Commons& commons) {
  send_down(*std::exchange(down_.waiting, nullptr), down_.panel, now, commons);
}

void Station::send_down(Flight& flight, std::size_t number, Seconds now, Commons& commons) {
  const plan::Panel& panel = flight.panels[number];
  const auto [link_time, nic_time, end] = carry(way_down(commons), panel.down, now, commons);
  usage.down += link_time;
  usage.bytes_down += panel.down;
  flight.measured.down += link_time;
  if (commons.spans && panel.down.value() > 0) {
    commons.observer->span(span_of(flight.tasklet, Resource::down, now, end, panel.down));
    commons.observer->span(span_of(flight.tasklet, Resource::server_out, now, now + nic_time, panel.down));
  }

  const Seconds arrival = panel.down.value() > 0 ? std::max(arrival_, end + commons.latency_of(declared)) : now;
  arrival_ = std::max(arrival_, arrival);
  if (flight.tasklet.brings_columns()) {
    flight.arrived = number + 1 == flight.panels.size();
    if (!flight.wanted && flight.arrived) memory_taken_ -= flight.tasklet.piece.resident;
    return;
  }
  const Seconds work = panel.flops / compute_;
  const Seconds computed = processor_.reserve(arrival_, work) + work;
  usage.compute += work;
  flight.still_flops = flight.still_flops - panel.flops;
  flight.measured.compute += work;
  flight.computed = computed;
  if (commons.spans)
    commons.observer->span(span_of(flight.tasklet, Resource::compute, computed - work, computed, Bytes(0)));
  if (panel.up.value() > 0) computed_.push({computed, commons.sequence++, &flight, number});
}

// The uplink is free: of what was computed by now the most urgent goes up.
void Station::pump_up(Seconds now, Commons& commons) {
  const auto place_of = [](const Up& up) { return up.flight->tasklet.place(); };
  for (; !computed_.empty() && computed_.front().at <= now; computed_.pop()) {
    const Up up{computed_.front().flight, computed_.front().panel};
    up_queue_.insert(std::upper_bound(up_queue_.begin(), up_queue_.end(), up,
                                      [&](const Up& a, const Up& b) { return place_of(a) < place_of(b); }),
                     up);
  }
  if (up_queue_.empty()) return;
  const Up up = up_queue_.front();
  up_queue_.pop();
  ask_up(*up.flight, up.panel, now, commons);
}

// The uplink has been free for longer: what is computed first goes up at once.
void Station::ask_up_first(Commons& commons) {
  const Computed done = computed_.front();
  computed_.pop();
  ask_up(*done.flight, done.panel, done.at, commons);
}

void Station::ask_up(Flight& flight, std::size_t number, Seconds now, Commons& commons) {
  flight.next_up = number + 1;
  flight.still_up -= flight.panels[number].up;
  if (!has_to_wait(way_up(commons), flight, number, commons)) send_up(flight, number, now, commons);
}

void Station::begin_up(Seconds now, Commons& commons) {
  send_up(*std::exchange(up_.waiting, nullptr), up_.panel, now, commons);
}

void Station::send_up(Flight& flight, std::size_t number, Seconds now, Commons& commons) {
  const plan::Panel& panel = flight.panels[number];
  const auto [link_time, nic_time, end] = carry(way_up(commons), panel.up, now, commons);
  usage.up += link_time;
  usage.bytes_up += panel.up;
  flight.measured.up += link_time;
  if (commons.spans) {
    commons.observer->span(span_of(flight.tasklet, Resource::up, now, end, panel.up));
    commons.observer->span(span_of(flight.tasklet, Resource::server_in, now, now + nic_time, panel.up));
  }
  if (number + 1 < flight.panels.size()) return;
  std::erase(finishing_, &flight);
  const Answer answer{end + commons.latency_of(declared), &flight};
  answers_.insert(std::upper_bound(answers_.begin(), answers_.end(), answer,
                                   [](const Answer& a, const Answer& b) {
                                     return moment(a.at, Rank::answer, a.flight->tasklet.id.value) <
                                            moment(b.at, Rank::answer, b.flight->tasklet.id.value);
                                   }),
                  answer);
}

void Station::serve(Commons& commons) {
  const Pick next = pick();
  switch (next.what) {
    case Next::nothing: return;
    case Next::down_free: down_.free_at = kNotTaken; return pump_down(next.at, commons);
    case Next::up_free: up_.free_at = kNotTaken; return pump_up(next.at, commons);
    case Next::computed: return ask_up_first(commons);
  }
}

// Before the next answer, which frees memory, nothing that goes up matters to what comes down.
void Station::advance(Seconds until, Commons& commons) {
  while (down_.free_at <= until) {
    pump_down(std::exchange(down_.free_at, kNotTaken), commons, until);
    advance_up(std::min(until, down_.free_at), commons);  // so that few computed panels wait in memory
  }
  advance_up(until, commons);
}

void Station::advance_up(Seconds until, Commons& commons) {
  for (;;) {
    if (up_.taken()) {
      if (up_.free_at > until) return;
      pump_up(std::exchange(up_.free_at, kNotTaken), commons);
    } else {
      if (computed_.empty() || computed_.front().at > until) return;
      ask_up_first(commons);
    }
  }
}

Flight& Station::answer(Seconds now, Commons& commons) {
  Flight& flight = *answers_.front().flight;
  answers_.pop();
  memory_taken_ -= flight.tasklet.piece.resident;
  std::erase(holds_, &flight);
  ++usage.tasklets;
  pump_down(now, commons);
  return flight;
}

void Station::forget_all() {
  ++epoch;
  down_ = up_ = Link{};
  computed_.clear();
  finishing_.clear();
  answers_.clear();
}

// Nothing of what it has begun ends; what it holds is lost when somebody notices.
void Station::hang(Seconds now) {
  hung_ = true;
  hung_at = now;
  forget_all();
}

std::vector<Flight*> Station::leave() {
  present = hung_ = false;
  forget_all();
  up_queue_.clear();
  down_queue_.clear();
  memory_taken_ = Bytes(0);
  processor_ = SerialResource{};
  return std::exchange(holds_, {});
}

void Station::join() {
  present = true;
  hung_ = false;
}

plan::DeviceState Station::state() const {
  plan::DeviceState state{declared, {}, {}, {}};
  for (const Flight* flight : holds_) add_rest(*flight, state);
  return state;
}

plan::DeviceState Station::state_ahead_of(const Place& place, Seconds now) const {
  const auto left = [now](const Link& link) {
    if (!link.taken()) return Seconds(0);
    return std::max((link.waiting != nullptr ? link.expected : link.free_at) - now, Seconds(0));
  };
  plan::DeviceState state{declared, left(down_), std::max(processor_.free_at() - now, Seconds(0)), left(up_)};
  for (const Flight* flight : holds_) {
    if (flight->tasklet.place() <= place) add_rest(*flight, state);
  }
  return state;
}

}  // namespace cleave::sched
