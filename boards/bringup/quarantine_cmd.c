/* quarantine_cmd.c - `keel board release`, and the quarantined boards in `keel board list`. */
#include "quarantine_cmd.h"
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "keel board release SELECTOR... - trust a board again that was quarantined\n"
    "\n"
    "A board is quarantined when it computed wrong bits: a golden operation between the steps of a run\n"
    "(train.screen_every) had another hash than its own. Its file has the evidence; release renames it, so\n"
    "that it stays. Check the board first.\n"
    "\n"
    "Examples\n"
    "  keel board list                     what is quarantined, why and since when\n"
    "  keel board check pocl:0 && keel board release pocl:0\n"
    "\n"
    "Exit codes: 0 done, 2 wrong use, 3 not quarantined, or the file cannot be changed.\n";

void keel_quarantine_print(void)
{
    struct keel_quarantine *records;
    uint32_t count = 0;
    enum keel_status status = keel_alloc(KEEL_QUARANTINE_MAX, sizeof *records, &records);
    if (status == KEEL_OK)
        status = keel_quarantine_list(records, KEEL_QUARANTINE_MAX, &count);
    if (status != KEEL_OK)
        printf("\nQuarantine cannot be read: %s\n", keel_detail());
    for (uint32_t i = 0; i < count && status == KEEL_OK; i++) {
        const struct keel_quarantine *record = &records[i];
        if (i == 0)
            printf("\nQuarantined: no run takes them before `keel board release SELECTOR`\n");
        printf("%-12s since %s on %s, %s\n%12s %s\n%12s %s\n", record->selector, record->since, record->host,
               record->where, "", record->evidence, "", record->path);
    }
    keel_free(records);
}

int keel_quarantine_release_main(int argc, char **argv)
{
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(help, stdout);
        return 0;
    }
    if (argc < 2 || argv[1][0] == '-') {
        fprintf(stderr, "keel board: release wants the selectors of boards; see keel board release --help\n");
        return keel_status_exit_code(KEEL_INVALID);
    }
    for (int i = 1; i < argc; i++) {
        enum keel_status status = keel_quarantine_release(argv[i]);
        if (status != KEEL_OK) {
            fprintf(stderr, "keel board: %s\n", keel_detail());
            return keel_status_exit_code(status);
        }
        printf("%s is released\n", argv[i]);
    }
    return 0;
}
