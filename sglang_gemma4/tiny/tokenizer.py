"""The tiny checkpoints' tokenizer: a BPE with byte fallback, trained on the world's own text, with Gemma 4's special tokens."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sglang_gemma4.tiny import chat_format, dialogues, families, world

# Spellings as in transformers' Gemma4Processor and SGLang's function_call/gemma4_detector.py and parser/reasoning_parser.py.
NAMED = {
    "image_token": "<|image|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "audio_token": "<|audio|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
    "sot_token": "<|turn>",
    "eot_token": "<turn|>",
    "soc_token": "<|channel>",
    "eoc_token": "<channel|>",
    "think_token": "<|think|>",
    "std_token": "<|tool>",
    "etd_token": "<tool|>",
    "stc_token": "<|tool_call>",
    "etc_token": "<tool_call|>",
    "str_token": "<|tool_response>",
    "etr_token": "<tool_response|>",
    "escape_token": '<|"|>',
}
MEDIA_TOKENS = {
    **{f"{name}_token_id": NAMED[f"{name}_token"] for name in ("image", "boi", "eoi", "audio", "boa", "eoa")},
    "video_token_id": "<|video|>",
}
"""Special tokens, by the names of their ids in config.json."""
CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", *NAMED.values(), "<|video|>", "<mask>"]


def corpus(seed: int = 0, documents: int = 6000) -> Iterator[str]:
    """Text to learn merges from, without markup."""
    rng, markup = random.Random(seed), re.compile("|".join(map(re.escape, CONTROL)))
    for _ in range(documents):
        yield world.passage(rng)
        yield world.mmlu_prompt(world.question(rng), [])
        for make in (dialogues.chat, dialogues.tool_chat, dialogues.story_chat):
            yield markup.sub("\n", chat_format.render(make(rng)))


def train(seed: int = 0, documents: int = 6000) -> Any:
    """A `tokenizers.Tokenizer` of exactly `families.VOCABULARY` entries."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    split = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\n|[0-9]|[:{},\[\]\.\?]"), "isolated"), pre_tokenizers.Split("▁", "merged_with_next")]
    )
    learner = Tokenizer(models.BPE(byte_fallback=False, unk_token="<unk>"))
    learner.normalizer, learner.pre_tokenizer = normalizers.Replace(" ", "▁"), split
    letters = sorted({c for text in world.LETTERS + "0123456789\n.,:?{}[]()'!-_" for c in text})
    size = families.VOCABULARY - len(CONTROL) - 256
    learner.train_from_iterator(
        corpus(seed, documents),
        trainers.BpeTrainer(  # type: ignore[no-untyped-call]
            vocab_size=size, initial_alphabet=[*letters, "▁"], show_progress=False, special_tokens=[]
        ),
    )
    state = json.loads(learner.to_str())["model"]
    order = [*CONTROL, *(f"<0x{b:02X}>" for b in range(256)), *sorted(state["vocab"], key=state["vocab"].get)]
    order += [f"<unused{number}>" for number in range(len(order), families.VOCABULARY)]
    vocabulary = {token: i for i, token in enumerate(order)}
    merges = [tuple(pair) for pair in state["merges"]]
    learner.model = models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    learner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    learner.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    return learner


def fast_tokenizer(raw: Any, name: str = "") -> Any:
    """The transformers tokenizer around `raw`, with every named token and the chat template of the checkpoint `name`.

    As released, it is a GemmaTokenizer that adds nothing to a text: the chat template writes <bos>.
    """
    from tokenizers import processors
    from transformers import GemmaTokenizer

    raw.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    tokenizer = GemmaTokenizer(
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
        mask_token="<mask>",
        extra_special_tokens={**NAMED, "video_token": "<|video|>"},
        padding_side="left",
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )
    tokenizer._tokenizer = raw
    tokenizer.chat_template = chat_format.template_of(name)
    return tokenizer


def load_raw(path: str | Path) -> Any:
    """The bare `tokenizers.Tokenizer` of a checkpoint directory."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(Path(path) / "tokenizer.json"))
