/* Records what CUPTI's activity API tells of this process: its buffers are written as CUPTI gives them
 * back, and nothing is parsed here but what must be read while the process attempts (names).
 *
 * Started by the driver itself when a program first uses CUDA (InitializeInjection, by
 * CUDA_INJECTION64_PATH), or by the hooks of a Python program (traceprof_start). TRACEPROF_DIR is where
 * the file goes, TRACEPROF_CUPTI says what is wanted, words with commas: calls=chosen|runtime|all|none,
 * syncs, graphs=whole, memory=MB. */
#include "recorder.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define BUFFER_BYTES ((size_t)1 << 20)

enum { MOST_MB = 4096, DEFAULT_MB = 256, OLDEST_THAT_MAY_BE_REFUSED = 27, HELD = 39, NOT_COMPATIBLE = 14 };
enum { FLUSH_EVERY_S = 1, ATTRIBUTE_ZEROED = 5, SYSTEM_THREAD_ID = 1, DRIVER_CALLS = 1, RUNTIME_CALLS = 2 };
enum { BY_TIME = 0, AT_ONCE = 1, WHEN_TOLD = 2 }; /* when the capture begins */

EXPORTED const int traceprof_recorder_version = 1; /* of the functions that are called from outside */

/* The calls that launch work, copy, wait or allocate: some 7 % of all, to which all work belongs. */
static const char *const BEGINNINGS[] = {
    "cudaLaunch",      "cudaGraphLaunch", "cudaMemcpy",      "cudaMemset",     "cudaEventRecord",
    "cudaEventQuery",  "cudaStreamWait",  "cudaMalloc",      "cudaFree",       "cudaHostAlloc",
    "cudaStreamQuery", "cudaStreamBegin", "cudaStreamEnd",   "cudaGraphInst",  "cuLaunch",
    "cuGraphLaunch",   "cuMemcpy",        "cuMemset",        "cuEventRecord",  "cuStreamWait",
    "cuMemAlloc",      "cuMemFree",       "cuMemCreate",     "cuMemMap",       "cuMemUnmap",
    "cuStreamBegin",   "cuStreamEnd",     "cuGraphInst",
};

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER; /* of buffers: the program waits for it */
static pthread_mutex_t file_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER; /* of start, capture and stop */
static pthread_mutex_t wake_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake;
static pthread_t flusher;

static uint8_t *arena; /* all buffers, one after the other; touched from the first one on */
static uint32_t *free_buffers;
static size_t n_buffers, n_made, n_free, n_out; /* n_out: CUPTI has them */
static uint64_t n_refused, thrown_bytes, n_completed;

static pid_t owner; /* the process that records, 0 for none: a forked one writes nothing */
static int is_forked, is_live, is_capturing, is_ending, is_flushing, has_devices;
static uint32_t version;
static void *subscriber;
static int kinds[16], n_kinds;
static char why[512];
static uint64_t started_ns, delay_ns, duration_ns;

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t seconds_of(const char *variable) {
    const char *text = getenv(variable);
    return text ? (uint64_t)(atof(text) * 1e9) : 0;
}

/* The value of a word of TRACEPROF_CUPTI: what is behind its "=", else ""; NULL where it is not there. */
static const char *wish(const char *name) {
    static char value[64];
    size_t length = strlen(name);
    for (const char *at = getenv("TRACEPROF_CUPTI"); at && *at; at += strcspn(at, ","), at += *at == ',') {
        size_t n = strcspn(at, ",");
        if (n < length || strncmp(at, name, length) || (n > length && at[length] != '=')) continue;
        snprintf(value, sizeof value, "%.*s", n > length ? (int)(n - length - 1) : 0, at + length + 1);
        return value;
    }
    return NULL;
}

static int wishes(const char *name, const char *value) {
    const char *found = wish(name);
    return found && !strcmp(found, value);
}

/* CUPTI wants a buffer, in a thread of the program. None must be refused before CUDA 12.9, where it
 * crashes: what is beyond the limit goes to one buffer that is thrown away. */
static void on_request(uint8_t **buffer, size_t *size, size_t *most_records) {
    pthread_mutex_lock(&pool_lock);
    *most_records = 0;
    *buffer = NULL;
    if (n_free) {
        *buffer = arena + BUFFER_BYTES * free_buffers[--n_free];
    } else if (n_made < n_buffers) {
        *buffer = arena + BUFFER_BYTES * n_made++;
    } else {
        n_refused++;
        if (version < OLDEST_THAT_MAY_BE_REFUSED) *buffer = arena + BUFFER_BYTES * n_buffers;
    }
    *size = *buffer ? BUFFER_BYTES : 0;
    n_out += *buffer != NULL;
    pthread_mutex_unlock(&pool_lock);
}

static void on_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    size_t n_dropped = 0, place = (size_t)(buffer - arena) / BUFFER_BYTES;
    /* Callbacks are global, and the last who registers gets them: a buffer of another is none of ours. */
    if (!arena || buffer < arena || place > n_buffers) return;
    int is_ours = is_live && getpid() == owner;
    if (is_ours) CUPTI.GetDropped(context, stream, &n_dropped); /* calls CUPTI: no lock is held */
    if (place < n_buffers) {
        if (is_ours && (valid || n_dropped)) {
            pthread_mutex_lock(&file_lock);
            traceprof_spool_records(buffer, valid, n_dropped);
            pthread_mutex_unlock(&file_lock);
        }
        memset(buffer, 0, size); /* here, so that CUPTI need not in a thread of the program */
    }
    pthread_mutex_lock(&pool_lock);
    if (place < n_buffers) {
        free_buffers[n_free++] = (uint32_t)place;
    } else {
        thrown_bytes += valid;
    }
    n_out--;
    n_completed++;
    pthread_mutex_unlock(&pool_lock);
}

static void on_call(void *data, int domain, uint32_t call, const void *told) {
    (void)data, (void)domain, (void)call, (void)told; /* none is asked for */
}

static void write_clocks(void) {
    uint64_t clocks[4] = {0, 0, 0, 0};
    CUPTI.GetTimestamp(&clocks[0]);
    clocks[1] = clock_ns(CLOCK_REALTIME);
    clocks[2] = clock_ns(CLOCK_MONOTONIC);
#ifdef CLOCK_MONOTONIC_RAW
    clocks[3] = clock_ns(CLOCK_MONOTONIC_RAW);
#endif
    pthread_mutex_lock(&file_lock);
    traceprof_spool_write(CLOCKS, clocks, sizeof clocks, NULL);
    pthread_mutex_unlock(&file_lock);
}

static void write_devices(void) {
    uint8_t rows[144 * 64];
    if (has_devices || !n_completed) return; /* the program has used none yet */
    size_t n_bytes = traceprof_devices(rows, sizeof rows);
    has_devices = n_bytes > 0;
    if (!has_devices) return;
    pthread_mutex_lock(&file_lock);
    traceprof_spool_write(DEVICES, rows, n_bytes, NULL);
    pthread_mutex_unlock(&file_lock);
}

/* Have only the calls recorded that work belongs to, of one of CUPTI's domains; return how many. */
static int choose_calls(int domain, int (*enable)(uint32_t, uint8_t)) {
    int n_chosen = 0, n_unknown = 0;
    for (uint32_t call = 1; call < 4096 && n_unknown < 16; call++) {
        const char *name = NULL;
        int is_chosen = 0;
        if (CUPTI.GetCallbackName(domain, call, &name) || !name) {
            n_unknown++;
            continue;
        }
        n_unknown = 0;
        for (size_t i = 0; i < sizeof BEGINNINGS / sizeof *BEGINNINGS && !is_chosen; i++) {
            is_chosen = !strncmp(name, BEGINNINGS[i], strlen(BEGINNINGS[i]));
        }
        if (is_chosen || strstr(name, "Synchronize")) n_chosen += !enable(call, 1);
    }
    return n_chosen;
}

static void want(int kind) {
    if (n_kinds < (int)(sizeof kinds / sizeof *kinds) && !CUPTI.Enable(kind)) kinds[n_kinds++] = kind;
}

static void begin_capture(void) {
    char said[128] = "none";
    int can_choose = CUPTI.EnableRuntimeApi && CUPTI.EnableDriverApi && CUPTI.GetCallbackName;
    n_kinds = 0;
    want(KERNEL);
    want(COPY);
    want(MEMSET);
    want(PEER_COPY);
    want(OVERHEAD);
    if (wish("syncs")) want(SYNCHRONIZATION);
    if (wishes("graphs", "whole")) want(GRAPH); /* their kernels do not come then */
    if (wishes("calls", "all") || wishes("calls", "runtime")) {
        snprintf(said, sizeof said, "%s", wish("calls"));
        want(RUNTIME);
        if (wishes("calls", "all")) want(DRIVER);
    } else if (!wishes("calls", "none")) { /* kinds would override what is chosen */
        int n_runtime = can_choose ? choose_calls(RUNTIME_CALLS, CUPTI.EnableRuntimeApi) : 0;
        int n_driver = n_runtime ? choose_calls(DRIVER_CALLS, CUPTI.EnableDriverApi) : 0;
        snprintf(said, sizeof said, "chosen (%d and %d)", n_runtime, n_driver);
        if (!n_runtime) { /* before CUDA 12.5: all of the runtime */
            snprintf(said, sizeof said, "runtime");
            want(RUNTIME);
        }
    }
    is_capturing = 1;
    pthread_mutex_lock(&file_lock);
    char note[160];
    int n_bytes = snprintf(note, sizeof note, "calls=%s\n%s", said, wish("syncs") ? "syncs=1\n" : "");
    traceprof_spool_write(NOTE, note, (size_t)n_bytes, NULL);
    pthread_mutex_unlock(&file_lock);
}

static void end_capture(void) {
    for (int i = 0; i < n_kinds; i++) CUPTI.Disable(kinds[i]);
    if (CUPTI.EnableRuntimeApi && CUPTI.EnableDriverApi) {
        for (uint32_t call = 1; call < 1024; call++) {
            CUPTI.EnableRuntimeApi(call, 0);
            CUPTI.EnableDriverApi(call, 0);
        }
    }
    is_capturing = n_kinds = 0;
}

/* Once a second: what is complete is written, and where the bounds are times, they are kept. */
static void look_after(void) {
    uint64_t since_ns = clock_ns(CLOCK_MONOTONIC) - started_ns;
    pthread_mutex_lock(&state_lock);
    if (is_live && delay_ns != UINT64_MAX && !is_capturing && since_ns >= delay_ns) {
        begin_capture();
        if (!duration_ns) delay_ns = UINT64_MAX;
    }
    int is_over = duration_ns && since_ns >= delay_ns + duration_ns;
    if (is_live && is_capturing && (is_over || traceprof_spool_is_full())) {
        end_capture();
        delay_ns = UINT64_MAX;
        duration_ns = 0;
    }
    pthread_mutex_unlock(&state_lock);
    write_clocks();
    CUPTI.FlushAll(0);
    write_devices();
}

static void *keep_flushing(void *unused) {
    struct timespec until;
    pthread_mutex_lock(&wake_lock);
    while (!is_ending) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += FLUSH_EVERY_S;
        if (!pthread_cond_timedwait(&wake, &wake_lock, &until) || is_ending) continue;
        pthread_mutex_unlock(&wake_lock);
        look_after();
        pthread_mutex_lock(&wake_lock);
    }
    pthread_mutex_unlock(&wake_lock);
    return unused;
}

static int start_flushing(void) {
    sigset_t all, before;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&wake, &attributes);
    pthread_condattr_destroy(&attributes);
    is_ending = 0;
    sigfillset(&all); /* signals are for the program's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&flusher, NULL, keep_flushing, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !failed;
}

/* In a process that was forked: CUPTI's own threads are not here, and any call of it may hang. */
static void after_fork(void) {
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    pool_lock = file_lock = state_lock = wake_lock = fresh;
    is_forked = is_forked || is_live;
    is_live = is_capturing = 0;
    owner = 0;
    traceprof_spool_close();
}

static int make_arena(void) {
    const char *memory = wish("memory");
    size_t n_mb = memory ? (size_t)atol(memory) : DEFAULT_MB;
    if (arena) return 1; /* CUPTI may still hold some of it: it is never given back */
    n_buffers = (n_mb < 1 ? 1 : n_mb > MOST_MB ? MOST_MB : n_mb) * ((1 << 20) / BUFFER_BYTES);
    free_buffers = calloc(n_buffers, sizeof *free_buffers);
    void *found = mmap(NULL, (n_buffers + 1) * BUFFER_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!free_buffers || found == MAP_FAILED) return 0;
    arena = found;
    return 1;
}

static const char *meaning_of(int code) {
    const char *text = NULL;
    return CUPTI.GetResultString && !CUPTI.GetResultString(code, &text) && text ? text : "";
}

/* Subscribe, or say who holds CUPTI. Whoever did not subscribe could take the buffers of another. */
static int subscribe(void) {
    char holder[128] = "";
    int code = CUPTI.Subscribe(&subscriber, (void *)on_call, NULL);
    if (!code) return 0;
    if ((code == HELD || code == NOT_COMPATIBLE) && CUPTI.Subscribe_v2) {
        struct {
            size_t size;
            const char *name;
            char *old_name;
            size_t old_size;
        } asked = {sizeof asked, "traceprof", holder, sizeof holder};
        void *unwanted = NULL; /* it fails as the other did, and tells the name */
        if (!CUPTI.Subscribe_v2(&unwanted, (void *)on_call, NULL, &asked)) CUPTI.Unsubscribe(unwanted);
    }
    const char *who = *holder ? holder : traceprof_loaded_profiler();
    if (code == HELD || code == 12) {
        snprintf(why, sizeof why, "CUPTI is in use by %s", *who ? who : "another profiler in the process");
    } else if (code == NOT_COMPATIBLE) {
        snprintf(why, sizeof why, "%s uses CUPTI in an incompatible way (code %d)",
                 *who ? who : "another profiler in the process", code);
    } else {
        snprintf(why, sizeof why, "CUPTI %u is not usable (code %d %s): the driver is missing or too old",
                 version, code, meaning_of(code));
    }
    return code;
}

/* Who the process is, for those that are no Python: as launchers tell it. */
static int describe(char *note, size_t size) {
    static const char *const TOLD[][2] = {
        {"rank", "RANK"},             {"rank", "OMPI_COMM_WORLD_RANK"},
        {"rank", "SLURM_PROCID"},     {"rank", "PMI_RANK"},
        {"local_rank", "LOCAL_RANK"}, {"local_rank", "OMPI_COMM_WORLD_LOCAL_RANK"},
        {"world_size", "WORLD_SIZE"}, {"world_size", "OMPI_COMM_WORLD_SIZE"},
    };
    int length = snprintf(note, size, "command=%.64s\n", program_invocation_short_name);
    for (size_t i = sizeof TOLD / sizeof *TOLD; i-- > 0;) { /* the first that is set counts */
        const char *value = getenv(TOLD[i][1]);
        if (value) length += snprintf(note + length, size - (size_t)length, "%s=%.20s\n", TOLD[i][0], value);
    }
    return length;
}

/* The name of this process in those of files, as the hooks make it (identity.py). */
static void name_process(char *name, size_t size) {
    char link[64] = "", text[1024] = "";
    unsigned long long namespace = 0, ticks = 0;
    FILE *stat = fopen("/proc/self/stat", "r");
    if (stat) {
        text[fread(text, 1, sizeof text - 1, stat)] = 0;
        fclose(stat);
    }
    const char *at = strrchr(text, ')');
    if (at) { /* the 22nd field; behind the name the 20th */
        for (int i = 0; at && i < 20; i++) at = strchr(at + 1, ' ');
        if (at) ticks = strtoull(at, NULL, 10);
    }
    if (readlink("/proc/self/ns/pid", link, sizeof link - 1) > 0 && (at = strchr(link, '['))) {
        namespace = strtoull(at + 1, NULL, 10);
    }
    if (namespace && ticks) {
        snprintf(name, size, "%d.%llx-%llx", (int)getpid(), namespace, ticks);
    } else {
        snprintf(name, size, "%d", (int)getpid());
    }
}

static int open_spool(const char *library) {
    char path[4096], note[4608], name[64];
    uint32_t pairs[2 * KINDS];
    const char *folder = getenv("TRACEPROF_DIR"), *most = getenv("TRACEPROF_MAX_BYTES");
    name_process(name, sizeof name);
    snprintf(path, sizeof path, "%s/cupti.%s", folder ? folder : ".", name);
    if (!traceprof_spool_open(path, version, most ? strtoull(most, NULL, 10) : 0)) {
        snprintf(why, sizeof why, "%.400s cannot be written", path);
        return 0;
    }
    int n_bytes = snprintf(note, sizeof note, "library=%s\n%s%s\n", library, *why ? "why=" : "", why);
    traceprof_spool_write(NOTE, note, (size_t)n_bytes, NULL);
    if (*why) return 0;
    n_bytes = describe(note, sizeof note);
    traceprof_spool_write(NOTE, note, (size_t)n_bytes, NULL);
    size_t n_pairs = traceprof_probe_steps(pairs);
    traceprof_spool_write(STEPS, pairs, n_pairs * 8, NULL);
    return 1;
}

static void prepare(void) {
    uint8_t on = 1;
    size_t size = sizeof on;
    if (CUPTI.SetAttribute) CUPTI.SetAttribute(ATTRIBUTE_ZEROED, &size, &on);
    if (CUPTI.SetThreadIdType) CUPTI.SetThreadIdType(SYSTEM_THREAD_ID);
}

static int stop(int is_at_exit);

static void stop_at_exit(void) { stop(1); }

static int mode = BY_TIME;

static int start(void) {
    static int is_registered;
    char library[4096] = "";
    *why = 0;
    if (is_live) return 0;
    has_devices = 0; /* they are in each file; a capture may have ended before */
    n_refused = thrown_bytes = 0;
    if (is_forked) {
        snprintf(why, sizeof why, "the process was forked from a recorded process");
        return 1;
    }
    if (!traceprof_find_cupti(library, sizeof library)) {
        snprintf(why, sizeof why, "libcupti not found; pip install nvidia-cuda-cupti-cu12 (or -cu13)");
    } else {
        CUPTI.GetVersion(&version);
        if (!make_arena()) snprintf(why, sizeof why, "not enough memory for buffers");
        if (!*why) subscribe();
    }
    int is_open = open_spool(library);
    if (!is_open && subscriber) CUPTI.Unsubscribe(subscriber);
    if (is_open && CUPTI.RegisterCallbacks((void *)on_request, (void *)on_complete)) {
        snprintf(why, sizeof why, "CUPTI rejected the buffers");
        CUPTI.Unsubscribe(subscriber);
        is_open = 0;
    }
    if (!is_open) {
        traceprof_spool_close();
        subscriber = NULL;
        return 1;
    }
    prepare();
    owner = getpid();
    started_ns = clock_ns(CLOCK_MONOTONIC);
    delay_ns = mode == BY_TIME ? seconds_of("TRACEPROF_DELAY_S") : UINT64_MAX;
    duration_ns = mode == BY_TIME ? seconds_of("TRACEPROF_DURATION_S") : 0;
    is_live = 1;
    write_clocks();
    if (!is_registered++) {
        pthread_atfork(NULL, NULL, after_fork);
        atexit(stop_at_exit);
    }
    if (mode == AT_ONCE || !delay_ns) begin_capture();
    if (mode == BY_TIME && !delay_ns && !duration_ns) delay_ns = UINT64_MAX;
    is_flushing = start_flushing();
    return 0;
}

/* Say how a recording is to begin: BY_TIME as TRACEPROF_DELAY_S and TRACEPROF_DURATION_S say, AT_ONCE, or
 * WHEN_TOLD by traceprof_capture. */
EXPORTED void traceprof_plan(int how) { mode = how; }

/* Begin to record, unless it has. Returns 0, else traceprof_why says why not. */
EXPORTED int traceprof_start(void) {
    pthread_mutex_lock(&state_lock);
    int failed = start();
    pthread_mutex_unlock(&state_lock);
    return failed;
}

EXPORTED const char *traceprof_why(void) { return why; }

/* Let records through, or no longer. */
EXPORTED void traceprof_capture(int on) {
    pthread_mutex_lock(&state_lock);
    if (is_live && on && !is_capturing) begin_capture();
    if (is_live && !on && is_capturing) {
        end_capture();
        CUPTI.FlushAll(0);
    }
    pthread_mutex_unlock(&state_lock);
}

/* FlushAll comes back while CUPTI's own thread is still inside the last callback: wait for what CUPTI
 * has, as long as something comes; a buffer that nothing was written to may never come. */
static void wait_for_buffers(void) {
    struct timespec a_moment = {0, 1000000};
    uint64_t seen = 0;
    for (int n_waited = 0, n_quiet = 0; n_waited < 2000 && n_quiet < 300; n_waited++, n_quiet++) {
        pthread_mutex_lock(&pool_lock);
        int is_done = !n_out;
        if (n_completed != seen) n_quiet = 0;
        seen = n_completed;
        pthread_mutex_unlock(&pool_lock);
        if (is_done) return;
        nanosleep(&a_moment, NULL);
        if (n_waited % 100 == 99) CUPTI.FlushAll(1);
    }
}

/* Write what CUPTI has, a kernel that still runs without its end. At the exit of a program CUDA may be
 * gone already: there CUPTI is asked for nothing after that. */
static int stop(int is_at_exit) {
    size_t n_dropped = 0;
    pthread_mutex_lock(&state_lock);
    if (!is_live || getpid() != owner) {
        pthread_mutex_unlock(&state_lock);
        return 1;
    }
    pthread_mutex_lock(&wake_lock);
    is_ending = 1;
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&wake_lock);
    pthread_mutex_unlock(&state_lock); /* the thread may wait for it */
    if (is_flushing) pthread_join(flusher, NULL);
    pthread_mutex_lock(&state_lock);
    if (!is_at_exit) end_capture();
    CUPTI.FlushAll(1);
    wait_for_buffers();
    write_devices();
    write_clocks();
    CUPTI.GetDropped(NULL, 0, &n_dropped);
    is_live = 0;
    pthread_mutex_lock(&file_lock);
    uint64_t last[4] = {n_out, n_refused, thrown_bytes, traceprof_unwritten_bytes()};
    struct extent extent = {0, 0, n_dropped, 0, 0};
    traceprof_spool_write(END, last, sizeof last, &extent);
    traceprof_spool_close();
    pthread_mutex_unlock(&file_lock);
    if (!is_at_exit) CUPTI.Unsubscribe(subscriber);
    if (last[3]) {
        fprintf(stderr, "traceprof: %llu bytes of GPU activity of process %d were not recorded\n",
                (unsigned long long)last[3], (int)owner);
    }
    subscriber = NULL;
    pthread_mutex_unlock(&state_lock);
    return 0;
}

/* End the recording. CUPTI is never finalized: that races with the program's other threads. Returns 1
 * where nothing was recorded. */
EXPORTED int traceprof_stop(void) { return stop(0); }

/* Called by the driver in every process that uses CUDA and has CUDA_INJECTION64_PATH. */
EXPORTED int InitializeInjection(void) {
    if (getenv("TRACEPROF_DIR") && getenv("TRACEPROF_CUPTI") && traceprof_start()) {
        fprintf(stderr, "traceprof: no GPU activity is recorded in process %d: %s\n", (int)getpid(), why);
    }
    return 1;
}
