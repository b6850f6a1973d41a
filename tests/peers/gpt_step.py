"""A training step of a small GPT: forward, cross-entropy, backward, AdamW's update in one kernel, loss read."""

import torch
import torch.nn.functional as F

from gpt import VOCABULARY, Gpt
from measure import answer, arguments, times

LEARNING_RATE = 1e-3

if __name__ == "__main__":
    args = arguments(__doc__, batch=32, blocks=4, width=128, heads=4, context=64)
    model = Gpt(args.blocks, args.width, args.heads, args.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    tokens, labels = torch.randint(VOCABULARY, (2, args.batch, args.context))

    def step():
        """Make one training step and return its loss."""
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(tokens), labels.flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    answer("seconds", step=times(step, args.repetitions))
