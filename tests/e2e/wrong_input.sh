#!/usr/bin/env bash
# Each kind of wrong input gets a clear message, the right exit code (also from mpirun), and leaves nothing behind.
#
#   bash tests/e2e/wrong_input.sh RANKS
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ranks=$1
# mpirun gives the ranks that are left a second when one ends with another code than 0. Here nothing is left to be done.
export OMPI_MCA_odls_base_sigkill_timeout=0
write_input
cp "$scratch/input.yaml" "$scratch/good.yaml"

# refused CODE LABEL PATTERN ARGUMENT...: `train` on $scratch/input.yaml with these arguments.
refused() {
  local code=$1 label=$2 pattern=$3
  shift 3
  expect_code "$code" "$label" cleave_on "$ranks" train "$scratch/input.yaml" --quiet "$@"
  expect_text "$label" "$pattern"
  if [ -e "$scratch/run" ]; then
    fail "$label: left a run folder"
    rm -rf "$scratch/run"
  fi
}
# edited SED-EXPRESSION: the good input with one change.
edited() { sed -E "$1" "$scratch/good.yaml" > "$scratch/input.yaml"; }

edited 's/warmup_steps/warmup_step/'
refused 2 "unknown key" 'input\.yaml:3: train\.warmup_step: .*warmup_steps'
edited 's/512 MiB/512/'
refused 2 "missing unit" 'input\.yaml:7: fleet\.devices\.?\[?0\]?\.memory: '
edited 's/count: 5/count: -5/'
refused 2 "negative count" 'input\.yaml:7: fleet\.devices\.?\[?0\]?\.count: '
edited 's/text: text/text: nowhere.txt/'
refused 2 "text that is not there" 'input\.yaml:2: data\.text: .*nowhere\.txt'
edited 's/text: text, tokenizer: byte/batches: nowhere.h5/'
refused 2 "batches that are not there" 'input\.yaml:2: data\.batches: nowhere\.h5: no such file'
edited 's/seq_len: 64/seq_len: 64, init: nowhere.h5/'
refused 2 "parameters that are not there" 'input\.yaml:1: model\.init: nowhere\.h5: no such file'
edited 's/^  clock: virtual/  churn: {trace: nowhere.yaml}/'
refused 2 "trace that is not there" 'input\.yaml:5: fleet\.churn\.trace: nowhere\.yaml: no such file'
printf 'events: [{at: 1 s, device: 0, kind: leave}]\n' > "$scratch/trace.yaml"
edited 's/^  clock: virtual/  churn: {trace: trace.yaml, lie_fraction: 0.5}/'
refused 2 "liars beside a trace" 'input\.yaml:5: fleet\.churn\.lie_fraction: draws nothing beside a trace'
edited 's/80 MB\/s, 800 MB\/s/800 MB\/s, 80 MB\/s/'
refused 2 "range upside down" 'input\.yaml:7: fleet\.devices\.?\[?0\]?\.downlink: '
edited 's/^fleet:/fleet: [/'
refused 2 "no YAML" 'input\.yaml:[0-9]+: '
edited 's/family: gpt2/family: gpt9/; s/batch: 25/batch: 0/; s/lr: 1e-2/lr: fast/; s/count: 3/cuont: 3/'
refused 2 "several faults" 'input\.yaml:1: model\.family: '
for key in 'input\.yaml:3: train\.batch: ' 'input\.yaml:3: train\.lr: ' 'cuont.*count'; do
  expect_text "several faults at once" "$key"
done

# What shows only after the input is read says where the key stands, too.
edited 's/seq_len: 64/seq_len: 64, vocab_size: 100/'
refused 2 "vocabulary of the file too small" 'input\.yaml:1: model\.vocab_size: 100 is less'
edited 's/batch: 25/batch: 9000000/'
refused 2 "batch of the file too large" 'input\.yaml:3: train\.batch: .*fit'
printf 'server: {gemm_kernels: hasvell, interface: nowhere0}\n' >> "$scratch/input.yaml"
refused 2 "kernels of no name" 'input\.yaml:12: server\.gemm_kernels: .*haswell'
edited 's/lr: 1e-2/lr: fast/'
printf 'server: {gemm_kernels: hasvell}\n' >> "$scratch/input.yaml"
refused 2 "kernels of no name beside another fault" 'input\.yaml:12: server\.gemm_kernels: '
expect_text "kernels of no name beside another fault" 'input\.yaml:3: train\.lr: '
for command in plan simulate; do
  expect_code 2 "$command with kernels of no name" "$CLEAVE" "$command" "$scratch/good.yaml" server.gemm_kernels=avx
  expect_text "$command with kernels of no name" 'server\.gemm_kernels'
done
sed '$a server: {interface: nowhere0}' "$scratch/good.yaml" > "$scratch/input.yaml"
refused 2 "interface that is not there" 'input\.yaml:12: server\.interface: '

cp "$scratch/good.yaml" "$scratch/input.yaml"
refused 2 "unknown key as override" 'train\.stepps: .*steps' train.stepps=5
refused 2 "heads that do not divide the width" 'n_head' model.n_head=5
refused 2 "vocabulary too small for the text" 'vocab' model.vocab_size=100
refused 2 "batch that cannot fit in memory" 'train\.batch: .*fit' train.batch=9000000
refused 2 "chunks that attention's blocks do not fill" 'plan\.chunk_tokens: .*multiple of 128' plan.chunk_tokens=100
refused 2 "owners of no kind" 'plan\.owners: .*replicas' plan.owners=all
refused 2 "stages whose answers are to be checked" 'verify\.mode: .*plan\.layout: tiles' plan.layout=stages
refused 2 "devices that can hold nothing" 'memory' 'fleet.devices.0.memory=1 kB' 'fleet.devices.1.memory=1 kB'
refused 1 "folder that cannot be made" 'good\.yaml/run' "output.dir=$scratch/good.yaml/run"
refused 2 "checkpoint that is not there" 'gone\.h5' --resume "$scratch/gone.h5"
expect_code 2 "input that is not there" cleave_on "$ranks" train "$scratch/none.yaml"
expect_code 2 "no input" cleave_on "$ranks" train
expect_code 2 "unknown command" cleave_on "$ranks" trian

# Checkpoints that must not be resumed from, nor start a model.
expect_code 0 "a good run" cleave_on "$ranks" train "$scratch/input.yaml" --quiet "output.dir=$scratch/ok"
head -c 30000 "$scratch/ok/checkpoint-4.h5" > "$scratch/short.h5"
refused 2 "truncated checkpoint" 'short\.h5' --resume "$scratch/short.h5"
refused 2 "truncated checkpoint to start from" 'short\.h5' "model.init=$scratch/short.h5"
refused 2 "checkpoint of another model" 'checkpoint-4\.h5' --resume "$scratch/ok/checkpoint-4.h5" model.d_model=64
size=$(stat -c %s "$scratch/ok/checkpoint-4.h5")
cp "$scratch/ok/checkpoint-4.h5" "$scratch/flipped.h5"
printf '\x5a\xa5\x5a' | dd of="$scratch/flipped.h5" bs=1 seek=$((size / 2)) conv=notrunc status=none
refused 2 "damaged checkpoint" 'flipped\.h5' --resume "$scratch/flipped.h5"
for command in info generate; do
  expect_code 2 "$command of a truncated checkpoint" "$CLEAVE" "$command" "$scratch/short.h5"
  expect_text "$command of a truncated checkpoint" 'short\.h5'
done

expect_code 3 "loss that is not finite" cleave_on "$ranks" train "$scratch/input.yaml" --quiet \
  "output.dir=$scratch/wild" train.lr=1e30 train.min_lr=1e30 train.grad_clip=0
expect_code 0 "dry run" cleave_on "$ranks" train "$scratch/input.yaml" --dry-run
expect_text "dry run" 'steps: 4'
[ ! -e "$scratch/run" ] || fail "a dry run left a folder"
