/* shared_test.c - connections between processes of one host: messages, lent memory, strangers at the socket,
 * death, and what is left behind. A child echoes; the parent judges. */
#include "connection.h"
#include "region.h"
#include "shm_ring.h"

#include "handshake.h"
#include "harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <keel/memory.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* One end: its connections, and what happened on the one that it talks over. */
struct end {
    struct keel_backends backends;
    struct keel_connection *connection;
    bool opened, broke;
    uint32_t arrived, returned; /* messages; lent memory that came back */
    uint64_t last_sequence, sum;
    uint32_t strangers; /* whom `asked` took besides */
    uint32_t keeps;     /* so many of the next messages it keeps: */
    const uint8_t *kept_at[KEEL_FLOW_SENDS];
    uint64_t kept[KEEL_FLOW_SENDS]; /* what they are known by, or 0 */
    uint32_t kept_count;
};

static uint64_t sum_of(const uint8_t *data, uint32_t bytes)
{
    uint64_t sum = bytes;
    for (uint32_t k = 0; k < bytes; k++)
        sum = sum * 31 + data[k];
    return sum;
}

static bool on_asked(void *context, struct keel_connection *connection)
{
    struct end *end = context;
    connection->owner = end;
    end->strangers++;
    return true;
}

static void on_opened(void *context, struct keel_connection *connection)
{
    struct end *end = context;
    end->connection = connection;
    end->opened = true;
}

static void on_arrived(void *context, struct keel_connection *connection, const struct keel_message *message,
                       const uint8_t *payload)
{
    struct end *end = context;
    end->sum = sum_of(payload, message->bytes);
    end->last_sequence = message->sequence;
    end->arrived++;
    ck_assert(keel_connection_intact(connection));
    if (end->kept_count == end->keeps)
        return;
    end->kept_at[end->kept_count] = payload;
    end->kept[end->kept_count++] = keel_connection_keep(connection);
}

static void on_sent(void *context, struct keel_connection *connection, void *owner)
{
    struct end *end = context;
    (void)connection;
    end->returned += owner != NULL;
}

static void on_broke(void *context, struct keel_connection *connection, const char *why)
{
    struct end *end = context;
    (void)why;
    end->broke = end->broke || connection == end->connection;
    keel_connection_close(connection);
}

static const struct keel_connection_calls calls = {on_asked, on_opened, on_arrived, on_sent, on_broke};

static void end_open(struct end *end, bool fabric_only)
{
    const struct keel_endpoint_config config = {.fabric_only = fabric_only};
    *end = (struct end){.connection = NULL};
    ck_ok(keel_handshake_init());
    ck_ok(keel_backends_open(&end->backends, &config, &calls, end));
}

/* One turn; sleeps first when there is nothing. */
static void turn(struct end *end, uint64_t deadline_ns)
{
    struct pollfd fds[KEEL_BACKENDS_DESCRIPTORS_MAX];
    uint32_t count = keel_backends_descriptors(&end->backends, fds);
    if (keel_backends_may_sleep(&end->backends))
        (void)poll(fds, count, keel_remaining_poll_ms(deadline_ns));
    keel_backends_progress(&end->backends);
}

#define turn_until(end, condition)                                                                           \
    do {                                                                                                     \
        uint64_t deadline_ns_ = keel_deadline_after_ns(5 * KEEL_NS_PER_S);                                   \
        while (!(condition) && keel_remaining_ns(deadline_ns_) > 0)                                          \
            turn(end, deadline_ns_);                                                                         \
        ck_assert_msg(condition, "%s", #condition);                                                          \
    } while (0)

static enum keel_send send_message(struct end *end, uint64_t sequence, const void *payload, uint32_t bytes,
                                   bool lent)
{
    struct keel_message message = {.kind = KEEL_MESSAGE_PING, .sequence = sequence, .bytes = bytes};
    enum keel_send result;
    bool retry = false;
    for (;;) {
        result = keel_connection_send(end->connection, &message, payload, lent, end, &retry);
        if (result != KEEL_SEND_LATER)
            return result;
        turn(end, keel_deadline_after_ns(KEEL_NS_PER_MS));
    }
}

/* Answers each message with the sum of what it got, until its connection breaks. */
static _Noreturn void echo(int to_parent, bool fabric_only)
{
    struct end end;
    struct keel_address address;
    uint32_t answered = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    end_open(&end, fabric_only);
    ck_ok(keel_backends_address(&end.backends, &address));
    if (write(to_parent, &address, sizeof address) != (ssize_t)sizeof address)
        _exit(2);
    while (!end.broke) {
        turn(&end, keel_deadline_after_ns(KEEL_NS_PER_S));
        for (; answered < end.arrived && !end.broke; answered++)
            (void)send_message(&end, end.last_sequence, &end.sum, sizeof end.sum, false);
    }
    keel_backends_close(&end.backends);
    _exit(0);
}

static pid_t echo_start(bool fabric_only, struct keel_address *out)
{
    int fds[2];
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        echo(fds[1], fabric_only);
    close(fds[1]);
    ck_assert_int_eq(read(fds[0], out, sizeof *out), (int)sizeof *out);
    close(fds[0]);
    return pid;
}

static void dial(struct end *end, const struct keel_address *address)
{
    struct keel_connection *connection = NULL;
    ck_ok(keel_backends_dial(&end->backends, address, end, &connection));
    end->connection = connection;
    turn_until(end, end->opened);
}

static void echo_end(struct end *end, pid_t pid)
{
    int status;
    keel_backends_close(&end->backends);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static bool is_shared(const struct end *end)
{
    return end->backends.backend_count == 2 && end->connection->backend == end->backends.backends[0];
}

/* ---- messages ------------------------------------------------------------------------------------------ */

static void exchange(struct end *end, uint64_t sequence, const uint8_t *data, uint32_t bytes, bool lent)
{
    uint32_t arrived = end->arrived, returned = end->returned;
    uint64_t want = sum_of(data, bytes);
    enum keel_send sent = send_message(end, sequence, data, bytes, lent);
    ck_assert(sent == KEEL_SEND_OK || sent == KEEL_SEND_DONE);
    turn_until(end, end->arrived == arrived + 1);
    ck_assert_uint_eq(end->last_sequence, sequence);
    ck_assert_uint_eq(end->sum, sum_of((const uint8_t *)&want, sizeof want));
    if (sent == KEEL_SEND_OK && lent)
        turn_until(end, end->returned == returned + 1);
}

START_TEST(what_is_sent_arrives_whole_over_either_backend)
{
    static uint8_t data[KEEL_CHUNK_BYTES];
    struct keel_address address;
    struct end end;
    pid_t pid = echo_start(_i == 1, &address);
    end_open(&end, _i == 1);
    dial(&end, &address);
    ck_assert_int_eq(is_shared(&end), _i == 0);
    for (uint32_t k = 0; k < sizeof data; k++)
        data[k] = (uint8_t)(k * 7 + (k >> 8));
    for (uint64_t k = 0; k < 300; k++)
        exchange(&end, k, data + k, (uint32_t)(k * k * 13 % (KEEL_CHUNK_BYTES - 300)), k * k * 13 > 8000);
    echo_end(&end, pid);
}
END_TEST

static uint32_t lines_with(pid_t pid, const char *file, const char *word)
{
    char path[64], connection[512];
    uint32_t count = 0;
    if (pid == 0)
        snprintf(path, sizeof path, "/proc/%s", file);
    else
        snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    FILE *stream = fopen(path, "re");
    ck_assert_ptr_nonnull(stream);
    while (fgets(connection, sizeof connection, stream) != NULL)
        count += strstr(connection, word) != NULL;
    fclose(stream);
    return count;
}

START_TEST(memory_of_a_region_is_read_in_place_and_taken_back_when_it_is_freed)
{
    enum { BYTES = 1 << 20 };
    struct keel_address address;
    struct end end;
    pid_t pid = echo_start(false, &address);
    end_open(&end, false);
    dial(&end, &address);
    for (uint32_t round = 0; round < 3; round++) {
        uint8_t *data = NULL;
        ck_ok(keel_transport_alloc(BYTES, &data));
        for (uint32_t k = 0; k < BYTES; k++)
            data[k] = (uint8_t)(k * 11 + round);
        uint32_t returned = end.returned;
        exchange(&end, 0, data, KEEL_CHUNK_BYTES, true);
        ck_assert_uint_eq(end.returned, returned + 1); /* it was lent, not copied */
        ck_assert_uint_eq(lines_with(pid, "maps", "memfd:keel-region"), 1);
        for (uint32_t k = 1; k <= 40; k++)
            exchange(&end, k, data + (size_t)k * 20011, KEEL_CHUNK_BYTES - k, true);
        exchange(&end, 50, data + BYTES - 9000, 9000, true);
        ck_assert_uint_eq(end.returned, returned + 42);
        keel_transport_free(data);
        keel_backends_progress(&end.backends);
        turn_until(&end, lines_with(pid, "maps", "memfd:keel-region") == 0);
    }
    echo_end(&end, pid);
}
END_TEST

/* ---- what is kept -------------------------------------------------------------------------------------- */

static void turn_both(struct end *left, struct end *right)
{
    turn(left, keel_deadline_after_ns(KEEL_NS_PER_MS));
    turn(right, keel_deadline_after_ns(KEEL_NS_PER_MS));
}

#define both_until(left, right, condition)                                                                   \
    do {                                                                                                     \
        for (int turns_ = 0; turns_ < 2000 && !(condition); turns_++)                                        \
            turn_both(left, right);                                                                          \
        ck_assert_msg(condition, "%s", #condition);                                                          \
    } while (0)

/* Two ends in this process; the reader keeps what comes first. */
static void keepers_open(struct end *sender, struct end *reader, uint32_t keeps)
{
    struct keel_address address = {.bytes = KEEL_ADDRESS_BYTES};
    struct keel_connection *connection;
    end_open(sender, false);
    end_open(reader, false);
    reader->keeps = keeps;
    ck_ok(keel_backends_address(&reader->backends, &address));
    ck_ok(keel_backends_dial(&sender->backends, &address, sender, &connection));
    both_until(sender, reader, sender->opened && reader->opened);
}

START_TEST(what_a_reader_keeps_stays_lent_until_it_is_released)
{
    enum { BYTES = 1 << 16, COUNT = 4 };
    struct end sender, reader;
    uint8_t *data = NULL;
    ck_ok(keel_transport_alloc(COUNT * BYTES, &data));
    for (uint32_t k = 0; k < COUNT * BYTES; k++)
        data[k] = (uint8_t)(k * 13 + k / BYTES);
    keepers_open(&sender, &reader, 2);
    for (uint64_t k = 0; k < COUNT; k++)
        ck_assert_int_eq(send_message(&sender, k, data + k * BYTES, BYTES, true), KEEL_SEND_OK);
    both_until(&sender, &reader, reader.arrived == COUNT);
    ck_assert_uint_eq(keel_connection_keep(reader.connection),
                      0); /* what was delivered last is no longer at hand */
    for (int k = 0; k < 20; k++)
        turn_both(&sender, &reader);
    ck_assert_uint_eq(sender.returned, 0); /* in order, so nor do those behind come back */
    for (uint32_t k = 0; k < 2; k++) {
        ck_assert_uint_ne(reader.kept[k], 0);
        ck_assert_mem_eq(reader.kept_at[k], data + (size_t)k * BYTES, BYTES);
    }
    ck_assert(keel_connection_release(reader.connection, reader.kept[1]));
    for (int k = 0; k < 20; k++)
        turn_both(&sender, &reader);
    ck_assert_uint_eq(sender.returned, 0);
    ck_assert(keel_connection_release(reader.connection, reader.kept[0]));
    both_until(&sender, &reader, sender.returned == COUNT);
    keel_backends_close(&sender.backends);
    keel_backends_close(&reader.backends);
    keel_transport_free(data);
}
END_TEST

START_TEST(a_reader_is_told_when_it_keeps_so_much_that_its_sender_stands)
{
    enum { BYTES = 1 << 14 };
    struct end sender, reader;
    uint8_t *data = NULL;
    ck_ok(keel_transport_alloc(BYTES, &data));
    keepers_open(&sender, &reader, KEEL_FLOW_SENDS);
    for (uint64_t k = 0; k + 1 < KEEL_FLOW_SENDS; k++) {
        ck_assert_int_eq(send_message(&sender, k, data, BYTES, true), KEEL_SEND_OK);
        both_until(&sender, &reader, reader.arrived == k + 1);
        ck_assert(keel_connection_is_crowded(reader.connection) == (k + 2 == KEEL_FLOW_SENDS));
    }
    for (uint32_t k = 0; k < reader.kept_count; k++)
        ck_assert(keel_connection_release(reader.connection, reader.kept[k]));
    ck_assert(!keel_connection_is_crowded(reader.connection));
    both_until(&sender, &reader, sender.returned == KEEL_FLOW_SENDS - 1);
    keel_backends_close(&sender.backends);
    keel_backends_close(&reader.backends);
    keel_transport_free(data);
}
END_TEST

/* A peer that obeys frees what it lent when it has come back. */
START_TEST(memory_that_is_freed_while_a_reader_keeps_it_breaks_the_line_before_it_is_gone)
{
    enum { BYTES = 1 << 16 };
    struct end sender, reader;
    uint8_t *data = NULL;
    ck_ok(keel_transport_alloc(BYTES, &data));
    keepers_open(&sender, &reader, 1);
    ck_assert_int_eq(send_message(&sender, 0, data, BYTES, true), KEEL_SEND_OK);
    both_until(&sender, &reader, reader.kept_count == 1);
    keel_transport_free(data);
    both_until(&sender, &reader, reader.broke);
    keel_backends_close(&sender.backends);
    keel_backends_close(&reader.backends);
}
END_TEST

START_TEST(a_sender_that_hangs_up_takes_back_what_a_reader_keeps)
{
    enum { BYTES = 1 << 16 };
    struct end sender, reader;
    uint8_t *data = NULL;
    ck_ok(keel_transport_alloc(BYTES, &data));
    keepers_open(&sender, &reader, 1);
    ck_assert_int_eq(send_message(&sender, 0, data, BYTES, true), KEEL_SEND_OK);
    both_until(&sender, &reader, reader.kept_count == 1);
    keel_connection_close(sender.connection);
    ck_assert(!keel_connection_release(reader.connection, reader.kept[0]));
    keel_backends_close(&sender.backends);
    keel_backends_close(&reader.backends);
    keel_transport_free(data);
}
END_TEST

START_TEST(regions_are_found_by_any_part_of_them_and_not_beyond)
{
    enum { REGIONS = 50 };
    uint8_t *memory[REGIONS];
    struct keel_region_place place;
    int here = 0;
    for (uint32_t k = 0; k < REGIONS; k++) {
        ck_ok(keel_transport_alloc(1 + k * 1000, &memory[k]));
        memory[k][0] = 1;
    }
    for (uint32_t k = 0; k < REGIONS; k++) {
        uint64_t bytes = keel_round_up(1 + k * 1000, KEEL_PAGE_BYTES);
        ck_assert(keel_region_find(memory[k], bytes, &place) && place.offset == 0);
        ck_assert(keel_region_find(memory[k] + bytes - 1, 1, &place) && place.offset == bytes - 1);
        ck_assert(!keel_region_find(memory[k] + 1, bytes, &place));
    }
    ck_assert(!keel_region_find(&here, sizeof here, &place));
    ck_ok(keel_region_find(memory[3], 1, &place) ? KEEL_OK : KEEL_INTERNAL);
    keel_transport_free(memory[3]);
    ck_assert(!keel_region_exists(place.region));
    ck_assert_int_lt(keel_region_descriptor(place.region, &(uint64_t){0}), 0);
    for (uint32_t k = 0; k < REGIONS; k++)
        if (k != 3)
            keel_transport_free(memory[k]);
    ck_assert(!keel_region_find(memory[0], 1, &place));
    keel_transport_free(NULL);
}
END_TEST

START_TEST(what_a_peer_lent_can_be_read_and_not_written)
{
    uint8_t *memory = NULL;
    struct keel_region_place place;
    uint64_t bytes = 0;
    ck_ok(keel_transport_alloc(100, &memory));
    memory[5] = 77;
    ck_assert(keel_region_find(memory, 1, &place));
    int fd = keel_region_descriptor(place.region, &bytes);
    ck_assert_int_ge(fd, 0);
    ck_assert_ptr_eq(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    ck_assert_int_lt(ftruncate(fd, 0), 0);
    struct keel_loan loan;
    ck_status(keel_loan_map(&loan, fd, place.region, bytes + KEEL_PAGE_BYTES), KEEL_CORRUPT);
    ck_ok(keel_loan_map(&loan, fd, place.region, bytes));
    ck_assert_uint_eq(loan.base[5], 77);
    keel_loan_unmap(&loan);
    close(fd);
    keel_transport_free(memory);
}
END_TEST

/* ---- which backend ------------------------------------------------------------------------------------- */

enum { OTHER_HOST, NO_SOCKET, TOLD_NOT_TO };

START_TEST(the_fabric_is_taken_where_memory_cannot_be_shared)
{
    struct keel_address address;
    struct end end;
    pid_t pid = echo_start(_i == TOLD_NOT_TO, &address);
    struct keel_address_parts place = keel_place_of(&address);
    end_open(&end, false);
    if (_i == OTHER_HOST)
        place.host[3] ^= 1;
    else if (_i == NO_SOCKET)
        place.socket[3] ^= 1;
    memcpy(address.data, &place, sizeof place);
    dial(&end, &address);
    ck_assert(!is_shared(&end));
    uint8_t byte = 9;
    exchange(&end, 1, &byte, 1, false);
    echo_end(&end, pid);
}
END_TEST

/* ---- strangers ----------------------------------------------------------------------------------------- */

static int socket_name(const struct keel_address *address, char out[64])
{
    struct keel_address_parts place = keel_place_of(address);
    int bytes = snprintf(out, 64, "keel-");
    for (size_t k = 0; k < sizeof place.socket; k++)
        bytes += snprintf(out + bytes, 4, "%02x", place.socket[k]);
    return bytes;
}

static int call_socket(const struct keel_address *address)
{
    struct sockaddr_un where = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    size_t bytes =
        offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)socket_name(address, where.sun_path + 1);
    ck_assert_int_eq(connect(fd, (const struct sockaddr *)&where, (socklen_t)bytes), 0);
    return fd;
}

static void say_with(int fd, const void *words, size_t bytes, const int *descriptors, uint32_t count)
{
    struct iovec part = {(void *)(uintptr_t)words, bytes};
    _Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(4 * sizeof(int))] = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count > 0) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(header), descriptors, count * sizeof(int));
    }
    ck_assert_int_gt(sendmsg(fd, &message, MSG_NOSIGNAL), 0);
}

static void say(int fd, const void *words, size_t bytes, int descriptor)
{
    say_with(fd, words, bytes, &descriptor, descriptor >= 0 ? 1 : 0);
}

/* Whoever speaks another language is hung up on; whoever says nothing waits; the others are not disturbed. */
START_TEST(strangers_at_the_socket_disturb_nobody)
{
    static const uint32_t greeting[6] = {0x4b455350, 1, 0, 0, KEEL_RING_BYTES, 0};
    static const uint32_t lend[6] = {0x4b455350, 2, 1, 0, 4096, 0};
    struct keel_address address;
    struct end end;
    int fds[8], count = 0, memory = memfd_create("test", MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(memory, 4096 + 2 * KEEL_RING_BYTES), 0);
    pid_t pid = echo_start(false, &address);
    uint32_t before = lines_with(pid, "maps", "memfd");
    end_open(&end, false);
    for (; count < 8; count++)
        fds[count] = call_socket(&address);
    say(fds[0], "GET / HTTP/1.1\r\n", 16, -1);
    say(fds[1], "", 1, -1);
    say(fds[2], greeting, sizeof greeting, -1);
    say(fds[3], greeting, sizeof greeting, memory); /* not sealed */
    say(fds[4], lend, sizeof lend, memory);
    say(fds[5], greeting, sizeof greeting, STDIN_FILENO);
    say(fds[6], greeting, sizeof greeting - 4, memory);
    dial(&end, &address);
    for (uint32_t k = 0; k < 20; k++)
        exchange(&end, k, (const uint8_t *)&k, sizeof k, false);
    char byte;
    for (int k = 0; k < 7; k++)
        ck_assert_msg(recv(fds[k], &byte, 1, 0) <= 0, "stranger %d was not hung up on", k);
    ck_assert_int_lt(recv(fds[7], &byte, 1, MSG_DONTWAIT), 0);
    ck_assert_uint_eq(lines_with(pid, "maps", "memfd"),
                      before + 3); /* one ring pair: page, ring; ring, ring; ring */
    for (int k = 0; k < 8; k++)
        close(fds[k]);
    close(memory);
    keel_connection_close(end.connection);
    echo_end(&end, pid);
}
END_TEST

static uint32_t files_in(const char *path)
{
    uint32_t count = 0;
    DIR *directory = opendir(path);
    while (directory != NULL && readdir(directory) != NULL)
        count++;
    if (directory != NULL)
        closedir(directory);
    return count;
}

/* More of them than a packet of ours has, with words that are ours and with words that are not. */
START_TEST(descriptors_that_a_stranger_sends_do_not_stay)
{
    static const uint32_t greeting[6] = {0x4b455350, 1, 0, 0, KEEL_RING_BYTES, 0};
    const int sent[4] = {STDIN_FILENO, STDIN_FILENO, STDIN_FILENO, STDIN_FILENO};
    struct keel_address address;
    struct end end;
    char path[32], byte;
    pid_t pid = echo_start(false, &address);
    end_open(&end, false);
    dial(&end, &address);
    exchange(&end, 1, (const uint8_t *)"x", 1, false);
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    uint32_t before = files_in(path);
    for (uint32_t count = 1; count <= 4; count++) {
        int fd = call_socket(&address);
        say_with(fd, count % 2 == 0 ? (const void *)greeting : (const void *)"", count % 2 == 0 ? 24 : 1,
                 sent, count);
        ck_assert_int_le(recv(fd, &byte, 1, 0), 0);
        close(fd);
        exchange(&end, 1 + count, (const uint8_t *)"x", 1, false);
        ck_assert_msg(files_in(path) == before, "of %u descriptors some stayed", count);
    }
    keel_connection_close(end.connection);
    echo_end(&end, pid);
}
END_TEST

/* ---- death --------------------------------------------------------------------------------------------- */

START_TEST(a_killed_peer_breaks_its_line_and_nothing_of_it_stays)
{
    enum { TIMES = 50 };
    static uint8_t data[KEEL_CHUNK_BYTES];
    uint32_t fds = files_in("/proc/self/fd");
    uint64_t memory = keel_memory_stats().live_bytes, worst_ns = 0;
    for (uint32_t k = 0; k < TIMES; k++) {
        struct keel_address address;
        struct end end;
        char name[64];
        pid_t pid = echo_start(false, &address);
        end_open(&end, false);
        dial(&end, &address);
        socket_name(&address, name);
        ck_assert_uint_ge(lines_with(0, "net/unix", name), 1);
        for (uint32_t i = 0; i < k % 5 * 7; i++)
            (void)send_message(&end, i, data, KEEL_CHUNK_BYTES, true);
        ck_assert_uint_eq(lines_with(pid, "maps", "/dev/shm"), 0); /* where a name would outlive it */
        ck_assert_uint_eq(lines_with(getpid(), "maps", "/dev/shm"), 0);
        uint64_t start = keel_now_ns();
        kill(pid, SIGKILL);
        turn_until(&end, end.broke);
        uint64_t took_ns = keel_now_ns() - start;
        worst_ns = took_ns > worst_ns ? took_ns : worst_ns;
        keel_backends_close(&end.backends);
        ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
        ck_assert_uint_eq(lines_with(0, "net/unix", name), 0);
    }
    printf("note: a killed peer's connection broke after %.2f ms at most\n", (double)worst_ns / 1e6);
    ck_assert_uint_eq(files_in("/proc/self/fd"), fds);
    ck_assert_uint_eq(lines_with(getpid(), "maps", "memfd:keel"), 0);
    ck_assert_uint_eq(keel_memory_stats().live_bytes, memory);
}
END_TEST

/* A child of the peer holds its descriptors, so its sockets stay: the pidfd tells. */
START_TEST(a_killed_peer_is_noticed_although_its_child_lives)
{
    int fds[2];
    struct keel_address address;
    struct end end;
    pid_t grandchild = 0;
    ck_assert_int_eq(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        end_open(&end, false);
        ck_ok(keel_backends_address(&end.backends, &address));
        (void)!write(fds[1], &address, sizeof address);
        while (!end.opened)
            turn(&end, keel_deadline_after_ns(KEEL_NS_PER_S));
        grandchild = fork();
        if (grandchild == 0)
            pause();
        (void)!write(fds[1], &grandchild, sizeof grandchild);
        for (;;)
            turn(&end, keel_deadline_after_ns(KEEL_NS_PER_S));
    }
    ck_assert_int_eq(read(fds[0], &address, sizeof address), (int)sizeof address);
    end_open(&end, false);
    dial(&end, &address);
    ck_assert_int_eq(read(fds[0], &grandchild, sizeof grandchild), (int)sizeof grandchild);
    kill(pid, SIGKILL);
    turn_until(&end, end.broke);
    ck_assert_int_eq(kill(grandchild, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    keel_backends_close(&end.backends);
}
END_TEST

/* Far more lent memory than is delivered of a living peer at a time. */
START_TEST(what_a_dead_peer_had_sent_is_delivered_before_its_line_breaks)
{
    enum { MESSAGES = 40 };
    struct keel_address address;
    struct end end;
    int fds[2];
    char byte;
    end_open(&end, false);
    ck_ok(keel_backends_address(&end.backends, &address));
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        uint8_t *data;
        keel_backends_close(&end.backends);
        end_open(&end, false);
        dial(&end, &address);
        ck_ok(keel_transport_alloc(KEEL_CHUNK_BYTES, &data));
        for (uint64_t k = 1; k <= MESSAGES; k++)
            (void)send_message(&end, k, data, KEEL_CHUNK_BYTES, true);
        (void)!write(fds[1], "", 1);
        pause();
    }
    ck_assert_int_eq(read(fds[0], &byte, 1), 1);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    turn_until(&end, end.broke);
    ck_assert_uint_eq(end.arrived, MESSAGES);
    keel_backends_close(&end.backends);
}
END_TEST

/* A child of ours that has our descriptors keeps neither the connection alive for the peer nor its sockets
 * here. */
START_TEST(a_closed_line_is_closed_although_a_child_has_its_descriptors)
{
    struct keel_address address;
    struct end end;
    struct pollfd fds[KEEL_BACKENDS_DESCRIPTORS_MAX];
    pid_t pid = echo_start(false, &address);
    end_open(&end, false);
    dial(&end, &address);
    exchange(&end, 1, (const uint8_t *)"x", 1, false);
    pid_t child = fork();
    if (child == 0)
        pause();
    keel_connection_close(end.connection);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid); /* it ends with its connection */
    for (uint32_t k = 0; k < 3; k++)
        keel_backends_progress(&end.backends);
    uint32_t count = keel_backends_descriptors(&end.backends, fds);
    ck_assert_int_eq(poll(fds, count, 0), 0);
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    keel_backends_close(&end.backends);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, what_is_sent_arrives_whole_over_either_backend, 0, 2);
    tcase_add_test(tc, what_a_reader_keeps_stays_lent_until_it_is_released);
    tcase_add_test(tc, a_reader_is_told_when_it_keeps_so_much_that_its_sender_stands);
    tcase_add_test(tc, memory_that_is_freed_while_a_reader_keeps_it_breaks_the_line_before_it_is_gone);
    tcase_add_test(tc, a_sender_that_hangs_up_takes_back_what_a_reader_keeps);
    tcase_add_test(tc, memory_of_a_region_is_read_in_place_and_taken_back_when_it_is_freed);
    tcase_add_test(tc, regions_are_found_by_any_part_of_them_and_not_beyond);
    tcase_add_test(tc, what_a_peer_lent_can_be_read_and_not_written);
    tcase_add_loop_test(tc, the_fabric_is_taken_where_memory_cannot_be_shared, 0, 3);
    tcase_add_test(tc, strangers_at_the_socket_disturb_nobody);
    tcase_add_test(tc, descriptors_that_a_stranger_sends_do_not_stay);
    tcase_add_test(tc, what_a_dead_peer_had_sent_is_delivered_before_its_line_breaks);
    tcase_add_test(tc, a_closed_line_is_closed_although_a_child_has_its_descriptors);
    tcase_add_test(tc, a_killed_peer_breaks_its_line_and_nothing_of_it_stays);
    tcase_add_test(tc, a_killed_peer_is_noticed_although_its_child_lives);
}
KEEL_TEST_MAIN("transport shared memory", cases, 60)
