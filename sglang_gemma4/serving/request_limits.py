"""The limits on one request, as stated in docs/operating.md."""

from dataclasses import dataclass

SEQUENCES = 1024
"""Every server allows at least this many sequences (prompts times ``n``) in a request; see :func:`most_sequences`."""
TOP_LOGPROBS = 1024
"""Most log-probabilities per position, by rank or by token id."""
LOGPROBS = 2_000_000
"""Most log-probabilities of one answer, over all positions; with long contexts LOGPROBS_EACH allows more."""
LOGPROBS_EACH = 32
"""Log-probabilities that every position of the context may have: more than any OpenAI client asks for."""
BIASES = 1024
STOP_IDS = 1024
STOPS = 32
STOP_PATTERNS = 32
STOP_LENGTH = 1024
"""Most characters of a stop string: as many tokens of the answer are decoded again at each step."""
LARGEST_BIAS = 1e30
SMALLEST_REPETITION_PENALTY = 1e-6
"""Logits are divided by the penalty, and by temperatures from 1e-6: the quotient must stay finite in float32."""
LARGEST_EMBEDDING = 65504.0
"""Largest absolute value of a number in an embedding: float16's maximum. A model's own values are below 1,000."""
PARAMETER_DEPTH, PARAMETER_VALUES = 8, 10_000
PROCESSOR_LENGTH = 1 << 20
APPLY_PROCESSORS = ("DFLASH", "DSPARK", "UNO")
"""Speculative algorithms whose verify step applies a request's own logit processor, or refuses one itself."""
NAME_LENGTH = 1024
"""Most characters of an id, a key or a name."""


@dataclass(frozen=True)
class Limits:
    """The limits for requests to one server.

    Attributes:
        vocabulary: number of tokens that have an embedding.
        context: most tokens of prompt and answer together.
        hidden: width of an embedding.
        sequences: most prompts times ``n`` for a request over a connection; most ``n`` for any request.
        layer_embeddings: whether each layer has its own embedding of every token, which client embeddings lack.
        parameters: names of SGLang's sampling parameters.
        labels: names of metrics labels that a request may set.
        without_processors: the speculative algorithm, if its verify step leaves out a request's own logit processor; "" for none.
    """

    vocabulary: int
    context: int
    hidden: int
    sequences: int = SEQUENCES
    layer_embeddings: bool = False
    parameters: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    without_processors: str = ""


def most_sequences(running: int) -> int:
    """Most sequences of one request to a server that runs ``running`` requests at once: ``4 * running``, but at least SEQUENCES."""
    return max(SEQUENCES, 4 * running)
