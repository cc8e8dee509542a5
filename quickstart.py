#!/usr/bin/env python3
"""Set everything up on a machine that has Python 3.11 or newer and nothing else, then do the main job or the tests.

python3 quickstart.py          make .venv, install, start SGLang on a tiny trained Gemma 4, ask it a question, keep serving
python3 quickstart.py test     make .venv, install, run the tests (with --all the extended ones too)
python3 quickstart.py deploy   make .venv, install, start two servers and a prefill/decode set behind SGLang's router (docs/deploying.md)
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
UP_WITHIN = 900  # seconds; a cold start on two cores takes two to four minutes
DOWN_WITHIN = 60  # seconds; SGLang looks every 5 whether it was asked to end


def main() -> int:
    """Parse the command line, set up, run; the exit status."""
    arguments, rest = read_arguments(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped too
    if arguments.job == "serve":
        refuse_taken_port(arguments.port)
    python = set_up(arguments.venv, extras="[sglang]" if arguments.job == "serve" else "[test]")
    if arguments.job == "deploy":
        command = [str(python), "-m", "tests.harness.deploy", "--model", arguments.model, *(["--once"] if arguments.once else []), *rest]
        os.chdir(HERE)
        os.execv(command[0], command)  # Ctrl-C and SIGTERM go to what ends the servers
    if arguments.job == "test":
        # Two processes with engines, each of which keeps one core busy, and one without. A file stays in one (tests/harness/scheduler.py).
        processes = ("-n", "3") if all(word.startswith(("--all", "--durations")) for word in rest) else ()
        return subprocess.call([str(python), "-m", "pytest", *processes, *rest], cwd=HERE)
    return serve(python, arguments, rest)


def read_arguments(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and the rest for the server or for pytest."""
    jobs = ("serve", "test", "deploy")
    job = argv[0] if argv[:1] and argv[0] in jobs else jobs[0]
    parser = argparse.ArgumentParser(
        usage="%(prog)s [serve|test|deploy] [options] [flags of sglang.launch_server, of pytest, or of tests/harness/deploy.py]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--venv", type=Path, default=HERE / ".venv", help="the virtual environment to make or use")
    parser.add_argument(
        "--model", default="tiny-26b-a4b", help="a shipped tiny model; serve: or a checkpoint's directory or a Hugging Face name"
    )
    parser.add_argument("--port", type=int, default=30000, help="serve: the server's port")
    parser.add_argument("--once", action="store_true", help="serve and deploy: stop after the answer instead of serving on")
    arguments, rest = parser.parse_known_args(argv[1:] if argv[:1] == [job] else argv)
    arguments.job = job
    if sys.version_info < (3, 11):  # noqa: UP036 - this script is what an older Python meets first
        parser.error(f"Python {sys.version.split()[0]} is too old; start this script with Python 3.11 or newer")
    return arguments, rest


def refuse_taken_port(port: int) -> None:
    """End the script if something listens on the port: its answers would be taken for our server's."""
    with socket.socket() as probe:
        probe.settimeout(5)
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise SystemExit(f"port {port} is in use; stop what listens there or give another with --port")


def set_up(folder: Path, extras: str) -> Path:
    """A virtual environment with this checkout installed; its Python. A second call only checks."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making {folder}", flush=True)
        venv.create(folder, with_pip=True)
    if not (folder / "bin" / "uv").exists():
        run(python, "-m", "pip", "install", "--quiet", "uv")  # resolves SGLang's 200 packages in seconds, pip takes minutes
    print(f"installing sglang-gemma4{extras} with SGLang (several GB the first time)", flush=True)
    run(python, "-m", "uv", "pip", "install", "--quiet", "--python", str(python), "--editable", f"{HERE}{extras}")
    return python


def run(python: Path, *arguments: str) -> None:
    """Run a Python command; its failure ends this script with its status."""
    status = subprocess.call([str(python), *arguments])
    if status:
        raise SystemExit(status)


def serve(python: Path, arguments: argparse.Namespace, flags: list[str]) -> int:
    """Start the server, wait until it answers, ask one question, and stay until interrupted."""
    url = f"http://127.0.0.1:{arguments.port}"
    command = [str(python), "-m", "sglang_gemma4.cli", "serve", arguments.model, "--port", str(arguments.port), *flags]
    print("starting:", " ".join(command[2:]), flush=True)
    server = subprocess.Popen(command, cwd=HERE, start_new_session=True)
    try:
        wait_until_up(server, url)
        question = "Who rules Belm?"  # a fact of the tiny models' world
        print(f"\nserver: {url}/v1 (OpenAI API)\nQ: {question}\nA: {ask(url, question)}", flush=True)
        print(f"patches: {python} -m sglang_gemma4.cli doctor --url {url}", flush=True)
        if not arguments.once:
            return server.wait()
        print("stopping the server (some 5 s)", flush=True)
        return 0
    except KeyboardInterrupt:
        return 130
    finally:
        stop(server)


def stop(server: "subprocess.Popen[bytes]") -> None:
    """Ask the server to end, which ends its own processes in turn; kill what is left of its group after a minute.

    A signal to the whole group would end the scheduler first, which the server takes for a crash.
    """
    server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(DOWN_WITHIN)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def wait_until_up(server: "subprocess.Popen[bytes]", url: str) -> None:
    """Wait for /health; end the script if the server ends first or takes too long."""
    deadline = time.monotonic() + UP_WITHIN
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with status {server.returncode} before it answered; its last lines are above")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise SystemExit(f"the server did not answer within {UP_WITHIN} s")


def ask(url: str, question: str) -> str:
    """One chat completion at temperature 0; the answer's text."""
    body = {"model": "default", "messages": [{"role": "user", "content": question}], "max_tokens": 48, "temperature": 0}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"]).strip()


if __name__ == "__main__":
    sys.exit(main())
