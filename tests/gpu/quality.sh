#!/usr/bin/env bash
# Answers of the tiny models on a card in bfloat16: stock, the package, the package with MTP; what `compare` allows is the exit status.
#
#     bash tests/gpu/quality.sh FOLDER
#
# All servers are up at once and asked at the same time. FOLDER gets MODEL/ARM/KIND.jsonl, the servers' logs and MODEL/A-B-KIND.txt.
set -uo pipefail
cd "$(dirname "$0")/../.."
[ $# -eq 1 ] || { sed -n '2,7p' "$0" | cut -c3-; exit 2; }
text=runs/2026-11-21-tiny-quality/text.txt
[ -e "$text" ] || { echo "there is no $text, whose perplexity is asked for"; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd) port=31500 failed=0
run() { python3 -m sglang_gemma4.cli "$@"; }
# CARD= QUESTIONS=8 MODELS=tiny-e2b tries the script without a card.
card=(${CARD---dtype bfloat16 --attention-backend triton --sampling-backend pytorch --mm-attention-backend triton_attn --disable-prefill-cuda-graph
    --cuda-graph-max-bs-decode 16})
questions=${QUESTIONS:-500}
read -ra models <<<"${MODELS:-tiny-26b-a4b tiny-e2b}"
servers=$(mktemp)
trap 'for server in $(cat "$servers"); do kill -KILL -- "-$server" 2>/dev/null; done; rm -f "$servers"' EXIT
trap 'exit 1' TERM INT

arm() { # MODEL NAME PORT SWITCH FLAG ...: serve, ask, end
    local model=$1 name=$2 port=$3 switch=$4 folder=$out/$1/$2 url=http://127.0.0.1:$3 failed=0
    shift 4
    mkdir -p "$folder"
    env "$switch" setsid python3 -m sglang_gemma4.cli serve "$model" --port "$port" --max-total-tokens 16384 --mem-fraction-static 0.9 \
        --max-running-requests 16 "${card[@]}" "$@" >"$folder/server.log" 2>&1 &
    local server=$!
    echo $server >>"$servers"
    until python3 -c "import urllib.request as u; u.urlopen('$url/health', timeout=5)" 2>/dev/null; do
        kill -0 "$server" 2>/dev/null || { echo "$model, $name: the server ended"; tail -n 3 "$folder/server.log"; return 1; }
        sleep 1
    done
    run eval mmlu --dataset world --url "$url" --questions "$questions" --out "$folder/mmlu.jsonl" || failed=1
    run eval colors --url "$url" --out "$folder/colors.jsonl" || failed=1
    run eval text "$text" --url "$url" --out "$folder/text.jsonl" || failed=1
    kill -KILL -- "-$server"
    return $failed
}

jobs=()
for model in "${models[@]}"; do
    for name in stock package package-mtp; do
        flags=()
        [ $name != package-mtp ] || flags=(--speculative-draft-model-path auto)
        arm "$model" $name $port SGLANG_GEMMA4=$([ $name = stock ]; echo $?) "${flags[@]}" >"$out/$model-$name.log" 2>&1 &
        jobs+=($!)
        ((++port))
    done
done
for job in "${jobs[@]}"; do wait "$job" || failed=1; done
tail -qn 1 "$out"/*.log
for model in "${models[@]}"; do
    for kind in mmlu colors text; do
        for pair in "stock package --switch SGLANG_GEMMA4" "package package-mtp --gate"; do
            read -r a b gate <<<"$pair"
            # shellcheck disable=SC2086
            run compare "$out/$model/$a/$kind.jsonl" "$out/$model/$b/$kind.jsonl" $gate >"$out/$model/$a-$b-$kind.txt" 2>&1 \
                || { echo "$model, $kind: $b against $a"; tail -n 3 "$out/$model/$a-$b-$kind.txt"; failed=1; }
        done
    done
done
exit $failed
