"""Pages of other sites can neither read from a server on loopback nor act on it: every route, and in a browser."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from antiphon.config import Config
from antiphon.engines.factory import build_engine
from antiphon.wiring import build_app
from tests.support.asgi_client import JSON, Header, call
from tests.support.chromium import Browser
from tests.support.server_process import ServerProcess

MODES = (b"cors", b"no-cors", b"navigate", b"same-origin", b"websocket")
FOREIGN: list[list[Header]] = [
    [(b"origin", b"https://evil.example")],
    [(b"origin", b"null")],  # a sandboxed frame
    *([(b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", mode)] for mode in MODES),
]
# What a page can send without asking first, and what it would have to ask for.
ATTACKS = """(async (target, running) => {
  const send = (path, init) => fetch(target + path, init).then((reply) => reply.type, String);
  const json = JSON.stringify({ model: 'fake', input: 'cross-site', tenant: 'evil', server: { type: 'mcp' } });
  const posted = ['responses', 'chat/completions', 'conversations', 'antiphon/keys', 'antiphon/mcp/tools',
    'antiphon/mcp/call', `responses/${running}/cancel`, `responses/${running}/tool_outputs`];
  const simple = await Promise.all(posted.flatMap((path) => ['text/plain', 'application/json'].map((type) =>
    send(`/v1/${path}`, { method: 'POST', mode: 'no-cors', body: json, headers: { 'content-type': type } }))));
  const asked = await Promise.all([
    send(`/v1/responses/${running}`, { method: 'DELETE' }),
    send(`/v1/responses/${running}/cancel`, { method: 'POST' }),
    send('/v1/responses', { method: 'POST', body: json, headers: { 'content-type': 'application/json' } }),
    send(`/v1/responses/${running}`), send('/v1/antiphon/feed'), send('/v1/capabilities'), send('/ui/app.js'),
  ]);
  const form = document.createElement('form');
  document.body.innerHTML = '<iframe name=inner></iframe>';
  Object.assign(form, { method: 'post', enctype: 'text/plain', target: 'inner' });
  form.action = `${target}/v1/responses/${running}/cancel`;
  document.body.append(form);
  const sent = new Promise((resolve) => { document.querySelector('iframe').onload = resolve; });
  form.submit();
  await sent;
  const socket = new WebSocket(target.replace('http', 'ws') + '/v1/responses');
  const opened = await new Promise((resolve) => {
    socket.onopen = () => resolve(true);
    socket.onclose = () => resolve(false);
  });
  return { simple, asked, opened };
})"""


@pytest.mark.anyio
@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@pytest.mark.shows("H7.4")
async def test_no_route_acts_for_a_page_of_another_site(headers: list[Header]) -> None:
    app = build_app(config := Config.from_settings(engine="fake", store="memory"), build_engine(config))
    documented = (await call(app, "GET", "/openapi.json")).json()["paths"]
    routes = [
        (method.upper(), path.replace("{", "").replace("}", "")) for path, one in documented.items() for method in one
    ]
    assert {"POST", "DELETE", "GET"} <= {method for method, _ in routes}
    for method, path in routes:
        if method == "GET" and (b"sec-fetch-mode", b"navigate") in headers:
            continue  # a link, whose reply the other page cannot read
        answer = await call(app, method, path, JSON, *headers, body=[b"{}"])
        assert answer.status == 403, (method, path)
        assert not [name for name, _ in answer.headers if name.startswith(b"access-control")]


@contextmanager
def serve_foreign_page() -> Iterator[str]:
    """Serve an empty page of another site on this machine."""

    class EmptyPage(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), EmptyPage) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://evil.localhost:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.needs("chromium")
@pytest.mark.shows("H7.4")
def test_a_foreign_page_in_the_same_browser_cannot_act(browser: Browser, server: ServerProcess) -> None:
    running = json.loads(server.post({"model": "fake", "input": "endless", "background": True})[1])["id"]
    before = json.loads(server.get("/v1/antiphon/responses?limit=1")[1])["first_id"]
    with serve_foreign_page() as url, browser.new_page() as page:
        page.open(url)
        done = page.evaluate(f"{ATTACKS}({json.dumps(server.url)}, {json.dumps(running)})")
    assert set(done["simple"]) == {"opaque"}
    assert all("TypeError" in outcome for outcome in done["asked"]), done["asked"]
    assert not done["opened"]
    assert json.loads(server.get(f"/v1/responses/{running}")[1])["status"] in ("queued", "in_progress")
    assert json.loads(server.get("/v1/antiphon/responses?limit=1")[1])["first_id"] == before
    assert server.send("POST", f"/v1/responses/{running}/cancel")[0] == 200
