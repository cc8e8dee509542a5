"""The command line: help, doctor, errors in one line."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4 import cli, terminal
from sglang_gemma4.diagnostics import doctor
from sglang_gemma4.patching import supported
from sglang_gemma4.patching.source_tree import installed_folder
from sglang_gemma4.tiny import checkpoints


def run(*arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    import os

    return subprocess.run(
        [sys.executable, "-m", "sglang_gemma4.cli", *arguments], capture_output=True, text=True, env={**os.environ, **environ}
    )


COMMANDS: tuple[str, ...] = (
    "serve",
    "doctor",
    "patches",
    "checkpoint",
    "quantize",
    "bench",
    "tune-moe",
    "eval",
    "eval mmlu",
    "eval colors",
    "eval text",
)
COMMANDS += ("compare", "dashboard", "flags", "capacity", "transfer-plan", "doctor dump")
LONGEST = 25
"""Words of a sentence."""


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_has_help_that_fits_a_terminal(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And plain: no sentence of more than 25 words, "GPU" and "running server" for what other texts call so."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit_:
        cli.main([*command.split(), "--help"])
    assert exit_.value.code == 0
    said = capsys.readouterr().out
    assert f"sglang-gemma4 {command}".strip() in said
    text = said.partition("\n\n")[2]
    assert max(map(len, text.splitlines())) <= 80
    assert not re.findall(r"\b(?:live server|this card|the card|a card|in turn)\b", text)
    sentences = re.split(r"\.\s|\n\n|\n {1,8}(?=\S)|:\n", text)
    long = [one for one in sentences if len(one.split()) > LONGEST + 12 * (":" in one)]  # after a colon stands a list of names
    assert not long


@pytest.mark.parametrize("words", ["patches", "patches yoco", "patches --by-target", "flags", "flags kv_cache_dtype"])
def test_a_list_fits_the_terminal_and_is_one_value_of_json(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "width", lambda: 80)
    assert cli.main(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if len(line) > 80 and len(line.split()) > 2], "but for a name that has no place to break"
    assert not [line for line in lines if line.startswith("|")]
    assert cli.main([*words.split(), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)
    assert not err


def test_json_of_one_patch_is_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["patches", "yoco", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "yoco"
    assert cli.main(["patches", "yoko", "--json"]) == 2
    assert "there is no patch 'yoko'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (["serve", "google/gemma-5-it"], {"HF_HUB_OFFLINE": "1"}, "'google/gemma-5-it' is neither a local directory nor to be had"),
        (["serve", "tiny-26b-a4b", "--attention-backend", "flashinfer"], {}, "--attention-backend flashinfer cannot serve Gemma 4"),
        (["serve", "tiny-26b-a4b", "--speculative-algorithm", "NEXTN"], {}, "add --speculative-draft-model-path"),
        (
            ["serve", "tiny-26b-a4b", "--speculative-algorithm=NEXTN", "--speculative-draft-model-path=tiny-e2b-assistant"],
            {},
            "does not fit",
        ),
        (["serve", "tiny-26b-a4b"], {"SGLANG_GEMMA4_STRICT": "maybe"}, "SGLANG_GEMMA4_STRICT='maybe' is not a boolean"),
        (["serve", "tiny-26b-a4b"], {"SGLANG_GEMMA4_BESIDE_GAP": "fast"}, "SGLANG_GEMMA4_BESIDE_GAP=fast is not latency, balanced"),
        (["bench", "tiny-e2b"], {"SGLANG_GEMMA4_REQUEST_TOKENS": "few"}, "SGLANG_GEMMA4_REQUEST_TOKENS=few is not a whole number"),
        (["checkpoint", "tiny-7b", "/tmp/nowhere"], {}, "tiny-7b"),
        (["patches", "triple"], {}, "there is no patch 'triple'; `sglang-gemma4 patches` lists them"),
        (["serve", "tiny-26b-a4b"], {"SGLANG_GEMMA4_KV_WRITE": "1"}, "SGLANG_GEMMA4_KV_WRITE is not a switch of this package; unset it."),
        (["doctor", "--url", "http://127.0.0.1:9"], {}, "no SGLang server answers at http://127.0.0.1:9"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments: list[str], environ: dict[str, str], said: str) -> None:
    done = run(*arguments, **environ)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert said in line


def test_doctor_reports_and_json_reads_back(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["doctor", "--no-patches", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert status == (0 if data["healthy"] else 1)
    assert data["entry_point"] == "installed"
    assert data["distributions"]["sglang"] == "0.5.23"
    text = doctor.installation_text(data)
    assert "SGLANG_GEMMA4_MODEL_FIXES" in text


def test_doctor_tells_what_it_knows_before_it_imports_sglang(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Facts and what takes time first; in JSON standard output holds one object and nothing else."""
    before: list[Any] = []
    rows = [{"name": "yoco", "state": "active", "reason": "", "does": "D", "notes": [], "facts": []}]

    def states() -> list[dict[str, Any]]:
        before.append(capsys.readouterr())
        return rows

    monkeypatch.setattr(doctor, "patch_states", states)
    cli.main(["doctor"])
    ((facts, progress),) = before
    assert facts.startswith("sglang-gemma4 0.")
    assert "SGLANG_GEMMA4_MODEL_FIXES" in facts
    assert "imports SGLang, some 20 seconds" in progress
    rest = capsys.readouterr().out
    assert rest.startswith("patches: 1 would apply, 0 declined, 0 off, 0 failed")
    assert " active " not in rest
    cli.main(["doctor", "--json"])
    assert not before[1].out
    data = json.loads(capsys.readouterr().out)
    assert (data["states"], data["patches"][0]["state"]) == ({"would apply": 1, "declined": 0, "off": 0, "failed": 0}, "would apply")


def test_doctor_names_a_file_of_sglang_that_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.installation()["sglang_files"] == []
    path = "srt/managers/scheduler.py"
    monkeypatch.setattr(supported, "_known", lambda: {path: {"digest": "0"}, "srt/none.py": {"digest": "0"}})
    text = doctor.installation_text(doctor.installation())
    assert f"SGLang's files     not those of 0.5.23: {path}, srt/none.py\n" in text
    monkeypatch.setattr(supported, "_known", lambda: {f"srt/{number}.py": {"digest": "0"} for number in range(90)})
    assert ": srt/0.py, srt/1.py, srt/2.py, srt/3.py, ... (90 files)\n" in doctor.installation_text(doctor.installation())


def test_a_reader_that_closes_the_pipe_gets_no_error_line() -> None:
    done = subprocess.run(
        ["bash", "-c", '"$0" -m sglang_gemma4.cli patches --json | head -1; exit "${PIPESTATUS[0]}"', sys.executable],
        capture_output=True,
        text=True,
    )
    assert (done.returncode in (0, 141), done.stderr) == (True, "")


def test_doctor_outlives_a_broken_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise OSError("no such luck")

    for probe in ("_gpus", "_entry_point", "_version", "patch_states"):
        monkeypatch.setattr(doctor, probe, broken)
    monkeypatch.setenv("SGLANG_GEMMA4_STRICT", "perhaps")
    monkeypatch.setenv("SGLANG_GEMMA4_BESIDE_GAP", "fast")
    data = doctor.add_patches(doctor.installation())
    assert not data["healthy"]
    text = f"{doctor.installation_text(data)}\n{doctor.patches_text(data)}"
    assert "error: OSError: no such luck" in text
    assert "PROBLEM SGLANG_GEMMA4_STRICT='perhaps'" in text
    assert "PROBLEM SGLANG_GEMMA4_BESIDE_GAP=fast is not latency, balanced, throughput" in text
    assert text.endswith("NOT HEALTHY")


@pytest.mark.parametrize("broken", ["torch", "sglang"])
def test_doctor_outlives_a_package_that_does_not_import(broken: str, tmp_path: Path) -> None:
    (tmp_path / broken).mkdir()
    (tmp_path / broken / "__init__.py").write_text("raise RuntimeError('torn apart')")
    done = run("doctor", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "torn apart" in done.stdout
    assert done.stdout.strip().endswith("NOT HEALTHY")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("patches", "--fingerprints"), "importing SGLang, some 20 seconds"),
        (("patches", "yoco", "--against", "{sglang}"), "functions in both SGLangs, some 20 seconds"),
        (("checkpoint", "tiny-e2b", "{path}", "--quantization", "fp8-dynamic"), "quantising tiny-e2b; torch and transformers are imported"),
        (("quantize", str(checkpoints.SHIPPED / "tiny-e2b"), "{path}"), "; torch is imported first"),
        (("serve", "tiny-e2b"), "starting SGLang's server for tiny-e2b"),
    ],
    ids=lambda each: each if isinstance(each, str) else each[0],
)
def test_what_takes_its_time_says_so_first(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """Within a second, before torch or SGLang is looked for: both raise here when they are imported."""
    for name in ("torch", "sglang"):
        (tmp_path / f"broken/{name}").mkdir(parents=True)
        (tmp_path / f"broken/{name}/__init__.py").write_text("raise RuntimeError('torn apart')")
    given = [word.format(path=tmp_path / "made", sglang=installed_folder()) for word in words]
    environ = {} if "--against" in words else {"PYTHONPATH": str(tmp_path / "broken")}
    done = run(*given, **environ)
    assert said in done.stderr.splitlines()[0]
