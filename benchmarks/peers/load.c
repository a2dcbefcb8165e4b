/* load: sends requests to a queue server on this machine, checks every byte of the replies, and reports the speed.
 *
 *     load --protocol memcache --port 22133 --connections 50 --size 64 --pipeline 1 --workload set-get --seconds 2
 *     load serve --port 0
 *
 * A *flight* is a number of requests of the same kind that are sent with one write. A connection sends its next
 * flight when it has all replies to the last one. A workload is a cycle of flights, for example puts, then gets. One
 * thread does everything. Its state of a connection is small.
 *
 * A wrong reply ends the program with a message and status 1. Wrong usage is status 2. Otherwise one JSON object is
 * printed. `load serve` is a minimal server for the memcache requests. A run against it shows the limit of this
 * program.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { WRONG_REPLY = 1, CALLED_WRONGLY = 2 };

static const uint64_t NS = 1000000000;
static const int PATIENCE_S = 60; /* without any reply for so long, the run fails */

static _Noreturn void end(int status, const char *form, ...) {
    va_list values;
    va_start(values, form);
    fputs("load: ", stderr);
    vfprintf(stderr, form, values);
    fputc('\n', stderr);
    exit(status);
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) end(CALLED_WRONGLY, "cannot allocate %zu times %zu bytes", count, size);
    return memory;
}

static size_t least(size_t one, size_t other) { return one < other ? one : other; }

static uint64_t now_ns(clockid_t clock) {
    struct timespec now;
    if (clock_gettime(clock, &now)) return 0;
    return (uint64_t)now.tv_sec * NS + (uint64_t)now.tv_nsec;
}

/* Latencies. Each power of two has 64 boxes, so a latency has a precision of 1.6 percent and memory use is constant. */

enum { BOX_BITS = 6, BOXES = (64 - BOX_BITS + 1) << BOX_BITS };

static struct {
    uint64_t boxes[BOXES];
    uint64_t count, most_ns;
} times;

static unsigned box_of(uint64_t ns) {
    if (ns < 2u << BOX_BITS) return (unsigned)ns;
    unsigned shift = 63 - (unsigned)__builtin_clzll(ns) - BOX_BITS;
    return (shift << BOX_BITS) + (unsigned)(ns >> shift);
}

static uint64_t top_of(unsigned box) { /* the longest time that falls into the box */
    if (box < 2u << BOX_BITS) return box;
    unsigned shift = (box >> BOX_BITS) - 1;
    return (((uint64_t)(box & ((1u << BOX_BITS) - 1)) + (1u << BOX_BITS) + 1) << shift) - 1;
}

static void note_time(uint64_t ns) {
    times.boxes[box_of(ns)]++;
    times.count++;
    if (ns > times.most_ns) times.most_ns = ns;
}

static double percentile_us(double share) {
    uint64_t wanted = (uint64_t)(share * (double)times.count), seen = 0;
    for (unsigned box = 0; box < BOXES; box++) {
        seen += times.boxes[box];
        if (seen > wanted) return (double)(top_of(box) < times.most_ns ? top_of(box) : times.most_ns) / 1000;
    }
    return (double)times.most_ns / 1000;
}

/* Requests and replies as text, with these placeholders:
 *   %q  the queue's name     %l  the length of that name     %n  the length of an item     %d  an item
 *   %i  the server's id of an item             %c  the number of items in the queue after the put
 *   %h  the length of the name followed by ":held"
 * Every byte of a reply without %i and %c can be predicted. */

struct exchange_text {
    const char *request, *reply;
};

struct dialect {
    const char *name;
    const char *hello;              /* the reply is one line; after it, the server has accepted the connection */
    const char *child;              /* the name of a fanout queue's child */
    bool has_fanout;                /* the server puts to the children; otherwise the client does */
    bool keeps_last;                /* all gets of a flight return the item that was put last */
    struct exchange_text begin;     /* sent once before the measurement; optional */
    struct exchange_text put, take; /* put and take without confirmation */
    struct exchange_text hold;      /* take so that the item comes back if the client dies; none: `take` does that */
    struct exchange_text finish;    /* confirm an item that was taken, or only one that was held (`finishes_takes`) */
    bool finishes_takes;
    struct exchange_text leave; /* confirm the last item that is held */
    struct exchange_text wait;  /* take, or wait for an item */
};

#define VALUE(key) "VALUE " key " 0 %n\r\n%d\r\nEND\r\n"
#define WORD(length, word) "$" #length "\r\n" word "\r\n"
#define QUEUE_WORD "$%l\r\n%q\r\n"
#define HELD_WORD "$%h\r\n%q:held\r\n" /* the list of the items that are being processed */
#define ITEM_WORD "$%n\r\n%d\r\n"

static const struct dialect DIALECTS[] = {
    {
        .name = "memcache", /* kestrel: one request confirms an item and takes the next */
        .hello = "version\r\n",
        .child = "%s+c%d",
        .has_fanout = true,
        .put = {"set %q 0 0 %n\r\n%d\r\n", "STORED\r\n"},
        .take = {"get %q\r\n", VALUE("%q")},
        .hold = {"get %q/close/open\r\n", VALUE("%q/close/open")},
        .leave = {"get %q/close\r\n", "END\r\n"},
        .wait = {"get %q/t=120000\r\n", VALUE("%q/t=120000")},
    },
    {
        .name = "cache", /* memcached: it keeps only the last item, and every get returns it */
        .hello = "version\r\n",
        .keeps_last = true,
        .put = {"set %q 0 0 %n\r\n%d\r\n", "STORED\r\n"},
        .take = {"get %q\r\n", VALUE("%q")},
    },
    {
        .name = "beanstalk",
        .hello = "list-tube-used\r\n",
        .begin = {"use %q\r\nwatch %q\r\nignore default\r\n", "USING %q\r\nWATCHING 2\r\nWATCHING 1\r\n"},
        .put = {"put 0 0 120 %n\r\n%d\r\n", "INSERTED %i\r\n"},
        .take = {"reserve\r\n", "RESERVED %i %n\r\n%d\r\n"},
        .finish = {"delete %i\r\n", "DELETED\r\n"},
        .finishes_takes = true,
        .wait = {"reserve\r\n", "RESERVED %i %n\r\n%d\r\n"},
    },
    {
        .name = "redis",
        .hello = "PING\r\n",
        .child = "%s:c%d",
        .put = {"*3\r\n" WORD(5, "LPUSH") QUEUE_WORD ITEM_WORD, ":%c\r\n"},
        .take = {"*2\r\n" WORD(4, "RPOP") QUEUE_WORD, ITEM_WORD},
        .hold = {"*5\r\n" WORD(5, "LMOVE") QUEUE_WORD HELD_WORD WORD(5, "RIGHT") WORD(4, "LEFT"), ITEM_WORD},
        .finish = {"*4\r\n" WORD(4, "LREM") HELD_WORD WORD(2, "-1") ITEM_WORD, ":1\r\n"},
        .wait = {"*3\r\n" WORD(5, "BRPOP") QUEUE_WORD WORD(3, "120"), "*2\r\n" QUEUE_WORD ITEM_WORD},
    },
};

/* Options. */

enum workload { SET_GET, RELIABLE, WAITING, FILL, DRAIN, FANOUT };
static const char *const WORKLOADS[] = {"set-get", "reliable", "waiting", "fill", "drain", "fanout"};

enum { MOST_CONNECTIONS = 100000, MOST_CHILDREN = 100, MOST_PIPELINE = 1000000, MOST_SECONDS = 3600 };
static const uint64_t MOST_ITEMS = UINT64_C(1) << 40, MOST_SIZE = 64 << 20, MOST_MEMORY = UINT64_C(4) << 30;

/* More queues would measure files and names instead of connections. */
enum { OWN_QUEUES = 50 };

static struct {
    const struct dialect *dialect;
    int port;
    enum workload workload;
    unsigned connections, queues, pipeline, children;
    size_t size;
    uint64_t items; /* 0: until the time is over */
    double seconds;
    uint64_t seed;
    bool is_behind; /* the queues hold items of other clients already */
    bool prints_times;
    int pid; /* of the server; 0: unknown */
    const char *name; /* prefix of the queue names; a number follows */
} asked = {.name = "bench", .connections = 1, .pipeline = 1, .children = 1, .size = 64, .seconds = 1, .seed = 1};

/* All items have the same bytes, except for a number at the start. */

static char *item;

static size_t number_bytes(void) { return least(asked.size, sizeof(uint64_t)); }

static void make_item(void) {
    item = allocate(1, asked.size);
    uint64_t state = asked.seed;
    for (size_t at = 0; at < asked.size; at++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        item[at] = (char)(state >> 56);
    }
}

/* The requests of a flight, ready to be sent except for the bytes that differ by item. */

enum mark { NO_MARK, ITEM_MARK, ID_MARK };
enum { ID_DIGITS = 12 }; /* in requests; leading zeros give all ids the same length */

struct request {
    char *bytes;
    size_t stride;
    enum mark mark;
    size_t mark_at;
    uint64_t filled_for; /* the flight whose marks are in it: connections may share a queue */
};

enum piece_kind { LITERAL, ITEM, ID, COUNT };

struct piece {
    enum piece_kind kind;
    const char *bytes;
    size_t size;
};

enum { MOST_PIECES = 8 };

struct reply {
    struct piece pieces[MOST_PIECES];
    unsigned count;
    bool has_id;
};

struct exchange {
    struct request request;
    struct reply reply;
};

/* The steps of a workload, equal for all queues. Each queue has its own exchanges. */

struct step {
    const struct exchange_text *text;
    unsigned place; /* in a fanout: 0 for the parent, else the child */
    bool puts, takes;
    bool ends; /* the reply to this step completes an item */
};

enum { MOST_STEPS = 2 * (MOST_CHILDREN + 1) + 1 };

struct plan {
    struct step steps[MOST_STEPS];
    unsigned count;
    struct exchange **exchanges; /* by queue, then by step */
};

static struct plan begin_plan, circle_plan, leave_plan;
static struct plan consumer_plan; /* of waiting consumers; `circle_plan` is the producers' then */

static void add_step(struct plan *plan, struct step step) {
    if (!step.text->request)
        end(CALLED_WRONGLY, "protocol %s does not support workload %s", asked.dialect->name, WORKLOADS[asked.workload]);
    plan->steps[plan->count++] = step;
}

static void add_take(struct plan *plan, const struct exchange_text *take, unsigned place, bool is_finished) {
    add_step(plan, (struct step){take, place, .takes = true, .ends = !is_finished});
    if (is_finished) add_step(plan, (struct step){&asked.dialect->finish, place, .ends = true});
}

static void plan_workload(void) {
    const struct dialect *dialect = asked.dialect;
    const struct step put = {&dialect->put, .puts = true};
    bool finishes = dialect->finishes_takes;
    unsigned places = 1;
    switch (asked.workload) {
    case FILL:
        add_step(&circle_plan, (struct step){&dialect->put, .puts = true, .ends = true});
        break;
    case DRAIN:
        add_take(&circle_plan, &dialect->take, 0, finishes);
        break;
    case SET_GET:
        add_step(&circle_plan, put);
        add_take(&circle_plan, &dialect->take, 0, finishes);
        break;
    case RELIABLE:
        add_step(&circle_plan, put);
        if (dialect->hold.request) add_take(&circle_plan, &dialect->hold, 0, dialect->finish.request != NULL);
        else if (finishes) add_take(&circle_plan, &dialect->take, 0, true);
        else end(CALLED_WRONGLY, "protocol %s does not support workload reliable", dialect->name);
        if (dialect->leave.request) add_step(&leave_plan, (struct step){.text = &dialect->leave});
        break;
    case WAITING:
        add_step(&circle_plan, put);
        add_take(&consumer_plan, &dialect->wait, 0, finishes);
        break;
    case FANOUT:
        if (!dialect->child) end(CALLED_WRONGLY, "protocol %s does not support workload fanout", dialect->name);
        places += asked.children;
        for (unsigned place = 0; place < (dialect->has_fanout ? 1 : places); place++)
            add_step(&circle_plan, (struct step){&dialect->put, place, .puts = true});
        for (unsigned place = 0; place < places; place++) add_take(&circle_plan, &dialect->take, place, false);
        break;
    }
    if (dialect->begin.request) add_step(&begin_plan, (struct step){.text = &dialect->begin});
    static const struct exchange_text make_child = {"get %q\r\n", "END\r\n"};
    for (unsigned place = 1; place < places && dialect->has_fanout; place++)
        add_step(&begin_plan, (struct step){.text = &make_child, .place = place});
}

/* Texts are turned into bytes here. */

static size_t name_of(char *name, size_t room, unsigned queue, unsigned place) {
    char parent[48];
    snprintf(parent, sizeof parent, "%s%05u", asked.name, queue);
    if (!place) return (size_t)snprintf(name, room, "%s", parent);
    return (size_t)snprintf(name, room, asked.dialect->child, parent, place);
}

/* Write one request, and return its length. Without `to`, only return the length. */
static size_t write_request(char *to, const char *text, const char *name, struct request *request) {
    size_t at = 0;
    for (; *text; text++) {
        char part[64];
        const char *bytes = text;
        size_t size = 1;
        if (*text == '%') {
            bytes = part;
            switch (*++text) {
            case 'q': bytes = name, size = strlen(name); break;
            case 'l': size = (size_t)snprintf(part, sizeof part, "%zu", strlen(name)); break;
            case 'h': size = (size_t)snprintf(part, sizeof part, "%zu", strlen(name) + strlen(":held")); break;
            case 'n': size = (size_t)snprintf(part, sizeof part, "%zu", asked.size); break;
            case 'i': size = ID_DIGITS, memset(part, '0', size), request->mark = ID_MARK, request->mark_at = at; break;
            case 'd': bytes = item, size = asked.size, request->mark = ITEM_MARK, request->mark_at = at; break;
            }
        }
        if (to) memcpy(to + at, bytes, size);
        at += size;
    }
    return at;
}

static void make_request(struct request *request, const char *text, const char *name) {
    request->stride = write_request(NULL, text, name, request);
    request->bytes = allocate(asked.pipeline, request->stride);
    for (unsigned slot = 0; slot < asked.pipeline; slot++)
        write_request(request->bytes + slot * request->stride, text, name, request);
    request->filled_for = UINT64_MAX;
}

static void add_piece(struct reply *reply, enum piece_kind kind, const char *bytes, size_t size) {
    if (kind == LITERAL && !size) return;
    reply->pieces[reply->count++] = (struct piece){kind, bytes, size};
}

static void make_reply(struct reply *reply, const char *text, const char *name) {
    char *literal = allocate(1, strlen(text) + 3 * strlen(name) + 64), *to = literal;
    for (; *text; text++) {
        if (*text != '%') {
            *to++ = *text;
            continue;
        }
        switch (*++text) {
        case 'q': to += sprintf(to, "%s", name); break;
        case 'l': to += sprintf(to, "%zu", strlen(name)); break;
        case 'n': to += sprintf(to, "%zu", asked.size); break;
        default:
            add_piece(reply, LITERAL, literal, (size_t)(to - literal));
            literal = to; /* the next literal uses the remaining room */
            if (*text == 'd') add_piece(reply, ITEM, item, asked.size);
            else add_piece(reply, *text == 'i' ? ID : COUNT, NULL, 0);
            reply->has_id |= *text == 'i';
        }
    }
    add_piece(reply, LITERAL, literal, (size_t)(to - literal));
}

static void make_exchanges(struct plan *plan) {
    plan->exchanges = allocate(asked.queues, sizeof *plan->exchanges);
    for (unsigned queue = 0; queue < asked.queues; queue++) {
        plan->exchanges[queue] = allocate(plan->count, sizeof **plan->exchanges);
        for (unsigned number = 0; number < plan->count; number++) {
            const struct step *step = &plan->steps[number];
            char name[64];
            name_of(name, sizeof name, queue, step->place);
            make_request(&plan->exchanges[queue][number].request, step->text->request, name);
            make_reply(&plan->exchanges[queue][number].reply, step->text->reply, name);
        }
    }
}

/* Connections. */

struct connection {
    int file;
    unsigned number, queue;
    const struct plan *plan;
    struct connection *producer; /* of the items that it takes: itself, except for waiting consumers */
    uint64_t first;              /* number of the first item of this round */
    uint64_t left;               /* items that it may still put or take */
    uint64_t *ids;               /* by slot of the flight: ids from the server or the item */
    unsigned step, asked, replied;
    size_t sent;
    uint64_t sent_ns;
    unsigned piece; /* the current piece of the current reply, and the bytes read of it */
    size_t offset;
    uint64_t number_read; /* in that reply: the item's number, or the digits so far */
    bool is_idle, is_done, wants_room;
    bool is_stored, has_arrived; /* the state of a producer's item, with waiting consumers */
};

static struct connection *connections;
static unsigned connection_count;
static unsigned circling, working; /* connections that put or take; the same and those that send `leave` */
static int events;
static bool knows_order; /* each queue has one client and had no items: every reply can be predicted */

/* no round starts after this time; rounds in progress are completed, so that each kind of request has its share */
static uint64_t stop_ns;
static uint64_t requests, items;

static const struct exchange *exchange_of(const struct connection *c) {
    return &c->plan->exchanges[c->queue][c->step];
}

/* Items of different connections have different numbers. */
static uint64_t item_number(const struct connection *c, unsigned slot) {
    if (asked.dialect->keeps_last && c->plan->steps[c->step].takes) slot = c->asked - 1;
    return ((uint64_t)c->producer->number << 40) + c->producer->first + slot;
}

static void show(char *to, size_t room, const char *bytes, size_t size) {
    size_t at = 0;
    for (size_t i = 0; i < size && at + 8 < room; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        if (byte == '\r' || byte == '\n') at += (size_t)sprintf(to + at, byte == '\r' ? "\\r" : "\\n");
        else at += (size_t)sprintf(to + at, byte >= ' ' && byte < 127 ? "%c" : "\\x%02x", byte);
    }
    to[at] = 0;
}

static _Noreturn void wrong(const struct connection *c, const char *expected, const char *came, size_t size) {
    char question[200], answer[400];
    const struct request *request = &exchange_of(c)->request;
    show(question, sizeof question, request->bytes, least(request->stride, 40));
    show(answer, sizeof answer, came, least(size, 80));
    end(WRONG_REPLY, "wrong reply %u of %u to \"%s...\" on connection %u: expected %s, came \"%s\"", c->replied + 1,
        c->asked, question, c->number, expected, answer);
}

static void wrong_literal(const struct connection *c, const struct piece *piece, const char *came, size_t size) {
    char shown[400], expected[440];
    show(shown, sizeof shown, piece->bytes + c->offset, least(piece->size - c->offset, 80));
    snprintf(expected, sizeof expected, "\"%s\"", shown);
    wrong(c, expected, came, size);
}

static void wrong_number(const struct connection *c, const char *what, uint64_t expected, uint64_t came) {
    char expectation[100], answer[40];
    snprintf(expectation, sizeof expectation, "%s %" PRIu64, what, expected);
    snprintf(answer, sizeof answer, "%" PRIu64, came);
    wrong(c, expectation, answer, strlen(answer));
}

/* Sending. */

static uint64_t flight_key(const struct connection *c) {
    return (c->first << 20) + c->number; /* there are fewer connections than 2^20 */
}

static void fill(const struct connection *c, struct request *request) {
    if (request->mark == NO_MARK || (c->sent && request->filled_for == flight_key(c))) return;
    bool is_taken = !c->plan->steps[c->step].puts; /* a confirmation names the item that was received */
    char *at = request->bytes + request->mark_at;
    for (unsigned slot = 0; slot < c->asked; slot++, at += request->stride) {
        uint64_t number = is_taken ? c->ids[slot] : item_number(c, slot);
        if (request->mark == ITEM_MARK) {
            memcpy(at, &number, number_bytes());
            continue;
        }
        for (int digit = ID_DIGITS - 1; digit >= 0; digit--, number /= 10) at[digit] = (char)('0' + number % 10);
    }
    request->filled_for = flight_key(c);
}

static void want_room(struct connection *c, bool wants) {
    if (wants == c->wants_room) return;
    struct epoll_event event = {wants ? EPOLLIN | EPOLLOUT : EPOLLIN, {.ptr = c}};
    epoll_ctl(events, EPOLL_CTL_MOD, c->file, &event);
    c->wants_room = wants;
}

static void send_rest(struct connection *c) {
    struct request *request = &c->plan->exchanges[c->queue][c->step].request;
    size_t size = c->asked * request->stride;
    fill(c, request);
    while (c->sent < size) {
        ssize_t sent = send(c->file, request->bytes + c->sent, size - c->sent, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) break;
        if (sent < 0) end(WRONG_REPLY, "connection %u: the server hung up (%s)", c->number, strerror(errno));
        c->sent += (size_t)sent;
    }
    want_room(c, c->sent < size);
}

static void send_flight(struct connection *c, unsigned step, unsigned count) {
    c->step = step;
    c->asked = count;
    c->replied = 0;
    c->sent = 0;
    c->sent_ns = now_ns(CLOCK_MONOTONIC);
    send_rest(c);
}

/* Receiving. The bytes of a piece are compared as they arrive. */

static void item_came(struct connection *c) {
    uint64_t mask = UINT64_MAX >> 8 * (sizeof mask - number_bytes()), expected = item_number(c, c->replied) & mask;
    if (knows_order && c->number_read != expected) wrong_number(c, "item", expected, c->number_read);
    if (c->ids && !exchange_of(c)->reply.has_id) c->ids[c->replied] = c->number_read;
}

static void number_came(struct connection *c, enum piece_kind kind) {
    if (kind == COUNT) {
        uint64_t expected = (asked.workload == FILL ? c->first : 0) + c->replied + 1;
        if (knows_order && c->number_read != expected) wrong_number(c, "a count of", expected, c->number_read);
        return;
    }
    bool was_told = c->plan->steps[0].puts && c->plan->steps[c->step].takes;
    if (knows_order && was_told && c->number_read != c->ids[c->replied])
        wrong_number(c, "item number", c->ids[c->replied], c->number_read);
    if (c->ids) c->ids[c->replied] = c->number_read;
}

/* Return how many of the bytes belong to the piece. *is_whole tells whether it ends with them. */
static size_t read_piece(struct connection *c, const struct piece *piece, const char *bytes, size_t size,
                         bool *is_whole) {
    size_t at = 0;
    if (piece->kind == ID || piece->kind == COUNT) {
        for (; at < size && bytes[at] >= '0' && bytes[at] <= '9'; at++)
            c->number_read = c->number_read * 10 + (uint64_t)(bytes[at] - '0');
        if (c->offset + at > 18 || (c->offset + at == 0 && size)) wrong(c, "a number", bytes, size);
        *is_whole = at < size;
        if (*is_whole) number_came(c, piece->kind);
        return at;
    }
    if (piece->kind == ITEM && c->offset < number_bytes()) {
        at = least(size, number_bytes() - c->offset);
        memcpy((char *)&c->number_read + c->offset, bytes, at);
        if (c->offset + at == number_bytes()) item_came(c);
        *is_whole = c->offset + at == piece->size;
        return at;
    }
    at = least(size, piece->size - c->offset);
    if (memcmp(bytes, piece->bytes + c->offset, at)) wrong_literal(c, piece, bytes, size);
    *is_whole = c->offset + at == piece->size;
    return at;
}

static void go_on(struct connection *c, uint64_t now);

static void reply_came(struct connection *c, uint64_t now) {
    const struct step *step = &c->plan->steps[c->step];
    c->replied++;
    c->piece = 0;
    if (c->plan == &begin_plan || c->plan == &leave_plan) return;
    requests++;
    items += step->ends;
    /* With waiting consumers, the latency is that of an item, from its put to its arrival. */
    if (c->producer != c && step->takes) note_time(now - c->producer->sent_ns);
    else if (asked.workload != WAITING) note_time(now - c->sent_ns);
}

static void read_replies(struct connection *c, const char *bytes, size_t size, uint64_t now) {
    while (size) {
        if (c->is_idle || c->is_done) end(WRONG_REPLY, "connection %u: bytes after the last reply", c->number);
        const struct reply *reply = &exchange_of(c)->reply;
        bool is_whole = false;
        size_t taken = read_piece(c, &reply->pieces[c->piece], bytes, size, &is_whole);
        bytes += taken, size -= taken, c->offset += taken;
        if (!is_whole) continue;
        c->offset = c->number_read = 0;
        if (++c->piece == reply->count) reply_came(c, now);
        if (c->replied < c->asked) continue;
        if (size) wrong(c, "nothing more", bytes, size);
        go_on(c, now);
    }
}

static char received[1 << 18];

/* Read once. Return true if the buffer was filled. */
static bool receive(struct connection *c) {
    ssize_t size = recv(c->file, received, sizeof received, 0);
    /* This plan runs on a blocking socket, before the measurement. */
    if (size < 0 && errno == EAGAIN && c->plan == &begin_plan)
        end(WRONG_REPLY, "connection %u: no reply within %d s", c->number, PATIENCE_S);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (size <= 0)
        end(WRONG_REPLY, "connection %u: the server hung up (%s) after %u of %u replies", c->number,
            size ? strerror(errno) : "closed", c->replied, c->asked);
    read_replies(c, received, (size_t)size, now_ns(CLOCK_MONOTONIC));
    return (size_t)size == sizeof received;
}

/* The times of the first request and of the last reply, for the report. */

struct moment {
    uint64_t ns, server_ns;
    double user_s, system_s; /* of this program */
    double server_user_s;
};

static double seconds_of(struct timeval time) { return (double)time.tv_sec + (double)time.tv_usec / 1e6; }

/* Return the user time of the server as the system accounts it, in steps of 10 ms; 0 if it is unknown. */
static double server_user_s(void) {
    char path[32], text[1024];
    unsigned long ticks = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", asked.pid);
    FILE *file = asked.pid ? fopen(path, "r") : NULL;
    if (!file) return 0;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    const char *name_end = strrchr(text, ')'); /* the name of the program may contain spaces */
    if (name_end) sscanf(name_end + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu", &ticks);
    return (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

static struct moment this_moment(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    /* Linux's number for the clock of the CPU time of another process, all threads included. */
    clockid_t server = (clockid_t)(~(unsigned)asked.pid << 3 | 2);
    return (struct moment){now_ns(CLOCK_MONOTONIC), asked.pid ? now_ns(server) : 0, seconds_of(usage.ru_utime),
                           seconds_of(usage.ru_stime), server_user_s()};
}

static struct moment began, ended;

/* What a connection does when it has all replies to a flight. */

static void end_work(struct connection *c) {
    c->is_done = true;
    working--;
}

static void end_circle(struct connection *c) {
    if (!--circling) ended = this_moment();
    if (!leave_plan.count) {
        end_work(c);
        return;
    }
    c->plan = &leave_plan;
    send_flight(c, 0, 1);
}

static void begin_round(struct connection *c, uint64_t now) {
    unsigned count = (unsigned)least(asked.pipeline, c->left);
    if (count && now < stop_ns) {
        c->left -= count;
        send_flight(c, 0, count);
    } else {
        end_circle(c);
    }
}

/* Send the next put when the last one is acknowledged and its item has arrived. */
static void produce(struct connection *producer, uint64_t now) {
    if (!producer->is_stored || !producer->has_arrived) return;
    producer->is_stored = producer->has_arrived = producer->is_idle = false;
    producer->first++;
    begin_round(producer, now);
}

static void go_on(struct connection *c, uint64_t now) {
    bool has_taken = c->plan->steps[c->step].takes;
    if (c->plan == &leave_plan) {
        end_work(c);
    } else if (c->plan == &begin_plan) {
        c->is_idle = true;
    } else if (c->step + 1 < c->plan->count) {
        send_flight(c, c->step + 1, c->asked);
    } else if (c->producer != c) {
        send_flight(c, 0, 1);
    } else if (asked.workload != WAITING) {
        c->first += c->asked;
        begin_round(c, now);
    } else {
        c->is_stored = c->is_idle = true;
        produce(c, now);
    }
    if (c->producer != c && has_taken) {
        c->producer->has_arrived = true;
        produce(c->producer, now);
    }
}

/* Starting. */

static void connect_to_server(struct connection *c) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)asked.port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const struct timeval patience = {PATIENCE_S, 0};
    const int yes = 1;
    c->file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->file < 0) end(CALLED_WRONGLY, "connection %u: %s", c->number, strerror(errno));
    setsockopt(c->file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(c->file, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(c->file, (struct sockaddr *)&address, sizeof address))
        end(CALLED_WRONGLY, "port %d of this machine: %s", asked.port, strerror(errno));
}

/* Wait for a reply, which shows that the server has accepted the connection. So the listen queue stays short. */
static void greet(const struct connection *c) {
    const char *hello = asked.dialect->hello;
    char last = 0;
    if (send(c->file, hello, strlen(hello), MSG_NOSIGNAL) < 0) last = '?';
    while (last != '\n' && last != '?')
        if (recv(c->file, &last, 1, 0) != 1) last = '?';
    if (last != '?') return;
    end(WRONG_REPLY, "connection %u: no answer to \"%.*s\"", c->number, (int)strcspn(hello, "\r"), hello);
}

static void begin(struct connection *c) {
    connect_to_server(c);
    greet(c);
    const struct plan *plan = c->plan;
    c->plan = &begin_plan;
    for (unsigned step = 0; step < begin_plan.count; step++) {
        c->is_idle = false;
        for (send_flight(c, step, 1); !c->is_idle; receive(c)) {}
    }
    c->plan = plan;
    c->is_idle = true;
    fcntl(c->file, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {EPOLLIN, {.ptr = c}};
    if (epoll_ctl(events, EPOLL_CTL_ADD, c->file, &event)) end(CALLED_WRONGLY, "epoll: %s", strerror(errno));
}

/* With consumers, all producers come first, then one consumer for each, then a second one for each. While one
 * consumer handles an item, the second one is waiting, so every put finds a waiter. */
enum { CONSUMERS = 2 };

static void make_connections(void) {
    bool are_waiting = asked.workload == WAITING;
    connection_count = asked.connections * (are_waiting ? 1 + CONSUMERS : 1);
    connections = allocate(connection_count, sizeof *connections);
    for (unsigned number = 0; number < connection_count; number++) {
        struct connection *c = &connections[number];
        unsigned producer = number % asked.connections;
        c->number = number;
        c->queue = producer % asked.queues;
        c->producer = &connections[producer];
        c->plan = number < asked.connections ? &circle_plan : &consumer_plan;
        c->left = asked.items ? asked.items / asked.connections : UINT64_MAX;
        if (producer < asked.items % asked.connections) c->left++;
        if (asked.dialect->finish.request) c->ids = allocate(asked.pipeline, sizeof *c->ids);
        begin(c);
    }
}

static void tell(void) {
    double seconds = (double)(ended.ns - began.ns) / (double)NS;
    double user_s = ended.user_s - began.user_s, system_s = ended.system_s - began.system_s;
    printf("{\"requests\": %" PRIu64 ", \"items\": %" PRIu64 ", \"seconds\": %.6f", requests, items, seconds);
    printf(", \"requests_per_s\": %.1f, \"items_per_s\": %.1f", (double)requests / seconds, (double)items / seconds);
    printf(", \"p50_us\": %.1f, \"p99_us\": %.1f", percentile_us(0.5), percentile_us(0.99));
    printf(", \"p999_us\": %.1f, \"max_us\": %.1f", percentile_us(0.999), (double)times.most_ns / 1000);
    printf(", \"user_s\": %.6f, \"system_s\": %.6f, \"busy\": %.3f", user_s, system_s, (user_s + system_s) / seconds);
    if (asked.pid)
        printf(", \"server_cpu_s\": %.6f, \"server_user_s\": %.6f",
               (double)(ended.server_ns - began.server_ns) / (double)NS, ended.server_user_s - began.server_user_s);
    if (asked.prints_times) {
        const char *between = "";
        printf(", \"latencies_us\": [");
        for (unsigned box = 0; box < BOXES; box++)
            if (times.boxes[box]) {
                printf("%s[%.3f, %" PRIu64 "]", between, (double)top_of(box) / 1000, times.boxes[box]);
                between = ", ";
            }
        printf("]");
    }
    printf("}\n");
}

static void work(void) {
    enum { MOST_EVENTS = 512 };
    struct epoll_event happened[MOST_EVENTS];
    began = this_moment();
    stop_ns = asked.items ? UINT64_MAX : began.ns + (uint64_t)(asked.seconds * (double)NS);
    uint64_t heard_ns = began.ns;
    working = circling = asked.connections;
    for (unsigned number = connection_count; number-- > 0;) { /* waiting consumers start first */
        struct connection *c = &connections[number];
        c->is_idle = false;
        if (c->producer == c) begin_round(c, began.ns);
        else send_flight(c, 0, 1);
    }
    while (working) {
        int count = epoll_wait(events, happened, MOST_EVENTS, PATIENCE_S * 1000);
        for (int i = 0; i < count; i++) {
            struct connection *c = happened[i].data.ptr;
            if (happened[i].events & EPOLLOUT) send_rest(c);
            if (happened[i].events & ~(unsigned)EPOLLOUT)
                while (receive(c)) {}
        }
        uint64_t now = now_ns(CLOCK_MONOTONIC);
        if (count > 0) heard_ns = now;
        else if (now - heard_ns >= (uint64_t)PATIENCE_S * NS) end(WRONG_REPLY, "no reply within %d s", PATIENCE_S);
    }
    tell();
}

/* `load serve`: answers memcache requests from a buffer per connection. */

struct served {
    int file;
    char *in, *out, *kept; /* requests; replies; lengths and bytes of items */
    size_t in_size, in_room, out_at, out_size, out_room, kept_at, kept_size, kept_room;
    bool wants_room;
};

static char *room_for(char **bytes, size_t *room, size_t size) {
    if (size > *room) {
        *room = 2 * size;
        *bytes = realloc(*bytes, *room);
        if (!*bytes) end(CALLED_WRONGLY, "out of memory");
    }
    return *bytes;
}

static void answer(struct served *s, const char *bytes, size_t size) {
    memcpy(room_for(&s->out, &s->out_room, s->out_size + size) + s->out_size, bytes, size);
    s->out_size += size;
}

/* Answer the next request, and return its length; 0 if it is incomplete. */
static size_t serve_one(struct served *s, char *bytes, size_t size) {
    char *line_end = memchr(bytes, '\n', size), *name = memchr(bytes, ' ', size), head[300];
    if (!line_end) return 0;
    size_t line = (size_t)(line_end + 1 - bytes);
    if (!strncmp(bytes, "set ", 4)) {
        char *number = line_end;
        while (number[-1] != ' ') number--;
        size_t data = strtoull(number, NULL, 10);
        if (size < line + data + 2) return 0;
        if (s->kept_at == s->kept_size) s->kept_at = s->kept_size = 0;
        room_for(&s->kept, &s->kept_room, s->kept_size + sizeof data + data);
        memcpy(s->kept + s->kept_size, &data, sizeof data);
        memcpy(s->kept + s->kept_size + sizeof data, bytes + line, data);
        s->kept_size += sizeof data + data;
        answer(s, "STORED\r\n", 8);
        return line + data + 2;
    }
    if (strncmp(bytes, "get ", 4)) {
        answer(s, "VERSION 0\r\n", 11);
    } else if (s->kept_at == s->kept_size) {
        answer(s, "END\r\n", 5);
    } else {
        size_t data;
        memcpy(&data, s->kept + s->kept_at, sizeof data);
        int name_size = (int)least(strcspn(++name, "\r\n"), sizeof head - 50); /* the rest of the line is short */
        int head_size = snprintf(head, sizeof head, "VALUE %.*s 0 %zu\r\n", name_size, name, data);
        answer(s, head, (size_t)head_size);
        answer(s, s->kept + s->kept_at + sizeof data, data);
        answer(s, "\r\nEND\r\n", 7);
        s->kept_at += sizeof data + data;
    }
    return line;
}

/* Read and answer requests. Return false if the client is gone. */
static bool serve_some(struct served *s) {
    room_for(&s->in, &s->in_room, s->in_size + sizeof received);
    ssize_t came = recv(s->file, s->in + s->in_size, sizeof received, 0);
    if (came == 0 || (came < 0 && errno != EAGAIN)) return false;
    s->in_size += came > 0 ? (size_t)came : 0;
    size_t at = 0;
    for (size_t taken; at < s->in_size && (taken = serve_one(s, s->in + at, s->in_size - at)); at += taken) {}
    memmove(s->in, s->in + at, s->in_size -= at);
    ssize_t sent = 1;
    while (s->out_at < s->out_size && sent > 0) {
        sent = send(s->file, s->out + s->out_at, s->out_size - s->out_at, MSG_NOSIGNAL);
        s->out_at += sent > 0 ? (size_t)sent : 0;
    }
    if (s->out_at == s->out_size) s->out_at = s->out_size = 0;
    if (s->wants_room != (s->out_size > 0)) {
        s->wants_room = s->out_size > 0;
        struct epoll_event event = {s->wants_room ? EPOLLIN | EPOLLOUT : EPOLLIN, {.ptr = s}};
        epoll_ctl(events, EPOLL_CTL_MOD, s->file, &event);
    }
    return true;
}

static void serve(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)asked.port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const int yes = 1;
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listening, (struct sockaddr *)&address, sizeof address) || listen(listening, 1024) ||
        getsockname(listening, (struct sockaddr *)&address, &size))
        end(CALLED_WRONGLY, "port %d of this machine: %s", asked.port, strerror(errno));
    printf("port %d\n", ntohs(address.sin_port));
    fflush(stdout);
    struct epoll_event event = {EPOLLIN, {.ptr = NULL}}, happened[64];
    epoll_ctl(events, EPOLL_CTL_ADD, listening, &event);
    for (;;) {
        int count = epoll_wait(events, happened, 64, -1);
        for (int i = 0; i < count; i++) {
            struct served *s = happened[i].data.ptr;
            if (!s) {
                s = allocate(1, sizeof *s);
                s->file = accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
                setsockopt(s->file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
                event.data.ptr = s;
                epoll_ctl(events, EPOLL_CTL_ADD, s->file, &event);
            } else if (!serve_some(s)) {
                close(s->file);
                free(s->in), free(s->out), free(s->kept), free(s);
            }
        }
    }
}

/* Command line. */

static const char USAGE[] =
    "load --protocol memcache|cache|beanstalk|redis --port PORT [options]\n"
    "load serve [--port PORT]       answer memcache requests; 0, the default: a free port, which is printed\n"
    "  --connections N   concurrent connections (1); with waiting, N that put, and 2 N that wait\n"
    "  --queues N        queues shared by the connections; default: one per connection, up to 50\n"
    "  --workload WHAT   set-get, reliable, waiting, fill, drain or fanout (set-get)\n"
    "  --children N      children of each fanout queue (1)\n"
    "  --size BYTES      size of an item (64)\n"
    "  --pipeline N      requests in a flight (1)\n"
    "  --seconds S       time after which no puts are started; remaining items are still taken (1)\n"
    "  --items N         number of items, instead of a time\n"
    "  --behind          the queues hold items already, so replies cannot be predicted\n"
    "  --name NAME       prefix of the queue names (bench)\n"
    "  --seed N          random seed of the items' bytes (1)\n"
    "  --latencies       add all latencies to the JSON, as pairs of an upper limit in microseconds and a count\n"
    "  --pid PID         process id of the server: adds its CPU time to the JSON\n";

enum option_key { PROTOCOL = 256, PORT, CONNECTIONS, QUEUES, WORKLOAD, CHILDREN, SIZE, PIPELINE, SECONDS, ITEMS, BEHIND,
                  NAME, SEED, LATENCIES, PID, HELP };

static const struct option OPTIONS[] = {
    {"protocol", required_argument, NULL, PROTOCOL}, {"port", required_argument, NULL, PORT},
    {"connections", required_argument, NULL, CONNECTIONS}, {"queues", required_argument, NULL, QUEUES},
    {"workload", required_argument, NULL, WORKLOAD}, {"children", required_argument, NULL, CHILDREN},
    {"size", required_argument, NULL, SIZE}, {"pipeline", required_argument, NULL, PIPELINE},
    {"seconds", required_argument, NULL, SECONDS}, {"items", required_argument, NULL, ITEMS},
    {"behind", no_argument, NULL, BEHIND}, {"name", required_argument, NULL, NAME},
    {"seed", required_argument, NULL, SEED},
    {"latencies", no_argument, NULL, LATENCIES}, {"pid", required_argument, NULL, PID},
    {"help", no_argument, NULL, HELP}, {NULL, 0, NULL, 0},
};

static uint64_t number_in(const char *text, uint64_t from, uint64_t to) {
    char *rest;
    errno = 0;
    uint64_t number = strtoull(text, &rest, 10);
    if (*text < '0' || *text > '9' || *rest || errno || number < from || number > to)
        end(CALLED_WRONGLY, "\"%s\" is not a number from %" PRIu64 " to %" PRIu64, text, from, to);
    return number;
}

static double seconds_in(const char *text) {
    char *rest;
    double seconds = strtod(text, &rest);
    if (*text < '0' || *text > '9' || *rest || !(seconds > 0 && seconds <= MOST_SECONDS))
        end(CALLED_WRONGLY, "\"%s\" is not a number of seconds up to %d", text, MOST_SECONDS);
    return seconds;
}

static const char *name_in(const char *text) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    if (!*text || strlen(text) > 32 || text[strspn(text, letters)])
        end(CALLED_WRONGLY, "\"%s\" is not a name of up to 32 letters, digits, - and _", text);
    return text;
}

static enum workload workload_in(const char *text) {
    for (unsigned number = 0; number < sizeof WORKLOADS / sizeof *WORKLOADS; number++)
        if (!strcmp(text, WORKLOADS[number])) return (enum workload)number;
    end(CALLED_WRONGLY, "unknown workload \"%s\"", text);
}

static const struct dialect *dialect_in(const char *text) {
    for (unsigned number = 0; number < sizeof DIALECTS / sizeof *DIALECTS; number++)
        if (!strcmp(text, DIALECTS[number].name)) return &DIALECTS[number];
    end(CALLED_WRONGLY, "unknown protocol \"%s\"", text);
}

static void read_options(int count, char **words) {
    int key;
    while ((key = getopt_long(count, words, "", OPTIONS, NULL)) != -1) {
        switch (key) {
        case PROTOCOL: asked.dialect = dialect_in(optarg); break;
        case PORT: asked.port = (int)number_in(optarg, 0, 65535); break;
        case CONNECTIONS: asked.connections = (unsigned)number_in(optarg, 1, MOST_CONNECTIONS); break;
        case QUEUES: asked.queues = (unsigned)number_in(optarg, 1, MOST_CONNECTIONS); break;
        case WORKLOAD: asked.workload = workload_in(optarg); break;
        case CHILDREN: asked.children = (unsigned)number_in(optarg, 1, MOST_CHILDREN); break;
        case SIZE: asked.size = (size_t)number_in(optarg, 1, MOST_SIZE); break;
        case PIPELINE: asked.pipeline = (unsigned)number_in(optarg, 1, MOST_PIPELINE); break;
        case SECONDS: asked.seconds = seconds_in(optarg); break;
        case ITEMS: asked.items = number_in(optarg, 1, MOST_ITEMS); break;
        case BEHIND: asked.is_behind = true; break;
        case NAME: asked.name = name_in(optarg); break;
        case SEED: asked.seed = number_in(optarg, 0, UINT64_MAX); break;
        case LATENCIES: asked.prints_times = true; break;
        case PID: asked.pid = (int)number_in(optarg, 1, INT32_MAX); break;
        case HELP: fputs(USAGE, stdout); exit(0);
        default: fputs(USAGE, stderr); exit(CALLED_WRONGLY);
        }
    }
}

static void check_options(void) {
    bool is_waiting = asked.workload == WAITING;
    if (!asked.dialect || !asked.port) end(CALLED_WRONGLY, "--protocol and --port are required");
    if (is_waiting && asked.pipeline > 1) end(CALLED_WRONGLY, "the waiting workload needs --pipeline 1");
    if (!asked.queues || asked.queues > asked.connections || is_waiting)
        asked.queues = is_waiting || asked.queues ? asked.connections : (unsigned)least(asked.connections, OWN_QUEUES);
    unsigned kinds = asked.workload == FANOUT ? 2 * asked.children + 2 : 3;
    if ((uint64_t)asked.queues * asked.pipeline * kinds * (asked.size + 64) > MOST_MEMORY)
        end(CALLED_WRONGLY, "the requests would take more than 4 GiB");
    knows_order = asked.queues == asked.connections && !asked.is_behind;
}

int main(int count, char **words) {
    bool serves = count > 1 && !strcmp(words[1], "serve");
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    alarm(MOST_SECONDS + 10 * PATIENCE_S); /* never run longer than this, whatever happens */
    events = epoll_create1(EPOLL_CLOEXEC);
    read_options(count - serves, words + serves);
    if (serves) serve();
    check_options();
    make_item();
    plan_workload();
    make_exchanges(&begin_plan);
    make_exchanges(&circle_plan);
    make_exchanges(&leave_plan);
    make_exchanges(&consumer_plan);
    make_connections();
    work();
    return 0;
}
