/* The libcupti of this process: two copies in one process would be two clients, so that one that is
 * loaded is taken first, then one that lies where the program's own libraries do. */
#include "recorder.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cupti traceprof_cupti;

static const struct {
    const char *name;
    size_t at;
    int is_needed;
} FUNCTIONS[] = {
#define NEEDED(name, member) {name, offsetof(struct cupti, member), 1}
#define WANTED(name, member) {name, offsetof(struct cupti, member), 0}
    NEEDED("cuptiGetVersion", GetVersion),
    NEEDED("cuptiGetTimestamp", GetTimestamp),
    NEEDED("cuptiSubscribe", Subscribe),
    NEEDED("cuptiUnsubscribe", Unsubscribe),
    NEEDED("cuptiActivityRegisterCallbacks", RegisterCallbacks),
    NEEDED("cuptiActivityEnable", Enable),
    NEEDED("cuptiActivityDisable", Disable),
    NEEDED("cuptiActivityFlushAll", FlushAll),
    NEEDED("cuptiActivityGetNumDroppedRecords", GetDropped),
    NEEDED("cuptiActivityGetNextRecord", GetNext),
    WANTED("cuptiActivitySetAttribute", SetAttribute),
    WANTED("cuptiGetCallbackName", GetCallbackName),
    WANTED("cuptiGetResultString", GetResultString),
    WANTED("cuptiSetThreadIdType", SetThreadIdType),
    WANTED("cuptiActivityEnableRuntimeApi", EnableRuntimeApi),
    WANTED("cuptiActivityEnableDriverApi", EnableDriverApi),
    WANTED("cuptiSubscribe_v2", Subscribe_v2),
};
static const char *const PLAIN_NAMES[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8"};
static const char *const BESIDE_CUDART[] = {
    "%.*s/%s", "%.*s/../../cuda_cupti/lib/%s", "%.*s/../extras/CUPTI/lib64/%s"};

struct search {
    const char *begins; /* how the name of the file is to begin */
    char path[PATH_MAX];
};

static int look_at(struct dl_phdr_info *info, size_t size, void *found) {
    struct search *search = found;
    const char *path = info->dlpi_name, *slash = path ? strrchr(path, '/') : NULL;
    (void)size;
    if (!path || strncmp(slash ? slash + 1 : path, search->begins, strlen(search->begins))) return 0;
    snprintf(search->path, sizeof search->path, "%s", path);
    return 1;
}

static int is_loaded(struct search *search, const char *begins) {
    search->begins = begins;
    return dl_iterate_phdr(look_at, search);
}

static void *open_first(const char *paths) { /* of a list with colons */
    char path[PATH_MAX];
    while (paths && *paths) {
        size_t length = strcspn(paths, ":");
        snprintf(path, sizeof path, "%.*s", (int)length, paths);
        void *found = *path ? dlopen(path, RTLD_NOW) : NULL;
        if (found) return found;
        paths += length + (paths[length] == ':');
    }
    return NULL;
}

static void *open_cupti(void) {
    struct search search;
    char path[PATH_MAX + 64];
    void *found = NULL;
    if (is_loaded(&search, "libcupti.so") || is_loaded(&search, "libcupti-")) {
        found = dlopen(search.path, RTLD_NOW | RTLD_NOLOAD);
    }
    if (!found) found = open_first(getenv("TRACEPROF_CUPTI_LIBRARIES"));
    if (!found && is_loaded(&search, "libcudart")) {
        char *slash = strrchr(search.path, '/');
        int length = slash ? (int)(slash - search.path) : 0;
        for (size_t i = 0; length && !found && i < 9; i++) {
            snprintf(path, sizeof path, BESIDE_CUDART[i / 3], length, search.path, PLAIN_NAMES[i % 3]);
            found = dlopen(path, RTLD_NOW);
        }
    }
    for (size_t i = 0; !found && i < 3; i++) found = dlopen(PLAIN_NAMES[i], RTLD_NOW);
    return found;
}

/* Find the functions; return 0 where there is no libcupti that has them. */
int traceprof_find_cupti(char *path, size_t size) {
    Dl_info where;
    void *library = open_cupti();
    if (!library) return 0;
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++) {
        void *function = dlsym(library, FUNCTIONS[i].name);
        if (!function && FUNCTIONS[i].is_needed) return 0;
        memcpy((char *)&traceprof_cupti + FUNCTIONS[i].at, &function, sizeof function);
    }
    void *known = dlsym(library, "cuptiGetVersion");
    snprintf(path, size, "%s", dladdr(known, &where) && where.dli_fname ? where.dli_fname : "");
    return 1;
}

/* What in this process may hold CUPTI, as far as its libraries tell. */
const char *traceprof_loaded_profiler(void) {
    static const char *const KNOWN[][2] = {
        {"libToolsInjection", "nsys"},          {"libcuinj", "nvprof"},
        {"libsanitizer", "compute-sanitizer"},  {"libnvperf_host", "Nsight Compute or a GPU counter tool"},
        {"libcudadebugger", "cuda-gdb"},
    };
    struct search search;
    if (getenv("NSYS_PROFILING_SESSION_ID")) return "nsys";
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        if (is_loaded(&search, KNOWN[i][0])) return KNOWN[i][1];
    }
    return "";
}

/* The devices as this process numbers them: rows of {number, capability × 10, multiprocessors, kHz of
 * memory, bits of its bus, unused, bytes of memory (8), id (16), name (96)}, 144 bytes each. The driver
 * is asked, which the process has begun to use. */
size_t traceprof_devices(uint8_t *rows, size_t size) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    int (*count)(int *), (*attribute)(int *, int, int), (*memory)(size_t *, int);
    int (*uuid)(void *, int), (*name)(char *, int, int);
    int n_devices = 0;
    size_t n_rows = 0;
    if (!driver) return 0;
    *(void **)&count = dlsym(driver, "cuDeviceGetCount");
    *(void **)&attribute = dlsym(driver, "cuDeviceGetAttribute");
    *(void **)&memory = dlsym(driver, "cuDeviceTotalMem_v2");
    *(void **)&uuid = dlsym(driver, "cuDeviceGetUuid_v2");
    if (!uuid) *(void **)&uuid = dlsym(driver, "cuDeviceGetUuid");
    *(void **)&name = dlsym(driver, "cuDeviceGetName");
    if (!count || !attribute || !memory || !uuid || !name || count(&n_devices)) return 0;
    for (int device = 0; device < n_devices && (n_rows + 1) * 144 <= size; device++) {
        static const int ASKED[] = {75, 76, 16, 36, 37}; /* of CUdevice_attribute */
        int told[5] = {0};
        size_t n_bytes = 0;
        uint8_t *row = rows + 144 * n_rows++;
        memset(row, 0, 144);
        for (int i = 0; i < 5; i++) attribute(&told[i], ASKED[i], device);
        uint32_t numbers[6] = {(uint32_t)device, (uint32_t)(told[0] * 10 + told[1]), (uint32_t)told[2],
                               (uint32_t)told[3], (uint32_t)told[4], 0};
        memory(&n_bytes, device);
        uint64_t wide = n_bytes;
        memcpy(row, numbers, 24);
        memcpy(row + 24, &wide, 8);
        uuid(row + 32, device);
        name((char *)row + 48, 95, device);
    }
    return n_rows * 144;
}
