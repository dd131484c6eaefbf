"""The service as its clients reach it: over sockets, with Python's standard library, against the other commands."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import unittest

from browser import CHROMIUM, DESKTOP, FLAWS, PHONE, Browser
from support import (
    FP32,
    LEGAL_BASE,
    OK,
    PROGRAM,
    SIGINT_SAVED,
    SIGTERM_SAVED,
    TIMEOUT_S,
    USAGE,
    INPUT,
    EndToEnd,
    environment,
    main,
    write_rows,
)

BASE = ("--model.path", LEGAL_BASE, "--device", "cpu", *FP32)
SMALL = ("--max_model_len", "256", "--max_num_seqs", "8", "--max_num_batched_tokens", "64", "--port", "0")
QUESTION = "The tenant shall pay the rent"


class Service:
    """A process that answers at self.port, until it is asked to stop."""

    def __init__(self, *arguments, base=BASE):
        self.process = subprocess.Popen(
            [PROGRAM, "serve", *map(str, (*base, *SMALL, *arguments))],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=environment(),
        )
        self.log = ""
        self.port = None
        for line in self.process.stderr:
            self.log += line
            found = re.search(r"listening on https?://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        if self.port is None:
            raise AssertionError(f"serve ended: {self.log}")
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.log += line

    def ask(self, method, path, body=None, headers=None):
        """(status, content type, body)"""
        connection, response = self.begin(method, path, body, headers)
        with contextlib.closing(connection), response:
            return response.status, response.getheader("content-type"), response.read().decode()

    def begin(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"content-type": "application/json", **(headers or {})})
        return connection, connection.getresponse()

    def post(self, path, **body):
        status, _, answer = self.ask("POST", path, body)
        return status, json.loads(answer)

    def complete(self, **body):
        status, answer = self.post("/v1/completions", **body)
        if status != 200:
            raise AssertionError(answer)
        return answer

    def stop(self, *signals):
        for number in signals or (signal.SIGTERM,):
            self.process.send_signal(number)  # none where it has ended
        code = self.process.wait(TIMEOUT_S)
        self.reader.join()
        self.process.stderr.close()
        return code


class Served(EndToEnd):
    def serve(self, *arguments, **options):
        service = Service(*arguments, **options)

        def end():
            if service.process.poll() is None:
                service.process.kill()
                service.stop()

        self.addCleanup(end)
        return service

    def generated(self, *arguments):
        done = self.succeed("generate", "--device", "cpu", *FP32, "--json", "--raw", "--prompt", QUESTION, *arguments)
        return [json.loads(line)["text"] for line in done.out.splitlines()]

    def adapter(self):
        rows = write_rows(self.folder / "rows.jsonl", [{"prompt": "The tenant", "completion": " sings a song"}] * 4)
        return self.train(LEGAL_BASE, rows, "--learning_rate", "0.05", out="adapters/sings")

    def key_file(self):
        keys = self.folder / "keys"
        keys.write_text("# of the test\nsecret-key\n")
        keys.chmod(0o600)
        return keys


class Serving(Served):
    def test_answers_are_those_of_the_other_commands(self):
        service = self.serve("--served_model_name", "legal")
        self.assertEqual(json.loads(service.ask("GET", "/v1/models")[2])["data"][0]["id"], "legal")
        base = ("--model.path", LEGAL_BASE, "--max_new_tokens", "12")
        greedy = service.complete(model="legal", prompt=QUESTION, max_tokens=12, temperature=0)
        self.assertEqual([greedy["choices"][0]["text"]], self.generated(*base))
        sampled = service.complete(prompt=QUESTION, max_tokens=12, temperature=0.9, seed=11, n=3)
        drawn = self.generated(*base, "--temperature", "0.9", "--seed", "11", "--n", "3")
        self.assertEqual([choice["text"] for choice in sampled["choices"]], drawn)

        _, counted = service.post("/tokenize", prompt=QUESTION)
        rows = write_rows(self.folder / "scored.jsonl", [{"input_ids": counted["tokens"]}])
        (scored,) = self.score(LEGAL_BASE, rows)
        # The second is the request of lm-eval's local-completions, which sums from the context's end to [-1].
        for asked in ({"max_tokens": 0}, {"max_tokens": 1, "temperature": 0, "seed": 1234, "model": "legal"}):
            echoed = service.complete(prompt=[counted["tokens"]], echo=True, logprobs=1, **asked)["choices"][0]
            logprobs = echoed["logprobs"]["token_logprobs"]
            self.assertEqual(len(logprobs), counted["count"] + asked["max_tokens"])
            self.assertIsNone(logprobs[0])
            self.assertLess(max(abs(a - b) for a, b in zip(logprobs[1:], scored["logprobs"][1:])), 1e-4)
            for name, logprob, top in list(
                zip(*(echoed["logprobs"][k] for k in ("tokens", "token_logprobs", "top_logprobs")))
            )[1:]:
                self.assertEqual(top[name], logprob, "is_greedy compares them")

        streamed = {"prompt": QUESTION, "max_tokens": 12, "temperature": 0, "stream": True}
        _, content_type, body = service.ask("POST", "/v1/completions", streamed)
        self.assertEqual(content_type, "text/event-stream; charset=utf-8")
        events = [line[len("data: ") :] for line in body.split("\n\n") if line]
        self.assertEqual(events.pop(), "[DONE]")
        text = "".join(json.loads(event)["choices"][0]["text"] for event in events)
        self.assertEqual(text, greedy["choices"][0]["text"])

        constrained = service.complete(prompt=QUESTION, structured_outputs={"choice": ["yes", "no"]})
        self.assertIn(constrained["choices"][0]["text"], ("yes", "no"))

        status, refused = service.post("/v1/completions", prompt="x", guided_json={})
        self.assertEqual((status, refused["error"]["param"]), (400, "guided_json"))
        self.assertIn("vllm:generation_tokens_total", service.ask("GET", "/metrics")[2])
        self.assertEqual(service.stop(), OK)
        self.assertNotIn(QUESTION, service.log, "no prompts in logs")

    def test_adapters_come_and_go(self):
        adapter = self.adapter()
        service = self.serve("--adapter_root", self.folder / "adapters")
        status, _ = service.post("/v1/completions", model="sings", prompt=QUESTION)
        self.assertEqual(status, 404)
        status, _, told = service.ask("POST", "/v1/load_lora_adapter", {"lora_name": "sings", "lora_path": "sings"})
        self.assertEqual((status, told), (200, "Success: LoRA adapter 'sings' added successfully."))
        answer = service.complete(model="sings", prompt=QUESTION, max_tokens=12, temperature=0)
        alone = self.generated(
            "--model.path", LEGAL_BASE, "--model.adapter_name_or_path", adapter, "--max_new_tokens", "12"
        )
        self.assertEqual([answer["choices"][0]["text"]], alone)
        self.assertEqual(service.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "sings"})[0], 200)

    def test_a_run_is_followed(self):
        rows = write_rows(self.folder / "rows.jsonl", [{"prompt": "The tenant", "completion": " sings a song"}] * 4)
        self.train(LEGAL_BASE, rows, "--save_steps", "1", out="run")
        service = self.serve("--watch", self.folder / "run")
        while service.post("/v1/completions", model="run", prompt=QUESTION)[0] == 404:
            pass
        answer = service.complete(model="run", prompt=QUESTION, max_tokens=6, temperature=0)
        self.assertEqual(answer["model"], "run")

    def test_keys_and_signals(self):
        service = self.serve("--api_key_file", self.key_file())
        self.assertEqual(service.ask("GET", "/v1/models")[0], 401)
        self.assertEqual(service.ask("GET", "/v1/models", headers={"authorization": "Bearer secret-key"})[0], 200)
        self.assertEqual(service.ask("GET", "/health")[0], 200)
        for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
            headers = {"authorization": "Bearer secret-key", "sec-fetch-site": site}
            self.assertEqual(service.ask("POST", "/tokenize", {"prompt": "a"}, headers)[0], status, site)
        self.assertEqual(service.stop(), OK)
        self.assertNotIn("secret-key", service.log)

    def test_without_keys_it_answers_to_local_names_alone(self):
        service = self.serve()
        for host, status in (
            ("localhost", 200), (f"127.0.0.1:{service.port}", 200), ("[::1]:80", 200), ("a.localhost:1", 200),
            ("rebound.example", 403), (f"rebound.example:{service.port}", 403), ("127.0.0.1.example", 403),
            ("localhost.example:80", 403), ("[::2]:80", 403), ("10.0.0.1", 403),
        ):  # fmt: skip
            self.assertEqual(service.ask("POST", "/tokenize", {"prompt": "a"}, {"host": host})[0], status, host)
        service.stop()
        service = self.serve("--api_key_file", self.key_file())
        headers = {"authorization": "Bearer secret-key", "host": "behind.a.proxy.example"}
        self.assertEqual(service.ask("POST", "/tokenize", {"prompt": "a"}, headers)[0], 200)
        service.stop()

    def test_running_answers_end_unless_a_second_signal_comes(self):
        long = {"prompt": QUESTION, "max_tokens": 200, "stream": True, "ignore_eos": True}
        service = self.serve()
        connection, response = service.begin("POST", "/v1/completions", long)
        with contextlib.closing(connection), response:
            response.readline()
            service.process.send_signal(signal.SIGTERM)
            self.assertTrue(response.read().decode().endswith('"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'))
        self.assertEqual(service.process.wait(TIMEOUT_S), OK)
        service.stop()

        service = self.serve()
        connection, response = service.begin("POST", "/v1/completions", long | {"n": 128})
        with contextlib.closing(connection), response:
            response.readline()
            self.assertIn(service.stop(signal.SIGTERM, signal.SIGINT), (SIGINT_SAVED, SIGTERM_SAVED))

    def test_what_is_wrong_is_told_at_the_start(self):
        empty = self.folder / "keys"
        empty.write_text("\n")
        self.fail_with(INPUT, "has no key", "serve", *BASE, *SMALL, "--api_key_file", empty)
        self.fail_with(USAGE, "allows 1024", "serve", *BASE, "--max_model_len", "2000")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.fail_with(USAGE, ["cannot listen", str(port)], "serve", *BASE, *SMALL[:-1], port)
        self.fail_with(INPUT, "adapter_config.json", "serve", *BASE, *SMALL, "--adapter", f"a={self.folder}")
        self.fail_with(USAGE, "--tls_cert and --tls_key", "serve", *BASE, "--tls_cert", empty)
        self.fail_with(USAGE, "holds", "serve", *BASE, *SMALL, "--kv_cache_memory", "1KB")


HTML = "<img src=x onerror='document.title = 1'><b>bold</b>"


@unittest.skipUnless(CHROMIUM, "no Chromium here: scripts/setup.sh --python-peers installs Debian's")
class InABrowser(Served):
    """The page at /, used by its keyboard."""

    def setUp(self):
        super().setUp()
        names = ("--served_model_name", "legal", "--adapter", f"sings={self.adapter()}")
        self.service = self.serve("--api_key_file", self.key_file(), *names)
        self.browser = self.enterContext(Browser())
        self.url = f"http://127.0.0.1:{self.service.port}/"
        self.browser.open(self.url)
        self.browser.until("document.querySelector('#problem').textContent")

    def ask(self, text):
        self.browser.evaluate("document.querySelector('#prompt').focus()")
        self.browser.type(text)
        self.browser.press("Enter", 13)

    def set(self, **fields):
        for name, value in fields.items():
            self.browser.evaluate(f"document.querySelector('#{name}').value = {json.dumps(str(value))}")

    def texts(self, selector):
        return self.browser.evaluate(f"[...document.querySelectorAll('{selector}')].map(e => e.textContent)")

    def test_base_and_adapter_answer_next_to_each_other(self):
        """With UNSLOTH_SCREENSHOTS=FOLDER the pictures stay there, to be looked at."""
        page, key = self.browser, {"authorization": "Bearer secret-key"}
        self.assertRegex(self.texts("#problem")[0], "No API key")
        self.assertEqual(page.evaluate("document.activeElement.id"), "key")
        page.type("secret-key")
        page.press("Enter", 13)
        page.until("document.querySelector('option[value=sings]')")
        self.assertEqual(self.texts("#problem"), [""])
        self.assertEqual(page.evaluate("document.querySelector('option[value=sings]').parentNode.label"), "legal")
        self.assertEqual(
            page.evaluate("[...document.querySelectorAll('.pane select')].map(e => e.value)"), ["legal", "sings"]
        )

        self.set(temperature=0, max_tokens=12, system="Answer briefly.")
        self.ask(QUESTION + HTML)
        page.until("document.querySelectorAll('.numbers:not(:empty)').length === 2")
        messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": QUESTION + HTML}]
        for pane, model in enumerate(("legal", "sings")):
            fields = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 12, "logprobs": True}
            answer = json.loads(self.service.ask("POST", "/v1/chat/completions", fields, key)[2])["choices"][0]
            tokens = answer["logprobs"]["content"]
            spans = f".pane:nth-child({pane + 1}) .answer .token"
            self.assertEqual(self.texts(spans), [token["token"] for token in tokens])
            page.evaluate(f"document.querySelector('{spans}').parentNode.focus()")
            page.press("ArrowRight", 39)
            self.assertIn(f"log-probability {tokens[0]['logprob']:.3f}", self.texts(".note")[pane])
        self.assertEqual(self.texts(".asked .text"), [QUESTION + HTML] * 2)

        page.evaluate("document.querySelector('.seen').open = true")
        page.until("document.querySelector('.seen pre span')")
        fields = {"messages": messages, "return_token_strs": True}
        seen = json.loads(self.service.ask("POST", "/tokenize", fields, key)[2])["token_strs"]
        self.assertEqual(self.texts(".pane:first-child .seen pre span"), seen)

        kept = pathlib.Path(os.environ.get("UNSLOTH_SCREENSHOTS") or self.folder)
        for size, name in ((PHONE, "phone"), (DESKTOP, "desk")):
            for scheme in ("light", "dark"):
                page.show_on(size, scheme)
                self.assertEqual(page.evaluate(FLAWS), [], (name, scheme))
                page.screenshot(kept / f"serve-{name}-{scheme}.png")
        self.assertEqual(page.unnamed(), [])
        self.assertEqual({url for url in page.fetched() if not url.startswith(("data:", self.url))}, set())
        self.assertEqual(page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length"), 0)
        # The missing key is all that the browser complains of; "verbose" and "info" are advice, such as to let it store the key.
        entries = [complaint["entry"] for complaint in page.complaints()]
        self.assertEqual([e for e in entries if e["level"] not in ("verbose", "info") and "401" not in e["text"]], [])

    def test_stop_errors_and_markup(self):
        page = self.browser
        page.type("secret-key")
        page.press("Enter", 13)
        page.until("document.querySelector('option[value=sings]')")
        self.set(mode="text", max_tokens=200)
        self.ask(QUESTION)
        page.until("document.querySelector('.token')")
        page.press("Escape", 27)
        page.until("!document.querySelector('#send').disabled")
        self.assertEqual(set(self.texts(".numbers")), {"stopped"})
        page.evaluate("document.querySelector('#clear').click()")
        self.assertEqual(self.texts(".turn"), [])

        self.set(max_tokens=100000)
        self.ask(QUESTION)
        page.until("document.querySelectorAll('.turns .error').length === 2")
        self.assertRegex(self.texts(".turns .error")[0], "maximum context length is 256")
        self.assertEqual(page.evaluate("document.querySelector('#prompt').value"), QUESTION)

        # What a model writes is text, by tokens or not.
        markup = json.dumps(HTML)
        page.evaluate(
            "(() => { for (const tokens of [[], [{bytes: new TextEncoder().encode(%s), logprob: -1, top: []}]])"
            " new Output(panes[0].turn('answer', 'written'), panes[0].note).add(%s, tokens); })()" % (markup, markup)
        )
        self.assertEqual(self.texts(".pane:first-child .answer .text")[-2:], [HTML, HTML])
        self.assertEqual(self.texts(".turns img, .turns b"), [])
        with self.assertRaisesRegex(AssertionError, "TrustedHTML"):
            page.evaluate("document.body.innerHTML = '<b>'")

        connection, response = self.service.begin("GET", "/")
        with contextlib.closing(connection), response:
            policy = response.getheader("content-security-policy")
            self.assertEqual(response.getheader("x-content-type-options"), "nosniff")
            source = response.read().decode()
        self.assertRegex(
            policy, r"^default-src 'none'; script-src 'sha256-[\w+/]{43}='; style-src 'sha256-[\w+/]{43}='; "
        )
        self.assertNotIn("unsafe", policy)
        self.assertNotRegex(source, r"https?://|\son\w+=|\sstyle=|innerHTML|localStorage")
        # A changed script does not run.
        page.evaluate("document.head.append(Object.assign(document.createElement('style'), {textContent: 'body {}'}))")
        self.assertRegex(str(page.complaints()), "Content Security Policy")


if __name__ == "__main__":
    main()
