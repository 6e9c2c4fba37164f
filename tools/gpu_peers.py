#!/usr/bin/env python3
"""PyTorch's attention at the shapes of `fovea bench ops --device cuda`: what a paged kernel is measured beside.

Keys and values lie contiguous here, as if gathered; 32 query and 8 KV heads, bf16, causal where rows are prefilled.
Medians over CUDA events. Needs PyTorch with CUDA.
"""
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, KV_HEADS = 32, 8


def median_s(work, rounds=11):
    for _ in range(3):
        work(0)
    times = []
    for i in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work(i)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def tensors(batch, rows, tokens, d):
    make = lambda heads, n: torch.randn(batch, heads, n, d, device="cuda", dtype=torch.bfloat16)
    return make(HEADS, rows), make(KV_HEADS, tokens), make(KV_HEADS, tokens)


def decode(batch, tokens, d):
    sets = [tensors(batch, 1, tokens, d) for _ in range(2)]
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        try:
            with sdpa_kernel(backend):
                s = median_s(lambda i: F.scaled_dot_product_attention(*sets[i % 2], enable_gqa=True))
            read = 2 * batch * KV_HEADS * tokens * d * 2
            print(f"decode, batch {batch}, {tokens} tokens, d {d}, {name}: {s * 1e6:.1f} us, {read / s / 1e12:.2f} TB/s")
        except RuntimeError as error:
            print(f"decode, batch {batch}, {tokens} tokens, d {d}, {name}: {str(error).splitlines()[0]}")


def prefill(tokens, d):
    q, k, v = tensors(1, tokens, tokens, d)
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (k, v))
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        with sdpa_kernel(backend):
            s = median_s(lambda _: F.scaled_dot_product_attention(q, k, v, is_causal=True), 7)
        print(f"prefill, {tokens} rows, d {d}, {name}: {2 * tokens * (tokens + 1) * HEADS * d / s / 1e12:.0f} TFLOP/s")


def main():
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    decode(16, 32768, 128)
    decode(1, 131072, 128)
    decode(8, 131072, 128)
    for d in (128, 64):
        prefill(32768, d)
    prefill(8192, 128)


if __name__ == "__main__":
    main()
