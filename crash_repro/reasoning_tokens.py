"""How many tokens of an answer are said to be reasoning: SGLang's scheduler counts scripted answers. Needs no GPU and no engine."""

import sys
from types import SimpleNamespace
from typing import Any

import case  # type: ignore[import-not-found]
import scripted_server  # type: ignore[import-not-found]
import tool_answers  # type: ignore[import-not-found]

TURN = "<|turn>model\n"
ANSWERS = {
    "an answer without a thought": (TURN, "Rome.", ""),
    "a thought and an answer": (TURN, "<|channel>thought\nHm.\n<channel|>Rome.", "<|channel>thought\nHm.\n<channel|>"),
    "a thought that the template opened": (TURN + "<|channel>thought\n", "Hm.\n<channel|>Rome.", "Hm.\n<channel|>"),
    "a second thought": (
        TURN,
        "<|channel>thought\nHm.\n<channel|>So.<|channel>thought\nAh.\n<channel|>Rome.",
        "<|channel>thought\nHm.\n<channel|><|channel>thought\nAh.\n<channel|>",
    ),
    "a call in a thought": (TURN, "<|channel>thought\nHm.<|tool_call>call:time{}<tool_call|>Noon.", "<|channel>thought\nHm."),
}
"""By name: the prompt's end, what the model wrote, and the thoughts in it; all requests ask for thinking."""


def scheduler() -> Any:
    """What the count needs of a scheduler: a tokenizer and the markers' ids, as SGLang finds them at the start."""
    from sglang.srt import runtime_context
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(model_path=str(scripted_server.FOLDER), device="cpu", reasoning_parser="gemma4")
    runtime_context.publish(arguments, role="scheduler")
    config = SimpleNamespace(is_generation=True, is_multimodal=False)
    made = SimpleNamespace(server_args=arguments, model_config=config, skip_tokenizer_init=False)
    Scheduler.init_tokenizer(made)  # type: ignore[arg-type]
    return made


def counted(found: Any, prompt: str, wrote: str) -> tuple[int, int]:
    """The tokens of reasoning and all tokens of an answer."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor

    def ids(text: str) -> list[int]:
        return list(found.tokenizer.encode(text, add_special_tokens=False))

    req: Any = Req.__new__(Req)
    req.origin_input_ids, req.output_ids, req.reasoning_tokens, req.require_reasoning = ids(prompt), [], 0, True
    req._is_reasoning_over, req._think_end_matcher, req._think_end_match_len = False, None, 0
    req.sampling_params = SimpleNamespace(custom_params=None)
    for token in ids(wrote):
        req.output_ids.append(token)
        SchedulerBatchResultProcessor._maybe_update_reasoning_tokens(found, req, token)
    return req.reasoning_tokens, len(ids(wrote))


def main() -> int:
    """Every answer's count."""
    tool_answers.load()
    found = scheduler()
    expected = {name: (len(found.tokenizer.encode(thought, add_special_tokens=False))) for name, (_, _, thought) in ANSWERS.items()}
    seen = {name: counted(found, prompt, wrote)[0] for name, (prompt, wrote, _) in ANSWERS.items()}
    return int(case.verdict(expected, seen))


if __name__ == "__main__":
    sys.exit(main())
