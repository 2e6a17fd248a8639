#!/usr/bin/env bash
# The server's memory as it is predicted before a run and as it is measured at its end, for some runs
# (docs/models.md).
#
#   bash bench/memory.sh TEXT [RUN...]     TEXT: any text file; RUN: quickstart, six-layers, fleet-1000, gpt2-124m, head-in-parts;
#                                          the first two also with -fp16, -stages or -stages-fp16 after the name, the last with -fp16
#
# Each on a server and two device ranks, for a few steps. Takes some minutes, and 5 GiB for gpt2-124m. Edit: nothing.
set -euo pipefail
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
text=$(realpath "${1:?usage: bash bench/memory.sh TEXT [RUN...]}")
shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
[ $# -gt 0 ] || set -- quickstart six-layers fleet-1000 gpt2-124m {quickstart,six-layers}{,-stages}-fp16 {quickstart,six-layers}-stages head-in-parts{,-fp16}
for run in "$@"; do
  layout=()
  case $run in *-fp16) layout+=(plan.wire=fp16) ;; esac
  case $run in *-stages*) layout+=(plan.layout=stages verify.mode=off) ;; esac
  case ${run%%-stages*} in
    quickstart | quickstart-fp16) input=(quickstart.yaml train.steps=3 train.eval_batches=4) ;;
    six-layers | six-layers-fp16) input=(speed/six-layers.yaml train.steps=2) ;;
    fleet-1000) input=(scale/fleet-1000.yaml train.steps=2) ;;
    gpt2-124m) input=(quickstart.yaml model.n_layer=12 model.n_head=12 model.d_model=768 model.d_ff=3072 model.vocab_size=50257
      model.seq_len=256 train.batch=4 train.steps=1 train.eval_every=0 checkpoint.every=0) ;;
    head-in-parts | head-in-parts-fp16) input=(quickstart.yaml model.n_layer=4 model.n_head=4 model.d_model=256 model.d_ff=1024 model.vocab_size=40000
      model.seq_len=128 train.batch=8 train.steps=2 train.eval_every=0 checkpoint.every=0 plan.layout=stages verify.mode=off
      "fleet.devices=[{name: phone, count: 24, compute: [1 TFLOP/s, 4 TFLOP/s], memory: 40 MB, downlink: 50 MB/s, uplink: 10 MB/s}]") ;;
    *) echo "no run is called $run" >&2; exit 2 ;;
  esac
  rm -rf "$scratch/run"
  bash "$TOP/jobs/run.sh" "$TOP/inputs/${input[0]}" 3 "${input[@]:1}" "${layout[@]}" "data.text=$text" "output.dir=$scratch/run" \
    > "$scratch/out" 2>&1 || { cat "$scratch/out" >&2; exit 1; }
  printf '%-22s %s\n' "$run" "$(grep -a 'peak memory: server' "$scratch/out")"
done
