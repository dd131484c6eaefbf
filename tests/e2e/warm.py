"""Runs the program as a fork of one that has loaded the engine's libraries (tests/warm): a run starts in milliseconds."""

import collections
import json
import os
import select
import socket
import struct
import subprocess
import threading

PROGRAM = os.environ.get("UNSLOTH_WARM", "")

# What libraries read when they are loaded: a run with another value needs a process of its own.
READ_AT_LOAD = (
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "LD_",
    "MALLOC_",
    "GLIBC_",
    "PYTORCH_",
    "TORCH_",
    "CUDA_",
    "NVIDIA_",
    "NCCL_",
)


def load_settings(env):
    return frozenset((key, value) for key, value in env.items() if key.startswith(READ_AT_LOAD))


class Warm:
    """One server, of one run at a time; it ends with this process, whose socket it reads."""

    def __init__(self, settings):
        env = {key: value for key, value in os.environ.items() if not key.startswith(READ_AT_LOAD)} | dict(settings)
        self.socket, theirs = socket.socketpair()
        self.settings = settings
        self.process = subprocess.Popen(
            [PROGRAM, "--serve", str(theirs.fileno())], pass_fds=[theirs.fileno()], env=env, stdin=subprocess.DEVNULL
        )
        theirs.close()

    def copy(self):
        """Another server, which has loaded what this one has."""
        other = object.__new__(Warm)
        other.settings = self.settings
        other.socket, theirs = socket.socketpair()
        self.send({}, [theirs.fileno()] * 3)
        theirs.close()
        return other

    def send(self, request, streams):
        text = json.dumps(request).encode()
        socket.send_fds(self.socket, [struct.pack("=I", len(text))], streams)
        self.socket.sendall(text)

    def number(self, timeout=None):
        """The next one it sends; None if none comes in time."""
        if not select.select([self.socket], [], [], timeout)[0]:
            return None
        data = self.socket.recv(4, socket.MSG_WAITALL)
        if len(data) != 4:
            raise RuntimeError("the warm program ended")
        return struct.unpack("=i", data)[0]


class Servers:
    """Those of each set of load_settings that are not at work."""

    def __init__(self):
        self.lock = threading.Lock()
        self.seen = collections.Counter()
        self.first = {}  # makes copies, and never runs anything itself
        self.idle = collections.defaultdict(list)

    def serve(self, settings):
        """Whether a server saves time: for the settings of the first run, and for others that come again and again."""
        with self.lock:
            self.seen[settings] += 1
            return bool(PROGRAM) and (settings in self.first or not self.first or self.seen[settings] > 2)

    def take(self, settings):
        with self.lock:
            if self.idle[settings]:
                return self.idle[settings].pop()
            if settings not in self.first:
                self.first[settings] = Warm(settings)
            return self.first[settings].copy()

    def put_back(self, server):
        with self.lock:
            self.idle[server.settings].append(server)


servers = Servers()


class Process:
    """One run, with what the tests use of subprocess.Popen. Each of the streams is PIPE or DEVNULL."""

    def __init__(self, arguments, env, cwd, stdin, stdout, stderr):
        self.args, self.returncode = arguments, None
        streams, theirs = [], []
        for number, stream in enumerate((stdin, stdout, stderr)):
            if stream == subprocess.DEVNULL:
                theirs.append(os.open(os.devnull, os.O_RDWR))
                streams.append(None)
                continue
            assert stream == subprocess.PIPE
            read, write = os.pipe()
            theirs.append(write if number else read)
            streams.append(os.fdopen(read, "rb") if number else os.fdopen(write, "wb"))
        self.stdin, self.stdout, self.stderr = streams
        self.server = servers.take(load_settings(env))
        self.server.send({"arguments": arguments, "cwd": str(cwd or os.getcwd()), "env": env}, theirs)
        for end in theirs:
            os.close(end)
        self.pid = self.server.number()

    def wait(self, timeout=None):
        if self.returncode is None:
            status = self.server.number(timeout)
            if status is None:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = os.waitstatus_to_exitcode(status)
            servers.put_back(self.server)
        return self.returncode

    def poll(self):
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(9)

    def communicate(self, input=None, timeout=None):
        """What it writes to each pipe, when it has ended."""
        output = [None, None]

        def read(index, stream):
            with stream:
                output[index] = stream.read()

        readers = [
            threading.Thread(target=read, args=(index, stream), daemon=True)
            for index, stream in enumerate((self.stdout, self.stderr))
            if stream
        ]
        for reader in readers:
            reader.start()
        if self.stdin:
            try:
                with self.stdin:
                    self.stdin.write(input or b"")
            except BrokenPipeError:
                pass  # as with subprocess: a program may end before it reads everything
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return tuple(output)


def start(arguments, env, cwd=None, *, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE):
    """A Process, or a subprocess.Popen where a process of its own has to be started."""
    kind = Process if servers.serve(load_settings(env)) else subprocess.Popen
    return kind(arguments, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr)
