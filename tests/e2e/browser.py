"""A headless Chromium, spoken to in its DevTools protocol over a pipe: standard library only."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

CHROMIUM = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)
PHONE, DESKTOP = (375, 812), (1280, 900)
PATIENCE_S = 60

# What is wrong to the eye, as a list of sentences. Colours are those that the browser computed.
FLAWS = r"""(() => {
  const flaws = [], seen = e => e.getClientRects().length > 0;
  if (document.documentElement.scrollWidth > innerWidth) flaws.push("wider than the screen");
  const parse = text => (text.match(/[\d.]+/g) || []).map(Number);
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
  for (const e of document.querySelectorAll("h1, h2, p, b, span, td, th, summary, footer, svg text")) {
    if (!seen(e) || !e.textContent.trim()) continue;
    const style = getComputedStyle(e), svg = e.ownerSVGElement;
    const pair = [light(parse(svg ? style.fill : style.color)), light(behind(e))].sort((a, b) => b - a);
    if ((pair[0] + .05) / (pair[1] + .05) < 4.5 && e.textContent.trim() !== "●") flaws.push("faint: " + e.textContent.slice(0, 40));
    const size = parseFloat(style.fontSize) * (svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1);
    if (size < 10) flaws.push("small, " + size.toFixed(1) + " px: " + e.textContent.slice(0, 40));
  }
  for (const svg of document.querySelectorAll("svg")) {
    const frame = svg.getBoundingClientRect(), boxes = [...svg.querySelectorAll("text")].map(e => [e.textContent, e.getBoundingClientRect()]);
    if (frame.height < 120) flaws.push("flat: " + svg.id);
    for (const [text, box] of boxes)
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        flaws.push("cut off in " + svg.id + ": " + text);
    boxes.forEach(([text, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
        flaws.push(`over each other in ${svg.id}: ${text} and ${other}`); }));
    for (const line of svg.querySelectorAll("polyline")) {
      const box = line.getBoundingClientRect();
      if (svg.id && box.width < frame.width / 2) flaws.push("narrow curve in " + svg.id);
    }
  }
  return flaws; })()"""


class Browser:
    """One page at a time: `open` it, then ask with `evaluate`. What it fetched and complained of is kept of the last page."""

    def __enter__(self):
        self.profile = tempfile.TemporaryDirectory(prefix="unsloth-browser-", ignore_cleanup_errors=True)
        ours, theirs = [], []
        for _ in range(2):
            read, write = os.pipe()
            ours.append([read, write])
        (their_read, self.write), (self.read, their_write) = ours
        # High numbers, so that 3 and 4, which it reads and writes, clobber neither.
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (their_read, their_write)]
        self.process = subprocess.Popen(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
            + ["--no-first-run", "--remote-debugging-pipe", "--user-data-dir=" + self.profile.name, "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=lambda: (os.dup2(theirs[0], 3), os.dup2(theirs[1], 4)),
            env=dict(os.environ, HOME=self.profile.name),
        )
        for fd in (their_read, their_write, *theirs):
            os.close(fd)
        self.number, self.buffer, self.events, self.session = 0, b"", [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        return self

    def __exit__(self, *_):
        os.close(self.write)  # it ends with its pipe
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.read)
        self.profile.cleanup()

    def message(self, until):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read], [], [], max(0, until - time.monotonic()))
            block = os.read(self.read, 1 << 20) if ready else b""
            if not block:
                raise AssertionError(
                    "the browser went away" if ready else f"the browser said nothing for {PATIENCE_S} s"
                )
            self.buffer += block
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def call(self, method, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self.write, data) :]
        until = time.monotonic() + PATIENCE_S
        while True:
            answer = self.message(until)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def show_on(self, size=DESKTOP, scheme="light", scale=1):
        width, height = size
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url, size=DESKTOP, scheme="light", scale=1):
        self.show_on(size, scheme, scale)
        self.events = []
        self.call("Page.navigate", url=url)
        until = time.monotonic() + PATIENCE_S
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.message(until))

    def fetched(self):
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def complaints(self):
        self.evaluate("0")  # what came before is read
        return [e["params"] for e in self.events if e["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]

    def evaluate(self, expression):
        """A promise's value is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def until(self, expression):
        """Waits until it is true, frame by frame."""
        self.evaluate(
            f"new Promise(done => {{ const look = () => ({expression}) ? done() : requestAnimationFrame(look); look(); }})"
        )

    def type(self, text):
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key, code):
        """`code`: Windows's number of the key, by which Chromium knows it."""
        text = {"Enter": "\r"}.get(key, "")
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text, windowsVirtualKeyCode=code)

    def unnamed(self):
        """The controls that a screen reader could not name."""
        roles = ("button", "checkbox", "combobox", "spinbutton", "textbox", "listbox", "log")
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        controls = [node for node in nodes if not node["ignored"] and node["role"]["value"] in roles]
        assert controls, "the page has no controls"
        return [node for node in controls if not node.get("name", {}).get("value")]

    def screenshot(self, path):
        """The whole page, as a PNG."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture))
