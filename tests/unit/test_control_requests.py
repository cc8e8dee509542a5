"""Administrative requests: which are refused before the scheduler sees them, and how a handler that raises is answered."""

import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4.diagnostics import open_server
from sglang_gemma4.serving import control_guard, control_values, hidden_keys, session_turns, stop_patterns, weight_groups
from sglang_gemma4.serving.control_values import ServerState

STATE = ServerState(watchdog_seconds=300, memory_saver=True, records_experts=True, has_card=False, released=frozenset({"weights"}))


def asked(kind: str, **fields: Any) -> Any:
    """A request of one of SGLang's types."""
    from sglang.srt.managers import io_struct

    return getattr(io_struct, kind)(**fields)


@pytest.mark.parametrize(
    ("request_", "state", "said"),
    [
        (("SlowDownReqInput", {"forward_sleep_time": 1e300}), {}, "1e+300 s are more than 60 s"),
        (("SlowDownReqInput", {"forward_sleep_time": 20.0}), {"watchdog_seconds": 30}, "20 s are more than 15 s"),
        (("SlowDownReqInput", {"forward_sleep_time": 60.0}), {}, None),
        (("SlowDownReqInput", {"forward_sleep_time": None}), {}, None),
        (("ReleaseMemoryOccupationReqInput", {}), {"memory_saver": False}, "start it with --enable-memory-saver"),
        (("ReleaseMemoryOccupationReqInput", {"tags": ["x"]}), {}, "tags: 'x' is none of kv_cache"),
        (("ReleaseMemoryOccupationReqInput", {}), {}, "tags: weights released already"),
        (("ReleaseMemoryOccupationReqInput", {"tags": ["kv_cache"]}), {}, None),
        (("ResumeMemoryOccupationReqInput", {}), {}, "tags: kv_cache, cuda_graph not released"),
        (("ResumeMemoryOccupationReqInput", {"tags": ["weights"]}), {}, None),
        (("ProfileReq", {"num_steps": 0}), {}, "num_steps: 0 is below 1"),
        (("ProfileReq", {"activities": ["x"]}), {}, "activities: 'x' is none of CPU"),
        (("ProfileReq", {"activities": ["MEM"]}), {}, "activities: MEM needs a CUDA GPU"),
        (("ProfileReq", {"activities": ["RPD"]}), {}, "rpdTracerControl"),
        (("ProfileReq", {"profile_id": "../x"}), {}, "profile_id: '../x' is no part of a file's name"),
        (("ProfileReq", {"output_dir": "/proc/x"}), {}, "output_dir: '/proc/x' cannot be made"),
        (("CloseSessionReqInput", {"session_id": "x"}), {}, None),
    ],
)
def test_what_is_refused(request_: tuple[str, dict[str, Any]], state: dict[str, Any], said: str | None) -> None:
    found = control_values.refusal(asked(request_[0], **request_[1]), ServerState(**{**vars(STATE), **state}))
    assert (found is None) is (said is None)
    assert said is None or said in str(found)


def test_a_profile_whose_folder_can_be_made_and_one_that_ends(tmp_path: Path) -> None:
    from sglang.srt.managers.io_struct import ProfileReqType

    assert (
        control_values.refusal(asked("ProfileReq", output_dir=str(tmp_path / "a/b"), activities=["CPU", "GPU"], num_steps=3), STATE) is None
    )
    assert control_values.refusal(asked("ProfileReq", req_type=ProfileReqType.STOP_PROFILE, output_dir="/proc/x"), STATE) is None


def test_a_group_that_cannot_be() -> None:
    join = {"master_address": "127.0.0.1", "world_size": 2, "group_name": "g", "rank_offset": 1, "master_port": 9}
    assert control_values.refusal(asked("InitWeightsUpdateGroupReqInput", **join), STATE) is None, "members may begin in any order"
    assert control_values.refusal(asked("InitWeightsUpdateGroupReqInput", **{**join, "world_size": 0}), STATE)


def test_a_group_whose_members_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.utils.common import init_custom_process_group
    from torch.distributed import distributed_c10d

    monkeypatch.setattr(weight_groups, "SECONDS_TO_MEET", 1.0)
    usual, started = distributed_c10d.rendezvous, time.monotonic()
    with pytest.raises(Exception, match=r"(?i)timed? ?out"):
        weight_groups.join_in_time(
            init_custom_process_group, backend="gloo", init_method="tcp://127.0.0.1:0", world_size=2, rank=0, group_name="g"
        )
    assert time.monotonic() - started < 30
    assert distributed_c10d.rendezvous is usual


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"log_level": "xx"}, "log_level: 'xx'"),
        ({"log_requests_level": 4}, "log_requests_level: 4"),
        ({"log_requests_format": "xml"}, "log_requests_format: 'xml'"),
        ({"dump_requests_threshold": 0}, "dump_requests_threshold: 0"),
        ({"log_level": "info", "log_requests_level": 3, "log_requests_format": "json", "dump_requests_threshold": 1}, None),
    ],
)
def test_options_of_logging(fields: dict[str, Any], said: str | None) -> None:
    found = control_values.logging_refusal(asked("ConfigureLoggingReq", **fields))
    assert (said is None and found is None) or (said is not None and str(found).startswith(said))


def test_a_handler_that_raises_is_answered_with_its_error() -> None:
    """Every type that the tokenizer waits for; what has no field for an error is raised there."""

    def fail(_request: Any) -> None:
        raise KeyError("group")

    waits = ["SlowDownReqInput", "ExpertDistributionReq", "GetWeightsByNameReqInput", "GetInternalStateReq", "SetInternalStateReq"]
    waits += ["ProfileReq", "LoadLoRAAdapterReqInput", "UpdateWeightFromDiskReqInput", "CheckWeightsReqInput", "OpenSessionReqInput"]
    for name in waits:
        answer = control_guard.guarded(name, fail)(None)
        assert answer is not None, name
        if hasattr(answer, "success"):
            assert answer.success is False
            control_guard.raise_failures([answer])
        else:
            with pytest.raises(control_guard.RefusedError, match="KeyError: 'group'") as raised:
                control_guard.raise_failures([answer])
            assert raised.value.status_code == 400
    for name in ("FreezeGCReq", "AbortReq", "PauseGenerationReqInput", "CloseSessionReqInput"):
        assert control_guard.guarded(name, fail)(None) is None


def test_which_handlers_are_guarded() -> None:
    from sglang.srt.managers import io_struct

    handlers: dict[type, Any] = dict.fromkeys((io_struct.TokenizedGenerateReqInput, io_struct.ShutdownReq, io_struct.ProfileReq), len)
    control_guard.guard_all(handlers)
    assert [kind.__name__ for kind, handler in handlers.items() if handler is not len] == ["ProfileReq"]


@pytest.mark.parametrize(
    ("host", "keys", "is_open"),
    [
        ("127.0.0.1", (False, False), False),
        ("localhost", (False, False), False),
        ("::1", (False, False), False),
        (None, (False, False), False),
        ("0.0.0.0", (False, False), True),
        ("::", (False, False), True),
        ("gemma.example.org", (False, False), True),
        ("0.0.0.0", (True, False), False),
        ("0.0.0.0", (False, True), False),
    ],
)
def test_an_open_server(host: str | None, keys: tuple[bool, bool], is_open: bool) -> None:
    said = open_server.reason_against(host, 30000, *keys)
    assert (said is not None) is is_open
    assert said is None or ("--admin-api-key" in said and "--api-key" in said and f"{host}:30000" in said)


def test_keys_are_not_told() -> None:
    told = {"api_key": None, "admin_api_key": "s3", "port": 1, "launch_command": "x --admin-api-key s3 --port 1", "states": [{"a": "s3 b"}]}
    hidden = {"admin_api_key": "(set)", "launch_command": "x --admin-api-key (set) --port 1", "states": [{"a": "(set) b"}]}
    assert hidden_keys.hide_keys(told) == {**told, **hidden}
    assert hidden_keys.hide_keys({"admin_api_key": "s3", "c": "--admin-api-key='s3'"})["c"] == "--admin-api-key=(set)"
    assert hidden_keys.hide_keys({"api_key": None, "c": ["x"]}) == {"api_key": None, "c": ["x"]}


def test_a_search_is_interrupted_and_the_alarm_is_as_before() -> None:
    before = signal.getsignal(signal.SIGALRM)
    started = time.monotonic()
    with pytest.raises(stop_patterns.OutOfTimeError), stop_patterns.limited(0.05):
        re.search("(a+)+$", "a" * 60 + "b")
    assert time.monotonic() - started < 60, "the search alone would take years"
    with stop_patterns.limited(60.0):
        assert re.search("a+$", "aaa")
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def patterns(*given: str) -> Any:
    return SimpleNamespace(rid="r", finished_reason=None, sampling_params=SimpleNamespace(stop_regex_strs=list(given)))


def test_a_request_whose_patterns_take_too_long_ends_with_a_400() -> None:
    slow = patterns("(a+)+$")
    assert stop_patterns.check_in_time(lambda _req: bool(re.search("(a+)+$", "a" * 60 + "b")), slow)
    assert slow.finished_reason.status_code == 400
    assert "stop_regex: '(a+)+$' took more than 50 ms at one token" in slow.finished_reason.message

    def finds_nothing(_req: Any) -> bool:
        ends = time.thread_time() + 0.03
        while time.thread_time() < ends:
            pass
        return False

    often = patterns("a")
    for _ in range(30):
        ended = stop_patterns.check_in_time(finds_nothing, often)
    assert ended
    assert "more than 0.5 s in all" in often.finished_reason.message
    quick = patterns("a")

    def waits(_req: Any) -> bool:
        time.sleep(0.1)
        return False

    for _ in range(8):  # a busy machine gives the time to others
        assert not stop_patterns.check_in_time(waits, quick)
    assert stop_patterns.check_in_time(lambda _req: True, quick)
    assert quick.finished_reason is None


def test_a_turn_that_replaces_all_others() -> None:
    from sglang.srt.session.session_controller import SessionReqNode

    def node(rid: str, nodes: dict[str, Any], parent: Any = None) -> Any:
        nodes[rid] = SessionReqNode(SimpleNamespace(rid=rid, finished_reason=True), parent)
        return nodes[rid]

    nodes: dict[str, Any] = {}
    node("child", nodes, node("parent", nodes))
    node("other", nodes)
    session = SimpleNamespace(streaming=False, req_nodes=nodes)
    session_turns.clear_all(session, SimpleNamespace(session_params=SimpleNamespace(replace=True, rid="other")))
    assert len(nodes) == 3
    session_turns.clear_all(session, SimpleNamespace(session_params=SimpleNamespace(replace=True, rid=None)))
    assert nodes == {}
