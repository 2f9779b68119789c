/* quarantine_cmd.c - `keel board release`, and the quarantined boards in `keel board list`. */
#include "board_kinds.h"
#include <keel/quarantine.h>
#include <stdio.h>
#include <string.h>

void keel_quarantine_print(void)
{
    static struct keel_quarantine records[KEEL_QUARANTINE_MAX];
    uint32_t count = 0;
    if (keel_quarantine_list(records, KEEL_QUARANTINE_MAX, &count) != KEEL_OK)
        printf("\nQuarantine cannot be read: %s\n", keel_detail());
    for (uint32_t i = 0; i < count; i++) {
        const struct keel_quarantine *record = &records[i];
        if (i == 0)
            printf("\nQuarantined: no run takes them before `keel board release SELECTOR`\n");
        printf("%-12s since %s on %s, %s\n%12s %s\n%12s %s\n", record->selector, record->since, record->host,
               record->where, "", record->evidence, "", record->path);
        if (record->kind == KEEL_QUARANTINE_MEMORY)
            printf("%12s memory, %u of %d findings: %s\n", "", record->findings,
                   KEEL_QUARANTINE_MEMORY_FINDINGS,
                   record->findings < KEEL_QUARANTINE_MEMORY_FINDINGS
                       ? "a run takes it when it passes all golden operations"
                       : "it stays out");
        if (record->identity[0] == '\0')
            printf("%12s with all boards alike: its driver tells no identity\n", "");
    }
}

static int release(const struct keel_command *command)
{
    if (command->operand_count == 0)
        return keel_board_wrong_use("release wants the selectors of boards", "");
    for (uint32_t i = 0; i < command->operand_count; i++) {
        enum keel_status status = keel_quarantine_release(command->operands[i]);
        if (status != KEEL_OK)
            return keel_board_report(status);
        if (!command->json)
            printf("%s is released\n", command->operands[i]);
    }
    if (command->json) {
        struct keel_json json = keel_command_json(stdout);
        keel_json_number(&json, "released", command->operand_count);
        keel_command_json_end(&json);
    }
    return 0;
}

static const struct keel_command_option options[] = {{.name = NULL}};

const struct keel_command_kind keel_board_release = {
    .name = "release",
    .operands = "SELECTOR...",
    .operands_max = KEEL_COMMAND_OPERANDS_MAX,
    .summary = "trust a board again that was quarantined",
    .details =
        "A board is quarantined when it computed wrong bits: a golden operation between the steps of a run\n"
        "(train.screen_every) had another hash than its own. Its file has the evidence; release renames it, "
        "so\n"
        "that it stays. Check the board first. A selector is what the board had then; where several boards\n"
        "had it, give the name of the file.\n",
    .examples = "  keel board check pocl:0 && keel board release pocl:0\n",
    .options = options,
    .run = release};
