"""Images, videos and sounds: from a message to features."""

from functools import partial

from sglang_gemma4.patching import Part, Seam, uses
from sglang_gemma4.serving.media import image_transport, processors, request_media

UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
MODEL = "sglang.srt.models.gemma4_mm.Gemma4ForConditionalGeneration"
COMMON = "sglang.srt.utils.common"
PROCESSOR = "sglang.srt.multimodal.processors.gemma4.Gemma4SGLangProcessor"
OPENAI = "sglang.srt.entrypoints.openai"
CHAT = f"{OPENAI}.serving_chat.OpenAIServingChat"
ANTHROPIC = "sglang.srt.entrypoints.anthropic.serving.AnthropicServing"
PROCESSORS = "sglang.srt.multimodal.processors"
MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
BASE = "sglang.srt.multimodal.processors.base_processor.BaseMultimodalProcessor"

PARTS = (
    Part(
        name="image_cache",
        does="After a weight update images and audio are encoded again.",
        switch="SGLANG_GEMMA4_WEIGHT_UPDATES",
        why="Stock keeps the embeddings of images and audio across a weight update. The same image is then answered from the old tower's "
        "features.",
        evidence="srt/managers/scheduler_components/weight_updater.py:122 · srt/managers/scheduler.py:5518 (flush_cache) · "
        "srt/managers/mm_schedule.py:383 · crash_repro/image_cache_update.py",
        remove_when="SGLang's flush after a weight update clears mm_schedule.embedding_cache.",
        uses=(uses.media,),
    ),
    Part(
        name="image_padding",
        does="An image's padding patches stay out of its first soft token.",
        switch="SGLANG_GEMMA4_MEDIA_FIXES",
        why="Stock pools the patches that only fill an image up to its budget into the image's first soft token; transformers zeroes "
        "them. On tiny-e2b that token is off by 3.8, where its largest value is 2.7, and greedy tokens change.",
        evidence="srt/models/gemma4_vision.py:484, 534 · transformers modeling_gemma4.py Gemma4VisionPooler",
        remove_when="SGLang's pooler masks padding for Gemma4ForConditionalGeneration too.",
        uses=(uses.images,),
    ),
    Part(
        name="image_transport",
        does="On one GPU, image features go to the scheduler by cuda_ipc, unless --mm-feature-transport says otherwise.",
        switch="SGLANG_GEMMA4_BATCHED_VISION",
        why="Stock copies features off the GPU, pickles them to the scheduler and copies them back. 600 images took 13.7 s this way, and "
        "7.4 s when features stay on the GPU (runs/2026-11-22-e2b-images-ttft).",
        evidence="srt/arg_groups/serving_hook.py:800 (the CPU by default) · E2B, 600 images on an H200: 1.86x the throughput of the "
        "package without it, two passes each, runs/2026-11-22-e2b-images-ttft; with the same flag stock reaches 1.20x its own "
        "throughput, runs/2026-11-23-e2b-images-ttft · the features take 1.6 GiB of the GPU's memory, but not from KV (patch "
        "feature_memory); a container that forbids CUDA IPC needs --mm-feature-transport cpu",
        remove_when="SGLang chooses cuda_ipc for Gemma 4 as it does for Qwen3-VL on large Hopper GPUs.",
        uses=(uses.images, uses.kernels),
    ),
    Part(
        name="batched_vision",
        does="All images and video frames of a batch go through the vision tower together, without their padding.",
        switch="SGLANG_GEMMA4_BATCHED_VISION",
        why="Stock calls tower and embedder image by image and waits for the GPU each time. It multiplies with one-hot matrices and lets "
        "images attend to their padding.",
        evidence="srt/models/gemma4_mm.py:467-560 (hs[mask]) · gemma4_vision.py:255 (triton_attn and fa3 drop the mask), :399, :470 "
        "(one-hot) · transformers modeling_gemma4.py Gemma4VisionModel · E2B, 600 images on an H200: 1.96x stock's throughput, two "
        "passes each, runs/2026-11-22-e2b-images-ttft",
        remove_when="SGLang packs Gemma 4's images into one call of the tower.",
        uses=(uses.images, uses.any_batch),
    ),
    Part(
        name="audio_padding",
        does="Audio is not padded with silence before it is encoded.",
        switch="SGLANG_GEMMA4_MEDIA_FIXES",
        why="Stock pads audio with silence to a multiple of 320 samples, because an old processor counted one soft token too many. "
        "transformers 5.19 counts what the tower returns. In stock a quarter of all lengths get a soft token that transformers does not "
        "have.",
        evidence="srt/multimodal/processors/gemma4.py:66 · transformers 5.19 models/gemma4/processing_gemma4.py:192 · "
        "crash_repro/audio_padding.py",
        remove_when="Gemma4SGLangProcessor leaves the lengths of audio to the processor.",
        uses=(uses.audio,),
    ),
    Part(
        name="media_errors",
        does="A media file that is missing, too large or undecodable is a 400, not a 500.",
        switch="SGLANG_GEMMA4_MEDIA_FIXES",
        why="Stock answers a missing file, an image too large to decode, or a video without an installed decoder with status 500. It "
        "also logs a traceback.",
        evidence="srt/utils/common.py:1900 (CLIENT_MEDIA_EXCEPTIONS), 2260 (ImportError) · "
        "srt/multimodal/processors/base_processor.py:1049-1058",
        remove_when="SGLang counts OSError as a media error of the client.",
        uses=(uses.media,),
    ),
    Part(
        name="video_times",
        does="A video's frames are chosen and labelled with their times as in transformers.",
        switch="SGLANG_GEMMA4_MEDIA_FIXES",
        why="Stock passes frames to the processor without their times: 32 frames of a minute are labelled 00:00 and 00:01. It fails on "
        "frames that a GPU decoded. It shows all frames of a list, however many there are.",
        evidence="srt/multimodal/processors/gemma4.py:81 (_video_decoder_to_tensor) · transformers processing_gemma4.py:182 · "
        "crash_repro/video_times.py",
        remove_when="Gemma4SGLangProcessor passes video_metadata.",
        uses=(uses.media,),
    ),
    Part(
        name="media_bounds",
        does="Images and audio are decoded within limits, nvJPEG gets RGB images only, and downloads time out.",
        switch="SGLANG_GEMMA4_REQUEST_CHECKS",
        why="nvJPEG returns a grayscale or CMYK JPEG with one or four channels, and a matrix of the wrong width ends stock's scheduler. "
        "Stock decodes whatever size a file of a few kB claims. It accepts images up to 179 million pixels each, and audio of any "
        "length. The filter for audio of 9001 Hz takes 2 GiB. A server that sends media byte by byte holds a loading thread for hours. "
        "Transformers rotates images by EXIF tags; stock does not.",
        evidence="srt/utils/common.py:2084-2110 (mode UNCHANGED) · :1893 (iter_content) · :1900-2000 (sf.read, resample) · "
        "crash_repro/grayscale_jpeg.py, turned_images.py, media_bounds.py",
        remove_when="SGLang requests RGB from nvJPEG, checks headers before it decodes, and limits the time of downloads.",
        uses=(uses.media,),
    ),
    Part(
        name="request_media",
        does="Media that model or prompt cannot take, and local files, are a 400; none is processed on the event loop.",
        switch="SGLANG_GEMMA4_REQUEST_CHECKS",
        why="Audio for a model without an audio tower ends stock's scheduler. So do features whose length differs from their "
        "placeholders. Over HTTP any file of the server is read as media, and mm_hashes can name another client's cached features. If "
        "the GPU prepares images, stock does this on the event loop. Images with equal patches but other positions share one cache entry.",
        evidence="srt/models/gemma4_mm.py:580 · managers/mm_schedule.py:707 · utils/common.py:2192 · "
        "managers/tokenizer_manager.py:1242 · multimodal/processors/base_processor.py (process_and_combine_mm_data_async; "
        "mm_processor_kwargs is unread) · managers/mm_utils.py:931 (hash_feature) · crash_repro/audio_without_tower.py, "
        "local_media.py, plain_images.py",
        remove_when="SGLang refuses media without a tower, checks features before the scheduler, and reads local files only where allowed.",
    ),
    Part(
        name="message_media",
        does="Media in any message are shown or refused, text that names a marker stays text, and all base64 forms work.",
        switch="SGLANG_GEMMA4_REQUEST_CHECKS",
        why="Stock drops media that the chat template does not show, with status 200. Text that names <|image|> is read as an image's "
        "placeholder, and its conversation fails for good. Audio of 10 ms is refused as if its placeholder were missing; audio over 30 s "
        "is longer than the model was made for. Base64 with line breaks, URL-safe or without padding fails.",
        evidence="srt/entrypoints/openai/serving_chat.py:2011 · serving_responses.py:1525 (_flatten_tool_output) · "
        "srt/entrypoints/anthropic/serving.py:224 · srt/multimodal/processors/base_processor.py:1457 · crash_repro/dropped_media.py",
        remove_when="SGLang compares media with the rendered prompt, and keeps markers in texts apart from the template's markers.",
    ),
)

SEAMS = (
    Seam(
        f"{UPDATER}.flush_cache_after_weight_update", "after", processors.forget, "b817c178966c", parts=("image_cache",), pins="signature"
    ),
    Seam(
        "sglang.srt.models.gemma4_vision.Gemma4VisionPooler.forward",
        "before",
        processors.zero_padding_patches,
        "1cac6537ebe8",
        parts=("image_padding",),
    ),
    Seam(
        "sglang.srt.arg_groups.serving_hook.handle_multimodal_feature_transport",
        "before",
        image_transport.stay_on_card,
        "690e3ae12b3c",
        parts=("image_transport",),
    ),
    Seam(
        f"{MODEL}.get_image_feature", "around", partial(processors.encode, "image_position_ids"), "fa5edd5eaf57", parts=("batched_vision",)
    ),
    Seam(
        f"{MODEL}.get_video_feature", "around", partial(processors.encode, "video_position_ids"), "7a6fd6342bd3", parts=("batched_vision",)
    ),
    Seam(
        "sglang.srt.multimodal.processors.gemma4.Gemma4SGLangProcessor._get_audio_pad_multiple",
        "after",
        processors.pad_nothing,
        "780ba8238574",
        parts=("audio_padding",),
    ),
    *tuple(
        (
            Seam(f"{COMMON}.{name}", "around", processors.as_client_error, declared, parts=("media_errors",))
            for name, declared in (("load_image", "eb18e23c5715"), ("load_video", "8b77a610a2bb"), ("load_audio", "a6f425c25d8f"))
        )
    ),
    Seam(f"{PROCESSOR}.process_mm_data", "around", "sglang_gemma4.serving.media.video:with_times", "c9319d6bf9b8", parts=("video_times",)),
    Seam(
        "sglang.srt.multimodal.processors.gemma4.Gemma4SGLangProcessor.__init__",
        "after",
        "sglang_gemma4.serving.media.served:mark",
        "a68fa6711fb8",
        parts=("media_bounds",),
    ),
    Seam(f"{COMMON}.load_image", "around", "sglang_gemma4.serving.media.pictures:load", "eb18e23c5715", parts=("media_bounds",)),
    Seam(
        f"{COMMON}.load_audio", "around", "sglang_gemma4.serving.media.decoding:load_sound_within", "a6f425c25d8f", parts=("media_bounds",)
    ),
    Seam(
        f"{COMMON}._fully_load_pil_image",
        "before",
        "sglang_gemma4.serving.media.decoding:judge_image",
        "05ec0e831bdc",
        parts=("media_bounds",),
        pins="signature",
    ),
    Seam(
        f"{COMMON}.is_jpeg_with_cuda", "after", "sglang_gemma4.serving.media.pictures:plain_jpeg", "c33de6d9e1b2", parts=("media_bounds",)
    ),
    Seam(
        "sglang.srt.multimodal.audio_from_video._append_resampled_frames",
        "after",
        "sglang_gemma4.serving.media.decoding:count_samples",
        "22241c093189",
        parts=("media_bounds",),
    ),
    Seam(
        "sglang.srt.multimodal.processors.gemma4.Gemma4SGLangProcessor._video_decoder_to_tensor",
        "before",
        "sglang_gemma4.serving.media.decoding:judge_video",
        "33be90a52ab7",
        parts=("media_bounds",),
        pins="signature",
    ),
    Seam(
        f"{COMMON}.get_mm_http_session",
        "around",
        "sglang_gemma4.serving.media.downloads:watched_session",
        "0385f1044a0b",
        parts=("media_bounds",),
    ),
    Seam(
        f"{COMMON}.download_remote_media",
        "around",
        "sglang_gemma4.serving.media.downloads:download",
        "44201d3b101a",
        parts=("media_bounds",),
    ),
    Seam(
        f"{MANAGER}.generate_request", "around", request_media.judge_addresses, "fbc3cc5da441", parts=("request_media",), pins="signature"
    ),
    Seam(
        f"{MANAGER}._tokenize_one_request",
        "around",
        request_media.judge_modalities,
        "351dec1c7fd0",
        parts=("request_media",),
        pins="signature",
    ),
    Seam(f"{PROCESSOR}.__init__", "after", request_media.mark_process, "a68fa6711fb8", parts=("request_media",)),
    Seam(
        f"{PROCESSOR}.__init__",
        "after",
        "sglang_gemma4.serving.media.processing:leave_the_loop",
        "a68fa6711fb8",
        parts=("request_media",),
    ),
    Seam(
        f"{PROCESSOR}.process_mm_data_async",
        "around",
        "sglang_gemma4.serving.media.processing:process",
        "6e061e74bf0a",
        parts=("request_media",),
    ),
    Seam(
        f"{PROCESSOR}.process_mm_data",
        "around",
        "sglang_gemma4.serving.media.processing:process_large",
        "c9319d6bf9b8",
        parts=("request_media",),
    ),
    Seam(
        f"{BASE}.process_and_combine_mm_data_async",
        "around",
        request_media.judge_loaded,
        "c99f0176c34f",
        parts=("request_media",),
    ),
    Seam(
        f"{BASE}.process_and_combine_mm_data",
        "around",
        "sglang_gemma4.serving.media.image_budget:process",
        "530c73d6287a",
        parts=("request_media",),
    ),
    Seam(
        f"{BASE}._call_processor",
        "before",
        "sglang_gemma4.serving.media.image_budget:ask",
        "6da715bd5663",
        parts=("request_media",),
    ),
    Seam(
        f"{BASE}.resolve_image_token_counts",
        "around",
        "sglang_gemma4.serving.media.image_budget:count",
        "0769fd5f5be5",
        parts=("request_media",),
    ),
    Seam(
        "sglang.srt.managers.schedule_batch.MultimodalDataItem.set_pad_value",
        "around",
        "sglang_gemma4.serving.media.identity:tell_apart",
        "f30b7ae38199",
        parts=("request_media",),
    ),
    Seam(f"{CHAT}.__init__", "after", "sglang_gemma4.serving.media.shown:mark", "51e24292b11d", parts=("message_media",)),
    Seam(
        f"{CHAT}._process_messages",
        "before",
        "sglang_gemma4.serving.media.shown:judge_ids",
        "6a0f0545ca9f",
        parts=("message_media",),
        pins="signature",
    ),
    Seam(
        f"{CHAT}._apply_jinja_template",
        "around",
        "sglang_gemma4.serving.media.shown:apply_template",
        "f81fc664b9e6",
        parts=("message_media",),
    ),
    Seam(
        f"{CHAT}._render_and_encode_chat_template",
        "around",
        "sglang_gemma4.serving.media.shown:render",
        "34e3ac09cd3d",
        parts=("message_media",),
    ),
    Seam(
        f"{CHAT}._append_assistant_prefix_to_prompt_ids",
        "around",
        "sglang_gemma4.serving.media.shown:append_prefix",
        "d8a426d40675",
        parts=("message_media",),
    ),
    Seam(f"{CHAT}._engine_prompt", "after", "sglang_gemma4.serving.media.shown:engine_prompt", "e09c7d36a443", parts=("message_media",)),
    Seam(
        f"{OPENAI}.serving_responses.OpenAIServingResponses._flatten_tool_output",
        "around",
        "sglang_gemma4.serving.media.shown:tool_output",
        "14350270d520",
        parts=("message_media",),
    ),
    Seam(
        f"{ANTHROPIC}._convert_to_chat_completion_request",
        "before",
        "sglang_gemma4.serving.media.shown:judge_blocks",
        "8267df93c387",
        parts=("message_media",),
        pins="signature",
    ),
    Seam(
        f"{PROCESSORS}.gemma4.Gemma4SGLangProcessor.process_mm_data",
        "around",
        "sglang_gemma4.serving.media.shown:process",
        "c9319d6bf9b8",
        parts=("message_media",),
    ),
    Seam(
        f"{PROCESSORS}.gemma4.Gemma4SGLangProcessor.process_mm_data_async",
        "around",
        "sglang_gemma4.serving.media.sent:process",
        "6e061e74bf0a",
        parts=("message_media",),
    ),
    Seam(
        f"{PROCESSORS}.base_processor.BaseMultimodalProcessor.process_and_combine_mm_data_async",
        "around",
        "sglang_gemma4.serving.media.sent:judge_loaded",
        "c99f0176c34f",
        parts=("message_media",),
    ),
    *(
        Seam(f"sglang.srt.utils.common.{name}", "around", "sglang_gemma4.serving.media.sent:load", declared, parts=("message_media",))
        for name, declared in (("load_image", "eb18e23c5715"), ("load_video", "8b77a610a2bb"), ("load_audio", "a6f425c25d8f"))
    ),
)
