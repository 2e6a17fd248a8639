#!/usr/bin/env bash
# kills.sh RUNS [SEED]: so many runs over three hosts, each of which loses one thing at a seeded moment in the midst of its
# transfers: a device rank that is killed or stopped, or a host that is cut off. Links carry 1 Gbit/s, so that frames are
# under way most of the time. Each run must end with exit code 0 and the calm run's bits, soon after it could have, and
# leave no process. A run in which nothing was lost does not count: it fails.
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/hosts.sh"

runs=${1:-3} seed=${2:-1} steps=10 limit=120
skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" -eq 0 ] || skip "making hosts of network namespaces needs root"
command -v ip > /dev/null || skip "making hosts needs iproute2"

left() { pgrep -f "output.dir=$scratch/" || true; }
# finish is lib.sh's; the hosts, and whatever still runs on them, go with it.
trap 'left | xargs -r kill -KILL 2> /dev/null || true; hosts_down; finish' EXIT
hosts_up 3 2> "$scratch/why" || skip "no network namespaces: $(tail -n 1 "$scratch/why")"
slow 3 1gbit || skip "no rates on links"

cp "$TOP/README.md" "$scratch/text.md"
train() { # FOLDER: a server and four device ranks, one of them on the server's host
  launch_on_hosts 3 5 "$CLEAVE" train "$TOP/inputs/quickstart.yaml" "data.text=$scratch/text.md" "train.steps=$steps" \
    model.d_model=256 model.n_layer=2 train.batch=32 train.eval_every=0 checkpoint.every=0 "fleet.patience=2 s" \
    "output.dir=$scratch/$1"
}
reached() { [ "$(lines_of "$scratch/$1")" -ge "$2" ]; }
none_left() { [ -z "$(left)" ]; }

# Ends a job that outlasts its limit, and says so; otherwise returns its exit code.
outcome_of() { # JOB SECONDS
  local end=$((SECONDS + $2)) code=0
  while kill -0 "$1" 2> /dev/null; do
    [ "$SECONDS" -lt "$end" ] || { left | xargs -r kill -KILL; kill -KILL "$1"; wait "$1" 2> /dev/null || true; return 124; }
    sleep 0.1
  done
  wait "$1" || code=$?
  return "$code"
}

began=$SECONDS
train calm > "$scratch/out" 2>&1 < /dev/null &
code=0
outcome_of $! "$limit" || code=$?
calm_took=$((SECONDS - began))
[ "$code" -eq 0 ] || { cat "$scratch/out"; fail "the calm run: exit code $code"; exit 1; }
wanted=$(hash_of "$scratch/calm" "$steps")
hosts=$(sed -n 's/.*"host": "\([^"]*\)".*/\1/p' "$scratch/calm/ranks.json" | sort -u | wc -l)
[ "$hosts" -eq 3 ] || fail "the ranks were on $hosts hosts, not 3"
echo "calm: $calm_took s, $wanted"

RANDOM=$seed
good=0
for ((run = 1; run <= runs; ++run)); do
  name=run-$run
  fate=$((run % 3)) victim=$((1 + RANDOM % 4)) after=$((RANDOM % (steps * 2 / 3))) delay=0.$((100 + RANDOM % 900))
  case $fate in
    0) what="host 3 cut off" ;;
    1) what="rank $victim killed" ;;
    2) what="rank $victim stopped" ;;
  esac
  failed=$failures began=$SECONDS code=0
  train "$name" > "$scratch/out" 2>&1 < /dev/null &
  job=$!
  # Nothing has been done before the first step: then ranks are all in their first transfers.
  [ "$after" -eq 0 ] || wait_for "$limit" reached "$name" "$after" || fail "run $run: no steps"
  wait_for "$limit" test -s "$scratch/$name/ranks.json" || fail "run $run: no ranks"
  sleep "$delay"
  seen=$(lines_of "$scratch/$name")
  [ "$seen" -lt "$steps" ] || fail "run $run: it had ended before anything happened"
  case $fate in
    0) cut "${host}3" ;;
    1) kill -KILL "$(pid_of "$scratch/$name" "$victim")" ;;
    2) kill -STOP "$(pid_of "$scratch/$name" "$victim")" ;;
  esac
  outcome_of "$job" "$((calm_took * 2 + 60))" || code=$?
  took=$((SECONDS - began))
  [ "$code" -eq 0 ] || fail "run $run: $what in step $((seen + 1)): exit code $code after $took s"
  hash=$(hash_of "$scratch/$name" "$steps" 2>&1) || true
  [ "$hash" = "$wanted" ] || fail "run $run: $what in step $((seen + 1)): other bits: $hash"
  grep -aq " away " "$scratch/$name/log.txt" || fail "run $run: $what in step $((seen + 1)): nothing was missed"
  [ "$fate" -ne 0 ] || mend "${host}3"
  wait_for 60 none_left || { fail "run $run: processes are left"; left | xargs -r kill -KILL; }
  if [ "$failures" -eq "$failed" ]; then good=$((good + 1)); else cp "$scratch/out" "$scratch/$name/out.txt" || true; fi
  echo "run $run: $what in step $((seen + 1)): exit code $code, $took s"
done
echo "$good of $runs runs good"
[ "$good" -eq "$runs" ]
