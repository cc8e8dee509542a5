"""The judge of a request's values: what passes, what is refused and with which words, and that nothing else ever comes out of it."""

import contextlib
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_gemma4.serving import internal_fields, prompt_positions, request_values
from sglang_gemma4.serving.request_limits import LOGPROBS, TOP_LOGPROBS, Limits, most_sequences
from sglang_gemma4.serving.sampling_values import judge_sampling, sampling_kinds
from sglang_gemma4.serving.value_kinds import shown

PARAMETERS = frozenset({"max_new_tokens", "frequency_penalty", "custom_params", "json_schema", "regex", "is_normalized"})
LIMITS = Limits(vocabulary=1024, context=4096, hidden=4, parameters=PARAMETERS, labels=frozenset({"team"}))
PROMPTS = ["text", "input_ids", "input_embeds", "image_data", "video_data", "audio_data"]
NAMES = [*PROMPTS, "sampling_params", "session_params", "rid", "token_ids_logprob", "custom_labels"]
FIELDS = [*NAMES, *(name.partition(" ")[0] for name in request_values.each_prompts(LIMITS)), *request_values.SCALARS]
PROMPT: dict[str, Any] = {"input_ids": [2, 300]}
BATCH: dict[str, Any] = {"input_ids": [[2, 300], [2, 301]]}


def request(**given: Any) -> Any:
    return SimpleNamespace(**{**dict.fromkeys(FIELDS), **given})


def judge(from_client: bool = True, limits: Limits = LIMITS, **given: Any) -> None:
    request_values.judge(request(**given), limits, from_client)


def sampling(**given: Any) -> dict[str, Any]:
    return {**PROMPT, "sampling_params": given}


@pytest.mark.parametrize(
    "given",
    [
        PROMPT,
        BATCH,
        {"text": "Who?"},
        {"text": ["Who?", "What?"]},
        {"text": ""},
        {"text": []},
        {"input_ids": [], "session_params": {"id": "s"}},
        {"input_embeds": [[0.5, 1, -3.0, 65504]]},
        {"input_embeds": [[[0.5] * 4], [[1.0] * 4] * 3]},
        sampling(top_k=-1, top_p=1e-9, temperature=0, min_p=1, sampling_seed=-(2**63), n=2),
        sampling(temperature=1e-300, repetition_penalty=2, frequency_penalty=-2),
        sampling(stop=["a", "b"], stop_token_ids={1, 1023}, stop_regex="a+$", logit_bias={"7": -100, 8: 1.5}),
        sampling(max_new_tokens=0, min_new_tokens=0, custom_params={"a": [1, {"b": None}]}, json_schema="{}", n=None, top_k=None),
        {**BATCH, "sampling_params": [{"n": 2}, {"n": 2}], "top_logprobs_num": [0, 1024], "return_logprob": [True, False]},
        {**BATCH, "token_ids_logprob": [[1, 2], None], "lora_path": ["a", None], "rid": ["x", "y"], "bootstrap_room": [1, 2**63 - 1]},
        {
            **PROMPT,
            "token_ids_logprob": [1023],
            "logprob_start_len": -1,
            "rid": "mine",
            "priority": -(2**63),
            "custom_labels": {"team": "a"},
        },
        {**PROMPT, "sampling_params": {"n": 2}, "lora_path": ["a"], "custom_logit_processor": '{"callable": "00ff"}'},
        {**PROMPT, "session_params": {"id": "s", "rid": None, "offset": 3, "replace": True}},
    ],
)
def test_what_passes(given: dict[str, Any]) -> None:
    judge(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "there is no prompt"),
        ({"input_ids": [2, 1024]}, r"input_ids\[1\]: 1024 is not a token id from 0 to 1023"),
        ({"input_ids": [[2], [-1]]}, r"input_ids\[1\]\[0\]: -1 is not a token id"),
        ({"input_ids": [2, 3.0]}, r"input_ids\[1\]: 3.0 is not a token id"),
        ({"input_ids": [True, False]}, r"input_ids\[0\]: True is not a token id"),
        ({"input_ids": [2**70]}, "is not a token id"),
        ({"input_ids": [[2], 3]}, r"input_ids\[1\]: 3 is not a list of token ids"),
        ({"input_ids": []}, "input_ids: the prompt is empty"),
        ({"input_ids": [[2], []]}, r"input_ids\[1\]: the prompt is empty"),
        ({"input_ids": "abc"}, "input_ids: 'abc' is not a list"),
        ({"text": [1]}, r"text\[0\]: 1 is not a string"),
        ({"input_embeds": []}, "input_embeds: .* is not a list of embeddings"),
        ({"input_embeds": [[]]}, "is not a list of embeddings"),
        ({"input_embeds": [[[]]]}, r"input_embeds\[0\]\[0\]: \[\] is not an embedding of 4 numbers"),
        ({"input_embeds": [[1.0] * 4, [1.0] * 3]}, r"input_embeds\[1\]: .* is not an embedding of 4 numbers"),
        ({"input_embeds": [[1.0, math.nan, 1.0, 1.0]]}, r"input_embeds\[0\]\[1\]: nan is not a number from -65504 to 65504"),
        ({"input_embeds": [[1.0, 1.0, 1.0, 1e39]]}, r"input_embeds\[0\]\[3\]: 1e\+39 is not a number"),
        ({"input_embeds": [["a"] * 4]}, r"input_embeds\[0\]\[0\]: 'a' is not a number"),
        ({"input_embeds": [[1.0] * 4], "session_params": {"id": "s"}}, "session_params: cannot go with input_embeds"),
        ({"input_embeds": [[1.0] * 4] * 4096}, "4096 embeddings are not fewer than 4096"),
        (sampling(top_k=2**31), "top_k: 2147483648 is not -1 or an integer from 1 to 2147483647"),
        (sampling(top_k=0), "top_k: 0 is not"),
        (sampling(top_k=1.0), "top_k: 1.0 is not"),
        (sampling(top_k=True), "top_k: True is not"),
        (sampling(temperature=math.nan), "temperature: nan is not a number from 0"),
        (sampling(temperature=1e39), "temperature: 1e\\+39 is not"),
        (sampling(temperature="1"), "temperature: '1' is not"),
        (sampling(top_p=1e-300), "top_p: 1e-300 is not"),
        (sampling(repetition_penalty=1e-300), "repetition_penalty: 1e-300 is not a number from 1e-06 to 2"),
        (sampling(presence_penalty=math.inf), "presence_penalty: inf is not"),
        (sampling(max_new_tokens=-1), r"max_new_tokens \(max_tokens, max_completion_tokens\): -1 is not an integer from 0"),
        (sampling(max_new_tokens=2**70), "max_new_tokens"),
        (sampling(min_new_tokens=3, max_new_tokens=2), "min_new_tokens .*: 3 is above max_new_tokens"),
        (sampling(min_new_tokens=2**40), "min_new_tokens .*: 1099511627776 is not an integer from 0 to 4096"),
        (sampling(sampling_seed=2**63), r"sampling_seed \(seed\): 9223372036854775808 is not"),
        (sampling(stop_token_ids=[5000]), r"stop_token_ids\[0\]: 5000 is not an integer from 0 to 1023"),
        (sampling(stop_token_ids=[1] * 1025), "stop_token_ids: .*1025 entries.* is not a list of at most 1024"),
        (sampling(logit_bias={"1024": 1}), "logit_bias's token id: 1024 is not"),
        (sampling(logit_bias={"a": 1}), "logit_bias's token id: 'a' is not"),
        (sampling(logit_bias={"5": math.inf}), r"logit_bias\[5\]: inf is not"),
        (sampling(logit_bias={"5": None}), r"logit_bias\[5\]: None is not"),
        (sampling(logit_bias=dict.fromkeys(range(1025), 1.0)), "an object of 1025 entries"),
        (sampling(logit_bias=[1]), "logit_bias: .* is not an object"),
        (sampling(stop=""), "stop: '' is not a string of 1 to 1024 characters"),
        (sampling(stop=["a" * 2000]), r"stop\[0\]: 'aaa.*'\.\.\. is not a string"),
        (sampling(stop=["a"] * 33), "stop: .* is not a list of at most 32"),
        (sampling(stop=[1]), r"stop\[0\]: 1 is not a string"),
        (sampling(stop_regex="("), r"stop_regex: '\(' is not a regular expression: missing \)"),
        (sampling(stop_regex=["a{99999999999999999999}"]), r"stop_regex\[0\]: .* is not a regular expression"),
        (sampling(n=0), "n: 0 is not an integer from 1 to 1024"),
        (sampling(n=1_000_000), "n: 1000000 is not an integer from 1 to 1024"),
        ({**BATCH, "sampling_params": {"n": 600}}, "n: 600 answers for each of 2 prompts are 1200 sequences"),
        ({"input_ids": [[2]] * 1025}, "1025 sequences, and one request may have 1024; send several requests"),
        (sampling(foo=1), "there is no parameter 'foo'; there are custom_params, frequency_penalty"),
        (sampling(is_normalized=True), "is_normalized: True was sent, and SGLang sets this field itself"),
        (sampling(custom_params={"a": [[[[[[[[[1]]]]]]]]]}), "nested deeper than 8"),
        (sampling(custom_params={"a": [1] * 10001}), "more than 10000 values"),
        ({**PROMPT, "sampling_params": [{}]}, "sampling_params: .* is a list, and the request has one prompt"),
        ({**BATCH, "sampling_params": [{}]}, "sampling_params: a list of 1 entries, and the request has 2 prompts"),
        ({**BATCH, "sampling_params": [{"n": 1}, {"n": 2}]}, r"n: \[1, 2\] differ between prompts"),
        ({**BATCH, "sampling_params": [{"top_k": 0}, {}]}, "top_k: 0 is not"),
        ({**PROMPT, "sampling_params": 5}, "sampling_params: 5 is not an object"),
        ({**PROMPT, "top_logprobs_num": 1025}, r"top_logprobs_num \(top_logprobs, logprobs\): 1025 is not an integer from 0 to 1024"),
        ({**PROMPT, "top_logprobs_num": -1}, "top_logprobs_num .*: -1 is not"),
        ({**PROMPT, "top_logprobs_num": [3]}, "top_logprobs_num .*: .* is a list, and the request has one prompt"),
        ({**BATCH, "top_logprobs_num": [3]}, "a list of 1 entries, and the request has 2 prompts"),
        ({**BATCH, "logprob_start_len": [0, -2]}, r"logprob_start_len\[1\]: -2 is not"),
        ({**PROMPT, "token_ids_logprob": [1024]}, r"token_ids_logprob\[0\]: 1024 is not"),
        ({**PROMPT, "token_ids_logprob": [[1]]}, "token_ids_logprob: .* is a list, and the request has one prompt"),
        ({**BATCH, "token_ids_logprob": [[1], 2]}, r"token_ids_logprob\[1\]: 2 is not a list"),
        ({**PROMPT, "return_logprob": "yes"}, "return_logprob: 'yes' is not true or false"),
        ({**PROMPT, "return_hidden_states": "x"}, "return_hidden_states: 'x' is not one of"),
        ({**PROMPT, "rid": 5}, "rid: 5 is not a string"),
        ({**PROMPT, "rid": ["a"]}, "rid: .* is a list, and the request has one prompt"),
        ({**PROMPT, "rid": ""}, "rid: '' is not a string of 1 to"),
        ({**PROMPT, "rid": "HEALTH_CHECK_1"}, "begins with HEALTH_CHECK"),
        ({**PROMPT, "lora_id": "a"}, "lora_id: 'a' was sent, and SGLang sets it from lora_path"),
        ({**PROMPT, "custom_logit_processor": "abc"}, "custom_logit_processor: 'abc' is not what CustomLogitProcessor.to_str"),
        ({**PROMPT, "custom_logit_processor": '{"callable": "xy"}'}, "is not what CustomLogitProcessor"),
        ({**PROMPT, "custom_logit_processor": "[]"}, "is not what CustomLogitProcessor"),
        ({**PROMPT, "lora_path": 5}, "lora_path: 5 is not a string"),
        ({**PROMPT, "priority": 2**63}, "priority: 9223372036854775808 is not"),
        ({**PROMPT, "bootstrap_port": 99999}, "bootstrap_port: 99999 is not an integer from 0 to 65535"),
        ({**PROMPT, "session_params": {"id": ["s"]}}, r"session_params.id: \['s'\] is not a string"),
        ({**PROMPT, "session_params": {"offset": "b"}}, "session_params.offset: 'b' is not"),
        ({**PROMPT, "session_params": {"foo": 1}}, "session_params: there is no field 'foo'"),
        ({**PROMPT, "session_params": 5}, "session_params: 5 is not an object"),
        ({**PROMPT, "custom_labels": {"model_name": "x"}}, r"'model_name' is not among those that this server allows \(team\)"),
        ({**PROMPT, "received_time": math.nan}, "received_time: nan is not"),
    ],
)
def test_what_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        judge(**given)


def test_a_call_in_the_process_may_have_more_prompts_and_any_id_of_a_request() -> None:
    judge(from_client=False, input_ids=[[2]] * 5000)
    judge(from_client=False, **PROMPT, rid="HEALTH_CHECK_1")
    with pytest.raises(ValueError, match="n: 1000000 is not"):
        judge(from_client=False, **sampling(n=1_000_000))
    assert most_sequences(0) == 1024
    assert most_sequences(512) == 2048


def test_embeddings_of_models_with_an_embedding_in_each_layer() -> None:
    per_layer = Limits(vocabulary=1024, context=64, hidden=4, layer_embeddings=True)
    with pytest.raises(ValueError, match=r"each layer of this model .* needs ids; send input_ids"):
        judge(limits=per_layer, input_embeds=[[1.0] * 4])


def test_a_logit_processor_that_drafts_are_not_verified_with() -> None:
    """EAGLE's, EAGLE-3's and MTP's verify step applies none: all but an answer's first token would be as without it, with status 200."""
    processor = '{"callable": "00ff"}'
    judge(**PROMPT, custom_logit_processor=processor)
    drafted = Limits(vocabulary=1024, context=4096, hidden=4, without_processors="FROZEN_KV_MTP")
    judge(limits=drafted, **PROMPT)
    with pytest.raises(ValueError, match=r"custom_logit_processor.* was sent, and SGLang applies none to what FROZEN_KV_MTP drafts"):
        judge(limits=drafted, **PROMPT, custom_logit_processor=processor)


def test_a_seed_that_an_answer_would_depend_on() -> None:
    for asked, wanted in ((None, False), ({"temperature": 1}, False), ({"sampling_seed": 0}, True), ([None, {"sampling_seed": 7}], True)):
        assert request_values.wants_seed(asked) == wanted
    assert not request_values.wants_seed({"sampling_seed": 7, "temperature": 0})


def test_long_values_are_cut() -> None:
    assert len(shown("a" * 10_000)) < 80
    assert shown(2**1000) == "an integer of 1001 bits"
    assert len(shown([1] * 10_000)) < 100
    assert len(shown({"a": "b" * 10_000})) < 80


@pytest.mark.parametrize(
    ("name", "value"), [("lora_id", "a"), ("encoder_urls", []), ("received_time", 0.0), ("token_indices_to_pool", [1])]
)
def test_internal_fields(name: str, value: Any) -> None:
    assert internal_fields.refusal(request(**PROMPT)) is None
    said = internal_fields.refusal(request(**PROMPT, **{name: value}))
    assert said is not None
    assert said.startswith(f"{name}: is no field of clients")


def positions(tokens: int = 10, **given: Any) -> None:
    fields = {"return_logprob": True, "sampling_params": {"max_new_tokens": 100}, "logprob_start_len": -1, **given}
    prompt_positions.judge(request(**fields), [2] * tokens, LIMITS)


def test_positions_of_the_prompt() -> None:
    positions(top_logprobs_num=TOP_LOGPROBS)
    positions(logprob_start_len=10)
    with pytest.raises(ValueError, match="logprob_start_len: 11 is not at most 10"):
        positions(logprob_start_len=11)
    with pytest.raises(ValueError, match=f"1025 log-probabilities at up to 3000 positions are more than the {LOGPROBS}"):
        positions(top_logprobs_num=1024, sampling_params={"max_new_tokens": 3000})
    positions(top_logprobs_num=400, sampling_params={"max_new_tokens": None})
    positions(top_logprobs_num=1024, sampling_params={})
    overrides = SimpleNamespace(positions=[3, 10], embeds=SimpleNamespace(shape=(2, 4)))
    with pytest.raises(ValueError, match="position: 10 is not from 0 to 9"):
        positions(positional_embed_overrides=overrides)
    overrides.positions, overrides.embeds.shape = [3, 9], (2, 5)
    with pytest.raises(ValueError, match=r"\(2, 5\) is not of shape \(2, 4\)"):
        positions(positional_embed_overrides=overrides)
    with pytest.raises(ValueError, match="is not a PositionalEmbeds"):
        positions(positional_embed_overrides="abc")


SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**80), 2**80), st.floats(), st.text(max_size=5), st.binary(max_size=3)
)
JSON = st.recursive(SCALAR, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(FIELDS), JSON, st.sampled_from([PROMPT, BATCH, {"text": "Who?"}, {}]))
def test_whatever_a_field_is_given_it_passes_or_is_a_value_error(name: str, value: Any, prompt: dict[str, Any]) -> None:
    with contextlib.suppress(ValueError):
        judge(**{**prompt, name: value})


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(sampling_kinds(LIMITS))), JSON)
def test_numbers_that_pass_are_finite_in_float32_and_int64(name: str, value: Any) -> None:
    try:
        judge_sampling({name: value}, LIMITS)
    except ValueError:
        return
    if isinstance(value, float):
        assert abs(value) < 3.5e38
    if isinstance(value, int):
        assert -(2**63) <= value < 2**63
