#!/usr/bin/env bash
# Train all three families side by side on one GPU: train_all.sh OUT [arguments of sglang_gemma4.tiny.train]
set -u
out=$1; shift
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
python3 -m sglang_gemma4.tiny.train --prepare "$data" --rows "${ROWS:-60000}" --seed "${SEED:-0}" || exit 1
mkdir -p "$out"
running=()
for family in tiny-26b-a4b tiny-e2b tiny-31b; do
    python3 -m sglang_gemma4.tiny.train --data "$data" --family "$family" --out "$out" --seed "${SEED:-0}" "$@" > "$out/$family.log" 2>&1 &
    running+=($!)
done
status=0
for pid in "${running[@]}"; do wait "$pid" || status=1; done
exit $status
