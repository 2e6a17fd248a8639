#!/usr/bin/env bash
# launch() of jobs/mpi-env.sh: rank 0's exit code, survivors after a death, signals passed on. With stand-ins for the
# program, so that it fails for no other reason.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cat > "$scratch/program" <<'SH'
#!/bin/bash
rank=$OMPI_COMM_WORLD_RANK
case $1 in
  code) exit "$2" ;;
  bytes) [ "$rank" != 0 ] || printf 'host h\377\376\nzero \000 byte\nlast words\n' >&2; exit "$2" ;;
  server-only) [ "$rank" = 0 ] && exit "$2" || exit 0 ;;
  death) [ "$rank" = 2 ] && kill -KILL $$; sleep 1; echo "alive $rank"; exit "$2" ;;
  # Its own process group and deaf, as a rank that stands still in Open MPI: mpirun waits for it.
  stays) [ "$rank" != 2 ] || { trap '' TERM USR1 INT; echo $$ > "$3/stays"; for _ in $(seq 600); do sleep 0.2; done; }; exit "$2" ;;
  # Deaf as well, on every rank.
  waits) trap '' TERM USR1 INT; echo $$ > "$2/waits.$rank"; for _ in $(seq 600); do sleep 0.2; done ;;
  server-death) [ "$rank" = 0 ] && kill -KILL $$; exit 0 ;;
  # Like the program, it heeds USR1 from some moment on, whatever it inherited; a shell could not.
  signal | early)
    exec perl -e '
      my ($kind, $file) = @ARGV;
      sub ready { open(my $f, ">", $file); close($f); }
      if ($kind eq "early") { ready(); sleep(2); }
      $SIG{USR1} = sub { $SIG{USR1} = "IGNORE"; exit 75 };
      ready();
      select(undef, undef, undef, 0.1) for 1 .. 200;' "$1" "$2/ready.$rank" ;;
esac
SH
chmod +x "$scratch/program"

for code in 0 2 3 75; do
  expect_code "$code" "exit code $code" launch 3 "$scratch/program" code "$code"
  expect_code "$code" "exit code $code of the server alone" launch 3 "$scratch/program" server-only "$code"
done
expect_code 3 "a rank dies" launch 4 "$scratch/program" death 3
for rank in 0 1 3; do expect_text "rank $rank goes on" "alive $rank"; done
expect_code 137 "the server dies" launch 3 "$scratch/program" server-death

# What is no text, the name of a host say, costs nothing of what is said.
expect_code 1 "bytes" launch 3 "$scratch/program" bytes 1
expect_text "bytes" 'last words'

# The run ends with its server, whoever stays.
for code in 0 75; do
  begun=$SECONDS
  expect_code "$code" "a rank stays, exit code $code" launch 3 "$scratch/program" stays "$code" "$scratch"
  [ -s "$scratch/stays" ] || fail "no rank stayed"
  [ $((SECONDS - begun)) -lt 30 ] || fail "launch waited $((SECONDS - begun)) s for a rank that stays"
  gone() { ! kill -0 "$(cat "$scratch/stays")" 2> /dev/null; }
  wait_for 5 gone || fail "a rank outlives launch"
  rm "$scratch/stays"
done

# `early`: the signal comes while the ranks cannot heed it yet, and is not lost. `twice`: once more when all is over.
for case in TERM:signal USR1:signal USR1:early TERM:signal:twice; do
  signal=${case%%:*} kind=${case#*:}
  kind=${kind%:twice}
  rm -f "$scratch"/ready.*
  CLEAVE=$scratch/program bash -c '. "$1/jobs/mpi-env.sh"; launch 3 "$CLEAVE" "$3" "$2"' _ "$TOP" "$scratch" "$kind" \
    > "$scratch/out" 2>&1 &
  pid=$!
  all_ready() { [ "$(find "$scratch" -name 'ready.*' | wc -l)" -eq 3 ]; }
  wait_for 30 all_ready || fail "$case: the ranks did not start"
  kill "-$signal" "$pid"
  if [[ $case == *:twice ]]; then
    mpirun_ended() { ! pgrep -P "$pid" mpirun > /dev/null; }
    wait_for 30 mpirun_ended || fail "$case: mpirun goes on"
    kill "-$signal" "$pid" 2> /dev/null || true
  fi
  code=0
  wait "$pid" || code=$?
  [ "$code" -eq 75 ] || { fail "$case: exit code $code, not 75"; cat "$scratch/out"; }
done

# Whoever kills the calling script for good, as a batch system or one's patience does, ends the ranks with it.
if command -v setpriv > /dev/null; then
  bash -c '. "$1/jobs/mpi-env.sh"; shift; launch 3 "$@"' _ "$TOP" "$scratch/program" waits "$scratch" > "$scratch/out" 2>&1 &
  pid=$!
  all_wait() { [ "$(find "$scratch" -name 'waits.*' -size +0 | wc -l)" -eq 3 ]; }
  wait_for 30 all_wait || fail "a script that is killed: the ranks did not start"
  kill -KILL "$pid"
  wait "$pid" 2> /dev/null || true
  none_waits() {
    local file
    for file in "$scratch"/waits.*; do ! kill -0 "$(cat "$file")" 2> /dev/null || return 1; done
  }
  wait_for 30 none_waits || { fail "ranks outlive the script that is killed"; cat "$scratch"/waits.* | xargs kill -KILL 2> /dev/null || true; }
fi
