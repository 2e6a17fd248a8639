#!/usr/bin/env bash
# kills.sh RUNS [SEED]: so many runs over three hosts, each of which loses one thing at a seeded moment: a device rank that is
# killed or stopped, or a host that is cut off, for good or for five seconds; at its start, in the midst of its transfers, or
# at its end. Links carry 1 Gbit/s, so that frames are under way most of the time. Each run must end with exit code 0 and the
# calm run's bits, soon after it could have, and leave no process. A run in which nothing was lost does not count: it fails.
#
# Soon: within the time of a calm run (there is one before and one after every twelve, and the slower counts), a third more
# for what was still to be done, as three ranks do what four would have, the time in which a loss is noticed, a step that is
# computed again, and the seconds that launch() gives mpirun when a rank cannot be told.
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/hosts.sh"

runs=${1:-3} seed=${2:-1} steps=10 batch=32 limit=120
[ "$runs" -ge 12 ] || steps=6 batch=16 # the brief test: the same moments, closer to each other
# A rank that is silent is away after two seconds, and at the end has five more to take leave. mpirun gets five seconds, and
# three to end.
noticed=$((2 + 5)) ended=$((5 + 3))
ms() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }
seconds() { printf '%d.%d' $(($1 / 1000)) $(($1 % 1000 / 100)); }  # of milliseconds

# Ranks, and what mpirun has on each host: all have a path of this test on their command lines.
left() { pgrep -f "$scratch/" || true; }
# finish is lib.sh's; the hosts, and whatever still runs on them, go with it.
trap 'left | xargs -r kill -KILL 2> /dev/null || true; hosts_down; finish' EXIT
hosts_up_or_skip 3
slow 3 1gbit || skip "no rates on links"

cp "$TOP/README.md" "$scratch/text.md"
train() { # FOLDER: a server and four device ranks, one of them on the server's host
  launch_on_hosts 3 5 "$CLEAVE" train "$TOP/inputs/quickstart.yaml" "data.text=$scratch/text.md" "train.steps=$steps" \
    model.d_model=256 model.n_layer=2 "train.batch=$batch" train.eval_every=0 checkpoint.every=0 "fleet.patience=2 s" \
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

calm_run() { # NAME: its milliseconds in calm_took
  local began code=0 hash
  began=$(ms)
  train "$1" > "$scratch/out" 2>&1 < /dev/null &
  outcome_of $! "$limit" || code=$?
  calm_took=$(($(ms) - began))
  [ "$code" -eq 0 ] || { cat "$scratch/out"; fail "the calm run: exit code $code"; exit 1; }
  hash=$(hash_of "$scratch/$1" "$steps")
  wanted=${wanted:-$hash}
  [ "$hash" = "$wanted" ] || { fail "two calm runs, other bits: $hash, $wanted"; exit 1; }
  echo "calm: $(seconds "$calm_took") s, $hash"
}

# times_of FIRST LAST CALM: that none of these runs took longer than it may beside calm ones of so many milliseconds.
times_of() {
  local run most
  for ((run = $1; run <= $2; ++run)); do
    most=$(($3 + $3 * still[run] / (3 * steps) + $3 / steps + 1000 * extra[run]))
    [ "${took[run]}" -le "$most" ] || { fail "run $run: $(seconds "${took[run]}") s, more than $(seconds $most) s"; bad[run]=yes; }
  done
  echo "runs $1 to $2, beside $(seconds "$3") s of calm ones:$(for ((run = $1; run <= $2; ++run)); do printf ' %s' "$(seconds "${took[run]}")"; done) s"
}

# happens FATE RANK, in the run $name.
happens() {
  case $1 in
    killed) kill -KILL "$(pid_of "$scratch/$name" "$2")" ;;
    stopped) kill -STOP "$(pid_of "$scratch/$name" "$2")" ;;
    cut | mended) cut_off "${host}3" ;;
  esac
}
alive() { local pid; pid=$(pid_of "$scratch/$1" 0) && kill -0 "$pid" 2> /dev/null; }

RANDOM=$seed
fates=(killed stopped cut mended) moments=(middle start end)
took=() still=() extra=() bad=()
calm_run calm-0
for ((run = 1; run <= runs; ++run)); do
  name=run-$run
  # Each fate meets each moment once in twelve runs.
  fate=${fates[(run - 1) % 4]} moment=${moments[(run - 1) / 4 % 3]}
  [ "$runs" -ge 12 ] || moment=${moments[(run - 1) % 3]}
  victim=$((1 + RANDOM % 4)) step=$((1 + RANDOM % (steps - 3))) delay=$(printf '0.%03d' $((RANDOM % 1000)))
  case $moment in
    start) step=0 ;;
    # In one dozen in the last step, in the next one after it: while the run saves, checks and takes leave.
    end)
      step=$((steps - 1))
      (((run - 1) / 12 % 2 == 0)) || step=$steps delay=0.0$((10 + RANDOM % 90))
      ;;
  esac
  case $fate in
    killed | stopped) what="rank $victim $fate" ;;
    cut) what="host 3 cut off" ;;
    mended) what="host 3 cut off for 5 s" ;;
  esac
  failed=$failures code=0
  # The last moments of a run are short: one that ended before anything could happen is run again.
  for attempt in 1 2 3; do
    began=$(ms)
    train "$name" > "$scratch/out" 2>&1 < /dev/null &
    job=$!
    # Ranks are written down when they know each other; nothing has been done before the first step.
    wait_for "$limit" test -s "$scratch/$name/ranks.json" || fail "run $run: no ranks"
    [ "$step" -eq 0 ] || wait_for "$limit" reached "$name" "$step" || fail "run $run: no steps"
    sleep "$delay"
    seen=$(lines_of "$scratch/$name")
    if alive "$name" && happens "$fate" "$victim" 2> /dev/null; then break; fi
    outcome_of "$job" "$limit" || true
    [ "$attempt" -lt 3 ] || { fail "run $run: it ended three times before anything happened"; exit 1; }
    rm -rf "${scratch:?}/$name"
    delay=0
  done
  what+=" after step $seen"
  [ "$fate" != mended ] || { sleep 5; mend "${host}3"; }
  outcome_of "$job" "$limit" || code=$?
  took[run]=$(($(ms) - began)) still[run]=$((steps - seen))
  # Who is lost after its farewell is missed by MPI_Finalize only, which is given ten seconds.
  extra[run]=$((noticed + ended + (seen < steps ? 0 : 10)))
  [ "$code" -eq 0 ] || fail "run $run: $what: exit code $code after $(seconds "${took[run]}") s"
  hash=$(hash_of "$scratch/$name" "$steps" 2>&1) || true
  [ "$hash" = "$wanted" ] || fail "run $run: $what: other bits: $hash"
  # In the last step, or after it, the run may have needed nothing more of what was lost.
  [ "$moment" = end ] || grep -aq " away " "$scratch/$name/log.txt" || fail "run $run: $what: nothing was missed"
  [ "$fate" != cut ] || mend "${host}3"
  wait_for 60 none_left || { fail "run $run: processes are left: $(left | xargs -r ps -o args= -p | sed 's/^\(.\{80\}\).*/\1/')"; left | xargs -r kill -KILL; }
  echo "run $run: $what: exit code $code, $(seconds "${took[run]}") s"
  [ "$failures" -eq "$failed" ] || { bad[run]=yes; cp "$scratch/out" "$scratch/$name/out.txt" || true; }
  if ((run % 12 == 0 || run == runs)); then
    before=$calm_took
    calm_run "calm-$run"
    times_of $(((run - 1) / 12 * 12 + 1)) "$run" $((before > calm_took ? before : calm_took))
  fi
done
echo "$((runs - ${#bad[@]})) of $runs runs good"
[ "${#bad[@]}" -eq 0 ]
