# shellcheck shell=bash
# What the end-to-end scripts share: a scratch folder, ways to run the built program, and expectations. Sourced.
#
# CTest sets CLEAVE (the program) and CLEAVE_SCRATCH (where scratch folders go). A script that ends well, or skips (77),
# leaves nothing behind; one that fails leaves its scratch folder, and says where it is.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CLEAVE=${CLEAVE:-$TOP/build/release/cleave}
# shellcheck source=../../jobs/mpi-env.sh
. "$TOP/jobs/mpi-env.sh"

scratch=$(mktemp -d "${CLEAVE_SCRATCH:-${TMPDIR:-/tmp}}/cleave-e2e.XXXXXX")
# Open MPI's session folders, for this test alone: an mpirun that ends removes the common one when it is empty, under the
# feet of one that starts; and a killed one leaves its own. In /tmp, since sockets' paths are short.
OMPI_MCA_orte_tmpdir_base=$(mktemp -d "/tmp/cleave-ompi.XXXXXX")
export OMPI_MCA_orte_tmpdir_base
failures=0
finish() {
  local status=$?
  rm -rf "$OMPI_MCA_orte_tmpdir_base"
  if [ "$status" -eq 77 ] || { [ "$status" -eq 0 ] && [ "$failures" -eq 0 ]; }; then
    rm -rf "$scratch"
  else
    echo "left for inspection: $scratch"
    [ "$status" -ne 0 ] || exit 1
  fi
}
trap finish EXIT

# fail TEXT: notes it and goes on, so that one run shows every failure.
fail() {
  printf 'FAILED: %s\n' "$*"
  failures=$((failures + 1))
}

# skip TEXT: ends the script as one that cannot be tried here, and says why.
skip() { echo "skipped: $*"; exit 77; }

# cleave_on RANKS ARGUMENT...: the program under mpirun; with 0 ranks, without mpirun.
cleave_on() {
  local ranks=$1
  shift
  if [ "$ranks" -eq 0 ]; then
    "$CLEAVE" "$@"
  else
    mpirun -n "$ranks" "$CLEAVE" "$@"
  fi
}

# expect_code CODE LABEL COMMAND...: runs it with its output in $scratch/out.
expect_code() {
  local wanted=$1 label=$2 got=0
  shift 2
  "$@" > "$scratch/out" 2>&1 < /dev/null || got=$?
  [ "$got" -eq "$wanted" ] || {
    fail "$label: exit code $got, not $wanted"
    sed 's/^/    /' "$scratch/out"
  }
}

# expect_text LABEL PATTERN: an extended regular expression that the last command's output must match.
expect_text() {
  grep -Eq -- "$2" "$scratch/out" || {
    fail "$1: output does not match '$2'"
    sed 's/^/    /' "$scratch/out"
  }
}

# hash_of FOLDER STEP: one line over every bit of the parameters after STEP.
hash_of() { "$CLEAVE" info --hash "$1/checkpoint-$2.h5"; }

# lines_of FOLDER: whole steps that the run has written so far.
lines_of() { wc -l 2> /dev/null < "$1/metrics.jsonl" || echo 0; }

# wait_for SECONDS COMMAND...: until it succeeds; false when time is up.
wait_for() {
  local tries=$(($1 * 20))
  shift
  until "$@"; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || return 1
    sleep 0.05
  done
}

# pid_of FOLDER RANK, from ranks.json.
pid_of() { tr -d ' \n' < "$1/ranks.json" | grep -Eo "\"rank\":$2,\"pid\":[0-9]+" | grep -Eo '[0-9]+$'; }

# A small model on a text of its own: 1600 tokens a step, so that weight gradients have two K blocks.
write_input() {
  mkdir -p "$scratch/text"
  local i
  for i in $(seq 1 400); do printf 'line %d of the text: the quick brown fox %d jumps over the lazy dog\n' "$i" $((i * i)); done > "$scratch/text/fox.txt"
  cat > "$scratch/input.yaml" <<'YAML'
model: {family: gpt2, n_layer: 2, n_head: 2, d_model: 32, seq_len: 64}
data: {text: text, tokenizer: byte, val_fraction: 0.1}
train: {steps: 4, batch: 25, lr: 1e-2, warmup_steps: 2, eval_every: 2, eval_batches: 1}
fleet:
  clock: virtual
  devices:
    - {name: phone, count: 5, compute: [0.7 TFLOP/s, 2.2 TFLOP/s], memory: 512 MiB, downlink: [80 MB/s, 800 MB/s], uplink: [40 MB/s, 80 MB/s], latency: 100 us}
    - {name: laptop, count: 3, compute: 4 TFLOP/s, memory: 4 GiB, downlink: 300 MB/s, uplink: 100 MB/s, latency: 50 us}
verify: {mode: all}
checkpoint: {every: 2}
output: {dir: run}
YAML
}
