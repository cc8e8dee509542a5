"""The arm of vLLM before anything starts: flags, where vLLM is, what it cannot do, its weights. ``tests/engine/test_bench.py`` runs it."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sglang_gemma4 import cli
from sglang_gemma4.benchmark import arms, gauges, vllm, vllm_weights, workloads
from sglang_gemma4.benchmark.arms import Arm
from sglang_gemma4.benchmark.plan import Plan
from sglang_gemma4.benchmark.server import Died, alive
from sglang_gemma4.patching import switches
from sglang_gemma4.tiny import checkpoints
from tests.harness.programs import vllm_stub

MTP = {"SGLANG_SIMULATE_ACC_LEN": "2.8"}


def parse(text: str) -> Arm:
    return arms.parse(text, assistant="some-assistant", dummy_weights=True)


def test_no_path_of_this_machine_is_recorded() -> None:
    said = json.dumps({"model": "/a folder/26b-a4b-assistant", "num_speculative_tokens": 3})
    assert json.loads(vllm.unplaced(said)) == {"model": "26b-a4b-assistant", "num_speculative_tokens": 3}
    assert [vllm.unplaced(value) for value in ("/models/26b-a4b", "auto", "a/b")] == ["26b-a4b", "auto", "a/b"]


def test_an_arm_of_vllm_has_vllms_flags() -> None:
    arm = parse("peer:vllm,mtp,--max-num-batched-tokens=8192,FOO=1")
    assert (arm.vllm, arm.uses_mtp, arm.environment) == (True, True, {"FOO": "1"})
    assert not parse("vllm").uses_mtp
    found = vllm.flags_of_arm(["--load-format=dummy", "--max-running-requests", "80", "--disable-radix-cache"], arm.arguments, MTP)
    assert found[:3] == ["--load-format=dummy", "--max-num-seqs=80", "--no-enable-prefix-caching"]
    name, _, value = found[3].partition("=")
    assert name == "--speculative-config"
    assert json.loads(value) == {
        "model": "some-assistant",
        "num_speculative_tokens": 3,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 2.8,
    }
    assert found[4:] == ["--max-num-batched-tokens=8192"]
    earned = vllm.flags_of_arm([], arm.arguments, {})
    assert earned[0] == "--enable-prefix-caching"
    assert "synthetic" not in earned[1], "released weights earn their accept length"


def test_a_flag_for_all_arms_that_vllm_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--swa-full-tokens-ratio is meant for every arm and has no known counterpart in vLLM"):
        vllm.flags_of_arm(["--max-running-requests=80", "--swa-full-tokens-ratio=0.15"], [], {})


def test_arms_differ_by_their_engine() -> None:
    arms.check([parse("package"), parse("vllm")], {})
    with pytest.raises(ValueError, match="changes nothing"):
        arms.check([parse("vllm"), parse("again:vllm")], {})
    with pytest.raises(ValueError, match="is vLLM and stock at once"):
        parse("x:vllm,stock")


def test_a_header_holds_what_vllm_is_started_with_and_no_path(tmp_path: Path) -> None:
    arm = parse(f"peer:vllm,mtp,PYTHONPATH={tmp_path}")
    whole = Plan("model", "model", [arm], tmp_path, arguments=["--max-running-requests=8"], environment=MTP)
    (found,) = whole.header()["arms"]
    assert found["engine"] == "vllm"
    assert found["environment"] == {**MTP, "PYTHONPATH": "(a path)"}
    assert found["arguments"][:2] == ["--max-num-seqs=8", "--enable-prefix-caching"]
    assert "synthetic_acceptance_length" in found["arguments"][2]
    assert whole.token_ids
    assert not Plan("model", "model", [parse("package")], tmp_path).token_ids


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workload", "single", "--arm", "vllm"], "arm 'vllm' needs vLLM, and "),
        (["--workload", "single", "--arm", "vllm", "--vllm-python", "/no/such/python"], "/no/such/python has none ("),
        (["--batches", "1", "--arm", "stub"], "--batches, --curve and --profile time SGLang's offline engine, which arm stub has not"),
        (["--workload", "images", "--arm", "stub"], "arm stub takes text only, and images has images"),
        (["--workload", "single", "--arm", "stub", "--", "--page-size=16"], "--page-size is meant for every arm"),
    ],
)
def test_what_vllm_cannot_do_is_said_before_anything_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(switches.VLLM_PYTHON, raising=False)
    stub = f"stub:vllm,PYTHONPATH={vllm_stub.write(tmp_path / 'stub')}"
    words = [stub if word == "stub" else word for word in words]
    assert cli.main(["bench", "tiny-e2b", "--no-report", "--out", str(tmp_path / "run"), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_python_of_vllm_is_named_or_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(switches.VLLM_PYTHON, raising=False)
    assert vllm.python(None) == sys.executable
    monkeypatch.setenv(switches.VLLM_PYTHON, "/env/bin/python")
    assert vllm.python(None) == "/env/bin/python"
    assert vllm.python("/mine/bin/python") == "/mine/bin/python"
    arm = parse(f"vllm,PYTHONPATH={vllm_stub.write(tmp_path / 'stub')}")
    assert vllm.version(arm, sys.executable) == "0.33.0"


def test_random_weights_are_filled_by_a_plugin_that_stands_alone(tmp_path: Path) -> None:
    folder = vllm.plugin(tmp_path / "plugin")
    assert vllm.plugin(tmp_path / "plugin") == folder, "another round"
    (found,) = importlib.metadata.distributions(path=[str(folder)])
    (entry,) = found.entry_points
    assert (entry.group, entry.value) == ("vllm.general_plugins", "sglang_gemma4.benchmark.vllm_weights:register")
    code = "import sglang_gemma4.benchmark.vllm_weights as w, sglang_gemma4.tiny.spread_weights; print(w.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(folder)}, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(folder))


def test_vllms_dummy_loader_fills_what_sglangs_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_gemma4.tiny import spread_weights

    class DummyModelLoader:
        def load_weights(self, model: Any, model_config: Any) -> None:
            raise AssertionError("vLLM's own uniform(±1e-3)")

    names = ["vllm", "vllm.model_executor", "vllm.model_executor.model_loader", "vllm.model_executor.model_loader.dummy_loader"]
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[names[-1]].DummyModelLoader = DummyModelLoader  # type: ignore[attr-defined]
    vllm_weights.register()
    mine, theirs = (torch.nn.ModuleDict({"proj": torch.nn.Linear(64, 64), "norm": torch.nn.LayerNorm(8)}) for _ in range(2))
    DummyModelLoader().load_weights(mine, None)
    spread_weights.fill(theirs, 1234)
    assert all(torch.equal(mine.state_dict()[name], tensor) for name, tensor in theirs.state_dict().items())
    assert float(mine.state_dict()["proj.weight"].std()) == pytest.approx(0.125, rel=0.1)


def test_a_dead_engine_is_told_from_the_log_with_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What vLLM 0.33 writes when its engine does not start; the API server may live on, and the log holds an earlier round."""
    log = tmp_path / "vllm.log"
    log.write_text("(EngineCore pid=1) ERROR 11-24 17:26:13 [core.py:1584] KeyError: 'of the round before'\nEngineDeadError\n")
    dies = (
        'print("(EngineCore pid=2) ERROR 11-24 17:26:13 [core.py:1584] EngineCore failed to start.")\n'
        'print("(EngineCore pid=2) ERROR 11-24 17:26:13 [core.py:1584] ValueError: no kernel for head_dim 512")\n'
        'print("RuntimeError: Engine core initialization failed. See root cause above.", flush=True)\n'
        "import time; time.sleep(600)\n"
    )
    package = tmp_path / "site" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(dies)
    monkeypatch.setattr(vllm, "ENDS_WITHIN", 0.2)
    started = vllm.VllmServer(sys.executable, "model", [], {"PYTHONPATH": str(tmp_path / "site")}, log, None, "0.33.0")
    try:
        with pytest.raises(Died) as death:
            started.wait_until_ready(120, print)
    finally:
        started.stop()
    assert death.value.log_tail[-1] == "vLLM's engine: ValueError: no kernel for head_dim 512"
    assert not alive(started.process.pid)


def test_the_language_model_of_a_real_size_by_itself(tmp_path: Path) -> None:
    model, _ = checkpoints.write("e2b", str(tmp_path / "e2b"), random=True)
    folder = vllm.text_only(Path(model), tmp_path / "text")
    whole, text = (json.loads((Path(where) / "config.json").read_text()) for where in (model, folder))
    assert text == {**whole["text_config"], "architectures": ["Gemma4ForCausalLM"], "use_bidirectional_attention": None}
    names = {file.name for file in folder.iterdir()}
    assert "tokenizer.json" in names
    assert "processor_config.json" not in names


def test_the_language_model_of_a_quantised_size_keeps_its_format(tmp_path: Path) -> None:
    """Else vLLM would serve bfloat16 beside SGLang's 4 bits, and nothing would say so."""
    model, _ = checkpoints.write("26b-a4b", str(tmp_path / "26b"), random=True, quantised="w4a16-g32")
    folder = vllm.text_only(Path(model), tmp_path / "text")
    whole, text = (json.loads((Path(where) / "config.json").read_text()) for where in (model, folder))
    assert text["quantization_config"] == whole["quantization_config"]
    assert all(name.startswith("re:.*") for name in text["quantization_config"]["ignore"]), "no name begins where the whole model's do"


def test_vllms_metrics_have_sglangs_names(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total{engine="0"} 28\n'
    text += '# TYPE vllm:spec_decode_num_drafts counter\nvllm:spec_decode_num_drafts_total{engine="0"} 10\n'

    class Answer:
        def __enter__(self) -> "Answer":
            return self

        def __exit__(self, *_: Any) -> None: ...

        def read(self) -> bytes:
            return text.encode()

    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: Answer())
    assert gauges.Watched(added=gauges.read_metrics("http://x")).accept_length(completed=2) == 2.6


def test_an_arm_of_vllm_is_kept_to_its_workloads() -> None:
    arm = arms.parse("peer:vllm,only=log-uniform+mix", assistant=None, dummy_weights=False, rates=[1, 2])
    assert arm.only == ("log-uniform@1", "log-uniform@2", "mix")
    assert all(name in arm.only for name in (one.name for one in workloads.named(["log-uniform"], [1, 2])))
