#!/usr/bin/env bash
# Finds Python, makes an environment from requirements.lock on the first start, and runs python -m experiments in it.
# Later starts must be fast, so they read only a few files before they run Python.
set -euo pipefail

self=${BASH_SOURCE[0]}
if [[ -L $self ]]; then self=$(readlink -f -- "$self"); fi
if [[ $self != */* ]]; then self=./$self; fi
here=$(CDPATH='' cd -- "${self%/*}" && pwd -P)
venv=${AUDIT_VENV:-$here/.venv}
if [[ $venv != /* ]]; then venv=$PWD/$venv; fi
always=train,zoo # the extras that every command needs; the lock's section core has their packages
stamp=$venv/.run-sh # a description of the environment (`made_from`); empty during the installation
python='' version='' extras=''
unset PYTHONHOME
export PYTHONPATH=$here # without the user's PYTHONPATH, whose modules could replace our libraries

die() {
  printf 'run.sh: %s\n' "$*" >&2
  exit 2
}

version_of() { # prints the version of the Python $1, such as 3.11; fails if it is older or cannot make environments
  "$1" -ISc 'import sys, venv, ensurepip; v = sys.version_info[:2]
print("%d.%d" % v) if v >= (3, 11) else sys.exit(1)' 2>/dev/null
}

find_python() { # sets python and version
  for python in ${PYTHON:+"$PYTHON"} python3.13 python3.12 python3.11 python3 python; do
    if version=$(version_of "$python"); then return; fi
    [[ -z ${PYTHON:-} ]] || die "PYTHON=$PYTHON is not Python 3.11 or later with venv: name another"
  done
  die 'found no Python >= 3.11 with venv; install one (Debian: python3-venv), or name one in PYTHON'
}

add_extra() { if [[ $extras != *$1* ]]; then extras+=,$1; fi; }

is_installed() { compgen -G "$venv/lib/python*/site-packages/$1" >/dev/null; }

find_extras() { # sets extras: those that are installed, and those that the command needs
  if [[ -s $stamp ]]; then IFS= read -r extras <"$stamp"; fi
  case $1 in
    test | lint) add_extra test ;;
    throughput) add_extra bench ;;
    benchmark) add_extra peers ;;
    docs) add_extra docs ;;
    ray) add_extra ray ;;
  esac
  if [[ " $* " =~ ^\ check\ .*--?example[=\ ](lora|train)\  ]] && ! is_installed opacus; then
    add_extra opacus # unless the user has installed it, perhaps with the smaller PyTorch for CPUs
  fi
  if [[ " $* " =~ ^\ check\ .*--?example[=\ ]jax_privacy\  ]] && ! is_installed jax_privacy; then
    add_extra peers
  fi
  if [[ " $* " =~ \ --?(ray_address) ]]; then add_extra ray; fi
  if [[ $extras != *cuda* && ${JAX_PLATFORMS:-} != cpu ]]; then
    if [[ $(nvidia-smi -L 2>/dev/null) == GPU* ]]; then add_extra cuda; fi
  fi
  extras=${extras#,}
}

made_from() {
  printf '%s\n' "$extras" "$here" "$version"
  printf '%s\n' "$(<"$here/setup.cfg")" "$(<"$here/pyproject.toml")" "$(<"$here/requirements.lock")"
}

is_ready() { [[ -s $stamp && $(<"$stamp") == "$(made_from)" ]]; }

lacks_extras_only() { [[ -s $stamp && $(tail -n +2 "$stamp") == "$(made_from | tail -n +2)" ]]; }

run_pip() { "$venv/bin/python" -I -m pip install -q --disable-pip-version-check --no-input "$@"; }

install_locked() { # installs the lock's comma-separated sections $1 with hashes, and passes other arguments to pip
  awk -v names=",$1," '/^# section: / { wanted = index(names, "," $3 ",") } wanted' "$here/requirements.lock" \
    >"$venv/locked.txt" && run_pip --require-hashes --no-build-isolation -r "$venv/locked.txt" "${@:2}"
}

install() { # installs the extras; if python is set, makes a new environment first, and keeps the user's files in $venv
  : >"$stamp"
  if [[ -n $python ]]; then
    rm -rf -- "$venv"/{bin,include,lib,lib64,share,pyvenv.cfg}
    "$python" -m venv "$venv" || return
  fi
  local usual=${extras:+,$extras}
  install_locked build && install_locked "core$usual" && cd -- "$here" &&
    run_pip --no-index --no-build-isolation -e ".[$always$usual]" # fails if a package is missing from the lock
}

set_up() ( # makes or updates the environment; the end of this subshell releases its lock on the folder
  trap 'exit 130' INT
  if command -v flock >/dev/null; then flock 9; fi
  find_extras "$@"
  if is_ready; then return; fi
  [[ -e $stamp || -z $(ls -A "$venv") ]] ||
    die "$venv was not made by run.sh; move it away, or name another folder in AUDIT_VENV"
  if [[ -s $stamp && $extras == "$(head -n 1 "$stamp")" ]]; then
    echo "bringing ${venv##*/} up to date (setup.cfg, pyproject.toml, requirements.lock or the folder changed)" >&2
  elif [[ -s $stamp ]]; then
    echo "installing more packages for '${1-audit}' in ${venv##*/} ($extras; first time only)" >&2
  else
    echo "setting up ${venv##*/} (first run only; a few minutes)" >&2
  fi
  if [[ -s $stamp && $(version_of "$venv/bin/python") == "$version" ]] &&
    "$venv/bin/python" -Ic 'import pip' 2>/dev/null; then
    python='' # the environment only needs more packages
  elif [[ -z $python ]]; then find_python; fi
  if ! install >"$venv/set-up.log" 2>&1; then
    why=$(sed -n 's/^ *ERROR: /pip: /p' "$venv/set-up.log" | tail -n 1)
    die "${why:-no environment}; check the network and try again (details are in $venv/set-up.log)"
  fi
  made_from >"$stamp"
) 9<"$venv"

if [[ -n ${PYTHON:-} || ! -s $stamp ]] || ! version=$(version_of "$venv/bin/python"); then find_python; fi
if [[ ${1-} =~ ^(help|-h|--help|--version)$ && $# == 1 ]]; then # these need no environment
  exec "${python:-$venv/bin/python}" -P -m experiments "$@"
fi
find_extras "${@:-audit}"
if ! is_ready; then
  # Report wrong flags before a long installation. The commands in the pattern do not have flags of their own.
  if lacks_extras_only && [[ ! ${1-} =~ ^(|python|ray|test|lint|docs)$ ]]; then
    AUDIT_ONLY_FLAGS=1 "$venv/bin/python" -P -m experiments "$@" || exit
  fi
  mkdir -p -- "$venv" 2>/dev/null || die "cannot make $venv; name another folder in AUDIT_VENV"
  set_up "${@:-audit}"
fi
if [[ " $extras " == *ray* && -s ${RAY_AUTH_TOKEN_PATH:-${HOME:-}/.ray/auth_token} ]]; then
  export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token} # Ray itself only does so at a cluster's head
fi
exec "$venv/bin/python" -P -m experiments "$@"
