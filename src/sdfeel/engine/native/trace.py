"""From an nn.Module to a list of layers, by following one symbolic input through forward()."""

import copy
import operator
from collections.abc import Callable, Container
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx, nn

from sdfeel.engine.dropout import DROPPING, Address, AddressedDropout, address_dropout
from sdfeel.engine.native.layers import (
    Average,
    Conv,
    Drop,
    Embed,
    Layer,
    Linear,
    Norm,
    Pair,
    Pool,
    Relu,
    Residual,
    SampleNorm,
    Shape,
    Smooth,
    WordMean,
)

KNOWN = (
    "Conv2d, Linear, BatchNorm, LayerNorm, GroupNorm, ReLU, LeakyReLU, ELU, GELU, SiLU, Tanh, "
    "Sigmoid, MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, Flatten, Dropout, Dropout2d, Embedding, "
    "EmbeddingBag, sums of two branches"
)


class Unsupported(Exception):
    """Why the native engine cannot train a model, in one line."""


def layers(module: nn.Module, shape: Shape) -> tuple[list[Layer], Shape]:
    """The module's layers, and the shape of its output for an example of `shape`.

    Raises Unsupported with the reason if the module is more than a chain of known layers.
    """
    own = copy.deepcopy(module)
    calls_from = address_dropout(own, Address(0))
    own.eval()
    measuring = _Chain(own, shape, calls_from).follow()
    own.train()
    training = _Chain(own, shape, calls_from).follow()
    if training != measuring:
        raise Unsupported("its forward() behaves differently when it is not training")
    return training


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, AddressedDropout) or super().is_leaf_module(m, module_qualified_name)


@dataclass(frozen=True, eq=False)
class _Step:
    """A part of the way from the model's input to a node: one node's layers, or two branches."""

    nodes: tuple[fx.Node, ...]
    layers: tuple[Layer, ...]
    shape: Shape  # of an example afterwards


_Way = tuple[_Step, ...]


def _layers(way: _Way) -> list[Layer]:
    return [layer for step in way for layer in step.layers]


class _Chain:
    """Follows the nodes of a traced module one by one, and remembers the way to each of them."""

    def __init__(self, module: nn.Module, shape: Shape, calls_from: int) -> None:
        self._training = module.training
        # The tracer would look inside torch's own modules; inside a Sequential they stay whole.
        root = nn.Sequential(module)
        try:
            self._graph = _Tracer().trace(root)
        except Exception as error:
            raise Unsupported(f"its forward() cannot be traced ({_line(error)})") from None
        self._modules = dict(root.named_modules())
        # Layers of dropout, among these calls of functions, in the order of a forward pass.
        called = [node for node in self._graph.nodes if node.target in DROPPING]
        self._drops = {node: calls_from + n for n, node in enumerate(called)}
        self._places, begin = {}, 0
        floats = (b for b in module.buffers() if b.is_floating_point())
        for tensor in (*module.parameters(), *floats):  # the row of models/flat.py
            self._places[id(tensor)] = begin
            begin += tensor.numel()
        self._used: set[int] = set()
        self._first = self._shape = tuple(shape)
        self._layers = list[Layer]()  # of the node that is looked at
        self._ways: dict[
            fx.Node, _Way
        ] = {}  # nodes that stand for a batch, and how they came about
        self._sizes: set[fx.Node] = set()  # nodes that stand for its first size

    def follow(self) -> tuple[list[Layer], Shape]:
        number = 0
        for node in self._graph.nodes:
            if node.op == "placeholder" and not self._ways:
                self._ways[node] = (_Step((), (), self._shape),)
                continue
            if _is_batch_size(node, self._ways, self._sizes):
                self._sizes.add(node)
                continue
            way = self._way(node, 0)
            if node.op in ("placeholder", "get_attr") or way is None:
                raise Unsupported(f"{_called(node)} makes it more than a chain of layers")
            if node.op == "output":
                met = [each for step in way for each in step.nodes]
                once = len(met) == len(set(met)) == number
                self._need("its forward()", once, "uses a layer's output twice, or not at all")
                return _layers(way), way[-1].shape
            number += 1
            label = f"layer {number}"
            if node.op != "call_module" and _name(node) in ADDITIONS:
                self._ways[node] = self._sum(node, way, f"{label} (a sum)")
                continue
            self._shape, self._layers = way[-1].shape, []
            if len(way) > 1 and len(self._shape) == 2:
                ends = _name(node) in ("mean", "flatten", "view", "reshape") or isinstance(
                    self._modules.get(str(node.target)), nn.Flatten
                )
                self._need(label, ends, "follows an embedding, but neither averages nor flattens")
            self._take(node, label)
            self._ways[node] = (*way, _Step((node,), tuple(self._layers), self._shape))
        raise Unsupported("its forward() returns nothing")

    def _way(self, node: fx.Node, place: int) -> "_Way | None":
        """The steps on the way to a node's argument, if this is a batch of examples."""
        given = node.args[place] if len(node.args) > place else None
        return self._ways.get(given) if isinstance(given, fx.Node) else None

    def _sum(self, node: fx.Node, one: "_Way", label: str) -> "_Way":
        """Two branches, from where their ways part."""
        other = self._way(node, 1)
        self._need(label, len(node.args) == 2 and not node.kwargs, "has options")
        if other is None:
            raise Unsupported(f"{label} does not add the outputs of two layers")
        shape = one[-1].shape
        fits = shape == other[-1].shape and len(shape) != 2
        self._need(label, fits, f"adds {shape} and {other[-1].shape}")
        common = 1  # all ways begin at the input
        while common < min(len(one), len(other)) and one[common] is other[common]:
            common += 1
        body, rest = one[common:], other[common:]
        if not body:  # the input itself comes second
            body, rest = rest, body
        self._need(label, bool(body), "adds something to itself")
        before = one[common - 1].shape
        layer = Residual(before, shape, tuple(_layers(body)), tuple(_layers(rest)))
        nodes = (node, *(each for step in (*body, *rest) for each in step.nodes))
        return (*one[:common], _Step(nodes, (layer,), shape))

    def _take(self, node: fx.Node, label: str) -> None:
        if node.op == "call_module":
            self._need(label, len(node.args) == 1 and not node.kwargs, "is given more than a batch")
            self._module(self._modules[str(node.target)], label)
            return
        name = _name(node)
        rest: tuple[Any, ...] = node.args[1:]
        options: dict[str, Any] = dict(node.kwargs)
        if name in ("relu", "relu_"):
            self._layers.append(Relu(self._shape))
        elif name == "max_pool2d":
            self._pool(label, *rest, **options)
        elif name in SMOOTH:
            self._smooth(label, name, *rest, **options)
        elif name == "avg_pool2d":
            self._average(label, *rest, **options)
        elif name == "adaptive_avg_pool2d":
            self._adaptive(label, *rest, **options)
        elif name == "mean":
            self._mean(label, *rest, **options)
        elif name == "flatten":
            self._flatten(label, *rest, **options)
        elif name in ("view", "reshape"):
            self._view(label, rest)
        elif node in self._drops:
            self._drop(label, DROPPING[node.target], self._drops[node], *rest, **options)
        else:
            raise Unsupported(f"{label} (a call of {name}) is not one of {KNOWN}")

    def _module(self, module: nn.Module, label: str) -> None:
        label = f"{label} ({type(module).__name__})"
        if type(module) is nn.Conv2d:
            self._conv(module, label)
        elif type(module) is nn.Linear:
            self._linear(module, label)
        elif type(module) is nn.BatchNorm2d or type(module) is nn.BatchNorm1d:
            self._norm(module, label)
        elif type(module) in (nn.LayerNorm, nn.GroupNorm):
            self._sample_norm(module, label)
        elif type(module) in ACTIVATIONS:
            name, option = ACTIVATIONS[type(module)]
            self._smooth(label, name, *([getattr(module, option)] if option else []))
        elif type(module) is nn.AvgPool2d:
            self._average(
                label,
                module.kernel_size,
                module.stride,
                module.padding,
                module.ceil_mode,
                module.count_include_pad,
                module.divisor_override,
            )
        elif type(module) is nn.AdaptiveAvgPool2d:
            self._adaptive(label, module.output_size)
        elif type(module) is nn.ReLU:
            self._layers.append(Relu(self._shape))
        elif type(module) is nn.MaxPool2d:
            options = {
                name: getattr(module, name)
                for name in ("stride", "padding", "dilation", "ceil_mode", "return_indices")
            }
            self._pool(label, module.kernel_size, **options)
        elif type(module) in (nn.Embedding, nn.EmbeddingBag):
            self._embedding(module, label)
        elif type(module) is nn.Flatten:
            self._flatten(label, module.start_dim, module.end_dim)
        elif type(module) is AddressedDropout:
            self._drop(label, module.channels, module.layer, module.p, self._training)
        elif type(module) is not nn.Identity:
            raise Unsupported(f"{label} is not one of {KNOWN}")

    def _drop(
        self,
        label: str,
        channels: bool,
        layer: int,
        p: Any = 0.5,
        training: Any = True,
        inplace: Any = False,
    ) -> None:
        told = "does not drop exactly while the model trains: give it training=self.training"
        self._need(label, training is self._training, told)
        self._need(label, isinstance(p, int | float) and 0 <= p <= 1, f"has the share {p!r}")
        # Channels of an example that has no height and width are its elements.
        self._layers.append(Drop(self._shape, p, channels and len(self._shape) == 3, layer))

    def _conv(self, conv: nn.Conv2d, label: str) -> None:
        self._need(label, conv.groups == 1, "has groups")
        self._need(label, set(conv.dilation) == {1}, "has dilation")
        self._need(label, conv.padding_mode == "zeros", f"has padding mode {conv.padding_mode}")
        self._need(label, max(conv.kernel_size) <= 15, "has a kernel wider than 15")
        rank = len(self._shape) == 3 and self._shape[0] == conv.in_channels
        self._need(label, rank, f"gets an input of {self._shape}")
        padding = conv.padding
        if isinstance(padding, str):
            whole = padding == "valid" or all(k % 2 for k in conv.kernel_size)
            self._need(label, whole, "has an even kernel with padding 'same'")
            padding = tuple(0 if padding == "valid" else k // 2 for k in conv.kernel_size)
        layer = Conv(
            self._shape,
            conv.out_channels,
            _pair(conv.kernel_size),
            _pair(conv.stride),
            _pair(padding),
            self._place(conv.weight, label),
            None if conv.bias is None else self._place(conv.bias, label),
        )
        self._slide(layer, label)

    def _linear(self, linear: nn.Linear, label: str) -> None:
        fits = self._shape == (linear.in_features,)
        self._need(label, fits, f"gets an input of {self._shape}")
        weight = self._place(linear.weight, label)
        bias = None if linear.bias is None else self._place(linear.bias, label)
        self._layers.append(Linear(linear.in_features, linear.out_features, weight, bias))
        self._shape = (linear.out_features,)

    def _embedding(self, words: Any, label: str) -> None:
        first = self._shape is self._first and len(self._first) == 1
        self._need(label, first, f"gets an input of {self._shape}, not the words of an example")
        for name in ("max_norm", "scale_grad_by_freq", "sparse"):
            self._need(label, not getattr(words, name), f"has {name}")
        bag = isinstance(words, nn.EmbeddingBag)
        self._need(label, not bag or words.mode == "mean", "is not a mean")
        self._need(label, not bag or words.padding_idx is None, "has padding_idx")
        count, size = words.num_embeddings, words.embedding_dim
        place = self._place(words.weight, label)
        self._layers.append(Embed(self._shape[0], count, size, words.padding_idx, place, bag))
        self._shape = (size,) if bag else (self._shape[0], size)

    def _smooth(self, label: str, name: str, *given: Any, **options: Any) -> None:
        """An activation; its one option is a number, or how GELU is approximated."""
        options.pop("inplace", None)
        option = next(iter([*given, *options.values()]), SMOOTH[name])
        if name == "gelu":
            self._need(label, option in ("none", "tanh"), f"has approximate={option!r}")
            name, option = ("TanhGELU" if option == "tanh" else "GELU"), 0.0
        else:
            self._need(label, isinstance(option, int | float), f"has the option {option!r}")
            name = FUNCTIONS[name]
        self._layers.append(Smooth(self._shape, name, float(option)))

    def _sample_norm(self, norm: Any, label: str) -> None:
        places = [
            None if tensor is None else self._place(tensor, label)
            for tensor in (norm.weight, norm.bias)
        ]
        if isinstance(norm, nn.LayerNorm):
            whole = tuple(norm.normalized_shape) == self._shape
            self._need(label, whole, f"is over a part of an input of {self._shape}")
            groups, each = 1, 1
        else:
            fits = len(self._shape) in (1, 3) and self._shape[0] == norm.num_channels
            self._need(label, fits, f"gets an input of {self._shape}")
            groups, each = norm.num_groups, prod(self._shape[1:])
        self._need(label, prod(self._shape) > groups, "gets one number for each group")
        self._layers.append(SampleNorm(self._shape, groups, each, norm.eps, *places))

    def _average(
        self,
        label: str,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        self._need(label, not ceil_mode, "has ceil_mode")
        self._need(label, divisor_override is None, "has divisor_override")
        self._need(label, len(self._shape) == 3, f"gets an input of {self._shape}")
        kernel = _pair(kernel_size)
        step = _pair(stride) if stride else kernel
        layer = Average(self._shape, kernel, step, _pair(padding), count_include_pad)
        self._slide(layer, label)

    def _adaptive(self, label: str, output_size: Any) -> None:
        self._need(label, len(self._shape) == 3, f"gets an input of {self._shape}")
        wanted = output_size if isinstance(output_size, tuple | list) else (output_size,) * 2
        y, x = (a if b is None else b for a, b in zip(self._shape[1:], wanted, strict=True))
        height, width = self._shape[1:]
        even = height % y == 0 and width % x == 0
        self._need(label, even, f"makes {(y, x)} of {(height, width)}, not in equal windows")
        self._average(label, (height // y, width // x))

    def _mean(self, label: str, dim: Any = None, keepdim: bool = False) -> None:
        """x.mean((2, 3)): one number for each channel; or x.mean(1): one vector for all words."""
        if len(self._shape) == 2:
            only = dim if isinstance(dim, int) else dim[0] if len(dim or ()) == 1 else None
            self._need(label, only in (1, -2) and not keepdim, "is not the mean over the words")
            self._layers.append(WordMean())
            self._shape = self._shape[1:]
            return
        dims = {each % 4 for each in dim} if isinstance(dim, tuple | list) else set()
        planes = dims == {2, 3} and len(self._shape) == 3
        self._need(label, planes, "is not the mean of each plane")
        self._average(label, self._shape[1:])
        self._shape = self._shape if keepdim else self._shape[:1]

    def _norm(self, norm: nn.BatchNorm1d | nn.BatchNorm2d, label: str) -> None:
        mean, variance = norm.running_mean, norm.running_var
        if mean is None or variance is None or norm.momentum is None:
            raise Unsupported(f"{label} keeps no running statistics with a fixed momentum")
        dimensions = 1 if isinstance(norm, nn.BatchNorm1d) else 3
        rank = len(self._shape) == dimensions and self._shape[0] == norm.num_features
        self._need(label, rank, f"gets an input of {self._shape}")
        layer = Norm(
            self._shape,
            norm.eps,
            norm.momentum,
            self._place(norm.weight, label) if norm.affine else None,
            self._place(norm.bias, label) if norm.affine else None,
            self._place(mean, label),
            self._place(variance, label),
        )
        self._layers.append(layer)

    def _pool(
        self,
        label: str,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> None:
        self._need(label, _pair(dilation) == (1, 1), "has dilation")
        self._need(label, not ceil_mode, "has ceil_mode")
        self._need(label, not return_indices, "returns indices")
        self._need(label, len(self._shape) == 3, f"gets an input of {self._shape}")
        kernel = _pair(kernel_size)
        step = _pair(stride) if stride else kernel
        self._slide(Pool(self._shape, kernel, step, _pair(padding)), label)

    def _slide(self, layer: Conv | Pool | Average, label: str) -> None:
        fits = min(layer.result[1:]) >= 1
        self._need(label, fits, f"has a kernel larger than its input of {self._shape}")
        self._layers.append(layer)
        self._shape = layer.result

    def _flatten(self, label: str, start_dim: int = 0, end_dim: int = -1) -> None:
        whole = start_dim == 1 and end_dim in (-1, len(self._shape))
        self._need(label, whole, "does not flatten each example to one line")
        self._shape = (prod(self._shape),)

    def _view(self, label: str, dims: tuple[Any, ...]) -> None:
        if len(dims) == 1 and isinstance(dims[0], tuple | list):
            dims = tuple(dims[0])
        first = bool(dims) and (dims[0] == -1 or dims[0] in self._sizes)
        rest = len(dims) == 2 and dims[1] in (-1, prod(self._shape)) and dims != (-1, -1)
        self._need(label, first and rest, "does not flatten each example to one line")
        self._shape = (prod(self._shape),)

    def _place(self, parameter: torch.Tensor, label: str) -> int:
        self._need(label, id(parameter) in self._places, "computes its weights from others")
        self._need(label, id(parameter) not in self._used, "shares its weights with another")
        self._used.add(id(parameter))
        return self._places[id(parameter)]

    def _need(self, label: str, holds: bool, fault: str) -> None:
        if not holds:
            raise Unsupported(f"{label} {fault}")


def _is_batch_size(node: fx.Node, data: Container[Any], sizes: set[fx.Node]) -> bool:
    """x.size(0), x.shape, x.size() and [0] of those."""
    if node.op == "call_method" and node.target == "size":
        return node.args[0] in data and node.args[1:] in ((0,), ())
    if node.op == "call_function" and node.target is getattr:
        return node.args[0] in data and node.args[1] == "shape"
    if node.op == "call_function" and node.target is operator.getitem:
        return node.args[0] in sizes and bool(node.args[1] == 0)
    return False


# By torch's name of the function: its option if none is given, and its name in
# smooth_activations.hpp.
SMOOTH: dict[str, Any] = {
    "tanh": 0.0,
    "sigmoid": 0.0,
    "silu": 0.0,
    "leaky_relu": 0.01,
    "elu": 1.0,
    "gelu": "none",
}
FUNCTIONS = {
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "silu": "SiLU",
    "leaky_relu": "LeakyReLU",
    "elu": "ELU",
}
ACTIVATIONS: dict[type[nn.Module], tuple[str, str]] = {
    nn.Tanh: ("tanh", ""),
    nn.Sigmoid: ("sigmoid", ""),
    nn.SiLU: ("silu", ""),
    nn.LeakyReLU: ("leaky_relu", "negative_slope"),
    nn.ELU: ("elu", "alpha"),
    nn.GELU: ("gelu", "approximate"),
}
ADDITIONS = ("add", "add_", "iadd")
CALLS: dict[Callable[..., Any], str] = {
    nn.functional.relu: "relu",
    nn.functional.max_pool2d: "max_pool2d",
    torch.relu: "relu",
    torch.relu_: "relu",
    torch.max_pool2d: "max_pool2d",
    torch.flatten: "flatten",
    torch.tanh: "tanh",
    torch.sigmoid: "sigmoid",
    torch.mean: "mean",
}


def _name(node: fx.Node) -> str:
    if callable(node.target):
        return CALLS.get(node.target, str(getattr(node.target, "__name__", node.target)))
    return str(node.target)


def _called(node: fx.Node) -> str:
    return {"placeholder": "a second input", "output": "its result"}.get(node.op, _name(node))


def _pair(value: Any) -> Pair:
    y, x = value if isinstance(value, tuple | list) else (value, value)
    return int(y), int(x)


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
