"""Which drafts and speculative algorithms a Gemma 4 server can use, judged by config.json and the flags as typed.

Neither torch nor sglang is imported.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sglang_gemma4.diagnostics import own_draft_limits
from sglang_gemma4.diagnostics.text_geometry import TextGeometry, is_unified, text_geometry
from sglang_gemma4.models.config_files import ASSISTANTS, is_assistant, is_gemma4, read_config
from sglang_gemma4.patching import switches
from sglang_gemma4.speculative.mtp_defaults import AUTO, sibling

LENGTHS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
HIDDEN_STATES = ("enable_return_hidden_states", "return_hidden_states_mode")
FIELDS = (
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_draft_model_revision",
    *LENGTHS,
    "speculative_adaptive",
    "speculative_token_map",
    "speculative_use_rejection_sampling",
    "speculative_accept_threshold_single",
    "speculative_accept_threshold_acc",
    "download_dir",
    "attention_backend",
    *HIDDEN_STATES,
)
"""The arguments that :func:`problems` reads, besides ``model_path``."""

MTP_ALGORITHMS = ("NEXTN", "FROZEN_KV_MTP")
"""With these algorithms the draft of a Gemma 4 target is its MTP assistant; EAGLE3 and others bring their own drafts."""

OF_A_CHECKPOINT = ("EAGLE", "EAGLE3", "STANDALONE", "NEXTN")
"""Algorithms for which SGLang loads the target a second time as its draft if none is given."""

CAPTURING = ("EAGLE3", "DFLASH", "DSPARK")
"""Algorithms whose drafts read hidden states of several layers, which SGLang keeps where those for clients would be."""

UNDER_MTP = {
    "speculative_token_map": ((), "the assistant has its own vocabulary, and a map is for EAGLE drafts"),
    "speculative_use_rejection_sampling": (("False",), "MTP verifies without rejection sampling"),
    "speculative_accept_threshold_single": (("1.0", "1"), "MTP accepts only what the target would have sampled"),
    "speculative_accept_threshold_acc": (("1.0", "1"), "MTP accepts only what the target would have sampled"),
}
"""Flags that FROZEN_KV_MTP does not read: their neutral values, and why any other value has no effect."""


def problems(model: str, config: dict[str, Any], arguments: Mapping[str, Any], cpu_engine: bool = False) -> Iterator[str]:
    """What cannot work with the draft asked for ``model`` with this ``config``, on the CPU reference engine or a GPU.

    Raises:
        PreflightError: a draft's config.json is missing or cannot be read.
    """
    typed = arguments.get("speculative_algorithm")
    algorithm = typed.upper() if isinstance(typed, str) else None
    draft = arguments.get("speculative_draft_model_path")
    eagle = switches.is_on(switches.FORCE_EAGLE)  # then NEXTN is EAGLE; patches/force_eagle.py looks at its draft
    wants_mtp = algorithm in (MTP_ALGORITHMS[1:] if eagle else MTP_ALGORITHMS)
    if cpu_engine and algorithm == "NGRAM":
        yield f"--speculative-algorithm {typed}: its kernels are for GPUs, the CPU reference engine drafts by MTP; {_mtp(model)}"
    if not draft:
        if wants_mtp:
            yield (
                f"--speculative-algorithm {typed} needs Gemma 4's MTP assistant; "
                f"add --speculative-draft-model-path, for example {model.rstrip('/')}-assistant"
            )
        elif algorithm is None:
            yield from _without_a_draft(arguments)
        elif algorithm in OF_A_CHECKPOINT:
            yield f"--speculative-algorithm {typed} needs --speculative-draft-model-path: Gemma 4 has no draft in itself; {_mtp(model)}"
        return
    if draft == AUTO:  # without the patch mtp_defaults SGLang looks for a model of that name
        draft = sibling(model)
    assistant = read_config(str(draft), "assistant", arguments.get("speculative_draft_model_revision"), arguments.get("download_dir"))
    if assistant is None or (eagle and not wants_mtp):
        return
    if is_assistant(assistant):
        yield from _of_an_assistant(str(draft), model, config, assistant, arguments)
    else:
        yield from _of_another(str(draft), model, assistant, typed, wants_mtp)
        if algorithm == "DSPARK" or (algorithm in own_draft_limits.ALGORITHMS and not is_gemma4(assistant)):
            yield from own_draft_limits.problems(str(draft), assistant, algorithm, config)
        if algorithm in CAPTURING and (flag := next((name for name in HIDDEN_STATES if arguments.get(name)), None)):
            yield (
                f"--{flag.replace('_', '-')}: under {algorithm} the hidden states are those that the draft reads, and clients get other "
                "ones or none; leave it out, or draft by MTP"
            )
        if cpu_engine and arguments.get("attention_backend") != "triton":
            yield from _on_a_cpu(str(draft), model, arguments)


def _without_a_draft(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Flags of speculation that were given without a draft, where SGLang ignores them."""
    for name in (*LENGTHS, "speculative_adaptive"):
        if arguments.get(name):
            given = "" if arguments[name] is True else f" {arguments[name]}"
            yield f"--{name.replace('_', '-')}{given} without a draft is not used; add --speculative-draft-model-path auto, or leave it out"


def _mtp(model: str) -> str:
    return f"give {model.rstrip('/')}-assistant and leave the algorithm out"


def _of_an_assistant(
    draft: str, model: str, config: dict[str, Any], assistant: dict[str, Any], arguments: Mapping[str, Any]
) -> Iterator[str]:
    """What does not fit between an assistant, its target and the flags."""
    if mismatches := list(_mismatches(text_geometry(config), assistant)):
        yield f"assistant {draft} does not fit {model}: {'; '.join(mismatches)}; give the assistant that was trained with it"
    algorithm = arguments.get("speculative_algorithm")
    if algorithm is not None and str(algorithm).upper() not in ("EAGLE", *MTP_ALGORITHMS):
        yield f"--speculative-algorithm {algorithm} cannot draft with {draft}, an MTP assistant; leave --speculative-algorithm out"
    for name, (neutral, why) in UNDER_MTP.items():
        value = arguments.get(name)
        if value is not None and str(value) not in neutral:
            yield f"--{name.replace('_', '-')}{'' if value is True else f' {value}'}: {why}; leave the flag out"


def _of_another(draft: str, model: str, found: dict[str, Any], algorithm: Any, wants_mtp: bool) -> Iterator[str]:
    """What cannot work with a draft that is not an MTP assistant."""
    named = ", ".join(found.get("architectures") or []) or "of no architecture"
    if wants_mtp:
        yield f"{draft} is {named}, not {' or '.join(ASSISTANTS)}; give the assistant that was trained with {model}"
    if algorithm is None:
        yield (
            f"--speculative-draft-model-path {draft} is {named}, no MTP assistant, and would not be used without --speculative-algorithm; "
            f"name the algorithm that it was trained for, or give {model.rstrip('/')}-assistant"
        )
    elif str(algorithm).upper() in ("EAGLE", "EAGLE3") and is_gemma4(found):
        yield (
            f"{draft} is {named}, a whole model, and --speculative-algorithm {algorithm} needs a draft trained for it; "
            f"give that, or {model.rstrip('/')}-assistant"
        )


def _on_a_cpu(draft: str, model: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    """What the attention of the CPU reference engine cannot draft with."""
    algorithm, topk = arguments.get("speculative_algorithm"), arguments.get("speculative_eagle_topk")
    if str(algorithm).upper() in ("STANDALONE", "NEXTN"):
        yield f"--speculative-algorithm {algorithm} with {draft}: the CPU reference engine drafts by MTP; {_mtp(model)}"
    elif str(algorithm).upper() in ("EAGLE", "EAGLE3") and topk not in (None, 1):
        yield f"--speculative-eagle-topk {topk}: the CPU reference engine drafts chains with {algorithm}; use --speculative-eagle-topk 1"
    if arguments.get("speculative_use_rejection_sampling"):
        yield "--speculative-use-rejection-sampling: its kernels are for GPUs, the CPU reference engine has none; leave the flag out"


def _mismatches(target: TextGeometry, assistant: dict[str, Any]) -> Iterator[str]:
    draft = text_geometry(assistant)
    backbone = assistant.get("backbone_hidden_size", 3840 if is_unified(assistant) else 1536)
    if backbone != target.hidden_size:
        yield f"its backbone_hidden_size is {backbone}, the model's hidden_size {target.hidden_size}"
    if draft.vocab_size != target.vocab_size:
        yield f"its vocabulary has {draft.vocab_size} tokens, the model's {target.vocab_size}"
    for layer_type, geometry in draft.layers.items():
        owner = target.layers.get(layer_type)
        if owner is None:
            yield f"it has {layer_type} layers, the model has none whose KV they could read"
        elif owner != geometry:
            yield (
                f"its {layer_type} layers read {geometry.kv_heads} KV heads of {geometry.head_dim}, "
                f"the model's have {owner.kv_heads} of {owner.head_dim}"
            )
        elif target.last_types and layer_type not in target.last_types:  # gemma4_mtp.py:182
            yield f"its {layer_type} layers read the model's last two layers, which are {' and '.join(target.last_types)}"
    if "sliding_attention" in draft.layers and draft.sliding_window > target.sliding_window:
        # The target frees the slots of keys behind its own window, and other requests reuse them.
        yield f"its sliding window is {draft.sliding_window} tokens, the model keeps the KV of {target.sliding_window}"
    centroids = assistant.get("num_centroids")
    if assistant.get("use_ordered_embeddings") and centroids and draft.vocab_size % centroids:  # gemma4_mtp.py:116
        yield f"its {centroids} centroids do not divide its vocabulary of {draft.vocab_size} tokens"
