#!/usr/bin/env bash
# Functions of the scripts in launch/, which source this file.
set -euo pipefail

fail() { # MESSAGE
  echo "error: $1" >&2
  exit 2
}

say() { # MESSAGE
  echo "launch: $1" >&2
}

show_help() { # the comment at the top of the script that was started
  awk 'NR > 1 && !/^#/ {exit} NR > 1 {sub(/^# ?/, ""); print}' "$0"
}

whole() { # NAME VALUE SMALLEST
  if ! [[ $2 =~ ^[0-9]{1,9}$ ]] || [ "$2" -lt "$3" ]; then
    fail "$1=$2: must be a whole number of at least $3."
  fi
}

one_of() { # NAME VALUE CHOICE...
  local name=$1 value=$2 choice
  shift 2
  for choice in "$@"; do
    [ "$value" != "$choice" ] || return 0
  done
  fail "$name=$value: must be one of: $*."
}

# Runs a command and waits for it, while traps of this shell still run. The command leads a process group of its own:
# kill -- "-$child" ends everything that it started.
child=""
waiting() { # COMMAND...
  local status=0
  set -m
  "$@" </dev/null &
  child=$!
  set +m
  wait "$child" || status=$?
  child=""
  return "$status"
}
