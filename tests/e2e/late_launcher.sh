#!/usr/bin/env bash
# An mpirun that gets no processor while its ranks end does not change the run's exit code: not with the settings of
# jobs/mpi-env.sh, and not without them, since ranks wait for it.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# end_late LABEL DELAY: mpirun stands still for three seconds, from DELAY seconds after the run's last file on. Tried again
# where this script was too late for that.
end_late() {
  local pid code=0 tries=${3:-5}
  rm -f "$scratch/figures.json"
  mpirun -n 4 "$CLEAVE" check "$TOP/tests/golden/gpt2_tiny.h5" plan.layout=tiles --json "$scratch/figures.json" \
    > "$scratch/out" 2>&1 < /dev/null &
  pid=$!
  for ((i = 0; i < 12000; ++i)); do
    [ ! -e "$scratch/figures.json" ] || break
    sleep 0.005
  done
  sleep "$2"
  if ! kill -STOP "$pid" 2> /dev/null; then
    wait "$pid" || true
    [ "$tries" -gt 1 ] || fail "$1: mpirun was gone before it was stopped"
    [ "$tries" -le 1 ] || end_late "$1" "$2" $((tries - 1))
    return 0
  fi
  sleep 3
  kill -CONT "$pid"
  wait "$pid" || code=$?
  [ "$code" -eq 0 ] || {
    fail "$1, $2 s: exit code $code"
    sed 's/^/    /' "$scratch/out"
  }
}

for delay in 0 0.01; do
  end_late "jobs/mpi-env.sh" "$delay"
  OMPI_MCA_orte_allowed_exit_without_sync=0 end_late "Open MPI's own settings" "$delay"
done
