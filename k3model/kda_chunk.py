"""KDA over many tokens at once: the chunk form of the delta rule, for prefill.

In: q, k normalised and q scaled, v and log decay g, all [B, T, h, D]; beta [B, T, h]; state [B, h, V, K]; all wide.
Out: o [B, T, h, D] and the state after T tokens. Within a chunk tokens meet through a triangular system; the state
moves from chunk to chunk. Out of scope: everything before and after the rule (`kda.py`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

CHUNK = 64


def chunk_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See the module. T need not be a multiple of the chunk: padding has k = 0, beta = 0, g = 0 and changes nothing."""
    tokens = q.shape[1]
    q, k, v, g = (_chunks(x) for x in (q, k, v, g))
    beta = _chunks(beta.unsqueeze(-1)).squeeze(-1)
    G = g.cumsum(-2)
    outputs = []
    for n in range(q.shape[2]):
        o, state = _one_chunk(q[:, :, n], k[:, :, n], v[:, :, n], G[:, :, n], beta[:, :, n], state)
        outputs.append(o)
    return torch.cat(outputs, dim=2).transpose(1, 2)[:, :tokens], state


def _chunks(x: torch.Tensor) -> torch.Tensor:
    """[B, T, h, D] -> [B, h, chunks, C, D], zero-padded."""
    padded = F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % CHUNK))
    return padded.unflatten(1, (-1, CHUNK)).permute(0, 3, 1, 2, 4)


def _one_chunk(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, G: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One chunk [B, h, C, D] with running decay G and state [B, h, V, K]."""
    decay = _pairwise_decay(G)
    # sum_d x_i[d] k_j[d] exp(G_i[d] - G_j[d]) for x = k and x = q in one product per row i
    met = (decay * k.unsqueeze(-3)) @ torch.stack([k, q], dim=-1)
    keys, queries = met[..., 0].tril(-1) * beta.unsqueeze(-1), met[..., 1].tril()
    unit = torch.eye(q.shape[-2], device=q.device, dtype=q.dtype)
    right = torch.cat([G.exp() * k, v], dim=-1) * beta.unsqueeze(-1)
    w, u = torch.linalg.solve_triangular(unit + keys, right, upper=False, unitriangular=True).chunk(2, dim=-1)
    new = u - w @ state.mT
    out = (q * G.exp()) @ state.mT + queries @ new
    last = G[..., -1:, :]
    state = state * last.exp() + new.mT @ ((last - G).exp() * k)
    return out, state


def _pairwise_decay(G: torch.Tensor) -> torch.Tensor:
    """exp(G_i - G_j) for j <= i. The mask is on the exponent: G reaches -320, so the factors alone would overflow."""
    difference = G.unsqueeze(-2) - G.unsqueeze(-3)
    size = G.shape[-2]
    later = torch.ones(size, size, device=G.device, dtype=torch.bool).triu(1)
    return difference.masked_fill(later.unsqueeze(-1), float("-inf")).exp()
