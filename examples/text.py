"""A text classifier: whole numbers stay whole numbers, so embeddings work."""

import torch
from torch import nn

import sdfeel

GOOD = ["wonderful", "lovely", "superb", "kind", "bright", "gentle"]
BAD = ["awful", "boring", "cruel", "dull", "broken", "grim"]
PLAIN = ["the", "a", "film", "book", "plot", "was", "is", "very", "quite", "today", "with", "and"]
VOCABULARY = {word: number for number, word in enumerate(["", *PLAIN, *GOOD, *BAD])}

torch.manual_seed(0)


def reviews(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sentences of eight words, as tokens; two of the words say what the writer thinks."""
    labels = torch.randint(0, 2, (count,))
    rows = []
    for label in labels:
        words = [PLAIN[int(i)] for i in torch.randint(0, len(PLAIN), (6,))]
        words += [(GOOD if label else BAD)[int(i)] for i in torch.randint(0, 6, (2,))]
        order = torch.randperm(8).tolist()
        rows.append([VOCABULARY[words[i]] for i in order])
    return torch.tensor(rows), labels


class Reader(nn.Module):
    """The mean of the words' vectors, and a line between good and bad."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(len(VOCABULARY), 8)
        self.head = nn.Linear(8, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(tokens).mean(dim=1))


experiment = {
    "network": {"clients": 6, "servers": 3},
    "data": {"name": (reviews(300), reviews(100)), "partition": "dirichlet"},
    "model": Reader(),
    "training": {"iterations": 60, "learning_rate": 0.5},
}
*_, measured, end = sdfeel.Run(experiment)
print(f"accuracy {measured.accuracy:.2f} after {end.seconds:.3f} virtual seconds")
