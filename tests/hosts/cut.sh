#!/usr/bin/env bash
# A run over three hosts: one that nothing happens to, and one that loses a host for good. Both end with the same bits, with
# exit code 0, and leave no process. One whose server listens where the others cannot reach it says so and ends.
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

train cut > "$scratch/out" 2>&1 < /dev/null &
job=$!
stepping() { [ -e "$scratch/cut/metrics.jsonl" ] && [ "$(wc -l < "$scratch/cut/metrics.jsonl")" -ge 5 ]; }
wait_for 60 stepping || { cat "$scratch/out"; fail "no steps"; }
cut_off "${host}3"
[ "$(wc -l < "$scratch/cut/metrics.jsonl")" -lt 40 ] || fail "the run had ended before the host was cut off"
begun=$SECONDS
code=0
( sleep 150; kill -KILL "$job" 2> /dev/null ) > /dev/null 2>&1 &
watcher=$!
wait "$job" || code=$?
kill "$watcher" 2> /dev/null || true
[ "$code" -eq 0 ] || { cat "$scratch/out"; fail "a host was cut off: exit code $code after $((SECONDS - begun)) s"; }
[ "$(hash_of cut)" = "$(hash_of calm)" ] || fail "other bits without the third host: $(hash_of cut), $(hash_of calm)"
grep -aq " away " "$scratch/cut/log.txt" || { cat "$scratch/cut/log.txt"; fail "no device was missed"; }
# The third host's processes cannot be told from here; they know by themselves that the server is gone.
none_left() { ! pgrep -f "output.dir=$scratch/" > /dev/null; }
wait_for 60 none_left || { pgrep -af "output.dir=$scratch/"; pkill -KILL -f "output.dir=$scratch/"; fail "processes are left"; }

mend "${host}3"
code=0
train deaf server.interface=lo > "$scratch/out" 2>&1 < /dev/null || code=$?
[ "$code" -eq 1 ] || fail "a server that listens where nobody reaches it: exit code $code"
expect_text "a server that listens where nobody reaches it" "connect rank [12].*server.interface"
wait_for 30 none_left || { pgrep -af "output.dir=$scratch/"; pkill -KILL -f "output.dir=$scratch/"; fail "processes are left after a bad start"; }
