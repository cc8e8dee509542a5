"""4-bit checkpoints of 26B-A4B as they are published: the tokens of the same levels laid out as ``checkpoint --quantization`` does."""

import re
from pathlib import Path

from sglang_gemma4.tiny import checkpoints, quantise
from sglang_gemma4.tiny.quantisation import FORMATS
from tests.engine.test_quantised import accept_length, greedy, tokens_of
from tests.harness.checkpoints import published_checkpoint
from tests.harness.engine_fork import Nursery

MODEL, FORM = "tiny-26b-a4b", "w4a16-g32"


def dense_as_it_is(folder: Path) -> Path:
    """Its experts and attention in 4 bits, the dense FFN in bfloat16, its layers named in ``ignore``; the assistant beside it."""
    checkpoints.write(MODEL, str(folder), quantised=FORM)
    files = quantise.quantised(
        checkpoints.SHIPPED / MODEL, FORMATS[FORM], chosen=lambda layer: quantise.is_chosen(layer) and not re.search(r"\.mlp\.", layer)
    )
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_experts_in_one_tensor_beside_a_dense_ffn_in_bfloat16(nursery: Nursery, tmp_path: Path) -> None:
    one_by_one = dense_as_it_is(tmp_path / "one_by_one")
    published = published_checkpoint.write(one_by_one, tmp_path / "published")
    expected, plain, drafted = greedy(nursery, one_by_one), greedy(nursery, published), greedy(nursery, published, mtp=True)
    assert [one.logprobs for one in plain] == [one.logprobs for one in expected], "bit for bit"
    assert tokens_of(drafted) == tokens_of(plain)
    assert accept_length(drafted) > 1.5
