"""Files of tiles: their names, what is refused, whose they are; and the tuner's candidates."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4 import cli, patching
from sglang_gemma4.benchmark import tune_moe as tune_command
from sglang_gemma4.benchmark.kernels import tune_moe
from sglang_gemma4.benchmark.kernels.expert_products import EXPERTS, HIDDEN, INNER, TOPK, routing
from sglang_gemma4.benchmark.tune_moe import TOKENS
from sglang_gemma4.models import experts
from sglang_gemma4.models.layers import expert_tiles

TILE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 4}


def test_the_name_is_sglang_s() -> None:
    import sglang

    folder = Path(sglang.__file__).parent / "srt/layers/moe/moe_runner/triton_utils/configs/triton_3_6_0"
    for down in (False, True):
        assert (folder / expert_tiles.file_name(EXPERTS, INNER, "NVIDIA H200", down)).exists()


def test_written_tiles_are_read_and_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tiles.json"
    expert_tiles.write(path, {16: TILE, 1: TILE})
    expert_tiles.write(path, {16: {**TILE, "USE_TMA": True}, 8192: TILE})
    assert list(json.loads(path.read_text())) == ["1", "16", "8192"], "in order"
    assert expert_tiles.read(path) == {1: TILE, 16: {**TILE, "USE_TMA": True}, 8192: TILE}


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "a file of tiles"), ("[1]", "a file of tiles"), ('{"x": {}}', "a file of tiles"), ("{}", "no tiles"), ('{"1": {}}', "lacks")],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "tiles.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        expert_tiles.read(path)


def asked(*args: Any, **kwargs: Any) -> str:
    return "SGLang's"


def test_other_models_and_the_operator_s_folder_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shape counts only once a Gemma 4 layer of it was built in the process."""
    monkeypatch.delenv(experts.OPERATOR_S, raising=False)
    monkeypatch.setattr(experts, "_shapes", {(64, INNER)})
    assert experts.find_tiles(asked, EXPERTS, INNER, None, 0, 0, per_channel_quant=False, down_moe=False) == "SGLang's"
    monkeypatch.setattr(experts, "_shapes", {(EXPERTS, INNER)})
    for dtype, blocks, channels in (("fp8_w8a8", 0, False), (None, 128, False), (None, 0, True)):
        assert experts.find_tiles(asked, EXPERTS, INNER, dtype, blocks, blocks, per_channel_quant=channels, down_moe=True) == "SGLang's"
    monkeypatch.setenv(experts.OPERATOR_S, "/somewhere")
    assert experts.find_tiles(asked, EXPERTS, INNER, None, 0, 0, per_channel_quant=False, down_moe=False) == "SGLang's"


@pytest.mark.parametrize(("files", "said"), [({}, "no tiles for E=128, N=704 on Card 9"), ({"": "{}", "_down": "{}"}, "holds no tiles")])
def test_a_card_without_tiles_has_sglang_s(files: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(patching.declare, "note", lambda patch, message: heard.append(message))
    monkeypatch.setattr("sglang.srt.utils.get_device_name", lambda: "Card 9")
    for kind, text in files.items():
        (tmp_path / f"E=128,N=704,device_name=Card_9{kind}.json").write_text(text)
    assert [expert_tiles.for_server(EXPERTS, INNER, False, tmp_path) for _ in range(2)] == [None, None]
    assert [said in each for each in heard] == [True]


def test_one_file_of_two_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang.srt.utils.get_device_name", lambda: "Card 9")
    paths = [tmp_path / expert_tiles.file_name(EXPERTS, INNER, "Card 9", down) for down in (False, True)]
    expert_tiles.write(paths[0], {1: TILE})
    assert expert_tiles.for_server(EXPERTS, INNER, False, tmp_path) is None
    expert_tiles.write(paths[1], {1: TILE})
    expert_tiles.for_server.cache_clear()
    assert expert_tiles.for_server(EXPERTS, INNER, False, tmp_path) == {1: TILE}


@pytest.mark.parametrize("deterministic", [True, False])
def test_found_tiles_join_sglang_s_and_deterministic_inference_keeps_its_own(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(experts.OPERATOR_S, raising=False)
    monkeypatch.setattr(experts, "_shapes", {(EXPERTS, INNER)})
    flags = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=deterministic))
    monkeypatch.setattr("sglang.srt.runtime_context.get_exec", lambda: flags)
    monkeypatch.setattr(expert_tiles, "for_server", lambda experts, inner, down: {8192: TILE})
    found = experts.find_tiles(lambda *_, **__: {1: TILE}, EXPERTS, INNER, None, 0, 0, per_channel_quant=False, down_moe=True)
    assert sorted(found) == ([1] if deterministic else [1, 8192])


@pytest.mark.parametrize("tokens", TOKENS)
def test_candidates_fit_and_share_their_rows(tokens: int) -> None:
    """Each size of rows a block has tiles for both GEMMs, and no tile asks for more shared memory than an SM has."""
    listed = {down: tune_moe.candidates(tokens, down) for down in (False, True)}
    sizes = [{tile["BLOCK_SIZE_M"] for tile in listed[down]} for down in (False, True)]
    assert sizes[0] == sizes[1] != set()
    for down, tiles in listed.items():
        assert len({tune_moe.key_of(tile, down) for tile in tiles}) == len(tiles)
        for tile in tiles:
            assert set(tile) >= expert_tiles.NEEDED
            assert not (down and "USE_TMA" in tile)
            columns_and_rows = tile["BLOCK_SIZE_M"] + tile["BLOCK_SIZE_N"]
            assert 2 * tile["num_stages"] * columns_and_rows * tile["BLOCK_SIZE_K"] <= tune_moe.SHARED_BYTES


def test_routing_is_diverse_and_distinct() -> None:
    probabilities, ids = routing(256, 0, "cpu")
    assert ids.unique().numel() > 120
    assert all(row.unique().numel() == TOPK for row in ids)
    assert probabilities.sum(-1).allclose(probabilities.new_ones(256))
    assert (HIDDEN, INNER) == (2816, 704)


def test_the_tuner_s_rows_fit_a_terminal() -> None:
    tile = {
        "BLOCK_SIZE_M": 128,
        "BLOCK_SIZE_N": 128,
        "BLOCK_SIZE_K": 64,
        "GROUP_SIZE_M": 16,
        "num_warps": 8,
        "num_stages": 3,
        "USE_TMA": True,
    }
    cells = ("16384", tune_moe.key_of(tile, True), "12345.6", "9876.5")
    lines = [tune_moe.head(False), tune_moe.line(cells, False)]
    assert max(map(len, lines)) <= 80
    assert lines[0].index("tile") == lines[1].index("down")
    assert tune_moe.line(cells, True) == "| 16384 | down 128x128x64 g16 w8 s3 TMA | 12345.6 | 9876.5 |"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "there is none here (the NVIDIA driver sees no GPU)"),
        (("--tp-size", "3"), "--tp-size 3 does not divide the experts' 704 inner columns"),
    ],
)
def test_the_tuner_refuses_before_it_imports_torch(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune_command.INNER == INNER
    monkeypatch.setattr(tune_command, "no_cuda", lambda: "the NVIDIA driver sees no GPU")
    monkeypatch.setattr(tune_moe, "tune", lambda _: 0)
    assert cli.main(["tune-moe", *words]) == 2
    assert said in capsys.readouterr().err
    monkeypatch.setattr(tune_command, "no_cuda", lambda: None)
    assert cli.main(["tune-moe"]) == 0
    assert "importing torch" in capsys.readouterr().err, "at once, where there is a GPU"
