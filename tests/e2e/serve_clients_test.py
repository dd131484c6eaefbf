"""Clients from PyPI against the service: two generations of openai, langchain-openai, schemathesis."""

import json
import pathlib
import subprocess

from peers import main_or_skip, python_with
from serve_test import QUESTION, Served
from support import TIMEOUT_S, environment

MODULES = ("openai", "langchain_openai", "schemathesis")
PYTHON = python_with(*MODULES)
MESSAGES = [{"role": "user", "content": QUESTION}]

# What a program does with OpenAI's client; the answers go to stdout as JSON.
OPENAI = """
import asyncio, json, sys, typing
import openai, pydantic

class Verdict(pydantic.BaseModel):
    late: bool
    grade: typing.Literal["a", "b"]

url, messages = sys.argv[1] + "/v1", json.loads(sys.argv[2])
setup = {"base_url": url, "api_key": "secret-key", "max_retries": 0}
client = openai.OpenAI(**setup)
chat = {"model": "sings", "messages": messages, "temperature": 0, "max_tokens": 8}
told = {"version": openai.__version__, "models": [model.id for model in client.models.list()]}
told["parent"] = client.models.retrieve("sings").model_dump()["parent"]

whole = client.chat.completions.create(**chat, logprobs=True, top_logprobs=2)
told["chat"] = whole.choices[0].message.content
tokens = whole.choices[0].logprobs.content
assert len(tokens) == whole.usage.completion_tokens == 8 and all(len(token.top_logprobs) == 2 for token in tokens)

events = list(client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True}))
told["streamed"] = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
assert events[-1].usage.completion_tokens == 8 and events[-1].choices == []

asked = {"model": "sings", "input": messages[0]["content"], "temperature": 0, "max_output_tokens": 8, "store": False}
answer = client.responses.create(**asked, include=["message.output_text.logprobs"])
assert answer.status == "incomplete" and answer.usage.output_tokens == len(answer.output[0].content[0].logprobs) == 8
events = list(client.responses.create(**asked, stream=True))
assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == answer.output_text
told["responses"] = [answer.output_text, events[-1].response.output_text]
parsed = client.responses.parse(**asked | {"max_output_tokens": 40}, text_format=Verdict).output_parsed
assert isinstance(parsed, Verdict), parsed

answers = client.completions.create(model="legal", prompt=[messages[0]["content"], "b"], max_tokens=4, temperature=0)
told["completions"] = [choice.text for choice in answers.choices]

parsed = client.chat.completions.parse(**chat | {"max_tokens": 40}, response_format=Verdict).choices[0].message.parsed
assert isinstance(parsed, Verdict), parsed

for ask, error, fact in (
    (lambda: client.chat.completions.create(**chat | {"model": "other"}), openai.NotFoundError, "model_not_found"),
    (lambda: client.chat.completions.create(**chat | {"temperature": 3}), openai.BadRequestError, "temperature"),
    (lambda: client.responses.create(**asked | {"store": True}), openai.BadRequestError, "store"),
    (lambda: openai.OpenAI(**setup | {"api_key": "no"}).models.list(), openai.AuthenticationError, "invalid_api_key"),
):
    try:
        ask()
        raise AssertionError(error)
    except error as why:
        assert fact in (why.code, why.param), (why.code, why.param)

if hasattr(client, "decisions"):
    asked = [{"type": "predicate", "instructions": "Is it late?"}]
    answer = client.decisions.create(model="legal", input="a text", questions=asked).answers[0]
    assert 0 <= answer.probability <= 1

async def later():
    async with openai.AsyncOpenAI(**setup) as client:
        answers = await asyncio.gather(*(client.chat.completions.create(**chat) for _ in range(4)))
        async with await client.chat.completions.create(**chat | {"max_tokens": 200}, stream=True) as left:
            async for event in left:
                break  # leaves in mid-stream
        async with client.chat.completions.stream(**chat) as stream:
            last = "".join([event.delta async for event in stream if event.type == "content.delta"])
        return [answer.choices[0].message.content for answer in answers] + [last]

told["async"] = asyncio.run(later())
print(json.dumps(told))
"""

LANGCHAIN = """
import json, sys
from langchain_openai import ChatOpenAI
setup = {"base_url": sys.argv[1] + "/v1", "api_key": "secret-key", "model": "sings", "temperature": 0, "max_retries": 0}
model = ChatOpenAI(**setup, max_tokens=8)
text = json.loads(sys.argv[2])[0]["content"]
schema = {"title": "Verdict", "type": "object", "properties": {"late": {"type": "boolean"}}, "required": ["late"],
          "additionalProperties": False}
longer = ChatOpenAI(**setup, max_tokens=40)
chosen = longer.with_structured_output(schema, method="json_schema", strict=True).invoke(text)
assert chosen in ({"late": True}, {"late": False}), chosen
pieces = [piece.content for piece in model.stream(text)]
print(json.dumps({"whole": model.invoke(text).content, "streamed": "".join(pieces),
                  "batch": [one.content for one in model.batch([text, text])]}))
"""


class Clients(Served):
    def in_python(self, *arguments, path=None):
        variables = {"PYTHONPATH": str(path)} if path else {}
        done = subprocess.run(
            [PYTHON, "-W", "ignore", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=environment(LANGSMITH_TRACING="false", **variables),
            cwd=self.folder,
        )
        self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-4000:])
        return done.stdout

    def test_openai_and_langchain(self):
        names = ("--served_model_name", "legal", "--adapter", f"sings={self.adapter()}")
        service = self.serve("--api_key_file", self.key_file(), *names)
        url, messages = f"http://127.0.0.1:{service.port}", json.dumps(MESSAGES)
        key = {"authorization": "Bearer secret-key"}
        fields = {"model": "sings", "messages": MESSAGES, "temperature": 0, "max_tokens": 8}
        answer = json.loads(service.ask("POST", "/v1/chat/completions", fields, key)[2])
        content = answer["choices"][0]["message"]["content"]
        fields = {"prompt": [QUESTION, "b"], "temperature": 0, "max_tokens": 4}
        choices = json.loads(service.ask("POST", "/v1/completions", fields, key)[2])["choices"]

        older = pathlib.Path(PYTHON).parent.parent / "openai-1"
        self.assertTrue(older.is_dir(), "scripts/setup.sh --python-peers installs an older client there")
        versions = set()
        for path in (None, older):
            told = json.loads(self.in_python("-c", OPENAI, url, messages, path=path))
            versions.add(told.pop("version").split(".")[0])
            expected = {"models": ["legal", "sings"], "parent": "legal", "chat": content, "streamed": content}
            expected |= {
                "completions": [choice["text"] for choice in choices],
                "async": [content] * 5,
                "responses": [content] * 2,
            }
            self.assertEqual(told, expected)
        self.assertEqual(len(versions), 2, versions)

        told = json.loads(self.in_python("-c", LANGCHAIN, url, messages))
        self.assertEqual(told, {"whole": content, "streamed": content, "batch": [content, content]})
        self.assertNotIn("error", service.log)

    def test_the_service_answers_as_its_document_says(self):
        service = self.serve("--max_model_len", "48", "--adapter_root", self.folder)
        url = f"http://127.0.0.1:{service.port}/openapi.json"
        report = self.in_python(
            *("-m", "schemathesis.cli", "run", url, "--seed", "1", "--generation-database", "none", "--no-color"),
            *("--max-examples", "5", "--phases", "coverage,fuzzing", "--request-timeout", "60"),
            *("--exclude-path-regex", "^/$|health|ping|ready|version|metrics|openapi"),  # they read nothing
            # Fields that do not go together, and prompts that are too long, are refused though each fits its schema.
            *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
        )
        # A case that fails ends it with 1.
        self.assertRegex(report, r"\b\d{4} generated, \d{4} passed")
        self.assertEqual(service.post("/v1/completions", prompt="x", max_tokens=1)[0], 200)


main_or_skip(PYTHON, *MODULES, setup="scripts/setup.sh --python-peers")
