#!/usr/bin/env bash
# What one card has to show, in the order of its worth: first the card tests, side by side, then the runs that need a card alone.
#
#     bash tests/gpu/measure.sh FOLDER [SECONDS] [STAGE ...]
#
# FOLDER gets one log a stage, t-*.log of the tests, and a folder a run (raw lines; `sglang-gemma4 bench --report` makes the report, also
# elsewhere). A stage that would not end within SECONDS (default: no limit) is left out and named; the same command goes on with what is not
# in FOLDER/done. DRY=1 runs the benchmarks' dry runs instead and no test: it shows, without a card, that every command is one.
set -uo pipefail
cd "$(dirname "$0")/../.."
[ $# -ge 1 ] || { sed -n '2,8p' "$0" | cut -c3-; exit 2; }
[ -n "${DRY:-}" ] || nvidia-smi -L 2>/dev/null | grep -q GPU || { echo "this needs a card; DRY=1 tries its commands without one"; exit 2; }
# Only found, not imported: that takes the better part of a minute where no bytecode is kept.
python3 -c "import importlib.util as u; [u.find_spec(n).loader for n in ('pytest', 'sglang', 'datasets')]" || { echo "SGLang's benchmark client or pytest does not import here"; exit 2; }
out=$(mkdir -p "$1" && cd "$1" && pwd) limit=${2:-1000000}
shift; [ $# -gt 0 ] && shift
only=("$@")
G=SGLANG_GEMMA4
lock=$out/card.lock
touch "$out/done"
: >"$out/left-out"

on_card() { # NAME SECONDS COMMAND ...: a stage without a dry run, alone on the card
    local name=$1 needs=$2
    shift 2
    [ -n "${DRY:-}" ] || stage "$name" "$needs" flock -o "$lock" "$@"
}

beside() { # as on_card, for tests: they share the card with each other and with the servers that the next bench starts, whose passes wait
    local name=$1 needs=$2
    shift 2
    [ -n "${DRY:-}" ] || stage "$name" "$needs" flock -o -s "$lock" "$@" &
}

stage() { # NAME SECONDS COMMAND ...: SECONDS is what it needs, and what it gets
    local name=$1 needs=$2
    shift 2
    [ -z "${DRY:-}" ] || needs=$((20 * needs)) # an engine without a card is slow
    grep -qx "$name" "$out/done" && return
    [ ${#only[@]} -eq 0 ] || [[ " ${only[*]} " == *" $name "* ]] || return
    if ((SECONDS + needs > limit)); then
        echo "left out: $name ($needs s needed, $((limit - SECONDS)) s left)" | tee -a "$out/left-out"
        return
    fi
    local began=$SECONDS
    timeout -k 60 "$needs" "$@" >"$out/$name.log" 2>&1
    local status=$?
    echo "$name: status $status after $((SECONDS - began)) s"
    ((status == 0)) && echo "$name" >>"$out/done"
}

tests() { # NAME ARGUMENT ...: pytest; its log, with what passing tests print, beside the others
    local name=$1
    shift
    python3 -m pytest -v -rs -rP -p no:cacheprovider "$@" >"$out/t-$name.log" 2>&1
}

kernel_tests() { # hundreds of kernels to compile, one card to try them on
    tests kernels -n 8 tests/gpu/test_kernels*.py tests/gpu/test_dependent_launch_gpu.py -k "not shorter" # that one needs the card alone
    local failed=$?
    tail -qn 1 "$out"/t-kernels.log
    return $failed
}

engine_tests() { # NAME ...: tests/gpu/test_NAME.py, side by side
    local failed=0 job name logs=()
    for name in "$@"; do
        tests "$name" "tests/gpu/test_$name.py" &
        logs+=("$out/t-$name.log")
    done
    for job in $(jobs -p); do wait "$job" || failed=1; done
    tail -qn 1 "${logs[@]}"
    return $failed
}

# All arms alike. Prefill graphs and SGLang's own sampling are off: the first are an arm of their own, the second needs kernels that a card
# without a network lacks.
flags=(--attention-backend=triton --sampling-backend=pytorch --mm-attention-backend=triton_attn --disable-prefill-cuda-graph
    --context-length=16384 --max-running-requests=80 --cuda-graph-bs-decode 1 8 32 64 80)
graph_flags=("${flags[@]:0:3}" "${flags[@]:4}") # with what captures prefills

bench() { # RUN MODEL ARGUMENT ... [-- FLAG ...]
    local run=$1 model=$2 word words=()
    shift 2
    for word in "$@"; do
        [ -z "${DRY:-}" ] || [ "$word" != -- ] || break # the flags are a card's
        words+=("$word")
    done
    [ -z "${DRY:-}" ] || words+=(-- --max-running-requests=80)
    python3 -m sglang_gemma4.cli bench "$model" --out "$out/$run" --no-report --card-lock "$lock" ${DRY:+--dry-run} "${words[@]}"
}

export -f tests kernel_tests engine_tests bench
export out lock

run_bench() { # NAME SECONDS MODEL ARGUMENT ...: a stage that is a bench; its run has the stage's name
    local name=$1 needs=$2
    shift 2
    stage "$name" "$needs" bash -c 'bench "$@"' bench "$name" "$@"
}

off() { echo "$1-off:package,mtp,${G}_$2=0"; } # NAME SWITCH: an arm
by_card=--mm-feature-transport=cuda_ipc adaptive=--speculative-adaptive refused=SGLANG_SIMULATE_ACC_LEN=1
no_flash=${G}_FLASH_PREFILL=0 eager=${G}_PREFILL_GRAPH=0
stock_ratio=--swa-full-tokens-ratio=0.15 # what the package chooses by itself

# Issue 7. Small models: the servers of all arms side by side, their start beside tests.
prefill_kernel_tests() { tests prefill-kernels -n 6 tests/gpu/test_kernels*.py -k "flash_prefill or many or chunk"; }
export -f prefill_kernel_tests
beside engine-tests 400 bash -c "prefill_kernel_tests & engine_tests fast_prefill_gpu gpu memory" # which waits for both
beside more-engine-tests 400 bash -c "engine_tests prefill_graph images sampling fast_paths fa4"
beside quality 400 bash tests/gpu/quality.sh "$out/quality"
small=("${graph_flags[@]}" --max-total-tokens=140000 --mem-fraction-static=0.9 --sleep-on-idle)
run_bench e4b 560 e4b --together --arm stock --arm package --workload prefill --repetitions 3 -- "${small[@]}" & # its passes wait for e2b's
run_bench e2b 560 e2b --together --arm stock --arm package --arm "stock-card:stock,$by_card,only=images" \
    --arm "eager:package,$eager,only=ttft" --workload images,ttft --repetitions 2 -- "${small[@]}"
run_bench first-token 400 e2b --together --arm stock --arm package --arm "long:package,${G}_YOCO_GRAPH=0" --workload ttft --repetitions 3 \
    -- "${small[@]}"
run_bench growth 310 e2b --together --arm stock --arm package --workload prompts,images-sweep --repetitions 2 -- "${small[@]}" \
    --context-length=70000
wait
# Seven engines of 26B-A4B over a single copy of its weights (49 GiB, and about 10 each): what MTP, plain decoding, prefill graphs and an
# adaptive length do, which may lose 3 % where every draft is refused.
seven=("${graph_flags[@]}" --max-running-requests=64 --max-total-tokens=30500 --swa-full-tokens-ratio=1.0 --mem-fraction-static=0.97
    --sleep-on-idle)
run_bench seven 480 26b-a4b --together --share-weights --arm stock:stock,mtp --arm package:package,mtp --arm plain-stock:stock \
    --arm plain:package --arm "eager:package,$eager" --arm "refused:package,mtp,$adaptive,$refused" \
    --arm "adaptive:package,mtp,$adaptive" --batches 1,64,32,8 --step-tokens 300,150 --repetitions 3 -- "${seven[@]}"
# Issue 5: what an adaptive length loses where every draft is refused (3 % at most is allowed), and what it makes of accepted ones.
# Two engines with pools for 64 requests of 900 tokens.
two=("${flags[@]}" --max-total-tokens=60000 --swa-full-tokens-ratio=1.0 --mem-fraction-static=0.93)
run_bench adaptive 320 26b-a4b --together 2 --arm plain:package --arm "refused:package,mtp,$adaptive,$refused" --batches 1,8,32,64 \
    --step-tokens 500,300 --repetitions 3 -- "${two[@]}"
run_bench adaptive-accepted 320 26b-a4b --together 2 --arm fixed:package,mtp --arm "adaptive:package,mtp,$adaptive" --batches 1,8,32,64 \
    --step-tokens 500,300 --repetitions 3 -- "${two[@]}"

# Issue 6. What a step is made of, then each piece, then serving.
run_bench mtp-steps 400 26b-a4b --together 2 --arm stock:stock,mtp --arm package:package,mtp --batches 1,8,32,64 --step-tokens 700,200 \
    --repetitions 5 --profile 1,8,32,64 -- "${two[@]}"
run_bench plain 260 26b-a4b --together 2 --arm stock --arm package --batches 1,32 --step-tokens 700,200 --repetitions 5 --profile 1,32 -- "${two[@]}"
run_bench pieces 360 26b-a4b --together --share-weights --arm stock:stock,mtp --arm package:package,mtp --arm "$(off attention VERIFY_ATTENTION)" \
    --arm "$(off experts GROUPED_EXPERTS)" --arm "$(off norms TRIPLE_NORM)" --arm "$(off tail LAYER_TAIL)" --arm "$(off rope QKV_ROPE)" \
    --batches 1,64,32,8 --step-tokens 300,150 --repetitions 3 -- "${seven[@]}"
run_bench later-pieces 300 26b-a4b --together --share-weights --arm package:package,mtp --arm "$(off argmax DRAFT_ARGMAX)" \
    --arm "$(off dependent DEPENDENT_LAUNCH)" --arm "$(off rows FEW_ROW_LINEAR)" --arm "$(off overlap DENSE_OVERLAP)" \
    --arm "$(off choice ROUTER_CHOICE)" --arm "verify-argmax:package,mtp,${G}_VERIFY_ARGMAX=1" --batches 1,64,32,8,4 --step-tokens 300,150 \
    --repetitions 3 -- "${seven[@]}" --cuda-graph-bs-decode 1 4 8 32 64
# Plain decoding, whose steps have one row a request.
run_bench plain-pieces 260 26b-a4b --together --share-weights --arm stock --arm package --arm "choice-off:package,${G}_ROUTER_CHOICE=0" \
    --arm "rows-off:package,${G}_FEW_ROW_LINEAR=0" --arm "tokens-off:package,${G}_FEW_TOKEN_EXPERTS=0" \
    --arm "overlap-off:package,${G}_DENSE_OVERLAP=0" --batches 1,32,8,4 --step-tokens 300,150 --repetitions 3 -- "${seven[@]}" \
    --max-running-requests=32 --max-total-tokens=17000 --cuda-graph-bs-decode 1 4 8 32
on_card expert-times 80 python3 -m sglang_gemma4.benchmark.moe_times --tokens 1 4 8 16 --tune
few_token_tests() { # what acts in steps of few tokens
    tests few-tokens -n 12 tests/gpu/test_kernels{,_experts,_few_rows}.py tests/gpu/test_dependent_launch_gpu.py \
        -k "not prefill and not chunk and not shorter and not 193 and not 320"
}
export -f few_token_tests
beside few-token-tests 300 bash -c few_token_tests
# A step kernel by kernel; the traces lie in the run's scratch folder.
run_bench profiles 330 26b-a4b --together --share-weights --arm stock:stock,mtp --arm package:package,mtp --arm plain-stock:stock \
    --arm plain:package --batches 1,32,8,80 --step-tokens 700,80 --repetitions 3 --profile 1,32,8,80 --roofline -- "${seven[@]}" \
    --max-running-requests=80 --max-total-tokens=64000
# What a prefill takes, by switch: lone prompts, and 30 prompts of 7,000 tokens, nine at a time.
run_bench prefills 300 26b-a4b --together --share-weights --arm stock --arm package --arm "no-flash:package,$no_flash,only=prefill" \
    --arm "eager:package,$eager,only=ttft" --arm "experts-off:package,${G}_PREFILL_EXPERTS=0,only=prefill" --workload prefill,ttft \
    --repetitions 2 -- "${seven[@]}" --max-total-tokens=70000 --swa-full-tokens-ratio=0.3
# Two servers with pools for 68 of the requests of summarize.
run_bench flash 280 26b-a4b --together --share-weights --arm package:package,mtp --arm "no-flash:package,mtp,$no_flash" --workload summarize \
    --repetitions 2 -- "${flags[@]}" --max-total-tokens=620000 --swa-full-tokens-ratio=0.17 --mem-fraction-static=0.95 --sleep-on-idle
run_bench serve 480 26b-a4b --arm "stock:stock,mtp,$stock_ratio" --arm package:package,mtp \
    --workload summarize,chat --rounds 1 --repetitions 2 -- "${graph_flags[@]}"
for run in prefills flash serve; do
    [ ! -e "$out/$run" ] || grep -qs "FlashAttention-4 compiled" "$out/$run"/package*.log \
        || echo "$run: the arm package ran without FlashAttention-4"
done
beside fast-paths 200 bash -c "engine_tests fast_paths"
on_card chain 100 python3 -m sglang_gemma4.benchmark.layer_chain
on_card attention-long 90 python3 -m sglang_gemma4.benchmark.attention_times --layers full --requests 8 32 --keys 8192 65536
on_card products 60 python3 -m sglang_gemma4.benchmark.linear_times
on_card prefill-experts 210 python3 -m sglang_gemma4.benchmark.prefill_expert_times --tokens 8192 2048 16384 1024 --sweep 90
on_card row-tiles 90 python3 -m sglang_gemma4.benchmark.row_tile_times
on_card prefill-attention 180 python3 -m sglang_gemma4.benchmark.prefill_times --tune
on_card expert-gelu 240 bash -c "python3 crash_repro/expert_gelu.py && ! SGLANG_GEMMA4_EXPERT_GELU=0 python3 crash_repro/expert_gelu.py"
pair=--prefill-attention-backend=fa4,--decode-attention-backend=triton,--speculative-attention-mode=decode
run_bench pair 240 26b-a4b --arm package:package,mtp --arm "pair:package,mtp,$pair" --workload summarize --rounds 1 --repetitions 1 -- "${flags[@]}"
run_bench fa4 240 26b-a4b --together 2 --arm package:package,mtp --arm "fa4:package,mtp,--attention-backend=fa4" --batches 1,8,32 \
    --step-tokens 700,200 --repetitions 3 -- "${two[@]:1}"
# What a prefill of 8,000-token prompts is made of, and whether chunks twice as long (SGLang's default on this card is 8,192) make it faster.
run_bench chunks 260 26b-a4b --together --share-weights --arm package --arm "no-flash:package,$no_flash" \
    --arm "chunk-16384:package,--chunked-prefill-size=16384" --batches 1,8 --step-tokens 8000,8 --repetitions 5 --profile 8 --roofline \
    -- "${seven[@]}" --max-total-tokens=70000 --swa-full-tokens-ratio=0.6
run_bench debug 200 26b-a4b --together 2 --arm package:package,mtp --arm "debug:package,mtp,${G}_DEBUG=1" --batches 1,32 --step-tokens 700,200 \
    --repetitions 3 -- "${two[@]}"
on_card kernel-tests 400 nice bash -c kernel_tests
wait
[ ! -s "$out/left-out" ] || { echo "left out:"; cat "$out/left-out"; }
