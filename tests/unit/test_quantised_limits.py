"""Which weight formats are refused, for which model, card and flags; and what is left alone."""

from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.diagnostics import quantised_limits
from sglang_gemma4.models.config_files import PreflightError
from sglang_gemma4.tiny import quantisation, real_sizes
from sglang_gemma4.tiny.quantisation import FORMATS

H100, A100, B200 = (9, 0), (8, 0), (10, 0)
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}


def config(size: str, form: str | None = None, **given: Any) -> dict[str, Any]:
    found = real_sizes.target(size)
    if form is not None:
        found["quantization_config"] = quantisation.config(FORMATS[form])
    elif given:
        found["quantization_config"] = given
    return found


def compressed(weights: dict[str, Any], inputs: Any = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group}}


def problem(model: dict[str, Any], capability: tuple[int, int] | None = H100, cpu: bool = False, **arguments: Any) -> str | None:
    try:
        quantised_limits.check(model, arguments, capability=capability, cpu_engine=cpu)
    except PreflightError as error:
        return str(error)
    return None


@pytest.mark.parametrize("size", ["26b-a4b", "31b", "e2b", "e4b"])
def test_what_divides_the_model_is_let_through_on_a_hopper_and_on_the_cpu_engine(size: str) -> None:
    for name, form in FORMATS.items():
        if quantisation.size_problem(real_sizes.target(size)["text_config"], form) is None:
            assert problem(config(size, name)) is None
            assert problem(config(size, name), None, cpu=True) is None
    assert problem(config(size), quantization="fp8") is None
    assert problem(config(size, "fp8-dynamic"), tp_size=2) is None
    assert (problem(config(size, "w4a16-g32"), tp_size=2) is None) is (size != "26b-a4b"), "2112 / 2 is no multiple of 64"
    assert problem(config(size, "w4a16-g32"), None, cpu=True, tp_size=2) is None


@pytest.mark.parametrize(
    ("given", "arguments", "capability", "said"),
    [
        (compressed({**INT4, "symmetric": False}), {}, H100, "groups of 32, not symmetric: SGLang's one kernel with gelu"),
        (compressed({**INT4, "group_size": 128}), {}, H100, "do not divide the experts' moe_intermediate_size 704"),
        (compressed({**INT4, "group_size": 64}), {}, H100, "takes symmetric groups of 32 or 128"),
        (compressed(INT4), {"moe_runner_backend": "marlin"}, H100, "--moe-runner-backend marlin: of SGLang's kernels"),
        (compressed({**INT4, "num_bits": 8}), {}, H100, "SGLang has no kernel with gelu for such experts"),
        ({"quant_method": "gptq", "bits": 4}, {}, H100, "quant_method gptq: SGLang's kernels for such experts compute silu"),
        ({"quant_method": "awq", "bits": 4}, {}, H100, "quant_method awq"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, {}, H100, "before Blackwell"),
        (quantisation.config(FORMATS["fp8-dynamic"]), {}, A100, "need compute capability 8.9, this card has 8.0"),
        (quantisation.config(FORMATS["fp8-block"]), {}, H100, "blocks that divide moe_intermediate_size, which is 704"),
        (None, {"quantization": "fp8"}, A100, "--quantization fp8: SGLang's fp8 experts need compute capability 8.9"),
        (None, {"quantization": "gguf"}, H100, "GGUF"),
        (quantisation.config(FORMATS["w4a16-g32"]), {"tp_size": 4}, H100, "--tp-size 4 splits intermediate_size 2112 within a group"),
    ],
)
def test_experts_that_no_kernel_serves_are_refused_with_what_works(given: Any, arguments: Any, capability: Any, said: str) -> None:
    found = problem(config("26b-a4b", **(given or {})), capability, **arguments)
    assert found is not None
    assert said in found
    assert "w4a16-g32" in found.rsplit("here work", 1)[1]
    assert ("fp8" in found.rsplit("here work", 1)[1]) is (capability != A100)


def test_a_dense_model_takes_what_experts_do_not() -> None:
    for given in (
        compressed({**INT4, "symmetric": False}),
        {"quant_method": "gptq", "bits": 4},
        quantisation.config(FORMATS["fp8-dynamic"]),
    ):
        assert problem(config("31b", **given), A100) is None
    assert problem(config("26b-a4b", quant_method="modelopt", quant_algo="NVFP4"), B200) is None


def test_the_cpu_engine_says_what_it_cannot_read() -> None:
    assert "reads checkpoints of compressed-tensors only" in str(problem(config("31b", quant_method="gptq", bits=4), None, cpu=True))
    assert "symmetric weights" in str(problem(config("31b", **compressed({**INT4, "symmetric": False})), None, cpu=True))
    assert "quantises to fp8 only" in str(problem(config("31b"), None, cpu=True, quantization="mxfp8"))


def test_a_gguf_file_of_gemma_4_is_refused(tmp_path: Path) -> None:
    key, value = b"general.architecture", b"gemma4"
    head = b"GGUF" + (3).to_bytes(4, "little") + bytes(16) + len(key).to_bytes(8, "little") + key + (8).to_bytes(4, "little")
    (tmp_path / "model.gguf").write_bytes(head + len(value).to_bytes(8, "little") + value)
    (tmp_path / "other.gguf").write_bytes(head + (5).to_bytes(8, "little") + b"llama")
    with pytest.raises(PreflightError, match=r"model\.gguf is a GGUF file of Gemma 4"):
        quantised_limits.refuse_gguf(str(tmp_path / "model.gguf"))
    quantised_limits.refuse_gguf(str(tmp_path / "other.gguf"))
    quantised_limits.refuse_gguf("google/gemma-4-31B-it")
