"""Who ends a request that no pool can hold on an idle server: one refusal, with the message of who refused first."""

from array import array
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.managers.schedule_policy import AddReqResult

from sglang_gemma4.memory import pool_end
from sglang_gemma4.serving import image_chunks


def test_an_image_that_no_pool_holds_is_refused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first page of a prompt: the pools refuse the image, and their refusal of a prompt without room stays silent."""
    monkeypatch.setattr(pool_end, "_stands_alone", lambda *_: True)
    answered: list[str] = []
    req = SimpleNamespace(
        rid="r", prefix_len=0, host_hit_length=0, extra_key=None, output_ids=[], origin_input_ids=array("q", range(300)),
        return_logprob=False, session=None, finished=lambda: False, to_finish=None,
    )  # fmt: skip

    def abort(message: str) -> None:
        req.origin_input_ids, req.to_finish = array("q", [0]), FINISH_ABORT(message, HTTPStatus.BAD_REQUEST, "BadRequestError")

    req.set_finish_with_abort = abort
    running = SimpleNamespace(is_empty=lambda: True, reqs=[])
    scheduler = SimpleNamespace(
        chunked_req=None, waiting_queue=[req], last_batch=None, collect_inflight_reqs=lambda: set(), disagg_prefill_inflight_queue=None,
        server_args=SimpleNamespace(max_total_tokens=1024, chunked_prefill_size=64, disaggregation_mode="null", page_size=64),
        output_streamer=SimpleNamespace(stream_output=lambda reqs, _: answered.append(reqs[0].finished_reason.message)),
        _release_aborted_request=lambda _: None,
    )  # fmt: skip

    def one_pass(_scheduler: Any) -> tuple[None, Any]:
        image_chunks._wait(req, 256, 64)
        pool_end.note_refused(AddReqResult.NO_TOKEN, SimpleNamespace(prefill_delayer_single_pass=None), req)
        return None, running

    pool_end.end_a_standstill(image_chunks.refuse_what_never_fits(one_pass, scheduler), scheduler)
    assert "takes 256 tokens" in req.to_finish.message
    assert answered == []
    assert scheduler.waiting_queue == [req], "SGLang's next pass ends it with the image's message"
