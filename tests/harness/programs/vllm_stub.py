"""A package named ``vllm`` whose OpenAI server answers as vLLM's does, without a model: what the vLLM arm of the benchmark starts in tests.

It streams two tokens per event, keeps vLLM's metrics, and writes what it was started and asked with to ``$VLLM_STUB_LOG``.
"""

from pathlib import Path

SERVER = """
import argparse, asyncio, json, os, sys
from aiohttp import web

parser = argparse.ArgumentParser(allow_abbrev=False)
flags = ("host", "port", "model", "served-model-name", "max-num-seqs", "max-model-len", "speculative-config", "load-format")
for flag in flags:
    parser.add_argument(f"--{flag}")
parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
arguments = parser.parse_args()
generated = drafts = resets = 0


def note(**what):
    with open(os.environ["VLLM_STUB_LOG"], "a") as file:
        file.write(json.dumps(what) + "\\n")


async def completions(request):
    global generated, drafts
    body = await request.json()
    note(prompt=body["prompt"])
    if body["model"] != arguments.served_model_name:
        return web.json_response({"error": {"message": f"The model `{body['model']}` does not exist."}}, status=404)
    assert body["stream"] and body["return_token_ids"] and body["ignore_eos"] and body["temperature"] == 0
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    left = body["max_tokens"]
    while left:
        await asyncio.sleep(0.02)
        ids = [7] * min(2, left)
        left, generated, drafts = left - len(ids), generated + len(ids), drafts + 1
        first = body["prompt"] if left + len(ids) == body["max_tokens"] else None  # vLLM repeats the prompt in a stream's first event
        choice = {"index": 0, "text": "", "token_ids": ids, "prompt_token_ids": first, "finish_reason": None if left else "length"}
        await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\\n\\n")
    await response.write(b"data: [DONE]\\n\\n")
    return response


async def metrics(_):
    lines = ["# TYPE vllm:generation_tokens counter", f"vllm:generation_tokens_total {generated}"]
    lines += ["# TYPE vllm:spec_decode_num_drafts counter", f"vllm:spec_decode_num_drafts_total {drafts}"]
    lines += ["# TYPE vllm:num_requests_running gauge", 'vllm:num_requests_running{engine="0"} 3.0']
    lines += ["# TYPE vllm:cache_config_info gauge", 'vllm:cache_config_info{block_size="16",num_gpu_blocks="512"} 1.0']
    return web.Response(text="\\n".join(lines) + "\\n")


async def reset(_):
    global resets
    resets += 1
    if resets % 2:  # as while blocks are held
        return web.json_response({"success": False})
    note(reset=True)
    return web.json_response({"success": True})


async def healthy(_):
    return web.Response()


async def models(_):
    return web.json_response({"data": [{"id": arguments.served_model_name}]})


note(started=sys.argv[1:], dev=os.environ.get("VLLM_SERVER_DEV_MODE"))
app = web.Application(client_max_size=2**28)
app.add_routes([web.post("/v1/completions", completions), web.get("/metrics", metrics), web.post("/reset_prefix_cache", reset)])
app.add_routes([web.get("/health", healthy), web.get("/v1/models", models)])
web.run_app(app, host=arguments.host, port=int(arguments.port), print=None)
"""


def write(folder: Path) -> str:
    """The stub in ``folder``, a value for ``PYTHONPATH``."""
    program = folder / "vllm" / "entrypoints" / "openai" / "api_server.py"
    program.parent.mkdir(parents=True)
    for package in (program.parent, program.parent.parent, program.parent.parent.parent):
        (package / "__init__.py").touch()
    program.write_text(SERVER)
    information = folder / "vllm-0.33.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n")
    return str(folder)
