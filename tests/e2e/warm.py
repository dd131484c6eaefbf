"""Runs the program as a fork of one that has loaded the engine's libraries (tests/warm): a run starts in milliseconds."""

import json
import os
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
    return {key: value for key, value in env.items() if key.startswith(READ_AT_LOAD)}


class Warm:
    """One server; it ends with this process, whose socket it reads."""

    def __init__(self, env):
        self.settings = load_settings(env)
        self.socket, theirs = socket.socketpair()
        self.server = subprocess.Popen(
            [PROGRAM, "--serve", str(theirs.fileno())], pass_fds=[theirs.fileno()], env=env, stdin=subprocess.DEVNULL
        )
        theirs.close()

    def serves(self, env):
        return load_settings(env) == self.settings

    def number(self, timeout):
        self.socket.settimeout(timeout)
        data = self.socket.recv(4, socket.MSG_WAITALL)
        if len(data) != 4:
            raise RuntimeError(f"the warm program ended: {self.server.wait()}")
        return struct.unpack("=i", data)[0]

    def run(self, arguments, stdin, cwd, env, timeout):
        """(exit code as subprocess gives it, stdout, stderr)"""
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        text = json.dumps({"arguments": arguments, "cwd": str(cwd or os.getcwd()), "env": env}).encode()
        socket.send_fds(self.socket, [struct.pack("=I", len(text))], theirs)
        self.socket.sendall(text)
        for descriptor in theirs:
            os.close(descriptor)
        child = self.number(timeout)
        output = [b"", b""]

        def read(index):
            with os.fdopen(pipes[index + 1][0], "rb") as stream:
                output[index] = stream.read()

        readers = [threading.Thread(target=read, args=(index,)) for index in range(2)]
        for reader in readers:
            reader.start()
        try:
            with os.fdopen(pipes[0][1], "wb") as stream:
                stream.write(stdin)
        except BrokenPipeError:
            pass  # as with subprocess: a program may end before it reads everything
        try:
            status = self.number(timeout)
        except TimeoutError:
            os.kill(child, 9)
            self.number(timeout)
            raise subprocess.TimeoutExpired(arguments, timeout) from None
        for reader in readers:
            reader.join()
        return os.waitstatus_to_exitcode(status), *output


server = None


def run(arguments, stdin, cwd, env, timeout):
    """As Warm.run; None where a process of its own has to be started."""
    global server
    if not PROGRAM:
        return None
    if server is None:
        server = Warm(env)
    return server.run(arguments, stdin, cwd, env, timeout) if server.serves(env) else None
