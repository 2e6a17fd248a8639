#!/usr/bin/env bash
# What a run does when its folder fails it: checkpoints that cannot be written, a full disk, files that may not be so
# large, another run in the same folder.
#
#   bash tests/fault/output_folder.sh          CLEAVE=/path/to/cleave
set -euo pipefail

work=$(mktemp -d)
cleanup() { [ -z "${job:-}" ] || kill "$job" 2>/dev/null || true; umount "$work/small" 2>/dev/null || true; rm -rf "$work"; }
trap cleanup EXIT
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
write_small_input 8 9
fail() { echo "$1"; cat "$work/log"; exit 1; }
status=0
train() { status=0; "$CLEAVE" train "$work/input.yaml" --quiet "$@" > "$work/log" 2>&1 || status=$?; }
hash_of() { "$CLEAVE" info --hash "$work/$1/checkpoint-8.h5"; }

train output.dir="$work/calm"
[ "$status" -eq 0 ] || fail "an undisturbed run ended with exit code $status"
expected=$(hash_of calm)

# 1. A name that is taken: that checkpoint fails, the run says so and goes on.
mkdir -p "$work/taken/checkpoint-4.h5/in-the-way"
train output.dir="$work/taken"
[ "$status" -eq 0 ] || fail "a failed checkpoint ended the run with exit code $status"
grep -q 'no checkpoint after step 4' "$work/log" || fail "the run does not say that a checkpoint failed"
[ -f "$work/taken/checkpoint-6.h5" ] || fail "the checkpoint after the failed one is missing"
[ "$(hash_of taken)" = "$expected" ] || fail "other parameters"

# 2. The same, where the user asked to stop.
mkdir -p "$work/stopped/checkpoint-4.h5/in-the-way"
train output.dir="$work/stopped" checkpoint.on_failure=stop
[ "$status" -eq 1 ] || fail "checkpoint.on_failure=stop: exit code $status, not 1"
[ "$(grep -c . "$work/stopped/metrics.jsonl")" -eq 4 ] || fail "the run did not stop at the failed checkpoint"

# 3. The last checkpoint of a run must not fail.
mkdir -p "$work/last/checkpoint-8.h5/in-the-way"
train output.dir="$work/last"
[ "$status" -eq 1 ] || fail "the last checkpoint failed: exit code $status, not 1"

# 4. Another run in the same folder is refused, and the first one goes on. It is held meanwhile, so that it is not over
# before the others have been tried.
"$CLEAVE" train "$work/input.yaml" --quiet train.steps=400 train.eval_every=0 output.dir="$work/shared" > "$work/first" 2>&1 &
job=$!
until [ -s "$work/shared/ranks.json" ]; do sleep 0.02; done
kill -STOP "$job"
train output.dir="$work/shared"
[ "$status" -eq 1 ] || fail "a second run in the folder ended with exit code $status, not 1"
grep -q "another run writes there (process $job" "$work/log" || fail "the second run does not say who writes there"
train output.dir="$work/shared" --resume auto
[ "$status" -eq 1 ] || fail "a second, resumed run in the folder ended with exit code $status, not 1"
reached=$(grep -c . "$work/shared/metrics.jsonl" || true)
kill -CONT "$job"
until [ "$(grep -c . "$work/shared/metrics.jsonl")" -gt "$reached" ]; do
  kill -0 "$job" 2>/dev/null || fail "the first run did not survive"
  sleep 0.02
done
kill -KILL "$job" || fail "the first run had ended"
wait "$job" 2>/dev/null || true
job=
train output.dir="$work/shared" --resume auto train.steps=400 train.eval_every=0 checkpoint.every=400
[ "$status" -eq 0 ] || fail "after a SIGKILL the folder stays locked: exit code $status"

# 5. A folder is moved away while a run writes there, and another run begins in its place: nothing of the first one goes
# there, and that one says so.
"$CLEAVE" train "$work/input.yaml" --quiet train.steps=400 train.eval_every=0 output.dir="$work/moved" > "$work/first" 2>&1 &
job=$!
until [ -s "$work/moved/ranks.json" ]; do sleep 0.02; done
kill -STOP "$job"
mv "$work/moved" "$work/away"
train output.dir="$work/moved"
[ "$status" -eq 0 ] || fail "a run in the place of a folder that was moved ended with exit code $status"
files() { (cd "$work/moved" && sha256sum -- *); }
before=$(files)
kill -CONT "$job"
wait "$job" && status=0 || status=$?
job=
[ "$status" -eq 1 ] || fail "a run whose folder is another's now ended with exit code $status, not 1"
grep -q 'another run has begun there' "$work/first" || fail "a run whose folder is another's now does not say so"
[ "$(files)" = "$before" ] || fail "a run whose folder is another's now wrote there"

# 6. A disk that is full for a while, where this user may mount one.
mkdir "$work/small"
if mount -t tmpfs -o size=8m cleave-test "$work/small" 2>/dev/null; then
  mkdir "$work/small/run"
  "$CLEAVE" train "$work/input.yaml" --quiet train.steps=400 train.eval_every=0 checkpoint.keep=1 output.dir="$work/small/run" > "$work/log" 2>&1 &
  job=$!
  until [ -s "$work/small/run/metrics.jsonl" ]; do sleep 0.1; done
  dd if=/dev/zero of="$work/small/filler" bs=64k 2>/dev/null || true
  until grep -q 'no checkpoint after step' "$work/log" || ! kill -0 "$job" 2>/dev/null; do sleep 0.1; done
  sleep 0.5
  rm "$work/small/filler"
  wait "$job" || fail "a disk that was full for a while ended the run"
  job=
  [ "$(grep -c '^{.*}$' "$work/small/run/metrics.jsonl")" -eq 400 ] || fail "metrics.jsonl does not have one whole line a step"
  "$CLEAVE" info "$work/small/run/checkpoint-400.h5" > /dev/null || fail "the last checkpoint is damaged"
  echo "a full disk: tried"

  # The same as the folder itself, as a container has volumes: an earlier run stays on that disk.
  rm -r "$work/small/run"
  for _ in 1 2; do
    train output.dir="$work/small" checkpoint.keep=1
    [ "$status" -eq 0 ] || fail "a run in a file system of its own ended with exit code $status"
  done
  [ "$("$CLEAVE" info --hash "$work/small/small.1/checkpoint-8.h5")" = "$expected" ] || fail "the earlier run in a file system of its own is lost"
fi
# 7. A limit on the size of files: a checkpoint that is larger fails, and nothing else.
status=0
(ulimit -f 200 && exec "$CLEAVE" train "$work/input.yaml" --quiet output.dir="$work/limited") > "$work/log" 2>&1 || status=$?
[ "$status" -eq 1 ] || fail "ulimit -f: exit code $status, not 1"
for step in 2 4 6; do
  grep -q "no checkpoint after step $step: .*File too large" "$work/log" || fail "ulimit -f: nothing is said of the checkpoint after step $step"
done
[ "$(grep -c . "$work/limited/metrics.jsonl")" -eq 8 ] || fail "ulimit -f: metrics.jsonl does not have one line a step"
echo "the folder's faults are survived"
