"""Bad input gets one clear sentence (the value, the rule, the way out), and nothing is lost.

The tables hold settings or arguments, and patterns that the sentence must match.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.command import Outcome, call, settings

pytestmark = pytest.mark.usefixtures("_undrawn")

EXAMPLES = 1437  # in the training part of the digits
PARTS = [list(range(client, EXAMPLES, 10)) for client in range(10)]
WHOLE = "integer|whole number"


def refused(outcome: Outcome, *patterns: str, running: bool = False) -> None:
    """One sentence on standard error, nothing on standard output, no traceback."""
    assert outcome.code != 0
    assert outcome.out == ""
    assert "Traceback" not in outcome.err, outcome.err
    assert outcome.sentence.startswith("sdfeel: "), outcome.err
    if not running:  # otherwise there was progress to show first
        assert len(outcome.err.strip().splitlines()) == 1, outcome.err
    for pattern in patterns:
        assert re.search(pattern, outcome.sentence), outcome.sentence


@pytest.mark.parametrize("picture", ["x.foo", "/proc/x.png"])
def test_a_picture_that_cannot_be_written_is_reported(
    picture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # this one draws
    monkeypatch.chdir(tmp_path)
    refused(call("topology", "ring", "--picture", picture), re.escape(picture))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to work in."""
    empty = tmp_path / "here"
    empty.mkdir()
    monkeypatch.chdir(empty)
    # Drawing takes longer than the few runs that succeed here.
    monkeypatch.setattr("sdfeel.report.drawing.save", lambda *given: None)
    return empty


def run(*chosen: str, files: Mapping[str, str | bytes] | None = None) -> Outcome:
    """`sdfeel run` with settings; a refused one must leave nothing but the user's own files."""
    for name, content in (files or {}).items():
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    outcome = call("run", *settings(), *(word for each in chosen for word in ("--set", each)))
    kept = {str(path) for path in Path().iterdir()} - {"__pycache__"}
    if "round 0/" not in outcome.err:
        assert kept == set(files or {})
    return outcome


VALUES: dict[str, tuple[str, ...]] = {
    # names
    "network.client=3": ("'network.client'", "did you mean 'network.clients'"),
    "netwrk.clients=3": ("'netwrk'", "did you mean 'network'"),
    "foo=3": ("unknown key 'foo'", "known: .*network"),
    "model.hidden=3": ("model.hidden", "model.options"),
    "scheme.alhpa=2": ("did you mean 'scheme.alpha'",),
    "scheme.name=sdfeel": ("unknown scheme 'sdfeel'", "did you mean 'sd-feel'"),
    "scheme.name=hier": ("did you mean 'hierfavg'",),
    "network.graph=rign": ("unknown topology 'rign'", "did you mean 'ring'"),
    "network.graph=": ("topology|network.graph", "ring"),
    "network.mixing=metropoliss": ("did you mean 'metropolis'",),
    "network.assignment=by-label": ("did you mean 'by_label'",),
    "model.name=mpl": ("did you mean 'mlp'",),
    "model.name=": ("unknown model ''",),
    "data.name=minst": ("did you mean 'mnist'",),
    "data.name=cifar10": ("CIFAR-10 is not on this machine", "sdfeel data get cifar10"),
    "data.partition=dirichelet": ("did you mean 'dirichlet'",),
    "training.optimizer=adamm": ("did you mean 'adam'",),
    "training.engine=gpu": ("training.engine", "'gpu'", "loop"),
    "latency.preset=paper": ("paper-literal", "'paper'"),
    # types
    "network.clients=many": ("network.clients must be an? ", WHOLE, "'many'"),
    "network.clients=3.5": ("network.clients must be an? ", WHOLE, "3.5"),
    "network.clients=true": ("network.clients", WHOLE, "True|true"),
    "seed=true": ("seed", WHOLE, "True|true"),
    "seed=": ("seed", WHOLE, "''"),
    "scheme.tau1=2.5": ("scheme.tau1", WHOLE, "2.5"),
    "scheme.tau1=[1]": ("scheme.tau1", WHOLE, r"\[1\]"),
    "training.learning_rate=fast": ("training.learning_rate", "number", "'fast'"),
    "network.graph=1": ("network.graph must be an? ", "1"),
    "latency.downlink=maybe": ("latency.downlink", "'maybe'"),
    "network=3": ("network is a section", "network.key"),
    "seed.x=1": ("seed",),
    # ranges
    "network.clients=-1": ("network.clients", "1, got -1"),
    "network.clients=0": ("network.clients", "1, got 0"),
    "network.servers=0": ("network.servers", "1, got 0"),
    "seed=-1": ("seed", "0, got -1"),
    "scheme.tau1=0": ("scheme.tau1 must be at least 1, got 0",),
    "training.iterations=0": ("training.iterations", "got 0"),
    "training.batch_size=0": ("training.batch_size", "got 0"),
    "training.learning_rate=0": ("training.learning_rate", "got 0"),
    "training.learning_rate=nan": ("training.learning_rate", "nan"),
    "training.learning_rate=inf": ("training.learning_rate", "finite", "inf"),
    "training.weight_decay=inf": ("training.weight_decay", "finite", "inf"),
    "training.target_accuracy=2": ("training.target_accuracy", "1, got 2"),
    "devices.spread=0.5": ("devices.spread", "1, got 0.5"),
    "devices.spread=inf": ("devices.spread", "finite", "inf"),
    "devices.gflops=inf": ("devices.gflops", "finite", "inf"),
    "checkpoint.every_seconds=-1": ("checkpoint.every_seconds", "got -1"),
    # contradictions
    "network.servers=11": ("11 servers cannot share 10 clients", "at most 10"),
    "network.clients=2000": ("2000 clients cannot share 1437 examples", "at most 1437"),
    "network.imbalance=3": ("3 would leave server 1 without clients", "at most 2"),
    "data.classes_per_client=11": ("at most 10", "got 11"),
    "model.name=mnist-cnn": ("28x28", "8x8", "mlp"),
    "model.options={hidden=-1}": ("hidden|-1",),
    "model.options={foo=1}": ("mlp", "foo"),
    "training.optimizer_options={foo=1}": ("foo",),
    # syntax
    "network.clients": ("'network.clients' is not a setting", "section.key=value"),
    "=3": ("'=3' is not a setting",),
    "network.graph=" + "x" * 5000: ("x{20}",),
    "network.graph=日本": ("日本",),
}


@pytest.mark.parametrize("setting", VALUES, ids=lambda text: text[:40])
def test_a_bad_value_is_reported_with_its_rule(setting: str) -> None:
    refused(run(setting), *VALUES[setting])


TOGETHER: dict[tuple[str, ...], tuple[str, ...]] = {
    ("scheme.name=fedavg", "scheme.participants=11"): ("participants is 11", "only 10 clients"),
    ("scheme.name=feel", "scheme.scheduled=11"): ("scheduled is 11", "only 10 clients"),
    ("scheme.name=feel", "scheme.pool_size=2"): ("scheduled is 5", "only 2", "pool_size"),
    ("network.graph=geometric", "network.radius=0.01"): ("geometric", "raise network.radius"),
    ("network.graph=erdos-renyi", "network.probability=2"): ("at most 1, got 2",),
    ("data.partition=dirichlet", "data.min_size=1000"): ("1000", "1437", "fewer clients"),
    ("data.partition=shards", "data.classes_per_client=200"): ("2000 examples", "1437"),
    ("network.clients=1", "network.servers=1"): ("2 of the 10 classes", "more clients"),
    ("network.servers=1", "network.imbalance=1"): ("0 with a single server",),
    ("network.clients=5", "network.clients.x=3"): ("network.clients.x",),
    ("training.optimizer=adam", "training.momentum=0.9"): ("adam", "momentum"),
}


@pytest.mark.parametrize("chosen", TOGETHER, ids=" ".join)
def test_values_that_contradict_each_other_are_refused(chosen: tuple[str, ...]) -> None:
    refused(run(*chosen), *TOGETHER[chosen])


def _mixing(rows: str, *patterns: str) -> tuple[tuple[str, ...], Any, tuple[str, ...]]:
    return ("network.mixing=m.csv", "network.graph=path"), {"m.csv": rows}, patterns


def _graph(text: str | bytes, *patterns: str) -> tuple[tuple[str, ...], Any, tuple[str, ...]]:
    return ("network.graph=g.txt",), {"g.txt": text}, patterns


def _split(parts: object, *patterns: str) -> tuple[tuple[str, ...], Any, tuple[str, ...]]:
    text = parts if isinstance(parts, str) else json.dumps(parts)
    return ("data.partition=p.json",), {"p.json": text}, patterns


def _home(servers: object, *patterns: str) -> tuple[tuple[str, ...], Any, tuple[str, ...]]:
    return ("network.assignment=a.json",), {"a.json": json.dumps(servers)}, patterns


def _speeds(text: str, *patterns: str) -> tuple[tuple[str, ...], Any, tuple[str, ...]]:
    return ("devices.file=s.csv",), {"s.csv": text}, patterns


FILES: dict[str, tuple[tuple[str, ...], Any, tuple[str, ...]]] = {
    "no graph file": (("network.graph=nix.txt",), {}, ("nix.txt",)),
    "a disconnected graph": _graph("0 1\n2 2\n", "disconnected", r"\[2\]", "add a link"),
    "a graph of another size": _graph("0 1\n1 2\n2 3\n", "4 servers", "network.servers is 3"),
    "an empty graph": _graph("", "g.txt"),
    "a graph that is not text": _graph(b"\xff\xfe\x00", "g.txt"),
    "a graph of prose": _graph("hello\n", "g.txt", "line 1"),
    "a graph with half a line": _graph("0 1\n1\n2 0\n", "g.txt", "line 2"),
    "a matrix as graph": _graph("0 1 0\n1 0 1\n0 1 0\n", "g.txt"),
    "a broken GraphML": (("network.graph=g.graphml",), {"g.graphml": "<a"}, ("g.graphml",)),
    "no mixing file": (("network.mixing=nix.csv",), {}, ("nix.csv",)),
    "a mixing of another shape": _mixing("1,0\n0,1\n", "3 x 3", "2 x 2"),
    "a mixing with a short row": _mixing("1,0,0\n0,1\n", "m.csv", "row|line|column"),
    "a mixing that sums to less": _mixing(".5,.2,0\n.3,.3,.4\n0,.5,.5", "row 0", "0.7", "sum to 1"),
    "a transposed mixing": _mixing(".5,.25,0\n.5,.5,.5\n0,.25,.5", "give the transpose"),
    "a mixing of prose": _mixing("hello world", "m.csv", "hello"),
    "a mixing with NaN": _mixing("nan,0,0\n0,1,0\n0,0,1", "not finite"),
    "an empty mixing": _mixing("", "m.csv|3 x 3"),
    "a mixing that mixes nothing": _mixing("1,0,0\n0,1,0\n0,0,1", "zeta 1", "below 1"),
    "a mixing over no link": _mixing(".5,0,.5\n0,1,0\n.5,0,.5", "server 0", "server 2", "linked"),
    "a mixing that loses the mean": _mixing(".9,.1,0\n.5,0,.5\n0,.5,.5", "mean", "metropolis"),
    "a number as mixing": (
        ("network.mixing=m.json",),
        {"m.json": "3"},
        ("m.json|3 x 3", "3$|got a|row"),
    ),
    "a split with a stray example": _split([[99999], *PARTS[1:]], "client 0", "99999", "0 to 1436"),
    "a split with an example twice": _split([[1], *PARTS[1:]], "example 1 ", "twice"),
    "a split with an empty client": _split([[], *PARTS[1:]], "client 0 has no examples"),
    "a split for fewer clients": _split(PARTS[:9], "9 clients", "10"),
    "a split of prose": _split("hello", "p.json", "not JSON"),
    "a split too deep": _split("[" * 100_000, "p.json"),
    "a split with a giant number": _split("[[1" + "0" * 5000 + "]]", "p.json"),
    "a split that begins with a negative number": (
        ("data.partition=p.csv",),
        {"p.csv": "0,-1\n" + "".join(f"{n % 10},{n}\n" for n in range(EXAMPLES))},
        ("p.csv", "-1"),
    ),
    "no split file": (("data.partition=nix.json",), {}, ("nix.json",)),
    "an assignment without a server": _home([0, 1] * 5, "2 servers", "3"),
    "an assignment without a client": _home([[0, 1], [2, 3], [4]], "client 5 no server"),
    "an assignment with a client twice": _home([[0, 1, 2, 3], [3, 4, 5, 6], [7, 8, 9]], "twice"),
    "an assignment that is too short": _home([0, 1, 2], "3 clients", "10"),
    "too few speeds": _speeds("10\n" * 9, "9 speeds", "10 clients"),
    "a speed of 0": _speeds("10\n" * 9 + "0\n", "s.csv", "above 0"),
    "a speed that is a word": _speeds("fast\n" * 10, "s.csv", "'fast'"),
    "no speeds file": (("devices.file=nix.csv",), {}, ("nix.csv",)),
    "no data file": (("data.name=nix.npz",), {}, ("nix.npz",)),
    "a data file of garbage": (("data.name=d.npz",), {"d.npz": b"PKgarbage"}, ("d.npz", "savez")),
}


@pytest.mark.parametrize("what", FILES)
def test_a_bad_file_is_reported_by_name(what: str) -> None:
    chosen, files, patterns = FILES[what]
    refused(run(*chosen, files=files), *patterns)


X = np.linspace(0, 1, 120, dtype=np.float32).reshape(40, 3)
CLASSES = np.arange(40) % 2
ARRAYS: dict[str, tuple[Any, Any, str]] = {
    "a class that no training example has": (CLASSES, CLASSES + 5, "class|target"),
    "a giant class number": (CLASSES * 10**12, CLASSES, "class"),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_a_users_data_that_cannot_be_learned_are_reported(what: str) -> None:
    y_train, y_test, pattern = ARRAYS[what]
    np.savez("d.npz", x_train=X, y_train=y_train, x_test=X, y_test=y_test)
    outcome = call("run", *settings(), "--set", "data.name=d.npz", "--set", "data.partition=iid")
    if what.startswith("a class") and outcome.code == 0:
        return  # an output that is never trained is as good
    refused(outcome, pattern, running=True)


LINEAR = "nn.Sequential(nn.Flatten(), nn.Linear(64, 10))"
LAYER = """class make(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
    def forward(self, x):
        out = self.layer(x.flatten(1))
        return """
MODELS: dict[str, tuple[str, str]] = {
    "no such function": ("", "'make'"),
    "a syntax error": ("def make(:\n", "syntax"),
    "an import that raises": ("raise RuntimeError('boom')\n", "boom"),
    "an import of what is missing": ("import nixda\n", "nixda"),
    "a function that raises": ("def make(): raise ValueError('boom\\nbang')\n", "boom"),
    "a function that wants more": ("def make(size): pass\n", "size"),
    "a number": ("make = 3\n", "int"),
    "a function of a number": ("def make(): return 3\n", "not a torch.nn.Module"),
    "a module instead of a function": (f"make = {LINEAR}\n", "own_model:make"),
    "another input": ("def make(): return nn.Linear(63, 10)\n", "8x8|shape"),
    "too few outputs": (
        "def make(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n",
        "output|class",
    ),
    "outputs of another shape": ("def make(): return nn.Linear(8, 10)\n", "output|shape"),
    "two outputs": (f"{LAYER}out, 1\n", "output|tuple"),
    "no output": (f"{LAYER}None\n", "output|None"),
    "no forward": ("class make(nn.Module):\n    p = 1\n", "parameters|forward"),
    "no parameters": ("def make(): return nn.Flatten()\n", "no trainable parameters"),
    "whole numbers as parameters": (
        "def make():\n"
        "    one = nn.Flatten()\n"
        "    one.p = nn.Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False)\n"
        "    return one\n",
        "no trainable parameters",
    ),
    "a part of another type": (
        f"def make():\n    one = {LINEAR}\n    one.p = nn.Parameter(torch.ones(3).double())\n"
        "    return one\n",
        "float32, torch.float64",
    ),
    "complex numbers": (
        "class make(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.p = nn.Parameter(torch.ones(64, 10, dtype=torch.complex64))\n"
        "    def forward(self, x):\n"
        "        return (x.flatten(1) + 0j).matmul(self.p).real\n",
        "complex",
    ),
    "an error when measured": (
        f"{LAYER}out if self.training else 1 / 0\n",
        "division by zero",
    ),
    "an error when trained": (f"{LAYER}out if not self.training else 1 / 0\n", "client 0.*zero"),
    "no gradient": (f"{LAYER}out.detach()\n", "grad"),
}


@pytest.mark.parametrize("what", MODELS)
def test_a_users_model_that_does_not_work_is_reported(what: str) -> None:
    source, pattern = MODELS[what]
    files = {"own_model.py": f"import torch\nfrom torch import nn\n{source}"}
    refused(run("model.name=own_model:make", files=files), pattern, running=True)


@pytest.mark.parametrize("name", ["own_nix:make", "own_nix.a.b:make", ":make", ".own:make"])
def test_a_users_model_that_does_not_exist_is_reported(name: str) -> None:
    refused(run(f"model.name={name}"), re.escape(f"'{name}'"))


def test_a_batch_norm_of_one_example_is_refused() -> None:
    source = "nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))"
    files = {"own_norm.py": f"from torch import nn\ndef make(): return {source}\n"}
    outcome = run("model.name=own_norm:make", "training.batch_size=1", files=files)
    refused(outcome, "client 0", "more than 1 value", running=True)


def test_divergence_is_reported_with_client_round_and_learning_rate() -> None:
    outcome = run("training.learning_rate=1e30")
    refused(outcome, r"client \d+", r"round 1\b", r"learning rate 1e\+30", "lower", running=True)


EXPERIMENTS: dict[str, tuple[bytes | None, str]] = {
    "no file": (None, "sdfeel init"),
    "a file that is not TOML": (b"seed =\n", "line 1"),
    "a key twice": (b"seed = 1\nseed = 2\n", "line 2"),
    "a binary file": (b"\x00\xff\xfe", "e.toml"),
    "a file in Latin-1": ("model.name = 'é'".encode("latin-1"), "e.toml"),
    "an unknown section": (b"[netwrk]\nclients = 3\n", "did you mean 'network'"),
    "an unknown key": (b"[network]\nclient = 3\n", "did you mean 'network.clients'"),
    "a section as a value": (b"training = 'fast'\n", "training is a section"),
    "a section that the settings would hide": (b"network = 3\n", "network is a section"),
    "a list of sections": (b"[[network]]\nclients = 3\n", "network is a section"),
    "a value as a section": (b"[seed]\nx = 1\n", "seed"),
}


@pytest.mark.parametrize("what", EXPERIMENTS)
def test_a_bad_experiment_file_is_reported(what: str) -> None:
    content, pattern = EXPERIMENTS[what]
    if content is not None:
        Path("e.toml").write_bytes(content)
    refused(call("run", "e.toml", *settings()), pattern)


def test_a_directory_is_not_an_experiment_file(here: Path) -> None:
    refused(call("run", here, *settings()), re.escape(str(here)), "directory")


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/nix/run", "full", "x" * 300])
def test_a_directory_that_cannot_be_used_is_reported_and_left_alone(out: str, here: Path) -> None:
    (here / "file").write_text("mine")
    (here / "full").mkdir()
    (here / "full" / "mine").write_text("mine")
    refused(call("run", *settings(), "--out", out), re.escape(out))
    assert (here / "file").read_text() == (here / "full" / "mine").read_text() == "mine"
    assert sorted(path.name for path in here.rglob("*")) == ["file", "full", "mine"]


@pytest.mark.parametrize("command", ["resume", "show"])
@pytest.mark.parametrize("directory", ["nix", ".", "file"])
def test_what_is_not_a_run_is_refused(command: str, directory: str) -> None:
    Path("file").write_text("mine")
    refused(call(command, directory), f"^sdfeel: {re.escape(directory)} (is not a|contains no) run")


OTHERS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("topology", "rign"): ("did you mean 'ring'",),
    ("topology", "ring", "--servers", "0"): ("servers", "got 0"),
    ("topology", "nix.txt"): ("nix.txt",),
    ("data", "show", "nix.toml"): ("nix.toml",),
    ("data", "get", "minst"): ("did you mean 'mnist'",),
    ("init", "nixdir/x.toml"): ("nixdir/x.toml",),
    ("init", "x.toml", "--set", "scheme.name=foo"): ("unknown scheme 'foo'",),
    ("compare", *settings(), "--schemes", "foo"): ("unknown scheme 'foo'",),
    ("compare", *settings(), "--schemes", ""): ("scheme",),
    ("compare", *settings(), "--schemes", ",,"): ("scheme",),
    ("compare", *settings(), "--target", "7", "--schemes", "feel"): ("target", "7"),
    ("compare", *settings(), "--target", "0", "--schemes", "feel"): ("above 0 and at most 1", "0"),
}


@pytest.mark.parametrize("arguments", OTHERS, ids=lambda words: " ".join(words[:1] + words[-2:]))
def test_other_commands_refuse_as_clearly(arguments: tuple[str, ...]) -> None:
    refused(call(*arguments), *OTHERS[arguments])


@pytest.mark.parametrize(
    "arguments", [("run", "--foo"), ("frobnicate",), ("run", "--set"), ("run", "a", "b")]
)
def test_a_command_line_that_makes_no_sense_gets_no_traceback(
    arguments: tuple[str, ...],
) -> None:
    outcome = call(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    assert arguments[-1] in outcome.err


def test_an_existing_experiment_file_is_kept(here: Path) -> None:
    (here / "experiment.toml").write_text("mine")
    refused(call("init"), "experiment.toml exists", "--force")
    assert (here / "experiment.toml").read_text() == "mine"


def test_a_comparison_is_not_made_inside_a_run(here: Path) -> None:
    assert call("run", *settings(), "--out", "run").code == 0
    before = {path: path.read_bytes() for path in (here / "run").iterdir()}
    refused(call("compare", *settings(), "--out", "run"), "run", "--out")
    assert {path: path.read_bytes() for path in (here / "run").iterdir()} == before


def test_a_file_without_a_suffix_is_found_again_from_anywhere(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's experiment names it by its whole path."""
    (here / "links").write_text("0 1\n1 2\n")
    assert run("network.graph=links").code == 0
    (written,) = here.glob("runs/*/experiment.toml")
    assert str(here / "links") in written.read_text()


def test_what_init_writes_can_be_read_whatever_the_options_are_called() -> None:
    assert call("init", "e.toml", "--set", 'model.options={"a b" = 1}').code == 0
    assert call("data", "show", "e.toml").code == 0


def test_keys_of_another_scheme_are_passed_over_with_a_note() -> None:
    outcome = run("scheme.name=fedavg", "scheme.alpha=2")
    assert outcome.code == 0
    assert "fedavg does not use scheme.alpha" in outcome.err


def test_one_client_and_one_server_are_enough() -> None:
    assert run("network.clients=1", "network.servers=1", "data.partition=iid").code == 0


def test_a_thousand_clients_may_hold_an_example_each() -> None:
    chosen = ("network.clients=1000", "training.iterations=1", "scheme.tau1=1")
    shards = ("data.partition=shards", "data.classes_per_client=1")
    assert run(*chosen, *shards).code == 0
