"""Prefills replay CUDA graphs of the language model, images included, up to sizes for each model."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import decline, tell

NAME, STEP = "prefill_graph", "handle_gpu_memory_settings"


def allow(original: Callable[[Any], None], server_args: Any) -> None:
    """Around ``apply_cuda_graph_compatibility``: SGLang's rule against multimodal models does not apply to Gemma 4.

    No rule changes what the operator chose by ``--disable-prefill-cuda-graph`` or ``--cuda-graph-backend-prefill``.
    """
    from sglang.srt.arg_groups.overrides import model_config_of, resolving_view
    from sglang.srt.model_executor.cuda_graph_config import Backend, Phase

    from sglang_gemma4.models.schedule import prefill_backend, prefill_graph

    given = resolving_view(server_args)
    chosen = (Phase.PREFILL, "backend") in server_args._cuda_graph_config_locked
    if chosen or given.cuda_graph_config.prefill.backend != Backend.BREAKABLE or not prefill_backend.is_ours(server_args):
        original(server_args)
        return
    problem = prefill_graph.reason_against(given)
    if problem is not None:
        decline(NAME, problem)
        prefill_backend.keep_eager(server_args)
        return
    model_config_of(server_args).is_multimodal_breakable_cuda_graph_supported = True
    original(server_args)
    if given.cuda_graph_config.prefill.backend != Backend.BREAKABLE:
        decline(NAME, "a rule of SGLang's own; its warning in the log names it")


def size_graphs(server_args: Any, previous: Callable[[Any], None]) -> None:
    """Wraps SGLang's step that sizes its memory: choose graph sizes before it, drop those beyond a chunk after it."""
    from sglang_gemma4.models.schedule import prefill_backend

    prefill_backend.choose_sizes(server_args)
    previous(server_args)
    prefill_backend.drop_sizes_beyond_a_chunk(server_args)


def list_by_layer(original: Callable[..., Any], attention_layers: list[Any], companions: list[Any], layer_model: Any = None) -> Any:
    """Around ``index_attention_layers_by_global_id``: return the lists as they are if layers share KV.

    A layer that shares KV has the id of the layer it reads from, so ids repeat. The breakable graph calls each layer's
    own attention and looks none up by id; it only needs the length of the list.
    """
    from sglang.srt.models.gemma4_causal import Gemma4TextModel

    if isinstance(layer_model, Gemma4TextModel) and getattr(layer_model.config, "num_kv_shared_layers", None):
        return attention_layers, companions
    return original(attention_layers, companions, layer_model)


def take_embeddings(runner: Any) -> None:
    """Before ``PrefillCudaGraphRunner._input_embeds_hidden_size``: size inputs for embeddings.

    The runner does so for multimodal models; here also under --language-model-only.
    """
    from sglang_gemma4.models.schedule.prefill_backend import MULTIMODAL

    if type(runner.model_runner.model).__name__ in MULTIMODAL:
        runner.is_multimodal = True


def capture_body(
    original: Callable[..., Any],
    model: Any,
    input_ids: Any,
    positions: Any,
    forward_batch: Any,
    input_embeds: Any = None,
    per_layer_inputs: Any = None,
    **kwargs: Any,
) -> Any:
    """Around ``Gemma4TextModel.forward``: a capture gets the static per-layer embeddings.

    Only a capture passes ids and embeddings at once.
    """
    if input_ids is not None and input_embeds is not None:
        from sglang_gemma4.models.schedule import prefill_graph

        inputs = prefill_graph.inputs_of(model)
        per_layer_inputs = inputs.for_capture(model, input_embeds.shape[0], input_embeds.dtype, input_embeds.device)
        input_ids = None
    return original(model, input_ids, positions, forward_batch, input_embeds, per_layer_inputs, **kwargs)


def capture_and_tell(original: Callable[[Any], None], runner: Any) -> None:
    """Capture SGLang's prefill graphs and log what they took; SGLang's own line also counts other processes' memory."""
    import time

    import torch

    torch.cuda.empty_cache()  # the capture does this first: memory cached before it must not be subtracted from what it takes
    began, before = time.perf_counter(), torch.cuda.memory_reserved()
    original(runner)
    seconds = time.perf_counter() - began
    torch.cuda.empty_cache()
    held, sizes = (torch.cuda.memory_reserved() - before) / 2**30, runner.capture_num_tokens
    tell(NAME, f"{len(sizes)} prefill graphs took {seconds:.1f} s and hold {held:.2f} GiB, for {', '.join(map(str, sizes))} tokens")


def fill_inputs(_result: None, runner: Any, _args: Any, given: dict[str, Any], tokens: int) -> None:
    """After ``PrefillCudaGraphRunner._fill_input_embeds_slot``, before a replay: copy what comes with the embeddings.

    The multimodal wrapper passes per-layer embeddings and positions.
    """
    if type(runner.layer_model).__name__ != "Gemma4TextModel":
        return
    from sglang_gemma4.models.schedule import prefill_graph

    prefill_graph.inputs_of(runner.layer_model).fill(given.get("per_layer_inputs"))
    static = runner.buffer_registry.get_slot("positions").slice_for(1, tokens)
    positions = given["positions"]
    if positions.data_ptr() != static.data_ptr():  # SGLANG_GEMMA_OUT_OF_PLACE_POSITION_MUTATION: the wrapper adds 1 to a copy
        static[: positions.shape[0]].copy_(positions)
