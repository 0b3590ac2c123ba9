/* The rows in leaf pages of a SQLite table, decoded into columns.
 *
 * A row at a time; see https://www.sqlite.org/fileformat2.html.
 * It trusts nothing: every pointer is checked against its page before it is followed, and what is
 * not plain is either marked (a row that SQLite itself has to read) or refused (all of them).
 *
 * Plain C99 without Python, called by formats/sqlite/pages/blocks.py, several threads at a time:
 * no state is kept.
 */

#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

enum { INTEGER = 0, REAL = 1, TEXT = 2 };               /* how a column is wanted */
/* Why nothing is returned: */
enum { DAMAGED = -1, OUT_OF_ORDER = -2, HUGE_ID = -3, CUT_OFF = -4 };
enum { LEAF = 13, LEAST_CELL = 4, MOST_LENGTHS = 8, AT_ONCE = 16 };

static const int64_t LONGEST_ROW = (int64_t)1 << 27;
static const uint8_t WIDTHS[12] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0};

typedef struct {
    int64_t n_columns;       /* so many columns of each header are looked at */
    const int16_t *slots;    /* column -> its place among the wanted ones, -1: not wanted */
    int64_t n_wanted;
    const int8_t *kinds;     /* of the wanted columns */
    int64_t *const *values;  /* of each: a number per row, of a TEXT where it starts in data */
    int64_t *const *lengths; /* of each TEXT: how many bytes it has */
    int64_t *ids;            /* of each row */
    uint8_t *is_odd;         /* of each row: whether SQLite itself has to read it */
} Wanted;

static uint64_t big_endian(const uint8_t *at) {
    uint64_t found = 0;
    for (int i = 0; i < 8; i++) found = found << 8 | at[i];
    return found;
}

/* Put a varint into `value` and return how many bytes it has; 0: more than `most`. */
static int varint(const uint8_t *at, int64_t most, uint64_t *value) {
    uint64_t found = 0;
    for (int i = 0; i < most && i < MOST_LENGTHS; i++) {
        found = found << 7 | (at[i] & 0x7F);
        if (at[i] < 0x80) {
            *value = found;
            return i + 1;
        }
    }
    return 0;
}

static void put_nothing(const Wanted *wanted, int64_t row, int64_t start) {
    const double nan = NAN;
    for (int64_t slot = 0; slot < wanted->n_wanted; slot++) {
        int64_t value = wanted->kinds[slot] == TEXT ? start : INT64_MIN;
        if (wanted->kinds[slot] == REAL) memcpy(&value, &nan, 8);
        wanted->values[slot][row] = value;
        if (wanted->kinds[slot] == TEXT) wanted->lengths[slot][row] = 0;
    }
}

/* Put one value; return 0 where it is not of the kind that is wanted. */
static int put(const Wanted *wanted, int slot, int64_t row, uint64_t type, const uint8_t *data,
               int64_t at) {
    int kind = wanted->kinds[slot];
    int64_t number = INT64_MIN;
    if (kind == TEXT) {
        if (type && type < 12) return 0;
        wanted->values[slot][row] = at;
        wanted->lengths[slot][row] = type ? (int64_t)(type - 12) / 2 : 0;
        return 1;
    }
    if (type > 9 || (type == 7 && kind == INTEGER)) return 0;
    if (type == 8 || type == 9) {
        number = (int64_t)type - 8;
    } else if (type) {
        uint64_t bytes = big_endian(data + at);
        int shift = 64 - 8 * WIDTHS[type];
        number = (int64_t)bytes;
        if (shift) number = (int64_t)bytes < 0 ? ~(~number >> shift) : number >> shift;
        if (number == INT64_MIN && kind == INTEGER) return 0; /* it stands for NULL */
    }
    if (kind == REAL && type != 7) {
        const double real = type ? (double)number : NAN;
        memcpy(&number, &real, 8);
    }
    wanted->values[slot][row] = number;
    return 1;
}

/* Decode the row of `size` bytes at `at`, of which `local` stand in its page.
 *
 * Return 1, or 0 where SQLite has to read it, or DAMAGED. */
static int decode_row(const uint8_t *data, int64_t at, int64_t size, int64_t local,
                      const Wanted *wanted, int64_t row) {
    if (local < 1) return DAMAGED;
    const int64_t header = data[at];
    if (header >= 0x80 || header > local) return header > size && header < 0x80 ? DAMAGED : 0;
    int64_t place = 1, offset = header, column = 0;
    for (; column < wanted->n_columns && place < header; column++) {
        uint64_t type = data[at + place];
        int length = 1;
        if (type >= 0x80) length = varint(data + at + place, header - place, &type);
        if (!length) return 0;
        place += length;
        uint64_t width = type < 12 ? WIDTHS[type] : (type - 12) / 2;
        if (width > (uint64_t)(size - offset)) return DAMAGED;
        int slot = wanted->slots[column];
        if (slot >= 0) {
            if (offset + (int64_t)width > local) return 0; /* it goes on in other pages */
            if (!put(wanted, slot, row, type, data, at + offset)) return 0;
        }
        offset += (int64_t)width;
    }
    if (column < wanted->n_columns) return 0;
    if (place == header && offset != size) return DAMAGED;
    return 1;
}

/* Decode the rows of the leaf in `page`, which are put from `row` on, of at most `room` in all.
 *
 * Return how many rows it has, or why not. */
static int64_t decode_leaf(const uint8_t *data, int64_t start, int64_t page_bytes,
                           const int64_t bounds[2], const Wanted *wanted, int64_t row,
                           int64_t room) {
    const int64_t most_local = page_bytes - 35;
    const int64_t least_local = (page_bytes - 12) * 32 / 255 - 23;
    const int64_t end = start + page_bytes;
    const int64_t n_rows = (int64_t)data[start + 3] << 8 | data[start + 4];
    const int64_t after = 8 + 2 * n_rows;
    int64_t last = bounds[0];
    if (data[start] != LEAF || n_rows > (page_bytes - 8) / (2 + LEAST_CELL)) return DAMAGED;
    if (n_rows > room) return OUT_OF_ORDER; /* more than there are row ids between the bounds */
    for (int64_t cell = 0; cell < n_rows; cell++, row++) {
        const uint8_t *pointer = data + start + 8 + 2 * cell;
        const int64_t place = (int64_t)pointer[0] << 8 | pointer[1];
        if (place < after || place > page_bytes - LEAST_CELL) return DAMAGED;
        int64_t at = start + place;
        uint64_t size, id;
        const int length = varint(data + at, end - at, &size);
        if (!length) return HUGE_ID;
        at += length;
        const int more = varint(data + at, end - at, &id);
        if (!more || length + more > MOST_LENGTHS) return HUGE_ID;
        at += more;
        if (size > (uint64_t)LONGEST_ROW) return DAMAGED;
        if ((int64_t)id <= last || (int64_t)id > bounds[1]) return OUT_OF_ORDER;
        last = (int64_t)id;
        const int64_t local = (int64_t)size <= most_local ? (int64_t)size : least_local;
        if (local > end - at) return DAMAGED;
        const int found = decode_row(data, at, (int64_t)size, local, wanted, row);
        if (found < 0) return found;
        wanted->ids[row] = last;
        wanted->is_odd[row] = (uint8_t)!found;
        if (!found) put_nothing(wanted, row, at);
    }
    return n_rows;
}

/* Read `n_bytes` of the file from `offset` on; return 0 where it has not so many. */
static int read_bytes(int file, uint8_t *into, int64_t n_bytes, int64_t offset) {
    while (n_bytes) {
        const ssize_t got = pread(file, into, (size_t)n_bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        into += got, offset += got, n_bytes -= got;
    }
    return 1;
}

/* Read some leaves of a file and decode their rows; return how many there are, or why not.
 *
 * pages: their numbers, from 1 on. lows, highs: of each, between which row ids its rows are (above
 * the one, not above the other). data: memory for `n_kept` pages and 8 bytes more: for all of them
 * where texts are looked for in it afterwards, else those that are read at a time.
 * values, lengths, ids, is_odd: memory for `room` rows. n_rows: is filled with how many rows each
 * page has. */
EXPORTED int64_t traceprof_decode(int file, const int64_t *pages, int64_t n_pages,
                                  int64_t page_bytes, const int64_t *lows, const int64_t *highs,
                                  uint8_t *data, int64_t n_kept, int64_t n_columns,
                                  const int16_t *slots, int64_t n_wanted, const int8_t *kinds,
                                  int64_t *const *values, int64_t *const *lengths, int64_t *ids,
                                  uint8_t *is_odd, int64_t room, int64_t *n_rows) {
    const Wanted wanted = {n_columns, slots, n_wanted, kinds, values, lengths, ids, is_odd};
    const int64_t at_once = n_kept < n_pages ? n_kept : AT_ONCE;
    int64_t row = 0;
    for (int64_t first = 0; first < n_pages;) {
        int64_t n = 1;
        while (n < at_once && first + n < n_pages && pages[first + n] == pages[first] + n) n++;
        uint8_t *place = data + (n_kept < n_pages ? 0 : first * page_bytes);
        if (!read_bytes(file, place, n * page_bytes, (pages[first] - 1) * page_bytes))
            return CUT_OFF;
        for (int64_t page = first; page < first + n; page++) {
            const int64_t bounds[2] = {lows[page], highs[page]};
            const int64_t start = place - data + (page - first) * page_bytes;
            n_rows[page] = decode_leaf(data, start, page_bytes, bounds, &wanted, row, room - row);
            if (n_rows[page] < 0) return n_rows[page];
            row += n_rows[page];
        }
        first += n;
    }
    return row;
}

static int is_same(const int64_t *numbers, int bits, const int64_t *devices, int64_t one,
                   int64_t other) {
    const uint64_t differs = (uint64_t)numbers[one] ^ (uint64_t)numbers[other];
    return differs >> bits == 0 && (!devices || devices[one] == devices[other]);
}

/* Count the rows of each owner: of each number without its lowest bits and, where there are devices,
 * each device. Return how many owners there are, at most `room`: of each, `firsts` says which row is
 * its first, `counts` how many it has. -1: there are more. */
EXPORTED int64_t traceprof_owners(int64_t n, const int64_t *numbers, int bits,
                                  const int64_t *devices, int64_t room, int64_t *firsts,
                                  int64_t *counts) {
    int64_t found = 0, owner = 0;
    for (int64_t row = 0; row < n; row++) {
        /* Neighbors are mostly of the same owner. */
        if (owner == found || !is_same(numbers, bits, devices, firsts[owner], row))
            for (owner = 0; owner < found; owner++)
                if (is_same(numbers, bits, devices, firsts[owner], row)) break;
        if (owner == found) {
            if (found == room) return -1;
            firsts[found] = row;
            counts[found++] = 0;
        }
        counts[owner]++;
    }
    return found;
}

static uint8_t in_lower_case(uint8_t letter) {
    return letter >= 'A' && letter <= 'Z' ? letter | 0x20 : letter;
}

/* Return whether a text of `length` bytes begins with a word, which ends with a zero byte. */
static int begins_with(const uint8_t *text, int64_t length, const uint8_t *word) {
    for (int64_t at = 0; word[at]; at++)
        if (at == length || in_lower_case(text[at]) != word[at]) return 0;
    return 1;
}

/* Tell which of `n` texts contain one of some words, whatever the case of their ASCII letters.
 *
 * Texts start at `starts` in `data`, and end after `lengths` bytes or at a zero byte. The words, in
 * lower case, each end with a zero byte, and the last one with two. */
EXPORTED void traceprof_contains(int64_t n, const uint8_t *data, const int64_t *starts,
                                 const int64_t *lengths, const uint8_t *words, uint8_t *found) {
    uint8_t begins[256] = {1}, continues[256][256] = {{0}}; /* by first letters, and the second */
    for (const uint8_t *word = words; *word; word++) {
        const uint8_t letters[2] = {
            *word, *word >= 'a' && *word <= 'z' ? (uint8_t)(*word & ~0x20) : *word};
        for (int i = 0; i < 2; i++) {
            begins[letters[i]] = 1;
            if (!word[1]) memset(continues[letters[i]], 1, sizeof continues[letters[i]]);
            continues[letters[i]][word[1]] = 1;
        }
        while (*word) word++;
    }
    for (int64_t row = 0; row < n; row++) {
        const uint8_t *text = data + starts[row], *end = text + lengths[row];
        int is_found = 0;
        for (; text < end && !is_found; text++) {
            while (text < end && !begins[*text]) text++;
            if (text == end || !*text) break;
            if (!continues[*text][text + 1 < end ? in_lower_case(text[1]) : 0]) continue;
            for (const uint8_t *word = words; *word && !is_found; word++) {
                is_found = begins_with(text, end - text, word);
                while (*word) word++;
            }
        }
        found[row] = (uint8_t)is_found;
    }
}
