#!/bin/bash
# Every pair of arms, in text; status 1 of a comparison says that its gate was exceeded, which the text says too. Usage: compare.sh MODEL...
set -eu
cd "$(dirname "$0")"
for model in "$@"; do
    for pair in "package int8" "package fp8" "int8 int8-mtp" "package-mtp int8-mtp"; do
        read -r a b <<<"$pair"
        for kind in mmlu colors text; do
            one=raw/$model/$a/$kind.jsonl other=raw/$model/$b/$kind.jsonl
            if [ -e "$one" ] && [ -e "$other" ]; then
                sglang-gemma4 compare "$one" "$other" --gate >"raw/$model/$a-$b-$kind.txt" || [ $? = 1 ]
            fi
        done
    done
done
