#!/bin/bash
# The tiny MoE in bfloat16 and quantised, each with its bfloat16 assistant, one server after another on the CPU engine, asked the same.
# raw/ARM/KIND.jsonl are the answers; compare.sh makes raw/bfloat16-ARM-KIND.txt of them. Usage: measure.sh [ARM...]
set -eu
cd "$(dirname "$0")"
PORT=31560
URL=http://127.0.0.1:$PORT
export OMP_NUM_THREADS=1
models=$(mktemp -d)
sglang-gemma4 checkpoint tiny-26b-a4b "$models/bfloat16"

arm() { # ARM
    local name=$1 out=raw/$1
    [ "$name" = bfloat16 ] || sglang-gemma4 checkpoint tiny-26b-a4b "$models/$name" --quantization "$name"
    setsid sglang-gemma4 serve "$models/$name" --port $PORT --speculative-draft-model-path auto >"$models/$name.log" 2>&1 &
    local server=$!
    until curl -sf -o /dev/null $URL/health; do
        kill -0 $server
        sleep 2
    done
    sglang-gemma4 eval mmlu --url $URL --questions 300 --out "$out/mmlu.jsonl"
    sglang-gemma4 eval colors --url $URL --out "$out/colors.jsonl"
    sglang-gemma4 eval text text.txt --url $URL --out "$out/text.jsonl"
    kill -KILL -- -$server
    wait $server || true
}

for name in ${*:-bfloat16 fp8-dynamic w4a16-g32}; do
    arm "$name"
done
