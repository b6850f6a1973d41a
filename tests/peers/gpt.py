"""The course's small GPT: pre-norm blocks, causal attention, learned positions, a head of its own."""

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 256
EPSILON = 1e-5


class Block(nn.Module):
    """Attention and an MLP, each behind a layer norm and beside a shortcut.

    One product computes queries, keys and values, and PyTorch's fused attention mixes them.
    """

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, EPSILON)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, EPSILON)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        """Return x with what attention and the MLP add to it."""
        batch, tokens, width = x.shape
        by_heads = self.attention(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = by_heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Bytes to the logits of the next byte."""

    def __init__(self, blocks, width, heads, context):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width, EPSILON)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens):
        """Return the logits, a row for each token."""
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)
