"""LoRA on a small transformer: the model is frozen, and only thin adapters are sent."""

import torch
from torch import nn

import sdfeel

WORDS, LENGTH, WIDTH, SUBJECTS = 24, 8, 16, 4
torch.manual_seed(0)


class LoRA(nn.Module):
    """A frozen layer, plus a product of two thin matrices that is trained."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.lora_b = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + x @ self.lora_a.T @ self.lora_b.T


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH).requires_grad_(False)
        self.places = nn.Embedding(LENGTH, WIDTH).requires_grad_(False)
        self.query, self.key, self.value = (LoRA(WIDTH, WIDTH) for _ in range(3))
        self.feed_forward = nn.Sequential(LoRA(WIDTH, 32), nn.GELU(), LoRA(32, WIDTH))
        self.head = LoRA(WIDTH, SUBJECTS, rank=4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places.weight
        attention = self.query(x) @ self.key(x).transpose(1, 2) / WIDTH**0.5
        x = x + attention.softmax(dim=2) @ self.value(x)
        return self.head((x + self.feed_forward(x)).mean(dim=1))


def sentences(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight words, the last four of them about one of four subjects: the label."""
    labels = torch.randint(0, SUBJECTS, (count,))
    tokens = torch.randint(4 * SUBJECTS, WORDS, (count, LENGTH))  # words about nothing
    tokens[:, 4:] = 4 * labels[:, None] + torch.randint(0, 4, (count, 4))
    return tokens, labels


run = sdfeel.Run(
    {
        "network": {"clients": 4, "servers": 2},
        "data": {"name": (sentences(300), sentences(100)), "partition": "dirichlet"},
        "model": Transformer(),
        "training": {"iterations": 60, "optimizer": "adam", "learning_rate": 0.02},
        "personal": {"method": "parts", "travels": ["*lora*"]},
    }
)
*_, measured, end = run
whole = sum(value.numel() for value in run.model_of(0).values())
print(f"{len(run.model):,} of {whole:,} numbers travel; accuracy {measured.accuracy:.2f}")
