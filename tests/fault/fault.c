/* Preloaded into the program under test: counts the calls by which files under a folder change, and makes one of them fail or the
   process end there.

   FAULT_UNDER   only calls on paths that contain this text (and on descriptors of such files) count
   FAULT_AT      number of the call (from 1) at which something happens; 0: never
   FAULT_KIND    kill, term: SIGKILL or SIGTERM after the call; ENOSPC, EIO, EROFS: the call fails with it, and every later one of its sort too;
                 short: a write takes half of its bytes, that one time; shrink: FAULT_FILE is cut to 100 bytes after the call
   FAULT_FREE    bytes that every file system says it has free; absent: what it has
   FAULT_LOG     file that receives a line per counted call: number, name, path
   FAULT_BLOCK   what never returns once there is a file FAULT_WHEN, whatever signals come. Of the main thread: wait, the futex for which ranks
                 on the CPU wait for each other; synchronize, the wait for a GPU; exit, the destructors at the end of the process. Of every
                 thread: query, the question whether a GPU is done; abort, that of an NCCL communicator
   FAULT_RANK    FAULT_BLOCK holds in the process alone whose RANK is this
   FAULT_READ    what reads at an offset of such files meet once there is a file FAULT_WHEN: EIO; stall: the first takes 11 s; shrink, remove:
                 FAULT_FILE is cut to 100 bytes, or loses its name, before the first. The page cache has nothing of them.

   Calls: open for writing, write, pwrite, fallocate, fsync, rename, mkdir, unlink, rmdir, also in an open folder. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { most_descriptors = 4096 };
static char watched[most_descriptors];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int calls, log_fd = -1, failed;
static char failing_name[32];

static ssize_t (*real_write)(int, const void*, size_t);
static int (*real_open)(const char*, int, ...);

__attribute__((constructor)) static void begin(void) {
    real_write = (ssize_t(*)(int, const void*, size_t))dlsym(RTLD_NEXT, "write");
    real_open = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open");
}

static int counts(const char* path) {
    const char* under = getenv("FAULT_UNDER");
    return under != NULL && path != NULL && strstr(path, under) != NULL;
}
static int counts_fd(int fd) { return fd >= 0 && fd < most_descriptors && watched[fd]; }

/* The whole path of a name in an open folder. */
static const char* path_at(int folder, const char* name, char* path, size_t size) {
    char link[64];
    if (name[0] == '/' || folder < 0) return name;
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    const ssize_t length = readlink(link, path, size - 1);
    if (length < 0) return name;
    snprintf(path + length, size - (size_t)length, "/%s", name);
    return path;
}

static const char* kind(void) {
    const char* text = getenv("FAULT_KIND");
    return text != NULL ? text : "";
}

static int error_of(const char* name) {
    return strcmp(name, "ENOSPC") == 0 ? ENOSPC : strcmp(name, "EIO") == 0 ? EIO : strcmp(name, "EROFS") == 0 ? EROFS : 0;
}

/* What is to be done with the call that begins: 0 nothing, else an errno, -1: kill after it, -2: a short write, -3: SIGTERM after it, -4: a file
   is cut after it. */
static int next(const char* name, const char* path) {
    const char* at = getenv("FAULT_AT");
    const long wanted = at != NULL ? atol(at) : 0;
    pthread_mutex_lock(&mutex);
    const int number = ++calls;
    int what = 0;
    if (number == wanted) {
        what = strcmp(kind(), "kill") == 0 ? -1 : strcmp(kind(), "short") == 0 ? -2 : strcmp(kind(), "term") == 0 ? -3 : strcmp(kind(), "shrink") == 0 ? -4 : error_of(kind());
        failed = what > 0;
        if (failed) snprintf(failing_name, sizeof failing_name, "%s", name);
    } else if (failed && strcmp(name, failing_name) == 0) {
        what = error_of(kind());
    }
    const char* log = getenv("FAULT_LOG");
    if (log != NULL && log_fd < 0) log_fd = real_open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log_fd >= 0) {
        char line[700];
        const int size = snprintf(line, sizeof line, "%d %s %s\n", number, name, path != NULL ? path : "");
        if (size > 0 && real_write(log_fd, line, (size_t)size) < 0) abort();
    }
    pthread_mutex_unlock(&mutex);
    return what;
}

static void after(int what) {
    if (what == -1) kill(getpid(), SIGKILL);
    if (what == -3) kill(getpid(), SIGTERM);
    const char* file = getenv("FAULT_FILE");
    if (what == -4 && (file == NULL || truncate(file, 100) != 0)) abort();
}

#define REAL(result, name, ...)                                                                  \
    static result (*real)(__VA_ARGS__);                                                           \
    if (real == NULL) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define FAIL_OR(what, call)         \
    do {                            \
        if ((what) > 0) {           \
            errno = (what);         \
            return -1;              \
        }                           \
        const int result_ = (call); \
        const int error_ = errno;   \
        after(what);                \
        errno = error_;             \
        return result_;             \
    } while (0)

static int open_counted(int folder, const char* name, int flags, mode_t mode) {
    REAL(int, "openat", int, const char*, int, ...);
    char whole[4096];
    const char* path = path_at(folder, name, whole, sizeof whole);
    const int writes = (flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0;
    const int what = writes && counts(path) ? next("open", path) : 0;
    if (what > 0) return errno = what, -1;
    const int fd = real(folder, name, flags, mode);
    if (fd >= 0 && fd < most_descriptors) watched[fd] = (char)counts(path);
    after(what);
    return fd;
}
int open(const char* path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open_counted(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open_counted(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open_counted(folder, path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open_counted(folder, path, flags, mode);
}
int close(int fd) {
    REAL(int, "close", int);
    if (fd >= 0 && fd < most_descriptors) watched[fd] = 0;
    return real(fd);
}

static ssize_t shortened(int what, size_t size) { return what == -2 && size > 1 ? (ssize_t)(size / 2) : (ssize_t)size; }

ssize_t write(int fd, const void* data, size_t size) {
    const int what = counts_fd(fd) ? next("write", "") : 0;
    if (what > 0) return errno = what, -1;
    const ssize_t written = real_write(fd, data, (size_t)shortened(what, size));
    after(what);
    return written;
}
static ssize_t pwrite_counted(int fd, const void* data, size_t size, off_t offset) {
    REAL(ssize_t, "pwrite64", int, const void*, size_t, off_t);
    const int what = counts_fd(fd) ? next("pwrite", "") : 0;
    if (what > 0) return errno = what, -1;
    const ssize_t written = real(fd, data, (size_t)shortened(what, size), offset);
    after(what);
    return written;
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) { return pwrite_counted(fd, data, size, offset); }
ssize_t pwrite64(int fd, const void* data, size_t size, off_t offset) { return pwrite_counted(fd, data, size, offset); }

/* 0, or the errno of a read. */
static int fault_of_read(void) {
    static int happened;
    const char *fault = getenv("FAULT_READ"), *when = getenv("FAULT_WHEN"), *file = getenv("FAULT_FILE");
    if (fault == NULL || when == NULL || access(when, F_OK) != 0) return 0;
    if (strcmp(fault, "EIO") == 0) return EIO;
    pthread_mutex_lock(&mutex);
    const int first = !happened;
    happened = 1;
    pthread_mutex_unlock(&mutex);
    if (first && strcmp(fault, "shrink") == 0 && (file == NULL || truncate(file, 100) != 0)) abort();
    if (first && strcmp(fault, "remove") == 0 && (file == NULL || unlink(file) != 0)) abort();
    if (first && strcmp(fault, "stall") == 0) sleep(11);
    return 0;
}
static ssize_t pread_counted(int fd, void* data, size_t size, off_t offset) {
    REAL(ssize_t, "pread64", int, void*, size_t, off_t);
    const int error = counts_fd(fd) ? fault_of_read() : 0;
    if (error != 0) return errno = error, -1;
    return real(fd, data, size, offset);
}
ssize_t pread(int fd, void* data, size_t size, off_t offset) { return pread_counted(fd, data, size, offset); }
ssize_t pread64(int fd, void* data, size_t size, off_t offset) { return pread_counted(fd, data, size, offset); }
static ssize_t preadv2_counted(int fd, const struct iovec* parts, int count, off_t offset, int flags) {
    REAL(ssize_t, "preadv64v2", int, const struct iovec*, int, off_t, int);
    if ((flags & RWF_NOWAIT) != 0 && counts_fd(fd) && getenv("FAULT_READ") != NULL) return errno = EAGAIN, -1;
    return real(fd, parts, count, offset, flags);
}
ssize_t preadv2(int fd, const struct iovec* parts, int count, off_t offset, int flags) {
    return preadv2_counted(fd, parts, count, offset, flags);
}
ssize_t preadv64v2(int fd, const struct iovec* parts, int count, off_t offset, int flags) {
    return preadv2_counted(fd, parts, count, offset, flags);
}

int fallocate(int fd, int mode, off_t offset, off_t size) {
    REAL(int, "fallocate64", int, int, off_t, off_t);
    const int what = counts_fd(fd) ? next("fallocate", "") : 0;
    FAIL_OR(what, real(fd, mode, offset, size));
}
int fallocate64(int fd, int mode, off_t offset, off_t size) { return fallocate(fd, mode, offset, size); }

int fsync(int fd) {
    REAL(int, "fsync", int);
    const int what = counts_fd(fd) ? next("fsync", "") : 0;
    FAIL_OR(what, real(fd));
}
int rename(const char* from, const char* to) {
    REAL(int, "rename", const char*, const char*);
    const int what = counts(from) || counts(to) ? next("rename", to) : 0;
    FAIL_OR(what, real(from, to));
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) {
    REAL(int, "renameat", int, const char*, int, const char*);
    char whole[4096];
    const char* path = path_at(to_folder, to, whole, sizeof whole);
    const int what = counts(path) ? next("rename", path) : 0;
    FAIL_OR(what, real(from_folder, from, to_folder, to));
}
int mkdirat(int folder, const char* name, mode_t mode) {
    REAL(int, "mkdirat", int, const char*, mode_t);
    char whole[4096];
    const char* path = path_at(folder, name, whole, sizeof whole);
    const int what = counts(path) ? next("mkdir", path) : 0;
    FAIL_OR(what, real(folder, name, mode));
}
int mkdir(const char* path, mode_t mode) {
    REAL(int, "mkdir", const char*, mode_t);
    const int what = counts(path) ? next("mkdir", path) : 0;
    FAIL_OR(what, real(path, mode));
}
int unlink(const char* path) {
    REAL(int, "unlink", const char*);
    const int what = counts(path) ? next("unlink", path) : 0;
    FAIL_OR(what, real(path));
}
int unlinkat(int folder, const char* path, int flags) {
    REAL(int, "unlinkat", int, const char*, int);
    char whole[4096];
    const char* target = path_at(folder, path, whole, sizeof whole);
    const int what = counts(target) ? next("unlink", target) : 0;
    FAIL_OR(what, real(folder, path, flags));
}
int rmdir(const char* path) {
    REAL(int, "rmdir", const char*);
    const int what = counts(path) ? next("rmdir", path) : 0;
    FAIL_OR(what, real(path));
}

static void shrink(struct statvfs* space) {
    const char* bytes = getenv("FAULT_FREE");
    if (bytes != NULL) space->f_bavail = space->f_bfree = (fsblkcnt_t)(strtoull(bytes, NULL, 10) / space->f_frsize);
}
int statvfs(const char* path, struct statvfs* space) {
    REAL(int, "statvfs", const char*, struct statvfs*);
    const int result = real(path, space);
    if (result == 0) shrink(space);
    return result;
}
int statvfs64(const char* path, struct statvfs64* space) { return statvfs(path, (struct statvfs*)space); }

static void block_in(const char* place) {
    const char *wanted = getenv("FAULT_BLOCK"), *when = getenv("FAULT_WHEN"), *rank = getenv("FAULT_RANK"), *own = getenv("RANK");
    if (wanted == NULL || strcmp(wanted, place) != 0 || when == NULL || access(when, F_OK) != 0) return;
    if (rank != NULL && (own == NULL || strcmp(rank, own) != 0)) return;
    for (;;) pause();
}
static void block_main_thread_in(const char* place) {
    if (getpid() == gettid()) block_in(place);
}
long syscall(long number, ...) {
    REAL(long, "syscall", long, ...);
    va_list rest;
    va_start(rest, number);
    long words[6];
    for (int i = 0; i < 6; ++i) words[i] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_futex && (int)words[1] == FUTEX_WAIT) block_main_thread_in("wait");
    return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
__attribute__((destructor)) static void end(void) { block_main_thread_in("exit"); }

/* Of libraries that came by dlopen, where RTLD_NEXT does not look. */
static int call_in(const char* library, const char* name, void* argument) {
    void* const loaded = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    int (*const real)(void*) = loaded != NULL ? (int (*)(void*))dlsym(loaded, name) : NULL;
    if (real == NULL) abort();
    const int result = real(argument);
    dlclose(loaded);
    return result;
}
static const char cuda[] = "libcudart.so.13";
int cudaEventSynchronize(void* event) {
    block_main_thread_in("synchronize");
    return call_in(cuda, "cudaEventSynchronize", event);
}
int cudaStreamSynchronize(void* stream) {
    block_main_thread_in("synchronize");
    return call_in(cuda, "cudaStreamSynchronize", stream);
}
int cudaEventQuery(void* event) {
    block_in("query");
    return call_in(cuda, "cudaEventQuery", event);
}
int ncclCommAbort(void* communicator) {
    block_in("abort");
    return call_in("libnccl.so.2", "ncclCommAbort", communicator);
}
