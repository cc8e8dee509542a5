"""The limits on one request, as docs/operating.md states them."""

from dataclasses import dataclass

SEQUENCES = 1024
"""Fewest sequences (prompts times ``n``) that a request may ask a server for; see :func:`most_sequences`."""
TOP_LOGPROBS = 1024
"""Most log-probabilities of a position, by rank or by token id."""
LOGPROBS = 2_000_000
"""Log-probabilities of one answer, all its positions together; on long contexts LOGPROBS_EACH allows more."""
LOGPROBS_EACH = 32
"""That every position of the context may have: more than any OpenAI client asks for."""
BIASES = 1024
STOP_IDS = 1024
STOPS = 32
STOP_PATTERNS = 32
STOP_LENGTH = 1024
"""Characters of a stop string: so many tokens of the answer are decoded again at each step."""
LARGEST_BIAS = 1e30
SMALLEST_REPETITION_PENALTY = 1e-6
"""Logits are divided by it, and by temperatures from 1e-6: the quotient must stay finite in float32."""
LARGEST_EMBEDDING = 65504.0
"""Of one number: what float16 holds; a model's own are below 1,000."""
PARAMETER_DEPTH, PARAMETER_VALUES = 8, 10_000
PROCESSOR_LENGTH = 1 << 20
NAME_LENGTH = 1024
"""Characters of an id, a key or a name."""


@dataclass(frozen=True)
class Limits:
    """What a server's requests are judged by.

    Attributes:
        vocabulary: tokens that have an embedding.
        context: tokens of prompt and answer.
        hidden: width of an embedding.
        sequences: most prompts times ``n`` of a request that came over a connection; most ``n`` of any.
        layer_embeddings: each layer has an embedding of its own of every token, which none that a client sends has.
        parameters: names of SGLang's sampling parameters.
        labels: names of metrics' labels that a request may set.
    """

    vocabulary: int
    context: int
    hidden: int
    sequences: int = SEQUENCES
    layer_embeddings: bool = False
    parameters: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()


def most_sequences(running: int) -> int:
    """Most sequences of one request to a server that runs ``running`` at once: four times as many, and no fewer than SEQUENCES."""
    return max(SEQUENCES, 4 * running)
