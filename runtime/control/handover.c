/* handover.c - see handover.h. */
#include "handover.h"

#include "wire_bytes.h"
#include <keel/memory.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

enum { MAGIC_BYTES = 8, TAG_BYTES = 16, KIND_BYTES = 1 };

/* The last letter is the role. */
static const char magics[][MAGIC_BYTES] = {
    [KEEL_HANDOVER_LAUNCHER] = {'K', 'E', 'E', 'L', 'J', 'O', '2', 'L'},
    [KEEL_HANDOVER_AGENT] = {'K', 'E', 'E', 'L', 'J', 'O', '2', 'A'},
};

_Static_assert((int)TAG_BYTES == (int)crypto_aead_xchacha20poly1305_ietf_ABYTES, "a tag behind each frame");
_Static_assert((int)KEEL_HANDOVER_KEY_BYTES == (int)crypto_aead_xchacha20poly1305_ietf_KEYBYTES, "seals");
_Static_assert((int)KEEL_HANDOVER_KEY_BYTES == (int)crypto_scalarmult_BYTES, "public keys");
_Static_assert((int)KEEL_HANDOVER_KEY_BYTES == (int)KEEL_SECRET_BYTES, "the job key");
_Static_assert(KEEL_FRAME_EXTRA_BYTES == KEEL_FRAME_HEAD_BYTES + KIND_BYTES + TAG_BYTES, "as sealed");

/* ---- openings ------------------------------------------------------------------------------------------ */

void keel_handover_begin(struct keel_handover *handover, enum keel_handover_role role,
                         const struct keel_secret *secret, const char *release)
{
    *handover = (struct keel_handover){.role = role};
    keel_secret_derive(secret, "handover", handover->key);
    uint8_t *at = handover->opening;
    memcpy(at, magics[role], MAGIC_BYTES);
    snprintf((char *)at + MAGIC_BYTES, KEEL_RELEASE_BYTES, "%s", release);
    randombytes_buf(handover->secret, sizeof handover->secret);
    KEEL_ASSERT(crypto_scalarmult_base(at + MAGIC_BYTES + KEEL_RELEASE_BYTES, handover->secret) == 0);
}

void keel_handover_release(const uint8_t opening[KEEL_OPENING_BYTES], char out[KEEL_RELEASE_BYTES])
{
    memcpy(out, opening + MAGIC_BYTES, KEEL_RELEASE_BYTES);
    out[KEEL_RELEASE_BYTES - 1] = '\0';
    for (char *at = out; *at != '\0'; at++)
        if (*at < ' ' || *at > '~')
            *at = '?';
}

/* The key of what `from` seals. */
static void derive(const struct keel_handover *handover, const uint8_t *theirs,
                   const uint8_t shared[KEEL_HANDOVER_KEY_BYTES], enum keel_handover_role from,
                   uint8_t out[KEEL_HANDOVER_KEY_BYTES])
{
    static const char domain[] = "keel handover 1";
    const bool launcher = handover->role == KEEL_HANDOVER_LAUNCHER;
    const uint8_t direction = (uint8_t)from;
    crypto_generichash_state state;
    crypto_generichash_init(&state, handover->key, sizeof handover->key, KEEL_HANDOVER_KEY_BYTES);
    crypto_generichash_update(&state, (const uint8_t *)domain, sizeof domain);
    crypto_generichash_update(&state, launcher ? handover->opening : theirs, KEEL_OPENING_BYTES);
    crypto_generichash_update(&state, launcher ? theirs : handover->opening, KEEL_OPENING_BYTES);
    crypto_generichash_update(&state, shared, KEEL_HANDOVER_KEY_BYTES);
    crypto_generichash_update(&state, &direction, 1);
    crypto_generichash_final(&state, out, KEEL_HANDOVER_KEY_BYTES);
    sodium_memzero(&state, sizeof state);
}

enum keel_status keel_handover_agree(struct keel_handover *handover, const uint8_t theirs[KEEL_OPENING_BYTES])
{
    KEEL_ASSERT(!handover->agreed);
    const bool launcher = handover->role == KEEL_HANDOVER_LAUNCHER;
    const enum keel_handover_role other = launcher ? KEEL_HANDOVER_AGENT : KEEL_HANDOVER_LAUNCHER;
    const char *who = launcher ? "the agent" : "the launcher";
    if (memcmp(theirs, magics[other], MAGIC_BYTES) != 0)
        return keel_fail(KEEL_CORRUPT, "what is there is not %s of Keel", who + 4);
    char ours[KEEL_RELEASE_BYTES], release[KEEL_RELEASE_BYTES];
    keel_handover_release(handover->opening, ours);
    keel_handover_release(theirs, release);
    if (memcmp(theirs + MAGIC_BYTES, handover->opening + MAGIC_BYTES, KEEL_RELEASE_BYTES) != 0)
        return keel_fail(KEEL_VERSION, "%s is of release %s, %s of release %s; take the same on all hosts",
                         who, release, launcher ? "the launcher" : "this agent", ours);
    uint8_t shared[KEEL_HANDOVER_KEY_BYTES], sealer[KEEL_HANDOVER_KEY_BYTES];
    if (crypto_scalarmult(shared, handover->secret, theirs + MAGIC_BYTES + KEEL_RELEASE_BYTES) != 0)
        return keel_fail(KEEL_CORRUPT, "%s sent a public key that no honest side makes", who);
    derive(handover, theirs, shared, handover->role, sealer);
    derive(handover, theirs, shared, other, handover->opener);
    memcpy(handover->key, sealer, sizeof sealer);
    sodium_memzero(shared, sizeof shared);
    sodium_memzero(sealer, sizeof sealer);
    sodium_memzero(handover->secret, sizeof handover->secret);
    handover->agreed = true;
    return KEEL_OK;
}

void keel_handover_wipe(struct keel_handover *handover)
{
    sodium_memzero(handover, sizeof *handover);
}

/* ---- frames -------------------------------------------------------------------------------------------- */

static void nonce_of(uint64_t number, uint8_t out[crypto_aead_xchacha20poly1305_ietf_NPUBBYTES])
{
    memset(out, 0, crypto_aead_xchacha20poly1305_ietf_NPUBBYTES);
    memcpy(out, &number, sizeof number);
}

uint32_t keel_frame_bytes(const uint8_t *data, uint32_t got, uint32_t most)
{
    uint32_t rest;
    if (got < KEEL_FRAME_HEAD_BYTES)
        return KEEL_FRAME_HEAD_BYTES;
    memcpy(&rest, data, sizeof rest);
    if (rest < KIND_BYTES + TAG_BYTES || rest > most - KEEL_FRAME_HEAD_BYTES)
        return 0;
    return KEEL_FRAME_HEAD_BYTES + rest;
}

uint32_t keel_frame_seal(struct keel_handover *handover, enum keel_handover_kind kind, const uint8_t *payload,
                         uint32_t bytes, uint8_t *out)
{
    KEEL_ASSERT(handover->agreed && bytes <= KEEL_FRAME_BYTES - KEEL_FRAME_EXTRA_BYTES);
    const uint32_t rest = KIND_BYTES + bytes + TAG_BYTES;
    uint8_t nonce[crypto_aead_xchacha20poly1305_ietf_NPUBBYTES], *text = out + KEEL_FRAME_HEAD_BYTES;
    memcpy(out, &rest, sizeof rest);
    text[0] = (uint8_t)kind;
    if (bytes > 0)
        memcpy(text + KIND_BYTES, payload, bytes);
    nonce_of(handover->sealed++, nonce);
    KEEL_ASSERT(crypto_aead_xchacha20poly1305_ietf_encrypt(text, NULL, text, KIND_BYTES + bytes, out,
                                                           KEEL_FRAME_HEAD_BYTES, NULL, nonce,
                                                           handover->key) == 0);
    return KEEL_FRAME_HEAD_BYTES + rest;
}

bool keel_frame_open(struct keel_handover *handover, uint8_t *frame, uint32_t frame_bytes,
                     enum keel_handover_kind *out_kind, const uint8_t **out_payload, uint32_t *out_bytes)
{
    KEEL_ASSERT(handover->agreed);
    if (frame_bytes < KEEL_FRAME_EXTRA_BYTES ||
        keel_frame_bytes(frame, frame_bytes, KEEL_FRAME_BYTES) != frame_bytes)
        return false;
    uint8_t nonce[crypto_aead_xchacha20poly1305_ietf_NPUBBYTES], *text = frame + KEEL_FRAME_HEAD_BYTES;
    nonce_of(handover->opened, nonce);
    if (crypto_aead_xchacha20poly1305_ietf_decrypt(text, NULL, NULL, text,
                                                   frame_bytes - KEEL_FRAME_HEAD_BYTES, frame,
                                                   KEEL_FRAME_HEAD_BYTES, nonce, handover->opener) != 0)
        return false;
    handover->opened++;
    *out_kind = (enum keel_handover_kind)text[0];
    *out_payload = text + KIND_BYTES;
    *out_bytes = frame_bytes - KEEL_FRAME_EXTRA_BYTES;
    return true;
}

/* ---- payloads ------------------------------------------------------------------------------------------ */

/* A text that goes over a terminal and into a JSON line. */
static void make_printable(char *text)
{
    for (; *text != '\0'; text++)
        if (*text < ' ' || *text > '~' || *text == '"' || *text == '\\')
            *text = '?';
}

uint32_t keel_agent_facts_write(const struct keel_agent_facts *facts, uint8_t *out, uint32_t capacity)
{
    struct keel_writer writer = {.data = out, .capacity = capacity};
    keel_writer_number(&writer, facts->node, 2);
    keel_writer_number(&writer, facts->instance, 8);
    keel_writer_bytes(&writer, facts->host, sizeof facts->host);
    return writer.failed ? 0 : writer.bytes;
}

bool keel_agent_facts_read(const uint8_t *data, uint32_t bytes, struct keel_agent_facts *out)
{
    struct keel_wire_reader reader = {.data = data, .bytes = bytes};
    struct keel_agent_facts facts = {0};
    facts.node = (uint16_t)keel_reader_number(&reader, 2);
    facts.instance = keel_reader_number(&reader, 8);
    keel_reader_bytes(&reader, facts.host, sizeof facts.host);
    if (!keel_reader_complete(&reader) || facts.node >= KEEL_NODES_MAX)
        return false;
    facts.host[sizeof facts.host - 1] = '\0';
    make_printable(facts.host);
    *out = facts;
    return true;
}

static void write_text(struct keel_writer *writer, const char *text)
{
    const uint32_t bytes = (uint32_t)strlen(text) + 1;
    keel_writer_number(writer, bytes, 4);
    keel_writer_bytes(writer, text, bytes);
}

/* One that ends with the only NUL in it, where it lies. */
static const char *read_text(struct keel_wire_reader *reader)
{
    const uint64_t bytes = keel_reader_number(reader, 4);
    const char *text = (const char *)reader->data + reader->at;
    if (reader->failed || bytes == 0 || bytes > reader->bytes - reader->at ||
        memchr(text, '\0', keel_size(bytes)) != text + bytes - 1) {
        reader->failed = true;
        return "";
    }
    reader->at += (uint32_t)bytes;
    return text;
}

uint32_t keel_handed_job_bytes(const struct keel_handed_job *job)
{
    const char *const texts[] = {job->launcher, job->job, job->identity, job->store, job->hosts, job->state};
    size_t bytes = 2 + 4 + 8 + 2 + 4 + 4;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        bytes += 4 + strlen(texts[i]) + 1;
    for (uint32_t i = 0; i < job->word_count; i++)
        bytes += 4 + strlen(job->words[i]) + 1;
    return bytes <= KEEL_FRAME_BYTES - KEEL_FRAME_EXTRA_BYTES ? (uint32_t)bytes : 0;
}

uint32_t keel_handed_job_write(const struct keel_handed_job *job, uint8_t *out, uint32_t capacity)
{
    struct keel_writer writer = {.data = out, .capacity = capacity};
    KEEL_ASSERT(job->word_count <= KEEL_PASSED_ON_MAX);
    keel_writer_number(&writer, job->node, 2);
    keel_writer_number(&writer, job->incarnation, 4);
    keel_writer_number(&writer, job->run, 8);
    keel_writer_number(&writer, job->by, 2);
    keel_writer_number(&writer, job->by_tag, 4);
    keel_writer_number(&writer, job->word_count, 4);
    write_text(&writer, job->launcher);
    write_text(&writer, job->job);
    write_text(&writer, job->identity);
    write_text(&writer, job->store);
    write_text(&writer, job->hosts);
    write_text(&writer, job->state);
    for (uint32_t i = 0; i < job->word_count; i++)
        write_text(&writer, job->words[i]);
    return writer.failed ? 0 : writer.bytes;
}

bool keel_handed_job_read(const uint8_t *data, uint32_t bytes, struct keel_handed_job *out)
{
    struct keel_wire_reader reader = {.data = data, .bytes = bytes};
    struct keel_handed_job job = {0};
    job.node = (uint16_t)keel_reader_number(&reader, 2);
    job.incarnation = (uint32_t)keel_reader_number(&reader, 4);
    job.run = keel_reader_number(&reader, 8);
    job.by = (uint16_t)keel_reader_number(&reader, 2);
    job.by_tag = (uint32_t)keel_reader_number(&reader, 4);
    job.word_count = (uint32_t)keel_reader_number(&reader, 4);
    if (reader.failed || job.word_count > KEEL_PASSED_ON_MAX || job.node == 0 || job.node >= KEEL_NODES_MAX ||
        job.incarnation == 0 || job.incarnation >= UINT32_C(1) << 24 || job.run == 0 ||
        job.by >= KEEL_NODES_MAX || job.by == job.node)
        return false;
    job.launcher = read_text(&reader);
    job.job = read_text(&reader);
    job.identity = read_text(&reader);
    job.store = read_text(&reader);
    job.hosts = read_text(&reader);
    job.state = read_text(&reader);
    for (uint32_t i = 0; i < job.word_count; i++)
        job.words[i] = read_text(&reader);
    if (!keel_reader_complete(&reader))
        return false;
    *out = job;
    return true;
}

uint32_t keel_handover_reason_write(const struct keel_handover_reason *reason, uint8_t *out,
                                    uint32_t capacity)
{
    struct keel_writer writer = {.data = out, .capacity = capacity};
    keel_writer_number(&writer, (uint64_t)reason->status, 4);
    write_text(&writer, reason->text);
    return writer.failed ? 0 : writer.bytes;
}

bool keel_handover_reason_read(const uint8_t *data, uint32_t bytes, struct keel_handover_reason *out)
{
    struct keel_wire_reader reader = {.data = data, .bytes = bytes};
    const uint64_t status = keel_reader_number(&reader, 4);
    const char *text = read_text(&reader);
    if (!keel_reader_complete(&reader) || status == KEEL_OK || status >= KEEL_STATUS_COUNT)
        return false;
    out->status = (enum keel_status)status;
    snprintf(out->text, sizeof out->text, "%s", text);
    make_printable(out->text);
    return true;
}

uint32_t keel_handover_ask_write(const struct keel_handover_ask *ask, uint8_t *out, uint32_t capacity)
{
    struct keel_writer writer = {.data = out, .capacity = capacity};
    keel_writer_number(&writer, ask->run, 8);
    keel_writer_number(&writer, (uint64_t)ask->wish, 1);
    keel_writer_number(&writer, ask->node, 2);
    return writer.failed ? 0 : writer.bytes;
}

bool keel_handover_ask_read(const uint8_t *data, uint32_t bytes, struct keel_handover_ask *out)
{
    struct keel_wire_reader reader = {.data = data, .bytes = bytes};
    const uint64_t run = keel_reader_number(&reader, 8), wish = keel_reader_number(&reader, 1),
                   node = keel_reader_number(&reader, 2);
    if (!keel_reader_complete(&reader) || run == 0 || wish == 0 || wish >= KEEL_WISH_COUNT ||
        (wish == KEEL_WISH_STOP) != (node == 0) || node >= KEEL_NODES_MAX)
        return false;
    *out =
        (struct keel_handover_ask){.run = run, .wish = (enum keel_handover_wish)wish, .node = (uint16_t)node};
    return true;
}
