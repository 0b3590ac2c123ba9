/* The events in a JSON array of a Chrome trace, decoded into columns.
 *
 * What formats/kineto/parse.py and columns.py do with msgspec, an event at a time. It takes what is
 * plain, as nearly all is, and refuses the whole text otherwise, which those then read: what is no
 * JSON (RFC 8259), a key twice in an event, an escape in a key, a number with an exponent or with
 * more than three decimals where a time stands, a value of another type than it mostly has.
 *
 * Plain C99 without Python, called by formats/kineto/columns.py: no state is kept. The text ends
 * with a zero, as Python's bytes do, which is no character of JSON: whoever looks at one character
 * after another need not look where the text ends.
 */

#include <stdint.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

/* What comes of an event, columns in this order; those of arguments follow. */
enum { START, DURATION, PROCESS, THREAD, KIND, SHAPE, N_COLUMNS };
/* How an argument is wanted: */
enum { NUMBER, TEXT, GRID, BLOCK, VALUE };
enum { REFUSED = -1 };
enum { MOST_KEYS = 64, N_HEADS = 256, DEEPEST = 64, KIND_WIDTH = 3, SHAPE_WIDTH = 9 };

static const int64_t NO_TIME = INT64_MIN;
static const int64_t MOST_US = 4000000000000000; /* parse.py's _REPRESENTABLE_US */
static const int64_t NULL_TEXT = -1;

typedef struct {
    int64_t *rows;    /* what was numbered: texts by where they stand and their length */
    int32_t *buckets; /* of 1 + their number, 0: free; so many as a power of two */
    int64_t n, room, n_buckets;
} Numbered;

typedef struct {
    const uint8_t *text, *end;
    int64_t absent;
    int64_t n_keys;
    const uint8_t *keys[MOST_KEYS];
    int64_t key_lengths[MOST_KEYS];
    const int8_t *key_kinds;
    uint8_t heads[N_HEADS]; /* hash of a key -> 1 + its number, 0: none */
    int64_t room, n_events;
    int64_t *columns; /* `room` of each */
    int64_t *filled;  /* how many of each column are filled, up to the last that was put */
    Numbered texts, kinds, shapes;
    int64_t *metadata; /* where events of this phase start and end */
    int64_t n_metadata, room_of_metadata;
    /* Of the event that is being read: */
    int64_t values[MOST_KEYS];
    uint64_t present; /* a bit for each value */
    int64_t grid[3], block[3];
    int has_grid;
    unsigned seen; /* a bit for each of FIELDS */
    int64_t start, duration, process, thread, kind[KIND_WIDTH];
} Reader;

/* What is taken of an event: */
enum { PH, CAT, NAME, PID, TID, TS, DUR, ARGS, N_FIELDS };
static const char FIELDS[N_FIELDS][5] = {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"};
static const int64_t FIELD_LENGTHS[N_FIELDS] = {2, 3, 4, 3, 3, 2, 3, 4};

static uint64_t mixed(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

/* Number `n` bytes of the text; REFUSED where there is no room. */
static int64_t text_number(Reader *reader, const uint8_t *at, int64_t n) {
    Numbered *texts = &reader->texts;
    uint64_t hash = (uint64_t)n, word;
    int64_t done = 0;
    if (!n) return 0;
    for (; n - done >= 8; done += 8) {
        memcpy(&word, at + done, 8);
        hash = mixed(hash, word);
    }
    word = 0;
    memcpy(&word, at + done, (size_t)(n - done));
    hash = mixed(hash, word);
    for (uint64_t bucket = hash;; bucket++) {
        int32_t *found = &texts->buckets[bucket & (uint64_t)(texts->n_buckets - 1)];
        if (!*found) {
            if (texts->n == texts->room) return REFUSED;
            texts->rows[2 * texts->n] = at - reader->text;
            texts->rows[2 * texts->n + 1] = n;
            *found = (int32_t)++texts->n;
            return texts->n - 1;
        }
        const int64_t *row = texts->rows + 2 * (*found - 1);
        if (row[1] == n && !memcmp(reader->text + row[0], at, (size_t)n)) return *found - 1;
    }
}

/* Number `width` whole numbers; REFUSED where there is no room. */
static int64_t row_number(Numbered *rows, const int64_t *row, int64_t width) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < width; i++) hash = mixed(hash, (uint64_t)row[i]);
    for (uint64_t bucket = hash;; bucket++) {
        int32_t *found = &rows->buckets[bucket & (uint64_t)(rows->n_buckets - 1)];
        if (!*found) {
            if (rows->n == rows->room) return REFUSED;
            memcpy(rows->rows + width * rows->n, row, (size_t)width * sizeof *row);
            *found = (int32_t)++rows->n;
            return rows->n - 1;
        }
        if (!memcmp(rows->rows + width * (*found - 1), row, (size_t)width * sizeof *row))
            return *found - 1;
    }
}

/* What follows return where they end, NULL where they refuse. */

static const uint8_t *space(const uint8_t *at) {
    while (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r') at++;
    return at;
}

static int is_digit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

static int is_hexadecimal(uint8_t byte) {
    return is_digit(byte) || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
}

/* The text that starts behind its quote, up to the other quote. */
static const uint8_t *text_end(const Reader *reader, const uint8_t *at, int *is_escaped) {
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    *is_escaped = 0;
    for (;;) {
        while (reader->end - at >= 8) { /* eight without a quote, a backslash or a control */
            uint64_t word;
            memcpy(&word, at, 8);
            const uint64_t quote = word ^ ones * '"', slash = word ^ ones * '\\';
            const uint64_t low = (word - ones * 0x20) & ~word;
            if ((((quote - ones) & ~quote) | ((slash - ones) & ~slash) | low) & highs) break;
            at += 8;
        }
        while (*at >= 0x20 && *at != '"' && *at != '\\') at++;
        if (*at == '"') return at;
        if (*at != '\\') return NULL;
        *is_escaped = 1;
        if (at[1] == 'u') {
            for (int i = 2; i < 6; i++)
                if (!is_hexadecimal(at[i])) return NULL;
            at += 6;
        } else {
            if (!at[1] || !strchr("\"\\/bfnrt", at[1])) return NULL;
            at += 2;
        }
    }
}

static const uint8_t *digits(const uint8_t *at) {
    if (!is_digit(*at)) return NULL;
    while (is_digit(*at)) at++;
    return at;
}

static const uint8_t *any_number(const uint8_t *at) {
    if (*at == '-') at++;
    const uint8_t *first = at;
    if (!(at = digits(at)) || (*first == '0' && at - first > 1)) return NULL;
    if (*at == '.' && !(at = digits(at + 1))) return NULL;
    if (*at == 'e' || *at == 'E') {
        at++;
        if (*at == '+' || *at == '-') at++;
        at = digits(at);
    }
    return at;
}

static const uint8_t *word(const uint8_t *at, const char *wanted) {
    const size_t n = strlen(wanted);
    return strncmp((const char *)at, wanted, n) ? NULL : at + n;
}

static const uint8_t *any_value(const Reader *reader, const uint8_t *at, int depth) {
    int is_escaped;
    switch (*at) {
    case '"':
        at = text_end(reader, at + 1, &is_escaped);
        return at ? at + 1 : NULL;
    case 't': return word(at, "true");
    case 'f': return word(at, "false");
    case 'n': return word(at, "null");
    case '[':
    case '{': break;
    default: return any_number(at);
    }
    const int is_object = *at == '{';
    const uint8_t closing = is_object ? '}' : ']';
    if (depth == DEEPEST) return NULL;
    at = space(at + 1);
    if (*at == closing) return at + 1;
    for (;;) {
        if (is_object) {
            if (*at != '"' || !(at = text_end(reader, at + 1, &is_escaped))) return NULL;
            at = space(at + 1);
            if (*at != ':') return NULL;
            at = space(at + 1);
        }
        if (!(at = any_value(reader, at, depth + 1))) return NULL;
        at = space(at);
        if (*at == closing) return at + 1;
        if (*at != ',') return NULL;
        at = space(at + 1);
    }
}

/* Digits of at most 18 places; a JSON number has no zero before others. */
static const uint8_t *natural(const uint8_t *at, int64_t *value) {
    const uint8_t *first = at;
    int64_t found = 0;
    for (; is_digit(*at); at++) {
        if (at - first == 18) return NULL;
        found = 10 * found + (*at - '0');
    }
    *value = found;
    return at == first ? NULL : at;
}

/* A whole number, as such or in a text; what is null or another text is absent. */
static const uint8_t *whole(const Reader *reader, const uint8_t *at, int64_t *value) {
    *value = reader->absent;
    if (*at == 'n') return word(at, "null");
    if (*at == '"') {
        int is_escaped;
        const uint8_t *end = text_end(reader, ++at, &is_escaped), *after;
        if (!end || is_escaped) return NULL;
        const int sign = *at == '-' ? -1 : 1;
        int64_t found;
        for (after = at += sign < 0; is_digit(*after);) after++;
        if (after != end || after == at) return end + 1;
        if (!natural(at, &found)) return NULL;
        *value = sign * found;
        return end + 1;
    }
    const int sign = *at == '-' ? -1 : 1;
    const uint8_t *first = at += sign < 0;
    int64_t found;
    if (!(at = natural(at, &found)) || (*first == '0' && at - first > 1)) return NULL;
    if (*at == '.' || *at == 'e' || *at == 'E') return NULL;
    *value = sign * found;
    return at;
}

/* Microseconds with at most three decimals, in ns. */
static const uint8_t *time_ns(const uint8_t *at, int64_t *value) {
    const int sign = *at == '-' ? -1 : 1;
    const uint8_t *first = at += sign < 0;
    int64_t full, part = 0;
    if (!(at = natural(at, &full)) || (*first == '0' && at - first > 1)) return NULL;
    if (*at == '.') {
        const uint8_t *decimals = ++at;
        for (; is_digit(*at); at++) {
            if (at - decimals < 3)
                part = 10 * part + (*at - '0');
            else if (*at != '0')
                return NULL;
        }
        if (at == decimals) return NULL;
        for (int64_t n = at - decimals; n < 3; n++) part *= 10;
    }
    if (*at == 'e' || *at == 'E') return NULL;
    *value = full >= MOST_US ? NO_TIME : sign * (1000 * full + part);
    return at;
}

/* A text, or null: its number. */
static const uint8_t *numbered_text(Reader *reader, const uint8_t *at, int64_t *value) {
    int is_escaped;
    *value = NULL_TEXT;
    if (*at == 'n') return word(at, "null");
    if (*at != '"') return NULL;
    const uint8_t *end = text_end(reader, at + 1, &is_escaped);
    if (!end) return NULL;
    *value = text_number(reader, at + 1, end - at - 1);
    return *value == REFUSED ? NULL : end + 1;
}

/* A list of three whole numbers, or null. */
static const uint8_t *three(const Reader *reader, const uint8_t *at, int64_t values[3]) {
    values[0] = values[1] = values[2] = reader->absent;
    if (*at == 'n') return word(at, "null");
    if (*at != '[') return NULL;
    for (int axis = 0; axis < 3; axis++) {
        at = space(at + 1);
        if (!(at = whole(reader, at, &values[axis]))) return NULL;
        at = space(at);
        if (*at != (axis < 2 ? ',' : ']')) return NULL;
    }
    return at + 1;
}

static uint8_t head_of(const uint8_t *key, int64_t n) {
    return (uint8_t)(31 * n + 7 * key[0] + 3 * key[n - 1]);
}

static int key_number(const Reader *reader, const uint8_t *key, int64_t n) {
    if (!n) return -1;
    for (uint8_t head = head_of(key, n); reader->heads[head]; head++) {
        const int number = reader->heads[head] - 1;
        if (reader->key_lengths[number] == n && !memcmp(reader->keys[number], key, (size_t)n))
            return number;
    }
    return -1;
}

static const uint8_t *argument(Reader *reader, const uint8_t *at, int number) {
    const uint64_t bit = (uint64_t)1 << number;
    int64_t *value = &reader->values[number];
    switch (reader->key_kinds[number]) {
    case GRID: reader->has_grid = *at != 'n'; return three(reader, at, reader->grid);
    case BLOCK: return three(reader, at, reader->block);
    case TEXT:
        if ((at = numbered_text(reader, at, value)) && *value == NULL_TEXT) *value = 0;
        break;
    case VALUE: { /* as it is written */
        const uint8_t *start = at;
        if (!(at = any_value(reader, at, 2))) return NULL;
        if ((*value = text_number(reader, start, at - start)) == REFUSED) return NULL;
        break;
    }
    default: at = whole(reader, at, value);
    }
    reader->present |= bit;
    return at;
}

/* Call with each key of an object and where its value starts. */
typedef const uint8_t *(*Member)(Reader *, const uint8_t *key, int64_t n, const uint8_t *at);

static const uint8_t *members(Reader *reader, const uint8_t *at, Member member) {
    int is_escaped;
    if (*at != '{') return NULL;
    at = space(at + 1);
    if (*at == '}') return at + 1;
    for (;;) {
        const uint8_t *key = at + 1;
        if (*at != '"' || !(at = text_end(reader, key, &is_escaped)) || is_escaped) return NULL;
        const int64_t n = at - key;
        at = space(at + 1);
        if (*at != ':') return NULL;
        if (!(at = member(reader, key, n, space(at + 1)))) return NULL;
        at = space(at);
        if (*at == '}') return at + 1;
        if (*at != ',') return NULL;
        at = space(at + 1);
    }
}

static const uint8_t *argument_member(Reader *reader, const uint8_t *key, int64_t n,
                                      const uint8_t *at) {
    const int number = key_number(reader, key, n);
    return number < 0 ? any_value(reader, at, 2) : argument(reader, at, number);
}

static const uint8_t *event_member(Reader *reader, const uint8_t *key, int64_t n,
                                   const uint8_t *at) {
    int field = 0;
    while (field < N_FIELDS && !(n == FIELD_LENGTHS[field] && *key == FIELDS[field][0] &&
                                 !memcmp(key, FIELDS[field], (size_t)n)))
        field++;
    if (field == N_FIELDS) return any_value(reader, at, 1);
    if (reader->seen & 1u << field) return NULL;
    reader->seen |= 1u << field;
    switch (field) {
    case PH: return *at == '"' ? numbered_text(reader, at, &reader->kind[PH]) : NULL;
    case CAT: return numbered_text(reader, at, &reader->kind[CAT]);
    case NAME: return numbered_text(reader, at, &reader->kind[NAME]);
    case PID: return whole(reader, at, &reader->process);
    case TID: return whole(reader, at, &reader->thread);
    case TS: return time_ns(at, &reader->start);
    case DUR: return time_ns(at, &reader->duration);
    default: return *at == 'n' ? word(at, "null") : members(reader, at, argument_member);
    }
}

/* Fill the column of an argument up to the event that is next with what says that an event has nothing there. */
static void fill(Reader *reader, int64_t column) {
    int64_t *rows = reader->columns + column * reader->room;
    const int8_t kind = reader->key_kinds[column - N_COLUMNS];
    const int64_t nothing = kind == TEXT || kind == VALUE ? 0 : reader->absent;
    for (int64_t row = reader->filled[column]; row < reader->n_events; row++) rows[row] = nothing;
    reader->filled[column] = reader->n_events;
}

static void put(Reader *reader, int64_t column, int64_t value) {
    if (reader->filled[column] < reader->n_events) fill(reader, column);
    reader->columns[column * reader->room + reader->n_events] = value;
    reader->filled[column] = reader->n_events + 1;
}

/* The number of how a kernel was launched; `parts` are the keys of its context, registers and
 * shared bytes. */
static int64_t shape_number(Reader *reader, const int64_t parts[3]) {
    int64_t row[SHAPE_WIDTH], others[3];
    for (int i = 0; i < 3; i++)
        others[i] = reader->present >> parts[i] & 1 ? reader->values[parts[i]] : reader->absent;
    row[0] = others[0];
    memcpy(row + 1, reader->grid, sizeof reader->grid);
    memcpy(row + 4, reader->block, sizeof reader->block);
    row[7] = others[1], row[8] = others[2];
    return row_number(&reader->shapes, row, SHAPE_WIDTH);
}

/* Put an event that was read from `start` up to `end`; return 0 where there is no room. */
static int put_event(Reader *reader, const uint8_t *start, const uint8_t *end,
                     const int64_t parts[3]) {
    if (reader->n_events == reader->room) return 0;
    const int64_t kind = row_number(&reader->kinds, reader->kind, KIND_WIDTH);
    if (kind == REFUSED) return 0;
    const int64_t shape = reader->has_grid ? shape_number(reader, parts) : 0;
    if (shape == REFUSED) return 0;
    const int64_t values[N_COLUMNS] = {reader->start,  reader->duration, reader->process,
                                       reader->thread, kind,             shape};
    for (int64_t column = 0; column < N_COLUMNS; column++) put(reader, column, values[column]);
    for (int64_t key = 0; key < reader->n_keys; key++)
        if (reader->present >> key & 1) put(reader, N_COLUMNS + key, reader->values[key]);
    const int64_t *phase = reader->texts.rows + 2 * reader->kind[PH];
    if (reader->kind[PH] && phase[1] == 1 && reader->text[phase[0]] == 'M') {
        if (reader->n_metadata == reader->room_of_metadata) return 0;
        reader->metadata[2 * reader->n_metadata] = start - reader->text;
        reader->metadata[2 * reader->n_metadata++ + 1] = end - reader->text;
    }
    reader->n_events++;
    return 1;
}

static void begin_event(Reader *reader) {
    reader->present = 0, reader->seen = 0, reader->has_grid = 0;
    reader->start = reader->duration = NO_TIME;
    reader->process = reader->thread = reader->absent;
    for (int i = 0; i < KIND_WIDTH; i++) reader->kind[i] = 0; /* the text that is empty */
    for (int axis = 0; axis < 3; axis++) reader->grid[axis] = reader->block[axis] = reader->absent;
}

/* Decode the `n_bytes` of `text`, and a zero, into columns of at most `room` events.
 *
 * keys: the names of arguments, one after another, of `key_lengths`, wanted as `key_kinds` say.
 * parts: which of them are a kernel's context, registers and shared bytes. columns: of START to
 * SHAPE and of each key, `room` numbers; filled: of each, how many were put, zeros at first and
 * for the keys that no event has.
 * texts: where each distinct text starts and how long it is, the first being empty; kinds: the
 * texts that are an event's phase, category and name (-1: null); shapes: distinct ones, the first
 * being none. Of these three there is room for `room`, and for `n_buckets` (a power of two, more
 * than that, zeros) in `buckets`. metadata: where each event of phase M starts and ends. counts: is
 * filled with how many texts, kinds, shapes and events of phase M there are; of the last it says
 * before for how many there is room. Return how many events there are, or that it refuses. */
EXPORTED int64_t traceprof_events(const uint8_t *text, int64_t n_bytes, int64_t absent,
                                  int64_t n_keys, const uint8_t *keys, const int64_t *key_lengths,
                                  const int8_t *key_kinds, const int64_t *parts, int64_t room,
                                  int64_t *columns, int64_t *filled, int64_t *texts,
                                  int64_t *kinds, int64_t *shapes, int64_t n_buckets,
                                  int32_t *buckets, int64_t *metadata, int64_t *counts) {
    Reader reader = {.text = text, .end = text + n_bytes, .absent = absent, .n_keys = n_keys,
                     .key_kinds = key_kinds, .room = room, .columns = columns, .filled = filled,
                     .texts = {texts, buckets, 1, room, n_buckets},
                     .kinds = {kinds, buckets + n_buckets, 0, room, n_buckets},
                     .shapes = {shapes, buckets + 2 * n_buckets, 1, room, n_buckets},
                     .metadata = metadata, .room_of_metadata = counts[3]};
    if (n_keys > MOST_KEYS || room < 1) return REFUSED;
    for (int64_t key = 0; key < n_keys; keys += key_lengths[key++]) {
        uint8_t head = head_of(keys, key_lengths[key]);
        while (reader.heads[head]) head++;
        reader.heads[head] = (uint8_t)(key + 1);
        reader.keys[key] = keys;
        reader.key_lengths[key] = key_lengths[key];
    }
    texts[0] = texts[1] = 0;
    for (int i = 0; i < SHAPE_WIDTH; i++) shapes[i] = absent;
    const uint8_t *at = space(text);
    if (*at != '[') return REFUSED;
    at = space(at + 1);
    while (*at != ']') {
        const uint8_t *start = at;
        begin_event(&reader);
        if (!(at = members(&reader, at, event_member))) return REFUSED;
        if (!put_event(&reader, start, at, parts)) return REFUSED;
        at = space(at);
        if (*at == ']') break;
        if (*at != ',') return REFUSED;
        at = space(at + 1);
        if (*at == ']') return REFUSED;
    }
    if (space(at + 1) != reader.end) return REFUSED;
    for (int64_t column = N_COLUMNS; column < N_COLUMNS + n_keys; column++)
        if (filled[column]) fill(&reader, column);
    counts[0] = reader.texts.n, counts[1] = reader.kinds.n;
    counts[2] = reader.shapes.n, counts[3] = reader.n_metadata;
    return reader.n_events;
}
