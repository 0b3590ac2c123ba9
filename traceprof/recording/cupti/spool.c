/* The file that a process leaves: chunks, each with a header of 64 bytes, so that it can be read up
 * to wherever it ends. Buffers of CUPTI are in it as they are, with how far it is from one record of
 * a kind to the next, as the library itself steps, and with the names that their pointers mean. */
#include "recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 0x55435054, /* "TPCU" */ NAME_AT = 104, GRAPH_NODE_AT = 144, PROBE_BYTES = 8192 };

struct header {
    uint32_t magic;
    uint16_t kind, header_bytes;
    uint32_t cupti_version, process;
    uint64_t n_bytes, time_ns, n_dropped, first_ns, last_ns;
    uint32_t n_lost, n_of_graphs;
};
typedef char header_has_64_bytes[sizeof(struct header) == 64 ? 1 : -1];

/* A name by its pointer: its text may change when a module is unloaded and another takes its place. */
struct name {
    const char *text;
    uint64_t hash, seen_in;
};

static int file = -1, is_failed;
static char file_path[4096];
static struct stat opened;
static uint32_t version;
static uint64_t n_written, most, n_unwritten, n_buffers;
static size_t steps[KINDS];
static struct name *names;
static size_t n_slots, n_names;
static uint8_t *text_rows;
static size_t text_bytes, text_room;

/* Whether the descriptor still is the file: a program may close it, and open one of its own, which has the
 * same inode where the file was removed, but not its size. */
static int is_ours(void) {
    struct stat found;
    return file >= 0 && !fstat(file, &found) && found.st_dev == opened.st_dev &&
           found.st_ino == opened.st_ino && (uint64_t)found.st_size == n_written;
}

/* Open the file again where the program has closed it; return whether it is there. */
static int have_file(void) {
    if (file < 0 || is_ours()) return file >= 0;
    file = open(file_path, O_WRONLY | O_CLOEXEC);
    if (is_ours() && lseek(file, (off_t)n_written, SEEK_SET) >= 0) return 1;
    if (file >= 0) close(file);
    file = -1;
    is_failed = 1;
    return 0;
}

/* Make a file of a name that no other program of this process has used: PATH.0.spool, and so on. */
int traceprof_spool_open(const char *path, uint32_t cupti_version, uint64_t most_bytes) {
    file = -1;
    for (int i = 0; file < 0 && i < 1000; i++) {
        int length = snprintf(file_path, sizeof file_path, "%s.%d.spool", path, i);
        if (length < 0 || (size_t)length >= sizeof file_path) break;
        file = open(file_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (file < 0 && errno != EEXIST) break;
    }
    version = cupti_version;
    most = most_bytes;
    n_written = n_unwritten = n_buffers = 0;
    is_failed = file < 0 || fstat(file, &opened);
    if (names) memset(names, 0, n_slots * sizeof *names);
    n_names = 0;
    return file >= 0;
}

void traceprof_spool_close(void) {
    if (is_ours()) close(file);
    file = -1;
}

int traceprof_spool_is_full(void) { return is_failed || (most && n_written > most); }

uint64_t traceprof_unwritten_bytes(void) { return n_unwritten; }

void traceprof_spool_write(enum chunk_kind kind, const void *body, size_t n_bytes,
                           const struct extent *extent) {
    static const uint8_t padding[8];
    struct timespec now;
    struct header head = {MAGIC, (uint16_t)kind, sizeof head, version, (uint32_t)getpid(),
                          n_bytes, 0, 0, 0, 0, 0, 0};
    struct iovec parts[3] = {
        {&head, sizeof head}, {(void *)body, n_bytes}, {(void *)padding, -n_bytes & 7}};
    size_t left = sizeof head + n_bytes + (-n_bytes & 7);
    int place = 0;
    if (!have_file() || (is_failed && kind != END) || (kind <= RECORDS && traceprof_spool_is_full())) {
        n_unwritten += n_bytes;
        return;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    head.time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    if (extent) {
        head.n_dropped = extent->n_dropped;
        head.first_ns = extent->first_ns;
        head.last_ns = extent->last_ns;
        head.n_lost = extent->n_lost;
        head.n_of_graphs = extent->n_of_graphs;
    }
    uint64_t whole = n_written + left;
    while (left) {
        ssize_t done = writev(file, parts + place, 3 - place);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) { /* the disk is full: what is whole stays, and CUPTI is served on */
            if (!ftruncate(file, (off_t)n_written)) lseek(file, (off_t)n_written, SEEK_SET);
            is_failed = 1;
            n_unwritten += n_bytes;
            return;
        }
        left -= (size_t)done;
        while (place < 3 && (size_t)done >= parts[place].iov_len) {
            done -= (ssize_t)parts[place++].iov_len;
        }
        if (place < 3) {
            parts[place].iov_base = (uint8_t *)parts[place].iov_base + done;
            parts[place].iov_len -= (size_t)done;
        }
    }
    n_written = whole;
}

/* How far cuptiActivityGetNextRecord goes from a record to the next, of each kind: the loaded library
 * decides, and this needs neither its headers nor a driver. Every word is the number of the kind, so
 * that the second record is of the same kind wherever it begins. */
size_t traceprof_probe_steps(uint32_t *pairs) {
    size_t n_pairs = 0;
    uint32_t *probe = malloc(PROBE_BYTES);
    memset(steps, 0, sizeof steps);
    for (uint32_t kind = 1; probe && kind < 128; kind++) {
        uint8_t *first = NULL, *second;
        for (size_t i = 0; i < PROBE_BYTES / sizeof *probe; i++) probe[i] = kind;
        if (CUPTI.GetNext((uint8_t *)probe, PROBE_BYTES, &first) || !first) continue;
        second = first;
        if (CUPTI.GetNext((uint8_t *)probe, PROBE_BYTES, &second) || second <= first) continue;
        steps[kind] = (size_t)(second - first);
        pairs[2 * n_pairs] = kind;
        pairs[2 * n_pairs++ + 1] = (uint32_t)steps[kind];
    }
    free(probe);
    return n_pairs;
}

static struct name *slot_of(const char *text) {
    size_t slot = (size_t)((uintptr_t)text * 0x9E3779B97F4A7C15ull >> 20) & (n_slots - 1);
    while (names[slot].text && names[slot].text != text) slot = (slot + 1) & (n_slots - 1);
    return names + slot;
}

static int make_room(void) {
    size_t n_before = n_slots;
    struct name *before = names;
    if ((n_names + 1) * 2 <= n_slots) return 1;
    names = calloc(n_slots ? n_slots * 2 : 1024, sizeof *names);
    if (!names) {
        names = before;
        return 0;
    }
    n_slots = n_slots ? n_slots * 2 : 1024;
    for (size_t i = 0; i < n_before; i++) {
        if (before[i].text) *slot_of(before[i].text) = before[i];
    }
    free(before);
    return 1;
}

/* Take a name into the rows {pointer, length, text} that are written ahead of the buffer, unless it
 * was written with this text already; each pointer is looked at once a buffer. */
static void note_name(const char *text) {
    struct name *slot;
    uint64_t hash = 0xcbf29ce484222325ull, pointer = (uintptr_t)text;
    uint32_t length = 0;
    if (!text || !make_room()) return;
    slot = slot_of(text);
    if (slot->text && slot->seen_in == n_buffers) return;
    for (; text[length]; length++) hash = (hash ^ (uint8_t)text[length]) * 0x100000001b3ull;
    slot->seen_in = n_buffers;
    if (slot->text && slot->hash == hash) return;
    if (text_bytes + 12 + length > text_room) {
        size_t room = 2 * (text_bytes + 12 + length);
        uint8_t *more = realloc(text_rows, room);
        if (!more) return;
        text_rows = more;
        text_room = room;
    }
    if (!slot->text) n_names++;
    slot->text = text;
    slot->hash = hash;
    memcpy(text_rows + text_bytes, &pointer, 8);
    memcpy(text_rows + text_bytes + 8, &length, 4);
    memcpy(text_rows + text_bytes + 12, text, length);
    text_bytes += 12 + length;
}

static uint64_t number_at(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Write a buffer that CUPTI has given back, and before it the names in it that are new. No field has
 * moved since CUDA 11.7; where a record has its times and its graph is all that is looked at. */
void traceprof_spool_records(const uint8_t *records, size_t n_bytes, uint64_t n_dropped) {
    struct extent extent = {0, 0, n_dropped, 0, 0};
    n_buffers++;
    text_bytes = 0;
    for (size_t at = 0; at + 8 <= n_bytes;) {
        uint32_t kind;
        memcpy(&kind, records + at, 4);
        size_t step = kind < KINDS ? steps[kind] : 0;
        if (!step || at + step > n_bytes) break;
        const uint8_t *record = records + at;
        at += step;
        int is_call = kind == RUNTIME || kind == DRIVER;
        if (!is_call && kind != KERNEL && kind != SERIAL_KERNEL && kind != COPY && kind != MEMSET &&
            kind != PEER_COPY && kind != GRAPH) {
            continue;
        }
        int times_at = is_call || kind == GRAPH ? 8 : 16;
        uint64_t start = number_at(record + times_at), end = number_at(record + times_at + 8);
        if (kind == KERNEL || kind == SERIAL_KERNEL) {
            note_name((const char *)(uintptr_t)number_at(record + NAME_AT));
            extent.n_of_graphs += number_at(record + GRAPH_NODE_AT) != 0;
        }
        if (!start || end < start) {
            extent.n_lost += !is_call;
            continue;
        }
        if (!extent.first_ns || start < extent.first_ns) extent.first_ns = start;
        if (end > extent.last_ns) extent.last_ns = end;
    }
    if (text_bytes) traceprof_spool_write(NAMES, text_rows, text_bytes, NULL);
    traceprof_spool_write(RECORDS, records, n_bytes, &extent);
}
