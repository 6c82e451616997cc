"""Before two nodes work together they compare what they run; a difference is one sentence."""

import base64
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from torch import nn

from sdfeel.deploy.node import code_of
from sdfeel.live.protocol import SHARED, About, Header, Link, Reception, Who
from sdfeel.live.transport import Refused, Reply
from sdfeel.live.transport.envelope import VERSION, opened
from sdfeel.live.transport.limits import Limits
from sdfeel.version import __version__
from tests.live import timeless
from tests.live.village import Answering

OURS = About(
    sdfeel="1.4.0",
    experiment="e" * 64,
    network="n" * 64,
    epoch="9.9 as we know it",
    engine="loop",
    torch="2.13.0",
    model="m" * 64,
    initial="i" * 64,
    library="l" * 64,
    arithmetic="a" * 64,
)
SAMPLES = Path(__file__).parents[1] / "samples"


@pytest.mark.parametrize("key", [key for key in SHARED if key != "arithmetic"])
def test_every_difference_is_named_with_both_values_and_a_way_out(key: str) -> None:
    theirs = {**OURS.told(), key: "9.9 of another kind"}
    words, remedy = SHARED[key]
    with pytest.raises(Refused) as caught:
        OURS.check("edge-0", "client-3", theirs)
    mine = OURS.told()[key][:12]
    expected = f"edge-0 and client-3 have different {words} ({mine} and 9.9 of anoth): {remedy}"
    assert str(caught.value) == expected


def test_facts_that_one_side_does_not_tell_are_not_compared() -> None:
    device = replace(OURS, torch=None, model=None, initial=None)
    assert OURS.check("edge-0", "client-3", device.told()) == []
    assert device.check("client-3", "edge-0", OURS.told()) == []
    assert OURS.check("edge-0", "client-3", {**OURS.told(), "a later field": "x"}) == []


def test_epochs_are_compared_where_they_have_the_same_number() -> None:
    """A node that is behind learns of the newer one; two versions of one number are a fork."""
    known = About().in_epoch(2, "a" * 64)
    for other in (About(), known, known.in_epoch(1, "b" * 64), known.in_epoch(3, "c" * 64)):
        assert known.check("edge-0", "edge-1", other.told()) == []
    with pytest.raises(Refused, match="different epochs of the network"):
        known.check("edge-0", "edge-1", known.in_epoch(2, "b" * 64).told())


def test_with_the_native_engine_every_torch_will_do() -> None:
    native = replace(OURS, engine="native 2")
    assert native.check("edge-0", "client-3", {**native.told(), "torch": "1.0"}) == []


@pytest.mark.parametrize(("key", "other"), [("sdfeel", "1.4.2"), ("torch", "2.13.1+cpu")])
def test_versions_of_one_series_work_together_and_say_so(key: str, other: str) -> None:
    (note,) = OURS.check("edge-0", "client-3", {**OURS.told(), key: other})
    assert f"different versions of {key}" in note
    assert note.endswith("which speak the same protocol")


def test_cpus_on_which_torch_rounds_differently_work_together_and_say_so() -> None:
    (note,) = OURS.check("edge-0", "client-3", {**OURS.told(), "arithmetic": "b" * 64})
    words, remedy = SHARED["arithmetic"]
    both = f"{'a' * 12} and {'b' * 12}"
    assert note == f"edge-0 and client-3 have different {words} ({both}): {remedy}"


@pytest.mark.parametrize("nonsense", [None, 3, [], {}, {"torch": "2.13.0"}, "sdfeel"])
def test_a_node_that_tells_nothing_about_itself_is_refused(nonsense: object) -> None:
    with pytest.raises(Refused, match="client-3 does not say which sdfeel it runs"):
        OURS.check("edge-0", "client-3", nonsense)


@dataclass
class House:
    """A server that forgets whom it has met when it is restarted."""

    about: About
    answers: list[Header] = field(default_factory=list)  # what it said

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.told: list[str] = []
        self.reception = Reception("edge-0", self.about, self.told.append)

    def answer(self, kind: str, header: Header) -> Reply:
        greeting = self.reception.meet(Who("client", 3), header)
        self.answers.append({"introduce": True} if greeting is None else {"done": kind, **greeting})
        return Reply(self.answers[-1])


def test_a_link_introduces_itself_once_for_each_start_of_the_other_side() -> None:
    house = House(OURS)
    link = Link("edge-0", Answering(house.answer), "f", OURS, "client-3")

    async def story() -> None:
        for kind in ("work", "result"):
            assert (await link.ask(kind, {}))[0]["done"] == kind
        house.restart()
        assert (await link.ask("work", {}))[0]["done"] == "work"

    timeless.run(story())
    assert ["about" in each for each in house.answers] == [True, False, False, True]
    assert [each.get("introduce", False) for each in house.answers] == [False, False, True, False]


def test_a_caller_that_comes_back_with_other_code_is_refused_from_then_on() -> None:
    house = House(OURS)

    async def story() -> None:
        await Link("edge-0", Answering(house.answer), "f", OURS, "client-3").ask("work", {})
        other = Link(
            "edge-0", Answering(house.answer), "f", replace(OURS, model="x" * 64), "client-3"
        )
        for _ in range(2):
            with pytest.raises(Refused, match="different code of the model"):
                await other.ask("work", {})
        house.reception.meet(Who("client", 4), {"about": OURS.told()})
        assert house.reception.meet(Who("client", 3), {}) is None  # it must introduce itself again

    timeless.run(story())


def test_a_caller_checks_the_server_in_the_same_way() -> None:
    lenient = House(OURS)
    told: list[str] = []
    link = Link(
        "edge-0",
        Answering(lenient.answer),
        "f",
        replace(OURS, sdfeel="1.4.1"),
        "client-3",
        told.append,
    )

    async def story() -> None:
        await link.ask("work", {})

    timeless.run(story())
    assert len(told) == len(lenient.told) == 1  # one sentence on both sides
    assert told[0].startswith("client-3 and edge-0")
    assert lenient.told[0].startswith("edge-0 and client-3")


def test_messages_of_another_protocol_are_refused_by_name() -> None:
    messages = json.loads((SAMPLES / "0.1" / "messages.json").read_text())
    limits = Limits(bodies={message["kind"]: 1 << 20 for message in messages})
    for message in messages:
        with pytest.raises(Refused) as caught:
            opened(base64.b64decode(message["question"]), limits)
        assert str(caught.value) == (
            f"the message is of protocol 2, but this node speaks protocol {VERSION} (sdfeel "
            f"{__version__}): install the same version of sdfeel on all nodes"
        )


class Doubling(nn.Module):
    def forward(self, x: object) -> object:
        return x


def test_the_code_of_a_model_is_that_of_its_own_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    assert code_of(plain) == code_of(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    assert code_of(plain) != code_of(nn.Sequential(nn.Linear(2, 3), nn.Tanh()))
    mine = nn.Sequential(nn.Linear(2, 3), Doubling())
    before = code_of(mine)
    changed = tmp_path / "changed.py"
    changed.write_text(Path(__file__).read_text() + "# another version\n")
    monkeypatch.setattr(f"{__name__}.__file__", str(changed))
    assert code_of(mine) != before
