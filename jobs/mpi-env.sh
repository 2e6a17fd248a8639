# shellcheck shell=bash
# How every script here starts ranks: settings of Open MPI, and launch(). Sourced, not run:  . jobs/mpi-env.sh
#
# The settings are environment variables; one that your environment has already wins. A `mpirun -n 9 cleave train
# INPUT.yaml` typed by hand after sourcing this obeys them too.
# Edit: nothing on a laptop or workstation; on a cluster, add what its Open MPI needs (OMPI_MCA_btl, OMPI_MCA_pml, ...).

# Emulated devices may outnumber the cores, so ranks are neither limited to the cores nor bound to them,
# and a rank that waits lets the others run. (mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1)
export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-1}"
export OMPI_MCA_hwloc_base_binding_policy="${OMPI_MCA_hwloc_base_binding_policy:-none}"
export OMPI_MCA_mpi_yield_when_idle="${OMPI_MCA_mpi_yield_when_idle:-1}"

# A rank waits two seconds for mpirun to take note of its end, then ends all the same. An mpirun that did not get a
# processor until then takes it for one that crashed, and returns 1 in place of the run's exit code (Open MPI 4.1, issue
# 7833 there). A rank of cleave that crashes never returns 0, so this hides nothing.
export OMPI_MCA_orte_allowed_exit_without_sync="${OMPI_MCA_orte_allowed_exit_without_sync:-1}"

# Open MPI refuses root (containers, CI) unless told twice.
if [ "$(id -u)" -eq 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# CLEAVE_INSTRUCTIONS=baseline or avx2 tries the program as on a lesser processor: what it hides from the program and from
# BLIS (cleave/base/processor.hpp) is hidden here from the C library, and Open MPI's vector code is left out.
hide_instructions() {
  local hidden=
  case ${CLEAVE_INSTRUCTIONS:-} in
    baseline | avx2) hidden=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD ;;
  esac
  [ "${CLEAVE_INSTRUCTIONS:-}" != baseline ] || hidden+=,-AVX,-AVX2,-FMA,-FMA4,-F16C,-BMI1,-BMI2,-LZCNT,-MOVBE
  [ -z "$hidden" ] || export GLIBC_TUNABLES="glibc.cpu.hwcaps=$hidden" OMPI_MCA_op="^avx"
}
hide_instructions

# find_cleave JOBS: the program that belongs to these scripts: built in the checkout, installed beside them, or on the
# path. Prints where it would be built if there is none.
find_cleave() {
  local place
  for place in "$1/../build/release/cleave" "$1/../../../bin/cleave"; do
    [ ! -x "$place" ] || { echo "$place"; return; }
  done
  command -v cleave || echo "$1/../build/release/cleave"
}

# without_resume ARGUMENT...: into `arguments`, these but --resume and what it names.
without_resume() {
  arguments=()
  while [ $# -gt 0 ]; do
    case $1 in
      --resume) shift "$(($# > 1))" ;;
      --resume=*) ;;
      *) arguments+=("$1") ;;
    esac
    shift
  done
}

# run_folder CLEAVE INPUT.yaml ARGUMENT...: output.dir of that training run. YAML has quotes round a path with blanks.
run_folder() {
  local cleave=$1 arguments argument kept=()
  shift
  # A dry run reads what a run is to go on from, which may be gone when this one has checkpoints of its own.
  without_resume "$@"
  for argument in "${arguments[@]}"; do [ "$argument" = --resume-with-changes ] || kept+=("$argument"); done
  "$cleave" train "${kept[@]}" --dry-run |
    sed -nE '/^output:/,$ { /^  dir: /!d; s/^  dir: (.*)  # .*/\1/; /^".*"$/ { s/^"(.*)"$/\1/; s/\\(["\\])/\1/g; }; p; }'
}

# checkpoints_of FOLDER: oldest first. With the slash find looks into a folder that is a link, too.
checkpoints_of() { find "$1/" -maxdepth 1 -name 'checkpoint-*.h5' 2> /dev/null | sort -V; }

newest_checkpoint() { checkpoints_of "$1" | tail -n 1 || true; }

# go_on FOLDER ARGUMENT...: into `arguments`, those of a run that was begun with these and goes on: from the newest
# checkpoint in its folder, whatever the first start went on from.
go_on() {
  local folder=$1
  shift
  arguments=("$@")
  [ -n "$(checkpoints_of "$folder")" ] || [[ " $* " != *" --resume"* ]] || return 0
  without_resume "$@"
  arguments+=(--resume auto)
}

# end_with_server MPIRUN RECORD: waits for rank 0's exit code in RECORD, gives mpirun five seconds to end by itself, then
# asks it to, then kills it and the ranks that it started on this host.
end_with_server() {
  local pid=$1 record=$2 ranks i
  trap '' INT HUP TERM USR1 PIPE # what a batch system, or `timeout`, sends to all of a job
  trap 'exit 0' USR2
  until [ -s "$record" ]; do
    kill -0 "$pid" 2> /dev/null || return 0
    sleep 0.5
  done
  for ((i = 0; i < 10; ++i)); do
    sleep 0.5
    kill -0 "$pid" 2> /dev/null || return 0
  done
  mapfile -t ranks < <(pgrep -P "$pid")
  kill -TERM "$pid" 2> /dev/null
  for ((i = 0; i < 6; ++i)); do
    sleep 0.5
    kill -0 "$pid" 2> /dev/null || break
  done
  kill -KILL "$pid" "${ranks[@]}" 2> /dev/null
  return 0
}

# launch RANKS PROGRAM ARGUMENT...: mpirun that outlives device ranks and returns rank 0's exit code.
#
# - `--enable-recovery` keeps the job alive when a rank dies, but makes Open MPI 4.1 return 0 whatever the ranks return;
#   so rank 0 runs under a line of shell that writes its exit code down.
# - SIGTERM, SIGUSR1, SIGINT (Ctrl-C) and SIGHUP to the calling script reach the ranks as SIGUSR1 (checkpoint, stop, exit
#   code 75); mpirun itself would kill them one second after a SIGTERM, so it is apart from the terminal (setsid),
#   whose Ctrl-C does not reach it. One that comes while the program is still being loaded is held back: rank 0's shell
#   repeats it until the program has heeded it. Before its first step the program has nothing to lose, and ends at once;
#   the exit code is 75 then too.
# - The run ends with rank 0. mpirun waits for every rank, and for ever for one that cannot be told: on a host that was cut
#   off, or standing still within Open MPI. So ranks get five seconds more, then mpirun is ended, and what it leaves here.
# - A server that a signal killed before the ranks knew each other leaves ranks that wait for it: they are ended.
# - With CLEAVE_PIN=1 in the environment each device rank keeps to one core, and gives way to the server a little: for one
#   run that has the machine to itself, with as many device ranks as cores and no throttles. Two such runs at once would
#   fight for the same cores.
# - A line that Open MPI prints for every rank that ends with a non-zero code, and that means nothing, is left out; the rest
#   passes, whatever its bytes.
launch() {
  local ranks=$1 record pid watcher status=0 apart=()
  shift
  # A reader that leaves costs the output, not the run: mpirun dies of a broken pipe, so somebody goes on reading.
  if [ -p /dev/stdout ]; then
    exec 8> >(trap "" INT HUP TERM PIPE; cat 2> /dev/null || cat > /dev/null)
  else
    exec 8>&1
  fi
  record=$(mktemp)
  # With job control (an interactive shell) the job has a process group of its own as it is.
  if [[ $- != *m* ]] && command -v setsid > /dev/null; then
    apart=(setsid)
    # Whoever kills this script for good ends mpirun with it.
    ! command -v setpriv > /dev/null || apart+=(setpriv --pdeathsig TERM)
  fi
  # shellcheck disable=SC2016  # expanded by the rank's shell
  CLEAVE_STATUS_FILE=$record "${apart[@]}" mpirun --enable-recovery -n "$ranks" bash -c '
    if [ "${OMPI_COMM_WORLD_RANK:-0}" != 0 ]; then
      trap "" TERM USR1
      if [ -n "${CLEAVE_PIN:-}" ]; then
        set -- taskset -c "$((OMPI_COMM_WORLD_LOCAL_RANK % $(nproc)))" nice -n 3 "$@"
      fi
      exec "$@"
    fi
    trap "asked=yes" TERM USR1
    # The inner shell is deaf, so that nothing comes between it and the exit code.
    (trap "" TERM USR1; "$@" <&3 & echo "$!" > "$CLEAVE_STATUS_FILE.pid"; wait "$!"; echo "$?" > "$CLEAVE_STATUS_FILE") 3<&0 &
    keeper=$!
    while kill -0 "$keeper" 2> /dev/null; do
      if [ -n "$asked" ]; then sleep 0.5; kill -USR1 "$(cat "$CLEAVE_STATUS_FILE.pid")" 2> /dev/null; else wait "$keeper"; fi
    done
    status=$(cat "$CLEAVE_STATUS_FILE")
    if [ "$status" -gt 128 ]; then
      # Ranks that do not serve yet die of it, others ignore it and know by themselves.
      for _ in 1 2 3; do kill -USR1 "$PPID" 2> /dev/null; sleep 0.5; done
      # USR1, asked for: before the first step.
      [ -z "$asked" ] || [ "$status" -ne 138 ] || echo 75 > "$CLEAVE_STATUS_FILE"
    fi
    exit "$(cat "$CLEAVE_STATUS_FILE")"' rank "$@" >&8 8>&- \
    2> >(trap "" INT HUP TERM PIPE; LC_ALL=C grep -a --line-buffered -v 'PMIX ERROR: BAD-PARAM' >&2 8>&- || cat > /dev/null) &
  pid=$!
  exec 8>&-
  end_with_server "$pid" "$record" < /dev/null > /dev/null 2>&1 &
  watcher=$!
  # shellcheck disable=SC2064  # this process, not a later one
  trap "kill -USR1 $pid 2>/dev/null || true" TERM USR1 INT HUP
  # A trapped signal ends `wait` early: wait again until mpirun is gone. Of one that is killed the shell would print the text.
  wait "$pid" 2> /dev/null || status=$?
  while kill -0 "$pid" 2>/dev/null; do
    status=0
    wait "$pid" 2> /dev/null || status=$?
  done
  # The run is over: a signal that comes now must not cost its exit code.
  trap : TERM USR1 INT HUP
  kill -USR2 "$watcher" 2> /dev/null || true
  while kill -0 "$watcher" 2> /dev/null; do wait "$watcher" 2> /dev/null || true; done
  if [ -s "$record" ]; then
    status=$(cat "$record")
  elif [ "$status" -eq 0 ]; then
    status=1 # the server itself was killed, or never started
  fi
  rm -f "$record" "$record.pid"
  trap - TERM USR1 INT HUP
  return "$status"
}
