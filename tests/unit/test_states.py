"""States of patches: what a server does not use is idle, two processes' states are one, the banner is short."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4 import patching
from sglang_gemma4.benchmark.server import patches_of
from sglang_gemma4.diagnostics import doctor, status
from sglang_gemma4.patches import load_all
from sglang_gemma4.patching import Outcome, switches, uses
from sglang_gemma4.patching.this_server import Server

ARGUMENTS: dict[str, Any] = {
    "language_model_only": False, "enable_multimodal": None, "speculative_algorithm": None, "speculative_draft_model_path": None,
    "speculative_adaptive": False, "disable_overlap_schedule": False, "cuda_graph_config": SimpleNamespace(decode=None, prefill=None),
    "tp_size": 1, "pp_size": 1, "attn_dp_size": 1, "disaggregation_mode": "null", "cuda_graph_backend_prefill": None,
    "disable_prefill_cuda_graph": False, "disable_cuda_graph": False,
    "enable_lora": None, "lora_paths": None, "enable_memory_saver": False, "disable_radix_cache": False,
    "kv_cache_dtype": "auto", "quantization": None, "enable_unified_memory": False, "enable_hierarchical_cache": False,
    "enable_metrics": False, "load_format": "auto", "reasoning_parser": None, "tool_call_parser": None, "grammar_backend": "xgrammar",
    "enable_deterministic_inference": False,
}  # fmt: skip
MTP = {"speculative_algorithm": "FROZEN_KV_MTP", "speculative_draft_model_path": "assistant"}


def server(text: dict[str, Any] | None = None, card: tuple[int, int] | None = (9, 0), backend: str = "triton", **arguments: Any) -> Server:
    """A text-only dense model without adapters, draft or metrics, but for what is given."""
    config = SimpleNamespace(architectures=["Gemma4ForCausalLM"])
    given = SimpleNamespace(**{**ARGUMENTS, **arguments})
    return Server(given, config, SimpleNamespace(**(text or {})), backend, backend, card, card is not None)


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> dict[str, Outcome]:
    """Every patch as if it were in place."""
    patches = {patch.name: patch for patch in load_all()}
    outcomes = {name: Outcome(name, patch.switch, patch.does, "active") for name, patch in patches.items()}
    monkeypatch.setattr(patching.declare, "_active", patches)
    monkeypatch.setattr(patching.declare, "_outcomes", outcomes)
    return outcomes


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({}, "text_only_config"),
        (MTP, "frozen_chain verify_attention draft_argmax mtp_defaults"),
        ({"text": {"enable_moe_block": True}}, "grouped_experts router_scale prefill_experts prefill_beside"),
        ({"quantization": "fp8"}, "quantised_names"),
        ({"text": {"num_kv_shared_layers": 20}}, "yoco shared_kv shared_query"),
        ({"text": {"hidden_size_per_layer_input": 256}}, "ple_tail"),
        ({"enable_lora": True}, "lora"),
        ({"kv_cache_dtype": "int8_per_token_head"}, "kv_formats"),
        ({"enable_lora": True, **MTP}, "lora_mtp"),
        ({"load_format": "dummy", "enable_metrics": True}, "dummy_weights patch_metrics"),
        ({"tool_call_parser": "gemma4"}, "tool_grammar answer_parser"),
        ({"tp_size": 2}, "sharded_head"),
        ({"pp_size": 2}, "stage_layers"),
        ({"tp_size": 2, "attn_dp_size": 2}, "attention_groups"),
        ({"disaggregation_mode": "decode", **MTP}, "pd_draft"),
    ],
    ids=str,
)
def test_what_makes_a_patch_active(given: dict[str, Any], used: str, applied: dict[str, Outcome]) -> None:
    """Each of ``used`` is idle on the plain server and active on this one."""
    names = [name for name in used.split() if name in applied]
    plain = names if given else []
    patching.find_idle(server(**given))
    assert {applied[name].state for name in names} == {"active"}
    for outcome in applied.values():
        outcome.state, outcome.reason = "active", ""
    patching.find_idle(server())
    assert {applied[name].state for name in plain} <= {"idle"}
    assert all(applied[name].reason for name in plain)


def test_prompts_go_beside_running_requests_over_a_host_cache_where_that_is_asked_for(
    applied: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = server({"enable_moe_block": True}, enable_hierarchical_cache=True)
    monkeypatch.delenv(switches.BESIDE, raising=False)
    patching.find_idle(given)
    assert applied["prefill_beside"].reason == "--enable-hierarchical-cache, over which it was not measured"
    monkeypatch.setenv(switches.BESIDE, "1")
    assert uses.joined_steps(given) is None


def test_a_card_that_is_not_hopper_and_none_at_all(applied: dict[str, Outcome]) -> None:
    patching.find_idle(server(card=(8, 0)))
    assert (applied["dependent_launch"].state, applied["qkv_rope"].state) == ("idle", "active")
    assert applied["dependent_launch"].reason == "compute capability 8.0, not 9.0 or later"
    patching.find_idle(server(card=None))
    assert applied["qkv_rope"].reason == "no CUDA GPU"


def test_images_are_not_used_by_text(applied: dict[str, Outcome]) -> None:
    patching.find_idle(server())
    for name in ("image_masks", "image_padding", "batched_vision", "media_errors", "audio_padding"):
        assert applied[name].state == "idle", name


def test_a_declined_patch_says_why_once(applied: dict[str, Outcome], caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        patching.decline("swa_sizing", "--swa-full-tokens-ratio 0.5 was given")
    assert (applied["swa_sizing"].state, applied["swa_sizing"].reason) == ("declined", "--swa-full-tokens-ratio 0.5 was given")
    assert caplog.messages == ["sglang-gemma4: swa_sizing declined: --swa-full-tokens-ratio 0.5 was given"]


def test_the_log_has_the_state_that_doctor_has(
    applied: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server without a card: what it would not have used anyway is idle in the log too, and no warning."""
    monkeypatch.setattr(patching.declare, "of_this_process", lambda: server(card=None))
    caplog.set_level("INFO", logger="sglang_gemma4")
    patching.decline("few_row_linear", "there is no CUDA GPU")
    patching.takes("qkv_rope", "Triton does not run on cpu")
    patching.decline("swa_sizing", "--swa-full-tokens-ratio 0.5 was given")
    patching.takes("request_values", None)
    patching.takes("request_values", "/v1/other")
    assert [(record.levelname, record.message.removeprefix("sglang-gemma4: ")) for record in caplog.records] == [
        ("INFO", "few_row_linear idle: there is no CUDA GPU"),
        ("INFO", "qkv_rope idle: Triton does not run on cpu"),
        ("WARNING", "swa_sizing declined: --swa-full-tokens-ratio 0.5 was given"),
        ("WARNING", "request_values active, but: /v1/other"),
    ]
    shown = {each["name"]: each["state"] for each in status.as_data(list(applied.values()))}
    assert {name: shown[name] for name in ("few_row_linear", "qkv_rope", "swa_sizing", "request_values")} == {
        "few_row_linear": "idle", "qkv_rope": "idle", "swa_sizing": "declined", "request_values": "active",
    }  # fmt: skip


def test_a_server_that_cannot_be_asked_does_not_keep_a_line_out_of_the_log(
    applied: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise AttributeError("a config of nobody's")

    monkeypatch.setattr(patching.declare, "of_this_process", broken)
    patching.decline("few_row_linear", "there is no CUDA GPU")
    assert caplog.messages == ["sglang-gemma4: few_row_linear declined: there is no CUDA GPU"]


def test_without_a_server_a_patch_would_apply() -> None:
    found = status.planned([row("graphs", "active", notes=["x"]), row("pools", "declined", reason="a ratio"), row("debug", "off")])
    assert status.summary(found) == "1 would apply, 1 declined, 1 off, 0 failed"
    assert [" ".join(line.split()) for line in status.table(found)] == [
        "would apply graphs does", "not for: x", "declined pools a ratio", "off debug does",
    ]  # fmt: skip
    assert max(map(len, status.table(found, 30))) <= 48, "columns before the last, and 24 of the last"


def row(name: str, state: str, **more: Any) -> status.Row:
    return {"name": name, "switch": "S", "does": "does", "state": state, "reason": "", "notes": [], "facts": [], **more}


def test_a_server_has_one_state_a_patch() -> None:
    scheduler = [row("graphs", "active", facts=["3 graphs"]), row("pools", "declined", reason="a ratio"), row("parser", "active")]
    frontend = [row("graphs", "declined", reason="LoRA"), row("pools", "active"), row("parser", "active", notes=["/v1/responses"])]
    found = status.merged(scheduler, frontend)
    assert [(each["state"], each["reason"]) for each in found] == [("declined", "LoRA"), ("declined", "a ratio"), ("active", "")]
    assert found[2]["notes"] == ["/v1/responses"]
    assert status.merged([], frontend) == frontend, "under a data-parallel controller the scheduler tells nothing"


def test_bench_keeps_the_states_that_doctor_shows() -> None:
    scheduler = [row("graphs", "active"), row("pools", "idle", reason="no GPU")]
    frontend = [row("graphs", "declined", reason="LoRA"), row("pools", "active")]
    info = {"internal_states": [{"sglang_gemma4": {"scheduler": scheduler, "frontend": frontend}}]}
    assert patches_of(info) == {"graphs": "declined", "pools": "idle"}
    assert patches_of({"internal_states": [{}]}) == {}, "stock"


def test_doctor_asks_every_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --dp-size there is a scheduler for each, and what one declines or compiles late is said, whichever it is."""
    frontend = [row("graphs", "active"), row("pools", "active")]
    replicas = [("active", 0), ("declined", 2), ("failed", 3)]
    info = {
        "internal_states": [
            {
                "sglang_gemma4": {
                    "scheduler": [row("graphs", state), row("pools", "idle")],
                    "frontend": frontend,
                    "compiled_while_serving": late,
                }
            }
            for state, late in replicas
        ]
    }
    monkeypatch.setattr("sglang_gemma4.diagnostics.live.read", lambda *_args: json.dumps(info))
    found = doctor.live("http://h:1")
    assert {each["name"]: each["state"] for each in found["patches"]} == {"graphs": "failed", "pools": "idle"}
    assert not found["healthy"]
    assert "WARNING 5 Triton kernels were compiled while requests waited" in doctor.live_text(found)


def test_no_patch_is_active_and_declined() -> None:
    lines = status.table([row("parser", "active", notes=["/v1/responses"]), row("graphs", "idle", reason="no GPU", notes=["on cpu"])])
    assert [" ".join(line.split()) for line in lines] == ["active parser does", "not for: /v1/responses", "idle graphs no GPU"]


def test_the_banner_is_short_and_names_what_failed_first() -> None:
    many = [row(f"fact{number}", "active", facts=["x" * 900]) for number in range(20)]
    rows = [
        *many,
        row("one", "failed", reason="no such class"),
        row("two", "declined", reason="a ratio"),
        row("three", "idle"),
        row("four", "off", reason="X=0"),
    ]
    lines = status.banner(rows, ["model: M", "pools: P"], "http://h:1").splitlines()
    assert len(lines) == status.BANNER_LINES
    assert max(map(len, lines)) <= status.LINE
    assert lines[:6] == [
        "sglang-gemma4 is ready: 20 active, 1 idle, 1 declined, 1 off, 1 failed",
        "  failed: one (no such class)",
        "  declined: two (a ratio)",
        "  switched off: four",
        "  model: M",
        "  pools: P",
    ]
    assert lines[-2] == "  and 16 lines more, in doctor"
    assert lines[-1] == "  every patch: sglang-gemma4 doctor --url http://h:1; how to turn one off: docs/switches.md"
    assert len(status.banner(rows[20:], [], "u").splitlines()) == 5


def test_a_patch_that_left_every_call_is_declined_until_it_serves_one(
    applied: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def shown() -> tuple[str, str, list[str]]:
        found = next(each for each in status.as_data([applied["yoco"]]) if each["name"] == "yoco")
        assert "served" not in found
        return found["state"], found["reason"], found["notes"]

    assert shown() == ("active", "", []), "nothing has been asked of it"
    assert not patching.takes("yoco", "its batch is padded", "a prefill goes through all layers")
    assert not patching.takes("yoco", "the backend is another")
    said = ["a prefill goes through all layers: its batch is padded", "the backend is another"]
    assert shown() == ("declined", "; ".join(said), said)
    assert caplog.messages == [f"sglang-gemma4: yoco declined: {each}" for each in said]
    assert patching.takes("yoco", None)
    assert shown() == ("active", "", said)
    assert not patching.takes("yoco", "its batch is padded", "a prefill goes through all layers")
    assert shown() == ("active", "", said)
    patching.note("stop_order", "one case is left")
    assert status.as_data([applied["stop_order"]])[0]["state"] == "active", "a note alone does not say that no call was served"
    assert patching.takes("no_such_patch", None)
    assert not patching.takes("no_such_patch", "x"), "a process without the patch"


def test_a_patch_that_nothing_uses_is_idle_also_where_it_left_a_call(applied: dict[str, Outcome]) -> None:
    patching.takes("yoco", "no layer shares KV")
    patching.find_idle(server())
    assert status.as_data([applied["yoco"]])[0]["reason"] == "no layer of the model shares KV"


@pytest.mark.parametrize(("bits", "kind", "state"), [(4, "int", "active"), (8, "int", "idle"), (8, "float", "idle"), (4, "float", "idle")])
def test_what_is_for_weights_of_4_bits(bits: int, kind: str, state: str, applied: dict[str, Outcome]) -> None:
    of_experts = server({"enable_moe_block": True})
    weights = {"num_bits": bits, "type": kind}
    of_experts.config.quantization_config = {"config_groups": {"group_0": {"weights": weights}}}
    patching.find_idle(of_experts)
    assert {applied[name].state for name in ("four_bit_linear", "dense_copies", "chunk_experts")} == {state}
    assert applied["register_products"].state == "active"
