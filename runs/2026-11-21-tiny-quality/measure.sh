#!/bin/bash
# One server after another on the CPU engine, asked the same questions. Usage: measure.sh MODEL [ARM...], all arms without ARM.
# Arms: stock (SGLANG_GEMMA4=0), package-no-router (SGLANG_GEMMA4_ROUTER_SCALE=0), package, package-mtp.
# raw/MODEL/ARM/KIND.jsonl are the answers; compare.sh makes raw/MODEL/A-B-KIND.txt of them.
set -eu
cd "$(dirname "$0")"
PORT=31500
URL=http://127.0.0.1:$PORT
export OMP_NUM_THREADS=1
model=$1
shift
MTP="--speculative-algorithm NEXTN --speculative-draft-model-path $model-assistant
    --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"

arm() { # ARM SWITCH FLAGS...
    local name=$1 switch=$2 out=raw/$model/$1
    shift 2
    env "$switch" setsid sglang-gemma4 serve "$model" --port $PORT "$@" >"${TMPDIR:-/tmp}/$model-$name.log" 2>&1 &
    local server=$!
    until curl -sf -o /dev/null $URL/health; do
        kill -0 $server
        sleep 2
    done
    sglang-gemma4 eval mmlu --url $URL --questions 500 --out "$out/mmlu.jsonl"
    sglang-gemma4 eval colors --url $URL --out "$out/colors.jsonl"
    sglang-gemma4 eval text text.txt --url $URL --out "$out/text.jsonl"
    if [ "$name" = stock ]; then # what one server answers when it is asked again
        sglang-gemma4 eval mmlu --url $URL --questions 500 --out "raw/$model/stock-again/mmlu.jsonl"
    fi
    kill -KILL -- -$server
    wait $server || true
}

python make_text.py
for name in "${@:-stock package-no-router package package-mtp}"; do
    for one in $name; do
        case $one in
        stock) arm stock SGLANG_GEMMA4=0 ;;
        package-no-router) arm package-no-router SGLANG_GEMMA4_ROUTER_SCALE=0 ;;
        package) arm package SGLANG_GEMMA4=1 ;;
        package-mtp) arm package-mtp SGLANG_GEMMA4=1 $MTP ;;
        *) echo "$one is no arm" >&2 && exit 2 ;;
        esac
    done
done
