"""The ranks' store among strangers: who may come near it, and what happens to the run when they try."""

import os
import pathlib
import random
import socket
import struct
import subprocess
import threading
import time

from support import LLAMA, OK, PROGRAM, RUNTIME, TIMEOUT_S, EndToEnd, environment, main, model

# Every way to look up a name takes as long as a resolver that is not answered, and is written down.
SLOW_NAMES = """
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
static void asked(const char* what) {
    FILE* file = fopen(getenv("NAMES_ASKED"), "a");
    if (file) { fprintf(file, "%s\\n", what); fclose(file); }
    sleep(5);
}
int getnameinfo(const struct sockaddr* a, socklen_t n, char* h, socklen_t hn, char* s, socklen_t sn, int f) {
    asked("getnameinfo"); return EAI_AGAIN; }
int getaddrinfo(const char* n, const char* s, const struct addrinfo* h, struct addrinfo** r) {
    asked("getaddrinfo"); return EAI_AGAIN; }
struct hostent* gethostbyname(const char* n) { asked("gethostbyname"); return 0; }
struct hostent* gethostbyaddr(const void* a, socklen_t n, int t) { asked("gethostbyaddr"); return 0; }
"""

# What is written reaches the disk late.
SLOW_DISK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int fsync(int fd) { usleep(400000); return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def listening_at(port):
    """The addresses at which somebody listens at this port."""
    found = []
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(file).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A" and int(local.split(":")[1], 16) == port:
                found.append(local.split(":")[0])
    return found


class Strangers(EndToEnd):
    def arguments(self, out, steps, *extra):
        return self.train_arguments(
            model(LLAMA), self.rows(32), "--per_device_train_batch_size", 2, "--max_steps", steps, *extra, out=out
        )

    def start(self, arguments, *options, **variables):
        launcher = subprocess.Popen(
            [PROGRAM, "launch", "--nproc_per_node", "2", *map(str, options), *map(str, arguments)],
            env=environment(**variables),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(lambda: (launcher.kill(), launcher.wait(), launcher.stderr.close()))
        return launcher

    def children(self, launcher):
        path = pathlib.Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def rank_of(self, pid):
        words = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return next(int(word[5:]) for word in words if word.startswith(b"RANK="))

    def variable(self, pid, name):
        words = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        return next((word.split("=", 1)[1] for word in words if word.startswith(name + "=")), None)

    def wait_for(self, condition, process):
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            if process.poll() is not None:
                self.fail(process.stderr.read())
            time.sleep(0.02)

    def preload(self, source):
        library = self.folder / "preload.so"
        made = subprocess.run(
            ["cc", "-x", "c", "-shared", "-fPIC", "-o", library, "-", "-ldl"],
            input=source.encode(),
            capture_output=True,
        )
        if made.returncode != 0:
            self.skipTest("no C compiler called cc: " + made.stderr.decode()[-300:])
        return library

    def finish(self, launcher):
        err = launcher.communicate(timeout=TIMEOUT_S)[1]
        self.assertEqual(launcher.returncode, OK, err)
        return err

    def test_an_attacker_on_loopback_changes_nothing(self):
        steps = 150
        self.finish(self.start(self.arguments("quiet", steps)))
        port = free_port()
        launcher = self.start(self.arguments("attacked", steps), "--master_port", port)
        stop, held, counts = threading.Event(), [], {"idle": 0, "junk": 0, "forged": 0, "peak": 0, "descriptors": 0}

        def connect():
            s = socket.create_connection(("127.0.0.1", port), timeout=2)
            s.settimeout(0.2)
            return s

        def push(s, data):
            try:
                s.sendall(data)
            except OSError:
                pass  # dropped, as it should be

        def attack():
            hello = b"unsloth1" + struct.pack("<III", 1, 2, 0) + bytes(range(32))
            # c10d's store: key "0/1" with a value, then "0/0" deleted; as its clients would send it.
            keys = b"\x00" + struct.pack("<Q", 3) + b"0/1" + struct.pack("<Q", 1 << 40) + b"forged"
            while not stop.is_set():
                try:
                    for kind in range(4):
                        s = connect()
                        if kind == 0:
                            push(s, keys * 100)
                        elif kind == 1:
                            push(s, random.randbytes(1 << 20))
                            counts["junk"] += 1
                        elif kind == 2:  # the right greeting, a wrong proof, then requests; replies are not read
                            push(s, hello + bytes(32) + (b"\x00\x00\x03\x00" + bytes(12) + b"0/1") * 1000)
                            counts["forged"] += 1
                        held.append(s)
                        counts["idle"] += 1
                    while len(held) > 600:
                        held.pop(0).close()
                except OSError:
                    time.sleep(0.02)

        self.wait_for(lambda: listening_at(port), launcher)
        self.assertEqual(listening_at(port), ["0100007F"], "the store must listen at 127.0.0.1 alone")
        attacker = threading.Thread(target=attack)
        attacker.start()
        try:
            while launcher.poll() is None:
                for pid in self.children(launcher):
                    try:
                        if self.rank_of(pid) != 0:
                            continue
                        status = pathlib.Path(f"/proc/{pid}/status").read_text()
                        peak = int(status.split("RssAnon:")[1].split()[0])
                        counts["peak"] = max(counts["peak"], peak)
                        counts["descriptors"] = max(counts["descriptors"], len(os.listdir(f"/proc/{pid}/fd")))
                        counts.setdefault("first", peak)
                    except (OSError, StopIteration, IndexError):
                        pass
                time.sleep(0.05)
        finally:
            stop.set()
            attacker.join()
            for s in held:
                s.close()
        self.finish(launcher)
        self.assertGreater(counts["idle"], 100, counts)
        self.assertGreater(counts["forged"], 20, counts)
        self.assertLess(counts["descriptors"], 200, counts)
        self.assertLess(counts["peak"], 400 << 10, counts)
        for name in ("adapter_model.safetensors",):
            self.assertEqual(
                (self.folder / "attacked" / name).read_bytes(), (self.folder / "quiet" / name).read_bytes(), name
            )

    def test_a_run_of_one_machine_has_a_secret_and_no_open_port(self):
        launcher = self.start(self.arguments("secret", 1000000))
        metrics = self.folder / "secret" / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, launcher)
        pids = self.children(launcher)
        secrets = {self.variable(pid, "UNSLOTH_SECRET") for pid in pids}
        self.assertEqual(len(secrets), 1)
        self.assertEqual(len(secrets.pop()), 64)
        self.assertEqual(listening_at(int(self.variable(pids[0], "MASTER_PORT"))), ["0100007F"])
        launcher.terminate()
        launcher.communicate(timeout=TIMEOUT_S)

    def test_a_run_of_one_process_opens_no_port(self):
        arguments = self.arguments("alone", 1000000)
        process = subprocess.Popen(
            [PROGRAM, *map(str, arguments)],
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stderr.close()))
        metrics = self.folder / "alone" / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, process)
        sockets = [
            os.readlink(fd)
            for fd in pathlib.Path(f"/proc/{process.pid}/fd").iterdir()
            if os.readlink(fd).startswith("socket:")
        ]
        inodes = {text[len("socket:[") : -1] for text in sockets}
        for file in ("tcp", "tcp6", "udp", "udp6"):
            for line in pathlib.Path(f"/proc/{process.pid}/net/{file}").read_text().splitlines()[1:]:
                self.assertNotIn(line.split()[9], inodes, line)

    def test_machines_without_a_secret_are_warned(self):
        """Ranks by hand that do not know whether others are elsewhere."""
        port = free_port()
        ranks = [
            subprocess.Popen(
                [PROGRAM, *map(str, self.arguments("apart", 3))],
                env=environment(RANK=r, WORLD_SIZE=2, LOCAL_RANK=r, MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for r in range(2)
        ]
        said = [rank.communicate(timeout=TIMEOUT_S)[1] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [OK, OK], said)
        self.assertIn("the ranks meet over the network without a secret", said[0])
        self.assertNotIn("without a secret", said[1])

    def test_no_name_is_looked_up_on_one_machine(self):
        library, asked = self.preload(SLOW_NAMES), self.folder / "asked"
        began = time.monotonic()
        self.finish(self.start(self.arguments("names", 3), LD_PRELOAD=library, NAMES_ASKED=asked))
        self.assertFalse(asked.exists(), "names were looked up: " + (asked.read_text() if asked.exists() else ""))
        self.assertLess(time.monotonic() - began, 30)

    def test_a_save_that_takes_longer_than_the_timeout_is_waited_for(self):
        self.finish(
            self.start(
                self.arguments("slow", 2, "--ddp_timeout", 2, "--save_steps", 1), LD_PRELOAD=self.preload(SLOW_DISK)
            )
        )
        self.assertTrue((self.folder / "slow" / "checkpoint-2").exists())

    def start_apart(self, arguments, folders):
        """Two ranks with the same words that mean other files."""
        port = free_port()
        ranks = [
            subprocess.Popen(
                [PROGRAM, *map(str, arguments)],
                env=environment(
                    RANK=r, WORLD_SIZE=2, LOCAL_RANK=r, LOCAL_WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port
                ),
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for r, folder in enumerate(folders)
        ]
        return [(rank.communicate(timeout=TIMEOUT_S)[1], rank.returncode) for rank in ranks]

    def test_models_of_the_same_size_with_other_values_are_refused(self):
        folders = []
        for seed in (1, 2):
            folder = self.folder / f"machine{seed}"
            folder.mkdir()
            (folder / "model").symlink_to(model(LLAMA, seed=seed))
            folders.append(folder)
        arguments = self.arguments("differ", 3, "--model.path", "model")
        for err, code in self.start_apart(arguments, folders):
            self.assertEqual(code, 2, err)
            self.assertIn("rank 1 was started differently from rank 0", err)
            self.assertIn("samples of the values", err)

    def test_other_adapters_to_begin_with_are_refused(self):
        folders = []
        for seed in (1, 2):
            folder = self.folder / f"machine{seed}"
            folder.mkdir()
            adapter = self.train(model(LLAMA), self.rows(8), "--seed", seed, "--max_steps", 1, out=f"adapter{seed}")
            (folder / "adapter").symlink_to(adapter)
            folders.append(folder)
        arguments = self.arguments("differ", 3, "--model.adapter_name_or_path", "adapter")
        for err, code in self.start_apart(arguments, folders):
            self.assertEqual(code, RUNTIME, err)
            self.assertIn("after step 0 the ranks do not hold the same trained values", err)


if __name__ == "__main__":
    main()
