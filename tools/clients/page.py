#!/usr/bin/env python3
"""The server's page in headless Chromium, as people use it: tools/clients.sh starts the server and installs Playwright.

Usage: page.py URL FOLDER: pictures of it go there. Chromium is Debian's; CHROMIUM names another one.
"""
import base64
import json
import os
import pathlib
import subprocess
import sys
import time

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

URL, OUT = sys.argv[1], pathlib.Path(sys.argv[2])
ROOT = pathlib.Path(__file__).parents[2]
BOTH = "dense|gsa_on_device"


def make_documents(browser):
    """A log with facts in it, and what it is asked; a Markdown file; a PDF."""
    subprocess.run([sys.executable, ROOT / "tools/make_set.py", "--station", "--tokens", "8000", "--documents", "1", "--questions", "3",
                    "--seed", "7", "--out", OUT / "set.jsonl", "--plain", OUT / "station.txt"], check=True, stdout=subprocess.DEVNULL)
    (OUT / "notes.md").write_text("# Notes\n\nThe harbour is *calm*.\n\nThe secret code of Nina is 48213.\n\n- one\n- two\n")
    page = browser.new_page()
    page.set_content("<h1>Report</h1><p>The weather was fair.</p><p>The favorite color of Olga is indigo.</p>")
    page.pdf(path=OUT / "report.pdf")
    page.close()
    return json.loads((OUT / "set.jsonl").read_text().splitlines()[0])["questions"][::-1]


def drop(page, *names):
    """As a file manager does."""
    types = {".pdf": "application/pdf"}
    files = [[n, base64.b64encode((OUT / n).read_bytes()).decode(), types.get(n[-4:], "text/plain")] for n in names]
    page.evaluate("""(files) => {
        const data = new DataTransfer();
        for (const [name, text, type] of files)
            data.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name, {type}));
        for (const kind of ['dragenter', 'dragover', 'drop'])
            document.getElementById('drop').dispatchEvent(new DragEvent(kind, {dataTransfer: data, bubbles: true}));
    }""", files)


def ask(page, question, answers=1, seconds=60):
    """Types a question; the texts of its answers once they are over."""
    page.fill("#question", question)
    page.press("#question", "Enter")
    turn = page.locator(".turn").last
    expect(turn.locator(".deeds button", has_text="Retry")).to_have_count(answers, timeout=seconds * 1000)
    return turn.locator(".words").all_inner_texts()


def accessible(page, where):
    """What axe-core finds, which knows WCAG 2.1 A and AA."""
    found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}).response["violations"]
    told = [f"{v['id']}: {n['html'][:100]}: {n['failureSummary'][:200]}" for v in found for n in v["nodes"]]
    assert not told, where + ":\n" + "\n".join(told)


def stands_still(page):
    """Nothing is wider than the window."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"


def picture(page, name):
    page.screenshot(path=OUT / f"{name}.png")


def newcomer(browser, began, questions):
    """From the program's start to the first answer about a file, with what a newcomer sees first."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    complaints = []
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.goto(URL)
    expect(page.locator("#model")).to_contain_text("tiny-gqa")
    picture(page, "first-look")
    accessible(page, "at first")
    drop(page, "station.txt")
    expect(page.locator("#size")).to_contain_text("tokens")
    assert page.locator("#method").input_value() == BOTH, "a newcomer's first question is not asked dense and sparse"
    page.fill("#question", questions[0]["question"])
    page.press("#question", "Enter")
    grown = set()
    retry = page.locator(".deeds button", has_text="Retry")
    while retry.count() < 2:
        grown.add(page.locator(".words").first.inner_text())
        page.wait_for_timeout(5)
    texts = page.locator(".words").all_inner_texts()
    assert len(texts) == 2 and all(t.strip() == questions[0]["answer"] for t in texts), texts
    assert any(g and g != texts[0] for g in grown), "the answer did not come word by word"
    print(f"  a newcomer's first answer, dense and sparse: {time.time() - began:.1f} s after the program's start")
    picture(page, "answered")
    accessible(page, "answered")
    return page, complaints


def where(page, fact):
    """The blocks that a fact lies in: class, text, and whether they are in sight."""
    return page.evaluate("""(fact) => {
        const spans = [...document.querySelectorAll('#text span')], text = spans.map((s) => s.textContent).join('');
        const begin = text.indexOf(fact), end = begin + fact.length, pane = document.getElementById('text').getBoundingClientRect();
        let at = 0;
        return spans.filter((s) => { const from = at; at += s.textContent.length; return from < end && at > begin; }).map((s) => {
            const box = s.getBoundingClientRect();
            return [s.className, s.textContent, box.top < pane.bottom && box.bottom > pane.top];
        });
    }""", fact)


def reading_map(page, fact):
    sparse = page.locator(".answer").nth(1)
    sparse.get_by_role("button", name="Show on the map").click()
    expect(page.locator("#map-note")).to_contain_text("the stronger the colour")
    dark, total = page.locator("#text span.r4").count(), page.locator("#text span").count()
    assert dark < total / 4, (dark, total)
    told = where(page, fact)
    assert told and all(name in ("r3", "r4") and seen for name, _, seen in told), told
    sparse.get_by_role("button", name="Word by word").click()
    word = sparse.locator(".tokens span").nth(1)
    word.hover()
    expect(page.locator("#text span.now").first).to_be_visible()
    picture(page, "word-by-word")
    block = page.locator("#text span.now").first
    block.hover()
    expect(page.locator("#spot")).to_contain_text("read for")
    dense = page.locator(".answer").first
    dense.get_by_role("button", name="Show on the map").click()
    expect(page.locator("#map-note")).to_contain_text("Dense attention reads all")
    print(f"  the reading map: the fact lies in the darkest of {total} blocks, and is what is shown; the pointer tells tokens and counts")


def live(page):
    """The map moves while the answer is written."""
    page.select_option("#method", "gsa_on_device")
    page.fill("#length", "400")
    page.fill("#question", "Tell all that happened.")
    page.press("#question", "Enter")
    expect(page.locator("#stop")).to_be_visible()
    seen = set()
    turn = page.locator(".turn").last
    end = time.monotonic() + 20
    while time.monotonic() < end and turn.locator(".deeds button").count() == 0 and len(seen) < 3:
        seen.add(page.locator("#map-note").inner_text())
        page.wait_for_timeout(30)
    assert len(seen) > 1, seen
    expect(turn.get_by_role("button", name="Retry")).to_be_visible(timeout=30000)
    print(f"  the map while an answer comes: at least {len(seen)} different states")


def stop_and_retry(page):
    page.select_option("#method", "dense")
    page.fill("#length", "20000")
    page.evaluate("""() => {  // answers that never end by themselves
        const plain = window.fetch;
        window.fetch = (url, options) => plain(url, options && options.body && url.endsWith('completions')
            ? {...options, body: JSON.stringify({...JSON.parse(options.body), ignore_eos: true})} : options);
        window.plain_fetch = plain;
    }""")
    page.fill("#question", "Tell all that happened.")
    page.press("#question", "Enter")
    turn = page.locator(".turn").last
    expect(turn.locator(".words")).not_to_be_empty(timeout=30000)
    expect(page.locator("#send")).to_be_hidden()
    picture(page, "streaming")
    page.locator("#stop").click()
    expect(turn.locator(".answer header")).to_contain_text("stopped")
    expect(page.locator("#send")).to_be_visible()
    expect(page.locator("#question")).to_be_focused()
    page.evaluate("() => { window.fetch = window.plain_fetch; }")
    page.fill("#length", "64")
    turn.get_by_role("button", name="Retry").click()
    expect(turn.locator(".answer header")).not_to_contain_text("stopped")
    expect(turn.get_by_role("button", name="Retry")).to_be_visible(timeout=30000)
    page.keyboard.press("Escape")  # nothing runs: nothing happens
    print("  stop, and retry")


def several_documents(page):
    drop(page, "notes.md", "report.pdf")
    expect(page.locator("#list li")).to_have_count(3)
    expect(page.locator("#list .bad")).to_have_count(0)
    page.select_option("#method", BOTH)
    texts = ask(page, "What is the secret code of Nina?", 2)
    assert all("48213" in t for t in texts), texts
    texts = ask(page, "What is the favorite color of Olga?", 2)
    assert all("indigo" in t for t in texts), texts
    page.wait_for_timeout(100)
    expect(page.get_by_role("button", name="Word by word").last).to_be_in_viewport()
    picture(page, "several-documents")
    page.get_by_role("button", name="Remove station.txt").click()
    expect(page.locator("#list li")).to_have_count(2)
    (OUT / "binary.txt").write_bytes(b"\xff\xfe\x00\x01")
    drop(page, "binary.txt")
    expect(page.locator("#list .bad")).to_contain_text("not UTF-8")
    page.get_by_role("button", name="Remove binary.txt").click()
    print("  text, Markdown and PDF together; what is no text is told")


def example(browser):
    """A newcomer without a file."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(URL)
    expect(page.locator("#model")).to_contain_text("tiny-gqa")
    page.click("#example")
    expect(page.locator("#question")).to_be_focused()
    page.keyboard.press("Enter")
    turn = page.locator(".turn").last
    expect(turn.locator(".deeds button", has_text="Retry")).to_have_count(2, timeout=60000)
    assert all("48213" in t for t in turn.locator(".words").all_inner_texts()), turn.inner_text()
    picture(page, "example")
    page.close()
    print("  the example, with a click and a key")


def keyboard_alone(browser, questions):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(URL)
    expect(page.locator("#model")).to_contain_text("tiny-gqa")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert {"choose", "method", "budget", "length", "follow", "question", "send"} <= set(reached), reached
    while page.evaluate("document.activeElement.id") != "choose":
        page.keyboard.press("Shift+Tab")
    page.wait_for_timeout(200)
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(OUT / "station.txt")
    expect(page.locator("#size")).to_contain_text("tokens")
    while page.evaluate("document.activeElement.id") != "question":
        page.keyboard.press("Tab")
    page.keyboard.type(questions[1]["question"])
    page.keyboard.press("Enter")
    turn = page.locator(".turn").last
    expect(turn.get_by_role("button", name="Retry")).to_have_count(2, timeout=60000)
    assert turn.locator(".words").last.inner_text().strip() == questions[1]["answer"]
    while page.evaluate("document.activeElement.textContent") != "Word by word":
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    expect(turn.locator(".tokens span.on")).to_have_count(1)
    expect(page.locator("#text span.now").first).to_be_attached()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", "the focus cannot be seen"
    picture(page, "keyboard")
    page.close()
    print("  keyboard alone: files, question, answer, word by word")


def shapes(browser, questions):
    for scheme in "light", "dark":
        for width, height in (1280, 800), (390, 844):
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(URL)
            expect(page.locator("#model")).to_contain_text("tiny-gqa")
            narrow = width < 900
            if narrow:
                page.get_by_role("button", name="Documents", exact=True).click()
                picture(page, f"{scheme}-{width}-documents")
                accessible(page, f"{scheme} {width} documents")
            drop(page, "station.txt", "notes.md")
            expect(page.locator("#size")).to_contain_text("tokens")
            if narrow:
                page.get_by_role("button", name="Ask", exact=True).first.click()
            texts = ask(page, questions[0]["question"], 2)
            assert texts[0].strip() == questions[0]["answer"], texts
            picture(page, f"{scheme}-{width}")
            accessible(page, f"{scheme} {width}")
            stands_still(page)
            page.locator(".answer").nth(1).get_by_role("button", name="Word by word").click()
            page.locator(".answer").nth(1).get_by_role("button", name="Show on the map").click()
            page.wait_for_timeout(200)
            picture(page, f"{scheme}-{width}-map")
            accessible(page, f"{scheme} {width} map")
            stands_still(page)
            page.close()
    print("  light and dark, 1280 and 390 wide: axe finds nothing, nothing scrolls sideways")


def main():
    began = float(os.environ.get("SERVER_BEGAN", time.time()))
    OUT.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"])
        questions = make_documents(browser)
        page, complaints = newcomer(browser, began, questions)
        reading_map(page, questions[0]["answer"])
        live(page)
        stop_and_retry(page)
        several_documents(page)
        assert not complaints, complaints
        page.close()
        example(browser)
        keyboard_alone(browser, questions)
        shapes(browser, questions)
        print(f"the page in Chromium {browser.version}: as expected; pictures in {OUT}")
        browser.close()


main()
