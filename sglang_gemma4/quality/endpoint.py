"""A running SGLang server over HTTP: its model, its settings, its native endpoints."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import requests

ANSWER_SECONDS = 3600
"""Time limit of one request, in seconds; the CPU engine is slow."""
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
"""The server arguments that are recorded with the answers."""


@dataclass(frozen=True)
class Endpoint:
    """One server; ``url`` has no ``/v1``."""

    url: str
    api_key: str | None = None

    @classmethod
    def at(cls, url: str, api_key: str | None) -> "Endpoint":
        """The endpoint of a URL as typed: the scheme may be missing, and a ``/v1`` at the end is dropped."""
        base = url if "://" in url else f"http://{url}"
        return cls(base.rstrip("/").removesuffix("/v1"), api_key)

    def get(self, path: str) -> Any:
        """The JSON answer of a GET."""
        return self._send("GET", path, PROBE_SECONDS)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer of a POST."""
        return self._send("POST", path, ANSWER_SECONDS, json=body)

    def _send(self, method: str, path: str, seconds: float, **body: Any) -> Any:
        """Send one request and return its JSON answer; ValueError if nothing answers, the server refuses, or it is not JSON."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            answer = requests.request(method, self.url + path, headers=headers, timeout=seconds, **body)
            answer.raise_for_status()
            return answer.json()
        except requests.HTTPError as error:
            code, said = error.response.status_code, error.response.text[:300]
            hint = "give its key with --api-key" if code in (401, 403) else f"it says {said!r}; is it an SGLang server?"
            raise ValueError(f"{self.url}{path} answers {code} {error.response.reason}: {hint}") from error
        except (OSError, ValueError) as error:
            raise ValueError(f"no SGLang server answers at {self.url}{path} ({error}); check --url, or wait until it is up") from error

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
        """Versions, settings and the state of each patch; ``patches`` is empty on a server without this package or its report."""
        info, state = self._state()
        ours = state.get("sglang_gemma4") or {}
        rows = ours.get("scheduler", [])
        settings = {name: state.get(name, info.get(name)) for name in SETTINGS}
        settings["speculative_draft_model_path"] = short(settings["speculative_draft_model_path"])
        return {
            "sglang": info.get("version"),
            "sglang_gemma4": ours.get("version"),
            "patches": {row["name"]: row["state"] for row in rows},
            "settings": settings,
        }

    def accept_length(self) -> float | None:
        """The server's mean over all its verify steps so far; None without speculative decoding or before the first."""
        value = self._state()[1].get("avg_spec_accept_length")
        return None if value is None else float(value)

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The server's report, and the part of its first scheduler."""
        info = self.get("/server_info")
        return info, (info.get("internal_states") or [{}])[0]


def short(name: str | None) -> str | None:
    """The directory name of a local checkpoint, a hub name unchanged, so that result files contain no local paths."""
    return PurePosixPath(name).name if name and name.startswith("/") else name
