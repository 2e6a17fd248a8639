#!/usr/bin/env bash
# Trains one input on this machine: a server rank and device ranks under mpirun.
#
#   bash jobs/run.sh INPUT.yaml [RANKS] [key=value ...] [--resume auto] [--dry-run]
#
# RANKS counts the server; the fleet's devices are spread over the other ranks (default: one rank a core, plus the
# server). Paths are relative to the folder you call it from. Ctrl-C, SIGTERM, SIGHUP or SIGUSR1 to this script makes the
# run write a checkpoint and stop with exit code 75; `--resume auto` goes on from there. Exit codes: docs/interface.md.
# Takes as long as the run. Edit: nothing; CLEAVE=/path/to/cleave picks another program than the one built or installed here.
set -euo pipefail

JOBS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=mpi-env.sh
. "$JOBS/mpi-env.sh"
CLEAVE=${CLEAVE:-$(find_cleave "$JOBS")}

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2; exit 2; }
[ $# -ge 1 ] || usage
case $1 in -h | --help) usage ;; esac
[ -x "$CLEAVE" ] || { echo "run: no program at $CLEAVE; build it first: bash jobs/setup.sh" >&2; exit 1; }

input=$1
shift
ranks=$(($(nproc) + 1))
[[ ${1:-} =~ ^[0-9]+$ ]] && { ranks=$1; shift; }

launch "$ranks" "$CLEAVE" train "$input" "$@"
