#!/usr/bin/env bash
# Signals and consoles: every way to ask for a stop, before the first step and after it; readers that leave.
#
#   bash tests/e2e/signals.sh RANKS
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ranks=$1
write_input
# Slow in real time, so that a run is in the middle of something when the signal comes.
slow=(train.steps=500 train.eval_every=0 checkpoint.every=0 fleet.clock=wall 'server.nic_in=20 MB/s')
started() { [ "$(lines_of "$scratch/run")" -ge 1 ]; }
# start COMMAND...: in the background, with signals as a terminal would leave them; a shell would ignore SIGINT there.
start() {
  perl -e '$SIG{INT} = $SIG{HUP} = "DEFAULT"; exec @ARGV or die' "$@" > "$scratch/out" 2>&1 &
  pid=$!
}
expect_end() { # CODE LABEL
  local code=0
  wait "$pid" || code=$?
  [ "$code" -eq "$1" ] || { fail "$2: exit code $code, not $1"; sed 's/^/    /' "$scratch/out"; }
}

for signal in TERM USR1 INT HUP; do
  rm -rf "$scratch"/run*
  if [ "$ranks" -eq 0 ]; then
    start "$CLEAVE" train "$scratch/input.yaml" "${slow[@]}"
  else
    start env CLEAVE="$CLEAVE" bash "$TOP/jobs/run.sh" "$scratch/input.yaml" "$ranks" "${slow[@]}"
  fi
  wait_for 60 started || fail "$signal: the run did not start"
  kill "-$signal" "$pid"
  expect_end 75 "$signal"
  [ -n "$(find "$scratch/run" -name 'checkpoint-*.h5')" ] || fail "$signal: no checkpoint"
done

# A reader that leaves costs the output, not the run.
rm -rf "$scratch"/run*
reader=0
if [ "$ranks" -eq 0 ]; then
  { "$CLEAVE" train "$scratch/input.yaml" --verbose train.steps=8 2>&1 || echo "code $?" > "$scratch/code"; } | head -n 1 > /dev/null || reader=$?
else
  { CLEAVE=$CLEAVE bash "$TOP/jobs/run.sh" "$scratch/input.yaml" "$ranks" --verbose train.steps=8 2>&1 || echo "code $?" > "$scratch/code"; } | head -n 1 > /dev/null || reader=$?
fi
[ ! -e "$scratch/code" ] || fail "train | head: $(cat "$scratch/code")"
[ -s "$scratch/run/checkpoint-8.h5" ] || fail "train | head: no checkpoint at the end"
[ "$ranks" -eq 0 ] || exit 0

# Commands whose product is their output: a reader that leaves is no failure, a full disk is one.
for command in "plan $scratch/input.yaml --json -" "simulate $scratch/input.yaml" "info $scratch/run/checkpoint-8.h5" \
  "generate $scratch/run/checkpoint-8.h5 --tokens 40" "describe inputs" "train $scratch/input.yaml --dry-run" "--version"; do
  # shellcheck disable=SC2086  # words
  code=$({ "$CLEAVE" $command 2> /dev/null || echo "$?" >&3; } 3>&1 > >(sleep 0) | cat)
  [ -z "$code" ] || fail "cleave $command | (nobody): exit code $code"
  # shellcheck disable=SC2086
  expect_code 1 "cleave $command > /dev/full" bash -c '"$@" > /dev/full' _ "$CLEAVE" $command
done
"$CLEAVE" train "$scratch/input.yaml" train.steps=2 2> /dev/full || fail "a console that is full ended a run"

# Before the first step signals have their usual effect, also through jobs/run.sh. The data are slow to come: every read of
# them waits.
cat > "$scratch/slow.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>
#include <stdio.h>
ssize_t read(int fd, void *to, size_t n) {
  ssize_t (*next)(int, void *, size_t) = (ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length > 0) {
    path[length] = 0;
    if (strstr(path, "fox.txt")) sleep(600);
  }
  return next(fd, to, n);
}
C
if cc -shared -fPIC -o "$scratch/slow.so" "$scratch/slow.c" -ldl; then
  loading() { grep -qs fox.txt <(ls -l /proc/[0-9]*/fd 2> /dev/null | grep "$scratch"); }
  for signal in TERM INT HUP; do
    start env LD_PRELOAD="$scratch/slow.so" "$CLEAVE" train "$scratch/input.yaml"
    wait_for 60 loading || fail "the data are not being read"
    kill "-$signal" "$pid"
    expect_end "$((128 + $(kill -l $signal)))" "$signal while data load"
  done
  start env LD_PRELOAD="$scratch/slow.so" CLEAVE="$CLEAVE" bash "$TOP/jobs/run.sh" "$scratch/input.yaml" 3
  wait_for 60 loading || fail "the data are not being read"
  kill -TERM "$pid"
  expect_end 75 "TERM to jobs/run.sh while data load"
fi

# A start that hangs, for a rank that never comes, is given up by all that belongs to the job when all are told, as `timeout`
# and batch systems do.
cat > "$scratch/absent" <<'SCRIPT'
#!/bin/bash
[ "$OMPI_COMM_WORLD_RANK" != 1 ] || exec sleep 300
echo "$$" > "$1.$OMPI_COMM_WORLD_RANK"
shift
exec "$@"
SCRIPT
chmod +x "$scratch/absent"
start setsid bash -c '. "$1/jobs/mpi-env.sh"; shift; launch 3 "$@"' _ "$TOP" "$scratch/absent" "$scratch/came" \
  "$CLEAVE" train "$scratch/input.yaml"
came() { [ -s "$scratch/came.0" ] && [ -s "$scratch/came.2" ]; }
wait_for 60 came || fail "the ranks did not start"
sleep 1 # until they wait for each other
kill -TERM "-$pid"
ended() { ! kill -0 "$pid" 2> /dev/null; }
wait_for 30 ended || { fail "TERM to all of a start that hangs: it goes on"; kill -KILL "-$pid"; }
expect_end 75 "TERM to all of a start that hangs"
left() { pgrep -f "$scratch/(absent|input)" > /dev/null; }
wait_for 5 eval '! left' || { fail "ranks are left"; pgrep -af "$scratch/"; pkill -KILL -f "$scratch/"; }

# What is no regular file is refused at once.
mkfifo "$scratch/pipe"
for source in "$scratch/pipe" /dev/zero; do
  expect_code 2 "data.text=$source" timeout 60 "$CLEAVE" train "$scratch/input.yaml" "data.text=$source"
  expect_text "data.text=$source" 'not a regular file'
done
