"""What the tests of `launch` and `doctor` share: ranks that are small Python programs, and a driver's library where there is no driver."""

import os
import pathlib
import subprocess
import sys
import time

from support import EndToEnd, PROGRAM, environment

LONG_S = 100  # how long anything may take on a busy machine before the test calls it a hang
SIGNALLED = 128

# Every rank runs this and then the test's own lines.
HEAD = """
import os, signal, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def ready(): open(os.path.join(sys.argv[1], f"ready{rank}"), "w").write(str(os.getpid()))
def on(number, code):
    def handle(*_):
        with open(os.path.join(sys.argv[1], f"got{rank}"), "a") as file: file.write(f"{number}\\n")
        if code is not None: os._exit(code)
    signal.signal(number, handle)
def sleep_long():
    end = time.monotonic() + 120
    while time.monotonic() < end: time.sleep(0.05)
"""


def state(pid):
    """As ps shows it: R, S, T (stopped), Z; empty when it is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def alive(pid):
    return state(pid) not in ("", "Z")


def until(condition, seconds=LONG_S):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


class Launching(EndToEnd):
    def command(self, ranks, code, *options):
        return [
            PROGRAM,
            "launch",
            "--nproc_per_node",
            str(ranks),
            *map(str, options),
            "--program",
            sys.executable,
            "-I",
            "-S",
            "-c",
            HEAD + code,
            str(self.folder),
        ]

    def launch(self, ranks, code, *options, env=None, **more):
        done = subprocess.run(
            self.command(ranks, code, *options), capture_output=True, timeout=LONG_S, env=env or environment(), **more
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def start(self, ranks, code, *options, **more):
        """A launcher whose ranks have all called ready()."""
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment()} | more
        process = subprocess.Popen(self.command(ranks, code, *options), **more)
        self.addCleanup(
            lambda: (process.kill(), process.wait(), [s.close() for s in (process.stdout, process.stderr) if s])
        )
        ready = [self.folder / f"ready{rank}" for rank in range(ranks)]
        self.assertTrue(until(lambda: process.poll() is not None or all(f.exists() and f.read_text() for f in ready)))
        self.assertIsNone(process.poll(), "the launcher ended early")
        return process, [int(f.read_text()) for f in ready]

    def finish(self, process):
        out, err = process.communicate(timeout=LONG_S)
        return process.returncode, out.decode(), err.decode()

    def got(self, rank):
        file = self.folder / f"got{rank}"
        return file.read_text().split() if file.exists() else []


# A driver's library with two GPUs, so that counting them can be tested anywhere.
FAKE_NVML = """
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
/* The real one starts threads, too, which take any signal that they do not block. */
static void* idle(void* nothing) { for (;;) pause(); return nothing; }
typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char text[32]; } Pci;
typedef struct { unsigned long long total, free, used; } Memory;
int nvmlInit_v2(void) { pthread_t thread; return pthread_create(&thread, 0, idle, 0); }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char* t, unsigned n) { snprintf(t, n, "580.1.2"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int* v) { *v = CUDA; return 0; }
int nvmlDeviceGetCount_v2(unsigned* n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** d) { *d = (char*)0 + 1 + i; return 0; }
int nvmlDeviceGetPciInfo_v3(void* d, Pci* p) { memset(p, 0, sizeof *p); p->bus = 0x17 + (unsigned)((char*)d - (char*)0); return 0; }
int nvmlDeviceGetName(void* d, char* t, unsigned n) { snprintf(t, n, "Test GPU"); return 0; }
int nvmlDeviceGetUUID(void* d, char* t, unsigned n) { snprintf(t, n, "GPU-%d", (int)((char*)d - (char*)0)); return 0; }
int nvmlDeviceGetMemoryInfo(void* d, Memory* m) { m->total = 80ull << 30; m->used = (unsigned long long)((char*)d - (char*)0 - 1) << 35; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void* d, unsigned long long* r) { *r = (char*)d - (char*)0 == 2 ? 0x44 : 1; return 0; }
int nvmlDeviceGetTemperature(void* d, int kind, unsigned* t) { *t = 40; return 0; }
int nvmlDeviceGetPowerUsage(void* d, unsigned* p) { *p = 123456; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void* d, unsigned* p) { *p = 700000; return 0; }
int nvmlDeviceGetClockInfo(void* d, int kind, unsigned* c) { *c = kind == 1 ? 1500 : 1; return 0; }
int nvmlDeviceGetMaxClockInfo(void* d, int kind, unsigned* c) { *c = kind == 1 ? 1980 : 1; return 0; }
int nvmlDeviceGetEccMode(void* d, unsigned* now, unsigned* then) { *now = *then = 1; return 0; }
int nvmlDeviceGetTotalEccErrors(void* d, int kind, int since, unsigned long long* n) { *n = kind == 1 ? (since == 0 ? 0 : 3) : 9; return 0; }
int nvmlDeviceGetTopologyCommonAncestor(void* a, void* b, int* l) { *l = 50; return 0; }
"""


class WithDriver(Launching):
    def setUp(self):
        super().setUp()
        self.build(13000)

    def build(self, cuda):
        library = self.folder / "libnvidia-ml.so.1"
        made = subprocess.run(
            ["c++", "-x", "c", "-shared", "-fPIC", "-Wl,-z,nodelete", "-pthread", f"-DCUDA={cuda}", "-o", library, "-"],
            input=FAKE_NVML.encode(),
            capture_output=True,
        )
        if made.returncode != 0:
            self.skipTest("no C compiler called c++: " + made.stderr.decode()[-300:])

    def with_driver(self, **changes):
        env = environment(LD_LIBRARY_PATH=f"{self.folder}:{os.environ.get('LD_LIBRARY_PATH', '')}", **changes)
        if "CUDA_VISIBLE_DEVICES" not in changes:
            env.pop("CUDA_VISIBLE_DEVICES", None)
        return env
