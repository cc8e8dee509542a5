"""Training rows of the tiny models: what is predicted, where documents and images begin, and the draft head's clusters."""

import random
from types import SimpleNamespace

import numpy as np
import torch

from sglang_gemma4.tiny import batches, checkpoints, families, tokenizer, training, world
from sglang_gemma4.tiny.packed_forward import to_device

RAW = tokenizer.load_raw(checkpoints.SHIPPED / "tiny-e2b")
POOL = batches.Pictures(np.zeros((12, 4, 48), np.float16), np.zeros((12, 4, 2), np.int16), [3] * 12, {c: [0] for c in world.COLOURS})


def test_rows_follow_their_seed_and_hold_whole_documents() -> None:
    rows = batches.text_rows(batches.Encoder(RAW), 1, 4)
    assert np.array_equal(rows, batches.text_rows(batches.Encoder(RAW), 1, 4))
    assert not np.array_equal(rows, batches.text_rows(batches.Encoder(RAW), 2, 4))
    assert rows.shape == (4, batches.ROW)
    for row in rows:
        used = row[row["document"] >= 0]
        begins = np.flatnonzero(np.diff(used["document"], prepend=-1))
        assert (used["id"][begins] == families.BOS).all()
        assert (used["weight"][begins] == 0).all()
        assert (row[len(used) :] == batches.PADDING).all()


def test_images_become_soft_tokens_that_are_not_predicted() -> None:
    encoder = batches.Encoder(RAW, POOL)
    rows = batches.alone([batches.colour_document(encoder, random.Random(0), number) for number in (1, 2)])
    soft = rows["id"] == encoder.image
    assert soft.sum(1).tolist() == [3, 6]
    assert (rows["weight"][soft] == 0).all()
    blocks, begins = batches.blocks(rows["picture"])
    assert (blocks.max(1).tolist(), begins.sum()) == ([0, 1], 3)
    batch = to_device(rows, POOL, SimpleNamespace(sliding_window=8, use_bidirectional_attention="vision"), "cpu")
    assert batch.pixel_values is not None
    assert batch.pixel_values.shape == (3, 4, 48)
    first, last = np.flatnonzero(blocks[1] == 0)[[0, -1]]
    assert batch.masks["sliding_attention"][1, 0, first, last] == 0, "images attend both ways on sliding layers"
    assert batch.masks["full_attention"][1, 0, first, last] < 0


def test_clusters_are_equal_and_of_what_is_alike() -> None:
    assistant = training.build_assistant("tiny-e2b", 0)
    head, table = assistant.masked_embedding, assistant.lm_head.weight
    kinds = torch.randperm(len(table), generator=torch.Generator().manual_seed(0)) % head.num_centroids
    with torch.no_grad():
        table.copy_(torch.eye(head.num_centroids)[kinds][:, : table.shape[1]] + 0.01 * torch.randn_like(table))
    training.cluster(assistant)
    members = head.token_ordering.view(head.num_centroids, -1)
    assert sorted(members.flatten().tolist()) == list(range(len(table)))
    pure = (kinds[members] == kinds[members][:, :1]).all(1).float().mean()
    assert pure > 0.5
