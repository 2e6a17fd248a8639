#!/usr/bin/env bash
# Runs over three hosts: one that nothing happens to, and ones in tiles and in stages that lose a host for good. All end with
# the same bits, with exit code 0, and leave no process. One whose server listens where the others cannot reach it says so
# and ends.
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/hosts.sh"

# finish is lib.sh's; the hosts go with it.
trap 'hosts_down; finish' EXIT
hosts_up_or_skip 3

cp "$TOP/README.md" "$scratch/text.md"
train() { # FOLDER [OVERRIDE...]: three hosts, a server and three device ranks
  local folder=$1
  shift
  launch_on_hosts_within 200 3 4 "$CLEAVE" train "$TOP/inputs/quickstart.yaml" "data.text=$scratch/text.md" train.steps=40 \
    train.eval_every=0 checkpoint.every=0 "fleet.patience=2 s" "output.dir=$scratch/$folder" "$@"
}
hash_of() { "$CLEAVE" info --hash "$scratch/$1/checkpoint-40.h5"; }

expect_code 0 "a calm run over three hosts" train calm
[ -e "$scratch/calm/checkpoint-40.h5" ] || { cat "$scratch/out"; fail "no checkpoint"; exit 1; }
[ "$(hosts_used "$scratch/calm")" -eq 3 ] || fail "the ranks were on $(hosts_used "$scratch/calm") hosts, not 3"

# The third host's processes cannot be told from here; they know by themselves that the server is gone.
none_left() { ! pgrep -f "output.dir=$scratch/" > /dev/null; }
# lose_a_host FOLDER [OVERRIDE...]
lose_a_host() {
  local run=$scratch/$1 job code=0 begun watcher
  train "$@" > "$scratch/out" 2>&1 < /dev/null &
  job=$!
  stepping() { [ "$(lines_of "$run")" -ge 5 ]; }
  wait_for 60 stepping || { cat "$scratch/out"; fail "$1: no steps"; }
  cut_off "${host}3"
  [ "$(lines_of "$run")" -lt 40 ] || fail "$1: the run had ended before the host was cut off"
  begun=$SECONDS
  ( sleep 150; kill -KILL "$job" 2> /dev/null ) > /dev/null 2>&1 &
  watcher=$!
  wait "$job" || code=$?
  kill "$watcher" 2> /dev/null || true
  [ "$code" -eq 0 ] || { cat "$scratch/out"; fail "$1: a host was cut off: exit code $code after $((SECONDS - begun)) s"; }
  [ "$(hash_of "$1")" = "$(hash_of calm)" ] || fail "$1: other bits without the third host: $(hash_of "$1"), $(hash_of calm)"
  grep -aq " away " "$run/log.txt" || { cat "$run/log.txt"; fail "$1: no device was missed"; }
  wait_for 60 none_left || { pgrep -af "output.dir=$scratch/"; pkill -KILL -f "output.dir=$scratch/"; fail "$1: processes are left"; }
  mend "${host}3"
}
lose_a_host cut
lose_a_host cut-in-stages plan.layout=stages verify.mode=auto

code=0
train deaf server.interface=lo > "$scratch/out" 2>&1 < /dev/null || code=$?
[ "$code" -eq 1 ] || fail "a server that listens where nobody reaches it: exit code $code"
expect_text "a server that listens where nobody reaches it" "connect rank [12].*server.interface"
wait_for 30 none_left || { pgrep -af "output.dir=$scratch/"; pkill -KILL -f "output.dir=$scratch/"; fail "processes are left after a bad start"; }
