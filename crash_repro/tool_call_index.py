"""Two streamed calls of one tool arrive as one call. Needs no GPU and no engine."""

import sys

import case  # type: ignore[import-not-found]

TEXT = '<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|><|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|>'


def main() -> int:
    """Parse the text as it would stream, four characters at a time, and join the deltas by index as clients do."""
    from sglang_gemma4.cpu.environment import prepare_this_process

    prepare_this_process()
    from sglang.srt.entrypoints.openai.protocol import Function, Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.plugins import load_plugins

    load_plugins()
    tools = [Tool(type="function", function=Function(name=name)) for name in ("time", "weather")]
    parser = FunctionCallParser(tools, "gemma4")
    calls: dict[int, str] = {}
    for start in range(0, len(TEXT), 4):
        for delta in parser.parse_stream_chunk(TEXT[start : start + 4])[1]:
            calls[delta.tool_index] = calls.get(delta.tool_index, "") + (delta.name or "") + delta.parameters
    return int(case.verdict({0: 'weather{"city": "Rome"}', 1: 'weather{"city": "Oslo"}'}, calls))


if __name__ == "__main__":
    sys.exit(main())
