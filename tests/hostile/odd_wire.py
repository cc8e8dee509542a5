"""Odd HTTP: methods, headers, content types and lengths, clients that leave, and administrative routes without a key."""

import json
from random import Random
from typing import Any

from tests.hostile.bases import ASK, BASES, CHAT, GENERATE, GENERATING, MODEL, base
from tests.hostile.exchange import Manner, Request, json_request

JSON = ("Content-Type", "application/json")
HEADERS: dict[str, tuple[tuple[str, str], ...]] = {
    "no content type": (),
    "text/plain": (("Content-Type", "text/plain"),),
    "charset odd": (("Content-Type", "application/json; charset=utf-7"),),
    "multipart": (("Content-Type", "multipart/form-data"),),
    "content type empty": (("Content-Type", ""),),
    "content type long": (("Content-Type", "application/json;" + "a=b;" * 1_000),),
    "gzip said": (JSON, ("Content-Encoding", "gzip")),
    "length 0": (JSON, ("Content-Length", "0")),
    "length -1": (JSON, ("Content-Length", "-1")),
    "length text": (JSON, ("Content-Length", "many")),
    "length huge": (JSON, ("Content-Length", "9" * 30)),
    "chunked": (JSON, ("Transfer-Encoding", "chunked")),
    "both lengths": (JSON, ("Content-Length", "5"), ("Transfer-Encoding", "chunked")),
    "header of 60 kB": (JSON, ("X-Long", "y" * 60_000)),
    "300 headers": (JSON, *((f"X-{n}", "v") for n in range(300))),
    "header odd": (JSON, ("X-\x01", "\x00\x7f")),
    "latin header": (JSON, ("X-Request-Id", "é\xff")),
    "authorization odd": (JSON, ("Authorization", "Bearer \x80"), ("Authorization", "Basic ????")),
    "host odd": (JSON, ("Host", "../../etc")),
    "expect": (JSON, ("Expect", "200-ok")),
    "upgrade": (JSON, ("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", "x"), ("Sec-WebSocket-Version", "13")),
    "data rank": (JSON, ("X-Data-Parallel-Rank", "99"), ("X-Session-Id", "s" * 2_000), ("traceparent", "00-zz-zz-zz")),
    "priority": (JSON, ("x-priority", "nan"), ("x-smg-routing-key", "\t"), ("x-override-max-new-tokens", "-1")),
}
METHODS = ("GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "FOO", "POST\x00", "P" * 500)
PATHS = (
    "/",
    "//",
    "/v1",
    "/v1/models/" + "m" * 3_000,
    "/v1/models/%00",
    "/v1/models/..%2f..%2fetc",
    "/v1/chat/completions/",
    "/v1/chat/completions?a=%ff&a=%00",
    "/\x7f",
    "*",
    "http://other/v1/models",
    "/v1/responses/x",
    "/v1/responses/%00",
    "/v1/responses/" + "r" * 3_000,
    "/v1/loads?include=zz&dp_rank=99",
    "/v1/loads?dp_rank=x&format=y",
    "/metrics?x=1",
    "/docs",
    "/openapi.json?x",
    "/v1/realtime",
    "/health?x=" + "y" * 5_000,
    "/hf/no/such",
    "/v1/files",
    "/ping",
)

ADMINISTRATIVE: dict[str, tuple[str, Any]] = {
    "start_expert_distribution_record": ("GET", None),
    "stop_expert_distribution_record": ("GET", None),
    "dump_expert_distribution_record": ("GET", None),
    "get_weights_by_name": ("POST", {"name": "no.such", "truncate_size": -5}),
    "set_trace_level?level=-7": ("GET", None),
    "set_trace_level?level=99999999999999999999": ("GET", None),
    "weights_checker": ("POST", {"action": "no-such"}),
    "update_weights_from_disk": ("POST", {"model_path": "/nonexistent"}),
    "update_weights_from_tensor": ("POST", {"serialized_named_tensors": ["AAAA"]}),
    "update_weights_from_distributed": ("POST", {"names": ["x"], "dtypes": ["y"], "shapes": [[-1]], "group_name": "none"}),
    "update_weights_from_ipc": ("POST", {"zmq_handles": {"x": "y"}}),
    "init_weights_update_group": ("POST", {"master_address": "", "master_port": -1}),
    "destroy_weights_update_group": ("POST", {"group_name": "none"}),
    "init_weights_send_group_for_remote_instance": ("POST", {"master_address": "", "ports": "x", "group_rank": -1, "world_size": -1}),
    "send_weights_to_remote_instance": ("POST", {"master_address": "", "ports": "", "group_name": "x"}),
    "remote_instance_transfer_engine_info?rank=-9": ("GET", None),
    "load_lora_adapter": ("POST", {"lora_name": "x", "lora_path": "/nonexistent"}),
    "load_lora_adapter_from_tensors": ("POST", {"lora_name": "x", "config_dict": {}, "serialized_tensors": "AAAA"}),
    "unload_lora_adapter": ("POST", {"lora_name": "none"}),
    "open_session": ("POST", {"capacity_of_str_len": -1, "session_id": ""}),
    "close_session": ("POST", {"session_id": "none"}),
    "abort_request": ("POST", {"rid": "no-such-request"}),
    "set_internal_state": ("POST", {"server_args": {"no_such": 1}}),
    "hicache/storage-backend": ("GET", None),
    "hicache/storage-backend/clear": ("POST", None),
    "get_hicache_l3_cache_layout": ("GET", None),
    "pd_role_switch": ("POST", {"role": "queen"}),
    "slow_down": ("POST", {"forward_sleep_time": "x"}),
    "scale_elastic_ep": ("POST", {}),
    "add_external_corpus": ("POST", {"corpus_id": "x", "documents": [1]}),
    "remove_external_corpus": ("POST", {"corpus_id": 5}),
    "list_external_corpora": ("GET", None),
    "freeze_gc": ("GET", None),
    "flush_cache?timeout=-1": ("POST", None),
    "flush_cache?timeout=nan": ("POST", None),
    "configure_logging": ("POST", {"log_requests_level": "loud"}),
    "update_weight_version": ("POST", {"new_version": 5}),
    "end_weight_update": ("POST", {}),
}
"""Routes that an operator uses, each with what changes nothing: none of them may end the server. Those that pause the server, release its
memory or start its profiler by right are left out, since every answer would change."""


def header(random: Random) -> Request:
    """A good body under odd headers."""
    path, name = random.choice(GENERATING), random.choice(list(HEADERS))
    body = json.dumps(base(path, random.randrange(8))).encode()
    if name == "chunked" and random.random() < 0.5:
        body = random.choice(
            (b"5\r\nab", b"zz\r\n", b"ffffffffffffffff\r\n", b"0\r\n\r\n", f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
        )
    manner: Manner = "says no more" if name in ("chunked", "both lengths", "length huge") else "patient"
    return Request(f"header {name}", path, body, headers=HEADERS[name], manner=manner)


def method(random: Random) -> Request:
    """An odd method or an odd path."""
    if random.random() < 0.5:
        name, path = random.choice(METHODS), random.choice(list(BASES))
        return Request(f"method {name[:8]!r}", path, json.dumps(base(path, 0)).encode(), method=name)
    path = random.choice(PATHS)
    return Request(f"path {path[:30]!r}", path, method=random.choice(("GET", "GET", "POST", "HEAD")))


def leaving(random: Random) -> Request:
    """A client that goes before it has its answer: while it asks, at once, or in the middle of a stream."""
    manner: Manner = random.choice(("leaves in the answer", "leaves in the answer", "leaves in the body", "leaves at once"))
    length = random.choice((3, 20, 60))
    bodies: dict[str, Any] = {
        "/v1/chat/completions": {
            **CHAT,
            "max_tokens": length,
            "min_tokens": length - 1,
            "stream": True,
            "n": random.choice((1, 1, 3)),
            "temperature": 0.7,
        },
        "/generate": {
            **GENERATE,
            "stream": True,
            "sampling_params": {"max_new_tokens": length, "ignore_eos": True, "n": random.choice((1, 1, 3))},
        },
        "/v1/completions": {
            "model": MODEL,
            "prompt": [ASK, ASK],
            "max_tokens": length,
            "stream": random.random() < 0.7,
            "ignore_eos": True,
        },
        "/v1/messages": {"model": MODEL, "max_tokens": length, "messages": [{"role": "user", "content": ASK}], "stream": True},
        "/v1/responses": {"model": MODEL, "max_output_tokens": length + 3, "input": ASK, "stream": True},
    }
    path = random.choice(list(bodies))
    return json_request(f"{manner} {length}", path, bodies[path], manner=manner)


def administrative(random: Random) -> Request:
    """A route of the operator's with what changes nothing, or with a body that is odd."""
    name = random.choice(list(ADMINISTRATIVE))
    way, body = ADMINISTRATIVE[name]
    draw = random.random()
    if body is None:
        return Request(f"route {name}", f"/{name}", method=way, headers=() if draw < 0.5 else (JSON,))
    if draw < 0.6 or name == "abort_request":  # an empty id is a prefix of all: it ends the bystander's request by right
        return json_request(f"route {name}", f"/{name}", body, method=way)
    odd = random.choice((b"", b"[]", b"5", b"null", b'"x"', b"{", json.dumps(dict.fromkeys(body)).encode()))
    return Request(f"route {name} odd", f"/{name}", odd, method=way)
