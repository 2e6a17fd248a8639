# shellcheck shell=bash
# A real Slurm on this machine, for the tests: munged, slurmctld and slurmd from Debian's packages, on loopback, with a
# folder, a key, a socket and ports of their own, so that it meddles with no other. Sourced; slurm_up FOLDER starts it and
# exports SLURM_CONF, slurm_down ends by their process ids exactly the daemons that slurm_up started.
# slurm_up FOLDER NAME=ADDRESS... has several nodes, hosts of tests/hosts/hosts.sh, and the controller on the first.
# A test of batch scripts, which has sourced tests/e2e/lib.sh, calls slurm_for_test, then submit_job and expect_completed.
#
# It declares more processors than there are, which its jobs share (config_overrides, FORCE).

# slurm_missing: prints why a Slurm cannot run here; nothing where it can.
slurm_missing() {
  local program
  for program in munged slurmctld slurmd sbatch scontrol scancel; do
    command -v "$program" > /dev/null || { echo "no $program (Debian: slurm-wlm munge)"; return; }
  done
  command -v python3 > /dev/null || { echo "no python3, which finds free ports"; return; }
  [ "$(id -u)" -eq 0 ] || echo "slurmd must be started as root"
}

# free_port: one that nobody listens on now.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

slurm_answers() { [[ $(timeout 5 sinfo --noheader --format %T 2> /dev/null) =~ ^(idle|mix|alloc) ]]; }
munge_answers() { munge --socket "$slurm_folder/munge.sock" --no-input 2> /dev/null | unmunge --socket "$slurm_folder/munge.sock" > /dev/null 2>&1; }

# slurm_up_or_skip FOLDER [NAME=ADDRESS...]: where the daemons do not answer or run no job that does nothing, though they are installed (a
# sandbox that forbids them what they need), the test that sources this is skipped: none of this is Cleave's. Logs say why.
slurm_up_or_skip() {
  if slurm_up "$@" && timeout 90 sbatch --wait --time=1 --output=/dev/null --wrap=true > /dev/null; then return; fi
  tail -n 20 "$slurm_folder"/log/slurm*.log
  slurm_down || true
  echo "skipped: Slurm is installed, but does not work here (above)"
  exit 77
}

# start_slurmd NAME: on its host, where it has one of its own.
start_slurmd() {
  if [ "$1" = "$(hostname -s)" ]; then
    slurmd -f "$SLURM_CONF" -N "$1" > /dev/null
  else
    on "$1" slurmd -f "$SLURM_CONF" > /dev/null
  fi
}

slurm_up() {
  slurm_folder=$1
  shift
  local cpus=32 memory node nodes=("$@")
  [ "${#nodes[@]}" -gt 0 ] || nodes=("$(hostname -s)=127.0.0.1")
  memory=$(awk '/^MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
  mkdir -p "$slurm_folder"/{state,spool,log}
  export SLURM_CONF=$slurm_folder/slurm.conf
  (umask 077 && head -c 128 /dev/urandom > "$slurm_folder/munge.key")
  munged --force --num-threads=2 --key-file="$slurm_folder/munge.key" --socket="$slurm_folder/munge.sock" \
    --pid-file="$slurm_folder/munged.pid" --log-file="$slurm_folder/log/munged.log" --seed-file="$slurm_folder/munge.seed" \
    2> "$slurm_folder/log/munged.err"
  wait_for 10 munge_answers || { echo "munged does not answer"; cat "$slurm_folder"/log/munged.*; return 1; }
  # A requeued job waits until its old credential has run out: 120 s unless cred_expire says less.
  cat > "$SLURM_CONF" <<CONF
ClusterName=onenode
SlurmctldHost=${nodes[0]%%=*}(${nodes[0]#*=})
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$slurm_folder/munge.sock,cred_expire=10
CredType=cred/munge
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
StateSaveLocation=$slurm_folder/state
SlurmdSpoolDir=$slurm_folder/spool/%n
SlurmctldPidFile=$slurm_folder/slurmctld.pid
SlurmdPidFile=$slurm_folder/slurmd-%n.pid
SlurmctldLogFile=$slurm_folder/log/slurmctld.log
SlurmdLogFile=$slurm_folder/log/slurmd-%n.log
SlurmdTimeout=${SLURMD_TIMEOUT:-300}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
MinJobAge=600
JobRequeue=1
SchedulerParameters=batch_sched_delay=1,sched_min_interval=200000
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MailProg=/bin/true
$(for node in "${nodes[@]}"; do echo "NodeName=${node%%=*} NodeAddr=${node#*=} CPUs=$cpus RealMemory=$memory State=UNKNOWN"; done)
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=10 State=UP OverSubscribe=FORCE:4
CONF
  slurmctld -f "$SLURM_CONF" > /dev/null
  for node in "${nodes[@]}"; do mkdir -p "$slurm_folder/spool/${node%%=*}" && start_slurmd "${node%%=*}"; done
  wait_for 60 slurm_answers || { echo "Slurm does not come up"; tail -n 20 "$slurm_folder"/log/*; return 1; }
}

# end_by_pid_file FILE: asks the process to end, insists after 10 s.
end_by_pid_file() {
  local pid
  [ -s "$1" ] || return 0
  pid=$(cat "$1")
  kill "$pid" 2> /dev/null || return 0
  local i
  for ((i = 0; i < 100; i++)); do
    kill -0 "$pid" 2> /dev/null || return 0
    sleep 0.1
  done
  kill -KILL "$pid" 2> /dev/null || true
}

slurm_down() {
  [ -n "${slurm_folder:-}" ] || return 0
  local i
  if [ -s "$slurm_folder/slurmctld.pid" ]; then
    timeout 10 squeue --noheader --format %A 2> /dev/null | sort -u | xargs -r timeout 10 scancel 2> /dev/null || true
    for ((i = 0; i < 100; i++)); do
      [ -n "$(timeout 5 squeue --noheader 2> /dev/null)" ] || break
      sleep 0.2
    done
  fi
  local file
  for file in "$slurm_folder"/slurmd-*.pid; do end_by_pid_file "$file"; done
  end_by_pid_file "$slurm_folder/slurmctld.pid"
  end_by_pid_file "$slurm_folder/munged.pid"
}

# slurm_for_test [NAME=ADDRESS...]: a Slurm with its own folder, $slurm_scratch, that ends with the script; skips as
# slurm_up_or_skip. `after_slurm`, where the script has defined it, runs when Slurm is down.
slurm_for_test() {
  # A socket's path must be short, and the build folder's may not be.
  slurm_scratch=$(mktemp -d "${TMPDIR:-/tmp}/cleave-slurm.XXXXXX")
  trap end_slurm EXIT
  trap 'exit 143' TERM INT
  slurm_up_or_skip "$slurm_scratch" "$@"
}

# Runs on every way out, also after a failure or a time limit, before the scratch folder goes.
end_slurm() {
  local status=$?
  slurm_down || true
  if declare -F after_slurm > /dev/null; then after_slurm; fi
  if [ "$status" -ne 0 ] || [ "$failures" -ne 0 ]; then tail -n 20 "$slurm_scratch"/log/slurm*.log; fi
  rm -rf "$slurm_scratch"
  (exit "$status")
  finish
}

# state_of JOB, of an array the first task's.
state_of() { scontrol show job "$1" 2> /dev/null | grep -o 'JobState=[A-Z_]*' | head -n 1 | cut -d= -f2; }
has_ended() { [[ $(state_of "$1") =~ COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY ]]; }
# submit_job ARGUMENT...: sbatch; the job's number in $job.
submit_job() { job=$(sbatch --parsable "$@" 2> "$scratch/sbatch.err") || { cat "$scratch/sbatch.err"; exit 1; }; }
# expect_completed SECONDS LABEL LOG: $job.
expect_completed() {
  wait_for "$1" has_ended "$job" || fail "$2: still $(state_of "$job") after $1 s"
  [ "$(state_of "$job")" = COMPLETED ] || {
    fail "$2: the job ended as $(state_of "$job")"
    tail -n 30 "$3"
  }
}
