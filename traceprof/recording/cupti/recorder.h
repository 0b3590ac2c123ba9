/* What the files of this library share. It is loaded into the recorded program: it needs no header
 * of CUDA, calls the libcupti that the program has, and prints one line at most. */
#ifndef TRACEPROF_RECORDER_H
#define TRACEPROF_RECORDER_H
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>

enum { KINDS = 256 }; /* more than any libcupti has */
enum { /* those that are recorded, as CUPTI numbers them */
    COPY = 1, MEMSET = 2, SERIAL_KERNEL = 3, DRIVER = 4, RUNTIME = 5, KERNEL = 10, OVERHEAD = 17,
    PEER_COPY = 22, SYNCHRONIZATION = 38, GRAPH = 51
};

/* The functions of libcupti, as its headers declare them; the last ones are not in all versions. */
struct cupti {
    int (*GetVersion)(uint32_t *);
    int (*GetTimestamp)(uint64_t *);
    int (*Subscribe)(void **, void *, void *);
    int (*Unsubscribe)(void *);
    int (*RegisterCallbacks)(void *, void *);
    int (*Enable)(int);
    int (*Disable)(int);
    int (*FlushAll)(uint32_t);
    int (*GetDropped)(void *, uint32_t, size_t *);
    int (*GetNext)(uint8_t *, size_t, uint8_t **);
    int (*SetAttribute)(int, size_t *, void *);
    int (*GetCallbackName)(int, uint32_t, const char **);
    int (*GetResultString)(int, const char **);
    int (*SetThreadIdType)(int);
    int (*EnableRuntimeApi)(uint32_t, uint8_t);
    int (*EnableDriverApi)(uint32_t, uint8_t);
    int (*Subscribe_v2)(void **, void *, void *, void *);
};
extern struct cupti traceprof_cupti;
#define CUPTI traceprof_cupti

/* libcupti.c: the library of the process, and what is around it. */
int traceprof_find_cupti(char *path, size_t size);
const char *traceprof_loaded_profiler(void);
size_t traceprof_devices(uint8_t *rows, size_t size);

/* spool.c: the file. Callers of these hold the lock of the file, but for open and size. */
enum chunk_kind { STEPS = 1, NAMES, RECORDS, CLOCKS, NOTE, DEVICES, END };
struct extent { /* what is known of the records of a buffer */
    uint64_t first_ns, last_ns, n_dropped;
    uint32_t n_lost, n_of_graphs;
};
int traceprof_spool_open(const char *path, uint32_t version, uint64_t most_bytes);
void traceprof_spool_write(enum chunk_kind kind, const void *body, size_t n_bytes,
                           const struct extent *extent);
void traceprof_spool_records(const uint8_t *records, size_t n_bytes, uint64_t n_dropped);
int traceprof_spool_is_full(void);
void traceprof_spool_close(void);
uint64_t traceprof_unwritten_bytes(void);
size_t traceprof_probe_steps(uint32_t *pairs);
#endif
