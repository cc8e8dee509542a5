#!/bin/bash
# Every pair of arms, in text; status 1 of a comparison says that its gate was exceeded, which the text says too. Usage: compare.sh MODEL...
set -eu
cd "$(dirname "$0")"

pair() { # MODEL A B GATE...
    local folder=raw/$1 a=$2 b=$3 kind
    shift 3
    for kind in mmlu colors text; do
        if [ -e "$folder/$a/$kind.jsonl" ] && [ -e "$folder/$b/$kind.jsonl" ]; then
            sglang-gemma4 compare "$folder/$a/$kind.jsonl" "$folder/$b/$kind.jsonl" "$@" >"$folder/$a-$b-$kind.txt" || [ $? = 1 ]
        fi
    done
}

for model in "$@"; do
    pair "$model" stock stock-again --gate
    pair "$model" stock package --switch SGLANG_GEMMA4
    pair "$model" stock package-no-router --gate
    pair "$model" package-no-router package --switch SGLANG_GEMMA4_ROUTER_SCALE
    pair "$model" package package-mtp --gate
done
