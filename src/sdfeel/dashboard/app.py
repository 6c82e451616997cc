"""The page's server: routes to the views, and nothing else."""

import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from mimetypes import guess_type
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from sdfeel.core.errors import InputError, SdfeelError
from sdfeel.core.run_files import EXPERIMENT
from sdfeel.dashboard.http import (
    LOOPBACK,
    PICTURES,
    Economical,
    Guard,
    Json,
    attachment,
    download,
    number,
    palette,
    picture,
    policy,
    run_name,
    selection,
    stream,
    whole,
)
from sdfeel.dashboard.http import body as sent
from sdfeel.dashboard.jobs import Jobs, Wish
from sdfeel.dashboard.log_files import BEST, FILES, UNREADABLE, NotHere, Root
from sdfeel.dashboard.notes import Notes, write_notes
from sdfeel.dashboard.views import run as views
from sdfeel.dashboard.views.experiment import Holdings, form
from sdfeel.dashboard.views.federation import audit, nodes
from sdfeel.dashboard.views.forecast import Forecasts
from sdfeel.dashboard.views.graph import graph
from sdfeel.dashboard.views.run import comparison, merged
from sdfeel.dashboard.views.run_list import Catalogue
from sdfeel.dashboard.views.updates import list_updates, run_updates
from sdfeel.experiment.loading import load
from sdfeel.report.export import ENDINGS, written
from sdfeel.report.history import default_target
from sdfeel.version import __version__

PAGES = ("/", "/run", "/compare", "/new")
EVENTS_SHOWN = 100


class Dashboard:
    """All routes over one directory."""

    def __init__(self, root: Root, allow_start: bool, closing: Callable[[], bool]) -> None:
        self.catalogue, self.jobs, self.holdings = Catalogue(root), Jobs(root), Holdings(root)
        self.forecasts = Forecasts(self.catalogue)
        self.root, self.allow_start, self.closing = root, allow_start, closing
        self.secret = secrets.token_urlsafe(24)
        self.static = _static()

    def routes(self) -> list[Route]:
        reading = {
            "/static/{file}": self.asset,
            "/palette.css": self.colours,
            "/api/about": self.about,
            "/api/run": self.run,
            "/api/graph": self.graph,
            "/api/timeline": self.timeline,
            "/api/events": self.events,
            "/api/experiment": self.experiment,
            "/api/holdings": self.who_holds_what,
            "/api/forecast": self.forecast,
            "/api/nodes": self.nodes,
            "/api/audit": self.audit,
            "/api/compare": self.compare,
            "/api/keys": self.keys,
            "/api/stream": self.stream,
            "/picture": self.picture,
            "/table": self.table,
            "/file": self.file,
            **dict.fromkeys(PAGES, self.page),
        }
        changing = {
            "/api/start": self.start,
            "/api/stop": self.stop,
            "/api/resume": self.resume,
            "/api/notes": self.write_notes,
        }
        found = [Route(path, endpoint, methods=["GET"]) for path, endpoint in reading.items()]
        if self.allow_start:
            found.append(Route("/api/form", self.form, methods=["GET"]))
            found += [Route(path, end, methods=["POST"]) for path, end in changing.items()]
        return found

    def page(self, request: Request) -> Response:
        return Response(self.static["index.html"], media_type="text/html")

    def asset(self, request: Request) -> Response:
        name = request.path_params["file"]
        if name not in self.static:
            raise NotHere(f"no file {name!r}")
        return Response(
            self.static[name],
            media_type=guess_type(name)[0],
            headers={"cache-control": "no-cache"},
        )

    def colours(self, request: Request) -> Response:
        return Response(palette(), media_type="text/css", headers={"cache-control": "no-cache"})

    def about(self, request: Request) -> Response:
        secret = self.secret if self.allow_start else None
        about = {"version": __version__, "directory": self.root.path.name, "secret": secret}
        return Json({**about, "allow_start": self.allow_start})

    def run(self, request: Request) -> Response:
        return Json(views.view(self.catalogue, run_name(request)))

    def graph(self, request: Request) -> Response:
        log = self.catalogue.log(run_name(request))
        return Json(graph(log.events(), log.rounds.stride))

    def timeline(self, request: Request) -> Response:
        log = self.catalogue.log(run_name(request))
        servers = [whole(text) for text in request.query_params.getlist("server")]
        begin, end = number(request, "begin", 0.0), number(request, "end", None)
        return Json(views.timeline(log, begin, end, servers))

    def events(self, request: Request) -> Response:
        before, kind = request.query_params.get("before"), request.query_params.get("kind")
        log = self.catalogue.log(run_name(request))
        end = None if before is None else whole(before)
        return Json(views.events(log, end, EVENTS_SHOWN, kind or None))

    def experiment(self, request: Request) -> Response:
        planned = request.query_params.get("planned") == "yes"
        return Json(views.experiment(self.root, run_name(request), BEST if planned else EXPERIMENT))

    def who_holds_what(self, request: Request) -> Response:
        return Json(self.holdings.of(run_name(request)))

    def forecast(self, request: Request) -> Response:
        asked = {key: number(request, key, None) for key in request.query_params if key != "name"}
        return Json(self.forecasts.of(run_name(request), asked))

    def nodes(self, request: Request) -> Response:
        return Json(nodes(self.root, self.catalogue.one(run_name(request)).name))

    def audit(self, request: Request) -> Response:
        everything = request.query_params.get("all") == "yes"
        return Json(audit(self.root, self.catalogue.one(run_name(request)).name, everything))

    def compare(self, request: Request) -> Response:
        names, seeds, target = selection(request)
        return Json(comparison(self.catalogue, names, seeds, target))

    def keys(self, request: Request) -> Response:
        return Json(self.catalogue.keys())

    def picture(self, request: Request) -> Response:
        names, seeds, target = selection(request)
        histories = merged(self.catalogue, names, seeds)
        goal = target if target is not None else default_target(histories)
        ending = request.query_params.get("as", "png")
        if ending not in PICTURES:
            raise InputError(f"no picture as {ending!r}: choose one of {', '.join(PICTURES)}")
        drawn = picture(histories, goal, ending, request.query_params.get("width"))
        return attachment(drawn, f"{'-'.join(names)[:80]}.{ending}", PICTURES[ending])

    def table(self, request: Request) -> Response:
        """For a paper: means over seeds with intervals, and costs to the target."""
        names, _, target = selection(request)
        found = views.lines(self.catalogue, names)
        goal = target if target is not None else default_target([line.history for line in found])
        ending = request.query_params.get("as", "tex")
        if f".{ending}" not in ENDINGS:
            raise InputError(f"no table as {ending!r}: choose one of tex, csv, md")
        text = written(found, ENDINGS[f".{ending}"], goal)
        return attachment(text.encode(), f"{'-'.join(names)[:80]}.{ending}", "text/plain")

    def file(self, request: Request) -> Response:
        name, wanted = run_name(request), request.query_params.get("file", "")
        if wanted not in FILES:
            raise NotHere(f"{wanted!r} cannot be downloaded: choose one of {', '.join(FILES)}")
        return download(self.root.open(name, wanted), f"{name}-{wanted}")

    async def stream(self, request: Request) -> Response:
        name = request.query_params.get("name")
        if name is None:
            news = list_updates(self.catalogue, self.jobs)
        else:
            news = run_updates(self.catalogue, self.jobs, name)
        return stream(request, partial(run_in_threadpool, news), self.closing)

    def form(self, request: Request) -> Response:
        return Json(form())

    async def start(self, request: Request) -> Response:
        wish = Wish.of(await sent(request))
        await run_in_threadpool(load, None, wish.settings)  # refuse mistakes before it starts
        return Json((await run_in_threadpool(self.jobs.start, wish)).record())

    async def stop(self, request: Request) -> Response:
        body = await sent(request)
        job = await run_in_threadpool(self.jobs.stop, str(body.get("name", "")))
        return Json(job.record())

    async def resume(self, request: Request) -> Response:
        body = await sent(request)
        found = await run_in_threadpool(self.catalogue.one, str(body.get("name", "")))
        if found.state not in ("stopped", "crashed", "waiting", "damaged"):
            raise InputError(f"{found.name} is {found.state}: there is nothing to resume")
        job = await run_in_threadpool(self.jobs.resume, found.name)
        return Json(job.record())

    async def write_notes(self, request: Request) -> Response:
        body = await sent(request)
        name, notes = str(body.get("name", "")), Notes.of(body)
        await run_in_threadpool(write_notes, self.root, name, notes)
        return Json((await run_in_threadpool(self.catalogue.one, name)).record())


def build(
    directory: Path,
    allow_start: bool = False,
    token: str | None = None,
    closing: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """The whole application, guarded; without a token it answers on loopback only."""
    dashboard = Dashboard(Root(directory), allow_start, closing)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(dashboard.jobs.close)

    app = Starlette(
        routes=dashboard.routes(),
        lifespan=lifespan,
        middleware=[Middleware(Economical), Middleware(GZipMiddleware, minimum_size=600)],
        exception_handlers={
            **dict.fromkeys(UNREADABLE, _mistake),
            NotHere: _not_here,
            SdfeelError: _refused,
        },
    )
    app.state.dashboard = dashboard
    return Guard(app, token, dashboard.secret, policy(dashboard.static["index.html"]))


async def _not_here(request: Request, error: Exception) -> Response:
    return Json({"error": str(error)}, 404)


async def _refused(request: Request, error: Exception) -> Response:
    return Json({"error": str(error)}, 400)


async def _mistake(request: Request, error: Exception) -> Response:
    """A log can be damaged in unforeseen ways; the page must say so and carry on."""
    return Json({"error": f"this cannot be shown: {type(error).__name__}: {error}"}, 500)


def _static() -> dict[str, bytes]:
    """The browser's files by name, all read at the start, so that no request can choose a path."""
    own = files(__package__) / "static"
    found = [*own.iterdir(), *(own / "vendor").iterdir()]
    return {each.name: each.read_bytes() for each in found if each.is_file()}


@dataclass(frozen=True)
class ServeOptions:
    """What is served, where, and to whom."""

    directory: Path
    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one
    allow_start: bool = False
    token: str | None = None  # None: a random one where one is needed


def serve(options: ServeOptions, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; `ready` is called with the address as soon as it is open."""
    if not options.directory.is_dir():
        raise InputError(f"no directory {options.directory}: give one that holds runs")
    token = options.token
    if options.host not in LOOPBACK:
        token = token or secrets.token_urlsafe(18)
    with _socket(options.host, options.port) as listening:
        server: list[uvicorn.Server] = []
        app = build(
            options.directory,
            options.allow_start,
            token,
            closing=lambda: bool(server) and server[0].should_exit,
        )
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, lifespan="on"
        )
        server.append(uvicorn.Server(config))
        ready(_address(listening, options.host, token))
        with suppress(KeyboardInterrupt):  # the usual end
            server[0].run(sockets=[listening])


def _socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen()  # from here on connections are accepted, even before we answer
    except (OSError, OverflowError) as error:
        found.close()
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot listen on {host} port {port} ({reason}): choose another --port or --host"
        ) from None
    return found


def _address(listening: socket.socket, host: str, token: str | None) -> str:
    name = f"[{host}]" if ":" in host else host
    secret = f"?token={token}" if token is not None else ""
    return f"http://{name}:{listening.getsockname()[1]}/{secret}"
