"""The dashboard: what its files may contain, and the page itself in a real browser."""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from fastapi.testclient import TestClient
from serve_support import png, service, until

from dept.models.files import save_model
from dept.serve.api import create_app
from dept.serve.dashboard import PARTS, POLICY
from dept.serve.tokens import new_token
from support import spread_predictions, tiny_model

HOSTILE = ("<img src=x onerror=document.title='owned'>", "</script><b>bold</b>", '\u202eright-to-left & "quotes"\'')
"""names of classes"""
TEXTS = {path: content.decode() for path, (content, _) in PARTS.items()}
SCRIPTS = {path: text for path, text in TEXTS.items() if path.endswith(".js")}
ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
SLOW = 300_000
"""milliseconds for an adaptation on a busy machine; usually it takes a few seconds"""


# -- the files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(PARTS))
def test_names_no_foreign_address(path: str) -> None:
    text = TEXTS[path].replace("http://www.w3.org/2000/svg", "")  # a name, which nobody fetches
    assert not re.findall(r"(?:https?:|wss?:)?//[\w.-]+\.\w|url\(|@import", text)


@pytest.mark.parametrize("path", sorted(SCRIPTS))
def test_scripts_make_no_html_and_keep_no_token(path: str) -> None:
    sinks = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|setTimeout\(\s*[\"'`]"
    )
    assert not re.findall(rf"{sinks}|localStorage|document\.cookie", SCRIPTS[path])


def test_everything_that_is_named_is_there() -> None:
    imports = {f"/dashboard/{name}" for text in SCRIPTS.values() for name in re.findall(r'from "\./([^"]+)"', text)}
    linked = set(re.findall(r'(?:src|href)="(/[^"]+)"', TEXTS["/"]))
    assert imports and linked and imports | linked <= PARTS.keys()
    assert PARTS.keys() - {"/"} <= imports | linked  # and nothing is there that is never used


def test_every_action_of_the_page_exists() -> None:
    text = "".join(TEXTS.values())
    named = set(re.findall(r'(?:click|submit|input|change|drop)(?:: |=)"([a-z-]+)"', text))
    defined = set(re.findall(r'^  (?:async )?"?([a-z-]+)"?(?:\(|: )', text, re.MULTILINE))
    assert len(named) > 10 and named <= defined


def test_the_policy_leaves_no_gap(client: TestClient) -> None:
    assert "unsafe" not in POLICY and POLICY.startswith("default-src 'none'")
    assert not re.findall(r"\son\w+=|\sstyle=|<style|<script(?! type=\"module\" src=)", TEXTS["/"])
    for path, (content, kind) in PARTS.items():
        answer = client.get(path)
        assert answer.content == content and answer.headers["content-type"] == kind
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_its_ground(scheme: str) -> None:
    """WCAG 2.2, 1.4.3: a contrast of at least 4.5."""
    blocks = re.findall(r":root \{(.*?)\}", TEXTS["/dashboard/style.css"], re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): #(\w{6});", blocks[scheme == "dark"]))

    def luminance(name: str) -> float:
        channels = [int(colours[name][start : start + 2], 16) / 255 for start in (0, 2, 4)]
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    texts = {name: ("page", "card", "soft") for name in ("ink", "muted")}
    texts |= {name: ("card", f"{name}-soft") for name in ("good", "bad", "warn", "strong")} | {"on": ("strong", "bad")}
    for text, grounds in texts.items():
        for ground in grounds:
            dark, bright = sorted((luminance(text), luminance(ground)))
            assert (bright + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def test_nothing_but_its_parts_can_be_asked_for(client: TestClient) -> None:
    for name in ("index.html", "__init__.py", "..%2fgate.py", "%2e%2e/gate.py", "app.js/x", ""):
        assert client.get(f"/dashboard/{name}").status_code in (404, 405), name


def test_the_page_is_open_and_its_data_is_not(model_file: Path, tmp_path: Path) -> None:
    new_token(tmp_path / "tokens.txt", "alice", "operate")
    app = create_app(service(model_file, tmp_path / "pool", no_auth=False, token_file=tmp_path / "tokens.txt"))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert {client.get(path).status_code for path in PARTS} == {200}
        assert client.get("/v1/domains").status_code == client.get("/dashboard/x.js").status_code == 401


def test_a_domain_says_what_a_rollback_would_serve(client: TestClient, adapters: Path) -> None:
    def previous() -> int | None:
        found: int | None = client.get("/v1/domains/a").json()["previous"]
        return found

    def activate(number: int) -> None:
        assert client.post("/v1/domains/a/activate", json={"version": number}).status_code == 200

    assert previous() == 0  # version 1 was found in the folder and activated
    client.post("/v1/domains/a/versions", files={"adapter": (adapters / "b.safetensors").read_bytes()})
    activate(2)
    assert previous() == 1
    activate(0)
    assert previous() == 2
    for expected in (1, 0, None):
        client.post("/v1/domains/a/rollback")
        assert previous() == expected
    assert client.post("/v1/domains/a/rollback").status_code == 409


# -- the page -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="the package playwright is missing")
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no Chromium on this machine")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield opened
        opened.close()


class Page:
    """A tab of its own, which remembers what the browser complained of."""

    def __init__(self, browser: Any, address: str, **settings: Any) -> None:
        self.context = browser.new_context(base_url=address, **settings)
        self.context.set_default_timeout(30_000)
        self.tab = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: set[str] = set()
        self.tab.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda request: self.asked.add(request.url))
        self.tab.goto("/")


@contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[str]:
    """A server on loopback whose classes have hostile names; its address."""
    model = save_model(spread_predictions(tiny_model(HOSTILE)), folder / "model.safetensors")
    app = create_app(service(model, folder / "pool", poll=0.1, **settings))
    running = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        until(lambda: running.started)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        running.should_exit = True
        thread.join(30)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server without tokens, whose adaptations are in a hurry."""
    monkeypatch.setattr(os, "setpriority", lambda *given: None)
    with serving(tmp_path) as address:
        yield address


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """40 images, the first of which has a hostile name."""
    files = [tmp_path / ("<b onclick=x>a&amp;b.png" if number == 0 else f"{number}.png") for number in range(40)]
    for number, file in enumerate(files):
        file.write_bytes(png(number % 3, seed=number, noise=60))
    return files


def test_from_images_to_an_adapter_and_back(browser: Any, server: str, images: list[Path]) -> None:
    page = Page(browser, server)
    tab = page.tab
    # Upload images, adapt, watch progress.
    tab.get_by_role("button", name="Adapt to new images").first.click()
    dialog = tab.get_by_role("dialog")
    dialog.get_by_label("Domain").fill("site")
    dialog.get_by_label("Choose images").set_input_files(images)
    dialog.get_by_text("40 images").wait_for()
    dialog.get_by_label("Method").select_option("dept+")
    dialog.get_by_label("Steps").fill("10")
    dialog.get_by_role("button", name="Start adaptation").click()
    job = tab.locator("li.job")
    job.locator("progress").wait_for()
    status = tab.get_by_role("status").get_by_text("Adaptation of site finished")
    status.wait_for(timeout=SLOW)
    told = status.inner_text()
    # The verdict, and twenty labels with two keys. Some answers are taken back and given again.
    verdict = httpx.get(f"{server}/v1/jobs").json()[0]["verdict"]["verdict"]
    assert told.startswith(f"Adaptation of site finished: {verdict}, ")
    job.get_by_text("Finished").wait_for()
    job.get_by_text(verdict.capitalize(), exact=True).wait_for()
    job.get_by_role("link", name="Label images").click()
    for number in range(20):
        tab.get_by_text(f"{number + 1} of 20").wait_for()
        if number % 5 == 1:
            tab.keyboard.press("n")
            tab.keyboard.press("Backspace")
        tab.keyboard.press("f" if number % 2 else "j")
    tab.get_by_text("20 of 20 images labelled").wait_for()
    tab.get_by_text("by 20 labels").wait_for()
    answer = httpx.get(f"{server}/v1/domains/site/versions/1/check").json()
    left = ["after" if one["swapped"] else "before" for one in answer["questions"]]
    right = ["before" if one["swapped"] else "after" for one in answer["questions"]]
    assert [one["right"] for one in answer["questions"]] == [(right, left)[i % 2][i] for i in range(20)]
    # Promote, predict, roll back.
    tab.get_by_role("button", name="Promote version 1").click()
    if answer["verdict"]["verdict"] == "harmful":
        tab.get_by_role("button", name="Serve it").click()
    tab.get_by_text("site is now served by version 1").wait_for()
    tab.get_by_role("link", name="Predict").click()
    tab.get_by_role("main").get_by_label("Domain").select_option("site")
    tab.get_by_role("main").get_by_label("Choose images").set_input_files(images[:3])
    tab.get_by_text("site, version 1").nth(2).wait_for()
    tab.get_by_role("link", name="Domains").click()
    tab.get_by_role("link", name="site").click()
    tab.locator(".pictures li").first.wait_for()
    tab.get_by_role("button", name="Roll back to source model").click()
    tab.get_by_text("Rolled back: site is served by source model again").wait_for()
    tab.get_by_text("History").click()
    tab.get_by_text("local rolled back to source model from version 1").wait_for()
    assert httpx.get(f"{server}/v1/domains/site").json()["active"] == 0
    assert page.complaints == []
    hosts = {urlsplit(address).netloc for address in page.asked if not address.startswith(("data:", "blob:"))}
    assert hosts == {urlsplit(server).netloc}


def test_hostile_names_are_text(browser: Any, server: str, images: list[Path]) -> None:
    page = Page(browser, server)
    tab = page.tab
    tab.get_by_role("link", name="Predict").click()
    tab.get_by_role("main").get_by_label("Choose images").set_input_files(images[:6])
    tab.locator("p.label").nth(5).wait_for()
    tab.get_by_text(images[0].name, exact=True).wait_for()
    assert set(tab.locator("p.label").all_text_contents()) <= set(HOSTILE)
    assert set(tab.locator(".topk bdi").all_text_contents()) == set(HOSTILE)
    tab.get_by_role("link", name="Domains").click()
    tab.get_by_role("link", name="source").click()
    assert tab.locator(".pictures bdi").first.text_content() in HOSTILE
    tab.get_by_role("link", name="Domains").first.click()
    tab.get_by_role("button", name="Adapt to new images").click()
    dialog = tab.get_by_role("dialog")
    dialog.get_by_label("Domain").fill("<b>bad</b>")
    dialog.get_by_label("Choose images").set_input_files(images[:2])
    dialog.get_by_role("button", name="Start adaptation").click()
    tab.get_by_text("'<b>bad</b>' cannot be the name of a domain").wait_for()
    assert tab.title() == "dept"
    assert tab.locator("main b, dialog b, img[src=x]").count() == 0
    assert page.complaints == ["Failed to load resource: the server responded with a status of 400 (Bad Request)"]


def test_a_browser_refuses_to_make_html_of_strings(browser: Any, server: str) -> None:
    tab = Page(browser, server).tab
    refused = "try { document.body.innerHTML = '<b>x</b>'; 'made' } catch (error) { error.name }"
    assert tab.evaluate(refused) == "TypeError"


def test_a_large_folder_is_thinned_out(browser: Any, server: str) -> None:
    tab = Page(browser, server).tab
    tab.get_by_role("button", name="Adapt to new images").first.click()
    dialog = tab.get_by_role("dialog")
    dialog.get_by_label("Domain").fill("site")
    image = {"mimeType": "image/png", "buffer": png()}
    many = [{"name": f"{number}.png", **image} for number in range(1500)]
    dialog.get_by_label("Choose images").set_input_files(many)
    dialog.get_by_text("1000 of 1,500 images").wait_for()
    dialog.get_by_role("button", name="Start adaptation").click()
    tab.get_by_text("Adaptation of site to 1,000 images has started").wait_for()
    tab.get_by_role("button", name="Cancel").click()
    tab.get_by_role("button", name="Cancel it").click()
    tab.locator("li.job").get_by_text("Cancelled", exact=True).wait_for()


def test_cancels_an_adaptation(browser: Any, server: str, images: list[Path]) -> None:
    page = Page(browser, server)
    tab = page.tab
    form = {"domain": "site", "method": "dept", "max_iters": 100_000}
    httpx.post(f"{server}/v1/jobs", data=form, files=[("images", file.read_bytes()) for file in images])
    tab.get_by_role("link", name="Adaptations").click()
    tab.get_by_role("button", name="Cancel").click()
    tab.get_by_role("button", name="Keep it as it is").click()
    tab.get_by_role("button", name="Cancel").click()
    tab.get_by_role("button", name="Cancel it").click()
    tab.locator("li.job").get_by_text("Cancelled", exact=True).wait_for()
    tab.get_by_role("button", name="Remove files").click()
    tab.get_by_role("button", name="Remove them").click()
    tab.get_by_text("Nothing was adapted here yet").wait_for()
    assert page.complaints == []


def test_a_token_stays_in_its_tab(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "tokens.txt"
    operator, client = new_token(file, "alice", "operate"), new_token(file, "bob", "predict")
    with serving(tmp_path, no_auth=False, token_file=file) as address:
        page = Page(browser, address)
        tab = page.tab
        for token in ("wrong", operator):
            tab.get_by_label("Token").fill(token)
            tab.get_by_role("button", name="Sign in").click()
            tab.get_by_text("does not know this token" if token == "wrong" else "No domain yet").wait_for()
        tab.reload()
        tab.get_by_text("No domain yet").wait_for()
        other = page.context.new_page()
        other.goto("/")
        other.get_by_label("Token").wait_for()
        tab.get_by_role("button", name="Sign out").click()
        tab.get_by_label("Token").fill(client)
        tab.get_by_role("button", name="Sign in").click()
        tab.get_by_role("heading", name="Predict").wait_for()
        assert tab.get_by_role("navigation").all_inner_texts() == ["Predict"]
        assert page.context.cookies() == []
        tab.set_viewport_size({"width": 390, "height": 844})
        assert tab.evaluate("document.documentElement.scrollWidth") == 390
        assert not [url for url in page.asked if operator in url or client in url]
        assert set(page.complaints) <= {
            "Failed to load resource: the server responded with a status of 401 (Unauthorized)"
        }


def test_fits_a_phone_and_a_keyboard(browser: Any, server: str, images: list[Path]) -> None:
    name = "a-domain-with-a-name-that-is-rather-long-for-a-phone"
    form = {"domain": name, "method": "t3a"}
    assert httpx.post(f"{server}/v1/jobs", data=form, files={"images": images[1].read_bytes()}).status_code == 202
    tab = Page(browser, server, viewport={"width": 390, "height": 844}, color_scheme="light").tab
    for address in ("#/", "#/jobs", "#/predict", f"#/domain/{name}", "#/domain/none", "#/label/none/1", "#/%"):
        tab.goto(f"/{address}")
        tab.locator("main h1").wait_for()
        tab.get_by_text("Loading").wait_for(state="detached")
        assert tab.evaluate("document.documentElement.scrollWidth") == 390, address
    colour = "getComputedStyle(document.body).backgroundColor"
    light = tab.evaluate(colour)
    tab.emulate_media(color_scheme="dark")
    assert tab.evaluate(colour) != light
    tab.goto("/#/jobs")
    tab.reload()
    tab.get_by_role("heading", name="Adaptations").wait_for()
    for text in ("Skip to content", "dept", "Domains", "Adaptations", "Predict", "Adapt to new images"):
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.textContent").startswith(text)
        assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.get_by_role("link", name="Skip to content").focus()
    tab.keyboard.press("Enter")
    tab.wait_for_timeout(1500)  # the next look at the server
    tab.get_by_role("heading", name="Adaptations").wait_for()
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Adapt to new images"
