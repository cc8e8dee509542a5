"""Which EAGLE-3, DFlash and DSpark drafts fit a Gemma 4 target, judged by both config.json files.

SGLang notices most mismatches at the first prompt, or not at all. Neither torch nor sglang is imported.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sglang_gemma4.models.config_files import DSPARK

ALGORITHMS = ("EAGLE", "EAGLE3", "DFLASH", "DSPARK")
PLAIN_LAYERS = {"enable_moe_block": "layers of experts", "hidden_size_per_layer_input": "per-layer embeddings"}
"""What DSpark's layers are without, though a Gemma 4 target may have it."""
DEEPSPEC = "give a draft of DeepSpec's layout, whose config.json has architectures Gemma4DSparkModel"


def problems(draft: str, found: Mapping[str, Any], algorithm: str, target: Mapping[str, Any]) -> Iterator[str]:
    """What does not fit between a draft's config, the algorithm it is used with and its target's config, one line each."""
    names = [str(name) for name in found.get("architectures") or []]
    text: Mapping[str, Any] = target.get("text_config") or target
    kinds = [kind for kind in reversed(ALGORITHMS) if any(kind.lower() in name.lower() for name in names)]
    if kinds and algorithm != kinds[0]:
        yield f"{draft} is {', '.join(names)}: --speculative-algorithm {algorithm} cannot draft with it; name {kinds[0]} instead"
    elif algorithm == "DFLASH":
        yield from _dflash(draft, found, text)
    elif algorithm == "EAGLE3":
        yield from _eagle3(draft, found, text)
    elif algorithm == "DSPARK":
        yield from _dspark(draft, found, text)


def _dflash(draft: str, found: Mapping[str, Any], text: Mapping[str, Any]) -> Iterator[str]:
    """Check a DFlash draft. It borrows the target's embeddings and head, so hidden size and vocabulary must be the target's."""
    own = found.get("dflash_config") or {}
    yield from _width(draft, found.get("hidden_size"), text)
    read = own.get("target_layer_ids", found.get("target_layer_ids"))
    yield from _layers(draft, "target_layer_ids", read, text, least=0)
    yield from _mask(draft, own.get("mask_token_id"), text)


def _dspark(draft: str, found: Mapping[str, Any], text: Mapping[str, Any]) -> Iterator[str]:
    """Check a DSpark draft. Of the layouts that are published for Gemma 4 only DeepSpec's can be loaded."""
    if found.get("speculators_model_type"):
        yield (
            f"{draft} has the speculators library's layout, which SGLang does not read: settings under transformer_layer_config, and "
            f"mostly a shorter vocabulary; {DEEPSPEC}"
        )
        return
    if DSPARK not in (found.get("architectures") or []):
        named = ", ".join(found.get("architectures") or []) or "of no architecture"
        yield f"{draft} is {named}, which cannot draft for Gemma 4 by DSPARK; {DEEPSPEC}"
        return
    yield from _width(draft, found.get("hidden_size"), text)
    yield from _layers(draft, "target_layer_ids", found.get("target_layer_ids"), text, least=0)
    yield from _mask(draft, found.get("mask_token_id"), text)
    if (wanted := text.get("vocab_size")) is not None and found.get("vocab_size", wanted) != wanted:
        yield f"{draft} has {found['vocab_size']} tokens, the model {wanted}; give a draft that was trained for it"
    for name, what in PLAIN_LAYERS.items():
        if found.get(name):
            yield f"{draft} has {what} ({name}), which no DSpark draft of DeepSpec has; {DEEPSPEC}"
    if other := set(found.get("layer_types") or ()) - {"full_attention"}:
        yield f"{draft} has layers of {', '.join(sorted(other))}; DSpark drafts with full_attention alone are served: {DEEPSPEC}"


def _eagle3(draft: str, found: Mapping[str, Any], text: Mapping[str, Any]) -> Iterator[str]:
    """Check an EAGLE-3 draft. It reads the concatenated hidden states of three or more layers of the target."""
    yield from _width(draft, found.get("target_hidden_size", found.get("hidden_size")), text)
    name = "eagle_aux_hidden_state_layer_ids"
    read = (found.get("eagle_config") or {}).get(name)
    yield from _layers(draft, name, read, text, least=-1)
    layers = text.get("num_hidden_layers")
    if read is None and layers is not None and len({2, layers // 2, layers - 3}) < 3:
        yield f"{draft} names no {name}, and SGLang's three are not different ones of {layers} layers; name them in its config.json"


def _width(draft: str, hidden: Any, text: Mapping[str, Any]) -> Iterator[str]:
    wanted = text.get("hidden_size")
    if hidden is not None and wanted is not None and hidden != wanted:
        yield f"{draft} reads hidden states of {hidden} numbers, the model's have {wanted}; give a draft that was trained for it"


def _mask(draft: str, mask: int | None, text: Mapping[str, Any]) -> Iterator[str]:
    vocabulary = text.get("vocab_size")
    if mask is not None and vocabulary is not None and not 0 <= mask < vocabulary:
        yield f"{draft} masks with token {mask}, and the model has tokens 0 to {vocabulary - 1}; give a draft that was trained for it"


def _layers(draft: str, name: str, read: Sequence[int] | None, text: Mapping[str, Any], least: int) -> Iterator[str]:
    layers = text.get("num_hidden_layers")
    if not read or layers is None:
        return
    if wrong := [each for each in read if not least <= each < layers]:
        yield f"{draft}: {name} has {wrong[0]}, and the model has layers 0 to {layers - 1}; give a draft that was trained for it"
    elif len(set(read)) < len(read):
        yield f"{draft}: {name} names a layer twice, which SGLang captures once; give a config.json with different layers"
