#!/usr/bin/env python3
"""The best published kernels at the shapes of `fovea bench ops --device cuda`: what ours are measured beside.

PyTorch's attention (flash, cuDNN) and its FlexAttention over block masks; FlashInfer, where it is installed (its kernels are
compiled on first use, which takes a minute or two). 32 query and 8 KV heads, bf16, causal where rows are prefilled; PyTorch's keys
and values lie contiguous, as if gathered, FlashInfer's in pages. Medians over CUDA events; inputs take turns where they would stay in
the L2 cache. Needs PyTorch with CUDA.

  tools/gpu_peers.py [PART...]     of: sdpa flex flashinfer; default: all
"""
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, KV_HEADS = 32, 8
BLOCK = 128  # of a block mask


def median_s(work, rounds=11):
    for i in range(3):
        work(i)
    times = []
    for i in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work(i)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def drawn(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def one_line(error):
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:150]}"


def decode(batch, tokens, d):
    sets = [(drawn(batch, HEADS, 1, d), drawn(batch, KV_HEADS, tokens, d), drawn(batch, KV_HEADS, tokens, d)) for _ in range(2)]
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)):
        what = f"decode, batch {batch}, {tokens} tokens, d {d}, PyTorch {name}"
        try:
            with sdpa_kernel(backend):
                s = median_s(lambda i: F.scaled_dot_product_attention(*sets[i % 2], enable_gqa=True))
            read = 2 * batch * KV_HEADS * tokens * d * 2
            print(f"{what}: {s * 1e6:.1f} us, {read / s / 1e12:.2f} TB/s")
        except RuntimeError as error:
            print(f"{what}: {one_line(error)}")


def prefill(tokens, d):
    q, k, v = drawn(1, HEADS, tokens, d), drawn(1, HEADS, tokens, d), drawn(1, HEADS, tokens, d)
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)):
        with sdpa_kernel(backend):
            s = median_s(lambda _: F.scaled_dot_product_attention(q, k, v, is_causal=True), 7)
        print(f"prefill, {tokens} rows, d {d}, PyTorch {name}: {2 * tokens * (tokens + 1) * HEADS * d / s / 1e12:.0f} TFLOP/s")


def sdpa():
    for batch, tokens, d in ((16, 32768, 128), (1, 131072, 128), (8, 131072, 128), (16, 32768, 64)):
        decode(batch, tokens, d)
    for tokens, d in ((32768, 128), (32768, 64), (8192, 128), (131072, 128)):
        prefill(tokens, d)


def drawn_lists(tokens, density):
    """[HEADS, blocks, blocks]: the diagonal, the first block, and as many others as make a share of the causal ones."""
    n = tokens // BLOCK
    rows = torch.arange(n, device="cuda")
    causal = rows[:, None] >= rows[None, :]
    chosen = torch.rand(HEADS, n, n, device="cuda") < density
    chosen |= (rows[:, None] == rows[None, :]) | (rows[None, :] == 0)
    return chosen & causal


def flex():
    """FlexAttention through a block mask: full blocks are not masked, those on the diagonal are."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention
    compiled = torch.compile(flex_attention, dynamic=False)

    def causal(b, h, q, kv):
        return q >= kv

    def sparse(tokens, d, density):
        q, k, v = drawn(1, HEADS, tokens, d), drawn(1, KV_HEADS, tokens, d), drawn(1, KV_HEADS, tokens, d)
        chosen = drawn_lists(tokens, density)
        diagonal = torch.eye(chosen.shape[1], dtype=torch.bool, device="cuda").expand_as(chosen)

        def lists(mask):
            counts = mask.sum(-1, dtype=torch.int32)
            return counts[None], torch.argsort(mask.int(), dim=-1, descending=True, stable=True).int()[None]

        mask = BlockMask.from_kv_blocks(*lists(diagonal), *lists(chosen & ~diagonal), BLOCK_SIZE=BLOCK, mask_mod=causal,
                                        seq_lengths=(tokens, tokens), compute_q_blocks=False)
        pairs = (chosen & ~diagonal).sum().item() * BLOCK * BLOCK + HEADS * (tokens // BLOCK) * BLOCK * (BLOCK + 1) / 2
        s = median_s(lambda _: compiled(q, k, v, block_mask=mask, enable_gqa=True), 5)
        print(f"block-sparse prefill, {density * 100:.0f} % of the blocks, {tokens} rows, d {d}, FlexAttention: "
              f"{s * 1e3:.2f} ms, {4 * pairs * d / s / 1e12:.0f} TFLOP/s")

    for tokens in (32768, 131072):
        for density in (0.05, 0.1, 0.3):
            sparse(tokens, 128, density)


def flashinfer():
    try:
        import flashinfer as fi
    except Exception as error:  # whatever an installation lacks
        print(f"FlashInfer: {one_line(error)}")
        return
    print("FlashInfer", fi.__version__)
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    ints = lambda values: torch.tensor(values, dtype=torch.int32, device="cuda")

    def pages(batch, tokens, page):
        per = tokens // page
        return (torch.arange(batch + 1, device="cuda", dtype=torch.int32) * per,
                torch.randperm(batch * per, device="cuda").int(), ints([page] * batch))

    def paged_decode(batch, tokens, d, page=16):
        caches = [drawn(batch * tokens // page, 2, KV_HEADS, page, d) for _ in range(2)]
        q = drawn(batch, HEADS, d)
        indptr, indices, last = pages(batch, tokens, page)
        wrapper = fi.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=True)
        wrapper.plan(indptr, indices, last, HEADS, KV_HEADS, d, page, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
        s = median_s(lambda i: wrapper.run(q, caches[i % 2]))
        read = 2 * batch * KV_HEADS * tokens * d * 2
        print(f"decode, batch {batch}, {tokens} tokens, d {d}, FlashInfer, pages of {page}: {s * 1e6:.1f} us, "
              f"{read / s / 1e12:.2f} TB/s")

    def latent(rows, chosen=2048, tokens=131072, heads=128, latent=512, rope=64):
        """Each row reads tokens of its own: pages of one token."""
        wrapper = fi.mla.BatchMLAPagedAttentionWrapper(workspace, backend="fa3")
        indices = torch.stack([torch.randperm(tokens, device="cuda")[:chosen].sort().values for _ in range(rows)]).flatten().int()
        indptr = torch.arange(rows + 1, dtype=torch.int32, device="cuda")
        wrapper.plan(indptr, indptr * chosen, indices, ints([chosen] * rows), heads, latent, rope, 1, False,
                     (128 + rope) ** -0.5, torch.bfloat16, torch.bfloat16)
        q, q_rope = drawn(rows, heads, latent), drawn(rows, heads, rope)
        ckv, kpe = drawn(tokens, 1, latent), drawn(tokens, 1, rope)
        s = median_s(lambda _: wrapper.run(q, q_rope, ckv, kpe))
        print(f"latent attention, {rows} rows, {chosen} of {tokens} tokens, {heads} heads, FlashInfer: {s * 1e6:.1f} us, "
              f"{2 * rows * chosen * heads * (2 * latent + rope) / s / 1e12:.0f} TFLOP/s")

    for work in (lambda: [paged_decode(b, t, 128) for b, t in ((16, 32768), (1, 131072), (8, 131072))],
                 lambda: [latent(rows) for rows in (1024, 128, 32)]):
        try:
            work()
        except Exception as error:
            print(f"FlashInfer: {one_line(error)}")


def main():
    parts = {"sdpa": sdpa, "flex": flex, "flashinfer": flashinfer}
    asked = sys.argv[1:] or list(parts)
    if not set(asked) <= set(parts):
        raise SystemExit(f"gpu_peers: parts are {' '.join(parts)}")
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    for name in asked:
        try:
            parts[name]()
        except Exception as error:
            print(f"{name}: {one_line(error)}")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
