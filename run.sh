#!/usr/bin/env bash
# Starts audits, experiments, tests and linters, in an environment that the first start sets up.
# Until Python runs, a later start reads a few files and calls almost nothing: keep it so.
set -euo pipefail

self=${BASH_SOURCE[0]}
if [[ -L $self ]]; then self=$(readlink -f -- "$self"); fi
if [[ $self != */* ]]; then self=./$self; fi
here=$(CDPATH='' cd -- "${self%/*}" && pwd -P)
venv=${AUDIT_VENV:-$here/.venv}
if [[ $venv != /* ]]; then venv=$PWD/$venv; fi
stamp=$venv/.run-sh # what the environment was made from; empty while it is being made
python='' version='' extras='' with_ray=''
unset PYTHONPATH PYTHONHOME # a cluster's modules shadow no library of ours

die() {
  printf 'run.sh: %s\n' "$*" >&2
  exit 2
}

is_experiment() { # sets file: the command's, or the __main__ of a paper's folder
  [[ $1 =~ ^[A-Za-z][A-Za-z0-9_]*$ ]] || return 1
  for file in "$here/experiments/$1.py" "$here/experiments/$1/__main__.py"; do
    if [[ -f $file && $(<"$file") == *$'\nif __name__ == "__main__":'* ]]; then return 0; fi
  done
  return 1
}

docstring() { # of the experiment that is_experiment found, which begins with it
  sed -e '1s/^[rR]*"""//' -e '/"""/{s/""".*//;q;}' "$file"
}

wants_help() {
  local argument
  for argument in "$@"; do
    if [[ $argument =~ ^(-h|-help|--help|--helpshort|--helpfull)$ ]]; then return 0; fi
  done
  return 1
}

help_on() { # installs nothing
  if [[ -s $stamp && -x $venv/bin/python ]]; then run_python "experiments.$command" "$@"; fi
  docstring
  printf '\nIts flags are listed here once any command has set up %s.\n' "${venv##*/}"
}

print_help() {
  local name
  printf 'Usage: ./run.sh [command] [flags]\n\n'
  for name in "$here"/experiments/*; do # the first line of each main's docstring
    name=${name##*/}
    is_experiment "${name%.py}" || continue
    name=${name%.py}
    printf '  %-12s %s\n' "$name" "$(sed -n '/"""/{s/^[rR]*"""//;/^$/n;s/""".*//;p;q;}' "$file")"
  done | cut -c 1-80
  cat <<'END'
  python       Runs a script of yours: ./run.sh python mine.py
  test         Runs the quick tests, with --slow all; the rest goes to pytest.
  lint         Runs ruff and mypy; arguments go to ruff check.
  ray          Ray's own commands: ./run.sh ray start --head
  help         Prints this.

No command means audit. For the flags of one: ./run.sh audit --help
PYTHON names the Python to use, AUDIT_VENV the environment (else .venv here).
END
}

version_of() { # prints 3.11, if $1 runs, is that or newer, and can make an environment
  "$1" -ISc 'import sys, venv, ensurepip; v = sys.version_info[:2]
print("%d.%d" % v) if v >= (3, 11) else sys.exit(1)' 2>/dev/null
}

find_python() { # sets python and version
  for python in ${PYTHON:+"$PYTHON"} python3.13 python3.12 python3.11 python3 python; do
    if version=$(version_of "$python"); then return; fi
    [[ -z ${PYTHON:-} ]] || die "PYTHON=$PYTHON is no Python >= 3.11 with venv; name another"
  done
  die 'found no Python >= 3.11 with venv; install one (Debian: python3-venv), or name one in PYTHON'
}

find_extras() { # sets extras: what the command needs, and what is installed already
  if [[ -s $stamp ]]; then IFS= read -r extras <"$stamp"; fi
  if [[ $command =~ ^(test|lint)$ && $extras != *test* ]]; then extras+=,test; fi
  if [[ $command == throughput && $extras != *bench* ]]; then extras+=,bench; fi
  if [[ $command == compile && $extras != *tpu* ]]; then extras+=,tpu; fi
  if [[ $with_ray && $extras != *ray* ]]; then extras+=,ray; fi
  if [[ $extras != *cuda* && ${JAX_PLATFORMS:-} != cpu ]]; then
    if [[ $(nvidia-smi -L 2>/dev/null) == GPU* ]]; then extras+=,cuda; fi
  fi
  extras=${extras#,}
}

made_from() {
  printf '%s\n' "$extras" "$here" "$version"
  printf '%s\n' "$(<"$here/setup.cfg")" "$(<"$here/pyproject.toml")" "$(<"$here/requirements.lock")"
}

is_ready() { [[ -s $stamp && $(<"$stamp") == "$(made_from)" ]]; }

can_keep_venv() { # it lacks packages, no more
  [[ -s $stamp && $(version_of "$venv/bin/python") == "$version" ]] &&
    "$venv/bin/python" -Ic 'import pip' 2>/dev/null
}

locked() { # prints the lock's sections of these names, comma-separated
  awk -v names=",$1," '/^# section: / { wanted = index(names, "," $3 ",") } wanted' "$here/requirements.lock"
}

run_pip() { "$venv/bin/python" -I -m pip install -q --disable-pip-version-check --no-input "$@"; }

install_locked() { # files of the lock's hashes alone; what builds a package comes before it
  locked "$1" >"$venv/locked.txt" &&
    run_pip --require-hashes --no-build-isolation -r "$venv/locked.txt"
}

install() { # with a python, a new environment first; removes nothing that run.sh did not make
  : >"$stamp"
  if [[ -n $python ]]; then
    rm -rf -- "$venv"/{bin,include,lib,lib64,share,pyvenv.cfg}
    "$python" -m venv "$venv" || return
  fi
  install_locked build && install_locked "core${extras:+,$extras}" && cd -- "$here" &&
    run_pip --no-index --no-build-isolation -e ".${extras:+[$extras]}" # fails where the lock lacks a package
}

set_up() ( # one start at a time: the lock on the folder goes with this subshell
  trap 'exit 130' INT
  if command -v flock >/dev/null; then flock 9; fi
  find_extras
  if is_ready; then return; fi
  [[ -e $stamp || -z $(ls -A "$venv") ]] ||
    die "$venv was not made by run.sh; move it away, or name another folder in AUDIT_VENV"
  echo "setting up ${venv##*/} (first run only; a few minutes)" >&2
  if can_keep_venv; then python=''; elif [[ -z $python ]]; then find_python; fi
  if ! install >"$venv/set-up.log" 2>&1; then
    why=$(sed -n 's/^ *ERROR: /pip: /p' "$venv/set-up.log" | tail -n 1)
    die "${why:-no environment}; check the network and start again (more in $venv/set-up.log)"
  fi
  made_from >"$stamp"
) 9<"$venv"

find_environment() {
  if [[ -n ${PYTHON:-} || ! -s $stamp ]] || ! version=$(version_of "$venv/bin/python"); then
    find_python
  fi
  find_extras
  if is_ready; then return; fi
  mkdir -p -- "$venv" 2>/dev/null || die "cannot make $venv; name another folder in AUDIT_VENV"
  set_up
}

run_python() { exec "$venv/bin/python" -P -m "$@"; } # -P: no module of the user's folder

run_script() { # this repository comes first, so that no models.py beside the script shadows ours
  exec "$venv/bin/python" -P -c 'import os, runpy, sys
here, *sys.argv = sys.argv[1:]
sys.path.insert(0, here)
sys.path.append(os.path.dirname(os.path.abspath(sys.argv[0])))
runpy.run_path(sys.argv[0], run_name="__main__")' "$here" "$@"
}

run_ray() { # without the monitor of logs, which sends them where nobody reads them and takes a twentieth of a core
  if [[ ${1:-} == start ]]; then set -- start --include-log-monitor=False "${@:2}"; fi
  export RAY_worker_niceness=${RAY_worker_niceness:-0} # what training without Ray has; Ray's own is 15
  run_python ray.scripts.scripts "$@"
}

run_tests() {
  local argument which='not slow'
  if [[ ${CI:-} =~ ^(true|1)$ ]]; then which=''; fi
  for argument in "$@"; do
    shift
    if [[ $argument == --slow ]]; then which=''; else set -- "$@" "$argument"; fi
  done
  run_python pytest -n auto -m "$which" "$@"
}

run_linters() {
  local status=0
  (run_python ruff check . "$@") || status=1
  (run_python ruff format --check .) || status=1
  (run_python mypy) || status=1
  exit "$status"
}

if (($# == 0)) || [[ $1 == -* && ! $1 =~ ^(-h|--help)$ ]]; then set -- audit "$@"; fi
command=$1
shift
if [[ $command == ray || " $*" =~ \ --?(engine[= ]ray|ray_address) ]]; then with_ray=yes; fi
case $command in
  help | -h | --help) print_help && exit ;;
  test | lint | ray) ;;
  python) [[ -f ${1:-} ]] || die "python runs a script: ./run.sh python mine.py" ;;
  *) is_experiment "$command" || die "no command '$command'; ./run.sh help lists them" ;;
esac
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}
if [[ ! $command =~ ^(python|test|lint|ray)$ ]] && wants_help "$@"; then
  help_on "$@"
  exit
fi
find_environment
if [[ $with_ray && -s ${RAY_AUTH_TOKEN_PATH:-${HOME:-}/.ray/auth_token} ]]; then
  export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token} # Ray itself decides so at a cluster's head alone
fi
case $command in # these spread small matrix products over processes, one a core
  calibrate | landscape | plan | sweep | test) export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1} ;;
esac
case $command in
  test) cd -- "$here" && run_tests "$@" ;;
  lint) cd -- "$here" && run_linters "$@" ;;
  python) run_script "$@" ;;
  ray) RAY_USAGE_STATS_ENABLED=${RAY_USAGE_STATS_ENABLED:-0} run_ray "$@" ;;
  *) run_python "experiments.$command" "$@" ;;
esac
