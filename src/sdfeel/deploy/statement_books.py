"""The statements of a deployment's nodes, read from their files and compared with each other."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sdfeel.core.errors import RunError
from sdfeel.core.run_files import NODES, STATEMENTS
from sdfeel.deploy.membership import AUTHORITY
from sdfeel.deploy.statement_forms import is_line
from sdfeel.deploy.verify_report import Finding, spans
from sdfeel.live.epochs import SignedNetwork
from sdfeel.live.statements import (
    FIRST,
    Seal,
    Statement,
    hash_of,
    offer,
    serial_of,
    signer,
)
from sdfeel.live.transport.envelope import strict
from sdfeel.live.trust.authority import CA

Line = Mapping[str, Any]
LONGEST = 64 << 20  # bytes of a line
PACKED = (".gz", ".bz2", ".xz", ".zst")
_NODE = re.compile(r"(edge|client)-(0|[1-9][0-9]{0,8})")
_OWN = f"identity/{CA}"


@dataclass
class Books:
    """All statements, by node and round, and what is wrong with them."""

    federation: str
    ca: bytes
    parts: int  # rows that a server may send before one hop
    lines: dict[str, dict[int, Line]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    signatures: int = 0  # the number of good ones
    _certificates: dict[str, str] = field(default_factory=dict)
    _proven: set[tuple[str, int, str]] = field(default_factory=set)  # (server, round, client)
    _again: dict[tuple[str, int], list[Statement]] = field(default_factory=dict)
    _lacks: dict[str, set[int]] = field(default_factory=dict)  # rounds that own files lack
    _gaps: set[tuple[str, int]] = field(default_factory=set)  # where lines before are missing

    @property
    def rounds(self) -> int:
        """The number of rounds that two servers signed, or one server without a gap."""
        tops = sorted((max(own), name) for name in self.servers() if (own := self.lines[name]))
        if not tops:
            return 0
        last, name = tops[-2][0] if len(tops) > 1 else -1, tops[-1][1]
        first = min(self.lines[name])
        last = max(last, first if len(tops) == 1 else -1)
        while last + 1 in self.lines[name]:
            last += 1
        return last + 1

    def ends(self, name: str) -> Iterator[Finding]:
        """What is wrong with the last round that a server signed."""
        last, rounds = max(self.lines[name], default=-1) + 1, self.rounds
        if last > rounds:
            text = f"{name}: it signed round {last}, but nobody signed the rounds before it"
            yield Finding(None, (name,), text)
        elif last < rounds:
            others = [each for each in self.servers() if max(self.lines[each], default=-1) >= last]
            text = f"{name}: its statements end with round {last}, others have {rounds}"
            yield Finding(None, (name, *others) if len(others) == 1 else (name,), text, False)

    def began(self, version: SignedNetwork) -> bool:
        """Do most servers' statements say that an epoch has begun, so that it was not void?"""
        known = {name: own.values() for name, own in self.lines.items() if name in self.servers()}
        said = {
            name: {line["statement"]["epoch"] for line in own if _from(version, line)}
            for name, own in known.items()
        }
        yes = sum(any(epoch >= version.number for epoch in each) for each in said.values())
        return yes > sum(bool(each) for each in said.values()) - yes

    def gap(self, server: int, k: int) -> bool:
        """Are lines missing right before a server's statement about a round?"""
        return (f"edge-{server}", k) in self._gaps

    def servers(self) -> list[str]:
        return [name for name in self.lines if name.startswith("edge-")]

    def all_lines(self) -> Iterator[Line]:
        """The servers' lines."""
        for name in self.servers():
            yield from self.lines[name].values()

    def other_software(self, ours: Mapping[str, str]) -> list[str]:
        """Sentences on servers' software that differs from ours and may change bits."""
        found: dict[str, None] = {}
        for line in self.all_lines():
            said = line["statement"]
            for key, theirs in said.get("software", {}).items():
                native = key == "torch" and ours.get("engine", "").startswith("native")
                if key != "sdfeel" and not native and ours.get(key, theirs) != theirs:
                    found[f"{said['who']} ran {key} {theirs}, not {ours[key]}: bits may differ"] = (
                        None
                    )
        return list(found)

    def said(self, name: str, k: int) -> Statement | None:
        """A node's statement about a round, in its own file."""
        line = self.lines.get(name, {}).get(k)
        return None if line is None else line["statement"]

    def of_client(self, server: int, k: int, client: int) -> Statement | None:
        """The statement of a client that its server keeps; None unless the client signed it."""
        if (f"edge-{server}", k, str(client)) not in self._proven:
            return None
        found: Statement = self.lines[f"edge-{server}"][k]["clients"][str(client)]["statement"]
        return found

    def offer_of(self, client: int, server: int, k: int) -> Mapping[str, Any] | None:
        """The offer that a server signed for a client, if the client kept it."""
        line = self.lines.get(f"client-{client}", {}).get(k)
        given = {} if line is None else line["offers"].get(str(server), {})
        if "signature" not in given:
            return None
        said = offer(self.federation, server, k, given["sha256"], work=given["work"])
        return given if self._signer(said, given) == f"edge-{server}" else None

    def read(self, directory: Path) -> None:
        """Read all statement files, and check each on its own and against the others."""
        found: dict[str, list[list[Line]]] = {}
        for path in files(directory):
            name = path.parent.name
            if _NODE.fullmatch(name) is None:
                self.remarks.append(
                    f"{path} was not read: nodes' directories are called edge-0, client-3 and so on"
                )
            elif path.suffix in PACKED:
                self.remarks.append(f"{path} was not read: unpack it")
            else:
                found.setdefault(name, []).append(list(self._parsed(name, path)))
        if not any(name.startswith("edge-") for name in found):
            raise RunError(
                f"no server in {directory} has signed anything: {NODES}/*/{STATEMENTS} are written "
                f"by synchronous deployments; copy them here from the nodes' hosts"
            )
        for name, parts in found.items():
            self._chain(name, parts)
        self._compare()

    def _parsed(self, name: str, path: Path) -> Iterator[Line]:
        """The lines that are statements. A line's certificate may be in an earlier or later one."""
        with path.open("rb") as file:
            number = 0
            while text := file.readline(LONGEST):
                number += 1
                try:
                    line = strict(text.removesuffix(b"\n").decode(errors="replace"))
                    whole = is_line(name, line)
                except (ValueError, RecursionError):
                    whole = False
                if whole:
                    given = line["certificates"].items()  # a certificate cannot be forged
                    self._certificates |= {n: p for n, p in given if serial_of(p, self.ca) == n}
                    yield line
                else:
                    self._found(None, name, f"line {number} of its statements is damaged")
                if len(text) == LONGEST:
                    return

    def _found(self, k: int | None, name: str, text: str) -> None:
        self.findings.append(Finding(k, (name,), f"{name}: {text}"))

    def _signer(self, statement: Statement, seal: Mapping[str, Any]) -> str | None:
        pem = self._certificates.get(str(seal.get("serial")))
        if pem is None:
            return None
        found: Seal = {"signature": str(seal.get("signature")), "certificate": pem}
        who = signer(statement, found, self.ca)
        self.signatures += who is not None
        return who

    def _chain(self, name: str, parts: list[list[Line]]) -> None:
        """Every line is signed by its node and follows the one before.

        A file that was rotated has several parts. A node that is started after its last part was
        moved away begins anew, as it does not know the line before.
        """
        own = self.lines.setdefault(name, {})
        before, last, strays = None, -1, dict[str, int]()
        for part in sorted(filter(None, parts), key=lambda each: each[0]["statement"]["round"]):
            for line in part:
                statement = line["statement"]
                k = statement["round"]
                if k in own and own[k]["statement"] == statement:
                    continue  # a copy of a part
                signed = self._signer(statement, line)
                if signed not in (None, name) and statement.get("who") == signed:
                    strays.setdefault(str(signed), k)
                    continue
                good = signed == name == statement.get("who")
                if not good or statement.get("federation") != self.federation:
                    text = "its statement does not fit its signature: somebody changed it"
                    self._found(k, name, text)
                elif before is None and statement["before"] != FIRST:
                    self.remarks.append(f"the statements of {name} begin with round {k + 1}")
                elif before is not None and line is part[0] and statement["before"] == FIRST:
                    self.remarks.append(f"the statements of {name} begin anew with round {k + 1}")
                elif before is not None and statement["before"] != before and k > last + 1:
                    text = "its statement does not follow the one before: lines are missing"
                    self.findings.append(Finding(k, (name,), f"{name}: {text}", False))
                    self._gaps.add((name, k))
                elif before is not None and statement["before"] != before:
                    text = "its statement does not follow the one before: lines are missing or"
                    self._found(k, name, f"{text} added")
                if k in own:
                    self._twice(name, k, own[k]["statement"], statement)
                before, last = hash_of(statement), k
                own.setdefault(k, line)
        for other, k in strays.items():  # nobody is convicted by what somebody else signed
            text = f"{name}: statements of {other} are in its directory: move them to {other}'s"
            self.findings.append(Finding(k, (name,), text, False))

    def _twice(self, name: str, k: int, one: Statement, other: Statement) -> None:
        """A client may do a round again, in a new statement; a server's statement is final."""
        if name.startswith("edge-") or one["before"] == other["before"]:
            self._found(k, name, "it signed two different statements about this round")
            return
        self._again.setdefault((name, k), []).append(other)
        self.remarks.append(f"{name} did round {k + 1} twice, with different outcomes")

    def _compare(self) -> None:
        """Compare each node's statements about another node with that node's own."""
        for name in self.servers():
            for k, line in self.lines[name].items():
                said = line["statement"]
                for client, kept in line["clients"].items():
                    self._client(name, k, client, kept, said)
                for client in sorted(said["steps"].keys() - line["clients"].keys()):
                    self._found(k, name, f"it used a result of client-{client} that is not signed")
                for key, heard in line["servers"].items():
                    self._heard(name, k, key, heard, said)
        for name, own in self.lines.items():
            if name.startswith("client-"):
                for k, line in own.items():
                    self._offers(name, k, line)
        self._cut_off()

    def _client(self, server: str, k: int, number: str, kept: Line, statement: Statement) -> None:
        client, said = f"client-{number}", kept["statement"]
        signed = self._signer(said, kept) == said["who"] == client
        right = {"round": k, "steps": statement["steps"].get(number)}
        theirs = f"the statement that it keeps as {client}'s"
        if not signed or hash_of(said) != statement["came"].get(number):
            self._found(k, server, f"{theirs} is not signed by {client}")
        elif server.removeprefix("edge-") not in said["got"] or said != {**said, **right}:
            self._found(k, server, f"{theirs} is about something else")
        else:
            self._proven.add((server, k, number))
        if (server, k, number) not in self._proven:
            return
        own = self.said(client, k)
        if own is not None and said not in (own, *self._again.get((client, k), ())):
            self._found(k, client, f"it signed another statement for {server} than for itself")
        elif own is None and client in self.lines:
            self._lacks.setdefault(client, set()).add(k)

    def _cut_off(self) -> None:
        """Report nodes whose own files lack rounds that they signed. None of that is proof of a
        lie: a rotated part may be somewhere else, and a power cut may take the newest lines."""
        for name, rounds in self._lacks.items():
            begin = min(self.lines[name], default=0)
            for some in ({k for k in rounds if k < begin}, {k for k in rounds if k >= begin}):
                if some:
                    newer = max(some) >= begin
                    how = "a power cut took them" if newer else "a part of it is missing here"
                    text = f"its own file lacks {spans(some)}, of which others hold its signature"
                    text = f"{name}: {text}: {how}, or it was cut"
                    self.findings.append(Finding(min(some), (name,), text, False))

    def _heard(self, name: str, k: int, key: str, heard: Line, statement: Statement) -> None:
        number, hop, row = map(int, key.split("/"))
        other, sha256 = f"edge-{number}", heard["sha256"]
        if statement["heard"].get(key) != sha256:
            self._found(k, name, f"the model of {other} that it keeps is not the one it signed for")
            return
        said = offer(self.federation, number, k, sha256, hop=hop, row=row)
        signed, own = self._signer(said, heard) == other, self.said(other, k)
        sent = None if own is None else own["offered"].get(str(hop * self.parts + row))
        if not signed:
            text = f"{name} says that it heard a model of {other} that {other} did not sign"
            if own is not None and sent != sha256:
                text += f", and {other} says that it sent another one"
            self.findings.append(Finding(k, (name, other), f"{text}: {name} has no proof", False))
        elif own is None and other in self.lines:
            self._lacks.setdefault(other, set()).add(k)
        elif own is not None and sent != sha256:
            text = f"it signed one model for {name} and another one in its own statement"
            self._found(k, other, f"{text} (hop {hop})")

    def _offers(self, client: str, k: int, line: Line) -> None:
        got, number = line["statement"]["got"], int(client.partition("-")[2])
        for d, given in line["offers"].items():
            same = got.get(d) == given["sha256"]
            same = same and given["work"] in (None, line["statement"]["work"])
            signed = self.offer_of(number, int(d), k) is not None
            if not same or ("signature" in given and not signed):
                text = f"the offer that it keeps as edge-{d}'s is not signed by edge-{d}"
                self._found(k, client, text)
            elif "signature" not in given:
                self.remarks.append(f"edge-{d} did not sign what it gave {client} in round {k + 1}")


def _from(version: SignedNetwork, line: Line) -> bool:
    return bool(line["statement"]["round"] >= version.begins)


def files(directory: Path) -> list[Path]:
    """The files with what the nodes of a directory signed; anything else there is skipped."""
    found = sorted((directory / NODES).glob(f"*/{STATEMENTS}*"))
    return [path for path in found if path.is_file()]


def authorities(directory: Path) -> bytes:
    """The certificates of all authorities that we trust.

    They are in the authority's own directory, or in an operator's. Other nodes' directories come
    from their hosts, each of which could invent an authority: of those, most must name it.
    """
    for pattern in (f"{AUTHORITY}/ca*.pem", f"{NODES}/operator-*/{_OWN}"):
        if found := [each for path in directory.glob(pattern) for each in _read(path)]:
            return b"".join(dict.fromkeys(found))
    nodes = [known for path in directory.glob(f"{NODES}/*/{_OWN}") if (known := set(_read(path)))]
    votes = Counter(each for known in nodes for each in known)
    found = sorted(each for each, count in votes.items() if 2 * count > len(nodes))
    if not found:
        raise RunError(
            f"{directory} has no authority's certificate that most of its nodes name: copy the "
            f"authority's ca.pem to {directory / AUTHORITY}"
        )
    return b"".join(found)


def _read(path: Path) -> list[bytes]:
    """The certificates in a file; none in a key or a damaged copy."""
    try:
        known = x509.load_pem_x509_certificates(path.read_bytes()) if path.is_file() else []
    except (OSError, ValueError):
        return []
    return [each.public_bytes(Encoding.PEM) for each in known]
