"""The words of REPORT.md; ``report.py`` puts in the figures."""

FINDINGS = """\
The package's defaults accept what stock's draft accepts, step by step; transformers' position for the draft's query \
(SGLANG_GEMMA4_DRAFT_PHASE=1) changes the accept length of the tiny pairs by {own_short} up to the model's own stop, \
by {all_short} over {tokens} forced tokens, and by {e2b_text} over those on text of tiny-e2b, so it stays off.

{prompts} held-out prompts ({texts} of text, {images} with images) for each of three pairs, greedy, {tokens} tokens from each whatever
they say ("own turn": only as far as the model's own stop), 3 steps, topk 1, 4 draft tokens; the CPU reference engine in float32,
SGLang 0.5.23, transformers 5.19. Accept length: tokens after the prefill's first over verify steps. Changes are against stock's draft,
with the 95 % interval of {resamples} resamples of prompts; ** where it leaves 0 out, without correction for many intervals. Drafted: 3 a
step; accepted: those that are in the answer. One command makes all of it, see `accept_length.py`.

{summary}

"own turn" is the reference's, which takes the engine's steps (see "Is it the same computation?").

![changes](difference.png)

- **What transformers does.** The query stands at the newest token, `input_ids.shape[1] - 1` (generation/candidate_generator.py:1339), for
  every draft of a round (:1353); that token has no key yet, so the query is 1 past the last key. The assistant passes it on unchanged
  (models/gemma4_assistant/modeling_gemma4_assistant.py:184), and the target counts from 0 (models/gemma4/modeling_gemma4.py:1649).
  llama.cpp's common/speculative.cpp (`n_past`), ml-explore/mlx-swift-lm#267 and openvinotoolkit/openvino.genai#3958 name the same place
  (read, not run). It is the best evidence there is for what the released assistants were trained with.
- **What stock does.** The multimodal target counts from 1 (gemma4_mm.py:663), stock's draft from 0 (frozen_kv_mtp_utils.py:90): its query
  stands 1 *before* the last key, 2 before transformers'. Under a text-only target it stands at the last key, as the comment there says.
- **What is measured is the phase and nothing else.** Engine and reference (transformers' two models, all positions of the engine's answer
  at once, keys of accepted tokens only) take the same steps on every prompt, at both positions. FROZEN_CHAIN=1 and SHARED_QUERY=1 change no
  step and no token.
- **L-1 or L**, the open question (1 before the last key, or at it), {tokens} tokens, text and images, against stock's L-1.
  L: {last}.
  transformers' L+1: {rule}.
- **In the model's own turn** ({own_tokens} tokens a prompt; the rest of the {tokens} is the model inventing the next question, whose
  words had a twentieth of the weight in training, tiny/batches.py:14).
  L: {last_own}.
  L+1: {rule_own}.
- **The pairs feel their position**, but one or two places are little: 8 places off, the accept length changes by {far}.
- **A key more or less** in the draft's sliding layers changes less than the phase does. SGLang reads window - 1, since older slots may be
  freed; training here used window; transformers' mask lets window + 1 through (masking_utils.py:150).
- **transformers 5.19 cannot run such a pair as it is**: generation/utils.py:1338 constructs SinglePositionMultiTokenCandidateGenerator
  without `input_ids` and `model_kwargs`, which candidate_generator.py:1259 calls deprecated and still requires: a TypeError. Repaired (a
  subclass that passes them), its drafts read keys of drafts just refused: one in full layers (:1330 cuts to a length that counts the new
  token, which has no key), all of them in sliding layers once a text is longer than the window (their tensors are shorter than that
  length, so nothing is cut). "accepted keys only" takes them away; on a few prompts it still differs from the reference, unexplained (its
  sliding layers may hold fewer keys than its mask allows).

**Decision.** SGLANG_GEMMA4_DRAFT_PHASE stays 0. For 1: it is what transformers does, and up to the stop at which a server ends an answer no
pair is below stock's. Against: with answers forced past their end tiny-e2b is below stock's on text (so is transformers' own loop), a gain
is 1 to 2 % where there is one, and the patch has not run on a card. The accept length with 0 and with 1 of a few hundred answers of a
released pair would decide. L, which only stock under a text-only target uses, is above stock's on every pair, and was not made a choice.

**Not measured.** Released weights; any GPU or GPU backend; sampling; topk > 1; other draft lengths; prompts longer than a few windows. The
tiny assistants were trained in this project, at L+1 with `window` keys (tiny/drafting.py), stopped at a set accept length
(tiny/train_assistant.py). Windows of 32 and 64 and few heads may feel one position more, or less, than large models do. Which of "own
turn" and the {tokens} tokens should decide was not said before the figures were seen. The mix of prompts is ours, not that of a server's
users; "four-choice" answers end after one token and say nothing in "own turn".

## The engine, arm by arm

{engine}

"all three" is DRAFT_PHASE=1 with FROZEN_CHAIN=1 and SHARED_QUERY=1. `stock's draft`: every switch that touches MTP at 0 but SYNC_MTP,
without which stock's MTP does not run on this engine.

## Is it the same computation?

Prompts (images included) that took another number of verify steps than the reference says.

{against_reference}

## Position and window in the reference

Position counted from the last key; keys in sliding layers. All prompts.

{positions}

## transformers' own assisted generation

Constructor repaired, otherwise as it is; "1 back": its position less 1.

{shipped}

## By kind of prompt

DRAFT_PHASE=1 (L+1) against stock's draft.

{by_kind}

## Run again

`raw.jsonl` was taken at two commits (engine, most of the reference and half of transformers at 61e3db3; the rest on 2026-11-22).
`again.jsonl` is every 20th prompt, all in one go at the commit of this report (eleven minutes): prompts that took another number of verify
steps.

{again}
"""
