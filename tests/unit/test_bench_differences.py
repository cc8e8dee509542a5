"""What differs between arms unasked is told; what was asked for, and what always differs, is not."""

from typing import Any

import pytest

from sglang_gemma4.benchmark.differences import between_headers, unasked

MTP = ["--speculative-algorithm=NEXTN", "--speculative-num-steps", "3"]


def starts(*settings: tuple[str, dict[str, Any]], process: str = "server") -> list[dict[str, Any]]:
    return [{"kind": "start", "arm": arm, "round": 0, "process": process, "settings": values} for arm, values in settings]


def header(stock: list[str] | None = None, package: list[str] | None = None, **environment: str) -> dict[str, Any]:
    return {
        "arms": [
            {"name": "stock", "arguments": stock or [], "environment": {}},
            {"name": "package", "arguments": package or [], "environment": environment},
        ]
    }


def test_equal_settings_say_nothing() -> None:
    same = {"attention_backend": "triton", "max_running_requests": 80, "cuda_graph_bs": [1, 2, 4]}
    assert unasked(starts(("stock", same), ("package", dict(same))), header()) == []


def test_a_lower_request_limit_is_told_with_its_remedy() -> None:
    found = unasked(starts(("stock", {"max_running_requests": 80}), ("package", {"max_running_requests": 48})), header(package=MTP))
    assert len(found) == 1
    assert found[0].startswith("max_running_requests differs though no arm asked for it: stock 80, package 48")
    assert "--max-running-requests" in found[0]
    assert "speculation" in found[0]


@pytest.mark.parametrize("arguments", [["--page-size", "64"], ["--page-size=64"]])
def test_what_an_arm_asked_for_is_left_out(arguments: list[str]) -> None:
    settings = starts(("stock", {"page_size": 1, "swa_page_size": 1}), ("package", {"page_size": 64, "swa_page_size": 64}))
    found = unasked(settings, header(package=arguments))
    assert [sentence.split()[0] for sentence in found] == ["swa_page_size"]


def test_what_all_arms_asked_for_alike_and_did_not_all_get_is_told() -> None:
    settings = starts(("stock", {"page_size": 64}), ("package", {"page_size": 1}))
    assert len(unasked(settings, header(["--page-size=64"], ["--page-size=64"]))) == 1


def test_an_arm_of_vllm_hides_no_difference_of_the_others() -> None:
    whole = header(["--max-running-requests=80"], ["--max-running-requests=80"])
    whole["arms"].append({"name": "peer", "arguments": ["--max-num-seqs=80"], "environment": {}, "engine": "vllm"})
    settings = starts(("stock", {"max_running_requests": 80}), ("package", {"max_running_requests": 48}))
    settings += starts(("peer", {"max_num_seqs": "80", "engine": "vllm"}), process="vllm")
    (found,) = unasked(settings, whole)
    assert found.startswith("max_running_requests differs though no arm asked for it: stock 80, package 48")


def test_aliases_and_shortened_flags_are_understood() -> None:
    settings = starts(("stock", {"tp_size": 1, "ep_size": 1}), ("package", {"tp_size": 2, "ep_size": 2}))
    assert unasked(settings, header(package=["--tp", "2", "--expert-parallel-size", "2"])) == []


def test_depth_of_speculation_belongs_to_asking_for_it() -> None:
    settings = starts(
        ("stock", {}),
        ("package", {"speculative_algorithm": "FROZEN_KV_MTP", "speculative_num_draft_tokens": 4, "speculative_num_steps": 3}),
    )
    assert unasked(settings, header(package=MTP)) == []


def test_two_depths_of_speculation_are_told_when_only_one_thing_was_asked() -> None:
    settings = starts(("stock", {"speculative_num_draft_tokens": 4}), ("package", {"speculative_num_draft_tokens": 6}))
    assert len(unasked(settings, header(MTP, MTP))) == 1


def test_ports_seeds_and_temporary_paths_always_differ() -> None:
    one = {"port": 1, "nccl_port": 2, "random_seed": 3, "pid": 4, "log_file": "a", "_ratio_set": True, "download_dir": "/tmp/one/x"}
    other = {"port": 5, "nccl_port": 6, "random_seed": 7, "pid": 8, "log_file": "b", "download_dir": "/tmp/other/x"}
    assert unasked(starts(("stock", one), ("package", other)), header()) == []


def test_a_small_change_of_a_pool_is_a_drift_and_still_told() -> None:
    settings = starts(
        *((arm, {"max_total_num_tokens": 800_000 + tokens}) for arm, tokens in (("stock", 0), ("package", 3000), ("stock", 800)))
    )
    found = unasked(settings, header())
    assert len(found) == 1
    assert found[0].startswith("max_total_num_tokens drifts by 0.37%: stock 800000 then 800800, package 803000")


def test_a_large_change_of_a_pool_is_a_difference() -> None:
    found = unasked(starts(("stock", {"max_total_num_tokens": 800_000}), ("package", {"max_total_num_tokens": 500_000})), header())
    assert found[0].startswith("max_total_num_tokens differs though no arm asked for it")


def test_a_small_change_of_what_memory_does_not_decide_is_a_difference() -> None:
    found = unasked(starts(("stock", {"chunked_prefill_size": 8192}), ("package", {"chunked_prefill_size": 8191})), header())
    assert "differs" in found[0]


def test_starts_of_one_arm_are_compared_too() -> None:
    found = unasked(starts(("stock", {"attention_backend": "triton"}), ("stock", {"attention_backend": "fa3"})), header())
    assert found[0].startswith("attention_backend differs between starts of stock: stock triton then fa3")


def test_servers_and_engines_are_compared_apart() -> None:
    mixed = starts(("stock", {"page_size": 1}), ("package", {"page_size": 1}))
    mixed += starts(("stock", {"page_size": 64}), ("package", {"page_size": 32}), process="engine")
    found = unasked(mixed, header())
    assert len(found) == 1
    assert "stock 64, package 32" in found[0]
    assert found[0].endswith("(engine only)")


def test_nested_settings_and_missing_ones() -> None:
    settings = starts(("stock", {"graph": {"decode": {"mode": "full"}}}), ("package", {"graph": {"decode": {}}, "extra": 1}))
    found = unasked(settings, header())
    assert any(sentence.startswith("graph.decode.mode differs") and "stock full, package not set" in sentence for sentence in found)
    assert any(sentence.startswith("extra differs") for sentence in found)


def test_a_run_resumed_elsewhere_is_told() -> None:
    first = {"model": "m", "device": {"name": "NVIDIA H100"}, "arms": []}
    assert between_headers([first, dict(first)]) == []
    found = between_headers([first, first | {"device": {"name": "NVIDIA H200"}}])
    assert len(found) == 1
    assert "H100" in found[0]
    assert "H200" in found[0]
