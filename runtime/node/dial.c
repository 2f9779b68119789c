/* dial.c - see dial.h. */
#include "dial.h"

#include "remote_leader.h"
#include <errno.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SMALL_PROBE_BYTES = 64, ALIVE_AFTER_S = 10, ALIVE_EVERY_S = 5, ALIVE_TRIES = 3 };

static const uint64_t look_ns = 200 * KEEL_NS_PER_MS; /* at whether the process was interrupted */
static const uint64_t again_ns = 200 * KEEL_NS_PER_MS;
/* The kernel asks again 1 s, 3 s and 7 s after the first time: where a network has just come back, who calls
 * anew is there sooner. */
static const uint64_t connect_patience_ns = KEEL_NS_PER_S;
static const uint64_t opening_patience_ns = 10 * KEEL_NS_PER_S;
static const uint64_t probe_patience_ns = 10 * KEEL_NS_PER_S;
static const char marker[] = ".run"; /* of a store that a launcher commits in: the run's number */

/* ---- waiting ------------------------------------------------------------------------------------------- */

/* Until the socket is ready. TIMEOUT, INTERRUPTED. */
static enum keel_status await(int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        if (keel_process_interrupted())
            return keel_fail(KEEL_INTERRUPTED, "interrupted");
        const uint64_t soon_ns = keel_deadline_after_ns(look_ns);
        struct pollfd ready = {.fd = fd, .events = events};
        if (poll(&ready, 1, keel_remaining_poll_ms(soon_ns < deadline_ns ? soon_ns : deadline_ns)) > 0)
            return KEEL_OK;
        if (keel_remaining_ns(deadline_ns) == 0)
            return keel_fail(KEEL_TIMEOUT, "no answer in time");
    }
}

static enum keel_status take(int fd, uint8_t *out, uint32_t bytes, uint64_t deadline_ns)
{
    for (uint32_t got = 0; got < bytes;) {
        ssize_t more = recv(fd, out + got, bytes - got, MSG_DONTWAIT);
        if (more == 0 || (more < 0 && errno != EAGAIN && errno != EINTR))
            return keel_fail(KEEL_PEER_LOST, "the connection ended");
        if (more > 0)
            got += (uint32_t)more;
        else
            KEEL_TRY(await(fd, POLLIN, deadline_ns));
    }
    return KEEL_OK;
}

static enum keel_status give(int fd, const uint8_t *data, uint32_t bytes, uint64_t deadline_ns)
{
    for (uint32_t sent = 0; sent < bytes;) {
        ssize_t more = send(fd, data + sent, bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (more < 0 && errno != EAGAIN && errno != EINTR)
            return keel_fail(KEEL_PEER_LOST, "the connection ended");
        if (more > 0)
            sent += (uint32_t)more;
        else
            KEEL_TRY(await(fd, POLLOUT, deadline_ns));
    }
    return KEEL_OK;
}

/* ---- the way there ------------------------------------------------------------------------------------- */

static enum keel_status bind_to(int fd, const struct keel_dial_config *config, const char *name,
                                const struct keel_net_place *place, sa_family_t family)
{
    struct keel_net_place own;
    struct sockaddr_storage address;
    if (config->address == NULL)
        return KEEL_OK;
    if (keel_net_place_resolve(config->address, &own) != KEEL_OK)
        return keel_dial_refuse_address(config->address, "is no name that this host knows");
    own.port = 0; /* that is for who dials in here */
    const socklen_t bytes = keel_net_place_to_socket(&own, family, &address);
    if (bytes == 0 || keel_net_place_family(&own) != family)
        return keel_fail(KEEL_INVALID,
                         "--address %s and --join %s are of two families of addresses; give both by IPv4, or "
                         "both by IPv6",
                         config->address, name);
    if (keel_net_place_is_loopback(&own) && !keel_net_place_is_loopback(place))
        return keel_dial_refuse_address(config->address, "is loopback, where no other host reaches this one");
    if (bind(fd, (const struct sockaddr *)&address, bytes) != 0)
        return keel_dial_refuse_address(config->address, "is no address of this host");
    return KEEL_OK;
}

/* At which others are to find this agent; 0: any. */
static uint16_t own_port(const struct keel_dial_config *config)
{
    struct keel_net_place own = {.port = 0};
    if (config->address != NULL)
        (void)keel_net_place_resolve(config->address, &own);
    return own.port;
}

/* A name that is loopback here is no other host's, whatever it is there. */
static enum keel_status miss(const struct keel_net_place *place, const char *name, const char *why)
{
    struct keel_net_place found;
    char host[KEEL_HOST_BYTES];
    bool named = false;
    if (keel_net_place_check(name, &found, &named) != KEEL_OK || !named || !keel_net_place_is_loopback(place))
        return keel_fail(KEEL_PEER_LOST, "%s: %s", name, why);
    keel_net_place_print_ip(place, host);
    return keel_fail(KEEL_PEER_LOST, "%s: %s; on this host that name is %s, loopback", name, why, host);
}

/* PEER_LOST: nobody there. */
static enum keel_status reach(int fd, const struct keel_net_place *place, sa_family_t family,
                              const char *name)
{
    struct sockaddr_storage address;
    int error = 0;
    socklen_t error_bytes = sizeof error;
    const socklen_t bytes = keel_net_place_to_socket(place, family, &address);
    if (connect(fd, (const struct sockaddr *)&address, bytes) != 0) {
        if (errno != EINPROGRESS)
            return miss(place, name, strerror(errno));
        enum keel_status status = await(fd, POLLOUT, keel_deadline_after_ns(connect_patience_ns));
        if (status == KEEL_TIMEOUT)
            return miss(place, name, "no answer");
        KEEL_TRY(status);
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0 || error != 0)
            return miss(place, name, strerror(error));
    }
    return KEEL_OK;
}

/* While we wait to be wanted nothing is said: the kernel looks whether the launcher's host is there. */
static void keep_alive(int fd, bool yes)
{
    const int on = yes, after = ALIVE_AFTER_S, every = ALIVE_EVERY_S, tries = ALIVE_TRIES;
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &after, sizeof after);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
}

static enum keel_status call(const struct keel_dial_config *config, struct keel_dialed *dialed)
{
    struct keel_net_place place;
    KEEL_TRY(keel_net_place_resolve(dialed->place, &place));
    const sa_family_t family = keel_net_place_family(&place);
    dialed->fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (dialed->fd < 0)
        return keel_fail_errno(errno, "no socket");
    KEEL_TRY(bind_to(dialed->fd, config, dialed->place, &place, family));
    KEEL_TRY(reach(dialed->fd, &place, family, dialed->place));
    keep_alive(dialed->fd, true);
    KEEL_TRY(keel_net_place_of_descriptor(dialed->fd, false, &dialed->here));
    dialed->here.port = own_port(config);
    return keel_net_place_of_descriptor(dialed->fd, true, &dialed->launcher);
}

/* ---- the handover -------------------------------------------------------------------------------------- */

static enum keel_status say_facts(const struct keel_dial_config *config, struct keel_dialed *dialed)
{
    struct keel_agent_facts facts = {.node = config->node, .instance = config->instance};
    uint8_t payload[KEEL_FACTS_FRAME_BYTES], frame[KEEL_FACTS_FRAME_BYTES];
    if (gethostname(facts.host, sizeof facts.host - 1) != 0)
        facts.host[0] = '\0';
    const uint32_t bytes = keel_agent_facts_write(&facts, payload, sizeof payload);
    const uint32_t frame_bytes =
        keel_frame_seal(&dialed->handover, KEEL_HANDOVER_FACTS, payload, bytes, frame);
    return give(dialed->fd, frame, frame_bytes, keel_deadline_after_ns(opening_patience_ns));
}

static enum keel_status take_refusal(struct keel_dialed *dialed, enum keel_handover_kind kind,
                                     const uint8_t *payload, uint32_t bytes)
{
    struct keel_handover_reason reason;
    if (!keel_handover_reason_read(payload, bytes, &reason))
        return keel_fail(KEEL_CORRUPT, "%s: says what no launcher says", dialed->place);
    dialed->refused = kind == KEEL_HANDOVER_REFUSED;
    if (dialed->refused)
        return keel_fail(reason.status, "%s does not %s: it %s", dialed->place,
                         dialed->asks ? "do what this command asks for" : "take this agent", reason.text);
    snprintf(dialed->elsewhere, sizeof dialed->elsewhere, "%.*s", (int)sizeof dialed->elsewhere - 1,
             reason.text);
    return keel_fail(KEEL_PEER_LOST, "%s does not lead the run: %s%s", dialed->place,
                     reason.text[0] != '\0' ? "who does is at " : "nobody does now", reason.text);
}

/* The launcher's next frame, which goes to *frame, the caller's to free whatever is returned; its head comes
 * by head_ns. */
static enum keel_status take_frame(struct keel_dialed *dialed, uint64_t head_ns, uint8_t **frame,
                                   enum keel_handover_kind *kind, const uint8_t **payload, uint32_t *bytes)
{
    uint8_t head[KEEL_FRAME_HEAD_BYTES];
    uint32_t other_key;
    KEEL_TRY(take(dialed->fd, head, sizeof head, head_ns));
    memcpy(&other_key, head, sizeof other_key);
    if (other_key == KEEL_FRAME_OTHER_KEY)
        return keel_fail(KEEL_AUTH,
                         dialed->asks
                             ? "%s does not know the key that this directory has (job.key)"
                             : "%s does not know this agent's key: copy job.key of the run's directory again",
                         dialed->place);
    const uint32_t frame_bytes = keel_frame_bytes(head, sizeof head, KEEL_FRAME_BYTES);
    if (frame_bytes == 0)
        return keel_fail(KEEL_CORRUPT, "%s: sends what is no frame of Keel", dialed->place);
    KEEL_TRY(keel_alloc(1, frame_bytes, frame));
    memcpy(*frame, head, sizeof head);
    KEEL_TRY(take(dialed->fd, *frame + sizeof head, frame_bytes - KEEL_FRAME_HEAD_BYTES,
                  keel_deadline_after_ns(opening_patience_ns)));
    if (!keel_frame_open(&dialed->handover, *frame, frame_bytes, kind, payload, bytes))
        return keel_fail(KEEL_AUTH, "%s does not prove that it knows the job key", dialed->place);
    return *kind == KEEL_HANDOVER_REFUSED || *kind == KEEL_HANDOVER_ELSEWHERE
               ? take_refusal(dialed, *kind, *payload, *bytes)
               : KEEL_OK;
}

/* Wait to be wanted: as long as the launcher is there. */
static enum keel_status take_answer(struct keel_dialed *dialed)
{
    enum keel_handover_kind kind = KEEL_HANDOVER_REFUSED;
    const uint8_t *payload = NULL;
    uint32_t bytes = 0;
    KEEL_TRY(take_frame(dialed, KEEL_NEVER, &dialed->frame, &kind, &payload, &bytes));
    if (kind != KEEL_HANDOVER_JOB || !keel_handed_job_read(payload, bytes, &dialed->job))
        return keel_fail(KEEL_CORRUPT, "%s: says what no launcher says", dialed->place);
    return KEEL_OK;
}

/* The job that was handed over stays: this node goes on by it. */
enum keel_status keel_dialed_hear(struct keel_dialed *dialed)
{
    uint8_t *frame = NULL;
    enum keel_handover_kind kind = KEEL_HANDOVER_REFUSED;
    const uint8_t *payload = NULL;
    uint32_t bytes = 0;
    enum keel_status status =
        take_frame(dialed, keel_deadline_after_ns(opening_patience_ns), &frame, &kind, &payload, &bytes);
    keel_free(frame);
    return status == KEEL_OK ? keel_fail(KEEL_CORRUPT, "%s: says what no launcher says", dialed->place)
                             : status;
}

/* The next frame, of this kind; a status other than OK in it is why, or how it ended. Before DONE it may be
 * STAYS. */
static enum keel_status take_word(struct keel_dialed *dialed, uint64_t head_ns,
                                  enum keel_handover_kind wanted, struct keel_handover_reason *out,
                                  bool *stays)
{
    uint8_t *frame = NULL;
    enum keel_handover_kind kind = KEEL_HANDOVER_REFUSED;
    const uint8_t *payload = NULL;
    uint32_t bytes = 0;
    enum keel_status status = take_frame(dialed, head_ns, &frame, &kind, &payload, &bytes);
    *out = (struct keel_handover_reason){.status = KEEL_OK};
    const bool fine = kind == wanted || (wanted == KEEL_HANDOVER_DONE && kind == KEEL_HANDOVER_STAYS);
    if (status == KEEL_OK && (!fine || (bytes > 0 && !keel_handover_reason_read(payload, bytes, out)) ||
                              (kind == KEEL_HANDOVER_STAYS && bytes == 0)))
        status = keel_fail(KEEL_CORRUPT, "%s: says what nobody says who leads", dialed->place);
    *stays = status == KEEL_OK && kind == KEEL_HANDOVER_STAYS;
    keel_free(frame);
    return status;
}

static enum keel_status say_ask(const struct keel_dial_config *config, struct keel_dialed *dialed,
                                uint64_t deadline_ns)
{
    uint8_t payload[KEEL_FACTS_FRAME_BYTES], frame[sizeof payload + KEEL_FRAME_EXTRA_BYTES];
    struct keel_handover_reason none;
    bool stays;
    const uint32_t bytes = keel_handover_ask_write(config->ask, payload, sizeof payload);
    const uint32_t frame_bytes = keel_frame_seal(&dialed->handover, KEEL_HANDOVER_ASK, payload, bytes, frame);
    KEEL_TRY(give(dialed->fd, frame, frame_bytes, deadline_ns));
    return take_word(dialed, deadline_ns, KEEL_HANDOVER_HEARD, &none, &stays);
}

static enum keel_status talk(const struct keel_dial_config *config, struct keel_dialed *dialed)
{
    uint8_t theirs[KEEL_OPENING_BYTES];
    const uint64_t deadline_ns = keel_deadline_after_ns(opening_patience_ns);
    keel_handover_begin(&dialed->handover, KEEL_HANDOVER_AGENT, config->secret, config->release);
    KEEL_TRY(call(config, dialed));
    KEEL_TRY(give(dialed->fd, dialed->handover.opening, KEEL_OPENING_BYTES, deadline_ns));
    KEEL_TRY(take(dialed->fd, theirs, sizeof theirs, deadline_ns));
    enum keel_status status = keel_handover_agree(&dialed->handover, theirs);
    if (status != KEEL_OK) {
        char why[KEEL_DETAIL_BYTES];
        snprintf(why, sizeof why, "%.400s", keel_detail());
        return keel_fail(status, "%s: %s", dialed->place, why);
    }
    if (config->ask != NULL)
        return say_ask(config, dialed, deadline_ns);
    KEEL_TRY(say_facts(config, dialed));
    char host[KEEL_HOST_BYTES];
    struct keel_network network = {.name = "?"};
    (void)keel_network_of(&dialed->here, &network);
    keel_net_place_print_ip(&dialed->here, host);
    keel_log(KEEL_LOG_INFO, "%s hears us; this host is %s there (%s, MTU %" PRIu32 ")", dialed->place, host,
             network.name, network.mtu_bytes);
    KEEL_TRY(take_answer(dialed));
    keep_alive(dialed->fd, false); /* datagrams tell from here on; a cut for a while must not end this */
    return KEEL_OK;
}

void keel_dialed_close(struct keel_dialed *dialed)
{
    if (dialed->fd >= 0)
        close(dialed->fd);
    keel_free(dialed->frame);
    keel_handover_wipe(&dialed->handover);
    *dialed = (struct keel_dialed){.fd = -1};
}

/* Nobody is there (yet), or was a moment ago. */
static bool may_come(enum keel_status status)
{
    return status == KEEL_PEER_LOST || status == KEEL_TIMEOUT || status == KEEL_NOT_FOUND;
}

/* Who leads, as the store says; "": it does not. */
static void look_into_store(const struct keel_dial_config *config, char out[KEEL_DIAL_PLACE_BYTES])
{
    struct keel_remote_leader leader;
    const bool some = config->store != NULL && keel_remote_leader_read(config->store, &leader);
    snprintf(out, KEEL_DIAL_PLACE_BYTES, "%s", some ? leader.place : "");
}

static enum keel_status try_place(const struct keel_dial_config *config, const char *place,
                                  struct keel_dialed *out)
{
    *out = (struct keel_dialed){.fd = -1, .asks = config->ask != NULL};
    snprintf(out->place, sizeof out->place, "%s", place);
    return talk(config, out);
}

/* What more tries do not change. */
static bool is_final(enum keel_status status, const struct keel_dialed *dialed)
{
    return status == KEEL_OK || status == KEEL_INTERRUPTED || status == KEEL_INVALID || dialed->refused;
}

/* One place, and where who is there points. */
static enum keel_status follow_place(const struct keel_dial_config *config, const char *place,
                                     struct keel_dialed *out, bool *there)
{
    char elsewhere[KEEL_PLACE_BYTES];
    enum keel_status status = try_place(config, place, out);
    /* Who starts anew is waited for anew; who refuses this agent is not waited for. */
    *there = *there || (out->handover.agreed && may_come(status));
    if (is_final(status, out) || out->elsewhere[0] == '\0')
        return status;
    memcpy(elsewhere, out->elsewhere, sizeof elsewhere);
    keel_dialed_close(out);
    return try_place(config, elsewhere, out);
}

/* Each place once. What is wrong at one of several is told, and another tried; if none is only away, it comes
 * back. Who asks has a person before it, to whom it comes back at once. */
static enum keel_status try_all(const struct keel_dial_config *config, struct keel_dialed *out, bool tell,
                                bool *there)
{
    char place[KEEL_DIAL_PLACE_BYTES], stored[KEEL_DIAL_PLACE_BYTES], away[KEEL_DETAIL_BYTES] = "",
                                                                      wrong[KEEL_DETAIL_BYTES] = "";
    enum keel_status status = KEEL_NOT_FOUND, away_status = KEEL_OK, wrong_status = KEEL_NOT_FOUND;
    const char *const lists[] = {config->places, config->known, stored};
    const bool several = strchr(config->places, ',') != NULL || config->known[0] != '\0';
    for (uint32_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        if (lists[i] == stored) /* last: it may hang */
            look_into_store(config, stored);
        for (const char *list = lists[i]; keel_dial_next_place(&list, place);) {
            status = follow_place(config, place, out, there);
            if (is_final(status, out))
                return status;
            keel_dialed_close(out);
            if (may_come(status)) {
                const size_t used = strlen(away);
                away_status = away_status == KEEL_OK || status != KEEL_NOT_FOUND ? status : away_status;
                if (strstr(away, keel_detail()) == NULL) /* a place may be in two lists */
                    snprintf(away + used, sizeof away - used, "%s%.200s", used > 0 ? "; " : "",
                             keel_detail());
            } else {
                wrong_status = status;
                snprintf(wrong, sizeof wrong, "%s", keel_detail());
                if (several && tell)
                    keel_log(KEEL_LOG_WARN, "%s", wrong);
            }
        }
    }
    const bool come_back = away_status == KEEL_OK || (config->ask != NULL && wrong[0] != '\0');
    keel_detail_set(come_back ? wrong : away);
    return come_back ? wrong_status : away_status;
}

/* With why nobody took it, of each place. */
static enum keel_status give_up(const struct keel_dial_config *config, enum keel_status status)
{
    char why[KEEL_DETAIL_BYTES];
    snprintf(why, sizeof why, "%.240s", keel_detail());
    const uint64_t seconds = config->patience_ns / KEEL_NS_PER_S;
    if (status == KEEL_NOT_FOUND)
        return keel_fail(status,
                         "--join %.100s: no place has a host that is known here, for %" PRIu64
                         " s (%s); give a name that this host knows, or the address that keel run prints",
                         config->places, seconds, why);
    return keel_fail(KEEL_TIMEOUT,
                     "--join %.100s: nobody took this agent in %" PRIu64
                     " s (%s): does keel run listen there, or a node that leads, and does every firewall let "
                     "TCP and UDP of that port pass?",
                     config->places, seconds, why);
}

enum keel_status keel_dial(const struct keel_dial_config *config, struct keel_dialed *out)
{
    uint64_t give_up_ns = keel_deadline_after_ns(config->patience_ns);
    *out = (struct keel_dialed){.fd = -1};
    for (bool first = true;; first = false) {
        bool there = false;
        enum keel_status status = try_all(config, out, first, &there);
        if (status == KEEL_OK)
            return KEEL_OK;
        keel_dialed_close(out);
        if (!may_come(status))
            return status;
        if (there)
            give_up_ns = keel_deadline_after_ns(config->patience_ns);
        if (keel_remaining_ns(give_up_ns) == 0) {
            return give_up(config, status);
        }
        const uint64_t next_ns = keel_deadline_after_ns(again_ns);
        keel_sleep_until_ns(next_ns < give_up_ns ? next_ns : give_up_ns);
        if (keel_process_interrupted())
            return keel_fail(KEEL_INTERRUPTED, "interrupted");
    }
}

enum keel_status keel_dial_ask(const struct keel_dial_config *config, struct keel_dialed *out)
{
    bool there = false;
    *out = (struct keel_dialed){.fd = -1};
    return try_all(config, out, false, &there);
}

enum keel_status keel_dialed_await(struct keel_dialed *dialed, uint64_t deadline_ns,
                                   void (*stays)(void *context, const char *why), void *context,
                                   struct keel_handover_reason *out)
{
    for (bool waits;;) {
        KEEL_TRY(take_word(dialed, deadline_ns, KEEL_HANDOVER_DONE, out, &waits));
        if (!waits)
            return KEEL_OK;
        if (stays != NULL)
            stays(context, out->text);
    }
}

/* ---- a node's own directory ---------------------------------------------------------------------------- */

static enum keel_status put(const char *directory, const char *name, const char *text)
{
    char path[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(path, directory, name));
    return keel_file_replace(path, text, strlen(text), 0600);
}

enum keel_status keel_dialed_settle(const struct keel_dialed *dialed, const struct keel_secret *secret,
                                    const char *directory)
{
    KEEL_TRY(put(directory, "job.conf", dialed->job.job));
    KEEL_TRY(put(directory, "identity", dialed->job.identity));
    if (dialed->job.state[0] != '\0')
        KEEL_TRY(put(directory, "leader.state", dialed->job.state));
    return keel_secret_save(secret, directory);
}

static void marker_text(uint64_t run, char out[32])
{
    snprintf(out, 32, "%016" PRIx64 "\n", run);
}

enum keel_status keel_store_mark(const char *store, uint64_t run)
{
    char text[32], path[KEEL_PATH_BYTES];
    marker_text(run, text);
    KEEL_TRY(keel_path_join(path, store, marker));
    return keel_file_replace(path, text, strlen(text), 0600);
}

enum keel_status keel_store_check(const char *store, uint64_t run)
{
    char wanted[32], path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    marker_text(run, wanted);
    KEEL_TRY(keel_path_join(path, store, marker));
    enum keel_status status = keel_file_read(path, sizeof wanted, &text, &bytes);
    const bool same = status == KEEL_OK && strcmp(text, wanted) == 0;
    if (status == KEEL_OK)
        keel_free(text);
    if (same)
        return KEEL_OK;
    return keel_fail(
        status == KEEL_OK ? KEEL_MISMATCH : KEEL_NOT_FOUND,
        "%s on this host is not where the launcher commits snapshots (%s); mount it, give --store "
        "DIR where it is, or train without snapshots (snapshot.every = 0)",
        store, status == KEEL_OK ? "it is another run's" : "it has no .run");
}

/* ---- datagrams ----------------------------------------------------------------------------------------- */

/* TIMEOUT: they do not. PEER_LOST, or its last word: who let this agent in has gone meanwhile. */
static enum keel_status pass(struct keel_dialed *dialed, struct keel_mailbox *mailbox, uint32_t bytes)
{
    uint8_t message[KEEL_MESSAGE_BYTES];
    uint16_t node;
    uint32_t got;
    const uint64_t deadline_ns = keel_deadline_after_ns(probe_patience_ns);
    while (keel_remaining_ns(deadline_ns) > 0 && !keel_process_interrupted()) {
        struct pollfd ready[2] = {{.fd = keel_mailbox_fd(mailbox), .events = POLLIN},
                                  {.fd = dialed->fd, .events = POLLIN}};
        keel_mailbox_probe(mailbox, bytes);
        (void)poll(ready, 2, keel_remaining_poll_ms(keel_deadline_after_ns(again_ns)));
        while (keel_mailbox_receive(mailbox, &node, message,
                                    &got)) /* nothing is decided here yet: beats repeat */
            ;
        if (keel_mailbox_echoed(mailbox) >= bytes)
            return KEEL_OK;
        const enum keel_status word = ready[1].revents != 0 ? keel_dialed_hear(dialed) : KEEL_OK;
        if (word == KEEL_PEER_LOST)
            return keel_fail(word, "%s is gone, to which datagrams were tried", dialed->place);
        if (word != KEEL_OK)
            return word;
    }
    return KEEL_TIMEOUT;
}

enum keel_status keel_dialed_probe(struct keel_dialed *dialed, struct keel_mailbox *mailbox, uint32_t bytes)
{
    char here[KEEL_HOST_BYTES], there[KEEL_PLACE_BYTES];
    struct keel_network network = {.name = "?"};
    keel_net_place_print_ip(&dialed->here, here);
    keel_net_place_print(&dialed->launcher, there);
    (void)keel_network_of(&dialed->here, &network);
    enum keel_status status = pass(dialed, mailbox, SMALL_PROBE_BYTES);
    if (status == KEEL_TIMEOUT)
        return keel_fail(
            KEEL_UNSUPPORTED,
            "no datagram from %s comes back from %s, though TCP passes: let UDP of all ports pass "
            "between the hosts",
            here, there);
    if (status == KEEL_OK)
        status = pass(dialed, mailbox, bytes);
    if (status != KEEL_TIMEOUT)
        return status;
    return keel_fail(
        KEEL_UNSUPPORTED,
        "datagrams of %" PRIu32 " bytes do not pass between %s (%s, MTU %" PRIu32 ") and %s, those "
        "of %d do: something on the way has a smaller MTU, or drops fragments; give all the same "
        "MTU, or let fragments pass",
        bytes, here, network.name, network.mtu_bytes, there, SMALL_PROBE_BYTES);
}

void keel_dialed_leave(struct keel_dialed *dialed, enum keel_status status, const char *text)
{
    struct keel_handover_reason reason = {.status = status};
    uint8_t payload[KEEL_REASON_BYTES + 8], frame[sizeof payload + KEEL_FRAME_EXTRA_BYTES];
    snprintf(reason.text, sizeof reason.text, "%s", text);
    const bool failed = status != KEEL_OK;
    const uint32_t bytes = failed ? keel_handover_reason_write(&reason, payload, sizeof payload) : 0;
    const uint32_t frame_bytes = keel_frame_seal(
        &dialed->handover, failed ? KEEL_HANDOVER_FAILED : KEEL_HANDOVER_BYE, payload, bytes, frame);
    (void)give(dialed->fd, frame, frame_bytes, keel_deadline_after_ns(opening_patience_ns));
}
