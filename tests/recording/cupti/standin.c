/* Stands in for libcupti and libcuda where there is no GPU: the symbols, the protocol of buffers and the
 * sizes of records of each version, as NVIDIA documents them and as a recording on an H100 has them.
 *
 * A buffer is asked for in the thread that makes the first record (from 13.0 on each thread has its
 * own); a kernel has its place when it is launched, before its call, and is filled in when it is done.
 * A worker gives back what is full and complete; FlushAll(0) what is complete, FlushAll(1) everything.
 *
 * STANDIN_VERSION   what cuptiGetVersion says; sizes are those of the newest version up to it
 * STANDIN_BUSY      1: another subscriber is there, 2: one of the second family
 * STANDIN_NO_DRIVER what cuptiSubscribe says without a driver
 * STANDIN_SLOW_US   how late the worker is
 * STANDIN_LOSE      of so many kernels only one is recorded, and its call
 * STANDIN_ZERO_FROM kernels of graphs from this one on have no times
 * STANDIN_NO_CALLS  calls cannot be chosen: what is chosen is not recorded */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define PUT(record, at, type, value) (*(type *)((record) + (at)) = (type)(value))

enum { OK = 0, BAD = 1, NOT_NOW = 7, AT_END = 12, OTHER_FAMILY = 14, NO_SUCH_KIND = 21, HELD = 39 };
enum { COPY = 1, MEMSET = 2, DRIVER = 4, RUNTIME = 5, KERNEL = 10, OVERHEAD = 17, SYNC = 38, GRAPH = 51 };
enum { PER_THREAD_FROM = 130000, REFUSABLE_FROM = 27, CHOOSING_FROM = 23, MOST_CALLS = 1024 };

static const struct {
    uint32_t version;
    uint16_t kernel, copy, set, sync, overhead, graph;
} SIZES[] = {
    {17, 176, 88, 88, 40, 40, 48},      {18, 208, 88, 88, 40, 40, 48},
    {20, 208, 88, 88, 40, 40, 48},      {21, 208, 88, 88, 40, 48, 56},
    {22, 208, 88, 88, 40, 56, 56},      {26, 208, 96, 88, 56, 56, 56},
    {130000, 216, 96, 88, 56, 56, 56},  {130100, 224, 96, 88, 56, 56, 56},
    {130300, 232, 96, 88, 56, 56, 56},  {130400, 248, 112, 104, 56, 56, 56},
    {140000, 264, 120, 112, 64, 64, 64}, /* a version that nobody knows yet */
};

typedef void (*request_t)(uint8_t **, size_t *, size_t *);
typedef void (*complete_t)(void *, uint32_t, uint8_t *, size_t, size_t);
struct buffer {
    struct buffer *next;
    uint8_t *bytes;
    size_t size, used;
    long thread;
    int n_open, is_full; /* n_open: kernels that are not done */
};
struct pending {
    struct buffer *buffer;
    size_t at;
    int has_no_times;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct buffer *buffers;
static struct pending queue[1 << 20];
static size_t queue_first, queue_last;
static request_t on_request;
static complete_t on_complete;
static uint8_t is_on[64], is_chosen[2][MOST_CALLS];
static size_t n_dropped;
static uint32_t last_id;
static uint64_t n_launched, n_of_graphs;
static int is_subscribed, is_working;
static char names[4][32] = {"_Z4gemmPfS_S_i", "void elementwise<float>", "softmax_warp", "triton_jit_a"};

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}
static uint32_t version(void) { return (uint32_t)setting("STANDIN_VERSION", 130001); }
static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
static size_t size_of(uint32_t kind) {
    static int place = -1;
    if (place < 0) {
        place = 0;
        for (int i = 0; i < (int)(sizeof SIZES / sizeof *SIZES); i++) {
            if (SIZES[i].version <= version()) place = i;
        }
    }
    switch (kind) {
    case COPY: return SIZES[place].copy;
    case MEMSET: return SIZES[place].set;
    case DRIVER:
    case RUNTIME: return 40;
    case 3:
    case KERNEL: return SIZES[place].kernel;
    case OVERHEAD: return SIZES[place].overhead;
    case SYNC: return SIZES[place].sync;
    case GRAPH: return SIZES[place].graph;
    default: return 0;
    }
}

/* --- buffers */
static void give_back(int flag) { /* -1: what is full and complete */
    for (;;) {
        pthread_mutex_lock(&lock);
        struct buffer **place = &buffers, *found;
        while ((found = *place) && !(flag == 1 || (!found->n_open && (flag == 0 || found->is_full)))) {
            place = &found->next;
        }
        if (found) {
            *place = found->next;
            for (size_t i = queue_first; found->n_open && i < queue_last; i++) {
                struct pending *one = &queue[i % (sizeof queue / sizeof *queue)];
                if (one->buffer == found) one->buffer = NULL;
            }
        }
        pthread_mutex_unlock(&lock);
        if (!found) return;
        if (flag < 0 && setting("STANDIN_SLOW_US", 0)) usleep((useconds_t)setting("STANDIN_SLOW_US", 0));
        if (on_complete) on_complete(NULL, 0, found->bytes, found->size, found->used);
        free(found);
    }
}

static void *work(void *unused) {
    for (;;) {
        usleep(2000);
        give_back(-1);
    }
    return unused;
}

/* Make room for a record: its place, and the buffer that it is in. The lock is held, but for a moment. */
static uint8_t *make_room(int kind, struct buffer **in) {
    long thread = version() >= PER_THREAD_FROM ? syscall(SYS_gettid) : 0;
    size_t size = size_of(kind);
    struct buffer *found = buffers;
    if (!on_request) return NULL;
    while (found && (found->is_full || found->thread != thread)) found = found->next;
    if (found && found->used + size > found->size) {
        found->is_full = 1;
        found = NULL;
    }
    if (!found) {
        uint8_t *bytes = NULL;
        size_t room = 0, most = 0;
        pthread_mutex_unlock(&lock);
        on_request(&bytes, &room, &most);
        pthread_mutex_lock(&lock);
        if (!bytes && version() < REFUSABLE_FROM) abort(); /* as the real one crashes */
        if (!bytes || room < size) {
            n_dropped++;
            return NULL;
        }
        for (size_t i = 0; version() >= REFUSABLE_FROM && i < room; i += 4096) {
            if (bytes[i]) abort(); /* it was promised to be of zeroes */
        }
        found = calloc(1, sizeof *found);
        found->bytes = bytes;
        found->size = room;
        found->thread = thread;
        found->next = buffers;
        buffers = found;
    }
    uint8_t *record = found->bytes + found->used;
    found->used += size;
    PUT(record, 0, uint32_t, kind);
    *in = found;
    return record;
}

/* --- what a program does */
static void call(int kind, uint32_t number, uint64_t start, uint32_t id) {
    struct buffer *in;
    uint8_t *record;
    if (!is_on[kind] && (!is_chosen[kind == RUNTIME][number] || setting("STANDIN_NO_CALLS", 0))) return;
    if (!(record = make_room(kind, &in))) return;
    PUT(record, 4, uint32_t, number);
    PUT(record, 8, uint64_t, start);
    PUT(record, 16, uint64_t, start + 4000);
    PUT(record, 24, uint32_t, getpid());
    PUT(record, 28, uint32_t, syscall(SYS_gettid));
    PUT(record, 32, uint32_t, id);
}

static void copy_or_set(int kind, uint32_t id, uint64_t start, uint64_t n_bytes, int direction) {
    struct buffer *in;
    uint8_t *record;
    if (!is_on[kind] || !(record = make_room(kind, &in))) return;
    if (kind == COPY) {
        PUT(record, 4, uint8_t, direction);
        PUT(record, 5, uint8_t, direction == 1 ? 1 : 3);
        PUT(record, 6, uint8_t, direction == 1 ? 3 : 1);
    } else {
        PUT(record, 50, uint16_t, 2);
    }
    PUT(record, 8, uint64_t, n_bytes);
    PUT(record, 16, uint64_t, start + 6000);
    PUT(record, 24, uint64_t, start + 6000 + n_bytes / 10);
    PUT(record, 36, uint32_t, 1);
    PUT(record, 40, uint32_t, 7);
    PUT(record, 44, uint32_t, id);
}

static void kernel(uint32_t id, uint64_t start, int n_nodes, int node) {
    struct buffer *in;
    uint8_t *record;
    if (!is_on[KERNEL] || !(record = make_room(KERNEL, &in))) return;
    PUT(record, 6, uint16_t, 32);
    PUT(record, 16, uint64_t, start + 8000 + 3000 * (uint64_t)node);
    PUT(record, 44, uint32_t, 1);
    PUT(record, 48, uint32_t, 7);
    for (int i = 0; i < 3; i++) PUT(record, 52 + 4 * i, int32_t, i ? 1 : 132);
    for (int i = 0; i < 3; i++) PUT(record, 64 + 4 * i, int32_t, i ? 1 : 256);
    PUT(record, 80, int32_t, 1024);
    PUT(record, 92, uint32_t, id);
    PUT(record, 104, const char *, names[(id / 2 + (uint32_t)node) % 4]);
    int has_no_times = 0;
    if (n_nodes) {
        PUT(record, 144, uint64_t, 0x500000000ull + (uint64_t)node);
        PUT(record, 156, uint32_t, 5);
        has_no_times = (long)++n_of_graphs > setting("STANDIN_ZERO_FROM", 1L << 60);
    }
    in->n_open++;
    queue[queue_last++ % (sizeof queue / sizeof *queue)] =
        (struct pending){in, (size_t)(record - in->bytes), has_no_times};
}

static void whole_graph(uint32_t id, uint64_t start, int n_nodes) {
    struct buffer *in;
    uint8_t *record;
    if (!(record = make_room(GRAPH, &in))) return;
    PUT(record, 4, uint32_t, id);
    PUT(record, 8, uint64_t, start + 8000);
    PUT(record, 16, uint64_t, start + 8000 + 3000 * (uint64_t)n_nodes);
    PUT(record, 28, uint32_t, 5);
    PUT(record, 32, uint32_t, 1);
    PUT(record, 36, uint32_t, 7);
}

/* Launch kernels: by the runtime, by_driver, or as graphs of n_nodes each; with calls of no interest. */
EXPORTED void standin_launch(int n_launches, int by_driver, int n_nodes) {
    long lose = setting("STANDIN_LOSE", 0);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_launches; i++) {
        uint32_t id = ++last_id;
        uint64_t start = now_ns();
        if (lose && n_launched++ % (uint64_t)lose) continue;
        if (n_nodes && is_on[GRAPH]) {
            whole_graph(id, start, n_nodes);
        } else {
            for (int node = 0; node < (n_nodes ? n_nodes : 1); node++) kernel(id, start, n_nodes, node);
        }
        call(by_driver ? DRIVER : RUNTIME, by_driver ? 307 : n_nodes ? 311 : 211, start, id);
        call(RUNTIME, 17, start + 4500, ++last_id);
    }
    pthread_mutex_unlock(&lock);
}

/* The device is done with its n oldest kernels. */
EXPORTED void standin_finish(long n_kernels) {
    pthread_mutex_lock(&lock);
    for (; n_kernels && queue_first < queue_last; n_kernels--, queue_first++) {
        struct pending *one = &queue[queue_first % (sizeof queue / sizeof *queue)];
        if (!one->buffer) continue;
        uint8_t *record = one->buffer->bytes + one->at;
        uint64_t end = *(uint64_t *)(record + 16) + 2500;
        if (one->has_no_times) end = 0, PUT(record, 16, uint64_t, 0);
        PUT(record, 24, uint64_t, end);
        PUT(record, 32, uint64_t, end);
        one->buffer->n_open--;
    }
    pthread_mutex_unlock(&lock);
}

EXPORTED void standin_copy(int direction, uint64_t n_bytes) {
    pthread_mutex_lock(&lock);
    uint32_t id = ++last_id;
    uint64_t start = now_ns();
    copy_or_set(direction ? COPY : MEMSET, id, start, n_bytes, direction);
    call(RUNTIME, direction ? 41 : 51, start, id);
    pthread_mutex_unlock(&lock);
}

/* Wait for the device, as cudaDeviceSynchronize does. */
EXPORTED void standin_synchronize(void) {
    struct buffer *in;
    uint8_t *record;
    standin_finish(1L << 40);
    pthread_mutex_lock(&lock);
    uint32_t id = ++last_id;
    uint64_t start = now_ns();
    if (is_on[SYNC] && (record = make_room(SYNC, &in))) {
        PUT(record, 4, uint32_t, 4);
        PUT(record, 8, uint64_t, start + 100);
        PUT(record, 16, uint64_t, start + 900);
        PUT(record, 24, uint32_t, id);
        PUT(record, 28, uint32_t, 1);
        PUT(record, 32, int32_t, -1);
    }
    call(RUNTIME, 165, start, id);
    pthread_mutex_unlock(&lock);
}

/* Launch and finish many, a thousand at a time. */
EXPORTED void standin_run(long n_thousands, int n_nodes) {
    while (n_thousands-- > 0) {
        standin_launch(n_nodes ? 1000 / n_nodes : 1000, 0, n_nodes);
        standin_finish(1000);
    }
}

EXPORTED void standin_foreign_buffer(void) { /* one that the recorder never gave */
    uint8_t *bytes = calloc(1, 4096);
    if (on_complete) on_complete(NULL, 0, bytes, 4096, 80);
    free(bytes);
}

EXPORTED void standin_rename(void) { names[3][11]++; } /* a module is unloaded, another takes its place */

/* --- libcupti */
EXPORTED int cuptiGetVersion(uint32_t *found) { return *found = version(), OK; }
EXPORTED int cuptiGetTimestamp(uint64_t *ns) { return *ns = now_ns(), OK; }
EXPORTED int cuptiGetResultString(int code, const char **text) {
    return *text = code == 15 ? "CUPTI_ERROR_NOT_INITIALIZED" : "CUPTI_ERROR_UNKNOWN", OK;
}
EXPORTED int cuptiSetThreadIdType(int type) { return type == 1 ? OK : BAD; }

EXPORTED int cuptiSubscribe(void **handle, void *callback, void *data) {
    (void)callback, (void)data;
    if (setting("STANDIN_NO_DRIVER", 0)) return (int)setting("STANDIN_NO_DRIVER", 0);
    if (setting("STANDIN_BUSY", 0) == 2) return OTHER_FAMILY;
    if (is_subscribed || setting("STANDIN_BUSY", 0)) return version() < 20 ? AT_END : HELD;
    is_subscribed = 1;
    return *handle = &is_subscribed, OK;
}
EXPORTED int cuptiSubscribe_v2(void **handle, void *callback, void *data, void *asked) {
    struct {
        size_t size;
        const char *name;
        char *old_name;
        size_t old_size;
    } *parameters = asked;
    (void)handle, (void)callback, (void)data;
    if (version() < 130000) return BAD;
    snprintf(parameters->old_name, parameters->old_size, "CUPTI for the monitor");
    return HELD;
}
EXPORTED int cuptiUnsubscribe(void *handle) {
    if (handle != &is_subscribed || !is_subscribed) return BAD;
    return is_subscribed = 0, OK;
}
EXPORTED int cuptiActivityRegisterCallbacks(request_t request, complete_t complete) {
    pthread_t worker;
    on_request = request;
    on_complete = complete;
    if (!is_working++) pthread_create(&worker, NULL, work, NULL);
    return OK;
}
EXPORTED int cuptiActivityEnable(int kind) {
    if (kind <= 0 || kind >= 64 || !size_of((uint32_t)kind)) return NO_SUCH_KIND;
    return is_on[kind] = 1, OK;
}
EXPORTED int cuptiActivityDisable(int kind) {
    if (kind > 0 && kind < 64) is_on[kind] = 0;
    return OK;
}
static int choose(int domain, uint32_t number, uint8_t on) {
    if (version() < CHOOSING_FROM || number >= MOST_CALLS) return BAD;
    return is_chosen[domain][number] = on, OK;
}
EXPORTED int cuptiActivityEnableRuntimeApi(uint32_t number, uint8_t on) { return choose(1, number, on); }
EXPORTED int cuptiActivityEnableDriverApi(uint32_t number, uint8_t on) { return choose(0, number, on); }
EXPORTED int cuptiGetCallbackName(int domain, uint32_t number, const char **name) {
    static const struct {
        int domain;
        uint32_t number;
        const char *name;
    } KNOWN[] = {
        {2, 17, "cudaGetDevice_v3020"},      {2, 41, "cudaMemcpyAsync_v3020"},
        {2, 51, "cudaMemsetAsync_v3020"},    {2, 165, "cudaDeviceSynchronize_v3020"},
        {2, 211, "cudaLaunchKernel_v7000"},  {2, 311, "cudaGraphLaunch_v10000"},
        {1, 307, "cuLaunchKernel"},          {1, 277, "cuMemcpyHtoD_v2"},
        {1, 279, "cuMemcpyDtoH_v2"},         {1, 298, "cuMemsetD8_v2"},
        {1, 17, "cuCtxSynchronize"},
    };
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        if (KNOWN[i].domain == domain && KNOWN[i].number == number) return *name = KNOWN[i].name, OK;
    }
    static const char OTHER[] = "other";
    return number < 500 ? (*name = OTHER, OK) : BAD;
}
EXPORTED int cuptiActivityFlushAll(uint32_t flag) {
    if (!on_complete) return NOT_NOW;
    give_back(flag & 1);
    return OK;
}
EXPORTED int cuptiActivitySetAttribute(int attribute, size_t *size, void *value) {
    return attribute == 5 && *size == 1 && *(uint8_t *)value == 1 ? OK : BAD;
}
EXPORTED int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *found) {
    (void)context, (void)stream;
    if (!is_subscribed) abort(); /* as the real one does after a subscription that failed */
    pthread_mutex_lock(&lock);
    *found = n_dropped;
    n_dropped = 0;
    pthread_mutex_unlock(&lock);
    return OK;
}
EXPORTED int cuptiActivityGetNextRecord(uint8_t *bytes, size_t size, uint8_t **record) {
    uint8_t *next = *record ? *record + size_of(*(uint32_t *)*record) : bytes;
    if (next >= bytes + size) return AT_END;
    if (!size_of(*(uint32_t *)next)) return NO_SUCH_KIND;
    return *record = next, OK;
}

/* --- libcuda, as far as the trial needs it */
EXPORTED int cuInit(unsigned flags) {
    static int is_done;
    const char *path = getenv("CUDA_INJECTION64_PATH");
    (void)flags;
    if (is_done++ || !path) return OK;
    void *library = dlopen(path, RTLD_NOW);
    int (*inject)(void) = NULL;
    if (library) *(void **)&inject = dlsym(library, "InitializeInjection");
    if (inject) inject();
    return OK;
}
EXPORTED int cuDeviceGet(int *device, int number) { return *device = number, OK; }
EXPORTED int cuDeviceGetCount(int *count) { return *count = 1, OK; }
EXPORTED int cuDeviceGetName(char *name, int size, int device) {
    (void)device;
    return snprintf(name, (size_t)size, "Stand-in 80GB"), OK;
}
EXPORTED int cuDeviceGetUuid_v2(uint8_t *id, int device) {
    for (int i = 0; i < 16; i++) id[i] = (uint8_t)(16 * device + i);
    return OK;
}
EXPORTED int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    return *bytes = (size_t)80 << 30, OK;
}
EXPORTED int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 75 ? 9 : attribute == 16 ? 132 : attribute == 36 ? 2619000 : attribute == 37 ? 5120 : 0;
    return OK;
}
EXPORTED int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    return *context = &lock, OK;
}
EXPORTED int cuCtxSetCurrent(void *context) { return context ? OK : BAD; }
EXPORTED int cuModuleLoadData(void **module, const void *image) { return *module = (void *)image, OK; }
EXPORTED int cuModuleGetFunction(void **function, void *module, const char *name) {
    return *function = module, name ? OK : BAD;
}
EXPORTED int cuMemAlloc_v2(uint64_t *pointer, size_t n_bytes) {
    return *pointer = (uint64_t)(uintptr_t)malloc(n_bytes), OK;
}
EXPORTED int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                            unsigned bz, unsigned shared, void *stream, void **arguments, void **extra) {
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared, (void)stream, (void)arguments, (void)extra;
    standin_launch(1, 1, 0);
    return OK;
}
static int driver_copy(int direction, uint32_t number, uint64_t n_bytes) {
    pthread_mutex_lock(&lock);
    uint32_t id = ++last_id;
    uint64_t start = now_ns();
    copy_or_set(direction ? COPY : MEMSET, id, start, n_bytes, direction);
    call(DRIVER, number, start, id);
    pthread_mutex_unlock(&lock);
    return OK;
}
EXPORTED int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n_bytes) {
    (void)to, (void)from;
    return driver_copy(1, 277, n_bytes);
}
EXPORTED int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n_bytes) {
    (void)to, (void)from;
    return driver_copy(2, 279, n_bytes);
}
EXPORTED int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t n_bytes) {
    (void)to, (void)value;
    return driver_copy(0, 298, n_bytes);
}
EXPORTED int cuCtxSynchronize(void) { return standin_synchronize(), OK; }
