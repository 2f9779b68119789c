/* safetensors_reference_test.c - what the reference reader takes, and what it refuses, against ours: a table
 * of its verdicts, so that it need not be installed. Where ours is stricter the table says why. */
#include "sample.h"
#include <keel/safetensors.h>

struct verdict {
    const char *header;
    size_t data_bytes;
    bool taken; /* by the reference */
    enum {
        VERDICT_SAME,
        /* Taken by the reference, and refused here: */
        VERDICT_THE_FORMAT, /* its own text forbids it: white space before '{', a name twice */
        VERDICT_ITS_PARSER, /* no object where the format has one; its parser takes structs as arrays, too */
        VERDICT_LIMIT /* a limit that safetensors.h states: U+0000 in a string, more than 8 dimensions */
    } ours;
};
#include "safetensors_verdicts.h"

static void put_model(const char *path, const struct verdict *verdict)
{
    uint64_t length = strlen(verdict->header);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < 8; i++)
        fputc((int)(length >> 8 * i & 0xff), file);
    ck_assert_uint_eq(fwrite(verdict->header, 1, length, file), length);
    for (size_t i = 0; i < verdict->data_bytes; i++)
        fputc(0, file);
    ck_assert_int_eq(fclose(file), 0);
}

START_TEST(what_the_reference_takes_is_taken_and_what_it_refuses_refused)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    uint32_t wrong = 0, stricter = 0;
    const size_t count = sizeof verdicts / sizeof verdicts[0];
    make_directory(root);
    ck_ok(keel_path_join(path, root, "model.safetensors"));
    for (size_t i = 0; i < count; i++) {
        struct keel_safetensors *file;
        put_model(path, &verdicts[i]);
        enum keel_status status = keel_safetensors_open(path, &file);
        bool wanted = verdicts[i].taken && verdicts[i].ours == VERDICT_SAME;
        if (status == KEEL_OK)
            keel_safetensors_close(file);
        stricter += verdicts[i].ours != VERDICT_SAME;
        ck_assert(verdicts[i].taken || verdicts[i].ours == VERDICT_SAME);
        if ((status == KEEL_OK) == wanted)
            continue;
        printf("%.100s: %s by the reference, here: %s\n", verdicts[i].header,
               verdicts[i].taken ? "taken" : "refused", status == KEEL_OK ? "taken" : keel_detail());
        wrong++;
    }
    printf("note: %zu headers: %u verdicts differ from the table; %u are stricter for a stated reason\n",
           count, wrong, stricter);
    ck_assert_uint_eq(wrong, 0);
    ck_ok(keel_remove_tree(root));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, what_the_reference_takes_is_taken_and_what_it_refuses_refused);
}

KEEL_TEST_MAIN("safetensors_reference", cases, 60)
