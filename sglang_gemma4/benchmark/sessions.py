"""Sessions as agents have them: one system prompt with tool declarations that all sessions share, then turns of users and of tools.

Text is in Gemma 4's own syntax, as its chat template writes it; what users ask and tools return is random words of
the vocabulary. An answer's tokens are those that the server generated, whatever they say; a tool's turn therefore
begins with a call that the model might have made, followed by its result. Every session ends with exactly as many
tokens as the workload says.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from sglang_gemma4.benchmark.workloads import ANSWER_TOKENS, SESSION_SYSTEM, Row, Workload, arrival_times

TOOL_TURNS = 0.5  # share of the turns after the first that bring a tool's result instead of a user's words
KEPT = 4  # sessions whose last turn is asked again, cold and warm (``warm_check``)
SPREAD = 2.0  # a turn has between 1 / SPREAD and SPREAD times the tokens of an average one
Encode = Callable[[str], list[int]]

_TOOLS = (
    ("search_orders", "Finds orders of a customer by text and date.", ("customer", "text", "after")),
    ("get_order", "Reads one order with its lines, prices and state.", ("order",)),
    ("cancel_order", "Cancels an order that was not sent.", ("order", "reason")),
    ("search_files", "Searches the files of a project for a pattern.", ("pattern", "folder")),
    ("read_file", "Reads lines of one file.", ("path", "first", "last")),
    ("write_file", "Writes text to a file and keeps the former one.", ("path", "text")),
    ("run_tests", "Runs the tests of a folder and returns what failed.", ("folder", "filter")),
    ("get_weather", "Gets the weather of a town for a day.", ("town", "day")),
    ("send_mail", "Sends a message to a colleague.", ("to", "subject", "text")),
    ("book_room", "Books a meeting room.", ("room", "day", "hour")),
)
_QUOTE = '<|"|>'


def declaration(name: str, what: str, parameters: Sequence[str]) -> str:
    """The declaration of one tool, as Gemma 4's chat template writes it."""
    quoted = {text: f"{_QUOTE}{text}{_QUOTE}" for text in (what, "STRING", "OBJECT", *parameters)}
    described = {parameter: f"{_QUOTE}The {parameter} that is meant.{_QUOTE}" for parameter in parameters}
    properties = ",".join(f"{parameter}:{{description:{described[parameter]},type:{quoted['STRING']}}}" for parameter in parameters)
    required = ",".join(quoted[parameter] for parameter in parameters)
    body = f"parameters:{{properties:{{{properties}}},required:[{required}],type:{quoted['OBJECT']}}}"
    return f"<|tool>declaration:{name}{{description:{quoted[what]},{body}}}<tool|>"


def system_prompt(tokens: int, words: random.Random, vocabulary: Sequence[int], encode: Encode) -> list[int]:
    """Exactly ``tokens`` ids: instructions in random words, and as many declarations as fit before them.

    Raises:
        ValueError: not even the markup fits.
    """
    start, end = encode("<bos><|turn>system\n"), encode("<turn|>\n")
    declared: list[int] = []
    for number in range(tokens):  # more than will fit
        name, what, parameters = _TOOLS[number % len(_TOOLS)]
        further = encode(declaration(name if number < len(_TOOLS) else f"{name}_{number // len(_TOOLS) + 1}", what, parameters))
        if len(start) + len(declared) + len(further) + len(end) > 0.9 * tokens:
            break
        declared += further
    left = tokens - len(start) - len(declared) - len(end)
    if left < 0:
        raise ValueError(f"a system prompt of {tokens} tokens has no room for its own markup; make sessions longer")
    return [*start, *words.choices(vocabulary, k=left), *declared, *end]


def rows(workload: Workload, seed: int, vocabulary: Sequence[int], encode: Encode) -> list[Row]:
    """The requests of one pass, in the order in which they are sent; sessions are the same at every rate.

    Closed loop: a session's turn follows the previous answer after a think time, exponential with the mean
    ``workload.think``; first turns are spread over that time. Open loop: turns arrive as a Poisson process of
    ``workload.rate`` per second, each a turn of a random session, and wait until that session's previous answer has
    arrived.

    Raises:
        ValueError: a session has too few tokens for its turns.
    """
    words, lengths = random.Random(f"words {seed}"), random.Random(f"lengths {seed}")
    system = system_prompt(min(SESSION_SYSTEM // workload.scale, workload.longest // 3), random.Random("system"), vocabulary, encode)
    every = [list(_session(workload, number, system, words, lengths, vocabulary, encode)) for number in range(workload.sessions)]
    times = random.Random(f"times {seed}")
    if workload.rate:
        order = [row for session in every for row in session]
        times.shuffle(order)
        turns = [iter(session) for session in every]  # each session's own turns stay in order
        drawn = [next(turns[row["session"]]) for row in order]
        return [{**row, "at": at, "think": 0.0} for row, at in zip(drawn, arrival_times(seed, workload.rate), strict=False)]
    for session in every:
        at = 1000 * times.uniform(0, workload.think)
        for row in session:
            row |= {"at": at, "think": times.expovariate(1 / workload.think) if row["turn"] and workload.think else 0.0}
    return sorted((row for session in every for row in session), key=lambda row: float(row["at"]))


def _session(
    workload: Workload,
    session: int,
    system: Sequence[int],
    words: random.Random,
    lengths: random.Random,
    vocabulary: Sequence[int],
    encode: Encode,
) -> Iterator[Row]:
    """The turns of one session; its last turn ends at the workload's number of tokens."""
    shares = [math.exp(lengths.uniform(-math.log(SPREAD), math.log(SPREAD))) for _ in range(workload.turns)]
    tokens = workload.longest - len(system)
    ends = [round(tokens * sum(shares[: turn + 1]) / sum(shares)) for turn in range(workload.turns)]
    before = 0
    for turn, (begin, end) in enumerate(pairwise([0, *ends])):
        drawn = int(math.exp(lengths.uniform(*map(math.log, ANSWER_TOKENS)))) // workload.scale
        answer = max(4, min(drawn, workload.output_tokens, (end - begin) // 2))
        tool = turn > 0 and lengths.random() < TOOL_TURNS
        asked = _asked(end - begin - answer, tool, turn, words, vocabulary, encode)
        ids = [*system, *asked] if turn == 0 else asked
        row = {"ids": ids, "prompt": before + len(ids), "output": answer, "session": session, "turn": turn, "shared": len(system)}
        yield row | ({"keep": True} if session < KEPT and turn == workload.turns - 1 else {})
        before += len(ids) + answer


def _asked(tokens: int, tool: bool, turn: int, words: random.Random, vocabulary: Sequence[int], encode: Encode) -> list[int]:
    """The ``tokens`` ids between two answers: a call and its result, or a user's words."""
    if tool:
        name, _, parameters = _TOOLS[words.randrange(len(_TOOLS))]
        given = ",".join(f"{parameter}:{_QUOTE}{words.randrange(1000)}{_QUOTE}" for parameter in parameters)
        start = encode(f"<|tool_call>call:{name}{{{given}}}<tool_call|><|tool_response>response:{name}{{value:{_QUOTE}")
        end = encode(f"{_QUOTE}}}<tool_response|>")
    else:
        start = encode(("<turn|>\n" if turn else "") + "<|turn>user\n")
        end = encode("<turn|>\n<|turn>model\n")
    left = tokens - len(start) - len(end)
    if left < 0 and tool:  # the turn is too short for a call: use a user's words
        return _asked(tokens, False, turn, words, vocabulary, encode)
    if left < 0:
        raise ValueError(f"a turn of {tokens} tokens has no room for its own markup; give sessions more tokens or fewer turns")
    return [*start, *words.choices(vocabulary, k=left), *end]
