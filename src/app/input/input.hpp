// The input of a run as plain structs: what docs/interface.md calls the sections of INPUT.yaml.
//
// read_input() declares every key once (type, unit, range, default, help); commands use the structs only. Faults of
// every section come out together as one InputError.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/config/reader.hpp"
#include "cleave/data/text.hpp"
#include "cleave/fleet/churn.hpp"
#include "cleave/fleet/profile.hpp"
#include "cleave/sched/step_spec.hpp"
#include "cleave/server/fleets.hpp"
#include "cleave/server/training.hpp"
#include "cleave/server/verification.hpp"
#include "input/server_input.hpp"
#include "input/study_input.hpp"

namespace cleave::app {

struct ModelInput {
  std::string preset;                     ///< empty where there is none
  bool vocab_given = false;               ///< otherwise the tokenizer decides
  std::optional<data::SourceEntry> init;  ///< checkpoint or reference file; none: random
};

enum class DataKind { none, text, tokens, batches };
enum class TokenizerKind { byte, character };

struct DataInput {
  DataKind kind = DataKind::none;
  std::vector<data::SourceEntry> sources;  ///< text: entries; tokens and batches: one file
  TokenizerKind tokenizer = TokenizerKind::byte;
  double val_fraction = 0.1;
};

struct FleetInput {
  server::ClockMode clock = server::ClockMode::virtual_time;
  Seconds patience{10};       ///< real time without a word after which a rank is taken for hung
  bool shared_memory = true;  ///< large messages between the server and ranks of its host are read in place
  std::vector<fleet::DeviceGroup> groups;
  std::vector<LinkInput> links;  ///< between devices; empty: from their profiles
  rivals::PeerLinks peer_links = rivals::PeerLinks::direct;
  bool churns = false;
  fleet::ChurnModel churn;
  std::filesystem::path trace;  ///< of churn; empty: drawn from `churn`
};

struct Input {
  std::string name;                              ///< the file, as messages name it
  std::shared_ptr<const config::Reader> reader;  ///< knows where each key stands: fault_at(); null where nobody asks
  sched::StepSpec step;  ///< the step to be planned, simulated or run; devices and churn as draw_fleet() leaves them
  ModelInput model;
  DataInput data;
  server::TrainSettings train;
  bool decay_given = false;  ///< train.lr_decay_steps; otherwise it follows train.steps
  FleetInput fleet;
  ServerInput server;
  server::Verification verify;  ///< without the secret seed, which a run draws
  bool verify_given = false;    ///< verify.mode
  bool verify_open = false;     ///< verify.mode is auto, and the layout not yet chosen: settle_verification()
  std::int64_t checkpoint_every = 100, checkpoint_keep = 2;
  bool checkpoint_failure_stops = false;
  std::filesystem::path output;
  bool output_on_command_line = false;
  bool profile = false;  ///< output.profile
  SimulateInput simulate;
  std::string effective;    ///< YAML, each value marked default, file or command line
  std::string tiles_since;  ///< why plan.layout auto is tiles whatever is quicker; empty: it is not
};

/// What a command needs of an input: planning and simulating need no data.
enum class Needs { everything, no_data };

/// Reads `path` with `overrides` ("train.steps=50") on top, and draws the fleet.
/// Errors: InputError with every fault found.
[[nodiscard]] Input read_input(const std::filesystem::path& path, const std::vector<std::string>& overrides,
                               Needs needs);

/// A fault of a key that shows when more is known than the input: with the place where the key stands.
[[nodiscard]] InputError fault_at(const Input& input, std::string key, std::string message, std::string hint = {});

/// Declares and reads every key of an input; for read_input and for the generated reference page.
[[nodiscard]] Input declare_input(config::Reader& reader, Needs needs);

/// What training in stages cannot do yet, of what the input asks for: section, key, fault and remedy of each.
using StageFault = std::function<void(const char* section, const char* key, const char* what, const char* hint)>;
void refuse_unready_stages(const Input& input, const StageFault& fault);

/// What verify.mode auto is in a layout: sample in tiles; in stages quorum, as products stay on the devices there.
/// Returns "verify.mode is auto: quorum", and nothing where the input names a mode.
std::string settle_verification(Input& input, sched::Layout taken);

/// "plan.layout is auto: tiles, since ...".
[[nodiscard]] std::string say_layout(const Input& input, sched::Layout taken);

/// Makes the effective input say that the only key of this name, in a section, has a value that comes from `whence`.
void note_effective(Input& input, std::string_view key, std::int64_t value, std::string_view whence);

/// Errors: InputError where `result` is a file that the input reads: its data, by name or out of a folder or a pattern,
/// what the model begins with, a trace of churn.
void refuse_result_over(const Input& input, const std::filesystem::path& result);

/// Draws the step's devices and churn, or reads the trace. Requires: the reader has found no fault.
/// Errors: InputError for a faulty churn trace.
void draw_fleet(Input& input);

}  // namespace cleave::app
