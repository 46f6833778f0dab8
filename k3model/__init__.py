"""The Kimi K3 text decoder in plain torch, with forks that run two legs on two streams: the thing that is measured.

Read in this order: `config` (numbers) - `policy`, `streams` (forks) - `kda`, `mla`, `moe`, `attn_res` (blocks)
- `cache` (what a sequence remembers) - `decode` (the stack) - `capture` (a batch, greedily, as a CUDA graph).
`config`, `policy` and `footprint` import without torch. Out of scope: measuring, records, recipes (`k3bench`).
"""
