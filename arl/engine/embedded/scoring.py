"""Compute what a model says of tokens that it has not sampled: a prefill of several sequences, and blocks of logits."""

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from arl.models.packed import PackedContext
from arl.types import ScoreRequest, TokenScores

ROWS = 1024  # of logits that are held at once


@torch.inference_mode()
def score_tokens(model: PreTrainedModel, requests: Sequence[ScoreRequest]) -> list[TokenScores]:
    """Score the tokens of each request from its `start` on. All have one temperature and one top_k."""
    first = requests[0]
    lengths = [len(request.token_ids) for request in requests]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    context = PackedContext(offsets, offsets, np.arange(offsets[-1], dtype=np.int32))
    ids = torch.tensor([token for request in requests for token in request.token_ids], device=model.device)
    positions = torch.cat([torch.arange(length, device=model.device) for length in lengths])
    output = model.model(input_ids=ids[None], position_ids=positions[None], context=context, use_cache=False)
    scored = [range(o + r.start, o + n) for o, r, n in zip(offsets.tolist(), requests, lengths, strict=False)]
    at = torch.tensor([place for places in scored for place in places], device=model.device)
    found = TokenScores.empty(int(offsets[-1]), first.top_k)
    for block in torch.split(at, ROWS):
        predicting = output.last_hidden_state[0, block - 1]  # a token is predicted by the one before it
        logprobs = (model.lm_head(predicting).float() / first.temperature).log_softmax(-1)
        top = logprobs.topk(first.top_k, dim=-1)
        places = block.cpu().numpy()
        found.logprobs[places] = logprobs.gather(1, ids[block][:, None])[:, 0].cpu().numpy()
        found.top_ids[places] = top.indices.cpu().numpy()
        found.top_logprobs[places] = top.values.cpu().numpy()
    parts = itertools.pairwise(offsets.tolist())
    return [TokenScores(found.logprobs[i:j], found.top_ids[i:j], found.top_logprobs[i:j]) for i, j in parts]
