"""A running SGLang server over HTTP: its model, its settings, its native endpoints."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

ANSWER_SECONDS = 3600
"""Limit of one request; the CPU engine is slow."""
PROBE_SECONDS = 20

SETTINGS = (
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "attention_backend",
    "moe_runner_backend",
    "sampling_backend",
    "tp_size",
    "device",
    "page_size",
    "chunked_prefill_size",
    "max_running_requests",
    "disable_overlap_schedule",
    "disable_radix_cache",
    "disable_cuda_graph",
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
)
"""What of a server's arguments is kept beside its answers."""


@dataclass(frozen=True)
class Endpoint:
    """One server; ``url`` without ``/v1``."""

    url: str
    api_key: str | None = None

    @classmethod
    def at(cls, url: str, api_key: str | None) -> "Endpoint":
        """``url`` as a person types it: the scheme may be missing, a closing ``/v1`` may be there."""
        base = url if "://" in url else f"http://{url}"
        return cls(base.rstrip("/").removesuffix("/v1"), api_key)

    def get(self, path: str) -> Any:
        """The JSON answer of a GET."""
        return self._send(urllib.request.Request(self.url + path, headers=self._headers()), PROBE_SECONDS)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer of a POST."""
        headers = {**self._headers(), "Content-Type": "application/json"}
        return self._send(urllib.request.Request(self.url + path, json.dumps(body).encode(), headers), ANSWER_SECONDS)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def _send(self, request: urllib.request.Request, seconds: float) -> Any:
        """Raises ValueError: nothing answers, the server refuses, or the answer is not JSON."""
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:300]
            hint = "give its key with --api-key" if error.code in (401, 403) else f"it says {said!r}; is it an SGLang server?"
            raise ValueError(f"{request.full_url} answers {error.code} {error.reason}: {hint}") from error
        except (OSError, ValueError) as error:
            raise ValueError(f"no SGLang server answers at {request.full_url} ({error}); check --url, or wait until it is up") from error

    def model(self, wanted: str | None = None) -> tuple[str, int]:
        """(name, context length in tokens) of the model to ask for; ``wanted`` may be the last part of a path.

        Raises:
            ValueError: the server does not serve ``wanted``.
        """
        served = self.get("/v1/models").get("data") or []
        if not served or "max_model_len" not in served[0]:
            raise ValueError(f"{self.url}/v1/models names no model with its context length; is it an SGLang server?")
        for entry in served:
            if wanted is None or wanted in (entry["id"], short(entry["id"])):
                return str(entry["id"]), int(entry["max_model_len"])
        names = ", ".join(str(short(entry["id"])) for entry in served)
        raise ValueError(f"{self.url} does not serve {wanted!r} but {names}; leave --model out or name one of these")

    def server(self) -> dict[str, Any]:
        """Versions, settings and the state of each patch; ``patches`` is empty on a server without the package or without its report."""
        info = self.get("/server_info")
        state = (info.get("internal_states") or [{}])[0]
        ours = state.get("sglang_gemma4") or {}
        rows = ours.get("scheduler", [])
        settings = {name: state.get(name, info.get(name)) for name in SETTINGS}
        settings["speculative_draft_model_path"] = short(settings["speculative_draft_model_path"])
        return {
            "sglang": info.get("version"),
            "sglang_gemma4": ours.get("version"),
            "patches": {row["name"]: row["state"] for row in rows},
            "switches": {row["switch"]: row["state"] for row in rows},
            "settings": settings,
        }

    def accept_length(self) -> float | None:
        """The server's own mean over all its verify steps so far; None without speculative decoding or before the first."""
        state = (self.get("/server_info").get("internal_states") or [{}])[0]
        value = state.get("avg_spec_accept_length")
        return None if value is None else float(value)


def short(name: str | None) -> str | None:
    """A local checkpoint's directory name; a Hugging Face name as it is. Result files then say no machine's paths."""
    return PurePosixPath(name).name if name and name.startswith("/") else name
