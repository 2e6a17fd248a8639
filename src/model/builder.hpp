// GraphBuilder: a tape. A family's file calls its methods in the order of the forward pass; each emits the forward
// operations and notes how to emit its backward ones. finish() plays the tape backwards, sums the gradients of what
// several consumers read, and appends the update.
//
// Called by registry.cpp and the families. It keeps these invariants: operations are in a legal serial order and
// `after` holds every conflict; a gradient is emitted only when a trained parameter needs it; an input gradient comes
// before the weight gradient of the same layer; no input gradient waits for a weight gradient (so sums go into the
// fresh tensor of a branch, never into the residual gradient that weight gradients still read), but for the logits of a
// loss by chunks, whose two buffers are used again.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cleave/model/config.hpp"
#include "cleave/model/graph.hpp"
#include "dependencies.hpp"
#include "family_definition.hpp"

namespace cleave::model {

/// An activation of the model under construction: [B*T, width].
struct Value {
  std::size_t node = 0;
};

class GraphBuilder {
 public:
  GraphBuilder(const ModelConfig& config, const StepOptions& options, const FamilyDefinition& family);

  /// What follows belongs to layer `index` of `list` ("h", 3): its parameter names start with "h.3.".
  void enter_layer(const std::string& list, std::int64_t index);
  void leave_layers();

  // The forward pass. Names are relative to prefix and layer; a parameter's last part (.weight, .bias) is implied.

  /// table[token] (+ positions[t + offset]).
  Value embed(const std::string& table, const std::string& positions = {}, std::int64_t offset = 0);
  /// x W (+ b), or x W^T (+ b) by the family's layout; b where the family declared one.
  Value linear(Value x, const std::string& name);
  Value layer_norm(Value x, const std::string& name);
  Value rms_norm(Value x, const std::string& name);
  /// Three equal column ranges of x, without a copy.
  std::array<Value, 3> split3(Value x);
  /// Causal attention; q [B*T, H*hd], k and v [B*T, K*hd].
  Value attention(Value q, Value k, Value v, const std::string& name);
  /// Rotary positions, in place: x must have no other reader.
  Value rope(Value x, const std::string& name);
  Value gelu(Value x, const std::string& name);
  /// In place: x must have no other reader.
  Value relu(Value x, const std::string& name);
  /// silu(gate) * up.
  Value swiglu(Value gate, Value up, const std::string& name);
  Value add(Value x, Value y, const std::string& name);
  /// Mean cross-entropy of x E^T, by chunks of rows; E [V, d] is the parameter `head`.weight.
  void loss(Value x, const std::string& head);

  [[nodiscard]] StepGraph finish();

 private:
  struct Label {
    std::string name, type;  // "h.3.mlp.c_fc", "mlp.c_fc"
  };
  struct Parameter {
    TensorView view;
    bool trained = false;
    int uses = 0;            // backward operations still to add to the gradient
    TensorView gradient;     // invalid before its first write
    TensorView square_norm;  // valid once the gradient is complete
  };
  struct Gradient {
    TensorView view;
    bool owned = false;  // nobody else reads it: may be overwritten
  };
  using Backward = std::function<void(const Gradient& dy)>;
  struct Node {
    Label label;
    TensorView view;
    bool needs_gradient = false;
    int readers = 0;           // operations, forward or backward, that read the value
    bool overwritten = false;  // by an operation in place
    std::size_t parent = 0;    // of a column range
    bool is_slice = false;
    bool residual = false;            // the residual stream
    std::vector<Gradient> gradients;  // one per consumer, in the order of the backward pass
    Backward backward;
  };

  // builder.cpp: names, parameters, tensors, nodes, gradients.
  [[nodiscard]] Label label(const std::string& name) const;
  [[nodiscard]] Label label_of(const Parameter& p) const;
  Parameter* find(const std::string& name);
  Parameter& parameter(const std::string& name);
  TensorView new_tensor(std::string name, TensorRole role, std::int64_t rows, std::int64_t cols);
  [[nodiscard]] const TensorView& read(Value x);
  [[nodiscard]] bool needs(Value x) const { return nodes_[x.node].needs_gradient; }
  Value record(const Label& label, const TensorView& y, bool needs_gradient, Backward backward);
  Value record_in_place(const Label& label, Value x, Backward backward);
  /// Where to write the gradient of x: a tensor of its own, or its columns of the gradient of what it is a slice of.
  TensorView gradient_target(Value x, const Label& label);
  void contribute(Value x, const Gradient& gradient);
  /// The value is the residual stream: it and its gradient are rounded to the wire type.
  Value in_residual_stream(Value x);
  /// What wrote a tensor last rounds it.
  void round_last_write(TensorId tensor);
  /// The sum of all contributions to x, emitting `accumulate` where there are several.
  Gradient sum_gradients(std::size_t node);

  Operation& emit(const Label& label, const std::string& suffix, OpKind kind, Phase phase, std::vector<TensorView> in,
                  std::vector<TensorView> out);
  Operation& emit_gemm(const Label& label, const std::string& suffix, Phase phase, const TensorView& a, bool trans_a,
                       const TensorView& b, bool trans_b, const TensorView& c, bool accumulate = false);

  /// Counts a use of a parameter; true when its gradient is wanted.
  bool use(Parameter* p);
  /// The gradient tensor of p, made at its first use.
  TensorView gradient_of(Parameter& p);
  TensorView zeroed_gradient_of(Parameter& p);
  /// One use has added its part; the last one lets the update begin.
  void finish_use(Parameter& p);
  void emit_adamw(Parameter& p, const TensorView& norm);

  Value normalize(Value x, const std::string& name, OpKind forward, OpKind backward);
  [[nodiscard]] std::int64_t loss_chunk_rows() const;

  const ModelConfig& config_;
  const StepOptions& options_;
  const FamilyDefinition& family_;
  std::int64_t rows_;  // B*T
  std::string scope_;  // "h.3." within a layer
  StepGraph graph_;
  DependencyTracker dependencies_;
  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, std::size_t> parameter_by_name_;
  std::vector<Node> nodes_;  // in forward order
};

}  // namespace cleave::model
