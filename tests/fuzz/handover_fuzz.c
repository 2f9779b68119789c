/* handover_fuzz.c - any bytes in the place of the other side's: an opening, frames, and payloads that proved
 * themselves but are not what they should be. What opens was sealed, next, in this conversation; what is read
 * is bounded and ends. */
#include "fuzz.h"
#include "handover.h"
#include <sodium.h>

enum { TEXT_BYTES = 40 };

static void read_payloads(const uint8_t *data, uint32_t bytes)
{
    struct keel_agent_facts facts;
    struct keel_handed_job job;
    struct keel_handover_reason reason;
    struct keel_handover_ask ask;
    if (keel_handover_ask_read(data, bytes, &ask)) {
        uint8_t same[16];
        KEEL_ASSERT(keel_handover_ask_write(&ask, same, sizeof same) == bytes &&
                    memcmp(same, data, bytes) == 0);
    }
    if (keel_agent_facts_read(data, bytes, &facts))
        KEEL_ASSERT(facts.node < KEEL_NODES_MAX && strlen(facts.host) < sizeof facts.host);
    if (keel_handover_reason_read(data, bytes, &reason))
        KEEL_ASSERT(reason.status != KEEL_OK && strlen(reason.text) < sizeof reason.text);
    if (!keel_handed_job_read(data, bytes, &job))
        return;
    static uint8_t again[1 << 16];
    KEEL_ASSERT(job.node > 0 && job.word_count <= KEEL_PASSED_ON_MAX);
    KEEL_ASSERT(keel_handed_job_bytes(&job) == bytes);
    KEEL_ASSERT(bytes > sizeof again || (keel_handed_job_write(&job, again, sizeof again) == bytes &&
                                         memcmp(again, data, bytes) == 0));
}

/* An opening with bytes of the input in it; whoever agrees to it opens nothing that was invented. */
static void strange_opening(struct fuzz_input *in, const struct keel_secret *secret)
{
    struct keel_handover launcher, agent;
    uint8_t opening[KEEL_OPENING_BYTES];
    char release[KEEL_RELEASE_BYTES];
    keel_handover_begin(&launcher, KEEL_HANDOVER_LAUNCHER, secret, "1");
    keel_handover_begin(&agent, KEEL_HANDOVER_AGENT, secret, "1");
    memcpy(opening, agent.opening, sizeof opening);
    for (uint32_t k = fuzz_take_u8(in) % 8; k > 0; k--)
        opening[fuzz_take_u8(in) % sizeof opening] = fuzz_take_u8(in);
    keel_handover_release(opening, release);
    KEEL_ASSERT(strlen(release) < sizeof release);
    if (keel_handover_agree(&launcher, opening) != KEEL_OK)
        return;
    uint8_t frame[256];
    enum keel_handover_kind kind;
    const uint8_t *payload;
    uint32_t bytes, frame_bytes = fuzz_take_u8(in);
    for (uint32_t i = 0; i < frame_bytes; i++)
        frame[i] = fuzz_take_u8(in);
    const uint32_t wanted = keel_frame_bytes(frame, frame_bytes, sizeof frame);
    KEEL_ASSERT(wanted <= sizeof frame);
    KEEL_ASSERT(!keel_frame_open(&launcher, frame, frame_bytes, &kind, &payload, &bytes));
}

/* Frames that were sealed, changed or not, in any order: one opens if it is whole and next. */
static void strange_frames(struct fuzz_input *in, const struct keel_secret *secret)
{
    struct keel_handover launcher, agent;
    uint8_t frames[4][TEXT_BYTES + KEEL_FRAME_EXTRA_BYTES], copy[sizeof frames[0]];
    const uint8_t text[TEXT_BYTES] = {7};
    uint32_t next = 0;
    keel_handover_begin(&launcher, KEEL_HANDOVER_LAUNCHER, secret, "1");
    keel_handover_begin(&agent, KEEL_HANDOVER_AGENT, secret, "1");
    KEEL_ASSERT(keel_handover_agree(&launcher, agent.opening) == KEEL_OK);
    KEEL_ASSERT(keel_handover_agree(&agent, launcher.opening) == KEEL_OK);
    for (int i = 0; i < 4; i++)
        KEEL_ASSERT(keel_frame_seal(&agent, KEEL_HANDOVER_FACTS, text, TEXT_BYTES, frames[i]) == sizeof copy);
    for (int tries = 0; tries < 8; tries++) {
        const uint32_t which = fuzz_take_u8(in) % 4, at = fuzz_take_u8(in) % sizeof copy;
        const uint8_t bits = fuzz_take_u8(in);
        enum keel_handover_kind kind;
        const uint8_t *payload;
        uint32_t bytes;
        memcpy(copy, frames[which], sizeof copy);
        copy[at] ^= bits;
        const bool opened = keel_frame_open(&launcher, copy, sizeof copy, &kind, &payload, &bytes);
        KEEL_ASSERT(opened == (bits == 0 && which == next));
        KEEL_ASSERT(!opened || (bytes == TEXT_BYTES && memcmp(payload, text, bytes) == 0));
        next += opened;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input in = {.data = data, .bytes = bytes};
    struct keel_secret secret;
    KEEL_ASSERT(sodium_init() >= 0);
    KEEL_ASSERT(crypto_generichash(secret.key, sizeof secret.key, data, bytes, NULL, 0) == 0);
    if (bytes <= UINT32_MAX)
        read_payloads(data, (uint32_t)bytes);
    strange_opening(&in, &secret);
    strange_frames(&in, &secret);
    return 0;
}
