#!/usr/bin/env bash
# Run `make test` TIMES times (20 by default) while two busy loops run, and count: a test that fails
# because the machine is busy is a wrong test. What depends on real time can be tried on its own:
#   make test-busy ONLY='tests/live tests/deploy tests/dashboard tests/run tests/core/test_forks.py'
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
times=${1:-20} only=${2:-} passed=0
for _ in 1 2; do
  while :; do :; done &
  loops+=($!)
done
trap 'kill "${loops[@]}"' EXIT
for n in $(seq "$times"); do
  if make -s test ONLY="$only" >"busy-$n.log" 2>&1; then
    passed=$((passed + 1))
    rm "busy-$n.log"
  else
    grep -E '^(FAILED|ERROR)' "busy-$n.log" || echo "see busy-$n.log"
  fi
  echo "$n: $passed passed, $((n - passed)) failed, after $SECONDS s"
done
[ "$passed" = "$times" ]
