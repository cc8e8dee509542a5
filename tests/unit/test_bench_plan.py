"""Arms, workloads and what is left of a run: everything that bench decides before and between its processes."""

from pathlib import Path

import pytest
import torch

from sglang_gemma4 import cli
from sglang_gemma4.benchmark import arms, checked_plan, command, mapping, records, workloads
from sglang_gemma4.benchmark.arms import Arm
from sglang_gemma4.benchmark.plan import ENGINE, SERVER, WARM_UP, Done, Plan, check_resumable, interleaved
from tests.unit.test_bench_loads import status_of

A, B = Arm("stock", {"SGLANG_GEMMA4": "0"}), Arm("package")


def parse(text: str, dummy: bool = False) -> Arm:
    return arms.parse(text, assistant="some-assistant", dummy_weights=dummy)


def plan(folder: Path, **given: object) -> Plan:
    return Plan("model", "model", [A, B], folder, **{"workloads": workloads.named(["chat"]), "batches": [1, 8], **given})  # type: ignore[arg-type]


def test_an_arm_reads_its_parts() -> None:
    arm = parse("slow:stock,mtp,--swa-full-tokens-ratio=0.15,FOO=bar")
    assert arm.name == "slow"
    assert arm.environment == {"SGLANG_GEMMA4": "0", "FOO": "bar"}
    assert arm.uses_mtp
    assert "--speculative-draft-model-path=some-assistant" in arm.arguments
    assert arm.arguments[-1] == "--swa-full-tokens-ratio=0.15"


def test_a_switch_that_asks_for_more_than_its_default_is_a_difference() -> None:
    beside = parse("beside:package,SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY=1")
    arms.check([parse("package"), beside], {})
    with pytest.raises(ValueError, match="changes nothing"):
        arms.check([parse("package"), beside], {"SGLANG_GEMMA4_PREFILL_BESIDE_VERIFY": "1"})


def test_an_arm_without_several_patches() -> None:
    bare = parse("bare:package,SGLANG_GEMMA4_WITHOUT=kv_write,SGLANG_GEMMA4_WITHOUT=triple_norm,FOO=1,FOO=2")
    assert bare.environment == {"SGLANG_GEMMA4_WITHOUT": "kv_write,triple_norm", "FOO": "2"}


def test_an_arm_kept_to_workloads_has_nothing_to_do_on_others(tmp_path: Path) -> None:
    arm = parse("few:stock,only=chat+images-sweep")
    assert arm.only == ("chat", "images-1", "images-4", "images-16")
    whole = Plan("model", "model", [arm, B], tmp_path, workloads=workloads.named(["chat", "prefill", "images-sweep"]))
    left = {task[1] for task in Done([]).left(whole, arm, 0, SERVER)}
    assert left == {"chat", "images-1", "images-4", "images-16"}
    assert "prefill" in {task[1] for task in Done([]).left(whole, B, 0, SERVER)}
    assert whole.header()["arms"][0]["only"] == list(arm.only)
    with pytest.raises(ValueError, match="unknown workload 'nonsense'"):
        parse("few:stock,only=nonsense")


def test_an_arm_is_kept_to_workloads_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--dry-run", "--arm", "stock:stock,only=prefill", "--arm", "package", "--workload", "chat"]) == 2
    assert "arm 'stock' is kept to prefill, not in --workload chat; add it there" in capsys.readouterr().err


def test_stock_with_random_weights_keeps_their_filling() -> None:
    environment = parse("stock", dummy=True).effective_environment({})
    on = {name for name, value in environment.items() if value == "1"}
    assert on == {"SGLANG_GEMMA4", "SGLANG_GEMMA4_DUMMY_WEIGHTS", "SGLANG_FROZEN_KV_MTP_V2"}, "0 selects the worker v1"


@pytest.mark.parametrize("text", ["nonsense", "", "x:", "SGLANG_GEMMA4_TYPO=1", "SGLANG_GEMMA4_MODEL_FIXES=maybe"])
def test_a_wrong_arm_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"arm|switch|boolean"):
        parse(text)


def test_mtp_needs_an_assistant() -> None:
    with pytest.raises(ValueError, match="--assistant"):
        arms.parse("mtp", assistant=None, dummy_weights=False)


@pytest.mark.parametrize("other", ["package", "same:SGLANG_GEMMA4_MODEL_FIXES=1", "same:SGLANG_GEMMA4=true"])
def test_an_arm_that_changes_nothing_is_refused(other: str) -> None:
    with pytest.raises(ValueError, match=r"changes nothing|two arms are named"):
        arms.check([parse("package"), parse(other)], {})


def test_a_switch_under_a_master_that_is_off_changes_nothing() -> None:
    with pytest.raises(ValueError, match="changes nothing"):
        arms.check([parse("stock"), parse("x:stock,SGLANG_GEMMA4_MODEL_FIXES=0")], {})


def test_a_request_longer_than_context_or_pool_is_refused_with_the_numbers() -> None:
    (long,) = workloads.WORKLOADS["long"]
    with pytest.raises(ValueError, match=r"64200 tokens, the context is 16384; shorten it"):
        workloads.check_fits(long, "the context is", 16384, "shorten it")
    workloads.check_fits(long, "the context is", 64200, "")


def test_the_sweep_has_every_power_of_two() -> None:
    assert [one.requests for one in workloads.named(["sweep"])] == [1, 2, 4, 8, 16, 32, 64, 128]


def test_prompt_lengths_grow_from_1000_to_64000() -> None:
    found = [(one.input_tokens, one.output_tokens, one.requests) for one in workloads.named(["prompts"])]
    assert found == [(1000, 10, 30), (4000, 10, 30), (16000, 10, 8), (64000, 10, 2)]


def test_prompt_lengths_are_sent_one_request_at_a_time() -> None:
    found = workloads.named(["ttft"])
    assert [(one.name, one.input_tokens) for one in found][:2] == [("ttft-128", 128), ("ttft-1000", 1000)]
    assert {one.concurrency for one in found} == {1}


def test_rounds_share_the_repetitions_and_interleave(tmp_path: Path) -> None:
    whole = plan(tmp_path, rounds=2, repetitions=5)
    assert [list(whole.numbers(round_)) for round_ in range(2)] == [[0, 1, 2], [3, 4]]
    assert list(interleaved(whole)) == [(0, [A]), (0, [B]), (1, [A]), (1, [B])]
    assert list(interleaved(plan(tmp_path, rounds=1, together=2))) == [(0, [A, B])]


def test_what_is_finished_or_crashed_is_not_run_again(tmp_path: Path) -> None:
    whole = plan(tmp_path, profile=[8])
    records.append(whole.raw, "repetition", arm="stock", round=0, workload="chat", repetition=1, counted=True)
    records.append(whole.raw, "step", arm="stock", round=0, batch=1, repetition=-1, counted=False)
    records.append(whole.raw, "crash", arm="stock", round=0, during="step batch 8", exit_status=1, log_tail=[])
    records.append(whole.raw, "profile", arm="stock", round=0, batch=8, stage="prefill")
    done = Done(records.read(whole.raw))
    assert done.left(whole, A, 0, SERVER) == [("pass", "chat", number) for number in (WARM_UP, 0, 2)]
    steps = [("step", 1, number) for number in (WARM_UP, 0, 1, 2)]
    assert done.left(whole, A, 0, ENGINE) == [*steps, ("profile", 8, 0)], "a profile ends with its decode stage"
    assert done.left(whole, A, 1, ENGINE) == [("step", batch, number) for batch in (1, 8) for number in (WARM_UP, 3, 4)]
    assert [task[2] for task in done.left(whole, B, 0, SERVER)] == [WARM_UP, 0, 1, 2]
    for number in (0, 2):
        records.append(whole.raw, "repetition", arm="stock", round=0, workload="chat", repetition=number, counted=True)
    assert Done(records.read(whole.raw)).left(whole, A, 0, SERVER) == [], "a warm-up for nothing is none"


def test_an_arm_that_never_came_up_is_not_started_again(tmp_path: Path) -> None:
    whole = plan(tmp_path)
    records.append(whole.raw, "crash", arm="package", round=0, during="start of the server", exit_status=1, log_tail=[])
    done = Done(records.read(whole.raw))
    assert done.left(whole, B, 1, SERVER) == []
    assert done.left(whole, B, 1, ENGINE), "its engine is another process"
    assert done.left(whole, A, 1, SERVER)
    records.append(whole.raw, "crash", arm="package", round=0, during="start of the engine", exit_status=1, log_tail=[])
    assert Done(records.read(whole.raw)).left(whole, B, 1, ENGINE) == []


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    raw = tmp_path / records.NAME
    records.append(raw, "header", model="m")
    with raw.open("a") as file:
        file.write('{"kind": "repet')
    assert [line["kind"] for line in records.read(raw)] == ["header"]
    records.append(raw, "header", model="resumed")
    assert [line["model"] for line in records.read(raw)] == ["m", "resumed"]


def test_another_runs_lines_are_not_added_to(tmp_path: Path) -> None:
    header = plan(tmp_path).header() | {"device": {"name": "card", "count": 1}}
    check_resumable(header, [header | {"repetitions": 9}], tmp_path)
    with pytest.raises(ValueError, match="another run: its model"):
        check_resumable(header, [header | {"model": "other"}], tmp_path)
    with pytest.raises(ValueError, match="its dataset"):
        check_resumable(header | {"dataset": "prompts.json"}, [header], tmp_path)
    with pytest.raises(ValueError, match="2 x card"):
        check_resumable(header, [header | {"device": {"name": "card", "count": 2}}], tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tiny-e2b"], "nothing to measure"),
        (["--workload", "chat"], "no model was given"),
        (["tiny-e2b", "--workload", "chatter"], "unknown workload 'chatter'"),
        (["tiny-e2b", "--workload", "long"], "the context is 4096"),
        (["tiny-e2b", "--batches", "1,x"], "is not a list of numbers"),
        (["tiny-e2b", "--workload", "chat", "--dataset", __file__], "is not a JSON list of conversations"),
        (["tiny-e2b", "--batches", "0"], "--batches: 0 is less than 1"),
        (["tiny-e2b", "--batches", "1", "--roofline"], "--roofline belongs to profiled kernels"),
        (["tiny-e2b", "--batches", "1", "--switch", "SGLANG_GEMMA4_NO"], "is not a switch"),
        (["tiny-e2b", "--batches", "1", "--arm", "package", "--arm", "x:SGLANG_GEMMA4_STRICT=0"], "changes nothing"),
        (["tiny-e2b", "--frontier", "--switch", "SGLANG_GEMMA4_QKV"], "--frontier and --switch each choose the arms; leave"),
        (["26b-a4b", "--batches", "1", "--arm", "mtp", "--accept-length", "9"], "--accept-length 9.0"),
    ],
)
def test_what_can_be_known_to_be_wrong_is_said_before_anything_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert status_of(["bench", *words, "--no-report", "--out", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_real_size_is_not_loaded_into_a_machine_without_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sglang_gemma4.cpu.environment.has_accelerator", lambda: False)
    assert cli.main(["bench", "26b-a4b", "--batches", "1", "--no-report", "--out", str(tmp_path / "run")]) == 2
    assert "give --dry-run or a tiny model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "served"),
    [("google/gemma-4-E4B-it", "tiny-e2b"), ("31b", "tiny-31b"), ("12b", "tiny-12b"), ("tiny-e2b", "tiny-e2b"), (None, "tiny-26b-a4b")],
)
def test_a_dry_run_serves_the_tiny_model_of_the_family(asked: str | None, served: str, tmp_path: Path) -> None:
    words = [*([asked] if asked else []), "--dry-run", "--out", str(tmp_path / "run")]
    arguments = cli._parser().parse_args(["bench", *words])
    arguments.server_flags = []
    assert checked_plan.plan_of(arguments, tmp_path).label == served


def test_the_image_sweep_differs_from_images_in_their_number_alone() -> None:
    found = workloads.named(["images-sweep"])
    assert [(one.images, one.image_size, one.name) for one in found] == [(n, 480, f"images-{n}") for n in (1, 4, 16)]
    assert len({(one.input_tokens, one.output_tokens, one.requests) for one in found}) == 1


def test_weights_are_shared_among_arms_that_are_up_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--dry-run", "--share-weights"]) == 2
    assert "--share-weights is for --together and random weights; here are 1 arms at a time" in capsys.readouterr().err


def test_a_card_without_shared_memory_is_said_before_anything_starts(tmp_path: Path) -> None:
    """Here there is no card at all, which is one way not to map each other's memory."""
    if torch.cuda.is_available():
        pytest.skip("a GPU's processes can map each other's memory")
    with pytest.raises(ValueError, match=r"cannot map each other's memory \(.*(CUDA|NVIDIA).*\); leave --share-weights out"):
        command.in_a_process(mapping.__name__, "processes on this GPU cannot map each other's memory", "--share-weights")
