"""Which models fit, and the reasons why others do not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sdfeel.engine.base import Training
from sdfeel.engine.native.lower import ModelPlan, lower, unsupported
from sdfeel.models.zoo import MODELS

SHAPE = (3, 8, 8)
PLAIN = Training(0.1, 10)


class Written(nn.Module):
    """A model given by a function of (its layers, x)."""

    def __init__(self, run: Callable[["Written", Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(144, 10)
        self.square = nn.Linear(10, 10)
        self.drop, self.ten = nn.Dropout(0.5), nn.Conv2d(3, 10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def _twice(y: Tensor) -> Tensor:
    z = y.relu()
    return (z + y) + z


def in_eval_only(m: Written, x: Tensor) -> Tensor:
    x = m.linear(m.conv(x).flatten(1))
    return x if m.training else x.relu()


@pytest.mark.parametrize(
    "run",
    [
        lambda m, x: m.linear(torch.flatten(m.conv(x), 1)),
        lambda m, x: m.linear(m.conv(x).flatten(start_dim=1)),
        lambda m, x: m.linear(m.conv(x).view(x.size(0), -1).relu()),
        lambda m, x: m.linear(m.conv(x).relu().view(-1, 144)),
        lambda m, x: m.linear(F.relu(m.conv(x), inplace=True).reshape((x.shape[0], 144))),
        lambda m, x: m.linear(torch.tanh(F.gelu(m.conv(x), approximate="tanh")).flatten(1)),
        lambda m, x: m.linear(F.leaky_relu(m.conv(x), 0.3).sigmoid().flatten(1)),
        lambda m, x: m.linear(F.avg_pool2d(F.silu(m.conv(x)), 1).flatten(1)),
        lambda m, x: m.square(m.ten(x).mean((2, 3))),
        lambda m, x: m.square(F.adaptive_avg_pool2d(m.ten(x), 1).flatten(1)),
    ],
)
def test_ways_to_write_the_same_model(run: Any) -> None:
    for training in (PLAIN, Training(0.1, 10, loss=nn.CrossEntropyLoss())):
        assert unsupported(Written(run), training, SHAPE) is None


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (lambda m, x: m.square(m.square(m.linear(m.conv(x).flatten(1)))), "shares its weights"),
        (lambda m, x: m.linear(F.dropout(m.conv(x).flatten(1))), "training=self.training"),
        (lambda m, x: m.linear(m.conv(x).flatten(1)).sinh(), "layer 4 (a call of sinh) is not"),
        (lambda m, x: m.linear(m.conv(x).mean(1).flatten(1)), "is not the mean of each plane"),
        (
            lambda m, x: m.linear((m.conv(x) + 1).flatten(1)),
            "(a sum) does not add the outputs",
        ),
        (lambda m, x: m.linear((m.conv(x) + x).flatten(1)), "adds (4, 6, 6) and (3, 8, 8)"),
        (lambda m, x: m.linear(_twice(m.conv(x)).flatten(1)), "uses a layer's output twice"),
        (
            lambda m, x: m.linear(torch.cat([m.conv(x)]).flatten(1)),
            "cat makes it more than",
        ),
        (lambda m, x: m.linear(m.conv(x).flatten(2)), "does not flatten each example"),
        (lambda m, x: m.linear(m.conv(x).view(-1, 72)), "does not flatten each example"),
        (lambda m, x: m.conv(x), "not one line of numbers"),
        (lambda m, x: m.linear(m.conv(x)), r"layer 2 (Linear) gets an input of (4, 6, 6)"),
        (lambda m, x: m.conv(x) if x.sum() > 0 else x, "cannot be traced"),
        (in_eval_only, "behaves differently when it is not training"),
        (lambda m, x: (m.linear(m.conv(x).flatten(1)), 1), "its result makes it more than"),
    ],
)
def test_reasons_of_written_models(run: Any, reason: str) -> None:
    assert reason in (unsupported(Written(run), PLAIN, SHAPE) or "it fits")


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.Softplus(), "layer 1 (Softplus) is not one of Conv2d, Linear, BatchNorm, LayerNorm"),
        (nn.BatchNorm1d(3), "layer 1 (BatchNorm1d) gets an input of (3, 8, 8)"),
        (nn.LayerNorm(8), "layer 1 (LayerNorm) is over a part of an input of (3, 8, 8)"),
        (nn.GroupNorm(2, 4), "layer 1 (GroupNorm) gets an input of (3, 8, 8)"),
        (nn.AvgPool2d(2, ceil_mode=True), "layer 1 (AvgPool2d) has ceil_mode"),
        (nn.AvgPool2d(2, divisor_override=3), "has divisor_override"),
        (nn.AdaptiveAvgPool2d(3), "makes (3, 3) of (8, 8), not in equal windows"),
        (nn.BatchNorm2d(4), "layer 1 (BatchNorm2d) gets an input of (3, 8, 8)"),
        (nn.BatchNorm2d(3, momentum=None), "keeps no running statistics with a fixed momentum"),
        (nn.BatchNorm2d(3, track_running_stats=False), "keeps no running statistics"),
        (nn.Conv2d(3, 3, 3, groups=3), "layer 1 (Conv2d) has groups"),
        (nn.Conv2d(3, 3, 3, dilation=2), "has dilation"),
        (nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect"), "has padding mode reflect"),
        (nn.Conv2d(3, 3, 4, padding="same"), "has an even kernel with padding 'same'"),
        (nn.Conv2d(2, 3, 3), "gets an input of (3, 8, 8)"),
        (nn.Conv2d(3, 3, 9), "has a kernel larger than its input"),
        (nn.MaxPool2d(2, ceil_mode=True), "has ceil_mode"),
        (nn.MaxPool2d(2, dilation=2), "has dilation"),
        (nn.Flatten(2), "does not flatten each example"),
    ],
)
def test_reasons_of_layers(layer: nn.Module, reason: str) -> None:
    module = nn.Sequential(layer, nn.Flatten(), nn.Linear(7, 10))
    assert reason in (unsupported(module, PLAIN, SHAPE) or "it fits")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (nn.Embedding(5, 3, max_norm=1.0), "has max_norm"),
        (nn.Embedding(5, 3, sparse=True), "has sparse"),
        (nn.Embedding(5, 3), "layer 2 follows an embedding, but neither averages nor flattens"),
        (nn.EmbeddingBag(5, 3, mode="sum"), "is not a mean"),
        (nn.EmbeddingBag(5, 3, padding_idx=0), "has padding_idx"),
    ],
)
def test_reasons_of_words(words: nn.Module, reason: str) -> None:
    module = nn.Sequential(words, nn.ReLU(), nn.Flatten(), nn.Linear(12, 10))
    assert reason in (unsupported(module, PLAIN, (4,)) or "it fits")


def test_a_bag_is_the_mean_of_an_embedding() -> None:
    bag = nn.Sequential(nn.EmbeddingBag(5, 3), nn.Linear(3, 10))
    own = Written(lambda m, x: m.linear(m.conv(x).mean(1)))
    own.conv, own.linear = nn.Embedding(5, 3), nn.Linear(3, 10)  # type: ignore[assignment]
    for name in ("square", "drop", "ten"):
        delattr(own, name)
    assert lower(own, PLAIN, (4,)) == lower(bag, PLAIN, (4,))


def test_weights_made_of_others_are_refused() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    torch.nn.utils.parametrizations.weight_norm(module[1])
    assert "ParametrizedLinear" in (unsupported(module, PLAIN, SHAPE) or "it fits")
    # The older way keeps the class, and has a plain tensor in place of the parameter.
    own = nn.Linear(192, 10)
    weight = own.weight.detach()
    del own.weight
    own.weight = weight
    other = nn.Sequential(nn.Flatten(), own)
    assert "computes its weights" in (unsupported(other, PLAIN, SHAPE) or "it fits")


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    module[1].bias.requires_grad_(False)
    return module


@pytest.mark.parametrize(
    ("module", "training", "reason"),
    [
        (frozen(), PLAIN, "its parameter 1.bias is frozen"),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 10)).double(), PLAIN, "not float32"),
        (nn.Flatten(), PLAIN, "it has no layer that learns"),
        (nn.Linear(192, 10), Training(0.1, 10, "rprop"), "is rprop, not SGD, Adam or AdamW"),
        (
            nn.Linear(192, 10),
            Training(0.1, 10, "adam", {"amsgrad": True}),
            "option amsgrad",
        ),
        (nn.Linear(192, 10), Training(0.1, 10, "adam", {"eps": 0.0}), "Adam has the eps 0.0"),
        (nn.Linear(192, 10), Training(0.1, 10, "adam", {"betas": (0.9, 1)}), "has the betas"),
        (nn.Embedding(5, 3, max_norm=1.0), PLAIN, "gets an input of (3, 8, 8), not the words"),
        (nn.Linear(192, 10), Training(0.1, 10, proximal=0.1), "has a proximal term"),
        (nn.Linear(192, 10), Training(0.1, 10, loss=F.l1_loss), "neither cross_entropy nor mse"),
        (
            nn.Linear(192, 10),
            Training(0.1, 10, loss=nn.CrossEntropyLoss(label_smoothing=0.1)),
            "its loss is neither cross_entropy nor mse_loss",
        ),
        (
            nn.Linear(192, 10),
            Training(0.1, 10, options={"momentum": 0.9, "dampening": 0.1}),
            "SGD has the option dampening",
        ),
        (nn.Linear(192, 10), Training(0.1, 5000), "its batches of 5000 are larger than 1024"),
    ],
)
def test_reasons_of_parameters_and_training(
    module: nn.Module, training: Training, reason: str
) -> None:
    assert reason in (unsupported(module, training, SHAPE) or "it fits")


def test_a_model_of_a_thousand_million_products_is_left_to_torch() -> None:
    module = nn.Sequential(nn.Conv2d(3, 64, 7), nn.MaxPool2d(506), nn.Flatten(), nn.Linear(64, 10))
    reason = unsupported(module, PLAIN, (3, 512, 512))
    assert reason == (
        "it needs 2409 million multiplications for an example, more than 1000: torch is as fast"
    )


def test_the_models_of_the_zoo() -> None:
    fits = {}
    for name, shape in {
        "mnist-cnn": (1, 28, 28),
        "cifar-cnn": (3, 32, 32),
        "logistic": (5, 3),
        "mlp": (7,),
    }.items():
        fits[name] = unsupported(MODELS[name].build(shape, 10), PLAIN, shape)
    assert set(fits.values()) == {None}


def test_what_follows_a_convolution_becomes_part_of_it() -> None:
    plan = lower(MODELS["mnist-cnn"].build((1, 28, 28), 10), PLAIN, (1, 28, 28))
    assert isinstance(plan, ModelPlan)
    assert [(s.pool, s.relu, s.drop is not None) for s in plan.stages] == [
        (True, True, False),
        (True, True, True),
        (False, True, True),
        (False, False, False),
    ]
    assert plan.products == 480_500


def test_dropout_layers_keep_their_numbers() -> None:
    """The address of a mask counts all dropout layers of the module, also those of no effect."""
    module = nn.Sequential(
        nn.Dropout(0.0), nn.Flatten(), nn.Linear(192, 20), nn.Dropout(0.2), nn.Linear(20, 10)
    )
    plan = lower(module, PLAIN, SHAPE)
    assert isinstance(plan, ModelPlan)
    assert [stage.drop.number for stage in plan.stages if stage.drop] == [1]
