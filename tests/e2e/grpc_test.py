"""gRPC as its clients reach it: grpcio with the messages that reflection tells, and gRPC's own health client.

Needs a Python with grpcio, grpcio-health-checking and grpcio-reflection (scripts/setup.sh --python-peers makes one); UNSLOTH_PYTHON may
name another. Without one the test says so and exits with 77, which ctest shows as skipped. The gateway needs smg, too.
"""

import contextlib
import hashlib
import http.client
import importlib.util
import io
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest
import zipfile

from peers import main_or_skip, python_with

MODULES = ("grpc", "grpc_health", "grpc_reflection")
PYTHON = python_with(*MODULES)
if PYTHON is None:
    main_or_skip(PYTHON, *MODULES, setup="scripts/setup.sh --python-peers")
if importlib.util.find_spec("grpc") is None:
    os.execv(PYTHON, [PYTHON, *sys.argv])

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from serve_test import QUESTION, Served
from support import LEGAL_BASE, OK, PROGRAM, TIMEOUT_S, main


class Stub:
    """A service's methods: stub.Method(field=value, …), with the messages that the server's reflection describes."""

    def __init__(self, channel, service, metadata=()):
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        self.service = pool.FindServiceByName(service)
        self.channel = channel
        self.metadata = metadata

    def message(self, descriptor):
        return message_factory.GetMessageClass(descriptor)

    def __getattr__(self, name):
        method = self.service.methods_by_name[name]
        kind = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        ask = kind(
            f"/{self.service.full_name}/{name}",
            request_serializer=lambda given: given.SerializeToString(),
            response_deserializer=self.message(method.output_type).FromString,
        )
        request = self.message(method.input_type)
        return lambda timeout=TIMEOUT_S, **fields: ask(request(**fields), timeout=timeout, metadata=self.metadata)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


class Rpc(Served):
    def channel(self, port, credentials=None):
        target = f"localhost:{port}"
        made = grpc.secure_channel(target, credentials) if credentials else grpc.insecure_channel(target)
        self.addCleanup(made.close)
        return made

    def refused(self, code, word, ask):
        with self.assertRaises(grpc.RpcError) as raised:
            list(answer) if hasattr(answer := ask(), "__next__") else answer
        self.assertEqual(raised.exception.code(), code)
        self.assertIn(word, raised.exception.details())

    def test_answers_are_those_of_http(self):
        port = free_port()
        service = self.serve("--grpc_port", port, "--served_model_name", "legal")
        wish = {"prompt": QUESTION, "max_tokens": 12, "temperature": 0.9, "seed": 11, "n": 2}
        expected = [choice["text"] for choice in service.complete(**wish)["choices"]]
        for one in (port, service.port):  # each port answers both
            channel = self.channel(one)
            generation = Stub(channel, "unsloth.v1.Generation")
            whole = generation.Generate(model="legal", **wish)
            self.assertEqual([choice.text for choice in whole.choices], expected)
            texts = ["", ""]
            for piece in generation.GenerateStream(**wish):
                for choice in piece.choices:
                    texts[choice.index] += choice.text
            self.assertEqual(texts, expected)
            self.assertEqual(piece.usage, whole.usage)
        self.assertEqual([model.id for model in generation.ListModels().models], ["legal"])
        chat = service.post(
            "/v1/chat/completions", messages=[{"role": "user", "content": "Hello"}], max_tokens=8, temperature=0
        )[1]["choices"][0]["message"]["content"]
        conversation = {"messages": [{"role": "user", "content": "Hello"}]}
        answer = generation.Generate(conversation=conversation, max_tokens=8, temperature=0)
        self.assertEqual(answer.choices[0].text, chat)

        invalid = grpc.StatusCode.INVALID_ARGUMENT
        self.refused(invalid, "'top_p'", lambda: generation.Generate(prompt="x", top_p=2))
        self.refused(grpc.StatusCode.NOT_FOUND, "other", lambda: generation.GenerateStream(model="other", prompt="x"))
        raw = channel.unary_unary("/unsloth.v1.Generation/Generate")
        self.refused(invalid, "field 1023", lambda: raw(b"\xf8\x3f\x01"))
        self.refused(
            grpc.StatusCode.UNIMPLEMENTED, "Sing", lambda: channel.unary_unary("/unsloth.v1.Generation/Sing")(b"")
        )

        long = {"prompt": QUESTION, "max_tokens": 200, "ignore_eos": True, "n": 64}
        late = grpc.StatusCode.DEADLINE_EXCEEDED
        self.refused(late, "", lambda: generation.Generate(timeout=0.2, **long))
        stream = generation.GenerateStream(**long)
        next(stream)
        stream.cancel()
        while "vllm:num_requests_running{" not in (metrics := service.ask("GET", "/metrics")[2]) or any(
            line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{")) and not line.endswith(" 0")
            for line in metrics.splitlines()
        ):
            pass

        engine = Stub(channel, "vllm.grpc.engine.VllmEngine")
        self.assertEqual(engine.GetModelInfo().model_path, str(LEGAL_BASE))
        ids = service.post("/tokenize", prompt=QUESTION)[1]["tokens"]
        sampling = {"temperature": 0, "max_tokens": 8}
        (answer,) = engine.Generate(tokenized={"input_ids": ids}, sampling_params=sampling)
        text = service.post("/detokenize", tokens=list(answer.complete.output_ids))[1]["prompt"]
        greedy = service.complete(prompt=QUESTION, max_tokens=8, temperature=0)["choices"][0]
        self.assertEqual(text.strip(), greedy["text"].strip())
        chunks = list(engine.GetTokenizer())
        archive = b"".join(chunk.data for chunk in chunks)
        self.assertEqual(hashlib.sha256(archive).hexdigest(), chunks[-1].sha256)
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            self.assertIsNone(files.testzip())
            own = (pathlib.Path(LEGAL_BASE) / "tokenizer.json").read_bytes()
            self.assertEqual(files.read("tokenizer.json"), own)
        self.assertEqual(service.stop(), OK)
        self.assertNotIn(QUESTION, service.log, "no prompts in logs")

    def test_keys_certificates_and_the_end(self):
        keys, certificate, key = (self.folder / name for name in ("keys", "cert.pem", "key.pem"))
        keys.write_text("secret-key\n")
        keys.chmod(0o600)
        self.assertIsNotNone(shutil.which("openssl"), "needs the program openssl")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
            + ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
            check=True,
            capture_output=True,
        )
        service = self.serve("--api_key_file", keys, "--tls_cert", certificate, "--tls_key", key)
        channel = self.channel(service.port, grpc.ssl_channel_credentials(certificate.read_bytes()))
        health = health_pb2_grpc.HealthStub(channel)
        ask = health_pb2.HealthCheckRequest(service="unsloth.v1.Generation")
        self.assertEqual(health.Check(ask, timeout=TIMEOUT_S).status, health_pb2.HealthCheckResponse.SERVING)
        watched = health.Watch(ask, timeout=TIMEOUT_S)
        self.assertEqual(next(watched).status, health_pb2.HealthCheckResponse.SERVING)
        nameless = Stub(channel, "unsloth.v1.Generation")
        self.refused(grpc.StatusCode.UNAUTHENTICATED, "API key", lambda: nameless.Generate(prompt="x"))

        generation = Stub(channel, "unsloth.v1.Generation", [("authorization", "Bearer secret-key")])
        stream = generation.GenerateStream(prompt=QUESTION, max_tokens=200, ignore_eos=True)
        next(stream)
        service.process.send_signal(signal.SIGTERM)
        self.assertEqual(next(watched).status, health_pb2.HealthCheckResponse.NOT_SERVING)
        self.refused(grpc.StatusCode.UNAVAILABLE, "", lambda: generation.Generate(prompt="x"))
        self.assertEqual(list(stream)[-1].usage.completion_tokens, 200)
        self.refused(grpc.StatusCode.UNAVAILABLE, "", lambda: watched)
        self.assertEqual(service.process.wait(TIMEOUT_S), OK)
        service.stop()

    @unittest.skipUnless(importlib.util.find_spec("smg"), "needs the Python package smg")
    def test_the_smg_gateway_is_a_client(self):
        """It fetches the tokenizer from the service, and answers OpenAI's API with its token ids."""
        worker, port = free_port(), free_port()
        service = self.serve("--grpc_port", worker, "--served_model_name", "legal")
        gateway = subprocess.Popen(
            [sys.executable, "-m", "smg", "launch", "--host", "127.0.0.1", "--port", str(port)]
            + ["--worker-urls", f"grpc://127.0.0.1:{worker}", "--prometheus-port", str(free_port())],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
        )
        self.addCleanup(gateway.wait)
        self.addCleanup(gateway.kill)
        wish = {"model": "legal", "prompt": QUESTION, "max_tokens": 12, "temperature": 0}
        status, deadline = 0, time.monotonic() + TIMEOUT_S
        while status != 200 and time.monotonic() < deadline:
            time.sleep(0.1)  # it says nowhere when it knows its workers
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
            with contextlib.closing(connection), contextlib.suppress(OSError):
                connection.request("POST", "/v1/completions", json.dumps(wish), {"content-type": "application/json"})
                response = connection.getresponse()
                status, text = response.status, response.read()
        answer = json.loads(text)["choices"][0]
        own = service.complete(**wish, add_special_tokens=False)["choices"][0]
        self.assertEqual((answer["text"], answer["finish_reason"]), (own["text"], own["finish_reason"]))

    def test_libraries_do_not_use_protobuf(self):
        """LibTorch exports symbols of its own protobuf, which must not meet another one."""
        libraries = list(pathlib.Path(PROGRAM).parent.glob("libunsloth_*.so"))
        self.assertTrue(libraries)
        for library in libraries:
            self.assertNotIn(b"_ZN6google8protobuf", library.read_bytes(), library)


if __name__ == "__main__":
    main()
