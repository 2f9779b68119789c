/* rendezvous_wire.c - frames over a TCP connection, each with its proof. */
#include "rendezvous_wire.h"

#include <errno.h>
#include <keel/clock.h>
#include <poll.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void keel_rendezvous_wire_agree(struct keel_rendezvous_wire *wire,
                                const uint8_t host_challenge[KEEL_CHALLENGE_BYTES],
                                const uint8_t member_challenge[KEEL_CHALLENGE_BYTES])
{
    static const char domain[] = "keel crew session 1";
    uint8_t agreed[KEEL_KEY_BYTES];
    crypto_generichash_state state;
    crypto_generichash_init(&state, wire->key, sizeof wire->key, sizeof agreed);
    crypto_generichash_update(&state, (const uint8_t *)domain, sizeof domain);
    crypto_generichash_update(&state, host_challenge, KEEL_CHALLENGE_BYTES);
    crypto_generichash_update(&state, member_challenge, KEEL_CHALLENGE_BYTES);
    crypto_generichash_final(&state, agreed, sizeof agreed);
    memcpy(wire->key, agreed, sizeof agreed);
    keel_handshake_wipe(agreed);
    sodium_memzero(&state, sizeof state);
}

static void prove(const struct keel_rendezvous_wire *wire, bool from_host,
                  const struct keel_rendezvous_header *header, const void *payload,
                  uint8_t out[KEEL_PROOF_BYTES])
{
    uint8_t direction = from_host ? 1 : 2;
    crypto_generichash_state state;
    crypto_generichash_init(&state, wire->key, sizeof wire->key, KEEL_PROOF_BYTES);
    crypto_generichash_update(&state, &direction, 1);
    crypto_generichash_update(&state, (const uint8_t *)header,
                              offsetof(struct keel_rendezvous_header, proof));
    if (header->bytes > 0)
        crypto_generichash_update(&state, payload, header->bytes);
    crypto_generichash_final(&state, out, KEEL_PROOF_BYTES);
    sodium_memzero(&state, sizeof state);
}

static enum keel_status write_all(int fd, const void *data, size_t bytes, uint64_t deadline_ns)
{
    const uint8_t *at = data;
    while (bytes > 0) {
        ssize_t done = send(fd, at, bytes, MSG_NOSIGNAL);
        if (done > 0) {
            at += done;
            bytes -= (size_t)done;
            continue;
        }
        if (done < 0 && errno != EAGAIN && errno != EINTR)
            return keel_fail(KEEL_PEER_LOST, "the meeting: the connection is gone: %s", strerror(errno));
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        if (keel_remaining_ns(deadline_ns) == 0)
            return keel_fail(KEEL_TIMEOUT, "the meeting: the other side reads nothing");
        poll(&ready, 1, keel_remaining_poll_ms(deadline_ns));
    }
    return KEEL_OK;
}

enum keel_status keel_rendezvous_wire_send(struct keel_rendezvous_wire *wire, uint32_t kind,
                                           const void *payload, uint32_t bytes, uint64_t deadline_ns)
{
    struct keel_rendezvous_header header = {
        .magic = KEEL_RENDEZVOUS_MAGIC, .kind = kind, .bytes = bytes, .turn = wire->sent};
    KEEL_ASSERT(bytes <= KEEL_RENDEZVOUS_FRAME_BYTES);
    prove(wire, wire->is_host, &header, payload, header.proof);
    wire->sent++;
    KEEL_TRY(write_all(wire->fd, &header, sizeof header, deadline_ns));
    return write_all(wire->fd, payload, bytes, deadline_ns);
}

const struct keel_rendezvous_header *keel_rendezvous_wire_header(const struct keel_rendezvous_wire *wire)
{
    return (const struct keel_rendezvous_header *)(const void *)wire->in;
}

const uint8_t *keel_rendezvous_wire_payload(const struct keel_rendezvous_wire *wire)
{
    return wire->in + sizeof(struct keel_rendezvous_header);
}

bool keel_rendezvous_wire_take(struct keel_rendezvous_wire *wire, uint32_t bytes_max, bool *out_done)
{
    *out_done = false;
    for (;;) {
        uint32_t wanted = sizeof(struct keel_rendezvous_header);
        if (wire->got >= wanted) {
            const struct keel_rendezvous_header *header = keel_rendezvous_wire_header(wire);
            if (header->magic != KEEL_RENDEZVOUS_MAGIC || header->bytes > bytes_max)
                return false;
            wanted += header->bytes;
        }
        if (wire->got == wanted && wanted >= sizeof(struct keel_rendezvous_header)) {
            *out_done = true;
            return true;
        }
        ssize_t done = recv(wire->fd, wire->in + wire->got, wanted - wire->got, 0);
        if (done == 0)
            return false;
        if (done < 0)
            return errno == EAGAIN || errno == EINTR;
        wire->got += (uint32_t)done;
    }
}

bool keel_rendezvous_wire_proven(struct keel_rendezvous_wire *wire)
{
    const struct keel_rendezvous_header *header = keel_rendezvous_wire_header(wire);
    uint8_t wanted[KEEL_PROOF_BYTES];
    prove(wire, !wire->is_host, header, keel_rendezvous_wire_payload(wire), wanted);
    if (header->turn != wire->received || !keel_handshake_equal(wanted, header->proof))
        return false;
    wire->received++;
    return true;
}

void keel_rendezvous_wire_forget(struct keel_rendezvous_wire *wire)
{
    wire->got = 0;
}

enum keel_status keel_rendezvous_wire_receive(struct keel_rendezvous_wire *wire, uint64_t deadline_ns)
{
    keel_rendezvous_wire_forget(wire);
    for (;;) {
        bool done;
        if (!keel_rendezvous_wire_take(wire, KEEL_RENDEZVOUS_FRAME_BYTES, &done))
            return keel_fail(KEEL_PEER_LOST, "the meeting: the other side ended the connection");
        if (done && keel_rendezvous_wire_proven(wire))
            return KEEL_OK;
        if (done)
            return keel_fail(KEEL_AUTH, "the meeting: the other side has another key");
        struct pollfd ready = {.fd = wire->fd, .events = POLLIN};
        if (keel_remaining_ns(deadline_ns) == 0)
            return keel_fail(KEEL_TIMEOUT, "the meeting: no answer in time");
        poll(&ready, 1, keel_remaining_poll_ms(deadline_ns));
    }
}
