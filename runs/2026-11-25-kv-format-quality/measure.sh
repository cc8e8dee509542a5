#!/bin/bash
# One server after another on the CPU engine, asked the same questions. Usage: measure.sh MODEL [ARM...], all arms without ARM.
# Arms: package and package-mtp (KV in float32), int8, int8-mtp, fp8 (a scale for each token and head).
# raw/MODEL/ARM/KIND.jsonl are the answers; compare.sh makes raw/MODEL/A-B-KIND.txt of them.
set -eu
cd "$(dirname "$0")"
PORT=${PORT:-31600}
URL=http://127.0.0.1:$PORT
export OMP_NUM_THREADS=1
model=$1
shift
MTP="--speculative-draft-model-path auto"
INT8="--kv-cache-dtype int8_per_token_head"

arm() { # ARM FLAGS...
    local out=raw/$model/$1 log=${TMPDIR:-/tmp}/$model-$1.log
    shift
    setsid sglang-gemma4 serve "$model" --port $PORT "$@" >"$log" 2>&1 &
    local server=$!
    until curl -sf -o /dev/null $URL/health; do
        kill -0 $server
        sleep 2
    done
    sglang-gemma4 eval mmlu --dataset world --url $URL --questions 500 --out "$out/mmlu.jsonl"
    sglang-gemma4 eval colors --url $URL --out "$out/colors.jsonl"
    sglang-gemma4 eval text ../2026-11-21-tiny-quality/text.txt --url $URL --out "$out/text.jsonl"
    kill -KILL -- -$server
    wait $server || true
}

for name in ${@:-package int8 fp8 package-mtp int8-mtp}; do
    case $name in
    package) arm package ;;
    package-mtp) arm package-mtp $MTP ;;
    int8) arm int8 $INT8 ;;
    int8-mtp) arm int8-mtp $INT8 $MTP ;;
    fp8) arm fp8 --kv-cache-dtype fp8_per_token_head ;;
    *) echo "$name is no arm" >&2 && exit 2 ;;
    esac
done
