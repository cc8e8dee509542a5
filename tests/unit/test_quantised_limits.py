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


def problem(
    model: dict[str, Any], capability: tuple[int, int] | None = H100, cpu: bool = False, kept: bool = False, **arguments: Any
) -> str | None:
    try:
        quantised_limits.check(model, arguments, capability=capability, cpu_engine=cpu, keeps_four_bits=kept)
    except PreflightError as error:
        return str(error)
    return None


@pytest.mark.parametrize("size", ["26b-a4b", "31b", "12b", "e2b", "e4b"])
def test_what_divides_the_model_is_let_through_on_a_hopper_and_on_the_cpu_engine(size: str) -> None:
    for name, form in FORMATS.items():
        if quantisation.reason_against_size(real_sizes.target(size)["text_config"], form) is None:
            assert problem(config(size, name)) is None
            assert problem(config(size, name), None, cpu=True) is None
    assert problem(config(size), quantization="fp8") is None
    assert problem(config(size, "fp8-dynamic"), tp_size=2) is None
    assert (problem(config(size, "w4a16-g32"), tp_size=2) is None) is (size != "26b-a4b"), "2112 / 2 is no multiple of 64"
    assert problem(config(size, "w4a16-g32"), None, cpu=True, tp_size=2) is None
    assert problem(config(size, "w4a16-g32"), kept=True, tp_size=2) is None, "no Marlin, whose tiles would have to divide"


def test_ranks_of_4_bit_weights_that_are_for_marlin_are_refused() -> None:
    said = "--tp-size 2 leaves a rank 1056 of intermediate_size 2112, and Marlin multiplies 4-bit weights by 64 inputs"
    assert said in str(problem(config("26b-a4b", "w4a16-g32"), tp_size=2))
    given = compressed({**INT4, "actorder": "group"})
    assert said in str(problem(config("26b-a4b", **given), kept=True, tp_size=2)), "which stay for Marlin on a Hopper too"
    assert problem(config("26b-a4b", **compressed({**INT4, "symmetric": False})), kept=True, tp_size=2) is None
    assert "splits intermediate_size 2112 within a group" in str(problem(config("26b-a4b", "w4a16-g32"), kept=True, tp_size=4))


def with_groups(*groups: tuple[str, dict[str, Any]], ignore: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a ``quantization_config`` whose groups have a target and weights each."""
    each = {f"group_{n}": {"targets": [target], "weights": weights} for n, (target, weights) in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": each, "ignore": list(ignore)}


@pytest.mark.parametrize("ignore", [
    tuple(f"model.language_model.layers.{n}.mlp.{part}_proj" for n in range(30) for part in ("gate", "up", "down")),
    (r"re:.*\.mlp\..*",),
])  # fmt: skip
def test_a_dense_ffn_that_stays_in_bfloat16_is_nothing_for_marlin(ignore: tuple[str, ...]) -> None:
    """As the published 26B-A4B has it: experts and attention in 4 bits."""
    assert problem(config("26b-a4b", **with_groups(("Linear", INT4), ignore=ignore)), tp_size=2) is None


def test_one_dense_product_in_4_bits_is_for_marlin() -> None:
    ignore = tuple(f"model.language_model.layers.{n}.mlp.{part}_proj" for n in range(30) for part in ("gate", "up", "down"))
    assert "leaves a rank 1056" in str(problem(config("26b-a4b", **with_groups(("Linear", INT4), ignore=ignore[:-1])), tp_size=2))


@pytest.mark.parametrize("order", ["static", "weight", False, None])
def test_an_order_that_the_calibration_alone_went_by_is_none(order: Any) -> None:
    """llm-compressor's GPTQ has ``static`` by default."""
    given = compressed({**INT4, "actorder": order})
    assert problem(config("26b-a4b", **given)) is None
    assert problem(config("26b-a4b", **given), None, cpu=True) is None
    assert problem(config("26b-a4b", **given), kept=True, tp_size=2) is None


@pytest.mark.parametrize("order", ["group", "dynamic", True])
def test_inputs_in_another_order_are_refused(order: Any) -> None:
    said = "inputs in another order (actorder): SGLang's one kernel with gelu for 4-bit experts"
    assert said in str(problem(config("26b-a4b", **compressed({**INT4, "actorder": order}))))


INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
ATTENTION = r"re:.*self_attn\..*"


def test_a_group_for_other_layers_says_nothing_of_the_experts() -> None:
    refused = "SGLang has no kernel with gelu for such experts"
    assert problem(config("26b-a4b", **with_groups(("Linear", INT4), (ATTENTION, INT8)))) is None
    assert problem(config("26b-a4b", **with_groups((r"re:.*\.experts\..*", INT4), ("Linear", INT8)))) is None
    assert refused in str(problem(config("26b-a4b", **with_groups((ATTENTION, INT4), ("Linear", INT8)))))
    assert refused in str(problem(config("26b-a4b", **with_groups((r"re:.*layers\.7\.experts\..*", INT8), ("Linear", INT4)))))
    assert problem(config("26b-a4b", **with_groups(("Linear", INT8), ignore=(r"re:.*experts.*",)))) is None


NVFP4_EXPERTS = {"model.layers.0.experts.0.gate_proj": {"quant_algo": "NVFP4"}}
MXFP4_OF_QUARK = {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}, "input_tensors": {"dtype": "fp4"}}
FP8_OF_QUARK = {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, "input_tensors": {"dtype": "fp8_e4m3"}}


@pytest.mark.parametrize(
    ("given", "capability", "said"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, H100, "blocks that divide moe_intermediate_size, which is 704"),
        ({"quant_method": "blockwise_int8", "weight_block_size": [128, 128]}, H100, "blocks that divide moe_intermediate_size"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, H100, "bitsandbytes does not know Gemma 4's layers"),
        ({"quant_method": "mxfp4"}, H100, "SGLang has no MXFP4 for linear layers on CUDA GPUs"),
        ({"quant_method": "mxfp4"}, B200, "SGLang has no MXFP4 for linear layers on CUDA GPUs"),
        ({"quant_method": "mxfp8"}, B200, "kernels for MXFP8 experts compute silu"),
        ({"quant_method": "quark", "global_quant_config": MXFP4_OF_QUARK}, H100, "quant_method quark (MXFP4)"),
        ({"quant_method": "quark", "layer_quant_config": {"*.mlp.*": MXFP4_OF_QUARK}}, H100, "quant_method quark (MXFP4)"),
        ({"quant_method": "w4afp8"}, H100, "quant_method w4afp8: SGLang's kernels for such experts compute silu"),
        ({"quant_method": "moe_wna16"}, H100, "compute silu"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": NVFP4_EXPERTS}, H100, "before Blackwell"),
        (compressed({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}), B200, "go through Marlin"),
    ],
)
def test_methods_of_checkpoints_that_cannot_work_are_refused(given: dict[str, Any], capability: Any, said: str) -> None:
    found = str(problem(config("26b-a4b", **given), capability))
    assert said in found
    assert "here work checkpoints of compressed-tensors in fp8-dynamic, fp8-static, w4a16-g32" in found


@pytest.mark.parametrize(
    ("flag", "capability", "said"),
    [
        ("awq", H100, "--quantization awq: SGLang's kernels for such experts compute silu"),
        ("gptq", H100, "--quantization gptq: SGLang's kernels for such experts compute silu"),
        ("gptq_marlin", H100, "compute silu"),
        ("mxfp8", H100, "kernels for MXFP8 experts compute silu"),
        ("mxfp8", B200, "kernels for MXFP8 experts compute silu"),
        ("mxfp4", H100, "no MXFP4 for linear layers"),
        ("w8a8_int8", H100, "copy bfloat16 weights into int8 quantised values without scales"),
        ("w8a8_fp8", H100, "rounds the experts to float8 without a scale"),
        ("bitsandbytes", H100, "bitsandbytes does not know Gemma 4's layers"),
        ("modelopt_fp4", H100, "--quantization modelopt_fp4: before Blackwell"),
        ("nvfp4_online", H100, "--quantization nvfp4_online: before Blackwell"),
        ("quark_mxfp4", H100, "its kernels are not for CUDA GPUs"),
    ],
)
def test_flags_that_cannot_work_on_a_bfloat16_checkpoint_are_refused(flag: str, capability: Any, said: str) -> None:
    found = str(problem(config("26b-a4b"), capability, quantization=flag))
    assert said in found
    assert "and --quantization fp8 of a bfloat16 checkpoint" in found


def test_what_sglang_serves_by_other_methods_is_let_through() -> None:
    given: dict[str, Any]
    for given in (
        {"quant_method": "fp8", "activation_scheme": "static"},
        {"quant_method": "fp8", "weight_block_size": [32, 32]},
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        {"quant_method": "quark", "global_quant_config": FP8_OF_QUARK},
        {"quant_method": "w8a8_int8"},
    ):
        assert problem(config("26b-a4b", **given)) is None
    dense: list[dict[str, Any]] = [
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    ]
    for given in dense:
        assert problem(config("31b", **given)) is None
        assert problem(config("31b", **given), tp_size=2) is None
    for flag in ("unquant", "humming"):
        assert problem(config("26b-a4b"), quantization=flag) is None
    for flag in ("modelopt_fp4", "nvfp4_online"):
        assert problem(config("26b-a4b"), B200, quantization=flag) is None
    for flag in ("w8a8_fp8", "modelopt_fp4"):  # whose dense layers are quantised while loading, or not at all
        assert problem(config("31b"), quantization=flag) is None


def test_dense_models_are_refused_what_no_layer_can_do() -> None:
    blocks: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert "--tp-size 16 splits intermediate_size 21504 within a block of 128" in str(problem(config("31b", **blocks), tp_size=16))
    assert "needs compute capability 10.0" in str(problem(config("31b"), quantization="mxfp8"))
    for flag, said in (("w8a8_int8", "without scales"), ("bitsandbytes", "does not know"), ("mxfp4", "no MXFP4 for linear")):
        assert said in str(problem(config("31b"), quantization=flag))


@pytest.mark.parametrize("runner", ["deep_gemm", "cutlass", "flashinfer_trtllm", "marlin"])
def test_runners_of_fp8_experts_that_compute_silu_are_refused(runner: str) -> None:
    said = f"--moe-runner-backend {runner}: of SGLang's kernels for fp8 experts only triton's computes gelu"
    assert said in str(problem(config("26b-a4b", "fp8-dynamic"), moe_runner_backend=runner))
    assert said in str(problem(config("26b-a4b", quant_method="fp8"), moe_runner_backend=runner))
    assert said in str(problem(config("26b-a4b"), quantization="fp8", moe_runner_backend=runner))
    assert problem(config("31b", "fp8-dynamic"), moe_runner_backend=runner) is None
    for taken in ("auto", "triton"):
        assert problem(config("26b-a4b", "fp8-dynamic"), moe_runner_backend=taken) is None
    assert problem(config("26b-a4b"), quantization="fp8", moe_runner_backend="flashinfer_cutlass") is None, "where SGLang takes triton"


@pytest.mark.parametrize(
    ("given", "arguments", "capability", "said"),
    [
        (
            compressed({**INT4, "symmetric": False}),
            {"moe_runner_backend": "triton"},
            H100,
            "groups of 32, not symmetric, with --moe-runner-backend triton: SGLang refuses the two together; leave the flag out",
        ),
        (compressed({**INT4, "group_size": 128}), {}, H100, "do not divide the experts' moe_intermediate_size 704"),
        (compressed({**INT4, "group_size": 64}), {}, H100, "takes groups of 32 or 128 in order"),
        (compressed(INT4), {"moe_runner_backend": "marlin"}, H100, "--moe-runner-backend marlin: of SGLang's kernels"),
        (compressed({**INT4, "num_bits": 8}), {}, H100, "SGLang has no kernel with gelu for such experts"),
        (
            {"quant_method": "gptq", "bits": 8},
            {},
            H100,
            "gptq with 8 bits, not 4, beside which single layers may have 8: SGLang's kernels for such",
        ),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemv"},
            {},
            H100,
            "awq with quantised values packed otherwise (version gemv)",
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, {}, H100, "before Blackwell"),
        (quantisation.config(FORMATS["fp8-dynamic"]), {}, A100, "need compute capability 8.9, this GPU has 8.0"),
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
        compressed({**INT4, "actorder": "group"}),
        {"quant_method": "gptq", "bits": 4},
        quantisation.config(FORMATS["fp8-dynamic"]),
    ):
        assert problem(config("31b", **given), A100) is None
    assert problem(config("26b-a4b", quant_method="modelopt", quant_algo="NVFP4"), B200) is None


def test_the_cpu_engine_says_what_it_cannot_read() -> None:
    assert "reads checkpoints of compressed-tensors only" in str(problem(config("31b", quant_method="gptq", bits=4), None, cpu=True))
    assert "weights without activation order" in str(problem(config("31b", **compressed({**INT4, "actorder": "group"})), None, cpu=True))
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
