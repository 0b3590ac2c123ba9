/* What a machine does now and then, at a chosen moment: loaded before a program (LD_PRELOAD).

   FAULT_PROCESSES=n   from the n-th new thread or process on there are no more (EAGAIN, ulimit -u);
                       FAULT_ONCE=1: that one alone
   FAULT_READS=kind:n  the n-th read of a file in FAULT_FOLDER, and all after it (FAULT_ONCE: it
                       alone), is "short", ends with errno EIO, ESTALE or ETIMEDOUT, or EINTR
   FAULT_WRITES=kind:n standard output takes n bytes and is "full" (ENOSPC), or is a "slow" pipe that
                       does not block: it takes n bytes at once, and nothing (EAGAIN) in between
   FAULT_LOCKS=errno   locks of files in FAULT_FOLDER are refused
   FAULT_CLOCK=s       the time of day is s seconds later as soon as the file FAULT_STEP exists

   What was counted, over all processes, lies in the file FAULT_COUNTS: two numbers of 64 bits. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

enum { PROCESSES, READS, N_COUNTS };

/* Whether what is counted under `which` fails now; `from` is the first that does. */
static int fails(int which, long from) {
    static _Atomic long *counts;
    const char *path = getenv("FAULT_COUNTS");
    if (from <= 0 || path == NULL)
        return 0;
    if (counts == NULL) {
        int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (file < 0 || ftruncate(file, N_COUNTS * sizeof *counts))
            abort();
        counts = mmap(NULL, N_COUNTS * sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (counts == MAP_FAILED)
            abort();
    }
    long now = atomic_fetch_add(&counts[which], 1) + 1;
    return now == from || (now > from && getenv("FAULT_ONCE") == NULL);
}

static int refuses_process(void) {
    const char *from = getenv("FAULT_PROCESSES");
    return from != NULL && fails(PROCESSES, atol(from));
}

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *of) {
    return refuses_process() ? EAGAIN : REAL(pthread_create)(thread, how, run, of);
}

pid_t fork(void) {
    if (!refuses_process())
        return REAL(fork)();
    errno = EAGAIN;
    return -1;
}

pid_t vfork(void) { return fork(); }

static int is_in_folder(int file) {
    const char *folder = getenv("FAULT_FOLDER");
    char link[64], path[PATH_MAX];
    if (folder == NULL || file < 3)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path);
    size_t wanted = strlen(folder);
    return length > (ssize_t)wanted && !strncmp(path, folder, wanted) && path[wanted] == '/';
}

static int errno_of(const char *name) {
    static const struct { const char *name; int number; } known[] = {
        {"EIO", EIO}, {"ESTALE", ESTALE}, {"ETIMEDOUT", ETIMEDOUT}, {"EINTR", EINTR},
        {"ENOLCK", ENOLCK}, {"EACCES", EACCES}};
    for (size_t at = 0; at < sizeof known / sizeof *known; at++)
        if (!strncmp(name, known[at].name, strlen(known[at].name)))
            return known[at].number;
    return 0;
}

/* How many of `size` bytes may be read now; -1 and errno: none. */
static ssize_t allowed(int file, size_t size) {
    const char *how = getenv("FAULT_READS"), *from = how == NULL ? NULL : strchr(how, ':');
    int before = errno;
    if (from == NULL || size == 0 || !is_in_folder(file) || !fails(READS, atol(from + 1))) {
        errno = before;
        return (ssize_t)size;
    }
    errno = before;
    if (!strncmp(how, "short", 5))
        return (ssize_t)(size + 1) / 2;
    errno = errno_of(how);
    return -1;
}

ssize_t read(int file, void *into, size_t size) {
    ssize_t most = allowed(file, size);
    return most < 0 ? -1 : REAL(read)(file, into, (size_t)most);
}

ssize_t pread(int file, void *into, size_t size, off_t at) {
    ssize_t most = allowed(file, size);
    return most < 0 ? -1 : REAL(pread)(file, into, (size_t)most, at);
}

ssize_t pread64(int file, void *into, size_t size, off64_t at) {
    ssize_t most = allowed(file, size);
    return most < 0 ? -1 : REAL(pread64)(file, into, (size_t)most, at);
}

/* How many of `size` bytes standard output takes now; -1 and errno: none. */
static ssize_t taken(size_t size) {
    static long n_calls, n_taken;
    const char *how = getenv("FAULT_WRITES"), *most = how == NULL ? NULL : strchr(how, ':');
    if (most == NULL || size == 0)
        return (ssize_t)size;
    int is_slow = !strncmp(how, "slow", 4);
    long left = atol(most + 1) - (is_slow ? 0 : n_taken);
    if (left <= 0 || (is_slow && n_calls++ % 2)) {
        errno = is_slow ? EAGAIN : ENOSPC;
        return -1;
    }
    long now = (long)size < left ? (long)size : left;
    n_taken += now;
    return now;
}

ssize_t write(int file, const void *from, size_t size) {
    ssize_t most = file == 1 ? taken(size) : (ssize_t)size;
    return most < 0 ? -1 : REAL(write)(file, from, (size_t)most);
}

static int locked(int command, int file) {
    const char *how = getenv("FAULT_LOCKS");
    int is_lock = command == F_SETLK || command == F_SETLKW || command == F_GETLK;
    return is_lock && how != NULL && is_in_folder(file) ? errno_of(how) : 0;
}

int fcntl64(int file, int command, ...) {
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    int refused = locked(command, file);
    if (refused) {
        errno = refused;
        return -1;
    }
    return REAL(fcntl64)(file, command, argument);
}

int fcntl(int file, int command, ...) {
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    return fcntl64(file, command, argument);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    const char *step = getenv("FAULT_CLOCK"), *file = getenv("FAULT_STEP");
    int result = (int)syscall(SYS_clock_gettime, clock, now), before = errno;
    if (clock == CLOCK_REALTIME && step != NULL && file != NULL && !access(file, F_OK))
        now->tv_sec += atol(step);
    errno = before;
    return result;
}
