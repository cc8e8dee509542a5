#!/bin/bash
# Each quantised arm against bfloat16, in text; status 1 of a comparison says that the default gate was exceeded, which the text says too.
set -eu
cd "$(dirname "$0")"
for arm in fp8-dynamic w4a16-g32; do
    for kind in mmlu colors text; do
        sglang-gemma4 compare "raw/bfloat16/$kind.jsonl" "raw/$arm/$kind.jsonl" --gate >"raw/bfloat16-$arm-$kind.txt" || [ $? = 1 ]
    done
done
